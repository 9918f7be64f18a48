/* SPDX-License-Identifier: Apache-2.0
 *
 * report.c - findings and costs as text, in the form of compiler messages, so that editors find the
 * lines.
 *
 * Invariant: the same findings give the same text: no times, no host addresses.
 */
#include "report/report.h"

#include <inttypes.h>
#include <string.h>

const char *severity_name(vgpu_severity severity) {
    return severity == VGPU_ERROR ? "error" : severity == VGPU_WARNING ? "warning" : "note";
}

const char *async_name(vgpu_async async) {
    static const char *const NAMES[] = {"eager", "fifo", "lifo", "random"};
    return (unsigned)async < 4 ? NAMES[async] : "eager";
}

uint64_t report_count(const vgpu *gpu, vgpu_severity severity) {
    uint64_t count = gpu->findings->not_kept[severity];
    for (size_t i = 0; i < gpu->findings->count; i++) {
        count += gpu->findings->list[i]->shown.severity == severity;
    }
    return count;
}

double cost_each(uint64_t amount, const struct cost *cost) {
    return cost->requests > 0 ? (double)amount / (double)cost->requests : 0.0;
}

/* ---- findings -------------------------------------------------------------------------------- */

/* "src/a.cu:12:5", without line information "PTX:345". */
static void print_place(FILE *out, const vgpu_place *place, uint32_t ptx_line) {
    if (place->file == NULL && ptx_line == 0) {
        fprintf(out, "host");
        return;
    }
    if (place->file == NULL) {
        fprintf(out, "PTX:%" PRIu32, ptx_line);
        return;
    }
    fprintf(out, "%s:%" PRIu32, place->file, place->line);
    if (place->column > 0) {
        fprintf(out, ":%" PRIu32, place->column);
    }
}

static void print_function(FILE *out, const char *before, const vgpu_place *place,
                           const char *after) {
    char name[256];
    if (place->function != NULL) {
        fprintf(out, "%s%s%s", before, vgpu_readable_name(place->function, name, sizeof name),
                after);
    }
}

/* The chain of inlined calls around `place`, from the innermost line on. */
static void print_chain(FILE *out, const char *indent, const vgpu_place *place,
                        const vgpu_place inner[VGPU_FRAMES],
                        const vgpu_place callers[VGPU_FRAMES]) {
    for (int i = 0; i < VGPU_FRAMES && inner[i].file != NULL; i++) {
        fprintf(out, "%sat ", indent);
        print_place(out, &inner[i], 0);
        print_function(out, ", in ", &inner[i], "");
        fprintf(out, "\n");
    }
    for (int i = 0; i < VGPU_FRAMES && callers[i].file != NULL; i++) {
        fprintf(out, "%s", indent);
        print_function(out, "in ", i == 0 ? place : &callers[i - 1], ", ");
        fprintf(out, "inlined at ");
        print_place(out, &callers[i], 0);
        fprintf(out, "\n");
    }
}

const char *other_access(const vgpu_finding *finding) {
    return strncmp(finding->kind, "uninit", 6) == 0 ? "read" : "other access";
}

static void print_finding(FILE *out, const vgpu_finding *finding) {
    char kernel[256];
    print_place(out, &finding->place, finding->ptx_line);
    fprintf(out, ": %s: %s: %s\n", severity_name(finding->severity), finding->kind, finding->text);
    print_chain(out, "    ", &finding->place, finding->inner, finding->callers);
    if (finding->kernel[0] == '\0') {
        return;
    }
    fprintf(out, "    in kernel %s, PTX line %" PRIu32,
            vgpu_readable_name(finding->kernel, kernel, sizeof kernel), finding->ptx_line);
    if (finding->lanes != 0) {
        fprintf(out, ", CTA (%" PRIu32 ", %" PRIu32 ", %" PRIu32 ")", finding->cta[0],
                finding->cta[1], finding->cta[2]);
        fprintf(out, ", warp %" PRIu32 ", lanes 0x%08" PRIx32, finding->warp, finding->lanes);
    }
    fprintf(out, "\n");
    if (finding->space != NULL && finding->space[0] != '\0' && finding->bytes != 0) {
        fprintf(out, "    %" PRIu32 " bytes at %s address 0x%" PRIx64 "\n", finding->bytes,
                finding->space, finding->address);
    }
    if (finding->other_ptx_line != 0) {
        fprintf(out, "    %s at ", other_access(finding));
        print_place(out, &finding->other, finding->other_ptx_line);
        fprintf(out, " by warp %" PRIu32 ", PTX line %" PRIu32 "\n", finding->other_warp,
                finding->other_ptx_line);
        print_chain(out, "        ", &finding->other, finding->other_inner, finding->other_callers);
    }
    if (finding->lanes != 0) {
        fprintf(out, "    %" PRIu64 " time%s; replay: async %s, seed %" PRIu64 "\n", finding->count,
                finding->count == 1 ? "" : "s", async_name(finding->async), finding->seed);
    }
}

void report_findings(const vgpu *gpu, FILE *out) {
    uint64_t not_kept = 0;
    for (size_t i = 0; i < gpu->findings->count; i++) {
        print_finding(out, &gpu->findings->list[i]->shown);
    }
    for (int severity = 0; severity < 3; severity++) {
        not_kept += gpu->findings->not_kept[severity];
    }
    if (not_kept > 0) {
        fprintf(out, "%" PRIu64 " more beyond the limit of %zu are counted only\n", not_kept,
                gpu->config.max_findings);
    }
    const uint64_t errors = report_count(gpu, VGPU_ERROR);
    const uint64_t warnings = report_count(gpu, VGPU_WARNING);
    fprintf(out, "%" PRIu64 " error%s, %" PRIu64 " warning%s\n", errors, errors == 1 ? "" : "s",
            warnings, warnings == 1 ? "" : "s");
}

/* ---- costs ----------------------------------------------------------------------------------- */

static void print_cost(FILE *out, const struct perf_line *line, const struct cost *cost,
                       const char *space, const char *unit) {
    char kernel[256];
    fprintf(out, "  ");
    print_place(out, &line->place, line->ptx_line);
    fprintf(out, ": %s: %s memory: %.2f %s a request, %.2f needed (%" PRIu64 " requests) in %s\n",
            line->opcode, space, cost_each(cost->used, cost), unit, cost_each(cost->needed, cost),
            cost->requests, vgpu_readable_name(line->kernel, kernel, sizeof kernel));
}

uint64_t report_global_requests(const vgpu *gpu) {
    uint64_t requests = 0;
    for (size_t i = 0; gpu->perf != NULL && i < gpu->perf->count; i++) {
        requests += gpu->perf->lines[i].global.requests;
    }
    return requests;
}

/* In percent; an instruction may make several requests, of a matrix for instance. */
static double share(uint64_t part, double all) {
    return (double)part < all ? 100.0 * (double)part / all : 100.0;
}

static void print_mix(const vgpu *gpu, FILE *out) {
    const vgpu_stats *stats = &gpu->stats;
    const double all = (double)(stats->warp_instructions > 0 ? stats->warp_instructions : 1);
    const uint64_t global = report_global_requests(gpu);
    fprintf(out, "  of these %.1f %% MMAs, %.1f %% shared and %.1f %% global memory\n",
            share(stats->tensor_instructions, all), share(stats->shared_accesses, all),
            share(global, all));
    fprintf(out, "  mix:");
    const char *separator = " ";
    for (int family = 0; family < MIX_COUNT; family++) {
        if (gpu->perf->mix[family] > 0) {
            fprintf(out, "%s%.1f %% %s", separator, 100.0 * (double)gpu->perf->mix[family] / all,
                    mix_name((enum mix_family)family));
            separator = ", ";
        }
    }
    fprintf(out, "\n");
}

static void report_costs(const vgpu *gpu, FILE *out) {
    const vgpu_stats *stats = &gpu->stats;
    fprintf(out, "performance:\n");
    fprintf(out, "  %" PRIu64 " warp instructions (%" PRIu64 " threads'), %" PRIu64 " MMAs\n",
            stats->warp_instructions, stats->thread_instructions, stats->tensor_instructions);
    print_mix(gpu, out);
    fprintf(out,
            "  %" PRIu64 " shared accesses, %" PRIu64 " passes more than needed; %" PRIu64
            " global sectors\n",
            stats->shared_accesses, stats->shared_conflicts, stats->global_sectors);
    for (size_t i = 0; i < gpu->perf->count; i++) {
        const struct perf_line *line = &gpu->perf->lines[i];
        if (line->shared.used > line->shared.needed) {
            print_cost(out, line, &line->shared, "shared", "passes");
        }
        if (2 * line->global.used > 3 * line->global.needed) {
            print_cost(out, line, &line->global, "global", "sectors");
        }
    }
    if (gpu->perf->incomplete) {
        fprintf(out, "  some lines are missing: there was no memory for them\n");
    }
}

vgpu_status vgpu_report(const vgpu *gpu, FILE *out, vgpu_format format) {
    if (gpu == NULL || out == NULL) {
        return VGPU_INVALID;
    }
    switch (format) {
    case VGPU_TEXT:
        report_findings(gpu, out);
        if (gpu->perf != NULL) {
            report_costs(gpu, out);
        }
        break;
    case VGPU_JSON: report_json(gpu, out); break;
    case VGPU_SARIF: report_sarif(gpu, out); break;
    default: return VGPU_INVALID;
    }
    return fflush(out) == 0 && !ferror(out) ? VGPU_OK : VGPU_FAULT;
}
