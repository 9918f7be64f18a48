/* SPDX-License-Identifier: Apache-2.0
 *
 * plan.h - what `attest run` is asked for, and the plan that follows: which stage of which
 * variant on which device, and what is absent here.
 *
 *     verb.c      the command line, the summary, the exit code
 *     plan.c      the plan: rows of stages and devices
 *     machine.c   what this machine has: devices, variants that run there, tools
 *     probe.c     a child: opens one device and says what it can do
 *     work.c      the parent: a child for each row, the watchdog, what is left to do
 *     slots.c     a child: does the slots of one row, a unit each (stages/record.h)
 *
 * Invariant: the parent opens no device. A plan names every variant of the library in each row, as
 * a subject or as one that the device refuses, unless the request left some out and says so.
 */
#ifndef ATTEST_RUN_PLAN_H
#define ATTEST_RUN_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "attn.h"
#include "base/args.h"
#include "base/sha256.h"
#include "pack/judge.h"

struct run_request {
    bool full;
    struct arg_list stages, devices; /* none: all */
    const char *variant;             /* an extended regular expression; NULL: all */
    const char *out, *commit;        /* commit NULL: not told */
    const char *against;             /* another libattn.so to look at; NULL: none */
    double price;                    /* of an hour of GPU; NaN: not told */
    double timeout;                  /* seconds for one slot; 0: as the stage needs */
    uint64_t seed;
};

/* ---- what this machine has (machine.c) --------------------------------------------------- */

/* A variant, and on a GPU the image of it that the library loads there. */
struct run_subject {
    char variant[96], image[SHA256_TEXT]; /* image "": CPUs */
    char refusal[256];                    /* why the device cannot run it; "": it can */
    bool chosen;                          /* the library takes it for some usual problem */
};

struct run_device {
    char name[32];    /* cpu, vgpu, cuda:N: as the request has it */
    char absent[256]; /* why it cannot be used; "": it can */
    char model[224];  /* what it says it is */
    struct run_subject *subjects;
    size_t count;
};

/* Asks a child what the device can do. False and the reason: the child broke off, or there is no
 * memory. */
bool run_device_ask(const char *name, struct run_device *device, attn_error *why);
void run_device_free(struct run_device *device);

/* Why a stage cannot be done on this GPU: its tool is missing, or may not look. "": it can. */
void run_tool_absent(enum stage stage, const char *device, char reason[256]);

/* The versions of the tools that are there, as the object "tools". */
void run_tools_json(struct json *json);

/* SHA-256 of a file of any size: a library may be larger than what file_read takes. */
bool run_file_hash(const char *path, char hash[SHA256_TEXT], attn_error *why);

/* SHA-256 of the library and of this program: what the units are bound to. */
bool run_identity(char library[SHA256_TEXT], char tool[64], attn_error *why);

/* ---- the plan -------------------------------------------------------------------------------- */

/* As JSON, for free(). `before`: the plan of the run that goes on, or NULL: a row that it could do
 * and this machine cannot stays as it was. */
char *run_plan_make(const struct run_request *request, const struct json_value *before,
                    attn_error *why);

/* The request behind the plan of a run that goes on. Its texts are the plan's. */
bool run_plan_request(const struct json_value *plan, struct run_request *request, attn_error *why);

/* The child's side (probe.c). Returns the exit code. */
int run_probe(const char *device);

#endif /* ATTEST_RUN_PLAN_H */
