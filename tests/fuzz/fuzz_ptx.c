/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_ptx.c - any bytes as PTX: a module that is well formed as ptx.h promises, or one sentence
 * with a place in the text. The parser sees the bytes in memory that ends where they end.
 *
 * Seeds are in tests/data/fuzz_ptx.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz/fuzz.h"
#include "vgpu/ptx/ptx.h"

static bool is_name(const char *name) {
    return name && name[0] != '\0';
}

static void look_at_operand(const struct ptx_function *function, const struct ptx_operand *operand,
                            int depth) {
    HOLDS(depth < 4);
    switch (operand->kind) {
    case PTX_OPERAND_REGISTER: HOLDS(operand->reg < function->register_count); break;
    case PTX_OPERAND_LABEL:
        HOLDS(operand->value >= 0 && operand->value < (int64_t)function->code_count);
        break;
    case PTX_OPERAND_VARIABLE: HOLDS(operand->variable && is_name(operand->variable->name)); break;
    case PTX_OPERAND_SPECIAL:
    case PTX_OPERAND_FUNCTION: HOLDS(is_name(operand->name)); break;
    case PTX_OPERAND_PAIR: HOLDS(operand->part_count == 2); break;
    case PTX_OPERAND_ADDRESS: HOLDS(operand->part_count >= 1); break;
    case PTX_OPERAND_INTEGER:
    case PTX_OPERAND_F32:
    case PTX_OPERAND_F64:
    case PTX_OPERAND_VECTOR:
    case PTX_OPERAND_LIST:
    case PTX_OPERAND_SINK: break;
    default: HOLDS(!"a kind of operand");
    }
    HOLDS(operand->part_count == 0 || operand->parts);
    for (uint32_t i = 0; i < operand->part_count; i++) {
        look_at_operand(function, &operand->parts[i], depth + 1);
    }
}

static void look_at_variables(struct ptx_variable *const *variables, uint32_t count) {
    unsigned sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct ptx_variable *variable = variables[i];
        HOLDS(is_name(variable->name));
        HOLDS(variable->type != PTX_NONE && variable->type < PTX_TYPE_COUNT);
        HOLDS(variable->align > 0 && (variable->align & (variable->align - 1)) == 0);
        for (uint64_t at = 0; variable->init && at < variable->size && at < 4096; at++) {
            sum += variable->init[at];
        }
    }
    HOLDS(sum < UINT32_MAX);
}

static void look_at_function(const struct ptx_module *module, const struct ptx_function *function) {
    HOLDS(is_name(function->name));
    HOLDS(!function->external || function->code_count == 0);
    look_at_variables(function->params, function->param_count);
    look_at_variables(function->results, function->result_count);
    look_at_variables(function->variables, function->variable_count);
    for (uint32_t i = 0; i < function->param_count; i++) {
        const struct ptx_variable *param = function->params[i];
        HOLDS(param->address % param->align == 0);
        HOLDS(param->address + param->size <= function->param_bytes);
    }
    for (uint32_t i = 0; i < function->register_count; i++) {
        HOLDS(is_name(function->registers[i].name) && function->registers[i].type != PTX_NONE);
    }
    for (uint32_t i = 0; i < function->code_count; i++) {
        const struct ptx_instruction *in = &function->code[i];
        HOLDS(is_name(in->opcode) && in->line > 0 && in->column > 0);
        HOLDS(in->modifier_count <= PTX_MAX_MODIFIERS && in->operand_count <= PTX_MAX_OPERANDS);
        HOLDS(in->guard < (int64_t)function->register_count);
        HOLDS(in->location == 0 || in->location < module->location_count);
        HOLDS(ptx_modifier_type(in, PTX_MAX_MODIFIERS) == PTX_NONE);
        for (uint32_t j = 0; j < in->operand_count; j++) {
            look_at_operand(function, &in->operands[j], 0);
        }
    }
}

static void look_at_module(const struct ptx_module *module) {
    HOLDS(module->version > 0 && module->target > 0 && module->address_size == 64);
    look_at_variables(module->variables, module->variable_count);
    for (uint32_t i = 0; i < module->function_count; i++) {
        look_at_function(module, module->functions[i]);
    }
    for (uint32_t i = 1; i < module->location_count; i++) {
        HOLDS(module->locations[i].inlined_at < i);
        HOLDS(module->locations[i].file);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *text = malloc(size + 1);
    struct ptx_error error;
    char caret[256];
    if (!text) {
        return 0;
    }
    if (size > 0) {
        memcpy(text, data, size);
    }
    text[size] = '\0';
    struct ptx_module *module = ptx_parse_known(text, size, &error);
    if (module) {
        look_at_module(module);
        ptx_free(module);
    }
    const bool known = module != NULL;
    module = ptx_parse(text, size, &error);
    HOLDS(known || !module);
    if (module) {
        look_at_module(module);
        ptx_free(module);
    } else {
        HOLDS(error.text[0] != '\0' && error.line > 0 && error.column > 0);
        const size_t length = ptx_caret(text, size, error.line, error.column, caret, sizeof caret);
        HOLDS(length > 0 && caret[length] == '\0');
        HOLDS(caret[length - 1] == '\n' && caret[length - 2] == '^');
    }
    free(text);
    return 0;
}
