/* SPDX-License-Identifier: Apache-2.0
 *
 * args.c - see check.h.
 */
#include <errno.h>
#include <stdalign.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/message.h"
#include "check/check.h"

static const uint64_t BYTES_MOST = UINT64_C(4) << 30; /* what the virtual GPU has */
enum { STRUCT_PARTS = 64, POINTERS_MOST = 4096, DEPTH_MOST = 8, VALUE_MOST = 4096 };

/* ---- fields: each ends with a colon, but for the last ---------------------------------------- */

static int field_length(const char *at) {
    return (int)strcspn(at, ":");
}

static bool take_colon(const char **at, const char *before, attn_error *why) {
    if (**at != ':') {
        return explain(why, "it ends after its %s, expected a colon and more", before);
    }
    ++*at;
    return true;
}

static bool take_type(const char **at, const struct element **type, attn_error *why) {
    const int length = field_length(*at);
    *type = element_named(*at, (size_t)length);
    if (*type == NULL) {
        return explain(why, "type '%.*s', expected one of %s", length, *at, element_names());
    }
    *at += length;
    return take_colon(at, "type", why);
}

bool take_number(const char **at, const char *what, uint64_t *number, attn_error *why) {
    char *end;
    errno = 0;
    const bool digit = **at >= '0' && **at <= '9';
    *number = digit ? strtoull(*at, &end, 10) : 0;
    if (!digit || errno != 0) {
        return explain(why, "%s '%.*s', expected a whole number", what, field_length(*at), *at);
    }
    *at = end;
    return true;
}

/* "64x128x2": up to `most` numbers, or none. */
static bool take_numbers(const char **at, const char *what, uint64_t *numbers, uint32_t most,
                         uint32_t *count, attn_error *why) {
    *count = 0;
    while (**at != ':' && (*count == 0 || **at == 'x')) {
        *at += *count > 0; /* the x */
        if (*count == most) {
            return explain(why, "%s has more than %u numbers", what, most);
        }
        if (!take_number(at, what, &numbers[(*count)++], why)) {
            return false;
        }
    }
    if (**at != ':') {
        return explain(why, "%s ends with '%.*s', expected numbers like 64x128", what,
                       field_length(*at), *at);
    }
    ++*at;
    return true;
}

static bool check_bytes(const struct content *content, attn_error *why) {
    if (content->count == 0 || content->count > BYTES_MOST / content->type->bytes) {
        return explain(why, "%zu elements of %s, expected 1 or more in at most 4 GiB",
                       content->count, content->type->name);
    }
    return true;
}

/* ---- kinds ----------------------------------------------------------------------------------- */

static void make_value(struct check_arg *arg, size_t bytes, size_t align) {
    arg->value_bytes = bytes;
    arg->align = align;
    arg->value = must(calloc(bytes > 0 ? bytes : 1, 1));
}

static void make_pointer(struct check_arg *arg) {
    make_value(arg, sizeof arg->memory, sizeof arg->memory);
}

static bool parse_buffer(struct check_arg *arg, const char *at, int depth, attn_error *why) {
    uint64_t count = 0;
    (void)depth;
    make_pointer(arg);
    if (!take_type(&at, &arg->content.type, why) || !take_number(&at, "count", &count, why) ||
        !take_colon(&at, "count", why)) {
        return false;
    }
    arg->content.count = (size_t)count;
    content_shape(&arg->content, (const int64_t[]){(int64_t)count}, 1);
    return check_bytes(&arg->content, why) && content_fill(&arg->content, at, why);
}

/* ---- tensor maps ----------------------------------------------------------------------------- */

static bool take_swizzle(const char **at, int *swizzle, attn_error *why) {
    static const char *const NAMES[] = {"none", "32", "64", "128", NULL};
    char name[8];
    const int length = field_length(*at);
    snprintf(name, sizeof name, "%.*s", length, *at);
    *swizzle = choice_of(NAMES, name);
    if (*swizzle < 0) {
        return explain(why, "swizzle '%.*s', expected none, 32, 64 or 128", length, *at);
    }
    *at += length;
    return take_colon(at, "swizzle", why);
}

/* As many elements as the longest stride times its dim: padding lies in the buffer. */
static bool count_tensor(struct check_arg *arg, attn_error *why) {
    uint64_t most = 0;
    bool dense = true;
    for (uint32_t i = 0; i < arg->rank; i++) {
        const uint64_t stride = i == 0 ? arg->content.type->bytes : arg->strides[i - 1];
        uint64_t bytes;
        if (__builtin_mul_overflow(arg->size[i], stride, &bytes) || bytes > BYTES_MOST) {
            return explain(why, "dim %u of %llu with stride %llu is more than 4 GiB", i,
                           (unsigned long long)arg->size[i], (unsigned long long)stride);
        }
        dense = dense && (i == 0 || stride == most);
        most = bytes > most ? bytes : most;
    }
    arg->content.count = (size_t)(most / arg->content.type->bytes);
    content_shape(&arg->content, (const int64_t[]){(int64_t)arg->content.count}, 1);
    if (dense) {
        arg->content.dims = (int)arg->rank;
        for (uint32_t i = 0; i < arg->rank; i++) {
            arg->content.shape[arg->rank - 1 - i] = (int64_t)arg->size[i];
        }
    }
    return check_bytes(&arg->content, why);
}

static bool parse_tensor(struct check_arg *arg, const char *at, int depth, attn_error *why) {
    uint64_t box[CHECK_RANK] = {0};
    uint32_t strides = 0, boxes = 0;
    (void)depth;
    make_value(arg, CHECK_MAP_BYTES, 64);
    if (!take_type(&at, &arg->content.type, why) ||
        !take_numbers(&at, "dims", arg->size, CHECK_RANK, &arg->rank, why) ||
        !take_numbers(&at, "strides", arg->strides, CHECK_RANK, &strides, why) ||
        !take_numbers(&at, "box", box, CHECK_RANK, &boxes, why) ||
        !take_swizzle(&at, &arg->swizzle, why)) {
        return false;
    }
    if (arg->content.type->tensor < 0) {
        return explain(why, "tensor maps have no type %s, expected u8 or u16 for its bits",
                       arg->content.type->name);
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
    return count_tensor(arg, why) && content_fill(&arg->content, at, why);
}

/* The map, once the buffer is there. */
static bool make_map(const struct check_arg *arg, vgpu *gpu, attn_error *why) {
    static const uint32_t element_strides[CHECK_RANK] = {1, 1, 1, 1, 1};
    alignas(64) unsigned char map[CHECK_MAP_BYTES];
    vgpu_error fault;
    if (vgpu_tensor_map(gpu, map, arg->content.type->tensor, arg->rank, arg->memory, arg->size,
                        arg->strides, arg->box, element_strides, 0, arg->swizzle, 0, 0,
                        &fault) != VGPU_OK) {
        return explain(why, "%.300s", fault.text);
    }
    memcpy(arg->value, map, sizeof map);
    return true;
}

/* ---- other kinds ----------------------------------------------------------------------------- */

static bool parse_bytes(struct check_arg *arg, const char *at, int depth, attn_error *why) {
    (void)depth;
    const size_t length = strlen(at);
    if (length == 0 || length % 2 != 0 || length / 2 > VALUE_MOST ||
        strspn(at, "0123456789abcdefABCDEF") != length) {
        return explain(why, "bytes '%s', expected two hexadecimal digits for each", at);
    }
    make_value(arg, length / 2, 1);
    for (size_t i = 0; i < length / 2; i++) {
        const char two[3] = {at[2 * i], at[2 * i + 1], '\0'};
        arg->value[i] = (unsigned char)strtoul(two, NULL, 16);
    }
    return true;
}

static bool parse_scalar(struct check_arg *arg, const char *at, attn_error *why) {
    const int length = field_length(at);
    const struct element *type = arg->content.type = element_named(at, (size_t)length);
    if (type == NULL) {
        return explain(why,
                       "'%.*s', expected buf, tmap, struct, bytes, ptr, ptrs, numba or one of %s",
                       length, at, element_names());
    }
    at += length;
    make_value(arg, type->bytes, type->bytes);
    return take_colon(&at, "type", why) && element_parse(type, at, arg->value, why);
}

static bool parse_any(struct check_arg *arg, const char *label, const char *text, int depth,
                      attn_error *why);

static void make_parts(struct check_arg *arg, size_t count) {
    arg->parts = must(calloc(count, sizeof *arg->parts));
    arg->part_count = count;
}

static bool parse_part(struct check_arg *arg, size_t index, const char *text, int depth,
                       attn_error *why) {
    char label[sizeof arg->label];
    attn_error fault = {""};
    snprintf(label, sizeof label, "%.40s.%zu", arg->label, index);
    return parse_any(&arg->parts[index], label, text, depth + 1, &fault) ||
           explain(why, "%s: %.400s", label, fault.text);
}

/* The parts' values, as in a struct, or in the memory of a pointer; returns the bytes. */
static size_t gather(const struct check_arg *arg, unsigned char *to) {
    size_t at = 0;
    for (size_t i = 0; i < arg->part_count; i++) {
        const struct check_arg *part = &arg->parts[i];
        at = (at + part->align - 1) / part->align * part->align;
        if (to != NULL) {
            memcpy(to + at, part->value, part->value_bytes);
        }
        at += part->value_bytes;
    }
    return at;
}

/* Parts are between commas; each lies at a multiple of its alignment, as in C. */
static bool parse_struct(struct check_arg *arg, const char *at, int depth, attn_error *why) {
    size_t count = 1, align = 1;
    for (const char *c = at; *c != '\0'; c++) {
        count += *c == ',';
    }
    if (count > STRUCT_PARTS) {
        return explain(why, "a struct of %zu parts, expected at most %d", count, STRUCT_PARTS);
    }
    char *copy = must(strdup(at)), *rest = copy;
    bool good = true;
    make_parts(arg, count);
    for (size_t i = 0; good && i < count; i++) {
        good = parse_part(arg, i, strsep(&rest, ","), depth, why);
    }
    free(copy);
    for (size_t i = 0; good && i < count; i++) {
        align = arg->parts[i].align > align ? arg->parts[i].align : align;
    }
    make_value(arg, good ? (gather(arg, NULL) + align - 1) / align * align : 0, align);
    return good;
}

/* "TYPE:D0xD1:FILL", a C-contiguous array: meminfo, parent, items, bytes of an item, data, shape,
 * strides. */
static bool parse_numba(struct check_arg *arg, const char *at, int depth, attn_error *why) {
    const struct element *type;
    uint64_t dims[CHECK_RANK], items = 1;
    uint32_t count;
    char text[512];
    if (depth > 0) {
        return explain(why, "numba:... is no part of another argument");
    }
    if (!take_type(&at, &type, why) || !take_numbers(&at, "dims", dims, CHECK_RANK, &count, why)) {
        return false;
    }
    for (uint32_t i = 0; i < count; i++) {
        if (__builtin_mul_overflow(items, dims[i], &items) || items > BYTES_MOST) {
            return explain(why, "dims of more than 4 GiB");
        }
    }
    int used =
        snprintf(text, sizeof text, "u64:0,u64:0,i64:%llu,i64:%zu,buf:%s:%llu:%s",
                 (unsigned long long)items, type->bytes, type->name, (unsigned long long)items, at);
    for (uint32_t i = 0; i < count && used < (int)sizeof text; i++) {
        used += snprintf(text + used, sizeof text - (size_t)used, ",i64:%llu",
                         (unsigned long long)dims[i]);
    }
    uint64_t stride = items * type->bytes;
    for (uint32_t i = 0; i < count && used < (int)sizeof text; i++) {
        stride = dims[i] > 0 ? stride / dims[i] : stride;
        used += snprintf(text + used, sizeof text - (size_t)used, ",i64:%llu",
                         (unsigned long long)stride);
    }
    if (used >= (int)sizeof text || strchr(at, ',') != NULL) {
        return explain(why, "fill '%.40s', expected a short one without a comma", at);
    }
    arg->spread = true;
    return parse_struct(arg, text, depth, why);
}

/* "COUNT:ARG"; the seeds of random parts differ. */
static bool parse_pointers(struct check_arg *arg, const char *at, int depth, attn_error *why) {
    uint64_t count = 0;
    if (!take_number(&at, "count", &count, why) || !take_colon(&at, "count", why)) {
        return false;
    }
    if (count == 0 || count > POINTERS_MOST) {
        return explain(why, "%llu pointers, expected 1 to %d", (unsigned long long)count,
                       POINTERS_MOST);
    }
    make_parts(arg, (size_t)count);
    for (size_t i = 0; i < count; i++) {
        char part[512], seed[32] = "";
        const size_t length = strlen(at);
        if (i > 0 && length > 5 && strcmp(at + length - 5, ":rand") == 0) {
            snprintf(seed, sizeof seed, ":%zu", i + 1);
        }
        if ((size_t)snprintf(part, sizeof part, "%s%s", at, seed) >= sizeof part) {
            return explain(why, "'%.40s...' is too long", at);
        }
        if (!parse_part(arg, i, part, depth, why)) {
            return false;
        }
        if (arg->parts[i].kind != CHECK_BUFFER && arg->parts[i].kind != CHECK_POINTER) {
            return explain(why, "%s is no pointer, expected buf or ptr", arg->parts[i].label);
        }
    }
    make_pointer(arg);
    return true;
}

static bool parse_pointer(struct check_arg *arg, const char *at, int depth, attn_error *why) {
    make_parts(arg, 1);
    make_pointer(arg);
    return parse_part(arg, 0, at, depth, why);
}

static bool parse_any(struct check_arg *arg, const char *label, const char *text, int depth,
                      attn_error *why) {
    static const struct {
        const char *name;
        enum check_arg_kind kind;
        bool (*parse)(struct check_arg *arg, const char *at, int depth, attn_error *why);
    } KINDS[] = {{"buf", CHECK_BUFFER, parse_buffer},     {"tmap", CHECK_TENSOR, parse_tensor},
                 {"struct", CHECK_STRUCT, parse_struct},  {"ptr", CHECK_POINTER, parse_pointer},
                 {"ptrs", CHECK_POINTER, parse_pointers}, {"bytes", CHECK_SCALAR, parse_bytes},
                 {"numba", CHECK_STRUCT, parse_numba}};
    const size_t length = (size_t)field_length(text);
    const char *at = text + length;
    *arg = (struct check_arg){.kind = CHECK_SCALAR};
    snprintf(arg->label, sizeof arg->label, "%s", label);
    for (size_t i = 0; i < sizeof KINDS / sizeof *KINDS; i++) {
        if (strlen(KINDS[i].name) == length && strncmp(text, KINDS[i].name, length) == 0) {
            arg->kind = KINDS[i].kind;
            return (depth <= DEPTH_MOST ||
                    explain(why, "parts within parts, more than %d deep", DEPTH_MOST)) &&
                   take_colon(&at, KINDS[i].name, why) && KINDS[i].parse(arg, at, depth, why);
        }
    }
    return parse_scalar(arg, text, why);
}

bool check_arg_parse(struct check_arg *arg, size_t index, const char *text, attn_error *why) {
    char label[sizeof arg->label];
    snprintf(label, sizeof label, "argument %zu", index);
    return parse_any(arg, label, text, 0, why);
}

void check_arg_free(struct check_arg *arg) {
    for (size_t i = 0; i < arg->part_count; i++) {
        check_arg_free(&arg->parts[i]);
    }
    free(arg->parts);
    free(arg->value);
    content_free(&arg->content);
    *arg = (struct check_arg){.kind = CHECK_SCALAR};
}

const char *check_arg_text(const struct check_arg *arg, char *text, size_t size) {
    static const char *const NAMES[] = {[CHECK_SCALAR] = "bytes",
                                        [CHECK_BUFFER] = "pointer to a buffer",
                                        [CHECK_TENSOR] = "tensor map",
                                        [CHECK_STRUCT] = "struct",
                                        [CHECK_POINTER] = "pointer"};
    const bool number = arg->kind == CHECK_SCALAR && arg->content.type != NULL;
    snprintf(text, size, "%s of %zu bytes", number ? arg->content.type->name : NAMES[arg->kind],
             arg->value_bytes);
    return text;
}

/* ---- around a launch ------------------------------------------------------------------------- */

static bool allocate(struct check_arg *arg, vgpu *gpu, const void *from, size_t bytes,
                     attn_error *why) {
    vgpu_error fault;
    const bool good =
        (vgpu_malloc(gpu, bytes, arg->label, &arg->memory, &fault) == VGPU_OK &&
         (from == NULL || vgpu_write(gpu, arg->memory, from, bytes, &fault) == VGPU_OK)) ||
        explain(why, "%.300s", fault.text);
    if (arg->kind != CHECK_TENSOR) {
        memcpy(arg->value, &arg->memory, sizeof arg->memory);
    }
    return good;
}

static bool point(struct check_arg *arg, vgpu *gpu, attn_error *why) {
    const size_t bytes = gather(arg, NULL);
    unsigned char *values = must(calloc(bytes + 1, 1));
    gather(arg, values);
    const bool good = allocate(arg, gpu, values, bytes, why);
    free(values);
    return good;
}

bool check_arg_place(struct check_arg *arg, vgpu *gpu, attn_error *why) {
    const struct content *content = &arg->content;
    for (size_t i = 0; i < arg->part_count; i++) {
        if (!check_arg_place(&arg->parts[i], gpu, why)) {
            return false;
        }
    }
    switch (arg->kind) {
    case CHECK_SCALAR: return true;
    case CHECK_STRUCT: gather(arg, arg->value); return true;
    case CHECK_POINTER: return point(arg, gpu, why);
    default: break;
    }
    return allocate(arg, gpu, content->initial, content->count * content->type->bytes, why) &&
           (arg->kind != CHECK_TENSOR || make_map(arg, gpu, why));
}

void check_arg_release(struct check_arg *arg, vgpu *gpu) {
    for (size_t i = 0; i < arg->part_count; i++) {
        check_arg_release(&arg->parts[i], gpu);
    }
    vgpu_free(gpu, arg->memory, NULL);
    arg->memory = 0;
}

bool check_arg_read(const struct check_arg *arg, vgpu *gpu, void *to, attn_error *why) {
    vgpu_error fault;
    return vgpu_read(gpu, to, arg->memory, arg->content.count * arg->content.type->bytes, &fault) ==
               VGPU_OK ||
           explain(why, "%.300s", fault.text);
}
