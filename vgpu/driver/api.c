/* SPDX-License-Identifier: Apache-2.0
 *
 * api.c - vgpu.h: the GPU, its memory, modules, launches.
 *
 * Invariant: after a failure nothing is leaked, nothing was launched, and the caller's error holds
 * one sentence (for PTX: with the line and a caret below it).
 */
#include "driver/api.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "async/tensor_map.h"
#include "exec/exec.h"
#include "machine/heap.h"
#include "machine/status.h"
#include "report/perf.h"
#include "report/record.h"

enum {
    SM_OLDEST = 80,
    SM_NEWEST = 90,
    SM_TENSOR_MAPS = 90,
    THREADS_MOST = 4096,
    PARAM_ALIGNMENT = 128,
    HEAP_BYTES = 8 << 20
};

/* ---- the GPU --------------------------------------------------------------------------------- */

void vgpu_config_init(vgpu_config *config) {
    *config = (vgpu_config){.size = sizeof *config,
                            .sm = SM_NEWEST,
                            .checks = VGPU_CHECK_ALL,
                            .async = VGPU_ASYNC_EAGER,
                            .seed = 1,
                            .max_steps = 10000000000ULL,
                            .max_memory = (size_t)4 << 30,
                            .max_findings = 1000};
}

/* Once a large piece was freed, glibc keeps freed memory up to twice its size. A cluster allocates
 * what the one before it freed: getting that from the system anew costs a fifth of the speed. */
static void keep_freed_memory(void) {
    enum { KEPT = 16 << 20 };
    void *volatile piece = malloc(KEPT); /* else the compiler leaves both out */
    free(piece);
}

static vgpu_status check_config(const vgpu_config *config, vgpu_error *error) {
    if (config->size != sizeof *config) {
        return status_fail(error, VGPU_INVALID,
                           "config.size = %zu, expected %zu: vgpu_config_init "
                           "sets it",
                           config->size, sizeof *config);
    }
    if (config->threads < 0 || config->threads > THREADS_MOST) {
        return status_fail(error, VGPU_INVALID, "config.threads = %" PRId32 ", expected 0 to %d",
                           config->threads, THREADS_MOST);
    }
    if (config->sm < SM_OLDEST || config->sm > SM_NEWEST) {
        return status_fail(error, VGPU_INVALID, "config.sm = %" PRId32 ", expected %d to %d",
                           config->sm, SM_OLDEST, SM_NEWEST);
    }
    if (config->checks > VGPU_CHECK_ALL) {
        return status_fail(error, VGPU_INVALID, "config.checks = %" PRIu32 ", expected 0 to %d",
                           config->checks, VGPU_CHECK_ALL);
    }
    if ((unsigned)config->async > VGPU_ASYNC_RANDOM) {
        return status_fail(error, VGPU_INVALID, "config.async = %d, expected 0 to %d",
                           (int)config->async, VGPU_ASYNC_RANDOM);
    }
    return VGPU_OK;
}

vgpu_status vgpu_open(const vgpu_config *config, vgpu **gpu, vgpu_error *error) {
    vgpu_config defaults;
    if (gpu == NULL) {
        return status_fail(error, VGPU_INVALID, "gpu is NULL, expected a place for the GPU");
    }
    *gpu = NULL;
    if (config == NULL) {
        vgpu_config_init(&defaults);
        config = &defaults;
    }
    const vgpu_status status = check_config(config, error);
    if (status != VGPU_OK) {
        return status;
    }
    keep_freed_memory();
    vgpu *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return status_fail(error, VGPU_OUT_OF_MEMORY, "no memory for a GPU");
    }
    made->config = *config;
    made->heap_limit = HEAP_BYTES;
    made->memory = device_memory_make(config->max_memory);
    made->findings = findings_make();
    if (made->memory == NULL || made->findings == NULL) {
        vgpu_close(made);
        return status_fail(error, VGPU_OUT_OF_MEMORY, "no memory for a GPU with %zu bytes",
                           config->max_memory);
    }
    *gpu = made;
    return status_ok(error);
}

void vgpu_close(vgpu *gpu) {
    if (gpu == NULL) {
        return;
    }
    heap_free(gpu->heap);
    free(gpu->images);
    if (gpu->memory != NULL) {
        device_memory_free(gpu->memory);
    }
    findings_free(gpu->findings);
    suppressions_free(gpu->suppressions);
    perf_free(gpu->perf);
    free(gpu);
}

void vgpu_set_async(vgpu *gpu, vgpu_async async, uint64_t seed) {
    gpu->config.async = async;
    gpu->config.seed = seed;
}

void vgpu_set_late_errors(vgpu *gpu, bool late) {
    gpu->late_errors = late;
}

void vgpu_set_sample(vgpu *gpu, uint32_t ctas) {
    gpu->sample = ctas;
}

void vgpu_set_progress(vgpu *gpu, bool shown) {
    gpu->progress = shown;
}

void vgpu_set_heap(vgpu *gpu, size_t bytes) {
    gpu->heap_limit = bytes;
    if (gpu->heap != NULL) {
        heap_limit(gpu->heap, bytes);
    }
}

void vgpu_stats_get(const vgpu *gpu, vgpu_stats *stats) {
    *stats = gpu->stats;
}

/* ---- memory ---------------------------------------------------------------------------------- */

vgpu_status vgpu_malloc(vgpu *gpu, size_t bytes, const char *label, vgpu_pointer *pointer,
                        vgpu_error *error) {
    if (bytes == 0 || pointer == NULL) {
        return status_fail(error, VGPU_INVALID,
                           bytes == 0 ? "bytes = 0, expected 1 or more" : "pointer is NULL");
    }
    *pointer = device_alloc(gpu->memory, bytes, label);
    if (*pointer == 0) {
        return status_fail(error, VGPU_OUT_OF_MEMORY,
                           "no room for %zu bytes: %zu of %zu bytes of device memory are in use",
                           bytes, device_memory_used(gpu->memory), gpu->config.max_memory);
    }
    return status_ok(error);
}

vgpu_status vgpu_free(vgpu *gpu, vgpu_pointer pointer, vgpu_error *error) {
    if (pointer != 0 && !device_release(gpu->memory, pointer)) {
        return status_fail(error, VGPU_INVALID,
                           "pointer = 0x%" PRIx64 " is no allocation: it was not given by "
                           "vgpu_malloc, or is free already",
                           pointer);
    }
    return status_ok(error);
}

/* The host's bytes of a range; *status and NULL: it does not lie in one allocation. */
static unsigned char *range(vgpu *gpu, const char *name, vgpu_pointer pointer, size_t bytes,
                            bool write, vgpu_status *status, vgpu_error *error) {
    unsigned char *host = device_bytes(gpu->memory, pointer, bytes, write);
    *status = host != NULL
                  ? status_ok(error)
                  : status_fail(error, VGPU_INVALID,
                                "%s = 0x%" PRIx64 " with %zu bytes does not lie in one allocation",
                                name, pointer, bytes);
    return host;
}

vgpu_status vgpu_write(vgpu *gpu, vgpu_pointer to, const void *from, size_t bytes,
                       vgpu_error *error) {
    vgpu_status status = status_ok(error);
    unsigned char *host = bytes > 0 ? range(gpu, "to", to, bytes, true, &status, error) : NULL;
    if (host != NULL) {
        memcpy(host, from, bytes);
    }
    return status;
}

vgpu_status vgpu_read(vgpu *gpu, void *to, vgpu_pointer from, size_t bytes, vgpu_error *error) {
    vgpu_status status = status_ok(error);
    const unsigned char *host =
        bytes > 0 ? range(gpu, "from", from, bytes, false, &status, error) : NULL;
    if (host != NULL) {
        memcpy(to, host, bytes);
    }
    return status;
}

vgpu_status vgpu_fill(vgpu *gpu, vgpu_pointer to, unsigned char byte, size_t bytes,
                      vgpu_error *error) {
    vgpu_status status = status_ok(error);
    unsigned char *host = bytes > 0 ? range(gpu, "to", to, bytes, true, &status, error) : NULL;
    if (host != NULL) {
        memset(host, byte, bytes);
    }
    return status;
}

vgpu_status vgpu_tensor_map(vgpu *gpu, void *map, int type, uint32_t rank, vgpu_pointer address,
                            const uint64_t *dims, const uint64_t *strides, const uint32_t *box,
                            const uint32_t *element_strides, int interleave, int swizzle,
                            int l2_promotion, int fill, vgpu_error *error) {
    char why[256];
    if (gpu->config.sm < SM_TENSOR_MAPS) {
        return status_fail(error, VGPU_INVALID, "tensor maps need sm_90, the GPU is sm_%" PRId32,
                           gpu->config.sm);
    }
    return tensor_map_encode(map, type, rank, address, dims, strides, box, element_strides,
                             interleave, swizzle, l2_promotion, fill, why, sizeof why)
               ? status_ok(error)
               : status_fail(error, VGPU_INVALID, "%s", why);
}

/* ---- modules --------------------------------------------------------------------------------- */

/* "PTX line 12, column 9: unknown form of ld", then the line and the caret. */
static vgpu_status fail_at(const struct vgpu_module *module, vgpu_status status,
                           const struct ptx_error *where, vgpu_error *error) {
    if (error == NULL) {
        return status;
    }
    if (where->line == 0) {
        return status_fail(error, status, "%s", where->text);
    }
    status_fail(error, status, "PTX line %" PRIu32 ", column %" PRIu32 ": %s\n", where->line,
                where->column, where->text);
    error->line = where->line;
    error->column = where->column;
    const size_t length = strlen(error->text);
    ptx_caret(module->text, module->text_size, where->line, where->column, error->text + length,
              sizeof error->text - length);
    return status;
}

static vgpu_status check_target(const struct vgpu_module *module, vgpu_error *error) {
    const struct ptx_module *ptx = module->ptx;
    const uint32_t sm = (uint32_t)module->gpu->config.sm;
    if (ptx->address_size != 64) {
        return status_fail(error, VGPU_LOAD, ".address_size is %" PRIu32 ", expected 64",
                           ptx->address_size);
    }
    if (ptx->target > sm || (ptx->target_suffix != '\0' && ptx->target != sm)) {
        const char suffix[2] = {ptx->target_suffix, '\0'};
        return status_fail(error, VGPU_LOAD, ".target sm_%" PRIu32 "%s does not run on sm_%" PRIu32,
                           ptx->target, suffix, sm);
    }
    return VGPU_OK;
}

static bool has_memory(const struct ptx_variable *variable) {
    return variable->space == PTX_GLOBAL || variable->space == PTX_CONST;
}

/* An allocation for each, so that running over the end of one does not hit another. */
static vgpu_status place_variable(struct vgpu_module *module, struct ptx_variable *variable,
                                  vgpu_error *error) {
    struct ptx_error where = {.line = variable->line, .column = 1};
    if (module->gpu->late_errors && (variable->external || variable->size == 0)) {
        return VGPU_OK;
    }
    if (variable->external || variable->size == 0) {
        snprintf(where.text, sizeof where.text, "variable %.100s has no definition in this module",
                 variable->name);
        return fail_at(module, VGPU_LOAD, &where, error);
    }
    struct device_memory *memory = module->gpu->memory;
    variable->address = device_alloc(memory, (size_t)variable->size, variable->name);
    unsigned char *host = variable->address != 0 ? device_bytes(memory, variable->address,
                                                                (size_t)variable->size, true)
                                                 : NULL;
    if (host == NULL) {
        snprintf(where.text, sizeof where.text,
                 "no device memory for variable %.100s of %" PRIu64 " bytes", variable->name,
                 variable->size);
        return fail_at(module, VGPU_OUT_OF_MEMORY, &where, error);
    }
    if (variable->init != NULL) {
        memcpy(host, variable->init, (size_t)variable->size);
    } else {
        memset(host, 0, (size_t)variable->size);
    }
    if (variable->space == PTX_CONST) {
        device_protect(memory, variable->address);
    }
    return VGPU_OK;
}

/* The addresses among the values of the variable, once everything has one. */
static void place_references(struct vgpu_module *module, const struct ptx_variable *variable) {
    unsigned char *host =
        device_bytes(module->gpu->memory, variable->address, (size_t)variable->size, true);
    for (uint32_t i = 0; host != NULL && i < variable->reference_count; i++) {
        const struct ptx_reference *reference = &variable->references[i];
        const uint64_t to = reference->function != NULL ? reference->function->address
                                                        : reference->variable->address;
        const uint64_t value = (to + (uint64_t)reference->addend) >> reference->shift;
        memcpy(host + reference->at, &value, reference->bytes); /* little-endian hosts */
    }
}

static vgpu_status load(struct vgpu_module *module, vgpu_error *error) {
    struct ptx_error where = {0};
    module->ptx = (module->gpu->late_errors ? ptx_parse_known
                                            : ptx_parse)(module->text, module->text_size, &where);
    if (module->ptx == NULL) {
        return fail_at(module, VGPU_LOAD, &where, error);
    }
    vgpu_status status = check_target(module, error);
    if (status == VGPU_OK && module->gpu->heap == NULL &&
        (module_function(module->ptx, "malloc") != NULL ||
         module_function(module->ptx, "free") != NULL)) {
        module->gpu->heap = heap_make(module->gpu->memory, module->gpu->heap_limit);
        status = module->gpu->heap != NULL
                     ? VGPU_OK
                     : status_fail(error, VGPU_OUT_OF_MEMORY, "no addresses for malloc of kernels");
    }
    for (uint32_t i = 0; status == VGPU_OK && i < module->ptx->variable_count; i++) {
        if (has_memory(module->ptx->variables[i])) {
            status = place_variable(module, module->ptx->variables[i], error);
        }
    }
    if (status == VGPU_OK) {
        status = module_decode(module, &where);
        if (status != VGPU_OK) {
            fail_at(module, status, &where, error);
        }
    }
    for (uint32_t i = 0; status == VGPU_OK && i < module->ptx->variable_count; i++) {
        place_references(module, module->ptx->variables[i]);
    }
    return status;
}

vgpu_status vgpu_load(vgpu *gpu, const char *ptx, size_t size, vgpu_module **module,
                      vgpu_error *error) {
    if (module == NULL || ptx == NULL) {
        return status_fail(error, VGPU_INVALID, "%s is NULL", ptx == NULL ? "ptx" : "module");
    }
    *module = NULL;
    vgpu_module *made = calloc(1, sizeof *made);
    char *text = size < SIZE_MAX ? malloc(size + 1) : NULL;
    if (made == NULL || text == NULL) {
        free(made);
        free(text);
        return status_fail(error, VGPU_OUT_OF_MEMORY, "no memory for %zu bytes of PTX", size);
    }
    memcpy(text, ptx, size);
    text[size] = '\0';
    *made = (vgpu_module){.gpu = gpu, .text = text, .text_size = size};
    const vgpu_status status = load(made, error);
    if (status != VGPU_OK) {
        vgpu_unload(made);
        return status;
    }
    lint_module(made);
    *module = made;
    return status_ok(error);
}

void vgpu_unload(vgpu_module *module) {
    if (module == NULL) {
        return;
    }
    if (module->ptx != NULL) {
        for (uint32_t i = 0; i < module->ptx->variable_count; i++) {
            const struct ptx_variable *variable = module->ptx->variables[i];
            if (has_memory(variable) && variable->address != 0) {
                device_release(module->gpu->memory, variable->address);
            }
        }
        ptx_free(module->ptx);
    }
    free(module->text);
    free(module);
}

/* ---- kernels --------------------------------------------------------------------------------- */

static const struct kernel *entry_at(const vgpu_module *module, size_t index) {
    for (uint32_t i = 0; i < module->kernel_count; i++) {
        if (module->kernels[i]->function->entry && index-- == 0) {
            return module->kernels[i];
        }
    }
    return NULL;
}

uint32_t kernel_max_threads(const struct kernel *kernel) {
    const uint32_t *given =
        kernel->function->reqntid[0] > 0 ? kernel->function->reqntid : kernel->function->maxntid;
    const uint64_t threads =
        (uint64_t)given[0] * (given[1] > 0 ? given[1] : 1) * (given[2] > 0 ? given[2] : 1);
    return threads > 0 && threads < 1024 ? (uint32_t)threads : 1024;
}

static uint64_t declared_local(const struct ptx_function *function) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < function->variable_count; i++) {
        const struct ptx_variable *variable = function->variables[i];
        if (variable->space == PTX_LOCAL) {
            bytes = (bytes + variable->align - 1) / variable->align * variable->align;
            bytes += variable->size;
        }
    }
    return bytes;
}

uint32_t kernel_local_bytes(const struct kernel *kernel) {
    const struct ptx_function *function = kernel->function;
    const struct ptx_module *ptx = kernel->module->ptx;
    uint64_t bytes = declared_local(function);
    bool calls = false;
    for (uint32_t i = 0; i < function->code_count; i++) {
        calls = calls || strcmp(function->code[i].opcode, "call") == 0;
    }
    for (uint32_t i = 0; calls && i < ptx->function_count; i++) {
        bytes += ptx->functions[i]->entry ? 0 : declared_local(ptx->functions[i]);
    }
    return (uint32_t)bytes; /* module_decode has refused more than 512 KB */
}

bool vgpu_kernel_get(const vgpu_module *module, size_t index, vgpu_kernel *kernel) {
    const struct kernel *found = entry_at(module, index);
    if (found == NULL) {
        return false;
    }
    *kernel = (vgpu_kernel){.name = found->function->name,
                            .param_count = found->function->param_count,
                            .param_bytes = found->function->param_bytes,
                            .shared_bytes = found->shared_declared,
                            .local_bytes = kernel_local_bytes(found),
                            .max_threads = kernel_max_threads(found),
                            .instructions = found->code_count,
                            .tensor_instructions = found->tensor_count};
    return true;
}

bool vgpu_param_get(const vgpu_module *module, size_t index, uint32_t param, uint32_t *offset,
                    uint32_t *bytes) {
    const struct kernel *found = entry_at(module, index);
    if (found == NULL || param >= found->function->param_count) {
        return false;
    }
    *offset = (uint32_t)found->function->params[param]->address;
    *bytes = (uint32_t)found->function->params[param]->size;
    return true;
}

const char *vgpu_param_type(const vgpu_module *module, size_t index, uint32_t param, char *text,
                            size_t size) {
    const struct kernel *found = entry_at(module, index);
    text[0] = '\0';
    if (found != NULL && param < found->function->param_count) {
        const struct ptx_variable *v = found->function->params[param];
        const char *type = ptx_type_name(v->type);
        if (v->size == ptx_type_size(v->type)) {
            snprintf(text, size, "%s", type);
        } else {
            snprintf(text, size, "%s[%llu]", type,
                     (unsigned long long)(v->size / ptx_type_size(v->type)));
        }
    }
    return text;
}

vgpu_status vgpu_symbol(const vgpu_module *module, const char *name, vgpu_pointer *pointer,
                        size_t *bytes, const char **type, vgpu_error *error) {
    char readable[256];
    for (uint32_t i = 0; i < module->ptx->variable_count; i++) {
        const struct ptx_variable *v = module->ptx->variables[i];
        if ((v->space == PTX_GLOBAL || v->space == PTX_CONST) &&
            (strcmp(v->name, name) == 0 ||
             strcmp(vgpu_readable_name(v->name, readable, sizeof readable), name) == 0)) {
            *pointer = v->address;
            *bytes = v->size;
            *type = ptx_type_name(v->type);
            return status_ok(error);
        }
    }
    return status_fail(error, VGPU_NOT_FOUND, "the module has no variable %.200s", name);
}

/* ---- launches -------------------------------------------------------------------------------- */

unsigned char *params_make(const struct kernel *kernel, void *const *arguments, vgpu_status *status,
                           vgpu_error *error) {
    const struct ptx_function *function = kernel->function;
    const size_t rounded = ((size_t)function->param_bytes / PARAM_ALIGNMENT + 1) * PARAM_ALIGNMENT;
    for (uint32_t i = 0; i < function->param_count; i++) {
        if (arguments == NULL || arguments[i] == NULL) {
            *status = status_fail(
                error, VGPU_INVALID,
                "arguments%s is NULL at parameter %" PRIu32 " of the %" PRIu32 " that %s takes",
                arguments == NULL ? "" : "[i]", i, function->param_count, function->name);
            return NULL;
        }
    }
    unsigned char *params = aligned_alloc(PARAM_ALIGNMENT, rounded);
    if (params == NULL) {
        *status = status_fail(error, VGPU_OUT_OF_MEMORY, "no memory for %zu bytes of parameters",
                              rounded);
        return NULL;
    }
    memset(params, 0, rounded);
    for (uint32_t i = 0; i < function->param_count; i++) {
        const struct ptx_variable *param = function->params[i];
        memcpy(params + param->address, arguments[i], (size_t)param->size);
    }
    return params;
}

struct launch launch_make(vgpu *gpu, const struct kernel *kernel, const vgpu_dims *dims,
                          unsigned char *params) {
    return (struct launch){.gpu = gpu,
                           .kernel = kernel,
                           .dims = *dims,
                           .params = params,
                           .seed = gpu->config.seed,
                           .async = gpu->config.async,
                           .checks = gpu->config.checks,
                           .max_steps = gpu->config.max_steps};
}

vgpu_status launch_run(struct launch *launch, vgpu_error *error) {
    lint_launch(launch->kernel);
    if (launch->gpu->heap != NULL) {
        heap_recycle(launch->gpu->heap);
    }
    const vgpu_status status = exec_launch(launch, error);
    launch->gpu->launches += status == VGPU_OK || status == VGPU_FAULT;
    return status == VGPU_OK ? status_ok(error) : status;
}

vgpu_status vgpu_launch(vgpu *gpu, const vgpu_module *module, const char *kernel,
                        const vgpu_dims *dims, void *const *arguments, vgpu_error *error) {
    if (module == NULL || kernel == NULL || dims == NULL) {
        return status_fail(error, VGPU_INVALID, "%s is NULL",
                           module == NULL   ? "module"
                           : kernel == NULL ? "kernel"
                                            : "dims");
    }
    const struct kernel *found = module_kernel(module, kernel);
    if (found == NULL || !found->function->entry) {
        return status_fail(error, VGPU_NOT_FOUND, "kernel = \"%.200s\" is no entry of the module",
                           kernel);
    }
    vgpu_status status = status_ok(error);
    unsigned char *params = params_make(found, arguments, &status, error);
    if (params == NULL) {
        return status;
    }
    struct launch launch = launch_make(gpu, found, dims, params);
    status = launch_run(&launch, error);
    free(params);
    return status;
}
