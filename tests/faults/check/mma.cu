/* SPDX-License-Identifier: Apache-2.0
 *
 * mma.cu - c = a b^T by mma.sync and ldmatrix from two stages that cp.async fills ahead, ragged at
 * every edge (the depth by 8), right as FAULT 0. How it is run and what must be found:
 * tests/meta/test_faults.sh.
 *
 * @run multiply --grid 2,2 --block 64 --arg buf:f16:3960:rand:1 --arg buf:f16:2640:rand:2 --arg buf:f32:990:uninit --arg i32:45 --arg i32:22 --arg i32:88
 * @run multiply --grid 1,1 --block 64 --arg buf:f16:1024:rand:1 --arg buf:f16:512:rand:2 --arg buf:f32:512:uninit --arg i32:32 --arg i32:16 --arg i32:32
 * @run multiply --grid 1,1 --block 64 --arg buf:f16:8:rand:1 --arg buf:f16:8:rand:2 --arg buf:f32:1:uninit --arg i32:1 --arg i32:1 --arg i32:8
 * @run multiply --grid 3,1 --block 64 --arg buf:f16:7760:rand:3 --arg buf:f16:800:rand:4 --arg buf:f32:970:uninit --arg i32:97 --arg i32:10 --arg i32:80
 * @run multiply --grid 1,3 --block 64 --arg buf:f16:2040:rand:3 --arg buf:f16:4896:rand:4 --arg buf:f32:612:uninit --arg i32:15 --arg i32:36 --arg i32:136
 * @fault 1 async-read-early    the copies are never waited for
 * @fault 2 async-read-early    the wait leaves one group too many on its way
 * @fault 3 race                no barrier after the wait: the other warp's copies
 * @fault 4 race                no barrier at the end of the loop
 * @fault 5 async-read-early    the prefetch goes into the stage that is in use
 * @fault 6 misaligned          the source of a copy lies off by one element
 * @fault 7 out-of-bounds       one row too many is copied
 * @fault 8 out-of-bounds       results are stored past the last row
 * @fault 9 divergent-warp-op   ldmatrix in a condition that half of the warp does not take
 * @fault 10 race               a barrier that only one warp comes to shifts all the others
 * @fault 11 uninitialised      the tail of the depth is skipped instead of filled with zeros
 * @run 11 multiply --grid 1,1 --block 64 --arg buf:f16:256:rand:1 --arg buf:f16:128:rand:2 --arg buf:f32:512:uninit --arg i32:32 --arg i32:16 --arg i32:8
 * @fault 12 async-read-early   a commit is missing: the wait counts the wrong groups
 * @fault 13 divergent-warp-op  a shuffle reads from a lane that takes no part
 * @fault 14 out-of-bounds      ldmatrix reads rows past the stages
 * @fault 15 misaligned         ldmatrix at half of a row's chunk
 * @fault 16 out-of-bounds      a copy lands past the stages
 * @fault 17 async-unfinished   one prefetch too many, never waited for
 * @fault 18 wrong-space        ldmatrix gets a global address, cut to 32 bits
 * @fault 19 race               no barrier before the results are staged over the tiles
 * @fault 20 race               the staging of the results is read without a barrier after it
 * @fault 21 illegal-operand    the bytes of a source are counted in elements twice
 * @fault 22 divergent-barrier  a barrier in a loop whose length depends on the lane
 * @fault 23 out-of-bounds      the zero fill is asked for, but the tail's address is read
 * @fault 24 race               the barrier is a __syncwarp
 * @fault 27 race               the barrier comes before the wait
 * @fault 28 async-read-early   no empty group is committed for the last tile
 * @fault 29 uninitialised      half of each chunk is copied
 * @fault 30 async-read-early   the second matrix is read from the stage that is being filled
 * @fault 31 race-global        columns past the last one fall into the next row
 * @fault 32 race-global        two blocks compute the same tile
 * @fault 33 race               stages are cleared by other threads than those that fill them
 * @fault 34 divergent-warp-op  threads without a column leave before the products
 * @numbers 25 2 0.01           the swizzle of the reads is not that of the writes
 * @numbers 26 2 0.01           two registers of a fragment in the wrong order
 */
#ifndef FAULT
#define FAULT 0
#endif

typedef unsigned short half_bits;

enum { BM = 32, BN = 16, BK = 32, THREADS = 64 };
enum { CHUNKS = BK / 8, STAGE = (BM + BN) * BK, PITCH = BN + 4 };

/* Where chunk `chunk` (16 bytes) of a row lies: the rows of an ldmatrix are on different banks. */
__device__ int at_chunk(int row, int chunk) {
    return row * BK + (chunk ^ (row / 2 & 3)) * 8;
}

__device__ unsigned shared_address(const void *p) {
    return (unsigned)__cvta_generic_to_shared(p);
}

__device__ void copy16(half_bits *to, const half_bits *from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" /* @5 */
                 :: "r"(shared_address(to)), "l"(from), "r"(bytes) : "memory");
}

__device__ void copy8(half_bits *to, const half_bits *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;"
                 :: "r"(shared_address(to)), "l"(from) : "memory");
}

__device__ void fill(half_bits *stage, const half_bits *a, const half_bits *b, int rows,
                     int columns, int depth, int from) {
    for (int i = threadIdx.x; i < (BM + BN) * CHUNKS; i += THREADS) {
        const int row = i / CHUNKS, k = from + i % CHUNKS * 8;
        const bool of_a = row < BM;
        const int block = FAULT == 32 ? 0 : blockIdx.x;
        const int global = of_a ? block * BM + row : blockIdx.y * BN + row - BM;
        const int bound = of_a ? rows + (FAULT == 7) : columns;
        const bool inside = global < bound && k < depth;
        const half_bits *chunk = (of_a ? a : b) + (inside || FAULT == 23 ? global * depth + k : 0);
        int n = inside ? 16 : 0;
#if FAULT == 6
        chunk += 1;
#elif FAULT == 11
        if (!inside) {
            continue;
        }
#elif FAULT == 21
        n *= 2;
#elif FAULT == 23
        n = 16;
#endif
        const int line = FAULT == 16 && row == BM + BN - 1 ? row + BM + BN : row;
        half_bits *to = stage + at_chunk(line, i % CHUNKS);
#if FAULT == 29
        copy8(to, chunk);
#else
        copy16(to, chunk, n); /* @1 @2 @3 @4 @5 @6 @7 @10 @12 @16 @17 @21 @23 @24 @27 @28 @30 @33 */
#endif
    }
}

__device__ void load_matrices(unsigned r[4], const half_bits *p) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(p)) : "memory");
}

__device__ void multiply_add(float c[4], const unsigned a[4], unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* A warp's 16 rows by 16 columns of one stage. */
__device__ void use(float sum[8], const half_bits *stage, const half_bits *stage_b,
                    const half_bits *global) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int k = 0; k < BK / 16; k++) {
        unsigned a[4], b[4];
        int row = warp * 16 + lane % 16;
        const int row_b = BM + lane % 8 + lane / 16 * 8;
#if FAULT == 14
        row += 2 * (BM + BN) - 16; /* past both stages for the second warp */
#endif
        const half_bits *from = stage + at_chunk(row, 2 * k + lane / 16);
#if FAULT == 25
        from = stage + row * BK + ((2 * k + lane / 16) ^ (row & 3)) * 8;
#elif FAULT == 15
        from += 4;
#endif
#if FAULT == 18
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                     : "r"((unsigned)(unsigned long long)global)); /* @18 */
#elif FAULT == 9
        if (lane < 16) {
            load_matrices(a, from); /* @9 */
        }
#else
        load_matrices(a, from); /* @1 @2 @3 @4 @5 @10 @12 @14 @15 @19 @24 @27 @28 @34 */
#endif
        from = stage_b + at_chunk(row_b, 2 * k + lane / 8 % 2);
        load_matrices(b, from); /* @1 @2 @3 @4 @5 @10 @12 @19 @24 @27 @28 @30 @34 */
        multiply_add(sum, a, b[FAULT == 26 ? 1 : 0], b[FAULT == 26 ? 0 : 1]);
        multiply_add(sum + 4, a, b[2], b[3]);
    }
}

extern "C" __global__ void multiply(const half_bits *a, const half_bits *b, float *c, int rows,
                                    int columns, int depth) {
    __shared__ __align__(128) half_bits stages[2 * STAGE];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int tiles = (depth + BK - 1) / BK;
    float sum[8] = {0.0f};
#if FAULT == 33
    for (int i = threadIdx.x; i < 2 * STAGE; i += THREADS) {
        stages[2 * STAGE - 1 - i] = 0; /* @33 */
    }
#elif FAULT == 34
    if (blockIdx.y * BN + lane >= columns) {
        return;
    }
#endif
    fill(stages, a, b, rows, columns, depth, 0);
#if FAULT != 12
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
    for (int tile = 0; tile < tiles; tile++) {
        if (tile + 1 < tiles || FAULT == 17) {
            half_bits *next = stages + (FAULT == 5 ? tile & 1 : tile + 1 & 1) * STAGE;
            fill(next, a, b, rows, columns, depth, (tile + 1) * BK);
#if FAULT == 28
            asm volatile("cp.async.commit_group;" ::: "memory");
#endif
        }
#if FAULT != 28
        asm volatile("cp.async.commit_group;" ::: "memory");
#endif
#if FAULT == 27
        __syncthreads();
#endif
#if FAULT == 2
        asm volatile("cp.async.wait_group 2;" ::: "memory");
#elif FAULT != 1
        asm volatile("cp.async.wait_group 1;" ::: "memory");
#endif
#if FAULT == 24
        __syncwarp();
#elif FAULT != 3 && FAULT != 27
        __syncthreads();
#endif
#if FAULT == 10
        if (warp == 0) {
            __syncthreads();
        }
#endif
        half_bits *stage = stages + (tile & 1) * STAGE;
        use(sum, stage, FAULT == 30 ? stages + (tile + 1 & 1) * STAGE : stage, a);
#if FAULT == 22
        for (int i = 0; i < 1 + lane % 2; i++) {
            __syncthreads(); /* @22 */
        }
#elif FAULT == 19
        if (tile + 1 < tiles) {
            __syncthreads();
        }
#elif FAULT != 4
        __syncthreads();
#endif
    }
#if FAULT == 13
    if (lane < 24) {
        sum[0] += 0.0f * __shfl_down_sync(0x00ffffffu, sum[0], 4); /* @13 */
    }
#endif
    float *result = (float *)(void *)stages; /* 32 rows of 20 floats */
    for (int i = 0; i < 8; i++) {
        const int row = warp * 16 + lane / 4 + (i & 2) * 4;
        const int column = i / 4 * 8 + lane % 4 * 2 + i % 2;
        result[row * PITCH + column] = sum[i]; /* @19 @20 */
    }
#if FAULT != 20
    __syncthreads();
#endif
    for (int i = threadIdx.x; i < BM * BN; i += THREADS) {
        const int local = (i / BN + 16) % BM; /* the other warp's rows */
        const int row = (FAULT == 32 ? 0 : blockIdx.x) * BM + local;
        const int column = blockIdx.y * BN + i % BN;
        if ((row < rows || FAULT == 8) && (column < columns || FAULT == 31)) {
            c[row * columns + column] = result[local * PITCH + i % BN]; /* @8 @11 @20 @29 @31 @32 */
        }
    }
}
