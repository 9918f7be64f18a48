/* SPDX-License-Identifier: Apache-2.0
 *
 * crash.cu - a forward kernel that writes to an address which belongs to nobody: the driver ends it
 * with an error, and with it everything that its context still has to do.
 */
#include "common/args.h"

extern "C" __global__ void ATTN_ENTRY(struct attn_args a) {
    volatile int *nowhere = (volatile int *)16ULL;
    *nowhere = 1;
}
