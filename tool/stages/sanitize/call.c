/* SPDX-License-Identifier: Apache-2.0
 *
 * call.c - see call.h.
 */
#include "stages/sanitize/call.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/message.h"

enum { MAX_WORDS = 32 };

/* What each tool is told beside its name. The padding parts allocations, so that a write behind one
 * does not land in the next. */
static const char *const TOOL_OPTIONS[SANITIZER_TOOLS][5] = {
    [MEMCHECK] = {"--leak-check", "full", "--padding", "512", NULL},
    [RACECHECK] = {"--racecheck-report", "all", NULL},
    [INITCHECK] = {NULL},
    [SYNCCHECK] = {NULL},
};

/* Fills `words`, which point at strings of the call, and ends it with NULL. */
static void command_line(const struct sanitize_call *call, const char *self,
                         const char *words[MAX_WORDS]) {
    static char exit_code[8], findings[] = "100", few[] = "8"; /* a planted fault has thousands */
    int n = 0;
    snprintf(exit_code, sizeof exit_code, "%d", SANITIZER_EXIT_CODE);
    words[n++] = call->sanitizer;
    words[n++] = "--tool";
    words[n++] = SANITIZER_TOOL_NAMES[call->tool];
    words[n++] = "--error-exitcode";
    words[n++] = exit_code;
    words[n++] = "--print-limit";
    words[n++] = call->image != NULL ? few : findings;
    for (int i = 0; TOOL_OPTIONS[call->tool][i] != NULL; i++) {
        words[n++] = TOOL_OPTIONS[call->tool][i];
    }
    words[n++] = self;
    words[n++] = "sanitize";
    words[n++] = "--target";
    words[n++] = "--tool";
    words[n++] = SANITIZER_TOOL_NAMES[call->tool];
    words[n++] = "--device";
    words[n++] = call->device;
    if (call->image != NULL) {
        words[n++] = "--image";
        words[n++] = call->image;
    } else {
        if (call->pattern != NULL) {
            words[n++] = "--variant";
            words[n++] = call->pattern;
        }
        if (call->ptx) {
            words[n++] = "--ptx";
        }
    }
    words[n] = NULL;
}

bool sanitize_call(const struct sanitize_call *call, const char *log, struct child *child,
                   attn_error *why) {
    char self[PATH_MAX];
    const char *words[MAX_WORDS];
    char *argv[MAX_WORDS];
    const ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length <= 0) {
        return explain(why, "/proc/self/exe: %s", strerror(errno));
    }
    self[length] = '\0';
    command_line(call, self, words);
    memcpy(argv, words, sizeof argv); /* which nobody writes to, whatever their type */
    return child_run(argv, log, call->timeout, child, why);
}
