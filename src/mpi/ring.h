/* SPDX-License-Identifier: Apache-2.0
 *
 * ring.h - a plan of attn_mpi.h, as the files of libattn_mpi see it.
 *
 *   check.c     what a problem and a call may be
 *   pieces.c    which rows see which keys, as calls of libattn
 *   plan.c      plans of libattn, workspace
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

enum half { ALL, FIRST, SECOND };

/* Rows of a rank and keys of another (pieces.c), which are one call. */
struct piece {
    enum half q, kv;     /* SECOND: from the middle on */
    bool causal, window; /* else they hide nothing in it */
    bool seen;
    bool begins;      /* the sums of its rows and of its keys */
    int64_t distance; /* q_offset - kv_offset; 0 where nothing counts from positions */
    attn_plan *plan;
    bool shared; /* the plan is that of an earlier piece */
};

enum { PIECES_MOST = 4 };
struct pieces {
    struct piece items[PIECES_MOST];
    int count;
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
    struct pieces *pieces;    /* by the rank that has the keys */
    int steps;                /* of the ring: chunks that some rank sees travel, no others */
    struct sum o;             /* forward */
    struct sum dq, dk, dv;    /* backward */
    attn_plan *sink, *slopes; /* backward: sums of their gradients */
    size_t attend_workspace;
    size_t workspace;
};

/* Gradients of a chunk of keys, which travel with it. */
struct sums {
    float *dk, *dv;
};

/* Where everything lies in the workspace. */
struct memory {
    char *k[2], *v[2];              /* chunks that arrive */
    char *part, *part_k, *part_v;   /* of O or dQ, dK, dV, as the plans of libattn write them */
    float *lse_part;                /* forward */
    float *sink_part, *slopes_part; /* backward */
    float *sum;                     /* of O or dQ */
    struct sums sums[2];            /* backward */
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

/* ---- check.c --------------------------------------------------------------------------------- */

/* Options and problem of this rank; fills the plan with them. */
attn_status check_local(const attn_problem *problem, const attn_mpi_options *options,
                        attn_context *context, attn_mpi_plan *plan, attn_error *error);

/* Whether they agree with those of the other ranks. */
attn_status compare_ranks(const attn_mpi_plan *plan, attn_error *error);

/* Checks what a call was given, on this rank. */
void call_begin(struct call *call, attn_direction direction, void *workspace, size_t size);

/* ---- pieces.c -------------------------------------------------------------------------------- */

/* The pieces of a rank's rows and another's keys, those that begin first; returns their number.
 * Without plans. */
int pieces_of(const attn_mpi_plan *plan, int rank, int source, struct piece pieces[PIECES_MOST]);
int steps_of(const attn_mpi_plan *plan);

/* The plan of a piece. */
attn_status make_attend(attn_context *context, attn_mpi_plan *plan, struct piece *piece,
                        attn_error *error);

/* Bytes before a half of a tensor with the problem's dtype. */
size_t before_half(const attn_mpi_plan *plan, const struct sum *shape, enum half half);

/* What is left of the promised alignment at an offset in bytes. */
int32_t alignment_at(int32_t alignment, size_t offset);

/* ---- plan.c ---------------------------------------------------------------------------------- */

/* With a base of NULL: the size alone. */
size_t memory_layout(const attn_mpi_plan *plan, char *base, struct memory *memory);

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
