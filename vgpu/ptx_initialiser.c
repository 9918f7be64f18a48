/* SPDX-License-Identifier: Apache-2.0
 *
 * ptx_initialiser.c - the values of variables: {1, 2, {3, 4}} as bytes.
 *
 * Invariant: what is not written is zero, and nothing is written beyond the variable.
 */
#include "ptx_parser.h"

#include <string.h>

/* The array that is being filled. */
struct filling {
    struct ptx_variable *variable;
    const uint64_t *dimensions; /* the first may be 0: as many as there are values */
    uint32_t dimension_count;
};

/* Elements of what stands inside `level` braces; 0: as many as there are. */
static uint64_t elements_of(const struct filling *filling, uint32_t level) {
    uint64_t product = 1;
    for (uint32_t i = level; i < filling->dimension_count; i++) {
        product *= filling->dimensions[i];
    }
    return product;
}

static bool is_float(enum ptx_type type) {
    return type == PTX_F32 || type == PTX_F64;
}

static bool is_bits(enum ptx_type type) {
    return type >= PTX_B8 && type <= PTX_B128;
}

static bool integer_fits(const struct constant *constant, uint32_t bytes) {
    if (bytes >= 8) {
        return true;
    }
    const uint64_t limit = UINT64_C(1) << (8 * bytes);
    const int64_t value = (int64_t)constant->bits;
    if (!constant->is_unsigned && value < 0) {
        return value >= -(int64_t)(limit / 2);
    }
    return constant->bits < limit;
}

/* The bits of the constant as a value of the type. */
static uint64_t value_bits(struct parser *p, const struct token *at,
                           const struct constant *constant, enum ptx_type type) {
    const uint32_t bytes = ptx_type_size(type);
    switch (constant->kind) {
    case TOKEN_INTEGER:
        if (!is_float(type) && type != PTX_B128 && integer_fits(constant, bytes)) {
            return constant->bits;
        }
        break;
    case TOKEN_F32:
        if (type == PTX_F32 || (is_bits(type) && bytes == 4)) {
            return constant->bits;
        }
        break;
    default: {
        double number;
        memcpy(&number, &constant->bits, sizeof number);
        if (type == PTX_F64 || (is_bits(type) && bytes == 8)) {
            return constant->bits;
        }
        if (type == PTX_F32 && constant->kind == TOKEN_DECIMAL) {
            const float narrow = (float)number;
            uint32_t bits;
            memcpy(&bits, &narrow, sizeof bits);
            return bits;
        }
    }
    }
    lexer_fail_at(&p->lexer, at->line, at->column,
                  "expected a value of the variable's type, %u bytes wide", bytes);
    return 0;
}

/* Grows the bytes with zeros; false: it failed. */
static bool reach(struct parser *p, const struct token *at, uint64_t bytes) {
    if (bytes > PTX_MAX_INITIALISED) {
        lexer_fail_at(&p->lexer, at->line, at->column, "expected at most %d bytes of values",
                      PTX_MAX_INITIALISED);
        return false;
    }
    while (p->bytes.count < bytes) {
        if (!vector_push(p, &p->bytes, 1)) {
            return false;
        }
    }
    return true;
}

static void parse_value(struct parser *p, const struct filling *filling, uint64_t element) {
    const struct token at = p->lexer.token;
    const enum ptx_type type = filling->variable->type;
    const uint32_t bytes = ptx_type_size(type);
    if (at.kind == TOKEN_NAME && !starts_constant(&at)) {
        lexer_expected(&p->lexer, "a number (addresses as values are not supported)");
        return;
    }
    const struct constant constant = parse_constant(p);
    const uint64_t bits = value_bits(p, &at, &constant, type);
    if (!p->lexer.failed && reach(p, &at, (element + 1) * bytes)) {
        char *to = (char *)p->bytes.items + element * bytes;
        for (uint32_t i = 0; i < bytes; i++) { /* the least significant byte comes first */
            to[i] = (char)(unsigned char)(bits >> (8 * i));
        }
    }
}

/* What stands inside `level` braces, from the element `first` on. Recurses once per dimension. */
static void parse_values(struct parser *p, const struct filling *filling, uint32_t level,
                         uint64_t first) {
    const uint64_t room = elements_of(filling, level);
    const uint64_t inner = elements_of(filling, level + 1);
    uint64_t used = 0;
    expect_sign(p, '{', "before the values of an array");
    while (!token_is_sign(&p->lexer.token, '}') && p->lexer.token.kind != TOKEN_END) {
        const struct token at = p->lexer.token;
        if (room > 0 && used >= room) {
            lexer_fail_at(&p->lexer, at.line, at.column, "expected at most %llu values",
                          (unsigned long long)room);
            return;
        }
        if (!token_is_sign(&at, '{')) {
            parse_value(p, filling, first + used++);
        } else if (level + 1 < filling->dimension_count && inner > 0 && used % inner == 0) {
            parse_values(p, filling, level + 1, first + used);
            used += inner;
        } else {
            lexer_expected(&p->lexer, "a number");
        }
        if (!take_sign(p, ',')) {
            break;
        }
    }
    expect_sign(p, '}', "or ',' behind a value");
    if (room == 0) {
        reach(p, &p->lexer.token, (first + used) * ptx_type_size(filling->variable->type));
    }
}

void parse_initialiser(struct parser *p, struct ptx_variable *variable, const uint64_t *dimensions,
                       uint32_t dimension_count) {
    const struct filling filling = {variable, dimensions, dimension_count};
    const struct token at = p->lexer.token;
    p->bytes.count = 0;
    if (dimension_count > 0) {
        parse_values(p, &filling, 0, 0);
    } else {
        parse_value(p, &filling, 0);
    }
    if (variable->size == 0) {
        /* x[][3] = {{1}}: whole rows. */
        const uint64_t row = elements_of(&filling, 1) * ptx_type_size(variable->type);
        variable->size = row ? (p->bytes.count + row - 1) / row * row : 0;
    }
    p->initialised_bytes += variable->size;
    if (variable->size > PTX_MAX_INITIALISED || p->initialised_bytes > PTX_MAX_INITIALISED) {
        lexer_fail_at(&p->lexer, at.line, at.column,
                      "expected at most %d bytes of variables with values", PTX_MAX_INITIALISED);
    }
    if (p->lexer.failed) {
        return;
    }
    unsigned char *init = parser_alloc(p, p->arena, (size_t)variable->size);
    if (init && p->bytes.count) {
        memcpy(init, p->bytes.items, p->bytes.count);
    }
    variable->init = init;
}
