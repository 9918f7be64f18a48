/* SPDX-License-Identifier: Apache-2.0
 *
 * sets.h - the tensors of a benchmark: several sets of random inputs, so that no call finds
 * its own where the last one left them, each with its outputs and what those must be.
 *
 * Of a backward plan dO is an input, too, O and LSE come from a forward on the same device, and the
 * outputs are the gradients. On a GPU the host keeps the tensors of one set at a time: those that
 * are being compared.
 *
 * Invariant: outputs are poisoned with NaN before they are computed and compared bit for bit with a
 * result that was checked, so that a call that writes nothing, or something else, shows.
 */
#ifndef ATTEST_DEVICE_SETS_H
#define ATTEST_DEVICE_SETS_H

#include "base/random.h"
#include "device/cache.h"
#include "device/runner.h"

/* Of a set at most: inputs and outputs; with outputs as expected, O and LSE of backward. */
enum { MAX_SETS = 8, SET_TENSORS = 10, SET_BLOCKS = 2 * SET_TENSORS };

/* One tensor of a set. */
struct set_tensor {
    size_t at; /* offset of its pointer in attn_tensors */
    attn_dtype dtype;
    int64_t count; /* elements */
};

struct bench_sets {
    const struct runner *runner;
    struct cache *cache;
    const attn_problem *problem; /* resolved */
    bool lse;                    /* of forward: compute it */
    int count;
    double set_bytes;
    struct set_tensor list[SET_TENSORS]; /* Q, K, V(, dO); then outputs: O(, LSE), or gradients */
    int input_count, tensor_count;
    attn_tensors tensors[MAX_SETS];               /* in the device's memory */
    void *expected[MAX_SETS][SET_TENSORS];        /* outputs likewise, as they were when compared */
    void *differing;                              /* GPU: 64 bits that count differing words */
    int64_t differing_here;                       /* CPU: the same */
    attn_tensors host;                            /* of the set at hand; a CPU computes in them */
    void *host_blocks[MAX_SETS * SET_BLOCKS + 5]; /* everything to be freed; the options', too */
    void *device_blocks[MAX_SETS * SET_BLOCKS + 6];
    int host_count, device_count;
    uint64_t rng;
};

/* The tensor of a set, in the host's memory or the device's. */
void *set_pointer(const attn_tensors *tensors, const struct set_tensor *which);

/* Chooses how many sets, `most` at most, and whether there is memory for them. */
bool sets_plan(struct bench_sets *sets, int most, attn_error *why);

/* What all sets share; then a set, with random inputs. The plan's workspace is there already. */
bool sets_share(struct bench_sets *sets, attn_error *why);
bool sets_make(struct bench_sets *sets, int set, attn_error *why);

/* Of a backward plan: O and LSE of the set, as its inputs are now. sets_make has done it. */
bool sets_forward(struct bench_sets *sets, int set, attn_error *why);
void sets_free(struct bench_sets *sets);

/* Of `count` sets, from the first one on, in turn. On a GPU asynchronous on the stream. */
bool sets_poison(struct bench_sets *sets, int first, int count, void *stream, attn_error *why);

/* Brings the outputs of a set to the host's tensors, and waits for them; makes those in the host's
 * tensors what the set must have from now on. */
bool sets_fetch(struct bench_sets *sets, int set, attn_error *why);
bool sets_expect(struct bench_sets *sets, int set, attn_error *why);

/* Counts the words in which the outputs are others: of sets in turn, and asynchronous on a GPU. How
 * many have been counted since the last time; below 0 on failure; waits. */
bool sets_compare(struct bench_sets *sets, int first, int count, void *stream, attn_error *why);
int64_t sets_differing(struct bench_sets *sets, attn_error *why);

/* Words of the outputs of a set. */
int64_t sets_words(const struct bench_sets *sets);

/* Of the outputs in the host's tensors: how many elements of the problem's dtype are NaN. */
int64_t sets_nans(const struct bench_sets *sets);

/* How many sets, at least one, stay in the cache together. */
int sets_that_stay(const struct bench_sets *sets);

/* What inputs are filled with: numbers of N(0, 1); a mask that hides half of the keys. */
void fill_normal(uint64_t *rng, attn_dtype dtype, void *values, int64_t count);
void fill_mask(uint64_t *rng, uint8_t *mask, int64_t count);

#endif /* ATTEST_DEVICE_SETS_H */
