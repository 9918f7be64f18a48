/* SPDX-License-Identifier: Apache-2.0
 *
 * forward.c - an attn_forward with a fault, to be loaded before libattn (LD_PRELOAD). $FAULT says
 * which:
 *
 *     none    the library's own result
 *     first   the first element of O is off by one
 *     hidden  one element of O is NaN, in a row that a sample may leave out
 *     noop    nothing is computed
 *     late    right for the first calls, off by one in later ones
 *     status  the call fails
 *
 * It knows fp32 problems only.
 */
#include <dlfcn.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn_inspect.h"

/* 4 of a check, 1 to warm up, and not quite the 4 that are timed at least. */
enum { GOOD_CALLS = 8 };

attn_status attn_forward(const attn_plan *plan, const attn_tensors *tensors, void *workspace,
                         size_t workspace_size, void *stream, attn_error *error) {
    static int calls;
    attn_status (*forward)(const attn_plan *, const attn_tensors *, void *, size_t, void *,
                           attn_error *);
    void *symbol = dlsym(RTLD_NEXT, "attn_forward");
    const char *fault = getenv("FAULT");
    memcpy(&forward, &symbol, sizeof forward);
    if (fault == NULL || symbol == NULL) {
        abort();
    }
    calls++;
    if (strcmp(fault, "noop") == 0) {
        error->text[0] = '\0';
        return ATTN_OK;
    }
    if (strcmp(fault, "status") == 0) {
        snprintf(error->text, sizeof error->text, "planted fault");
        return ATTN_DEVICE;
    }
    const attn_status status = forward(plan, tensors, workspace, workspace_size, stream, error);
    attn_problem planned = {.size = sizeof planned};
    attn_plan_problem(plan, &planned, NULL);
    const attn_problem *p = &planned;
    float *o = tensors->o;
    const int64_t count = p->batch * p->heads_q * p->seq_q * p->head_dim_v;
    if (strcmp(fault, "first") == 0 || (strcmp(fault, "late") == 0 && calls > GOOD_CALLS)) {
        o[0] += 1.0F;
    }
    if (strcmp(fault, "hidden") == 0) {
        o[count - p->head_dim_v * p->seq_q / 2] = NAN;
    }
    return status;
}
