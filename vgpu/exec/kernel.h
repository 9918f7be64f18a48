/* SPDX-License-Identifier: Apache-2.0
 *
 * kernel.h - what a module becomes before it runs: ops, rows, kernels; and what decodes it.
 *
 * Invariant: after decoding nothing of a kernel changes but through warps: any number of host
 * threads may run it.
 */
#ifndef VGPU_EXEC_KERNEL_H
#define VGPU_EXEC_KERNEL_H

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

struct warp;

/* ============================ ops ============================================================= */

struct op;

/* Executes the op for the lanes of `mask` (active, guard applied, never 0). */
typedef void op_function(struct warp *warp, const struct op *op, uint32_t mask);

enum {
    OP_OWN_POISON = 1, /* the function sets the poison of its results itself */
    OP_CONTROL = 2,    /* may change warp->next, block, exit or split the warp */
    OP_CONVERGED = 4,  /* .aligned or .sync with a member mask: needs its lanes together (exec.c
                          parks a group until the others of the warp that are alive arrive; a
                          function with a member mask looks at it itself) */
    OP_TENSOR = 8,     /* a matrix product; counted */
    OP_MIX_SHIFT = 8   /* above it: the enum mix_family of the instruction (report/perf.h) */
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
    const void *extra; /* a struct of the family's own, in the module's arena */
    const struct ptx_instruction *in;
};

/* ============================ decoding ======================================================== */

struct decoder; /* one function being decoded */

/* Fills the op (run, operands, flags; guard and in are set already). False: decode_fail was called.
 * A form that the family does not know must fail, whatever it looks like. */
typedef bool decode_function(struct decoder *decoder, const struct ptx_instruction *in,
                             struct op *op);

/* The families, by opcode (ops/decode.c has the table):
 *   ops/int.c    add sub mul mad mul24 mad24 sad div rem abs neg min max (integer types) bfe bfi
 *               bfind brev clz popc prmt fns dp4a dp2a lop3 shf and or xor not cnot shl shr add.cc
 *               addc sub.cc subc mad.cc madc
 *   ops/float.c  the same names with f32 and f64, fma, rcp sqrt rsqrt sin cos lg2 ex2 tanh copysign
 *               testp
 *   ops/half.c   the same with f16 f16x2 bf16 bf16x2
 *   ops/move.c   mov selp slct setp set cvt cvt.pack szext
 *   ops/memory.c ld ldu st atom red cvta isspacep prefetch prefetchu discard applypriority
 *               createpolicy mapa getctarank st.async red.async
 *   ops/warp.c   shfl vote activemask match redux elect
 *   ops/control.c bra brx call ret exit trap brkpt nanosleep bar barrier fence membar pmevent
 *               setmaxnreg griddepcontrol
 *   async/cp_async.c cp.async mbarrier;  async/tma.c cp.async.bulk cp.reduce.async.bulk tensormap
 *   ops/ldmatrix.c ldmatrix stmatrix movmatrix mma wmma;  async/wgmma_ops.c wgmma
 * cp, fence and cvt have one decode function each that looks at the modifiers and passes on. */
decode_function decode_int, decode_float, decode_half, decode_move, decode_memory, decode_warp,
    decode_control, decode_cp_async, decode_mbarrier, decode_bulk, decode_matrix, decode_wgmma,
    decode_tensor_map, decode_store_async;

/* Writes the error "unknown form" with the instruction's line unless `format` says better; returns
 * false. */
bool decode_fail(struct decoder *decoder, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The row of a source operand as a value of `type` (its width decides: immediates are converted and
 * become constant rows; special registers and addresses of variables become rows). A register may
 * be wider than the type where PTX allows it. 0 and decode_fail: it cannot be one. */
uint32_t decode_source(struct decoder *decoder, const struct ptx_operand *operand,
                       enum ptx_type type);
/* The row of a register that is written; a sink gets a row that nobody reads. */
uint32_t decode_result(struct decoder *decoder, const struct ptx_operand *operand,
                       enum ptx_type type);
/* Bytes of a lane in the operand's row: 2, 4 or 8. Not a register: 0. */
uint32_t decode_width(const struct decoder *decoder, const struct ptx_operand *operand);
/* Index of a predicate; a negated source gives its index with PREDICATE_NOT set. true/false
 * immediates (wgmma's scale-d) are PREDICATE_TRUE and that with PREDICATE_NOT. */
uint32_t decode_predicate(struct decoder *decoder, const struct ptx_operand *operand);
enum { PREDICATE_TRUE = 0, PREDICATE_CARRY = 1 /* CC.CF of add.cc */, PREDICATE_NOT = 1 << 30 };
/* [x + imm]: the row of x (64 bits wide, also for shared addresses held in 32-bit registers:
 * *narrow says so; then the row is 32 bits wide) and the constant. Absolute addresses and variables
 * are constant rows. */
bool decode_address(struct decoder *decoder, const struct ptx_operand *operand, uint32_t *row,
                    bool *narrow, int64_t *offset);
/* A constant row that holds `bits` in every lane, `width` bytes each. */
uint32_t decode_constant(struct decoder *decoder, uint64_t bits, uint32_t width);
/* Zeroed memory of the module's arena; NULL and decode_fail: none left. */
void *decode_alloc(struct decoder *decoder, size_t size);
/* Is the word one of the list's, which have blanks between them? */
bool is_listed(const char *list, const char *word);
/* Are all modifiers listed? A list that begins with "* " stands for the names of types too. */
bool only_modifiers(const struct ptx_instruction *in, const char *allowed);
/* The same for those from number `from` on; else decode_fail names the first that is not. */
bool decode_modifiers(struct decoder *decoder, const struct ptx_instruction *in, uint32_t from,
                      const char *allowed);
/* Names that the instruction's modifiers spell; true and *index if one of `names` (ends with NULL)
 * is among them. */
bool decode_choice(const struct ptx_instruction *in, const char *const *names, uint32_t *index);
/* The function being decoded, for its variables and other functions. */
const struct ptx_function *decode_current(const struct decoder *decoder);
const struct ptx_module *decode_module(const struct decoder *decoder);

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
    uint32_t local_bytes;     /* of a thread: its variables and those of what it calls */
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
    vgpu_pointer globals; /* .global and .const variables lie in one allocation each */
};

/* ops/decode.c: decodes every function, after placing its shared, local and call-parameter
 * variables (ptx_variable.address: shared from SHARED_BASE on; local from 0 on, each function's
 * behind the others'; parameters of calls from CALL_PARAM_BASE on). Gaps of SHARED_GAP bytes lie
 * between shared variables, so that running out of one is noticed. The addresses of .global and
 * .const variables are set before by the caller. */
enum { CALL_PARAM_BASE = 1 << 20, SHARED_GAP = 16 };
vgpu_status module_decode(struct vgpu_module *module, struct ptx_error *error);
struct kernel *module_kernel(const struct vgpu_module *module, const char *name);

#endif /* VGPU_EXEC_KERNEL_H */
