/* SPDX-License-Identifier: Apache-2.0
 *
 * bwd_tf32.cu - bwd_mma.cu for fp32: three MMAs of tf32 for one of fp32 (tf32.h), every option.
 */
#define ATTN_ONE_Q_TILE 1 /* X is split where it is used: there is no room for two tiles of it */
#define ATTN_SHORT_CHAINS 1
#define ATTN_BASE_E 1
#include "portable/bwd_mma.cu"
