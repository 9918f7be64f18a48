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
