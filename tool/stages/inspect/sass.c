/* SPDX-License-Identifier: Apache-2.0
 *
 * sass.c - see sass.h.
 */
#include "stages/inspect/sass.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

enum { MNEMONIC_MASK = 0x1ff }; /* an opcode without its form of operands */

static const char *const MNEMONICS[SASS_OPCODES] = {
#define OPCODE(mnemonic, opcode) [opcode] = #mnemonic,
#include "stages/inspect/sass_opcodes.def"
#undef OPCODE
};

const char *sass_mnemonic(unsigned opcode) {
    return opcode < SASS_OPCODES ? MNEMONICS[opcode] : NULL;
}

static bool is_tensor(unsigned opcode) {
    static const char *const products[] = {"HMMA",  "IMMA",  "BMMA",  "DMMA",
                                           "HGMMA", "IGMMA", "BGMMA", "QGMMA"};
    const char *mnemonic = MNEMONICS[opcode];
    for (size_t i = 0; mnemonic != NULL && i < sizeof products / sizeof *products; i++) {
        if (strcmp(mnemonic, products[i]) == 0) {
            return true;
        }
    }
    return false;
}

static bool is_local(unsigned opcode) {
    enum { LDL = 0x983, STL = 0x387 };
    return (opcode & MNEMONIC_MASK) == (LDL & MNEMONIC_MASK) ||
           (opcode & MNEMONIC_MASK) == (STL & MNEMONIC_MASK);
}

void sass_count(const struct cubin *cubin, const struct cubin_entry *entry,
                struct sass_counts *counts) {
    memset(counts, 0, sizeof *counts);
    for (size_t at = 0; at < entry->code_bytes; at += CUBIN_INSTRUCTION) {
        if (cubin_owns(cubin, entry, at)) {
            const unsigned low = entry->code[at], high = entry->code[at + 1];
            counts->opcodes[low | (high & 0xf) << 8]++;
            counts->instructions++;
        }
    }
    for (unsigned opcode = 0; opcode < SASS_OPCODES; opcode++) {
        counts->tensor += is_tensor(opcode) ? counts->opcodes[opcode] : 0;
        counts->local += is_local(opcode) ? counts->opcodes[opcode] : 0;
    }
}
