/* SPDX-License-Identifier: Apache-2.0
 *
 * board.c - what a search has found: the leaderboard, as text and as JSON.
 *
 * Invariant: it is made from the search alone, and so from the journal: a replay prints the same.
 */

#include "cases/shape.h"
#include "evolve/evolve.h"

enum { BOARD_MOST = 64, BOARD_LINES = 20 };

static const char *decision_of(const struct search *s) {
    return s->decision[0] != '\0' ? s->decision : "the search has not ended";
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void interval_json(struct json *json, struct interval ratio) {
    json_real(json, "ratio", ratio.value);
    json_real(json, "ratio_low", ratio.low);
    json_real(json, "ratio_high", ratio.high);
}

/* One item for each shape, in the open list. */
static void timings_json(const struct json_value *timings, int id, struct json *json) {
    for (size_t i = 0; i < json_count_of(timings); i++) {
        const struct json_value *one = json_item(timings, i);
        json_open(json, NULL, '{');
        json_int(json, "id", id);
        json_text(json, "shape", json_text_or(one, "shape", ""));
        json_real(json, "p50_us", json_number_at(one, "p50_us"));
        json_real(json, "baseline_p50_us", json_number_at(one, "baseline_p50_us"));
        interval_json(json, ratio_of(timings, (int)i));
        json_int(json, "rounds", (int64_t)json_count_of(json_at(one, "ratios")));
        json_close(json);
    }
}

static void candidate_json(const struct search *s, const struct candidate *c, struct json *json) {
    static const char *const copied[] = {"verdict", "gate",      "reason", "error",
                                         "machine", "registers", "shared", "network"};
    json_open(json, NULL, '{');
    json_int(json, "id", c->number);
    json_text(json, "name", c->name);
    json_int(json, "generation", c->generation);
    json_text(json, "family", s->families[c->family].name);
    knobs_json(json, &c->knobs);
    json_text(json, "why", c->why);
    json_real(json, "predicted_ratio", c->predicted);
    for (size_t i = 0; i < sizeof copied / sizeof *copied; i++) {
        const struct json_value *value = json_at(c->result, copied[i]);
        if (value != NULL) {
            json_value_json(json, value);
        }
    }
    interval_json(json, c->score);
    json_open(json, "shapes", '[');
    timings_json(c->timings, c->number, json);
    json_close(json);
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
    members_json(json, journal->config);
    json_close(json);
    shapes_json(json, "targets", &s->targets);
    json_real(json, "seconds", s->spent);
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
    json_open(json, "confirmed", '[');
    for (int i = 0; i < s->finalist_count; i++) {
        timings_json(s->candidates[s->finalists[i]]->confirmed, s->finalists[i], json);
    }
    json_close(json);
    json_open(json, "held_out", '[');
    timings_json(s->held, s->winner, json);
    json_close(json);
    decision_json(s, journal, json);
}

/* ---- text ------------------------------------------------------------------------------------ */

static void print_line(const struct candidate *c, int rank, FILE *out) {
    const int64_t registers = json_int_at(c->result, "registers", 0);
    fprintf(out, "%4d %4d  %-48s %7.4f  %.4f to %.4f", rank, c->number, c->name, c->score.value,
            c->score.low, c->score.high);
    for (size_t i = 0; i < json_count_of(c->timings); i++) {
        fprintf(out, "  %9.2f us", json_number_at(json_item(c->timings, i), "p50_us"));
    }
    if (registers > 0) {
        fprintf(out, "  %3d regs %6d B", (int)registers, (int)json_int_at(c->result, "shared", 0));
    }
    fprintf(out, "  error %.2f  %s\n", json_number_at(c->result, "error"), c->why);
}

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
        print_line(s->candidates[ranked[i]], i + 1, out);
    }
    for (int i = 0; i < s->count; i++) {
        states[s->candidates[i]->state]++;
    }
    journal_hash(journal, hash);
    fprintf(out,
            "\n%d candidates in %d generations, %.0f s: %d timed, %d fit, "
            "%d rejected\n%s\njournal   %s\n",
            s->count, s->generation, s->spent, states[CANDIDATE_TIMED], states[CANDIDATE_FIT],
            states[CANDIDATE_REJECTED], decision_of(s), hash);
}
