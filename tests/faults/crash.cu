/* SPDX-License-Identifier: Apache-2.0
 *
 * crash.cu - a forward kernel that writes to an unmapped address: the driver ends it with an
 * error, and all other work of its context with it.
 */
#include "common/args.h"

extern "C" __global__ void ATTN_ENTRY(struct attn_args a) {
    volatile int *nowhere = (volatile int *)16ULL;
    *nowhere = 1;
}
