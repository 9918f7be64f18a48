/* SPDX-License-Identifier: Apache-2.0
 *
 * ncu_report.h - what Nsight Compute printed about kernels, read back: `ncu --csv --metrics ...`,
 * one line for each kernel and metric, among lines of its own ("==PROF== ...") and of the program.
 *
 * Invariant: a figure that is not in the text, or is no number there, is NaN: it passes no gate.
 */
#ifndef ATTEST_STAGES_PROFILE_NCU_REPORT_H
#define ATTEST_STAGES_PROFILE_NCU_REPORT_H

#include <stdbool.h>
#include <stddef.h>

#include "attn.h"
#include "base/json.h"

enum ncu_figure {
    NCU_SM_BUSY,     /* cycles in which an SM has a warp, of all; percent, as all but: */
    NCU_TENSOR_PIPE, /* cycles in which the tensor pipe works */
    NCU_SM_THROUGHPUT,
    NCU_DRAM_THROUGHPUT,
    NCU_L2_THROUGHPUT,
    NCU_OCCUPANCY, /* warps there, of those that there could be */
    NCU_DURATION,  /* nanoseconds */
    NCU_FIGURES
};
extern const char *const NCU_FIGURE_NAMES[NCU_FIGURES];   /* "sm_busy_percent" */
extern const char *const NCU_FIGURE_METRICS[NCU_FIGURES]; /* as ncu calls them */

/* Why warps wait, in warps for each instruction that is issued. */
enum { NCU_STALLS = 19, NCU_TOP_STALLS = 3 };
extern const char *const NCU_STALL_NAMES[NCU_STALLS]; /* the last one is known to sm_90 alone */
#define NCU_STALL_METRIC "smsp__average_warps_issue_stalled_%s_per_issue_active.ratio"

struct ncu_kernel {
    char name[192];
    double figures[NCU_FIGURES];
    double stalls[NCU_STALLS];
};

struct ncu_report {
    struct ncu_kernel *kernels; /* in the order of their launches */
    size_t count;
};

/* `text` ends with a 0, in base units. True where there is a table, even an empty one; else why
 * there is none, in ncu's own words where it has some. Free it in either case. */
bool ncu_report_read(const char *text, size_t bytes, struct ncu_report *report, attn_error *why);
void ncu_report_free(struct ncu_report *report);

/* The only launch of that kernel; NULL where there is none, or more than one. */
const struct ncu_kernel *ncu_report_find(const struct ncu_report *report, const char *name);

/* Removes the path of the program that ncu connected to: a pack says nothing of where it was made.
 * Returns how many bytes are left. */
size_t ncu_forget_folder(char *text);

/* Up to NCU_TOP_STALLS of them that weigh most, their places; returns how many. */
int ncu_top_stalls(const struct ncu_kernel *kernel, int places[NCU_TOP_STALLS]);

/* The figures that are there as numbers of the open object, the top stalls as "stall_NAME". */
void ncu_values_json(struct json *json, const struct ncu_kernel *kernel);

#endif /* ATTEST_STAGES_PROFILE_NCU_REPORT_H */
