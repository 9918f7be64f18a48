/* SPDX-License-Identifier: Apache-2.0
 *
 * test_wgmma.c - wgmma on the virtual GPU: layouts of both majors under every swizzle,
 * operands from registers and from shared memory, against MMAs computed element by element;
 * and what goes wrong around it.
 *
 * A GEMM is two instructions: the first ignores its accumulator, the second continues along k.
 * Inputs are small integers, exact in every format and in every sum: results are bit-equal.
 */
#include "vgpu.h"
#include "vgpu/tensor_rig.h"

enum { THREADS = 128, ROWS = 64, MAX_N = 256, IMAGE = 49152, B_AT = 16384, STEPS = 2 };

static int a[ROWS][64], b[64][MAX_N], d[ROWS][MAX_N];

struct layout {
    unsigned swizzle; /* bytes, 0: none */
    bool transposed;
    unsigned rows; /* of the tile: of A, or columns of B */
    unsigned k;    /* of one instruction */
    unsigned bits;
};

/* ---- where elements lie ---------------------------------------------------------------------- */

/* A 16-byte chunk of row r in a tile with rows of `swizzle` bytes, at a multiple of 1024. */
static unsigned in_tile(unsigned swizzle, unsigned r, unsigned chunk) {
    switch (swizzle) {
    case 128: return r * 128 + (chunk ^ (r & 7)) * 16;
    case 64: return r * 64 + (chunk ^ (r >> 1 & 3)) * 16;
    default: return r * 32 + (chunk ^ (r >> 2 & 1)) * 16;
    }
}

/* Byte of element (row, k), k over all steps. */
static unsigned place(const struct layout *layout, unsigned row, unsigned k) {
    const unsigned size = layout->bits / 8, byte = k * size;
    if (layout->swizzle == 0 && !layout->transposed) {
        return row / 8 * 512 + byte / 16 * 128 + row % 8 * 16 + byte % 16;
    }
    if (layout->swizzle == 0) {
        return row / 8 * 128 + k / 8 * (layout->rows / 8 * 128) + k % 8 * 16 + row % 8 * 2;
    }
    if (layout->transposed) { /* rows of k; blocks of swizzle / 2 elements side by side */
        const unsigned wide = layout->swizzle / 2, in_block = row % wide;
        return row / wide * (STEPS * 16 * layout->swizzle) +
               in_tile(layout->swizzle, k, in_block / 8) + in_block % 8 * 2;
    }
    return byte / layout->swizzle * (layout->rows * layout->swizzle) +
           in_tile(layout->swizzle, row, byte % layout->swizzle / 16) + byte % 16;
}

static unsigned step_offset(const struct layout *layout) {
    if (layout->swizzle == 0) {
        return 2 * (layout->transposed ? layout->rows / 8 * 128 : 128);
    }
    if (layout->transposed) {
        return 16 * layout->swizzle;
    }
    return layout->swizzle > 32 ? 32 : layout->rows * 32;
}

/* All of the descriptor but its start. */
static uint64_t descriptor(const struct layout *layout) {
    const uint64_t mode = layout->swizzle == 128 ? 1 : layout->swizzle == 64 ? 2 : 3;
    uint64_t leading = 16, stride = 8 * layout->swizzle;
    if (layout->swizzle == 0) {
        leading = layout->transposed ? layout->rows / 8 * 128 : 128;
        stride = layout->transposed ? 128 : 512;
    } else if (layout->transposed) {
        leading = STEPS * 16 * layout->swizzle;
    }
    return leading >> 4 << 16 | stride >> 4 << 32 | (layout->swizzle == 0 ? 0 : mode) << 62;
}

/* ---- kernels --------------------------------------------------------------------------------- */

struct wgmma_case {
    const char *a_type, *d_type;
    unsigned n, a_swizzle, b_swizzle;
    bool from_registers, a_transposed, b_transposed, negative;
};

/* What a kernel does, so that tests can leave things out. */
enum {
    NO_PROXY_FENCE = 1,
    NO_FENCE = 2,
    NO_WAIT = 4,
    READ_EARLY = 8,
    OVERWRITE_EARLY = 16,
    WRITE_A_EARLY = 32,
    NO_COMMIT = 64,
    PAUSE = 128,   /* no fault: the warps meet while MMAs are in flight */
    RELEASE = 256, /* no fault: warp 0 alone waits, signals a fifth warp, and that overwrites B,
                            while the other three come late */
    RELEASE_EARLY = 512,  /* the same before the wait */
    MISSING = 1024,       /* warp 2 waits elsewhere and never issues its part */
    EXITED = 2048,        /* warp 2 exits instead */
    OTHER_B = 4096,       /* warp 2 has another descriptor of B */
    WRITE_LATE = 8192,    /* an accumulator is written after the fence */
    CONSTANT_LATE = 16384 /* no fault: with a constant */
};

static void copy_in(struct text *text, unsigned faults) {
    text_add(text,
             "mov.u32 %%r3, tile;\nmov.u32 %%r4, 0;\nmad.lo.u32 %%r5, %%r1, 4, %%r3;\n"
             "mad.wide.u32 %%rd3, %%r1, 4, %%rd1;\nAGAIN:\nld.global.b32 %%r6, [%%rd3];\n"
             "st.shared.b32 [%%r5], %%r6;\nadd.u64 %%rd3, %%rd3, 512;\n"
             "add.u32 %%r5, %%r5, 512;\nadd.u32 %%r4, %%r4, 512;\n"
             "setp.lt.u32 %%p1, %%r4, %d;\n@%%p1 bra AGAIN;\n%sbar.sync 0;\n",
             IMAGE, (faults & NO_PROXY_FENCE) ? "" : "fence.proxy.async;\n");
}

/* What some of the warps do before they issue. */
static void add_strays(struct text *text, unsigned faults) {
    if (faults & (RELEASE | RELEASE_EARLY)) {
        text_add(text, "setp.lt.u32 %%p4, %%r1, 32;\n@%%p4 bra READY;\nmov.u32 %%r8, 20000;\n"
                       "SPIN:\nsub.u32 %%r8, %%r8, 1;\nsetp.ne.u32 %%p5, %%r8, 0;\n"
                       "@%%p5 bra SPIN;\nREADY:\n");
    }
    text_add(text, "shr.u32 %%r9, %%r1, 5;\nsetp.eq.u32 %%p6, %%r9, 2;\n");
    if (faults & (MISSING | EXITED)) {
        text_add(text, "@%%p6 bra STRAY;\n");
    }
    if (faults & OTHER_B) {
        text_add(text, "@%%p6 add.u64 %%rd7, %%rd7, 64;\n");
    }
}

/* Where they go; a fifth warp overwrites B as soon as warp 0 lets it. */
static void add_stray_ends(struct text *text, unsigned faults) {
    if (faults & (MISSING | EXITED)) {
        text_add(text, "ret;\nSTRAY:\n%s", (faults & MISSING) ? "bar.sync 3, 64;\n" : "");
    }
    if (faults & (RELEASE | RELEASE_EARLY)) {
        text_add(text, "ret;\nFIFTH:\nbar.sync 0;\nbar.sync 1, 64;\nmov.u32 %%r3, tile;\n"
                       "mad.lo.u32 %%r3, %%r2, 4, %%r3;\nmov.u32 %%r4, 0;\nWIPE:\n"
                       "st.shared.b32 [%%r3+16384], %%r4;\nadd.u32 %%r3, %%r3, 128;\n"
                       "add.u32 %%r4, %%r4, 128;\nsetp.lt.u32 %%p1, %%r4, 16384;\n"
                       "@%%p1 bra WIPE;\n");
    }
}

static void add_registers(struct text *text, unsigned from, unsigned count) {
    for (unsigned i = 0; i < count; i++) {
        text_add(text, "%s%%r%u", i == 0 ? "{" : ",", from + i);
    }
    text_add(text, "}");
}

static void add_product(struct text *text, const struct wgmma_case *test, unsigned step,
                        unsigned d_count) {
    const bool integer = test->d_type[0] == 's';
    const unsigned k = 256 / type_bits(test->a_type);
    text_add(text, "wgmma.mma_async.sync.aligned.m64n%uk%u.%s.%s.%s ", test->n, k, test->d_type,
             test->a_type, test->a_type);
    add_registers(text, 100, d_count);
    text_add(text, ", ");
    if (test->from_registers) {
        add_registers(text, 20 + 4 * step, 4);
    } else {
        text_add(text, "%%rd%u", 6 + 2 * step);
    }
    text_add(text, ", %%rd%u, ", 7 + 2 * step);
    text_add(text, step == 0 ? "%%p2" : "1");
    if (!integer) {
        text_add(text, test->negative ? ", -1, 1" : ", 1, 1");
    }
    if (type_bits(test->a_type) == 16) {
        if (!test->from_registers) {
            text_add(text, ", %d", test->a_transposed);
        }
        text_add(text, ", %d", test->b_transposed);
    }
    text_add(text, ";\n");
}

static void wgmma_text(struct text *text, const struct wgmma_case *test, const struct layout *a_at,
                       const struct layout *b_at, unsigned faults) {
    const unsigned d_count = test->n * type_bits(test->d_type) / 64;
    text_begin(text, "sm_90a", ".shared .align 1024 .b8 tile[49152];");
    if (faults & (RELEASE | RELEASE_EARLY)) {
        text_add(text, "setp.ge.u32 %%p3, %%r1, %d;\n@%%p3 bra FIFTH;\n", THREADS);
    }
    copy_in(text, faults);
    text_add(text, "mad.wide.u32 %%rd3, %%r1, 32, %%rd1;\n");
    for (unsigned i = 0; test->from_registers && i < 8; i++) {
        text_add(text, "ld.global.b32 %%r%u, [%%rd3+%u];\n", 20 + i, IMAGE + i * 4);
    }
    for (unsigned step = 0; step < STEPS; step++) {
        for (unsigned which = 0; which < 2; which++) {
            const struct layout *at = which == 0 ? a_at : b_at;
            text_add(
                text,
                "add.u32 %%r5, %%r3, %u;\nand.b32 %%r5, %%r5, 262143;\nshr.u32 %%r5, %%r5, 4;\n"
                "cvt.u64.u32 %%rd5, %%r5;\nor.b64 %%rd%u, %%rd5, %" PRIu64 ";\n",
                (which == 0 ? 0U : (unsigned)B_AT) + step * step_offset(at), 6 + 2 * step + which,
                descriptor(at));
        }
    }
    add_strays(text, faults);
    text_add(text, "setp.ne.u32 %%p2, %%r3, %%r3;\n%s",
             (faults & NO_FENCE) ? "" : "wgmma.fence.sync.aligned;\n");
    text_add(text, "%s%s",
             (faults & CONSTANT_LATE) ? "mov.b32 %r99, 0;\nmov.b32 %r100, %r99;\n" : "",
             (faults & WRITE_LATE) ? "mov.b32 %r100, %r1;\n" : "");
    for (unsigned step = 0; step < STEPS; step++) {
        add_product(text, test, step, d_count);
    }
    text_add(text, "%s%s%s%s%s%s%s%s",
             (faults & NO_COMMIT) ? "" : "wgmma.commit_group.sync.aligned;\n",
             (faults & PAUSE) ? "bar.sync 0;\n" : "",
             (faults & READ_EARLY) ? "mov.b32 %r7, %r100;\n" : "",
             (faults & OVERWRITE_EARLY) ? "st.shared.b32 [%r3+16384], %r1;\n" : "",
             (faults & WRITE_A_EARLY) ? "mov.b32 %r20, 0;\n" : "",
             (faults & RELEASE_EARLY) ? "@%p4 bar.arrive 1, 64;\n" : "",
             (faults & NO_WAIT) ? "" : "wgmma.wait_group.sync.aligned 0;\n",
             (faults & RELEASE) ? "@%p4 bar.arrive 1, 64;\n" : "");
    text_add(text, "mad.wide.u32 %%rd4, %%r1, %u, %%rd2;\n", d_count * 4);
    for (unsigned i = 0; (faults & (NO_WAIT | NO_COMMIT)) == 0 && i < d_count; i++) {
        text_add(text, "st.global.b32 [%%rd4+%u], %%r%u;\n", i * 4, 100 + i);
    }
    add_stray_ends(text, faults);
    text_end(text);
}

/* ---- GEMMs ----------------------------------------------------------------------------------- */

static void make_product(unsigned n, unsigned k, const char *type, int sign) {
    const int low = type[0] == 'u' ? 0 : 3;
    for (unsigned i = 0; i < ROWS * k; i++) {
        a[i / k][i % k] = (int)(random_bits() % 7) - low;
    }
    for (unsigned i = 0; i < k * n; i++) {
        b[i / n][i % n] = (int)(random_bits() % 7) - low;
    }
    for (unsigned i = 0; i < ROWS * n; i++) {
        int sum = 0;
        for (unsigned l = 0; l < k; l++) {
            sum += a[i / n][l] * b[l][i % n];
        }
        d[i / n][i % n] = sign * sum;
    }
}

static unsigned char in[IMAGE + THREADS * 32], out[THREADS * 512], expected[THREADS * 512];

/* The A registers of both steps, thread by thread. */
static void put_a_registers(const char *type, unsigned k) {
    const unsigned bits = type_bits(type), e = 32 / bits;
    for (unsigned thread = 0; thread < THREADS; thread++) {
        const unsigned w = thread / 32, l = thread % 32;
        for (unsigned i = 0; i < STEPS * 4 * e; i++) {
            const unsigned step = i / (4 * e), in_step = i % (4 * e);
            const unsigned row = 16 * w + l / 4 + 8 * (in_step / e & 1);
            const unsigned column = in_step / (2 * e) * 4 * e + l % 4 * e + in_step % e;
            put_bits(in + IMAGE + (size_t)thread * 32, i, bits,
                     small_bits(type, a[row][step * k + column]));
        }
    }
}

static void fill(const struct wgmma_case *test, const struct layout *a_at,
                 const struct layout *b_at) {
    const unsigned bits = a_at->bits, k = a_at->k, values = test->n / 2;
    memset(in, 0, sizeof in);
    make_product(test->n, STEPS * k, test->a_type, test->negative ? -1 : 1);
    for (unsigned j = 0; j < STEPS * k; j++) {
        for (unsigned i = 0; i < ROWS; i++) {
            put_bits(in, place(a_at, i, j) * 8 / bits, bits, small_bits(test->a_type, a[i][j]));
        }
        for (unsigned i = 0; i < test->n; i++) {
            put_bits(in + B_AT, place(b_at, i, j) * 8 / bits, bits,
                     small_bits(test->a_type, b[j][i]));
        }
    }
    put_a_registers(test->a_type, k);
    for (unsigned i = 0; i < THREADS * values; i++) {
        const unsigned thread = i / values, v = i % values, l = thread % 32;
        const unsigned row = 16 * (thread / 32) + l / 4 + 8 * (v >> 1 & 1);
        put_bits(expected, i, type_bits(test->d_type),
                 small_bits(test->d_type, d[row][8 * (v >> 2) + 2 * (l % 4) + (v & 1)]));
    }
}

static struct rig run_case(const struct wgmma_case *test, unsigned faults, vgpu_async async,
                           struct text *text) {
    const unsigned bits = type_bits(test->a_type), k = 256 / bits;
    const struct layout a_at = {test->a_swizzle, test->a_transposed, ROWS, k, bits};
    const struct layout b_at = {test->b_swizzle, test->b_transposed, test->n, k, bits};
    fill(test, &a_at, &b_at);
    wgmma_text(text, test, &a_at, &b_at, faults);
    const unsigned threads = THREADS + (faults & (RELEASE | RELEASE_EARLY) ? 32U : 0U);
    return rig_run(text, threads, in, sizeof in, 0, out,
                   (size_t)THREADS * test->n * type_bits(test->d_type) / 16, async);
}

static void check_case(const struct wgmma_case *test, vgpu_async async, unsigned how) {
    struct text text = {0};
    struct rig rig = run_case(test, how, async, &text);
    CHECK_MSG(memcmp(out, expected, (size_t)THREADS * test->n * type_bits(test->d_type) / 16) == 0,
              "n%u %s -> %s, A %s%u%s, B %u%s: wrong result", test->n, test->a_type, test->d_type,
              test->from_registers ? "in registers " : "", test->a_swizzle,
              test->a_transposed ? " transposed" : "", test->b_swizzle,
              test->b_transposed ? " transposed" : "");
    rig_check_clean(&rig);
    rig_close(&rig, &text);
}

TEST(every_swizzle_and_major) {
    static const unsigned swizzles[] = {128, 64, 32, 0};
    for (unsigned i = 0; i < 64; i++) {
        const struct wgmma_case test = {.a_type = i & 16 ? "bf16" : "f16",
                                        .d_type = "f32",
                                        .n = i & 32 ? 128 : 64,
                                        .a_swizzle = swizzles[i % 4],
                                        .b_swizzle = swizzles[(i / 4 + i) % 4],
                                        .a_transposed = i & 4,
                                        .b_transposed = i & 8};
        check_case(&test, VGPU_ASYNC_EAGER, 0);
    }
}

TEST(every_width) {
    for (unsigned n = 8; n <= MAX_N; n += 8) {
        const bool turned = n % 64 == 0 && n % 128 != 0;
        const struct wgmma_case test = {.a_type = "f16",
                                        .d_type = n % 16 ? "f32" : "f16",
                                        .n = n,
                                        .a_swizzle = 128,
                                        .b_swizzle = n > 192 ? 64 : 128,
                                        .from_registers = n % 24 == 0,
                                        .b_transposed = turned,
                                        .negative = n % 40 == 0};
        check_case(&test, VGPU_ASYNC_FIFO, 0);
    }
}

TEST(every_type_from_registers_and_memory) {
    static const char *const types[][2] = {{"f16", "f32"},  {"f16", "f16"},  {"bf16", "f32"},
                                           {"tf32", "f32"}, {"e4m3", "f32"}, {"e5m2", "f32"},
                                           {"e4m3", "f16"}, {"s8", "s32"},   {"u8", "s32"}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        for (unsigned j = 0; j < 4; j++) {
            const struct wgmma_case test = {.a_type = types[i][0],
                                            .d_type = types[i][1],
                                            .n = j & 1 ? 96 : 16,
                                            .a_swizzle = 64,
                                            .b_swizzle = j & 1 ? 128 : 32,
                                            .from_registers = j & 2};
            check_case(&test, VGPU_ASYNC_LIFO, 0);
        }
    }
}

static const struct wgmma_case plain = {
    .a_type = "f16", .d_type = "f32", .n = 64, .a_swizzle = 128, .b_swizzle = 128};
static const struct wgmma_case in_registers = {.a_type = "bf16",
                                               .d_type = "f32",
                                               .n = 64,
                                               .b_swizzle = 128,
                                               .from_registers = true,
                                               .b_transposed = true};

TEST(every_order_of_completion) {
    for (int async = VGPU_ASYNC_EAGER; async <= VGPU_ASYNC_RANDOM; async++) {
        check_case(&plain, (vgpu_async)async, 0);
        check_case(&in_registers, (vgpu_async)async, 0);
    }
    for (rig_seed = 2; rig_seed < 40; rig_seed++) {
        check_case(&plain, VGPU_ASYNC_RANDOM, PAUSE);
    }
}

/* ---- findings -------------------------------------------------------------------------------- */

static uint64_t count_of(const struct wgmma_case *test, unsigned faults, const char *kind) {
    struct text text = {0};
    struct rig rig = run_case(test, faults, VGPU_ASYNC_FIFO, &text);
    const uint64_t count = rig_count(&rig, kind);
    rig_close(&rig, &text);
    return count;
}

TEST(missing_fences_are_found) {
    CHECK(count_of(&plain, NO_PROXY_FENCE, "proxy-fence") > 0);
    CHECK(count_of(&plain, NO_FENCE, "wgmma-fence") > 0);
    CHECK(count_of(&in_registers, NO_FENCE, "wgmma-fence") > 0);
    CHECK(count_of(&plain, WRITE_LATE, "wgmma-fence") > 0);
}

/* nvcc moves them there; ptxas puts a fence after them. */
TEST(constants_after_the_fence_are_right) {
    CHECK_EQ(count_of(&plain, CONSTANT_LATE, "wgmma-fence"), 0U);
}

TEST(registers_in_flight_are_found) {
    CHECK(count_of(&plain, READ_EARLY, "register-in-flight") > 0);
    CHECK(count_of(&in_registers, WRITE_A_EARLY, "register-in-flight") > 0);
    CHECK_EQ(count_of(&plain, WRITE_A_EARLY, "register-in-flight"), 0U);
}

TEST(unfinished_products_are_found) {
    CHECK(count_of(&plain, NO_WAIT, "async-unfinished") > 0);
    CHECK(count_of(&plain, NO_COMMIT, "async-unfinished") > 0);
}

TEST(products_without_end_are_stopped) {
    static uint32_t from[8], to[8];
    struct text text = {0};
    text_begin(&text, "sm_90a", ".shared .align 1024 .b8 tile[4096];");
    text_add(&text, "mov.u32 %%r3, tile;\nshr.u32 %%r4, %%r3, 4;\ncvt.u64.u32 %%rd5, %%r4;\n"
                    "or.b64 %%rd6, %%rd5, 4611686293305294848;\nwgmma.fence.sync.aligned;\nAGAIN:\n"
                    "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%%r20,%%r21,%%r22,%%r23}, "
                    "%%rd6, %%rd6, 0, 1, 1, 0, 0;\n"
                    "wgmma.commit_group.sync.aligned;\nbra AGAIN;\n");
    text_end(&text);
    struct rig rig = rig_run(&text, THREADS, from, sizeof from, 0, to, sizeof to, VGPU_ASYNC_FIFO);
    CHECK_EQ(rig.status, VGPU_FAULT);
    CHECK_EQ(rig_count(&rig, "memory-limit"), 1U);
    rig_close(&rig, &text);
}

TEST(operands_overwritten_early_are_found) {
    CHECK(count_of(&plain, OVERWRITE_EARLY, "async-overwrite") > 0);
}

/* ---- the warps of a warpgroup ---------------------------------------------------------------- */

TEST(one_warp_releases_for_all_four) {
    for (int async = VGPU_ASYNC_EAGER; async <= VGPU_ASYNC_RANDOM; async++) {
        check_case(&plain, (vgpu_async)async, RELEASE);
        check_case(&in_registers, (vgpu_async)async, RELEASE);
    }
    for (rig_seed = 2; rig_seed < 20; rig_seed++) {
        check_case(&plain, VGPU_ASYNC_RANDOM, RELEASE);
    }
    CHECK(count_of(&plain, RELEASE_EARLY, "race") +
              count_of(&plain, RELEASE_EARLY, "async-overwrite") >
          0);
}

TEST(a_warp_that_never_comes_is_named) {
    struct text text = {0};
    struct rig rig = run_case(&plain, MISSING, VGPU_ASYNC_FIFO, &text);
    vgpu_finding finding;
    unsigned named = 0;
    CHECK_EQ(rig.status, VGPU_FAULT);
    for (size_t i = 0; vgpu_finding_get(rig.gpu, i, &finding); i++) {
        CHECK_MSG(strcmp(finding.kind, "deadlock") == 0, "%s: %s", finding.kind, finding.text);
        named += strstr(finding.text, "an MMA not yet issued by warp 2") != NULL;
    }
    CHECK(named > 0);
    rig_close(&rig, &text);
}

TEST(warps_that_do_not_take_part_are_found) {
    CHECK(count_of(&plain, EXITED, "divergent-warp-op") > 0);
    CHECK_EQ(count_of(&plain, EXITED, "deadlock"), 0U);
    CHECK(count_of(&plain, OTHER_B, "descriptor") > 0);
}

/* ---- descriptors ----------------------------------------------------------------------------- */

/* One wgmma whose descriptor of B is base + offset, with more bits set. */
static uint64_t descriptor_findings(unsigned offset, uint64_t more, unsigned threads) {
    static uint32_t from[8], to[8];
    struct text text = {0};
    text_begin(&text, "sm_90a", ".shared .align 1024 .b8 tile[4096];");
    text_add(&text,
             "mov.u32 %%r3, tile;\nshr.u32 %%r4, %%r3, 4;\ncvt.u64.u32 %%rd5, %%r4;\n"
             "or.b64 %%rd6, %%rd5, 4611686293305294848;\nadd.u64 %%rd7, %%rd6, %u;\n"
             "or.b64 %%rd7, %%rd7, %" PRIu64 ";\n"
             "mov.b32 %%r10, 0;\nmov.b32 %%r11, 0;\nmov.b32 %%r12, 0;\nmov.b32 %%r13, 0;\n"
             "wgmma.fence.sync.aligned;\n"
             "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%%r20,%%r21,%%r22,%%r23}, "
             "{%%r10,%%r11,%%r12,%%r13}, %%rd7, 0, 1, 1, 0;\n"
             "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n",
             offset / 16, more);
    text_end(&text);
    struct rig rig = rig_run(&text, threads, from, sizeof from, 0, to, sizeof to, VGPU_ASYNC_EAGER);
    const uint64_t count = rig_count(&rig, "descriptor") + rig_count(&rig, "divergent-warp-op");
    rig_close(&rig, &text);
    return count;
}

TEST(illegal_descriptors_are_found) {
    CHECK_EQ(descriptor_findings(0, 0, THREADS), 0U);
    CHECK_EQ(descriptor_findings(32, 0, THREADS), 0U); /* a step along k */
    CHECK(descriptor_findings(128, 0, THREADS) > 0);   /* the second row of the pattern */
    CHECK(descriptor_findings(4096, 0, THREADS) > 0);  /* past the end */
    CHECK(descriptor_findings(0, 1ULL << 52, THREADS) > 0);
    CHECK(descriptor_findings(0, 1ULL << 14, THREADS) > 0);
    CHECK(descriptor_findings(0, 0, 96) > 0); /* three warps are no warpgroup */
}

TEST_MAIN()
