/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_fatbin.c - any bytes as a fatbin: they are decompressed, or refused with one sentence. The
 * sizes in the headers are made to agree with the input, so that changes reach the LZ4 block.
 *
 * Seeds are in tests/data/fuzz_fatbin.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz/fuzz.h"
#include "tool/base/fatbin.h"

enum { HEADER = 16, HEADERS = 80, AT_BYTES = 8, AT_PADDED = 24, AT_IMAGE = 32 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    attn_error why = {""};
    size_t bytes = 0;
    uint8_t *copy = malloc(size > 0 ? size : 1);
    memcpy(copy, data, size);
    if (size >= HEADERS) {
        const uint64_t after = size - HEADER, room = size - HEADERS;
        memcpy(copy + AT_BYTES, &after, sizeof after);
        memcpy(copy + AT_PADDED, &room, sizeof room);
        const uint32_t image = (uint32_t)room - copy[AT_IMAGE] % 8;
        memcpy(copy + AT_IMAGE, &image, sizeof image);
    }
    unsigned char *cubin = fatbin_cubin(copy, size, &bytes, &why);
    if ((cubin == NULL) != (why.text[0] != '\0')) {
        fprintf(stderr, "%zu bytes and \"%s\"\n", bytes, why.text);
        abort();
    }
    free(cubin);
    free(copy);
    return 0;
}
