/* SPDX-License-Identifier: Apache-2.0
 *
 * budgets.c - see budgets.h.
 */
#include "stages/inspect/budgets.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/message.h"

enum { REGISTERS_MAX = 255, LINE_MAX_BYTES = 256 };
static const char DTYPE[] = "DTYPE";

/* As it is written, of several variants and architectures. */
struct budget_line {
    char variant[96], archs[48];
    int64_t registers, tensor_ops;
};

/* Zero lines in the file must compile too, hence the end mark. */
static const struct budget_line BUILT_IN[] = {
#define BUDGET(variant, archs, registers, tensor_ops) {#variant, #archs, registers, tensor_ops},
#include "stages/inspect/budgets.def"
#undef BUDGET
    {"", "", 0, 0},
};

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

static void name_variant(char *name, size_t size, const char *text, const char *dtype) {
    const char *rest = strstr(text, DTYPE);
    if (rest == NULL) {
        snprintf(name, size, "%s", text);
    } else {
        snprintf(name, size, "%.*s%s%s", (int)(rest - text), text, dtype, rest + strlen(DTYPE));
    }
}

static bool add_one(struct budgets *budgets, const struct budget *line, attn_error *why) {
    if (line->registers < 1 || line->registers > REGISTERS_MAX || line->tensor_ops < 0) {
        return explain(why,
                       "%s, %s: %" PRId64 " registers, %" PRId64
                       " tensor_ops, expected 1 to %d and at least 0",
                       line->variant, line->arch, line->registers, line->tensor_ops, REGISTERS_MAX);
    }
    if (budgets_find(budgets, line->variant, line->arch) != NULL) {
        return explain(why, "%s has two lines for %s", line->variant, line->arch);
    }
    struct budget *grown = realloc(budgets->lines, (budgets->count + 1) * sizeof *grown);
    if (grown == NULL) {
        return explain(why, "out of memory for %zu budgets", budgets->count + 1);
    }
    grown[budgets->count++] = *line;
    budgets->lines = grown;
    return true;
}

/* Each of its dtypes and architectures. */
static bool add(struct budgets *budgets, const struct budget_line *line, attn_error *why) {
    static const char *const NAMES[] = {"fp16", "bf16"};
    const int dtypes = strstr(line->variant, DTYPE) != NULL ? 2 : 1;
    bool good = true;
    for (const char *arch = line->archs; good && *arch != '\0'; arch += strspn(arch, " ")) {
        struct budget one = {.registers = line->registers, .tensor_ops = line->tensor_ops};
        const size_t length = strcspn(arch, " ");
        snprintf(one.arch, sizeof one.arch, "%.*s", (int)length, arch);
        for (int i = 0; good && i < dtypes; i++) {
            name_variant(one.variant, sizeof one.variant, line->variant, NAMES[i]);
            good = add_one(budgets, &one, why);
        }
        arch += length;
    }
    return good;
}

bool budgets_built_in(struct budgets *budgets, attn_error *why) {
    *budgets = (struct budgets){0};
    for (const struct budget_line *line = BUILT_IN; line->variant[0] != '\0'; line++) {
        if (!add(budgets, line, why)) {
            budgets_free(budgets);
            return false;
        }
    }
    return true;
}

static bool read_line(const char *text, int number, struct budgets *budgets, attn_error *why) {
    struct budget_line line;
    int end = -1;
    /* %n is reached only where everything before it matched. */
    sscanf(text, "BUDGET(%95[A-Za-z0-9_], %47[a-z0-9_ ], %4" SCNd64 ", %9" SCNd64 ")%n",
           line.variant, line.archs, &line.registers, &line.tensor_ops, &end);
    if (end < 0 || text[end + (int)strspn(text + end, " \r\n")] != '\0') {
        return explain(why,
                       "line %d: \"%.*s\", expected BUDGET(variant, archs, registers, tensor_ops)",
                       number, (int)strcspn(text, "\r\n"), text);
    }
    return add(budgets, &line, why);
}

/* Lines from one that begins a C comment to the one that ends it are skipped; every other line is
 * empty or a BUDGET. */
bool budgets_read(FILE *in, struct budgets *budgets, attn_error *why) {
    *budgets = (struct budgets){0};
    char text[LINE_MAX_BYTES];
    bool good = true;
    bool comment = false;
    for (int number = 1; good && fgets(text, sizeof text, in) != NULL; number++) {
        comment = comment || strncmp(text, "/*", 2) == 0;
        if (!comment && text[strspn(text, " \t\r\n")] != '\0') {
            good = read_line(text, number, budgets, why);
        }
        comment = comment && strstr(text, "*/") == NULL;
    }
    if (good && ferror(in)) {
        good = explain(why, "cannot read: %s", strerror(errno));
    }
    if (good && budgets->count == 0) {
        good = explain(why, "there is no BUDGET line in it");
    }
    if (!good) {
        budgets_free(budgets);
    }
    return good;
}
