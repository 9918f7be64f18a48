/* SPDX-License-Identifier: Apache-2.0
 *
 * ring.c - attn_mpi_forward and attn_mpi_backward.
 *
 * In step s a rank has the keys of rank - s. It sends them to the next rank and receives those of
 * the following step, both posted before the step's kernels are launched and awaited after them.
 * Step 0 is of the rank's own keys, which all of its rows see (of a causal mask, themselves at
 * least): it begins the sums.
 *
 * Invariant: no buffer is given to MPI while a kernel may use it: call_wait() is before each post.
 */
#include "mpi/ring.h"

static int source_of(const attn_mpi_plan *plan, int step) {
    return (plan->rank + plan->ranks - step) % plan->ranks;
}

static const void *add(const void *pointer, size_t bytes) {
    return (const char *)pointer + bytes;
}

/* Records the first failure of this rank; later kernels are not launched. */
static bool launched(struct call *call, attn_status status, const attn_error *error) {
    if (status != ATTN_OK && call->status == ATTN_OK) {
        call->status = fail(&call->error, status, "%s", error->text);
    }
    return call->status == ATTN_OK;
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* The keys of a step: the caller's, then those that arrived. */
static const void *keys(const struct call *call, int step) {
    return step == 0 ? call->t->k : call->m.k[(step - 1) % 2];
}

static const void *values(const struct call *call, int step) {
    return step == 0 ? call->t->v : call->m.v[(step - 1) % 2];
}

enum { TAG_KEYS = 1, TAG_SUMS = 3 };

static attn_status post_keys(struct call *call, int step, MPI_Request requests[4],
                             attn_error *error) {
    const attn_mpi_plan *plan = call->plan;
    const MPI_Datatype rows[2] = {plan->row_k, plan->row_v};
    const void *const from[2] = {keys(call, step), values(call, step)};
    void *const to[2] = {call->m.k[step % 2], call->m.v[step % 2]};
    call_wait(call);
    return post(plan, rows, from, to, TAG_KEYS, requests, error);
}

/* ---- a piece --------------------------------------------------------------------------------- */

/* What forward and backward read. */
static attn_tensors inputs(const struct call *call, const struct piece *piece, int step) {
    const attn_mpi_plan *plan = call->plan;
    attn_tensors t;
    attn_tensors_init(&t);
    t.q = add(call->t->q, before_half(plan, &plan->dq, piece->q));
    t.k = add(keys(call, step), before_half(plan, &plan->dk, piece->kv));
    t.v = add(values(call, step), before_half(plan, &plan->dv, piece->kv));
    t.sink = call->t->sink;
    t.alibi_slopes = call->t->alibi_slopes;
    return t;
}

/* Rows of LSE before a half. */
static size_t rows_before(const attn_mpi_plan *plan, enum half half) {
    return half == SECOND ? (size_t)(plan->p.seq_q / 2) : 0;
}

/* Adds a part to the sum of a tensor like it, or begins it. */
static attn_status add_part(struct call *call, const struct sum *shape, enum half half, bool begins,
                            const char *parts, const float *lse_part, float *sum, float *lse,
                            attn_error *why) {
    const void *part = add(parts, before_half(call->plan, shape, half));
    const float *const lse_first = lse;
    attn_plan *plan = half == ALL ? shape->whole : shape->half;
    sum += half == SECOND ? shape->rows_before : 0;
    return begins ? attn_merge(plan, &part, lse != NULL ? &lse_first : NULL, 1, sum, NULL,
                               call->stream, why)
                  : attn_accumulate(plan, part, lse_part, sum, lse, NULL, call->stream, why);
}

/* ---- forward --------------------------------------------------------------------------------- */

/* Its part of O into the sum; without one (one rank), into O. */
static void forward_piece(struct call *call, const struct piece *piece, int step) {
    const attn_mpi_plan *plan = call->plan;
    const struct memory *m = &call->m;
    const size_t row = rows_before(plan, piece->q);
    char *o = m->sum != NULL ? m->part : call->t->o;
    float *lse_part = piece->begins ? call->t->lse : m->lse_part;
    attn_error why;
    attn_tensors t = inputs(call, piece, step);
    t.o = o + before_half(plan, &plan->o, piece->q);
    t.lse = lse_part + row;
    if (call->status == ATTN_OK &&
        launched(
            call,
            attn_forward(piece->plan, &t, m->attend, plan->attend_workspace, call->stream, &why),
            &why) &&
        m->sum != NULL) {
        launched(call,
                 add_part(call, &plan->o, piece->q, piece->begins, m->part, lse_part + row, m->sum,
                          call->t->lse + row, &why),
                 &why);
    }
}

static void forward_step(struct call *call, int step) {
    const struct pieces *pieces = &call->plan->pieces[source_of(call->plan, step)];
    for (int i = 0; i < pieces->count; i++) {
        forward_piece(call, &pieces->items[i], step);
    }
}

static attn_status forward(struct call *call, attn_error *error) {
    const attn_mpi_plan *plan = call->plan;
    attn_error why;
    for (int step = 0; step < plan->steps; step++) {
        MPI_Request requests[4];
        const bool more = step + 1 < plan->steps;
        attn_status status = more ? post_keys(call, step, requests, error) : ATTN_OK;
        if (status != ATTN_OK) {
            return status;
        }
        forward_step(call, step);
        status = more ? wait_all(requests, 4, error) : ATTN_OK;
        if (status != ATTN_OK) {
            return status;
        }
    }
    if (call->status == ATTN_OK && call->m.sum != NULL) {
        const void *const sum = call->m.sum;
        const float *const lse = call->t->lse;
        launched(call,
                 attn_merge(plan->o.finish, &sum, &lse, 1, call->t->o, NULL, call->stream, &why),
                 &why);
    }
    return ATTN_OK;
}

/* ---- backward -------------------------------------------------------------------------------- */

/* Gradients of sinks or slopes: those of the first piece are the sum's beginning. */
static void add_heads(struct call *call, const attn_plan *plan, bool first, const float *part,
                      float *sum) {
    attn_error why;
    if (call->status == ATTN_OK && sum != NULL && !first) {
        launched(call, attn_accumulate(plan, part, NULL, sum, NULL, NULL, call->stream, &why),
                 &why);
    }
}

/* Parts of dQ, dK, dV, those of dQ into their sum; without one (one rank) into dQ, dK, dV. */
static void backward_piece(struct call *call, const struct piece *piece, int step, bool first) {
    const attn_mpi_plan *plan = call->plan;
    const struct memory *m = &call->m;
    const bool alone = m->sum == NULL;
    const size_t at_o = before_half(plan, &plan->o, piece->q);
    const attn_tensors *given = call->t;
    attn_error why;
    attn_tensors t = inputs(call, piece, step);
    t.o = (char *)given->o + at_o;
    t.d_o = add(given->d_o, at_o);
    t.lse = given->lse + rows_before(plan, piece->q);
    t.dq = (char *)(alone ? given->dq : m->part) + before_half(plan, &plan->dq, piece->q);
    t.dk = (char *)(alone ? given->dk : m->part_k) + before_half(plan, &plan->dk, piece->kv);
    t.dv = (char *)(alone ? given->dv : m->part_v) + before_half(plan, &plan->dv, piece->kv);
    float *const d_sink = plan->sink != NULL && piece->begins ? given->d_sink : NULL;
    float *const d_slopes = plan->slopes != NULL ? given->d_alibi_slopes : NULL;
    t.d_sink = d_sink == NULL || first ? d_sink : m->sink_part;
    t.d_alibi_slopes = d_slopes == NULL || first ? d_slopes : m->slopes_part;
    if (call->status != ATTN_OK ||
        !launched(
            call,
            attn_backward(piece->plan, &t, m->attend, plan->attend_workspace, call->stream, &why),
            &why) ||
        alone) {
        return;
    }
    launched(call,
             add_part(call, &plan->dq, piece->q, piece->begins, m->part, NULL, m->sum, NULL, &why),
             &why);
    add_heads(call, plan->sink, first, m->sink_part, d_sink);
    add_heads(call, plan->slopes, first, m->slopes_part, d_slopes);
}

static void finish(struct call *call, const struct sum *sum, const float *total, void *result) {
    const void *const from = total;
    attn_error why;
    if (call->status == ATTN_OK) {
        launched(call, attn_merge(sum->finish, &from, NULL, 1, result, NULL, call->stream, &why),
                 &why);
    }
}

/* The parts of dK and dV of a piece, into the sums of the step's keys. */
static void add_keys(struct call *call, const struct piece *piece, const struct sums *sums) {
    const attn_mpi_plan *plan = call->plan;
    const struct memory *m = &call->m;
    attn_error why;
    if (call->status == ATTN_OK && launched(call,
                                            add_part(call, &plan->dk, piece->kv, piece->begins,
                                                     m->part_k, NULL, sums->dk, NULL, &why),
                                            &why)) {
        launched(call,
                 add_part(call, &plan->dv, piece->kv, piece->begins, m->part_v, NULL, sums->dv,
                          NULL, &why),
                 &why);
    }
}

/* The sums of a step's keys arrive while its first piece is computed (requests of the step before),
 * or begin here; they are sent on with what the step adds. */
static attn_status backward_step(struct call *call, int step, MPI_Request arriving[4],
                                 attn_error *error) {
    const attn_mpi_plan *plan = call->plan;
    const struct pieces *pieces = &plan->pieces[source_of(plan, step)];
    const struct sums *sums = &call->m.sums[step % 2];
    const int count = step < plan->steps ? pieces->count : 0;
    for (int i = 0; i < count || i == 0; i++) {
        if (i < count) {
            backward_piece(call, &pieces->items[i], step, step == 0 && i == 0);
        }
        const attn_status status = step > 0 && i == 0 ? wait_all(arriving, 4, error) : ATTN_OK;
        if (status != ATTN_OK) {
            return status;
        }
        if (i < count) {
            add_keys(call, &pieces->items[i], sums);
        }
    }
    const struct sums *next = &call->m.sums[(step + 1) % 2];
    const MPI_Datatype rows[2] = {plan->sum_k, plan->sum_v};
    const void *const from[2] = {sums->dk, sums->dv};
    void *const to[2] = {next->dk, next->dv};
    call_wait(call);
    return post(plan, rows, from, to, TAG_SUMS, arriving, error);
}

static attn_status backward(struct call *call, attn_error *error) {
    const attn_mpi_plan *plan = call->plan;
    MPI_Request arriving[4];
    if (plan->ranks == 1) {
        backward_piece(call, &plan->pieces[0].items[0], 0, true);
        return ATTN_OK;
    }
    for (int step = 0; step < plan->ranks; step++) {
        MPI_Request requests[4];
        const bool more = step + 1 < plan->steps;
        attn_status status = more ? post_keys(call, step, requests, error) : ATTN_OK;
        if (status == ATTN_OK) {
            status = backward_step(call, step, arriving, error);
        }
        if (status == ATTN_OK && more) {
            status = wait_all(requests, 4, error);
        }
        if (status != ATTN_OK) {
            return status;
        }
    }
    const attn_status status = wait_all(arriving, 4, error); /* the rank's own sums are back */
    if (status == ATTN_OK) {
        const struct sums *mine = &call->m.sums[plan->ranks % 2];
        finish(call, &plan->dq, call->m.sum, call->t->dq);
        finish(call, &plan->dk, mine->dk, call->t->dk);
        finish(call, &plan->dv, mine->dv, call->t->dv);
    }
    return status;
}

/* ---- entry points ---------------------------------------------------------------------------- */

static attn_status run(const attn_mpi_plan *plan, attn_direction direction,
                       attn_status (*steps)(struct call *, attn_error *),
                       const attn_tensors *tensors, void *workspace, size_t workspace_size,
                       void *stream, attn_error *error) {
    struct call call = {.plan = plan, .t = tensors, .stream = stream, .error = {""}};
    if (plan == NULL) {
        return fail(error, ATTN_INVALID, "plan = NULL, expected one of attn_mpi_plan_create");
    }
    call_begin(&call, direction, workspace, workspace_size);
    attn_status status = agree(plan->comm, call.status, &call.error);
    if (status == ATTN_OK) {
        status = steps(&call, &call.error);
        status = status != ATTN_OK ? status : agree(plan->comm, call.status, &call.error);
    }
    return fail(error, status, "%s", call.error.text);
}

attn_status attn_mpi_forward(const attn_mpi_plan *plan, const attn_tensors *tensors,
                             void *workspace, size_t workspace_size, void *stream,
                             attn_error *error) {
    return run(plan, ATTN_FORWARD, forward, tensors, workspace, workspace_size, stream, error);
}

attn_status attn_mpi_backward(const attn_mpi_plan *plan, const attn_tensors *tensors,
                              void *workspace, size_t workspace_size, void *stream,
                              attn_error *error) {
    return run(plan, ATTN_BACKWARD, backward, tensors, workspace, workspace_size, stream, error);
}
