/* SPDX-License-Identifier: Apache-2.0
 *
 * cache.h - the cache that a call finds warm or cold: the L2 of a GPU, the last level of a CPU; how
 * large it is, and how it is emptied.
 *
 *     cold   a buffer of twice its size is written before each call, outside the timed window
 *     warm   what the call reads was read by an untimed call just before, if it fits at all
 *
 * Invariant: an emptied cache holds nothing of a tensor, as far as writing more than it can hold
 * does that. (On CPUs one thread writes; what other cores keep to themselves is not reached.)
 */
#ifndef ATTEST_DEVICE_CACHE_H
#define ATTEST_DEVICE_CACHE_H

#include "device/bench_kernels.h"
#include "device/runner.h"

enum cache_state { CACHE_COLD, CACHE_WARM, CACHE_STATES };
extern const char *const CACHE_STATE_NAMES[]; /* ends with NULL */

struct cache {
    struct device *device;
    struct bench_kernels *kernels; /* NULL on CPUs */
    size_t bytes;                  /* of the cache */
    void *buffer;                  /* NULL until it is first emptied */
    unsigned char turn;            /* what is written next: never the same twice in a row */
};

/* The runner is open, and outlives it. After a failure, too, it may be closed. */
bool cache_open(struct cache *cache, const struct runner *runner, attn_error *why);
void cache_close(struct cache *cache);

/* On a GPU asynchronous on the stream. */
bool cache_empty(struct cache *cache, void *stream, attn_error *why);

#endif /* ATTEST_DEVICE_CACHE_H */
