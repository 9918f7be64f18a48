/* SPDX-License-Identifier: Apache-2.0
 *
 * cvt.c - cvt: between all integer and floating-point formats, with every rounding.
 *
 * Frequent conversions have vectorised loops (FAST); all others unpack and repack values
 * (formats.h), lane by lane. cvt is the only instruction whose registers may be wider than its
 * types: sources are truncated, results extended by their type.
 *
 * Invariant: both ways give the same bits wherever both exist (tests/vgpu/test_cvt.c).
 */
#include <math.h>
#include <string.h>

#include "ops/fp.h"

enum {
    PACK_NONE,
    PACK_TWO,
    PACK_HALVES
}; /* how two values of a pair are made: of two f32; of a pair */

struct conversion {
    enum ptx_type to, from; /* of one value; pairs: of a half */
    enum rounding rounding;
    bool integral; /* .rni and its like */
    bool ftz, sat, relu, finite;
    uint32_t to_width, from_width; /* bytes of the registers' lanes */
    int pack;
};

/* ---- any conversion -------------------------------------------------------------------------- */

static uint64_t sign_extended(uint64_t bits, uint32_t bytes) {
    const uint32_t unused = 64 - 8 * bytes;
    return (uint64_t)((int64_t)(bits << unused) >> unused);
}

static uint64_t to_integer(const struct conversion *how, struct number number, uint64_t bits) {
    if (type_is_float(how->from)) {
        const bool wide = how->from == PTX_F64 || ptx_type_size(how->to) == 8;
        if (number.kind == NUMBER_NAN) {
            return wide ? 1ULL << (8 * ptx_type_size(how->to) - 1) : 0;
        }
        return number_to_int(how->to, number, how->rounding);
    }
    if (how->sat) {
        return number_to_int(how->to, number, ROUND_ZERO);
    }
    return type_is_signed(how->from) ? sign_extended(bits, ptx_type_size(how->from)) : bits;
}

/* .sat on the bits of a floating-point result. */
static uint64_t saturated(enum ptx_type type, uint64_t bits) {
    const struct number value = number_unpack(type, bits);
    const uint64_t one =
        number_pack(type, (struct number){NUMBER_FINITE, false, 1, 0}, ROUND_NEAREST, false);
    if (value.kind == NUMBER_NAN || value.negative) {
        return 0;
    }
    return bits > one ? one : bits;
}

static uint64_t to_float(const struct conversion *how, struct number number) {
    if (how->integral) {
        number = number_integral(number, how->rounding);
    }
    uint64_t bits = number_pack(how->to, number, how->rounding, how->finite);
    if (how->ftz && how->to == PTX_F32) {
        bits = f32_flush((uint32_t)bits);
    }
    if (how->relu && number.kind != NUMBER_NAN && number.negative) {
        bits = 0;
    }
    return how->sat ? saturated(how->to, bits) : bits;
}

/* Bits of one value of `from` to bits of one of `to`, above which anything may be set. */
static uint64_t converted(const struct conversion *how, uint64_t bits) {
    const uint32_t size = ptx_type_size(how->from);
    bits &= size == 8 ? ~0ULL : (1ULL << (8 * size)) - 1;
    if (how->ftz && how->from == PTX_F32) {
        bits = f32_flush((uint32_t)bits);
    }
    const struct number number = number_unpack(how->from, bits);
    if (how->to == PTX_TF32 && number.kind == NUMBER_NAN) {
        return bits & 0xffffe000U; /* as an H200 does: cut, not made canonical */
    }
    return type_is_float(how->to) ? to_float(how, number) : to_integer(how, number, bits);
}

static uint64_t lane_load(const struct warp *warp, uint32_t row, uint32_t lane, uint32_t width) {
    uint64_t bits = 0;
    memcpy(&bits, warp->rows + row + (size_t)lane * width, width); /* little-endian hosts */
    return bits;
}
static void lane_store(struct warp *warp, uint32_t row, uint32_t lane, uint32_t width,
                       uint64_t bits) {
    memcpy(warp->rows + row + (size_t)lane * width, &bits, width);
}

OP_FUNCTION(cvt_any) {
    const struct conversion *const how = op->extra;
    const uint32_t size = ptx_type_size(how->to);
    const uint64_t kept = size == 8 ? ~0ULL : (1ULL << (8 * size)) - 1;
    FOR_LANES(lane, mask) {
        const uint64_t bits = converted(how, lane_load(warp, op->a, lane, how->from_width)) & kept;
        lane_store(warp, op->d, lane, how->to_width,
                   type_is_signed(how->to) ? sign_extended(bits, size) : bits);
    }
}

/* Pairs: a is the high half and b the low one, or both are halves of a. */
OP_FUNCTION(cvt_pair) {
    const struct conversion *const how = op->extra;
    const uint32_t size = ptx_type_size(how->to), from = ptx_type_size(how->from);
    FOR_LANES(lane, mask) {
        uint64_t high, low;
        if (how->pack == PACK_TWO) {
            high = lane_load(warp, op->a, lane, from);
            low = lane_load(warp, op->b, lane, from);
        } else {
            low = lane_load(warp, op->a, lane, 2 * from);
            high = low >> (8 * from);
        }
        lane_store(warp, op->d, lane, 2 * size,
                   converted(how, high) << (8 * size) | converted(how, low));
    }
}

/* ---- the usual ones -------------------------------------------------------------------------- */

/* op->imm: how far the source's type is from the top of its register. */
#define INT_CVT(name, D, U, S)                                                                     \
    VECTOR_1(name##_u, D, U, (U)(x << op->imm) >> op->imm)                                         \
    VECTOR_1(name##_s, D, U, (S)(U)(x << op->imm) >> op->imm)
INT_CVT(cvt_16_16, uint16_t, uint16_t, int16_t)
INT_CVT(cvt_32_16, uint32_t, uint16_t, int16_t)
INT_CVT(cvt_64_16, uint64_t, uint16_t, int16_t)
INT_CVT(cvt_16_32, uint16_t, uint32_t, int32_t)
INT_CVT(cvt_32_32, uint32_t, uint32_t, int32_t)
INT_CVT(cvt_64_32, uint64_t, uint32_t, int32_t)
INT_CVT(cvt_16_64, uint16_t, uint64_t, int64_t)
INT_CVT(cvt_32_64, uint32_t, uint64_t, int64_t)
INT_CVT(cvt_64_64, uint64_t, uint64_t, int64_t)

static op_function *const INT_CVTS[3][3][2] = {
    {{cvt_16_16_u, cvt_16_16_s}, {cvt_16_32_u, cvt_16_32_s}, {cvt_16_64_u, cvt_16_64_s}},
    {{cvt_32_16_u, cvt_32_16_s}, {cvt_32_32_u, cvt_32_32_s}, {cvt_32_64_u, cvt_32_64_s}},
    {{cvt_64_16_u, cvt_64_16_s}, {cvt_64_32_u, cvt_64_32_s}, {cvt_64_64_u, cvt_64_64_s}},
};

VECTOR_1(cvt_f32_s32, uint32_t, int32_t, bits_of_f32((float)x))
VECTOR_1(cvt_f32_u32, uint32_t, uint32_t, bits_of_f32((float)x))
VECTOR_1(cvt_f64_s32, uint64_t, int32_t, bits_of_f64((double)x))
VECTOR_1(cvt_f64_u32, uint64_t, uint32_t, bits_of_f64((double)x))
VECTOR_1(cvt_f64_f32, uint64_t, uint32_t, f64_out((double)f32_from_bits(x)))
VECTOR_1(cvt_f32_f64, uint32_t, uint64_t, f32_out((float)f64_from_bits(x), false, false))
VECTOR_1(cvt_f32_f16, uint32_t, uint16_t, bits_of_f32(f32_from_f16(x)))
VECTOR_1(cvt_f32_bf16, uint32_t, uint16_t, (uint32_t)x << 16) /* NaN keeps its bits, as seen */
VECTOR_1(cvt_f16_f32, uint16_t, uint32_t, f16_from_f32(f32_from_bits(x)))
VECTOR_1(cvt_bf16_f32, uint16_t, uint32_t, bf16_from_f32(f32_from_bits(x)))
VECTOR_2(cvt_f16x2_f32, uint32_t, uint32_t, uint32_t,
         (uint32_t)f16_from_f32(f32_from_bits(x)) << 16 | f16_from_f32(f32_from_bits(y)))
VECTOR_2(cvt_bf16x2_f32, uint32_t, uint32_t, uint32_t,
         (uint32_t)bf16_from_f32(f32_from_bits(x)) << 16 | bf16_from_f32(f32_from_bits(y)))
VECTOR_1(cvt_sat_f32, uint32_t, uint32_t, f32_saturate(x))
VECTOR_1(cvt_ftz_sat_f32, uint32_t, uint32_t, f32_saturate(f32_flush(x)))

/* Towards zero; the host's conversion is undefined beyond the type, so it sees 0 there. */
static inline int32_t s32_from_f32(uint32_t bits) {
    const uint32_t magnitude = bits & 0x7fffffffU;
    const bool fits = magnitude < 0x4f000000U;
    const int32_t value = (int32_t)f32_from_bits(fits ? bits : 0);
    const uint32_t limit = magnitude > 0x7f800000U ? 0 : 0x7fffffffU + (bits >> 31);
    return (int32_t)pick(fits, (uint32_t)value, limit);
}
static inline uint32_t u32_from_f32(uint32_t bits) {
    const bool fits = bits < 0x4f800000U;
    const uint32_t value = (uint32_t)f32_from_bits(fits ? bits : 0);
    return pick(fits, value, bits <= 0x7f800000U ? ~0U : 0);
}
VECTOR_1(cvt_rzi_s32_f32, int32_t, uint32_t, s32_from_f32(x))
VECTOR_1(cvt_rzi_u32_f32, uint32_t, uint32_t, u32_from_f32(x))

F32_FORMS_1(cvt_rmi_f32, floorf(x))
F32_FORMS_1(cvt_rpi_f32, ceilf(x))
F32_FORMS_1(cvt_rzi_f32, truncf(x))
F32_FORMS_1(cvt_rni_f32, rintf(x))

static const struct {
    const char *modifiers;
    enum ptx_type to, from;
    op_function *run;
} FAST[] = {
    {"rn ftz?", PTX_F32, PTX_S32, cvt_f32_s32},
    {"rn ftz?", PTX_F32, PTX_U32, cvt_f32_u32},
    {"rn", PTX_F64, PTX_S32, cvt_f64_s32},
    {"rn", PTX_F64, PTX_U32, cvt_f64_u32},
    {"", PTX_F64, PTX_F32, cvt_f64_f32},
    {"rn", PTX_F32, PTX_F64, cvt_f32_f64},
    {"ftz?", PTX_F32, PTX_F16, cvt_f32_f16}, /* never subnormal in f32 */
    {"", PTX_F32, PTX_BF16, cvt_f32_bf16},
    {"rn", PTX_F16, PTX_F32, cvt_f16_f32},
    {"rn", PTX_BF16, PTX_F32, cvt_bf16_f32},
    {"rn", PTX_F16X2, PTX_F32, cvt_f16x2_f32},
    {"rn", PTX_BF16X2, PTX_F32, cvt_bf16x2_f32},
    {"sat", PTX_F32, PTX_F32, cvt_sat_f32},
    {"ftz sat", PTX_F32, PTX_F32, cvt_ftz_sat_f32},
    {"rzi ftz? sat?", PTX_S32, PTX_F32, cvt_rzi_s32_f32},
    {"rzi ftz? sat?", PTX_U32, PTX_F32, cvt_rzi_u32_f32},
    {"rmi", PTX_F32, PTX_F32, cvt_rmi_f32},
    {"rmi ftz", PTX_F32, PTX_F32, cvt_rmi_f32_ftz},
    {"rpi", PTX_F32, PTX_F32, cvt_rpi_f32},
    {"rpi ftz", PTX_F32, PTX_F32, cvt_rpi_f32_ftz},
    {"rzi", PTX_F32, PTX_F32, cvt_rzi_f32},
    {"rzi ftz", PTX_F32, PTX_F32, cvt_rzi_f32_ftz},
    {"rni", PTX_F32, PTX_F32, cvt_rni_f32},
    {"rni ftz", PTX_F32, PTX_F32, cvt_rni_f32_ftz},
};

static op_function *fast_function(const struct ptx_instruction *in) {
    const enum ptx_type to = ptx_modifier_type(in, 0), from = ptx_modifier_type(in, 1);
    for (size_t i = 0; i < sizeof FAST / sizeof FAST[0]; i++) {
        if (FAST[i].to == to && FAST[i].from == from && form_modifiers(in, FAST[i].modifiers, 2)) {
            return FAST[i].run;
        }
    }
    return NULL;
}

/* ---- cvt.pack -------------------------------------------------------------------------------- */

/* imm: the type of the halves. c is above them. */
OP_FUNCTION(cvt_pack) {
    uint32_t *const d = row32(warp, op->d);
    const uint32_t *const a = row32(warp, op->a), *const b = row32(warp, op->b),
                          *const c = row32(warp, op->c);
    const enum ptx_type type = (enum ptx_type)op->imm;
    const uint32_t bits = 8 * ptx_type_size(type);
    SCALAR_LANES(uint32_t, ,
                 (uint64_t)c[lane] << (2 * bits) |
                     number_to_int(type, number_unpack(PTX_S32, a[lane]), ROUND_ZERO) << bits |
                     number_to_int(type, number_unpack(PTX_S32, b[lane]), ROUND_ZERO))
}

static bool decode_cvt_pack(struct decoder *decoder, const struct ptx_instruction *in,
                            struct op *op) {
    const enum ptx_type type = ptx_modifier_type(in, 0);
    const bool bytes = type == PTX_U8 || type == PTX_S8;
    const bool known =
        (type == PTX_U16 || type == PTX_S16 || bytes) && ptx_modifier_type(in, 1) == PTX_S32 &&
        (!bytes || ptx_modifier_type(in, 2) == PTX_B32) &&
        form_modifiers(in, "pack sat", bytes ? 3 : 2) && in->operand_count == (bytes ? 4 : 3);
    if (!known) {
        return form_unknown(decoder, in);
    }
    op->run = cvt_pack;
    op->imm = (int64_t)type;
    for (uint32_t i = 0; i < in->operand_count; i++) {
        if (decode_width(decoder, &in->operands[i]) == 8) {
            return decode_fail(decoder, "a register of 64 bits, expected 32");
        }
    }
    return form_operands(decoder, in, op, bytes ? "itti" : "itt", PTX_S32);
}

/* ---- decoding -------------------------------------------------------------------------------- */

enum rounding_kind { ROUNDS_NOT, ROUNDS_FLOAT, ROUNDS_INTEGRAL, ROUNDS_AWAY };

static enum rounding_kind read_rounding(const char *name, enum rounding *rounding) {
    static const struct {
        const char *name;
        enum rounding rounding;
        enum rounding_kind kind;
    } names[] = {
        {"rn", ROUND_NEAREST, ROUNDS_FLOAT},      {"rz", ROUND_ZERO, ROUNDS_FLOAT},
        {"rm", ROUND_DOWN, ROUNDS_FLOAT},         {"rp", ROUND_UP, ROUNDS_FLOAT},
        {"rni", ROUND_NEAREST, ROUNDS_INTEGRAL},  {"rzi", ROUND_ZERO, ROUNDS_INTEGRAL},
        {"rmi", ROUND_DOWN, ROUNDS_INTEGRAL},     {"rpi", ROUND_UP, ROUNDS_INTEGRAL},
        {"rna", ROUND_NEAREST_AWAY, ROUNDS_AWAY},
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(name, names[i].name) == 0) {
            *rounding = names[i].rounding;
            return names[i].kind;
        }
    }
    return ROUNDS_NOT;
}

/* All modifiers into `how`; false: one that is not known, or twice. */
static bool read_modifiers(const struct ptx_instruction *in, struct conversion *how,
                           enum rounding_kind *kind) {
    uint32_t types = 0;
    *kind = ROUNDS_NOT;
    for (uint32_t i = 0; i < in->modifier_count; i++) {
        const char *name = in->modifiers[i];
        bool *const flag = strcmp(name, "ftz") == 0         ? &how->ftz
                           : strcmp(name, "sat") == 0       ? &how->sat
                           : strcmp(name, "relu") == 0      ? &how->relu
                           : strcmp(name, "satfinite") == 0 ? &how->finite
                                                            : NULL;
        enum rounding rounding = ROUND_NEAREST;
        const enum rounding_kind found = read_rounding(name, &rounding);
        if (flag != NULL && !*flag) {
            *flag = true;
        } else if (found != ROUNDS_NOT && *kind == ROUNDS_NOT) {
            *kind = found;
            how->rounding = rounding;
        } else if (ptx_type_named(name) != PTX_NONE) {
            types++;
        } else {
            return false;
        }
    }
    return types == 2;
}

static bool is_integer(enum ptx_type type) {
    return (type >= PTX_U8 && type <= PTX_U64) || (type >= PTX_S8 && type <= PTX_S64);
}
static bool is_plain_float(enum ptx_type type) {
    return type == PTX_F16 || type == PTX_BF16 || type == PTX_F32 || type == PTX_F64;
}

/* Every value of `from` is one of `to`. */
static bool widens(enum ptx_type to, enum ptx_type from) {
    return ptx_type_size(to) > ptx_type_size(from);
}

/* Whether PTX has such a conversion of single values. */
static bool is_known(const struct conversion *how, enum rounding_kind kind) {
    const bool to_small = how->to == PTX_F16 || how->to == PTX_BF16;
    if (how->ftz && how->to != PTX_F32 && how->from != PTX_F32) {
        return false;
    }
    if (how->to == PTX_TF32) {
        return how->from == PTX_F32 && !how->sat && !how->ftz &&
               (kind == ROUNDS_AWAY ? !how->relu
                                    : kind == ROUNDS_FLOAT && how->rounding <= ROUND_ZERO);
    }
    if (kind == ROUNDS_AWAY ||
        ((how->relu || how->finite) && (!to_small || how->from != PTX_F32 || how->sat ||
                                        how->rounding > ROUND_ZERO || kind != ROUNDS_FLOAT))) {
        return false;
    }
    if (is_integer(how->to) && is_integer(how->from)) {
        return kind == ROUNDS_NOT;
    }
    if (is_integer(how->to)) {
        return is_plain_float(how->from) && kind == ROUNDS_INTEGRAL;
    }
    if (!is_plain_float(how->to) || (!is_integer(how->from) && !is_plain_float(how->from))) {
        return false;
    }
    if (is_integer(how->from)) {
        return kind == ROUNDS_FLOAT;
    }
    if (how->to == how->from) {
        return kind == ROUNDS_NOT || kind == ROUNDS_INTEGRAL;
    }
    return kind == (widens(how->to, how->from) ? ROUNDS_NOT : ROUNDS_FLOAT);
}

static uint32_t lane_width(const struct decoder *decoder, const struct ptx_operand *operand,
                           enum ptx_type type) {
    const uint32_t width = decode_width(decoder, operand), size = ptx_type_size(type);
    return width != 0 ? width : size < 2 ? 2 : size;
}

static bool decode_single(struct decoder *decoder, const struct ptx_instruction *in, struct op *op,
                          struct conversion *how) {
    op->d = decode_result(decoder, &in->operands[0], how->to);
    op->a = decode_source(decoder, &in->operands[1], how->from);
    how->to_width = lane_width(decoder, &in->operands[0], how->to);
    how->from_width = lane_width(decoder, &in->operands[1], how->from);
    const bool exact_result = how->to_width == ptx_type_size(how->to);
    const bool exact = exact_result && how->from_width == ptx_type_size(how->from);
    op->extra = how;
    op->run = exact ? fast_function(in) : NULL;
    if (exact_result && is_integer(how->to) && is_integer(how->from) && !how->sat) {
        op->run = INT_CVTS[how->to_width / 4][how->from_width / 4][type_is_signed(how->from)];
        op->imm = 8 * (how->from_width - ptx_type_size(how->from));
    }
    if (op->run == NULL) {
        op->run = cvt_any;
    }
    return op->d != 0 && op->a != 0;
}

static enum ptx_type half_of_pair(enum ptx_type pair) {
    switch (pair) {
    case PTX_F16X2: return PTX_F16;
    case PTX_BF16X2: return PTX_BF16;
    case PTX_E4M3X2: return PTX_E4M3;
    case PTX_E5M2X2: return PTX_E5M2;
    default: return PTX_NONE;
    }
}

/* Whether PTX has such a conversion to pairs: of two f32, or of a pair. */
static bool is_known_pair(const struct conversion *how, enum ptx_type from,
                          enum rounding_kind kind) {
    const bool to_byte = how->to == PTX_E4M3 || how->to == PTX_E5M2;
    const bool from_byte = from == PTX_E4M3X2 || from == PTX_E5M2X2;
    if (kind != ROUNDS_FLOAT || how->rounding > ROUND_ZERO || how->sat || how->ftz) {
        return false;
    }
    if (to_byte) {
        return (from == PTX_F32 || from == PTX_F16X2) && how->finite &&
               how->rounding == ROUND_NEAREST;
    }
    return from == PTX_F32 ||
           (from_byte && how->to == PTX_F16 && how->rounding == ROUND_NEAREST && !how->finite);
}

static bool decode_pair(struct decoder *decoder, const struct ptx_instruction *in, struct op *op,
                        struct conversion *how) {
    const enum ptx_type to = ptx_modifier_type(in, 0), from = ptx_modifier_type(in, 1);
    op->d = decode_result(decoder, &in->operands[0], to);
    op->a = decode_source(decoder, &in->operands[1], from);
    op->b = how->pack == PACK_TWO ? decode_source(decoder, &in->operands[2], from) : 0;
    const bool exact = lane_width(decoder, &in->operands[0], to) == ptx_type_size(to) &&
                       lane_width(decoder, &in->operands[1], from) == ptx_type_size(from) &&
                       (how->pack != PACK_TWO || lane_width(decoder, &in->operands[2], from) == 4);
    op->extra = how;
    op->run = fast_function(in);
    op->run = op->run != NULL ? op->run : cvt_pair;
    return op->d != 0 && op->a != 0 && (how->pack != PACK_TWO || op->b != 0) &&
           (exact || decode_fail(decoder, "a register that is wider than the pair in it"));
}

bool decode_cvt(struct decoder *decoder, const struct ptx_instruction *in, struct op *op) {
    if (ptx_has(in, "pack")) {
        return decode_cvt_pack(decoder, in, op);
    }
    enum rounding_kind kind;
    struct conversion *how = decode_alloc(decoder, sizeof *how);
    if (how == NULL) {
        return false;
    }
    if (!read_modifiers(in, how, &kind)) {
        return form_unknown(decoder, in);
    }
    const enum ptx_type to = ptx_modifier_type(in, 0), from = ptx_modifier_type(in, 1);
    const enum ptx_type half = half_of_pair(to), from_half = half_of_pair(from);
    how->to = half != PTX_NONE ? half : to;
    how->from = from_half != PTX_NONE ? from_half : from;
    how->integral = kind == ROUNDS_INTEGRAL;
    if (half != PTX_NONE) {
        how->pack = from == PTX_F32 ? PACK_TWO : PACK_HALVES;
        if (!is_known_pair(how, from, kind) ||
            in->operand_count != (how->pack == PACK_TWO ? 3 : 2)) {
            return form_unknown(decoder, in);
        }
        return decode_pair(decoder, in, op, how);
    }
    if (from_half != PTX_NONE || in->operand_count != 2 || !is_known(how, kind)) {
        return form_unknown(decoder, in);
    }
    return decode_single(decoder, in, op, how);
}
