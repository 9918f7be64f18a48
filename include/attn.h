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
 * Gradients: a plan with direction = ATTN_BACKWARD, and attn_backward. Serving: ATTN_APPEND and
 * attn_append write new keys into a KV cache, ATTN_MERGE and attn_merge or attn_accumulate merge
 * partial results.
 *
 * Two more headers: attn_inspect.h (devices, variants, images, why a kernel was not chosen) and
 * attn_verify.h (a double-precision reference and the one comparison).
 *
 * Rules for all functions:
 *  - Every function that can fail returns an attn_status and writes one sentence into the caller's
 *    attn_error (which may be NULL): it names the argument, its value and what was expected. After
 *    a failure nothing was written to an output and nothing is leaked.
 *  - The library never prints, exits, aborts or changes signal handlers, and keeps no
 *    process-global state: contexts are independent. (On x86 a plan for AMX requests AMX permission
 *    for the process once; an opened CUDA driver stays loaded.)
 *  - Calls of a plan (attn_forward, attn_backward, attn_append, attn_merge, attn_accumulate)
 *    allocate nothing and never fall back: the plan names the variant that runs.
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

typedef enum attn_dtype {
    ATTN_FP32 = 0,
    ATTN_FP16 = 1,
    ATTN_BF16 = 2,
    ATTN_E4M3 = 3, /* fp8, of K and V only: no infinity, largest 448 (float8_e4m3fn) */
    ATTN_E5M2 = 4  /* likewise: fp16 without its lower 8 bits, largest 57344 */
} attn_dtype;

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

/* Rotary position embedding: which two of the first rope_dim columns are rotated together. */
typedef enum attn_rope {
    ATTN_ROPE_NONE = 0,
    ATTN_ROPE_HALVES = 1,     /* c and c + rope_dim / 2 (GPT-NeoX, Llama in Hugging Face) */
    ATTN_ROPE_INTERLEAVED = 2 /* 2c and 2c + 1 (GPT-J) */
} attn_rope;

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
 *   off = (ATTN_CAUSAL_TOP_LEFT: 0, else seq_kv - seq_q) + q_offset - kv_offset + offsets[b]
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
    int32_t dtype_kv;   /* of K and V: dtype, or an fp8 attn_dtype; -1 = dtype [-1] */
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
    bool used_kv;          /* of sequence b only the first tensors.used_kv[b] keys exist; later keys
                              are never read. seq_kv of the formulas is then that number: a plan
                              for the longest KV cache serves all shorter ones [false] */
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

    /* Steps of a server; the numbers of queries are in the device's memory. */
    bool used_q;              /* of sequence b only the first tensors.used_q[b] query rows exist;
                                 later rows of Q are never used, those of O, LSE and dQ never
                                 written. seq_q of the formulas is then that number [false] */
    bool draft;               /* tensors.draft_mask, a tree of drafts: of a sequence of n <= 64
                                 queries, query i sees key seq_kv - n + t, 0 <= t < n, only if bit t
                                 of its word is set. Forward only [false] */
    bool reserved_serving[6]; /* [false] */

    /* fp8 KV cache, if dtype_kv is ATTN_E4M3 or ATTN_E5M2; forward only. Strides of
     * tensors.k_scale and v_scale in floats, over (batch, KV head, row) as those of k and v (paged:
     * batch is the distance between pages; packed: batch is not used). A stride of 0 broadcasts.
     * All three 0: one scale per tensor; only head not 0: one per KV head; row not 0: one per
     * token. With another dtype_kv all must be 0. The keys and values of the formulas are
     *
     *   k' = round(k * k_scale),  v' = round(v * v_scale)
     *
     * k * k_scale is the product in fp32, rounded to fp32; round() is to `dtype`, nearest even,
     * overflow to infinity. With k' and v' in a cache of `dtype` a kernel of the same family and
     * tile gives the same bits. A scale may be any number: 0, negative, infinite, NaN. Scales of
     * keys that no query sees are not used. */
    attn_strides k_scale, v_scale; /* [0] */

    /* attn_append into an fp8 cache: new rows are rotated and rounded to dtype. Then x / scale is
     * stored as by attn_from_float: to nearest even, saturated. Scales per tensor and per KV head
     * are read. Scales per token (row not 0; no two may share an address) are computed and written:
     * the largest |x| of the row / 448 (ATTN_E5M2: / 57344), or 1 if this is below 2^-126. */

    /* attn_append; other calls ignore these. */
    attn_strides k_new, v_new; /* of the new rows: (batch, heads_kv, seq_q), packed (heads_kv,
                                  total_q). All three strides zero: contiguous in `layout` [0] */
    attn_strides q_out;        /* of the rotated Q. All three zero: those of q [0] */
    attn_rope rope;            /* [ATTN_ROPE_NONE] */
    attn_dtype rope_dtype;     /* of the tables: ATTN_FP32 or dtype [ATTN_FP32] */
    int64_t rope_dim;          /* columns of a row that are rotated, the first ones; even. 0:
                                  head_dim [0] */
    int64_t rope_rows;         /* rows of the tables, one for each position; 0: seq_kv [0] */
    int64_t rope_stride;       /* elements between them; 0: rope_dim / 2 [0] */

    /* A chunk of a longer sequence, for context parallelism: causal masks, windows and ALiBi count
     * from its place. With ATTN_CAUSAL_TOP_LEFT or seq_q = seq_kv, these are the positions of the
     * first query and of the first key. Only their difference matters. ATTN_BACKWARD takes O and
     * LSE of the whole sequence and gives the chunk's part of each gradient (d_sink: the part of
     * the rows that see a key of the chunk). If no query sees a key, attn_problem_flops is 0 and
     * the call can be omitted; one that is made launches no kernel, memsets write its outputs (not
     * with a sink in forward, nor where lengths or offsets are tensors). GPUs: |q_offset -
     * kv_offset| + |offsets[b]| + seq_q + seq_kv below 2^31. */
    int64_t q_offset, kv_offset; /* -2^40 to 2^40 [0] */
    bool offsets;                /* tensors.offsets[b] is added to off of sequence b [false] */

    /* MLA: V is the first head_dim_v columns of K, head_dim_v <= head_dim. Strides v are not used,
     * and tensors.v must be tensors.k. attn_append writes K only. With the same kernel, a V that is
     * stored apart gives the same bits. fp8: v_scale applies to V, k_scale to K. No gradients. */
    bool v_in_k;              /* [false] */
    bool reserved_offsets[6]; /* [false] */
} attn_problem;

/* ATTN_OK, or ATTN_INVALID and the first thing that is wrong with it. ATTN_UNSUPPORTED so far: Q, K
 * and O of different dtypes, except for an fp8 KV cache and attn_merge. Needs no device. */
ATTN_API attn_status attn_problem_check(const attn_problem *problem, attn_error *error);

/* A copy in which every default (-1, NaN, ATTN_AUTO) is replaced by the value it stands for, of
 * the same size. Fails where attn_problem_check fails. `resolved` may be `problem`. */
ATTN_API attn_status attn_problem_resolve(const attn_problem *problem, attn_problem *resolved,
                                          attn_error *error);

/* Floating-point operations of forward: 2 (head_dim + head_dim_v) for each visible (query, key)
 * pair; backward: 2.5 times as many with head_dim_v = head_dim (five GEMMs, not two). Packed,
 * used_q and used_kv problems are counted at their longest; masks and tensors.offsets are not
 * looked at. 0 for a problem that attn_problem_check refuses. This is the only FLOP formula of the
 * project. */
ATTN_API double attn_problem_flops(const attn_problem *problem);

/* ---- plan: which kernel computes it, and what it needs -------------------------------------- */

typedef struct attn_plan attn_plan;

typedef enum attn_direction {
    ATTN_FORWARD = 0,
    ATTN_BACKWARD = 1, /* gradients */
    ATTN_APPEND = 2,   /* attn_append */
    ATTN_MERGE = 3     /* attn_merge, attn_accumulate */
} attn_direction;

typedef struct attn_plan_options {
    size_t size;              /* set by attn_plan_options_init; every other default is zero */
    const char *variant;      /* a name from attn_variant_get (attn_inspect.h); NULL = the best one
                                 that applies */
    attn_direction direction; /* [ATTN_FORWARD] */
    bool deterministic;       /* the same inputs give the same bits. Every kernel does [false] */
    bool batch_invariant;     /* a row's bits depend only on its own query, keys and options, not on
                                 other sequences of the call, its sizes, packing, pages or strides.
                                 So with ATTN_CAUSAL_BOTTOM_RIGHT prefill in one piece, in chunks
                                 and token by token give the same bits on one device. On GPUs this
                                 needs finite K and V of the sequence. Forward only [false] */
    bool reserved[2];         /* [false] */
} attn_plan_options;

/* Chooses a variant and loads it. options may be NULL (defaults). If no variant applies (or the
 * named one does not): ATTN_UNSUPPORTED and the reason. On failure *plan is NULL. The problem is
 * copied. The caller owns *plan; it must not outlive its context. Costs about a microsecond once
 * its variant is loaded, so a program whose sizes change at every call can make a plan for each;
 * with used_kv one plan serves a growing cache. */
ATTN_API attn_status attn_plan_create(attn_context *context, const attn_problem *problem,
                                      const attn_plan_options *options, attn_plan **plan,
                                      attn_error *error);

/* NULL is fine. No call with this plan may be in flight. */
ATTN_API void attn_plan_destroy(attn_plan *plan);

/* Bytes that a call needs in the device's memory (0: none), and their alignment. They may hold
 * anything: no initialisation is needed, and any plans may share them, one call at a time. (After
 * two concurrent calls, which is an error, overwrite them before the next. compute-sanitizer's
 * initcheck reports the reads of counters there; they are intended.) */
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

    const int32_t *used_q;      /* batch numbers */
    const uint64_t *draft_mask; /* a word for each query row: (batch, seq_q), packed (total_q);
                                   words of a sequence of more than 64 queries are not used */

    /* fp8 KV cache; NULL: every scale is 1. attn_append writes scales per token. */
    const float *k_scale, *v_scale;

    /* attn_append only. */
    const void *k_new, *v_new;       /* the new rows */
    void *k_cache, *v_cache;         /* out: the memory of k and v of attn_forward */
    void *q_out;                     /* out: Q, rotated; may be q. NULL: Q is not touched */
    const void *rope_cos, *rope_sin; /* (rope_rows, rope_dim / 2) */

    const int32_t *offsets; /* batch numbers */
} attn_tensors;

/* Computes O (and LSE). No allocation, no synchronisation, no printing; one workspace per call in
 * flight. stream: a CUstream for a GPU (NULL = the legacy default stream), of the CUDA context that
 * was current when the plan was made, if there was one; the CPU backend ignores it and has finished
 * when it returns. Inputs are only read; Q, K, V may share memory with each other, not with O or
 * LSE. The CPU backend also checks cu_seqlens, used_kv, used_q and block_table. */
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
 * elements of an output are written (packed, used_q: those of rows that exist): rows that see no
 * key and keys that no row sees get 0. NaN and Inf propagate from a row of Q, O, LSE and
 * dO to the keys that it sees, and from a key to the rows that see it; through a mask they may
 * propagate. P comes from the LSE, which is fp32: its relative error is about 2^-24 |LSE|. The bits
 * are the same at every call. GPUs: head_dim up to 256; d_bias and d_alibi_slopes take one more
 * launch. A paged or fp8 KV cache is refused. Else as attn_forward; outputs may not share memory
 * with inputs or each other. */
ATTN_API attn_status attn_backward(const attn_plan *plan, const attn_tensors *tensors,
                                   void *workspace, size_t workspace_size, void *stream,
                                   attn_error *error);

/* Writes new rows of K and V into a KV cache; the plan has direction = ATTN_APPEND. The problem and
 * the lengths are those of the attn_forward that follows: one attn_problem, one attn_tensors and
 * one used_kv in device memory serve both calls.
 *
 *   n           = rows of the sequence: seq_q, packed cu_seqlens_q[b + 1] - cu_seqlens_q[b], or
 *                 used_q[b]
 *   position(i) = seq_kv - n + i, with seq_kv of the formulas above: used_kv[b] is the length AFTER
 *                 the append, and query i of a causal attn_forward is at the same position
 *   k_cache[b][position(i)] = rope(k_new[b][i], position(i))
 *   v_cache[b][position(i)] = v_new[b][i]
 *   q_out[b][i]             = rope(q[b][i], position(i))        if q_out is not NULL
 *   rope(x, t)  : each pair (x1, x2) becomes (x1 cos - x2 sin, x2 cos + x1 sin), with row t of the
 *                 tables, in fp32, rounded once. Columns from rope_dim on are copied.
 *
 * Strides, pages and packing of the cache are those of k and v (no two elements at one address).
 * Rows with a position below 0 are skipped, in Q too: used_kv[b] = 0 marks an unused slot of a
 * captured batch. All other rows of the cache keep their bits. Fields about scores (causal, window,
 * bias ...) are ignored. q_out may be q with equal strides; otherwise no output may share memory
 * with an input or another output. Sequences may share pages that none of them appends to.
 * rope_rows must be larger than every position. One launch, no workspace; a captured call reads
 * lengths and table when it runs. The bits do not depend on the device. stream: as attn_forward.
 * The CPU backend checks cu_seqlens, used_kv, used_q and block_table. */
ATTN_API attn_status attn_append(const attn_plan *plan, const attn_tensors *tensors, void *stream,
                                 attn_error *error);

#define ATTN_MERGE_PARTS 32 /* at most, in one call */

/* Merges `count` partial results of the same rows, each over different keys, into one:
 *
 *   m = max_p LSE_p,  O = sum_p exp(LSE_p - LSE) O_p,  LSE = m + ln(sum_p exp(LSE_p - m))
 *
 * The plan has direction = ATTN_MERGE. Its problem has the shape and the strides of O and LSE,
 * which are the same in every part and in the result (batch, heads_q, seq_q, head_dim_v, layout,
 * packed and total_q, o, lse). dtype: of the parts' O; dtype_o: of the result's O, fp32, fp16 or
 * bf16. The problem of the attn_forward that computed the parts can be used. Packed: all total_q
 * rows are merged.
 *
 * Sums are in fp32, in the order of the parts; the bits depend on nothing else. A part with
 * LSE = -inf saw no key: its O may hold anything, NaN too, and is not used. If no part saw a key,
 * O = 0 and LSE = -inf. NaN in any other part propagates. If only one part saw a key, its row is
 * copied, bit by bit where the dtypes are equal. A sink belongs to one part only. lse_parts and
 * lse = NULL: the plain sum O = sum_p O_p, such as that of partial gradients.
 *
 * o_parts, lse_parts: `count` addresses in the device's memory, 1 to ATTN_MERGE_PARTS; the arrays
 * themselves are read on the host, before the call returns. o: out, may be o_parts[0] if dtype_o is
 * dtype. lse: out, or NULL; may be lse_parts[0]. Otherwise outputs share no memory with a part. One
 * launch, no workspace, can be captured. stream: as attn_forward. */
ATTN_API attn_status attn_merge(const attn_plan *plan, const void *const *o_parts,
                                const float *const *lse_parts, int32_t count, void *o, float *lse,
                                void *stream, attn_error *error);

/* Merges one partial result into a running sum (o_sum, lse_sum), for keys that arrive in chunks:
 *
 *   (O_sum, LSE_sum) = attn_merge of (O_sum, LSE_sum) and (O_part, LSE_part)
 *
 * with the plan of an attn_merge of such parts. o_sum: fp32, with the strides of o; in and out.
 * lse_sum: in and out. lse_sum = -inf begins a sum: o_sum may then hold anything, NaN too. The last
 * call writes O as dtype_o into `o`, and o_sum is only read; NULL in the calls before. o may be
 * o_sum if dtype_o is fp32; otherwise no two of the five tensors share memory. lse_part and
 * lse_sum = NULL: O_sum += O_part; attn_merge of one part begins such a sum.
 *
 * An accumulation has the bits of attn_merge of its two parts in fp32. They depend on the order of
 * the calls and nothing else; one attn_merge of all parts rounds less often and differs. Else as
 * attn_merge. */
ATTN_API attn_status attn_accumulate(const attn_plan *plan, const void *o_part,
                                     const float *lse_part, float *o_sum, float *lse_sum, void *o,
                                     void *stream, attn_error *error);

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
