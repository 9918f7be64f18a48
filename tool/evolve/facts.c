/* SPDX-License-Identifier: Apache-2.0
 *
 * facts.c - what a search has to know before it begins: the device, today's choices, the
 * families that compute its shapes, the shipped variants, and shapes that are held out.
 *
 * Invariant: all of it is recorded in the first unit of the journal, so that a replay needs no
 * device.
 */
#include <regex.h>
#include <string.h>

#include "base/message.h"
#include "cases/grid.h"
#include "cases/shape.h"
#include "evolve/evolve.h"

/* Those with every option compute what the others do, more slowly. */
static const char DEFAULT_FAMILIES[] = "^fwd_(hopper|hopper_causal|hopper_split|mma)$";

/* ---- families and shipped variants ----------------------------------------------------------- */

struct finding {
    const struct task *task;
    attn_context *context;
    attn_device device;
    regex_t expression;
    struct space space;
};

static bool takes_all(const struct finding *f, const char *variant) {
    for (int i = 0; i < f->task->shapes.count; i++) {
        if (attn_variant_check(f->context, variant, &f->task->shapes.problems[i], NULL) !=
            ATTN_OK) {
            return false;
        }
    }
    return true;
}

static bool is_wanted(const struct finding *f, const char *name) {
    return regexec(&f->expression, name, 0, NULL, 0) == 0 && f->space.count < EVOLVE_FAMILIES;
}

static void find_gpu_families(struct finding *f) {
    for (int i = 0; GPU_KERNELS[i] != NULL; i++) {
        struct family family;
        if (is_wanted(f, GPU_KERNELS[i]) &&
            family_for_gpu(GPU_KERNELS[i], &f->task->shapes.problems[0], f->device.arch, &family)) {
            f->space.families[f->space.count++] = family;
        }
    }
}

/* Without an expression those that are today's choices: others are slower by far. */
static bool is_chosen(char choices[][EVOLVE_NAME], int count, const char *name) {
    for (int i = 0; i < count; i++) {
        if (strcmp(choices[i], name) == 0) {
            return true;
        }
    }
    return false;
}

static void find_cpu_families(struct finding *f, char choices[][EVOLVE_NAME]) {
    attn_variant v = {.size = sizeof v};
    for (int32_t i = 0; attn_variant_get(f->context, i, &v, NULL) == ATTN_OK; i++) {
        const bool wanted = f->task->expression != NULL
                                ? is_wanted(f, v.name)
                                : is_chosen(choices, f->task->shapes.count, v.name);
        if (wanted && takes_all(f, v.name) && f->space.count < EVOLVE_FAMILIES) {
            struct family *family = &f->space.families[f->space.count++];
            *family = (struct family){.head_dim = 0};
            snprintf(family->name, sizeof family->name, "%s", v.name);
            snprintf(family->kernel, sizeof family->kernel, "%s", v.family);
            snprintf(family->arch, sizeof family->arch, "%s", v.arch);
        }
    }
}

static struct knobs knobs_of(const struct family *family, const attn_variant *v) {
    struct knobs knobs = {{[KNOB_BLOCK_Q] = v->block_q,
                           [KNOB_BLOCK_KV] = v->block_kv,
                           [KNOB_WARPS] = v->warps,
                           [KNOB_STAGES] = v->stages}};
    for (int k = KNOB_SOURCE; k < KNOB_COUNT; k++) {
        knobs.value[k] = KNOB_AUTO;
    }
    knobs_settle(family, &knobs);
    return knobs;
}

/* Returns how many were written. */
static int shipped_json(const struct finding *f, struct json *json) {
    attn_variant v = {.size = sizeof v};
    int count = 0;
    json_open(json, "shipped", '[');
    for (int32_t i = 0; attn_variant_get(f->context, i, &v, NULL) == ATTN_OK; i++) {
        for (int j = 0; j < f->space.count && count < EVOLVE_SHAPES * 4; j++) {
            const struct family *family = &f->space.families[j];
            const bool gpu = family->head_dim > 0;
            if (strcmp(v.family, family->kernel) != 0 || !takes_all(f, v.name) ||
                (gpu ? v.head_dim_max != family->head_dim : strcmp(v.name, family->name) != 0) ||
                (f->task->start != NULL && strcmp(f->task->start, v.name) != 0)) {
                continue;
            }
            const struct knobs knobs = knobs_of(family, &v);
            json_open(json, NULL, '{');
            json_text(json, "name", v.name);
            json_text(json, "family", family->name);
            knobs_json(json, "knobs", family, &knobs);
            json_close(json);
            count++;
        }
    }
    json_close(json);
    return count;
}

/* ---- shapes that are held out ---------------------------------------------------------------- */

static bool same_shape(const attn_problem *a, const attn_problem *b) {
    return a->batch == b->batch && a->heads_q == b->heads_q && a->heads_kv == b->heads_kv &&
           a->seq_q == b->seq_q && a->head_dim == b->head_dim &&
           (a->causal == ATTN_CAUSAL_NONE) == (b->causal == ATTN_CAUSAL_NONE);
}

static double rows_of(const attn_problem *p) {
    return (double)p->batch * (double)p->heads_q * (double)p->seq_q;
}

/* Today's choice. */
static bool choice_of(const struct finding *f, const attn_problem *problem, char *name,
                      attn_error *why) {
    attn_plan *plan = NULL;
    if (attn_plan_create(f->context, problem, NULL, &plan, why) != ATTN_OK) {
        return false;
    }
    snprintf(name, EVOLVE_NAME, "%s", attn_plan_variant(plan));
    attn_plan_destroy(plan);
    return true;
}

/* Held out is what a new choice for the targets would take over: as many rows at most, and today
 * the same choice as one of them. */
static void hold_out(const struct finding *f, const attn_problem *problem, struct shapes *held,
                     char choices[][EVOLVE_NAME]) {
    const struct shapes *targets = &f->task->shapes;
    char name[EVOLVE_NAME], other[EVOLVE_NAME];
    double most = 0;
    bool fits = false;
    attn_error why;
    for (int i = 0; i < targets->count; i++) {
        if (same_shape(problem, &targets->problems[i])) {
            return;
        }
        most = rows_of(&targets->problems[i]) > most ? rows_of(&targets->problems[i]) : most;
    }
    for (int i = 0; i < held->count; i++) {
        if (same_shape(problem, &held->problems[i])) {
            return;
        }
    }
    const attn_problem *first = &targets->problems[0];
    if (held->count >= EVOLVE_SHAPES / 2 || rows_of(problem) > most ||
        problem->head_dim != first->head_dim ||
        (problem->causal == ATTN_CAUSAL_NONE) != (first->causal == ATTN_CAUSAL_NONE) ||
        !choice_of(f, problem, name, &why)) {
        return;
    }
    for (int i = 0; i < targets->count && !fits; i++) {
        fits = choice_of(f, &targets->problems[i], other, &why) && strcmp(name, other) == 0;
    }
    if (fits && attn_problem_resolve(problem, &held->problems[held->count], &why) == ATTN_OK) {
        memcpy(choices[held->count++], name, EVOLVE_NAME);
    }
}

static void find_held_out(const struct finding *f, struct shapes *held,
                          char choices[][EVOLVE_NAME]) {
    for (int i = 0; i < f->task->shapes.count; i++) {
        attn_problem near = f->task->shapes.problems[i];
        const int64_t seq = near.seq_q;
        for (int j = 0; j < 2; j++) { /* ragged ones beside each target */
            char text[96];
            attn_error why;
            near.seq_q = j == 0 ? seq - 1 : seq * 3 / 4 + 1;
            if (near.seq_q >= 1 &&
                shape_parse(shape_text(&near, text, sizeof text), near.dtype, &near, &why)) {
                hold_out(f, &near, held, choices);
            }
        }
    }
    const int grids[] = {GRID_SMALL, GRID_FULL};
    for (int g = 0; g < 2 && f->device.driver > 0; g++) {
        for (int i = 0; i < grid_count(grids[g]); i++) {
            attn_problem problem;
            grid_problem(grids[g], i, &problem);
            problem.dtype = f->task->space.dtype;
            attn_error why;
            if (attn_problem_resolve(&problem, &problem, &why) == ATTN_OK) {
                hold_out(f, &problem, held, choices);
            }
        }
    }
}

/* ---- find ------------------------------------------------------------------------------------ */

static void device_json(const attn_device *d, struct json *json) {
    json_open(json, "device", '{');
    json_text(json, "name", d->name);
    json_text(json, "arch", d->arch);
    json_int(json, "units", d->units);
    json_int(json, "shared", d->shared);
    json_int(json, "driver", d->driver);
    json_close(json);
}

static void families_json(const struct space *space, struct json *json) {
    json_open(json, "families", '[');
    for (int i = 0; i < space->count; i++) {
        const struct family *family = &space->families[i];
        json_open(json, NULL, '{');
        json_text(json, "name", family->name);
        json_text(json, "kernel", family->kernel);
        json_text(json, "arch", family->arch);
        json_int(json, "head_dim", family->head_dim);
        json_close(json);
    }
    json_close(json);
}

static void names_json(struct json *json, const char *key, char names[][EVOLVE_NAME], int count) {
    json_open(json, key, '[');
    for (int i = 0; i < count; i++) {
        json_text(json, NULL, names[i]);
    }
    json_close(json);
}

static bool find_all(struct finding *f, struct json *json, attn_error *why) {
    const struct shapes *targets = &f->task->shapes;
    char choices[EVOLVE_SHAPES][EVOLVE_NAME], held_choices[EVOLVE_SHAPES][EVOLVE_NAME];
    struct shapes held = {.count = 0};
    for (int i = 0; i < targets->count; i++) {
        if (!choice_of(f, &targets->problems[i], choices[i], why)) {
            return false;
        }
    }
    if (f->device.driver > 0) {
        find_gpu_families(f);
    } else {
        find_cpu_families(f, choices);
    }
    if (f->space.count == 0) {
        return explain(why, "family = %s: none of that name computes the shapes on %s",
                       f->task->expression != NULL ? f->task->expression : "(default)",
                       f->device.name);
    }
    device_json(&f->device, json);
    families_json(&f->space, json);
    const int shipped = shipped_json(f, json);
    if (shipped == 0 && f->task->start != NULL) {
        return explain(why,
                       "start = %s, expected a shipped variant of the families that computes "
                       "every shape",
                       f->task->start);
    }
    names_json(json, "baselines", choices, targets->count);
    find_held_out(f, &held, held_choices);
    shapes_json(json, "held_out", &held);
    names_json(json, "held_baselines", held_choices, held.count);
    return true;
}

bool facts_find(const struct task *task, attn_context *context, struct json *json,
                attn_error *why) {
    struct finding f = {.task = task, .context = context, .device = {.size = sizeof f.device}};
    const char *pattern = task->expression != NULL ? task->expression : DEFAULT_FAMILIES;
    if (regcomp(&f.expression, pattern, REG_EXTENDED | REG_NOSUB) != 0) {
        return explain(why, "family = '%s' is no regular expression", pattern);
    }
    const bool good =
        attn_device_get(context, &f.device, why) == ATTN_OK && find_all(&f, json, why);
    regfree(&f.expression);
    return good;
}

/* ---- read ------------------------------------------------------------------------------------ */

/* Dense fp16 and bytes a second, as the makers state them. */
static const struct {
    const char *name;
    double flops, bytes;
} PEAKS[] = {{"H200", 989.4e12, 4.8e12},
             {"H100 PCIe", 756e12, 2.0e12},
             {"H100", 989.4e12, 3.35e12},
             {"A100", 312e12, 2.0e12},
             {"L4", 121e12, 0.3e12}};

static const char *text_at(const struct json_value *object, const char *key) {
    const char *text = json_text_of(json_at(object, key));
    return text != NULL ? text : "";
}

static bool read_families(struct search *s, const struct json_value *facts, attn_error *why) {
    const struct json_value *list = json_at(facts, "families");
    for (size_t i = 0; i < json_count_of(list) && s->space.count < EVOLVE_FAMILIES; i++) {
        const struct json_value *one = &list->as.list.items[i];
        struct family *family = &s->space.families[s->space.count++];
        snprintf(family->name, sizeof family->name, "%s", text_at(one, "name"));
        snprintf(family->kernel, sizeof family->kernel, "%s", text_at(one, "kernel"));
        snprintf(family->arch, sizeof family->arch, "%s", text_at(one, "arch"));
        family->head_dim = (int)json_int_of(json_at(one, "head_dim"), 0);
    }
    return s->space.count > 0 || explain(why, "the facts name no family");
}

static int family_named(const struct space *space, const char *name) {
    for (int i = 0; i < space->count; i++) {
        if (strcmp(space->families[i].name, name) == 0) {
            return i;
        }
    }
    return -1;
}

static bool read_shipped(struct search *s, const struct json_value *facts, attn_error *why) {
    const struct json_value *list = json_at(facts, "shipped");
    for (size_t i = 0; i < json_count_of(list) && s->shipped_count < EVOLVE_SHAPES * 4; i++) {
        const struct json_value *one = &list->as.list.items[i];
        const int family = family_named(&s->space, text_at(one, "family"));
        if (family < 0 || !knobs_read(json_at(one, "knobs"), &s->space.families[family],
                                      &s->shipped[s->shipped_count], why)) {
            return explain(why, "the facts' shipped variant %zu is of no family", i);
        }
        s->shipped_family[s->shipped_count++] = family;
    }
    return true;
}

static bool read_names(char names[][EVOLVE_NAME], int count, const struct json_value *list,
                       attn_error *why) {
    if (json_count_of(list) != (size_t)count) {
        return explain(why, "the facts have %zu choices, expected %d", json_count_of(list), count);
    }
    for (int i = 0; i < count; i++) {
        const char *text = json_text_of(&list->as.list.items[i]);
        snprintf(names[i], EVOLVE_NAME, "%s", text != NULL ? text : "");
    }
    return true;
}

bool facts_read(struct search *s, const struct json_value *facts, attn_error *why) {
    const struct json_value *device = json_at(facts, "device");
    s->space.dtype = s->targets.problems[0].dtype;
    s->space.shared = (int)json_int_of(json_at(device, "shared"), 0);
    snprintf(s->space.arch, sizeof s->space.arch, "%.15s", text_at(device, "arch"));
    s->units = (int)json_int_of(json_at(device, "units"), 1);
    for (int i = 0; i < s->targets.count; i++) {
        const attn_problem *p = &s->targets.problems[i];
        const int64_t rows = p->heads_q / p->heads_kv * p->seq_q;
        s->space.rows = rows > s->space.rows ? rows : s->space.rows;
    }
    for (size_t i = 0; i < sizeof PEAKS / sizeof *PEAKS && s->flop_peak == 0; i++) {
        if (strstr(text_at(device, "name"), PEAKS[i].name) != NULL) {
            s->flop_peak = PEAKS[i].flops;
            s->byte_peak = PEAKS[i].bytes;
        }
    }
    return read_families(s, facts, why) && read_shipped(s, facts, why) &&
           read_names(s->baselines, s->targets.count, json_at(facts, "baselines"), why) &&
           shapes_read(json_at(facts, "held_out"), s->space.dtype, &s->held_out, why) &&
           read_names(s->held_baselines, s->held_out.count, json_at(facts, "held_baselines"), why);
}
