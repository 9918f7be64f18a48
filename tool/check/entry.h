/* SPDX-License-Identifier: Apache-2.0
 *
 * entry.h - which kernel of a module `attest check` is to run.
 *
 * Invariant: a name that fits several entries is refused; nothing is chosen by its place.
 */
#ifndef ATTEST_CHECK_ENTRY_H
#define ATTEST_CHECK_ENTRY_H

#include <stdbool.h>
#include <stddef.h>

#include "attn.h"
#include "vgpu.h"

enum { ENTRY_NAME_SIZE = 256 };

/* The entry whose PTX or demangled name is `wanted` or, alone, begins with it; without `wanted`,
 * the only one. */
bool entry_find(const vgpu_module *module, const char *wanted, size_t *index, attn_error *why);

/* A line for each entry, or JSON. */
void entry_list(const vgpu_module *module, bool as_json);

#endif /* ATTEST_CHECK_ENTRY_H */
