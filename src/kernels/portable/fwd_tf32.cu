/* SPDX-License-Identifier: Apache-2.0
 *
 * fwd_tf32.cu - fwd_mma_full.cu for fp32: three MMAs of tf32 for one of fp32 (tf32.h), every
 * option.
 */
#define ATTN_FULL 1
#define ATTN_MASK 1
#if ATTN_D <= 128 /* above that no register is left for the address of a page */
#define ATTN_PAGED 1
#define ATTN_DRAFTS 1
#endif
#include "portable/fwd_mma.cu"
