/* SPDX-License-Identifier: Apache-2.0
 *
 * graph.c - see runtime.h: graphs, captured or built node by node. A node is added by capturing the
 * call that does its work into the graph; nodes run in the order in which they were added.
 *
 * Invariant: a dependency that is added later than both of its nodes must agree with their order,
 * else it is refused.
 */
#include <stdlib.h>

#include "runtime/runtime.h"

#define AFTER_READY(call)                                                                          \
    const int ready = rt_ready();                                                                  \
    return rt_keep(ready != RT_SUCCESS ? ready : (call))

enum { CAPTURE_RELAXED = 2 };

/* ---- nodes ----------------------------------------------------------------------------------- */

struct memset_node { /* cudaMemsetParams */
    void *to;
    size_t pitch;
    unsigned value, element_bytes;
    size_t width, rows;
};
struct host_node { /* cudaHostNodeParams */
    void (*function)(void *);
    void *data;
};

/* A stream that captures into the graph until node_end. */
static int node_begin(void *graph, void *const *dependencies, size_t count, void **stream) {
    int code = rt_ready();
    code = code == RT_SUCCESS ? rt_driver.cuStreamCreate(stream, 1) : code;
    if (code == RT_SUCCESS) {
        code = rt_driver.cuStreamBeginCaptureToGraph(*stream, graph, dependencies, NULL, count,
                                                     CAPTURE_RELAXED);
    }
    return rt_keep(code);
}

/* The last node is the one that was added. */
static int node_end(void *graph, void *stream, int code, const void **node) {
    void *same = NULL;
    rt_driver.cuStreamEndCapture(stream, &same);
    rt_driver.cuStreamDestroy(stream);
    size_t count = 0;
    if (code == RT_SUCCESS && node != NULL) {
        rt_driver.cuGraphGetNodes(graph, NULL, &count);
        const void **nodes = calloc(count + 1, sizeof *nodes);
        code = nodes != NULL ? rt_driver.cuGraphGetNodes(graph, nodes, &count) : RT_OUT_OF_MEMORY;
        if (code == RT_SUCCESS && count > 0) {
            *node = nodes[count - 1];
        }
        free(nodes);
    }
    return rt_keep(code);
}

/* Defines a function that adds a node: its last parameters, and the call on `stream`. */
#define ADD_NODE(name, call, ...)                                                                  \
    RT int name(const void **node, void *graph, void *const *dependencies, size_t count,           \
                __VA_ARGS__) {                                                                     \
        void *stream = NULL;                                                                       \
        const int code = node_begin(graph, dependencies, count, &stream);                          \
        return code != RT_SUCCESS ? code : node_end(graph, stream, (call), node);                  \
    }

static int launch(const struct rt_kernel_node *p, void *stream) {
    return cudaLaunchKernel(p->kernel, p->grid, p->block, p->arguments, p->shared, stream);
}

static int fill(const struct memset_node *p, void *stream) {
    const unsigned byte = p->value & 0xff;
    const unsigned all = p->element_bytes == 4   ? byte * 0x01010101U
                         : p->element_bytes == 2 ? byte * 0x0101U
                                                 : byte;
    return p->value == all ? cudaMemset2DAsync(p->to, p->pitch, (int)byte,
                                               p->width * p->element_bytes, p->rows, stream)
                           : RT_NOT_SUPPORTED; /* words of different bytes */
}

static void nothing(void *data) {
    (void)data;
}

ADD_NODE(cudaGraphAddKernelNode, launch(p, stream), const struct rt_kernel_node *p)
ADD_NODE(cudaGraphAddMemcpyNode, cudaMemcpy3DAsync(p, stream), const struct rt_copy_3d *p)
ADD_NODE(cudaGraphAddMemcpyNode1D, cudaMemcpyAsync(to, from, bytes, kind, stream), void *to,
         const void *from, size_t bytes, int kind)
ADD_NODE(cudaGraphAddMemcpyNodeToSymbol,
         cudaMemcpyToSymbolAsync(to, from, bytes, offset, kind, stream), const void *to,
         const void *from, size_t bytes, size_t offset, int kind)
ADD_NODE(cudaGraphAddMemcpyNodeFromSymbol,
         cudaMemcpyFromSymbolAsync(to, from, bytes, offset, kind, stream), void *to,
         const void *from, size_t bytes, size_t offset, int kind)
ADD_NODE(cudaGraphAddMemsetNode, fill(p, stream), const struct memset_node *p)
ADD_NODE(cudaGraphAddHostNode, rt_driver.cuLaunchHostFunc(stream, p->function, p->data),
         const struct host_node *p)

struct alloc_node { /* cudaMemAllocNodeParams */
    unsigned char pool[88];
    const void *accesses;
    size_t access_count, bytes;
    void *pointer;
};
static void record_event(void *event) {
    cudaEventRecord(event, NULL);
}

ADD_NODE(cudaGraphAddMemAllocNode, cudaMallocAsync(&p->pointer, p->bytes, stream),
         struct alloc_node *p)
ADD_NODE(cudaGraphAddMemFreeNode, cudaFreeAsync(pointer, stream), void *pointer)
ADD_NODE(cudaGraphAddEventRecordNode, rt_driver.cuLaunchHostFunc(stream, record_event, event),
         void *event)
/* What it waits for is done before. */
ADD_NODE(cudaGraphAddEventWaitNode, rt_driver.cuLaunchHostFunc(stream, nothing, event), void *event)

RT int cudaGraphAddEmptyNode(const void **node, void *graph, void *const *dependencies,
                             size_t count) {
    const struct host_node empty = {nothing, NULL};
    return cudaGraphAddHostNode(node, graph, dependencies, count, &empty);
}

RT int cudaGraphAddChildGraphNode(const void **node, void *graph, void *const *dependencies,
                                  size_t count, void *child) {
    AFTER_READY(rt_driver.cuGraphAddChildGraphNode(node, graph, dependencies, count, child));
}

struct conditional_node { /* cudaConditionalNodeParams */
    uint64_t handle;
    int type;
    unsigned count;
    void **bodies;
};

struct any_node { /* cudaGraphNodeParams */
    int type, reserved[3];
    union {
        int64_t bytes[29];
        struct rt_kernel_node kernel;
        struct {
            int flags, reserved[3];
            struct rt_copy_3d *copy; /* where it begins */
        } copy;
        struct memset_node fill;
        struct host_node host;
        struct alloc_node alloc;
        struct conditional_node conditional;
        void *handle; /* of a graph, an event, memory */
    } of;
    int64_t more;
};

RT int cudaGraphAddNode(const void **node, void *graph, void *const *dependencies,
                        const void *edges, size_t count, struct any_node *p) {
    enum {
        KERNEL,
        COPY,
        FILL,
        HOST,
        GRAPH,
        EMPTY,
        WAIT,
        RECORD,
        ALLOC = 10,
        FREE,
        CONDITIONAL = 13
    };
    void *const *after = dependencies;
    (void)edges;
    switch (p != NULL ? p->type : -1) {
    case KERNEL: return cudaGraphAddKernelNode(node, graph, after, count, &p->of.kernel);
    case COPY: return cudaGraphAddMemcpyNode(node, graph, after, count, (void *)&p->of.copy.copy);
    case FILL: return cudaGraphAddMemsetNode(node, graph, after, count, &p->of.fill);
    case HOST: return cudaGraphAddHostNode(node, graph, after, count, &p->of.host);
    case GRAPH: return cudaGraphAddChildGraphNode(node, graph, after, count, p->of.handle);
    case EMPTY: return cudaGraphAddEmptyNode(node, graph, after, count);
    case WAIT: return cudaGraphAddEventWaitNode(node, graph, after, count, p->of.handle);
    case RECORD: return cudaGraphAddEventRecordNode(node, graph, after, count, p->of.handle);
    case ALLOC: return cudaGraphAddMemAllocNode(node, graph, after, count, &p->of.alloc);
    case FREE: return cudaGraphAddMemFreeNode(node, graph, after, count, p->of.handle);
    case CONDITIONAL:
        return rt_keep(rt_driver.vgpuGraphAddConditional(
            node, graph, p->of.conditional.handle, p->of.conditional.type, p->of.conditional.count,
            &p->of.conditional.bodies));
    default: return rt_keep(p != NULL ? RT_NOT_SUPPORTED : RT_INVALID_VALUE);
    }
}

/* A handle is the address of its current value. Its initial value follows in memory; a copy node,
 * added before the nodes that use the handle, assigns it in each launch. */
RT int cudaGraphConditionalHandleCreate(uint64_t *handle, void *graph, unsigned value,
                                        unsigned flags) {
    enum { ASSIGN = 1 };
    if (handle == NULL || flags > ASSIGN) {
        return rt_keep(RT_INVALID_VALUE);
    }
    int code = rt_ready();
    code = code == RT_SUCCESS ? rt_driver.vgpuGraphConditionalHandle(handle, value) : code;
    char *memory = (char *)(uintptr_t)*handle; /* NOLINT */
    return code != RT_SUCCESS || flags != ASSIGN
               ? rt_keep(code)
               : cudaGraphAddMemcpyNode1D(NULL, graph, NULL, 0, memory, memory + sizeof value,
                                          sizeof value, DEVICE_TO_DEVICE);
}

/* ---- graphs ---------------------------------------------------------------------------------- */

RT int cudaGraphCreate(void **graph, unsigned flags) {
    AFTER_READY(rt_driver.cuGraphCreate(graph, flags));
}

RT int cudaGraphClone(void **copy, void *graph) {
    AFTER_READY(rt_driver.cuGraphClone(copy, graph));
}

RT int cudaGraphGetNodes(void *graph, const void **nodes, size_t *count) {
    AFTER_READY(rt_driver.cuGraphGetNodes(graph, nodes, count));
}

static size_t place_of(const void *node, const void *const *nodes, size_t count) {
    size_t place = 0;
    while (place < count && nodes[place] != node) {
        place++;
    }
    return place;
}

RT int cudaGraphAddDependencies(void *graph, const void *const *from, const void *const *to,
                                const void *edges, size_t count) {
    size_t all = 0;
    (void)edges;
    int code = rt_ready();
    code = code == RT_SUCCESS ? rt_driver.cuGraphGetNodes(graph, NULL, &all) : code;
    const void **nodes = calloc(all + 1, sizeof *nodes);
    if (code != RT_SUCCESS || nodes == NULL) {
        free(nodes);
        return rt_keep(code != RT_SUCCESS ? code : RT_OUT_OF_MEMORY);
    }
    rt_driver.cuGraphGetNodes(graph, nodes, &all);
    for (size_t i = 0; i < count && code == RT_SUCCESS; i++) {
        code = place_of(from[i], nodes, all) < place_of(to[i], nodes, all) ? RT_SUCCESS
                                                                           : RT_NOT_SUPPORTED;
        code = code == RT_SUCCESS ? rt_driver.vgpuGraphDepend(graph, from[i], to[i]) : code;
    }
    free(nodes);
    return rt_keep(code);
}

RT int cudaGraphInstantiateWithFlags(void **executable, void *graph, unsigned long long flags) {
    AFTER_READY(rt_driver.cuGraphInstantiate(executable, graph, flags));
}

RT int cudaGraphInstantiate(void **executable, void *graph, unsigned long long flags) {
    return cudaGraphInstantiateWithFlags(executable, graph, flags);
}

RT int cudaGraphExecUpdate(void *executable, void *graph, void *result) {
    AFTER_READY(rt_driver.cuGraphExecUpdate(executable, graph, result));
}

/* Puts the node that `graph` consists of into the executable graph, from its next launch on. */
static int replace(void *executable, const void *node, void *graph, int code) {
    code = code == RT_SUCCESS ? rt_driver.vgpuGraphExecNodeReplace(executable, node, graph) : code;
    if (graph != NULL) {
        rt_driver.cuGraphDestroy(graph);
    }
    return rt_keep(code);
}

/* Defines a function that changes a node: `add` adds the new one to `graph`. */
#define SET_NODE(name, add, ...)                                                                   \
    RT int name(void *executable, const void *node, __VA_ARGS__) {                                 \
        void *graph = NULL;                                                                        \
        const int code = cudaGraphCreate(&graph, 0);                                               \
        return replace(executable, node, graph, code == RT_SUCCESS ? (add) : code);                \
    }

SET_NODE(cudaGraphExecKernelNodeSetParams, cudaGraphAddKernelNode(NULL, graph, NULL, 0, p),
         const struct rt_kernel_node *p)
SET_NODE(cudaGraphExecMemcpyNodeSetParams, cudaGraphAddMemcpyNode(NULL, graph, NULL, 0, p),
         const struct rt_copy_3d *p)
SET_NODE(cudaGraphExecMemcpyNodeSetParams1D,
         cudaGraphAddMemcpyNode1D(NULL, graph, NULL, 0, to, from, bytes, kind), void *to,
         const void *from, size_t bytes, int kind)
SET_NODE(cudaGraphExecMemsetNodeSetParams, cudaGraphAddMemsetNode(NULL, graph, NULL, 0, p),
         const struct memset_node *p)
SET_NODE(cudaGraphExecHostNodeSetParams, cudaGraphAddHostNode(NULL, graph, NULL, 0, p),
         const struct host_node *p)

RT int cudaGraphUpload(void *executable, void *stream) {
    (void)executable;
    AFTER_READY(rt_driver.cuStreamQuery(stream));
}

RT int cudaGraphLaunch(void *executable, void *stream) {
    AFTER_READY(rt_driver.cuGraphLaunch(executable, stream));
}

RT int cudaGraphDestroy(void *graph) {
    AFTER_READY(rt_driver.cuGraphDestroy(graph));
}

RT int cudaGraphExecDestroy(void *executable) {
    AFTER_READY(rt_driver.cuGraphExecDestroy(executable));
}
