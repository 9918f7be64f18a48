/* SPDX-License-Identifier: Apache-2.0
 *
 * ptx_lexer.c - PTX as tokens, one at a time, each with its place.
 *
 * Invariant: the cursor never passes the end of the text, where a 0 stands.
 */
#include "ptx_lexer.h"

#include <locale.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_FIRST = 1, NAME_REST = 2, DIGIT = 4 };

/* Of the bytes below 128, 16 a row: $ % 0-9 A-Z _ a-z belong to names; no byte above does. */
static const unsigned char CLASS[256] = {
    /* clang-format off */
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 3, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 0, 0, 0, 0, 0, 0,
    0, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3,
    3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 0, 0, 0, 0, 3,
    0, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3,
    3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 0, 0, 0, 0, 0,
    /* clang-format on */
};

static unsigned class_of(char c) {
    return CLASS[(unsigned char)c];
}

static bool is_digit(char c) {
    return (class_of(c) & DIGIT) != 0;
}

/* 0 to 35, or 36 for what is neither digit nor letter. */
static unsigned digit_value(char c) {
    if (c >= '0' && c <= '9') {
        return (unsigned)(c - '0');
    }
    if (c >= 'a' && c <= 'z') {
        return (unsigned)(c - 'a') + 10;
    }
    if (c >= 'A' && c <= 'Z') {
        return (unsigned)(c - 'A') + 10;
    }
    return 36;
}

/* ---- errors ---------------------------------------------------------------------------------- */

void lexer_fail_at(struct lexer *lexer, uint32_t line, uint32_t column, const char *format, ...) {
    if (lexer->failed) {
        return;
    }
    lexer->failed = true;
    lexer->error->line = line;
    lexer->error->column = column;
    va_list args;
    va_start(args, format);
    vsnprintf(lexer->error->text, sizeof lexer->error->text, format, args);
    va_end(args);
    lexer->token.kind = TOKEN_END;
}

void lexer_expected(struct lexer *lexer, const char *what) {
    enum { SHOWN = 48 };
    const struct token *token = &lexer->token;
    if (token->kind == TOKEN_END) {
        lexer_fail_at(lexer, token->line, token->column, "expected %s, found the end of the text",
                      what);
        return;
    }
    char found[SHOWN + 1];
    const uint32_t length = token->length < SHOWN ? token->length : SHOWN;
    for (uint32_t i = 0; i < length; i++) {
        const char c = token->start[i];
        found[i] = c >= ' ' && c <= '~' ? c : '?';
    }
    found[length] = '\0';
    lexer_fail_at(lexer, token->line, token->column, "expected %s, found '%s%s'", what, found,
                  token->length > SHOWN ? "..." : "");
}

static uint32_t column_of(const struct lexer *lexer, const char *at) {
    return (uint32_t)(at - lexer->line_start) + 1;
}

static void fail_here(struct lexer *lexer, const char *at, const char *text) {
    lexer_fail_at(lexer, lexer->line, column_of(lexer, at), "%s", text);
}

/* ---- blanks ---------------------------------------------------------------------------------- */

static void start_line(struct lexer *lexer, const char *at) {
    lexer->line++;
    lexer->line_start = at;
}

static const char *end_of_line(const struct lexer *lexer, const char *at) {
    const char *found = memchr(at, '\n', (size_t)(lexer->end - at));
    return found ? found : lexer->end;
}

/* Behind the comment that starts at `at`; at itself: the text ends inside it. */
static const char *skip_comment(struct lexer *lexer, const char *at) {
    for (const char *c = at + 2; c < lexer->end; c++) {
        if (*c == '*' && c[1] == '/') {
            return c + 2;
        }
        if (*c == '\n') {
            start_line(lexer, c + 1);
        }
    }
    return at;
}

/* The first character that is neither blank nor comment. Lines of old compilers that hold
 * debugging data for the assembler (@@DWARF) are comments. */
static const char *skip_blanks(struct lexer *lexer) {
    const char *at = lexer->cursor;
    for (;;) {
        if (*at == '\n') {
            start_line(lexer, ++at);
        } else if (*at == ' ' || *at == '\t' || *at == '\r' || *at == '\f' || *at == '\v') {
            at++;
        } else if ((*at == '/' && at[1] == '/') || (*at == '@' && strncmp(at, "@@DWARF", 7) == 0)) {
            at = end_of_line(lexer, at);
        } else if (*at == '/' && at[1] == '*') {
            const uint32_t line = lexer->line, column = column_of(lexer, at);
            const char *behind = skip_comment(lexer, at);
            if (behind == at) {
                lexer_fail_at(lexer, line, column, "this comment does not end");
                return lexer->end;
            }
            at = behind;
        } else {
            return at;
        }
    }
}

/* ---- names ----------------------------------------------------------------------------------- */

static const char *hash_name(const char *at, uint64_t *hash) {
    uint64_t h = *hash;
    while (class_of(*at) & NAME_REST) {
        h = lexer_hash(h, *at++);
    }
    *hash = h;
    return at;
}

static void finish_name(struct lexer *lexer, enum token_kind kind, const char *start,
                        const char *behind, uint64_t hash) {
    struct token *token = &lexer->token;
    token->kind = kind;
    token->start = start;
    token->length = (uint32_t)(behind - start);
    token->hash = hash;
    lexer->cursor = behind;
}

void lexer_extend_opcode(struct lexer *lexer) {
    const char *at = lexer->cursor;
    uint64_t hash = lexer->token.hash;
    for (;;) {
        const bool colons = at[0] == ':' && at[1] == ':';
        if (*at != '.' && !colons) {
            break;
        }
        const char *word = at + (colons ? 2 : 1);
        if (!(class_of(*word) & NAME_REST)) {
            fail_here(lexer, word, "expected the name of a modifier here");
            return;
        }
        hash = lexer_hash(hash, *at);
        at = hash_name(word, &hash);
    }
    finish_name(lexer, TOKEN_NAME, lexer->token.start, at, hash);
}

void lexer_extend_component(struct lexer *lexer) {
    const char *at = lexer->cursor;
    if (at[0] == '.' && (class_of(at[1]) & NAME_REST) && !(class_of(at[2]) & NAME_REST)) {
        uint64_t hash = lexer_hash(lexer->token.hash, '.');
        at = hash_name(at + 1, &hash);
        finish_name(lexer, TOKEN_NAME, lexer->token.start, at, hash);
    }
}

/* ---- numbers --------------------------------------------------------------------------------- */

static void finish_number(struct lexer *lexer, enum token_kind kind, const char *behind,
                          uint64_t value) {
    if (class_of(*behind) & (NAME_REST | NAME_FIRST) && *behind != '%') {
        fail_here(lexer, behind, "expected the number to end here");
        return;
    }
    lexer->token.kind = kind;
    lexer->token.length = (uint32_t)(behind - lexer->token.start);
    lexer->token.value = value;
    lexer->cursor = behind;
}

static void lex_digits(struct lexer *lexer, const char *at, unsigned base) {
    uint64_t value = 0;
    const char *first = at;
    for (unsigned digit; (digit = digit_value(*at)) < base; at++) {
        if (value > (UINT64_MAX - digit) / base) {
            fail_here(lexer, first, "expected an integer of at most 64 bits");
            return;
        }
        value = value * base + digit;
    }
    if (at == first) {
        fail_here(lexer, at, "expected a digit here");
        return;
    }
    lexer->token.is_unsigned = value > INT64_MAX;
    if (*at == 'U' || *at == 'u') {
        lexer->token.is_unsigned = true;
        at++;
    }
    finish_number(lexer, TOKEN_INTEGER, at, value);
}

static void lex_bits(struct lexer *lexer, const char *at, enum token_kind kind, unsigned digits) {
    uint64_t value = 0;
    for (unsigned i = 0; i < digits; i++) {
        const unsigned digit = digit_value(at[i]);
        if (digit >= 16) {
            lexer_fail_at(lexer, lexer->line, column_of(lexer, at + i),
                          "expected %u hexadecimal digits for the bits of a float, found %u",
                          digits, i);
            return;
        }
        value = value << 4 | digit;
    }
    finish_number(lexer, kind, at + digits, value);
}

/* Whether the digits go on as a decimal float: "1.", "1.5", "1e9", "1.5e-9". */
static bool is_decimal(const char *at) {
    while (is_digit(*at)) {
        at++;
    }
    if (*at == '.') {
        return true;
    }
    if (*at != 'e' && *at != 'E') {
        return false;
    }
    at += at[1] == '+' || at[1] == '-' ? 2 : 1;
    return is_digit(*at);
}

static void lex_decimal(struct lexer *lexer, const char *start) {
    enum { DIGITS_MAX = 64 };
    char digits[DIGITS_MAX];
    const char *at = start;
    while (is_digit(*at) || *at == '.') {
        at++;
    }
    if (*at == 'e' || *at == 'E') {
        at += at[1] == '+' || at[1] == '-' ? 2 : 1;
        while (is_digit(*at)) {
            at++;
        }
    }
    const size_t length = (size_t)(at - start);
    if (length >= sizeof digits) {
        fail_here(lexer, start, "expected a decimal number of fewer than 64 characters");
        return;
    }
    memcpy(digits, start, length);
    digits[length] = '\0';
    /* The program's locale may write the point as a comma. */
    const locale_t plain = newlocale(LC_NUMERIC_MASK, "C", (locale_t)0);
    if (!plain) {
        fail_here(lexer, start, "out of memory");
        return;
    }
    char *end;
    const double number = strtod_l(digits, &end, plain);
    freelocale(plain);
    if (*end) {
        fail_here(lexer, start + (end - digits), "expected the number to end here");
        return;
    }
    uint64_t bits;
    memcpy(&bits, &number, sizeof bits);
    finish_number(lexer, TOKEN_DECIMAL, at, bits);
}

static void lex_number(struct lexer *lexer, const char *at) {
    if (*at == '0') {
        switch (at[1]) {
        case 'x':
        case 'X': lex_digits(lexer, at + 2, 16); return;
        case 'b':
        case 'B': lex_digits(lexer, at + 2, 2); return;
        case 'f':
        case 'F': lex_bits(lexer, at + 2, TOKEN_F32, 8); return;
        case 'd':
        case 'D': lex_bits(lexer, at + 2, TOKEN_F64, 16); return;
        default: break;
        }
    }
    if (is_decimal(at)) {
        lex_decimal(lexer, at);
    } else {
        lex_digits(lexer, at, *at == '0' ? 8 : 10);
    }
}

/* ---- tokens ---------------------------------------------------------------------------------- */

static void lex_string(struct lexer *lexer, const char *start) {
    for (const char *at = start + 1; at < lexer->end && *at != '\n'; at++) {
        if (*at == '"') {
            finish_name(lexer, TOKEN_STRING, start, at + 1, 0);
            return;
        }
        if (*at == '\\' && at[1] != '\n' && at + 1 < lexer->end) {
            at++;
        }
    }
    fail_here(lexer, start, "expected the string to end on its line");
}

static void lex_name(struct lexer *lexer, const char *start) {
    uint64_t hash = lexer_hash(LEXER_HASH_SEED, *start);
    const char *behind = hash_name(start + 1, &hash);
    finish_name(lexer, *start == '.' ? TOKEN_DIRECTIVE : TOKEN_NAME, start, behind, hash);
}

void lexer_next(struct lexer *lexer) {
    struct token *token = &lexer->token;
    if (lexer->failed) {
        return;
    }
    const char *at = skip_blanks(lexer);
    if (lexer->failed) {
        return;
    }
    token->line = lexer->line;
    token->column = column_of(lexer, at);
    token->start = at;
    token->is_unsigned = false;
    const unsigned next = class_of(at[0] ? at[1] : '\0');
    if (class_of(*at) & NAME_FIRST && (*at != '%' || (next & NAME_FIRST))) {
        lex_name(lexer, at);
    } else if (is_digit(*at) || (*at == '.' && (next & DIGIT))) {
        lex_number(lexer, at);
    } else if (*at == '.' && (next & NAME_REST)) {
        lex_name(lexer, at);
    } else if (*at == '"') {
        lex_string(lexer, at);
    } else if (*at == '\0' && at >= lexer->end) {
        token->kind = TOKEN_END;
        token->length = 0;
        lexer->cursor = at;
    } else if (*at > ' ' && *at <= '~') {
        token->kind = TOKEN_SIGN;
        token->length = 1;
        lexer->cursor = at + 1;
    } else {
        lexer_fail_at(lexer, token->line, token->column,
                      "expected PTX, found a byte of value 0x%02x", (unsigned)(unsigned char)*at);
    }
}

void lexer_start(struct lexer *lexer, const char *text, size_t size, struct ptx_error *error) {
    *lexer = (struct lexer){
        .cursor = text, .end = text + size, .line_start = text, .line = 1, .error = error};
    lexer_next(lexer);
}

bool token_is_sign(const struct token *token, char sign) {
    return token->kind == TOKEN_SIGN && *token->start == sign;
}

bool token_is(const struct token *token, const char *text) {
    const size_t length = strlen(text);
    return (token->kind == TOKEN_NAME || token->kind == TOKEN_DIRECTIVE) &&
           token->length == length && memcmp(token->start, text, length) == 0;
}
