/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_device.h - what cuda.c and cuda_plan.c know about a device.
 */
#ifndef ATTN_CUDA_DEVICE_H
#define ATTN_CUDA_DEVICE_H

#include <pthread.h>
#include <sys/types.h>

#include "cuda.h"
#include "driver.h"

/* On a page of its own, which a forked child finds wiped. The process number stands guard where the
 * system does not wipe; alone it would not do, since another pid namespace may use it again. */
struct birthmark {
    bool ours;
    pid_t process;
};

struct cuda {
    struct driver driver;
    cu_device device;
    char name[96];
    int major, minor; /* compute capability */
    int units;        /* multiprocessors */
    int shared;       /* bytes of shared memory that a block can opt in to */
    size_t memory;
    struct birthmark *birthmark; /* tells a forked child from the process that opened it */
    pthread_mutex_t lock;        /* of `primary` */
    pthread_mutex_t load_lock;   /* of every variant's kernel */
    cu_context primary;          /* retained when it was first needed, else NULL */
};

/* Loads the variant's kernel into variant->kernel unless it is there. */
attn_status cuda_load(struct cuda *cuda, struct variant *variant, attn_error *error);

#endif /* ATTN_CUDA_DEVICE_H */
