/* SPDX-License-Identifier: Apache-2.0
 *
 * use.h - random shapes of the kinds that users have, to try a choice off the grid it was tuned on:
 * what `attest bench --regret` runs over.
 *
 * Invariant: a shape depends on seed, index and limits alone, and is the same on every machine.
 */
#ifndef ATTEST_CASES_USE_H
#define ATTEST_CASES_USE_H

#include "attn.h"
#include "base/json.h"

enum use_class {
    USE_PREFILL, /* seq_q = seq_kv */
    USE_CHUNK,   /* 16 to 1024 queries, 2k to 128k keys */
    USE_DECODE,  /* 1 to 16 queries, batches up to 512, sometimes KV caches of different lengths */
    USE_PACKED,  /* prompts of different lengths, or prompts and decoding steps in one batch */
    USE_CLASSES
};
extern const char *const USE_CLASS_NAMES[]; /* ends with NULL */

/* The most that a shape may need. The ranges above give way to it. */
struct use_limits {
    double flops; /* packed: of the lengths that there are */
    double bytes; /* of Q, K, V and O together; of a bias; of a mask */
    bool fp32;    /* fp16, bf16 and fp32 rather than the first two */
};

enum { USE_BATCH_MOST = 512 };

struct use_shape {
    enum use_class class;
    attn_problem problem;                                        /* resolved */
    int32_t cu_q[USE_BATCH_MOST + 1], cu_kv[USE_BATCH_MOST + 1]; /* packed: batch + 1 */
    int32_t used_kv[USE_BATCH_MOST];                             /* used_kv: batch */
};

/* The index-th shape of a seed; the classes take turns. */
void use_draw(struct use_shape *shape, uint64_t seed, int index, const struct use_limits *limits);

/* Whether it has an option of attn_option other than packed and used_kv. */
bool use_has_option(const struct use_shape *shape);

/* "class", "problem" and, where it has them, "seqlens_q", "seqlens_kv", "used_kv", into an open
 * object. */
void use_json(struct json *json, const struct use_shape *shape);

#endif /* ATTEST_CASES_USE_H */
