// SPDX-License-Identifier: Apache-2.0
//
// attention.cu - what tests/test_vgpu_speed.c times: an attention forward as kernels for mma.sync
// are written, without masks and tails. attention.ptx is what nvcc makes of it:
//     nvcc -ptx -std=c++17 -arch=compute_80 attention.cu -o attention.ptx
//
// A block of 4 warps computes 64 rows of one head with 64 columns; tiles of 64 keys come through
// two stages of cp.async. Shared memory has rows of 128 bytes whose chunks of 16 are permuted, so
// that ldmatrix meets no bank conflict.
//
// q, k, v, o: [heads][rows][64] of f16; o = softmax(q k^T / 8) v. rows is a multiple of 64.
// Launch: grid (rows / 64, heads), block 128, no dynamic shared memory.
using half = unsigned short;

constexpr int D = 64, ROWS = 64, KEYS = 64, THREADS = 128, ROW_BYTES = 2 * D;

__device__ __forceinline__ unsigned place(unsigned base, int row, int chunk) {
    return base + row * ROW_BYTES + ((chunk ^ (row & 7)) << 4);
}

// A tile of 64 rows, from global to shared memory.
__device__ __forceinline__ void copy_tile(unsigned to, const half *from) {
#pragma unroll
    for (int i = threadIdx.x; i < ROWS * 8; i += THREADS) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(place(to, i / 8, i % 8)),
                     "l"(from + i * 8)
                     : "memory");
    }
}

__device__ __forceinline__ void load4(unsigned (&r)[4], unsigned from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}

__device__ __forceinline__ void load4_turned(unsigned (&r)[4], unsigned from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}

__device__ __forceinline__ void multiply(float (&d)[4], const unsigned (&a)[4], unsigned b0,
                                         unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ unsigned pack(float low, float high) {
    unsigned both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

__device__ __forceinline__ float of_neighbour(float x, int lanes) {
    float y;
    asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, 0xffffffff;" : "=f"(y) : "f"(x), "r"(lanes));
    return y;
}

__device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, of_neighbour(x, 1));
    return fmaxf(x, of_neighbour(x, 2));
}

__device__ __forceinline__ float quad_sum(float x) {
    x += of_neighbour(x, 1);
    return x + of_neighbour(x, 2);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    attention(const half *q, const half *k, const half *v, half *o, int rows) {
    __shared__ __align__(128) half shared_q[ROWS * D], shared_k[2][KEYS * D],
        shared_v[2][KEYS * D];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const size_t head = (size_t)blockIdx.y * rows * D;
    const unsigned to_q = (unsigned)__cvta_generic_to_shared(shared_q);
    const unsigned to_k = (unsigned)__cvta_generic_to_shared(shared_k);
    const unsigned to_v = (unsigned)__cvta_generic_to_shared(shared_v);
    copy_tile(to_q, q + head + (size_t)blockIdx.x * ROWS * D);
    copy_tile(to_k, k + head);
    copy_tile(to_v, v + head);
    asm volatile("cp.async.commit_group;" ::: "memory");

    unsigned a[4][4];
    float sums[8][4] = {}, maximum[2] = {-INFINITY, -INFINITY}, total[2] = {};
    const float scale = 0.125F * 1.44269504F;
    for (int tile = 0; tile < rows / KEYS; tile++) {
        const unsigned stage = tile % 2 * KEYS * ROW_BYTES;
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncthreads();
        if (tile == 0) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                load4(a[i], place(to_q, warp * 16 + lane % 16, 2 * i + lane / 16));
            }
        }
        if ((tile + 1) * KEYS < rows) {
            const unsigned other = KEYS * ROW_BYTES - stage;
            copy_tile(to_k + other, k + head + (size_t)(tile + 1) * KEYS * D);
            copy_tile(to_v + other, v + head + (size_t)(tile + 1) * KEYS * D);
            asm volatile("cp.async.commit_group;" ::: "memory");
        }
        float s[8][4] = {};
#pragma unroll
        for (int i = 0; i < 4; i++) {
#pragma unroll
            for (int n = 0; n < 4; n++) {
                unsigned b[4];
                load4(b, place(to_k + stage, n * 16 + lane / 16 * 8 + lane % 8,
                               2 * i + lane / 8 % 2));
                multiply(s[2 * n], a[i], b[0], b[1]);
                multiply(s[2 * n + 1], a[i], b[2], b[3]);
            }
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float m = maximum[half], sum = 0;
#pragma unroll
            for (int n = 0; n < 8; n++) {
                m = fmaxf(m, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
            }
            m = quad_max(m);
            const float factor = exp2_approx((maximum[half] - m) * scale);
            maximum[half] = m;
#pragma unroll
            for (int n = 0; n < 8; n++) {
                s[n][2 * half] = exp2_approx((s[n][2 * half] - m) * scale);
                s[n][2 * half + 1] = exp2_approx((s[n][2 * half + 1] - m) * scale);
                sum += s[n][2 * half] + s[n][2 * half + 1];
                sums[n][2 * half] *= factor;
                sums[n][2 * half + 1] *= factor;
            }
            total[half] = total[half] * factor + sum;
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const unsigned p[4] = {
                pack(s[2 * i][0], s[2 * i][1]), pack(s[2 * i][2], s[2 * i][3]),
                pack(s[2 * i + 1][0], s[2 * i + 1][1]), pack(s[2 * i + 1][2], s[2 * i + 1][3])};
#pragma unroll
            for (int n = 0; n < 4; n++) {
                unsigned b[4];
                load4_turned(b, place(to_v + stage, i * 16 + lane % 16, 2 * n + lane / 16));
                multiply(sums[2 * n], p, b[0], b[1]);
                multiply(sums[2 * n + 1], p, b[2], b[3]);
            }
        }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float inverse = 1.0F / quad_sum(total[half]);
        const int row = blockIdx.x * ROWS + warp * 16 + half * 8 + lane / 4;
#pragma unroll
        for (int n = 0; n < 8; n++) {
            *reinterpret_cast<unsigned *>(o + head + (size_t)row * D + n * 8 + lane % 4 * 2) =
                pack(sums[n][2 * half] * inverse, sums[n][2 * half + 1] * inverse);
        }
    }
}
