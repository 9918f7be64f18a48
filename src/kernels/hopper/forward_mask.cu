/* SPDX-License-Identifier: Apache-2.0
 *
 * forward_mask.cu - forward_full.cu with a boolean mask: fwd_hopper_mask.
 */
#define ATTN_CAUSAL 1
#define ATTN_FULL 1
#define ATTN_MASK 1
#include "hopper/forward.cu"
