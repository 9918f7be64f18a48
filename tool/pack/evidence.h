/* SPDX-License-Identifier: Apache-2.0
 *
 * evidence.h - what follows from a pack's plan and units: verdicts, statistics, evidence.json.
 *
 *     evidence_make -> look at it, compare or publish its text -> evidence_free
 *
 * Invariant: a function of plan.json, units/ and artifacts/ alone. No clock, no device and no
 * environment enters: the same pack gives the same bytes everywhere.
 */
#ifndef ATTEST_PACK_EVIDENCE_H
#define ATTEST_PACK_EVIDENCE_H

#include "pack/judge.h"
#include "pack/pack.h"

/* A stage on a device, as planned. */
struct evidence_row {
    enum stage stage;
    const char *device; /* in the pack's plan */
    const char *absent; /* why the device or tool was not there; NULL: it was */
    struct judgement judgement;
    double seconds;
    size_t subjects, passed;
};

/* A variant of a row. */
struct evidence_slot {
    size_t row;
    const char *variant; /* in the pack's plan */
    enum gate gate;
    bool observed; /* there is a unit that counts */
};

struct evidence {
    struct judgement judgement; /* of the whole */
    bool partial;               /* PASS of less than all six stages */
    struct evidence_row *rows;
    size_t row_count;
    struct evidence_slot *slots; /* in the order of the rows; none of rows that are absent */
    size_t slot_count;
    size_t unit_count, stale_count;
    double gpu_seconds, gpu_price; /* of the rows on GPUs; the price is NaN where unknown */
    char root[SHA256_TEXT];        /* of the names of everything that was observed */
    char *text;                    /* evidence.json */
    size_t text_bytes;
};

#define EVIDENCE_FILE "evidence.json"

/* False and the reason where the pack is damaged: a file does not have its hash, is no unit, or the
 * plan is none. The pack outlives the evidence. Free it in either case. */
bool evidence_make(const struct pack *pack, struct evidence *evidence, attn_error *why);
void evidence_free(struct evidence *evidence);

/* Writes the text into the pack. */
bool evidence_publish(const struct pack *pack, const struct evidence *evidence, attn_error *why);

/* Whether the text in the pack is the one that follows, or absent: then the run has not *ended. */
bool evidence_published(const struct pack *pack, const struct evidence *evidence, bool *ended,
                        attn_error *why);

/* SHA-256 of the library, version and SHA-256 of this program: what the units are bound to
 * (verify.c). */
bool current_identity(char library[SHA256_TEXT], char tool[64], attn_error *why);

/* STALE unless the pack is of this library. False and the reason: the library cannot be read. */
bool judge_current(const struct pack *pack, struct judgement *judgement, attn_error *why);

/* On one screen, for `attest run` and `attest verify` (verify.c). Only PASS is called PASS; what
 * it leaves out is in the same line. Text of a pack cannot move the cursor or begin a line. ended:
 * there is an evidence.json. */
void evidence_print(const struct evidence *evidence, const char *path, bool ended);
void evidence_print_json(const struct evidence *evidence, const char *path, bool ended);

#endif /* ATTEST_PACK_EVIDENCE_H */
