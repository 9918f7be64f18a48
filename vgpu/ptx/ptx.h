/* SPDX-License-Identifier: Apache-2.0
 *
 * ptx.h - a parsed PTX module: functions, registers, variables, instructions, lines. It does not
 * know what an instruction means.
 *
 * Everything of a module is in its arena and freed with it. Strings are interned: equal names are
 * one pointer.
 *
 * Invariant: a module returned by ptx_parse is well formed: every register, label and symbol that
 * an instruction names exists, and every branch target is an instruction of the same function.
 */
#ifndef VGPU_PTX_PTX_H
#define VGPU_PTX_PTX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct arena; /* arena.h: memory that is freed all at once */

enum ptx_type {
    PTX_NONE,
    PTX_PRED,
    PTX_B8,
    PTX_B16,
    PTX_B32,
    PTX_B64,
    PTX_B128,
    PTX_U8,
    PTX_U16,
    PTX_U32,
    PTX_U64,
    PTX_S8,
    PTX_S16,
    PTX_S32,
    PTX_S64,
    PTX_F16,
    PTX_F16X2,
    PTX_BF16,
    PTX_BF16X2,
    PTX_TF32,
    PTX_F32,
    PTX_F64,
    PTX_E4M3,
    PTX_E5M2,
    PTX_E4M3X2,
    PTX_E5M2X2,
    PTX_TYPE_COUNT
};

/* "f32" -> PTX_F32; PTX_NONE: no type. */
enum ptx_type ptx_type_named(const char *name);
const char *ptx_type_name(enum ptx_type type);
/* Bytes of one value: 1 to 16; PTX_PRED and PTX_NONE: 0. */
uint32_t ptx_type_size(enum ptx_type type);

enum ptx_space { PTX_REG, PTX_GLOBAL, PTX_SHARED, PTX_LOCAL, PTX_CONST, PTX_PARAM };

/* .reg .b32 %r<9> declares nine of them. */
struct ptx_register {
    const char *name;
    enum ptx_type type;
};

/* A value of a variable that is an address, or a byte of one: {f, generic(x) + 8, 0xFF00(x)}. */
struct ptx_reference {
    uint64_t at;           /* where in the variable */
    uint32_t bytes, shift; /* how many of the address, from which bit on */
    int64_t addend;
    const struct ptx_variable *variable; /* what it is the address of, or NULL */
    const struct ptx_function *function; /* likewise */
};

struct ptx_variable {
    const char *name;
    enum ptx_space space;
    enum ptx_type type;        /* of an element */
    uint32_t align;            /* bytes */
    uint64_t size;             /* bytes; 0: an array without a size (dynamic shared memory) */
    bool external;             /* .extern */
    const unsigned char *init; /* size bytes, or NULL: zeros. Space const and global only */
    const struct ptx_reference *references; /* for the loader to put into init */
    uint32_t reference_count;
    uint32_t line;
    uint64_t address; /* for the loader, not for the parser: where it was put */
};

enum ptx_operand_kind {
    PTX_OPERAND_REGISTER, /* reg; negated for !%p; value: a part of it, or 0 */
    PTX_OPERAND_INTEGER,  /* value */
    PTX_OPERAND_F32,      /* value: the bits (0f3F800000, or a decimal literal for an f32 type) */
    PTX_OPERAND_F64,      /* value: the bits (0d...; decimal literals too) */
    PTX_OPERAND_SPECIAL,  /* name: "%tid.x" */
    PTX_OPERAND_VARIABLE, /* variable (+ value): its address; also a kernel parameter */
    PTX_OPERAND_FUNCTION, /* name: what `call` calls */
    PTX_OPERAND_LABEL,    /* value: index of the instruction */
    PTX_OPERAND_ADDRESS,  /* [x + value]: parts[0] is x (register, variable or integer); for tensor
                             instructions [x, {c0, c1, ...}]: parts[1] is the vector */
    PTX_OPERAND_VECTOR,   /* {a, b, ...}: parts */
    PTX_OPERAND_PAIR,     /* p|q: parts[0] and parts[1]; either may be a sink */
    PTX_OPERAND_LIST,     /* (a, b): arguments or results of a call */
    PTX_OPERAND_SINK      /* _ */
};

/* A part of a register, such as .b3210: its digits, PTX_PART_BITS each, the last one lowest; their
 * number at bit PTX_PART_COUNT; PTX_PART_HALVES for .h. */
enum { PTX_PART_BITS = 4, PTX_PART_MOST = 4, PTX_PART_COUNT = 16, PTX_PART_HALVES = 1 << 24 };

struct ptx_operand {
    enum ptx_operand_kind kind;
    bool negated;
    uint32_t reg;
    int64_t value;
    const char *name;
    const struct ptx_variable *variable;
    struct ptx_operand *parts;
    uint32_t part_count;
};

/* A place in the source that nvcc compiled, and where that was inlined. */
struct ptx_location {
    const char *file; /* "src/kernels/portable/fwd_mma.cu" */
    uint32_t line, column;
    const char *function; /* of the code at this line where it was inlined, else NULL */
    uint32_t inlined_at;  /* index into the module's locations; 0: not inlined */
    bool library;         /* the file is a header of the toolkit or of the system */
};

enum { PTX_MAX_MODIFIERS = 16, PTX_MAX_OPERANDS = 12 };

struct ptx_instruction {
    const char *opcode;           /* "ld" */
    const char *const *modifiers; /* "global", "v4", "f32"; "L2::128B" is one */
    uint32_t modifier_count;      /* at most PTX_MAX_MODIFIERS */
    uint32_t operand_count;       /* at most PTX_MAX_OPERANDS */
    struct ptx_operand *operands;
    int32_t guard; /* register index, or -1 */
    bool guard_negated;
    uint32_t line, column; /* in the PTX text, from 1 */
    uint32_t location;     /* index into the module's locations; 0: none */
    bool borrowed;         /* the compiler put it in (line 0): location is the one before it */
};

struct ptx_function {
    const char *name;
    bool entry;    /* .entry, else .func */
    bool external; /* a declaration without a body (vprintf) */
    uint32_t line;
    uint64_t address;             /* for the loader: what a pointer to it is */
    struct ptx_variable **params; /* space PTX_PARAM, address = offset in the parameter block */
    uint32_t param_count;
    uint32_t param_bytes;
    struct ptx_variable **results; /* of a .func */
    uint32_t result_count;
    struct ptx_register *registers;
    uint32_t register_count;
    struct ptx_variable **variables; /* declared inside: .shared, .local, .param of calls */
    uint32_t variable_count;
    struct ptx_instruction *code;
    uint32_t code_count;
    /* performance directives; 0: not given */
    uint32_t maxntid[3], reqntid[3], reqnctapercluster[3];
    uint32_t minnctapersm, maxnreg, maxclusterrank;
    bool explicitcluster, blocksareclusters;
};

struct ptx_module {
    struct arena *arena;
    uint32_t version;      /* 90 for .version 9.0 */
    uint32_t target;       /* 80 for sm_80 */
    char target_suffix;    /* 'a' for sm_90a, else 0 */
    uint32_t address_size; /* 64 */
    struct ptx_function **functions;
    uint32_t function_count;
    struct ptx_variable **variables; /* of the module: .global, .const, .shared */
    uint32_t variable_count;
    struct ptx_location *locations; /* [0] is unused */
    uint32_t location_count;
};

/* Why a module cannot be used; line 0: no line in particular. */
struct ptx_error {
    uint32_t line, column;
    char text[256];
};

/* Parses `size` bytes of PTX, which end with a 0 that is not counted. NULL and the error: the text
 * names what was found and what was expected. Never reads beyond the text, never recurses without
 * bound, never allocates more than a small multiple of its size. */
struct ptx_module *ptx_parse(const char *text, size_t size, struct ptx_error *error);
/* Likewise, but a statement that cannot be parsed becomes an instruction PTX_UNKNOWN whose only
 * modifier is the reason, and a declaration that cannot be is left out. */
struct ptx_module *ptx_parse_known(const char *text, size_t size, struct ptx_error *error);
#define PTX_UNKNOWN "unknown"
void ptx_free(struct ptx_module *module);

/* The innermost location outside of such headers, of the chain that begins at `index`; without one
 * index. */
uint32_t ptx_user_location(const struct ptx_module *module, uint32_t index);

/* The line of the text at fault with a caret below the column, as two lines; for messages. */
size_t ptx_caret(const char *text, size_t size, uint32_t line, uint32_t column, char *buffer,
                 size_t buffer_size);

/* Whether the instruction has the modifier. */
bool ptx_has(const struct ptx_instruction *in, const char *modifier);
/* The index-th modifier that is a type (from 0); PTX_NONE: there are fewer. */
enum ptx_type ptx_modifier_type(const struct ptx_instruction *in, uint32_t index);

/* flow.c: marks has a flag for each register of the function.
 * Marks the registers of an operand; true: some were not marked yet. */
bool ptx_mark(const struct ptx_operand *operand, bool *marks);
/* Whether the instruction's result is a marked register. */
bool ptx_writes(const struct ptx_instruction *in, const bool *marks);
/* Marks also what the marked registers are computed from, by instructions that `passes` accepts. */
void ptx_trace(const struct ptx_function *f, bool *marks,
               bool (*passes)(const struct ptx_instruction *in));

#endif /* VGPU_PTX_PTX_H */
