/* SPDX-License-Identifier: Apache-2.0
 *
 * fill.c - see check.h: element types, memory contents before a launch, and module variables.
 */
#include "check/check.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn_verify.h"
#include "base/message.h"
#include "base/random.h"

/* ---- element types --------------------------------------------------------------------------- */

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

/* Of a float of 2 or 4 bytes. */
static attn_dtype dtype_of(const struct element *type) {
    return type->bytes == 4 ? ATTN_FP32 : type->name[0] == 'b' ? ATTN_BF16 : ATTN_FP16;
}

static void store_bits(const struct element *type, void *to, uint64_t bits) {
    memcpy(to, &bits, type->bytes); /* little-endian, like the GPU */
}

/* Rounds to nearest even; integers are taken modulo 2^bits, and must be in the range of int64 or
 * uint64. */
static void element_store(const struct element *type, void *to, long double value) {
    const float single = (float)value;
    const double wide = (double)value;
    if (type->kind != ELEMENT_FLOAT) {
        store_bits(type, to, value < 0 ? (uint64_t)(int64_t)value : (uint64_t)value);
    } else if (type->bytes == sizeof wide) {
        memcpy(to, &wide, sizeof wide);
    } else {
        attn_from_float(dtype_of(type), to, &single, 1);
    }
}

long double element_value(const struct element *type, const void *from) {
    uint64_t bits = 0;
    double wide;
    float single;
    memcpy(&bits, from, type->bytes);
    if (type->kind == ELEMENT_UNSIGNED) {
        return (long double)bits;
    }
    if (type->kind == ELEMENT_SIGNED) {
        const int unused = 64 - 8 * (int)type->bytes;
        return (long double)((int64_t)(bits << unused) >> unused);
    }
    if (type->bytes == sizeof wide) {
        memcpy(&wide, from, sizeof wide);
        return (long double)wide;
    }
    attn_to_float(dtype_of(type), &single, from, 1);
    return (long double)single;
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

/* ---- fills ----------------------------------------------------------------------------------- */

static bool take_seed(struct content *content, const char *text, attn_error *why) {
    const char *at = text;
    return take_number(&at, "seed", &content->seed, why) &&
           (*at == '\0' || explain(why, "seed '%s', expected a whole number", text));
}

static bool take_value(const struct content *content, const char *text, long double *value,
                       attn_error *why) {
    char bits[8];
    const bool good = element_parse(content->type, text, bits, why);
    *value = good ? element_value(content->type, bits) : 0;
    return good;
}

/* "LOW..HIGH[:SEED]" */
static bool take_range(struct content *content, const char *text, const char *dots,
                       attn_error *why) {
    char low[64], high[64];
    const char *colon = strchr(dots, ':');
    const size_t length = colon != NULL ? (size_t)(colon - dots) - 2 : strlen(dots + 2);
    content->kind = FILL_RANGE;
    if ((size_t)(dots - text) >= sizeof low || length >= sizeof high) {
        return explain(why, "range '%s', expected LOW..HIGH", text);
    }
    snprintf(low, sizeof low, "%.*s", (int)(dots - text), text);
    snprintf(high, sizeof high, "%.*s", (int)length, dots + 2);
    if (!take_value(content, low, &content->low, why) ||
        !take_value(content, high, &content->high, why)) {
        return false;
    }
    if (!(content->low <= content->high) || isinf(content->high - content->low)) {
        return explain(why, "range %s..%s, expected two numbers, the smaller one first", low, high);
    }
    return colon == NULL || take_seed(content, colon + 1, why);
}

static bool parse_fill(struct content *content, const char *text, attn_error *why) {
    static const char *const NAMES[] = {"zero", "iota", "uninit", NULL};
    const int plain = choice_of(NAMES, text);
    content->seed = 1;
    if (plain >= 0) {
        content->kind = (enum fill_kind)plain;
        return true;
    }
    if (strncmp(text, "const:", 6) == 0) {
        content->kind = FILL_CONST;
        return take_value(content, text + 6, &content->low, why);
    }
    if (strncmp(text, "rand", 4) == 0 && (text[4] == ':' || text[4] == '\0')) {
        const char *dots = strstr(text, "..");
        content->kind = FILL_RAND;
        return text[4] == '\0' || (dots != NULL ? take_range(content, text + 5, dots, why)
                                                : take_seed(content, text + 5, why));
    }
    content->kind = FILL_FILE;
    return (text[0] == '@' && text[1] != '\0') ||
           explain(why,
                   "fill '%s', expected zero, iota, uninit, const:VALUE, rand[:SEED], "
                   "rand:LOW..HIGH or @file.npy",
                   text);
}

void content_shape(struct content *content, const int64_t *shape, int dims) {
    content->dims = dims;
    memcpy(content->shape, shape, (size_t)dims * sizeof *shape);
}

static bool load_file(struct content *content, const char *path, attn_error *why) {
    struct npy array;
    attn_error fault;
    if (!npy_load(path, NPY_NUMBERS, &array, &fault)) {
        return explain(why, "%s: %s", path, fault.text);
    }
    if (array.type != content->type->npy) {
        explain(why, "%s: holds %s, expected %s for %s", path, npy_type_name(array.type),
                npy_type_name(content->type->npy), content->type->name);
    } else if (array.bytes != content->count * content->type->bytes) {
        explain(why, "%s: holds %zu elements, expected %zu", path,
                array.bytes / content->type->bytes, content->count);
    } else {
        content_shape(content, array.shape, array.dims);
        content->initial = array.data;
        return true;
    }
    npy_free(&array);
    return false;
}

/* Whole numbers: small enough to be summed up in any type. */
static long double random_element(const struct content *content, uint64_t *state) {
    const enum element_kind kind = content->type->kind;
    if (content->kind == FILL_RAND) {
        return kind == ELEMENT_FLOAT
                   ? (long double)rng_normal(state)
                   : (long double)rng_range(state, kind == ELEMENT_SIGNED ? -100 : 0, 100);
    }
    const long double unit = (long double)(rng_next(state) >> 11) * 0x1p-53L; /* below 1 */
    const long double span = content->high - content->low;
    const long double at = kind == ELEMENT_FLOAT ? span * unit : floorl((span + 1) * unit);
    return content->low + (at < span ? at : span);
}

static long double element_at(const struct content *content, size_t i, uint64_t *state) {
    switch (content->kind) {
    case FILL_IOTA: return (long double)i;
    case FILL_CONST: return content->low;
    default: return random_element(content, state);
    }
}

bool content_fill(struct content *content, const char *text, attn_error *why) {
    if (!parse_fill(content, text, why) || content->kind == FILL_UNINIT) {
        return content->kind == FILL_UNINIT;
    }
    if (content->kind == FILL_FILE) {
        return load_file(content, text + 1, why);
    }
    const size_t bytes = content->type->bytes;
    unsigned char *made = calloc(content->count, bytes);
    if (made == NULL) {
        return explain(why, "no memory for %zu elements of %zu bytes", content->count, bytes);
    }
    uint64_t state = content->seed;
    for (size_t i = 0; content->kind != FILL_ZERO && i < content->count; i++) {
        element_store(content->type, made + i * bytes, element_at(content, i, &state));
    }
    content->initial = made;
    return true;
}

void content_free(struct content *content) {
    free(content->initial);
    content->initial = NULL;
}

/* ---- variables of the module ----------------------------------------------------------------- */

/* What PTX says of an element, where it says more than its bytes. */
static const struct element *element_of_ptx(const char *type) {
    const char first = type[0] == 's' ? 'i' : type[0] == 'b' ? '?' : type[0];
    char name[8];
    snprintf(name, sizeof name, "%c%s", first, type + 1);
    return element_named(name, strlen(name));
}

static bool parse_symbol(struct content *content, const char *name, size_t bytes, const char *type,
                         const char *text, attn_error *why) {
    const size_t length = strcspn(text, ":");
    content->type = element_named(text, length);
    if (content->type != NULL && text[length] == ':') {
        text += length + 1;
    } else {
        content->type = element_of_ptx(type);
    }
    if (content->type == NULL) {
        return explain(why, "PTX says only that %s has %zu bytes, expected NAME=TYPE:FILL", name,
                       bytes);
    }
    content->count = bytes / content->type->bytes;
    if (content->count * content->type->bytes != bytes || bytes == 0) {
        return explain(why, "%s has %zu bytes, which is no number of %s", name, bytes,
                       content->type->name);
    }
    content_shape(content, (const int64_t[]){(int64_t)content->count}, 1);
    return content_fill(content, text, why);
}

bool check_symbol_place(const vgpu_module *module, vgpu *gpu, const char *text, attn_error *why) {
    const char *equals = strchr(text, '='), *type;
    struct content content = {.type = NULL};
    vgpu_pointer memory;
    vgpu_error fault;
    size_t bytes;
    if (equals == NULL || equals == text) {
        return explain(why, "'%s', expected NAME=FILL or NAME=TYPE:FILL", text);
    }
    char *name = must(strndup(text, (size_t)(equals - text)));
    bool good = vgpu_symbol(module, name, &memory, &bytes, &type, &fault) == VGPU_OK ||
                explain(why, "%.300s", fault.text);
    good = good && parse_symbol(&content, name, bytes, type, equals + 1, why);
    good = good && (content.initial == NULL ||
                    vgpu_write(gpu, memory, content.initial, bytes, &fault) == VGPU_OK ||
                    explain(why, "%.300s", fault.text));
    content_free(&content);
    free(name);
    return good;
}
