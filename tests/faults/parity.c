/* SPDX-License-Identifier: Apache-2.0
 *
 * parity.c - attn_forward and attn_compare with a fault, to be loaded before libattn (LD_PRELOAD),
 * for any dtype and any strides. $FAULT says which:
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

static unsigned char *element(const attn_problem *p, void *o, int64_t b, int64_t h, int64_t i,
                              int64_t d) {
    const int64_t at = b * p->o.batch + h * p->o.head + i * p->o.row + d;
    return (unsigned char *)o + (size_t)at * attn_dtype_size(p->dtype);
}

static float changed(const attn_problem *p, float value, int64_t i, int64_t d) {
    if (is("scale")) {
        return 1.25F * value;
    }
    if (is("growth") && p->seq_kv > 300) {
        return value * (1.0F - (float)(p->seq_kv - 300) / 1000.0F);
    }
    if (is("column") && d == 5) {
        return value + 1.0F;
    }
    if (is("tail") && i == p->seq_q - 1) {
        return 0.0F;
    }
    return is("nan") && i == p->seq_q / 2 && d == 3 ? NAN : value;
}

static void change_outputs(const attn_problem *p, const attn_tensors *t) {
    for (int64_t b = 0; b < p->batch; b++) {
        for (int64_t h = 0; h < p->heads_q; h++) {
            for (int64_t i = 0; i < p->seq_q; i++) {
                for (int64_t d = 0; d < p->head_dim_v; d++) {
                    unsigned char *at = element(p, t->o, b, h, i, d);
                    float value;
                    attn_to_float(p->dtype, &value, at, 1);
                    const float other = changed(p, value, i, d);
                    if (!(other == value)) {
                        attn_from_float(p->dtype, at, &other, 1);
                    }
                }
                if (is("lse") && t->lse != NULL) {
                    t->lse[b * p->lse.batch + h * p->lse.head + i * p->lse.row] += 0.5F;
                }
            }
        }
    }
}

/* After the last element, or before the first where that is the page without access. */
static void write_beside(const attn_problem *p, const attn_tensors *t) {
    unsigned char *after =
        element(p, t->o, p->batch - 1, p->heads_q - 1, p->seq_q - 1, p->head_dim_v - 1) +
        attn_dtype_size(p->dtype);
    unsigned char *at = (uintptr_t)after % 4096 != 0 ? after : (unsigned char *)t->o - 1;
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

attn_status attn_forward(const attn_plan *plan, const attn_tensors *tensors, void *workspace,
                         size_t workspace_size, void *stream, attn_error *error) {
    static int calls;
    attn_status (*forward)(const attn_plan *, const attn_tensors *, void *, size_t, void *,
                           attn_error *);
    void *symbol = dlsym(RTLD_NEXT, "attn_forward");
    const char *only = getenv("FAULT_VARIANT");
    fault = getenv("FAULT");
    memcpy(&forward, &symbol, sizeof forward);
    if (fault == NULL || symbol == NULL) {
        abort();
    }
    attn_problem planned = {.size = sizeof planned};
    attn_plan_problem(plan, &planned, NULL);
    const attn_problem *p = &planned;
    const int empty = p->batch == 0 || p->seq_q == 0;
    if (empty || (only != NULL && strcmp(only, attn_plan_variant(plan)) != 0)) {
        return forward(plan, tensors, workspace, workspace_size, stream, error);
    }
    misbehave(++calls);
    if (is("noop")) {
        error->text[0] = '\0';
        return ATTN_OK;
    }
    const attn_status status = forward(plan, tensors, workspace, workspace_size, stream, error);
    if (!p->packed) {
        change_outputs(p, tensors);
        if (is("beside")) {
            write_beside(p, tensors);
        }
    }
    if (is("input")) {
        *(unsigned char *)(uintptr_t)tensors->q ^= 1;
    }
    if (is("late") && calls == LATE_CALL) {
        *(unsigned char *)tensors->o ^= 1;
    }
    return status;
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
    const char *name = getenv("FAULT");
    if (name != NULL && strcmp(name, "accept") == 0) {
        result->pass = result->o_pass = result->lse_pass = true;
    }
    return status;
}
