/* SPDX-License-Identifier: Apache-2.0
 *
 * claims.c - the options that a candidate claims, and random problems within them.
 *
 * Invariant: a problem has no option that was not claimed.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/message.h"
#include "cases/shape.h"
#include "judge/judge.h"

/* Words that are not bits of attn_option. */
enum claim {
    CLAIM_CAUSAL = 1,
    CLAIM_BOTTOM_RIGHT = 2,
    CLAIM_GQA = 4,
    CLAIM_CROSS = 8,
    CLAIM_SCALE = 16,
    CLAIM_DIM_V = 32,
    CLAIM_LSE = 64,
    CLAIM_STRIDES = 128,
    CLAIM_NAN = 256,
    CLAIM_OPTION_GRADIENTS = 512
};

static const struct {
    const char *word;
    uint32_t claim, option;
    const char *meaning;
} WORDS[] = {
    {"causal", CLAIM_CAUSAL, 0, "causal=True: query i sees keys j <= i"},
    {"bottom-right", CLAIM_BOTTOM_RIGHT, 0, "causal=\"bottom-right\": j <= i + Skv - Sq"},
    {"gqa", CLAIM_GQA, 0, "fewer KV heads than query heads"},
    {"cross", CLAIM_CROSS, 0, "Sq and Skv differ"},
    {"scale", CLAIM_SCALE, 0, "scale=X instead of 1/sqrt(D)"},
    {"dim-v", CLAIM_DIM_V, 0, "V and O have another head dimension"},
    {"lse", CLAIM_LSE, 0, "lse=True: O and the LSE are returned"},
    {"strides", CLAIM_STRIDES, 0, "tensors that are not contiguous"},
    {"nan", CLAIM_NAN, 0, "NaN in keys that no query, or only later queries see"},
    {"window", 0, ATTN_OPTION_WINDOW, "window=(L, R)"},
    {"softcap", 0, ATTN_OPTION_SOFTCAP, "softcap=X"},
    {"alibi", 0, ATTN_OPTION_ALIBI, "alibi_slopes=tensor (H)"},
    {"bias", 0, ATTN_OPTION_BIAS, "bias=tensor (B, H, Sq, Skv)"},
    {"mask", 0, ATTN_OPTION_MASK, "mask=boolean tensor of that shape, False hides"},
    {"sink", 0, ATTN_OPTION_SINK, "sink=tensor (H), logits"},
    {"used-kv", 0, ATTN_OPTION_USED_KV, "used_kv=tensor (B), lengths"},
    {"option-gradients", CLAIM_OPTION_GRADIENTS, 0,
     "backward: also the gradients of bias, sink and alibi_slopes"},
    {"packed", 0, ATTN_OPTION_PACKED, "libraries: packed sequences"},
    {"paged", 0, ATTN_OPTION_PAGED, "libraries: a paged KV cache"},
    {"used-q", 0, ATTN_OPTION_USED_Q, "libraries: used_q"},
    {"draft", 0, ATTN_OPTION_DRAFT, "libraries: a draft mask"},
    {"fp8-kv", 0, ATTN_OPTION_FP8_KV, "libraries: an fp8 KV cache"},
    {"any-scale", 0, ATTN_OPTION_ANY_SCALE, "libraries: a scale of 0, or beyond 2^64 or 2^-64"},
    {"offsets", 0, ATTN_OPTION_OFFSETS, "libraries: offsets"},
};
enum { WORD_COUNT = sizeof WORDS / sizeof *WORDS };

enum { KINDS_EVERY = 16, LARGE_AT = 9, DECODE_AT = 3, FUTURE_AT = 6, DIM_STEP = 8, DIM_MOST = 128 };

/* A larger scale amplifies the rounding of q.k. In backward P is computed from an fp32 LSE. */
static const float MOST_SCALE = 100.0F;

/* ---- words ----------------------------------------------------------------------------------- */

static bool take_word(const char *word, size_t length, struct claims *claims) {
    const bool all = length == 3 && strncmp(word, "all", 3) == 0;
    bool found = false;
    for (int i = 0; i < WORD_COUNT; i++) {
        if (all || (strlen(WORDS[i].word) == length && strncmp(WORDS[i].word, word, length) == 0)) {
            claims->words |= WORDS[i].claim;
            claims->options |= WORDS[i].option;
            found = true;
        }
    }
    return found;
}

static bool take_dtype(const char *word, size_t length, struct claims *claims) {
    for (int i = 0; DTYPE_NAMES[i] != NULL; i++) {
        if (strlen(DTYPE_NAMES[i]) == length && strncmp(DTYPE_NAMES[i], word, length) == 0) {
            claims->dtypes |= 1U << i;
            return true;
        }
    }
    return false;
}

static bool each_word(const char *text, bool (*take)(const char *, size_t, struct claims *),
                      struct claims *claims, const char *option, const char *expected,
                      attn_error *why) {
    while (*text != '\0') {
        const size_t length = strcspn(text, ",");
        if (!take(text, length, claims)) {
            return explain(why, "--%s: '%.*s' is none of %s", option, (int)length, text, expected);
        }
        text += length + (text[length] == ',');
    }
    return true;
}

bool claims_parse(const char *options, const char *dtypes, struct claims *claims, attn_error *why) {
    claims->words = claims->options = claims->dtypes = 0;
    return each_word(options, take_word, claims, "options", "those that --help lists", why) &&
           each_word(dtypes, take_dtype, claims, "dtype", "fp32, fp16 and bf16", why);
}

const char *claims_help(void) {
    static char text[2400];
    size_t used = 0;
    for (int i = 0; i < WORD_COUNT; i++) {
        used += (size_t)snprintf(text + used, sizeof text - used, "  %-16s %s\n", WORDS[i].word,
                                 WORDS[i].meaning);
    }
    return text;
}

bool claims_have(const struct claims *claims, const char *word) {
    struct claims one = {.words = 0};
    take_word(word, strlen(word), &one);
    return (one.words & ~claims->words) == 0 && (one.options & ~claims->options) == 0;
}

/* ---- problems -------------------------------------------------------------------------------- */

static enum recipe_kind kind_of(const struct claims *c, bool plain, struct parity_case *made) {
    const bool causal = (c->words & (CLAIM_CAUSAL | CLAIM_BOTTOM_RIGHT)) != 0;
    const int64_t place = made->number % KINDS_EVERY;
    made->kind = CASE_PLAIN;
    made->first_poisoned = -1;
    if (place == FUTURE_AT && causal) {
        /* Without NaN it is the same problem, so that the two can be compared. */
        const bool past = c->backward && made->number / KINDS_EVERY % 2 != 0;
        made->kind = (c->words & CLAIM_NAN) == 0 || plain ? CASE_PLAIN
                     : past                               ? CASE_PAST_NAN
                                                          : CASE_FUTURE_NAN;
        return RECIPE_FUTURE;
    }
    if (place == DECODE_AT && (c->words & CLAIM_CROSS) != 0) {
        return RECIPE_DECODE;
    }
    if (place == LARGE_AT) {
        made->kind = CASE_LARGE;
        return RECIPE_LARGE;
    }
    return RECIPE_PLAIN;
}

static void fit_sizes(const struct claims *c, uint64_t *rng, attn_problem *p) {
    if ((c->words & CLAIM_CROSS) == 0) {
        p->seq_kv = p->seq_q = p->seq_q < p->seq_kv ? p->seq_q : p->seq_kv;
    }
    p->seq_q = (p->seq_q + c->multiple - 1) / c->multiple * c->multiple;
    p->seq_kv = (p->seq_kv + c->multiple - 1) / c->multiple * c->multiple;
    if ((c->words & CLAIM_GQA) == 0) {
        p->heads_kv = -1;
    }
    if (c->head_dims->count > 0) {
        p->head_dim = c->head_dims->values[rng_range(rng, 0, c->head_dims->count - 1)];
    }
    if ((c->words & CLAIM_DIM_V) == 0) {
        p->head_dim_v = -1;
    }
}

static void fit_options(const struct claims *c, bool future, attn_problem *p) {
    const bool top = (c->words & CLAIM_CAUSAL) != 0;
    const bool bottom = (c->words & CLAIM_BOTTOM_RIGHT) != 0;
    if (p->causal != ATTN_CAUSAL_NONE || future) {
        p->causal = top && (p->causal != ATTN_CAUSAL_BOTTOM_RIGHT || !bottom) ? ATTN_CAUSAL_TOP_LEFT
                    : bottom ? ATTN_CAUSAL_BOTTOM_RIGHT
                             : ATTN_CAUSAL_NONE;
    }
    const bool any = (c->options & (uint32_t)ATTN_OPTION_ANY_SCALE) != 0 && !c->backward;
    if ((c->words & CLAIM_SCALE) == 0 || (!any && fabsf(p->scale) > MOST_SCALE)) {
        p->scale = NAN;
    }
    if ((c->options & (uint32_t)ATTN_OPTION_OFFSETS) == 0) {
        p->q_offset = p->kv_offset = 0;
    }
}

static void fit_layout(const struct claims *c, struct recipe *recipe) {
    const attn_bias_strides automatic = {ATTN_AUTO, ATTN_AUTO, ATTN_AUTO, ATTN_AUTO};
    attn_problem *p = &recipe->problem;
    recipe->lse = (c->words & CLAIM_LSE) != 0 || c->backward;
    recipe->slopes = true; /* there are no usual ones in a calling convention */
    if ((c->words & CLAIM_STRIDES) == 0) {
        recipe->arrangement = ARRANGE_GIVEN;
        p->layout = ATTN_BHSD;
        p->alignment = 16;
        p->bias_strides = p->mask_strides = automatic;
        p->alibi_batch_stride = 0;
    } else if (recipe->arrangement == ARRANGE_FUSED) {
        p->seq_kv = p->seq_q;
        p->head_dim_v = -1;
    }
}

void claims_draw(const struct claims *c, bool plain, struct parity_case *made, uint64_t seed,
                 int attempt) {
    const struct recipe_limits limits = {.dtypes = c->dtypes,
                                         .options = c->options,
                                         .head_dim_multiple = DIM_STEP,
                                         .head_dim_max = DIM_MOST,
                                         .head_dim_v = true,
                                         .budget = c->budget};
    uint64_t state = seed ^ 0x0DD5, *rng = &state;
    const enum recipe_kind kind = kind_of(c, plain, made);
    made->backward = c->backward;
    made->hidden = 0;
    recipe_draw_within(&made->recipe, seed, &limits, kind, attempt % 2);
    fit_layout(c, &made->recipe);
    fit_sizes(c, rng, &made->recipe.problem);
    fit_options(c, kind == RECIPE_FUTURE, &made->recipe.problem);
    if (made->recipe.arrangement == ARRANGE_BROADCAST && made->kind == CASE_FUTURE_NAN) {
        made->recipe.arrangement = ARRANGE_GIVEN; /* one key would be all of them */
    }
}
