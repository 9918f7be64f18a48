/* SPDX-License-Identifier: Apache-2.0
 *
 * fwd_scalar.cu - forward attention on the fp32 units, without tensor cores.
 *
 * A CTA computes one Q tile of BM rows of one (batch, head). A warp owns ROWS of them from S to the
 * epilogue, so warps meet only where a KV tile is replaced:
 *
 *     prologue    Q and the first KV tile to shared memory (cp.async)
 *     mainloop    for each KV tile n: wait for n, barrier, load n + 1
 *         S = QK^T         lane l computes keys l, l + 32, ... of every row of its warp
 *         online softmax   exact running max m per row (shuffles); row sum l per lane
 *         O += PV          32 keys at a time: P goes from lanes to columns through the warp's part
 *                          of shared memory; lane l owns columns 2l, 2l + 1 of every row
 *     epilogue    O / l to global memory, LSE
 *
 * Shared memory map (static, at most 48 KB):
 *     q  [BM][D]              16 bits   read by broadcast, needs no padding
 *     k  [STAGES][BN][D + 8]  16 bits   a lane reads a row: 144 bytes spread over the banks
 *     v  [STAGES][BN][D]      16 bits   a warp reads one row at a time
 *     p  [WARPS][32][ROWS]    fp32      P, from lanes to columns
 *
 * Invariant: a key that a row does not see has no effect on that row's m, l or O, whatever K and V
 * hold there.
 */
#include "common/softmax.h"

enum {
    ROWS = ATTN_BM / ATTN_WARPS, /* of a warp */
    KEYS = ATTN_BN / LANES,      /* of a lane */
    COLUMNS = ATTN_D / LANES,    /* of a lane */
    K_PITCH = ATTN_D + 8
};

static_assert(ATTN_BM % ATTN_WARPS == 0 && ROWS % 2 == 0, "rows of a warp");
static_assert(ATTN_BN % LANES == 0 && ATTN_D == 64 && COLUMNS == 2, "keys and columns of a lane");
static_assert(ATTN_STAGES == 1 || ATTN_STAGES == 2, "stages");

struct shared_map {
    element q[ATTN_BM][ATTN_D];
    element k[ATTN_STAGES][ATTN_BN][K_PITCH];
    element v[ATTN_STAGES][ATTN_BN][ATTN_D];
    float p[ATTN_WARPS][LANES][ROWS];
};
static_assert(sizeof(struct shared_map) <= 48 * 1024, "shared memory without opting in");

/* Online softmax state of a warp's rows, in one lane. */
struct rows {
    float o[ROWS][COLUMNS];
    float m[ROWS]; /* running max; the same in all lanes */
    float l[ROWS]; /* row sum of this lane's keys */
};

INLINE void unpack8(float *to, const element *from) {
    DEVICE_ASSERT(shared_address(from) % 16 == 0);
    const uint4 bits = *(const uint4 *)from;
    const unsigned pairs[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 pair = unpack(pairs[i]);
        to[2 * i] = pair.x;
        to[2 * i + 1] = pair.y;
    }
}

/* S = QK^T: scores[r][i] = q_r . k_(lane + 32 i) */
INLINE void gemm_qk(float scores[ROWS][KEYS], const element (*q)[ATTN_D],
                    const element (*k)[K_PITCH], int lane) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
#pragma unroll
        for (int i = 0; i < KEYS; i++) {
            scores[r][i] = 0.0f;
        }
    }
#pragma unroll 2
    for (int d = 0; d < ATTN_D; d += 8) {
        float key[KEYS][8], query[8];
#pragma unroll
        for (int i = 0; i < KEYS; i++) {
            unpack8(key[i], &k[lane + LANES * i][d]);
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            unpack8(query, &q[r][d]);
#pragma unroll
            for (int i = 0; i < KEYS; i++) {
#pragma unroll
                for (int e = 0; e < 8; e++) {
                    scores[r][i] = fmaf(query[e], key[i][e], scores[r][i]);
                }
            }
        }
    }
}

/* Online softmax of a tile: scores become P; m, l and O are rescaled. seen[r] keys of this tile are
 * visible to row r. */
INLINE void softmax(struct rows *rows, float scores[ROWS][KEYS], const int seen[ROWS], float scale,
                    int lane) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float m = MINUS_INFINITY;
#pragma unroll
        for (int i = 0; i < KEYS; i++) {
            const bool visible = lane + LANES * i < seen[r];
            scores[r][i] = visible ? scaled(scores[r][i], scale) : MINUS_INFINITY;
            m = fmaxf(m, scores[r][i]);
        }
#pragma unroll
        for (int lanes = LANES / 2; lanes > 0; lanes /= 2) {
            m = fmaxf(m, __shfl_xor_sync(~0U, m, lanes));
        }
        m = fmaxf(m, rows->m[r]);
        const float base = finite_or_zero(m);
        const float alpha = exp2_fast(rows->m[r] - base);
        rows->m[r] = m;
        rows->l[r] *= alpha;
        rows->o[r][0] *= alpha;
        rows->o[r][1] *= alpha;
#pragma unroll
        for (int i = 0; i < KEYS; i++) {
            scores[r][i] = exp2_fast(scores[r][i] - base);
            DEVICE_ASSERT(!(scores[r][i] > 1.0f)); /* no score exceeds m */
            rows->l[r] += scores[r][i];
        }
    }
}

/* O += P V over 32 keys, which are summed up first: added one by one to a large O, the small terms
 * of very many keys would be lost. Masked: a row adds only what it sees, since 0 x NaN is NaN. */
INLINE void gemm_pv(struct rows *rows, const float (*p)[ROWS], const element (*v)[ATTN_D], int keys,
                    const int seen[ROWS], bool masked, int lane) {
    float sum[ROWS][COLUMNS] = {};
    for (int j = 0; j < keys; j++) {
        const float2 value = unpack(*(const unsigned *)&v[j][COLUMNS * lane]);
        float2 weights[ROWS / 2];
#pragma unroll
        for (int r = 0; r < ROWS / 2; r++) {
            weights[r] = *(const float2 *)&p[j][2 * r];
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float weight = r % 2 == 0 ? weights[r / 2].x : weights[r / 2].y;
            if (!masked || j < seen[r]) {
                sum[r][0] = fmaf(weight, value.x, sum[r][0]);
                sum[r][1] = fmaf(weight, value.y, sum[r][1]);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        rows->o[r][0] += sum[r][0];
        rows->o[r][1] += sum[r][1];
    }
}

INLINE void gemm_pv_tile(struct rows *rows, float (*p)[ROWS], const element (*v)[ATTN_D],
                         const float scores[ROWS][KEYS], const int seen[ROWS], int lane) {
    const bool masked = seen[0] < ATTN_BN; /* the first row sees least */
#pragma unroll
    for (int i = 0; i < KEYS; i++) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            p[lane][r] = scores[r][i];
        }
        __syncwarp();
        if (masked) {
            int left[ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                left[r] = seen[r] - LANES * i;
            }
            const int most = left[ROWS - 1];
            gemm_pv(rows, p, v + LANES * i, most < LANES ? most : LANES, left, true, lane);
        } else {
            gemm_pv(rows, p, v + LANES * i, LANES, seen, false, lane);
        }
        __syncwarp(); /* p may be overwritten */
    }
}

/* Epilogue. */
INLINE void store(const struct attn_args &a, const struct tile &tile, const struct rows *rows,
                  int first_row, int lane) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float l = rows->l[r];
#pragma unroll
        for (int lanes = LANES / 2; lanes > 0; lanes /= 2) {
            l += __shfl_xor_sync(~0U, l, lanes);
        }
        DEVICE_ASSERT(l == 0.0f || !(l < 0.999f)); /* p of the largest score is 1 */
        if (r < a.seq_q - first_row) {             /* the sum of the two may pass 2^31 */
            const long long row = first_row + r;
            element *o = tile.o + row * a.o_row + COLUMNS * lane;
            DEVICE_ASSERT((unsigned long long)o % 4 == 0);
            *(unsigned *)o = pack(normalise(rows->o[r][0], l), normalise(rows->o[r][1], l));
            if (tile.lse != 0 && lane == 0) {
                tile.lse[row * a.lse_row] = log_sum_exp(rows->m[r], l);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_CTAS)
    ATTN_ENTRY(const __grid_constant__ struct attn_args a) {
    __shared__ __align__(16) struct shared_map shared;
    const struct tile tile = tile_of_cta(a);
    const int warp = (int)threadIdx.x / LANES, lane = (int)threadIdx.x % LANES;
    const int first_row = tile.first_row + warp * ROWS;
    const int tiles = tiles_of_keys(tile.keys);

    struct rows rows;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        rows.o[r][0] = rows.o[r][1] = rows.l[r] = 0.0f;
        rows.m[r] = MINUS_INFINITY;
    }

    copy_rows(&shared.q[0][0], ATTN_D, tile.q, a.q_row, tile.first_row, ATTN_BM, a.seq_q);
    if (ATTN_STAGES == 2 && tiles > 0) {
        copy_rows(&shared.k[0][0][0], K_PITCH, tile.k, a.k_row, 0, ATTN_BN, tile.keys);
        copy_rows(&shared.v[0][0][0], ATTN_D, tile.v, a.v_row, 0, ATTN_BN, tile.keys);
    }
    cp_async_commit();

    for (int n = 0; n < tiles; n++) {
        const int stage = n % ATTN_STAGES;
        if (ATTN_STAGES == 2) {
            cp_async_wait<0>();
        }
        __syncthreads(); /* tile n has landed for all warps; no warp reads the stage to be filled */
        const int next = n + ATTN_STAGES - 1;
        if (next < tiles) {
            copy_rows(&shared.k[next % ATTN_STAGES][0][0], K_PITCH, tile.k, a.k_row, next * ATTN_BN,
                      ATTN_BN, tile.keys);
            copy_rows(&shared.v[next % ATTN_STAGES][0][0], ATTN_D, tile.v, a.v_row, next * ATTN_BN,
                      ATTN_BN, tile.keys);
            cp_async_commit();
        }
        if (ATTN_STAGES == 1) {
            cp_async_wait<0>();
            __syncthreads();
        }

        float scores[ROWS][KEYS];
        int seen[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            seen[r] = visible_keys(a, first_row + r) - n * ATTN_BN;
        }
        gemm_qk(scores, &shared.q[warp * ROWS], shared.k[stage], lane);
        softmax(&rows, scores, seen, a.scale_log2, lane);
        gemm_pv_tile(&rows, shared.p[warp], shared.v[stage], scores, seen, lane);
    }
    cp_async_wait<0>(); /* a CTA that sees no key has still loaded Q */
    store(a, tile, &rows, first_row, lane);
}
