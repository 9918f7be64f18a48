/* SPDX-License-Identifier: Apache-2.0
 *
 * fwd_tf32.cu - fwd_mma_full.cu for fp32: three MMAs of tf32 for one of fp32 (tf32.h), every
 * option.
 */
#define ATTN_FULL 1
#define ATTN_MASK 1
#include "portable/fwd_mma.cu"
