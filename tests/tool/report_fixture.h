/* SPDX-License-Identifier: Apache-2.0
 *
 * report_fixture.h - evidence packs such as a real run leaves, for what shows them: many variants,
 * sequence lengths, peers; or a run without a GPU; or one in which things went wrong. The numbers
 * are made up.
 */
#ifndef REPORT_FIXTURE_H
#define REPORT_FIXTURE_H

#include "tool/pack/pack.h"

enum report_fixture {
    REPORT_FULL,    /* PASS: GPU, virtual GPU, CPU, peers */
    REPORT_PARTIAL, /* PASS of a part: the GPU is absent */
    REPORT_FAILING, /* FAIL and INVALID slots in every stage that knows them */
    REPORT_HOSTILE, /* every text tries to be markup */
    REPORT_LARGE,   /* as FULL, with all that a run of the whole library has */
    REPORT_FIXTURES
};
extern const char *const REPORT_FIXTURE_NAMES[REPORT_FIXTURES + 1]; /* ends with NULL */

/* What REPORT_HOSTILE puts into variants, devices and reasons. */
extern const char REPORT_HOSTILE_TEXT[];

/* The pack with its evidence.json. After a failure, too, it may be closed. */
bool report_fixture_make(struct pack *pack, const char *path, enum report_fixture kind,
                         attn_error *why);

#endif /* REPORT_FIXTURE_H */
