/* SPDX-License-Identifier: Apache-2.0
 *
 * launch.c - see driver.h: launches, tensor maps.
 *
 * Invariant: the result of a launch is about its arguments; a fault of the kernel is the result of
 * every later call.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "async/tensor_map.h"
#include "driver/driver.h"
#include "exec/exec.h"
#include "report/record.h"

/* By cuda.h. */
enum { PARAM_END = 0, PARAM_BUFFER = 1, PARAM_BUFFER_SIZE = 2, LAUNCH_COOPERATIVE = 2 };

/* ---- running --------------------------------------------------------------------------------- */

/* What a GPU would answer to what was found; 0: it would not notice. */
static int code_of_kinds(uint64_t kinds) {
    static const struct {
        enum finding_kind kind;
        int code;
    } CODES[] = {
        {FINDING_OUT_OF_BOUNDS, CU_ILLEGAL_ADDRESS},
        {FINDING_USE_AFTER_FREE, CU_ILLEGAL_ADDRESS},
        {FINDING_READ_ONLY, CU_ILLEGAL_ADDRESS},
        {FINDING_MISALIGNED, CU_MISALIGNED_ADDRESS},
        {FINDING_WRONG_SPACE, CU_INVALID_ADDRESS_SPACE},
        {FINDING_ASSERT, CU_ASSERT},
        {FINDING_MATRIX_LOCAL, CU_ILLEGAL_INSTRUCTION},
        {FINDING_TENSOR_MAP, CU_ILLEGAL_INSTRUCTION},
        {FINDING_DESCRIPTOR, CU_ILLEGAL_INSTRUCTION},
        {FINDING_SETMAXNREG, CU_ILLEGAL_INSTRUCTION},
        {FINDING_ILLEGAL_OPERAND, CU_ILLEGAL_INSTRUCTION},
        {FINDING_TRAP, CU_LAUNCH_FAILED},
        {FINDING_STACK, CU_LAUNCH_FAILED},
        {FINDING_MEMORY_LIMIT, CU_LAUNCH_FAILED},
        {FINDING_UNKNOWN, CU_NOT_SUPPORTED},
        {FINDING_DEADLOCK, CU_LAUNCH_TIMEOUT},
        {FINDING_STEPS, CU_LAUNCH_TIMEOUT},
    };
    for (size_t i = 0; i < sizeof CODES / sizeof CODES[0]; i++) {
        if ((kinds & 1ULL << CODES[i].kind) != 0) {
            return CODES[i].code;
        }
    }
    return CU_SUCCESS;
}

/* The first finding that explains the fault, for cuGetErrorString. */
static void explain_fault(void) {
    const struct findings *findings = driver_state.gpu->findings;
    for (size_t i = 0; i < findings->count; i++) {
        const struct record *record = findings->list[i];
        if (code_of_kinds(1ULL << record->kind) == driver_state.fault) {
            const vgpu_finding *shown = &record->shown;
            char why[256];
            snprintf(why, sizeof why, "%s in %.80s at %.80s:%u: %s", shown->kind, shown->kernel,
                     shown->place.file != NULL ? shown->place.file : "PTX",
                     shown->place.file != NULL ? shown->place.line : shown->ptx_line, shown->text);
            driver_explain(driver_state.fault, why);
            return;
        }
    }
}

int kernel_run(const struct node *node, bool always) {
    vgpu_error why = {0};
    struct object *kernel = object_find(node->kernel, OBJECT_KERNEL);
    if (kernel == NULL || kernel->serial != node->kernel_serial) {
        return driver_explain(CU_INVALID_HANDLE, "a kernel of the graph was unloaded");
    }
    if (!always && driver_state.first > 0 && ++kernel->launches > driver_state.first) {
        report_kernel(driver_state.gpu, kernel->function, NULL, FINDING_LAUNCH_LEFT_OUT,
                      "only the first %llu launches of this kernel were run",
                      (unsigned long long)driver_state.first);
        programmatic_forget();
        return CU_SUCCESS;
    }
    struct launch launch =
        launch_make(driver_state.gpu, kernel->function, &node->dims, node->params);
    launch.plain = !node->cooperative;
    if (!driver_checks_launch(kernel->function->function->name)) {
        launch.checks &= VGPU_CHECK_INIT;
        launch.quiet = true;
    }
    findings_take_kinds(driver_state.gpu);
    programmatic_begin(node, &launch);
    streams_launch_begin(&launch);
    registered_copy(true);
    const vgpu_status status = repeat_run(node, &launch, &why);
    registered_copy(false);
    if (driver_state.programmatic) {
        programmatic_end(node, &launch);
    }
    streams_launch_end(node, &launch);
    const uint64_t kinds = findings_take_kinds(driver_state.gpu);
    if (status != VGPU_OK && status != VGPU_FAULT) {
        return driver_explain(status == VGPU_OUT_OF_MEMORY ? CU_OUT_OF_MEMORY : CU_INVALID_VALUE,
                              why.text);
    }
    driver_state.fault = code_of_kinds(kinds);
    if (status == VGPU_FAULT && driver_state.fault == CU_SUCCESS) {
        driver_state.fault = CU_LAUNCH_FAILED;
    }
    if (driver_state.fault != CU_SUCCESS) {
        explain_fault();
        if (getenv("VGPU_EXIT_CODE") != NULL) {
            driver_report(driver_state.gpu); /* before the program reports it, or aborts */
        }
    }
    return CU_SUCCESS;
}

/* ---- launches -------------------------------------------------------------------------------- */

struct launch_attribute { /* CUlaunchAttribute */
    int id;
    int padding;
    union {
        unsigned cluster[3];
        int flag;
        char bytes[64];
    } value;
};

struct launch_config { /* CUlaunchConfig */
    unsigned grid[3], block[3], shared;
    void *stream;
    const struct launch_attribute *attributes;
    unsigned attribute_count;
};

/* Hints are taken and have no effect; what would change results and is not there is refused. */
static int read_attributes(const struct launch_config *config, vgpu_dims *dims, bool *cooperative,
                           bool *programmatic) {
    enum {
        IGNORE = 0,
        WINDOW = 1,
        CLUSTER = 4,
        SCHEDULING = 5,
        SERIALIZATION = 6,
        PRIORITY = 8,
        DOMAIN_MAP = 9,
        DOMAIN = 10,
        CARVEOUT = 14
    };
    if (config->attribute_count > 0 && config->attributes == NULL) {
        return CU_INVALID_VALUE;
    }
    for (unsigned i = 0; i < config->attribute_count; i++) {
        const struct launch_attribute *attribute = &config->attributes[i];
        switch (attribute->id) {
        case IGNORE:
        case WINDOW:
        case SCHEDULING:
        case PRIORITY:
        case DOMAIN_MAP:
        case DOMAIN:
        case CARVEOUT: break;
        case CLUSTER: memcpy(dims->cluster, attribute->value.cluster, sizeof dims->cluster); break;
        case SERIALIZATION: *programmatic = attribute->value.flag != 0; break;
        case LAUNCH_COOPERATIVE: *cooperative = attribute->value.flag != 0; break;
        default: return driver_explain(CU_NOT_SUPPORTED, "an attribute of the launch");
        }
    }
    return CU_SUCCESS;
}

/* The parameters from one buffer, as `extra` names it. */
static unsigned char *params_of_buffer(const struct kernel *kernel, void *const *extra) {
    const void *buffer = NULL;
    size_t size = 0;
    for (; (uintptr_t)extra[0] != PARAM_END; extra += 2) {
        if ((uintptr_t)extra[0] == PARAM_BUFFER) {
            buffer = extra[1];
        } else if ((uintptr_t)extra[0] == PARAM_BUFFER_SIZE) {
            size = *(const size_t *)extra[1];
        } else {
            return NULL;
        }
    }
    const struct ptx_function *function = kernel->function;
    if (buffer == NULL || size != function->param_bytes || function->param_count == 0) {
        return NULL;
    }
    void **arguments = calloc(function->param_count, sizeof *arguments);
    unsigned char *params = NULL;
    vgpu_status status;
    for (uint32_t i = 0; arguments != NULL && i < function->param_count; i++) {
        const unsigned char *at = (const unsigned char *)buffer + function->params[i]->address;
        memcpy(&arguments[i], &at, sizeof at);
    }
    if (arguments != NULL) {
        params = params_make(kernel, arguments, &status, NULL);
    }
    free(arguments);
    return params;
}

/* The code that the driver has for a shape that launch_check refuses. */
static int code_of_shape(const struct kernel *kernel, const vgpu_dims *dims) {
    const uint64_t threads = (uint64_t)dims->block[0] * dims->block[1] * dims->block[2];
    if (threads > kernel_max_threads(kernel) && threads <= 1024) {
        return CU_OUT_OF_RESOURCES;
    }
    for (int i = 0; i < 3; i++) {
        if (dims->grid[i] == 0 || dims->block[i] == 0) {
            return CU_INVALID_VALUE;
        }
    }
    const uint32_t *cluster = dims->cluster;
    if (cluster[0] == 0 || cluster[1] == 0 || cluster[2] == 0) {
        return CU_INVALID_VALUE;
    }
    const uint32_t most = dims->non_portable_cluster ? 16 : 8;
    return cluster[0] * cluster[1] * cluster[2] > most || dims->grid[0] % cluster[0] != 0 ||
                   dims->grid[1] % cluster[1] != 0 || dims->grid[2] % cluster[2] != 0
               ? CU_INVALID_CLUSTER_SIZE
               : CU_INVALID_VALUE;
}

/* Shape and parameters are fine: now, or when the graph runs. */
static int submit(const struct launch_config *config, const struct object *kernel,
                  const vgpu_dims *dims, unsigned char *params, bool programmatic,
                  bool cooperative) {
    struct node *node = node_make(NODE_KERNEL);
    if (node == NULL) {
        free(params);
        return CU_OUT_OF_MEMORY;
    }
    node->kernel = kernel;
    node->kernel_serial = kernel->serial;
    node->dims = *dims;
    node->params = params;
    node->stream = config->stream;
    node->programmatic = programmatic;
    node->cooperative = cooperative;
    return stream_submit(config->stream, node);
}

/* A grid barrier needs all CTAs at once. */
static bool fits_at_once(const struct object *kernel, const vgpu_dims *dims) {
    const uint64_t threads = (uint64_t)dims->block[0] * dims->block[1] * dims->block[2];
    const uint64_t ctas = (uint64_t)dims->grid[0] * dims->grid[1] * dims->grid[2];
    return ctas <=
           (uint64_t)driver_occupancy(kernel->function, (uint32_t)threads, dims->shared_bytes) *
               (uint64_t)driver_attribute(DEVICE_MULTIPROCESSORS);
}

static int launch_kernel(const struct launch_config *config, const struct object *kernel,
                         void **arguments, void **extra) {
    vgpu_dims dims = {.shared_bytes = config->shared};
    memcpy(dims.grid, config->grid, sizeof dims.grid);
    memcpy(dims.block, config->block, sizeof dims.block);
    bool cooperative = false, programmatic = false;
    const int code = read_attributes(config, &dims, &cooperative, &programmatic);
    if (code != CU_SUCCESS) {
        return code;
    }
    if (kernel->max_dynamic_shared >= 0) {
        dims.max_shared_bytes = (uint32_t)kernel->max_dynamic_shared;
    }
    dims.non_portable_cluster = kernel->non_portable_cluster;
    vgpu_error why = {0};
    struct launch shape = launch_make(driver_state.gpu, kernel->function, &dims, NULL);
    if (launch_check(&shape, &why) != VGPU_OK) {
        return driver_explain(code_of_shape(kernel->function, &shape.dims), why.text);
    }
    if (cooperative && !fits_at_once(kernel, &dims)) {
        return driver_explain(CU_COOPERATIVE_TOO_LARGE, "its CTAs do not fit the GPU at once");
    }
    vgpu_status status = VGPU_INVALID;
    unsigned char *params = extra != NULL && arguments == NULL
                                ? params_of_buffer(kernel->function, extra)
                                : params_make(kernel->function, arguments, &status, &why);
    if (params == NULL) {
        return driver_explain(status == VGPU_OUT_OF_MEMORY ? CU_OUT_OF_MEMORY : CU_INVALID_VALUE,
                              why.text[0] != '\0' ? why.text : "the parameters");
    }
    return submit(config, kernel, &dims, params, programmatic, cooperative);
}

static int cuLaunchKernelEx(const struct launch_config *config, void *function, void **arguments,
                            void **extra) {
    DRIVER_ENTER();
    const int code = driver_current();
    const struct object *kernel = object_find(function, OBJECT_KERNEL);
    if (code != CU_SUCCESS || config == NULL || kernel == NULL) {
        return code != CU_SUCCESS ? code : kernel == NULL ? CU_INVALID_HANDLE : CU_INVALID_VALUE;
    }
    if ((uintptr_t)config->stream > 2 && object_find(config->stream, OBJECT_STREAM) == NULL) {
        return CU_INVALID_HANDLE;
    }
    vgpu_dims shape = {.shared_bytes = config->shared};
    memcpy(shape.grid, config->grid, sizeof shape.grid);
    memcpy(shape.block, config->block, sizeof shape.block);
    return call_refused(kernel->function->function->name, &shape,
                        launch_kernel(config, kernel, arguments, extra));
}

static int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                          unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                          void *stream, void **arguments, void **extra) {
    const struct launch_config config = {.grid = {grid_x, grid_y, grid_z},
                                         .block = {block_x, block_y, block_z},
                                         .shared = shared,
                                         .stream = stream};
    return cuLaunchKernelEx(&config, function, arguments, extra);
}

static int cuLaunchCooperativeKernel(void *function, unsigned grid_x, unsigned grid_y,
                                     unsigned grid_z, unsigned block_x, unsigned block_y,
                                     unsigned block_z, unsigned shared, void *stream,
                                     void **arguments) {
    const struct launch_attribute cooperative = {.id = LAUNCH_COOPERATIVE, .value.flag = 1};
    const struct launch_config config = {.grid = {grid_x, grid_y, grid_z},
                                         .block = {block_x, block_y, block_z},
                                         .shared = shared,
                                         .stream = stream,
                                         .attributes = &cooperative,
                                         .attribute_count = 1};
    return cuLaunchKernelEx(&config, function, arguments, NULL);
}

/* ---- tensor maps ----------------------------------------------------------------------------- */

static int cuTensorMapEncodeTiled(void *map, int type, unsigned rank, void *address,
                                  const uint64_t *dims, const uint64_t *strides,
                                  const uint32_t *box, const uint32_t *element_strides,
                                  int interleave, int swizzle, int l2_promotion, int fill) {
    DRIVER_ENTER();
    vgpu_error why;
    if (!driver_state.initialised) {
        return CU_NOT_INITIALIZED;
    }
    return vgpu_tensor_map(driver_state.gpu, map, type, rank, (vgpu_pointer)(uintptr_t)address,
                           dims, strides, box, element_strides, interleave, swizzle, l2_promotion,
                           fill, &why) == VGPU_OK
               ? CU_SUCCESS
               : driver_explain(CU_INVALID_VALUE, why.text);
}

/* A map that is none is refused here; the driver would write into whatever it is. */
static int cuTensorMapReplaceAddress(void *map, void *address) {
    DRIVER_ENTER();
    struct tensor_map old;
    if (!driver_state.initialised) {
        return CU_NOT_INITIALIZED;
    }
    if (map == NULL || (uintptr_t)map % 64 != 0) {
        return driver_explain(CU_INVALID_VALUE, "tensorMap is no multiple of 64 that is not 0");
    }
    if (address == NULL || (uintptr_t)address % 16 != 0) {
        return driver_explain(CU_INVALID_VALUE, "globalAddress is no multiple of 16 that is not 0");
    }
    const char *wrong = tensor_map_check(map, &old);
    if (wrong == NULL) {
        wrong = tensor_map_replace(map, TENSOR_ADDRESS, 0, (uintptr_t)address);
    }
    return wrong == NULL ? CU_SUCCESS : driver_explain(CU_INVALID_VALUE, wrong);
}

const struct driver_function driver_launch_functions[] = {
    DRIVER_FUNCTION(cuLaunchKernelEx, 11060),
    DRIVER_FUNCTION(cuLaunchKernel, 4000),
    DRIVER_FUNCTION(cuLaunchCooperativeKernel, 9000),
    DRIVER_FUNCTION(cuTensorMapEncodeTiled, 12000),
    DRIVER_FUNCTION(cuTensorMapReplaceAddress, 12000),
    {NULL, 0, NULL},
};
