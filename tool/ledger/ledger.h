/* SPDX-License-Identifier: Apache-2.0
 *
 * ledger.h - the ledger: a SQLite file that holds the verdicts and raw timings of evidence packs,
 * and which of them are baselines (docs/ledger.md).
 *
 *     ledger_open -> ledger_packs, ledger_timings, ledger_baselines, ledger_add, ledger_move
 *     -> ledger_close
 *
 * Invariant: append-only. Triggers refuse to change or delete a row, and each entry (a pack with
 * its timings, a moved baseline) is hashed together with the hash of the one before it: a ledger
 * whose schema, triggers or hashes are not what they should be is refused when it is opened, so a
 * row that somebody changed behind the triggers' back is found. A write is one transaction.
 *
 * absent.c stands for ledger.c and rows.c where there is no SQLite.
 */
#ifndef ATTEST_LEDGER_LEDGER_H
#define ATTEST_LEDGER_LEDGER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "attn.h"
#include "base/sha256.h"

struct ledger;

enum ledger_access { LEDGER_READ, LEDGER_APPEND, LEDGER_CREATE }; /* the last: if there is none */

bool ledger_is_built(void); /* with SQLite: without it nothing below succeeds */

/* NULL and a sentence that begins with the path. */
struct ledger *ledger_open(const char *path, enum ledger_access access, attn_error *why);
void ledger_close(struct ledger *ledger); /* NULL is fine */

/* The hash of the last entry, which stands for all of them; "" while there is none. */
const char *ledger_head(const struct ledger *ledger);

/* ---- packs ----------------------------------------------------------------------------------- */

struct ledger_pack {
    int64_t id; /* 1, 2, ... in the order of import */
    char *root, *verdict, *reason, *mode, *tool, *library, *commit, *imported;
    bool partial;
    int64_t units, timings;
};

struct ledger_packs {
    struct ledger_pack *items;
    size_t count;
};

bool ledger_packs(struct ledger *ledger, struct ledger_packs *packs, attn_error *why);
void ledger_pack_free(struct ledger_pack *pack); /* what it points at */
void ledger_packs_free(struct ledger_packs *packs);

/* ---- timings --------------------------------------------------------------------------------- */

/* What two timings must have in common to be compared. */
enum ledger_key {
    KEY_DEVICE,   /* "cuda:0" */
    KEY_HARDWARE, /* what that is: "NVIDIA H200"; "" where the pack does not say */
    KEY_VARIANT,
    KEY_PROBLEM, /* canonical JSON, the dtype in it */
    KEY_MODE,
    KEY_CACHE,
    LEDGER_KEYS
};
extern const char *const LEDGER_KEY_NAMES[LEDGER_KEYS];

struct ledger_timing {
    int64_t id, pack;
    char *key[LEDGER_KEYS];
    char *shape; /* the problem in a line of text */
    char *image; /* NULL on CPUs */
    char *ns;    /* JSON: the samples as they are in the unit, in nanoseconds */
    int64_t repeats;
    double *seconds; /* of one call in each sample, sorted */
    size_t count;
    double median;
};

struct ledger_timings {
    struct ledger_timing *items;
    size_t count;
};

/* Fills seconds, count and median from ns and repeats. */
bool ledger_timing_read(struct ledger_timing *timing, attn_error *why);

/* Those of a pack, in the order of their keys. */
bool ledger_timings(struct ledger *ledger, int64_t pack, struct ledger_timings *timings,
                    attn_error *why);

/* The present baseline of each key, in the order of their keys. */
bool ledger_baselines(struct ledger *ledger, struct ledger_timings *timings, attn_error *why);
void ledger_timings_free(struct ledger_timings *timings);

/* ---- entries --------------------------------------------------------------------------------- */

/* A pack and its timings; sets pack->id. A pack whose root is there already is refused. */
bool ledger_add(struct ledger *ledger, struct ledger_pack *pack,
                const struct ledger_timings *timings, attn_error *why);

/* From now on the timing `to` is the baseline of its key, where `from` was; 0: there was none. The
 * interval is that of the ratio of their medians; NaN without `from`. If another one has become the
 * baseline meanwhile, nothing moves. */
struct ledger_move {
    int64_t from, to;
    double ratio, low, high;
};

bool ledger_move(struct ledger *ledger, const struct ledger_move *moves, size_t count,
                 attn_error *why);

#endif /* ATTEST_LEDGER_LEDGER_H */
