/* SPDX-License-Identifier: Apache-2.0
 *
 * pair.c - a candidate and today's choice on the same inputs, in turns.
 *
 *     for each set of inputs:  N(0,1); both compute it, the candidate's is compared with the
 *                              reference, and all of it with today's
 *     for each round:          today's, candidate's, candidate's, today's, or the other way round;
 *                              before each the outputs are filled with NaN, or with plausible
 *                              numbers that are wrong
 *     after each round:        a set's output is the same as when it was compared
 *
 * On a GPU a sample is the replay of a graph of calls between two events.
 *
 * Invariant: a sample counts only if every output behind it was right, nothing else was written and
 * no GPU could not have done it in that time.
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

enum { SETS = 4, CHUNK = 4096, PERIOD = 4194319, MAX_CALLS = 240, FEWEST_ROWS = 32 };
static const double SETS_BYTES = 256 << 20;
static const double SAMPLE_GPU = 3e-3, SAMPLE_CPU = 4e-3; /* seconds of one sample, about */
static const double WARM_UP = 30e-3;
static const double CHECK_BUDGET = 5e7;    /* operations of the reference for a set */
static const double FETCH_BYTES = 8 << 20; /* of an output that is looked at after each round */
static const double TRUST = 0.9;           /* the least share of an event time on the clock */
static const double LOOSE = 8.0; /* how many times the rule's error two kernels may be apart */
/* One that was never faster than half of today's in so many rounds of its first timing is not timed
 * any longer. */
enum { HOPELESS_ROUNDS = 3 };
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
    struct side today, candidate;
    int sets, calls; /* calls of a sample */
    int64_t counts[3], o_count, lse_count;
    attn_tensors host; /* one set on a GPU; the inputs are only good while it is made */
    void *inputs[3];
    void *other; /* O of today's choice */
    uint64_t results[SETS], input_hashes[SETS];
    int borderline;
    uint64_t state;
    struct random random;
    void *blocks[6 * SETS], *device_blocks[7 * SETS + 2]; /* to be freed */
    int block_count, device_count;
};

static bool on_gpu(const struct pair *p) {
    return device_is_gpu(p->device);
}

static size_t element(const struct pair *p) {
    return attn_dtype_size(p->problem.dtype);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void *host_block(struct pair *p, size_t bytes) {
    void *memory = allocate_aligned(bytes);
    if (memory != NULL) {
        p->blocks[p->block_count++] = memory;
    }
    return memory;
}

static void *device_block(struct pair *p, size_t bytes, attn_error *why) {
    void *memory = device_alloc(p->device, bytes, why);
    if (memory != NULL) {
        p->device_blocks[p->device_count++] = memory;
    }
    return memory;
}

static void fill_normal(struct pair *p, void *values, int64_t count) {
    const size_t size = element(p);
    const int64_t drawn = count < PERIOD ? count : PERIOD;
    float chunk[CHUNK];
    for (int64_t done = 0; done < drawn; done += CHUNK) {
        const size_t n = (size_t)(drawn - done < CHUNK ? drawn - done : CHUNK);
        random_normal(&p->random, chunk, n);
        attn_from_float(p->problem.dtype, (char *)values + (size_t)done * size, chunk, n);
    }
    for (int64_t done = drawn; done < count; done += drawn) {
        const int64_t n = count - done < drawn ? count - done : drawn;
        memcpy((char *)values + (size_t)done * size, values, (size_t)n * size);
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

static void plan_sizes(struct pair *p) {
    const attn_problem *q = &p->problem;
    const int64_t kv = q->batch * q->heads_kv * q->seq_kv;
    p->lse_count = q->batch * q->heads_q * q->seq_q;
    p->o_count = p->lse_count * q->head_dim_v;
    p->counts[0] = p->lse_count * q->head_dim;
    p->counts[1] = kv * q->head_dim;
    p->counts[2] = kv * q->head_dim_v;
    const double bytes =
        (double)(p->counts[0] + p->counts[1] + p->counts[2] + 2 * p->o_count) * (double)element(p);
    p->sets = SETS;
    while (p->sets > 1 && p->sets * bytes > SETS_BYTES) {
        p->sets--;
    }
}

/* Host tensors: one set for all on a GPU, one for each on a CPU. */
static bool make_host(struct pair *p, attn_error *why) {
    for (int i = 0; i < 3; i++) {
        p->inputs[i] = host_block(p, (size_t)p->counts[i] * element(p));
    }
    attn_tensors_init(&p->host);
    p->host.q = p->inputs[0];
    p->host.k = p->inputs[1];
    p->host.v = p->inputs[2];
    p->host.o = host_block(p, (size_t)p->o_count * element(p));
    p->host.lse = host_block(p, (size_t)p->lse_count * sizeof(float));
    p->other = host_block(p, (size_t)p->o_count * element(p));
    return (p->host.q != NULL && p->host.k != NULL && p->host.v != NULL && p->host.o != NULL &&
            p->host.lse != NULL && p->other != NULL) ||
           explain(why, "out of memory for the tensors");
}

static bool make_outputs(struct pair *p, struct side *side, int set, attn_error *why) {
    attn_tensors *t = &side->tensors[set];
    t->o = device_block(p, (size_t)p->o_count * element(p), why);
    t->lse = t->o != NULL ? device_block(p, (size_t)p->lse_count * sizeof(float), why) : NULL;
    return t->lse != NULL;
}

static bool make_set(struct pair *p, int set, attn_error *why) {
    attn_tensors tensors;
    attn_tensors_init(&tensors);
    const void **const places[] = {&tensors.q, &tensors.k, &tensors.v};
    if ((set == 0 || !on_gpu(p)) && !make_host(p, why)) {
        return false;
    }
    uint64_t hash = 0;
    for (int i = 0; i < 3; i++) {
        const size_t bytes = (size_t)p->counts[i] * element(p);
        fill_normal(p, p->inputs[i], p->counts[i]);
        hash = hash_of(hash, p->inputs[i], bytes);
        void *copy = on_gpu(p) ? device_block(p, bytes, why) : p->inputs[i];
        if (copy == NULL ||
            (on_gpu(p) && !device_write(p->device, copy, p->inputs[i], bytes, why))) {
            return false;
        }
        *places[i] = copy;
    }
    p->input_hashes[set] = hash;
    p->today.tensors[set] = p->candidate.tensors[set] = tensors;
    return make_outputs(p, &p->today, set, why) && make_outputs(p, &p->candidate, set, why);
}

static bool fill_outputs(const struct pair *p, const struct side *side, int set, int byte,
                         attn_error *why) {
    const attn_tensors *t = &side->tensors[set];
    return device_fill(p->device, t->o, (unsigned char)byte, (size_t)p->o_count * element(p),
                       why) &&
           device_fill(p->device, t->lse, (unsigned char)byte, (size_t)p->lse_count * sizeof(float),
                       why);
}

/* ---- computing ------------------------------------------------------------------------------- */

static bool forward(const struct pair *p, const struct side *side, int set, attn_error *why) {
    return attn_forward(side->plan, &side->tensors[set], side->workspace,
                        attn_workspace_size(side->plan), p->stream, why) == ATTN_OK;
}

/* O and LSE of a set into the host's tensors. */
static bool fetch(struct pair *p, const struct side *side, int set, attn_error *why) {
    const attn_tensors *t = &side->tensors[set];
    return device_read(p->device, p->host.o, t->o, (size_t)p->o_count * element(p), why) &&
           device_read(p->device, p->host.lse, t->lse, (size_t)p->lse_count * sizeof(float), why);
}

static uint64_t result_hash(const struct pair *p) {
    const uint64_t hash = hash_of(1, p->host.o, (size_t)p->o_count * element(p));
    return hash_of(hash, p->host.lse, (size_t)p->lse_count * sizeof(float));
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
        rows != NULL
            ? attn_rows_sample(q, p->task->seed + (uint64_t)set, rows, count, why) == ATTN_OK &&
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

/* Every element beside today's: the rows that the seed did not choose, too. */
static bool agrees(const struct pair *p, double allowed, attn_error *why) {
    const size_t size = element(p);
    float mine[CHUNK], theirs[CHUNK];
    for (int64_t done = 0; done < p->o_count; done += CHUNK) {
        const size_t n = (size_t)(p->o_count - done < CHUNK ? p->o_count - done : CHUNK);
        attn_to_float(p->problem.dtype, mine, (const char *)p->host.o + (size_t)done * size, n);
        attn_to_float(p->problem.dtype, theirs, (const char *)p->other + (size_t)done * size, n);
        for (size_t i = 0; i < n; i++) {
            if (!(fabs((double)mine[i] - (double)theirs[i]) <= LOOSE * allowed)) {
                return explain(why, "element %lld of O is %g, today's choice has %g",
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
    if (!fill_outputs(p, &p->today, set, NAN_BYTES, why) || !forward(p, &p->today, set, why) ||
        !fetch(p, &p->today, set, why) || (set == 0 && !compare(p, set, &result, why))) {
        return false;
    }
    memcpy(p->other, p->host.o, (size_t)p->o_count * element(p));
    *broken = false;
    if (!fill_outputs(p, &p->candidate, set, NAN_BYTES, why) ||
        !forward(p, &p->candidate, set, why) || !fetch(p, &p->candidate, set, why) ||
        !compare(p, set, &result, why) || !agrees(p, result.max_allowed, why)) {
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
        if (!call(p, &p->today, why) || !call(p, &p->candidate, why) ||
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

static bool fill_all(const struct pair *p, const struct side *side, int byte, attn_error *why) {
    bool good = true;
    for (int i = 0; i < p->sets && good; i++) {
        good = fill_outputs(p, side, i, byte, why);
    }
    return good;
}

static bool result_stands(struct pair *p, int set, attn_error *why) {
    return fetch(p, &p->candidate, set, why) &&
           (result_hash(p) == p->results[set] ||
            explain(why, "the result was another one after the timed calls"));
}

/* Four samples; *today and *mine are the means of two each. */
static bool round_of(struct pair *p, double *today, double *mine, attn_error *why) {
    const bool mine_first = (rng_next(&p->state) & 1) != 0;
    double sums[2] = {0, 0};
    for (int i = 0; i < 4; i++) {
        const bool is_mine = (i == 0 || i == 3) == mine_first;
        const struct side *side = is_mine ? &p->candidate : &p->today;
        const int byte = (rng_next(&p->state) & 1) != 0 ? NAN_BYTES : PLAUSIBLE_BYTES;
        if (!fill_all(p, side, byte, why)) {
            return false;
        }
        const double seconds = sample(p, side, why);
        if (!(seconds >= 0)) {
            return false;
        }
        sums[is_mine] += 0.5 * seconds;
    }
    *today = sums[0];
    *mine = sums[1];
    const double least = on_gpu(p) ? least_seconds(&p->problem) : 0.0;
    if (!(*mine >= least) || !(*mine > 0)) {
        return explain(why, "a call took %.3g us; no GPU does it in less than %.3g us", 1e6 * *mine,
                       1e6 * least);
    }
    const bool small = (double)p->o_count * (double)element(p) < FETCH_BYTES;
    const int set = (int)rng_range(&p->state, 0, (p->calls < p->sets ? p->calls : p->sets) - 1);
    return !small || result_stands(p, set, why);
}

/* The inputs are what they were. */
static bool inputs_stand(struct pair *p, attn_error *why) {
    for (int set = 0; set < p->sets; set++) {
        const attn_tensors *t = &p->candidate.tensors[set];
        const void *const from[] = {t->q, t->k, t->v};
        uint64_t hash = 0;
        for (int i = 0; i < 3; i++) {
            const size_t bytes = (size_t)p->counts[i] * element(p);
            if (on_gpu(p) && !device_read(p->device, p->inputs[i], from[i], bytes, why)) {
                return false;
            }
            hash = hash_of(hash, on_gpu(p) ? p->inputs[i] : from[i], bytes);
        }
        if (hash != p->input_hashes[set]) {
            return explain(why, "an input was changed");
        }
    }
    return true;
}

static void list_json(struct json *json, const char *key, const double *values, int count) {
    json_open(json, key, '[');
    for (int i = 0; i < count; i++) {
        json_real(json, NULL, values[i]);
    }
    json_close(json);
}

static bool time_rounds(struct pair *p, struct json *json, attn_error *why) {
    double today[256], mine[256];
    const int rounds = p->task->rounds < 256 ? p->task->rounds : 256;
    int done = 0;
    double best = 0;
    while (done < rounds && (p->task->shorter || done < HOPELESS_ROUNDS || best > HOPELESS)) {
        if (!round_of(p, &today[done], &mine[done], why)) {
            return false;
        }
        best = fmax(best, today[done] / mine[done]);
        done++;
    }
    const int computed = p->calls < p->sets ? p->calls : p->sets;
    for (int i = 0; i < computed; i++) {
        if (!result_stands(p, i, why)) {
            return false;
        }
    }
    if (!inputs_stand(p, why)) {
        return false;
    }
    json_open(json, NULL, '{');
    json_int(json, "calls_per_sample", p->calls);
    json_int(json, "input_sets", p->sets);
    list_json(json, "baseline", today, done);
    list_json(json, "candidate", mine, done);
    json_close(json);
    return true;
}

/* ---- one shape ------------------------------------------------------------------------------- */

static bool make_side(struct pair *p, struct side *side, const char *variant, attn_error *why) {
    if (attn_plan_create(p->context, &p->problem, ATTN_BY_NAME(variant), &side->plan, why) !=
        ATTN_OK) {
        return false;
    }
    const size_t size = attn_workspace_size(side->plan);
    if (size > 0) {
        side->workspace = device_block(p, size, why);
        return side->workspace != NULL &&
               device_fill(p->device, side->workspace, NAN_BYTES, size, why);
    }
    return true;
}

static bool open_gpu(struct pair *p, attn_error *why) {
    if (!on_gpu(p)) {
        return true;
    }
    p->stream = stream_make(p->device, why);
    p->begin = p->stream != NULL ? event_make(p->device, why) : NULL;
    p->end = p->begin != NULL ? event_make(p->device, why) : NULL;
    return p->end != NULL;
}

static void close_pair(struct pair *p) {
    struct side *const sides[] = {&p->today, &p->candidate};
    for (int i = 0; i < 2; i++) {
        if (on_gpu(p) && sides[i]->graph != NULL) {
            graph_free(p->device, sides[i]->graph);
        }
        attn_plan_destroy(sides[i]->plan);
    }
    if (p->stream != NULL) {
        event_free(p->device, p->begin);
        event_free(p->device, p->end);
        stream_free(p->device, p->stream);
    }
    for (int i = 0; i < p->device_count; i++) {
        device_free(p->device, p->device_blocks[i]);
    }
    for (int i = 0; i < p->block_count; i++) {
        free(p->blocks[i]);
    }
}

static bool run_pair(struct pair *p, const char *baseline, const char *variant, struct json *json,
                     bool *broken, attn_error *why) {
    *broken = true;
    plan_sizes(p);
    if (!open_gpu(p, why) || !make_side(p, &p->today, baseline, why) ||
        !make_side(p, &p->candidate, variant, why)) {
        return false;
    }
    for (int i = 0; i < p->sets; i++) {
        *broken = true;
        if (!make_set(p, i, why) || !check_set(p, i, broken, why)) {
            return false;
        }
    }
    *broken = false;
    return warm_up(p, why) &&
           (!on_gpu(p) || (capture(p, &p->today, why) && capture(p, &p->candidate, why))) &&
           time_rounds(p, json, why);
}

bool pair_time(const struct task *task, attn_context *context, struct device *device,
               const char *variant, struct json *json, struct rejection *rejection) {
    for (int i = 0; i < task->shapes.count; i++) {
        struct pair p = {.task = task,
                         .context = context,
                         .device = device,
                         .problem = task->shapes.problems[i],
                         .state = task->seed + (uint64_t)i,
                         .random = {task->seed * 31 + (uint64_t)i}};
        attn_error why = {""};
        char shape[96];
        bool broken = true;
        const bool good = run_pair(&p, task->baselines[i], variant, json, &broken, &why);
        close_pair(&p);
        if (!good) {
            char text[sizeof why.text];
            snprintf(text, sizeof text, "%s: %.280s",
                     shape_text(&task->shapes.problems[i], shape, sizeof shape), why.text);
            return reject(rejection, broken ? "broken" : "timing", text);
        }
    }
    return true;
}
