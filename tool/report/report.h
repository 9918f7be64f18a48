/* SPDX-License-Identifier: Apache-2.0
 *
 * report.h - an evidence pack for a reader: one page of HTML, or Markdown.
 *
 *     report_open(&report, "results/h200", &changed, &why);
 *     report_write(&report, &(struct doc){.out = out, .html = true});
 *     report_close(&report);
 *
 * Invariant: a report says what evidence_make says of the pack, computed anew, and reads nothing
 * but the pack; a pack that was changed has no report. A figure is in it only where its slot is
 * PASS, and what did not run is never green.
 */
#ifndef ATTEST_REPORT_REPORT_H
#define ATTEST_REPORT_REPORT_H

#include "base/json_read.h"
#include "base/stats.h"
#include "pack/evidence.h"
#include "pack/pack.h"
#include "report/doc.h"

/* A stage of one variant on one device. Strings are those of the documents, or NULL;
 * without a reason "". */
struct report_slot {
    enum stage stage;
    enum gate gate;
    const char *device, *variant, *reason;
    const char *unit_name;            /* NULL: none counts */
    struct json_value *unit;          /* NULL with its name */
    const struct json_value *timings; /* the statistics, of a bench that is PASS */
};

/* A timing of a problem, of a bench that is PASS. */
struct report_timing {
    const char *device, *variant;
    const char *text, *mode, *cache; /* text: the problem */
    attn_problem problem;
    bool backward;
    struct interval p50, p90, p99; /* seconds */
    double tflops;
    double floor;                 /* seconds, by the roofline; NaN: not known */
    const struct json_value *raw; /* with its samples, of the unit */
};

struct pack_report {
    struct pack pack;
    struct evidence evidence;    /* the whole is NOT_RUN at best if the run did not end */
    bool ended;                  /* evidence.json is there */
    struct json_value *document; /* evidence.json, as it follows from the pack */
    struct report_slot *slots;   /* in the order of the plan */
    size_t slot_count;
    struct report_timing *timings;
    size_t timing_count;
};

/* False and the reason: no pack, a damaged one, or an evidence.json that does not follow. In any
 * case the report may be freed. *changed: it is a pack, and not as it was written. */
bool report_open(struct pack_report *report, const char *path, bool *changed, attn_error *why);
void report_close(struct pack_report *report);

void report_write(const struct pack_report *report, struct doc *doc);

/* ---- what sections look up ------------------------------------------------------------------- */

/* The row of that stage and device; NULL: it was not requested. */
const struct evidence_row *report_row(const struct pack_report *report, enum stage stage,
                                      const char *device);

/* The slot of that; NULL: none. */
const struct report_slot *report_find(const struct pack_report *report, enum stage stage,
                                      const char *device, const char *variant);

/* The devices of the plan, each once, GPUs first. Returns how many, DEVICES_MOST at most. */
enum { DEVICES_MOST = 16 };
size_t report_devices(const struct pack_report *report, const char *devices[DEVICES_MOST]);

/* Error over what is allowed, the larger of max and mean, or of the LSE: 1 is all that is allowed.
 * NaN: damaged, or no numbers. */
double case_share(const struct json_value *one);

/* ---- sections -------------------------------------------------------------------------------- */

void report_findings(const struct pack_report *report, struct doc *doc);  /* findings.c */
void report_times(const struct pack_report *report, struct doc *doc);     /* times.c */
void report_beside(const struct pack_report *report, struct doc *doc);    /* peers.c */
void report_resources(const struct pack_report *report, struct doc *doc); /* tables.c */
void report_parity(const struct pack_report *report, struct doc *doc);    /* tables.c */

#endif /* ATTEST_REPORT_REPORT_H */
