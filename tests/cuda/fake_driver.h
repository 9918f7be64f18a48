/* SPDX-License-Identifier: Apache-2.0
 *
 * fake_driver.h - the strings by which a test moves libfake_driver.so, a CUDA driver without a GPU.
 *
 * The library exports cuGetProcAddress_v2, as a driver does, and fake_driver_control. Memory is the
 * host's, images are looked at but not run; a launch is checked as a driver would, written down
 * and, if `compute` is set, answered with plain attention worked out on the host.
 *
 * Settings are changed while no other thread is in the driver. In the environment, for programs
 * that know nothing of this file: FAKE_DRIVER_COMPUTE=1, FAKE_DRIVER_CAPABILITY=80,
 * FAKE_DRIVER_DEVICES=2. And what goes wrong: FAKE_DRIVER_RIGHT_LAUNCHES=5 (later ones compute a
 * wrong bit), FAKE_DRIVER_WRONG_ONCE=1 (one of those that are timed does), FAKE_DRIVER_SLEEP=50
 * (the sleeping kernel takes that part of its time, in percent),
 * FAKE_DRIVER_BLIND=1 (the comparing one finds no difference), FAKE_DRIVER_EVENTS=fast (events say
 * a nanosecond of everything but a sleep), =slow (ten times the truth).
 */
#ifndef FAKE_DRIVER_H
#define FAKE_DRIVER_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FAKE_DEVICES = 8, FAKE_NAME = 128, FAKE_ARGS = 1536, FAKE_RANK = 5 };

/* The errors that it gives by itself; CUresult of CUDA 12. */
enum fake_error {
    FAKE_SUCCESS = 0,
    FAKE_INVALID_VALUE = 1,
    FAKE_OUT_OF_MEMORY = 2,
    FAKE_NOT_INITIALIZED = 3,
    FAKE_NO_DEVICE = 100,
    FAKE_INVALID_DEVICE = 101,
    FAKE_INVALID_IMAGE = 200,
    FAKE_INVALID_CONTEXT = 201,
    FAKE_NO_BINARY_FOR_GPU = 209,
    FAKE_INVALID_PTX = 218,
    FAKE_INVALID_HANDLE = 400,
    FAKE_NOT_FOUND = 500,
    FAKE_OUT_OF_RESOURCES = 701,
    FAKE_LAUNCH_FAILED = 719,
    FAKE_CAPTURE_UNSUPPORTED = 900,
    FAKE_UNKNOWN = 999
};

enum fake_kind {
    FAKE_CONTEXT,
    FAKE_LIBRARY,
    FAKE_KERNEL,   /* of a library; its device is not fixed */
    FAKE_FUNCTION, /* a kernel in one context */
    FAKE_STREAM,
    FAKE_EVENT,
    FAKE_GRAPH,
    FAKE_EXECUTABLE,
    FAKE_MEMORY,
    FAKE_KINDS
};

struct fake_settings {
    int devices;                  /* [1] */
    int capability[FAKE_DEVICES]; /* 90 is 9.0 [90] */
    int version;                  /* of CUDA, 12020 is 12.2 [12080] */
    const char *missing;          /* a function that the look-up does not know, or NULL [NULL] */
    int missing_code;             /* what the look-up then returns; 0 as drivers do [0] */
    bool capturing;               /* a stream is, in the default mode: loading is forbidden to
                                     threads whose mode is not relaxed [false] */
    bool text_only;               /* NO_BINARY_FOR_GPU unless it is PTX as text [false] */
    bool compute;                 /* [FAKE_DRIVER_COMPUTE=1] */
    bool log;                     /* calls are written down [false] */
};

/* What it makes of a tensor map; the meaning of the numbers is CUDA's. */
struct fake_map {
    uint64_t magic, address, dims[FAKE_RANK], strides[FAKE_RANK - 1];
    uint16_t box[FAKE_RANK];
    uint8_t element_strides[FAKE_RANK];
    uint8_t rank, type, interleave, swizzle, promotion, fill;
    uint8_t unused[19];
};

/* A call that entered the driver, whatever came of it. */
struct fake_call {
    const char *name;
    pthread_t thread;
    void *context; /* current at its beginning, or NULL */
    int device;    /* of that context, or -1 */
    /* launches only: */
    char kernel[FAKE_NAME];
    unsigned int grid[3], block[3], shared;
    void *stream;
    unsigned int cluster;          /* CTAs of one; 0: none */
    bool early;                    /* programmatic dependent launch (PDL) */
    unsigned char args[FAKE_ARGS]; /* struct attn_args, attn_tma_args or
                                      attn_backward_args, then 0 */
};

struct fake_control {
    struct fake_settings *settings;

    /* As it was when it was loaded; every object, context and count is gone. */
    void (*reset)(void);

    /* The nth call of this function from now on (1: the next one; 0: all) returns code and does
     * nothing else. One at a time; NULL: none. */
    void (*fail)(const char *function, int nth, int code);

    /* The log; valid until the next call into the driver. */
    const struct fake_call *(*calls)(size_t *count);
    void (*forget)(void);

    int (*live)(enum fake_kind kind); /* objects not yet destroyed; primary contexts are counted */
    int (*retains)(int device);       /* of its primary context */
    int (*depth)(void);               /* contexts on this thread's stack */
    void *(*top)(void);               /* the current one, or NULL */

    /* What a program beside the library would do: cuCtxCreate (not made current), cuCtxDestroy. */
    void *(*context_create)(int device);
    void (*context_destroy)(void *context);
    void *(*primary)(int device); /* NULL: not retained */

    /* The bytes of the only loaded library, or NULL. Equal to the image it was loaded from. */
    const void *(*image)(size_t *size);
};

/* The one symbol beside the look-up. */
typedef const struct fake_control *fake_driver_control_function(void);

#endif /* FAKE_DRIVER_H */
