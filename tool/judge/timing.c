/* SPDX-License-Identifier: Apache-2.0
 *
 * timing.c - times candidate and peer, interleaved, each in its process, by the judge's clock.
 *
 * Rounds of four calls in the order ABBA or BAAB, at random. Every call has new inputs, which
 * the candidate cannot read before its time begins, so it cannot reuse or precompute results. The
 * output is compared with the reference on rows that are chosen after the answer.
 *
 * Invariant: a call counts only if its output was right, and a candidate only if it is idle while
 * the peer is timed.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/message.h"
#include "device/runner.h"
#include "judge/judge.h"

enum { CANDIDATE, PEER, SIDES, WARM_UP = 2, ROWS = 64, MOST_ROUNDS = 1000 };
static const double MOST_BUSY = 0.25, LEAST_BUSY = 0.1; /* share of the idle time; seconds */

struct lane {
    struct judge *judge;
    struct race *race;
    struct door *doors[SIDES];
    double idle, busy; /* the candidate's seconds between its calls, and its CPU's */
    uint64_t state;
};

static bool has_no_nan(const struct output_view *view) {
    for (int64_t i = 0; i < view_rows(view); i++) {
        const attn_row row = view_row(view, i);
        for (int64_t d = 0; d < view->cols; d++) {
            if (isnan(view_get(view, &row, d))) {
                return false;
            }
        }
    }
    return true;
}

/* Whether no element is NaN and `ROWS` rows are right: of O, or of dQ, dK and dV. */
static bool is_right(const struct lane *lane, const struct sample *s, attn_error *why) {
    const struct gradients *g = s->gradients;
    const uint64_t seed = s->recipe.seed ^ lane->judge->seed;
    attn_problem p = {.size = sizeof p};
    bool right = attn_problem_resolve(g != NULL ? &g->problem : &s->problem, &p, why) == ATTN_OK;
    for (int i = g != NULL ? ATTN_GRADIENT_Q : OUTPUT_O;
         right && i <= (g != NULL ? ATTN_GRADIENT_V : OUTPUT_O); i++) {
        struct output_view view = view_of_o(s);
        struct verdict verdict;
        if (g != NULL && !view_of_gradient(g, (attn_gradient)i, &view)) {
            return explain(why, "attn_gradient_shape failed");
        }
        if (!has_no_nan(&view)) {
            return explain(why, "an element is NaN in a timed call");
        }
        right = verify_output(lane->judge->context, &p, g != NULL ? &g->tensors : &s->tensors, i,
                              seed, ROWS, &verdict, why);
        if (right && !verdict.comparison.pass) {
            const attn_statistics found = attn_comparison_statistics(&verdict.comparison);
            attn_comparison_print(&verdict.comparison, why->text, sizeof why->text);
            right = attn_judge(s->full.dtype, &found, NULL, 0) == ATTN_BORDERLINE;
        }
    }
    const attn_error cause = *why;
    return right || explain(why, "in a timed call: %.300s", cause.text);
}

/* One call with new inputs; its seconds, below 0 on failure. */
static double one_call(struct lane *lane, int side, attn_error *why) {
    struct door *door = lane->doors[side];
    const struct claims *claims = &lane->judge->claims;
    struct recipe recipe;
    struct sample s;
    struct placed placed;
    recipe_init(&recipe, &lane->race->problem, rng_next(&lane->state));
    recipe.lse = claims->backward || claims_have(claims, "lse");
    explain(why, "out of memory for a sample");
    if (!sample_make(&s, &recipe)) {
        return -1;
    }
    const bool made = !claims->backward || sample_add_gradients(&s, 0);
    use_numbers(&s, recipe.seed);
    const bool fits = made && (s.gradients == NULL || run_forward(&s, why)) &&
                      (arena_place(&door->arena, &s, door->turns++, &placed) ||
                       explain(why, "the problem is larger than the judge's memory"));
    bool good = fits;
    if (good && side == CANDIDATE && door->idle_since > 0) {
        lane->idle += clock_seconds() - door->idle_since;
        lane->busy += door_cpu(door) - door->idle_cpu;
    }
    good = good && (door_call(door, &s, &placed) == JUDGED_RIGHT ||
                    explain(why, "%.300s", door->answer.text));
    const char *damage = good ? sample_damage(&s) : NULL;
    good = good && (damage == NULL || explain(why, "%s", damage)) && is_right(lane, &s, why);
    good = good && (!arena_differs(&door->arena, &s, &placed) ||
                    explain(why, "the output was written after the answer"));
    if (fits) {
        arena_release(&door->arena, &placed);
    }
    sample_free(&s);
    return good ? door->seconds : -1;
}

static bool rounds(struct lane *lane, int *blamed, attn_error *why) {
    static double seconds[SIDES][MOST_ROUNDS], ratios[MOST_ROUNDS];
    struct race *race = lane->race;
    for (int i = 0; i < WARM_UP * SIDES; i++) {
        *blamed = i % SIDES;
        if (one_call(lane, *blamed, why) < 0) {
            return false;
        }
    }
    for (int64_t i = 0; i < race->rounds; i++) {
        const int outer = rng_chance(&lane->state, 50) ? CANDIDATE : PEER;
        seconds[CANDIDATE][i] = seconds[PEER][i] = 0;
        for (int k = 0; k < 4; k++) {
            *blamed = k == 0 || k == 3 ? outer : 1 - outer;
            const double took = one_call(lane, *blamed, why);
            if (took < 0) {
                return false;
            }
            seconds[*blamed][i] += 0.5 * took;
        }
        ratios[i] = seconds[PEER][i] / seconds[CANDIDATE][i];
    }
    race->p50 = stats_of(seconds[CANDIDATE], (size_t)race->rounds).p50;
    race->peer_p50 = stats_of(seconds[PEER], (size_t)race->rounds).p50;
    const struct stats stats = stats_of(ratios, (size_t)race->rounds);
    race->ratio = (struct interval){stats.p50, stats.low, stats.high};
    return true;
}

bool judge_race(struct judge *judge, const struct subject *peer, struct race *race,
                struct judgement *j, bool *broken) {
    struct door other;
    attn_error why = {""};
    int blamed = PEER;
    struct lane lane = {.judge = judge,
                        .race = race,
                        .doors = {&judge->door, &other},
                        .state = judge->seed ^ 0x7173E};
    bool good =
        door_open(&other, peer, &judge->limits, "candidate", &why) && rounds(&lane, &blamed, &why);
    door_close(&other);
    *broken = !good && blamed == PEER;
    if (good && lane.busy > LEAST_BUSY && lane.busy > MOST_BUSY * lane.idle) {
        good = explain(&why, "it used %.2g s of CPU time in %.2g s in which it was not called",
                       lane.busy, lane.idle);
    }
    if (!good) {
        j->judged = JUDGED_LATE;
        snprintf(j->reason, sizeof j->reason, "%s%s", *broken ? "the peer: " : "", why.text);
    }
    return good;
}
