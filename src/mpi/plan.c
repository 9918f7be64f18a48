/* SPDX-License-Identifier: Apache-2.0
 *
 * plan.c - plans of attn_mpi.h: checks, the plans of libattn that the steps need, the workspace.
 *
 * Invariant: until all ranks agree that a plan is made, each failure is local and the collective
 * calls of all ranks are the same.
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "mpi/ring.h"

enum { ALIGN = 256 };

void attn_mpi_options_init_sized(attn_mpi_options *options, size_t size) {
    if (options != NULL) {
        memset(options, 0, size);
        options->size = size;
    }
}

/* ---- what is taken --------------------------------------------------------------------------- */

static attn_status check_options(const attn_mpi_options *given, attn_mpi_options *options,
                                 attn_error *error) {
    attn_mpi_options_init(options);
    if (given == NULL) {
        return ATTN_OK;
    }
    if (given->size != sizeof *given) {
        return fail(error, ATTN_INVALID,
                    "options.size = %zu, expected %zu: call attn_mpi_options_init", given->size,
                    sizeof *given);
    }
    *options = *given;
    if (options->method != ATTN_MPI_RING && options->method != ATTN_MPI_ZIGZAG) {
        return fail(error, ATTN_INVALID,
                    "options.method = %d, expected ATTN_MPI_RING or ATTN_MPI_ZIGZAG",
                    (int)options->method);
    }
    if (options->direction != ATTN_FORWARD && options->direction != ATTN_BACKWARD) {
        return fail(error, ATTN_INVALID,
                    "options.direction = %d, expected ATTN_FORWARD or ATTN_BACKWARD",
                    (int)options->direction);
    }
    return ATTN_OK;
}

static attn_status check_taken(const attn_problem *p, attn_error *error) {
    const struct {
        bool wanted;
        const char *name;
    } refused[] = {
        {p->window_left >= 0 || p->window_right >= 0, "a window"},
        {p->alibi, "ALiBi"},
        {p->bias, "a bias"},
        {p->mask, "a mask"},
        {p->sink, "a sink"},
        {p->packed, "packed sequences"},
        {p->used_kv || p->used_q, "used lengths"},
        {p->page_size > 0, "a paged KV cache"},
        {p->dtype_kv != (int32_t)p->dtype, "an fp8 KV cache"},
        {p->draft, "a draft mask"},
        {p->q_offset != 0 || p->kv_offset != 0 || p->offsets, "offsets: it knows its own"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        if (refused[i].wanted) {
            return fail(error, ATTN_UNSUPPORTED, "attn_mpi does not take %s", refused[i].name);
        }
    }
    return ATTN_OK;
}

static bool same(const attn_strides *a, const attn_strides *b) {
    return a->batch == b->batch && a->head == b->head && a->row == b->row;
}

/* Messages are whole tensors, and parts have the strides of the result. */
static attn_status check_contiguous(const attn_problem *p, attn_error *error) {
    attn_problem plain = *p, resolved = {.size = sizeof resolved};
    const attn_strides any = {ATTN_AUTO, ATTN_AUTO, ATTN_AUTO}, none = {0, 0, 0};
    plain.q = plain.k = plain.v = plain.o = plain.lse = any;
    plain.dq = plain.dk = plain.dv = plain.d_o = none;
    const attn_status status = attn_problem_resolve(&plain, &resolved, error);
    if (status != ATTN_OK) {
        return status;
    }
    const struct {
        const char *name;
        const attn_strides *given, *expected;
    } tensors[] = {{"q", &p->q, &resolved.q},       {"k", &p->k, &resolved.k},
                   {"v", &p->v, &resolved.v},       {"o", &p->o, &resolved.o},
                   {"lse", &p->lse, &resolved.lse}, {"dq", &p->dq, &resolved.q},
                   {"dk", &p->dk, &resolved.k},     {"dv", &p->dv, &resolved.v},
                   {"d_o", &p->d_o, &resolved.o}};
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) {
        if (!same(tensors[i].given, tensors[i].expected) && !same(tensors[i].given, &none)) {
            return fail(error, ATTN_UNSUPPORTED,
                        "attn_mpi takes contiguous tensors, expected ATTN_AUTO strides of %s",
                        tensors[i].name);
        }
    }
    return ATTN_OK;
}

static attn_status check_sizes(const attn_mpi_plan *plan, attn_error *error) {
    const attn_problem *p = &plan->p;
    if (p->batch < 1 || p->seq_q < 1 || p->seq_kv < 1) {
        return fail(error, ATTN_INVALID,
                    "batch = %lld, seq_q = %lld, seq_kv = %lld, expected at least 1",
                    (long long)p->batch, (long long)p->seq_q, (long long)p->seq_kv);
    }
    if (p->causal != ATTN_CAUSAL_NONE && p->seq_q != p->seq_kv) {
        return fail(error, ATTN_INVALID,
                    "causal with seq_q = %lld and seq_kv = %lld, expected equal chunks",
                    (long long)p->seq_q, (long long)p->seq_kv);
    }
    if (plan->method == ATTN_MPI_ZIGZAG && (p->seq_q % 2 != 0 || p->seq_kv % 2 != 0)) {
        return fail(error, ATTN_INVALID,
                    "zigzag with seq_q = %lld and seq_kv = %lld, expected even numbers: two chunks",
                    (long long)p->seq_q, (long long)p->seq_kv);
    }
    if (p->alignment < (int32_t)sizeof(float)) {
        return fail(error, ATTN_UNSUPPORTED, "alignment = %d, attn_mpi needs at least 4",
                    (int)p->alignment);
    }
    const int64_t rows = p->batch * p->heads_kv * p->seq_kv;
    if (rows > INT_MAX) {
        return fail(error, ATTN_UNSUPPORTED,
                    "a chunk of K has batch * heads_kv * seq_kv = %lld rows, at most %d fit a "
                    "message",
                    (long long)rows, INT_MAX);
    }
    return ATTN_OK;
}

/* ---- the plans of libattn -------------------------------------------------------------------- */

enum kind kind_of(const attn_mpi_plan *plan, int source) {
    if (plan->p.causal == ATTN_CAUSAL_NONE) {
        return FULL;
    }
    if (source == plan->rank) {
        return DIAGONAL;
    }
    if (plan->method == ATTN_MPI_RING) {
        return source < plan->rank ? FULL : UNSEEN;
    }
    return source < plan->rank ? FIRST_KEYS : LAST_QUERIES;
}

size_t half_of_q(const attn_mpi_plan *plan) {
    return plan->dq.rows_before * attn_dtype_size(plan->p.dtype);
}

size_t half_of_o(const attn_mpi_plan *plan) {
    return plan->o.rows_before * attn_dtype_size(plan->p.dtype);
}

/* What is left of the promised alignment at an offset in bytes. */
static int32_t alignment_at(int32_t alignment, size_t offset) {
    while (offset % (size_t)alignment != 0) {
        alignment /= 2;
    }
    return alignment;
}

static attn_status make_attend(attn_context *context, attn_mpi_plan *plan, enum kind kind,
                               attn_error *error) {
    attn_problem p = plan->p;
    attn_plan_options options;
    attn_plan_options_init(&options);
    options.direction = plan->direction;
    p.causal = kind == DIAGONAL ? ATTN_CAUSAL_TOP_LEFT : ATTN_CAUSAL_NONE;
    if (kind == FIRST_KEYS) {
        p.seq_kv /= 2;
    } else if (kind == LAST_QUERIES) {
        p.seq_q /= 2;
        p.alignment = alignment_at(p.alignment, half_of_q(plan));
        p.alignment = alignment_at(p.alignment, half_of_o(plan));
    }
    const attn_status status = attn_plan_create(context, &p, &options, &plan->attend[kind], error);
    const size_t needed = status == ATTN_OK ? attn_workspace_size(plan->attend[kind]) : 0;
    if (needed > plan->attend_workspace) {
        plan->attend_workspace = needed;
    }
    return status;
}

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

/* like: the tensor's shape and strides, as those of O. last: its half is the second one. */
static attn_status make_sum(attn_context *context, const attn_mpi_plan *plan,
                            const attn_problem *like, bool last, struct sum *sum,
                            attn_error *error) {
    const attn_dtype dtype = plan->p.dtype;
    const int32_t wide = plan->p.alignment;
    const size_t before = last ? sum->rows_before * attn_dtype_size(dtype) : 0;
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

static attn_status make_plans(attn_context *context, attn_mpi_plan *plan, attn_error *error) {
    const attn_problem *p = &plan->p;
    attn_status status = ATTN_OK;
    measure(p, p->heads_q, p->seq_q, p->head_dim_v, &p->o, &plan->o);
    measure(p, p->heads_q, p->seq_q, p->head_dim, &p->q, &plan->dq);
    measure(p, p->heads_kv, p->seq_kv, p->head_dim, &p->k, &plan->dk);
    measure(p, p->heads_kv, p->seq_kv, p->head_dim_v, &p->v, &plan->dv);
    for (int source = 0; status == ATTN_OK && source < plan->ranks; source++) {
        const enum kind kind = kind_of(plan, source);
        if (kind != UNSEEN && plan->attend[kind] == NULL) {
            status = make_attend(context, plan, kind, error);
        }
    }
    attn_problem like = shape_of(p, p->heads_q, p->seq_q, p->head_dim_v, p->o);
    like.lse = p->lse;
    if (plan->direction == ATTN_FORWARD) {
        return status != ATTN_OK ? status : make_sum(context, plan, &like, true, &plan->o, error);
    }
    like = shape_of(p, p->heads_q, p->seq_q, p->head_dim, p->q);
    status = status != ATTN_OK ? status : make_sum(context, plan, &like, true, &plan->dq, error);
    like = shape_of(p, p->heads_kv, p->seq_kv, p->head_dim, p->k);
    status = status != ATTN_OK ? status : make_sum(context, plan, &like, false, &plan->dk, error);
    like = shape_of(p, p->heads_kv, p->seq_kv, p->head_dim_v, p->v);
    return status != ATTN_OK ? status : make_sum(context, plan, &like, false, &plan->dv, error);
}

/* ---- workspace ------------------------------------------------------------------------------- */

static char *take(char *base, size_t *at, size_t bytes) {
    char *place = base != NULL ? base + *at : NULL;
    *at += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    return place;
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

/* On this rank alone. */
static attn_status check_local(const attn_problem *problem, const attn_mpi_options *options,
                               attn_context *context, attn_mpi_plan *plan, attn_error *error) {
    attn_mpi_options checked;
    attn_status status = check_options(options, &checked, error);
    if (status == ATTN_OK && context == NULL) {
        status = fail(error, ATTN_INVALID, "context = NULL, expected one of attn_open");
    }
    plan->p.size = sizeof plan->p;
    if (status == ATTN_OK) {
        status = attn_problem_resolve(problem, &plan->p, error);
    }
    plan->method = checked.method;
    plan->direction = checked.direction;
    plan->wait = checked.wait;
    status = status != ATTN_OK ? status : check_taken(&plan->p, error);
    status = status != ATTN_OK ? status : check_contiguous(&plan->p, error);
    return status != ATTN_OK ? status : check_sizes(plan, error);
}

static int64_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (int64_t)bits;
}

static attn_status compare_ranks(const attn_mpi_plan *plan, attn_error *error) {
    static const char *const names[] = {"dtype",    "layout",     "causal",       "batch",
                                        "heads_q",  "heads_kv",   "seq_q",        "seq_kv",
                                        "head_dim", "head_dim_v", "scale (bits)", "softcap (bits)",
                                        "method",   "direction",  "options.wait"};
    const attn_problem *p = &plan->p;
    const int64_t numbers[] = {(int64_t)p->dtype,
                               (int64_t)p->layout,
                               (int64_t)p->causal,
                               p->batch,
                               p->heads_q,
                               p->heads_kv,
                               p->seq_q,
                               p->seq_kv,
                               p->head_dim,
                               p->head_dim_v,
                               bits_of(p->scale),
                               bits_of(p->softcap),
                               (int64_t)plan->method,
                               (int64_t)plan->direction,
                               plan->wait != NULL};
    return agree_on(plan->comm, names, numbers, (int)(sizeof numbers / sizeof numbers[0]), error);
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
    for (int i = 0; i < KINDS; i++) {
        attn_plan_destroy(plan->attend[i]);
    }
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

/* ---- calls ----------------------------------------------------------------------------------- */

static attn_status check_pointer(const char *name, const void *pointer, size_t alignment,
                                 attn_error *error) {
    if (pointer == NULL) {
        return fail(error, ATTN_INVALID, "%s = NULL, expected an address", name);
    }
    if ((uintptr_t)pointer % alignment != 0) {
        return fail(error, ATTN_INVALID, "%s = %p, expected a multiple of %zu", name, pointer,
                    alignment);
    }
    return ATTN_OK;
}

void call_begin(struct call *call, attn_direction direction, void *workspace, size_t size) {
    const attn_mpi_plan *plan = call->plan;
    const attn_tensors *t = call->t;
    const bool forward = plan->direction == ATTN_FORWARD;
    const size_t wide = (size_t)plan->p.alignment;
    attn_error *error = &call->error;
    if (plan->direction != direction) {
        call->status = fail(error, ATTN_INVALID, "the plan's direction is %s, expected %s",
                            forward ? "ATTN_FORWARD" : "ATTN_BACKWARD",
                            forward ? "ATTN_BACKWARD" : "ATTN_FORWARD");
        return;
    }
    if (t == NULL || size < plan->workspace) {
        call->status =
            t == NULL ? fail(error, ATTN_INVALID, "tensors = NULL, expected tensors")
                      : fail(error, ATTN_INVALID, "workspace_size = %zu, expected at least %zu",
                             size, plan->workspace);
        return;
    }
    const struct {
        const char *name;
        const void *pointer;
        size_t alignment;
        bool needed;
    } given[] = {
        {"workspace", workspace, attn_mpi_workspace_alignment(plan), plan->workspace > 0},
        {"tensors.q", t->q, wide, true},
        {"tensors.k", t->k, wide, true},
        {"tensors.v", t->v, wide, true},
        {"tensors.o", t->o, wide, true},
        {"tensors.lse", t->lse, sizeof(float), true},
        {"tensors.d_o", t->d_o, wide, !forward},
        {"tensors.dq", t->dq, wide, !forward},
        {"tensors.dk", t->dk, wide, !forward},
        {"tensors.dv", t->dv, wide, !forward},
    };
    for (size_t i = 0; call->status == ATTN_OK && i < sizeof given / sizeof given[0]; i++) {
        if (given[i].needed) {
            call->status =
                check_pointer(given[i].name, given[i].pointer, given[i].alignment, error);
        }
    }
    memory_layout(plan, workspace, &call->m);
}
