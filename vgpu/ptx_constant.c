/* SPDX-License-Identifier: Apache-2.0
 *
 * ptx_constant.c - small readers of tokens, and constant expressions: C's operators on 64-bit
 * integers, floats alone or with a sign.
 *
 * Invariant: recursion is bounded by PTX_MAX_EXPRESSION_DEPTH.
 */
#include "ptx_parser.h"

#include <stdio.h>

bool take_sign(struct parser *p, char sign) {
    if (!token_is_sign(&p->lexer.token, sign)) {
        return false;
    }
    lexer_next(&p->lexer);
    return true;
}

bool take_word(struct parser *p, const char *text) {
    if (!token_is(&p->lexer.token, text)) {
        return false;
    }
    lexer_next(&p->lexer);
    return true;
}

bool expect_sign(struct parser *p, char sign, const char *where) {
    if (take_sign(p, sign)) {
        return true;
    }
    char what[80];
    snprintf(what, sizeof what, "'%c' %s", sign, where);
    lexer_expected(&p->lexer, what);
    return false;
}

void skip_pragma(struct parser *p) {
    do {
        if (p->lexer.token.kind != TOKEN_STRING) {
            lexer_expected(&p->lexer, "a pragma in quotes");
            return;
        }
        lexer_next(&p->lexer);
    } while (take_sign(p, ','));
    expect_sign(p, ';', "behind a pragma");
}

uint64_t expect_integer(struct parser *p, uint64_t limit, const char *what) {
    const struct token at = p->lexer.token;
    if (!starts_constant(&at)) {
        lexer_expected(&p->lexer, what);
        return 0;
    }
    const struct constant constant = parse_constant(p);
    const bool negative = !constant.is_unsigned && (int64_t)constant.bits < 0;
    if (constant.kind != TOKEN_INTEGER || negative || constant.bits > limit) {
        lexer_fail_at(&p->lexer, at.line, at.column,
                      "expected %s from 0 to %llu, found another number", what,
                      (unsigned long long)limit);
        return 0;
    }
    return constant.bits;
}

/* ---- expressions ----------------------------------------------------------------------------- */

struct infix {
    const char *text;
    int rank; /* a larger one binds tighter */
};

/* Where one begins with another, the longer one comes first. */
static const struct infix OPERATORS[] = {
    {"||", 1}, {"&&", 2}, {"==", 6}, {"!=", 6}, {"<=", 7}, {">=", 7},
    {"<<", 8}, {">>", 8}, {"|", 3},  {"^", 4},  {"&", 5},  {"<", 7},
    {">", 7},  {"+", 9},  {"-", 9},  {"*", 10}, {"/", 10}, {"%", 10},
};

bool starts_constant(const struct token *token) {
    switch (token->kind) {
    case TOKEN_INTEGER:
    case TOKEN_F32:
    case TOKEN_F64:
    case TOKEN_DECIMAL: return true;
    case TOKEN_SIGN:
        return *token->start == '-' || *token->start == '+' || *token->start == '~' ||
               *token->start == '(' || *token->start == '!';
    default: return token_is(token, "WARP_SZ");
    }
}

static struct constant integer(uint64_t bits, bool is_unsigned) {
    return (struct constant){TOKEN_INTEGER, is_unsigned, bits};
}

static struct constant parse_expression(struct parser *p, int rank, int depth);

static bool too_deep(struct parser *p, int depth) {
    if (depth > PTX_MAX_EXPRESSION_DEPTH) {
        lexer_fail_at(&p->lexer, p->lexer.token.line, p->lexer.token.column,
                      "expected an expression of at most %d levels", PTX_MAX_EXPRESSION_DEPTH);
        return true;
    }
    return false;
}

static struct constant negative(struct constant constant) {
    switch (constant.kind) {
    case TOKEN_F32: constant.bits ^= UINT64_C(1) << 31; break;
    case TOKEN_F64:
    case TOKEN_DECIMAL: constant.bits ^= UINT64_C(1) << 63; break;
    default: constant.bits = 0 - constant.bits; constant.is_unsigned = false;
    }
    return constant;
}

static struct constant require_integer(struct parser *p, const struct token *at,
                                       struct constant constant) {
    if (constant.kind != TOKEN_INTEGER) {
        lexer_fail_at(&p->lexer, at->line, at->column,
                      "expected integers on both sides of an operator, found a float");
    }
    return constant;
}

static struct constant parse_primary(struct parser *p, int depth) {
    const struct token at = p->lexer.token;
    if (too_deep(p, depth)) {
        return integer(0, false);
    }
    if (take_sign(p, '(')) {
        const bool is_unsigned = take_word(p, ".u64");
        if (is_unsigned || take_word(p, ".s64")) {
            expect_sign(p, ')', "behind the type of a cast");
            const struct constant cast = require_integer(p, &at, parse_primary(p, depth + 1));
            return integer(cast.bits, is_unsigned);
        }
        const struct constant inner = parse_expression(p, 0, depth + 1);
        expect_sign(p, ')', "at the end of an expression");
        return inner;
    }
    if (take_sign(p, '-')) {
        return negative(parse_primary(p, depth + 1));
    }
    if (take_sign(p, '+')) {
        return parse_primary(p, depth + 1);
    }
    if (take_sign(p, '~')) {
        const struct constant inner = require_integer(p, &at, parse_primary(p, depth + 1));
        return integer(~inner.bits, inner.is_unsigned);
    }
    if (take_sign(p, '!')) {
        return integer(!require_integer(p, &at, parse_primary(p, depth + 1)).bits, false);
    }
    if (take_word(p, "WARP_SZ")) {
        return integer(32, false);
    }
    if (at.kind < TOKEN_INTEGER || at.kind > TOKEN_DECIMAL) {
        lexer_expected(&p->lexer, "a number");
        return integer(0, false);
    }
    lexer_next(&p->lexer);
    return (struct constant){at.kind, at.is_unsigned, at.value};
}

/* The operator that stands here, or NULL. */
static const struct infix *peek_operator(const struct parser *p) {
    const struct token *token = &p->lexer.token;
    if (token->kind != TOKEN_SIGN) {
        return NULL;
    }
    for (size_t i = 0; i < sizeof OPERATORS / sizeof OPERATORS[0]; i++) {
        const char *text = OPERATORS[i].text;
        if (token->start[0] == text[0] && (!text[1] || token->start[1] == text[1])) {
            return &OPERATORS[i];
        }
    }
    return NULL;
}

static uint64_t shifted(struct constant a, uint64_t by, bool left) {
    if (by > 63) {
        return !left && !a.is_unsigned && (int64_t)a.bits < 0 ? UINT64_MAX : 0;
    }
    if (left) {
        return a.bits << by;
    }
    const uint64_t sign = !a.is_unsigned && (int64_t)a.bits < 0 ? UINT64_MAX : 0;
    return by == 0 ? a.bits : (a.bits >> by) | (sign << (64 - by));
}

static uint64_t divided(struct parser *p, const struct token *at, struct constant a,
                        struct constant b, bool rest) {
    if (b.bits == 0) {
        lexer_fail_at(&p->lexer, at->line, at->column, "expected a divisor other than 0");
        return 0;
    }
    if (a.is_unsigned || b.is_unsigned) {
        return rest ? a.bits % b.bits : a.bits / b.bits;
    }
    if (b.bits == UINT64_MAX) { /* -1: the smallest integer has no opposite */
        return rest ? 0 : 0 - a.bits;
    }
    const int64_t x = (int64_t)a.bits, y = (int64_t)b.bits;
    return (uint64_t)(rest ? x % y : x / y);
}

static bool less(struct constant a, struct constant b) {
    return a.is_unsigned || b.is_unsigned ? a.bits < b.bits : (int64_t)a.bits < (int64_t)b.bits;
}

static struct constant applied(struct parser *p, const struct token *at, const char *text,
                               struct constant a, struct constant b) {
    const bool is_unsigned = a.is_unsigned || b.is_unsigned;
    switch (text[0]) {
    case '+': return integer(a.bits + b.bits, is_unsigned);
    case '-': return integer(a.bits - b.bits, is_unsigned);
    case '*': return integer(a.bits * b.bits, is_unsigned);
    case '/':
    case '%': return integer(divided(p, at, a, b, text[0] == '%'), is_unsigned);
    case '^': return integer(a.bits ^ b.bits, is_unsigned);
    case '=': return integer(a.bits == b.bits, false);
    case '!': return integer(a.bits != b.bits, false);
    case '&':
        return text[1] ? integer(a.bits && b.bits, false) : integer(a.bits & b.bits, is_unsigned);
    case '|':
        return text[1] ? integer(a.bits || b.bits, false) : integer(a.bits | b.bits, is_unsigned);
    case '<':
        if (text[1] == '<') {
            return integer(shifted(a, b.bits, true), a.is_unsigned);
        }
        return integer(text[1] ? !less(b, a) : less(a, b), false);
    default:
        if (text[1] == '>') {
            return integer(shifted(a, b.bits, false), a.is_unsigned);
        }
        return integer(text[1] ? !less(a, b) : less(b, a), false);
    }
}

static struct constant parse_expression(struct parser *p, int rank, int depth) {
    const struct token first = p->lexer.token;
    struct constant left = parse_primary(p, depth);
    if (too_deep(p, depth)) {
        return left;
    }
    for (const struct infix *found; (found = peek_operator(p)) && found->rank > rank;) {
        const struct token at = p->lexer.token;
        lexer_next(&p->lexer);
        if (found->text[1]) {
            lexer_next(&p->lexer);
        }
        const struct constant right = parse_expression(p, found->rank, depth + 1);
        left = applied(p, &at, found->text, require_integer(p, &first, left),
                       require_integer(p, &at, right));
    }
    if (rank == 0 && take_sign(p, '?')) {
        const struct constant yes = parse_expression(p, 0, depth + 1);
        expect_sign(p, ':', "of a conditional expression");
        const struct constant no = parse_expression(p, 0, depth + 1);
        return require_integer(p, &first, left).bits ? yes : no;
    }
    return left;
}

struct constant parse_constant(struct parser *p) {
    return parse_expression(p, 0, 0);
}
