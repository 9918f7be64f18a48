/* SPDX-License-Identifier: Apache-2.0
 *
 * warp.h - a warp of one thread, for schedulers of src/kernels that C compiles, too: lanes,
 * collectives and CUDA's names.
 *
 * A collective (ballot, shuffle, reduction) needs the values of all lanes, so a call is run once
 * for each lane up to the first collective whose result is not known; then that result is, and the
 * lanes start again. When they reach the end, all must have the same answer.
 *
 * Invariant: the lanes of a warp meet in the same collectives, in the same order.
 */
#ifndef TESTS_CUDA_WARP_H
#define TESTS_CUDA_WARP_H

#include <setjmp.h>
#include <stdlib.h>

#include "src/kernels/common/args.h"
#include "test.h"

enum { LANES = 32, MOST_COLLECTIVES = 16384 };
enum collective { BALLOT, SHUFFLE, ADD, MAX };

static struct {
    enum collective kind;
    int values[LANES];
} collectives[MOST_COLLECTIVES]; /* of one call */
static int known, reached;       /* those with a result; those that this lane has met */
static struct { unsigned x; } threadIdx;
static jmp_buf next_lane;

static int result_of(enum collective kind, const int *values, int from) {
    int64_t result = kind == SHUFFLE ? values[from] : kind == MAX ? INT32_MIN : 0;
    for (int i = 0; i < LANES && kind != SHUFFLE; i++) {
        result = kind == ADD          ? result + values[i]
                 : kind == BALLOT     ? result | (int64_t)(values[i] != 0) << i
                 : values[i] > result ? values[i]
                                      : result;
    }
    return (int)(uint32_t)result;
}

static int meet(enum collective kind, int value, int from) {
    if (reached < known) {
        CHECK_EQ((int)collectives[reached].kind, (int)kind);
        return result_of(kind, collectives[reached++].values, from);
    }
    const unsigned lane = threadIdx.x % LANES;
    CHECK(known < MOST_COLLECTIVES);
    CHECK(lane == 0 || collectives[known].kind == kind);
    collectives[known].kind = kind;
    collectives[known].values[lane] = value;
    longjmp(next_lane, 1);
}

/* CUDA's names. */
static int max(int x, int y) {
    return x > y ? x : y;
}
static int min(int x, int y) {
    return x < y ? x : y;
}
#define __ballot_sync(mask, condition) ((unsigned)meet(BALLOT, condition, 0))
#define __shfl_sync(mask, value, lane) meet(SHUFFLE, value, lane)
#define __reduce_add_sync(mask, value) meet(ADD, value, 0)
#define __reduce_max_sync(mask, value) meet(MAX, value, 0)
#define __popc(x) __builtin_popcount(x)
#define __ffs(x) __builtin_ffs(x)
#define __clz(x) ((x) == 0 ? 32 : __builtin_clz((unsigned)(x)))
#define __shfl_up_sync(mask, value, step)                                                          \
    meet(SHUFFLE, value, max((int)(threadIdx.x % LANES) - (step), 0)) /* unused below `step` */
#define INLINE static inline

/* `lane` writes the answer of a call, of so many bytes, in which it may differ from no other
 * lane's. */
typedef void lane_function(const void *call, void *answer);

/* False: it has met a collective without a result. */
static bool run_to_end(lane_function *lane, const void *call, void *answer) {
    reached = 0;
    if (setjmp(next_lane) != 0) {
        return false;
    }
    lane(call, answer);
    return true;
}

static void run_warp(lane_function *lane, const void *call, void *answer, size_t size) {
    unsigned char *const first = malloc(size);
    for (known = 0;; known++) {
        int ended = 0;
        for (unsigned i = 0; i < LANES; i++) {
            threadIdx.x = 3 * LANES + i;
            if (run_to_end(lane, call, answer)) {
                ended++;
                CHECK(i == 0 || memcmp(first, answer, size) == 0);
                memcpy(first, answer, size);
            }
        }
        CHECK(ended == 0 || ended == LANES);
        if (ended > 0) {
            break;
        }
    }
    free(first);
}

#endif /* TESTS_CUDA_WARP_H */
