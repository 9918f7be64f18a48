/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_npy.c - any bytes as a .npy file: read, or refused with one sentence; what was read is
 * written and read back the same.
 *
 * Seeds are in tests/data/fuzz_npy.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz/fuzz.h"
#include "tool/base/npy.h"

static void write_and_read_back(const struct npy *array) {
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    HOLDS(out != NULL);
    HOLDS(npy_write(out, array));
    HOLDS(fclose(out) == 0);
    FILE *in = fmemopen(text, size, "rb");
    struct npy back;
    attn_error why = {""};
    HOLDS(npy_read(in, NPY_ATTENTION, &back, &why));
    HOLDS(back.type == array->type && back.dims == array->dims && back.bytes == array->bytes);
    HOLDS(memcmp(back.shape, array->shape, sizeof back.shape) == 0);
    HOLDS(back.bytes == 0 || memcmp(back.data, array->data, back.bytes) == 0);
    npy_free(&back);
    fclose(in);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    FILE *in = size > 0 ? fmemopen((void *)data, size, "rb") : fopen("/dev/null", "rb");
    HOLDS(in != NULL);
    struct npy array;
    attn_error why = {""};
    if (npy_read(in, NPY_ATTENTION, &array, &why)) {
        HOLDS(array.bytes < size);
        write_and_read_back(&array);
    } else {
        HOLDS(why.text[0] != '\0' && array.data == NULL && array.bytes == 0);
    }
    npy_free(&array);
    fclose(in);
    return 0;
}
