/* SPDX-License-Identifier: Apache-2.0
 *
 * sass.h - which machine instructions a kernel consists of.
 *
 * An instruction of sm_70 to sm_120 has 16 bytes; the low 12 bits of its first 8 are the opcode. Of
 * those the upper three say where the operands lie, so that one mnemonic has several opcodes.
 *
 * Invariant: `tensor` counts no opcode that was not confirmed, `local` every form of a confirmed
 * one: a gate that wants tensor cores and no local memory can err on the strict side only.
 */
#ifndef ATTEST_STAGES_INSPECT_SASS_H
#define ATTEST_STAGES_INSPECT_SASS_H

#include <stdint.h>

#include "stages/inspect/cubin.h"

enum { SASS_OPCODES = 1 << 12 };

struct sass_counts {
    int64_t instructions;
    int64_t tensor; /* matrix products */
    int64_t local;  /* loads and stores of local memory */
    int64_t opcodes[SASS_OPCODES];
};

/* Of the kernel's own instructions, without those of its helpers and builtins. */
void sass_count(const struct cubin *cubin, const struct cubin_entry *entry,
                struct sass_counts *counts);

/* "HMMA"; NULL for an opcode that nobody has confirmed. */
const char *sass_mnemonic(unsigned opcode);

#endif /* ATTEST_STAGES_INSPECT_SASS_H */
