/* SPDX-License-Identifier: Apache-2.0
 *
 * merge.c - attn_merge and attn_accumulate: their checks, and the call into a backend.
 */
#include "core/plan.h"

#include <stdio.h>

static attn_status check_element(const char *name, int32_t index, const void *pointer,
                                 size_t alignment, attn_error *error) {
    char text[32];
    snprintf(text, sizeof text, "%s[%d]", name, (int)index);
    return pointer_check(text, pointer, alignment, true, error);
}

/* An output that is a part's, other than the first one's in place. */
static attn_status check_place(const char *name, const void *output, const void *part,
                               int32_t index, bool in_place, attn_error *error) {
    if (output == NULL || output != part || (index == 0 && in_place)) {
        return ATTN_OK;
    }
    return attn_fail(error, ATTN_INVALID,
                     "%s = %p is %s_parts[%d], expected memory of its own, or %s_parts[0]%s", name,
                     output, name, (int)index, name, in_place ? "" : " of the same dtype");
}

static attn_status check_parts(const attn_problem *p, const void *const *o_parts,
                               const float *const *lse_parts, int32_t count, const void *o,
                               const float *lse, attn_error *error) {
    const size_t wide = (size_t)p->alignment, element = attn_dtype_size((attn_dtype)p->dtype_o);
    attn_status status = pointer_check("o", o, wide > element ? wide : element, true, error);
    if (status == ATTN_OK) {
        status = pointer_check("lse", lse, sizeof(float), false, error);
    }
    for (int32_t i = 0; status == ATTN_OK && i < count; i++) {
        status = check_element("o_parts", i, o_parts[i], wide, error);
        if (status == ATTN_OK && lse_parts != NULL) {
            status = check_element("lse_parts", i, lse_parts[i], sizeof(float), error);
        }
        if (status == ATTN_OK) {
            status = check_place("o", o, o_parts[i], i, p->dtype_o == (int32_t)p->dtype, error);
        }
        if (status == ATTN_OK && lse_parts != NULL) {
            status = check_place("lse", lse, lse_parts[i], i, true, error);
        }
    }
    return status;
}

static bool has_rows(const attn_problem *p) {
    return p->batch > 0 && (p->packed ? p->total_q : p->seq_q) > 0;
}

static attn_status merge_run(const attn_plan *plan, const struct merging *merging, void *stream,
                             attn_error *error) {
    if (plan->context->cuda != NULL) {
        return cuda_merge(plan->context->cuda, plan->name, &plan->problem, &plan->cuda, merging,
                          stream, error);
    }
    cpu_merge(&plan->problem, merging, plan->context->pool);
    return ATTN_OK;
}

attn_status attn_merge(const attn_plan *plan, const void *const *o_parts,
                       const float *const *lse_parts, int32_t count, void *o, float *lse,
                       void *stream, attn_error *error) {
    attn_status status = plan_check_direction(plan, ATTN_MERGE, error);
    if (status != ATTN_OK) {
        return status;
    }
    if (count < 1 || count > ATTN_MERGE_PARTS) {
        return attn_fail(error, ATTN_INVALID, "count = %d, expected 1 to %d", (int)count,
                         ATTN_MERGE_PARTS);
    }
    if (o_parts == NULL || (lse_parts == NULL && lse != NULL)) {
        return attn_fail(error, ATTN_INVALID, "%s = NULL, expected %d addresses%s",
                         o_parts == NULL ? "o_parts" : "lse_parts", (int)count,
                         o_parts == NULL ? "" : ", since lse is wanted");
    }
    const attn_problem *p = &plan->problem;
    if (has_rows(p)) {
        const struct merging merging = {.o_parts = o_parts,
                                        .lse_parts = lse_parts,
                                        .count = count,
                                        .o = o,
                                        .lse = lse,
                                        .dtype_o = (attn_dtype)p->dtype_o};
        status = check_parts(p, o_parts, lse_parts, count, o, lse, error);
        status = status != ATTN_OK ? status : merge_run(plan, &merging, stream, error);
    }
    return status != ATTN_OK ? status : attn_fail(error, ATTN_OK, "%s", "");
}

/* ---- attn_accumulate ------------------------------------------------------------------------- */

static attn_status check_sum(const attn_problem *p, const void *o_part, const float *lse_part,
                             const float *o_sum, const float *lse_sum, const void *o,
                             attn_error *error) {
    const size_t wide = (size_t)p->alignment, element = attn_dtype_size((attn_dtype)p->dtype_o);
    const size_t wide_sum = wide > sizeof(float) ? wide : sizeof(float);
    const struct {
        const char *name;
        const void *pointer;
        size_t alignment;
        bool needed;
    } given[] = {{"o_part", o_part, wide, true},
                 {"lse_part", lse_part, sizeof(float), lse_sum != NULL},
                 {"o_sum", o_sum, wide_sum, true},
                 {"lse_sum", lse_sum, sizeof(float), lse_part != NULL},
                 {"o", o, wide > element ? wide : element, false}};
    enum { COUNT = sizeof given / sizeof given[0] };
    for (int i = 0; i < COUNT; i++) {
        const attn_status status = pointer_check(given[i].name, given[i].pointer,
                                                 given[i].alignment, given[i].needed, error);
        if (status != ATTN_OK) {
            return status;
        }
        for (int j = 0; j < i; j++) {
            if (given[i].pointer != NULL && given[i].pointer == given[j].pointer &&
                !(given[i].pointer == o && given[j].pointer == o_sum &&
                  p->dtype_o == (int32_t)ATTN_FP32)) {
                return attn_fail(error, ATTN_INVALID, "%s = %p is %s, expected memory of its own",
                                 given[i].name, given[i].pointer, given[j].name);
            }
        }
    }
    return ATTN_OK;
}

attn_status attn_accumulate(const attn_plan *plan, const void *o_part, const float *lse_part,
                            float *o_sum, float *lse_sum, void *o, void *stream,
                            attn_error *error) {
    attn_status status = plan_check_direction(plan, ATTN_MERGE, error);
    if (status != ATTN_OK) {
        return status;
    }
    const attn_problem *p = &plan->problem;
    if (has_rows(p)) {
        const struct merging merging = {
            .o_parts = (const void *const[]){o_sum, o_part},
            .lse_parts = lse_sum != NULL ? (const float *const[]){lse_sum, lse_part} : NULL,
            .count = 2,
            .o = o != NULL ? o : o_sum,
            .lse = lse_sum,
            .dtype_o = o != NULL ? (attn_dtype)p->dtype_o : ATTN_FP32,
            .running = true,
        };
        status = check_sum(p, o_part, lse_part, o_sum, lse_sum, o, error);
        status = status != ATTN_OK ? status : merge_run(plan, &merging, stream, error);
    }
    return status != ATTN_OK ? status : attn_fail(error, ATTN_OK, "%s", "");
}
