/* SPDX-License-Identifier: Apache-2.0
 *
 * problems.h - the problems that bench and profile run: those of a stage, those of a grid.
 *
 * Invariant: an index means the same problem for ever, so that runs of different days compare.
 */
#ifndef ATTEST_CASES_PROBLEMS_H
#define ATTEST_CASES_PROBLEMS_H

#include "attn_inspect.h"

/* Timings of one problem: each mode in each cache state. A slot that asks for n times as many gets
 * the first n problems. */
int64_t bench_timings_per_problem(const char *device);

/* The index-th problem, of BENCH_PROBLEMS, on which a variant of the device is timed: the canonical
 * one, of the variant's own head dimension (a quick one is smaller), then on a GPU 16384 tokens of
 * 2048 features in sequences of 512 to 16384, on a CPU 8 heads and sequences of 128 to 4096. Where
 * a variant takes one query alone, it gets more keys for it. False past the last, or where the
 * variant takes none of its forms. */
enum { BENCH_PROBLEMS = 7 };
bool bench_problem(const attn_context *context, const char *device, const attn_variant *variant,
                   bool quick, int index, attn_problem *problem, attn_error *why);

/* The one on which it is profiled: it fills the GPU. */
bool profile_problem(const attn_context *context, const attn_variant *variant,
                     attn_problem *problem, attn_error *why);

/* ---- lists that stand for a use: what `attest bench --grid` runs over ------------------------ */

enum { GRID_CPU, GRID_CANONICAL, GRID_SMALL, GRID_FULL, GRID_DECODE, GRID_COUNT };
extern const char *const GRID_NAMES[]; /* ends with NULL */

/* Problems in it, for one dtype. */
int grid_count(int grid);

/* The index-th one, in full but for its dtype. */
void grid_problem(int grid, int index, attn_problem *problem);

/* True where it is meant for each dtype in turn; else for fp16. */
bool grid_has_every_dtype(int grid);

#endif /* ATTEST_CASES_PROBLEMS_H */
