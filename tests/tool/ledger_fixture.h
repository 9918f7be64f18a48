/* SPDX-License-Identifier: Apache-2.0
 *
 * ledger_fixture.h - packs of which the samples are chosen, for tests of the ledger.
 */
#ifndef LEDGER_FIXTURE_H
#define LEDGER_FIXTURE_H

#include "tool/pack/pack.h"

/* The pack of pack_fixture.h on hardware that has a name, its samples on the CPU (FIXTURE_SAMPLES
 * of them, drawn by `seed`) around `scale` times 20 us, and published anew. */
bool ledger_fixture(const char *path, double scale, uint64_t seed, attn_error *why);

/* Publishes what follows from the pack now. */
bool ledger_fixture_publish(const struct pack *pack, attn_error *why);

/* A folder of the test's own, where a ledger and a pack may be made. */
struct ledger_place {
    char *pack; /* where a pack may be made; the folder around it is the test's */
    char ledger[128];
};

struct ledger_place ledger_place_open(void);
void ledger_place_close(struct ledger_place *place);

#endif /* LEDGER_FIXTURE_H */
