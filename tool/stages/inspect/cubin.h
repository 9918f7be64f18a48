/* SPDX-License-Identifier: Apache-2.0
 *
 * cubin.h - reads NVIDIA machine code (a 64-bit ELF file): its kernels, what each of them needs,
 * and which instructions it consists of.
 *
 *     struct cubin cubin;
 *     struct cubin_entry entry;
 *     if (!cubin_open(&cubin, data, bytes, &why) || !cubin_find(&cubin, "name", &entry, &why)) ...
 *
 * Where the figures are, as compared with what `ptxas -v` of CUDA 13.0 says for sm_80 to sm_120:
 *   registers  attribute 0x2f of .nv.info, by symbol (the upper byte of the section's sh_info,
 *              which older files have too, is 0 from sm_90 on)
 *   stack      0x11 (the kernel's own frame) and 0x12 (with what it calls, which a relocatable file
 *              does not know yet) of .nv.info, by symbol
 *   barriers   0x4c of .nv.info.<kernel>; absent: none
 *   shared     size of .nv.shared.<kernel>, less the 1024 bytes that the system keeps in each CTA
 *              from sm_90 on; a relocatable file (-rdc) does not have them yet
 *   helpers    functions that were not inlined: function symbols inside the kernel's section, or in
 *              a section of their own, which are no kernels. A kernel's symbol spans its helpers.
 *   builtins   those that ptxas itself added ("$__internal_0_$__cuda_sm20_rcp_rn_f32_slowpath":
 *              division and the like); they are not counted as helpers
 *
 * Invariant: the image is borrowed and never written, and no byte outside of it is read, whatever
 * it holds: cubin_open looks at every section and every symbol before anything else does.
 */
#ifndef ATTEST_STAGES_INSPECT_CUBIN_H
#define ATTEST_STAGES_INSPECT_CUBIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "attn.h"

struct cubin {
    const unsigned char *data;
    size_t bytes;
    uint32_t sm; /* 80, 90; sm_90a is 90 too */
    bool linked; /* can be loaded; else it is relocatable */
    uint32_t sections;
    uint32_t symbols;
    uint32_t entries;                                   /* kernels */
    uint32_t section_names, symbol_table, symbol_names; /* sections */
};

struct cubin_entry {
    const char *name; /* lives in the image */
    uint32_t symbol, section;
    const unsigned char *code;
    size_t code_bytes, code_at; /* at: in its section */
    uint32_t registers;
    uint32_t frame_bytes; /* the kernel's own frame */
    uint32_t stack_bytes; /* the frame, or with what it calls, whichever is more */
    uint32_t shared_bytes;
    uint32_t barriers;
    uint32_t helpers, builtins;
    uint32_t inside; /* of these, in the kernel's own section */
};

/* Borrows the image and allocates nothing. The sentences do not name the file. */
bool cubin_open(struct cubin *cubin, const void *data, size_t bytes, attn_error *why);

/* Whether a symbol is called so, be it defined here or not. */
bool cubin_names(const struct cubin *cubin, const char *name);

/* index < cubin->entries, in the order of the symbol table. */
bool cubin_entry(const struct cubin *cubin, uint32_t index, struct cubin_entry *entry,
                 attn_error *why);
bool cubin_find(const struct cubin *cubin, const char *name, struct cubin_entry *entry,
                attn_error *why);

/* ---- instructions ----------------------------------------------------------------------------
 *
 * An instruction of sm_70 to sm_120 has 16 bytes; the low 12 bits of its first 8 are the opcode. Of
 * those the upper three say where the operands lie, so that one mnemonic has several opcodes.
 *
 * Invariant: `tensor` counts no opcode that was not confirmed, `local` every form of a confirmed
 * one: a gate that wants tensor cores and no local memory can err on the strict side only. */
enum { CUBIN_INSTRUCTION = 16 };

struct sass_counts {
    int64_t instructions;
    int64_t tensor; /* MMA instructions */
    int64_t local;  /* loads and stores of local memory */
};

/* Of the kernel's own instructions, without those of its helpers and builtins. */
void sass_count(const struct cubin *cubin, const struct cubin_entry *entry,
                struct sass_counts *counts);

#endif /* ATTEST_STAGES_INSPECT_CUBIN_H */
