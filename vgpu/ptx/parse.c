/* SPDX-License-Identifier: Apache-2.0
 *
 * parse.c - modules and the bodies of functions.
 *
 * Invariant: a module is returned whole or not at all; braces nest in a loop, not by recursion.
 */
#include "ptx/parser.h"

#include <stdlib.h>
#include <string.h>

struct directive {
    const char *name;
    void (*parse)(struct parser *p);
};

static bool parse_directive(struct parser *p, const struct directive *directives, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (take_word(p, directives[i].name)) {
            directives[i].parse(p);
            return true;
        }
    }
    return false;
}

#define PARSE_ONE_OF(p, directives)                                                                \
    parse_directive(p, directives, sizeof(directives) / sizeof *(directives))

/* ---- bodies of functions --------------------------------------------------------------------- */

/* Whether the current name is a label: a colon comes next. */
static bool at_label(const struct parser *p) {
    return p->cursor[strspn(p->cursor, " \t\r\n")] == ':';
}

static void parse_label(struct parser *p) {
    const struct token name = p->token;
    next_token(p);
    next_token(p);
    if (token_is(&p->token, ".branchtargets") || token_is(&p->token, ".calltargets") ||
        token_is(&p->token, ".callprototype")) {
        parse_targets(p, &name);
    } else {
        scope_bind(p, &name, symbol_of(p, &name), p->depth, BOUND_LABEL)->number =
            (uint32_t)p->code.count;
    }
}

static void parse_body_directive(struct parser *p) {
    static const struct directive DIRECTIVES[] = {{".loc", parse_loc},
                                                  {".reg", parse_registers},
                                                  {".pragma", parse_pragma},
                                                  {".file", parse_file}};
    enum ptx_space space;
    if (take_space(p, &space)) {
        parse_variables(p, space, false);
    } else if (take_word(p, ".extern")) {
        if (!take_space(p, &space)) {
            fail_expected(p, "a state space after .extern");
        }
        parse_variables(p, space, true);
    } else if (!PARSE_ONE_OF(p, DIRECTIVES)) {
        fail_expected(p, "a directive of a body");
    }
}

static void parse_statement(struct parser *p) {
    if (p->token.kind == TOKEN_NAME && at_label(p)) {
        parse_label(p);
    } else if (p->token.kind == TOKEN_NAME || token_is_sign(&p->token, '@')) {
        parse_instruction(p);
    } else if (p->token.kind == TOKEN_DIRECTIVE) {
        parse_body_directive(p);
    } else if (take_sign(p, '{')) {
        scope_open(p);
    } else if (!take_sign(p, ';')) {
        fail_expected(p, p->token.kind == TOKEN_END
                             ? "'}' at the end of a function"
                             : "an instruction, a label, a directive or '}'");
    }
}

/* ---- what cannot be parsed ---- */

static void mark_statement(struct parser *p) {
    if (!p->skips) {
        return;
    }
    p->in_statement = p->token.kind != TOKEN_END;
    p->mark = (struct mark){.token = p->token,
                            .cursor = p->cursor,
                            .line_start = p->line_start,
                            .line = p->line,
                            .depth = p->depth,
                            .references = p->references.count,
                            .code = p->code.count};
}

/* Back to the mark, then past the statement: to the semicolon outside braces, past the brace that
 * closes a body, or before one that closes the body around it. The text may be any: no token is
 * read but the one after it. */
static void skip_statement(struct parser *p, bool in_body) {
    p->cursor = p->mark.token.start;
    p->line = p->mark.line;
    p->line_start = p->mark.line_start;
    while (p->depth > p->mark.depth) {
        scope_drop(p);
    }
    p->references.count = p->mark.references;
    p->code.count = p->mark.code;
    p->parts.count = 0;
    p->bytes.count = 0;
    for (uint32_t open = 0; p->cursor < p->end; p->cursor++) {
        const char at = *p->cursor;
        if (at == '\n') {
            p->line++;
            p->line_start = p->cursor + 1;
        }
        open += at == '{';
        if (at == '}' && open == 0 && in_body) {
            break;
        }
        const bool closes = at == '}' && open > 0 && --open == 0;
        if ((at == ';' && open == 0) ||
            (closes && strchr(";,", p->cursor[1 + strspn(p->cursor + 1, " \t\r\n")]) == NULL)) {
            p->cursor++;
            break;
        }
    }
    p->in_statement = false;
    next_token(p);
}

/* In place of the statement: reaching it is an error. */
static void push_unknown(struct parser *p, const struct token *at) {
    if (p->code_count + p->code.count >= PTX_MAX_CODE) {
        fail_at(p, at, "expected at most %d instructions", PTX_MAX_CODE);
    }
    struct ptx_instruction *in = vector_push(p, &p->code, sizeof *in);
    const char **reason = parser_alloc(p, p->arena, sizeof *reason);
    *reason = parser_intern(p, p->error->text, strlen(p->error->text));
    *in = (struct ptx_instruction){.opcode = parser_intern(p, PTX_UNKNOWN, strlen(PTX_UNKNOWN)),
                                   .modifiers = reason,
                                   .modifier_count = 1,
                                   .guard = -1,
                                   .line = at->line,
                                   .column = at->column,
                                   .location = p->location,
                                   .borrowed = p->borrowed};
    *p->error = (struct ptx_error){0};
}

/* Parses statements by `step` until it returns false. Where the parser skips, a failure in a
 * marked statement comes back here; any other leaves the module. */
static void parse_steps(struct parser *p, bool (*step)(struct parser *p), bool in_body) {
    if (!p->skips) {
        while (step(p)) {
        }
        return;
    }
    jmp_buf outside;
    memcpy(&outside, &p->failed, sizeof outside);
    if (setjmp(p->failed)) {
        if (!p->in_statement) {
            memcpy(&p->failed, &outside, sizeof outside);
            longjmp(p->failed, 1);
        }
        const struct token at = p->mark.token;
        skip_statement(p, in_body);
        if (in_body) {
            push_unknown(p, &at);
        } else {
            p->locals.count = 0;
            p->registers.count = 0;
        }
    }
    while (step(p)) {
        p->in_statement = false;
    }
    memcpy(&p->failed, &outside, sizeof outside);
}

/* A statement, or the brace at its end; false: the body is over. */
static bool step_body(struct parser *p) {
    p->body_end = p->token;
    if (token_is_sign(&p->token, '}')) {
        scope_close(p);
        next_token(p);
        return p->depth > p->body_depth;
    }
    mark_statement(p);
    parse_statement(p);
    return true;
}

/* After the first brace. */
static void parse_body(struct parser *p, struct ptx_function *function) {
    p->body_depth = p->depth - 1;
    parse_steps(p, step_body, true);
    const struct token end = p->body_end;
    if (p->last_label > 0 && p->last_label == p->code.count) {
        /* A label at the very end means leaving the function. */
        struct ptx_instruction *in = vector_push(p, &p->code, sizeof *in);
        *in = (struct ptx_instruction){.opcode = parser_intern(p, "ret", 3),
                                       .guard = -1,
                                       .line = end.line,
                                       .column = end.column,
                                       .location = p->location};
    }
    p->code_count += p->code.count;
    function->external = false;
    function->code =
        vector_take(p, &p->code, 0, sizeof(struct ptx_instruction), &function->code_count);
    function->registers =
        vector_take(p, &p->registers, 0, sizeof(struct ptx_register), &function->register_count);
    function->variables =
        vector_take(p, &p->locals, 0, sizeof(struct ptx_variable *), &function->variable_count);
}

static void parse_function(struct parser *p, bool entry) {
    p->last_label = 0;
    p->location = 0;
    p->borrowed = false;
    p->function_number++;
    struct ptx_function *function = parse_function_head(p, entry);
    if (take_sign(p, '{')) {
        parse_body(p, function);
    } else {
        expect_sign(p, ';', "or '{' after the head of a function");
        scope_close(p);
    }
}

/* ---- modules --------------------------------------------------------------------------------- */

/* The digits at *at, which moves past them. */
static uint32_t read_number(const char **at, const char *end) {
    enum { NUMBER_MAX = 100000 };
    uint32_t number = 0;
    for (; *at < end && **at >= '0' && **at <= '9' && number < NUMBER_MAX; (*at)++) {
        number = number * 10 + (uint32_t)(**at - '0');
    }
    return number;
}

/* .version 9.0 */
static void parse_version(struct parser *p) {
    enum { MAJOR_MAX = 999, MINOR_MAX = 9 };
    const char *at = p->token.start, *end = at + p->token.length;
    const uint32_t major = read_number(&at, end);
    at++; /* the point */
    const uint32_t minor = read_number(&at, end);
    if (p->token.kind != TOKEN_DECIMAL || major == 0 || major > MAJOR_MAX || minor > MINOR_MAX) {
        fail_expected(p, "a version such as 9.0");
    }
    p->module->version = major * 10 + minor;
    next_token(p);
}

/* .target sm_90a, debug */
static void parse_target(struct parser *p) {
    enum { TARGET_MAX = 10000 };
    const char *at = p->token.start, *end = at + p->token.length;
    const bool named = p->token.length > 3 && memcmp(at, "sm_", 3) == 0;
    if (named) {
        at += 3;
        p->module->target = read_number(&at, end);
        p->module->target_suffix = (char)(at + 1 == end && *at >= 'a' && *at <= 'z' ? *at++ : 0);
    }
    if (!named || at != end || p->module->target == 0 || p->module->target > TARGET_MAX) {
        fail_expected(p, "an architecture such as sm_80 or sm_90a");
    }
    next_token(p);
    while (take_sign(p, ',')) {
        if (!take_word(p, "debug") && !take_word(p, "texmode_unified") &&
            !take_word(p, "texmode_independent")) {
            fail_expected(p, "debug or texmode_unified");
        }
    }
}

static void parse_address_size(struct parser *p) {
    if (p->token.kind != TOKEN_INTEGER || p->token.value != 64) {
        fail_expected(p, "an address size of 64");
    }
    next_token(p);
}

/* A function or a variable. */
static void parse_declaration(struct parser *p) {
    const bool external = take_word(p, ".extern");
    if (!external && !take_word(p, ".visible") && !take_word(p, ".weak")) {
        take_word(p, ".common");
    }
    enum ptx_space space;
    if (take_word(p, ".entry")) {
        parse_function(p, true);
    } else if (take_word(p, ".func")) {
        parse_function(p, false);
    } else if (!token_is(&p->token, ".param") && take_space(p, &space)) {
        parse_variables(p, space, external);
    } else {
        fail_expected(p, "a function, a variable or a directive of a module");
    }
}

/* A directive or a declaration; false: the text is over. */
static bool step_module(struct parser *p) {
    static const struct directive DIRECTIVES[] = {
        {".file", parse_file},     {".loc", parse_loc},     {".section", parse_section},
        {".pragma", parse_pragma}, {".alias", parse_alias}, {".address_size", parse_address_size},
    };
    if (p->token.kind == TOKEN_END) {
        return false;
    }
    mark_statement(p);
    if (!take_sign(p, ';') && !PARSE_ONE_OF(p, DIRECTIVES)) {
        parse_declaration(p);
    }
    return true;
}

static void parse_module(struct parser *p) {
    struct ptx_module *module = p->module;
    next_token(p);
    if (!take_word(p, ".version")) {
        fail_expected(p, ".version at the beginning");
    }
    parse_version(p);
    if (!take_word(p, ".target")) {
        fail_expected(p, ".target after .version");
    }
    parse_target(p);
    parse_steps(p, step_module, false);
    resolve_aliases(p);
    finish_lines(p);
    module->address_size = 64;
    module->functions =
        vector_take(p, &p->functions, 0, sizeof(struct ptx_function *), &module->function_count);
    module->variables =
        vector_take(p, &p->variables, 0, sizeof(struct ptx_variable *), &module->variable_count);
}

/* All that may fail; false: it did. */
static bool parse(struct parser *p) {
    if (setjmp(p->failed)) {
        return false;
    }
    p->arena = arena_make();
    p->scratch = arena_make();
    p->place_keys = arena_make();
    if (!p->arena || !p->scratch || !p->place_keys) {
        fail_at(p, &p->token, "out of memory");
    }
    p->module = parser_alloc(p, p->arena, sizeof *p->module);
    p->module->arena = p->arena;
    parse_module(p);
    return true;
}

static struct ptx_module *parse_text(const char *text, size_t size, bool skips,
                                     struct ptx_error *error) {
    struct parser p = {.cursor = text,
                       .end = text + size,
                       .line_start = text,
                       .line = 1,
                       .skips = skips,
                       .error = error};
    *error = (struct ptx_error){0};
    if (size > PTX_MAX_TEXT) {
        *error = (struct ptx_error){.text = "the text is too long, expected at most 2^28 bytes"};
        return NULL;
    }
    const bool parsed = parse(&p);
    const struct vector all[] = {p.functions, p.variables,  p.aliases,   p.places,
                                 p.strings,   p.bytes,      p.addresses, p.registers,
                                 p.locals,    p.references, p.parts,     p.code};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        free(all[i].items);
    }
    arena_free(p.scratch);
    arena_free(p.place_keys);
    if (!parsed) {
        arena_free(p.arena);
    }
    return parsed ? p.module : NULL;
}

struct ptx_module *ptx_parse(const char *text, size_t size, struct ptx_error *error) {
    return parse_text(text, size, false, error);
}

struct ptx_module *ptx_parse_known(const char *text, size_t size, struct ptx_error *error) {
    return parse_text(text, size, true, error);
}

void ptx_free(struct ptx_module *module) {
    if (module) {
        arena_free(module->arena);
    }
}
