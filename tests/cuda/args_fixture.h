/* SPDX-License-Identifier: Apache-2.0
 *
 * args_fixture.h - random problems for launches on the fake driver, and what struct attn_args must
 * hold for one, in either direction.
 *
 * Invariant: expectations are computed from attn.h and args.h alone.
 */
#ifndef ARGS_FIXTURE_H
#define ARGS_FIXTURE_H

#include "attn_inspect.h"
#include "src/kernels/common/args.h"

/* Rows of 16 bytes, heads and batches anywhere, sometimes (percent) broadcast. */
attn_strides draw_strides(uint64_t *rng, int64_t rows, int64_t heads, int64_t dim, int broadcast);

/* Each option with a chance of its own, if the variant takes it. */
void draw_options(uint64_t *rng, uint32_t options, attn_problem *problem);

/* The variant's PTX has one parameter of this alignment and size. */
void check_parameter(const attn_variant *variant, int alignment, size_t size);

/* The problem is resolved. */
void check_strides(const char *name, attn_strides expected, long long batch, long long head,
                   long long row, const attn_problem *problem);

/* What both directions have in common: pointers, strides, sizes, scale, visible keys, options. */
void check_args(const struct attn_args *args, const attn_problem *problem,
                const attn_tensors *tensors);

/* The log of one call of `function`: questions about the current context, so many launches and
 * tensor maps, nothing that loads, allocates, waits or copies. */
void check_calls(const char *function, int launches, int maps);

#endif /* ARGS_FIXTURE_H */
