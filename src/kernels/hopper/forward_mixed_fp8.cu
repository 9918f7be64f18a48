/* SPDX-License-Identifier: Apache-2.0
 *
 * forward_mixed_fp8.cu - forward_mixed.cu with an fp8 KV cache: fwd_hopper_mixed_fp8.
 */
#define ATTN_FP8 1
#include "hopper/forward_mixed.cu"
