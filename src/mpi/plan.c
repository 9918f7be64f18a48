/* SPDX-License-Identifier: Apache-2.0
 *
 * plan.c - plans of attn_mpi.h: the plans of libattn that the steps need, the workspace.
 *
 * Invariant: until all ranks agree that a plan is made, each failure is local and the collective
 * calls of all ranks are the same.
 */
#include <stdlib.h>

#include "mpi/ring.h"

enum { ALIGN = 256 };

/* ---- the plans of libattn -------------------------------------------------------------------- */

/* Of rows of `columns` elements, `rows` of them in each of `heads`, with strides. */
static attn_status make_merge(attn_context *context, const attn_problem *like, attn_dtype from,
                              attn_dtype to, int64_t rows, int32_t alignment, attn_plan **plan,
                              attn_error *error) {
    attn_problem p = *like;
    attn_plan_options options;
    attn_plan_options_init(&options);
    options.direction = ATTN_MERGE;
    p.dtype = from;
    p.dtype_kv = -1;
    p.dtype_o = (int32_t)to;
    p.seq_q = rows;
    p.alignment = alignment;
    return attn_plan_create(context, &p, &options, plan, error);
}

/* like: the tensor's shape and strides, as those of O. The plan of a half serves both. */
static attn_status make_sum(attn_context *context, const attn_mpi_plan *plan,
                            const attn_problem *like, struct sum *sum, attn_error *error) {
    const attn_dtype dtype = plan->p.dtype;
    const int32_t wide = plan->p.alignment;
    const size_t before = before_half(plan, sum, SECOND);
    attn_status status =
        make_merge(context, like, dtype, ATTN_FP32, like->seq_q, wide, &sum->whole, error);
    if (status == ATTN_OK) {
        status =
            make_merge(context, like, ATTN_FP32, dtype, like->seq_q, wide, &sum->finish, error);
    }
    if (status == ATTN_OK && plan->method == ATTN_MPI_ZIGZAG) {
        status = make_merge(context, like, dtype, ATTN_FP32, like->seq_q / 2,
                            alignment_at(wide, before), &sum->half, error);
    }
    return status;
}

/* The shape of one of Q's, K's, V's gradients, as make_sum takes it. */
static attn_problem shape_of(const attn_problem *p, int64_t heads, int64_t rows, int64_t columns,
                             attn_strides strides) {
    attn_problem shape;
    attn_problem_init(&shape);
    shape.layout = p->layout;
    shape.batch = p->batch;
    shape.heads_q = heads;
    shape.seq_q = rows;
    shape.head_dim = columns;
    shape.o = strides;
    return shape;
}

static void measure(const attn_problem *p, int64_t heads, int64_t rows, int64_t columns,
                    const attn_strides *strides, struct sum *sum) {
    sum->elements = (size_t)(p->batch * heads * rows * columns);
    sum->rows_before = (size_t)(rows / 2 * strides->row);
}

/* Most pieces are like one of the rank before: without positions in it, a plan serves all. */
static const struct piece *find_like(const attn_mpi_plan *plan, int sources,
                                     const struct piece *piece) {
    for (int source = 0; source < sources; source++) {
        for (int i = 0; i < plan->pieces[source].count; i++) {
            const struct piece *one = &plan->pieces[source].items[i];
            if (one->q == piece->q && one->kv == piece->kv && one->causal == piece->causal &&
                one->window == piece->window && one->begins == piece->begins &&
                one->distance == piece->distance) {
                return one;
            }
        }
    }
    return NULL;
}

static attn_status make_pieces(attn_context *context, attn_mpi_plan *plan, int source,
                               attn_error *error) {
    struct pieces *pieces = &plan->pieces[source];
    struct piece found[PIECES_MOST];
    const int count = pieces_of(plan, plan->rank, source, found);
    attn_status status = ATTN_OK;
    for (int i = 0; i < count && status == ATTN_OK; i++) {
        struct piece *piece = &pieces->items[pieces->count];
        const struct piece *like = find_like(plan, source, &found[i]);
        *piece = found[i];
        piece->shared = like != NULL;
        if (like != NULL) {
            piece->plan = like->plan;
        } else {
            status = make_attend(context, plan, piece, error);
        }
        pieces->count++;
    }
    return status;
}

/* Gradients of a logit or slope for each head. */
static attn_status make_heads(attn_context *context, const attn_problem *p, int64_t batch_stride,
                              attn_plan **plan, attn_error *error) {
    const attn_strides strides = {batch_stride > 0 ? batch_stride : p->heads_q, p->heads_q,
                                  p->heads_q};
    attn_problem like = shape_of(p, 1, 1, p->heads_q, strides);
    like.batch = batch_stride > 0 ? p->batch : 1;
    return make_merge(context, &like, ATTN_FP32, ATTN_FP32, 1, (int32_t)sizeof(float), plan, error);
}

static attn_status make_plans(attn_context *context, attn_mpi_plan *plan, attn_error *error) {
    const attn_problem *p = &plan->p;
    attn_status status = ATTN_OK;
    plan->steps = steps_of(plan);
    plan->pieces = calloc((size_t)plan->ranks, sizeof *plan->pieces);
    if (plan->pieces == NULL) {
        return fail(error, ATTN_OUT_OF_MEMORY, "no memory for a plan");
    }
    measure(p, p->heads_q, p->seq_q, p->head_dim_v, &p->o, &plan->o);
    measure(p, p->heads_q, p->seq_q, p->head_dim, &p->q, &plan->dq);
    measure(p, p->heads_kv, p->seq_kv, p->head_dim, &p->k, &plan->dk);
    measure(p, p->heads_kv, p->seq_kv, p->head_dim_v, &p->v, &plan->dv);
    for (int source = 0; status == ATTN_OK && source < plan->ranks; source++) {
        status = make_pieces(context, plan, source, error);
    }
    attn_problem like = shape_of(p, p->heads_q, p->seq_q, p->head_dim_v, p->o);
    like.lse = p->lse;
    if (plan->direction == ATTN_FORWARD) {
        return status != ATTN_OK ? status : make_sum(context, plan, &like, &plan->o, error);
    }
    like = shape_of(p, p->heads_q, p->seq_q, p->head_dim, p->q);
    status = status != ATTN_OK ? status : make_sum(context, plan, &like, &plan->dq, error);
    like = shape_of(p, p->heads_kv, p->seq_kv, p->head_dim, p->k);
    status = status != ATTN_OK ? status : make_sum(context, plan, &like, &plan->dk, error);
    like = shape_of(p, p->heads_kv, p->seq_kv, p->head_dim_v, p->v);
    status = status != ATTN_OK ? status : make_sum(context, plan, &like, &plan->dv, error);
    if (status == ATTN_OK && p->sink) {
        status = make_heads(context, p, 0, &plan->sink, error);
    }
    if (status == ATTN_OK && p->alibi) {
        status = make_heads(context, p, p->alibi_batch_stride, &plan->slopes, error);
    }
    return status;
}

/* ---- workspace ------------------------------------------------------------------------------- */

static char *take(char *base, size_t *at, size_t bytes) {
    char *place = base != NULL ? base + *at : NULL;
    *at += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    return place;
}

/* From the first slope to the last one. */
static size_t slopes_of(const attn_problem *p) {
    return (size_t)((p->batch - 1) * p->alibi_batch_stride + p->heads_q);
}

size_t memory_layout(const attn_mpi_plan *plan, char *base, struct memory *m) {
    const attn_problem *p = &plan->p;
    const size_t size = attn_dtype_size(p->dtype);
    size_t at = 0;
    m->attend = take(base, &at, plan->attend_workspace);
    if (plan->ranks == 1) {
        return at;
    }
    for (int i = 0; i < 2; i++) {
        m->k[i] = take(base, &at, plan->dk.elements * size);
        m->v[i] = take(base, &at, plan->dv.elements * size);
    }
    if (plan->direction == ATTN_FORWARD) {
        m->part = take(base, &at, plan->o.elements * size);
        m->sum = (float *)(void *)take(base, &at, plan->o.elements * sizeof(float));
        m->lse_part = (float *)(void *)take(
            base, &at, (size_t)(p->batch * p->heads_q * p->seq_q) * sizeof(float));
        return at;
    }
    m->part = take(base, &at, plan->dq.elements * size);
    m->sum = (float *)(void *)take(base, &at, plan->dq.elements * sizeof(float));
    if (p->sink) {
        m->sink_part = (float *)(void *)take(base, &at, (size_t)p->heads_q * sizeof(float));
    }
    if (p->alibi) {
        m->slopes_part = (float *)(void *)take(base, &at, slopes_of(p) * sizeof(float));
    }
    m->part_k = take(base, &at, plan->dk.elements * size);
    m->part_v = take(base, &at, plan->dv.elements * size);
    for (int i = 0; i < 2; i++) {
        m->sums[i].dk = (float *)(void *)take(base, &at, plan->dk.elements * sizeof(float));
        m->sums[i].dv = (float *)(void *)take(base, &at, plan->dv.elements * sizeof(float));
    }
    return at;
}

size_t attn_mpi_workspace_size(const attn_mpi_plan *plan) {
    return plan != NULL ? plan->workspace : 0;
}

size_t attn_mpi_workspace_alignment(const attn_mpi_plan *plan) {
    return plan != NULL && plan->p.alignment > ALIGN ? (size_t)plan->p.alignment : ALIGN;
}

/* ---- create and destroy ---------------------------------------------------------------------- */

static attn_status make_types(attn_mpi_plan *plan, attn_error *error) {
    const attn_problem *p = &plan->p;
    const int64_t size = (int64_t)attn_dtype_size(p->dtype), wide = (int64_t)sizeof(float);
    const struct {
        MPI_Datatype *type;
        int64_t bytes;
    } rows[] = {{&plan->row_k, p->head_dim * size},
                {&plan->row_v, p->head_dim_v * size},
                {&plan->sum_k, p->head_dim * wide},
                {&plan->sum_v, p->head_dim_v * wide}};
    plan->rows_kv = (int)(p->batch * p->heads_kv * p->seq_kv);
    for (int i = 0; i < 4; i++) {
        int code = MPI_Type_contiguous((int)rows[i].bytes, MPI_BYTE, rows[i].type);
        if (code == MPI_SUCCESS) {
            code = MPI_Type_commit(rows[i].type);
        }
        if (code != MPI_SUCCESS) {
            return fail_mpi(error, code, "MPI_Type_contiguous");
        }
    }
    return ATTN_OK;
}

static attn_status open_comm(MPI_Comm comm, attn_mpi_plan *plan, attn_error *error) {
    int ready = 0, inter = 0;
    if (MPI_Initialized(&ready) != MPI_SUCCESS || !ready) {
        return fail(error, ATTN_INVALID, "MPI is not initialised, expected MPI_Init before");
    }
    if (comm == MPI_COMM_NULL) {
        return fail(error, ATTN_INVALID, "comm = MPI_COMM_NULL, expected an intracommunicator");
    }
    int code = MPI_Comm_test_inter(comm, &inter);
    if (code == MPI_SUCCESS && inter) {
        return fail(error, ATTN_INVALID,
                    "comm is an intercommunicator, expected an "
                    "intracommunicator");
    }
    if (code == MPI_SUCCESS) {
        code = MPI_Comm_dup(comm, &plan->comm);
    }
    if (code == MPI_SUCCESS) {
        code = MPI_Comm_set_errhandler(plan->comm, MPI_ERRORS_RETURN);
    }
    if (code == MPI_SUCCESS) {
        code = MPI_Comm_rank(plan->comm, &plan->rank);
    }
    if (code == MPI_SUCCESS) {
        code = MPI_Comm_size(plan->comm, &plan->ranks);
    }
    return code == MPI_SUCCESS ? ATTN_OK : fail_mpi(error, code, "MPI_Comm_dup");
}

static attn_status create(attn_context *context, MPI_Comm comm, const attn_problem *problem,
                          const attn_mpi_options *options, attn_mpi_plan *plan, attn_error *error) {
    attn_status status = open_comm(comm, plan, error);
    if (status != ATTN_OK) {
        return status;
    }
    status = check_local(problem, options, context, plan, error);
    status = agree(plan->comm, status, error);
    status = status != ATTN_OK ? status : compare_ranks(plan, error);
    if (status != ATTN_OK) {
        return status;
    }
    status = make_plans(context, plan, error);
    status = status != ATTN_OK ? status : make_types(plan, error);
    struct memory ignored;
    plan->workspace = memory_layout(plan, NULL, &ignored);
    return agree(plan->comm, status, error);
}

attn_status attn_mpi_plan_create(attn_context *context, MPI_Comm comm, const attn_problem *problem,
                                 const attn_mpi_options *options, attn_mpi_plan **plan,
                                 attn_error *error) {
    attn_error mine = {""}; /* agree() broadcasts it, whether the caller wants it or not */
    if (plan == NULL) {
        return fail(error, ATTN_INVALID, "plan = NULL, expected an address");
    }
    attn_mpi_plan *made = calloc(1, sizeof *made);
    *plan = NULL;
    if (made == NULL) {
        return fail(error, ATTN_OUT_OF_MEMORY, "no memory for a plan");
    }
    made->comm = MPI_COMM_NULL;
    made->row_k = made->row_v = made->sum_k = made->sum_v = MPI_DATATYPE_NULL;
    const attn_status status = create(context, comm, problem, options, made, &mine);
    if (status == ATTN_OK) {
        *plan = made;
    } else {
        attn_mpi_plan_destroy(made);
    }
    return fail(error, status, "%s", mine.text);
}

static void destroy_sum(struct sum *sum) {
    attn_plan_destroy(sum->whole);
    attn_plan_destroy(sum->half);
    attn_plan_destroy(sum->finish);
}

void attn_mpi_plan_destroy(attn_mpi_plan *plan) {
    if (plan == NULL) {
        return;
    }
    for (int source = 0; plan->pieces != NULL && source < plan->ranks; source++) {
        for (int i = 0; i < plan->pieces[source].count; i++) {
            struct piece *piece = &plan->pieces[source].items[i];
            attn_plan_destroy(piece->shared ? NULL : piece->plan);
        }
    }
    free(plan->pieces);
    attn_plan_destroy(plan->sink);
    attn_plan_destroy(plan->slopes);
    struct sum *const sums[] = {&plan->o, &plan->dq, &plan->dk, &plan->dv};
    MPI_Datatype *const types[] = {&plan->row_k, &plan->row_v, &plan->sum_k, &plan->sum_v};
    for (int i = 0; i < 4; i++) {
        destroy_sum(sums[i]);
        if (*types[i] != MPI_DATATYPE_NULL) {
            MPI_Type_free(types[i]);
        }
    }
    if (plan->comm != MPI_COMM_NULL) {
        MPI_Comm_free(&plan->comm);
    }
    free(plan);
}
