/* SPDX-License-Identifier: Apache-2.0
 *
 * ptx_declarations.c - variables, registers, heads of functions and aliases.
 *
 * Invariant: a parameter's address is its offset by the alignments that the PTX gives; nothing is
 * derived from how a C compiler would lay out a struct.
 */
#include "ptx_parser.h"

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

static enum ptx_type expect_type(struct parser *p, const char *what) {
    const enum ptx_type type = type_of(&p->lexer.token);
    if (type == PTX_NONE) {
        lexer_expected(&p->lexer, what);
        return PTX_NONE;
    }
    lexer_next(&p->lexer);
    return type;
}

static void declare_register(struct parser *p, enum ptx_type type) {
    const struct token name = p->lexer.token;
    if (name.kind != TOKEN_NAME) {
        lexer_expected(&p->lexer, "the name of a register");
        return;
    }
    struct symbol *symbol = symbol_of(p, &name);
    lexer_next(&p->lexer);
    if (!symbol) {
        return;
    }
    if (take_sign(p, '<')) {
        /* A number alone: > is no operator here. */
        const struct token limit = p->lexer.token;
        if (limit.kind != TOKEN_INTEGER || limit.value > UINT32_MAX) {
            lexer_expected(&p->lexer, "a number of registers, less than 2^32");
            return;
        }
        lexer_next(&p->lexer);
        expect_sign(p, '>', "behind the number of registers");
        struct binding *range = scope_bind(p, &name, symbol, p->depth, BOUND_RANGE);
        if (range) {
            range->type = type;
            range->limit = (uint32_t)limit.value;
        }
        return;
    }
    struct binding *binding = scope_bind(p, &name, symbol, p->depth, BOUND_REGISTER);
    struct ptx_register *added = vector_push(p, &p->registers, sizeof *added);
    if (binding && added) {
        *added = (struct ptx_register){.name = symbol->name, .type = type};
        binding->reg = (uint32_t)p->registers.count - 1;
    }
}

void parse_registers(struct parser *p) {
    if (token_is(&p->lexer.token, ".v2") || token_is(&p->lexer.token, ".v4")) {
        lexer_expected(&p->lexer, "a register of one value (vectors are written {%a, %b})");
        return;
    }
    const enum ptx_type type = expect_type(p, "the type of a register");
    do {
        declare_register(p, type);
    } while (take_sign(p, ','));
    expect_sign(p, ';', "behind the registers");
}

/* ---- variables ------------------------------------------------------------------------------- */

bool space_of(const struct token *token, enum ptx_space *space) {
    static const struct {
        const char *name;
        enum ptx_space space;
    } SPACES[] = {{".global", PTX_GLOBAL},
                  {".shared", PTX_SHARED},
                  {".local", PTX_LOCAL},
                  {".const", PTX_CONST},
                  {".param", PTX_PARAM}};
    for (size_t i = 0; i < sizeof SPACES / sizeof SPACES[0]; i++) {
        if (token_is(token, SPACES[i].name)) {
            *space = SPACES[i].space;
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
    const struct token at = p->lexer.token;
    const uint64_t align = expect_integer(p, PTX_MAX_ALIGN, "an alignment");
    if (align == 0 || (align & (align - 1)) != 0) {
        lexer_fail_at(&p->lexer, at.line, at.column,
                      "expected a power of two as alignment, found %llu",
                      (unsigned long long)align);
        return 1;
    }
    return (uint32_t)align;
}

/* .attribute(.managed), .attribute(.unified(1, 2)): where memory is, which makes no difference. */
static void skip_attribute(struct parser *p) {
    uint32_t open = 0;
    expect_sign(p, '(', "behind .attribute");
    for (open = 1; open > 0 && p->lexer.token.kind != TOKEN_END;) {
        open += token_is_sign(&p->lexer.token, '(');
        open -= token_is_sign(&p->lexer.token, ')');
        lexer_next(&p->lexer);
    }
    if (open > 0) {
        lexer_expected(&p->lexer, "')' at the end of .attribute");
    }
}

/* `.ptr .global .align 16` describes what a parameter points to. */
static void skip_pointee(struct parser *p) {
    enum ptx_space space;
    if (space_of(&p->lexer.token, &space)) {
        lexer_next(&p->lexer);
    }
    if (take_word(p, ".align")) {
        expect_align(p);
    }
}

static struct attributes parse_attributes(struct parser *p, enum ptx_space space, bool external) {
    struct attributes a = {.space = space, .vector = 1, .external = external};
    while (p->lexer.token.kind == TOKEN_DIRECTIVE) {
        const enum ptx_type type = type_of(&p->lexer.token);
        if (type != PTX_NONE && type != PTX_PRED && a.type == PTX_NONE) {
            a.type = type;
            lexer_next(&p->lexer);
        } else if (take_word(p, ".align")) {
            a.align = expect_align(p);
        } else if (take_word(p, ".v2")) {
            a.vector = 2;
        } else if (take_word(p, ".v4")) {
            a.vector = 4;
        } else if (take_word(p, ".attribute")) {
            skip_attribute(p);
        } else if (take_word(p, ".ptr")) {
            skip_pointee(p);
        } else {
            lexer_expected(&p->lexer, "a type of a variable");
        }
    }
    if (a.type == PTX_NONE) {
        lexer_expected(&p->lexer, "the type of the variable");
    }
    if (a.align == 0) {
        a.align = ptx_type_size(a.type) * a.vector;
    }
    return a;
}

/* x[2][3], x[]: the number of elements; 0: the first dimension is open. */
static uint64_t parse_dimensions(struct parser *p, uint64_t *dimensions, uint32_t *count) {
    uint64_t product = 1;
    while (token_is_sign(&p->lexer.token, '[')) {
        const struct token at = p->lexer.token;
        lexer_next(&p->lexer);
        if (*count == PTX_MAX_DIMENSIONS) {
            lexer_fail_at(&p->lexer, at.line, at.column, "expected at most %d dimensions",
                          PTX_MAX_DIMENSIONS);
            return 0;
        }
        uint64_t size = 0;
        if (!(*count == 0 && token_is_sign(&p->lexer.token, ']'))) {
            size = expect_integer(p, VARIABLE_BYTES_MAX, "a number of elements");
        }
        expect_sign(p, ']', "behind the number of elements");
        dimensions[(*count)++] = size;
        if (size > 0 && product > VARIABLE_BYTES_MAX / size) {
            lexer_fail_at(&p->lexer, at.line, at.column,
                          "expected an array of at most 2^40 elements");
            return 0;
        }
        product *= size;
    }
    return product;
}

/* One variable behind its attributes, without a value; dimensions are as written. */
static struct ptx_variable *parse_declarator(struct parser *p, const struct attributes *a,
                                             struct token *name, uint64_t *dimensions,
                                             uint32_t *dimension_count) {
    *name = p->lexer.token;
    if (name->kind != TOKEN_NAME) {
        lexer_expected(&p->lexer, "the name of a variable");
        return NULL;
    }
    const struct symbol *symbol = symbol_of(p, name);
    struct ptx_variable *variable = parser_alloc(p, p->arena, sizeof *variable);
    lexer_next(&p->lexer);
    *dimension_count = 0;
    const uint64_t elements = parse_dimensions(p, dimensions, dimension_count);
    if (!symbol || !variable) {
        return NULL;
    }
    variable->name = symbol->name;
    variable->space = a->space;
    variable->type = a->type;
    variable->align = a->align;
    variable->size = elements * a->vector * ptx_type_size(a->type);
    variable->external = a->external;
    variable->line = name->line;
    return variable;
}

/* Binds the variable where it stands. An extern declaration and a definition are one variable. */
static void add_variable(struct parser *p, const struct token *name,
                         struct ptx_variable *variable) {
    struct symbol *symbol = symbol_of(p, name);
    if (!symbol || p->lexer.failed) {
        return;
    }
    const struct binding *known = scope_find(p, symbol);
    if (p->depth == 0 && known && known->kind == BOUND_VARIABLE &&
        known->variable->space == variable->space &&
        (known->variable->external || variable->external)) {
        if (known->variable->external) {
            *known->variable = *variable;
        }
        return;
    }
    struct binding *binding = scope_bind(p, name, symbol, p->depth, BOUND_VARIABLE);
    struct vector *list = p->depth == 0 ? &p->variables : &p->locals;
    struct ptx_variable **added = vector_push(p, list, sizeof(struct ptx_variable *));
    if (binding && added) {
        binding->variable = variable;
        *added = variable;
    }
}

static void parse_variable(struct parser *p, const struct attributes *a) {
    struct token name;
    uint64_t dimensions[PTX_MAX_DIMENSIONS + 1]; /* the last may be a vector's */
    uint32_t count;
    struct ptx_variable *variable = parse_declarator(p, a, &name, dimensions, &count);
    if (!variable) {
        return;
    }
    if (take_sign(p, '=')) {
        if ((a->space != PTX_GLOBAL && a->space != PTX_CONST) || a->external) {
            lexer_fail_at(&p->lexer, name.line, name.column,
                          "'%.80s' has a value, expected that of .global and .const alone",
                          variable->name);
            return;
        }
        if (a->vector > 1) {
            dimensions[count++] = a->vector;
        }
        parse_initialiser(p, variable, dimensions, count);
    } else if (count > 0 && dimensions[0] == 0 && !a->external && a->space != PTX_PARAM) {
        lexer_fail_at(&p->lexer, name.line, name.column,
                      "expected the size of '%.80s', which is neither .extern nor has a value",
                      variable->name);
    }
    add_variable(p, &name, variable);
}

void parse_variables(struct parser *p, enum ptx_space space, bool external) {
    const struct attributes attributes = parse_attributes(p, space, external);
    do {
        parse_variable(p, &attributes);
    } while (take_sign(p, ','));
    expect_sign(p, ';', "behind the variable");
}

/* ---- heads of functions ---------------------------------------------------------------------- */

/* (.param .u64 a, .param .align 8 .b8 b[24]): bound in the function's scope. */
static struct ptx_variable **parse_params(struct parser *p, uint32_t *count, uint32_t *bytes) {
    struct vector params = {0};
    uint64_t offset = 0;
    while (!token_is_sign(&p->lexer.token, ')') && p->lexer.token.kind != TOKEN_END) {
        if (params.count > 0 && !expect_sign(p, ',', "or ')' behind a parameter")) {
            break;
        }
        if (!take_word(p, ".param")) {
            lexer_expected(&p->lexer, ".param");
            break;
        }
        const struct attributes attributes = parse_attributes(p, PTX_PARAM, false);
        struct token name;
        uint64_t dimensions[PTX_MAX_DIMENSIONS];
        uint32_t dimension_count;
        struct ptx_variable *param =
            parse_declarator(p, &attributes, &name, dimensions, &dimension_count);
        struct symbol *symbol = param ? symbol_of(p, &name) : NULL;
        struct ptx_variable **added = vector_push(p, &params, sizeof(struct ptx_variable *));
        if (!symbol || !added) {
            break;
        }
        *added = param;
        offset = (offset + param->align - 1) & ~(uint64_t)(param->align - 1);
        param->address = offset;
        offset += param->size;
        if (offset > PARAM_BYTES_MAX) {
            lexer_fail_at(&p->lexer, name.line, name.column,
                          "expected parameters of at most 2^30 "
                          "bytes");
            break;
        }
        struct binding *binding = scope_bind(p, &name, symbol, p->depth, BOUND_VARIABLE);
        if (binding) {
            binding->variable = param;
        }
    }
    expect_sign(p, ')', "behind the parameters");
    struct ptx_variable **copy = vector_copy(p, &params, sizeof(struct ptx_variable *));
    *count = (uint32_t)params.count;
    *bytes = (uint32_t)offset;
    vector_free(&params);
    return copy;
}

static void parse_three(struct parser *p, uint32_t *three, const char *what) {
    three[0] = three[1] = three[2] = 1;
    for (int i = 0; i < 3; i++) {
        three[i] = (uint32_t)expect_integer(p, LAUNCH_MAX, what);
        if (!take_sign(p, ',')) {
            return;
        }
    }
    lexer_expected(&p->lexer, "at most three numbers");
}

/* .maxntid 128, 1, 1 and the like, between the parameters and the body. */
static void parse_performance(struct parser *p, struct ptx_function *function) {
    while (p->lexer.token.kind == TOKEN_DIRECTIVE) {
        if (take_word(p, ".maxntid")) {
            parse_three(p, function->maxntid, "a number of threads");
        } else if (take_word(p, ".reqntid")) {
            parse_three(p, function->reqntid, "a number of threads");
        } else if (take_word(p, ".reqnctapercluster")) {
            parse_three(p, function->reqnctapercluster, "a number of blocks");
        } else if (take_word(p, ".minnctapersm")) {
            function->minnctapersm = (uint32_t)expect_integer(p, LAUNCH_MAX, "a number of blocks");
        } else if (take_word(p, ".maxnctapersm") || take_word(p, ".abi_preserve") ||
                   take_word(p, ".abi_preserve_control")) {
            expect_integer(p, LAUNCH_MAX, "a number");
        } else if (take_word(p, ".maxnreg")) {
            function->maxnreg = (uint32_t)expect_integer(p, LAUNCH_MAX, "a number of registers");
        } else if (take_word(p, ".maxclusterrank")) {
            function->maxclusterrank =
                (uint32_t)expect_integer(p, LAUNCH_MAX, "a number of blocks");
        } else if (take_word(p, ".explicitcluster")) {
            function->explicitcluster = true;
        } else if (take_word(p, ".blocksareclusters")) {
            function->blocksareclusters = true;
        } else if (take_word(p, ".pragma")) {
            skip_pragma(p);
        } else if (!take_word(p, ".noreturn") && !take_word(p, ".unique")) {
            lexer_expected(&p->lexer, "a directive of a function, its body or ';'");
        }
    }
}

/* The function of that name: a declared one, or a new one. */
static struct ptx_function *find_function(struct parser *p, const struct token *name, bool entry) {
    struct symbol *symbol = symbol_of(p, name);
    if (!symbol) {
        return NULL;
    }
    const struct binding *known = scope_find(p, symbol);
    if (known && known->kind == BOUND_FUNCTION && known->function->external &&
        known->function->entry == entry) {
        return known->function;
    }
    struct binding *binding = scope_bind(p, name, symbol, 0, BOUND_FUNCTION);
    struct ptx_function *function = parser_alloc(p, p->arena, sizeof *function);
    struct ptx_function **added = vector_push(p, &p->functions, sizeof(struct ptx_function *));
    if (!binding || !function || !added) {
        return NULL;
    }
    binding->function = *added = function;
    function->name = symbol->name;
    function->entry = entry;
    function->external = true;
    return function;
}

struct ptx_function *parse_function_head(struct parser *p, bool entry) {
    struct ptx_function head = {.entry = entry};
    uint32_t result_bytes = 0;
    scope_open(p);
    if (!entry && take_sign(p, '(')) {
        head.results = parse_params(p, &head.result_count, &result_bytes);
    }
    const struct token name = p->lexer.token;
    if (name.kind != TOKEN_NAME) {
        lexer_expected(&p->lexer, "the name of a function");
        return NULL;
    }
    struct ptx_function *function = find_function(p, &name, entry);
    lexer_next(&p->lexer);
    if (take_sign(p, '(')) {
        head.params = parse_params(p, &head.param_count, &head.param_bytes);
    }
    parse_performance(p, &head);
    if (!function) {
        return NULL;
    }
    head.name = function->name;
    head.line = name.line;
    head.external = true;
    *function = head;
    return function;
}

/* ---- aliases --------------------------------------------------------------------------------- */

struct alias {
    struct ptx_function *function;
    struct symbol *target;
    uint32_t line, column;
};

static struct ptx_function *function_of(struct parser *p, struct symbol *symbol) {
    const struct binding *binding = symbol ? scope_find(p, symbol) : NULL;
    return binding && binding->kind == BOUND_FUNCTION ? binding->function : NULL;
}

/* .alias NAME, TARGET; */
void parse_alias(struct parser *p) {
    struct ptx_function *function = NULL;
    if (p->lexer.token.kind == TOKEN_NAME) {
        function = function_of(p, symbol_of(p, &p->lexer.token));
    }
    if (!function || !function->external) {
        lexer_expected(&p->lexer, "a function that is declared without a body");
        return;
    }
    lexer_next(&p->lexer);
    expect_sign(p, ',', "behind the name of an alias");
    const struct token target = p->lexer.token;
    if (target.kind != TOKEN_NAME) {
        lexer_expected(&p->lexer, "the name of a function");
        return;
    }
    struct alias *alias = vector_push(p, &p->aliases, sizeof *alias);
    if (alias) {
        *alias = (struct alias){function, symbol_of(p, &target), target.line, target.column};
    }
    lexer_next(&p->lexer);
    expect_sign(p, ';', "behind an alias");
}

void resolve_aliases(struct parser *p) {
    const struct alias *aliases = p->aliases.items;
    for (size_t i = 0; i < p->aliases.count && !p->lexer.failed; i++) {
        const struct ptx_function *target = function_of(p, aliases[i].target);
        if (!target || target->external) {
            lexer_fail_at(&p->lexer, aliases[i].line, aliases[i].column,
                          "expected a function with a body as target of an alias, found '%.80s'",
                          aliases[i].target ? aliases[i].target->name : "");
            return;
        }
        const char *name = aliases[i].function->name;
        *aliases[i].function = *target;
        aliases[i].function->name = name;
    }
}
