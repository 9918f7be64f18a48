/* SPDX-License-Identifier: Apache-2.0
 *
 * fwd_mma_full.cu - fwd_mma.cu with every option: window, softcap, ALiBi, bias, boolean masks,
 * sinks, packed sequences, used_kv.
 */
#define ATTN_FULL 1
#define ATTN_MASK 1
#define ATTN_PAGED 1
#define ATTN_DRAFTS 1
#include "portable/fwd_mma.cu"
