/* SPDX-License-Identifier: Apache-2.0
 *
 * sample_run.c - a sample before and after a run: damage, what its result must be, and whether it
 * is.
 *
 * Invariant: sample_damage finds every byte that a kernel must not write and that is not 0xFF any
 * more. A result counts as right only by attn_compare.
 */
#include "cases/cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- damage ---------------------------------------------------------------------------------- */

static uint64_t hash_inputs(const struct sample *s) {
    uint64_t hash = 0;
    for (int i = 0; i < SAMPLE_BLOCKS; i++) {
        hash = i != BLOCK_O && i != BLOCK_LSE ? guarded_hash(&s->blocks[i], hash) : hash;
    }
    return hash;
}

void sample_touch(struct sample *s) {
    s->inputs = hash_inputs(s);
}

void sample_poison(struct sample *s) {
    if (s->gradients != NULL) {
        gradients_poison(s->gradients, s);
        return;
    }
    memset(s->o.data, 0xFF, s->o.size);
    memset(s->lse.data, 0xFF, s->lse.size);
}

const char *const SAMPLE_BLOCK_NAMES[SAMPLE_BLOCKS] = {"Q (or fused QKV)",
                                                       "K",
                                                       "V",
                                                       "O",
                                                       "the LSE",
                                                       "the bias",
                                                       "the mask",
                                                       "the ALiBi slopes",
                                                       "the sink",
                                                       "cu_seqlens_q",
                                                       "cu_seqlens_kv",
                                                       "used_kv",
                                                       "the scales of K",
                                                       "the scales of V",
                                                       "block_table",
                                                       "used_q",
                                                       "the draft mask",
                                                       "offsets"};

const char *sample_damage(const struct sample *s) {
    static _Thread_local char text[80];
    for (int i = 0; i < SAMPLE_BLOCKS; i++) {
        if (!guarded_intact(&s->blocks[i])) {
            snprintf(text, sizeof text, "bytes beside %s were written", SAMPLE_BLOCK_NAMES[i]);
            return text;
        }
    }
    if (hash_inputs(s) != s->inputs) {
        return "an input was changed";
    }
    const struct output_view o = view_of_o(s), lse = view_of_lse(s);
    if (!view_intact(&o, &s->o)) {
        return "bytes between the rows of O were written";
    }
    if (s->recipe.lse && !view_intact(&lse, &s->lse)) {
        return "bytes between the rows of LSE were written";
    }
    return s->gradients != NULL ? gradients_damage(s->gradients, s) : NULL;
}

/* ---- the result ------------------------------------------------------------------------------ */

static _Thread_local char message[800];

static const char *tell(const char *what, const char *why) {
    snprintf(message, sizeof message, "%s: %s", what, why);
    return message;
}

const char *expectation_make_rows(struct expectation *expected, const attn_context *context,
                                  const struct sample *s, attn_row *rows, size_t count) {
    attn_error why;
    const attn_problem *p = &s->full;
    const size_t values = count * (size_t)p->head_dim_v + 1;
    expected->count = count;
    expected->rows = rows;
    expected->o = malloc(values * sizeof(double));
    expected->lse = malloc((count + 1) * sizeof(double));
    expected->twin = malloc(values * sizeof(double));
    if (!expected->o || !expected->lse || !expected->twin) {
        return "no memory for the reference";
    }
    if (attn_reference(context, &s->problem, &s->tensors, ATTN_EXACT, rows, count, expected->o,
                       expected->lse, &why) != ATTN_OK ||
        attn_reference(context, &s->problem, &s->tensors, ATTN_TWIN, rows, count, expected->twin,
                       NULL, &why) != ATTN_OK) {
        return tell("attn_reference", why.text);
    }
    return NULL;
}

const char *expectation_make(struct expectation *expected, const attn_context *context,
                             const struct sample *s) {
    const attn_problem *p = &s->full;
    const size_t count = (size_t)(p->batch * p->heads_q * p->seq_q);
    return expectation_make_rows(expected, context, s, NULL, count);
}

void expectation_free(struct expectation *expected) {
    free(expected->rows);
    free(expected->o);
    free(expected->lse);
    free(expected->twin);
    memset(expected, 0, sizeof *expected);
}

attn_row expectation_row(const struct expectation *expected, const struct sample *s, size_t index) {
    const attn_problem *p = &s->full;
    const int64_t at = (int64_t)index;
    if (expected->rows != NULL) {
        return expected->rows[index];
    }
    return (attn_row){at / (p->heads_q * p->seq_q), at / p->seq_q % p->heads_q, at % p->seq_q};
}

const char *sample_compare(const struct sample *s, const struct expectation *expected,
                           attn_comparison *result) {
    attn_error why;
    attn_comparison local;
    result = result ? result : &local;
    *result = (attn_comparison){.size = sizeof *result};
    if (attn_compare(&s->problem, &s->tensors, expected->rows, expected->count, expected->o,
                     expected->lse, expected->twin, result, &why) != ATTN_OK) {
        return tell("attn_compare", why.text);
    }
    if (result->pass) {
        return NULL;
    }
    attn_comparison_print(result, message, sizeof message);
    return message;
}
