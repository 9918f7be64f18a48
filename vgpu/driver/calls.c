/* SPDX-License-Identifier: Apache-2.0
 *
 * calls.c - see driver.h: calls of the runtime that failed while the program did not look. Each is
 * kept until its thread asks for the last error; what is left is reported at the end.
 *
 * Invariant: no call is reported whose error the program asked for.
 */
#include <stdio.h>
#include <string.h>

#include "driver/driver.h"
#include "report/finding.h"

enum { CALLS_MOST = 64 };

static struct call {
    pthread_t thread;
    bool used;
    char text[512];
} calls[CALLS_MOST];

/* Why the thread's last launch was refused, with its shape. */
static _Thread_local char refused[400];

int call_refused(const char *kernel, const vgpu_dims *dims, int code) {
    char name[128];
    if (code != CU_SUCCESS) {
        const uint32_t *grid = dims->grid, *block = dims->block;
        snprintf(refused, sizeof refused,
                 " of %s with (%u, %u, %u) CTAs of (%u, %u, %u) threads and %u bytes of dynamic "
                 "shared memory",
                 vgpu_readable_name(kernel, name, sizeof name), grid[0], grid[1], grid[2], block[0],
                 block[1], block[2], dims->shared_bytes);
    }
    return code;
}

/* Not a function of CUDA: a function of the runtime returned this code and did not do its work. */
int vgpuCallFailed(const char *function, int code) {
    DRIVER_ENTER();
    const bool consequence =
        driver_state.fault != CU_SUCCESS || driver_state.gpu == NULL || driver_capturing();
    struct call *call = calls;
    while (call < calls + CALLS_MOST && call->used) {
        call++;
    }
    if (!consequence && call < calls + CALLS_MOST) {
        const bool launch = strcmp(function, "cudaLaunchKernel") == 0;
        call->used = true;
        call->thread = pthread_self();
        snprintf(call->text, sizeof call->text, "%s%s failed: %s", function, launch ? refused : "",
                 driver_why(code));
    }
    refused[0] = '\0';
    return CU_SUCCESS;
}

/* Not a function of CUDA: the thread asked for its last error. */
int vgpuCallsSeen(void) {
    DRIVER_ENTER();
    for (struct call *call = calls; call < calls + CALLS_MOST; call++) {
        call->used = call->used && !pthread_equal(call->thread, pthread_self());
    }
    return CU_SUCCESS;
}

void calls_report(vgpu *gpu) {
    for (struct call *call = calls; call < calls + CALLS_MOST; call++) {
        if (call->used) {
            report_call(gpu, "%s; the program did not ask for the error", call->text);
        }
        call->used = false;
    }
}
