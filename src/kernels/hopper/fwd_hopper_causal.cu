/* SPDX-License-Identifier: Apache-2.0
 *
 * fwd_hopper_causal.cu - fwd_hopper.cu with a causal mask.
 */
#define ATTN_CAUSAL 1
#include "hopper/fwd_hopper.cu"
