/* SPDX-License-Identifier: Apache-2.0
 *
 * wgmma_ops.c - wgmma: which forms exist. What they do is in wgmma.c.
 *
 *     wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16  {d...}, a, b, p, 1, 1, 0, 1;
 *     wgmma.fence, wgmma.commit_group, wgmma.wait_group .sync.aligned
 *
 * f16, bf16, tf32, e4m3/e5m2 and s8/u8; A from registers or from shared memory. Refused: sparse
 * forms, and wgmma in functions that are called (ptxas serialises those).
 *
 * wgmma.fence is checked here: going back from a wgmma over the instructions that fall through to
 * it, a write of one of its registers must not come before a fence; one of a constant may, if there
 * is a fence at all.
 *
 * Invariant: a missing fence is only claimed for a path that exists.
 */
#include "async/wgmma.h"

#include <stdlib.h>
#include <string.h>

#include "async/async.h"

/* Whether the first operand is what the instruction writes, where it is a register at all. */
bool wgmma_has_result(const struct ptx_instruction *in) {
    return strcmp(in->opcode, "bar") != 0 && strcmp(in->opcode, "barrier") != 0 &&
           strcmp(in->opcode, "nanosleep") != 0;
}

static bool writes_one_of(const struct ptx_instruction *in, const bool *registers) {
    if (in->operand_count == 0 || !wgmma_has_result(in)) {
        return false;
    }
    const struct ptx_operand *result = &in->operands[0];
    if (result->kind == PTX_OPERAND_REGISTER) {
        return registers[result->reg];
    }
    const bool several = result->kind == PTX_OPERAND_VECTOR || result->kind == PTX_OPERAND_PAIR;
    for (uint32_t i = 0; several && i < result->part_count; i++) {
        if (result->parts[i].kind == PTX_OPERAND_REGISTER && registers[result->parts[i].reg]) {
            return true;
        }
    }
    return false;
}

static bool leaves_for_good(const struct ptx_instruction *in) {
    return in->guard < 0 && (strcmp(in->opcode, "bra") == 0 || strcmp(in->opcode, "brx") == 0 ||
                             strcmp(in->opcode, "ret") == 0 || strcmp(in->opcode, "exit") == 0);
}

static void set_registers(const struct ptx_operand *operand, bool *registers, bool value) {
    for (uint32_t i = 0; i < operand->part_count; i++) {
        if (operand->parts[i].kind == PTX_OPERAND_REGISTER) {
            registers[operand->parts[i].reg] = value;
        }
    }
}

/* Whether a mov gives its register a constant. nvcc puts those of an accumulator that the source
 * sets before a fence right before the wgmma; ptxas then adds a fence. */
static bool is_constant(const struct ptx_function *function, const struct ptx_instruction *mov) {
    while (strcmp(mov->opcode, "mov") == 0 && mov->guard < 0 && mov->operand_count == 2) {
        const struct ptx_operand *from = &mov->operands[1];
        if (from->kind != PTX_OPERAND_REGISTER) {
            return from->kind == PTX_OPERAND_INTEGER || from->kind == PTX_OPERAND_F32 ||
                   from->kind == PTX_OPERAND_F64;
        }
        do {
            if (mov-- == function->code || leaves_for_good(mov)) {
                return false;
            }
        } while (mov->operand_count == 0 || !wgmma_has_result(mov) ||
                 mov->operands[0].kind != PTX_OPERAND_REGISTER ||
                 mov->operands[0].reg != from->reg);
    }
    return false;
}

/* Whether a fence comes before this wgmma and after the last write of its registers, on the path
 * that falls through to it; true as well where that path begins at a jump. */
static bool find_fence(struct decoder *decoder, const struct ptx_instruction *in,
                       struct wgmma_form *form) {
    const struct ptx_function *function = decode_current(decoder);
    bool *registers = calloc(function->register_count, sizeof *registers);
    if (registers == NULL) {
        return decode_fail(decoder, "no memory to decode this");
    }
    set_registers(&in->operands[0], registers, true);
    if (in->operands[1].kind == PTX_OPERAND_VECTOR) {
        set_registers(&in->operands[1], registers, true);
    }
    uint32_t constant = 0;
    for (const struct ptx_instruction *at = in; at-- > function->code && !form->has_fence;) {
        if (leaves_for_good(at)) {
            form->has_fence = constant == 0;
            form->writer = constant;
            break;
        }
        if (strcmp(at->opcode, "wgmma") == 0) {
            form->has_fence = ptx_has(at, "fence");
        } else if (writes_one_of(at, registers)) {
            const uint32_t index = (uint32_t)(at - function->code);
            if (!is_constant(function, at)) {
                form->writer = index;
                break;
            }
            constant = index;
        }
    }
    free(registers);
    return true;
}

static bool decode_number(struct decoder *decoder, const struct ptx_operand *operand, int64_t low,
                          int64_t high, int64_t *value) {
    *value = operand->value;
    return (operand->kind == PTX_OPERAND_INTEGER && *value >= low && *value <= high) ||
           decode_fail(decoder, "wgmma takes a constant from %lld to %lld here", (long long)low,
                       (long long)high);
}

/* scale-a, scale-b and, for 16-bit types, the transpositions. */
static bool decode_tail(struct decoder *decoder, const struct ptx_instruction *in,
                        struct wgmma_form *form) {
    const bool integer = matrix_is_wide(form->mma.a_type);
    const bool turns = matrix_bits(form->mma.a_type) == 16;
    const uint32_t expected = 4 + (integer ? 0U : 2U) + (turns ? (form->a_shared ? 2U : 1U) : 0U);
    int64_t scale_a = 1, scale_b = 1, a = 0, b = 0;
    if (in->operand_count != expected) {
        return decode_fail(decoder, "wgmma of this type takes %u operands", expected);
    }
    if (!integer && (!decode_number(decoder, &in->operands[4], -1, 1, &scale_a) ||
                     !decode_number(decoder, &in->operands[5], -1, 1, &scale_b))) {
        return false;
    }
    if (scale_a == 0 || scale_b == 0) {
        return decode_fail(decoder, "wgmma's scales of A and B are 1 or -1");
    }
    if (turns && form->a_shared && !decode_number(decoder, &in->operands[6], 0, 1, &a)) {
        return false;
    }
    if (turns && !decode_number(decoder, &in->operands[expected - 1], 0, 1, &b)) {
        return false;
    }
    form->negative = scale_a * scale_b < 0;
    form->a_transposed = a != 0;
    form->b_transposed = b != 0;
    return true;
}

static bool form_exists(const struct matrix_form *form, uint32_t m) {
    const bool integer = matrix_is_wide(form->a_type);
    const bool half_sum = form->a_type != MATRIX_BF16 && form->a_type != MATRIX_TF32;
    const bool bytes = matrix_bits(form->a_type) == 8;
    if (m != 64 || form->n < 8 || form->n > 256 || form->n % 8 != 0 ||
        form->k * matrix_bits(form->a_type) != 256 || matrix_bits(form->b_type) * form->k != 256) {
        return false;
    }
    if (integer) {
        return bytes && matrix_is_wide(form->b_type) && form->d_type == MATRIX_S32 &&
               (form->n <= 24 || form->n % 16 == 0);
    }
    return form->a_type != MATRIX_F32 && (form->a_type == form->b_type || bytes) &&
           !matrix_is_wide(form->b_type) && !form->saturate &&
           (form->d_type == MATRIX_F32 || (form->d_type == MATRIX_F16 && half_sum));
}

static bool decode_product(struct decoder *decoder, const struct ptx_instruction *in,
                           struct op *op) {
    static const char known[] = "mma_async sync aligned satfinite";
    enum matrix_type types[3] = {MATRIX_NONE};
    uint32_t m = 0;
    struct wgmma_form *form = decode_alloc(decoder, sizeof *form);
    if (form == NULL) {
        return false;
    }
    struct matrix_form *mma = &form->mma;
    if (ptx_has(in, "sp")) {
        return decode_fail(decoder, "sparse wgmma is not supported");
    }
    if (!matrix_modifiers(in, known) || !ptx_has(in, "sync") || !ptx_has(in, "aligned") ||
        !matrix_shape(in, &m, &mma->n, &mma->k) || matrix_types(in, types, 3) != 3 ||
        in->operand_count < 4) {
        return decode_fail(decoder, "unknown form of wgmma");
    }
    mma->m = 16;
    mma->d_type = mma->c_type = types[0];
    mma->a_type = types[1];
    mma->b_type = types[2];
    mma->saturate = ptx_has(in, "satfinite");
    if (!form_exists(mma, m)) {
        return decode_fail(decoder, "wgmma does not exist with this shape and these types");
    }
    form->a_shared = in->operands[1].kind != PTX_OPERAND_VECTOR;
    mma->d = mma->c = matrix_rows(decoder, &in->operands[0], mma->d_type,
                                  matrix_registers(mma->d_type, 16 * mma->n), true);
    if (form->a_shared) {
        form->a = decode_source(decoder, &in->operands[1], PTX_B64);
    } else {
        mma->a = matrix_rows(decoder, &in->operands[1], mma->a_type, 4, false);
    }
    form->b = decode_source(decoder, &in->operands[2], PTX_B64);
    form->accumulate = decode_predicate(decoder, &in->operands[3]);
    op->extra = form;
    op->run = wgmma_run_issue;
    op->flags |= OP_TENSOR;
    for (uint32_t i = 0; mma->d != NULL && i < in->operands[0].part_count; i++) {
        if (in->operands[0].parts[i].kind != PTX_OPERAND_REGISTER) {
            return decode_fail(decoder, "wgmma's accumulators must be registers");
        }
    }
    return mma->d != NULL && (form->a_shared ? form->a != 0 : mma->a != NULL) && form->b != 0 &&
           decode_tail(decoder, in, form) && find_fence(decoder, in, form);
}

bool decode_wgmma(struct decoder *decoder, const struct ptx_instruction *in, struct op *op) {
    static const char waits[] = "fence commit_group wait_group sync aligned";
    const struct ptx_module *module = decode_module(decoder);
    op->flags |= OP_OWN_POISON | OP_CONVERGED;
    if (module->target != 90 || module->target_suffix != 'a') {
        return decode_fail(decoder, "wgmma needs sm_90a");
    }
    if (!decode_current(decoder)->entry) {
        return decode_fail(decoder, "wgmma in a function that is called is not supported");
    }
    if (ptx_has(in, "mma_async")) {
        return decode_product(decoder, in, op);
    }
    const uint32_t operands = ptx_has(in, "wait_group") ? 1 : 0;
    if (!matrix_modifiers(in, waits) || in->modifier_count != 3 || !ptx_has(in, "sync") ||
        !ptx_has(in, "aligned") || in->operand_count != operands) {
        return decode_fail(decoder, "unknown form of wgmma");
    }
    op->flags |= operands == 1 ? OP_CONTROL : 0U; /* a wait may block */
    op->run = operands == 1          ? wgmma_run_wait
              : ptx_has(in, "fence") ? wgmma_run_fence
                                     : wgmma_run_commit;
    return operands == 0 || decode_number(decoder, &in->operands[0], 0, 7, &op->imm);
}
