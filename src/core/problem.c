/* SPDX-License-Identifier: Apache-2.0
 *
 * problem.c - the problem descriptor: its defaults, its one check, its FLOP count.
 *
 * Invariant: whatever attn_problem_resolve lets pass can be computed without overflow: every
 * offset of every tensor is below 2^60 bytes, every output element has a place of its own.
 */
#include "core/abi.h"

#include <math.h>

#define MAX_SIZE INT32_MAX              /* of one dimension: cu_seqlens are int32 */
#define MAX_HEAD_DIM (1 << 20)          /* keeps one row's scratch in reason */
#define MAX_OFFSET ((int64_t)1 << 58)   /* elements; times 4 bytes still far from overflow */
#define MAX_ROWS ((int64_t)1 << 48)     /* batch x heads x rows: what loops and counters run over */
#define MAX_POSITION ((int64_t)1 << 40) /* of a query or key; sums with windows do not overflow */

#define AUTOMATIC                                                                                  \
    { ATTN_AUTO, ATTN_AUTO, ATTN_AUTO }

static const attn_problem defaults = {
    .size = sizeof defaults,
    .dtype = ATTN_FP32,
    .dtype_kv = -1,
    .dtype_o = -1,
    .layout = ATTN_BHSD,
    .batch = 1,
    .heads_q = 1,
    .heads_kv = -1,
    .seq_q = 1,
    .seq_kv = 1,
    .head_dim = 64,
    .head_dim_v = -1,
    .q = AUTOMATIC,
    .k = AUTOMATIC,
    .v = AUTOMATIC,
    .o = AUTOMATIC,
    .lse = AUTOMATIC,
    .scale = NAN,
    .window_left = -1,
    .window_right = -1,
    .bias_dtype = ATTN_FP32,
    .bias_strides = {ATTN_AUTO, ATTN_AUTO, ATTN_AUTO, ATTN_AUTO},
    .mask_strides = {ATTN_AUTO, ATTN_AUTO, ATTN_AUTO, ATTN_AUTO},
    .alignment = 16,
};

void attn_problem_init_sized(attn_problem *problem, size_t size) {
    if (problem != NULL) {
        abi_write(problem, size, &defaults, sizeof defaults);
    }
}

/* Saturates just above MAX_OFFSET instead of overflowing: the comparison then refuses it. */
static int64_t times(int64_t a, int64_t b) {
    int64_t product;
    return __builtin_mul_overflow(a, b, &product) || product > MAX_OFFSET ? MAX_OFFSET + 1
                                                                          : product;
}

/* ---- one field at a time --------------------------------------------------------------------- */

static attn_status check_range(const char *name, int64_t value, int64_t low, int64_t high,
                               attn_error *error) {
    if (value < low || value > high) {
        return attn_fail(error, ATTN_INVALID, "%s = %lld, expected %lld to %lld", name,
                         (long long)value, (long long)low, (long long)high);
    }
    return ATTN_OK;
}

static attn_status check_enum(const char *name, int value, int last, const char *expected,
                              attn_error *error) {
    if (value < 0 || value > last) {
        return attn_fail(error, ATTN_INVALID, "%s = %d, expected %s", name, value, expected);
    }
    return ATTN_OK;
}

/* A bool that is neither 0 nor 1 is an uninitialised struct: reading it as a bool would be
 * undefined, so its byte is looked at. */
static attn_status check_bool(const char *name, const bool *value, attn_error *error) {
    const unsigned char byte = *(const unsigned char *)value;
    if (byte > 1) {
        return attn_fail(error, ATTN_INVALID, "%s = %u, expected true or false", name, byte);
    }
    return ATTN_OK;
}

#define TRY(call)                                                                                  \
    do {                                                                                           \
        const attn_status status_ = (call);                                                        \
        if (status_ != ATTN_OK) {                                                                  \
            return status_;                                                                        \
        }                                                                                          \
    } while (0)

/* `last` is ATTN_BF16, or the last that may differ from Q's: an fp8 dtype. mixed: any may. */
static attn_status check_dtype(const char *name, int32_t *dtype, attn_dtype of_q, attn_dtype last,
                               bool mixed, attn_error *error) {
    if (*dtype == -1) {
        *dtype = (int32_t)of_q;
    }
    TRY(check_enum(name, *dtype, (int)last,
                   last == ATTN_BF16
                       ? "-1 (as dtype), ATTN_FP32, ATTN_FP16 or ATTN_BF16"
                       : "-1 (as dtype), ATTN_FP32, ATTN_FP16, ATTN_BF16, ATTN_E4M3 or ATTN_E5M2",
                   error));
    if (!mixed && *dtype != (int32_t)of_q && *dtype <= (int32_t)ATTN_BF16) {
        return attn_fail(error, ATTN_UNSUPPORTED,
                         "%s = %d, expected dtype = %d: mixed dtypes are not computed yet", name,
                         (int)*dtype, (int)of_q);
    }
    return ATTN_OK;
}

static attn_status check_enums(attn_problem *p, bool mixed, attn_error *error) {
    TRY(check_enum("dtype", (int)p->dtype, ATTN_BF16, "ATTN_FP32, ATTN_FP16 or ATTN_BF16", error));
    TRY(check_dtype("dtype_kv", &p->dtype_kv, p->dtype, ATTN_E5M2, mixed, error));
    TRY(check_dtype("dtype_o", &p->dtype_o, p->dtype, ATTN_BF16, mixed, error));
    TRY(check_enum("layout", (int)p->layout, ATTN_BSHD, "ATTN_BHSD or ATTN_BSHD", error));
    TRY(check_enum("causal", (int)p->causal, ATTN_CAUSAL_BOTTOM_RIGHT,
                   "ATTN_CAUSAL_NONE, _TOP_LEFT or _BOTTOM_RIGHT", error));
    TRY(check_enum("bias_dtype", (int)p->bias_dtype, ATTN_BF16, "ATTN_FP32, ATTN_FP16 or ATTN_BF16",
                   error));
    TRY(check_enum("tensor_cores", (int)p->tensor_cores, ATTN_TENSOR_CORES_REQUIRE,
                   "ATTN_TENSOR_CORES_AUTO, _NEVER or _REQUIRE", error));
    TRY(check_bool("alibi", &p->alibi, error));
    TRY(check_bool("sink", &p->sink, error));
    TRY(check_bool("bias", &p->bias, error));
    TRY(check_bool("mask", &p->mask, error));
    TRY(check_bool("packed", &p->packed, error));
    TRY(check_bool("used_kv", &p->used_kv, error));
    TRY(check_bool("reserved[0]", &p->reserved[0], error));
    TRY(check_bool("reserved[1]", &p->reserved[1], error));
    if (p->reserved[0] || p->reserved[1]) {
        return attn_fail(error, ATTN_INVALID, "reserved = true, expected false");
    }
    TRY(check_bool("used_q", &p->used_q, error));
    TRY(check_bool("draft", &p->draft, error));
    for (size_t i = 0; i < sizeof p->reserved_serving; i++) {
        TRY(check_bool("reserved_serving", &p->reserved_serving[i], error));
        if (p->reserved_serving[i]) {
            return attn_fail(error, ATTN_INVALID, "reserved_serving = true, expected false");
        }
    }
    TRY(check_bool("offsets", &p->offsets, error));
    TRY(check_bool("v_in_k", &p->v_in_k, error));
    for (size_t i = 0; i < sizeof p->reserved_offsets; i++) {
        TRY(check_bool("reserved_offsets", &p->reserved_offsets[i], error));
        if (p->reserved_offsets[i]) {
            return attn_fail(error, ATTN_INVALID, "reserved_offsets = true, expected false");
        }
    }
    return ATTN_OK;
}

static attn_status check_sizes(attn_problem *p, attn_error *error) {
    TRY(check_range("batch", p->batch, 0, MAX_SIZE, error));
    TRY(check_range("heads_q", p->heads_q, 1, MAX_SIZE, error));
    if (p->heads_kv == -1) {
        p->heads_kv = p->heads_q;
    }
    TRY(check_range("heads_kv", p->heads_kv, 1, MAX_SIZE, error));
    if (p->heads_q % p->heads_kv != 0) {
        return attn_fail(error, ATTN_INVALID,
                         "heads_kv = %lld, expected a divisor of heads_q = %lld",
                         (long long)p->heads_kv, (long long)p->heads_q);
    }
    TRY(check_range("seq_q", p->seq_q, 0, MAX_SIZE, error));
    TRY(check_range("seq_kv", p->seq_kv, 0, MAX_SIZE, error));
    TRY(check_range("head_dim", p->head_dim, 1, MAX_HEAD_DIM, error));
    if (p->head_dim_v == -1) {
        p->head_dim_v = p->head_dim;
    }
    TRY(check_range("head_dim_v", p->head_dim_v, 1, MAX_HEAD_DIM, error));
    if (p->v_in_k && p->head_dim_v > p->head_dim) {
        return attn_fail(error, ATTN_INVALID,
                         "head_dim_v = %lld with v_in_k = true, expected at most head_dim = %lld",
                         (long long)p->head_dim_v, (long long)p->head_dim);
    }
    if (p->packed) {
        TRY(check_range("total_q", p->total_q, 0, MAX_SIZE, error));
        TRY(check_range("total_kv", p->total_kv, 0, MAX_SIZE, error));
    }
    return ATTN_OK;
}

static attn_status check_pages(attn_problem *p, attn_error *error) {
    TRY(check_range("page_size", p->page_size, 0, MAX_SIZE, error));
    if (p->page_size == 0) {
        return ATTN_OK;
    }
    TRY(check_range("num_pages", p->num_pages, 0, MAX_SIZE, error));
    TRY(check_range("block_table_stride", p->block_table_stride, 0, MAX_SIZE, error));
    if (!p->used_kv) {
        return attn_fail(error, ATTN_INVALID,
                         "page_size = %lld with used_kv = false, expected used_kv = true",
                         (long long)p->page_size);
    }
    if (p->block_table_stride == 0) {
        p->block_table_stride = problem_pages(p, p->seq_kv);
    }
    return ATTN_OK;
}

static attn_status check_rope(attn_problem *p, attn_error *error) {
    TRY(check_enum("rope", (int)p->rope, ATTN_ROPE_INTERLEAVED,
                   "ATTN_ROPE_NONE, _HALVES or _INTERLEAVED", error));
    TRY(check_enum("rope_dtype", (int)p->rope_dtype, ATTN_BF16, "ATTN_FP32 or dtype", error));
    if (p->rope == ATTN_ROPE_NONE) {
        return ATTN_OK;
    }
    if (p->rope_dtype != ATTN_FP32 && p->rope_dtype != p->dtype) {
        return attn_fail(error, ATTN_INVALID, "rope_dtype = %d, expected ATTN_FP32 or dtype = %d",
                         (int)p->rope_dtype, (int)p->dtype);
    }
    if (p->rope_dim == 0) {
        p->rope_dim = p->head_dim;
    }
    if (p->rope_dim < 2 || p->rope_dim > p->head_dim || p->rope_dim % 2 != 0) {
        return attn_fail(error, ATTN_INVALID,
                         "rope_dim = %lld, expected an even number from 2 to head_dim = %lld",
                         (long long)p->rope_dim, (long long)p->head_dim);
    }
    if (p->rope_rows == 0) {
        p->rope_rows = p->seq_kv;
    }
    if (p->rope_stride == 0) {
        p->rope_stride = p->rope_dim / 2;
    }
    TRY(check_range("rope_rows", p->rope_rows, 0, MAX_SIZE, error));
    return check_range("rope_stride", p->rope_stride, p->rope_dim / 2, MAX_SIZE, error);
}

/* Packed sequences share their rows, so no tensor's extent bounds this product. */
static attn_status check_rows(const attn_problem *p, attn_error *error) {
    const int64_t longest = p->seq_q > p->seq_kv ? p->seq_q : p->seq_kv;
    if (times(times(p->batch, p->heads_q), longest > 0 ? longest : 1) > MAX_ROWS) {
        return attn_fail(error, ATTN_INVALID,
                         "batch = %lld with heads_q = %lld and sequences of %lld, expected a "
                         "product of at most 2^48",
                         (long long)p->batch, (long long)p->heads_q, (long long)longest);
    }
    return ATTN_OK;
}

/* A window wider than any problem becomes one that cannot overflow. */
static attn_status check_window(const char *name, int64_t *window, attn_error *error) {
    if (*window < -1) {
        return attn_fail(error, ATTN_INVALID, "%s = %lld, expected -1 (no bound) or more", name,
                         (long long)*window);
    }
    *window = *window < MAX_ROWS ? *window : MAX_ROWS;
    return ATTN_OK;
}

static attn_status check_numbers(attn_problem *p, attn_error *error) {
    if (isnan(p->scale)) {
        p->scale = (float)(1.0 / sqrt((double)p->head_dim));
    }
    if (!isfinite(p->scale)) {
        return attn_fail(error, ATTN_INVALID,
                         "scale = %g, expected a finite number, or NaN for 1/sqrt(head_dim)",
                         (double)p->scale);
    }
    if (!(p->softcap >= 0.0F && isfinite(p->softcap))) {
        return attn_fail(error, ATTN_INVALID,
                         "softcap = %g, expected 0 (none) or a finite positive number",
                         (double)p->softcap);
    }
    TRY(check_window("window_left", &p->window_left, error));
    TRY(check_window("window_right", &p->window_right, error));
    TRY(check_range("q_offset", p->q_offset, -MAX_POSITION, MAX_POSITION, error));
    TRY(check_range("kv_offset", p->kv_offset, -MAX_POSITION, MAX_POSITION, error));
    const int64_t element = (int64_t)attn_dtype_size(p->dtype);
    if (p->alignment < element || p->alignment > 4096 || (p->alignment & (p->alignment - 1)) != 0) {
        return attn_fail(error, ATTN_INVALID,
                         "alignment = %d, expected a power of two from %lld (one element) to 4096",
                         (int)p->alignment, (long long)element);
    }
    return ATTN_OK;
}

/* ---- strides --------------------------------------------------------------------------------- */

/* One tensor as the stride checks see it. `cols` is the contiguous extent. */
struct extent {
    const char *name;
    int64_t batch, heads, rows, cols;
};

static void fill(int64_t *stride, int64_t value) {
    if (*stride == ATTN_AUTO) {
        *stride = value;
    }
}

static void fill_strides(attn_strides *s, attn_layout layout, const struct extent *e) {
    if (layout == ATTN_BHSD) {
        fill(&s->row, e->cols);
        fill(&s->head, times(e->rows, e->cols));
    } else {
        fill(&s->row, times(e->heads, e->cols));
        fill(&s->head, e->cols);
    }
    fill(&s->batch, times(e->heads, times(e->rows, e->cols)));
}

/* Adds (count - 1) * stride to *last, the offset of the last element. */
static attn_status extend(const char *tensor, const char *dim, int64_t count, int64_t stride,
                          int64_t *last, attn_error *error) {
    if (stride < 0) {
        return attn_fail(error, ATTN_INVALID, "%s.%s stride = %lld, expected 0 or more elements",
                         tensor, dim, (long long)stride);
    }
    const int64_t span = count > 1 ? times(count - 1, stride) : 0;
    if (stride > MAX_OFFSET || span > MAX_OFFSET || *last + span > MAX_OFFSET) {
        return attn_fail(
            error, ATTN_INVALID,
            "%s.%s stride = %lld with %lld entries, expected offsets below 2^58 elements", tensor,
            dim, (long long)stride, (long long)count);
    }
    *last += span;
    return ATTN_OK;
}

static attn_status check_extent(const attn_strides *s, const struct extent *e, attn_error *error) {
    int64_t last = e->cols;
    TRY(extend(e->name, "batch", e->batch, s->batch, &last, error));
    TRY(extend(e->name, "head", e->heads, s->head, &last, error));
    TRY(extend(e->name, "row", e->rows, s->row, &last, error));
    return ATTN_OK;
}

/* A dimension of an output. */
struct dimension {
    const char *name;
    int64_t count, stride;
};

/* They must nest: each stride at least as long as all that lies inside it, `inner` elements at
 * first. The first that does not, and what it would need; NULL: they do. */
static const struct dimension *find_overlap(struct dimension *dim, int count, int64_t *inner) {
    for (int placed = 0; placed < count; placed++) {
        int next = -1;
        for (int d = 0; d < count; d++) {
            if (dim[d].count > 1 && (next < 0 || dim[d].stride < dim[next].stride)) {
                next = d;
            }
        }
        if (next < 0) {
            break;
        }
        if (dim[next].stride < *inner) {
            return &dim[next];
        }
        *inner += (dim[next].count - 1) * dim[next].stride;
        dim[next].count = 0;
    }
    return NULL;
}

static attn_status check_disjoint(const attn_strides *s, const struct extent *e,
                                  attn_error *error) {
    if (e->batch == 0 || e->heads == 0 || e->rows == 0) {
        return ATTN_OK; /* nothing is written */
    }
    struct dimension dim[3] = {
        {"batch", e->batch, s->batch}, {"head", e->heads, s->head}, {"row", e->rows, s->row}};
    int64_t inner = e->cols;
    const struct dimension *wrong = find_overlap(dim, 3, &inner);
    if (wrong != NULL) {
        return attn_fail(error, ATTN_INVALID,
                         "%s.%s stride = %lld, expected at least %lld: elements of an output may "
                         "not overlap",
                         e->name, wrong->name, (long long)wrong->stride, (long long)inner);
    }
    return ATTN_OK;
}

bool problem_bias_overlaps(const attn_problem *p) {
    const attn_bias_strides *s = &p->bias_strides;
    struct dimension dim[4] = {{"batch", s->batch != 0 ? p->batch : 1, s->batch},
                               {"head", s->head != 0 ? p->heads_q : 1, s->head},
                               {"row", s->row != 0 ? p->seq_q : 1, s->row},
                               {"col", s->col != 0 ? p->seq_kv : 1, s->col}};
    int64_t inner = 1;
    return find_overlap(dim, 4, &inner) != NULL;
}

/* Of a bias or a mask, which is `there` or not. */
static attn_status check_scores(const attn_problem *p, const char *name, bool there,
                                attn_bias_strides *s, attn_error *error) {
    fill(&s->col, 1);
    fill(&s->row, p->seq_kv);
    fill(&s->head, times(p->seq_q, p->seq_kv));
    fill(&s->batch, times(p->heads_q, times(p->seq_q, p->seq_kv)));
    if (!there) {
        return ATTN_OK;
    }
    int64_t last = 1;
    TRY(extend(name, "batch", p->batch, s->batch, &last, error));
    TRY(extend(name, "head", p->heads_q, s->head, &last, error));
    TRY(extend(name, "row", p->seq_q, s->row, &last, error));
    TRY(extend(name, "col", p->seq_kv, s->col, &last, error));
    return ATTN_OK;
}

static struct extent extent_of_q(const attn_problem *p, const char *name, int64_t cols) {
    return (struct extent){name, p->packed ? 1 : p->batch, p->heads_q,
                           p->packed ? p->total_q : p->seq_q, cols};
}

static struct extent extent_of_kv(const attn_problem *p, const char *name, int64_t cols) {
    if (p->page_size > 0) {
        return (struct extent){name, p->num_pages, p->heads_kv, p->page_size, cols};
    }
    return (struct extent){name, p->packed ? 1 : p->batch, p->heads_kv,
                           p->packed ? p->total_kv : p->seq_kv, cols};
}

/* Of a gradient: those of its tensor unless given. */
static attn_status check_gradient(attn_strides *s, const attn_strides *of, attn_layout layout,
                                  struct extent e, attn_error *error) {
    if (s->batch == 0 && s->head == 0 && s->row == 0) {
        *s = *of;
    }
    fill_strides(s, layout, &e);
    return check_extent(s, &e, error);
}

attn_status problem_refuse_gradients(const attn_problem *p, attn_error *error) {
    if (p->page_size > 0) {
        return attn_fail(error, ATTN_UNSUPPORTED,
                         "page_size = %lld, expected 0: a paged KV cache has no gradients",
                         (long long)p->page_size);
    }
    if (p->draft) {
        return attn_fail(error, ATTN_UNSUPPORTED,
                         "draft = true, expected false: a draft mask has no gradients");
    }
    if (problem_is_fp8(p)) {
        return attn_fail(error, ATTN_UNSUPPORTED,
                         "dtype_kv = %d, expected dtype = %d: an fp8 KV cache has no gradients",
                         (int)p->dtype_kv, (int)p->dtype);
    }
    if (p->v_in_k) {
        return attn_fail(error, ATTN_UNSUPPORTED,
                         "v_in_k = true, expected false: a V in K has no gradients");
    }
    return ATTN_OK;
}

/* Places for all elements of dq, dk and dv. */
static attn_status check_gradients(const attn_problem *p, attn_error *error) {
    TRY(problem_refuse_gradients(p, error));
    const struct extent dq = extent_of_q(p, "dq", p->head_dim);
    const struct extent dk = extent_of_kv(p, "dk", p->head_dim);
    const struct extent dv = extent_of_kv(p, "dv", p->head_dim_v);
    TRY(check_disjoint(&p->dq, &dq, error));
    TRY(check_disjoint(&p->dk, &dk, error));
    return check_disjoint(&p->dv, &dv, error);
}

/* Of attn_append's tensors: those of `of`, or contiguous ones, unless given. */
static attn_status check_new(attn_strides *s, const attn_strides *of, attn_layout layout,
                             struct extent e, attn_error *error) {
    static const attn_strides automatic = AUTOMATIC;
    return check_gradient(s, of != NULL ? of : &automatic, layout, e, error);
}

/* Those of tokens are outputs of attn_append. */
static attn_status check_token_scales(const attn_problem *p, const char *name,
                                      const attn_strides *s, attn_error *error) {
    const struct extent e = extent_of_kv(p, name, 1);
    return s->row != 0 ? check_disjoint(s, &e, error) : ATTN_OK;
}

/* RoPE, and places for all elements of the cache, of its scales and of q_out. */
static attn_status check_append(attn_problem *p, attn_error *error) {
    TRY(check_rope(p, error));
    TRY(check_token_scales(p, "k_scale", &p->k_scale, error));
    TRY(check_token_scales(p, "v_scale", &p->v_scale, error));
    const struct extent k = extent_of_kv(p, "k", p->head_dim);
    const struct extent v = extent_of_kv(p, "v", p->head_dim_v);
    const struct extent q_out = extent_of_q(p, "q_out", p->head_dim);
    TRY(check_disjoint(&p->k, &k, error));
    TRY(check_disjoint(&p->v, &v, error));
    return check_disjoint(&p->q_out, &q_out, error);
}

/* Of the scales of K or V. */
static attn_status check_scales(const attn_problem *p, const char *name, const attn_strides *s,
                                attn_error *error) {
    if (problem_is_fp8(p)) {
        const struct extent e = extent_of_kv(p, name, 1);
        return check_extent(s, &e, error);
    }
    if (s->batch != 0 || s->head != 0 || s->row != 0) {
        return attn_fail(error, ATTN_INVALID,
                         "%s strides = {%lld, %lld, %lld}, expected 0: dtype_kv = %d is not fp8",
                         name, (long long)s->batch, (long long)s->head, (long long)s->row,
                         (int)p->dtype_kv);
    }
    return ATTN_OK;
}

static attn_status check_tensors(attn_problem *p, attn_error *error) {
    const struct extent q = extent_of_q(p, "q", p->head_dim);
    const struct extent k = extent_of_kv(p, "k", p->head_dim);
    const struct extent v = extent_of_kv(p, "v", p->head_dim_v);
    const struct extent o = extent_of_q(p, "o", p->head_dim_v);
    const struct extent lse = extent_of_q(p, "lse", 1);
    fill_strides(&p->q, p->layout, &q);
    fill_strides(&p->k, p->layout, &k);
    if (p->v_in_k) {
        p->v = p->k;
    }
    fill_strides(&p->v, p->layout, &v);
    fill_strides(&p->o, p->layout, &o);
    fill_strides(&p->lse, ATTN_BHSD, &lse);
    TRY(check_extent(&p->q, &q, error));
    TRY(check_extent(&p->k, &k, error));
    TRY(check_extent(&p->v, &v, error));
    TRY(check_extent(&p->o, &o, error));
    TRY(check_extent(&p->lse, &lse, error));
    TRY(check_disjoint(&p->o, &o, error));
    TRY(check_disjoint(&p->lse, &lse, error));
    TRY(check_gradient(&p->dq, &p->q, p->layout, extent_of_q(p, "dq", p->head_dim), error));
    TRY(check_gradient(&p->dk, &p->k, p->layout, extent_of_kv(p, "dk", p->head_dim), error));
    TRY(check_gradient(&p->dv, &p->v, p->layout, extent_of_kv(p, "dv", p->head_dim_v), error));
    TRY(check_gradient(&p->d_o, &p->o, p->layout, extent_of_q(p, "d_o", p->head_dim_v), error));
    struct extent k_new = extent_of_q(p, "k_new", p->head_dim);
    struct extent v_new = extent_of_q(p, "v_new", p->head_dim_v);
    k_new.heads = v_new.heads = p->heads_kv;
    TRY(check_new(&p->k_new, NULL, p->layout, k_new, error));
    TRY(check_new(&p->v_new, NULL, p->layout, v_new, error));
    TRY(check_new(&p->q_out, &p->q, p->layout, extent_of_q(p, "q_out", p->head_dim), error));
    TRY(check_scales(p, "k_scale", &p->k_scale, error));
    TRY(check_scales(p, "v_scale", &p->v_scale, error));
    if (p->alibi) {
        int64_t last = p->heads_q;
        TRY(extend("alibi_batch_stride", "batch", p->batch, p->alibi_batch_stride, &last, error));
    }
    TRY(check_scores(p, "bias_strides", p->bias, &p->bias_strides, error));
    return check_scores(p, "mask_strides", p->mask, &p->mask_strides, error);
}

float problem_softcap(const attn_problem *p) {
    const double most = 0x1p90 * fabs((double)p->scale);
    return most > 0.0 && (double)p->softcap > most ? (float)most : p->softcap;
}

attn_status attn_problem_resolve(const attn_problem *problem, attn_problem *resolved,
                                 attn_error *error) {
    if (problem == NULL || resolved == NULL) {
        return attn_fail(error, ATTN_INVALID, "%s = NULL, expected an attn_problem",
                         problem == NULL ? "problem" : "resolved");
    }
    const size_t theirs = problem->size;
    attn_problem p;
    TRY(problem_resolve(problem, &p, error));
    abi_write(resolved, theirs, &p, sizeof p);
    return attn_fail(error, ATTN_OK, "%s", "");
}

attn_status problem_resolve(const attn_problem *problem, attn_problem *resolved,
                            attn_error *error) {
    return problem_resolve_for(ATTN_FORWARD, problem, resolved, error);
}

/* Of a direction that computes no scores. */
static void ignore_scores(attn_problem *p) {
    p->scale = NAN;
    p->causal = ATTN_CAUSAL_NONE;
    p->window_left = p->window_right = -1;
    p->softcap = 0.0F;
    p->alibi = p->bias = p->mask = p->sink = p->draft = p->offsets = false;
    p->q_offset = p->kv_offset = 0;
    p->tensor_cores = ATTN_TENSOR_CORES_AUTO;
}

attn_status problem_resolve_for(attn_direction direction, const attn_problem *problem,
                                attn_problem *resolved, attn_error *error) {
    if (problem == NULL) {
        return attn_fail(error, ATTN_INVALID, "problem = NULL, expected an attn_problem");
    }
    attn_problem p = defaults;
    TRY(abi_read("problem", problem, PROBLEM_0_2, &p, sizeof p, error));
    TRY(check_enums(&p, direction == ATTN_MERGE, error));
    if (direction == ATTN_APPEND || direction == ATTN_MERGE) {
        ignore_scores(&p);
    }
    if (direction == ATTN_MERGE) { /* all rows of the parts, which have no keys */
        p.dtype_kv = (int32_t)p.dtype;
        p.k_scale = p.v_scale = (attn_strides){0, 0, 0};
        p.used_q = false;
    }
    TRY(check_sizes(&p, error));
    TRY(check_pages(&p, error));
    TRY(check_rows(&p, error));
    TRY(check_numbers(&p, error));
    TRY(check_tensors(&p, error));
    if (direction == ATTN_BACKWARD) {
        TRY(check_gradients(&p, error));
    } else if (direction == ATTN_APPEND) {
        TRY(check_append(&p, error));
    }
    *resolved = p;
    return ATTN_OK;
}

attn_status attn_problem_check(const attn_problem *problem, attn_error *error) {
    attn_problem resolved;
    const attn_status status = problem_resolve(problem, &resolved, error);
    return status != ATTN_OK ? status : attn_fail(error, ATTN_OK, "%s", "");
}

/* ---- FLOPs ----------------------------------------------------------------------------------- */

struct key_range visible_keys(const attn_problem *p, const struct sequence *s, int64_t i) {
    const int64_t diagonal = i + s->off;
    int64_t begin = 0;
    int64_t end = s->kv_len;
    if (p->causal != ATTN_CAUSAL_NONE && diagonal + 1 < end) {
        end = diagonal + 1;
    }
    if (p->window_right >= 0 && diagonal + p->window_right + 1 < end) {
        end = diagonal + p->window_right + 1;
    }
    if (p->window_left >= 0 && diagonal - p->window_left > begin) {
        begin = diagonal - p->window_left;
    }
    if (end <= begin) {
        return (struct key_range){0, 0};
    }
    return (struct key_range){begin, end};
}

/* Of visible_keys' inequalities, solved for the query. */
struct key_range visible_queries(const attn_problem *p, const struct sequence *s, int64_t j) {
    const int64_t diagonal = j - s->off;
    int64_t begin = 0;
    int64_t end = s->q_len;
    if (p->causal != ATTN_CAUSAL_NONE && diagonal > begin) {
        begin = diagonal;
    }
    if (p->window_right >= 0 && diagonal - p->window_right > begin) {
        begin = diagonal - p->window_right;
    }
    if (p->window_left >= 0 && diagonal + p->window_left + 1 < end) {
        end = diagonal + p->window_left + 1;
    }
    if (end <= begin) {
        return (struct key_range){0, 0};
    }
    return (struct key_range){begin, end};
}

/* The sum of i + first, held within [0, limit], over 0 <= i < count: a ramp between two levels. */
static double sum_of_ramp(int64_t first, int64_t count, int64_t limit) {
    const int64_t start = first < 0 ? -first : 0;           /* the first i on the ramp */
    const int64_t stop = limit > first ? limit - first : 0; /* the first i at the upper level */
    const double from = (double)(start < count ? start : count);
    const double to = (double)(stop < count ? stop : count);
    const double ramp = to > from ? (to - from) * ((double)first + (from + to - 1.0) / 2.0) : 0.0;
    return ramp + ((double)count - to) * (double)limit;
}

double attn_problem_flops(const attn_problem *problem) {
    attn_problem p = {0};
    if (problem_resolve(problem, &p, NULL) != ATTN_OK) {
        return 0.0;
    }
    const int64_t diagonal = diagonal_offset(&p, p.seq_q, p.seq_kv);
    double pairs = (double)p.seq_q * (double)p.seq_kv;
    if (p.causal != ATTN_CAUSAL_NONE) {
        pairs = sum_of_ramp(diagonal + 1, p.seq_q, p.seq_kv);
    } else if (p.window_right >= 0) {
        pairs = sum_of_ramp(diagonal + p.window_right + 1, p.seq_q, p.seq_kv);
    }
    if (p.window_left >= 0) {
        pairs -= sum_of_ramp(diagonal - p.window_left, p.seq_q, p.seq_kv);
    }
    return 2.0 * (double)(p.head_dim + p.head_dim_v) * (double)p.batch * (double)p.heads_q * pairs;
}
