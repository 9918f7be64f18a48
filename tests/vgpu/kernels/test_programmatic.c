/* SPDX-License-Identifier: Apache-2.0
 *
 * test_programmatic.c - programmatic dependent launches of libattn's kernels: each computes O from
 * the O of the launch before it in the same graph. What a
 * kernel does before griddepcontrol.wait must not touch what the one before reads or writes. With
 * $FAULT_IMAGE (PTX) and $FAULT_VARIANT it is that image alone, which has a planted fault
 * (test_programmatic_faults.sh).
 */
#include <stdlib.h>
#include <string.h>

#include "attn_inspect.h"
#include "tool/cases/cases.h"
#include "tool/device/kernels.h"
#include "vgpu/vgpu_fixture.h"

static const struct {
    const char *family;
    int64_t seq_q, seq_kv;
    bool causal;
} CHAINS[] = {{"fwd_hopper", 200, 130, false},         {"fwd_hopper_causal", 200, 200, true},
              {"fwd_hopper_full", 70, 150, false},     {"fwd_hopper_split", 60, 700, false},
              {"fwd_hopper_chunk", 50, 700, true},     {"fwd_hopper_decode", 1, 600, false},
              {"fwd_hopper_decode", 1, 9001, false},   {"fwd_hopper_mixed", 50, 700, true},
              {"fwd_hopper_invariant", 50, 700, true}, {"fwd_mma", 70, 150, false}};

/* The variant that is tried for the family; false: this build has none for the problem. */
static bool variant_of(const char *family, const attn_problem *p, attn_variant *variant) {
    const char *image = getenv("FAULT_IMAGE"), *name = getenv("FAULT_VARIANT");
    attn_error why = {""};
    if (image != NULL && variant_add_code(context, name, "@fault", image, &why) != ATTN_OK &&
        !CHECK_MSG(strstr(why.text, "@fault") != NULL, "%s", why.text)) { /* added before */
        return false;
    }
    *variant = (attn_variant){.size = sizeof *variant};
    for (int32_t i = 0; attn_variant_get(context, i, variant, NULL) == ATTN_OK; i++) {
        const bool wanted = image != NULL ? strcmp(variant->name, "@fault") == 0
                                          : strcmp(variant->family, family) == 0;
        if (wanted && attn_variant_check(context, variant->name, p, NULL) == ATTN_OK) {
            return true;
        }
    }
    return false;
}

/* Three launches of a graph: O of one is Q of the next. */
static void chain(const char *name, const struct sample *s) {
    struct mirror mirror = {0};
    attn_plan *plan = NULL;
    attn_error why = {""};
    char found[500];
    if (!CHECK_STATUS(attn_plan_create(context, &s->problem, ATTN_BY_NAME(name), &plan, &why),
                      ATTN_OK, &why) ||
        !CHECK_MSG(mirror_make(&mirror, device, s, &why), "%s", why.text)) {
        attn_plan_destroy(plan);
        return;
    }
    const size_t size = attn_workspace_size(plan);
    void *workspace = size > 0 ? device_alloc(device, size, &why) : NULL;
    void *other = device_alloc(device, s->o.size, &why);
    bool ran = CHECK(other != NULL && (size == 0 || workspace != NULL)) &&
               CHECK(size == 0 || device_fill(device, workspace, 0xA5, size, &why));
    attn_tensors t = mirror.tensors;
    vgpu_driver_order(&orders, launches++ % orders.count);
    vgpu_driver_forget();
    void *stream = stream_make(device, &why);
    ran = ran && stream != NULL && capture_begin(device, stream, &why);
    for (int i = 0; ran && i < 3; i++) {
        ran = attn_forward(plan, &t, workspace, size, stream, &why) == ATTN_OK;
        t.q = t.o;
        t.o = i % 2 == 0 ? other : mirror.tensors.o;
    }
    void *graph = ran ? capture_end(device, stream, &why) : NULL;
    ran = graph != NULL && graph_launch(device, graph, stream, &why) && device_wait(device, &why);
    const bool clean = vgpu_driver_clean(found, sizeof found);
    CHECK_MSG(ran, "%s: %s", name, why.text);
    CHECK_MSG(clean, "%s: %s", name, found);
    graph_free(device, graph);
    stream_free(device, stream);
    device_free(device, other);
    device_free(device, workspace);
    attn_plan_destroy(plan);
    mirror_free(&mirror);
}

TEST(each_computes_from_the_one_before) {
    if (!open_gpu()) {
        return;
    }
    int tried = 0;
    for (size_t i = 0; i < sizeof CHAINS / sizeof CHAINS[0]; i++) {
        attn_problem p;
        struct recipe recipe;
        struct sample s;
        attn_variant variant;
        attn_problem_init(&p);
        p.dtype = ATTN_FP16;
        p.batch = 2;
        p.heads_q = 4;
        p.heads_kv = 2;
        p.seq_q = CHAINS[i].seq_q;
        p.seq_kv = CHAINS[i].seq_kv;
        p.head_dim = 64;
        p.causal = CHAINS[i].causal ? ATTN_CAUSAL_BOTTOM_RIGHT : ATTN_CAUSAL_NONE;
        recipe_init(&recipe, &p, 7 + i);
        if (!CHECK(sample_make(&s, &recipe))) {
            return;
        }
        if (variant_of(CHAINS[i].family, &s.problem, &variant)) {
            chain(variant.name, &s);
            tried++;
        }
        sample_free(&s);
    }
    if (tried == 0) {
        SKIP("no variant of these families is compiled in");
    }
}

TEST_MAIN()
