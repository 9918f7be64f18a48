/* SPDX-License-Identifier: Apache-2.0
 *
 * cascade.c - one decode step of sequences with a shared prefix (a system prompt): the new keys are
 * rotated and appended to a paged KV cache, the prefix is read once for all sequences, and the two
 * partial results are merged.
 *
 *     cc cascade.c $(pkg-config --cflags --libs attn) -lm && ./a.out
 *
 *   append   K and V of the new token, Q rotated in place                 attn_append
 *   prefix   the queries of all sequences against the prefix, as one      attn_forward
 *            sequence with SEQUENCES rows: its keys are loaded once
 *   own      each query against the keys of its sequence after the prefix attn_forward
 *   merge    both into O                                                  attn_merge
 *
 * The four calls read lengths and tables on the device: on a GPU they can be captured into one
 * graph and replayed for each token. At the end the last step is computed again with the prefix in
 * every sequence's table, and compared.
 */
#include <attn.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEQUENCES = 4, HEADS = 8, HEADS_KV = 2, DIM = 64, PAGE = 16, STEPS = 40 };
enum { PREFIX_PAGES = 8, OWN_PAGES = 4, PREFIX = PREFIX_PAGES * PAGE, LONGEST = PREFIX + 64 };
enum { PAGES = PREFIX_PAGES + SEQUENCES * OWN_PAGES, ROW = PREFIX_PAGES + OWN_PAGES };

static float k_pages[PAGES][PAGE][HEADS_KV][DIM], v_pages[PAGES][PAGE][HEADS_KV][DIM];
static float q[SEQUENCES][HEADS][DIM], k[SEQUENCES][HEADS_KV][DIM], v[SEQUENCES][HEADS_KV][DIM];
static float cosines[LONGEST][DIM / 2], sines[LONGEST][DIM / 2];
static float o[2][SEQUENCES][HEADS][DIM], lse[2][SEQUENCES][HEADS], whole[SEQUENCES][HEADS][DIM];

/* A row of the table: the pages of the prefix, then those of the sequence. */
static int32_t table[SEQUENCES][ROW], used[SEQUENCES], used_own[SEQUENCES], prefix = PREFIX;

static void need(attn_status status, const attn_error *why) {
    if (status != ATTN_OK) {
        fprintf(stderr, "%s\n", why->text);
        exit(1);
    }
}

static void fill(float *x, size_t n) {
    for (size_t i = 0; i < n; i++) {
        x[i] = (float)rand() / (float)RAND_MAX - 0.5F;
    }
}

/* A plan and its workspace. */
struct call {
    attn_plan *plan;
    void *workspace;
};

static struct call make(attn_context *context, const attn_problem *p, attn_direction direction) {
    attn_error why;
    attn_plan_options options;
    struct call call = {0};
    attn_plan_options_init(&options);
    options.direction = direction;
    need(attn_plan_create(context, p, &options, &call.plan, &why), &why);
    call.workspace = malloc(attn_workspace_size(call.plan) + 1);
    return call;
}

static void forward(const struct call *call, const attn_tensors *t, int32_t *pages, int32_t *keys,
                    void *out, float *sums) {
    attn_error why;
    attn_tensors mine = *t;
    mine.block_table = pages;
    mine.used_kv = keys;
    mine.o = out;
    mine.lse = sums;
    need(attn_forward(call->plan, &mine, call->workspace, attn_workspace_size(call->plan), NULL,
                      &why),
         &why);
}

static void destroy(struct call *call) {
    attn_plan_destroy(call->plan);
    free(call->workspace);
}

int main(void) {
    attn_context *context = NULL;
    attn_error why;
    attn_problem p, p_prefix, p_own;
    attn_tensors t;
    need(attn_open(NULL, &context, &why), &why);

    /* one token of each sequence against the whole cache: what append, own and merge start from */
    attn_problem_init(&p);
    p.layout = ATTN_BSHD;
    p.batch = SEQUENCES;
    p.heads_q = HEADS;
    p.heads_kv = HEADS_KV;
    p.head_dim = DIM;
    p.seq_kv = LONGEST;
    p.used_kv = true;
    p.page_size = PAGE;
    p.num_pages = PAGES;
    p.block_table_stride = ROW;
    p.rope = ATTN_ROPE_HALVES;
    p.lse = (attn_strides){HEADS, 1, HEADS}; /* (sequences, heads) in every partial result */

    p_own = p; /* its table begins after the prefix */
    p_own.seq_kv = OWN_PAGES * PAGE;
    p_prefix = p; /* (1, SEQUENCES rows): the same memory of Q, O and LSE */
    p_prefix.batch = 1;
    p_prefix.seq_q = SEQUENCES;
    p_prefix.seq_kv = PREFIX;

    struct call append = make(context, &p, ATTN_APPEND), merge = make(context, &p, ATTN_MERGE);
    struct call shared = make(context, &p_prefix, ATTN_FORWARD);
    struct call own = make(context, &p_own, ATTN_FORWARD), plain = make(context, &p, ATTN_FORWARD);

    for (int position = 0; position < LONGEST; position++) {
        for (int c = 0; c < DIM / 2; c++) {
            const double angle = position * pow(10000.0, -2.0 * c / DIM);
            cosines[position][c] = (float)cos(angle);
            sines[position][c] = (float)sin(angle);
        }
    }
    for (int b = 0; b < SEQUENCES; b++) {
        for (int i = 0; i < ROW; i++) {
            table[b][i] = i < PREFIX_PAGES ? i : PREFIX_PAGES + b * OWN_PAGES + i - PREFIX_PAGES;
        }
        used[b] = PREFIX;
    }
    fill(&k_pages[0][0][0][0], sizeof k_pages[0] / sizeof(float) * PREFIX_PAGES);
    fill(&v_pages[0][0][0][0], sizeof v_pages[0] / sizeof(float) * PREFIX_PAGES);

    attn_tensors_init(&t);
    t.q = t.q_out = q;
    t.k_new = k;
    t.v_new = v;
    t.k = t.k_cache = k_pages;
    t.v = t.v_cache = v_pages;
    t.rope_cos = cosines;
    t.rope_sin = sines;
    const void *const o_parts[] = {o[0], o[1]};
    const float *const lse_parts[] = {&lse[0][0][0], &lse[1][0][0]};
    for (int step = 0; step < STEPS; step++) {
        fill(&q[0][0][0], sizeof q / sizeof(float));
        fill(&k[0][0][0], sizeof k / sizeof(float));
        fill(&v[0][0][0], sizeof v / sizeof(float));
        for (int b = 0; b < SEQUENCES; b++) {
            used_own[b] = ++used[b] - PREFIX;
        }
        t.block_table = &table[0][0];
        t.used_kv = used; /* the lengths after the append */
        need(attn_append(append.plan, &t, NULL, &why), &why);
        forward(&shared, &t, &table[0][0], &prefix, o[0], &lse[0][0][0]);
        forward(&own, &t, &table[0][PREFIX_PAGES], used_own, o[1], &lse[1][0][0]);
        need(attn_merge(merge.plan, o_parts, lse_parts, 2, o[0], NULL, NULL, &why), &why);
    }

    double worst = 0.0;
    bool agree = true; /* no NaN agrees */
    forward(&plain, &t, &table[0][0], used, whole, NULL);
    for (int i = 0; i < SEQUENCES * HEADS * DIM; i++) {
        const double apart = fabs((double)(&o[0][0][0][0])[i] - (double)(&whole[0][0][0])[i]);
        agree = agree && apart < 1e-6;
        worst = apart > worst ? apart : worst;
    }
    printf("%d sequences after a prefix of %d keys: merged and whole differ by %.1e\n", SEQUENCES,
           PREFIX, worst);
    struct call *const all[] = {&append, &merge, &shared, &own, &plain};
    for (int i = 0; i < 5; i++) {
        destroy(all[i]);
    }
    attn_close(context);
    return agree ? 0 : 1;
}
