/* SPDX-License-Identifier: Apache-2.0
 *
 * control.c - branches, exits, fences and other control of a warp. Calls are in call.c, barriers in
 * barrier.c.
 *
 * Invariant: a form decoded as a no-op has no visible effect here: memory is sequentially
 * consistent, and everything that orders accesses is passed to the race detector.
 */
#include "ops/ops.h"

#include <string.h>

#include "memory/memory.h"
#include "race/clock.h"
#include "report/finding.h"

/* ---- branches ---- */

static void run_bra(struct warp *warp, const struct op *op, uint32_t mask) {
    warp_branch(warp, mask, op->target);
}

struct branch_table {
    uint32_t count;
    uint32_t targets[];
};

/* Lanes with the same target go there together. */
static void run_brx(struct warp *warp, const struct op *op, uint32_t mask) {
    const struct branch_table *table = op->extra;
    uint32_t indices[LANES];
    memcpy(indices, row32(warp, op->a), sizeof indices);
    const uint32_t poison = poison_of(warp, op->a) & mask;
    if (poison != 0) {
        report_uninitialised(warp, op, FINDING_UNINITIALISED_BRANCH, poison, NULL,
                             "the target of brx.idx depends on uninitialised memory");
    }
    while (mask != 0) {
        const uint32_t index = indices[__builtin_ctz(mask)];
        uint32_t lanes = 0;
        for (uint32_t lane = 0; lane < LANES; lane++) {
            lanes |= (uint32_t)(indices[lane] == index) << lane;
        }
        lanes &= mask;
        mask &= ~lanes;
        if (index >= table->count) {
            report(warp, op, FINDING_ILLEGAL_OPERAND, lanes, NULL,
                   "brx.idx with the index %u into a table of %u", index, table->count);
        }
        warp_branch(warp, lanes, table->targets[index < table->count ? index : table->count - 1]);
    }
}

static bool decode_bra(struct decoder *decoder, const struct ptx_instruction *in, struct op *op) {
    if (in->operand_count != 1 || in->operands[0].kind != PTX_OPERAND_LABEL ||
        !only_modifiers(in, "uni")) {
        return decode_fail(decoder, "this form of bra is not known");
    }
    op->target = (uint32_t)in->operands[0].value;
    op->run = run_bra;
    return true;
}

static bool decode_brx(struct decoder *decoder, const struct ptx_instruction *in, struct op *op) {
    if (in->operand_count != 2 || in->operands[1].kind != PTX_OPERAND_LIST ||
        in->operands[1].part_count == 0 || !ptx_has(in, "idx") || !only_modifiers(in, "idx uni")) {
        return decode_fail(decoder, "this form of brx is not known");
    }
    const uint32_t count = in->operands[1].part_count;
    struct branch_table *table =
        decode_alloc(decoder, sizeof *table + count * sizeof table->targets[0]);
    if (table == NULL) {
        return false;
    }
    table->count = count;
    for (uint32_t i = 0; i < count; i++) {
        if (in->operands[1].parts[i].kind != PTX_OPERAND_LABEL) {
            return decode_fail(decoder, "a target of brx.idx that is no label");
        }
        table->targets[i] = (uint32_t)in->operands[1].parts[i].value;
    }
    op->a = decode_source(decoder, &in->operands[0], PTX_U32);
    op->extra = table;
    op->run = run_brx;
    return true;
}

/* ---- ends ---- */

static void run_exit(struct warp *warp, const struct op *op, uint32_t mask) {
    (void)op;
    warp_exit(warp, mask);
}

static void run_trap(struct warp *warp, const struct op *op, uint32_t mask) {
    report(warp, op, FINDING_TRAP, mask, NULL, "%s ends the kernel", op->in->opcode);
    cluster_stop(warp->cta->cluster);
}

void run_unknown(struct warp *warp, const struct op *op, uint32_t mask) {
    report(warp, op, FINDING_UNKNOWN, mask, NULL, "line %u of the PTX: %s", op->in->line,
           (const char *)op->extra);
    cluster_stop(warp->cta->cluster);
}

/* ---- time ---- */

static void run_nanosleep(struct warp *warp, const struct op *op, uint32_t mask) {
    (void)op, (void)mask;
    warp_yield(warp);
}

static bool decode_nanosleep(struct decoder *decoder, const struct ptx_instruction *in,
                             struct op *op) {
    if (in->operand_count != 1 || !only_modifiers(in, "u32")) {
        return decode_fail(decoder, "this form of nanosleep is not known");
    }
    op->a = decode_source(decoder, &in->operands[0], PTX_U32);
    op->run = run_nanosleep;
    return true;
}

/* ---- fences ---- */

static void run_nothing(struct warp *warp, const struct op *op, uint32_t mask) {
    (void)warp, (void)op, (void)mask;
}

static void run_grid_wait(struct warp *warp, const struct op *op, uint32_t mask) {
    (void)op, (void)mask;
    clock_grid_wait(warp);
}

static void run_grid_signal(struct warp *warp, const struct op *op, uint32_t mask) {
    (void)op, (void)mask;
    clock_grid_signal(warp);
}

/* imm: whether it is for more than the cluster. */
static void run_fence(struct warp *warp, const struct op *op, uint32_t mask) {
    (void)mask;
    clock_fence(warp, op->imm != 0);
}

static void run_proxy_fence(struct warp *warp, const struct op *op, uint32_t mask) {
    (void)op, (void)mask;
    clock_proxy_fence(warp);
}

static bool decode_fence(struct decoder *decoder, const struct ptx_instruction *in, struct op *op) {
    static const char PLAIN[] = "sc acq_rel acquire release cta cluster gpu sys gl";
    static const char ASYNC[] = "proxy async global shared::cta shared::cluster";
    static const char TENSORMAP[] = "proxy tensormap::generic acquire release cta cluster gpu sys";
    if (only_modifiers(in, PLAIN) && in->modifier_count > 0 && in->operand_count == 0) {
        op->run = run_fence;
        op->imm = !ptx_has(in, "cta") && !ptx_has(in, "cluster");
    } else if (ptx_has(in, "async") && only_modifiers(in, ASYNC) && in->operand_count == 0) {
        op->run = run_proxy_fence;
    } else if (ptx_has(in, "alias") && only_modifiers(in, "proxy alias") &&
               in->operand_count == 0) {
        op->run = run_nothing;
    } else if (ptx_has(in, "tensormap::generic") && only_modifiers(in, TENSORMAP) &&
               in->operand_count <= 2) {
        op->run = run_nothing; /* tensor maps are read anew for each copy */
    } else if (ptx_has(in, "mbarrier_init") && in->operand_count == 0 &&
               only_modifiers(in, "mbarrier_init release cluster")) {
        op->run = run_fence; /* followed by barrier.cluster.arrive.relaxed */
    } else {
        return decode_fail(decoder, "this form of %s is not known", in->opcode);
    }
    op->flags = OP_OWN_POISON;
    return true;
}

/* ---- setmaxnreg ---- */

enum { MIN_REGISTERS = 24, MAX_REGISTERS = 256, ALL_REGISTERS = 64 << 10, WARPGROUP = 4 };

static op_function run_setmaxnreg;

/* Registers of a thread when the kernel starts, as ptxas has it: what .maxnreg says, or the share
 * of an SM that the declared size of blocks leaves, but no more than the largest setmaxnreg.inc
 * requires. 0: without these directives, where setmaxnreg has no effect. */
static uint32_t registers_at_start(const struct cta *cta) {
    const struct kernel *kernel = cta->launch->kernel;
    const struct ptx_function *function = kernel->function;
    const uint32_t *shape = function->reqntid[0] != 0 ? function->reqntid : function->maxntid;
    uint64_t threads = function->minnctapersm != 0 ? function->minnctapersm : 1;
    uint32_t largest = MIN_REGISTERS;
    for (int axis = 0; axis < 3; axis++) {
        threads *= shape[axis] != 0 ? shape[axis] : 1;
    }
    for (uint32_t i = 0; i < kernel->code_count; i++) {
        const struct op *op = &kernel->code[i];
        const bool more = op->run == run_setmaxnreg && op->e != 0 && op->imm > largest;
        largest = more ? (uint32_t)op->imm : largest;
    }
    const uint64_t share = shape[0] != 0 ? ALL_REGISTERS / threads / 8 * 8 : 0;
    return function->maxnreg != 0 ? (function->maxnreg + 7) / 8 * 8
           : share < largest      ? (uint32_t)share
                                  : largest;
}

static uint64_t registers_in_use(const struct cta *cta, uint32_t at_start) {
    uint64_t registers = 0;
    for (uint32_t i = 0; i < cta->warp_count; i++) {
        const uint32_t changed = cta->warps[i].registers;
        registers += (uint64_t)(changed != 0 ? changed : at_start) * LANES;
    }
    return registers;
}

/* The warps of a warpgroup execute the same setmaxnreg one after the other. */
static void count_change(struct warp *warp, const struct op *op, uint32_t mask) {
    const struct warp *group = &warp->cta->warps[warp->index / WARPGROUP * WARPGROUP];
    warp->register_change = op;
    warp->register_changes++;
    warp->cta->cluster->progress = true;
    for (uint32_t i = 0; i < WARPGROUP && warp->cta->warp_count % WARPGROUP == 0; i++) {
        if (group[i].register_changes == warp->register_changes && group[i].register_change != op) {
            report(warp, op, FINDING_SETMAXNREG, mask,
                   &(struct finding_detail){
                       .space = -1, .other = group[i].register_change, .other_warp = &group[i]},
                   "warp %u of the same warpgroup executed another setmaxnreg", group[i].index);
            return;
        }
    }
}

void registers_leave(const struct warp *warp) {
    struct cta *cta = warp->cta;
    if (cta->alive != 0 || cta->warp_count % WARPGROUP != 0) {
        return;
    }
    for (uint32_t i = 0; i < cta->warp_count; i++) {
        struct warp *more = &cta->warps[i];
        const struct warp *less = &cta->warps[i ^ 1], *other = &cta->warps[i ^ 2];
        less = other->register_changes < less->register_changes ? other : less;
        if (more->register_changes > less->register_changes) {
            report(more, more->register_change, FINDING_SETMAXNREG, ALL_LANES, NULL,
                   "warp %u of the same warpgroup has ended and did not execute it", less->index);
            return;
        }
    }
}

/* imm: registers of a thread from now on; e: .inc. Where it is not known how many a thread starts
 * with, warps that have not said count for nothing. */
static void run_setmaxnreg(struct warp *warp, const struct op *op, uint32_t mask) {
    struct cta *cta = warp->cta;
    const uint32_t at_start = registers_at_start(cta);
    const uint32_t current = warp->registers != 0 ? warp->registers : at_start;
    const uint64_t pool =
        at_start != 0 ? (uint64_t)at_start * cta->warp_count * LANES : (uint64_t)ALL_REGISTERS;
    const uint64_t wanted = registers_in_use(cta, at_start) + ((uint64_t)op->imm - current) * LANES;
    if (cta->warp_count % WARPGROUP != 0) {
        report(warp, op, FINDING_SETMAXNREG, mask, NULL,
               "a CTA of %u warps, expected whole warpgroups of 4", cta->warp_count);
    }
    const bool wrong = current != 0 && (op->e != 0 ? op->imm < current : op->imm > current);
    if (wrong) {
        report(warp, op, FINDING_SETMAXNREG, mask, NULL,
               "setmaxnreg.%s to %lld registers, but a thread has %u", op->e != 0 ? "inc" : "dec",
               (long long)op->imm, current);
    } else if (wanted > pool && at_start != 0 && op->imm > current) {
        warp->next = warp->pc;
        warp_block(warp, true, "registers that other warps of the CTA must give back");
        return;
    } else if (wanted > pool) {
        report(warp, op, FINDING_SETMAXNREG, mask, NULL,
               "the warps of the CTA ask for %llu registers together, an SM has %u",
               (unsigned long long)wanted, ALL_REGISTERS);
    }
    warp->registers = wrong && at_start != 0 ? current : (uint32_t)op->imm;
    count_change(warp, op, mask);
}

static bool decode_setmaxnreg(struct decoder *decoder, const struct ptx_instruction *in,
                              struct op *op) {
    if (in->operand_count != 1 || in->operands[0].kind != PTX_OPERAND_INTEGER ||
        ptx_has(in, "inc") == ptx_has(in, "dec") ||
        !only_modifiers(in, "inc dec sync aligned u32")) {
        return decode_fail(decoder, "this form of setmaxnreg is not known");
    }
    op->imm = in->operands[0].value;
    if (op->imm < MIN_REGISTERS || op->imm > MAX_REGISTERS || op->imm % 8 != 0) {
        return decode_fail(decoder, "setmaxnreg %lld, expected a multiple of 8 from %d to %d",
                           (long long)op->imm, MIN_REGISTERS, MAX_REGISTERS);
    }
    op->e = ptx_has(in, "inc");
    op->run = run_setmaxnreg;
    op->flags = OP_CONTROL | OP_CONVERGED | OP_OWN_POISON;
    return true;
}

/* ---- the rest ---- */

static bool decode_end(struct decoder *decoder, const struct ptx_instruction *in, struct op *op) {
    if (in->operand_count != 0 || in->modifier_count != 0) {
        return decode_fail(decoder, "this form of %s is not known", in->opcode);
    }
    op->run = strcmp(in->opcode, "exit") == 0 ? run_exit : run_trap;
    return true;
}

static bool decode_hint(struct decoder *decoder, const struct ptx_instruction *in, struct op *op) {
    const bool event = strcmp(in->opcode, "pmevent") == 0;
    if (!only_modifiers(in, event ? "mask" : "launch_dependents wait")) {
        return decode_fail(decoder, "this form of %s is not known", in->opcode);
    }
    op->run = event ? run_nothing : ptx_has(in, "wait") ? run_grid_wait : run_grid_signal;
    op->flags = OP_OWN_POISON;
    return true;
}

bool decode_control(struct decoder *decoder, const struct ptx_instruction *in, struct op *op) {
    static const struct {
        const char *opcode;
        decode_function *decode;
    } OPCODES[] = {{"bra", decode_bra},
                   {"brx", decode_brx},
                   {"call", decode_call},
                   {"ret", decode_return},
                   {"exit", decode_end},
                   {"trap", decode_end},
                   {"brkpt", decode_end},
                   {"nanosleep", decode_nanosleep},
                   {"bar", decode_barrier},
                   {"barrier", decode_barrier},
                   {"fence", decode_fence},
                   {"membar", decode_fence},
                   {"pmevent", decode_hint},
                   {"setmaxnreg", decode_setmaxnreg},
                   {"griddepcontrol", decode_hint}};
    op->flags = OP_CONTROL | OP_OWN_POISON;
    for (size_t i = 0; i < sizeof OPCODES / sizeof OPCODES[0]; i++) {
        if (strcmp(in->opcode, OPCODES[i].opcode) == 0) {
            return OPCODES[i].decode(decoder, in, op);
        }
    }
    return decode_fail(decoder, "this form of %s is not known", in->opcode);
}
