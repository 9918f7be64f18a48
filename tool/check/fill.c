/* SPDX-License-Identifier: Apache-2.0
 *
 * fill.c - see check.h: memory contents before a launch, and module variables.
 */
#include "check/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/message.h"
#include "base/random.h"

/* ---- fills ----------------------------------------------------------------------------------- */

static bool take_seed(struct content *content, const char *text, attn_error *why) {
    struct cursor c = {text};
    return take_number(&c, "seed", &content->seed, why) &&
           (*c.at == '\0' || explain(why, "seed '%s', expected a whole number", text));
}

/* "LOW..HIGH[:SEED]" */
static bool take_range(struct content *content, const char *text, const char *dots,
                       attn_error *why) {
    char low[64], high[64], bits[8];
    const char *colon = strchr(dots, ':');
    const size_t length = colon != NULL ? (size_t)(colon - dots) - 2 : strlen(dots + 2);
    content->kind = FILL_RANGE;
    if ((size_t)(dots - text) >= sizeof low || length >= sizeof high) {
        return explain(why, "range '%s', expected LOW..HIGH", text);
    }
    snprintf(low, sizeof low, "%.*s", (int)(dots - text), text);
    snprintf(high, sizeof high, "%.*s", (int)length, dots + 2);
    if (!element_parse(content->type, low, bits, why)) {
        return false;
    }
    content->low = element_value(content->type, bits);
    if (!element_parse(content->type, high, bits, why)) {
        return false;
    }
    content->high = element_value(content->type, bits);
    if (!(content->low <= content->high) || isinf(content->high - content->low)) {
        return explain(why, "range %s..%s, expected two numbers, the smaller one first", low, high);
    }
    return colon == NULL || take_seed(content, colon + 1, why);
}

static bool parse_fill(struct content *content, const char *text, attn_error *why) {
    static const char *const names[] = {"zero", "iota", "uninit"};
    content->seed = 1;
    for (int i = 0; i < 3; i++) {
        if (strcmp(text, names[i]) == 0) {
            content->kind = (enum fill_kind)i;
            return true;
        }
    }
    if (strncmp(text, "const:", 6) == 0) {
        char bits[8];
        content->kind = FILL_CONST;
        const bool good = element_parse(content->type, text + 6, bits, why);
        content->low = good ? element_value(content->type, bits) : 0;
        return good;
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

/* From 0 up to, but not including, 1. */
static long double random_unit(uint64_t *state) {
    return (long double)(rng_next(state) >> 11) * 0x1p-53L;
}

/* Whole numbers: small enough to be summed up in any type. */
static long double random_element(const struct content *content, uint64_t *state) {
    const bool whole = content->type->kind != ELEMENT_FLOAT;
    if (content->kind == FILL_RANGE && !whole) {
        return content->low + (content->high - content->low) * random_unit(state);
    }
    if (content->kind == FILL_RANGE) {
        const long double count = content->high - content->low + 1;
        const long double at = floorl(count * random_unit(state));
        return content->low + (at < count ? at : count - 1);
    }
    return whole ? (long double)rng_range(state, content->type->kind == ELEMENT_SIGNED ? -100 : 0,
                                          100)
                 : (long double)rng_normal(state);
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

bool check_symbol_parse(struct check_symbol *symbol, const vgpu_module *module, const char *text,
                        attn_error *why) {
    const char *equals = strchr(text, '='), *type;
    vgpu_error fault;
    size_t bytes;
    *symbol = (struct check_symbol){0};
    if (equals == NULL || equals == text) {
        return explain(why, "'%s', expected NAME=FILL or NAME=TYPE:FILL", text);
    }
    symbol->name = must(strndup(text, (size_t)(equals - text)));
    if (vgpu_symbol(module, symbol->name, &symbol->memory, &bytes, &type, &fault) != VGPU_OK) {
        return explain(why, "%.300s", fault.text);
    }
    struct cursor c = {equals + 1};
    const struct element *named = element_named(c.at, field_length(&c));
    if (named != NULL && c.at[field_length(&c)] == ':') {
        c.at += field_length(&c) + 1;
        symbol->content.type = named;
    } else {
        symbol->content.type = element_of_ptx(type);
    }
    if (symbol->content.type == NULL) {
        return explain(why, "PTX says only that %s has %zu bytes, expected NAME=TYPE:FILL",
                       symbol->name, bytes);
    }
    symbol->content.count = bytes / symbol->content.type->bytes;
    if (symbol->content.count * symbol->content.type->bytes != bytes || bytes == 0) {
        return explain(why, "%s has %zu bytes, which is no number of %s", symbol->name, bytes,
                       symbol->content.type->name);
    }
    content_shape(&symbol->content, (const int64_t[]){(int64_t)symbol->content.count}, 1);
    return content_fill(&symbol->content, c.at, why);
}

bool check_symbol_place(const struct check_symbol *symbol, vgpu *gpu, attn_error *why) {
    vgpu_error fault;
    return symbol->content.initial == NULL ||
           vgpu_write(gpu, symbol->memory, symbol->content.initial,
                      symbol->content.count * symbol->content.type->bytes, &fault) == VGPU_OK ||
           explain(why, "%.300s", fault.text);
}

void check_symbol_free(struct check_symbol *symbol) {
    free(symbol->name);
    content_free(&symbol->content);
    *symbol = (struct check_symbol){0};
}
