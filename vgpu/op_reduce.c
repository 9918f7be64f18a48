/* SPDX-License-Identifier: Apache-2.0
 *
 * op_reduce.c - what cp.reduce.async.bulk does with the bytes at its destination.
 *
 * Invariant: each element is replaced by one compare-and-swap, so that reductions of other host
 * threads are not lost.
 */
#include "bulk.h"
#include "half.h"

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

static uint16_t combine_16(enum reduction reduction, enum ptx_type type, uint16_t a, uint16_t b) {
    const bool wide = type == PTX_BF16;
    const float x = wide ? f32_from_bf16(a) : f32_from_f16(a);
    const float y = wide ? f32_from_bf16(b) : f32_from_f16(b);
    if (reduction == REDUCE_ADD) {
        return wide ? bf16_from_f32(x + y) : f16_from_f32(x + y);
    }
    if (x != x || y != y) { /* the one that is a number */
        return x != x ? b : a;
    }
    if (x == y) { /* -0 is below +0 */
        return (reduction == REDUCE_MIN) == ((a & 0x8000U) != 0) ? a : b;
    }
    return (reduction == REDUCE_MIN) == (x < y) ? a : b;
}

static uint32_t combine_32(enum reduction reduction, enum ptx_type type, uint32_t a, uint32_t b) {
    const bool less = type == PTX_S32 ? (int32_t)a < (int32_t)b : a < b;
    switch (reduction) {
    case REDUCE_ADD:
        if (type == PTX_F32) { /* flushes subnormals, as red.global.add.f32 does */
            const float sum = f32_from_bits(f32_flush(a)) + f32_from_bits(f32_flush(b));
            return f32_is_nan(bits_of_f32(sum)) ? F32_NAN : f32_flush(bits_of_f32(sum));
        }
        return a + b;
    case REDUCE_MIN: return less ? a : b;
    case REDUCE_MAX: return less ? b : a;
    case REDUCE_INC: return a >= b ? 0 : a + 1;
    case REDUCE_DEC: return a == 0 || a > b ? b : a - 1;
    case REDUCE_AND: return a & b;
    case REDUCE_OR: return a | b;
    default: return a ^ b;
    }
}

static uint64_t combine_64(enum reduction reduction, enum ptx_type type, uint64_t a, uint64_t b) {
    const bool less = type == PTX_S64 ? (int64_t)a < (int64_t)b : a < b;
    switch (reduction) {
    case REDUCE_ADD:
        return type == PTX_F64 ? bits_of_f64(f64_from_bits(a) + f64_from_bits(b)) : a + b;
    case REDUCE_MIN: return less ? a : b;
    case REDUCE_MAX: return less ? b : a;
    case REDUCE_AND: return a & b;
    case REDUCE_OR: return a | b;
    default: return a ^ b;
    }
}

#define REDUCE_ELEMENTS(T, combine)                                                                \
    for (uint64_t at = 0; at < bytes; at += sizeof(T)) {                                           \
        T *place = (T *)(void *)(to + at);                                                         \
        T value, old = __atomic_load_n(place, __ATOMIC_RELAXED);                                   \
        memcpy(&value, from + at, sizeof value);                                                   \
        while (!__atomic_compare_exchange_n(place, &old, combine(reduction, type, old, value),     \
                                            true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {           \
        }                                                                                          \
    }

void reduce_bytes(unsigned char *to, const unsigned char *from, uint64_t bytes,
                  enum reduction reduction, enum ptx_type type) {
    switch (ptx_type_size(type)) {
    case 2: REDUCE_ELEMENTS(uint16_t, combine_16) break;
    case 4: REDUCE_ELEMENTS(uint32_t, combine_32) break;
    default: REDUCE_ELEMENTS(uint64_t, combine_64) break;
    }
}
