/* SPDX-License-Identifier: Apache-2.0
 *
 * anatomy.c - what a wrong result looks like: where in the tile, by what factor, from which
 * number of keys on. Such a description usually points to the wrong line of the kernel.
 *
 * Invariant: it only describes; whether a result is wrong was decided before.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/message.h"
#include "stages/parity/parity.h"

enum { MOST_RANGES = 12 }; /* in a list of rows or columns */

/* Begins the next sentence. */
static void next(FILE *out) {
    fputs(ftell(out) > 0 ? "; " : "", out);
}

/* ---- what is wrong --------------------------------------------------------------------------- */

/* Indices along one dimension: those with a wrong element, and those that were compared at all. */
struct extent {
    int64_t size;
    bool *wrong, *seen;
};

struct defects {
    const struct case_output *output;
    struct extent tile, cols, heads, batches; /* tile: rows of a tile of block_q */
    int64_t tail_start;                       /* where the last, shorter tile begins */
    int64_t elements, bad, nans, unwritten;
    int64_t rows, bad_rows, whole_rows, tail_rows;
    int64_t first_row, last_row;
    double cross, square, own; /* sums of out x exact, exact^2, out^2 over finite pairs */
};

static void mark(struct extent *extent, int64_t at, bool wrong) {
    extent->seen[at] = true;
    extent->wrong[at] = extent->wrong[at] || wrong;
}

static void look_at_row(struct defects *w, size_t index, double allowed) {
    const struct output_view *view = &w->output->view;
    const struct expectation *expected = &w->output->expected;
    const attn_row at = expectation_row(expected, w->output->sample, index);
    const double *exact = expected->o + index * (size_t)view->cols;
    if (!view_has(view, &at)) {
        return; /* packed: no such row */
    }
    int64_t bad = 0;
    for (int64_t d = 0; d < view->cols; d++) {
        const double value = (double)view_get(view, &at, d);
        const bool wrong = !(fabs(value - exact[d]) <= allowed);
        if (isfinite(value) && isfinite(exact[d])) {
            w->cross += value * exact[d];
            w->square += exact[d] * exact[d];
            w->own += value * value;
        }
        w->nans += isnan(value) && !isnan(exact[d]);
        w->unwritten += is_poison(view_at(view, &at, d), attn_dtype_size(view->dtype));
        mark(&w->cols, d, wrong);
        bad += wrong;
    }
    mark(&w->tile, at.row % w->tile.size, bad > 0);
    mark(&w->heads, at.head, bad > 0);
    mark(&w->batches, at.batch, bad > 0);
    w->elements += view->cols;
    w->bad += bad;
    w->rows++;
    if (bad > 0) {
        w->first_row = w->bad_rows == 0 || at.row < w->first_row ? at.row : w->first_row;
        w->last_row = w->bad_rows == 0 || at.row > w->last_row ? at.row : w->last_row;
        w->bad_rows++;
        w->whole_rows += 10 * bad >= 9 * view->cols;
        w->tail_rows += at.row >= w->tail_start;
    }
}

/* ", columns 0-3,7 of 32", or `every` where all that was compared is wrong. */
static void say_extent(FILE *out, const char *what, const char *every, const struct extent *e) {
    int64_t right = 0;
    for (int64_t i = 0; i < e->size; i++) {
        right += e->seen[i] && !e->wrong[i];
    }
    if (right == 0) {
        fputs(every, out);
        return;
    }
    int ranges = 0;
    fprintf(out, ", %s ", what);
    for (int64_t i = 0; i < e->size; i++) {
        if (!e->wrong[i]) {
            continue;
        }
        if (ranges == MOST_RANGES) {
            fputs(",...", out);
            break;
        }
        int64_t last = i;
        while (last + 1 < e->size && e->wrong[last + 1]) {
            last++;
        }
        fprintf(out, last > i ? "%s%lld-%lld" : "%s%lld", ranges++ > 0 ? "," : "", (long long)i,
                (long long)last);
        i = last;
    }
    fprintf(out, " of %lld", (long long)e->size);
}

static void say_place(FILE *out, const struct defects *w) {
    next(out);
    fprintf(out, "%lld of %lld elements wrong in %lld of %lld rows, rows %lld to %lld of %lld",
            (long long)w->bad, (long long)w->elements, (long long)w->bad_rows, (long long)w->rows,
            (long long)w->first_row, (long long)w->last_row, (long long)w->output->view.shape.row);
    next(out);
    fputs(w->whole_rows == w->bad_rows ? "whole rows" : "parts of rows", out);
    say_extent(out, "columns", ", every column", &w->cols);
    say_extent(out, "rows of the tile", ", every row of the tile", &w->tile);
    if (w->tail_rows == w->bad_rows && w->tail_start > 0) {
        fprintf(out, ", the tail tile only (rows %lld on)", (long long)w->tail_start);
    }
    say_extent(out, "heads", "", &w->heads);
    say_extent(out, "batch entries", "", &w->batches);
}

static void say_values(FILE *out, const struct defects *w) {
    if (w->nans > 0) {
        next(out);
        fprintf(out, "%lld NaN, %lld of them never written", (long long)w->nans,
                (long long)w->unwritten);
    }
    if (w->square > 0) {
        const double factor = w->cross / w->square;
        const double rest = w->own - w->cross * factor;
        const double residual = w->own > 0 ? sqrt(fmax(rest, 0) / w->own) : 1;
        next(out);
        fprintf(out, "best factor out/expected %.4g, residual %.2g%s", factor, residual,
                residual < 0.02 && fabs(factor - 1) > 0.005 ? ": a constant factor" : "");
    }
}

static void say_lse(FILE *out, const struct defects *w) {
    const struct sample *s = w->output->sample;
    const struct expectation *expected = &w->output->expected;
    double sum = 0, square = 0;
    int64_t rows = 0, bad = 0;
    for (size_t r = 0; r < expected->count; r++) {
        const attn_row at = expectation_row(expected, s, r);
        if (at.row >= sample_rows_q(s, at.batch)) {
            continue;
        }
        const double exact = expected->lse[r];
        const double value = (double)s->tensors.lse[sample_at_lse(s, at.batch, at.head, at.row)];
        const bool same = value == exact; /* infinities */
        bad += !same && !(fabs(value - exact) <= 1e-5 + 1e-5 * fabs(exact));
        if (isfinite(value) && isfinite(exact)) {
            rows++;
            sum += value - exact;
            square += (value - exact) * (value - exact);
        }
    }
    const double mean = rows > 0 ? sum / (double)rows : 0;
    const double spread = rows > 0 ? sqrt(fmax(square / (double)rows - mean * mean, 0)) : 0;
    next(out);
    fprintf(out, "LSE wrong in %lld rows, off by %.4g on average, spread %.2g%s", (long long)bad,
            mean, spread, spread < 0.01 * fabs(mean) ? ": a constant" : "");
}

/* ---- growth with the number of keys ---------------------------------------------------------- */

/* The reference of the same rows over the sample as it is now. */
static bool expect_again(const struct case_output *o, struct expectation *expected) {
    const struct expectation *before = &o->expected;
    attn_row *rows = NULL;
    if (before->rows != NULL) {
        rows = must(malloc((before->count + 1) * sizeof *rows));
        memcpy(rows, before->rows, before->count * sizeof *rows);
    }
    return expectation_make_rows(expected, o->target->context, o->sample, rows, before->count) ==
           NULL;
}

/* The largest error over `keys` keys as a part of what is allowed; negative: not known. */
static double error_over(const struct case_output *o, int64_t keys) {
    const struct target *t = o->target;
    struct sample *s = o->sample;
    const attn_problem original = s->problem, resolved = s->full;
    struct expectation expected = {0};
    attn_comparison comparison;
    attn_error why;
    double ratio = -1;
    s->full.seq_kv = keys;
    s->problem = s->full;
    if (attn_variant_check(t->context, t->runs_as, &s->problem, NULL) == ATTN_OK &&
        expect_again(o, &expected) && run_sample(t, s, &why) == RUN_DONE) {
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
static void say_growth(FILE *out, const struct case_output *o) {
    const attn_problem *p = &o->sample->full;
    const int32_t tile = o->target->variant.block_kv;
    const int64_t block = tile > 0 ? tile : 64;
    const int64_t seq_kv = p->seq_kv;
    if (p->packed || p->used_kv || p->used_q || p->draft || p->bias || p->mask ||
        p->window_left >= 0) {
        return; /* fewer keys would be another problem, with keys that were never filled */
    }
    int64_t right_up_to = 0, wrong_from = -1, keys = 0;
    double first = 0, last = 0;
    for (int64_t blocks = 1; keys < seq_kv; blocks += blocks < 4 ? 1 : blocks / 2) {
        keys = blocks * block < seq_kv ? blocks * block : seq_kv;
        const double ratio = error_over(o, keys);
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
    }
    next(out);
    if (wrong_from < 0) {
        fputs("right with any smaller number of keys, and in this repetition", out);
        return;
    }
    fprintf(out, "over keys: right with %lld, wrong from %lld on (KV tiles of %lld)",
            (long long)right_up_to, (long long)wrong_from, (long long)block);
    if (wrong_from < seq_kv) {
        fprintf(out, ", error/allowed %.3g there and %.3g with all %lld%s", first, last,
                (long long)seq_kv, last > 1.5 * first ? ": it grows" : "");
    }
}

/* ---- altogether ------------------------------------------------------------------------------ */

static void tell(FILE *out, struct defects *w, const attn_comparison *comparison) {
    const struct sample *s = w->output->sample;
    for (size_t r = 0; r < w->output->expected.count; r++) {
        look_at_row(w, r, comparison->max_allowed);
    }
    if (w->bad > 0) {
        say_place(out, w);
        say_values(out, w);
    } else if (!comparison->o_pass) {
        next(out);
        fputs("no element is beyond the largest error allowed, the mean is", out);
        say_values(out, w);
    }
    if (!comparison->lse_pass && s->tensors.lse) {
        say_lse(out, w);
    }
    if (!comparison->pass && s->full.seq_kv > 0 && s->gradients == NULL) {
        say_growth(out, w->output);
    }
}

/* Rows of a tile of the output. */
static int64_t tile_of(const struct case_output *o) {
    const attn_variant *v = &o->target->variant;
    const bool keys = o->gradient == ATTN_GRADIENT_K || o->gradient == ATTN_GRADIENT_V;
    const int32_t block = keys ? v->block_kv : o->gradient <= ATTN_GRADIENT_Q ? v->block_q : 1;
    return block > 0 ? block : 1;
}

void anatomy_tell(const struct case_output *o, const attn_comparison *comparison, char *text,
                  size_t size) {
    const struct output_view *view = &o->view;
    const int64_t tile = tile_of(o);
    struct defects w = {.output = o, .tail_start = view->shape.row / tile * tile};
    text[0] = '\0';
    if (comparison->elements == 0) {
        return; /* damage, or a refusal: the reason says it all */
    }
    struct extent *const extents[] = {&w.tile, &w.cols, &w.heads, &w.batches};
    const int64_t sizes[] = {tile, view->cols, view->shape.head, view->shape.batch};
    const int64_t all = tile + view->cols + view->shape.head + view->shape.batch;
    bool *flags = must(calloc((size_t)(2 * all) + 1, sizeof *flags)), *at = flags;
    FILE *out = must(fmemopen(text, size, "w")); /* what does not fit is cut */
    for (int i = 0; i < 4; i++) {
        *extents[i] = (struct extent){sizes[i], at, at + all};
        at += sizes[i];
    }
    tell(out, &w, comparison);
    fclose(out);
    free(flags);
    text[size - 1] = '\0';
}
