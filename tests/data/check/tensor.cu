// SPDX-License-Identifier: Apache-2.0
//
// tensor.cu - one box of a tensor by TMA, for tests/test_cli_check.sh; tensor.ptx is what nvcc makes
// of it for sm_90a (see kernels.cu). The box of 32 x 8 floats comes from column 32, row 8.
struct alignas(64) tensor_map { // CUtensorMap
    unsigned long long words[16];
};

extern "C" __global__ void box(const __grid_constant__ tensor_map map, float *out) {
    __shared__ alignas(128) float tile[8 * 32];
    __shared__ alignas(8) unsigned long long barrier;
    const unsigned to = (unsigned)__cvta_generic_to_shared(tile);
    const unsigned bar = (unsigned)__cvta_generic_to_shared(&barrier);
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(bar) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 1024;" ::"r"(bar)
                     : "memory");
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                     "[%0], [%1, {%2, %3}], [%4];" ::"r"(to),
                     "l"(&map), "r"(32), "r"(8), "r"(bar)
                     : "memory");
    }
    asm volatile("{\n.reg .pred p;\nagain:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0;\n@!p bra again;\n}" ::"r"(bar)
                 : "memory");
    for (int i = threadIdx.x; i < 256; i += blockDim.x) out[i] = tile[i];
}
