/* SPDX-License-Identifier: Apache-2.0
 *
 * fwd_mma_decode.cu - fwd_mma_full.cu with split-KV, for few query rows and many keys (decode):
 * several CTAs share the keys of a Q tile, and the last of them to finish merges the partial
 * results.
 */
#define ATTN_FULL 1
#define ATTN_MASK 1
#define ATTN_PAGED 1
#define ATTN_DRAFTS 1
#define ATTN_SPLIT_KV 1
#include "portable/fwd_mma.cu"
