/* SPDX-License-Identifier: Apache-2.0
 *
 * test_mask.c - boolean masks on the CPU: what they are equal to, what they hide, and rows and
 * fully masked KV tiles. Masks of any strides, together with all other
 * options, are sampled in test_parity and test_oracle; kernels of GPUs are in test_vgpu_mask.
 */
#include <math.h>
#include <stdlib.h>

#include "small.h"
#include "test.h"
#include "tool/cases/cases.h"
#include "verify.h"

static attn_context *context;

static attn_problem problem_of(int dtype, int64_t queries, int64_t keys) {
    attn_problem p;
    attn_problem_init(&p);
    p.dtype = (attn_dtype)dtype;
    p.batch = 2;
    p.heads_q = 4;
    p.heads_kv = 2;
    p.seq_q = queries;
    p.seq_kv = keys;
    p.head_dim = 40;
    p.head_dim_v = 24;
    return p;
}

/* Whether the mask of a test shows key j to query i of head h. */
typedef bool shows(const struct sample *s, int64_t h, int64_t i, int64_t j);

static bool ones(const struct sample *s, int64_t h, int64_t i, int64_t j) {
    (void)s, (void)h, (void)i, (void)j;
    return true;
}

static bool lower_right(const struct sample *s, int64_t h, int64_t i, int64_t j) {
    (void)h;
    return j <= i + s->full.seq_kv - s->full.seq_q;
}

static bool upper_left(const struct sample *s, int64_t h, int64_t i, int64_t j) {
    (void)s, (void)h;
    return j <= i;
}

static bool scattered(const struct sample *s, int64_t h, int64_t i, int64_t j) {
    (void)s;
    return (7 * h + 5 * i + 3 * j) % 11 > 3;
}

/* Nothing of every fifth row, and of no row the first 700 keys: a block of them on every CPU. */
static bool sparse(const struct sample *s, int64_t h, int64_t i, int64_t j) {
    return i % 5 != 2 && j >= 700 && scattered(s, h, i, j);
}

static void set_mask(struct sample *s, shows *shown) {
    const attn_problem *p = &s->full;
    const attn_bias_strides *t = &p->mask_strides;
    for (int64_t n = 0; n < p->batch * p->heads_q * p->seq_q; n++) {
        const int64_t i = n % p->seq_q, h = n / p->seq_q % p->heads_q,
                      b = n / p->seq_q / p->heads_q;
        for (int64_t j = 0; j < p->seq_kv; j++) {
            s->mask.data[b * t->batch + h * t->head + i * t->row + j * t->col] =
                shown(s, h, i, j) ? (unsigned char)(1 + j % 255) : 0;
        }
    }
    sample_touch(s);
}

/* A sample without a mask, and one with the same Q, K and V and this mask. */
struct pair {
    struct sample plain, masked;
};

static bool pair_make(struct pair *pair, const attn_problem *p, uint64_t seed, shows *shown) {
    struct recipe recipe;
    recipe_init(&recipe, p, seed);
    if (!CHECK(sample_make(&pair->plain, &recipe))) {
        return false;
    }
    recipe.problem.mask = true;
    if (!CHECK(sample_make(&pair->masked, &recipe))) {
        sample_free(&pair->plain);
        return false;
    }
    for (int i = 0; i < 3; i++) { /* K of keys that the random mask hid is NaN */
        memcpy(pair->masked.qkv[i].data, pair->plain.qkv[i].data, pair->plain.qkv[i].size);
    }
    set_mask(&pair->masked, shown);
    return true;
}

static void pair_free(struct pair *pair) {
    sample_free(&pair->plain);
    sample_free(&pair->masked);
}

/* ---- laws ------------------------------------------------------------------------------------ */

static bool same_bytes(const struct guarded *a, const struct guarded *b) {
    return a->size == b->size && memcmp(a->data, b->data, a->size) == 0;
}

/* user: the sample without a mask. */
static void same_bits(const struct sample *s, const char *variant, void *user) {
    struct sample *plain = user;
    const char *wrong = sample_forward(context, plain, variant);
    CHECK_MSG(!wrong, "%s: %s", variant, wrong ? wrong : "");
    CHECK_MSG(same_bytes(&s->o, &plain->o) && same_bytes(&s->lse, &plain->lse),
              "%s: a mask of ones changes bits", variant);
}

TEST(a_mask_of_ones_is_none) {
    for (int round = 0; round < 12; round++) {
        attn_problem p = problem_of(round % 3, round < 6 ? 37 : 5, 531);
        p.causal = round % 2 ? ATTN_CAUSAL_BOTTOM_RIGHT : ATTN_CAUSAL_NONE;
        p.softcap = round % 4 == 3 ? 4.0F : 0.0F;
        p.sink = round % 5 == 4;
        struct pair pair;
        if (pair_make(&pair, &p, (uint64_t)round, ones)) {
            sample_each_variant(context, &pair.masked, same_bits, &pair.plain);
            pair_free(&pair);
        }
    }
}

/* user: what is expected of another problem with the same answer. */
static void answers(const struct sample *s, const char *variant, void *user) {
    const char *wrong = sample_compare(s, user, NULL);
    CHECK_MSG(!wrong, "%s: %s", variant, wrong ? wrong : "");
}

static void judge_as(struct sample *masked, const struct sample *same) {
    struct expectation expected = {0};
    const char *wrong = expectation_make(&expected, context, same);
    if (CHECK_MSG(!wrong, "%s", wrong ? wrong : "")) {
        sample_each_variant(context, masked, answers, &expected);
    }
    expectation_free(&expected);
}

TEST(a_mask_says_what_causal_says) {
    for (int round = 0; round < 12; round++) {
        const bool corner = round % 2 == 0;
        attn_problem p =
            problem_of(round % 3, round < 6 ? 60 : 5, corner ? (round < 6 ? 60 : 5) : 90);
        struct pair pair;
        if (pair_make(&pair, &p, (uint64_t)round, corner ? upper_left : lower_right)) {
            pair.plain.problem.causal = pair.plain.full.causal =
                corner ? ATTN_CAUSAL_TOP_LEFT : ATTN_CAUSAL_BOTTOM_RIGHT;
            judge_as(&pair.masked, &pair.plain);
            pair_free(&pair);
        }
    }
}

/* used_kv of a sample: its last keys are padding, of which K is NaN. */
static bool used(const struct sample *s, int64_t h, int64_t i, int64_t j) {
    (void)h, (void)i;
    return j < 1100 - 300 * (s->full.heads_q % 3);
}

/* A key-padding mask (batch, 1, 1, keys) says what used_kv says, and costs no bit. */
TEST(padding_on_the_right_is_used_kv) {
    for (int round = 0; round < 12; round++) {
        attn_problem p = problem_of(round % 3, round < 6 ? 43 : 3, 1300);
        p.heads_q = 2 + round % 2 * 2;
        p.softcap = round % 4 > 1 ? 6.0F : 0.0F;
        p.used_kv = true;
        struct recipe recipe;
        struct sample padded, masked;
        recipe_init(&recipe, &p, (uint64_t)round);
        if (!CHECK(sample_make(&padded, &recipe))) {
            return;
        }
        recipe.problem.used_kv = false;
        recipe.problem.mask = true;
        recipe.problem.mask_strides = (attn_bias_strides){p.seq_kv, 0, 0, 1};
        if (!CHECK(sample_make(&masked, &recipe))) {
            sample_free(&padded);
            return;
        }
        set_mask(&masked, used);
        for (int64_t b = 0; b < p.batch; b++) {
            int32_t length = 0;
            while (length < p.seq_kv && used(&masked, 0, 0, length)) {
                length++;
            }
            ((int32_t *)(void *)padded.used.data)[b] = length;
        }
        for (int i = 0; i < 3; i++) {
            memcpy(masked.qkv[i].data, padded.qkv[i].data, padded.qkv[i].size);
        }
        sample_touch(&padded);
        sample_touch(&masked);
        sample_each_variant(context, &masked, same_bits, &padded);
        sample_free(&padded);
        sample_free(&masked);
    }
}

/* Bands that begin and end anywhere in a word of 32 keys, another one in each row and head. */
static bool band(const struct sample *s, int64_t h, int64_t i, int64_t j) {
    (void)s;
    return j >= 5 * i + h && j < 5 * i + h + 31 + 7 * (i % 9);
}

/* One key is hidden from one row in twenty, now and then at the edge of a word. */
static bool one_hole(const struct sample *s, int64_t h, int64_t i, int64_t j) {
    (void)s;
    return i % 20 != 7 || j != 29 + (i + h) % 6;
}

/* Rows of which a band is seen, a hole in the middle of it, and rows that see everything. */
static bool torn_band(const struct sample *s, int64_t h, int64_t i, int64_t j) {
    return i % 3 == 0 || (band(s, h, i, j) && (j + i) % 40 != 39);
}

TEST(bands_and_holes) {
    static shows *const masks[] = {band, one_hole, torn_band};
    for (int round = 0; round < 36; round++) {
        attn_problem p = problem_of(round % 3, round % 4 < 3 ? 70 : 4, 333);
        p.heads_q = round % 2 ? 2 : 6;
        p.window_left = round % 5 == 4 ? 100 : -1;
        p.causal = round % 5 > 2 ? ATTN_CAUSAL_BOTTOM_RIGHT : ATTN_CAUSAL_NONE;
        p.alibi = round % 7 == 6;
        p.bias = round % 7 == 5;
        p.bias_dtype = (attn_dtype)(round / 12);
        struct pair pair;
        if (pair_make(&pair, &p, (uint64_t)round, masks[round / 3 % 3])) {
            sample_each_variant(context, &pair.masked, sample_must_pass, context);
            pair_free(&pair);
        }
    }
}

/* Keys that no row sees, between others. */
static bool same_holes(const struct sample *s, int64_t h, int64_t i, int64_t j) {
    (void)s, (void)h, (void)i;
    return j % 37 != 5 && j % 64 != 31;
}

/* One row of the mask for all rows, or for all heads, with holes. */
TEST(holes_that_rows_share) {
    for (int round = 0; round < 12; round++) {
        attn_problem p = problem_of(round % 3, round < 6 ? 70 : 4, 333);
        p.mask = true;
        p.mask_strides =
            round % 2 ? (attn_bias_strides){0, 0, 0, 1} : (attn_bias_strides){0, 0, p.seq_kv, 1};
        struct recipe recipe;
        struct sample s;
        recipe_init(&recipe, &p, (uint64_t)round);
        if (CHECK(sample_make(&s, &recipe))) {
            set_mask(&s, same_holes);
            for (int64_t n = 0; n < p.batch * p.heads_kv; n++) { /* no NaN of hidden keys is left */
                for (int64_t j = 0; j < p.seq_kv * p.head_dim; j++) {
                    const float value = (float)((j + 3 * n) % 7) / 4.0F - 0.75F;
                    const int64_t at = sample_at_k(&s, n / p.heads_kv, n % p.heads_kv, 0) + j;
                    attn_from_float(p.dtype, s.qkv[1].data + (size_t)at * attn_dtype_size(p.dtype),
                                    &value, 1);
                }
            }
            sample_touch(&s);
            sample_each_variant(context, &s, sample_must_pass, context);
            sample_free(&s);
        }
    }
}

/* In the biased one -inf is added where the mask hides. */
TEST(a_mask_says_what_a_bias_of_minus_infinity_says) {
    for (int round = 0; round < 6; round++) {
        attn_problem p = problem_of(round % 3, round < 3 ? 41 : 5, 77);
        p.bias = true;
        struct pair pair;
        if (!pair_make(&pair, &p, (uint64_t)round, scattered)) {
            return;
        }
        float *bias = (float *)(void *)pair.plain.bias.data;
        memcpy(pair.masked.bias.data, bias, pair.plain.bias.size);
        sample_touch(&pair.masked);
        for (size_t at = 0; at < pair.masked.mask.size; at++) { /* both are contiguous */
            bias[at] = pair.masked.mask.data[at] != 0 ? bias[at] : -INFINITY;
        }
        sample_touch(&pair.plain);
        judge_as(&pair.masked, &pair.plain);
        judge_as(&pair.plain, &pair.masked);
        pair_free(&pair);
    }
}

/* ---- what it hides --------------------------------------------------------------------------- */

/* A select, not a sum, and after the bias: NaN and infinity under the mask do not show. */
TEST(what_is_hidden_does_not_show) {
    static const float wild[] = {NAN, INFINITY, -INFINITY, 1e30F};
    for (int round = 0; round < 12; round++) {
        attn_problem p = problem_of(round % 3, round < 6 ? 41 : 5, 301);
        p.bias = true;
        p.softcap = round % 2 ? 5.0F : 0.0F;
        struct pair pair;
        if (!pair_make(&pair, &p, (uint64_t)round, scattered)) {
            return;
        }
        struct sample *s = &pair.masked;
        const size_t element = attn_dtype_size(p.dtype);
        for (size_t at = 0; at < s->mask.size; at++) {
            if (s->mask.data[at] == 0) {
                ((float *)(void *)s->bias.data)[at] = wild[at % 4];
            }
        }
        for (int64_t j = 3; j < p.seq_kv; j += 17) { /* and keys that no query sees */
            for (int64_t n = 0; n < p.batch * p.heads_q * p.seq_q; n++) {
                s->mask.data[n * p.seq_kv + j] = 0;
            }
            for (int64_t n = 0; n < p.batch * p.heads_kv; n++) {
                const int64_t at = sample_at_k(s, n / p.heads_kv, n % p.heads_kv, j);
                attn_from_float(p.dtype, s->qkv[1].data + (size_t)(at + j % p.head_dim) * element,
                                &wild[j % 3], 1);
            }
        }
        sample_touch(s);
        sample_each_variant(context, s, sample_must_pass, context);
        pair_free(&pair);
    }
}

static float o_at(const struct sample *s, int64_t b, int64_t h, int64_t i, int64_t d) {
    float value;
    const size_t element = attn_dtype_size(s->full.dtype);
    attn_to_float(s->full.dtype, &value,
                  s->o.data + (size_t)(sample_at_o(s, b, h, i) + d) * element, 1);
    return value;
}

/* Rows of which `sparse` leaves nothing: O is 0, the LSE -inf or the sink. */
static void empty_where_hidden(const struct sample *s, const char *variant, void *user) {
    const attn_problem *p = &s->full;
    (void)user;
    for (int64_t n = 0; n < p->batch * p->heads_q * p->seq_q; n++) {
        const int64_t i = n % p->seq_q, h = n / p->seq_q % p->heads_q,
                      b = n / p->seq_q / p->heads_q;
        const float lse = s->tensors.lse[sample_at_lse(s, b, h, i)];
        const float empty = p->sink ? s->tensors.sink[h] : -INFINITY;
        for (int64_t d = 0; d < p->head_dim_v && i % 5 == 2; d++) {
            CHECK_MSG(o_at(s, b, h, i, d) == 0.0F && lse == empty, "%s: row %d: O %g, LSE %g",
                      variant, (int)i, (double)o_at(s, b, h, i, d), (double)lse);
        }
    }
    sample_must_pass(s, variant, context);
}

TEST(rows_and_blocks_that_are_hidden_entirely) {
    for (int round = 0; round < 12; round++) {
        attn_problem p = problem_of(round % 3, round < 6 ? 23 : 5, 1531);
        p.sink = round % 2;
        p.alibi = round % 4 > 1;
        struct pair pair;
        if (pair_make(&pair, &p, (uint64_t)round, sparse)) {
            sample_each_variant(context, &pair.masked, empty_where_hidden, NULL);
            pair_free(&pair);
        }
    }
}

/* ---- where it lies --------------------------------------------------------------------------- */

/* The mask is not aligned, and between its elements lies 0xFF. */
TEST(any_stride_and_any_length) {
    static const int64_t lengths[] = {1, 2, 3, 7, 13, 61, 257, 521};
    struct tally tally = {0};
    for (int round = 0; round < 24; round++) {
        const int64_t keys = lengths[round % 8];
        attn_problem p = problem_of(round / 8, round % 3 ? 19 : 5, keys);
        attn_bias_strides *s = &p.mask_strides;
        struct recipe recipe;
        p.mask = true;
        s->col = 3;
        s->row = 3 * keys + 2;
        s->head = p.seq_q * s->row + 5;
        s->batch = p.heads_q * s->head + 1;
        recipe_init(&recipe, &p, (uint64_t)round);
        CHECK_EQ(recipe_verify(context, &recipe, &tally), 0);
    }
    CHECK(tally.borderline < 3);
}

/* ---- the reference --------------------------------------------------------------------------- */

TEST(the_reference_hides_by_select) {
    struct small *f = small_make(1, 2, 3, 1);
    f->p.mask = f->p.bias = true;
    f->p.scale = 1.0F;
    f->q[0] = f->q[1] = 1.0F;
    f->k[0] = 0.5F;
    f->k[1] = NAN;
    f->k[2] = 0.5F;
    f->v[0] = 2.0F;
    f->v[2] = 6.0F;
    f->bias[5] = NAN;
    const uint8_t mask[6] = {1, 0, 255, 128, 0, 0};
    memcpy(f->mask, mask, sizeof mask);
    for (int precision = ATTN_EXACT; precision <= ATTN_TWIN; precision++) {
        if (small_run(f, (attn_precision)precision)) {
            CHECK_MSG(near(f->o[0], 4.0, 1e-6), "%g", f->o[0]);
            CHECK_MSG(near(f->lse[0], 0.5 + log(2.0), 1e-6), "%g", f->lse[0]);
            CHECK_MSG(near(f->o[1], 2.0, 1e-6), "%g", f->o[1]);
            CHECK_MSG(near(f->lse[1], 0.5, 1e-6), "%g", f->lse[1]);
        }
    }
    f->mask[3] = 0; /* nothing remains of the second row */
    f->sink[0] = -3.0F;
    for (int sink = 0; sink < 2; sink++) {
        f->p.sink = sink;
        if (small_run(f, ATTN_EXACT)) {
            CHECK(f->o[1] == 0.0 && f->lse[1] == (sink ? -3.0 : -(double)INFINITY));
        }
    }
}

TEST_MAIN_WITH(context)
