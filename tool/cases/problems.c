/* SPDX-License-Identifier: Apache-2.0
 *
 * problems.c - see problems.h.
 */
#include <string.h>

#include "base/message.h"
#include "cases/cases.h"
#include "cases/problems.h"
#include "device/timing.h"

enum { DECODE_KEYS = 16 };
enum { CANONICAL = 512, LENGTHS = 6, FULL_INDEX = 3 };
enum { CPU_DIM = 64, CPU_HEADS = 8, CPU_SHORTEST = 128 };
enum { FEATURES = 2048, TOKENS = 16384, SHORTEST = 512 };

static bool is_cpu(const char *device) {
    return strncmp(device, "cpu", 3) == 0;
}

int64_t bench_timings_per_problem(const char *device) {
    return is_cpu(device) ? CACHE_STATES : MODE_COUNT * CACHE_STATES;
}

static bool takes(const attn_variant *variant, attn_dtype dtype) {
    return (variant->dtypes & (1U << dtype)) != 0;
}

/* What it is for: fp32 on CPUs, else fp16, if it takes that. */
static attn_dtype dtype_of(const attn_variant *variant, bool cpu) {
    return cpu && takes(variant, ATTN_FP32) ? ATTN_FP32
           : takes(variant, ATTN_FP16)      ? ATTN_FP16
           : takes(variant, ATTN_BF16)      ? ATTN_BF16
                                            : ATTN_FP32;
}

/* Plain, or causal where it takes nothing else; or one query on as many keys as make up for it. */
static bool settle(const attn_context *context, const attn_variant *variant, attn_problem *problem,
                   attn_error *why) {
    static const attn_causal FORMS[] = {ATTN_CAUSAL_NONE, ATTN_CAUSAL_BOTTOM_RIGHT,
                                        ATTN_CAUSAL_TOP_LEFT};
    attn_error first = {""}, other; /* the reason given is that of the plain form */
    for (int decode = 0; decode <= 1; decode++) {
        for (size_t i = 0; i < sizeof FORMS / sizeof *FORMS; i++) {
            problem->causal = FORMS[i];
            if (attn_variant_check(context, variant->name, problem,
                                   decode == 0 && i == 0 ? &first : &other) == ATTN_OK) {
                return true;
            }
        }
        problem->seq_q = 1;
        problem->seq_kv *= DECODE_KEYS;
    }
    return explain(why, "%s", first.text);
}

static void square(attn_problem *problem, int64_t batch, int64_t heads, int64_t seq) {
    problem->batch = batch;
    problem->heads_q = heads;
    problem->seq_q = problem->seq_kv = seq;
}

bool bench_problem(const attn_context *context, const char *device, const attn_variant *variant,
                   bool quick, int index, attn_problem *problem, attn_error *why) {
    const bool cpu = is_cpu(device);
    attn_problem_init(problem);
    problem->dtype = dtype_of(variant, cpu);
    problem->head_dim = cpu || variant->head_dim_max <= 0 ? CPU_DIM : variant->head_dim_max;
    problem_suit(variant, problem);
    if (index < 0 || index > LENGTHS) {
        return explain(why, "problem %d: there are %d", index, LENGTHS + 1);
    }
    if (index == 0 && quick) {
        square(problem, 1, 4, CANONICAL / 2);
    } else if (index == 0) {
        square(problem, 2, 8, CANONICAL);
    } else if (cpu) {
        square(problem, 1, CPU_HEADS, (int64_t)CPU_SHORTEST << (index - 1));
    } else {
        const int64_t seq = (int64_t)SHORTEST << (index - 1);
        const int64_t heads = FEATURES / problem->head_dim;
        square(problem, TOKENS / seq, heads > 0 ? heads : 1, seq);
    }
    return settle(context, variant, problem, why);
}

bool profile_problem(const attn_context *context, const attn_variant *variant,
                     attn_problem *problem, attn_error *why) {
    return bench_problem(context, "cuda", variant, false, FULL_INDEX, problem, why);
}
