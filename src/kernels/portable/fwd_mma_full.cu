/* SPDX-License-Identifier: Apache-2.0
 *
 * fwd_mma_full.cu - fwd_mma.cu with every option of the contract: window, softcap, ALiBi, bias,
 * masks, sinks, packed sequences, used keys.
 */
#define ATTN_FULL 1
#define ATTN_MASK 1
#include "portable/fwd_mma.cu"
