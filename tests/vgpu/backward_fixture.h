/* SPDX-License-Identifier: Apache-2.0
 *
 * backward_fixture.h - the backward kernels of this build, for tests on the virtual GPU.
 */
#ifndef ATTN_TESTS_BACKWARD_FIXTURE_H
#define ATTN_TESTS_BACKWARD_FIXTURE_H

#include "vgpu/edge_fixture.h"

/* The next backward kernel for GPUs, from *index on. */
static bool next_backward(int32_t *index, attn_variant *variant) {
    *variant = (attn_variant){.size = sizeof *variant};
    while (attn_variant_get_backward(context, (*index)++, variant, NULL) == ATTN_OK) {
        if (strcmp(variant->device, "cuda") == 0) {
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
