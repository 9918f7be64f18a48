/* SPDX-License-Identifier: Apache-2.0
 *
 * test_serving.c - the kernels of attn_append and attn_merge on the virtual GPU: random cases against
 * plain loops (serving.h), launches in the four completion orders in turn; one captured graph for
 * changing lengths. With $FAULT_IMAGE (PTX) and $FAULT_VARIANT it is that image of this variant
 * alone, which has a planted fault (test_serving_faults.sh).
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

TEST_MAIN()
