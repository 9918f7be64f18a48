/* SPDX-License-Identifier: Apache-2.0
 *
 * print.h - packs, timings and comparisons of the ledger, as lines of text or as JSON.
 *
 * Invariant: text and JSON say the same; a number that is not known is "-" there and null here.
 */
#ifndef ATTEST_LEDGER_PRINT_H
#define ATTEST_LEDGER_PRINT_H

#include "base/json.h"
#include "ledger/compare.h"
#include "ledger/ledger.h"

void ledger_print_pack(const struct ledger_pack *pack);
void ledger_pack_json(struct json *json, const char *key, const struct ledger_pack *pack);

void ledger_print_timing(const struct ledger_timing *timing);
void ledger_timing_json(struct json *json, const struct ledger_timing *timing);

/* What each device of the timings is, once, so that lines need not say it; false and nothing where
 * that does not do, because there are two of a name. */
bool ledger_print_hardware(const struct ledger_timings *old, const struct ledger_timings *new);

/* `word` stands where the change would: what somebody makes of it. `brief`: without hardware. */
void ledger_print_comparison(const struct comparison *comparison, const char *word, bool brief);
void ledger_comparison_json(struct json *json, const struct comparison *comparison,
                            const char *word);

#endif /* ATTEST_LEDGER_PRINT_H */
