/* SPDX-License-Identifier: Apache-2.0
 *
 * test_bias.c - where a bias and a mask lie in memory, and the ends of a bias's range, in the
 * kernels that take them, on the virtual GPU.
 *
 * Kernels read several neighbouring values at once where address and strides allow it, and nothing
 * past the last value. So each of these tensors lies in an allocation of its own that ends with its
 * last byte, and no byte before its first one is initialised.
 *
 * Invariant: kernels for one architecture alone are tried with every tile that was compiled in,
 * since their tiles differ in how they read; of the other families one tile in turn.
 */
#include <float.h>

#include "tool/stages/parity/parity.h" /* and with it what tests of tool/ link */
#include "vgpu/edge_fixture.h"

/* An edge, and how many elements the bias and the mask lie past a multiple of 256 bytes. */
struct placed {
    struct edge edge;
    size_t bias_skew, mask_skew;
};

/* ---- a run with both tensors at the ends of their allocations -------------------------------- */

/* A copy on the device, `skew` bytes past the start of its allocation. NULL: there is no tensor. */
static unsigned char *place(const struct guarded *tensor, size_t skew) {
    attn_error why;
    if (tensor->data == NULL) {
        return NULL;
    }
    unsigned char *memory = device_alloc(device, skew + tensor->size, &why);
    if (CHECK_MSG(memory != NULL, "%s", why.text)) {
        CHECK(device_write(device, memory + skew, tensor->data, tensor->size, &why));
    }
    return memory;
}

static bool forward(const attn_variant *variant, struct sample *s, const attn_tensors *t,
                    attn_error *why) {
    attn_plan *plan;
    if (attn_plan_create(context, &s->problem, ATTN_BY_NAME(variant->name), &plan, why) !=
        ATTN_OK) {
        return false;
    }
    const size_t size = attn_workspace_size(plan);
    void *workspace = size > 0 ? device_alloc(device, size, why) : NULL;
    const bool done = (size == 0 || device_fill(device, workspace, 0xFF, size, why)) &&
                      attn_forward(plan, t, workspace, size, NULL, why) == ATTN_OK &&
                      device_read(device, s->o.data, t->o, s->o.size, why) &&
                      device_read(device, s->lse.data, t->lse, s->lse.size, why);
    device_free(device, workspace);
    attn_plan_destroy(plan);
    return done;
}

static bool run_placed(const struct placed *placed, const attn_variant *variant, struct sample *s,
                       attn_error *why) {
    const size_t bias_skew = placed->bias_skew * attn_dtype_size(s->full.bias_dtype);
    struct mirror mirror;
    if (!mirror_make(&mirror, device, s, why)) {
        return false;
    }
    attn_tensors tensors = mirror.tensors;
    unsigned char *bias = place(&s->bias, bias_skew), *mask = place(&s->mask, placed->mask_skew);
    tensors.bias = bias != NULL ? bias + bias_skew : NULL;
    tensors.mask = mask != NULL ? mask + placed->mask_skew : NULL;
    const bool done = forward(variant, s, &tensors, why);
    device_free(device, bias);
    device_free(device, mask);
    mirror_free(&mirror);
    return done;
}

/* GPUs take a finite bias beyond 2e38 as 2e38, so an LSE is no larger. 2.04: to 2% that of attn.h
 * and that of a kernel which clamps at 3e38 in base 2. */
static void take_as_2e38(struct expectation *expected) {
    const double most = 2.04e38;
    for (size_t i = 0; i < expected->count; i++) {
        double *lse = &expected->lse[i];
        *lse = isfinite(*lse) ? fmin(fmax(*lse, -most), most) : *lse;
    }
}

static bool try_placed(const attn_variant *variant, void *user) {
    const struct placed *placed = user;
    struct expectation expected = {0};
    struct sample s;
    attn_error why = {""};
    char line[640], finding[500];
    if (!edge_sample(&placed->edge, variant, true, &s)) {
        return false;
    }
    recipe_print(&s.recipe, line, sizeof line);
    const char *wrong = expectation_make(&expected, context, &s);
    vgpu_driver_order(&orders, launches++ % orders.count);
    vgpu_driver_forget();
    if (CHECK_MSG(wrong == NULL, "%s", wrong) &&
        CHECK_MSG(run_placed(placed, variant, &s, &why), "%s: %s: %s", variant->name, line,
                  why.text)) {
        take_as_2e38(&expected);
        wrong = placed->edge.shows ? (same_pattern(&s, &expected, &why) ? NULL : why.text)
                                   : sample_compare(&s, &expected, NULL);
        CHECK_MSG(wrong == NULL, "%s: %s: %s", variant->name, line, wrong);
    }
    CHECK_MSG(vgpu_driver_clean(finding, sizeof finding), "%s: %s: %s", variant->name, line,
              finding);
    expectation_free(&expected);
    sample_free(&s);
    return true;
}

/* ---- layouts --------------------------------------------------------------------------------- */

/* Neither number of keys is one of whole tiles. Rows of 112 begin at multiples of 16 bytes. */
enum { BATCH = 2, HEADS = 2, QUERIES = 17, EVEN = 98, ODD = 99, WIDE = 112 };
enum { EVEN_HEAD = QUERIES * EVEN, ODD_HEAD = QUERIES * ODD, WIDE_HEAD = QUERIES * WIDE };

static const struct layout {
    int64_t keys;
    attn_bias_strides strides;
    size_t skew; /* in elements */
} LAYOUTS[] = {
    {EVEN, {HEADS * EVEN_HEAD, EVEN_HEAD, EVEN, 1}, 0},
    {ODD, {HEADS * ODD_HEAD, ODD_HEAD, ODD, 1}, 0},
    {ODD, {HEADS * WIDE_HEAD, WIDE_HEAD, WIDE, 1}, 0},
    {ODD, {HEADS * WIDE_HEAD, WIDE_HEAD, WIDE, 1}, 1},
    {EVEN, {EVEN, 0, 0, 1}, 0},          /* (B, 1, 1, S) */
    {EVEN, {0, 0, EVEN, 1}, 1},          /* (1, 1, S, S) */
    {ODD, {0, ODD_HEAD, 1, QUERIES}, 0}, /* (1, H, S, S) with keys far apart */
    {ODD, {1, 3, 2, 7}, 1},              /* elements that overlap */
};
enum { LAYOUT_COUNT = sizeof LAYOUTS / sizeof *LAYOUTS };

/* One layout for the bias, another for the mask; NULL: there is none. How many variants took it. */
static int try_layouts(attn_dtype dtype, const struct layout *bias, attn_dtype bias_dtype,
                       const struct layout *mask) {
    const int64_t keys = (bias != NULL ? bias : mask)->keys;
    struct placed placed = {.edge.problem = problem_of(BATCH, HEADS, QUERIES, keys)};
    attn_problem *p = &placed.edge.problem;
    uint32_t options = 0;
    if (bias != NULL) {
        p->bias = true;
        p->bias_dtype = bias_dtype;
        p->bias_strides = bias->strides;
        placed.bias_skew = bias->skew;
        options |= ATTN_OPTION_BIAS;
    }
    if (mask != NULL) {
        p->mask = true;
        p->mask_strides = mask->strides;
        placed.mask_skew = mask->skew;
        options |= ATTN_OPTION_MASK;
    }
    return each_tile(options, dtype, try_placed, &placed);
}

/* How a bias is read does not depend on the dtype of Q: each layout has one of them, two layouts in
 * turn, so that both have some which allow wide loads. */
static attn_dtype dtype_of(int layout, bool other) {
    return (layout / 2 % 2 != 0) == other ? ATTN_FP16 : ATTN_BF16;
}

TEST(biases_in_every_layout) {
    NEEDS_KERNELS(ATTN_OPTION_BIAS);
    int taken = 0;
    for (int i = 0; i < 3 * LAYOUT_COUNT; i++) {
        taken += try_layouts(dtype_of(i / 3, false), &LAYOUTS[i / 3], (attn_dtype)(i % 3), NULL);
    }
    needs_some(taken);
}

TEST(masks_in_every_layout) {
    NEEDS_KERNELS(ATTN_OPTION_MASK);
    int taken = 0;
    for (int i = 0; i < LAYOUT_COUNT; i++) {
        taken += try_layouts(dtype_of(i, false), NULL, ATTN_FP32, &LAYOUTS[i]);
    }
    needs_some(taken);
}

/* The next layout with as many keys. */
static const struct layout *after(const struct layout *layout) {
    int at = (int)(layout - LAYOUTS);
    do {
        at = (at + 1) % LAYOUT_COUNT;
    } while (LAYOUTS[at].keys != layout->keys);
    return &LAYOUTS[at];
}

TEST(biases_with_masks_in_other_layouts) {
    NEEDS_KERNELS(ATTN_OPTION_BIAS | ATTN_OPTION_MASK);
    int taken = 0;
    for (int i = 0; i < 3 * LAYOUT_COUNT; i++) {
        const struct layout *bias = &LAYOUTS[i / 3];
        if (i % 3 == i / 3 % 3 || test_all()) { /* each layout of a bias alone ran in all dtypes */
            taken += try_layouts(dtype_of(i / 3, true), bias, (attn_dtype)(i % 3), after(bias));
        }
    }
    needs_some(taken);
}

/* ---- the ends of the range ------------------------------------------------------------------- */

/* The lowest finite numbers: a usual mask. */
static void bias_of_the_lowest(struct sample *s) {
    const float lowest[] = {-FLT_MAX, -65504.0F, -0x1.fep127F};
    const attn_problem *p = &s->full;
    const float low = lowest[p->bias_dtype];
    fill_with_v_of_2(s, 1.0F, 1.0F);
    for (int64_t at = 0; at < p->heads_q * p->seq_q * p->seq_kv; at++) {
        const int64_t j = at % p->seq_kv, i = at / p->seq_kv % p->seq_q;
        const float rows[] = {
            low,                             /* the mean of V */
            j == p->seq_kv / 2 ? 0.0F : low, /* one key, where it is visible */
            j % 2 == 0 ? -INFINITY : low,    /* the mean of every other V */
            j % 40 == 5 ? -low : 0.0F,       /* the mean of a few */
            (float)(j % 3) - 1.0F,
        };
        set_bias(s, 0, at / p->seq_kv / p->seq_q, i, j, rows[i % 5]);
    }
}

TEST(biases_of_the_lowest_number) {
    NEEDS_KERNELS(ATTN_OPTION_BIAS);
    int taken = 0;
    for (int i = 0; i < 12; i++) { /* each dtype alone, with a sink, with a mask, causal */
        struct placed placed = {.edge = {problem_of(1, HEADS, 5, i % 2 == 0 ? EVEN : ODD),
                                         ARRANGE_GIVEN, bias_of_the_lowest, true}};
        attn_problem *p = &placed.edge.problem;
        p->head_dim = 32; /* and few queries: such rows are computed key by key */
        p->bias = true;
        p->bias_dtype = (attn_dtype)(i % 3);
        p->sink = i / 3 == 1;
        p->mask = i / 3 == 2;
        p->causal = i / 3 == 3 ? ATTN_CAUSAL_BOTTOM_RIGHT : ATTN_CAUSAL_NONE;
        taken += each_tile(ATTN_OPTION_BIAS, i / 3 % 2 == 0 ? ATTN_FP16 : ATTN_BF16, try_placed,
                           &placed);
    }
    needs_some(taken);
}

/* One value of the second row: the others of the row are finite, so only the sum can show it. */
static void bias_of_one_nan(struct sample *s) {
    const attn_problem *p = &s->full;
    for (int64_t at = 0; at < p->heads_q * p->seq_q * p->seq_kv; at++) {
        const int64_t j = at % p->seq_kv, i = at / p->seq_kv % p->seq_q;
        set_bias(s, 0, at / p->seq_kv / p->seq_q, i, j, i == 1 && j == 3 ? NAN : (float)(j % 3));
    }
}

TEST(nan_of_a_bias_shows) {
    NEEDS_KERNELS(ATTN_OPTION_BIAS);
    int taken = 0;
    for (int i = 0; i < 3; i++) {
        struct placed placed = {
            .edge = {problem_of(1, HEADS, 5, ODD), ARRANGE_GIVEN, bias_of_one_nan, true}};
        placed.edge.problem.bias = true;
        placed.edge.problem.bias_dtype = (attn_dtype)i;
        taken += each_tile(ATTN_OPTION_BIAS, ATTN_FP16, try_placed, &placed);
    }
    needs_some(taken);
}

TEST_MAIN()
