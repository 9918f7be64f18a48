/* SPDX-License-Identifier: Apache-2.0
 *
 * scores.h - the score ring of forward_bias.cu and forward_mask.cu: what is read for each score of
 * a KV tile, staged in shared memory, and the list of KV tiles that are not hidden.
 *
 *     loader warps (loader.h)     one for each consumer warpgroup: its rows of the mask, as bits,
 *                                 and of the bias, KV tile by KV tile
 *     producer warp (producer.h)  loads K and V of the tiles of which the mask shows a key, and
 *                                 lists each in the slot of its K stage; then LIST_END
 *     consumers (bias.h)          take the tiles from that list
 *
 * The bias is staged as it is, with rows padded by 16 or 32 bytes: free of bank conflicts. fp32
 * takes twice the room, so there are half as many stages.
 *
 * A warpgroup has stages of its own, one for each tile that the mask shows it and of which scores
 * are to be read: with a bias all, else those of which the mask hides some keys but not all.
 *
 * Invariant: a loader warp fills a stage when all threads of its warpgroup have released it.
 */
#ifndef ATTN_KERNELS_HOPPER_SCORES_H
#define ATTN_KERNELS_HOPPER_SCORES_H

#include "hopper/scheduler.h"

enum { BIAS_FP32, BIAS_FP16, BIAS_BF16 }; /* enum attn_dtype */

enum {
    LOADER_WARPS = CONSUMERS,
    MASK_STAGES = 4,
    SEEN_STAGES = 4,
    BIAS_STAGES = ATTN_BIAS_STAGES(ATTN_BN, ATTN_D), /* of 16 bits */
    MASK_WORDS = ATTN_BN / 32,                       /* of a row */
    BIAS_BYTES = TAKES_BIAS ? ATTN_BIAS_BYTES(ATTN_BM, ATTN_BN, ATTN_D) : 0,
    /* Bytes between rows of a staged bias. */
    BIAS_PITCH_32 = 4 * ATTN_BN + 32,
    BIAS_PITCH_16 = 2 * ATTN_BN + 16,
    LIST_END = -1
};

/* Of a tile and a warpgroup: does the mask show, does it hide a key. */
enum { TILE_VISIBLE = 1, TILE_HIDES = 2 };

/* A KV tile, or LIST_END; flags, two bits for each warpgroup. */
struct listed_tile {
    int n;
    unsigned flags;
};

/* In shared memory. */
struct score_ring {
    unsigned bits[MASK_STAGES][ATTN_BM * MASK_WORDS]; /* loader.h has their order */
    unsigned char seen[SEEN_STAGES][4];               /* flags of a tile, by warpgroup */
    struct listed_tile list[ATTN_STAGES];             /* guarded by the mbarriers of the K stages */
    int batch, head, first_row; /* the Q tile, for the loaders; first_row < 0: the end */
    unsigned long long tile_full, tile_empty; /* its mbarriers */
    /* A warpgroup's scores have landed; it has read them. */
    unsigned long long full[MASK_STAGES][LOADER_WARPS], empty[MASK_STAGES][LOADER_WARPS];
    unsigned long long scanned[SEEN_STAGES], listed[SEEN_STAGES]; /* likewise, of `seen` */
};

INLINE bool has_bias(const struct attn_args &a) {
    return TAKES_BIAS && a.bias != 0;
}

INLINE bool has_scores(const struct attn_args &a) {
    return has_bias(a) || a.mask != 0;
}

/* Whether a warpgroup reads scores of a tile with such flags. */
INLINE bool needs_scores(const struct attn_args &a, unsigned flags) {
    return (flags & TILE_VISIBLE) != 0 && (has_bias(a) || (flags & TILE_HIDES) != 0);
}

INLINE int score_stages(const struct attn_args &a) {
    return !has_bias(a) ? MASK_STAGES : a.bias_dtype == BIAS_FP32 ? BIAS_STAGES / 2 : BIAS_STAGES;
}

INLINE void advance_scores(struct ring &ring, int stages) {
    if (++ring.stage == stages) {
        ring.stage = 0;
        ring.parity ^= 1;
    }
}

INLINE void init_score_ring(struct score_ring *ring) {
    for (int i = 0; i < MASK_STAGES; i++) {
        for (int g = 0; g < LOADER_WARPS; g++) {
            mbarrier_init(shared_address(&ring->full[i][g]), 2 * LANES); /* loader.h */
            mbarrier_init(shared_address(&ring->empty[i][g]), WG_THREADS);
        }
    }
    for (int i = 0; i < SEEN_STAGES; i++) {
        mbarrier_init(shared_address(&ring->scanned[i]), LOADER_WARPS);
        mbarrier_init(shared_address(&ring->listed[i]), 1);
    }
    mbarrier_init(shared_address(&ring->tile_full), 1);
    mbarrier_init(shared_address(&ring->tile_empty), LOADER_WARPS);
}

#endif /* ATTN_KERNELS_HOPPER_SCORES_H */
