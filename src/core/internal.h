/* SPDX-License-Identifier: Apache-2.0
 *
 * internal.h - what the files of libattn share. Nothing here is exported.
 *
 *   core/attn.c          entry points: contexts, forward and backward, pointer checks, status names
 *   core/abi.c           structs of programs that were compiled with another header
 *   core/problem.c       the problem: defaults, its one check, visible keys, FLOPs
 *   core/merge.c         attn_merge, attn_accumulate
 *   core/plan.c          problem -> applicable variants -> choice, refusals, the line
 *   core/tuned.c         the order in which variants are tried
 *   core/variants.c      the table of variants and the clauses that refuse; variant_add.c
 *   core/families.h      what the variants of a GPU family have in common
 *   core/sequence.c      lengths of one sequence, ALiBi slopes; dtype.c fp16, bf16, fp8
 *   cpu/                 the CPU backend (cpu/cpu.h); pool.c its threads
 *   cuda/                the CUDA backend (cuda/cuda.h): plan.c its clauses, maps.c tensor
 *                        maps, driver.c the driver as a table, images.h the kernels compiled in
 *   verify/              reference.c and gradient.c the oracle, compare.c the one comparison,
 *                        judge.c the pass rule
 *
 * Invariant: after the entry points every problem is resolved (no default left in it) and checked.
 */
#ifndef ATTN_CORE_INTERNAL_H
#define ATTN_CORE_INTERNAL_H

#include "attn_inspect.h"
#include "attn_verify.h"

#if defined(__GNUC__)
#define ATTN_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define ATTN_PRINTF(fmt, args)
#endif

/* Writes the sentence (error may be NULL) and returns the status, so that a check is one line. */
attn_status attn_fail(attn_error *error, attn_status status, const char *format, ...)
    ATTN_PRINTF(3, 4);

/* ---- cpu/pool.c ------------------------------------------------------------------------------ */

struct pool;

/* One piece of work. slot < pool_size() is the same for no two tasks running at one time, so it
 * names a piece of scratch memory. */
typedef void pool_task(void *argument, int64_t index, int slot);

/* threads counts the caller; 0 = what affinity and cgroup allow. NULL: no memory. */
struct pool *pool_create(int threads);
void pool_destroy(struct pool *pool);
int pool_size(const struct pool *pool);

/* Runs task(argument, i, slot) for 0 <= i < count, lower i first, and returns when all are done.
 * Any thread may call it; if the workers are busy with another caller's work, this caller does all
 * of its own. Which thread runs an index is not fixed, so a task must not depend on it. */
void pool_run(struct pool *pool, int64_t count, pool_task *task, void *argument);

/* ---- dtype.c -------------------------------------------------------------------------------- */

float half_to_float(uint16_t bits);
uint16_t float_to_half(float value);
float bf16_to_float(uint16_t bits);
uint16_t float_to_bf16(float value);

/* Element `index` of an array of `dtype`. */
float load_element(attn_dtype dtype, const void *base, int64_t index);

/* ---- lengths of one sequence ----------------------------------------------------------------- */

/* Where the rows of batch entry b lie and how many there are: the one place that knows about
 * packing, used_q, used_kv and offsets. Rows of Q, O: q_begin + i; keys: kv_begin + j, paged: by
 * the table. */
struct sequence {
    int64_t q_begin, q_len; /* q_begin in rows, not elements; 0 unless packed */
    int64_t kv_begin, kv_len;
    int64_t off; /* of the formulas: query i is at distance 0 from key i + off */
};

struct sequence sequence_of(const attn_problem *resolved, const attn_tensors *tensors, int64_t b);

/* off without tensors.offsets. */
int64_t diagonal_offset(const attn_problem *resolved, int64_t q_len, int64_t kv_len);

/* Bit t: whether query i sees key s->kv_len - s->q_len + t, as far as its draft mask says. */
enum { DRAFT_KEYS = 64 };
uint64_t draft_bits(const attn_problem *resolved, const attn_tensors *tensors,
                    const struct sequence *s, int64_t b, int64_t i);

/* Whether they hide key j. */
bool draft_hides(const struct sequence *s, uint64_t bits, int64_t j);

/* The keys [begin, end) that query i sees, 0 <= begin <= end <= kv_len; empty is [0, 0). */
struct key_range {
    int64_t begin, end;
};

struct key_range visible_keys(const attn_problem *resolved, const struct sequence *s, int64_t i);

/* The queries [begin, end) that see key j < kv_len; empty is [0, 0). */
struct key_range visible_queries(const attn_problem *resolved, const struct sequence *s, int64_t j);

/* Of all that is about gradients. */
attn_status problem_refuse_gradients(const attn_problem *resolved, attn_error *error);

/* Whether two elements of the bias that differ in a dimension with a stride share an address: then
 * d_bias, which has its strides, has no place for both. */
bool problem_bias_overlaps(const attn_problem *resolved);

/* Whether K and V are fp8, with scales. */
static inline bool problem_is_fp8(const attn_problem *resolved) {
    return resolved->dtype_kv > (int32_t)ATTN_BF16;
}

/* Pages that hold `keys` keys of a sequence. */
static inline int64_t problem_pages(const attn_problem *problem, int64_t keys) {
    return (keys + problem->page_size - 1) / problem->page_size;
}

/* attn_problem_resolve into a struct of the library's own size, which may be uninitialised. */
attn_status problem_resolve(const attn_problem *problem, attn_problem *resolved, attn_error *error);

/* Likewise, for a plan of that direction, with the checks that the direction adds. Append and merge
 * ignore options of the scores, and get a problem without them; merge may have another dtype_o. */
attn_status problem_resolve_for(attn_direction direction, const attn_problem *problem,
                                attn_problem *resolved, attn_error *error);

/* What attn_merge and attn_accumulate give a backend: checked, with rows. */
struct merging {
    const void *const *o_parts;
    const float *const *lse_parts; /* NULL: plain sums, and no lse */
    int32_t count;
    void *o;
    float *lse; /* NULL: not wanted */
    attn_dtype dtype_o;
    bool running; /* two parts, of which the first is fp32 */
};

/* The softcap as kernels have it: at most 2^90 times the scale, since a quotient of the two that is
 * no normal number of fp32 has lost digits. */
float problem_softcap(const attn_problem *resolved);

/* ALiBi's slope of head h of batch entry b. */
float alibi_slope(const attn_problem *resolved, const attn_tensors *tensors, int64_t b, int64_t h);

/* ---- context (attn.c) ---------------------------------------------------------------------- */

struct pool *context_pool(const attn_context *context);

/* ---- attn.c ---------------------------------------------------------------------------------- */

/* The caller's tensors at the library's own size: themselves, or a copy in `room`. NULL and the
 * reason if they are none. */
const attn_tensors *tensors_read(const attn_tensors *tensors, attn_tensors *room,
                                 attn_error *error);

/* What a call does with tensors beside reading q, k, v and the options. */
enum tensors_use {
    TENSORS_INPUTS,   /* nothing */
    TENSORS_GRADIENT, /* reads d_o */
    TENSORS_FORWARD,  /* writes o and lse */
    TENSORS_BACKWARD, /* reads o, lse and d_o, writes gradients */
    TENSORS_APPEND    /* reads k_new, v_new and the tables, not k and v, and q if there is q_out */
};

/* Checks the pointers that such a call needs of a resolved problem; the numbers of cu_seqlens,
 * used_kv and block_table where `host`. */
attn_status tensors_check(const attn_problem *resolved, const attn_tensors *tensors,
                          enum tensors_use use, bool host, attn_error *error);

/* Whether a wanted pointer is not NULL, and is aligned. `name`: the caller's name for it. */
attn_status pointer_check(const char *name, const void *pointer, size_t alignment, bool wanted,
                          attn_error *error);

#endif /* ATTN_CORE_INTERNAL_H */
