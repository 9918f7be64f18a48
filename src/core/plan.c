/* SPDX-License-Identifier: Apache-2.0
 *
 * plan.c - problem -> the first applicable variant -> workspace; and queries of a plan. tuned.c has
 * the order in which variants are tried.
 *
 * Refusals are not stored: the clauses are evaluated again on a query, so that making a plan
 * formats no unused sentences.
 */
#include "core/plan.h"
#include "core/abi.h"
#include "cuda/images.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- create ---------------------------------------------------------------------------------- */

const char *direction_name(attn_direction direction) {
    static const char *const names[] = {"ATTN_FORWARD", "ATTN_BACKWARD", "ATTN_APPEND",
                                        "ATTN_MERGE"};
    return names[direction];
}

attn_status plan_check_direction(const attn_plan *plan, attn_direction direction,
                                 attn_error *error) {
    if (plan == NULL) {
        return attn_fail(error, ATTN_INVALID, "plan = NULL, expected one from attn_plan_create");
    }
    if (plan->direction != direction) {
        return attn_fail(error, ATTN_INVALID, "plan has direction %s, expected %s",
                         direction_name(plan->direction), direction_name(direction));
    }
    return ATTN_OK;
}

/* The attn_option bits that the plan adds to those of the problem. */
static uint32_t plan_options(const attn_plan *plan) {
    return plan->batch_invariant ? (uint32_t)ATTN_OPTION_BATCH_INVARIANT : 0U;
}

static attn_status choose_by_name(attn_plan *plan, const char *name, attn_error *error) {
    const struct variant *variant = variant_find(plan->context, name, &plan->variant);
    if (variant == NULL) {
        return attn_fail(error, ATTN_INVALID,
                         "variant = \"%.127s\", expected a name from attn_variant_get", name);
    }
    if (variant->info.direction != plan->direction) {
        return attn_fail(error, ATTN_UNSUPPORTED,
                         "variant \"%s\" computes %s, and options.direction is %s", name,
                         direction_name(variant->info.direction), direction_name(plan->direction));
    }
    attn_error why;
    const attn_status status =
        variant_applies(plan->context, variant, &plan->problem, plan_options(plan), &why);
    if (status != ATTN_OK) {
        return attn_fail(error, status, "variant \"%s\" does not apply: %.250s", name, why.text);
    }
    return ATTN_OK;
}

/* Whether it takes more than the other: options first, then the head dimension. */
static bool takes_more(const attn_variant *v, const attn_variant *other) {
    const int options = __builtin_popcount(v->options);
    const int theirs = __builtin_popcount(other->options);
    return options != theirs ? options > theirs : v->head_dim_max > other->head_dim_max;
}

/* Why nothing applies: the reason of the variant that takes most of those that are at least for
 * this dtype and tensor_cores, since what it refuses no other takes. */
static attn_status refuse_all(const attn_plan *plan, attn_error *error) {
    const attn_context *context = plan->context;
    const attn_tensor_cores preference = plan->problem.tensor_cores;
    struct candidates candidates = {context, &plan->problem, plan->direction, 0, 0, {0}};
    const struct variant *most = NULL;
    for (int32_t i; (i = candidates_next(&candidates, NULL)) >= 0;) {
        const struct variant *variant = &context->variants[i];
        if ((variant->info.dtypes & (1U << plan->problem.dtype)) != 0 &&
            variant_is_fp8(variant) <= problem_is_fp8(&plan->problem) &&
            preference != (variant->info.tensor_cores ? ATTN_TENSOR_CORES_NEVER
                                                      : ATTN_TENSOR_CORES_REQUIRE) &&
            (most == NULL || takes_more(&variant->info, &most->info))) {
            most = variant;
        }
    }
    if (most != NULL) {
        attn_error why;
        variant_applies(context, most, &plan->problem, plan_options(plan), &why);
        return attn_fail(error, ATTN_UNSUPPORTED,
                         "no variant applies; the one that takes most, %s: %.200s", most->info.name,
                         why.text);
    }
    if (context->cuda != NULL && built_in_image_count == 0) {
        return attn_fail(error, ATTN_UNSUPPORTED, "this build of libattn has no GPU kernels: %s",
                         built_in_images_missing);
    }
    return attn_fail(error, ATTN_UNSUPPORTED,
                     "no variant is for this dtype and tensor_cores "
                     "(attn_variant_check names each one's reason)");
}

static attn_status choose_best(attn_plan *plan, attn_error *error) {
    const attn_context *context = plan->context;
    struct candidates candidates = {context, &plan->problem, plan->direction, 0, 0, {0}};
    const uint32_t options = problem_options(&plan->problem) | plan_options(plan);
    for (int32_t i; (i = candidates_next(&candidates, &plan->tuned_run)) >= 0; plan->refused++) {
        /* most are refused by this, at the price of one look */
        if ((options & ~context->variants[i].info.options) == 0 &&
            variant_pays(&context->variants[i], &plan->problem, NULL) &&
            variant_applies(context, &context->variants[i], &plan->problem, options, NULL) ==
                ATTN_OK) {
            plan->variant = i;
            return ATTN_OK;
        }
    }
    return refuse_all(plan, error);
}

static attn_status work_out_cpu(attn_plan *plan, const struct variant *variant, attn_error *error) {
    plan->threads = (size_t)pool_size(plan->context->pool);
    plan->cpu.isa = cpu_find_isa(variant->info.arch, NULL);
    plan->cpu.block_q = variant->info.block_q;
    plan->cpu.block_kv = variant->info.block_kv;
    plan->cpu.invariant = plan->batch_invariant;
    bool fits = true;
    switch (plan->family) {
    case FAMILY_CPU_APPEND:
    case FAMILY_CPU_MERGE: return ATTN_OK; /* no workspace */
    case FAMILY_CPU_ROW: fits = cpu_row_plan(&plan->problem, &plan->cpu); break;
    case FAMILY_CPU_BACKWARD: fits = cpu_backward_plan(&plan->problem, &plan->cpu); break;
    default: cpu_tile_plan(&plan->problem, &plan->cpu); break;
    }
    if (!fits) {
        return attn_fail(error, ATTN_UNSUPPORTED, "the workspace of %s would not fit in any memory",
                         plan->name);
    }
    plan->workspace = plan->threads * plan->cpu.slot_bytes + plan->cpu.partial_bytes + CPU_ALIGN;
    plan->block_q = plan->cpu.block_q;
    plan->block_kv = plan->cpu.block_kv;
    return ATTN_OK;
}

/* The gradient of ALiBi slopes is requested by a call, and bwd_hopper has none: a plan of it holds
 * a kernel of bwd_mma, too. */
static attn_status add_scores(attn_plan *plan, attn_error *error) {
    attn_context *context = plan->context;
    if (!plan->problem.alibi || plan->cuda.scores.kernel != NULL) {
        return ATTN_OK;
    }
    for (int32_t i = 0; i < context->variant_count; i++) {
        struct variant *variant = &context->variants[i];
        if (variant->family == FAMILY_bwd_mma && !variant->added &&
            variant_applies(context, variant, &plan->problem, 0, NULL) == ATTN_OK) {
            return cuda_plan_scores(context->cuda, variant, &plan->problem, &plan->cuda, error);
        }
    }
    return ATTN_OK;
}

static attn_status work_out(attn_plan *plan, attn_error *error) {
    struct variant *variant = &plan->context->variants[plan->variant];
    plan->name = variant->info.name;
    plan->family = variant->family;
    if (plan->context->cuda == NULL) {
        return work_out_cpu(plan, variant, error);
    }
    plan->block_q = variant->info.block_q;
    plan->block_kv = variant->info.block_kv;
    attn_status status =
        cuda_plan(plan->context->cuda, variant, &plan->problem, &plan->cuda, error);
    if (status == ATTN_OK && plan->direction == ATTN_BACKWARD) {
        status = add_scores(plan, error);
    }
    plan->workspace = plan->cuda.workspace;
    return status;
}

void attn_plan_options_init_sized(attn_plan_options *options, size_t size) {
    const attn_plan_options defaults = {.size = sizeof defaults};
    if (options != NULL) {
        abi_write(options, size, &defaults, sizeof defaults);
    }
}

/* Checked, or the defaults of NULL. */
static attn_status read_options(const attn_plan_options *options, attn_plan_options *o,
                                attn_error *error) {
    attn_plan_options_init(o);
    if (options != NULL) {
        const attn_status status =
            abi_read("options", options, PLAN_OPTIONS_0_2, o, sizeof *o, error);
        if (status != ATTN_OK) {
            return status;
        }
    }
    unsigned char flags[4]; /* as bytes: a wild bool is not read as one */
    memcpy(flags, &o->deterministic, sizeof flags);
    if (flags[0] > 1 || flags[1] > 1 || flags[2] != 0 || flags[3] != 0) {
        return attn_fail(error, ATTN_INVALID,
                         "options.deterministic, batch_invariant, reserved = %u, %u, {%u, %u}, "
                         "expected true or false, the last two false",
                         flags[0], flags[1], flags[2], flags[3]);
    }
    if ((int)o->direction < ATTN_FORWARD || o->direction > ATTN_MERGE) {
        return attn_fail(error, ATTN_INVALID,
                         "options.direction = %d, expected ATTN_FORWARD, ATTN_BACKWARD, "
                         "ATTN_APPEND or ATTN_MERGE",
                         (int)o->direction);
    }
    if (o->batch_invariant && o->direction != ATTN_FORWARD) {
        return attn_fail(error, ATTN_UNSUPPORTED,
                         "options.batch_invariant = true: forward only, direction is %s",
                         direction_name(o->direction));
    }
    return ATTN_OK;
}

attn_status attn_plan_create(attn_context *context, const attn_problem *problem,
                             const attn_plan_options *options, attn_plan **plan,
                             attn_error *error) {
    if (context == NULL || plan == NULL) {
        if (plan != NULL) {
            *plan = NULL;
        }
        return attn_fail(error, ATTN_INVALID, "%s = NULL", context == NULL ? "context" : "plan");
    }
    *plan = NULL;
    attn_plan *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return attn_fail(error, ATTN_OUT_OF_MEMORY, "no memory for a plan of %zu bytes",
                         sizeof *made);
    }
    made->context = context;
    attn_plan_options o;
    attn_status status = read_options(options, &o, error);
    if (status == ATTN_OK) {
        made->direction = o.direction;
        made->batch_invariant = o.batch_invariant;
        status = problem_resolve_for(o.direction, problem, &made->problem, error);
    }
    if (status == ATTN_OK) {
        status =
            o.variant != NULL ? choose_by_name(made, o.variant, error) : choose_best(made, error);
    }
    if (status == ATTN_OK) {
        status = work_out(made, error);
    }
    if (status != ATTN_OK) {
        free(made);
        return status;
    }
    *plan = made;
    return attn_fail(error, ATTN_OK, "%s", "");
}

void attn_plan_destroy(attn_plan *plan) {
    free(plan);
}

/* ---- read back ------------------------------------------------------------------------------- */

size_t attn_workspace_size(const attn_plan *plan) {
    return plan != NULL ? plan->workspace : 0;
}

size_t attn_workspace_alignment(const attn_plan *plan) {
    return plan != NULL ? WORKSPACE_ALIGN : 0;
}

const char *attn_plan_variant(const attn_plan *plan) {
    return plan != NULL ? plan->name : NULL;
}

const char *attn_plan_tuned(const attn_plan *plan) {
    return plan != NULL ? plan->tuned_run : NULL;
}

attn_status attn_plan_problem(const attn_plan *plan, attn_problem *problem, attn_error *error) {
    if (plan == NULL || problem == NULL) {
        return attn_fail(error, ATTN_INVALID, "%s = NULL", plan == NULL ? "plan" : "problem");
    }
    const attn_status status = abi_check("problem", problem->size, PROBLEM_0_2, error);
    if (status != ATTN_OK) {
        return status;
    }
    abi_write(problem, problem->size, &plan->problem, sizeof plan->problem);
    return attn_fail(error, ATTN_OK, "%s", "");
}

attn_status attn_plan_refusal(const attn_plan *plan, int32_t index, attn_refusal *refusal,
                              attn_error *error) {
    if (plan == NULL || refusal == NULL) {
        return attn_fail(error, ATTN_INVALID, "%s = NULL", plan == NULL ? "plan" : "refusal");
    }
    const attn_status status = abi_check("refusal", refusal->size, REFUSAL_0_2, error);
    if (status != ATTN_OK) {
        return status;
    }
    if (index < 0 || index >= plan->refused) {
        return attn_fail(error, ATTN_INVALID, "index = %d, the plan has %d refusals", (int)index,
                         (int)plan->refused);
    }
    struct candidates candidates = {plan->context, &plan->problem, plan->direction, 0, 0, {0}};
    int32_t tried = candidates_next(&candidates, NULL);
    for (int32_t i = 0; i < index; i++) {
        tried = candidates_next(&candidates, NULL);
    }
    const struct variant *variant = &plan->context->variants[tried];
    attn_error why = {""};
    if (variant_applies(plan->context, variant, &plan->problem, plan_options(plan), &why) ==
        ATTN_OK) {
        variant_pays(variant, &plan->problem, &why);
    }
    attn_refusal found = {.variant = variant->info.name};
    snprintf(found.reason, sizeof found.reason, "%.*s", (int)sizeof found.reason - 1, why.text);
    abi_write(refusal, refusal->size, &found, sizeof found);
    return attn_fail(error, ATTN_OK, "%s", "");
}

/* A line that grows past its buffer, as snprintf counts. */
struct line {
    char *buffer;
    size_t size, length;
};

static void append(struct line *line, const char *format, ...) ATTN_PRINTF(2, 3);

static void append(struct line *line, const char *format, ...) {
    const size_t room = line->length < line->size ? line->size - line->length : 0;
    va_list arguments;
    va_start(arguments, format);
    const int added =
        vsnprintf(room > 0 ? line->buffer + line->length : NULL, room, format, arguments);
    va_end(arguments);
    line->length += added > 0 ? (size_t)added : 0;
}

static void append_problem(struct line *line, const attn_problem *p) {
    static const char *const dtypes[] = {"fp32", "fp16", "bf16"};
    static const char *const causal[] = {"", " causal top-left", " causal bottom-right"};
    append(line, "%s B%" PRId64 " H%" PRId64, dtypes[p->dtype], p->batch, p->heads_q);
    if (p->heads_kv != p->heads_q) {
        append(line, "/%" PRId64, p->heads_kv);
    }
    append(line, " S%" PRId64, p->seq_q);
    if (p->seq_kv != p->seq_q) {
        append(line, "x%" PRId64, p->seq_kv);
    }
    append(line, " D%" PRId64, p->head_dim);
    if (p->head_dim_v != p->head_dim) {
        append(line, "/%" PRId64, p->head_dim_v);
    }
    append(line, "%s", causal[p->causal]);
    if (p->window_left >= 0 || p->window_right >= 0) {
        append(line, " window %" PRId64 ",%" PRId64, p->window_left, p->window_right);
    }
    if (p->softcap > 0.0F) {
        append(line, " softcap %g", (double)p->softcap);
    }
    append(line, "%s%s%s%s%s%s%s%s%s", p->v_in_k ? " v_in_k" : "", p->alibi ? " alibi" : "",
           p->bias ? " bias" : "", p->mask ? " mask" : "", p->sink ? " sink" : "",
           p->packed ? " packed" : "", p->used_q ? " used_q" : "", p->used_kv ? " used_kv" : "",
           p->draft ? " draft" : "");
    if (p->q_offset != p->kv_offset || p->offsets) {
        append(line, " offset %" PRId64 "%s", p->q_offset - p->kv_offset,
               p->offsets ? " offsets" : "");
    }
    if (p->page_size > 0) {
        append(line, " pages of %" PRId64, p->page_size);
    }
    if (p->rope != ATTN_ROPE_NONE) {
        append(line, " rope %" PRId64 "%s", p->rope_dim,
               p->rope == ATTN_ROPE_INTERLEAVED ? " interleaved" : "");
    }
}

size_t attn_plan_print(const attn_plan *plan, char *buffer, size_t size) {
    struct line line = {buffer, buffer != NULL ? size : 0, 0};
    if (line.size > 0) {
        buffer[0] = '\0';
    }
    if (plan == NULL) {
        return 0;
    }
    append_problem(&line, &plan->problem);
    static const char *const directions[] = {"", " backward", " append", " merge"};
    append(&line, "%s%s: %s", directions[plan->direction],
           plan->batch_invariant ? " batch_invariant" : "", plan->name);
    if (plan->tuned_run != NULL) {
        append(&line, " (tuned: %s)", plan->tuned_run);
    }
    append(&line, ", blocks of %d rows x %d keys, workspace %zu bytes", plan->block_q,
           plan->block_kv, plan->workspace);
    attn_refusal refusal = {.size = sizeof refusal};
    for (int32_t i = 0; attn_plan_refusal(plan, i, &refusal, NULL) == ATTN_OK; i++) {
        append(&line, "%s%s (%s)", i == 0 ? "; refused: " : ", ", refusal.variant, refusal.reason);
    }
    return line.length;
}
