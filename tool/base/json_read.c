/* SPDX-License-Identifier: Apache-2.0
 *
 * json_read.c - see json_read.h. A recursive descent whose depth is limited; the reader keeps the
 * keys of an object sorted, so that writing is a walk.
 */
#include "base/json_read.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/message.h"

_Static_assert((int)JSON_READ_DEPTH <= (int)JSON_MAX_DEPTH, "what is read can be written");

struct reader {
    const char *text, *at, *end;
    size_t values;
    int depth;
    attn_error *why;
};

static bool wrong(const struct reader *reader, const char *at, const char *what) {
    int line = 1;
    const char *begin = reader->text;
    for (const char *c = reader->text; c < at; c++) {
        if (*c == '\n') {
            line++;
            begin = c + 1;
        }
    }
    return explain(reader->why, "line %d, column %d: %s", line, (int)(at - begin) + 1, what);
}

static void skip_space(struct reader *reader) {
    while (reader->at < reader->end && *reader->at != '\0' && strchr(" \t\r\n", *reader->at)) {
        reader->at++;
    }
}

static bool next_is(struct reader *reader, char c) {
    const bool is = reader->at < reader->end && *reader->at == c;
    reader->at += is;
    return is;
}

static bool is_digit(const struct reader *reader) {
    return reader->at < reader->end && *reader->at >= '0' && *reader->at <= '9';
}

/* ---- strings --------------------------------------------------------------------------------- */

/* Four hexadecimal digits after "\u"; -1: they are not there. */
static int32_t read_hex(struct reader *reader) {
    int32_t value = 0;
    for (int i = 0; i < 4; i++) {
        static const char DIGITS[] = "0123456789abcdefABCDEF";
        const char *found =
            reader->at < reader->end && *reader->at != '\0' ? strchr(DIGITS, *reader->at) : NULL;
        if (found == NULL) {
            return -1;
        }
        const int32_t digit = (int32_t)(found - DIGITS);
        value = 16 * value + (digit < 16 ? digit : digit - 6);
        reader->at++;
    }
    return value;
}

static char *put_utf8(char *out, int32_t code) {
    const int more = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    static const int LEADS[] = {0x00, 0xc0, 0xe0, 0xf0};
    *out++ = (char)(LEADS[more] | code >> (6 * more));
    for (int i = more - 1; i >= 0; i--) {
        *out++ = (char)(0x80 | (code >> (6 * i) & 0x3f));
    }
    return out;
}

/* What follows a backslash. NULL: wrong. */
static char *read_escape(struct reader *reader, char *out) {
    static const char NAMES[] = "\"\\/bfnrt", VALUES[] = "\"\\/\b\f\n\r\t";
    const char *begin = reader->at - 1;
    const char name = reader->at < reader->end ? *reader->at++ : '\0';
    const char *found = name != '\0' ? strchr(NAMES, name) : NULL;
    if (found != NULL) {
        *out = VALUES[found - NAMES];
        return out + 1;
    }
    int32_t code = name == 'u' ? read_hex(reader) : -1;
    if (code >= 0xd800 && code < 0xdc00 && next_is(reader, '\\') && next_is(reader, 'u')) {
        const int32_t low = read_hex(reader);
        code =
            low >= 0xdc00 && low < 0xe000 ? 0x10000 + (code - 0xd800) * 0x400 + low - 0xdc00 : -1;
    }
    if (code < 0 || (code >= 0xd800 && code < 0xe000)) {
        wrong(reader, begin, "no such escape in a string");
        return NULL;
    }
    if (code == 0) {
        wrong(reader, begin, "U+0000 in a string, which cannot hold it");
        return NULL;
    }
    return put_utf8(out, code);
}

/* The characters up to the closing quote, which no escape makes longer. False: wrong. */
static bool read_characters(struct reader *reader, char *out) {
    while (!next_is(reader, '"')) {
        if (reader->at == reader->end) {
            return wrong(reader, reader->at, "a string without its end");
        }
        if ((unsigned char)*reader->at < 0x20) {
            return wrong(reader, reader->at, "a control character in a string");
        }
        if (next_is(reader, '\\')) {
            out = read_escape(reader, out);
            if (out == NULL) {
                return false;
            }
            continue;
        }
        uint32_t character;
        const size_t length =
            utf8_length(reader->at, (size_t)(reader->end - reader->at), &character);
        if (length == 0) {
            return wrong(reader, reader->at, "bytes that are not UTF-8");
        }
        memcpy(out, reader->at, length);
        out += length;
        reader->at += length;
    }
    *out = '\0';
    return true;
}

/* After the opening quote. */
static char *read_string(struct reader *reader) {
    const char *close = reader->at;
    while (close < reader->end && *close != '"') {
        close += *close == '\\' && close + 1 < reader->end ? 2 : 1;
    }
    char *text = must(malloc((size_t)(close - reader->at) + 1));
    if (!read_characters(reader, text)) {
        free(text);
        return NULL;
    }
    return text;
}

/* ---- numbers and words ----------------------------------------------------------------------- */

static bool skip_digits(struct reader *reader) {
    const bool any = is_digit(reader);
    while (is_digit(reader)) {
        reader->at++;
    }
    return any;
}

static bool read_number(struct reader *reader, struct json_value *value) {
    enum { MOST_DIGITS = 64 };
    const char *begin = reader->at;
    bool whole = true;
    next_is(reader, '-');
    bool good = next_is(reader, '0') ? !is_digit(reader) : skip_digits(reader);
    if (good && next_is(reader, '.')) {
        whole = false;
        good = skip_digits(reader);
    }
    if (good && (next_is(reader, 'e') || next_is(reader, 'E'))) {
        whole = false;
        if (!next_is(reader, '+')) {
            next_is(reader, '-');
        }
        good = skip_digits(reader);
    }
    if (!good) {
        return wrong(reader, begin, "no number of JSON");
    }
    char digits[MOST_DIGITS];
    const size_t length = (size_t)(reader->at - begin);
    if (length >= sizeof digits) {
        return wrong(reader, begin, "a number of 64 characters or more");
    }
    memcpy(digits, begin, length);
    digits[length] = '\0';
    errno = 0;
    const long long integer = strtoll(digits, NULL, 10);
    if (whole && errno == 0) {
        value->kind = JSON_INT;
        value->as.integer = integer;
        return true;
    }
    const double real = strtod(digits, NULL);
    if (!isfinite(real)) {
        return wrong(reader, begin, "a number that no double can hold");
    }
    value->kind = JSON_REAL;
    value->as.real = real;
    /* 1e3 and 1000.0 mean 1000, and one number has one form. */
    if (fabs(real) < 0x1p53 && real == trunc(real)) {
        value->kind = JSON_INT;
        value->as.integer = (int64_t)real;
    }
    return true;
}

static bool read_word(struct reader *reader, const char *word) {
    const size_t length = strlen(word);
    if ((size_t)(reader->end - reader->at) < length || memcmp(reader->at, word, length) != 0) {
        return wrong(reader, reader->at, "no value of JSON");
    }
    reader->at += length;
    return true;
}

/* ---- lists and objects ----------------------------------------------------------------------- */

static bool read_value(struct reader *reader, struct json_value *value);

static void clear(struct json_value *value) {
    free(value->key);
    if (value->kind == JSON_TEXT) {
        free(value->as.text);
    } else if (value->kind == JSON_LIST || value->kind == JSON_OBJECT) {
        for (size_t i = 0; i < value->as.list.count; i++) {
            clear(&value->as.list.items[i]);
        }
        free(value->as.list.items);
    }
}

/* One more item, null. */
static struct json_value *add_item(struct json_value *list) {
    list->as.list.items =
        grow(list->as.list.items, list->as.list.count, sizeof *list->as.list.items);
    struct json_value *item = &list->as.list.items[list->as.list.count++];
    *item = (struct json_value){.kind = JSON_NULL};
    return item;
}

static bool read_key(struct reader *reader, struct json_value *item) {
    skip_space(reader);
    if (!next_is(reader, '"')) {
        return wrong(reader, reader->at, "expected a key in quotes");
    }
    item->key = read_string(reader);
    if (item->key == NULL) {
        return false;
    }
    skip_space(reader);
    return next_is(reader, ':') || wrong(reader, reader->at, "expected ':' after a key");
}

static int by_key(const void *a, const void *b) {
    return strcmp(((const struct json_value *)a)->key, ((const struct json_value *)b)->key);
}

static bool sort_keys(const struct reader *reader, struct json_value *object, const char *begin) {
    struct json_value *items = object->as.list.items;
    const size_t count = object->as.list.count;
    if (count > 1) {
        qsort(items, count, sizeof *items, by_key);
    }
    for (size_t i = 1; i < count; i++) {
        if (strcmp(items[i - 1].key, items[i].key) == 0) {
            char what[96];
            snprintf(what, sizeof what, "an object with the key '%.40s' twice", items[i].key);
            return wrong(reader, begin, what);
        }
    }
    return true;
}

/* After the opening bracket. */
static bool read_items(struct reader *reader, struct json_value *list) {
    const bool object = list->kind == JSON_OBJECT;
    const char *begin = reader->at - 1, closing = object ? '}' : ']';
    skip_space(reader);
    if (next_is(reader, closing)) {
        return true;
    }
    do {
        struct json_value *item = add_item(list);
        if ((object && !read_key(reader, item)) || !read_value(reader, item)) {
            return false;
        }
        skip_space(reader);
    } while (next_is(reader, ','));
    if (!next_is(reader, closing)) {
        return wrong(reader, reader->at, object ? "expected ',' or '}'" : "expected ',' or ']'");
    }
    return !object || sort_keys(reader, list, begin);
}

static bool read_list(struct reader *reader, struct json_value *list, enum json_kind kind) {
    if (reader->depth == JSON_READ_DEPTH) {
        return wrong(reader, reader->at, "deeper than 16 lists and objects");
    }
    *list = (struct json_value){.kind = kind, .key = list->key};
    reader->at++;
    reader->depth++;
    const bool good = read_items(reader, list);
    reader->depth--;
    return good;
}

/* The value's key stands already. What is in it after a failure can be cleared. */
static bool read_value(struct reader *reader, struct json_value *value) {
    skip_space(reader);
    if (++reader->values > JSON_READ_VALUES) {
        return wrong(reader, reader->at, "more than 4194304 values");
    }
    switch (reader->at < reader->end ? *reader->at : '\0') {
    case '{': return read_list(reader, value, JSON_OBJECT);
    case '[': return read_list(reader, value, JSON_LIST);
    case '"':
        reader->at++;
        value->as.text = read_string(reader);
        value->kind = value->as.text != NULL ? JSON_TEXT : JSON_NULL;
        return value->as.text != NULL;
    case 't':
    case 'f':
        value->kind = JSON_BOOL;
        value->as.truth = *reader->at == 't';
        return read_word(reader, value->as.truth ? "true" : "false");
    case 'n': return read_word(reader, "null");
    default: break;
    }
    if (is_digit(reader) || (reader->at < reader->end && *reader->at == '-')) {
        return read_number(reader, value);
    }
    return wrong(reader, reader->at,
                 reader->at < reader->end ? "no value of JSON" : "it ends where a value should be");
}

struct json_value *json_read(const char *text, size_t bytes, attn_error *why) {
    struct reader reader = {.text = text, .at = text, .end = text + bytes, .why = why};
    struct json_value *document = must(calloc(1, sizeof *document));
    bool good = read_value(&reader, document);
    if (good) {
        skip_space(&reader);
        good = reader.at == reader.end ||
               wrong(&reader, reader.at, "something stands after the document");
    }
    if (!good) {
        json_free(document);
        return NULL;
    }
    return document;
}

struct json_value *json_load(const char *path, attn_error *why) {
    size_t bytes = 0;
    char *text = file_read(path, &bytes, why);
    struct json_value *document = text != NULL ? json_read(text, bytes, why) : NULL;
    free(text);
    return document;
}

void json_free(struct json_value *document) {
    if (document != NULL) {
        clear(document);
        free(document);
    }
}

/* ---- looking at it --------------------------------------------------------------------------- */

const struct json_value *json_at(const struct json_value *object, const char *key) {
    if (object == NULL || object->kind != JSON_OBJECT) {
        return NULL;
    }
    for (size_t i = 0; i < object->as.list.count; i++) {
        if (strcmp(object->as.list.items[i].key, key) == 0) {
            return &object->as.list.items[i];
        }
    }
    return NULL;
}

const char *json_text_of(const struct json_value *value) {
    return value != NULL && value->kind == JSON_TEXT ? value->as.text : NULL;
}

size_t json_count_of(const struct json_value *value) {
    return value != NULL && value->kind == JSON_LIST ? value->as.list.count : 0;
}

double json_number_of(const struct json_value *value) {
    if (value != NULL && value->kind == JSON_INT) {
        return (double)value->as.integer;
    }
    return value != NULL && value->kind == JSON_REAL ? value->as.real : (double)NAN;
}

int64_t json_int_of(const struct json_value *value, int64_t least) {
    const bool good = value != NULL && value->kind == JSON_INT && value->as.integer >= least;
    return good ? value->as.integer : least - 1;
}

const struct json_value *json_item(const struct json_value *list, size_t index) {
    return &list->as.list.items[index];
}

const char *json_text_at(const struct json_value *object, const char *key) {
    return json_text_of(json_at(object, key));
}

const char *json_text_or(const struct json_value *object, const char *key, const char *otherwise) {
    const char *text = json_text_at(object, key);
    return text != NULL ? text : otherwise;
}

double json_number_at(const struct json_value *object, const char *key) {
    return json_number_of(json_at(object, key));
}

int64_t json_int_at(const struct json_value *object, const char *key, int64_t least) {
    return json_int_of(json_at(object, key), least);
}

bool json_true_at(const struct json_value *object, const char *key) {
    const struct json_value *value = json_at(object, key);
    return value != NULL && value->kind == JSON_BOOL && value->as.truth;
}

bool json_is_at(const struct json_value *object, const char *key, const char *text) {
    const char *own = json_text_at(object, key);
    return own != NULL && text != NULL && strcmp(own, text) == 0;
}

/* ---- writing it ------------------------------------------------------------------------------ */

void json_value_json(struct json *json, const struct json_value *value) {
    switch (value->kind) {
    case JSON_NULL: json_null(json, value->key); break;
    case JSON_BOOL: json_bool(json, value->key, value->as.truth); break;
    case JSON_INT: json_int(json, value->key, value->as.integer); break;
    case JSON_REAL: json_real(json, value->key, value->as.real); break;
    case JSON_TEXT: json_text(json, value->key, value->as.text); break;
    case JSON_LIST:
    case JSON_OBJECT:
        json_open(json, value->key, value->kind == JSON_OBJECT ? '{' : '[');
        for (size_t i = 0; i < value->as.list.count; i++) {
            json_value_json(json, &value->as.list.items[i]);
        }
        json_close(json);
        break;
    }
}

char *json_canonical(const struct json_value *document, size_t *bytes) {
    char *text = NULL;
    struct json json = json_begin(must(open_memstream(&text, bytes)));
    json_value_json(&json, document);
    return must(fclose(json.out) == 0 ? text : NULL);
}

void memo_begin(struct memo *memo) {
    *memo = (struct memo){.text = NULL};
    memo->json = json_begin(must(open_memstream(&memo->text, &memo->bytes)));
    json_open(&memo->json, NULL, '{');
}

struct json_value *memo_end(struct memo *memo, attn_error *why) {
    json_close_all(&memo->json);
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
