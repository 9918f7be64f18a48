/* SPDX-License-Identifier: Apache-2.0
 *
 * report.h - shared by the three formats of a report: text, JSON, SARIF.
 */
#ifndef VGPU_REPORT_REPORT_H
#define VGPU_REPORT_REPORT_H

#include "report/perf.h"
#include "report/record.h"

void report_json(const vgpu *gpu, FILE *out);
void report_sarif(const vgpu *gpu, FILE *out);

const char *severity_name(vgpu_severity severity); /* "error", "warning", "note": SARIF's words */
const char *async_name(vgpu_async async);

/* What finding->other is, in words: "other access", "read". */
const char *other_access(const vgpu_finding *finding);

/* Findings of a severity, those that were not kept included. */
uint64_t report_count(const vgpu *gpu, vgpu_severity severity);

/* Accesses of warps to global memory, of all lines. */
uint64_t report_global_requests(const vgpu *gpu);

/* used / requests; 0 without requests. */
double cost_each(uint64_t amount, const struct cost *cost);

#endif /* VGPU_REPORT_REPORT_H */
