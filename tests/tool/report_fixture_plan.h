/* SPDX-License-Identifier: Apache-2.0
 *
 * report_fixture_plan.h - the plan of the packs of report_fixture.h: which variants, devices and
 * amounts of work they are of.
 *
 * Invariant: what it asks for is what `attest run` would, so that a pack which has it may pass.
 */
#ifndef REPORT_FIXTURE_PLAN_H
#define REPORT_FIXTURE_PLAN_H

#include "tool/base/sha256.h"
#include "tool/pack/judge.h"
#include "tool/report_fixture.h"

#define REPORT_LIBRARY "2222222222222222222222222222222222222222222222222222222222222222"
#define REPORT_SEED "0123456789abcdef"
#define REPORT_CPU "Arm Neoverse-V1"
#define REPORT_CPU_ARCH "neon"
#define REPORT_GPU "NVIDIA H200"
#define REPORT_GPU_ARCH "sm_90"

enum { REPORT_VARIANT = 320, REPORT_LENGTHS = 6, REPORT_CHOSEN = 2, REPORT_ROW_COUNT = 8 };

struct report_making {
    struct pack *pack;
    enum report_fixture kind;
    int variants, cases, lengths;
    char peers[SHA256_TEXT]; /* the artifact of them; "": none */
};

struct report_row {
    enum stage stage;
    const char *device;
    const char *absent;
};
extern const struct report_row REPORT_ROWS[REPORT_ROW_COUNT];

bool report_is_cpu(const struct report_row *row);
int report_subjects(const struct report_making *fixture, const struct report_row *row);

/* In how many ways a problem is timed: each mode, caches cold and warm. */
int report_ways(const struct report_row *row);

/* Of a unit of bench; the first variants of the GPU are those that the library takes. */
int report_timings(const struct report_row *row, int index);

const char *report_variant(const struct report_making *fixture, const struct report_row *row,
                           int index, char name[REPORT_VARIANT]);

/* Any 64 digits, another for each variant; NULL for CPUs. */
const char *report_image(const struct report_row *row, int index, char image[SHA256_TEXT]);

/* Why nothing of the row is done; NULL: it is. */
const char *report_absence(const struct report_making *fixture, const struct report_row *row);

void report_plan(const struct report_making *fixture, struct json *json);

#endif /* REPORT_FIXTURE_PLAN_H */
