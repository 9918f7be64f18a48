/* SPDX-License-Identifier: Apache-2.0
 *
 * test_loads.c - ld, st, atom, red, cvta, isspacep, mapa and their kin in PTX against plain C:
 * forms that are not known are refused; poison is reported where it does harm and nowhere else.
 */
#include "test.h"

#include <stdlib.h>

#include "vgpu.h"

static char ptx_text[1 << 14];
static vgpu_error why;

static vgpu *open_gpu(int32_t threads) {
    vgpu_config config;
    vgpu *gpu = NULL;
    vgpu_config_init(&config);
    config.threads = threads;
    CHECK_EQ(vgpu_open(&config, &gpu, &why), VGPU_OK);
    return gpu;
}

static vgpu_module *load(vgpu *gpu, const char *body) {
    vgpu_module *module = NULL;
    snprintf(ptx_text, sizeof ptx_text,
             ".version 8.0\n.target sm_90\n.address_size 64\n"
             ".visible .entry k(.param .u64 out, .param .u64 in, .param .align 8 .b8 box[24])\n{\n"
             ".reg .pred %%p<9>;\n.reg .b16 %%h<20>;\n.reg .b32 %%r<40>;\n.reg .f32 %%f<20>;\n"
             ".reg .b64 %%rd<40>;\n.reg .f64 %%fd<9>;\n"
             ".shared .align 16 .b8 tile[4096];\n.local .align 16 .b8 depot[64];\n"
             "ld.param.u64 %%rd1, [out];\nld.param.u64 %%rd2, [in];\n"
             "mov.u32 %%r1, %%tid.x;\nmul.wide.u32 %%rd3, %%r1, 64;\n"
             "add.s64 %%rd4, %%rd1, %%rd3;\nadd.s64 %%rd5, %%rd2, %%rd3;\n"
             "mul.lo.u32 %%r3, %%r1, 16;\nmov.u32 %%r2, tile;\nadd.u32 %%r2, %%r2, %%r3;\n"
             "%s\nret;\n}\n",
             body);
    if (vgpu_load(gpu, ptx_text, strlen(ptx_text), &module, &why) != VGPU_OK) {
        return NULL;
    }
    return module;
}

enum { BYTES = 64 * 64, THREADS = 64 };

/* Runs the body with 64 threads in each of so many CTAs; every thread has 64 bytes of each buffer
 * (the same ones in all CTAs). */
static bool run_body(vgpu *gpu, const char *body, uint32_t blocks, const void *in, void *out) {
    vgpu_module *module = load(gpu, body);
    if (!CHECK(module != NULL)) {
        printf("%s\n", why.text);
        return false;
    }
    vgpu_pointer device_in = 0, device_out = 0;
    vgpu_malloc(gpu, BYTES, "in", &device_in, &why);
    vgpu_malloc(gpu, BYTES, "out", &device_out, &why);
    vgpu_write(gpu, device_in, in, BYTES, &why);
    vgpu_write(gpu, device_out, out, BYTES, &why);
    const uint64_t box[3] = {0x1122334455667788ULL, 2, 3};
    void *arguments[] = {&device_out, &device_in, (void *)(uintptr_t)box};
    const vgpu_dims dims = {.grid = {blocks, 1, 1}, .block = {THREADS, 1, 1}};
    const bool ran = CHECK_EQ(vgpu_launch(gpu, module, "k", &dims, arguments, &why), VGPU_OK) &&
                     CHECK_EQ(vgpu_read(gpu, out, device_out, BYTES, &why), VGPU_OK);
    vgpu_free(gpu, device_in, &why);
    vgpu_free(gpu, device_out, &why);
    vgpu_unload(module);
    return ran;
}

static void fill(unsigned char *bytes) {
    uint32_t state = 12345;
    for (uint32_t i = 0; i < BYTES; i++) {
        state = state * 1664525 + 1013904223;
        bytes[i] = (unsigned char)(state >> 24);
    }
}

static void expect_clean(vgpu *gpu) {
    vgpu_finding finding;
    if (vgpu_finding_get(gpu, 0, &finding)) {
        CHECK_STR(finding.text, "no finding");
    }
    vgpu_close(gpu);
}

/* ---- ld, st ---------------------------------------------------------------------------------- */

TEST(extensions_into_wider_registers) {
    unsigned char in[BYTES], out[BYTES] = {0};
    fill(in);
    vgpu *gpu = open_gpu(1);
    const bool ran = run_body(gpu,
                              "ld.global.s8 %r10, [%rd5];\nst.global.u32 [%rd4], %r10;\n"
                              "ld.global.u8 %r11, [%rd5+1];\nst.global.u32 [%rd4+4], %r11;\n"
                              "ld.global.s16 %r12, [%rd5+2];\nst.global.u32 [%rd4+8], %r12;\n"
                              "ld.global.u16 %r13, [%rd5+2];\nst.global.u32 [%rd4+12], %r13;\n"
                              "ld.global.s32 %rd10, [%rd5+4];\nst.global.u64 [%rd4+16], %rd10;\n"
                              "ld.global.nc.b32 %rd11, [%rd5+4];\nst.global.b64 [%rd4+24], %rd11;\n"
                              "ld.global.s8 %h1, [%rd5+9];\nst.global.b16 [%rd4+32], %h1;\n"
                              "ld.global.b8 %h2, [%rd5+9];\nst.global.b8 [%rd4+34], %h2;\n"
                              "ld.global.s8 %rd12, [%rd5+10];\nst.global.u64 [%rd4+40], %rd12;\n"
                              "ld.global.u64 %rd13, [%rd5+16];\nst.global.u16 [%rd4+48], %rd13;\n"
                              "st.global.u32 [%rd4+52], -5;\n",
                              1, in, out);
    for (uint32_t t = 0; ran && t < THREADS; t++) {
        const unsigned char *from = in + t * 64, *to = out + t * 64;
        unsigned char want[64] = {0};
        int16_t s16;
        uint16_t u16;
        int32_t s32;
        memcpy(&s16, from + 2, 2);
        memcpy(&u16, from + 2, 2);
        memcpy(&s32, from + 4, 4);
        memcpy(want, &(int32_t){(signed char)from[0]}, 4);
        memcpy(want + 4, &(uint32_t){from[1]}, 4);
        memcpy(want + 8, &(int32_t){s16}, 4);
        memcpy(want + 12, &(uint32_t){u16}, 4);
        memcpy(want + 16, &(int64_t){s32}, 8);
        memcpy(want + 24, &(uint64_t){(uint32_t)s32}, 8);
        memcpy(want + 32, &(int16_t){(signed char)from[9]}, 2);
        want[34] = from[9];
        memcpy(want + 40, &(int64_t){(signed char)from[10]}, 8);
        memcpy(want + 48, from + 16, 2);
        memcpy(want + 52, &(int32_t){-5}, 4);
        CHECK(memcmp(want, to, 64) == 0);
    }
    expect_clean(gpu);
}

TEST(vectors_through_every_space) {
    unsigned char in[BYTES], out[BYTES] = {0};
    fill(in);
    vgpu *gpu = open_gpu(1);
    const bool ran = run_body(
        gpu,
        "ld.global.v4.f32 {%f1,%f2,%f3,%f4}, [%rd5];\n"
        "st.shared.v4.f32 [%r2], {%f1,%f2,%f3,%f4};\n"
        "ld.shared.v2.u64 {%rd10,%rd11}, [%r2];\n"
        "st.global.v2.b64 [%rd4], {%rd11,%rd10};\n"
        "ld.global.v4.u16 {%h1,%h2,%h3,%h4}, [%rd5+16];\n"
        "st.local.v4.u16 [depot+8], {%h1,%h2,%h3,%h4};\n"
        "mov.u64 %rd20, depot;\ncvta.local.u64 %rd21, %rd20;\n"
        "ld.u64 %rd22, [%rd21+8];\nst.global.u64 [%rd4+16], %rd22;\n"
        "cvta.to.local.u64 %rd23, %rd21;\nld.local.u32 %r10, [%rd23+12];\n"
        "st.global.cs.u32 [%rd4+24], %r10;\n"
        "ld.global.v4.b8 {%h1,%h2,%h3,%h4}, [%rd5+24];\n"
        "st.global.v4.b8 [%rd4+28], {%h4,%h3,%h2,%h1};\n"
        "mov.u64 %rd24, tile;\ncvta.shared.u64 %rd25, %rd24;\ncvt.u64.u32 %rd26, %r3;\n"
        "add.s64 %rd25, %rd25, %rd26;\nld.volatile.u32 %r11, [%rd25+4];\n"
        "st.relaxed.gpu.global.u32 [%rd4+32], %r11;\n"
        "mov.b64 %rd27, box;\nld.param.u64 %rd28, [%rd27+8];\nst.global.u64 [%rd4+40], %rd28;\n"
        "cvta.param.u64 %rd29, %rd27;\nld.u32 %r12, [%rd29];\nst.global.u32 [%rd4+48], %r12;\n"
        "ld.param.v2.u32 {%r13,%r14}, [box];\nst.global.u32 [%rd4+52], %r14;\n"
        "ld.global.L1::no_allocate.L2::128B.v2.f64 {%fd1,_}, [%rd5+32];\n"
        "st.global.f64 [%rd4+56], %fd1;\n",
        1, in, out);
    for (uint32_t t = 0; ran && t < THREADS; t++) {
        const unsigned char *from = in + t * 64, *to = out + t * 64;
        CHECK(memcmp(to, from + 8, 8) == 0 && memcmp(to + 8, from, 8) == 0);
        CHECK(memcmp(to + 16, from + 16, 8) == 0);
        CHECK(memcmp(to + 24, from + 20, 4) == 0);
        CHECK(to[28] == from[27] && to[31] == from[24]);
        CHECK(memcmp(to + 32, from + 4, 4) == 0);
        CHECK_EQ(to[40], 2);
        CHECK_EQ(to[48], 0x88);
        CHECK_EQ(to[55], 0x11);
        CHECK(memcmp(to + 56, from + 32, 8) == 0);
    }
    expect_clean(gpu);
}

TEST(spaces_of_generic_addresses) {
    unsigned char in[BYTES] = {0}, out[BYTES] = {0};
    vgpu *gpu = open_gpu(1);
    const bool ran = run_body(gpu,
                              "mov.u64 %rd10, tile;\ncvta.shared.u64 %rd10, %rd10;\n"
                              "mov.u64 %rd11, depot;\ncvta.local.u64 %rd11, %rd11;\n"
                              "cvta.global.u64 %rd12, %rd1;\n"
                              "isspacep.shared %p1, %rd10;\nisspacep.global %p2, %rd10;\n"
                              "isspacep.local %p3, %rd11;\nisspacep.shared::cluster %p4, %rd11;\n"
                              "isspacep.global %p5, %rd12;\n"
                              "selp.b32 %r10, 1, 0, %p1;\nst.global.u8 [%rd4], %r10;\n"
                              "selp.b32 %r10, 1, 0, %p2;\nst.global.u8 [%rd4+1], %r10;\n"
                              "selp.b32 %r10, 1, 0, %p3;\nst.global.u8 [%rd4+2], %r10;\n"
                              "selp.b32 %r10, 1, 0, %p4;\nst.global.u8 [%rd4+3], %r10;\n"
                              "selp.b32 %r10, 1, 0, %p5;\nst.global.u8 [%rd4+4], %r10;\n"
                              "prefetch.global.L2 [%rd1];\n"
                              "createpolicy.fractional.L2::evict_first.b64 %rd13, 1.0;\n"
                              "ld.global.L2::cache_hint.u32 %r11, [%rd5], %rd13;\n"
                              "mov.u32 %r12, tile;\nmapa.shared::cluster.u32 %r13, %r12, 0;\n"
                              "getctarank.shared::cluster.u32 %r14, %r13;\n"
                              "st.shared.u32 [%r2], %r1;\nadd.u32 %r13, %r13, %r3;\n"
                              "ld.shared::cluster.u32 %r15, [%r13];\n"
                              "st.global.u32 [%rd4+8], %r15;\nst.global.u32 [%rd4+12], %r14;\n",
                              1, in, out);
    for (uint32_t t = 0; ran && t < THREADS; t++) {
        const unsigned char want[8] = {1, 0, 1, 0, 1};
        CHECK(memcmp(out + t * 64, want, 8) == 0);
        CHECK_EQ(out[t * 64 + 8], t);
        CHECK_EQ(out[t * 64 + 12], 0);
    }
    expect_clean(gpu);
}

/* ---- atomics --------------------------------------------------------------------------------- */

TEST(integer_atomics_of_many_blocks) {
    unsigned char in[BYTES] = {0}, out[BYTES] = {0};
    enum { BLOCKS = 50 };
    memset(out + 16, 0xff, 4); /* for and, min */
    memset(out + 20, 0xff, 4);
    vgpu *gpu = open_gpu(2);
    const bool ran =
        run_body(gpu,
                 "atom.global.add.u32 %r10, [%rd1], 3;\n"
                 "red.global.add.u64 [%rd1+8], 5000000000;\n"
                 "mov.u32 %r11, %ctaid.x;\nshl.b32 %r12, 1, %r1;\nnot.b32 %r13, %r12;\n"
                 "atom.global.and.b32 %r10, [%rd1+16], %r13;\n"
                 "red.relaxed.gpu.global.min.u32 [%rd1+20], %r11;\n"
                 "red.global.max.s32 [%rd1+24], %r1;\n"
                 "atom.global.inc.u32 %r14, [%rd1+28], 99;\n"
                 "red.global.xor.b32 [%rd1+32], 1;\n"
                 "red.global.or.b32 [%rd1+36], %r12;\n"
                 "atom.global.dec.u32 %r15, [%rd1+40], 6;\n"
                 "red.global.add.f64 [%rd1+48], 0d3FE0000000000000;\n",
                 BLOCKS, in, out);
    if (ran) {
        const uint32_t n = BLOCKS * THREADS;
        uint64_t wide;
        double sum;
        uint32_t words[16];
        memcpy(words, out, sizeof words);
        memcpy(&wide, out + 8, 8);
        memcpy(&sum, out + 48, 8);
        CHECK_EQ(words[0], 3 * n);
        CHECK_EQ(wide, 5000000000ULL * n);
        CHECK_EQ(words[4], 0);
        CHECK_EQ(words[5], 0);
        CHECK_EQ(words[6], THREADS - 1);
        CHECK_EQ(words[7], n % 100);
        CHECK_EQ(words[8], n % 2);
        CHECK_EQ(words[9], 0xffffffff);
        CHECK_EQ(words[10], (7 - n % 7) % 7);
        CHECK(sum == 0.5 * n);
    }
    expect_clean(gpu);
}

/* As counter.h of the kernels counts: whatever the word holds at first, each thread gets a number
 * of its own. */
TEST(wide_atomics_count_from_garbage) {
    static const uint64_t stamp = 0x7fa51c93;
    static const uint64_t garbage[] = {0, 1, ~0ULL, (stamp << 32) - 5, stamp << 32};
    enum { BLOCKS = 7, COUNTS = BLOCKS * THREADS, BITS = 64 };
    for (size_t i = 0; i < sizeof garbage / sizeof garbage[0]; i++) {
        unsigned char in[BYTES] = {0}, out[BYTES] = {0};
        uint64_t word;
        memcpy(out, &garbage[i], sizeof word);
        vgpu *gpu = open_gpu(2);
        const bool ran = run_body(gpu,
                                  "mov.u64 %rd10, 0x7fa51c9300000000;\n"
                                  "atom.add.acq_rel.gpu.global.u64 %rd11, [%rd1], 1;\n"
                                  "shr.u64 %rd12, %rd11, 32;\n"
                                  "setp.eq.u64 %p1, %rd12, 0x7fa51c93;\n@%p1 bra DONE;\n"
                                  "add.u64 %rd13, %rd11, 1;\n"
                                  "SWAP:\n"
                                  "atom.cas.relaxed.gpu.global.b64 %rd14, [%rd1], %rd13, %rd10;\n"
                                  "setp.eq.u64 %p1, %rd14, %rd13;\n@%p1 bra AGAIN;\n"
                                  "mov.u64 %rd13, %rd14;\nshr.u64 %rd12, %rd14, 32;\n"
                                  "setp.ne.u64 %p1, %rd12, 0x7fa51c93;\n@%p1 bra SWAP;\n"
                                  "AGAIN: atom.add.acq_rel.gpu.global.u64 %rd11, [%rd1], 1;\n"
                                  "DONE: cvt.u32.u64 %r10, %rd11;\n"
                                  "shr.u32 %r11, %r10, 5;\nmul.wide.u32 %rd15, %r11, 4;\n"
                                  "add.u64 %rd15, %rd15, %rd1;\nand.b32 %r10, %r10, 31;\n"
                                  "shl.b32 %r10, 1, %r10;\n"
                                  "red.global.xor.b32 [%rd15+64], %r10;\n",
                                  BLOCKS, in, out);
        memcpy(&word, out, sizeof word);
        CHECK(!ran || word == (stamp << 32 | COUNTS));
        for (int bit = 0; ran && bit < COUNTS; bit++) {
            CHECK_MSG((out[BITS + bit / 8] >> bit % 8 & 1) != 0, "garbage %zu, count %d", i, bit);
        }
        expect_clean(gpu);
    }
}

TEST(values_that_atomics_return) {
    unsigned char in[BYTES], out[BYTES] = {0};
    fill(in);
    for (uint32_t t = 0; t < THREADS; t++) {
        const float one = 1.5F;
        memcpy(in + t * 64 + 16, &one, 4);
        memcpy(in + t * 64 + 20, &(uint32_t){0x3c003c00}, 4); /* 1, 1 in f16 */
        memcpy(in + t * 64 + 24, &(uint32_t){0x3f803f80}, 4); /* 1, 1 in bf16 */
        memcpy(in + t * 64 + 28, &(uint32_t){1}, 4);          /* a subnormal number */
    }
    vgpu *gpu = open_gpu(1);
    const bool ran = run_body(gpu,
                              "ld.global.u32 %r10, [%rd5];\nst.shared.u32 [%r2], %r10;\n"
                              "atom.shared.exch.b32 %r11, [%r2], 77;\n"
                              "st.global.u32 [%rd4], %r11;\n"
                              "atom.shared.cas.b32 %r12, [%r2], 77, 78;\n"
                              "atom.shared.cas.b32 %r13, [%r2], 77, 79;\n"
                              "st.global.u32 [%rd4+4], %r12;\nst.global.u32 [%rd4+8], %r13;\n"
                              "ld.global.u32 %r14, [%rd5+16];\nst.global.u32 [%rd4+12], %r14;\n"
                              "atom.global.add.f32 %f1, [%rd4+12], 0f3F000000;\n"
                              "st.global.f32 [%rd4+16], %f1;\n"
                              "ld.global.u32 %r15, [%rd5+20];\nst.global.u32 [%rd4+20], %r15;\n"
                              "red.global.add.noftz.f16x2 [%rd4+20], %r15;\n"
                              "ld.global.u32 %r16, [%rd5+24];\nst.global.u32 [%rd4+24], %r16;\n"
                              "red.global.add.noftz.bf16x2 [%rd4+24], %r16;\n"
                              "ld.global.u32 %r17, [%rd5+28];\nst.shared.u32 [%r2+4], %r17;\n"
                              "red.shared.add.f32 [%r2+4], 0f00000000;\n"
                              "ld.shared.u32 %r18, [%r2+4];\nst.global.u32 [%rd4+28], %r18;\n"
                              "st.global.u32 [%rd4+32], %r17;\n"
                              "red.global.add.f32 [%rd4+32], 0f00000000;\n"
                              "mov.u16 %h1, 5;\nst.global.u16 [%rd4+36], %h1;\n"
                              "atom.global.cas.b16 %h2, [%rd4+36], %h1, %h1;\n"
                              "st.global.u16 [%rd4+38], %h2;\n"
                              "st.global.v2.f32 [%rd4+40], {%f1, %f1};\n"
                              "red.global.v2.f32.add [%rd4+40], {%f1, 0f3F800000};\n",
                              1, in, out);
    for (uint32_t t = 0; ran && t < THREADS; t++) {
        uint32_t words[16];
        float floats[16];
        memcpy(words, out + t * 64, 64);
        memcpy(floats, out + t * 64, 64);
        CHECK(memcmp(words, in + t * 64, 4) == 0);
        CHECK_EQ(words[1], 77);
        CHECK_EQ(words[2], 78);
        CHECK(floats[3] == 2.0F && floats[4] == 1.5F);
        CHECK_EQ(words[5], 0x40004000);
        CHECK_EQ(words[6], 0x40004000);
        CHECK_EQ(words[7], 1); /* shared memory knows subnormal numbers, */
        CHECK_EQ(words[8], 0); /* global memory does not */
        CHECK_EQ(words[9], 0x00050005);
        CHECK(floats[10] == 3.0F && floats[11] == 2.5F);
    }
    expect_clean(gpu);
}

/* ---- findings -------------------------------------------------------------------------------- */

static void expect_finding(const char *body, const char *kind, const char *part) {
    unsigned char in[BYTES] = {0}, out[BYTES] = {0};
    vgpu_finding finding = {.kind = "nothing", .text = ""};
    vgpu *gpu = open_gpu(1);
    run_body(gpu, body, 1, in, out);
    CHECK(vgpu_finding_get(gpu, 0, &finding));
    CHECK_STR(finding.kind, kind);
    CHECK_CONTAINS(finding.text, part);
    vgpu_close(gpu);
}

TEST(mistakes_are_found) {
    expect_finding("ld.shared.u32 %r10, [%r2];\nst.global.u32 [%rd4], %r10;\n", "uninitialised",
                   "the value");
    expect_finding("ld.shared.u64 %rd10, [%r2];\nadd.s64 %rd10, %rd10, %rd4;\n"
                   "ld.global.u32 %r10, [%rd10];\n",
                   "uninitialised", "the address");
    expect_finding("ld.shared.u32 %r10, [%r2];\nred.global.add.u32 [%rd4], %r10;\n",
                   "uninitialised", "operand of this atomic");
    expect_finding("ld.global.u32 %r10, [%rd5+2];\n", "misaligned", "no multiple of 4");
    expect_finding("st.shared.u32 [%r2+4096], %r1;\n", "out-of-bounds", "\"tile\"");
    expect_finding("cvta.to.shared.u64 %rd10, %rd4;\ncvt.u32.u64 %r10, %rd10;\n"
                   "st.shared.u32 [%r10], %r1;\n",
                   "wrong-space", "a pointer to global memory");
    expect_finding("mov.u64 %rd10, depot;\ncvta.local.u64 %rd10, %rd10;\n"
                   "st.global.u64 [%rd10], %rd10;\n",
                   "wrong-space", "a pointer to local memory");
    expect_finding("ld.local.u32 %r10, [depot+64];\n", "out-of-bounds", "\"depot\"");
    expect_finding("st.shared.u32 [tile], %r1;\nld.shared.u32 %r10, [tile];\n", "race",
                   "not ordered");
    expect_finding("mapa.shared::cluster.u32 %r10, %r2, 1;\n", "illegal-operand", "CTA 1");
}

TEST(copied_padding_is_a_warning) {
    expect_finding("st.shared.u8 [%r2], %r1;\nld.shared.u32 %r10, [%r2];\n"
                   "mov.b32 %r11, %r10;\nst.global.u32 [%rd4], %r11;\n",
                   "uninitialised-part", "partly uninitialised");
    expect_finding("st.shared.u8 [%r2], %r1;\nld.shared.v4.u8 {%h1,%h2,%h3,%h4}, [%r2];\n"
                   "st.global.v4.u8 [%rd4], {%h1,%h2,%h3,%h4};\n",
                   "uninitialised-part", "partly uninitialised");
    expect_finding("st.shared.u8 [%r2], %r1;\nld.shared.v2.u32 {%r10,%r11}, [%r2];\n"
                   "st.global.v2.u32 [%rd4], {%r10,%r11};\n",
                   "uninitialised", "comes from uninitialised");
    expect_finding("st.shared.u8 [%r2], %r1;\nld.shared.u32 %r10, [%r2];\n"
                   "add.u32 %r11, %r10, 1;\nst.global.u32 [%rd4], %r11;\n",
                   "uninitialised", "comes from uninitialised");
}

TEST(unused_uninitialised_values_are_no_finding) {
    unsigned char in[BYTES] = {0}, out[BYTES] = {0};
    vgpu *gpu = open_gpu(1);
    run_body(gpu,
             "ld.shared.u32 %r10, [%r2];\nst.shared.u32 [%r2+4], %r10;\n"
             "setp.lt.u32 %p1, %r1, 100;\nselp.b32 %r11, 7, %r10, %p1;\n"
             "st.global.u32 [%rd4], %r11;\n",
             1, in, out);
    CHECK_EQ(out[0], 7);
    expect_clean(gpu);
}

TEST(unknown_forms_are_refused) {
    static const char *const BODIES[] = {"ld.global.f16 %h1, [%rd5];",
                                         "ld.global.sometimes.u32 %r10, [%rd5];",
                                         "ld.global.v3.u32 {%r10,%r11,%r12}, [%rd5];",
                                         "ld.global.v2.u32 %r10, [%rd5];",
                                         "ld.global.u64 %r10, [%rd5];",
                                         ("st.global.v8.f64 [%rd4], {%fd1,%fd1,%fd1,%fd1,%fd1,"
                                          "%fd1,%fd1,%fd1};"),
                                         "atom.global.mul.u32 %r10, [%rd4], 1;",
                                         "atom.global.and.f32 %f1, [%rd4], %f2;",
                                         "red.global.exch.b32 [%rd4], %r1;",
                                         "atom.shared.v2.f32.add {%f1,%f2}, [%r2], {%f1,%f2};",
                                         "atom.global.cas.b32 %r10, [%rd4], 1;",
                                         "cvta.u64 %rd10, %rd4;",
                                         "isspacep.texture %p1, %rd4;",
                                         "mapa.u32 %r10, %r2, 1;",
                                         "prefetch.global.L7 [%rd4];"};
    vgpu *gpu = open_gpu(1);
    for (size_t i = 0; i < sizeof BODIES / sizeof BODIES[0]; i++) {
        CHECK(load(gpu, BODIES[i]) == NULL);
    }
    vgpu_close(gpu);
}

TEST_MAIN()
