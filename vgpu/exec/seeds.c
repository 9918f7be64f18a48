/* SPDX-License-Identifier: Apache-2.0
 *
 * seeds.c - plain loads that seed a compare-and-swap loop: `old = *p; do { seen = old; old =
 * atomicCAS(p, seen, f(seen)); } while (old != seen);`. A stale value only costs another iteration,
 * so such a load counts as relaxed. The toolkit's own atomicAdd of two bf16 is written this way.
 *
 * Invariant: a load is marked only if its value reaches the comparison of a CAS at its own address
 * through moves alone, and the result of that CAS decides: it becomes what the next one compares,
 * or is compared with the value.
 */
#include <stdlib.h>
#include <string.h>

#include "exec/exec.h"

enum { DEPTH = 6 };

static bool moves(const struct ptx_instruction *in) {
    return strcmp(in->opcode, "mov") == 0 || strcmp(in->opcode, "cvt") == 0;
}

/* The only instruction that sets the register; NULL: there is none, or there are several. */
static const struct ptx_instruction *only_definition(const struct ptx_function *f, uint32_t reg) {
    const struct ptx_instruction *only = NULL;
    for (uint32_t i = 0; i < f->code_count; i++) {
        const struct ptx_instruction *in = &f->code[i];
        if (in->operand_count > 0 && in->operands[0].kind == PTX_OPERAND_REGISTER &&
            in->operands[0].reg == reg) {
            if (only != NULL) {
                return NULL;
            }
            only = in;
        }
    }
    return only;
}

/* The register that this one is another name of; what was added to it, to *offset. */
static uint32_t origin_of(const struct ptx_function *f, uint32_t reg, int64_t *offset) {
    for (int turns = 0; turns < DEPTH; turns++) {
        const struct ptx_instruction *in = only_definition(f, reg);
        const struct ptx_operand *by = in != NULL ? &in->operands[in->operand_count - 1] : NULL;
        if (in == NULL || in->operand_count < 2 || in->operands[1].kind != PTX_OPERAND_REGISTER) {
            break;
        }
        if (strcmp(in->opcode, "add") == 0 && by->kind == PTX_OPERAND_INTEGER) {
            *offset += by->value;
        } else if (strcmp(in->opcode, "mov") != 0 && strcmp(in->opcode, "cvta") != 0) {
            break;
        }
        reg = in->operands[1].reg;
    }
    return reg;
}

static bool computes(const struct ptx_instruction *in) {
    static const char *const NAMES[] = {"add", "sub", "mul", "mad", "shl", "and", "or", "cvt"};
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        if (strcmp(in->opcode, NAMES[i]) == 0) {
            return in->guard < 0;
        }
    }
    return false;
}

/* a + apart and b, computed alike: nvcc adds the same index to a pointer and to what cvta makes of
 * it. */
static bool same_value(const struct ptx_function *f, const struct ptx_operand *a,
                       const struct ptx_operand *b, int64_t apart, int depth) {
    if (a->kind != b->kind || a->kind != PTX_OPERAND_REGISTER) {
        return a->kind == b->kind && a->kind == PTX_OPERAND_INTEGER && a->value == b->value;
    }
    int64_t less = 0;
    const uint32_t x = origin_of(f, a->reg, &apart), y = origin_of(f, b->reg, &less);
    const struct ptx_instruction *in = only_definition(f, x), *other = only_definition(f, y);
    if (x == y || apart != less) {
        return apart == less;
    }
    bool same = depth < DEPTH && in != NULL && other != NULL && computes(in) &&
                strcmp(in->opcode, other->opcode) == 0 && computes(other) &&
                in->operand_count == other->operand_count;
    for (uint32_t i = 1; same && i < in->operand_count; i++) {
        same = same_value(f, &in->operands[i], &other->operands[i], 0, depth + 1);
    }
    return same;
}

static bool same_address(const struct ptx_function *f, const struct ptx_operand *a,
                         const struct ptx_operand *b) {
    if (a->kind != PTX_OPERAND_ADDRESS || b->kind != PTX_OPERAND_ADDRESS) {
        return false;
    }
    const struct ptx_operand *x = &a->parts[0], *y = &b->parts[0];
    if (x->kind == PTX_OPERAND_VARIABLE && y->kind == PTX_OPERAND_VARIABLE) {
        return x->variable == y->variable && x->value + a->value == y->value + b->value;
    }
    return same_value(f, x, y, a->value - b->value, 0);
}

static bool is_cas(const struct ptx_instruction *in) {
    return strcmp(in->opcode, "atom") == 0 && ptx_has(in, "cas") && in->operand_count >= 4;
}

/* Whether the result of the CAS becomes its next comparison, or is compared with one; `marks`: the
 * registers that do. */
static bool decides(const struct ptx_function *f, const struct ptx_instruction *cas,
                    const bool *marks) {
    bool found = ptx_writes(cas, marks);
    for (uint32_t i = 0; i < f->code_count && !found; i++) {
        const struct ptx_instruction *in = &f->code[i];
        bool value = false, result = false;
        for (uint32_t o = 1; strcmp(in->opcode, "setp") == 0 && o < in->operand_count; o++) {
            int64_t offset = 0;
            if (in->operands[o].kind == PTX_OPERAND_REGISTER) {
                const uint32_t reg = in->operands[o].reg;
                value = value || marks[reg];
                result = result || origin_of(f, reg, &offset) == cas->operands[0].reg;
            }
        }
        found = value && result;
    }
    return found;
}

bool mark_cas_seeds(struct kernel *kernel) {
    const struct ptx_function *f = kernel->function;
    bool *marks = NULL;
    for (uint32_t i = 0; i < f->code_count; i++) {
        const struct ptx_instruction *cas = &f->code[i];
        if (!is_cas(cas)) {
            continue;
        }
        marks = marks != NULL ? marks : malloc(f->register_count * sizeof *marks);
        if (marks == NULL) {
            return false;
        }
        memset(marks, 0, f->register_count * sizeof *marks);
        ptx_mark(&cas->operands[2], marks);
        ptx_trace(f, marks, moves);
        if (!decides(f, cas, marks)) {
            continue;
        }
        for (uint32_t l = 0; l < f->code_count; l++) {
            const struct ptx_instruction *load = &f->code[l];
            if (strcmp(load->opcode, "ld") == 0 && ptx_writes(load, marks) &&
                same_address(f, &load->operands[1], &cas->operands[1])) {
                kernel->code[l].flags |= OP_SEEDS_CAS;
            }
        }
    }
    free(marks);
    return true;
}
