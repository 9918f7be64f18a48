/* SPDX-License-Identifier: Apache-2.0
 *
 * config.h - the policy of each Hopper tile: one row per tile of variants.def, and the constants
 * that follow from it. To change the policy of a tile, edit its row.
 *
 * A tile without a row (a candidate of the tuner) takes that of the first row of its kernel and
 * head_dim, of the same BM if there is one. A time such as 0.95x is that of the tile with the flag
 * against the tile without it, on one H200; the log is in docs/lab.
 *
 * Invariant: flags change the order of work, never the result beyond rounding; any set of flags
 * that passes the static assertions is correct.
 */
#ifndef ATTN_KERNELS_HOPPER_CONFIG_H
#define ATTN_KERNELS_HOPPER_CONFIG_H

#include "common/work.h"

#ifdef ATTN_CAUSAL
enum { MASKED = 1 };
#else
enum { MASKED = 0 };
#endif

/* CTAs take splits of Q tiles, and merge partial results in the workspace (split_kv.h). */
#ifdef ATTN_SPLIT_KV
enum { SPLIT_KV = 1 };
#else
enum { SPLIT_KV = 0 };
#endif

/* The splits are chosen by the kernel, from the lengths in memory (mixed.h). */
#ifdef ATTN_MIXED
enum { MIXED = 1 };
#else
enum { MIXED = 0 };
#endif

/* batch_invariant: hopper/invariant.h. */
#ifdef ATTN_INVARIANT
enum { INVARIANT = 1 };
#else
enum { INVARIANT = 0 };
#endif

/* A bias, a boolean mask, or both are read for each score, and KV tiles are listed (scores.h). */
#ifdef ATTN_BIAS
enum { TAKES_BIAS = 1 };
#else
enum { TAKES_BIAS = 0 };
#endif
enum { LISTED = TAKES_BIAS || TAKES_MASK };

/* ---- policies -------------------------------------------------------------------------------- */

namespace policy {

/* forward.cu without a mask, forward_causal.cu, forward_full.cu, forward_mask.cu, forward_bias.cu,
 * forward_chunk.cu, forward_mixed.cu and forward_invariant.cu */
enum kernel { UNMASKED, CAUSAL, FULL_OPTIONS, MASK, BIAS, CHUNK };

enum flag : unsigned {
    none = 0,
    /* O += PV of one KV tile is in flight during the softmax of the next. Costs the registers of a
     * second P, which four consumer warpgroups (112 registers each) do not have. */
    overlap = 1,
    /* Warpgroups take turns at the tensor cores, every iteration: one's GEMMs under the others'
     * softmax. All must have the same number of iterations, so not with a mask. */
    ping_pong = 2,
    /* Warpgroup 1 lets warpgroup 0 go first at the first S of each Q tile; they stay half an
     * iteration apart. Two warpgroups, not with ping_pong. */
    stagger = 4,
    /* The next Q is prefetched to L2 while this Q tile is computed. */
    prefetch_q = 8,
    /* KV tiles run backwards from the last. This one takes the first tile ahead of them, and m from
     * both: attention sinks at either end are in m from the start, so no retry. */
    front_first = 16,
    /* m comes from the first two KV tiles: in that of the diagonal some rows see a single key. */
    two_tile_max = 32,
    /* The mainloop tests every tile for a mask. A causal mask crosses only tiles of the safe path,
     * so it need not; without overlap ptxas still schedules that loop better. */
    mask_in_mainloop = 64,
    /* A warpgroup skips K of the tiles it does not see at once, their V after its first softmax. */
    defer_v = 128,
    /* Q tiles are cut from the last row on: the partial one is the first, which sees fewest
     * keys. */
    cut_from_end = 256
};

struct tile {
    enum kernel kernel;
    int head_dim, block_q, block_kv, warps, stages;
    unsigned flags;
};

constexpr unsigned flags_of(enum kernel kernel, int d, int bm, int bn, int warps, int stages) {
    constexpr struct tile tiles[] = {
        /* ping_pong: 609 to 647 TFLOP/s; without it 499 to 616, as the warpgroups happen to fall in
         * step. front_first: 1.00 to 1.03x, and a sink is no retry (2.0 to 2.6x). prefetch_q:
         * 1.05x */
        {UNMASKED, 64, 256, 64, 20, 6, ping_pong | front_first},
        {UNMASKED, 64, 192, 128, 16, 4, ping_pong | front_first},
        {UNMASKED, 64, 128, 64, 12, 6, ping_pong | front_first},
        /* stagger: 0.95 to 0.97x; with prefetch_q 0.92x at S 512, 0.93x at S 1024. overlap at 128:
         * 0.96x at S 1024, 1.02x at S 512. front_first: 1.05x at S 512 (four KV tiles) */
        {UNMASKED, 96, 128, 128, 12, 2, stagger | prefetch_q},
        {UNMASKED, 128, 128, 128, 12, 2, overlap | stagger | prefetch_q},
        /* stagger: 0.95 to 0.97x; prefetch_q: 1.03x; front_first: 1.00 to 1.01x, and no retry */
        {UNMASKED, 192, 128, 64, 12, 3, stagger | front_first},
        {UNMASKED, 256, 128, 64, 12, 2, stagger | front_first},
        /* defer_v: 0.985 to 0.99x; mask_in_mainloop: 0.98 to 0.99x from S 1024 on; cut_from_end at
         * 256 rows: 1.003 to 1.015x, since powers of 2 leave no partial tile. front_first: 1.10 to
         * 1.18x, as the warpgroups then begin with the same keys and stay in step */
        {CAUSAL, 64, 256, 64, 20, 6, mask_in_mainloop | defer_v},
        {CAUSAL, 96, 192, 64, 16, 3, mask_in_mainloop | defer_v | cut_from_end},
        /* cut_from_end: 0.955x at S 1024, 0.98x at S 512; two_tile_max: 1.01 to 1.02x, and logits
         * x8 cost 1.05x at most instead of 1.09x; mask_in_mainloop: 1.02x at S 1000; defer_v:
         * 1.025x */
        {CAUSAL, 128, 192, 64, 16, 3, overlap | two_tile_max | cut_from_end},
        /* two_tile_max: 1.01x, and logits x8 still cost 1.06x */
        {CAUSAL, 128, 128, 64, 12, 4, overlap},
        /* two_tile_max: 1.00 to 1.01x, and logits x8 cost 1.04x at most */
        {CAUSAL, 192, 128, 64, 12, 3, overlap | two_tile_max},
        {CAUSAL, 256, 128, 64, 12, 2, overlap | two_tile_max},
        /* a window may cross any tile: mask_in_mainloop is required. Other flags as CAUSAL */
        {FULL_OPTIONS, 64, 192, 64, 16, 6, mask_in_mainloop | defer_v | cut_from_end},
        {FULL_OPTIONS, 96, 192, 64, 16, 3, mask_in_mainloop | defer_v | cut_from_end},
        {FULL_OPTIONS, 128, 192, 64, 16, 3, overlap | mask_in_mainloop | cut_from_end},
        {FULL_OPTIONS, 192, 128, 64, 12, 3, overlap | mask_in_mainloop},
        {FULL_OPTIONS, 256, 128, 64, 12, 2, overlap | mask_in_mainloop},
        /* a mainloop of their own: listed.h */
        {MASK, 128, 128, 128, 12, 2, mask_in_mainloop},
        {BIAS, 64, 128, 128, 12, 3, mask_in_mainloop},
        {BIAS, 128, 128, 64, 12, 3, overlap | mask_in_mainloop},
        {BIAS, 192, 128, 64, 12, 2, mask_in_mainloop},
        {BIAS, 256, 128, 32, 12, 3, mask_in_mainloop},
        /* as FULL_OPTIONS; two consumer warpgroups have the registers of overlap at D 64 */
        {CHUNK, 64, 128, 64, 12, 6, overlap | mask_in_mainloop},
        {CHUNK, 128, 128, 64, 12, 4, overlap | mask_in_mainloop},
    };
    const struct tile *nearest = nullptr;
    for (const struct tile &t : tiles) {
        if (t.kernel != kernel || t.head_dim != d) {
            continue;
        }
        if (t.block_q == bm && t.block_kv == bn && t.warps == warps && t.stages == stages) {
            return t.flags;
        }
        if (nearest == nullptr || (t.block_q == bm && nearest->block_q != bm)) {
            nearest = &t;
        }
    }
    return nearest != nullptr ? nearest->flags : (unsigned)none;
}

/* split.cu: CTAs per SM, as shared memory allows (of 227 KiB): 137, 105 and 145 KiB each. */
struct split_tile {
    int head_dim, block_kv, ctas_per_sm;
};

constexpr int ctas_per_sm(void) {
    constexpr struct split_tile tiles[] = {{64, 128, 1}, {64, 64, 2}, {128, 64, 1}};
    for (const struct split_tile &t : tiles) {
        if (t.head_dim == ATTN_D && t.block_kv == ATTN_BN) {
            return t.ctas_per_sm;
        }
    }
    return 1;
}

constexpr bool has(enum flag flag) {
    return (flags_of(TAKES_BIAS ? BIAS
                     : LISTED   ? MASK
                     : SPLIT_KV ? CHUNK
                     : FULL     ? FULL_OPTIONS
                     : MASKED   ? CAUSAL
                                : UNMASKED,
                     ATTN_D, ATTN_BM, ATTN_BN, ATTN_WARPS, ATTN_STAGES) &
            flag) != 0;
}

} // namespace policy

/* ---- of every Hopper kernel ------------------------------------------------------------------ */

enum {
    WG_ROWS = 64,        /* rows of a warpgroup: M of wgmma */
    WG_THREADS = 128,    /* of a warpgroup */
    SWIZZLE_BYTES = 128, /* a row of a TMA box: 64 columns of 16 bits */
    SWIZZLE_ATOM = 1024, /* 8 such rows, the period of the swizzle: tiles are aligned to it */
    COLUMNS = ATTN_TMA_COLUMNS(ATTN_D),
    CHUNKS = COLUMNS / 64,   /* TMA boxes of a tile */
    QK_STEPS = ATTN_D / 16,  /* wgmma of S = QK^T: k is 16 */
    PV_STEPS = ATTN_BN / 16, /* wgmma of O += PV */
    /* Registers of a thread. An accumulator of 64 x N has N / 2; P is packed in pairs. */
    S_REGS = ATTN_BN / 2, /* S[i] is of its row i / 2 % 2 */
    P_REGS = ATTN_BN / 4, /* P[i] is of its row i % 2 */
    O_REGS = ATTN_D / 2,  /* as S */
    /* Bytes of shared memory. */
    Q_CHUNK = ATTN_BM * SWIZZLE_BYTES,
    KV_CHUNK = ATTN_BN * SWIZZLE_BYTES,
    Q_BYTES = CHUNKS * Q_CHUNK,
    KV_BYTES = CHUNKS * KV_CHUNK,
    /* What TMA loads of a KV tile: fp8 has rings of codes, in boxes of all columns (convert.h). */
    LOAD_STAGES = FP8 ? ATTN_CODE_STAGES : ATTN_STAGES,
    LOAD_BOXES = FP8 ? 1 : CHUNKS,
    LOAD_BOX = FP8 ? ATTN_BN * ATTN_D : KV_CHUNK,
    LOAD_BYTES = LOAD_BOXES * LOAD_BOX
};

#endif /* ATTN_KERNELS_HOPPER_CONFIG_H */
