/* SPDX-License-Identifier: Apache-2.0
 *
 * cpu_neon.c - the fp32 kernels on 64-bit Arm: tiles of 12 rows x 8 keys, 24 accumulators.
 */
#include "cpu_neon.h"

enum { MV = 3, NB = 8, EXP_KEYS = 2, ROW_KEYS = 4, ROW_VECTORS = 4 };

#include "cpu_math.h"
#include "cpu_neon_gemm.h"
#include "cpu_row_kernel.h"
#include "cpu_tile_kernel.h"

const struct cpu_isa cpu_isa_neon = {"neon", &tile_kernel, &row_kernel};
