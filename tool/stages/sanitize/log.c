/* SPDX-License-Identifier: Apache-2.0
 *
 * log.c - see log.h.
 */
#include "stages/sanitize/log.h"

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

/* How the tools tell that something went wrong with themselves or with the program under them. */
static const char *const TROUBLES[] = {
    "Error: ",
    "Program hit ",
    "Internal",
    "not supported",
    "terminated before first instrumented API call",
    "Target application returned an error",
    "No attachable process found",
    "Unable to find injection library",
};

/* ---- reading --------------------------------------------------------------------------------- */

/* A number, with or without commas between its digits, or -1. Moves the cursor behind it. */
static int64_t read_number(const char **cursor) {
    const char *s = *cursor;
    int64_t number = 0;
    bool any = false;
    for (; (*s >= '0' && *s <= '9') || (any && *s == ','); s++) {
        if (*s != ',') {
            if (number > INT64_MAX / 10 - 10) {
                return -1;
            }
            number = 10 * number + (*s - '0');
            any = true;
        }
    }
    *cursor = s;
    return any ? number : -1;
}

/* Moves the cursor behind `word`, where the text goes on with it. */
static bool skip_word(const char **cursor, const char *word) {
    const size_t length = strlen(word);
    if (strncmp(*cursor, word, length) != 0) {
        return false;
    }
    *cursor += length;
    return true;
}

/* The counts of the summaries; NONE: not printed. */
enum { NONE = -1, BROKEN = -2 };

struct counts {
    int64_t errors, hazards, leaks;
    bool broken; /* one of them was not understood */
};

/* "3 errors" */
static int64_t error_count(const char *text) {
    const int64_t count = read_number(&text);
    return count >= 0 && skip_word(&text, " error") ? count : BROKEN;
}

/* "2 hazards displayed (1 error, 1 warning)" */
static int64_t hazard_count(const char *text) {
    const int64_t hazards = read_number(&text);
    if (hazards < 0 ||
        !(skip_word(&text, " hazards displayed (") || skip_word(&text, " hazard displayed ("))) {
        return BROKEN;
    }
    const int64_t errors = read_number(&text);
    if (errors < 0 || !(skip_word(&text, " errors, ") || skip_word(&text, " error, "))) {
        return BROKEN;
    }
    const int64_t warnings = read_number(&text);
    if (warnings < 0 || !skip_word(&text, " warning")) {
        return BROKEN;
    }
    return hazards > errors + warnings ? hazards : errors + warnings;
}

/* "1,024 bytes leaked in 1 allocations" */
static int64_t leak_count(const char *text) {
    const int64_t bytes = read_number(&text);
    if (bytes < 0 || !skip_word(&text, " bytes leaked in ")) {
        return BROKEN;
    }
    const int64_t allocations = read_number(&text);
    if (allocations < 0 || !skip_word(&text, " allocation")) {
        return BROKEN;
    }
    return allocations > 0 || bytes == 0 ? allocations : 1;
}

/* Of two summaries of one kind the worse one counts. */
static void read_summary(const char *line, const char *title, int64_t (*read)(const char *text),
                         int64_t *count, struct counts *counts) {
    const char *text = strstr(line, title);
    if (text != NULL) {
        const int64_t value = read(text + strlen(title));
        counts->broken |= value == BROKEN;
        *count = value > *count ? value : *count;
    }
}

static void read_summaries(const char *line, struct counts *counts) {
    read_summary(line, "ERROR SUMMARY: ", error_count, &counts->errors, counts);
    read_summary(line, "RACECHECK SUMMARY: ", hazard_count, &counts->hazards, counts);
    read_summary(line, "LEAK SUMMARY: ", leak_count, &counts->leaks, counts);
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

static bool reports(enum sanitizer_tool tool, const char *text) {
    return strstr(text, REPORTS[tool][0]) != NULL || strstr(text, REPORTS[tool][1]) != NULL;
}

/* A line of the tool, behind its prefix. What another tool reports is trouble. */
static void read_tool_line(const char *line, enum sanitizer_tool tool, const char *entry,
                           struct sanitizer_log *log) {
    const char *text = line + strspn(line, " ");
    const bool report = reports(tool, text);
    log->reported |= report;
    log->names_entry |= is_at(text, entry);
    for (size_t i = 0; i < sizeof TROUBLES / sizeof *TROUBLES && !report; i++) {
        if (strstr(text, TROUBLES[i]) != NULL) {
            keep(log->trouble, sizeof log->trouble, text);
        }
    }
    for (int i = 0; i < SANITIZER_TOOLS && !report; i++) {
        if (reports((enum sanitizer_tool)i, text)) {
            keep(log->trouble, sizeof log->trouble, text);
        }
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
    bool plain = true, whole = true;
    *log = (struct sanitizer_log){0};
    while ((length = getline(&line, &room, in)) >= 0) {
        plain = plain && memchr(line, '\0', (size_t)length) == NULL;
        const size_t end = strcspn(line, "\r\n");
        whole = whole && strspn(line + end, "\r\n") == strlen(line + end);
        line[end] = '\0';
        if (strncmp(line, PREFIX, strlen(PREFIX)) == 0) {
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
        return explain(why, "the log holds a byte of 0, behind which a line could hide");
    }
    if (!whole) {
        return explain(why, "the log holds a carriage return, behind which a line could hide");
    }
    count_findings(&counts, tool, log);
    return true;
}

/* Lines of the text that begin with `words`. */
static int64_t count_lines(const char *text, const char *words) {
    int64_t count = 0;
    for (const char *at = strstr(text, words); at != NULL; at = strstr(at + 1, words)) {
        count += at == text || at[-1] == '\n';
    }
    return count;
}

/* Launches in the line that says that the variant was verified: TARGET_VARIANT and nothing behind
 * it; 0: there is none. */
static int64_t launches_of(const char *line, const char *variant) {
    char words[192];
    long long launches = 0;
    int end = 0;
    snprintf(words, sizeof words, "target: variant %.150s: ", variant);
    const size_t length = strlen(words);
    const bool good = strncmp(line, words, length) == 0 &&
                      sscanf(line + length, "%lld launches verified%n", &launches, &end) == 1 &&
                      end > 0 && strchr("\r\n", line[length + (size_t)end]) != NULL;
    return good && launches > 0 ? launches : 0;
}

/* Each line about a variant says that it was launched and verified, and one of them is about this
 * one. */
static bool runs_variant(const char *text, const char *variant, attn_error *why) {
    static const char WORDS[] = "target: variant ";
    int64_t found = 0;
    for (const char *at = strstr(text, WORDS); at != NULL; at = strstr(at + 1, WORDS)) {
        char name[160] = "";
        if (at != text && at[-1] != '\n') {
            continue;
        }
        if (strncmp(at + strlen(WORDS), variant, strlen(variant)) == 0 &&
            launches_of(at, variant) > 0) {
            found++;
        } else if (sscanf(at + strlen(WORDS), "%159[^: \n]", name) != 1 ||
                   launches_of(at, name) == 0) {
            return explain(why, "the log says '%.*s', expected launches that were verified",
                           (int)strcspn(at, "\r\n"), at);
        }
    }
    return found == 1 ||
           explain(why, "the log is not of this tool and %s: %lld lines are about it, expected one",
                   variant, (long long)found);
}

static int by_name(const void *a, const void *b) {
    const char *const *x = a, *const *y = b;
    const size_t m = strcspn(*x, ":\n"), n = strcspn(*y, ":\n");
    const int order = strncmp(*x, *y, m < n ? m : n);
    return order != 0 ? order : (m > n) - (m < n);
}

/* No variant is named by two of the lines about one, of which there are so many. */
static bool each_once(const char *text, int64_t lines, attn_error *why) {
    static const char WORDS[] = "target: variant ";
    const char **names = calloc((size_t)lines + 1, sizeof *names);
    size_t count = 0;
    if (names == NULL) {
        return explain(why, "out of memory");
    }
    for (const char *at = strstr(text, WORDS); at != NULL; at = strstr(at + 1, WORDS)) {
        if (at == text || at[-1] == '\n') {
            names[count++] = at + strlen(WORDS);
        }
    }
    qsort(names, count, sizeof *names, by_name);
    bool good = true;
    for (size_t i = 1; good && i < count; i++) {
        good = by_name(&names[i - 1], &names[i]) != 0 ||
               explain(why, "the log names %.*s twice, expected each variant once",
                       (int)strcspn(names[i], ":\n"), names[i]);
    }
    free(names);
    return good;
}

bool sanitizer_log_is_of(const char *text, enum sanitizer_tool tool, const char *variant,
                         int64_t variants, attn_error *why) {
    char words[64];
    const char *line = strstr(text, "target: tool ");
    snprintf(words, sizeof words, TARGET_TOOL, SANITIZER_TOOL_NAMES[tool]);
    if (count_lines(text, "target: tool ") != 1 || strncmp(line, words, strlen(words)) != 0 ||
        strchr("\r\n", line[strlen(words)]) == NULL) {
        return explain(why, "the log is not of this tool%s%s, which it must name once",
                       variant != NULL ? " and " : "", variant != NULL ? variant : "");
    }
    if (variant == NULL) {
        return true;
    }
    const int64_t lines = count_lines(text, "target: variant ");
    return runs_variant(text, variant, why) &&
           (lines == variants ||
            explain(why, "variants: %lld were verified one by one, expected %lld", (long long)lines,
                    (long long)variants)) &&
           each_once(text, lines, why);
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
