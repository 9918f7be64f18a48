/* SPDX-License-Identifier: Apache-2.0
 *
 * forward_causal.cu - forward.cu with a causal mask: fwd_hopper_causal.
 */
#define ATTN_CAUSAL 1
#include "hopper/forward.cu"
