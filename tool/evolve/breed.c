/* SPDX-License-Identifier: Apache-2.0
 *
 * breed.c - where candidates come from: the shipped variants, chance, and the best so far.
 *
 * Of each generation 15 in 100 are newcomers, 35 mutations, 20 crossings, 30 steps beside one of
 * the best; the better of two of these is taken each time. What a proposer wants comes first.
 *
 * Invariant: no candidate is drawn twice, and none that is illegal becomes one; what was refused is
 * kept with its reason.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cases/cases.h"
#include "evolve/evolve.h"

enum {
    POPULATION = 12,
    ELITES = 6,
    DRAWS = 400 /* until a candidate is new and legal, or none is left */
};

/* ---- drawing --------------------------------------------------------------------------------- */

static struct candidate *add_candidate(struct search *s) {
    struct candidate *c = calloc(1, sizeof *c);
    const size_t bytes = (size_t)(s->count + 1) * sizeof(struct candidate *);
    struct candidate **grown = realloc(s->candidates, bytes);
    if (grown != NULL) {
        s->candidates = grown;
    }
    if (c == NULL || grown == NULL) {
        free(c);
        return NULL;
    }
    *c = (struct candidate){.number = s->count,
                            .generation = s->generation,
                            .parents = {-1, -1},
                            .predicted = (double)NAN,
                            .error = (double)NAN,
                            .same_as = -1};
    s->candidates[s->count++] = c;
    return c;
}

static bool is_known(const struct search *s, const char *name) {
    for (int i = 0; i < s->count; i++) {
        if (strcmp(s->candidates[i]->name, name) == 0 && s->candidates[i]->source[0] == '\0') {
            return true;
        }
    }
    return false;
}

static void note_illegal(struct search *s, const char *name, const attn_error *why) {
    for (int i = 0; i < s->illegal_count; i++) {
        if (strcmp(s->illegal[i].name, name) == 0) {
            return;
        }
    }
    struct illegal *grown =
        realloc(s->illegal, (size_t)(s->illegal_count + 1) * sizeof *s->illegal);
    if (grown != NULL) {
        s->illegal = grown;
        struct illegal *place = &grown[s->illegal_count++];
        snprintf(place->name, sizeof place->name, "%s", name);
        snprintf(place->reason, sizeof place->reason, "%.199s", why->text);
    }
}

/* Adds it unless it is illegal or known. */
static struct candidate *offer(struct search *s, int family, struct knobs knobs) {
    char name[EVOLVE_NAME];
    attn_error why = {""};
    const struct family *f = &s->space.families[family];
    knobs_settle(f, &knobs);
    knobs_name(&s->space, f, &knobs, name);
    if (!knobs_legal(&s->space, f, &knobs, &why)) {
        note_illegal(s, name, &why);
        return NULL;
    }
    struct candidate *c = is_known(s, name) ? NULL : add_candidate(s);
    if (c != NULL) {
        c->family = family;
        c->knobs = knobs;
        snprintf(c->name, sizeof c->name, "%s", name);
    }
    return c;
}

static int draw(uint64_t *state, int count) {
    return (int)rng_range(state, 0, count - 1);
}

/* Those that this search may give the knob. */
static int values_of(const struct search *s, const struct family *family, int knob,
                     const int **list) {
    const int count = knob_values(family, (enum knob)knob, list);
    return s->options.plain && knob >= KNOB_SOURCE && count > 0 ? 1 : count; /* KNOB_AUTO */
}

static struct knobs draw_knobs(const struct search *s, const struct family *family,
                               uint64_t *state) {
    struct knobs knobs;
    for (int k = 0; k < KNOB_COUNT; k++) {
        const int *list = NULL;
        const int count = values_of(s, family, k, &list);
        knobs.value[k] = count > 0 ? list[draw(state, count)] : k >= KNOB_SOURCE ? KNOB_AUTO : 0;
    }
    return knobs;
}

static struct candidate *newcomer(struct search *s, uint64_t *state) {
    const int family = draw(state, s->space.count);
    struct candidate *c = offer(s, family, draw_knobs(s, &s->space.families[family], state));
    if (c != NULL) {
        snprintf(c->why, sizeof c->why, "newcomer: drawn at random");
    }
    return c;
}

/* The place of a knob's value in its list; -1. */
static int place_of(const struct search *s, const struct family *family, const struct knobs *knobs,
                    int knob, const int **list, int *count) {
    *count = values_of(s, family, knob, list);
    for (int i = 0; i < *count; i++) {
        if ((*list)[i] == knobs->value[knob]) {
            return i;
        }
    }
    return -1;
}

static void tell_change(struct candidate *c, const char *how, const struct candidate *parent) {
    size_t used = (size_t)snprintf(c->why, sizeof c->why, "%s of %d:", how, parent->number);
    for (int k = 0; k < KNOB_COUNT && used < sizeof c->why; k++) {
        if (c->knobs.value[k] != parent->knobs.value[k]) {
            used += (size_t)snprintf(c->why + used, sizeof c->why - used, " %s %d -> %d",
                                     KNOB_NAMES[k], parent->knobs.value[k], c->knobs.value[k]);
        }
    }
    c->parents[0] = parent->number;
}

/* One knob, or two, to another of its values. */
static struct candidate *mutation(struct search *s, const struct candidate *parent,
                                  uint64_t *state) {
    const struct family *family = &s->space.families[parent->family];
    struct knobs knobs = parent->knobs;
    const int changes = rng_chance(state, 35) ? 2 : 1;
    for (int i = 0; i < changes; i++) {
        const int *list = NULL;
        const int knob = draw(state, KNOB_COUNT);
        const int count = values_of(s, family, knob, &list);
        if (count > 1) {
            knobs.value[knob] = list[draw(state, count)];
        }
    }
    struct candidate *c = offer(s, parent->family, knobs);
    if (c != NULL) {
        tell_change(c, "mutation", parent);
    }
    return c;
}

/* Each knob from the one or the other; of another family only values that the first has. */
static struct candidate *crossing(struct search *s, const struct candidate *a,
                                  const struct candidate *b, uint64_t *state) {
    const struct family *family = &s->space.families[a->family];
    struct knobs knobs = a->knobs;
    for (int k = 0; k < KNOB_COUNT; k++) {
        const int *list = NULL;
        int count = 0;
        if (place_of(s, family, &b->knobs, k, &list, &count) >= 0 && rng_chance(state, 50)) {
            knobs.value[k] = b->knobs.value[k];
        }
    }
    struct candidate *c = offer(s, a->family, knobs);
    if (c != NULL) {
        tell_change(c, "crossing", a);
        c->parents[1] = b->number;
    }
    return c;
}

/* One knob one step up or down. */
static struct candidate *neighbour(struct search *s, const struct candidate *parent,
                                   uint64_t *state) {
    const struct family *family = &s->space.families[parent->family];
    const int first = draw(state, 2 * KNOB_COUNT);
    for (int i = 0; i < 2 * KNOB_COUNT; i++) {
        const int turn = (first + i) % (2 * KNOB_COUNT), knob = turn / 2;
        const int *list = NULL;
        int count = 0;
        const int place = place_of(s, family, &parent->knobs, knob, &list, &count);
        const int next = turn % 2 == 0 ? place + 1 : place - 1;
        if (place < 0 || next < 0 || next >= count) {
            continue;
        }
        struct knobs knobs = parent->knobs;
        knobs.value[knob] = list[next];
        struct candidate *c = offer(s, parent->family, knobs);
        if (c != NULL) {
            tell_change(c, "step beside", parent);
            return c;
        }
    }
    return NULL;
}

/* ---- generations ----------------------------------------------------------------------------- */

uint64_t search_state(const struct search *s, uint64_t salt) {
    uint64_t state = s->options.seed ^ (0x9e3779b97f4a7c15U * (salt + 1));
    rng_next(&state);
    return state;
}

static bool is_full(const struct search *s, int wanted) {
    return s->count - s->first >= wanted ||
           (s->options.candidates > 0 && s->count >= s->options.candidates);
}

/* What earlier searches ended with, where it is of this one's families. */
static void take_seeds(struct search *s) {
    const struct json_value *list = s->options.seeds;
    for (size_t i = 0; i < json_count_of(list); i++) {
        const struct json_value *one = &list->as.list.items[i];
        const char *name = json_text_of(json_at(one, "family"));
        for (int f = 0; f < s->space.count && name != NULL; f++) {
            struct knobs knobs;
            attn_error why;
            struct candidate *c = NULL;
            if (strcmp(s->space.families[f].name, name) == 0 &&
                knobs_read(json_at(one, "knobs"), &s->space.families[f], &knobs, &why)) {
                c = offer(s, f, knobs);
            }
            if (c != NULL) {
                snprintf(c->why, sizeof c->why, "from an earlier journal");
            }
        }
    }
}

void breed_first(struct search *s) {
    uint64_t state = search_state(s, 0);
    for (int i = 0; i < s->shipped_count && !is_full(s, s->shipped_count); i++) {
        struct candidate *c = offer(s, s->shipped_family[i], s->shipped[i]);
        if (c != NULL) {
            snprintf(c->why, sizeof c->why, "%s",
                     s->options.start != NULL ? "start: asked for" : "shipped");
        }
    }
    take_seeds(s);
    for (int i = 0; i < DRAWS && !is_full(s, POPULATION + s->shipped_count / 2); i++) {
        newcomer(s, &state);
    }
}

static void breed(struct search *s) {
    uint64_t state = search_state(s, (uint64_t)s->generation);
    int elites[ELITES];
    const int count = search_ranking(s, elites, ELITES);
    for (int i = 0; i < DRAWS && !is_full(s, POPULATION); i++) {
        const int chance = draw(&state, 100);
        if (count == 0 || chance < 15) {
            newcomer(s, &state);
            continue;
        }
        /* of two elites the better one, so that the best has the most offspring */
        const int one = draw(&state, count), two = draw(&state, count);
        const struct candidate *parent = s->candidates[elites[one < two ? one : two]];
        if (chance < 50) {
            mutation(s, parent, &state);
        } else if (chance < 70) {
            crossing(s, parent, s->candidates[elites[one < two ? two : one]], &state);
        } else {
            neighbour(s, parent, &state);
        }
    }
}

/* Proposals of an external program, each of which was looked at when it was recorded. */
static void adopt(struct search *s) {
    const size_t count = json_count_of(json_at(s->proposals, "accepted"));
    for (size_t i = 0; i < count; i++) {
        const struct json_value *p = &json_at(s->proposals, "accepted")->as.list.items[i];
        const char *name = json_text_of(json_at(p, "family"));
        const char *source = json_text_of(json_at(p, "source"));
        attn_error why = {""};
        for (int f = 0; f < s->space.count && name != NULL; f++) {
            struct knobs knobs;
            if (strcmp(s->space.families[f].name, name) != 0 ||
                !knobs_read(json_at(p, "knobs"), &s->space.families[f], &knobs, &why)) {
                continue;
            }
            struct candidate *c = source == NULL ? offer(s, f, knobs) : add_candidate(s);
            if (c == NULL) {
                break;
            }
            c->family = f;
            c->knobs = knobs;
            knobs_name(&s->space, &s->space.families[f], &knobs, c->name);
            snprintf(c->source, sizeof c->source, "%s", source != NULL ? source : "");
            const char *hypothesis = json_text_of(json_at(p, "hypothesis"));
            snprintf(c->why, sizeof c->why, "proposed: %.200s",
                     hypothesis != NULL ? hypothesis : "(no hypothesis)");
            c->predicted = json_number_of(json_at(p, "predicted"));
            const int64_t parent = json_int_of(json_at(p, "parent"), 0);
            c->parents[0] = parent >= 0 && parent < c->number ? (int)parent : -1;
        }
    }
}

void breed_next(struct search *s) {
    adopt(s);
    breed(s);
}
