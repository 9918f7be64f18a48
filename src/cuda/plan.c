/* SPDX-License-Identifier: Apache-2.0
 *
 * plan.c - which problems a GPU variant takes, and the launch of one that it takes.
 */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/plan.h"
#include "cuda/device.h"

enum {
    ROW_BYTES = 16,      /* every row of Q, K, V and O begins at a multiple: cp.async */
    PACKED_QUERIES = 16, /* a GQA group is packed up to so many queries ... */
    PACKED_TILES = 4,    /* ... if its rows fill no more than so many Q tiles */
    /* Split-KV through the workspace: */
    SPLIT_CTAS_PER_SM = 2, /* at most */
    SPLIT_KV_TILES = 2,    /* KV tiles per CTA, on average, at least */
    /* Split-KV in clusters: */
    CLUSTER_CTAS = 8,        /* portable limit of a cluster */
    CLUSTER_CTAS_PER_SM = 8, /* at most, over all clusters */
    /* Split-KV as items of persistent CTAs: */
    ITEMS_PER_SM = 4,  /* at most; each has a partial result of 68 KiB (D 128) */
    ITEMS_KEYS = 1024, /* at least, for a plan to prefer such a variant ... */
    ITEMS_CACHE = 2,   /* ... and so many times as many as queries */
    PARTIAL_ROWS = 16,
    GROUP_ROWS = 64,              /* of a warpgroup */
    MOST_CHUNK_BYTES = 256 << 20, /* of partial results, batch_invariant */
    MOST_SLOT_BYTES = 128 << 20,  /* likewise, SPLIT_DEVICE */
    SPLIT_KEYS = 128, /* of a split that a kernel chooses, at least (kernels/hopper/mixed.h) */
    GRID_YZ = 65535,  /* CTAs in the second and third dimension of a grid */
    MOST_SMS = 65536  /* a persistent CTA counts up to so far past the last tile */
};

/* The cost model of split-KV in clusters; costs in KV tiles. Measured on an H200:
 * docs/lab/2026-11-16-decode.md. */
#define SATURATION 0.87     /* of the SMs saturate HBM: 128 CTAs 4.15 TB/s, 80 CTAs 2.95 */
#define CTA_COST 2.0        /* prologue and epilogue of a CTA */
#define CLUSTER_MERGE 0.5   /* merge of partial results in a cluster */
#define WORKSPACE_MERGE 1.5 /* ... in the workspace */

/* The cost model of MLA, one CTA per SM; costs in KV tiles of about 1.5 us. Estimated from bytes
 * and bandwidths, not fitted: 131 KB for each partial result of 64 rows. */
#define MLA_CTA_COST 2.2     /* prologue and epilogue of a CTA */
#define MLA_CLUSTER_COST 0.5 /* of a merge in a cluster: its barriers ... */
#define MLA_CLUSTER_ROWS 1.5 /* ... and 64 rows */
#define MLA_MEMORY_COST 1.0  /* of a merge in the workspace: counter and latencies ... */
#define MLA_MEMORY_ROWS 1.0  /* ... and 64 rows of a partial result, for one CTA */

/* The cost model of split-KV as items, likewise (docs/lab/2026-11-17-options.md). A KV tile (64
 * keys, 128 rows) takes an SM 0.8 us at D 128 in the kernels without splits; costs of partial
 * results are estimated from their bytes and the bandwidth of L2. */
#define ITEM_COST 1.5      /* first loads and epilogue of an item */
#define POST_COST 1.0      /* its partial result */
#define MERGE_COST 0.6     /* of one partial result */
#define SPLIT_GAIN 0.95    /* splits must cost less than this, times the cost of one */
#define CHUNK_TILE 1.3     /* a KV tile of fwd_hopper_chunk */
#define SPLIT_TILE 1.4     /* ... of fwd_hopper_split, 64 rows and twice the keys */
#define SPLIT_TILE_64 1.25 /* ... at D 64 */

/* ---- Q tiles --------------------------------------------------------------------------------- */

/* How the query rows are cut into Q tiles. */
struct cut {
    int64_t packed_heads; /* query heads that share a tile */
    int64_t tiles;        /* of one such group */
    int64_t groups;       /* in all batch entries */
};

/* Whether persistent CTAs take splits of Q tiles. */
static bool splits_items(const struct kernel_family *family) {
    return family->split_kv == SPLIT_ITEMS || family->split_kv == SPLIT_DEVICE;
}

/* Whether the heads of a GQA group share Q tiles. SPLIT_ITEMS: groups of 2^n heads, where that
 * saves an eighth of the tiles; SPLIT_DEVICE, where some sequences may have few queries: all such
 * groups. Not with ALiBi, since a warpgroup has one slope. */
static bool packs_heads(const struct variant *variant, const attn_problem *p, int64_t heads) {
    const struct kernel_family *family = &kernel_families[variant->family];
    const int64_t block_q = variant->info.block_q;
    if (splits_items(family)) {
        const int64_t apart = heads * ((p->seq_q + block_q - 1) / block_q);
        const int64_t packed = (heads * p->seq_q + block_q - 1) / block_q;
        return (heads & (heads - 1)) == 0 && heads <= block_q / 2 && !p->alibi &&
               (family->split_kv == SPLIT_DEVICE || 8 * packed <= 7 * apart);
    }
    return family->packs_gqa && p->seq_q <= PACKED_QUERIES &&
           (family->packs_all || p->seq_q * heads <= PACKED_TILES * block_q);
}

static struct cut cut_rows(const struct variant *variant, const attn_problem *p) {
    const int64_t heads = p->heads_q / p->heads_kv, block_q = variant->info.block_q;
    struct cut cut = {.packed_heads = packs_heads(variant, p, heads) ? heads : 1};
    cut.tiles = (p->seq_q * cut.packed_heads + block_q - 1) / block_q;
    cut.groups = p->batch * (p->heads_q / cut.packed_heads);
    return cut;
}

/* Split-KV: the CTAs that share the keys of a Q tile. */
struct split {
    int64_t num_splits; /* so many CTAs */
    int64_t cluster;    /* ... in clusters of so many; 0: none; above num_splits: of Q tiles */
};

/* Whether the splits of a tile are one cluster. Clusters of 2 always find a place; larger ones only
 * if all of a problem fit at one time: 4 and 8 leave some SMs without a CTA. */
static bool is_one_cluster(int64_t num_splits, int64_t tiles, int64_t sms) {
    const bool power_of_2 = (num_splits & (num_splits - 1)) == 0;
    return num_splits <= 2 ||
           (power_of_2 && num_splits <= CLUSTER_CTAS && num_splits * tiles <= sms * 7 / 8);
}

/* Cost of so many CTAs with kv_tiles KV tiles each. One tile (64 KiB of K and V) costs 1 where an
 * SM loads it alone; from SATURATION of the SMs on, they share the bandwidth. */
static double cost_of_ctas(int64_t ctas, int64_t sms, int64_t kv_tiles, double merge) {
    const int64_t waves = ctas / sms, last = ctas - waves * sms;
    const double saturating = SATURATION * (double)sms;
    const double slowdown =
        (double)waves / SATURATION + (last > 0 ? fmax(1.0, (double)last / saturating) : 0.0);
    return (double)kv_tiles * slowdown + CTA_COST * (double)(waves + (last > 0)) + merge;
}

/* The next number of splits that can cost less: the fewest with fewer KV tiles each, or one that
 * makes a cluster. Above tiles_kv: none. */
static int64_t next_num_splits(int64_t num_splits, int64_t kv_tiles, int64_t tiles_kv) {
    const int64_t fewer = kv_tiles > 1 ? (tiles_kv + kv_tiles - 2) / (kv_tiles - 1) : tiles_kv + 1;
    const int64_t cluster = num_splits < 4 ? 4 : num_splits < CLUSTER_CTAS ? CLUSTER_CTAS : fewer;
    return cluster < fewer ? cluster : fewer;
}

/* Minimises the cost model. */
static struct split choose_clusters(int64_t sms, int64_t tiles, int64_t tiles_kv) {
    struct split best = {.num_splits = 1, .cluster = 1};
    double least = cost_of_ctas(tiles, sms, tiles_kv, 0.0);
    int64_t kv_tiles;
    for (int64_t n = 2; n <= tiles_kv && n * tiles <= CLUSTER_CTAS_PER_SM * sms;
         n = next_num_splits(n, kv_tiles, tiles_kv)) {
        kv_tiles = (tiles_kv + n - 1) / n;
        const bool one = is_one_cluster(n, tiles, sms);
        const double cost =
            cost_of_ctas(n * tiles, sms, kv_tiles, one ? CLUSTER_MERGE : WORKSPACE_MERGE);
        if (cost < least) {
            least = cost;
            best = (struct split){n, one ? n : n % 2 == 0 ? 2 : 1};
        }
    }
    return best;
}

static double waves_of(int64_t ctas, int64_t sms) {
    const int64_t waves = (ctas + sms - 1) / sms;
    return (double)waves;
}

/* The largest cluster size that divides num_splits; above 2 only if all CTAs run at once. */
static int64_t largest_cluster(int64_t num_splits, int64_t tiles, int64_t sms) {
    const bool fits = num_splits * tiles <= sms * 7 / 8; /* see is_one_cluster */
    int64_t cluster = fits ? CLUSTER_CTAS : 2;
    while (num_splits % cluster != 0) {
        cluster /= 2;
    }
    return cluster;
}

/* Minimises the cost model. `full`: the part of a Q tile that has rows. */
static struct split choose_mla(int64_t sms, int64_t tiles, int64_t tiles_kv, double full) {
    struct split best = {.num_splits = 1, .cluster = 1};
    double least = waves_of(tiles, sms) * ((double)tiles_kv + MLA_CTA_COST);
    for (int64_t n = 2; n <= tiles_kv && n * tiles <= ITEMS_PER_SM * sms; n++) {
        const int64_t kv_tiles = (tiles_kv + n - 1) / n, cluster = largest_cluster(n, tiles, sms);
        const int64_t of_tile = n / cluster;
        const double clusters = (double)of_tile, ctas = (double)cluster;
        double cost = waves_of(n * tiles, sms) * ((double)kv_tiles + MLA_CTA_COST);
        cost += cluster > 1 ? MLA_CLUSTER_COST + MLA_CLUSTER_ROWS * full : 0.0;
        cost += n > cluster ? MLA_MEMORY_COST + MLA_MEMORY_ROWS * full * clusters / ctas : 0.0;
        if (cost < least) {
            least = cost;
            best = (struct split){n, cluster};
        }
    }
    return best;
}

/* MLA without splits: whether two Q tiles of a sequence form a cluster that loads K once. That
 * needs rows in both, or in neither. */
static bool pairs_share(const struct cut *cut, const attn_problem *p, int64_t block_q) {
    const bool same_lengths = !p->packed && !p->used_q;
    return cut->tiles % 2 == 0 && (same_lengths || cut->packed_heads % (2 * block_q) == 0);
}

/* Keys that a Q tile of so many queries sees, at most. */
static int64_t most_keys(const attn_problem *p, int64_t queries) {
    const int64_t right = p->causal != ATTN_CAUSAL_NONE ? 0 : p->window_right;
    if (p->window_left < 0 || right < 0 || p->window_left >= p->seq_kv || right >= p->seq_kv) {
        return p->seq_kv;
    }
    const int64_t seen = p->window_left + right + queries;
    return seen < p->seq_kv ? seen : p->seq_kv;
}

/* Minimises the cost model: waves of items, and the merge of the last tile. */
static struct split choose_items(int64_t sms, int64_t tiles, int64_t tiles_kv, double *least) {
    struct split best = {.num_splits = 1};
    *least = waves_of(tiles, sms) * ((double)tiles_kv + ITEM_COST);
    for (int64_t n = 2; n <= tiles_kv && n * tiles <= ITEMS_PER_SM * sms; n++) {
        const int64_t kv_tiles = (tiles_kv + n - 1) / n;
        const double cost = waves_of(n * tiles, sms) * ((double)kv_tiles + ITEM_COST + POST_COST) +
                            MERGE_COST * (double)n;
        if (cost < (best.num_splits == 1 ? SPLIT_GAIN : 1.0) * *least) {
            *least = cost;
            best.num_splits = n;
        }
    }
    return best;
}

/* KV tiles of a Q tile, at most. */
static int64_t tiles_of_keys(const struct variant *variant, const struct cut *cut,
                             const attn_problem *p) {
    const int64_t keys = most_keys(p, variant->info.block_q / cut->packed_heads);
    return (keys + variant->info.block_kv - 1) / variant->info.block_kv;
}

/* Rows of a Q tile that have partial results, in units of 16: batch_invariant, row_warps of
 * kernels/portable/invariant.h and hopper/invariant.h. */
static int64_t partial_warps(const struct variant *variant, const struct cut *cut,
                             const attn_problem *p) {
    const int64_t rows = p->seq_q * cut->packed_heads, block_q = variant->info.block_q;
    return ((rows < block_q ? rows : block_q) + PARTIAL_ROWS - 1) / PARTIAL_ROWS;
}

/* Chunks of so many keys (kernels/hopper/chunks.h). */
static int64_t count_chunks(int64_t keys) {
    int64_t count = 0, size = ATTN_LEAST_CHUNK_KEYS, octave = 2 * ATTN_CHUNKS_OF_OCTAVE;
    while (keys > octave * size) {
        keys -= octave * size;
        count += octave;
        octave = ATTN_CHUNKS_OF_OCTAVE;
        size *= 2;
    }
    return count + (keys + size - 1) / size;
}

/* SPLIT_DEVICE with chunks: a slot for each chunk of the Q tiles that are split, of which there are
 * fewer than two for each CTA (kernels/hopper/mixed.h). With fewer slots some are not split. */
static int64_t count_slots(int64_t ctas, const struct variant *variant, const struct cut *cut,
                           const attn_problem *p) {
    const int64_t tiles = cut->groups * cut->tiles, split = tiles < 2 * ctas ? tiles : 2 * ctas;
    const int64_t all = count_chunks(p->seq_kv);
    const int64_t seen = most_keys(p, variant->info.block_q) / ATTN_LEAST_CHUNK_KEYS + 3;
    const int64_t slots = all < 2 ? 0 : split * (seen < all ? seen : all);
    const int64_t most = MOST_SLOT_BYTES / (partial_warps(variant, cut, p) *
                                            ATTN_PARTIAL_BYTES(variant->info.head_dim_max));
    return slots < most ? slots : most;
}

/* SPLIT_DEVICE: the slots for partial results, which the kernel gives to its splits. */
static struct split choose_num_splits(const struct cuda *cuda, const struct variant *variant,
                                      const struct cut *cut, const attn_problem *p) {
    const struct kernel_family *family = &kernel_families[variant->family];
    const int64_t tiles = cut->groups * cut->tiles, block_kv = variant->info.block_kv;
    if (family->split_kv == SPLIT_NONE || tiles == 0) {
        return (struct split){.num_splits = 1};
    }
    if (family->split_kv == SPLIT_DEVICE) {
        const int64_t ctas = cuda->units < ATTN_MIXED_CTAS ? cuda->units : ATTN_MIXED_CTAS;
        return (struct split){.num_splits = family->chunk_keys > 0
                                                ? count_slots(ctas, variant, cut, p)
                                                : ATTN_MIXED_SLOTS * ctas};
    }
    const int64_t tiles_kv = (p->seq_kv + block_kv - 1) / block_kv;
    if (family->split_kv == SPLIT_CLUSTER && family->v_in_k > 0) {
        const int64_t rows = p->seq_q * cut->packed_heads, block_q = variant->info.block_q;
        struct split split =
            choose_mla(cuda->units, tiles, tiles_kv,
                       (double)(rows < block_q ? rows : block_q) / (double)block_q);
        if (split.num_splits == 1 && pairs_share(cut, p, block_q)) {
            split.cluster = 2;
        }
        return split;
    }
    if (family->split_kv == SPLIT_CLUSTER) {
        return choose_clusters(cuda->units, tiles, tiles_kv);
    }
    if (family->split_kv == SPLIT_ITEMS) {
        double cost;
        return choose_items(cuda->units, tiles, tiles_of_keys(variant, cut, p), &cost);
    }
    if (family->chunk_keys > 0) { /* all chunks or none: bits do not depend on it */
        const int64_t chunks = (p->seq_kv + family->chunk_keys - 1) / family->chunk_keys;
        const size_t partial = ATTN_PARTIAL_BYTES((size_t)variant->info.head_dim_max);
        const double bytes = (double)tiles * (double)chunks * (double)partial *
                             (double)variant->info.block_q / PARTIAL_ROWS;
        const bool few =
            tiles < SPLIT_CTAS_PER_SM * (int64_t)cuda->units && bytes < MOST_CHUNK_BYTES;
        return (struct split){.num_splits = few && chunks > 1 ? chunks : 1};
    }
    const int64_t most = tiles_kv / SPLIT_KV_TILES;
    const int64_t ctas = family->ctas_per_sm > 0 ? family->ctas_per_sm : SPLIT_CTAS_PER_SM;
    const int64_t wanted = ctas * (int64_t)cuda->units / tiles;
    const int64_t num_splits = wanted < most ? wanted : most;
    return (struct split){.num_splits = num_splits > 1 ? num_splits : 1};
}

/* By the cost model, what other kernels need: fwd_hopper_split, which takes sinks alone, or Q tiles
 * of one head and all of its keys. */
static double cost_without_items(const struct cuda *cuda, const struct variant *variant,
                                 const attn_problem *p) {
    const struct cut apart = {.packed_heads = 1};
    const int64_t heads = p->batch * p->heads_q, block_q = variant->info.block_q;
    const double keys = (double)tiles_of_keys(variant, &apart, p);
    const double whole =
        waves_of(heads * ((p->seq_q + block_q - 1) / block_q), cuda->units) * (keys + ITEM_COST);
    const double halves = waves_of(heads * ((2 * p->seq_q + block_q - 1) / block_q), cuda->units) *
                          (keys / 2 + ITEM_COST) *
                          (variant->info.head_dim_max <= 64 ? SPLIT_TILE_64 : SPLIT_TILE);
    const bool plain = (problem_options(p) & ~(uint32_t)ATTN_OPTION_SINK) == 0;
    return plain && halves < whole ? halves : whole;
}

bool cuda_prefers(const struct cuda *cuda, const struct variant *variant, const attn_problem *p) {
    const struct cut cut = cut_rows(variant, p);
    double cost;
    if (kernel_families[variant->family].split_kv != SPLIT_ITEMS) {
        return true;
    }
    if (p->seq_kv < ITEMS_KEYS || p->seq_kv / ITEMS_CACHE < p->seq_q || cut.groups == 0 ||
        cut.tiles == 0) {
        return false;
    }
    choose_items(cuda->units, cut.groups * cut.tiles, tiles_of_keys(variant, &cut, p), &cost);
    return CHUNK_TILE * cost < cost_without_items(cuda, variant, p);
}

/* Partial results of 16 rows in the workspace, of one Q tile or, SPLIT_DEVICE, of a slot; 0: none.
 * Chunks: of rows that exist alone. */
static size_t count_partials(const struct variant *variant, const struct cut *cut,
                             const struct split *split, const attn_problem *p) {
    const struct kernel_family *family = &kernel_families[variant->family];
    const bool device = family->split_kv == SPLIT_DEVICE;
    if (family->chunk_keys > 0) {
        const int64_t warps = partial_warps(variant, cut, p);
        return p->seq_kv > family->chunk_keys ? (size_t)(device ? warps : split->num_splits * warps)
                                              : 0;
    }
    const int64_t splits = split->num_splits / (split->cluster > 0 ? split->cluster : 1);
    return splits > 1 ? (size_t)((device ? 1 : splits) * (variant->info.block_q / PARTIAL_ROWS))
                      : 0;
}

/* The two counters of the dynamic tile scheduler; of split-KV, where partial results meet in the
 * workspace, a counter for each Q tile (persistent CTAs: for each 16 rows of it, or of a slot;
 * chunks: for each warpgroup), then the partial results (kernels/common/args.h). */
static void size_workspace(const struct variant *variant, const struct cut *cut,
                           const struct split *split, const attn_problem *p,
                           struct cuda_geometry *geometry) {
    const size_t counter = sizeof *geometry->args.counters;
    const struct kernel_family *family = &kernel_families[variant->family];
    const size_t places =
        (size_t)(family->split_kv == SPLIT_DEVICE ? split->num_splits : cut->groups * cut->tiles);
    const int64_t counted = family->chunk_keys > 0 ? GROUP_ROWS : PARTIAL_ROWS;
    const size_t each = splits_items(family) ? (size_t)(variant->info.block_q / counted) : 1;
    const size_t partials = places * count_partials(variant, cut, split, p);
    const size_t scheduler = family->dynamic ? 2 * counter : 0;
    geometry->workspace = scheduler;
    if (partials > 0) {
        const size_t partial = ATTN_PARTIAL_BYTES((size_t)variant->info.head_dim_max);
        const size_t counters = scheduler + places * each * counter;
        const size_t lines = (counters + ATTN_PARTIALS_ALIGN - 1) / ATTN_PARTIALS_ALIGN;
        geometry->workspace = lines * ATTN_PARTIALS_ALIGN + partials * partial;
    }
}

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
    const struct cut cut = cut_rows(variant, p);
    const double blocks = (double)cut.groups * (double)cut.tiles;
    const int32_t block_q = variant->info.block_q, most = INT32_MAX - MOST_SMS;
    if (blocks > most) {
        return attn_fail(error, ATTN_UNSUPPORTED,
                         "%.0f blocks of %d query rows, a grid has at most %d", blocks,
                         (int)block_q, (int)most);
    }
    if (p->seq_q > INT32_MAX - block_q) { /* rows are counted to the end of the last block */
        return attn_fail(error, ATTN_UNSUPPORTED, "seq_q = %lld, it takes at most %d",
                         (long long)p->seq_q, (int)(INT32_MAX - block_q));
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
                         "it needs %d bytes of shared memory, this GPU gives a block %d",
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
                             ? count_chunks(p->seq_kv)
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
    const struct cut cut = cut_rows(variant, p);
    const struct split split = choose_num_splits(cuda, variant, &cut, p);
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
    size_workspace(variant, &cut, &split, p, geometry);
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
    cuda_leave(cuda, pushed);
    return status;
}
