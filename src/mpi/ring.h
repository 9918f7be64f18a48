/* SPDX-License-Identifier: Apache-2.0
 *
 * ring.h - a plan of attn_mpi.h, as the files of libattn_mpi see it.
 *
 *   plan.c      checks, plans of libattn, workspace
 *   agree.c     one status and one sentence on all ranks; messages
 *   ring.c      the steps of forward and backward
 *
 * Invariant: a rank that fails locally goes on communicating, so that no other rank waits for it;
 * all of them agree on the status afterwards.
 */
#ifndef ATTN_MPI_RING_H
#define ATTN_MPI_RING_H

#include "attn_mpi.h"
#include "attn_verify.h"

/* How the rows of a rank and a chunk of keys see each other. */
enum kind {
    FULL,
    DIAGONAL,     /* the rank's own keys: causal; of zigzag's two chunks, too */
    FIRST_KEYS,   /* zigzag, keys of a lower rank: all rows see the first half of them */
    LAST_QUERIES, /* zigzag, keys of a higher rank: the second half of the rows sees all of them */
    KINDS,
    UNSEEN = KINDS
};

/* Plans that add up parts of a tensor in fp32. */
struct sum {
    attn_plan *whole, *half; /* a part into the sum: all rows, or half of them */
    attn_plan *finish;       /* the sum as the result's dtype */
    size_t rows_before;      /* elements before that half */
    size_t elements;
};

struct attn_mpi_plan {
    MPI_Comm comm; /* a duplicate that returns errors */
    int rank, ranks;
    attn_problem p; /* of the chunk, resolved */
    attn_mpi_method method;
    attn_direction direction;
    int (*wait)(void *stream);
    int rows_kv; /* of a chunk, counted as messages do: row by row of each head */
    MPI_Datatype row_k, row_v, sum_k, sum_v;
    attn_plan *attend[KINDS];
    struct sum o;          /* forward */
    struct sum dq, dk, dv; /* backward */
    size_t attend_workspace;
    size_t workspace;
};

/* Gradients of a chunk of keys, which travel with it. */
struct sums {
    float *dk, *dv;
};

/* Where everything lies in the workspace. */
struct memory {
    char *k[2], *v[2];            /* chunks that arrive */
    char *part, *part_k, *part_v; /* of O or dQ, dK, dV, as the plans of libattn write them */
    float *lse_part;              /* forward */
    float *sum;                   /* of O or dQ */
    struct sums sums[2];          /* backward */
    char *attend;
};

/* One call: what it was given, and the first thing that went wrong on this rank. */
struct call {
    const attn_mpi_plan *plan;
    const attn_tensors *t;
    struct memory m;
    void *stream;
    attn_status status;
    attn_error error;
};

/* ---- plan.c ---------------------------------------------------------------------------------- */

/* With a base of NULL: the size alone. */
size_t memory_layout(const attn_mpi_plan *plan, char *base, struct memory *memory);

/* Checks what a call was given, on this rank. */
void call_begin(struct call *call, attn_direction direction, void *workspace, size_t size);

enum kind kind_of(const attn_mpi_plan *plan, int source);

/* Bytes before the second half of the rows, in a tensor with the shape of Q, or of O. */
size_t half_of_q(const attn_mpi_plan *plan);
size_t half_of_o(const attn_mpi_plan *plan);

/* ---- agree.c --------------------------------------------------------------------------------- */

__attribute__((format(printf, 3, 4))) attn_status fail(attn_error *error, attn_status status,
                                                       const char *format, ...);
attn_status fail_mpi(attn_error *error, int code, const char *function);

/* The status and sentence of the lowest rank that failed, on all ranks; else ATTN_OK. */
attn_status agree(MPI_Comm comm, attn_status status, attn_error *error);

/* ATTN_OK iff each of the numbers is the same on all ranks. */
attn_status agree_on(MPI_Comm comm, const char *const *names, const int64_t *numbers, int count,
                     attn_error *error);

/* ---- messages, also in agree.c --------------------------------------------------------------- */

/* Posts: rows of two tensors to the next rank, and those of the one before. */
attn_status post(const attn_mpi_plan *plan, const MPI_Datatype rows[2], const void *const from[2],
                 void *const to[2], int tag, MPI_Request requests[4], attn_error *error);
attn_status wait_all(MPI_Request *requests, int count, attn_error *error);

/* Waits for the stream, if tensors are in a device's memory; a failure is the call's. */
void call_wait(struct call *call);

#endif /* ATTN_MPI_RING_H */
