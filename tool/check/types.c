/* SPDX-License-Identifier: Apache-2.0
 *
 * types.c - see check.h.
 */
#include "check/check.h"

#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "attn_verify.h"
#include "base/message.h"

static const struct element TYPES[] = {
    {"f32", ELEMENT_FLOAT, 4, NPY_FLOAT32, 7},   {"f16", ELEMENT_FLOAT, 2, NPY_FLOAT16, 6},
    {"bf16", ELEMENT_FLOAT, 2, NPY_UINT16, 9},   {"f64", ELEMENT_FLOAT, 8, NPY_FLOAT64, 8},
    {"i8", ELEMENT_SIGNED, 1, NPY_INT8, -1},     {"i16", ELEMENT_SIGNED, 2, NPY_INT16, -1},
    {"i32", ELEMENT_SIGNED, 4, NPY_INT32, 3},    {"i64", ELEMENT_SIGNED, 8, NPY_INT64, 5},
    {"u8", ELEMENT_UNSIGNED, 1, NPY_UINT8, 0},   {"u16", ELEMENT_UNSIGNED, 2, NPY_UINT16, 1},
    {"u32", ELEMENT_UNSIGNED, 4, NPY_UINT32, 2}, {"u64", ELEMENT_UNSIGNED, 8, NPY_UINT64, 4},
};
enum { TYPE_COUNT = sizeof TYPES / sizeof *TYPES };

const struct element *element_named(const char *text, size_t length) {
    for (int i = 0; i < TYPE_COUNT; i++) {
        if (strlen(TYPES[i].name) == length && strncmp(TYPES[i].name, text, length) == 0) {
            return &TYPES[i];
        }
    }
    return NULL;
}

const struct element *element_of_npy(enum npy_type type, const struct element *wanted) {
    if (wanted->npy == type) {
        return wanted;
    }
    for (int i = 0; i < TYPE_COUNT; i++) {
        if (TYPES[i].npy == type && strcmp(TYPES[i].name, "bf16") != 0) {
            return &TYPES[i];
        }
    }
    return NULL;
}

const char *element_names(void) {
    return "f32, f16, bf16, f64, i8, i16, i32, i64, u8, u16, u32, u64";
}

/* ---- numbers --------------------------------------------------------------------------------- */

static attn_dtype half_of(const struct element *type) {
    return type->name[0] == 'b' ? ATTN_BF16 : ATTN_FP16;
}

static void store_bits(const struct element *type, void *to, uint64_t bits) {
    memcpy(to, &bits, type->bytes); /* little-endian, like the GPU */
}

void element_store(const struct element *type, void *to, long double value) {
    if (type->kind != ELEMENT_FLOAT) {
        store_bits(type, to, value < 0 ? (uint64_t)(int64_t)value : (uint64_t)value);
    } else if (type->bytes == 2) {
        const float single = (float)value;
        attn_from_float(half_of(type), to, &single, 1);
    } else if (type->bytes == 4) {
        const float single = (float)value;
        memcpy(to, &single, sizeof single);
    } else {
        const double wide = (double)value;
        memcpy(to, &wide, sizeof wide);
    }
}

long double element_value(const struct element *type, const void *from) {
    uint64_t bits = 0;
    memcpy(&bits, from, type->bytes);
    if (type->kind == ELEMENT_UNSIGNED) {
        return (long double)bits;
    }
    if (type->kind == ELEMENT_SIGNED) {
        const int unused = 64 - 8 * (int)type->bytes;
        return (long double)((int64_t)(bits << unused) >> unused);
    }
    if (type->bytes == 2) {
        float single;
        attn_to_float(half_of(type), &single, from, 1);
        return (long double)single;
    }
    if (type->bytes == 4) {
        float single;
        memcpy(&single, from, sizeof single);
        return (long double)single;
    }
    double wide;
    memcpy(&wide, from, sizeof wide);
    return (long double)wide;
}

/* ---- the command line ------------------------------------------------------------------------ */

static bool parse_float(const struct element *type, const char *text, void *to, attn_error *why) {
    char *end;
    const long double value = strtold(text, &end);
    if (*text <= ' ' || end == text || *end != '\0') {
        return explain(why, "'%s' is not a number", text);
    }
    element_store(type, to, value);
    if (isfinite(value) && !isfinite(element_value(type, to))) {
        return explain(why, "%s is out of the range of %s", text, type->name);
    }
    return true;
}

static bool parse_whole(const struct element *type, const char *text, void *to, attn_error *why) {
    const bool negative = *text == '-';
    const char *digits = text + (negative || *text == '+');
    const int base = digits[0] == '0' && (digits[1] == 'x' || digits[1] == 'X') ? 16 : 10;
    char *end;
    errno = 0;
    const uint64_t magnitude = strtoull(digits, &end, base);
    if (*digits < '0' || *digits > '9' || *end != '\0') {
        return explain(why, "'%s' is not a whole number", text);
    }
    const int bits = 8 * (int)type->bytes;
    const uint64_t most = type->kind == ELEMENT_SIGNED
                              ? (UINT64_C(1) << (bits - 1)) - (negative ? 0 : 1)
                          : negative ? 0
                                     : UINT64_MAX >> (64 - bits);
    if (errno != 0 || magnitude > most) {
        return explain(why, "%s is out of the range of %s", text, type->name);
    }
    store_bits(type, to, negative ? 0 - magnitude : magnitude);
    return true;
}

bool element_parse(const struct element *type, const char *text, void *to, attn_error *why) {
    return type->kind == ELEMENT_FLOAT ? parse_float(type, text, to, why)
                                       : parse_whole(type, text, to, why);
}
