/* SPDX-License-Identifier: Apache-2.0
 *
 * plan.c - which problems a GPU variant takes, and the launch of one that it takes.
 */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cuda/split.h"

enum {
    ROW_BYTES = 16,   /* every row of Q, K, V and O begins at a multiple: cp.async */
    SPLIT_KEYS = 128, /* of a split that a kernel chooses, at least (kernels/hopper/mixed.h) */
    GRID_YZ = 65535,  /* CTAs in the second and third dimension of a grid */
    MOST_SMS = 65536  /* a persistent CTA counts up to so far past the last tile */
};

/* Groups of heads that are scheduled together. Causal: the longest Q tiles of all heads come first,
 * so heads are cut into sections whose K and V stay in L2. */
static int64_t section_groups(const struct kernel_family *family, const struct cut *cut,
                              const attn_problem *p) {
    if ((p->causal == ATTN_CAUSAL_NONE && p->window_right < 0) || cut->groups == 0) {
        return 1;
    }
    const int64_t bytes =
        (p->head_dim + p->head_dim_v) * (int64_t)attn_dtype_size((attn_dtype)p->dtype_kv);
    const int64_t sharing = p->heads_q / p->heads_kv / cut->packed_heads; /* groups to a KV head */
    const double fit = (double)family->l2_section_mib * 0x1p20 * (double)sharing /
                       ((double)bytes * (double)p->seq_kv);
    if (!(fit < (double)cut->groups)) {
        return cut->groups;
    }
    const int64_t most = fit > 1.0 ? (int64_t)fit : 1;
    const int64_t sections = (cut->groups + most - 1) / most;
    return (cut->groups + sections - 1) / sections;
}

/* ---- applies --------------------------------------------------------------------------------- */

static attn_status check_causal(enum causal_support support, const attn_problem *p,
                                attn_error *error) {
    if (support == CAUSAL_NEVER && p->causal != ATTN_CAUSAL_NONE) {
        return attn_fail(error, ATTN_UNSUPPORTED, "causal is %s, it takes no causal mask",
                         p->causal == ATTN_CAUSAL_TOP_LEFT ? "TOP_LEFT" : "BOTTOM_RIGHT");
    }
    if (support == CAUSAL_ALWAYS && p->causal == ATTN_CAUSAL_NONE) {
        return attn_fail(error, ATTN_UNSUPPORTED, "causal is NONE, it takes causal problems only");
    }
    return ATTN_OK;
}

/* Kernels count positions from the first query in 32 bits. */
static attn_status check_offset(const attn_problem *p, attn_error *error) {
    const int64_t shift = p->q_offset - p->kv_offset;
    const int64_t most = INT32_MAX - p->seq_q - p->seq_kv;
    if (shift != 0 && (shift > most || -shift > most)) {
        return attn_fail(error, ATTN_UNSUPPORTED,
                         "q_offset - kv_offset = %lld with sequences of %lld and %lld, expected "
                         "distances below 2^31",
                         (long long)shift, (long long)p->seq_q, (long long)p->seq_kv);
    }
    return ATTN_OK;
}

static attn_status check_dim(const char *name, int64_t dim, const attn_variant *v,
                             attn_error *error) {
    if (dim <= v->head_dim_max && dim % v->head_dim_multiple == 0) {
        return ATTN_OK;
    }
    if (v->head_dim_max == v->head_dim_multiple) {
        return attn_fail(error, ATTN_UNSUPPORTED, "%s = %lld, it takes %d only", name,
                         (long long)dim, (int)v->head_dim_max);
    }
    return attn_fail(error, ATTN_UNSUPPORTED, "%s = %lld, it takes multiples of %d up to %d", name,
                     (long long)dim, (int)v->head_dim_multiple, (int)v->head_dim_max);
}

static attn_status check_head_dims(const struct variant *variant, const attn_problem *p,
                                   attn_error *error) {
    const attn_status status = check_dim("head_dim", p->head_dim, &variant->info, error);
    if (status != ATTN_OK || p->head_dim_v == p->head_dim) {
        return status;
    }
    if (!kernel_families[variant->family].head_dim_v) {
        return attn_fail(error, ATTN_UNSUPPORTED,
                         "head_dim_v = %lld, it takes head_dim = %lld only",
                         (long long)p->head_dim_v, (long long)p->head_dim);
    }
    return check_dim("head_dim_v", p->head_dim_v, &variant->info, error);
}

/* MLA: what a family needs of V. */
static attn_status check_v(const struct kernel_family *family, const attn_problem *p,
                           attn_error *error) {
    if (family->v_in_k > 0 && !p->v_in_k) {
        return attn_fail(error, ATTN_UNSUPPORTED,
                         "v_in_k is false, it takes a V that is the first columns of K only");
    }
    if (family->v_in_k > 0 && p->head_dim_v > family->v_in_k) {
        return attn_fail(error, ATTN_UNSUPPORTED, "head_dim_v = %lld, it takes at most %d",
                         (long long)p->head_dim_v, family->v_in_k);
    }
    return ATTN_OK;
}

/* A stride between things of which there is one does not matter. */
attn_status plan_check_strides(const char *name, const attn_strides *s, const attn_problem *p,
                               attn_dtype dtype, int64_t heads, int64_t rows, attn_error *error) {
    const int64_t batches = p->packed ? 1 : p->batch; /* packed: their stride is not used */
    const int64_t bytes = (int64_t)attn_dtype_size(dtype);
    const struct {
        const char *name;
        int64_t stride, count;
    } all[] = {{"batch", s->batch, batches}, {"head", s->head, heads}, {"row", s->row, rows}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (all[i].count > 1 && all[i].stride * bytes % ROW_BYTES != 0) {
            return attn_fail(error, ATTN_UNSUPPORTED,
                             "%s.%s = %lld elements, it takes strides of a multiple of %d bytes",
                             name, all[i].name, (long long)all[i].stride, (int)ROW_BYTES);
        }
    }
    return ATTN_OK;
}

static attn_status check_memory(const attn_problem *p, attn_error *error) {
    if (p->alignment < ROW_BYTES) {
        return attn_fail(error, ATTN_UNSUPPORTED, "alignment = %d, it takes %d or more",
                         (int)p->alignment, (int)ROW_BYTES);
    }
    const int64_t rows_q = p->packed ? p->total_q : p->seq_q;
    attn_problem pool = *p; /* its pages are batches */
    pool.batch = p->num_pages;
    pool.packed = false;
    const bool paged = p->page_size > 0;
    const attn_dtype dtype_kv = (attn_dtype)p->dtype_kv;
    const attn_problem *kv = paged ? &pool : p;
    const int64_t rows_kv = paged ? p->page_size : p->packed ? p->total_kv : p->seq_kv;
    attn_status status = plan_check_strides("q", &p->q, p, p->dtype, p->heads_q, rows_q, error);
    if (status == ATTN_OK) {
        status = plan_check_strides("k", &p->k, kv, dtype_kv, p->heads_kv, rows_kv, error);
    }
    if (status == ATTN_OK) {
        status = plan_check_strides("v", &p->v, kv, dtype_kv, p->heads_kv, rows_kv, error);
    }
    if (status == ATTN_OK) {
        status = plan_check_strides("o", &p->o, p, p->dtype, p->heads_q, rows_q, error);
    }
    return status;
}

/* Factors that a kernel gets in fp32, in the exponent of 2. */
static attn_status check_factors(const struct kernel_family *family, const attn_problem *p,
                                 attn_error *error) {
    if (family->positive_scale && !(p->scale > 0.0F)) {
        return attn_fail(error, ATTN_UNSUPPORTED, "scale = %g, it takes scales above 0",
                         (double)p->scale);
    }
    const struct {
        const char *name;
        float value;
    } all[] = {{"scale", p->scale}, {"softcap", problem_softcap(p)}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (!isfinite((float)((double)all[i].value * LOG2_E))) {
            return attn_fail(error, ATTN_UNSUPPORTED,
                             "%s = %g, its product with log2(e) is beyond fp32", all[i].name,
                             (double)all[i].value);
        }
    }
    return ATTN_OK;
}

static attn_status check_grid(const struct variant *variant, const attn_problem *p,
                              attn_error *error) {
    const struct cut cut = cuda_cut_rows(variant, p);
    const double blocks = (double)cut.groups * (double)cut.tiles;
    const int32_t block_q = variant->info.block_q, most = INT32_MAX - MOST_SMS;
    if (blocks > most) {
        return attn_fail(error, ATTN_UNSUPPORTED,
                         "%.0f Q tiles of %d rows, a grid has at most %d CTAs", blocks,
                         (int)block_q, (int)most);
    }
    const int64_t most_rows = (INT32_MAX - block_q) / cut.packed_heads;
    if (p->seq_q > most_rows) { /* rows are counted to the end of the last tile */
        return attn_fail(error, ATTN_UNSUPPORTED, "seq_q = %lld, it takes at most %lld",
                         (long long)p->seq_q, (long long)most_rows);
    }
    const bool solid = kernel_families[variant->family].grid == GRID_3D;
    if (solid && (cut.tiles > GRID_YZ || p->batch > GRID_YZ)) {
        const bool tiles = cut.tiles > GRID_YZ;
        return attn_fail(error, ATTN_UNSUPPORTED, "%s = %lld, it takes at most %lld",
                         tiles ? "seq_q" : "batch", (long long)(tiles ? p->seq_q : p->batch),
                         (long long)GRID_YZ * (tiles ? variant->info.block_q : 1));
    }
    return ATTN_OK;
}

bool cuda_runs(const struct cuda *cuda, const char *arch) {
    int oldest = 0;
    char suffix = '\0';
    const int fields = sscanf(arch, "sm_%d%c", &oldest, &suffix);
    const int device = 10 * cuda->major + cuda->minor;
    return fields == 2 ? device == oldest : fields == 1 && device >= oldest;
}

static attn_status check_device(const struct cuda *cuda, const struct variant *variant,
                                attn_error *error) {
    const attn_variant *v = &variant->info;
    if (!variant->runs) {
        const char last = v->arch[strlen(v->arch) - 1];
        return attn_fail(error, ATTN_UNSUPPORTED, "it is for %s%s, this GPU is sm_%d", v->arch,
                         last >= '0' && last <= '9' ? " and newer" : "",
                         10 * cuda->major + cuda->minor);
    }
    if (v->shared_bytes > cuda->shared) {
        return attn_fail(error, ATTN_UNSUPPORTED,
                         "it needs %d bytes of shared memory, this GPU gives a CTA %d",
                         (int)v->shared_bytes, cuda->shared);
    }
    return ATTN_OK;
}

/* The keys that one TMA load brings, and the map of K has in a box. */
static int keys_of_load(const struct variant *variant) {
    const attn_variant *v = &variant->info;
    return v->block_kv / (kernel_families[variant->family].tma == TMA_WARP ? v->warps : 1);
}

/* Boxes of a load are whole pages, or in one page; a swizzle has 8 rows. */
static attn_status check_pages(const struct variant *variant, const attn_problem *p,
                               attn_error *error) {
    const int64_t keys = keys_of_load(variant);
    if (p->page_size == 0 || p->page_size % keys == 0 ||
        (keys % p->page_size == 0 && p->page_size % 8 == 0) ||
        kernel_families[variant->family].any_pages) {
        return ATTN_OK;
    }
    return attn_fail(error, ATTN_UNSUPPORTED,
                     "page_size = %lld, it takes 8, 16, 32 and multiples of %lld",
                     (long long)p->page_size, (long long)keys);
}

attn_status cuda_applies(const struct cuda *cuda, const struct variant *variant,
                         const attn_problem *p, attn_error *error) {
    const struct kernel_family *family = &kernel_families[variant->family];
    if (family->direction == ATTN_APPEND || family->direction == ATTN_MERGE) {
        const attn_status fits = family->direction == ATTN_APPEND ? append_check(variant, p, error)
                                                                  : merge_check(p, error);
        const attn_status dims = fits == ATTN_OK ? check_head_dims(variant, p, error) : fits;
        return dims == ATTN_OK ? check_device(cuda, variant, error) : dims;
    }
    const bool backward = family->direction == ATTN_BACKWARD;
    attn_status status = check_causal(family->causal, p, error);
    if (status == ATTN_OK) {
        status = check_offset(p, error);
    }
    if (status == ATTN_OK) {
        status = check_head_dims(variant, p, error);
    }
    if (status == ATTN_OK) {
        status = check_v(family, p, error);
    }
    if (status == ATTN_OK) {
        status = check_memory(p, error);
    }
    if (status == ATTN_OK && family->tma != TMA_NONE) {
        status = maps_check(p, backward, error);
    }
    if (status == ATTN_OK && family->tma != TMA_NONE) {
        status = check_pages(variant, p, error);
    }
    if (status == ATTN_OK) {
        status = check_factors(family, p, error);
    }
    if (status == ATTN_OK) {
        status = backward ? backward_check(variant, p, error) : check_grid(variant, p, error);
    }
    return status != ATTN_OK ? status : check_device(cuda, variant, error);
}

/* ---- launch ---------------------------------------------------------------------------------- */

static void fill_strides(struct attn_args *args, const attn_problem *p) {
    args->q_batch = p->q.batch;
    args->q_head = p->q.head;
    args->q_row = p->q.row;
    args->k_batch = p->k.batch;
    args->k_head = p->k.head;
    args->k_row = p->k.row;
    args->v_batch = p->v.batch;
    args->v_head = p->v.head;
    args->v_row = p->v.row;
    args->o_batch = p->o.batch;
    args->o_head = p->o.head;
    args->o_row = p->o.row;
    args->lse_batch = p->lse.batch;
    args->lse_head = p->lse.head;
    args->lse_row = p->lse.row;
}

static void fill_scales(struct attn_args *args, const attn_problem *p) {
    args->k_scale_batch = p->k_scale.batch;
    args->k_scale_head = p->k_scale.head;
    args->k_scale_row = p->k_scale.row;
    args->v_scale_batch = p->v_scale.batch;
    args->v_scale_head = p->v_scale.head;
    args->v_scale_row = p->v_scale.row;
    args->dtype_kv = p->dtype_kv;
}

static void fill_mask(struct attn_args *args, const attn_problem *p) {
    args->causal = p->causal != ATTN_CAUSAL_NONE;
    args->diagonal = diagonal_offset(p, p->seq_q, p->seq_kv);
    args->top_left = p->causal == ATTN_CAUSAL_TOP_LEFT;
    args->left = p->window_left;
    args->right = args->causal ? 0 : p->window_right;
    args->shift = (int)(p->q_offset - p->kv_offset);
}

static void fill_pages(struct attn_args *args, const attn_problem *p) {
    if (p->page_size > 0) {
        int shift = 31;
        while ((int64_t)1 << (shift - 31) < p->page_size) {
            shift++;
        }
        args->block_table_stride = p->block_table_stride;
        args->page_size = (int)p->page_size;
        args->num_pages = (int)p->num_pages;
        args->page_factor = ATTN_PAGE_FACTOR(p->page_size, shift);
        args->page_shift = shift;
    }
}

/* A quotient beyond fp32 becomes the largest number: tanh is 1 there, and 0 times it is 0. */
static float softcap_scale(const attn_problem *p) {
    const double quotient = (double)p->scale / (double)problem_softcap(p);
    return (float)fmax(-(double)FLT_MAX, fmin((double)FLT_MAX, quotient));
}

static void fill_options(struct attn_args *args, const attn_problem *p) {
    if (p->softcap > 0.0F) {
        args->softcap_log2 = (float)((double)problem_softcap(p) * LOG2_E);
        args->softcap_scale = softcap_scale(p);
    }
    if (p->alibi) {
        args->alibi = 1;
        args->alibi_batch = p->alibi_batch_stride;
    }
    if (p->bias) {
        args->bias_batch = p->bias_strides.batch;
        args->bias_head = p->bias_strides.head;
        args->bias_row = p->bias_strides.row;
        args->bias_col = p->bias_strides.col;
        args->bias_dtype = (int)p->bias_dtype;
    }
    if (p->mask) {
        args->mask_batch = p->mask_strides.batch;
        args->mask_head = p->mask_strides.head;
        args->mask_row = p->mask_strides.row;
        args->mask_col = p->mask_strides.col;
    }
}

void plan_fill_args(struct attn_args *args, const attn_problem *p) {
    fill_strides(args, p);
    fill_pages(args, p);
    fill_scales(args, p);
    fill_mask(args, p);
    fill_options(args, p);
}

static void fill_grid(const struct cuda *cuda, const struct kernel_family *family,
                      const struct cut *cut, int64_t num_splits, const attn_problem *p,
                      unsigned grid[3]) {
    const int64_t tiles = cut->groups * cut->tiles;
    const int64_t most = family->chunk_keys > 0 /* SPLIT_DEVICE: splits */
                             ? cuda_count_chunks(p->seq_kv)
                             : (p->seq_kv + SPLIT_KEYS - 1) / SPLIT_KEYS;
    int64_t ctas = tiles * num_splits;
    if (family->split_kv == SPLIT_DEVICE) {
        ctas = tiles * (most > 1 ? most : 1);
        ctas = ctas < ATTN_MIXED_CTAS ? ctas : ATTN_MIXED_CTAS;
    }
    const bool solid = family->grid == GRID_3D, persistent = family->grid == GRID_PERSISTENT;
    grid[0] = (unsigned)(solid                              ? p->heads_q
                         : persistent && ctas > cuda->units ? cuda->units
                                                            : ctas);
    grid[1] = (unsigned)(solid ? cut->tiles : 1);
    grid[2] = (unsigned)(solid ? p->batch : 1);
}

/* The launch of a variant whose kernel is loaded; a context is current. */
static attn_status fill_geometry(struct cuda *cuda, const struct variant *variant,
                                 const attn_problem *p, struct cuda_geometry *geometry,
                                 attn_error *error) {
    const attn_variant *v = &variant->info;
    const struct kernel_family *family = &kernel_families[variant->family];
    const struct cut cut = cuda_cut_rows(variant, p);
    const struct split split = cuda_choose_splits(cuda, variant, &cut, p);
    *geometry = (struct cuda_geometry){
        .kernel = variant->kernel,
        .block = (unsigned)(32 * v->warps),
        .shared_bytes = (unsigned)v->shared_bytes,
        /* older drivers cannot capture such a launch into a graph */
        .pdl = family->pdl && cuda->driver.version >= 12030,
        .has_maps = family->tma != TMA_NONE,
        .cluster = split.cluster > 1 ? (unsigned)split.cluster : 0,
        .args =
            {
                .heads_q = (int)p->heads_q,
                .heads_per_kv = (int)(p->heads_q / p->heads_kv),
                .seq_q = (int)p->seq_q,
                .seq_kv = (int)p->seq_kv,
                .tiles_q = (int)cut.tiles,
                .scale_log2 = (float)(p->scale * LOG2_E),
                .head_dim = (int)p->head_dim,
                .head_dim_v = (int)p->head_dim_v,
                .packed_heads = (int)cut.packed_heads,
                .section_heads = split.cluster > split.num_splits /* neighbours of a sequence */
                                     ? 1
                                     : (int)section_groups(family, &cut, p),
                .heads_all = (int)cut.groups,
                .num_splits = (int)split.num_splits,
            },
    };
    cuda_size_workspace(variant, &cut, &split, p, geometry);
    fill_grid(cuda, family, &cut, split.num_splits, p, geometry->grid);
    plan_fill_args(&geometry->args, p);
    if (family->tma != TMA_NONE) {
        const int keys = keys_of_load(variant);
        const int heads = splits_items(family) ? geometry->args.packed_heads : 0;
        return maps_encode(cuda, p, false, v->block_q, heads, keys, v->head_dim_max, geometry,
                           error);
    }
    return ATTN_OK;
}

attn_status cuda_plan(struct cuda *cuda, struct variant *variant, const attn_problem *p,
                      struct cuda_geometry *geometry, attn_error *error) {
    bool pushed = false;
    attn_status status = cuda_enter(cuda, &pushed, error);
    if (status != ATTN_OK) {
        return status;
    }
    status = cuda_load(cuda, variant, error);
    if (status == ATTN_OK) {
        switch (kernel_families[variant->family].direction) {
        case ATTN_FORWARD: status = fill_geometry(cuda, variant, p, geometry, error); break;
        case ATTN_BACKWARD: status = backward_geometry(cuda, variant, p, geometry, error); break;
        case ATTN_APPEND: append_geometry(variant, p, geometry); break;
        case ATTN_MERGE: merge_geometry(variant, p, geometry); break;
        }
    }
    if (status == ATTN_OK) {
        const attn_direction direction = kernel_families[variant->family].direction;
        geometry->blind = (direction == ATTN_BACKWARD || (direction == ATTN_FORWARD && !p->sink)) &&
                          blind_check(p);
    }
    cuda_leave(cuda, pushed);
    return status;
}
