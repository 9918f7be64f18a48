/* SPDX-License-Identifier: Apache-2.0
 *
 * decode.h - how a family of instructions decodes one of them: operands become rows and constants.
 * Implemented in decode_operand.c.
 */
#ifndef VGPU_OPS_DECODE_H
#define VGPU_OPS_DECODE_H

#include "machine/kernel.h"

struct decoder; /* one function being decoded */

/* Fills the op (run, operands, flags; guard and in are set already). False: decode_fail was called.
 * A form that the family does not know must fail, whatever it looks like. */
typedef bool decode_function(struct decoder *decoder, const struct ptx_instruction *in,
                             struct op *op);

/* Writes the error "unknown form" with the instruction's line unless `format` says better; returns
 * false. */
bool decode_fail(struct decoder *decoder, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The row of a source operand as a value of `type` (its width decides: immediates are converted and
 * become constant rows; special registers and addresses of variables become rows). A register may
 * be wider than the type where PTX allows it. 0 and decode_fail: it cannot be one. */
uint32_t decode_source(struct decoder *decoder, const struct ptx_operand *operand,
                       enum ptx_type type);
/* The row of a register that is written; a sink gets a row that is never read. */
uint32_t decode_result(struct decoder *decoder, const struct ptx_operand *operand,
                       enum ptx_type type);
/* Bytes of a lane in the operand's row: 2, 4 or 8. Not a register: 0. */
uint32_t decode_width(const struct decoder *decoder, const struct ptx_operand *operand);
/* Index of a predicate; a negated source gives its index with PREDICATE_NOT set. true/false
 * immediates (wgmma's scale-d) are PREDICATE_TRUE and that with PREDICATE_NOT. */
uint32_t decode_predicate(struct decoder *decoder, const struct ptx_operand *operand);
/* [x + imm]: the row of x (64 bits wide, also for shared addresses held in 32-bit registers:
 * *narrow says so; then the row is 32 bits wide) and the constant. Absolute addresses and variables
 * are constant rows. */
bool decode_address(struct decoder *decoder, const struct ptx_operand *operand, uint32_t *row,
                    bool *narrow, int64_t *offset);
/* A constant row that holds `bits` in every lane, `width` bytes each. */
uint32_t decode_constant(struct decoder *decoder, uint64_t bits, uint32_t width);
/* Zeroed memory of the module's arena; NULL and decode_fail: none left. */
void *decode_alloc(struct decoder *decoder, size_t size);
/* Is the word one of the list's, which have blanks between them? */
bool is_listed(const char *list, const char *word);
/* Are all modifiers listed? A list that begins with "* " stands for the names of types too. */
bool only_modifiers(const struct ptx_instruction *in, const char *allowed);
/* The same for those from number `from` on; else decode_fail names the first that is not. */
bool decode_modifiers(struct decoder *decoder, const struct ptx_instruction *in, uint32_t from,
                      const char *allowed);
/* Names that the instruction's modifiers spell; true and *index if one of `names` (ends with NULL)
 * is among them. */
bool decode_choice(const struct ptx_instruction *in, const char *const *names, uint32_t *index);
/* The function being decoded, for its variables and other functions. */
const struct ptx_function *decode_current(const struct decoder *decoder);
const struct ptx_module *decode_module(const struct decoder *decoder);

#endif /* VGPU_OPS_DECODE_H */
