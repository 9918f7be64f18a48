/* SPDX-License-Identifier: Apache-2.0
 *
 * tile.c - drives a tile kernel: FlashAttention with online softmax over blocks of keys (see
 * cpu.h).
 *
 * Rows of a unit are ordered (query, head of the group), so that the rows of a tile are close to
 * one diagonal for any group size, and K and V are packed once for all heads of the group.
 *
 * Scratch of one thread:
 *     Q tiles | O tiles | m | l | K block | V block | scores of a tile | packing lines |
 *     mask bits | addresses and scales of rows of K, of V | K or V of an fp8 cache, dequantised |
 *     a row of zeros
 *
 * A boolean mask is read as bits, a row of a tile at a time. Where the keys it shows of the block
 * are contiguous in every row (padding, causal, a window), they are the row's bounds, and the tile
 * costs what it would cost without a mask; blocks of which no key is seen are not even packed.
 *
 * batch_invariant: the bits of a row follow from its own query, keys and options alone. Blocks
 * begin at multiples of their length, counted from key 0, and a tile takes whole groups of key_step
 * keys, so that sums are grouped alike wherever other rows begin and end. Keys that no row of the
 * unit sees are zeros. Other units may skip small probabilities where V is tame (finite and not
 * huge); here none is skipped, and V is weighed by the GEMM alone: a unit in which a masked tile
 * meets a V that is not tame is computed row by row.
 */
#include "core/plan.h"
#include "cpu/cpu.h"

#include <math.h>
#include <string.h>

enum {
    BLOCK_ELEMENTS = 512 * 256, /* of a block of keys: larger heads get fewer keys a block */
    WANTED_UNITS = 32,          /* a problem with fewer heads is cut finer, to feed many cores */
    FEWEST_ROWS = 96,           /* but not below this: packing must pay */
    WORD_KEYS = 32              /* keys in a word of mask bits */
};

struct layout {
    size_t q, o, m, l, k, v, s, line, bits, k_list, v_list, fp8, zeros, bytes; /* of a thread */
    int tiles;
};

static size_t zeros_bytes(const attn_problem *p) {
    return cpu_round_up((size_t)at_least(p->head_dim, p->head_dim_v) * attn_dtype_size(p->dtype));
}

static struct layout lay_out(const attn_problem *p, const struct cpu_geometry *g) {
    const struct cpu_tile_kernel *kernel = g->isa->tile;
    const int d = (int)p->head_dim;
    const int dv = (int)p->head_dim_v;
    struct layout at = {0};
    at.tiles = (int)divide_up(g->block_q, kernel->tile_rows);
    const size_t tiles = (size_t)at.tiles;
    const size_t floats = cpu_round_up(tiles * (size_t)kernel->tile_rows * sizeof(float));
    at.o = at.q + tiles * kernel->q_bytes(d);
    at.m = at.o + tiles * kernel->o_bytes(dv);
    at.l = at.m + floats;
    at.k = at.l + floats;
    at.v = at.k + kernel->k_bytes(g->block_kv, d);
    at.s = at.v + kernel->v_bytes(g->block_kv, dv);
    at.line = at.s + kernel->s_bytes(g->block_kv);
    at.bits = at.line + kernel->row_bytes(d > dv ? d : dv);
    const size_t words = (size_t)kernel->tile_rows * (size_t)divide_up(g->block_kv, WORD_KEYS);
    at.k_list = at.bits + (p->mask || p->draft ? cpu_round_up(words * sizeof(uint32_t)) : 0);
    size_t list = cpu_list_bytes(p, g->block_kv);
    const size_t addresses = cpu_round_up((size_t)g->block_kv * sizeof(char *));
    if (g->invariant && list < addresses) {
        list = addresses;
    }
    at.v_list = at.k_list + list;
    at.fp8 = at.v_list + list;
    at.zeros = at.fp8 + cpu_fp8_bytes(p, g->block_kv);
    at.bytes = at.zeros + (g->invariant ? zeros_bytes(p) : 0);
    return at;
}

/* Blocks follow from the shape alone. */
void cpu_tile_plan(const attn_problem *p, struct cpu_geometry *g) {
    const struct cpu_tile_kernel *kernel = g->isa->tile;
    const int64_t group = p->heads_q / p->heads_kv;
    g->head_cuts = divide_up(group, CPU_MAX_UNIT_HEADS);
    g->unit_heads = divide_up(group, g->head_cuts);

    const int64_t widest = p->head_dim > p->head_dim_v ? p->head_dim : p->head_dim_v;
    const int64_t keys = at_least(at_most(g->block_kv, BLOCK_ELEMENTS / widest), kernel->key_step);
    const int64_t useful = divide_up(at_least(p->seq_kv, 1), kernel->key_step) * kernel->key_step;
    g->block_kv = (int)(at_most(keys, useful) / kernel->key_step * kernel->key_step);

    const int64_t rows = at_least(p->seq_q * g->unit_heads, 1);
    int64_t most = at_least(at_most(g->block_q, BLOCK_ELEMENTS / widest), kernel->tile_rows);
    const int64_t lanes = at_least(p->batch * p->heads_kv * g->head_cuts, 1);
    const int64_t wanted = divide_up(rows * lanes, WANTED_UNITS);
    most = at_least(at_most(most, at_least(wanted, FEWEST_ROWS)), g->unit_heads);
    g->chunks = divide_up(p->seq_q, at_least(most / g->unit_heads, 1));
    const int64_t queries = g->chunks > 0 ? divide_up(p->seq_q, g->chunks) : 0;
    g->block_q = (int)(queries * g->unit_heads);
    g->slot_bytes = lay_out(p, g).bytes;
}

/* ---- one unit -------------------------------------------------------------------------------- */

struct unit {
    const struct cpu_job *job;
    const struct cpu_geometry *geometry;
    const struct cpu_tile_kernel *kernel;
    struct layout at;
    char *scratch;
    struct sequence sequence;
    int64_t batch, head_kv, first_head, heads; /* heads: of this unit */
    int64_t first_query, rows;                 /* rows = queries * heads */
    float slope[CPU_MAX_UNIT_HEADS];           /* of ALiBi */
};

/* Without GQA no division: these are called for every row of every tile. */
static int64_t row_query(const struct unit *u, int64_t row) {
    return u->first_query + (u->heads == 1 ? row : row / u->heads);
}

static int64_t row_head(const struct unit *u, int64_t row) {
    return u->first_head + (u->heads == 1 ? 0 : row % u->heads);
}

static struct cpu_tile tile_of(const struct unit *u, int index) {
    const struct cpu_tile_kernel *kernel = u->kernel;
    const int64_t first = (int64_t)index * kernel->tile_rows;
    const size_t state = (size_t)first * sizeof(float);
    return (struct cpu_tile){
        .rows = (int)at_most(u->rows - first, kernel->tile_rows),
        .keys = u->geometry->block_kv,
        .q = u->scratch + u->at.q + (size_t)index * kernel->q_bytes((int)u->job->problem->head_dim),
        .k = u->scratch + u->at.k,
        .v = u->scratch + u->at.v,
        .s = (float *)(void *)(u->scratch + u->at.s),
        .o = (float *)(void *)(u->scratch + u->at.o +
                               (size_t)index * kernel->o_bytes((int)u->job->problem->head_dim_v)),
        .m = (float *)(void *)(u->scratch + u->at.m + state),
        .l = (float *)(void *)(u->scratch + u->at.l + state),
    };
}

static int tile_count(const struct unit *u) {
    return (int)divide_up(u->rows, u->kernel->tile_rows);
}

static void begin_tiles(const struct unit *u) {
    const attn_problem *p = u->job->problem;
    const struct cpu_tile_kernel *kernel = u->kernel;
    const int dv = (int)p->head_dim_v;
    const float multiplier = cpu_scale(p).q;
    for (int t = 0; t < tile_count(u); t++) {
        const struct cpu_tile tile = tile_of(u, t);
        const void *rows[CPU_MAX_TILE_ROWS];
        for (int r = 0; r < tile.rows; r++) {
            const int64_t row = (int64_t)t * kernel->tile_rows + r;
            rows[r] =
                cpu_q_row(u->job, &u->sequence, u->batch, row_head(u, row), row_query(u, row));
        }
        kernel->pack_q(p->dtype, rows, tile.rows, (int)p->head_dim, multiplier,
                       (void *)(uintptr_t)tile.q, u->scratch + u->at.line);
        memset(tile.o, 0, kernel->o_bytes(dv));
        for (int r = 0; r < kernel->tile_rows; r++) {
            tile.m[r] = -INFINITY;
            tile.l[r] = 0.0F;
        }
    }
}

static struct key_range cut(struct key_range keys, int64_t first, int count) {
    const int64_t begin = at_most(at_least(keys.begin - first, 0), count);
    const int64_t end = at_most(at_least(keys.end - first, 0), count);
    return (struct key_range){begin, at_least(begin, end)};
}

/* The usual case, without a look at each row: both borders rise with the query, so if the first and
 * the last row see the same keys of the block, all do. */
static bool see_all_alike(const struct unit *u, int64_t first_row, int64_t first, int count,
                          struct cpu_tile *tile) {
    const attn_problem *p = u->job->problem;
    const struct sequence *s = &u->sequence;
    const int64_t low = row_query(u, first_row);
    const int64_t high = row_query(u, first_row + tile->rows - 1);
    const struct key_range a = cut(visible_keys(p, s, low), first, count);
    const struct key_range b = cut(visible_keys(p, s, high), first, count);
    if (a.begin != b.begin || a.end != b.end || a.end == a.begin) {
        return false;
    }
    tile->begin = tile->full_begin = (int)a.begin;
    tile->end = tile->full_end = (int)a.end;
    for (int r = 0; r < u->kernel->tile_rows; r++) {
        tile->row_begin[r] = tile->begin;
        tile->row_end[r] = tile->end;
    }
    return true;
}

/* From the bounds of the real rows to those of the tile. False: no row sees a key. */
static bool sum_up(int tile_rows, int count, struct cpu_tile *tile) {
    tile->begin = count;
    tile->end = 0;
    tile->full_begin = 0;
    tile->full_end = count;
    for (int r = 0; r < tile_rows; r++) {
        if (r >= tile->rows) { /* padding sees what the last real row sees */
            tile->row_begin[r] = tile->row_begin[r - 1];
            tile->row_end[r] = tile->row_end[r - 1];
        }
        const int begin = tile->row_begin[r];
        const int end = tile->row_end[r];
        if (end > begin) {
            tile->begin = begin < tile->begin ? begin : tile->begin;
            tile->end = end > tile->end ? end : tile->end;
        }
        tile->full_begin = begin > tile->full_begin ? begin : tile->full_begin;
        tile->full_end = end < tile->full_end ? end : tile->full_end;
    }
    if (tile->full_end <= tile->full_begin) { /* all of [begin, end) is to be masked */
        tile->full_begin = tile->end;
        tile->full_end = tile->end;
    }
    return tile->end > tile->begin;
}

/* Which keys of the block [first, first + count) the tile's rows see. False: none of them. */
static bool see_keys(const struct unit *u, int index, int64_t first, int count,
                     struct cpu_tile *tile) {
    const int64_t first_row = (int64_t)index * u->kernel->tile_rows;
    if (see_all_alike(u, first_row, first, count, tile)) {
        return true;
    }
    int64_t last_query = -1;
    struct key_range seen = {0, 0};
    for (int r = 0; r < tile->rows; r++) {
        const int64_t query = row_query(u, first_row + r);
        if (query != last_query) {
            seen = cut(visible_keys(u->job->problem, &u->sequence, query), first, count);
            last_query = query;
        }
        tile->row_begin[r] = (int)seen.begin;
        tile->row_end[r] = (int)seen.end;
    }
    return sum_up(u->kernel->tile_rows, count, tile);
}

/* ---- a boolean mask, a draft mask ------------------------------------------------------------ */

/* The bits of word w that stand for keys in [begin, end). */
static uint32_t word_range(int w, int begin, int end) {
    const int low = begin - w * WORD_KEYS;
    const int high = end - w * WORD_KEYS;
    const uint32_t from = low <= 0 ? UINT32_MAX : (low < WORD_KEYS ? UINT32_MAX << low : 0);
    const uint32_t to = high >= WORD_KEYS ? UINT32_MAX : (high > 0 ? (1U << high) - 1 : 0);
    return from & to;
}

/* Narrows [*begin, *end) to the first and the last bit that is set in it. */
static void narrow(const uint32_t *bits, int stride, int *begin, int *end) {
    int w = *begin / WORD_KEYS;
    const int last = (*end - 1) / WORD_KEYS;
    uint32_t word = bits[(ptrdiff_t)w * stride] & word_range(w, *begin, *end);
    while (word == 0 && w < last) {
        w++;
        word = bits[(ptrdiff_t)w * stride] & word_range(w, *begin, *end);
    }
    if (word == 0) {
        *end = *begin;
        return;
    }
    *begin = w * WORD_KEYS + __builtin_ctz(word);
    w = last;
    do {
        word = bits[(ptrdiff_t)w * stride] & word_range(w, *begin, *end);
    } while (word == 0 && w-- > 0);
    *end = (w + 1) * WORD_KEYS - __builtin_clz(word);
}

static bool has_holes(const uint32_t *bits, int stride, int begin, int end) {
    for (int w = begin / WORD_KEYS; w * WORD_KEYS < end; w++) {
        const uint32_t range = word_range(w, begin, end);
        if ((bits[(ptrdiff_t)w * stride] & range) != range) {
            return true;
        }
    }
    return false;
}

/* The words of a row: what the mask shows of the block, less what the drafts hide. */
static void row_bits(const struct unit *u, int64_t query, const uint8_t *mask, int64_t first,
                     int count, uint32_t *bits) {
    const attn_problem *p = u->job->problem;
    const struct sequence *s = &u->sequence;
    const int stride = u->kernel->tile_rows;
    for (int w = 0; mask == NULL && w * WORD_KEYS < count; w++) {
        bits[w * stride] = UINT32_MAX;
    }
    if (mask != NULL) {
        u->kernel->mask_bits(mask, p->mask_strides.col, count, bits, stride);
    }
    const uint64_t drafts = draft_bits(p, u->job->tensors, s, u->batch, query);
    for (int64_t j = at_least(s->kv_len - s->q_len - first, 0); p->draft && j < count; j++) {
        if (draft_hides(s, drafts, first + j)) {
            bits[j / WORD_KEYS * stride] &= ~(1U << j % WORD_KEYS);
        }
    }
}

/* Narrows what the rows see to what the masks show. The tile gets bits where some row does not see
 * all keys between its first and its last. */
static bool see_mask(const struct unit *u, int index, int64_t first, int count,
                     struct cpu_tile *tile) {
    const attn_problem *p = u->job->problem;
    const int stride = u->kernel->tile_rows;
    uint32_t *bits = (uint32_t *)(void *)(u->scratch + u->at.bits);
    bool same[CPU_MAX_TILE_ROWS]; /* as the row before: broadcast over heads or queries, padding */
    const uint8_t *before = NULL;
    struct key_range seen = {0, 0}; /* by the row before, but for the mask */
    bool holes = false;
    for (int r = 0; r < stride; r++) {
        const int64_t row = (int64_t)index * stride + at_most(r, tile->rows - 1);
        const uint8_t *mask =
            !p->mask ? NULL
                     : cpu_mask_row(u->job, u->batch, row_head(u, row), row_query(u, row), first);
        int *begin = &tile->row_begin[r];
        int *end = &tile->row_end[r];
        same[r] = !p->draft && mask == before && *begin == seen.begin && *end == seen.end;
        seen = (struct key_range){*begin, *end};
        before = mask;
        if (same[r]) {
            *begin = tile->row_begin[r - 1];
            *end = tile->row_end[r - 1];
            continue;
        }
        row_bits(u, row_query(u, row), mask, first, count, bits + r);
        if (*end > *begin) {
            narrow(bits + r, stride, begin, end);
            holes = holes || has_holes(bits + r, stride, *begin, *end);
        }
    }
    for (int r = 1; r < stride && holes; r++) {
        for (int w = 0; w * WORD_KEYS < count && same[r]; w++) {
            bits[w * stride + r] = bits[w * stride + r - 1];
        }
    }
    tile->bits = holes ? bits : NULL;
    return sum_up(stride, count, tile);
}

/* ---- blocks ---------------------------------------------------------------------------------- */

static void describe_rows(const struct unit *u, int index, int64_t first,
                          const struct cpu_tile *tile, struct cpu_adjust *adjust) {
    for (int r = 0; r < u->kernel->tile_rows; r++) {
        const int64_t row = (int64_t)index * u->kernel->tile_rows + at_most(r, tile->rows - 1);
        cpu_adjust_row(u->job, &u->sequence, u->batch, row_head(u, row), row_query(u, row), first,
                       r, adjust);
        adjust->slope[r] = u->slope[row_head(u, row) - u->first_head];
    }
}

/* batch_invariant: what the tile takes. */
static void take_groups(const struct unit *u, struct cpu_tile *tile) {
    const int step = u->kernel->key_step;
    tile->begin = tile->begin / step * step;
    tile->end = (int)divide_up(tile->end, step) * step;
}

/* batch_invariant: the rows of a block, with `lead` rows of zeros before them and others after them
 * up to a group. */
static void fill_groups(const struct unit *u, int lead, char *room, struct cpu_rows *rows) {
    const char **const list = (const char **)(void *)room;
    const int count = lead + rows->count;
    const int filled = (int)divide_up(count, u->kernel->key_step) * u->kernel->key_step;
    if (lead == 0 && filled == count) {
        return;
    }
    for (int j = filled - 1; j >= 0; j--) { /* downwards: paged rows are in the list already */
        list[j] = j >= lead && j < count ? cpu_row_at(rows, j - lead) : u->scratch + u->at.zeros;
    }
    rows->list = list;
    rows->count = filled;
}

/* The keys [first, first + count), of which the first `lead` are before those of the unit. False:
 * the unit is to be computed row by row. */
static bool run_block(const struct unit *u, int64_t first, int count, int lead) {
    const attn_problem *p = u->job->problem;
    const struct cpu_tile_kernel *kernel = u->kernel;
    const bool invariant = u->geometry->invariant;
    char *const k_list = u->scratch + u->at.k_list, *const v_list = u->scratch + u->at.v_list;
    const struct cpu_rows k =
        cpu_k_rows(u->job, &u->sequence, u->batch, u->head_kv, first + lead, count - lead, k_list);
    const struct cpu_rows v =
        cpu_v_rows(u->job, &u->sequence, u->batch, u->head_kv, first + lead, count - lead, v_list);
    const float factor = cpu_softmax_factor(p);
    struct cpu_adjust adjust;
    const bool adjusted = cpu_needs_adjust(p);
    const struct sequence *s = &u->sequence;
    const bool drafts = p->draft && s->q_len <= DRAFT_KEYS && first + count > s->kv_len - s->q_len;
    if (adjusted) {
        cpu_adjust_init(u->job, &adjust);
    }
    bool packed = false;
    bool tame = false;
    for (int t = 0; t < tile_count(u); t++) {
        struct cpu_tile tile = tile_of(u, t);
        if (!see_keys(u, t, first, count, &tile) ||
            ((p->mask || drafts) && !see_mask(u, t, first, count, &tile))) {
            continue;
        }
        if (!packed) {
            char *line = u->scratch + u->at.line;
            char *room = u->scratch + u->at.fp8;
            struct cpu_rows k_wide = cpu_dequantize(u->job, &k, room);
            if (invariant) {
                fill_groups(u, lead, k_list, &k_wide);
            }
            kernel->pack_k(&k_wide, u->scratch + u->at.k, line);
            struct cpu_rows v_wide = cpu_dequantize(u->job, &v, room);
            if (invariant) {
                fill_groups(u, lead, v_list, &v_wide);
            }
            tame = kernel->pack_v(&v_wide, u->geometry->block_kv, u->scratch + u->at.v, line);
            packed = true;
        }
        tile.bias_end = tile.end;
        if (invariant) {
            take_groups(u, &tile);
            if (!tame && u->rows > 1 &&
                (tile.full_begin > tile.begin || tile.full_end < tile.end)) {
                return false;
            }
        }
        tile.v_tame = tame && !invariant;
        if (adjusted) {
            describe_rows(u, t, first, &tile, &adjust);
            tile.adjust = &adjust;
        }
        kernel->score(&tile, (int)p->head_dim);
        kernel->online_softmax(&tile, (int)p->head_dim_v, factor);
        tile.v_tame = tame || invariant;
        kernel->weigh(&tile, (int)p->head_dim_v);
    }
    return true;
}

static void end_tiles(const struct unit *u) {
    const attn_problem *p = u->job->problem;
    const struct cpu_tile_kernel *kernel = u->kernel;
    for (int t = 0; t < tile_count(u); t++) {
        const struct cpu_tile tile = tile_of(u, t);
        void *out[CPU_MAX_TILE_ROWS];
        float inverse[CPU_MAX_TILE_ROWS];
        for (int r = 0; r < tile.rows; r++) {
            const int64_t row = (int64_t)t * kernel->tile_rows + r;
            const int64_t i = row_query(u, row);
            const int64_t h = row_head(u, row);
            inverse[r] = cpu_end_row(u->job, &u->sequence, u->batch, h, i, tile.m[r], tile.l[r]);
            out[r] = cpu_o_row(u->job, &u->sequence, u->batch, h, i);
        }
        kernel->epilogue(&tile, (int)p->head_dim_v, inverse, p->dtype, out,
                         u->scratch + u->at.line);
    }
}

/* The keys that any of the unit's queries sees; both borders rise with the query. */
static struct key_range unit_keys(const struct unit *u) {
    const attn_problem *p = u->job->problem;
    const struct sequence *s = &u->sequence;
    struct key_range all = {s->kv_len, 0};
    for (int64_t i = u->first_query; i < u->first_query + u->rows / u->heads; i++) {
        const struct key_range keys = visible_keys(p, s, i);
        if (keys.end > keys.begin) {
            all.begin = at_most(all.begin, keys.begin);
            all.end = at_least(all.end, keys.end);
        }
    }
    if (p->mask && all.end > all.begin && p->mask_strides.row == 0 &&
        (p->mask_strides.head == 0 || u->heads == 1)) {
        const uint8_t *mask = cpu_mask_row(u->job, u->batch, u->first_head, 0, 0);
        cpu_narrow(mask, p->mask_strides.col, &all); /* padding: as if used_kv said so */
    }
    return all;
}

/* The last chunk comes first: under a causal mask it is the longest. */
static bool find_unit(struct unit *u, int64_t index) {
    const attn_problem *p = u->job->problem;
    const struct cpu_geometry *g = u->geometry;
    const int64_t group = p->heads_q / p->heads_kv;
    const int64_t cut = index % g->head_cuts;
    index /= g->head_cuts;
    u->head_kv = index % p->heads_kv;
    index /= p->heads_kv;
    u->batch = index % p->batch;
    const int64_t chunk = g->chunks - 1 - index / p->batch;
    u->first_head = u->head_kv * group + cut * g->unit_heads;
    u->heads = at_most(g->unit_heads, group - cut * g->unit_heads);
    u->sequence = sequence_of(p, u->job->tensors, u->batch);
    const int64_t queries = g->block_q / g->unit_heads;
    u->first_query = chunk * queries;
    u->rows = at_most(queries, u->sequence.q_len - u->first_query) * u->heads;
    return u->rows > 0 && u->heads > 0;
}

/* False: it is to be computed row by row. */
static bool run_rows(struct unit *u) {
    const struct cpu_job *job = u->job;
    for (int64_t h = 0; h < u->heads && job->problem->alibi; h++) {
        u->slope[h] = alibi_slope(job->problem, job->tensors, u->batch, u->first_head + h);
    }
    begin_tiles(u);
    const struct key_range keys = unit_keys(u);
    const int64_t step = u->geometry->block_kv;
    int64_t first = u->geometry->invariant ? keys.begin / step * step : keys.begin;
    for (; first < keys.end; first += step) {
        if (!run_block(u, first, (int)at_most(step, keys.end - first),
                       (int)at_least(keys.begin - first, 0))) {
            return false;
        }
    }
    end_tiles(u);
    return true;
}

static void run_unit(void *argument, int64_t index, int slot) {
    const struct cpu_job *job = argument;
    struct unit u = {.job = job, .geometry = &job->plan->cpu, .kernel = job->plan->cpu.isa->tile};
    if (!find_unit(&u, index)) {
        return; /* a short sequence of a packed batch */
    }
    u.at = lay_out(job->problem, u.geometry);
    u.scratch = job->workspace + (size_t)slot * u.geometry->slot_bytes;
    if (u.geometry->invariant) {
        memset(u.scratch + u.at.zeros, 0, zeros_bytes(job->problem));
    }
    if (!run_rows(&u)) {
        for (int64_t row = 0; row < u.rows; row++) {
            struct unit one = u;
            one.first_query = row_query(&u, row);
            one.first_head = row_head(&u, row);
            one.heads = one.rows = 1;
            run_rows(&one);
        }
    }
}

void cpu_tile_forward(const struct cpu_job *job, struct pool *pool) {
    const struct cpu_geometry *g = &job->plan->cpu;
    const int64_t units = g->chunks * job->problem->batch * job->problem->heads_kv * g->head_cuts;
    pool_run(pool, units, run_unit, (void *)(uintptr_t)job);
}
