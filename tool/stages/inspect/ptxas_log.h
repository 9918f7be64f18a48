/* SPDX-License-Identifier: Apache-2.0
 *
 * ptxas_log.h - what ptxas -v printed about one kernel when its cubin was made. The log of a cubin
 * in the library is headed by the cubin's hash:
 *
 *     sha256 5a1e...
 *     ptxas info    : Compiling entry function 'kernel' for 'sm_80'
 *     ptxas info    : Function properties for kernel
 *         0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
 *     ptxas info    : Used 96 registers, used 1 barriers, 1024 bytes smem, 400 bytes cmem[0]
 *
 * Invariant: a figure that is not in the log is an error, never 0. Barriers and shared memory are
 * the exceptions: ptxas omits them if there are none.
 */
#ifndef ATTEST_STAGES_INSPECT_PTXAS_LOG_H
#define ATTEST_STAGES_INSPECT_PTXAS_LOG_H

#include <stdbool.h>
#include <stdint.h>

#include "attn.h"
#include "base/sha256.h"

struct ptxas_figures {
    char sha256[SHA256_TEXT]; /* of the cubin that the log belongs to */
    int64_t registers, barriers, shared_bytes;
    int64_t frame_bytes, spill_stores, spill_loads; /* bytes */
};

/* arch: "sm_80". */
bool ptxas_log_read(const char *log, const char *entry, const char *arch,
                    struct ptxas_figures *figures, attn_error *why);

#endif /* ATTEST_STAGES_INSPECT_PTXAS_LOG_H */
