/* SPDX-License-Identifier: Apache-2.0
 *
 * test_foreign.c - forms and idioms of other compilers and libraries: stores that an mbarrier
 * counts, tensor maps made by the kernel, 128-bit registers, the reserved shared memory of
 * cooperative groups, grid barriers, values that are read and not used.
 *
 * Invariant: each kernel is correct as written, and the changes that break it are found.
 */
#include "vgpu/async_fixture.h"

#define KERNEL(params, body)                                                                       \
    PTX_HEAD ".visible .entry k(" params ")\n{\n.reg .pred %p<9>;\n.reg .b16 %h<9>;\n"             \
             ".reg .b32 %r<30>;\n.reg .b64 %rd<30>;\n.reg .b128 %q<9>;\n" body "ret;\n}\n"

/* ---- st.async, red.async --------------------------------------------------------------------- */

/* Two CTAs send each other their numbers: each thread its own to its place, and all of them a
 * sum to one word. 64 threads, 4 + 8 + 4 bytes each. */
static const char EXCHANGE[] = KERNEL(".param .u64 out", "\
.shared .align 16 .b8 box[1024];\n\
.shared .align 8 .b64 bar;\n\
mov.u32 %r1, %tid.x;\n\
mov.u32 %r2, %cluster_ctarank;\n\
mov.u32 %r3, bar;\n\
mov.u32 %r4, box;\n\
setp.ne.u32 %p1, %r1, 0;\n\
@%p1 bra ready;\n\
st.shared.u32 [box+768], 0;\n\
mbarrier.init.shared.b64 [%r3], 1;\n\
mbarrier.arrive.expect_tx.shared.b64 _, [%r3], 1024;\n\
ready:\n\
barrier.cluster.arrive;\n\
barrier.cluster.wait;\n\
xor.b32 %r5, %r2, 1;\n\
mapa.shared::cluster.u32 %r6, %r4, %r5;\n\
mapa.shared::cluster.u32 %r7, %r3, %r5;\n\
mad.lo.u32 %r8, %r2, 1000, %r1;\n\
add.u32 %r15, %r6, 768;\n\
mad.lo.u32 %r9, %r1, 12, %r6;\n\
mad.lo.u32 %r16, %r1, 4, %r6;\n\
add.u32 %r17, %r16, 256;\n\
mad.lo.u32 %r18, %r1, 8, %r6;\n\
add.u32 %r18, %r18, 256;\n\
st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r16], %r8, [%r7];\n\
st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%r18], {%r1, %r2}, [%r7];\n\
red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 "
                                                         "[%r15], %r1, [%r7];\n\
wait:\n\
mbarrier.try_wait.parity.shared.b64 %p2, [%r3], 0;\n\
@!%p2 bra wait;\n\
mad.lo.u32 %r10, %r1, 4, %r4;\n\
ld.shared.u32 %r11, [%r10];\n\
mad.lo.u32 %r12, %r1, 8, %r4;\n\
ld.shared.v2.u32 {%r13, %r14}, [%r12+256];\n\
ld.shared.u32 %r19, [box+768];\n\
ld.param.u64 %rd1, [out];\n\
mad.lo.u32 %r20, %r2, 64, %r1;\n\
mul.wide.u32 %rd2, %r20, 16;\n\
add.u64 %rd3, %rd1, %rd2;\n\
st.global.v4.u32 [%rd3], {%r11, %r13, %r14, %r19};\n\
barrier.cluster.arrive;\n\
barrier.cluster.wait;\n");

static void run_exchange(struct bench *bench, const char *ptx, uint32_t *out, int order) {
    bench_open(bench, (vgpu_async)order, 3);
    bench->dims.grid[0] = bench->dims.cluster[0] = 2;
    bench->dims.cluster[1] = bench->dims.cluster[2] = 1;
    vgpu_pointer buffer = bench_buffer(bench, NULL, 2 * 64 * 16);
    void *arguments[] = {&buffer};
    bench_run(bench, ptx, arguments);
    if (out != NULL) {
        bench_fetch(bench, out, buffer, 2 * 64 * 16);
    }
}

TEST(stores_that_an_mbarrier_counts) {
    for (int order = 0; order < ORDERS; order++) {
        struct bench bench;
        uint32_t out[2][64][4];
        run_exchange(&bench, EXCHANGE, out[0][0], order);
        bench_clean(&bench, "exchange", order);
        for (uint32_t i = 0; i < 128; i++) {
            const uint32_t other = 1 - i / 64, *got = out[i / 64][i % 64];
            CHECK(got[0] == other * 1000 + i % 64 && got[1] == i % 64 && got[2] == other);
            CHECK_MSG(got[3] == 64 * 63 / 2, "the sum is %u", got[3]);
        }
        bench_close(&bench);
    }
}

TEST(bugs_of_such_stores_are_found) {
    static const struct bug BUGS[] = {
        {"too few bytes expected", "_, [%r3], 1024;", "_, [%r3], 512;",
         "async-read-early|mbarrier"},
        {"too many bytes expected", "_, [%r3], 1024;", "_, [%r3], 1040;", "deadlock"},
        {"no wait", "wait:\nmbarrier.try_wait.parity.shared.b64 %p2, [%r3], 0;\n@!%p2 bra wait;",
         "", "async-read-early"},
        {"out of bounds", "add.u32 %r15, %r6, 768;", "add.u32 %r15, %r6, 1024;", "out-of-bounds"},
        {"misaligned", "add.u32 %r15, %r6, 768;", "add.u32 %r15, %r6, 770;", "misaligned"},
        {"two at one place", "mad.lo.u32 %r16, %r1, 4, %r6;", "mov.u32 %r16, %r6;",
         "async-overwrite|race"},
    };
    for (size_t i = 0; i < sizeof BUGS / sizeof BUGS[0]; i++) {
        struct bench bench;
        char *ptx = plant(EXCHANGE, BUGS[i].from, BUGS[i].to);
        run_exchange(&bench, ptx, NULL, VGPU_ASYNC_LIFO);
        bench_found(&bench, BUGS[i].kinds, BUGS[i].what, VGPU_ASYNC_LIFO);
        bench_close(&bench);
        free(ptx);
    }
}

/* ---- tensor maps made by the kernel ---------------------------------------------------------- */

/* A map of 24 x 20 numbers of 16 bits is made from zeros, copied to global memory, and its box of
 * 8 x 4 at (8, 2) loaded. */
static const char MAKES_MAP[] =
    KERNEL(".param .u64 data, .param .u64 map, .param .u64 out", "\
.shared .align 128 .b8 draft[128];\n\
.shared .align 8 .b64 bar;\n\
mov.u32 %r1, %tid.x;\n\
ld.param.u64 %rd1, [data];\n\
ld.param.u64 %rd2, [map];\n\
ld.param.u64 %rd3, [out];\n\
mov.u32 %r2, draft;\n\
mad.lo.u32 %r3, %r1, 4, %r2;\n\
st.shared.u32 [%r3], 0;\n\
bar.warp.sync -1;\n\
setp.ne.u32 %p1, %r1, 0;\n\
mov.u32 %r4, bar;\n\
@%p1 bra copy;\n\
mbarrier.init.shared.b64 [%r4], 1;\n\
cvt.u64.u32 %rd4, %r2;\n\
tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%rd4], %rd1;\n\
tensormap.replace.tile.rank.shared::cta.b1024.b32 [%rd4], 1;\n\
tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [%rd4], 0, 8;\n\
tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [%rd4], 1, 4;\n\
tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%rd4], 0, 24;\n\
tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%rd4], 1, 20;\n\
tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [%rd4], 0, 48;\n\
tensormap.replace.tile.element_stride.shared::cta.b1024.b32 [%rd4], 0, 1;\n\
tensormap.replace.tile.element_stride.shared::cta.b1024.b32 [%rd4], 1, 1;\n\
tensormap.replace.tile.elemtype.shared::cta.b1024.b32 [%rd4], 6;\n\
tensormap.replace.tile.interleave_layout.shared::cta.b1024.b32 [%rd4], 0;\n\
tensormap.replace.tile.swizzle_mode.shared::cta.b1024.b32 [%rd4], 0;\n\
tensormap.replace.tile.fill_mode.shared::cta.b1024.b32 [%rd4], 0;\n\
copy:\n\
bar.warp.sync -1;\n\
tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned "
                                                                 "[%rd2], [%r2], 128;\n\
fence.proxy.tensormap::generic.acquire.gpu [%rd2], 128;\n\
@%p1 bra wait;\n\
fence.proxy.async.shared::cta;\n\
mbarrier.arrive.expect_tx.shared.b64 _, [%r4], 64;\n\
mov.u32 %r5, tile;\n\
cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                                                                 "[%r5], [%rd2, {8, 2}], [%r4];\n\
wait:\n\
bar.warp.sync -1;\n\
again:\n\
mbarrier.try_wait.parity.shared.b64 %p2, [%r4], 0;\n\
@!%p2 bra again;\n\
mad.lo.u32 %r6, %r1, 2, 0;\n\
mov.u32 %r7, tile;\n\
add.u32 %r7, %r7, %r6;\n\
ld.shared.u16 %h1, [%r7];\n\
cvt.u64.u32 %rd5, %r6;\n\
add.u64 %rd5, %rd3, %rd5;\n\
st.global.u16 [%rd5], %h1;\n");

static void run_makes_map(struct bench *bench, const char *ptx, uint16_t *out, int order) {
    uint16_t data[20 * 24];
    for (uint32_t i = 0; i < 20 * 24; i++) {
        data[i] = (uint16_t)(i + 1);
    }
    bench_open(bench, (vgpu_async)order, 3);
    bench->dims.block[0] = 32;
    vgpu_pointer a = bench_buffer(bench, data, sizeof data);
    vgpu_pointer map = bench_buffer(bench, NULL, 128), result = bench_buffer(bench, NULL, 64);
    void *arguments[] = {&a, &map, &result};
    bench_run(bench, ptx, arguments);
    if (out != NULL) {
        bench_fetch(bench, out, result, 64);
    }
}

TEST(tensor_maps_made_by_a_kernel) {
    for (int order = 0; order < ORDERS; order++) {
        struct bench bench;
        uint16_t out[32];
        run_makes_map(&bench, MAKES_MAP, out, order);
        bench_clean(&bench, "tensormap.replace", order);
        for (uint32_t i = 0; i < 32; i++) {
            const uint32_t want = (2 + i / 8) * 24 + 8 + i % 8 + 1;
            CHECK_MSG(out[i] == want, "[%u] is %u, expected %u", i, out[i], want);
        }
        bench_close(&bench);
    }
}

TEST(bugs_of_such_maps_are_found) {
    static const struct bug BUGS[] = {
        {"the draft was never cleared", "st.shared.u32 [%r3], 0;", "", "uninitialised"},
        {"the draft is no map", "st.shared.u32 [%r3], 0;", "st.shared.u32 [%r3], 7;", "tensor-map"},
        {"a stride of 50 bytes", "[%rd4], 0, 48;", "[%rd4], 0, 50;", "tensor-map"},
        {"a box of nothing", "[%rd4], 1, 4;", "[%rd4], 1, 0;", "tensor-map"},
        {"an unknown type", "[%rd4], 6;", "[%rd4], 60;", "tensor-map"},
        {"a rank of 9", "[%rd4], 1;", "[%rd4], 8;", "tensor-map"},
        {"a draft at the wrong place", "cvt.u64.u32 %rd4, %r2;",
         "cvt.u64.u32 %rd4, %r2; add.u64 %rd4, %rd4, 64;", "misaligned"},
        {"beyond the tensor", "[%rd4], 1, 20;", "[%rd4], 1, 200;", ""},
        {"a tensor larger than its memory", "[%rd2, {8, 2}]", "[%rd2, {8, 18}]", ""},
    };
    for (size_t i = 0; i < sizeof BUGS / sizeof BUGS[0]; i++) {
        struct bench bench;
        char *ptx = plant(MAKES_MAP, BUGS[i].from, BUGS[i].to);
        run_makes_map(&bench, ptx, NULL, VGPU_ASYNC_EAGER);
        if (*BUGS[i].kinds != '\0') {
            bench_found(&bench, BUGS[i].kinds, BUGS[i].what, VGPU_ASYNC_EAGER);
        } else {
            bench_clean(&bench, BUGS[i].what, VGPU_ASYNC_EAGER);
        }
        bench_close(&bench);
        free(ptx);
    }
}

/* ---- 128 bits -------------------------------------------------------------------------------- */

TEST(registers_of_128_bits) {
    static const char PTX[] = KERNEL(".param .u64 x", "\
ld.param.u64 %rd1, [x];\n\
again:\n\
ld.relaxed.gpu.b128 %q1, [%rd1];\n\
mov.b128 {%rd2, %rd3}, %q1;\n\
add.u64 %rd4, %rd2, 1;\n\
add.u64 %rd5, %rd3, 3;\n\
mov.b128 %q2, {%rd4, %rd5};\n\
mov.b128 %q3, %q2;\n\
atom.relaxed.gpu.global.cas.b128 %q4, [%rd1], %q1, %q3;\n\
mov.b128 {%rd6, %rd7}, %q4;\n\
setp.ne.u64 %p1, %rd6, %rd2;\n\
@%p1 bra again;\n\
mov.u32 %r1, %tid.x;\n\
mov.u32 %r2, %ctaid.x;\n\
mad.lo.u32 %r1, %r2, 64, %r1;\n\
mul.wide.u32 %rd8, %r1, 16;\n\
add.u64 %rd9, %rd1, %rd8;\n\
atom.global.exch.b128 %q5, [%rd9+16], %q4;\n\
mov.b128 {%rd10, %rd11}, %q5;\n\
add.u64 %rd10, %rd10, %rd6;\n\
mov.b128 %q6, {%rd10, %rd11};\n\
st.global.b128 [%rd9+16], %q6;\n");
    enum { THREADS = 3 * 64 };
    struct bench bench;
    uint64_t x[THREADS + 1][2] = {{0}};
    bool seen[THREADS] = {false};
    bench_open(&bench, VGPU_ASYNC_EAGER, 3);
    bench.dims.grid[0] = 3;
    vgpu_pointer buffer = bench_buffer(&bench, x, sizeof x);
    void *arguments[] = {&buffer};
    bench_run(&bench, PTX, arguments);
    bench_clean(&bench, "128 bits", 0);
    bench_fetch(&bench, x, buffer, sizeof x);
    CHECK(x[0][0] == THREADS && x[0][1] == 3 * THREADS);
    for (uint32_t i = 1; i <= THREADS; i++) { /* each found another old value */
        CHECK(x[i][0] < THREADS && x[i][1] == 0 && !seen[x[i][0] % THREADS]);
        seen[x[i][0] % THREADS] = true;
    }
    bench_close(&bench);
}

/* ---- what cooperative groups take for granted ------------------------------------------------ */

TEST(reserved_shared_memory_and_the_barrier_of_a_grid) {
    static const char PTX[] = KERNEL(".param .u64 x", "\
.shared .align 4 .b8 mine[128];\n\
ld.param.u64 %rd1, [x];\n\
mov.u32 %r1, %tid.x;\n\
mov.u32 %r2, %ctaid.x;\n\
mov.u32 %r3, %reserved_smem_offset_1;\n\
mad.lo.u32 %r4, %r1, 4, %r3;\n\
st.shared.u32 [%r4], %r2;\n\
bar.sync 0;\n\
ld.shared.u32 %r5, [%r3+124];\n\
mov.pred %p3, %is_explicit_cluster;\n\
selp.u32 %r6, 1000, 0, %p3;\n\
add.u32 %r5, %r5, %r6;\n\
mad.lo.u32 %r7, %r2, 32, %r1;\n\
mul.wide.u32 %rd2, %r7, 4;\n\
add.u64 %rd3, %rd1, %rd2;\n\
st.global.u32 [%rd3], %r5;\n\
mov.u32 %r8, %envreg2;\n\
mov.u32 %r9, %envreg1;\n\
mov.b64 %rd4, {%r8, %r9};\n\
bar.sync 0;\n\
setp.ne.u32 %p1, %r1, 0;\n\
@%p1 bra there;\n\
atom.add.release.gpu.u32 %r10, [%rd4+4], 1;\n\
wait:\n\
ld.acquire.gpu.u32 %r11, [%rd4+4];\n\
setp.lt.u32 %p2, %r11, 24;\n\
@%p2 bra wait;\n\
there:\n\
bar.sync 0;\n\
sub.u32 %r12, 767, %r7;\n\
mul.wide.u32 %rd5, %r12, 4;\n\
add.u64 %rd6, %rd1, %rd5;\n\
ld.global.u32 %r13, [%rd6];\n\
st.global.u32 [%rd3+3072], %r13;\n");
    static const struct bug BUGS[] = {
        {"no release", "atom.add.release", "atom.add.relaxed", "race-global"},
        {"beyond what is reserved", "[%r3+124]", "[%r3+288]", "out-of-bounds"},
    };
    struct bench bench;
    uint32_t out[2][24 * 32];
    bench_open(&bench, VGPU_ASYNC_EAGER, 3);
    bench.dims.block[0] = 32;
    bench.dims.grid[0] = 24;
    vgpu_pointer buffer = bench_buffer(&bench, NULL, sizeof out);
    void *arguments[] = {&buffer};
    for (int run = 0; run < 2; run++) { /* each launch has a barrier of its own */
        bench_run(&bench, PTX, arguments);
    }
    bench_clean(&bench, "a grid that meets", 0);
    bench_fetch(&bench, out, buffer, sizeof out);
    for (uint32_t i = 0; i < 24 * 32; i++) {
        CHECK(out[0][i] == i / 32 && out[1][i] == 23 - i / 32);
    }
    bench_close(&bench);
    for (size_t i = 0; i < sizeof BUGS / sizeof BUGS[0]; i++) {
        char *ptx = plant(PTX, BUGS[i].from, BUGS[i].to);
        bench_open(&bench, VGPU_ASYNC_EAGER, 3);
        bench.dims.block[0] = 32;
        bench.dims.grid[0] = 24;
        buffer = bench_buffer(&bench, NULL, sizeof out);
        bench_run(&bench, ptx, arguments);
        bench_found(&bench, BUGS[i].kinds, BUGS[i].what, 0);
        bench_close(&bench);
        free(ptx);
    }
}

/* ---- two stages of cp.async, each with an mbarrier ------------------------------------------- */

TEST(an_mbarrier_hears_of_copies_that_another_one_made_land) {
    /* The arrivals of both stages are pending at once. The first one completes all copies before
     * it; the other barrier still completes its own. */
    static const char PTX[] = KERNEL(".param .u64 x, .param .u64 out", "\
.shared .align 16 .b8 stage[2048];\n\
.shared .align 8 .b8 bar[16];\n\
ld.param.u64 %rd1, [x];\n\
ld.param.u64 %rd2, [out];\n\
mov.u32 %r1, %tid.x;\n\
mov.u32 %r2, stage;\n\
mov.u32 %r3, bar;\n\
setp.ne.u32 %p1, %r1, 0;\n\
@%p1 bra ready;\n\
mbarrier.init.shared.b64 [%r3], 64;\n\
mbarrier.init.shared.b64 [%r3+8], 64;\n\
ready:\n\
bar.sync 0;\n\
shl.b32 %r4, %r1, 4;\n\
add.u32 %r5, %r2, %r4;\n\
cvt.u64.u32 %rd3, %r4;\n\
add.u64 %rd4, %rd1, %rd3;\n\
cp.async.cg.shared.global [%r5], [%rd4], 16;\n\
cp.async.mbarrier.arrive.noinc.shared.b64 [%r3];\n\
cp.async.cg.shared.global [%r5+1024], [%rd4+1024], 16;\n\
cp.async.mbarrier.arrive.noinc.shared.b64 [%r3+8];\n\
first:\n\
mbarrier.try_wait.parity.shared.b64 %p2, [%r3], 0;\n\
@!%p2 bra first;\n\
xor.b32 %r6, %r4, 1008;\n\
add.u32 %r7, %r2, %r6;\n\
ld.shared.u32 %r8, [%r7];\n\
second:\n\
mbarrier.try_wait.parity.shared.b64 %p3, [%r3+8], 0;\n\
@!%p3 bra second;\n\
ld.shared.u32 %r9, [%r7+1024];\n\
shl.b32 %r10, %r1, 3;\n\
cvt.u64.u32 %rd5, %r10;\n\
add.u64 %rd6, %rd2, %rd5;\n\
st.global.v2.u32 [%rd6], {%r8, %r9};\n");
    uint32_t x[2][64][4], out[64][2];
    for (uint32_t i = 0; i < 512; i++) {
        x[i / 256][i / 4 % 64][i % 4] = i;
    }
    for (int bug = 0; bug < 2; bug++) {
        size_t found = 0;
        for (int order = 0; order < ORDERS; order++) {
            struct bench bench;
            char *ptx = plant(PTX, bug ? "[%r7]" : "ret;", bug ? "[%r7+1024]" : "ret;");
            bench_open(&bench, (vgpu_async)order, 3);
            vgpu_pointer from = bench_buffer(&bench, x, sizeof x);
            vgpu_pointer to = bench_buffer(&bench, NULL, sizeof out);
            void *arguments[] = {&from, &to};
            bench_run(&bench, ptx, arguments);
            found += bench_count(&bench, "async-read-early") + bench_count(&bench, "race");
            bench_fetch(&bench, out, to, sizeof out);
            if (!bug && bench_clean(&bench, "two stages", order)) {
                for (uint32_t i = 0; i < 64; i++) {
                    CHECK(out[i][0] == 4 * (63 - i) && out[i][1] == 256 + 4 * (63 - i));
                }
            }
            bench_close(&bench);
            free(ptx);
        }
        CHECK_MSG((found > 0) == bug, "the second stage read after the first wait: %zu", found);
    }
}

/* ---- values that do not matter --------------------------------------------------------------- */

TEST(what_was_read_and_does_not_matter) {
    /* the word after the last one of a CTA: read before the bounds check */
    static const char PTX[] = KERNEL(".param .u64 x", "\
.shared .align 4 .b8 words[260];\n\
ld.param.u64 %rd1, [x];\n\
mov.u32 %r1, %tid.x;\n\
mov.u32 %r2, words;\n\
mad.lo.u32 %r3, %r1, 4, %r2;\n\
st.shared.u32 [%r3], %r1;\n\
bar.sync 0;\n\
ld.shared.u32 %r4, [%r3+4];\n\
setp.lt.u32 %p1, %r1, 63;\n\
setp.gt.u32 %p2, %r4, %r1;\n\
and.pred %p3, %p1, %p2;\n\
setp.ge.u32 %p4, %r1, 63;\n\
or.pred %p5, %p4, %p2;\n\
setp.gt.and.u32 %p6, %r4, %r1, %p1;\n\
selp.u32 %r5, 1, 0, %p3;\n\
selp.u32 %r6, 2, 0, %p5;\n\
selp.u32 %r7, 4, 0, %p6;\n\
add.u32 %r5, %r5, %r6;\n\
add.u32 %r5, %r5, %r7;\n\
mul.wide.u32 %rd2, %r1, 4;\n\
add.u64 %rd3, %rd1, %rd2;\n\
st.global.b32 [%rd3], {%r5};\n");
    struct bench bench;
    uint32_t out[64];
    bench_open(&bench, VGPU_ASYNC_EAGER, 3);
    vgpu_pointer buffer = bench_buffer(&bench, NULL, sizeof out);
    void *arguments[] = {&buffer};
    bench_run(&bench, PTX, arguments);
    bench_clean(&bench, "masked later", 0);
    bench_fetch(&bench, out, buffer, sizeof out);
    for (uint32_t i = 0; i < 64; i++) {
        CHECK(out[i] == (i < 63 ? 7 : 2));
    }
    bench_close(&bench);
    char *ptx = plant(PTX, "setp.lt.u32 %p1, %r1, 63;", "setp.lt.u32 %p1, %r1, 64;");
    bench_open(&bench, VGPU_ASYNC_EAGER, 3);
    buffer = bench_buffer(&bench, NULL, sizeof out);
    bench_run(&bench, ptx, arguments);
    bench_found(&bench, "uninitialised", "masked too late", 0);
    bench_close(&bench);
    free(ptx);
}

TEST_MAIN()
