/* SPDX-License-Identifier: Apache-2.0
 *
 * target.c - see target.h.
 *
 * Invariant: TARGET_DONE is printed only after every launch was compared with the reference, on all
 * rows, and everything that was allocated on the device has been given back.
 */
#include "stages/sanitize/target.h"
#include "attn_verify.h"

#include <math.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/message.h"
#include "base/random.h"
#include "device/device.h"
#include "device/kernels.h"
#include "stages/sanitize/log.h"

enum { TENSORS = 5, NAN_BYTE = 0xff }; /* q, k, v, o, lse */

/* Lengths that no block divides, keys that nobody sees, rows that see no key, shared KV heads; keys
 * that grow, so that a running maximum rises; an infinity in V that all rows but the last must not
 * see; more tiles than a GPU has multiprocessors, so that blocks which stay take several. Outputs
 * are filled with NaN before each launch: what is not written fails the comparison. initcheck alone
 * would not tell, it does not see what TMA stores write. */
struct small_case {
    int64_t batch, heads_q, heads_kv, seq_q, seq_kv;
    attn_causal causal;
    attn_layout layout;
    bool lse;
    bool growing, infinite;
};
static const struct small_case CASES[] = {
    {1, 4, 2, 100, 130, ATTN_CAUSAL_BOTTOM_RIGHT, ATTN_BHSD, true, false, false},
    {1, 2, 1, 130, 100, ATTN_CAUSAL_BOTTOM_RIGHT, ATTN_BSHD, true, false, false},
    {2, 1, 1, 130, 130, ATTN_CAUSAL_NONE, ATTN_BHSD, false, false, false},
    {1, 2, 2, 1, 33, ATTN_CAUSAL_TOP_LEFT, ATTN_BSHD, false, false, false},
    {1, 1, 1, 70, 300, ATTN_CAUSAL_NONE, ATTN_BHSD, true, true, false},
    {1, 1, 1, 130, 130, ATTN_CAUSAL_BOTTOM_RIGHT, ATTN_BHSD, true, false, true},
    {1, 300, 100, 9, 20, ATTN_CAUSAL_NONE, ATTN_BHSD, false, false, false},
    {1, 300, 150, 9, 20, ATTN_CAUSAL_BOTTOM_RIGHT, ATTN_BHSD, false, false, false},
};
enum { CASE_COUNT = sizeof CASES / sizeof *CASES };

struct target {
    const struct target_request *request;
    attn_context *context;
    struct device *device;
    int64_t launches;
};

/* ---- which variants -------------------------------------------------------------------------- */

static attn_dtype first_dtype(const attn_variant *variant) {
    return (variant->dtypes & (1U << ATTN_FP32)) != 0   ? ATTN_FP32
           : (variant->dtypes & (1U << ATTN_FP16)) != 0 ? ATTN_FP16
                                                        : ATTN_BF16;
}

/* 64 columns, or what comes next to it that the variant takes. */
static int64_t head_dim_for(const attn_variant *variant) {
    const int64_t multiple = variant->head_dim_multiple > 1 ? variant->head_dim_multiple : 1;
    const int64_t dim = (64 + multiple - 1) / multiple * multiple;
    return variant->head_dim_max > 0 && dim > variant->head_dim_max ? variant->head_dim_max : dim;
}

static void make_problem(const attn_variant *variant, const struct small_case *small,
                         attn_problem *problem) {
    attn_problem_init(problem);
    problem->dtype = first_dtype(variant);
    problem->batch = small->batch;
    problem->heads_q = small->heads_q;
    problem->heads_kv = small->heads_kv;
    problem->seq_q = small->seq_q;
    problem->seq_kv = small->seq_kv;
    problem->head_dim = head_dim_for(variant);
    problem->causal = small->causal;
    problem->layout = small->layout;
}

/* Whether it takes one of the problems; else why it does not take the first. */
static bool takes_some(const attn_context *context, const attn_variant *variant, attn_error *why) {
    bool takes = false;
    for (int i = CASE_COUNT - 1; i >= 0 && !takes; i--) {
        attn_problem problem;
        make_problem(variant, &CASES[i], &problem);
        takes = attn_variant_check(context, variant->name, &problem, why) == ATTN_OK;
    }
    return takes;
}

static bool find_ptx(const attn_context *context, const char *name, attn_image *image,
                     attn_error *why) {
    for (int32_t i = 0;; i++) {
        *image = (attn_image){.size = sizeof *image};
        if (attn_variant_image(context, name, i, image, why) != ATTN_OK) {
            return false;
        }
        if (image->kind == ATTN_IMAGE_PTX) {
            return true;
        }
    }
}

static bool add_candidate(const attn_context *context, const struct target_request *request,
                          const attn_variant *variant, struct candidate **list, size_t *count,
                          attn_error *why) {
    struct candidate *longer = realloc(*list, (*count + 1) * sizeof *longer);
    if (longer == NULL) {
        return explain(why, "out of memory for a list of variants");
    }
    *list = longer;
    struct candidate *candidate = &longer[(*count)++];
    *candidate = (struct candidate){0};
    snprintf(candidate->name, sizeof candidate->name, "%s", variant->name);
    attn_image image;
    candidate->runs = takes_some(context, variant, &candidate->why) &&
                      (!request->ptx || find_ptx(context, variant->name, &image, &candidate->why));
    return true;
}

bool target_candidates(const attn_context *context, const struct target_request *request,
                       struct candidate **list, size_t *count, attn_error *why) {
    const char *pattern = request->pattern != NULL ? request->pattern : "";
    regex_t regex;
    const int error = regcomp(&regex, pattern, REG_EXTENDED | REG_NOSUB);
    *list = NULL;
    *count = 0;
    if (error != 0) {
        char text[128];
        regerror(error, &regex, text, sizeof text);
        return explain(why, "--variant: '%s' is not a regular expression: %s", pattern, text);
    }
    bool fine = true;
    attn_variant variant = {.size = sizeof variant};
    for (int32_t i = 0; fine && attn_variant_get(context, i, &variant, NULL) == ATTN_OK; i++) {
        if (regexec(&regex, variant.name, 0, NULL, 0) == 0) {
            fine = add_candidate(context, request, &variant, list, count, why);
        }
        variant = (attn_variant){.size = sizeof variant};
    }
    regfree(&regex);
    if (fine && *count == 0) {
        fine = explain(why, "--variant: '%s' matches no variant of this device", pattern);
    }
    if (!fine) {
        free(*list);
        *list = NULL;
        *count = 0;
    }
    return fine;
}

/* ---- one problem ----------------------------------------------------------------------------- */

/* The same tensors on both sides. */
struct buffers {
    void *host[TENSORS], *there[TENSORS];
    size_t bytes[TENSORS];
};

static void free_buffers(struct target *target, struct buffers *buffers) {
    for (int i = 0; i < TENSORS; i++) {
        free(buffers->host[i]);
        if (buffers->there[i] != NULL) {
            device_free(target->device, buffers->there[i]);
        }
    }
}

/* Growing: each row is larger than the one before it, the last one eight times the first. */
static bool fill_input(const attn_problem *problem, struct random *random, bool growing, void *to,
                       size_t bytes, attn_error *why) {
    const size_t count = bytes / attn_dtype_size(problem->dtype);
    float *values = malloc(count * sizeof *values);
    if (values == NULL) {
        return explain(why, "out of memory for %zu numbers", count);
    }
    random_normal(random, values, count);
    for (size_t i = 0; growing && i < count; i++) {
        values[i] *= 1.0F + 7.0F * (float)i / (float)count;
    }
    attn_from_float(problem->dtype, to, values, count);
    free(values);
    return true;
}

static bool make_buffers(struct target *target, const attn_problem *problem,
                         const struct small_case *small, struct buffers *buffers, attn_error *why) {
    const size_t queries = (size_t)(problem->batch * problem->heads_q * problem->seq_q);
    const size_t keys = (size_t)(problem->batch * problem->heads_kv * problem->seq_kv);
    const size_t row = (size_t)problem->head_dim * attn_dtype_size(problem->dtype);
    const size_t bytes[TENSORS] = {queries * row, keys * row, keys * row, queries * row,
                                   small->lse ? queries * sizeof(float) : 0};
    struct random random = {4711};
    *buffers = (struct buffers){0};
    memcpy(buffers->bytes, bytes, sizeof bytes);
    for (int i = 0; i < TENSORS; i++) {
        if (bytes[i] == 0) {
            continue;
        }
        buffers->host[i] = malloc(bytes[i]);
        buffers->there[i] = device_alloc(target->device, bytes[i], why);
        if (buffers->there[i] == NULL) {
            return false;
        }
        if (buffers->host[i] == NULL) {
            return explain(why, "out of memory for %zu bytes", bytes[i]);
        }
        const bool input = i < 3;
        if (input && !fill_input(problem, &random, small->growing && i == 1, buffers->host[i],
                                 bytes[i], why)) {
            return false;
        }
        if (i == 2 && small->infinite) { /* the first number of the last key */
            const float infinity = INFINITY;
            attn_from_float(problem->dtype, (char *)buffers->host[i] + bytes[i] - row, &infinity,
                            1);
        }
        if (input &&
            !device_write(target->device, buffers->there[i], buffers->host[i], bytes[i], why)) {
            return false;
        }
        /* A planted fault finds them as they were allocated: initcheck's reads its output. */
        if (!input && target->request->image == NULL &&
            !device_fill(target->device, buffers->there[i], NAN_BYTE, bytes[i], why)) {
            return false;
        }
    }
    return true;
}

static attn_tensors tensors_of(void *const pointers[TENSORS]) {
    attn_tensors tensors;
    attn_tensors_init(&tensors);
    tensors.q = pointers[0];
    tensors.k = pointers[1];
    tensors.v = pointers[2];
    tensors.o = pointers[3];
    tensors.lse = pointers[4];
    return tensors;
}

/* Launches once and waits for the result. What a planted fault comes to is the tool's to tell. */
static bool launch(struct target *target, const attn_plan *plan, struct buffers *buffers,
                   attn_error *why) {
    const attn_tensors tensors = tensors_of(buffers->there);
    const size_t size = attn_workspace_size(plan);
    void *workspace = NULL;
    if (size > 0) {
        /* It may hold anything, so kernels read counters there that they have not written: to
         * initcheck that is a fault, unless the memory was written here. */
        workspace = device_alloc(target->device, size, why);
        if (workspace == NULL || !device_fill(target->device, workspace, NAN_BYTE, size, why)) {
            return false;
        }
    }
    bool fine = attn_forward(plan, &tensors, workspace, size, NULL, why) == ATTN_OK;
    target->launches += fine;
    const bool finished = device_wait(target->device, fine ? why : NULL);
    if (target->request->image == NULL) {
        fine = fine && finished;
        for (int i = 3; i < TENSORS && fine; i++) {
            fine = buffers->bytes[i] == 0 || device_read(target->device, buffers->host[i],
                                                         buffers->there[i], buffers->bytes[i], why);
        }
    }
    if (workspace != NULL) {
        device_free(target->device, workspace);
    }
    return fine;
}

/* EXIT_DONE, EXIT_FAILED_CHECK after TARGET_WRONG, or EXIT_BAD_INPUT and the reason. */
static int run_problem(struct target *target, const char *variant, const attn_problem *problem,
                       const struct small_case *small, attn_error *why) {
    attn_plan *plan = NULL;
    if (attn_plan_create(target->context, problem, ATTN_BY_NAME(variant), &plan, why) != ATTN_OK) {
        return EXIT_BAD_INPUT;
    }
    attn_problem planned = {.size = sizeof planned};
    attn_plan_problem(plan, &planned, NULL);
    const attn_problem *resolved = &planned;
    struct buffers buffers;
    bool fine =
        make_buffers(target, resolved, small, &buffers, why) && launch(target, plan, &buffers, why);
    attn_comparison comparison = {.size = sizeof comparison, .pass = true};
    if (fine && target->request->image == NULL) {
        const attn_tensors result = tensors_of(buffers.host);
        const size_t rows = (size_t)(resolved->batch * resolved->heads_q * resolved->seq_q);
        fine = attn_verify(target->context, resolved, &result, NULL, rows, &comparison, why) ==
               ATTN_OK;
    }
    if (fine && !comparison.pass) {
        char text[256];
        attn_comparison_print(&comparison, text, sizeof text);
        printf(TARGET_WRONG "%s, seq %lld x %lld: %s\n", variant, (long long)problem->seq_q,
               (long long)problem->seq_kv, text);
    }
    free_buffers(target, &buffers);
    attn_plan_destroy(plan);
    return !fine ? EXIT_BAD_INPUT : comparison.pass ? EXIT_DONE : EXIT_FAILED_CHECK;
}

/* ---- variants -------------------------------------------------------------------------------- */

/* Adds the variant once more, made of its PTX, and finds it under its new name. */
static bool from_ptx(struct target *target, attn_variant *variant, attn_error *why) {
    attn_image image;
    attn_variant copy = *variant;
    char name[128];
    if (!find_ptx(target->context, variant->name, &image, why)) {
        return false;
    }
    snprintf(name, sizeof name, "%s_ptx", variant->name);
    copy.name = name;
    return attn_variant_add(target->context, &copy, image.data, image.bytes, why) == ATTN_OK &&
           variant_by_name(target->context, name, variant, why);
}

static int run_variant(struct target *target, const char *name, attn_error *why) {
    attn_variant variant;
    if (!variant_by_name(target->context, name, &variant, why)) {
        return EXIT_BAD_INPUT;
    }
    if (target->request->ptx && !from_ptx(target, &variant, why)) {
        return EXIT_BAD_INPUT;
    }
    int status = EXIT_DONE;
    for (int i = 0; i < CASE_COUNT && status == EXIT_DONE; i++) {
        attn_problem problem;
        make_problem(&variant, &CASES[i], &problem);
        if (attn_variant_check(target->context, variant.name, &problem, why) == ATTN_OK) {
            status = run_problem(target, variant.name, &problem, &CASES[i], why);
        } else {
            printf("target: %s does not take case %d: %s\n", name, i, why->text);
        }
    }
    return status;
}

static int run_variants(struct target *target, int64_t *variants, attn_error *why) {
    struct candidate *list;
    size_t count;
    if (!target_candidates(target->context, target->request, &list, &count, why)) {
        return EXIT_BAD_INPUT;
    }
    int status = EXIT_DONE;
    for (size_t i = 0; i < count && status == EXIT_DONE; i++) {
        if (list[i].runs) {
            const int64_t before = target->launches;
            status = run_variant(target, list[i].name, why);
            ++*variants;
            if (status == EXIT_DONE) {
                printf(TARGET_VARIANT "\n", list[i].name, (long long)(target->launches - before));
            }
        }
    }
    free(list);
    return status;
}

/* ---- a planted fault ------------------------------------------------------------------------- */

static int run_fault(struct target *target, attn_error *why) {
    static const char name[] = FAULT_VARIANT "_fault";
    const attn_variant fault = {.size = sizeof fault,
                                .name = name,
                                .device = "cuda",
                                .family = "fwd_scalar",
                                .arch = "sm_80",
                                .dtypes = 1U << ATTN_FP16,
                                .head_dim_max = 64,
                                .head_dim_multiple = 64,
                                .block_q = 32,
                                .block_kv = 64,
                                .stages = 2,
                                .warps = 4,
                                .entry = FAULT_VARIANT};
    size_t size;
    char *image = file_read(target->request->image, &size, why);
    if (image == NULL) {
        return EXIT_BAD_INPUT;
    }
    const attn_status status = attn_variant_add(target->context, &fault, image, size, why);
    free(image);
    if (status != ATTN_OK) {
        return EXIT_BAD_INPUT;
    }
    attn_problem problem;
    make_problem(&fault, &CASES[0], &problem);
    return run_problem(target, name, &problem, &CASES[0], why);
}

/* ---- the program ----------------------------------------------------------------------------- */

static int run_target(struct target *target, int64_t *variants, attn_error *why) {
    attn_options options;
    attn_options_init(&options);
    options.device = target->request->device;
    const attn_status status = attn_open(&options, &target->context, why);
    if (status != ATTN_OK) {
        return status == ATTN_UNSUPPORTED ? EXIT_NOT_RUN : EXIT_BAD_INPUT;
    }
    target->device = device_open(target->context, target->request->device, why);
    if (target->device == NULL) {
        return EXIT_BAD_INPUT;
    }
    if (target->request->image == NULL && device_is_gpu(target->device) &&
        kernels_missing(target->context, why)) {
        return EXIT_NOT_RUN;
    }
    return target->request->image != NULL ? run_fault(target, why)
                                          : run_variants(target, variants, why);
}

int sanitize_target(const struct target_request *request) {
    struct target target = {.request = request};
    int64_t variants = 0;
    attn_error why = {""};
    const int status = run_target(&target, &variants, &why);
    if (target.device != NULL) {
        device_close(target.device);
    }
    attn_close(target.context);
    if (status == EXIT_BAD_INPUT || status == EXIT_NOT_RUN) {
        complain("sanitize: target: %s%s", status == EXIT_NOT_RUN ? "NOT RUN: " : "", why.text);
        return status;
    }
    printf(TARGET_TOOL "\n", request->tool);
    if (status == EXIT_DONE && request->image != NULL) {
        printf("target: planted fault launched\n");
    } else if (status == EXIT_DONE) {
        printf(TARGET_DONE "\n", (long long)target.launches, (long long)variants);
    }
    return status;
}
