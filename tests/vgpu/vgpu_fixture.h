/* SPDX-License-Identifier: Apache-2.0
 *
 * vgpu_fixture.h - the virtual GPU of a test that runs kernels of the library, opened once.
 *
 * Invariant: launches take the four completion orders in turn, by `launches`.
 */
#ifndef ATTN_TESTS_VGPU_FIXTURE_H
#define ATTN_TESTS_VGPU_FIXTURE_H

#include "test.h"
#include "tool/device/device.h"
#include "tool/device/vgpu_findings.h"
#include "tool/stages/parity/parity.h"

#ifndef VGPU_LIBRARY
#define VGPU_LIBRARY "libvgpu.so"
#endif

/* ---- the virtual GPU, opened once ------------------------------------------------------------ */

static attn_context *context;
static struct device *device;
static struct async_orders orders;
static size_t launches; /* so far: the next one takes the next order */

static bool open_gpu(void) {
    attn_options options;
    attn_error why;
    if (device != NULL) {
        return true;
    }
    attn_options_init(&options);
    options.device = "cuda";
    options.driver = VGPU_LIBRARY;
    if (!CHECK_STATUS(attn_open(&options, &context, &why), ATTN_OK, &why)) {
        return false;
    }
    device = device_open(context, options.device, &why);
    return CHECK_MSG(device != NULL, "%s", why.text) &&
           CHECK_MSG(async_orders_parse("all", &orders, &why), "%s", why.text);
}

#endif /* ATTN_TESTS_VGPU_FIXTURE_H */
