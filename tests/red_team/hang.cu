/* SPDX-License-Identifier: Apache-2.0
 *
 * hang.cu - never comes back.
 *
 * gate: emulation
 */
#pragma push_macro("ATTN_ENTRY")
#pragma push_macro("__global__")
#pragma push_macro("__launch_bounds__")
#pragma push_macro("__grid_constant__")
#undef ATTN_ENTRY
#undef __global__
#undef __launch_bounds__
#undef __grid_constant__
#define ATTN_ENTRY honest
#define __global__ __device__ __forceinline__
#define __launch_bounds__(...)
#define __grid_constant__
#include "portable/fwd_scalar.cu"
#pragma pop_macro("ATTN_ENTRY")
#pragma pop_macro("__global__")
#pragma pop_macro("__launch_bounds__")
#pragma pop_macro("__grid_constant__")

extern "C" __global__ void __launch_bounds__(THREADS, MIN_CTAS)
    ATTN_ENTRY(const __grid_constant__ struct attn_args a) {
    for (volatile int i = 0; i >= 0; i = i & 0xff) {
    }
    honest(a);
}
