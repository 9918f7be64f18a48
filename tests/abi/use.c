/* SPDX-License-Identifier: Apache-2.0
 *
 * use.c - a program that calls every function and fills every struct of the headers it is compiled
 * with: those of a release (tests/abi/0.2) or, with -DGROWN, headers whose structs have fields that
 * the library does not know. meta/test_abi.sh runs it against libraries of other versions.
 *
 * Invariant: each struct stands between canaries, so that a library that writes its own sizeof is
 * seen. Exit code 0 iff all checks hold.
 */
#include "attn_inspect.h"
#include "attn_verify.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 24, DIM = 16, CANARY = 0x5a };

static int failures;

#define CHECK(condition)                                                                           \
    ((condition) ? (void)0                                                                         \
                 : (void)(failures++, printf("%s:%d: %s\n", __FILE__, __LINE__, #condition)))

/* A struct of the program's own size, as on a stack that has other things beside it. */
#define GUARDED(type, name)                                                                        \
    struct {                                                                                       \
        unsigned char before[64];                                                                  \
        type it;                                                                                   \
        unsigned char after[512];                                                                  \
    } name;                                                                                        \
    memset(&name, CANARY, sizeof name)

static int is_whole(const unsigned char *bytes, size_t size) {
    for (size_t i = 0; i < size; i++) {
        if (bytes[i] != CANARY) {
            return 0;
        }
    }
    return 1;
}

#define CHECK_WHOLE(name)                                                                          \
    CHECK(is_whole(name.before, sizeof name.before) && is_whole(name.after, sizeof name.after) &&  \
          name.it.size == sizeof name.it)

#ifdef GROWN
/* A field that the library does not know: zero is its default, all else is refused. */
#define CHECK_UNKNOWN(name, call)                                                                  \
    do {                                                                                           \
        CHECK(name.it.grown == 0);                                                                 \
        name.it.grown = 1;                                                                         \
        why.text[0] = '\0';                                                                        \
        CHECK((call) == ATTN_INVALID && strstr(why.text, "does not know") != NULL);                \
        name.it.grown = 0;                                                                         \
    } while (0)
#define CHECK_ZERO(name) CHECK(name.it.grown == 0)
#else
#define CHECK_UNKNOWN(name, call) ((void)0)
#define CHECK_ZERO(name) ((void)0)
#endif

static float q[ROWS * DIM], k[ROWS * DIM], v[ROWS * DIM], o[ROWS * DIM], lse[ROWS];
static double exact[ROWS * DIM], twin[ROWS * DIM], exact_lse[ROWS];

static attn_error why;

static void use_problem(attn_problem *p) {
    GUARDED(attn_problem, resolved);
    GUARDED(attn_problem, own);
    attn_problem_init(&own.it);
    CHECK_WHOLE(own);
    CHECK_UNKNOWN(own, attn_problem_check(&own.it, &why));
    CHECK(attn_problem_check(&own.it, &why) == ATTN_OK);
    own.it.heads_q = 4;
    CHECK(attn_problem_resolve(&own.it, &resolved.it, &why) == ATTN_OK);
    CHECK_WHOLE(resolved);
    CHECK(resolved.it.heads_kv == 4 && resolved.it.head_dim_v == 64);
    CHECK(attn_problem_resolve(&own.it, &own.it, &why) == ATTN_OK);
    CHECK_WHOLE(own);
    attn_problem_init(p);
    p->seq_q = p->seq_kv = ROWS;
    p->head_dim = DIM;
    p->causal = ATTN_CAUSAL_TOP_LEFT;
    CHECK(attn_problem_flops(p) == 4.0 * DIM * ROWS * (ROWS + 1) / 2);
}

static void use_variants(attn_context *context, const attn_problem *p) {
    GUARDED(attn_device, device);
    device.it.size = sizeof device.it;
    CHECK(attn_device_get(context, &device.it, &why) == ATTN_OK);
    CHECK_WHOLE(device);
    CHECK_ZERO(device);
    CHECK(device.it.units >= 1);
    GUARDED(attn_variant, variant);
    variant.it.size = sizeof variant.it;
    int32_t index = 0;
    do {
        CHECK(attn_variant_get(context, index, &variant.it, &why) == ATTN_OK);
    } while (attn_variant_check(context, variant.it.name, p, &why) != ATTN_OK && index++ < 64);
    CHECK_WHOLE(variant);
    CHECK_ZERO(variant);
    GUARDED(attn_image, image);
    image.it.size = sizeof image.it;
    CHECK(attn_variant_image(context, variant.it.name, 0, &image.it, &why) == ATTN_UNSUPPORTED);
    variant.it.name = "own";
    CHECK_UNKNOWN(variant, attn_variant_add(context, &variant.it, NULL, 0, &why));
    CHECK(attn_variant_add(context, &variant.it, NULL, 0, &why) == ATTN_OK);
    void *function = NULL;
    CHECK(attn_driver_function(context, "cuInit", &function, &why) == ATTN_UNSUPPORTED);
}

static attn_plan *use_plan(attn_context *context, const attn_problem *p) {
    GUARDED(attn_plan_options, options);
    attn_plan_options_init(&options.it);
    CHECK_WHOLE(options);
    options.it.variant = "own";
    options.it.deterministic = true;
    attn_plan *plan = NULL;
    CHECK_UNKNOWN(options, attn_plan_create(context, p, &options.it, &plan, &why));
    CHECK(attn_plan_create(context, p, &options.it, &plan, &why) == ATTN_OK);
    CHECK(plan != NULL && strcmp(attn_plan_variant(plan), "own") == 0);
    GUARDED(attn_problem, read);
    read.it.size = sizeof read.it;
    CHECK(attn_plan_problem(plan, &read.it, &why) == ATTN_OK);
    CHECK_WHOLE(read);
    CHECK_ZERO(read);
    CHECK(read.it.heads_kv == 1 && read.it.seq_kv == ROWS);
    GUARDED(attn_refusal, refusal);
    refusal.it.size = sizeof refusal.it;
    CHECK(attn_plan_refusal(plan, 0, &refusal.it, &why) == ATTN_INVALID); /* requested by name */
    char line[256];
    CHECK(attn_plan_print(plan, line, sizeof line) > 10);
    CHECK(attn_plan_tuned(plan) == NULL && attn_workspace_alignment(plan) > 0);
    return plan;
}

static void use_verify(attn_context *context, const attn_problem *p, const attn_tensors *t) {
    GUARDED(attn_comparison, result);
    result.it.size = sizeof result.it;
    attn_row rows[4];
    CHECK(attn_rows_sample(p, 1, rows, 4, &why) == ATTN_OK);
    CHECK(attn_verify(context, p, t, rows, 4, &result.it, &why) == ATTN_OK);
    CHECK_WHOLE(result);
    CHECK_ZERO(result);
    CHECK(result.it.pass && result.it.nans == 0);
    CHECK(attn_reference(context, p, t, ATTN_EXACT, NULL, ROWS, exact, exact_lse, &why) == ATTN_OK);
    CHECK(attn_reference(context, p, t, ATTN_TWIN, NULL, ROWS, twin, NULL, &why) == ATTN_OK);
    o[3] += 0.5F;
    CHECK(attn_compare(p, t, NULL, ROWS, exact, exact_lse, twin, &result.it, &why) == ATTN_OK);
    CHECK_WHOLE(result);
    CHECK(!result.it.pass && result.it.worst_col == 3);
    const attn_statistics statistics = attn_comparison_statistics(&result.it);
    CHECK(attn_judge(ATTN_FP32, &statistics, NULL, 0) == ATTN_REJECT);
    char line[512];
    CHECK(attn_comparison_print(&result.it, line, sizeof line) > 10);
    uint16_t half;
    attn_from_float(ATTN_FP16, &half, &o[0], 1);
    attn_to_float(ATTN_FP16, &o[0], &half, 1);
    CHECK(attn_dtype_size(ATTN_BF16) == 2);
}

int main(void) {
    for (int i = 0; i < ROWS * DIM; i++) {
        q[i] = k[i] = v[i] = (float)(i % 13) / 13.0F;
    }
    GUARDED(attn_options, options);
    attn_options_init(&options.it);
    CHECK_WHOLE(options);
    options.it.threads = 1;
    attn_context *context = NULL;
    CHECK_UNKNOWN(options, attn_open(&options.it, &context, &why));
    if (attn_open(&options.it, &context, &why) != ATTN_OK) {
        printf("%s\n", why.text);
        return 1;
    }
    GUARDED(attn_problem, problem);
    use_problem(&problem.it);
    CHECK_WHOLE(problem);
    use_variants(context, &problem.it);
    attn_plan *plan = use_plan(context, &problem.it);
    GUARDED(attn_tensors, tensors);
    attn_tensors_init(&tensors.it);
    CHECK_WHOLE(tensors);
    tensors.it.q = q;
    tensors.it.k = k;
    tensors.it.v = v;
    tensors.it.o = o;
    tensors.it.lse = lse;
    const size_t size = attn_workspace_size(plan);
    void *workspace = malloc(size > 0 ? size : 1);
    CHECK_UNKNOWN(tensors, attn_forward(plan, &tensors.it, workspace, size, NULL, &why));
    CHECK(attn_forward(plan, &tensors.it, workspace, size, NULL, &why) == ATTN_OK);
    CHECK(o[0] == v[0] && isfinite(lse[ROWS - 1]));
    use_verify(context, &problem.it, &tensors.it);
    free(workspace);
    attn_plan_destroy(plan);
    attn_close(context);
    printf("libattn %s, %s: %d failures\n", attn_version(), attn_status_name(ATTN_OK), failures);
    return failures != 0;
}
