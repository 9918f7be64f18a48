/* SPDX-License-Identifier: Apache-2.0
 *
 * absent.c - what the program says of the virtual GPU where that was left out of the build
 * (-DATTN_VGPU=OFF). It stands for the rest of check/, vgpu_findings.c.
 * vgpu_planted.c.
 *
 * Invariant: a request for it is refused with one sentence, never ignored.
 */
#include <stdio.h>
#include <string.h>

#include "base/args.h"
#include "base/message.h"
#include "cli/verbs.h"
#include "device/vgpu_findings.h"

static const char ABSENT[] = "the virtual GPU is not built in (-DATTN_VGPU=ON)";

static int absent(int argc, char **argv, const char *verb) {
    if (argc > 0 && strcmp(argv[0], "--help") == 0) {
        printf("attest %s - %s\n\nusage: attest %s ...\n\nNot run here: %s.\n", verb,
               command_summary, verb, ABSENT);
        return EXIT_DONE;
    }
    complain("%s: not run: %s", verb, ABSENT);
    return EXIT_NOT_RUN;
}

int verb_check(int argc, char **argv) {
    return absent(argc, argv, "check");
}

int verb_exec(int argc, char **argv) {
    return absent(argc, argv, "exec");
}

int verb_nvcc(int argc, char **argv) {
    return absent(argc, argv, "nvcc");
}

bool device_alias(const char **device, const char **driver, attn_error *why) {
    (void)driver;
    return strcmp(*device, "vgpu") != 0 || explain(why, "device = vgpu: %s", ABSENT);
}

bool async_orders_parse(const char *text, struct async_orders *orders, attn_error *why) {
    *orders = (struct async_orders){0};
    return explain(why, "'%s': %s", text, ABSENT);
}

bool vgpu_drives(attn_context *context) {
    (void)context;
    return false;
}

void vgpu_driver_order(const struct async_orders *orders, size_t index) {
    (void)orders;
    (void)index;
}

void vgpu_driver_forget(void) {
}

bool vgpu_driver_clean(char *text, size_t size) {
    (void)text;
    (void)size;
    return true;
}

int planted_run(struct planted planted[PLANTED_MOST], attn_error *why) {
    (void)planted;
    explain(why, "%s", ABSENT);
    return 0;
}
