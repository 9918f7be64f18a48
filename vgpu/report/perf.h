/* SPDX-License-Identifier: Apache-2.0
 *
 * perf.h - cost of memory accesses by source line, and the instruction mix.
 *
 * Shared memory has 32 banks of 4 bytes. A request of 32 lanes is served in phases of 128 bytes:
 * all lanes up to 4 bytes each, 16 lanes of 8 bytes, 8 lanes of 16 bytes (ldmatrix: one matrix). A
 * phase needs as many passes as there are different words in its worst bank. Global memory is read
 * in sectors of 32 bytes.
 *
 * Invariant: the numbers are sums over all launches, independent of the order of clusters.
 */
#ifndef VGPU_REPORT_PERF_H
#define VGPU_REPORT_PERF_H

#include "machine/access.h"

/* Instructions of a function that a cluster executed, as differences: [i] counts the runs of the
 * interpreter that began at op i less those that ended before it. NULL where counting is off. */
uint64_t *perf_runs(const struct cluster *cluster, const struct kernel *kernel);

/* Counters of a warp's accesses by op; NULL-safe where VGPU_CHECK_PERF is off. */
void perf_shared(struct warp *warp, const struct op *op, const struct access *access);
void perf_global(struct warp *warp, const struct op *op, const struct access *access);
void perf_start_cluster(struct cluster *cluster);
void perf_merge_cluster(vgpu *gpu, struct cluster *cluster);

/* Requests of a warp, what they took and what the bytes would need at least. */
struct cost {
    uint64_t requests;
    uint64_t used;   /* passes, or sectors */
    uint64_t needed; /* likewise */
};

struct perf_line {
    const char *kernel;
    const char *opcode; /* of the first instruction there: "ld" */
    vgpu_place place;
    uint32_t ptx_line; /* of the first instruction there */
    struct cost shared, global;
};

/* Families of instructions, for the mix; those up to MIX_HALF are arithmetic. */
enum mix_family {
    MIX_INTEGER,
    MIX_FLOAT,
    MIX_HALF,
    MIX_SPECIAL,
    MIX_COMPARE,
    MIX_CONVERT,
    MIX_MOVE,
    MIX_MEMORY,
    MIX_ATOMIC,
    MIX_ASYNC,
    MIX_BARRIER,
    MIX_WARP,
    MIX_MATRIX,
    MIX_CONTROL,
    MIX_COUNT
};
const char *mix_name(enum mix_family family); /* "integer" */
enum mix_family mix_of(const struct ptx_instruction *in);

struct perf {
    struct arena *strings;
    uint64_t mix[MIX_COUNT]; /* warp instructions */
    struct perf_line *lines; /* sorted by kernel, file and line */
    size_t count, room;
    bool incomplete; /* there was no memory for some line */
};

void perf_free(struct perf *perf);

#endif /* VGPU_REPORT_PERF_H */
