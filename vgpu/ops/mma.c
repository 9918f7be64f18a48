/* SPDX-License-Identifier: Apache-2.0
 *
 * mma.c - mma.sync: which forms exist, and their fragments.
 *
 *     mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32  d, a, b, c;
 *
 * f16, bf16, tf32, e4m3/e5m2 with f32 (f16) accumulators; s8/u8 and s4/u4 with s32; f64. Refused:
 * sparse (.sp), single-bit, block-scaled forms, and m8n8k4 of f16, whose four quad-pair products
 * only Volta has in hardware.
 *
 * Invariant: a form that is accepted is one of the table, with fragments of exactly its size.
 */
#include "ops/matrix.h"

#include <string.h>

struct mma_shape {
    enum matrix_type a_type; /* one of its family */
    uint32_t m, n, k;
    uint32_t target; /* the least sm_ */
};

static const struct mma_shape shapes[] = {
    {MATRIX_F16, 16, 8, 8, 75},   {MATRIX_F16, 16, 8, 16, 80},  {MATRIX_BF16, 16, 8, 8, 80},
    {MATRIX_BF16, 16, 8, 16, 80}, {MATRIX_TF32, 16, 8, 4, 80},  {MATRIX_TF32, 16, 8, 8, 80},
    {MATRIX_E4M3, 16, 8, 16, 89}, {MATRIX_E4M3, 16, 8, 32, 89}, {MATRIX_S8, 8, 8, 16, 75},
    {MATRIX_S8, 16, 8, 16, 80},   {MATRIX_S8, 16, 8, 32, 80},   {MATRIX_S4, 8, 8, 32, 75},
    {MATRIX_S4, 16, 8, 32, 80},   {MATRIX_S4, 16, 8, 64, 80},   {MATRIX_F64, 8, 8, 4, 80},
    {MATRIX_F64, 16, 8, 4, 90},   {MATRIX_F64, 16, 8, 8, 90},   {MATRIX_F64, 16, 8, 16, 90},
};

/* Types that may be mixed in A and B are of one family. */
static enum matrix_type family_of(enum matrix_type type) {
    switch (type) {
    case MATRIX_E5M2: return MATRIX_E4M3;
    case MATRIX_U8: return MATRIX_S8;
    case MATRIX_U4: return MATRIX_S4;
    default: return type;
    }
}

static bool accumulates_in(enum matrix_type a_type, enum matrix_type type) {
    switch (family_of(a_type)) {
    case MATRIX_F16:
    case MATRIX_E4M3: return type == MATRIX_F32 || type == MATRIX_F16;
    case MATRIX_BF16:
    case MATRIX_TF32: return type == MATRIX_F32;
    case MATRIX_S8:
    case MATRIX_S4: return type == MATRIX_S32;
    default: return type == MATRIX_F64;
    }
}

static bool known_shape(struct decoder *decoder, const struct matrix_form *form) {
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const struct mma_shape *shape = &shapes[i];
        if (shape->a_type == family_of(form->a_type) && shape->m == form->m &&
            shape->n == form->n && shape->k == form->k) {
            return decode_module(decoder)->target >= shape->target ||
                   decode_fail(decoder, "mma.m%un%uk%u of this type needs sm_%u", form->m, form->n,
                               form->k, shape->target);
        }
    }
    return decode_fail(decoder, "mma.m%un%uk%u does not exist for this type of A", form->m, form->n,
                       form->k);
}

bool decode_mma(struct decoder *decoder, const struct ptx_instruction *in, struct op *op) {
    static const char known[] = "sync aligned row col satfinite rn";
    enum matrix_type types[4];
    struct matrix_form *form = decode_alloc(decoder, sizeof *form);
    if (form == NULL) {
        return false;
    }
    if (ptx_has(in, "sp") || ptx_has(in, "sp::ordered_metadata")) {
        return decode_fail(decoder, "sparse mma is not supported");
    }
    if (!matrix_modifiers(in, known) || !ptx_has(in, "sync") || !ptx_has(in, "aligned") ||
        !matrix_shape(in, &form->m, &form->n, &form->k) || matrix_types(in, types, 4) != 4 ||
        in->operand_count != 4) {
        return decode_fail(decoder, "unknown form of mma");
    }
    if (!ptx_has(in, "row") || !ptx_has(in, "col")) {
        return decode_fail(decoder, "mma takes A .row and B .col");
    }
    form->d_type = types[0];
    form->a_type = types[1];
    form->b_type = types[2];
    form->c_type = types[3];
    form->saturate = ptx_has(in, "satfinite");
    if (!known_shape(decoder, form)) {
        return false;
    }
    if (family_of(form->a_type) != family_of(form->b_type) || form->c_type != form->d_type ||
        !accumulates_in(form->a_type, form->d_type) ||
        (form->saturate && form->d_type != MATRIX_S32) ||
        (ptx_has(in, "rn") && form->d_type != MATRIX_F64)) {
        return decode_fail(decoder, "mma does not exist with these types");
    }
    const uint32_t d_count = matrix_registers(form->d_type, form->m * form->n);
    form->d = matrix_rows(decoder, &in->operands[0], form->d_type, d_count, true);
    form->a = matrix_rows(decoder, &in->operands[1], form->a_type,
                          matrix_registers(form->a_type, form->m * form->k), false);
    form->b = matrix_rows(decoder, &in->operands[2], form->b_type,
                          matrix_registers(form->b_type, form->k * form->n), false);
    form->c = matrix_rows(decoder, &in->operands[3], form->c_type, d_count, false);
    op->run = matrix_run;
    op->extra = form;
    op->flags |= OP_OWN_POISON | OP_CONVERGED | OP_TENSOR;
    return form->d != NULL && form->a != NULL && form->b != NULL && form->c != NULL;
}
