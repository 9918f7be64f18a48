/* SPDX-License-Identifier: Apache-2.0
 *
 * ptx_parser.h - what the files of the parser share: names and their scopes, the function that is
 * being read, places in the source.
 *
 *   ptx_parse.c         modules and bodies of functions
 *   ptx_declarations.c  variables, registers, heads of functions
 *   ptx_initialiser.c   the values of variables
 *   ptx_instruction.c   instructions and operands
 *   ptx_constant.c      constant expressions
 *   ptx_scope.c         names: what they mean where
 *   ptx_lines.c         .file, .loc, .section
 *
 * Errors are the lexer's: sticky, the first one wins, and every loop ends at TOKEN_END.
 */
#ifndef VGPU_PTX_PARSER_H
#define VGPU_PTX_PARSER_H

#include "arena.h"
#include "ptx.h"
#include "ptx_lexer.h"

enum {
    PTX_MAX_TEXT = 1 << 28,        /* bytes */
    PTX_MAX_SCOPES = 64,           /* { inside { */
    PTX_MAX_CODE = 1 << 20,        /* instructions of a module: about 1 GB */
    PTX_MAX_INITIALISED = 1 << 26, /* bytes of all variables that have values */
    PTX_MAX_DIMENSIONS = 8,        /* of an array */
    PTX_MAX_ALIGN = 1 << 16,
    PTX_MAX_EXPRESSION_DEPTH = 32
};

/* An array that grows in heap memory of its own; element types are the users'. */
struct vector {
    void *items;
    size_t count, capacity;
};

/* An opcode with its modifiers: one for each text. */
struct ptx_form {
    const char *opcode;
    const char *modifiers[PTX_MAX_MODIFIERS];
    uint32_t modifier_count;
    bool is_call;
    bool is_branch;
    bool decimals_are_f32; /* its last type is f32 */
};

struct binding;

/* A word of the text: one for each spelling. */
struct symbol {
    const char *name; /* interned in the module */
    uint64_t hash;
    uint32_t length;
    uint32_t number;         /* %r12: 12 */
    struct symbol *stem;     /* %r12: %r; NULL: does not end with a plain number */
    struct binding *binding; /* what it means here; NULL: nothing */
    struct ptx_form *form;   /* once it was an opcode */
    uint64_t string;         /* a label in .debug_str: offset + 1; 0: none */
    const char *string_name; /* the string behind that label, once it was asked for */
};

enum binding_kind {
    BOUND_REGISTER, /* reg */
    BOUND_RANGE,    /* the stem of `limit` registers of `type`; each is bound when first used */
    BOUND_VARIABLE,
    BOUND_FUNCTION,
    BOUND_LABEL,  /* label: the index of the instruction */
    BOUND_TARGETS /* .branchtargets, .calltargets, .callprototype: an operand that is a list */
};

struct binding {
    enum binding_kind kind;
    uint32_t depth; /* of its scope; 0 is the module's */
    uint32_t reg, limit, label;
    enum ptx_type type;
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
    struct ptx_operand *part; /* what to fill in, or NULL: */
    size_t operand;           /* index into parser.operands */
    uint32_t line, column;
};

/* An instruction before its function is complete: its operands are in parser.operands. */
struct draft {
    const struct ptx_form *form;
    size_t first_operand;
    uint32_t operand_count;
    int32_t guard;
    bool guard_negated;
    uint32_t line, column, location;
};

struct line_table; /* ptx_lines.c */

struct parser {
    struct lexer lexer;
    struct ptx_module *module;
    struct arena *arena;     /* the module's */
    struct arena *scratch;   /* goes when parsing ends */
    struct symbol **symbols; /* open addressing; a power of two, at most half full */
    size_t symbol_places, symbol_count;
    struct scope scopes[PTX_MAX_SCOPES];
    uint32_t depth;             /* of the current scope */
    bool stems_end_with_digits; /* some range is called like %r1<9> */
    struct line_table *lines;
    uint32_t location;                  /* of the next instruction */
    uint64_t initialised_bytes;         /* so far */
    size_t code_count;                  /* instructions of the functions before this one */
    const struct ptx_form *form;        /* of the current instruction */
    struct vector functions, variables; /* of the module: pointers */
    struct vector aliases;              /* struct alias, ptx_declarations.c */
    /* of the current function */
    struct vector registers;  /* struct ptx_register */
    struct vector locals;     /* struct ptx_variable * */
    struct vector code;       /* struct draft */
    struct vector operands;   /* struct ptx_operand */
    struct vector references; /* struct reference */
    struct vector parts;      /* struct ptx_operand: a stack, for lists that are being read */
    struct vector bytes;      /* of the initialiser that is being read */
    uint32_t last_label;      /* the largest label that is a target */
};

/* ---- ptx_scope.c ---- */

bool parser_make(struct parser *p, const char *text, size_t size, struct ptx_error *error);
void parser_drop(struct parser *p); /* all but the module */

/* Both tell the lexer when memory is short. */
void *parser_alloc(struct parser *p, struct arena *arena, size_t size);
/* Room for one more element, which is zeroed; NULL: no memory. */
void *vector_push(struct parser *p, struct vector *vector, size_t element);
void vector_free(struct vector *vector);
/* The elements, copied into the module. */
void *vector_copy(struct parser *p, const struct vector *vector, size_t element);

/* The symbol of a token; NULL: no memory. */
struct symbol *symbol_of(struct parser *p, const struct token *token);

/* Binds the symbol in the scope `depth`; a second time in one scope is an error at the token.
 * NULL: it failed. */
struct binding *scope_bind(struct parser *p, const struct token *at, struct symbol *symbol,
                           uint32_t depth, enum binding_kind kind);
/* What the symbol means here; registers of a range come to be. NULL: nothing. */
struct binding *scope_find(struct parser *p, struct symbol *symbol);
void scope_open(struct parser *p);
/* Fills in the labels of the scope where they are named. */
void scope_close(struct parser *p);
/* An operand that may be a label: part, or the one at the index. */
void scope_refer(struct parser *p, const struct token *at, struct symbol *symbol,
                 struct ptx_operand *part, size_t operand);

/* ---- tokens: ptx_constant.c ---- */

bool take_sign(struct parser *p, char sign);
bool take_word(struct parser *p, const char *text); /* a name or a directive */
bool expect_sign(struct parser *p, char sign, const char *where);
void skip_pragma(struct parser *p); /* behind .pragma */
/* An integer from 0 to limit. */
uint64_t expect_integer(struct parser *p, uint64_t limit, const char *what);

struct constant {
    enum token_kind kind; /* TOKEN_INTEGER, TOKEN_F32, TOKEN_F64 or TOKEN_DECIMAL */
    bool is_unsigned;
    uint64_t bits;
};
bool starts_constant(const struct token *token);
struct constant parse_constant(struct parser *p);

/* ---- the others ---- */

void parse_instruction(struct parser *p, int32_t guard, bool guard_negated);
/* A name that must be a register: its index. */
uint32_t parse_register(struct parser *p, const char *what);
/* Behind `label:`, where .branchtargets, .calltargets or .callprototype stands. */
void parse_targets(struct parser *p, const struct token *label);

void parse_registers(struct parser *p);                          /* behind .reg */
bool space_of(const struct token *token, enum ptx_space *space); /* a directive .global, ... */
/* Behind .global and the like. */
void parse_variables(struct parser *p, enum ptx_space space, bool external);
void parse_initialiser(struct parser *p, struct ptx_variable *variable, const uint64_t *dimensions,
                       uint32_t dimension_count);
/* Behind .entry or .func, up to the body; the scope of the function is open. */
struct ptx_function *parse_function_head(struct parser *p, bool entry);
void parse_alias(struct parser *p);     /* behind .alias */
void resolve_aliases(struct parser *p); /* at the end of the module */

bool lines_make(struct parser *p);
void lines_drop(struct parser *p);
void lines_start_function(struct parser *p);
void parse_file(struct parser *p);    /* behind .file */
void parse_loc(struct parser *p);     /* behind .loc */
void parse_section(struct parser *p); /* behind .section */
void lines_finish(struct parser *p);  /* files and functions get their names */

#endif /* VGPU_PTX_PARSER_H */
