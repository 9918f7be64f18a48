/* SPDX-License-Identifier: Apache-2.0
 *
 * backward_fixture.h - the backward kernels of this build, for tests on the virtual GPU. With
 * $FAULT_IMAGE (PTX) and $FAULT_VARIANT it is that image of this variant alone, which has a planted
 * fault (test_backward_faults.sh).
 */
#ifndef ATTN_TESTS_BACKWARD_FIXTURE_H
#define ATTN_TESTS_BACKWARD_FIXTURE_H

#include "tool/device/kernels.h"
#include "vgpu/edge_fixture.h"

/* The next backward kernel, from *index on. */
static bool next_backward(int32_t *index, attn_variant *variant) {
    const char *image = getenv("FAULT_IMAGE"), *name = getenv("FAULT_VARIANT");
    attn_error why = {""};
    if (image != NULL &&
        !CHECK_MSG(variant_add_code(context, name, "@fault", image, &why) == ATTN_OK, "%s",
                   why.text)) {
        return false;
    }
    *variant = (attn_variant){.size = sizeof *variant};
    while (attn_variant_get_backward(context, (*index)++, variant, NULL) == ATTN_OK) {
        if (image == NULL || strcmp(variant->name, "@fault") == 0) {
            return true;
        }
    }
    return false;
}

#define NEEDS_BACKWARD_KERNELS()                                                                   \
    do {                                                                                           \
        int32_t needs_index = 0;                                                                   \
        attn_variant needs_variant;                                                                \
        if (!open_gpu()) {                                                                         \
            return;                                                                                \
        }                                                                                          \
        if (!next_backward(&needs_index, &needs_variant)) {                                        \
            SKIP("no kernel that takes it is compiled in");                                        \
        }                                                                                          \
    } while (0)

#endif /* ATTN_TESTS_BACKWARD_FIXTURE_H */
