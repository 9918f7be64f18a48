/* SPDX-License-Identifier: Apache-2.0
 *
 * page.c - what a search has found, as a page to read: the best so far over time, the
 * leaderboard, what was refused and by which gate, what was confirmed.
 *
 * Invariant: as of board.c: from the search alone. The page loads nothing.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/message.h"
#include "cases/shape.h"
#include "evolve/evolve.h"
#include "report/html.h"
#include "report/svg.h"

enum { PAGE_RANKS = 40, LABEL = 160 };

/* ---- the plot -------------------------------------------------------------------------------- */

struct progress {
    struct svg_point *all, *best; /* every timed one; those that were the best when they came */
    char (*labels)[LABEL];
    size_t count, steps;
};

static bool progress_make(const struct search *s, struct progress *p, attn_error *why) {
    const size_t room = (size_t)s->count + 2;
    double best = -1;
    *p = (struct progress){.all = calloc(room, sizeof *p->all),
                           .best = calloc(room, sizeof *p->best),
                           .labels = calloc(room, sizeof *p->labels)};
    if (p->all == NULL || p->best == NULL || p->labels == NULL) {
        return explain(why, "out of memory");
    }
    for (int i = 0; i < s->count; i++) {
        const struct candidate *c = s->candidates[i];
        const struct interval score = candidate_score(s, c);
        if (c->state != CANDIDATE_TIMED || isnan(score.low)) {
            continue;
        }
        char *label = p->labels[p->count];
        snprintf(label, LABEL, "%d %s: %.4f (%.4f to %.4f)", c->number, c->name, score.value,
                 score.low, score.high);
        const struct svg_point point = {c->at, score.value, score.low, score.high, label};
        p->all[p->count++] = point;
        if (score.low > best) {
            best = score.low;
            p->best[p->steps++] = point;
        }
    }
    if (p->steps > 0) { /* it lasts to the end */
        const double end = p->all[p->count - 1].x, last = p->best[p->steps - 1].y;
        p->best[p->steps++] = (struct svg_point){end, last, (double)NAN, (double)NAN, NULL};
    }
    return true;
}

static void progress_free(struct progress *p) {
    free(p->all);
    free(p->best);
    free(p->labels);
}

static void put_progress(const struct progress *p, FILE *out) {
    const struct svg_series series[] = {
        {"timed", p->all, p->count, SVG_POINTS, 1},
        {"best so far", p->best, p->steps, SVG_STEPS | SVG_POINTS, 0},
    };
    svg_plot(out, &(struct svg_plot){.title = "Best so far",
                                     .subtitle = "seconds of today's choice / seconds of the "
                                                 "candidate; above 1 is faster; bars: 95 %",
                                     .x = {"seconds of the search", SVG_LINEAR, false},
                                     .y = {"ratio", SVG_LINEAR, false},
                                     .series = series,
                                     .series_count = sizeof series / sizeof *series});
}

/* ---- tables ---------------------------------------------------------------------------------- */

static void put_targets(const struct search *s, FILE *out) {
    char text[96];
    html_put(out, "<h2>Targets</h2>\n<table><tr><th>shape</th><th>dtype</th><th>today</th></tr>\n");
    for (int i = 0; i < s->targets.count; i++) {
        html_put(out, "<tr><td>%s</td><td>%s</td><td>%s</td></tr>\n",
                 shape_text(&s->targets.problems[i], text, sizeof text),
                 DTYPE_NAMES[s->targets.problems[i].dtype], s->baselines[i]);
    }
    html_put(out, "</table>\n");
}

static void put_board(const struct search *s, FILE *out) {
    int ranked[PAGE_RANKS];
    const int count = search_ranking(s, ranked, PAGE_RANKS);
    html_put(out, "<h2>Leaderboard</h2>\n<table><tr><th>rank</th><th>id</th><th>candidate</th>"
                  "<th>ratio</th><th>95 %%</th><th>p50 us</th><th>registers</th>"
                  "<th>shared bytes</th><th>error</th><th>why</th></tr>\n");
    for (int i = 0; i < count; i++) {
        const struct candidate *c = s->candidates[ranked[i]];
        const struct interval score = candidate_score(s, c);
        html_put(out, "<tr><td>%d</td><td>%d</td><td>%s</td><td>%.4f</td><td>%.4f to %.4f</td><td>",
                 i + 1, c->number, c->name, score.value, score.low, score.high);
        for (int j = 0; j < s->targets.count; j++) {
            html_put(out, "%s%.2f", j > 0 ? ", " : "",
                     1e6 * series_median(c->series[j].candidate, c->series[j].count));
        }
        html_put(out, "</td><td>%d</td><td>%d</td><td>%.2f</td><td>%s</td></tr>\n", c->registers,
                 c->shared, c->error, c->why);
    }
    html_put(out, "</table>\n");
}

static void put_refused(const struct search *s, FILE *out) {
    html_put(out, "<h2>Refused</h2>\n<p>%d draws were illegal and never became candidates.</p>\n",
             s->illegal_count);
    html_put(out, "<table><tr><th>id</th><th>candidate</th><th>gate</th><th>reason</th></tr>\n");
    for (int i = 0; i < s->count; i++) {
        const struct candidate *c = s->candidates[i];
        if (c->state == CANDIDATE_REJECTED) {
            html_put(out, "<tr><td>%d</td><td>%s</td><td>%s</td><td>%s</td></tr>\n", c->number,
                     c->name, c->gate, c->reason);
        }
    }
    html_put(out, "</table>\n");
}

static void put_ratio(FILE *out, const char *name, const char *shape, const struct series *series) {
    const struct interval ratio = series_interval(series);
    html_put(out, "<tr><td>%s</td><td>%s</td><td>%.4f</td><td>%.4f to %.4f</td><td>%zu</td></tr>\n",
             name, shape, ratio.value, ratio.low, ratio.high, series->count);
}

static void put_confirmed(const struct search *s, FILE *out) {
    char text[96];
    html_put(out, "<h2>Confirmed, and held out</h2>\n<table><tr><th>candidate</th><th>shape</th>"
                  "<th>ratio</th><th>95 %%</th><th>rounds</th></tr>\n");
    for (int i = 0; i < s->finalist_count; i++) {
        const struct candidate *c = s->candidates[s->finalists[i]];
        for (int j = 0; j < s->targets.count && c->confirmed[j].count > 0; j++) {
            put_ratio(out, c->name, shape_text(&s->targets.problems[j], text, sizeof text),
                      &c->confirmed[j]);
        }
    }
    for (int i = 0; i < s->held_out.count && s->held[i].count > 0; i++) {
        put_ratio(out, "held out", shape_text(&s->held_out.problems[i], text, sizeof text),
                  &s->held[i]);
    }
    html_put(out, "</table>\n");
}

/* ---- the page -------------------------------------------------------------------------------- */

static void put_page(const struct search *s, const struct journal *journal,
                     const struct progress *progress, FILE *out) {
    html_open(out, "attest evolve");
    html_put(out, "<h1>attest evolve</h1>\n<p>%s</p>\n",
             s->decision[0] != '\0' ? s->decision : "The search has not ended.");
    html_put(out, "<p>%d candidates in %d generations, %.0f s, %.0f s of them on a GPU.</p>\n",
             s->count, s->generation, s->spent, s->gpu_spent);
    put_targets(s, out);
    put_progress(progress, out);
    put_board(s, out);
    put_confirmed(s, out);
    put_refused(s, out);
    html_put(out, "<p>Journal %s</p>\n", journal->last);
    html_close(out, "Made from the journal alone: attest evolve --leaderboard makes it again.");
}

bool page_write(const struct search *search, const struct journal *journal, const char *path,
                attn_error *why) {
    struct progress progress;
    char *text = NULL;
    size_t bytes = 0;
    bool good = progress_make(search, &progress, why);
    FILE *out = good ? open_memstream(&text, &bytes) : NULL;
    if (out != NULL) {
        put_page(search, journal, &progress, out);
        good = fclose(out) == 0;
    }
    progress_free(&progress);
    good =
        (good && out != NULL) ? write_file(path, text, bytes, why) : explain(why, "out of memory");
    free(text);
    return good;
}
