/* SPDX-License-Identifier: Apache-2.0
 *
 * maps.c - tensor maps of Q, K, V and O (backward: dO) for kernels that load by TMA. Dimensions are
 * (column, row, head, batch), with packed sequences (column, row of all, head, 1), of a paged KV
 * cache (column, row of a page, head, page); a box is 64 columns of as many rows as a tile, or a
 * page, has; of fp8 all columns of the tile, 64 or 128. Where a tile has the rows of several
 * heads (forward_chunk.cu), the map of Q is over (column, head, row, batch): the heads of a query
 * follow each other.
 *
 * Invariant: maps are made with the plan, without addresses; a call inserts the addresses and
 * changes nothing else. The driver never refuses what maps_check passed.
 */
#include <stdio.h>
#include <string.h>

#include "cuda/device.h"

enum {
    RANK = 4,
    BOX_COLUMNS = 64, /* 128 bytes: what is swizzled */
    BOX_ROWS_O = 64,  /* of a warpgroup, which stores its own rows */
    MAP_BYTES = 16    /* strides and addresses are multiples */
};

static const int64_t STRIDE_END = (int64_t)1 << 40; /* in bytes */

/* Aligned as the driver wants an address to be. */
static char *stand_in(void) {
    return (char *)(uintptr_t)(1 << 20);
}

struct tensor {
    const char *name;
    int64_t columns, rows, heads, batches;
    const attn_strides *strides;
    attn_dtype dtype;
};

static void list_tensors(const attn_problem *p, bool backward, struct tensor tensors[CUDA_MAPS]) {
    const int64_t rows_q = p->packed ? p->total_q : p->seq_q;
    const bool paged = p->page_size > 0;
    const int64_t rows_kv = paged ? p->page_size : p->packed ? p->total_kv : p->seq_kv;
    const int64_t batches = p->packed ? 1 : p->batch;
    const int64_t pages = paged ? p->num_pages : batches;
    const attn_dtype dtype_kv = (attn_dtype)p->dtype_kv;
    const struct tensor all[CUDA_MAPS] = {
        {"q", p->head_dim, rows_q, p->heads_q, batches, &p->q, p->dtype},
        {"k", p->head_dim, rows_kv, p->heads_kv, pages, &p->k, dtype_kv},
        {"v", p->head_dim_v, rows_kv, p->heads_kv, pages, &p->v, dtype_kv},
        {backward ? "d_o" : "o", p->head_dim_v, rows_q, p->heads_q, batches,
         backward ? &p->d_o : &p->o, p->dtype},
    };
    memcpy(tensors, all, sizeof all);
}

/* Nothing will be read of it or written to it. */
static bool is_empty(const struct tensor *t) {
    return t->columns < 1 || t->rows < 1 || t->heads < 1 || t->batches < 1;
}

/* A stride between things of which there is one does not matter. */
static attn_status check_stride(const struct tensor *t, const char *name, int64_t stride,
                                int64_t count, attn_error *error) {
    const int64_t bytes = (int64_t)attn_dtype_size(t->dtype);
    if (count <= 1 || is_empty(t) || (stride > 0 && stride < STRIDE_END / bytes)) {
        return ATTN_OK;
    }
    return attn_fail(error, ATTN_UNSUPPORTED, "%s.%s = %lld elements, it takes 1 to %lld", t->name,
                     name, (long long)stride, (long long)(STRIDE_END / bytes - 1));
}

attn_status maps_check(const attn_problem *p, bool backward, attn_error *error) {
    struct tensor tensors[CUDA_MAPS];
    attn_status status = ATTN_OK;
    list_tensors(p, backward, tensors);
    for (int i = 0; i < CUDA_MAPS && status == ATTN_OK; i++) {
        const struct tensor *t = &tensors[i];
        status = check_stride(t, "batch", t->strides->batch, t->batches, error);
        if (status == ATTN_OK) {
            status = check_stride(t, "head", t->strides->head, t->heads, error);
        }
        if (status == ATTN_OK) {
            status = check_stride(t, "row", t->strides->row, t->rows, error);
        }
    }
    return status;
}

/* A map has no dimension of 0, and no stride that breaks a rule, used or not. */
static cu_result encode(const struct cuda *cuda, const struct tensor *t, int rows, int heads,
                        int tile_dim, struct attn_tensor_map *map) {
    const bool fp8 = t->dtype > ATTN_BF16;
    const int64_t bytes = (int64_t)attn_dtype_size(t->dtype);
    const int64_t row_bytes = (t->columns * bytes + MAP_BYTES - 1) / MAP_BYTES * MAP_BYTES;
    const int row = heads > 0 ? 2 : 1, head = heads > 0 ? 1 : 2; /* dimensions */
    int64_t counts[RANK] = {t->columns, 0, 0, t->batches};
    int64_t steps[RANK] = {1, 0, 0, t->strides->batch};
    uint32_t box[RANK] = {fp8 ? (uint32_t)tile_dim : BOX_COLUMNS, 1, 1, 1};
    counts[row] = t->rows;
    counts[head] = t->heads;
    steps[row] = t->strides->row;
    steps[head] = t->strides->head;
    box[row] = (uint32_t)(heads > 0 ? rows / heads : rows);
    box[head] = (uint32_t)(heads > 0 ? heads : 1);
    const uint32_t element_strides[RANK] = {1, 1, 1, 1};
    uint64_t dims[RANK], strides[RANK - 1];
    for (int i = 0; i < RANK; i++) {
        const int64_t count = is_empty(t) && (i > 0 || counts[i] < 1) ? 1 : counts[i];
        dims[i] = (uint64_t)count;
        if (i > 0) {
            strides[i - 1] = (uint64_t)(count > 1 ? steps[i] * bytes : row_bytes);
        }
    }
    return cuda->driver.cuTensorMapEncodeTiled(
        map,
        fp8                     ? CU_MAP_UINT8
        : t->dtype == ATTN_FP16 ? CU_MAP_FP16
                                : CU_MAP_BF16,
        RANK, stand_in(), dims, strides, box, element_strides, CU_MAP_INTERLEAVE_NONE,
        fp8 && tile_dim == 64 ? CU_MAP_SWIZZLE_64B : CU_MAP_SWIZZLE_128B, CU_MAP_PROMOTE_L2_128B,
        CU_MAP_FILL_ZEROS);
}

attn_status maps_encode(struct cuda *cuda, const attn_problem *p, bool backward, int rows_q,
                        int heads_q, int rows_kv, int tile_dim, struct cuda_geometry *geometry,
                        attn_error *error) {
    const bool cut = p->page_size > 0 && p->page_size < rows_kv;
    const int keys = cut ? (int)p->page_size : rows_kv;
    const int rows[CUDA_MAPS] = {rows_q, keys, keys, backward ? rows_q : BOX_ROWS_O};
    struct tensor tensors[CUDA_MAPS];
    list_tensors(p, backward, tensors);
    for (int i = 0; i < CUDA_MAPS; i++) {
        struct attn_tensor_map map;
        const int heads = i == 0 ? heads_q : 0;
        const cu_result code = encode(cuda, &tensors[i], rows[i], heads, tile_dim, &map);
        if (code != CU_SUCCESS) {
            char what[96];
            snprintf(what, sizeof what, "the tensor map of %s, in boxes of %d rows, cannot be made",
                     tensors[i].name, rows[i]);
            return cuda_fail(cuda, code, error, what);
        }
        memcpy(geometry->maps[i], &map, sizeof map);
    }
    return ATTN_OK;
}

/* NULL: there is nothing in that tensor, and nothing will be read. */
cu_result maps_fill(const struct cuda *cuda, const struct cuda_geometry *geometry,
                    const void *const addresses[CUDA_MAPS],
                    struct attn_tensor_map *const maps[CUDA_MAPS]) {
    cu_result code = CU_SUCCESS;
    for (int i = 0; i < CUDA_MAPS && code == CU_SUCCESS; i++) {
        memcpy(maps[i], geometry->maps[i], sizeof *maps[i]);
        if (addresses[i] != NULL) {
            code = cuda->driver.cuTensorMapReplaceAddress(maps[i], (void *)(uintptr_t)addresses[i]);
        }
    }
    return code;
}
