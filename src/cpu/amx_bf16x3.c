/* SPDX-License-Identifier: Apache-2.0
 *
 * amx_bf16x3.c - the tile kernel for fp32 on AMX: amx_bf16x.h with three parts.
 */
#include "cpu/avx512.h"

#include "cpu/math.h"

#define PARTS 3
#include "cpu/amx_bf16x.h"

const struct cpu_isa cpu_isa_amx_bf16x3 = {"amx_bf16x3", &tile_kernel, NULL, dequantize_row};
