/* SPDX-License-Identifier: Apache-2.0
 *
 * import.h - what the ledger keeps of an evidence pack.
 *
 * Invariant: it is computed from the raw files (evidence_make), never copied from evidence.json,
 * which must say the same; a pack that is damaged, INVALID or was changed gives nothing. The
 * timings are those of slots that PASS: no others are numbers.
 */
#ifndef ATTEST_LEDGER_IMPORT_H
#define ATTEST_LEDGER_IMPORT_H

#include "base/message.h"
#include "ledger/ledger.h"

/* EXIT_DONE; else the reason, and EXIT_BAD_INPUT (no pack), EXIT_FAILED_CHECK (changed or damaged)
 * or EXIT_INVALID. The texts are freed by ledger_pack_free and ledger_timings_free in any case. */
int ledger_import(const char *path, struct ledger_pack *pack, struct ledger_timings *timings,
                  attn_error *why);

#endif /* ATTEST_LEDGER_IMPORT_H */
