/* SPDX-License-Identifier: Apache-2.0
 *
 * probe.c - a child of `attest run`: opens one device and says what it can do.
 *
 *     absent REASON                            or
 *     device NAME, ARCH, ...                   and for each variant of the library
 *     variant NAME IMAGE yes|no REASON         IMAGE: SHA-256 of what is loaded, or -
 *     chosen NAME                              a GPU's choice for some usual problem
 *
 * Fields are separated by tabs; the last line is `end`.
 *
 * Invariant: nothing is computed.
 */
#include <stdio.h>
#include <string.h>

#include "base/conversation.h"
#include "base/message.h"
#include "device/kernels.h"
#include "device/vgpu_findings.h"
#include "run/plan.h"
#include "stages/parity/parity.h"

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
         attn_variant_image(target->context, target->variant.name, i, &image, NULL) == ATTN_OK;
         i++) {
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

static void tell_variants(struct target *target, int device) {
    attn_variant *variant = &target->variant;
    const char *kind = device_is_gpu(target->device) ? "cuda" : "cpu";
    *variant = (attn_variant){.size = sizeof *variant};
    for (int32_t i = 0; attn_variant_get(target->context, i, variant, NULL) == ATTN_OK; i++) {
        char hash[SHA256_TEXT] = "-";
        attn_error why = {"it has no image that can be loaded here"};
        attn_problem problem;
        if (strcmp(variant->device, kind) != 0) {
            continue;
        }
        target->runs_as = variant->name;
        const bool loads = !device_is_gpu(target->device) || loaded_image(target, device, hash);
        const bool runs = loads && target_accepts(target, &problem, &why);
        conversation_answer("variant\t%s\t%s\t%s\t%.240s", variant->name, hash, runs ? "yes" : "no",
                            runs ? "" : why.text);
    }
}

/* What the library takes for problems that fill the chip. */
static void tell_chosen(const struct target *target) {
    static const int64_t DIMS[] = {64, 128, 256};
    static const attn_causal CAUSALS[] = {ATTN_CAUSAL_NONE, ATTN_CAUSAL_BOTTOM_RIGHT};
    for (int i = 0; i < 12; i++) {
        attn_problem problem;
        attn_plan *plan = NULL;
        attn_problem_init(&problem);
        problem.dtype = i % 2 == 0 ? ATTN_FP16 : ATTN_BF16;
        problem.causal = CAUSALS[i / 2 % 2];
        problem.head_dim = DIMS[i / 4];
        problem.batch = 4;
        problem.heads_q = problem.heads_kv = 16;
        problem.seq_q = problem.seq_kv = 4096;
        if (attn_plan_create(target->context, &problem, NULL, &plan, NULL) == ATTN_OK) {
            conversation_answer("chosen\t%s", attn_plan_variant(plan));
        }
        attn_plan_destroy(plan);
    }
}

static void probe(const char *name, const char *driver) {
    struct target target = {0};
    attn_options options;
    attn_device device = {.size = sizeof device};
    attn_error why = {""};
    attn_options_init(&options);
    options.device = name;
    options.driver = driver;
    if (attn_open(&options, &target.context, &why) != ATTN_OK ||
        (strncmp(name, "cuda", 4) == 0 && kernels_missing(target.context, &why)) ||
        attn_device_get(target.context, &device, &why) != ATTN_OK ||
        (target.device = device_open(target.context, name, &why)) == NULL) {
        conversation_answer("absent\t%.240s", why.text);
        attn_close(target.context);
        return;
    }
    int number = 0;
    (void)sscanf(device.arch, "sm_%d", &number);
    target.emulated = vgpu_drives(target.context);
    conversation_answer("device\t%s, %s, %d %s, driver %d", device.name, device.arch,
                        (int)device.units, device.driver > 0 ? "multiprocessors" : "threads",
                        (int)device.driver);
    tell_variants(&target, number);
    if (device_is_gpu(target.device) && !target.emulated) {
        tell_chosen(&target);
    }
    device_close(target.device);
    attn_close(target.context);
}

int run_probe(const char *name) {
    const char *driver = NULL;
    attn_error why = {""};
    if (!conversation_joined()) {
        return complain("run: --job is what it tells its own child processes");
    }
    if (device_alias(&name, &driver, &why)) {
        probe(name, driver);
    } else {
        conversation_answer("absent\t%.240s", why.text);
    }
    conversation_answer("end");
    return EXIT_DONE;
}
