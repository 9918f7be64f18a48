/* SPDX-License-Identifier: Apache-2.0
 *
 * test_workspace.c - a workspace needs no initialisation: every family of GPU kernels with counters
 * in it computes the same bits, without findings, whatever it held before: zeros, ones, NaN, small
 * integers, random bytes, words that an addition turns into a counter, and the leftovers of other
 * families.
 *
 * tests/verify.c checks the same for the CPU backend with every sample.
 *
 * Invariant: the reference bits were computed in a workspace of zeros and passed the comparison
 * with the oracle.
 */
#include <stdlib.h>
#include <string.h>

#include "attn_inspect.h"
#include "src/kernels/common/args.h"
#include "tool/cases/cases.h"
#include "vgpu/vgpu_fixture.h"

/* ---- families -------------------------------------------------------------------------------- */

enum { FAMILIES = 5 };

/* More Q tiles than the GPU has SMs (132), so that the dynamic tile scheduler hands some out; or
 * split-KV with partial results in the workspace, of so many tiles that their counters (the first
 * 32 are 256 bytes) lie where fwd_hopper_decode stores its partial results. */
static const struct {
    const char *family;
    int64_t heads_q, heads_kv, seq_q, seq_kv;
    bool causal;
} PROBLEMS[FAMILIES] = {{"fwd_hopper_causal", 136, 1, 40, 60, true},
                        {"fwd_hopper_full", 140, 1, 9, 50, true},
                        {"fwd_mma_decode", 34, 34, 3, 600, false},
                        {"fwd_hopper_decode", 4, 1, 1, 9001, false},
                        {"fwd_hopper_chunk", 6, 2, 50, 700, true}};

/* A plan, its tensors on the device, and the right bits of O and LSE. */
struct work {
    attn_plan *plan;
    struct sample s;
    struct mirror mirror;
    size_t size; /* of the workspace */
    unsigned char *bits, *back;
};

static size_t result_bytes(const struct work *w) {
    return w->s.o.size + w->s.lse.size;
}

/* Launches, with NaN in the outputs before; what comes out of it goes to `back`. */
static bool launch(struct work *w, void *workspace, const char *what) {
    attn_error why = {""};
    char found[500];
    const attn_tensors *t = &w->mirror.tensors;
    vgpu_driver_order(&orders, launches++ % orders.count);
    vgpu_driver_forget();
    const bool ran = device_fill(device, t->o, 0xFF, w->s.o.size, &why) &&
                     device_fill(device, t->lse, 0xFF, w->s.lse.size, &why) &&
                     attn_forward(w->plan, t, workspace, w->size, NULL, &why) == ATTN_OK &&
                     device_wait(device, &why) &&
                     device_read(device, w->back, t->o, w->s.o.size, &why) &&
                     device_read(device, w->back + w->s.o.size, t->lse, w->s.lse.size, &why);
    const bool clean = vgpu_driver_clean(found, sizeof found);
    CHECK_MSG(ran, "%s, %s: %s", attn_plan_variant(w->plan), what, why.text);
    CHECK_MSG(clean, "%s, %s: %s", attn_plan_variant(w->plan), what, found);
    return ran && clean;
}

static void launch_same(struct work *w, void *workspace, const char *what, int number) {
    if (launch(w, workspace, what)) {
        CHECK_MSG(memcmp(w->back, w->bits, result_bytes(w)) == 0, "%s, %s, launch %d: other bits",
                  attn_plan_variant(w->plan), what, number);
    }
}

/* The first variant of the family that takes the problem. */
static bool make_plan(struct work *w, int family) {
    attn_variant variant = {.size = sizeof variant};
    attn_error why;
    for (int32_t i = 0; attn_variant_get(context, i, &variant, NULL) == ATTN_OK; i++) {
        if (strcmp(variant.family, PROBLEMS[family].family) == 0 &&
            attn_variant_check(context, variant.name, &w->s.problem, NULL) == ATTN_OK) {
            return CHECK_STATUS(attn_plan_create(context, &w->s.problem, ATTN_BY_NAME(variant.name),
                                                 &w->plan, &why),
                                ATTN_OK, &why);
        }
    }
    return false;
}

static bool make_bits(struct work *w, const char *family) {
    struct expectation expected = {0};
    attn_error why = {""};
    void *zeros = device_alloc(device, w->size, &why);
    const char *failed = expectation_make(&expected, context, &w->s);
    bool good = CHECK_MSG(failed == NULL, "%s", failed) && CHECK(zeros != NULL) &&
                CHECK(device_fill(device, zeros, 0, w->size, &why)) && launch(w, zeros, "zeros");
    if (good) {
        memcpy(w->bits, w->back, result_bytes(w));
        memcpy(w->s.o.data, w->bits, w->s.o.size);
        memcpy(w->s.lse.data, w->bits + w->s.o.size, w->s.lse.size);
        failed = sample_compare(&w->s, &expected, NULL);
        good = CHECK_MSG(failed == NULL, "%s: %s", family, failed);
    }
    expectation_free(&expected);
    device_free(device, zeros);
    return good;
}

static void work_free(struct work *w) {
    attn_plan_destroy(w->plan);
    mirror_free(&w->mirror);
    sample_free(&w->s);
    free(w->bits);
    free(w->back);
}

/* False: no variant of the family is compiled in, or a check has failed. */
static bool work_make(struct work *w, int family) {
    attn_problem p;
    struct recipe recipe;
    attn_error why;
    attn_problem_init(&p);
    p.dtype = ATTN_FP16;
    p.heads_q = PROBLEMS[family].heads_q;
    p.heads_kv = PROBLEMS[family].heads_kv;
    p.seq_q = PROBLEMS[family].seq_q;
    p.seq_kv = PROBLEMS[family].seq_kv;
    p.head_dim = 64;
    p.causal = PROBLEMS[family].causal ? ATTN_CAUSAL_BOTTOM_RIGHT : ATTN_CAUSAL_NONE;
    recipe_init(&recipe, &p, 7 + (uint64_t)family);
    *w = (struct work){.plan = NULL};
    if (!CHECK(sample_make(&w->s, &recipe))) {
        return false;
    }
    bool good = make_plan(w, family) &&
                CHECK_MSG(mirror_make(&w->mirror, device, &w->s, &why), "%s", why.text);
    if (good) {
        w->size = attn_workspace_size(w->plan);
        w->bits = malloc(result_bytes(w));
        w->back = malloc(result_bytes(w));
        good = CHECK(w->size > 0) && CHECK(w->bits != NULL && w->back != NULL) &&
               make_bits(w, PROBLEMS[family].family);
    }
    if (!good) {
        work_free(w);
    }
    return good;
}

/* ---- garbage --------------------------------------------------------------------------------- */

static uint64_t zeros(size_t word) {
    return 0 * word;
}
static uint64_t ones(size_t word) {
    return ~zeros(word);
}
static uint64_t small_words(size_t word) {
    return word + 1;
}
static uint64_t small_halves(size_t word) {
    return (2 * word + 2) << 32 | (2 * word + 1);
}
static uint64_t quiet_nan(size_t word) {
    return word % 2 ? 0x7fffffff7fffffff : 0x7fc000007fc00000;
}
static uint64_t random_bytes(size_t word) {
    uint64_t state = 1000 + word;
    return rng_next(&state);
}
/* The first, second or third addition makes a counter of it. */
static uint64_t nearly_counter(size_t word) {
    return ATTN_COUNTER_ZERO - 1 - word % 3;
}
/* The upper half is in the lower. */
static uint64_t counter_below(size_t word) {
    return (ATTN_COUNTER_ZERO >> 32) + 0 * word;
}
/* A counter at 0 of which something else has overwritten the first byte, word, or upper half. */
static uint64_t counter_under_bool(size_t word) {
    return (ATTN_COUNTER_ZERO & ~UINT64_C(0xff)) | (word % 2 == 0);
}
static uint64_t counter_under_int(size_t word) {
    return (ATTN_COUNTER_ZERO & ~UINT64_C(0xffffffff)) | (word % 2 == 0 ? 1 : 0x80000000);
}
static uint64_t counter_under_float(size_t word) {
    return (ATTN_COUNTER_ZERO & UINT64_C(0xffffffff)) | UINT64_C(0x3f800000) << 32 | 0 * word;
}

static const struct {
    const char *name;
    uint64_t (*word)(size_t word);
} GARBAGE[] = {{"zeros", zeros},
               {"ones", ones},
               {"small words", small_words},
               {"small halves", small_halves},
               {"quiet NaN", quiet_nan},
               {"random bytes", random_bytes},
               {"nearly a counter", nearly_counter},
               {"a counter below", counter_below},
               {"a counter under a bool", counter_under_bool},
               {"a counter under an int", counter_under_int},
               {"a counter under a float", counter_under_float}};
enum { GARBAGES = sizeof GARBAGE / sizeof GARBAGE[0] };

static bool litter(void *workspace, size_t size, int kind) {
    attn_error why;
    const size_t words = size / sizeof(uint64_t);
    uint64_t *host = malloc(size);
    for (size_t i = 0; i < words && host != NULL; i++) {
        host[i] = GARBAGE[kind].word(i);
    }
    const bool good = host != NULL && device_write(device, workspace, host, size, &why);
    free(host);
    return CHECK(good);
}

/* ---- tests ----------------------------------------------------------------------------------- */

enum { LAUNCHES = 2 }; /* the second one sees what the first has left */

static void any_garbage(int family) {
    struct work w;
    attn_error why;
    if (!open_gpu()) {
        return;
    }
    if (!work_make(&w, family)) {
        SKIP("no variant of its family is compiled in");
    }
    void *workspace = device_alloc(device, w.size, &why);
    CHECK(workspace != NULL && w.size % sizeof(uint64_t) == 0);
    for (int kind = 0; kind < GARBAGES && workspace != NULL; kind++) {
        /* All count by common/counter.h: each kind of garbage for every other family. */
        if ((test_all() || (kind + family) % 2 == 0) && litter(workspace, w.size, kind)) {
            for (int i = 0; i < LAUNCHES; i++) {
                launch_same(&w, workspace, GARBAGE[kind].name, i);
            }
        }
    }
    device_free(device, workspace);
    work_free(&w);
}

TEST(tickets_of_causal_tiles) {
    any_garbage(0);
}
TEST(tickets_with_every_option) {
    any_garbage(1);
}
TEST(parts_of_blocks) {
    any_garbage(2);
}
TEST(parts_of_clusters) {
    any_garbage(3);
}
TEST(parts_of_warps) {
    any_garbage(4);
}

/* One workspace for all families. Each follows each, itself too. */
TEST(leftovers_of_other_plans) {
    static const int TURNS[] = {0, 0, 1, 0, 2, 0, 3, 1, 1, 2, 1, 3, 2, 2,
                                3, 3, 0, 4, 4, 0, 4, 1, 4, 2, 4, 3, 4};
    struct work w[FAMILIES];
    bool made[FAMILIES];
    size_t largest = 0;
    attn_error why;
    if (!open_gpu()) {
        return;
    }
    for (int i = 0; i < FAMILIES; i++) {
        made[i] = work_make(&w[i], i);
        largest = made[i] && w[i].size > largest ? w[i].size : largest;
    }
    if (largest == 0) {
        SKIP("no variant of the families is compiled in");
    }
    void *workspace = device_alloc(device, largest, &why);
    if (CHECK(workspace != NULL) && litter(workspace, largest, 0)) {
        for (size_t i = 0; i < sizeof TURNS / sizeof TURNS[0]; i++) {
            if (made[TURNS[i]]) {
                launch_same(&w[TURNS[i]], workspace, "after another plan", (int)i);
            }
        }
    }
    device_free(device, workspace);
    for (int i = 0; i < FAMILIES; i++) {
        if (made[i]) {
            work_free(&w[i]);
        }
    }
}

TEST_MAIN()
