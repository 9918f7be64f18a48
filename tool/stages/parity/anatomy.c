/* SPDX-License-Identifier: Apache-2.0
 *
 * anatomy.c - what a wrong result looks like: where in the tile, by what factor, from which
 * number of keys on. Such a description mostly names the line of the kernel that is to blame.
 *
 * Invariant: it only describes; whether a result is wrong was decided before.
 */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "stages/parity/parity.h"

enum { MOST_RANGES = 12 }; /* in a list of rows or columns */

/* The text so far; what does not fit is cut. */
struct words {
    char *text;
    size_t size, used;
};

__attribute__((format(printf, 2, 3))) static void say(struct words *w, const char *format, ...) {
    if (w->used >= w->size) {
        return;
    }
    va_list list;
    va_start(list, format);
    const int length = vsnprintf(w->text + w->used, w->size - w->used, format, list);
    va_end(list);
    w->used += length > 0 ? (size_t)length : 0;
}

/* Begins the next sentence. */
static void next(struct words *w) {
    say(w, "%s", w->used > 0 ? "; " : "");
}

/* ---- what is wrong --------------------------------------------------------------------------- */

/* Which rows of a tile, columns, heads, batch entries hold wrong elements. */
struct wounds {
    const struct sample *sample;
    const struct expectation *expected;
    int64_t rows_in_tile, tail_start; /* block_q, and where the last, shorter tile begins */
    bool *in_tile, *cols, *heads, *batches;
    bool *seen_in_tile, *seen_heads, *seen_batches; /* where a row was compared at all */
    int64_t elements, bad, nans, unwritten;
    int64_t rows, bad_rows, whole_rows, tail_rows;
    int64_t first_row, last_row;
    double cross, square, own; /* sums of out x exact, exact^2, out^2 over finite pairs */
};

static bool is_poison(const unsigned char *bytes, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (bytes[i] != 0xFF) {
            return false;
        }
    }
    return true;
}

static void look_at_row(struct wounds *w, size_t index, double allowed, float *out) {
    const struct sample *s = w->sample;
    const attn_problem *p = &s->full;
    const attn_row at = expectation_row(w->expected, w->sample, index);
    const size_t element = attn_dtype_size(p->dtype);
    const double *exact = w->expected->o + index * (size_t)p->head_dim_v;
    if (at.row >= sample_rows_q(s, at.batch)) {
        return; /* packed: no such row */
    }
    const unsigned char *bytes =
        s->o.data + (size_t)sample_at_o(s, at.batch, at.head, at.row) * element;
    int64_t bad = 0;
    attn_to_float(p->dtype, out, bytes, (size_t)p->head_dim_v);
    for (int64_t d = 0; d < p->head_dim_v; d++) {
        const double value = (double)out[d];
        w->elements++;
        if (isfinite(value) && isfinite(exact[d])) {
            w->cross += value * exact[d];
            w->square += exact[d] * exact[d];
            w->own += value * value;
        }
        w->nans += isnan(value) && !isnan(exact[d]);
        w->unwritten += is_poison(bytes + (size_t)d * element, element);
        if (!(fabs(value - exact[d]) <= allowed)) {
            bad++;
            w->cols[d] = true;
        }
    }
    w->rows++;
    w->seen_in_tile[at.row % w->rows_in_tile] = true;
    w->seen_heads[at.head] = w->seen_batches[at.batch] = true;
    w->bad += bad;
    if (bad > 0) {
        w->first_row = w->bad_rows == 0 || at.row < w->first_row ? at.row : w->first_row;
        w->last_row = w->bad_rows == 0 || at.row > w->last_row ? at.row : w->last_row;
        w->bad_rows++;
        w->whole_rows += 10 * bad >= 9 * p->head_dim_v;
        w->tail_rows += at.row >= w->tail_start;
        w->in_tile[at.row % w->rows_in_tile] = true;
        w->heads[at.head] = w->batches[at.batch] = true;
    }
}

/* ", columns 0-3,7 of 32" */
static void say_set(struct words *words, const char *what, const bool *set, int64_t count) {
    int ranges = 0;
    say(words, ", %s ", what);
    for (int64_t i = 0; i < count; i++) {
        if (!set[i]) {
            continue;
        }
        if (ranges == MOST_RANGES) {
            say(words, ",...");
            break;
        }
        int64_t last = i;
        while (last + 1 < count && set[last + 1]) {
            last++;
        }
        say(words, last > i ? "%s%lld-%lld" : "%s%lld", ranges > 0 ? "," : "", (long long)i,
            (long long)last);
        ranges++;
        i = last;
    }
    say(words, " of %lld", (long long)count);
}

/* Whether all that was looked at (seen NULL: everything) is in the set. */
static bool all_of(const bool *seen, const bool *set, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        if (!set[i] && (seen == NULL || seen[i])) {
            return false;
        }
    }
    return true;
}

static void say_place(struct words *words, const struct wounds *w) {
    const attn_problem *p = &w->sample->full;
    next(words);
    say(words, "%lld of %lld elements wrong in %lld of %lld rows, rows %lld to %lld of %lld",
        (long long)w->bad, (long long)w->elements, (long long)w->bad_rows, (long long)w->rows,
        (long long)w->first_row, (long long)w->last_row, (long long)p->seq_q);
    next(words);
    say(words, w->whole_rows == w->bad_rows ? "whole rows" : "parts of rows");
    if (all_of(NULL, w->cols, p->head_dim_v)) {
        say(words, ", every column");
    } else {
        say_set(words, "columns", w->cols, p->head_dim_v);
    }
    if (all_of(w->seen_in_tile, w->in_tile, w->rows_in_tile)) {
        say(words, ", every row of the tile");
    } else {
        say_set(words, "rows of the tile", w->in_tile, w->rows_in_tile);
    }
    if (w->tail_rows == w->bad_rows && w->tail_start > 0) {
        say(words, ", the tail tile only (rows %lld on)", (long long)w->tail_start);
    }
    if (!all_of(w->seen_heads, w->heads, p->heads_q)) {
        say_set(words, "heads", w->heads, p->heads_q);
    }
    if (!all_of(w->seen_batches, w->batches, p->batch)) {
        say_set(words, "batch entries", w->batches, p->batch);
    }
}

static void say_values(struct words *words, const struct wounds *w) {
    if (w->nans > 0) {
        next(words);
        say(words, "%lld NaN, %lld of them never written", (long long)w->nans,
            (long long)w->unwritten);
    }
    if (w->square > 0) {
        const double factor = w->cross / w->square;
        const double rest = w->own - w->cross * factor;
        const double residual = w->own > 0 ? sqrt(fmax(rest, 0) / w->own) : 1;
        next(words);
        say(words, "best factor out/expected %.4g, residual %.2g%s", factor, residual,
            residual < 0.02 && fabs(factor - 1) > 0.005 ? ": a constant factor" : "");
    }
}

static void say_lse(struct words *words, const struct wounds *w) {
    const struct sample *s = w->sample;
    double sum = 0, square = 0;
    int64_t rows = 0, bad = 0;
    for (size_t r = 0; r < w->expected->count; r++) {
        const attn_row at = expectation_row(w->expected, s, r);
        if (at.row >= sample_rows_q(s, at.batch)) {
            continue;
        }
        const double exact = w->expected->lse[r];
        const double value = (double)s->tensors.lse[sample_at_lse(s, at.batch, at.head, at.row)];
        const bool same = value == exact; /* infinities */
        if (!same && !(fabs(value - exact) <= 1e-5 + 1e-5 * fabs(exact))) {
            bad++;
        }
        if (isfinite(value) && isfinite(exact)) {
            rows++;
            sum += value - exact;
            square += (value - exact) * (value - exact);
        }
    }
    const double mean = rows > 0 ? sum / (double)rows : 0;
    const double spread = rows > 0 ? sqrt(fmax(square / (double)rows - mean * mean, 0)) : 0;
    next(words);
    say(words, "LSE wrong in %lld rows, off by %.4g on average, spread %.2g%s", (long long)bad,
        mean, spread, spread < 0.01 * fabs(mean) ? ": a constant" : "");
}

/* ---- growth with the number of keys ---------------------------------------------------------- */

/* The reference of the same rows over the sample as it is now. */
static bool expect_again(const struct target *t, const struct sample *s,
                         const struct expectation *before, struct expectation *expected) {
    attn_row *rows = NULL;
    if (before->rows != NULL) {
        rows = malloc((before->count + 1) * sizeof *rows);
        if (rows == NULL) {
            return false;
        }
        memcpy(rows, before->rows, before->count * sizeof *rows);
    }
    return expectation_make_rows(expected, t->context, s, rows, before->count) == NULL;
}

/* The largest error over `keys` keys as a part of what is allowed; negative: not known. */
static double error_over(const struct target *t, struct sample *s, const struct expectation *before,
                         int64_t keys) {
    attn_problem original = s->problem, resolved = s->full;
    struct expectation expected = {0};
    attn_comparison comparison;
    attn_error why;
    double ratio = -1;
    s->full.seq_kv = keys;
    s->problem = s->full;
    if (attn_variant_check(t->context, t->runs_as, &s->problem, NULL) == ATTN_OK &&
        expect_again(t, s, before, &expected) && run_sample(t, s, &s->problem, &why) == RUN_DONE) {
        const bool right = sample_compare(s, &expected, &comparison) == NULL;
        const double lse = s->tensors.lse ? comparison.lse_error : 0;
        ratio = comparison.max_allowed > 0 ? comparison.max_error / comparison.max_allowed : 0;
        ratio = right ? 0 : comparison.nans > 0 ? INFINITY : fmax(1, fmax(ratio, lse));
    }
    expectation_free(&expected);
    s->problem = original;
    s->full = resolved;
    return ratio;
}

/* O in the sample is lost. */
static void say_growth(struct words *words, const struct target *t, struct sample *s,
                       const struct expectation *before) {
    const attn_problem *p = &s->full;
    const int64_t block = t->variant.block_kv > 0 ? t->variant.block_kv : 64;
    if (p->packed || p->used_kv || p->bias || p->mask || p->window_left >= 0 || p->seq_kv == 0) {
        return; /* fewer keys would be another problem, with keys that were never filled */
    }
    int64_t right_up_to = 0, wrong_from = -1;
    double first = 0, last = 0;
    const int64_t seq_kv = p->seq_kv;
    for (int64_t blocks = 1;; blocks += blocks < 4 ? 1 : blocks / 2) {
        const int64_t keys = blocks * block < seq_kv ? blocks * block : seq_kv;
        const double ratio = error_over(t, s, before, keys);
        if (ratio < 0) {
            return;
        }
        if (ratio == 0 && wrong_from < 0) {
            right_up_to = keys;
        } else if (ratio > 0) {
            first = wrong_from < 0 ? ratio : first;
            wrong_from = wrong_from < 0 ? keys : wrong_from;
            last = ratio;
        }
        if (keys == seq_kv) {
            break;
        }
    }
    next(words);
    if (wrong_from < 0) {
        say(words, "right with any smaller number of keys, and in this repetition");
        return;
    }
    say(words, "over keys: right with %lld, wrong from %lld on (blocks of %lld)",
        (long long)right_up_to, (long long)wrong_from, (long long)block);
    if (wrong_from < seq_kv) {
        say(words, ", error/allowed %.3g there and %.3g with all %lld%s", first, last,
            (long long)seq_kv, last > 1.5 * first ? ": it grows" : "");
    }
}

/* ---- altogether ------------------------------------------------------------------------------ */

void anatomy_tell(const struct target *t, struct sample *s, const struct expectation *expected,
                  const attn_comparison *comparison, char *text, size_t size) {
    const attn_problem *p = &s->full;
    struct words words = {text, size, 0};
    struct wounds w = {.sample = s, .expected = expected};
    w.rows_in_tile = t->variant.block_q > 0 ? t->variant.block_q : 1;
    w.tail_start =
        p->seq_q % w.rows_in_tile ? p->seq_q / w.rows_in_tile * w.rows_in_tile : p->seq_q;
    text[0] = '\0';
    if (comparison->elements == 0) {
        return; /* damage, or a refusal: the reason says it all */
    }
    const size_t flags = (size_t)(2 * (w.rows_in_tile + p->heads_q + p->batch) + p->head_dim_v) + 1;
    bool *set = calloc(flags, sizeof *set);
    float *out = malloc((size_t)p->head_dim_v * sizeof *out);
    if (set != NULL && out != NULL) {
        w.in_tile = set;
        w.cols = w.in_tile + w.rows_in_tile;
        w.heads = w.cols + p->head_dim_v;
        w.batches = w.heads + p->heads_q;
        w.seen_in_tile = w.batches + p->batch;
        w.seen_heads = w.seen_in_tile + w.rows_in_tile;
        w.seen_batches = w.seen_heads + p->heads_q;
        for (size_t r = 0; r < expected->count; r++) {
            look_at_row(&w, r, comparison->max_allowed, out);
        }
        if (w.bad > 0) {
            say_place(&words, &w);
            say_values(&words, &w);
        } else if (!comparison->o_pass) {
            next(&words);
            say(&words, "no element is beyond the largest error allowed, the mean is");
            say_values(&words, &w);
        }
        if (!comparison->lse_pass && s->tensors.lse) {
            say_lse(&words, &w);
        }
        if (!comparison->pass) {
            say_growth(&words, t, s, expected);
        }
    }
    free(set);
    free(out);
}
