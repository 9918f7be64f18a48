/* SPDX-License-Identifier: Apache-2.0
 *
 * scope.c - names and their scopes. Registers, labels and variables belong to the braces they are
 * in. A register of a range (%r<9>) is created when it is first named, so that memory grows with
 * the text and not with the numbers in it.
 *
 * Invariant: the bindings of a symbol are ordered from the innermost scope outwards; a closed scope
 * has none.
 */
#include "ptx/parser.h"

#include <stdlib.h>
#include <string.h>

/* ---- memory ---------------------------------------------------------------------------------- */

static void *checked(struct parser *p, void *memory) {
    if (!memory) {
        fail_at(p, &p->token, "out of memory");
    }
    return memory;
}

void *parser_alloc(struct parser *p, struct arena *arena, size_t size) {
    return checked(p, arena_alloc(arena, size));
}

const char *parser_intern(struct parser *p, const char *text, size_t length) {
    return checked(p, (void *)arena_intern(p->arena, text, length));
}

void *vector_push(struct parser *p, struct vector *vector, size_t element) {
    enum { VECTOR_FIRST = 64 };
    if (vector->count == vector->capacity) {
        const size_t wider = vector->capacity ? vector->capacity * 2 : VECTOR_FIRST;
        vector->items = checked(p, realloc(vector->items, wider * element));
        vector->capacity = wider;
    }
    void *added = (char *)vector->items + vector->count++ * element;
    memset(added, 0, element);
    return added;
}

void *vector_take(struct parser *p, struct vector *vector, size_t first, size_t element,
                  uint32_t *count) {
    *count = (uint32_t)(vector->count - first);
    void *copy = parser_alloc(p, p->arena, *count * element);
    if (*count > 0) {
        memcpy(copy, (char *)vector->items + first * element, *count * element);
    }
    vector->count = first;
    return copy;
}

struct symbol *symbol_of(struct parser *p, const struct token *token) {
    struct symbol *symbol =
        checked(p, arena_entry(p->scratch, token->start, token->length, sizeof *symbol));
    if (!symbol->name) {
        symbol->name = parser_intern(p, token->start, token->length);
        symbol->length = token->length;
    }
    return symbol;
}

/* ---- bindings -------------------------------------------------------------------------------- */

static struct binding *push_binding(struct parser *p, struct symbol *symbol, uint32_t depth,
                                    enum binding_kind kind) {
    struct binding *binding = parser_alloc(p, p->scratch, sizeof *binding);
    binding->kind = kind;
    binding->depth = depth;
    binding->symbol = symbol;
    /* A register of an outer range may be named first inside an inner scope. */
    struct binding **place = &symbol->binding;
    while (*place && (*place)->depth > depth) {
        place = &(*place)->shadowed;
    }
    binding->shadowed = *place;
    *place = binding;
    binding->next = p->scopes[depth].bindings;
    p->scopes[depth].bindings = binding;
    return binding;
}

/* The innermost binding that is a range, or that is none: a stem alone is no register. */
static struct binding *innermost(const struct symbol *symbol, bool range) {
    struct binding *binding = symbol->binding;
    while (binding && (binding->kind == BOUND_RANGE) != range) {
        binding = binding->shadowed;
    }
    return binding;
}

/* The innermost range that has the symbol as a member. %r12 is one of %r<20> and of %r1<3>; %r01
 * is none of either. */
static struct binding *range_of(const struct parser *p, const struct symbol *symbol) {
    enum { UNIT_MAX = 100000000 };
    struct binding *found = NULL;
    uint32_t number = 0;
    size_t at = symbol->length - 1;
    for (uint32_t unit = 1; at > 0 && unit <= UNIT_MAX; unit *= 10, at--) {
        const char digit = symbol->name[at];
        if (digit < '0' || digit > '9') {
            break;
        }
        number += unit * (uint32_t)(digit - '0');
        const struct symbol *stem =
            digit == '0' && unit > 1 ? NULL : arena_find(p->scratch, symbol->name, at);
        struct binding *range = stem ? stem->binding : NULL;
        while (range && (range->kind != BOUND_RANGE || number >= range->number)) {
            range = range->shadowed;
        }
        if (range && (!found || range->depth >= found->depth)) {
            found = range;
        }
    }
    return found;
}

static bool is_bound(const struct parser *p, const struct symbol *symbol, uint32_t depth,
                     enum binding_kind kind) {
    const struct binding *same = innermost(symbol, kind == BOUND_RANGE);
    const struct binding *range = kind == BOUND_RANGE ? NULL : range_of(p, symbol);
    return (same && same->depth == depth) || (range && range->depth == depth);
}

struct binding *scope_bind(struct parser *p, const struct token *at, struct symbol *symbol,
                           uint32_t depth, enum binding_kind kind) {
    if (is_bound(p, symbol, depth, kind)) {
        fail_at(p, at, "'%.80s' is declared already, expected a new name", symbol->name);
    }
    return push_binding(p, symbol, depth, kind);
}

uint32_t add_register(struct parser *p, const struct symbol *symbol, enum ptx_type type) {
    struct ptx_register *added = vector_push(p, &p->registers, sizeof *added);
    *added = (struct ptx_register){.name = symbol->name, .type = type};
    return (uint32_t)p->registers.count - 1;
}

struct binding *scope_find(struct parser *p, struct symbol *symbol) {
    struct binding *plain = innermost(symbol, false);
    if (plain && plain->depth == p->depth) {
        return plain;
    }
    const struct binding *range = range_of(p, symbol);
    if (range && (!plain || plain->depth < range->depth)) {
        plain = push_binding(p, symbol, range->depth, BOUND_REGISTER);
        plain->number = add_register(p, symbol, range->type);
    }
    return plain;
}

/* ---- scopes ---------------------------------------------------------------------------------- */

void scope_open(struct parser *p) {
    if (p->depth + 1 >= PTX_MAX_SCOPES) {
        fail_at(p, &p->token, "expected at most %d braces inside each other", PTX_MAX_SCOPES - 2);
    }
    p->depth++;
    p->scopes[p->depth] = (struct scope){.first_reference = p->references.count};
}

/* Whether the name is bound in the scope that ends: then the operand is filled in. */
static bool resolve(struct parser *p, const struct reference *reference) {
    const struct binding *binding = innermost(reference->symbol, false);
    if (!binding || binding->depth != p->depth) {
        return false;
    }
    if (binding->kind == BOUND_LABEL) {
        reference->operand->value = binding->number;
        if (binding->number > p->last_label) {
            p->last_label = binding->number;
        }
        return true;
    }
    if (binding->kind == BOUND_TARGETS && reference->may_be_list) {
        *reference->operand = *binding->targets;
        return true;
    }
    return false;
}

void scope_drop(struct parser *p) {
    const struct scope *scope = &p->scopes[p->depth];
    for (const struct binding *binding = scope->bindings; binding; binding = binding->next) {
        binding->symbol->binding = binding->shadowed;
    }
    p->references.count = scope->first_reference;
    p->depth--;
}

void scope_close(struct parser *p) {
    struct reference *references = p->references.items;
    size_t kept = p->scopes[p->depth].first_reference;
    for (size_t i = kept; i < p->references.count; i++) {
        if (!resolve(p, &references[i])) {
            references[kept++] = references[i];
        }
    }
    scope_drop(p);
    p->references.count = kept;
    for (size_t i = 0; p->skips && p->depth == 0 && i < kept; i++) {
        references[i].operand->kind = PTX_OPERAND_FUNCTION; /* no instruction takes it */
    }
    if (p->skips && p->depth == 0) {
        p->references.count = 0;
    } else if (p->depth == 0 && kept > 0) {
        fail_at(p, &references[0].at,
                "'%.80s' is not declared, expected a register, variable, function or label",
                references[0].symbol->name);
    }
}
