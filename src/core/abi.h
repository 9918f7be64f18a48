/* SPDX-License-Identifier: Apache-2.0
 *
 * abi.h - structs of programs that were compiled with an older or a newer header.
 *
 * Invariant: after the entry points every struct has the library's own size. Structs have no
 * padding at their end, and the default of every field added after 0.2 is zero bytes, so that an
 * older library can check that a field it does not know has its default (tests/abi).
 */
#ifndef ATTN_CORE_ABI_H
#define ATTN_CORE_ABI_H

#include "core/internal.h"

/* Sizes in version 0.2, the smallest that are accepted. */
enum {
    OPTIONS_0_2 = 32,
    PROBLEM_0_2 = 336,
    PLAN_OPTIONS_0_2 = 24,
    TENSORS_0_2 = 104,
    DEVICE_0_2 = 224,
    REFUSAL_0_2 = 272,
    VARIANT_0_2 = 88,
    IMAGE_0_2 = 48,
    COMPARISON_0_2 = 144
};

/* Copies the caller's struct `from` over `to`, which holds the defaults: `size` bytes, those of the
 * library. `name` is that of the argument, `least` its size in 0.2. ATTN_INVALID if the size is
 * wrong or a field beyond the library's own is not zero. */
attn_status abi_read(const char *name, const void *from, size_t least, void *to, size_t size,
                     attn_error *error);

/* ATTN_INVALID unless the caller has set the size of a struct that the library fills. */
attn_status abi_check(const char *name, size_t theirs, size_t least, attn_error *error);

/* Fills the caller's struct of `theirs` bytes with `from`, the library's of `size` bytes, zeros
 * after that; its first field becomes `theirs`. */
void abi_write(void *to, size_t theirs, const void *from, size_t size);

#endif /* ATTN_CORE_ABI_H */
