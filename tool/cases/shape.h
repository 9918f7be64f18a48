/* SPDX-License-Identifier: Apache-2.0
 *
 * shape.h - an attention problem on the command line, in a line of text and in JSON.
 */
#ifndef ATTEST_CASES_SHAPE_H
#define ATTEST_CASES_SHAPE_H

#include "attn.h"
#include "base/args.h"
#include "base/json.h"
#include "base/json_read.h"

/* Names in the order of the library's enums. */
extern const char *const DTYPE_NAMES[];        /* fp32 fp16 bf16 */
extern const char *const DTYPE_KV_NAMES[];     /* those, e4m3 e5m2 */
extern const char *const CAUSAL_NAMES[];       /* none top-left bottom-right */
extern const char *const LAYOUT_NAMES[];       /* bhsd bshd */
extern const char *const TENSOR_CORES_NAMES[]; /* auto never require */

/* How big it is: one problem, or one for each combination of what was given. */
enum { SIZES_ARGS = 8 };
struct sizes {
    struct arg_ints of[SIZES_ARGS]; /* in the order of the options */
};

/* What is computed. */
struct semantics {
    int dtype, causal, layout;
    int64_t window[2], q_offset, kv_offset;
    double scale, softcap;
    bool alibi;
};
enum { SEMANTICS_ARGS = 9, SEMANTICS_DTYPE = 0 }; /* --dtype is the first of its table */

/* What only random inputs have: those of plan and bench. */
struct extras {
    int tensor_cores;
    bool sink, bias, mask;
    int64_t page_size;
    int dtype_kv;
};
enum { EXTRAS_ARGS = 6 };

/* Each sets the defaults (the canonical problem: B2 H8 S512 D64, fp32) and fills a table that
 * points at them. On a GPU the verbs that make their own inputs take fp16 where no dtype was
 * given. */
void sizes_args(struct sizes *sizes, struct arg args[SIZES_ARGS]);
void semantics_args(struct semantics *semantics, struct arg args[SEMANTICS_ARGS]);
void extras_args(struct extras *extras, struct arg args[EXTRAS_ARGS]);

/* The name of the first option of a table that was given, or NULL. */
const char *first_seen(const struct arg *args, size_t count);

/* How many combinations there are; the last option changes fastest. */
int sizes_count(const struct sizes *sizes);

/* The problem of one combination; and the fields of semantics alone. */
void options_apply(const struct sizes *sizes, int combination, const struct semantics *semantics,
                   const struct extras *extras, attn_problem *problem);
void semantics_apply(const struct semantics *semantics, attn_problem *problem);

/* "fp16 B1 H32/8 S1024 D128 causal"; cut to fit. Takes a resolved problem; returns the buffer. */
const char *problem_text(const attn_problem *problem, char *buffer, size_t size);

void problem_json(struct json *json, const char *key, const attn_problem *problem);

/* What problem_json wrote, with every default replaced. False: it is no problem. */
bool problem_read(const struct json_value *from, attn_problem *problem);

#endif /* ATTEST_CASES_SHAPE_H */
