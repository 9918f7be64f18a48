/* SPDX-License-Identifier: Apache-2.0
 *
 * fwd_tf32_decode.cu - fwd_tf32.cu with split-KV, for few query rows and many keys (decode).
 */
#define ATTN_SPLIT_KV 1
#include "portable/fwd_tf32.cu"
