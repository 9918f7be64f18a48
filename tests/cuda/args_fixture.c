/* SPDX-License-Identifier: Apache-2.0
 *
 * args_fixture.c - see args_fixture.h.
 */
#include "cuda/args_fixture.h"

#include <math.h>

#include "cuda/cuda_fixture.h"
#include "tool/base/random.h"

/* ---- problems -------------------------------------------------------------------------------- */

attn_strides draw_strides(uint64_t *rng, int64_t rows, int64_t heads, int64_t dim, int broadcast) {
    const int64_t gap = 16 * rng_range(rng, 0, 3);
    attn_strides s;
    if (rng_chance(rng, 50)) { /* batch, heads, rows */
        s.row = dim + gap;
        s.head = rows * s.row + 16 * rng_range(rng, 0, 9);
        s.batch = heads * s.head + 16 * rng_range(rng, 0, 9);
    } else { /* batch, rows, heads */
        s.head = dim + gap;
        s.row = heads * s.head + 16 * rng_range(rng, 0, 9);
        s.batch = rows * s.row + 16 * rng_range(rng, 0, 9);
    }
    if (rng_chance(rng, broadcast)) {
        s.head = 0;
    }
    if (rng_chance(rng, broadcast)) {
        s.batch = 0;
    }
    return s;
}

void draw_options(uint64_t *rng, uint32_t options, attn_problem *p) {
    const struct {
        attn_option option;
        int percent;
    } all[] = {{ATTN_OPTION_WINDOW, 40}, {ATTN_OPTION_SOFTCAP, 40}, {ATTN_OPTION_ALIBI, 40},
               {ATTN_OPTION_BIAS, 40},   {ATTN_OPTION_SINK, 40},    {ATTN_OPTION_USED_KV, 40},
               {ATTN_OPTION_MASK, 40},   {ATTN_OPTION_PAGED, 40},   {ATTN_OPTION_USED_Q, 40},
               {ATTN_OPTION_DRAFT, 40},  {ATTN_OPTION_OFFSETS, 40}};
    enum { OPTIONS = sizeof all / sizeof *all };
    bool wants[OPTIONS];
    for (int i = 0; i < OPTIONS; i++) {
        wants[i] = rng_chance(rng, all[i].percent) && (options & (uint32_t)all[i].option) != 0;
    }
    if (wants[0]) {
        p->window_left = rng_range(rng, -1, p->seq_kv);
        p->window_right = rng_range(rng, -1, 100);
    }
    p->softcap = wants[1] ? (float)rng_range(rng, 1, 50) : 0.0f;
    p->alibi = wants[2];
    p->alibi_batch_stride = wants[2] ? p->heads_q * rng_range(rng, 0, 2) : 0;
    p->bias = wants[3];
    p->bias_dtype = (attn_dtype)rng_range(rng, 0, 2);
    if (wants[3] && rng_chance(rng, 50)) {
        p->bias_strides.col = rng_range(rng, 0, 3);
        p->bias_strides.row = rng_range(rng, 0, 1000);
        p->bias_strides.head = rng_range(rng, 0, 1000);
        p->bias_strides.batch = 0;
    }
    p->mask = wants[6];
    if (wants[6] && rng_chance(rng, 50)) {
        p->mask_strides = (attn_bias_strides){0, rng_range(rng, 0, 1000), rng_range(rng, 0, 1000),
                                              rng_range(rng, 0, 3)};
    }
    if ((options & ATTN_OPTION_FP8_KV) != 0) { /* GPU kernels with it take nothing else */
        p->dtype_kv = (int32_t)rng_range(rng, ATTN_E4M3, ATTN_E5M2);
        p->k_scale = (attn_strides){rng_range(rng, 0, 99), rng_range(rng, 0, 99), 0};
        p->v_scale = (attn_strides){0, rng_range(rng, 0, 99), rng_range(rng, 0, 99)};
    }
    p->sink = wants[4];
    p->used_kv = wants[5] || wants[7];
    p->used_q = wants[8];
    p->offsets = wants[10];
    const int64_t most = INT32_MAX - p->seq_q - p->seq_kv; /* distances fit an int */
    if (most > 0 && rng_chance(rng, 40)) {
        p->kv_offset = rng_range(rng, -9, 9);
        p->q_offset = p->kv_offset + rng_range(rng, -most, most);
    }
    p->draft = wants[9];
    if (wants[7]) {
        p->page_size = rng_chance(rng, 50) ? 1 << rng_range(rng, 0, 30) : rng_range(rng, 1, 1000);
        if ((options & ATTN_OPTION_MASK) == 0) { /* fwd_hopper_decode and _mixed take no others */
            p->page_size = 8 << rng_range(rng, 0, 12);
        }
        p->num_pages = rng_range(rng, 1, 100000);
        p->block_table_stride = rng_range(rng, 0, 1) * rng_range(rng, 1, 1000000);
    }
}

/* ---- struct attn_args ------------------------------------------------------------------------ */

void check_parameter(const attn_variant *variant, int alignment, size_t size) {
    attn_image image = {.size = sizeof image};
    char entry[256], parameter[256];
    bool seen = false;
    for (int32_t n = 0; attn_variant_image(NULL, variant->name, n, &image, NULL) == ATTN_OK; n++) {
        if (image.kind == ATTN_IMAGE_PTX) {
            const char *text = image.data;
            snprintf(entry, sizeof entry, ".entry %s", variant->entry);
            snprintf(parameter, sizeof parameter, ".param .align %d .b8 %s_param_0[%zu]", alignment,
                     variant->entry, size);
            CHECK_EQ(strlen(text), image.bytes);
            CHECK_CONTAINS(strstr(text, entry), parameter);
            seen = true;
        }
    }
    CHECK_MSG(seen, "%s has no PTX", variant->name);
}

void check_strides(const char *name, attn_strides expected, long long batch, long long head,
                   long long row, const attn_problem *p) {
    CHECK_MSG((p->batch == 1 || batch == expected.batch) && head == expected.head &&
                  row == expected.row,
              "%s: strides %lld %lld %lld, expected %lld %lld %lld", name, batch, head, row,
              (long long)expected.batch, (long long)expected.head, (long long)expected.row);
}

static void check_bounds(const struct attn_args *args, const attn_problem *p) {
    CHECK_EQ(args->causal != 0, p->causal != ATTN_CAUSAL_NONE);
    CHECK_EQ(args->top_left, p->causal == ATTN_CAUSAL_TOP_LEFT);
    CHECK_EQ(args->left, p->window_left);
    CHECK_EQ(args->right, p->causal != ATTN_CAUSAL_NONE ? 0 : p->window_right);
    CHECK_EQ(args->shift, p->q_offset - p->kv_offset);
    CHECK_EQ(args->diagonal, (p->causal == ATTN_CAUSAL_TOP_LEFT ? 0 : p->seq_kv - p->seq_q) +
                                 p->q_offset - p->kv_offset);
}

static void check_near(const char *name, float value, double expected) {
    CHECK_MSG(fabs((double)value - expected) <= 1.2e-7 * fabs(expected), "%s = %g, expected %g",
              name, (double)value, expected);
}

/* Divisions by page_size around each multiple near a random key, and the largest keys. */
static void check_pages(const struct attn_args *args, const attn_problem *p,
                        const attn_tensors *t) {
    const bool paged = p->page_size > 0;
    CHECK(args->block_table == (paged ? t->block_table : NULL));
    CHECK_EQ(args->block_table_stride, paged ? p->block_table_stride : 0);
    CHECK_EQ(args->page_size, p->page_size);
    CHECK_EQ(args->num_pages, paged ? p->num_pages : 0);
    uint64_t rng = (uint64_t)p->page_size;
    for (int n = 0; paged && n < 100; n++) {
        const int64_t near = rng_range(&rng, 0, INT32_MAX) / p->page_size * p->page_size;
        const int64_t key = n == 0 ? INT32_MAX : n == 1 ? 0 : near - (n % 2 && near > 0);
        CHECK_EQ((int64_t)((uint64_t)key * args->page_factor >> args->page_shift),
                 key / p->page_size);
    }
}

/* Unused fields are 0, whatever the tensors hold. */
static void check_options(const struct attn_args *args, const attn_problem *p,
                          const attn_tensors *t) {
    const bool softcap = p->softcap > 0;
    check_near("softcap_log2", args->softcap_log2, (double)p->softcap * 1.4426950408889634);
    check_near("softcap_scale", args->softcap_scale,
               softcap ? (double)p->scale / (double)p->softcap : 0.0);
    CHECK_EQ(args->alibi, p->alibi);
    CHECK(args->alibi_slopes == (p->alibi ? t->alibi_slopes : NULL));
    CHECK_EQ(args->alibi_batch, p->alibi ? p->alibi_batch_stride : 0);
    CHECK(args->sink == (p->sink ? t->sink : NULL));
    CHECK(args->bias == (p->bias ? t->bias : NULL));
    CHECK_EQ(args->bias_batch, p->bias ? p->bias_strides.batch : 0);
    CHECK_EQ(args->bias_head, p->bias ? p->bias_strides.head : 0);
    CHECK_EQ(args->bias_row, p->bias ? p->bias_strides.row : 0);
    CHECK_EQ(args->bias_col, p->bias ? p->bias_strides.col : 0);
    CHECK_EQ(args->bias_dtype, p->bias ? (int)p->bias_dtype : 0);
    CHECK(args->mask == (p->mask ? t->mask : NULL));
    CHECK_EQ(args->mask_batch, p->mask ? p->mask_strides.batch : 0);
    CHECK_EQ(args->mask_head, p->mask ? p->mask_strides.head : 0);
    CHECK_EQ(args->mask_row, p->mask ? p->mask_strides.row : 0);
    CHECK_EQ(args->mask_col, p->mask ? p->mask_strides.col : 0);
    CHECK(args->cu_seqlens_q == (p->packed ? t->cu_seqlens_q : NULL));
    CHECK(args->cu_seqlens_kv == (!p->packed         ? NULL
                                  : p->page_size > 0 ? t->cu_seqlens_q
                                                     : t->cu_seqlens_kv));
    check_pages(args, p, t);
    const bool fp8 = p->dtype_kv > (int32_t)ATTN_BF16;
    CHECK(args->k_scale == (fp8 ? t->k_scale : NULL) && args->v_scale == (fp8 ? t->v_scale : NULL));
    CHECK_EQ(args->k_scale_batch, p->k_scale.batch);
    CHECK_EQ(args->k_scale_head, p->k_scale.head);
    CHECK_EQ(args->k_scale_row, p->k_scale.row);
    CHECK_EQ(args->v_scale_batch, p->v_scale.batch);
    CHECK_EQ(args->v_scale_head, p->v_scale.head);
    CHECK_EQ(args->v_scale_row, p->v_scale.row);
    CHECK_EQ(args->dtype_kv, p->dtype_kv);
    CHECK(args->used_kv == (p->used_kv ? t->used_kv : NULL));
    CHECK(args->used_q == (p->used_q ? t->used_q : NULL));
    CHECK(args->offsets == (p->offsets ? t->offsets : NULL));
    CHECK((const void *)args->draft_mask == (p->draft ? t->draft_mask : NULL));
}

void check_args(const struct attn_args *args, const attn_problem *p, const attn_tensors *t) {
    CHECK(args->q == t->q && args->k == t->k && args->v == t->v && args->o == t->o);
    CHECK(args->lse == t->lse);
    check_strides("q", p->q, args->q_batch, args->q_head, args->q_row, p);
    check_strides("k", p->k, args->k_batch, args->k_head, args->k_row, p);
    check_strides("v", p->v, args->v_batch, args->v_head, args->v_row, p);
    check_strides("o", p->o, args->o_batch, args->o_head, args->o_row, p);
    check_strides("lse", p->lse, args->lse_batch, args->lse_head, args->lse_row, p);
    CHECK_EQ(args->heads_q, p->heads_q);
    CHECK_EQ(args->heads_per_kv, p->heads_q / p->heads_kv);
    CHECK_EQ(args->seq_q, p->seq_q);
    CHECK_EQ(args->seq_kv, p->seq_kv);
    CHECK_EQ(args->head_dim, p->head_dim);
    CHECK_EQ(args->head_dim_v, p->head_dim_v);
    check_near("scale_log2", args->scale_log2, (double)p->scale * 1.4426950408889634);
    check_bounds(args, p);
    check_options(args, p, t);
}

/* ---- the log --------------------------------------------------------------------------------- */

void check_calls(const char *function, int launches, int maps) {
    static const char *const allowed[] = {"cuCtxGetCurrent",   "cuCtxGetDevice",
                                          "cuCtxPushCurrent",  "cuCtxPopCurrent",
                                          "cuLaunchKernelEx",  "cuTensorMapReplaceAddress",
                                          "cuMemsetD2D8Async", "cuMemsetD2D32Async"};
    size_t count;
    const struct fake_call *calls = fake->calls(&count);
    for (size_t i = 0; i < count; i++) {
        bool fine = false;
        for (size_t n = 0; n < sizeof allowed / sizeof *allowed; n++) {
            fine = fine || strcmp(calls[i].name, allowed[n]) == 0;
        }
        CHECK_MSG(fine, "%s called %s", function, calls[i].name);
    }
    CHECK_EQ(calls_of("cuLaunchKernelEx"), launches);
    CHECK_EQ(calls_of("cuMemsetD2D8Async") > 0, launches == 0);
    CHECK_EQ(calls_of("cuTensorMapReplaceAddress"), maps);
    CHECK_EQ(calls_of("cuCtxPushCurrent"), calls_of("cuCtxPopCurrent"));
}
