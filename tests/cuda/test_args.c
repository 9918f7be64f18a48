/* SPDX-License-Identifier: Apache-2.0
 *
 * test_args.c - the arguments of a kernel. Every field of struct attn_args, the grid and the CTA
 * size against the problem, for many random problems; the layout of the struct; and that
 * attn_forward only reads the current context and launches.
 *
 * Invariant: expectations are computed here from attn.h and args.h alone.
 */
#include <math.h>
#include <stdlib.h>

#include "cuda/args_fixture.h"
#include "cuda/cuda_fixture.h"
#include "tool/cases/cases.h"

/* ---- the layout ------------------------------------------------------------------------------ */

/* src/kernels/common/device.h has the same numbers for the kernels' compiler. */
#define AT(field, offset)                                                                          \
    _Static_assert(offsetof(struct attn_args, field) == (offset), #field " has moved")

AT(q, 0);
AT(k, 8);
AT(v, 16);
AT(o, 24);
AT(lse, 32);
AT(q_batch, 40);
AT(q_head, 48);
AT(q_row, 56);
AT(k_batch, 64);
AT(k_head, 72);
AT(k_row, 80);
AT(v_batch, 88);
AT(v_head, 96);
AT(v_row, 104);
AT(o_batch, 112);
AT(o_head, 120);
AT(o_row, 128);
AT(lse_batch, 136);
AT(lse_head, 144);
AT(lse_row, 152);
AT(diagonal, 160);
AT(heads_q, 168);
AT(heads_per_kv, 172);
AT(seq_q, 176);
AT(seq_kv, 180);
AT(tiles_q, 184);
AT(causal, 188);
AT(scale_log2, 192);
AT(top_left, 196);
AT(left, 200);
AT(right, 208);
AT(head_dim, 216);
AT(head_dim_v, 220);
AT(packed_heads, 224);
AT(section_heads, 228);
AT(heads_all, 232);
AT(softcap_log2, 236);
AT(softcap_scale, 240);
AT(alibi, 244);
AT(alibi_slopes, 248);
AT(alibi_batch, 256);
AT(sink, 264);
AT(bias, 272);
AT(bias_batch, 280);
AT(bias_head, 288);
AT(bias_row, 296);
AT(bias_col, 304);
AT(bias_dtype, 312);
AT(num_splits, 316);
AT(cu_seqlens_q, 320);
AT(cu_seqlens_kv, 328);
AT(used_kv, 336);
AT(counters, 344);
AT(mask, 352);
AT(mask_batch, 360);
AT(mask_head, 368);
AT(mask_row, 376);
AT(mask_col, 384);
AT(block_table, 392);
AT(block_table_stride, 400);
AT(page_size, 408);
AT(num_pages, 412);
AT(page_factor, 416);
AT(page_shift, 420);
AT(used_q, 424);
AT(draft_mask, 432);
AT(k_scale, 440);
AT(v_scale, 448);
AT(k_scale_batch, 456);
AT(k_scale_head, 464);
AT(k_scale_row, 472);
AT(v_scale_batch, 480);
AT(v_scale_head, 488);
AT(v_scale_row, 496);
AT(dtype_kv, 504);
AT(shift, 508);
AT(offsets, 512);
_Static_assert(sizeof(struct attn_args) == 520, "struct attn_args has another size");
#undef AT
#define AT(field, offset)                                                                          \
    _Static_assert(offsetof(struct attn_tma_args, field) == (offset), #field " has moved")
AT(q, 0);
AT(k, 128);
AT(v, 256);
AT(o, 384);
AT(a, 512);
_Static_assert(sizeof(struct attn_tma_args) == 1088, "struct attn_tma_args has another size");
#undef AT
#define AT(field, offset)                                                                          \
    _Static_assert(offsetof(struct attn_append_args, field) == (offset), #field " has moved")
AT(q, 0);
AT(q_out, 24);
AT(s_q, 48);
AT(s_v, 168);
AT(rope_cos, 192);
AT(cu_seqlens_q, 216);
AT(block_table_stride, 256);
AT(batch, 264);
AT(ctas_of_row, 332);
AT(k_scale, 336);
AT(s_k_scale, 352);
AT(ctas_of_q, 404);
_Static_assert(sizeof(struct attn_append_args) == 408, "struct attn_append_args has another size");
#undef AT
#define AT(field, offset)                                                                          \
    _Static_assert(offsetof(struct attn_merge_args, field) == (offset), #field " has moved")
AT(lse_parts, 256);
AT(o, 512);
AT(o_inner, 528);
AT(rows, 576);
AT(inner, 580);
AT(threads_of_row, 604);
AT(running, 608);
_Static_assert(sizeof(struct attn_merge_args) == 616, "struct attn_merge_args has another size");

static bool is_hopper(const attn_variant *variant) {
    return strncmp(variant->family, "fwd_hopper", 10) == 0;
}

/* The kernels' compiler agrees: every compiled-in kernel takes one parameter of that size. */
TEST(parameter_of_compiled_kernels) {
    SKIP_WITHOUT_KERNELS();
    attn_variant list[BUILT_IN_MAX];
    const int count = built_in_variants(list);
    for (int i = 0; i < count; i++) {
        check_parameter(&list[i], is_hopper(&list[i]) ? 64 : 8,
                        is_hopper(&list[i]) ? sizeof(struct attn_tma_args)
                                            : sizeof(struct attn_args));
    }
}

static unsigned long long *const COUNTERS = (unsigned long long *)0x600000000000;

/* Chunks of the keys by the lengths in memory. */
static bool has_slots(const attn_variant *variant) {
    return strcmp(variant->family, "fwd_hopper_invariant") == 0;
}

static bool is_mixed(const attn_variant *variant) {
    return has_slots(variant) || strcmp(variant->family, "fwd_hopper_mixed") == 0 ||
           strcmp(variant->family, "fwd_hopper_mixed_fp8") == 0;
}

static bool has_counters(const attn_variant *variant) {
    return strcmp(variant->family, "fwd_hopper_causal") == 0 ||
           strcmp(variant->family, "fwd_hopper_full") == 0 ||
           strcmp(variant->family, "fwd_hopper_mask") == 0 ||
           strcmp(variant->family, "fwd_hopper_bias") == 0 ||
           strcmp(variant->family, "fwd_hopper_chunk") == 0 || is_mixed(variant);
}

static bool is_chunk(const attn_variant *variant) {
    return strcmp(variant->family, "fwd_hopper_chunk") == 0;
}

static bool is_mla(const attn_variant *variant) {
    return strcmp(variant->family, "fwd_hopper_mla") == 0;
}

/* Split-KV of Q tiles of several warps, one CTA per SM. */
static bool is_wide(const attn_variant *variant) {
    return strcmp(variant->family, "fwd_mma_wide") == 0 || is_mla(variant);
}

enum { SM_COUNT = 20 }; /* of the fake driver's first device */

static bool has_clusters(const attn_variant *variant) {
    return strncmp(variant->family, "fwd_hopper_decode", 17) == 0 || is_mla(variant);
}

/* batch_invariant: splits of CHUNK_KEYS keys. */
static bool is_invariant(const attn_variant *variant) {
    return (variant->options & ATTN_OPTION_BATCH_INVARIANT) != 0 && !has_slots(variant);
}

enum { CHUNK_KEYS = 1024 };

/* Splits of a Q tile: two CTAs per SM, at least two KV tiles each. `tiles` of all heads. */
static long long parts_of(const attn_problem *p, const attn_variant *variant, long long tiles) {
    if (is_invariant(variant)) {
        const long long chunks = (p->seq_kv + CHUNK_KEYS - 1) / CHUNK_KEYS;
        const double bytes = (double)tiles * (double)chunks * variant->block_q / 16 *
                             (4 * 16 * variant->head_dim_max + 4 * 32 * 4);
        return tiles < 2 * SM_COUNT && chunks > 1 && bytes < 0x1p28 ? chunks : 1;
    }
    const long long keys = (p->seq_kv + variant->block_kv - 1) / variant->block_kv / 2;
    const long long room = (is_wide(variant) ? 1 : 2) * SM_COUNT / tiles;
    const long long parts = room < keys ? room : keys;
    const bool shares = strncmp(variant->family, "fwd_mma_decode", 14) == 0 ||
                        strcmp(variant->family, "fwd_tf32_decode") == 0 || is_wide(variant);
    return shares && parts > 1 ? parts : 1;
}

/* Whether clusters are pairs of Q tiles that load the same keys. */
static bool pairs_tiles(const struct attn_args *args, const attn_problem *p,
                        const attn_variant *variant) {
    return is_mla(variant) && args->num_splits == 1 && args->tiles_q % 2 == 0 &&
           ((!p->packed && !p->used_q) || args->packed_heads % 128 == 0);
}

/* Where the keys of a tile are cut: 64 chunks of 512 keys, then 32 for each power of 2. */
static long long chunks_of(long long keys) {
    long long count = 0, end = 0;
    for (long long size = 512; end < keys; count++) {
        size *= end == 64 * size ? 2 : 1;
        end += size;
    }
    return count;
}

/* A slot for each chunk of two tiles per SM, or as many as fit in 128 MiB; a window bounds the
 * chunks. */
static void check_slots(const attn_problem *p, const attn_variant *variant, long long rows,
                        long long tiles, long long slots) {
    const long long warps = (rows < variant->block_q ? rows + 15 : variant->block_q) / 16;
    const long long most = (128LL << 20) / (warps * (4 * 16 * variant->head_dim_max + 4 * 32 * 4));
    const long long chunks = chunks_of(p->seq_kv), split = tiles < 40 ? tiles : 40;
    const long long all = chunks > 1 ? split * chunks : 0;
    const bool window = p->window_left >= 0;
    CHECK(window ? slots <= all && (slots >= split || chunks < 2 || slots == most)
                 : slots == (all < most ? all : most));
}

/* How clusters share keys is pinned below (keys_are_shared_as_measured); what holds always: whole
 * clusters, of which those that have more than two blocks all have their place, a tile of keys for
 * each block. Larger ones are alone but for MLA. */
static void check_clusters(const struct fake_call *launch, const attn_problem *p,
                           const attn_variant *variant, long long tiles, long long parts) {
    const long long keys = (p->seq_kv + variant->block_kv - 1) / variant->block_kv;
    const long long cluster = launch->cluster > 0 ? launch->cluster : 1;
    CHECK(launch->cluster != 1 && parts % cluster == 0);
    CHECK(cluster <= 2 || ((cluster == parts || is_mla(variant)) &&
                           (cluster == 4 || cluster == 8) && 8 * parts * tiles <= 7 * SM_COUNT));
    CHECK(parts == 1 || (parts <= keys && parts * tiles <= (is_mla(variant) ? 4 : 8) * SM_COUNT));
}

/* What holds always: a tile of keys for each part, and no more parts than four waves of them. */
static void check_items(const attn_problem *p, const attn_variant *variant, long long tiles,
                        long long parts) {
    const long long keys = (p->seq_kv + variant->block_kv - 1) / variant->block_kv;
    CHECK(parts == 1 || (parts > 1 && parts <= keys && parts * tiles <= 4 * SM_COUNT));
    CHECK(parts > 1 || tiles != 1 || keys < 100 || p->window_left >= 0);
}

/* Counters: two, or one for each tile whose keys are shared by more than a cluster, in whole 256
 * bytes, and 16 rows of O, a reference and a sum for each part. fwd_hopper_chunk: both, the latter
 * for each 16 rows of a tile. fwd_hopper_mixed: likewise, one part for each slot. batch_invariant:
 * as soon as there are several chunks, for each 16 of the `rows` of a group of heads, of one tile
 * at most. */
static size_t workspace_of(const attn_problem *p, const attn_variant *variant, long long rows,
                           long long tiles, long long parts) {
    if (is_invariant(variant)) {
        const long long warps = (rows < variant->block_q ? rows + 15 : variant->block_q) / 16;
        return p->seq_kv <= CHUNK_KEYS
                   ? 0
                   : (8 * (size_t)tiles + 255) / 256 * 256 +
                         (size_t)(tiles * parts * warps) *
                             (size_t)(4 * 16 * variant->head_dim_max + 4 * 32 * 4);
    }
    if (has_slots(variant)) { /* a counter for each 64 rows of a slot */
        const long long warps = (rows < variant->block_q ? rows + 15 : variant->block_q) / 16;
        return parts == 0 ? 16
                          : (8 * (2 + 2 * (size_t)parts) + 255) / 256 * 256 +
                                (size_t)(parts * warps) *
                                    (size_t)(4 * 16 * variant->head_dim_max + 4 * 32 * 4);
    }
    if (is_mixed(variant)) {
        tiles = parts;
        parts = 1;
    }
    if ((parts > 1 && is_chunk(variant)) || is_mixed(variant)) {
        const size_t warps = (size_t)tiles * (size_t)variant->block_q / 16;
        return (8 * (2 + warps) + 255) / 256 * 256 +
               warps * (size_t)parts * (size_t)(4 * 16 * variant->head_dim_max + 4 * 32 * 4);
    }
    if (parts > 1) {
        const long long warps = is_wide(variant) ? variant->block_q / 16 : 1;
        return (8 * (size_t)tiles + 255) / 256 * 256 +
               (size_t)(tiles * parts * warps) *
                   (size_t)(4 * 16 * variant->head_dim_max + 4 * 32 * 4);
    }
    return has_counters(variant) ? 2 * sizeof(unsigned long long) : 0;
}

/* ---- one call -------------------------------------------------------------------------------- */

/* tests/cuda/test_maps.c looks at the maps before them. */
static struct attn_args args_of(const struct fake_call *launch, const attn_variant *variant) {
    struct attn_args args;
    memcpy(&args, launch->args + (is_hopper(variant) ? offsetof(struct attn_tma_args, a) : 0),
           sizeof args);
    return args;
}

static bool is_mma(const attn_variant *variant) {
    return strncmp(variant->family, "fwd_mma", 7) == 0 ||
           strncmp(variant->family, "fwd_tf32", 8) == 0;
}

/* Few queries of a group of heads share a tile, unless it took more than four. fwd_hopper_chunk:
 * 2^n heads do where an eighth of the tiles is saved, in fwd_hopper_mixed always. */
static long long packed_heads(const attn_problem *p, const attn_variant *variant) {
    const long long heads = p->heads_q / p->heads_kv;
    if (is_chunk(variant) || is_mixed(variant)) {
        const long long rows = variant->block_q, apart = (p->seq_q + rows - 1) / rows * heads;
        const long long saved = apart - (p->seq_q * heads + rows - 1) / rows;
        const bool power = heads == 1 || heads == 2 || heads == 4 || heads == 8 || heads == 16;
        return power && !p->alibi && (is_mixed(variant) || 8 * saved >= apart) ? heads : 1;
    }
    const bool packs = is_mma(variant) || has_clusters(variant) || is_wide(variant);
    const bool fits = is_wide(variant) || p->seq_q * heads <= 4 * variant->block_q;
    return packs && p->seq_q <= 16 && fits ? heads : 1;
}

/* Sections are as equal as can be, and K and V of one fit in so many MiB, if one head's do. */
static void check_sections(const struct attn_args *args, const attn_problem *p, double mib) {
    if (p->causal == ATTN_CAUSAL_NONE && p->window_right < 0) {
        CHECK_EQ(args->section_heads, 1);
        return;
    }
    const double limit = mib * 1024 * 1024;
    const double sharing = (double)args->heads_per_kv / args->packed_heads;
    const double one = (double)attn_dtype_size((attn_dtype)p->dtype_kv) * (double)p->seq_kv *
                       (double)(p->head_dim + p->head_dim_v) / sharing;
    const long long sections = (args->heads_all + args->section_heads - 1) / args->section_heads;
    CHECK(args->section_heads >= 1 && args->section_heads <= args->heads_all);
    CHECK_MSG(args->section_heads == 1 || args->section_heads * one <= limit,
              "%d heads of %g bytes", args->section_heads, one);
    /* one section fewer would not fit, and with so many none is larger than it needs to be */
    if (sections > 1) {
        const long long larger = (args->heads_all + sections - 2) / (sections - 1);
        CHECK_MSG((double)larger * one > limit, "%lld sections of %d heads of %g bytes", sections,
                  args->section_heads, one);
    }
    CHECK_EQ(args->section_heads, (args->heads_all + sections - 1) / sections);
}

/* p is resolved. */
static void check_launch(const struct fake_call *launch, const attn_problem *p,
                         const attn_tensors *t, const attn_variant *variant, size_t workspace,
                         void *stream) {
    const struct attn_args args = args_of(launch, variant);
    const long long packed = packed_heads(p, variant);
    const long long tiles = (p->seq_q * packed + variant->block_q - 1) / variant->block_q;
    check_args(&args, p, t);
    CHECK_EQ(args.tiles_q, tiles);
    const bool pairs = pairs_tiles(&args, p, variant);
    if (pairs) {
        CHECK_EQ(launch->cluster, 2);
        CHECK_EQ(args.section_heads, 1);
    } else if (has_clusters(variant)) {
        check_clusters(launch, p, variant, tiles * args.heads_all, args.num_splits);
    } else if (is_chunk(variant)) {
        check_items(p, variant, tiles * args.heads_all, args.num_splits);
        CHECK_EQ(launch->cluster, 0);
    } else if (has_slots(variant)) {
        check_slots(p, variant, p->seq_q * packed, tiles * args.heads_all, args.num_splits);
        CHECK_EQ(launch->cluster, 0);
    } else if (is_mixed(variant)) {
        CHECK_EQ(args.num_splits, 4 * SM_COUNT);
        CHECK_EQ(launch->cluster, 0);
    } else {
        CHECK_EQ(args.num_splits, parts_of(p, variant, tiles * args.heads_all));
        CHECK_EQ(launch->cluster, 0);
    }
    const long long meeting =
        args.num_splits / (launch->cluster > 0 && !pairs ? launch->cluster : 1);
    CHECK_EQ(workspace, workspace_of(p, variant, p->seq_q * args.packed_heads,
                                     tiles * args.heads_all, meeting));
    CHECK(args.counters == (workspace > 0 ? COUNTERS : NULL));
    CHECK_EQ(args.packed_heads, packed);
    CHECK_EQ(args.heads_all, p->batch * p->heads_q / packed);
    if (!pairs) {
        check_sections(&args, p, is_hopper(variant) ? 32.0 : 24.0);
    }
    const long long all = p->batch * p->heads_q / packed * tiles;
    const bool split = strcmp(variant->family, "fwd_hopper_split") == 0;
    if (split) {
        CHECK_EQ(launch->grid[0], p->heads_q);
    } else {
        const bool stays = is_hopper(variant) && !has_clusters(variant) && !is_wide(variant);
        const long long most = has_slots(variant)  ? chunks_of(p->seq_kv)
                               : is_mixed(variant) ? (p->seq_kv + 127) / 128
                                                   : args.num_splits;
        const long long ctas = all * (most > 1 ? most : 1);
        CHECK_EQ(launch->grid[0], stays && ctas > SM_COUNT ? SM_COUNT : ctas);
    }
    CHECK_EQ(launch->grid[1], split ? tiles : 1);
    CHECK_EQ(launch->grid[2], split ? p->batch : 1);
    CHECK_EQ(launch->early, is_hopper(variant) && !is_mla(variant));
    CHECK_EQ(launch->block[0], 32 * variant->warps);
    CHECK_EQ(launch->block[1], 1);
    CHECK_EQ(launch->block[2], 1);
    CHECK_EQ(launch->shared, variant->shared_bytes);
    CHECK_STR(launch->kernel, variant->entry);
    CHECK(launch->stream == stream);
}

/* ---- random problems ------------------------------------------------------------------------- */

static attn_problem draw(const attn_variant *variant, uint64_t seed) {
    static const int64_t lengths[] = {1,   2,   31,   32,   33,     64,
                                      100, 512, 1000, 4097, 100000, 2147483647};
    uint64_t rng = seed;
    attn_problem p;
    attn_problem_init(&p);
    p.dtype = rng_chance(&rng, 50) ? ATTN_FP16 : ATTN_BF16;
    p.batch = rng_range(&rng, 1, 5);
    p.heads_kv = rng_range(&rng, 1, 4);
    p.heads_q = p.heads_kv * rng_range(&rng, 1, 8);
    p.seq_q = lengths[rng_range(&rng, 0, 10)];
    p.seq_kv = lengths[rng_range(&rng, 0, is_hopper(variant) ? 10 : 11)]; /* strides < 2^40 */
    const int64_t step = variant->head_dim_multiple, most = variant->head_dim_max / step;
    p.head_dim = p.head_dim_v = step * rng_range(&rng, 1, most);
    if (is_mma(variant) || is_hopper(variant)) {
        p.head_dim_v = step * rng_range(&rng, 1, most);
        p.seq_q = rng_chance(&rng, 40) ? rng_range(&rng, 1, 17) : p.seq_q;
        p.heads_q = p.heads_kv * rng_range(&rng, 1, 20);
    }
    if (variant->v_in_k > 0) {
        p.v_in_k = true;
        p.head_dim_v = p.head_dim < variant->v_in_k ? p.head_dim : variant->v_in_k;
    }
    draw_options(&rng, variant->options, &p);
    p.layout = rng_chance(&rng, 50) ? ATTN_BHSD : ATTN_BSHD;
    p.causal = (attn_causal)rng_range(&rng, 0, 2);
    if (strcmp(variant->family, "fwd_hopper") == 0) {
        p.causal = ATTN_CAUSAL_NONE;
    } else if (strcmp(variant->family, "fwd_hopper_causal") == 0 && p.causal == ATTN_CAUSAL_NONE) {
        p.causal = ATTN_CAUSAL_TOP_LEFT;
    }
    p.scale = rng_chance(&rng, 50) ? (float)NAN : 0.01f * (float)rng_range(&rng, 1, 300);
    if (rng_chance(&rng, 60)) {
        const int broadcast = is_hopper(variant) ? 0 : 10; /* tensor maps have no stride of 0 */
        p.q = draw_strides(&rng, p.seq_q, p.heads_q, p.head_dim, broadcast);
        p.k = draw_strides(&rng, p.seq_kv, p.heads_kv, p.head_dim, broadcast);
        p.v = draw_strides(&rng, p.seq_kv, p.heads_kv, p.head_dim_v, broadcast);
        p.o = draw_strides(&rng, p.seq_q, p.heads_q, p.head_dim_v, 0);
    }
    if (rng_chance(&rng, 30)) { /* any stride will do for the LSE */
        p.lse.row = rng_range(&rng, 1, 3);
        p.lse.head = p.lse.row * p.seq_q + rng_range(&rng, 0, 5);
        p.lse.batch = p.lse.head * p.heads_q + rng_range(&rng, 0, 5);
    }
    return p;
}

static void run_one(attn_context *context, const attn_variant *variant, uint64_t seed) {
    const attn_problem p = draw(variant, seed);
    attn_problem full;
    attn_tensors t = stand_ins();
    attn_error why;
    uint64_t rng = seed + 77;
    t.v = p.v_in_k ? t.k : t.v;
    if (attn_variant_check(context, variant->name, &p, NULL) != ATTN_OK &&
        !(variant->dtypes >> p.dtype & 1)) {
        return;
    }
    attn_plan *plan = plan_on(context, &p, variant->name);
    if (plan == NULL || !CHECK_STATUS(attn_problem_resolve(&p, &full, &why), ATTN_OK, &why)) {
        return;
    }
    CHECK_STR(attn_plan_variant(plan), variant->name);
    const size_t workspace = attn_workspace_size(plan);
    t.lse = rng_chance(&rng, 50) ? t.lse : NULL;
    void *stream = rng_chance(&rng, 50) ? (void *)(uintptr_t)rng_range(&rng, 1, 2) : NULL;
    fake->forget();
    if (CHECK_STATUS(attn_forward(plan, &t, COUNTERS, workspace, stream, &why), ATTN_OK, &why)) {
        const bool blind = attn_problem_flops(&full) == 0.0 && !full.sink && !full.packed &&
                           !full.used_q && !full.used_kv && !full.offsets && !full.draft;
        check_calls("attn_forward", !blind, is_hopper(variant) && !blind ? 4 : 0);
        if (blind) {
            attn_plan_destroy(plan);
            return;
        }
        const struct fake_call *launch = launch_at(0);
        if (CHECK(launch != NULL)) {
            check_launch(launch, &full, &t, variant, workspace, stream);
        }
    }
    attn_plan_destroy(plan);
}

TEST(drawn_problems) {
    attn_variant list[BUILT_IN_MAX];
    attn_variant variant = {.size = sizeof variant};
    attn_error why;
    if (!fake_begin(1)) {
        return;
    }
    attn_context *context = fake_open("cuda");
    if (context == NULL || !add_made_up(context, "made_up_fp16", ATTN_FP16) ||
        !add_made_up(context, "made_up_bf16", ATTN_BF16) || !add_made_up_mma(context, ATTN_FP16) ||
        !add_made_up_mma(context, ATTN_BF16) || !add_made_up_hopper(context, ATTN_FP16) ||
        !add_made_up_hopper(context, ATTN_BF16)) {
        return;
    }
    const int count = built_in_variants(list);
    int listed = 0;
    for (; attn_variant_get(context, listed, &variant, NULL) == ATTN_OK; listed++) {
        CHECK_STR(variant.device, "cuda");
        for (uint64_t seed = 0; seed < 60; seed++) {
            run_one(context, &variant, seed);
        }
    }
    CHECK_EQ(listed, count + 18);
    CHECK_STATUS(attn_variant_get(context, listed, &variant, &why), ATTN_INVALID, &why);
    attn_close(context);
    fake_end();
}

/* What choose_num_splits returns for a GPU of 20 SMs: Q tiles and KV tiles, splits, cluster
 * size. */
static const struct shared_keys {
    int tiles, keys;
    int parts, cluster;
} SHARED_KEYS[] = {
    {1, 1, 1, 0},   {1, 2, 2, 2},   {1, 8, 8, 8},    {1, 64, 16, 2},  {2, 64, 8, 8},
    {3, 4, 4, 4},   {4, 64, 5, 0},  {5, 64, 4, 2},   {7, 64, 5, 0},   {16, 64, 1, 0},
    {21, 64, 4, 2}, {40, 64, 1, 0}, {24, 640, 5, 0}, {400, 64, 1, 0},
};

/* The same for fwd_hopper_mla and Q tiles of 64 rows: what its cost model gives. */
static const struct shared_keys MLA_KEYS[] = {
    {1, 1, 1, 0},   {1, 2, 1, 0},   {1, 8, 8, 8},    {1, 64, 16, 8}, {2, 64, 8, 8},
    {3, 64, 6, 2},  {4, 64, 4, 4},  {5, 4, 1, 0},    {7, 64, 8, 2},  {13, 640, 3, 0},
    {16, 64, 1, 0}, {21, 64, 3, 0}, {400, 64, 1, 0},
};

static void check_shared_keys(attn_context *context, const attn_variant *variant,
                              const struct shared_keys *row) {
    attn_problem p = gpu_problem();
    attn_tensors t = stand_ins();
    attn_error why;
    p.dtype = (attn_dtype)__builtin_ctz(variant->dtypes);
    p.dtype_kv = (variant->dtypes >> ATTN_E4M3 & 1) != 0 ? (int32_t)ATTN_E4M3 : -1;
    p.batch = 1;
    p.heads_q = p.heads_kv = row->tiles;
    p.seq_q = 1;
    p.seq_kv = (int64_t)row->keys * variant->block_kv;
    p.head_dim = p.head_dim_v = variant->head_dim_max;
    if (is_mla(variant)) {
        p.batch = row->tiles;
        p.heads_kv = 1;
        p.heads_q = variant->block_q;
        p.head_dim_v = variant->v_in_k;
        p.v_in_k = true;
        t.v = t.k;
    }
    attn_plan *plan = plan_on(context, &p, variant->name);
    if (plan == NULL) {
        return;
    }
    fake->forget();
    CHECK_STATUS(attn_forward(plan, &t, COUNTERS, attn_workspace_size(plan), NULL, &why), ATTN_OK,
                 &why);
    const struct fake_call *launch = launch_at(0);
    if (CHECK(launch != NULL)) {
        CHECK_EQ(args_of(launch, variant).num_splits, row->parts);
        CHECK_EQ(launch->cluster, row->cluster);
    }
    attn_plan_destroy(plan);
}

TEST(keys_are_shared_as_measured) {
    SKIP_WITHOUT_KERNELS();
    attn_variant list[BUILT_IN_MAX];
    const int count = built_in_variants(list), rows = sizeof SHARED_KEYS / sizeof *SHARED_KEYS;
    const int mla_rows = sizeof MLA_KEYS / sizeof *MLA_KEYS;
    int sharing = 0;
    for (int i = 0; i < count; i++) {
        sharing += has_clusters(&list[i]);
    }
    if (sharing == 0) {
        SKIP("no variant of its family is compiled in");
    }
    if (!fake_begin(1)) {
        return;
    }
    attn_context *context = fake_open("cuda");
    for (int i = 0; i < count && context != NULL; i++) {
        for (int row = 0; row < rows && has_clusters(&list[i]) && !is_mla(&list[i]); row++) {
            check_shared_keys(context, &list[i], &SHARED_KEYS[row]);
        }
        for (int row = 0; row < mla_rows && is_mla(&list[i]); row++) {
            check_shared_keys(context, &list[i], &MLA_KEYS[row]);
        }
    }
    attn_close(context);
    fake_end();
}

/* A stream of the program's own. */
TEST(stream) {
    const attn_problem p = gpu_problem();
    const attn_tensors t = stand_ins();
    attn_error why;
    void *function = NULL, *stream = NULL;
    int (*create)(void **, unsigned int), (*destroy)(void *);
    if (!fake_begin(1)) {
        return;
    }
    attn_context *context = fake_open("cuda");
    if (context == NULL || !add_made_up(context, "made_up_fp16", ATTN_FP16)) {
        return;
    }
    attn_plan *plan = plan_on(context, &p, "made_up_fp16");
    void *current = fake->context_create(0);
    fake_push(context, current);
    CHECK_EQ(attn_driver_function(context, "cuStreamCreate", &function, NULL), ATTN_OK);
    memcpy(&create, &function, sizeof create);
    CHECK_EQ(attn_driver_function(context, "cuStreamDestroy", &function, NULL), ATTN_OK);
    memcpy(&destroy, &function, sizeof destroy);
    CHECK_EQ(create(&stream, 1), FAKE_SUCCESS);
    fake->forget();
    CHECK_STATUS(attn_forward(plan, &t, NULL, 0, stream, &why), ATTN_OK, &why);
    const struct fake_call *launch = launch_at(0);
    CHECK(launch != NULL && launch->stream == stream);
    CHECK_EQ(destroy(stream), FAKE_SUCCESS);
    CHECK_STATUS(attn_forward(plan, &t, NULL, 0, stream, &why), ATTN_DEVICE, &why);
    fake_pop(context);
    attn_plan_destroy(plan);
    attn_close(context);
    fake->context_destroy(current);
    fake_end();
}

TEST_MAIN()
