/* SPDX-License-Identifier: Apache-2.0
 *
 * launches.c - one problem launched many times: back to back on one stream, two on each of many
 * streams, and by replaying a graph.
 *
 * The launches take turns through a few sets of inputs, and each writes into a slot of its own: O
 * and LSE, or the gradients, and some bytes after each, all NaN before. The first result of each
 * set is compared with the reference, every other one with the first, byte for byte, the bytes
 * after included. A race, a launch that did nothing or one that read its predecessor's data gives
 * other bytes.
 *
 * Invariant: no slot is written twice between two comparisons.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/message.h"
#include "device/kernels.h"
#include "stages/parity/parity.h"

const char *const LAUNCH_NAMES[LAUNCH_MODES] = {"eager", "stream", "graph"};

enum { SETS = 4, GRAPH_LAUNCHES = 50, WORKSPACES = 16, CHECKED_ROWS = 256, SLOT_ALIGN = 256 };
enum { CPU_SLOTS = 50 };
static const size_t SLOTS_BYTES = (size_t)1 << 30; /* of a GPU, at most for all slots */

struct bench {
    const struct target *target;
    attn_plan *plan;
    int sets; /* of inputs: at most half as many as launches, or 1 */
    struct sample samples[SETS];
    struct mirror mirrors[SETS];
    void *workspaces[WORKSPACES];
    int workspace_count;
    size_t at[RUN_OUTPUTS], slot_size; /* bytes: where an output begins in its slot */
    size_t slots;
    unsigned char *slot_memory; /* on the device */
    unsigned char *host;        /* all slots, fetched, and after them: */
    unsigned char *first;       /* the first result of each set */
};

/* ---- setting up ------------------------------------------------------------------------------ */

/* Of backward: on a GPU none, a bias and a sink, or a mask and ALiBi, by mode; on a CPU all. */
static void add_options(const struct target *t, enum launch_mode mode, attn_problem *problem) {
    const bool backward = t->variant.direction == ATTN_BACKWARD, gpu = device_is_gpu(t->device);
    const uint32_t options = backward ? t->variant.options : 0;
    const bool some = !gpu || mode == LAUNCH_STREAM, others = !gpu || mode == LAUNCH_GRAPH;
    problem->bias = some && (options & ATTN_OPTION_BIAS) != 0;
    problem->sink = some && (options & ATTN_OPTION_SINK) != 0;
    problem->mask = others && (options & ATTN_OPTION_MASK) != 0;
    problem->alibi = others && (options & ATTN_OPTION_ALIBI) != 0;
}

/* A ragged problem of several tiles that the variant takes, causal if it can be; on a GPU
 * about one CTA per SM. The virtual GPU gets two heads, and more mainloop
 * iterations than a pipeline has stages. */
static bool choose_problem(const struct target *t, enum launch_mode mode, attn_problem *problem,
                           attn_error *why) {
    static const int64_t SHAPES[][5] = {/* batch, heads_q, heads_kv, seq_q, seq_kv */
                                        {1, 2, 1, 35, 97},
                                        {2, 8, 2, 205, 333},
                                        {1, 2, 1, 141, 589},
                                        {2, 4, 4, 1, 333}};
    enum { DTYPES = ATTN_BF16 + 1, DECODE = 3 };
    for (int i = 0; i < 2 * DTYPES * 2; i++) {
        const int64_t *shape = SHAPES[i / DTYPES / 2 > 0 ? DECODE
                                      : t->emulated      ? 2
                                                         : device_is_gpu(t->device)];
        attn_problem_init(problem);
        problem->batch = shape[0];
        problem->heads_q = shape[1];
        problem->heads_kv = shape[2];
        problem->seq_q = shape[3];
        problem->seq_kv = shape[4];
        problem->dtype = (attn_dtype)(i / 2 % DTYPES);
        problem->causal = i % 2 == 0 ? ATTN_CAUSAL_BOTTOM_RIGHT : ATTN_CAUSAL_NONE;
        if (t->variant.head_dim_max > 0 && t->variant.head_dim_max < problem->head_dim) {
            problem->head_dim = t->variant.head_dim_max;
        }
        problem_suit(&t->variant, problem);
        add_options(t, mode, problem);
        if ((t->variant.dtypes >> problem->dtype & 1) != 0 &&
            attn_variant_check(t->context, t->runs_as, problem, why) == ATTN_OK) {
            return true;
        }
    }
    return false;
}

static bool make_sets(struct bench *b, enum launch_mode mode, const attn_problem *problem,
                      attn_error *why) {
    const bool backward = b->target->variant.direction == ATTN_BACKWARD;
    bool good = true;
    for (int i = 0; good && i < b->sets; i++) {
        struct sample *s = &b->samples[i];
        struct recipe recipe;
        recipe_init(&recipe, problem, b->target->seed + (uint64_t)i);
        /* keys that grow make a running maximum rise: another path through a kernel */
        recipe.distribution = (i + (int)mode) % 2 == 0 ? DIST_NORMAL : DIST_GROWING;
        recipe.slopes = true;
        explain(why, "out of memory for a set of inputs");
        good = sample_make(s, &recipe) &&
               (!backward || (sample_add_gradients(s, 0) && run_forward(s, why))) &&
               mirror_make(&b->mirrors[i], b->target->device, s, why);
    }
    return good;
}

static bool make_slots(struct bench *b, int64_t launches, attn_error *why) {
    struct device *device = b->target->device;
    const struct guarded *outputs[RUN_OUTPUTS];
    const int count = run_outputs(&b->samples[0], outputs);
    for (int i = 0; i < count; i++) {
        const size_t bytes = outputs[i]->size + (i > 0);
        b->at[i] = b->slot_size;
        b->slot_size += (bytes + SLOT_ALIGN - 1) / SLOT_ALIGN * SLOT_ALIGN;
    }
    b->slots = device_is_gpu(device) ? SLOTS_BYTES / b->slot_size : CPU_SLOTS;
    b->slots = b->slots < (size_t)launches ? b->slots : (size_t)launches;
    b->slots = b->slots < (size_t)b->sets ? (size_t)b->sets : b->slots;
    b->slot_memory = device_alloc(device, b->slots * b->slot_size, why);
    b->host = malloc((b->slots + (size_t)b->sets) * b->slot_size);
    if (b->host == NULL) {
        return explain(why, "out of memory for %zu results", b->slots);
    }
    b->first = b->host + b->slots * b->slot_size;
    return b->slot_memory != NULL;
}

static bool make_workspaces(struct bench *b, attn_error *why) {
    const size_t size = attn_workspace_size(b->plan);
    if (size == 0) {
        return true;
    }
    for (; b->workspace_count < WORKSPACES; b->workspace_count++) {
        void *memory = device_alloc(b->target->device, size, why);
        if (memory == NULL || !device_fill(b->target->device, memory, 0xFF, size, why)) {
            return false;
        }
        b->workspaces[b->workspace_count] = memory;
    }
    return true;
}

static bool bench_make(struct bench *b, enum launch_mode mode, int64_t launches, attn_error *why) {
    attn_problem problem;
    const struct target *t = b->target;
    b->sets = launches < 4 ? 1 : launches < 2 * SETS ? (int)(launches / 2) : SETS;
    return choose_problem(t, mode, &problem, why) && make_sets(b, mode, &problem, why) &&
           attn_plan_create(t->context, &problem, PLAN_BY_NAME(t->variant.direction, t->runs_as),
                            &b->plan, why) == ATTN_OK &&
           make_slots(b, launches, why) && make_workspaces(b, why);
}

static void bench_free(struct bench *b) {
    struct device *device = b->target->device;
    for (int i = 0; i < SETS; i++) {
        mirror_free(&b->mirrors[i]);
        sample_free(&b->samples[i]);
    }
    for (int i = 0; i < WORKSPACES; i++) {
        device_free(device, b->workspaces[i]);
    }
    device_free(device, b->slot_memory);
    free(b->host);
    attn_plan_destroy(b->plan);
}

/* ---- launching ------------------------------------------------------------------------------- */

static bool launch(struct bench *b, size_t slot, void *stream, attn_error *why) {
    unsigned char *to = b->slot_memory + slot * b->slot_size;
    attn_tensors tensors = b->mirrors[slot % (size_t)b->sets].tensors;
    if (b->samples[0].gradients != NULL) {
        for (int i = 0; i < GRADIENTS; i++) {
            void **place = gradient_pointer(&tensors, (attn_gradient)i);
            *place = *place != NULL ? to + b->at[i] : NULL;
        }
    } else {
        tensors.o = to;
        tensors.lse = (float *)(void *)(to + b->at[1]);
    }
    return plan_compute(b->plan, b->target->variant.direction, &tensors,
                        b->workspaces[slot % WORKSPACES], stream, why) == ATTN_OK;
}

/* `count` launches into the first slots, none of which waits for the host. */
static bool launch_eager(struct bench *b, size_t count, void *stream, attn_error *why) {
    for (size_t i = 0; i < count; i++) {
        if (!launch(b, i, stream, why)) {
            return false;
        }
    }
    return true;
}

/* Two on each stream: with PDL a kernel may start before its predecessor has ended. */
static bool launch_streams(struct bench *b, size_t count, attn_error *why) {
    struct device *device = b->target->device;
    for (size_t i = 0; i < count; i += 2) {
        /* A workspace serves one call at a time, and streams do not wait for each other. */
        if (b->workspace_count > 0 && i % WORKSPACES == 0 && !device_wait(device, why)) {
            return false;
        }
        void *stream = stream_make(device, why);
        const bool launched = stream != NULL && launch(b, i, stream, why) &&
                              (i + 1 == count || launch(b, i + 1, stream, why));
        stream_free(device, stream); /* which lets its work finish */
        if (!launched) {
            return false;
        }
    }
    return true;
}

static void *record_graph(struct bench *b, size_t count, void *stream, attn_error *why) {
    struct device *device = b->target->device;
    attn_error ignored;
    if (!capture_begin(device, stream, why)) {
        return NULL;
    }
    const bool launched = launch_eager(b, count, stream, why);
    void *graph = capture_end(device, stream, launched ? why : &ignored);
    if (launched) {
        return graph;
    }
    graph_free(device, graph);
    return NULL;
}

/* ---- comparing ------------------------------------------------------------------------------- */

static unsigned char *slot_of(const struct bench *b, size_t slot) {
    return b->host + slot * b->slot_size;
}

/* O and the LSE, or a gradient, of the first result of set `set`. */
static bool check_output(const struct bench *b, struct sample *s, int set, int gradient,
                         int *borderline, attn_error *why) {
    const struct parity_case c = {.recipe = s->recipe};
    struct case_output o;
    attn_comparison result;
    const char *wrong = case_output_make(&o, b->target, &c, s, gradient, CHECKED_ROWS);
    bool ok = wrong == NULL;
    if (ok) {
        wrong = case_output_compare(&o, &result);
        const attn_statistics found = attn_comparison_statistics(&result);
        const attn_verdict verdict = attn_judge(s->full.dtype, &found, NULL, 0);
        ok = verdict == ATTN_ACCEPT || (verdict == ATTN_BORDERLINE && (*borderline)++ == 0);
    }
    expectation_free(&o.expected);
    return ok || explain(why, "launch %d is wrong: %s", set, wrong);
}

/* The first result of each set against the reference. One borderline set (attn_judge) is accepted:
 * cases are resampled, launches have to give the same bits. */
static bool check_first(struct bench *b, attn_error *why) {
    const struct guarded *outputs[RUN_OUTPUTS];
    int borderline = 0;
    for (int i = 0; i < b->sets; i++) {
        struct sample *s = &b->samples[i];
        const int count = run_outputs(s, outputs);
        const unsigned char *slot = slot_of(b, (size_t)i);
        for (int k = 0; k < count; k++) {
            const size_t used = b->at[k] + outputs[k]->size;
            const size_t end = k + 1 < count ? b->at[k + 1] : b->slot_size;
            if (outputs[k]->size > 0) {
                memcpy(outputs[k]->data, slot + b->at[k], outputs[k]->size);
            }
            if (!is_poison(slot + used, end - used)) {
                return explain(why, "launch %d wrote past an output", i);
            }
        }
        for (int k = s->gradients != NULL ? 0 : OUTPUT_O; k < (s->gradients != NULL ? count : 0);
             k++) {
            if ((k == OUTPUT_O || outputs[k]->size > 0) &&
                !check_output(b, s, i, k, &borderline, why)) {
                return false;
            }
        }
        memcpy(b->first + (size_t)i * b->slot_size, slot, b->slot_size);
    }
    return true;
}

static bool tell_difference(const struct bench *b, size_t slot, int64_t launch_number,
                            size_t differing, attn_error *why) {
    const struct sample *s = &b->samples[0];
    const attn_problem *p = &s->full;
    const size_t set = slot % (size_t)b->sets;
    const unsigned char *got = slot_of(b, slot), *wanted = b->first + set * b->slot_size;
    size_t at = 0, bytes = 0;
    for (size_t i = b->slot_size; i-- > 0;) {
        if (got[i] != wanted[i]) {
            at = i;
            bytes++;
        }
    }
    char place[120] = "in the LSE or past the outputs only";
    const long long index = (long long)(at / attn_dtype_size(p->dtype));
    if (s->gradients != NULL) {
        int gradient = GRADIENTS - 1;
        while (at < b->at[gradient]) {
            gradient--;
        }
        snprintf(place, sizeof place, "first in %s", GRADIENT_NAMES[gradient]);
    } else if (at < s->o.size) {
        snprintf(place, sizeof place, "first in row %lld, column %lld of (batch, head) %lld",
                 index / p->head_dim_v % p->seq_q, index % p->head_dim_v,
                 index / p->head_dim_v / p->seq_q);
    }
    return explain(why,
                   "launch %lld differs from launch %zu in %zu bytes, %s%s; %zu of %zu results "
                   "since the last comparison differ",
                   (long long)launch_number, set, bytes, place,
                   is_poison(got, b->slot_size) ? " (nothing was written)" : "", differing,
                   b->slots);
}

/* Fetches the first `count` slots, whose launches began with number `done`. */
static bool compare_slots(struct bench *b, size_t count, int64_t done, attn_error *why) {
    struct device *device = b->target->device;
    size_t differing = 0, first_bad = 0;
    if (!device_wait(device, why) ||
        !device_read(device, b->host, b->slot_memory, count * b->slot_size, why) ||
        (done == 0 && !check_first(b, why))) {
        return false;
    }
    for (size_t i = count; i-- > 0;) {
        if (memcmp(slot_of(b, i), b->first + i % (size_t)b->sets * b->slot_size, b->slot_size) !=
            0) {
            first_bad = i;
            differing++;
        }
    }
    return differing == 0 ||
           tell_difference(b, first_bad, done + (int64_t)first_bad, differing, why);
}

static bool inputs_unchanged(struct bench *b, attn_error *why) {
    for (int i = 0; i < b->sets; i++) {
        struct sample *s = &b->samples[i];
        if (!mirror_fetch_inputs(&b->mirrors[i], s, why)) {
            return false;
        }
        if (s->gradients == NULL) {
            sample_poison(s);
        }
        const char *damage = sample_damage(s);
        if (damage != NULL) {
            return explain(why, "after the launches: %s", damage);
        }
    }
    return true;
}

/* ---- altogether ------------------------------------------------------------------------------ */

static bool run_mode(struct bench *b, enum launch_mode mode, int64_t count, void *stream,
                     attn_error *why) {
    struct device *device = b->target->device;
    size_t round = b->slots;
    void *graph = NULL;
    bool ok = true;
    if (mode == LAUNCH_GRAPH) {
        round = round < GRAPH_LAUNCHES ? round : GRAPH_LAUNCHES;
        graph = record_graph(b, round, stream, why);
        ok = graph != NULL;
    }
    for (int64_t done = 0; ok && done < count; done += (int64_t)round) {
        ok = device_fill(device, b->slot_memory, 0xFF, round * b->slot_size, why) &&
             (mode == LAUNCH_EAGER    ? launch_eager(b, round, stream, why)
              : mode == LAUNCH_STREAM ? launch_streams(b, round, why)
                                      : graph_launch(device, graph, stream, why)) &&
             compare_slots(b, round, done, why);
    }
    graph_free(device, graph);
    return ok && inputs_unchanged(b, why);
}

bool launches_run(const struct target *t, enum launch_mode mode, int64_t count, attn_error *why) {
    struct bench b = {.target = t};
    void *stream = NULL;
    bool ok = bench_make(&b, mode, count, why);
    if (ok && device_is_gpu(t->device)) {
        stream = stream_make(t->device, why);
        ok = stream != NULL;
    }
    ok = ok && run_mode(&b, mode, count, stream, why);
    stream_free(t->device, stream);
    bench_free(&b);
    return ok;
}
