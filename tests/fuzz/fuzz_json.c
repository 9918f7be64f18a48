/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_json.c - any bytes as JSON: read, or refused with one sentence that says where; what was
 * read has a canonical form, which reads back and is its own canonical form.
 *
 * Seeds are in tests/data/fuzz_json.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz/fuzz.h"
#include "tool/base/json_read.h"

static void write_and_read_back(const struct json_value *document) {
    attn_error why = {""};
    size_t size = 0, again = 0;
    char *text = json_canonical(document, &size);
    HOLDS(text != NULL);
    struct json_value *back = json_read(text, size, &why);
    HOLDS(back != NULL);
    char *same = json_canonical(back, &again);
    HOLDS(same != NULL && again == size && memcmp(same, text, size) == 0);
    free(same);
    json_free(back);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    attn_error why = {""};
    struct json_value *document = json_read((const char *)data, size, &why);
    if (document != NULL) {
        write_and_read_back(document);
    } else {
        HOLDS(strncmp(why.text, "line ", 5) == 0);
    }
    json_free(document);
    return 0;
}
