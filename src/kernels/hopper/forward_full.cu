/* SPDX-License-Identifier: Apache-2.0
 *
 * forward_full.cu - forward.cu with every option but bias and boolean masks, causal or not:
 * fwd_hopper_full.
 */
#define ATTN_CAUSAL 1
#define ATTN_FULL 1
#include "hopper/forward.cu"
