/* SPDX-License-Identifier: Apache-2.0
 *
 * mla.cu - decode with multi-head latent attention for Hopper (sm_90a): many query heads, one KV
 * head of head_dim up to 576, whose first columns, up to 512, are V (v_in_k). Split-KV. wgmma, TMA.
 *
 * A CTA has 64 rows: heads of one query or of several. O of 64 x 512 would take all registers of a
 * warpgroup, so each of the two consumers has half of its columns. K is loaded once for both GEMMs:
 * it is the B operand of S = QK^T as stored, and of O += PV transposed.
 *
 *     producer     K of each KV tile, by TMA: boxes of a page or a tile, whichever is smaller
 *     consumer g   for each tile n with n % 2 = g, which lands in stage g:
 *                      S(n) = QK^T of the first 7 of 9 chunks of columns, as they land
 *                      P(n - 1) and m from the mailbox; its half of O += P(n - 1) V(n - 1)
 *                      S(n), the last 2 chunks;  wait for both
 *                      m, P(n) = exp2(S - m); both into the mailbox, in fragment order
 *                      its half of O += P(n) V(n)
 *     merge        of the CTAs that share rows, and the epilogue (mla_merge.h)
 *
 * So one consumer's softmax runs under the GEMMs of the other. A stage has mbarriers for each of
 * its parts: columns 512 on, which no PV reads, and four of 128 columns, each read by the PV of one
 * consumer. A part is loaded again as soon as that PV has read it. Parts are loaded, and S reads
 * them, in the order in which they become free: the owner of the tile has its half first.
 *
 * Two Q tiles of a sequence whose keys are not split are a cluster, which loads each part once:
 * each CTA half of its columns, to both (multicast). Both go through the keys that either sees.
 *
 * Cycles of a tile (D 576/512): tensor cores 1152 for S, 1024 for PV. Shared memory, at 128 bytes a
 * cycle: Q and K for S 1152, V 512, TMA 576, mailbox 144. L2 at 30 bytes a cycle: 2460, 1230 in a
 * cluster.
 *
 * The max advances if a tile's max exceeds it by MAX_GROWTH; O is rescaled only then.
 *
 * Shared memory map, dynamic, from the first multiple of 1024 on, in bytes:
 *     q          BM x D x 2
 *     k          STAGES x BN x D x 2
 *     mailbox    BM x BN x 2 (P), BM x 16 (m); at the end l
 *
 * Invariant: thread i of both consumers has the same rows, reads entry i of the mailbox and then
 * writes it, so the mailbox is never overwritten early. Rows of V past the last key are zeroed in
 * shared memory, since 0 times NaN is NaN.
 */
#define ATTN_FULL 1
#define ATTN_PAGED 1
#include "hopper/mla_merge.h"
#include "hopper/tma.h"

enum {
    PRODUCER_REGISTERS = 24,
    CONSUMER_REGISTERS = 240,
    HALF_CHUNKS = HALF_COLUMNS / 64,
    PARTS = 5, /* of a stage: chunk 8, chunks 0 and 1, 2 and 3, 4 and 5, 6 and 7 */
    WG_WARPS = WG_THREADS / LANES,
    P_BYTES = ATTN_BM * ATTN_BN * 2,
    /* named barriers */
    ALL_CONSUMERS = 1,
    P_FULL = 2, /* of consumer 0, and of consumer 1 */
    TAIL = 4
};
static_assert(ATTN_BM == WG_ROWS && ATTN_WARPS == 4 * (CONSUMERS + 1), "three warpgroups");
static_assert(Q_CHUNK == KV_CHUNK, "one offset into Q and K");
static_assert(ATTN_D > 2 * HALF_COLUMNS && CHUNKS == 2 * HALF_CHUNKS + 1, "V is in K");
static_assert(ATTN_STAGES == CONSUMERS, "each consumer has a stage");

/* bf16 has 8 significant bits: a key that outweighs all others should have p = 1, not a rounded p.
 */
#ifdef ATTN_DTYPE_fp16
#define MAX_GROWTH 8.0f
#else
#define MAX_GROWTH 0.0f
#endif

struct stages {
    unsigned q, k, mailbox;
    unsigned full, empty; /* mbarriers: PARTS of each stage */
    int rank, sharers;    /* of the CTAs that load K together: 1 or 2 */
};

/* The KV tiles of this CTA, and of those that load K with it. */
struct range {
    int begin, end;
    struct keys first, last; /* that their first and their last row see */
};

/* ---- parts of a stage ------------------------------------------------------------------------ */

/* In the order in which the owner of a stage reads them: chunk 8, its half of V, the other half. */
INLINE int part_at(int i, int owner) {
    return i == 0 ? 0 : 1 + ((i - 1) ^ 2 * owner);
}

INLINE unsigned chunk_of_part(int part) {
    return part == 0 ? 2 * HALF_CHUNKS : 2 * (unsigned)(part - 1);
}

INLINE unsigned barrier_of_part(unsigned barriers, int stage, int part) {
    return barriers + (unsigned)((stage * PARTS + part) * MBARRIER_BYTES);
}

/* ---- producer -------------------------------------------------------------------------------- */

/* Rows of a page, or of all keys of a sequence. */
struct box {
    int batch, row; /* in the map */
};

/* A box after the last key is that key's again: it is hidden anyway, and no unused entry of the
 * table is followed. */
INLINE struct box box_of_key(const struct attn_args &a, const struct work &w, int key, int rows) {
    if (is_paged(a)) {
        const int there = min(key, w.seq_kv - 1);
        return {page_of_key(a, w.batch, there), row_in_page(a, there) & -rows}; /* a power of 2 */
    }
    const bool packed = a.cu_seqlens_kv != 0;
    return {packed ? 0 : w.batch, (packed ? a.cu_seqlens_kv[w.batch] : 0) + key};
}

/* K of one sequence. */
struct source {
    const struct attn_tma_args *t;
    int rows, head; /* rows of a box: a power of 2 */
    unsigned long long policy;
};

/* 64 columns of a box. Two CTAs take turns, so that the single chunk of a part is each one's in
 * every other tile. A part may land in the other CTA before that one expects it: its mbarrier then
 * still waits for the arrival. */
INLINE void load_chunk(const struct source &k, const struct stages &at, int stage, struct box box,
                       unsigned chunk, unsigned to, unsigned full) {
    const int column = (int)(64 * chunk);
    if (at.sharers == 1) {
        tma_load_hinted(to, &k.t->k, full, column, box.row, k.head, box.batch, k.policy);
    } else if (((int)chunk + stage) % 2 == at.rank) {
        tma_load_multicast(to, &k.t->k, full, column, box.row, k.head, box.batch, 3, k.policy);
    }
}

/* A part of the tile that begins at first_key, where `box` is that of its first key. */
template <int chunks>
INLINE void load_part(const struct source &k, const struct work &w, const struct stages &at,
                      int stage, struct box box, int first_key, int part) {
    const unsigned to = at.k + (unsigned)(stage * KV_BYTES), chunk = chunk_of_part(part);
    const unsigned full = barrier_of_part(at.full, stage, part);
    mbarrier_arrive_expect(full, chunks * KV_CHUNK);
#pragma unroll 1
    for (int row = 0; row < ATTN_BN; row += k.rows) {
        if (row > 0) {
            box = box_of_key(k.t->a, w, first_key + row, k.rows);
        }
#pragma unroll
        for (unsigned i = 0; i < chunks; i++) {
            load_chunk(k, at, stage, box, chunk + i,
                       to + (chunk + i) * KV_CHUNK + (unsigned)(row * SWIZZLE_BYTES), full);
        }
    }
}

/* The KV head is computed once: a division per box took longer than the loads. The block table is
 * read before the wait for the stage. */
INLINE void produce(const struct attn_tma_args &t, const struct work &w, const struct range &keys,
                    const struct stages &at) {
    const struct attn_args &a = t.a;
    const struct source k = {
        &t, is_paged(a) ? min((int)ATTN_BN, a.page_size) : (int)ATTN_BN, head_kv_of(a, w),
        l2_policy(a.tiles_q == at.sharers && a.packed_heads == a.heads_per_kv)};
    struct ring ring = {0, 1}; /* all stages are empty */
#pragma unroll 1
    for (int n = keys.begin; n < keys.end; n++) {
        const struct box box = box_of_key(a, w, n * ATTN_BN, k.rows);
#pragma unroll
        for (int i = 0; i < PARTS; i++) {
            const int part = part_at(i, ring.stage);
            mbarrier_wait(barrier_of_part(at.empty, ring.stage, part), ring.parity);
            if (i == 0) {
                load_part<1>(k, w, at, ring.stage, box, n * ATTN_BN, part);
            } else {
                load_part<2>(k, w, at, ring.stage, box, n * ATTN_BN, part);
            }
        }
        advance<ATTN_STAGES>(ring);
    }
}

/* ---- GEMMs ----------------------------------------------------------------------------------- */

/* S = QK^T of the parts [begin, end), in flight, as they land. `parity` of their mbarriers. */
template <int group, int begin, int end>
INLINE void gemm_qk(float (&s)[S_REGS], const struct stages &at, unsigned parity) {
    const unsigned long long left = smem_descriptor(at.q, 16);
    const unsigned long long right = smem_descriptor(at.k + (unsigned)(group * KV_BYTES), 16);
    fence_operand(s);
#pragma unroll
    for (int i = begin; i < end; i++) {
        const int part = part_at(i, group), chunk = (int)chunk_of_part(part);
        mbarrier_wait(barrier_of_part(at.full, group, part), parity);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < (i == 0 ? 4 : 8); step++) {
            const int in_part = step / 4 * KV_CHUNK + step % 4 * 32;
            wgmma_ss(s, descriptor_at(left, chunk * Q_CHUNK + in_part),
                     descriptor_at(right, chunk * KV_CHUNK + in_part), i > 0 || step > 0);
        }
    }
    wgmma_commit();
}

/* O += PV of 128 of the columns, in flight. */
template <int piece>
INLINE void gemm_pv_piece(float (&o)[HALF_REGS], unsigned (&p)[P_REGS], unsigned v) {
    float(&columns)[HALF_REGS / 2] = (float(&)[HALF_REGS / 2]) o[piece * HALF_REGS / 2];
#pragma unroll
    for (int i = 0; i < PV_STEPS; i++) {
        wgmma_rs(
            columns, &p[4 * i],
            smem_descriptor(v + (unsigned)(2 * piece * KV_CHUNK + i * 2 * SWIZZLE_ATOM), KV_CHUNK));
    }
    wgmma_commit();
}

/* O += PV of half of the columns, in flight in two groups. */
INLINE void gemm_pv(float (&o)[HALF_REGS], unsigned (&p)[P_REGS], const struct stages &at,
                    int stage, int group) {
    const unsigned v = at.k + (unsigned)(stage * KV_BYTES + group * HALF_CHUNKS * KV_CHUNK);
    fence_operand(o);
    fence_operand(p);
    wgmma_fence();
    gemm_pv_piece<0>(o, p, v);
    gemm_pv_piece<1>(o, p, v);
}

INLINE void rescale(float (&o)[HALF_REGS], const float (&alpha)[2]) {
    if (__any_sync(~0U, alpha[0] != 1.0f || alpha[1] != 1.0f)) {
#pragma unroll
        for (int i = 0; i < HALF_REGS; i++) {
            o[i] *= alpha[i / 2 % 2];
        }
    }
}

/* ---- softmax --------------------------------------------------------------------------------- */

/* S becomes P; m and l advance. l is of the thread's own keys until the end. */
INLINE void softmax(unsigned (&p)[P_REGS], float (&alpha)[2], float (&s)[S_REGS],
                    struct row_state &state) {
#pragma unroll
    for (int row = 0; row < 2; row++) {
        float most = s[2 * row], sum = 0.0f;
#pragma unroll
        for (int i = row; i < P_REGS; i += 2) {
            most = fmaxf(most, fmaxf(s[2 * i], s[2 * i + 1]));
        }
        most = fmaxf(most, __shfl_xor_sync(~0U, most, 1));
        most = fmaxf(most, __shfl_xor_sync(~0U, most, 2));
        const float m_old = state.m[row], m = most > m_old + MAX_GROWTH ? most : m_old;
        alpha[row] = exp2_fast(m_old - m);
#pragma unroll
        for (int i = row; i < P_REGS; i += 2) {
            const float low = exp2_fast(s[2 * i] - m), high = exp2_fast(s[2 * i + 1] - m);
            sum += low + high;
            p[i] = pack(low, high);
        }
        state.m[row] = m;
        state.l[row] = fmaf(state.l[row], alpha[row], sum);
    }
}

/* Scores into base 2; those of keys that a row does not see become -inf. */
INLINE void finish_scores(float (&s)[S_REGS], const struct attn_args &a, const struct work &w,
                          const struct range &keys, int first_key, int row, int lane) {
#pragma unroll
    for (int i = 0; i < S_REGS; i++) {
        s[i] = scaled(s[i], a.scale_log2);
    }
    if (first_key >= keys.last.begin && first_key <= keys.first.end - ATTN_BN) {
        return;
    }
    const struct keys visible[2] = {keys_of_query(a, w, query_of_row(a, row)),
                                    keys_of_query(a, w, query_of_row(a, row + 8))};
#pragma unroll
    for (int i = 0; i < S_REGS; i++) {
        const int key = first_key + 8 * (i / 4) + lane % 4 * 2 + i % 2;
        const struct keys &of_row = visible[i / 2 % 2];
        s[i] = key >= of_row.begin && key < of_row.end ? s[i] : MINUS_INFINITY;
    }
}

/* ---- mailbox --------------------------------------------------------------------------------- */

struct mailbox {
    uint4 p[P_REGS / 4][WG_THREADS];
    float2 m[WG_THREADS];
};
static_assert(sizeof(struct mailbox) == P_BYTES + 16 * ATTN_BM, "as the host counts");

INLINE void send(struct mailbox *box, const unsigned (&p)[P_REGS], const float (&m)[2],
                 int thread) {
#pragma unroll
    for (int i = 0; i < P_REGS / 4; i++) {
        box->p[i][thread] = make_uint4(p[4 * i], p[4 * i + 1], p[4 * i + 2], p[4 * i + 3]);
    }
    box->m[thread] = make_float2(m[0], m[1]);
}

INLINE void receive(const struct mailbox *box, unsigned (&p)[P_REGS], float (&m)[2], int thread) {
#pragma unroll
    for (int i = 0; i < P_REGS / 4; i++) {
        const uint4 four = box->p[i][thread];
        p[4 * i] = four.x, p[4 * i + 1] = four.y, p[4 * i + 2] = four.z, p[4 * i + 3] = four.w;
    }
    const float2 both = box->m[thread];
    m[0] = both.x, m[1] = both.y;
}

/* ---- consumers ------------------------------------------------------------------------------- */

/* Rows of V from `first` on become 0. By all threads of a warpgroup; S has been computed. */
INLINE void zero_rows(unsigned k, int first, int thread) {
    const int of_chunk = (ATTN_BN - first) * (SWIZZLE_BYTES / 16);
#pragma unroll 1
    for (int i = thread; i < 2 * HALF_CHUNKS * of_chunk; i += WG_THREADS) {
        const unsigned to =
            k + (unsigned)(i / of_chunk * KV_CHUNK + first * SWIZZLE_BYTES + i % of_chunk * 16);
        asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" : : "r"(to), "r"(0) : "memory");
    }
    fence_proxy_async();
    named_barrier_sync(TAIL, WG_THREADS);
}

/* This warp has read a part of a stage: to all producers that load it. */
INLINE void release(const struct stages &at, int stage, int part, int thread) {
    if (thread % LANES == 0) {
        const unsigned empty = barrier_of_part(at.empty, stage, part);
        mbarrier_arrive(empty);
        if (at.sharers > 1) {
            mbarrier_arrive_dsmem(map_to_cta(empty, at.rank ^ 1));
        }
    }
}

/* P of the tile before and m from the other consumer; O += PV, in flight. Its K has landed: the
 * other one has waited for it. */
template <int group>
INLINE void add_tile_of_other(float (&o)[HALF_REGS], unsigned (&p)[P_REGS], struct row_state &state,
                              const struct stages &at, const struct mailbox *box, int thread) {
    float m[2], alpha[2];
    named_barrier_sync(P_FULL + 1 - group, CONSUMER_THREADS);
    receive(box, p, m, thread);
#pragma unroll
    for (int row = 0; row < 2; row++) {
        alpha[row] = exp2_fast(state.m[row] - m[row]);
        state.m[row] = m[row];
        state.l[row] *= alpha[row];
    }
    rescale(o, alpha);
    gemm_pv(o, p, at, 1 - group, group);
}

/* S of tile n has been computed: P, to the other consumer, too; O += PV. */
template <int group>
INLINE void add_tile(float (&o)[HALF_REGS], unsigned (&p)[P_REGS], float (&s)[S_REGS],
                     struct row_state &state, const struct attn_args &a, const struct work &w,
                     const struct range &keys, const struct stages &at, int n, struct mailbox *box,
                     int thread) {
    const int lane = thread % LANES, row = w.first_row + thread / LANES * 16 + lane / 4;
    const int there = keys.last.end - n * ATTN_BN;
    float alpha[2];
    fence_operand(s);
    release(at, group, 0, thread);
    if (there < ATTN_BN) {
        zero_rows(at.k + (unsigned)(group * KV_BYTES), there, thread);
    }
    finish_scores(s, a, w, keys, n * ATTN_BN, row, lane);
    softmax(p, alpha, s, state);
    send(box, p, state.m, thread);
    named_barrier_arrive(P_FULL + group, CONSUMER_THREADS);
    rescale(o, alpha);
    gemm_pv(o, p, at, group, group);
    wgmma_wait<1>();
    release(at, group, 1 + 2 * group, thread);
    wgmma_wait<0>();
    fence_operand(o);
    release(at, group, 2 + 2 * group, thread);
}

/* A function for each consumer: descriptors are constants, added to uniform registers. */
template <int group>
INLINE void consume_tiles(float (&o)[HALF_REGS], struct row_state &state, const struct attn_args &a,
                          const struct work &w, const struct range &keys, const struct stages &at,
                          struct mailbox *box, int thread) {
    float s[S_REGS];
    unsigned p[P_REGS], parity = 0;
    int n = keys.begin + group;
    if (group == 0) {
        gemm_qk<group, 0, PARTS>(s, at, parity);
        wgmma_wait<0>();
        add_tile<group>(o, p, s, state, a, w, keys, at, n, box, thread);
        n += CONSUMERS;
        parity = 1;
    }
#pragma unroll 1
    for (; n < keys.end; n += CONSUMERS) {
        gemm_qk<group, 0, PARTS - 1>(s, at, parity);
        add_tile_of_other<group>(o, p, state, at, box, thread);
        gemm_qk<group, PARTS - 1, PARTS>(s, at, parity);
        wgmma_wait<0>();
        fence_operand(o);
        release(at, 1 - group, 1 + 2 * group, thread);
        release(at, 1 - group, 2 + 2 * group, thread);
        add_tile<group>(o, p, s, state, a, w, keys, at, n, box, thread);
        parity ^= 1;
    }
    if (n == keys.end) {
        add_tile_of_other<group>(o, p, state, at, box, thread);
        wgmma_wait<0>();
        fence_operand(o);
    }
}

/* l of all keys: the sum over both consumers. */
INLINE void share_sums(struct row_state &state, struct mailbox *box, int group, int thread) {
    float2 *const sums = (float2 *)box;
    named_barrier_sync(ALL_CONSUMERS, CONSUMER_THREADS); /* the last P has been read */
    sums[group * WG_THREADS + thread] = make_float2(state.l[0], state.l[1]);
    named_barrier_sync(ALL_CONSUMERS, CONSUMER_THREADS);
    const float2 first = sums[thread], second = sums[WG_THREADS + thread];
    state.l[0] = first.x + second.x;
    state.l[1] = first.y + second.y;
}

/* ---- the kernel ------------------------------------------------------------------------------ */

/* Q, by all consumers, as TMA would write it: eight threads for each of 32 rows. */
INLINE void copy_q(const struct attn_args &a, const struct work &w, unsigned shared_q) {
    const element *const q = q_of(a, w);
    const int piece = (int)threadIdx.x % 8;
#pragma unroll
    for (int in_tile = (int)threadIdx.x / 8; in_tile < ATTN_BM; in_tile += CONSUMER_THREADS / 8) {
        const int row = w.first_row + in_tile;
        const element *const from =
            q + row_offset(a, row < w.rows ? row : w.first_row, a.q_row, a.q_head) + piece * 8;
        const unsigned to =
            shared_q + (unsigned)(in_tile * SWIZZLE_BYTES + ((piece ^ in_tile) & 7) * 16);
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
            const bool there = row < w.rows && chunk * 64 + piece * 8 < a.head_dim;
            cp_async(to + (unsigned)(chunk * Q_CHUNK), there ? from + chunk * 64 : q, there);
        }
    }
    cp_async_commit();
    cp_async_wait<0>();
    fence_proxy_async();
    named_barrier_sync(ALL_CONSUMERS, CONSUMER_THREADS);
}

INLINE void consume(const struct attn_args &a, const struct work &w, const struct range &keys,
                    const struct mla_split &split, const struct stages &at, unsigned char *dynamic,
                    int group) {
    const int thread = (int)threadIdx.x % WG_THREADS;
    struct mailbox *const box =
        (struct mailbox *)(dynamic + (at.mailbox - shared_address(dynamic)));
    float o[HALF_REGS];
    struct row_state state = {{NO_MAX, NO_MAX}, {0.0f, 0.0f}};
#pragma unroll
    for (int i = 0; i < HALF_REGS; i++) {
        o[i] = 0.0f;
    }
    copy_q(a, w, at.q);
    if (keys.begin < keys.end) {
        if (group == 0) {
            consume_tiles<0>(o, state, a, w, keys, at, box, thread);
        } else {
            consume_tiles<1>(o, state, a, w, keys, at, box, thread);
        }
    }
    if (at.sharers > 1) {
        cluster_arrive(); /* this thread releases nothing any more */
    }
#pragma unroll
    for (int row = 0; row < 2; row++) {
        state.l[row] += __shfl_xor_sync(~0U, state.l[row], 1);
        state.l[row] += __shfl_xor_sync(~0U, state.l[row], 2);
    }
    share_sums(state, box, group, thread);
    merge_and_store(o, state, a, w, split, (float4 *)(dynamic + (at.k - shared_address(dynamic))),
                    group);
    if (at.sharers > 1) {
        cluster_wait(); /* until then the other CTA may arrive at mbarriers of this one */
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    ATTN_ENTRY(const __grid_constant__ struct attn_tma_args t) {
    extern __shared__ unsigned char dynamic[];
    __shared__ __align__(8) unsigned long long barriers[2 * ATTN_STAGES * PARTS];
    const struct attn_args &a = t.a;
    struct mla_split split = split_of_cta(a);
    const struct work w = work_of_tile(a, split.tile);
    if (w.first_row >= w.rows) {
        return; /* a sequence that is shorter than the longest; so does the whole cluster */
    }
    struct stages at;
    at.rank = cta_rank();
    at.sharers = shares_loads(a) ? 2 : 1;
    const int rows = at.sharers * ATTN_BM, first_row = w.first_row & -rows;
    struct range keys;
    keys.first = keys_of_query(a, w, query_of_row(a, first_row));
    keys.last = keys_of_query(a, w, query_of_row(a, min(first_row + rows, w.rows) - 1));
    const int begin = keys.first.begin / ATTN_BN, end = tiles_of_keys(keys.last.end);
    const int each = max((end - begin + a.num_splits - 1) / a.num_splits, 1);
    keys.begin = begin + split.number * each;
    keys.end = min(keys.begin + each, end); /* there may be none: it takes part in the merge */
    const int of_cluster = each * split.ctas;
    split.clusters = max((end - begin + of_cluster - 1) / of_cluster, 1);
    if (split.cluster >= split.clusters) {
        return; /* fewer keys than planned for: a whole cluster has none */
    }
    at.q = (shared_address(dynamic) + SWIZZLE_ATOM - 1) & ~(SWIZZLE_ATOM - 1U);
    at.k = at.q + Q_BYTES;
    at.mailbox = at.k + ATTN_STAGES * KV_BYTES;
    at.full = shared_address(barriers);
    at.empty = at.full + ATTN_STAGES * PARTS * MBARRIER_BYTES;
    if (threadIdx.x == 0) {
        for (unsigned i = 0; i < ATTN_STAGES * PARTS; i++) {
            mbarrier_init(at.full + i * MBARRIER_BYTES, 1);
            mbarrier_init(at.empty + i * MBARRIER_BYTES, (unsigned)at.sharers * WG_WARPS);
        }
        mbarrier_init_fence();
    }
    if (at.sharers > 1) {
        cluster_sync(); /* each signals the mbarriers of both */
    } else {
        __syncthreads();
    }
    const int group = __shfl_sync(~0U, (int)threadIdx.x / WG_THREADS, 0);
    if (group == CONSUMERS) {
        setmaxnreg_dec<PRODUCER_REGISTERS>();
        if (threadIdx.x % WG_THREADS == 0) {
            produce(t, w, keys, at);
        }
    } else {
        setmaxnreg_inc<CONSUMER_REGISTERS>();
        consume(a, w, keys, split, at, dynamic, group);
    }
}
