/* SPDX-License-Identifier: Apache-2.0
 *
 * budgets.c - see budgets.h.
 */
#include "stages/inspect/budgets.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/message.h"

enum { DTYPES = 2, ARCHS = 2 };

static const struct {
    const char *family, *tile, *archs;
    int64_t registers, tensor_ops;
} LINES[] = {
#define BUDGET(family, tile, archs, registers, tensor_ops)                                         \
    {#family, #tile, #archs, registers, tensor_ops},
#include "stages/inspect/budgets.def"
#undef BUDGET
};
enum { LINE_COUNT = sizeof LINES / sizeof *LINES };

bool budgets_built_in(struct budgets *budgets, attn_error *why) {
    static const char *const NAMES[DTYPES] = {"fp16", "bf16"};
    *budgets =
        (struct budgets){.lines = calloc(LINE_COUNT, DTYPES * ARCHS * sizeof *budgets->lines)};
    if (budgets->lines == NULL) {
        return explain(why, "out of memory for the budgets");
    }
    for (int i = 0; i < LINE_COUNT * DTYPES; i++) {
        char archs[ARCHS][16];
        const int line = i / DTYPES;
        const int count = sscanf(LINES[line].archs, "%15s %15s", archs[0], archs[1]);
        for (int j = 0; j < count; j++) {
            struct budget *budget = &budgets->lines[budgets->count++];
            budget->registers = LINES[line].registers;
            budget->tensor_ops = LINES[line].tensor_ops;
            memcpy(budget->arch, archs[j], sizeof budget->arch);
            snprintf(budget->variant, sizeof budget->variant, "%s_%s_%s", LINES[line].family,
                     NAMES[i % DTYPES], LINES[line].tile);
        }
    }
    return true;
}

void budgets_free(struct budgets *budgets) {
    free(budgets->lines);
    *budgets = (struct budgets){0};
}

const struct budget *budgets_find(const struct budgets *budgets, const char *variant,
                                  const char *arch) {
    for (size_t i = 0; i < budgets->count; i++) {
        const struct budget *line = &budgets->lines[i];
        if (strcmp(line->variant, variant) == 0 && strcmp(line->arch, arch) == 0) {
            return line;
        }
    }
    return NULL;
}
