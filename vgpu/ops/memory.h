/* SPDX-License-Identifier: Apache-2.0
 *
 * memory.h - what the instructions that access memory share: spaces, vectors, order, atomics.
 */
#ifndef VGPU_OPS_MEMORY_H
#define VGPU_OPS_MEMORY_H

#include "memory/memory.h"
#include "ops/decode.h"

/* ORDER_* (race/clock.h) by the modifiers of a strong access. */
uint32_t memory_order(const struct ptx_instruction *in);
/* The space that the modifiers name; SPACE_GENERIC: none. */
int memory_space(const struct ptx_instruction *in);
/* Of atom and red: the new value for the old one and the operands, as bits. */
typedef uint64_t atomic_function(uint64_t old, uint64_t b, uint64_t c);
/* That of an operation ("add") on numbers of the type in global memory; NULL: there is none. */
atomic_function *atomic_in_global(const char *name, enum ptx_type type);
/* Gives what was there. */
uint64_t atomic_update(unsigned char *host, uint32_t bytes, atomic_function *function, uint64_t b,
                       uint64_t c);
/* Spaces and types, for decode_modifiers. */
#define SPACE_NAMES                                                                                \
    "* global shared shared::cta shared::cluster local const param param::entry param::func "
/* 1, or what .v2, .v4 and .v8 say. */
uint32_t memory_vector(const struct ptx_instruction *in);

decode_function decode_atomic, decode_address_op;

#endif /* VGPU_OPS_MEMORY_H */
