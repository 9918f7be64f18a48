/* SPDX-License-Identifier: Apache-2.0
 *
 * differentiate.h - from S^T to P^T and from dP^T to dS^T, in place, in the fragments of a consumer
 * warpgroup of backward.cu: rows are keys, columns are queries.
 *
 * Invariant: P = dS = 0 for a pair that is not visible, whatever S and dP hold there.
 */
#ifndef ATTN_KERNELS_HOPPER_DIFFERENTIATE_H
#define ATTN_KERNELS_HOPPER_DIFFERENTIATE_H

#include "hopper/key_tile.h"
#include "hopper/tma.h"

/* ---- P and dS -------------------------------------------------------------------------------- */

/* What a thread knows of its two keys, 8 apart: for masks and options. */
struct lane_keys {
    struct keys queries[2]; /* that see it; none if it does not exist */
    int key, diagonal;      /* query i is at distance 0 from key i + diagonal */
    float slope;            /* of ALiBi, in base 2; of this head */
};

INLINE struct lane_keys keys_of_lane(const struct attn_args &a, const struct work &w, int head,
                                     int first) {
    struct lane_keys keys;
    keys.key = first + (int)threadIdx.x % WG_THREADS / LANES * 16 + (int)threadIdx.x % LANES / 4;
    keys.diagonal = off_of(a, w);
    keys.slope = a.alibi ? alibi_slope(a, w.batch, head) : 0.0f;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        keys.queries[half] = {0, 0};
        if (keys.key + 8 * half < w.seq_kv) {
            keys.queries[half] = queries_of_key(a, w, keys.key + 8 * half);
        }
    }
    return keys;
}

INLINE float2 load_pair(unsigned address) {
    float2 x;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(address));
    return x;
}

/* LSE or D of this lane's queries. STATS_AHEAD pairs, as many as registers allow, are loaded before
 * the GEMM during which they are used (see read_flags). */
enum { STATS_AHEAD = SCORE_QUERIES > 64 ? 4 : 6 };

struct lane_stats {
    float2 ahead[STATS_AHEAD];
    unsigned address;
};

INLINE struct lane_stats load_stats(unsigned address) {
    struct lane_stats stats;
#pragma unroll
    for (int n = 0; n < min(STATS_AHEAD, SCORE_QUERIES / 8); n++) {
        stats.ahead[n] = load_pair(address + (unsigned)(n * 32));
    }
    stats.address = address;
    return stats;
}

INLINE float2 stat_pair(const struct lane_stats &stats, int n) {
    return n < STATS_AHEAD ? stats.ahead[n] : load_pair(stats.address + (unsigned)(n * 32));
}

/* P^T in place of S^T. */
INLINE void probabilities(float (&s)[SCORE_REGS], const struct attn_args &a,
                          const struct lane_stats &lse) {
#pragma unroll
    for (int n = 0; n < SCORE_QUERIES / 8; n++) {
        const float2 l = stat_pair(lse, n);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float d = fmaf(s[4 * n + i], a.scale_log2, i % 2 == 0 ? -l.x : -l.y);
            s[4 * n + i] = exp2_fast(d > 0.0f ? 0.0f : d);
        }
    }
}

/* dS^T in place of dP^T. */
INLINE void differentiate(float (&dp)[SCORE_REGS], const float (&p)[SCORE_REGS],
                          const struct lane_stats &delta) {
#pragma unroll
    for (int n = 0; n < SCORE_QUERIES / 8; n++) {
        const float2 d = stat_pair(delta, n);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            dp[4 * n + i] = p[4 * n + i] * (dp[4 * n + i] - (i % 2 == 0 ? d.x : d.y));
        }
    }
}

INLINE bool sees(const struct lane_keys &keys, int half, int query) {
    return query >= keys.queries[half].begin && query < keys.queries[half].end;
}

/* What ALiBi takes from a score: distances fit an int. */
INLINE float alibi_of(const struct lane_keys &keys, int half, int query) {
    return keys.slope * fabsf((float)(query + keys.diagonal - keys.key - 8 * half));
}

/* Likewise with bounds, softcap and ALiBi. */
INLINE void probabilities_with(float (&s)[SCORE_REGS], const struct attn_args &a,
                               const struct lane_keys &keys, int query,
                               const struct lane_stats &lse) {
#pragma unroll
    for (int n = 0; n < SCORE_QUERIES / 8; n++) {
        const float2 l = stat_pair(lse, n);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int half = i / 2, q = query + 8 * n + i % 2;
            const float score = a.softcap_log2 > 0.0f
                                    ? capped(s[4 * n + i] * a.softcap_scale, a.softcap_log2)
                                    : scaled(s[4 * n + i], a.scale_log2);
            const float d = score - alibi_of(keys, half, q) - (i % 2 == 0 ? l.x : l.y);
            s[4 * n + i] = sees(keys, half, q) ? exp2_fast(d > 0.0f ? 0.0f : d) : 0.0f;
        }
    }
}

/* The derivative of softcap from P: where P is 0, so is dS. */
INLINE void differentiate_with(float (&dp)[SCORE_REGS], const float (&source)[SCORE_REGS],
                               const struct attn_args &a, const struct lane_keys &keys, int query,
                               unsigned lse, const struct lane_stats &delta) {
    const float factor = a.softcap_log2 > 0.0f ? reciprocal_fast(a.softcap_log2) : 0.0f;
#pragma unroll
    for (int n = 0; n < SCORE_QUERIES / 8; n++) {
        const float2 l = load_pair(lse + (unsigned)(n * 32)), d = stat_pair(delta, n);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int half = i / 2, q = query + 8 * n + i % 2;
            const float p = source[4 * n + i];
            float ds = p * (dp[4 * n + i] - (i % 2 == 0 ? d.x : d.y));
            if (a.softcap_log2 > 0.0f && p > 0.0f) {
                const float t =
                    (log2_fast(p) + (i % 2 == 0 ? l.x : l.y) + alibi_of(keys, half, q)) * factor;
                ds *= fmaf(-t, t, 1.0f);
            }
            dp[4 * n + i] = sees(keys, half, q) ? ds : 0.0f;
        }
    }
}

INLINE bool has_options(const struct attn_args &a) {
    return a.softcap_log2 > 0.0f || a.alibi;
}

/* Sets P or dS to 0 where a query of posted tile n does not see a key. first: the warpgroup's first
 * key. */
INLINE void hide(float (&x)[SCORE_REGS], const struct attn_args &a, const struct work &w,
                 const struct query_tile *posted, unsigned n, int first) {
    const struct query_tile q = read_posted(posted, n);
    const struct lane_keys keys = keys_of_lane(a, w, q.head, first);
    const int query = query_of_lane(q);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int begin = keys.queries[half].begin - query, end = keys.queries[half].end - query;
#pragma unroll
        for (int i = 0; i < SCORE_REGS / 2; i++) {
            const int at = i / 2 * 8 + i % 2; /* queries after this lane's first one */
            float &one = x[i / 2 * 4 + half * 2 + i % 2];
            one = at >= begin && at < end ? one : 0.0f;
        }
    }
}

INLINE void to_probabilities(float (&s)[SCORE_REGS], const struct attn_args &a,
                             const struct work &w, const struct query_tile *posted, unsigned n,
                             bool plain, int first, const struct lane_stats &lse) {
    if (has_options(a)) {
        const struct query_tile q = read_posted(posted, n);
        const struct lane_keys keys = keys_of_lane(a, w, q.head, first);
        probabilities_with(s, a, keys, query_of_lane(q), lse);
        return;
    }
    probabilities(s, a, lse);
    if (!plain) {
        hide(s, a, w, posted, n, first);
    }
}

INLINE void to_gradients(float (&dp)[SCORE_REGS], const float (&p)[SCORE_REGS],
                         const struct attn_args &a, const struct work &w,
                         const struct query_tile *posted, unsigned n, bool plain, int first,
                         unsigned lse, const struct lane_stats &delta) {
    if (has_options(a)) {
        const struct query_tile q = read_posted(posted, n);
        const struct lane_keys keys = keys_of_lane(a, w, q.head, first);
        differentiate_with(dp, p, a, keys, query_of_lane(q), lse, delta);
        return;
    }
    differentiate(dp, p, delta);
    if (!plain) {
        hide(dp, a, w, posted, n, first);
    }
}

INLINE void pack_pairs(unsigned (&to)[PAIR_REGS], const float (&x)[SCORE_REGS]) {
#pragma unroll
    for (int i = 0; i < PAIR_REGS; i++) {
        to[i] = pack(x[2 * i], x[2 * i + 1]);
    }
}

INLINE void stmatrix_x4_trans(unsigned address, unsigned a, unsigned b, unsigned c, unsigned d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
                 :
                 : "r"(address), "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}

/* dS, BM rows of the warpgroup's 64 keys: the warp's 16 keys are columns. */
INLINE void store_ds(unsigned chunk, const unsigned (&ds)[PAIR_REGS], int warp, int lane) {
    const unsigned row = (unsigned)(lane / 16 * 8 + lane % 8);
    const unsigned column = (unsigned)(2 * warp + lane / 8 % 2) ^ (unsigned)lane % 8;
    const unsigned to = chunk + row * SWIZZLE_BYTES + column * 16;
#pragma unroll
    for (int i = 0; i < ATTN_BM / 16; i++) {
        stmatrix_x4_trans(to + (unsigned)(i * 2 * SWIZZLE_ATOM), ds[4 * i], ds[4 * i + 1],
                          ds[4 * i + 2], ds[4 * i + 3]);
    }
}

#endif /* ATTN_KERNELS_HOPPER_DIFFERENTIATE_H */
