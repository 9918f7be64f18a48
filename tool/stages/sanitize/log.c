/* SPDX-License-Identifier: Apache-2.0
 *
 * log.c - see log.h.
 */
#include "stages/sanitize/log.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/message.h"

const char *const SANITIZER_TOOL_NAMES[] = {"memcheck", "racecheck", "initcheck", "synccheck",
                                            NULL};

static const char PREFIX[] = "=========";

/* How each tool begins to tell of a finding. */
static const char *const REPORTS[SANITIZER_TOOLS][2] = {
    [MEMCHECK] = {"Invalid __", "Leaked "},
    [RACECHECK] = {"Race reported between", "hazard detected at"},
    [INITCHECK] = {"Uninitialized __", "Uninitialized access"},
    [SYNCCHECK] = {"Barrier error detected", "Barrier error detected"},
};

/* ---- reading --------------------------------------------------------------------------------- */

enum summary { ERRORS, HAZARDS, LEAKS, SUMMARIES };
static const char *const TITLES[SUMMARIES] = {
    "ERROR SUMMARY: ", "RACECHECK SUMMARY: ", "LEAK SUMMARY: "};

/* The summaries that a tool ends with. */
static const unsigned NEEDED[SANITIZER_TOOLS] = {[MEMCHECK] = 1U << ERRORS | 1U << LEAKS,
                                                 [RACECHECK] = 1U << HAZARDS,
                                                 [INITCHECK] = 1U << ERRORS,
                                                 [SYNCCHECK] = 1U << ERRORS};

/* The largest number of a summary; below 0: it was not understood. */
static int64_t read_summary(enum summary summary, const char *text) {
    long long n[3] = {0};
    int end = 0; /* set where everything matched */
    switch (summary) {
    case ERRORS: sscanf(text, "%18lld error%n", &n[0], &end); break;
    case HAZARDS:
        sscanf(text, "%18lld hazard%*[s ]displayed (%18lld error%*[s,] %18lld warning%n", &n[0],
               &n[1], &n[2], &end);
        break;
    case LEAKS:
        sscanf(text, "%18lld bytes leaked in %18lld allocation%n", &n[0], &n[1], &end);
        break;
    case SUMMARIES: break;
    }
    n[0] = n[1] > n[0] ? n[1] : n[0];
    return end == 0 ? -1 : n[2] > n[0] ? n[2] : n[0];
}

/* Takes the commas out of numbers: "1,024" becomes "1024". */
static void join_digits(char *line) {
    char *to = line;
    for (const char *from = line; *from != '\0'; from++) {
        if (*from != ',' || from == line || !isdigit((unsigned char)from[-1]) ||
            !isdigit((unsigned char)from[1])) {
            *to++ = *from;
        }
    }
    *to = '\0';
}

static void keep(char *buffer, size_t size, const char *text) {
    if (buffer[0] == '\0') {
        snprintf(buffer, size, "%s", text);
    }
}

/* Whether a line attributes something to the kernel: " at KERNEL+0xb90". */
static bool is_at(const char *text, const char *entry) {
    const size_t length = strlen(entry);
    bool found = false;
    for (const char *at = strstr(text, "at "); !found && at != NULL; at = strstr(at + 1, "at ")) {
        const char after = strncmp(at + 3, entry, length) == 0 ? at[3 + length] : '_';
        found = length > 0 && (at == text || at[-1] == ' ') && after != '_' &&
                !isalnum((unsigned char)after);
    }
    return found;
}

/* A line of the tool, after its prefix. A log without findings has a banner and summaries; any
 * other line is trouble: of the tool, of the program, or what another tool reports. */
static void read_tool_line(const char *line, enum sanitizer_tool tool, const char *entry,
                           struct sanitizer_log *log) {
    const char *text = line + strspn(line, " ");
    const bool report =
        strstr(text, REPORTS[tool][0]) != NULL || strstr(text, REPORTS[tool][1]) != NULL;
    log->reported |= report;
    log->names_entry |= is_at(text, entry);
    if (!report && strstr(text, "SUMMARY") == NULL && strcmp(text, "COMPUTE-SANITIZER") != 0) {
        keep(log->trouble, sizeof log->trouble, text);
    }
}

static void read_target_line(const char *line, struct sanitizer_log *log) {
    long long launches, variants;
    int end = 0;
    if (sscanf(line, TARGET_DONE "%n", &launches, &variants, &end) == 2 && end > 0 &&
        line[end] == '\0') {
        log->launches = launches;
        log->variants = variants;
    }
    if (strncmp(line, TARGET_WRONG, strlen(TARGET_WRONG)) == 0) {
        keep(log->wrong, sizeof log->wrong, line + strlen(TARGET_WRONG));
    }
}

bool sanitizer_log_read(const char *text, size_t bytes, enum sanitizer_tool tool, const char *entry,
                        struct sanitizer_log *log, attn_error *why) {
    unsigned seen = 0;
    bool broken = false;
    *log = (struct sanitizer_log){0};
    if (memchr(text, '\0', bytes) != NULL) {
        return explain(why, "the log holds a byte of 0: it is no text");
    }
    char *copy = must(strndup(text, bytes)), *rest = copy;
    for (char *line; (line = strsep(&rest, "\n")) != NULL;) {
        line[strcspn(line, "\r")] = '\0';
        if (strncmp(line, PREFIX, strlen(PREFIX)) != 0) {
            read_target_line(line, log);
            continue;
        }
        join_digits(line);
        read_tool_line(line + strlen(PREFIX), tool, entry, log);
        for (int i = 0; i < SUMMARIES; i++) {
            const char *found = strstr(line, TITLES[i]);
            if (found != NULL) { /* of several the worst one counts */
                const int64_t most = read_summary((enum summary)i, found + strlen(TITLES[i]));
                broken = broken || most < 0;
                log->findings = most > log->findings ? most : log->findings;
                seen |= 1U << i;
            }
        }
    }
    free(copy);
    log->counted = !broken && (seen & NEEDED[tool]) == NEEDED[tool];
    return true;
}

/* The rest of the only line that begins with `begin`; NULL: there is none, or another one. */
static const char *only_line(const char *text, const char *begin) {
    const char *found = NULL;
    int count = 0;
    for (const char *line = text; *line != '\0'; line += strspn(line, "\r\n")) {
        if (strncmp(line, begin, strlen(begin)) == 0) {
            found = line + strlen(begin);
            count++;
        }
        line += strcspn(line, "\r\n");
    }
    return count == 1 ? found : NULL;
}

bool sanitizer_log_is_of(const char *text, enum sanitizer_tool tool, const char *variant,
                         attn_error *why) {
    const char *name = SANITIZER_TOOL_NAMES[tool], *of_tool = only_line(text, "target: tool ");
    if (of_tool == NULL || strncmp(of_tool, name, strlen(name)) != 0 ||
        strcspn(of_tool, "\r\n") != strlen(name)) {
        return explain(why, "the log is not of this tool: expected one line that names it");
    }
    if (variant == NULL) {
        return true;
    }
    char begin[256];
    snprintf(begin, sizeof begin, "target: variant %s: ", variant);
    const char *verified = only_line(text, begin);
    return (verified != NULL && strtoll(verified, NULL, 10) > 0) ||
           explain(why,
                   "the log is not of this tool and %s: expected one line about it, with "
                   "launches that were verified",
                   variant);
}

/* ---- judging --------------------------------------------------------------------------------- */

enum gate sanitizer_judge(const struct sanitizer_log *log, int exit_code, int64_t variants,
                          attn_error *why) {
    why->text[0] = '\0';
    if (log->findings > 0) {
        explain(why, "%" PRId64 " found", log->findings);
        return GATE_FAIL;
    }
    if (log->wrong[0] != '\0') {
        explain(why, "wrong result: %s", log->wrong);
        return GATE_FAIL;
    }
    const bool good =
        (log->trouble[0] == '\0' || explain(why, "%s", log->trouble)) &&
        (log->counted || explain(why, "the log has no summary of this tool")) &&
        (exit_code == 0 || explain(why, "nothing counted, but exit code %d", exit_code)) &&
        (!log->reported || explain(why, "nothing counted, but something reported")) &&
        ((log->launches > 0 && log->variants > 0) || explain(why, "no launch was verified")) &&
        (log->variants == variants ||
         explain(why, "%" PRId64 " variants were verified, expected %" PRId64, log->variants,
                 variants));
    return good ? GATE_PASS : GATE_INVALID;
}

bool sanitizer_caught(const struct sanitizer_log *log, int exit_code, attn_error *why) {
    const int64_t n = log->findings;
    why->text[0] = '\0';
    return (n > 0 ||
            explain(why, "nothing counted%s%s", log->trouble[0] ? ": " : "", log->trouble)) &&
           (log->reported ||
            explain(why, "%" PRId64 " counted, none of them a finding of this tool", n)) &&
           (log->names_entry ||
            explain(why, "%" PRId64 " counted, none of them in the planted kernel", n)) &&
           (exit_code == SANITIZER_EXIT_CODE ||
            explain(why, "%" PRId64 " counted, but exit code %d, expected %d", n, exit_code,
                    SANITIZER_EXIT_CODE));
}
