/* SPDX-License-Identifier: Apache-2.0
 *
 * fwd_tf32_invariant.cu - fwd_mma_invariant.cu for fp32.
 */
#define ATTN_SPLIT_KV 1
#define ATTN_INVARIANT 1
#include "portable/fwd_tf32.cu"
