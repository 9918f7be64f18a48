/* SPDX-License-Identifier: Apache-2.0
 *
 * memo.c - see memo.h.
 */
#include "base/memo.h"

#include <stdlib.h>

#include "base/message.h"

bool memo_begin(struct memo *memo, attn_error *why) {
    *memo = (struct memo){.file = NULL};
    memo->file = open_memstream(&memo->text, &memo->bytes);
    if (memo->file == NULL) {
        return explain(why, "out of memory");
    }
    memo->json = json_begin(memo->file);
    json_open(&memo->json, NULL, '{');
    return true;
}

struct json_value *memo_end(struct memo *memo, attn_error *why) {
    struct json_value *document = NULL;
    while (memo->json.depth > 0) {
        json_close(&memo->json);
    }
    if (fclose(memo->file) != 0) {
        explain(why, "out of memory");
    } else {
        document = json_read(memo->text, memo->bytes, why);
    }
    free(memo->text);
    return document;
}

char *memo_text(struct memo *memo, size_t *bytes, attn_error *why) {
    struct json_value *document = memo_end(memo, why);
    char *text = document != NULL ? json_canonical(document, bytes, why) : NULL;
    json_free(document);
    return text;
}
