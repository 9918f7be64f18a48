/* SPDX-License-Identifier: Apache-2.0
 *
 * random.h - normally distributed numbers. The same seed gives the same numbers.
 */
#ifndef ATTEST_RANDOM_H
#define ATTEST_RANDOM_H

#include <stddef.h>
#include <stdint.h>

struct random {
    uint64_t state;
};

/* Fills `values` with numbers of N(0, 1). */
void random_normal(struct random *random, float *values, size_t count);

#endif /* ATTEST_RANDOM_H */
