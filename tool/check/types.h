/* SPDX-License-Identifier: Apache-2.0
 *
 * types.h - the element types that `attest check` passes to kernels: f32 f16 bf16 f64, i8 to
 * i64, u8 to u64.
 *
 * Invariant: an element becomes a number exactly: a long double holds every value of every type.
 */
#ifndef ATTEST_CHECK_TYPES_H
#define ATTEST_CHECK_TYPES_H

#include <stdbool.h>
#include <stddef.h>

#include "attn.h"
#include "base/npy.h"

enum element_kind { ELEMENT_FLOAT, ELEMENT_SIGNED, ELEMENT_UNSIGNED };

struct element {
    const char *name; /* "f32" */
    enum element_kind kind;
    size_t bytes;
    enum npy_type npy; /* bf16 travels as uint16 */
    int tensor;        /* the driver's number of it in a tensor map; -1: it has none */
};

/* The type that the first `length` characters name, or NULL. */
const struct element *element_named(const char *text, size_t length);

/* What a file of this type holds, for an argument of type `wanted` (uint16 may be bf16). */
const struct element *element_of_npy(enum npy_type type, const struct element *wanted);

/* "f32, f16, ..." */
const char *element_names(void);

/* Rounds to nearest even; integers are taken modulo 2^bits, and must be in the range of int64 or
 * uint64. */
void element_store(const struct element *type, void *to, long double value);
long double element_value(const struct element *type, const void *from);

/* A number from the command line; false and the reason where the type has no such value. */
bool element_parse(const struct element *type, const char *text, void *to, attn_error *why);

#endif /* ATTEST_CHECK_TYPES_H */
