/* SPDX-License-Identifier: Apache-2.0
 *
 * pair.c - a candidate and its baseline on the same inputs, interleaved.
 *
 *     for each set of inputs:  N(0,1); both compute it, the candidate's is compared with the
 *                              reference, and all of it with the baseline's
 *     for each round:          ABBA or BAAB, at random, by the timer of `attest bench`: outputs are
 *                              poisoned before each sample and compared after it, bit for bit
 *
 * Invariant: a sample counts only if every output after it was right, and some GPU could have done
 * it in that time.
 */
#include <math.h>
#include <string.h>

#include "base/message.h"
#include "device/sets.h"
#include "device/timing.h"
#include "evolve/evolve.h"
#include "stages/bench/measure.h"

enum { SETS_GPU = 4, SETS_CPU = 2, CHUNK = 4096, MOST_ROUNDS = 256, BASELINE = 0, CANDIDATE = 1 };
enum { SAMPLES_CPU = 8 };               /* at most, and */
static const double SAMPLE_CPU = 4e-3;  /* seconds for them; on a GPU one graph is a sample */
static const double CHECK_BUDGET = 5e7; /* operations of the reference for a set */
static const double LOOSE = 8.0; /* how many times the rule's error two kernels may be apart */
/* One that was not once faster than half of the baseline in so many rounds is timed no longer. */
enum { HOPELESS_ROUNDS = 3 };
static const double HOPELESS = 0.5;

/* A variant with tensors of its own; the inputs are those of the other side. */
struct side {
    struct runner runner; /* the task's, with a plan of its own */
    struct bench_sets sets;
    struct work work;
    struct timer timer;
};

struct pair {
    const struct task *task;
    attn_problem problem;
    struct cache cache;
    struct side sides[2];
    uint64_t state;
};

/* ---- the check ------------------------------------------------------------------------------- */

static bool compute(struct side *side, int set, attn_error *why) {
    return sets_poison(&side->sets, set, 1, side->runner.stream, why) &&
           runner_compute(&side->runner, &side->sets.tensors[set], why) &&
           sets_fetch(&side->sets, set, why) && sets_expect(&side->sets, set, why);
}

/* Rows that the seed chooses, against the reference. */
static bool compare(const struct pair *p, const struct side *side, int set, struct verdict *verdict,
                    attn_error *why) {
    if (!runner_verify(&side->runner, &side->sets.host, p->task->step.seed + (uint64_t)set,
                       CHECK_BUDGET, verdict, why)) {
        return false;
    }
    if (!verdict->comparison.pass) {
        attn_comparison_print(&verdict->comparison, why->text, sizeof why->text);
    }
    return verdict->comparison.pass;
}

/* Every element beside the baseline's: the rows that the seed did not choose, too. */
static bool agrees(const struct pair *p, double allowed, attn_error *why) {
    const struct bench_sets *a = &p->sides[BASELINE].sets, *b = &p->sides[CANDIDATE].sets;
    float theirs[CHUNK], mine[CHUNK];
    for (int k = a->input_count; k < a->tensor_count; k++) {
        const struct set_tensor *which = &a->list[k];
        const size_t size = attn_dtype_size(which->dtype);
        const char *from = set_pointer(&a->host, which), *to = set_pointer(&b->host, which);
        for (int64_t done = 0; which->dtype == p->problem.dtype && done < which->count;
             done += CHUNK) {
            const size_t n = (size_t)(which->count - done < CHUNK ? which->count - done : CHUNK);
            attn_to_float(which->dtype, theirs, from + (size_t)done * size, n);
            attn_to_float(which->dtype, mine, to + (size_t)done * size, n);
            for (size_t i = 0; i < n; i++) {
                if (!(fabs((double)mine[i] - (double)theirs[i]) <= LOOSE * allowed)) {
                    return explain(why, "element %lld of %s is %g, the baseline has %g",
                                   (long long)done + (long long)i,
                                   b->runner->direction == ATTN_BACKWARD ? "a gradient" : "O",
                                   (double)mine[i], (double)theirs[i]);
                }
            }
        }
    }
    return true;
}

static bool check_set(struct pair *p, int set, struct passage *passage) {
    struct side *baseline = &p->sides[BASELINE], *candidate = &p->sides[CANDIDATE];
    attn_error *why = &passage->why;
    struct verdict verdict;
    return at_gate(passage, "broken") && sets_make(&baseline->sets, set, why) &&
           sets_make(&candidate->sets, set, why) && compute(baseline, set, why) &&
           (set > 0 || compare(p, baseline, set, &verdict, why)) && at_gate(passage, "timing") &&
           compute(candidate, set, why) && compare(p, candidate, set, &verdict, why) &&
           agrees(p, verdict.most_allowed, why);
}

/* ---- timing ---------------------------------------------------------------------------------- */

static bool call(void *self, int set, void *stream, attn_error *why) {
    const struct side *side = self;
    return runner_compute_on(&side->runner, &side->sets.tensors[set], stream, why);
}

static bool poison(void *self, int first, int count, void *stream, attn_error *why) {
    struct side *side = self;
    return sets_poison(&side->sets, first, count, stream, why);
}

static bool check_bits(void *self, int first, int count, void *stream, attn_error *why) {
    struct side *side = self;
    return sets_compare(&side->sets, first, count, stream, why);
}

/* Four samples; seconds of a call are the means of two each. */
static bool round_of(struct pair *p, double seconds[2], attn_error *why) {
    const int outer = (rng_next(&p->state) & 1) != 0 ? CANDIDATE : BASELINE;
    const bool gpu = device_is_gpu(p->sides[0].runner.memory);
    seconds[0] = seconds[1] = 0;
    for (int i = 0; i < 4; i++) {
        const int which = i == 0 || i == 3 ? outer : 1 - outer;
        struct side *side = &p->sides[which];
        struct timing timing;
        const bool timed = timer_run(&side->timer, &timing, why);
        timing_free(&timing);
        if (!timed) {
            return false;
        }
        seconds[which] += 0.5 * timing.stats.p50;
        const int64_t differing = sets_differing(&side->sets, why);
        if (differing != 0) {
            return differing < 0 ? false
                                 : explain(why,
                                           "%lld words of the output were others in a timed "
                                           "call",
                                           (long long)differing);
        }
    }
    const double least = gpu ? least_seconds(&p->problem) : 0.0;
    return (seconds[CANDIDATE] >= least && seconds[CANDIDATE] > 0) ||
           explain(why, "a call took %.3g us; no GPU does it in less than %.3g us",
                   1e6 * seconds[CANDIDATE], 1e6 * least);
}

static bool time_rounds(struct pair *p, struct json *json, attn_error *why) {
    static const char *const names[] = {"baseline_p50_us", "p50_us"};
    double seconds[2][MOST_ROUNDS], ratios[MOST_ROUNDS], best = 0;
    const struct step *step = &p->task->step;
    const int rounds = step->rounds < MOST_ROUNDS ? step->rounds : MOST_ROUNDS;
    char shape[96];
    int done = 0;
    while (done < rounds &&
           (step->kind != STEP_CANDIDATE || done < HOPELESS_ROUNDS || best > HOPELESS)) {
        double round[2];
        if (!round_of(p, round, why)) {
            return false;
        }
        seconds[BASELINE][done] = round[BASELINE];
        seconds[CANDIDATE][done] = round[CANDIDATE];
        ratios[done] = round[BASELINE] / round[CANDIDATE];
        best = fmax(best, ratios[done++]);
    }
    json_open(json, NULL, '{');
    json_text(json, "shape", shape_text(&p->problem, shape, sizeof shape));
    json_int(json, "input_sets", p->sides[0].sets.count);
    for (int i = 0; i < 2; i++) {
        json_real(json, names[i], 1e6 * stats_of(seconds[i], (size_t)done).p50);
    }
    json_reals(json, "ratios", ratios, (size_t)done);
    json_close(json);
    return true;
}

/* ---- one shape ------------------------------------------------------------------------------- */

static bool open_side(struct pair *p, struct side *side, const struct runner *runner,
                      const char *variant, attn_error *why) {
    side->runner = *runner;
    side->runner.variant = variant;
    side->sets = (struct bench_sets){.runner = &side->runner,
                                     .cache = &p->cache,
                                     .problem = &p->problem,
                                     .lse = true,
                                     .rng = p->state};
    return runner_plan(&side->runner, &p->problem, why) && runner_prepare(&side->runner, why) &&
           sets_plan(&side->sets, device_is_gpu(runner->memory) ? SETS_GPU : SETS_CPU, why) &&
           sets_share(&side->sets, why);
}

static bool open_timer(struct pair *p, struct side *side, attn_error *why) {
    const bool gpu = device_is_gpu(side->runner.memory);
    const struct timer_options options = {.mode = gpu ? MODE_GRAPH : MODE_EAGER,
                                          .cache = CACHE_WARM,
                                          .seconds = SAMPLE_CPU,
                                          .least = 1,
                                          .most = gpu ? 1 : SAMPLES_CPU};
    side->work = (struct work){.self = side,
                               .sets = sets_that_stay(&side->sets),
                               .call = call,
                               .before = poison,
                               .after = check_bits};
    return timer_open(&side->timer, &side->runner, &p->cache, &side->work, &options, why);
}

static bool run_pair(struct pair *p, const struct runner *runner, const char *baseline,
                     struct json *json, struct passage *passage) {
    attn_error *why = &passage->why;
    bool good = at_gate(passage, "broken") && cache_open(&p->cache, runner, why) &&
                open_side(p, &p->sides[BASELINE], runner, baseline, why) &&
                open_side(p, &p->sides[CANDIDATE], runner, p->task->name, why);
    for (int i = 0; good && i < p->sides[0].sets.count; i++) {
        good = check_set(p, i, passage);
    }
    return good && open_timer(p, &p->sides[BASELINE], why) &&
           open_timer(p, &p->sides[CANDIDATE], why) && time_rounds(p, json, why);
}

static void close_pair(struct pair *p) {
    for (int i = 0; i < 2; i++) {
        struct side *side = &p->sides[i];
        if (side->runner.memory != NULL) {
            if (side->timer.runner != NULL) {
                timer_close(&side->timer);
            }
            sets_free(&side->sets);
            device_free(side->runner.memory, side->runner.workspace);
            attn_plan_destroy(side->runner.plan);
        }
    }
    cache_close(&p->cache);
}

bool pair_time(const struct task *task, const struct runner *runner, struct json *json,
               struct passage *passage) {
    const bool held = task->step.kind == STEP_HELD_OUT;
    const struct shapes *shapes = held ? &task->search->held_out : &task->search->targets;
    bool good = true;
    for (int i = 0; good && i < shapes->count; i++) {
        struct pair p = {.task = task,
                         .problem = shapes->problems[i],
                         .state = task->step.seed * 31 + (uint64_t)i};
        good = run_pair(&p, runner, shapes->baselines[i], json, passage);
        close_pair(&p);
        if (!good) {
            const attn_error cause = passage->why;
            char shape[96];
            explain(&passage->why, "%s: %.280s",
                    shape_text(&shapes->problems[i], shape, sizeof shape), cause.text);
        }
    }
    return good;
}
