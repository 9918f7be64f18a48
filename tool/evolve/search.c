/* SPDX-License-Identifier: Apache-2.0
 *
 * search.c - which step comes next, and what its result means. See evolve.h.
 *
 *     facts
 *     generation 0: today's choices and the shipped variants (or --start), then drawn ones
 *     generation n: mutations and crossings of the best, steps around them, newcomers
 *         each candidate: its gates, then a short timing
 *         rungs: whose interval still reaches the best one's is timed again, twice as long, half of
 *         them at most
 *     the best few confirmed with new seeds; the winner on shapes that were held out
 *
 * Ratios are seconds of today's choice / seconds of the candidate, measured in turns in one
 * process: above 1 is faster. A candidate's interval is that of the median over all its rounds.
 *
 * Invariant: no clock, no device, no file: the same seed and the same results make the same steps.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/message.h"
#include "cases/cases.h"
#include "evolve/evolve.h"

enum {
    FINALISTS = 3,
    RANKED = 64,
    RUNGS = 2,   /* behind the first timing */
    ROUNDS = 10, /* of the first timing; doubled at each rung */
    CONFIRM_ROUNDS = 40,
    IDLE_GENERATIONS = 6 /* without a better one: the search has come to its end */
};
static const double SEARCH_SHARE = 0.85; /* of a budget: the rest is for confirming */
static const double HELD_OUT_LOSS = 0.99;

const char *const STEP_NAMES[] = {"facts",   "proposal", "candidate", "timing",
                                  "confirm", "held_out", "end"};

/* ---- numbers --------------------------------------------------------------------------------- */

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static struct interval interval_of(const double *values, size_t count) {
    const struct interval unknown = {(double)NAN, (double)NAN, (double)NAN};
    double *sorted = count > 0 ? malloc(count * sizeof *sorted) : NULL;
    if (sorted == NULL) {
        return unknown;
    }
    memcpy(sorted, values, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, ascending);
    const struct interval interval = stats_quantile(sorted, count, 0.5);
    free(sorted);
    return interval;
}

struct interval series_interval(const struct series *series) {
    return interval_of(series->ratios, series->count);
}

double series_median(const double *values, size_t count) {
    return interval_of(values, count).value;
}

static struct interval mean_of(const struct series *series, int count) {
    double value = 0, low = 0, high = 0;
    for (int i = 0; i < count; i++) {
        const struct interval one = series_interval(&series[i]);
        value += log(one.value);
        low += log(one.low);
        high += log(one.high);
    }
    return (struct interval){exp(value / count), exp(low / count), exp(high / count)};
}

struct interval candidate_score(const struct search *search, const struct candidate *candidate) {
    return mean_of(candidate->series, search->targets.count);
}

/* What a candidate is ranked by: the lower end of its interval. A hopeless one was given up before
 * it had one, and has its median. */
static double rank_of(const struct search *search, const struct candidate *candidate) {
    const struct interval score = candidate_score(search, candidate);
    return isnan(score.low) ? score.value : score.low;
}

int search_ranking(const struct search *search, int *numbers, int most) {
    int count = 0;
    for (int i = 0; i < search->count; i++) {
        const struct candidate *c = search->candidates[i];
        if (c->state != CANDIDATE_TIMED) {
            continue;
        }
        const double rank = rank_of(search, c);
        int place = count;
        while (place > 0 && rank_of(search, search->candidates[numbers[place - 1]]) < rank) {
            place--;
        }
        if (place < most) {
            const int last = count < most ? count : most - 1;
            memmove(numbers + place + 1, numbers + place, (size_t)(last - place) * sizeof *numbers);
            numbers[place] = i;
            count = count < most ? count + 1 : most;
        }
    }
    return count;
}

int search_best(const struct search *search) {
    int best = -1;
    return search_ranking(search, &best, 1) == 1 ? best : -1;
}

/* ---- generations ----------------------------------------------------------------------------- */

static bool is_spent(const struct search *s, double share) {
    return (s->options.seconds > 0 && s->spent > share * s->options.seconds) ||
           (s->options.gpu_seconds > 0 && s->gpu_spent > share * s->options.gpu_seconds) ||
           (s->options.candidates > 0 && s->count >= s->options.candidates && s->next >= s->count);
}

/* How many generations the best one has lasted. */
static int idle_generations(const struct search *s) {
    const int best = search_best(s);
    return best < 0 ? s->generation : s->generation - s->candidates[best]->generation;
}

/* A line of tuned.def can name it. */
static bool is_plain(const struct candidate *c) {
    return c->source[0] == '\0' && knobs_are_plain(&c->knobs);
}

/* The best few, and the best that could be promoted. */
static void choose_finalists(struct search *s) {
    int ranked[RANKED];
    const int count = search_ranking(s, ranked, RANKED);
    bool plain = false;
    s->finalist_count = 0;
    for (int i = 0; i < count; i++) {
        const bool first_plain = !plain && is_plain(s->candidates[ranked[i]]);
        if (i < FINALISTS || first_plain) {
            s->finalists[s->finalist_count++] = ranked[i];
        }
        plain = plain || first_plain;
    }
    s->next = 0;
    s->phase = s->finalist_count > 0 ? STEP_CONFIRM : STEP_END;
}

static void fill_generation(struct search *s) {
    if (s->generation == 0) {
        breed_first(s);
    } else {
        breed_next(s);
    }
    s->next = s->first;
    s->phase = STEP_CANDIDATE;
    if (s->count == s->first) { /* nothing new is left */
        choose_finalists(s);
    }
}

static void begin_generation(struct search *s) {
    s->first = s->count;
    if (s->generation > 0 && s->options.proposer) {
        s->phase = STEP_PROPOSAL;
    } else {
        fill_generation(s);
    }
}

/* ---- rungs ----------------------------------------------------------------------------------- */

/* Those of this generation, or of the last rung, that may still be the best: the better half. */
static void climb(struct search *s) {
    int ranked[64], kept = 0, taken = 0;
    const int best = search_best(s);
    const double bar = best >= 0 ? rank_of(s, s->candidates[best]) : (double)NAN;
    for (int i = 0; i < s->entrant_count; i++) {
        const struct candidate *c = s->candidates[s->entrants[i]];
        const double rank = rank_of(s, c);
        int place = kept;
        if (c->state != CANDIDATE_TIMED || !(candidate_score(s, c).high >= bar)) {
            continue;
        }
        taken++;
        for (; place > 0 && rank_of(s, s->candidates[ranked[place - 1]]) < rank; place--) {
            ranked[place] = ranked[place - 1];
        }
        ranked[place] = c->number;
        kept++;
    }
    const int most = (s->entrant_count + 1) / 2;
    s->entrant_count = taken < most ? taken : most;
    memcpy(s->entrants, ranked, (size_t)s->entrant_count * sizeof *ranked);
    s->rung++;
    s->next = 0;
}

static void end_generation(struct search *s) {
    s->generation++;
    s->next = s->count;
    if (is_spent(s, SEARCH_SHARE) || idle_generations(s) > IDLE_GENERATIONS) {
        choose_finalists(s);
    } else {
        begin_generation(s);
    }
}

static void begin_rungs(struct search *s) {
    s->entrant_count = 0;
    s->rung = 0;
    for (int i = s->first; i < s->count && s->entrant_count < 64; i++) {
        if (s->candidates[i]->state == CANDIDATE_TIMED) {
            s->entrants[s->entrant_count++] = i;
        }
    }
    s->phase = STEP_TIMING;
    climb(s);
}

static void advance_rungs(struct search *s) {
    while (s->phase == STEP_TIMING && s->next >= s->entrant_count) {
        if (s->rung >= RUNGS || s->entrant_count <= 1 || is_spent(s, SEARCH_SHARE)) {
            end_generation(s);
        } else {
            climb(s);
        }
    }
}

/* ---- the end --------------------------------------------------------------------------------- */

static bool is_proven(const struct search *s, const struct candidate *c) {
    bool proven = c->state == CANDIDATE_TIMED;
    for (int i = 0; i < s->targets.count; i++) {
        proven = proven && series_interval(&c->confirmed[i]).low > 1.0;
    }
    return proven;
}

/* The best that is proven and can be promoted; else the best. */
static void choose_winner(struct search *s) {
    for (int promotable = 1; promotable >= 0 && s->winner < 0; promotable--) {
        double best = -1;
        for (int i = 0; i < s->finalist_count; i++) {
            const struct candidate *c = s->candidates[s->finalists[i]];
            const double low = mean_of(c->confirmed, s->targets.count).low;
            if (low > best && (promotable == 0 || (is_plain(c) && is_proven(s, c)))) {
                best = low;
                s->winner = c->number;
            }
        }
    }
    s->proven = s->winner >= 0 && is_proven(s, s->candidates[s->winner]);
    s->phase = s->proven && s->held_out.count > 0 ? STEP_HELD_OUT : STEP_END;
}

/* Whether a candidate is what every target has today. */
static bool is_today(const struct search *s, const struct candidate *c) {
    bool same = is_plain(c);
    for (int i = 0; i < s->targets.count; i++) {
        same = same && strcmp(c->name, s->baselines[i]) == 0;
    }
    return same;
}

/* Where today's choice was confirmed to be faster than itself, nothing else was proven either. */
static bool control_failed(struct search *s) {
    for (int i = 0; i < s->finalist_count; i++) {
        const struct candidate *c = s->candidates[s->finalists[i]];
        const struct interval ratio = mean_of(c->confirmed, s->targets.count);
        if (is_today(s, c) && ratio.low > 1.0) {
            snprintf(s->decision, sizeof s->decision,
                     "not promoted: the control failed, the machine was not quiet: %s is today's "
                     "choice, and was %.4f (%.4f to %.4f) times as fast as itself",
                     c->name, ratio.value, ratio.low, ratio.high);
            return true;
        }
    }
    return false;
}

static void decide(struct search *s) {
    char shape[96];
    const struct candidate *c = s->winner >= 0 ? s->candidates[s->winner] : NULL;
    if (c == NULL) {
        snprintf(s->decision, sizeof s->decision, "nothing was timed");
        return;
    }
    const struct interval ratio = mean_of(c->confirmed, s->targets.count);
    s->refuted = s->proven && control_failed(s);
    for (int i = 0; i < s->held_out.count && s->proven && !s->refuted; i++) {
        const struct interval held = series_interval(&s->held[i]);
        if (!(held.high >= HELD_OUT_LOSS)) {
            s->refuted = true;
            snprintf(s->decision, sizeof s->decision,
                     "not promoted: %s lost on the held-out shape %s, ratio %.4f (%.4f to %.4f)",
                     c->name, shape_text(&s->held_out.problems[i], shape, sizeof shape), held.value,
                     held.low, held.high);
        }
    }
    if (s->refuted) {
        return;
    }
    snprintf(s->decision, sizeof s->decision,
             s->proven ? "%s is faster than today's choice on every target: ratio %.4f (%.4f to "
                         "%.4f), confirmed with new seeds"
                       : "not promoted: the best, %s, is not proven faster on every target: ratio "
                         "%.4f (%.4f to %.4f)",
             c->name, ratio.value, ratio.low, ratio.high);
}

/* ---- next ------------------------------------------------------------------------------------ */

static uint64_t seed_from(uint64_t *state) {
    return rng_next(state) >> 11; /* what a double and a JSON reader hold */
}

struct step search_candidate_step(const struct search *s, int number) {
    uint64_t state = search_state(s, ((uint64_t)STEP_CANDIDATE << 32) + (uint64_t)number);
    return (struct step){.kind = STEP_CANDIDATE,
                         .candidate = s->candidates[number],
                         .rounds = ROUNDS,
                         .seed = seed_from(&state)};
}

struct step search_next(struct search *s) {
    struct step step = {.kind = s->phase};
    const uint64_t salt = (uint64_t)s->phase << 32;
    uint64_t state = 0;
    switch (s->phase) {
    case STEP_CANDIDATE: return search_candidate_step(s, s->next);
    case STEP_TIMING:
        step.candidate = s->candidates[s->entrants[s->next]];
        step.rounds = ROUNDS << s->rung;
        state = search_state(s, salt + 16 * (uint64_t)step.candidate->number + (uint64_t)s->rung);
        break;
    case STEP_CONFIRM:
        step.candidate = s->candidates[s->finalists[s->next]];
        step.rounds = CONFIRM_ROUNDS;
        state = search_state(s, salt + (uint64_t)step.candidate->number);
        break;
    case STEP_HELD_OUT:
        step.candidate = s->candidates[s->winner];
        step.rounds = CONFIRM_ROUNDS;
        state = search_state(s, salt + (uint64_t)step.candidate->number);
        break;
    case STEP_FACTS:
    case STEP_PROPOSAL:
    case STEP_END: break;
    }
    step.seed = seed_from(&state);
    return step;
}

static void origin_json(const struct search *s, const struct candidate *c, struct json *json) {
    json_int(json, "generation", c->generation);
    json_text(json, "family", s->space.families[c->family].name);
    knobs_json(json, "knobs", &s->space.families[c->family], &c->knobs);
    json_text(json, "why", c->why);
    json_open(json, "parents", '[');
    for (int i = 0; i < 2; i++) {
        if (c->parents[i] >= 0) {
            json_int(json, NULL, c->parents[i]);
        }
    }
    json_close(json);
    if (c->source[0] != '\0') {
        json_text(json, "source", c->source);
    }
}

void search_step_json(const struct search *s, const struct step *step, struct json *json) {
    json_open(json, NULL, '{');
    json_text(json, "kind", STEP_NAMES[step->kind]);
    if (step->kind == STEP_PROPOSAL) {
        json_int(json, "generation", s->generation);
    }
    if (step->candidate != NULL) {
        json_int(json, "candidate", step->candidate->number);
        json_text(json, "name", step->candidate->name);
        json_int(json, "rounds", step->rounds);
        json_int(json, "seed", (int64_t)step->seed);
    }
    if (step->kind == STEP_CANDIDATE && step->candidate != NULL) {
        origin_json(s, step->candidate, json);
        json_int(json, "illegal_so_far", s->illegal_count);
    }
    json_close(json);
}

/* ---- take ------------------------------------------------------------------------------------ */

static bool grow_series(struct series *series, size_t more) {
    double **const all[] = {&series->ratios, &series->baseline, &series->candidate};
    for (int i = 0; i < 3; i++) {
        double *grown = realloc(*all[i], (series->count + more) * sizeof **all[i]);
        if (grown == NULL) {
            return false;
        }
        *all[i] = grown;
    }
    return true;
}

/* {"timings": [{"baseline": [...], "candidate": [...]}, ...]}, one for each shape. */
static bool take_timings(struct series *series, int shapes, const struct json_value *result,
                         attn_error *why) {
    const struct json_value *list = json_at(result, "timings");
    if (json_count_of(list) != (size_t)shapes) {
        return explain(why, "timings of %zu shapes, expected %d", json_count_of(list), shapes);
    }
    for (int i = 0; i < shapes; i++) {
        const struct json_value *before = json_at(&list->as.list.items[i], "baseline");
        const struct json_value *after = json_at(&list->as.list.items[i], "candidate");
        const size_t count = json_count_of(before);
        if (count == 0 || json_count_of(after) != count) {
            return explain(why, "%zu rounds of the baseline, %zu of the candidate", count,
                           json_count_of(after));
        }
        if (!grow_series(&series[i], count)) {
            return explain(why, "out of memory");
        }
        for (size_t j = 0; j < count; j++) {
            const double a = json_number_of(&before->as.list.items[j]);
            const double b = json_number_of(&after->as.list.items[j]);
            if (!(a > 0) || !(b > 0)) {
                return explain(why, "a round took %g and %g s, expected more than 0", a, b);
            }
            series[i].baseline[series[i].count] = a;
            series[i].candidate[series[i].count] = b;
            series[i].ratios[series[i].count++] = a / b;
        }
    }
    return true;
}

static void take_text(char *to, size_t size, const struct json_value *value) {
    const char *text = json_text_of(value);
    snprintf(to, size, "%s", text != NULL ? text : "");
}

static void take_rejection(struct candidate *c, const struct json_value *result) {
    c->state = CANDIDATE_REJECTED;
    take_text(c->gate, sizeof c->gate, json_at(result, "gate"));
    take_text(c->reason, sizeof c->reason, json_at(result, "reason"));
}

static bool take_candidate(struct search *s, struct candidate *c, const struct json_value *result,
                           attn_error *why) {
    const char *verdict = json_text_of(json_at(result, "verdict"));
    if (verdict == NULL) {
        return explain(why, "the result of a candidate has no verdict");
    }
    take_text(c->identity, sizeof c->identity, json_at(result, "identity"));
    take_text(c->machine, sizeof c->machine, json_at(result, "machine"));
    c->registers = (int)json_int_of(json_at(result, "registers"), 0);
    c->shared = (int)json_int_of(json_at(result, "shared"), 0);
    c->error = json_number_of(json_at(result, "error"));
    c->at = s->spent;
    if (strcmp(verdict, "rejected") == 0) {
        take_rejection(c, result);
        return true;
    }
    if (strcmp(verdict, "same") == 0) {
        const int64_t other = json_int_of(json_at(result, "same_as"), 0);
        if (other < 0 || other >= c->number) {
            return explain(why, "same_as %lld, expected a candidate before", (long long)other);
        }
        c->state = CANDIDATE_SAME;
        c->same_as = (int)other;
        return true;
    }
    c->state = strcmp(verdict, "fit") == 0 ? CANDIDATE_FIT : CANDIDATE_TIMED;
    if (c->state == CANDIDATE_FIT) {
        return true;
    }
    return take_timings(c->series, s->targets.count, result, why);
}

/* A candidate may fail a later timing: it is out then, whatever it was before. */
static bool take_timed(struct search *s, const struct step *step, struct series *series,
                       const struct shapes *shapes, const struct json_value *result,
                       attn_error *why) {
    const char *verdict = json_text_of(json_at(result, "verdict"));
    if (verdict != NULL && strcmp(verdict, "rejected") == 0) {
        take_rejection(step->candidate, result);
        if (step->kind == STEP_HELD_OUT) {
            s->refuted = true;
            snprintf(s->decision, sizeof s->decision,
                     "not promoted: %s failed on held-out shapes: %.300s", step->candidate->name,
                     step->candidate->reason);
        }
        return true;
    }
    return take_timings(series, shapes->count, result, why);
}

static void advance(struct search *s) {
    switch (s->phase) {
    case STEP_FACTS: begin_generation(s); break;
    case STEP_PROPOSAL: fill_generation(s); break;
    case STEP_CANDIDATE:
        s->next++;
        if (s->next >= s->count || is_spent(s, SEARCH_SHARE)) {
            /* those that the budget did not reach were never candidates */
            while (s->count > s->next) {
                free(s->candidates[--s->count]);
            }
            begin_rungs(s);
            advance_rungs(s);
        }
        break;
    case STEP_TIMING:
        s->next++;
        advance_rungs(s);
        break;
    case STEP_CONFIRM:
        if (++s->next >= s->finalist_count) {
            choose_winner(s);
        }
        break;
    case STEP_HELD_OUT: s->phase = STEP_END; break;
    case STEP_END: break;
    }
    if (s->phase == STEP_END && s->decision[0] == '\0') {
        decide(s);
    }
}

bool search_take(struct search *s, const struct step *step, const struct json_value *result,
                 double seconds, double gpu_seconds, attn_error *why) {
    struct memo memo;
    bool good = true;
    s->spent += seconds;
    s->gpu_spent += gpu_seconds;
    switch (step->kind) {
    case STEP_FACTS: good = facts_read(s, result, why); break;
    case STEP_PROPOSAL:
        json_free(s->proposals);
        s->proposals = NULL;
        good = memo_begin(&memo, why);
        if (good) { /* a copy: the journal's goes with the journal */
            json_copy(&memo.json, NULL, result);
            s->proposals = memo_end(&memo, why);
            good = s->proposals != NULL;
        }
        break;
    case STEP_CANDIDATE: good = take_candidate(s, step->candidate, result, why); break;
    case STEP_TIMING:
        good = take_timed(s, step, step->candidate->series, &s->targets, result, why);
        step->candidate->rung = s->rung;
        break;
    case STEP_CONFIRM:
        good = take_timed(s, step, step->candidate->confirmed, &s->targets, result, why);
        break;
    case STEP_HELD_OUT: good = take_timed(s, step, s->held, &s->held_out, result, why); break;
    case STEP_END: break;
    }
    if (good) {
        advance(s);
    }
    return good;
}

/* ---- begin and free -------------------------------------------------------------------------- */

bool search_begin(struct search *s, const struct search_options *options,
                  const struct shapes *targets, attn_error *why) {
    *s = (struct search){.options = *options, .targets = *targets, .winner = -1};
    s->phase = STEP_FACTS;
    return targets->count > 0 || explain(why, "no shape to search for");
}

static void free_series(struct series *series) {
    free(series->ratios);
    free(series->baseline);
    free(series->candidate);
}

void search_free(struct search *s) {
    for (int i = 0; i < s->count; i++) {
        for (int j = 0; j < EVOLVE_SHAPES; j++) {
            free_series(&s->candidates[i]->series[j]);
            free_series(&s->candidates[i]->confirmed[j]);
        }
        free(s->candidates[i]);
    }
    for (int j = 0; j < EVOLVE_SHAPES; j++) {
        free_series(&s->held[j]);
    }
    free(s->candidates);
    free(s->illegal);
    json_free(s->proposals);
    *s = (struct search){.winner = -1};
}
