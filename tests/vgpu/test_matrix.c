/* SPDX-License-Identifier: Apache-2.0
 *
 * test_matrix.c - ldmatrix, stmatrix, movmatrix, mma and wmma on the virtual GPU, against
 * MMAs computed element by element where PTX's own formulas say that elements lie.
 *
 * Inputs are small integers, exact in every format and in every sum: results are bit-equal.
 */
#include "vgpu.h"
#include "vgpu/tensor_rig.h"

enum { LANES = 32, SIDE = 64 };

static int a[SIDE][SIDE], b[SIDE][SIDE], c[SIDE][SIDE], d[SIDE][SIDE];

static int small_number(const char *type) {
    const int value = (int)(random_bits() % 7);
    return type[0] == 'u' ? value : value - 3;
}

static void make_product(unsigned m, unsigned n, unsigned k, const char *a_type,
                         const char *b_type) {
    for (unsigned i = 0; i < m; i++) {
        for (unsigned j = 0; j < k; j++) {
            a[i][j] = small_number(a_type);
        }
    }
    for (unsigned j = 0; j < k; j++) {
        for (unsigned i = 0; i < n; i++) {
            b[j][i] = small_number(b_type);
        }
    }
    for (unsigned i = 0; i < m; i++) {
        for (unsigned j = 0; j < n; j++) {
            c[i][j] = small_number("s32");
            d[i][j] = c[i][j];
            for (unsigned l = 0; l < k; l++) {
                d[i][j] += a[i][l] * b[l][j];
            }
        }
    }
}

/* ---- mma: the formulas of the PTX manual ----------------------------------------------------- */

struct place {
    unsigned row, column;
};

/* Element i of a lane's fragment of A; e elements in a register. m16: registers alternate between
 * the upper and the lower eight rows; each pair is 4 e columns further. */
static struct place place_a(unsigned lane, unsigned i, unsigned m, unsigned e) {
    const unsigned group = lane >> 2, thread = lane % 4;
    if (m == 8) {
        return (struct place){group, thread * e + i};
    }
    const bool upper = (i / e) % 2 == 0;
    return (struct place){group + (upper ? 0 : 8), thread * e + i % e + (i / (2 * e)) * 4 * e};
}

static struct place place_b(unsigned lane, unsigned i, unsigned e) {
    return (struct place){(lane % 4) * e + i % e + (i / e) * 4 * e, lane >> 2};
}

static struct place place_c(unsigned lane, unsigned i) {
    return (struct place){(lane >> 2) + (i < 2 ? 0 : 8), (lane % 4) * 2 + (i & 1)};
}

struct mma_case {
    const char *shape, *a_type, *b_type, *d_type;
    unsigned m, n, k;
};

/* A lane's registers lie one after the other; fragments in the order A, B, C. */
static void mma_text(struct text *text, const struct mma_case *test, unsigned counts[4],
                     unsigned wide) {
    const char *reg = wide == 8 ? "%d1" : "%r1"; /* %d100 or %r100 and on */
    const char *load = wide == 8 ? "f64" : "b32";
    unsigned number = 0;
    text_begin(text, "sm_90a", "");
    text_add(text, "mad.wide.u32 %%rd3, %%r2, %u, %%rd1;\nmad.wide.u32 %%rd4, %%r2, %u, %%rd2;\n",
             (counts[0] + counts[1] + counts[2]) * wide, counts[2] * wide);
    for (unsigned i = 0; i < counts[0] + counts[1] + counts[2]; i++) {
        text_add(text, "ld.global.%s %s%02u, [%%rd3+%u];\n", load, reg, i, i * wide);
    }
    text_add(text, "mma.sync.aligned.%s.row.col.%s.%s.%s.%s ", test->shape, test->d_type,
             test->a_type, test->b_type, test->d_type);
    for (unsigned part = 0; part < 4; part++) { /* D is what C was: written over it */
        const unsigned from = part == 0 ? counts[0] + counts[1] : number;
        const unsigned count = part == 0 ? counts[2] : counts[part - 1];
        for (unsigned i = 0; i < count; i++) {
            text_add(text, "%s%s%02u", i == 0 ? "{" : ",", reg, from + i);
        }
        text_add(text, "}%s", part == 3 ? ";\n" : ", ");
        number += part == 0 ? 0 : count;
    }
    for (unsigned i = 0; i < counts[2]; i++) {
        text_add(text, "st.global.%s [%%rd4+%u], %s%02u;\n", load, i * wide, reg,
                 counts[0] + counts[1] + i);
    }
    text_end(text);
}

static unsigned fragment(const char *type, unsigned elements) {
    const unsigned bits = type_bits(type);
    return bits == 64 ? elements / LANES : elements * bits / 1024;
}

static void check_mma(const struct mma_case *test) {
    const unsigned wide = strcmp(test->a_type, "f64") == 0 ? 8 : 4;
    const unsigned bits = type_bits(test->a_type), sum_bits = type_bits(test->d_type);
    const unsigned e = wide == 8 ? 1 : 32 / bits, sum_e = wide == 8 ? 1 : 32 / sum_bits;
    unsigned counts[4] = {fragment(test->a_type, test->m * test->k),
                          fragment(test->b_type, test->k * test->n),
                          fragment(test->d_type, test->m * test->n), 0};
    const unsigned per_lane = counts[0] + counts[1] + counts[2];
    static unsigned char in[LANES * 32 * 8], out[LANES * 8 * 8], expected[LANES * 8 * 8];
    struct text text = {0};
    make_product(test->m, test->n, test->k, test->a_type, test->b_type);
    for (unsigned lane = 0; lane < LANES; lane++) {
        unsigned char *at = in + (size_t)lane * per_lane * wide;
        for (unsigned i = 0; i < counts[0] * e; i++) {
            const struct place p = place_a(lane, i, test->m, e);
            put_bits(at, i, bits, small_bits(test->a_type, a[p.row][p.column]));
        }
        at += (size_t)counts[0] * wide;
        for (unsigned i = 0; i < counts[1] * e; i++) {
            const struct place p = place_b(lane, i, e);
            put_bits(at, i, bits, small_bits(test->b_type, b[p.row][p.column]));
        }
        at += (size_t)counts[1] * wide;
        for (unsigned i = 0; i < counts[2] * sum_e; i++) {
            const struct place p = place_c(lane, i);
            const size_t index = (size_t)lane * counts[2] * sum_e + i;
            put_bits(at, i, sum_bits, small_bits(test->d_type, c[p.row][p.column]));
            put_bits(expected, index, sum_bits, small_bits(test->d_type, d[p.row][p.column]));
        }
    }
    const size_t bytes = (size_t)LANES * counts[2] * wide;
    mma_text(&text, test, counts, wide);
    struct rig rig =
        rig_run(&text, LANES, in, (size_t)LANES * per_lane * wide, 0, out, bytes, VGPU_ASYNC_EAGER);
    CHECK_MSG(memcmp(out, expected, bytes) == 0, "mma %s %s %s: wrong result", test->shape,
              test->a_type, test->d_type);
    rig_check_clean(&rig);
    rig_close(&rig, &text);
}

TEST(mma_of_every_type) {
    static const struct mma_case cases[] = {
        {"m16n8k16", "f16", "f16", "f32", 16, 8, 16},
        {"m16n8k16", "f16", "f16", "f16", 16, 8, 16},
        {"m16n8k8", "f16", "f16", "f32", 16, 8, 8},
        {"m16n8k8", "f16", "f16", "f16", 16, 8, 8},
        {"m16n8k16", "bf16", "bf16", "f32", 16, 8, 16},
        {"m16n8k8", "bf16", "bf16", "f32", 16, 8, 8},
        {"m16n8k8", "tf32", "tf32", "f32", 16, 8, 8},
        {"m16n8k4", "tf32", "tf32", "f32", 16, 8, 4},
        {"m16n8k32", "e4m3", "e5m2", "f32", 16, 8, 32},
        {"m16n8k32", "e5m2", "e4m3", "f16", 16, 8, 32},
        {"m8n8k16", "s8", "u8", "s32", 8, 8, 16},
        {"m16n8k16", "u8", "s8", "s32", 16, 8, 16},
        {"m16n8k32", "s8", "s8", "s32", 16, 8, 32},
        {"m8n8k32", "s4", "u4", "s32", 8, 8, 32},
        {"m16n8k32", "u4", "s4", "s32", 16, 8, 32},
        {"m16n8k64", "s4", "s4", "s32", 16, 8, 64},
        {"m8n8k4", "f64", "f64", "f64", 8, 8, 4},
        {"m16n8k4", "f64", "f64", "f64", 16, 8, 4},
        {"m16n8k8", "f64", "f64", "f64", 16, 8, 8},
        {"m16n8k16", "f64", "f64", "f64", 16, 8, 16},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        check_mma(&cases[i]);
    }
}

/* A poisoned register of lane 5 (row 1, columns 2 and 3 of A; column 1 of B). */
static void poison_text(struct text *text, bool in_b, unsigned guard_row, bool by_row) {
    text_begin(text, "sm_80", "");
    text_add(text,
             "mov.u32 %%r10, 0;\nmov.u32 %%r11, 0;\n"
             "setp.eq.u32 %%p1, %%r2, 5;\n@%%p1 ld.global.b32 %%r%d, [%%rd1];\n",
             in_b ? 11 : 10);
    text_add(text, "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%%r20,%%r21,%%r22,%%r23}, "
                   "{%%r10,%%r12,%%r12,%%r12}, {%%r11,%%r12}, {%%r12,%%r12,%%r12,%%r12};\n");
    text_add(text,
             "mad.wide.u32 %%rd4, %%r2, 16, %%rd2;\nshr.u32 %%r3, %%r2, 2;\n"
             "and.b32 %%r4, %%r2, 3;\nsetp.ne.u32 %%p2, %s, %u;\n",
             by_row ? "%r3" : "%r4", guard_row);
    text_add(text, "@%%p2 st.global.b32 [%%rd4], %%r20;\n@%%p2 st.global.b32 [%%rd4+4], %%r21;\n");
    text_add(text, by_row ? "st.global.b32 [%%rd4+8], %%r22;\nst.global.b32 [%%rd4+12], %%r23;\n"
                          : "st.global.b32 [%%rd4+8], %%r20;\n");
    text_end(text);
}

static uint64_t poison_findings(bool in_b, unsigned guard, bool by_row) {
    static uint32_t in[64], out[LANES * 4];
    struct text text = {0};
    poison_text(&text, in_b, guard, by_row);
    struct rig rig = rig_run(&text, LANES, in, sizeof in, 4, out, sizeof out, VGPU_ASYNC_EAGER);
    const uint64_t count = rig_count(&rig, "uninitialised");
    rig_close(&rig, &text);
    return count;
}

TEST(poison_of_a_goes_along_its_row) {
    CHECK_EQ(poison_findings(false, 1, true), 0U); /* every row but row 1 is clean */
    CHECK(poison_findings(false, 2, true) > 0);
}

TEST(poison_of_b_goes_along_its_column) {
    /* column 1 is the odd register of lanes with lane % 4 == 0; the even one is clean */
    CHECK_EQ(poison_findings(true, 0, false), 0U);
    CHECK(poison_findings(true, 1, false) > 0);
}

/* ---- ldmatrix, stmatrix, movmatrix ----------------------------------------------------------- */

/* Shared memory is a copy of `in` (1 KB, 32 rows of 16 bytes and 32 bytes apart); lane l addresses
 * row 7 l % 32. */
static void tiles_text(struct text *text, const char *instruction, unsigned count, bool generic) {
    text_begin(text, "sm_90", ".shared .align 128 .b8 tile[1024];");
    text_add(text, "mov.u32 %%r3, tile;\nmad.wide.u32 %%rd3, %%r2, 32, %%rd1;\n"
                   "mad.lo.u32 %%r4, %%r2, 32, %%r3;\n");
    for (unsigned i = 0; i < 8; i++) {
        text_add(text, "ld.global.b32 %%r5, [%%rd3+%u];\nst.shared.b32 [%%r4+%u], %%r5;\n", i * 4,
                 i * 4);
    }
    text_add(text, "bar.sync 0;\nmul.lo.u32 %%r6, %%r2, 7;\nand.b32 %%r6, %%r6, 31;\n"
                   "mad.lo.u32 %%r7, %%r6, 32, %%r3;\n");
    if (generic) {
        text_add(text, "cvt.u64.u32 %%rd5, %%r7;\ncvta.shared.u64 %%rd5, %%rd5;\n");
    }
    text_add(text, "%s {", instruction);
    for (unsigned i = 0; i < count; i++) {
        text_add(text, "%s%%r%u", i == 0 ? "" : ",", 20 + i);
    }
    text_add(text, "}, [%s+16];\nmad.wide.u32 %%rd4, %%r2, 16, %%rd2;\n", generic ? "%rd5" : "%r7");
    for (unsigned i = 0; i < count; i++) {
        text_add(text, "st.global.b32 [%%rd4+%u], %%r%u;\n", i * 4, 20 + i);
    }
    text_end(text);
}

static void check_ldmatrix(const char *instruction, unsigned count, bool trans, bool generic) {
    static uint16_t in[512], out[LANES][8];
    struct text text = {0};
    for (unsigned i = 0; i < 512; i++) {
        in[i] = (uint16_t)(i * 77 + 5);
    }
    tiles_text(&text, instruction, count, generic);
    struct rig rig = rig_run(&text, LANES, in, sizeof in, 0, out, sizeof out, VGPU_ASYNC_EAGER);
    for (unsigned lane = 0; lane < LANES; lane++) {
        for (unsigned i = 0; i < count * 2; i++) {
            const unsigned row = trans ? lane % 4 * 2 + i % 2 : lane / 4;
            const unsigned column = trans ? lane / 4 : lane % 4 * 2 + i % 2;
            const unsigned from = (i / 2 * 8 + row) * 7 % 32; /* of the lane that addresses it */
            CHECK_MSG(out[lane][i] == in[from * 16 + 8 + column], "%s: lane %u, element %u",
                      instruction, lane, i);
        }
    }
    rig_check_clean(&rig);
    rig_close(&rig, &text);
}

TEST(ldmatrix_of_every_form) {
    check_ldmatrix("ldmatrix.sync.aligned.m8n8.x1.shared.b16", 1, false, false);
    check_ldmatrix("ldmatrix.sync.aligned.x2.m8n8.shared.b16", 2, false, false);
    check_ldmatrix("ldmatrix.sync.aligned.m8n8.x4.shared.b16", 4, false, false);
    check_ldmatrix("ldmatrix.sync.aligned.m8n8.x1.trans.shared::cta.b16", 1, true, false);
    check_ldmatrix("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16", 2, true, false);
    check_ldmatrix("ldmatrix.sync.aligned.trans.x4.m8n8.shared.b16", 4, true, false);
    check_ldmatrix("ldmatrix.sync.aligned.m8n8.x4.b16", 4, false, true);
}

/* Row 3 of the matrix is never written; lanes whose lane / 4 (or % 4) is not `clean` store. */
static uint64_t row_findings(bool trans, bool by_row, unsigned clean) {
    static uint32_t in[32], out[LANES];
    struct text text = {0};
    text_begin(&text, "sm_80", ".shared .align 128 .b8 tile[128];");
    text_add(&text,
             "mov.u32 %%r3, tile;\nand.b32 %%r4, %%r2, 7;\nmad.lo.u32 %%r4, %%r4, 16, %%r3;\n"
             "shr.u32 %%r5, %%r2, 3;\nmad.lo.u32 %%r5, %%r5, 4, %%r4;\nand.b32 %%r6, %%r2, 7;\n"
             "setp.ne.u32 %%p1, %%r6, 3;\n@%%p1 st.shared.b32 [%%r5], 7;\nbar.sync 0;\n"
             "ldmatrix.sync.aligned.m8n8.x1%s.shared.b16 {%%r10}, [%%r4];\n"
             "shr.u32 %%r7, %%r2, 2;\nand.b32 %%r8, %%r2, 3;\nsetp.ne.u32 %%p2, %s, %u;\n"
             "mad.wide.u32 %%rd4, %%r2, 4, %%rd2;\n@%%p2 st.global.b32 [%%rd4], %%r10;\n",
             trans ? ".trans" : "", by_row ? "%r7" : "%r8", clean);
    text_end(&text);
    struct rig rig = rig_run(&text, LANES, in, sizeof in, 0, out, sizeof out, VGPU_ASYNC_EAGER);
    const uint64_t count = rig_count(&rig, "uninitialised");
    rig_close(&rig, &text);
    return count;
}

TEST(poison_of_a_row_goes_where_its_elements_go) {
    CHECK_EQ(row_findings(false, true, 3), 0U);
    CHECK(row_findings(false, true, 2) > 0);
    CHECK_EQ(row_findings(true, false, 1), 0U); /* row 3 is the odd element of lanes 1, 5, ... */
    CHECK(row_findings(true, true, 3) > 0);
}

static void check_stmatrix(bool trans, unsigned count) {
    static uint16_t in[LANES][8], out[LANES][8];
    struct text text = {0};
    text_begin(&text, "sm_90", ".shared .align 128 .b8 tile[512];");
    text_add(&text, "mov.u32 %%r3, tile;\nmad.lo.u32 %%r4, %%r2, 16, %%r3;\n"
                    "mad.wide.u32 %%rd3, %%r2, 16, %%rd1;\nmad.wide.u32 %%rd4, %%r2, 16, %%rd2;\n");
    for (unsigned i = 0; i < 4; i++) {
        text_add(&text, "ld.global.b32 %%r%u, [%%rd3+%u];\nst.shared.b32 [%%r4+%u], 0;\n", 20 + i,
                 i * 4, i * 4);
    }
    text_add(&text, "bar.sync 0;\nstmatrix.sync.aligned.m8n8.x%u%s.shared.b16 [%%r4], {%s};\n",
             count, trans ? ".trans" : "",
             count == 4   ? "%r20,%r21,%r22,%r23"
             : count == 2 ? "%r20,%r21"
                          : "%r20");
    text_add(&text, "bar.sync 0;\n");
    for (unsigned i = 0; i < 4; i++) {
        text_add(&text, "ld.shared.b32 %%r5, [%%r4+%u];\nst.global.b32 [%%rd4+%u], %%r5;\n", i * 4,
                 i * 4);
    }
    text_end(&text);
    for (unsigned i = 0; i < LANES * 8; i++) {
        in[i / 8][i % 8] = (uint16_t)(i * 99 + 1);
    }
    struct rig rig = rig_run(&text, LANES, in, sizeof in, 0, out, sizeof out, VGPU_ASYNC_EAGER);
    for (unsigned i = 0; i < LANES * 8; i++) {
        const unsigned matrix = i / 64, row = i / 8 % 8, column = i % 8;
        const unsigned r = trans ? column : row, s = trans ? row : column;
        const uint16_t expected = matrix < count ? in[r * 4 + s / 2][matrix * 2 + s % 2] : 0;
        CHECK_MSG(out[i / 8][column] == expected, "stmatrix.x%u: row %u, column %u", count, i / 8,
                  column);
    }
    rig_check_clean(&rig);
    rig_close(&rig, &text);
}

TEST(stmatrix_of_every_form) {
    for (unsigned count = 1; count <= 4; count *= 2) {
        check_stmatrix(false, count);
        check_stmatrix(true, count);
    }
}

TEST(movmatrix_transposes) {
    static uint16_t in[LANES][2], out[LANES][2];
    struct text text = {0};
    text_begin(&text, "sm_80", "");
    text_add(&text, "mad.wide.u32 %%rd3, %%r2, 4, %%rd1;\nmad.wide.u32 %%rd4, %%r2, 4, %%rd2;\n"
                    "ld.global.b32 %%r5, [%%rd3];\n"
                    "movmatrix.sync.aligned.m8n8.trans.b16 %%r6, %%r5;\n"
                    "st.global.b32 [%%rd4], %%r6;\n");
    text_end(&text);
    for (unsigned i = 0; i < 64; i++) {
        in[i / 2][i % 2] = (uint16_t)(i * 3 + 7);
    }
    struct rig rig = rig_run(&text, LANES, in, sizeof in, 0, out, sizeof out, VGPU_ASYNC_EAGER);
    for (unsigned i = 0; i < 64; i++) {
        const unsigned row = i / 8, column = i % 8;
        CHECK_EQ(out[row * 4 + column / 2][column % 2], in[column * 4 + row / 2][row % 2]);
    }
    rig_check_clean(&rig);
    rig_close(&rig, &text);
}

/* ---- wmma ------------------------------------------------------------------------------------ */

struct wmma_case {
    const char *shape, *a_type, *c_type, *d_type;
    unsigned m, n, k, a_regs, b_regs, c_regs, d_regs;
};

static void registers(struct text *text, const char *prefix, unsigned from, unsigned count) {
    for (unsigned i = 0; i < count; i++) {
        text_add(text, "%s%s%u", i == 0 ? "{" : ",", prefix, from + i);
    }
    text_add(text, "}");
}

/* in: A at 0, B at 8192, C at 16384, each with a stride of 48 elements; out: D likewise. */
static void wmma_text(struct text *text, const struct wmma_case *test, const char *layouts[4],
                      bool shared) {
    static const unsigned places[] = {0, 8192, 16384};
    const char *reg = strcmp(test->a_type, "f64") == 0 ? "%d" : "%r";
    const char *space = shared ? ".shared" : ".global", *base = shared ? "%r3" : "%rd1";
    const unsigned counts[] = {test->a_regs, test->b_regs, test->c_regs};
    unsigned from = 10;
    text_begin(text, "sm_80", shared ? ".shared .align 128 .b8 tile[36000];" : "");
    if (shared) {
        text_add(text, "mov.u32 %%r3, tile;\nmov.u32 %%r4, 0;\nmad.lo.u32 %%r5, %%r2, 4, %%r3;\n"
                       "mad.wide.u32 %%rd3, %%r2, 4, %%rd1;\nAGAIN:\nld.global.b32 %%r6, [%%rd3];\n"
                       "st.shared.b32 [%%r5], %%r6;\nadd.u64 %%rd3, %%rd3, 128;\n"
                       "add.u32 %%r5, %%r5, 128;\nadd.u32 %%r4, %%r4, 128;\n"
                       "setp.lt.u32 %%p1, %%r4, 32768;\n@%%p1 bra AGAIN;\nbar.sync 0;\n");
    }
    text_add(text, "mov.u32 %%r7, 48;\n");
    for (unsigned i = 0; i < 3; i++) {
        text_add(text, "wmma.load.%c.sync.aligned.%s.%s%s.%s ", "abc"[i], layouts[i], test -> shape,
                 space, i == 2 ? test -> c_type : test -> a_type);
        registers(text, reg, from, counts[i]);
        text_add(text, ", [%s+%u], %%r7;\n", base, places[i]);
        from += counts[i];
    }
    if (strcmp(test->a_type, "f16") == 0) {
        text_add(text, "wmma.mma.sync.aligned.%s.%s.%s.%s.%s ", layouts[0], layouts[1], test->shape,
                 test->d_type, test->c_type);
    } else {
        text_add(text, "wmma.mma.sync.aligned.%s.%s.%s%s.%s.%s.%s.%s ", layouts[0], layouts[1],
                 test->shape, reg[1] == 'd' ? ".rn" : "", test->d_type, test->a_type, test->a_type,
                 test->c_type);
    }
    registers(text, reg, from - test->c_regs, test->d_regs);
    text_add(text, ", ");
    registers(text, reg, 10, test->a_regs);
    text_add(text, ", ");
    registers(text, reg, 10 + test->a_regs, test->b_regs);
    text_add(text, ", ");
    registers(text, reg, from - test->c_regs, test->c_regs);
    text_add(text, ";\nwmma.store.d.sync.aligned.%s.%s.global.%s [%%rd2], ", layouts[3],
             test->shape, test->d_type);
    registers(text, reg, from - test->c_regs, test->d_regs);
    text_add(text, ", %%r7;\n");
    text_end(text);
}

static void lay_out(void *memory, int (*matrix)[SIDE], unsigned rows, unsigned columns,
                    const char *layout, const char *type) {
    for (unsigned i = 0; i < rows; i++) {
        for (unsigned j = 0; j < columns; j++) {
            const size_t place = layout[0] == 'r' ? i * 48 + j : j * 48 + i;
            put_bits(memory, place, type_bits(type), small_bits(type, matrix[i][j]));
        }
    }
}

static void check_wmma(const struct wmma_case *test, unsigned layout_bits, bool shared) {
    static unsigned char in[32768], out[16384], expected[16384];
    const char *layouts[4];
    struct text text = {0};
    for (unsigned i = 0; i < 4; i++) {
        layouts[i] = layout_bits >> i & 1 ? "col" : "row";
    }
    make_product(test->m, test->n, test->k, test->a_type, test->a_type);
    memset(in, 0, sizeof in);
    memset(expected, 0xee, sizeof expected);
    lay_out(in, a, test->m, test->k, layouts[0], test->a_type);
    lay_out(in + 8192, b, test->k, test->n, layouts[1], test->a_type);
    lay_out(in + 16384, c, test->m, test->n, layouts[2], test->c_type);
    lay_out(expected, d, test->m, test->n, layouts[3], test->d_type);
    wmma_text(&text, test, layouts, shared);
    struct rig rig = rig_run(&text, LANES, in, sizeof in, 0, out, sizeof out, VGPU_ASYNC_EAGER);
    CHECK_MSG(memcmp(out, expected, sizeof out) == 0, "wmma %s %s %s %s %s%s: wrong result",
              test->shape, test->a_type, test->d_type, layouts[0], layouts[1],
              shared ? " shared" : "");
    rig_check_clean(&rig);
    rig_close(&rig, &text);
}

TEST(wmma_of_every_shape) {
    static const struct wmma_case cases[] = {
        {"m16n16k16", "f16", "f32", "f32", 16, 16, 16, 8, 8, 8, 8},
        {"m16n16k16", "f16", "f16", "f16", 16, 16, 16, 8, 8, 4, 4},
        {"m32n8k16", "f16", "f32", "f32", 32, 8, 16, 8, 8, 8, 8},
        {"m8n32k16", "f16", "f32", "f32", 8, 32, 16, 8, 8, 8, 8},
        {"m8n32k16", "f16", "f32", "f16", 8, 32, 16, 8, 8, 8, 4},
        {"m16n16k16", "bf16", "f32", "f32", 16, 16, 16, 4, 4, 8, 8},
        {"m32n8k16", "bf16", "f32", "f32", 32, 8, 16, 8, 2, 8, 8},
        {"m8n32k16", "bf16", "f32", "f32", 8, 32, 16, 2, 8, 8, 8},
        {"m16n16k8", "tf32", "f32", "f32", 16, 16, 8, 4, 4, 8, 8},
        {"m8n8k4", "f64", "f64", "f64", 8, 8, 4, 1, 1, 2, 2},
        {"m16n16k16", "s8", "s32", "s32", 16, 16, 16, 2, 2, 8, 8},
        {"m32n8k16", "u8", "s32", "s32", 32, 8, 16, 4, 1, 8, 8},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (unsigned layouts = 0; layouts < 16; layouts++) {
            check_wmma(&cases[i], layouts, (layouts ^ i) % 2);
        }
    }
}

/* ---- findings -------------------------------------------------------------------------------- */

static uint64_t findings_of(const char *kind, const char *variables, const char *body) {
    static uint32_t in[64], out[64];
    struct text text = {0};
    text_begin(&text, "sm_90", variables);
    text_add(&text, "%s", body);
    text_end(&text);
    struct rig rig = rig_run(&text, LANES, in, sizeof in, 0, out, sizeof out, VGPU_ASYNC_EAGER);
    const uint64_t count = rig_count(&rig, kind);
    rig_close(&rig, &text);
    return count;
}

TEST(local_memory_is_reported) {
    const char *local = ".local .align 32 .b8 l[512];";
    CHECK(findings_of("matrix-local", local,
                      "mov.u64 %rd5, l;\ncvta.local.u64 %rd6, %rd5;\n"
                      "wmma.load.a.sync.aligned.row.m16n16k16.f16 "
                      "{%r10,%r11,%r12,%r13,%r14,%r15,%r16,%r17}, [%rd6], 16;\n") > 0);
    CHECK(findings_of("matrix-local", local,
                      "mov.u64 %rd5, l;\ncvta.local.u64 %rd6, %rd5;\n"
                      "ldmatrix.sync.aligned.m8n8.x1.b16 {%r10}, [%rd6];\n") > 0);
}

TEST(bad_addresses_are_reported) {
    const char *shared = ".shared .align 128 .b8 s[256];";
    CHECK(findings_of("misaligned", shared,
                      "mov.u32 %r3, s;\n"
                      "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r10}, [%r3+8];\n") > 0);
    CHECK(findings_of("out-of-bounds", shared,
                      "mov.u32 %r3, s;\nmad.lo.u32 %r3, %r2, 16, %r3;\n"
                      "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r10,%r11,%r12,%r13}, [%r3];\n") >
          0);
    CHECK(findings_of("wrong-space", "", "ldmatrix.sync.aligned.m8n8.x1.b16 {%r10}, [%rd1];\n") >
          0);
}

TEST(unknown_forms_are_refused) {
    static const char *const bodies[] = {
        "mma.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 {%r1,%r2,%r3,%r4}, {%r1,%r2,%r3,%r4}, "
        "{%r1,%r2}, {%r1,%r2,%r3,%r4};\n",
        "mma.sp.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 {%r1,%r2,%r3,%r4}, "
        "{%r1,%r2,%r3,%r4}, {%r1,%r2,%r3,%r4}, {%r1,%r2,%r3,%r4}, %r5, 0;\n",
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%r1,%r2,%r3,%r4}, {%r1,%r2}, "
        "{%r1,%r2}, {%r1,%r2,%r3,%r4};\n",
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.bf16.f32 {%r1,%r2,%r3,%r4}, "
        "{%r1,%r2,%r3,%r4}, {%r1,%r2}, {%r1,%r2,%r3,%r4};\n",
        "ldmatrix.sync.aligned.m8n8.x3.shared.b16 {%r1,%r2,%r3}, [%r4];\n",
        "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r1}, [%r4];\n",
        "wmma.load.a.sync.aligned.row.m16n16k8.f16 {%r1}, [%rd1], 16;\n",
        "wgmma.fence.sync.aligned;\n",
    };
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        struct text text = {0};
        vgpu_config config;
        vgpu_error why;
        vgpu *gpu;
        vgpu_module *module;
        vgpu_config_init(&config);
        CHECK(vgpu_open(&config, &gpu, &why) == VGPU_OK);
        text_begin(&text, "sm_90", "");
        text_add(&text, "%s", bodies[i]);
        text_end(&text);
        CHECK_MSG(vgpu_load(gpu, text.data, text.used, &module, &why) == VGPU_LOAD && why.line > 0,
                  "accepted: %s", bodies[i]);
        vgpu_close(gpu);
        free(text.data);
    }
}

TEST_MAIN()
