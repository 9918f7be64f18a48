/* SPDX-License-Identifier: Apache-2.0
 *
 * compare.c - setp and set: every comparison of every type, combined with a predicate or not.
 *
 * A comparison is a kernel that makes a mask of 32 lanes, and a flip. Kernels exist for equal,
 * less, less-or-equal, unequal-and-ordered, unordered; the others are these with operands swapped
 * or the result flipped: geu is "not less", gt is "less" with the operands swapped.
 *
 * Invariant: a predicate is poisoned where a value or predicate that it comes from is, and matters.
 */
#include <string.h>

#include "ops/formats.h"
#include "ops/forms.h"

/* The lanes for which it holds; of pairs: for half `part` of the lane. */
typedef uint32_t compare_function(struct warp *warp, const struct op *op, uint32_t part);

enum combination { COMBINE_NONE, COMBINE_AND, COMBINE_OR, COMBINE_XOR };

struct comparison {
    compare_function *kernel;
    uint32_t flip; /* ALL_LANES or 0 */
    enum combination combination;
    bool two;             /* pairs */
    enum ptx_type result; /* of set */
};

/* ---- kernels --------------------------------------------------------------------------------- */

static const uint32_t LANE_BIT[LANES] = {
    1U << 0,  1U << 1,  1U << 2,  1U << 3,  1U << 4,  1U << 5,  1U << 6,  1U << 7,
    1U << 8,  1U << 9,  1U << 10, 1U << 11, 1U << 12, 1U << 13, 1U << 14, 1U << 15,
    1U << 16, 1U << 17, 1U << 18, 1U << 19, 1U << 20, 1U << 21, 1U << 22, 1U << 23,
    1U << 24, 1U << 25, 1U << 26, 1U << 27, 1U << 28, 1U << 29, 1U << 30, 1U << 31};

/* Of rows with `stride` values in a lane: x and y. */
#define KERNEL(name, A, F, convert, stride, condition)                                             \
    static inline uint32_t name(struct warp *warp, const struct op *op, uint32_t part) {           \
        const A *const a = ROW(const A, op->a) + part, *const b = ROW(const A, op->b) + part;      \
        uint32_t result = 0;                                                                       \
        for (uint32_t lane = 0; lane < LANES; lane++) {                                            \
            const F x = convert(a[(stride)*lane]), y = convert(b[(stride)*lane]);                  \
            result |= (condition) ? LANE_BIT[lane] : 0;                                            \
        }                                                                                          \
        return result;                                                                             \
    }
/* The same, and the function that executes a plain setp with it: d = kernel ^ op->imm. */
#define SETP_KERNEL(name, A, F, convert, stride, condition)                                        \
    KERNEL(name, A, F, convert, stride, condition)                                                 \
    OP_FUNCTION(setp_##name) {                                                                     \
        predicate_write(warp, op->d, mask, name(warp, op, 0) ^ (uint32_t)op->imm,                  \
                        poison_of(warp, op->a) | poison_of(warp, op->b));                          \
    }

#define INT_KERNELS(type, A)                                                                       \
    SETP_KERNEL(eq_##type, A, A, , 1, x == y)                                                      \
    SETP_KERNEL(lt_##type, A, A, , 1, x < y)
INT_KERNELS(u16, uint16_t)
INT_KERNELS(s16, int16_t)
INT_KERNELS(u32, uint32_t)
INT_KERNELS(s32, int32_t)
INT_KERNELS(u64, uint64_t)
INT_KERNELS(s64, int64_t)

#define FLOAT_KERNELS(MAKE, type, A, F, convert, stride)                                           \
    MAKE(eq_##type, A, F, convert, stride, x == y)                                                 \
    MAKE(lt_##type, A, F, convert, stride, x < y)                                                  \
    MAKE(le_##type, A, F, convert, stride, x <= y)                                                 \
    MAKE(ne_##type, A, F, convert, stride, (x < y) | (x > y))                                      \
    MAKE(nan_##type, A, F, convert, stride, (x != x) | (y != y))

static inline float flushed(uint32_t bits) {
    return f32_from_bits(f32_flush(bits));
}
static inline float flushed_f16(uint16_t half) {
    return f32_from_f16(flush_f16(half));
}
FLOAT_KERNELS(SETP_KERNEL, f32, uint32_t, float, f32_from_bits, 1)
FLOAT_KERNELS(SETP_KERNEL, f32_ftz, uint32_t, float, flushed, 1)
FLOAT_KERNELS(SETP_KERNEL, f64, uint64_t, double, f64_from_bits, 1)
FLOAT_KERNELS(SETP_KERNEL, f16, uint16_t, float, f32_from_f16, 1)
FLOAT_KERNELS(SETP_KERNEL, f16_ftz, uint16_t, float, flushed_f16, 1)
FLOAT_KERNELS(SETP_KERNEL, bf16, uint16_t, float, f32_from_bf16, 1)
/* No plain setp is of pairs. */
FLOAT_KERNELS(KERNEL, f16x2, uint16_t, float, f32_from_f16, 2)
FLOAT_KERNELS(KERNEL, f16x2_ftz, uint16_t, float, flushed_f16, 2)
FLOAT_KERNELS(KERNEL, bf16x2, uint16_t, float, f32_from_bf16, 2)

/* ---- results --------------------------------------------------------------------------------- */

static uint32_t combined(const struct warp *warp, const struct op *op, enum combination how,
                         uint32_t value) {
    const uint32_t other = predicate_read(warp, op->c);
    switch (how) {
    case COMBINE_AND: return value & other;
    case COMBINE_OR: return value | other;
    case COMBINE_XOR: return value ^ other;
    case COMBINE_NONE: break;
    }
    return value;
}

/* Where the other predicate alone decides, the values compared do not matter. */
static uint32_t poison_of_all(const struct warp *warp, const struct op *op, enum combination how) {
    const uint32_t values = poison_of(warp, op->a) | poison_of(warp, op->b);
    const uint32_t poison = warp->predicate_poison[op->c & ~(uint32_t)PREDICATE_NOT];
    const uint32_t other = predicate_read(warp, op->c);
    const uint32_t settled = how == COMBINE_AND ? ~other : how == COMBINE_OR ? other : 0;
    return (values & ~(settled & ~poison)) | poison;
}

/* setp with a second result or a combination: p is d, q is e (0: there is none). */
OP_FUNCTION(setp_any) {
    const struct comparison *const how = op->extra;
    const uint32_t poison = poison_of_all(warp, op, how->combination);
    const uint32_t first = how->kernel(warp, op, 0) ^ how->flip;
    const uint32_t second = how->two ? how->kernel(warp, op, 1) ^ how->flip : ~first;
    const uint32_t p = combined(warp, op, how->combination, first);
    const uint32_t q = combined(warp, op, how->combination, second);
    predicate_write(warp, op->d, mask, p, poison);
    if (op->e != 0) {
        predicate_write(warp, op->e, mask, q, poison);
    }
}

/* What "true" is. */
static uint32_t true_of(enum ptx_type type) {
    switch (type) {
    case PTX_F32: return 0x3f800000U;
    case PTX_F16:
    case PTX_F16X2: return 0x3c00U;
    case PTX_BF16:
    case PTX_BF16X2: return 0x3f80U;
    default: return ~0U;
    }
}

OP_FUNCTION(set_any) {
    const struct comparison *const how = op->extra;
    const uint32_t yes = true_of(how->result);
    const uint32_t value =
        combined(warp, op, how->combination, how->kernel(warp, op, 0) ^ how->flip);
    set_poison(warp, op->d, mask, poison_of_all(warp, op, how->combination));
    if (how->two) {
        const uint32_t above =
            combined(warp, op, how->combination, how->kernel(warp, op, 1) ^ how->flip);
        uint32_t *const d = row32(warp, op->d);
        SCALAR_LANES(uint32_t, , /* each half of an integer is all ones, too */
                     ((value >> lane & 1) != 0 ? yes & 0xffff : 0) |
                         ((above >> lane & 1) != 0 ? yes << 16 : 0))
    } else if (ptx_type_size(how->result) == 2) {
        uint16_t *const d = row16(warp, op->d);
        SCALAR_LANES(uint16_t, , (value >> lane & 1) != 0 ? yes : 0)
    } else {
        uint32_t *const d = row32(warp, op->d);
        SCALAR_LANES(uint32_t, , (value >> lane & 1) != 0 ? yes : 0)
    }
}

/* ---- decoding -------------------------------------------------------------------------------- */

enum kernel_kind { KERNEL_EQ, KERNEL_LT, KERNEL_LE, KERNEL_NE, KERNEL_NAN };

struct kernels {
    enum ptx_type type;
    bool ftz;
    compare_function *kernel[5]; /* by kernel_kind; integers have two */
    op_function *setp[5];
};
#define INT_ROW(TYPE, type)                                                                        \
    {                                                                                              \
        PTX_##TYPE, false, {eq_##type, lt_##type}, {                                               \
            setp_eq_##type, setp_lt_##type                                                         \
        }                                                                                          \
    }
#define BIT_ROW(TYPE, type)                                                                        \
    {                                                                                              \
        PTX_##TYPE, false, {eq_##type}, {                                                          \
            setp_eq_##type                                                                         \
        }                                                                                          \
    }
#define FLOAT_ROW(TYPE, ftz, type)                                                                 \
    {                                                                                              \
        PTX_##TYPE, ftz, {eq_##type, lt_##type, le_##type, ne_##type, nan_##type}, {               \
            setp_eq_##type, setp_lt_##type, setp_le_##type, setp_ne_##type, setp_nan_##type        \
        }                                                                                          \
    }
#define PAIR_ROW(TYPE, ftz, type)                                                                  \
    {                                                                                              \
        PTX_##TYPE, ftz, {eq_##type, lt_##type, le_##type, ne_##type, nan_##type}, {               \
            NULL                                                                                   \
        }                                                                                          \
    }

static const struct kernels KERNELS[] = {
    INT_ROW(U16, u16),
    INT_ROW(S16, s16),
    INT_ROW(U32, u32),
    INT_ROW(S32, s32),
    INT_ROW(U64, u64),
    INT_ROW(S64, s64),
    BIT_ROW(B16, u16),
    BIT_ROW(B32, u32),
    BIT_ROW(B64, u64),
    FLOAT_ROW(F32, false, f32),
    FLOAT_ROW(F32, true, f32_ftz),
    FLOAT_ROW(F64, false, f64),
    FLOAT_ROW(F16, false, f16),
    FLOAT_ROW(F16, true, f16_ftz),
    FLOAT_ROW(BF16, false, bf16),
    PAIR_ROW(F16X2, false, f16x2),
    PAIR_ROW(F16X2, true, f16x2_ftz),
    PAIR_ROW(BF16X2, false, bf16x2),
};

/* How an operator is made of a kernel: for floats, for integers, or both. */
static const struct operator_row {
    const char *name;
    enum kernel_kind kind;
    bool flip, swap;
    char numbers; /* i: signed and unsigned integers; u: unsigned ones; f: floats; a: i and f */
} OPERATORS[] = {
    {"eq", KERNEL_EQ, false, false, 'a'},   {"ne", KERNEL_EQ, true, false, 'i'},
    {"ne", KERNEL_NE, false, false, 'f'},   {"lt", KERNEL_LT, false, false, 'a'},
    {"gt", KERNEL_LT, false, true, 'a'},    {"le", KERNEL_LT, true, true, 'i'},
    {"ge", KERNEL_LT, true, false, 'i'},    {"le", KERNEL_LE, false, false, 'f'},
    {"ge", KERNEL_LE, false, true, 'f'},    {"lo", KERNEL_LT, false, false, 'u'},
    {"hi", KERNEL_LT, false, true, 'u'},    {"ls", KERNEL_LT, true, true, 'u'},
    {"hs", KERNEL_LT, true, false, 'u'},    {"equ", KERNEL_NE, true, false, 'f'},
    {"neu", KERNEL_EQ, true, false, 'f'},   {"ltu", KERNEL_LE, true, true, 'f'},
    {"gtu", KERNEL_LE, true, false, 'f'},   {"leu", KERNEL_LT, true, true, 'f'},
    {"geu", KERNEL_LT, true, false, 'f'},   {"num", KERNEL_NAN, true, false, 'f'},
    {"nan", KERNEL_NAN, false, false, 'f'},
};

static bool fits(char numbers, enum ptx_type type) {
    const bool is_unsigned = type >= PTX_U8 && type <= PTX_U64;
    const bool is_float = type >= PTX_F16 && type <= PTX_F64;
    return numbers == 'a' || (numbers == 'f' && is_float) || (numbers == 'u' && is_unsigned) ||
           (numbers == 'i' && !is_float);
}

static const struct operator_row *operator_of(const struct ptx_instruction *in,
                                              enum ptx_type type) {
    for (size_t i = 0; i < sizeof OPERATORS / sizeof OPERATORS[0]; i++) {
        if (in->modifier_count > 0 && strcmp(in->modifiers[0], OPERATORS[i].name) == 0 &&
            fits(OPERATORS[i].numbers, type)) {
            return &OPERATORS[i];
        }
    }
    return NULL;
}

static const struct kernels *kernels_of(enum ptx_type type, bool ftz) {
    for (size_t i = 0; i < sizeof KERNELS / sizeof KERNELS[0]; i++) {
        if (KERNELS[i].type == type && KERNELS[i].ftz == ftz) {
            return &KERNELS[i];
        }
    }
    return NULL;
}

/* All modifiers: the operator first, then what is optional, then the types. */
static bool modifiers_known(const struct ptx_instruction *in, enum combination combination,
                            bool ftz, uint32_t type_count) {
    const uint32_t count = 1U + (combination != COMBINE_NONE) + ftz + type_count;
    return in->modifier_count == count && ptx_modifier_type(in, type_count - 1) != PTX_NONE &&
           ptx_modifier_type(in, type_count) == PTX_NONE;
}

/* What set may give for a comparison of `type`. */
static bool set_gives(enum ptx_type result, enum ptx_type type) {
    switch (type) {
    case PTX_F16X2: return result == PTX_F16X2 || result == PTX_U32 || result == PTX_S32;
    case PTX_BF16X2: return result == PTX_BF16X2 || result == PTX_U32 || result == PTX_S32;
    case PTX_F16:
        return result == PTX_F16 || result == PTX_U16 || result == PTX_S16 || result == PTX_U32 ||
               result == PTX_S32;
    case PTX_BF16:
        return result == PTX_BF16 || result == PTX_U16 || result == PTX_S16 || result == PTX_U32 ||
               result == PTX_S32;
    default:
        return result == PTX_U32 || result == PTX_S32 || result == PTX_F32 ||
               (result == PTX_F16 && ptx_type_size(type) >= 2);
    }
}

static bool decode_results(struct decoder *decoder, const struct ptx_instruction *in, struct op *op,
                           enum ptx_type result) {
    const struct ptx_operand *operand = &in->operands[0];
    if (result != PTX_NONE) {
        op->d = decode_result(decoder, operand, result);
        return op->d != 0;
    }
    if (operand->kind == PTX_OPERAND_PAIR) {
        op->d = form_predicate(decoder, &operand->parts[0]);
        op->e = form_predicate(decoder, &operand->parts[1]);
        return op->d != 0 && op->e != 0;
    }
    op->d = form_predicate(decoder, operand);
    return op->d != 0;
}

bool decode_compare(struct decoder *decoder, const struct ptx_instruction *in, struct op *op) {
    static const char *const combinations[] = {"and", "or", "xor", NULL};
    const bool set = strcmp(in->opcode, "set") == 0, ftz = ptx_has(in, "ftz");
    const enum ptx_type result = set ? ptx_modifier_type(in, 0) : PTX_NONE;
    const enum ptx_type type = ptx_modifier_type(in, set);
    uint32_t which = 0;
    const bool combines = decode_choice(in, combinations, &which);
    const enum combination combination = combines ? (enum combination)(which + 1) : COMBINE_NONE;
    const struct operator_row *row = operator_of(in, type);
    const struct kernels *kernels = kernels_of(type, ftz);
    if (row == NULL || kernels == NULL || kernels->kernel[row->kind] == NULL ||
        !modifiers_known(in, combination, ftz, set ? 2 : 1) || (set && !set_gives(result, type)) ||
        in->operand_count != (combines ? 4 : 3)) {
        return form_unknown(decoder, in);
    }
    op->flags |= OP_OWN_POISON;
    if (!decode_results(decoder, in, op, result)) {
        return false;
    }
    op->a = decode_source(decoder, &in->operands[row->swap ? 2 : 1], type);
    op->b = decode_source(decoder, &in->operands[row->swap ? 1 : 2], type);
    const uint32_t flip = row->flip ? ALL_LANES : 0;
    if (!set && !combines && op->e == 0 && kernels->setp[row->kind] != NULL) {
        op->run = kernels->setp[row->kind];
        op->imm = flip;
        return op->a != 0 && op->b != 0;
    }
    struct comparison *how = decode_alloc(decoder, sizeof *how);
    if (how == NULL) {
        return false;
    }
    *how = (struct comparison){kernels->kernel[row->kind], flip, combination,
                               type == PTX_F16X2 || type == PTX_BF16X2, result};
    op->extra = how;
    op->run = set ? set_any : setp_any;
    op->c = combines ? decode_predicate(decoder, &in->operands[3]) : 0;
    return op->a != 0 && op->b != 0;
}
