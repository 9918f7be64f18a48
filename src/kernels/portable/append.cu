/* SPDX-License-Identifier: Apache-2.0
 *
 * append.cu - new rows of K and V into a KV cache, K and on request Q rotated by RoPE: attn_append.
 *
 * A CTA takes one token, or some of its heads: it looks up the sequence, the position and the page
 * once. A thread moves one slot of a head: 16 bytes, where two rotated columns lie apart (halves)
 * the 16 bytes of both. Rows that do not begin at multiples of 16 bytes, and halves that are no
 * multiple of 16 bytes, are moved one column, or one pair, at a time.
 *
 * Invariant: all that a thread overwrites it has read itself, so that q_out may be q.
 */
#include "common/device.h"

#define AT(field, offset)                                                                          \
    static_assert(__builtin_offsetof(struct attn_append_args, field) == (offset), #field " has "   \
                                                                                         "moved")
AT(q, 0);
AT(q_out, 24);
AT(s_q, 48);
AT(s_v, 168);
AT(rope_cos, 192);
AT(cu_seqlens_q, 216);
AT(used_q, 240);
AT(block_table_stride, 256);
AT(batch, 264);
AT(ctas_of_row, 332);
AT(k_scale, 336);
AT(s_k_scale, 352);
AT(ctas_of_q, 404);
static_assert(sizeof(struct attn_append_args) == 408, "struct attn_append_args has another size");
#undef AT

enum { VECTOR = 16 / sizeof(element) };

/* ---- the row --------------------------------------------------------------------------------- */

/* The sequence of a packed row below cu_seqlens[batch]: the last one that begins at or before it.
 * 32 of its bounds are looked at in one step. All lanes take part. */
INLINE int sequence_of_row(const int *cu_seqlens, int batch, int row) {
    const int lane = (int)threadIdx.x % LANES;
    int low = 0, end = batch;
    while (end - low > 1) {
        const int step = (end - low - 1) / LANES + 1;
        const long long at = low + (long long)lane * step;
        const bool begun = at < end && cu_seqlens[at] <= row;
        const int last = __popc(__ballot_sync(0xffffffffU, begun)) - 1;
        low += last * step;
        end = end - low > step ? low + step : end;
    }
    return low;
}

/* A new row: where it comes from and where it goes, in elements from the first head. */
struct token {
    int position; /* in its sequence; below 0: it is skipped */
    long long q, q_out, k_new, v_new, k, v, k_scale, v_scale;
};

INLINE long long offset_of(const struct attn_gradient_strides &s, long long batch, long long row) {
    return batch * s.batch + row * s.row;
}

INLINE struct token token_of_row(const struct attn_append_args &a, int row) {
    const bool packed = a.cu_seqlens_q != 0;
    struct token t = {-1, 0, 0, 0, 0, 0, 0, 0, 0};
    if (packed && row >= a.cu_seqlens_q[a.batch]) {
        return t; /* of no sequence */
    }
    const int batch = packed ? sequence_of_row(a.cu_seqlens_q, a.batch, row) : row / a.seq_q;
    const int first = packed ? a.cu_seqlens_q[batch] : 0;
    const int rows = a.used_q != 0 ? a.used_q[batch]
                     : packed      ? a.cu_seqlens_q[batch + 1] - first
                                   : a.seq_q;
    const int index = packed ? row - first : row % a.seq_q;
    const int begin = a.cu_seqlens_kv != 0 ? a.cu_seqlens_kv[batch] : 0;
    const int used = a.used_kv != 0         ? a.used_kv[batch]
                     : a.cu_seqlens_kv != 0 ? a.cu_seqlens_kv[batch + 1] - begin
                                            : a.seq_kv;
    t.position = index < rows ? used - rows + index : -1;
    if (t.position < 0) {
        return t;
    }
    DEVICE_ASSERT(used <= a.seq_kv);
    DEVICE_ASSERT(a.rope_half == 0 || t.position < a.rope_rows);
    if (t.position >= a.seq_kv) { /* the cache is full */
        t.position = -1;
        return t;
    }
    const long long entry = packed ? 0 : batch, source = packed ? row : index;
    t.q = offset_of(a.s_q, entry, source);
    t.q_out = offset_of(a.s_q_out, entry, source);
    t.k_new = offset_of(a.s_k_new, entry, source);
    t.v_new = offset_of(a.s_v_new, entry, source);
    long long place = a.cu_seqlens_kv != 0 ? 0 : batch, key = (long long)begin + t.position;
    if (a.block_table != 0) {
        place = a.block_table[batch * a.block_table_stride + t.position / a.page_size];
        key = t.position % a.page_size;
        DEVICE_ASSERT(place >= 0 && place < a.num_pages);
    }
    t.k = offset_of(a.s_k, place, key);
    t.v = offset_of(a.s_v, place, key);
    t.k_scale = offset_of(a.s_k_scale, place, key);
    t.v_scale = offset_of(a.s_v_scale, place, key);
    return t;
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

INLINE element to_element(float x) {
#ifdef ATTN_DTYPE_fp32
    return x;
#else
    return (element)pack(x, 0.0f);
#endif
}

/* Numbers of a table from `index` on. */
template <int COUNT>
INLINE void load_table(float (&to)[COUNT], const struct attn_append_args &a, const void *table,
                       long long index) {
    if (a.rope_fp32) {
        const float *from = (const float *)table + index;
        if (COUNT > 1 && a.rope_pairs) {
#pragma unroll
            for (int i = 0; i + 1 < COUNT; i += 2) {
                const float2 pair = *(const float2 *)(from + i);
                to[i] = pair.x;
                to[i + 1] = pair.y;
            }
            return;
        }
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            to[i] = from[i];
        }
        return;
    }
#ifndef ATTN_DTYPE_fp32
    const element *from = (const element *)table + index;
    if (COUNT > 1 && a.rope_pairs) {
#pragma unroll
        for (int i = 0; i + 1 < COUNT; i += 2) {
            const float2 pair = unpack(*(const unsigned *)(from + i));
            to[i] = pair.x;
            to[i + 1] = pair.y;
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        to[i] = to_float(from[i]);
    }
#endif
}

/* One product is rounded, the other is not: the CPU's bits. */
INLINE void rotate(element &one, element &two, float cos, float sin) {
    const float x = to_float(one), y = to_float(two);
    one = to_element(__fmaf_rn(-y, sin, __fmul_rn(x, cos)));
    two = to_element(__fmaf_rn(x, sin, __fmul_rn(y, cos)));
}

/* The pairs of a vector with two neighbours each; those from rope_half on stay as they are. */
INLINE void rotate_neighbours(struct columns<VECTOR> &x, const struct attn_append_args &a,
                              long long table, int pair) {
    float cos[VECTOR / 2], sin[VECTOR / 2];
    if (pair + VECTOR / 2 <= a.rope_half) {
        load_table(cos, a, a.rope_cos, table + pair);
        load_table(sin, a, a.rope_sin, table + pair);
    } else {
#pragma unroll
        for (int i = 0; i < VECTOR / 2; i++) {
            float one[1] = {1.0f}, other[1] = {0.0f};
            if (pair + i < a.rope_half) {
                load_table(one, a, a.rope_cos, table + pair + i);
                load_table(other, a, a.rope_sin, table + pair + i);
            }
            cos[i] = one[0];
            sin[i] = other[0];
        }
    }
#pragma unroll
    for (int i = 0; i < VECTOR / 2; i++) {
        if (pair + i < a.rope_half) {
            rotate(x.at[2 * i], x.at[2 * i + 1], cos[i], sin[i]);
        }
    }
}

/* A slot of a row of Q or K: columns [column, column + WIDTH), and if they are rotated with others
 * those as well. */
template <int WIDTH>
INLINE void move_rotated(element *to, const element *from, const struct attn_append_args &a,
                         int position, int slot) {
    const long long table = position * a.rope_stride;
    const int half = a.rope_half, pairs = half / WIDTH;
    if (WIDTH == VECTOR && a.interleaved) {
        const int column = slot * WIDTH;
        columns<VECTOR> x = *(const columns<VECTOR> *)(from + column);
        rotate_neighbours(x, a, table, column / 2);
        *(columns<VECTOR> *)(to + column) = x;
        return;
    }
    const int column = slot < pairs ? (a.interleaved ? 2 * slot : slot * WIDTH)
                                    : 2 * half + (slot - pairs) * WIDTH;
    columns<WIDTH> x = *(const columns<WIDTH> *)(from + column);
    if (slot < pairs) {
        const int other = column + (a.interleaved ? 1 : half);
        columns<WIDTH> y = *(const columns<WIDTH> *)(from + other);
        float cos[WIDTH], sin[WIDTH];
        load_table(cos, a, a.rope_cos, table + slot * WIDTH);
        load_table(sin, a, a.rope_sin, table + slot * WIDTH);
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            rotate(x.at[i], y.at[i], cos[i], sin[i]);
        }
        *(columns<WIDTH> *)(to + other) = y;
    }
    *(columns<WIDTH> *)(to + column) = x;
}

/* ---- the kernel ------------------------------------------------------------------------------ */

/* Slots of a token: heads of Q, of K, of V. */
template <int WIDTH>
INLINE void move_slot(const struct attn_append_args &a, const struct token &t, int slot) {
    const int of_q = a.heads_q * a.slots, of_k = a.heads_kv * a.slots;
    if (slot < of_q + of_k) {
        const bool is_q = slot < of_q;
        const long long head = (is_q ? slot : slot - of_q) / a.slots;
        const element *from = is_q ? (const element *)a.q + t.q + head * a.s_q.head
                                   : (const element *)a.k_new + t.k_new + head * a.s_k_new.head;
        element *to = is_q ? (element *)a.q_out + t.q_out + head * a.s_q_out.head
                           : (element *)a.k_cache + t.k + head * a.s_k.head;
        move_rotated<WIDTH>(to, from, a, t.position, (is_q ? slot : slot - of_q) % a.slots);
        return;
    }
    slot -= of_q + of_k;
    const long long head = a.slots_v > 0 ? slot / a.slots_v : a.heads_kv; /* 0: V is in K */
    if (head < a.heads_kv) {
        const int column = slot % a.slots_v * WIDTH;
        const element *from = (const element *)a.v_new + t.v_new + head * a.s_v_new.head;
        element *to = (element *)a.v_cache + t.v + head * a.s_v.head;
        *(columns<WIDTH> *)(to + column) = *(const columns<WIDTH> *)(from + column);
    }
}

#ifndef ATTN_APPEND_FP8
extern "C" __global__ void __launch_bounds__(THREADS)
    ATTN_ENTRY(const __grid_constant__ struct attn_append_args a) {
    const int row = (int)blockIdx.x / a.ctas_of_row, part = (int)blockIdx.x % a.ctas_of_row;
    const struct token t = token_of_row(a, row);
    if (t.position < 0) {
        return;
    }
    const int slot = part * THREADS + (int)threadIdx.x;
    if (a.vector) {
        move_slot<VECTOR>(a, t, slot);
    } else {
        move_slot<1>(a, t, slot);
    }
}
#endif
