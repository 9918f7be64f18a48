/* SPDX-License-Identifier: Apache-2.0
 *
 * fwd_mma_wide.cu - fwd_mma_decode.cu for head_dim above 256: four warps share rows and keys, and
 * split head_dim (slices.h). Prefill and decode, and MLA, where V is the first columns of K.
 */
#define ATTN_FULL 1
#define ATTN_MASK 1
#define ATTN_PAGED 1
#define ATTN_DRAFTS 1
#define ATTN_SPLIT_KV 1
#define ATTN_SLICES 4
#define MOST_Q_REGISTERS 36
#include "portable/fwd_mma.cu"
