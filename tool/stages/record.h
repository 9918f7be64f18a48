/* SPDX-License-Identifier: Apache-2.0
 *
 * record.h - the seam between `attest run` and its six stages: what a stage observed of one variant
 * on one device, written into a unit of the evidence pack (docs/evidence.schema.json has the keys).
 *
 * Invariant: a recorder writes observations and never a verdict, and writes all of its keys or
 * returns false: then the unit is thrown away, and the reason becomes the unit's `broken` sentence.
 */
#ifndef ATTEST_STAGES_RECORD_H
#define ATTEST_STAGES_RECORD_H

#include <stdbool.h>
#include <stdint.h>

#include "attn.h"
#include "base/json.h"
#include "pack/pack.h"

/* A stage of one variant on one device, as the plan asks for it. Strings outlive the call. */
struct slot {
    const char *device;  /* "cpu", "cuda:0"; of inspect the architecture: what attn_open takes */
    const char *driver;  /* the library to open; NULL: libattn's own choice */
    const char *variant; /* its name in the library */
    const char *image;   /* SHA-256 of the image that is loaded, as text; NULL on CPUs */
    uint64_t seed;       /* of the run */
    int64_t first_case, cases, launches, timings; /* as planned; 0: none */
    const char *code;  /* "ptx", or a file: run it instead of the image; NULL: the image */
    const char *async; /* orders of completion on the virtual GPU, or NULL */
    bool quick;
    bool watched;      /* by a parent that record_at reports to */
    int64_t following; /* slots of the row that this process runs after it */
};

/* Each writes the keys of its stage (controls, values, artifacts, and cases or timings) into the
 * open object `unit`, stores its artifacts in the pack, and returns false with the reason where
 * nothing was observed. They run in a child process of `attest run`, many slots one after the other
 * in the same one; a watchdog ends the process group of a slot that takes too long. */
bool record_inspect(const struct slot *slot, struct pack *pack, struct json *unit, attn_error *why);
bool record_emulate(const struct slot *slot, struct pack *pack, struct json *unit, attn_error *why);
bool record_parity(const struct slot *slot, struct pack *pack, struct json *unit, attn_error *why);
bool record_sanitize(const struct slot *slot, struct pack *pack, struct json *unit,
                     attn_error *why);
bool record_bench(const struct slot *slot, struct pack *pack, struct json *unit, attn_error *why);
/* Part of record_bench: the peers' report as an artifact. The runner is $ATTN_PEERS, a program;
 * else python3 with ../python/peers.py beside this one. False: a sentence that begins with
 * "NOT_RUN" where PyTorch, Python or the runner is absent. */
bool record_peers(const struct pack *pack, char name[SHA256_TEXT], attn_error *why);
bool record_profile(const struct slot *slot, struct pack *pack, struct json *unit, attn_error *why);

/* Tells the parent which part of the slot begins, so that it can name the part in which a child
 * died. */
void record_at(const struct slot *slot, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif /* ATTEST_STAGES_RECORD_H */
