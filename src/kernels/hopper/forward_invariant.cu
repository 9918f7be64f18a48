/* SPDX-License-Identifier: Apache-2.0
 *
 * forward_invariant.cu - forward_mixed.cu for batch_invariant: prefill, chunks and decode give a
 * row the same bits (invariant.h), over contiguous K and V or pages of any size:
 * fwd_hopper_invariant.
 */
#define ATTN_CAUSAL 1
#define ATTN_FULL 1
#define ATTN_SPLIT_KV 1
#define ATTN_PAGED 1
#define ATTN_MIXED 1
#define ATTN_INVARIANT 1
#include "hopper/forward.cu"
