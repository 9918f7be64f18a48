/* SPDX-License-Identifier: Apache-2.0
 *
 * json.c - see json.h.
 */
#include "base/json.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/message.h"

struct json json_begin(FILE *out) {
    return (struct json){.out = out};
}

/* ---- text ------------------------------------------------------------------------------------ */

/* Bytes at `s` up to the first character that does not stand for itself. */
static size_t plain_length(const char *s) {
    size_t plain = 0, length = 1;
    while (length > 0 && (unsigned char)s[plain] >= 0x20 && strchr("\"\\\x7f", s[plain]) == NULL) {
        uint32_t character;
        length = utf8_length(s + plain, 4, &character);
        plain += length;
    }
    return plain;
}

static void put_string(FILE *out, const char *text) {
    fputc('"', out);
    for (const char *s = text;; s++) {
        const size_t plain = plain_length(s);
        fwrite(s, 1, plain, out);
        s += plain;
        if (*s == '\0') {
            break;
        }
        if (*s == '"' || *s == '\\') {
            fprintf(out, "\\%c", *s);
        } else if ((unsigned char)*s < 0x20 || *s == 0x7f) {
            fprintf(out, "\\u%04x", (unsigned)*s);
        } else {
            fputs("\\ufffd", out);
        }
    }
    fputc('"', out);
}

/* ---- structure ------------------------------------------------------------------------------- */

static void put_line(struct json *json) {
    fprintf(json->out, "\n%*s", 2 * json->depth, "");
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

void json_close_all(struct json *json) {
    while (json->depth > 0) {
        json_close(json);
    }
}

/* ---- values ---------------------------------------------------------------------------------- */

static void put_value(struct json *json, const char *key, const char *value) {
    put_lead(json, key);
    fputs(value, json->out);
}

void json_null(struct json *json, const char *key) {
    put_value(json, key, "null");
}

void json_bool(struct json *json, const char *key, bool value) {
    put_value(json, key, value ? "true" : "false");
}

void json_int(struct json *json, const char *key, int64_t value) {
    put_lead(json, key);
    fprintf(json->out, "%" PRId64, value);
}

void json_real(struct json *json, const char *key, double value) {
    char digits[32] = "null";
    for (int precision = 15; isfinite(value) && precision <= 17; precision++) {
        snprintf(digits, sizeof digits, "%.*g", precision, value); /* drops zeros at the end */
        if (strtod(digits, NULL) == value) {
            break;
        }
    }
    put_value(json, key, digits);
}

void json_text(struct json *json, const char *key, const char *text) {
    put_value(json, key, text != NULL ? "" : "null");
    if (text != NULL) {
        put_string(json->out, text);
    }
}

void json_texts(struct json *json, const char *key, const char *const *texts, size_t count) {
    json_open(json, key, '[');
    for (size_t i = 0; i < count; i++) {
        json_text(json, NULL, texts[i]);
    }
    json_close(json);
}

void json_ints(struct json *json, const char *key, const int64_t *values, size_t count) {
    json_open(json, key, '[');
    for (size_t i = 0; i < count; i++) {
        json_int(json, NULL, values[i]);
    }
    json_close(json);
}

void json_reals(struct json *json, const char *key, const double *values, size_t count) {
    json_open(json, key, '[');
    for (size_t i = 0; i < count; i++) {
        json_real(json, NULL, values[i]);
    }
    json_close(json);
}

void json_known_text(struct json *json, const char *key, const char *text) {
    json_text(json, key, text != NULL && text[0] != '\0' ? text : NULL);
}

void json_known_int(struct json *json, const char *key, int64_t value) {
    if (value < 0) {
        json_null(json, key);
    } else {
        json_int(json, key, value);
    }
}
