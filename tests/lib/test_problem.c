/* SPDX-License-Identifier: Apache-2.0
 *
 * test_problem.c - what the defaults of a problem stand for, and the FLOP formula.
 *
 * attn_problem_init against the values in brackets in attn.h, attn_problem_resolve against strides
 * worked out by hand, attn_problem_flops against a count of the visible pairs one by one.
 *
 * Invariant: nothing here is computed the way the library does it.
 */
#include <math.h>

#include "test.h"

/* Whether two floats have the same bits. */
static bool same(float a, float b) {
    return memcmp(&a, &b, sizeof a) == 0;
}

static bool strides_are(const attn_strides *s, int64_t batch, int64_t head, int64_t row) {
    return s->batch == batch && s->head == head && s->row == row;
}

TEST(defaults) {
    attn_problem p;
    memset(&p, 0xA5, sizeof p);
    attn_problem_init(&p);
    CHECK_EQ(p.size, sizeof p);
    CHECK_EQ(p.dtype, ATTN_FP32);
    CHECK_EQ(p.batch, 1);
    CHECK_EQ(p.heads_q, 1);
    CHECK_EQ(p.heads_kv, -1);
    CHECK_EQ(p.seq_q, 1);
    CHECK_EQ(p.seq_kv, 1);
    CHECK_EQ(p.head_dim, 64);
    CHECK_EQ(p.head_dim_v, -1);
    CHECK_EQ(p.layout, ATTN_BHSD);
    const attn_strides *all[] = {&p.q, &p.k, &p.v, &p.o, &p.lse};
    for (int i = 0; i < 5; i++) {
        CHECK(strides_are(all[i], ATTN_AUTO, ATTN_AUTO, ATTN_AUTO));
    }
    CHECK(isnan(p.scale));
    CHECK_EQ(p.causal, ATTN_CAUSAL_NONE);
    CHECK_EQ(p.window_left, -1);
    CHECK_EQ(p.window_right, -1);
    CHECK(same(p.softcap, 0.0f));
    CHECK(!p.alibi && !p.sink && !p.bias && !p.mask && !p.packed && !p.used_kv);
    CHECK_EQ(p.alibi_batch_stride, 0);
    CHECK_EQ(p.bias_dtype, ATTN_FP32);
    CHECK(p.bias_strides.batch == ATTN_AUTO && p.bias_strides.head == ATTN_AUTO &&
          p.bias_strides.row == ATTN_AUTO && p.bias_strides.col == ATTN_AUTO);
    CHECK(memcmp(&p.mask_strides, &p.bias_strides, sizeof p.mask_strides) == 0);
    CHECK_EQ(p.total_q, 0);
    CHECK_EQ(p.total_kv, 0);
    CHECK_EQ(p.tensor_cores, ATTN_TENSOR_CORES_AUTO);
    CHECK_EQ(p.alignment, 16);
    attn_error why;
    CHECK_STATUS(attn_problem_check(&p, &why), ATTN_OK, &why);
}

TEST(init_of_the_other_structs) {
    attn_options options;
    attn_tensors t;
    memset(&options, 0xA5, sizeof options);
    memset(&t, 0xA5, sizeof t);
    attn_options_init(&options);
    attn_tensors_init(&t);
    CHECK_EQ(options.size, sizeof options);
    CHECK(!options.device && !options.driver);
    CHECK_EQ(options.threads, 0);
    CHECK_EQ(t.size, sizeof t);
    CHECK(!t.q && !t.k && !t.v && !t.o && !t.lse && !t.bias && !t.mask && !t.alibi_slopes &&
          !t.sink);
    CHECK(!t.cu_seqlens_q && !t.cu_seqlens_kv && !t.used_kv);
}

static attn_problem sizes(void) {
    attn_problem p;
    attn_problem_init(&p);
    p.batch = 3;
    p.heads_q = 6;
    p.heads_kv = 2;
    p.seq_q = 5;
    p.seq_kv = 7;
    p.head_dim = 16;
    p.head_dim_v = 10;
    return p;
}

TEST(resolved_strides) {
    attn_error why;
    attn_problem p = sizes(), r;
    CHECK_STATUS(attn_problem_resolve(&p, &r, &why), ATTN_OK, &why);
    CHECK(strides_are(&r.q, 6 * 5 * 16, 5 * 16, 16));
    CHECK(strides_are(&r.k, 2 * 7 * 16, 7 * 16, 16));
    CHECK(strides_are(&r.v, 2 * 7 * 10, 7 * 10, 10));
    CHECK(strides_are(&r.o, 6 * 5 * 10, 5 * 10, 10));
    CHECK(strides_are(&r.lse, 6 * 5, 5, 1));
    CHECK_EQ(r.bias_strides.batch, 6 * 5 * 7);
    CHECK_EQ(r.bias_strides.head, 5 * 7);
    CHECK_EQ(r.bias_strides.row, 7);
    CHECK_EQ(r.bias_strides.col, 1);
    CHECK(memcmp(&r.mask_strides, &r.bias_strides, sizeof r.mask_strides) == 0);
    p.layout = ATTN_BSHD;
    CHECK_STATUS(attn_problem_resolve(&p, &r, &why), ATTN_OK, &why);
    CHECK(strides_are(&r.q, 5 * 6 * 16, 16, 6 * 16));
    CHECK(strides_are(&r.k, 7 * 2 * 16, 16, 2 * 16));
    CHECK(strides_are(&r.v, 7 * 2 * 10, 10, 2 * 10));
    CHECK(strides_are(&r.o, 5 * 6 * 10, 10, 6 * 10));
    CHECK(strides_are(&r.lse, 6 * 5, 5, 1)); /* whatever the layout */
}

TEST(resolved_strides_of_packed_tensors) {
    attn_error why;
    attn_problem p = sizes(), r;
    p.packed = true;
    p.total_q = 11;
    p.total_kv = 17;
    CHECK_STATUS(attn_problem_resolve(&p, &r, &why), ATTN_OK, &why);
    CHECK(r.q.head == 11 * 16 && r.q.row == 16 && r.k.head == 17 * 16 && r.k.row == 16);
    CHECK(r.v.head == 17 * 10 && r.v.row == 10 && r.o.head == 11 * 10 && r.o.row == 10);
    CHECK(r.lse.head == 11 && r.lse.row == 1);
    p.layout = ATTN_BSHD;
    CHECK_STATUS(attn_problem_resolve(&p, &r, &why), ATTN_OK, &why);
    CHECK(r.q.head == 16 && r.q.row == 6 * 16 && r.k.head == 16 && r.k.row == 2 * 16);
    CHECK(r.v.head == 10 && r.v.row == 2 * 10 && r.o.head == 10 && r.o.row == 6 * 10);
    CHECK(r.lse.head == 11 && r.lse.row == 1);
}

TEST(resolved_numbers) {
    attn_error why;
    attn_problem p = sizes();
    p.heads_kv = p.head_dim_v = -1;
    p.q.row = 99;                                                    /* what is given stays */
    CHECK_STATUS(attn_problem_resolve(&p, &p, &why), ATTN_OK, &why); /* in place */
    CHECK_EQ(p.heads_kv, 6);
    CHECK_EQ(p.head_dim_v, 16);
    CHECK(same(p.scale, 0.25f)); /* 1 / sqrt(16) */
    CHECK_EQ(p.q.row, 99);
    CHECK_EQ(p.seq_kv, 7);
    p = sizes();
    p.scale = -0.5f;
    CHECK_STATUS(attn_problem_resolve(&p, &p, &why), ATTN_OK, &why);
    CHECK(same(p.scale, -0.5f));
    p.scale = 0.0f;
    CHECK_STATUS(attn_problem_resolve(&p, &p, &why), ATTN_OK, &why);
    CHECK(same(p.scale, 0.0f));
}

/* A resolved problem resolves to itself. */
TEST(resolve_twice) {
    attn_error why;
    attn_problem p = sizes(), once, twice;
    memset(&once, 0, sizeof once);
    memset(&twice, 0, sizeof twice);
    CHECK_STATUS(attn_problem_resolve(&p, &once, &why), ATTN_OK, &why);
    CHECK_STATUS(attn_problem_resolve(&once, &twice, &why), ATTN_OK, &why);
    CHECK(memcmp(&once, &twice, sizeof once) == 0);
}

/* The visible pairs of one head, one by one. */
static int64_t count_pairs(const attn_problem *p) {
    const int64_t off = p->causal == ATTN_CAUSAL_TOP_LEFT ? 0 : p->seq_kv - p->seq_q;
    int64_t pairs = 0;
    for (int64_t i = 0; i < p->seq_q; i++) {
        for (int64_t j = 0; j < p->seq_kv; j++) {
            pairs += (p->causal == ATTN_CAUSAL_NONE || j <= i + off) &&
                     (p->window_left < 0 || i + off - p->window_left <= j) &&
                     (p->window_right < 0 || j <= i + off + p->window_right);
        }
    }
    return pairs;
}

TEST(flops) {
    static const int64_t lengths[] = {0, 1, 2, 7, 30, 64};
    static const int64_t windows[] = {-1, 0, 1, 5, 40, 1000};
    for (int n = 0; n < 6 * 6 * 3 * 6 * 6; n++) {
        attn_problem p = sizes();
        p.seq_q = lengths[n % 6];
        p.seq_kv = lengths[n / 6 % 6];
        p.causal = (attn_causal)(n / 36 % 3);
        p.window_left = windows[n / 108 % 6];
        p.window_right = windows[n / 648];
        const double expected = (double)(2 * (16 + 10) * 3 * 6 * count_pairs(&p));
        const double flops = attn_problem_flops(&p);
        if (!CHECK_MSG(memcmp(&flops, &expected, sizeof flops) == 0,
                       "%g, not %g: seq %d %d causal %d window %d %d", flops, expected,
                       (int)p.seq_q, (int)p.seq_kv, (int)p.causal, (int)p.window_left,
                       (int)p.window_right)) {
            return;
        }
    }
}

/* No loop over a long sequence, no overflow. */
TEST(flops_of_a_long_sequence) {
    attn_problem p = sizes();
    p.batch = 1;
    p.heads_q = p.heads_kv = 1;
    p.seq_q = p.seq_kv = 1 << 20;
    p.causal = ATTN_CAUSAL_TOP_LEFT;
    const double n = 1048576.0, expected = 2 * 26 * (n * (n + 1) / 2);
    const double flops = attn_problem_flops(&p);
    CHECK_MSG(memcmp(&flops, &expected, sizeof flops) == 0, "%.17g, not %.17g", flops, expected);
}

TEST(version) {
    char text[32];
    snprintf(text, sizeof text, "%d.%d.%d", ATTN_VERSION_MAJOR, ATTN_VERSION_MINOR,
             ATTN_VERSION_PATCH);
    CHECK_STR(attn_version(), text);
}

TEST_MAIN()
