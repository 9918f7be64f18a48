/* SPDX-License-Identifier: Apache-2.0
 *
 * test_ptx_refused.c - proves that PTX that is wrong is refused at its line and column with a
 * sentence that says what was expected, and that hostile text neither takes memory nor time.
 *
 * The place is marked by a caret (^) in the text of a case, which is taken out before parsing.
 */
#include "test.h"
#include "vgpu/ptx/ptx.h"

#include <stdlib.h>

#define HEAD ".version 9.0\n.target sm_90a\n.address_size 64\n"
#define BODY HEAD ".entry k(.param .u64 a)\n{\n.reg .b32 %r<9>; .reg .pred %p<2>;\n"

static struct ptx_error why;

/* `text` without its first caret must be refused where that was. */
static void check_refused(const char *text, const char *part) {
    static char copy[1 << 14];
    snprintf(copy, sizeof copy, "%s", text);
    char *mark = strchr(copy, '^');
    if (!CHECK_MSG(mark != NULL, "no caret in the case %s", text)) {
        return;
    }
    memmove(mark, mark + 1, strlen(mark));
    uint32_t line = 1, column = 1;
    for (const char *at = copy; at < mark; at++) {
        column = *at == '\n' ? 1 : column + 1;
        line += *at == '\n';
    }
    memset(&why, 0, sizeof why);
    struct ptx_module *module = ptx_parse(copy, strlen(copy), &why);
    CHECK_MSG(module == NULL, "taken: %s", text);
    CHECK_MSG(why.line == line && why.column == column, "%u:%u instead of %u:%u (%s) for\n%s",
              why.line, why.column, line, column, why.text, text);
    CHECK_CONTAINS(why.text, part);
    ptx_free(module);
}

TEST(heads) {
    check_refused("^", ".version at the beginning");
    check_refused("^.target sm_80", ".version at the beginning, found '.target'");
    check_refused(".version ^9", "a version such as 9.0");
    check_refused(".version ^9.12", "a version such as 9.0");
    check_refused(".version 9.0 ^.entry k", ".target after .version");
    check_refused(".version 9.0 .target ^compute_80", "an architecture such as sm_80");
    check_refused(".version 9.0 .target ^sm_", "an architecture");
    check_refused(".version 9.0 .target ^sm_90ab", "an architecture");
    check_refused(".version 9.0 .target sm_90, ^fast", "found 'fast'");
    check_refused(".version 9.0 .target sm_80 .address_size ^32", "an address size of 64");
    check_refused(HEAD "^.texref t;", "a function, a variable or a directive of a module");
    check_refused(HEAD "^ret;", "found 'ret'");
    check_refused(HEAD ".visible ^.param .u32 x;", "found '.param'");
}

TEST(bytes_and_comments) {
    check_refused(HEAD "^\001", "a byte of value 0x01");
    check_refused(HEAD "^\xc3\xa9", "a byte of value 0xc3");
    check_refused(HEAD "\n  ^/* and then *", "this comment does not end");
    check_refused(HEAD ".file 1 ^\"abc\n\"", "the string to end on its line");
    check_refused(HEAD ".file 1 ^\"abc\\", "the string to end on its line");
    const char zero[] = ".version 9.0\0.target sm_80";
    CHECK(ptx_parse(zero, sizeof zero - 1, &why) == NULL);
    CHECK_EQ(why.column, 13);
}

TEST(functions) {
    check_refused(HEAD ".entry ^(", "the name of a function");
    check_refused(HEAD ".entry k(^.reg .u32 a) { }", "expected .param, found '.reg'");
    check_refused(HEAD ".entry k(.param .u32 a ^.param .u32 b) { }", "expected ',' or ')'");
    check_refused(HEAD ".entry k(.param .u32 a, .param .u32 ^a) { }", "declared already");
    check_refused(HEAD ".entry k(.param .align ^3 .b8 a[3]) { }", "a power of two");
    check_refused(HEAD ".entry k(.param .align ^0 .b8 a[3]) { }", "a power of two");
    check_refused(HEAD ".entry k(.param ^a) { }", "the type of the variable");
    check_refused(HEAD ".entry k() { } .entry ^k() { }", "declared already");
    check_refused(HEAD ".entry k() .maxntid ^x { }", "a number of threads");
    check_refused(HEAD ".entry k() .maxntid 1,2,3,^4 { }", "at most three numbers");
    check_refused(HEAD ".entry k() ^.maxthreads 4 { }", "a directive of a function");
    check_refused(HEAD ".entry k() ^ret", "expected ';' or '{'");
    check_refused(HEAD ".entry k() { ret;\n^", "'}' at the end of a function, found the end");
    check_refused(HEAD ".func f() ; .alias f, ^g;", "a function with a body");
    check_refused(HEAD ".alias ^f, g;", "declared without a body");
    check_refused(HEAD ".entry k(.param .b8 a[1073741824], .param .b8 ^b[1]) { }", "2^30");
}

TEST(variables) {
    check_refused(HEAD ".global .u32 ^5;", "the name of a variable");
    check_refused(HEAD ".global .u32 x^", "';' after the variable");
    check_refused(HEAD ".global ^.pred x;", "a type of a variable");
    check_refused(HEAD ".global .u32 ^x[];", "expected the size of 'x'");
    check_refused(HEAD ".global .u32 x[4^;", "expected ']'");
    check_refused(HEAD ".global .u32 x[^-4];", "a number of elements from 0");
    check_refused(HEAD ".global .u32 x[1099511627776]^[2];", "at most 2^40 elements");
    check_refused(HEAD ".global .b8 x[1][1][1][1][1][1][1][1]^[1];", "at most 8 dimensions");
    check_refused(HEAD ".shared .u32 ^x = 5;", "that of .global and .const alone");
    check_refused(HEAD ".global .u32 x; .global .u32 ^x;", "declared already");
    check_refused(HEAD ".global .u8 x = ^256;", "a value of the variable's type, 1 bytes wide");
    check_refused(HEAD ".global .s8 x = ^-129;", "a value of the variable's type");
    check_refused(HEAD ".global .f32 x = ^1;", "a value of the variable's type");
    check_refused(HEAD ".global .u32 x = ^1.5;", "a value of the variable's type");
    check_refused(HEAD ".global .u32 x[2] = {1, 2, ^3};", "at most 2 values");
    check_refused(HEAD ".global .u32 x[2][2] = {1, ^{2}};", "expected a number");
    check_refused(HEAD ".global .u32 x[2] = {1, ^{2}};", "expected a number");
    check_refused(HEAD ".global .u32 x[2] = {1 ^2};", "expected '}' or ','");
    check_refused(HEAD ".global .u32 x[2] = ^1;", "expected '{'");
    check_refused(HEAD ".global .u64 x = ^y;", "a function or variable that is declared");
    check_refused(HEAD ".shared .u64 y; .global .u64 x = ^y;", "a function or variable");
    check_refused(HEAD ".global .u64 y; .global .u32 x = ^generic(y);", "an address in 64 bits");
    check_refused(HEAD ".global .u64 y; .global .u8 x = ^0xFFF(y);", "one byte of it");
    check_refused(HEAD ".global .u64 y; .global .u64 x = generic(y^;", "expected ')'");
    check_refused(HEAD ".global .u8 x[100000000] = ^{1};", "bytes of variables with values");
    check_refused(HEAD ".global .u32 x[2][0] = ^{1};", "an array without elements");
    check_refused(HEAD ".global .attribute(.managed .u32 x;\n^", "')' at the end of .attribute");
}

TEST(registers_and_names) {
    check_refused(BODY "mov.b32 %r1, ^%r9;\n}", "'%r9' is not declared");
    check_refused(BODY "mov.b32 %r1, ^%r01;\n}", "'%r01' is not declared");
    check_refused(BODY "mov.b32 ^%r, 1;\n}", "'%r' is not declared");
    check_refused(BODY "mov.b32 %r1, ^nowhere;\nret;\n}", "'nowhere' is not declared");
    check_refused(BODY "bra ^L;\n{ L: ret; }\n}", "'L' is not declared");
    check_refused(BODY "{ .reg .b32 x; }\nmov.b32 ^x, 1;\n}", "'x' is not declared");
    check_refused(BODY "L: ret;\n^L: ret;\n}", "declared already");
    check_refused(BODY ".reg .b64 ^%r<3>;\n}", "declared already");
    check_refused(BODY ".reg .b64 ^%r3;\n}", "declared already");
    check_refused(BODY ".reg ^%x;\n}", "the type of a register");
    check_refused(BODY ".reg ^.v4 .f32 x;\n}", "a register of one value");
    check_refused(BODY ".reg .f32 x<^4294967296>;\n}", "less than 2^32");
    check_refused(BODY "mov.b32 {%r1, ^L}, %r2;\nL: ret;\n}", "'L' is not declared");
    check_refused(BODY "mov.u32 %r1, ^%tid;\n}", "one of .x, .y, .z and .w");
    check_refused(BODY "mov.u32 %r1, ^%tid.q;\n}", "one of .x, .y, .z and .w");
    check_refused(BODY "mov.u32 %r1, ^%envreg32;\n}", "not declared");
    check_refused(BODY "mov.u32 %r1, %r2^.x;\n}", "a whole register");
    check_refused(BODY "vote.sync.ballot.b32 %r1, %p1, %r2^.b0;\n}", "a whole register");
    check_refused(BODY "t: .branchtargets ^L;\nret;\n}", "'L' is not declared");
    check_refused(BODY "t: .calltargets ^f;\nret;\n}", "'f' is not declared, expected a function");
    check_refused(BODY "@^x ret;\n}", "'x' is not declared, expected a predicate as guard");
    check_refused(BODY "@^5 ret;\n}", "a predicate as guard, found '5'");
    check_refused(BODY "@^%r1 ret;\n}", "a predicate as guard, found '%r1'");
    check_refused(BODY "@%p1 ^.reg;\n}", "an instruction after the guard");
    check_refused(BODY "setp.x %p1, 1, !^a;\n}", "a predicate after !");
}

TEST(instructions) {
    check_refused(BODY "add.s32 %r1, %r2 ^%r3;\n}", "expected ';' or ',' after an operand");
    check_refused(BODY "add.s32 %r1, ^;\n}", "an operand, found ';'");
    check_refused(BODY "add.^ %r1;\n}", "the name of a modifier");
    check_refused(BODY "ld.L2::^;\n}", "the name of a modifier");
    check_refused(BODY "add:^:s32 %r1;\n}",
                  "an instruction, a label, a directive or '}', found ':'");
    check_refused(BODY "^ADD %r1;\n}", "an instruction, found 'ADD'");
    check_refused(BODY "^[%r1];\n}", "an instruction, a label, a directive or '}'");
    check_refused(BODY "^.entry x;\n}", "a directive of a body");
    check_refused(BODY "a.b.b.b.b.b.b.b.b.b.b.b.b.b.b.b.b.^c;\n}", "at most 16 modifiers");
    check_refused(BODY "a 1,2,3,4,5,6,7,8,9,10,11,12,^13;\n}", "at most 12 operands");
    check_refused(BODY "ld.u32 %r1, [%r2^;\n}", "']' at the end of an address");
    check_refused(BODY "ld.u32 %r1, [%r2+^%r3];\n}", "a number");
    check_refused(BODY "ld.u32 %r1, [%tid.x^];\n}", "an address that starts with a register");
    check_refused(BODY "mov.b64 {%r1, %r2^;\n}", "'}' or ',' in a list");
    check_refused(BODY "setp.x %p1|^5, 1;\n}", "a register or _ after |");
    check_refused(BODY "mov.u32 %r1, ^\"text\";\n}", "an operand");
}

TEST(numbers) {
    check_refused(BODY "mov.u32 %r1, ^18446744073709551616;\n}", "at most 64 bits");
    check_refused(BODY "mov.u32 %r1, 0x^;\n}", "a digit here");
    check_refused(BODY "mov.u32 %r1, 12^abc;\n}", "the number to end here");
    check_refused(BODY "mov.u32 %r1, 0^8;\n}", "the number to end here");
    check_refused(BODY "mov.f32 %r1, 0f3F80^;\n}", "8 hexadecimal digits");
    check_refused(BODY "mov.f64 %r1, 0d3FF000000000000^g;\n}", "16 hexadecimal digits");
    check_refused(BODY "mov.f64 %r1, 1.5^.5;\n}", "the number to end here");
    check_refused(BODY "mov.u32 %r1, 1 ^/ 0;\n}", "a divisor other than 0");
    check_refused(BODY "mov.u32 %r1, (1 + 2^;\n}", "')' at the end of an expression");
    check_refused(BODY "mov.u32 %r1, 1 ^+ 1.5;\n}", "expected integers");
    check_refused(BODY "mov.u32 %r1, ~^;\n}", "a number");
}

TEST(lines_of_sources) {
    check_refused(HEAD ".entry k() { .loc ^x 1 1 }", "the number of a file");
    check_refused(HEAD ".entry k() { .loc ^1 1 1\nret; }", "a file that a .file directive names");
    check_refused(HEAD ".entry k() { .loc 1 1 1, ^nothing }", "function_name or inlined_at");
    check_refused(HEAD
                  ".file 1 \"a\"\n.entry k() { .loc ^1 1 1, function_name L, inlined_at 1 1 1\n"
                  "ret; }",
                  "a label in .debug_str");
    check_refused(HEAD
                  ".file 1 \"a\"\n.entry k() { .loc ^1 1 1, function_name L, inlined_at 1 1 1\n"
                  "ret; }\n.section .debug_str {\nL: .b8 65 }",
                  "a string that ends");
    check_refused(HEAD ".file 1 ^x", "the name of a file in quotes");
    check_refused(HEAD ".section .debug_str { L: .b8 ^256 }", "a byte from 0 to 255");
    check_refused(HEAD ".section .debug_info { .b8 1\n^", "'}' at the end of a section");
    check_refused(HEAD ".pragma ^nounroll;", "a pragma in quotes");
}

/* ---- hostile text ---------------------------------------------------------------------------- */

/* HEAD, the opening, `count` times the part; refused with a sentence. */
static void check_repeated(const char *opening, const char *part, size_t count,
                           const char *sentence) {
    const size_t size = strlen(opening) + strlen(part) * count;
    char *text = malloc(size + 1);
    if (!CHECK(text != NULL)) {
        return;
    }
    strcpy(text, opening);
    for (size_t i = 0; i < count; i++) {
        memcpy(text + strlen(opening) + i * strlen(part), part, strlen(part));
    }
    text[size] = '\0';
    struct ptx_module *module = ptx_parse(text, size, &why);
    CHECK_MSG(module == NULL, "taken: %s%s...", opening, part);
    CHECK_CONTAINS(why.text, sentence);
    ptx_free(module);
    free(text);
}

TEST(nesting_is_bounded) {
    check_repeated(BODY, "{", 1000000, "at most 62 braces inside each other");
    check_repeated(BODY "mov.u32 %r1, ", "(", 1000000, "at most 32 levels");
    check_repeated(BODY "mov.u32 %r1, ", "-", 1000000, "at most 32 levels");
    check_repeated(BODY "mov.u32 %r1, 1", "?1:1", 1000000, "at most 32 levels");
    check_repeated(HEAD ".global .u32 x[2] = ", "{", 1000000, "expected a number");
    check_repeated(HEAD ".global .attribute", "(", 1000000, "')' at the end of .attribute");
}

TEST(instructions_are_bounded) {
    check_repeated(BODY, "a;", (1 << 20) + 1, "at most 1048576 instructions");
}

TEST(names_of_functions_are_bounded) {
    enum { LABELS = 20000 };
    char *text = malloc((size_t)LABELS * 80), *at = text;
    if (!CHECK(text != NULL)) {
        return;
    }
    at += sprintf(at, HEAD ".file 1 \"a\"\n.entry k() {\n");
    for (int i = 0; i < LABELS; i++) {
        at += sprintf(at, ".loc 1 %d 1, function_name L%d, inlined_at 1 1 1\n", i, i);
    }
    at += sprintf(at, "ret; }\n.section .debug_str {\n");
    for (int i = 0; i < LABELS; i++) {
        at += sprintf(at, "L%d: .b8 65\n", i);
    }
    at += sprintf(at, ".b8 0 }\n");
    CHECK(ptx_parse(text, (size_t)(at - text), &why) == NULL);
    CHECK_CONTAINS(why.text, "names of functions");
    free(text);
}

/* ---- the caret ------------------------------------------------------------------------------- */

TEST(caret_shows_the_line) {
    const char text[] = "one\n\tadd.s32 %r1;\r\nthree";
    char buffer[256];
    const size_t length = ptx_caret(text, strlen(text), 2, 10, buffer, sizeof buffer);
    CHECK_EQ(length, strlen(buffer));
    CHECK_STR(buffer, "\tadd.s32 %r1;\n\t        ^\n");
    ptx_caret(text, strlen(text), 3, 6, buffer, sizeof buffer);
    CHECK_STR(buffer, "three\n     ^\n");
    ptx_caret(text, strlen(text), 2, 1000, buffer, sizeof buffer);
    CHECK_STR(buffer, "\tadd.s32 %r1;\n\t            ^\n");
    CHECK_EQ(ptx_caret(text, strlen(text), 4, 1, buffer, sizeof buffer), 0);
    CHECK_STR(buffer, "");
    CHECK_EQ(ptx_caret(text, strlen(text), 0, 0, buffer, sizeof buffer), 0);
    CHECK_EQ(ptx_caret(text, strlen(text), 1, 1, buffer, 3), 2);
    CHECK_STR(buffer, "on");
    CHECK_EQ(ptx_caret(text, strlen(text), 1, 1, NULL, 0), 0);
    ptx_caret("a\033b", 3, 1, 3, buffer, sizeof buffer);
    CHECK_STR(buffer, "a?b\n  ^\n");
}

TEST(caret_of_a_long_line_is_near) {
    static char text[5000];
    char buffer[256];
    memset(text, 'x', sizeof text - 1);
    text[3000] = '!';
    const size_t length = ptx_caret(text, sizeof text - 1, 1, 3001, buffer, sizeof buffer);
    CHECK(length < 200);
    const char *mark = strchr(buffer, '!'), *second = strchr(buffer, '\n') + 1;
    CHECK_EQ(mark - buffer, strchr(second, '^') - second);
}

TEST_MAIN()
