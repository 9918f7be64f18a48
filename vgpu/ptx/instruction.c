/* SPDX-License-Identifier: Apache-2.0
 *
 * instruction.c - instructions and operands.
 *
 * Invariant: an operand's registers and variables exist when it is read; names that may be labels
 * are left to the end of their scope (scope.c).
 */
#include "ptx/parser.h"

#include <string.h>

/* ---- opcodes --------------------------------------------------------------------------------- */

/* "ld.global.L2::128B.v4" as an instruction without operands. */
static struct ptx_instruction *make_form(struct parser *p, const struct token *token) {
    struct ptx_instruction *form = parser_alloc(p, p->scratch, sizeof *form);
    const char *modifiers[PTX_MAX_MODIFIERS];
    const char *end = token->start + token->length;
    for (const char *word = token->start; word < end;) {
        const char *dot = memchr(word, '.', (size_t)(end - word));
        const size_t length = (size_t)((dot ? dot : end) - word);
        if (!form->opcode) {
            form->opcode = parser_intern(p, word, length);
        } else if (form->modifier_count < PTX_MAX_MODIFIERS) {
            modifiers[form->modifier_count++] = parser_intern(p, word, length);
        } else {
            struct token at = *token;
            at.column += (uint32_t)(word - token->start);
            fail_at(p, &at, "expected at most %d modifiers", PTX_MAX_MODIFIERS);
        }
        word += length + 1;
    }
    const size_t size = form->modifier_count * sizeof *modifiers;
    form->modifiers = memcpy(parser_alloc(p, p->arena, size), modifiers, size);
    form->guard = -1;
    return form;
}

static const struct ptx_instruction *parse_opcode(struct parser *p) {
    extend_opcode(p);
    if (*p->token.start < 'a' || *p->token.start > 'z') {
        fail_expected(p, "an instruction");
    }
    struct symbol *symbol = symbol_of(p, &p->token);
    if (!symbol->form) {
        symbol->form = make_form(p, &p->token);
    }
    next_token(p);
    return symbol->form;
}

/* ---- names ----------------------------------------------------------------------------------- */

/* The machine's own registers, between blanks: those with .x, .y, .z and .w, and the others. */
static const char VECTORS[] = " %tid %ntid %ctaid %nctaid %clusterid %nclusterid %cluster_ctaid"
                              " %cluster_nctaid ";
static const char SCALARS[] =
    " %laneid %warpid %nwarpid %smid %nsmid %gridid %is_explicit_cluster %cluster_ctarank"
    " %cluster_nctarank %lanemask_eq %lanemask_le %lanemask_lt %lanemask_ge %lanemask_gt"
    " %clock %clock_hi %clock64 %globaltimer %globaltimer_lo %globaltimer_hi"
    " %total_smem_size %aggr_smem_size %dynamic_smem_size %current_graph_exec"
    " %reserved_smem_offset_begin %reserved_smem_offset_end %reserved_smem_offset_cap"
    " %reserved_smem_offset_0 %reserved_smem_offset_1 %pm0 %pm1 %pm2 %pm3 %pm4 %pm5 %pm6 %pm7"
    " %envreg0 %envreg1 %envreg2 %envreg3 %envreg4 %envreg5 %envreg6 %envreg7 %envreg8 %envreg9"
    " %envreg10 %envreg11 %envreg12 %envreg13 %envreg14 %envreg15 %envreg16 %envreg17 %envreg18"
    " %envreg19 %envreg20 %envreg21 %envreg22 %envreg23 %envreg24 %envreg25 %envreg26 %envreg27"
    " %envreg28 %envreg29 %envreg30 %envreg31 ";

static bool listed(const char *names, const char *name) {
    const size_t length = strlen(name);
    const char *at = names;
    while ((at = strstr(at, name)) && (at[-1] != ' ' || at[length] != ' ')) {
        at += length;
    }
    return at != NULL;
}

/* %tid.x, %laneid; false: no special register. */
static bool parse_special(struct parser *p, const struct symbol *symbol, struct ptx_operand *out) {
    const bool has_components = *symbol->name == '%' && listed(VECTORS, symbol->name);
    if (*symbol->name != '%' || !(has_components || listed(SCALARS, symbol->name))) {
        return false;
    }
    if (has_components) {
        extend_component(p);
        const char *suffix = p->token.start + symbol->length;
        if (p->token.length != symbol->length + 2 || suffix[1] < 'w' || suffix[1] > 'z') {
            fail_expected(p, "one of .x, .y, .z and .w of a special register");
        }
    }
    *out = (struct ptx_operand){.kind = PTX_OPERAND_SPECIAL, .name = symbol_of(p, &p->token)->name};
    next_token(p);
    return true;
}

static _Noreturn void fail_undeclared(struct parser *p, const struct token *at, const char *what) {
    fail_at(p, at, "'%.*s' is not declared, expected %s", (int)(at->length < 80 ? at->length : 80),
            at->start, what);
}

/* A name that must be a register: its index. */
static uint32_t parse_predicate(struct parser *p, const char *what) {
    const struct binding *binding = NULL;
    if (p->token.kind == TOKEN_NAME && !(binding = scope_find(p, symbol_of(p, &p->token)))) {
        fail_undeclared(p, &p->token, what);
    }
    const struct ptx_register *registers = p->registers.items;
    if (!binding || binding->kind != BOUND_REGISTER ||
        registers[binding->number].type != PTX_PRED) {
        fail_expected(p, what);
    }
    next_token(p);
    return binding->number;
}

int64_t parse_offset(struct parser *p) {
    const struct token at = p->token;
    if (take_sign(p, '+')) {
        if (!starts_constant(&p->token)) {
            fail_expected(p, "a number");
        }
    } else if (!token_is_sign(&at, '-')) {
        return 0;
    }
    const struct constant offset = parse_constant(p);
    if (offset.kind != TOKEN_INTEGER) {
        fail_at(p, &at, "expected an integer as offset");
    }
    return (int64_t)offset.bits;
}

/* A name that may be a label or, unless it stands in one, a list of them. Its value is the index of
 * the reference until take_parts knows where the operand stays. */
static struct ptx_operand parse_label_name(struct parser *p, bool may_be_list) {
    const struct ptx_operand label = {.kind = PTX_OPERAND_LABEL,
                                      .name = symbol_of(p, &p->token)->name,
                                      .value = (int64_t)p->references.count};
    struct reference *reference = vector_push(p, &p->references, sizeof *reference);
    reference->symbol = symbol_of(p, &p->token);
    reference->may_be_list = may_be_list;
    reference->at = p->token;
    next_token(p);
    return label;
}

/* ---- operands -------------------------------------------------------------------------------- */

/* Decimal literals are f32 where the last type of the instruction is. */
static bool decimals_are_f32(const struct ptx_instruction *form) {
    for (uint32_t i = form->modifier_count; i-- > 0;) {
        const enum ptx_type type = ptx_type_named(form->modifiers[i]);
        if (type != PTX_NONE) {
            return type == PTX_F32;
        }
    }
    return false;
}

static struct ptx_operand parse_constant_operand(struct parser *p) {
    const struct constant constant = parse_constant(p);
    struct ptx_operand out = {.value = (int64_t)constant.bits};
    switch (constant.kind) {
    case TOKEN_INTEGER: out.kind = PTX_OPERAND_INTEGER; break;
    case TOKEN_F32: out.kind = PTX_OPERAND_F32; break;
    default: out.kind = PTX_OPERAND_F64;
    }
    if (constant.kind == TOKEN_DECIMAL && decimals_are_f32(p->form)) {
        out.kind = PTX_OPERAND_F32;
        out.value = float_bits(constant.bits);
    }
    return out;
}

static bool takes_parts(const char *opcode) {
    static const char *const NAMES[] = {"vadd",  "vsub", "vabsdiff", "vmin", "vmax",
                                        "vavrg", "vshl", "vshr",     "vmad", "vset"};
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        if (strncmp(opcode, NAMES[i], strlen(NAMES[i])) == 0) {
            return true; /* vadd, vadd2, vadd4 */
        }
    }
    return false;
}

/* .b3210 or .h1 of a register of a video instruction: see PTX_PART_BITS. */
static int64_t parse_part(struct parser *p) {
    const char *text = p->token.start;
    const uint32_t count = p->token.length - 2;
    int64_t part = 0;
    if (!takes_parts(p->form->opcode) || p->token.length < 3 || count > PTX_PART_MOST ||
        (text[1] != 'b' && text[1] != 'h')) {
        fail_expected(p, "a whole register (only video instructions take parts)");
    }
    for (uint32_t i = 0; i < count; i++) {
        if (text[2 + i] < '0' || text[2 + i] > '7') {
            fail_expected(p, "digits from 0 to 7 in the part of a register");
        }
        part = part << PTX_PART_BITS | (text[2 + i] - '0');
    }
    next_token(p);
    return part | (int64_t)count << PTX_PART_COUNT | (text[1] == 'h' ? PTX_PART_HALVES : 0);
}

/* A name, with what may follow it but for |. */
static struct ptx_operand parse_name(struct parser *p, bool may_be_label) {
    if (take_word(p, "_")) {
        return (struct ptx_operand){.kind = PTX_OPERAND_SINK};
    }
    struct symbol *symbol = symbol_of(p, &p->token);
    const struct binding *binding = scope_find(p, symbol);
    if (binding && binding->kind != BOUND_REGISTER && strncmp(p->form->opcode, "br", 2) == 0) {
        binding = NULL; /* a label (of bra, brx) may be called like something outside */
    }
    struct ptx_operand out = {.name = symbol->name};
    if (!binding || binding->kind == BOUND_LABEL || binding->kind == BOUND_TARGETS) {
        if (!binding && parse_special(p, symbol, &out)) {
            return out;
        }
        if (!may_be_label || *symbol->name == '%') {
            fail_undeclared(p, &p->token, "a register or a variable");
        }
        return parse_label_name(p, true);
    }
    next_token(p);
    if (binding->kind == BOUND_REGISTER) {
        out.kind = PTX_OPERAND_REGISTER;
        out.reg = binding->number;
        if (p->token.kind == TOKEN_DIRECTIVE) {
            out.value = parse_part(p);
        }
    } else if (binding->kind == BOUND_VARIABLE) {
        out.kind = PTX_OPERAND_VARIABLE;
        out.variable = binding->variable;
        out.value = parse_offset(p);
    } else {
        out.kind = PTX_OPERAND_FUNCTION;
    }
    return out;
}

/* Register, variable (+ offset), constant, special register or sink: what lists are made of. */
static struct ptx_operand parse_simple(struct parser *p, bool may_be_label) {
    if (starts_constant(&p->token)) {
        return parse_constant_operand(p);
    }
    if (p->token.kind != TOKEN_NAME) {
        fail_expected(p, "an operand");
    }
    return parse_name(p, may_be_label);
}

static void push_part(struct parser *p, struct ptx_operand part) {
    *(struct ptx_operand *)vector_push(p, &p->parts, sizeof part) = part;
}

/* What was pushed since `base`, where it stays. */
static struct ptx_operand *take_parts(struct parser *p, size_t base, uint32_t *count) {
    struct ptx_operand *parts = vector_take(p, &p->parts, base, sizeof *parts, count);
    struct reference *references = p->references.items;
    for (uint32_t i = 0; i < *count; i++) {
        if (parts[i].kind == PTX_OPERAND_LABEL) {
            references[parts[i].value].operand = &parts[i];
        }
    }
    return parts;
}

/* {a, b} and (a, b). */
static struct ptx_operand parse_list(struct parser *p, enum ptx_operand_kind kind, char close) {
    const size_t base = p->parts.count;
    struct ptx_operand out = {.kind = kind};
    next_token(p);
    if (!token_is_sign(&p->token, close)) {
        do {
            push_part(p, parse_simple(p, false));
        } while (take_sign(p, ','));
    }
    expect_sign(p, close, "or ',' in a list");
    out.parts = take_parts(p, base, &out.part_count);
    return out;
}

/* [x + 8], [x, {c0, c1}]. */
static struct ptx_operand parse_address(struct parser *p) {
    const size_t base = p->parts.count;
    struct ptx_operand out = {.kind = PTX_OPERAND_ADDRESS};
    next_token(p);
    struct ptx_operand start = parse_simple(p, false);
    if (start.kind == PTX_OPERAND_REGISTER) {
        out.value = parse_offset(p);
    } else if (start.kind == PTX_OPERAND_VARIABLE) {
        out.value = start.value;
        start.value = 0;
    } else if (start.kind != PTX_OPERAND_INTEGER) {
        fail_expected(p, "an address that starts with a register or variable");
    }
    push_part(p, start);
    while (take_sign(p, ',')) {
        push_part(p, token_is_sign(&p->token, '{') ? parse_list(p, PTX_OPERAND_VECTOR, '}')
                                                   : parse_simple(p, false));
    }
    expect_sign(p, ']', "at the end of an address");
    out.parts = take_parts(p, base, &out.part_count);
    return out;
}

/* After the first half of p|q. */
static struct ptx_operand parse_pair(struct parser *p, struct ptx_operand first) {
    const size_t base = p->parts.count;
    const struct token at = p->token;
    struct ptx_operand out = {.kind = PTX_OPERAND_PAIR};
    const struct ptx_operand second = parse_simple(p, false);
    if (second.kind != PTX_OPERAND_REGISTER && second.kind != PTX_OPERAND_SINK) {
        fail_at(p, &at, "expected a register or _ after |");
    }
    push_part(p, first);
    push_part(p, second);
    out.parts = take_parts(p, base, &out.part_count);
    return out;
}

static struct ptx_operand parse_operand(struct parser *p) {
    switch (p->token.kind == TOKEN_SIGN ? *p->token.start : '\0') {
    case '{': return parse_list(p, PTX_OPERAND_VECTOR, '}');
    case '[': return parse_address(p);
    case '(':
        if (strcmp(p->form->opcode, "call") == 0) {
            return parse_list(p, PTX_OPERAND_LIST, ')');
        }
        break;
    case '!':
        if (!strchr("0123456789(", *p->cursor)) {
            next_token(p);
            return (struct ptx_operand){.kind = PTX_OPERAND_REGISTER,
                                        .negated = true,
                                        .reg = parse_predicate(p, "a predicate after !")};
        }
        break;
    default: break;
    }
    const struct ptx_operand out = parse_simple(p, true);
    if ((out.kind == PTX_OPERAND_REGISTER || out.kind == PTX_OPERAND_SINK) && take_sign(p, '|')) {
        return parse_pair(p, out);
    }
    return out;
}

void parse_instruction(struct parser *p) {
    int32_t guard = -1;
    bool negated = false;
    if (take_sign(p, '@')) {
        negated = take_sign(p, '!');
        guard = (int32_t)parse_predicate(p, "a predicate as guard");
        if (p->token.kind != TOKEN_NAME) {
            fail_expected(p, "an instruction after the guard");
        }
    }
    if (p->code_count + p->code.count >= PTX_MAX_CODE) {
        fail_at(p, &p->token, "expected at most %d instructions", PTX_MAX_CODE);
    }
    struct ptx_instruction *in = vector_push(p, &p->code, sizeof *in);
    const uint32_t line = p->token.line, column = p->token.column;
    p->form = parse_opcode(p);
    *in = *p->form;
    in->guard = guard;
    in->guard_negated = negated;
    in->line = line;
    in->column = column;
    in->location = p->location;
    in->borrowed = p->borrowed;
    if (take_sign(p, ';')) {
        return;
    }
    do {
        if (p->parts.count == PTX_MAX_OPERANDS) {
            fail_at(p, &p->token, "expected at most %d operands", PTX_MAX_OPERANDS);
        }
        push_part(p, parse_operand(p));
    } while (take_sign(p, ','));
    expect_sign(p, ';', "or ',' after an operand");
    in->operands = take_parts(p, 0, &in->operand_count);
}

/* ---- targets --------------------------------------------------------------------------------- */

/* L: .calltargets f, g; */
static struct ptx_operand parse_function_name(struct parser *p) {
    const struct symbol *symbol = symbol_of(p, &p->token);
    const struct binding *binding = scope_find(p, (struct symbol *)symbol);
    if (!binding || binding->kind != BOUND_FUNCTION) {
        fail_undeclared(p, &p->token, "a function");
    }
    next_token(p);
    return (struct ptx_operand){.kind = PTX_OPERAND_FUNCTION, .name = symbol->name};
}

void parse_targets(struct parser *p, const struct token *label) {
    struct symbol *symbol = symbol_of(p, label);
    struct ptx_operand *targets = parser_alloc(p, p->arena, sizeof *targets);
    scope_bind(p, label, symbol, p->depth, BOUND_TARGETS)->targets = targets;
    targets->kind = PTX_OPERAND_LIST;
    targets->name = symbol->name;
    if (take_word(p, ".callprototype")) {
        /* The functions that are called say all that is said here. */
        while (!token_is_sign(&p->token, ';') && p->token.kind != TOKEN_END) {
            next_token(p);
        }
        expect_sign(p, ';', "after a prototype");
        return;
    }
    const bool functions = token_is(&p->token, ".calltargets");
    do {
        next_token(p);
        if (p->token.kind != TOKEN_NAME) {
            fail_expected(p, "a name");
        }
        push_part(p, functions ? parse_function_name(p) : parse_label_name(p, false));
    } while (token_is_sign(&p->token, ','));
    expect_sign(p, ';', "after the targets");
    targets->parts = take_parts(p, 0, &targets->part_count);
}
