/* SPDX-License-Identifier: Apache-2.0
 *
 * log.h - reads what compute-sanitizer printed, and judges it.
 *
 * Each tool ends with a summary; a log is clean only if the summary is there and counts nothing:
 *
 *     ========= ERROR SUMMARY: 0 errors                                       memcheck, initcheck,
 *                                                                             synccheck
 *     ========= LEAK SUMMARY: 0 bytes leaked in 0 allocations                 memcheck as well
 *     ========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings) racecheck
 *
 * The program under the tool prints to the same log; its own last line is TARGET_DONE.
 *
 * Invariant: GATE_PASS needs every sign at once: the tool's summary, its exit code, the
 * program's last line, and no unexpected line. What is missing or contradicts itself is
 * GATE_INVALID.
 */
#ifndef ATTEST_STAGES_SANITIZE_LOG_H
#define ATTEST_STAGES_SANITIZE_LOG_H

#include <stdbool.h>
#include <stdint.h>

#include "attn.h"
#include "pack/judge.h"

enum sanitizer_tool { MEMCHECK, RACECHECK, INITCHECK, SYNCCHECK, SANITIZER_TOOLS };

/* "memcheck" and so on; ends with NULL. */
extern const char *const SANITIZER_TOOL_NAMES[SANITIZER_TOOLS + 1];

/* What the program under the tool prints, for printf: the tool it was given; a variant and its
 * launches; launches and variants; a sentence. The tools themselves say neither what they are nor
 * what they run. */
#define TARGET_TOOL "target: tool %s"
#define TARGET_VARIANT "target: variant %s: %lld launches verified"
#define TARGET_DONE "target: %lld launches of %lld variants verified"
#define TARGET_WRONG "target: wrong: "

enum { SANITIZER_EXIT_CODE = 86 }; /* --error-exitcode: none that the program itself has */

struct sanitizer_log {
    bool counted;      /* the tool's own summary is there and was understood */
    int64_t findings;  /* errors, hazards of either severity, leaks; 0 unless counted */
    bool reported;     /* a finding in the tool's own words */
    bool names_entry;  /* a line of the tool says that it is at the kernel */
    char trouble[160]; /* the first line that a log without findings has not, or "" */
    char wrong[160];   /* what follows TARGET_WRONG, or "" */
    int64_t launches;  /* of TARGET_DONE, 0: not printed */
    int64_t variants;
};

/* entry: the kernel whose name is looked for. False and the reason where it is no text. */
bool sanitizer_log_read(const char *text, size_t bytes, enum sanitizer_tool tool, const char *entry,
                        struct sanitizer_log *log, attn_error *why);

/* Whether the program under the tool printed that it ran under this tool and verified this variant
 * (NULL: any). False: and the reason. */
bool sanitizer_log_is_of(const char *text, enum sanitizer_tool tool, const char *variant,
                         attn_error *why);

/* Of a run of `variants` variants that ended with exit_code (-1: with none). FAIL: the tool found
 * something, or the result was wrong. why: the reason, "" after PASS. */
enum gate sanitizer_judge(const struct sanitizer_log *log, int exit_code, int64_t variants,
                          attn_error *why);

/* Whether a run of a planted fault shows that the tool works: counted, reported in its own words,
 * attributed to the kernel, and shown by its exit code. */
bool sanitizer_caught(const struct sanitizer_log *log, int exit_code, attn_error *why);

#endif /* ATTEST_STAGES_SANITIZE_LOG_H */
