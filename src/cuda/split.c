/* SPDX-License-Identifier: Apache-2.0
 *
 * split.c - how a GPU variant cuts a problem: query rows into Q tiles, keys into splits, by cost
 * models, and the workspace that partial results need.
 */
#include <math.h>

#include "cuda/split.h"

enum {
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
    MOST_SLOT_BYTES = 128 << 20   /* likewise, SPLIT_DEVICE */
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

struct cut cuda_cut_rows(const struct variant *variant, const attn_problem *p) {
    const int64_t heads = p->heads_q / p->heads_kv, block_q = variant->info.block_q;
    struct cut cut = {.packed_heads = packs_heads(variant, p, heads) ? heads : 1};
    cut.tiles = (p->seq_q * cut.packed_heads + block_q - 1) / block_q;
    cut.groups = p->batch * (p->heads_q / cut.packed_heads);
    return cut;
}

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

int64_t cuda_count_chunks(int64_t keys) {
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
    const int64_t all = cuda_count_chunks(p->seq_kv);
    const int64_t seen = most_keys(p, variant->info.block_q) / ATTN_LEAST_CHUNK_KEYS + 3;
    const int64_t slots = all < 2 ? 0 : split * (seen < all ? seen : all);
    const int64_t most = MOST_SLOT_BYTES / (partial_warps(variant, cut, p) *
                                            ATTN_PARTIAL_BYTES(variant->info.head_dim_max));
    return slots < most ? slots : most;
}

/* SPLIT_DEVICE: the slots for partial results, which the kernel gives to its splits. */
struct split cuda_choose_splits(const struct cuda *cuda, const struct variant *variant,
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
    const struct cut cut = cuda_cut_rows(variant, p);
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

void cuda_size_workspace(const struct variant *variant, const struct cut *cut,
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
