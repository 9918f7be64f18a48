/* SPDX-License-Identifier: Apache-2.0
 *
 * regret.c - see regret.h.
 *
 *     once:            a sleep: does the timer read it right?
 *     for each shape:  the plan's choice; a plan for each variant that applies
 *                      each: O = NaN -> one launch, by the clock -> compare rows -> warm up
 *                      rounds of one sample each, so that drift of the clocks meets all alike
 *
 * What is far from the fastest leaves early, after its first launch or some rounds. Inputs are
 * slices of memory that is filled once.
 */
#include "stages/bench/regret.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attn_inspect.h"
#include "base/clock.h"
#include "base/message.h"
#include "base/progress.h"
#include "cases/cases.h"
#include "cases/shape.h"
#include "device/sets.h"

enum { ROUNDS = 9, ROWS_LEAST = 4, ROWS_MOST = 64, WORST = 10, ALIGNMENT = 256 };
static const double NEAR = 1.03, CLOSE = 1.10, NEAR_SHARE = 0.95;
static const double HOPELESS = 3.0;         /* times the best, after one launch: not timed */
static const double HOPELESS_MORE = 0.5e-3; /* seconds; the very first launch of a kernel is slow */
static const double FAR_ONCE = 2.0,
                    FAR = 1.3;          /* likewise, after one round, after more: no longer */
static const double WARM_UP = 1e-3;     /* seconds; the device is busy all along */
static const double CHECK_BUDGET = 2e7; /* operations of the reference */

/* ---- arithmetic ------------------------------------------------------------------------------ */

int regret_best(const struct regret_time *times, int count) {
    int best = 0;
    for (int i = 1; i < count; i++) {
        const bool whole = times[i].samples >= times[0].samples;
        best = whole && times[i].seconds < times[best].seconds ? i : best;
    }
    return best;
}

void regret_add(struct regret_tally *tally, double regret) {
    tally->count++;
    tally->near += regret <= NEAR;
    tally->close += regret <= CLOSE;
    tally->worst = regret > tally->worst ? regret : tally->worst;
}

bool regret_passes(const struct regret_tally *tally) {
    return tally->near >= NEAR_SHARE * tally->count && tally->close == tally->count;
}

/* With the default of 0.15 s: 4e11 operations (2 ms at 200 TFLOP/s) and 512 MB on a GPU, 2e8 and 16
 * MB on a CPU. */
struct use_limits regret_limits(bool gpu, double seconds) {
    return gpu ? (struct use_limits){.flops = 2.7e12 * seconds, .bytes = 3.4e9 * seconds}
               : (struct use_limits){1.35e9 * seconds, 1.1e8 * seconds, .fp32 = true};
}

/* ---- what is timed --------------------------------------------------------------------------- */

/* Tensors of all shapes are slices of these, each `room` bytes, on the host and on the device: the
 * values by their dtype. */
enum region { MASK = ATTN_BF16 + 1, LENGTHS, OUTPUT, REGIONS };

struct candidate {
    struct trial *trial;
    struct regret_time time;
    attn_plan *plan;
    struct work work;
    struct timer timer;
    bool open; /* the timer */
    bool failed;
    double samples[ROUNDS];
};

/* A shape at a time. */
struct trial {
    struct runner *runner;
    const struct regret_options *options;
    struct use_limits limits;
    enum mode mode;
    struct cache cache;
    char *host, *device; /* the regions; one and the same on a CPU */
    size_t room;
    void *workspace; /* of all plans */
    size_t workspace_size;
    struct candidate *candidates; /* room for every variant; the first is the choice */
    struct regret_time *times;    /* likewise */
    int count;
    struct use_shape shape;
    struct sample sample; /* the shape with the host's tensors; its blocks are not used */
    struct expectation expected;
    attn_tensors tensors; /* of the device */
    int *outcomes;
    attn_error *why, refusal; /* of the last shape that no variant takes */
};

/* A region, or a part of it, from the host to the device. */
static bool upload(const struct trial *t, int region, size_t bytes, attn_error *why) {
    const size_t at = (size_t)region * t->room;
    return t->host == t->device ||
           device_write(t->runner->memory, t->device + at, t->host + at, bytes, why);
}

static bool trial_open(struct trial *t, attn_error *why) {
    uint64_t rng = t->options->seed;
    size_t variants = 0;
    attn_variant variant = {.size = sizeof variant};
    while (attn_variant_get(t->runner->context, (int32_t)variants, &variant, NULL) == ATTN_OK) {
        variants++;
    }
    const size_t bytes = (size_t)t->limits.bytes + sizeof t->shape;
    t->room = (bytes / ALIGNMENT + 4) * ALIGNMENT;
    t->device = device_alloc(t->runner->memory, REGIONS * t->room, why);
    t->host = device_is_gpu(t->runner->memory) ? allocate_aligned(REGIONS * t->room) : t->device;
    t->candidates = must(calloc(variants + 1, sizeof *t->candidates));
    t->times = must(calloc(variants + 1, sizeof *t->times));
    if (t->device == NULL || t->host == NULL) {
        return explain(why, "out of memory for tensors of %zu bytes", REGIONS * t->room);
    }
    bool good = cache_open(&t->cache, t->runner, why);
    for (int i = 0; good && i < MASK; i++) {
        const attn_dtype dtype = (attn_dtype)i;
        fill_normal(&rng, dtype, t->host + (size_t)i * t->room,
                    (int64_t)(t->room / attn_dtype_size(dtype)));
        good = upload(t, i, t->room, why);
    }
    fill_mask(&rng, (uint8_t *)t->host + MASK * t->room, (int64_t)t->room / 4);
    return good && upload(t, MASK, t->room / 4, why);
}

/* What lies on the device is freed with it. */
static void trial_close(struct trial *t) {
    if (t->host != t->device) {
        free(t->host);
    }
    cache_close(&t->cache);
    free(t->candidates);
    free(t->times);
}

static size_t aligned(int64_t count, attn_dtype dtype) {
    const size_t bytes = (size_t)count * attn_dtype_size(dtype);
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* The shape's tensors in the regions that begin at `base`. */
static void point(const struct trial *t, char *base, attn_tensors *tensors) {
    const attn_problem *p = &t->shape.problem;
    const int64_t rows_q = p->packed ? p->total_q : p->batch * p->seq_q;
    const int64_t rows_kv = p->packed ? p->total_kv : p->batch * p->seq_kv;
    const struct use_shape *lengths = (void *)(base + LENGTHS * t->room);
    attn_tensors_init(tensors);
    char *place = base + (size_t)p->dtype * t->room;
    tensors->q = place;
    tensors->k = place += aligned(rows_q * p->heads_q * p->head_dim, p->dtype);
    tensors->v = place + aligned(rows_kv * p->heads_kv * p->head_dim, p->dtype);
    tensors->o = base + OUTPUT * t->room;
    tensors->bias = base + ATTN_FP32 * t->room;
    tensors->sink = tensors->bias;
    tensors->mask = (uint8_t *)base + MASK * t->room;
    tensors->cu_seqlens_q = lengths->cu_q;
    tensors->cu_seqlens_kv = lengths->cu_kv;
    tensors->used_kv = lengths->used_kv;
}

static bool forward(void *self, int set, void *stream, attn_error *why) {
    const struct candidate *c = self;
    const struct trial *t = c->trial;
    (void)set;
    return attn_forward(c->plan, &t->tensors, t->workspace, t->workspace_size, stream, why) ==
           ATTN_OK;
}

/* ---- one shape ------------------------------------------------------------------------------- */

/* name NULL: the library's choice. */
static bool add_candidate(struct trial *t, const char *name, attn_error *why) {
    struct candidate *c = &t->candidates[t->count];
    *c = (struct candidate){.trial = t, .time = {.variant = name}};
    if (attn_plan_create(t->runner->context, &t->shape.problem, ATTN_BY_NAME(name), &c->plan,
                         why) != ATTN_OK) {
        return false;
    }
    t->count++;
    return true;
}

/* A plan for the choice, and for every other variant that applies. */
static bool plan_all(struct trial *t, attn_error *why) {
    const attn_context *context = t->runner->context;
    attn_variant v = {.size = sizeof v};
    t->count = 0;
    bool good = add_candidate(t, NULL, why);
    const char *chosen = good ? attn_plan_variant(t->candidates[0].plan) : NULL;
    for (int32_t i = 0; good && attn_variant_get(context, i, &v, NULL) == ATTN_OK; i++) {
        if (strcmp(v.name, chosen) == 0) {
            t->candidates[0].time.variant = v.name; /* lives longer than the plan */
        } else if (attn_variant_check(context, v.name, &t->shape.problem, NULL) == ATTN_OK) {
            good = add_candidate(t, v.name, why);
        }
    }
    return good;
}

static bool reserve_workspace(struct trial *t, attn_error *why) {
    size_t needed = 0;
    for (int i = 0; i < t->count; i++) {
        const size_t size = attn_workspace_size(t->candidates[i].plan);
        needed = size > needed ? size : needed;
    }
    if (needed > t->workspace_size) {
        device_free(t->runner->memory, t->workspace);
        t->workspace = device_alloc(t->runner->memory, needed, why);
        t->workspace_size = t->workspace != NULL ? needed : 0;
    }
    return needed <= t->workspace_size;
}

/* What some rows of O must be. */
static bool expect(struct trial *t, attn_error *why) {
    const attn_problem *p = &t->shape.problem;
    const double row = 2.0 * (double)p->seq_kv * (double)(p->head_dim + p->head_dim_v);
    const double afford = fmax(ROWS_LEAST, fmin(CHECK_BUDGET / row, ROWS_MOST));
    const size_t count = (size_t)fmin(afford, (double)(p->batch * p->heads_q * p->seq_q));
    attn_row *rows = must(malloc(count * sizeof *rows));
    const attn_status status = attn_rows_sample(p, t->options->seed, rows, count, why);
    for (size_t i = 0; p->packed && i < count; i++) { /* none past its sequence's end */
        rows[i].row %= sample_rows_q(&t->sample, rows[i].batch);
    }
    const char *message = /* owns the rows */
        expectation_make_rows(&t->expected, t->runner->context, &t->sample, rows, count);
    return status == ATTN_OK && (message == NULL || explain(why, "%s", message));
}

static bool prepare(struct trial *t, attn_error *why) {
    const attn_problem *p = &t->shape.problem;
    memcpy(t->host + LENGTHS * t->room, &t->shape, sizeof t->shape);
    point(t, t->device, &t->tensors);
    t->sample = (struct sample){.problem = *p, .full = *p};
    t->sample.cu_q.data = (unsigned char *)t->shape.cu_q;
    point(t, t->host, &t->sample.tensors);
    return upload(t, LENGTHS, sizeof t->shape, why) && reserve_workspace(t, why) && expect(t, why);
}

/* One launch, into outputs full of NaN; seconds by the clock, below 0 on failure. */
static double launch(struct candidate *c, attn_error *why) {
    const struct trial *t = c->trial;
    if (!device_fill(t->runner->memory, t->tensors.o, 0xFF, t->room, why)) {
        return -1.0;
    }
    const double start = clock_seconds();
    const bool good = forward(c, 0, t->runner->stream, why) && device_wait(t->runner->memory, why);
    return good ? clock_seconds() - start : -1.0;
}

static bool is_right(const struct trial *t, attn_error *why) {
    const attn_problem *p = &t->shape.problem;
    const size_t element = attn_dtype_size(p->dtype);
    for (size_t i = 0; t->host != t->device && i < t->expected.count; i++) {
        const attn_row row = t->expected.rows[i];
        const size_t at = (size_t)sample_at_o(&t->sample, row.batch, row.head, row.row) * element;
        if (!device_read(t->runner->memory, (char *)t->sample.tensors.o + at,
                         (const char *)t->tensors.o + at, (size_t)p->head_dim_v * element, why)) {
            return false;
        }
    }
    attn_comparison comparison;
    const char *message = sample_compare(&t->sample, &t->expected, &comparison);
    const attn_statistics statistics = attn_comparison_statistics(&comparison);
    return message == NULL || attn_judge(p->dtype, &statistics, NULL, 0) != ATTN_REJECT ||
           explain(why, "%s", message);
}

/* The first launch, its check and, unless it is hopeless, the timer. */
static bool begin(struct candidate *c, double *best, attn_error *why) {
    struct trial *t = c->trial;
    const struct timer_options options = {
        .mode = t->mode, .cache = t->options->cache, .warm_up = WARM_UP};
    for (int i = 0; i < 2 && (i == 0 || c->time.seconds > HOPELESS * *best); i++) {
        c->time.seconds = launch(c, why);
        if (c->time.seconds < 0) {
            return false;
        }
        *best = fmin(*best, c->time.seconds);
    }
    if (!is_right(t, why)) {
        return false;
    }
    if (c != t->candidates && c->time.seconds > HOPELESS * *best + HOPELESS_MORE) {
        return true;
    }
    c->work = (struct work){.self = c, .sets = 1, .call = forward};
    c->open = timer_open(&c->timer, t->runner, &t->cache, &c->work, &options, why);
    return c->open;
}

static bool take_sample(struct candidate *c, attn_error *why) {
    const double seconds = timer_sample(&c->timer, why);
    if (seconds < 0) {
        return false;
    }
    c->samples[c->time.samples++] = seconds;
    const struct stats stats = stats_of(c->samples, (size_t)c->time.samples); /* sorts */
    /* Other programs make a CPU slower, never faster. */
    c->time.seconds = c->trial->host == c->trial->device ? stats.min : stats.p50;
    return true;
}

static void end(struct candidate *c) {
    if (c->open) {
        timer_close(&c->timer);
    }
    c->open = false;
}

static void fail(struct candidate *c, const attn_error *why) {
    struct trial *t = c->trial;
    char text[100];
    t->outcomes[c->timer.distrusted ? OUTCOME_INVALID : OUTCOME_WRONG]++;
    explain(t->why, "%s: %s: %.150s", c->time.variant,
            problem_text(&t->shape.problem, text, sizeof text), why->text);
    c->failed = true;
    end(c);
}

static void time_all(struct trial *t) {
    attn_error why = {""};
    double best = (double)INFINITY;
    for (struct candidate *c = t->candidates; c < t->candidates + t->count; c++) {
        if (!begin(c, &best, &why)) {
            fail(c, &why);
        }
    }
    for (int round = 0; round < ROUNDS; round++) {
        best = (double)INFINITY;
        for (struct candidate *c = t->candidates; c < t->candidates + t->count; c++) {
            if (c->open && !take_sample(c, &why)) {
                fail(c, &why);
            }
            best = c->open ? fmin(best, c->samples[0]) : best;
        }
        for (int i = 1; i < t->count; i++) { /* the choice stays */
            if (t->candidates[i].samples[0] > (round == 0 ? FAR_ONCE : FAR) * best) {
                end(&t->candidates[i]);
            }
        }
    }
}

/* ---- report ---------------------------------------------------------------------------------- */

struct result {
    attn_problem problem;
    enum use_class class;
    bool option;
    struct regret_time chosen, best;
    double regret;
};

static void result_json(struct json *json, const struct trial *t, const struct result *result,
                        int index, int timed) {
    json_open(json, NULL, '{');
    json_int(json, "index", index);
    use_json(json, &t->shape);
    json_text(json, "chosen", result->chosen.variant);
    json_text(json, "tuned", attn_plan_tuned(t->candidates[0].plan));
    json_text(json, "best", result->best.variant);
    json_real(json, "regret", result->regret);
    json_open(json, "variants", '[');
    for (int i = 0; i < timed; i++) {
        json_open(json, NULL, '{');
        json_text(json, "name", t->times[i].variant);
        json_real(json, "seconds", t->times[i].seconds);
        json_int(json, "samples", t->times[i].samples);
        json_close(json);
    }
    json_close(json);
    json_close(json);
}

/* False: the choice has no time. */
static bool measure_shape(struct trial *t, int index, struct json *json, struct result *result) {
    attn_error why = {""};
    int timed = 0;
    use_draw(&t->shape, t->options->seed, index, &t->limits);
    if (plan_all(t, &why) && prepare(t, &why)) {
        time_all(t);
    } else {
        t->outcomes[t->count > 0 ? OUTCOME_FAILED : OUTCOME_REFUSED]++;
        *(t->count > 0 ? t->why : &t->refusal) = why;
    }
    for (struct candidate *c = t->candidates; c < t->candidates + t->count; c++) {
        end(c);
        if (c->time.seconds > 0 && !c->failed) {
            t->times[timed++] = c->time;
        }
    }
    const bool good = timed > 0 && !t->candidates[0].failed;
    t->outcomes[OUTCOME_TIMED] += timed;
    if (good) {
        const struct regret_time best = t->times[regret_best(t->times, timed)];
        *result = (struct result){.problem = t->shape.problem,
                                  .class = t->shape.class,
                                  .option = use_has_option(&t->shape),
                                  .chosen = t->times[0],
                                  .best = best,
                                  .regret = t->times[0].seconds / best.seconds};
    }
    if (good && json != NULL) {
        result_json(json, t, result, index, timed);
    }
    for (int i = 0; i < t->count; i++) {
        attn_plan_destroy(t->candidates[i].plan);
    }
    expectation_free(&t->expected);
    return good;
}

static void print_tally(const char *name, const struct regret_tally *tally) {
    if (tally->count > 0) {
        printf("%-10s %7d %9.1f %% %9.1f %% %8.3f\n", name, tally->count,
               100.0 * tally->near / tally->count, 100.0 * tally->close / tally->count,
               tally->worst);
    }
}

static int worse_first(const void *a, const void *b) {
    const double x = ((const struct result *)a)->regret, y = ((const struct result *)b)->regret;
    return (x < y) - (x > y);
}

static void print_report(struct result *results, int count, struct regret_tally *all) {
    enum { PLAIN = USE_CLASSES, OPTION, ROWS };
    struct regret_tally rows[ROWS] = {{0}};
    for (int i = 0; i < count; i++) {
        regret_add(&rows[results[i].class], results[i].regret);
        regret_add(&rows[results[i].option ? OPTION : PLAIN], results[i].regret);
        regret_add(all, results[i].regret);
    }
    printf("%-10s %7s %11s %11s %8s\n", "class", "shapes", "within 3 %", "within 10 %", "worst");
    for (int i = 0; i < ROWS; i++) {
        print_tally(i == PLAIN    ? "no option"
                    : i == OPTION ? "options"
                                  : USE_CLASS_NAMES[i],
                    &rows[i]);
    }
    print_tally("all", all);
    qsort(results, (size_t)count, sizeof *results, worse_first);
    printf("\n%-7s %-8s %10s %10s  %s\n", "regret", "class", "chosen us", "best us",
           "problem; chosen; best");
    for (int i = 0; i < count && i < WORST && results[i].regret > 1.0; i++) {
        const struct result *r = &results[i];
        char text[256];
        printf("%-7.3f %-8s %10.2f %10.2f  %s; %s; %s\n", r->regret, USE_CLASS_NAMES[r->class],
               1e6 * r->chosen.seconds, 1e6 * r->best.seconds,
               problem_text(&r->problem, text, sizeof text), r->chosen.variant, r->best.variant);
    }
}

static bool control(struct trial *t, attn_error *why) {
    struct sleep_reading sleep;
    return timer_control(t->runner, &t->cache, t->mode, t->options->cache, &sleep, why) &&
           (sleep.right ||
            explain(why, "a sleep of %.1f us reads %.1f us", 1e6 * sleep.asked, 1e6 * sleep.read));
}

static void run_shapes(struct trial *t, struct json *json, struct result *results, int *count) {
    struct progress progress;
    if (json != NULL) {
        json_text(json, "mode", MODE_NAMES[t->mode]);
        json_text(json, "cache", CACHE_STATE_NAMES[t->options->cache]);
        json_real(json, "seconds", t->options->seconds);
        json_open(json, "shapes", '[');
    }
    progress_start(&progress, "regret", false);
    for (int i = 0; i < t->options->shapes; i++) {
        *count += measure_shape(t, i, json, &results[*count]) ? 1 : 0;
        progress_set(&progress, (double)(i + 1) / t->options->shapes);
    }
    progress_stop(&progress);
    if (json != NULL) {
        json_close(json);
    }
}

void regret_run(struct runner *runner, const struct regret_options *options, struct json *json,
                struct regret_tally *all, int outcomes[OUTCOMES], attn_error *why) {
    struct trial t = {.runner = runner, .options = options, .outcomes = outcomes, .why = why};
    struct result *results = must(calloc((size_t)options->shapes, sizeof *results));
    int count = 0;
    const bool gpu = device_is_gpu(runner->memory);
    t.limits = regret_limits(gpu, options->seconds);
    t.mode = gpu ? options->mode : MODE_EAGER;
    const bool ready = trial_open(&t, why);
    if (!ready || !control(&t, why)) {
        outcomes[ready ? OUTCOME_INVALID : OUTCOME_FAILED]++;
    } else {
        run_shapes(&t, json, results, &count);
        print_report(results, count, all);
        if (outcomes[OUTCOME_REFUSED] > 0) {
            printf("\n%d shapes refused: %s\n", outcomes[OUTCOME_REFUSED], t.refusal.text);
            *why = why->text[0] != '\0' ? *why : t.refusal;
        }
    }
    trial_close(&t);
    free(results);
}
