/* SPDX-License-Identifier: Apache-2.0
 *
 * run.h - `attest run`: the request, the plan that follows, and the work.
 *
 *     verb.c      the command line, the locks, workers, the summary, the exit code
 *     alone.c     one stage alone; the verbs sanitize and profile
 *     parity.c    the verb parity
 *     plan.c      the plan: which stage of which variant on which device, and what is absent
 *     machine.c   what this machine has: devices, variants that run there, tools
 *     work.c      the slots of the plan: children do those of a row, a unit each (stages/stage.h)
 *
 * Invariant: the parent opens no device. A plan names every variant of the library in each row, as
 * a subject or as one that the device refuses, unless the request left some out and says so. After
 * each slot there is a unit of it in the pack, and no unit is ever changed: a run may be killed at
 * any moment, and resumed later.
 */
#ifndef ATTEST_RUN_RUN_H
#define ATTEST_RUN_RUN_H

#include "base/args.h"
#include "base/jobs.h"
#include "pack/evidence.h"

/* Slots are divided by variant: a part has all of a variant, since a stage that fails ends them. */
struct run_part {
    int64_t number, of; /* 1 to `of`; of 0: there is one part. Number 0: none, the plan alone */
};

/* A stage that is a verb of its own: one row, on any device. */
struct stage_alone {
    enum stage stage;
    int direction;           /* attn_direction; -1: of any */
    int64_t cases, launches; /* of parity: cases of a family, spread over its variants */
    int64_t one_case;        /* its number; this one, and no launches; -1: all */
    const char *code;        /* "ptx", or a file: run it instead of the loaded image; or NULL */
    const char *async;       /* orders of completion on the virtual GPU, or NULL */
};

struct run_request {
    const struct stage_alone *alone; /* NULL: attest run */
    bool full;
    struct run_part part;
    struct arg_list stages, devices; /* none: all */
    const char *variant;             /* an extended regular expression; NULL: all */
    const char *out, *commit;        /* commit NULL: unknown */
    double price;                    /* of an hour of GPU; NaN: unknown */
    double timeout;                  /* seconds for one slot; 0: as the stage needs */
    uint64_t seed;
};

/* ---- what this machine has (machine.c) ------------------------------------------------------- */

/* A variant, and on a GPU the image of it that the library loads there. */
struct run_subject {
    char variant[96], image[SHA256_TEXT]; /* image "": CPUs */
    const char *family;                   /* owned by the library */
    int direction;
    char refusal[256]; /* why the device cannot run it; "": it can */
    bool chosen;       /* the library chooses it for some usual problem */
};

struct run_device {
    char name[32];    /* cpu, vgpu, cuda:N: as the request has it */
    char absent[256]; /* why it cannot be used; "": it can */
    char model[224];  /* what it says it is */
    struct run_subject *subjects;
    size_t count;
};

/* Asks a child what the device can do with the variants that the expression (NULL: all) matches.
 * False and the reason: the child broke off. */
bool run_device_ask(const char *name, const char *variant, struct run_device *device,
                    attn_error *why);

/* The child's side. Returns the exit code. */
int run_probe(const char *device, const char *variant);

/* Why a stage cannot be done on this GPU: its tool is missing, or may not look. "": it can. */
void run_tool_absent(enum stage stage, const char *device, char reason[256]);

/* The virtual GPU runs all, under all checks, whatever the environment says. */
void run_environment(void);

/* The versions of the tools that are there, as the object "tools". */
void run_tools_json(struct json *json);

/* ---- the plan (plan.c) ----------------------------------------------------------------------- */

/* As JSON, for free(); NULL and the reason where the request names a stage, device or variant that
 * there is not. `before`: the plan of the run that is resumed, or NULL: a row that it could do and
 * this machine cannot stays as it was. */
char *run_plan_make(const struct run_request *request, const struct json_value *before,
                    attn_error *why);

/* Whether this machine can do a part of it: the same build, and the devices and tools of the plan,
 * under the same names. False and the first difference. */
bool run_plan_fits(const struct json_value *plan, const struct run_request *request,
                   attn_error *why);

/* The request of the plan of a run that is resumed. Its texts are the plan's. */
bool run_plan_request(const struct json_value *plan, struct run_request *request, attn_error *why);

/* ---- the work (work.c) ----------------------------------------------------------------------- */

/* Does every slot of the request's part that has no fresh unit, and whose earlier stages did not
 * fail. False and the reason: the pack cannot be written. A signal ends it early, which is no
 * failure. */
bool run_work(struct pack *pack, const struct run_request *request, attn_error *why);

/* How many slots of each part are still to be done, and can be: left[1] to left[parts]. */
bool run_left(const struct pack *pack, int64_t parts, size_t *left, attn_error *why);

/* The child's side: the slots of a row with these numbers ("0,3,7"). Returns the exit code. */
int run_slots(const char *path, int64_t row, const char *slots, int64_t lanes);

/* "WORD-20260131-235959", for a pack that --out does not name; returns the buffer (verb.c). */
enum { TIMED_NAME = 64 };
const char *timed_name(const char *word, char name[TIMED_NAME]);

/* ---- a stage that is a verb of its own (alone.c) ------------------------------------------------
 *
 * `attest run` with one stage on one device, printed variant by variant. What is printed follows
 * from the pack, and the exit code is that of the stage's row. */
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
    const char *head; /* of the table */
    void (*line)(struct alone *alone, const struct alone_slot *slot);
    const char *member; /* of the unit, for JSON; NULL: */
    void (*json)(struct alone *alone, const struct alone_slot *slot, struct json *json);
    void (*end)(const struct alone *alone); /* below the table; or NULL */
};

/* --device, --variant, --timeout and --json. */
enum { ALONE_ARGS = 4 };
void alone_args(struct alone *alone, struct arg args[ALONE_ARGS]);

/* Runs the stage, prints, and returns the exit code. */
int alone_run(struct alone *alone, const struct alone_view *view);

#endif /* ATTEST_RUN_RUN_H */
