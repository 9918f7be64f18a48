/* SPDX-License-Identifier: Apache-2.0
 *
 * test_parity.c - every variant computes what attn.h says, in every corner of the problem.
 *
 * Random problems (any dtype, layout, lengths and mixture of options) and sweeps over head_dim,
 * seq_q, seq_kv and single options run through each variant that accepts them; all rows are
 * compared with the double-precision reference by the one rule. The tensors lie in guarded memory
 * whose unused places hold NaN (cases.h), so that a wild read shows as NaN or as a fault, a wild
 * write as damage.
 *
 * `test_parity SEED` repeats a random case, `test_parity FIRST LAST` runs a range of them.
 *
 * Invariant: a variant that ran nowhere is one that this machine refuses, and is listed with why.
 */
#include <stdlib.h>

#include "attn_inspect.h"
#include "test.h"
#include "tool/cases/cases.h"
#include "verify.h"

enum { RANDOM_CASES = 900 };

/* One thread for half of the cases, three for the others: the results may not depend on it. */
static attn_context *contexts[2];

static bool open_contexts(void) {
    for (int i = 0; i < 2; i++) {
        attn_options options;
        attn_error why;
        attn_options_init(&options);
        options.threads = i == 0 ? 1 : 3;
        if (!contexts[i] && !CHECK_STATUS(attn_open(&options, &contexts[i], &why), ATTN_OK, &why)) {
            return false;
        }
    }
    return true;
}

static struct tally tally; /* over all tests of this program */

static void verify(const struct recipe *recipe) {
    const int failures = recipe_verify(contexts[recipe->seed & 1], recipe, &tally);
    CHECK_MSG(failures == 0, "%d variants failed", failures);
}

static void verify_random(uint64_t first, uint64_t last) {
    for (uint64_t seed = first; seed <= last; seed++) {
        struct recipe recipe;
        recipe_draw(&recipe, seed);
        verify(&recipe);
    }
}

static attn_problem small_problem(attn_dtype dtype) {
    attn_problem p;
    attn_problem_init(&p);
    p.dtype = dtype;
    p.batch = 2;
    p.heads_q = 4;
    p.heads_kv = 2;
    p.seq_q = 37;
    p.seq_kv = 53;
    p.head_dim = 40;
    return p;
}

static uint64_t next_seed;

static void verify_problem(const attn_problem *problem) {
    struct recipe recipe;
    recipe_init(&recipe, problem, next_seed++);
    verify(&recipe);
}

TEST(random_problems) {
    if (open_contexts()) {
        verify_random(1, RANDOM_CASES);
    }
}

TEST(head_dims) {
    static const int64_t others[] = {63, 64, 65, 127, 128, 129, 255, 256, 257};
    if (!open_contexts()) {
        return;
    }
    for (int dtype = ATTN_FP32; dtype <= ATTN_BF16; dtype++) {
        attn_problem p = small_problem((attn_dtype)dtype);
        for (p.head_dim = 1; p.head_dim <= 40; p.head_dim++) {
            verify_problem(&p);
        }
        for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
            p.head_dim = others[i];
            verify_problem(&p);
        }
        p.head_dim = 64;
        for (p.head_dim_v = 1; p.head_dim_v <= 257; p.head_dim_v += 1 + p.head_dim_v / 4) {
            verify_problem(&p);
        }
    }
}

/* Across the tile edges of every kernel: few rows, many rows, one more and one less. */
TEST(lengths) {
    static const int64_t edges[] = {63, 64, 65, 95, 96, 97, 127, 128, 129, 191, 193, 255, 256, 257};
    if (!open_contexts()) {
        return;
    }
    for (int dtype = ATTN_FP32; dtype <= ATTN_BF16; dtype++) {
        attn_problem p = small_problem((attn_dtype)dtype);
        p.batch = 1;
        p.head_dim = 16;
        for (int64_t n = 1; n <= 50; n++) {
            p.causal = (attn_causal)(n % 3);
            p.seq_q = n;
            p.seq_kv = 50 - n / 2;
            verify_problem(&p);
            p.seq_q = 33;
            p.seq_kv = n;
            verify_problem(&p);
        }
        for (size_t i = 0; i < sizeof edges / sizeof edges[0]; i++) {
            p.causal = (attn_causal)(i % 3);
            p.seq_q = edges[i];
            p.seq_kv = 70;
            verify_problem(&p);
            p.seq_q = 20;
            p.seq_kv = edges[i];
            verify_problem(&p);
        }
    }
}

/* One query against many keys, the shape that splits the keys. */
TEST(decode) {
    static const int64_t keys[] = {1, 2, 31, 64, 100, 511, 512, 513, 1000, 2049, 4100};
    if (!open_contexts()) {
        return;
    }
    for (int dtype = ATTN_FP32; dtype <= ATTN_BF16; dtype++) {
        attn_problem p = small_problem((attn_dtype)dtype);
        p.heads_q = 8;
        p.head_dim = 64;
        for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
            p.seq_kv = keys[i];
            p.used_kv = i % 2;
            p.causal = i % 3 == 2 ? ATTN_CAUSAL_BOTTOM_RIGHT : ATTN_CAUSAL_NONE;
            for (p.seq_q = 1; p.seq_q <= 3; p.seq_q++) {
                p.sink = i % 4 == 1;
                verify_problem(&p);
            }
        }
    }
}

/* Each of these alone, so that a failure names its option. */
static void set_option(struct recipe *r, int option) {
    attn_problem *p = &r->problem;
    switch (option) {
    case 0: break;
    case 1: p->causal = ATTN_CAUSAL_TOP_LEFT; break;
    case 2: p->causal = ATTN_CAUSAL_BOTTOM_RIGHT; break;
    case 3: p->window_left = 7; break;
    case 4: p->window_right = 5; break;
    case 5: p->window_left = p->window_right = 0; break;
    case 6: p->window_left = p->window_right = 1000; break;
    case 7: p->softcap = 2.5f; break;
    case 8: p->alibi = true; break;
    case 9: p->alibi = r->slopes = true; break;
    case 10:
        p->alibi = r->slopes = true;
        p->alibi_batch_stride = p->heads_q + 1;
        break;
    case 11: p->sink = true; break;
    case 12:
    case 13:
    case 14:
        p->bias = true;
        p->bias_dtype = (attn_dtype)(option - 12);
        break;
    case 15:
        p->bias = true;
        p->bias_strides = (attn_bias_strides){0, 0, 0, 1};
        break;
    case 16:
        p->bias = true;
        p->bias_strides = (attn_bias_strides){0, p->seq_q * p->seq_kv, 1, p->seq_q};
        break;
    case 17: p->bias = r->masking_bias = true; break;
    case 18: p->packed = true; break;
    case 19: p->used_kv = true; break;
    case 20: p->packed = p->used_kv = true; break;
    case 21: p->scale = 0.0f; break;
    case 22: p->scale = -0.7f; break;
    case 23: r->lse = false; break;
    case 24: p->heads_kv = 1; break;
    case 25: p->heads_kv = -1; break;
    case 26: p->head_dim_v = 24; break;
    case 27: p->tensor_cores = ATTN_TENSOR_CORES_NEVER; break;
    case 28: p->mask = true; break;
    case 29:
        p->mask = true;
        p->mask_strides = (attn_bias_strides){p->seq_kv, 0, 0, 1};
        break;
    case 30:
        p->mask = true;
        p->mask_strides = (attn_bias_strides){0, 0, 1, p->seq_q};
        break;
    case 31:
        p->mask = p->bias = p->sink = p->alibi = true;
        p->causal = ATTN_CAUSAL_BOTTOM_RIGHT;
        p->window_left = 20;
        break;
    default: p->alignment = (int32_t)attn_dtype_size(p->dtype);
    }
}

TEST(options) {
    enum { OPTIONS = 33 };
    if (!open_contexts()) {
        return;
    }
    for (int dtype = ATTN_FP32; dtype <= ATTN_BF16; dtype++) {
        for (int layout = ATTN_BHSD; layout <= ATTN_BSHD; layout++) {
            for (int option = 0; option < OPTIONS; option++) {
                const attn_problem p = small_problem((attn_dtype)dtype);
                struct recipe recipe;
                recipe_init(&recipe, &p, next_seed++);
                recipe.problem.layout = (attn_layout)layout;
                set_option(&recipe, option);
                verify(&recipe);
                recipe.seed = next_seed++;
                recipe.arrangement = (enum arrangement)(1 + option % (ARRANGE_COUNT - 1));
                if (recipe.arrangement == ARRANGE_FUSED) {
                    recipe.problem.seq_kv = recipe.problem.seq_q;
                    recipe.problem.head_dim_v = -1;
                }
                verify(&recipe);
            }
        }
    }
}

TEST(distributions) {
    if (!open_contexts()) {
        return;
    }
    for (int dtype = ATTN_FP32; dtype <= ATTN_BF16; dtype++) {
        for (int distribution = 0; distribution < DIST_COUNT; distribution++) {
            attn_problem p = small_problem((attn_dtype)dtype);
            p.seq_q = 70;
            p.seq_kv = 200;
            struct recipe recipe;
            recipe_init(&recipe, &p, next_seed++);
            recipe.distribution = (enum distribution)distribution;
            verify(&recipe);
        }
    }
}

/* The last test: the others have filled the tally. */
TEST(variants_that_ran) {
    if (!open_contexts()) {
        return;
    }
    attn_variant variant = {.size = sizeof variant};
    for (int32_t i = 0; attn_variant_get(contexts[0], i, &variant, NULL) == ATTN_OK; i++) {
        attn_error why = {"no dtype"};
        for (int dtype = ATTN_FP32; dtype <= ATTN_BF16; dtype++) {
            const attn_problem p = small_problem((attn_dtype)dtype);
            verify_problem(&p);
            if (!(tally.ran >> i & 1) && (variant.dtypes >> dtype & 1)) {
                CHECK_STATUS(attn_variant_check(contexts[0], variant.name, &p, &why),
                             ATTN_UNSUPPORTED, &why);
            }
        }
        printf("  %s: %s\n", variant.name, tally.ran >> i & 1 ? "ran" : why.text);
    }
    printf("  %d runs, %d borderline\n", tally.runs, tally.borderline);
    CHECK(tally.ran != 0);
    CHECK_MSG(tally.borderline * 500 <= tally.runs, "too many to be chance");
}

TEST_STATE()

int main(int argc, char **argv) {
    char *end = NULL;
    const uint64_t first = argc > 1 ? strtoull(argv[1], &end, 10) : 0;
    if (!end || end == argv[1] || *end) {
        const int status = test_run(argc > 1 ? argv[1] : "");
        attn_close(contexts[0]);
        attn_close(contexts[1]);
        return status;
    }
    struct recipe recipe;
    char line[600];
    recipe_draw(&recipe, first);
    printf("%s\n", recipe_print(&recipe, line, sizeof line));
    if (open_contexts()) {
        verify_random(first, argc > 2 ? strtoull(argv[2], NULL, 10) : first);
    }
    return test_state.failures ? TEST_FAIL : TEST_PASS;
}
