/* SPDX-License-Identifier: Apache-2.0
 *
 * report.h - an evidence pack as somebody reads it: one page of HTML, or Markdown.
 *
 *     report_open(&report, "results/h200", &why);
 *     report_html(&report, out);
 *     report_markdown(&report, out);
 *     report_close(&report);
 *
 * Invariant: a report says what evidence_make says of the pack, computed anew, and reads nothing
 * but the pack; a pack that was changed has no report. A figure is in it only where its slot is
 * PASS, and what did not run is nowhere green.
 */
#ifndef ATTEST_REPORT_REPORT_H
#define ATTEST_REPORT_REPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "base/json_read.h"
#include "base/stats.h"
#include "pack/evidence.h"
#include "pack/pack.h"

/* A stage of one variant on one device. Strings are those of the documents, or NULL. */
struct report_slot {
    enum stage stage;
    enum gate gate;
    const char *device, *variant, *image, *reason;
    const char *unit_name; /* NULL: none counts */
    double seconds;
    struct json_value *unit;          /* NULL with its name */
    const struct json_value *timings; /* the statistics, of a bench that is PASS */
};

/* A time of a problem: ours, or that of a peer. */
struct report_timing {
    const char *device, *variant, *peer; /* peer: NULL, or who it is of instead */
    bool judged;                         /* of a bench that is PASS; else of the peers runner */
    const char *text, *mode, *cache;     /* text: the problem */
    const char *dtype;
    int64_t batch, heads_q, heads_kv, seq_q, seq_kv, dim;
    bool causal;
    struct interval p50, p90, p99; /* seconds */
    double tflops, flops;
    double floor; /* seconds below which it cannot be; NaN: not known */
    int64_t samples;
    struct interval ratio; /* of a peer: its time over ours, round by round; else NaN */
};

struct peers_file {
    const char *name; /* of the artifact, in a unit */
    struct json_value *document;
};

struct pack_report {
    struct pack pack;
    struct evidence evidence;
    struct judgement verdict;    /* of the whole; NOT_RUN at best if the run did not end */
    bool ended;                  /* evidence.json is there */
    struct json_value *document; /* evidence.json, as it follows from the pack */
    struct report_slot *slots;   /* in the order of the plan */
    size_t slot_count;
    struct report_timing *timings;
    size_t timing_count;
    struct peers_file *peers; /* files of the peers runner, which timings point into */
    size_t peer_count;
    size_t peers_left_out; /* sides of rows that were measured and not proven */
    bool links;            /* the page will lie in the pack's folder: names of files are links */
};

/* False and the reason: no pack, a damaged one, or an evidence.json that does not follow. In any
 * case the report may be freed. *changed: it is a pack, and not as it was written. */
bool report_open(struct pack_report *report, const char *path, bool *changed, attn_error *why);
void report_close(struct pack_report *report);

void report_html(const struct pack_report *report, FILE *out);
void report_markdown(const struct pack_report *report, FILE *out);

/* ---- parts of report_open -------------------------------------------------------------------- */

/* The roofline of a GPU: by its own peaks where it is known, else by what no GPU does; NaN on other
 * devices. hardware may be NULL. */
double report_floor(const char *device, const char *hardware, const attn_problem *problem);

/* Adds what the peers runner wrote, of the artifacts that a bench that is PASS names
 * (peers.c). */
bool report_add_peers(struct pack_report *report, attn_error *why);

/* ---- what both languages say (text.c) ------------------------------------------------- */

/* "PASS", "PASS (partial)", "NOT RUN". */
const char *report_verdict(const struct pack_report *report);
const char *gate_words(enum gate gate); /* "NOT RUN" for NOT_RUN */

/* The row of that stage and device; NULL: it was not asked for. */
const struct evidence_row *report_row(const struct pack_report *report, enum stage stage,
                                      const char *device);

/* The class of the style sheet that colours a verdict. */
const char *gate_class(enum gate gate);

/* What a device is, as the plan's environment says it; NULL where it does not. */
const char *report_hardware(const struct pack_report *report, const char *device);

/* Whether a stage is for that kind of device at all; INSPECT is for architectures. */
bool report_applies(enum stage stage, const char *device);

/* The devices of the plan, each once: GPUs, CPUs, the virtual GPU, architectures. Returns how many,
 * `most` at most. */
size_t report_devices(const struct pack_report *report, const char **devices, size_t most);

/* The slot of that; NULL: none. device NULL: the first of any. */
const struct report_slot *report_find(const struct pack_report *report, enum stage stage,
                                      const char *device, const char *variant);

/* A value that a unit observed; NaN: none. */
double slot_value(const struct report_slot *slot, const char *name);

/* Error over what is allowed, the larger of max and mean, or of the LSE: 1 is all that is allowed.
 * NaN: damaged, or no numbers. */
double case_share(const struct json_value *one);

/* "12.3 us", "4.56 ms", "1.2 s"; "-" for what is no number. */
enum { REPORT_TEXT = 40 };
const char *seconds_text(double seconds, char text[REPORT_TEXT]);
const char *number_text(double number, char text[REPORT_TEXT]);

/* ---- parts of the page ----------------------------------------------------------------------- */

void report_plots_html(const struct pack_report *report, FILE *out); /* plots.c */
void report_times_html(const struct pack_report *report, FILE *out); /* times.c */
void report_times_markdown(const struct pack_report *report, FILE *out);
void report_beside_html(const struct pack_report *report, FILE *out); /* beside.c */
void report_beside_markdown(const struct pack_report *report, FILE *out);
void report_tables_html(const struct pack_report *report, FILE *out);   /* tables.c */
void report_findings_html(const struct pack_report *report, FILE *out); /* findings.c */
void report_findings_markdown(const struct pack_report *report, FILE *out);
void report_matrix_html(const struct pack_report *report, FILE *out); /* matrix.c */
void report_matrix_markdown(const struct pack_report *report, FILE *out);

#endif /* ATTEST_REPORT_REPORT_H */
