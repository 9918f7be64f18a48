/* SPDX-License-Identifier: Apache-2.0
 *
 * lint.c - what can be told of a kernel before it runs: bodies that are nothing but a trap, limits
 * that no launch can keep.
 *
 * nvcc turns a kernel whose wmma loads from a register array into a single trap, with a warning
 * that few builds show; on a GPU that is an "unspecified launch failure" without a place.
 *
 * Invariant: a finding here is true of every launch of the kernel.
 */
#include <string.h>

#include "core.h"

enum { SHARED_PLAIN = 48 * 1024, SHARED_MOST = 227 * 1024, THREADS_MOST = 1024, CLUSTER_MOST = 16 };

/* Neither changes anything that lasts nor decides where to go on. */
static bool is_harmless(const struct ptx_instruction *in) {
    static const char *const NAMES[] = {"mov", "ld",  "cvta", "cvt", "add", "sub",  "mul",
                                        "mad", "and", "or",   "shl", "shr", "setp", NULL};
    for (int i = 0; NAMES[i] != NULL; i++) {
        if (strcmp(in->opcode, NAMES[i]) == 0) {
            return true;
        }
    }
    return false;
}

static void lint_trap(const struct kernel *kernel) {
    const struct ptx_function *function = kernel->function;
    uint32_t at = 0;
    while (at < function->code_count && is_harmless(&function->code[at])) {
        at++;
    }
    const struct ptx_instruction *in = at < function->code_count ? &function->code[at] : NULL;
    if (in != NULL && strcmp(in->opcode, "trap") == 0 && in->guard < 0) {
        report_kernel(kernel->module->gpu, kernel, in, FINDING_TRAP_ENTRY,
                      "the kernel does nothing but trap; nvcc makes that of code which it knows to "
                      "be wrong, such as wmma on a register array: look at its warnings");
    }
}

static uint64_t product(const uint32_t values[3]) {
    return (uint64_t)values[0] * (values[1] > 0 ? values[1] : 1) * (values[2] > 0 ? values[2] : 1);
}

static void lint_limit(const struct kernel *kernel, const char *what, uint64_t value,
                       uint64_t most) {
    if (value > most) {
        report_kernel(kernel->module->gpu, kernel, NULL, FINDING_LIMIT,
                      "%s is %llu, at most %llu can be launched", what, (unsigned long long)value,
                      (unsigned long long)most);
    }
}

static void lint_limits(const struct kernel *kernel) {
    const struct ptx_function *function = kernel->function;
    if (kernel->shared_declared > SHARED_MOST) {
        lint_limit(kernel, "static shared memory in bytes", kernel->shared_declared, SHARED_MOST);
    } else {
        lint_limit(kernel, "static shared memory in bytes (more has to be dynamic)",
                   kernel->shared_declared, SHARED_PLAIN);
    }
    lint_limit(kernel, ".maxntid in threads", product(function->maxntid), THREADS_MOST);
    lint_limit(kernel, ".reqntid in threads", product(function->reqntid), THREADS_MOST);
    lint_limit(kernel, ".reqnctapercluster in CTAs", product(function->reqnctapercluster),
               CLUSTER_MOST);
    lint_limit(kernel, ".maxnreg in registers", function->maxnreg, 255);
}

void lint_module(const struct vgpu_module *module) {
    for (uint32_t i = 0; i < module->kernel_count; i++) {
        if (module->kernels[i]->function->entry) {
            lint_trap(module->kernels[i]);
            lint_limits(module->kernels[i]);
        }
    }
}
