/* SPDX-License-Identifier: Apache-2.0
 *
 * random.h - random numbers, normally distributed or whole. The same seed gives the same numbers.
 */
#ifndef ATTEST_BASE_RANDOM_H
#define ATTEST_BASE_RANDOM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The same on every machine. */
uint64_t rng_next(uint64_t *state);
int64_t rng_range(uint64_t *state, int64_t low, int64_t high); /* both included */
bool rng_chance(uint64_t *state, int percent);
float rng_normal(uint64_t *state); /* mean 0, deviation 1, never beyond 6 */

struct random {
    uint64_t state;
};

/* Fills `values` with numbers of N(0, 1), as the machine's logf and cosf have them. */
void random_normal(struct random *random, float *values, size_t count);

/* A whole number, 0 to bound - 1, each as likely as the other to one part in 2^32; bound is at most
 * 2^32. */
uint64_t random_below(struct random *random, uint64_t bound);

#endif /* ATTEST_BASE_RANDOM_H */
