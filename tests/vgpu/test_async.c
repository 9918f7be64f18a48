/* SPDX-License-Identifier: Apache-2.0
 *
 * test_async.c - cp.async and mbarriers on the virtual GPU, under every completion order:
 * results against plain loops, and planted bugs that must be found.
 */
#include "vgpu.h"
#include "vgpu/async_fixture.h"

enum { THREADS = 64, PIECE = 16 };

/* Each of 64 threads copies 16 bytes, of which the source has sizes[tid]; then it reads what the
 * thread 32 further copied. */
static const char COPY[] =
    PTX_HEAD ".visible .entry k(.param .u64 from, .param .u64 sizes, .param .u64 to) {\n"
             ".reg .b32 %r<12>; .reg .b64 %rd<10>;\n"
             "ld.param.u64 %rd1, [from]; ld.param.u64 %rd2, [sizes]; ld.param.u64 %rd3, [to];\n"
             "mov.u32 %r1, %tid.x; mov.u32 %r2, tile; shl.b32 %r3, %r1, 4; add.u32 %r4, %r2, %r3;\n"
             "mul.wide.u32 %rd4, %r1, 16; add.u64 %rd5, %rd1, %rd4;\n"
             "mul.wide.u32 %rd6, %r1, 4; add.u64 %rd7, %rd2, %rd6; ld.global.u32 %r5, [%rd7];\n"
             "cp.async.ca.shared.global.L2::128B [%r4], [%rd5], 16, %r5;\n"
             "cp.async.commit_group;\n"
             "cp.async.wait_group 0;\n"
             "bar.sync 0;\n"
             "xor.b32 %r6, %r3, 512; add.u32 %r6, %r2, %r6;\n"
             "ld.shared.v4.u32 {%r7, %r8, %r9, %r10}, [%r6];\n"
             "add.u64 %rd8, %rd3, %rd4; st.global.v4.u32 [%rd8], {%r7, %r8, %r9, %r10};\n"
             "ret; }\n";

struct copy_case {
    unsigned char from[THREADS * PIECE], to[THREADS * PIECE];
    uint32_t sizes[THREADS];
};

static void run_copies(struct bench *bench, const char *ptx, struct copy_case *data) {
    vgpu_pointer from = bench_buffer(bench, data->from, sizeof data->from);
    vgpu_pointer sizes = bench_buffer(bench, data->sizes, sizeof data->sizes);
    vgpu_pointer to = bench_buffer(bench, NULL, sizeof data->to);
    void *arguments[] = {&from, &sizes, &to};
    bench_run(bench, ptx, arguments);
    bench_fetch(bench, data->to, to, sizeof data->to);
}

static void fill_case(struct copy_case *data, uint64_t seed) {
    for (size_t i = 0; i < sizeof data->from; i++) {
        data->from[i] = (unsigned char)(next_number(&seed) | 1); /* no byte is 0 */
    }
    for (uint32_t i = 0; i < THREADS; i++) {
        data->sizes[i] = next_number(&seed) % 3 == 0 ? PIECE : next_number(&seed) % (PIECE + 1);
    }
}

TEST(copies_with_zero_fill) {
    for (int order = 0; order < ORDERS; order++) {
        struct bench bench;
        struct copy_case data;
        if (!bench_open(&bench, (vgpu_async)order, 7)) {
            return;
        }
        fill_case(&data, (uint64_t)order);
        run_copies(&bench, COPY, &data);
        bench_clean(&bench, "copies", order);
        for (uint32_t i = 0; i < sizeof data.to; i++) {
            const uint32_t source = i ^ 512;
            const bool there = source % PIECE < data.sizes[source / PIECE];
            CHECK_EQ(data.to[i], there ? data.from[source] : 0);
        }
        bench_close(&bench);
    }
}

/* The source past its size is not read: that of the last thread may be out of bounds. */
TEST(source_beyond_its_size_is_not_touched) {
    for (int order = 0; order < ORDERS; order++) {
        struct bench bench;
        struct copy_case data;
        fill_case(&data, 3);
        memset(data.sizes, 0, sizeof data.sizes);
        bench_open(&bench, (vgpu_async)order, 7);
        char *ptx = plant(COPY, "mul.wide.u32 %rd4, %r1, 16; add.u64 %rd5, %rd1, %rd4;",
                          "mul.wide.u32 %rd4, %r1, 16; mul.wide.u32 %rd5, %r1, 1048576;");
        run_copies(&bench, ptx, &data);
        bench_clean(&bench, "sizes of 0", order);
        free(ptx);
        data.sizes[5] = 4;
        ptx = plant(COPY, "mul.wide.u32 %rd4, %r1, 16; add.u64 %rd5, %rd1, %rd4;",
                    "mul.wide.u32 %rd4, %r1, 16; mul.wide.u32 %rd5, %r1, 1048576;");
        run_copies(&bench, ptx, &data);
        bench_found(&bench, "out-of-bounds|wrong-space", "a size of 4 out of bounds", order);
        free(ptx);
        bench_close(&bench);
    }
}

static void check_copy_bug(const struct bug *bug, bool all_bytes) {
    for (int order = 0; order < ORDERS; order++) {
        struct bench bench;
        struct copy_case data;
        fill_case(&data, 11);
        for (uint32_t i = 0; all_bytes && i < THREADS; i++) {
            data.sizes[i] = PIECE;
        }
        bench_open(&bench, (vgpu_async)order, 5);
        char *ptx = plant(COPY, bug->from, bug->to);
        run_copies(&bench, ptx, &data);
        bench_found(&bench, bug->kinds, bug->what, order);
        free(ptx);
        bench_close(&bench);
    }
}

TEST(bugs_of_copies_are_found) {
    static const struct bug BUGS[] = {
        {"no wait", "cp.async.wait_group 0;", "", "async-read-early|race"},
        {"waits too little", "cp.async.wait_group 0;", "cp.async.wait_group 1;",
         "async-read-early|race"},
        {"never committed", "cp.async.commit_group;", "", "async-read-early|race"},
        {"no barrier after the wait", "bar.sync 0;", "", "race|async-read-early"},
        {"misaligned destination", "add.u32 %r4, %r2, %r3;",
         "add.u32 %r4, %r2, %r3; add.u32 %r4, %r4, 8;", "misaligned"},
        {"misaligned source", "add.u64 %rd5, %rd1, %rd4;",
         "add.u64 %rd5, %rd1, %rd4; add.u64 %rd5, %rd5, 4;", "misaligned"},
        {"source out of bounds", "add.u64 %rd5, %rd1, %rd4;",
         "add.u64 %rd5, %rd1, %rd4; add.u64 %rd5, %rd5, 16;", "out-of-bounds"},
        {"size of the source too large", "cp.async.ca.shared.global.L2::128B",
         "mov.u32 %r5, 17; cp.async.ca.shared.global.L2::128B", "illegal-operand"},
        {"written while it is copied to", "cp.async.commit_group;",
         "cp.async.commit_group; st.shared.u32 [%r4], %r1;", "async-overwrite|race"},
        {"never waited for", "cp.async.wait_group 0;\nbar.sync 0;\n", "ret;\n", "async-unfinished"},
        {"neither committed nor waited for",
         "cp.async.commit_group;\ncp.async.wait_group 0;\nbar.sync 0;\n", "ret;\n",
         "async-unfinished"},
        {"uninitialised source reaches global memory", "ld.param.u64 %rd1, [from];",
         "ld.param.u64 %rd1, [to];", "uninitialised"},
    };
    for (size_t i = 0; i < sizeof BUGS / sizeof BUGS[0]; i++) {
        check_copy_bug(&BUGS[i], true);
    }
}

TEST(other_forms_of_copies) {
    static const struct bug FORMS[] = {
        {"wait_all", "cp.async.wait_group 0;", "cp.async.wait_all;", ""},
        {"wait_all without commit", "cp.async.commit_group;\ncp.async.wait_group 0;",
         "cp.async.wait_all;", ""},
        {"an empty group after it", "cp.async.wait_group 0;",
         "cp.async.commit_group;\ncp.async.wait_group 1;", ""},
        {"cg", "cp.async.ca.shared.global.L2::128B [%r4], [%rd5], 16, %r5;",
         "cp.async.cg.shared.global [%r4], [%rd5], 16;", ""},
        {"cache policy", "cp.async.ca.shared.global.L2::128B [%r4], [%rd5], 16, %r5;",
         "mov.b64 %rd9, 0x12F0000000000000;\n"
         "cp.async.cg.shared::cta.global.L2::cache_hint.L2::256B [%r4], [%rd5], 16, %r5, %rd9;",
         ""},
        {"small pieces", "cp.async.ca.shared.global.L2::128B [%r4], [%rd5], 16, %r5;",
         "cp.async.ca.shared.global [%r4], [%rd5], 4;\n"
         "cp.async.ca.shared.global [%r4+8], [%rd5+8], 8;\n"
         "cp.async.ca.shared.global [%r4+4], [%rd5+4], 4, 4;",
         ""},
        {"the source ignored by no lane",
         "cp.async.ca.shared.global.L2::128B [%r4], [%rd5], 16, %r5;",
         "{ .reg .pred %q; setp.eq.u32 %q, %r1, 77;\n"
         "cp.async.ca.shared.global [%r4], [%rd5], 16, %q; }",
         ""},
    };
    for (size_t i = 0; i < sizeof FORMS / sizeof FORMS[0]; i++) {
        for (int order = 0; order < ORDERS; order++) {
            struct bench bench;
            struct copy_case data;
            fill_case(&data, 13);
            for (uint32_t t = 0; t < THREADS; t++) {
                data.sizes[t] = PIECE;
            }
            bench_open(&bench, (vgpu_async)order, 5);
            char *ptx = plant(COPY, FORMS[i].from, FORMS[i].to);
            run_copies(&bench, ptx, &data);
            bench_clean(&bench, FORMS[i].what, order);
            for (uint32_t b = 0; b < sizeof data.to; b++) {
                CHECK_EQ(data.to[b], data.from[b ^ 512]);
            }
            free(ptx);
            bench_close(&bench);
        }
    }
}

/* Thread t copies word t; the mbarrier phase completes with the last copy. */
static const char TRACKED[] =
    PTX_HEAD ".shared .align 8 .b64 bar;\n"
             ".visible .entry k(.param .u64 from, .param .u64 sizes, .param .u64 to) {\n"
             ".reg .b32 %r<12>; .reg .b64 %rd<10>; .reg .pred %p<4>;\n"
             "ld.param.u64 %rd1, [from]; ld.param.u64 %rd3, [to];\n"
             "mov.u32 %r1, %tid.x; mov.u32 %r2, tile; shl.b32 %r3, %r1, 4; add.u32 %r4, %r2, %r3;\n"
             "mov.u32 %r5, bar; mul.wide.u32 %rd4, %r1, 16; add.u64 %rd5, %rd1, %rd4;\n"
             "setp.ne.u32 %p1, %r1, 0;\n"
             "@%p1 bra READY;\n"
             "mbarrier.init.shared::cta.b64 [%r5], 64;\n"
             "READY: bar.sync 0;\n"
             "cp.async.cg.shared.global [%r4], [%rd5], 16;\n"
             "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r5];\n"
             "WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r5], 0;\n"
             "@!%p2 bra WAIT;\n"
             "xor.b32 %r6, %r3, 512; add.u32 %r6, %r2, %r6;\n"
             "ld.shared.v4.u32 {%r7, %r8, %r9, %r10}, [%r6];\n"
             "add.u64 %rd8, %rd3, %rd4; st.global.v4.u32 [%rd8], {%r7, %r8, %r9, %r10};\n"
             "ret; }\n";

TEST(mbarriers_track_copies) {
    static const struct bug FORMS[] = {
        {"noinc", "ret;", "ret;", ""},
        {"counted", "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r5];\n",
         "cp.async.mbarrier.arrive.shared::cta.b64 [%r5];\n"
         "mbarrier.arrive.shared::cta.b64 _, [%r5];\n",
         ""},
        {"waited for as well", "xor.b32", "cp.async.wait_all;\nxor.b32", ""},
        {"generic address", "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r5];",
         "cvt.u64.u32 %rd9, %r5; cvta.shared.u64 %rd9, %rd9;\n"
         "cp.async.mbarrier.arrive.noinc.b64 [%rd9];",
         ""},
        {"no wait",
         "WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r5], 0;\n@!%p2 bra WAIT;\n", "",
         "async-read-early|race"},
        {"not initialised", "mbarrier.init.shared::cta.b64 [%r5], 64;\n", "", "mbarrier"},
        {"arrives before the copy",
         "cp.async.cg.shared.global [%r4], [%rd5], 16;\n"
         "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r5];\n",
         "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r5];\n"
         "cp.async.cg.shared.global [%r4], [%rd5], 16;\n",
         "async-read-early|race"},
    };
    for (size_t i = 0; i < sizeof FORMS / sizeof FORMS[0]; i++) {
        for (int order = 0; order < ORDERS; order++) {
            struct bench bench;
            struct copy_case data;
            fill_case(&data, 17);
            bench_open(&bench, (vgpu_async)order, 5);
            char *ptx = plant(TRACKED, FORMS[i].from, FORMS[i].to);
            run_copies(&bench, ptx, &data);
            if (FORMS[i].kinds[0] != '\0') {
                bench_found(&bench, FORMS[i].kinds, FORMS[i].what, order);
            } else {
                bench_clean(&bench, FORMS[i].what, order);
                for (uint32_t b = 0; b < sizeof data.to; b++) {
                    CHECK_EQ(data.to[b], data.from[b ^ 512]);
                }
            }
            free(ptx);
            bench_close(&bench);
        }
    }
}

/* 64 threads pass numbers to each other through shared memory, two rounds, with an mbarrier as
 * barrier; out[t] is what thread t ^ 32 wrote in the last round. */
static const char PASS[] =
    PTX_HEAD ".shared .align 8 .b64 bar;\n"
             ".visible .entry k(.param .u64 to) {\n"
             ".reg .b32 %r<12>; .reg .b64 %rd<10>; .reg .pred %p<4>;\n"
             "ld.param.u64 %rd3, [to];\n"
             "mov.u32 %r1, %tid.x; mov.u32 %r2, tile; shl.b32 %r3, %r1, 2; add.u32 %r4, %r2, %r3;\n"
             "mov.u32 %r5, bar; xor.b32 %r6, %r3, 128; add.u32 %r6, %r2, %r6; mov.u32 %r9, 0;\n"
             "setp.ne.u32 %p1, %r1, 0;\n"
             "@%p1 bra READY;\n"
             "mbarrier.init.shared::cta.b64 [%r5], 64;\n"
             "READY: bar.sync 0;\n"
             "st.shared.u32 [%r4], %r1;\n"
             "mbarrier.arrive.shared::cta.b64 %rd5, [%r5];\n"
             "WAIT: mbarrier.try_wait.shared::cta.b64 %p2, [%r5], %rd5;\n"
             "@!%p2 bra WAIT;\n"
             "ld.shared.u32 %r7, [%r6];\n"
             "mbarrier.arrive.shared::cta.b64 %rd5, [%r5];\n"
             "AGAIN: mbarrier.test_wait.parity.shared::cta.b64 %p2, [%r5], 1;\n"
             "@!%p2 bra AGAIN;\n"
             "add.u32 %r8, %r1, 1000; st.shared.u32 [%r4], %r8;\n"
             "mbarrier.arrive.shared::cta.b64 _, [%r5], 1;\n"
             "LAST: mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %p2, [%r5], %r9, 100;\n"
             "@!%p2 bra LAST;\n"
             "ld.shared.u32 %r7, [%r6];\n"
             "mul.wide.u32 %rd4, %r1, 4; add.u64 %rd8, %rd3, %rd4; st.global.u32 [%rd8], %r7;\n"
             "ret; }\n";

static void run_pass(struct bench *bench, const char *ptx, uint32_t *out) {
    vgpu_pointer to = bench_buffer(bench, NULL, THREADS * sizeof *out);
    void *arguments[] = {&to};
    bench_run(bench, ptx, arguments);
    bench_fetch(bench, out, to, THREADS * sizeof *out);
}

TEST(mbarrier_as_a_barrier) {
    static const struct bug FORMS[] = {
        {"as it is", "ret;", "ret;", ""},
        {"generic addresses",
         "mbarrier.arrive.shared::cta.b64 %rd5, [%r5];\nWAIT: mbarrier.try_wait.shared::cta.b64 "
         "%p2, [%r5], %rd5;",
         "cvt.u64.u32 %rd9, %r5; cvta.shared.u64 %rd9, %rd9;\n"
         "mbarrier.arrive.b64 %rd5, [%rd9];\nWAIT: mbarrier.try_wait.b64 %p2, [%rd9], %rd5;",
         ""},
        {"cluster forms", "mbarrier.arrive.shared::cta.b64 _, [%r5], 1;",
         "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r5], 1;", ""},
        {"bytes by hand", "mbarrier.arrive.shared::cta.b64 _, [%r5], 1;",
         "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r5], 8;\n"
         "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r5], 4;\n"
         "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r5], 12;",
         ""},
        {"invalidated and initialised again", "mbarrier.init.shared::cta.b64 [%r5], 64;",
         "mbarrier.init.shared::cta.b64 [%r5], 3; mbarrier.inval.shared::cta.b64 [%r5];\n"
         "mbarrier.init.shared::cta.b64 [%r5], 64;",
         ""},
    };
    for (size_t i = 0; i < sizeof FORMS / sizeof FORMS[0]; i++) {
        for (int order = 0; order < ORDERS; order++) {
            struct bench bench;
            uint32_t out[THREADS];
            bench_open(&bench, (vgpu_async)order, 23);
            char *ptx = plant(PASS, FORMS[i].from, FORMS[i].to);
            run_pass(&bench, ptx, out);
            bench_clean(&bench, FORMS[i].what, order);
            for (uint32_t t = 0; t < THREADS; t++) {
                CHECK_EQ(out[t], (t ^ 32) + 1000);
            }
            free(ptx);
            bench_close(&bench);
        }
    }
}

TEST(bugs_of_mbarriers_are_found) {
    static const struct bug BUGS[] = {
        {"not initialised", "mbarrier.init.shared::cta.b64 [%r5], 64;\n", "", "mbarrier"},
        {"no barrier after the initialisation", "READY: bar.sync 0;", "READY:", "race|mbarrier"},
        {"one arrival too many expected", "mbarrier.init.shared::cta.b64 [%r5], 64;",
         "mbarrier.init.shared::cta.b64 [%r5], 65;", "deadlock"},
        {"one arrival too few expected", "mbarrier.init.shared::cta.b64 [%r5], 64;",
         "mbarrier.init.shared::cta.b64 [%r5], 63;", "race|mbarrier|deadlock"},
        {"more arrivals than are pending", "mbarrier.arrive.shared::cta.b64 _, [%r5], 1;",
         "mbarrier.arrive.shared::cta.b64 _, [%r5], 65;", "mbarrier"},
        {"no arrivals", "mbarrier.arrive.shared::cta.b64 _, [%r5], 1;",
         "mbarrier.arrive.shared::cta.b64 _, [%r5], 0;", "mbarrier"},
        {"count of 0", "mbarrier.init.shared::cta.b64 [%r5], 64;",
         "mbarrier.init.shared::cta.b64 [%r5], 0;", "mbarrier"},
        {"count too large", "mbarrier.init.shared::cta.b64 [%r5], 64;",
         "mbarrier.init.shared::cta.b64 [%r5], 1048576;", "mbarrier"},
        {"initialised twice", "mbarrier.init.shared::cta.b64 [%r5], 64;",
         "mbarrier.init.shared::cta.b64 [%r5], 64; mbarrier.init.shared::cta.b64 [%r5], 64;",
         "mbarrier"},
        {"used after it was invalidated", "mbarrier.init.shared::cta.b64 [%r5], 64;",
         "mbarrier.init.shared::cta.b64 [%r5], 64; mbarrier.inval.shared::cta.b64 [%r5];",
         "mbarrier"},
        {"data written over it", "mbarrier.init.shared::cta.b64 [%r5], 64;",
         "mbarrier.init.shared::cta.b64 [%r5], 64; st.shared.u32 [%r5], %r1;", "mbarrier"},
        {"too many bytes expected", "mbarrier.arrive.shared::cta.b64 _, [%r5], 1;",
         "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r5], 1048576;", "mbarrier"},
        {"bytes that never come", "mbarrier.arrive.shared::cta.b64 _, [%r5], 1;",
         "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r5], 16;", "deadlock"},
        {"bytes without a wait", "ret;",
         "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r5], 16; ret;", "async-unfinished"},
        {"parity 2", "AGAIN: mbarrier.test_wait.parity.shared::cta.b64 %p2, [%r5], 1;",
         "AGAIN: mbarrier.test_wait.parity.shared::cta.b64 %p2, [%r5], 3;", "mbarrier"},
        {"wrong parity", "mov.u32 %r9, 0;", "mov.u32 %r9, 1;", "race|deadlock"},
        {"relaxed wait", "LAST: mbarrier.try_wait.parity.acquire.cta.shared::cta.b64",
         "LAST: mbarrier.try_wait.parity.relaxed.cta.shared::cta.b64", "race"},
        {"misaligned", "mov.u32 %r5, bar;", "mov.u32 %r5, bar; add.u32 %r5, %r5, 4;", "misaligned"},
        {"global address", "WAIT: mbarrier.try_wait.shared::cta.b64 %p2, [%r5], %rd5;",
         "WAIT: mbarrier.try_wait.b64 %p2, [%rd3], %rd5;", "wrong-space"},
        {"noComplete that completes", "mbarrier.arrive.shared::cta.b64 _, [%r5], 1;",
         "mbarrier.arrive.noComplete.shared::cta.b64 %rd5, [%r5], 1;", "mbarrier"},
    };
    for (size_t i = 0; i < sizeof BUGS / sizeof BUGS[0]; i++) {
        for (int order = 0; order < ORDERS; order++) {
            struct bench bench;
            uint32_t out[THREADS];
            bench_open(&bench, (vgpu_async)order, 29);
            char *ptx = plant(PASS, BUGS[i].from, BUGS[i].to);
            run_pass(&bench, ptx, out);
            bench_found(&bench, BUGS[i].kinds, BUGS[i].what, order);
            free(ptx);
            bench_close(&bench);
        }
    }
}

/* Counts, tokens and dropped arrivals, as one thread sees them. */
TEST(counts_of_an_mbarrier) {
    static const char COUNTS[] = PTX_HEAD
        ".shared .align 8 .b64 bar;\n"
        ".visible .entry k(.param .u64 to) {\n"
        ".reg .b32 %r<12>; .reg .b64 %rd<10>; .reg .pred %p<4>;\n"
        "ld.param.u64 %rd3, [to]; mov.u32 %r1, bar; mov.u32 %r2, %tid.x; setp.ne.u32 %p1, %r2, 0;\n"
        "@%p1 bra END;\n"
        "mbarrier.init.shared.b64 [%r1], 5;\n"
        "mbarrier.arrive.noComplete.shared.b64 %rd1, [%r1], 2;\n"
        "mbarrier.pending_count.b64 %r3, %rd1; st.global.u32 [%rd3], %r3;\n"
        "mbarrier.arrive_drop.shared.b64 %rd1, [%r1];\n"
        "mbarrier.pending_count.b64 %r3, %rd1; st.global.u32 [%rd3+4], %r3;\n"
        "mbarrier.test_wait.shared.b64 %p2, [%r1], %rd1; selp.u32 %r3, 1, 0, %p2;\n"
        "st.global.u32 [%rd3+8], %r3;\n"
        "mbarrier.arrive.shared.b64 %rd2, [%r1], 2;\n"
        "mbarrier.test_wait.shared.b64 %p2, [%r1], %rd1; selp.u32 %r3, 1, 0, %p2;\n"
        "st.global.u32 [%rd3+12], %r3;\n"
        "mbarrier.arrive.shared.b64 %rd2, [%r1], 4;\n"
        "mbarrier.pending_count.b64 %r3, %rd2; st.global.u32 [%rd3+16], %r3;\n"
        "mbarrier.test_wait.parity.shared.b64 %p2, [%r1], 1; selp.u32 %r3, 1, 0, %p2;\n"
        "st.global.u32 [%rd3+20], %r3;\n"
        "mbarrier.test_wait.parity.shared.b64 %p2, [%r1], 0; selp.u32 %r3, 1, 0, %p2;\n"
        "st.global.u32 [%rd3+24], %r3;\n"
        "END: ret; }\n";
    /* pending before: 5, then 3; not complete; complete; 4 after the drop; parity 1 is, 0 is not */
    static const uint32_t EXPECTED[] = {5, 3, 0, 1, 4, 1, 0};
    for (int order = 0; order < ORDERS; order++) {
        struct bench bench;
        uint32_t out[THREADS] = {0};
        bench_open(&bench, (vgpu_async)order, 31);
        vgpu_pointer to = bench_buffer(&bench, out, sizeof out);
        void *arguments[] = {&to};
        bench_run(&bench, COUNTS, arguments);
        bench_fetch(&bench, out, to, sizeof out);
        bench_clean(&bench, "counts", order);
        for (size_t i = 0; i < sizeof EXPECTED / sizeof EXPECTED[0]; i++) {
            CHECK_EQ(out[i], EXPECTED[i]);
        }
        bench_close(&bench);
    }
}

TEST(unknown_forms_are_refused) {
    static const char *const FORMS[] = {
        "cp.async.ca.shared.global [%r4], [%rd5], 5;",
        "cp.async.cg.shared.global [%r4], [%rd5], 8;",
        "cp.async.ca.global.shared.v2 [%r4], [%rd5], 8;",
        "cp.async.ca.shared.global [%r4], [%rd5];",
        "cp.async.wait_group;",
        "cp.async.wait_all 1;",
        "mbarrier.arrive.shared::cluster.b64 %rd5, [%r4];",
        "mbarrier.arrive.b32 %rd5, [%r4];",
        "mbarrier.sing.b64 [%r4];",
        "mbarrier.try_wait.parity.b64 %rd5, [%r4], 0;",
    };
    for (size_t i = 0; i < sizeof FORMS / sizeof FORMS[0]; i++) {
        struct bench bench;
        vgpu_module *module = NULL;
        bench_open(&bench, VGPU_ASYNC_EAGER, 1);
        char *ptx = plant(COPY, "cp.async.commit_group;", FORMS[i]);
        const vgpu_status status = vgpu_load(bench.gpu, ptx, strlen(ptx), &module, &bench.why);
        CHECK_MSG(status == VGPU_LOAD && bench.why.line > 0, "%s: status %d", FORMS[i], status);
        free(ptx);
        bench_close(&bench);
    }
}

/* Two copies to the same address without a wait: the value read shows which completed last. */
TEST(completion_orders_differ) {
    static const char TWICE[] = PTX_HEAD
        ".shared .align 8 .b64 bar;\n"
        ".visible .entry k(.param .u64 from, .param .u64 to, .param .u32 wait) {\n"
        ".reg .b32 %r<12>; .reg .b64 %rd<10>; .reg .pred %p<4>;\n"
        "ld.param.u64 %rd1, [from]; ld.param.u64 %rd2, [to]; ld.param.u32 %r1, [wait];\n"
        "mov.u32 %r2, tile; mov.u32 %r3, bar; mov.u32 %r4, %tid.x; setp.ne.u32 %p1, %r4, 0;\n"
        "@%p1 bra END;\n"
        "mov.u32 %r5, 99; st.shared.u32 [%r2], %r5;\n"
        "mbarrier.init.shared::cta.b64 [%r3], 1;\n"
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 32;\n"
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%rd1], 16, "
        "[%r3];\n"
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%rd1+16], 16, "
        "[%r3];\n"
        "setp.eq.u32 %p2, %r1, 0;\n"
        "@%p2 bra READ;\n"
        "WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r3], 0;\n"
        "@!%p2 bra WAIT;\n"
        "READ: ld.shared.u32 %r6, [%r2]; st.global.u32 [%rd2], %r6;\n"
        "END: ret; }\n";
    /* without a wait: the last, or nothing yet; with one: the last, the last, the first */
    static const uint32_t EXPECTED[2][3] = {{5, 99, 99}, {5, 5, 1}};
    uint32_t from[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    bool seen[8] = {false};
    for (uint32_t run = 0; run < 2 * 3 + 32; run++) {
        const bool random = run >= 6;
        uint32_t wait = random ? 1 : run / 3, got = 0;
        struct bench bench;
        bench_open(&bench, random ? VGPU_ASYNC_RANDOM : (vgpu_async)(run % 3), run);
        vgpu_pointer source = bench_buffer(&bench, from, sizeof from);
        vgpu_pointer to = bench_buffer(&bench, &got, sizeof got);
        void *arguments[] = {&source, &to, &wait};
        bench_run(&bench, TWICE, arguments);
        bench_fetch(&bench, &got, to, sizeof got);
        if (!random) {
            CHECK_EQ(got, EXPECTED[wait][run % 3]);
        } else if (CHECK(got == 1 || got == 5)) {
            seen[got] = true;
        }
        bench_close(&bench);
    }
    CHECK(seen[1] && seen[5]); /* among 32 seeds */
}

TEST_MAIN()
