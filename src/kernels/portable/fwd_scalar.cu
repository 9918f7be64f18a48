/* SPDX-License-Identifier: Apache-2.0
 *
 * fwd_scalar.cu - the first rung: fused attention forward on the fp32 units, no tensor cores.
 *
 * One thread block computes ATTN_BM query rows of one (batch, head). A warp owns ROWS of them from
 * the first score to the last store, so that warps meet only where K and V change:
 *
 *     copy K0 V0
 *     for each tile n:   wait for n, barrier, start the copy of n + 1
 *         scores         lane l computes keys l, l + 32, ... of every row of its warp
 *         softmax        running maximum per row (shuffles), running sum per lane
 *         probabilities  32 keys at a time through the warp's corner of shared memory
 *         O += P V       lane l owns columns 2l, 2l + 1 of every row: nobody else adds to them
 *
 * Shared memory (static, at most 48 KB):
 *     q  [BM][D]              16 bits   read by broadcast, needs no padding
 *     k  [STAGES][BN][D + 8]  16 bits   a lane reads its own row: 144 bytes spread over the banks
 *     v  [STAGES][BN][D]      16 bits   a warp reads one row at a time
 *     p  [WARPS][32][ROWS]    fp32      the probabilities on their way from lanes to columns
 *
 * Invariant: a key that a row does not see never touches that row's maximum, sum or output,
 * whatever K and V hold there.
 */
#include "common/device.h"

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

/* What a lane keeps of its warp's rows. */
struct rows {
    float o[ROWS][COLUMNS];
    float maximum[ROWS]; /* the same in all lanes */
    float sum[ROWS];     /* of this lane's keys */
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

/* scores[r][i] = q_r . k_(lane + 32 i) */
INLINE void compute_scores(float scores[ROWS][KEYS], const element (*q)[ATTN_D],
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

/* Scores become probabilities; the rows' maxima, sums and outputs follow. seen[r] keys of this tile
 * are visible to row r. */
INLINE void softmax(struct rows *rows, float scores[ROWS][KEYS], const int seen[ROWS], float scale,
                    int lane) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float maximum = MINUS_INFINITY;
#pragma unroll
        for (int i = 0; i < KEYS; i++) {
            const bool visible = lane + LANES * i < seen[r];
            scores[r][i] = visible ? scaled(scores[r][i], scale) : MINUS_INFINITY;
            maximum = fmaxf(maximum, scores[r][i]);
        }
#pragma unroll
        for (int lanes = LANES / 2; lanes > 0; lanes /= 2) {
            maximum = fmaxf(maximum, __shfl_xor_sync(~0U, maximum, lanes));
        }
        maximum = fmaxf(maximum, rows->maximum[r]);
        const float origin = finite_or_zero(maximum);
        const float shrink = exp2_fast(rows->maximum[r] - origin);
        rows->maximum[r] = maximum;
        rows->sum[r] *= shrink;
        rows->o[r][0] *= shrink;
        rows->o[r][1] *= shrink;
#pragma unroll
        for (int i = 0; i < KEYS; i++) {
            scores[r][i] = exp2_fast(scores[r][i] - origin);
            DEVICE_ASSERT(!(scores[r][i] > 1.0f)); /* nothing exceeds the maximum */
            rows->sum[r] += scores[r][i];
        }
    }
}

/* O += P V over 32 keys, which are summed up first: added one by one to a large sum, the small
 * terms of very many keys would be lost. Masked: a row adds only what it sees, since 0 x NaN is
 * NaN. */
INLINE void accumulate(struct rows *rows, const float (*p)[ROWS], const element (*v)[ATTN_D],
                       int keys, const int seen[ROWS], bool masked, int lane) {
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

INLINE void accumulate_tile(struct rows *rows, float (*p)[ROWS], const element (*v)[ATTN_D],
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
            accumulate(rows, p, v + LANES * i, most < LANES ? most : LANES, left, true, lane);
        } else {
            accumulate(rows, p, v + LANES * i, LANES, seen, false, lane);
        }
        __syncwarp(); /* p is free again */
    }
}

INLINE void store(const struct attn_args &a, const struct tile &tile, const struct rows *rows,
                  int first_row, int lane) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float sum = rows->sum[r];
#pragma unroll
        for (int lanes = LANES / 2; lanes > 0; lanes /= 2) {
            sum += __shfl_xor_sync(~0U, sum, lanes);
        }
        DEVICE_ASSERT(sum == 0.0f || !(sum < 0.999f)); /* the largest score alone weighs 1 */
        if (r < a.seq_q - first_row) {                 /* the sum of the two may pass 2^31 */
            const long long row = first_row + r;
            element *o = tile.o + row * a.o_row + COLUMNS * lane;
            DEVICE_ASSERT((unsigned long long)o % 4 == 0);
            *(unsigned *)o = pack(normalise(rows->o[r][0], sum), normalise(rows->o[r][1], sum));
            if (tile.lse != 0 && lane == 0) {
                tile.lse[row * a.lse_row] = log_sum_exp(rows->maximum[r], sum);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    ATTN_ENTRY(const __grid_constant__ struct attn_args a) {
    __shared__ __align__(16) struct shared_map shared;
    const struct tile tile = tile_of_block(a);
    const int warp = (int)threadIdx.x / LANES, lane = (int)threadIdx.x % LANES;
    const int first_row = tile.first_row + warp * ROWS;
    const int tiles = tiles_of_keys(tile.keys);

    struct rows rows;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        rows.o[r][0] = rows.o[r][1] = rows.sum[r] = 0.0f;
        rows.maximum[r] = MINUS_INFINITY;
    }

    copy_rows(&shared.q[0][0], ATTN_D, tile.q, a.q_row, tile.first_row, ATTN_BM, a.seq_q);
    if (ATTN_STAGES == 2 && tiles > 0) {
        copy_rows(&shared.k[0][0][0], K_PITCH, tile.k, a.k_row, 0, ATTN_BN, tile.keys);
        copy_rows(&shared.v[0][0][0], ATTN_D, tile.v, a.v_row, 0, ATTN_BN, tile.keys);
    }
    copies_commit();

    for (int n = 0; n < tiles; n++) {
        const int stage = n % ATTN_STAGES;
        if (ATTN_STAGES == 2) {
            copies_wait<0>();
        }
        __syncthreads(); /* tile n is there for all; nobody still reads the stage to be filled */
        const int next = n + ATTN_STAGES - 1;
        if (next < tiles) {
            copy_rows(&shared.k[next % ATTN_STAGES][0][0], K_PITCH, tile.k, a.k_row, next * ATTN_BN,
                      ATTN_BN, tile.keys);
            copy_rows(&shared.v[next % ATTN_STAGES][0][0], ATTN_D, tile.v, a.v_row, next * ATTN_BN,
                      ATTN_BN, tile.keys);
            copies_commit();
        }
        if (ATTN_STAGES == 1) {
            copies_wait<0>();
            __syncthreads();
        }

        float scores[ROWS][KEYS];
        int seen[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            seen[r] = visible_keys(a, first_row + r) - n * ATTN_BN;
        }
        compute_scores(scores, &shared.q[warp * ROWS], shared.k[stage], lane);
        softmax(&rows, scores, seen, a.scale_log2, lane);
        accumulate_tile(&rows, shared.p[warp], shared.v[stage], scores, seen, lane);
    }
    copies_wait<0>(); /* a block that sees no key has still asked for Q */
    store(a, tile, &rows, first_row, lane);
}
