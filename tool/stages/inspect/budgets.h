/* SPDX-License-Identifier: Apache-2.0
 *
 * budgets.h - the lines of budgets.def, one for each cubin.
 *
 * Invariant: a variant has at most one line for each architecture.
 */
#ifndef ATTEST_STAGES_INSPECT_BUDGETS_H
#define ATTEST_STAGES_INSPECT_BUDGETS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "attn.h"

struct budget {
    char variant[96], arch[16];
    int64_t registers;  /* the most */
    int64_t tensor_ops; /* the fewest; 0: none at all */
};

struct budgets {
    struct budget *lines;
    size_t count;
};

/* On failure the budgets are empty. */
bool budgets_built_in(struct budgets *budgets, attn_error *why);
void budgets_free(struct budgets *budgets);

/* NULL: there is none. */
const struct budget *budgets_find(const struct budgets *budgets, const char *variant,
                                  const char *arch);

#endif /* ATTEST_STAGES_INSPECT_BUDGETS_H */
