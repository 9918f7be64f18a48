/* SPDX-License-Identifier: Apache-2.0
 *
 * board.c - what a search has found: the leaderboard, as text and as JSON.
 *
 * Invariant: it is made from the search alone, and so from the journal: a replay prints the same.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attn_verify.h"
#include "cases/shape.h"
#include "evolve/evolve.h"

enum { BOARD_MOST = 64, BOARD_LINES = 20 };

static const char *const STATES[] = {"drawn", "rejected", "same", "fit", "timed"};

/* ---- figures --------------------------------------------------------------------------------- */

static double seconds_of(const struct candidate *c, int shape) {
    return series_median(c->series[shape].candidate, c->series[shape].count);
}

/* The share of what the device's peaks allow; NaN where they are not known. */
static double roofline(const struct search *s, const attn_problem *p, double seconds) {
    if (!(s->flop_peak > 0)) {
        return (double)NAN;
    }
    const double queries = (double)p->batch * (double)p->heads_q * (double)p->seq_q;
    const double keys = (double)p->batch * (double)p->heads_kv * (double)p->seq_kv;
    const double bytes = (queries + keys) * (double)(p->head_dim + p->head_dim_v) *
                         (double)attn_dtype_size(p->dtype);
    return 100.0 * fmax(attn_problem_flops(p) / s->flop_peak, bytes / s->byte_peak) / seconds;
}

/* How many got to a gate beyond the first one: of those, how many a compiler or a gate of the CPU
 * refused; how many a device refused. */
struct tally {
    int tried, before_device, on_device, same, timed, fit;
};

static struct tally count(const struct search *s) {
    struct tally t = {.tried = s->count};
    for (int i = 0; i < s->count; i++) {
        const struct candidate *c = s->candidates[i];
        const bool late = strcmp(c->gate, "parity") == 0 || strcmp(c->gate, "timing") == 0;
        t.same += c->state == CANDIDATE_SAME;
        t.timed += c->state == CANDIDATE_TIMED;
        t.fit += c->state == CANDIDATE_FIT;
        t.on_device += c->state == CANDIDATE_REJECTED && late;
        t.before_device += c->state == CANDIDATE_REJECTED && !late;
    }
    return t;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void interval_json(struct json *json, const char *key, struct interval interval) {
    json_open(json, key, '{');
    json_real(json, "value", interval.value);
    json_real(json, "low", interval.low);
    json_real(json, "high", interval.high);
    json_close(json);
}

static void shapes_of_json(const struct search *s, const struct candidate *c, struct json *json) {
    char text[96];
    json_open(json, "shapes", '[');
    for (int i = 0; i < s->targets.count; i++) {
        const attn_problem *p = &s->targets.problems[i];
        json_open(json, NULL, '{');
        json_text(json, "shape", shape_text(p, text, sizeof text));
        json_real(json, "p50_us", 1e6 * seconds_of(c, i));
        json_real(json, "baseline_p50_us",
                  1e6 * series_median(c->series[i].baseline, c->series[i].count));
        interval_json(json, "ratio", series_interval(&c->series[i]));
        json_real(json, "roofline_percent", roofline(s, p, seconds_of(c, i)));
        json_int(json, "rounds", (int64_t)c->series[i].count);
        json_close(json);
    }
    json_close(json);
}

static void candidate_json(const struct search *s, const struct candidate *c, struct json *json) {
    const struct candidate *timed = c->state == CANDIDATE_SAME ? s->candidates[c->same_as] : c;
    json_open(json, NULL, '{');
    json_int(json, "id", c->number);
    json_text(json, "name", c->name);
    json_int(json, "generation", c->generation);
    json_text(json, "family", s->space.families[c->family].name);
    knobs_json(json, "knobs", &s->space.families[c->family], &c->knobs);
    json_text(json, "why", c->why);
    json_open(json, "parents", '[');
    for (int i = 0; i < 2 && c->parents[i] >= 0; i++) {
        json_int(json, NULL, c->parents[i]);
    }
    json_close(json);
    if (!isnan(c->predicted)) {
        json_real(json, "predicted_ratio", c->predicted);
    }
    json_text(json, "verdict", STATES[c->state]);
    json_text(json, "gate", c->gate[0] != '\0' ? c->gate : NULL);
    json_text(json, "reason", c->reason[0] != '\0' ? c->reason : NULL);
    if (c->state == CANDIDATE_SAME) {
        json_int(json, "same_as", c->same_as);
    }
    json_text(json, "identity", c->identity[0] != '\0' ? c->identity : NULL);
    json_text(json, "machine", c->machine[0] != '\0' ? c->machine : NULL);
    json_int(json, "registers", c->registers);
    json_int(json, "shared", c->shared);
    json_real(json, "error", timed->error);
    json_real(json, "seconds", c->at);
    if (timed->state == CANDIDATE_TIMED) {
        json_real(json, "p50_us", 1e6 * seconds_of(timed, 0));
        interval_json(json, "ratio", candidate_score(s, timed));
        shapes_of_json(s, timed, json);
    }
    json_close(json);
}

/* The best one as the search knew it, over time: by the lower end, of what was timed until then. */
static void progress_json(const struct search *s, struct json *json) {
    double best = -1;
    json_open(json, "progress", '[');
    for (int i = 0; i < s->count; i++) {
        const struct candidate *c = s->candidates[i];
        const struct interval score = candidate_score(s, c);
        if (c->state == CANDIDATE_TIMED && score.low > best) {
            best = score.low;
            json_open(json, NULL, '{');
            json_real(json, "seconds", c->at);
            json_int(json, "id", c->number);
            json_real(json, "ratio", score.value);
            json_real(json, "low", score.low);
            json_close(json);
        }
    }
    json_close(json);
}

static void tally_json(const struct search *s, struct json *json) {
    const struct tally t = count(s);
    json_open(json, "counts", '{');
    json_int(json, "illegal_draws", s->illegal_count);
    json_int(json, "candidates", t.tried);
    json_int(json, "rejected_before_device", t.before_device);
    json_int(json, "rejected_on_device", t.on_device);
    json_int(json, "same_machine_code", t.same);
    json_int(json, "timed", t.timed);
    json_int(json, "fit", t.fit);
    json_close(json);
    json_real(json, "seconds", s->spent);
    json_real(json, "gpu_seconds", s->gpu_spent);
}

static void decision_json(const struct search *s, const struct journal *journal,
                          struct json *json) {
    char line[256];
    attn_error why = {""};
    json_text(json, "decision", s->decision[0] != '\0' ? s->decision : "the search has not ended");
    if (!s->proven || s->refuted) {
        json_null(json, "promoted");
        return;
    }
    const struct candidate *c = s->candidates[s->winner];
    const bool named = promote_line(s, journal->last, line, sizeof line, &why);
    json_open(json, "promoted", '{');
    json_int(json, "id", c->number);
    json_text(json, "name", c->name);
    json_text(json, "line", named ? line : NULL);
    json_text(json, "reason", named ? NULL : why.text);
    json_close(json);
}

static void confirmed_json(const struct search *s, struct json *json) {
    char text[96];
    json_open(json, "confirmed", '[');
    for (int i = 0; i < s->finalist_count; i++) {
        const struct candidate *c = s->candidates[s->finalists[i]];
        for (int j = 0; j < s->targets.count && c->confirmed[j].count > 0; j++) {
            json_open(json, NULL, '{');
            json_int(json, "id", c->number);
            json_text(json, "shape", shape_text(&s->targets.problems[j], text, sizeof text));
            interval_json(json, "ratio", series_interval(&c->confirmed[j]));
            json_real(json, "p50_us",
                      1e6 * series_median(c->confirmed[j].candidate, c->confirmed[j].count));
            json_close(json);
        }
    }
    json_close(json);
    json_open(json, "held_out", '[');
    for (int i = 0; i < s->held_out.count && s->held[i].count > 0; i++) {
        json_open(json, NULL, '{');
        json_text(json, "shape", shape_text(&s->held_out.problems[i], text, sizeof text));
        interval_json(json, "ratio", series_interval(&s->held[i]));
        json_close(json);
    }
    json_close(json);
}

void board_json(const struct search *s, const struct journal *journal, struct json *json) {
    int ranked[BOARD_MOST];
    const int ranks = search_ranking(s, ranked, BOARD_MOST);
    json_open(json, NULL, '{');
    json_text(json, "schema", "attest-leaderboard/1");
    json_text(json, "journal", journal->last);
    json_copy(json, "config", journal->config);
    json_text(json, "dtype", DTYPE_NAMES[s->targets.problems[0].dtype]);
    shapes_json(json, "targets", &s->targets);
    json_open(json, "baselines", '[');
    for (int i = 0; i < s->targets.count; i++) {
        json_text(json, NULL, s->baselines[i]);
    }
    json_close(json);
    tally_json(s, json);
    json_open(json, "candidates", '[');
    for (int i = 0; i < s->count; i++) {
        candidate_json(s, s->candidates[i], json);
    }
    json_close(json);
    json_open(json, "illegal", '[');
    for (int i = 0; i < s->illegal_count; i++) {
        json_open(json, NULL, '{');
        json_text(json, "name", s->illegal[i].name);
        json_text(json, "reason", s->illegal[i].reason);
        json_close(json);
    }
    json_close(json);
    json_open(json, "leaderboard", '[');
    for (int i = 0; i < ranks; i++) {
        candidate_json(s, s->candidates[ranked[i]], json);
    }
    json_close(json);
    progress_json(s, json);
    confirmed_json(s, json);
    decision_json(s, journal, json);
    json_close(json);
}

/* ---- text ------------------------------------------------------------------------------------ */

static void print_line(const struct search *s, const struct candidate *c, int rank, FILE *out) {
    const struct interval score = candidate_score(s, c);
    fprintf(out, "%4d %4d  %-48s %7.4f  %.4f to %.4f", rank, c->number, c->name, score.value,
            score.low, score.high);
    for (int i = 0; i < s->targets.count; i++) {
        const double seconds = seconds_of(c, i),
                     share = roofline(s, &s->targets.problems[i], seconds);
        fprintf(out, "  %9.2f us", 1e6 * seconds);
        if (!isnan(share)) {
            fprintf(out, " %4.1f %%", share);
        }
    }
    if (c->registers > 0) {
        fprintf(out, "  %3d regs %6d B", c->registers, c->shared);
    }
    fprintf(out, "  error %.2f  %s\n", c->error, c->why);
}

void board_print(const struct search *s, const struct journal *journal, FILE *out) {
    int ranked[BOARD_MOST];
    char text[96];
    const struct tally t = count(s);
    const int ranks = search_ranking(s, ranked, BOARD_LINES);
    fprintf(out, "\n");
    for (int i = 0; i < s->targets.count; i++) {
        fprintf(out, "target %d   %s %s, today %s\n", i + 1,
                DTYPE_NAMES[s->targets.problems[i].dtype],
                shape_text(&s->targets.problems[i], text, sizeof text), s->baselines[i]);
    }
    fprintf(out, "\nrank   id  %-48s %7s  %16s  p50 of each target, its share of the roofline\n",
            "candidate", "ratio", "95 %");
    for (int i = 0; i < ranks; i++) {
        print_line(s, s->candidates[ranked[i]], i + 1, out);
    }
    fprintf(out,
            "\n%d candidates in %d generations, %.0f s, %.0f s of them on a GPU: %d timed, %d fit, "
            "%d of known machine code, %d rejected before the device, %d on it; %d draws were "
            "illegal\n",
            t.tried, s->generation, s->spent, s->gpu_spent, t.timed, t.fit, t.same, t.before_device,
            t.on_device, s->illegal_count);
    fprintf(out, "%s\n", s->decision[0] != '\0' ? s->decision : "the search has not ended");
    fprintf(out, "journal   %s\n", journal->last);
}
