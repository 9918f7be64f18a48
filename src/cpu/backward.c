/* SPDX-License-Identifier: Apache-2.0
 *
 * backward.c - gradients on the tile kernels. Rows of a tile are keys here, and its keys queries,
 * so that the GEMMs of forward give four of the five of backward as they are:
 *
 *     D = rowsum(dO * O)                                        pass 1: every row
 *     one unit = (batch entry, KV head, every n-th chunk of keys)   pass 2
 *         pack K, V tiles of the chunk
 *         for each head of the group, each block of queries:  pack Q, dO
 *             for each tile of keys:  S^T = K Q^T, dP^T = V dO^T    score
 *                                     P, dS                         gradient
 *                                     dV += P^T dO, dK += dS^T Q    weigh
 *                                     dQ += dS K                    turn, weigh
 *         dK, dV
 *     dQ = scale * sum of the n partial results, in order        pass 3: every Q tile
 *     d_sink, d_alibi_slopes; d_bias by a pass of its own (backward_bias.c)
 *
 * Scratch of one thread:
 *     tiles of keys: K | V | K for dQ | dK | dV ... | block: Q | Q for dK | dO | dO for dV |
 *     S | dS | dS turned | packing lines | bounds | sums of d_bias
 * Shared: LSE | D | n x partial dQ, as tiles of weigh | partial d_alibi_slopes
 *
 * Invariant: units, chunks and n follow from the shape alone and partial results are added in
 * order, so the bits do not depend on the number of threads.
 */
#include "cpu/backward.h"

#include <math.h>
#include <string.h>

enum {
    CHUNK_ELEMENTS = 384 * 128, /* of a chunk of keys: larger heads get fewer keys */
    WANTED_UNITS = 32,          /* fewer (batch, KV head) pairs: the chunks are shared out */
    MOST_PARTS = 16,            /* partial results of dQ */
    ROWS_OF_TASK = 64           /* of pass 1 */
};

/* ---- geometry -------------------------------------------------------------------------------- */

/* Rows of a packed batch: sequence b has at most ceil(length / rows) tiles from this one on. */
static int64_t first_q_tile(const struct backward_unit *u) {
    const attn_problem *p = u->job->problem;
    const int64_t rows = u->kernel->tile_rows;
    return p->packed ? u->sequence.q_begin / rows + u->batch : u->batch * divide_up(p->seq_q, rows);
}

/* LSE and D of row i of head h. */
static size_t row_place(const attn_problem *p, const struct sequence *s, int64_t b, int64_t h,
                        int64_t i) {
    return p->packed ? (size_t)(h * p->total_q + s->q_begin + i)
                     : (size_t)((b * p->heads_q + h) * p->seq_q + i);
}

static size_t q_rows(const attn_problem *p) {
    return (size_t)p->heads_q * (size_t)(p->packed ? p->total_q : p->batch * p->seq_q);
}

struct backward_layout backward_lay_out(const attn_problem *p, const struct cpu_geometry *g) {
    const struct cpu_tile_kernel *kernel = g->isa->tile;
    const int d = (int)p->head_dim;
    const int dv = (int)p->head_dim_v;
    const int rows = kernel->tile_rows;
    struct backward_layout at = {0};
    at.tiles = g->block_kv / rows;
    at.tile_keys = (int)divide_up(rows, kernel->key_step) * kernel->key_step;
    at.v = kernel->q_bytes(d);
    at.k_rows = at.v + kernel->q_bytes(dv);
    at.dk = at.k_rows + kernel->v_bytes(at.tile_keys, d);
    at.dv = at.dk + kernel->o_bytes(d);
    at.tile_bytes = at.dv + kernel->o_bytes(dv);

    at.q = (size_t)at.tiles * at.tile_bytes;
    at.q_rows = at.q + kernel->k_bytes(g->block_q, d);
    at.d_o = at.q_rows + kernel->v_bytes(g->block_q, d);
    at.d_o_rows = at.d_o + kernel->k_bytes(g->block_q, dv);
    at.s = at.d_o_rows + kernel->v_bytes(g->block_q, dv);
    at.ds = at.s + kernel->s_bytes(g->block_q);
    at.turned = at.ds + kernel->s_bytes(g->block_q);
    at.line = at.turned + kernel->s_bytes(at.tile_keys);
    at.low = at.line + kernel->row_bytes(d > dv ? d : dv);
    at.high = at.low + cpu_round_up((size_t)g->block_q * sizeof(int));
    at.sums = at.high + cpu_round_up((size_t)g->block_q * sizeof(int));
    at.bytes = at.sums;
    if (p->bias) {
        at.bytes += cpu_round_up((size_t)g->block_q * (size_t)rows * sizeof(float));
    }

    at.q_tiles = p->packed ? p->total_q / rows + p->batch : p->batch * divide_up(p->seq_q, rows);
    at.delta = cpu_round_up(q_rows(p) * sizeof(float));
    at.dq = 2 * at.delta;
    at.slopes = at.dq + (size_t)g->chunks * (size_t)(p->heads_q * at.q_tiles) * kernel->o_bytes(d);
    at.shared_bytes = at.slopes;
    if (p->alibi) {
        at.shared_bytes +=
            cpu_round_up((size_t)(g->chunks * p->batch * p->heads_q) * sizeof(double));
    }
    return at;
}

/* block_q: queries of a block, an even number of Q tiles, so that it is a multiple of key_step;
 * block_kv: keys of a chunk, whole tiles; chunks: n. */
bool cpu_backward_plan(const attn_problem *p, struct cpu_geometry *g) {
    const int64_t rows = g->isa->tile->tile_rows;
    const int64_t widest = at_least(p->head_dim, p->head_dim_v);
    const int64_t q = at_most(g->block_q, divide_up(at_least(p->seq_q, 1), 2 * rows) * 2 * rows);
    g->block_q = (int)(at_least(q / (2 * rows), 1) * 2 * rows);
    const int64_t keys = at_most(at_most(g->block_kv, CHUNK_ELEMENTS / widest),
                                 divide_up(at_least(p->seq_kv, 1), rows) * rows);
    g->block_kv = (int)(at_least(keys / rows, 1) * rows);
    const int64_t heads = at_least(p->batch * p->heads_kv, 1);
    const int64_t parts = at_most(divide_up(WANTED_UNITS, heads), MOST_PARTS);
    g->chunks = at_least(at_most(parts, divide_up(p->seq_kv, g->block_kv)), 1);

    /* above what backward_lay_out adds up: each sequence ends with a tile that is not full */
    const double queries =
        (double)(p->packed ? p->total_q : p->batch * p->seq_q) + 64.0 * (double)p->batch;
    const double bytes =
        (double)g->chunks * (double)p->heads_q * queries * ((double)p->head_dim + 64.0) * 8.0;
    if (bytes > 0x1p60) {
        return false;
    }
    const struct backward_layout at = backward_lay_out(p, g);
    g->slot_bytes = at.bytes;
    g->partial_bytes = at.shared_bytes;
    return true;
}

/* ---- a tile of keys and a block of queries --------------------------------------------------- */

struct backward_unit backward_unit(const struct cpu_job *job, int slot) {
    const struct attn_plan *plan = job->plan;
    return (struct backward_unit){
        .job = job,
        .kernel = plan->cpu.isa->tile,
        .at = backward_lay_out(job->problem, &plan->cpu),
        .scratch = job->workspace + (size_t)slot * plan->cpu.slot_bytes,
        .shared = job->workspace + plan->threads * plan->cpu.slot_bytes,
    };
}

void backward_set_batch(struct backward_unit *u, int64_t b) {
    u->batch = b;
    u->sequence = sequence_of(u->job->problem, u->job->tensors, b);
}

static char *tile_piece(const struct backward_unit *u, int index) {
    return u->scratch + (size_t)index * u->at.tile_bytes;
}

static int tile_count(const struct backward_unit *u) {
    return (u->keys + u->kernel->tile_rows - 1) / u->kernel->tile_rows;
}

/* Keys of tile `index` that exist. */
static int tile_rows(const struct backward_unit *u, int index) {
    return (int)at_most(u->kernel->tile_rows, u->keys - (int64_t)index * u->kernel->tile_rows);
}

static void pack_rows(const struct backward_unit *u, const struct cpu_rows *rows, float multiplier,
                      void *packed) {
    const void *pointers[CPU_MAX_TILE_ROWS];
    for (int r = 0; r < rows->count; r++) {
        pointers[r] = cpu_row_at(rows, r);
    }
    u->kernel->pack_q(rows->dtype, pointers, rows->count, rows->cols, multiplier, packed,
                      u->scratch + u->at.line);
}

void backward_load_keys(struct backward_unit *u, int64_t head_kv, int64_t first, int keys) {
    const attn_problem *p = u->job->problem;
    u->head_kv = head_kv;
    u->first_key = first;
    u->keys = keys;
    u->k_tame = true;
    for (int t = 0; t < tile_count(u); t++) {
        const int64_t at = first + (int64_t)t * u->kernel->tile_rows;
        char *piece = tile_piece(u, t);
        const struct cpu_rows k =
            cpu_k_rows(u->job, &u->sequence, u->batch, head_kv, at, tile_rows(u, t), NULL);
        const struct cpu_rows v =
            cpu_v_rows(u->job, &u->sequence, u->batch, head_kv, at, tile_rows(u, t), NULL);
        pack_rows(u, &k, cpu_scale(p).q, piece + u->at.k);
        pack_rows(u, &v, 1.0F, piece + u->at.v);
        const bool tame =
            u->kernel->pack_v(&k, u->at.tile_keys, piece + u->at.k_rows, u->scratch + u->at.line);
        u->k_tame = u->k_tame && tame;
    }
}

void backward_load_queries(struct backward_unit *u, int64_t head, int64_t first, int queries) {
    const attn_problem *p = u->job->problem;
    const attn_tensors *tensors = u->job->tensors;
    const int block = u->job->plan->cpu.block_q;
    const int64_t row = u->sequence.q_begin + first;
    char *line = u->scratch + u->at.line;
    u->head = head;
    u->first_query = first;
    u->queries = queries;
    const struct cpu_rows q =
        cpu_rows_of(p, tensors->q, &p->q, u->batch, head, row, queries, p->head_dim);
    const struct cpu_rows d_o =
        cpu_rows_of(p, tensors->d_o, &p->d_o, u->batch, head, row, queries, p->head_dim_v);
    u->kernel->pack_k(&q, u->scratch + u->at.q, line);
    u->q_tame = u->kernel->pack_v(&q, block, u->scratch + u->at.q_rows, line);
    u->kernel->pack_k(&d_o, u->scratch + u->at.d_o, line);
    u->d_o_tame = u->kernel->pack_v(&d_o, block, u->scratch + u->at.d_o_rows, line);
}

static struct key_range cut(struct key_range range, int64_t first, int count) {
    const int64_t begin = at_most(at_least(range.begin - first, 0), count);
    const int64_t end = at_most(at_least(range.end - first, 0), count);
    return (struct key_range){begin, at_least(begin, end)};
}

/* Which keys of the tile each query sees, which queries each key. False: none. */
static bool see(const struct backward_unit *u, int64_t first_key, int rows, struct cpu_tile *tile) {
    const attn_problem *p = u->job->problem;
    const struct sequence *s = &u->sequence;
    int *low = (int *)(void *)(u->scratch + u->at.low);
    int *high = (int *)(void *)(u->scratch + u->at.high);
    tile->begin = tile->full_begin = u->queries;
    tile->end = tile->full_end = 0;
    for (int r = 0; r < u->kernel->tile_rows; r++) {
        struct key_range seen = {0, 0};
        if (r < rows) {
            seen = cut(visible_queries(p, s, first_key + r), u->first_query, u->queries);
        }
        tile->row_begin[r] = (int)seen.begin;
        tile->row_end[r] = (int)seen.end;
        if (seen.end > seen.begin) {
            tile->begin = (int)at_most(tile->begin, seen.begin);
            tile->end = (int)at_least(tile->end, seen.end);
        }
    }
    for (int i = tile->begin; i < tile->end; i++) {
        const struct key_range keys = cut(visible_keys(p, s, u->first_query + i), first_key, rows);
        low[i] = (int)keys.begin;
        high[i] = (int)keys.end;
    }
    return tile->end > tile->begin;
}

/* Padding: the same keys are hidden from all queries. */
static bool hides_all(const struct backward_unit *u, int64_t first_key, int rows) {
    const attn_problem *p = u->job->problem;
    if (!p->mask || p->mask_strides.row != 0) {
        return false;
    }
    struct key_range keys = {0, rows};
    cpu_narrow(cpu_mask_row(u->job, u->batch, u->head, 0, first_key), p->mask_strides.col, &keys);
    return keys.end == keys.begin;
}

static struct cpu_gradient gradient_of(const struct backward_unit *u, int64_t first_key, int rows) {
    const attn_problem *p = u->job->problem;
    const struct sequence *s = &u->sequence;
    const size_t place = row_place(p, s, u->batch, u->head, u->first_query);
    struct cpu_gradient g = {
        .factor = cpu_softmax_factor(p),
        .scale = cpu_scale(p).factor,
        .softcap = problem_softcap(p),
        .alibi = p->alibi,
        .slope = p->alibi ? alibi_slope(p, u->job->tensors, u->batch, u->head) : 0.0F,
        .diagonal = (float)(u->first_query + s->off - first_key),
        .bias_dtype = p->bias_dtype,
        .bias_row = p->bias_strides.row,
        .bias_col = p->bias_strides.col,
        .mask_row = p->mask_strides.row,
        .mask_col = p->mask_strides.col,
        .rows = rows,
        .low = (const int *)(const void *)(u->scratch + u->at.low),
        .high = (const int *)(const void *)(u->scratch + u->at.high),
        .lse = (const float *)(const void *)(u->shared + u->at.lse) + place,
        .delta = (const float *)(const void *)(u->shared + u->at.delta) + place,
    };
    if (p->bias) {
        g.bias = cpu_bias_row(u->job, u->batch, u->head, u->first_query, first_key);
    }
    if (p->mask) {
        g.mask = cpu_mask_row(u->job, u->batch, u->head, u->first_query, first_key);
    }
    return g;
}

bool backward_differentiate(const struct backward_unit *u, int index, bool d_scores,
                            double *d_slope, struct cpu_tile *tile, struct cpu_tile *gradient) {
    const attn_problem *p = u->job->problem;
    const int64_t first_key = u->first_key + (int64_t)index * u->kernel->tile_rows;
    const int rows = tile_rows(u, index);
    char *piece = tile_piece(u, index);
    *tile = (struct cpu_tile){
        .rows = rows,
        .keys = u->job->plan->cpu.block_q,
        .v_tame = u->d_o_tame,
        .q = piece + u->at.k,
        .k = u->scratch + u->at.q,
        .v = u->scratch + u->at.d_o_rows,
        .s = (float *)(void *)(u->scratch + u->at.s),
        .o = (float *)(void *)(piece + u->at.dv),
    };
    if (!see(u, first_key, rows, tile) || hides_all(u, first_key, rows)) {
        return false;
    }
    *gradient = *tile;
    gradient->v_tame = u->q_tame;
    gradient->q = piece + u->at.v;
    gradient->k = u->scratch + u->at.d_o;
    gradient->v = u->scratch + u->at.q_rows;
    gradient->s = (float *)(void *)(u->scratch + u->at.ds);
    gradient->o = (float *)(void *)(piece + u->at.dk);
    struct cpu_gradient g = gradient_of(u, first_key, rows);
    g.d_scores = d_scores;
    g.d_slope = d_slope;
    u->kernel->score(tile, (int)p->head_dim);
    u->kernel->score(gradient, (int)p->head_dim_v);
    u->kernel->gradient(tile, gradient, &g);
    return true;
}

/* ---- pass 1: LSE and D ----------------------------------------------------------------------- */

static void run_rows(void *argument, int64_t index, int slot) {
    const struct cpu_job *job = argument;
    const attn_problem *p = job->problem;
    const attn_tensors *t = job->tensors;
    struct backward_unit u = backward_unit(job, slot);
    const int64_t blocks = divide_up(p->seq_q, ROWS_OF_TASK);
    const int64_t h = index / blocks % p->heads_q;
    backward_set_batch(&u, index / blocks / p->heads_q);
    const int64_t first = index % blocks * ROWS_OF_TASK;
    const int64_t end = at_most(first + ROWS_OF_TASK, u.sequence.q_len);
    const double unit = LOG2_E / (double)cpu_softmax_factor(p);
    float *lse = (float *)(void *)(u.shared + u.at.lse);
    float *delta = (float *)(void *)(u.shared + u.at.delta);
    for (int64_t i = first; i < end; i++) {
        const int64_t row = u.sequence.q_begin + i;
        const size_t place = row_place(p, &u.sequence, u.batch, h, i);
        const float given =
            t->lse[(p->packed ? 0 : u.batch * p->lse.batch) + h * p->lse.head + row * p->lse.row];
        lse[place] = given == -INFINITY ? INFINITY : (float)((double)given * unit);
        const struct key_range keys = visible_keys(p, &u.sequence, i);
        delta[place] =
            keys.end == keys.begin /* O is 0 and dO may be NaN */
                ? 0.0F
                : u.kernel->dot(p->dtype, cpu_row(p, t->o, &p->o, u.batch, h, row),
                                cpu_row(p, t->d_o, &p->d_o, u.batch, h, row), (int)p->head_dim_v);
    }
}

/* ---- pass 2: dK, dV, partial dQ -------------------------------------------------------------- */

/* The Q tile of head h that begins at row `first`, in part n. */
static float *partial_dq(const struct backward_unit *u, int64_t part, int64_t h, int64_t first) {
    const int64_t tile = first_q_tile(u) + first / u->kernel->tile_rows;
    const int64_t index = (part * u->job->problem->heads_q + h) * u->at.q_tiles + tile;
    return (float *)(void *)(u->shared + u->at.dq +
                             (size_t)index * u->kernel->o_bytes((int)u->job->problem->head_dim));
}

static double *partial_slope(const struct backward_unit *u, int64_t part, int64_t b, int64_t h) {
    const attn_problem *p = u->job->problem;
    return (double *)(void *)(u->shared + u->at.slopes) + (part * p->batch + b) * p->heads_q + h;
}

/* dQ of the block's queries += dS K of the tile of keys that `gradient` is of. */
static void add_dq(const struct backward_unit *u, int64_t part, int index,
                   const struct cpu_tile *gradient) {
    const int rows = u->kernel->tile_rows;
    const int *low = (const int *)(const void *)(u->scratch + u->at.low);
    const int *high = (const int *)(const void *)(u->scratch + u->at.high);
    struct cpu_tile tile = {
        .keys = u->at.tile_keys,
        .begin = 0,
        .end = gradient->rows,
        .v_tame = u->k_tame,
        .v = tile_piece(u, index) + u->at.k_rows,
        .s = (float *)(void *)(u->scratch + u->at.turned),
    };
    tile.full_begin = tile.begin;
    tile.full_end = u->k_tame ? tile.end : tile.begin; /* else row by row */
    for (int first = gradient->begin / rows * rows; first < gradient->end; first += rows) {
        tile.rows = (int)at_most(rows, u->queries - first);
        for (int r = 0; r < tile.rows && !u->k_tame; r++) {
            const int i = first + r;
            const bool seen = i >= gradient->begin && i < gradient->end;
            tile.row_begin[r] = seen ? low[i] : 0;
            tile.row_end[r] = seen ? high[i] : 0;
        }
        tile.o = partial_dq(u, part, u->head, u->first_query + first);
        u->kernel->turn(gradient, first, &tile);
        u->kernel->weigh(&tile, (int)u->job->problem->head_dim);
    }
}

static void run_block(const struct backward_unit *u, int64_t part) {
    const attn_problem *p = u->job->problem;
    double *d_slope = p->alibi && u->job->tensors->d_alibi_slopes != NULL
                          ? partial_slope(u, part, u->batch, u->head)
                          : NULL;
    for (int t = 0; t < tile_count(u); t++) {
        struct cpu_tile tile;
        struct cpu_tile gradient;
        if (backward_differentiate(u, t, false, d_slope, &tile, &gradient)) {
            u->kernel->weigh(&tile, (int)p->head_dim_v);
            u->kernel->weigh(&gradient, (int)p->head_dim);
            add_dq(u, part, t, &gradient);
        }
    }
}

/* The queries that see a key of the chunk. */
static struct key_range chunk_queries(const struct backward_unit *u) {
    const struct sequence *s = &u->sequence;
    struct key_range all = {s->q_len, 0};
    for (int64_t j = u->first_key; j < u->first_key + u->keys; j++) {
        const struct key_range seen = visible_queries(u->job->problem, s, j);
        if (seen.end > seen.begin) {
            all.begin = at_most(all.begin, seen.begin);
            all.end = at_least(all.end, seen.end);
        }
    }
    return all;
}

/* dK and dV of the chunk; `count` of its keys are in the caller's memory, u->keys of them exist. */
static void end_keys(const struct backward_unit *u, int count) {
    const attn_problem *p = u->job->problem;
    const attn_tensors *t = u->job->tensors;
    const int rows = u->kernel->tile_rows;
    const struct {
        void *tensor;
        const attn_strides *strides;
        size_t at;
        int64_t cols;
        float factor;
    } outputs[] = {{t->dk, &p->dk, u->at.dk, p->head_dim, p->scale},
                   {t->dv, &p->dv, u->at.dv, p->head_dim_v, 1.0F}};
    for (int n = 0; n < 2; n++) {
        for (int first = 0; first < count; first += rows) {
            void *out[CPU_MAX_TILE_ROWS];
            float factors[CPU_MAX_TILE_ROWS];
            struct cpu_tile tile = {0};
            for (int r = 0; r < rows && first + r < count; r++) {
                out[r] = cpu_row(p, outputs[n].tensor, outputs[n].strides, u->batch, u->head_kv,
                                 u->sequence.kv_begin + u->first_key + first + r);
                factors[r] = outputs[n].factor;
                if (first + r < u->keys) {
                    tile.rows = r + 1;
                } else {
                    memset(out[r], 0, (size_t)outputs[n].cols * attn_dtype_size(p->dtype));
                }
            }
            if (tile.rows > 0) {
                tile.o = (float *)(void *)(tile_piece(u, first / rows) + outputs[n].at);
                u->kernel->epilogue(&tile, (int)outputs[n].cols, factors, p->dtype, out,
                                    u->scratch + u->at.line);
            }
        }
    }
}

static void run_chunk(struct backward_unit *u, int64_t part, int64_t first, int count) {
    const attn_problem *p = u->job->problem;
    const int64_t group = p->heads_q / p->heads_kv;
    const int64_t block = u->job->plan->cpu.block_q;
    const int keys = (int)at_most(at_least(u->sequence.kv_len - first, 0), count);
    backward_load_keys(u, u->head_kv, first, keys);
    for (int t = 0; t < tile_count(u); t++) {
        memset(tile_piece(u, t) + u->at.dk, 0, u->at.tile_bytes - u->at.dk);
    }
    const struct key_range queries = chunk_queries(u);
    for (int64_t h = u->head_kv * group; h < (u->head_kv + 1) * group; h++) {
        for (int64_t i = queries.begin / block * block; i < queries.end; i += block) {
            backward_load_queries(u, h, i, (int)at_most(block, u->sequence.q_len - i));
            run_block(u, part);
        }
    }
    end_keys(u, count);
}

static void run_unit(void *argument, int64_t index, int slot) {
    const struct cpu_job *job = argument;
    const attn_problem *p = job->problem;
    const int64_t parts = job->plan->cpu.chunks;
    const int64_t group = p->heads_q / p->heads_kv;
    const int64_t step = job->plan->cpu.block_kv;
    struct backward_unit u = backward_unit(job, slot);
    const int64_t part = index / (p->batch * p->heads_kv); /* first keys first: causal's longest */
    backward_set_batch(&u, index / p->heads_kv % p->batch);
    u.head_kv = index % p->heads_kv;
    const int64_t tiles = divide_up(u.sequence.q_len, u.kernel->tile_rows);
    for (int64_t h = u.head_kv * group; h < (u.head_kv + 1) * group; h++) {
        memset(partial_dq(&u, part, h, 0), 0, (size_t)tiles * u.kernel->o_bytes((int)p->head_dim));
        if (p->alibi) {
            *partial_slope(&u, part, u.batch, h) = 0.0;
        }
    }
    const int64_t region =
        p->packed ? job->tensors->cu_seqlens_kv[u.batch + 1] - job->tensors->cu_seqlens_kv[u.batch]
                  : p->seq_kv;
    for (int64_t first = part * step; first < region; first += parts * step) {
        run_chunk(&u, part, first, (int)at_most(step, region - first));
    }
}

/* ---- pass 3: dQ ------------------------------------------------------------------------------ */

static void run_dq(void *argument, int64_t index, int slot) {
    const struct cpu_job *job = argument;
    const attn_problem *p = job->problem;
    struct backward_unit u = backward_unit(job, slot);
    const int rows = u.kernel->tile_rows;
    const int64_t tiles = divide_up(p->seq_q, rows);
    const int64_t h = index / tiles % p->heads_q;
    const int64_t first = index % tiles * rows;
    backward_set_batch(&u, index / tiles / p->heads_q);
    if (first >= u.sequence.q_len) {
        return; /* a short sequence of a packed batch */
    }
    struct cpu_tile tile = {.rows = (int)at_most(rows, u.sequence.q_len - first),
                            .o = partial_dq(&u, 0, h, first)};
    const size_t count = u.kernel->o_bytes((int)p->head_dim) / sizeof(float);
    for (int64_t part = 1; part < job->plan->cpu.chunks; part++) {
        const float *other = partial_dq(&u, part, h, first);
        for (size_t i = 0; i < count; i++) {
            tile.o[i] += other[i];
        }
    }
    void *out[CPU_MAX_TILE_ROWS];
    float factors[CPU_MAX_TILE_ROWS];
    for (int r = 0; r < tile.rows; r++) {
        out[r] = cpu_row(p, job->tensors->dq, &p->dq, u.batch, h, u.sequence.q_begin + first + r);
        factors[r] = p->scale;
    }
    u.kernel->epilogue(&tile, (int)p->head_dim, factors, p->dtype, out, u.scratch + u.at.line);
}

/* ---- sums over rows -------------------------------------------------------------------------- */

static void run_sink(void *argument, int64_t h, int slot) {
    const struct cpu_job *job = argument;
    const attn_problem *p = job->problem;
    struct backward_unit u = backward_unit(job, slot);
    const double unit = (double)cpu_softmax_factor(p) * LN_2;
    const double sink = (double)job->tensors->sink[h];
    double sum = 0.0;
    for (int64_t b = 0; b < p->batch; b++) {
        backward_set_batch(&u, b);
        const size_t place = row_place(p, &u.sequence, b, h, 0);
        const float *lse = (const float *)(const void *)(u.shared + u.at.lse) + place;
        const float *delta = (const float *)(const void *)(u.shared + u.at.delta) + place;
        for (int64_t i = 0; i < u.sequence.q_len; i++) {
            if (lse[i] != INFINITY) {
                sum -= exp(sink - (double)lse[i] * unit) * (double)delta[i];
            }
        }
    }
    job->tensors->d_sink[h] = (float)sum;
}

static void sum_slopes(const struct cpu_job *job) {
    const attn_problem *p = job->problem;
    const struct backward_unit u = backward_unit(job, 0);
    const bool per_entry = p->alibi_batch_stride != 0;
    for (int64_t out = 0; out < (per_entry ? p->batch : 1); out++) {
        for (int64_t h = 0; h < p->heads_q; h++) {
            double sum = 0.0;
            for (int64_t b = out; b < (per_entry ? out + 1 : p->batch); b++) {
                for (int64_t part = 0; part < job->plan->cpu.chunks; part++) {
                    sum += *partial_slope(&u, part, b, h);
                }
            }
            job->tensors->d_alibi_slopes[out * p->alibi_batch_stride + h] = (float)sum;
        }
    }
}

void cpu_backward(const struct cpu_job *job, struct pool *pool) {
    const attn_problem *p = job->problem;
    const attn_tensors *t = job->tensors;
    void *argument = (void *)(uintptr_t)job;
    const int64_t rows = job->plan->cpu.isa->tile->tile_rows;
    const int64_t heads = p->batch * p->heads_q;
    pool_run(pool, heads * divide_up(p->seq_q, ROWS_OF_TASK), run_rows, argument);
    pool_run(pool, job->plan->cpu.chunks * p->batch * p->heads_kv, run_unit, argument);
    pool_run(pool, heads * divide_up(p->seq_q, rows), run_dq, argument);
    if (p->sink && t->d_sink != NULL) {
        pool_run(pool, p->heads_q, run_sink, argument);
    }
    if (p->alibi && t->d_alibi_slopes != NULL) {
        sum_slopes(job);
    }
    if (p->bias && t->d_bias != NULL) {
        backward_bias(job, pool);
    }
}
