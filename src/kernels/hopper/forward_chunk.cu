/* SPDX-License-Identifier: Apache-2.0
 *
 * forward_chunk.cu - forward_full.cu with split-KV and packed GQA groups, for grids that do not
 * fill the GPU: fwd_hopper_chunk. A chunk of queries against a long KV cache (chunked prefill).
 */
#define ATTN_CAUSAL 1
#define ATTN_FULL 1
#define ATTN_SPLIT_KV 1
#include "hopper/forward.cu"
