/* SPDX-License-Identifier: Apache-2.0
 *
 * forward_mixed.cu - forward_chunk.cu for a mixed step of a server, over a paged or contiguous KV
 * cache: fwd_hopper_mixed. Decode rows, drafts and chunks of prompts share a launch, and the kernel
 * splits the keys of each sequence by the lengths in memory (mixed.h).
 */
#define ATTN_CAUSAL 1
#define ATTN_FULL 1
#define ATTN_SPLIT_KV 1
#define ATTN_PAGED 1
#define ATTN_DRAFTS 1
#define ATTN_MIXED 1
#include "hopper/forward.cu"
