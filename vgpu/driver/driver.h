/* SPDX-License-Identifier: Apache-2.0
 *
 * driver.h - the CUDA driver's functions, over one virtual GPU per process.
 *
 *   driver.c  look-up, errors, device               config.c  environment, report
 *   context.c contexts                              module.c  libraries, modules, kernels
 *   memory.c  objects, memory, streams, events      graph.c   work of streams, graphs
 *   launch.c  launches, tensor maps                 unified.c memory that host and kernels share
 *   repeat.c  reuse of launches' results            programmatic.c  launches that overlap
 *   calls.c   calls that failed unnoticed
 *   streams.c work that nothing orders              dependencies.c  order of a graph's nodes
 *
 * Work is done when it is submitted. An error of a kernel is returned, as by a real driver, by the
 * next call after the launch, and by every call until the primary context is released for the last
 * time.
 *
 * Invariant: one lock protects everything here and the virtual GPU. A handle is looked up before it
 * is used, so a wrong or stale one is an error code, not a crash.
 */
#ifndef VGPU_DRIVER_DRIVER_H
#define VGPU_DRIVER_DRIVER_H

#include <pthread.h>

#include "driver/api.h"

enum cu_code {
    CU_SUCCESS = 0,
    CU_INVALID_VALUE = 1,
    CU_OUT_OF_MEMORY = 2,
    CU_NOT_INITIALIZED = 3,
    CU_INVALID_DEVICE = 101,
    CU_INVALID_IMAGE = 200,
    CU_INVALID_CONTEXT = 201,
    CU_NO_BINARY_FOR_GPU = 209,
    CU_INVALID_PTX = 218,
    CU_INVALID_HANDLE = 400,
    CU_NOT_FOUND = 500,
    CU_ILLEGAL_ADDRESS = 700,
    CU_OUT_OF_RESOURCES = 701,
    CU_LAUNCH_TIMEOUT = 702,
    CU_ASSERT = 710,
    CU_ILLEGAL_INSTRUCTION = 715,
    CU_MISALIGNED_ADDRESS = 716,
    CU_INVALID_ADDRESS_SPACE = 717,
    CU_ALREADY_REGISTERED = 712,
    CU_NOT_REGISTERED = 713,
    CU_LAUNCH_FAILED = 719,
    CU_COOPERATIVE_TOO_LARGE = 720,
    CU_NOT_SUPPORTED = 801,
    CU_CAPTURE_UNSUPPORTED = 900,
    CU_CAPTURE_UNMATCHED = 903,
    CU_CAPTURE_WRONG_THREAD = 908,
    CU_INVALID_CLUSTER_SIZE = 912
};

enum object_kind {
    OBJECT_MEMORY,
    OBJECT_STREAM,
    OBJECT_EVENT,
    OBJECT_GRAPH,      /* what was captured */
    OBJECT_EXECUTABLE, /* the same, instantiated */
    OBJECT_LIBRARY,    /* this and kernels do not belong to a context */
    OBJECT_KERNEL,     /* CUkernel and CUfunction are the same here */
};

/* How much of the work of each stream (streams.c) comes before something. */
enum { STREAM_SLOTS = 32 };
struct order {
    uint32_t times[STREAM_SLOTS];
};

/* Nodes of a graph, a bit each; the order of graphs with more nodes is not looked at. */
enum { GRAPH_NODES = 256 };
struct ancestors {
    uint64_t bits[GRAPH_NODES / 64];
};

enum node_kind {
    NODE_KERNEL,
    NODE_COPY,
    NODE_FILL,
    NODE_HOST,
    NODE_ALLOC,
    NODE_FREE,
    NODE_CONDITIONAL
};
enum condition { CONDITION_IF, CONDITION_WHILE, CONDITION_SWITCH }; /* as in cuda.h */

/* Work of a stream: done when it is submitted, or when the graph that captured it runs. */
struct node {
    enum node_kind kind;
    struct node *next;
    const struct node *origin; /* in an executable graph: what it is a copy of */
    uint32_t index;            /* in its graph */
    struct ancestors before;   /* dependencies.c */
    /* a launch */
    const struct object *kernel;
    uint64_t kernel_serial; /* a new object may come to lie where an old one was */
    vgpu_dims dims;
    unsigned char *params;
    void *stream;      /* that it was submitted to */
    bool programmatic; /* it may begin before the launch before it has ended */
    bool cooperative;
    /* of a condition: graphs, selected by the value at `to`; the node owns them */
    struct object **bodies;
    uint32_t body_count;
    enum condition condition;
    /* a copy, a fill, an allocation (`to`), a release (`to`) */
    vgpu_pointer to, from;
    size_t bytes;
    unsigned value; /* of a fill: of each element of so many bytes */
    unsigned element;
    /* a function of the host */
    void (*function)(void *);
    void *data;
};

/* Who may write a piece of memory; all but the first count as initialised. */
enum memory_kind { MEMORY_DEVICE, MEMORY_MANAGED, MEMORY_HOST, MEMORY_REGISTERED };

struct object {
    enum object_kind kind;
    uint64_t serial;
    struct object *next;
    vgpu_pointer pointer;          /* of memory */
    enum memory_kind memory_kind;  /* likewise */
    void *host;                    /* of registered memory: what it is a copy of */
    size_t bytes;                  /* likewise */
    vgpu_module *module;           /* of a library */
    struct object *library;        /* of a kernel */
    const struct kernel *function; /* of a kernel */
    int max_dynamic_shared;        /* of a kernel; -1: not set */
    bool non_portable_cluster;     /* as cuKernelSetAttribute set it */
    uint64_t launches;             /* of a kernel, counted if $VGPU_FIRST is set */
    struct object *capture;        /* of a stream or event: the graph that it writes, or NULL */
    bool joined;                   /* of a stream: by an event; another one began the capture */
    pthread_t thread;              /* of a stream that captures */
    struct node *first, *last;     /* of a graph */
    uint32_t node_count;           /* of a graph */
    bool unordered;                /* of a graph: its dependencies are not known */
    struct ancestors after;        /* of a capturing stream, or an event recorded in one */
    bool non_blocking;             /* of a stream */
    struct order order;            /* of an event: what it was recorded after */
    double time;                   /* of an event, in seconds */
    bool recorded;                 /* of an event */
};

struct driver_state {
    vgpu *gpu; /* NULL until first used */
    bool initialised;
    int retained; /* primary context */
    int fault;    /* what every call answers since a kernel failed */
    struct object *objects;
    uint64_t made;     /* objects so far */
    size_t registered; /* objects that are registered host memory */
    bool programmatic; /* launches may overlap: what they access is kept */
    bool repeats;      /* $VGPU_REPEATS: results of equal launches are reused */
    uint64_t first;    /* $VGPU_FIRST: launches of each kernel that run; 0: all */
};
extern struct driver_state driver_state;

/* ---- the lock: a function that begins with DRIVER_ENTER() holds it to its end -----------------*/

int driver_enter(void);
void driver_leave(int *entered);
#define DRIVER_ENTER()                                                                             \
    int driver_entered __attribute__((cleanup(driver_leave), unused)) = driver_enter()

/* The process's GPU, opened if it was not yet; NULL: stderr says why. The lock is held. */
vgpu *driver_gpu(void);

/* What most calls need: cuInit, a current context, no fault. And, of calls that wait for the GPU:
 * no capture in this thread. */
int driver_current(void);
int driver_ready(void);

/* The error of a call that names this device and writes to `result`. */
int driver_check_device(int device, const void *result);

/* Bytes of shared memory that a block can have. */
uint32_t driver_max_shared(void);
enum { DEVICE_MULTIPROCESSORS = 16 };
int driver_attribute(int which); /* as cuDeviceGetAttribute */
/* CTAs of the kernel that a multiprocessor holds at once, as far as PTX says. */
int driver_occupancy(const struct kernel *kernel, uint32_t threads, size_t dynamic_shared);

/* Keeps why a call of this thread returns the code, for cuGetErrorString. Returns the code. */
int driver_explain(int code, const char *why);
/* calls.c: the thread's launch of this shape returned the code, which is returned; at the end,
 * reports calls that failed while the program did not look. */
int call_refused(const char *kernel, const vgpu_dims *dims, int code);
int vgpuCallFailed(const char *function, int code), vgpuCallsSeen(void);
void calls_report(vgpu *gpu);
const char *driver_why(int code); /* what cuGetErrorString answers in this thread */

/* ---- objects ----------------------------------------------------------------------------------*/

struct object *object_make(enum object_kind kind); /* NULL: no memory */
struct object *object_find(const void *handle, enum object_kind kind);
void object_destroy(struct object *object); /* with what belongs to it */

bool driver_capturing(void);  /* a stream captures in this thread */
bool is_stream(void *stream); /* or a handle of the default stream */

/* ---- work -------------------------------------------------------------------------------------*/

struct node *node_make(enum node_kind kind); /* NULL: no memory */
void nodes_free(struct object *graph);       /* all of a graph */
void bodies_free(struct node *node);
/* Does the work or captures it; the node belongs to the callee. The stream is a good one. */
int stream_submit(void *stream, struct node *node);
int stream_fill(void *stream, vgpu_pointer to, unsigned value, unsigned element, size_t bytes);
int memory_fill(vgpu_pointer to, unsigned value, unsigned element, size_t bytes); /* now */
int kernel_run(const struct node *node, bool always); /* launch.c; `always`: despite --first */
/* launch_run, or restores memory as an equal launch left it (repeat.c). */
vgpu_status repeat_run(const struct node *node, struct launch *launch, vgpu_error *error);
/* Of a launch that is about to run, and that has run (programmatic.c). */
void programmatic_begin(const struct node *node, struct launch *launch);
void programmatic_end(const struct node *node, struct launch *launch);
void programmatic_forget(void); /* all launches so far have ended, for what is submitted next */
/* Which work of streams is not ordered (streams.c): of a launch that is about to run, and that has
 * run; of a copy or fill that was done. */
void streams_launch_begin(struct launch *launch);
void streams_launch_end(const struct node *node, struct launch *launch);
void streams_copy(const struct node *node);
void streams_made(struct object *stream, bool is_non_blocking);
void streams_gone(const struct object *stream);
void streams_record(struct object *event, void *stream);
void streams_await(void *stream, const struct object *event);
/* The host waits for a stream, an event, all streams. */
void streams_wait(void *stream);
void streams_wait_event(const struct object *event);
void streams_wait_all(void);
void streams_forget(void); /* and forgets kernels: they are unloaded */
/* Nodes of the graph run in this stream; NULL: not any more. */
void streams_graph(void *stream, const struct object *graph);
/* What orders the nodes of a graph (dependencies.c). A stream begins to capture, after these nodes;
 * a node was appended (stream NULL: not by a capture); copies of all nodes were. */
void depends_begin(struct object *stream, struct object *graph, void *const *nodes, size_t count);
void depends_append(struct object *graph, struct object *stream, struct node *node);
void depends_copy(struct object *graph, const struct object *from);
void depends_await(struct object *stream, const struct object *event);
bool depends_partly(const struct object *graph); /* some of its nodes may overlap */
bool ancestors_have(const struct ancestors *ancestors, uint32_t index);
int vgpuGraphDepend(void *graph, const void *from, const void *to);
void repeat_forget(void); /* to be called when images change: they are not compared */
/* Copies between any two pointers, of the host or of the device. */
int unified_copy(vgpu_pointer to, vgpu_pointer from, size_t bytes);
bool unified_is_pageable(vgpu_pointer pointer); /* the host's, neither registered nor allocated */
/* Takes memory, gives it back (an unknown pointer is an error); or takes what was given back again,
 * at the same address and uninitialised, as nodes of graphs do. The lock is held. */
int memory_take(vgpu_pointer *pointer, size_t bytes);
int memory_give(vgpu_pointer pointer);
int memory_again(vgpu_pointer pointer, size_t bytes);
/* Registered host memory to its allocations, or back. */
void registered_copy(bool to_device);

/* ---- configuration and report -----------------------------------------------------------------*/

/* From the environment; false: a variable is wrong, stderr says which. */
bool driver_configure(vgpu_config *config);
bool driver_settings(vgpu *gpu); /* of what is not in the configuration */
/* Whether $VGPU_LAUNCH selects the launch that is about to run, of this kernel. */
bool driver_checks_launch(const char *kernel);
/* To $VGPU_REPORT; else, if there are findings that were not shown yet, to stderr. */
void driver_report(const vgpu *gpu);
void driver_report_clean(const vgpu *gpu); /* on a terminal: that there is nothing to report */

/* ---- tables of functions --------------------------------------------------------------------- */

typedef void driver_any(void);
struct driver_function {
    const char *name;
    int since; /* the version of CUDA that has it in this form */
    driver_any *function;
};
extern const struct driver_function driver_context_functions[], driver_memory_functions[],
    driver_module_functions[], driver_launch_functions[], driver_unified_functions[],
    driver_graph_functions[];
#define DRIVER_FUNCTION(name, since)                                                               \
    { #name, since, (driver_any *)name }

#endif /* VGPU_DRIVER_DRIVER_H */
