/* SPDX-License-Identifier: Apache-2.0
 *
 * test_offsets.c - q_offset, kv_offset and offsets on the CPU. The law: a problem cut into chunks
 * of queries and keys, each computed with its positions, gives the whole: O and LSE by attn_merge,
 * gradients by their sum. Random problems are sampled in test_parity and test_oracle; kernels of
 * GPUs are in test_vgpu_offsets and test_vgpu_backward.
 */
#include <math.h>

#include "test.h"
#include "tool/base/random.h"

static attn_context *context;

enum { HEADS = 2, LENGTH = 150, DIM = 16, ROWS = HEADS * LENGTH, MOST = ROWS * DIM, CHUNKS = 4 };
static const int64_t cuts[CHUNKS + 1] = {0, 40, 75, 76, LENGTH};

/* Q, K, V, dO, then outputs of the whole and of a chunk. */
static float q[MOST], k[MOST], v[MOST], d_o[MOST], o[MOST], lse[ROWS];
static float dq[MOST], dk[MOST], dv[MOST], part_dq[MOST], part_dk[MOST], part_dv[MOST];
static float part_o[CHUNKS][MOST], part_lse[CHUNKS][ROWS];

/* One of the options whose meaning depends on positions. */
static attn_problem problem_of(int n) {
    attn_problem p;
    attn_problem_init(&p);
    p.heads_q = HEADS;
    p.heads_kv = n % 2 == 0 ? HEADS : 1;
    p.seq_q = p.seq_kv = LENGTH;
    p.head_dim = DIM;
    p.causal = n < 4 ? ATTN_CAUSAL_TOP_LEFT : ATTN_CAUSAL_NONE;
    p.window_left = n % 4 == 1 ? 50 : -1;
    p.window_right = n == 5 ? 30 : -1;
    p.alibi = n % 4 >= 2;
    CHECK_EQ(attn_problem_resolve(&p, &p, NULL), ATTN_OK);
    return p;
}
enum { PROBLEMS = 8 };

/* Queries of chunk i and keys of chunk j, in the memory of the whole. */
static attn_problem chunk_of(const attn_problem *whole, int i, int j) {
    attn_problem p = *whole;
    p.seq_q = cuts[i + 1] - cuts[i];
    p.seq_kv = cuts[j + 1] - cuts[j];
    p.q_offset = cuts[i];
    p.kv_offset = cuts[j];
    if (p.causal == ATTN_CAUSAL_NONE) { /* positions count from the ends */
        p.q_offset += p.seq_q;
        p.kv_offset += p.seq_kv;
    }
    return p;
}

static attn_tensors tensors_of(int i, int j) {
    const int64_t queries = cuts[i] * DIM, keys = cuts[j] * DIM;
    attn_tensors t;
    attn_tensors_init(&t);
    t.q = q + queries;
    t.k = k + keys;
    t.v = v + keys;
    t.o = o + queries;
    t.lse = lse + cuts[i];
    t.d_o = d_o + queries;
    t.dq = dq + queries;
    t.dk = dk + keys;
    t.dv = dv + keys;
    return t;
}

static void run(const attn_problem *p, const attn_tensors *t, attn_direction direction) {
    attn_plan *plan = NULL;
    attn_plan_options options;
    attn_error why;
    attn_plan_options_init(&options);
    options.direction = direction;
    if (CHECK_STATUS(attn_plan_create(context, p, &options, &plan, &why), ATTN_OK, &why)) {
        void *workspace = malloc(attn_workspace_size(plan) + 1);
        const attn_status status = (direction == ATTN_BACKWARD ? attn_backward : attn_forward)(
            plan, t, workspace, attn_workspace_size(plan), NULL, &why);
        CHECK_STATUS(status, ATTN_OK, &why);
        free(workspace);
    }
    attn_plan_destroy(plan);
}

static void draw(uint64_t seed) {
    float *const all[] = {q, k, v, d_o};
    for (int n = 0; n < 4; n++) {
        for (int i = 0; i < MOST; i++) {
            all[n][i] = rng_normal(&seed);
        }
    }
}

/* O = 0 and LSE = -inf, in all of its rows. */
static void check_nothing(const attn_problem *p, const float *out, const float *out_lse) {
    for (int64_t row = 0; row < HEADS * p->seq_q; row++) {
        const int64_t at = row / p->seq_q * LENGTH + row % p->seq_q;
        CHECK(isinf(out_lse[at]) && out_lse[at] < 0);
        for (int64_t d = 0; d < DIM; d++) {
            CHECK(fpclassify(out[at * DIM + d]) == FP_ZERO);
        }
    }
}

/* gradient < 0: O and LSE. */
static void check_passes(const attn_problem *p, const attn_tensors *t, int gradient) {
    attn_comparison found = {.size = sizeof found};
    attn_error why;
    char line[400];
    const bool queries = gradient <= (int)ATTN_GRADIENT_Q;
    const size_t rows =
        (size_t)(p->batch * (queries ? p->heads_q * p->seq_q : p->heads_kv * p->seq_kv));
    const attn_status status = gradient < 0
                                   ? attn_verify(context, p, t, NULL, rows, &found, &why)
                                   : attn_verify_backward(context, p, t, (attn_gradient)gradient,
                                                          NULL, rows, &found, &why);
    CHECK_STATUS(status, ATTN_OK, &why);
    attn_comparison_print(&found, line, sizeof line);
    CHECK_MSG(found.pass, "%d: %s", gradient, line);
}

/* ---- the law --------------------------------------------------------------------------------- */

TEST(chunks_merge_to_the_whole) {
    for (int n = 0; n < PROBLEMS; n++) {
        const attn_problem p = problem_of(n);
        const attn_tensors whole = tensors_of(0, 0);
        attn_error why;
        double flops = 0;
        draw((uint64_t)n);
        for (int i = 0; i < CHUNKS; i++) {
            const void *parts[CHUNKS];
            const float *lse_parts[CHUNKS];
            for (int j = 0; j < CHUNKS; j++) {
                const attn_problem chunk = chunk_of(&p, i, j);
                attn_tensors t = tensors_of(i, j);
                parts[j] = t.o = part_o[j];
                lse_parts[j] = t.lse = part_lse[j];
                run(&chunk, &t, ATTN_FORWARD);
                flops += attn_problem_flops(&chunk);
                if (p.causal != ATTN_CAUSAL_NONE && j > i) {
                    check_nothing(&chunk, part_o[j], part_lse[j]);
                }
            }
            const attn_problem rows = chunk_of(&p, i, 0);
            attn_plan_options options;
            attn_plan *merge = NULL;
            attn_plan_options_init(&options);
            options.direction = ATTN_MERGE;
            if (CHECK_STATUS(attn_plan_create(context, &rows, &options, &merge, &why), ATTN_OK,
                             &why)) {
                CHECK_STATUS(attn_merge(merge, parts, lse_parts, CHUNKS, o + cuts[i] * DIM,
                                        lse + cuts[i], NULL, &why),
                             ATTN_OK, &why);
            }
            attn_plan_destroy(merge);
        }
        check_passes(&p, &whole, -1);
        CHECK_EQ((int64_t)flops, (int64_t)attn_problem_flops(&p));
    }
}

static void add(float *sum, const float *part) {
    for (int i = 0; i < MOST; i++) {
        sum[i] += part[i];
    }
}

TEST(gradients_of_chunks_add_up) {
    for (int n = 0; n < PROBLEMS; n++) {
        const attn_problem p = problem_of(n);
        const attn_tensors whole = tensors_of(0, 0);
        draw((uint64_t)n);
        run(&p, &whole, ATTN_FORWARD);
        memset(dq, 0, sizeof dq);
        memset(dk, 0, sizeof dk);
        memset(dv, 0, sizeof dv);
        for (int at = 0; at < CHUNKS * CHUNKS; at++) {
            const attn_problem chunk = chunk_of(&p, at / CHUNKS, at % CHUNKS);
            attn_tensors t = tensors_of(at / CHUNKS, at % CHUNKS);
            memset(part_dq, 0, sizeof part_dq);
            memset(part_dk, 0, sizeof part_dk);
            memset(part_dv, 0, sizeof part_dv);
            t.dq = part_dq + ((float *)t.dq - dq);
            t.dk = part_dk + ((float *)t.dk - dk);
            t.dv = part_dv + ((float *)t.dv - dv);
            run(&chunk, &t, ATTN_BACKWARD);
            add(dq, part_dq);
            add(dk, part_dk);
            add(dv, part_dv);
        }
        for (int gradient = ATTN_GRADIENT_Q; gradient <= ATTN_GRADIENT_V; gradient++) {
            check_passes(&p, &whole, gradient);
        }
    }
}

/* ---- what they mean -------------------------------------------------------------------------- */

/* The reference of a batch with offsets is that of each sequence with its own q_offset; packed,
 * too. */
TEST(offsets_are_of_a_sequence) {
    enum { SEQUENCES = 3 };
    static const int32_t offsets[SEQUENCES] = {33, -20, 0}, cu[] = {0, 40, 75, LENGTH};
    static double all[SEQUENCES * HEADS * 75 * DIM], all_lse[SEQUENCES * HEADS * 75];
    static double one[MOST], one_lse[ROWS];
    for (int n = 0; n < PROBLEMS; n++) {
        attn_problem p = problem_of(n);
        attn_tensors t = tensors_of(0, 0);
        attn_error why;
        draw((uint64_t)n);
        p.batch = SEQUENCES;
        p.packed = p.offsets = true;
        p.total_q = p.total_kv = LENGTH;
        p.seq_q = p.seq_kv = 75;
        p.kv_offset = 5;
        t.offsets = offsets;
        t.cu_seqlens_q = t.cu_seqlens_kv = cu;
        run(&p, &t, ATTN_FORWARD);
        check_passes(&p, &t, -1);
        CHECK_STATUS(attn_reference(context, &p, &t, ATTN_EXACT, NULL,
                                    (size_t)(SEQUENCES * HEADS * p.seq_q), all, all_lse, &why),
                     ATTN_OK, &why);
        for (int b = 0; b < SEQUENCES; b++) {
            attn_problem single = problem_of(n);
            attn_tensors at = t;
            single.seq_q = single.seq_kv = cu[b + 1] - cu[b];
            single.q_offset = offsets[b] - 5;
            at.q = q + cu[b] * DIM;
            at.k = k + cu[b] * DIM;
            at.v = v + cu[b] * DIM;
            CHECK_STATUS(attn_reference(context, &single, &at, ATTN_EXACT, NULL,
                                        (size_t)(HEADS * single.seq_q), one, one_lse, &why),
                         ATTN_OK, &why);
            for (int h = 0; h < HEADS; h++) {
                const int64_t of_all = (b * HEADS + h) * p.seq_q, of_one = h * single.seq_q;
                CHECK(memcmp(all + of_all * DIM, one + of_one * DIM,
                             (size_t)(single.seq_q * DIM) * sizeof *one) == 0);
                CHECK(memcmp(all_lse + of_all, one_lse + of_one,
                             (size_t)single.seq_q * sizeof *one) == 0);
            }
        }
    }
}

TEST(only_the_difference_matters) {
    static float other[MOST];
    attn_problem p = problem_of(2);
    attn_tensors t = tensors_of(0, 0);
    draw(1);
    p.q_offset = ((int64_t)1 << 40) - 7;
    p.kv_offset = (int64_t)1 << 40;
    run(&p, &t, ATTN_FORWARD);
    p.q_offset = 0;
    p.kv_offset = 7;
    t.o = other;
    run(&p, &t, ATTN_FORWARD);
    CHECK(memcmp(o, other, sizeof o) == 0);
}

/* As far as positions go: a window or causal mask sees all or nothing. */
TEST(far_apart) {
    attn_problem p = problem_of(0);
    const attn_tensors t = tensors_of(0, 0);
    p.q_offset = -((int64_t)1 << 40);
    p.kv_offset = (int64_t)1 << 40;
    run(&p, &t, ATTN_FORWARD);
    check_nothing(&p, o, lse);
    CHECK_EQ((int64_t)attn_problem_flops(&p), 0);
    p.q_offset = (int64_t)1 << 40;
    p.kv_offset = -p.q_offset;
    run(&p, &t, ATTN_FORWARD);
    check_passes(&p, &t, -1);
    CHECK_EQ((int64_t)attn_problem_flops(&p), 4LL * DIM * HEADS * LENGTH * LENGTH);
    p.window_left = 1000;
    run(&p, &t, ATTN_FORWARD);
    check_nothing(&p, o, lse);
}

/* ---- refusals -------------------------------------------------------------------------------- */

TEST(refusals) {
    attn_problem p = problem_of(0);
    attn_tensors t = tensors_of(0, 0);
    attn_plan *plan = NULL;
    attn_error why;
    p.q_offset = ((int64_t)1 << 40) + 1;
    CHECK_STATUS(attn_problem_check(&p, &why), ATTN_INVALID, &why);
    CHECK_CONTAINS(why.text, "q_offset = 1099511627777, expected -1099511627776 to 1099511627776");
    p.q_offset = 0;
    p.kv_offset = INT64_MIN;
    CHECK_STATUS(attn_problem_check(&p, &why), ATTN_INVALID, &why);
    CHECK_CONTAINS(why.text, "kv_offset");
    p.kv_offset = 0;
    memset(&p.offsets, 2, 1);
    CHECK_STATUS(attn_problem_check(&p, &why), ATTN_INVALID, &why);
    CHECK_CONTAINS(why.text, "offsets = 2");
    p.offsets = p.reserved_offsets[3] = true;
    CHECK_STATUS(attn_problem_check(&p, &why), ATTN_INVALID, &why);
    CHECK_CONTAINS(why.text, "reserved_offsets");
    p.reserved_offsets[3] = false;
    CHECK_STATUS(attn_plan_create(context, &p, NULL, &plan, &why), ATTN_OK, &why);
    void *workspace = malloc(attn_workspace_size(plan) + 1);
    CHECK_STATUS(attn_forward(plan, &t, workspace, attn_workspace_size(plan), NULL, &why),
                 ATTN_INVALID, &why);
    CHECK_CONTAINS(why.text, "tensors.offsets = ");
    free(workspace);
    attn_plan_destroy(plan);
}

TEST_MAIN_WITH(context)
