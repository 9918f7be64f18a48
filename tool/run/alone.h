/* SPDX-License-Identifier: Apache-2.0
 *
 * alone.h - a stage that is a verb of its own: `attest run` with one stage on one device, printed
 * variant by variant.
 *
 * Invariant: what is printed follows from the pack, and the exit code is that of the stage's row.
 */
#ifndef ATTEST_RUN_ALONE_H
#define ATTEST_RUN_ALONE_H

#include "pack/evidence.h"
#include "run/run.h"

struct alone {
    const char *verb;
    struct run_request request;
    struct stage_alone stage;
    const char *device, *driver; /* driver NULL: $ATTN_DRIVER, else libcuda.so.1 */
    bool json, keep;             /* keep the pack, by default under a name with the time */
    struct pack pack;
    struct evidence evidence;
};

/* One of its variants. */
struct alone_slot {
    const char *variant, *verdict, *reason; /* reason "": PASS */
    double seconds;
    const struct json_value *unit; /* what was observed; NULL: nothing */
};

/* How a stage shows itself: in lines, or as members of the open object. */
struct alone_view {
    void (*head)(const struct alone *alone); /* of the table */
    void (*line)(struct alone *alone, const struct alone_slot *slot);
    void (*json)(struct alone *alone, const struct alone_slot *slot, struct json *json);
    void (*end)(const struct alone *alone); /* below the table; or NULL */
};

/* --device, --variant, --timeout and --json. */
enum { ALONE_ARGS = 4 };
void alone_args(struct alone *alone, struct arg args[ALONE_ARGS]);

/* Runs the stage, prints, and returns the exit code. */
int alone_run(struct alone *alone, const struct alone_view *view);

#endif /* ATTEST_RUN_ALONE_H */
