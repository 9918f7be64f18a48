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
 *     void *workspace = malloc(size);                     // on a GPU: the device's memory
 *     attn_forward(plan, &t, workspace, size, NULL, &why);
 *
 * Three parts: USE IT (context, problem, plan, forward), LOOK INSIDE (variants, refusals, devices)
 * and PROVE IT (a double-precision reference and the one comparison).
 *
 * What holds everywhere:
 *  - Every function that can fail returns an attn_status and writes one sentence into the caller's
 *    attn_error (which may be NULL): it names the argument, its value and what was expected. After
 *    a failure nothing was written to an output and nothing is leaked.
 *  - The library never prints, exits, aborts or changes signal handlers, and keeps no
 *    process-global state: two contexts know nothing of each other. (On x86 a plan for bf16 asks
 *    the system once for the process's permission to use AMX; a CUDA driver, once opened, stays.)
 *  - attn_forward allocates nothing and falls back to nothing: the plan said which variant runs.
 *  - Structs begin with their size, set by their _init function, so that they can grow without
 *    breaking programs. Zero is a legal value of every other field, never "default".
 *  - Thread-safety: a context, a plan and every const pointer may be used by any number of threads
 *    at once. attn_close, attn_plan_destroy and attn_variant_add want the object to themselves.
 */
#ifndef ATTN_H
#define ATTN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ATTN_VERSION_MAJOR 0
#define ATTN_VERSION_MINOR 1
#define ATTN_VERSION_PATCH 0

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

/* ============================================================================================ *
 *  1. USE IT
 * ============================================================================================ */

/* ---- status and error ---------------------------------------------------------------------- */

typedef enum attn_status {
    ATTN_OK = 0,
    ATTN_INVALID = 1,       /* an argument is wrong, whatever the device */
    ATTN_UNSUPPORTED = 2,   /* legal, but this device, build or variant does not do it */
    ATTN_OUT_OF_MEMORY = 3, /* an allocation failed, of the library or of its driver */
    ATTN_DEVICE = 4         /* the device or its driver reported a failure */
} attn_status;

/* The caller's buffer for one sentence. "" after success. */
typedef struct attn_error {
    char text[384];
} attn_error;

/* "ok", "invalid argument", ...; static, never NULL, also for values outside the enum. */
ATTN_API const char *attn_status_name(attn_status status);

/* "0.1.0"; the version of the library that was loaded, not of the header. */
ATTN_API const char *attn_version(void);

/* ---- context: a device and what belongs to it ---------------------------------------------- */

typedef struct attn_context attn_context;

typedef struct attn_options {
    size_t size;        /* set by attn_options_init */
    const char *device; /* "cpu", "cuda" (= "cuda:0") or "cuda:N"; NULL = "cpu" */
    const char *driver; /* path of the CUDA driver; NULL = $ATTN_DRIVER, else libcuda.so.1 */
    int32_t threads;    /* CPU threads including the caller's; 0 = what affinity and cgroup allow.
                           Results are bitwise equal for any number. */
} attn_options;

ATTN_API void attn_options_init(attn_options *options);

/* Opens a device. options may be NULL (the CPU, defaults). A device that is absent, or that this
 * build cannot drive, is ATTN_UNSUPPORTED with the reason. On failure *context is NULL.
 * The caller owns *context and gives it back with attn_close. */
ATTN_API attn_status attn_open(const attn_options *options, attn_context **context,
                               attn_error *error);

/* Frees the context, its threads and its loaded kernels. NULL is fine. Plans made from it must be
 * destroyed before, and no call may be in flight.
 * After fork() the child may go on using a CPU context (its threads are started anew); a CUDA
 * context answers ATTN_DEVICE there. */
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

/* A wish about matrix instructions (GPU tensor cores; BFMMLA and the like on CPUs). */
typedef enum attn_tensor_cores {
    ATTN_TENSOR_CORES_AUTO = 0,
    ATTN_TENSOR_CORES_NEVER = 1,
    ATTN_TENSOR_CORES_REQUIRE = 2
} attn_tensor_cores;

/* A stride that the library works out from `layout` and the sizes. */
#define ATTN_AUTO INT64_MIN

/* Distances in elements between neighbours. The last dimension is contiguous. 0 broadcasts an
 * input; in an output no two elements may share a place. Negative strides are refused. */
typedef struct attn_strides {
    int64_t batch, head, row;
} attn_strides;

/* As above, with the distance between keys: 0 everywhere but in `col` is one bias row for all. */
typedef struct attn_bias_strides {
    int64_t batch, head, row, col;
} attn_bias_strides;

/* The semantics, for query i and key j of one (batch, head), with the sequence's own lengths:
 *
 *   s   = scale * q.k                                     scale NaN: 1/sqrt(head_dim)
 *   s   = softcap * tanh(s / softcap)                     if softcap > 0
 *   s  += -slope[head] * |i + off - j|                    if alibi
 *   s  += bias[i][j]                                      if bias
 *   off = seq_kv - seq_q; with ATTN_CAUSAL_TOP_LEFT off = 0
 *   key j is visible  iff  j < seq_kv,  j <= i + off (causal),
 *                          i + off - window_left <= j <= i + off + window_right  (-1 = no bound)
 *   O   = sum_j softmax(s)_j v_j over the visible keys;  LSE = ln(sum_j exp(s_j)), fp32
 *   sink: a logit per head that joins the maximum, the denominator and the LSE, not the output
 *
 * A row in which nothing remains (no visible key, or every score -inf) gives O = 0 and
 * LSE = -inf (with a sink: the sink). NaN and Inf in a visible input propagate as IEEE says; in an
 * invisible one they never show. Offsets are 64-bit throughout.
 *
 * Limits: sizes up to 2^31 - 1, head dimensions up to 2^20, batch * heads_q * longer sequence up
 * to 2^48, offsets below 2^58 elements. Values: sums run in fp32, so q.k, scale * q.k, with a
 * scale beyond 2^64 scale * q, and |V| times the number of visible keys, must stay below 3.4e38; a
 * softcap of more than 2^90 times the scale counts as that, which bends no q.k below 2^78; on GPUs
 * a finite bias or sink beyond 2e38 counts as 2e38. Kernels on bf16 matrix instructions take bf16
 * numbers below 1.2e-38 (subnormals) as 0, as those instructions do. */
typedef struct attn_problem {
    size_t size; /* set by attn_problem_init, as is the default in brackets */

    attn_dtype dtype;   /* of Q, K, V and O [ATTN_FP32] */
    int64_t batch;      /* [1] */
    int64_t heads_q;    /* [1] */
    int64_t heads_kv;   /* divides heads_q; -1 = heads_q [-1] */
    int64_t seq_q;      /* packed: the longest query sequence [1] */
    int64_t seq_kv;     /* packed: the longest key sequence [1] */
    int64_t head_dim;   /* of Q and K, >= 1 [64] */
    int64_t head_dim_v; /* of V and O; -1 = head_dim [-1] */

    attn_layout layout;           /* what ATTN_AUTO strides stand for [ATTN_BHSD] */
    attn_strides q, k, v, o, lse; /* [ATTN_AUTO each]; lse is (batch, heads_q, seq_q), packed
                                     (heads_q, total_q), whatever the layout; its rows may have
                                     any stride */

    float scale;          /* finite, or NaN = 1/sqrt(head_dim) [NaN] */
    attn_causal causal;   /* [ATTN_CAUSAL_NONE] */
    int64_t window_left;  /* keys visible before the diagonal, -1 = all [-1] */
    int64_t window_right; /* keys visible after it, -1 = all [-1] */
    float softcap;        /* 0 = none [0] */

    bool alibi;                 /* slopes from tensors.alibi_slopes, or the usual ones [false] */
    int64_t alibi_batch_stride; /* slopes are fp32 (heads_q), or (batch, heads_q) with this
                                   distance between batches [0] */
    bool sink;                  /* tensors.sink holds heads_q fp32 logits [false] */
    bool bias;                  /* tensors.bias is added to the scores [false] */
    attn_dtype bias_dtype;      /* [ATTN_FP32] */
    attn_bias_strides bias_strides; /* [ATTN_AUTO: contiguous (batch, heads_q, seq_q, seq_kv)] */

    bool packed;      /* sequences of different lengths one after the other in one tensor, bounded
                        by tensors.cu_seqlens_q and cu_seqlens_kv; the batch strides of q, k, v, o
                        and lse are not used, those of bias and slopes are [false] */
    int64_t total_q;  /* packed: rows of Q and O altogether [0] */
    int64_t total_kv; /* packed: rows of K and V altogether [0] */
    bool used_kv;     /* tensors.used_kv[b] of the keys of sequence b exist; what lies behind them
                        is never read. seq_kv of the formulas above is then that number [false] */

    attn_tensor_cores tensor_cores; /* [ATTN_TENSOR_CORES_AUTO] */
    int32_t alignment; /* bytes, a power of two: what q, k, v and o are promised to be multiples
                          of; attn_forward checks it. One element's size to 4096 [16] */
} attn_problem;

/* Fills every field with its default. */
ATTN_API void attn_problem_init(attn_problem *problem);

/* ATTN_OK, or ATTN_INVALID and the first thing that is wrong with it. Needs no device. */
ATTN_API attn_status attn_problem_check(const attn_problem *problem, attn_error *error);

/* A copy in which every default (-1, NaN, ATTN_AUTO) is replaced by the value it stands for.
 * Fails where attn_problem_check fails. `resolved` may be `problem`. */
ATTN_API attn_status attn_problem_resolve(const attn_problem *problem, attn_problem *resolved,
                                          attn_error *error);

/* Floating-point operations: 2 (head_dim + head_dim_v) for each visible (query, key) pair. Packed
 * and used_kv problems are counted at their longest. 0 for a problem that attn_problem_check
 * refuses. This is the only FLOP formula of the project. */
ATTN_API double attn_problem_flops(const attn_problem *problem);

/* ---- plan: which kernel computes it, and what it needs -------------------------------------- */

typedef struct attn_plan attn_plan;

/* Chooses a variant and loads it. variant: a name from attn_variant_get, or NULL for the best one
 * that applies. If none applies (or the named one does not): ATTN_UNSUPPORTED and the reason.
 * On failure *plan is NULL. The problem is copied. The caller owns *plan; it must not outlive its
 * context. Cheap, but not free: keep the plan. */
ATTN_API attn_status attn_plan_create(attn_context *context, const attn_problem *problem,
                                      const char *variant, attn_plan **plan, attn_error *error);

/* NULL is fine. No call with this plan may be in flight. */
ATTN_API void attn_plan_destroy(attn_plan *plan);

/* Bytes that attn_forward needs in the device's memory (0: none), and their alignment. They may
 * hold anything: no call depends on what it finds there, so plans may use one workspace in turn, on
 * one stream. (GPU kernels look for counters there before they write them; compute-sanitizer's
 * initcheck reports that, unless something has been written to the memory before.) */
ATTN_API size_t attn_workspace_size(const attn_plan *plan);
ATTN_API size_t attn_workspace_alignment(const attn_plan *plan);

/* Where the tensors lie, in the device's memory (cpu: the host's). What the problem does not ask
 * for is ignored; what it asks for must not be NULL unless it is empty. */
typedef struct attn_tensors {
    size_t size; /* set by attn_tensors_init, which makes every pointer NULL */
    const void *q, *k, *v;
    void *o;
    float *lse; /* NULL: the LSE is not wanted */
    const void *bias;
    const float *alibi_slopes; /* NULL: slope of head h = 2^(-8 (h+1) / heads_q) */
    const float *sink;
    const int32_t *cu_seqlens_q;  /* batch + 1 numbers, from 0 upwards: rows [b], [b+1) are b's */
    const int32_t *cu_seqlens_kv; /* likewise for K and V */
    const int32_t *used_kv;       /* batch numbers */
} attn_tensors;

ATTN_API void attn_tensors_init(attn_tensors *tensors);

/* Computes O (and LSE). No allocation, no synchronisation, no printing; one workspace per call in
 * flight. stream: a CUstream for a GPU (NULL = the legacy default stream), of the CUDA context that
 * was current when the plan was made, if there was one; the CPU backend ignores it and has finished
 * when it returns. Inputs are only read; Q, K, V may share memory with each
 * other, not with O or LSE. The CPU backend also checks cu_seqlens and used_kv. */
ATTN_API attn_status attn_forward(const attn_plan *plan, const attn_tensors *tensors,
                                  void *workspace, size_t workspace_size, void *stream,
                                  attn_error *error);

/* ============================================================================================ *
 *  2. LOOK INSIDE
 * ============================================================================================ */

/* ---- the device ----------------------------------------------------------------------------- */

typedef struct attn_device {
    size_t size;    /* to be set to sizeof(attn_device) by the caller */
    char name[96];  /* "Neoverse-V1", "NVIDIA H200" */
    char arch[96];  /* "aarch64 neon fp16 bf16", "sm_90" */
    int32_t units;  /* CPU threads in use, or multiprocessors */
    int64_t memory; /* bytes */
    int32_t driver; /* the CUDA version that the driver supports, 13000 is 13.0; 0: a CPU */
    int32_t shared; /* bytes of shared memory that a thread block can have; 0: a CPU */
} attn_device;

ATTN_API attn_status attn_device_get(const attn_context *context, attn_device *device,
                                     attn_error *error);

/* A function of the driver that the context was opened with ("cuMemAlloc", without version suffix,
 * as of CUDA 12.0), so that a program can allocate and copy without linking a CUDA library.
 * ATTN_UNSUPPORTED on CPUs and for names that the driver does not know. */
ATTN_API attn_status attn_driver_function(const attn_context *context, const char *name,
                                          void **function, attn_error *error);

/* ---- plans, read back ----------------------------------------------------------------------- */

/* The name of the variant that runs. Lives as long as the plan. */
ATTN_API const char *attn_plan_variant(const attn_plan *plan);

/* The run that proved this variant best for problems of this class, as src/kernels/tuned.def names
 * it; NULL where none was measured, or the variant was asked for by name. Static. */
ATTN_API const char *attn_plan_tuned(const attn_plan *plan);

/* The problem as the plan understood it (resolved). Lives as long as the plan. */
ATTN_API const attn_problem *attn_plan_problem(const attn_plan *plan);

typedef struct attn_refusal {
    size_t size;         /* to be set to sizeof(attn_refusal) by the caller */
    const char *variant; /* lives as long as the plan */
    char reason[256];    /* the first clause that refused it */
} attn_refusal;

/* The index-th variant that was preferred to the chosen one and refused, from the best downwards;
 * ATTN_INVALID past the last. A plan made for a variant by name has no refusals. */
ATTN_API attn_status attn_plan_refusal(const attn_plan *plan, int32_t index, attn_refusal *refusal,
                                       attn_error *error);

/* The plan in one line: problem, variant, workspace, refusals. Works like snprintf: returns the
 * length of the whole line, writes at most size bytes with their terminator. */
ATTN_API size_t attn_plan_print(const attn_plan *plan, char *buffer, size_t size);

/* ---- variants ------------------------------------------------------------------------------- */

/* Options that not every kernel takes. Causal, GQA, any length and the LSE are taken by all of
 * them; strides too, though on a GPU rows must begin at multiples of 16 bytes. */
typedef enum attn_option {
    ATTN_OPTION_WINDOW = 1,
    ATTN_OPTION_SOFTCAP = 2,
    ATTN_OPTION_ALIBI = 4,
    ATTN_OPTION_BIAS = 8,
    ATTN_OPTION_SINK = 16,
    ATTN_OPTION_PACKED = 32,
    ATTN_OPTION_USED_KV = 64,
    ATTN_OPTION_ANY_SCALE = 128 /* of 0 too, and beyond 2^64 and 2^-64 */
} attn_option;

/* One kernel with its knobs. name is the key. */
typedef struct attn_variant {
    size_t size;          /* to be set to sizeof(attn_variant) by the caller */
    const char *name;     /* "cpu_tile_neon_bf16", "fwd_wmma_fp16_d64_32x64_w4_s2" */
    const char *device;   /* "cpu" or "cuda" */
    const char *family;   /* the algorithm: "cpu_tile", "cpu_row", "fwd_scalar", "fwd_wmma",
                             "fwd_mma", "fwd_mma_full", "fwd_mma_decode", "fwd_hopper",
                             "fwd_hopper_causal", "fwd_hopper_full", "fwd_hopper_split",
                             "fwd_hopper_decode" */
    const char *arch;     /* cpu: the instruction set ("c", "neon"); cuda: the oldest it runs on */
    uint32_t dtypes;      /* bit (1 << attn_dtype) for each dtype it takes */
    uint32_t options;     /* attn_option bits */
    bool tensor_cores;    /* uses matrix instructions */
    int32_t head_dim_max; /* of Q, K and of V; 0 = any. On a GPU: of the tile in shared memory */
    int32_t head_dim_multiple; /* of both; 1 = any. Equal to head_dim_max: that one alone. Whether
                                  head_dim_v may differ is a matter of the family: the CPU's, the
                                  fwd_mma and fwd_hopper ones take it; attn_variant_check says so */
    int32_t block_q;           /* query rows of one unit of work */
    int32_t block_kv;          /* keys of one step */
    int32_t stages;            /* depth of the copy pipeline; 0 on CPUs */
    int32_t warps;             /* per thread block; 0 on CPUs */
    int32_t shared_bytes;      /* dynamic shared memory of one thread block; 0 on CPUs */
    const char *entry;         /* the kernel's name in its image; NULL on CPUs */
} attn_variant;

/* The index-th variant of the context, best first unless tuned.def knows better for a problem;
 * added ones last. Strings live as long as the context. ATTN_INVALID past the last. Also lists
 * those that this machine cannot run.
 * context NULL: everything that is compiled into the library, for whatever device. */
ATTN_API attn_status attn_variant_get(const attn_context *context, int32_t index,
                                      attn_variant *variant, attn_error *error);

/* ATTN_OK if the variant would compute this problem on this device; else ATTN_UNSUPPORTED and the
 * first clause that refused (ATTN_INVALID: no such name, or the problem itself is wrong). */
ATTN_API attn_status attn_variant_check(const attn_context *context, const char *name,
                                        const attn_problem *problem, attn_error *error);

/* Adds a variant that is not compiled in, under a new name. Strings and image are copied. It runs
 * only in plans that ask for it by name.
 * GPU: image is a cubin or PTX text with a kernel called `entry` (NULL: called `name`); family is
 * one of the library's, which says how it is launched; all fields count. `arch` must be one that
 * the device can run; the image is loaded when a plan asks for it.
 * CPU: image is NULL; family and arch name a compiled-in kernel, block_q and block_kv (0 = the
 * kernel's own) may differ, the other fields are taken from that kernel. */
ATTN_API attn_status attn_variant_add(attn_context *context, const attn_variant *variant,
                                      const void *image, size_t image_size, attn_error *error);

typedef enum attn_image_kind { ATTN_IMAGE_CUBIN = 0, ATTN_IMAGE_PTX = 1 } attn_image_kind;

typedef struct attn_image {
    size_t size; /* to be set to sizeof(attn_image) by the caller */
    attn_image_kind kind;
    const char *arch; /* "sm_80", "sm_90"; of PTX "compute_80"; of an added one the variant's */
    const void *data;
    size_t bytes;    /* PTX ends with a 0 that is not counted */
    const char *log; /* of a compiled-in cubin: what ptxas said when it was made, headed by
                        "sha256 <of the cubin>"; else NULL */
} attn_image;

/* The index-th image of a GPU variant: its cubins, then its PTX; lives as long as the context.
 * ATTN_INVALID past the last; ATTN_UNSUPPORTED for CPU variants, which have none.
 * context NULL: a variant that is compiled in. */
ATTN_API attn_status attn_variant_image(const attn_context *context, const char *name,
                                        int32_t index, attn_image *image, attn_error *error);

/* ============================================================================================ *
 *  3. PROVE IT: host memory only, on the context's CPU threads (also those of a GPU context)
 * ============================================================================================ */

/* One row of O. Packed: row counts from the start of its sequence. */
typedef struct attn_row {
    int64_t batch, head, row;
} attn_row;

typedef enum attn_precision {
    ATTN_EXACT = 0, /* double precision throughout, from the inputs as they are */
    ATTN_TWIN = 1   /* the same maths as a plain program would do it in the problem's dtype: scores,
                       probabilities and output each rounded to it, sums in fp32 */
} attn_precision;

/* Spreads `count` rows over the problem, the first and the last among them; the same for the same
 * seed. A packed problem's lengths are not known here: rows past a sequence's end are absent. */
ATTN_API attn_status attn_rows_sample(const attn_problem *problem, uint64_t seed, attn_row *rows,
                                      size_t count, attn_error *error);

/* The oracle: a plain, slow, checkable evaluation of the formulas above. Any number of rows of a
 * problem of any size; nothing of size seq_q x seq_kv exists.
 * rows NULL: all of them, batch-major, count = batch * heads_q * seq_q.
 * o: count x head_dim_v doubles; lse: count doubles, or NULL. tensors->o and ->lse are not used.
 * An absent row (packed, past its sequence's end) gives O = 0, LSE = -inf.
 * Allocates its scratch; ATTN_OUT_OF_MEMORY if it cannot. */
ATTN_API attn_status attn_reference(const attn_context *context, const attn_problem *problem,
                                    const attn_tensors *tensors, attn_precision precision,
                                    const attn_row *rows, size_t count, double *o, double *lse,
                                    attn_error *error);

/* What a comparison found. Errors are absolute. */
typedef struct attn_comparison {
    size_t size;      /* to be set to sizeof(attn_comparison) by the caller */
    bool pass;        /* all of the rules below */
    bool o_pass;      /* max and mean rule hold and nothing is NaN or infinite that should not be */
    bool lse_pass;    /* true where no LSE was given */
    int64_t elements; /* of O that were compared */
    int64_t nans;     /* NaN in O or LSE, given or expected: any one fails */
    int64_t infs;     /* infinities, given or expected; equal ones pass */
    double max_error, mean_error;     /* |out - exact| */
    double twin_max, twin_mean;       /* |twin - exact| */
    double max_allowed, mean_allowed; /* the rule's right-hand sides */
    double lse_error;                 /* the largest |lse - exact| over what is allowed */
    attn_row worst;                   /* where max_error (or the first NaN) is */
    int64_t worst_col;
    double worst_out, worst_expected;
} attn_comparison;

/* The one comparison of the project. tensors: o, lse (or NULL), and cu_seqlens where packed.
 * exact, exact_lse, twin: from attn_reference for the same rows. It passes iff
 *   max |out - exact|  <= 2 max |twin - exact| + 2 max |(exact + 0.3 - 0.3) - exact|
 *   mean |out - exact| <= 1.5 mean |twin - exact| + mean half-ulp of exact
 *   every |lse - exact_lse| <= 1e-5 + 1e-5 |exact_lse| + 2^-21 max |exact_lse|, and -inf exactly
 *   where it is expected
 * with the sum in brackets rounded to the problem's dtype. NaN never passes, nor does a comparison
 * of no rows of a problem that has some. Absent rows are skipped. Returns ATTN_OK also when the
 * comparison fails: look at result->pass. */
ATTN_API attn_status attn_compare(const attn_problem *problem, const attn_tensors *tensors,
                                  const attn_row *rows, size_t count, const double *exact,
                                  const double *exact_lse, const double *twin,
                                  attn_comparison *result, attn_error *error);

/* attn_reference (both precisions) and attn_compare in one call, for the caller who wants the
 * answer only. Allocates and frees what it needs. */
ATTN_API attn_status attn_verify(const attn_context *context, const attn_problem *problem,
                                 const attn_tensors *tensors, const attn_row *rows, size_t count,
                                 attn_comparison *result, attn_error *error);

/* The comparison in one line; works like snprintf. */
ATTN_API size_t attn_comparison_print(const attn_comparison *comparison, char *buffer, size_t size);

/* n values between fp32 and a dtype (round to nearest even, NaN stays NaN). dst and src may not
 * overlap. */
ATTN_API void attn_from_float(attn_dtype dtype, void *dst, const float *src, size_t n);
ATTN_API void attn_to_float(attn_dtype dtype, float *dst, const void *src, size_t n);

/* Bytes of one element: 4, 2, 2; 0 for a value outside the enum. */
ATTN_API size_t attn_dtype_size(attn_dtype dtype);

#ifdef __cplusplus
}
#endif

#endif /* ATTN_H */
