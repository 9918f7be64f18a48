/* SPDX-License-Identifier: Apache-2.0
 *
 * wmma.cu - a GEMM by WMMA from tiles in shared memory, ragged at every edge,
 * right as FAULT 0. How it is run and what must be found: tests/meta/test_faults.sh.
 *
 * @run multiply --grid 2,2 --block 128 --arg buf:f16:1665:rand:1 --arg buf:f16:1665:rand:2 --arg buf:f32:1369:uninit --arg i32:37 --arg i32:37 --arg i32:45
 * @run multiply --grid 1,1 --block 128 --arg buf:f16:1024:rand:3 --arg buf:f16:1024:rand:4 --arg buf:f32:1024:uninit --arg i32:32 --arg i32:32 --arg i32:32
 * @run multiply --grid 1,1 --block 128 --arg buf:f16:1:rand:3 --arg buf:f16:1:rand:4 --arg buf:f32:1:uninit --arg i32:1 --arg i32:1 --arg i32:1
 * @run multiply --grid 3,1 --block 128 --arg buf:f16:1105:rand:5 --arg buf:f16:425:rand:6 --arg buf:f32:1625:uninit --arg i32:65 --arg i32:25 --arg i32:17
 * @fault 1 race                no barrier between filling the tiles and their use
 * @fault 2 race                no barrier before the tiles are filled again
 * @fault 3 race                the result is read before all warps have stored theirs
 * @fault 4 out-of-bounds       one row too many of the left matrix
 * @fault 5 out-of-bounds       results past the right edge of the last row
 * @run 6 multiply --grid 1,1 --block 128 --arg buf:f16:416:rand:1 --arg buf:f16:416:rand:2 --arg buf:f32:1024:uninit --arg i32:32 --arg i32:32 --arg i32:13
 * @fault 6 uninitialised       the tail of the tile is not filled with zeros
 * @fault 7 out-of-bounds       a leading dimension that leaves the tile
 * @fault 8 trap-entry          wmma on an array of registers, seen by the compiler
 * @fault 9 matrix-local        the same through a pointer that is chosen at run time
 * @fault 10 divergent-warp-op  a product in a condition that half of the warp does not take
 * @fault 11 misaligned         a tile that begins at an odd element
 * @fault 12 illegal-operand    every lane gives an address of its own
 * @fault 13 out-of-bounds      a whole tile stored to global memory at the bottom edge
 * @fault 14 out-of-bounds      the tile of a warp that is not there
 * @numbers 15 2 0.01           a tile that is row-major is read as column-major
 */
#include <mma.h>

#ifndef FAULT
#define FAULT 0
#endif

using namespace nvcuda;

enum { TILE = 32, DEPTH = 16, THREADS = 128 };
enum { PITCH_A = DEPTH + 8, PITCH_B = TILE + 8, PITCH_C = TILE + 4 };

__device__ void fill(__half *tile_a, __half *tile_b, const __half *a, const __half *b, int rows,
                     int columns, int depth, int from) {
    const __half zero = __float2half(0.0f);
    for (int i = threadIdx.x; i < TILE * DEPTH; i += THREADS) {
        const int row = blockIdx.x * TILE + i / DEPTH, k = from + i % DEPTH;
        const bool inside = row < rows + (FAULT == 4) && k < depth;
        if (inside || FAULT != 6) {
            const __half value = inside ? a[row * depth + k] : zero; /* @4 */
            tile_a[i / DEPTH * PITCH_A + i % DEPTH] = value;         /* @1 @2 */
        }
    }
    for (int i = threadIdx.x; i < DEPTH * TILE; i += THREADS) {
        const int k = from + i / TILE, column = blockIdx.y * TILE + i % TILE;
        const bool inside = k < depth && column < columns;
        if (inside || FAULT != 6) {
            const __half value = inside ? b[k * columns + column] : zero;
            tile_b[i / TILE * PITCH_B + i % TILE] = value; /* @1 @2 */
        }
    }
}

extern "C" __global__ void multiply(const __half *a, const __half *b, float *c, int rows, /* @8 */
                                    int columns, int depth) {
    __shared__ __align__(32) __half tile_a[TILE * PITCH_A];
    __shared__ __align__(32) __half tile_b[DEPTH * PITCH_B];
    __shared__ __align__(32) float result[TILE * PITCH_C];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int row = warp / 2 * 16 + (FAULT == 14 ? 32 : 0), column = warp % 2 * 16;
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> left;
#if FAULT == 15
    wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::col_major> right;
#else
    wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::row_major> right;
#endif
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
    wmma::fill_fragment(sum, 0.0f);
    for (int from = 0; from < depth; from += DEPTH) {
        fill(tile_a, tile_b, a, b, rows, columns, depth, from);
#if FAULT != 1
        __syncthreads();
#endif
        const int pitch = FAULT == 7 ? 2 * PITCH_A : PITCH_A;
        const int off = FAULT == 11 ? 1 : FAULT == 12 ? lane * 16 : 0;
        const __half *rows_of_warp = tile_a + row * PITCH_A + off;
        wmma::load_matrix_sync(left, rows_of_warp, pitch); /* @1 @2 @7 @11 @12 */
        wmma::load_matrix_sync(right, tile_b + column, PITCH_B); /* @1 @2 */
#if FAULT == 10
        if (lane < 16) {
            wmma::mma_sync(sum, left, right, sum); /* @10 */
        }
#else
        wmma::mma_sync(sum, left, right, sum);
#endif
#if FAULT != 2
        __syncthreads();
#endif
    }
#if FAULT == 8 || FAULT == 9
    float mine[256];
    for (int i = 0; i < 256; i++) {
        mine[i] = (float)i;
    }
#if FAULT == 9
    float *to = rows > 36 ? mine : result;
    wmma::store_matrix_sync(to, sum, 16, wmma::mem_row_major); /* @9 */
#else
    wmma::store_matrix_sync(mine, sum, 16, wmma::mem_row_major); /* here nvcc cuts the kernel off */
#endif
    result[threadIdx.x] = mine[lane];
#endif
    float *part = result + row * PITCH_C + column;
    wmma::store_matrix_sync(part, sum, PITCH_C, wmma::mem_row_major); /* @3 @14 */
#if FAULT == 13
    float *whole = c + (blockIdx.x * TILE + row) * 40;
    wmma::store_matrix_sync(whole, sum, 40, wmma::mem_row_major); /* @13 */
#endif
#if FAULT != 3
    __syncthreads();
#endif
    for (int i = threadIdx.x; i < TILE * TILE; i += THREADS) {
        const int r = blockIdx.x * TILE + i / TILE, at = blockIdx.y * TILE + i % TILE;
        if (r < rows && (at < columns || FAULT == 5)) {
            c[r * columns + at] = result[i / TILE * PITCH_C + i % TILE]; /* @3 @5 @6 */
        }
    }
}
