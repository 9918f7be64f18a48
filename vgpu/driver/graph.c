/* SPDX-License-Identifier: Apache-2.0
 *
 * graph.c - see driver.h: work of streams (copies, fills, functions of the host), captures, graphs.
 *
 * A capturing stream records its work into a graph instead of doing it. A graph runs its nodes in
 * the order in which they were added: each was added after those it depends on.
 *
 * Invariant: an executable graph shares nothing with the graph it was made from.
 */
#include <stdlib.h>
#include <string.h>

#include "driver/driver.h"
#include "machine/device.h"

/* ---- work ------------------------------------------------------------------------------------ */

struct node *node_make(enum node_kind kind) {
    struct node *node = calloc(1, sizeof *node);
    if (node != NULL) {
        node->kind = kind;
    }
    return node;
}

static int nodes_run(const struct object *graph, bool always);

/* cudaGraphSetConditional in a kernel has written the value at `to`. The launches of a body always
 * run: one that is left out would not end the loop. */
static int conditional_run(const struct node *node) {
    struct device_memory *memory = driver_state.gpu->memory;
    for (;;) {
        uint32_t value = 0;
        const unsigned char *at = device_bytes(memory, node->to, sizeof value, false);
        if (at == NULL) {
            return driver_explain(CU_INVALID_VALUE, "the handle of a conditional node");
        }
        memcpy(&value, at, sizeof value);
        const uint32_t body = node->condition == CONDITION_SWITCH ? value : value == 0;
        if (body >= node->body_count) {
            return CU_SUCCESS;
        }
        const int code = nodes_run(node->bodies[body], true);
        if (code != CU_SUCCESS || driver_state.fault != CU_SUCCESS ||
            node->condition != CONDITION_WHILE) {
            return code;
        }
    }
}

/* `always`: its launches are not left out. */
static int node_run(const struct node *node, bool always) {
    if (node->kind != NODE_KERNEL) {
        programmatic_forget();
    }
    switch (node->kind) {
    case NODE_CONDITIONAL: return conditional_run(node);
    case NODE_KERNEL: return kernel_run(node, always);
    case NODE_COPY: streams_copy(node); return unified_copy(node->to, node->from, node->bytes);
    case NODE_ALLOC: return memory_again(node->to, node->bytes);
    case NODE_FREE: return memory_give(node->to);
    case NODE_FILL:
        streams_copy(node);
        return memory_fill(node->to, node->value, node->element, node->bytes);
    default:
        driver_leave(NULL); /* it may take locks that a caller of the driver holds */
        node->function(node->data);
        driver_enter();
        return CU_SUCCESS;
    }
}

static int nodes_run(const struct object *graph, bool always) {
    int code = CU_SUCCESS;
    for (const struct node *node = graph->first;
         node != NULL && code == CU_SUCCESS && driver_state.fault == CU_SUCCESS;
         node = node->next) {
        code = node_run(node, always);
    }
    return code;
}

static void append(struct object *graph, struct node *node) {
    *(graph->last != NULL ? &graph->last->next : &graph->first) = node;
    graph->last = node;
}

int stream_submit(void *stream, struct node *node) {
    struct object *found = object_find(stream, OBJECT_STREAM);
    if (found != NULL && found->capture != NULL) {
        append(found->capture, node);
        depends_append(found->capture, found, node);
        return CU_SUCCESS;
    }
    node->stream = stream;
    const int code = (uintptr_t)stream <= 1 && driver_capturing()
                         ? CU_CAPTURE_UNSUPPORTED /* the legacy stream waits for all others */
                         : node_run(node, false);
    free(node->params);
    free(node);
    return code;
}

/* A node for work on the stream, if that may be given; else NULL and the code. */
static struct node *begin(void *stream, enum node_kind kind, int *code) {
    *code = driver_current();
    if (*code == CU_SUCCESS && !is_stream(stream)) {
        *code = CU_INVALID_HANDLE;
    }
    struct node *node = *code == CU_SUCCESS ? node_make(kind) : NULL;
    *code = *code == CU_SUCCESS && node == NULL ? CU_OUT_OF_MEMORY : *code;
    return node;
}

static int cuMemcpyAsync(vgpu_pointer to, vgpu_pointer from, size_t bytes, void *stream) {
    DRIVER_ENTER();
    int code;
    struct node *node = begin(stream, NODE_COPY, &code);
    if (node == NULL) {
        return code;
    }
    node->to = to;
    node->from = from;
    node->bytes = bytes;
    return stream_submit(stream, node);
}

static int cuMemcpy(vgpu_pointer to, vgpu_pointer from, size_t bytes) {
    return cuMemcpyAsync(to, from, bytes, NULL);
}

int stream_fill(void *stream, vgpu_pointer to, unsigned value, unsigned element, size_t bytes) {
    int code;
    struct node *node = begin(stream, NODE_FILL, &code);
    if (node == NULL) {
        return code;
    }
    node->to = to;
    node->value = value;
    node->element = element;
    node->bytes = bytes;
    return stream_submit(stream, node);
}

static int cuMemsetD8Async(vgpu_pointer to, unsigned char byte, size_t bytes, void *stream) {
    DRIVER_ENTER();
    return stream_fill(stream, to, byte, 1, bytes);
}

/* A graph that allocates has the address from the beginning. */
static int cuMemAllocAsync(vgpu_pointer *pointer, size_t bytes, void *stream) {
    DRIVER_ENTER();
    int code;
    struct node *node = pointer != NULL && bytes > 0 ? begin(stream, NODE_ALLOC, &code) : NULL;
    if (node == NULL) {
        return pointer != NULL && bytes > 0 ? code : CU_INVALID_VALUE;
    }
    code = memory_take(pointer, bytes);
    if (code != CU_SUCCESS) {
        free(node);
        return code;
    }
    node->to = *pointer;
    node->bytes = bytes;
    return stream_submit(stream, node);
}

static int cuMemFreeAsync(vgpu_pointer pointer, void *stream) {
    DRIVER_ENTER();
    int code;
    struct node *node = begin(stream, NODE_FREE, &code);
    if (node == NULL) {
        return code;
    }
    node->to = pointer;
    return stream_submit(stream, node);
}

static int cuLaunchHostFunc(void *stream, void (*function)(void *), void *data) {
    DRIVER_ENTER();
    int code;
    struct node *node = function != NULL ? begin(stream, NODE_HOST, &code) : NULL;
    if (node == NULL) {
        return function != NULL ? code : CU_INVALID_VALUE;
    }
    node->function = function;
    node->data = data;
    return stream_submit(stream, node);
}

/* ---- captures -------------------------------------------------------------------------------- */

/* graph: what to add to; NULL: a new one. */
static int begin_capture(void *stream, int mode, struct object *graph, void *const *nodes,
                         size_t count) {
    const int code = driver_current();
    struct object *found = object_find(stream, OBJECT_STREAM);
    if (code != CU_SUCCESS || mode < 0 || mode > 2) {
        return code != CU_SUCCESS ? code : CU_INVALID_VALUE;
    }
    if (found == NULL || found->capture != NULL) {
        return found == NULL && (uintptr_t)stream > 2 ? CU_INVALID_HANDLE : CU_CAPTURE_UNSUPPORTED;
    }
    found->capture = graph != NULL ? graph : object_make(OBJECT_GRAPH);
    found->joined = false;
    found->thread = pthread_self();
    if (found->capture == NULL) {
        return CU_OUT_OF_MEMORY;
    }
    depends_begin(found, found->capture, nodes, count);
    return CU_SUCCESS;
}

static int cuStreamBeginCapture(void *stream, int mode) {
    DRIVER_ENTER();
    return begin_capture(stream, mode, NULL, NULL, 0);
}

static int cuStreamBeginCaptureToGraph(void *stream, void *graph, void *const *nodes,
                                       const void *edges, size_t count, int mode) {
    DRIVER_ENTER();
    (void)edges;
    struct object *found = object_find(graph, OBJECT_GRAPH);
    return found != NULL ? begin_capture(stream, mode, found, nodes, count) : CU_INVALID_VALUE;
}

/* An event of a capturing stream makes the stream that waits for it join the capture. */
static int cuStreamWaitEvent(void *stream, void *event, unsigned flags) {
    DRIVER_ENTER();
    (void)flags;
    programmatic_forget();
    const int code = driver_current();
    struct object *found = object_find(stream, OBJECT_STREAM);
    const struct object *awaited = object_find(event, OBJECT_EVENT);
    if (code != CU_SUCCESS || awaited == NULL || !is_stream(stream)) {
        return code != CU_SUCCESS ? code : CU_INVALID_HANDLE;
    }
    if (awaited->capture != NULL && found != NULL && found->capture == NULL) {
        found->capture = awaited->capture;
        found->joined = true;
        found->thread = pthread_self();
        found->after = (struct ancestors){{0}};
    }
    if (awaited->capture != NULL && found != NULL && found->capture == awaited->capture) {
        depends_await(found, awaited);
    }
    if (awaited->capture == NULL) {
        streams_await(stream, awaited);
    }
    return CU_SUCCESS;
}

static int cuStreamIsCapturing(void *stream, int *status) {
    DRIVER_ENTER();
    const int code = driver_current();
    const struct object *found = object_find(stream, OBJECT_STREAM);
    if (code != CU_SUCCESS || status == NULL || !is_stream(stream)) {
        return code != CU_SUCCESS ? code : status == NULL ? CU_INVALID_VALUE : CU_INVALID_HANDLE;
    }
    *status = found != NULL && found->capture != NULL;
    return CU_SUCCESS;
}

/* The next node depends on the last one. Any of the results may be NULL. */
static int cuStreamGetCaptureInfo(void *stream, int *status, uint64_t *id, void **graph,
                                  void *dependencies, void *edges, size_t *count) {
    int state = 0;
    const int code = cuStreamIsCapturing(stream, &state);
    DRIVER_ENTER();
    const struct object *found = code == CU_SUCCESS ? object_find(stream, OBJECT_STREAM) : NULL;
    struct object *captured = found != NULL ? found->capture : NULL;
    if (status != NULL) {
        *status = state;
    }
    if (captured == NULL) {
        return code;
    }
    if (id != NULL) {
        *id = captured->serial;
    }
    if (graph != NULL) {
        *graph = captured;
    }
    if (dependencies != NULL) {
        captured->unordered = true; /* it may add nodes after others than these */
        struct node **last = &captured->last;
        memcpy(dependencies, &last, sizeof last);
    }
    if (edges != NULL) {
        memset(edges, 0, sizeof(void *));
    }
    if (count != NULL) {
        *count = captured->last != NULL;
    }
    return CU_SUCCESS;
}

/* Nodes run in the order in which they were added, which satisfies all dependencies. */
static int cuStreamUpdateCaptureDependencies(void *stream, void *dependencies, const void *edges,
                                             size_t count, unsigned flags) {
    (void)dependencies, (void)edges, (void)count, (void)flags;
    int state = 0;
    const int code = cuStreamIsCapturing(stream, &state);
    DRIVER_ENTER();
    struct object *found = object_find(stream, OBJECT_STREAM);
    if (found != NULL && found->capture != NULL) {
        found->capture->unordered = true;
    }
    return code == CU_SUCCESS && state == 0 ? CU_INVALID_VALUE : code;
}

static int cuStreamEndCapture(void *stream, void **graph) {
    DRIVER_ENTER();
    const int code = driver_current();
    const struct object *found = object_find(stream, OBJECT_STREAM);
    if (code != CU_SUCCESS || found == NULL) {
        return code != CU_SUCCESS ? code : CU_INVALID_HANDLE;
    }
    if (found->capture == NULL || !pthread_equal(found->thread, pthread_self())) {
        return found->capture == NULL ? CU_CAPTURE_UNMATCHED : CU_CAPTURE_WRONG_THREAD;
    }
    if (found->joined) {
        return CU_CAPTURE_UNMATCHED;
    }
    struct object *captured = found->capture;
    for (struct object *at = driver_state.objects; at != NULL; at = at->next) {
        at->capture = at->capture == captured ? NULL : at->capture;
    }
    if (graph != NULL) { /* the caller has it already, after cuStreamBeginCaptureToGraph */
        *graph = captured;
    }
    return CU_SUCCESS;
}

/* ---- graphs ---------------------------------------------------------------------------------- */

static bool copy_nodes(struct object *to, const struct object *from);

void bodies_free(struct node *node) {
    for (uint32_t i = 0; i < node->body_count; i++) {
        if (object_find(node->bodies[i], OBJECT_GRAPH) != NULL) { /* the context may be ending */
            object_destroy(node->bodies[i]);
        }
    }
    free(node->bodies);
}

/* New graphs, with copies of the nodes of `from` if it is given. */
static bool make_bodies(struct node *node, uint32_t count, struct object *const *from) {
    node->bodies = calloc(count, sizeof(struct object *));
    for (node->body_count = 0; node->bodies != NULL && node->body_count < count;) {
        struct object *body = object_make(OBJECT_GRAPH);
        if (body == NULL) {
            return false;
        }
        node->bodies[node->body_count++] = body;
        if (from != NULL && !copy_nodes(body, from[node->body_count - 1])) {
            return false;
        }
    }
    return node->bodies != NULL;
}

static struct node *copy_node(const struct node *from) {
    struct node *node = node_make(from->kind);
    if (node != NULL) {
        *node = *from;
        node->bodies = NULL;
        node->body_count = 0;
        node->next = NULL;
        node->origin = from;
    }
    if (node != NULL && from->kind == NODE_CONDITIONAL &&
        !make_bodies(node, from->body_count, from->bodies)) {
        bodies_free(node);
        free(node);
        return NULL;
    }
    if (node == NULL || from->params == NULL) {
        return node;
    }
    const struct object *kernel = object_find(from->kernel, OBJECT_KERNEL);
    const struct ptx_function *function =
        kernel != NULL && kernel->serial == from->kernel_serial ? kernel->function->function : NULL;
    void **arguments =
        function != NULL ? calloc(function->param_count + 1, sizeof *arguments) : NULL;
    for (uint32_t i = 0; arguments != NULL && i < function->param_count; i++) {
        arguments[i] = from->params + function->params[i]->address;
    }
    vgpu_status status;
    node->params =
        arguments != NULL ? params_make(kernel->function, arguments, &status, NULL) : NULL;
    free(arguments);
    if (node->params == NULL) {
        free(node);
        return NULL;
    }
    return node;
}

/* Appends copies of the nodes of `from`, which is not `to`. */
static bool copy_nodes(struct object *to, const struct object *from) {
    for (const struct node *at = from->first; at != NULL; at = at->next) {
        struct node *node = copy_node(at);
        if (node == NULL) {
            return false;
        }
        append(to, node);
    }
    depends_copy(to, from);
    return true;
}

static int copy_graph(void **copy, void *graph, enum object_kind kind) {
    const int code = driver_current();
    const struct object *found = object_find(graph, OBJECT_GRAPH);
    if (code != CU_SUCCESS || copy == NULL || found == NULL) {
        return code != CU_SUCCESS ? code : CU_INVALID_VALUE;
    }
    struct object *made = object_make(kind);
    if (made == NULL || !copy_nodes(made, found)) {
        if (made != NULL) {
            object_destroy(made);
        }
        return CU_INVALID_VALUE;
    }
    *copy = made;
    return CU_SUCCESS;
}

static int cuGraphCreate(void **graph, unsigned flags) {
    DRIVER_ENTER();
    const int code = driver_current();
    if (code != CU_SUCCESS || graph == NULL || flags != 0) {
        return code != CU_SUCCESS ? code : CU_INVALID_VALUE;
    }
    *graph = object_make(OBJECT_GRAPH);
    return *graph != NULL ? CU_SUCCESS : CU_OUT_OF_MEMORY;
}

static int cuGraphClone(void **copy, void *graph) {
    DRIVER_ENTER();
    return copy_graph(copy, graph, OBJECT_GRAPH);
}

static int cuGraphInstantiateWithFlags(void **executable, void *graph, unsigned long long flags) {
    DRIVER_ENTER();
    (void)flags;
    return copy_graph(executable, graph, OBJECT_EXECUTABLE);
}

/* nodes NULL: how many there are. Else *count of them, from the first on. */
static int cuGraphGetNodes(void *graph, const void **nodes, size_t *count) {
    DRIVER_ENTER();
    const int code = driver_current();
    const struct object *found = object_find(graph, OBJECT_GRAPH);
    if (code != CU_SUCCESS || found == NULL || count == NULL) {
        return code != CU_SUCCESS ? code : CU_INVALID_VALUE;
    }
    size_t number = 0;
    for (const struct node *node = found->first; node != NULL; node = node->next) {
        if (nodes != NULL && number < *count) {
            nodes[number] = node;
        }
        number++;
    }
    *count = number;
    return CU_SUCCESS;
}

/* The nodes of a graph, added to another one. */
static int cuGraphAddChildGraphNode(const void **node, void *graph, void *const *dependencies,
                                    size_t count, void *child) {
    DRIVER_ENTER();
    (void)dependencies, (void)count;
    struct object *found = object_find(graph, OBJECT_GRAPH);
    const struct object *added = object_find(child, OBJECT_GRAPH);
    if (found == NULL || added == NULL || found == added || node == NULL ||
        !copy_nodes(found, added)) {
        return CU_INVALID_VALUE;
    }
    found->unordered = true; /* what comes after its last node does not come after all of them */
    *node = found->last;
    return CU_SUCCESS;
}

/* Not a function of CUDA: device memory for a handle, with the current and the initial value. May
 * be called while the thread captures. */
static int vgpuGraphConditionalHandle(vgpu_pointer *handle, unsigned value) {
    DRIVER_ENTER();
    const unsigned values[2] = {value, value};
    const int current = driver_current();
    const int code = current == CU_SUCCESS ? memory_take(handle, sizeof values) : current;
    if (code == CU_SUCCESS) {
        memcpy(device_bytes(driver_state.gpu->memory, *handle, sizeof values, true), values,
               sizeof values);
    }
    return code;
}

/* Not a function of CUDA: a node that runs one of the new graphs *bodies, selected by the value at
 * the handle. */
static int vgpuGraphAddConditional(const void **node, void *graph, vgpu_pointer handle, int which,
                                   unsigned count, void *bodies) {
    DRIVER_ENTER();
    struct object *found = object_find(graph, OBJECT_GRAPH);
    const unsigned most = which == CONDITION_SWITCH ? UINT16_MAX : which == CONDITION_IF ? 2 : 1;
    if (found == NULL || node == NULL || which < CONDITION_IF || which > CONDITION_SWITCH ||
        count == 0 || count > most) {
        return CU_INVALID_VALUE;
    }
    struct node *made = node_make(NODE_CONDITIONAL);
    if (made == NULL || !make_bodies(made, count, NULL)) {
        if (made != NULL) {
            bodies_free(made);
        }
        free(made);
        return CU_OUT_OF_MEMORY;
    }
    made->to = handle;
    made->condition = (enum condition)which;
    memcpy(bodies, &made->bodies, sizeof made->bodies);
    append(found, made);
    depends_append(found, NULL, made);
    *node = made;
    return CU_SUCCESS;
}

/* The executable graph does what the graph does now. */
static int cuGraphExecUpdate(void *executable, void *graph, void *result) {
    DRIVER_ENTER();
    const int code = driver_current();
    struct object *found = object_find(executable, OBJECT_EXECUTABLE);
    const struct object *from = object_find(graph, OBJECT_GRAPH);
    if (code != CU_SUCCESS || found == NULL || from == NULL) {
        return code != CU_SUCCESS ? code : CU_INVALID_VALUE;
    }
    nodes_free(found);
    found->node_count = 0;
    found->unordered = false;
    if (result != NULL) {
        *(int *)result = 0; /* the first field: updated */
    }
    return copy_nodes(found, from) ? CU_SUCCESS : CU_INVALID_VALUE;
}

/* Not a function of CUDA: puts the only node of `from` in the place of the copy of `node`. */
static int vgpuGraphExecNodeReplace(void *executable, const void *node, void *from) {
    DRIVER_ENTER();
    struct object *found = object_find(executable, OBJECT_EXECUTABLE);
    const struct object *given = object_find(from, OBJECT_GRAPH);
    for (struct node *at = found != NULL ? found->first : NULL; at != NULL; at = at->next) {
        if (at->origin == node && given != NULL && given->first != NULL) {
            struct node *made = copy_node(given->first);
            if (made == NULL) {
                return CU_OUT_OF_MEMORY;
            }
            made->next = at->next;
            made->origin = node;
            made->index = at->index;
            made->before = at->before;
            bodies_free(at);
            free(at->params);
            *at = *made;
            free(made);
            return CU_SUCCESS;
        }
    }
    return CU_INVALID_VALUE;
}

static int cuGraphLaunch(void *executable, void *stream) {
    DRIVER_ENTER();
    const int code = driver_current();
    const struct object *found = object_find(executable, OBJECT_EXECUTABLE);
    const struct object *on = object_find(stream, OBJECT_STREAM);
    if (code != CU_SUCCESS || found == NULL || !is_stream(stream)) {
        return code != CU_SUCCESS ? code : CU_INVALID_HANDLE;
    }
    if ((on != NULL && on->capture != NULL) || (on == NULL && driver_capturing())) {
        return CU_CAPTURE_UNSUPPORTED;
    }
    programmatic_forget();
    streams_graph(stream, found);
    const int ran = nodes_run(found, false);
    streams_graph(NULL, NULL);
    programmatic_forget();
    return ran;
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

const struct driver_function driver_graph_functions[] = {
    DRIVER_FUNCTION(cuMemcpyAsync, 4000),
    {"cuMemcpyHtoDAsync", 3020, (driver_any *)cuMemcpyAsync},
    {"cuMemcpyDtoHAsync", 3020, (driver_any *)cuMemcpyAsync},
    {"cuMemcpyDtoDAsync", 3020, (driver_any *)cuMemcpyAsync},
    DRIVER_FUNCTION(cuMemcpy, 4000),
    DRIVER_FUNCTION(cuMemsetD8Async, 3020),
    DRIVER_FUNCTION(cuMemAllocAsync, 11020),
    DRIVER_FUNCTION(cuMemFreeAsync, 11020),
    DRIVER_FUNCTION(cuLaunchHostFunc, 10000),
    DRIVER_FUNCTION(cuStreamBeginCapture, 10010),
    DRIVER_FUNCTION(cuStreamBeginCaptureToGraph, 12030),
    DRIVER_FUNCTION(cuStreamWaitEvent, 3020),
    DRIVER_FUNCTION(cuStreamIsCapturing, 10000),
    DRIVER_FUNCTION(cuStreamGetCaptureInfo, 13000),
    DRIVER_FUNCTION(cuStreamUpdateCaptureDependencies, 13000),
    DRIVER_FUNCTION(cuStreamEndCapture, 10000),
    DRIVER_FUNCTION(cuGraphCreate, 10000),
    DRIVER_FUNCTION(cuGraphClone, 10000),
    DRIVER_FUNCTION(cuGraphGetNodes, 10000),
    DRIVER_FUNCTION(cuGraphAddChildGraphNode, 10000),
    DRIVER_FUNCTION(cuGraphExecUpdate, 12000),
    DRIVER_FUNCTION(vgpuGraphExecNodeReplace, 12000),
    DRIVER_FUNCTION(vgpuGraphDepend, 12000),
    DRIVER_FUNCTION(vgpuGraphConditionalHandle, 12000),
    DRIVER_FUNCTION(vgpuGraphAddConditional, 12000),
    DRIVER_FUNCTION(cuGraphInstantiateWithFlags, 11040),
    {"cuGraphInstantiate", 12000, (driver_any *)cuGraphInstantiateWithFlags},
    DRIVER_FUNCTION(cuGraphLaunch, 10000),
    DRIVER_FUNCTION(cuGraphDestroy, 10000),
    DRIVER_FUNCTION(cuGraphExecDestroy, 10000),
    {NULL, 0, NULL},
};
