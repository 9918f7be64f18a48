/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_problem.c - fuzz target: bytes become an attn_problem, sane or wild, and every function that
 * takes a problem gets it; a legal one that is tiny is also computed, with lengths from the bytes.
 *
 * Held by abort(): a sentence exactly where a call failed; check, resolve, flops and plan agree on
 * what is legal; a resolved problem is legal and resolves to itself; a plan prints the line whose
 * length it states; attn_forward succeeds or refuses the lengths. Memory faults are for a sanitizer
 * to find: each tensor is a block of exactly its size.
 *
 * Invariant: no input makes it allocate more than a few megabytes or compute for long.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attn_inspect.h"
#include "attn_verify.h"
#include "fuzz/fuzz.h"

enum { TENSOR_MAX = 1 << 14, PAIRS_MAX = 1 << 12 }; /* elements and (query, key) pairs computed */

/* ---- bytes to a problem ---------------------------------------------------------------------- */

struct bytes {
    const uint8_t *at;
    size_t left;
};

static uint8_t take(struct bytes *b) {
    if (b->left == 0) {
        return 0;
    }
    b->left--;
    return *b->at++;
}

static uint64_t take_raw(struct bytes *b, int count) {
    uint64_t value = 0;
    for (int i = 0; i < count; i++) {
        value = value << 8 | take(b);
    }
    return value;
}

/* Mostly small, sometimes -1 to -7, sometimes anything. */
static int64_t take_size(struct bytes *b) {
    const uint8_t kind = take(b);
    if (kind < 192) {
        return kind < 128 ? kind % 9 : kind - 100;
    }
    return kind < 224 ? -(int64_t)(kind & 7) : (int64_t)take_raw(b, 8);
}

/* Mostly what the library works out. */
static int64_t take_stride(struct bytes *b) {
    const uint8_t kind = take(b);
    if (kind < 160) {
        return ATTN_AUTO;
    }
    return kind < 224 ? kind - 160 : (int64_t)take_raw(b, 8);
}

static int take_enum(struct bytes *b) {
    const uint8_t kind = take(b);
    return kind < 240 ? kind % 3 : (int)(int32_t)take_raw(b, 4);
}

static float take_float(struct bytes *b, float usual) {
    const float others[] = {0.0f, 0.5f, -1.0f};
    const uint8_t kind = take(b);
    if (kind < 224) {
        return kind < 128 ? usual : others[kind % 3];
    }
    const uint32_t bits = (uint32_t)take_raw(b, 4);
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static attn_strides take_strides(struct bytes *b) {
    attn_strides s;
    s.batch = take_stride(b);
    s.head = take_stride(b);
    s.row = take_stride(b);
    return s;
}

static void take_problem(struct bytes *b, attn_problem *p) {
    const uint8_t flags = take(b), more = take(b);
    attn_problem_init(p);
    p->dtype = (attn_dtype)take_enum(b);
    p->batch = take_size(b);
    p->heads_kv = take_size(b);
    p->heads_q =
        more & 1 ? take_size(b) : (int64_t)((uint64_t)p->heads_kv * (1u + (more >> 1 & 3u)));
    p->seq_q = take_size(b);
    p->seq_kv = take_size(b);
    p->head_dim = take_size(b);
    p->head_dim_v = more & 8 ? take_size(b) : -1;
    p->layout = (attn_layout)(more & 16 ? take_enum(b) : more >> 5 & 1);
    if (more & 64) {
        p->q = take_strides(b);
        p->k = take_strides(b);
        p->v = take_strides(b);
        p->o = take_strides(b);
        p->lse = take_strides(b);
    }
    p->scale = take_float(b, NAN);
    p->causal = (attn_causal)take_enum(b);
    p->window_left = flags & 1 ? take_size(b) : -1;
    p->window_right = flags & 2 ? take_size(b) : -1;
    p->softcap = take_float(b, 0.0f);
    p->alibi = flags & 4;
    p->alibi_batch_stride = flags & 4 ? take_size(b) : 0;
    p->sink = flags & 8;
    p->bias = flags & 16;
    if (p->bias) {
        p->bias_dtype = (attn_dtype)take_enum(b);
        p->bias_strides.batch = take_stride(b);
        p->bias_strides.head = take_stride(b);
        p->bias_strides.row = take_stride(b);
        p->bias_strides.col = take_stride(b);
    }
    p->packed = flags & 32;
    if (p->packed) {
        p->total_q = take_size(b);
        p->total_kv = take_size(b);
    }
    p->used_kv = flags & 64;
    p->tensor_cores = (attn_tensor_cores)(flags & 128 ? take_enum(b) : 0);
    p->alignment = more & 128 ? (int32_t)take_size(b) : (int32_t)attn_dtype_size(p->dtype);
    const uint8_t last = take(b);
    p->mask = last & 1;
    p->used_q = last & 4;
    p->draft = last & 8;
    if (last & 2) {
        p->page_size = take_size(b);
        p->num_pages = take_size(b);
        p->block_table_stride = take_size(b);
    }
    if (last & 4) {
        p->dtype_kv = last & 8 ? ATTN_E5M2 : ATTN_E4M3;
        p->k_scale = take_strides(b);
        p->v_scale = (attn_strides){0, 1, 0};
    }
    if (last & 16) {
        p->q_offset = take_size(b);
        p->kv_offset = take_size(b);
        p->offsets = last & 32;
    }
    if (p->mask) {
        p->mask_strides.batch = take_stride(b);
        p->mask_strides.head = take_stride(b);
        p->mask_strides.row = take_stride(b);
        p->mask_strides.col = take_stride(b);
    }
}

/* ---- computing a tiny one -------------------------------------------------------------------- */

/* Elements from the first to the last of a tensor; above TENSOR_MAX where it is too much. */
static int64_t extent(const attn_problem *p, const attn_strides *s, int64_t heads, int64_t rows,
                      int64_t dim) {
    const int64_t counts[] = {p->packed ? 1 : p->batch, heads, rows, dim};
    const int64_t strides[] = {p->packed ? 0 : s->batch, s->head, s->row, 1};
    int64_t size = 1;
    for (int i = 0; i < 4; i++) {
        if (counts[i] == 0 || p->batch == 0) {
            return 0;
        }
        if (counts[i] > TENSOR_MAX || strides[i] > TENSOR_MAX) {
            return TENSOR_MAX + 1;
        }
        size += (counts[i] - 1) * strides[i];
    }
    return size;
}

/* Likewise of a bias or a mask, which has batches, packed or not. */
static int64_t extent_of_scores(const attn_problem *p, const attn_bias_strides *s) {
    const attn_strides rows = {s->batch, s->head, s->row}, keys = {0, 0, s->col};
    attn_problem unpacked = *p;
    unpacked.packed = false;
    const int64_t row = extent(&unpacked, &keys, 1, p->seq_kv, 1);
    return row > 0 ? extent(&unpacked, &rows, p->heads_q, p->seq_q, row) : 0;
}

/* A block of `count` elements filled from the bytes; NULL for none. */
static void *block(int64_t count, size_t element, struct bytes *b) {
    const size_t size = (size_t)count * element;
    uint8_t *const memory = count > 0 ? malloc(size) : NULL;
    for (size_t i = 0; memory && i < size; i++) {
        memory[i] = b->left ? take(b) : (uint8_t)(i % element == element - 1 ? 0x3C : i);
    }
    return memory;
}

/* Lengths that mostly fit, one after the other or (cumulative) added up from 0. */
static int32_t *lengths(int64_t batch, bool cumulative, struct bytes *b) {
    int32_t *const memory = malloc((size_t)(batch + 1) * sizeof *memory);
    int32_t sum = 0;
    for (int64_t i = 0; memory && i <= batch; i++) {
        const uint8_t kind = take(b);
        if (kind >= 240) {
            memory[i] = (int32_t)take_raw(b, 4);
            continue;
        }
        sum = i == 0 || !cumulative ? 0 : sum;
        sum += i > 0 || !cumulative ? kind % 6 : 0;
        memory[i] = sum;
    }
    return memory;
}

/* Page numbers, most of which are in the pool. */
static int32_t *page_numbers(int64_t count, int64_t pages, struct bytes *b) {
    int32_t *const memory = count > 0 ? malloc((size_t)count * sizeof *memory) : NULL;
    for (int64_t i = 0; memory && i < count; i++) {
        const uint8_t kind = take(b);
        memory[i] = kind >= 240 || pages == 0 ? (int32_t)take_raw(b, 4) : (int32_t)(kind % pages);
    }
    return memory;
}

static void compute(const attn_plan *plan, struct bytes *b) {
    attn_problem planned = {.size = sizeof planned};
    attn_plan_problem(plan, &planned, NULL);
    const attn_problem *p = &planned;
    const int64_t rows_q = p->packed ? p->total_q : p->seq_q;
    attn_problem pool = *p; /* its pages are batches, packed or not */
    pool.packed = false;
    pool.batch = p->num_pages;
    const bool paged = p->page_size > 0;
    const attn_problem *kv = paged ? &pool : p;
    const int64_t rows_kv = paged ? p->page_size : p->packed ? p->total_kv : p->seq_kv;
    const int64_t sizes[] = {extent(p, &p->q, p->heads_q, rows_q, p->head_dim),
                             extent(kv, &p->k, p->heads_kv, rows_kv, p->head_dim),
                             extent(kv, &p->v, p->heads_kv, rows_kv, p->head_dim_v),
                             extent(p, &p->o, p->heads_q, rows_q, p->head_dim_v),
                             extent(p, &p->lse, p->heads_q, rows_q, 1),
                             extent(kv, &p->k_scale, p->heads_kv, rows_kv, 1),
                             extent(kv, &p->v_scale, p->heads_kv, rows_kv, 1)};
    const int64_t bias = p->bias ? extent_of_scores(p, &p->bias_strides) : 0;
    const int64_t mask = p->mask ? extent_of_scores(p, &p->mask_strides) : 0;
    attn_problem unpacked = *p; /* slopes have batches, packed or not */
    unpacked.packed = false;
    const attn_strides of_slopes = {p->alibi_batch_stride, 1, 1};
    const int64_t slopes = p->alibi ? extent(&unpacked, &of_slopes, p->heads_q, 1, 1) : 0;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        if (sizes[i] > TENSOR_MAX) {
            return;
        }
    }
    const int64_t entries = paged ? (p->seq_kv + p->page_size - 1) / p->page_size : 0;
    const int64_t table = paged && p->block_table_stride <= TENSOR_MAX && p->batch <= 64
                              ? (p->batch - 1) * p->block_table_stride + entries
                              : 0;
    if (paged && p->block_table_stride > TENSOR_MAX) {
        return;
    }
    if (bias > TENSOR_MAX || mask > TENSOR_MAX || slopes > TENSOR_MAX || p->batch > 64 ||
        p->seq_q > TENSOR_MAX || p->seq_kv > TENSOR_MAX || p->heads_q > 64 ||
        p->batch * p->heads_q * p->seq_q * p->seq_kv > PAIRS_MAX) {
        return;
    }
    const size_t element = attn_dtype_size(p->dtype);
    const size_t element_kv = attn_dtype_size((attn_dtype)p->dtype_kv);
    void *memory[] = {block(sizes[0], element, b),
                      block(sizes[1], element_kv, b),
                      block(sizes[2], element_kv, b),
                      block(sizes[3], element, b),
                      block(sizes[4], 4, b),
                      p->bias ? block(bias, attn_dtype_size(p->bias_dtype), b) : NULL,
                      block(slopes, 4, b),
                      block(p->heads_q, 4, b),
                      lengths(p->batch, true, b),
                      lengths(p->batch, true, b),
                      lengths(p->batch, false, b),
                      block(mask, 1, b),
                      paged ? page_numbers(table, p->num_pages, b) : NULL,
                      lengths(p->batch, false, b),
                      block(p->packed ? p->total_q : p->batch * p->seq_q, 8, b),
                      block(sizes[5], 4, b),
                      block(sizes[6], 4, b),
                      block(p->batch, 4, b)};
    const size_t size = attn_workspace_size(plan), alignment = attn_workspace_alignment(plan);
    void *const workspace = aligned_alloc(alignment, (size / alignment + 1) * alignment);
    attn_tensors tensors;
    attn_error why;
    attn_tensors_init(&tensors);
    tensors.q = memory[0];
    tensors.k = memory[1];
    tensors.v = memory[2];
    tensors.o = memory[3];
    tensors.lse = memory[4];
    tensors.bias = memory[5];
    tensors.alibi_slopes = memory[6];
    tensors.sink = memory[7];
    tensors.cu_seqlens_q = memory[8];
    tensors.cu_seqlens_kv = memory[9];
    tensors.used_kv = memory[10];
    tensors.mask = memory[11];
    tensors.block_table = memory[12];
    tensors.used_q = memory[13];
    tensors.draft_mask = memory[14];
    tensors.k_scale = memory[15];
    tensors.v_scale = memory[16];
    tensors.offsets = memory[17];
    if (workspace) {
        const attn_status status = attn_forward(plan, &tensors, workspace, size, NULL, &why);
        HOLDS(status == ATTN_OK || status == ATTN_INVALID);
        HOLDS((status == ATTN_OK) == (why.text[0] == '\0'));
    }
    free(workspace);
    for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++) {
        free(memory[i]);
    }
}

/* ---- the target ------------------------------------------------------------------------------ */

static attn_context *open_once(void) {
    static attn_context *context;
    if (!context) {
        attn_options options;
        attn_options_init(&options);
        options.threads = 1;
        HOLDS(attn_open(&options, &context, NULL) == ATTN_OK);
    }
    return context;
}

static void check_line(const attn_plan *plan) {
    char line[256];
    const size_t length = attn_plan_print(plan, NULL, 0);
    HOLDS(attn_plan_print(plan, line, sizeof line) == length);
    HOLDS(strlen(line) == (length < sizeof line ? length : sizeof line - 1));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct bytes bytes = {data, size};
    attn_problem p, resolved, again;
    attn_error why;
    attn_plan *plan = NULL;
    attn_row rows[5];
    attn_context *const context = open_once();
    take_problem(&bytes, &p);
    memset(&resolved, 0, sizeof resolved);
    memset(&again, 0, sizeof again);

    const attn_status status = attn_problem_check(&p, &why);
    const bool legal = status == ATTN_OK;
    HOLDS(legal || status == ATTN_INVALID);
    HOLDS(legal == (why.text[0] == '\0') && memchr(why.text, 0, sizeof why.text));
    HOLDS(attn_problem_resolve(&p, &resolved, &why) == status);
    const double flops = attn_problem_flops(&p);
    HOLDS(flops >= 0.0 && (legal || !(flops > 0.0)));
    if (legal) {
        HOLDS(attn_problem_resolve(&resolved, &again, &why) == ATTN_OK);
        HOLDS(memcmp(&resolved, &again, sizeof again) == 0);
    }
    const attn_status sampled = attn_rows_sample(&p, 1, rows, 5, &why);
    HOLDS(legal ? sampled != ATTN_DEVICE : sampled == ATTN_INVALID);

    const attn_status planned = attn_plan_create(context, &p, NULL, &plan, &why);
    HOLDS(legal ? planned == ATTN_OK || planned == ATTN_UNSUPPORTED : planned == ATTN_INVALID);
    HOLDS((planned == ATTN_OK) == (plan != NULL) && (planned == ATTN_OK) == (why.text[0] == '\0'));
    if (plan) {
        check_line(plan);
        compute(plan, &bytes);
        attn_plan_destroy(plan);
    }
    return 0;
}
