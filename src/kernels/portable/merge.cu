/* SPDX-License-Identifier: Apache-2.0
 *
 * merge.cu - partial results (O, LSE) of the same rows into one (attn_merge), or one of them into a
 * running sum (attn_accumulate).
 *
 * A CTA takes a few rows. First one thread of each row turns the LSEs of all parts into weights,
 * which lie in shared memory; then all threads of a row add up its columns, 16 bytes of a part at a
 * time, in the order of the parts. O of a part that saw no key is not read.
 *
 * Invariant: an element of O or LSE is read and written by one thread, reads first, so that the
 * result may lie where the first part does.
 */
#include "common/device.h"
#include "common/softmax.h"

#define AT(field, offset)                                                                          \
    static_assert(__builtin_offsetof(struct attn_merge_args, field) == (offset), #field " has "    \
                                                                                        "moved")
AT(lse_parts, 256);
AT(o, 512);
AT(o_inner, 528);
AT(rows, 576);
AT(inner, 580);
AT(threads_of_row, 604);
AT(running, 608);
static_assert(sizeof(struct attn_merge_args) == 616, "struct attn_merge_args has another size");
#undef AT

enum { VECTOR = 16 / sizeof(element), ROWS = THREADS / ATTN_MERGE_THREADS };
enum dtype { DTYPE_FP32, DTYPE_FP16, DTYPE_BF16 }; /* enum attn_dtype */

#define LOG2_E 1.44269504088896340736f
static const float NOT_SEEN = -1.0f; /* a weight is 0 or more, or NaN */

/* ---- rows ------------------------------------------------------------------------------------ */

/* From the first element of O and LSE to the row's, in elements. */
struct place {
    long long o, lse;
};

INLINE struct place place_of_row(const struct attn_merge_args &a, unsigned row) {
    const unsigned rest = row / a.inner; /* of 32 bits: 64 would cost more than the sums */
    const long long inner = row % a.inner, outer = rest % a.outer, batch = rest / a.outer;
    const struct place place = {inner * a.o_inner + outer * a.o_outer + batch * a.o_batch,
                                inner * a.lse_inner + outer * a.lse_outer + batch * a.lse_batch};
    return place;
}

/* The weights of a row's parts, which are its own column of `weights`; LSE. */
INLINE void weigh_parts(const struct attn_merge_args &a, float (*weights)[ROWS], int column,
                        long long at) {
    if (a.lse_parts[0] == 0) { /* a plain sum */
        for (int p = 0; p < a.count; p++) {
            weights[p][column] = 1.0f;
        }
        return;
    }
    float m = MINUS_INFINITY, l = 0.0f;
#pragma unroll 4
    for (int p = 0; p < a.count; p++) {
        const float lse = a.lse_parts[p][at];
        weights[p][column] = lse;
        m = fmaxf(m, lse); /* NaN comes back below */
    }
    for (int p = 0; p < a.count; p++) {
        const float lse = weights[p][column];
        const float weight = lse == MINUS_INFINITY ? NOT_SEEN : exp2_fast((lse - m) * LOG2_E);
        weights[p][column] = weight;
        l += lse == MINUS_INFINITY ? 0.0f : weight;
    }
    const float inverse = 1.0f / l;
    for (int p = 0; p < a.count; p++) {
        const float weight = weights[p][column];
        weights[p][column] = weight == NOT_SEEN ? NOT_SEEN : weight * inverse;
    }
    if (a.lse != 0) {
        /* one part alone keeps its LSE */
        a.lse[at] = l == 0.0f ? MINUS_INFINITY : l == 1.0f ? m : fmaf(log2_fast(l), LN_2, m);
    }
}

/* ---- columns --------------------------------------------------------------------------------- */

template <int WIDTH> struct columns { element at[WIDTH]; };

template <> struct __align__(16) columns<VECTOR> {
    element at[VECTOR];
};

INLINE float to_float(element x) {
#ifdef ATTN_DTYPE_fp32
    return x;
#else
    return unpack(x).x;
#endif
}

INLINE unsigned pack_as(int dtype, float low, float high) {
    unsigned pair;
    if (dtype == DTYPE_FP16) {
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    } else {
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    }
    return pair;
}

INLINE void store(const struct attn_merge_args &a, long long at, const float (&x)[1]) {
    if (a.dtype_o == DTYPE_FP32) {
        ((float *)a.o)[at] = x[0];
    } else {
        ((unsigned short *)a.o)[at] = (unsigned short)pack_as(a.dtype_o, x[0], 0.0f);
    }
}

INLINE void store(const struct attn_merge_args &a, long long at, const float (&x)[VECTOR]) {
    if (a.dtype_o == DTYPE_FP32) {
#pragma unroll
        for (int i = 0; i < VECTOR; i += 4) {
            *(float4 *)((float *)a.o + at + i) = make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]);
        }
        return;
    }
    unsigned short *to = (unsigned short *)a.o + at;
    unsigned pair[VECTOR / 2];
#pragma unroll
    for (int i = 0; i < VECTOR / 2; i++) {
        pair[i] = pack_as(a.dtype_o, x[2 * i], x[2 * i + 1]);
    }
#ifdef ATTN_DTYPE_fp32
    *(uint2 *)to = make_uint2(pair[0], pair[1]);
#else
    *(uint4 *)to = make_uint4(pair[0], pair[1], pair[2], pair[3]);
#endif
}

/* WIDTH columns of a row from `at` on. The loads of several parts are in flight at one time. */
template <int WIDTH>
INLINE void add_parts(const struct attn_merge_args &a, const float (*weights)[ROWS], int column,
                      long long at) {
    enum { AT_ONCE = 4 };
    float sum[WIDTH];
    bool seen = false;
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
        sum[i] = 0.0f;
    }
    for (int first = 0; first < a.count; first += AT_ONCE) {
        float weight[AT_ONCE];
        columns<WIDTH> x[AT_ONCE];
#pragma unroll
        for (int p = 0; p < AT_ONCE; p++) {
            weight[p] = first + p < a.count ? weights[first + p][column] : NOT_SEEN;
        }
#pragma unroll
        for (int p = 0; p < AT_ONCE; p++) {
            if (weight[p] != NOT_SEEN) {
                x[p] = *(const columns<WIDTH> *)((const element *)a.o_parts[first + p] + at);
            }
        }
#pragma unroll
        for (int p = 0; p < AT_ONCE; p++) {
            if (weight[p] != NOT_SEEN) {
#pragma unroll
                for (int i = 0; i < WIDTH; i++) { /* the first one is not added to 0: -0 stays */
                    const float value = to_float(x[p].at[i]);
                    sum[i] = seen ? fmaf(weight[p], value, sum[i]) : weight[p] * value;
                }
                seen = true;
            }
        }
    }
    store(a, at, sum);
}

INLINE void load(const float *from, float (&x)[1]) {
    x[0] = from[0];
}

INLINE void load(const float *from, float (&x)[VECTOR]) {
#pragma unroll
    for (int i = 0; i < VECTOR; i += 4) {
        const float4 four = *(const float4 *)(from + i);
        x[i] = four.x, x[i + 1] = four.y, x[i + 2] = four.z, x[i + 3] = four.w;
    }
}

/* Likewise of two parts, the first of fp32: the operations, and so the bits, of two fp32 parts. */
template <int WIDTH>
INLINE void add_to_sum(const struct attn_merge_args &a, const float (*weights)[ROWS], int column,
                       long long at) {
    const float weight_sum = weights[0][column], weight = weights[1][column];
    float sum[WIDTH];
    columns<WIDTH> x;
    if (weight_sum != NOT_SEEN) {
        load((const float *)a.o_parts[0] + at, sum);
    }
    if (weight != NOT_SEEN) {
        x = *(const columns<WIDTH> *)((const element *)a.o_parts[1] + at);
    }
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
        sum[i] = weight_sum != NOT_SEEN ? weight_sum * sum[i] : 0.0f;
        if (weight != NOT_SEEN) {
            const float value = to_float(x.at[i]);
            sum[i] = weight_sum != NOT_SEEN ? fmaf(weight, value, sum[i]) : weight * value;
        }
    }
    store(a, at, sum);
}

/* ---- the kernel ------------------------------------------------------------------------------ */

extern "C" __global__ void __launch_bounds__(THREADS)
    ATTN_ENTRY(const __grid_constant__ struct attn_merge_args a) {
    __shared__ float weights[ATTN_MERGE_MOST][ROWS];
    const int rows = THREADS / a.threads_of_row, thread = (int)threadIdx.x;
    const unsigned first = blockIdx.x * (unsigned)rows;
    if (thread < rows && first + thread < a.rows) {
        weigh_parts(a, weights, thread, place_of_row(a, first + thread).lse);
    }
    __syncthreads();
    const int of_cta = thread / a.threads_of_row;
    if (first + of_cta >= a.rows) {
        return;
    }
    const long long o = place_of_row(a, first + of_cta).o;
    const int width = a.vector ? VECTOR : 1;
    const int step = a.threads_of_row * width;
    if (a.running) { /* a loop of its own: in the one below it would cost registers */
        for (int c = thread % a.threads_of_row * width; c < a.columns; c += step) {
            if (a.vector) {
                add_to_sum<VECTOR>(a, weights, of_cta, o + c);
            } else {
                add_to_sum<1>(a, weights, of_cta, o + c);
            }
        }
        return;
    }
    for (int c = thread % a.threads_of_row * width; c < a.columns; c += a.threads_of_row * width) {
        if (a.vector) {
            add_parts<VECTOR>(a, weights, of_cta, o + c);
        } else {
            add_parts<1>(a, weights, of_cta, o + c);
        }
    }
}
