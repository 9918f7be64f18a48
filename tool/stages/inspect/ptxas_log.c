/* SPDX-License-Identifier: Apache-2.0
 *
 * ptxas_log.c - see ptxas_log.h.
 */
#include "stages/inspect/ptxas_log.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/message.h"

enum { LINE = 512 };

/* The line at `text`, cut to fit. */
static void copy_line(const char *text, char line[LINE]) {
    const size_t length = strcspn(text, "\r\n");
    snprintf(line, LINE, "%.*s", (int)(length < LINE ? length : LINE - 1), text);
}

/* The number before `unit` ("bytes smem") in a line; -1: there is none. */
static int64_t number_before(const char *line, const char *unit) {
    const char *found = strstr(line, unit);
    if (found == NULL || found == line || found[-1] != ' ') {
        return -1;
    }
    const char *digits = found - 1;
    while (digits > line && isdigit((unsigned char)digits[-1])) {
        digits--;
    }
    const ptrdiff_t count = found - 1 - digits;
    const bool negative = digits > line && digits[-1] == '-';
    return count >= 1 && count <= 10 && !negative ? (int64_t)strtoll(digits, NULL, 10) : -1;
}

static int64_t zero_if_absent(int64_t number) {
    return number < 0 ? 0 : number;
}

static bool read_hash(const char *log, char hash[SHA256_TEXT], attn_error *why) {
    int end = 0;
    sscanf(log, "sha256 %64[0-9a-f]%n", hash, &end);
    return (end == (int)strlen("sha256 ") + SHA256_TEXT - 1 && log[end] == '\n') ||
           explain(why, "the log does not begin with \"sha256 \" and 64 digits");
}

bool ptxas_log_read(const char *log, const char *entry, const char *arch,
                    struct ptxas_figures *figures, attn_error *why) {
    char text[LINE], line[LINE];
    memset(figures, 0, sizeof *figures);
    if (!read_hash(log, figures->sha256, why)) {
        return false;
    }
    snprintf(text, sizeof text, "Compiling entry function '%s' for '%s'\n", entry, arch);
    const char *block = strstr(log, text);
    if (block == NULL) {
        return explain(why, "the log has no \"%.*s\"", (int)strlen(text) - 1, text);
    }
    block += strlen(text);
    const char *next = strstr(block, "Compiling entry function");
    snprintf(text, sizeof text, "Function properties for %s\n", entry);
    const char *properties = strstr(block, text);
    if (properties == NULL || (next != NULL && properties > next)) {
        return explain(why, "the log has no \"%.*s\"", (int)strlen(text) - 1, text);
    }
    copy_line(properties + strlen(text), line);
    figures->frame_bytes = number_before(line, "bytes stack frame");
    figures->spill_stores = number_before(line, "bytes spill stores");
    figures->spill_loads = number_before(line, "bytes spill loads");
    if (figures->frame_bytes < 0 || figures->spill_stores < 0 || figures->spill_loads < 0) {
        return explain(why, "the log says \"%.160s\" of %.64s, expected stack frame and spills",
                       line, entry);
    }
    const char *used = strstr(properties, ": Used ");
    if (used == NULL || (next != NULL && used > next)) {
        return explain(why, "the log does not say what %.64s uses; was ptxas called with -v?",
                       entry);
    }
    copy_line(used, line);
    figures->registers = number_before(line, "registers");
    figures->barriers = zero_if_absent(number_before(line, "barriers"));
    figures->shared_bytes = zero_if_absent(number_before(line, "bytes smem"));
    return figures->registers >= 0 ||
           explain(why, "the log says \"%.160s\" of %.64s, expected registers", line, entry);
}
