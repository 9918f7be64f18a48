/* SPDX-License-Identifier: Apache-2.0
 *
 * device.h - what cuda.c and plan.c know about a device.
 */
#ifndef ATTN_CUDA_DEVICE_H
#define ATTN_CUDA_DEVICE_H

#include <pthread.h>
#include <sys/types.h>

#include "cuda/cuda.h"
#include "cuda/driver.h"

/* On a page of its own, which a forked child finds wiped. Where the system does not wipe, the
 * process number decides; it costs a system call, and another pid namespace may use it again. */
struct birthmark {
    bool ours;
    bool wiped; /* in a forked child */
    pid_t process;
};

struct cuda_kernel {
    cu_library library;
    cu_kernel kernel;
    cu_context loaded; /* the last context that it was loaded into */
};

struct cuda {
    struct driver driver;
    cu_device device;
    char name[96];
    int major, minor; /* compute capability */
    int units;        /* multiprocessors */
    int shared;       /* bytes of shared memory that a block can opt in to */
    size_t memory;
    struct birthmark *birthmark; /* distinguishes a forked child from the process that opened it */
    pthread_mutex_t lock;        /* of `primary` */
    pthread_mutex_t load_lock;   /* of every variant's kernel */
    cu_context primary;          /* retained when it was first needed, else NULL */
};

/* "what: CUDA error ..." */
attn_status cuda_fail(const struct cuda *cuda, cu_result code, attn_error *error, const char *what);

/* Makes a context of our device current; *pushed says whether cuda_leave() has to undo it. */
attn_status cuda_enter(struct cuda *cuda, bool *pushed, attn_error *error);
void cuda_leave(const struct cuda *cuda, bool pushed);

/* Loads the variant's kernel into variant->kernel, and that into the current context, unless it is
 * there. Legal while a stream is captured. */
attn_status cuda_load(struct cuda *cuda, struct variant *variant, attn_error *error);

/* What the problem does not ask for is NULL, whatever the caller left there. */
void cuda_fill_pointers(struct attn_args *args, const attn_problem *resolved,
                        const attn_tensors *tensors);

/* Launches `ctas` CTAs of a kernel without shared memory of its own size; 0: nothing to do. */
attn_status cuda_launch_rows(struct cuda *cuda, const char *name,
                             const struct cuda_geometry *geometry, unsigned ctas, void *args,
                             void *stream, attn_error *error);

/* ---- plan.c ---------------------------------------------------------------------------------- */

/* Strides, bounds and options. */
void plan_fill_args(struct attn_args *args, const attn_problem *resolved);

/* Whether rows of a tensor with these strides begin at multiples of 16 bytes. */
attn_status plan_check_strides(const char *name, const attn_strides *strides,
                               const attn_problem *resolved, attn_dtype dtype, int64_t heads,
                               int64_t rows, attn_error *error);

/* ---- backward.c ------------------------------------------------------------------------------ */

/* The clauses of backward: strides of the gradients, size of the grid. */
attn_status backward_check(const struct variant *variant, const attn_problem *resolved,
                           attn_error *error);

attn_status backward_geometry(struct cuda *cuda, const struct variant *variant,
                              const attn_problem *resolved, struct cuda_geometry *geometry,
                              attn_error *error);

/* ---- blind.c --------------------------------------------------------------------------------- */

/* Whether no query sees a key, whatever tensors hold. */
bool blind_check(const attn_problem *resolved);

/* What attn_forward (without a sink) and attn_backward write then. */
attn_status blind_run(struct cuda *cuda, const attn_problem *resolved, bool backward,
                      const attn_tensors *tensors, void *stream, attn_error *error);

/* ---- append.c, merge.c ----------------------------------------------------------------------- */

attn_status append_check(const struct variant *variant, const attn_problem *resolved,
                         attn_error *error);
attn_status merge_check(const attn_problem *resolved, attn_error *error);
void append_geometry(const struct variant *variant, const attn_problem *resolved,
                     struct cuda_geometry *geometry);
void merge_geometry(const struct variant *variant, const attn_problem *resolved,
                    struct cuda_geometry *geometry);

/* ---- maps.c ----------------------------------------------------------------------------- */

/* Whether tensor maps can describe the problem's Q, K, V and O (backward: dO), whose strides are
 * multiples of 16 bytes. */
attn_status maps_check(const attn_problem *resolved, bool backward, attn_error *error);

/* Maps of boxes of so many query rows and keys, over memory that is not there. heads_q > 0: the map
 * of Q is over (column, head, row, batch), in boxes of so many heads, rows_q in all. tile_dim:
 * columns of a box of fp8. A context is current. */
attn_status maps_encode(struct cuda *cuda, const attn_problem *resolved, bool backward, int rows_q,
                        int heads_q, int rows_kv, int tile_dim, struct cuda_geometry *geometry,
                        attn_error *error);

/* Copies the plan's maps into the arguments of a launch, with the addresses of its tensors. */
cu_result maps_fill(const struct cuda *cuda, const struct cuda_geometry *geometry,
                    const void *const addresses[CUDA_MAPS],
                    struct attn_tensor_map *const maps[CUDA_MAPS]);

#endif /* ATTN_CUDA_DEVICE_H */
