/* SPDX-License-Identifier: Apache-2.0
 *
 * cases.h - golden vectors: small PTX kernels and their inputs, the same for the program that runs
 * them on a GPU (vectors.cu) and for the test that runs them on the virtual one
 * (test_vgpu_golden.c). The file of results holds outputs only: inputs are made here, from the
 * case's number.
 *
 * Each kernel is k(in, out), one CTA. C and C++.
 *
 * Invariant: the same number gives the same kernel and the same inputs everywhere. A case is never
 * changed or moved, only added after the last; golden_magic changes with any other change.
 */
#ifndef GOLDEN_CASES_H
#define GOLDEN_CASES_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { GOLDEN_MAX_IN = 20480, GOLDEN_MAX_OUT = 8192, GOLDEN_MAX_PTX = 32768 };
static const char golden_magic[8] = {'v', 'g', 'p', 'u', 'g', 'v', '0', '1'};

enum golden_compare {
    GOLDEN_EXACT,
    GOLDEN_SUM,      /* f32: |difference| <= bound */
    GOLDEN_RELATIVE, /* f32: |difference| <= bound |expected| (or one step of the subnormals), or
                        both NaN, or equal infinities */
    GOLDEN_MIXED     /* f32: |difference| <= bound max(1, |expected|), or as above */
};

struct golden_case {
    char name[80];
    enum golden_compare compare;
    double bound;
    unsigned threads;
    unsigned in_bytes, out_bytes;
    size_t ptx_bytes;
    char ptx[GOLDEN_MAX_PTX];
    unsigned char in[GOLDEN_MAX_IN];
};

/* ---- building -------------------------------------------------------------------------------- */

static void golden_add(struct golden_case *c, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    c->ptx_bytes +=
        (size_t)vsnprintf(c->ptx + c->ptx_bytes, GOLDEN_MAX_PTX - c->ptx_bytes, format, arguments);
    va_end(arguments);
}

/* %rd1 in, %rd2 out, %r1 the thread, %r3 a shared array of 16 KB at a multiple of 1024. */
static void golden_begin(struct golden_case *c) {
    golden_add(c,
               ".version 8.4\n.target sm_90a\n.address_size 64\n"
               ".visible .entry k(.param .u64 p_in, .param .u64 p_out)\n{\n"
               ".reg .b16 %%h<9>;\n.reg .b32 %%r<200>;\n.reg .b64 %%rd<20>;\n.reg .pred %%p<9>;\n"
               ".shared .align 1024 .b8 tile[16384];\n"
               "ld.param.u64 %%rd1, [p_in];\nld.param.u64 %%rd2, [p_out];\n"
               "cvta.to.global.u64 %%rd1, %%rd1;\ncvta.to.global.u64 %%rd2, %%rd2;\n"
               "mov.u32 %%r1, %%tid.x;\nmov.u32 %%r3, tile;\n");
}

/* Copies `bytes` (a multiple of 4 * threads) of in to the shared array. */
static void golden_fill_shared(struct golden_case *c, unsigned bytes) {
    golden_add(c,
               "mov.u32 %%r4, 0;\nmad.lo.u32 %%r5, %%r1, 4, %%r3;\n"
               "mad.wide.u32 %%rd3, %%r1, 4, %%rd1;\nAGAIN:\nld.global.b32 %%r6, [%%rd3];\n"
               "st.shared.b32 [%%r5], %%r6;\nadd.u64 %%rd3, %%rd3, %u;\n"
               "add.u32 %%r5, %%r5, %u;\nadd.u32 %%r4, %%r4, %u;\nsetp.lt.u32 %%p1, %%r4, %u;\n"
               "@%%p1 bra AGAIN;\nfence.proxy.async;\nbar.sync 0;\n",
               4 * c->threads, 4 * c->threads, 4 * c->threads, bytes);
}

static void golden_registers(struct golden_case *c, unsigned from, unsigned count) {
    for (unsigned i = 0; i < count; i++) {
        golden_add(c, "%s%%r%u", i == 0 ? "{" : ",", from + i);
    }
    golden_add(c, "}");
}

/* Registers from %r`from` on, to or from words thread * count + i of out or in (from byte `at`). */
static void golden_move(struct golden_case *c, bool load, unsigned from, unsigned count,
                        unsigned at) {
    golden_add(c, "mad.wide.u32 %%rd4, %%r1, %u, %%rd%d;\n", 4 * count, load ? 1 : 2);
    for (unsigned i = 0; i < count; i++) {
        if (load) {
            golden_add(c, "ld.global.b32 %%r%u, [%%rd4+%u];\n", from + i, at + 4 * i);
        } else {
            golden_add(c, "st.global.b32 [%%rd4+%u], %%r%u;\n", at + 4 * i, from + i);
        }
    }
}

static uint32_t golden_next(uint64_t *state) {
    *state = *state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (uint32_t)(*state >> 32);
}

/* Words whose 16-bit halves are f16 (or bf16) integers from -2 to 2. */
static void golden_small(struct golden_case *c, uint64_t *state, bool bf16) {
    static const uint16_t f16[5] = {0xc000, 0xbc00, 0, 0x3c00, 0x4000};
    static const uint16_t b16[5] = {0xc000, 0xbf80, 0, 0x3f80, 0x4000};
    for (unsigned i = 0; i < c->in_bytes; i += 2) {
        const uint16_t value = (bf16 ? b16 : f16)[golden_next(state) % 5];
        memcpy(c->in + i, &value, 2);
    }
}

/* ---- families -------------------------------------------------------------------------------- */

/* ldmatrix, stmatrix, movmatrix: 32 threads, rows in an order of their own. */
static void golden_tiles(struct golden_case *c, unsigned which, uint64_t *state) {
    static const char *const forms[] = {"ldmatrix.sync.aligned.m8n8.x1.shared.b16",
                                        "ldmatrix.sync.aligned.m8n8.x2.shared.b16",
                                        "ldmatrix.sync.aligned.m8n8.x4.shared.b16",
                                        "ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16",
                                        "ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16",
                                        "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16",
                                        "stmatrix.sync.aligned.m8n8.x4.shared.b16",
                                        "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16",
                                        "movmatrix.sync.aligned.m8n8.trans.b16"};
    static const unsigned counts[] = {1, 2, 4, 1, 2, 4, 4, 4, 1};
    const unsigned count = counts[which];
    snprintf(c->name, sizeof c->name, "%s", forms[which]);
    c->threads = 32;
    c->in_bytes = 512;
    c->out_bytes = which == 6 || which == 7 ? 512 : 128 * count;
    for (unsigned i = 0; i < c->in_bytes; i++) {
        c->in[i] = (unsigned char)golden_next(state);
    }
    golden_begin(c);
    golden_fill_shared(c, 512);
    golden_add(c, "mul.lo.u32 %%r7, %%r1, 7;\nand.b32 %%r7, %%r7, 31;\n"
                  "mad.lo.u32 %%r7, %%r7, 16, %%r3;\nmad.lo.u32 %%r8, %%r1, 16, %%r3;\n");
    if (which < 6) {
        golden_add(c, "%s ", forms[which]);
        golden_registers(c, 20, count);
        golden_add(c, ", [%%r7];\n");
    } else if (which < 8) {
        golden_move(c, true, 20, 4, 0);
        golden_add(c, "bar.sync 0;\n%s [%%r7], ", forms[which]);
        golden_registers(c, 20, 4);
        golden_add(c, ";\nbar.sync 0;\nld.shared.v4.b32 {%%r20,%%r21,%%r22,%%r23}, [%%r8];\n");
    } else {
        golden_move(c, true, 19, 1, 0);
        golden_add(c, "%s %%r20, %%r19;\n", forms[which]);
    }
    golden_move(c, false, 20, c->out_bytes / 128, 0);
}

/* mma: random values of about 1; the bound is that of matrix.h for |a|, |b| < 2 and |c| < 2. */
static void golden_mma(struct golden_case *c, unsigned which, uint64_t *state) {
    static const struct {
        const char *shape, *type, *sum;
        unsigned a, b, sums, k;
        double scale; /* of (k + 1) (2 + 4 k) */
    } forms[] = {{"m16n8k16", "f16", "f32", 4, 2, 4, 16, 0x1p-23},
                 {"m16n8k16", "bf16", "f32", 4, 2, 4, 16, 0x1p-23},
                 {"m16n8k8", "f16", "f32", 2, 1, 4, 8, 0x1p-23},
                 {"m16n8k8", "tf32", "f32", 4, 2, 4, 8, 0x1p-23},
                 {"m16n8k32", "e4m3", "f32", 4, 2, 4, 32, 0x1p-13},
                 {"m16n8k32", "s8", "s32", 4, 2, 4, 32, 0},
                 {"m16n8k16", "f16", "f16", 4, 2, 2, 16, 0}};
    const unsigned all = forms[which].a + forms[which].b + forms[which].sums;
    const double k = forms[which].k;
    snprintf(c->name, sizeof c->name, "mma %s %s %s", forms[which].shape, forms[which].type,
             forms[which].sum);
    c->threads = 32;
    c->in_bytes = 128 * all;
    c->out_bytes = 128 * forms[which].sums;
    c->compare = forms[which].scale > 0 ? GOLDEN_SUM : GOLDEN_EXACT;
    c->bound = (k + 1) * (2 + 4 * k) * forms[which].scale;
    if (which == 6) {
        golden_small(c, state, false); /* exact: only the layout is looked at */
    }
    for (unsigned i = 0; which != 6 && i < 32 * all; i++) {
        const bool is_sum = i % all >= forms[which].a + forms[which].b;
        uint32_t word = golden_next(state);
        if (which != 5 && (is_sum || which == 3)) {
            word = (word & 0x807fffffU) | 0x3f000000U | (word >> 8 & 0x800000U); /* 0.5 to 2 */
            word &= is_sum ? ~0U : 0xffffe000U;
        } else if (which == 0 || which == 2) {
            word = (word & 0x87ff87ffU) | 0x38003800U;
        } else if (which == 1) {
            word = (word & 0x80ff80ffU) | 0x3f003f00U;
        } else if (which == 4) {
            word = (word & 0x8f8f8f8fU) | 0x30303030U;
        }
        memcpy(c->in + 4 * (size_t)i, &word, 4);
    }
    golden_begin(c);
    golden_move(c, true, 20, all, 0);
    golden_add(c, "mma.sync.aligned.%s.row.col.%s.%s.%s.%s ", forms[which].shape, forms[which].sum,
               forms[which].type, forms[which].type, forms[which].sum);
    golden_registers(c, 60, forms[which].sums);
    golden_add(c, ", ");
    golden_registers(c, 20, forms[which].a);
    golden_add(c, ", ");
    golden_registers(c, 20 + forms[which].a, forms[which].b);
    golden_add(c, ", ");
    golden_registers(c, 20 + forms[which].a + forms[which].b, forms[which].sums);
    golden_add(c, ";\n");
    golden_move(c, false, 60, forms[which].sums, 0);
}

/* The descriptor of a tile, less its start. */
static uint64_t golden_descriptor(unsigned swizzle, bool transposed) {
    static const uint64_t bytes[] = {16, 128, 64, 32};
    const uint64_t s = bytes[swizzle];
    const uint64_t leading = swizzle == 0 ? (transposed ? 1024 : 128) : 16 * s;
    const uint64_t stride = swizzle == 0 ? (transposed ? 128 : 256) : 8 * s;
    return leading >> 4 << 16 | stride >> 4 << 32 | (uint64_t)swizzle << 62;
}

/* wgmma: shared memory is full of small integers, so that any layout gives an exact result; sums
 * are stored as bytes. bits: 0-1 swizzle, 2 B transposed, 3 A transposed, 4 A in registers (then
 * bit 3: bf16), 5 n8 (else n64). */
static void golden_wgmma(struct golden_case *c, unsigned bits, uint64_t *state) {
    const unsigned swizzle = bits & 3, n = bits & 32 ? 8 : 64;
    const bool b_turned = bits & 4, from_registers = bits & 16;
    const bool a_turned = !from_registers && (bits & 8), bf16 = from_registers && (bits & 8);
    const char *type = bf16 ? "bf16" : "f16";
    snprintf(c->name, sizeof c->name, "wgmma n%u %s %s, swizzle mode %u, tnsp %d %d", n,
             from_registers ? "RS" : "SS", type, swizzle, a_turned, b_turned);
    c->threads = 128;
    c->in_bytes = 16384 + 128 * 16;
    c->out_bytes = 64 * n;
    golden_small(c, state, bf16);
    golden_begin(c);
    golden_fill_shared(c, 16384);
    golden_move(c, true, 20, 4, 16384);
    golden_add(c,
               "shr.u32 %%r7, %%r3, 4;\ncvt.u64.u32 %%rd5, %%r7;\n"
               "or.b64 %%rd6, %%rd5, %llu;\nadd.u64 %%rd5, %%rd5, 512;\n"
               "or.b64 %%rd7, %%rd5, %llu;\nwgmma.fence.sync.aligned;\n"
               "wgmma.mma_async.sync.aligned.m64n%uk16.f32.%s.%s ",
               (unsigned long long)golden_descriptor(swizzle, a_turned),
               (unsigned long long)golden_descriptor(swizzle, b_turned), n, type, type);
    golden_registers(c, 40, n / 2);
    golden_add(c, ", ");
    if (from_registers) {
        golden_registers(c, 20, 4);
        golden_add(c, ", %%rd7, 0, 1, 1, %d;\n", b_turned);
    } else {
        golden_add(c, "%%rd6, %%rd7, 0, 1, 1, %d, %d;\n", a_turned, b_turned);
    }
    golden_add(c,
               "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n"
               "mad.wide.u32 %%rd4, %%r1, %u, %%rd2;\n",
               n / 2);
    for (unsigned i = 0; i < n / 2; i++) {
        golden_add(c, "cvt.rni.s32.f32 %%r8, %%r%u;\nst.global.b8 [%%rd4+%u], %%r8;\n", 40 + i, i);
    }
}

/* One instruction over 256 points: %r20 (f32 or s32 bits) to %r21; %h1 and %h2 are 16-bit. */
static const struct {
    const char *body;
    enum golden_compare compare;
    double bound;
} golden_unary_forms[] = {
    {"cvt.rn.f16.f32 %h1, %r20; cvt.u32.u16 %r21, %h1;", GOLDEN_EXACT, 0},
    {"cvt.rz.f16.f32 %h1, %r20; cvt.u32.u16 %r21, %h1;", GOLDEN_EXACT, 0},
    {"cvt.rn.bf16.f32 %h1, %r20; cvt.u32.u16 %r21, %h1;", GOLDEN_EXACT, 0},
    {"cvt.rz.bf16.f32 %h1, %r20; cvt.u32.u16 %r21, %h1;", GOLDEN_EXACT, 0},
    {"cvt.rn.f16x2.f32 %r21, %r20, %r20;", GOLDEN_EXACT, 0},
    {"cvt.rn.bf16x2.f32 %r21, %r20, %r20;", GOLDEN_EXACT, 0},
    {"cvt.rn.relu.f16x2.f32 %r21, %r20, %r20;", GOLDEN_EXACT, 0},
    {"cvt.rn.relu.bf16x2.f32 %r21, %r20, %r20;", GOLDEN_EXACT, 0},
    {"cvt.rna.tf32.f32 %r21, %r20;", GOLDEN_EXACT, 0},
    {"cvt.rn.satfinite.e4m3x2.f32 %h1, %r20, %r20; cvt.u32.u16 %r21, %h1;", GOLDEN_EXACT, 0},
    {"cvt.rn.satfinite.e5m2x2.f32 %h1, %r20, %r20; cvt.u32.u16 %r21, %h1;", GOLDEN_EXACT, 0},
    {"cvt.u16.u32 %h1, %r20; cvt.rn.f16x2.e4m3x2 %r21, %h1;", GOLDEN_EXACT, 0},
    {"cvt.u16.u32 %h1, %r20; cvt.rn.f16x2.e5m2x2 %r21, %h1;", GOLDEN_EXACT, 0},
    {"cvt.u16.u32 %h1, %r20; cvt.f32.f16 %r21, %h1;", GOLDEN_EXACT, 0},
    {"cvt.u16.u32 %h1, %r20; cvt.f32.bf16 %r21, %h1;", GOLDEN_EXACT, 0},
    {"cvt.rni.s32.f32 %r21, %r20;", GOLDEN_EXACT, 0},
    {"cvt.rzi.s32.f32 %r21, %r20;", GOLDEN_EXACT, 0},
    {"cvt.rmi.s32.f32 %r21, %r20;", GOLDEN_EXACT, 0},
    {"cvt.rpi.u32.f32 %r21, %r20;", GOLDEN_EXACT, 0},
    {"cvt.rzi.ftz.u32.f32 %r21, %r20;", GOLDEN_EXACT, 0},
    {"cvt.rmi.f32.f32 %r21, %r20;", GOLDEN_EXACT, 0},
    {"cvt.sat.f32.f32 %r21, %r20;", GOLDEN_EXACT, 0},
    {"cvt.rn.f32.s32 %r21, %r20;", GOLDEN_EXACT, 0},
    {"cvt.rz.f32.s32 %r21, %r20;", GOLDEN_EXACT, 0},
    {"cvt.rp.f32.u32 %r21, %r20;", GOLDEN_EXACT, 0},
    {"ex2.approx.ftz.f32 %r21, %r20;", GOLDEN_RELATIVE, 0x1p-21},
    {"ex2.approx.f32 %r21, %r20;", GOLDEN_RELATIVE, 0x1p-21},
    {"rcp.approx.ftz.f32 %r21, %r20;", GOLDEN_RELATIVE, 0x1p-21},
    {"rcp.rn.f32 %r21, %r20;", GOLDEN_EXACT, 0},
    {"rsqrt.approx.ftz.f32 %r21, %r20;", GOLDEN_RELATIVE, 0x1p-21},
    {"sqrt.rn.f32 %r21, %r20;", GOLDEN_EXACT, 0},
    {"sqrt.approx.ftz.f32 %r21, %r20;", GOLDEN_RELATIVE, 0x1p-21},
    {"tanh.approx.f32 %r21, %r20;", GOLDEN_RELATIVE, 0x1p-10},
    {"and.b32 %r20, %r20, 2147483647; lg2.approx.ftz.f32 %r21, %r20;", GOLDEN_MIXED, 0x1p-21},
};

static void golden_unary(struct golden_case *c, unsigned which, uint64_t *state) {
    static const uint32_t specials[] = {
        0x00000000, 0x80000000, 0x3f800000, 0xbf800000, 0x7f800000, 0xff800000, 0x7fc00000,
        0x00000001, 0x007fffff, 0x00800000, 0x7f7fffff, 0xff7fffff, 0x477fe000, 0x477ff000,
        0x477fefff, 0x33000000, 0x33000001, 0x387fc000, 0x38800000, 0x43e00000, 0x43f00000,
        0x3f000000, 0x3fc00000, 0x40200000, 0xbf000000, 0xc0200000, 0x4effffff, 0x4f000000,
        0xcf000000, 0x3f7fffff, 0x3f800001, 0x7f80ffff};
    snprintf(c->name, sizeof c->name, "%s", golden_unary_forms[which].body);
    c->compare = golden_unary_forms[which].compare;
    c->bound = golden_unary_forms[which].bound;
    c->threads = 256;
    c->in_bytes = c->out_bytes = 1024;
    for (unsigned i = 0; i < 256; i++) {
        uint32_t word = i < 32 ? specials[i] : golden_next(state);
        if (i >= 128) { /* most of them where something happens: 2^-20 to 2^18 */
            word = (word & 0x807fffffU) | (107 + (word >> 8) % 38) << 23;
        }
        memcpy(c->in + 4 * (size_t)i, &word, 4);
    }
    golden_begin(c);
    golden_move(c, true, 20, 1, 0);
    golden_add(c, "%s\n", golden_unary_forms[which].body);
    golden_move(c, false, 21, 1, 0);
}

static void golden_shfl(struct golden_case *c, unsigned which, uint64_t *state) {
    static const char *const forms[] = {"shfl.sync.bfly.b32 %r21|%p1, %r20, 5, 31, -1;",
                                        "shfl.sync.bfly.b32 %r21|%p1, %r20, 3, 6175, -1;",
                                        "shfl.sync.up.b32 %r21|%p1, %r20, 3, 0, -1;",
                                        "shfl.sync.up.b32 %r21|%p1, %r20, 2, 4096, -1;",
                                        "shfl.sync.down.b32 %r21|%p1, %r20, 9, 31, -1;",
                                        "shfl.sync.down.b32 %r21|%p1, %r20, 1, 7199, -1;",
                                        "shfl.sync.idx.b32 %r21|%p1, %r20, 13, 31, -1;",
                                        "shfl.sync.idx.b32 %r21|%p1, %r20, %r1, 6151, -1;"};
    snprintf(c->name, sizeof c->name, "%s", forms[which]);
    c->threads = 32;
    c->in_bytes = 128;
    c->out_bytes = 256;
    for (unsigned i = 0; i < 128; i++) {
        c->in[i] = (unsigned char)golden_next(state);
    }
    golden_begin(c);
    golden_move(c, true, 20, 1, 0);
    golden_add(c, "%s\nselp.u32 %%r22, 1, 0, %%p1;\n", forms[which]);
    golden_move(c, false, 21, 2, 0);
}

/* ---- all of them ----------------------------------------------------------------------------- */

enum {
    GOLDEN_TILES = 9,
    GOLDEN_MMA = 7,
    GOLDEN_WGMMA = 40, /* 32 with n64, the first 8 of them with n8 too */
    GOLDEN_SHFL = 8,
    GOLDEN_UNARY = sizeof golden_unary_forms / sizeof golden_unary_forms[0],
    GOLDEN_COUNT = GOLDEN_TILES + GOLDEN_MMA + GOLDEN_WGMMA + GOLDEN_SHFL + GOLDEN_UNARY
};

static void golden_make(unsigned number, struct golden_case *c) {
    uint64_t state = number * 0x9e3779b97f4a7c15ULL + 1;
    memset(c, 0, sizeof *c);
    if (number < GOLDEN_TILES) {
        golden_tiles(c, number, &state);
    } else if ((number -= GOLDEN_TILES) < GOLDEN_MMA) {
        golden_mma(c, number, &state);
    } else if ((number -= GOLDEN_MMA) < GOLDEN_WGMMA) {
        golden_wgmma(c, number, &state);
    } else if ((number -= GOLDEN_WGMMA) < GOLDEN_SHFL) {
        golden_shfl(c, number, &state);
    } else {
        golden_unary(c, number - GOLDEN_SHFL, &state);
    }
    golden_add(c, "ret;\n}\n");
}

#endif /* GOLDEN_CASES_H */
