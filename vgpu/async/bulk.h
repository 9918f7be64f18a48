/* SPDX-License-Identifier: Apache-2.0
 *
 * bulk.h - bulk copies (cp.async.bulk, TMA): shared by bulk_ops.c (decoding), bulk.c (issue,
 * groups), tma.c (the bytes that move) and reduce.c (reductions in memory).
 *
 * Invariant: a transfer was checked at its issue: its shared memory exists and is aligned, its
 * tensor map is valid.
 */
#ifndef VGPU_ASYNC_BULK_H
#define VGPU_ASYNC_BULK_H

#include "async/async.h"
#include "async/tensor_map.h"

enum { MAX_CLUSTER = 16, PIECE = 16 /* bytes: the smallest that moves */ };

enum bulk_kind {
    BULK_LOAD,    /* global -> shared */
    BULK_STORE,   /* shared -> global */
    BULK_SHARED,  /* shared -> shared of the cluster */
    BULK_PREFETCH /* global -> L2: nothing to do */
};

enum reduction {
    REDUCE_NONE,
    REDUCE_ADD,
    REDUCE_MIN,
    REDUCE_MAX,
    REDUCE_INC,
    REDUCE_DEC,
    REDUCE_AND,
    REDUCE_OR,
    REDUCE_XOR
};

/* op->extra */
struct bulk_form {
    enum bulk_kind kind;
    uint32_t rank; /* of the tensor; 0: plain bytes */
    struct async_address shared, barrier;
    struct async_address global;           /* or the tensor map; BULK_SHARED: the source */
    int shared_space;                      /* of the destination (loads) or the source (stores) */
    int map_space;                         /* of prefetch.tensormap */
    uint32_t coordinates[TENSOR_MAP_RANK]; /* rows */
    uint32_t size;                         /* row: bytes of a plain copy */
    uint32_t multicast;                    /* row of 16 bits; 0: none */
    enum reduction reduction;
    enum ptx_type type; /* of a plain reduction */
};

struct transfer {
    struct transfer *next; /* stores: in the list of their warp */
    const struct op *op;
    struct warp *warp;
    uint32_t lane, group;
    struct pending *pending;
    struct agent *reader;               /* of shared memory */
    struct agent *writers[MAX_CLUSTER]; /* of shared memory by rank; [0]: of global memory */
    uint64_t global, bytes;             /* plain: address; bytes of shared memory */
    uint32_t shared, source, barrier;   /* offsets, as PTX has them */
    struct cta *cta;                    /* whose `shared` it is, if it is one CTA's */
    uint32_t ranks;                     /* that a load writes */
    struct tensor_map map;              /* where the form has a rank */
    int32_t coordinates[TENSOR_MAP_RANK];
};

op_function bulk_issue, bulk_run_prefetch_map, bulk_run_commit, bulk_run_wait;

/* Reports an access of the transfer's shared memory (swizzled: of the pieces it really touches) at
 * an offset of a CTA. uninitialised may be NULL. */
bool bulk_touch_shared(const struct transfer *transfer, struct cta *cta, uint32_t offset,
                       enum access_kind kind, struct agent *agent, bool *uninitialised);
/* Move the bytes and finish the agents; called when the transfer completes. */
void bulk_load(struct transfer *transfer);
void bulk_store(struct transfer *transfer, struct clock *stored);
void bulk_shared(struct transfer *transfer);

/* PTX_NONE: a tensor of this type cannot be reduced this way. */
enum ptx_type reduce_tensor_type(enum reduction reduction, enum tensor_type type);
bool reduce_has_type(enum reduction reduction, enum ptx_type type, bool in_shared);
/* .add ... among the modifiers. */
bool reduce_named(const struct ptx_instruction *in, enum reduction *reduction);
/* to = to op from, element by element, each atomically. */
void reduce_bytes(unsigned char *to, const unsigned char *from, uint64_t bytes,
                  enum reduction reduction, enum ptx_type type);

#endif /* VGPU_ASYNC_BULK_H */
