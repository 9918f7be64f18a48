/* SPDX-License-Identifier: Apache-2.0
 *
 * ptx_parse.c - modules and the bodies of functions.
 *
 * Invariant: a module is returned whole or not at all; braces nest in a loop, not by recursion.
 */
#include "ptx_parser.h"

#include <string.h>

enum { VERSION_MAX = 1000, TARGET_MAX = 10000 };

/* ---- bodies of functions --------------------------------------------------------------------- */

static void parse_label(struct parser *p, const struct token *name) {
    const struct token *token = &p->lexer.token;
    if (token_is(token, ".branchtargets") || token_is(token, ".calltargets") ||
        token_is(token, ".callprototype")) {
        parse_targets(p, name);
        return;
    }
    struct symbol *symbol = symbol_of(p, name);
    struct binding *binding = symbol ? scope_bind(p, name, symbol, p->depth, BOUND_LABEL) : NULL;
    if (binding) {
        binding->label = (uint32_t)p->code.count;
    }
}

/* Whether the current name is a label: a colon comes next. */
static bool at_label(const struct parser *p) {
    const char *at = p->lexer.cursor;
    while (*at == ' ' || *at == '\t' || *at == '\r' || *at == '\n') {
        at++;
    }
    return *at == ':';
}

static void parse_guarded(struct parser *p) {
    const bool negated = take_sign(p, '!');
    const uint32_t guard = parse_register(p, "a predicate as guard");
    if (p->lexer.token.kind != TOKEN_NAME) {
        lexer_expected(&p->lexer, "an instruction behind the guard");
        return;
    }
    parse_instruction(p, (int32_t)guard, negated);
}

static void parse_body_directive(struct parser *p) {
    enum ptx_space space;
    if (take_word(p, ".loc")) {
        parse_loc(p);
    } else if (take_word(p, ".reg")) {
        parse_registers(p);
    } else if (space_of(&p->lexer.token, &space)) {
        lexer_next(&p->lexer);
        parse_variables(p, space, false);
    } else if (take_word(p, ".pragma")) {
        skip_pragma(p);
    } else if (take_word(p, ".file")) {
        parse_file(p);
    } else if (take_word(p, ".extern")) {
        if (!space_of(&p->lexer.token, &space)) {
            lexer_expected(&p->lexer, "a state space behind .extern");
            return;
        }
        lexer_next(&p->lexer);
        parse_variables(p, space, true);
    } else {
        lexer_expected(&p->lexer, "a directive of a body");
    }
}

static void parse_statement(struct parser *p) {
    const struct token token = p->lexer.token;
    if (token.kind == TOKEN_NAME) {
        if (!at_label(p)) {
            parse_instruction(p, -1, false);
            return;
        }
        lexer_next(&p->lexer);
        lexer_next(&p->lexer);
        parse_label(p, &token);
    } else if (token.kind == TOKEN_DIRECTIVE) {
        parse_body_directive(p);
    } else if (take_sign(p, '@')) {
        parse_guarded(p);
    } else if (take_sign(p, '{')) {
        scope_open(p);
    } else if (!take_sign(p, ';')) {
        lexer_expected(&p->lexer, "an instruction, a label, a directive or '}'");
    }
}

/* A label at the very end means leaving the function. */
static void end_with_return(struct parser *p, const struct token *at) {
    struct ptx_form *form = parser_alloc(p, p->scratch, sizeof *form);
    struct draft *draft = vector_push(p, &p->code, sizeof *draft);
    if (form && draft) {
        form->opcode = arena_intern(p->arena, "ret", 3);
        *draft = (struct draft){.form = form,
                                .first_operand = p->operands.count,
                                .guard = -1,
                                .line = at->line,
                                .column = at->column,
                                .location = p->location};
        if (!form->opcode) {
            lexer_fail_at(&p->lexer, at->line, at->column, "out of memory");
        }
    }
}

static void fill_instruction(struct ptx_instruction *in, const struct draft *draft,
                             const struct ptx_operand *operands) {
    const struct ptx_form *form = draft->form;
    in->opcode = form->opcode;
    memcpy(in->modifiers, form->modifiers, form->modifier_count * sizeof form->modifiers[0]);
    in->modifier_count = form->modifier_count;
    in->guard = draft->guard;
    in->guard_negated = draft->guard_negated;
    if (draft->operand_count) {
        memcpy(in->operands, operands + draft->first_operand,
               draft->operand_count * sizeof *operands);
    }
    in->operand_count = draft->operand_count;
    in->line = draft->line;
    in->column = draft->column;
    in->location = draft->location;
}

static void finish_function(struct parser *p, struct ptx_function *function) {
    const struct draft *drafts = p->code.items;
    const size_t count = p->code.count;
    struct ptx_instruction *code = parser_alloc(p, p->arena, count * sizeof *code);
    if (!code) {
        return;
    }
    for (size_t i = 0; i < count; i++) {
        fill_instruction(&code[i], &drafts[i], p->operands.items);
    }
    function->external = false;
    function->code = code;
    function->code_count = (uint32_t)count;
    function->registers = vector_copy(p, &p->registers, sizeof(struct ptx_register));
    function->register_count = (uint32_t)p->registers.count;
    function->variables = vector_copy(p, &p->locals, sizeof(struct ptx_variable *));
    function->variable_count = (uint32_t)p->locals.count;
    p->code_count += count;
}

/* Behind the first brace. */
static void parse_body(struct parser *p, struct ptx_function *function) {
    const uint32_t outside = p->depth;
    struct token at;
    for (;;) {
        at = p->lexer.token;
        if (at.kind == TOKEN_END) {
            lexer_expected(&p->lexer, "'}' at the end of a function");
            return;
        }
        if (!token_is_sign(&at, '}')) {
            parse_statement(p);
            continue;
        }
        if (p->depth == outside) {
            break;
        }
        scope_close(p);
        lexer_next(&p->lexer);
    }
    scope_close(p);
    if (!p->lexer.failed && p->last_label > 0 && p->last_label == p->code.count) {
        end_with_return(p, &at);
    }
    lexer_next(&p->lexer);
    if (!p->lexer.failed) {
        finish_function(p, function);
    }
}

static void parse_function(struct parser *p, bool entry) {
    p->registers.count = p->locals.count = p->code.count = 0;
    p->operands.count = p->references.count = p->parts.count = 0;
    p->last_label = 0;
    lines_start_function(p);
    struct ptx_function *function = parse_function_head(p, entry);
    if (!function || p->lexer.failed) {
        return;
    }
    if (take_sign(p, '{')) {
        parse_body(p, function);
    } else {
        expect_sign(p, ';', "or '{' behind the head of a function");
        scope_close(p);
    }
}

/* ---- modules --------------------------------------------------------------------------------- */

/* .version 9.0 */
static void parse_version(struct parser *p) {
    const struct token token = p->lexer.token;
    uint32_t major = 0, minor = 0, i = 0;
    if (token.kind == TOKEN_DECIMAL) {
        for (; i < token.length && token.start[i] != '.' && major < VERSION_MAX; i++) {
            major = major * 10 + (uint32_t)(token.start[i] - '0');
        }
        for (i++; i < token.length && minor < VERSION_MAX; i++) {
            minor = minor * 10 + (uint32_t)(token.start[i] - '0');
        }
    }
    if (major == 0 || major >= VERSION_MAX || minor > 9) {
        lexer_expected(&p->lexer, "a version such as 9.0");
        return;
    }
    p->module->version = major * 10 + minor;
    lexer_next(&p->lexer);
}

/* sm_90a */
static bool read_architecture(struct parser *p, const struct token *token) {
    if (token->length < 4 || memcmp(token->start, "sm_", 3) != 0) {
        return false;
    }
    uint32_t number = 0, i = 3;
    for (; i < token->length && token->start[i] >= '0' && token->start[i] <= '9'; i++) {
        number = number * 10 + (uint32_t)(token->start[i] - '0');
        if (number > TARGET_MAX) {
            return false;
        }
    }
    char suffix = '\0';
    if (i + 1 == token->length && token->start[i] >= 'a' && token->start[i] <= 'z') {
        suffix = token->start[i++];
    }
    p->module->target = number;
    p->module->target_suffix = suffix;
    return i == token->length && number > 0;
}

/* .target sm_90a, debug */
static void parse_target(struct parser *p) {
    if (p->lexer.token.kind != TOKEN_NAME || !read_architecture(p, &p->lexer.token)) {
        lexer_expected(&p->lexer, "an architecture such as sm_80 or sm_90a");
        return;
    }
    lexer_next(&p->lexer);
    while (take_sign(p, ',')) {
        if (!take_word(p, "debug") && !take_word(p, "texmode_unified") &&
            !take_word(p, "texmode_independent")) {
            lexer_expected(&p->lexer, "debug or texmode_unified");
        }
    }
}

static void parse_address_size(struct parser *p) {
    const struct token *token = &p->lexer.token;
    if (token->kind != TOKEN_INTEGER || token->value != 64) {
        lexer_expected(&p->lexer, "an address size of 64");
        return;
    }
    lexer_next(&p->lexer);
}

/* Behind .visible, .weak, .extern and .common. */
static void parse_declaration(struct parser *p, bool external) {
    enum ptx_space space;
    if (take_word(p, ".entry")) {
        parse_function(p, true);
    } else if (take_word(p, ".func")) {
        parse_function(p, false);
    } else if (space_of(&p->lexer.token, &space) && space != PTX_PARAM) {
        lexer_next(&p->lexer);
        parse_variables(p, space, external);
    } else {
        lexer_expected(&p->lexer, "a function, a variable or a directive of a module");
    }
}

static void parse_module_directive(struct parser *p) {
    if (take_word(p, ".file")) {
        parse_file(p);
    } else if (take_word(p, ".loc")) {
        parse_loc(p);
    } else if (take_word(p, ".section")) {
        parse_section(p);
    } else if (take_word(p, ".pragma")) {
        skip_pragma(p);
    } else if (take_word(p, ".alias")) {
        parse_alias(p);
    } else if (take_word(p, ".address_size")) {
        parse_address_size(p);
    } else if (take_word(p, ".extern")) {
        parse_declaration(p, true);
    } else {
        if (!take_word(p, ".visible") && !take_word(p, ".weak")) {
            take_word(p, ".common");
        }
        parse_declaration(p, false);
    }
}

static void parse_module(struct parser *p) {
    struct ptx_module *module = p->module;
    module->address_size = 64;
    if (!take_word(p, ".version")) {
        lexer_expected(&p->lexer, ".version at the beginning");
    }
    parse_version(p);
    if (!take_word(p, ".target")) {
        lexer_expected(&p->lexer, ".target behind .version");
    }
    parse_target(p);
    while (p->lexer.token.kind != TOKEN_END) {
        if (!take_sign(p, ';')) {
            parse_module_directive(p);
        }
    }
    resolve_aliases(p);
    if (p->lexer.failed) {
        return;
    }
    lines_finish(p);
    module->functions = vector_copy(p, &p->functions, sizeof(struct ptx_function *));
    module->function_count = (uint32_t)p->functions.count;
    module->variables = vector_copy(p, &p->variables, sizeof(struct ptx_variable *));
    module->variable_count = (uint32_t)p->variables.count;
}

struct ptx_module *ptx_parse(const char *text, size_t size, struct ptx_error *error) {
    struct parser p;
    *error = (struct ptx_error){0};
    if (size > PTX_MAX_TEXT) {
        *error = (struct ptx_error){.text = "the text is too long, expected at most 2^28 bytes"};
        return NULL;
    }
    if (!parser_make(&p, text, size, error)) {
        return NULL;
    }
    parse_module(&p);
    parser_drop(&p);
    if (p.lexer.failed) {
        arena_free(p.arena);
        return NULL;
    }
    return p.module;
}

void ptx_free(struct ptx_module *module) {
    if (module) {
        arena_free(module->arena);
    }
}
