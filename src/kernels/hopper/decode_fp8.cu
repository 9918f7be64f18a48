/* SPDX-License-Identifier: Apache-2.0
 *
 * decode_fp8.cu - decode.cu with an fp8 KV cache.
 */
#define ATTN_FP8 1
#include "hopper/decode.cu"
