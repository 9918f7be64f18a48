/* SPDX-License-Identifier: Apache-2.0
 *
 * evidence.h - what follows from a pack's plan and units: verdicts, statistics, evidence.json and
 * the in-toto Statement.
 *
 *     evidence_make -> look at it, compare or publish its texts -> evidence_free
 *
 * Invariant: a function of plan.json, units/ and artifacts/ alone. No clock, no device, no
 * environment: whoever has the pack gets the same bytes.
 */
#ifndef ATTEST_PACK_EVIDENCE_H
#define ATTEST_PACK_EVIDENCE_H

#include "pack/judge.h"
#include "pack/pack.h"

/* A stage on a device, as the plan asked for it. */
struct evidence_row {
    enum stage stage;
    const char *device; /* in the pack's plan */
    const char *absent; /* why the device or tool was not there; NULL: it was */
    struct judgement judgement;
    double seconds;
    size_t subjects, passed;
};

struct evidence {
    struct judgement judgement; /* of the whole */
    bool partial;               /* PASS of less than all six stages */
    struct evidence_row *rows;
    size_t row_count;
    size_t unit_count, stale_count;
    double gpu_seconds, gpu_price; /* of the rows on GPUs; the price is NaN where it is not told */
    char root[SHA256_TEXT];        /* of the names of everything that was observed */
    char *text, *statement;        /* evidence.json, statement.json */
    size_t text_bytes, statement_bytes;
};

/* The files that hold the texts. */
#define EVIDENCE_FILE "evidence.json"
#define STATEMENT_FILE "statement.json"

/* False and the reason where the pack is damaged: a file does not have its hash, is no unit, or the
 * plan is none. The pack outlives the evidence. Free it in either case. */
bool evidence_make(const struct pack *pack, struct evidence *evidence, attn_error *why);
void evidence_free(struct evidence *evidence);

/* Writes both texts into the pack. */
bool evidence_publish(const struct pack *pack, const struct evidence *evidence, attn_error *why);

#endif /* ATTEST_PACK_EVIDENCE_H */
