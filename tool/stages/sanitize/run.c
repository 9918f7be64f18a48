/* SPDX-License-Identifier: Apache-2.0
 *
 * run.c - see run.h.
 */
#include "stages/sanitize/run.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/child.h"
#include "base/file.h"
#include "base/message.h"
#include "stages/stage.h"

/* Limits of one run. A planted fault takes three seconds. compute-sanitizer sometimes does not end
 * after its hundredth error, or reports none: then it runs again, FAULT_RUNS times in all. */
enum { VARIANTS_SECONDS = 280, FAULT_SECONDS = 45, FAULT_RUNS = 3 };

/* Options of each tool. The padding separates allocations, so that a write past the end of one does
 * not land in the next. */
static const char *const TOOL_OPTIONS[SANITIZER_TOOLS][4] = {
    [MEMCHECK] = {"--leak-check", "full", "--padding", "512"},
    [RACECHECK] = {"--racecheck-report", "all", "", ""},
    [INITCHECK] = {"", "", "", ""},
    [SYNCCHECK] = {"", "", "", ""},
};

bool sanitizer_find(struct sanitizer *sanitizer, attn_error *why) {
    return tool_faults(sanitizer->faults, why) &&
           tool_find("compute-sanitizer", sanitizer->path, why);
}

/* what: "--image" for the planted fault, or "--variant". */
static bool start(const struct sanitizer *s, enum sanitizer_tool tool, const char *what,
                  const char *which, struct sanitizer_run *run) {
    const bool fault = strcmp(what, "--image") == 0;
    const char *name = SANITIZER_TOOL_NAMES[tool], *const *options = TOOL_OPTIONS[tool];
    char self[PATH_MAX], exit_code[8];
    snprintf(exit_code, sizeof exit_code, "%d", SANITIZER_EXIT_CODE);
    return program_path(self, &run->why) &&
           stage_run(run->path, fault ? FAULT_SECONDS : VARIANTS_SECONDS, &run->child, &run->why,
                     s->path, "--tool", name, "--error-exitcode", exit_code, "--print-limit",
                     fault ? "8" : "100", options[0], options[1], options[2], options[3], self,
                     "sanitize", "--target", "--tool", name, "--device", s->device, what, which,
                     NULL);
}

/* False, and the reason in run->why, where there is nothing to judge: a run that did not end is no
 * finding, whatever its log says so far. */
static bool run_tool(const struct sanitizer *s, enum sanitizer_tool tool, const char *what,
                     const char *which, struct sanitizer_run *run) {
    char text[64];
    *run = (struct sanitizer_run){.done = false};
    snprintf(run->path, PATH_MAX, "%.4000s/%s.log", s->folder, SANITIZER_TOOL_NAMES[tool]);
    if (!start(s, tool, what, which, run)) {
        return false;
    }
    FILE *in = fopen(run->path, "r");
    if (in == NULL) {
        return explain(&run->why, "%s: %s", run->path, strerror(errno));
    }
    run->done = sanitizer_log_read(in, tool, FAULT_VARIANT, &run->log, &run->why);
    fclose(in);
    return run->done && (run->child.code >= 0 ||
                         explain(&run->why, "%s", child_text(&run->child, text, sizeof text)));
}

enum gate sanitizer_run_variants(const struct sanitizer *s, enum sanitizer_tool tool,
                                 const char *pattern, int64_t variants, struct sanitizer_run *run) {
    return run_tool(s, tool, "--variant", pattern, run)
               ? sanitizer_judge(&run->log, run->child.code, variants, &run->why)
               : GATE_INVALID;
}

bool sanitizer_run_fault(const struct sanitizer *s, enum sanitizer_tool tool,
                         struct sanitizer_run *run) {
    char image[PATH_MAX + 32];
    bool caught = false;
    *run = (struct sanitizer_run){.done = false};
    snprintf(image, sizeof image, "%s/%s%s", s->faults, SANITIZER_TOOL_NAMES[tool],
             s->machine_code ? ".sm_90.cubin" : ".ptx");
    if (access(image, R_OK) != 0) {
        return explain(&run->why, "%s: %s", image, strerror(errno));
    }
    for (int i = 0; !caught && i < FAULT_RUNS; i++) {
        if (run->done) {
            unlink(run->path); /* of the try before */
        }
        caught = run_tool(s, tool, "--image", image, run) &&
                 sanitizer_caught(&run->log, run->child.code, &run->why);
    }
    return caught;
}
