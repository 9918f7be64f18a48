/* SPDX-License-Identifier: Apache-2.0
 *
 * search.c - which step comes next, and what its result means. See evolve.h.
 *
 *     facts
 *     generation 0: the shipped variants (or --start), then random candidates
 *     generation n: proposals; neighbours of the best; random ones
 *         each candidate: its gates, then a timing that ends early for a hopeless one
 *     the best few confirmed with new seeds; the winner on the held-out shapes
 *
 * A ratio is seconds of the baseline / seconds of the candidate, interleaved in one process: above
 * 1 is faster. A candidate's interval is that of the median over all its rounds.
 *
 * Invariant: no clock, no device, no file: the same seed and the same results make the same steps.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/message.h"
#include "base/random.h"
#include "evolve/evolve.h"

enum {
    POPULATION = 12, /* of a generation */
    ELITES = 6,      /* whose neighbours are tried */
    RANDOM = 15,     /* of 100 candidates */
    DRAWS = 400,     /* until a candidate is new, or none is left */
    ROUNDS = 20,     /* of the first timing */
    CONFIRM_ROUNDS = 40,
    FINALISTS = 3,
    RANKED = 64,
    IDLE_GENERATIONS = 6 /* without a better one: the search ends */
};
static const double SEARCH_SHARE = 0.85; /* of a budget: the rest is for confirming */

const char *const STEP_NAMES[] = {"facts", "proposal", "candidate", "confirm", "held_out", "end"};

/* ---- numbers --------------------------------------------------------------------------------- */

struct interval ratio_of(const struct json_value *timings, int shape) {
    const struct json_value *list = (size_t)shape < json_count_of(timings)
                                        ? json_at(json_item(timings, (size_t)shape), "ratios")
                                        : NULL;
    const size_t count = json_count_of(list);
    if (count == 0) {
        return (struct interval){(double)NAN, (double)NAN, (double)NAN};
    }
    double *values = must(malloc(count * sizeof *values));
    for (size_t i = 0; i < count; i++) {
        values[i] = json_number_of(json_item(list, i));
    }
    (void)stats_of(values, count); /* sorts them */
    const struct interval interval = stats_quantile(values, count, 0.5);
    free(values);
    return interval;
}

struct interval ratio_mean(const struct json_value *timings) {
    const int count = (int)json_count_of(timings);
    double value = 0, low = 0, high = 0;
    for (int i = 0; i < count; i++) {
        const struct interval one = ratio_of(timings, i);
        value += log(one.value);
        low += log(one.low);
        high += log(one.high);
    }
    return (struct interval){exp(value / count), exp(low / count), exp(high / count)};
}

/* The lower end of the interval. A hopeless one was given up before it had one: its median. */
static double rank_of(const struct search *s, int number) {
    const struct interval score = s->candidates[number]->score;
    return isnan(score.low) ? score.value : score.low;
}

int search_ranking(const struct search *s, int *numbers, int most) {
    int count = 0;
    for (int i = 0; i < s->count; i++) {
        int place = count;
        if (s->candidates[i]->state != CANDIDATE_TIMED) {
            continue;
        }
        while (place > 0 && rank_of(s, numbers[place - 1]) < rank_of(s, i)) {
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

int search_family(const struct search *s, const char *name) {
    int found = -1;
    for (int i = 0; i < s->family_count && name != NULL; i++) {
        found = strcmp(s->families[i].name, name) == 0 ? i : found;
    }
    return found;
}

/* A state of random numbers, one for each salt. */
static uint64_t random_state(const struct search *s, uint64_t salt) {
    uint64_t state = s->options.seed ^ (0x9e3779b97f4a7c15U * (salt + 1));
    rng_next(&state);
    return state;
}

/* ---- candidates ------------------------------------------------------------------------------ */

/* Adds it unless it is known; one with a source of its own always. */
static void offer(struct search *s, int family, struct knobs knobs, const char *source,
                  const char *why, double predicted) {
    char name[EVOLVE_NAME];
    knobs_settle(&s->families[family], &knobs);
    knobs_name(&s->families[family], s->targets.problems[0].dtype, &knobs, name);
    for (int i = 0; i < s->count && source == NULL; i++) {
        if (strcmp(s->candidates[i]->name, name) == 0 && s->candidates[i]->source == NULL) {
            return;
        }
    }
    struct candidate *c = must(calloc(1, sizeof *c));
    s->candidates = grow(s->candidates, (size_t)s->count, sizeof(struct candidate *));
    *c = (struct candidate){.number = s->count,
                            .family = family,
                            .generation = s->generation,
                            .knobs = knobs,
                            .source = source,
                            .predicted = predicted,
                            .score = {(double)NAN, (double)NAN, (double)NAN}};
    memcpy(c->name, name, sizeof name);
    snprintf(c->why, sizeof c->why, "%s", why);
    s->candidates[s->count++] = c;
}

static int draw(uint64_t *state, int count) {
    return (int)rng_range(state, 0, count - 1);
}

static void offer_random(struct search *s, uint64_t *state) {
    const int family = draw(state, s->family_count);
    struct knobs knobs = {{0}};
    for (int k = 0; k < KNOB_COUNT; k++) {
        const int *list = NULL;
        const int count = knob_values(&s->families[family], (enum knob)k, &list);
        knobs.value[k] = count > 0 ? list[draw(state, count)] : 0;
    }
    offer(s, family, knobs, NULL, "random", (double)NAN);
}

/* One knob, or two, to the next value up or down. */
static void offer_neighbour(struct search *s, const struct candidate *parent, uint64_t *state) {
    struct knobs knobs = parent->knobs;
    const int changes = rng_chance(state, 40) ? 2 : 1;
    char why[256];
    size_t used = (size_t)snprintf(why, sizeof why, "neighbour of %d:", parent->number);
    for (int i = 0; i < changes; i++) {
        const int *list = NULL;
        const int k = draw(state, KNOB_COUNT), before = knobs.value[k];
        const bool up = rng_chance(state, 50);
        const int count = knob_values(&s->families[parent->family], (enum knob)k, &list);
        for (int j = 0; j < count; j++) { /* the list is ascending: last below, first above */
            if (up ? list[j] > before && knobs.value[k] == before : list[j] < before) {
                knobs.value[k] = list[j];
            }
        }
        used += (size_t)snprintf(why + used, sizeof why - used, " %s %d -> %d", KNOB_NAMES[k],
                                 before, knobs.value[k]);
    }
    offer(s, parent->family, knobs, NULL, why, (double)NAN);
}

/* What a proposer wants, each of which was looked at when it was recorded. */
static void offer_proposals(struct search *s) {
    const struct json_value *list = json_at(s->proposals, "proposals");
    for (size_t i = 0; i < json_count_of(list); i++) {
        const struct json_value *p = json_item(list, i);
        const int family = search_family(s, json_text_at(p, "family"));
        struct knobs knobs;
        attn_error why;
        char text[256];
        snprintf(text, sizeof text, "proposed: %.200s", json_text_or(p, "hypothesis", ""));
        if (family >= 0 && json_text_at(p, "refused") == NULL &&
            knobs_read(json_at(p, "knobs"), &s->families[family], &knobs, &why)) {
            offer(s, family, knobs, json_text_at(p, "source"), text,
                  json_number_at(p, "predicted"));
        }
    }
}

static bool is_full(const struct search *s, int wanted) {
    return s->count - s->first >= wanted ||
           (s->options.candidates > 0 && s->count >= s->options.candidates);
}

static void fill_generation(struct search *s) {
    uint64_t state = random_state(s, (uint64_t)s->generation);
    int elites[ELITES];
    const int count = search_ranking(s, elites, ELITES);
    for (int i = 0; s->generation == 0 && i < s->shipped_count && !is_full(s, RANKED); i++) {
        offer(s, s->shipped_family[i], s->shipped[i], s->options.judged,
              s->options.judged != NULL ? "judged" : "shipped", (double)NAN);
    }
    offer_proposals(s);
    const int wanted = POPULATION + (s->generation == 0 ? s->shipped_count / 2 : 0);
    for (int i = 0; i < DRAWS && !is_full(s, wanted); i++) {
        if (count == 0 || rng_chance(&state, RANDOM)) {
            offer_random(s, &state);
        } else { /* of two elites the better one: the best has the most neighbours */
            const int one = draw(&state, count), two = draw(&state, count);
            offer_neighbour(s, s->candidates[elites[one < two ? one : two]], &state);
        }
    }
}

/* ---- phases ---------------------------------------------------------------------------------- */

static bool is_spent(const struct search *s) {
    return s->spent > SEARCH_SHARE * s->options.seconds ||
           (s->options.candidates > 0 && s->count >= s->options.candidates && s->next >= s->count);
}

/* The best few, and the best that a line of tuned.def can name. */
static void begin_confirming(struct search *s) {
    int ranked[RANKED];
    const int count = search_ranking(s, ranked, RANKED);
    bool named = false;
    s->finalist_count = 0;
    for (int i = 0; i < count; i++) {
        const bool first_named = !named && s->candidates[ranked[i]]->source == NULL;
        if (i < FINALISTS || first_named) {
            s->finalists[s->finalist_count++] = ranked[i];
        }
        named = named || first_named;
    }
    s->next = 0;
    s->phase = s->finalist_count > 0 ? STEP_CONFIRM : STEP_END;
}

static void begin_candidates(struct search *s) {
    fill_generation(s);
    s->next = s->first;
    s->phase = STEP_CANDIDATE;
    if (s->count == s->first) { /* nothing new is left */
        begin_confirming(s);
    }
}

static void begin_generation(struct search *s) {
    s->first = s->count;
    if (s->generation > 0 && s->options.proposer) {
        s->phase = STEP_PROPOSAL;
    } else {
        begin_candidates(s);
    }
}

static void end_generation(struct search *s) {
    int best = -1;
    const bool timed = search_ranking(s, &best, 1) == 1;
    s->next = s->count;
    s->generation++;
    const int idle = s->generation - (timed ? s->candidates[best]->generation : 0);
    if (is_spent(s) || idle > IDLE_GENERATIONS) {
        begin_confirming(s);
    } else {
        begin_generation(s);
    }
}

/* ---- next ------------------------------------------------------------------------------------ */

struct step search_step(const struct search *s, enum step_kind kind, int number) {
    uint64_t state = random_state(s, ((uint64_t)kind << 32) + (uint64_t)number);
    return (struct step){.kind = kind,
                         .candidate = s->candidates[number],
                         .rounds = kind == STEP_CANDIDATE ? ROUNDS : CONFIRM_ROUNDS,
                         .seed = rng_next(&state) >> 11}; /* what a double holds */
}

int search_pending(const struct search *s) {
    return s->phase == STEP_CANDIDATE ? s->count - s->next
           : s->phase == STEP_CONFIRM ? s->finalist_count - s->next
                                      : s->phase != STEP_END;
}

struct step search_next(const struct search *s, int index) {
    const int place = s->next + index;
    switch (s->phase) {
    case STEP_CANDIDATE: return search_step(s, s->phase, place);
    case STEP_CONFIRM: return search_step(s, s->phase, s->finalists[place]);
    case STEP_HELD_OUT: return search_step(s, s->phase, s->winner);
    case STEP_FACTS:
    case STEP_PROPOSAL:
    case STEP_END: break;
    }
    return (struct step){.kind = s->phase};
}

void search_step_json(const struct search *s, const struct step *step, const char *key,
                      struct json *json) {
    const struct candidate *c = step->candidate;
    json_open(json, key, '{');
    json_text(json, "kind", STEP_NAMES[step->kind]);
    json_int(json, "generation", s->generation);
    if (c != NULL) {
        json_int(json, "candidate", c->number);
        json_text(json, "name", c->name);
        json_int(json, "rounds", step->rounds);
        json_int(json, "seed", (int64_t)step->seed);
        json_text(json, "family", s->families[c->family].name);
        knobs_json(json, &c->knobs);
        json_text(json, "why", c->why);
        json_bool(json, "source", c->source != NULL);
    }
    json_close(json);
}

/* ---- take ------------------------------------------------------------------------------------ */

/* A candidate may fail a later timing: it is out then, whatever it was before. */
static bool take_result(struct search *s, const struct step *step, const struct json_value *result,
                        attn_error *why) {
    struct candidate *c = step->candidate;
    const char *verdict = json_text_or(result, "verdict", "");
    const struct json_value *timings = json_at(result, "timings");
    const bool held = step->kind == STEP_HELD_OUT, timed = strcmp(verdict, "timed") == 0;
    const int shapes = held ? s->held_out.count : s->targets.count;
    if (strcmp(verdict, "rejected") == 0) {
        c->result = result;
        c->state = CANDIDATE_REJECTED;
        s->refuted = held;
        return true;
    }
    if (timed ? json_count_of(timings) != (size_t)shapes : strcmp(verdict, "fit") != 0) {
        return explain(why, "%s: the verdict '%.20s' with timings of %zu shapes, expected %d",
                       c->name, verdict, json_count_of(timings), shapes);
    }
    c->result = step->kind == STEP_CANDIDATE ? result : c->result;
    *(held ? &s->held : step->kind == STEP_CONFIRM ? &c->confirmed : &c->timings) = timings;
    c->state = timed ? CANDIDATE_TIMED : CANDIDATE_FIT;
    c->score = ratio_mean(c->timings);
    return true;
}

static void advance(struct search *s) {
    switch (s->phase) {
    case STEP_FACTS: begin_generation(s); break;
    case STEP_PROPOSAL: begin_candidates(s); break;
    case STEP_CANDIDATE:
        s->next++;
        if (s->next >= s->count || is_spent(s)) {
            while (s->count > s->next) { /* the budget did not reach them */
                free(s->candidates[--s->count]);
            }
            end_generation(s);
        }
        break;
    case STEP_CONFIRM:
        if (++s->next >= s->finalist_count) {
            promote_choose(s);
            s->phase = s->proven && s->held_out.count > 0 ? STEP_HELD_OUT : STEP_END;
        }
        break;
    case STEP_HELD_OUT: s->phase = STEP_END; break;
    case STEP_END: break;
    }
    if (s->phase == STEP_END && s->decision[0] == '\0') {
        promote_decide(s);
    }
}

bool search_take(struct search *s, const struct step *step, const struct json_value *result,
                 double seconds, attn_error *why) {
    s->spent += seconds;
    s->proposals = step->kind == STEP_PROPOSAL ? result : NULL;
    if (step->kind == STEP_FACTS ? !facts_read(s, result, why)
                                 : step->candidate != NULL && !take_result(s, step, result, why)) {
        return false;
    }
    advance(s);
    return true;
}

/* ---- begin and free -------------------------------------------------------------------------- */

void search_begin(struct search *s, const struct search_options *options,
                  const struct shapes *targets) {
    *s = (struct search){.options = *options, .targets = *targets, .winner = -1};
}

void search_free(struct search *s) {
    for (int i = 0; i < s->count; i++) {
        free(s->candidates[i]);
    }
    free(s->candidates);
    *s = (struct search){.winner = -1};
}
