/* SPDX-License-Identifier: Apache-2.0
 *
 * test_serving.c - the kernels of attn_append, attn_merge and attn_accumulate on the virtual GPU:
 * random cases against plain loops (serving.h), launches in the four completion orders in turn; one
 * captured append that is replayed for every token. With $FAULT_IMAGE (PTX) and $FAULT_VARIANT it
 * is that image of this variant alone, which has a planted fault (test_serving_faults.sh).
 */
#include <stdlib.h>

#include "serving.h"
#include "tool/device/kernels.h"
#include "vgpu/vgpu_fixture.h"

/* The variants of a direction for a dtype, or the faulty one. */
static bool next_kernel(attn_direction direction, attn_dtype dtype, int32_t *index,
                        attn_variant *variant) {
    const char *image = getenv("FAULT_IMAGE"), *name = getenv("FAULT_VARIANT");
    attn_error why = {""};
    if (image != NULL &&
        !CHECK_MSG(variant_add_code(context, name, "@fault", image, &why) == ATTN_OK, "%s",
                   why.text)) {
        return false;
    }
    *variant = (attn_variant){.size = sizeof *variant};
    while (attn_variant_get_direction(context, direction, (*index)++, variant, NULL) == ATTN_OK) {
        if ((variant->dtypes >> (unsigned)dtype & 1) != 0 &&
            (image == NULL || strcmp(variant->name, "@fault") == 0)) {
            return true;
        }
    }
    return false;
}

static void judge(const char *name, int index, const char *failed) {
    char finding[500];
    const bool clean = vgpu_driver_clean(finding, sizeof finding);
    CHECK_MSG(failed == NULL, "%s, case %d: %s", name, index, failed);
    CHECK_MSG(clean, "%s, case %d: %s", name, index, finding);
    vgpu_driver_forget();
}

static void next_order(void) {
    vgpu_driver_forget();
    vgpu_driver_order(&orders, launches++ % orders.count);
}

TEST(append) {
    int ran = 0;
    if (!open_gpu()) {
        return;
    }
    for (int i = 0; i < 240 / TEST_FEWER; i++) {
        const struct append_case c = append_case_of(i);
        attn_variant variant;
        for (int32_t at = 0; next_kernel(ATTN_APPEND, c.p.dtype, &at, &variant); ran++) {
            if ((variant.dtypes >> ATTN_E4M3 & 1) != (c.p.dtype_kv > (int32_t)ATTN_BF16)) {
                continue;
            }
            next_order();
            judge(variant.name, i, append_try(context, device, variant.name, &c));
        }
    }
    if (ran == 0) {
        SKIP("no kernel that takes it is compiled in");
    }
}

TEST(merge) {
    int ran = 0;
    if (!open_gpu()) {
        return;
    }
    for (int i = 0; i < 120 / TEST_FEWER; i++) {
        const struct merge_case c = merge_case_of(i);
        attn_variant variant;
        for (int32_t at = 0; next_kernel(ATTN_MERGE, c.p.dtype, &at, &variant); ran++) {
            next_order();
            judge(variant.name, i, merge_try(context, device, variant.name, &c));
        }
    }
    if (ran == 0) {
        SKIP("no kernel that takes it is compiled in");
    }
}

TEST(accumulate) {
    int ran = 0;
    if (!open_gpu()) {
        return;
    }
    for (int i = 0; i < 120 / TEST_FEWER; i++) {
        const struct merge_case c = accumulate_case_of(i);
        attn_variant variant;
        for (int32_t at = 0; next_kernel(ATTN_MERGE, c.p.dtype, &at, &variant); ran++) {
            next_order();
            judge(variant.name, i, merge_try(context, device, variant.name, &c));
        }
    }
    if (ran == 0) {
        SKIP("no kernel that takes it is compiled in");
    }
}

/* ---- a captured append ----------------------------------------------------------------------- */

enum { KEYS = 9, PAGE = 4, DIM = 8, PAGES = 3 };

/* Replays the graph for each token; the cache must then be the tokens, through the table. */
static void replay(void *graph, void *stream, int32_t *used, uint16_t *token, uint16_t *cache,
                   const int32_t *table) {
    uint16_t now[PAGES * PAGE][DIM], row[DIM];
    attn_error why = {""};
    for (int32_t n = 1; n <= KEYS; n++) {
        for (int d = 0; d < DIM; d++) {
            row[d] = (uint16_t)(100 * n + d);
        }
        CHECK_MSG(device_write(device, used, &n, sizeof n, &why) &&
                      device_write(device, token, row, sizeof row, &why) &&
                      graph_launch(device, graph, stream, &why) && device_wait(device, &why) &&
                      device_read(device, now, cache, sizeof now, &why),
                  "%s", why.text);
        CHECK_MSG(memcmp(now[table[(n - 1) / PAGE] * PAGE + (n - 1) % PAGE], row, sizeof row) == 0,
                  "key %d is not the token", (int)n - 1);
    }
    for (int n = 1; n <= KEYS; n++) {
        CHECK_EQ(now[table[(n - 1) / PAGE] * PAGE + (n - 1) % PAGE][1], 100 * n + 1);
    }
}

TEST(captured) {
    static const int32_t table[PAGES] = {2, 0, 1};
    attn_plan_options options;
    attn_plan *plan = NULL;
    attn_tensors t;
    attn_problem p;
    attn_error why = {""};
    int32_t index = 0;
    attn_variant variant;
    if (!open_gpu()) {
        return;
    }
    if (!next_kernel(ATTN_APPEND, ATTN_FP16, &index, &variant)) {
        SKIP("no kernel that takes it is compiled in");
    }
    attn_problem_init(&p);
    p.dtype = ATTN_FP16;
    p.head_dim = DIM;
    p.seq_kv = PAGES * PAGE;
    p.used_kv = true;
    p.page_size = PAGE;
    p.num_pages = PAGES;
    attn_plan_options_init(&options);
    options.direction = ATTN_APPEND;
    options.variant = variant.name;
    attn_tensors_init(&t);
    const size_t bytes = sizeof(uint16_t[PAGES * PAGE][DIM]);
    int32_t *used = device_alloc(device, sizeof *used, &why);
    int32_t *pages = device_alloc(device, sizeof table, &why);
    uint16_t *token = device_alloc(device, DIM * sizeof *token, &why);
    uint16_t *k = device_alloc(device, bytes, &why), *v = device_alloc(device, bytes, &why);
    device_fill(device, v, 0, bytes, &why);
    device_write(device, pages, table, sizeof table, &why);
    t.used_kv = used;
    t.block_table = pages;
    t.k_new = t.v_new = token;
    t.k_cache = k;
    t.v_cache = v;
    void *stream = stream_make(device, &why), *graph = NULL;
    if (CHECK_STATUS(attn_plan_create(context, &p, &options, &plan, &why), ATTN_OK, &why) &&
        CHECK_MSG(capture_begin(device, stream, &why), "%s", why.text)) {
        CHECK_STATUS(attn_append(plan, &t, stream, &why), ATTN_OK, &why);
        graph = capture_end(device, stream, &why);
        if (CHECK_MSG(graph != NULL, "%s", why.text)) {
            next_order();
            replay(graph, stream, used, token, v, table);
            judge(variant.name, 0, NULL);
            graph_free(device, graph);
        }
    }
    attn_plan_destroy(plan);
    stream_free(device, stream);
    void *const memory[] = {used, pages, token, k, v};
    for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++) {
        device_free(device, memory[i]);
    }
}

TEST_MAIN()
