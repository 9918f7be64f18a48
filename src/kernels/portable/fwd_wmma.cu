/* SPDX-License-Identifier: Apache-2.0
 *
 * fwd_wmma.cu - forward attention on tensor cores through wmma: Q, S and P in shared memory.
 *
 * A CTA computes one Q tile of BM rows of one (batch, head). wmma fragments are opaque, so what
 * must be seen element by element goes through shared memory:
 *
 *     prologue    Q and the first KV tile to shared memory (cp.async)
 *     mainloop    for each KV tile n: wait for n, barrier, load n + 1
 *         S = QK^T         fragments to shared memory; barrier
 *         online softmax   a warp takes ROWS rows, ROW_LANES lanes a row; P, 16 bits, to shared
 *                          memory; barrier (and vote: must any row be rescaled?)
 *         O *= alpha       only if so, through the memory of S
 *         O += PV          fragments of O stay in registers
 *     epilogue    O to shared memory, barrier, O / l to global memory; LSE
 *
 * Stale max. m advances only where p would exceed its bound, 2^RESCALE_THRESHOLD_LOG2: O's round
 * trip through shared memory happens once or twice a row, not once a tile. fp16: m is a max and p
 * may grow to 2^8, so that small p do not become subnormal. bf16: m is 2^8 above a max and p stays
 * below 1, so that PV overflows no sooner than V does.
 *
 * Shared memory map (dynamic, ATTN_SMEM_wmma in common/args.h):
 *     q  [BM][D + 8]            16 bits
 *     k  [STAGES][BN][D + 8]    16 bits    | epilogue: O, fp32 [BM][D + 4]
 *     v  [STAGES][BN][D + 8]    16 bits    |
 *     s  [BM][BN + 4]           fp32       S; between softmax and the next tile: scratch, 16 x 16
 *                                          for each warp
 *     p  [BM][BN + 8]           16 bits
 *     alpha [BM]                fp32       epilogue: l
 *
 * Invariant: a key that a row does not see has no effect on that row. Where rows of a tile see
 * different keys, V may hold NaN or infinity that some do not see (0 x NaN is NaN, in an MMA too):
 * such a tile takes the safe path, without tensor cores.
 */
#include "portable/wmma.h"

enum {
    PITCH = ATTN_D + 8,    /* elements; 144-byte rows spread over the banks */
    S_PITCH = ATTN_BN + 4, /* floats */
    P_PITCH = ATTN_BN + 8,
    O_PITCH = ATTN_D + 4,
    ROWS = ATTN_BM / ATTN_WARPS,    /* of a warp in the softmax */
    ROW_SLOTS = ROWS <= 4 ? 4 : 8,  /* ROWS rounded up to a power of two */
    ROW_LANES = LANES / ROW_SLOTS,  /* that share a row */
    ROW_KEYS = ATTN_BN / ROW_LANES, /* of a lane */
    S_COLUMNS = ATTN_BN / FRAGMENT, /* of fragments */
    O_COLUMNS = ATTN_D / FRAGMENT,
    S_FRAGMENTS = ATTN_BM / FRAGMENT * S_COLUMNS,
    O_FRAGMENTS = ATTN_BM / FRAGMENT * O_COLUMNS,
    S_SHARE = (S_FRAGMENTS + ATTN_WARPS - 1) / ATTN_WARPS, /* of a warp, at most */
    O_SHARE = (O_FRAGMENTS + ATTN_WARPS - 1) / ATTN_WARPS,
    RESCALE_THRESHOLD_LOG2 = 8, /* half of the bits to the end of fp16, 2^16 */
#ifdef ATTN_DTYPE_fp16
    HEADROOM = 0 /* m lies so far above the max that it was set to, in base 2 */
#else
    HEADROOM = RESCALE_THRESHOLD_LOG2
#endif
};

static_assert(ATTN_BM % FRAGMENT == 0 && ATTN_BN % FRAGMENT == 0 && ATTN_D % FRAGMENT == 0, "tile");
static_assert(ATTN_WARPS % S_COLUMNS == 0 && ATTN_WARPS % O_COLUMNS == 0,
              "the fragments of a warp lie below each other: K and V are read once for all");
static_assert(ATTN_BM % ATTN_WARPS == 0 && ROWS <= 8 && ROW_KEYS % 4 == 0, "softmax");
static_assert(ATTN_STAGES == 1 || ATTN_STAGES == 2, "stages");

struct shared_map {
    element q[ATTN_BM][PITCH];
    element k[ATTN_STAGES][ATTN_BN][PITCH];
    element v[ATTN_STAGES][ATTN_BN][PITCH];
    float s[ATTN_BM][S_PITCH];
    element p[ATTN_BM][P_PITCH];
    float alpha[ATTN_BM];
};
static_assert(sizeof(struct shared_map) ==
                  ATTN_SMEM_wmma(ATTN_BM, ATTN_BN, ATTN_D, ATTN_WARPS, ATTN_STAGES),
              "the launch asks for what the map needs");
static_assert(sizeof(struct shared_map) <= 99 * 1024, "shared memory of Ada");
static_assert(sizeof(float) * ATTN_WARPS * FRAGMENT * FRAGMENT <=
                  sizeof(((struct shared_map *)0)->s),
              "scratch");
static_assert(sizeof(float) * ATTN_BM * O_PITCH <= 2 * sizeof(((struct shared_map *)0)->k), "O");

/* Online softmax state of a row, in each of the ROW_LANES lanes that share it. */
struct row_state {
    float m; /* stale max + HEADROOM; the same in all of them */
    float l; /* row sum of the lane's own keys */
};

/* ---- the two GEMMs --------------------------------------------------------------------------- */

/* Fragment i of a warp's share, of `all` in rows of `columns`; some warps have one less. */
INLINE bool place(int warp, int i, int all, int columns, int *row) {
    const int fragment = warp + i * ATTN_WARPS;
    *row = fragment / columns * FRAGMENT;
    return all % ATTN_WARPS == 0 || fragment < all;
}

INLINE void gemm_qk(struct shared_map *shared, int stage, int warp) {
    const int key = warp % S_COLUMNS * FRAGMENT;
    struct accumulator sum[S_SHARE];
    int row;
#pragma unroll
    for (int i = 0; i < S_SHARE; i++) {
        clear(&sum[i]);
    }
#pragma unroll
    for (int d = 0; d < ATTN_D; d += FRAGMENT) {
        struct operand q, k;
        load_b_transposed(&k, &shared->k[stage][key][d], PITCH);
#pragma unroll
        for (int i = 0; i < S_SHARE; i++) {
            if (place(warp, i, S_FRAGMENTS, S_COLUMNS, &row)) {
                load_a(&q, &shared->q[row][d], PITCH);
                multiply_add_transposed(&sum[i], q, k);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < S_SHARE; i++) {
        if (place(warp, i, S_FRAGMENTS, S_COLUMNS, &row)) {
            store_accumulator(&shared->s[row][key], S_PITCH, sum[i]);
        }
    }
}

/* O += P V. The tile is summed up first: tensor cores truncate what they add to a large
 * accumulator, which shows over very many keys. */
INLINE void gemm_pv(struct accumulator o[O_SHARE], const struct shared_map *shared, int stage,
                    int warp) {
    const int column = warp % O_COLUMNS * FRAGMENT;
    struct accumulator sum[O_SHARE];
#pragma unroll
    for (int i = 0; i < O_SHARE; i++) {
        clear(&sum[i]);
    }
#pragma unroll
    for (int key = 0; key < ATTN_BN; key += FRAGMENT) {
        struct operand p, v;
        load_b(&v, &shared->v[stage][key][column], PITCH);
#pragma unroll
        for (int i = 0; i < O_SHARE; i++) {
            int row;
            if (place(warp, i, O_FRAGMENTS, O_COLUMNS, &row)) {
                load_a(&p, &shared->p[row][key], P_PITCH);
                multiply_add(&sum[i], p, v);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < O_SHARE; i++) {
        add(&o[i], sum[i]);
    }
}

INLINE float *scratch_of(struct shared_map *shared, int warp) {
    return &shared->s[0][0] + warp * FRAGMENT * FRAGMENT;
}

/* Safe path: without tensor cores, each row over its visible keys alone. */
INLINE void safe_gemm_pv(struct accumulator o[O_SHARE], struct shared_map *shared, int stage,
                         const struct attn_args &a, int first_row, int first_key, int warp,
                         int lane) {
    const int column = warp % O_COLUMNS * FRAGMENT;
    float *scratch = scratch_of(shared, warp);
#pragma unroll
    for (int i = 0; i < O_SHARE; i++) {
        int row;
        if (place(warp, i, O_FRAGMENTS, O_COLUMNS, &row)) {
#pragma unroll 1
            for (int e = lane; e < FRAGMENT * FRAGMENT; e += LANES) {
                const int r = row + e / FRAGMENT, c = column + e % FRAGMENT;
                const int seen = visible_keys(a, first_row + r) - first_key;
                float sum = 0.0f;
#pragma unroll 1
                for (int key = 0; key < seen && key < ATTN_BN; key++) {
                    sum =
                        fmaf(unpack(shared->p[r][key]).x, unpack(shared->v[stage][key][c]).x, sum);
                }
                scratch[e] = sum;
            }
            __syncwarp();
            struct accumulator sum;
            load_accumulator(&sum, scratch, FRAGMENT);
            add(&o[i], sum);
            __syncwarp(); /* the scratch may be overwritten */
        }
    }
}

INLINE bool v_has_non_finite(const struct shared_map *shared, int stage) {
    bool found = false;
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < ATTN_BN * (ATTN_D / 8); i += THREADS) {
        const uint4 bits =
            *(const uint4 *)&shared->v[stage][i / (ATTN_D / 8)][i % (ATTN_D / 8) * 8];
        found = found || has_non_finite(bits.x) || has_non_finite(bits.y) ||
                has_non_finite(bits.z) || has_non_finite(bits.w);
    }
    return found;
}

/* O *= alpha, row by row. */
INLINE void rescale(struct accumulator o[O_SHARE], struct shared_map *shared, int warp, int lane) {
    float *scratch = scratch_of(shared, warp);
#pragma unroll
    for (int i = 0; i < O_SHARE; i++) {
        int row;
        if (place(warp, i, O_FRAGMENTS, O_COLUMNS, &row)) {
            store_accumulator(scratch, FRAGMENT, o[i]);
            __syncwarp();
            for (int e = lane; e < FRAGMENT * FRAGMENT; e += LANES) {
                scratch[e] *= shared->alpha[row + e / FRAGMENT];
            }
            __syncwarp();
            load_accumulator(&o[i], scratch, FRAGMENT);
            __syncwarp();
        }
    }
}

/* ---- softmax --------------------------------------------------------------------------------- */

INLINE float row_max(float x) {
#pragma unroll
    for (int lanes = ROW_SLOTS; lanes < LANES; lanes *= 2) {
        x = fmaxf(x, __shfl_xor_sync(~0U, x, lanes));
    }
    return x;
}

INLINE float row_sum(float x) {
#pragma unroll
    for (int lanes = ROW_SLOTS; lanes < LANES; lanes *= 2) {
        x += __shfl_xor_sync(~0U, x, lanes);
    }
    return x;
}

/* Online softmax of one row and tile, of which `seen` keys are visible to it. Returns whether its O
 * must be rescaled. `row` is valid only where `busy`. */
INLINE bool softmax(struct row_state *state, struct shared_map *shared, int row, int part, int seen,
                    float scale, bool busy) {
    float scores[ROW_KEYS], tile_max = MINUS_INFINITY;
#pragma unroll
    for (int i = 0; i < ROW_KEYS; i += 4) {
        const int key = i * ROW_LANES + 4 * part;
        const float4 four = busy ? *(const float4 *)&shared->s[row][key] : make_float4(0, 0, 0, 0);
        const float raw[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int e = 0; e < 4; e++) {
            scores[i + e] = key + e < seen ? scaled(raw[e], scale) : MINUS_INFINITY;
            tile_max = fmaxf(tile_max, scores[i + e]);
        }
    }
    tile_max = row_max(tile_max);
    /* a difference, which is exact where the sum of m and the threshold would round */
    const bool advances = tile_max - state->m > RESCALE_THRESHOLD_LOG2 - HEADROOM;
    const float m = advances ? tile_max + HEADROOM : state->m;
    const float base = finite_or_zero(m);
    const float alpha = advances ? exp2_fast(state->m - base) : 1.0f;
    const bool rescales = advances && state->m != MINUS_INFINITY;
    state->m = m;
    float l = 0.0f;
#pragma unroll
    for (int i = 0; i < ROW_KEYS; i += 4) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            scores[i + e] = exp2_fast(scores[i + e] - base);
            DEVICE_ASSERT(!(scores[i + e] > exp2_fast(RESCALE_THRESHOLD_LOG2 - HEADROOM)));
            l += scores[i + e];
        }
        if (busy) {
            const int key = i * ROW_LANES + 4 * part;
            *(uint2 *)&shared->p[row][key] =
                make_uint2(pack(scores[i], scores[i + 1]), pack(scores[i + 2], scores[i + 3]));
        }
    }
    state->l = state->l * alpha + l;
    if (busy && part == 0) {
        shared->alpha[row] = alpha;
    }
    return busy && rescales;
}

/* ---- epilogue -------------------------------------------------------------------------------- */

INLINE void store(const struct attn_args &a, const struct tile &tile, struct shared_map *shared,
                  const struct accumulator o[O_SHARE], int warp) {
    const int own_column = warp % O_COLUMNS * FRAGMENT;
    float(*out)[O_PITCH] = (float(*)[O_PITCH])(void *)&shared->k[0][0][0];
#pragma unroll
    for (int i = 0; i < O_SHARE; i++) {
        int row;
        if (place(warp, i, O_FRAGMENTS, O_COLUMNS, &row)) {
            store_accumulator(&out[row][own_column], O_PITCH, o[i]);
        }
    }
    __syncthreads();
    enum { CHUNKS = ATTN_D / 8 };
    for (int i = (int)threadIdx.x; i < ATTN_BM * CHUNKS; i += THREADS) {
        const int r = i / CHUNKS, column = i % CHUNKS * 8;
        if (r < a.seq_q - tile.first_row) { /* the sum of the two may pass 2^31 */
            const float *from = &out[r][column], l = shared->alpha[r];
            element *to = tile.o + (long long)(tile.first_row + r) * a.o_row + column;
            DEVICE_ASSERT((unsigned long long)to % 16 == 0);
            uint4 bits;
            bits.x = pack(normalise(from[0], l), normalise(from[1], l));
            bits.y = pack(normalise(from[2], l), normalise(from[3], l));
            bits.z = pack(normalise(from[4], l), normalise(from[5], l));
            bits.w = pack(normalise(from[6], l), normalise(from[7], l));
            *(uint4 *)to = bits;
        }
    }
}

INLINE void copy_tile(const struct attn_args &a, const struct tile &tile, struct shared_map *shared,
                      int n) {
    const int stage = n % ATTN_STAGES;
    copy_rows(&shared->k[stage][0][0], PITCH, tile.k, a.k_row, n * ATTN_BN, ATTN_BN, tile.keys);
    copy_rows(&shared->v[stage][0][0], PITCH, tile.v, a.v_row, n * ATTN_BN, ATTN_BN, tile.keys);
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_CTAS)
    ATTN_ENTRY(const __grid_constant__ struct attn_args a) {
    extern __shared__ __align__(32) unsigned char dynamic[];
    struct shared_map *shared = (struct shared_map *)dynamic;
    const struct tile tile = tile_of_cta(a);
    const int warp = (int)threadIdx.x / LANES, lane = (int)threadIdx.x % LANES;
    const int slot = lane % ROW_SLOTS, part = lane / ROW_SLOTS;
    const bool busy = slot < ROWS;
    const int row = warp * ROWS + slot; /* of the tile, in the softmax */
    const int visible = visible_keys(a, tile.first_row + row);
    const int visible_first = visible_keys(a, tile.first_row); /* the first row sees least */
    const int tiles = tiles_of_keys(tile.keys);

    struct row_state state = {MINUS_INFINITY, 0.0f};
    struct accumulator o[O_SHARE];
#pragma unroll
    for (int i = 0; i < O_SHARE; i++) {
        clear(&o[i]);
    }

    copy_rows(&shared->q[0][0], PITCH, tile.q, a.q_row, tile.first_row, ATTN_BM, a.seq_q);
    if (ATTN_STAGES == 2 && tiles > 0) {
        copy_tile(a, tile, shared, 0);
    }
    cp_async_commit();

    for (int n = 0; n < tiles; n++) {
        const int stage = n % ATTN_STAGES, next = n + ATTN_STAGES - 1;
        if (ATTN_STAGES == 2) {
            cp_async_wait<0>();
        }
        __syncthreads(); /* tile n has landed for all warps; no warp reads the stage to be filled */
        if (next < tiles) {
            copy_tile(a, tile, shared, next);
            cp_async_commit();
        }
        if (ATTN_STAGES == 1) {
            cp_async_wait<0>();
            __syncthreads();
        }

        gemm_qk(shared, stage, warp);
        __syncthreads();
        const bool rescales =
            softmax(&state, shared, row, part, visible - n * ATTN_BN, a.scale_log2, busy);
        const bool ragged = a.causal && visible_first - n * ATTN_BN < ATTN_BN;
        const bool safe = ragged && __syncthreads_or(v_has_non_finite(shared, stage));
        if (__syncthreads_or(rescales)) {
            rescale(o, shared, warp, lane);
        }
        if (safe) {
            safe_gemm_pv(o, shared, stage, a, tile.first_row, n * ATTN_BN, warp, lane);
        } else {
            gemm_pv(o, shared, stage, warp);
        }
    }

    cp_async_wait<0>();
    __syncthreads(); /* K and V are dead; their memory takes O */
    const float l = row_sum(state.l);
    if (busy && part == 0) {
        /* for a large |m| the rounding of m may be as much again as HEADROOM */
        DEVICE_ASSERT(l == 0.0f || !(l < 0.999f * exp2_fast(-2 * HEADROOM)));
        shared->alpha[row] = l;
        if (tile.lse != 0 && row < a.seq_q - tile.first_row) {
            tile.lse[(long long)(tile.first_row + row) * a.lse_row] = log_sum_exp(state.m, l);
        }
    }
    store(a, tile, shared, o, warp);
}
