/* SPDX-License-Identifier: Apache-2.0
 *
 * plan.h - contexts, variants and plans, as the files of libattn see them.
 */
#ifndef ATTN_PLAN_H
#define ATTN_PLAN_H

#include "cpu.h"

enum { WORKSPACE_ALIGN = 16 }; /* asked of the caller: what malloc gives; kernels align further */

enum variant_family { FAMILY_CPU_TILE, FAMILY_CPU_ROW };

struct variant {
    attn_variant info;
    enum variant_family family;
    bool added; /* by attn_variant_add: owns its name, runs only when asked for by name */
};

struct attn_context {
    struct pool *pool;
    struct variant *variants; /* built in, best first, then the added ones */
    int32_t variant_count;
};

/* Immutable once made. */
struct attn_plan {
    attn_context *context;
    attn_problem problem; /* resolved */
    int32_t variant;      /* index; a variant's strings stay where they are, the array may move */
    const char *name;
    enum variant_family family;
    bool named; /* asked for by name: nothing was refused */
    size_t threads;
    size_t workspace;
    struct cpu_geometry cpu;
};

/* The built-in table into context->variants. */
attn_status variants_load(attn_context *context, attn_error *error);
void variants_free(attn_context *context);
const struct variant *variant_find(const attn_context *context, const char *name, int32_t *index);

/* The clauses, in order: ATTN_OK or the first that refuses. The problem is resolved. */
attn_status variant_applies(const struct variant *variant, const attn_problem *resolved,
                            attn_error *error);

#endif /* ATTN_PLAN_H */
