/* SPDX-License-Identifier: Apache-2.0
 *
 * random.c - see random.h.
 */
#include "base/random.h"

#include <math.h>

static const float TWO_PI = 6.2831853F;

/* A Weyl sequence, mixed until neighbours look unrelated (SplitMix64). */
uint64_t rng_next(uint64_t *state) {
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

int64_t rng_range(uint64_t *state, int64_t low, int64_t high) {
    return low + (int64_t)(rng_next(state) % (uint64_t)(high - low + 1));
}

bool rng_chance(uint64_t *state, int percent) {
    return rng_range(state, 0, 99) < percent;
}

/* The sum of twelve uniform numbers (here 16 bits each, four from one number) is
 * close enough to normal, and the same on every machine, as logf and cosf are not. */
float rng_normal(uint64_t *state) {
    uint32_t sum = 0;
    for (int i = 0; i < 3; i++) {
        const uint64_t bits = rng_next(state);
        sum += (uint32_t)(bits & 0xFFFF) + (uint32_t)(bits >> 16 & 0xFFFF) +
               (uint32_t)(bits >> 32 & 0xFFFF) + (uint32_t)(bits >> 48);
    }
    return (float)sum / 65536.0f - 6.0f;
}

/* Box and Muller's formula. */
void random_normal(struct random *random, float *values, size_t count) {
    for (size_t i = 0; i < count; i += 2) {
        const uint64_t bits = rng_next(&random->state);
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
    return (rng_next(&random->state) >> 32) * bound >> 32;
}
