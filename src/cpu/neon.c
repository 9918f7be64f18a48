/* SPDX-License-Identifier: Apache-2.0
 *
 * neon.c - the fp32 kernels on 64-bit Arm: tiles of 12 rows x 8 keys, 24 accumulators.
 */
#include "cpu/neon.h"

enum { MV = 3, NB = 8, EXP_KEYS = 2, ROW_KEYS = 4, ROW_VECTORS = 4 };

#include "cpu/math.h"
#include "cpu/neon_gemm.h"
#include "cpu/row_kernel.h"
#include "cpu/tile_kernel.h"

const struct cpu_isa cpu_isa_neon = {"neon", &tile_kernel, &row_kernel, dequantize_row};
