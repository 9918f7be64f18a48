/* SPDX-License-Identifier: Apache-2.0
 *
 * amx_bf16x2.c - the tile kernel for fp16 on AMX: amx_bf16x.h with two parts.
 */
#include "cpu/avx512.h"

#include "cpu/math.h"

#define PARTS 2
#include "cpu/amx_bf16x.h"

const struct cpu_isa cpu_isa_amx_bf16x2 = {"amx_bf16x2", &tile_kernel, NULL, dequantize_row};
