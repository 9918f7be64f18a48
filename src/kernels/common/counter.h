/* SPDX-License-Identifier: Apache-2.0
 *
 * counter.h - counters in the workspace that need no initialisation.
 *
 * A counter is a word of 64 bits: ATTN_COUNTER_ZERO plus the count, which is below 2^32. A thread
 * adds 1 and sees in the old value whether it was a counter. If not, the word was garbage: the
 * thread replaces it by a count of 0, unless another one has, and adds 1 again. What was added to
 * garbage is lost with it, so each call counts exactly once. It is lock-free: a swap fails only
 * after another thread's first add or successful swap.
 *
 * At launch a word that is a counter is at 0: the last thread to count resets it, and no partial
 * result is one: the upper half would be a signalling NaN, which no arithmetic yields. Memory that
 * was a workspace and something else since may hold a word of which only some bytes were
 * overwritten (a bool, an int). All of 0xffffffff in the lower half and 0xffff above it change at
 * the first count, so that such a word is garbage, or still at 0. So the workspace needs no
 * initialisation, also between different plans.
 *
 * Invariant: calls return 0, 1, 2 ... up to the reset, which no call may overlap. With
 * programmatic dependent launch a kernel counts only after pdl_wait.
 */
#ifndef ATTN_KERNELS_COMMON_COUNTER_H
#define ATTN_KERNELS_COMMON_COUNTER_H

#include "common/device.h"

enum order { RELAXED, ACQ_REL };

INLINE bool is_counter(unsigned long long word) {
    return (word - ATTN_COUNTER_ZERO) >> 32 == 0;
}

template <enum order order> INLINE unsigned long long add_one(unsigned long long *word) {
    if (order == RELAXED) {
        return atomicAdd(word, 1ULL);
    }
    unsigned long long before;
    asm volatile("atom.add.acq_rel.gpu.global.u64 %0, [%1], 1;"
                 : "=l"(before)
                 : "l"(word)
                 : "memory");
    return before;
}

template <int threads> INLINE bool any_of(bool condition) {
    return threads > 1 ? __any_sync(~0U, condition) : condition;
}

/* What the count was before a thread's add_one, which returned `before`: read as late as
 * possible, so that the latency of the add is hidden. The swap orders nothing: it counts nothing.
 * `threads` is 1, or all lanes of a warp call it and one of them counts: ptxas then knows that they
 * are converged, and keeps what they share in uniform registers (fwd_hopper_full spills 72 bytes
 * otherwise). */
template <enum order order, int threads = 1>
INLINE unsigned count_of(unsigned long long *word, unsigned long long before, bool counts = true) {
    if (any_of<threads>(counts && !is_counter(before))) {
        unsigned long long garbage, found = before + 1;
        do {
            garbage = found;
            if (counts) {
                found = atomicCAS(word, garbage, ATTN_COUNTER_ZERO);
            }
        } while (any_of<threads>(counts && found != garbage && !is_counter(found)));
        if (counts) {
            before = add_one<order>(word);
        }
    }
    return (unsigned)(before - ATTN_COUNTER_ZERO);
}

/* One more; what the count was. The caller sees what all did that counted before. */
INLINE unsigned count_up(unsigned long long *word) {
    return count_of<ACQ_REL>(word, add_one<ACQ_REL>(word));
}

/* Likewise, of a whole warp of which one lane counts, and gets the count. */
INLINE unsigned count_up_converged(unsigned long long *word, bool counts) {
    unsigned long long before = ATTN_COUNTER_ZERO;
    if (counts) {
        before = add_one<ACQ_REL>(word);
    }
    return count_of<ACQ_REL, LANES>(word, before, counts);
}

/* Ready for the next kernel, after the last call of this one. */
INLINE void reset_counter(unsigned long long *word) {
    *word = ATTN_COUNTER_ZERO;
}

#endif /* ATTN_KERNELS_COMMON_COUNTER_H */
