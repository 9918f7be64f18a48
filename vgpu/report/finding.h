/* SPDX-License-Identifier: Apache-2.0
 *
 * finding.h - kinds of findings, and how an instruction reports one.
 */
#ifndef VGPU_REPORT_FINDING_H
#define VGPU_REPORT_FINDING_H

#include "machine/machine.h"

enum finding_kind {
    /* memory */
    FINDING_OUT_OF_BOUNDS,
    FINDING_MISALIGNED,
    FINDING_USE_AFTER_FREE,
    FINDING_WRONG_SPACE,
    FINDING_UNINITIALISED,        /* an address or a value stored to global memory is poison */
    FINDING_UNINITIALISED_BRANCH, /* warning */
    FINDING_UNINITIALISED_PART,   /* warning: some bytes of a value that is copied */
    FINDING_READ_ONLY,            /* a write to .const, .param or through .nc */
    /* races */
    FINDING_RACE,
    FINDING_RACE_SAME_VALUE /* warning: both store what is there already */,
    FINDING_RACE_WARP /* warning: lanes of one warp without __syncwarp */,
    FINDING_RACE_GLOBAL,
    FINDING_RACE_PDL /* with an earlier launch, before griddepcontrol.wait */,
    FINDING_RACE_STREAM /* between launches and copies of different streams */,
    FINDING_STALE_READ /* through .nc, of what the kernel has written */,
    FINDING_PROXY_FENCE,
    FINDING_ASYNC_READ_EARLY /* read before completion */,
    FINDING_ASYNC_OVERWRITE /* written while an engine reads or writes it */,
    FINDING_REGISTER_IN_FLIGHT /* wgmma's accumulator touched before wait_group */,
    /* synchronisation */
    FINDING_DIVERGENT_BARRIER,
    FINDING_BARRIER_COUNT,
    FINDING_DIVERGENT_WARP_OP,
    FINDING_DEADLOCK,
    FINDING_MBARRIER,
    FINDING_ASYNC_UNFINISHED,
    FINDING_WGMMA_FENCE,
    FINDING_CLUSTER_EXIT,
    /* misuse */
    FINDING_MATRIX_LOCAL,
    FINDING_TENSOR_MAP,
    FINDING_DESCRIPTOR,
    FINDING_SETMAXNREG,
    FINDING_ILLEGAL_OPERAND,
    /* ends */
    FINDING_TRAP,
    FINDING_ASSERT,
    FINDING_STEPS,
    FINDING_MEMORY_LIMIT,
    FINDING_STACK,
    FINDING_UNKNOWN,
    /* static */
    FINDING_TRAP_ENTRY,
    FINDING_LIMIT,
    /* of the checks themselves */
    FINDING_RACE_UNCHECKED,
    FINDING_LAUNCH_LEFT_OUT,
    FINDING_CALL /* warning: a call of the host failed */,
    FINDING_KIND_COUNT
};

/* "out-of-bounds" ...; the severity that goes with it. */
const char *finding_name(enum finding_kind kind);
vgpu_severity finding_severity(enum finding_kind kind);

struct finding_detail {
    int space; /* -1: none */
    uint64_t address;
    uint32_t bytes;
    const struct op *other; /* the other access of a race */
    const struct warp *other_warp;
    uint32_t other_warp_index;         /* where other_warp is NULL */
    const struct kernel *other_kernel; /* the launched one that has `other`; NULL: this one */
};

/* Reports at the op for these lanes; the sentence says what happened there. detail may be NULL. */
void report(struct warp *warp, const struct op *op, enum finding_kind kind, uint32_t lanes,
            const struct finding_detail *detail, const char *format, ...)
    __attribute__((format(printf, 6, 7)));
/* Counts one more of an uninitialised value that was reported at this op; false: it was not. */
bool report_again(struct warp *warp, const struct op *op, enum finding_kind kind);
/* For what has no warp: a whole kernel (static findings). */
void report_kernel(vgpu *gpu, const struct kernel *kernel, const struct ptx_instruction *in,
                   enum finding_kind kind, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* For what has no kernel: a call of the host that failed. */
void report_call(vgpu *gpu, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif /* VGPU_REPORT_FINDING_H */
