/* SPDX-License-Identifier: Apache-2.0
 *
 * ncu.h - Nsight Compute: reads what it prints (ncu.c), and runs several variants under it in one
 * process (record.c). This program starts ncu, which starts this program again as the target
 * (target.c). Each variant is launched once, and before them a kernel in which one thread sleeps:
 * it must read as idle, or nothing else that was read means anything.
 *
 * Invariant: a figure that is not in the text, or is no number there, is NaN: it passes no gate. A
 * variant's figures are there only if its result, under the profiler, was right.
 */
#ifndef ATTEST_STAGES_PROFILE_NCU_H
#define ATTEST_STAGES_PROFILE_NCU_H

#include <regex.h>
#include <stdbool.h>
#include <stddef.h>

#include "attn.h"
#include "base/json.h"

/* ---- what it prints ----------------------------------------------------------------------------
 *
 * `ncu --csv --metrics ...`: one line for each kernel and metric, among lines of its own
 * ("==PROF== ...") and of the program. */

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

/* The launch of that kernel which is profiled, or NULL: the first (of a forward kernel backward may
 * have one more, for O and LSE); of a backward kernel, which begins with "bwd_", the second, since
 * the first is over rows alone. */
const struct ncu_kernel *ncu_report_find(const struct ncu_report *report, const char *name);

/* Removes the path of the program that ncu connected to: a pack says nothing of where it was made.
 * Returns how many bytes are left. */
size_t ncu_forget_folder(char *text);

/* Up to NCU_TOP_STALLS of them that weigh most, their places; returns how many. */
int ncu_top_stalls(const struct ncu_kernel *kernel, int places[NCU_TOP_STALLS]);

/* The figures that are there as numbers of the open object, the top stalls as "stall_NAME". */
void ncu_values_json(struct json *json, const struct ncu_kernel *kernel);

/* ---- a run ----------------------------------------------------------------------------------- */

/* Whether this user may read the counters of the device: tried on the sleeping kernel alone. */
bool ncu_allowed(const char *ncu, const char *device, const char *driver, attn_error *why);

/* The target's side: launches the sleeping kernel, then every variant whose name matches the
 * expression, each once. Returns the exit code of the program. */
int profile_target(const char *device, const char *driver, const regex_t *regex);

#endif /* ATTEST_STAGES_PROFILE_NCU_H */
