/* SPDX-License-Identifier: Apache-2.0
 *
 * kernel.h - the decoded form of a module: one op per instruction, rows for registers, kernels.
 *
 * Register = ROW: the values of 32 lanes, contiguous. 64 bytes for 16-bit registers, 128 for
 * 32-bit, 256 for 64-bit, aligned to 64. Immediates and special registers (%tid.x) are rows too,
 * filled when a warp starts; an op function sees offsets of rows and no operand kinds. Predicates
 * are 32-bit masks. A 128-bit register is two 64-bit rows, HIGH_HALF apart; only mov, ld, st and
 * atom use them.
 *
 * Invariant: a kernel is constant after decoding, so any number of host threads may run it.
 */
#ifndef VGPU_MACHINE_KERNEL_H
#define VGPU_MACHINE_KERNEL_H

#include "ptx/arena.h"
#include "ptx/ptx.h"
#include "vgpu.h"

enum { LANES = 32, MAX_WARPS = 32, MAX_BARRIERS = 16 };
#define ALL_LANES 0xffffffffU
enum { HIGH_HALF = 8 * LANES };

/* Each lane of the mask, from the lowest on. */
#define FOR_LANES(lane, mask)                                                                      \
    for (uint32_t rest = (mask), lane; rest != 0 && (lane = (uint32_t)__builtin_ctz(rest), true);  \
         rest &= rest - 1)

struct access;
struct op;
struct warp;

/* ---- ops ------------------------------------------------------------------------------------- */

/* Executes the op for the lanes of `mask` (active, guard applied, never 0). */
typedef void op_function(struct warp *warp, const struct op *op, uint32_t mask);

enum {
    OP_OWN_POISON = 1, /* the function sets the poison of its results itself */
    OP_CONTROL = 2,    /* may change warp->next, block, exit or split the warp */
    OP_CONVERGED = 4,  /* .aligned: needs all live lanes of the warp. The interpreter parks a group
                          until they arrive; a function with a member mask checks it itself */
    OP_TENSOR = 8,     /* an MMA; counted */
    OP_SEEDS_CAS = 16, /* a load that exec/seeds.c marked: counts as relaxed */
    OP_VOLATILE = 32,  /* a volatile access that may be one of shared memory */
    OP_GIVES = 64,     /* exec/depends.c: a plain load whose value reaches a strong write, and
                          the write; a plain store in such functions: it is compared */
    OP_TAKES = 128,    /* a strong read whose value reaches a plain store, and the store */
    OP_CACHED = 256,   /* ld.nc: may miss what the kernel has written */
    OP_MIX_SHIFT = 9   /* bits above: enum mix_family of the instruction (report/perf.h) */
};

/* One instruction, ready to run; its index is the instruction's index in the function. */
struct op {
    op_function *run;
    uint32_t d, a, b, c; /* offsets of rows (predicates: indices), by convention; unused: 0 */
    uint32_t e, f;
    uint32_t guard;      /* index of a predicate; 0: always */
    uint32_t guard_flip; /* ALL_LANES for @!p, else 0 */
    uint32_t target;     /* of a branch: index of an op */
    uint32_t flags;
    int64_t imm;       /* an offset, an immediate ... */
    const void *extra; /* a struct private to the family, in the module's arena */
    const struct ptx_instruction *in;
    /* Of st, before its bytes move: lanes that change the value in memory, or share the address
     * with such a lane. NULL (all other ops): all lanes count. */
    uint32_t (*changes)(struct warp *warp, const struct op *op, const struct access *access);
};

/* Indices of predicates; PREDICATE_NOT is set in the index of a negated source. */
enum { PREDICATE_TRUE = 0, PREDICATE_CARRY = 1 /* CC.CF of add.cc */, PREDICATE_NOT = 1 << 30 };

/* ---- kernels --------------------------------------------------------------------------------- */

enum special_register {
    SPECIAL_TID_X,
    SPECIAL_TID_Y,
    SPECIAL_TID_Z,
    SPECIAL_NTID_X,
    SPECIAL_NTID_Y,
    SPECIAL_NTID_Z,
    SPECIAL_CTAID_X,
    SPECIAL_CTAID_Y,
    SPECIAL_CTAID_Z,
    SPECIAL_NCTAID_X,
    SPECIAL_NCTAID_Y,
    SPECIAL_NCTAID_Z,
    SPECIAL_LANEID,
    SPECIAL_WARPID,
    SPECIAL_NWARPID,
    SPECIAL_SMID,
    SPECIAL_NSMID,
    SPECIAL_GRIDID,
    SPECIAL_LANEMASK_EQ,
    SPECIAL_LANEMASK_LE,
    SPECIAL_LANEMASK_LT,
    SPECIAL_LANEMASK_GE,
    SPECIAL_LANEMASK_GT,
    SPECIAL_CLUSTERID_X,
    SPECIAL_CLUSTERID_Y,
    SPECIAL_CLUSTERID_Z,
    SPECIAL_NCLUSTERID_X,
    SPECIAL_NCLUSTERID_Y,
    SPECIAL_NCLUSTERID_Z,
    SPECIAL_CLUSTER_CTAID_X,
    SPECIAL_CLUSTER_CTAID_Y,
    SPECIAL_CLUSTER_CTAID_Z,
    SPECIAL_CLUSTER_NCTAID_X,
    SPECIAL_CLUSTER_NCTAID_Y,
    SPECIAL_CLUSTER_NCTAID_Z,
    SPECIAL_CLUSTER_CTARANK,
    SPECIAL_CLUSTER_NCTARANK,
    SPECIAL_IS_EXPLICIT_CLUSTER,
    SPECIAL_DYNAMIC_SMEM_SIZE,
    SPECIAL_TOTAL_SMEM_SIZE,
    SPECIAL_CLOCK,
    SPECIAL_CLOCK_HI,
    SPECIAL_CLOCK64,
    SPECIAL_GLOBALTIMER,
    SPECIAL_GLOBALTIMER_LO,
    SPECIAL_GLOBALTIMER_HI,
    SPECIAL_ENVREG1,
    SPECIAL_ENVREG2,
    SPECIAL_COUNT
};

struct special_row {
    enum special_register which;
    uint32_t row, width; /* 4 or 8 bytes a lane */
};

/* A function, decoded. Called functions are kernels without entry. */
struct kernel {
    const struct ptx_function *function;
    const struct vgpu_module *module;
    struct op *code;
    uint32_t code_count;
    uint32_t row_bytes;                 /* of a warp; the first 256 are a row of zeros */
    uint32_t predicate_count;           /* [0] is always true, [1] is the carry flag */
    const unsigned char *constants;     /* row_bytes: what a warp's rows start with */
    const struct special_row *specials; /* rows to fill when a warp starts; clocks: when read */
    uint32_t special_count;
    uint32_t local_bytes;         /* of a thread: its variables and those of what it calls */
    struct ptx_variable **shared; /* its shared variables, those of functions it calls included */
    uint32_t shared_count;
    uint32_t shared_static;   /* bytes up to the end of its variables, gaps between them included */
    uint32_t shared_declared; /* bytes of the variables alone: what counts against the limits */
    uint32_t shared_dynamic;  /* where dynamic shared memory begins: offset from SHARED_BASE */
    uint32_t tensor_count;
};

struct vgpu_module {
    vgpu *gpu;
    struct ptx_module *ptx;
    char *text;
    size_t text_size;
    struct kernel **kernels; /* one for each function with a body, in order of functions */
    uint32_t kernel_count;
    bool programmatic;    /* a function of it executes griddepcontrol */
    vgpu_pointer globals; /* .global and .const variables lie in one allocation each */
};

/* The function of that name; NULL: none. */
struct kernel *module_kernel(const struct vgpu_module *module, const char *name);
/* Likewise, or a declaration if there is no body. */
const struct ptx_function *module_function(const struct ptx_module *ptx, const char *name);

/* Addresses of functions (ptx_function.address) lie in no memory. */
#define FUNCTION_BASE 0x0000080000000000ULL
enum { FUNCTION_STEP = 16 };
/* The function at the address; NULL: none. */
const struct kernel *kernel_at(const struct vgpu_module *module, uint64_t address);

/* Addresses of variables (ptx_variable.address): shared ones start at SHARED_BASE; local ones at 0,
 * those of one function after those of another; call parameters at CALL_PARAM_BASE. A gap of
 * SHARED_GAP bytes follows each variable: an overrun hits the gap and is reported. */
enum { SHARED_BASE = 0x400, CALL_PARAM_BASE = 1 << 20, SHARED_GAP = 16 };

/* Calls `each` for the variables of a space that the kernel can access: in shared memory kernel->
 * shared, else those of the module, its own, and those of functions. */
typedef void variable_function(void *state, const struct ptx_variable *variable);
void kernel_variables(const struct kernel *kernel, enum ptx_space space, variable_function *each,
                      void *state);

#endif /* VGPU_MACHINE_KERNEL_H */
