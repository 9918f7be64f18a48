/* SPDX-License-Identifier: Apache-2.0
 *
 * attn_verify.h - the double-precision reference and the one comparison of the project.
 *
 * Host memory only, on the context's CPU threads (also those of a GPU context).
 */
#ifndef ATTN_VERIFY_H
#define ATTN_VERIFY_H

#include "attn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One row of O. Packed: row counts from the start of its sequence. */
typedef struct attn_row {
    int64_t batch, head, row;
} attn_row;

typedef enum attn_precision {
    ATTN_EXACT = 0, /* double precision throughout, from the inputs as they are */
    ATTN_TWIN = 1   /* the same maths as a plain program would do it in the problem's dtype: scores,
                       probabilities and output each rounded to it, sums in fp32 */
} attn_precision;

/* The keys [*begin, *end) that query i of a sequence of q_len queries and kv_len keys sees: the
 * problem's causal and window bounds, as attn.h has them, with tensors.offsets[b] = 0 (to have
 * another, add it to q_offset); of no key *begin = *end = 0. A mask hides keys among them. Nothing
 * but the struct's size is checked: if that is wrong, no key is seen. */
ATTN_API void attn_visible_keys(const attn_problem *problem, int64_t i, int64_t q_len,
                                int64_t kv_len, int64_t *begin, int64_t *end);

/* Spreads `count` rows over the problem, the first and the last among them; the same for the same
 * seed. Lengths in tensors are not known here: some rows may be past a sequence's end (absent). */
ATTN_API attn_status attn_rows_sample(const attn_problem *problem, uint64_t seed, attn_row *rows,
                                      size_t count, attn_error *error);

/* The oracle: a plain, slow, checkable evaluation of the formulas of attn.h. Any number of rows
 * of a problem of any size; nothing of size seq_q x seq_kv exists.
 * rows NULL: all of them, batch-major, count = batch * heads_q * seq_q.
 * o: count x head_dim_v doubles; lse: count doubles, or NULL. tensors->o and ->lse are not used.
 * An absent row (past its sequence's end: packed, used_q) gives O = 0, LSE = -inf.
 * Allocates its scratch; ATTN_OUT_OF_MEMORY if it cannot. */
ATTN_API attn_status attn_reference(const attn_context *context, const attn_problem *problem,
                                    const attn_tensors *tensors, attn_precision precision,
                                    const attn_row *rows, size_t count, double *o, double *lse,
                                    attn_error *error);

/* ---- gradients ------------------------------------------------------------------------------- */

typedef enum attn_gradient {
    ATTN_GRADIENT_Q = 0,
    ATTN_GRADIENT_K = 1,
    ATTN_GRADIENT_V = 2,
    ATTN_GRADIENT_BIAS = 3,
    ATTN_GRADIENT_SINK = 4,
    ATTN_GRADIENT_ALIBI = 5
} attn_gradient;

/* The shape of a gradient: (batch, heads, rows) rows of cols elements. A dimension over which it is
 * summed has size 1, and so has every one but heads of d_sink. Packed: rows of the longest
 * sequence. ATTN_INVALID where the problem has no such gradient. */
ATTN_API attn_status attn_gradient_shape(const attn_problem *problem, attn_gradient which,
                                         attn_row *rows, int64_t *cols, attn_error *error);

/* As attn_rows_sample: `count` rows of that shape. */
ATTN_API attn_status attn_gradient_sample(const attn_problem *problem, attn_gradient which,
                                          uint64_t seed, attn_row *rows, size_t count,
                                          attn_error *error);

/* The oracle of backward: chosen rows of one gradient by the formulas of attn.h, from q, k, v, d_o
 * and the options; O and LSE are computed here. rows NULL: all, batch-major. out: count x cols
 * doubles; an absent row gives 0. Nothing of size seq_q x seq_kv exists, but the LSE and D of every
 * query that a row of dK or dV needs are computed first, which takes as long as attn_reference of
 * the heads involved. ATTN_TWIN rounds scores, P, O, dP, dS and dS' to the problem's dtype and the
 * result to its own, takes P from LSE in fp32, and has sums in fp32, of q.k and dO.v in another
 * order than forward: as two kernels have it. */
ATTN_API attn_status attn_reference_backward(const attn_context *context,
                                             const attn_problem *problem,
                                             const attn_tensors *tensors, attn_gradient which,
                                             attn_precision precision, const attn_row *rows,
                                             size_t count, double *out, attn_error *error);

/* ---- comparison ------------------------------------------------------------------------------ */

/* What a comparison found. Errors are absolute. */
typedef struct attn_comparison {
    size_t size;      /* to be set to sizeof(attn_comparison) by the caller */
    bool pass;        /* all of the rules below */
    bool o_pass;      /* max and mean rule hold and nothing is NaN or infinite that should not be */
    bool lse_pass;    /* true where no LSE was given */
    int64_t elements; /* of O that were compared */
    int64_t nans;     /* NaN in O or LSE, given or expected: any one fails */
    int64_t infs;     /* infinities, given or expected; equal ones pass */
    double max_error, mean_error;     /* |out - exact|; a wrong infinity makes max_error infinite */
    double twin_max, twin_mean;       /* |twin - exact| */
    double max_allowed, mean_allowed; /* the rule's right-hand sides */
    double lse_error;                 /* the largest |lse - exact| over what is allowed */
    attn_row worst;                   /* where max_error (or the first NaN) is */
    int64_t worst_col;
    double worst_out, worst_expected;
} attn_comparison;

/* The one comparison of the project. tensors: o, lse (or NULL), cu_seqlens where packed, and
 * used_q where the problem has it.
 * exact, exact_lse, twin: from attn_reference for the same rows. It passes iff
 *   max |out - exact|  <= 2 max |twin - exact| + 2 max |(exact + 0.3 - 0.3) - exact|
 *   mean |out - exact| <= 1.5 mean |twin - exact| + mean half-ulp of exact
 *   every |lse - exact_lse| <= 1e-5 + 1e-5 |exact_lse| + 2^-21 max |exact_lse|, and -inf exactly
 *   where it is expected
 * with the sum in brackets rounded to the problem's dtype, and 2 instead of 1.5 where fewer than
 * 16 elements are compared. NaN never passes, nor does a comparison of no rows of a problem that
 * has some. Absent rows are skipped. Returns ATTN_OK also when the comparison fails: see
 * result->pass. */
ATTN_API attn_status attn_compare(const attn_problem *problem, const attn_tensors *tensors,
                                  const attn_row *rows, size_t count, const double *exact,
                                  const double *exact_lse, const double *twin,
                                  attn_comparison *result, attn_error *error);

/* attn_reference (both precisions) and attn_compare in one call. Allocates and frees what it
 * needs. */
ATTN_API attn_status attn_verify(const attn_context *context, const attn_problem *problem,
                                 const attn_tensors *tensors, const attn_row *rows, size_t count,
                                 attn_comparison *result, attn_error *error);

/* Likewise of a gradient, with tensors->dq, ... ->d_alibi_slopes as attn_backward left it: the
 * rules for O, in the dtype of that tensor or of the problem, whichever is coarser. Gradients are
 * sums of few errors that may cancel in the twin: where dP = D, in d_sink of one head. So
 * |twin - exact| of an element counts at least as the standard deviation that rounding s, LSE, O,
 * dP, P and dS gives it, and 3 times that with fewer than 64 rows, queries or keys. Absent rows are
 * skipped (those of d_bias after a sequence's end are not absent, but 0). lse_pass is true. */
ATTN_API attn_status attn_verify_backward(const attn_context *context, const attn_problem *problem,
                                          const attn_tensors *tensors, attn_gradient which,
                                          const attn_row *rows, size_t count,
                                          attn_comparison *result, attn_error *error);

/* The comparison in one line; works like snprintf. */
ATTN_API size_t attn_comparison_print(const attn_comparison *comparison, char *buffer, size_t size);

/* The numbers of a comparison that decide. Recorded, they can be judged again without the tensors.
 * This struct does not grow. */
typedef struct attn_statistics {
    double max_error, max_allowed, mean_error, mean_allowed;
    double lse_error; /* over what is allowed; 0 where no LSE was given */
    int64_t nans;
} attn_statistics;

/* Every number is NaN, which attn_judge rejects, for NULL, a wrong size, and a comparison that did
 * not pass though these numbers would (of no rows, or not made yet). */
ATTN_API attn_statistics attn_comparison_statistics(const attn_comparison *comparison);

typedef enum attn_verdict {
    ATTN_REJECT = 0,
    ATTN_ACCEPT = 1,
    ATTN_BORDERLINE = 2 /* not decided: resample and judge again */
} attn_verdict;

#define ATTN_RESAMPLES 5 /* that decide about a borderline case */

/* The one pass rule for random cases. The rule of attn_compare sets the largest error against twice
 * the largest error of the twin. In fp32 both are samples of one distribution, and about one case
 * in a thousand exceeds the limit by chance. Chance does not repeat, so such a case is resampled:
 * the same problem and variant on other random data. `resamples` has `count` of them.
 *
 *   within the rule: max_error <= max_allowed, mean_error <= mean_allowed, lse_error <= 1, no NaN
 *   borderline:      not within it, but dtype is ATTN_FP32, max_error <= 4 max_allowed,
 *                    mean_error <= 4 mean_allowed, lse_error <= 1, no NaN
 *
 * ATTN_ACCEPT: it is within the rule (resamples are not read). Or it is borderline, exactly
 *   ATTN_RESAMPLES resamples are each within the rule or borderline, and either at most one of them
 *   is borderline or their averages are within the rule: the sum of max_error is at most that of
 *   max_allowed, and likewise for the mean.
 * ATTN_BORDERLINE: it is borderline, no resample is worse than that, and there are too few of them.
 * ATTN_REJECT: everything else. A case that failed otherwise (damaged memory, a failed launch) has
 *   NaN for its numbers. NaN, a negative number or an infinite limit is never accepted. */
ATTN_API attn_verdict attn_judge(attn_dtype dtype, const attn_statistics *statistics,
                                 const attn_statistics *resamples, size_t count);

/* ---- dtypes ---------------------------------------------------------------------------------- */

/* n values between fp32 and a dtype (round to nearest even, NaN stays NaN). dst and src may not
 * overlap. To fp8: numbers beyond the largest one, infinities too, saturate to it with their sign,
 * and NaN becomes 0x7f. To write a row x to an fp8 KV cache, convert x / scale. */
ATTN_API void attn_from_float(attn_dtype dtype, void *dst, const float *src, size_t n);
ATTN_API void attn_to_float(attn_dtype dtype, float *dst, const void *src, size_t n);

/* Bytes of one element: 4, 2, 2, 1, 1; 0 for a value outside the enum. */
ATTN_API size_t attn_dtype_size(attn_dtype dtype);

#ifdef __cplusplus
}
#endif

#endif /* ATTN_VERIFY_H */
