/* SPDX-License-Identifier: Apache-2.0
 *
 * ptx_scope.c - names: what they mean where. Registers, labels and variables belong to the braces
 * they stand in; a register of a range (%r<9>) comes to be when it is first named, so that memory
 * follows the length of the text and not the numbers in it.
 *
 * Invariant: the bindings of a symbol are ordered from the innermost scope outwards, and those of a
 * closed scope are gone.
 */
#include "ptx_parser.h"

#include <stdlib.h>
#include <string.h>

enum { SYMBOLS_FIRST = 1024, VECTOR_FIRST = 64 };

/* ---- memory ---------------------------------------------------------------------------------- */

static void no_memory(struct parser *p) {
    lexer_fail_at(&p->lexer, p->lexer.token.line, p->lexer.token.column, "out of memory");
}

void *parser_alloc(struct parser *p, struct arena *arena, size_t size) {
    void *memory = arena_alloc(arena, size);
    if (!memory) {
        no_memory(p);
    }
    return memory;
}

void *vector_push(struct parser *p, struct vector *vector, size_t element) {
    if (vector->count == vector->capacity) {
        const size_t wider = vector->capacity ? vector->capacity * 2 : VECTOR_FIRST;
        void *items = realloc(vector->items, wider * element);
        if (!items) {
            no_memory(p);
            return NULL;
        }
        vector->items = items;
        vector->capacity = wider;
    }
    void *added = (char *)vector->items + vector->count++ * element;
    memset(added, 0, element);
    return added;
}

void vector_free(struct vector *vector) {
    free(vector->items);
    *vector = (struct vector){0};
}

void *vector_copy(struct parser *p, const struct vector *vector, size_t element) {
    void *copy = parser_alloc(p, p->arena, vector->count * element);
    if (copy && vector->count) {
        memcpy(copy, vector->items, vector->count * element);
    }
    return copy;
}

bool parser_make(struct parser *p, const char *text, size_t size, struct ptx_error *error) {
    memset(p, 0, sizeof *p);
    p->arena = arena_make();
    p->scratch = arena_make();
    p->symbols = calloc(SYMBOLS_FIRST, sizeof(struct symbol *));
    p->symbol_places = SYMBOLS_FIRST;
    if (p->arena && p->scratch && p->symbols) {
        lexer_start(&p->lexer, text, size, error);
        p->module = parser_alloc(p, p->arena, sizeof *p->module);
        if (p->module && lines_make(p)) {
            p->module->arena = p->arena;
            return true;
        }
    }
    *error = (struct ptx_error){.text = "out of memory"};
    parser_drop(p);
    arena_free(p->arena);
    return false;
}

void parser_drop(struct parser *p) {
    const struct vector all[] = {p->functions, p->variables, p->aliases,    p->registers, p->locals,
                                 p->code,      p->operands,  p->references, p->parts,     p->bytes};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        free(all[i].items);
    }
    lines_drop(p);
    free(p->symbols);
    arena_free(p->scratch);
}

/* ---- symbols --------------------------------------------------------------------------------- */

static struct symbol **symbol_place(struct symbol **places, size_t count, uint64_t hash,
                                    const char *text, uint32_t length) {
    for (size_t at = (size_t)(hash ^ hash >> 29) & (count - 1);; at = (at + 1) & (count - 1)) {
        struct symbol *symbol = places[at];
        if (!symbol || (symbol->hash == hash && symbol->length == length &&
                        memcmp(symbol->name, text, length) == 0)) {
            return &places[at];
        }
    }
}

static bool double_symbols(struct parser *p) {
    const size_t wider = p->symbol_places * 2;
    struct symbol **places = calloc(wider, sizeof(struct symbol *));
    if (!places) {
        no_memory(p);
        return false;
    }
    for (size_t i = 0; i < p->symbol_places; i++) {
        const struct symbol *symbol = p->symbols[i];
        if (symbol) {
            *symbol_place(places, wider, symbol->hash, symbol->name, symbol->length) =
                p->symbols[i];
        }
    }
    free(p->symbols);
    p->symbols = places;
    p->symbol_places = wider;
    return true;
}

static uint64_t hash_of(const char *text, uint32_t length) {
    uint64_t hash = LEXER_HASH_SEED;
    for (uint32_t i = 0; i < length; i++) {
        hash = lexer_hash(hash, text[i]);
    }
    return hash;
}

static struct symbol *symbol_named(struct parser *p, const char *text, uint32_t length,
                                   uint64_t hash) {
    struct symbol **place = symbol_place(p->symbols, p->symbol_places, hash, text, length);
    if (*place) {
        return *place;
    }
    if (p->symbol_count * 2 >= p->symbol_places) {
        if (!double_symbols(p)) {
            return NULL;
        }
        place = symbol_place(p->symbols, p->symbol_places, hash, text, length);
    }
    struct symbol *symbol = parser_alloc(p, p->scratch, sizeof *symbol);
    const char *name = arena_intern(p->arena, text, length);
    if (!symbol || !name) {
        no_memory(p);
        return NULL;
    }
    symbol->name = name;
    symbol->hash = hash;
    symbol->length = length;
    *place = symbol;
    p->symbol_count++;
    return symbol;
}

/* How many digits end the name, as far as numbers of registers go. */
static uint32_t digits_of(const struct symbol *symbol) {
    enum { DIGITS_MAX = 9 };
    uint32_t digits = 0;
    while (digits < DIGITS_MAX && digits + 1 < symbol->length &&
           symbol->name[symbol->length - digits - 1] >= '0' &&
           symbol->name[symbol->length - digits - 1] <= '9') {
        digits++;
    }
    return digits;
}

/* The name as a stem and a number of that many digits; false: ranges do not count like that. */
static bool split(const struct symbol *symbol, uint32_t digits, uint32_t *number) {
    const char *first = symbol->name + symbol->length - digits;
    if (digits == 0 || (digits > 1 && *first == '0')) {
        return false;
    }
    *number = 0;
    for (uint32_t i = 0; i < digits; i++) {
        *number = *number * 10 + (uint32_t)(first[i] - '0');
    }
    return true;
}

struct symbol *symbol_of(struct parser *p, const struct token *token) {
    const size_t known = p->symbol_count;
    struct symbol *symbol = symbol_named(p, token->start, token->length, token->hash);
    if (symbol && p->symbol_count > known) {
        const uint32_t digits = digits_of(symbol);
        if (split(symbol, digits, &symbol->number)) {
            const uint32_t stem = symbol->length - digits;
            symbol->stem = symbol_named(p, symbol->name, stem, hash_of(symbol->name, stem));
        }
    }
    return symbol;
}

/* ---- bindings -------------------------------------------------------------------------------- */

static struct binding *push_binding(struct parser *p, struct symbol *symbol, uint32_t depth,
                                    enum binding_kind kind) {
    struct binding *binding = parser_alloc(p, p->scratch, sizeof *binding);
    if (!binding) {
        return NULL;
    }
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

static struct binding *range_with(const struct symbol *stem, uint32_t number) {
    struct binding *range = stem ? stem->binding : NULL;
    while (range && !(range->kind == BOUND_RANGE && number < range->limit)) {
        range = range->shadowed;
    }
    return range;
}

/* The innermost range that has the symbol as a member. %r12 is one of %r<20> and of %r1<3>. */
static struct binding *range_of(const struct parser *p, const struct symbol *symbol) {
    struct binding *innermost = range_with(symbol->stem, symbol->number);
    if (!p->stems_end_with_digits) {
        return innermost;
    }
    for (uint32_t digits = digits_of(symbol); digits > 0; digits--) {
        const uint32_t length = symbol->length - digits;
        const uint64_t hash = hash_of(symbol->name, length);
        const struct symbol *stem =
            *symbol_place(p->symbols, p->symbol_places, hash, symbol->name, length);
        uint32_t number;
        struct binding *range = split(symbol, digits, &number) ? range_with(stem, number) : NULL;
        if (range && (!innermost || range->depth > innermost->depth)) {
            innermost = range;
        }
    }
    return innermost;
}

/* What the symbol means but for ranges: a stem alone is no register. */
static struct binding *plain_binding(const struct symbol *symbol) {
    struct binding *binding = symbol->binding;
    while (binding && binding->kind == BOUND_RANGE) {
        binding = binding->shadowed;
    }
    return binding;
}

static bool is_bound(const struct parser *p, const struct symbol *symbol, uint32_t depth,
                     enum binding_kind kind) {
    if (kind == BOUND_RANGE) {
        const struct binding *binding = symbol->binding;
        while (binding && binding->kind != BOUND_RANGE) {
            binding = binding->shadowed;
        }
        return binding && binding->depth == depth;
    }
    const struct binding *plain = plain_binding(symbol), *range = range_of(p, symbol);
    return (plain && plain->depth == depth) || (range && range->depth == depth);
}

struct binding *scope_bind(struct parser *p, const struct token *at, struct symbol *symbol,
                           uint32_t depth, enum binding_kind kind) {
    if (is_bound(p, symbol, depth, kind)) {
        lexer_fail_at(&p->lexer, at->line, at->column,
                      "'%.80s' is declared already, expected a new name", symbol->name);
        return NULL;
    }
    p->stems_end_with_digits |= kind == BOUND_RANGE && digits_of(symbol) > 0;
    return push_binding(p, symbol, depth, kind);
}

static struct binding *add_register(struct parser *p, struct symbol *symbol,
                                    const struct binding *range) {
    struct ptx_register *added = vector_push(p, &p->registers, sizeof *added);
    struct binding *binding = push_binding(p, symbol, range->depth, BOUND_REGISTER);
    if (!added || !binding) {
        return NULL;
    }
    *added = (struct ptx_register){.name = symbol->name, .type = range->type};
    binding->reg = (uint32_t)p->registers.count - 1;
    return binding;
}

struct binding *scope_find(struct parser *p, struct symbol *symbol) {
    struct binding *plain = plain_binding(symbol);
    const struct binding *range = range_of(p, symbol);
    if (range && (!plain || plain->depth < range->depth)) {
        return add_register(p, symbol, range);
    }
    return plain;
}

/* ---- scopes ---------------------------------------------------------------------------------- */

void scope_open(struct parser *p) {
    if (p->depth + 1 >= PTX_MAX_SCOPES) {
        lexer_fail_at(&p->lexer, p->lexer.token.line, p->lexer.token.column,
                      "expected at most %d braces inside each other", PTX_MAX_SCOPES - 2);
        return;
    }
    p->depth++;
    p->scopes[p->depth] = (struct scope){.first_reference = p->references.count};
}

void scope_refer(struct parser *p, const struct token *at, struct symbol *symbol,
                 struct ptx_operand *part, size_t operand) {
    struct reference *reference = vector_push(p, &p->references, sizeof *reference);
    if (reference) {
        *reference = (struct reference){symbol, part, operand, at->line, at->column};
    }
}

/* Whether the name is bound in the scope that ends: then the operand is filled in. */
static bool resolve(struct parser *p, const struct reference *reference) {
    const struct binding *binding = plain_binding(reference->symbol);
    if (!binding || binding->depth != p->depth) {
        return false;
    }
    struct ptx_operand *operand = reference->part;
    if (!operand) {
        operand = (struct ptx_operand *)p->operands.items + reference->operand;
    }
    if (binding->kind == BOUND_LABEL) {
        operand->kind = PTX_OPERAND_LABEL;
        operand->value = binding->label;
        operand->name = reference->symbol->name;
        if (binding->label > p->last_label) {
            p->last_label = binding->label;
        }
        return true;
    }
    if (binding->kind == BOUND_TARGETS && !reference->part) {
        *operand = *binding->targets;
        return true;
    }
    return false;
}

void scope_close(struct parser *p) {
    struct scope *scope = &p->scopes[p->depth];
    struct reference *references = p->references.items;
    size_t kept = scope->first_reference;
    for (size_t i = kept; i < p->references.count; i++) {
        if (!resolve(p, &references[i])) {
            references[kept++] = references[i];
        }
    }
    p->references.count = kept;
    for (const struct binding *binding = scope->bindings; binding; binding = binding->next) {
        binding->symbol->binding = binding->shadowed;
    }
    p->depth--;
    if (p->depth == 0 && kept > 0) {
        lexer_fail_at(&p->lexer, references[0].line, references[0].column,
                      "'%.80s' is not declared, expected a register, variable, function or label",
                      references[0].symbol->name);
    }
}
