/* SPDX-License-Identifier: Apache-2.0
 *
 * kernel.c - look-ups in a decoded module: kernels by name, variables by space.
 */
#include "machine/kernel.h"

#include <string.h>

struct kernel *module_kernel(const struct vgpu_module *module, const char *name) {
    for (uint32_t i = 0; i < module->kernel_count; i++) {
        if (strcmp(module->kernels[i]->function->name, name) == 0) {
            return module->kernels[i];
        }
    }
    return NULL;
}

const struct ptx_function *module_function(const struct ptx_module *ptx, const char *name) {
    const struct ptx_function *found = NULL;
    for (uint32_t i = 0; i < ptx->function_count; i++) {
        if (strcmp(ptx->functions[i]->name, name) == 0 && (found == NULL || found->external)) {
            found = ptx->functions[i];
        }
    }
    return found;
}

const struct kernel *kernel_at(const struct vgpu_module *module, uint64_t address) {
    const uint64_t offset = address - FUNCTION_BASE;
    return offset % FUNCTION_STEP == 0 && offset / FUNCTION_STEP < module->kernel_count
               ? module->kernels[offset / FUNCTION_STEP]
               : NULL;
}

static void each_of(struct ptx_variable *const *variables, uint32_t count, enum ptx_space space,
                    variable_function *each, void *state) {
    for (uint32_t i = 0; i < count; i++) {
        if (variables[i]->space == space) {
            each(state, variables[i]);
        }
    }
}

void kernel_variables(const struct kernel *kernel, enum ptx_space space, variable_function *each,
                      void *state) {
    const struct ptx_module *ptx = kernel->module->ptx;
    if (space == PTX_SHARED) {
        each_of(kernel->shared, kernel->shared_count, space, each, state);
        return;
    }
    each_of(ptx->variables, ptx->variable_count, space, each, state);
    for (uint32_t i = 0; i < ptx->function_count; i++) {
        const struct ptx_function *f = ptx->functions[i];
        if (f == kernel->function || !f->entry) {
            each_of(f->variables, f->variable_count, space, each, state);
        }
        if (!f->entry) {
            each_of(f->params, f->param_count, space, each, state);
            each_of(f->results, f->result_count, space, each, state);
        }
    }
}
