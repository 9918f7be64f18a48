/* SPDX-License-Identifier: Apache-2.0
 *
 * random.c - see random.h. A 64-bit counter, a mixing function, then Box and Muller's formula.
 */
#include "base/random.h"

#include <math.h>

static const float TWO_PI = 6.2831853F;

/* A Weyl sequence, stirred until neighbours look unrelated (the constants of SplitMix64). */
static uint64_t next(struct random *random) {
    uint64_t z = random->state += 0x9e3779b97f4a7c15U;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
}

void random_normal(struct random *random, float *values, size_t count) {
    for (size_t i = 0; i < count; i += 2) {
        const uint64_t bits = next(random);
        const float u = (float)((bits >> 40) + 1) * 0x1p-24F; /* 0 < u <= 1: its logarithm exists */
        const float angle = TWO_PI * (float)(bits & 0xffffff) * 0x1p-24F;
        const float radius = sqrtf(-2.0F * logf(u));
        values[i] = radius * cosf(angle);
        if (i + 1 < count) {
            values[i + 1] = radius * sinf(angle);
        }
    }
}

uint64_t random_below(struct random *random, uint64_t bound) {
    return (next(random) >> 32) * bound >> 32;
}
