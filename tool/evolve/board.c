/* SPDX-License-Identifier: Apache-2.0
 *
 * board.c - what a search has found: the leaderboard, as text and as JSON.
 *
 * Invariant: it is made from the search alone, and so from the journal: a replay prints the same.
 */
#include <math.h>
#include <string.h>

#include "cases/shape.h"
#include "evolve/evolve.h"

enum { BOARD_MOST = 64, BOARD_LINES = 20 };

static const char *const STATES[] = {"new", "rejected", "fit", "timed"};

static const char *decision_of(const struct search *s) {
    return s->decision[0] != '\0' ? s->decision : "the search has not ended";
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void series_json(struct json *json, const attn_problem *problem,
                        const struct series *series) {
    char text[96];
    const struct interval ratio = series_interval(series);
    json_text(json, "shape", shape_text(problem, text, sizeof text));
    json_real(json, "p50_us", 1e6 * series_median(series, true));
    json_real(json, "baseline_p50_us", 1e6 * series_median(series, false));
    json_real(json, "ratio", ratio.value);
    json_real(json, "ratio_low", ratio.low);
    json_real(json, "ratio_high", ratio.high);
    json_int(json, "rounds", (int64_t)series->count);
}

static void candidate_json(const struct search *s, const struct candidate *c, struct json *json) {
    json_open(json, NULL, '{');
    json_int(json, "id", c->number);
    json_text(json, "name", c->name);
    json_int(json, "generation", c->generation);
    json_text(json, "family", s->families[c->family].name);
    knobs_json(json, &c->knobs);
    json_text(json, "why", c->why);
    json_int(json, "parent", c->parent);
    json_real(json, "predicted_ratio", c->predicted);
    json_text(json, "verdict", STATES[c->state]);
    if (c->state == CANDIDATE_REJECTED) {
        json_text(json, "gate", c->gate);
        json_text(json, "reason", c->reason);
    }
    json_text(json, "machine", c->machine);
    json_int(json, "registers", c->registers);
    json_int(json, "shared", c->shared);
    json_real(json, "error", c->error);
    json_real(json, "seconds", c->at);
    if (c->state == CANDIDATE_TIMED) {
        json_real(json, "ratio", c->score.value);
        json_real(json, "ratio_low", c->score.low);
        json_real(json, "ratio_high", c->score.high);
        json_open(json, "shapes", '[');
        for (int i = 0; i < s->targets.count; i++) {
            json_open(json, NULL, '{');
            series_json(json, &s->targets.problems[i], &c->series[i]);
            json_close(json);
        }
        json_close(json);
    }
    json_close(json);
}

static void confirmed_json(const struct search *s, struct json *json) {
    json_open(json, "confirmed", '[');
    for (int i = 0; i < s->finalist_count; i++) {
        const struct candidate *c = s->candidates[s->finalists[i]];
        for (int j = 0; j < s->targets.count && c->confirmed[j].count > 0; j++) {
            json_open(json, NULL, '{');
            json_int(json, "id", c->number);
            series_json(json, &s->targets.problems[j], &c->confirmed[j]);
            json_close(json);
        }
    }
    json_close(json);
    json_open(json, "held_out", '[');
    for (int i = 0; i < s->held_out.count && s->held[i].count > 0; i++) {
        json_open(json, NULL, '{');
        series_json(json, &s->held_out.problems[i], &s->held[i]);
        json_close(json);
    }
    json_close(json);
}

static void decision_json(const struct search *s, const struct journal *journal,
                          struct json *json) {
    char line[256], hash[SHA256_TEXT];
    attn_error why = {""};
    journal_hash(journal, hash);
    json_text(json, "journal", hash);
    json_text(json, "decision", decision_of(s));
    if (!s->proven || s->refuted) {
        json_null(json, "promoted");
        return;
    }
    const bool named = promote_line(s, hash, line, sizeof line, &why);
    json_open(json, "promoted", '{');
    json_int(json, "id", s->winner);
    json_text(json, "name", s->candidates[s->winner]->name);
    json_text(json, "line", named ? line : NULL);
    json_text(json, "reason", named ? NULL : why.text);
    json_close(json);
}

void board_json(const struct search *s, const struct journal *journal, struct json *json) {
    int ranked[BOARD_MOST];
    const int ranks = search_ranking(s, ranked, BOARD_MOST);
    json_text(json, "schema", "attest-leaderboard/2");
    json_open(json, "config", '{');
    for (size_t i = 0; i < journal->config->as.list.count; i++) {
        json_value_json(json, &journal->config->as.list.items[i]);
    }
    json_close(json);
    shapes_json(json, "targets", &s->targets);
    json_real(json, "seconds", s->spent);
    json_real(json, "gpu_seconds", s->gpu_spent);
    json_open(json, "candidates", '[');
    for (int i = 0; i < s->count; i++) {
        candidate_json(s, s->candidates[i], json);
    }
    json_close(json);
    json_open(json, "leaderboard", '['); /* ids, best first */
    for (int i = 0; i < ranks; i++) {
        json_int(json, NULL, ranked[i]);
    }
    json_close(json);
    confirmed_json(s, json);
    decision_json(s, journal, json);
}

/* ---- text ------------------------------------------------------------------------------------ */

void board_print(const struct search *s, const struct journal *journal, FILE *out) {
    int ranked[BOARD_LINES], states[CANDIDATE_TIMED + 1] = {0};
    char text[96], hash[SHA256_TEXT];
    const int ranks = search_ranking(s, ranked, BOARD_LINES);
    fprintf(out, "\n");
    for (int i = 0; i < s->targets.count; i++) {
        fprintf(out, "target %d   %s %s, baseline %s\n", i + 1,
                DTYPE_NAMES[s->targets.problems[i].dtype],
                shape_text(&s->targets.problems[i], text, sizeof text), s->targets.baselines[i]);
    }
    fprintf(out, "\nrank   id  %-48s %7s  %16s  p50 of each target\n", "candidate", "ratio",
            "95 %");
    for (int i = 0; i < ranks; i++) {
        const struct candidate *c = s->candidates[ranked[i]];
        fprintf(out, "%4d %4d  %-48s %7.4f  %.4f to %.4f", i + 1, c->number, c->name,
                c->score.value, c->score.low, c->score.high);
        for (int j = 0; j < s->targets.count; j++) {
            fprintf(out, "  %9.2f us", 1e6 * series_median(&c->series[j], true));
        }
        if (c->registers > 0) {
            fprintf(out, "  %3d regs %6d B", c->registers, c->shared);
        }
        fprintf(out, "  error %.2f  %s\n", c->error, c->why);
    }
    for (int i = 0; i < s->count; i++) {
        states[s->candidates[i]->state]++;
    }
    fprintf(out,
            "\n%d candidates in %d generations, %.0f s, %.0f s of them on a GPU: %d timed, %d fit, "
            "%d rejected\n",
            s->count, s->generation, s->spent, s->gpu_spent, states[CANDIDATE_TIMED],
            states[CANDIDATE_FIT], states[CANDIDATE_REJECTED]);
    journal_hash(journal, hash);
    fprintf(out, "%s\njournal   %s\n", decision_of(s), hash);
}
