/* SPDX-License-Identifier: Apache-2.0
 *
 * decode_operand.c - operands become offsets of rows: registers, constants, special registers,
 * addresses.
 */
#include "ops/decoder.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ROW_BYTES = 64 << 20 }; /* of a warp: a hostile module must not eat the machine */

bool decode_fail(struct decoder *decoder, const char *format, ...) {
    if (decoder->failed) {
        return false; /* the first reason is the good one */
    }
    decoder->failed = true;
    struct ptx_error *error = decoder->error;
    error->line = decoder->in != NULL ? decoder->in->line : decoder->function->line;
    error->column = decoder->in != NULL ? decoder->in->column : 0;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->text, sizeof error->text, format, arguments);
    va_end(arguments);
    return false;
}

void *decode_alloc(struct decoder *decoder, size_t size) {
    void *memory = arena_alloc(decoder->module->ptx->arena, size);
    if (memory == NULL) {
        decode_fail(decoder, "no memory to decode this");
    }
    return memory;
}

const struct ptx_function *decode_current(const struct decoder *decoder) {
    return decoder->function;
}

const struct ptx_module *decode_module(const struct decoder *decoder) {
    return decoder->module->ptx;
}

bool is_listed(const char *list, const char *word) {
    const size_t length = strlen(word);
    for (const char *at = strstr(list, word); at != NULL; at = strstr(at + 1, word)) {
        if ((at == list || at[-1] == ' ') && (at[length] == ' ' || at[length] == '\0')) {
            return true;
        }
    }
    return false;
}

/* The first modifier from number `from` on that is not allowed; NULL: there is none. */
static const char *stranger(const struct ptx_instruction *in, uint32_t from, const char *allowed) {
    for (uint32_t i = from; i < in->modifier_count; i++) {
        const char *name = in->modifiers[i];
        if (!is_listed(allowed, name) && (allowed[0] != '*' || ptx_type_named(name) == PTX_NONE)) {
            return name;
        }
    }
    return NULL;
}

bool only_modifiers(const struct ptx_instruction *in, const char *allowed) {
    return stranger(in, 0, allowed) == NULL;
}

bool decode_modifiers(struct decoder *decoder, const struct ptx_instruction *in, uint32_t from,
                      const char *allowed) {
    const char *name = stranger(in, from, allowed);
    return name == NULL || decode_fail(decoder, "%s does not take .%s here", in->opcode, name);
}

bool decode_choice(const struct ptx_instruction *in, const char *const *names, uint32_t *index) {
    for (uint32_t i = 0; names[i] != NULL; i++) {
        if (ptx_has(in, names[i])) {
            *index = i;
            return true;
        }
    }
    return false;
}

/* ---- rows ------------------------------------------------------------------------------------ */

uint32_t decode_lane_bytes(enum ptx_type type) {
    const uint32_t size = ptx_type_size(type);
    return size <= 2 ? 2 : size;
}

uint32_t decode_new_row(struct decoder *decoder, uint32_t width) {
    struct kernel *kernel = decoder->kernel;
    const uint32_t row = kernel->row_bytes;
    if (row > MAX_ROW_BYTES) {
        decode_fail(decoder, "more registers and constants than %d MB hold", MAX_ROW_BYTES >> 20);
        return 0;
    }
    kernel->row_bytes += width * LANES;
    return row;
}

static uint32_t slot_of(const struct decoder *decoder, uint64_t bits, uint32_t width) {
    uint64_t hash = (bits ^ width) * 0x9e3779b97f4a7c15U;
    hash ^= hash >> 32;
    uint32_t slot = (uint32_t)hash & (decoder->constant_slots - 1);
    while (decoder->constants[slot].width != 0 &&
           (decoder->constants[slot].bits != bits || decoder->constants[slot].width != width)) {
        slot = (slot + 1) & (decoder->constant_slots - 1);
    }
    return slot;
}

static bool grow_constants(struct decoder *decoder) {
    struct constant *old = decoder->constants;
    const uint32_t count = decoder->constant_slots;
    struct constant *grown = calloc(2 * (size_t)count, sizeof *grown);
    if (grown == NULL) {
        return decode_fail(decoder, "no memory for constants");
    }
    decoder->constants = grown;
    decoder->constant_slots = 2 * count;
    for (uint32_t i = 0; i < count; i++) {
        if (old[i].width != 0) {
            grown[slot_of(decoder, old[i].bits, old[i].width)] = old[i];
        }
    }
    free(old);
    return true;
}

uint32_t decode_constant(struct decoder *decoder, uint64_t bits, uint32_t width) {
    if (width < 8) {
        bits &= (1ULL << (8 * width)) - 1;
    }
    uint32_t slot = slot_of(decoder, bits, width);
    if (decoder->constants[slot].width == 0) {
        if (2 * decoder->constant_count >= decoder->constant_slots) {
            if (!grow_constants(decoder)) {
                return 0;
            }
            slot = slot_of(decoder, bits, width);
        }
        const uint32_t row = decode_new_row(decoder, width);
        if (row == 0) {
            return 0;
        }
        decoder->constants[slot] = (struct constant){bits, width, row};
        decoder->constant_count++;
    }
    return decoder->constants[slot].row;
}

/* ---- special registers ----------------------------------------------------------------------- */

static const struct {
    const char *name;
    enum special_register which;
    uint32_t width;
} SPECIALS[] = {
    {"%tid.x", SPECIAL_TID_X, 4},
    {"%tid.y", SPECIAL_TID_Y, 4},
    {"%tid.z", SPECIAL_TID_Z, 4},
    {"%ntid.x", SPECIAL_NTID_X, 4},
    {"%ntid.y", SPECIAL_NTID_Y, 4},
    {"%ntid.z", SPECIAL_NTID_Z, 4},
    {"%ctaid.x", SPECIAL_CTAID_X, 4},
    {"%ctaid.y", SPECIAL_CTAID_Y, 4},
    {"%ctaid.z", SPECIAL_CTAID_Z, 4},
    {"%nctaid.x", SPECIAL_NCTAID_X, 4},
    {"%nctaid.y", SPECIAL_NCTAID_Y, 4},
    {"%nctaid.z", SPECIAL_NCTAID_Z, 4},
    {"%laneid", SPECIAL_LANEID, 4},
    {"%warpid", SPECIAL_WARPID, 4},
    {"%nwarpid", SPECIAL_NWARPID, 4},
    {"%smid", SPECIAL_SMID, 4},
    {"%nsmid", SPECIAL_NSMID, 4},
    {"%gridid", SPECIAL_GRIDID, 8},
    {"%lanemask_eq", SPECIAL_LANEMASK_EQ, 4},
    {"%lanemask_le", SPECIAL_LANEMASK_LE, 4},
    {"%lanemask_lt", SPECIAL_LANEMASK_LT, 4},
    {"%lanemask_ge", SPECIAL_LANEMASK_GE, 4},
    {"%lanemask_gt", SPECIAL_LANEMASK_GT, 4},
    {"%clusterid.x", SPECIAL_CLUSTERID_X, 4},
    {"%clusterid.y", SPECIAL_CLUSTERID_Y, 4},
    {"%clusterid.z", SPECIAL_CLUSTERID_Z, 4},
    {"%nclusterid.x", SPECIAL_NCLUSTERID_X, 4},
    {"%nclusterid.y", SPECIAL_NCLUSTERID_Y, 4},
    {"%nclusterid.z", SPECIAL_NCLUSTERID_Z, 4},
    {"%cluster_ctaid.x", SPECIAL_CLUSTER_CTAID_X, 4},
    {"%cluster_ctaid.y", SPECIAL_CLUSTER_CTAID_Y, 4},
    {"%cluster_ctaid.z", SPECIAL_CLUSTER_CTAID_Z, 4},
    {"%cluster_nctaid.x", SPECIAL_CLUSTER_NCTAID_X, 4},
    {"%cluster_nctaid.y", SPECIAL_CLUSTER_NCTAID_Y, 4},
    {"%cluster_nctaid.z", SPECIAL_CLUSTER_NCTAID_Z, 4},
    {"%cluster_ctarank", SPECIAL_CLUSTER_CTARANK, 4},
    {"%cluster_nctarank", SPECIAL_CLUSTER_NCTARANK, 4},
    {"%is_explicit_cluster", SPECIAL_IS_EXPLICIT_CLUSTER, 4}, /* in a predicate: move.c */
    {"%dynamic_smem_size", SPECIAL_DYNAMIC_SMEM_SIZE, 4},
    {"%total_smem_size", SPECIAL_TOTAL_SMEM_SIZE, 4},
    {"%clock", SPECIAL_CLOCK, 4},
    {"%clock_hi", SPECIAL_CLOCK_HI, 4},
    {"%clock64", SPECIAL_CLOCK64, 8},
    {"%globaltimer", SPECIAL_GLOBALTIMER, 8},
    {"%globaltimer_lo", SPECIAL_GLOBALTIMER_LO, 4},
    {"%globaltimer_hi", SPECIAL_GLOBALTIMER_HI, 4},
    {"%envreg1", SPECIAL_ENVREG1, 4},
    {"%envreg2", SPECIAL_ENVREG2, 4},
};

static uint32_t special_row(struct decoder *decoder, const char *name, enum ptx_type type) {
    for (size_t i = 0; i < sizeof SPECIALS / sizeof SPECIALS[0]; i++) {
        if (strcmp(SPECIALS[i].name, name) != 0) {
            continue;
        }
        if (decode_lane_bytes(type) != SPECIALS[i].width) {
            decode_fail(decoder, "%s has %u bits, not those of this instruction's type", name,
                        8 * SPECIALS[i].width);
            return 0;
        }
        for (uint32_t s = 0; s < decoder->special_count; s++) {
            if (decoder->specials[s].which == SPECIALS[i].which) {
                return decoder->specials[s].row;
            }
        }
        const uint32_t row = decode_new_row(decoder, SPECIALS[i].width);
        decoder->specials[decoder->special_count++] =
            (struct special_row){SPECIALS[i].which, row, SPECIALS[i].width};
        return row;
    }
    const struct ptx_module *ptx = decoder->module->ptx;
    if (strcmp(name, RESERVED_SHARED) == 0 && ptx->variable_count > 0 &&
        strcmp(ptx->variables[0]->name, name) == 0 && decode_lane_bytes(type) == 4) {
        return decode_constant(decoder, ptx->variables[0]->address, 4);
    }
    decode_fail(decoder, "unknown special register %s", name);
    return 0;
}

/* ---- operands -------------------------------------------------------------------------------- */

static bool is_float(enum ptx_type type) {
    return type >= PTX_F16 && type <= PTX_F64;
}

/* Bits of a literal as a value of `type`. */
static bool literal_bits(struct decoder *decoder, const struct ptx_operand *operand,
                         enum ptx_type type, uint64_t *bits) {
    *bits = (uint64_t)operand->value;
    if (operand->kind == PTX_OPERAND_INTEGER) {
        return !is_float(type) || ptx_type_size(type) == 2 || operand->value == 0 ||
               decode_fail(decoder, "an integer literal where a floating-point one is expected");
    }
    if (operand->kind == PTX_OPERAND_F32 && (type == PTX_F64 || type == PTX_B64)) {
        return decode_fail(decoder, "a single-precision literal where 64 bits are expected");
    }
    if (operand->kind == PTX_OPERAND_F64 && ptx_type_size(type) == 4) {
        double wide;
        memcpy(&wide, &operand->value, sizeof wide);
        const float narrow = (float)wide;
        uint32_t narrow_bits;
        memcpy(&narrow_bits, &narrow, sizeof narrow_bits);
        *bits = narrow_bits;
        return true;
    }
    return ptx_type_size(type) >= 4 ||
           decode_fail(decoder, "a floating-point literal where %u bits are expected",
                       8 * ptx_type_size(type));
}

static bool takes_wider_registers(const struct ptx_instruction *in) {
    return strcmp(in->opcode, "ld") == 0 || strcmp(in->opcode, "st") == 0 ||
           strcmp(in->opcode, "ldu") == 0 || strcmp(in->opcode, "cvt") == 0;
}

static uint32_t register_row(struct decoder *decoder, uint32_t reg, enum ptx_type type) {
    const struct ptx_register *r = &decoder->function->registers[reg];
    if (r->type == PTX_PRED) {
        decode_fail(decoder, "%s is a predicate, expected a value of %u bits", r->name,
                    8 * ptx_type_size(type));
        return 0;
    }
    const uint32_t width = decode_lane_bytes(r->type), wanted = decode_lane_bytes(type);
    if (width < wanted || (width > wanted && (width > 8 || !takes_wider_registers(decoder->in)))) {
        decode_fail(decoder, "%s has %u bits, expected %u", r->name, 8 * width, 8 * wanted);
        return 0;
    }
    return decoder->places[reg];
}

static uint32_t function_row(struct decoder *decoder, const char *name, uint32_t width) {
    const struct ptx_function *function = module_function(decoder->module->ptx, name);
    if (function == NULL || function->address == 0 || width != 8) {
        decode_fail(decoder, "the address of %.100s, which has no body here or is not known", name);
        return 0;
    }
    return decode_constant(decoder, function->address, width);
}

uint32_t decode_source(struct decoder *decoder, const struct ptx_operand *operand,
                       enum ptx_type type) {
    const uint32_t width = decode_lane_bytes(type);
    uint64_t bits = 0;
    if (width > 8 && operand->kind != PTX_OPERAND_REGISTER) {
        decode_fail(decoder, "an operand of 128 bits must be a register");
        return 0;
    }
    switch (operand->kind) {
    case PTX_OPERAND_REGISTER: return register_row(decoder, operand->reg, type);
    case PTX_OPERAND_INTEGER:
    case PTX_OPERAND_F32:
    case PTX_OPERAND_F64:
        return literal_bits(decoder, operand, type, &bits) ? decode_constant(decoder, bits, width)
                                                           : 0;
    case PTX_OPERAND_SPECIAL: return special_row(decoder, operand->name, type);
    case PTX_OPERAND_VARIABLE:
        if (width < 4) {
            decode_fail(decoder, "the address of %s in %u bits", operand->variable->name,
                        8 * width);
            return 0;
        }
        return decode_constant(decoder, operand->variable->address + (uint64_t)operand->value,
                               width);
    case PTX_OPERAND_FUNCTION: return function_row(decoder, operand->name, width);
    default: decode_fail(decoder, "an operand that is no value"); return 0;
    }
}

uint32_t decode_result(struct decoder *decoder, const struct ptx_operand *operand,
                       enum ptx_type type) {
    if (operand->kind == PTX_OPERAND_SINK) {
        return decode_new_row(decoder, decode_lane_bytes(type));
    }
    if (operand->kind != PTX_OPERAND_REGISTER) {
        decode_fail(decoder, "the result must be a register");
        return 0;
    }
    return register_row(decoder, operand->reg, type);
}

uint32_t decode_width(const struct decoder *decoder, const struct ptx_operand *operand) {
    if (operand->kind != PTX_OPERAND_REGISTER) {
        return 0;
    }
    const enum ptx_type type = decoder->function->registers[operand->reg].type;
    return type == PTX_PRED ? 0 : decode_lane_bytes(type);
}

uint32_t decode_predicate(struct decoder *decoder, const struct ptx_operand *operand) {
    if (operand->kind == PTX_OPERAND_INTEGER) {
        return operand->value != 0 ? (uint32_t)PREDICATE_TRUE
                                   : (uint32_t)PREDICATE_TRUE | PREDICATE_NOT;
    }
    if (operand->kind == PTX_OPERAND_SINK) {
        return decoder->kernel->predicate_count++;
    }
    if (operand->kind != PTX_OPERAND_REGISTER ||
        decoder->function->registers[operand->reg].type != PTX_PRED) {
        decode_fail(decoder, "an operand that is no predicate where one is expected");
        return 0;
    }
    return decoder->places[operand->reg] | (operand->negated ? (uint32_t)PREDICATE_NOT : 0U);
}

bool decode_address(struct decoder *decoder, const struct ptx_operand *operand, uint32_t *row,
                    bool *narrow, int64_t *offset) {
    if (operand->kind != PTX_OPERAND_ADDRESS || operand->part_count < 1) {
        return decode_fail(decoder, "an operand that is no address where one is expected");
    }
    const struct ptx_operand *base = &operand->parts[0];
    *offset = operand->value;
    *narrow = false;
    if (base->kind == PTX_OPERAND_REGISTER) {
        const uint32_t width = decode_width(decoder, base);
        if (width != 4 && width != 8) {
            return decode_fail(decoder, "an address in a register of %u bits", 8 * width);
        }
        *narrow = width == 4;
        *row = decoder->places[base->reg];
        return true;
    }
    *row = decode_source(decoder, base, PTX_U64);
    return !decoder->failed;
}
