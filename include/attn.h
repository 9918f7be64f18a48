/* SPDX-License-Identifier: Apache-2.0
 *
 * attn.h - fused attention for C programs: O = softmax(scale * Q K^T + bias, masked) V
 *
 * The smallest program that uses it:
 *
 *     attn_context *ctx;  attn_plan *plan;  attn_problem p;  attn_tensors t;  attn_error why;
 *     attn_open(NULL, &ctx, &why);                        // the CPU
 *     attn_problem_init(&p);                              // every field gets its default
 *     p.batch = 2;  p.heads_q = 8;  p.seq_q = p.seq_kv = 512;  p.head_dim = 64;
 *     attn_plan_create(ctx, &p, NULL, &plan, &why);       // choose a kernel, learn its workspace
 *     attn_tensors_init(&t);
 *     t.q = q;  t.k = k;  t.v = v;  t.o = o;
 *     size_t size = attn_workspace_size(plan);
 *     void *workspace = malloc(size);                     // on a GPU: device memory
 *     attn_forward(plan, &t, workspace, size, NULL, &why);
 *
 * Gradients: a plan with direction = ATTN_BACKWARD, and attn_backward.
 *
 * Two more headers: attn_inspect.h (devices, variants, images, why a kernel was not chosen) and
 * attn_verify.h (a double-precision reference and the one comparison).
 *
 * Rules for all functions:
 *  - Every function that can fail returns an attn_status and writes one sentence into the caller's
 *    attn_error (which may be NULL): it names the argument, its value and what was expected. After
 *    a failure nothing was written to an output and nothing is leaked.
 *  - The library never prints, exits, aborts or changes signal handlers, and keeps no
 *    process-global state: contexts are independent. (On x86 a bf16 plan
 *    requests AMX permission for the process once; an opened CUDA driver stays loaded.)
 *  - attn_forward and attn_backward allocate nothing and fall back to nothing: the plan said which
 *    variant runs.
 *  - Programs keep running with newer libraries. A struct begins with its size as the program was
 *    compiled, set by its _init function. Structs only grow, and the default of every later field
 *    is zero: a library fills fields that the program does not know with their defaults, and
 *    refuses fields that it does not know only if one of them is not zero.
 *  - Thread safety: a context, a plan and every const pointer may be used by any number of threads
 *    at once. attn_close, attn_plan_destroy and attn_variant_add need exclusive access.
 */
#ifndef ATTN_H
#define ATTN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ATTN_VERSION_MAJOR 0
#define ATTN_VERSION_MINOR 2
#define ATTN_VERSION_PATCH 0
#define ATTN_ABI 1 /* libattn.so.1: changes only if programs would break */

#ifndef ATTN_API
#if defined(__GNUC__)
#define ATTN_API __attribute__((visibility("default")))
#else
#define ATTN_API
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- status and error ---------------------------------------------------------------------- */

typedef enum attn_status {
    ATTN_OK = 0,
    ATTN_INVALID = 1,       /* an argument is wrong, whatever the device */
    ATTN_UNSUPPORTED = 2,   /* legal, but this device, build or variant does not do it */
    ATTN_OUT_OF_MEMORY = 3, /* an allocation failed, of the library or of its driver */
    ATTN_DEVICE = 4         /* the device or its driver reported a failure */
} attn_status;

/* The caller's buffer for one sentence. "" after success. Never grows. */
typedef struct attn_error {
    char text[384];
} attn_error;

/* "ok", "invalid argument", ...; static, never NULL, also for values outside the enum. */
ATTN_API const char *attn_status_name(attn_status status);

/* "0.2.0"; the version of the library that was loaded, not of the header. */
ATTN_API const char *attn_version(void);

/* ---- context: a device, its threads and kernels -------------------------------------------- */

typedef struct attn_context attn_context;

typedef struct attn_options {
    size_t size;        /* set by attn_options_init */
    const char *device; /* "cpu", "cuda" (= "cuda:0") or "cuda:N"; NULL = "cpu" */
    const char *driver; /* path of the CUDA driver; NULL = $ATTN_DRIVER, else libcuda.so.1 */
    int32_t threads;    /* CPU threads including the caller's; 0 = what affinity and cgroup allow.
                           Results are bitwise equal for any number. */
    int32_t reserved;   /* 0 */
} attn_options;

/* Opens a device. options may be NULL (the CPU, defaults). A device that is absent, or that this
 * build cannot drive, is ATTN_UNSUPPORTED with the reason. On failure *context is NULL.
 * The caller owns *context and gives it back with attn_close. */
ATTN_API attn_status attn_open(const attn_options *options, attn_context **context,
                               attn_error *error);

/* Frees the context, its threads and its loaded kernels. NULL is fine. Plans made from it must be
 * destroyed before, and no call may be in flight.
 * After fork() the child may use a CPU context (its threads are restarted); a CUDA context returns
 * ATTN_DEVICE there. */
ATTN_API void attn_close(attn_context *context);

/* ---- problem: what is to be computed ------------------------------------------------------- */

typedef enum attn_dtype { ATTN_FP32 = 0, ATTN_FP16 = 1, ATTN_BF16 = 2 } attn_dtype;

/* Which diagonal "causal" means when seq_q != seq_kv. There is no default meaning: choose. */
typedef enum attn_causal {
    ATTN_CAUSAL_NONE = 0,
    ATTN_CAUSAL_TOP_LEFT = 1,    /* query i sees keys j <= i (PyTorch is_causal) */
    ATTN_CAUSAL_BOTTOM_RIGHT = 2 /* query i sees keys j <= i + seq_kv - seq_q (FlashAttention) */
} attn_causal;

/* The order of dimensions in memory that ATTN_AUTO strides stand for. */
typedef enum attn_layout {
    ATTN_BHSD = 0, /* (batch, heads, seq, dim); packed: (heads, total, dim) */
    ATTN_BSHD = 1  /* (batch, seq, heads, dim); packed: (total, heads, dim) */
} attn_layout;

/* Preference for matrix instructions (GPU tensor cores; BFMMLA, AMX and the like on CPUs). */
typedef enum attn_tensor_cores {
    ATTN_TENSOR_CORES_AUTO = 0,
    ATTN_TENSOR_CORES_NEVER = 1,
    ATTN_TENSOR_CORES_REQUIRE = 2
} attn_tensor_cores;

/* A stride that the library derives from `layout` and the sizes. */
#define ATTN_AUTO INT64_MIN

/* Distances in elements. The last dimension is contiguous. 0 broadcasts an input; in an output no
 * two elements may share an address. Negative strides are refused. */
typedef struct attn_strides {
    int64_t batch, head, row;
} attn_strides;

/* As above, with the distance between keys: 0 everywhere but in `col` is one row for all. */
typedef struct attn_bias_strides {
    int64_t batch, head, row, col;
} attn_bias_strides;

/* The semantics, for query i and key j of one (batch, head), with the sequence's own lengths:
 *
 *   s   = scale * q.k                                     scale NaN: 1/sqrt(head_dim)
 *   s   = softcap * tanh(s / softcap)                     if softcap > 0
 *   s  += -slope[head] * |i + off - j|                    if alibi
 *   s  += bias[i][j]                                      if bias
 *   s   = -inf where mask[i][j] is 0                      if mask
 *   off = seq_kv - seq_q; with ATTN_CAUSAL_TOP_LEFT off = 0
 *   key j is visible  iff  j < seq_kv,  j <= i + off (causal),
 *                          i + off - window_left <= j <= i + off + window_right  (-1 = no bound)
 *   O   = sum_j softmax(s)_j v_j over the visible keys;  LSE = ln(sum_j exp(s_j)), fp32
 *   sink: a logit per head that joins the row max, the row sum and the LSE, not the output
 *
 * A row without a visible key, or with every score -inf, gives O = 0 and LSE = -inf (with a sink:
 * the sink). NaN and Inf in a visible input propagate as IEEE says; in an invisible one they never
 * do. Where the mask is 0, those in K do not propagate; those in V may.
 *
 * Limits: sizes up to 2^31 - 1, head dimensions up to 2^20, batch * heads_q * longer sequence up
 * to 2^48, offsets below 2^58 elements. Values: sums run in fp32, so q.k, scale * q.k, with a
 * scale beyond 2^64 scale * q, and |V| times the number of visible keys, must stay below 3.4e38. A
 * softcap above 2^90 times the scale is taken as that (no effect for |q.k| < 2^78). On GPUs
 * scale * q.k must stay below 2.3e38, and a finite bias or sink beyond 2e38 is taken as 2e38.
 * Kernels on bf16 matrix instructions take bf16 numbers below 1.2e-38 (subnormals) as 0, as those
 * instructions do. */
typedef struct attn_problem {
    size_t size; /* set by attn_problem_init, as is the default in brackets */

    attn_dtype dtype;   /* of Q [ATTN_FP32] */
    int32_t dtype_kv;   /* of K and V, an attn_dtype; -1 = dtype [-1] */
    int32_t dtype_o;    /* of O, likewise [-1] */
    attn_layout layout; /* what ATTN_AUTO strides stand for [ATTN_BHSD] */
    int64_t batch;      /* [1] */
    int64_t heads_q;    /* [1] */
    int64_t heads_kv;   /* divides heads_q; -1 = heads_q [-1] */
    int64_t seq_q;      /* packed: the longest query sequence [1] */
    int64_t seq_kv;     /* packed: the longest key sequence [1] */
    int64_t head_dim;   /* of Q and K, >= 1 [64] */
    int64_t head_dim_v; /* of V and O; -1 = head_dim [-1] */

    attn_strides q, k, v, o, lse; /* [ATTN_AUTO each]; lse is (batch, heads_q, seq_q), packed
                                     (heads_q, total_q), whatever the layout; its rows may have
                                     any stride */

    float scale;          /* finite, or NaN = 1/sqrt(head_dim) [NaN] */
    attn_causal causal;   /* [ATTN_CAUSAL_NONE] */
    int64_t window_left;  /* keys visible before the diagonal, -1 = all [-1] */
    int64_t window_right; /* keys visible after it, -1 = all [-1] */
    float softcap;        /* 0 = none [0] */

    attn_dtype bias_dtype; /* [ATTN_FP32] */
    bool bias;             /* tensors.bias is added to the scores [false] */
    bool mask;             /* tensors.mask hides keys [false] */
    bool alibi;            /* slopes from tensors.alibi_slopes, or the usual ones [false] */
    bool sink;             /* tensors.sink holds heads_q fp32 logits [false] */
    bool packed;           /* sequences of different lengths one after the other in one tensor,
                              bounded by tensors.cu_seqlens_q and cu_seqlens_kv; the batch strides
                              of q, k, v, o and lse are not used, those of bias, mask and slopes
                              are [false] */
    bool used_kv;          /* tensors.used_kv[b] of the keys of sequence b exist; keys
                              after them are never read. seq_kv of the formulas is then that number:
                              a plan for the longest KV cache serves all shorter ones [false] */
    bool reserved[2];      /* [false] */

    attn_bias_strides bias_strides; /* [ATTN_AUTO: contiguous (batch, heads_q, seq_q, seq_kv)] */
    attn_bias_strides mask_strides; /* likewise */
    int64_t alibi_batch_stride;     /* slopes are fp32 (heads_q), or (batch, heads_q) with this
                                       distance between batch entries [0] */
    int64_t total_q;                /* packed: rows of Q and O altogether [0] */
    int64_t total_kv;               /* packed: rows of K and V altogether [0] */

    attn_tensor_cores tensor_cores; /* [ATTN_TENSOR_CORES_AUTO] */
    int32_t alignment;              /* bytes, a power of two: the promised alignment of q, k, v and
                                       o (backward: and of their gradients), which is checked at
                                       every call. One element to 4096 [16] */

    attn_strides dq, dk, dv, d_o; /* backward: of the gradients of q, k, v and o. All three strides
                                     zero: those of q, k, v and o [0] */

    /* Paged KV cache, if page_size > 0; forward only. K and V are pools of num_pages pages with
     * page_size rows each. Key j of sequence b is row j % page_size of page
     * block_table[b][j / page_size]. The batch stride of k and v is the distance between pages;
     * ATTN_AUTO stands for (page, heads, row, dim) with ATTN_BHSD, for (page, row, heads, dim) with
     * ATTN_BSHD. K and V may lie in one allocation, and sequences may share pages. used_kv must be
     * true; packed concerns only Q and O. Of row b of the table only the first
     * ceil(used_kv[b] / page_size) entries are read. Unused rows of a page may hold anything. */
    int64_t page_size;          /* rows of a page; 0: K and V are contiguous [0] */
    int64_t num_pages;          /* of the pool; used entries of the table are below it [0] */
    int64_t block_table_stride; /* entries between the table's rows; 0: ceil(seq_kv / page_size)
                                   [0] */
} attn_problem;

/* ATTN_OK, or ATTN_INVALID and the first thing that is wrong with it (different dtypes of Q, K and
 * O: ATTN_UNSUPPORTED so far). Needs no device. */
ATTN_API attn_status attn_problem_check(const attn_problem *problem, attn_error *error);

/* A copy in which every default (-1, NaN, ATTN_AUTO) is replaced by the value it stands for, of
 * the same size. Fails where attn_problem_check fails. `resolved` may be `problem`. */
ATTN_API attn_status attn_problem_resolve(const attn_problem *problem, attn_problem *resolved,
                                          attn_error *error);

/* Floating-point operations of forward: 2 (head_dim + head_dim_v) for each visible (query, key)
 * pair; backward: 2.5 times as many with head_dim_v = head_dim (five GEMMs, not two). Packed and
 * used_kv problems are counted at their longest; a mask is not looked at. 0 for a problem that
 * attn_problem_check refuses. This is the only FLOP formula of the project. */
ATTN_API double attn_problem_flops(const attn_problem *problem);

/* ---- plan: which kernel computes it, and what it needs -------------------------------------- */

typedef struct attn_plan attn_plan;

typedef enum attn_direction {
    ATTN_FORWARD = 0,
    ATTN_BACKWARD = 1 /* gradients */
} attn_direction;

typedef struct attn_plan_options {
    size_t size;              /* set by attn_plan_options_init; every other default is zero */
    const char *variant;      /* a name from attn_variant_get (attn_inspect.h); NULL = the best one
                                 that applies */
    attn_direction direction; /* [ATTN_FORWARD] */
    bool deterministic;       /* the same inputs give the same bits. Every kernel does [false] */
    bool batch_invariant;     /* a row's bits do not depend on the other sequences of the call.
                                 ATTN_UNSUPPORTED so far [false] */
    bool reserved[2];         /* [false] */
} attn_plan_options;

/* Chooses a variant and loads it. options may be NULL (defaults). If no variant applies (or the
 * named one does not): ATTN_UNSUPPORTED and the reason. On failure *plan is NULL. The problem is
 * copied. The caller owns *plan; it must not outlive its context. Costs about a microsecond once
 * its variant is loaded, so that a program whose sizes change at every call makes a plan for each;
 * used_kv serves a growing cache with one plan. */
ATTN_API attn_status attn_plan_create(attn_context *context, const attn_problem *problem,
                                      const attn_plan_options *options, attn_plan **plan,
                                      attn_error *error);

/* NULL is fine. No call with this plan may be in flight. */
ATTN_API void attn_plan_destroy(attn_plan *plan);

/* Bytes that a call needs in the device's memory (0: none), and their alignment. They may
 * hold anything: no initialisation is needed, and any plans may share them, one call at a time.
 * (After two concurrent calls, which is an error, overwrite them before the next.)
 * (compute-sanitizer's initcheck reports the reads of counters there; they are intended.) */
ATTN_API size_t attn_workspace_size(const attn_plan *plan);
ATTN_API size_t attn_workspace_alignment(const attn_plan *plan);

/* Addresses in the device's memory (cpu: the host's). A tensor that the problem does not use is
 * ignored; one that it uses must not be NULL unless it is empty. */
typedef struct attn_tensors {
    size_t size; /* set by attn_tensors_init, which makes every pointer NULL */
    const void *q, *k, *v;
    void *o;
    float *lse; /* NULL: no LSE */
    const void *bias;
    const uint8_t *mask;       /* 0: hidden; else visible */
    const float *alibi_slopes; /* NULL: slope of head h = 2^(-8 (h+1) / heads_q) */
    const float *sink;
    const int32_t *cu_seqlens_q;  /* batch + 1 numbers, from 0 upwards: rows [b], [b+1) are b's */
    const int32_t *cu_seqlens_kv; /* likewise for K and V, unless they are paged */
    const int32_t *used_kv;       /* batch numbers */

    /* Backward only. o and lse are inputs there. */
    const void *d_o;       /* dL/dO, shape and dtype of O */
    void *dq, *dk, *dv;    /* out: shapes and dtype of Q, K and V */
    void *d_bias;          /* out, or NULL: dL/dbias with the dtype and strides of the bias, summed
                              over the dimensions whose stride is 0 */
    float *d_sink;         /* out, or NULL: heads_q */
    float *d_alibi_slopes; /* out, or NULL: as alibi_slopes, with alibi_batch_stride (0: summed over
                              the batch) */

    const int32_t *block_table; /* page_size > 0: (batch, block_table_stride) page numbers */
} attn_tensors;

/* Computes O (and LSE). No allocation, no synchronisation, no printing; one workspace per call in
 * flight. stream: a CUstream for a GPU (NULL = the legacy default stream), of the CUDA context that
 * was current when the plan was made, if there was one; the CPU backend ignores it and has finished
 * when it returns. Inputs are only read; Q, K, V may share memory with each
 * other, not with O or LSE. The CPU backend also checks cu_seqlens, used_kv and block_table. */
ATTN_API attn_status attn_forward(const attn_plan *plan, const attn_tensors *tensors,
                                  void *workspace, size_t workspace_size, void *stream,
                                  attn_error *error);

/* Computes dQ, dK, dV, and on request d_bias, d_sink, d_alibi_slopes, of a plan with
 * direction = ATTN_BACKWARD:
 *
 *   P  = exp(s - LSE), 0 for keys that are not visible
 *   dP = dO V^T,  D = rowsum(dO * O),  dS = P * (dP - D)
 *   dV = P^T dO,  dQ = scale * dS' K,  dK = scale * dS'^T Q,  dS' = dS * (1 - tanh^2) with softcap
 *   d_bias = dS,  d_slope[h] = -sum |i + off - j| dS,  d_sink[h] = -sum over rows of
 *   exp(sink - LSE) * D
 *
 * from o and lse as attn_forward left them. dK and dV of a KV head are sums over its group. All
 * elements of an output are written (packed: those of rows that belong to a sequence): rows that
 * see nothing and keys that nothing sees get 0. NaN and Inf propagate from a row of Q, O, LSE and
 * dO to the keys that it sees, and from a key to the rows that see it; through a mask they may
 * propagate. P comes from the LSE, which is fp32: its relative error is about 2^-24 |LSE|. The bits
 * are the same at every call. GPUs: head_dim up to 256, in fp32 up to 128; d_bias and
 * d_alibi_slopes take one more launch. A paged KV cache is refused. Else as attn_forward; outputs
 * may not share memory with inputs or each other. */
ATTN_API attn_status attn_backward(const attn_plan *plan, const attn_tensors *tensors,
                                   void *workspace, size_t workspace_size, void *stream,
                                   attn_error *error);

/* ---- defaults ------------------------------------------------------------------------------ */

/* Fill `size` bytes with the defaults. Call the inline functions below: they pass on the size that
 * the struct has in the calling program. NULL is fine. */
ATTN_API void attn_options_init_sized(attn_options *options, size_t size);
ATTN_API void attn_problem_init_sized(attn_problem *problem, size_t size);
ATTN_API void attn_plan_options_init_sized(attn_plan_options *options, size_t size);
ATTN_API void attn_tensors_init_sized(attn_tensors *tensors, size_t size);

static inline void attn_options_init(attn_options *options) {
    attn_options_init_sized(options, sizeof *options);
}

static inline void attn_problem_init(attn_problem *problem) {
    attn_problem_init_sized(problem, sizeof *problem);
}

static inline void attn_plan_options_init(attn_plan_options *options) {
    attn_plan_options_init_sized(options, sizeof *options);
}

static inline void attn_tensors_init(attn_tensors *tensors) {
    attn_tensors_init_sized(tensors, sizeof *tensors);
}

#ifdef __cplusplus
}
#endif

#endif /* ATTN_H */
