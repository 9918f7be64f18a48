/* SPDX-License-Identifier: Apache-2.0
 *
 * tensor_map.h - tensor maps of the virtual GPU: 128 bytes that describe a tensor in global memory
 * and the box that one TMA instruction moves.
 *
 * Invariant: a map that tensor_map_check accepts was made by tensor_map_encode or
 * tensor_map_replace and not changed otherwise; all its fields obey the rules of
 * cuTensorMapEncodeTiled.
 */
#ifndef VGPU_ASYNC_TENSOR_MAP_H
#define VGPU_ASYNC_TENSOR_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TENSOR_MAP_RANK = 5, TENSOR_MAP_BYTES = 128 };

/* As the driver numbers them. */
enum tensor_type {
    TENSOR_U8,
    TENSOR_U16,
    TENSOR_U32,
    TENSOR_S32,
    TENSOR_U64,
    TENSOR_S64,
    TENSOR_F16,
    TENSOR_F32,
    TENSOR_F64,
    TENSOR_BF16,
    TENSOR_F32_FTZ,
    TENSOR_TF32,
    TENSOR_TF32_FTZ,
    TENSOR_TYPE_COUNT
};

struct tensor_map {
    uint64_t magic;
    uint64_t patched; /* libraries change bits of this word of a driver's map: it means nothing */
    uint64_t address;
    uint64_t dims[TENSOR_MAP_RANK];        /* elements, innermost first; 1 beyond the rank */
    uint64_t strides[TENSOR_MAP_RANK - 1]; /* bytes, of dims 1 ... */
    uint16_t box[TENSOR_MAP_RANK];
    uint8_t element_strides[TENSOR_MAP_RANK]; /* [0] is 1: hardware ignores it */
    uint8_t rank, type, swizzle, l2_promotion, fill;
    uint8_t replaced; /* by a kernel: the rules are checked when it is used */
    uint8_t interleave;
    uint8_t unused[6];
    uint32_t sum; /* of what is above */
};

/* Fills the map. False: `why` is a sentence about the argument that breaks a rule. */
bool tensor_map_encode(void *map, int type, uint32_t rank, uint64_t address, const uint64_t *dims,
                       const uint64_t *strides, const uint32_t *box,
                       const uint32_t *element_strides, int interleave, int swizzle,
                       int l2_promotion, int fill, char *why, size_t why_size);

/* What tensormap.replace can change. */
enum tensor_field {
    TENSOR_ADDRESS,
    TENSOR_RANK, /* less 1 */
    TENSOR_BOX,
    TENSOR_DIM,
    TENSOR_STRIDE,
    TENSOR_ELEMENT_STRIDE,
    TENSOR_ELEMENT_TYPE, /* as PTX numbers them */
    TENSOR_INTERLEAVE,
    TENSOR_SWIZZLE,
    TENSOR_FILL
};

/* Changes a field of a map; 128 zeros are a map of which nothing is known yet. NULL: done. */
const char *tensor_map_replace(void *bytes, enum tensor_field field, uint32_t ordinal,
                               uint64_t value);

/* NULL: the 128 bytes are a tensor map, and here it is; else what they are instead; valid
 * until the next call of this host thread. */
const char *tensor_map_check(const void *bytes, struct tensor_map *map);

/* Bytes of an element; elements of the box along a dimension; bytes of the whole box. */
uint32_t tensor_map_element(const struct tensor_map *map);
uint32_t tensor_map_count(const struct tensor_map *map, uint32_t dim);
uint64_t tensor_map_box_bytes(const struct tensor_map *map);

/* Where the byte that is meant for a shared address lies: 16-byte pieces of 128-byte lines change
 * places, by the bits of the address that number the line. */
uint32_t tensor_map_swizzle(const struct tensor_map *map, uint32_t address);

#endif /* VGPU_ASYNC_TENSOR_MAP_H */
