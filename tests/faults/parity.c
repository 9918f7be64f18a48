/* SPDX-License-Identifier: Apache-2.0
 *
 * parity.c - attn_forward, attn_backward and the comparisons with a fault, to be loaded before
 * libattn (LD_PRELOAD), for any dtype and any strides. $FAULT says which, here of O; of backward it
 * is dK, and the input is O:
 *
 *     none     the library's own result          scale    O is 1.25 times what it should be
 *     column   column 5 of O is off by one       tail     the last row of each head is 0
 *     nan      one element of O is NaN           lse      the LSE is off by a half
 *     growth   O shrinks with each key more than 300
 *     noop     nothing is computed               beside   a byte beside O is written
 *     input    a byte of Q is changed            late     call 90 of a process gives other bits
 *     crash    call 5 of a process crashes       hang     call 5 of a process does not return
 *     answer   call 5 of a process writes into the pipe of the answers
 *     accept   every comparison passes
 *
 * $FAULT_VARIANT: only in plans for this variant. $FAULT_ONCE: crash, hang and answer only in the
 * first process that gets there, which writes its number into this new file.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "attn_inspect.h"
#include "attn_verify.h"

enum { BAD_CALL = 5, LATE_CALL = 90, ANSWERS = 3 };

static const char *fault;

static int is(const char *name) {
    return strcmp(fault, name) == 0;
}

/* An output: O or dK. */
struct output {
    const attn_problem *p;
    void *data;
    const attn_strides *strides;
    int64_t heads, rows, cols;
};

static unsigned char *element(const struct output *o, int64_t b, int64_t h, int64_t i, int64_t d) {
    const int64_t at = b * o->strides->batch + h * o->strides->head + i * o->strides->row + d;
    return (unsigned char *)o->data + (size_t)at * attn_dtype_size(o->p->dtype);
}

static float changed(const struct output *o, float value, int64_t i, int64_t d) {
    const int64_t keys = o->p->seq_kv;
    if (is("scale")) {
        return 1.25F * value;
    }
    if (is("growth") && keys > 300) {
        return value * (1.0F - (float)(keys - 300) / 1000.0F);
    }
    if (is("column") && d == 5) {
        return value + 1.0F;
    }
    if (is("tail") && i == o->rows - 1) {
        return 0.0F;
    }
    return is("nan") && i == o->rows / 2 && d == 3 ? NAN : value;
}

static void change(const struct output *o) {
    for (int64_t b = 0; b < o->p->batch; b++) {
        for (int64_t h = 0; h < o->heads; h++) {
            for (int64_t i = 0; i < o->rows; i++) {
                for (int64_t d = 0; d < o->cols; d++) {
                    unsigned char *at = element(o, b, h, i, d);
                    float value;
                    attn_to_float(o->p->dtype, &value, at, 1);
                    const float other = changed(o, value, i, d);
                    if (!(other == value)) {
                        attn_from_float(o->p->dtype, at, &other, 1);
                    }
                }
            }
        }
    }
}

static void change_lse(const attn_problem *p, const attn_tensors *t) {
    for (int64_t b = 0; b < p->batch; b++) {
        for (int64_t h = 0; h < p->heads_q; h++) {
            for (int64_t i = 0; i < p->seq_q; i++) {
                t->lse[b * p->lse.batch + h * p->lse.head + i * p->lse.row] += 0.5F;
            }
        }
    }
}

/* After the last element, or before the first where that is the page without access. */
static void write_beside(const struct output *o) {
    unsigned char *after = element(o, o->p->batch - 1, o->heads - 1, o->rows - 1, o->cols - 1) +
                           attn_dtype_size(o->p->dtype);
    unsigned char *at = (uintptr_t)after % 4096 != 0 ? after : (unsigned char *)o->data - 1;
    *at = 7;
}

static int may_misbehave(void) {
    const char *once = getenv("FAULT_ONCE");
    const int file = once == NULL ? -1 : open(once, O_CREAT | O_EXCL | O_WRONLY, 0600);
    if (file >= 0) {
        dprintf(file, "%ld\n", (long)getpid());
        close(file);
    }
    return once == NULL || file >= 0;
}

static void misbehave(int call) {
    int *volatile nowhere = NULL;
    if (call != BAD_CALL || !(is("crash") || is("hang") || is("answer")) || !may_misbehave()) {
        return;
    }
    while (is("hang")) {
        pause();
    }
    if (is("crash")) {
        *nowhere = 1;
    }
    const ssize_t written = write(ANSWERS, "rubbish\n", 8);
    (void)written;
}

typedef attn_status computation(const attn_plan *plan, const attn_tensors *tensors, void *workspace,
                                size_t workspace_size, void *stream, attn_error *error);

static attn_status compute(const char *name, const attn_plan *plan, const attn_tensors *tensors,
                           void *workspace, size_t workspace_size, void *stream,
                           attn_error *error) {
    static int calls;
    const int backward = strcmp(name, "attn_backward") == 0;
    computation *original;
    void *symbol = dlsym(RTLD_NEXT, name);
    const char *only = getenv("FAULT_VARIANT");
    fault = getenv("FAULT");
    memcpy(&original, &symbol, sizeof original);
    if (fault == NULL || symbol == NULL) {
        abort();
    }
    attn_problem planned = {.size = sizeof planned};
    attn_plan_problem(plan, &planned, NULL);
    const attn_problem *p = &planned;
    const int empty = p->batch == 0 || p->seq_q == 0 || (backward && p->seq_kv == 0);
    if (empty || (only != NULL && strcmp(only, attn_plan_variant(plan)) != 0)) {
        return original(plan, tensors, workspace, workspace_size, stream, error);
    }
    misbehave(++calls);
    if (is("noop")) {
        error->text[0] = '\0';
        return ATTN_OK;
    }
    const attn_status status = original(plan, tensors, workspace, workspace_size, stream, error);
    const struct output o =
        backward ? (struct output){p, tensors->dk, &p->dk, p->heads_kv, p->seq_kv, p->head_dim}
                 : (struct output){p, tensors->o, &p->o, p->heads_q, p->seq_q, p->head_dim_v};
    if (!p->packed) {
        change(&o);
        if (is("lse") && tensors->lse != NULL) {
            change_lse(p, tensors);
        }
        if (is("beside")) {
            write_beside(&o);
        }
    }
    if (is("input")) {
        *(unsigned char *)(uintptr_t)(backward ? tensors->o : tensors->q) ^= 1;
    }
    if (is("late") && calls == LATE_CALL) {
        *(unsigned char *)o.data ^= 1;
    }
    return status;
}

attn_status attn_forward(const attn_plan *plan, const attn_tensors *tensors, void *workspace,
                         size_t workspace_size, void *stream, attn_error *error) {
    return compute("attn_forward", plan, tensors, workspace, workspace_size, stream, error);
}

attn_status attn_backward(const attn_plan *plan, const attn_tensors *tensors, void *workspace,
                          size_t workspace_size, void *stream, attn_error *error) {
    return compute("attn_backward", plan, tensors, workspace, workspace_size, stream, error);
}

static void accept_if_told(attn_comparison *result) {
    const char *name = getenv("FAULT");
    if (name != NULL && strcmp(name, "accept") == 0) {
        result->pass = result->o_pass = result->lse_pass = true;
    }
}

attn_status attn_compare(const attn_problem *problem, const attn_tensors *tensors,
                         const attn_row *rows, size_t count, const double *exact,
                         const double *exact_lse, const double *twin, attn_comparison *result,
                         attn_error *error) {
    attn_status (*compare)(const attn_problem *, const attn_tensors *, const attn_row *, size_t,
                           const double *, const double *, const double *, attn_comparison *,
                           attn_error *);
    void *symbol = dlsym(RTLD_NEXT, "attn_compare");
    memcpy(&compare, &symbol, sizeof compare);
    const attn_status status =
        compare(problem, tensors, rows, count, exact, exact_lse, twin, result, error);
    accept_if_told(result);
    return status;
}

attn_status attn_verify_backward(const attn_context *context, const attn_problem *problem,
                                 const attn_tensors *tensors, attn_gradient which,
                                 const attn_row *rows, size_t count, attn_comparison *result,
                                 attn_error *error) {
    attn_status (*verify)(const attn_context *, const attn_problem *, const attn_tensors *,
                          attn_gradient, const attn_row *, size_t, attn_comparison *, attn_error *);
    void *symbol = dlsym(RTLD_NEXT, "attn_verify_backward");
    memcpy(&verify, &symbol, sizeof verify);
    const attn_status status = verify(context, problem, tensors, which, rows, count, result, error);
    accept_if_told(result);
    return status;
}
