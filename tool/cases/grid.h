/* SPDX-License-Identifier: Apache-2.0
 *
 * grid.h - the lists of problems that stand for a use: what `attest bench --grid` runs over.
 */
#ifndef ATTEST_CASES_GRID_H
#define ATTEST_CASES_GRID_H

#include "attn.h"

enum { GRID_CPU, GRID_CANONICAL, GRID_SMALL, GRID_FULL, GRID_DECODE, GRID_COUNT };
extern const char *const GRID_NAMES[]; /* ends with NULL */

/* Problems in it, for one dtype. */
int grid_count(int grid);

/* The index-th one, in full but for its dtype. */
void grid_problem(int grid, int index, attn_problem *problem);

/* True where it is meant for each dtype in turn; else for fp16. */
bool grid_has_every_dtype(int grid);

#endif /* ATTEST_CASES_GRID_H */
