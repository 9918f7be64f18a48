/* SPDX-License-Identifier: Apache-2.0
 *
 * json.h - writes JSON, indented, to a stream.
 *
 *     struct json j = json_begin(stdout);
 *     json_open(&j, NULL, '{');
 *     json_int(&j, "answer", 42);
 *     json_open(&j, "list", '[');
 *     json_real(&j, NULL, 0.1);
 *     json_close(&j);
 *     json_close(&j);                  // {"answer": 42, "list": [0.1]}
 *
 * The key is NULL in an array and at the top, and given in an object.
 *
 * Invariant: whatever is passed in, what comes out is valid JSON in valid UTF-8: bytes that are no
 * UTF-8 become U+FFFD; NaN and infinities, which JSON does not have, become null. A number is
 * written with the fewest digits that read back as the same double.
 */
#ifndef ATTEST_BASE_JSON_H
#define ATTEST_BASE_JSON_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { JSON_MAX_DEPTH = 16 };

struct json {
    FILE *out;
    int depth;
    char closing[JSON_MAX_DEPTH];
    bool filled[JSON_MAX_DEPTH]; /* something stands before, so a comma is due */
};

struct json json_begin(FILE *out);

/* bracket: '{' or '['. Nothing is deeper than JSON_MAX_DEPTH: that is a defect of the caller. The
 * newline at the very end comes with the last json_close. */
void json_open(struct json *json, const char *key, char bracket);
void json_close(struct json *json);
void json_close_all(struct json *json); /* what is open; it may be nothing */

void json_text(struct json *json, const char *key, const char *text); /* NULL: null */
void json_int(struct json *json, const char *key, int64_t value);
void json_real(struct json *json, const char *key, double value);
void json_bool(struct json *json, const char *key, bool value);
void json_null(struct json *json, const char *key);

/* Lists. */
void json_texts(struct json *json, const char *key, const char *const *texts, size_t count);
void json_ints(struct json *json, const char *key, const int64_t *values, size_t count);
void json_reals(struct json *json, const char *key, const double *values, size_t count);

/* Null where nothing is known: "" or NULL, a number below 0. */
void json_known_text(struct json *json, const char *key, const char *text);
void json_known_int(struct json *json, const char *key, int64_t value);

#endif /* ATTEST_BASE_JSON_H */
