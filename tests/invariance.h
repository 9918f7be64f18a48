/* SPDX-License-Identifier: Apache-2.0
 *
 * invariance.h - the law of batch_invariant: a row of a sequence has the same bits in every call
 * that computes it. For test_batch_invariant.c of lib (the CPU) and of vgpu.
 *
 * A scene is a few sequences with Q, K and V of every position. Each one alone and in one piece
 * gives the expected bits of its rows. Then calls are drawn: some pieces of some sequences, in
 * random order; one after the other or packed; K and V contiguous, with garbage after the used
 * keys, or in pages of any size. A piece of one row is decode.
 *
 * Invariant: a call computes rows [first, first + rows) of a sequence against its keys [0, first +
 * rows), which is what a KV cache holds after these rows have been appended.
 */
#ifndef ATTN_TESTS_INVARIANCE_H
#define ATTN_TESTS_INVARIANCE_H

#include <math.h>
#include <stdlib.h>

#include "test.h"
#include "tool/device/device.h"

enum { SEQUENCES = 4, PIECES = 6 };

struct scene {
    attn_problem problem; /* dtype, heads, head dimensions and options; no sizes */
    int sequences, length[SEQUENCES];
    char *qkv[SEQUENCES][3];  /* (position, head, column) */
    float *bias[SEQUENCES];   /* (position, key), for all heads; NULL: none */
    uint8_t *mask[SEQUENCES]; /* likewise */
    float sink[64];           /* of heads */
    char *o[SEQUENCES];       /* expected */
    float *lse[SEQUENCES];    /* (head, position) */
};

struct piece {
    int sequence, first, rows;
};

struct call {
    struct piece pieces[PIECES];
    int count;
    bool packed;
    int page_size; /* 0: contiguous */
    int spare;     /* rows and keys that the plan is larger than its longest piece */
};

/* What a run of calls has seen. */
struct outcome {
    int calls, differences;
};

/* Where calls are computed. */
struct place {
    attn_context *context;
    struct device *device;
    const char *variant;  /* NULL: the plan chooses */
    void (*before)(void); /* each call; NULL: nothing */
    bool invariant;
    bool verify; /* every call, by attn_verify */
};

/* ---- random numbers -------------------------------------------------------------------------- */

static uint64_t draws = 1;

static int draw(int low, int high) {
    draws = draws * 6364136223846793005ULL + 1442695040888963407ULL;
    return low + (int)((draws >> 33) % (uint64_t)(high - low + 1));
}

static float draw_number(void) {
    return (float)(draw(0, 1000) + draw(0, 1000) + draw(0, 1000) - 1500) / 500.0F;
}

/* ---- scenes ---------------------------------------------------------------------------------- */

static size_t row_bytes(const attn_problem *p, int tensor) {
    const int64_t heads = tensor == 1 || tensor == 2 ? p->heads_kv : p->heads_q;
    const int64_t columns = tensor < 2 ? p->head_dim : p->head_dim_v;
    return (size_t)(heads * columns) * attn_dtype_size(p->dtype);
}

/* Some Q are large, so that the row max moves far; one V in `wild` sequences is not finite. */
static void scene_fill(struct scene *scene, int s, bool wild) {
    const attn_problem *p = &scene->problem;
    const size_t length = (size_t)scene->length[s];
    const int large = draw(0, 3);
    for (int i = 0; i < 3; i++) {
        const size_t row = row_bytes(p, i), count = length * row / attn_dtype_size(p->dtype);
        float *numbers = malloc(count * sizeof *numbers);
        scene->qkv[s][i] = malloc(length * row);
        for (size_t n = 0; n < count; n++) {
            const bool here = i == 0 && large == 0 && n / (count / length) % 5 == 1;
            numbers[n] = draw_number() * (here ? 8.0F : 1.0F);
        }
        if (wild && i == 2 && draw(0, 1) == 0) {
            numbers[draw(0, (int)count - 1)] = draw(0, 1) ? NAN : INFINITY;
        }
        attn_from_float(p->dtype, scene->qkv[s][i], numbers, count);
        free(numbers);
    }
    scene->bias[s] = p->bias ? malloc(length * length * sizeof(float)) : NULL;
    scene->mask[s] = p->mask ? malloc(length * length) : NULL;
    for (size_t n = 0; n < length * length; n++) {
        if (p->bias) {
            scene->bias[s][n] = draw_number();
        }
        if (p->mask) {
            scene->mask[s][n] = (uint8_t)(draw(0, 3) > 0);
        }
    }
}

static void scene_free(struct scene *scene) {
    for (int s = 0; s < scene->sequences; s++) {
        for (int i = 0; i < 3; i++) {
            free(scene->qkv[s][i]);
        }
        free(scene->bias[s]);
        free(scene->mask[s]);
        free(scene->o[s]);
        free(scene->lse[s]);
    }
}

/* ---- one call -------------------------------------------------------------------------------- */

/* A tensor on the host and on the device. */
struct block {
    char *host;
    void *there;
    size_t bytes;
};

static struct block block_make(size_t bytes) {
    struct block block = {.bytes = bytes > 0 ? bytes : 1};
    block.host = malloc(block.bytes);
    memset(block.host, 0xFF, block.bytes); /* NaN; no page, no length */
    return block;
}

static bool block_send(const struct place *at, struct block *block) {
    attn_error why;
    block->there = device_alloc(at->device, block->bytes, &why);
    return CHECK_MSG(block->there != NULL &&
                         device_write(at->device, block->there, block->host, block->bytes, &why),
                     "%s", why.text);
}

enum {
    AT_Q,
    AT_K,
    AT_V,
    AT_O,
    AT_LSE,
    AT_BIAS,
    AT_MASK,
    AT_SINK,
    AT_CU_Q,
    AT_CU_KV,
    AT_USED,
    AT_TABLE,
    BLOCKS
};

struct arranged {
    attn_problem problem;
    struct block blocks[BLOCKS];
    int q_row[PIECES], kv_row[PIECES]; /* the first of each piece */
};

static int32_t *numbers_of(struct block *block) {
    return (int32_t *)(void *)block->host;
}

static int keys_of(const struct piece *piece) {
    return piece->first + piece->rows;
}

/* Sizes, and where each piece begins. */
static void arrange(const struct scene *scene, const struct call *call, struct arranged *a) {
    attn_problem *p = &a->problem;
    *p = scene->problem;
    p->layout = ATTN_BSHD;
    p->batch = call->count;
    p->packed = call->packed;
    p->used_kv = true;
    p->page_size = call->page_size;
    int total_q = 0, total_kv = 0, most_q = 1, most_kv = 1;
    for (int i = 0; i < call->count; i++) {
        const struct piece *piece = &call->pieces[i];
        most_q = piece->rows > most_q ? piece->rows : most_q;
        most_kv = keys_of(piece) > most_kv ? keys_of(piece) : most_kv;
    }
    p->seq_q = most_q + (call->packed ? call->spare : 0);
    p->seq_kv = most_kv + call->spare;
    for (int i = 0; i < call->count; i++) {
        a->q_row[i] = total_q;
        a->kv_row[i] = total_kv;
        total_q += call->packed ? call->pieces[i].rows : (int)p->seq_q;
        total_kv += call->packed ? keys_of(&call->pieces[i]) + call->spare % 3 : (int)p->seq_kv;
    }
    if (call->page_size > 0) {
        const int64_t pages = (p->seq_kv + call->page_size - 1) / call->page_size;
        p->num_pages = pages * call->count + 1;
        p->block_table_stride = pages;
        total_kv = (int)(p->num_pages * call->page_size);
    }
    p->total_q = call->packed ? total_q : 0;
    p->total_kv = call->packed && call->page_size == 0 ? total_kv : 0;
    const size_t scores = (size_t)(call->count * p->seq_q * p->seq_kv);
    if (p->bias) {
        p->bias_strides = (attn_bias_strides){p->seq_q * p->seq_kv, 0, p->seq_kv, 1};
    }
    if (p->mask) {
        p->mask_strides = (attn_bias_strides){p->seq_q * p->seq_kv, 0, p->seq_kv, 1};
    }
    const size_t bytes[BLOCKS] = {
        (size_t)total_q * row_bytes(p, 0),
        (size_t)total_kv * row_bytes(p, 1),
        (size_t)total_kv * row_bytes(p, 2),
        (size_t)total_q * row_bytes(p, 3),
        (size_t)(total_q * p->heads_q) * sizeof(float),
        p->bias ? scores * sizeof(float) : 0,
        p->mask ? scores : 0,
        sizeof scene->sink,
        (size_t)(call->count + 1) * sizeof(int32_t),
        (size_t)(call->count + 1) * sizeof(int32_t),
        (size_t)call->count * sizeof(int32_t),
        (size_t)(call->count * p->block_table_stride) * sizeof(int32_t),
    };
    for (int i = 0; i < BLOCKS; i++) {
        a->blocks[i] = block_make(bytes[i]);
    }
}

/* The row of K and V that holds a key of a piece. */
static int64_t row_of_key(struct arranged *a, int i, int key) {
    const int64_t size = a->problem.page_size;
    if (size == 0) {
        return a->kv_row[i] + key;
    }
    const int32_t *table = numbers_of(&a->blocks[AT_TABLE]);
    return table[i * a->problem.block_table_stride + key / size] * size + key % size;
}

static void fill_piece(const struct scene *scene, const struct piece *piece, int i,
                       struct arranged *a) {
    const attn_problem *p = &a->problem;
    const int s = piece->sequence;
    const size_t q = row_bytes(p, 0);
    memcpy(a->blocks[AT_Q].host + (size_t)a->q_row[i] * q,
           scene->qkv[s][0] + (size_t)piece->first * q, (size_t)piece->rows * q);
    for (int tensor = 1; tensor < 3; tensor++) {
        const size_t row = row_bytes(p, tensor);
        for (int key = 0; key < keys_of(piece); key++) {
            memcpy(a->blocks[tensor].host + (size_t)row_of_key(a, i, key) * row,
                   scene->qkv[s][tensor] + (size_t)key * row, row);
        }
    }
    for (int row = 0; row < piece->rows && (p->bias || p->mask); row++) {
        const size_t from = (size_t)(piece->first + row) * (size_t)scene->length[s];
        const size_t to = (size_t)((i * p->seq_q + row) * p->seq_kv);
        if (p->bias) {
            memcpy(a->blocks[AT_BIAS].host + to * sizeof(float), scene->bias[s] + from,
                   (size_t)keys_of(piece) * sizeof(float));
        }
        if (p->mask) {
            memcpy(a->blocks[AT_MASK].host + to, scene->mask[s] + from, (size_t)keys_of(piece));
        }
    }
}

/* Pages in random order; page 0 is no sequence's. */
static void fill_table(struct arranged *a) {
    int32_t *table = numbers_of(&a->blocks[AT_TABLE]);
    const int count = (int)(a->problem.num_pages - 1);
    for (int n = 0; n < count; n++) {
        table[n] = n + 1;
    }
    for (int n = count - 1; n > 0; n--) {
        const int other = draw(0, n);
        const int32_t page = table[n];
        table[n] = table[other];
        table[other] = page;
    }
}

static void fill_call(const struct scene *scene, const struct call *call, struct arranged *a) {
    if (call->page_size > 0) {
        fill_table(a);
    }
    memcpy(a->blocks[AT_SINK].host, scene->sink, sizeof scene->sink);
    int32_t *cu_q = numbers_of(&a->blocks[AT_CU_Q]);
    int32_t *cu_kv = numbers_of(&a->blocks[AT_CU_KV]);
    for (int i = 0; i < call->count; i++) {
        cu_q[i] = a->q_row[i];
        cu_kv[i] = a->kv_row[i];
        numbers_of(&a->blocks[AT_USED])[i] = keys_of(&call->pieces[i]);
        fill_piece(scene, &call->pieces[i], i, a);
    }
    cu_q[call->count] = (int32_t)a->problem.total_q;
    cu_kv[call->count] = (int32_t)a->problem.total_kv;
}

/* On the host or, once they are sent, on the device. */
static attn_tensors tensors_of(const struct arranged *a, bool host) {
    const void *at[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) {
        at[i] = host ? a->blocks[i].host : a->blocks[i].there;
    }
    attn_tensors t;
    attn_tensors_init(&t);
    t.q = at[AT_Q];
    t.k = at[AT_K];
    t.v = at[AT_V];
    t.o = (void *)(uintptr_t)at[AT_O];
    t.lse = (float *)(uintptr_t)at[AT_LSE];
    t.bias = at[AT_BIAS];
    t.mask = at[AT_MASK];
    t.sink = at[AT_SINK];
    t.cu_seqlens_q = at[AT_CU_Q];
    t.cu_seqlens_kv = at[AT_CU_KV];
    t.used_kv = at[AT_USED];
    t.block_table = at[AT_TABLE];
    return t;
}

static bool is_right(const struct place *at, const struct arranged *a) {
    const attn_problem *p = &a->problem;
    const attn_tensors here = tensors_of(a, true);
    attn_comparison result = {.size = sizeof result};
    attn_error why;
    char line[300];
    if (!CHECK_STATUS(attn_verify(at->context, p, &here, NULL,
                                  (size_t)(p->batch * p->heads_q * p->seq_q), &result, &why),
                      ATTN_OK, &why)) {
        return false;
    }
    attn_comparison_print(&result, line, sizeof line);
    return CHECK_MSG(result.pass, "%s: %s", at->variant ? at->variant : "best", line);
}

static bool compute(const struct place *at, struct arranged *a) {
    attn_plan_options options;
    attn_plan *plan = NULL;
    attn_error why = {""};
    attn_plan_options_init(&options);
    options.variant = at->variant;
    options.batch_invariant = at->invariant;
    if (!CHECK_STATUS(attn_plan_create(at->context, &a->problem, &options, &plan, &why), ATTN_OK,
                      &why)) {
        return false;
    }
    struct block workspace = block_make(attn_workspace_size(plan));
    bool done = block_send(at, &workspace);
    for (int i = 0; i < BLOCKS; i++) {
        done = done && block_send(at, &a->blocks[i]);
    }
    if (at->before != NULL) {
        at->before();
    }
    const attn_tensors t = tensors_of(a, false);
    done =
        done && CHECK_STATUS(attn_forward(plan, &t, workspace.there, workspace.bytes, NULL, &why),
                             ATTN_OK, &why);
    for (int i = AT_O; i <= AT_LSE && done; i++) {
        const struct block *block = &a->blocks[i];
        done = CHECK_MSG(device_read(at->device, block->host, block->there, block->bytes, &why),
                         "%s", why.text);
    }
    done = done && (!at->verify || is_right(at, a));
    for (int i = 0; i < BLOCKS; i++) {
        device_free(at->device, a->blocks[i].there);
    }
    device_free(at->device, workspace.there);
    free(workspace.host);
    attn_plan_destroy(plan);
    return done;
}

static float *lse_at(const struct scene *scene, struct arranged *a, const struct call *call, int i,
                     int head, int row) {
    const attn_problem *p = &scene->problem;
    float *lse = (float *)(void *)a->blocks[AT_LSE].host;
    return call->packed ? lse + head * a->problem.total_q + a->q_row[i] + row
                        : lse + (i * p->heads_q + head) * a->problem.seq_q + row;
}

/* Whether the rows of a piece are as expected; `keep`: they become what is expected. */
static bool compare_piece(struct scene *scene, const struct call *call, int i, struct arranged *a,
                          bool keep) {
    const struct piece *piece = &call->pieces[i];
    const size_t row = row_bytes(&scene->problem, 3), first = (size_t)piece->first;
    char *found = a->blocks[AT_O].host + (size_t)a->q_row[i] * row;
    char *o = scene->o[piece->sequence] + first * row;
    bool same = memcmp(o, found, (size_t)piece->rows * row) == 0;
    if (keep) {
        memcpy(o, found, (size_t)piece->rows * row);
    }
    for (int n = 0; n < piece->rows * scene->problem.heads_q; n++) {
        const int head = n / piece->rows, r = n % piece->rows;
        float *lse = scene->lse[piece->sequence] + head * scene->length[piece->sequence] + first;
        float *here = lse_at(scene, a, call, i, head, r);
        same = same && memcmp(lse + r, here, sizeof *here) == 0;
        if (keep) {
            lse[r] = *here;
        }
    }
    return same;
}

/* Pieces that differ from what is expected; -1: the call failed. */
static int run_call(const struct place *at, struct scene *scene, const struct call *call,
                    bool keep) {
    struct arranged a = {0};
    arrange(scene, call, &a);
    fill_call(scene, call, &a);
    int differences = compute(at, &a) ? 0 : -1;
    for (int i = 0; i < call->count && differences >= 0; i++) {
        differences += !compare_piece(scene, call, i, &a, keep) && !keep;
    }
    for (int i = 0; i < BLOCKS; i++) {
        free(a.blocks[i].host);
    }
    return differences;
}

/* ---- laws ------------------------------------------------------------------------------------ */

/* Each sequence alone and in one piece: what is expected. */
static bool expect(const struct place *at, struct scene *scene, struct outcome *outcome) {
    for (int s = 0; s < scene->sequences; s++) {
        const struct call alone = {.pieces = {{s, 0, scene->length[s]}}, .count = 1};
        scene->o[s] = malloc((size_t)scene->length[s] * row_bytes(&scene->problem, 3));
        scene->lse[s] = malloc((size_t)(scene->length[s] * scene->problem.heads_q) * sizeof(float));
        outcome->calls++;
        if (run_call(at, scene, &alone, true) < 0) {
            return false;
        }
    }
    return true;
}

/* Random pieces. Most calls have a kind: decode, chunks of one length, whole sequences. */
static struct call draw_call(const struct scene *scene) {
    static const int pages[] = {0, 0, 0, 1, 2, 8, 16, 16, 24, 64, 128};
    struct call call = {.count = draw(1, PIECES), .packed = draw(0, 1) == 0};
    call.page_size = pages[draw(0, 10)];
    call.spare = draw(0, 2) == 0 ? draw(1, 700) : 0;
    const int kind = draw(0, 3);
    const int rows = kind == 0 ? 1 : draw(1, 40);
    for (int i = 0; i < call.count; i++) {
        struct piece *piece = &call.pieces[i];
        piece->sequence = draw(0, scene->sequences - 1);
        const int length = scene->length[piece->sequence];
        piece->rows = kind == 3 ? length : kind == 2 ? draw(1, length) : rows;
        piece->rows = piece->rows > length ? length : piece->rows;
        piece->first = draw(0, 1) ? length - piece->rows : draw(0, length - piece->rows);
        call.packed = call.packed || piece->rows != call.pieces[0].rows;
    }
    return call;
}

/* Draws calls of a scene and counts what differs. `print`: and says which call. */
static void try_scene(const struct place *at, struct scene *scene, int calls, bool print,
                      struct outcome *outcome) {
    if (!expect(at, scene, outcome)) {
        return;
    }
    for (int n = 0; n < calls; n++) {
        const struct call call = draw_call(scene);
        const int differences = run_call(at, scene, &call, false);
        outcome->calls++;
        outcome->differences += differences != 0;
        CHECK_MSG(!print || differences == 0,
                  "%s: %d of %d pieces differ; the first: rows %d to %d of %d, %s, pages of %d",
                  at->variant ? at->variant : "best", differences, call.count, call.pieces[0].first,
                  keys_of(&call.pieces[0]) - 1, scene->length[call.pieces[0].sequence],
                  call.packed ? "packed" : "not packed", call.page_size);
    }
}

/* One sequence alone, in one piece and in pages, compared with the reference. */
static void try_verified(struct place at, attn_dtype dtype, int dim, int length) {
    struct scene scene = {.sequences = 1, .length = {length}};
    struct outcome outcome = {0, 0};
    attn_problem_init(&scene.problem);
    scene.problem.dtype = dtype;
    scene.problem.heads_q = 4;
    scene.problem.heads_kv = 2;
    scene.problem.head_dim = scene.problem.head_dim_v = dim;
    scene.problem.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
    at.verify = true;
    scene_fill(&scene, 0, false);
    if (expect(&at, &scene, &outcome)) {
        const struct call paged = {
            .pieces = {{0, length / 3, length - length / 3}}, .count = 1, .page_size = 16};
        CHECK(run_call(&at, &scene, &paged, false) == 0);
    }
    scene_free(&scene);
}

/* Options at random; causal, bottom-right, always. */
static struct scene draw_scene(attn_dtype dtype, int dim, int dim_v, int longest, uint32_t options,
                               bool wild) {
    static const int groups[] = {1, 1, 2, 4, 5, 8};
    struct scene scene = {.sequences = draw(1, SEQUENCES)};
    attn_problem *p = &scene.problem;
    attn_problem_init(p);
    p->dtype = dtype;
    p->heads_kv = draw(1, 2);
    p->heads_q = p->heads_kv * groups[draw(0, 5)];
    p->head_dim = dim;
    p->head_dim_v = dim_v;
    p->causal = ATTN_CAUSAL_BOTTOM_RIGHT;
    p->window_left = options & ATTN_OPTION_WINDOW ? draw(0, longest) : -1;
    p->softcap = options & ATTN_OPTION_SOFTCAP ? 3.0F : 0.0F;
    p->alibi = (options & ATTN_OPTION_ALIBI) != 0;
    p->sink = (options & ATTN_OPTION_SINK) != 0;
    p->bias = (options & ATTN_OPTION_BIAS) != 0;
    p->mask = (options & ATTN_OPTION_MASK) != 0;
    for (int i = 0; i < 64; i++) {
        scene.sink[i] = draw_number();
    }
    for (int s = 0; s < scene.sequences; s++) {
        scene.length[s] = draw(0, 3) == 0 ? draw(1, longest) : draw(1, longest / 4);
        scene_fill(&scene, s, wild);
    }
    return scene;
}

static uint32_t draw_options(void) {
    static const uint32_t options[] = {0,
                                       0,
                                       0,
                                       ATTN_OPTION_WINDOW,
                                       ATTN_OPTION_SINK,
                                       ATTN_OPTION_SOFTCAP,
                                       ATTN_OPTION_ALIBI,
                                       ATTN_OPTION_BIAS,
                                       ATTN_OPTION_MASK,
                                       ATTN_OPTION_WINDOW | ATTN_OPTION_ALIBI};
    return options[draw(0, 9)];
}

#endif /* ATTN_TESTS_INVARIANCE_H */
