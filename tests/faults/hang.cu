/* SPDX-License-Identifier: Apache-2.0
 *
 * hang.cu - a forward kernel that never ends: its caller must time out.
 *
 * The field it waits for is 1 and stays 1; the compiler does not know that.
 */
#include "common/args.h"

extern "C" __global__ void ATTN_ENTRY(struct attn_args a) {
    while (a.num_splits == 1) {
        asm volatile("nanosleep.u32 1000;" ::: "memory");
    }
    *(unsigned short *)a.o = 0;
}
