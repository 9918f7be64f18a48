/* SPDX-License-Identifier: Apache-2.0
 *
 * attn_mpi.h - attention over a sequence that is spread over the ranks of an MPI communicator
 * (context parallelism). libattn_mpi is a thin library over libattn and MPI; libattn itself needs
 * no MPI.
 *
 *     attn_mpi_options_init(&options);
 *     options.method = ATTN_MPI_ZIGZAG;
 *     attn_mpi_plan_create(ctx, MPI_COMM_WORLD, &p, &options, &plan, &why); // p, t: of this rank's
 *     size_t size = attn_mpi_workspace_size(plan);                          // chunk
 *     void *workspace = aligned_alloc(attn_mpi_workspace_alignment(plan), size);
 *     attn_mpi_forward(plan, &t, workspace, size, NULL, &why);
 *
 * Each rank passes its chunk of Q, K and V and gets its chunk of O and LSE (backward: of dQ, dK and
 * dV). In n steps the chunks of K and V travel around the ring of ranks; while a rank computes with
 * one chunk, the next arrives. The partial results of a rank are merged in fp32 (attn_accumulate),
 * in ring order. In backward, fp32 sums of dK and dV travel with their chunk. The bits depend on
 * the inputs, the method and the number of ranks, not on timing.
 *
 * Every function but the queries of a plan is collective: all ranks call it, in the same order. An
 * argument that is wrong on one rank, or that differs between ranks, gives the same status and
 * sentence on all. MPI's errors are returned, not fatal: the library works on a duplicate of the
 * communicator. After one (ATTN_DEVICE) the plan can only be destroyed. MPI has no timeout: what
 * happens when a rank dies is up to the launcher, and mpirun ends all of them.
 */
#ifndef ATTN_MPI_H
#define ATTN_MPI_H

#include "attn.h"
#include <mpi.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Which rows of the sequence a rank holds, of n ranks. */
typedef enum attn_mpi_method {
    ATTN_MPI_RING = 0,  /* chunk r of n. With a causal mask the last rank has the most work */
    ATTN_MPI_ZIGZAG = 1 /* chunks r and 2n-1-r of 2n, one after the other: with a causal mask all
                           ranks have the same work */
} attn_mpi_method;

/* The position in the sequence of a row of a rank's chunk of `rows` rows. */
static inline int64_t attn_mpi_position(attn_mpi_method method, int rank, int ranks, int64_t rows,
                                        int64_t row) {
    const int64_t half = rows / 2;
    return method == ATTN_MPI_RING ? rank * rows + row
           : row < half            ? rank * half + row
                                   : (2 * ranks - 1 - rank) * half + (row - half);
}

typedef struct attn_mpi_options {
    size_t size;               /* set by attn_mpi_options_init; every other default is zero */
    attn_mpi_method method;    /* [ATTN_MPI_RING] */
    attn_direction direction;  /* ATTN_FORWARD or ATTN_BACKWARD [ATTN_FORWARD] */
    int (*wait)(void *stream); /* for a context of a GPU: waits for the stream, 0 on success. The
                                  MPI must be CUDA-aware, since it gets device addresses. NULL: the
                                  tensors are in the host's memory [NULL] */
} attn_mpi_options;

/* Fills `size` bytes with the defaults. NULL is fine. */
ATTN_API void attn_mpi_options_init_sized(attn_mpi_options *options, size_t size);

static inline void attn_mpi_options_init(attn_mpi_options *options) {
    attn_mpi_options_init_sized(options, sizeof *options);
}

typedef struct attn_mpi_plan attn_mpi_plan;

/* Makes a plan. Collective over `comm`, an intracommunicator; MPI_Init was called. problem: this
 * rank's chunk: seq_q and seq_kv are its rows and keys, equal on all ranks. Causal mask, window and
 * ALiBi are those of the whole sequence. A causal mask needs seq_q = seq_kv; zigzag needs an even
 * number of both. Supported: fp32, fp16 and bf16, GQA, scale, softcap, windows, ALiBi, sinks, both
 * layouts; tensors are contiguous (ATTN_AUTO strides). Refused, as ATTN_UNSUPPORTED: bias, masks,
 * packed, paged, fp8, used lengths, offsets. options may be NULL. On failure *plan is NULL. The
 * plan must not outlive its context, and is destroyed before MPI_Finalize. */
ATTN_API attn_status attn_mpi_plan_create(attn_context *context, MPI_Comm comm,
                                          const attn_problem *problem,
                                          const attn_mpi_options *options, attn_mpi_plan **plan,
                                          attn_error *error);

/* Collective over the plan's ranks. NULL is fine. */
ATTN_API void attn_mpi_plan_destroy(attn_mpi_plan *plan);

/* Bytes that a call needs in the device's memory, and their alignment. They may hold anything.
 * Forward: two chunks of K and V, O twice (once in fp32). Backward: two chunks of K and V, each
 * gradient in its dtype, and in fp32 dQ once and dK and dV twice. */
ATTN_API size_t attn_mpi_workspace_size(const attn_mpi_plan *plan);
ATTN_API size_t attn_mpi_workspace_alignment(const attn_mpi_plan *plan);

/* Computes this rank's chunk of O and LSE from q, k and v. lse is needed. All other rules are those
 * of attn_forward; one call at a time for a plan. With `wait` it returns when all communication is
 * done and the last kernels are in the stream. */
ATTN_API attn_status attn_mpi_forward(const attn_mpi_plan *plan, const attn_tensors *tensors,
                                      void *workspace, size_t workspace_size, void *stream,
                                      attn_error *error);

/* Computes this rank's chunk of dQ, dK and dV from q, k, v, d_o, and o and lse as attn_mpi_forward
 * left them, with a plan of direction = ATTN_BACKWARD. d_sink and d_alibi_slopes, if given, get
 * this rank's share; the gradient is the sum over ranks, as for every shared parameter. d_sink is
 * refused with a window and seq_q != seq_kv. */
ATTN_API attn_status attn_mpi_backward(const attn_mpi_plan *plan, const attn_tensors *tensors,
                                       void *workspace, size_t workspace_size, void *stream,
                                       attn_error *error);

#ifdef __cplusplus
}
#endif

#endif /* ATTN_MPI_H */
