/* SPDX-License-Identifier: Apache-2.0
 *
 * fake_maps.c - tensor maps of the fake driver: made under the rules of a real one, and looked at
 * when a kernel whose name says fwd_hopper is launched.
 *
 * Invariant: a launch goes through only if its maps agree with struct attn_args, in
 * boxes of the tile in the kernel's name (..._d128_192x64...: 192 rows, 64 keys).
 */
#include <stdio.h>
#include <string.h>

#include "cuda/fake_internal.h"

enum {
    TYPE_UINT8 = 0,
    TYPE_FP16 = 6,
    TYPE_BF16 = 9,
    SWIZZLE_64B = 2,
    SWIZZLE_128B = 3,
    PROMOTION_128B = 2,
    COLUMNS = 64,
    ROWS_O = 64,
    MAP_ALIGNMENT = 64
};
static const uint64_t MAGIC = 0x70616D5F656B6166;
static const uint64_t DIM_MOST = (uint64_t)1 << 32, STRIDE_END = (uint64_t)1 << 40;

_Static_assert(sizeof(struct fake_map) == sizeof(struct attn_tensor_map), "a map has 128 bytes");

/* ---- the driver's functions ------------------------------------------------------------------ */

static bool is_legal(const struct fake_map *map) {
    const unsigned int inner = map->box[0] * (map->type == TYPE_UINT8 ? 1U : 2U);
    if ((map->type != TYPE_UINT8 && map->type != TYPE_FP16 && map->type != TYPE_BF16) ||
        map->interleave != 0 || map->swizzle > 3 || map->promotion > 3 || map->fill > 1 ||
        map->address % 16 != 0 || inner % 16 != 0 ||
        (map->swizzle != 0 && inner > 16U << map->swizzle)) {
        return false;
    }
    for (int i = 0; i < map->rank; i++) {
        const uint64_t stride = i > 0 ? map->strides[i - 1] : 16;
        if (map->dims[i] < 1 || map->dims[i] > DIM_MOST || stride == 0 || stride % 16 != 0 ||
            stride >= STRIDE_END || map->box[i] < 1 || map->box[i] > 256 ||
            map->element_strides[i] < 1 || map->element_strides[i] > 8) {
            return false;
        }
    }
    return true;
}

static int cuTensorMapEncodeTiled(void *map, int type, uint32_t rank, void *address,
                                  const uint64_t *dims, const uint64_t *strides,
                                  const uint32_t *box, const uint32_t *element_strides,
                                  int interleave, int swizzle, int promotion, int fill) {
    ENTER(cuTensorMapEncodeTiled)
    if (fake_current() == NULL) {
        return FAKE_INVALID_CONTEXT;
    }
    if (map == NULL || (uintptr_t)map % MAP_ALIGNMENT != 0 || rank < 1 || rank > FAKE_RANK ||
        dims == NULL || strides == NULL || box == NULL || element_strides == NULL) {
        return FAKE_INVALID_VALUE;
    }
    struct fake_map made = {.magic = MAGIC,
                            .address = (uintptr_t)address,
                            .rank = (uint8_t)rank,
                            .type = (uint8_t)type,
                            .interleave = (uint8_t)interleave,
                            .swizzle = (uint8_t)swizzle,
                            .promotion = (uint8_t)promotion,
                            .fill = (uint8_t)fill};
    for (uint32_t i = 0; i < rank; i++) {
        made.dims[i] = dims[i];
        made.box[i] = (uint16_t)(box[i] < UINT16_MAX ? box[i] : UINT16_MAX);
        made.element_strides[i] =
            (uint8_t)(element_strides[i] < UINT8_MAX ? element_strides[i] : UINT8_MAX);
        if (i > 0) {
            made.strides[i - 1] = strides[i - 1];
        }
    }
    if (!is_legal(&made)) {
        return FAKE_INVALID_VALUE;
    }
    memcpy(map, &made, sizeof made);
    return FAKE_SUCCESS;
}

static int cuTensorMapReplaceAddress(void *map, void *address) {
    ENTER(cuTensorMapReplaceAddress)
    struct fake_map made;
    if (map == NULL || (uintptr_t)map % MAP_ALIGNMENT != 0 || (uintptr_t)address % 16 != 0) {
        return FAKE_INVALID_VALUE;
    }
    memcpy(&made, map, sizeof made);
    if (made.magic != MAGIC) {
        return FAKE_INVALID_VALUE;
    }
    made.address = (uintptr_t)address;
    memcpy(map, &made, sizeof made);
    return FAKE_SUCCESS;
}

const struct fake_function fake_map_functions[] = {
    {"cuTensorMapEncodeTiled", 12000, (fake_any *)cuTensorMapEncodeTiled},
    {"cuTensorMapReplaceAddress", 12000, (fake_any *)cuTensorMapReplaceAddress},
    {NULL, 0, NULL},
};

/* ---- at a launch ----------------------------------------------------------------------------- */

bool fake_takes_maps(const char *kernel) {
    return strstr(kernel, "_hopper") != NULL;
}

static bool takes_lengths(const char *kernel) {
    return strstr(kernel, "_full") != NULL || strstr(kernel, "_mask") != NULL ||
           strstr(kernel, "_bias") != NULL || strstr(kernel, "_chunk") != NULL ||
           strstr(kernel, "_mixed") != NULL || strstr(kernel, "_invariant") != NULL;
}

/* It shares keys as a decode kernel does, but with blocks that stay. */
static bool is_chunk(const char *kernel) {
    return strstr(kernel, "_chunk") != NULL || strstr(kernel, "_mixed") != NULL ||
           strstr(kernel, "_invariant") != NULL;
}

static bool is_decode(const char *kernel) {
    return strstr(kernel, "_decode") != NULL || strstr(kernel, "_mla") != NULL;
}

/* Rows and keys of a box: of the tile, or of a warp's share of its keys. */
static bool read_box(const struct fake_launch *launch, int *rows, int *keys) {
    const int warps = (int)launch->block[0] / 32;
    for (const char *at = launch->kernel->name; (at = strstr(at, "_d")) != NULL; at++) {
        int dim;
        if (sscanf(at, "_d%d_%dx%d", &dim, rows, keys) == 3) {
            *keys /= strstr(launch->kernel->name, "_decode") != NULL ? warps : 1;
            return true;
        }
    }
    return false;
}

/* What a map has to say; rows 0: any number. box_heads > 0: heads come before rows, and a box has
 * so many. */
struct tensor {
    const void *address;
    long long columns, rows, heads, batches, row, head, batch;
    int box, box_heads;
};

/* fp8: all columns of the tile in a box, swizzled by as many bytes. */
static bool agrees(const struct fake_map *map, const struct tensor *t, int type, int tile_dim) {
    const bool fp8 = type == TYPE_UINT8;
    const uint64_t bytes = fp8 ? 1 : 2;
    const bool swap = t->box_heads > 0;
    const int row = swap ? 2 : 1;
    const long long dims[] = {t->columns, swap ? t->heads : t->rows, swap ? t->rows : t->heads,
                              t->batches};
    const long long strides[] = {1, swap ? t->head : t->row, swap ? t->row : t->head, t->batch};
    const int box[] = {fp8 ? tile_dim : COLUMNS, swap ? t->box_heads : t->box,
                       swap ? t->box / t->box_heads : 1, 1};
    bool fine = map->magic == MAGIC && map->rank == 4 && map->type == type &&
                map->interleave == 0 &&
                map->swizzle == (fp8 && tile_dim == 64 ? SWIZZLE_64B : SWIZZLE_128B) &&
                map->promotion == PROMOTION_128B && map->fill == 0 &&
                (t->address == NULL || map->address == (uintptr_t)t->address);
    for (int i = 0; i < 4 && fine; i++) {
        const bool any = i == row && t->rows == 0;
        fine = (any || map->dims[i] == (uint64_t)dims[i]) && map->box[i] == box[i] &&
               map->element_strides[i] == 1 &&
               (i == 0 || map->dims[i] == 1 || map->strides[i - 1] == (uint64_t)strides[i] * bytes);
    }
    return fine;
}

/* fwd_hopper_split has a block for each (head, tile, batch), fwd_hopper_decode so many parts for
 * each tile; the others have blocks that stay, none of them without a tile, or part of one
 * (fwd_hopper_chunk, fwd_hopper_mixed, fwd_hopper_invariant, which may have no slot for parts). All
 * but fwd_hopper_mla may begin early, and wait themselves for the kernel before them. */
static bool grid_fits(const struct fake_launch *launch) {
    const struct attn_args *a = &launch->args;
    const unsigned int *grid = launch->grid;
    if (launch->early && strstr(launch->kernel->name, "_mla") != NULL) {
        return false;
    }
    if (strstr(launch->kernel->name, "_split") != NULL) {
        return grid[0] == (unsigned int)a->heads_q && grid[1] == (unsigned int)a->tiles_q &&
               grid[2] == (unsigned int)(a->heads_all / a->heads_q);
    }
    const long long tiles = (long long)a->heads_all * a->tiles_q;
    const bool chunk = is_chunk(launch->kernel->name);
    return (is_decode(launch->kernel->name)
                ? grid[0] == tiles * a->num_splits
                : grid[0] <= tiles * (chunk && a->num_splits > 0 ? a->num_splits : 1)) &&
           grid[1] == 1 && grid[2] == 1;
}

/* Some take tiles by counters, or count clusters, in words of 8 bytes. */
static bool counters_are_there(const struct fake_launch *launch) {
    const char *kernel = launch->kernel->name;
    const unsigned long long *counters = launch->args.counters;
    const bool counts = strstr(kernel, "_causal") != NULL || takes_lengths(kernel);
    const unsigned int cluster = launch->cluster > 0 ? launch->cluster : 1;
    if (is_decode(kernel)) {
        return (counters != NULL) == ((unsigned int)launch->args.num_splits / cluster > 1);
    }
    return (counters != NULL) == counts && (uintptr_t)counters % sizeof *counters == 0;
}

bool fake_maps_agree(const struct fake_launch *launch) {
    const struct attn_args *a = &launch->args;
    const char *kernel = launch->kernel->name;
    int rows, keys_of_box;
    if (!read_box(launch, &rows, &keys_of_box) || a->heads_q < 1 || a->heads_per_kv < 1) {
        return false;
    }
    const bool packed = a->cu_seqlens_q != NULL && (takes_lengths(kernel) || is_decode(kernel));
    const long long batches = packed ? 1 : (long long)a->heads_all * a->packed_heads / a->heads_q;
    const long long heads_kv = a->heads_q / a->heads_per_kv;
    /* how many packed rows there are is in no argument; without keys there is one, of one head
     */
    const bool paged = a->block_table != NULL;
    const long long queries = packed ? 0 : a->seq_q;
    const long long keys = paged ? a->page_size : packed ? 0 : a->seq_kv;
    if (paged && a->page_size < keys_of_box) {
        keys_of_box = a->page_size;
    }
    const bool none = !packed && keys == 0;
    const long long pages = paged ? a->num_pages : batches;
    const long long least = none ? 1 : keys, heads = none ? 1 : heads_kv, of = none ? 1 : pages;
    const struct tensor tensors[] = {
        {a->q, a->head_dim, queries, a->heads_q, batches, a->q_row, a->q_head, a->q_batch, rows,
         is_chunk(kernel) ? a->packed_heads : 0},
        {a->k, a->head_dim, least, heads, of, a->k_row, a->k_head, a->k_batch, keys_of_box, 0},
        {a->v, a->head_dim_v, least, heads, of, a->v_row, a->v_head, a->v_batch, keys_of_box, 0},
        {a->o, a->head_dim_v, queries, a->heads_q, batches, a->o_row, a->o_head, a->o_batch, ROWS_O,
         0},
    };
    bool fine = (a->packed_heads == 1 || is_decode(kernel) || is_chunk(kernel)) &&
                grid_fits(launch) && counters_are_there(launch);
    for (int i = 0; i < FAKE_MAPS && fine; i++) {
        struct fake_map map;
        memcpy(&map, launch->maps[i], sizeof map);
        const bool fp8 = strstr(kernel, "_fp8_") != NULL && (i == 1 || i == 2);
        const int wide = strstr(kernel, "fp16") != NULL ? TYPE_FP16 : TYPE_BF16;
        fine = agrees(&map, &tensors[i], fp8 ? TYPE_UINT8 : wide,
                      strstr(kernel, "_d64_") != NULL ? 64 : 128);
    }
    return fine;
}
