/* SPDX-License-Identifier: Apache-2.0
 *
 * memo.c - see memo.h.
 */
#include "base/memo.h"

#include <stdlib.h>

#include "base/message.h"

void memo_begin(struct memo *memo) {
    *memo = (struct memo){.text = NULL};
    memo->json = json_begin(must(open_memstream(&memo->text, &memo->bytes)));
    json_open(&memo->json, NULL, '{');
}

struct json_value *memo_end(struct memo *memo, attn_error *why) {
    while (memo->json.depth > 0) {
        json_close(&memo->json);
    }
    must(fclose(memo->json.out) == 0 ? memo->text : NULL);
    struct json_value *document = json_read(memo->text, memo->bytes, why);
    free(memo->text);
    return document;
}

char *memo_text(struct memo *memo, size_t *bytes, attn_error *why) {
    struct json_value *document = memo_end(memo, why);
    char *text = document != NULL ? json_canonical(document, bytes) : NULL;
    json_free(document);
    return text;
}
