/* SPDX-License-Identifier: Apache-2.0
 *
 * serving.c - see serving.h.
 */
#include "serving.h"

#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn_verify.h"
#include "small.h"
#include "tool/base/random.h"

enum { BAND = 256, MOST_BLOCKS = 80 }; /* bytes before and after a tensor; tensors of a call */

static char said[512];

__attribute__((format(printf, 1, 2))) static const char *say(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(said, sizeof said, format, arguments);
    va_end(arguments);
    return said;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* A tensor: on the host before the call, as it must be after it, and on the device. */
struct block {
    const char *name;
    size_t bytes; /* with both bands */
    char *before, *after, *device;
};

struct memory {
    struct device *device;
    struct block blocks[MOST_BLOCKS];
    int count;
    uint64_t state;
};

static uint64_t draw(struct memory *m, uint64_t below) {
    return rng_next(&m->state) % below;
}

/* Random bytes. */
static struct block *block_add(struct memory *m, const char *name, int64_t elements, size_t size) {
    struct block *block = &m->blocks[m->count++];
    *block = (struct block){.name = name, .bytes = (size_t)elements * size + 2 * (size_t)BAND};
    block->before = malloc(block->bytes);
    block->after = malloc(block->bytes);
    for (size_t i = 0; i < block->bytes; i++) {
        block->before[i] = (char)draw(m, 256);
    }
    return block;
}

static char *host_of(const struct block *block) {
    return block->before + BAND;
}

static char *after_of(const struct block *block) {
    return block->after + BAND;
}

static void *device_of(const struct block *block) {
    return block != NULL ? block->device + BAND : NULL;
}

static void expect_no_change(struct memory *m) {
    for (int i = 0; i < m->count; i++) {
        memcpy(m->blocks[i].after, m->blocks[i].before, m->blocks[i].bytes);
    }
}

static const char *send(struct memory *m) {
    attn_error why;
    for (int i = 0; i < m->count; i++) {
        struct block *block = &m->blocks[i];
        block->device = device_alloc(m->device, block->bytes, &why);
        if (block->device == NULL ||
            !device_write(m->device, block->device, block->before, block->bytes, &why)) {
            return say("%s", why.text);
        }
    }
    return NULL;
}

/* Back to `before`. */
static const char *receive(struct memory *m) {
    attn_error why;
    for (int i = 0; i < m->count; i++) {
        struct block *block = &m->blocks[i];
        if (!device_read(m->device, block->before, block->device, block->bytes, &why)) {
            return say("%s", why.text);
        }
    }
    return NULL;
}

static const char *compare_bytes(const struct memory *m) {
    for (int i = 0; i < m->count; i++) {
        const struct block *block = &m->blocks[i];
        for (size_t at = 0; at < block->bytes; at++) {
            if (block->before[at] != block->after[at]) {
                return say("%s: byte %zu of %zu is 0x%02x, expected 0x%02x", block->name, at - BAND,
                           block->bytes - 2 * (size_t)BAND, (unsigned char)block->before[at],
                           (unsigned char)block->after[at]);
            }
        }
    }
    return NULL;
}

static void memory_free(struct memory *m) {
    for (int i = 0; i < m->count; i++) {
        free(m->blocks[i].before);
        free(m->blocks[i].after);
        device_free(m->device, m->blocks[i].device);
    }
}

static int64_t span(const attn_strides *s, int64_t entries, int64_t heads, int64_t rows,
                    int64_t columns) {
    return (entries - 1) * s->batch + (heads - 1) * s->head + (rows - 1) * s->row + columns;
}

static float get(attn_dtype dtype, const char *base, int64_t at) {
    float x;
    attn_to_float(dtype, &x, base + at * (int64_t)attn_dtype_size(dtype), 1);
    return x;
}

static void put(attn_dtype dtype, char *base, int64_t at, float x) {
    attn_from_float(dtype, base + at * (int64_t)attn_dtype_size(dtype), &x, 1);
}

/* ---- append ---------------------------------------------------------------------------------- */

struct append {
    const struct append_case *c;
    attn_problem p; /* resolved */
    struct memory m;
    struct block *q, *q_out, *k_new, *v_new, *k, *v, *cos, *sin, *cu_q, *cu_kv, *used, *used_q,
        *table, *k_scale, *v_scale;
};

static int32_t *ints(const struct block *block) {
    return (int32_t *)(void *)host_of(block);
}

static int64_t rows_of(const struct append *a, int64_t b) {
    return a->used_q != NULL ? ints(a->used_q)[b]
           : a->p.packed     ? ints(a->cu_q)[b + 1] - ints(a->cu_q)[b]
                             : a->p.seq_q;
}

/* Bounds of packed sequences, in ints(cu): up to `most` each, `total` at most in all. */
static void draw_bounds(struct append *a, struct block *cu, int64_t most, int64_t total) {
    ints(cu)[0] = 0;
    for (int64_t b = 0; b < a->p.batch; b++) {
        int64_t n = draw(&a->m, 4) == 0 ? 0 : (int64_t)draw(&a->m, (uint64_t)most + 1);
        n = ints(cu)[b] + n > total ? total - ints(cu)[b] : n;
        ints(cu)[b + 1] = ints(cu)[b] + (int32_t)n;
    }
}

static void draw_lengths(struct append *a) {
    const attn_problem *p = &a->p;
    a->used = block_add(&a->m, "used_kv", p->batch, sizeof(int32_t));
    if (p->packed) {
        a->cu_q = block_add(&a->m, "cu_seqlens_q", p->batch + 1, sizeof(int32_t));
        draw_bounds(a, a->cu_q, p->seq_q, p->total_q);
    }
    if (p->packed && p->page_size == 0) {
        a->cu_kv = block_add(&a->m, "cu_seqlens_kv", p->batch + 1, sizeof(int32_t));
        draw_bounds(a, a->cu_kv, p->seq_kv, p->total_kv);
    }
    if (p->used_q) {
        struct block *used = block_add(&a->m, "used_q", p->batch, sizeof(int32_t));
        for (int64_t b = 0; b < p->batch; b++) {
            ints(used)[b] = (int32_t)draw(&a->m, (uint64_t)rows_of(a, b) + 1);
        }
        a->used_q = used;
    }
    for (int64_t b = 0; b < p->batch; b++) {
        const int64_t most =
            a->cu_kv != NULL ? ints(a->cu_kv)[b + 1] - ints(a->cu_kv)[b] : p->seq_kv;
        const int64_t n = rows_of(a, b), kind = (int64_t)draw(&a->m, 8);
        int64_t used = n + (int64_t)draw(&a->m, (uint64_t)(most > n ? most - n : 0) + 1);
        used = kind == 0 ? 0 : kind == 1 ? (int64_t)draw(&a->m, (uint64_t)n + 1) : used;
        used = kind == 2 || used > most ? most : used; /* the last page is full */
        ints(a->used)[b] = (int32_t)used;
    }
}

/* Each page once, but those before all new rows of the first two sequences: these are shared. */
static void draw_table(struct append *a) {
    const attn_problem *p = &a->p;
    const int64_t stride = p->block_table_stride;
    int64_t next = (int64_t)draw(&a->m, (uint64_t)p->num_pages);
    a->table = block_add(&a->m, "block_table", p->batch * stride, sizeof(int32_t));
    for (int64_t b = 0; b < p->batch; b++) {
        const int64_t pages = (ints(a->used)[b] + p->page_size - 1) / p->page_size;
        for (int64_t i = 0; i < pages; i++, next++) {
            ints(a->table)[b * stride + i] = (int32_t)(next * 7 % p->num_pages);
        }
    }
    const int64_t one = p->batch > 1 ? ints(a->used)[0] - rows_of(a, 0) : 0;
    const int64_t two = p->batch > 1 ? ints(a->used)[1] - rows_of(a, 1) : 0;
    const int64_t shared = (one < two ? one : two) / p->page_size;
    for (int64_t i = 0; i < shared; i++) {
        ints(a->table)[stride + i] = ints(a->table)[i];
    }
}

static bool is_fp8(const attn_problem *p) {
    return p->dtype_kv > (int32_t)ATTN_BF16;
}

/* What is rotated or quantised: numbers; the rest stays random bits. */
static void draw_numbers(struct append *a, const struct block *block, const attn_strides *s,
                         int64_t entries, int64_t heads, int64_t rows, int64_t columns) {
    for (int64_t n = 0; n < entries * heads * rows; n++) {
        const int64_t at =
            n / rows / heads * s->batch + n / rows % heads * s->head + n % rows * s->row;
        for (int64_t c = 0; c < columns; c++) {
            put(a->p.dtype, host_of(block), at + c, rng_normal(&a->m.state));
        }
    }
}

static void draw_tables(struct append *a) {
    const attn_problem *p = &a->p;
    const size_t size = attn_dtype_size(p->rope_dtype);
    const int64_t count = p->rope_rows * p->rope_stride;
    a->cos = block_add(&a->m, "rope_cos", count, size);
    a->sin = block_add(&a->m, "rope_sin", count, size);
    for (int64_t i = 0; i < count; i++) {
        const float angle = 3.0F * rng_normal(&a->m.state);
        put(p->rope_dtype, host_of(a->cos), i, cosf(angle));
        put(p->rope_dtype, host_of(a->sin), i, sinf(angle));
    }
}

static struct block *draw_scales(struct append *a, const char *name, int64_t count) {
    struct block *scales = block_add(&a->m, name, count, sizeof(float));
    for (int64_t i = 0; i < count; i++) { /* some saturate */
        put(ATTN_FP32, host_of(scales), i, ldexpf(1.0F, (int)draw(&a->m, 12) - 10));
    }
    return scales;
}

static void draw_tensors(struct append *a) {
    const attn_problem *p = &a->p;
    const size_t size = attn_dtype_size(p->dtype);
    const int64_t entries = p->packed ? 1 : p->batch, rows = p->packed ? p->total_q : p->seq_q;
    const int64_t places = p->page_size > 0 ? p->num_pages : entries;
    const int64_t keys = p->page_size > 0 ? p->page_size : p->packed ? p->total_kv : p->seq_kv;
    const int64_t rotated = p->rope != ATTN_ROPE_NONE ? p->rope_dim : 0;
    const size_t size_kv = attn_dtype_size((attn_dtype)p->dtype_kv);
    a->k =
        block_add(&a->m, "k_cache", span(&p->k, places, p->heads_kv, keys, p->head_dim), size_kv);
    a->v =
        block_add(&a->m, "v_cache", span(&p->v, places, p->heads_kv, keys, p->head_dim_v), size_kv);
    if (is_fp8(p) && a->c->scales) {
        a->k_scale = draw_scales(a, "k_scale", span(&p->k_scale, places, p->heads_kv, keys, 1));
        a->v_scale = draw_scales(a, "v_scale", span(&p->v_scale, places, p->heads_kv, keys, 1));
    }
    a->k_new =
        block_add(&a->m, "k_new", span(&p->k_new, entries, p->heads_kv, rows, p->head_dim), size);
    a->v_new =
        block_add(&a->m, "v_new", span(&p->v_new, entries, p->heads_kv, rows, p->head_dim_v), size);
    draw_numbers(a, a->k_new, &p->k_new, entries, p->heads_kv, rows,
                 is_fp8(p) ? p->head_dim : rotated);
    if (is_fp8(p)) {
        draw_numbers(a, a->v_new, &p->v_new, entries, p->heads_kv, rows, p->head_dim_v);
    }
    if (a->c->q) {
        a->q = block_add(&a->m, "q", span(&p->q, entries, p->heads_q, rows, p->head_dim), size);
        draw_numbers(a, a->q, &p->q, entries, p->heads_q, rows, rotated);
        a->q_out = a->c->in_place
                       ? a->q
                       : block_add(&a->m, "q_out",
                                   span(&p->q_out, entries, p->heads_q, rows, p->head_dim), size);
    }
    if (p->rope != ATTN_ROPE_NONE) {
        draw_tables(a);
    }
}

/* One row: copied, then its pairs one by one. */
static void expect_numbers(const struct append *a, char *to, const struct block *from,
                           int64_t from_at, int64_t columns, bool rope, int64_t position) {
    const attn_problem *p = &a->p;
    const int64_t size = (int64_t)attn_dtype_size(p->dtype), half = p->rope_dim / 2;
    memcpy(to, host_of(from) + from_at * size, (size_t)(columns * size));
    for (int64_t c = 0; rope && p->rope != ATTN_ROPE_NONE && c < half; c++) {
        const bool apart = p->rope == ATTN_ROPE_HALVES;
        const int64_t one = apart ? c : 2 * c, two = apart ? c + half : 2 * c + 1;
        const float x = get(p->dtype, host_of(from), from_at + one);
        const float y = get(p->dtype, host_of(from), from_at + two);
        const float cosine = get(p->rope_dtype, host_of(a->cos), position * p->rope_stride + c);
        const float sine = get(p->rope_dtype, host_of(a->sin), position * p->rope_stride + c);
        const float xc = x * cosine, yc = y * cosine;
        put(p->dtype, to, one, (float)((double)xc - (double)y * (double)sine));
        put(p->dtype, to, two, (float)((double)yc + (double)x * (double)sine));
    }
}

static void expect_row(const struct append *a, const struct block *to, int64_t to_at,
                       const struct block *from, int64_t from_at, int64_t columns, bool rope,
                       int64_t position) {
    const int64_t size = (int64_t)attn_dtype_size(a->p.dtype);
    expect_numbers(a, after_of(to) + to_at * size, from, from_at, columns, rope, position);
}

/* A row of K or V, in fp8 quantised: `scale` is its place among the scales. */
static void expect_cached(const struct append *a, const struct block *to, int64_t to_at,
                          const struct block *from, int64_t from_at, int64_t columns, bool rope,
                          int64_t position, const struct block *scales, int64_t scale_at,
                          bool computed) {
    const attn_problem *p = &a->p;
    const attn_dtype dtype = (attn_dtype)p->dtype_kv;
    char row[160 * sizeof(float)];
    if (!is_fp8(p)) {
        expect_row(a, to, to_at, from, from_at, columns, rope, position);
        return;
    }
    expect_numbers(a, row, from, from_at, columns, rope, position);
    float most = 0.0F, scale = scales != NULL ? get(ATTN_FP32, host_of(scales), scale_at) : 1.0F;
    for (int64_t c = 0; c < columns; c++) {
        const float x = fabsf(get(p->dtype, row, c));
        most = x > most ? x : most; /* NaN is no number */
    }
    if (computed) {
        scale = (float)((double)most / (dtype == ATTN_E4M3 ? 448.0 : 57344.0));
        scale = scale < FLT_MIN ? 1.0F : scale;
        put(ATTN_FP32, after_of(scales), scale_at, scale);
    }
    for (int64_t c = 0; c < columns; c++) {
        put(dtype, after_of(to), to_at + c, (float)((double)get(p->dtype, row, c) / (double)scale));
    }
}

static int64_t at(const attn_strides *s, int64_t entry, int64_t head, int64_t row) {
    return entry * s->batch + head * s->head + row * s->row;
}

static void expect(const struct append *a) {
    const attn_problem *p = &a->p;
    for (int64_t b = 0; b < p->batch; b++) {
        const int64_t n = rows_of(a, b);
        const int64_t keys = p->used_kv         ? ints(a->used)[b]
                             : a->cu_kv != NULL ? ints(a->cu_kv)[b + 1] - ints(a->cu_kv)[b]
                                                : p->seq_kv;
        for (int64_t i = keys < n ? n - keys : 0; i < n; i++) {
            const int64_t position = keys - n + i;
            const int64_t row = p->packed ? ints(a->cu_q)[b] + i : i, e = p->packed ? 0 : b;
            int64_t place = e, key = position + (a->cu_kv != NULL ? ints(a->cu_kv)[b] : 0);
            if (p->page_size > 0) {
                place = ints(a->table)[b * p->block_table_stride + position / p->page_size];
                key = position % p->page_size;
            }
            for (int64_t h = 0; h < p->heads_kv; h++) {
                expect_cached(a, a->k, at(&p->k, place, h, key), a->k_new, at(&p->k_new, e, h, row),
                              p->head_dim, true, position, a->k_scale,
                              at(&p->k_scale, place, h, key), p->k_scale.row != 0);
                if (!p->v_in_k) {
                    expect_cached(a, a->v, at(&p->v, place, h, key), a->v_new,
                                  at(&p->v_new, e, h, row), p->head_dim_v, false, position,
                                  a->v_scale, at(&p->v_scale, place, h, key), p->v_scale.row != 0);
                }
            }
            for (int64_t h = 0; a->c->q && h < p->heads_q; h++) {
                expect_row(a, a->q_out, at(&p->q_out, e, h, row), a->q, at(&p->q, e, h, row),
                           p->head_dim, true, position);
            }
        }
    }
}

static const char *run_append(struct append *a, attn_context *context, const char *variant) {
    attn_error why = {""};
    attn_plan_options options;
    attn_plan *plan = NULL;
    attn_tensors t;
    attn_plan_options_init(&options);
    options.direction = ATTN_APPEND;
    options.variant = variant;
    attn_tensors_init(&t);
    t.q = device_of(a->q);
    t.q_out = device_of(a->q_out);
    t.k_new = device_of(a->k_new);
    t.v_new = device_of(a->v_new);
    t.k_cache = device_of(a->k);
    t.v_cache = device_of(a->v);
    t.rope_cos = device_of(a->cos);
    t.rope_sin = device_of(a->sin);
    t.cu_seqlens_q = device_of(a->cu_q);
    t.cu_seqlens_kv = device_of(a->cu_kv);
    t.used_kv = device_of(a->used);
    t.used_q = device_of(a->used_q);
    t.block_table = device_of(a->table);
    t.k_scale = device_of(a->k_scale);
    t.v_scale = device_of(a->v_scale);
    if (attn_plan_create(context, &a->c->p, &options, &plan, &why) != ATTN_OK) {
        return say("%s", why.text);
    }
    const attn_status status = attn_append(plan, &t, NULL, &why);
    attn_plan_destroy(plan);
    return status == ATTN_OK && device_wait(a->m.device, &why) ? NULL : say("%s", why.text);
}

const char *append_try(attn_context *context, struct device *device, const char *variant,
                       const struct append_case *c) {
    struct append a = {.c = c, .m = {.device = device, .state = c->seed}};
    attn_error why;
    if (attn_problem_resolve(&c->p, &a.p, &why) != ATTN_OK) {
        return say("%s", why.text);
    }
    draw_lengths(&a);
    if (a.p.page_size > 0) {
        draw_table(&a);
    }
    draw_tensors(&a);
    expect_no_change(&a.m);
    expect(&a);
    const char *failed = send(&a.m);
    failed = failed != NULL ? failed : run_append(&a, context, variant);
    failed = failed != NULL ? failed : receive(&a.m);
    failed = failed != NULL ? failed : compare_bytes(&a.m);
    memory_free(&a.m);
    return failed;
}

static int64_t pick(uint64_t *state, int64_t below) {
    return (int64_t)(rng_next(state) % (uint64_t)below);
}

/* Rows of 160 elements, wider than any head. */
static attn_strides with_gaps(int64_t heads, int64_t rows) {
    return (attn_strides){heads * rows * 160, rows * 160, 160};
}

/* One per tensor, per head, per token and head. */
static attn_strides scale_strides(const attn_problem *p, int64_t kind) {
    const int64_t rows = p->page_size > 0 ? p->page_size : p->packed ? p->total_kv : p->seq_kv;
    return kind == 0   ? (attn_strides){0, 0, 0}
           : kind == 1 ? (attn_strides){0, 1, 0}
                       : (attn_strides){p->heads_kv * rows, rows, 1};
}

struct append_case append_case_of(int index) {
    static const int64_t pages[] = {0, 0, 1, 3, 7, 16, 64};
    static const int64_t dims[] = {64, 64, 128, 40, 24, 30, 9};
    uint64_t s = 1000 + (uint64_t)index;
    struct append_case c = {.q = pick(&s, 3) > 0, .in_place = pick(&s, 2) > 0, .seed = s};
    attn_problem *p = &c.p;
    attn_problem_init(p);
    p->dtype = (attn_dtype)pick(&s, 3);
    p->layout = (attn_layout)pick(&s, 2);
    p->batch = pick(&s, 8) == 0 ? 70 : 1 + pick(&s, 4);
    p->heads_kv = 1 + pick(&s, 3);
    p->heads_q = p->heads_kv * (1 + pick(&s, 3));
    p->head_dim = dims[pick(&s, 7)];
    p->head_dim_v = pick(&s, 4) == 0 ? dims[pick(&s, 7)] : p->head_dim;
    p->seq_q = 1 + pick(&s, 6);
    p->seq_kv = 17 + pick(&s, 40);
    p->page_size = pages[pick(&s, 7)];
    p->used_kv = p->page_size > 0 || pick(&s, 4) > 0;
    p->used_q = index % 3 == 1;
    p->draft = index % 5 == 1; /* ignored */
    p->packed = pick(&s, 2) > 0;
    p->total_q = p->packed ? p->batch * p->seq_q : 0;
    p->total_kv = p->packed ? p->batch * p->seq_kv : 0;
    p->alignment = (int32_t)attn_dtype_size(p->dtype) * (pick(&s, 4) > 0 ? 8 : 1);
    if (p->page_size > 0) {
        const int64_t most = (p->seq_kv + p->page_size - 1) / p->page_size;
        p->num_pages = p->batch * most + 1;
        p->num_pages += p->num_pages % 7 == 0; /* draw_table steps by 7 */
        p->block_table_stride = pick(&s, 2) > 0 ? 0 : most + pick(&s, 3);
    }
    p->rope = (attn_rope)pick(&s, 3);
    p->rope_dim = p->head_dim / (1 + pick(&s, 2)) / 2 * 2;
    p->rope_dtype = pick(&s, 2) > 0 ? p->dtype : ATTN_FP32;
    p->rope_rows = p->seq_kv + pick(&s, 2);
    p->rope_stride = p->rope_dim / 2 + pick(&s, 3);
    if (pick(&s, 4) == 0) {
        p->k = with_gaps(p->heads_kv, p->page_size > 0 ? p->page_size
                                      : p->packed      ? p->total_kv
                                                       : p->seq_kv);
        p->q_out = with_gaps(p->heads_q, p->packed ? p->total_q : p->seq_q);
        c.in_place = false;
    }
    p->v_in_k = index % 8 == 5 || index % 16 == 7;
    p->head_dim_v = p->v_in_k ? p->head_dim : p->head_dim_v;
    if (index % 4 == 3) {
        p->dtype_kv = (int32_t)(pick(&s, 2) > 0 ? ATTN_E4M3 : ATTN_E5M2);
        c.scales = pick(&s, 4) > 0;
        p->k_scale = scale_strides(p, c.scales ? pick(&s, 3) : 0);
        p->v_scale = scale_strides(p, c.scales ? pick(&s, 3) : 0);
    }
    return c;
}

/* ---- merge ----------------------------------------------------------------------------------- */

struct merge {
    const struct merge_case *c;
    attn_problem p;
    struct memory m;
    struct block *o_parts[ATTN_MERGE_PARTS], *lse_parts[ATTN_MERGE_PARTS], *o, *lse;
    int64_t entries, rows;
};

static attn_dtype dtype_of(const struct merge *g, int32_t part) {
    return g->c->running && part == 0 ? ATTN_FP32 : g->p.dtype;
}

static void draw_parts(struct merge *g) {
    const attn_problem *p = &g->p;
    const int64_t elements = span(&p->o, g->entries, p->heads_q, g->rows, p->head_dim_v);
    const int64_t sums = span(&p->lse, g->entries, p->heads_q, g->rows, 1);
    for (int32_t i = 0; i < g->c->count; i++) {
        g->o_parts[i] = block_add(&g->m, "a part's O", elements, attn_dtype_size(dtype_of(g, i)));
        g->lse_parts[i] = block_add(&g->m, "a part's LSE", sums, sizeof(float));
    }
    for (int64_t n = 0; n < g->entries * p->heads_q * g->rows; n++) {
        const int64_t e = n / g->rows / p->heads_q, h = n / g->rows % p->heads_q, r = n % g->rows;
        const int64_t kind = (int64_t)draw(&g->m, 8); /* 0: nothing; 1: one part */
        const int64_t only = (int64_t)draw(&g->m, (uint64_t)g->c->count);
        for (int32_t i = 0; i < g->c->count; i++) {
            const bool seen =
                g->c->plain || (kind > 1 ? draw(&g->m, 4) > 0 : kind == 1 && i == only);
            put(ATTN_FP32, host_of(g->lse_parts[i]), at(&p->lse, e, h, r),
                g->c->plain ? 0.0F
                : seen      ? 4.0F * rng_normal(&g->m.state)
                            : -INFINITY);
            for (int64_t c = 0; c < p->head_dim_v; c++) {
                const float x = n % 5 == 1 && c == 2 ? -0.0F : rng_normal(&g->m.state);
                put(dtype_of(g, i), host_of(g->o_parts[i]), at(&p->o, e, h, r) + c,
                    !seen || (n % 11 == 3 && c == 5) ? NAN : x);
            }
        }
    }
    const bool here = g->c->in_place && p->dtype_o == (int32_t)dtype_of(g, 0);
    g->o = here ? g->o_parts[0]
                : block_add(&g->m, "o", elements, attn_dtype_size((attn_dtype)p->dtype_o));
    if (g->c->lse) {
        g->lse = g->c->in_place || g->c->running ? g->lse_parts[0]
                                                 : block_add(&g->m, "lse", sums, sizeof(float));
    }
}

/* NaN where NaN is expected, bits where one part or none was seen, else near. */
static const char *compare_row(const struct merge *g, int64_t o, int64_t lse) {
    const attn_problem *p = &g->p;
    const attn_dtype dtype = (attn_dtype)p->dtype_o;
    static const double tolerance[] = {2e-6, 1e-3, 8e-3};
    double top = -INFINITY, sum = g->c->plain ? 1.0 : 0.0;
    int seen = 0;
    for (int32_t i = 0; i < g->c->count; i++) {
        const double x = (double)get(ATTN_FP32, after_of(g->lse_parts[i]), lse);
        top = x > top ? x : top;
        seen += x != -INFINITY;
    }
    for (int32_t i = 0; seen > 0 && !g->c->plain && i < g->c->count; i++) {
        sum += exp((double)get(ATTN_FP32, after_of(g->lse_parts[i]), lse) - top);
    }
    if (g->lse != NULL) {
        const double want = seen > 0 ? top + log(sum) : -INFINITY;
        const float got = get(ATTN_FP32, host_of(g->lse), lse);
        if (seen < 2 ? (double)got != want : !near((double)got, want, 1e-6)) {
            return say("LSE at %d is %.9g, expected %.9g (%d parts)", (int)lse, (double)got, want,
                       seen);
        }
    }
    for (int64_t c = 0; c < p->head_dim_v; c++) {
        double want = seen > 0 ? -0.0 : 0.0;
        for (int32_t i = 0; i < g->c->count; i++) {
            const double x = (double)get(ATTN_FP32, after_of(g->lse_parts[i]), lse);
            if (x != -INFINITY) {
                want += exp(x - top) / sum *
                        (double)get(dtype_of(g, i), after_of(g->o_parts[i]), o + c);
            }
        }
        const float got = get(dtype, host_of(g->o), o + c);
        char exact[4] = {0};
        put(dtype, exact, 0, (float)want);
        const bool same =
            seen < 2 && !isnan(want)
                ? memcmp(exact, host_of(g->o) + (o + c) * (int64_t)attn_dtype_size(dtype),
                         attn_dtype_size(dtype)) == 0
            : isnan(want) ? isnan(got)
                          : near((double)got, want, tolerance[dtype]);
        if (!same) {
            return say("O at %d, column %d is %.9g, expected %.9g (%d parts)", (int)o, (int)c,
                       (double)got, want, seen);
        }
    }
    return NULL;
}

static const char *compare(struct merge *g) {
    const attn_problem *p = &g->p;
    const char *failed = NULL;
    for (int64_t n = 0; failed == NULL && n < g->entries * p->heads_q * g->rows; n++) {
        const int64_t e = n / g->rows / p->heads_q, h = n / g->rows % p->heads_q, r = n % g->rows;
        const int64_t o = at(&p->o, e, h, r), lse = at(&p->lse, e, h, r);
        failed = compare_row(g, o, lse);
        if (g->lse != NULL && failed == NULL) { /* judged: what is left must not have changed */
            memcpy(after_of(g->lse) + lse * 4, host_of(g->lse) + lse * 4, 4);
        }
        const size_t size = attn_dtype_size((attn_dtype)p->dtype_o);
        if (failed == NULL) {
            memcpy(after_of(g->o) + o * (int64_t)size, host_of(g->o) + o * (int64_t)size,
                   (size_t)p->head_dim_v * size);
        }
    }
    return failed != NULL ? failed : compare_bytes(&g->m);
}

static const char *run_merge(struct merge *g, attn_context *context, const char *variant) {
    attn_error why = {""};
    attn_plan_options options;
    attn_plan *plan = NULL;
    const void *o_parts[ATTN_MERGE_PARTS];
    const float *lse_parts[ATTN_MERGE_PARTS];
    attn_plan_options_init(&options);
    options.direction = ATTN_MERGE;
    options.variant = variant;
    for (int32_t i = 0; i < g->c->count; i++) {
        o_parts[i] = device_of(g->o_parts[i]);
        lse_parts[i] = device_of(g->lse_parts[i]);
    }
    if (attn_plan_create(context, &g->c->p, &options, &plan, &why) != ATTN_OK) {
        return say("%s", why.text);
    }
    const attn_status status =
        g->c->running ? attn_accumulate(plan, o_parts[1], g->c->plain ? NULL : lse_parts[1],
                                        device_of(g->o_parts[0]), device_of(g->lse),
                                        g->c->in_place ? NULL : device_of(g->o), NULL, &why)
                      : attn_merge(plan, o_parts, g->c->plain ? NULL : lse_parts, g->c->count,
                                   device_of(g->o), device_of(g->lse), NULL, &why);
    attn_plan_destroy(plan);
    return status == ATTN_OK && device_wait(g->m.device, &why) ? NULL : say("%s", why.text);
}

const char *merge_try(attn_context *context, struct device *device, const char *variant,
                      const struct merge_case *c) {
    struct merge g = {.c = c, .m = {.device = device, .state = c->seed}};
    attn_problem same = c->p;
    attn_error why;
    same.dtype_o = -1; /* attn_problem_resolve is for forward */
    if (attn_problem_resolve(&same, &g.p, &why) != ATTN_OK) {
        return say("%s", why.text);
    }
    g.p.dtype_o = c->p.dtype_o >= 0 ? c->p.dtype_o : (int32_t)c->p.dtype;
    g.p.dtype_o = c->running && c->in_place ? (int32_t)ATTN_FP32 : g.p.dtype_o;
    g.entries = g.p.packed ? 1 : g.p.batch;
    g.rows = g.p.packed ? g.p.total_q : g.p.seq_q;
    draw_parts(&g);
    expect_no_change(&g.m);
    const char *failed = send(&g.m);
    failed = failed != NULL ? failed : run_merge(&g, context, variant);
    failed = failed != NULL ? failed : receive(&g.m);
    failed = failed != NULL ? failed : compare(&g);
    memory_free(&g.m);
    return failed;
}

struct merge_case merge_case_of(int index) {
    static const int32_t counts[] = {1, 2, 3, 5, 16, ATTN_MERGE_PARTS};
    static const int64_t dims[] = {64, 128, 40, 7, 256, 24, 576};
    uint64_t s = 2000 + (uint64_t)index;
    struct merge_case c = {.count = counts[pick(&s, 6)],
                           .lse = pick(&s, 4) > 0,
                           .in_place = pick(&s, 3) == 0,
                           .seed = s};
    attn_problem *p = &c.p;
    attn_problem_init(p);
    p->dtype = (attn_dtype)pick(&s, 3);
    p->dtype_o = (int32_t)pick(&s, 4) - 1;
    p->layout = (attn_layout)pick(&s, 2);
    p->batch = 1 + pick(&s, 3);
    p->heads_q = 1 + pick(&s, 4);
    p->seq_q = 1 + pick(&s, 9);
    p->head_dim = dims[pick(&s, 7)];
    p->packed = pick(&s, 4) == 0;
    p->total_q = p->packed ? p->batch * p->seq_q : 0;
    p->alignment = (int32_t)attn_dtype_size(p->dtype) * (pick(&s, 2) > 0 ? 8 : 1);
    if (!p->packed && pick(&s, 4) == 0) { /* rows apart, LSE as (rows, heads) */
        p->o = (attn_strides){p->seq_q * p->heads_q * 640, 640, p->heads_q * 640};
        p->lse = (attn_strides){p->seq_q * p->heads_q, 1, p->heads_q};
    }
    c.plain = pick(&s, 4) == 0;
    c.lse = c.lse && !c.plain;
    return c;
}

struct merge_case accumulate_case_of(int index) {
    struct merge_case c = merge_case_of(index);
    c.count = 2;
    c.running = true;
    c.lse = !c.plain;
    return c;
}
