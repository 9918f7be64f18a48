/* SPDX-License-Identifier: Apache-2.0
 *
 * test_barrier.c - bar, barrier.cta and barrier.cluster: which threads wait, what that orders, and
 * each misuse.
 */
#include "vgpu/exec_fixture.h"

static uint32_t mirrored(uint32_t thread, uint32_t n) {
    return 127 - thread + n;
}

/* Each thread writes its slot and reads that of the thread at the other end. */
#define MIRROR(barrier)                                                                            \
    K("mov.u32 %r9, tile; mad.lo.u32 %r3, %r0, 4, %r9; st.shared.u32 [%r3], %r0;\n" barrier "\n"   \
      "xor.b32 %r4, %r0, 127; mad.lo.u32 %r3, %r4, 4, %r9; ld.shared.u32 %r2, [%r3];\n"            \
      "add.u32 %r2, %r2, %r1;")

/* barrier.sync in a branch: threads count, not warps. */
#define IN_BRANCHES                                                                                \
    "and.b32 %r5, %r0, 1; setp.ne.u32 %p1, %r5, 0; @%p1 bra ODD;\n"                                \
    "barrier.sync 3; bra JOIN; ODD: barrier.sync 3; JOIN:"

TEST(what_was_written_before_a_barrier_is_read_behind_it) {
    static const char *const BARRIERS[] = {
        MIRROR("bar.sync 0;"),
        MIRROR("bar.sync 15, 128;"),
        MIRROR("barrier.sync 0;"),
        MIRROR("barrier.cta.sync.aligned 4, 128;"),
        MIRROR("mov.u32 %r7, 5; mov.u32 %r8, 128; bar.sync %r7, %r8;"),
        MIRROR("setp.eq.u32 %p2, %r0, 0; barrier.cta.red.popc.aligned.u32 %r8, 2, %p2;"),
        MIRROR("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"),
        MIRROR(IN_BRANCHES),
    };
    for (size_t i = 0; i < sizeof BARRIERS / sizeof BARRIERS[0]; i++) {
        for (int async = 0; async < 4; async++) {
            struct bench *bench =
                bench_with(2, 128, (uint32_t)i, (struct bench_options){.async = (vgpu_async)async});
            bench_run(bench, BARRIERS[i]);
            bench_clean(bench);
            for (uint32_t t = 0; t < 256; t++) {
                CHECK_MSG(bench->out[t] == mirrored(t % 128, bench->n), "barrier %zu thread %u", i,
                          t);
            }
            bench_free(bench);
        }
    }
}

TEST(without_a_barrier_it_is_a_race) {
    struct bench *bench = bench_make(1, 128, 0);
    bench_run(bench, MIRROR("bar.warp.sync -1;"));
    CHECK(bench_find(bench, "race").text != NULL);
    bench_free(bench);
    bench = bench_make(1, 128, 0);
    bench_run(bench,
              MIRROR("barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned;"));
    CHECK(bench_find(bench, "race").text != NULL);
    bench_free(bench);
}

static uint32_t from_producer(uint32_t thread, uint32_t n) {
    (void)n;
    return thread < 32 ? 0 : 5 * (thread % 32) + 45 * 1000;
}

/* Warp 0 fills a buffer ten times, warps 1 and 2 read it: full is barrier 1, empty barrier 2. */
TEST(a_producer_and_two_consumers) {
    for (int async = 0; async < 4; async++) {
        struct bench *bench =
            bench_with(1, 96, 0, (struct bench_options){.async = (vgpu_async)async});
        bench_expect(
            bench,
            K("mov.u32 %r9, tile; mov.u32 %r10, %laneid; mad.lo.u32 %r9, %r10, 4, %r9;\n"
              "mov.u32 %r2, 0; mov.u32 %r4, 0; setp.ge.u32 %p1, %r0, 32; @%p1 bra CONSUMER;\n"
              "FILL: bar.sync 2, 96; mad.lo.u32 %r5, %r4, 1000, 0; and.b32 %r6, %r4, 1;\n"
              "mad.lo.u32 %r5, %r6, %r10, %r5; st.shared.u32 [%r9], %r5; bar.arrive 1, 96;\n"
              "add.u32 %r4, %r4, 1; setp.lt.u32 %p2, %r4, 10; @%p2 bra FILL; bra JOIN;\n"
              "CONSUMER: bar.arrive 2, 96; bar.sync 1, 96; ld.shared.u32 %r5, [%r9];\n"
              "add.u32 %r2, %r2, %r5; add.u32 %r4, %r4, 1; setp.lt.u32 %p2, %r4, 10;\n"
              "@%p2 bra CONSUMER;\n"
              "JOIN:"),
            96, from_producer);
    }
}

static uint32_t reductions(uint32_t thread, uint32_t n) {
    (void)thread;
    return n + (n == 100 ? 1000 : 0) + (n != 0 ? 2000 : 0); /* 100 threads */
}

TEST(reductions_over_a_block) {
    for (uint32_t n = 0; n <= 100; n += 25) {
        bench_expect(bench_make(1, 100, n),
                     K("setp.lt.u32 %p1, %r0, %r1; bar.red.popc.u32 %r2, 0, %p1;\n"
                       "bar.red.and.pred %p2, 0, %p1; selp.u32 %r3, 1000, 0, %p2;\n"
                       "bar.red.or.pred %p3, 1, 128, %p1; selp.u32 %r4, 2000, 0, %p3;\n"
                       "add.u32 %r2, %r2, %r3; add.u32 %r2, %r2, %r4;"),
                     100, reductions);
    }
}

static uint32_t of_the_cluster(uint32_t thread, uint32_t n) {
    (void)n;
    return (thread / 32 ^ 1) * 10;
}

/* Each CTA reads what the other one of its cluster wrote into its own shared memory. */
#define NEIGHBOUR(before, after)                                                                   \
    K("mov.u32 %r9, tile; mov.u32 %r3, %ctaid.x; mul.lo.u32 %r3, %r3, 10;\n"                       \
      "setp.eq.u32 %p1, %r0, 0; @%p1 st.shared.u32 [%r9], %r3;\n" before "\n"                      \
      "mov.u32 %r4, %cluster_ctarank; xor.b32 %r4, %r4, 1; mapa.shared::cluster.u32 %r5, %r9, "    \
      "%r4;\n"                                                                                     \
      "ld.shared::cluster.u32 %r2, [%r5];\n" after)
#define CLUSTER_SYNC "barrier.cluster.arrive.release; barrier.cluster.wait.acquire;\n"

TEST(clusters_synchronise) {
    struct bench *bench = bench_make(6, 32, 0);
    bench->dims.cluster[0] = 2;
    bench->dims.cluster[1] = bench->dims.cluster[2] = 1;
    bench_expect(bench, NEIGHBOUR(CLUSTER_SYNC, CLUSTER_SYNC), 192, of_the_cluster);
}

TEST(cluster_barriers_out_of_order) {
    struct bench *bench = bench_make(1, 32, 0);
    bench_run(bench, K("mov.u32 %r2, 0; barrier.cluster.wait;"));
    bench_found(bench, "barrier-count", "without a barrier.cluster.arrive");
    bench_free(bench);
    bench = bench_make(1, 32, 0);
    bench_run(bench, K("mov.u32 %r2, 0; barrier.cluster.arrive; barrier.cluster.arrive;\n"
                       "barrier.cluster.wait;"));
    bench_found(bench, "barrier-count", "second time");
    bench_free(bench);
}

static uint32_t first_warp_only(uint32_t thread, uint32_t n) {
    return thread < 32 ? n : 0xaaaaaaaa;
}

/* The first warp waits already when the others exit. */
TEST(warps_that_exit_are_not_waited_for) {
    static const char *const BARRIERS[] = {"bar.sync 0;", "barrier.sync 0;",
                                           "barrier.cluster.arrive; barrier.cluster.wait;"};
    for (size_t i = 0; i < sizeof BARRIERS / sizeof BARRIERS[0]; i++) {
        char ptx[4096];
        snprintf(ptx, sizeof ptx, "%s%s%s",
                 PTX_HEAD PTX_ENTRY
                 "mov.u32 %r2, %r1; setp.lt.u32 %p1, %r0, 32; @%p1 bra FIRST; mov.u32 %r3, 0;\n"
                 "LOOP: add.u32 %r3, %r3, 1; setp.lt.u32 %p2, %r3, 20000; @%p2 bra LOOP; exit;\n"
                 "FIRST: ",
                 BARRIERS[i], "\n" PTX_STORE "ret;\n}\n");
        bench_expect(bench_make(1, 96, 8), ptx, 96, first_warp_only);
    }
}

/* Warp 0 polls an mbarrier that warp 1 arrives at much later; or never. */
#define POLL(arrive)                                                                               \
    K("mov.u32 %r9, tile; mov.u32 %r2, %r1; setp.eq.u32 %p1, %r0, 0;\n"                            \
      "@%p1 mbarrier.init.shared::cta.b64 [%r9], 32; bar.sync 0;\n"                                \
      "setp.lt.u32 %p2, %r0, 32; @%p2 bra WAIT; mov.u32 %r3, 0;\n"                                 \
      "LOOP: add.u32 %r3, %r3, 1; setp.lt.u32 %p3, %r3, 20000; @%p3 bra LOOP;\n" arrive            \
      "bra JOIN;\n"                                                                                \
      "WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p4, [%r9], 0; @!%p4 bra WAIT;\n"            \
      "JOIN:")

static uint32_t all_threads(uint32_t thread, uint32_t n) {
    (void)thread;
    return n;
}

TEST(a_poll_is_tried_again_when_something_happened) {
    bench_expect(bench_make(1, 64, 6), POLL("mbarrier.arrive.shared::cta.b64 %rd1, [%r9];\n"), 64,
                 all_threads);
    struct bench *bench = bench_make(1, 64, 6);
    CHECK_EQ(bench_run(bench, POLL("")), VGPU_FAULT);
    bench_found(bench, "deadlock", "warp 0 at PTX line 13: the mbarrier");
    bench_free(bench);
}

/* ---- what goes wrong ---- */

static struct bench *run_wrong(uint32_t block, const char *ptx, vgpu_status expected) {
    struct bench *bench = bench_make(1, block, 0);
    CHECK_EQ(bench_run(bench, ptx), expected);
    return bench;
}

TEST(a_dead_lock_names_each_warp) {
    struct bench *bench = run_wrong(128,
                                    K("mov.u32 %r2, 0; setp.lt.u32 %p1, %r0, 64; @%p1 bra LOW;\n"
                                      "bar.sync 1, 96; bra JOIN;\n"
                                      "LOW: bar.sync 2, 128;\n"
                                      "JOIN:"),
                                    VGPU_FAULT);
    bench_found(bench, "deadlock", "warps 0 to 1 at PTX line 10: barrier 2 (64 of 128");
    bench_found(bench, "deadlock", "warps 2 to 3 at PTX line 9: barrier 1 (64 of 96");
    bench_free(bench);
}

/* Twenty times warp 0 arrives and works for longer than a turn, and warp 1 waits for it. */
#define TURNS(hears, replies)                                                                      \
    K("mov.u32 %r2, 0; mov.u32 %r3, 20; setp.ge.u32 %p1, %r0, 32; @%p1 bra SECOND;\n"              \
      "FIRST: bar.arrive 1, 64; mov.u32 %r4, 3000;\n"                                              \
      "WORK: sub.u32 %r4, %r4, 1; setp.ne.u32 %p2, %r4, 0; @%p2 bra WORK;\n" hears                 \
      "sub.u32 %r3, %r3, 1; setp.ne.u32 %p2, %r3, 0; @%p2 bra FIRST; bra JOIN;\n"                  \
      "SECOND: bar.sync 1, 64;" replies                                                            \
      "sub.u32 %r3, %r3, 1; setp.ne.u32 %p2, %r3, 0; @%p2 bra SECOND;\n"                           \
      "JOIN:")

/* Two arrivals of the same warp complete a barrier that is meant for both: whether that happens is
 * a matter of timing, and the random order delays a warp. */
TEST(warps_that_only_happen_to_keep_in_step) {
    for (int i = 0; i < 4 * 8; i++) {
        const struct bench_options options = {.async = (vgpu_async)(i % 4), .seed = 1 + i / 4};
        const bool random = options.async == VGPU_ASYNC_RANDOM;
        struct bench *bench = bench_with(1, 64, 0, options);
        CHECK_EQ(bench_run(bench, TURNS("", "")), random ? VGPU_FAULT : VGPU_OK);
        if (random) {
            bench_found(bench, "deadlock", "warp 1 at PTX line 12: barrier 1 (32 of 64");
        }
        bench_free(bench);
        bench = bench_with(1, 64, 0, options);
        bench_run(bench, TURNS("bar.sync 2, 64;\n", "bar.arrive 2, 64;\n"));
        bench_clean(bench);
        bench_free(bench);
    }
}

/* Half a warp waits at a barrier for lanes that loop for more than a turn and branch there: also
 * where a quantum ends just as they arrive. */
TEST(lanes_that_meet_as_a_quantum_ends) {
    for (uint64_t seed = 1; seed <= 40; seed++) {
        struct bench *bench =
            bench_with(1, 32, 0, (struct bench_options){.async = VGPU_ASYNC_RANDOM, .seed = seed});
        CHECK_EQ(bench_run(bench, K("mov.u32 %r3, 40; setp.ge.u32 %p1, %r0, 16;\n"
                                    "NEXT: mov.u32 %r2, 2100; @%p1 bra JOIN;\n"
                                    "WORK: sub.u32 %r2, %r2, 1; setp.ne.u32 %p2, %r2, 0;\n"
                                    "@%p2 bra WORK; bra JOIN; mov.u32 %r2, 1;\n"
                                    "JOIN: bar.sync 0; sub.u32 %r3, %r3, 1;\n"
                                    "setp.ne.u32 %p2, %r3, 0; @%p2 bra NEXT;\n"
                                    "mov.u32 %r2, 0;")),
                 VGPU_OK);
        bench_clean(bench);
        bench_free(bench);
    }
}

TEST(a_dead_lock_ends_the_launch_for_any_number_of_threads) {
    for (int32_t threads = 1; threads <= 4; threads++) {
        struct bench *bench = bench_with(20, 64, 0, (struct bench_options){.threads = threads});
        CHECK_EQ(bench_run(bench, K("mov.u32 %r2, %ctaid.x; setp.eq.u32 %p1, %r2, 7;\n"
                                    "@%p1 bar.sync 3, 96;")),
                 VGPU_FAULT);
        const vgpu_finding finding = bench_find(bench, "deadlock");
        CHECK(finding.text != NULL && finding.cta[0] == 7 && finding.count == 1);
        bench_free(bench);
    }
}

TEST(lanes_at_different_barriers) {
    struct bench *bench = run_wrong(64,
                                    K("mov.u32 %r2, 0; and.b32 %r3, %r0, 16;\n"
                                      "setp.eq.u32 %p1, %r3, 0; @%p1 bra LOW;\n"
                                      "bar.sync 0; bra JOIN;\n"
                                      "LOW: bar.sync 0;\n"
                                      "JOIN:"),
                                    VGPU_OK);
    bench_found(bench, "divergent-barrier", "lanes 0x0000ffff at PTX line 11 (bar)");
    bench_free(bench);
    bench = run_wrong(64,
                      K("mov.u32 %r2, 0; and.b32 %r3, %r0, 16; setp.eq.u32 %p1, %r3, 0;\n"
                        "@%p1 bar.sync 0; bar.sync 0;"),
                      VGPU_OK);
    bench_found(bench, "divergent-barrier", "the guard of bar");
    bench_free(bench);
}

TEST(counts_that_differ) {
    struct bench *bench = run_wrong(128,
                                    K("mov.u32 %r2, 0; setp.lt.u32 %p1, %r0, 32; @%p1 bra LOW;\n"
                                      "bar.sync 1, 128; bra JOIN;\n"
                                      "LOW: bar.sync 1, 64;\n"
                                      "JOIN:"),
                                    VGPU_FAULT);
    bench_found(bench, "barrier-count", "barrier 1 for 128 threads, but PTX line 10");
    bench_free(bench);
    bench = run_wrong(128, K("mov.u32 %r2, 0; bar.sync 1, 100;"), VGPU_OK);
    bench_found(bench, "barrier-count", "multiple of 32");
    bench_free(bench);
}

TEST(a_barrier_that_does_not_exist) {
    struct bench *bench = run_wrong(32, K("mov.u32 %r2, 16; bar.sync %r2;"), VGPU_OK);
    bench_found(bench, "illegal-operand", "barrier 16");
    bench_free(bench);
}

TEST(registers_that_an_sm_does_not_have) {
    struct bench *bench =
        run_wrong(512, K("mov.u32 %r2, 0; setmaxnreg.inc.sync.aligned.u32 240;"), VGPU_OK);
    bench_found(bench, "setmaxnreg", "an SM has 65536");
    bench_free(bench);
    bench = run_wrong(384,
                      K("mov.u32 %r2, 0; setp.lt.u32 %p1, %r0, 128; @%p1 bra LOW;\n"
                        "setmaxnreg.inc.sync.aligned.u32 240; bra JOIN;\n"
                        "LOW: setmaxnreg.dec.sync.aligned.u32 24;\n"
                        "JOIN:"),
                      VGPU_OK);
    bench_clean(bench);
    bench_free(bench);
}

/* A thread starts with 64 registers: 4 CTAs of 256 threads share an SM. */
#define BOUNDED(body)                                                                              \
    PTX_HEAD ".visible .entry k(.param .u64 out, .param .u32 n)\n.maxntid 256, 1, 1\n"             \
             ".minnctapersm 4\n{\n" PTX_REGISTERS                                                  \
             "mov.u32 %r0, %tid.x; setp.lt.u32 %p1, %r0, 128;\n" body "\nret;\n}\n"

TEST(registers_that_others_must_give_back) {
    struct bench *bench = run_wrong(256,
                                    BOUNDED("@%p1 bra LOW;\n"
                                            "setmaxnreg.inc.sync.aligned.u32 104; bra JOIN;\n"
                                            "LOW: setmaxnreg.dec.sync.aligned.u32 24;\n"
                                            "JOIN:"),
                                    VGPU_OK);
    bench_clean(bench);
    bench_free(bench);
    bench = run_wrong(256,
                      BOUNDED("@%p1 bra LOW;\n"
                              "setmaxnreg.inc.sync.aligned.u32 112; bra JOIN;\n"
                              "LOW: setmaxnreg.dec.sync.aligned.u32 24;\n"
                              "JOIN:"),
                      VGPU_FAULT);
    bench_found(bench, "deadlock", "registers that other warps of the CTA must give back");
    bench_free(bench);
    bench = run_wrong(256,
                      BOUNDED("setmaxnreg.inc.sync.aligned.u32 64;"
                              "setmaxnreg.dec.sync.aligned.u32 72;"),
                      VGPU_OK);
    bench_found(bench, "setmaxnreg", "dec to 72 registers, but a thread has 64");
    bench_free(bench);
}

TEST(setmaxnreg_in_a_part_of_a_warpgroup) {
    struct bench *bench = run_wrong(128,
                                    BOUNDED("setp.lt.u32 %p1, %r0, 64; @%p1 bra JOIN;\n"
                                            "setmaxnreg.dec.sync.aligned.u32 24;\n"
                                            "JOIN:"),
                                    VGPU_OK);
    bench_found(bench, "setmaxnreg", "has ended and did not execute it");
    bench_free(bench);
}

TEST(lanes_that_store_different_values_to_one_address) {
    static const char *const STORES[] = {"shr.u32 %r3, %r0, 1; shl.b32 %r3, %r3, 2;\n", /* pairs */
                                         "mov.u32 %r3, 0;\n"};                          /* all */
    for (size_t i = 0; i < 2; i++) {
        for (int same = 0; same < 2; same++) {
            char ptx[2048];
            snprintf(ptx, sizeof ptx,
                     "%s%s mov.u32 %%r4, tile; add.u32 %%r3, %%r3, %%r4; mov.u32 %%r2, %s;\n"
                     "st.shared.u32 [%%r3], %%r2; %s ret;\n}\n",
                     PTX_HEAD PTX_ENTRY, STORES[i], same ? "7" : "%r0", PTX_STORE);
            struct bench *bench = run_wrong(32, ptx, VGPU_OK);
            if (same) {
                bench_clean(bench);
            } else {
                bench_found(bench, "race-warp", "store different values to shared \"tile\" + 0");
            }
            bench_free(bench);
        }
    }
}

/* Threads of two warps store to one place; %r3 is where in `tile`, %r4 what. */
TEST(warps_that_store_to_one_address) {
    static const struct {
        const char *code, *kind;
    } CASES[] = {
        {"mov.u32 %r4, 7; st.shared.u32 [%r3], %r4;", "race-same-value"},
        {"shr.u32 %r4, %r0, 5; st.shared.u32 [%r3], %r4;", "race"},
        {"st.shared.v2.u32 [%r3], {%r1, %r1};", "race-same-value"},
        {"shr.u32 %r4, %r0, 5; st.shared.v2.u32 [%r3], {%r1, %r4};", "race"},
        {"st.shared.u8 [%r3], 1;", "race-same-value"},
        {"st.global.u32 [%rd0], 9;", "race-same-value"},
        {"shr.u32 %r4, %r0, 5; st.global.u32 [%rd0], %r4;", "race"},
        /* of the second warp only the last lane stores another value */
        {"setp.eq.u32 %p1, %r0, 63; selp.u32 %r4, 8, 7, %p1; st.shared.u32 [%r3], %r4;", "race"},
        {"setp.eq.u32 %p1, %r0, 63; selp.u32 %r4, 8, 7, %p1; st.global.u32 [%rd0], %r4;", "race"},
        /* a plain store and a volatile one; a store and a read */
        {"setp.lt.u32 %p1, %r0, 32; @%p1 st.shared.u32 [%r3], 7;\n"
         "@!%p1 st.volatile.shared.u32 [%r3], 7;",
         "race"},
        {"setp.lt.u32 %p1, %r0, 32; @!%p1 st.shared.u32 [%r3], 7; @!%p1 bra JOIN;\n"
         "ld.shared.u32 %r4, [%r3];\nJOIN:",
         "race"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        char ptx[2048];
        snprintf(ptx, sizeof ptx, "%s mov.u32 %%r3, tile;\n%s\nret;\n}\n", PTX_HEAD PTX_ENTRY,
                 CASES[i].code);
        struct bench *bench = run_wrong(64, ptx, VGPU_OK);
        const bool same = strcmp(CASES[i].kind, "race") != 0;
        CHECK_MSG(bench_find(bench, CASES[i].kind).text != NULL, "case %zu: no %s", i,
                  CASES[i].kind);
        CHECK_MSG((vgpu_error_count(bench->gpu) == 0) == same, "case %zu: %zu errors", i,
                  vgpu_error_count(bench->gpu));
        bench_free(bench);
    }
}

TEST_MAIN()
