/* SPDX-License-Identifier: Apache-2.0
 *
 * wgmma.h - shared by wgmma_ops.c (forms), wgmma.c (MMAs in flight), wgmma_registers.c (registers
 * they hold) and wgmma_operand.c (operands in shared memory).
 */
#ifndef VGPU_ASYNC_WGMMA_H
#define VGPU_ASYNC_WGMMA_H

#include "ops/matrix.h"

struct agent;

/* extra of a wgmma.mma_async */
struct wgmma_form {
    struct matrix_form mma;
    bool a_shared, a_transposed, b_transposed, negative;
    bool has_fence;      /* known when decoding */
    uint32_t writer;     /* without a fence: the op that wrote a register last; 0: none */
    uint32_t a, b;       /* rows of the descriptors */
    uint32_t accumulate; /* a predicate */
};

op_function wgmma_run_issue, wgmma_run_fence, wgmma_run_commit, wgmma_run_wait;

/* Whether the first operand is what the instruction writes, where it is a register at all. */
bool wgmma_has_result(const struct ptx_instruction *in);

/* A matrix descriptor, unpacked; offsets in bytes. */
struct wgmma_descriptor {
    uint32_t start, leading, stride;
    uint32_t base_offset;
    uint32_t swizzle; /* bytes of a row of the pattern: 128, 64, 32; 16: none */
    bool reserved;    /* bits that must be 0 are not */
};

/* Rows of A or columns of B, from `first` on, with all of k: 32 bytes of each. */
struct wgmma_operand {
    struct wgmma_descriptor descriptor;
    bool transposed; /* rows (columns) are contiguous, not k */
    enum matrix_type type;
    uint32_t first, count; /* multiples of 8 */
    uint32_t k;
};

struct wgmma_descriptor wgmma_unpack(uint64_t bits);

/* Everything that an operand's read must obey, for one warp and on behalf of the agent; taint: bit
 * i is set where row (column) i has poison. False: it cannot be read; reported. */
bool wgmma_check_operand(struct warp *warp, const struct op *op,
                         const struct wgmma_operand *operand, const char *which,
                         struct agent *agent, uint8_t taint[256 / 8]);

/* Its values as a[row][k] or b[k][column]. Only after wgmma_check_operand. */
void wgmma_read_a(const struct cta *cta, const struct wgmma_operand *operand,
                  struct matrix_values *values);
void wgmma_read_b(const struct cta *cta, const struct wgmma_operand *operand,
                  const struct matrix_form *form, struct matrix_values *values);

/* ---- MMAs in flight ---------------------------------------------------------------------- */

enum {
    GROUP_WARPS = 4,
    MOST_IN_FLIGHT = 4096 /* of a warp: more is a loop without a wait */
};

/* A warp's share of an MMA. */
struct part {
    const struct op *op; /* NULL: the warp has not issued it */
    struct agent *agent;
    uint64_t a_bits, b_bits; /* descriptors; of A in registers: 0 */
    uint32_t group;          /* that it was committed to; 0: not yet */
    uint32_t mask;
    bool broken, accumulate, all_tainted;
    bool retired;        /* its warp has waited for it */
    unsigned char *rows; /* of the function that issued it */
    uint32_t *poison;
    struct wgmma_operand a, b;
    uint8_t a_taint[256 / 8], b_taint[256 / 8];
};

struct mma {
    struct mma *next;
    struct warpgroup *group;
    struct pending *pending; /* once every warp has issued it */
    uint32_t number;         /* from 1 */
    bool done;
    struct part parts[GROUP_WARPS];
};

struct warpgroup {
    struct warp *warps;
    uint32_t count;           /* of warps: 4, where the kernel is right */
    uint32_t users;           /* warps that have a struct warp_wgmma */
    struct mma *first, *last; /* that some warp has not waited for; numbers without gaps */
    struct clock *completed;  /* reads of MMAs that a warp waited for */
};

/* warp->wgmma */
struct warp_wgmma {
    struct warpgroup *group;
    uint32_t issued, waited; /* numbers of MMAs */
    uint32_t groups;         /* committed */
    uint32_t awaited;        /* the MMA that wait_group is blocked for; 0: it is not */
    char waits_for[96];
    const struct ptx_function *function;
    uint32_t *accumulators; /* by register: the latest MMA that writes it */
    uint32_t *sources;      /* by register: the latest MMA that reads it as A */
};

/* The MMA of this number, if some warp has not waited for it. */
struct mma *wgmma_product(const struct warpgroup *group, uint32_t number);

/* Before the issue of an MMA: may it have these registers? */
void wgmma_check_registers(struct warp *warp, const struct op *op, uint32_t mask);
/* The MMA has them from now on. */
void wgmma_mark_registers(struct warp_wgmma *state, const struct op *op, uint32_t number);

#endif /* VGPU_ASYNC_WGMMA_H */
