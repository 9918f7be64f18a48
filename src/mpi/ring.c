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

/* ---- forward --------------------------------------------------------------------------------- */

static void attend(struct call *call, int step, void *o, float *lse) {
    const attn_mpi_plan *plan = call->plan;
    const enum kind kind = kind_of(plan, source_of(plan, step));
    const size_t half = kind == LAST_QUERIES ? 1 : 0;
    attn_tensors t;
    attn_error why;
    attn_tensors_init(&t);
    t.q = add(call->t->q, half * half_of_q(plan));
    t.k = keys(call, step);
    t.v = values(call, step);
    t.o = (char *)o + half * half_of_o(plan);
    t.lse = lse + half * (size_t)(plan->p.seq_q / 2);
    launched(call,
             attn_forward(plan->attend[kind], &t, call->m.attend, plan->attend_workspace,
                          call->stream, &why),
             &why);
}

/* A step's part of O. */
static void forward_step(struct call *call, int step) {
    const attn_mpi_plan *plan = call->plan;
    const struct memory *m = &call->m;
    const enum kind kind = kind_of(plan, source_of(plan, step));
    const bool half = kind == LAST_QUERIES;
    float *lse = call->t->lse;
    attn_error why;
    if (kind == UNSEEN || call->status != ATTN_OK) {
        return;
    }
    attend(call, step, m->part, step == 0 ? lse : m->lse_part);
    if (call->status != ATTN_OK) {
        return;
    }
    if (step == 0) {
        const void *const part = m->part;
        const float *const sums = lse;
        launched(call, attn_merge(plan->o.whole, &part, &sums, 1, m->sum, NULL, call->stream, &why),
                 &why);
        return;
    }
    const size_t rows = half ? (size_t)(plan->p.seq_q / 2) : 0;
    const size_t elements = half ? plan->o.rows_before : 0;
    launched(call,
             attn_accumulate(half ? plan->o.half : plan->o.whole,
                             m->part + (half ? half_of_o(plan) : 0), m->lse_part + rows,
                             m->sum + elements, lse + rows, NULL, call->stream, &why),
             &why);
}

static attn_status forward(struct call *call, attn_error *error) {
    const attn_mpi_plan *plan = call->plan;
    attn_error why;
    if (plan->ranks == 1) {
        attend(call, 0, call->t->o, call->t->lse);
        return ATTN_OK;
    }
    for (int step = 0; step < plan->ranks; step++) {
        MPI_Request requests[4];
        attn_status status = ATTN_OK;
        if (step + 1 < plan->ranks) {
            status = post_keys(call, step, requests, error);
        }
        if (status != ATTN_OK) {
            return status;
        }
        forward_step(call, step);
        if (step + 1 < plan->ranks) {
            status = wait_all(requests, 4, error);
        }
        if (status != ATTN_OK) {
            return status;
        }
    }
    if (call->status == ATTN_OK) {
        const void *const sum = call->m.sum;
        const float *const lse = call->t->lse;
        launched(call,
                 attn_merge(plan->o.finish, &sum, &lse, 1, call->t->o, NULL, call->stream, &why),
                 &why);
    }
    return ATTN_OK;
}

/* ---- backward -------------------------------------------------------------------------------- */

static void differentiate(struct call *call, int step, void *dq, void *dk, void *dv) {
    const attn_mpi_plan *plan = call->plan;
    const enum kind kind = kind_of(plan, source_of(plan, step));
    const size_t half = kind == LAST_QUERIES ? 1 : 0;
    attn_tensors t;
    attn_error why;
    attn_tensors_init(&t);
    t.q = add(call->t->q, half * half_of_q(plan));
    t.k = keys(call, step);
    t.v = values(call, step);
    t.o = (char *)call->t->o + half * half_of_o(plan);
    t.d_o = add(call->t->d_o, half * half_of_o(plan));
    t.lse = call->t->lse + half * (size_t)(plan->p.seq_q / 2);
    t.dq = (char *)dq + half * half_of_q(plan);
    t.dk = dk;
    t.dv = dv;
    launched(call,
             attn_backward(plan->attend[kind], &t, call->m.attend, plan->attend_workspace,
                           call->stream, &why),
             &why);
}

/* Adds a part, or half of its rows; step 0 begins the sum. */
static void add_part(struct call *call, const struct sum *sum, int step, bool half, bool last,
                     const char *part, float *total) {
    const size_t before = half && last ? sum->rows_before : 0;
    const void *const first = part;
    attn_error why;
    if (call->status != ATTN_OK) {
        return;
    }
    const attn_status status =
        step == 0 ? attn_merge(sum->whole, &first, NULL, 1, total, NULL, call->stream, &why)
                  : attn_accumulate(half ? sum->half : sum->whole,
                                    part + before * attn_dtype_size(call->plan->p.dtype), NULL,
                                    total + before, NULL, NULL, call->stream, &why);
    launched(call, status, &why);
}

static void finish(struct call *call, const struct sum *sum, const float *total, void *result) {
    const void *const from = total;
    attn_error why;
    if (call->status == ATTN_OK) {
        launched(call, attn_merge(sum->finish, &from, NULL, 1, result, NULL, call->stream, &why),
                 &why);
    }
}

/* The sums of a step's keys have arrived (requests of the step before), or begin here. */
static attn_status backward_step(struct call *call, int step, MPI_Request arriving[4],
                                 attn_error *error) {
    const attn_mpi_plan *plan = call->plan;
    const struct memory *m = &call->m;
    const enum kind kind = kind_of(plan, source_of(plan, step));
    const struct sums *sums = &m->sums[step % 2];
    const bool seen = kind != UNSEEN;
    if (seen && call->status == ATTN_OK) {
        differentiate(call, step, m->part, m->part_k, m->part_v);
        add_part(call, &plan->dq, step, kind == LAST_QUERIES, true, m->part, m->sum);
    }
    const attn_status status = step > 0 ? wait_all(arriving, 4, error) : ATTN_OK;
    if (status != ATTN_OK) {
        return status;
    }
    if (seen) {
        add_part(call, &plan->dk, step, kind == FIRST_KEYS, false, m->part_k, sums->dk);
        add_part(call, &plan->dv, step, kind == FIRST_KEYS, false, m->part_v, sums->dv);
    }
    const struct sums *next = &m->sums[(step + 1) % 2];
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
        differentiate(call, 0, call->t->dq, call->t->dk, call->t->dv);
        return ATTN_OK;
    }
    for (int step = 0; step < plan->ranks; step++) {
        MPI_Request requests[4];
        const bool more = step + 1 < plan->ranks;
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
