/* SPDX-License-Identifier: Apache-2.0
 *
 * forward_bias.cu - forward_full.cu with an additive bias and a boolean mask: fwd_hopper_bias.
 */
#define ATTN_CAUSAL 1
#define ATTN_FULL 1
#define ATTN_BIAS 1
#define ATTN_MASK 1
#include "hopper/forward.cu"
