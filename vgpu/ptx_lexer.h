/* SPDX-License-Identifier: Apache-2.0
 *
 * ptx_lexer.h - PTX as tokens, one at a time, each with its place.
 *
 * Errors are sticky: after the first one every token is TOKEN_END, so that whoever reads tokens
 * comes to an end by itself, and only the first error is told.
 */
#ifndef VGPU_PTX_LEXER_H
#define VGPU_PTX_LEXER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ptx.h"

enum token_kind {
    TOKEN_END,       /* of the text, or after an error */
    TOKEN_NAME,      /* add, %r1, $L__BB0_1, _ */
    TOKEN_DIRECTIVE, /* .reg, with the dot */
    TOKEN_INTEGER,   /* value */
    TOKEN_F32,       /* value: the bits of 0f3F800000 */
    TOKEN_F64,       /* value: the bits of 0d3FF0000000000000 */
    TOKEN_DECIMAL,   /* value: the bits of the double 1.5 */
    TOKEN_STRING,    /* with the quotes */
    TOKEN_SIGN       /* one character: *start */
};

struct token {
    enum token_kind kind;
    bool is_unsigned; /* 5U; or too large for int64_t */
    uint32_t length;
    uint32_t line, column;
    const char *start;
    uint64_t hash;  /* of a name's or directive's characters */
    uint64_t value; /* of a number */
};

/* Of a word's characters, one after the other; 64 bits, so that words that collide are hard to come
 * by. */
static const uint64_t LEXER_HASH_SEED = 0xCBF29CE484222325u;

static inline uint64_t lexer_hash(uint64_t hash, char c) {
    return (hash ^ (unsigned char)c) * 0x100000001B3u;
}

struct lexer {
    struct token token; /* the current one */
    const char *cursor; /* behind it */
    const char *end;
    const char *line_start;
    uint32_t line;
    bool failed;
    struct ptx_error *error;
};

/* Takes the first token. text[size] is a 0. */
void lexer_start(struct lexer *lexer, const char *text, size_t size, struct ptx_error *error);
void lexer_next(struct lexer *lexer);

/* The current name and what is glued to it: add -> add.s32, cp -> cp.async.bulk.L2::cache_hint.
 * Ends before a colon that stands alone, so that labels stay names. */
void lexer_extend_opcode(struct lexer *lexer);

/* The current name and a suffix of one letter: %tid -> %tid.x. */
void lexer_extend_component(struct lexer *lexer);

bool token_is_sign(const struct token *token, char sign);
bool token_is(const struct token *token, const char *text);

/* The first error wins. */
__attribute__((format(printf, 4, 5))) void lexer_fail_at(struct lexer *lexer, uint32_t line,
                                                         uint32_t column, const char *format, ...);
/* "expected WHAT, found THE CURRENT TOKEN". */
void lexer_expected(struct lexer *lexer, const char *what);

#endif /* VGPU_PTX_LEXER_H */
