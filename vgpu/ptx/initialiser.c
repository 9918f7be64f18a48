/* SPDX-License-Identifier: Apache-2.0
 *
 * initialiser.c - the values of variables: {1, 2, {3, 4}} as bytes, and the addresses among them.
 *
 * Invariant: what is not written is zero, and nothing is written beyond the variable.
 */
#include "ptx/parser.h"

#include <string.h>

/* The array that is being filled. */
struct filling {
    enum ptx_type type;
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

static bool integer_fits(const struct constant *constant, uint32_t bytes) {
    if (bytes >= 8) {
        return bytes == 8;
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
    const bool is_float = type == PTX_F32 || type == PTX_F64;
    const bool takes_floats = is_float || type == PTX_B32 || type == PTX_B64;
    bool fits;
    switch (constant->kind) {
    case TOKEN_INTEGER: fits = !is_float && integer_fits(constant, bytes); break;
    case TOKEN_F32: fits = takes_floats && bytes == 4; break;
    default:
        if (type == PTX_F32 && constant->kind == TOKEN_DECIMAL) {
            return float_bits(constant->bits);
        }
        fits = takes_floats && bytes == 8;
    }
    if (!fits) {
        fail_at(p, at, "expected a value of the variable's type, %u bytes wide", bytes);
    }
    return constant->bits;
}

/* Grows the bytes with zeros. */
static void reach(struct parser *p, const struct token *at, uint64_t bytes) {
    if (bytes > PTX_MAX_INITIALISED) {
        fail_at(p, at, "expected at most %d bytes of values", PTX_MAX_INITIALISED);
    }
    while (p->bytes.count < bytes) {
        vector_push(p, &p->bytes, 1);
    }
}

/* f, x + 8, generic(x). */
static struct ptx_reference parse_symbol(struct parser *p) {
    const bool generic = take_word(p, "generic");
    if (generic) {
        expect_sign(p, '(', "after generic");
    }
    const struct binding *binding =
        p->token.kind == TOKEN_NAME ? scope_find(p, symbol_of(p, &p->token)) : NULL;
    const bool is_variable =
        binding && binding->kind == BOUND_VARIABLE &&
        (binding->variable->space == PTX_GLOBAL || binding->variable->space == PTX_CONST);
    if (!is_variable && !(binding && binding->kind == BOUND_FUNCTION)) {
        fail_expected(p, "a number, or a function or variable that is declared");
    }
    struct ptx_reference reference = {.variable = binding->variable, .function = binding->function};
    next_token(p);
    if (generic) {
        expect_sign(p, ')', "after the argument of generic");
    }
    reference.addend = parse_offset(p);
    return reference;
}

/* An address, or 0xFF00(x): the byte of it that the mask selects. */
static void parse_reference(struct parser *p, const struct filling *filling, uint64_t element) {
    const struct token at = p->token;
    const bool masked = at.kind == TOKEN_INTEGER;
    if (masked) {
        next_token(p);
        next_token(p);
    }
    struct ptx_reference reference = parse_symbol(p);
    reference.bytes = ptx_type_size(filling->type);
    reference.at = element * reference.bytes;
    if (masked) {
        expect_sign(p, ')', "after the argument of a mask");
        reference.shift = at.value ? (uint32_t)__builtin_ctzll(at.value) : 0;
    }
    if (masked ? reference.bytes != 1 || at.value != UINT64_C(0xff) << reference.shift
               : reference.bytes != 8) {
        fail_at(p, &at, "expected an address in 64 bits, or one byte of it");
    }
    reach(p, &at, reference.at + reference.bytes);
    *(struct ptx_reference *)vector_push(p, &p->addresses, sizeof reference) = reference;
}

static bool starts_reference(const struct parser *p) {
    return p->token.kind == TOKEN_NAME
               ? !starts_constant(&p->token)
               : p->token.kind == TOKEN_INTEGER && p->cursor[strspn(p->cursor, " \t")] == '(';
}

static void parse_value(struct parser *p, const struct filling *filling, uint64_t element) {
    const struct token at = p->token;
    const uint32_t bytes = ptx_type_size(filling->type);
    if (starts_reference(p)) {
        parse_reference(p, filling, element);
        return;
    }
    const struct constant constant = parse_constant(p);
    const uint64_t bits = value_bits(p, &at, &constant, filling->type);
    reach(p, &at, (element + 1) * bytes);
    unsigned char *to = (unsigned char *)p->bytes.items + element * bytes;
    for (uint32_t i = 0; i < bytes; i++) { /* the least significant byte comes first */
        to[i] = (unsigned char)(bits >> (8 * i));
    }
}

/* What stands inside `level` braces, from the element `first` on. Recurses once per dimension. */
static void parse_values(struct parser *p, const struct filling *filling, uint32_t level,
                         uint64_t first) {
    const uint64_t room = elements_of(filling, level);
    const uint64_t inner = elements_of(filling, level + 1);
    uint64_t used = 0;
    expect_sign(p, '{', "before the values of an array");
    while (!token_is_sign(&p->token, '}')) {
        if (room > 0 && used >= room) {
            fail_at(p, &p->token, "expected at most %llu values", (unsigned long long)room);
        }
        if (!token_is_sign(&p->token, '{')) {
            parse_value(p, filling, first + used++);
        } else if (level + 1 < filling->dimension_count && inner > 0 && used % inner == 0) {
            parse_values(p, filling, level + 1, first + used);
            used += inner;
        } else {
            fail_expected(p, "a number");
        }
        if (!take_sign(p, ',')) {
            break;
        }
    }
    expect_sign(p, '}', "or ',' after a value");
    if (room == 0) {
        reach(p, &p->token, (first + used) * ptx_type_size(filling->type));
    }
}

void parse_initialiser(struct parser *p, struct ptx_variable *variable, const uint64_t *dimensions,
                       uint32_t dimension_count) {
    const struct filling filling = {variable->type, dimensions, dimension_count};
    const struct token at = p->token;
    p->bytes.count = 0;
    p->addresses.count = 0;
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
        fail_at(p, &at, "expected at most %d bytes of variables with values", PTX_MAX_INITIALISED);
    }
    if (p->bytes.count > variable->size) { /* x[2][0] = {1} */
        fail_at(p, &at, "expected no values of an array without elements");
    }
    unsigned char *init = parser_alloc(p, p->arena, (size_t)variable->size);
    if (p->bytes.count > 0) {
        memcpy(init, p->bytes.items, p->bytes.count);
    }
    variable->init = init;
    variable->references =
        vector_take(p, &p->addresses, 0, sizeof(struct ptx_reference), &variable->reference_count);
}
