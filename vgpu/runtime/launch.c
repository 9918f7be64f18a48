/* SPDX-License-Identifier: Apache-2.0
 *
 * launch.c - see runtime.h: launches, attributes of kernels, occupancy.
 */
#include <string.h>

#include "runtime/runtime.h"

enum {
    LAUNCH_COOPERATIVE = 2,
    FUNCTION_ATTRIBUTES = 16,
    DEVICE_SHARED = 81,
    DEVICE_SHARED_OF_SYSTEM = 111,
    DEVICE_MULTIPROCESSORS = 16,
    CLUSTER_MOST = 8
};

/* ---- configurations: what stands between <<< and >>> ----------------------------------------- */

struct configuration {
    struct rt_dim grid, block;
    size_t shared;
    void *stream;
};

enum { CONFIGURATIONS = 64 }; /* of launches inside the arguments of launches */
static _Thread_local struct configuration pushed[CONFIGURATIONS];
static _Thread_local int depth;

RT unsigned __cudaPushCallConfiguration(struct rt_dim grid, struct rt_dim block, size_t shared,
                                        void *stream) {
    if (depth == CONFIGURATIONS) {
        return 1;
    }
    pushed[depth++] = (struct configuration){grid, block, shared, stream};
    return 0;
}

RT int __cudaPopCallConfiguration(struct rt_dim *grid, struct rt_dim *block, size_t *shared,
                                  void **stream) {
    if (depth == 0) {
        return rt_keep(RT_INVALID_CONFIGURATION);
    }
    const struct configuration *top = &pushed[--depth];
    *grid = top->grid;
    *block = top->block;
    *shared = top->shared;
    *stream = top->stream;
    return RT_SUCCESS;
}

/* ---- launches -------------------------------------------------------------------------------- */

static int launch(const struct rt_driver_config *config, const void *kernel, void **arguments) {
    void *function = NULL;
    int code = rt_ready();
    code = code == RT_SUCCESS ? rt_function(kernel, &function) : code;
    if (code != RT_SUCCESS) {
        return rt_keep_in("cudaLaunchKernel", code);
    }
    code = rt_driver.cuLaunchKernelEx(config, function, arguments, NULL);
    rt_keep_in("cudaLaunchKernel", code);
    return rt_keep(code == RT_INVALID_VALUE ? RT_INVALID_CONFIGURATION : code);
}

static int launch_plain(const void *kernel, struct rt_dim grid, struct rt_dim block,
                        void **arguments, size_t shared, void *stream, bool cooperative) {
    const struct rt_attribute attribute = {.id = LAUNCH_COOPERATIVE, .value.flag = 1};
    const struct rt_driver_config config = {.grid = grid,
                                            .block = block,
                                            .shared = (unsigned)shared,
                                            .stream = stream,
                                            .attributes = &attribute,
                                            .attribute_count = cooperative};
    return launch(&config, kernel, arguments);
}

RT int cudaLaunchKernel(const void *stub, struct rt_dim grid, struct rt_dim block, void **arguments,
                        size_t shared, void *stream) {
    return launch_plain(stub, grid, block, arguments, shared, stream, false);
}

RT int __cudaLaunchKernel(const void *kernel, struct rt_dim grid, struct rt_dim block,
                          void **arguments, size_t shared, void *stream) {
    return launch_plain(kernel, grid, block, arguments, shared, stream, false);
}

RT int cudaLaunchCooperativeKernel(const void *stub, struct rt_dim grid, struct rt_dim block,
                                   void **arguments, size_t shared, void *stream) {
    return launch_plain(stub, grid, block, arguments, shared, stream, true);
}

struct launch_config { /* cudaLaunchConfig_t */
    struct rt_dim grid, block;
    size_t shared;
    void *stream;
    const struct rt_attribute *attributes;
    unsigned attribute_count;
};

RT int cudaLaunchKernelExC(const struct launch_config *given, const void *stub, void **arguments) {
    if (given == NULL) {
        return rt_keep(RT_INVALID_CONFIGURATION);
    }
    const struct rt_driver_config config = {.grid = given->grid,
                                            .block = given->block,
                                            .shared = (unsigned)given->shared,
                                            .stream = given->stream,
                                            .attributes = given->attributes,
                                            .attribute_count = given->attribute_count};
    return launch(&config, stub, arguments);
}

/* ---- attributes ------------------------------------------------------------------------------ */

static int function_of(const void *kernel, void **function) {
    const int code = rt_ready();
    return code == RT_SUCCESS ? rt_function(kernel, function) : code;
}

struct function_attributes { /* cudaFuncAttributes */
    size_t shared, constant, local;
    int max_threads, registers, ptx_version, binary_version, cache_mode, max_dynamic_shared,
        carveout, must_set_cluster, cluster[3], scheduling, non_portable_cluster, reserved[16];
};

RT int cudaFuncGetAttributes(struct function_attributes *attributes, const void *kernel) {
    void *function = NULL;
    int code = attributes != NULL ? function_of(kernel, &function) : RT_INVALID_VALUE;
    int values[FUNCTION_ATTRIBUTES] = {0};
    for (int i = 0; code == RT_SUCCESS && i < FUNCTION_ATTRIBUTES; i++) {
        code = rt_driver.cuFuncGetAttribute(&values[i], i, function);
    }
    if (code == RT_SUCCESS) {
        *attributes = (struct function_attributes){
            .max_threads = values[0],
            .shared = (size_t)values[1],
            .constant = (size_t)values[2],
            .local = (size_t)values[3],
            .registers = values[4],
            .ptx_version = values[5],
            .binary_version = values[6],
            .cache_mode = values[7],
            .max_dynamic_shared = values[8],
            .carveout = values[9],
            .must_set_cluster = values[10],
            .cluster = {values[11], values[12], values[13]},
            .non_portable_cluster = values[14],
            .scheduling = values[15],
        };
    }
    return rt_keep(code);
}

RT int cudaFuncSetAttribute(const void *kernel, int which, int value) {
    void *function = NULL;
    const int code = function_of(kernel, &function);
    return rt_keep(code == RT_SUCCESS ? rt_driver.cuKernelSetAttribute(which, value, function, 0)
                                      : code);
}

RT int cudaFuncSetCacheConfig(const void *kernel, int config) {
    void *function = NULL;
    (void)config;
    return rt_keep(function_of(kernel, &function));
}

/* ---- occupancy ------------------------------------------------------------------------------- */

RT int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *kernel,
                                                              int threads, size_t shared,
                                                              unsigned flags) {
    void *function = NULL;
    (void)flags;
    const int code = function_of(kernel, &function);
    return rt_keep(code == RT_SUCCESS ? rt_driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(
                                            blocks, function, threads, shared)
                                      : code);
}

RT int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *kernel, int threads,
                                                     size_t shared) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, kernel, threads, shared,
                                                                  0);
}

RT int cudaOccupancyAvailableDynamicSMemPerBlock(size_t *shared, const void *kernel, int blocks,
                                                 int threads) {
    void *function = NULL;
    int all = 0, own = 0, reserved = 0;
    (void)threads;
    const int code =
        shared != NULL && blocks > 0 ? function_of(kernel, &function) : RT_INVALID_VALUE;
    if (code == RT_SUCCESS) {
        rt_driver.cuDeviceGetAttribute(&all, DEVICE_SHARED, 0);
        rt_driver.cuDeviceGetAttribute(&reserved, DEVICE_SHARED_OF_SYSTEM, 0);
        rt_driver.cuFuncGetAttribute(&own, 1, function);
        const int left = all / blocks - own - reserved;
        *shared = left > 0 ? (size_t)left : 0;
    }
    return rt_keep(code);
}

RT int cudaOccupancyMaxPotentialClusterSize(int *ctas, const void *kernel,
                                            const struct launch_config *config) {
    void *function = NULL;
    const int code =
        ctas != NULL && config != NULL ? function_of(kernel, &function) : RT_INVALID_VALUE;
    if (code == RT_SUCCESS) {
        *ctas = CLUSTER_MOST;
    }
    return rt_keep(code);
}

RT int cudaOccupancyMaxActiveClusters(int *clusters, const void *kernel,
                                      const struct launch_config *config) {
    enum { ATTRIBUTE_CLUSTER = 4 };
    if (clusters == NULL || config == NULL) {
        return rt_keep(RT_INVALID_VALUE);
    }
    const unsigned threads = config->block.x * config->block.y * config->block.z;
    unsigned ctas = 1;
    int blocks = 0, processors = 0;
    for (unsigned i = 0; i < config->attribute_count; i++) {
        const struct rt_attribute *attribute = &config->attributes[i];
        if (attribute->id == ATTRIBUTE_CLUSTER) {
            ctas =
                attribute->value.words[0] * attribute->value.words[1] * attribute->value.words[2];
        }
    }
    const int code = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, (int)threads,
                                                                   config->shared);
    if (code == RT_SUCCESS && ctas > 0) {
        rt_driver.cuDeviceGetAttribute(&processors, DEVICE_MULTIPROCESSORS, 0);
        *clusters = blocks * processors / (int)ctas;
    }
    return code;
}
