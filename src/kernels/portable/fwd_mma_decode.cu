/* SPDX-License-Identifier: Apache-2.0
 *
 * fwd_mma_decode.cu - fwd_mma_full.cu for few rows and many keys: several blocks share the keys of
 * a tile of rows, and the last of them to end puts together what all have left behind.
 */
#define ATTN_FULL 1
#define ATTN_MASK 1
#define ATTN_PARTS 1
#include "portable/fwd_mma.cu"
