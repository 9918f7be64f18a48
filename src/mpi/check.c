/* SPDX-License-Identifier: Apache-2.0
 *
 * check.c - checks the options, the problems and the call arguments of attn_mpi.h.
 *
 * Invariant: compare_ranks alone communicates.
 */
#include <limits.h>
#include <string.h>

#include "mpi/ring.h"

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
        {p->bias, "a bias"},
        {p->mask, "a mask"},
        {p->packed, "packed sequences"},
        {p->used_kv || p->used_q, "used lengths"},
        {p->page_size > 0, "a paged KV cache"},
        {p->dtype_kv != (int32_t)p->dtype, "an fp8 KV cache"},
        {p->draft, "a draft mask"},
        {p->v_in_k, "a V in K"},
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

/* On this rank alone. */
attn_status check_local(const attn_problem *problem, const attn_mpi_options *options,
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

attn_status compare_ranks(const attn_mpi_plan *plan, attn_error *error) {
    static const char *const names[] = {
        "dtype",        "layout",         "causal",      "batch",        "heads_q",
        "heads_kv",     "seq_q",          "seq_kv",      "head_dim",     "head_dim_v",
        "scale (bits)", "softcap (bits)", "window_left", "window_right", "alibi",
        "sink",         "method",         "direction",   "options.wait"};
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
                               p->window_left,
                               p->window_right,
                               p->alibi,
                               p->sink,
                               (int64_t)plan->method,
                               (int64_t)plan->direction,
                               plan->wait != NULL};
    return agree_on(plan->comm, names, numbers, (int)(sizeof numbers / sizeof numbers[0]), error);
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
        {"tensors.sink", t->sink, sizeof(float), plan->p.sink},
        {"tensors.d_o", t->d_o, wide, !forward},
        {"tensors.dq", t->dq, wide, !forward},
        {"tensors.dk", t->dk, wide, !forward},
        {"tensors.dv", t->dv, wide, !forward},
    };
    const attn_problem *p = &plan->p;
    if (plan->ranks > 1 && !forward && p->sink && t->d_sink != NULL && p->seq_q != p->seq_kv &&
        (p->window_left >= 0 || p->window_right >= 0)) { /* attn_backward skips such rows */
        call->status = fail(error, ATTN_UNSUPPORTED,
                            "tensors.d_sink with a window and seq_q = %lld, seq_kv = %lld: rows "
                            "may see no key of their own rank, expected NULL or equal lengths",
                            (long long)p->seq_q, (long long)p->seq_kv);
    }
    for (size_t i = 0; call->status == ATTN_OK && i < sizeof given / sizeof given[0]; i++) {
        if (given[i].needed) {
            call->status =
                check_pointer(given[i].name, given[i].pointer, given[i].alignment, error);
        }
    }
    memory_layout(plan, workspace, &call->m);
}
