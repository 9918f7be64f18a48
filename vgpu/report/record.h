/* SPDX-License-Identifier: Apache-2.0
 *
 * record.h - lists of findings: kept by finding.c, read by report.c and the driver.
 *
 * A running cluster has its own list, in order of time; the GPU has one, sorted. One record stands
 * for all findings of one kind at one source line (of a race: at two lines) of a kernel, or at one
 * instruction if no lines are known; it describes the first of them.
 *
 * Invariant: strings of the GPU's list belong to it, so that it outlives modules; those of a
 * cluster's list belong to the running module.
 */
#ifndef VGPU_REPORT_RECORD_H
#define VGPU_REPORT_RECORD_H

#include <stdio.h>

#include "report/finding.h"

struct record {
    enum finding_kind kind;
    vgpu_finding shown;
    struct record *next; /* of the same bucket */
};

enum { FINDING_BUCKETS = 256 };

struct findings {
    struct arena *strings; /* and records; NULL until something is found */
    struct record *buckets[FINDING_BUCKETS];
    struct record **list;
    size_t count, room;
    uint64_t kinds;       /* bit (1 << kind) for what was found, kept apart or not */
    uint64_t not_kept[3]; /* by severity: beyond max_findings, or no memory */
    uint64_t news;        /* grows with each record that is added, or not kept; never cleared */
};

struct findings *findings_make(void);
void findings_free(struct findings *findings);
/* Adds those of a cluster to the gpu's; called in the order of clusters. */
void findings_merge(vgpu *gpu, struct findings *from);

/* What the kind means, in a few words (SARIF's rules). */
const char *finding_meaning(enum finding_kind kind);

/* The kinds found since the last call, as bits; the driver turns them into an error code. */
uint64_t findings_take_kinds(vgpu *gpu);

/* Where an instruction comes from, as in struct vgpu_finding. inner and callers may be NULL. */
void place_of(const struct ptx_module *ptx, const struct ptx_instruction *in, vgpu_place *place,
              vgpu_place inner[VGPU_FRAMES], vgpu_place callers[VGPU_FRAMES]);

struct suppression {
    struct suppression *next;
    char *kind; /* NULL: any */
    char *file;
    uint32_t line; /* 0: any */
};
void suppressions_free(struct suppression *list);

/* report.c: only the findings, as text: the default output of the driver. */
void report_findings(const vgpu *gpu, FILE *out);

#endif /* VGPU_REPORT_RECORD_H */
