/* SPDX-License-Identifier: Apache-2.0
 *
 * scores.h - the score ring of forward_bias.cu: what is read for each score of a KV tile, staged in
 * shared memory, and the list of KV tiles that are not hidden.
 *
 *     loader warps (loader.h)     bias and mask of each KV tile into a stage; the mask as bits
 *     producer warp (producer.h)  loads K and V of the tiles of which the mask shows a key, and
 *                                 lists each in the slot of its K stage; then LIST_END
 *     consumers (bias.h)          take the tiles from that list
 *
 * The bias is staged as it is, with rows padded by 16 or 32 bytes: free of bank conflicts. fp32
 * takes twice the room, so there are half as many stages.
 *
 * Invariant: a stage is filled when all consumer warps have released it, or the producer has for
 * them, as no warpgroup sees its tile.
 */
#ifndef ATTN_KERNELS_HOPPER_SCORES_H
#define ATTN_KERNELS_HOPPER_SCORES_H

#include "hopper/scheduler.h"

enum { BIAS_FP32, BIAS_FP16, BIAS_BF16 }; /* enum attn_dtype */

enum {
    LOADER_WARPS = 3,
    LOADER_THREADS = LOADER_WARPS * LANES,
    SCORE_STAGES = 4,                   /* at most */
    MASK_WORDS = ATTN_BN / 32,          /* of a row */
    MASK_PARTS = ATTN_BM * MASK_WORDS / LANES, /* each a word of 32 neighbouring lanes */
    WG_PARTS = MASK_PARTS / CONSUMERS,  /* of the rows of a warpgroup */
    SCORE_BYTES = BIASED ? ATTN_SCORE_BYTES(ATTN_BM, ATTN_BN) : 0,
    /* Bytes between rows of a staged bias. */
    BIAS_PITCH_32 = 4 * ATTN_BN + 32,
    BIAS_PITCH_16 = 2 * ATTN_BN + 16,
    LIST_END = -1
};

/* Of a part of the mask, and of a listed tile: bit g is of warpgroup g. */
enum { PART_VISIBLE = 1, PART_HIDES = 2 };
enum { TILE_VISIBLE = 1, TILE_HIDES = 1 << 8, TILE_STAGE = 16, TILE_PARITY = 24 };

/* A KV tile, or LIST_END; its flags, and the stage and parity of its scores. */
struct listed_tile {
    int n;
    unsigned flags;
};

/* In shared memory. */
struct score_ring {
    unsigned bits[SCORE_STAGES][ATTN_BM * MASK_WORDS]; /* bit j: the row sees key j */
    unsigned char parts[SCORE_STAGES][16];
    struct listed_tile list[ATTN_STAGES]; /* guarded by the mbarriers of the K stages */
    int batch, head, first_row;           /* the Q tile, for the loaders; first_row < 0: the end */
    unsigned long long full[SCORE_STAGES], empty[SCORE_STAGES];
    unsigned long long told, taken; /* of the Q tile */
};
static_assert(!BIASED || MASK_PARTS <= 16, "parts of a stage");

INLINE bool has_scores(const struct attn_args &a) {
    return a.bias != 0 || a.mask != 0;
}

INLINE int score_stages(const struct attn_args &a) {
    return a.bias != 0 && a.bias_dtype == BIAS_FP32 ? SCORE_STAGES / 2 : SCORE_STAGES;
}

INLINE void advance_scores(struct ring &ring, int stages) {
    if (++ring.stage == stages) {
        ring.stage = 0;
        ring.parity ^= 1;
    }
}

INLINE void init_score_ring(struct score_ring *ring) {
    for (int i = 0; i < SCORE_STAGES; i++) {
        mbarrier_init(shared_address(&ring->full[i]), LOADER_THREADS + LOADER_WARPS);
        mbarrier_init(shared_address(&ring->empty[i]), 4 * CONSUMERS);
    }
    mbarrier_init(shared_address(&ring->told), 1);
    mbarrier_init(shared_address(&ring->taken), LOADER_WARPS);
}

#endif /* ATTN_KERNELS_HOPPER_SCORES_H */
