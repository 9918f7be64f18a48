/* SPDX-License-Identifier: Apache-2.0
 *
 * lexer.c - PTX as tokens, one at a time, each with its position; and how parsing fails.
 *
 * Invariant: the cursor never passes the end of the text, which is a 0.
 */
#include "ptx/parser.h"

#include <locale.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static bool starts_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '$';
}

static bool in_name(char c) {
    return starts_name(c) || is_digit(c);
}

/* 0 to 15, or 16 for what is no hexadecimal digit. */
static unsigned digit_value(char c) {
    if (is_digit(c)) {
        return (unsigned)(c - '0');
    }
    const char lower = (char)(c | 0x20);
    return lower >= 'a' && lower <= 'f' ? (unsigned)(lower - 'a') + 10 : 16;
}

/* ---- errors ---------------------------------------------------------------------------------- */

void fail_at(struct parser *p, const struct token *at, const char *format, ...) {
    p->error->line = at->line;
    p->error->column = at->column;
    va_list args;
    va_start(args, format);
    vsnprintf(p->error->text, sizeof p->error->text, format, args);
    va_end(args);
    longjmp(p->failed, 1);
}

void fail_expected(struct parser *p, const char *what) {
    enum { SHOWN = 48 };
    const struct token *token = &p->token;
    if (token->kind == TOKEN_END) {
        fail_at(p, token, "expected %s, found the end of the text", what);
    }
    char found[SHOWN + 1];
    const uint32_t length = token->length < SHOWN ? token->length : SHOWN;
    for (uint32_t i = 0; i < length; i++) {
        const char c = token->start[i];
        found[i] = c >= ' ' && c <= '~' ? c : '?';
    }
    found[length] = '\0';
    fail_at(p, token, "expected %s, found '%s%s'", what, found, token->length > SHOWN ? "..." : "");
}

/* The token that is being read, cut short where it is wrong. */
static struct token place(const struct parser *p, const char *at) {
    return (struct token){.line = p->line, .column = (uint32_t)(at - p->line_start) + 1};
}

static _Noreturn void fail_here(struct parser *p, const char *at, const char *text) {
    const struct token here = place(p, at);
    fail_at(p, &here, "%s", text);
}

/* ---- blanks ---------------------------------------------------------------------------------- */

static void start_line(struct parser *p, const char *at) {
    p->line++;
    p->line_start = at;
}

/* The end of the comment that starts at `start`. */
static const char *skip_comment(struct parser *p, const char *start) {
    const struct token here = place(p, start);
    for (const char *at = start + 2; at < p->end; at++) {
        if (*at == '*' && at[1] == '/') {
            return at + 2;
        }
        if (*at == '\n') {
            start_line(p, at + 1);
        }
    }
    fail_at(p, &here, "this comment does not end");
}

/* The first character that is neither blank nor comment. Lines of old compilers that hold
 * debugging data for the assembler (@@DWARF) are comments. */
static const char *skip_blanks(struct parser *p) {
    const char *at = p->cursor;
    for (;;) {
        if (*at == '\n') {
            start_line(p, ++at);
        } else if (*at == ' ' || (*at >= '\t' && *at <= '\r')) {
            at++;
        } else if ((*at == '/' && at[1] == '/') || (*at == '@' && strncmp(at, "@@DWARF", 7) == 0)) {
            const char *newline = memchr(at, '\n', (size_t)(p->end - at));
            at = newline ? newline : p->end;
        } else if (*at == '/' && at[1] == '*') {
            at = skip_comment(p, at);
        } else {
            return at;
        }
    }
}

/* ---- numbers --------------------------------------------------------------------------------- */

/* The current token ends at `end`. */
static void finish(struct parser *p, enum token_kind kind, const char *end) {
    p->token.kind = kind;
    p->token.length = (uint32_t)(end - p->token.start);
    p->cursor = end;
}

static void finish_number(struct parser *p, enum token_kind kind, const char *end, uint64_t value) {
    if (in_name(*end)) {
        fail_here(p, end, "expected the number to end here");
    }
    p->token.value = value;
    finish(p, kind, end);
}

static void lex_integer(struct parser *p, const char *first, unsigned base) {
    uint64_t value = 0;
    const char *at = first;
    for (unsigned digit; (digit = digit_value(*at)) < base; at++) {
        if (value > (UINT64_MAX - digit) / base) {
            fail_here(p, first, "expected an integer of at most 64 bits");
        }
        value = value * base + digit;
    }
    if (at == first) {
        fail_here(p, at, "expected a digit here");
    }
    const bool suffix = *at == 'U' || *at == 'u';
    p->token.is_unsigned = suffix || value > INT64_MAX;
    finish_number(p, TOKEN_INTEGER, at + suffix, value);
}

static void lex_bits(struct parser *p, const char *at, enum token_kind kind, unsigned digits) {
    uint64_t value = 0;
    for (unsigned i = 0; i < digits; i++) {
        const unsigned digit = digit_value(at[i]);
        if (digit >= 16) {
            const struct token here = place(p, at + i);
            fail_at(p, &here, "expected %u hexadecimal digits for the bits of a float, found %u",
                    digits, i);
        }
        value = value << 4 | digit;
    }
    finish_number(p, kind, at + digits, value);
}

/* The end of the decimal float that starts here: "1.", ".5", "1e9", "1.5E-9"; NULL: an integer. */
static const char *decimal_end(const char *at) {
    while (is_digit(*at)) {
        at++;
    }
    bool is_float = *at == '.';
    while (is_digit(*at) || *at == '.') {
        at++;
    }
    const char *exponent = at + (at[0] && (at[1] == '+' || at[1] == '-') ? 2 : 1);
    if ((*at == 'e' || *at == 'E') && is_digit(*exponent)) {
        is_float = true;
        for (at = exponent; is_digit(*at);) {
            at++;
        }
    }
    return is_float ? at : NULL;
}

static void lex_decimal(struct parser *p, const char *start, const char *end) {
    enum { DIGITS_MAX = 64 };
    char digits[DIGITS_MAX];
    const size_t length = (size_t)(end - start);
    if (length >= sizeof digits) {
        fail_here(p, start, "expected a decimal number of fewer than 64 characters");
    }
    memcpy(digits, start, length);
    digits[length] = '\0';
    /* The program's locale may write the point as a comma. */
    const locale_t plain = newlocale(LC_NUMERIC_MASK, "C", (locale_t)0);
    if (!plain) {
        fail_here(p, start, "out of memory");
    }
    char *parsed;
    const double number = strtod_l(digits, &parsed, plain);
    freelocale(plain);
    if (*parsed) {
        fail_here(p, start + (parsed - digits), "expected the number to end here");
    }
    uint64_t bits;
    memcpy(&bits, &number, sizeof bits);
    finish_number(p, TOKEN_DECIMAL, end, bits);
}

static void lex_number(struct parser *p, const char *at) {
    switch (at[0] == '0' ? at[1] | 0x20 : 0) {
    case 'x': lex_integer(p, at + 2, 16); return;
    case 'b': lex_integer(p, at + 2, 2); return;
    case 'f': lex_bits(p, at + 2, TOKEN_F32, 8); return;
    case 'd': lex_bits(p, at + 2, TOKEN_F64, 16); return;
    default: break;
    }
    const char *end = decimal_end(at);
    if (end) {
        lex_decimal(p, at, end);
    } else {
        lex_integer(p, at, *at == '0' ? 8 : 10);
    }
}

/* ---- tokens ---------------------------------------------------------------------------------- */

static const char *name_end(const char *at) {
    while (in_name(*at)) {
        at++;
    }
    return at;
}

void extend_opcode(struct parser *p) {
    const char *at = p->cursor;
    while (*at == '.' || (at[0] == ':' && at[1] == ':')) {
        const char *word = at + (*at == '.' ? 1 : 2);
        if (!in_name(*word)) {
            fail_here(p, word, "expected the name of a modifier here");
        }
        at = name_end(word);
    }
    finish(p, TOKEN_NAME, at);
}

void extend_component(struct parser *p) {
    const char *at = p->cursor;
    if (at[0] == '.' && in_name(at[1]) && !in_name(at[2])) {
        finish(p, TOKEN_NAME, at + 2);
    }
}

static void lex_string(struct parser *p, const char *start) {
    for (const char *at = start + 1; at < p->end && *at != '\n'; at++) {
        if (*at == '"') {
            finish(p, TOKEN_STRING, at + 1);
            return;
        }
        if (*at == '\\' && at[1] != '\n' && at + 1 < p->end) {
            at++;
        }
    }
    fail_here(p, start, "expected the string to end on its line");
}

void next_token(struct parser *p) {
    const char *at = skip_blanks(p);
    p->token = place(p, at);
    p->token.start = at;
    const char second = (char)(at[0] ? at[1] : '\0');
    if (starts_name(*at) || (*at == '%' && starts_name(second))) {
        finish(p, TOKEN_NAME, name_end(at + 1));
    } else if (is_digit(*at) || (*at == '.' && is_digit(second))) {
        lex_number(p, at);
    } else if (*at == '.' && in_name(second)) {
        finish(p, TOKEN_DIRECTIVE, name_end(at + 1));
    } else if (*at == '"') {
        lex_string(p, at);
    } else if (*at == '\0' && at >= p->end) {
        finish(p, TOKEN_END, at);
    } else if (*at > ' ' && *at <= '~') {
        finish(p, TOKEN_SIGN, at + 1);
    } else {
        fail_at(p, &p->token, "expected PTX, found a byte of value 0x%02x",
                (unsigned)(unsigned char)*at);
    }
}

bool token_is_sign(const struct token *token, char sign) {
    return token->kind == TOKEN_SIGN && *token->start == sign;
}

bool token_is(const struct token *token, const char *text) {
    const size_t length = strlen(text);
    return (token->kind == TOKEN_NAME || token->kind == TOKEN_DIRECTIVE) &&
           token->length == length && memcmp(token->start, text, length) == 0;
}

bool take_sign(struct parser *p, char sign) {
    const bool taken = token_is_sign(&p->token, sign);
    if (taken) {
        next_token(p);
    }
    return taken;
}

bool take_word(struct parser *p, const char *text) {
    const bool taken = token_is(&p->token, text);
    if (taken) {
        next_token(p);
    }
    return taken;
}

void expect_sign(struct parser *p, char sign, const char *where) {
    if (!take_sign(p, sign)) {
        char what[80];
        snprintf(what, sizeof what, "'%c' %s", sign, where);
        fail_expected(p, what);
    }
}

struct token expect_kind(struct parser *p, enum token_kind kind, const char *what) {
    const struct token token = p->token;
    if (token.kind != kind) {
        fail_expected(p, what);
    }
    next_token(p);
    return token;
}

uint32_t expect_number(struct parser *p, uint32_t limit, const char *what) {
    if (p->token.kind == TOKEN_INTEGER && p->token.value > limit) {
        fail_expected(p, what);
    }
    return (uint32_t)expect_kind(p, TOKEN_INTEGER, what).value;
}
