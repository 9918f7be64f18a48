/* SPDX-License-Identifier: Apache-2.0
 *
 * depends.c - order that follows from data alone. A CTA reads x, computes from it what it publishes
 * by a relaxed store or atomic; another CTA reads that and computes from it where or what to write.
 * The write cannot come before the read of x, without any fence: a value would depend on itself (No
 * Thin Air in PTX's memory model). Compaction in place relies on it.
 *
 * Marks, in functions that have all of them: plain loads whose value reaches a value that a strong
 * write publishes, and these writes (OP_GIVES); strong reads whose value reaches a plain store, and
 * these stores (OP_TAKES). Compaction may also store elements where they are: all plain stores of
 * these functions are compared with what is there (OP_GIVES). A generic address
 * may be one of global memory.
 *
 * Invariant: a dependence through registers that is not there is not seen. What is loaded from
 * shared or local memory counts as computed from all that is stored there.
 */
#include <stdlib.h>
#include <string.h>

#include "exec/exec.h"

struct flow {
    const struct ptx_function *f;
    bool *marks;  /* by register */
    bool through; /* a marked value was stored to shared or local memory; backwards: is loaded */
};

static bool is_named(const struct ptx_instruction *in, const char *opcode) {
    return strcmp(in->opcode, opcode) == 0;
}

static bool is_load(const struct ptx_instruction *in) {
    return is_named(in, "ld") || is_named(in, "ldu");
}

static bool is_atomic(const struct ptx_instruction *in) {
    return is_named(in, "atom") || is_named(in, "red");
}

static bool is_global(const struct ptx_instruction *in) {
    return ptx_has(in, "global");
}

/* Memory of the CTA or the thread; a generic address may be one of it. */
static bool is_inside(const struct ptx_instruction *in) {
    return !is_global(in) && !ptx_has(in, "const") && !ptx_has(in, "param");
}

static bool is_outside(const struct ptx_instruction *in) {
    return !ptx_has(in, "shared") && !ptx_has(in, "shared::cta") &&
           !ptx_has(in, "shared::cluster") && !ptx_has(in, "local") && !ptx_has(in, "const") &&
           !ptx_has(in, "param");
}

static bool is_strong(const struct ptx_instruction *in) {
    return is_atomic(in) || ptx_has(in, "volatile") || ptx_has(in, "relaxed") ||
           ptx_has(in, "acquire") || ptx_has(in, "release");
}

/* A strong access that other clusters take part in. */
static bool is_wide(const struct ptx_instruction *in) {
    return (is_load(in) || is_named(in, "st") || is_atomic(in)) && is_outside(in) &&
           !ptx_has(in, "cta") && !ptx_has(in, "cluster") && is_strong(in);
}

static bool is_plain(const struct ptx_instruction *in) {
    return is_outside(in) && !is_strong(in);
}

static bool has_result(const struct ptx_instruction *in) {
    return !is_named(in, "st") && !is_named(in, "red");
}

/* A load's value comes from memory, an atomic's result from the word alone. */
static bool computes(const struct ptx_instruction *in) {
    return has_result(in) && !is_load(in) && !is_named(in, "atom");
}

static bool names(const struct ptx_operand *operand, const bool *marks) {
    bool found = operand->kind == PTX_OPERAND_REGISTER && marks[operand->reg];
    for (uint32_t i = 0; !found && i < operand->part_count; i++) {
        found = names(&operand->parts[i], marks);
    }
    return found;
}

static bool uses(const struct ptx_instruction *in, const bool *marks, uint32_t first) {
    bool found = in->guard >= 0 && marks[in->guard];
    for (uint32_t i = first; !found && i < in->operand_count; i++) {
        found = names(&in->operands[i], marks);
    }
    return found;
}

/* The first operand that is a value and no address. */
static uint32_t first_value(const struct ptx_instruction *in) {
    return has_result(in) ? 2 : 1;
}

/* Marks all that is computed from the marked registers. */
static void flow_on(struct flow *flow) {
    for (bool news = true; news;) {
        news = false;
        for (uint32_t i = 0; i < flow->f->code_count; i++) {
            const struct ptx_instruction *in = &flow->f->code[i];
            if (in->operand_count == 0) {
                continue;
            }
            if (is_named(in, "st") && is_inside(in)) {
                const bool stored = !flow->through && uses(in, flow->marks, 0);
                flow->through = flow->through || stored;
                news = news || stored;
            } else if ((computes(in) && uses(in, flow->marks, 1)) ||
                       (is_load(in) && is_inside(in) && flow->through)) {
                news = ptx_mark(&in->operands[0], flow->marks) || news;
            }
        }
    }
}

/* Marks all that the marked registers are computed from. */
static void flow_back(struct flow *flow) {
    for (bool news = true; news;) {
        news = false;
        ptx_trace(flow->f, flow->marks, computes);
        for (uint32_t i = 0; i < flow->f->code_count; i++) {
            const struct ptx_instruction *in = &flow->f->code[i];
            if (is_load(in) && is_inside(in) && ptx_writes(in, flow->marks)) {
                flow->through = true;
            }
        }
        for (uint32_t i = 0; flow->through && i < flow->f->code_count; i++) {
            const struct ptx_instruction *in = &flow->f->code[i];
            for (uint32_t o = 0; is_named(in, "st") && is_inside(in) && o < in->operand_count;
                 o++) {
                news = ptx_mark(&in->operands[o], flow->marks) || news;
            }
        }
    }
}

static void clear(struct flow *flow) {
    memset(flow->marks, 0, flow->f->register_count * sizeof *flow->marks);
    flow->through = false;
}

/* From strong reads to the plain stores they decide; true: there are any. */
static bool mark_taking(struct flow *flow, struct kernel *kernel) {
    bool any = false;
    clear(flow);
    for (uint32_t i = 0; i < flow->f->code_count; i++) {
        const struct ptx_instruction *in = &flow->f->code[i];
        if (is_wide(in) && has_result(in)) {
            ptx_mark(&in->operands[0], flow->marks);
        }
    }
    flow_on(flow);
    for (uint32_t i = 0; i < flow->f->code_count; i++) {
        const struct ptx_instruction *in = &flow->f->code[i];
        if (is_named(in, "st") && is_plain(in) && uses(in, flow->marks, 0)) {
            kernel->code[i].flags |= OP_TAKES;
            any = true;
        }
    }
    for (uint32_t i = 0; any && i < flow->f->code_count; i++) {
        const struct ptx_instruction *in = &flow->f->code[i];
        if (is_wide(in) && has_result(in)) {
            kernel->code[i].flags |= OP_TAKES;
        }
    }
    return any;
}

/* From plain loads to the strong writes that publish what is computed from them, and back. */
static void mark_giving(struct flow *flow, struct kernel *kernel) {
    clear(flow);
    for (uint32_t i = 0; i < flow->f->code_count; i++) {
        const struct ptx_instruction *in = &flow->f->code[i];
        if (is_load(in) && is_plain(in)) {
            ptx_mark(&in->operands[0], flow->marks);
        }
    }
    flow_on(flow);
    for (uint32_t i = 0; i < flow->f->code_count; i++) {
        const struct ptx_instruction *in = &flow->f->code[i];
        if (is_wide(in) && !is_load(in) && uses(in, flow->marks, first_value(in))) {
            kernel->code[i].flags |= OP_GIVES;
        }
    }
    clear(flow);
    for (uint32_t i = 0; i < flow->f->code_count; i++) {
        const struct ptx_instruction *in = &flow->f->code[i];
        for (uint32_t o = first_value(in);
             (kernel->code[i].flags & OP_GIVES) != 0 && o < in->operand_count; o++) {
            ptx_mark(&in->operands[o], flow->marks);
        }
    }
    flow_back(flow);
    for (uint32_t i = 0; i < flow->f->code_count; i++) {
        const struct ptx_instruction *in = &flow->f->code[i];
        if (is_plain(in) && (is_named(in, "st") || (is_load(in) && ptx_writes(in, flow->marks)))) {
            kernel->code[i].flags |= OP_GIVES;
        }
    }
}

bool mark_dependences(struct kernel *kernel) {
    struct flow flow = {.f = kernel->function};
    bool reads = false, writes = false;
    for (uint32_t i = 0; i < flow.f->code_count; i++) {
        const struct ptx_instruction *in = &flow.f->code[i];
        const bool wide = is_wide(in);
        reads = reads || (wide && has_result(in));
        writes = writes || (wide && !is_load(in));
    }
    if (!reads || !writes) {
        return true;
    }
    flow.marks = malloc((flow.f->register_count + 1) * sizeof *flow.marks);
    if (flow.marks == NULL) {
        return false;
    }
    if (mark_taking(&flow, kernel)) {
        mark_giving(&flow, kernel);
    }
    free(flow.marks);
    return true;
}
