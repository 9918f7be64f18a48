/* SPDX-License-Identifier: Apache-2.0
 *
 * plan.c - `attest plan`: which variant computes a problem, and why the better ones do not.
 *
 * Invariant: nothing is chosen here; what is printed is what the library says of its own plan.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn_inspect.h"
#include "base/args.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/message.h"
#include "cases/shape.h"
#include "cli/verbs.h"
#include "device/kernels.h"
#include "device/runner.h"

struct request {
    struct runner runner;
    struct sizes sizes;
    struct semantics semantics;
    struct extras extras;
    attn_problem problem; /* resolved */
    double seconds;       /* that another plan like this one takes */
    bool all, json;
    struct json out;
};

/* ---- every variant, --all -------------------------------------------------------------------- */

/* What the library says about the index-th variant; false past the last. */
static bool variant_at(const struct request *request, int32_t index, attn_variant *variant,
                       bool *applies, attn_error *why) {
    *variant = (attn_variant){.size = sizeof *variant};
    if (attn_variant_get_direction(request->runner.context,
                                   (attn_direction)request->runner.direction, index, variant,
                                   why) != ATTN_OK) {
        return false;
    }
    *applies = attn_variant_check(request->runner.context, variant->name, &request->problem, why) ==
               ATTN_OK;
    if (*applies && request->runner.invariant &&
        (variant->options & ATTN_OPTION_BATCH_INVARIANT) == 0) {
        *applies = explain(why, "batch_invariant is not among its options");
    }
    return true;
}

/* The name of an image: "compute_80" is in the library, "compute_80.ptx" in the file beside it.
 * NULL past the last. */
static const char *image_name(const struct request *request, const attn_variant *variant,
                              int32_t index, char name[64]) {
    attn_image image = {.size = sizeof image};
    if (attn_variant_image(request->runner.context, variant->name, index, &image, NULL) !=
        ATTN_OK) {
        return NULL;
    }
    snprintf(name, 64, "%s%s", image.arch, image.kind == ATTN_IMAGE_PTX ? ".ptx" : "");
    return name;
}

static void print_variants(const struct request *request) {
    attn_variant variant;
    attn_error why;
    bool applies;
    int width = 0;
    for (int32_t i = 0; variant_at(request, i, &variant, &applies, &why); i++) {
        const int length = (int)strlen(variant.name);
        width = length > width ? length : width;
    }
    for (int32_t i = 0; variant_at(request, i, &variant, &applies, &why); i++) {
        printf("  %-*s  %s%s", width, variant.name, applies ? "yes" : "no: ", why.text);
        char name[64];
        for (int32_t k = 0; image_name(request, &variant, k, name) != NULL; k++) {
            printf("%s %s", k == 0 ? "; images" : "", name);
        }
        printf("\n");
    }
}

static void variant_json(struct json *json, const struct request *request,
                         const attn_variant *variant, const char *reason) {
    char name[64];
    json_open(json, NULL, '{');
    json_text(json, "name", variant->name);
    json_text(json, "family", variant->family);
    json_text(json, "arch", variant->arch);
    json_int(json, "block_q", variant->block_q);
    json_int(json, "block_kv", variant->block_kv);
    json_bool(json, "tensor_cores", variant->tensor_cores);
    json_int(json, "head_dim_max", variant->head_dim_max);
    json_int(json, "head_dim_multiple", variant->head_dim_multiple);
    json_int(json, "stages", variant->stages);
    json_int(json, "warps", variant->warps);
    json_int(json, "shared_bytes", variant->shared_bytes);
    json_text(json, "entry", variant->entry);
    json_open(json, "images", '[');
    for (int32_t i = 0; image_name(request, variant, i, name) != NULL; i++) {
        json_text(json, NULL, name);
    }
    json_close(json);
    json_bool(json, "applies", reason == NULL);
    json_text(json, "reason", reason);
    json_close(json);
}

static void variants_json(struct json *json, const struct request *request) {
    attn_variant variant;
    attn_error why;
    bool applies;
    json_open(json, "variants", '[');
    for (int32_t i = 0; variant_at(request, i, &variant, &applies, &why); i++) {
        variant_json(json, request, &variant, applies ? NULL : why.text);
    }
    json_close(json);
}

/* ---- the plan -------------------------------------------------------------------------------- */

/* `count` variants of one family, refused for one reason. */
static void print_refused(const attn_variant *last, const char *reason, int count) {
    char what[96];
    snprintf(what, sizeof what, count > 1 ? "%s, %d variants" : "%s",
             count > 1 ? last->family : last->name, count);
    if (count > 0) {
        printf("refused    %-42s  %s\n", what, reason);
    }
}

/* The better variants, without those of other dtypes. */
static void print_refusals(const struct request *request) {
    attn_refusal refusal = {.size = sizeof refusal};
    attn_variant variant = {.size = sizeof variant}, last = variant;
    char reason[sizeof((attn_error *)NULL)->text] = "";
    int count = 0;
    for (int32_t i = 0; attn_plan_refusal(request->runner.plan, i, &refusal, NULL) == ATTN_OK;
         i++) {
        if (!variant_by_name(request->runner.context, refusal.variant, &variant, NULL) ||
            (variant.dtypes >> request->problem.dtype & 1U) == 0) {
            continue;
        }
        if (count > 0 &&
            (strcmp(variant.family, last.family) != 0 || strcmp(refusal.reason, reason) != 0)) {
            print_refused(&last, reason, count);
            count = 0;
        }
        last = variant;
        snprintf(reason, sizeof reason, "%s", refusal.reason);
        count++;
    }
    print_refused(&last, reason, count);
}

static void print_plan(const struct request *request) {
    const attn_plan *plan = request->runner.plan;
    char text[256];
    printf("problem    %s\n", problem_text(&request->problem, text, sizeof text));
    printf("variant    %s\n", attn_plan_variant(plan));
    if (attn_plan_tuned(plan) != NULL) {
        printf("tuned      %s\n", attn_plan_tuned(plan));
    }
    printf("workspace  %zu bytes\n", attn_workspace_size(plan));
    printf("planned    in %.2f us\n", 1e6 * request->seconds);
    print_refusals(request);
}

/* The plan in one line, whole. */
static void line_json(struct json *json, const attn_plan *plan) {
    const size_t size = attn_plan_print(plan, NULL, 0) + 1;
    char *line = must(malloc(size));
    attn_plan_print(plan, line, size);
    json_text(json, "plan", line);
    free(line);
}

static void plan_json(struct request *request) {
    const attn_plan *plan = request->runner.plan;
    struct json *json = &request->out;
    json_open(json, NULL, '{');
    json_text(json, "attn", attn_version());
    json_text(json, "device", request->runner.device);
    line_json(json, plan);
    problem_json(json, "problem", &request->problem);
    if (request->runner.direction == ATTN_FORWARD) {
        json_real(json, "flops", attn_problem_flops(&request->problem));
    } else {
        json_text(json, "direction", ALL_DIRECTION_NAMES[request->runner.direction]);
    }
    json_text(json, "variant", attn_plan_variant(plan));
    json_text(json, "tuned", attn_plan_tuned(plan));
    json_int(json, "workspace", (int64_t)attn_workspace_size(plan));
    json_real(json, "seconds", request->seconds);
    json_open(json, "refusals", '[');
    attn_refusal refusal = {.size = sizeof refusal};
    for (int32_t i = 0; attn_plan_refusal(plan, i, &refusal, NULL) == ATTN_OK; i++) {
        json_open(json, NULL, '{');
        json_text(json, "variant", refusal.variant);
        json_text(json, "reason", refusal.reason);
        json_close(json);
    }
    json_close(json);
    if (request->all) {
        variants_json(json, request);
    }
    json_close(json);
}

/* The least of ten means: what is above it is the machine's other work. */
static double time_plans(const struct request *request) {
    enum { ROUNDS = 10, PLANS = 100 };
    attn_plan_options options =
        *PLAN_BY_NAME((attn_direction)request->runner.direction, request->runner.variant);
    options.batch_invariant = request->runner.invariant;
    double least = 0.0;
    for (int round = 0; round < ROUNDS; round++) {
        const double start = clock_seconds();
        for (int i = 0; i < PLANS; i++) {
            attn_plan *plan = NULL;
            attn_plan_create(request->runner.context, &request->problem, &options, &plan, NULL);
            attn_plan_destroy(plan);
        }
        const double mean = (clock_seconds() - start) / PLANS;
        least = round == 0 || mean < least ? mean : least;
    }
    return least;
}

static int make_plan(struct request *request, int combination) {
    attn_problem problem;
    attn_error why = {""};
    options_apply(&request->sizes, combination, &request->semantics, &request->extras, &problem);
    if (attn_problem_resolve(&problem, &request->problem, &why) != ATTN_OK) {
        return complain("plan: %s", why.text);
    }
    if (combination == 0 && !runner_open(&request->runner, &why)) {
        return runner_complain(&request->runner, "plan", &why);
    }
    if (!runner_plan(&request->runner, &request->problem, &why)) {
        if (request->all && !request->json) {
            print_variants(request);
        }
        return complain("plan: %s", why.text);
    }
    request->seconds = time_plans(request);
    if (request->json) {
        plan_json(request);
        return EXIT_DONE;
    }
    printf("%s", combination > 0 ? "\n" : "");
    print_plan(request);
    if (request->all) {
        printf("\nvariants, the preferred ones first\n");
        print_variants(request);
    }
    return EXIT_DONE;
}

/* Of several problems the JSON is a list. */
static int make_plans(struct request *request) {
    const int count = sizes_count(&request->sizes);
    int status = EXIT_DONE;
    request->out = json_begin(stdout);
    if (request->json && count > 1) {
        json_open(&request->out, NULL, '[');
    }
    for (int i = 0; i < count && status == EXIT_DONE; i++) {
        status = make_plan(request, i);
    }
    json_close_all(&request->out);
    return status;
}

/* "sm_90": the virtual GPU, as one of that architecture. False: it has no such. */
static bool take_arch(struct runner *runner) {
    static const char *const ARCHS[] = {"sm_80", "sm_86", "sm_89", "sm_90", NULL};
    if (choice_of(ARCHS, runner->device) >= 0) {
        setenv("VGPU_SM", runner->device + 3, 1);
        runner->device = "vgpu";
    }
    return strncmp(runner->device, "sm_", 3) != 0;
}

int verb_plan(int argc, char **argv) {
    struct request request = {0};
    struct arg sizes[SIZES_ARGS], semantics[SEMANTICS_ARGS];
    struct arg extras[EXTRAS_ARGS], runner[RUNNER_ARGS];
    sizes_args(&request.sizes, sizes);
    semantics_args(&request.semantics, semantics);
    extras_args(&request.extras, extras);
    runner_args(&request.runner, runner);
    runner[0].help =
        "as attest devices lists them, or sm_80 to sm_90: a GPU that is not here [cpu]";
    struct arg own[] = {
        arg_choice("--direction", &request.runner.direction, ALL_DIRECTION_NAMES,
                   "backward: gradients; append, merge: attn_append, attn_merge [forward]"),
        arg_flag("--all", &request.all,
                 "also every variant: yes, or the first clause that refuses it"),
        arg_flag("--json", &request.json, "the same as JSON"),
    };
    const struct arg_group groups[] = {ARG_GROUP("sizes", sizes), ARG_GROUP("semantics", semantics),
                                       ARG_GROUP("more", extras), ARG_GROUP("execution", runner),
                                       ARG_GROUP("what", own)};
    const struct command command = {
        .verb = "plan",
        .synopsis = "[options]",
        .examples =
            "  attest plan --dtype bf16\n"
            "  attest plan --seq-q 1 --seq-kv 8192 --heads 32 --heads-kv 8 --dim 128 --all\n"
            "  attest plan --device cuda --causal top-left --all\n"
            "  attest plan --device sm_90 --seq 512,4096 --dim 64,128\n"
            "  attest plan --direction backward --dtype bf16\n",
        ARG_GROUPS(groups),
    };
    const enum args_result parsed = args_parse(&command, argc, argv);
    if (parsed != ARGS_RUN) {
        return parsed == ARGS_HELP ? EXIT_DONE : EXIT_BAD_INPUT;
    }
    if (!take_arch(&request.runner)) {
        return complain("plan: --device %s: expected sm_80, sm_86, sm_89 or sm_90",
                        request.runner.device);
    }
    if (!semantics[SEMANTICS_DTYPE].seen && runner_wants_gpu(&request.runner)) {
        request.semantics.dtype = ATTN_FP16;
    }
    const int status = make_plans(&request);
    runner_close(&request.runner);
    return status;
}
