/* SPDX-License-Identifier: Apache-2.0
 *
 * merge.cu - partial results (O, LSE) of the same rows into one (attn_merge), or one of them into a
 * running sum (attn_accumulate).
 *
 * Bandwidth-bound. A thread issues all its loads of O first: 16 bytes of each of 8 parts of a row,
 * or of fewer parts of more rows. Meanwhile one thread of each row turns the LSEs of all parts into
 * weights, in shared memory. After a barrier the columns are added up in the order of the parts. O
 * of a part that saw no key is loaded, but not used.
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

enum { VECTOR = 16 / sizeof(element), LOADS = 8 /* of a thread, of 16 bytes */ };
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

/* The weights of a row's parts, `stride` apart; LSE. */
template <int PARTS>
INLINE void weigh_parts(const struct attn_merge_args &a, float *weights, int stride, long long at) {
    if (a.lse_parts[0] == 0) { /* a plain sum */
#pragma unroll 1
        for (int p = 0; p < a.count; p++) {
            weights[p * stride] = 1.0f;
        }
        return;
    }
    float m = MINUS_INFINITY, l = 0.0f;
#pragma unroll 1
    for (int first = 0; first < a.count; first += PARTS) {
        float lse[PARTS];
#pragma unroll
        for (int p = 0; p < PARTS; p++) {
            lse[p] = first + p < a.count ? a.lse_parts[first + p][at] : MINUS_INFINITY;
        }
#pragma unroll
        for (int p = 0; p < PARTS; p++) {
            if (first + p < a.count) {
                weights[(first + p) * stride] = lse[p];
                m = fmaxf(m, lse[p]); /* NaN comes back below */
            }
        }
    }
#pragma unroll 2
    for (int p = 0; p < a.count; p++) {
        const float lse = weights[p * stride];
        const float weight = lse == MINUS_INFINITY ? NOT_SEEN : exp2_fast((lse - m) * LOG2_E);
        weights[p * stride] = weight;
        l += lse == MINUS_INFINITY ? 0.0f : weight;
    }
    const float inverse = 1.0f / l;
#pragma unroll 2
    for (int p = 0; p < a.count; p++) {
        const float weight = weights[p * stride];
        weights[p * stride] = weight == NOT_SEEN ? NOT_SEEN : weight * inverse;
    }
    if (a.lse != 0) {
        /* one part alone keeps its LSE */
        a.lse[at] = l == 0.0f ? MINUS_INFINITY : l == 1.0f ? m : fmaf(log2_fast(l), LN_2, m);
    }
}

/* ---- columns --------------------------------------------------------------------------------- */

#ifdef ATTN_DTYPE_fp32
typedef unsigned bits; /* of an element */
#else
typedef unsigned short bits;
#endif
typedef unsigned fp32_bits;

/* Of a part, as they were loaded: unpacked elements would take twice the registers. */
template <typename T, int WIDTH> struct alignas(16) columns { unsigned at[WIDTH * sizeof(T) / 4]; };

template <typename T> struct columns<T, 1> { T at[1]; };

template <typename T, int WIDTH> INLINE float value(const columns<T, WIDTH> &x, int i) {
#ifndef ATTN_DTYPE_fp32
    if (sizeof(T) == 2) {
        const float2 pair = unpack(x.at[i / 2]);
        return i % 2 == 0 ? pair.x : pair.y;
    }
#endif
    return __uint_as_float(x.at[i]);
}

/* FIRST: of the first part. */
template <typename FIRST, int WIDTH, int PARTS> struct parts {
    columns<FIRST, WIDTH> first;
    columns<bits, WIDTH> rest[PARTS - 1];
};

/* Parts from part `from` on. */
template <typename FIRST, int WIDTH, int PARTS>
INLINE void load(const struct attn_merge_args &a, int from, long long at,
                 struct parts<FIRST, WIDTH, PARTS> &x) {
    x.first = *(const columns<FIRST, WIDTH> *)((const FIRST *)a.o_parts[from] + at);
#pragma unroll
    for (int p = 1; p < PARTS; p++) {
        if (from + p < a.count) {
            x.rest[p - 1] = *(const columns<bits, WIDTH> *)((const bits *)a.o_parts[from + p] + at);
        }
    }
}

/* Else the compiler unpacks before the barrier, into twice the registers. */
template <typename FIRST, int WIDTH, int PARTS>
INLINE void hold(struct parts<FIRST, WIDTH, PARTS> &x) {
#pragma unroll
    for (int i = 0; WIDTH > 1 && i < (int)sizeof(x) / 4; i++) {
        asm volatile("" : "+r"(((unsigned *)&x)[i]));
    }
}

template <typename T, int WIDTH>
INLINE void add(float weight, const columns<T, WIDTH> &x, float (&sum)[WIDTH], bool &seen) {
    if (weight != NOT_SEEN) {
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            sum[i] = fmaf(weight, value(x, i), sum[i]);
        }
        seen = true;
    }
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

/* ---- the kernel ------------------------------------------------------------------------------ */

/* PARTS parts of ROWS rows at one time; if these are several rows, all their parts and columns. */
template <typename FIRST, int WIDTH, int PARTS, int ROWS>
INLINE void merge_rows(const struct attn_merge_args &a, float *weights) {
    enum { WHOLE = ROWS > 1 };
    const int shift = 31 - __clz(a.threads_of_row), thread = (int)threadIdx.x;
    const int rows = THREADS >> shift, of_cta = thread >> shift;
    const int step = WIDTH << shift, begin = thread * WIDTH & (step - 1);
    const unsigned first = blockIdx.x * (unsigned)(rows * ROWS);
    struct parts<FIRST, WIDTH, PARTS> x[ROWS];
    long long o[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const unsigned row = first + of_cta + r * rows;
        o[r] = place_of_row(a, row).o;
        if (row < a.rows && begin < a.columns) {
            load(a, 0, o[r] + begin, x[r]);
        }
    }
    if (thread < rows * ROWS && first + thread < a.rows) {
        weigh_parts<PARTS>(a, weights + thread, rows * ROWS, place_of_row(a, first + thread).lse);
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        hold(x[r]);
    }
    for (int c = begin; c < a.columns; c = WHOLE ? a.columns : c + step) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int row = of_cta + r * rows;
            if (first + row >= a.rows) {
                break;
            }
            float sum[WIDTH];
            bool seen = false;
#pragma unroll
            for (int i = 0; i < WIDTH; i++) {
                sum[i] = -0.0f; /* not 0: -0 alone stays -0 */
            }
            for (int from = 0; from < (WHOLE ? 1 : a.count); from += PARTS) {
                if (!WHOLE && (c > begin || from > 0)) {
                    load(a, from, o[r] + c, x[r]);
                }
                add(weights[from * rows * ROWS + row], x[r].first, sum, seen);
#pragma unroll
                for (int p = 1; p < PARTS; p++) {
                    if (from + p < a.count) {
                        add(weights[(from + p) * rows * ROWS + row], x[r].rest[p - 1], sum, seen);
                    }
                }
            }
#pragma unroll
            for (int i = 0; i < WIDTH; i++) {
                sum[i] = seen ? sum[i] : 0.0f;
            }
            store(a, o[r] + c, sum);
        }
    }
}

static_assert(sizeof(element) > 2 || VECTOR * THREADS >= ATTN_D, "a running sum's row is one pass");

/* 7 CTAs of an SM have 112 KB of loads in flight. */
extern "C" __global__ void __launch_bounds__(THREADS, 896 / THREADS)
    ATTN_ENTRY(const __grid_constant__ struct attn_merge_args a) {
    /* of several rows of a thread at most LOADS / rows parts */
    __shared__ float weights[ATTN_MERGE_MOST * THREADS / ATTN_MERGE_THREADS];
    const unsigned rows = gridDim.x * (THREADS / a.threads_of_row); /* if a thread has one */
    if (sizeof(element) == 2 && a.running) {
        if (a.vector) {
            merge_rows<fp32_bits, VECTOR, 2, 2>(a, weights);
        } else {
            merge_rows<fp32_bits, 1, 2, 1>(a, weights);
        }
    } else if (!a.vector) {
        merge_rows<bits, 1, LOADS, 1>(a, weights);
    } else if (a.rows <= rows) {
        merge_rows<bits, VECTOR, LOADS, 1>(a, weights);
    } else if (a.rows <= 2 * rows) {
        merge_rows<bits, VECTOR, LOADS / 2, 2>(a, weights);
    } else {
        merge_rows<bits, VECTOR, LOADS / 4, 4>(a, weights);
    }
}
