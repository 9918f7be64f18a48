/* SPDX-License-Identifier: Apache-2.0
 *
 * fake_internal.h - what the files of libfake_driver.so share. See fake_driver.h.
 *
 * Invariant: a handle is valid iff it is in the list of objects; a pointer that was never given
 * out, or was destroyed, is found out and never read.
 */
#ifndef FAKE_INTERNAL_H
#define FAKE_INTERNAL_H

#include <stdint.h>

#include "cuda/fake_driver.h"
#include "src/kernels/common/args.h"

_Static_assert(sizeof(struct attn_tma_args) <= FAKE_ARGS, "the log has room for the arguments");

enum { FAKE_MAPS = 4 }; /* of struct attn_tma_args */

struct fake_launch {
    struct fake_object *kernel;
    unsigned int grid[3], block[3], shared;
    unsigned int cluster;                                   /* CTAs; 0: none */
    bool early;                                             /* programmatic stream serialization */
    unsigned char maps[FAKE_MAPS][sizeof(struct fake_map)]; /* where the kernel takes them */
    union {
        struct attn_args args;
        struct attn_backward_args backward; /* of backward; it begins with args */
    };
    uint64_t numbers[4]; /* instead of them where fake_is_aid */
};

/* Anything with a handle. */
struct fake_object {
    struct fake_object *next;
    enum fake_kind kind;
    int device;                  /* of a context */
    bool primary;                /* a context: the device's own */
    struct fake_object *context; /* where a function, stream, event or memory belongs */
    struct fake_object *owner;   /* a kernel: its library; a function: its kernel */
    char name[FAKE_NAME];        /* of a kernel */
    unsigned char *data;         /* a library's image, or memory */
    size_t size;
    int capability; /* a library: what it was made for */
    bool ptx;       /* a library: any newer device will do */
    bool fatbin;    /* a library: code that is not read here, whose kernels have any name */
    bool exact;     /* a library: that capability alone ("sm_90a") */
    int shared[FAKE_DEVICES];  /* a kernel: the limit set on each device */
    double seconds;            /* an event: when it was recorded; below 0: never */
    struct fake_object *graph; /* a stream: what it is captured into */
    pthread_t thread;          /* a stream: who captures */
    struct fake_launch *launches;
    size_t launch_count;
};

extern struct fake_settings fake_settings;

/* ---- every driver function begins with ENTER ------------------------------------------------- */

struct fake_entry {
    int code;
};

/* Takes the lock, writes the call down; code is what is wrong already. */
struct fake_entry fake_enter(const char *name);
void fake_leave(struct fake_entry *entry);

/* The lock is given back by every return. */
#define ENTER(name)                                                                                \
    __attribute__((cleanup(fake_leave))) struct fake_entry entry = fake_enter(#name);              \
    if (entry.code != FAKE_SUCCESS) {                                                              \
        return entry.code;                                                                         \
    }

/* Completes the last entry of the log. */
void fake_log_launch(const struct fake_launch *launch, void *stream);

/* ---- objects --------------------------------------------------------------------------------- */

struct fake_object *fake_make(enum fake_kind kind);
struct fake_object *fake_find(const void *handle, enum fake_kind kind); /* or NULL */
void fake_destroy(struct fake_object *object); /* with what belongs to it */
struct fake_object *fake_first(void);

struct fake_object *fake_current(void); /* this thread's context, or NULL */
bool fake_capturing(void);              /* this thread records a graph */
int fake_shared_limit(int device);      /* most dynamic shared memory of a CTA */

/* ---- launches -------------------------------------------------------------------------------- */

/* What the stream does with a launch: run it, or record it. */
int fake_submit(void *stream, const struct fake_launch *launch);

/* Bytes of the kernel's parameter, without its maps. */
size_t fake_args_size(const char *kernel);

/* Attention as struct attn_args says, and its gradients, in the launch over tiles; neither does
 * anything for a kernel whose name holds no dtype. */
void fake_compute(const char *kernel, unsigned int blocks, const struct attn_args *args);
void fake_compute_backward(const char *kernel, const struct attn_backward_args *args);

/* The kernels that the benchmark brings along (tool/device/cache.c): one that sleeps, one
 * that compares. They are run whether or not `compute` is set. */
bool fake_is_aid(const char *kernel);
void fake_run_aid(const char *kernel, const uint64_t numbers[4]);
void fake_awake(void); /* another kernel ran */

/* True once, where that is wanted, in the middle of what is timed. */
bool fake_wrong_now(void);

double fake_now(void); /* the clock of events, in seconds */

/* What two events so many seconds apart are said to be apart. */
double fake_elapsed(double seconds);

/* Whether the kernel's parameter is struct attn_tma_args, and whether its maps and grid fit the
 * rest of it: else a GPU would compute nonsense. */
bool fake_takes_maps(const char *kernel);
bool fake_maps_agree(const struct fake_launch *launch);

/* ---- tables of functions --------------------------------------------------------------------- */

typedef void fake_any(void);
struct fake_function {
    const char *name;
    int since; /* the version of CUDA that brought it */
    fake_any *function;
};
extern const struct fake_function fake_module_functions[], fake_memory_functions[],
    fake_map_functions[];

#endif /* FAKE_INTERNAL_H */
