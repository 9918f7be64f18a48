/* SPDX-License-Identifier: Apache-2.0
 *
 * run.c - see run.h.
 */
#include "stages/sanitize/run.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/message.h"
#include "base/tool_path.h"
#include "stages/stage.h"

/* A planted fault takes three seconds. compute-sanitizer sometimes does not end after its hundredth
 * error, or does not report one: then it runs again. */
enum { FAULT_SECONDS = 45, FAULT_RUNS = 3 };

/* Options of each tool. The padding separates allocations, so that a write past the end of one does
 * not land in the next. */
static const char *const TOOL_OPTIONS[SANITIZER_TOOLS][4] = {
    [MEMCHECK] = {"--leak-check", "full", "--padding", "512"},
    [RACECHECK] = {"--racecheck-report", "all", "", ""},
    [INITCHECK] = {"", "", "", ""},
    [SYNCCHECK] = {"", "", "", ""},
};

bool sanitizer_find(struct sanitizer *sanitizer, const char *path, const char *faults,
                    attn_error *why) {
    struct stat info;
    if (faults == NULL) {
        if (!tool_faults(sanitizer->faults, why)) {
            return false;
        }
    } else if (stat(faults, &info) != 0) {
        return explain(why, "--faults: %s: %s, expected the folder of kernels with planted faults",
                       faults, strerror(errno));
    } else if (!S_ISDIR(info.st_mode)) {
        return explain(why, "--faults: %s: not a folder", faults);
    } else {
        snprintf(sanitizer->faults, PATH_MAX, "%s", faults);
    }
    return stage_tool("--sanitizer", path, "compute-sanitizer", sanitizer->path, why);
}

/* image: of the planted fault, or NULL. */
static bool start(const struct sanitizer *s, enum sanitizer_tool tool, const char *image,
                  struct sanitizer_run *run) {
    const double limit = image != NULL && s->timeout > FAULT_SECONDS ? FAULT_SECONDS : s->timeout;
    const char *name = SANITIZER_TOOL_NAMES[tool], *const *options = TOOL_OPTIONS[tool];
    const char *pattern = s->pattern != NULL ? s->pattern : "";
    char self[PATH_MAX], exit_code[8];
    snprintf(exit_code, sizeof exit_code, "%d", SANITIZER_EXIT_CODE);
    return stage_self(self, &run->why) &&
           stage_run(run->path, limit, &run->child, &run->why, s->path, "--tool", name,
                     "--error-exitcode", exit_code, "--print-limit", image != NULL ? "8" : "100",
                     options[0], options[1], options[2], options[3], self, "sanitize", "--target",
                     "--tool", name, "--device", s->device,
                     image != NULL        ? "--image"
                     : pattern[0] != '\0' ? "--variant"
                                          : "",
                     image != NULL ? image : pattern, image == NULL && s->ptx ? "--ptx" : "", NULL);
}

/* False, and the reason in run->why, where there is nothing to judge: a run that did not end is no
 * finding, whatever its log says so far. */
static bool run_tool(const struct sanitizer *s, enum sanitizer_tool tool, const char *image,
                     struct sanitizer_run *run) {
    char text[64];
    *run = (struct sanitizer_run){.done = false};
    if (snprintf(run->path, PATH_MAX, "%s/%s%s.log", s->folder, SANITIZER_TOOL_NAMES[tool],
                 image != NULL ? ".fault" : "") >= PATH_MAX) {
        return explain(&run->why, "--out: %s: too long a path", s->folder);
    }
    if (!start(s, tool, image, run)) {
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

enum sanitizer_verdict sanitizer_run_variants(const struct sanitizer *s, enum sanitizer_tool tool,
                                              int64_t variants, struct sanitizer_run *run) {
    return run_tool(s, tool, NULL, run)
               ? sanitizer_judge(&run->log, run->child.code, variants, &run->why)
               : SANITIZER_INVALID;
}

bool sanitizer_run_fault(const struct sanitizer *s, enum sanitizer_tool tool,
                         struct sanitizer_run *run) {
    const bool machine_code = strcmp(s->arch, "sm_90") == 0 && !s->ptx;
    char image[PATH_MAX];
    bool caught = false;
    *run = (struct sanitizer_run){.done = false};
    if (snprintf(image, sizeof image, "%s/%s%s", s->faults, SANITIZER_TOOL_NAMES[tool],
                 machine_code ? ".sm_90.cubin" : ".ptx") >= PATH_MAX ||
        access(image, R_OK) != 0) {
        return explain(&run->why, "%s: %s", image, strerror(errno));
    }
    for (int i = 0; !caught && i < FAULT_RUNS; i++) {
        if (run->done) {
            unlink(run->path); /* of the try before */
        }
        caught = run_tool(s, tool, image, run) &&
                 sanitizer_caught(&run->log, run->child.code, &run->why);
    }
    return caught;
}
