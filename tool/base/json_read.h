/* SPDX-License-Identifier: Apache-2.0
 *
 * json_read.h - reads JSON into a tree, and writes a tree in its one canonical form.
 *
 *     struct json_value *document = json_read(text, bytes, &why);
 *     const struct json_value *seed = json_at(document, "seed");
 *     char *same = json_canonical(document, &size, &why);
 *     json_free(document);
 *
 * Strict (RFC 8259): valid UTF-8, no comments, no commas too many, no numbers that a double cannot
 * hold, no key twice in an object, no U+0000, nothing after the document. A sentence about a
 * mistake says the line and the column, in bytes.
 *
 * Invariant: two texts that mean the same have the same canonical form, and reading that and
 * writing it again gives the same bytes: keys in the order of their bytes, the layout and the
 * numbers of json.h, integers that fit 64 bits without a point.
 */
#ifndef ATTEST_BASE_JSON_READ_H
#define ATTEST_BASE_JSON_READ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "attn.h"
#include "base/json.h"

enum json_kind { JSON_NULL, JSON_BOOL, JSON_INT, JSON_REAL, JSON_TEXT, JSON_LIST, JSON_OBJECT };

enum { JSON_READ_DEPTH = 16, JSON_READ_VALUES = 1 << 22 }; /* more is refused */

struct json_value {
    enum json_kind kind;
    char *key; /* NULL outside objects */
    union {
        bool truth;
        int64_t integer;
        double real;
        char *text;
        struct {
            struct json_value *items; /* of an object: in the order of their keys */
            size_t count;
        } list;
    } as;
};

/* NULL and the reason; give it to json_free. */
struct json_value *json_read(const char *text, size_t bytes, attn_error *why);
struct json_value *json_load(const char *path, attn_error *why); /* the whole of a file */
void json_free(struct json_value *document);                     /* NULL is fine */

/* The value of a key; NULL where there is none, or where `object` is NULL or no object. */
const struct json_value *json_at(const struct json_value *object, const char *key);

/* The text of a string, NULL if it is none; the items of a list, 0 of anything else, and one of
 * them. */
const char *json_text_of(const struct json_value *value);
size_t json_count_of(const struct json_value *value);
const struct json_value *json_item(const struct json_value *list, size_t index);

/* A number, an integer or not; NaN where it is none, which no comparison accepts. */
double json_number_of(const struct json_value *value);

/* An integer of at least `least`; least - 1 where it is none. */
int64_t json_int_of(const struct json_value *value, int64_t least);

/* The same of the value of a key. */
const char *json_text_at(const struct json_value *object, const char *key);
const char *json_text_or(const struct json_value *object, const char *key, const char *otherwise);
double json_number_at(const struct json_value *object, const char *key);
int64_t json_int_at(const struct json_value *object, const char *key, int64_t least);
bool json_true_at(const struct json_value *object, const char *key); /* it is true */
bool json_is_at(const struct json_value *object, const char *key, const char *text); /* that text */

/* Writes it into a document, under its own key where it has one. */
void json_value_json(struct json *json, const struct json_value *value);

/* A terminated text for free(). */
char *json_canonical(const struct json_value *document, size_t *bytes);

/* ---- in memory -------------------------------------------------------------------------------
 *
 *     memo_begin(&memo);
 *     json_int(&memo.json, "answer", 42);
 *     char *text = memo_text(&memo, &bytes, &why);
 *
 * The end closes open objects and lists, and frees the memo's memory. */
struct memo {
    char *text;
    size_t bytes;
    struct json json; /* of which an object is open */
};
void memo_begin(struct memo *memo);

/* Both end it. NULL and the reason; for json_free, and in canonical form for free(). */
struct json_value *memo_end(struct memo *memo, attn_error *why);
char *memo_text(struct memo *memo, size_t *bytes, attn_error *why);

#endif /* ATTEST_BASE_JSON_READ_H */
