/* SPDX-License-Identifier: Apache-2.0
 *
 * pair.c - a candidate and its baseline on the same inputs, interleaved.
 *
 *     for each set of inputs:  N(0,1); both compute it, the candidate's is compared with the
 *                              reference, and all of it with the baseline's
 *     for each round:          ABBA or BAAB, at random; before each sample the outputs are filled
 *                              with NaN, or with plausible numbers that are wrong
 *     after each round:        a set's output is the same as when it was compared
 *
 * On a GPU a sample is the replay of a graph of calls between two events.
 *
 * Invariant: a sample counts only if every output after it was right, nothing else was written and
 * some GPU could have done it in that time.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/message.h"
#include "base/random.h"
#include "cases/cases.h"
#include "device/device.h"
#include "device/runner.h"
#include "evolve/evolve.h"
#include "stages/bench/measure.h"

enum { SETS = 4, CHUNK = 4096, PERIOD = 4194319, MAX_CALLS = 240, FEWEST_ROWS = 32, ALIGN = 256 };
static const double SETS_BYTES = 256 << 20;
static const double SAMPLE_GPU = 3e-3, SAMPLE_CPU = 4e-3; /* seconds of one sample, about */
static const double WARM_UP = 30e-3;
static const double CHECK_BUDGET = 5e7;    /* operations of the reference for a set */
static const double FETCH_BYTES = 8 << 20; /* of an output that is looked at after each round */
static const double TRUST = 0.9;           /* the least share of an event time on the clock */
static const double LOOSE = 8.0; /* how many times the rule's error two kernels may be apart */
/* One that was never faster than half of the baseline in so many rounds of its first timing is not
 * timed any longer. */
enum { HOPELESS_ROUNDS = 3, MOST_ROUNDS = 256 };
static const double HOPELESS = 0.5;
enum { NAN_BYTES = 0xff, PLAUSIBLE_BYTES = 0x3c };

/* A variant with outputs of its own. */
struct side {
    attn_plan *plan;
    void *workspace;
    attn_tensors tensors[SETS]; /* in the device's memory */
    void *graph;
};

struct pair {
    const struct task *task;
    attn_context *context;
    struct device *device;
    void *stream, *begin, *end;
    attn_problem problem;
    struct side baseline, candidate;
    int sets, calls; /* calls of a sample */
    int64_t counts[3], o_count, lse_count;
    char *host_memory, *device_memory;
    void *inputs[3];   /* of one set, in the host's memory */
    attn_tensors host; /* the same, with O and LSE of one side */
    void *other;       /* O of the baseline */
    uint64_t results[SETS], input_hashes[SETS];
    int borderline;
    uint64_t state;
    struct random random;
};

static bool on_gpu(const struct pair *p) {
    return device_is_gpu(p->device);
}

static size_t bytes_of(const struct pair *p, int64_t count) {
    return (size_t)count * attn_dtype_size(p->problem.dtype);
}

static size_t lse_bytes(const struct pair *p) {
    return (size_t)p->lse_count * sizeof(float);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static size_t padded(size_t bytes) {
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

static void *carve(char **memory, size_t bytes) {
    void *block = *memory;
    *memory += padded(bytes);
    return block;
}

static void fill_normal(struct pair *p, void *values, int64_t count) {
    const int64_t drawn = count < PERIOD ? count : PERIOD;
    float chunk[CHUNK];
    for (int64_t done = 0; done < drawn; done += CHUNK) {
        const size_t n = (size_t)(drawn - done < CHUNK ? drawn - done : CHUNK);
        random_normal(&p->random, chunk, n);
        attn_from_float(p->problem.dtype, (char *)values + bytes_of(p, done), chunk, n);
    }
    for (int64_t done = drawn; done < count; done += drawn) {
        const int64_t n = count - done < drawn ? count - done : drawn;
        memcpy((char *)values + bytes_of(p, done), values, bytes_of(p, n));
    }
}

static uint64_t hash_of(uint64_t hash, const void *memory, size_t size) {
    const unsigned char *bytes = memory;
    for (size_t i = 0; i < size; i += sizeof(uint64_t)) {
        uint64_t word = 0;
        memcpy(&word, bytes + i, size - i < sizeof word ? size - i : sizeof word);
        hash = (hash ^ word) * 0x100000001b3U;
        hash ^= hash >> 29;
    }
    return hash;
}

/* All tensors of the host, then all of the device, in one block each. */
static bool make_memory(struct pair *p, attn_error *why) {
    const attn_problem *q = &p->problem;
    const int64_t kv = q->batch * q->heads_kv * q->seq_kv;
    p->lse_count = q->batch * q->heads_q * q->seq_q;
    p->o_count = p->lse_count * q->head_dim_v;
    p->counts[0] = p->lse_count * q->head_dim;
    p->counts[1] = kv * q->head_dim;
    p->counts[2] = kv * q->head_dim_v;
    size_t inputs = 0;
    for (int i = 0; i < 3; i++) {
        inputs += padded(bytes_of(p, p->counts[i]));
    }
    const size_t o = padded(bytes_of(p, p->o_count)), lse = padded(lse_bytes(p));
    const size_t set = inputs + 2 * (o + lse);
    for (p->sets = SETS; p->sets > 1 && (double)p->sets * (double)set > SETS_BYTES;) {
        p->sets--;
    }
    const size_t spaces[] = {attn_workspace_size(p->baseline.plan),
                             attn_workspace_size(p->candidate.plan)};
    char *host = p->host_memory = allocate_aligned(inputs + 2 * o + lse);
    char *device = p->device_memory =
        device_alloc(p->device, (size_t)p->sets * set + padded(spaces[0]) + padded(spaces[1]), why);
    if (host == NULL || device == NULL) {
        return device == NULL ? false : explain(why, "out of memory for the tensors");
    }
    attn_tensors_init(&p->host);
    for (int i = 0; i < 3; i++) {
        p->inputs[i] = carve(&host, bytes_of(p, p->counts[i]));
    }
    p->host.q = p->inputs[0];
    p->host.k = p->inputs[1];
    p->host.v = p->inputs[2];
    p->host.o = carve(&host, o);
    p->host.lse = carve(&host, lse);
    p->other = carve(&host, o);
    struct side *const sides[] = {&p->baseline, &p->candidate};
    for (int i = 0; i < p->sets; i++) {
        attn_tensors *t = &p->baseline.tensors[i];
        attn_tensors_init(t);
        t->q = carve(&device, bytes_of(p, p->counts[0]));
        t->k = carve(&device, bytes_of(p, p->counts[1]));
        t->v = carve(&device, bytes_of(p, p->counts[2]));
        p->candidate.tensors[i] = *t;
        for (int j = 0; j < 2; j++) {
            sides[j]->tensors[i].o = carve(&device, o);
            sides[j]->tensors[i].lse = carve(&device, lse);
        }
    }
    for (int j = 0; j < 2; j++) {
        sides[j]->workspace = spaces[j] > 0 ? carve(&device, spaces[j]) : NULL;
        if (spaces[j] > 0 &&
            !device_fill(p->device, sides[j]->workspace, NAN_BYTES, spaces[j], why)) {
            return false;
        }
    }
    return true;
}

static bool make_inputs(struct pair *p, int set, attn_error *why) {
    const attn_tensors *t = &p->candidate.tensors[set];
    const void *const places[] = {t->q, t->k, t->v};
    bool good = true;
    for (int i = 0; i < 3 && good; i++) {
        const size_t bytes = bytes_of(p, p->counts[i]);
        fill_normal(p, p->inputs[i], p->counts[i]);
        p->input_hashes[set] = hash_of(p->input_hashes[set], p->inputs[i], bytes);
        good = device_write(p->device, (void *)(uintptr_t)places[i], p->inputs[i], bytes, why);
    }
    return good;
}

/* The inputs are what they were. */
static bool inputs_stand(struct pair *p, int set, attn_error *why) {
    const attn_tensors *t = &p->candidate.tensors[set];
    const void *const places[] = {t->q, t->k, t->v};
    uint64_t hash = 0;
    for (int i = 0; i < 3; i++) {
        const size_t bytes = bytes_of(p, p->counts[i]);
        if (!device_read(p->device, p->inputs[i], places[i], bytes, why)) {
            return false;
        }
        hash = hash_of(hash, p->inputs[i], bytes);
    }
    return hash == p->input_hashes[set] || explain(why, "an input was changed");
}

static bool fill_outputs(const struct pair *p, const struct side *side, int set, int byte,
                         attn_error *why) {
    const attn_tensors *t = &side->tensors[set];
    return device_fill(p->device, t->o, (unsigned char)byte, bytes_of(p, p->o_count), why) &&
           device_fill(p->device, t->lse, (unsigned char)byte, lse_bytes(p), why);
}

/* ---- computing ------------------------------------------------------------------------------- */

static bool forward(const struct pair *p, const struct side *side, int set, attn_error *why) {
    return attn_forward(side->plan, &side->tensors[set], side->workspace,
                        attn_workspace_size(side->plan), p->stream, why) == ATTN_OK;
}

/* O and LSE of a set into the host's tensors. */
static bool fetch(struct pair *p, const struct side *side, int set, attn_error *why) {
    const attn_tensors *t = &side->tensors[set];
    return device_read(p->device, p->host.o, t->o, bytes_of(p, p->o_count), why) &&
           device_read(p->device, p->host.lse, t->lse, lse_bytes(p), why);
}

static bool compute(struct pair *p, const struct side *side, int set, attn_error *why) {
    return fill_outputs(p, side, set, NAN_BYTES, why) && forward(p, side, set, why) &&
           fetch(p, side, set, why);
}

static uint64_t result_hash(const struct pair *p) {
    return hash_of(hash_of(1, p->host.o, bytes_of(p, p->o_count)), p->host.lse, lse_bytes(p));
}

/* Rows that the seed chooses, against the reference. One borderline set (attn_judge) is accepted:
 * the parity gate has resampled. */
static bool compare(struct pair *p, int set, attn_comparison *result, attn_error *why) {
    const attn_problem *q = &p->problem;
    const double row = 4.0 * (double)q->seq_kv * (double)(q->head_dim + q->head_dim_v);
    const double affordable = fmax(CHECK_BUDGET / row, FEWEST_ROWS);
    const size_t count =
        affordable < (double)p->lse_count ? (size_t)affordable : (size_t)p->lse_count;
    attn_row *rows = malloc(count * sizeof *rows);
    *result = (attn_comparison){.size = sizeof *result};
    const bool good =
        rows != NULL ? attn_rows_sample(q, p->task->step.seed + (uint64_t)set, rows, count, why) ==
                               ATTN_OK &&
                           attn_verify(p->context, q, &p->host, rows, count, result, why) == ATTN_OK
                     : explain(why, "out of memory");
    free(rows);
    if (!good) {
        return false;
    }
    const attn_statistics found = attn_comparison_statistics(result);
    const attn_verdict verdict = attn_judge(q->dtype, &found, NULL, 0);
    if (verdict == ATTN_ACCEPT || (verdict == ATTN_BORDERLINE && p->borderline++ == 0)) {
        return true;
    }
    attn_comparison_print(result, why->text, sizeof why->text);
    return false;
}

/* Every element beside the baseline's: the rows that the seed did not choose, too. */
static bool agrees(const struct pair *p, double allowed, attn_error *why) {
    float mine[CHUNK], theirs[CHUNK];
    for (int64_t done = 0; done < p->o_count; done += CHUNK) {
        const size_t n = (size_t)(p->o_count - done < CHUNK ? p->o_count - done : CHUNK);
        attn_to_float(p->problem.dtype, mine, (const char *)p->host.o + bytes_of(p, done), n);
        attn_to_float(p->problem.dtype, theirs, (const char *)p->other + bytes_of(p, done), n);
        for (size_t i = 0; i < n; i++) {
            if (!(fabs((double)mine[i] - (double)theirs[i]) <= LOOSE * allowed)) {
                return explain(why, "element %lld of O is %g, the baseline has %g",
                               (long long)done + (long long)i, (double)mine[i], (double)theirs[i]);
            }
        }
    }
    return true;
}

/* False with `broken`: it is not the candidate that failed. */
static bool check_set(struct pair *p, int set, bool *broken, attn_error *why) {
    attn_comparison result;
    *broken = true;
    if (!make_inputs(p, set, why) || !compute(p, &p->baseline, set, why) ||
        (set == 0 && !compare(p, set, &result, why))) {
        return false;
    }
    memcpy(p->other, p->host.o, bytes_of(p, p->o_count));
    *broken = false;
    if (!compute(p, &p->candidate, set, why) || !compare(p, set, &result, why) ||
        !agrees(p, result.max_allowed, why)) {
        return false;
    }
    p->results[set] = result_hash(p);
    return true;
}

/* ---- timing ---------------------------------------------------------------------------------- */

static bool call(const struct pair *p, const struct side *side, attn_error *why) {
    for (int i = 0; i < p->calls; i++) {
        if (!forward(p, side, i % p->sets, why)) {
            return false;
        }
    }
    return true;
}

/* Seconds of a call; below 0 and the reason. */
static double sample(const struct pair *p, const struct side *side, attn_error *why) {
    const double start = clock_seconds();
    double seconds = -1.0;
    if (!on_gpu(p)) {
        seconds = call(p, side, why) ? clock_seconds() - start : -1.0;
    } else if (event_record(p->device, p->begin, p->stream, why) &&
               graph_launch(p->device, side->graph, p->stream, why) &&
               event_record(p->device, p->end, p->stream, why)) {
        seconds = event_seconds(p->device, p->begin, p->end, why);
    }
    const double clock = clock_seconds() - start;
    if (clock < TRUST * seconds) {
        explain(why, "events say %.3g ms of calls that took %.3g ms by the clock", 1e3 * seconds,
                1e3 * clock);
        return -1.0;
    }
    return seconds / p->calls;
}

/* Both until the machine is warm; how many calls make a sample. */
static bool warm_up(struct pair *p, attn_error *why) {
    const double start = clock_seconds(), enough = on_gpu(p) ? SAMPLE_GPU : SAMPLE_CPU;
    double one = 0;
    p->calls = p->sets;
    do {
        const double from = clock_seconds();
        if (!call(p, &p->baseline, why) || !call(p, &p->candidate, why) ||
            !device_wait(p->device, why)) {
            return false;
        }
        one = (clock_seconds() - from) / (2.0 * p->calls);
    } while (clock_seconds() - start < WARM_UP);
    const double wanted = fmin(ceil(enough / (one + 1e-9)), MAX_CALLS);
    p->calls = on_gpu(p) ? ((int)wanted + p->sets - 1) / p->sets * p->sets : (int)fmax(wanted, 1);
    return true;
}

static bool capture(struct pair *p, struct side *side, attn_error *why) {
    if (!capture_begin(p->device, p->stream, why)) {
        return false;
    }
    const bool called = call(p, side, why);
    attn_error second = {""};
    side->graph = capture_end(p->device, p->stream, called ? why : &second);
    return called && side->graph != NULL &&
           graph_launch(p->device, side->graph, p->stream, why) && /* uploads it */
           device_wait(p->device, why);
}

static bool result_stands(struct pair *p, int set, attn_error *why) {
    return fetch(p, &p->candidate, set, why) &&
           (result_hash(p) == p->results[set] ||
            explain(why, "the result was another one after the timed calls"));
}

/* Four samples; seconds of a call are the means of two each: baseline's, candidate's. */
static bool round_of(struct pair *p, double seconds[2], attn_error *why) {
    const bool candidate_first = (rng_next(&p->state) & 1) != 0;
    seconds[0] = seconds[1] = 0;
    for (int i = 0; i < 4; i++) {
        const bool is_candidate = (i == 0 || i == 3) == candidate_first;
        const struct side *side = is_candidate ? &p->candidate : &p->baseline;
        const int byte = (rng_next(&p->state) & 1) != 0 ? NAN_BYTES : PLAUSIBLE_BYTES;
        for (int set = 0; set < p->sets; set++) {
            if (!fill_outputs(p, side, set, byte, why)) {
                return false;
            }
        }
        const double one = sample(p, side, why);
        if (!(one >= 0)) {
            return false;
        }
        seconds[is_candidate] += 0.5 * one;
    }
    const double least = on_gpu(p) ? least_seconds(&p->problem) : 0.0;
    if (!(seconds[1] >= least) || !(seconds[1] > 0)) {
        return explain(why, "a call took %.3g us; no GPU does it in less than %.3g us",
                       1e6 * seconds[1], 1e6 * least);
    }
    const int computed = p->calls < p->sets ? p->calls : p->sets;
    const int set = (int)rng_range(&p->state, 0, computed - 1);
    return (double)bytes_of(p, p->o_count) >= FETCH_BYTES || result_stands(p, set, why);
}

static bool time_rounds(struct pair *p, struct json *json, attn_error *why) {
    static const char *const names[] = {"baseline", "candidate"};
    double seconds[MOST_ROUNDS][2], best = 0;
    const struct step *step = &p->task->step;
    const int rounds = step->rounds < MOST_ROUNDS ? step->rounds : MOST_ROUNDS;
    int done = 0;
    while (done < rounds &&
           (step->kind != STEP_CANDIDATE || done < HOPELESS_ROUNDS || best > HOPELESS)) {
        if (!round_of(p, seconds[done], why)) {
            return false;
        }
        best = fmax(best, seconds[done][0] / seconds[done][1]);
        done++;
    }
    for (int set = 0; set < p->sets; set++) {
        if ((set < p->calls && !result_stands(p, set, why)) || !inputs_stand(p, set, why)) {
            return false;
        }
    }
    json_open(json, NULL, '{');
    json_int(json, "calls_per_sample", p->calls);
    json_int(json, "input_sets", p->sets);
    for (int side = 0; side < 2; side++) {
        json_open(json, names[side], '[');
        for (int i = 0; i < done; i++) {
            json_real(json, NULL, seconds[i][side]);
        }
        json_close(json);
    }
    json_close(json);
    return true;
}

/* ---- one shape ------------------------------------------------------------------------------- */

static bool open_pair(struct pair *p, const char *baseline, attn_error *why) {
    if (on_gpu(p)) {
        p->stream = stream_make(p->device, why);
        p->begin = p->stream != NULL ? event_make(p->device, why) : NULL;
        p->end = p->begin != NULL ? event_make(p->device, why) : NULL;
        if (p->end == NULL) {
            return false;
        }
    }
    return attn_plan_create(p->context, &p->problem, ATTN_BY_NAME(baseline), &p->baseline.plan,
                            why) == ATTN_OK &&
           attn_plan_create(p->context, &p->problem, ATTN_BY_NAME(p->task->name),
                            &p->candidate.plan, why) == ATTN_OK &&
           make_memory(p, why);
}

static void close_pair(struct pair *p) {
    struct side *const sides[] = {&p->baseline, &p->candidate};
    for (int i = 0; i < 2; i++) {
        if (sides[i]->graph != NULL) {
            graph_free(p->device, sides[i]->graph);
        }
        attn_plan_destroy(sides[i]->plan);
    }
    if (p->stream != NULL) {
        event_free(p->device, p->begin);
        event_free(p->device, p->end);
        stream_free(p->device, p->stream);
    }
    device_free(p->device, p->device_memory);
    free(p->host_memory);
}

static bool run_pair(struct pair *p, const char *baseline, struct json *json, bool *broken,
                     attn_error *why) {
    *broken = true;
    if (!open_pair(p, baseline, why)) {
        return false;
    }
    for (int i = 0; i < p->sets; i++) {
        if (!check_set(p, i, broken, why)) {
            return false;
        }
    }
    return warm_up(p, why) &&
           (!on_gpu(p) || (capture(p, &p->baseline, why) && capture(p, &p->candidate, why))) &&
           time_rounds(p, json, why);
}

bool pair_time(const struct task *task, attn_context *context, struct device *device,
               struct json *json, struct rejection *rejection) {
    const struct search *s = task->search;
    const bool held = task->step.kind == STEP_HELD_OUT;
    const struct shapes *shapes = held ? &s->held_out : &s->targets;
    for (int i = 0; i < shapes->count; i++) {
        struct pair p = {.task = task,
                         .context = context,
                         .device = device,
                         .problem = shapes->problems[i],
                         .state = task->step.seed + (uint64_t)i,
                         .random = {task->step.seed * 31 + (uint64_t)i}};
        attn_error why = {""};
        char shape[96], text[sizeof why.text];
        bool broken = true;
        const char *baseline = held ? s->held_baselines[i] : s->baselines[i];
        const bool good = run_pair(&p, baseline, json, &broken, &why);
        close_pair(&p);
        if (!good) {
            snprintf(text, sizeof text, "%s: %.280s",
                     shape_text(&shapes->problems[i], shape, sizeof shape), why.text);
            return reject(rejection, broken ? "broken" : "timing", text);
        }
    }
    return true;
}
