/* SPDX-License-Identifier: Apache-2.0
 *
 * loader.h - the loader warps of forward_bias.cu and forward_mask.cu, one for each consumer
 * warpgroup: bias and mask of its 64 rows, from global memory into the score ring (scores.h).
 *
 *     mask    a lane turns 32 bytes of a row into 32 bits; the warp votes whether they show or hide
 *             any key
 *     bias    cp.async of 16 bytes; value by value where rows are not aligned
 *
 * Invariant: what lies past the end of a sequence is not used. It is not read either, but for bytes
 * of an aligned word before the first one of a row.
 */
#ifndef ATTN_KERNELS_HOPPER_LOADER_H
#define ATTN_KERNELS_HOPPER_LOADER_H

#include "hopper/cp_async.h"
#include "hopper/scores.h"

/* ---- mask ------------------------------------------------------------------------------------ */

/* Words of a lane: word i is of the warpgroup's row (i * LANES + lane) / MASK_WORDS, and of 32 keys
 * of it. Key c is bit 8 (c % 4) + c / 4: from 0 and 1 in eight words of four bytes that takes seven
 * additions. */
enum { MASK_ROUNDS = WG_ROWS * MASK_WORDS / LANES };

/* Eight words of bytes 0 and 1. */
INLINE unsigned gather_bits(const unsigned (&x)[8]) {
    return ((x[0] + 2 * x[1]) + 4 * (x[2] + 2 * x[3])) +
           16 * ((x[4] + 2 * x[5]) + 4 * (x[6] + 2 * x[7]));
}

/* 1 for each byte that is not 0: the sum carries into its top bit. */
INLINE unsigned ones_of_bytes(unsigned x) {
    return ((((x & 0x7f7f7f7fU) + 0x7f7f7f7fU) | x) & 0x80808080U) >> 7;
}

/* Bytes [begin, end) of four. */
INLINE unsigned some_bytes(const unsigned char *at, int begin, int end) {
    unsigned x = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x |= (i >= begin && i < end ? at[i] : 0U) << 8 * i;
    }
    return x;
}

/* 32 bytes at any address, of which `left` exist, at most 32; the others are 0. They lie in nine
 * words. `first`: none of the row is before them. */
INLINE void fetch_unaligned(unsigned (&words)[9], const unsigned char *from, int left, bool first) {
    const int skew = (int)((unsigned long long)from & 3);
    const unsigned char *const at = from - skew;
    const int bytes = left > 0 ? left + skew : 0, whole = bytes & ~3, begin = first ? skew : 0;
#pragma unroll
    for (int i = 0; i < 9; i++) {
        words[i] = 4 * i < whole && (i > 0 || begin == 0) ? ((const unsigned *)at)[i] : 0U;
    }
    if (begin > 0) {
        words[0] = some_bytes(at, begin, bytes);
    }
    const unsigned rest = some_bytes(at + whole, whole == 0 ? begin : 0, bytes - whole);
#pragma unroll
    for (int i = 0; i < 9; i++) {
        words[i] |= 4 * i == whole ? rest : 0U;
    }
}

INLINE unsigned unaligned_bits(const unsigned (&words)[9], const unsigned char *from) {
    const unsigned skew = 8 * (unsigned)((unsigned long long)from & 3);
    unsigned x[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        x[i] = ones_of_bytes(__funnelshift_r(words[i], words[i + 1], skew));
    }
    return gather_bits(x);
}

/* The rare case of a stride between keys. */
INLINE unsigned strided_bits(const unsigned char *from, long long stride, int left) {
    unsigned bits = 0;
#pragma unroll 1
    for (int i = 0; i < min(left, 32); i++) {
        bits |= (from[i * stride] != 0 ? 1U : 0U) << (8 * (i % 4) + i / 4);
    }
    return bits;
}

/* Whole rows, aligned to 16 bytes, all of this Q tile; four at once. */
INLINE void aligned_words(unsigned (&words)[MASK_ROUNDS], const unsigned char *from,
                          long long step) {
    constexpr int batch = MASK_ROUNDS < 4 ? MASK_ROUNDS : 4;
#pragma unroll
    for (int first = 0; first < MASK_ROUNDS; first += batch) {
        unsigned x[batch][8];
#pragma unroll
        for (int i = 0; i < batch; i++) {
            const uint4 low = ((const uint4 *)from)[0], high = ((const uint4 *)from)[1];
            x[i][0] = low.x, x[i][1] = low.y, x[i][2] = low.z, x[i][3] = low.w;
            x[i][4] = high.x, x[i][5] = high.y, x[i][6] = high.z, x[i][7] = high.w;
            from += step;
        }
#pragma unroll
        for (int i = 0; i < batch; i++) {
            const unsigned any =
                (x[i][0] | x[i][1] | x[i][2] | x[i][3]) | (x[i][4] | x[i][5] | x[i][6] | x[i][7]);
            if ((any & 0xfefefefeU) != 0) { /* other values than 0 and 1 */
#pragma unroll
                for (int j = 0; j < 8; j++) {
                    x[i][j] = ones_of_bytes(x[i][j]);
                }
            }
            words[first + i] = gather_bits(x[i]);
        }
    }
}

/* The mask of a tile for the rows [first_row, ...) of a warpgroup, and its flags. */
INLINE unsigned load_mask(unsigned (&words)[MASK_ROUNDS], const struct attn_args &a,
                          const struct work &w, int first_row, int n, int lane) {
    const int key = n * ATTN_BN + lane % MASK_WORDS * 32, left = min(w.seq_kv - key, 32);
    const int row = first_row + lane / MASK_WORDS;
    const unsigned char *const first =
        a.mask + w.batch * a.mask_batch + w.head * a.mask_head + key * a.mask_col;
    const unsigned aligned =
        (unsigned)(unsigned long long)first | (unsigned)(unsigned long long)a.mask_row;
    if (a.mask_col == 1 && (aligned & 15) == 0 && first_row + WG_ROWS <= w.rows &&
        n * ATTN_BN <= w.seq_kv - ATTN_BN) {
        aligned_words(words, first + row * a.mask_row, LANES / MASK_WORDS * a.mask_row);
    } else if (a.mask_col == 1) { /* two at once: the registers suffice, and latencies overlap */
#pragma unroll
        for (int i = 0; i < MASK_ROUNDS; i += 2) {
            unsigned x[2][9];
            const unsigned char *from[2];
#pragma unroll
            for (int j = 0; j < 2; j++) {
                from[j] =
                    first + min(row + (i + j) * (LANES / MASK_WORDS), w.rows - 1) * a.mask_row;
                fetch_unaligned(x[j], from[j], left, key == 0);
            }
            words[i] = unaligned_bits(x[0], from[0]);
            words[i + 1] = unaligned_bits(x[1], from[1]);
        }
    } else {
#pragma unroll
        for (int i = 0; i < MASK_ROUNDS; i++) {
            words[i] =
                strided_bits(first + min(row + i * (LANES / MASK_WORDS), w.rows - 1) * a.mask_row,
                             a.mask_col, left);
        }
    }
    unsigned any = 0, all = ~0U;
#pragma unroll
    for (int i = 0; i < MASK_ROUNDS; i++) {
        any |= words[i];
        all &= words[i];
    }
    return (__any_sync(~0U, any != 0) ? TILE_VISIBLE : 0U) |
           (__any_sync(~0U, all != ~0U) ? TILE_HIDES : 0U);
}

/* ---- bias ------------------------------------------------------------------------------------ */

/* The value of key i of a chunk; 16 bits in their place of a word. */
template <bool fp32>
INLINE unsigned bias_value(const unsigned char *from, long long stride, int i) {
    return fp32 ? ((const unsigned *)from)[i * stride]
                : (unsigned)((const unsigned short *)from)[i * stride] << 16 * (i % 2);
}

/* The bias of a tile for the rows [first_row, ...) of a warpgroup. Copies of 16 bytes; of 4, if
 * rows are aligned to no more; or value by value: 16 bits at odd places, or a stride between
 * keys. */
template <bool fp32>
INLINE void load_bias(unsigned to, const struct attn_args &a, const struct work &w, int first_row,
                      int n, int lane) {
    constexpr int size = fp32 ? 4 : 2, values = 16 / size, chunks = ATTN_BN / values;
    constexpr int pitch = fp32 ? BIAS_PITCH_32 : BIAS_PITCH_16, step = LANES / chunks;
    const int chunk = lane % chunks, key = n * ATTN_BN + chunk * values;
    const unsigned char *const first =
        (const unsigned char *)a.bias +
        (w.batch * a.bias_batch + w.head * a.bias_head + key * a.bias_col) * size;
    const unsigned aligned =
        (unsigned)(unsigned long long)first | (unsigned)(unsigned long long)(a.bias_row * size);
    const int left = max(min(w.seq_kv - key, values), 0);
    to += (unsigned)(chunk * 16);
    if (a.bias_col == 1 && (aligned & 15) == 0) {
#pragma unroll 2
        for (int i = lane / chunks; i < WG_ROWS; i += step) {
            const int row = min(first_row + i, w.rows - 1);
            cp_async<16>(to + (unsigned)(i * pitch), first + row * a.bias_row * size, left * size);
        }
    } else if (a.bias_col == 1 && (aligned & 3) == 0) {
#pragma unroll 1
        for (int i = lane / chunks; i < WG_ROWS; i += step) {
            const unsigned char *const from =
                first + min(first_row + i, w.rows - 1) * a.bias_row * size;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                cp_async<4>(to + (unsigned)(i * pitch + 4 * j), from + 4 * j,
                            max(min(left * size - 4 * j, 4), 0));
            }
        }
    } else {
#pragma unroll 1
        for (int i = lane / chunks; i < WG_ROWS; i += step) {
            const unsigned char *const from =
                first + min(first_row + i, w.rows - 1) * a.bias_row * size;
            unsigned x[4] = {0, 0, 0, 0};
#pragma unroll
            for (int j = 0; j < values; j++) {
                x[j * size / 4] |= j < left ? bias_value<fp32>(from, a.bias_col, j) : 0U;
            }
            asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};"
                         :
                         : "r"(to + (unsigned)(i * pitch)), "r"(x[0]), "r"(x[1]), "r"(x[2]),
                           "r"(x[3])
                         : "memory");
        }
    }
}

/* ---- the loop -------------------------------------------------------------------------------- */

/* The Q tile that the producer has posted; first_row < 0: the end. */
INLINE struct work posted_q_tile(struct score_ring *ring, unsigned parity, int lane) {
    struct work w = {};
    mbarrier_wait(shared_address(&ring->tile_full), parity);
    if (lane == 0) {
        volatile struct score_ring *const posted = ring;
        w.batch = posted->batch;
        w.head = posted->head;
        w.first_row = posted->first_row;
        mbarrier_arrive(shared_address(&ring->tile_empty));
    }
    w.batch = __shfl_sync(~0U, w.batch, 0);
    w.head = __shfl_sync(~0U, w.head, 0);
    w.first_row = __shfl_sync(~0U, w.first_row, 0);
    return w;
}

/* Of warpgroup `group`; `scores`: the first stage of the bias. */
INLINE void loader_loop(const struct attn_args &a, struct score_ring *ring, unsigned scores,
                        int group, int lane) {
    const int stages = score_stages(a);
    struct ring at = {0, 1}, seen = {0, 1}; /* parities: stages are empty */
    unsigned full_parity = 0;
#pragma unroll 1
    for (;;) {
        struct work w = posted_q_tile(ring, full_parity, lane);
        full_parity ^= 1;
        if (w.first_row < 0) {
            break;
        }
        lengths_of_sequence(a, w);
        clip_first_tile(w);
        const struct tile_range keys = kv_tiles_of_q_tile(a, w);
        const int first_row = w.first_row + group * WG_ROWS;
#pragma unroll 1
        for (int i = 0; i < keys.end - keys.begin; i++) {
            const int n = kv_tile(keys, i);
            unsigned flags = TILE_VISIBLE, words[MASK_ROUNDS];
            if (a.mask != 0) {
                flags = load_mask(words, a, w, first_row, n, lane);
                if (lane == 0) {
                    mbarrier_wait(shared_address(&ring->listed[seen.stage]), seen.parity);
                    ring->seen[seen.stage][group] = (unsigned char)flags;
                    mbarrier_arrive(shared_address(&ring->scanned[seen.stage]));
                }
                advance<SEEN_STAGES>(seen);
                __syncwarp();
            }
            if (!needs_scores(a, flags)) {
                continue;
            }
            const unsigned full = shared_address(&ring->full[at.stage][group]);
            mbarrier_wait(shared_address(&ring->empty[at.stage][group]), at.parity);
            if (a.mask != 0) {
#pragma unroll
                for (int j = 0; j < MASK_ROUNDS; j++) {
                    ring->bits[at.stage][group * WG_ROWS * MASK_WORDS + j * LANES + lane] =
                        words[j];
                }
            }
            if (has_bias(a)) {
                const unsigned to = scores + (unsigned)(at.stage * (BIAS_BYTES / stages));
                if (a.bias_dtype == BIAS_FP32) {
                    load_bias<true>(to + (unsigned)(group * WG_ROWS * BIAS_PITCH_32), a, w,
                                    first_row, n, lane);
                } else {
                    load_bias<false>(to + (unsigned)(group * WG_ROWS * BIAS_PITCH_16), a, w,
                                     first_row, n, lane);
                }
                cp_async_arrive(full); /* for what was copied */
            }
            mbarrier_arrive_many(full, has_bias(a) ? 1 : 2); /* for what was stored */
            advance_scores(at, stages);
        }
    }
}

#endif /* ATTN_KERNELS_HOPPER_LOADER_H */
