/* SPDX-License-Identifier: Apache-2.0
 *
 * launch.c - see driver.h: launches, graphs, tensor maps.
 *
 * A capturing stream records launches into a graph instead of running them; nothing else can be
 * captured.
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

enum { PARAM_END = 0, PARAM_BUFFER = 1, PARAM_BUFFER_SIZE = 2 }; /* by cuda.h */

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

static int run(const struct object *kernel, const vgpu_dims *dims, unsigned char *params) {
    vgpu_error why = {0};
    struct launch launch = launch_make(driver_state.gpu, kernel->function, dims, params);
    findings_take_kinds(driver_state.gpu);
    const vgpu_status status = launch_run(&launch, &why);
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
static int read_attributes(const struct launch_config *config, vgpu_dims *dims) {
    enum {
        IGNORE = 0,
        WINDOW = 1,
        COOPERATIVE = 2,
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
        case SERIALIZATION:
        case PRIORITY:
        case DOMAIN_MAP:
        case DOMAIN:
        case CARVEOUT: break;
        case CLUSTER: memcpy(dims->cluster, attribute->value.cluster, sizeof dims->cluster); break;
        case COOPERATIVE:
            if (attribute->value.flag != 0) {
                return driver_explain(CU_NOT_SUPPORTED, "cooperative launches");
            }
            break;
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

/* Adds the launch to the graph, which owns the parameters then. */
static int capture(struct object *graph, const struct object *kernel, const vgpu_dims *dims,
                   unsigned char *params) {
    struct node *node = calloc(1, sizeof *node);
    if (node == NULL) {
        free(params);
        return CU_OUT_OF_MEMORY;
    }
    *node = (struct node){
        .kernel = kernel, .kernel_serial = kernel->serial, .dims = *dims, .params = params};
    *(graph->last != NULL ? &graph->last->next : &graph->first) = node;
    graph->last = node;
    return CU_SUCCESS;
}

/* Shape and parameters are fine: now, or when the graph runs. */
static int submit(const struct launch_config *config, const struct object *kernel,
                  const vgpu_dims *dims, unsigned char *params) {
    const struct object *stream = object_find(config->stream, OBJECT_STREAM);
    if (stream != NULL && stream->capture != NULL) {
        return capture(stream->capture, kernel, dims, params);
    }
    const int code = (uintptr_t)config->stream <= 1 && driver_capturing()
                         ? CU_CAPTURE_UNSUPPORTED /* the legacy stream waits for all others */
                         : run(kernel, dims, params);
    free(params);
    return code;
}

static int launch_kernel(const struct launch_config *config, const struct object *kernel,
                         void **arguments, void **extra) {
    vgpu_dims dims = {.shared_bytes = config->shared};
    memcpy(dims.grid, config->grid, sizeof dims.grid);
    memcpy(dims.block, config->block, sizeof dims.block);
    int code = read_attributes(config, &dims);
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
    vgpu_status status = VGPU_INVALID;
    unsigned char *params = extra != NULL && arguments == NULL
                                ? params_of_buffer(kernel->function, extra)
                                : params_make(kernel->function, arguments, &status, &why);
    if (params == NULL) {
        return driver_explain(status == VGPU_OUT_OF_MEMORY ? CU_OUT_OF_MEMORY : CU_INVALID_VALUE,
                              why.text[0] != '\0' ? why.text : "the parameters");
    }
    return submit(config, kernel, &dims, params);
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
    return launch_kernel(config, kernel, arguments, extra);
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

/* ---- graphs ---------------------------------------------------------------------------------- */

static int cuStreamBeginCapture(void *stream, int mode) {
    DRIVER_ENTER();
    const int code = driver_current();
    struct object *found = object_find(stream, OBJECT_STREAM);
    if (code != CU_SUCCESS || mode < 0 || mode > 2) {
        return code != CU_SUCCESS ? code : CU_INVALID_VALUE;
    }
    if (found == NULL || found->capture != NULL) {
        return found == NULL && (uintptr_t)stream > 2 ? CU_INVALID_HANDLE : CU_CAPTURE_UNSUPPORTED;
    }
    found->capture = object_make(OBJECT_GRAPH);
    found->thread = pthread_self();
    return found->capture != NULL ? CU_SUCCESS : CU_OUT_OF_MEMORY;
}

static int cuStreamEndCapture(void *stream, void **graph) {
    DRIVER_ENTER();
    const int code = driver_current();
    struct object *found = object_find(stream, OBJECT_STREAM);
    if (code != CU_SUCCESS || graph == NULL || found == NULL) {
        return code != CU_SUCCESS ? code : graph == NULL ? CU_INVALID_VALUE : CU_INVALID_HANDLE;
    }
    if (found->capture == NULL || !pthread_equal(found->thread, pthread_self())) {
        return found->capture == NULL ? CU_CAPTURE_UNMATCHED : CU_CAPTURE_WRONG_THREAD;
    }
    *graph = found->capture;
    found->capture = NULL;
    return CU_SUCCESS;
}

static bool copy_nodes(struct object *to, const struct object *from) {
    for (const struct node *node = from->first; node != NULL; node = node->next) {
        const struct object *kernel = object_find(node->kernel, OBJECT_KERNEL);
        if (kernel == NULL || kernel->serial != node->kernel_serial) {
            return false;
        }
        void **arguments = calloc(kernel->function->function->param_count + 1, sizeof *arguments);
        for (uint32_t i = 0; arguments != NULL && i < kernel->function->function->param_count;
             i++) {
            arguments[i] = node->params + kernel->function->function->params[i]->address;
        }
        vgpu_status status;
        unsigned char *params =
            arguments != NULL ? params_make(kernel->function, arguments, &status, NULL) : NULL;
        free(arguments);
        if (params == NULL || capture(to, kernel, &node->dims, params) != CU_SUCCESS) {
            return false;
        }
    }
    return true;
}

static int cuGraphInstantiateWithFlags(void **executable, void *graph, unsigned long long flags) {
    DRIVER_ENTER();
    (void)flags;
    const int code = driver_current();
    const struct object *found = object_find(graph, OBJECT_GRAPH);
    if (code != CU_SUCCESS || executable == NULL || found == NULL) {
        return code != CU_SUCCESS ? code : CU_INVALID_VALUE;
    }
    struct object *made = object_make(OBJECT_EXECUTABLE);
    if (made == NULL || !copy_nodes(made, found)) {
        if (made != NULL) {
            object_destroy(made);
        }
        return CU_INVALID_VALUE;
    }
    *executable = made;
    return CU_SUCCESS;
}

static int cuGraphLaunch(void *executable, void *stream) {
    DRIVER_ENTER();
    int code = driver_current();
    const struct object *found = object_find(executable, OBJECT_EXECUTABLE);
    const struct object *on = object_find(stream, OBJECT_STREAM);
    if (code != CU_SUCCESS || found == NULL || (on == NULL && (uintptr_t)stream > 2)) {
        return code != CU_SUCCESS ? code : CU_INVALID_HANDLE;
    }
    if ((on != NULL && on->capture != NULL) || (on == NULL && driver_capturing())) {
        return CU_CAPTURE_UNSUPPORTED;
    }
    for (const struct node *node = found->first;
         node != NULL && code == CU_SUCCESS && driver_state.fault == CU_SUCCESS;
         node = node->next) {
        const struct object *kernel = object_find(node->kernel, OBJECT_KERNEL);
        code = kernel != NULL && kernel->serial == node->kernel_serial
                   ? run(kernel, &node->dims, node->params)
                   : driver_explain(CU_INVALID_HANDLE, "a kernel of the graph was unloaded");
    }
    return code;
}

static int destroy(void *handle, enum object_kind kind) {
    struct object *found = object_find(handle, kind);
    const int code = driver_current();
    if (found != NULL) {
        object_destroy(found);
    }
    return code != CU_SUCCESS || found != NULL ? code : CU_INVALID_VALUE;
}

static int cuGraphDestroy(void *graph) {
    DRIVER_ENTER();
    return destroy(graph, OBJECT_GRAPH);
}

static int cuGraphExecDestroy(void *executable) {
    DRIVER_ENTER();
    return destroy(executable, OBJECT_EXECUTABLE);
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
    DRIVER_FUNCTION(cuStreamBeginCapture, 10010),
    DRIVER_FUNCTION(cuStreamEndCapture, 10000),
    DRIVER_FUNCTION(cuGraphInstantiateWithFlags, 11040),
    {"cuGraphInstantiate", 12000, (driver_any *)cuGraphInstantiateWithFlags},
    DRIVER_FUNCTION(cuGraphLaunch, 10000),
    DRIVER_FUNCTION(cuGraphDestroy, 10000),
    DRIVER_FUNCTION(cuGraphExecDestroy, 10000),
    DRIVER_FUNCTION(cuTensorMapEncodeTiled, 12000),
    DRIVER_FUNCTION(cuTensorMapReplaceAddress, 12000),
    {NULL, 0, NULL},
};
