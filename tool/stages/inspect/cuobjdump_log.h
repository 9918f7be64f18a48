/* SPDX-License-Identifier: Apache-2.0
 *
 * cuobjdump_log.h - what cuobjdump --dump-resource-usage said about one kernel:
 *
 *     Resource usage:
 *      Function kernel:
 *       REG:236 STACK:0 SHARED:1024 LOCAL:0 CONSTANT[0]:880 TEXTURE:0 SURFACE:0 SAMPLER:0
 *
 * Invariant: a figure that is not there is below 0, never 0.
 */
#ifndef ATTEST_STAGES_INSPECT_CUOBJDUMP_LOG_H
#define ATTEST_STAGES_INSPECT_CUOBJDUMP_LOG_H

#include <stdbool.h>
#include <stdint.h>

struct cuobjdump_figures {
    int64_t registers, stack_bytes;
    int64_t shared_static; /* the kernel's own */
};

/* arch: "sm_90". False: the text says nothing of the kernel. */
bool cuobjdump_log_read(const char *text, const char *entry, const char *arch,
                        struct cuobjdump_figures *figures);

#endif /* ATTEST_STAGES_INSPECT_CUOBJDUMP_LOG_H */
