/* SPDX-License-Identifier: Apache-2.0
 *
 * reduce.c - the reductions of cp.reduce.async.bulk at its destination.
 *
 * Invariant: each element is updated by one compare-and-swap, so that reductions of other host
 * threads are not lost.
 */
#include "async/bulk.h"
#include "ops/memory.h"

bool reduce_has_type(enum reduction reduction, enum ptx_type type, bool in_shared) {
    const bool whole = type == PTX_U32 || type == PTX_S32 || type == PTX_U64;
    switch (reduction) {
    case REDUCE_ADD:
        return whole || (!in_shared && (type == PTX_F16 || type == PTX_BF16 || type == PTX_F32 ||
                                        type == PTX_F64));
    case REDUCE_MIN:
    case REDUCE_MAX:
        return type == PTX_U32 || type == PTX_S32 ||
               (!in_shared &&
                (type == PTX_U64 || type == PTX_S64 || type == PTX_F16 || type == PTX_BF16));
    case REDUCE_INC:
    case REDUCE_DEC: return type == PTX_U32;
    case REDUCE_AND:
    case REDUCE_OR:
    case REDUCE_XOR: return type == PTX_B32 || (!in_shared && type == PTX_B64);
    default: return false;
    }
}

enum ptx_type reduce_tensor_type(enum reduction reduction, enum tensor_type type) {
    static const enum ptx_type TYPES[TENSOR_TYPE_COUNT] = {
        [TENSOR_U32] = PTX_U32,   [TENSOR_S32] = PTX_S32, [TENSOR_U64] = PTX_U64,
        [TENSOR_S64] = PTX_S64,   [TENSOR_F16] = PTX_F16, [TENSOR_F32] = PTX_F32,
        [TENSOR_BF16] = PTX_BF16, [TENSOR_F64] = PTX_F64, [TENSOR_F32_FTZ] = PTX_F32};
    enum ptx_type chosen = TYPES[type];
    if (reduction >= REDUCE_AND && chosen != PTX_NONE) {
        chosen = ptx_type_size(chosen) == 4 ? PTX_B32 : PTX_B64;
        chosen =
            type == TENSOR_U32 || type == TENSOR_S32 || type == TENSOR_U64 || type == TENSOR_S64
                ? chosen
                : PTX_NONE;
    }
    return reduce_has_type(reduction, chosen, false) ? chosen : PTX_NONE;
}

static const char *const NAMES[] = {"add", "min", "max", "inc", "dec", "and", "or", "xor", NULL};

bool reduce_named(const struct ptx_instruction *in, enum reduction *reduction) {
    uint32_t index = 0;
    const bool named = decode_choice(in, NAMES, &index);
    *reduction = (enum reduction)(REDUCE_ADD + index);
    return named;
}

void reduce_bytes(unsigned char *to, const unsigned char *from, uint64_t bytes,
                  enum reduction reduction, enum ptx_type type) {
    atomic_function *function = atomic_in_global(NAMES[reduction - REDUCE_ADD], type);
    const uint32_t size = ptx_type_size(type);
    for (uint64_t at = 0; function != NULL && at < bytes; at += size) {
        uint64_t value = 0; /* hosts are little-endian */
        memcpy(&value, from + at, size);
        atomic_update(to + at, size, function, value, 0);
    }
}
