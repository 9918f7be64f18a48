/* SPDX-License-Identifier: Apache-2.0
 *
 * avx512.c - the fp32 kernels on x86-64 with AVX-512: tiles of 48 rows x 8 keys, 24 of the 32
 * registers are accumulators.
 */
#include "cpu/avx512.h"

enum { MV = 3, NB = 8, EXP_KEYS = 2, ROW_KEYS = 4, ROW_VECTORS = 4 };

#include "cpu/math.h"
#include "cpu/row_kernel.h"
#include "cpu/tile_kernel.h"

const struct cpu_isa cpu_isa_avx512 = {"avx512", &tile_kernel, &row_kernel, dequantize_row};
