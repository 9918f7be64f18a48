// SPDX-License-Identifier: Apache-2.0
//
// args.cu - kernels with arguments of every form, for tests/cli/test_check_args.sh; args.ptx is what
// nvcc makes of them for sm_90a (see kernels.cu).

// A row of tiles through a ring of four slots; from the sixth tile on it goes wrong.
template <int TILE, typename T> __global__ void ring(const T *from, T *to, int count) {
    __shared__ T slots[4][TILE];
    const int tiles = (count + TILE - 1) / TILE;
    for (int i = 0; i < tiles; i++) {
        const int slot = i < 5 ? i % 4 : i - 1;
        const int at = i * TILE + threadIdx.x;
        slots[slot][threadIdx.x] = at < count ? from[at] : T(0);
        __syncthreads();
        if (at < count) {
            to[at] = slots[slot][threadIdx.x];
        }
        __syncthreads();
    }
}
template __global__ void ring<32, float>(const float *, float *, int);
template __global__ void ring<64, float>(const float *, float *, int);
template __global__ void ring<32, int>(const int *, int *, int);

struct work {
    const float *from;
    float *to;
    int count;
    float scale;
    char first;
    double shift;
};
__constant__ float factors[4];
__device__ unsigned launches;

__global__ void by_struct(work w, const work *more) {
    const int i = threadIdx.x;
    if (i < w.count) {
        w.to[i] = w.scale * w.from[i] + (float)w.shift + w.first;
        more->to[i] = more->scale * more->from[i] * factors[i % 4];
    }
    if (i == 0) {
        w.to[0] = atomicAdd(&launches, 1u);
    }
}

__global__ void by_pointers(float *const *rows, int count, float *sums) {
    float sum = 0.0f;
    for (int i = 0; i < count; i++) {
        sum += rows[i][threadIdx.x];
    }
    sums[threadIdx.x] = sum;
}

struct alignas(64) tensor_map { // CUtensorMap
    unsigned long long words[16];
};

__global__ void by_map(const tensor_map *map, int *out) {
    __shared__ alignas(128) int tile[32];
    __shared__ alignas(8) unsigned long long barrier;
    const unsigned to = (unsigned)__cvta_generic_to_shared(tile);
    const unsigned bar = (unsigned)__cvta_generic_to_shared(&barrier);
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(bar) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 128;" ::"r"(bar)
                     : "memory");
        asm volatile("cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes "
                     "[%0], [%1, {%2}], [%3];" ::"r"(to),
                     "l"(map), "r"(32), "r"(bar)
                     : "memory");
    }
    __syncthreads();
    asm volatile("{\n.reg .pred p;\nagain:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0;\n@!p bra again;\n}" ::"r"(bar)
                 : "memory");
    out[threadIdx.x] = tile[threadIdx.x];
}
