/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_kernels.h - what timing needs on a GPU beside the kernels that are timed: one that sleeps
 * for a known time, one that compares outputs where they lie, and fills that wait for nothing.
 *
 * They are PTX text in this program, for every GPU from sm_80 on; the driver compiles them.
 *
 * Invariant: everything is launched on the stream that is passed in, and nothing waits.
 */
#ifndef ATTEST_DEVICE_BENCH_KERNELS_H
#define ATTEST_DEVICE_BENCH_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "attn.h"

struct bench_kernels;

/* Of an open GPU context, with its CUDA context current. NULL and the reason on failure. */
struct bench_kernels *bench_kernels_open(const attn_context *context, const char *device,
                                         attn_error *why);
void bench_kernels_close(struct bench_kernels *kernels); /* NULL is fine */

/* The text of both kernels, which ends with 0. */
extern const char BENCH_KERNELS_PTX[];

/* Bytes of the GPU's L2; a large guess where the driver does not tell. */
size_t bench_kernels_l2(const struct bench_kernels *kernels);

/* One thread that waits until the GPU's own clock (%globaltimer) has gone on by so much. */
bool launch_sleep(const struct bench_kernels *kernels, uint64_t nanoseconds, void *stream,
                  attn_error *why);

/* Adds the number of 32-bit words in which `a` and `b` differ to *count, 64 bits on the device. */
bool launch_differ(const struct bench_kernels *kernels, const void *a, const void *b, size_t words,
                   void *count, void *stream, attn_error *why);

/* Writes the value to `words` 32-bit words. */
bool launch_fill(const struct bench_kernels *kernels, void *to, uint32_t value, size_t words,
                 void *stream, attn_error *why);

#endif /* ATTEST_DEVICE_BENCH_KERNELS_H */
