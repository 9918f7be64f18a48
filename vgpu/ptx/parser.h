/* SPDX-License-Identifier: Apache-2.0
 *
 * parser.h - shared by the files of the parser: tokens, scopes of names, the function being parsed.
 *
 *   parse.c         modules and bodies of functions
 *   declarations.c  variables, registers, heads of functions
 *   initialiser.c   the values of variables
 *   instruction.c   instructions and operands
 *   constant.c      constant expressions
 *   scope.c         names and their scopes
 *   lines.c         .file, .loc, .section
 *   lexer.c         tokens, and how parsing fails
 *
 * Invariant: the first error ends the parse (fail_at does not return), so code after a check needs
 * no error path. Allocations belong to the parser, which frees them either way.
 */
#ifndef VGPU_PTX_PARSER_H
#define VGPU_PTX_PARSER_H

#include <setjmp.h>

#include "ptx/arena.h"
#include "ptx/ptx.h"

enum {
    PTX_MAX_TEXT = 1 << 28,        /* bytes */
    PTX_MAX_SCOPES = 64,           /* { inside { */
    PTX_MAX_CODE = 1 << 20,        /* instructions of a module */
    PTX_MAX_INITIALISED = 1 << 26, /* bytes of all variables that have values */
    PTX_MAX_DIMENSIONS = 8,        /* of an array */
    PTX_MAX_ALIGN = 1 << 16,
    PTX_MAX_EXPRESSION_DEPTH = 32
};

enum token_kind {
    TOKEN_END,       /* of the text */
    TOKEN_NAME,      /* add, %r1, $L__BB0_1, _ */
    TOKEN_DIRECTIVE, /* .reg, with the dot */
    TOKEN_INTEGER,   /* value */
    TOKEN_F32,       /* value: the bits of 0f3F800000 */
    TOKEN_F64,       /* value: the bits of 0d3FF0000000000000 */
    TOKEN_DECIMAL,   /* value: the bits of the double 1.5 */
    TOKEN_STRING,    /* with the quotes */
    TOKEN_SIGN       /* one character: *start */
};

struct token {
    enum token_kind kind;
    bool is_unsigned; /* 5U; or too large for int64_t */
    uint32_t length;
    uint32_t line, column;
    const char *start;
    uint64_t value; /* of a number */
};

/* An array that grows in heap memory of its own; element types are the users'. */
struct vector {
    void *items;
    size_t count, capacity;
};

/* A word of the text: one for each spelling. */
struct symbol {
    const char *name; /* interned in the module */
    uint32_t length;
    struct binding *binding;            /* what it means here; NULL: nothing */
    const struct ptx_instruction *form; /* once it was an opcode: that and its modifiers */
    uint64_t string;                    /* a label in .debug_str: offset + 1; 0: none */
    const char *string_name;            /* the string at that label, once resolved */
};

enum binding_kind {
    BOUND_REGISTER, /* number: its index */
    BOUND_RANGE,    /* the stem of `number` registers; each is bound when first used */
    BOUND_VARIABLE,
    BOUND_FUNCTION,
    BOUND_LABEL,  /* number: the index of the instruction */
    BOUND_TARGETS /* .branchtargets, .calltargets, .callprototype: an operand that is a list */
};

struct binding {
    enum binding_kind kind;
    uint32_t depth; /* of its scope; 0 is the module's */
    uint32_t number;
    enum ptx_type type; /* of a range */
    struct ptx_variable *variable;
    struct ptx_function *function;
    const struct ptx_operand *targets;
    struct symbol *symbol;
    struct binding *shadowed; /* what the symbol means outside */
    struct binding *next;     /* in the scope */
};

struct scope {
    struct binding *bindings;
    size_t first_reference; /* into parser.references */
};

/* A name that may be a label: known when its scope ends. */
struct reference {
    struct symbol *symbol;
    struct ptx_operand *operand; /* to be filled in */
    bool may_be_list;            /* the name of .branchtargets will do */
    struct token at;
};

/* Where a statement begins, to skip it. */
struct mark {
    struct token token;
    const char *cursor, *line_start;
    uint32_t line, depth;
    size_t references, code;
};

struct parser {
    struct token token; /* the current one */
    const char *cursor; /* after it */
    const char *end;
    const char *line_start;
    uint32_t line;
    struct ptx_error *error;
    jmp_buf failed;
    bool skips;        /* what cannot be parsed, as ptx_parse_known does */
    bool in_statement; /* one that can be skipped; else the module is refused */
    struct mark mark;  /* the beginning of that statement */

    struct ptx_module *module;
    struct arena *arena;      /* the module's */
    struct arena *scratch;    /* goes when parsing ends; its entries are the symbols */
    struct arena *place_keys; /* lines.c: its entries are places in sources */
    struct scope scopes[PTX_MAX_SCOPES];
    uint32_t depth;             /* of the current scope */
    uint64_t initialised_bytes; /* so far */
    size_t code_count;          /* instructions of the functions before this one */
    struct vector functions;    /* struct ptx_function * */
    struct vector variables;    /* struct ptx_variable *: of the module */
    struct vector aliases;      /* struct alias, declarations.c */
    struct vector places;       /* struct place, lines.c */
    struct vector strings;      /* char: the bytes of .debug_str */
    uint64_t name_bytes;        /* of inlined functions, so far */
    struct vector bytes;        /* of the initialiser that is being read */
    struct vector addresses;    /* struct ptx_reference: likewise */
    /* of the current function */
    uint32_t function_number;           /* counted from 1 */
    uint32_t body_depth;                /* of the scope around its body */
    struct token body_end;              /* the last brace, once it is reached */
    uint32_t location;                  /* of the next instruction */
    bool borrowed;                      /* ... as in struct ptx_instruction */
    const struct ptx_instruction *form; /* of the current instruction */
    struct vector registers;            /* struct ptx_register */
    struct vector locals;               /* struct ptx_variable * */
    struct vector code;                 /* struct ptx_instruction */
    struct vector references;           /* struct reference */
    struct vector parts;                /* struct ptx_operand: of lists that are being read */
    uint32_t last_label;                /* the largest label that is a target */
};

/* ---- lexer.c ---- */

__attribute__((format(printf, 3, 4))) _Noreturn void
fail_at(struct parser *p, const struct token *at, const char *format, ...);
/* "expected WHAT, found THE CURRENT TOKEN". */
_Noreturn void fail_expected(struct parser *p, const char *what);

void next_token(struct parser *p);
/* The current name and what is glued to it: add -> add.s32, cp -> cp.async.bulk.L2::cache_hint.
 * Ends before a colon that stands alone, so that labels stay names. */
void extend_opcode(struct parser *p);
/* The current name and a suffix of one letter: %tid -> %tid.x. */
void extend_component(struct parser *p);

bool token_is_sign(const struct token *token, char sign);
bool token_is(const struct token *token, const char *text); /* a name or a directive */
/* Steps over the token if it is this one. */
bool take_sign(struct parser *p, char sign);
bool take_word(struct parser *p, const char *text);
void expect_sign(struct parser *p, char sign, const char *where);
/* Steps over a token of that kind. */
struct token expect_kind(struct parser *p, enum token_kind kind, const char *what);
uint32_t expect_number(struct parser *p, uint32_t limit, const char *what); /* no expression */

/* ---- scope.c ---- */

void *parser_alloc(struct parser *p, struct arena *arena, size_t size);
const char *parser_intern(struct parser *p, const char *text, size_t length);
/* Room for one more element, which is zeroed. */
void *vector_push(struct parser *p, struct vector *vector, size_t element);
/* Moves the elements from `first` on into the module. */
void *vector_take(struct parser *p, struct vector *vector, size_t first, size_t element,
                  uint32_t *count);

struct symbol *symbol_of(struct parser *p, const struct token *token);
/* Binds the symbol in the scope `depth`; a second time in one scope is an error at the token. */
struct binding *scope_bind(struct parser *p, const struct token *at, struct symbol *symbol,
                           uint32_t depth, enum binding_kind kind);
/* What the symbol means here; registers of a range come to be. NULL: nothing. */
struct binding *scope_find(struct parser *p, struct symbol *symbol);
uint32_t add_register(struct parser *p, const struct symbol *symbol, enum ptx_type type);
void scope_open(struct parser *p);
void scope_close(struct parser *p); /* labels of the scope are filled in where they are named */
void scope_drop(struct parser *p);  /* as if it had not been opened */

/* ---- constant.c ---- */

struct constant {
    enum token_kind kind; /* TOKEN_INTEGER, TOKEN_F32, TOKEN_F64 or TOKEN_DECIMAL */
    bool is_unsigned;
    uint64_t bits;
};
bool starts_constant(const struct token *token);
struct constant parse_constant(struct parser *p);
uint64_t expect_integer(struct parser *p, uint64_t limit, const char *what); /* 0 to limit */
uint32_t float_bits(uint64_t double_bits);

/* ---- the others; parse_ are called after the word that names them ---- */

void parse_instruction(struct parser *p);
int64_t parse_offset(struct parser *p); /* + 8, - 8 or +-8 after a name; 0: none */
/* After `label:`, where .branchtargets, .calltargets or .callprototype stands. */
void parse_targets(struct parser *p, const struct token *label);

void parse_registers(struct parser *p);
bool take_space(struct parser *p, enum ptx_space *space); /* .global and the like */
void parse_variables(struct parser *p, enum ptx_space space, bool external);
void parse_initialiser(struct parser *p, struct ptx_variable *variable, const uint64_t *dimensions,
                       uint32_t dimension_count);
/* Up to the body; the scope of the function is open. */
struct ptx_function *parse_function_head(struct parser *p, bool entry);
void parse_pragma(struct parser *p);
void parse_alias(struct parser *p);
void resolve_aliases(struct parser *p); /* at the end of the module */

void parse_file(struct parser *p);
void parse_loc(struct parser *p);
void parse_section(struct parser *p);
void finish_lines(struct parser *p); /* files and functions get their names */

#endif /* VGPU_PTX_PARSER_H */
