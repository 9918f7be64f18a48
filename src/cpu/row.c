/* SPDX-License-Identifier: Apache-2.0
 *
 * row.c - drives a row kernel (decode, split-KV): few query rows against many keys.
 *
 * The keys are split at a fixed length. Each split gives a partial result (m, l, O) per row; these
 * are combined in the order of the splits, so the bits do not depend on threads or timing.
 *
 * Scratch of one thread:   queries (fp32) | scores | addresses and scales of rows of K, of V |
 *                          a few dequantised rows of an fp8 cache
 * After all threads':      partials [batch][KV head][cut][split] of m[rows], l[rows], O[rows][dim]
 */
#include "core/plan.h"
#include "cpu/cpu.h"

#include <math.h>
#include <string.h>

#define UNSEEN (-1.0F) /* the sum of a row that sees no key of the split: skipped, O is unwritten */

/* Keys of an fp8 cache that are dequantised at a time: they stay in L1. A multiple of what the
 * kernels sum up at once, so that the bits are those of a 16-bit cache. */
enum { FP8_KEYS = 64 };

struct layout {
    size_t q, s, k, v, fp8, bytes; /* in a thread's scratch */
    size_t m, l, o, partial;       /* in one partial result */
};

static struct layout lay_out(const attn_problem *p, const struct cpu_geometry *g) {
    const size_t rows = (size_t)g->block_q;
    struct layout at = {0};
    at.s = at.q + cpu_round_up(rows * (size_t)p->head_dim * sizeof(float));
    at.k = at.s + cpu_round_up(rows * (size_t)g->block_kv * sizeof(float));
    at.v = at.k + cpu_list_bytes(p, g->block_kv);
    at.fp8 = at.v + cpu_list_bytes(p, g->block_kv);
    at.bytes = at.fp8 + cpu_fp8_bytes(p, FP8_KEYS);
    at.l = at.m + cpu_round_up(rows * sizeof(float));
    at.o = at.l + cpu_round_up(rows * sizeof(float));
    at.partial = at.o + cpu_round_up(rows * (size_t)p->head_dim_v * sizeof(float));
    return at;
}

bool cpu_row_plan(const attn_problem *p, struct cpu_geometry *g) {
    const int64_t group = p->heads_q / p->heads_kv;
    const int64_t queries = p->seq_q > 0 ? p->seq_q : 1;
    g->head_cuts = 1;
    g->unit_heads = group;
    g->block_q = (int)(group * queries);
    if (p->seq_kv < g->block_kv) {
        g->block_kv = p->seq_kv > 0 ? (int)p->seq_kv : 1;
    }
    g->chunks = (p->seq_kv + g->block_kv - 1) / g->block_kv;
    g->chunks = g->chunks > 0 ? g->chunks : 1;
    const struct layout at = lay_out(p, g);
    g->slot_bytes = at.bytes;
    const size_t partials = (size_t)(p->batch * p->heads_kv * g->chunks);
    return !__builtin_mul_overflow(at.partial, partials, &g->partial_bytes) &&
           g->partial_bytes < SIZE_MAX / 2;
}

struct unit {
    const struct cpu_job *job;
    const struct cpu_row_kernel *kernel;
    struct layout at;
    struct sequence sequence;
    int64_t batch, head_kv, heads, split;
    int rows;
};

/* False: no rows (a packed batch may hold empty sequences). */
static bool find_unit(const struct cpu_job *job, int64_t index, struct unit *u) {
    const attn_problem *p = job->problem;
    const struct cpu_geometry *g = &job->plan->cpu;
    *u = (struct unit){.job = job, .kernel = g->isa->row, .at = lay_out(p, g)};
    u->split = index % g->chunks;
    u->head_kv = index / g->chunks % p->heads_kv;
    u->batch = index / g->chunks / p->heads_kv;
    u->heads = g->unit_heads;
    u->sequence = sequence_of(p, job->tensors, u->batch);
    u->rows = (int)(u->sequence.q_len * u->heads);
    return u->rows > 0;
}

static int64_t row_query(const struct unit *u, int row) {
    return row / u->heads;
}

static int64_t row_head(const struct unit *u, int row) {
    return u->head_kv * u->heads + row % u->heads;
}

static char *partial_of(const struct unit *u, int64_t split) {
    const struct cpu_geometry *g = &u->job->plan->cpu;
    const int64_t index = (u->batch * u->job->problem->heads_kv + u->head_kv) * g->chunks + split;
    char *partials = u->job->workspace + u->job->plan->threads * g->slot_bytes;
    return partials + (size_t)index * u->at.partial;
}

static float *floats(char *base, size_t at) {
    return (float *)(void *)(base + at);
}

/* ---- one split ------------------------------------------------------------------------------- */

static void load_queries(const struct unit *u, float *q) {
    const attn_problem *p = u->job->problem;
    const float multiplier = cpu_scale(p).q;
    for (int r = 0; r < u->rows; r++) {
        const char *row =
            cpu_q_row(u->job, &u->sequence, u->batch, row_head(u, r), row_query(u, r));
        u->kernel->load(p->dtype, row, (int)p->head_dim, multiplier, q + r * p->head_dim);
    }
}

static struct cpu_rows slice(const struct cpu_rows *all, int begin, int end) {
    struct cpu_rows part = *all;
    part.base += begin * all->stride;
    part.list = all->list != NULL ? all->list + begin : NULL;
    part.scale = all->scale != NULL ? all->scale + begin : NULL;
    part.count = end - begin;
    return part;
}

/* How many of the keys from `first` on the kernels take at a time. */
static int step_of(const struct unit *u, const struct cpu_rows *rows, int first) {
    const int rest = rows->count - first;
    return problem_is_fp8(u->job->problem) && rest > FP8_KEYS ? FP8_KEYS : rest;
}

static void score(const struct unit *u, char *scratch, const float *q, const struct cpu_rows *k,
                  float *s) {
    for (int j = 0; j < k->count; j += step_of(u, k, j)) {
        const struct cpu_rows part = slice(k, j, j + step_of(u, k, j));
        const struct cpu_rows rows = cpu_dequantize(u->job, &part, scratch + u->at.fp8);
        u->kernel->score(q, u->rows, &rows, s + j, u->job->plan->cpu.block_kv);
    }
}

static void weigh(const struct unit *u, char *scratch, const float *p, int rows,
                  const struct cpu_rows *v, float *o) {
    for (int j = 0; j < v->count; j += step_of(u, v, j)) {
        const struct cpu_rows part = slice(v, j, j + step_of(u, v, j));
        const struct cpu_rows own = cpu_dequantize(u->job, &part, scratch + u->at.fp8);
        u->kernel->weigh(p + j, u->job->plan->cpu.block_kv, rows, &own, o);
    }
}

/* O of every row over the keys it sees. Those that all rows see are walked once for all; the
 * rest row by row, so that an invisible V is never multiplied, not even by zero. */
static void weigh_rows(const struct unit *u, char *scratch, const struct key_range *keys,
                       const struct cpu_rows *v, const float *s, float *o) {
    const int stride = u->job->plan->cpu.block_kv;
    struct key_range common = keys[0];
    for (int r = 1; r < u->rows; r++) {
        common.begin = keys[r].begin > common.begin ? keys[r].begin : common.begin;
        common.end = keys[r].end < common.end ? keys[r].end : common.end;
    }
    const bool shared = common.end > common.begin;
    if (shared) {
        const struct cpu_rows part = slice(v, (int)common.begin, (int)common.end);
        weigh(u, scratch, s + common.begin, u->rows, &part, o);
    }
    for (int r = 0; r < u->rows; r++) {
        const struct key_range left = {keys[r].begin, shared ? common.begin : keys[r].end};
        const struct key_range right = {shared ? common.end : keys[r].end, keys[r].end};
        const struct key_range rest[2] = {left, right};
        for (int i = 0; i < 2; i++) {
            if (rest[i].end > rest[i].begin) {
                const struct cpu_rows part = slice(v, (int)rest[i].begin, (int)rest[i].end);
                weigh(u, scratch, s + (ptrdiff_t)r * stride + rest[i].begin, 1, &part,
                      o + (ptrdiff_t)r * v->cols);
            }
        }
    }
}

/* What each row sees of the split, counted from its first key; returns the span of all rows. */
static struct key_range see_keys(const struct unit *u, int64_t first, int64_t count,
                                 struct key_range *keys) {
    struct key_range all = {count, 0};
    for (int r = 0; r < u->rows; r++) {
        const struct key_range seen = visible_keys(u->job->problem, &u->sequence, row_query(u, r));
        struct key_range *own = &keys[r];
        own->begin = seen.begin - first > 0 ? seen.begin - first : 0;
        own->end = seen.end - first < count ? seen.end - first : count;
        /* what a mask hides at the ends is not even read */
        if (u->job->problem->mask && own->end > own->begin) {
            cpu_narrow(cpu_mask_row(u->job, u->batch, row_head(u, r), row_query(u, r), first),
                       u->job->problem->mask_strides.col, own);
        }
        if (own->end <= own->begin) {
            *own = (struct key_range){0, 0};
        } else {
            all.begin = own->begin < all.begin ? own->begin : all.begin;
            all.end = own->end > all.end ? own->end : all.end;
        }
    }
    return all;
}

static void adjust_rows(const struct unit *u, int64_t first, const struct key_range *keys,
                        float *s) {
    struct cpu_adjust adjust;
    cpu_adjust_init(u->job, &adjust);
    for (int r = 0; r < u->rows; r++) {
        cpu_adjust_row(u->job, &u->sequence, u->batch, row_head(u, r), row_query(u, r), first, r,
                       &adjust);
        if (adjust.alibi) {
            adjust.slope[r] =
                alibi_slope(u->job->problem, u->job->tensors, u->batch, row_head(u, r));
        }
        u->kernel->adjust(s + (ptrdiff_t)r * u->job->plan->cpu.block_kv + keys[r].begin,
                          (int)keys[r].begin, (int)(keys[r].end - keys[r].begin), &adjust, r);
    }
}

static void hide_keys(const struct unit *u, int64_t first, const struct key_range *keys, float *s) {
    const int64_t col = u->job->problem->mask_strides.col;
    for (int r = 0; r < u->rows; r++) {
        const uint8_t *mask =
            cpu_mask_row(u->job, u->batch, row_head(u, r), row_query(u, r), first);
        u->kernel->hide(s + (ptrdiff_t)r * u->job->plan->cpu.block_kv + keys[r].begin,
                        mask + keys[r].begin * col, col, (int)(keys[r].end - keys[r].begin));
    }
}

static void hide_drafts(const struct unit *u, int64_t first, const struct key_range *keys,
                        float *s) {
    const struct sequence *own = &u->sequence;
    const int64_t begin = own->kv_len - own->q_len - first;
    for (int r = 0; r < u->rows; r++) {
        float *row = s + (ptrdiff_t)r * u->job->plan->cpu.block_kv;
        const uint64_t bits =
            draft_bits(u->job->problem, u->job->tensors, own, u->batch, row_query(u, r));
        for (int64_t j = begin > keys[r].begin ? begin : keys[r].begin; j < keys[r].end; j++) {
            row[j] = draft_hides(own, bits, first + j) ? -INFINITY : row[j];
        }
    }
}

static void compute_split(const struct unit *u, char *scratch) {
    const struct cpu_job *job = u->job;
    const struct cpu_geometry *g = &job->plan->cpu;
    char *partial = partial_of(u, u->split);
    float *m = floats(partial, u->at.m);
    float *l = floats(partial, u->at.l);
    float *o = floats(partial, u->at.o);
    float *s = floats(scratch, u->at.s);
    const int64_t first = u->split * g->block_kv;
    int64_t count = u->sequence.kv_len - first;
    count = count > g->block_kv ? g->block_kv : (count > 0 ? count : 0);
    struct key_range keys[CPU_MAX_ROW_ROWS] = {{0, 0}};
    const struct key_range all = see_keys(u, first, count, keys);
    for (int r = 0; r < u->rows; r++) {
        m[r] = -INFINITY;
        l[r] = UNSEEN;
    }
    if (all.end <= all.begin) {
        return; /* O stays unwritten */
    }
    memset(o, 0, (size_t)u->rows * (size_t)job->problem->head_dim_v * sizeof(float));
    float *q = floats(scratch, u->at.q);
    load_queries(u, q);
    const struct cpu_rows k =
        cpu_k_rows(job, &u->sequence, u->batch, u->head_kv, first, (int)count, scratch + u->at.k);
    const struct cpu_rows v =
        cpu_v_rows(job, &u->sequence, u->batch, u->head_kv, first, (int)count, scratch + u->at.v);
    const struct cpu_rows seen = slice(&k, (int)all.begin, (int)all.end);
    score(u, scratch, q, &seen, s + all.begin);
    if (cpu_needs_adjust(job->problem)) {
        adjust_rows(u, first, keys, s);
    }
    if (job->problem->mask) {
        hide_keys(u, first, keys, s);
    }
    if (job->problem->draft) {
        hide_drafts(u, first, keys, s);
    }
    const float factor = cpu_softmax_factor(job->problem);
    for (int r = 0; r < u->rows; r++) {
        if (keys[r].end > keys[r].begin) {
            l[r] = u->kernel->softmax(s + (ptrdiff_t)r * g->block_kv + keys[r].begin,
                                      (int)(keys[r].end - keys[r].begin), factor, &m[r]);
        }
    }
    weigh_rows(u, scratch, keys, &v, s, o);
}

/* ---- all splits of one KV head --------------------------------------------------------------- */

/* Joins the partials of row r in the first one's O; returns the row's maximum and sum. */
static void combine_row(const struct unit *u, int r, float *max, float *sum) {
    const struct cpu_geometry *g = &u->job->plan->cpu;
    const int64_t cols = u->job->problem->head_dim_v;
    const float factor = cpu_softmax_factor(u->job->problem);
    float highest = -INFINITY;
    bool nan = false;
    for (int64_t split = 0; split < g->chunks; split++) {
        const float m = floats(partial_of(u, split), u->at.m)[r];
        highest = m > highest ? m : highest;
        nan = nan || isnan(m);
    }
    float *out = floats(partial_of(u, 0), u->at.o) + r * cols;
    const float only = floats(partial_of(u, 0), u->at.l)[r];
    if (only == UNSEEN) {
        memset(out, 0, (size_t)cols * sizeof(float));
    }
    float total = g->chunks == 1 && only != UNSEEN ? only : 0.0F;
    for (int64_t split = 0; split < g->chunks && g->chunks > 1; split++) {
        char *partial = partial_of(u, split);
        const float m = floats(partial, u->at.m)[r];
        const float l = floats(partial, u->at.l)[r];
        if (l == UNSEEN) {
            continue;
        }
        /* scores of -inf alone weigh nothing, but their O may hold 0 * NaN */
        const float weight = m == -INFINITY && l == 0.0F ? 0.0F : exp2f(factor * (m - highest));
        const float *o = floats(partial, u->at.o) + r * cols;
        total += weight * l;
        for (int64_t c = 0; c < cols; c++) {
            out[c] = split == 0 ? weight * o[c] : out[c] + weight * o[c];
        }
    }
    *max = nan ? NAN : highest;
    *sum = nan ? NAN : total;
}

static void end_unit(const struct unit *u) {
    const attn_problem *p = u->job->problem;
    for (int r = 0; r < u->rows; r++) {
        const int64_t i = row_query(u, r);
        const int64_t h = row_head(u, r);
        float max;
        float sum;
        combine_row(u, r, &max, &sum);
        const float inverse = cpu_end_row(u->job, &u->sequence, u->batch, h, i, max, sum);
        u->kernel->epilogue(floats(partial_of(u, 0), u->at.o) + r * p->head_dim_v,
                            (int)p->head_dim_v, inverse, p->dtype,
                            cpu_o_row(u->job, &u->sequence, u->batch, h, i));
    }
}

static void run_split(void *argument, int64_t index, int slot) {
    const struct cpu_job *job = argument;
    const struct cpu_geometry *g = &job->plan->cpu;
    struct unit u;
    if (!find_unit(job, index, &u)) {
        return;
    }
    compute_split(&u, job->workspace + (size_t)slot * g->slot_bytes);
    if (g->chunks == 1) {
        end_unit(&u);
    }
}

static void run_end(void *argument, int64_t index, int slot) {
    (void)slot;
    const struct cpu_job *job = argument;
    struct unit u;
    if (find_unit(job, index * job->plan->cpu.chunks, &u)) {
        end_unit(&u);
    }
}

void cpu_row_forward(const struct cpu_job *job, struct pool *pool) {
    const int64_t heads = job->problem->batch * job->problem->heads_kv;
    const int64_t splits = job->plan->cpu.chunks;
    void *argument = (void *)(uintptr_t)job;
    pool_run(pool, heads * splits, run_split, argument);
    if (splits > 1) {
        pool_run(pool, heads, run_end, argument);
    }
}
