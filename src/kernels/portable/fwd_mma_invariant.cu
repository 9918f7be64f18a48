/* SPDX-License-Identifier: Apache-2.0
 *
 * fwd_mma_invariant.cu - fwd_mma_full.cu for batch_invariant: prefill, chunks and decode give a row
 * the same bits (invariant.h).
 */
#define ATTN_FULL 1
#define ATTN_MASK 1
#define ATTN_PAGED 1
#define ATTN_SPLIT_KV 1
#define ATTN_INVARIANT 1
#include "portable/fwd_mma.cu"
