/* SPDX-License-Identifier: Apache-2.0
 *
 * backward.c - the launches of a backward kernel: LSE and D of every row into the workspace; d_bias
 * and parts of d_alibi_slopes, where they are wanted; the tiles of dQ, dK and dV
 * (kernels/common/backward.h).
 *
 * Workspace: lse_log2 | delta, fp32, one of each for every row of every query head, sequences
 * padded to ATTN_STAT_ROWS. Where CTAs add up dQ (bwd_hopper): | dq_sum, kv_sum, fp32 | turns |
 * kv_turns | ticket. With ALiBi: | slope_sums, fp32. It needs no initialisation: a launch writes
 * what a later one reads.
 */
#include <stdio.h>
#include <string.h>

#include "core/plan.h"
#include "cuda/device.h"

/* bwd_hopper takes the derivative of softcap from P and the LSE: 1.5e-6 / softcap of it is lost. */
static const float LEAST_SOFTCAP = 0.0078125F;

/* One CTA adds up dQ of a tile, or several do (kernels/hopper/backward/dq.h). */
static bool sums_dq(const struct variant *variant) {
    return kernel_families[variant->family].tma != TMA_NONE;
}

/* Rows of a head (packed), or of one (batch, head), in the workspace. */
static int64_t stat_rows(const attn_problem *p) {
    return ATTN_STAT_ROWS * (p->packed ? p->total_q / ATTN_STAT_ROWS + p->batch
                                       : divide_up(p->seq_q, ATTN_STAT_ROWS));
}

static int64_t all_stat_rows(const attn_problem *p) {
    return stat_rows(p) * p->heads_q * (p->packed ? 1 : p->batch);
}

/* bwd_hopper: into how many CTAs the heads of a group are cut. Each adds its dK and dV to those of
 * the one before it, so they are few; and none where key tiles fill the GPU. */
enum { MOST_PARTS = 8, ENOUGH_WAVES = 8 };
enum { MOST_CTAS = 4 }; /* of a cluster */

static int64_t group_parts(const struct variant *variant, const attn_problem *p, int64_t sms) {
    const int64_t heads = p->heads_q / p->heads_kv;
    const double tiles = (double)p->batch * (double)p->heads_kv *
                         (double)divide_up(p->seq_kv, variant->info.block_kv);
    int64_t parts = tiles < (double)(ENOUGH_WAVES * sms) ? MOST_PARTS : 1;
    while (heads % parts != 0) {
        parts--;
    }
    return parts;
}

/* bwd_hopper, not bwd_hopper_wide: the key tiles of a short sequence form a cluster if all CTAs run
 * at once. H200, time relative to single CTAs: 0.77 (64 CTAs, clusters of 4), 1.13 (128 CTAs,
 * clusters of 8), 1.05 to 1.5 where clusters wait for SMs. */
static int64_t cluster_of(const struct variant *variant, const attn_problem *p, int64_t parts,
                          int64_t sms) {
    const int64_t tiles = divide_up(p->seq_kv, variant->info.block_kv);
    const int64_t places = sms * 7 / 8;
    const bool fit =
        (double)p->batch * (double)p->heads_kv * (double)(parts * tiles) <= (double)places;
    const bool few = variant->family == FAMILY_bwd_hopper && tiles > 1 && tiles <= MOST_CTAS;
    return few && fit ? tiles : 0;
}

/* Tiles of keys: dK and dV apart where one CTA has no registers for both. `parts`: group_parts. */
static double tile_ctas(const struct variant *variant, const attn_problem *p, int64_t parts) {
    const attn_variant *v = &variant->info;
    const double groups = (double)p->batch * (double)p->heads_kv;
    if (sums_dq(variant)) {
        return groups * (double)parts * (double)divide_up(p->seq_kv, v->block_kv);
    }
    const double keys = groups * (double)divide_up(p->seq_kv, v->block_q) *
                        (double)ATTN_BWD_KEY_ROLES(v->head_dim_max, (int)attn_dtype_size(p->dtype));
    const double queries =
        (double)p->batch * (double)p->heads_q * (double)divide_up(p->seq_q, v->block_q);
    return keys + queries;
}

/* CTAs of d_sink, and of d_alibi_slopes. */
static double most_sum_ctas(const attn_problem *p) {
    return (double)p->heads_q * (p->sink + p->alibi);
}

/* Warps of the first launch: a lane has 8 columns of eight rows (rows_phase). */
static double row_warps(const struct variant *variant, const attn_problem *p) {
    const int32_t columns = variant->info.head_dim_max;
    const int rows = 8 * (columns <= 64 ? 4 : columns <= 128 ? 2 : 1);
    const int64_t padded = ATTN_STAT_ROWS * divide_up(p->seq_q, ATTN_STAT_ROWS);
    const int64_t of_head = padded / rows;
    return (double)p->batch * (double)p->heads_q * (double)of_head;
}

attn_status backward_check(const struct variant *variant, const attn_problem *p,
                           attn_error *error) {
    const int64_t rows_q = p->packed ? p->total_q : p->seq_q;
    const int64_t rows_kv = p->packed ? p->total_kv : p->seq_kv;
    const struct {
        const char *name;
        const attn_strides *strides;
        int64_t heads, rows;
    } all[] = {{"d_o", &p->d_o, p->heads_q, rows_q},
               {"dq", &p->dq, p->heads_q, rows_q},
               {"dk", &p->dk, p->heads_kv, rows_kv},
               {"dv", &p->dv, p->heads_kv, rows_kv}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        const attn_status status = plan_check_strides(all[i].name, all[i].strides, p, p->dtype,
                                                      all[i].heads, all[i].rows, error);
        if (status != ATTN_OK) {
            return status;
        }
    }
    if (sums_dq(variant) && p->softcap > 0 && p->softcap < LEAST_SOFTCAP) {
        return attn_fail(error, ATTN_UNSUPPORTED, "softcap = %g, it takes 0 or at least %g",
                         (double)p->softcap, (double)LEAST_SOFTCAP);
    }
    if (tile_ctas(variant, p, 1) + most_sum_ctas(p) > INT32_MAX ||
        row_warps(variant, p) > INT32_MAX || p->seq_q > INT32_MAX - 256 ||
        p->seq_kv > INT32_MAX - 256) {
        return attn_fail(error, ATTN_UNSUPPORTED,
                         "seq_q = %lld and seq_kv = %lld with %lld heads in all: more CTAs than a "
                         "grid has",
                         (long long)p->seq_q, (long long)p->seq_kv,
                         (long long)p->batch * (long long)p->heads_q);
    }
    return ATTN_OK;
}

/* PHASE_SCORES is the work of bwd_mma, also where bwd_hopper has the other phases. */
static void set_scores(const struct variant *variant, const attn_problem *p,
                       struct cuda_geometry *geometry) {
    const attn_variant *v = &variant->info;
    geometry->scores = (struct cuda_scores){.kernel = variant->kernel,
                                            .block = (unsigned)(32 * v->warps),
                                            .shared_bytes = (unsigned)v->shared_bytes,
                                            .rows = v->block_q,
                                            .keys = v->block_kv};
    if (p->alibi) {
        geometry->scores.sums = geometry->workspace / sizeof(float);
        geometry->workspace +=
            (size_t)(p->batch * p->heads_q * divide_up(p->seq_q, v->block_q)) * sizeof(float);
    }
}

attn_status cuda_plan_scores(struct cuda *cuda, struct variant *variant, const attn_problem *p,
                             struct cuda_geometry *geometry, attn_error *error) {
    bool pushed = false;
    attn_status status = cuda_enter(cuda, &pushed, error);
    if (status == ATTN_OK) {
        status = cuda_load(cuda, variant, error);
        cuda_leave(cuda, pushed);
    }
    if (status == ATTN_OK) {
        set_scores(variant, p, geometry);
    }
    return status;
}

attn_status backward_geometry(struct cuda *cuda, const struct variant *variant,
                              const attn_problem *p, struct cuda_geometry *geometry,
                              attn_error *error) {
    const attn_variant *v = &variant->info;
    const size_t rows = (size_t)all_stat_rows(p);
    const int64_t parts = sums_dq(variant) ? group_parts(variant, p, cuda->units) : 1;
    *geometry = (struct cuda_geometry){
        .kernel = variant->kernel,
        .grid = {(unsigned)tile_ctas(variant, p, parts), 1, 1},
        .rows_grid = (unsigned)((row_warps(variant, p) + v->warps - 1) / v->warps),
        .block = (unsigned)(32 * v->warps),
        .shared_bytes = (unsigned)v->shared_bytes,
        .block_rows = sums_dq(variant) ? v->block_kv : v->block_q,
        .workspace = 2 * rows * sizeof(float),
        .has_maps = sums_dq(variant),
        .part_heads = (int)(p->heads_q / p->heads_kv / parts),
        .args =
            {
                .heads_q = (int)p->heads_q,
                .heads_per_kv = (int)(p->heads_q / p->heads_kv),
                .seq_q = (int)p->seq_q,
                .seq_kv = (int)p->seq_kv,
                .tiles_q = (int)divide_up(p->seq_q, v->block_q),
                .scale_log2 = (float)(p->scale * LOG2_E),
                .head_dim = (int)p->head_dim,
                .head_dim_v = (int)p->head_dim_v,
                .packed_heads = 1,
                .heads_all = (int)(p->batch * p->heads_q),
                .num_splits = 1,
            },
    };
    plan_fill_args(&geometry->args, p);
    if (!sums_dq(variant)) {
        set_scores(variant, p, geometry);
        return ATTN_OK;
    }
    /* Q, dO and the sums of dQ of the heads that are worked on at one time stay in L2. With a
     * causal mask more heads than that: key tiles wait less for each other (1.09x at S 8192). */
    const int64_t head_bytes = p->seq_q * geometry->part_heads *
                               (2 * p->head_dim + 2 * p->head_dim_v + 4 * (int64_t)v->head_dim_max);
    const int64_t mib =
        kernel_families[variant->family].l2_section_mib * (geometry->args.right >= 0 ? 3 : 1);
    const int64_t all = p->batch * p->heads_q / geometry->part_heads;
    const int64_t heads = head_bytes > 0 ? (mib << 20) / head_bytes : all;
    geometry->args.section_heads = (int)(heads < 1 ? 1 : heads > all ? all : heads);
    geometry->rows_grid += geometry->rows_grid == 0; /* it resets the ticket */
    geometry->dq_floats = rows * (size_t)v->head_dim_max;
    geometry->turns = geometry->dq_floats / ATTN_DQ_FLOATS;
    geometry->cluster = (unsigned)cluster_of(variant, p, parts, cuda->units);
    if (parts > 1) {
        const size_t tiles = (size_t)(p->batch * p->heads_kv * divide_up(p->seq_kv, v->block_kv));
        geometry->kv_floats = tiles * 2 * (size_t)(v->block_kv * v->head_dim_max);
        geometry->kv_turns = 2 * tiles; /* one for each consumer warpgroup */
    }
    geometry->workspace += (geometry->dq_floats + geometry->kv_floats) * sizeof(float) +
                           (geometry->turns + geometry->kv_turns + 1) * sizeof(unsigned);
    return maps_encode(cuda, p, true, v->block_q, 0, v->block_kv, v->head_dim_max, geometry, error);
}

static struct attn_gradient_strides strides_of(const attn_strides *s) {
    return (struct attn_gradient_strides){s->batch, s->head, s->row};
}

static struct attn_backward_args arguments_of(const attn_problem *p,
                                              const struct cuda_geometry *geometry,
                                              const attn_tensors *t, void *workspace) {
    struct attn_backward_args b = {
        .a = geometry->args,
        .d_o = t->d_o,
        .dq = t->dq,
        .dk = t->dk,
        .dv = t->dv,
        .s_d_o = strides_of(&p->d_o),
        .s_dq = strides_of(&p->dq),
        .s_dk = strides_of(&p->dk),
        .s_dv = strides_of(&p->dv),
        .d_sink = p->sink ? t->d_sink : NULL,
        .d_bias = p->bias ? t->d_bias : NULL,
        .d_slopes = p->alibi ? t->d_alibi_slopes : NULL,
        .lse_log2 = workspace,
        .stat_rows = stat_rows(p),
        .scale = p->scale,
        .tiles_kv = (int)divide_up(p->seq_kv, geometry->block_rows),
        .part_heads = geometry->part_heads,
        .cluster = (int)geometry->cluster,
    };
    if (geometry->scores.kernel != NULL) {
        b.score_tiles = (int)divide_up(p->seq_q, geometry->scores.rows);
    }
    if (workspace != NULL) {
        b.delta = b.lse_log2 + all_stat_rows(p);
        b.slope_sums = b.d_slopes != NULL ? b.lse_log2 + geometry->scores.sums : NULL;
    }
    if (workspace != NULL && geometry->has_maps) {
        b.dq_sum = b.delta + all_stat_rows(p);
        b.kv_sum = geometry->kv_floats > 0 ? b.dq_sum + geometry->dq_floats : NULL;
        b.turns = (unsigned *)(b.dq_sum + geometry->dq_floats + geometry->kv_floats);
        b.kv_turns = geometry->kv_floats > 0 ? b.turns + geometry->turns : NULL;
        b.ticket = b.turns + geometry->turns + geometry->kv_turns;
    }
    cuda_fill_pointers(&b.a, p, t);
    return b;
}

/* Tiles of d_bias, as bias_phase of kernels/portable/bwd_scores.h counts them, and tiles of rows of
 * all heads for d_alibi_slopes. */
static double score_ctas(const attn_problem *p, const struct cuda_scores *scores,
                         const struct attn_backward_args *b) {
    const attn_bias_strides *s = &p->bias_strides;
    const double tiles_q = b->score_tiles;
    double ctas = 0;
    if (b->d_bias != NULL) {
        ctas = (s->batch == 0 ? 1.0 : (double)p->batch) *
               (s->head == 0 ? 1.0 : (double)p->heads_q) * (s->row == 0 ? 1.0 : tiles_q) *
               (s->col == 0 ? 1.0 : (double)divide_up(p->seq_kv, scores->keys));
    }
    if (b->d_slopes != NULL) {
        ctas += (double)p->batch * (double)p->heads_q * tiles_q;
    }
    return ctas;
}

static attn_status check_requests(const attn_problem *p, const struct cuda_scores *scores,
                                  const struct attn_backward_args *b, attn_error *error) {
    const char *name = b->d_bias != NULL ? "d_bias" : "d_alibi_slopes";
    if (b->d_bias == NULL && b->d_slopes == NULL) {
        return ATTN_OK;
    }
    if (scores->kernel == NULL) {
        return attn_fail(error, ATTN_UNSUPPORTED,
                         "tensors.%s is not NULL, and this build has no bwd_mma that computes it",
                         name);
    }
    const double ctas = score_ctas(p, scores, b);
    if (ctas > INT32_MAX) {
        return attn_fail(error, ATTN_UNSUPPORTED,
                         "tensors.%s is not NULL: %.0f CTAs, a grid has at most %d", name, ctas,
                         INT32_MAX);
    }
    return ATTN_OK;
}

attn_status cuda_backward(struct cuda *cuda, const char *name, const attn_problem *p,
                          const struct cuda_geometry *geometry, const attn_tensors *tensors,
                          void *workspace, void *stream, attn_error *error) {
    bool pushed = false;
    struct attn_backward_tma_args args;
    struct attn_backward_args *const b = &args.b;
    *b = arguments_of(p, geometry, tensors, workspace);
    attn_status status = check_requests(p, &geometry->scores, b, error);
    if (status == ATTN_OK && geometry->blind) {
        return blind_run(cuda, p, true, tensors, stream, error);
    }
    if (status == ATTN_OK) {
        status = cuda_enter(cuda, &pushed, error);
    }
    if (status != ATTN_OK) {
        return status;
    }
    cu_result code = CU_SUCCESS;
    if (geometry->has_maps) {
        const void *const addresses[CUDA_MAPS] = {b->a.q, b->a.k, b->a.v, b->d_o};
        struct attn_tensor_map *const maps[CUDA_MAPS] = {&args.q, &args.k, &args.v, &args.d_o};
        code = maps_fill(cuda, geometry, addresses, maps);
    }
    void *const own = geometry->has_maps ? (void *)&args : (void *)b;
    const struct cuda_scores *scores = &geometry->scores;
    const unsigned wanted = (b->d_sink != NULL ? 1U : 0U) + (b->d_slopes != NULL ? 1U : 0U);
    const unsigned step = geometry->cluster > 0 ? geometry->cluster : 1; /* whole clusters */
    const unsigned sums = ((unsigned)p->heads_q * wanted + step - 1) / step * step;
    struct cu_launch_attribute cluster = {.id = CU_LAUNCH_CLUSTER,
                                          .value = {.cluster = {geometry->cluster, 1, 1}}};
    const struct {
        int phase;
        const struct cuda_kernel *kernel;
        void *argument;
        unsigned grid, block, shared_bytes, attributes;
    } launches[] = {
        {ATTN_PHASE_ROWS, geometry->kernel, own, geometry->rows_grid, geometry->block, 0, 0},
        {ATTN_PHASE_SCORES, scores->kernel, b, (unsigned)score_ctas(p, scores, b), scores->block,
         scores->shared_bytes, 0},
        {ATTN_PHASE_TILES, geometry->kernel, own, geometry->grid[0] + sums, geometry->block,
         geometry->shared_bytes, geometry->cluster > 0},
    };
    int n = 0;
    for (; n < 3 && code == CU_SUCCESS; n++) {
        const struct cu_launch launch = {.grid = {launches[n].grid, 1, 1},
                                         .block = {launches[n].block, 1, 1},
                                         .shared_bytes = launches[n].shared_bytes,
                                         .stream = stream,
                                         .attributes = &cluster,
                                         .attribute_count = launches[n].attributes};
        void *arguments[] = {launches[n].argument};
        b->phase = launches[n].phase;
        /* 0: no queries, not wanted, or nothing at all */
        if (launches[n].grid > 0 && launches[n].kernel != NULL) {
            code = cuda->driver.cuLaunchKernelEx(
                &launch, (cu_function)(void *)launches[n].kernel->kernel, arguments, NULL);
        }
    }
    cuda_leave(cuda, pushed);
    if (code != CU_SUCCESS) {
        char what[256];
        n -= n > 0; /* 0: no launch, but the maps */
        snprintf(what, sizeof what,
                 "a launch of %.127s failed (phase %d, grid %u, block %u, %u bytes of dynamic "
                 "shared memory)",
                 name, launches[n].phase, launches[n].grid, launches[n].block,
                 launches[n].shared_bytes);
        return cuda_fail(cuda, code, error, what);
    }
    return ATTN_OK;
}
