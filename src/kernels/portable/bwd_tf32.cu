/* SPDX-License-Identifier: Apache-2.0
 *
 * bwd_tf32.cu - bwd_mma.cu for fp32: three MMAs of tf32 for one of fp32 (tf32.h), every option.
 * Above head_dim 128 a sum takes too many registers: two warps share rows, compute the same S and
 * dP, and each has half of the columns of the sums.
 */
#define ATTN_ONE_Q_TILE 1 /* X is split where it is used: there is no room for two tiles of it */
#define ATTN_SHORT_CHAINS 1
#define ATTN_BASE_E 1
#if ATTN_D > 128
#define ATTN_SLICES 2
#endif
#include "portable/bwd_mma.cu"
