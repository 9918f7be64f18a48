/* SPDX-License-Identifier: Apache-2.0
 *
 * fwd_mma_decode_fp8.cu - fwd_mma_decode.cu with an fp8 KV cache.
 */
#define ATTN_FP8 1
#include "portable/fwd_mma_decode.cu"
