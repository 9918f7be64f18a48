/* SPDX-License-Identifier: Apache-2.0
 *
 * dkv.h - dK and dV of a key tile: their stores, and where its group of query heads is spread over
 * several CTAs, their sum, in a fixed order, from the group's first heads to its last.
 *
 *     the first of them    stores its part to kv_sum
 *     others               wait for their turn, and add theirs to it
 *     the last             waits, adds the sum to its own, and goes on to store dK and dV
 *
 * A consumer warpgroup has a sum of its own, in the order of its fragments.
 * kv_turns[2 tile + group]: how many CTAs have added.
 *
 * Invariant: as for dQ, a CTA waits only for CTAs that have started.
 */
#ifndef ATTN_KERNELS_HOPPER_DKV_H
#define ATTN_KERNELS_HOPPER_DKV_H

#include "hopper/backward/dq.h"

enum { PART_BARRIER = CONSUMER_BARRIER + 1 }; /* and the next: one for each warpgroup */

/* ---- sums ------------------------------------------------------------------------------------ */

INLINE void add_fragments(float4 *at, const float (&sum)[SUM_REGS], bool add) {
#pragma unroll
    for (int i = 0; i < SUM_REGS; i += 4) {
        float4 *const to = at + i / 4 * WG_THREADS;
        if (add) {
            asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};"
                         :
                         : "l"(to), "f"(sum[i]), "f"(sum[i + 1]), "f"(sum[i + 2]), "f"(sum[i + 3])
                         : "memory");
        } else {
            *to = make_float4(sum[i], sum[i + 1], sum[i + 2], sum[i + 3]);
        }
    }
}

INLINE void take_fragments(float (&sum)[SUM_REGS], const float4 *at) {
#pragma unroll
    for (int i = 0; i < SUM_REGS; i += 4) {
        const float4 x = at[i / 4 * WG_THREADS];
        sum[i] += x.x;
        sum[i + 1] += x.y;
        sum[i + 2] += x.z;
        sum[i + 3] += x.w;
    }
}

/* Returns whether this CTA has the last part: then dK and dV are the sums. */
INLINE bool add_part(const struct attn_backward_args &b, const struct key_tile &tile,
                     float (&dk)[SUM_REGS], float (&dv)[SUM_REGS], int group) {
    const int thread = (int)threadIdx.x % WG_THREADS;
    const int rank = tile.w.head % b.a.heads_per_kv / b.part_heads;
    const bool last = rank == b.a.heads_per_kv / b.part_heads - 1;
    const int heads_kv = b.a.heads_q / b.a.heads_per_kv;
    const long long half =
        2 * ((long long)(tile.w.batch * heads_kv + tile.head_kv) * b.tiles_kv + tile.number) +
        group;
    float4 *const at = (float4 *)b.kv_sum + half * (2 * SUM_REGS / 4 * WG_THREADS) + thread;
    if (rank > 0) {
        if (thread == 0) {
            wait_for_turn(b.kv_turns + half, (unsigned)rank);
        }
        named_barrier_sync(PART_BARRIER + group, WG_THREADS);
    }
    if (last) {
        take_fragments(dk, at);
        take_fragments(dv, at + SUM_REGS / 4 * WG_THREADS);
        return true;
    }
    add_fragments(at, dk, rank > 0);
    add_fragments(at + SUM_REGS / 4 * WG_THREADS, dv, rank > 0);
    __threadfence();
    named_barrier_sync(PART_BARRIER + group, WG_THREADS);
    if (thread == 0) {
        release_turn(b.kv_turns + half, (unsigned)rank + 1);
    }
    return false;
}

/* ---- stores ---------------------------------------------------------------------------------- */

/* The warp's 16 rows of dK or dV, SUM_COLUMNS of them, through shared memory, in which no warp
 * reads any more. `there` of the tile's keys exist, `rows` lie in memory. Returns whether one is
 * not finite before it is rounded. */
INLINE bool store_keys(float (&sum)[SUM_REGS], float factor, unsigned tile, element *to,
                       long long row_stride, int there, int rows, int columns, int row, int lane) {
    float zero = 0.0f;
#pragma unroll
    for (int i = 0; i < SUM_REGS; i++) {
        const bool exists = row + lane / 4 + 8 * (i / 2 % 2) < there;
        sum[i] = exists ? sum[i] * factor : 0.0f;
        zero = fmaf(sum[i], 0.0f, zero);
    }
    const unsigned own = (unsigned)(row + lane / 8 % 2 * 8 + lane % 8);
#pragma unroll
    for (int i = 0; i < SUM_COLUMNS / 16; i++) {
        const unsigned column = (unsigned)(i % 4 * 2 + lane / 16) ^ (unsigned)lane % 8;
        stmatrix_x4(tile + (unsigned)(i / 4 * KV_CHUNK) + own * SWIZZLE_BYTES + column * 16,
                    pack(sum[8 * i], sum[8 * i + 1]), pack(sum[8 * i + 2], sum[8 * i + 3]),
                    pack(sum[8 * i + 4], sum[8 * i + 5]), pack(sum[8 * i + 6], sum[8 * i + 7]));
    }
    __syncwarp();
#pragma unroll
    for (int i = lane; i < 16 * SUM_COLUMNS / 8; i += LANES) {
        const int r = row + i / (SUM_COLUMNS / 8), chunk = i % (SUM_COLUMNS / 8);
        if (r < rows && chunk * 8 < columns) {
            const unsigned from = tile + (unsigned)(chunk / 8 * KV_CHUNK + r * SWIZZLE_BYTES) +
                                  (((unsigned)chunk ^ (unsigned)r) % 8) * 16;
            uint4 x;
            asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                         : "r"(from));
            *(uint4 *)(to + r * row_stride + chunk * 8) = x;
        }
    }
    __syncwarp(); /* repair_dkv writes rows that other lanes have stored */
    return __any_sync(~0U, !(zero == 0.0f));
}

/* The warp's 16 rows of dK and dV, from `row` and `column` of the tile on; k, v: shared memory. */
INLINE void store_tile(const struct attn_backward_args &b, const struct key_tile &tile, unsigned k,
                       unsigned v, float (&dk)[SUM_REGS], float (&dv)[SUM_REGS], int row,
                       int column) {
    const int lane = (int)threadIdx.x % LANES;
    const int there = tile.w.seq_kv - tile.first, rows = keys_stored(b, tile.w) - tile.first;
    const unsigned skip = (unsigned)(column / 64 * KV_CHUNK);
    element *const to_k = (element *)b.dk + start_of_kv(b, tile.w, tile.head_kv, b.s_dk) + column;
    element *const to_v = (element *)b.dv + start_of_kv(b, tile.w, tile.head_kv, b.s_dv) + column;
    const bool bad_v = store_keys(dv, 1.0f, v + skip, to_v + tile.first * b.s_dv.row, b.s_dv.row,
                                  there, rows, b.a.head_dim_v - column, row, lane);
    const bool bad_k = store_keys(dk, b.scale, k + skip, to_k + tile.first * b.s_dk.row, b.s_dk.row,
                                  there, rows, b.a.head_dim - column, row, lane);
    if (bad_k || bad_v) {
        const bool own = SUM_COLUMNS == ATTN_D || lane < SUM_COLUMNS / 8;
        const int chunk = own ? column + lane * 8 : ATTN_D; /* ATTN_D: no column */
        for (int i = tile.first + row; i < min(tile.first + row + 16, tile.w.seq_kv); i++) {
            if (bad_k) {
                repair_dkv(b, tile.w, tile.head_kv, i, chunk, false);
            }
            if (bad_v) {
                repair_dkv(b, tile.w, tile.head_kv, i, chunk, true);
            }
        }
    }
}

/* Keys that no query sees. */
INLINE void clear_keys(element *to, long long row_stride, int rows, int columns) {
    for (int i = (int)threadIdx.x; i < min(rows, (int)ATTN_BN) * (ATTN_D / 8); i += THREADS) {
        const int row = i / (ATTN_D / 8), column = i % (ATTN_D / 8) * 8;
        if (column < columns) {
            *(uint4 *)(to + row * row_stride + column) = make_uint4(0, 0, 0, 0);
        }
    }
}

/* The CTA's tile of keys. False: it has none, or no query sees them. */
INLINE bool take_tile(const struct attn_backward_args &b, int ticket, int rank, float *shared,
                      struct key_tile &tile) {
    const int parts = b.a.heads_all / b.part_heads;
    const int tiles = b.cluster > 0 ? parts : parts * b.tiles_kv; /* or clusters */
    if (ticket >= tiles) {
        const int number = b.cluster > 0 ? (ticket - tiles) * b.cluster + rank : ticket - tiles;
        if (number < b.a.heads_q * ((b.d_sink != 0) + (b.d_slopes != 0))) {
            sums_of_head(b, number, shared);
        }
        return false;
    }
    tile = key_tile_of(b, ticket, rank);
    const bool unseen = tile.begin >= tile.end;
    if (tile.first >= keys_stored(b, tile.w) || (unseen && tile.w.head % b.a.heads_per_kv != 0)) {
        return false; /* a sequence that is shorter than the longest; another part clears it */
    }
    if (unseen) {
        const int rows = keys_stored(b, tile.w) - tile.first;
        element *const dk = (element *)b.dk + start_of_kv(b, tile.w, tile.head_kv, b.s_dk);
        element *const dv = (element *)b.dv + start_of_kv(b, tile.w, tile.head_kv, b.s_dv);
        clear_keys(dk + tile.first * b.s_dk.row, b.s_dk.row, rows, b.a.head_dim);
        clear_keys(dv + tile.first * b.s_dv.row, b.s_dv.row, rows, b.a.head_dim_v);
        return false;
    }
    return true;
}

#endif /* ATTN_KERNELS_HOPPER_DKV_H */
