/* SPDX-License-Identifier: Apache-2.0
 *
 * memo.h - writes a JSON object to memory, and gives it as a document or as text.
 *
 *     struct memo memo;
 *     memo_begin(&memo);
 *     json_int(&memo.json, "answer", 42);
 *     char *text = memo_text(&memo, &bytes, &why);
 *
 * Invariant: the end closes open objects and lists, and frees the memo's memory.
 */
#ifndef ATTEST_BASE_MEMO_H
#define ATTEST_BASE_MEMO_H

#include <stdio.h>

#include "base/json.h"
#include "base/json_read.h"

struct memo {
    char *text;
    size_t bytes;
    struct json json;
};

/* The object is open. */
void memo_begin(struct memo *memo);

/* Both end it. NULL and the reason; for json_free, and in canonical form for free(). */
struct json_value *memo_end(struct memo *memo, attn_error *why);
char *memo_text(struct memo *memo, size_t *bytes, attn_error *why);

#endif /* ATTEST_BASE_MEMO_H */
