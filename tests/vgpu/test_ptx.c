/* SPDX-License-Identifier: Apache-2.0
 *
 * test_ptx.c - proves that PTX is read as it was written: directives, scopes, operands, lines
 * and values; that what is wrong is refused at its line and column; and that hostile text costs
 * little. test_ptx_refused.c holds the refusals.
 */
#include "test.h"
#include "vgpu/ptx/arena.h"
#include "vgpu/ptx/ptx.h"

#define HEAD ".version 9.0\n.target sm_90a\n.address_size 64\n"

static struct ptx_error why;

static struct ptx_module *parse(const char *text) {
    struct ptx_module *module = ptx_parse(text, strlen(text), &why);
    CHECK_MSG(module != NULL, "%u:%u: %s", why.line, why.column, why.text);
    return module;
}

/* The body of a kernel without parameters. */
static struct ptx_module *parse_body(const char *body) {
    static char text[1 << 16];
    snprintf(text, sizeof text, HEAD ".visible .entry k()\n{\n%s\n}\n", body);
    return parse(text);
}

static const struct ptx_instruction *code(const struct ptx_module *module, uint32_t index) {
    static struct ptx_operand nothing[PTX_MAX_OPERANDS];
    static const struct ptx_instruction none = {.opcode = "no such instruction",
                                                .operands = nothing};
    const bool there = module && module->function_count > 0 &&
                       index < module->functions[module->function_count - 1]->code_count;
    CHECK_MSG(there, "no instruction %u", index);
    return there ? &module->functions[module->function_count - 1]->code[index] : &none;
}

static const struct ptx_operand *operand(const struct ptx_module *module, uint32_t index,
                                         uint32_t which) {
    return &code(module, index)->operands[which];
}

static const struct ptx_operand *part(const struct ptx_operand *whole, uint32_t index) {
    static const struct ptx_operand none = {.kind = PTX_OPERAND_SINK, .value = -12345};
    CHECK_MSG(index < whole->part_count, "no part %u", index);
    return index < whole->part_count ? &whole->parts[index] : &none;
}

static const char *register_name(const struct ptx_module *module, uint32_t reg) {
    const struct ptx_function *function = module->functions[module->function_count - 1];
    return reg < function->register_count ? function->registers[reg].name : "no such register";
}

/* ---- arena ----------------------------------------------------------------------------------- */

TEST(arena_gives_zeroed_aligned_memory_that_does_not_overlap) {
    struct arena *arena = arena_make();
    unsigned char *blocks[400];
    for (size_t i = 0; i < 400; i++) {
        const size_t size = i * i % 5000;
        blocks[i] = arena_alloc(arena, size);
        if (!CHECK(blocks[i] != NULL)) {
            return;
        }
        size_t align = 64;
        while (align > size && align > 1) {
            align /= 2;
        }
        CHECK_EQ((uintptr_t)blocks[i] % align, 0);
        static const unsigned char zeros[5000];
        CHECK(memcmp(blocks[i], zeros, size) == 0);
        memset(blocks[i], (int)(i % 255) + 1, size);
    }
    for (size_t i = 0; i < 400; i++) {
        unsigned char expected[5000];
        memset(expected, (int)(i % 255) + 1, sizeof expected);
        CHECK(memcmp(blocks[i], expected, i * i % 5000) == 0);
    }
    CHECK(arena_alloc(arena, SIZE_MAX) == NULL);
    CHECK(arena_alloc(arena, SIZE_MAX - 100) == NULL);
    arena_free(arena);
    arena_free(NULL);
}

TEST(arena_interns_equal_strings_once) {
    struct arena *arena = arena_make();
    const char *names[2000];
    char text[16];
    for (int i = 0; i < 2000; i++) {
        const int length = snprintf(text, sizeof text, "%%r%d", i);
        names[i] = arena_intern(arena, text, (size_t)length);
    }
    for (int i = 0; i < 2000; i++) {
        const int length = snprintf(text, sizeof text, "%%r%d", i);
        CHECK(arena_intern(arena, text, (size_t)length) == names[i]);
        CHECK_STR(names[i], text);
    }
    CHECK(arena_intern(arena, "%r12", 3) == names[1]);
    CHECK_STR(arena_intern(arena, "", 0), "");
    arena_free(arena);
}

/* ---- modules --------------------------------------------------------------------------------- */

TEST(module_head) {
    struct ptx_module *m = parse(".version 8.7\n.target sm_100f, debug, texmode_unified\n");
    if (m) {
        CHECK_EQ(m->version, 87);
        CHECK_EQ(m->target, 100);
        CHECK_EQ(m->target_suffix, 'f');
        CHECK_EQ(m->address_size, 64);
        CHECK_EQ(m->function_count, 0);
    }
    ptx_free(m);
    m = parse("// first\n/* and\nsecond */ .version 10.1 .target sm_80 .address_size 64");
    if (m) {
        CHECK_EQ(m->version, 101);
        CHECK_EQ(m->target, 80);
        CHECK_EQ(m->target_suffix, 0);
    }
    ptx_free(m);
}

TEST(types_by_name_and_size) {
    CHECK_EQ(ptx_type_named("f32"), PTX_F32);
    CHECK_EQ(ptx_type_named("bf16x2"), PTX_BF16X2);
    CHECK_EQ(ptx_type_named("pred"), PTX_PRED);
    CHECK_EQ(ptx_type_named("b128"), PTX_B128);
    CHECK_EQ(ptx_type_named("f"), PTX_NONE);
    CHECK_EQ(ptx_type_named("f320"), PTX_NONE);
    CHECK_EQ(ptx_type_named(""), PTX_NONE);
    CHECK_EQ(ptx_type_size(PTX_B128), 16);
    CHECK_EQ(ptx_type_size(PTX_E5M2X2), 2);
    CHECK_EQ(ptx_type_size(PTX_S8), 1);
    CHECK_EQ(ptx_type_size(PTX_F64), 8);
    CHECK_EQ(ptx_type_size(PTX_PRED), 0);
    CHECK_EQ(ptx_type_size(PTX_NONE), 0);
}

TEST(entry_with_parameters_and_directives) {
    struct ptx_module *m =
        parse(HEAD ".visible .entry k(\n"
                   "\t.param .u8 a,\n\t.param .align 128 .b8 map[128],\n\t.param .u16 c,\n"
                   "\t.param .u64 .ptr .global .align 16 d,\n\t.param .align 16 .b8 e[232],\n"
                   "\t.param .v2 .f32 f\n)\n.maxntid 128, 2\n.minnctapersm 4 .maxnreg 200\n"
                   ".reqntid 64 .reqnctapercluster 2, 1, 1 .explicitcluster .maxclusterrank 8\n"
                   ".blocksareclusters .noreturn .pragma \"nounroll\";\n{ ret; }");
    if (!m) {
        return;
    }
    const struct ptx_function *k = m->functions[0];
    static const uint64_t OFFSETS[] = {0, 128, 256, 264, 272, 504};
    static const uint64_t SIZES[] = {1, 128, 2, 8, 232, 8};
    CHECK(k->entry && !k->external);
    CHECK_STR(k->name, "k");
    CHECK_EQ(k->line, 4);
    CHECK_EQ(k->param_count, 6);
    CHECK_EQ(k->param_bytes, 512);
    for (uint32_t i = 0; i < k->param_count && i < 6; i++) {
        CHECK_EQ(k->params[i]->address, OFFSETS[i]);
        CHECK_EQ(k->params[i]->size, SIZES[i]);
        CHECK_EQ(k->params[i]->space, PTX_PARAM);
    }
    CHECK_EQ(k->params[3]->align, 8); /* 16 is what it points to */
    CHECK(k->maxntid[0] == 128 && k->maxntid[1] == 2 && k->maxntid[2] == 1);
    CHECK(k->reqntid[0] == 64 && k->reqntid[1] == 1 && k->reqntid[2] == 1);
    CHECK(k->reqnctapercluster[0] == 2 && k->reqnctapercluster[2] == 1);
    CHECK(k->minnctapersm == 4 && k->maxnreg == 200 && k->maxclusterrank == 8);
    CHECK(k->explicitcluster && k->blocksareclusters);
    ptx_free(m);
}

TEST(functions_declarations_and_aliases) {
    struct ptx_module *m =
        parse(HEAD ".extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b) ;\n"
                   ".func (.param .align 4 .b8 r[8]) f (.param .b32 x) ;\n"
                   ".weak .func g () ;\n"
                   ".func (.param .align 4 .b8 r[8]) f (.param .b32 x) { ret; }\n"
                   ".alias g, f;\n.entry e { exit; }\n");
    if (!m) {
        return;
    }
    CHECK_EQ(m->function_count, 4);
    CHECK(m->functions[0]->external && m->functions[0]->param_bytes == 16);
    CHECK(!m->functions[1]->external && !m->functions[1]->entry);
    CHECK_EQ(m->functions[1]->result_count, 1);
    CHECK_EQ(m->functions[1]->results[0]->size, 8);
    CHECK_EQ(m->functions[1]->line, 7);
    CHECK_STR(m->functions[2]->name, "g");
    CHECK_EQ(m->functions[2]->code_count, 1);
    CHECK_STR(m->functions[3]->name, "e");
    ptx_free(m);
}

static const struct ptx_variable *variable(const struct ptx_module *m, const char *name) {
    for (uint32_t i = 0; m && i < m->variable_count; i++) {
        if (strcmp(m->variables[i]->name, name) == 0) {
            return m->variables[i];
        }
    }
    static const struct ptx_variable none = {.name = "none", .size = 12345};
    CHECK_MSG(false, "no variable %s", name);
    return &none;
}

static void check_init(const struct ptx_module *m, const char *name, const void *bytes,
                       uint64_t size) {
    const struct ptx_variable *v = variable(m, name);
    CHECK_EQ(v->size, size);
    CHECK_MSG(v->size == size && v->init && memcmp(v->init, bytes, size) == 0, "%s", name);
}

TEST(variables_and_their_values) {
    struct ptx_module *m = parse(
        HEAD ".extern .shared .align 32 .b8 dynamic[];\n"
             ".global .align 4 .u32 counter = 5;\n"
             ".const .align 4 .b8 coef[8] = {0, 0, 128, 63, 255};\n"
             ".global .s16 grid[2][3] = {{1, -2}, {3}};\n.global .s16 flat[2][2] = {1, 2, 3};\n"
             ".global .b8 open[] = {1, 2, 3};\n.global .b8 rows[][2] = {{1}, {2, 3}, {4}};\n"
             ".global .v2 .f32 v = {1.0, -0.5};\n.global .f64 d[2] = {0d3FF0000000000000, 2.0};\n"
             ".global .b32 bits = 0f3F800000;\n.global .u64 all = ~0;\n"
             ".global .attribute(.unified(1, 2)) .align 16 .u32 a, b = 7;\n"
             ".extern .global .u32 later;\n.visible .global .u32 later = 9;\n"
             ".common .shared .b64 s[4];\n");
    CHECK_EQ(m ? m->variable_count : 0, 15);
    CHECK_EQ(variable(m, "dynamic")->size, 0);
    CHECK_EQ(variable(m, "dynamic")->align, 32);
    CHECK(variable(m, "dynamic")->external);
    check_init(m, "counter", "\5\0\0\0", 4);
    CHECK_EQ(variable(m, "counter")->line, 5);
    CHECK_EQ(variable(m, "coef")->space, PTX_CONST);
    check_init(m, "coef", "\0\0\x80\x3f\xff\0\0\0", 8);
    check_init(m, "grid", "\1\0\xfe\xff\0\0\3\0\0\0\0\0", 12);
    check_init(m, "flat", "\1\0\2\0\3\0\0\0", 8);
    check_init(m, "open", "\1\2\3", 3);
    check_init(m, "rows", "\1\0\2\3\4\0", 6);
    check_init(m, "v", "\0\0\x80\x3f\0\0\0\xbf", 8);
    CHECK_EQ(variable(m, "v")->align, 8);
    check_init(m, "d", "\0\0\0\0\0\0\xf0\x3f\0\0\0\0\0\0\0\x40", 16);
    check_init(m, "bits", "\0\0\x80\x3f", 4);
    check_init(m, "all", "\xff\xff\xff\xff\xff\xff\xff\xff", 8);
    check_init(m, "b", "\7\0\0\0", 4);
    CHECK_EQ(variable(m, "a")->align, 16);
    CHECK(variable(m, "a")->init == NULL && variable(m, "a")->size == 4);
    check_init(m, "later", "\11\0\0\0", 4);
    CHECK(!variable(m, "later")->external);
    CHECK_EQ(variable(m, "s")->size, 32);
    ptx_free(m);
}

/* ---- instructions ---------------------------------------------------------------------------- */

TEST(opcodes_modifiers_and_guards) {
    struct ptx_module *m = parse_body(
        ".reg .pred %p<4>; .reg .b32 %r<4>; .reg .b64 %rd<2>;\n"
        "  @!%p2 mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%r1}, {%r2}, {%r3}, {%r1};\n"
        "@%p3 bra.uni L;\nL: fence.proxy.async.shared::cta;\n"
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
        " [%r1], [%rd1, {%r2, %r3}], [%r1+8], %rd1;");
    const struct ptx_instruction *in = code(m, 0);
    CHECK_STR(in->opcode, "mma");
    CHECK_EQ(in->modifier_count, 9);
    CHECK_STR(in->modifiers[2], "m16n8k16");
    CHECK(ptx_has(in, "row") && !ptx_has(in, "ro") && !ptx_has(in, "m16n8k1"));
    CHECK_EQ(ptx_modifier_type(in, 0), PTX_F32);
    CHECK_EQ(ptx_modifier_type(in, 1), PTX_F16);
    CHECK_EQ(ptx_modifier_type(in, 3), PTX_F32);
    CHECK_EQ(ptx_modifier_type(in, 4), PTX_NONE);
    CHECK(in->guard >= 0 && in->guard_negated);
    CHECK_STR(register_name(m, (uint32_t)in->guard), "%p2");
    CHECK_EQ(in->line, 7);
    CHECK_EQ(in->column, 9);
    CHECK(code(m, 1)->guard >= 0 && !code(m, 1)->guard_negated);
    CHECK_EQ(code(m, 2)->guard, -1);
    CHECK_STR(code(m, 2)->modifiers[2], "shared::cta");
    CHECK_STR(code(m, 3)->modifiers[6], "mbarrier::complete_tx::bytes");
    CHECK(ptx_has(code(m, 3), "L2::cache_hint"));
    CHECK_EQ(code(m, 3)->operand_count, 4);
    const struct ptx_operand *tensor = operand(m, 3, 1);
    CHECK_EQ(tensor->kind, PTX_OPERAND_ADDRESS);
    CHECK_EQ(tensor->part_count, 2);
    CHECK_EQ(part(tensor, 1)->kind, PTX_OPERAND_VECTOR);
    CHECK_STR(register_name(m, part(part(tensor, 1), 1)->reg), "%r3");
    CHECK_EQ(operand(m, 3, 2)->value, 8);
    ptx_free(m);
}

TEST(operands_of_every_kind) {
    struct ptx_module *m =
        parse(HEAD ".func f() ;\n.global .b8 g[64];\n.visible .entry k(.param .u64 k_param_0) {\n"
                   ".reg .pred p, q; .reg .b32 %r<8>; .reg .b64 %rd<8>; .reg .f32 %f<300>;\n"
                   "setp.lt.and.s32 p|q, %r1, -5, !q;\n"                          /* 0 */
                   "shfl.sync.bfly.b32 %r1|_, %r2, 0x1F, 31, %r3;\n"              /* 1 */
                   "mbarrier.arrive.shared::cta.b64 _, [%r1];\n"                  /* 2 */
                   "ld.param.u64 %rd1, [k_param_0+8];\n"                          /* 3 */
                   "ld.global.u32 %r1, [%rd1+-16];\n"                             /* 4 */
                   "ld.global.u32 %r1, [%rd1 - 16];\n"                            /* 5 */
                   "mov.u64 %rd1, g+4;\n"                                         /* 6 */
                   "mov.u64 %rd2, f;\n"                                           /* 7 */
                   "mov.u32 %r1, %ctaid.z;\n"                                     /* 8 */
                   "mov.b64 {%r1, _}, %rd1;\n"                                    /* 9 */
                   "st.shared.v4.f32 [1024], {%f1, %f2, %f3, 0f40000000};\n"      /* 10 */
                   "call.uni f, ();\n"                                            /* 11 */
                   "wgmma.x.f32 {%f0, %f1, %f299}, %rd1, %rd2, p, 1, -1, 0, 1;\n" /* 12 */
                   "}");
    if (!m) {
        return;
    }
    CHECK_EQ(operand(m, 0, 0)->kind, PTX_OPERAND_PAIR);
    CHECK_STR(register_name(m, part(operand(m, 0, 0), 1)->reg), "q");
    CHECK_EQ(operand(m, 0, 2)->value, -5);
    CHECK(operand(m, 0, 3)->negated && operand(m, 0, 3)->kind == PTX_OPERAND_REGISTER);
    CHECK_EQ(part(operand(m, 1, 0), 1)->kind, PTX_OPERAND_SINK);
    CHECK_EQ(operand(m, 1, 2)->value, 31);
    CHECK_EQ(operand(m, 2, 0)->kind, PTX_OPERAND_SINK);
    CHECK_EQ(operand(m, 3, 1)->value, 8);
    CHECK_EQ(part(operand(m, 3, 1), 0)->kind, PTX_OPERAND_VARIABLE);
    CHECK(part(operand(m, 3, 1), 0)->variable == m->functions[1]->params[0]);
    CHECK_EQ(part(operand(m, 3, 1), 0)->value, 0);
    CHECK_EQ(operand(m, 4, 1)->value, -16);
    CHECK_EQ(operand(m, 5, 1)->value, -16);
    CHECK_EQ(operand(m, 6, 1)->kind, PTX_OPERAND_VARIABLE);
    CHECK(operand(m, 6, 1)->variable == m->variables[0] && operand(m, 6, 1)->value == 4);
    CHECK_EQ(operand(m, 7, 1)->kind, PTX_OPERAND_FUNCTION);
    CHECK_STR(operand(m, 7, 1)->name, "f");
    CHECK_EQ(operand(m, 8, 1)->kind, PTX_OPERAND_SPECIAL);
    CHECK_STR(operand(m, 8, 1)->name, "%ctaid.z");
    CHECK_EQ(operand(m, 9, 0)->kind, PTX_OPERAND_VECTOR);
    CHECK_EQ(part(operand(m, 9, 0), 1)->kind, PTX_OPERAND_SINK);
    CHECK_EQ(part(operand(m, 10, 0), 0)->kind, PTX_OPERAND_INTEGER);
    CHECK_EQ(part(operand(m, 10, 0), 0)->value, 1024);
    CHECK_EQ(part(operand(m, 10, 1), 3)->value, 0x40000000);
    CHECK_EQ(code(m, 11)->operand_count, 2);
    CHECK_EQ(operand(m, 11, 1)->kind, PTX_OPERAND_LIST);
    CHECK_EQ(operand(m, 11, 1)->part_count, 0);
    CHECK_EQ(code(m, 12)->operand_count, 8);
    CHECK_EQ(operand(m, 12, 5)->value, -1);
    ptx_free(m);
}

/* mov.ITS_TYPE x, TEXT: what the text is. */
static void check_number(const char *type, const char *text, enum ptx_operand_kind kind,
                         uint64_t value) {
    char body[256];
    snprintf(body, sizeof body, ".reg .b64 x; mov.%s x, %s;", type, text);
    struct ptx_module *m = parse_body(body);
    CHECK_MSG(operand(m, 0, 1)->kind == kind && (uint64_t)operand(m, 0, 1)->value == value,
              "%s: kind %d, value 0x%" PRIx64, text, (int)operand(m, 0, 1)->kind,
              (uint64_t)operand(m, 0, 1)->value);
    ptx_free(m);
}

TEST(numbers) {
    static const struct {
        const char *text;
        int64_t value;
    } INTEGERS[] = {
        {"0", 0},
        {"017", 15},
        {"0x1fU", 31},
        {"0XFF", 255},
        {"0b101", 5},
        {"42U", 42},
        {"18446744073709551615", -1},
        {"-9223372036854775808", INT64_MIN},
        {"WARP_SZ", 32},
        {"(1 << 4 | 3) * 2 - -1", 39},
        {"1<<4+1", 32},
        {"7 % 4", 3},
        {"-7 / 2", -3},
        {"~0 >> 60", -1},
        {"0xFFFFFFFFFFFFFFFF >> 60", 15},
        {"(.s64)0xFFFFFFFFFFFFFFFF >> 60", -1},
        {"(.u64)-1 > 5", 1},
        {"-1 > 5U", 1},
        {"-1 > 5", 0},
        {"3 >= 3 && 2 != 3 || 0", 1},
        {"1 ? 2 : 3", 2},
        {"!5", 0},
        {"6 & 3 ^ 1", 3},
        {"10 - 3 - 2", 5},
        {"1 << 64", 0},
        {"-9223372036854775808 / -1", INT64_MIN},
        {"-9223372036854775808 % -1", 0},
    };
    for (size_t i = 0; i < sizeof INTEGERS / sizeof INTEGERS[0]; i++) {
        check_number("b64", INTEGERS[i].text, PTX_OPERAND_INTEGER, (uint64_t)INTEGERS[i].value);
    }
    check_number("f32", "0f3F800000", PTX_OPERAND_F32, 0x3F800000);
    check_number("f32", "0Fbf800000", PTX_OPERAND_F32, 0xBF800000);
    check_number("f64", "0d3FF0000000000000", PTX_OPERAND_F64, 0x3FF0000000000000);
    check_number("f64", "0DFFF0000000000000", PTX_OPERAND_F64, 0xFFF0000000000000);
    check_number("f32", "1.5", PTX_OPERAND_F32, 0x3FC00000);
    check_number("f32", "-1.5e0", PTX_OPERAND_F32, 0xBFC00000);
    check_number("f64", "1.5", PTX_OPERAND_F64, 0x3FF8000000000000);
    check_number("f64", "-(0.5)", PTX_OPERAND_F64, 0xBFE0000000000000);
    check_number("f64", "1e3", PTX_OPERAND_F64, 0x408F400000000000);
    check_number("f64", "2.", PTX_OPERAND_F64, 0x4000000000000000);
    check_number("f64", ".5E+1", PTX_OPERAND_F64, 0x4014000000000000);
    check_number("rn.f16.f32", "0.25", PTX_OPERAND_F32, 0x3E800000);
}

TEST(special_registers) {
    static const char *const NAMES[] = {
        "%tid.x",       "%ntid.y",          "%nctaid.w",        "%laneid",           "%warpid",
        "%smid",        "%lanemask_lt",     "%cluster_ctaid.x", "%clusterid.z",      "%clock64",
        "%globaltimer", "%cluster_ctarank", "%envreg31",        "%dynamic_smem_size"};
    for (size_t i = 0; i < sizeof NAMES / sizeof NAMES[0]; i++) {
        char body[128];
        snprintf(body, sizeof body, ".reg .b32 x; mov.u32 x, %s;", NAMES[i]);
        struct ptx_module *m = parse_body(body);
        CHECK_EQ(operand(m, 0, 1)->kind, PTX_OPERAND_SPECIAL);
        CHECK_STR(operand(m, 0, 1)->name, NAMES[i]);
        ptx_free(m);
    }
}

/* ---- scopes ---------------------------------------------------------------------------------- */

TEST(registers_and_labels_belong_to_their_braces) {
    struct ptx_module *m = parse_body(
        ".reg .b32 x, %r<9>;\n"
        "mov.b32 x, %r1;\n"                                                       /* 0 */
        "{ .reg .b64 x; .reg .pred p; mov.b64 x, %r2; W: bra W; @p bra D; D: }\n" /* 1 2 3 */
        "{ .reg .b16 x, %r<3>; mov.b16 x, %r1; mov.b16 x, %r8; W: bra W; bra D; D: bra OUT; }\n"
        "mov.b32 x, %r2;\n" /* 9 */
        "{ { bra W; } W: }\n"
        "OUT: ret;\n"); /* 11 */
    if (!m) {
        return;
    }
    const struct ptx_register *regs = m->functions[0]->registers;
    CHECK_EQ(regs[operand(m, 0, 0)->reg].type, PTX_B32);
    CHECK_EQ(regs[operand(m, 1, 0)->reg].type, PTX_B64);
    CHECK_EQ(regs[operand(m, 1, 1)->reg].type, PTX_B32);
    CHECK_EQ(regs[operand(m, 4, 0)->reg].type, PTX_B16);
    CHECK_EQ(regs[operand(m, 4, 1)->reg].type, PTX_B16); /* %r1 of the inner range */
    CHECK_EQ(regs[operand(m, 5, 1)->reg].type, PTX_B32); /* %r8 of the outer one */
    CHECK_EQ(operand(m, 9, 0)->reg, operand(m, 0, 0)->reg);
    CHECK_EQ(operand(m, 9, 1)->reg, operand(m, 1, 1)->reg); /* first named further in */
    CHECK(operand(m, 4, 1)->reg != operand(m, 0, 1)->reg);
    CHECK_EQ(operand(m, 2, 0)->value, 2);
    CHECK_EQ(operand(m, 3, 0)->value, 4);
    CHECK_EQ(operand(m, 6, 0)->value, 6);
    CHECK_EQ(operand(m, 7, 0)->value, 8);
    CHECK_EQ(operand(m, 8, 0)->value, 11);
    CHECK_EQ(operand(m, 10, 0)->value, 11);
    ptx_free(m);
}

TEST(a_range_named_inside_a_longer_stem_stays_one_register) {
    struct ptx_module *m = parse_body(".reg .b32 %r<5>; { .reg .b64 %r1<3>; mov.x %r1, %r12; }\n"
                                      "mov.x %r1, %r4;");
    CHECK_EQ(operand(m, 0, 0)->reg, operand(m, 1, 0)->reg);
    CHECK_EQ(m ? m->functions[0]->register_count : 0, 3);
    ptx_free(m);
}

TEST(a_label_at_the_end_is_a_return) {
    struct ptx_module *m = parse_body(".reg .pred p; @p bra END; trap; END:");
    CHECK_EQ(operand(m, 0, 0)->value, 2);
    CHECK_STR(code(m, 2)->opcode, "ret");
    CHECK_EQ(m ? m->functions[0]->code_count : 0, 3);
    ptx_free(m);
    m = parse_body("ret; UNUSED:");
    CHECK_EQ(m ? m->functions[0]->code_count : 0, 1);
    ptx_free(m);
}

TEST(a_label_may_be_called_like_a_function_or_a_variable) {
    struct ptx_module *m = parse(HEAD ".global .u32 x;\n.entry k() {\n.shared .b8 y[4];\n"
                                      "bra x; { bra y; k: bra k; y : ret; } x\n: ret;\n}");
    CHECK_EQ(operand(m, 0, 0)->value, 4);
    CHECK_EQ(operand(m, 1, 0)->value, 3);
    CHECK_EQ(operand(m, 2, 0)->value, 2);
    ptx_free(m);
}

TEST(tables_of_targets) {
    struct ptx_module *m =
        parse(HEAD ".func (.param .b32 r) f (.param .b32 a) { ret; }\n.func g() ;\n.entry k() {\n"
                   ".reg .b32 %r<3>; .reg .b64 %rd<3>;\n"
                   "ts: .branchtargets L1, L0, L1;\nbrx.idx %r1, ts;\nL0: ret;\nL1: exit;\n"
                   "{ .param .b32 a; .param .b32 r;\n"
                   "proto : .callprototype (.param .b32 _) _ (.param .b32 _);\n"
                   "call (r), %rd1, (a), proto; }\n"
                   "ct: .calltargets f, g; call %rd2, ct;\n}");
    const struct ptx_operand *targets = operand(m, 0, 1);
    CHECK_EQ(targets->kind, PTX_OPERAND_LIST);
    CHECK_EQ(targets->part_count, 3);
    CHECK_EQ(part(targets, 0)->value, 2);
    CHECK_EQ(part(targets, 1)->value, 1);
    CHECK_EQ(part(targets, 2)->kind, PTX_OPERAND_LABEL);
    CHECK_EQ(code(m, 3)->operand_count, 4);
    CHECK_EQ(operand(m, 3, 0)->kind, PTX_OPERAND_LIST);
    CHECK_EQ(part(operand(m, 3, 0), 0)->kind, PTX_OPERAND_VARIABLE);
    CHECK_EQ(operand(m, 3, 1)->kind, PTX_OPERAND_REGISTER);
    CHECK_EQ(operand(m, 3, 3)->kind, PTX_OPERAND_LIST);
    CHECK_STR(operand(m, 3, 3)->name, "proto");
    CHECK_STR(part(operand(m, 4, 1), 1)->name, "g");
    ptx_free(m);
}

TEST(a_call_of_vprintf) {
    struct ptx_module *m = parse(
        HEAD ".extern .func (.param .b32 func_retval0) vprintf\n(\n.param .b64 vprintf_param_0,\n"
             ".param .b64 vprintf_param_1\n)\n;\n.entry k() { .reg .b64 %rd<3>; .reg .b32 %r<3>;\n"
             "{ // callseq 0, 0\n.reg .b32 temp_param_reg;\n.param .b64 param0;\n"
             "st.param.b64 [param0+0], %rd1;\n.param .b64 param1;\nst.param.b64 [param1+0], %rd2;\n"
             ".param .b32 retval0;\ncall.uni (retval0), \nvprintf, \n(\nparam0, \nparam1\n);\n"
             "ld.param.b32 %r1, [retval0+0];\n} // callseq 0\nret; }");
    CHECK_EQ(m ? m->functions[1]->variable_count : 0, 3);
    CHECK_EQ(code(m, 2)->operand_count, 3);
    CHECK_EQ(operand(m, 2, 1)->kind, PTX_OPERAND_FUNCTION);
    CHECK_STR(operand(m, 2, 1)->name, "vprintf");
    CHECK(part(operand(m, 2, 2), 1)->variable == m->functions[1]->variables[1]);
    CHECK(part(operand(m, 3, 1), 0)->variable == m->functions[1]->variables[2]);
    ptx_free(m);
}

/* ---- lines ----------------------------------------------------------------------------------- */

TEST(locations_with_what_was_inlined) {
    struct ptx_module *m = parse(
        HEAD ".entry k() {\nnop;\n.loc 1 10 0\nadd;\n.loc 1 12 5\n"
             ".loc 2 7 3, function_name $L__info_string0, inlined_at 1 12 5\nsub;\n"
             ".loc 3 9 1, function_name $L__info_string1, inlined_at 2 7 3\nmul;\n"
             ".loc 2 7 3, function_name $L__info_string0, inlined_at 1 12 5\ndiv;\n"
             ".loc 3 9 1, function_name $L__info_string0+1, inlined_at 1 99 9\nrem;\n}\n"
             ".entry other() {\nret;\n"
             ".loc 3 9 1, function_name $L__info_string1, inlined_at 2 7 3\nadd;\n}\n"
             ".file 1 \"src/a.cu\", 1234, 5678\n.file 2 \"src/b.h\"\n.file 3 \"with space.h\"\n"
             ".section .debug_abbrev\n{\n.b8 1\n.b32 .debug_info\n}\n"
             ".section .debug_str\n{\n$L__info_string0:\n.b8 111,110,101,0\n"
             "$L__info_string1:\n.b8 116,119\n.b8 111,0\n}\n");
    if (!m) {
        return;
    }
    const struct ptx_instruction *in = m->functions[0]->code;
    const struct ptx_location *at = m->locations;
    CHECK_EQ(in[0].location, 0);
    CHECK_STR(at[in[1].location].file, "src/a.cu");
    CHECK_EQ(at[in[1].location].line, 10);
    CHECK(at[in[1].location].function == NULL && at[in[1].location].inlined_at == 0);
    CHECK_STR(at[in[2].location].file, "src/b.h");
    CHECK_STR(at[in[2].location].function, "one");
    CHECK_EQ(at[at[in[2].location].inlined_at].line, 12);
    CHECK_EQ(at[in[2].location].column, 3);
    CHECK_STR(at[in[3].location].function, "two");
    CHECK_STR(at[in[3].location].file, "with space.h");
    CHECK_EQ(at[in[3].location].inlined_at, in[2].location);
    CHECK_EQ(in[4].location, in[2].location);
    CHECK_STR(at[in[5].location].function, "ne");
    CHECK_EQ(at[at[in[5].location].inlined_at].line, 99);
    /* In another function the same place is another story. */
    in = m->functions[1]->code;
    CHECK_EQ(in[0].location, 0);
    CHECK_EQ(at[at[in[1].location].inlined_at].line, 7);
    CHECK_EQ(at[at[in[1].location].inlined_at].inlined_at, 0);
    ptx_free(m);
}

/* ---- text ------------------------------------------------------------------------------------ */

TEST(line_ends_comments_and_long_names) {
    static char text[8192], name[3001];
    memset(name, 'x', sizeof name - 1);
    snprintf(text, sizeof text,
             ".version 9.0\r\n.target sm_80\r\n/* a\r\n b */ .entry %s() // end\r\n{\r\n"
             "@@DWARF .section .debug_info, \"\", @progbits\r\n  ret ;\r\n}",
             name);
    struct ptx_module *m = parse(text);
    CHECK_EQ(code(m, 0)->line, 7);
    CHECK_EQ(code(m, 0)->column, 3);
    CHECK_STR(m ? m->functions[0]->name : NULL, name);
    ptx_free(m);
}

TEST(equal_names_are_one_pointer) {
    struct ptx_module *m = parse_body(".reg .b32 add; add.f32 add, 1; { .reg .f32 add; }");
    CHECK(code(m, 0)->opcode == m->functions[0]->registers[0].name);
    CHECK(m->functions[0]->registers[0].name == m->functions[0]->registers[1].name);
    ptx_free(m);
}

TEST(registers_cost_only_where_they_are_named) {
    struct ptx_module *m = parse_body(".reg .b32 %r<4000000000>; mov.b32 %r1, %r999999999;");
    CHECK_EQ(m ? m->functions[0]->register_count : 0, 2);
    ptx_free(m);
}

TEST_MAIN()
