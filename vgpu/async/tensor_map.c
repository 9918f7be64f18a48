/* SPDX-License-Identifier: Apache-2.0
 *
 * tensor_map.c - tensor maps and the rules of cuTensorMapEncodeTiled.
 *
 * The rules are those of the driver for sm_90. Strides need not ascend: a tensor may be seen with
 * its dimensions in any order, and kernels do that.
 *
 * Invariant: see tensor_map.h. Nothing is written to the map where a rule is broken.
 */
#include "async/tensor_map.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { BOX_MAX = 256, ELEMENT_STRIDE_MAX = 8, SWIZZLE_128 = 3 };
#define MAP_MAGIC 0x70616d2d75706776ULL /* "vgpu-map" */
#define DIM_MAX (1ULL << 32)
#define STRIDE_END (1ULL << 40)

_Static_assert(sizeof(struct tensor_map) == TENSOR_MAP_BYTES, "a map has 128 bytes");

static const uint8_t ELEMENT_BYTES[TENSOR_TYPE_COUNT] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};

struct request {
    int type;
    uint32_t rank;
    uint64_t address;
    const uint64_t *dims, *strides;
    const uint32_t *box, *element_strides;
    int interleave, swizzle, l2_promotion, fill;
    char *why;
    size_t why_size;
};

__attribute__((format(printf, 2, 3))) static bool refuse(const struct request *request,
                                                         const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(request->why, request->why_size, format, arguments);
    va_end(arguments);
    return false;
}

/* ---- the rules ------------------------------------------------------------------------------- */

static bool check_modes(const struct request *r) {
    if (r->type < 0 || r->type >= TENSOR_TYPE_COUNT) {
        return refuse(r, "tensorDataType is %d, expected 0 to %d (packed types need sm_100)",
                      r->type, TENSOR_TYPE_COUNT - 1);
    }
    if (r->swizzle < 0 || r->swizzle > SWIZZLE_128) {
        return refuse(r,
                      "swizzle is %d, expected 0 to 3: none, 32, 64 or 128 bytes (others need "
                      "sm_100)",
                      r->swizzle);
    }
    if (r->interleave != 0) {
        return refuse(r,
                      "interleave is %d; the virtual GPU has only "
                      "CU_TENSOR_MAP_INTERLEAVE_NONE (0)",
                      r->interleave);
    }
    if (r->l2_promotion < 0 || r->l2_promotion > 3) {
        return refuse(r, "l2Promotion is %d, expected 0 to 3", r->l2_promotion);
    }
    if (r->fill < 0 || r->fill > 1) {
        return refuse(r, "oobFill is %d, expected 0 (zeros) or 1 (NaN)", r->fill);
    }
    if (r->fill == 1 && r->type < TENSOR_F16) {
        return refuse(r, "oobFill is 1 (NaN), but tensorDataType %d is an integer type", r->type);
    }
    return true;
}

static bool check_tensor(const struct request *r) {
    if (r->rank < 1 || r->rank > TENSOR_MAP_RANK) {
        return refuse(r, "tensorRank is %u, expected 1 to 5", r->rank);
    }
    if (!r->dims || !r->box || !r->element_strides || (r->rank > 1 && !r->strides)) {
        return refuse(r, "%s is NULL",
                      !r->dims              ? "globalDim"
                      : !r->box             ? "boxDim"
                      : !r->element_strides ? "elementStrides"
                                            : "globalStrides");
    }
    if (r->address == 0 || r->address % 16 != 0) {
        return refuse(r, "globalAddress is 0x%llx, expected a multiple of 16 that is not 0",
                      (unsigned long long)r->address);
    }
    for (uint32_t i = 0; i < r->rank; i++) {
        if (r->dims[i] == 0 || r->dims[i] > DIM_MAX) {
            return refuse(r, "globalDim[%u] is %llu, expected 1 to 2^32", i,
                          (unsigned long long)r->dims[i]);
        }
    }
    for (uint32_t i = 0; i + 1 < r->rank; i++) {
        if (r->strides[i] % 16 != 0 || r->strides[i] >= STRIDE_END) {
            return refuse(r, "globalStrides[%u] is %llu, expected a multiple of 16 below 2^40", i,
                          (unsigned long long)r->strides[i]);
        }
    }
    return true;
}

static bool check_box(const struct request *r) {
    for (uint32_t i = 0; i < r->rank; i++) {
        if (r->box[i] == 0 || r->box[i] > BOX_MAX) {
            return refuse(r, "boxDim[%u] is %u, expected 1 to 256", i, r->box[i]);
        }
        if (r->element_strides[i] == 0 || r->element_strides[i] > ELEMENT_STRIDE_MAX) {
            return refuse(r, "elementStrides[%u] is %u, expected 1 to 8", i, r->element_strides[i]);
        }
    }
    const uint32_t inner = r->box[0] * ELEMENT_BYTES[r->type];
    if (inner % 16 != 0) {
        return refuse(r, "boxDim[0] is %u, %u bytes, expected a multiple of 16 bytes", r->box[0],
                      inner);
    }
    if (r->swizzle != 0 && inner > 16U << r->swizzle) {
        return refuse(r, "boxDim[0] is %u, %u bytes, more than the %u bytes of the swizzle",
                      r->box[0], inner, 16U << r->swizzle);
    }
    return true;
}

/* ---- making and reading ---------------------------------------------------------------------- */

static uint32_t sum_of(const struct tensor_map *map) {
    const unsigned char *bytes = (const unsigned char *)map;
    uint32_t sum = 2166136261U;
    for (size_t i = offsetof(struct tensor_map, address); i < offsetof(struct tensor_map, sum);
         i++) {
        sum = (sum ^ bytes[i]) * 16777619U;
    }
    return sum;
}

bool tensor_map_encode(void *map, int type, uint32_t rank, uint64_t address, const uint64_t *dims,
                       const uint64_t *strides, const uint32_t *box,
                       const uint32_t *element_strides, int interleave, int swizzle,
                       int l2_promotion, int fill, char *why, size_t why_size) {
    const struct request request = {
        type,       rank,    address,      dims, strides, box,     element_strides,
        interleave, swizzle, l2_promotion, fill, why,     why_size};
    if (!map || (uintptr_t)map % 64 != 0) {
        return refuse(&request, "tensorMap is at %p, expected a multiple of 64 that is not 0", map);
    }
    if (!check_modes(&request) || !check_tensor(&request) || !check_box(&request)) {
        return false;
    }
    struct tensor_map made = {.magic = MAP_MAGIC, .address = address};
    for (uint32_t i = 0; i < TENSOR_MAP_RANK; i++) {
        made.dims[i] = i < rank ? dims[i] : 1;
        made.box[i] = i < rank ? (uint16_t)box[i] : 1;
        made.element_strides[i] = i > 0 && i < rank ? (uint8_t)element_strides[i] : 1;
        if (i + 1 < rank) {
            made.strides[i] = strides[i];
        }
    }
    made.rank = (uint8_t)rank;
    made.type = (uint8_t)type;
    made.swizzle = (uint8_t)swizzle;
    made.l2_promotion = (uint8_t)l2_promotion;
    made.fill = (uint8_t)fill;
    made.sum = sum_of(&made);
    memcpy(map, &made, sizeof made);
    return true;
}

/* The rules for a map that a kernel made. */
static const char *check_replaced(const struct tensor_map *map) {
    static _Thread_local char why[160];
    uint32_t box[TENSOR_MAP_RANK], element_strides[TENSOR_MAP_RANK];
    for (uint32_t i = 0; i < TENSOR_MAP_RANK; i++) {
        box[i] = map->box[i];
        element_strides[i] = map->element_strides[i];
    }
    const struct request request = {
        map->type,       map->rank,       map->address, map->dims,         map->strides, box,
        element_strides, map->interleave, map->swizzle, map->l2_promotion, map->fill,    why,
        sizeof why};
    return check_modes(&request) && check_tensor(&request) && check_box(&request) ? NULL : why;
}

const char *tensor_map_check(const void *bytes, struct tensor_map *map) {
    memcpy(map, bytes, sizeof *map);
    if (map->magic != MAP_MAGIC) {
        return "the 128 bytes there are not a tensor map";
    }
    if (map->sum != sum_of(map)) {
        return "the tensor map there was changed after it was made";
    }
    const char *wrong = map->replaced != 0 ? check_replaced(map) : NULL;
    map->element_strides[0] = 1;
    return wrong;
}

static uint8_t narrow(uint64_t value) {
    return value > UINT8_MAX ? UINT8_MAX : (uint8_t)value; /* no field is right with 255 */
}

const char *tensor_map_replace(void *bytes, enum tensor_field field, uint32_t ordinal,
                               uint64_t value) {
    static const uint8_t TYPES[TENSOR_TYPE_COUNT] = {
        TENSOR_U8,   TENSOR_U16,  TENSOR_U32,     TENSOR_S32,     TENSOR_U64,
        TENSOR_S64,  TENSOR_F16,  TENSOR_F32,     TENSOR_F32_FTZ, TENSOR_F64,
        TENSOR_BF16, TENSOR_TF32, TENSOR_TF32_FTZ};
    struct tensor_map map;
    memcpy(&map, bytes, sizeof map);
    static const struct tensor_map zeros;
    if (memcmp(&map, &zeros, sizeof map) == 0) {
        map = (struct tensor_map){.magic = MAP_MAGIC, .rank = 1};
        for (uint32_t i = 0; i < TENSOR_MAP_RANK; i++) {
            map.dims[i] = map.box[i] = map.element_strides[i] = 1;
        }
    } else if (map.magic != MAP_MAGIC || map.sum != sum_of(&map)) {
        return "the 128 bytes there are neither a tensor map nor zeros";
    }
    switch (field) {
    case TENSOR_ADDRESS: map.address = value; break;
    case TENSOR_RANK: map.rank = narrow(value < UINT8_MAX ? value + 1 : value); break;
    case TENSOR_BOX: map.box[ordinal] = value > UINT16_MAX ? UINT16_MAX : (uint16_t)value; break;
    case TENSOR_DIM: map.dims[ordinal] = value; break;
    case TENSOR_STRIDE: map.strides[ordinal] = value; break;
    case TENSOR_ELEMENT_STRIDE: map.element_strides[ordinal] = narrow(value); break;
    case TENSOR_ELEMENT_TYPE:
        map.type = value < TENSOR_TYPE_COUNT ? TYPES[value] : UINT8_MAX;
        break;
    case TENSOR_INTERLEAVE: map.interleave = narrow(value); break;
    case TENSOR_SWIZZLE: map.swizzle = narrow(value); break;
    case TENSOR_FILL: map.fill = narrow(value); break;
    }
    map.replaced = 1;
    map.sum = sum_of(&map);
    memcpy(bytes, &map, sizeof map);
    return NULL;
}

uint32_t tensor_map_element(const struct tensor_map *map) {
    return ELEMENT_BYTES[map->type];
}

uint32_t tensor_map_count(const struct tensor_map *map, uint32_t dim) {
    return (map->box[dim] + map->element_strides[dim] - 1U) / map->element_strides[dim];
}

uint64_t tensor_map_box_bytes(const struct tensor_map *map) {
    uint64_t bytes = tensor_map_element(map);
    for (uint32_t i = 0; i < map->rank; i++) {
        bytes *= tensor_map_count(map, i);
    }
    return bytes;
}

uint32_t tensor_map_swizzle(const struct tensor_map *map, uint32_t address) {
    const uint32_t pieces = (1U << map->swizzle) - 1; /* 0, 1, 3, 7: bits 4 to 6 that change */
    return address ^ ((address >> 7 & pieces) << 4);
}
