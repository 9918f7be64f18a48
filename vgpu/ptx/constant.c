/* SPDX-License-Identifier: Apache-2.0
 *
 * constant.c - constant expressions: C's operators on 64-bit integers; floats alone or with a
 * sign.
 *
 * Invariant: recursion is bounded by PTX_MAX_EXPRESSION_DEPTH.
 */
#include "ptx/parser.h"

#include <string.h>

/* Where one begins with another, the longer one comes first. */
static const struct infix {
    const char *text;
    int rank; /* a larger one binds tighter */
} OPERATORS[] = {
    {"||", 1}, {"&&", 2}, {"==", 6}, {"!=", 6}, {"<=", 7}, {">=", 7},
    {"<<", 8}, {">>", 8}, {"|", 3},  {"^", 4},  {"&", 5},  {"<", 7},
    {">", 7},  {"+", 9},  {"-", 9},  {"*", 10}, {"/", 10}, {"%", 10},
};

static struct constant parse_expression(struct parser *p, int rank, int depth);

static struct constant integer(uint64_t bits, bool is_unsigned) {
    return (struct constant){TOKEN_INTEGER, is_unsigned, bits};
}

static bool is_negative(struct constant constant) {
    return !constant.is_unsigned && (int64_t)constant.bits < 0;
}

static struct constant opposite(struct constant constant) {
    switch (constant.kind) {
    case TOKEN_F32: constant.bits ^= UINT64_C(1) << 31; return constant;
    case TOKEN_F64:
    case TOKEN_DECIMAL: constant.bits ^= UINT64_C(1) << 63; return constant;
    default: return integer(0 - constant.bits, false);
    }
}

static struct constant require_integer(struct parser *p, const struct token *at,
                                       struct constant constant) {
    if (constant.kind != TOKEN_INTEGER) {
        fail_at(p, at, "expected integers on both sides of an operator, found a float");
    }
    return constant;
}

static struct constant parse_primary(struct parser *p, int depth) {
    const struct token at = p->token;
    if (depth > PTX_MAX_EXPRESSION_DEPTH) {
        fail_at(p, &at, "expected an expression of at most %d levels", PTX_MAX_EXPRESSION_DEPTH);
    }
    if (take_sign(p, '(')) {
        const bool is_unsigned = take_word(p, ".u64");
        if (is_unsigned || take_word(p, ".s64")) {
            expect_sign(p, ')', "after the type of a cast");
            return integer(require_integer(p, &at, parse_primary(p, depth + 1)).bits, is_unsigned);
        }
        const struct constant inner = parse_expression(p, 0, depth + 1);
        expect_sign(p, ')', "at the end of an expression");
        return inner;
    }
    if (take_sign(p, '-')) {
        return opposite(parse_primary(p, depth + 1));
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
        fail_expected(p, "a number");
    }
    next_token(p);
    return (struct constant){at.kind, at.is_unsigned, at.value};
}

/* The operator that stands here, or NULL. */
static const struct infix *peek_operator(const struct token *token) {
    for (size_t i = 0; token->kind == TOKEN_SIGN && i < sizeof OPERATORS / sizeof *OPERATORS; i++) {
        const char *text = OPERATORS[i].text;
        if (token->start[0] == text[0] && (!text[1] || token->start[1] == text[1])) {
            return &OPERATORS[i];
        }
    }
    return NULL;
}

static uint64_t shifted_right(struct constant a, uint64_t by) {
    const uint64_t sign = is_negative(a) ? UINT64_MAX : 0;
    if (by > 63) {
        return sign;
    }
    return by == 0 ? a.bits : (a.bits >> by) | (sign << (64 - by));
}

static uint64_t divided(struct parser *p, const struct token *at, struct constant a,
                        struct constant b, bool rest) {
    if (b.bits == 0) {
        fail_at(p, at, "expected a divisor other than 0");
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
    const bool doubled = text[1] == text[0]; /* && || << >> */
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
        return doubled ? integer(a.bits && b.bits, false) : integer(a.bits & b.bits, is_unsigned);
    case '|':
        return doubled ? integer(a.bits || b.bits, false) : integer(a.bits | b.bits, is_unsigned);
    case '<':
        if (doubled) {
            return integer(b.bits > 63 ? 0 : a.bits << b.bits, a.is_unsigned);
        }
        return integer(text[1] ? !less(b, a) : less(a, b), false);
    default:
        if (doubled) {
            return integer(shifted_right(a, b.bits), a.is_unsigned);
        }
        return integer(text[1] ? !less(a, b) : less(b, a), false);
    }
}

static struct constant parse_expression(struct parser *p, int rank, int depth) {
    const struct token first = p->token;
    struct constant left = parse_primary(p, depth);
    for (const struct infix *found; (found = peek_operator(&p->token)) && found->rank > rank;) {
        const struct token at = p->token;
        for (const char *sign = found->text; *sign; sign++) {
            next_token(p);
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

bool starts_constant(const struct token *token) {
    return (token->kind >= TOKEN_INTEGER && token->kind <= TOKEN_DECIMAL) ||
           (token->kind == TOKEN_SIGN && strchr("-+~(!", *token->start)) ||
           token_is(token, "WARP_SZ");
}

uint64_t expect_integer(struct parser *p, uint64_t limit, const char *what) {
    const struct token at = p->token;
    if (!starts_constant(&at)) {
        fail_expected(p, what);
    }
    const struct constant constant = parse_constant(p);
    if (constant.kind != TOKEN_INTEGER || is_negative(constant) || constant.bits > limit) {
        fail_at(p, &at, "expected %s from 0 to %llu, found another number", what,
                (unsigned long long)limit);
    }
    return constant.bits;
}

uint32_t float_bits(uint64_t double_bits) {
    double number;
    memcpy(&number, &double_bits, sizeof number);
    const float narrow = (float)number;
    uint32_t bits;
    memcpy(&bits, &narrow, sizeof bits);
    return bits;
}
