/* SPDX-License-Identifier: Apache-2.0
 *
 * tensor.c - see check.h: tensor maps as arguments.
 */
#include "check/check.h"

#include <stdalign.h>
#include <string.h>

#include "base/message.h"

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
        const uint64_t stride = i == 0 ? arg->content.type->bytes : arg->strides[i - 1];
        uint64_t bytes;
        if (__builtin_mul_overflow(arg->size[i], stride, &bytes) || bytes > (UINT64_C(4) << 30)) {
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

bool check_tensor_parse(struct check_arg *arg, struct cursor *c, attn_error *why) {
    uint64_t box[CHECK_RANK] = {0};
    uint32_t strides = 0, boxes = 0;
    if (!take_type(c, &arg->content.type, why) || !take_colon(c, "type", why) ||
        !take_numbers(c, "dims", arg->size, CHECK_RANK, &arg->rank, why) ||
        !take_colon(c, "dims", why) ||
        !take_numbers(c, "strides", arg->strides, CHECK_RANK, &strides, why) ||
        !take_colon(c, "strides", why) || !take_numbers(c, "box", box, CHECK_RANK, &boxes, why) ||
        !take_colon(c, "box", why) || !parse_swizzle(arg, c, why) ||
        !take_colon(c, "swizzle", why)) {
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
    return count_tensor(arg, why) && content_fill(&arg->content, c->at, why);
}

bool check_tensor_map(const struct check_arg *arg, vgpu *gpu, attn_error *why) {
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
