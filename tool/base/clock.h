/* SPDX-License-Identifier: Apache-2.0
 *
 * clock.h - the one timer of the program.
 */
#ifndef ATTEST_BASE_CLOCK_H
#define ATTEST_BASE_CLOCK_H

#include <time.h>

/* Seconds since some moment; never goes backwards. */
static inline double clock_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

#endif /* ATTEST_BASE_CLOCK_H */
