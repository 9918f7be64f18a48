/* SPDX-License-Identifier: Apache-2.0
 *
 * lint.c - findings about a kernel before it runs: bodies that always trap, limits that every
 * launch exceeds.
 *
 * nvcc replaces wmma on a register array, and all that follows, by a single trap, with a warning
 * that few builds show. On a GPU that is an "unspecified launch failure" without a location.
 *
 * Invariant: a finding here is true of every launch of the kernel.
 */
#include <string.h>

#include "exec/exec.h"
#include "report/finding.h"

enum { SHARED_PLAIN = 48 * 1024, SHARED_MOST = 227 * 1024, THREADS_MOST = 1024, CLUSTER_MOST = 16 };

/* No lasting effect and no branch. */
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

static bool is(const struct ptx_instruction *in, const char *opcode) {
    return strcmp(in->opcode, opcode) == 0;
}

static bool is_certain_trap(const struct ptx_instruction *in) {
    return is(in, "trap") && in->guard < 0;
}

/* The trap that every launch comes to, or NULL: only harmless instructions lie before it, or the
 * body ends with it and nothing in the body returns. */
static const struct ptx_instruction *certain_trap(const struct ptx_function *function) {
    const struct ptx_instruction *code = function->code, *const end = code + function->code_count;
    while (code < end && is_harmless(code)) {
        code++;
    }
    if (code == end || is_certain_trap(code)) {
        return code == end ? NULL : code;
    }
    for (const struct ptx_instruction *in = code; in < end; in++) {
        if (is(in, "ret") || is(in, "exit")) {
            return NULL;
        }
    }
    return is_certain_trap(end - 1) ? end - 1 : NULL;
}

/* What the compiler put in has no line of its own: then the kernel's. Kernels that are not launched
 * may well be such, as stubs for another architecture. */
void lint_launch(const struct kernel *kernel) {
    const struct ptx_instruction *in = certain_trap(kernel->function);
    if (in != NULL) {
        report_kernel(kernel->module->gpu, kernel, in->borrowed ? kernel->function->code : in,
                      FINDING_TRAP_ENTRY,
                      "every way through the kernel ends in the trap at line %u of the PTX; nvcc "
                      "makes that of code which it knows to be wrong, such as wmma on a register "
                      "array: look at its warnings",
                      in->line);
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
            lint_limits(module->kernels[i]); /* no GPU loads the module */
        }
    }
}
