/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_cubin.c - any bytes as a cubin: its kernels are read, or refused with one sentence, and what
 * is handed out lies inside the image.
 *
 * Seeds are in tests/data/fuzz_cubin.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz/fuzz.h"
#include "tool/stages/inspect/cubin.h"

enum { ENTRIES_MAX = 8 }; /* each is looked at in time that grows with the number of symbols */

static bool inside(const struct cubin *cubin, const void *from, size_t bytes) {
    const size_t at = (size_t)((const unsigned char *)from - cubin->data);
    return at <= cubin->bytes && bytes <= cubin->bytes - at;
}

static void look_at(const struct cubin *cubin, uint32_t index) {
    struct cubin_entry entry, again;
    static struct sass_counts counts;
    attn_error why = {""};
    if (!cubin_entry(cubin, index, &entry, &why)) {
        HOLDS(why.text[0] != '\0');
        return;
    }
    HOLDS(inside(cubin, entry.name, strlen(entry.name) + 1));
    HOLDS(inside(cubin, entry.code, entry.code_bytes));
    HOLDS(entry.stack_bytes >= entry.frame_bytes);
    HOLDS(!cubin_find(cubin, entry.name, &again, &why) || strcmp(entry.name, again.name) == 0);
    sass_count(cubin, &entry, &counts);
    HOLDS(counts.instructions <= (int64_t)(entry.code_bytes / CUBIN_INSTRUCTION));
    HOLDS(counts.tensor + counts.local <= counts.instructions);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct cubin cubin;
    attn_error why = {""};
    if (!cubin_open(&cubin, data, size, &why)) {
        HOLDS(why.text[0] != '\0');
        return 0;
    }
    for (uint32_t i = 0; i < cubin.entries && i < ENTRIES_MAX; i++) {
        look_at(&cubin, i);
    }
    return 0;
}
