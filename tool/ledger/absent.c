/* SPDX-License-Identifier: Apache-2.0
 *
 * absent.c - stands for ledger.c and rows.c in a build without SQLite.
 *
 * Invariant: there is no ledger to be had from it, so nothing else in here can be reached.
 */
#include "ledger/ledger.h"

#include "base/message.h"

static const char SENTENCE[] = "this attest was built without SQLite";

bool ledger_is_built(void) {
    return false;
}

struct ledger *ledger_open(const char *path, enum ledger_access access, attn_error *why) {
    (void)access;
    explain(why, "%s: %s", path, SENTENCE);
    return NULL;
}

void ledger_close(struct ledger *ledger) {
    (void)ledger;
}

const char *ledger_head(const struct ledger *ledger) {
    (void)ledger;
    return "";
}

bool ledger_packs(struct ledger *ledger, struct ledger_packs *packs, attn_error *why) {
    (void)ledger;
    *packs = (struct ledger_packs){0};
    return explain(why, "%s", SENTENCE);
}

bool ledger_timings(struct ledger *ledger, int64_t pack, struct ledger_timings *timings,
                    attn_error *why) {
    (void)pack;
    return ledger_baselines(ledger, timings, why);
}

bool ledger_baselines(struct ledger *ledger, struct ledger_timings *timings, attn_error *why) {
    (void)ledger;
    *timings = (struct ledger_timings){0};
    return explain(why, "%s", SENTENCE);
}

bool ledger_add(struct ledger *ledger, struct ledger_pack *pack,
                const struct ledger_timings *timings, attn_error *why) {
    (void)ledger, (void)pack, (void)timings;
    return explain(why, "%s", SENTENCE);
}

bool ledger_move(struct ledger *ledger, const struct ledger_move *moves, size_t count,
                 attn_error *why) {
    (void)ledger, (void)moves, (void)count;
    return explain(why, "%s", SENTENCE);
}
