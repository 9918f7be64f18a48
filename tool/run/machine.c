/* SPDX-License-Identifier: Apache-2.0
 *
 * machine.c - what this machine has: devices and tools. See run.h. A child opens a device and
 * answers in lines of fields separated by tabs:
 *
 *     absent REASON                            or
 *     device NAME, ARCH, ...                   and for each variant that was asked for
 *     variant NAME IMAGE [REASON]              IMAGE: SHA-256 of what is loaded, or -; why it
 *                                              cannot run there
 *     chosen NAME                              a GPU's choice for some usual problem
 *
 * Invariant: nothing is computed.
 */
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/child.h"
#include "base/conversation.h"
#include "base/file.h"
#include "base/message.h"
#include "device/kernels.h"
#include "run/run.h"
#include "stages/parity/parity.h"
#include "stages/profile/ncu.h"
#include "stages/stage.h"

enum { PROBE_SECONDS = 120 };

/* ---- devices --------------------------------------------------------------------------------- */

static bool take_variant(struct run_device *device, const char *line) {
    struct run_subject subject = {.refusal = ""};
    attn_variant variant;
    if (sscanf(line, "%95[^\t]\t%64[^\t]\t%255[^\n]", subject.variant, subject.image,
               subject.refusal) < 2 ||
        !variant_by_name(NULL, subject.variant, &variant, NULL)) {
        return false;
    }
    subject.family = variant.family;
    subject.direction = (int)variant.direction;
    if (strcmp(subject.image, "-") == 0) {
        subject.image[0] = '\0';
    }
    device->subjects = grow(device->subjects, device->count, sizeof *device->subjects);
    device->subjects[device->count++] = subject;
    return true;
}

static bool take_line(void *user, char *line) {
    struct run_device *device = user;
    char *rest = line;
    const char *word = strsep(&rest, "\t");
    if (rest == NULL) {
        return false;
    }
    if (strcmp(word, "absent") == 0) {
        snprintf(device->absent, sizeof device->absent, "%s", rest);
    } else if (strcmp(word, "device") == 0) {
        snprintf(device->model, sizeof device->model, "%s", rest);
    } else if (strcmp(word, "chosen") == 0) {
        for (size_t i = 0; i < device->count; i++) {
            if (strcmp(device->subjects[i].variant, rest) == 0) {
                device->subjects[i].chosen = true;
            }
        }
    } else {
        return strcmp(word, "variant") == 0 && take_variant(device, rest);
    }
    return true;
}

bool run_device_ask(const char *name, const char *variant, struct run_device *device,
                    attn_error *why) {
    const char *const argv[] = {"attest",   "run", "--job",     "probe",
                                "--device", name,  "--variant", variant != NULL ? variant : ".",
                                NULL};
    *device = (struct run_device){.absent = ""};
    snprintf(device->name, sizeof device->name, "%s", name);
    const struct conversation_terms terms = {
        .seconds = PROBE_SECONDS, .take = take_line, .user = device};
    attn_error cause = {""};
    return converse(argv, &terms, &cause) || explain(why, "%s: %s", name, cause.text);
}

/* ---- the child ------------------------------------------------------------------------------- */

/* How well a cubin for `arch` suits the device, as the library has it: machine code runs within its
 * major version, on its own minor one and later ones; "sm_90a" on 9.0 alone. 0: not at all. */
static int cubin_rank(const char *arch, int device) {
    int number = 0;
    char suffix = '\0';
    const int fields = sscanf(arch, "sm_%d%c", &number, &suffix);
    if (fields < 1 || number / 10 != device / 10 || number > device ||
        (fields == 2 && number != device)) {
        return 0;
    }
    return 1 + number % 10;
}

/* The image that is loaded: the best cubin, else the fatbin; the virtual GPU takes PTX alone. */
static bool loaded_image(const struct target *target, int device, char hash[SHA256_TEXT]) {
    attn_image image = {.size = sizeof image}, best = {.data = NULL};
    int rank = 0;
    for (int32_t i = 0;
         variant_image(target->context, target->variant.name, i, &image, NULL) == ATTN_OK; i++) {
        const int suits = target->emulated                 ? image.kind == ATTN_IMAGE_PTX
                          : image.kind == ATTN_IMAGE_CUBIN ? cubin_rank(image.arch, device)
                                                           : rank == 0;
        if (suits > rank) {
            rank = suits;
            best = image;
        }
    }
    if (best.data != NULL) {
        sha256_text(best.data, best.bytes, hash);
    }
    return best.data != NULL;
}

static void tell_variants(struct target *target, const regex_t *asked, int device) {
    attn_variant *variant = &target->variant;
    const char *kind = device_is_gpu(target->device) ? "cuda" : "cpu";
    for (int32_t i = 0; stage_next(target->context, asked, &i, variant);) {
        char hash[SHA256_TEXT] = "-";
        attn_error why = {"it has no image that can be loaded here"};
        attn_problem problem;
        if (strcmp(variant->device, kind) != 0) {
            continue;
        }
        target->runs_as = variant->name;
        const bool loads = !device_is_gpu(target->device) || loaded_image(target, device, hash);
        const bool runs = loads && target_accepts(target, &problem, &why);
        conversation_answer("variant\t%s\t%s\t%.240s", variant->name, hash, runs ? "" : why.text);
    }
}

/* What the library takes for problems that fill the chip. */
static void tell_chosen(const struct target *target) {
    static const int64_t DIMS[] = {64, 128, 256};
    static const attn_causal CAUSALS[] = {ATTN_CAUSAL_NONE, ATTN_CAUSAL_BOTTOM_RIGHT};
    for (int i = 0; i < 24; i++) {
        const attn_direction direction = i < 12 ? ATTN_FORWARD : ATTN_BACKWARD;
        attn_problem problem;
        attn_plan *plan = NULL;
        attn_problem_init(&problem);
        problem.dtype = i % 2 == 0 ? ATTN_FP16 : ATTN_BF16;
        problem.causal = CAUSALS[i / 2 % 2];
        problem.head_dim = DIMS[i % 12 / 4];
        problem.batch = 4;
        problem.heads_q = problem.heads_kv = 16;
        problem.seq_q = problem.seq_kv = 4096;
        if (attn_plan_create(target->context, &problem, PLAN_BY_NAME(direction, NULL), &plan,
                             NULL) == ATTN_OK) {
            conversation_answer("chosen\t%s", attn_plan_variant(plan));
        }
        attn_plan_destroy(plan);
    }
}

int run_probe(const char *name, const char *variant) {
    struct runner runner = {.device = name};
    attn_device device = {.size = sizeof device};
    attn_error why = {""};
    regex_t asked;
    if (!conversation_joined()) {
        return complain("run: --job is what it tells its own child processes");
    }
    if (!stage_pattern(variant, &asked, &why)) {
        return complain("run: %s", why.text);
    }
    if (runner_open(&runner, &why) && attn_device_get(runner.context, &device, &why) == ATTN_OK) {
        struct target target = target_on(&runner, 0);
        int number = 0;
        (void)sscanf(device.arch, "sm_%d", &number);
        conversation_answer("device\t%s, %s, %d %s, driver %d", device.name, device.arch,
                            (int)device.units, device.driver > 0 ? "multiprocessors" : "threads",
                            (int)device.driver);
        tell_variants(&target, &asked, number);
        if (device_is_gpu(target.device) && !target.emulated) {
            tell_chosen(&target);
        }
    } else {
        conversation_answer("absent\t%.240s", why.text);
    }
    runner_close(&runner);
    regfree(&asked);
    conversation_answer("end");
    return EXIT_DONE;
}

/* ---- tools ----------------------------------------------------------------------------------- */

/* ncu may be there and not be allowed to count: it is tried. */
void run_tool_absent(enum stage stage, const char *device, char reason[256]) {
    char path[PATH_MAX];
    attn_error why = {""};
    bool there = true;
    if (stage == SANITIZE) {
        there = tool_faults(path, &why) && tool_find("compute-sanitizer", path, &why);
    } else if (stage == PROFILE) {
        there = tool_find("ncu", path, &why) && ncu_allowed(path, device, NULL, &why);
    }
    snprintf(reason, 256, "%.250s", there ? "" : why.text);
}

void run_environment(void) {
    static const char *const NAMES[] = {"VGPU_CHECKS", "VGPU_SM", "VGPU_FIRST", "VGPU_REPEATS"};
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        unsetenv(NAMES[i]);
    }
}

void run_tools_json(struct json *json) {
    static const char *const TOOLS[] = {"compute-sanitizer", "ncu", "nvcc"};
    char folder[TEMPORARY_SIZE], path[PATH_MAX], log[TEMPORARY_FILE], version[128];
    const bool has_folder = temporary_folder(folder, "run", NULL);
    snprintf(log, sizeof log, "%s/version", folder);
    json_open(json, "tools", '{');
    for (size_t i = 0; has_folder && i < sizeof TOOLS / sizeof *TOOLS; i++) {
        if (tool_find(TOOLS[i], path, NULL)) {
            const bool said = tool_version(path, log, version, sizeof version, NULL);
            json_text(json, TOOLS[i], said ? version : "there, but cannot be started");
            unlink(log);
        }
    }
    json_close(json);
    if (has_folder) {
        rmdir(folder);
    }
}
