/* SPDX-License-Identifier: Apache-2.0
 *
 * test_call.c - calls of functions: arguments and results, divergent and recursive calls,
 * vprintf and __assertfail.
 */
#include "vgpu/exec_fixture.h"

#include <unistd.h>

/* f(a, b) = 3 a + b; g returns a struct of two ints; fib is recursive, with a local variable. */
#define FUNCTIONS                                                                                  \
    ".func (.param .b32 result) f(.param .b32 a, .param .b32 b) {\n"                               \
    ".reg .b32 %r<4>; ld.param.u32 %r1, [a]; ld.param.u32 %r2, [b];\n"                             \
    "mad.lo.u32 %r3, %r1, 3, %r2; st.param.b32 [result], %r3; ret; }\n"                            \
    ".func (.param .align 8 .b8 pair[8]) g(.param .b32 a) {\n"                                     \
    ".reg .pred %p<2>; .reg .b32 %r<4>; ld.param.u32 %r1, [a]; and.b32 %r2, %r1, 1;\n"             \
    "setp.eq.u32 %p1, %r2, 0; @%p1 bra EVEN; st.param.v2.b32 [pair], {%r1, 7}; ret;\n"             \
    "EVEN: st.param.v2.b32 [pair], {%r1, 8}; ret; }\n"                                             \
    ".func (.param .b32 result) fib(.param .b32 a) {\n"                                            \
    ".local .align 4 .b8 kept[4]; .reg .pred %p<2>; .reg .b32 %r<9>;\n"                            \
    "ld.param.u32 %r1, [a]; st.local.u32 [kept], %r1; setp.lt.u32 %p1, %r1, 2; @%p1 bra SMALL;\n"  \
    "{ .param .b32 p; .param .b32 q; sub.u32 %r2, %r1, 1; st.param.b32 [p], %r2;\n"                \
    "call.uni (q), fib, (p); ld.param.b32 %r3, [q]; }\n"                                           \
    "{ .param .b32 p; .param .b32 q; ld.local.u32 %r4, [kept]; sub.u32 %r2, %r4, 2;\n"             \
    "st.param.b32 [p], %r2; call.uni (q), fib, (p); ld.param.b32 %r5, [q]; }\n"                    \
    "add.u32 %r1, %r3, %r5;\n"                                                                     \
    "SMALL: st.param.b32 [result], %r1; ret; }\n"
#define CALLS(body) PTX_HEAD FUNCTIONS PTX_ENTRY body "\n" PTX_STORE "ret;\n}\n"

#define CALL_F(to, a, b)                                                                           \
    "{ .param .b32 p0; .param .b32 p1; .param .b32 q; st.param.b32 [p0], " a ";\n"                 \
    "st.param.b32 [p1], " b "; call.uni (q), f, (p0, p1); ld.param.b32 " to ", [q]; }\n"
#define CALL_FIB(to, a)                                                                            \
    "{ .param .b32 p0; .param .b32 q; st.param.b32 [p0], " a ";\n"                                 \
    "call (q), fib, (p0); ld.param.b32 " to ", [q]; }\n"

static uint32_t twice(uint32_t thread, uint32_t n) {
    return 3 * (3 * thread + n) + thread;
}

TEST(arguments_and_results) {
    bench_expect(bench_make(2, 48, 9),
                 CALLS("mov.u32 %r9, %ctaid.x; mov.u32 %r10, %ntid.x;\n"
                       "mad.lo.u32 %r10, %r9, %r10, %r0;\n" CALL_F("%r3", "%r10", "%r1")
                           CALL_F("%r2", "%r3", "%r10")),
                 96, twice);
}

static uint32_t either(uint32_t thread, uint32_t n) {
    return thread % 4 < 2 ? 3 * thread + n : (thread ^ (thread % 2 ? 7 : 8)) + n;
}

TEST(calls_inside_branches_and_branches_inside_calls) {
    bench_expect(bench_make(1, 64, 9),
                 CALLS("and.b32 %r9, %r0, 2; setp.eq.u32 %p1, %r9, 0; @%p1 bra F;\n"
                       "{ .param .b32 p0; .param .align 8 .b8 q[8]; st.param.b32 [p0], %r0;\n"
                       "call.uni (q), g, (p0); ld.param.v2.b32 {%r3, %r4}, [q]; }\n"
                       "xor.b32 %r2, %r3, %r4; add.u32 %r2, %r2, %r1; bra JOIN;\n"
                       "F: " CALL_F("%r2", "%r0", "%r1") "JOIN: vote.sync.all.pred %p2, %p1, -1;"),
                 64, either);
}

static uint32_t fib(uint32_t thread, uint32_t n) {
    uint32_t a = 0, b = 1;
    for (uint32_t i = 0; i < thread % 11 + n; i++) {
        const uint32_t c = a + b;
        a = b;
        b = c;
    }
    return a;
}

TEST(recursion_keeps_what_each_call_has) {
    bench_expect(bench_make(1, 40, 2),
                 CALLS("rem.u32 %r3, %r0, 11; add.u32 %r3, %r3, %r1;\n" CALL_FIB("%r2", "%r3")), 40,
                 fib);
}

TEST(recursion_without_end_is_found) {
    struct bench *bench = bench_make(3, 32, 0);
    CHECK_EQ(bench_run(bench, CALLS("mov.u32 %r3, 100000;\n" CALL_FIB("%r2", "%r3"))), VGPU_FAULT);
    bench_found(bench, "stack", "calls inside each other");
    bench_free(bench);
}

/* ---- vprintf ---- */

#define RUNTIME                                                                                    \
    ".extern .func (.param .b32 r) vprintf(.param .b64 a, .param .b64 b);\n"                       \
    ".extern .func __assertfail(.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d,\n"     \
    ".param .b64 e);\n"                                                                            \
    ".global .align 1 .b8 word[5] = {119, 111, 114, 100};\n"                                       \
    ".global .align 1 .b8 format[32] = {37, 51, 100, 32, 37, 115, 32, 37, 46, 50, 102, 32, 37,\n"  \
    "108, 108, 120, 37, 37, 10};\n" /* "%3d %s %.2f %llx%%\n" */

static const char PRINTS[] = PTX_HEAD RUNTIME PTX_ENTRY
    ".local .align 8 .b8 values[32];\n"
    "setp.gt.u32 %p1, %r0, 33; @%p1 exit; setp.lt.u32 %p1, %r0, 31; @%p1 exit;\n"
    "mov.u32 %r3, %ctaid.x; mad.lo.u32 %r4, %r3, 1000, %r0; st.local.u32 [values], %r4;\n"
    "mov.u64 %rd1, word; cvta.global.u64 %rd1, %rd1; st.local.u64 [values+8], %rd1;\n"
    "mov.b64 %rd2, 0d3FF8000000000000; st.local.u64 [values+16], %rd2;\n"
    "mov.b64 %rd3, 0xfedcba9876543210; st.local.u64 [values+24], %rd3;\n"
    "mov.u64 %rd4, values; cvta.local.u64 %rd4, %rd4; mov.u64 %rd5, format;\n"
    "cvta.global.u64 %rd5, %rd5;\n"
    "{ .param .b64 p0; .param .b64 p1; .param .b32 q; st.param.b64 [p0], %rd5;\n"
    "st.param.b64 [p1], %rd4; call.uni (q), vprintf, (p0, p1); ld.param.b32 %r2, [q]; }\n" PTX_STORE
    "ret; }\n";

/* What the program writes to stdout while the kernel runs. */
static void capture(struct bench *bench, const char *ptx, char *text, size_t size) {
    fflush(stdout);
    FILE *file = tmpfile();
    const int saved = dup(STDOUT_FILENO);
    dup2(fileno(file), STDOUT_FILENO);
    bench_run(bench, ptx);
    fflush(stdout);
    dup2(saved, STDOUT_FILENO);
    close(saved);
    rewind(file);
    text[fread(text, 1, size - 1, file)] = '\0';
    fclose(file);
}

TEST(what_is_printed_comes_in_the_order_of_threads) {
    char expected[1024] = "", text[1024];
    for (int cta = 0; cta < 4; cta++) {
        for (int thread = 31; thread <= 33; thread++) {
            const size_t used = strlen(expected);
            snprintf(expected + used, sizeof expected - used, "%3d word 1.50 fedcba9876543210%%\n",
                     1000 * cta + thread);
        }
    }
    for (int32_t threads = 1; threads <= 4; threads++) {
        struct bench *bench = bench_with(4, 64, 0, (struct bench_options){.threads = threads});
        capture(bench, PRINTS, text, sizeof text);
        bench_clean(bench);
        CHECK_STR(text, expected);
        CHECK_EQ(bench->out[31], 4);
        vgpu_stats stats; /* of the stores: what is read to be printed is no traffic */
        vgpu_stats_get(bench->gpu, &stats);
        CHECK_EQ(stats.global_sectors, 4 * 2);
        bench_free(bench);
    }
}

TEST(a_failed_assertion_ends_the_kernel) {
    struct bench *bench = bench_make(1, 64, 0);
    CHECK_EQ(bench_run(bench, PTX_HEAD RUNTIME PTX_ENTRY
                       "setp.ne.u32 %p1, %r0, 40; @%p1 bra FINE; mov.u64 %rd1, word;\n"
                       "cvta.global.u64 %rd1, %rd1;\n"
                       "{ .param .b64 p0; .param .b64 p1; .param .b32 p2; .param .b64 p3;\n"
                       ".param .b64 p4; st.param.b64 [p0], %rd1; st.param.b64 [p1], %rd1;\n"
                       "st.param.b32 [p2], 123; st.param.b64 [p3], %rd1; st.param.b64 [p4], 1;\n"
                       "call.uni __assertfail, (p0, p1, p2, p3, p4); }\n"
                       "FINE: mov.u32 %r2, 1; ret; }\n"),
             VGPU_FAULT);
    bench_found(bench, "assert", "word:123: word: assertion `word` failed");
    CHECK_EQ(bench_find(bench, "assert").warp, 1);
    CHECK_EQ(bench_find(bench, "assert").lanes, 1 << 8);
    bench_free(bench);
}

static void cannot_be_loaded(const char *ptx, const char *part) {
    vgpu_config config;
    vgpu_error error;
    vgpu *gpu = NULL;
    vgpu_module *module = NULL;
    vgpu_config_init(&config);
    CHECK_EQ(vgpu_open(&config, &gpu, &error), VGPU_OK);
    CHECK_EQ(vgpu_load(gpu, ptx, strlen(ptx), &module, &error), VGPU_LOAD);
    CHECK_CONTAINS(error.text, part);
    vgpu_close(gpu);
}

TEST(calls_that_make_no_sense_are_refused) {
    cannot_be_loaded(PTX_HEAD ".extern .func missing(.param .b32 a);\n" PTX_ENTRY
                              "{ .param .b32 p; st.param.b32 [p], %r0; call.uni missing, (p); }\n"
                              "ret; }\n",
                     "has no body");
    cannot_be_loaded(PTX_HEAD ".extern .func cudaLaunchDeviceV2(.param .b64 a);\n" PTX_ENTRY
                              "{ .param .b64 p; call.uni cudaLaunchDeviceV2, (p); } ret; }\n",
                     "dynamic parallelism");
    cannot_be_loaded(PTX_HEAD FUNCTIONS PTX_ENTRY
                     "{ .param .b32 p; .param .b32 q; call.uni (q), f, (p); } ret; }\n",
                     "1 arguments, the function has 2");
    cannot_be_loaded(PTX_HEAD PTX_ENTRY "bra.never END; END: ret; }\n", "bra");
    cannot_be_loaded(PTX_HEAD PTX_ENTRY "setmaxnreg.inc.sync.aligned.u32 100; ret; }\n",
                     "multiple of 8");
    cannot_be_loaded(PTX_HEAD PTX_ENTRY "bar.arrive 1; ret; }\n", "number of threads");
    cannot_be_loaded(PTX_HEAD PTX_ENTRY "fence.proxy.missing; ret; }\n", "fence");
    cannot_be_loaded(PTX_HEAD PTX_ENTRY
                     "vabsdiff4.u32.u32.u32.sat.add %r2, %r0, %r1, %r3; ret; }\n",
                     "unknown form of \"vabsdiff4\"");
    cannot_be_loaded(PTX_HEAD PTX_ENTRY "vanish.u32 %r2, %r0; ret; }\n",
                     "unknown instruction vanish");
}

TEST_MAIN()
