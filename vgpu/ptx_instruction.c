/* SPDX-License-Identifier: Apache-2.0
 *
 * ptx_instruction.c - instructions and operands.
 *
 * Invariant: an operand's registers and variables exist when it is read; names that may be labels
 * are left to the end of their scope (ptx_scope.c).
 */
#include "ptx_parser.h"

#include <string.h>

/* ---- opcodes --------------------------------------------------------------------------------- */

/* The next word of "global.L2::128B.v4": up to a single dot. */
static uint32_t word_length(const char *text, const char *end) {
    const char *dot = memchr(text, '.', (size_t)(end - text));
    return (uint32_t)((dot ? dot : end) - text);
}

static struct ptx_form *make_form(struct parser *p, const struct token *token) {
    struct ptx_form *form = parser_alloc(p, p->scratch, sizeof *form);
    if (!form) {
        return NULL;
    }
    const char *end = token->start + token->length;
    enum ptx_type last = PTX_NONE;
    for (const char *word = token->start; word < end;) {
        const uint32_t length = word_length(word, end);
        const char *name = arena_intern(p->arena, word, length);
        if (!name) {
            lexer_fail_at(&p->lexer, token->line, token->column, "out of memory");
            return NULL;
        }
        if (!form->opcode) {
            form->opcode = name;
        } else if (form->modifier_count < PTX_MAX_MODIFIERS) {
            form->modifiers[form->modifier_count++] = name;
            const enum ptx_type type = ptx_type_named(name);
            last = type != PTX_NONE ? type : last;
        } else {
            lexer_fail_at(&p->lexer, token->line, token->column + (uint32_t)(word - token->start),
                          "expected at most %d modifiers", PTX_MAX_MODIFIERS);
            return NULL;
        }
        word += length + 1;
    }
    form->is_call = strcmp(form->opcode, "call") == 0;
    form->is_branch = strcmp(form->opcode, "bra") == 0 || strcmp(form->opcode, "brx") == 0;
    form->decimals_are_f32 = last == PTX_F32;
    return form;
}

static const struct ptx_form *parse_opcode(struct parser *p) {
    lexer_extend_opcode(&p->lexer);
    const struct token token = p->lexer.token;
    if (token.kind != TOKEN_NAME || *token.start < 'a' || *token.start > 'z') {
        lexer_expected(&p->lexer, "an instruction");
        return NULL;
    }
    struct symbol *symbol = symbol_of(p, &token);
    if (symbol && !symbol->form) {
        symbol->form = make_form(p, &token);
    }
    lexer_next(&p->lexer);
    return symbol ? symbol->form : NULL;
}

/* ---- names ----------------------------------------------------------------------------------- */

static bool is_numbered(const struct symbol *symbol, const char *stem, uint32_t limit) {
    return symbol->stem && strcmp(symbol->stem->name, stem) == 0 && symbol->number < limit;
}

/* Whether the name, without .x, is one of the machine's own registers. */
static bool is_special(const struct symbol *symbol, bool *has_components) {
    static const char *const VECTORS[] = {"%tid",           "%ntid",          "%ctaid",
                                          "%nctaid",        "%clusterid",     "%nclusterid",
                                          "%cluster_ctaid", "%cluster_nctaid"};
    static const char *const SCALARS[] = {"%laneid",
                                          "%warpid",
                                          "%nwarpid",
                                          "%smid",
                                          "%nsmid",
                                          "%gridid",
                                          "%is_explicit_cluster",
                                          "%cluster_ctarank",
                                          "%cluster_nctarank",
                                          "%lanemask_eq",
                                          "%lanemask_le",
                                          "%lanemask_lt",
                                          "%lanemask_ge",
                                          "%lanemask_gt",
                                          "%clock",
                                          "%clock_hi",
                                          "%clock64",
                                          "%globaltimer",
                                          "%globaltimer_lo",
                                          "%globaltimer_hi",
                                          "%total_smem_size",
                                          "%aggr_smem_size",
                                          "%dynamic_smem_size",
                                          "%current_graph_exec",
                                          "%reserved_smem_offset_begin",
                                          "%reserved_smem_offset_end",
                                          "%reserved_smem_offset_cap"};
    for (size_t i = 0; i < sizeof VECTORS / sizeof VECTORS[0]; i++) {
        if (strcmp(symbol->name, VECTORS[i]) == 0) {
            *has_components = true;
            return true;
        }
    }
    *has_components = false;
    for (size_t i = 0; i < sizeof SCALARS / sizeof SCALARS[0]; i++) {
        if (strcmp(symbol->name, SCALARS[i]) == 0) {
            return true;
        }
    }
    return is_numbered(symbol, "%envreg", 32) || is_numbered(symbol, "%pm", 8) ||
           is_numbered(symbol, "%reserved_smem_offset_", 2);
}

/* %tid.x, %laneid; false: no special register. */
static bool parse_special(struct parser *p, const struct symbol *symbol, struct ptx_operand *out) {
    bool has_components;
    if (*symbol->name != '%' || !is_special(symbol, &has_components)) {
        return false;
    }
    if (has_components) {
        lexer_extend_component(&p->lexer);
        const struct token *token = &p->lexer.token;
        const char last = token->start[token->length - 1];
        if (token->start[token->length - 2] != '.' || last < 'w' || last > 'z') {
            lexer_expected(&p->lexer, "one of .x, .y, .z and .w of a special register");
            return true;
        }
        symbol = symbol_of(p, token);
    }
    out->kind = PTX_OPERAND_SPECIAL;
    out->name = symbol ? symbol->name : NULL;
    lexer_next(&p->lexer);
    return true;
}

static void fail_undeclared(struct parser *p, const struct token *at, const char *what) {
    lexer_fail_at(&p->lexer, at->line, at->column, "'%.*s' is not declared, expected %s",
                  (int)(at->length < 80 ? at->length : 80), at->start, what);
}

uint32_t parse_register(struct parser *p, const char *what) {
    const struct token at = p->lexer.token;
    struct symbol *symbol = at.kind == TOKEN_NAME ? symbol_of(p, &at) : NULL;
    const struct binding *binding = symbol ? scope_find(p, symbol) : NULL;
    if (!binding || binding->kind != BOUND_REGISTER) {
        if (symbol && !binding) {
            fail_undeclared(p, &at, what);
        }
        lexer_expected(&p->lexer, what);
        return 0;
    }
    lexer_next(&p->lexer);
    return binding->reg;
}

/* + 8, - 8 or +-8 behind a name. */
static int64_t parse_offset(struct parser *p) {
    const struct token at = p->lexer.token;
    if (!token_is_sign(&at, '+') && !token_is_sign(&at, '-')) {
        return 0;
    }
    if (token_is_sign(&at, '+')) {
        lexer_next(&p->lexer);
        if (!starts_constant(&p->lexer.token)) {
            lexer_expected(&p->lexer, "a number");
            return 0;
        }
    }
    const struct constant offset = parse_constant(p);
    if (offset.kind != TOKEN_INTEGER) {
        lexer_fail_at(&p->lexer, at.line, at.column, "expected an integer as offset");
    }
    return (int64_t)offset.bits;
}

/* ---- operands -------------------------------------------------------------------------------- */

static void parse_constant_operand(struct parser *p, struct ptx_operand *out) {
    const struct constant constant = parse_constant(p);
    out->value = (int64_t)constant.bits;
    switch (constant.kind) {
    case TOKEN_F32: out->kind = PTX_OPERAND_F32; break;
    case TOKEN_F64: out->kind = PTX_OPERAND_F64; break;
    case TOKEN_DECIMAL:
        out->kind = PTX_OPERAND_F64;
        if (p->form->decimals_are_f32) {
            double number;
            memcpy(&number, &constant.bits, sizeof number);
            const float narrow = (float)number;
            uint32_t bits;
            memcpy(&bits, &narrow, sizeof bits);
            out->kind = PTX_OPERAND_F32;
            out->value = bits;
        }
        break;
    default: out->kind = PTX_OPERAND_INTEGER;
    }
}

/* A name, with what may follow it but for |. `label`: where to note that it may be a label, as an
 * index into the operands; SIZE_MAX: it cannot be one. */
static void parse_name(struct parser *p, struct ptx_operand *out, size_t label) {
    const struct token at = p->lexer.token;
    if (token_is(&at, "_")) {
        out->kind = PTX_OPERAND_SINK;
        lexer_next(&p->lexer);
        return;
    }
    struct symbol *symbol = symbol_of(p, &at);
    if (!symbol) {
        return;
    }
    const struct binding *binding = scope_find(p, symbol);
    if (binding && binding->kind != BOUND_REGISTER && p->form->is_branch) {
        binding = NULL; /* a label may be called like something outside */
    }
    if (!binding || binding->kind == BOUND_LABEL || binding->kind == BOUND_TARGETS) {
        if (!binding && parse_special(p, symbol, out)) {
            return;
        }
        if (label == SIZE_MAX || *symbol->name == '%') {
            fail_undeclared(p, &at, "a register or a variable");
            return;
        }
        out->kind = PTX_OPERAND_LABEL;
        scope_refer(p, &at, symbol, NULL, label);
        lexer_next(&p->lexer);
        return;
    }
    lexer_next(&p->lexer);
    if (binding->kind == BOUND_REGISTER) {
        out->kind = PTX_OPERAND_REGISTER;
        out->reg = binding->reg;
        out->name = symbol->name;
        if (p->lexer.token.kind == TOKEN_DIRECTIVE) {
            lexer_expected(&p->lexer, "a whole register (a part of one is not supported)");
        }
    } else if (binding->kind == BOUND_VARIABLE) {
        out->kind = PTX_OPERAND_VARIABLE;
        out->variable = binding->variable;
        out->name = symbol->name;
    } else {
        out->kind = PTX_OPERAND_FUNCTION;
        out->name = symbol->name;
    }
}

/* Register, variable (+ offset), constant, special register or sink: what lists are made of. */
static void parse_simple(struct parser *p, struct ptx_operand *out) {
    if (p->lexer.token.kind == TOKEN_NAME && !starts_constant(&p->lexer.token)) {
        parse_name(p, out, SIZE_MAX);
        if (out->kind == PTX_OPERAND_VARIABLE) {
            out->value = parse_offset(p);
        }
    } else if (starts_constant(&p->lexer.token)) {
        parse_constant_operand(p, out);
    } else {
        lexer_expected(&p->lexer, "an operand");
    }
}

/* What was pushed on p->parts since `base` becomes the parts of the operand. */
static void take_parts(struct parser *p, struct ptx_operand *out, size_t base) {
    const size_t count = p->parts.count - base;
    out->parts = parser_alloc(p, p->arena, count * sizeof *out->parts);
    if (out->parts && count) {
        memcpy(out->parts, (struct ptx_operand *)p->parts.items + base, count * sizeof *out->parts);
        out->part_count = (uint32_t)count;
    }
    p->parts.count = base;
}

static void push_part(struct parser *p, const struct ptx_operand *part) {
    struct ptx_operand *added = vector_push(p, &p->parts, sizeof *added);
    if (added) {
        *added = *part;
    }
}

/* {a, b} and (a, b). */
static void parse_list(struct parser *p, struct ptx_operand *out, enum ptx_operand_kind kind,
                       char close) {
    const size_t base = p->parts.count;
    out->kind = kind;
    lexer_next(&p->lexer);
    if (!token_is_sign(&p->lexer.token, close)) {
        do {
            struct ptx_operand part = {0};
            parse_simple(p, &part);
            push_part(p, &part);
        } while (take_sign(p, ','));
    }
    expect_sign(p, close, "or ',' in a list");
    take_parts(p, out, base);
}

/* [x + 8], [x, {c0, c1}]. */
static void parse_address(struct parser *p, struct ptx_operand *out) {
    const size_t base = p->parts.count;
    struct ptx_operand part = {0};
    out->kind = PTX_OPERAND_ADDRESS;
    lexer_next(&p->lexer);
    parse_simple(p, &part);
    switch (part.kind) {
    case PTX_OPERAND_REGISTER: out->value = parse_offset(p); break;
    case PTX_OPERAND_VARIABLE:
        out->value = part.value;
        part.value = 0;
        break;
    case PTX_OPERAND_INTEGER: break;
    default: lexer_expected(&p->lexer, "an address that starts with a register or variable");
    }
    push_part(p, &part);
    while (take_sign(p, ',')) {
        struct ptx_operand next = {0};
        if (token_is_sign(&p->lexer.token, '{')) {
            parse_list(p, &next, PTX_OPERAND_VECTOR, '}');
        } else {
            parse_simple(p, &next);
        }
        push_part(p, &next);
    }
    expect_sign(p, ']', "at the end of an address");
    take_parts(p, out, base);
}

/* Behind the first half of p|q. */
static void parse_pair(struct parser *p, struct ptx_operand *out) {
    const size_t base = p->parts.count;
    const struct token at = p->lexer.token;
    struct ptx_operand second = {0};
    push_part(p, out);
    parse_simple(p, &second);
    push_part(p, &second);
    if (second.kind != PTX_OPERAND_REGISTER && second.kind != PTX_OPERAND_SINK) {
        lexer_fail_at(&p->lexer, at.line, at.column, "expected a register or _ behind |");
    }
    *out = (struct ptx_operand){.kind = PTX_OPERAND_PAIR};
    take_parts(p, out, base);
}

/* `index`: where the operand will be among the operands. */
static void parse_operand(struct parser *p, struct ptx_operand *out, size_t index) {
    const struct token at = p->lexer.token;
    if (token_is_sign(&at, '{')) {
        parse_list(p, out, PTX_OPERAND_VECTOR, '}');
    } else if (token_is_sign(&at, '[')) {
        parse_address(p, out);
    } else if (token_is_sign(&at, '(') && p->form->is_call) {
        parse_list(p, out, PTX_OPERAND_LIST, ')');
    } else if (token_is_sign(&at, '!') && !strchr("0123456789(", *p->lexer.cursor)) {
        lexer_next(&p->lexer);
        out->kind = PTX_OPERAND_REGISTER;
        out->negated = true;
        out->reg = parse_register(p, "a predicate behind !");
    } else if (at.kind == TOKEN_NAME && !starts_constant(&at)) {
        parse_name(p, out, index);
        if (out->kind == PTX_OPERAND_VARIABLE) {
            out->value = parse_offset(p);
        } else if ((out->kind == PTX_OPERAND_REGISTER || out->kind == PTX_OPERAND_SINK) &&
                   take_sign(p, '|')) {
            parse_pair(p, out);
        }
    } else {
        parse_simple(p, out);
    }
}

void parse_instruction(struct parser *p, int32_t guard, bool guard_negated) {
    const struct token at = p->lexer.token;
    if (p->code_count + p->code.count >= PTX_MAX_CODE) {
        lexer_fail_at(&p->lexer, at.line, at.column, "expected at most %d instructions",
                      PTX_MAX_CODE);
        return;
    }
    const struct ptx_form *form = parse_opcode(p);
    struct draft *draft = vector_push(p, &p->code, sizeof *draft);
    if (!form || !draft) {
        return;
    }
    *draft = (struct draft){.form = form,
                            .first_operand = p->operands.count,
                            .guard = guard,
                            .guard_negated = guard_negated,
                            .line = at.line,
                            .column = at.column,
                            .location = p->location};
    p->form = form;
    if (take_sign(p, ';')) {
        return;
    }
    do {
        if (draft->operand_count == PTX_MAX_OPERANDS) {
            lexer_fail_at(&p->lexer, p->lexer.token.line, p->lexer.token.column,
                          "expected at most %d operands", PTX_MAX_OPERANDS);
            return;
        }
        struct ptx_operand operand = {0};
        parse_operand(p, &operand, p->operands.count);
        struct ptx_operand *added = vector_push(p, &p->operands, sizeof *added);
        if (!added) {
            return;
        }
        *added = operand;
        draft->operand_count++;
    } while (take_sign(p, ','));
    expect_sign(p, ';', "or ',' behind an operand");
}

/* ---- targets --------------------------------------------------------------------------------- */

/* L: .branchtargets L0, L1; the same for functions. */
static void parse_target_names(struct parser *p, struct ptx_operand *targets, bool functions) {
    struct vector names = {0}; /* struct token */
    do {
        struct token *name = vector_push(p, &names, sizeof *name);
        if (p->lexer.token.kind != TOKEN_NAME) {
            lexer_expected(&p->lexer, "a name");
        }
        if (name && !p->lexer.failed) {
            *name = p->lexer.token;
        }
        lexer_next(&p->lexer);
    } while (take_sign(p, ','));
    expect_sign(p, ';', "behind the targets");
    targets->parts = parser_alloc(p, p->arena, names.count * sizeof *targets->parts);
    const struct token *tokens = names.items;
    for (size_t i = 0; i < names.count && targets->parts && !p->lexer.failed; i++) {
        struct ptx_operand *part = &targets->parts[i];
        struct symbol *symbol = symbol_of(p, &tokens[i]);
        if (!symbol) {
            break;
        }
        part->kind = functions ? PTX_OPERAND_FUNCTION : PTX_OPERAND_LABEL;
        part->name = symbol->name;
        if (!functions) {
            scope_refer(p, &tokens[i], symbol, part, 0);
        } else {
            const struct binding *binding = scope_find(p, symbol);
            if (!binding || binding->kind != BOUND_FUNCTION) {
                fail_undeclared(p, &tokens[i], "a function");
            }
        }
        targets->part_count++;
    }
    vector_free(&names);
}

void parse_targets(struct parser *p, const struct token *label) {
    struct symbol *symbol = symbol_of(p, label);
    struct ptx_operand *targets = parser_alloc(p, p->arena, sizeof *targets);
    struct binding *binding = symbol ? scope_bind(p, label, symbol, p->depth, BOUND_TARGETS) : NULL;
    if (!targets || !binding) {
        return;
    }
    binding->targets = targets;
    targets->kind = PTX_OPERAND_LIST;
    targets->name = symbol->name;
    if (take_word(p, ".callprototype")) {
        /* The functions that are called say all that is said here. */
        while (!token_is_sign(&p->lexer.token, ';') && p->lexer.token.kind != TOKEN_END) {
            lexer_next(&p->lexer);
        }
        expect_sign(p, ';', "behind a prototype");
    } else {
        const bool functions = token_is(&p->lexer.token, ".calltargets");
        lexer_next(&p->lexer);
        parse_target_names(p, targets, functions);
    }
}
