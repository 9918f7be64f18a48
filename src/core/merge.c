/* SPDX-License-Identifier: Apache-2.0
 *
 * merge.c - attn_merge: its checks, and the call of a backend.
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
        if (status == ATTN_OK) {
            status = check_element("lse_parts", i, lse_parts[i], sizeof(float), error);
        }
        if (status == ATTN_OK) {
            status = check_place("o", o, o_parts[i], i, p->dtype_o == (int32_t)p->dtype, error);
        }
        if (status == ATTN_OK) {
            status = check_place("lse", lse, lse_parts[i], i, true, error);
        }
    }
    return status;
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
    if (o_parts == NULL || lse_parts == NULL) {
        return attn_fail(error, ATTN_INVALID, "%s = NULL, expected %d addresses",
                         o_parts == NULL ? "o_parts" : "lse_parts", (int)count);
    }
    const attn_problem *p = &plan->problem;
    if (p->batch > 0 && (p->packed ? p->total_q : p->seq_q) > 0) {
        status = check_parts(p, o_parts, lse_parts, count, o, lse, error);
        if (status == ATTN_OK && plan->context->cuda != NULL) {
            status = cuda_merge(plan->context->cuda, plan->name, p, &plan->cuda, o_parts, lse_parts,
                                count, o, lse, stream, error);
        } else if (status == ATTN_OK) {
            cpu_merge(p, o_parts, lse_parts, count, o, lse, plan->context->pool);
        }
    }
    return status != ATTN_OK ? status : attn_fail(error, ATTN_OK, "%s", "");
}
