/* SPDX-License-Identifier: Apache-2.0
 *
 * facts.c - what a search has to know before it begins: the device, the baselines, the families
 * that compute its shapes, the shipped variants, and the held-out shapes.
 *
 * Invariant: all of it is recorded in the first unit of the journal, so that a replay needs no
 * device.
 */
#include <regex.h>
#include <string.h>

#include "base/message.h"
#include "cases/problems.h"
#include "device/kernels.h"
#include "evolve/evolve.h"

/* Of GPUs. Families with every option compute what the others do, more slowly. */
static const char DEFAULT_FAMILIES[] = "^(fwd_(hopper|hopper_causal|hopper_split|mma)|bwd_.*)$";

struct finding {
    const struct task *task;
    attn_context *context;
    attn_device device;
    regex_t expression;
    struct search found;
};

/* ---- families and shipped variants ----------------------------------------------------------- */

static bool takes_all(const struct finding *f, const char *variant) {
    bool all = true;
    for (int i = 0; i < f->found.targets.count && all; i++) {
        all =
            attn_variant_check(f->context, variant, &f->found.targets.problems[i], NULL) == ATTN_OK;
    }
    return all;
}

static bool is_baseline(const struct finding *f, const char *variant) {
    bool found = false;
    for (int i = 0; i < f->found.targets.count && !found; i++) {
        found = strcmp(f->found.targets.baselines[i], variant) == 0;
    }
    return found;
}

/* On a CPU only the baselines', unless requested: others are slower by far. */
static bool is_wanted(const struct finding *f, const attn_variant *v) {
    const bool gpu = v->head_dim_max > 0;
    return gpu || f->task->evolve->expression != NULL
               ? regexec(&f->expression, gpu ? v->family : v->name, 0, NULL, 0) == 0
               : is_baseline(f, v->name);
}

/* Of the direction that is searched. */
static bool next_variant(const struct finding *f, int32_t *index, attn_variant *v) {
    *v = (attn_variant){.size = sizeof *v};
    return attn_variant_get_direction(f->context, (attn_direction)f->task->evolve->direction,
                                      (*index)++, v, NULL) == ATTN_OK;
}

/* The smallest tile of the family that takes the shapes; 0 on CPUs. */
static int32_t smallest_tile(const struct finding *f, const char *family) {
    attn_variant v;
    int32_t least = 0;
    for (int32_t i = 0; next_variant(f, &i, &v);) {
        if (strcmp(v.family, family) == 0 && (least == 0 || v.head_dim_max < least) &&
            takes_all(f, v.name)) {
            least = v.head_dim_max;
        }
    }
    return least;
}

/* The shipped variants of the families to search; a CPU's family is one variant. */
static int shipped_json(const struct finding *f, struct json *json) {
    attn_variant v;
    const char *start = f->task->evolve->start;
    int started = 0;
    json_open(json, "shipped", '[');
    for (int32_t i = 0; next_variant(f, &i, &v);) {
        if (is_wanted(f, &v) && takes_all(f, v.name) &&
            v.head_dim_max == smallest_tile(f, v.family)) {
            const bool is_start = start == NULL || strcmp(start, v.name) == 0;
            json_open(json, NULL, '{');
            json_text(json, "variant", v.name);
            json_text(json, "name", v.head_dim_max > 0 ? v.family : v.name);
            json_text(json, "kernel", v.family);
            json_text(json, "arch", v.arch);
            json_int(json, "head_dim", v.head_dim_max);
            knobs_json(json, &(struct knobs){{v.block_q, v.block_kv, v.warps, v.stages}});
            json_bool(json, "start", is_start);
            json_close(json);
            started += is_start;
        }
    }
    json_close(json);
    return started;
}

/* ---- held-out shapes ------------------------------------------------------------------------- */

static bool baseline_of(const struct finding *f, const attn_problem *problem,
                        char name[EVOLVE_NAME], attn_error *why) {
    attn_plan *plan = NULL;
    if (attn_plan_create(f->context, problem,
                         PLAN_BY_NAME((attn_direction)f->task->evolve->direction, NULL), &plan,
                         why) != ATTN_OK) {
        return false;
    }
    snprintf(name, EVOLVE_NAME, "%s", attn_plan_variant(plan));
    attn_plan_destroy(plan);
    return true;
}

static bool is_among(const struct shapes *shapes, const attn_problem *p) {
    char one[96], other[96];
    bool found = false;
    shape_text(p, one, sizeof one);
    for (int i = 0; i < shapes->count && !found; i++) {
        found = strcmp(one, shape_text(&shapes->problems[i], other, sizeof other)) == 0;
    }
    return found;
}

/* What a new choice for the targets would take over: no longer sequences, no more rows, and one of
 * their baselines. */
static void hold_out(struct finding *f, const attn_problem *problem) {
    const struct shapes *targets = &f->found.targets;
    struct shapes *held = &f->found.held_out;
    char *name = held->baselines[held->count];
    attn_problem p;
    attn_error why;
    const struct class_limits most = shapes_limits(targets);
    if (held->count < EVOLVE_SHAPES / 2 && attn_problem_resolve(problem, &p, &why) == ATTN_OK &&
        shapes_same_class(&p, &targets->problems[0]) && shape_rows(&p) <= most.rows &&
        p.seq_q <= most.queries && p.seq_kv <= most.keys && !is_among(targets, &p) &&
        !is_among(held, &p) && baseline_of(f, &p, name, &why) && is_baseline(f, name)) {
        held->problems[held->count++] = p;
    }
}

static void find_held_out(struct finding *f) {
    static const int grids[] = {GRID_SMALL, GRID_FULL};
    for (int i = 0; i < f->found.targets.count; i++) { /* ragged ones beside each target */
        attn_problem near = f->found.targets.problems[i];
        const int64_t seq = near.seq_q, lengths[] = {seq - 1, seq * 3 / 4 + 1};
        for (int j = 0; j < 2; j++) {
            char text[96];
            attn_error why;
            near.seq_q = lengths[j];
            if (shape_parse(shape_text(&near, text, sizeof text), near.dtype, &near, &why)) {
                hold_out(f, &near);
            }
        }
    }
    for (int g = 0; g < 2 && f->device.driver > 0; g++) {
        for (int i = 0; i < grid_count(grids[g]); i++) {
            attn_problem problem;
            grid_problem(grids[g], i, &problem);
            problem.dtype = f->found.targets.problems[0].dtype;
            hold_out(f, &problem);
        }
    }
}

/* ---- find ------------------------------------------------------------------------------------ */

static bool find_all(struct finding *f, struct json *json, attn_error *why) {
    const struct evolve *e = f->task->evolve;
    struct search *s = &f->found;
    for (int i = 0; i < s->targets.count; i++) {
        if (!baseline_of(f, &s->targets.problems[i], s->targets.baselines[i], why)) {
            return false;
        }
    }
    find_held_out(f);
    json_open(json, "device", '{');
    json_text(json, "name", f->device.name);
    json_text(json, "arch", f->device.arch);
    json_int(json, "units", f->device.units);
    json_int(json, "driver", f->device.driver);
    json_close(json);
    shapes_json(json, "targets", &s->targets);
    shapes_json(json, "held_out", &s->held_out);
    return shipped_json(f, json) > 0 ||
           explain(why, "family = %s, start = %s: no such variant computes the shapes on %s",
                   e->expression != NULL ? e->expression : "(default)",
                   e->start != NULL ? e->start : "(any)", f->device.name);
}

bool facts_find(const struct task *task, attn_context *context, struct json *json,
                attn_error *why) {
    static struct finding f; /* large */
    const char *asked = task->evolve->expression;
    f = (struct finding){.task = task, .context = context, .device = {.size = sizeof f.device}};
    f.found.targets = task->search->targets;
    if (regcomp(&f.expression, asked != NULL ? asked : DEFAULT_FAMILIES,
                REG_EXTENDED | REG_NOSUB) != 0) {
        return explain(why, "family = '%s' is no regular expression", asked);
    }
    const bool good =
        attn_device_get(context, &f.device, why) == ATTN_OK && find_all(&f, json, why);
    regfree(&f.expression);
    return good;
}

/* ---- read ------------------------------------------------------------------------------------ */

static bool read_shipped(struct search *s, const struct json_value *list, attn_error *why) {
    for (size_t i = 0; i < json_count_of(list); i++) {
        const struct json_value *one = json_item(list, i);
        const char *name = json_text_or(one, "name", "");
        int place = search_family(s, name);
        if (place < 0 && s->family_count < EVOLVE_FAMILIES) {
            place = s->family_count++;
            s->families[place] = (struct family){.name = name,
                                                 .kernel = json_text_or(one, "kernel", ""),
                                                 .arch = json_text_or(one, "arch", ""),
                                                 .base = json_text_or(one, "variant", ""),
                                                 .head_dim = (int)json_int_at(one, "head_dim", 0)};
        }
        if (place < 0 || !json_true_at(one, "start") || s->shipped_count == EVOLVE_SHIPPED) {
            continue;
        }
        if (!knobs_read(json_at(one, "knobs"), &s->families[place], &s->shipped[s->shipped_count],
                        why)) {
            return false;
        }
        s->shipped_family[s->shipped_count++] = place;
    }
    return s->family_count > 0 || explain(why, "the facts name no variant");
}

bool facts_read(struct search *s, const struct json_value *facts, attn_error *why) {
    const struct json_value *device = json_at(facts, "device");
    const int64_t units = json_int_at(device, "units", 1);
    const int count = s->targets.count;
    const attn_dtype dtype = s->targets.problems[0].dtype;
    s->units = units > 0 ? (int)units : 1;
    s->device = json_text_or(device, "name", "");
    s->arch = json_text_or(device, "arch", "");
    return read_shipped(s, json_at(facts, "shipped"), why) &&
           shapes_read(json_at(facts, "targets"), dtype, &s->targets, why) &&
           shapes_read(json_at(facts, "held_out"), dtype, &s->held_out, why) &&
           (s->targets.count == count || explain(why, "the facts are of other targets"));
}
