/* SPDX-License-Identifier: Apache-2.0
 *
 * ptxas_log.c - see ptxas_log.h.
 */
#include "stages/inspect/ptxas_log.h"

#include <ctype.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/message.h"

enum { LINE_MAX_BYTES = 512 };

/* The start of the line behind the one at `text`; NULL behind the last. */
static const char *next_line(const char *text) {
    const char *end = strchr(text, '\n');
    return end == NULL || end[1] == '\0' ? NULL : end + 1;
}

/* Copies the line at `text`; false where it is longer than any line of interest. */
static bool copy_line(const char *text, char line[LINE_MAX_BYTES]) {
    size_t length = strcspn(text, "\n");
    if (length >= LINE_MAX_BYTES) {
        return false;
    }
    memcpy(line, text, length);
    while (length > 0 && line[length - 1] == '\r') {
        length--;
    }
    line[length] = '\0';
    return true;
}

/* The line behind the one that ends with `text`, beginning at `log`; NULL if there is none. */
static const char *line_behind(const char *log, const char *text) {
    char line[LINE_MAX_BYTES];
    const size_t length = strlen(text);
    for (const char *at = log; at != NULL; at = next_line(at)) {
        if (copy_line(at, line) && strlen(line) >= length &&
            strcmp(line + strlen(line) - length, text) == 0) {
            return next_line(at);
        }
    }
    return NULL;
}

/* The number that stands before `unit` ("bytes smem"); -1 if the line has none. */
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
    return count >= 1 && count <= 10 ? (int64_t)strtoll(digits, NULL, 10) : -1;
}

static bool read_hash(const char *log, char hash[SHA256_TEXT], attn_error *why) {
    static const char head[] = "sha256 ";
    enum { DIGITS = SHA256_TEXT - 1 };
    const char *digits = log + strlen(head);
    if (strncmp(log, head, strlen(head)) != 0 || strspn(digits, "0123456789abcdef") != DIGITS ||
        (digits[DIGITS] != '\n' && digits[DIGITS] != '\r')) {
        return explain(why, "the log does not begin with \"sha256 \" and 64 digits");
    }
    memcpy(hash, digits, DIGITS);
    hash[DIGITS] = '\0';
    return true;
}

static bool read_spills(const char *block, const char *entry, struct ptxas_figures *figures,
                        attn_error *why) {
    char text[LINE_MAX_BYTES], line[LINE_MAX_BYTES];
    snprintf(text, sizeof text, "Function properties for %s", entry);
    const char *at = line_behind(block, text);
    if (at == NULL || !copy_line(at, line)) {
        return explain(why, "the log has no \"%.160s\"", text);
    }
    figures->frame_bytes = number_before(line, "bytes stack frame");
    figures->spill_stores = number_before(line, "bytes spill stores");
    figures->spill_loads = number_before(line, "bytes spill loads");
    if (figures->frame_bytes < 0 || figures->spill_stores < 0 || figures->spill_loads < 0) {
        return explain(why, "the log says \"%.160s\" of %.64s, expected stack frame and spills",
                       line, entry);
    }
    return true;
}

static int64_t zero_if_absent(int64_t number) {
    return number < 0 ? 0 : number;
}

/* The first "Used ..." behind the kernel's heading and before the next one's. */
static bool read_use(const char *block, const char *entry, struct ptxas_figures *figures,
                     attn_error *why) {
    char line[LINE_MAX_BYTES];
    for (const char *at = block; at != NULL; at = next_line(at)) {
        if (!copy_line(at, line)) {
            continue;
        }
        if (strstr(line, "Compiling entry function") != NULL) {
            break;
        }
        const char *used = strstr(line, ": Used ");
        if (used == NULL) {
            continue;
        }
        figures->registers = number_before(used, "registers");
        figures->barriers = zero_if_absent(number_before(used, "barriers"));
        figures->shared_bytes = zero_if_absent(number_before(used, "bytes smem"));
        figures->cumulative_bytes =
            zero_if_absent(number_before(used, "bytes cumulative stack size"));
        return figures->registers >= 0 ||
               explain(why, "the log says \"%.160s\" of %.64s, expected registers", line, entry);
    }
    return explain(why, "the log does not say what %.64s uses; was ptxas called with -v?", entry);
}

bool ptxas_log_read(const char *log, const char *entry, const char *arch,
                    struct ptxas_figures *figures, attn_error *why) {
    memset(figures, 0, sizeof *figures);
    if (!read_hash(log, figures->sha256, why)) {
        return false;
    }
    char heading[LINE_MAX_BYTES];
    snprintf(heading, sizeof heading, "Compiling entry function '%s' for '%s'", entry, arch);
    const char *block = line_behind(log, heading);
    if (block == NULL) {
        return explain(why, "the log has no \"%.160s\"", heading);
    }
    return read_spills(block, entry, figures, why) && read_use(block, entry, figures, why);
}
