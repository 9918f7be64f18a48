/* SPDX-License-Identifier: Apache-2.0
 *
 * fake_aids.c - the kernels that the benchmark brings along, as the fake driver runs them, and what
 * can be wrong with a clock. See fake_driver.h for the environment.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda/fake_internal.h"

enum { WRONG_BEHIND = 4 }; /* comparisons: a few samples were right */

static bool slept;   /* the last kernel was a sleep */
static int compared; /* how often */

bool fake_is_aid(const char *kernel) {
    return strncmp(kernel, "attest_", 7) == 0;
}

/* The processor time of this thread, which runs the kernels: a machine that is busy with something
 * else does not lengthen a sleep. */
double fake_now(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void sleep_for(uint64_t nanoseconds) {
    const char *percent = getenv("FAKE_DRIVER_SLEEP");
    const double seconds = 1e-9 * (double)nanoseconds * (percent ? atof(percent) / 100.0 : 1.0);
    const double end = fake_now() + seconds;
    while (fake_now() < end) {
    }
    slept = true;
}

static void count_differing(const uint64_t numbers[4]) {
    const uint32_t *a = (const uint32_t *)(uintptr_t)numbers[0];
    const uint32_t *b = (const uint32_t *)(uintptr_t)numbers[1];
    uint64_t *count = (uint64_t *)(uintptr_t)numbers[3];
    for (uint64_t i = 0; i < numbers[2] && getenv("FAKE_DRIVER_BLIND") == NULL; i++) {
        *count += a[i] != b[i];
    }
    slept = false;
    compared++;
}

void fake_awake(void) {
    slept = false;
}

bool fake_wrong_now(void) {
    const bool now = compared == WRONG_BEHIND && getenv("FAKE_DRIVER_WRONG_ONCE") != NULL;
    compared += now;
    return now;
}

void fake_run_aid(const char *kernel, const uint64_t numbers[4]) {
    if (strcmp(kernel, "attest_sleep") == 0) {
        sleep_for(numbers[0]);
    } else {
        count_differing(numbers);
    }
}

double fake_elapsed(double seconds) {
    const char *events = getenv("FAKE_DRIVER_EVENTS");
    if (events != NULL && strcmp(events, "fast") == 0 && !slept) {
        return 1e-9;
    }
    return events != NULL && strcmp(events, "slow") == 0 ? 10.0 * seconds : seconds;
}
