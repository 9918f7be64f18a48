/* SPDX-License-Identifier: Apache-2.0
 *
 * fwd_hopper_full.cu - fwd_hopper.cu with windows, softcap, packed sequences and used keys, causal
 * or not.
 */
#define ATTN_CAUSAL 1
#define ATTN_FULL 1
#include "hopper/fwd_hopper.cu"
