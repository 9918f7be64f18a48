/* SPDX-License-Identifier: Apache-2.0
 *
 * serving.h - random cases of attn_append, attn_merge and attn_accumulate on any device, and what
 * must come out by plain loops in double.
 *
 * Invariant: every byte of every tensor is compared, with a band around each: what a call does not
 * write keeps its bits.
 */
#ifndef SERVING_H
#define SERVING_H

#include "tool/device/device.h"

/* Sizes, strides, pages, packing and RoPE as in the problem. Lengths are random: some sequences are
 * empty, some have more new rows than keys. Two sequences share the pages before their new rows;
 * table entries that are not used hold anything. */
struct append_case {
    attn_problem p;
    bool q;        /* Q is rotated, too */
    bool in_place; /* ... where it is */
    bool scales;   /* of an fp8 cache; else they are NULL */
    uint64_t seed;
};

/* variant: NULL is the library's choice. NULL, or what went wrong; valid up to the next call. */
const char *append_try(attn_context *context, struct device *device, const char *variant,
                       const struct append_case *c);

/* Some parts saw nothing of some rows, and there O is NaN; some rows were seen by no part, some by
 * one. Visible NaN, too. */
struct merge_case {
    attn_problem p;
    int32_t count;
    bool lse, in_place;
    bool plain;   /* no LSEs: the sum */
    bool running; /* attn_accumulate: the first of two parts is the sum; in_place: o = NULL */
    uint64_t seed;
};

const char *merge_try(attn_context *context, struct device *device, const char *variant,
                      const struct merge_case *c);

/* The index-th of many cases that between them have every dtype, layout, page size, convention and
 * oddity. */
struct append_case append_case_of(int index);
struct merge_case merge_case_of(int index);
struct merge_case accumulate_case_of(int index);

#endif /* SERVING_H */
