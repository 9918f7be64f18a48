/* SPDX-License-Identifier: Apache-2.0
 *
 * cuobjdump_log.c - see cuobjdump_log.h.
 */
#include "stages/inspect/cuobjdump_log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The line of the kernel's figures, with the blank before it; NULL: there is none. */
static const char *line_of(const char *text, const char *entry) {
    char head[192];
    snprintf(head, sizeof head, "Function %.150s:", entry);
    const char *at = strstr(text, head);
    const char *line = at != NULL ? strchr(at, '\n') : NULL;
    return line != NULL ? line + 1 : NULL;
}

/* The number behind `name` in the line; below 0: not there. */
static int64_t number_in(const char *line, const char *name) {
    const char *end = strchr(line, '\n');
    const char *value = strstr(line, name);
    return value != NULL && (end == NULL || value < end) ? strtoll(value + strlen(name), NULL, 10)
                                                         : -1;
}

/* From sm_90 on, cuobjdump counts what the driver keeps of each block, too. */
static int64_t without_kept(int64_t shared, const char *arch) {
    enum { KEPT = 1024 };
    int number = 0;
    return sscanf(arch, "sm_%d", &number) == 1 && number >= 90 ? shared - KEPT : shared;
}

bool cuobjdump_log_read(const char *text, const char *entry, const char *arch,
                        struct cuobjdump_figures *figures) {
    const char *line = line_of(text, entry);
    *figures = (struct cuobjdump_figures){-1, -1, -1};
    if (line != NULL) {
        figures->registers = number_in(line, " REG:");
        figures->stack_bytes = number_in(line, " STACK:");
        figures->shared_static = without_kept(number_in(line, " SHARED:"), arch);
    }
    return line != NULL;
}
