/* SPDX-License-Identifier: Apache-2.0
 *
 * cache.h - the cache that a call finds warm or cold: the L2 of a GPU, the last level of a CPU; how
 * large it is, and how it is emptied. And what else a timing launches on a GPU beside the kernels
 * that are timed: one that sleeps for a known time, one that compares outputs where they lie.
 *
 *     cold   a buffer of twice its size is written before each call, outside the timed window
 *     warm   what the call reads was read by an untimed call just before, if it fits at all
 *
 * Invariant: an emptied cache holds nothing of a tensor, as far as writing more than it can hold
 * does that. (On CPUs one thread writes; what other cores keep to themselves is not reached.)
 * Everything is launched on the stream that is passed in, and nothing waits.
 */
#ifndef ATTEST_DEVICE_CACHE_H
#define ATTEST_DEVICE_CACHE_H

#include "device/runner.h"

enum cache_state { CACHE_COLD, CACHE_WARM, CACHE_STATES };
extern const char *const CACHE_STATE_NAMES[]; /* ends with NULL */

struct cache {
    struct device *device;
    size_t bytes;                   /* of the cache */
    void *buffer;                   /* NULL until it is first emptied */
    unsigned char turn;             /* what is written next: never the same twice in a row */
    void *library, *sleep, *differ; /* kernels, which the driver compiles; NULL on CPUs */
};

/* The runner is open, and outlives it. After a failure, too, it may be closed. */
bool cache_open(struct cache *cache, const struct runner *runner, attn_error *why);
void cache_close(struct cache *cache);

bool cache_empty(struct cache *cache, void *stream, attn_error *why);

/* ---- GPU only -------------------------------------------------------------------------------- */

/* One thread that waits until the GPU's own clock (%globaltimer) has gone on by so much. */
bool launch_sleep(const struct cache *cache, uint64_t nanoseconds, void *stream, attn_error *why);

/* Adds the number of 32-bit words in which `a` and `b` differ to *count, 64 bits on the device. */
bool launch_differ(const struct cache *cache, const void *a, const void *b, size_t words,
                   void *count, void *stream, attn_error *why);

/* Writes the value to `words` 32-bit words. */
bool launch_fill(const struct cache *cache, void *to, uint32_t value, size_t words, void *stream,
                 attn_error *why);

#endif /* ATTEST_DEVICE_CACHE_H */
