/* SPDX-License-Identifier: Apache-2.0
 *
 * random.h - random numbers, normally distributed or whole. The same seed gives the same numbers on
 * every machine.
 */
#ifndef ATTEST_BASE_RANDOM_H
#define ATTEST_BASE_RANDOM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

uint64_t rng_fresh(void); /* a seed that cannot be predicted */
uint64_t rng_next(uint64_t *state);
int64_t rng_range(uint64_t *state, int64_t low, int64_t high); /* both included */
bool rng_chance(uint64_t *state, int percent);
float rng_normal(uint64_t *state); /* mean 0, deviation 1, never beyond 6 */
void rng_normals(uint64_t *state, float *values, size_t count);

#endif /* ATTEST_BASE_RANDOM_H */
