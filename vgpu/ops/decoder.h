/* SPDX-License-Identifier: Apache-2.0
 *
 * decoder.h - a function while it is decoded: its rows and constants. For exec/decode.c and
 * decode_operand.c only; the families see decode.h.
 */
#ifndef VGPU_OPS_DECODER_H
#define VGPU_OPS_DECODER_H

#include "ops/decode.h"

/* Shared memory that a GPU keeps for itself, as far as kernels use it (cooperative groups). */
#define RESERVED_SHARED "%reserved_smem_offset_1"
enum { RESERVED_SHARED_BYTES = 288 };

struct constant {
    uint64_t bits;
    uint32_t width; /* 0: an empty slot */
    uint32_t row;
};

struct decoder {
    struct vgpu_module *module;
    const struct ptx_function *function;
    const struct ptx_instruction *in; /* the one being decoded */
    struct ptx_error *error;
    bool failed;
    struct kernel *kernel;
    uint32_t *places;           /* of the registers: offset of the row, or index of the predicate */
    struct constant *constants; /* open addressing, a power of two of slots */
    uint32_t constant_slots, constant_count;
    struct special_row specials[SPECIAL_COUNT * 2];
    uint32_t special_count;
};

/* Another row of `width` bytes a lane; 0 and decode_fail: too many. */
uint32_t decode_new_row(struct decoder *decoder, uint32_t width);
uint32_t decode_lane_bytes(enum ptx_type type); /* 2, 4, 8 or 16 */

#endif /* VGPU_OPS_DECODER_H */
