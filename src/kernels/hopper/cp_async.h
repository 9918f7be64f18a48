/* SPDX-License-Identifier: Apache-2.0
 *
 * cp_async.h - asynchronous copies of 16 or 4 bytes that may signal an mbarrier, where rows are not
 * what TMA takes: a bias (loader.h), small pages (decode.cu, gather.h).
 *
 * Invariant: an mbarrier's phase counts one arrival of each lane that copies.
 */
#ifndef ATTN_KERNELS_HOPPER_CP_ASYNC_H
#define ATTN_KERNELS_HOPPER_CP_ASYNC_H

#include "common/device.h"

/* Asynchronous copy of 16 or 4 bytes, of which `bytes` exist; the others become 0. */
template <int size> INLINE void cp_async(unsigned to, const void *from, int bytes) {
    if (size == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                     :
                     : "r"(to), "l"(from), "r"(bytes)
                     : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                     :
                     : "r"(to), "l"(from), "r"(bytes)
                     : "memory");
    }
}

/* Until the copies of this thread have landed. */
INLINE void cp_async_wait_all(void) {
    asm volatile("cp.async.wait_all;" : : : "memory");
}

/* Arrives when the copies of this thread have landed. */
INLINE void cp_async_arrive(unsigned barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];"
                 :
                 : "r"(barrier)
                 : "memory");
}

#endif /* ATTN_KERNELS_HOPPER_CP_ASYNC_H */
