/* SPDX-License-Identifier: Apache-2.0
 *
 * declarations.c - variables, registers, heads of functions and aliases.
 *
 * Invariant: a parameter's address is its offset by the alignments that the PTX gives; nothing is
 * derived from how a C compiler would lay out a struct.
 */
#include "ptx/parser.h"

#include <string.h>

enum { PARAM_BYTES_MAX = 1 << 30, LAUNCH_MAX = 0x7FFFFFFF };

static const uint64_t VARIABLE_BYTES_MAX = UINT64_C(1) << 40;

/* ---- registers ------------------------------------------------------------------------------- */

/* ".f32" -> PTX_F32. */
static enum ptx_type type_of(const struct token *token) {
    char name[8];
    if (token->kind != TOKEN_DIRECTIVE || token->length > sizeof name) {
        return PTX_NONE;
    }
    memcpy(name, token->start + 1, token->length - 1);
    name[token->length - 1] = '\0';
    return ptx_type_named(name);
}

static void declare_register(struct parser *p, enum ptx_type type) {
    const struct token name = expect_kind(p, TOKEN_NAME, "the name of a register");
    struct symbol *symbol = symbol_of(p, &name);
    if (take_sign(p, '<')) {
        const uint32_t limit =
            expect_number(p, UINT32_MAX, "a number of registers, less than 2^32");
        expect_sign(p, '>', "after the number of registers");
        struct binding *range = scope_bind(p, &name, symbol, p->depth, BOUND_RANGE);
        range->type = type;
        range->number = limit;
    } else {
        scope_bind(p, &name, symbol, p->depth, BOUND_REGISTER)->number =
            add_register(p, symbol, type);
    }
}

void parse_registers(struct parser *p) {
    const enum ptx_type type = type_of(&p->token);
    if (token_is(&p->token, ".v2") || token_is(&p->token, ".v4")) {
        fail_expected(p, "a register of one value (vectors are written {%a, %b})");
    }
    if (type == PTX_NONE) {
        fail_expected(p, "the type of a register");
    }
    next_token(p);
    do {
        declare_register(p, type);
    } while (take_sign(p, ','));
    expect_sign(p, ';', "after the registers");
}

/* ---- variables ------------------------------------------------------------------------------- */

bool take_space(struct parser *p, enum ptx_space *space) {
    static const char *const SPACES[] = {
        [PTX_GLOBAL] = ".global", [PTX_SHARED] = ".shared", [PTX_LOCAL] = ".local",
        [PTX_CONST] = ".const",   [PTX_PARAM] = ".param",
    };
    for (*space = PTX_GLOBAL; *space <= PTX_PARAM; (*space)++) {
        if (take_word(p, SPACES[*space])) {
            return true;
        }
    }
    return false;
}

/* What stands before the names of variables. */
struct attributes {
    enum ptx_space space;
    enum ptx_type type;
    uint32_t vector; /* 1, 2 or 4 */
    uint32_t align;
    bool external;
};

static uint32_t expect_align(struct parser *p) {
    const struct token at = p->token;
    const uint64_t align = expect_integer(p, PTX_MAX_ALIGN, "an alignment");
    if (align == 0 || (align & (align - 1)) != 0) {
        fail_at(p, &at, "expected a power of two as alignment, found %llu",
                (unsigned long long)align);
    }
    return (uint32_t)align;
}

/* .attribute(.managed), .attribute(.unified(1, 2)): where memory is, which makes no difference. */
static void skip_attribute(struct parser *p) {
    expect_sign(p, '(', "after .attribute");
    for (uint32_t open = 1; open > 0; next_token(p)) {
        if (p->token.kind == TOKEN_END) {
            fail_expected(p, "')' at the end of .attribute");
        }
        open += token_is_sign(&p->token, '(');
        open -= token_is_sign(&p->token, ')');
    }
}

static struct attributes parse_attributes(struct parser *p, enum ptx_space space, bool external) {
    struct attributes a = {.space = space, .vector = 1, .external = external};
    while (p->token.kind == TOKEN_DIRECTIVE) {
        const enum ptx_type type = type_of(&p->token);
        if (type != PTX_NONE && type != PTX_PRED && a.type == PTX_NONE) {
            a.type = type;
            next_token(p);
        } else if (take_word(p, ".align")) {
            a.align = expect_align(p);
        } else if (take_word(p, ".v2")) {
            a.vector = 2;
        } else if (take_word(p, ".v4")) {
            a.vector = 4;
        } else if (take_word(p, ".attribute")) {
            skip_attribute(p);
        } else if (take_word(p, ".ptr")) { /* what it points to: .ptr .global .align 16 */
            enum ptx_space pointee;
            take_space(p, &pointee);
            if (take_word(p, ".align")) {
                expect_align(p);
            }
        } else {
            fail_expected(p, "a type of a variable");
        }
    }
    if (a.type == PTX_NONE) {
        fail_expected(p, "the type of the variable");
    }
    if (a.align == 0) {
        a.align = ptx_type_size(a.type) * a.vector;
    }
    return a;
}

/* A variable as it is written, without a value. */
struct declarator {
    struct token name;
    struct symbol *symbol;
    struct ptx_variable *variable;
    uint64_t dimensions[PTX_MAX_DIMENSIONS + 1]; /* [0] is 0: open; the last may be a vector's */
    uint32_t dimension_count;
};

/* x[2][3], x[]: the number of elements; 0: the first dimension is open. */
static uint64_t parse_dimensions(struct parser *p, struct declarator *d) {
    uint64_t product = 1;
    while (token_is_sign(&p->token, '[')) {
        const struct token at = p->token;
        next_token(p);
        if (d->dimension_count == PTX_MAX_DIMENSIONS) {
            fail_at(p, &at, "expected at most %d dimensions", PTX_MAX_DIMENSIONS);
        }
        const bool open = d->dimension_count == 0 && token_is_sign(&p->token, ']');
        const uint64_t size =
            open ? 0 : expect_integer(p, VARIABLE_BYTES_MAX, "a number of elements");
        expect_sign(p, ']', "after the number of elements");
        d->dimensions[d->dimension_count++] = size;
        if (size > 0 && product > VARIABLE_BYTES_MAX / size) {
            fail_at(p, &at, "expected an array of at most 2^40 elements");
        }
        product *= size;
    }
    return product;
}

static struct declarator parse_declarator(struct parser *p, const struct attributes *a) {
    struct declarator d = {.name = expect_kind(p, TOKEN_NAME, "the name of a variable")};
    d.symbol = symbol_of(p, &d.name);
    d.variable = parser_alloc(p, p->arena, sizeof *d.variable);
    *d.variable = (struct ptx_variable){
        .name = d.symbol->name,
        .space = a->space,
        .type = a->type,
        .align = a->align,
        .size = parse_dimensions(p, &d) * a->vector * ptx_type_size(a->type),
        .external = a->external,
        .line = d.name.line,
    };
    return d;
}

/* Binds the variable where it stands. */
static void add_variable(struct parser *p, const struct declarator *d, struct vector *list) {
    scope_bind(p, &d->name, d->symbol, p->depth, BOUND_VARIABLE)->variable = d->variable;
    *(struct ptx_variable **)vector_push(p, list, sizeof(struct ptx_variable *)) = d->variable;
}

/* An extern declaration and a definition are one variable: whether there is the other one. */
static bool merge_variable(struct parser *p, const struct declarator *d) {
    const struct binding *known = p->depth == 0 ? scope_find(p, d->symbol) : NULL;
    if (!known || known->kind != BOUND_VARIABLE || known->variable->space != d->variable->space ||
        !(known->variable->external || d->variable->external)) {
        return false;
    }
    if (known->variable->external) {
        *known->variable = *d->variable;
    }
    return true;
}

static void parse_variable(struct parser *p, const struct attributes *a) {
    struct declarator d = parse_declarator(p, a);
    if (take_sign(p, '=')) {
        if ((a->space != PTX_GLOBAL && a->space != PTX_CONST) || a->external) {
            fail_at(p, &d.name, "'%.80s' has a value, expected that of .global and .const alone",
                    d.variable->name);
        }
        if (a->vector > 1) {
            d.dimensions[d.dimension_count++] = a->vector;
        }
        parse_initialiser(p, d.variable, d.dimensions, d.dimension_count);
    } else if (d.dimension_count > 0 && d.dimensions[0] == 0 && !a->external &&
               a->space != PTX_PARAM) {
        fail_at(p, &d.name,
                "expected the size of '%.80s', which is neither .extern nor has a value",
                d.variable->name);
    }
    if (!merge_variable(p, &d)) {
        add_variable(p, &d, p->depth == 0 ? &p->variables : &p->locals);
    }
}

void parse_variables(struct parser *p, enum ptx_space space, bool external) {
    const struct attributes attributes = parse_attributes(p, space, external);
    do {
        parse_variable(p, &attributes);
    } while (take_sign(p, ','));
    expect_sign(p, ';', "after the variable");
}

/* ---- heads of functions ---------------------------------------------------------------------- */

/* (.param .u64 a, .param .align 8 .b8 b[24]): bound in the function's scope. */
static struct ptx_variable **parse_params(struct parser *p, uint32_t *count, uint32_t *bytes) {
    uint64_t offset = 0;
    while (!token_is_sign(&p->token, ')')) {
        if (p->locals.count > 0) {
            expect_sign(p, ',', "or ')' after a parameter");
        }
        if (!take_word(p, ".param")) {
            fail_expected(p, ".param");
        }
        const struct attributes attributes = parse_attributes(p, PTX_PARAM, false);
        const struct declarator d = parse_declarator(p, &attributes);
        struct ptx_variable *param = d.variable;
        offset = (offset + param->align - 1) & ~(uint64_t)(param->align - 1);
        param->address = offset;
        offset += param->size;
        if (offset > PARAM_BYTES_MAX) {
            fail_at(p, &d.name, "expected parameters of at most 2^30 bytes");
        }
        add_variable(p, &d, &p->locals);
    }
    next_token(p);
    *bytes = (uint32_t)offset;
    return vector_take(p, &p->locals, 0, sizeof(struct ptx_variable *), count);
}

void parse_pragma(struct parser *p) {
    do {
        expect_kind(p, TOKEN_STRING, "a pragma in quotes");
    } while (take_sign(p, ','));
    expect_sign(p, ';', "after a pragma");
}

/* .maxntid 128, 1, 1 and the like: false, another directive stands here. */
static bool parse_numbers(struct parser *p, struct ptx_function *function) {
    const struct {
        const char *name;
        uint32_t *to; /* NULL: it makes no difference */
        uint32_t count;
        const char *what;
    } numbers[] = {
        {".maxntid", function->maxntid, 3, "a number of threads"},
        {".reqntid", function->reqntid, 3, "a number of threads"},
        {".reqnctapercluster", function->reqnctapercluster, 3, "a number of blocks"},
        {".minnctapersm", &function->minnctapersm, 1, "a number of blocks"},
        {".maxclusterrank", &function->maxclusterrank, 1, "a number of blocks"},
        {".maxnreg", &function->maxnreg, 1, "a number of registers"},
        {".maxnctapersm", NULL, 1, "a number"},
        {".abi_preserve", NULL, 1, "a number"},
        {".abi_preserve_control", NULL, 1, "a number"},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (!take_word(p, numbers[i].name)) {
            continue;
        }
        uint32_t values[3] = {1, 1, 1}, count = 0;
        do {
            if (count == 3) {
                fail_expected(p, "at most three numbers");
            }
            values[count++] = (uint32_t)expect_integer(p, LAUNCH_MAX, numbers[i].what);
        } while (numbers[i].count > 1 && take_sign(p, ','));
        if (numbers[i].to) {
            memcpy(numbers[i].to, values, numbers[i].count * sizeof *values);
        }
        return true;
    }
    return false;
}

/* What stands between the parameters and the body. */
static void parse_performance(struct parser *p, struct ptx_function *function) {
    while (p->token.kind == TOKEN_DIRECTIVE) {
        if (take_word(p, ".explicitcluster")) {
            function->explicitcluster = true;
        } else if (take_word(p, ".blocksareclusters")) {
            function->blocksareclusters = true;
        } else if (take_word(p, ".pragma")) {
            parse_pragma(p);
        } else if (!take_word(p, ".noreturn") && !take_word(p, ".unique") &&
                   !parse_numbers(p, function)) {
            fail_expected(p, "a directive of a function, its body or ';'");
        }
    }
}

/* The function of that name: a declared one, or a new one. */
static struct ptx_function *find_function(struct parser *p, const struct token *name, bool entry) {
    struct symbol *symbol = symbol_of(p, name);
    const struct binding *known = scope_find(p, symbol);
    if (known && known->kind == BOUND_FUNCTION && known->function->external &&
        known->function->entry == entry) {
        return known->function;
    }
    struct ptx_function *function = parser_alloc(p, p->arena, sizeof *function);
    scope_bind(p, name, symbol, 0, BOUND_FUNCTION)->function = function;
    *(struct ptx_function **)vector_push(p, &p->functions, sizeof(struct ptx_function *)) =
        function;
    function->name = symbol->name;
    function->external = true; /* until its head has been read */
    return function;
}

struct ptx_function *parse_function_head(struct parser *p, bool entry) {
    struct ptx_function head = {.entry = entry, .external = true};
    uint32_t result_bytes;
    scope_open(p);
    if (!entry && take_sign(p, '(')) {
        head.results = parse_params(p, &head.result_count, &result_bytes);
    }
    const struct token name = p->token;
    if (name.kind != TOKEN_NAME) {
        fail_expected(p, "the name of a function");
    }
    struct ptx_function *function = find_function(p, &name, entry);
    head.name = function->name;
    head.line = name.line;
    next_token(p);
    if (take_sign(p, '(')) {
        head.params = parse_params(p, &head.param_count, &head.param_bytes);
    }
    parse_performance(p, &head);
    *function = head;
    return function;
}

/* ---- aliases --------------------------------------------------------------------------------- */

struct alias {
    struct ptx_function *function;
    struct token target;
};

static struct ptx_function *function_of(struct parser *p, const struct token *token) {
    const struct binding *binding =
        token->kind == TOKEN_NAME ? scope_find(p, symbol_of(p, token)) : NULL;
    return binding && binding->kind == BOUND_FUNCTION ? binding->function : NULL;
}

/* .alias NAME, TARGET; */
void parse_alias(struct parser *p) {
    struct ptx_function *function = function_of(p, &p->token);
    if (!function || !function->external) {
        fail_expected(p, "a function that is declared without a body");
    }
    next_token(p);
    expect_sign(p, ',', "after the name of an alias");
    struct alias *alias = vector_push(p, &p->aliases, sizeof *alias);
    alias->function = function;
    alias->target = expect_kind(p, TOKEN_NAME, "the name of a function");
    expect_sign(p, ';', "after an alias");
}

void resolve_aliases(struct parser *p) {
    const struct alias *aliases = p->aliases.items;
    for (size_t i = 0; i < p->aliases.count; i++) {
        const struct token *at = &aliases[i].target;
        const struct ptx_function *target = function_of(p, at);
        if (!target || target->external) {
            fail_at(p, at, "expected a function with a body as target of an alias, found '%.*s'",
                    (int)(at->length < 80 ? at->length : 80), at->start);
        }
        const char *name = aliases[i].function->name;
        *aliases[i].function = *target;
        aliases[i].function->name = name;
    }
}
