/* SPDX-License-Identifier: Apache-2.0
 *
 * forms.c - looks an instruction up in a table of forms and decodes its operands.
 *
 * Invariant: see forms.h.
 */
#include <string.h>

#include "ops/forms.h"

/* The character after the word in a list separated by blanks: '?', ' ' or 0; -1: not in it. */
static int after(const char *list, const char *word) {
    const size_t length = strlen(word);
    for (const char *at = list; (at = strstr(at, word)); at += length) {
        if ((at == list || at[-1] == ' ') && (at[length] == '\0' || strchr(" ?", at[length]))) {
            return at[length];
        }
    }
    return -1;
}

/* How many words of the list must be there. */
static uint32_t required(const char *list) {
    uint32_t count = 0;
    for (; *list != '\0'; list += *list == ' ') {
        list += strcspn(list, " ");
        count += list[-1] != '?';
    }
    return count;
}

bool form_modifiers(const struct ptx_instruction *in, const char *wanted, uint32_t type_count) {
    uint32_t types = 0, needed = 0;
    for (uint32_t i = 0; i < in->modifier_count; i++) {
        const char *modifier = in->modifiers[i];
        const bool is_type = ptx_type_named(modifier) != PTX_NONE;
        const int found = after(wanted, modifier);
        for (uint32_t j = 0; j < i && !is_type; j++) {
            if (strcmp(in->modifiers[j], modifier) == 0) {
                return false;
            }
        }
        if (found < 0 && !is_type) {
            return false;
        }
        types += found < 0;
        needed += found >= 0 && found != '?';
    }
    return types == type_count && needed == required(wanted);
}

uint32_t form_predicate(struct decoder *decoder, const struct ptx_operand *operand) {
    const bool fits = operand->kind == PTX_OPERAND_REGISTER || operand->kind == PTX_OPERAND_SINK;
    if (!fits || operand->negated) {
        decode_fail(decoder, "the result must be a predicate register");
        return 0;
    }
    return decode_predicate(decoder, operand);
}

bool form_unknown(struct decoder *decoder, const struct ptx_instruction *in) {
    return decode_fail(decoder, "unknown form of \"%s\"", in->opcode);
}

static enum ptx_type wide(enum ptx_type type) {
    switch (type) {
    case PTX_U16: return PTX_U32;
    case PTX_S16: return PTX_S32;
    case PTX_U32: return PTX_U64;
    case PTX_S32: return PTX_S64;
    default: return PTX_NONE;
    }
}

static enum ptx_type operand_type(char letter, enum ptx_type type) {
    switch (letter) {
    case 't': return type;
    case 'w': return wide(type);
    case 'h': return PTX_B16;
    case 'i': return PTX_B32;
    case 'l': return PTX_B64;
    default: return PTX_PRED;
    }
}

bool form_operands(struct decoder *decoder, const struct ptx_instruction *in, struct op *op,
                   const char *letters, enum ptx_type type) {
    uint32_t *const fields[] = {&op->d, &op->a, &op->b, &op->c, &op->e, &op->f};
    for (uint32_t i = 0; letters[i] != '\0'; i++) {
        const enum ptx_type want = operand_type(letters[i], type);
        if (want == PTX_PRED) {
            *fields[i] = i == 0 ? form_predicate(decoder, &in->operands[i])
                                : decode_predicate(decoder, &in->operands[i]);
            continue; /* no index says that it failed, but the decoder knows */
        }
        *fields[i] = i == 0 ? decode_result(decoder, &in->operands[i], want)
                            : decode_source(decoder, &in->operands[i], want);
        if (*fields[i] == 0) {
            return false;
        }
    }
    return true;
}

enum form_match form_decode(struct decoder *decoder, const struct ptx_instruction *in,
                            struct op *op, const struct form *forms, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const struct form *form = &forms[i];
        const enum ptx_type type = form->types == 0 ? PTX_NONE : ptx_modifier_type(in, 0);
        if (strcmp(form->opcode, in->opcode) != 0 || strlen(form->operands) != in->operand_count ||
            (form->types != 0 && (form->types >> type & 1) == 0) ||
            !form_modifiers(in, form->modifiers, form->types != 0)) {
            continue;
        }
        op->run = form->run;
        op->imm = form->imm;
        op->flags |= form->flags;
        return form_operands(decoder, in, op, form->operands, type) ? FORM_DECODED : FORM_FAILED;
    }
    return FORM_NONE;
}
