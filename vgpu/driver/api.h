/* SPDX-License-Identifier: Apache-2.0
 *
 * api.h - shared by the two interfaces: api.c (vgpu.h) and the CUDA driver's functions (driver.h).
 */
#ifndef VGPU_DRIVER_API_H
#define VGPU_DRIVER_API_H

#include "machine/machine.h"

/* Threads that a block of the kernel may have. */
uint32_t kernel_max_threads(const struct kernel *kernel);

/* Bytes of local memory of a thread: what it declares and, if it calls anything, what the functions
 * declare. */
uint32_t kernel_local_bytes(const struct kernel *kernel);

/* The parameter block of a launch, from pointers to the parameters: 128-aligned, to be freed. NULL
 * and the sentence: an argument is missing, or no memory (then *status says so). */
unsigned char *params_make(const struct kernel *kernel, void *const *arguments, vgpu_status *status,
                           vgpu_error *error);

/* A launch with its parameters ready, by the configuration of the GPU. */
struct launch launch_make(vgpu *gpu, const struct kernel *kernel, const vgpu_dims *dims,
                          unsigned char *params);
vgpu_status launch_run(struct launch *launch, vgpu_error *error);

#endif /* VGPU_DRIVER_API_H */
