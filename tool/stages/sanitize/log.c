/* SPDX-License-Identifier: Apache-2.0
 *
 * log.c - see log.h.
 */
#include "stages/sanitize/log.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/message.h"

const char *const SANITIZER_TOOL_NAMES[] = {"memcheck", "racecheck", "initcheck", "synccheck",
                                            NULL};
const char *const SANITIZER_VERDICT_NAMES[] = {"PASS", "FAIL", "INVALID", "NOT_RUN"};

static const char PREFIX[] = "=========";

/* How each tool begins to tell of a finding. */
static const char *const REPORTS[SANITIZER_TOOLS][2] = {
    [MEMCHECK] = {"Invalid __", "Leaked "},
    [RACECHECK] = {"Race reported between", "hazard detected at"},
    [INITCHECK] = {"Uninitialized __", "Uninitialized access"},
    [SYNCCHECK] = {"Barrier error detected", "Barrier error detected"},
};

/* ---- reading --------------------------------------------------------------------------------- */

/* The counts of the summaries; NONE: not printed. */
enum { NONE = -1, BROKEN = -2 };

struct counts {
    int64_t errors, hazards, leaks;
    bool broken; /* one of them was not understood */
};

/* "3 errors" */
static int64_t error_count(const char *text) {
    long long errors;
    int end = 0;
    return sscanf(text, "%18lld error%n", &errors, &end) == 1 && end > 0 ? errors : BROKEN;
}

/* "2 hazards displayed (1 error, 1 warning)" */
static int64_t hazard_count(const char *text) {
    long long hazards, errors, warnings;
    int end = 0;
    if (sscanf(text, "%18lld hazard%*[s ]displayed (%18lld error%*[s,] %18lld warning%n", &hazards,
               &errors, &warnings, &end) != 3 ||
        end == 0) {
        return BROKEN;
    }
    return hazards > errors + warnings ? hazards : errors + warnings;
}

/* "1024 bytes leaked in 1 allocations" */
static int64_t leak_count(const char *text) {
    long long bytes, allocations;
    int end = 0;
    if (sscanf(text, "%18lld bytes leaked in %18lld allocation%n", &bytes, &allocations, &end) !=
            2 ||
        end == 0) {
        return BROKEN;
    }
    return allocations > 0 || bytes == 0 ? allocations : 1;
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

/* Of two summaries of one kind the worse one counts. */
static void read_summaries(const char *line, struct counts *counts) {
    const struct {
        const char *title;
        int64_t (*read)(const char *text);
        int64_t *count;
    } SUMMARIES[] = {{"ERROR SUMMARY: ", error_count, &counts->errors},
                     {"RACECHECK SUMMARY: ", hazard_count, &counts->hazards},
                     {"LEAK SUMMARY: ", leak_count, &counts->leaks}};
    for (size_t i = 0; i < sizeof SUMMARIES / sizeof *SUMMARIES; i++) {
        const char *text = strstr(line, SUMMARIES[i].title);
        if (text != NULL) {
            const int64_t value = SUMMARIES[i].read(text + strlen(SUMMARIES[i].title));
            counts->broken |= value == BROKEN;
            *SUMMARIES[i].count = value > *SUMMARIES[i].count ? value : *SUMMARIES[i].count;
        }
    }
}

static void keep(char *buffer, size_t size, const char *text) {
    if (buffer[0] == '\0') {
        snprintf(buffer, size, "%s", text);
    }
}

/* Whether a line attributes something to the kernel: " at KERNEL+0xb90". */
static bool is_at(const char *text, const char *entry) {
    static const char IN_NAMES[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
    static const char AT[] = "at ";
    const size_t length = strlen(entry);
    bool found = false;
    for (const char *at = strstr(text, AT); !found && at != NULL; at = strstr(at + 1, AT)) {
        const char *name = at + strlen(AT);
        const char after = strncmp(name, entry, length) == 0 ? name[length] : 'x';
        found = length > 0 && (at == text || at[-1] == ' ') &&
                (after == '\0' || strchr(IN_NAMES, after) == NULL);
    }
    return found;
}

/* A line of the tool, after its prefix. A log without findings has a banner and summaries; any other
 * line is trouble: of the tool, of the program, or what another tool reports. */
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
    enum { MOST_LAUNCHES = 1000000000 };
    long long launches, variants;
    int end = 0;
    if (sscanf(line, "target: variant %*[^: ]: %lld launches verified", &launches) == 1) {
        const bool few = launches >= 0 && launches <= MOST_LAUNCHES;
        log->told = few && log->told >= 0 ? log->told + launches : -1;
        log->tells = true;
    }
    if (sscanf(line, TARGET_DONE "%n", &launches, &variants, &end) == 2 && end > 0 &&
        line[end] == '\0') {
        log->launches = launches;
        log->variants = variants;
        log->ends++;
    }
    if (strncmp(line, TARGET_WRONG, strlen(TARGET_WRONG)) == 0) {
        keep(log->wrong, sizeof log->wrong, line + strlen(TARGET_WRONG));
    }
}

static void count_findings(const struct counts *counts, enum sanitizer_tool tool,
                           struct sanitizer_log *log) {
    const bool there = tool == RACECHECK ? counts->hazards >= 0 : counts->errors >= 0;
    log->counted = there && !counts->broken && !(tool == MEMCHECK && counts->leaks < 0);
    /* Leaks are errors too where there are both; what a broken log counts still counts. */
    const int64_t all[] = {counts->errors, counts->hazards, counts->leaks};
    for (int i = 0; i < 3; i++) {
        log->findings = all[i] > log->findings ? all[i] : log->findings;
    }
}

bool sanitizer_log_read(FILE *in, enum sanitizer_tool tool, const char *entry,
                        struct sanitizer_log *log, attn_error *why) {
    struct counts counts = {NONE, NONE, NONE, false};
    char *line = NULL;
    size_t room = 0;
    ssize_t length;
    bool plain = true;
    *log = (struct sanitizer_log){0};
    while ((length = getline(&line, &room, in)) >= 0) {
        plain = plain && memchr(line, '\0', (size_t)length) == NULL;
        line[strcspn(line, "\r\n")] = '\0';
        if (strncmp(line, PREFIX, strlen(PREFIX)) == 0) {
            join_digits(line);
            read_summaries(line, &counts);
            read_tool_line(line + strlen(PREFIX), tool, entry, log);
        } else {
            read_target_line(line, log);
        }
    }
    free(line);
    if (ferror(in)) {
        return explain(why, "the log cannot be read");
    }
    if (!plain) {
        return explain(why, "the log holds a byte of 0: it is no text");
    }
    count_findings(&counts, tool, log);
    return true;
}

bool sanitizer_log_is_of(const char *text, enum sanitizer_tool tool, const char *variant,
                         int64_t variants, attn_error *why) {
    static const char TOOL[] = "target: tool ", VARIANT[] = "target: variant ";
    int64_t tools = 0, others = 0, lines = 0, found = 0;
    for (const char *line = text; *line != '\0'; line += strspn(line, "\r\n")) {
        const size_t length = strcspn(line, "\r\n");
        char name[160] = "";
        long long launches = 0;
        if (sscanf(line, "target: tool %31[a-z]", name) == 1) {
            tools++;
            others += strcmp(name, SANITIZER_TOOL_NAMES[tool]) != 0 ||
                      length != strlen(TOOL) + strlen(name);
        } else if (strncmp(line, VARIANT, strlen(VARIANT)) == 0) {
            const bool told = sscanf(line, "target: variant %159[^: ]: %lld launches verified",
                                     name, &launches) == 2;
            if (variant != NULL && (!told || launches <= 0)) {
                return explain(why, "the log says '%.*s', expected launches that were verified",
                               (int)length, line);
            }
            lines++;
            found += variant != NULL && strcmp(name, variant) == 0;
        }
        line += length;
    }
    if (tools != 1 || others > 0) {
        return explain(why, "the log is not of this tool%s%s, which it must name once",
                       variant != NULL ? " and " : "", variant != NULL ? variant : "");
    }
    if (variant == NULL || (found == 1 && lines == variants)) {
        return true;
    }
    return found != 1
               ? explain(
                     why,
                     "the log is not of this tool and %s: %lld lines are about it, expected one",
                     variant, (long long)found)
               : explain(why, "variants: %lld were verified one by one, expected %lld",
                         (long long)lines, (long long)variants);
}

/* ---- judging --------------------------------------------------------------------------------- */

enum sanitizer_verdict sanitizer_judge(const struct sanitizer_log *log, int exit_code,
                                       int64_t variants, attn_error *why) {
    enum sanitizer_verdict verdict = SANITIZER_INVALID;
    why->text[0] = '\0';
    if (log->findings > 0) {
        verdict = SANITIZER_FAIL;
        explain(why, "%" PRId64 " found", log->findings);
    } else if (log->wrong[0] != '\0') {
        verdict = SANITIZER_FAIL;
        explain(why, "wrong result: %s", log->wrong);
    } else if (log->trouble[0] != '\0') {
        explain(why, "%s", log->trouble);
    } else if (!log->counted) {
        explain(why, "the log has no summary of this tool");
    } else if (exit_code != 0) {
        explain(why, "nothing counted, but exit code %d", exit_code);
    } else if (log->reported) {
        explain(why, "nothing counted, but something reported");
    } else if (log->launches <= 0 || log->variants <= 0) {
        explain(why, "no launch was verified");
    } else if (log->ends != 1) {
        explain(why, "the program has %" PRId64 " last words, expected one", log->ends);
    } else if (log->tells && log->told != log->launches) {
        explain(why, "%" PRId64 " launches of one variant after the other, expected %" PRId64,
                log->told, log->launches);
    } else if (log->variants != variants) {
        explain(why, "%" PRId64 " variants were verified, expected %" PRId64, log->variants,
                variants);
    } else {
        verdict = SANITIZER_PASS;
    }
    return verdict;
}

bool sanitizer_caught(const struct sanitizer_log *log, int exit_code, attn_error *why) {
    why->text[0] = '\0';
    if (log->findings <= 0) {
        return explain(why, "nothing counted%s%s", log->trouble[0] ? ": " : "", log->trouble);
    }
    if (!log->reported) {
        return explain(why, "%" PRId64 " counted, none of them a finding of this tool",
                       log->findings);
    }
    if (!log->names_entry) {
        return explain(why, "%" PRId64 " counted, none of them in the planted kernel",
                       log->findings);
    }
    if (exit_code != SANITIZER_EXIT_CODE) {
        return explain(why, "%" PRId64 " counted, but exit code %d, expected %d", log->findings,
                       exit_code, SANITIZER_EXIT_CODE);
    }
    return true;
}
