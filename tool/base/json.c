/* SPDX-License-Identifier: Apache-2.0
 *
 * json.c - see json.h.
 */
#include "base/json.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

struct json json_begin(FILE *out) {
    return (struct json){.out = out};
}

/* ---- text ------------------------------------------------------------------------------------ */

/* Bytes of the UTF-8 character at `s`, 0 if it is none (overlong forms and surrogates are none). */
static int utf8_length(const unsigned char *s) {
    int length = 1;
    if (s[0] >= 0x80) {
        length = s[0] < 0xc2 || s[0] > 0xf4 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
    }
    for (int i = 1; i < length; i++) {
        if ((s[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    const bool outside = (s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) ||
                         (s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f);
    return length > 1 && outside ? 0 : length;
}

/* Bytes at `s` up to the first character that does not stand for itself. */
static size_t plain_length(const unsigned char *s) {
    size_t plain = 0;
    while (s[plain] >= 0x20 && s[plain] != '"' && s[plain] != '\\' && s[plain] != 0x7f) {
        const int length = utf8_length(s + plain);
        if (length == 0) {
            break;
        }
        plain += (size_t)length;
    }
    return plain;
}

static void put_string(FILE *out, const char *text) {
    const unsigned char *s = (const unsigned char *)text;
    fputc('"', out);
    for (;;) {
        const size_t plain = plain_length(s);
        fwrite(s, 1, plain, out);
        s += plain;
        if (*s == '\0') {
            break;
        }
        if (*s == '"' || *s == '\\') {
            fprintf(out, "\\%c", *s);
        } else if (*s < 0x20 || *s == 0x7f) {
            fprintf(out, "\\u%04x", *s);
        } else {
            fputs("\\ufffd", out);
        }
        s++;
    }
    fputc('"', out);
}

/* ---- structure ------------------------------------------------------------------------------- */

static void put_line(struct json *json) {
    static const char line[] = "\n                                ";
    static_assert(sizeof line >= 2 + 2 * JSON_MAX_DEPTH, "the deepest line begins further right");
    fwrite(line, 1, 1 + 2 * (size_t)json->depth, json->out);
}

/* The comma, the line and the key that stand before a value. */
static void put_lead(struct json *json, const char *key) {
    if (json->depth > 0) {
        if (json->filled[json->depth - 1]) {
            fputc(',', json->out);
        }
        json->filled[json->depth - 1] = true;
        put_line(json);
    }
    if (key != NULL) {
        put_string(json->out, key);
        fputs(": ", json->out);
    }
}

void json_open(struct json *json, const char *key, char bracket) {
    assert(json->depth < JSON_MAX_DEPTH);
    put_lead(json, key);
    fputc(bracket, json->out);
    json->closing[json->depth] = bracket == '{' ? '}' : ']';
    json->filled[json->depth] = false;
    json->depth++;
}

void json_close(struct json *json) {
    assert(json->depth > 0);
    json->depth--;
    if (json->filled[json->depth]) {
        put_line(json);
    }
    fputc(json->closing[json->depth], json->out);
    if (json->depth == 0) {
        fputc('\n', json->out);
    }
}

/* ---- values ---------------------------------------------------------------------------------- */

void json_text(struct json *json, const char *key, const char *text) {
    if (text == NULL) {
        json_null(json, key);
        return;
    }
    put_lead(json, key);
    put_string(json->out, text);
}

void json_int(struct json *json, const char *key, int64_t value) {
    put_lead(json, key);
    fprintf(json->out, "%" PRId64, value);
}

void json_real(struct json *json, const char *key, double value) {
    if (!isfinite(value)) {
        json_null(json, key);
        return;
    }
    char digits[32];
    for (int precision = 15; precision <= 17; precision++) { /* %g drops the zeros at the end */
        snprintf(digits, sizeof digits, "%.*g", precision, value);
        if (strtod(digits, NULL) == value) {
            break;
        }
    }
    put_lead(json, key);
    fputs(digits, json->out);
}

void json_bool(struct json *json, const char *key, bool value) {
    put_lead(json, key);
    fputs(value ? "true" : "false", json->out);
}

void json_null(struct json *json, const char *key) {
    put_lead(json, key);
    fputs("null", json->out);
}
