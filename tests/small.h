/* SPDX-License-Identifier: Apache-2.0
 *
 * small.h - a small problem with its tensors in one struct, for tests that work out by hand what
 * the oracle must say. The floats stay readable beside what the library is given, in any dtype.
 *
 * Invariant: one at a time, since small_make() always gives out the same memory, emptied.
 */
#ifndef SMALL_H
#define SMALL_H

#include "attn_verify.h"

enum { SMALL_MOST = 4096, SMALL_HEADS = 64 }; /* elements of one tensor; batch * heads at most */

struct small {
    attn_problem p;
    attn_tensors t; /* all inputs are set; the problem says which of them are used */
    float q[SMALL_MOST], k[SMALL_MOST], v[SMALL_MOST], bias[SMALL_MOST];
    uint8_t mask[SMALL_MOST]; /* small_fill hides a third */
    float slopes[SMALL_HEADS], sink[SMALL_HEADS];
    uint16_t narrow[4][SMALL_MOST]; /* q, k, v, bias in a dtype of 16 bits */
    double o[SMALL_MOST], lse[SMALL_MOST];
    attn_error why;
};

/* On the CPU with its default threads; never closed. */
attn_context *small_context(void);

/* fp32, batch 1, everything 0. */
struct small *small_make(int64_t heads, int64_t seq_q, int64_t seq_kv, int64_t head_dim);

/* head_dim 1, one query, keys with scores 1 and -3. */
struct small *small_two_keys(void);

/* Random inputs, rounded to the problem's dtypes; set those before. */
void small_fill(struct small *small, uint64_t seed);

/* attn_reference into o and lse, of all rows or of some; checks its status. */
bool small_run(struct small *small, attn_precision precision);
bool small_run_rows(struct small *small, attn_precision precision, const attn_row *rows,
                    size_t count);

/* NaN is near nothing, an infinity only to itself. The tolerance is absolute and relative. */
bool near(double a, double b, double tolerance);

#define CHECK_NEAR(a, b) CHECK_MSG(near(a, b, 1e-14), "%s = %.17g, expected %.17g", #a, a, b)

/* x in that dtype, and back. */
float rounded(attn_dtype dtype, float x);

#endif /* SMALL_H */
