/* SPDX-License-Identifier: Apache-2.0
 *
 * test_many_keys.c - proves that sums over tens of millions of keys neither stop growing nor lose
 * digits, in the portable variants, and with TEST_ALL in every one.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attn_inspect.h"
#include "attn_verify.h"
#include "test.h"

static attn_context *context; /* opened by main */

/* Equal keys without number: every weight is the same, O is V. A sum in one chain of fp32 additions
 * would stop growing at 2^24, 2^25 or, four keys at a time, 2^26. */
static void sum_many(int dtype, const char *variant) {
    enum { ROWS = 9, KEYS = 5 << 24 };
    float line[ROWS], o[ROWS] = {0}, lse[ROWS] = {0};
    uint16_t one[ROWS], half[ROWS] = {0};
    attn_problem p;
    attn_tensors t;
    attn_plan *plan;
    attn_error why;
    for (int i = 0; i < ROWS; i++) {
        line[i] = 1.0f;
    }
    attn_from_float(ATTN_BF16, one, line, ROWS);
    attn_problem_init(&p);
    attn_tensors_init(&t);
    p.dtype = (attn_dtype)dtype;
    p.seq_q = ROWS;
    p.seq_kv = KEYS;
    p.head_dim = 1;
    p.alignment = dtype == ATTN_FP32 ? 4 : 2;
    p.k.row = p.v.row = 0;
    t.q = t.k = t.v = dtype == ATTN_FP32 ? (const void *)line : one;
    t.o = dtype == ATTN_FP32 ? (void *)o : half;
    t.lse = lse;
    CHECK_STATUS(attn_plan_create(context, &p, ATTN_BY_NAME(variant), &plan, &why), ATTN_OK, &why);
    const size_t size = attn_workspace_size(plan);
    void *workspace = malloc(size);
    CHECK_STATUS(attn_forward(plan, &t, workspace, size, NULL, &why), ATTN_OK, &why);
    if (dtype != ATTN_FP32) {
        attn_to_float(ATTN_BF16, o, half, ROWS);
    }
    for (int i = 0; i < ROWS; i++) {
        CHECK_MSG(fabsf(o[i] - 1.0f) <= 1e-5f, "%s row %d: %g", variant, i, (double)o[i]);
        CHECK_MSG(fabs((double)lse[i] - 1.0 - log(KEYS)) <= 1e-4, "%s row %d", variant, i);
    }
    free(workspace);
    attn_plan_destroy(plan);
}

TEST(sum_over_very_many_keys) {
    attn_variant v = {.size = sizeof v};
    int ran = 0;
    for (int32_t n = 0; attn_variant_get(context, n, &v, NULL) == ATTN_OK; n++) {
        const int dtype = v.dtypes & 1u << ATTN_FP32 ? ATTN_FP32 : ATTN_BF16;
        attn_problem p;
        attn_problem_init(&p);
        p.dtype = (attn_dtype)dtype;
        p.seq_q = 9;
        /* Of few lanes, each of which adds up the most keys; the others are of the same code. */
        const size_t length = strlen(v.name);
        const bool portable = length > 2 && strcmp(v.name + length - 2, "_c") == 0;
        if (!portable && !test_all()) {
            continue;
        }
        if (attn_variant_check(context, v.name, &p, NULL) == ATTN_OK) {
            sum_many(dtype, v.name);
            ran++;
        }
    }
    CHECK(ran > 0);
}

TEST_MAIN_WITH(context)
