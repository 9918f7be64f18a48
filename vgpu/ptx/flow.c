/* SPDX-License-Identifier: Apache-2.0
 *
 * flow.c - which registers a value is computed from, without regard to the order of instructions.
 *
 * The first operand of an instruction is its result if it is a register, a vector or a pair; all
 * others, and the registers inside an address, are sources.
 *
 * Invariant: the set of marked registers only grows, so tracing ends.
 */
#include "ptx/ptx.h"

static bool is_result(const struct ptx_operand *operand) {
    return operand->kind == PTX_OPERAND_REGISTER || operand->kind == PTX_OPERAND_VECTOR ||
           operand->kind == PTX_OPERAND_PAIR;
}

static bool names_marked(const struct ptx_operand *operand, const bool *marks) {
    bool found = operand->kind == PTX_OPERAND_REGISTER && marks[operand->reg];
    for (uint32_t i = 0; !found && i < operand->part_count; i++) {
        found = names_marked(&operand->parts[i], marks);
    }
    return found;
}

bool ptx_mark(const struct ptx_operand *operand, bool *marks) {
    bool news = false;
    if (operand->kind == PTX_OPERAND_REGISTER && !marks[operand->reg]) {
        marks[operand->reg] = news = true;
    }
    for (uint32_t i = 0; i < operand->part_count; i++) {
        news = ptx_mark(&operand->parts[i], marks) || news;
    }
    return news;
}

bool ptx_writes(const struct ptx_instruction *in, const bool *marks) {
    return in->operand_count > 0 && is_result(&in->operands[0]) &&
           names_marked(&in->operands[0], marks);
}

void ptx_trace(const struct ptx_function *f, bool *marks,
               bool (*passes)(const struct ptx_instruction *in)) {
    bool news = true;
    while (news) {
        news = false;
        for (uint32_t i = f->code_count; i > 0; i--) { /* definitions come before uses, mostly */
            const struct ptx_instruction *in = &f->code[i - 1];
            if (!passes(in) || !ptx_writes(in, marks)) {
                continue;
            }
            for (uint32_t o = 1; o < in->operand_count; o++) {
                news = ptx_mark(&in->operands[o], marks) || news;
            }
            if (in->guard >= 0 && !marks[in->guard]) {
                marks[in->guard] = news = true;
            }
        }
    }
}
