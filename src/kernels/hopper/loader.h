/* SPDX-License-Identifier: Apache-2.0
 *
 * loader.h - the loader warps of forward_bias.cu: bias and mask of each KV tile, from global memory
 * into the score ring (scores.h).
 *
 *     mask    a lane turns 32 bytes of a row into 32 bits; a warp votes whether its part shows or
 *             hides any key
 *     bias    one bulk copy for each row of a tile; where a row is not aligned to 16 bytes or ends
 *             in the tile, through registers
 *
 * Invariant: no value of a key past the end of its sequence is used. At an unaligned address up to
 * three bytes beyond a chunk are read, but only where the sequence goes on.
 */
#ifndef ATTN_KERNELS_HOPPER_LOADER_H
#define ATTN_KERNELS_HOPPER_LOADER_H

#include "hopper/scores.h"

/* Words from any byte address on; up to three bytes after them are read, too. */
template <int words>
INLINE void load_unaligned(unsigned (&x)[words], const unsigned char *from) {
    const unsigned skew = (unsigned)((unsigned long long)from & 3);
    const unsigned *const at = (const unsigned *)(from - skew);
    unsigned next = at[0];
#pragma unroll
    for (int i = 0; i < words; i++) {
        const unsigned now = next;
        next = i + 1 < words || skew != 0 ? at[i + 1] : 0U;
        x[i] = __funnelshift_r(now, next, 8 * skew);
    }
}

/* ---- mask ------------------------------------------------------------------------------------ */

/* Four bytes to four bits: which are not 0. The sum carries into the top bit of each such byte, the
 * product moves the four top bits next to each other. */
INLINE unsigned nonzero_bytes(unsigned x) {
    const unsigned top = (((x & 0x7f7f7f7fU) + 0x7f7f7f7fU) | x) & 0x80808080U;
    return top * 0x00204081U >> 28;
}

/* Up to 32 bytes, of which `left` exist. */
INLINE unsigned visible_bits(const unsigned char *from, long long stride, int left) {
    unsigned bits = 0;
    if (stride == 1 && left >= 32 + 3) {
        unsigned x[8];
        if (((unsigned long long)from & 15) == 0) {
            *(uint4 *)&x[0] = ((const uint4 *)from)[0];
            *(uint4 *)&x[4] = ((const uint4 *)from)[1];
        } else {
            load_unaligned(x, from);
        }
#pragma unroll
        for (int i = 0; i < 8; i++) {
            bits |= nonzero_bytes(x[i]) << 4 * i;
        }
        return bits;
    }
#pragma unroll 8
    for (int i = 0; i < min(left, 32); i++) {
        bits |= (from[i * stride] != 0 ? 1U : 0U) << i;
    }
    return bits;
}

INLINE void load_mask(struct score_ring *ring, int stage, const struct attn_args &a,
                      const struct work &w, int n, int warp, int lane) {
    const unsigned char *const first =
        a.mask + w.batch * a.mask_batch + w.head * a.mask_head;
#pragma unroll
    for (int part = warp; part < MASK_PARTS; part += LOADER_WARPS) {
        const int i = part * LANES + lane;
        const int row = min(w.first_row + i / MASK_WORDS, w.rows - 1);
        const int key = n * ATTN_BN + i % MASK_WORDS * 32;
        const unsigned bits = visible_bits(first + row * a.mask_row + key * a.mask_col, a.mask_col,
                                           w.seq_kv - key);
        ring->bits[stage][i] = bits;
        const bool visible = __any_sync(~0U, bits != 0), hides = __any_sync(~0U, bits != ~0U);
        if (lane == 0) {
            ring->parts[stage][part] =
                (unsigned char)((visible ? PART_VISIBLE : 0) | (hides ? PART_HIDES : 0));
        }
    }
}

/* ---- bias ------------------------------------------------------------------------------------ */

/* 16 bytes of a row of the bias, of which `left` values exist. */
template <bool fp32>
INLINE uint4 bias_chunk(const unsigned char *from, long long stride, int left) {
    constexpr int size = fp32 ? 4 : 2, values = 16 / size;
    unsigned x[4] = {0, 0, 0, 0};
    if (stride == 1 && left > values) {
        load_unaligned(x, from);
    } else {
#pragma unroll
        for (int i = 0; i < values; i++) {
            const unsigned char *const at = from + i * stride * size;
            if (i < left) {
                x[i * size / 4] |= fp32 ? *(const unsigned *)at
                                        : (unsigned)*(const unsigned short *)at << 16 * (i % 2);
            }
        }
    }
    return make_uint4(x[0], x[1], x[2], x[3]);
}

/* Rows of a tile are shared out to all loader threads. `whole` rows are copied by TMA, which counts
 * their bytes; the lanes of a warp issue the copies after its arrival. */
template <bool fp32>
INLINE void load_bias(unsigned to, unsigned full, const struct attn_args &a, const struct work &w,
                      int n, int thread) {
    constexpr int size = fp32 ? 4 : 2, row_bytes = ATTN_BN * size, chunks = row_bytes / 16;
    constexpr int threads = LOADER_WARPS * LANES, pitch = fp32 ? BIAS_PITCH_32 : BIAS_PITCH_16;
    const int key = n * ATTN_BN, lane = thread % LANES, warp = thread / LANES;
    const unsigned char *const first =
        (const unsigned char *)a.bias +
        (w.batch * a.bias_batch + w.head * a.bias_head + key * a.bias_col) * size;
    const bool aligned = ((unsigned)(unsigned long long)first & 15) == 0 &&
                         (a.bias_row * size & 15) == 0 && a.bias_col == 1;
    if (aligned && key + ATTN_BN <= w.seq_kv) {
        const int full_rounds = ATTN_BM / threads, rest = ATTN_BM % threads;
        const int rows = full_rounds * LANES + max(0, min(rest - warp * LANES, (int)LANES));
        if (lane == 0) {
            mbarrier_arrive_expect(full, (unsigned)(rows * row_bytes));
        }
        __syncwarp();
#pragma unroll
        for (int i = thread; i < ATTN_BM; i += threads) {
            const int row = min(w.first_row + i, w.rows - 1);
            bulk_load(to + (unsigned)(i * pitch), first + row * a.bias_row * size,
                      row_bytes, full);
        }
        return;
    }
#pragma unroll 2
    for (int i = thread; i < ATTN_BM * chunks; i += threads) {
        const int row = min(w.first_row + i / chunks, w.rows - 1), column = i % chunks * (16 / size);
        const uint4 x = bias_chunk<fp32>(first + (row * a.bias_row + column * a.bias_col) * size,
                                         a.bias_col, w.seq_kv - key - column);
        asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};"
                     :
                     : "r"(to + (unsigned)(i / chunks * pitch + i % chunks * 16)),
                       "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
                     : "memory");
    }
    __syncwarp();
    if (lane == 0) {
        mbarrier_arrive(full);
    }
}

/* ---- the loop -------------------------------------------------------------------------------- */

/* The Q tile that the producer has told; first_row < 0: the end. */
INLINE struct work told_tile(struct score_ring *ring, unsigned parity, int lane) {
    struct work w = {};
    mbarrier_wait(shared_address(&ring->told), parity);
    if (lane == 0) {
        volatile struct score_ring *const told = ring;
        w.batch = told->batch;
        w.head = told->head;
        w.first_row = told->first_row;
        mbarrier_arrive(shared_address(&ring->taken));
    }
    w.batch = __shfl_sync(~0U, w.batch, 0);
    w.head = __shfl_sync(~0U, w.head, 0);
    w.first_row = __shfl_sync(~0U, w.first_row, 0);
    return w;
}

/* `thread` of the loader warps; `scores`: the first stage of the bias. */
INLINE void loader_loop(const struct attn_args &a, struct score_ring *ring, unsigned scores,
                        int thread) {
    const int lane = thread % LANES, stages = score_stages(a);
    struct ring at = {0, 1}; /* parity: stages are empty */
    unsigned told = 0;
#pragma unroll 1
    for (;;) {
        struct work w = told_tile(ring, told, lane);
        told ^= 1;
        if (w.first_row < 0) {
            break;
        }
        lengths_of_sequence(a, w);
        clip_first_tile(w);
        const struct tile_range keys = kv_tiles_of_q_tile(a, w);
#pragma unroll 1
        for (int i = 0; i < keys.end - keys.begin; i++) {
            const int n = kv_tile(keys, i);
            const unsigned full = shared_address(&ring->full[at.stage]);
            const unsigned to = scores + (unsigned)(at.stage * (SCORE_BYTES / stages));
            mbarrier_wait(shared_address(&ring->empty[at.stage]), at.parity);
            if (a.mask != 0) {
                load_mask(ring, at.stage, a, w, n, thread / LANES, lane);
                __syncwarp();
            }
            if (a.bias == 0) {
                if (lane == 0) {
                    mbarrier_arrive(full);
                }
            } else if (a.bias_dtype == BIAS_FP32) {
                load_bias<true>(to, full, a, w, n, thread);
            } else {
                load_bias<false>(to, full, a, w, n, thread);
            }
            advance_scores(at, stages);
        }
    }
}

#endif /* ATTN_KERNELS_HOPPER_LOADER_H */
