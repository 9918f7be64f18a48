/* SPDX-License-Identifier: Apache-2.0
 *
 * device.h - what every kernel is written with: elements, cp.async, and the Q tile of a CTA
 * in kernels without options. Thin names over single PTX instructions.
 *
 * A kernel file is compiled once for each line of variants.def, with
 *   ATTN_ENTRY                       the name of the kernel
 *   ATTN_DTYPE_fp16, _bf16 or _fp32  the dtype of Q, K, V and O
 *   ATTN_D ATTN_BM ATTN_BN           head_dim; rows of a Q tile, keys of a KV tile
 *   ATTN_WARPS ATTN_STAGES           of a CTA; of its K and V rings
 *   ATTN_DEBUG                       device asserts (never in a release)
 * ATTN_FP8, which a source file defines: K and V are fp8.
 */
#ifndef ATTN_KERNELS_COMMON_DEVICE_H
#define ATTN_KERNELS_COMMON_DEVICE_H

#include "common/args.h"

#define INLINE __device__ __forceinline__

#ifdef ATTN_DTYPE_fp32
typedef float element;
#else
typedef unsigned short element; /* the bits of an fp16 or bf16 number */
#endif

/* Of K and V. */
#ifdef ATTN_FP8
enum { FP8 = 1 };
typedef unsigned char cache_element;
#else
enum { FP8 = 0 };
typedef element cache_element;
#endif

#ifdef ATTN_DEBUG
extern "C" __device__ void __assertfail(const char *condition, const char *file, unsigned line,
                                        const char *function, unsigned long long char_size);
#define DEVICE_ASSERT(condition)                                                                   \
    ((condition) ? (void)0 : __assertfail(#condition, __FILE__, __LINE__, __func__, 1))
#else
#define DEVICE_ASSERT(condition) ((void)0)
#endif

enum {
    LANES = 32,
    THREADS = ATTN_WARPS * LANES,
    MIN_CTAS = 512 / THREADS /* per SM: 65536 registers / 512 threads = 128 each, no spills */
};

/* ---- the parameter --------------------------------------------------------------------------- */

/* Where the C compiler puts each field (tests/cuda/test_args.c has the same numbers): an order that
 * differs between the two compilers does not build. */
#define AT(field, offset)                                                                          \
    static_assert(__builtin_offsetof(struct attn_args, field) == (offset), #field " has moved")

AT(q, 0);
AT(k, 8);
AT(v, 16);
AT(o, 24);
AT(lse, 32);
AT(q_batch, 40);
AT(q_head, 48);
AT(q_row, 56);
AT(k_batch, 64);
AT(k_head, 72);
AT(k_row, 80);
AT(v_batch, 88);
AT(v_head, 96);
AT(v_row, 104);
AT(o_batch, 112);
AT(o_head, 120);
AT(o_row, 128);
AT(lse_batch, 136);
AT(lse_head, 144);
AT(lse_row, 152);
AT(diagonal, 160);
AT(heads_q, 168);
AT(heads_per_kv, 172);
AT(seq_q, 176);
AT(seq_kv, 180);
AT(tiles_q, 184);
AT(causal, 188);
AT(scale_log2, 192);
AT(top_left, 196);
AT(left, 200);
AT(right, 208);
AT(head_dim, 216);
AT(head_dim_v, 220);
AT(packed_heads, 224);
AT(section_heads, 228);
AT(heads_all, 232);
AT(softcap_log2, 236);
AT(softcap_scale, 240);
AT(alibi, 244);
AT(alibi_slopes, 248);
AT(alibi_batch, 256);
AT(sink, 264);
AT(bias, 272);
AT(bias_batch, 280);
AT(bias_head, 288);
AT(bias_row, 296);
AT(bias_col, 304);
AT(bias_dtype, 312);
AT(num_splits, 316);
AT(cu_seqlens_q, 320);
AT(cu_seqlens_kv, 328);
AT(used_kv, 336);
AT(counters, 344);
AT(mask, 352);
AT(mask_batch, 360);
AT(mask_head, 368);
AT(mask_row, 376);
AT(mask_col, 384);
AT(block_table, 392);
AT(block_table_stride, 400);
AT(page_size, 408);
AT(num_pages, 412);
AT(page_factor, 416);
AT(page_shift, 420);
AT(used_q, 424);
AT(draft_mask, 432);
AT(k_scale, 440);
AT(v_scale, 448);
AT(k_scale_batch, 456);
AT(k_scale_head, 464);
AT(k_scale_row, 472);
AT(v_scale_batch, 480);
AT(v_scale_head, 488);
AT(v_scale_row, 496);
AT(dtype_kv, 504);
AT(shift, 508);
AT(offsets, 512);
static_assert(sizeof(struct attn_args) == 520, "struct attn_args has another size");
#undef AT
#define AT(field, offset)                                                                          \
    static_assert(__builtin_offsetof(struct attn_tma_args, field) == (offset), #field " has "      \
                                                                                      "moved")
AT(q, 0);
AT(k, 128);
AT(v, 256);
AT(o, 384);
AT(a, 512);
static_assert(sizeof(struct attn_tma_args) == 1088, "struct attn_tma_args has another size");
#undef AT

/* ---- elements -------------------------------------------------------------------------------- */

#ifndef ATTN_DTYPE_fp32

/* The lower and the upper one of a pair as fp32. */
INLINE float2 unpack(unsigned pair) {
    float2 value;
#ifdef ATTN_DTYPE_fp16
    asm("{ .reg .f16 lo, hi;\n\t"
        "mov.b32 {lo, hi}, %2;\n\t"
        "cvt.f32.f16 %0, lo;\n\t"
        "cvt.f32.f16 %1, hi; }"
        : "=f"(value.x), "=f"(value.y)
        : "r"(pair));
#else
    value.x = __uint_as_float(pair << 16);
    value.y = __uint_as_float(pair & 0xffff0000U);
#endif
    return value;
}

/* Rounds to nearest even; `low` becomes the element with the lower address. */
INLINE unsigned pack(float low, float high) {
    unsigned pair;
#ifdef ATTN_DTYPE_fp16
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
#else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
#endif
    return pair;
}

/* Whether one of the pair is NaN or infinite: all bits of an exponent are set. */
INLINE bool has_non_finite(unsigned pair) {
#ifdef ATTN_DTYPE_fp16
    const unsigned exponent = 0x7c00U;
#else
    const unsigned exponent = 0x7f80U;
#endif
    return (pair & exponent) == exponent || (pair >> 16 & exponent) == exponent;
}

#endif

/* ---- cp.async -------------------------------------------------------------------------------- */

INLINE unsigned shared_address(const void *pointer) {
    return (unsigned)__cvta_generic_to_shared(pointer);
}

/* 16 bytes from global to shared memory; zeros where !there, and then the source is not read. */
INLINE void cp_async(unsigned to, const void *from, bool there) {
    DEVICE_ASSERT(to % 16 == 0);
    DEVICE_ASSERT((unsigned long long)from % 16 == 0 || !there);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(to), "l"(from), "r"(there ? 16 : 0)
                 : "memory");
}

INLINE void cp_async_commit(void) {
    asm volatile("cp.async.commit_group;" : : : "memory");
}

/* Until at most `groups` are in flight. */
template <int groups> INLINE void cp_async_wait(void) {
    asm volatile("cp.async.wait_group %0;" : : "n"(groups) : "memory");
}

/* `rows` rows of ATTN_D elements from row `first` on into shared rows that are `pitch` elements
 * apart; rows from `end` on become zeros. All threads of the CTA take part. */
INLINE void copy_rows(element *to, int pitch, const element *from, long long row_stride,
                      long long first, int rows, int end) {
    enum { PARTS = ATTN_D / 8, STEP = THREADS / PARTS };
    const int column = (int)threadIdx.x % PARTS * 8;
    int row = (int)threadIdx.x / PARTS;
    const element *source = from + (first + row) * row_stride + column;
    for (; row < rows; row += STEP, source += STEP * row_stride) {
        const bool there = row < end - first;
        cp_async(shared_address(to + row * pitch + column), there ? source : from, there);
    }
}

/* ---- the Q tile of a CTA --------------------------------------------------------------------- */

/* ATTN_BM query rows of one (batch, head). */
struct tile {
    const element *q, *k, *v;
    element *o;
    float *lse; /* of row 0 of this (batch, head); NULL: not wanted */
    int first_row;
    int keys; /* that any of its rows sees: [0, keys) */
};

/* The keys [0, visible) that a query row sees. */
INLINE int visible_keys(const struct attn_args &a, int row) {
    const long long end = a.causal ? (long long)row + a.diagonal + 1 : a.seq_kv;
    return end < 0 ? 0 : end > a.seq_kv ? a.seq_kv : (int)end;
}

/* KV tiles; keys + ATTN_BN - 1 would overflow near 2^31. */
INLINE int tiles_of_keys(int keys) {
    return keys / ATTN_BN + (keys % ATTN_BN != 0);
}

/* Longest first: in a causal problem the last rows of a head see the most keys. */
INLINE struct tile tile_of_cta(const struct attn_args &a) {
    const int cta = (int)blockIdx.x;
    const int head = cta / a.tiles_q % a.heads_q;
    const long long batch = cta / a.tiles_q / a.heads_q;
    const long long head_kv = head / a.heads_per_kv;
    struct tile tile;
    tile.first_row = (a.tiles_q - 1 - cta % a.tiles_q) * ATTN_BM;
    tile.q = (const element *)a.q + batch * a.q_batch + head * a.q_head;
    tile.k = (const element *)a.k + batch * a.k_batch + head_kv * a.k_head;
    tile.v = (const element *)a.v + batch * a.v_batch + head_kv * a.v_head;
    tile.o = (element *)a.o + batch * a.o_batch + head * a.o_head;
    tile.lse = a.lse == 0 ? 0 : a.lse + batch * a.lse_batch + head * a.lse_head;
    const int rows = a.seq_q - tile.first_row;
    tile.keys = visible_keys(a, tile.first_row + (rows < ATTN_BM ? rows : ATTN_BM) - 1);
    DEVICE_ASSERT(tile.first_row >= 0 && tile.first_row < a.seq_q);
    return tile;
}

#endif /* ATTN_KERNELS_COMMON_DEVICE_H */
