/* SPDX-License-Identifier: Apache-2.0
 *
 * test_exec.c - running warps: divergence and reconvergence, loops, special registers, ends,
 * limits, clusters that wait for each other, and the same result from any number of threads.
 */
#include "vgpu/exec_fixture.h"

/* ---- divergence ---- */

static uint32_t collatz(uint32_t thread, uint32_t n) {
    uint32_t x = thread + n, steps = 0;
    while (x > 1) {
        x = x % 2 == 0 ? x / 2 : 3 * x + 1;
        steps++;
    }
    return steps;
}

static const char COLLATZ[] = K("add.u32 %r3, %r0, %r1;\n"
                                "mov.u32 %r4, %ntid.x; mov.u32 %r5, %ctaid.x;\n"
                                "mad.lo.u32 %r3, %r4, %r5, %r3;\n"
                                "mov.u32 %r2, 0;\n"
                                "LOOP: setp.le.u32 %p1, %r3, 1; @%p1 bra DONE;\n"
                                "and.b32 %r6, %r3, 1; setp.eq.u32 %p2, %r6, 0; @%p2 bra EVEN;\n"
                                "mad.lo.u32 %r3, %r3, 3, 1; bra NEXT;\n"
                                "EVEN: shr.u32 %r3, %r3, 1;\n"
                                "NEXT: add.u32 %r2, %r2, 1; bra.uni LOOP;\n"
                                "DONE:");

TEST(lanes_go_round_a_loop_as_often_as_each_must) {
    bench_expect(bench_make(3, 77, 5), COLLATZ, 3 * 77, collatz);
}

static uint32_t all_lanes(uint32_t thread, uint32_t n) {
    (void)thread, (void)n;
    return 0xffffffff;
}

TEST(lanes_meet_again_behind_if_and_loop) {
    bench_expect(bench_make(1, 64, 0),
                 K("and.b32 %r3, %r0, 7; mov.u32 %r4, 0;\n"
                   "setp.lt.u32 %p1, %r3, 4; @%p1 bra LOW;\n"
                   "setp.lt.u32 %p2, %r3, 6; @!%p2 bra HIGH; add.u32 %r4, %r4, 1; bra JOIN;\n"
                   "HIGH: add.u32 %r4, %r4, 2; bra JOIN;\n"
                   "LOW: add.u32 %r4, %r4, 1; setp.lt.u32 %p3, %r4, %r0; @%p3 bra LOW;\n"
                   "JOIN: activemask.b32 %r2;"),
                 64, all_lanes);
}

static uint32_t jump_table(uint32_t thread, uint32_t n) {
    static const uint32_t VALUES[] = {10, 20, 30};
    return VALUES[thread % 3] + n;
}

TEST(brx_goes_where_each_lane_says) {
    static const char KERNEL[] = K("rem.u32 %r3, %r0, 3;\n"
                                   "TABLE: .branchtargets A, B, C;\n"
                                   "brx.idx %r3, TABLE;\n"
                                   "A: mov.u32 %r2, 10; bra END;\n"
                                   "B: mov.u32 %r2, 20; bra END;\n"
                                   "C: mov.u32 %r2, 30;\n"
                                   "END: add.u32 %r2, %r2, %r1;");
    bench_expect(bench_make(1, 40, 7), KERNEL, 40, jump_table);
    struct bench *bench = bench_make(1, 32, 7);
    bench_run(bench, K("add.u32 %r3, %r0, 1;\n"
                       "TABLE: .branchtargets A, B;\n"
                       "brx.idx %r3, TABLE; A: B: mov.u32 %r2, 1;"));
    bench_found(bench, "illegal-operand", "a table of 2");
    bench_free(bench);
}

static uint32_t lock_result(uint32_t thread, uint32_t n) {
    (void)thread;
    return n;
}

/* Each lane of a warp takes the same lock: lanes that spin must let the holder go on. The counter
 * is read after all have been there. */
TEST(a_spin_lock_inside_a_warp_ends) {
    struct bench *bench = bench_with(1, 64, 64, (struct bench_options){.max_steps = 100000000});
    bench_expect(bench,
                 K("setp.ne.u32 %p1, %r0, 0; mov.u32 %r9, tile;\n"
                   "@!%p1 st.shared.u32 [%r9], 0; @!%p1 st.shared.u32 [%r9+4], 0;\n"
                   "bar.sync 0;\n"
                   "SPIN: atom.shared.cas.b32 %r3, [%r9], 0, 1; setp.ne.u32 %p2, %r3, 0;\n"
                   "@%p2 bra SPIN;\n"
                   "ld.volatile.shared.u32 %r4, [%r9+4]; add.u32 %r4, %r4, 1;\n"
                   "st.volatile.shared.u32 [%r9+4], %r4;\n"
                   "atom.shared.exch.b32 %r5, [%r9], 0;\n"
                   "bar.sync 0; ld.shared.u32 %r2, [%r9+4];"),
                 64, lock_result);
}

static uint32_t handed_over(uint32_t thread, uint32_t n) {
    return thread == 1 ? n : 0;
}

/* The loop is so long, or a turn so short, that no turn of the warp has many rounds of it. */
TEST(a_lane_that_waits_for_another_one_in_a_long_loop_ends) {
    for (int random = 0; random < 2; random++) {
        struct bench *bench = bench_with(
            1, 32, 7,
            (struct bench_options){.max_steps = 1000000,
                                   .async = random ? VGPU_ASYNC_RANDOM : VGPU_ASYNC_EAGER});
        bench_expect(bench,
                     K("mov.u32 %r9, tile; setp.eq.u32 %p1, %r0, 0; setp.eq.u32 %p2, %r0, 1;\n"
                       "mov.u32 %r2, 0; mov.u32 %r4, 0; @%p1 st.volatile.shared.u32 [%r9], 0;\n"
                       "bar.warp.sync 0xffffffff; @!%p2 bra OTHERS;\n"
                       "SPIN: ld.volatile.shared.u32 %r3, [%r9];\n"
                       "add.u32 %r4, %r4, 1; add.u32 %r4, %r4, 1; add.u32 %r4, %r4, 1;\n"
                       "add.u32 %r4, %r4, 1; add.u32 %r4, %r4, 1; add.u32 %r4, %r4, 1;\n"
                       "setp.eq.u32 %p3, %r3, 0; @%p3 bra SPIN;\n"
                       "mov.u32 %r2, %r3; bra END;\n"
                       "OTHERS: @%p1 st.volatile.shared.u32 [%r9], %r1; END:"),
                     32, handed_over);
    }
}

static uint32_t odd_stay(uint32_t thread, uint32_t n) {
    return thread % 2 == 1 ? thread + n : 0xaaaaaaaa;
}

TEST(lanes_that_exit_are_not_waited_for) {
    bench_expect(bench_make(1, 96, 3),
                 K("and.b32 %r3, %r0, 1; setp.eq.u32 %p1, %r3, 0; @%p1 exit;\n"
                   "bar.sync 0; vote.sync.ballot.b32 %r4, %p1, 0xaaaaaaaa; add.u32 %r2, %r0, %r1;"),
                 96, odd_stay);
}

/* So many instructions of another kernel, or of the same, before those that race hide nothing. */
static void race_after(uint32_t before, uint32_t inside) {
    static const char ADD[] = "add.u32 %r3, %r0, 1;\n", HEAD[] = PTX_HEAD,
                      OTHER[] = ".visible .entry other() {\n" PTX_REGISTERS,
                      RACE[] = "mov.u32 %r9, tile; shl.b32 %r5, %r0, 2; add.u32 %r5, %r5, %r9;\n"
                               "xor.b32 %r6, %r5, 4; st.shared.u32 [%r5], %r0;\n"
                               "ld.shared.u32 %r7, [%r6]; mov.u32 %r4, %ctaid.x;\n"
                               "st.global.u32 [%rd0], %r4; ret;\n}\n";
    const size_t size = sizeof HEAD + sizeof OTHER + sizeof PTX_ENTRY + sizeof RACE + 32 +
                        ((size_t)before + inside) * (sizeof ADD - 1);
    char *ptx = calloc(size, 1), *end = ptx;
    if (!CHECK(ptx != NULL)) {
        return;
    }
    end = stpcpy(stpcpy(end, HEAD), OTHER);
    for (uint32_t i = 0; i < before; i++) {
        end = stpcpy(end, ADD);
    }
    end = stpcpy(stpcpy(end, "ret;\n}\n"), PTX_ENTRY);
    for (uint32_t i = 0; i < inside; i++) {
        end = stpcpy(end, ADD);
    }
    stpcpy(end, RACE);
    struct bench *bench = bench_make(2, 32, 0);
    bench_run(bench, ptx);
    bench_found(bench, "race-warp", "");
    bench_found(bench, "race-global", "");
    bench_free(bench);
    free(ptx);
}

TEST(races_far_back_in_a_module_are_found) {
    race_after(10, 10);
    race_after(40000, 10);
    race_after(10, 40000);
}

/* Each lane writes n words, 4 KB apart: so many lines of 128 bytes, times 32. */
static void touch_lines(uint32_t n, bool noted) {
    static const char PTX[] =
        PTX_HEAD PTX_ENTRY "mul.wide.u32 %rd1, %r0, 128; add.u64 %rd0, %rd0, %rd1;\n"
                           "AGAIN: st.global.u32 [%rd0], %r1; add.u64 %rd0, %rd0, 4096;\n"
                           "sub.u32 %r1, %r1, 1; setp.ne.u32 %p1, %r1, 0; @%p1 bra AGAIN; ret; }\n";
    struct bench *bench = bench_make(1, 32, n);
    vgpu_module *module = NULL;
    vgpu_pointer out = 0;
    vgpu_error *why = &bench->error;
    void *arguments[] = {&out, &bench->n};
    CHECK_EQ(vgpu_load(bench->gpu, PTX, strlen(PTX), &module, why), VGPU_OK);
    CHECK_EQ(vgpu_malloc(bench->gpu, (size_t)n * 4096, "out", &out, why), VGPU_OK);
    bench->status = vgpu_launch(bench->gpu, module, "k", &bench->dims, arguments, why);
    if (noted) {
        bench_found(bench, "race-unchecked", "16 MB of a cluster, 64 MB of a launch");
        CHECK_EQ(bench_find(bench, "race-unchecked").severity, VGPU_NOTE);
        CHECK_EQ(vgpu_error_count(bench->gpu), 0);
        CHECK_EQ(bench->status, VGPU_OK);
    } else {
        bench_clean(bench);
    }
    vgpu_unload(module);
    bench_free(bench);
}

TEST(what_is_not_looked_at_for_races_is_told) {
    touch_lines(4096, false);
    touch_lines(4097, true);
}

TEST(a_branch_on_uninitialised_memory_is_a_warning) {
    struct bench *bench = bench_make(1, 32, 0);
    bench_run(bench, K("mov.u32 %r9, tile; ld.shared.u32 %r3, [%r9]; mov.u32 %r2, 1;\n"
                       "setp.eq.u32 %p1, %r3, 12345; @%p1 bra END; mov.u32 %r2, 1; END:"));
    const vgpu_finding finding = bench_find(bench, "uninitialised-branch");
    CHECK(finding.text != NULL && finding.severity == VGPU_WARNING);
    CHECK_EQ(bench->status, VGPU_OK);
    bench_free(bench);
}

/* ---- special registers ---- */

TEST(threads_of_a_block_are_numbered_x_first) {
    struct bench *bench = bench_make(1, 1, 0);
    const uint32_t block[3] = {5, 3, 4};
    memcpy(bench->dims.block, block, sizeof block);
    bench_run(bench, PTX_HEAD PTX_ENTRY
              "mov.u32 %r3, %tid.y; mov.u32 %r4, %tid.z; mov.u32 %r5, %ntid.x;\n"
              "mov.u32 %r6, %ntid.y; mov.u32 %r7, %laneid; mov.u32 %r8, %warpid;\n"
              "mad.lo.u32 %r9, %r4, %r6, %r3; mad.lo.u32 %r9, %r9, %r5, %r0;\n"
              "mad.lo.u32 %r10, %r8, 32, %r7; mul.lo.u32 %r2, %r9, 1000; add.u32 %r2, %r2, %r10;\n"
              "mul.wide.u32 %rd1, %r9, 4; add.u64 %rd1, %rd0, %rd1; st.global.u32 [%rd1], %r2;\n"
              "ret; }\n");
    bench_clean(bench);
    for (uint32_t i = 0; i < 60; i++) {
        CHECK_EQ(bench->out[i], i * 1001);
    }
    CHECK_EQ(bench->out[60], 0xaaaaaaaa);
    bench_free(bench);
}

static uint32_t cluster_numbers(uint32_t thread, uint32_t n) {
    (void)n;
    const uint32_t cta = thread / 32;
    return cta % 2 * 1000 + cta / 2 * 100 + 20 + 3;
}

TEST(ranks_in_a_cluster) {
    struct bench *bench = bench_make(6, 32, 0);
    bench->dims.cluster[0] = 2;
    bench->dims.cluster[1] = bench->dims.cluster[2] = 1;
    bench_expect(bench,
                 K("mov.u32 %r3, %cluster_ctarank; mov.u32 %r4, %clusterid.x;\n"
                   "mov.u32 %r5, %cluster_nctaid.x; mov.u32 %r6, %nclusterid.x;\n"
                   "mul.lo.u32 %r2, %r3, 1000; mad.lo.u32 %r2, %r4, 100, %r2;\n"
                   "mad.lo.u32 %r2, %r5, 10, %r2; add.u32 %r2, %r2, %r6;"),
                 6 * 32, cluster_numbers);
}

static uint32_t one(uint32_t thread, uint32_t n) {
    (void)thread, (void)n;
    return 1;
}

TEST(clocks_go_on) {
    bench_expect(bench_make(1, 32, 0),
                 K("mov.u64 %rd1, %clock64; mov.u64 %rd2, %clock64; mov.u64 %rd3, %globaltimer;\n"
                   "LOOP: mov.u64 %rd4, %globaltimer; sub.u64 %rd5, %rd4, %rd3;\n"
                   "setp.lt.u64 %p1, %rd5, 1000; @%p1 bra LOOP;\n"
                   "setp.lt.u64 %p2, %rd1, %rd2; selp.u32 %r2, 1, 0, %p2;"),
                 32, one);
}

/* ---- ends ---- */

TEST(a_loop_without_end_reaches_the_limit) {
    for (int32_t threads = 1; threads <= 4; threads *= 2) {
        struct bench *bench =
            bench_with(8, 64, 0, (struct bench_options){.threads = threads, .max_steps = 100000});
        CHECK_EQ(bench_run(bench, K("LOOP: add.u32 %r2, %r2, 1; bra LOOP;")), VGPU_FAULT);
        CHECK_CONTAINS(bench->error.text, "findings");
        const vgpu_finding finding = bench_find(bench, "steps");
        CHECK(finding.text != NULL && finding.cta[0] == 0 && finding.count == 1);
        bench_free(bench);
    }
}

/* 40 CTAs of a few thousand instructions each: only together are they too many. */
TEST(the_limit_is_one_for_the_whole_grid) {
    struct bench *bench = bench_with(40, 32, 0, (struct bench_options){.max_steps = 100000});
    CHECK_EQ(bench_run(bench, K("mov.u32 %r2, 0; LOOP: add.u32 %r2, %r2, 1;\n"
                                "setp.lt.u32 %p1, %r2, 1000; @%p1 bra LOOP;")),
             VGPU_FAULT);
    bench_found(bench, "steps", "limit");
    bench_free(bench);
}

/* Thread 0 of CTA 0 waits for the word after the results. CTA 1 counts, then sets it or not. */
static void wait_for_a_flag(bool set, int32_t threads) {
    static const char WAIT[] =
        K("mov.u32 %r2, %r0; mov.u32 %r3, %ctaid.x; setp.ne.u32 %p1, %r3, 0;\n"
          "mov.u32 %r4, 0; @%p1 bra COUNT;\n"
          "setp.ne.u32 %p2, %r0, 0; @%p2 bra READY;\n"
          "WAIT: atom.global.cas.b32 %r5, [%rd0+1024], 1, 1;\n"
          "setp.ne.u32 %p3, %r5, 1; @%p3 bra WAIT; bra READY;\n"
          "COUNT: add.u32 %r4, %r4, 1; setp.lt.u32 %p4, %r4, 1500000; @%p4 bra COUNT;\n"
          "setp.ne.u32 %p5, %r1, 0; @%p5 atom.global.exch.b32 %r6, [%rd0+1024], 1;\n"
          "READY: bar.sync 0;");
    struct bench *bench =
        bench_with(2, 64, set, (struct bench_options){.threads = threads, .max_steps = 1000000000});
    CHECK_EQ(bench_run(bench, WAIT), set ? VGPU_OK : VGPU_FAULT);
    if (set) {
        CHECK(bench_find(bench, "deadlock").text == NULL);
    } else {
        bench_found(bench, "deadlock", "all 1 CTAs");
        CHECK_EQ(bench_find(bench, "deadlock").cta[0], 0);
    }
    bench_free(bench);
}

TEST(a_wait_for_what_no_thread_writes_is_a_deadlock) {
    wait_for_a_flag(false, 1);
    wait_for_a_flag(false, 2);
}

TEST(a_long_wait_is_right) {
    wait_for_a_flag(true, 1);
    wait_for_a_flag(true, 2);
}

TEST(trap_ends_the_kernel) {
    struct bench *bench = bench_make(4, 32, 0);
    CHECK_EQ(bench_run(bench, K("mov.u32 %r2, 1; mov.u32 %r3, %ctaid.x; setp.eq.u32 %p1, %r3, 2;\n"
                                "@%p1 trap;")),
             VGPU_FAULT);
    bench_found(bench, "trap", "trap ends");
    CHECK_EQ(bench->out[32], 1);
    CHECK_EQ(bench->out[64], 0xaaaaaaaa);
    bench_free(bench);
}

/* ---- limits ---- */

static void refused(vgpu_dims dims, const char *part) {
    struct bench *bench = bench_make(1, 1, 0);
    bench->dims = dims;
    CHECK_EQ(bench_run(bench, K("mov.u32 %r2, 1;")), VGPU_INVALID);
    CHECK_CONTAINS(bench->error.text, part);
    bench_free(bench);
}

TEST(limits_of_a_launch) {
    const vgpu_dims good = {.grid = {4, 1, 1}, .block = {32, 1, 1}};
    vgpu_dims dims = good;
    dims.grid[1] = 0;
    refused(dims, "grid[1] is 0");
    dims.grid[1] = 65536;
    refused(dims, "grid[1] is 65536");
    dims = good;
    dims.block[0] = 1025;
    refused(dims, "block[0] is 1025");
    dims.block[0] = 512;
    dims.block[1] = 3;
    refused(dims, "1536 threads");
    dims = good;
    dims.block[2] = 65;
    refused(dims, "block[2] is 65");
    dims = good;
    dims.shared_bytes = 48 << 10;
    refused(dims, "max_shared_bytes");
    dims.max_shared_bytes = 40 << 10;
    refused(dims, "was allowed 40960");
    dims.max_shared_bytes = dims.shared_bytes = 227 << 10;
    refused(dims, "at most 232448");
    dims = good;
    dims.cluster[0] = dims.cluster[1] = dims.cluster[2] = 1;
    dims.cluster[0] = 3;
    refused(dims, "multiple of the cluster's 3");
    dims.grid[0] = dims.cluster[0] = 16;
    refused(dims, "at most 8");
    dims.non_portable_cluster = true;
    dims.grid[0] = dims.cluster[0] = 17;
    refused(dims, "at most 16");
}

TEST(limits_of_a_kernel) {
    struct bench *bench = bench_make(1, 65, 0);
    CHECK_EQ(bench_run(bench, PTX_HEAD ".visible .entry k(.param .u64 out, .param .u32 n)\n"
                                       ".maxntid 64, 1, 1 { ret; }\n"),
             VGPU_INVALID);
    CHECK_CONTAINS(bench->error.text, "at most 64");
    CHECK_EQ(bench_run(bench, PTX_HEAD ".visible .entry k(.param .u64 out, .param .u32 n)\n"
                                       ".reqntid 64, 1, 1 { ret; }\n"),
             VGPU_INVALID);
    CHECK_CONTAINS(bench->error.text, "exactly 64");
    bench_free(bench);
}

TEST(what_a_launch_may_ask_for_runs) {
    struct bench *bench = bench_make(8, 1024, 0);
    bench->dims.cluster[0] = 8;
    bench->dims.cluster[1] = bench->dims.cluster[2] = 1;
    bench->dims.shared_bytes = bench->dims.max_shared_bytes = (227 << 10) - 4096;
    bench_expect(bench, K("mov.u32 %r2, 1;"), 8 * 1024, one);
}

/* ---- threads of the host ---- */

/* CTA 0 waits in a loop for what the last CTA writes; with one thread of the host, too. */
TEST(clusters_may_wait_for_each_other) {
    static const char KERNEL[] =
        K("mov.u32 %r3, %ctaid.x; mov.u32 %r4, %nctaid.x; sub.u32 %r4, %r4, 1;\n"
          "mov.u32 %r2, %r3; add.u64 %rd1, %rd0, 16384;\n"
          "setp.eq.u32 %p1, %r3, %r4; setp.ne.u32 %p2, %r3, 0; @%p2 bra WRITER;\n"
          "WAIT: ld.acquire.gpu.global.u32 %r5, [%rd1]; setp.ne.u32 %p3, %r5, 77; @%p3 bra WAIT;\n"
          "bra END;\n"
          "WRITER: setp.eq.u32 %p4, %r0, 0; and.pred %p4, %p4, %p1;\n"
          "@%p4 st.release.gpu.global.u32 [%rd1], 77;\n"
          "END:");
    for (int32_t threads = 1; threads <= 4; threads *= 2) {
        struct bench *bench = bench_with(
            60, 32, 0, (struct bench_options){.threads = threads, .max_steps = 1000000000});
        bench_run(bench, KERNEL);
        CHECK_EQ(bench->status, VGPU_OK);
        for (uint32_t i = 0; i < 60 * 32; i++) {
            CHECK_EQ(bench->out[i], i / 32);
        }
        bench_free(bench);
    }
}

static void report_to(char *text, size_t size, const vgpu *gpu) {
    FILE *file = tmpfile();
    CHECK_EQ(vgpu_report(gpu, file, VGPU_JSON), VGPU_OK);
    rewind(file);
    text[fread(text, 1, size - 1, file)] = '\0';
    fclose(file);
}

/* Wrong in every seventh CTA, and in another way in CTA 50, which ends the kernel. */
static const char FAULTY[] =
    K("mov.u32 %r3, %ctaid.x; rem.u32 %r4, %r3, 7; setp.eq.u32 %p1, %r4, 3;\n"
      "mov.u32 %r2, %r3; setp.lt.u32 %p2, %r0, 16; and.pred %p3, %p1, %p2;\n"
      "@%p3 bra OTHER; bar.sync 0; bra JOIN;\n"
      "OTHER: bar.sync 0;\n"
      "JOIN: mov.u32 %r9, tile; setp.ge.u32 %p4, %r3, 20; mad.lo.u32 %r9, %r3, 1000, %r9;\n"
      "@%p4 st.shared.u32 [%r9], %r2;\n"
      "setp.eq.u32 %p5, %r3, 50; @%p5 trap;");

TEST(findings_do_not_depend_on_the_number_of_threads) {
    static char first[1 << 16], other[1 << 16];
    static uint32_t out[51 * 64];
    for (int async = 0; async < 4; async++) {
        for (int32_t threads = 1; threads <= 4; threads++) {
            struct bench *bench = bench_with(
                64, 64, 0, (struct bench_options){.threads = threads, .async = (vgpu_async)async});
            CHECK_EQ(bench_run(bench, FAULTY), VGPU_FAULT);
            bench_found(bench, "divergent-barrier", "bar");
            bench_found(bench, "out-of-bounds", "");
            bench_found(bench, "trap", "");
            report_to(threads == 1 ? first : other, sizeof first, bench->gpu);
            if (threads == 1) {
                memcpy(out, bench->out, sizeof out);
            } else {
                CHECK_STR(other, first);
                CHECK(memcmp(out, bench->out, sizeof out) == 0);
            }
            bench_free(bench);
        }
    }
}

TEST(the_same_seed_gives_the_same_run) {
    vgpu_stats stats[2];
    for (int i = 0; i < 2; i++) {
        struct bench *bench = bench_with(
            20, 96, 9,
            (struct bench_options){.threads = 1 + i, .async = VGPU_ASYNC_RANDOM, .seed = 5});
        bench_run(bench, COLLATZ);
        bench_clean(bench);
        vgpu_stats_get(bench->gpu, &stats[i]);
        bench_free(bench);
    }
    CHECK_EQ(stats[0].warp_instructions, stats[1].warp_instructions);
    CHECK_EQ(stats[0].thread_instructions, stats[1].thread_instructions);
    CHECK(stats[0].thread_instructions > 20 * 96);
}

TEST_MAIN()
