/* SPDX-License-Identifier: Apache-2.0
 *
 * random.c - see random.h.
 */
#include "base/random.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/message.h"

uint64_t rng_fresh(void) {
    uint64_t number = 0;
    if (getentropy(&number, sizeof number) != 0) {
        exit(complain("the system has no random numbers"));
    }
    return number;
}

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

void rng_normals(uint64_t *state, float *values, size_t count) {
    for (size_t i = 0; i < count; i++) {
        values[i] = rng_normal(state);
    }
}
