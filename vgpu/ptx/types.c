/* SPDX-License-Identifier: Apache-2.0
 *
 * types.c - types by name; queries about instructions and positions in the text.
 *
 * Invariant: the table has one row for each type, in the order of enum ptx_type.
 */
#include "ptx/ptx.h"

#include <stdio.h>
#include <string.h>

static const struct {
    char name[8];
    uint32_t size;
} TYPES[PTX_TYPE_COUNT] = {
    [PTX_PRED] = {"pred", 0},     [PTX_B8] = {"b8", 1},     [PTX_B16] = {"b16", 2},
    [PTX_B32] = {"b32", 4},       [PTX_B64] = {"b64", 8},   [PTX_B128] = {"b128", 16},
    [PTX_U8] = {"u8", 1},         [PTX_U16] = {"u16", 2},   [PTX_U32] = {"u32", 4},
    [PTX_U64] = {"u64", 8},       [PTX_S8] = {"s8", 1},     [PTX_S16] = {"s16", 2},
    [PTX_S32] = {"s32", 4},       [PTX_S64] = {"s64", 8},   [PTX_F16] = {"f16", 2},
    [PTX_F16X2] = {"f16x2", 4},   [PTX_BF16] = {"bf16", 2}, [PTX_BF16X2] = {"bf16x2", 4},
    [PTX_TF32] = {"tf32", 4},     [PTX_F32] = {"f32", 4},   [PTX_F64] = {"f64", 8},
    [PTX_E4M3] = {"e4m3", 1},     [PTX_E5M2] = {"e5m2", 1}, [PTX_E4M3X2] = {"e4m3x2", 2},
    [PTX_E5M2X2] = {"e5m2x2", 2},
};

enum ptx_type ptx_type_named(const char *name) {
    for (enum ptx_type type = PTX_PRED; type < PTX_TYPE_COUNT; type++) {
        if (TYPES[type].name[0] == name[0] && strcmp(TYPES[type].name, name) == 0) {
            return type;
        }
    }
    return PTX_NONE;
}

const char *ptx_type_name(enum ptx_type type) {
    return TYPES[type].name;
}

uint32_t ptx_type_size(enum ptx_type type) {
    return TYPES[type].size;
}

bool ptx_has(const struct ptx_instruction *in, const char *modifier) {
    for (uint32_t i = 0; i < in->modifier_count; i++) {
        if (strcmp(in->modifiers[i], modifier) == 0) {
            return true;
        }
    }
    return false;
}

enum ptx_type ptx_modifier_type(const struct ptx_instruction *in, uint32_t index) {
    for (uint32_t i = 0; i < in->modifier_count; i++) {
        const enum ptx_type type = ptx_type_named(in->modifiers[i]);
        if (type != PTX_NONE && index-- == 0) {
            return type;
        }
    }
    return PTX_NONE;
}

/* ---- the caret ------------------------------------------------------------------------------- */

/* Of a byte of the text: unprintable ones would let it draw over the terminal. */
static char shown(char c) {
    return c == '\t' || (c >= ' ' && c <= '~') ? c : '?';
}

size_t ptx_caret(const char *text, size_t size, uint32_t line, uint32_t column, char *buffer,
                 size_t buffer_size) {
    enum { BEFORE = 60, SHOWN = 90 }; /* of a line, with the column in it */
    char part[SHOWN + 1] = "", blanks[BEFORE + 1] = "";
    const char *start = text, *end = text + size;
    for (uint32_t i = 1; i < line && start; i++) {
        const char *newline = memchr(start, '\n', (size_t)(end - start));
        start = newline ? newline + 1 : NULL;
    }
    if (!start || line == 0 || column == 0 || buffer_size == 0) {
        if (buffer_size > 0) {
            *buffer = '\0';
        }
        return 0;
    }
    const char *newline = memchr(start, '\n', (size_t)(end - start));
    size_t length = (size_t)((newline ? newline : end) - start);
    length -= length > 0 && start[length - 1] == '\r';
    const size_t caret = column - 1 < length ? column - 1 : length;
    const size_t from = caret > BEFORE ? caret - BEFORE : 0;
    for (size_t i = from; i < length && i < from + SHOWN; i++) {
        part[i - from] = shown(start[i]);
    }
    for (size_t i = from; i < caret; i++) {
        blanks[i - from] = start[i] == '\t' ? '\t' : ' ';
    }
    const int written = snprintf(buffer, buffer_size, "%s\n%s^\n", part, blanks);
    return (size_t)written < buffer_size ? (size_t)written : buffer_size - 1;
}
