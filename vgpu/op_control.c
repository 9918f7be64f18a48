/* SPDX-License-Identifier: Apache-2.0
 *
 * op_control.c - branches, ends, fences and what else steers a warp. Calls are in op_call.c,
 * barriers in op_barrier.c.
 *
 * Invariant: a form that is decoded as doing nothing has no effect that a program could see here:
 * memory is sequentially consistent in any case, and what orders accesses for the race checks is
 * told to them.
 */
#include "exec.h"

#include <string.h>

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
        report(warp, op, FINDING_UNINITIALISED_BRANCH, poison, NULL,
               "the target of brx.idx depends on memory that nobody wrote");
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

static void run_proxy_fence(struct warp *warp, const struct op *op, uint32_t mask) {
    (void)op, (void)mask;
    clock_proxy_fence(warp);
}

static bool decode_fence(struct decoder *decoder, const struct ptx_instruction *in, struct op *op) {
    static const char PLAIN[] = "sc acq_rel acquire release cta cluster gpu sys gl";
    static const char ASYNC[] = "proxy async global shared::cta shared::cluster";
    static const char TENSORMAP[] = "proxy tensormap::generic acquire release cta cluster gpu sys";
    if (only_modifiers(in, PLAIN) && in->modifier_count > 0 && in->operand_count == 0) {
        op->run = run_nothing; /* the strong accesses around it order what the race checks see */
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
        op->run = run_nothing;
    } else {
        return decode_fail(decoder, "this form of %s is not known", in->opcode);
    }
    op->flags = OP_OWN_POISON;
    return true;
}

/* ---- setmaxnreg ---- */

enum { MIN_REGISTERS = 24, MAX_REGISTERS = 256, ALL_REGISTERS = 64 << 10 };

/* imm: registers of a thread from now on. Of warps that have not said, nothing is known: ptxas
 * decides how many registers a kernel starts with. */
static void run_setmaxnreg(struct warp *warp, const struct op *op, uint32_t mask) {
    struct cta *cta = warp->cta;
    uint64_t registers = 0;
    warp->registers = (uint32_t)op->imm;
    for (uint32_t i = 0; i < cta->warp_count; i++) {
        registers += (uint64_t)cta->warps[i].registers * LANES;
    }
    if (registers > ALL_REGISTERS) {
        report(warp, op, FINDING_SETMAXNREG, mask, NULL,
               "the warps of the CTA ask for %llu registers together, an SM has %u",
               (unsigned long long)registers, ALL_REGISTERS);
    }
    if (cta->warp_count % 4 != 0) {
        report(warp, op, FINDING_SETMAXNREG, mask, NULL,
               "a CTA of %u warps, expected whole warpgroups of 4", cta->warp_count);
    }
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
    op->run = run_setmaxnreg;
    op->flags = OP_CONVERGED | OP_OWN_POISON;
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
    if (!only_modifiers(in,
                        strcmp(in->opcode, "pmevent") == 0 ? "mask" : "launch_dependents wait")) {
        return decode_fail(decoder, "this form of %s is not known", in->opcode);
    }
    op->run = run_nothing;
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
