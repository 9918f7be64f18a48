/* SPDX-License-Identifier: Apache-2.0
 *
 * video.c - the video instructions: vadd vsub vabsdiff vmin vmax vshl vshr vmad vset, on parts of
 * registers; and vadd vsub vavrg vabsdiff vmin vmax vset on two halves (2) or four bytes (4).
 *
 * Invariant: an intermediate result has all its bits until it is saturated, combined with c, or put
 * into a part of the result.
 */
#include <string.h>

#include "ops/forms.h"
#include "ops/lanes.h"

__extension__ typedef __int128 wide;

enum { WORD = 32, MOST_PARTS = 4 };

enum operation { VADD, VSUB, VABSDIFF, VMIN, VMAX, VAVRG, VSHL, VSHR, VMAD, VSET };
enum comparison { EQ, NE, LT, LE, GT, GE };
enum secondary { NONE, ADD, MIN, MAX };

struct video {
    enum operation operation;
    uint32_t compare;
    enum secondary secondary;
    bool a_signed, b_signed, d_signed, saturate, wrap, plus_one;
    uint32_t shift; /* of vmad's result */
    uint32_t parts; /* 1, 2, 4 */
    /* parts 1: bits and number of the part of each operand. Else the elements of {b, a} that each
     * element takes, lowest first, and which elements are computed. */
    uint32_t a_bits, b_bits, d_bits, d_part;
    uint32_t a[MOST_PARTS], b[MOST_PARTS];
    bool computed[MOST_PARTS];
};

/* ---- execution ------------------------------------------------------------------------------- */

static wide part(uint64_t word, uint32_t bits, uint32_t index, bool is_signed) {
    const uint64_t value = word >> (index * bits) & ((1ULL << bits) - 1);
    return is_signed && value >> (bits - 1) != 0 ? (wide)value - ((wide)1 << bits) : (wide)value;
}

static bool compared(uint32_t how, wide a, wide b) {
    switch (how) {
    case EQ: return a == b;
    case NE: return a != b;
    case LT: return a < b;
    case LE: return a <= b;
    case GT: return a > b;
    default: return a >= b;
    }
}

static wide primary(const struct video *v, wide a, wide b) {
    const wide amount = v->wrap ? b & (WORD - 1) : b > WORD ? WORD : b;
    switch (v->operation) {
    case VADD: return a + b;
    case VSUB: return a - b;
    case VABSDIFF: return a > b ? a - b : b - a;
    case VMIN: return a < b ? a : b;
    case VMAX: return a > b ? a : b;
    case VAVRG: return (a + b + (a + b >= 0)) >> 1;
    case VSHL: return a * ((wide)1 << amount);
    case VSHR: return a >> amount;
    case VMAD: return a * b;
    default: return compared(v->compare, a, b);
    }
}

static wide clamp(wide value, uint32_t bits, bool is_signed) {
    const wide low = is_signed ? -((wide)1 << (bits - 1)) : 0;
    const wide high = ((wide)1 << (is_signed ? bits - 1 : bits)) - 1;
    return value < low ? low : value > high ? high : value;
}

static uint32_t multiply_add(const struct video *v, uint32_t a, uint32_t b, uint32_t c) {
    const bool is_signed = v->a_signed || v->b_signed;
    wide value =
        part(a, v->a_bits, v->a[0], v->a_signed) * part(b, v->b_bits, v->b[0], v->b_signed);
    value = (value + part(c, WORD, 0, is_signed) + v->plus_one) >> v->shift;
    return (uint32_t)(v->saturate ? clamp(value, WORD, is_signed) : value);
}

static uint32_t combine(const struct video *v, wide value, uint32_t c) {
    const wide third = part(c, WORD, 0, v->d_signed);
    switch (v->secondary) {
    case ADD: return (uint32_t)(value + third);
    case MIN: return (uint32_t)(value < third ? value : third);
    case MAX: return (uint32_t)(value > third ? value : third);
    default: break;
    }
    const uint64_t mask = ((1ULL << v->d_bits) - 1) << (v->d_bits * v->d_part);
    return (uint32_t)((((uint64_t)value << (v->d_bits * v->d_part)) & mask) | (c & ~mask));
}

static uint32_t scalar(const struct video *v, uint32_t a, uint32_t b, uint32_t c) {
    if (v->operation == VMAD) {
        return multiply_add(v, a, b, c);
    }
    wide value = primary(v, part(a, v->a_bits, v->a[0], v->a_signed),
                         part(b, v->b_bits, v->b[0], v->b_signed));
    if (v->saturate) {
        value = clamp(value, v->d_bits, v->d_signed);
    }
    return combine(v, value, c);
}

static uint32_t parallel(const struct video *v, uint32_t a, uint32_t b, uint32_t c) {
    const uint32_t bits = WORD / v->parts;
    const uint64_t both = (uint64_t)b << WORD | a;
    uint32_t result = v->secondary == ADD ? c : 0;
    for (uint32_t i = 0; i < v->parts; i++) {
        if (!v->computed[i] && v->secondary == ADD) {
            continue;
        }
        wide value = primary(v, part(both, bits, v->a[i], v->a_signed),
                             part(both, bits, v->b[i], v->b_signed));
        if (v->saturate) {
            value = clamp(value, bits, v->d_signed);
        }
        if (v->secondary == ADD) {
            result += (uint32_t)value;
            continue;
        }
        const uint32_t kept = v->computed[i] ? (uint32_t)value : (uint32_t)part(c, bits, i, false);
        result |= (kept & (uint32_t)((1ULL << bits) - 1)) << (bits * i);
    }
    return result;
}

SCALAR_3(video_scalar, uint32_t, uint32_t, uint32_t, uint32_t, scalar(op->extra, x, y, z))
SCALAR_3(video_parallel, uint32_t, uint32_t, uint32_t, uint32_t, parallel(op->extra, x, y, z))

/* ---- decoding -------------------------------------------------------------------------------- */

static bool take_operation(struct video *v, const char *opcode) {
    static const char *const NAMES[] = {"vadd",  "vsub", "vabsdiff", "vmin", "vmax",
                                        "vavrg", "vshl", "vshr",     "vmad", "vset"};
    const size_t length = strlen(opcode);
    const char last = opcode[length - 1];
    v->parts = last == '2' ? 2 : last == '4' ? 4 : 1;
    for (uint32_t i = 0; i < sizeof NAMES / sizeof NAMES[0]; i++) {
        if (strlen(NAMES[i]) == length - (v->parts > 1) &&
            strncmp(NAMES[i], opcode, strlen(NAMES[i])) == 0) {
            v->operation = (enum operation)i;
            return true;
        }
    }
    return false;
}

/* What may follow the opcode, beside the types. */
static const char *modifiers_of(const struct video *v) {
    switch (v->operation) {
    case VSHL:
    case VSHR: return "* sat clamp wrap add min max";
    case VMAD: return "* sat po shr7 shr15";
    case VSET: return v->parts > 1 ? "* eq ne lt le gt ge add" : "* eq ne lt le gt ge add min max";
    default: return v->parts > 1 ? "* sat add" : "* sat add min max";
    }
}

static bool take_modifiers(struct video *v, const struct ptx_instruction *in) {
    static const char *const COMPARISONS[] = {"eq", "ne", "lt", "le", "gt", "ge", NULL};
    static const char *const SECONDARY[] = {"add", "min", "max", NULL};
    uint32_t index = 0;
    v->secondary = decode_choice(in, SECONDARY, &index) ? (enum secondary)(index + 1) : NONE;
    v->saturate = ptx_has(in, "sat");
    v->wrap = ptx_has(in, "wrap");
    v->plus_one = ptx_has(in, "po");
    v->shift = ptx_has(in, "shr7") ? 7 : ptx_has(in, "shr15") ? 15 : 0;
    const bool set = v->operation == VSET, shift = v->operation == VSHL || v->operation == VSHR;
    const enum ptx_type d = set ? PTX_U32 : ptx_modifier_type(in, 0);
    const enum ptx_type a = ptx_modifier_type(in, set ? 0 : 1);
    const enum ptx_type b = ptx_modifier_type(in, set ? 1 : 2);
    v->d_signed = d == PTX_S32;
    v->a_signed = a == PTX_S32;
    v->b_signed = b == PTX_S32;
    return (d == PTX_U32 || d == PTX_S32) && (a == PTX_U32 || a == PTX_S32) &&
           (b == PTX_U32 || (b == PTX_S32 && !shift)) &&
           (!set || decode_choice(in, COMPARISONS, &v->compare)) &&
           (!shift || v->wrap != ptx_has(in, "clamp")) &&
           (v->parts == 1 || !v->saturate || v->secondary == NONE);
}

/* .b2, .h1 or the whole. */
static bool take_scalar(const struct ptx_operand *operand, uint32_t *bits, uint32_t *index) {
    const int64_t given = operand->kind == PTX_OPERAND_REGISTER ? operand->value : 0;
    *bits = given == 0 ? WORD : (given & PTX_PART_HALVES) != 0 ? WORD / 2 : WORD / 4;
    *index = (uint32_t)(given & 7);
    return given == 0 || ((given >> PTX_PART_COUNT & 7) == 1 && (*index + 1) * *bits <= WORD);
}

/* .h32 or .b7654: the element of {b, a} that each element takes. */
static bool take_elements(const struct video *v, const struct ptx_operand *operand, uint32_t first,
                          uint32_t elements[MOST_PARTS]) {
    const int64_t given = operand->kind == PTX_OPERAND_REGISTER ? operand->value : 0;
    bool good = given == 0 || ((given & PTX_PART_HALVES) != 0) == (v->parts == 2);
    good = good && (given == 0 || (given >> PTX_PART_COUNT & 7) == v->parts);
    for (uint32_t i = 0; i < v->parts; i++) {
        elements[i] = given == 0 ? first + i : (uint32_t)(given >> (PTX_PART_BITS * i) & 7);
        good = good && elements[i] < 2 * v->parts;
    }
    return good;
}

/* .h10 or .b3210 of the result: falling digits. */
static bool take_mask(struct video *v, const struct ptx_operand *operand) {
    const int64_t given = operand->kind == PTX_OPERAND_REGISTER ? operand->value : 0;
    const uint32_t count = (uint32_t)(given >> PTX_PART_COUNT & 7);
    uint32_t above = 0; /* one more than the last digit */
    for (uint32_t i = 0; i < v->parts; i++) {
        v->computed[i] = given == 0;
    }
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t digit = (uint32_t)(given >> (PTX_PART_BITS * i) & 7);
        if (digit < above || digit >= v->parts) {
            return false;
        }
        v->computed[digit] = true;
        above = digit + 1;
    }
    return given == 0 || ((given & PTX_PART_HALVES) != 0) == (v->parts == 2);
}

static bool take_parts(struct video *v, const struct ptx_instruction *in) {
    const struct ptx_operand *operands = in->operands;
    if (v->parts > 1) {
        return in->operand_count == 4 && take_mask(v, &operands[0]) &&
               take_elements(v, &operands[1], 0, v->a) &&
               take_elements(v, &operands[2], v->parts, v->b);
    }
    const bool needs_c = v->operation == VMAD || v->secondary != NONE;
    if (in->operand_count < 3 || !take_scalar(&operands[0], &v->d_bits, &v->d_part) ||
        !take_scalar(&operands[1], &v->a_bits, &v->a[0]) ||
        !take_scalar(&operands[2], &v->b_bits, &v->b[0])) {
        return false;
    }
    const bool merges = v->d_bits < WORD;
    return in->operand_count == (needs_c || merges ? 4 : 3) && !(needs_c && merges);
}

bool decode_video(struct decoder *decoder, const struct ptx_instruction *in, struct op *op) {
    struct video *v = decode_alloc(decoder, sizeof *v);
    if (v == NULL || !take_operation(v, in->opcode) || !only_modifiers(in, modifiers_of(v)) ||
        !take_modifiers(v, in) || !take_parts(v, in)) {
        return v != NULL && form_unknown(decoder, in);
    }
    op->run = v->parts > 1 ? video_parallel : video_scalar;
    op->extra = v;
    return form_operands(decoder, in, op, in->operand_count == 4 ? "iiii" : "iii", PTX_U32);
}
