/* SPDX-License-Identifier: Apache-2.0
 *
 * print.h - evidence on one screen, for `attest run` and `attest verify`.
 *
 * Invariant: nothing but a PASS is called one, and what it leaves out is said in the same line.
 * Text of a pack cannot move the cursor, begin a line or turn the direction of one.
 */
#ifndef ATTEST_PACK_PRINT_H
#define ATTEST_PACK_PRINT_H

#include "pack/evidence.h"

/* ended: there is an evidence.json. */
void evidence_print(const struct evidence *evidence, bool ended);
void evidence_print_json(const struct evidence *evidence, const char *path, bool ended);

#endif /* ATTEST_PACK_PRINT_H */
