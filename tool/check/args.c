/* SPDX-License-Identifier: Apache-2.0
 *
 * args.c - see check.h.
 */
#include "check/check.h"

#include <errno.h>
#include <stdalign.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/message.h"
#include "cases/cases.h"

static const uint64_t BYTES_MOST = UINT64_C(4) << 30; /* what the virtual GPU has */

/* ---- fields ---------------------------------------------------------------------------------- */

/* What is left of an argument's text. */
struct cursor {
    const char *at;
};

static size_t field_length(const struct cursor *c) {
    return strcspn(c->at, ":");
}

static bool take_colon(struct cursor *c, const char *before, attn_error *why) {
    if (*c->at != ':') {
        return explain(why, "it ends after its %s, expected a colon and more", before);
    }
    c->at++;
    return true;
}

static bool take_type(struct cursor *c, const struct element **type, attn_error *why) {
    const size_t length = field_length(c);
    *type = element_named(c->at, length);
    if (*type == NULL) {
        return explain(why, "type '%.*s', expected one of %s", (int)length, c->at, element_names());
    }
    c->at += length;
    return true;
}

static bool take_number(struct cursor *c, const char *what, uint64_t *number, attn_error *why) {
    char *end;
    errno = 0;
    const bool digit = *c->at >= '0' && *c->at <= '9';
    *number = digit ? strtoull(c->at, &end, 10) : 0;
    if (!digit || errno != 0) {
        return explain(why, "%s '%.*s', expected a whole number", what, (int)field_length(c),
                       c->at);
    }
    c->at = end;
    return true;
}

/* "64x128x2": up to `most` numbers. */
static bool take_numbers(struct cursor *c, const char *what, uint64_t *numbers, uint32_t most,
                         uint32_t *count, attn_error *why) {
    *count = 0;
    if (*c->at == ':') {
        return true;
    }
    do {
        c->at += *count > 0; /* the x */
        if (*count == most) {
            return explain(why, "%s has more than %u numbers", what, most);
        }
        if (!take_number(c, what, &numbers[*count], why)) {
            return false;
        }
        ++*count;
    } while (*c->at == 'x');
    return *c->at == ':' || explain(why, "%s ends with '%.*s', expected numbers like 64x128", what,
                                    (int)field_length(c), c->at);
}

/* ---- what a buffer holds --------------------------------------------------------------------- */

static bool parse_fill(struct check_arg *arg, const char *text, attn_error *why) {
    static const char *const names[] = {"zero", "iota", "uninit", "rand"};
    struct cursor c = {text};
    for (int i = 0; i < 4; i++) {
        if (strcmp(text, names[i]) == 0) {
            arg->fill = (enum check_fill)i;
            arg->seed = 1;
            return true;
        }
    }
    if (strncmp(text, "rand:", 5) == 0) {
        c.at += 5;
        arg->fill = FILL_RAND;
        return take_number(&c, "seed", &arg->seed, why) &&
               (*c.at == '\0' || explain(why, "seed '%s', expected a whole number", text + 5));
    }
    arg->fill = FILL_FILE;
    return (text[0] == '@' && text[1] != '\0') ||
           explain(why, "fill '%s', expected zero, iota, uninit, rand[:SEED] or @file.npy", text);
}

static void keep_shape(struct check_arg *arg, const int64_t *shape, int dims) {
    arg->dims = dims;
    memcpy(arg->shape, shape, (size_t)dims * sizeof *shape);
}

static bool load_file(struct check_arg *arg, const char *path, attn_error *why) {
    struct npy array;
    attn_error fault;
    if (!npy_load(path, NPY_NUMBERS, &array, &fault)) {
        return explain(why, "%s: %s", path, fault.text);
    }
    if (array.type != arg->type->npy) {
        explain(why, "%s: holds %s, expected %s for %s", path, npy_type_name(array.type),
                npy_type_name(arg->type->npy), arg->type->name);
    } else if (array.bytes != arg->count * arg->type->bytes) {
        explain(why, "%s: holds %zu elements, expected %zu", path, array.bytes / arg->type->bytes,
                arg->count);
    } else {
        keep_shape(arg, array.shape, array.dims);
        arg->initial = array.data;
        return true;
    }
    npy_free(&array);
    return false;
}

/* Small enough to be summed up in any type. */
static long double random_element(const struct element *type, uint64_t *state) {
    switch (type->kind) {
    case ELEMENT_SIGNED: return (long double)rng_range(state, -100, 100);
    case ELEMENT_UNSIGNED: return (long double)rng_range(state, 0, 100);
    default: return (long double)rng_normal(state);
    }
}

/* text: the fill, of which the file's name is needed. */
static bool make_initial(struct check_arg *arg, const char *text, attn_error *why) {
    if (arg->fill == FILL_UNINIT) {
        return true;
    }
    if (arg->fill == FILL_FILE) {
        return load_file(arg, text + 1, why);
    }
    const size_t bytes = arg->type->bytes;
    unsigned char *made = calloc(arg->count > 0 ? arg->count : 1, bytes > 0 ? bytes : 1);
    if (made == NULL) {
        return explain(why, "no memory for %zu elements of %zu bytes", arg->count, bytes);
    }
    uint64_t state = arg->seed;
    for (size_t i = 0; arg->fill != FILL_ZERO && i < arg->count; i++) {
        element_store(arg->type, made + i * bytes,
                      arg->fill == FILL_IOTA ? (long double)i : random_element(arg->type, &state));
    }
    arg->initial = made;
    return true;
}

static bool check_bytes(const struct check_arg *arg, attn_error *why) {
    if (arg->count == 0 || arg->count > BYTES_MOST / arg->type->bytes) {
        return explain(why, "%zu elements of %s, expected 1 or more in at most 4 GiB", arg->count,
                       arg->type->name);
    }
    return true;
}

/* ---- buffers and tensor maps ----------------------------------------------------------------- */

static bool parse_buffer(struct check_arg *arg, struct cursor *c, attn_error *why) {
    uint64_t count = 0;
    arg->kind = CHECK_BUFFER;
    arg->value_bytes = sizeof arg->memory;
    if (!take_type(c, &arg->type, why) || !take_colon(c, "type", why) ||
        !take_number(c, "count", &count, why) || !take_colon(c, "count", why) ||
        !parse_fill(arg, c->at, why)) {
        return false;
    }
    arg->count = (size_t)count;
    keep_shape(arg, (const int64_t[]){(int64_t)count}, 1);
    return check_bytes(arg, why) && make_initial(arg, c->at, why);
}

static bool parse_swizzle(struct check_arg *arg, struct cursor *c, attn_error *why) {
    static const char *const names[] = {"none", "32", "64", "128"};
    const size_t length = field_length(c);
    for (arg->swizzle = 0; arg->swizzle < 4; arg->swizzle++) {
        const char *name = names[arg->swizzle];
        if (strlen(name) == length && strncmp(name, c->at, length) == 0) {
            c->at += length;
            return true;
        }
    }
    return explain(why, "swizzle '%.*s', expected none, 32, 64 or 128", (int)length, c->at);
}

/* As many elements as the longest stride times its dim: padding lies in the buffer. */
static bool count_tensor(struct check_arg *arg, attn_error *why) {
    uint64_t most = 0;
    bool dense = true;
    for (uint32_t i = 0; i < arg->rank; i++) {
        const uint64_t stride = i == 0 ? arg->type->bytes : arg->strides[i - 1];
        uint64_t bytes;
        if (__builtin_mul_overflow(arg->size[i], stride, &bytes) || bytes > BYTES_MOST) {
            return explain(why, "dim %u of %llu with stride %llu is more than 4 GiB", i,
                           (unsigned long long)arg->size[i], (unsigned long long)stride);
        }
        dense = dense && (i == 0 || stride == most);
        most = bytes > most ? bytes : most;
    }
    arg->count = (size_t)(most / arg->type->bytes);
    keep_shape(arg, (const int64_t[]){(int64_t)arg->count}, 1);
    if (dense) {
        arg->dims = (int)arg->rank;
        for (uint32_t i = 0; i < arg->rank; i++) {
            arg->shape[arg->rank - 1 - i] = (int64_t)arg->size[i];
        }
    }
    return check_bytes(arg, why);
}

static bool parse_tensor(struct check_arg *arg, struct cursor *c, attn_error *why) {
    uint64_t box[CHECK_RANK] = {0};
    uint32_t strides = 0, boxes = 0;
    arg->kind = CHECK_TENSOR;
    arg->value_bytes = CHECK_MAP_BYTES;
    if (!take_type(c, &arg->type, why) || !take_colon(c, "type", why) ||
        !take_numbers(c, "dims", arg->size, CHECK_RANK, &arg->rank, why) ||
        !take_colon(c, "dims", why) ||
        !take_numbers(c, "strides", arg->strides, CHECK_RANK, &strides, why) ||
        !take_colon(c, "strides", why) || !take_numbers(c, "box", box, CHECK_RANK, &boxes, why) ||
        !take_colon(c, "box", why) || !parse_swizzle(arg, c, why) ||
        !take_colon(c, "swizzle", why) || !parse_fill(arg, c->at, why)) {
        return false;
    }
    if (arg->type->tensor < 0) {
        return explain(why, "tensor maps have no type %s, expected u8 or u16 for its bits",
                       arg->type->name);
    }
    if (arg->rank == 0 || strides != arg->rank - 1 || boxes != arg->rank) {
        return explain(why,
                       "%u dims, %u strides and a box of %u, expected as many boxes as dims and "
                       "one stride less",
                       arg->rank, strides, boxes);
    }
    for (uint32_t i = 0; i < arg->rank; i++) {
        if (box[i] > UINT32_MAX) {
            return explain(why, "box %u of %llu is too large", i, (unsigned long long)box[i]);
        }
        arg->box[i] = (uint32_t)box[i];
    }
    return count_tensor(arg, why) && make_initial(arg, c->at, why);
}

bool check_arg_parse(struct check_arg *arg, size_t index, const char *text, attn_error *why) {
    struct cursor c = {text};
    *arg = (struct check_arg){.kind = CHECK_SCALAR};
    snprintf(arg->label, sizeof arg->label, "argument %zu", index);
    if (strncmp(text, "buf:", 4) == 0) {
        c.at += 4;
        return parse_buffer(arg, &c, why);
    }
    if (strncmp(text, "tmap:", 5) == 0) {
        c.at += 5;
        return parse_tensor(arg, &c, why);
    }
    arg->type = element_named(text, field_length(&c));
    if (arg->type == NULL) {
        return explain(why, "'%.*s', expected buf, tmap or one of %s", (int)field_length(&c), text,
                       element_names());
    }
    c.at += field_length(&c);
    arg->value_bytes = arg->type->bytes;
    return take_colon(&c, "type", why) && element_parse(arg->type, c.at, arg->value, why);
}

void check_arg_free(struct check_arg *arg) {
    free(arg->initial);
    *arg = (struct check_arg){.kind = CHECK_SCALAR};
}

const char *check_arg_text(const struct check_arg *arg, char *text, size_t size) {
    if (arg->kind == CHECK_SCALAR) {
        snprintf(text, size, "%s of %zu bytes", arg->type->name, arg->value_bytes);
    } else {
        snprintf(text, size, "%s of %zu bytes",
                 arg->kind == CHECK_BUFFER ? "pointer to a buffer" : "tensor map",
                 arg->value_bytes);
    }
    return text;
}

/* ---- around a launch ------------------------------------------------------------------------- */

static bool make_map(struct check_arg *arg, vgpu *gpu, attn_error *why) {
    static const uint32_t element_strides[CHECK_RANK] = {1, 1, 1, 1, 1};
    alignas(64) unsigned char map[CHECK_MAP_BYTES];
    vgpu_error fault;
    if (vgpu_tensor_map(gpu, map, arg->type->tensor, arg->rank, arg->memory, arg->size,
                        arg->strides, arg->box, element_strides, 0, arg->swizzle, 0, 0,
                        &fault) != VGPU_OK) {
        return explain(why, "%.300s", fault.text);
    }
    memcpy(arg->value, map, sizeof map);
    return true;
}

bool check_arg_place(struct check_arg *arg, vgpu *gpu, attn_error *why) {
    if (arg->kind == CHECK_SCALAR) {
        return true;
    }
    const size_t bytes = arg->count * arg->type->bytes;
    vgpu_error fault;
    if (vgpu_malloc(gpu, bytes, arg->label, &arg->memory, &fault) != VGPU_OK ||
        (arg->initial != NULL &&
         vgpu_write(gpu, arg->memory, arg->initial, bytes, &fault) != VGPU_OK)) {
        return explain(why, "%.300s", fault.text);
    }
    if (arg->kind == CHECK_TENSOR) {
        return make_map(arg, gpu, why);
    }
    memcpy(arg->value, &arg->memory, sizeof arg->memory);
    return true;
}

void check_arg_release(struct check_arg *arg, vgpu *gpu) {
    vgpu_free(gpu, arg->memory, NULL);
    arg->memory = 0;
}

bool check_arg_read(const struct check_arg *arg, vgpu *gpu, void *to, attn_error *why) {
    vgpu_error fault;
    return vgpu_read(gpu, to, arg->memory, arg->count * arg->type->bytes, &fault) == VGPU_OK ||
           explain(why, "%.300s", fault.text);
}
