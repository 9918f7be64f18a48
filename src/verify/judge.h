/* SPDX-License-Identifier: Apache-2.0
 *
 * judge.h - what the numbers of a comparison decide.
 *
 * Invariant: as judge.c.
 */
#ifndef ATTN_VERIFY_JUDGE_H
#define ATTN_VERIFY_JUDGE_H

#include "core/internal.h"

/* The rules of attn_compare: on the errors of O, and on those of LSE. */
bool o_within(const attn_statistics *statistics);
bool lse_within(const attn_statistics *statistics);

/* As they are; attn_comparison_statistics also asks whether it passed. */
attn_statistics comparison_numbers(const attn_comparison *comparison);

/* ATTN_INVALID unless it is a struct that can be filled or read. */
attn_status comparison_check(const attn_comparison *result, attn_error *error);

#endif /* ATTN_VERIFY_JUDGE_H */
