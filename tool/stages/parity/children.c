/* SPDX-License-Identifier: Apache-2.0
 *
 * children.c - the command line of a child of `attest parity`.
 *
 * Invariant: a child is told everything by its command line, so that what it did can be repeated.
 */
#include <stdint.h>
#include <stdio.h>

#include "base/conversation.h"
#include "stages/parity/parity.h"

bool worker_ask(const struct worker_setup *setup, enum worker_job job, int64_t first, int64_t count,
                double seconds, worker_line *take, void *user, attn_error *why) {
    char batch[64], seed[32];
    char *argv[24];
    size_t argc = 0;
    const char *const words[][2] = {
        {"--job", JOB_NAMES[job]},     {"--batch", batch},          {"--seed", seed},
        {"--device", setup->device},   {"--driver", setup->driver}, {"--image", setup->image},
        {"--variant", setup->variant}, {"--async", setup->async},
    };
    snprintf(batch, sizeof batch, "%lld,%lld", (long long)first, (long long)count);
    snprintf(seed, sizeof seed, "%llu", (unsigned long long)setup->seed);
    argv[argc++] = (char *)(uintptr_t) "attest";
    argv[argc++] = (char *)(uintptr_t) "parity";
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (words[i][1] != NULL) {
            argv[argc++] = (char *)(uintptr_t)words[i][0];
            argv[argc++] = (char *)(uintptr_t)words[i][1];
        }
    }
    if (setup->ptx) {
        argv[argc++] = (char *)(uintptr_t) "--ptx";
    }
    argv[argc] = NULL;
    const struct conversation_terms terms = {.seconds = seconds, .take = take, .user = user};
    return converse(argv, &terms, why);
}
