/* SPDX-License-Identifier: Apache-2.0
 *
 * test_maps.c - the families that copy by tensor maps (fwd_hopper...): every field of every
 * map, which problems they refuse, what a call changes in a map, their workspace, and what happens
 * when the driver says no.
 *
 * Invariant: expectations are worked out here, from attn.h and the rules of cuTensorMapEncodeTiled;
 * the variants are made up (cuda_fixture.h): tiles of 128 rows and 64 keys.
 */
#include <pthread.h>
#include <stdlib.h>

#include "cuda/cuda_fixture.h"
#include "src/kernels/common/args.h"

#define PLAIN "made_up_fwd_hopper_fp16_d128_128x64"
#define CAUSAL "made_up_fwd_hopper_causal_fp16_d128_128x64"
#define FULL "made_up_fwd_hopper_full_fp16_d128_128x64"
#define CHUNK "made_up_fwd_hopper_chunk_fp16_d128_128x64"
#define MIXED "made_up_fwd_hopper_mixed_fp16_d128_128x64"
#define SPLIT "made_up_fwd_hopper_split_fp16_d128_64x64"

static attn_context *begin(void) {
    attn_context *context = fake_begin(1) ? fake_open("cuda") : NULL;
    if (context == NULL || !add_made_up_hopper(context, ATTN_FP16) ||
        !add_made_up_hopper(context, ATTN_BF16)) {
        attn_close(context);
        return NULL;
    }
    return context;
}

static struct attn_args args_of(const struct fake_call *launch) {
    struct attn_args args;
    memcpy(&args, launch->args + offsetof(struct attn_tma_args, a), sizeof args);
    return args;
}

/* 0 to 3: of q, k, v, o. */
static struct fake_map map_of(const struct fake_call *launch, int which) {
    struct fake_map map;
    memcpy(&map, launch->args + (size_t)which * sizeof map, sizeof map);
    return map;
}

/* ---- every field ----------------------------------------------------------------------------- */

struct expected {
    int64_t dims[4], strides[3]; /* elements */
    int box, next_box;           /* of the second and the third dimension; 0: 1 */
};

static void check_map(const char *name, const struct fake_map *map, const struct expected *e,
                      const void *address, attn_dtype dtype) {
    bool same = map->rank == 4 && map->type == (dtype == ATTN_FP16 ? 6 : 9) &&
                map->interleave == 0 && map->swizzle == 3 && map->promotion == 2 && map->fill == 0;
    CHECK_MSG(same, "%s: rank %d, type %d, interleave %d, swizzle %d, promotion %d, fill %d", name,
              map->rank, map->type, map->interleave, map->swizzle, map->promotion, map->fill);
    CHECK(map->address == (uintptr_t)address);
    for (int i = 0; i < 4; i++) {
        const int box = i == 0 ? 64 : i == 1 ? e->box : i == 2 && e->next_box > 0 ? e->next_box : 1;
        CHECK_MSG(map->dims[i] == (uint64_t)e->dims[i] && map->box[i] == box &&
                      map->element_strides[i] == 1,
                  "%s: dimension %d of %llu, box %d", name, i, (unsigned long long)map->dims[i],
                  map->box[i]);
    }
    for (int i = 0; i < 3; i++) {
        CHECK_MSG(map->strides[i] == (uint64_t)e->strides[i] * 2,
                  "%s: stride %d of %llu bytes, expected %lld elements", name, i + 1,
                  (unsigned long long)map->strides[i], (long long)e->strides[i]);
    }
}

/* One call; the maps of q, k, v, o against those expected. */
static void check_maps(attn_context *context, const char *variant, const attn_problem *p,
                       const struct expected expected[4]) {
    static const char *const names[] = {"q", "k", "v", "o"};
    const attn_tensors t = stand_ins();
    const void *const addresses[] = {t.q, t.k, t.v, t.o};
    attn_error why;
    attn_plan *plan = plan_on(context, p, variant);
    fake->forget();
    CHECK_STATUS(
        attn_forward(plan, &t, (void *)0x600000000000, attn_workspace_size(plan), NULL, &why),
        ATTN_OK, &why);
    const struct fake_call *launch = launch_at(0);
    for (int i = 0; CHECK(launch != NULL) && i < 4; i++) {
        const struct fake_map map = map_of(launch, i);
        check_map(names[i], &map, &expected[i], addresses[i], p->dtype);
    }
    CHECK_EQ(calls_of("cuTensorMapEncodeTiled"), 0); /* that was the plan's */
    attn_plan_destroy(plan);
}

TEST(fields) {
    attn_context *context = begin();
    if (context == NULL) {
        return;
    }
    attn_problem p = gpu_problem(); /* batch, heads, rows; GQA and two head dimensions */
    p.heads_kv = 2;
    p.head_dim = 96;
    p.head_dim_v = 40;
    const struct expected dense[4] = {
        {{96, 40, 4, 2}, {96, 40 * 96, 4 * 40 * 96}, 128, 0},
        {{96, 60, 2, 2}, {96, 60 * 96, 2 * 60 * 96}, 64, 0},
        {{40, 60, 2, 2}, {40, 60 * 40, 2 * 60 * 40}, 64, 0},
        {{40, 40, 4, 2}, {40, 40 * 40, 4 * 40 * 40}, 64, 0},
    };
    check_maps(context, PLAIN, &p, dense);
    check_maps(context, FULL, &p, dense);
    const struct expected heads_first[4] = {
        {{96, 4, 40, 2}, {40 * 96, 96, 4 * 40 * 96}, 2, 64}, dense[1], dense[2], dense[3]};
    check_maps(context, CHUNK, &p, heads_first);
    p.causal = ATTN_CAUSAL_TOP_LEFT;
    check_maps(context, CAUSAL, &p, dense);
    p.dtype = ATTN_BF16;
    p.causal = ATTN_CAUSAL_NONE;
    check_maps(context, "made_up_fwd_hopper_bf16_d128_128x64", &p, dense);
    p = gpu_problem(); /* rows before heads, with gaps, each its own */
    p.q = (attn_strides){.batch = 100000, .head = 72, .row = 800};
    p.k = (attn_strides){.batch = 200000, .head = 80, .row = 808};
    p.v = (attn_strides){.batch = 300000, .head = 88, .row = 816};
    p.o = (attn_strides){.batch = 400000, .head = 96, .row = 824};
    const struct expected gaps[4] = {
        {{64, 40, 4, 2}, {800, 72, 100000}, 128, 0},
        {{64, 60, 4, 2}, {808, 80, 200000}, 64, 0},
        {{64, 60, 4, 2}, {816, 88, 300000}, 64, 0},
        {{64, 40, 4, 2}, {824, 96, 400000}, 64, 0},
    };
    check_maps(context, PLAIN, &p, gaps);
    attn_close(context);
    fake_end();
}

/* Packed: rows of all sequences, and one batch entry whatever the batch's stride. */
TEST(fields_of_packed_sequences) {
    attn_context *context = begin();
    if (context == NULL) {
        return;
    }
    attn_problem p = gpu_problem();
    p.packed = true;
    p.total_q = 61;
    p.total_kv = 77;
    p.q.batch = p.k.batch = p.v.batch = p.o.batch = 3;
    const struct expected packed[4] = {
        {{64, 61, 4, 1}, {64, 61 * 64, 64}, 128, 0},
        {{64, 77, 4, 1}, {64, 77 * 64, 64}, 64, 0},
        {{64, 77, 4, 1}, {64, 77 * 64, 64}, 64, 0},
        {{64, 61, 4, 1}, {64, 61 * 64, 64}, 64, 0},
    };
    check_maps(context, FULL, &p, packed);
    attn_close(context);
    fake_end();
}

/* No dimension is 0, and a stride that does not matter is legal, whatever it was. */
TEST(fields_of_small_problems) {
    attn_context *context = begin();
    attn_error why;
    if (context == NULL) {
        return;
    }
    attn_problem p = gpu_problem();
    p.batch = p.heads_q = p.seq_q = 1;
    p.head_dim = 72;
    p.seq_kv = 1;
    p.q = p.k = p.v = p.o = (attn_strides){.batch = 1, .head = 3, .row = (int64_t)1 << 50};
    const struct expected one[4] = {{{72, 1, 1, 1}, {72, 72, 72}, 128, 0},
                                    {{72, 1, 1, 1}, {72, 72, 72}, 64, 0},
                                    {{72, 1, 1, 1}, {72, 72, 72}, 64, 0},
                                    {{72, 1, 1, 1}, {72, 72, 72}, 64, 0}};
    check_maps(context, PLAIN, &p, one);
    p.k = p.v = (attn_strides){.batch = 72, .head = 72, .row = 72};
    p.seq_kv = 0;
    check_maps(context, PLAIN, &p, one);
    attn_plan *plan = plan_on(context, &p, PLAIN);
    attn_tensors t = stand_ins();
    t.k = t.v = NULL; /* there are no keys */
    fake->forget();
    CHECK_STATUS(attn_forward(plan, &t, NULL, 0, NULL, &why), ATTN_OK, &why);
    CHECK_EQ(calls_of("cuTensorMapReplaceAddress"), 2);
    attn_plan_destroy(plan);
    p.seq_q = 0;
    plan = plan_on(context, &p, PLAIN);
    fake->forget();
    CHECK_STATUS(attn_forward(plan, &t, NULL, 0, NULL, &why), ATTN_OK, &why);
    CHECK_EQ(calls_of("cuLaunchKernelEx"), 0);
    attn_plan_destroy(plan);
    for (int part = 0; part < 2; part++) { /* no queries, no keys: the strides come to 0 */
        p = gpu_problem();
        p.batch = 3;
        p.seq_q = part == 0 ? 0 : 5;
        p.seq_kv = part == 0 ? 5 : 0;
        plan = plan_on(context, &p, PLAIN);
        t = stand_ins();
        CHECK_STATUS(attn_forward(plan, &t, NULL, 0, NULL, &why), ATTN_OK, &why);
        attn_plan_destroy(plan);
    }
    attn_close(context);
    fake_end();
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void check_refused(attn_context *context, const char *variant, const attn_problem *p,
                          const char *sentence) {
    attn_error why;
    const attn_status status = attn_variant_check(context, variant, p, &why);
    CHECK_STATUS(status, sentence == NULL ? ATTN_OK : ATTN_UNSUPPORTED, &why);
    CHECK_STR(why.text, sentence == NULL ? "" : sentence);
}

TEST(refused_problems) {
    attn_context *context = begin();
    if (context == NULL) {
        return;
    }
    attn_problem p = gpu_problem();
    check_refused(context, PLAIN, &p, NULL);
    check_refused(context, FULL, &p, NULL);
    check_refused(context, CAUSAL, &p, "causal is NONE, it takes causal problems only");
    p.causal = ATTN_CAUSAL_TOP_LEFT;
    check_refused(context, PLAIN, &p, "causal is TOP_LEFT, it takes no causal mask");
    p.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
    check_refused(context, PLAIN, &p, "causal is BOTTOM_RIGHT, it takes no causal mask");
    check_refused(context, CAUSAL, &p, NULL);
    check_refused(context, FULL, &p, NULL);
    p = gpu_problem();
    p.scale = 0.0f;
    check_refused(context, FULL, &p,
                  "a scale of 0, or beyond 2^64 or 2^-64, is not among its options");
    p = gpu_problem();
    p.sink = true;
    check_refused(context, FULL, &p, "a sink is not among its options");
    p = gpu_problem();
    p.softcap = 3.0f;
    check_refused(context, FULL, &p, NULL);
    check_refused(context, PLAIN, &p, "softcap is not among its options");
    p = gpu_problem();
    p.head_dim = 136;
    check_refused(context, FULL, &p, "head_dim = 136, it takes multiples of 8 up to 128");
    p = gpu_problem();
    p.head_dim_v = 36;
    check_refused(context, FULL, &p, "head_dim_v = 36, it takes multiples of 8 up to 128");
    p = gpu_problem();
    p.alignment = 8;
    check_refused(context, FULL, &p, "alignment = 8, it takes 16 or more");
    attn_close(context);
    fake->reset();
    fake->settings->capability[0] = 100;
    context = fake_open("cuda");
    if (CHECK(context != NULL) && add_made_up_hopper(context, ATTN_FP16)) {
        p = gpu_problem();
        check_refused(context, PLAIN, &p, "it is for sm_90a, this GPU is sm_100");
    }
    attn_close(context);
    fake_end();
}

TEST(refused_strides) {
    static const struct {
        attn_strides strides;
        const char *sentence; /* after the tensor's name; NULL: accepted */
    } cases[] = {
        {{.batch = 20000, .head = 4000, .row = 64}, NULL},
        {{.batch = 0, .head = 4000, .row = 64}, ".batch = 0 elements, it takes 1 to 549755813887"},
        {{.batch = 20000, .head = 0, .row = 64}, ".head = 0 elements, it takes 1 to 549755813887"},
        {{.batch = 20000, .head = 4000, .row = 0}, ".row = 0 elements, it takes 1 to 549755813887"},
        {{.batch = 549755813880, .head = 4000, .row = 64}, NULL},
        {{.batch = 549755813888, .head = 4000, .row = 64},
         ".batch = 549755813888 elements, it takes 1 to 549755813887"},
        {{.batch = 20000, .head = 4004, .row = 64},
         ".head = 4004 elements, it takes strides of a multiple of 16 bytes"},
    };
    attn_context *context = begin();
    if (context == NULL) {
        return;
    }
    for (int which = 0; which < 3; which++) { /* of an output, 0 is no legal stride anyway */
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            attn_problem p = gpu_problem();
            attn_strides *const all[] = {&p.q, &p.k, &p.v};
            char sentence[128] = "";
            *all[which] = cases[i].strides;
            if (cases[i].sentence != NULL) {
                snprintf(sentence, sizeof sentence, "%c%s", "qkv"[which], cases[i].sentence);
            }
            check_refused(context, PLAIN, &p, cases[i].sentence != NULL ? sentence : NULL);
        }
    }
    attn_problem p = gpu_problem();
    p.o = (attn_strides){.batch = 549755813888, .head = 4000, .row = 64};
    check_refused(context, PLAIN, &p,
                  "o.batch = 549755813888 elements, it takes 1 to 549755813887");
    attn_close(context);
    fake_end();
}

/* ---- calls ----------------------------------------------------------------------------------- */

static attn_tensors moved(int64_t bytes) {
    attn_tensors t = stand_ins();
    t.q = (const char *)t.q + bytes;
    t.k = (const char *)t.k + 2 * bytes;
    t.v = (const char *)t.v + 3 * bytes;
    t.o = (char *)t.o + 4 * bytes;
    return t;
}

/* Whether the maps of a launch lie where its arguments do. */
static bool maps_follow(const struct fake_call *launch) {
    const struct attn_args a = args_of(launch);
    const void *const addresses[] = {a.q, a.k, a.v, a.o};
    bool follow = true;
    for (int i = 0; i < 4; i++) {
        follow = follow && map_of(launch, i).address == (uintptr_t)addresses[i];
    }
    return follow;
}

TEST(each_call_has_its_addresses) {
    attn_context *context = begin();
    const attn_problem p = gpu_problem();
    attn_error why;
    if (context == NULL) {
        return;
    }
    attn_plan *plan = plan_on(context, &p, PLAIN);
    CHECK_EQ(calls_of("cuTensorMapEncodeTiled"), 4);
    fake->forget();
    for (int i = 0; i < 6; i++) {
        const attn_tensors t = moved(16 * (i % 3));
        CHECK_STATUS(attn_forward(plan, &t, NULL, 0, NULL, &why), ATTN_OK, &why);
    }
    for (int i = 0; i < 6; i++) {
        const attn_tensors t = moved(16 * (i % 3));
        const struct fake_call *launch = launch_at(i);
        if (CHECK(launch != NULL)) {
            CHECK(maps_follow(launch));
            CHECK(args_of(launch).q == t.q && args_of(launch).o == t.o);
        }
    }
    attn_plan_destroy(plan);
    attn_close(context);
    fake_end();
}

enum { THREADS = 2, CALLS = 300 };

struct worker {
    pthread_t thread;
    const attn_plan *plan;
    int number, failed;
};

static void *work(void *argument) {
    struct worker *worker = argument;
    for (int i = 0; i < CALLS; i++) {
        const attn_tensors t = moved(16 * (THREADS * i + worker->number));
        worker->failed += attn_forward(worker->plan, &t, NULL, 0, NULL, NULL) != ATTN_OK;
    }
    return NULL;
}

/* Two threads, one plan: every launch has the maps of its own tensors, and none is lost. */
TEST(threads_share_a_plan) {
    attn_context *context = begin();
    const attn_problem p = gpu_problem();
    struct worker workers[THREADS];
    bool seen[THREADS * CALLS] = {false};
    if (context == NULL) {
        return;
    }
    attn_plan *plan = plan_on(context, &p, PLAIN);
    fake->forget();
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.plan = plan, .number = i};
        CHECK(pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(workers[i].thread, NULL);
        CHECK_EQ(workers[i].failed, 0);
    }
    const char *first = stand_ins().q;
    size_t count;
    int launches = 0, wrong = 0;
    const struct fake_call *calls = fake->calls(&count);
    for (size_t i = 0; i < count; i++) {
        if (strcmp(calls[i].name, "cuLaunchKernelEx") == 0) {
            const ptrdiff_t which = ((const char *)args_of(&calls[i]).q - first) / 16;
            wrong += !maps_follow(&calls[i]) || which < 0 || which >= THREADS * CALLS ||
                     seen[which % (THREADS * CALLS)];
            seen[which % (THREADS * CALLS)] = true;
            launches++;
        }
    }
    CHECK_EQ(launches, THREADS * CALLS);
    CHECK_EQ(wrong, 0);
    attn_plan_destroy(plan);
    attn_close(context);
    fake_end();
}

/* ---- the workspace --------------------------------------------------------------------------- */

/* Kernels with a mask take tiles by two counters, which need no initialisation. */
TEST(counters) {
    attn_context *context = begin();
    const attn_tensors t = stand_ins();
    attn_error why;
    _Alignas(16) unsigned long long counters[2] = {7, 7};
    if (context == NULL) {
        return;
    }
    const attn_problem p = gpu_problem();
    attn_plan *plan = plan_on(context, &p, PLAIN);
    CHECK_EQ(attn_workspace_size(plan), 0);
    attn_plan_destroy(plan);
    plan = plan_on(context, &p, FULL);
    CHECK_EQ(attn_workspace_size(plan), sizeof counters);
    fake->forget();
    CHECK_STATUS(attn_forward(plan, &t, NULL, 0, NULL, &why), ATTN_INVALID, &why);
    CHECK_STATUS(attn_forward(plan, &t, counters, 8, NULL, &why), ATTN_INVALID, &why);
    CHECK_CONTAINS(why.text, "workspace_size = 8, expected at least 16");
    CHECK_STATUS(attn_forward(plan, &t, counters, sizeof counters, NULL, &why), ATTN_OK, &why);
    const struct fake_call *launch = launch_at(0);
    CHECK(launch != NULL && args_of(launch).counters == counters);
    CHECK(counters[0] == 7 && counters[1] == 7);
    attn_plan_destroy(plan);
    attn_close(context);
    fake_end();
}

/* ---- a driver that says no ------------------------------------------------------------------- */

TEST(driver_refuses) {
    attn_context *context = begin();
    const attn_problem p = gpu_problem();
    const attn_tensors t = stand_ins();
    attn_plan *plan = NULL;
    attn_error why;
    if (context == NULL) {
        return;
    }
    for (int nth = 1; nth <= 4; nth++) {
        static const char *const sentences[] = {"the tensor map of q, in boxes of 128 rows, cannot",
                                                "the tensor map of k, in boxes of 64 rows, cannot",
                                                "the tensor map of v, in boxes of 64 rows, cannot",
                                                "the tensor map of o, in boxes of 64 rows, cannot"};
        fake->fail("cuTensorMapEncodeTiled", nth, FAKE_INVALID_VALUE);
        CHECK_STATUS(attn_plan_create(context, &p, ATTN_BY_NAME(PLAIN), &plan, &why), ATTN_DEVICE,
                     &why);
        CHECK_CONTAINS(why.text, sentences[nth - 1]);
        CHECK(plan == NULL);
        CHECK_EQ(fake->depth(), 0);
    }
    plan = plan_on(context, &p, PLAIN);
    for (int nth = 1; nth <= 4; nth++) {
        fake->forget();
        fake->fail("cuTensorMapReplaceAddress", nth, FAKE_INVALID_VALUE);
        CHECK_STATUS(attn_forward(plan, &t, NULL, 0, NULL, &why), ATTN_DEVICE, &why);
        CHECK_CONTAINS(why.text, "CUDA error 1");
        CHECK_EQ(calls_of("cuLaunchKernelEx"), 0);
        CHECK_EQ(fake->depth(), 0);
    }
    CHECK_STATUS(attn_forward(plan, &t, NULL, 0, NULL, &why), ATTN_OK, &why);
    attn_plan_destroy(plan);
    attn_close(context);
    fake_end();
}

/* Persistent CTAs: one per tile, but no more than the fake driver has SMs (20). */
TEST(resident_grids) {
    attn_context *context = begin();
    const attn_tensors t = stand_ins();
    attn_error why;
    if (context == NULL) {
        return;
    }
    for (int heads = 9; heads <= 11; heads++) {
        attn_problem p = gpu_problem();
        p.batch = 1;
        p.heads_q = heads;
        p.seq_q = 129; /* two tiles */
        for (int extra = 0; extra < 2; extra++, p.heads_q = 2 * heads + 1, p.seq_q = 128) {
            attn_plan *plan = plan_on(context, &p, PLAIN);
            const int64_t tiles = extra ? p.heads_q : 2 * p.heads_q;
            fake->forget();
            CHECK_STATUS(attn_forward(plan, &t, NULL, 0, NULL, &why), ATTN_OK, &why);
            const struct fake_call *launch = launch_at(0);
            if (CHECK(launch != NULL)) {
                CHECK_EQ(launch->grid[0], tiles < 20 ? tiles : 20); /* of 18 to 23 */
                CHECK_EQ(args_of(launch).tiles_q, extra ? 1 : 2);
                CHECK_EQ(args_of(launch).heads_all, p.heads_q);
            }
            attn_plan_destroy(plan);
        }
    }
    attn_close(context);
    fake_end();
}

/* A grid of three dimensions, whose second and third have an end. */
TEST(split_grids) {
    attn_context *context = begin();
    const attn_tensors t = stand_ins();
    attn_error why;
    if (context == NULL) {
        return;
    }
    attn_problem p = gpu_problem();
    p.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
    p.seq_q = 65;
    p.batch = 3;
    attn_plan *plan = plan_on(context, &p, SPLIT);
    CHECK_EQ(attn_workspace_size(plan), 0);
    fake->forget();
    CHECK_STATUS(attn_forward(plan, &t, NULL, 0, NULL, &why), ATTN_OK, &why);
    const struct fake_call *launch = launch_at(0);
    if (CHECK(launch != NULL)) {
        CHECK(launch->grid[0] == 4 && launch->grid[1] == 2 && launch->grid[2] == 3);
        CHECK(!launch->early);
    }
    fake->forget();
    fake->settings->capturing = true;
    CHECK_STATUS(attn_forward(plan, &t, NULL, 0, NULL, &why), ATTN_OK, &why);
    launch = launch_at(0);
    CHECK(launch != NULL && launch->early);
    fake->forget();
    fake->fail("cuStreamIsCapturing", 1, FAKE_CAPTURE_UNSUPPORTED);
    CHECK_STATUS(attn_forward(plan, &t, NULL, 0, NULL, &why), ATTN_OK, &why);
    launch = launch_at(0);
    CHECK(launch != NULL && !launch->early);
    fake->settings->capturing = false;
    fake->fail("cuLaunchKernelEx", 1, FAKE_OUT_OF_RESOURCES);
    CHECK_STATUS(attn_forward(plan, &t, NULL, 0, NULL, &why), ATTN_DEVICE, &why);
    CHECK_CONTAINS(why.text, "(grid 4 x 2 x 3, block 256 x 1 x 1, 131072 bytes");
    attn_plan_destroy(plan);
    p = gpu_problem();
    p.batch = 65535;
    check_refused(context, SPLIT, &p, NULL);
    p.batch = 65536;
    check_refused(context, SPLIT, &p, "batch = 65536, it takes at most 65535");
    p = gpu_problem();
    p.seq_q = 64 * 65535;
    check_refused(context, SPLIT, &p, NULL);
    p.seq_q++;
    check_refused(context, SPLIT, &p, "seq_q = 4194241, it takes at most 4194240");
    check_refused(context, PLAIN, &p, NULL);
    p.heads_q = 64; /* rows of all heads of the group make one tile */
    p.heads_kv = 1;
    p.packed = true;
    p.total_q = p.total_kv = 100;
    p.seq_q = INT32_MAX / 64 - 1;
    check_refused(context, MIXED, &p, "seq_q = 33554430, it takes at most 33554429");
    p.seq_q--;
    check_refused(context, MIXED, &p, NULL);
    attn_close(context);
    fake_end();
}

/* A tile that no box can hold. */
TEST(boxes_have_an_end) {
    attn_context *context = begin();
    attn_variant variant = made_up("fwd_hopper_fp16_d64_257x64", ATTN_FP16);
    const attn_problem p = gpu_problem();
    attn_plan *plan = NULL;
    char text[1024];
    attn_error why;
    if (context == NULL) {
        return;
    }
    variant.family = "fwd_hopper";
    variant.block_q = 257;
    made_up_ptx(variant.name, "sm_90a", text);
    CHECK_STATUS(attn_variant_add(context, &variant, text, strlen(text), &why), ATTN_OK, &why);
    CHECK_STATUS(attn_plan_create(context, &p, ATTN_BY_NAME(variant.name), &plan, &why),
                 ATTN_DEVICE, &why);
    CHECK_CONTAINS(why.text, "the tensor map of q, in boxes of 257 rows, cannot be made");
    attn_close(context);
    fake_end();
}

TEST_MAIN()
