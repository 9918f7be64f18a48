/* SPDX-License-Identifier: Apache-2.0
 *
 * forms.h - a table of instruction forms: what they look like and which function executes them.
 *
 *     {"mul", "wide", T(U32), "wtt", mul_wide_u32}
 *
 * Modifiers are a set: the instruction must have each of them, in any order, and no other; `rn?`
 * may be missing. One type modifier is the type t of the form (forms without a type list their
 * type-like names as modifiers). Operands, the result first, go to op->d, a, b, c, e, f:
 *
 *     t  a value of the type      w  one of twice its width     i  one of 32 bits
 *     l  one of 64 bits           h  one of 16 bits             p  a predicate
 *
 * Invariant: a form that matches no row of the table is refused.
 */
#ifndef VGPU_OPS_FORMS_H
#define VGPU_OPS_FORMS_H

#include "ops/decode.h"

struct form {
    const char *opcode, *modifiers;
    uint32_t types; /* a bit for each type */
    const char *operands;
    op_function *run;
    int64_t imm;
    uint32_t flags;
};

#define T(name) (1U << PTX_##name)
#define T_INT16 (T(U16) | T(S16))
#define T_INT32 (T(U32) | T(S32))
#define T_INT64 (T(U64) | T(S64))

/* FORM_COUNT(forms) rows; FORM_NONE: no row is like the instruction, the op is as before. */
enum form_match { FORM_NONE, FORM_FAILED, FORM_DECODED };
#define FORM_COUNT(forms) (sizeof(forms) / sizeof(forms)[0])

enum form_match form_decode(struct decoder *decoder, const struct ptx_instruction *in,
                            struct op *op, const struct form *forms, size_t count);

/* Whether the modifiers that are no types are `wanted` (blanks between them, `?` after those that
 * may be missing), and there are `type_count` types. */
bool form_modifiers(const struct ptx_instruction *in, const char *wanted, uint32_t type_count);

/* The operands as the letters say, into the op. */
bool form_operands(struct decoder *decoder, const struct ptx_instruction *in, struct op *op,
                   const char *letters, enum ptx_type type);

/* The index of a predicate that is written; a literal or a negated one fails. */
uint32_t form_predicate(struct decoder *decoder, const struct ptx_operand *operand);

/* "unknown form" and false. */
bool form_unknown(struct decoder *decoder, const struct ptx_instruction *in);

/* special.c, for decode_float. */
extern const struct form special_forms[];
extern const size_t special_form_count;

/* What decode_move passes on. */
decode_function decode_compare, decode_cvt;
/* bits.c, for decode_int. */
enum form_match decode_bits(struct decoder *decoder, const struct ptx_instruction *in,
                            struct op *op);

#endif /* VGPU_OPS_FORMS_H */
