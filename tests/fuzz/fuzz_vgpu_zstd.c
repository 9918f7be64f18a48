/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_vgpu_zstd.c - any bytes as a zstd frame, whose output size is in the last three bytes. It is
 * decompressed or refused. The bytes before and after the output do not change.
 *
 * Seeds are in tests/data/fuzz_vgpu_zstd.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "vgpu/runtime/zstd.c" /* of a library that exports the CUDA runtime alone */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { SIZE_BYTES = 3, GUARD = 16 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < SIZE_BYTES) {
        return 0;
    }
    const uint8_t *last = data + size - SIZE_BYTES;
    const size_t bytes = last[0] | (size_t)last[1] << 8 | (size_t)(last[2] & 15) << 16;
    unsigned char *in = malloc(size), *out = malloc(bytes + 2 * GUARD); /* for the sanitizer */
    memcpy(in, data, size - SIZE_BYTES);
    memset(out, 0xa5, bytes + 2 * GUARD);
    zstd_decode(in, size - SIZE_BYTES, out + GUARD, bytes);
    for (size_t i = 0; i < GUARD; i++) {
        if (out[i] != 0xa5 || out[GUARD + bytes + i] != 0xa5) {
            abort();
        }
    }
    free(in);
    free(out);
    return 0;
}
