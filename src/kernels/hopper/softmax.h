/* SPDX-License-Identifier: Apache-2.0
 *
 * softmax.h - the softmax of a warpgroup's 64 rows in every Hopper kernel, a tile of keys at
 * a time.
 *
 * No running maximum: a row's reference is the maximum of the first tile of which it sees a key, or
 * of the first two; exponentials of later tiles are taken against it at once, and take the place of
 * their scores. Where a lane's sum shows that 16 bits were too few, they and all that came before
 * are multiplied by a factor: in a wide row of thousands of keys that happens now and then, so it
 * is kept cheap. A tile whose sum is 2^125 or more may have left fp32, and its scores are gone;
 * thousands of bits from 0, factor and reference no longer agree. Then the row becomes NaN, and its
 * tile of rows is computed once more, carefully: with a running maximum.
 *
 * The largest exponential of a row is 2 to the rounding error of its reference, since product and
 * subtraction are fused. All of a row share that factor, so that O does not show it, until P leaves
 * the range of 16 bits. Beyond LARGEST_REFERENCE normalise_rows (hopper.h) makes such rows NaN, and
 * common/repair.h computes them.
 *
 * Invariant: a row's sum and O are what they would be against its reference (to the rounding of a
 * reference in fp32), or NaN; after careful tiles alone, NaN only if an input or a sum of V is not
 * finite, or the reference is beyond LARGEST_REFERENCE.
 */
#ifndef ATTN_KERNELS_HOPPER_SOFTMAX_H
#define ATTN_KERNELS_HOPPER_SOFTMAX_H

#include "common/repair.h"

enum {
    SCORES = ATTN_BN / 2, /* of a thread: score i is of its row i / 2 % 2 */
    PAIRS = ATTN_BN / 4   /* of probabilities: pair i is of row i % 2 */
};

/* Of the two rows of a thread. */
struct row_state {
    float reference[2], sum[2], factor[2];
};

INLINE struct row_state unseen_rows(void) {
    return {{NO_REFERENCE, NO_REFERENCE}, {0.0f, 0.0f}, {1.0f, 1.0f}};
}

/* ---- references ------------------------------------------------------------------------------ */

/* A lane's sum of exponentials below it leaves P and O without overflow. bf16 could go further, but
 * has 8 bits: a key that outweighs all others should have a weight of 1, not a rounded one. */
#ifdef ATTN_DTYPE_fp16
#define LIFT_LIMIT 65504.0f
#else
#define LIFT_LIMIT 0x1p22f
#endif

/* A tile's sum from which on it is not safe that its exponentials and 1 over it are normal numbers;
 * FAR_REFERENCE: one whose rounding may be 2^-12 bits. */
#define LOST_SUM 0x1p125f

/* Its rounding error is half a bit: P is within a factor of 2 of what it should be. */
#define LARGEST_REFERENCE 0x1p23f

/* Of a row's scores in this tile. */
template <int row> INLINE float maximum_of_row(const float (&s)[SCORES]) {
    float even = s[2 * row], odd = s[2 * row + 1];
#pragma unroll
    for (int i = row + 2; i < PAIRS; i += 2) {
        even = fmaxf(even, s[2 * i]);
        odd = fmaxf(odd, s[2 * i + 1]);
    }
    float maximum = fmaxf(even, odd);
    maximum = fmaxf(maximum, __shfl_xor_sync(~0U, maximum, 1));
    return fmaxf(maximum, __shfl_xor_sync(~0U, maximum, 2));
}

/* The largest score is the largest product: scales are positive. */
template <int row>
INLINE void raise_to_maximum(const float (&s)[SCORES], float scale, struct row_state &state) {
    const float before = state.reference[row];
    state.reference[row] = fmaxf(before, maximum_of_row<row>(s) * scale);
    state.factor[row] = exp2_fast(before - state.reference[row]);
    state.sum[row] *= state.factor[row];
}

/* A running maximum. */
INLINE void raise_rows(const float (&s)[SCORES], float scale, struct row_state &state) {
    raise_to_maximum<0>(s, scale, state);
    raise_to_maximum<1>(s, scale, state);
}

/* ---- exponentials ---------------------------------------------------------------------------- */

/* Scores become exponentials; P and the sums of this thread. */
INLINE void exponentiate(unsigned (&p)[PAIRS], float (&sum)[2], float (&s)[SCORES], float scale,
                         const float (&reference)[2]) {
    float parts[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        const float origin = -reference[i % 2];
        s[2 * i] = exp2_fast(fmaf(s[2 * i], scale, origin));
        s[2 * i + 1] = exp2_fast(fmaf(s[2 * i + 1], scale, origin));
        parts[i % 2 * 2] += s[2 * i];
        parts[i % 2 * 2 + 1] += s[2 * i + 1];
        p[i] = pack(s[2 * i], s[2 * i + 1]);
    }
    sum[0] = parts[0] + parts[1];
    sum[1] = parts[2] + parts[3];
}

/* Of the four lanes that share a row. */
INLINE float sum_of_row(float x) {
    x += __shfl_xor_sync(~0U, x, 1);
    return x + __shfl_xor_sync(~0U, x, 2);
}

/* A row's reference rises until the sum of this tile is 1, and what was taken against the old one
 * follows. A key that outweighs all others gets a weight of 1, not one that is rounded. */
template <int row>
INLINE void lift(unsigned (&p)[PAIRS], float (&added)[2], const float (&exponentials)[SCORES],
                 float sum, struct row_state &state) {
    const float top = fmaxf(sum, 1.0f);
    const float factor = reciprocal_fast(top);
    state.reference[row] += log2_fast(top);
    state.factor[row] = factor;
    state.sum[row] *= factor;
    const bool safe = top < LOST_SUM && fabsf(state.reference[row]) < FAR_REFERENCE;
    added[row] = safe ? added[row] * factor : NOT_A_NUMBER;
#pragma unroll
    for (int i = row; i < PAIRS; i += 2) {
        p[i] = pack(exponentials[2 * i] * factor, exponentials[2 * i + 1] * factor);
    }
}

/* ---- a tile ---------------------------------------------------------------------------------- */

/* The rows of a thread, as bits. */
enum { FIRST_ROW = 1, SECOND_ROW = 2, BOTH_ROWS = 3 };

/* P, sums and references of a tile; a row that sees a key of it has a reference (but where all its
 * scores so far were -inf: then it becomes NaN). Returns the rows for which O has to be multiplied
 * by the factors; the same in all lanes. */
INLINE unsigned softmax(unsigned (&p)[PAIRS], float (&s)[SCORES], float scale,
                        struct row_state &state) {
    float added[2];
    exponentiate(p, added, s, scale, state.reference);
    const unsigned raised = (__any_sync(~0U, !(added[0] < LIFT_LIMIT)) ? FIRST_ROW : 0U) |
                            (__any_sync(~0U, !(added[1] < LIFT_LIMIT)) ? SECOND_ROW : 0U);
    if (raised != 0) {
        const float first = sum_of_row(added[0]), second = sum_of_row(added[1]);
        if (raised & FIRST_ROW) {
            lift<0>(p, added, s, first, state);
        }
        if (raised & SECOND_ROW) {
            lift<1>(p, added, s, second, state);
        }
    }
    state.sum[0] += added[0];
    state.sum[1] += added[1];
    return raised;
}

/* The same for rows that may have no reference yet, or scores that may lie anywhere. */
INLINE unsigned softmax_careful(unsigned (&p)[PAIRS], float (&s)[SCORES], float scale,
                                struct row_state &state) {
    float added[2];
    raise_rows(s, scale, state);
    exponentiate(p, added, s, scale, state.reference);
    state.sum[0] += added[0];
    state.sum[1] += added[1];
    return BOTH_ROWS;
}

/* The first tile. */
INLINE void softmax_first(unsigned (&p)[PAIRS], float (&s)[SCORES], float scale,
                          struct row_state &state) {
    raise_rows(s, scale, state);
    exponentiate(p, state.sum, s, scale, state.reference);
}

#endif /* ATTN_KERNELS_HOPPER_SOFTMAX_H */
