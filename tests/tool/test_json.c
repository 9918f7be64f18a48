/* SPDX-License-Identifier: Apache-2.0
 *
 * test_json.c - proves that the JSON writer writes valid JSON in valid UTF-8 whatever it is given,
 * and that numbers read back as the same double.
 *
 * The judge is a small strict checker of RFC 8259 in this file, which first shows that it can say
 * no.
 */
#include "test.h"
#include "tool/base/json.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

/* ---- a strict checker ------------------------------------------------------------------------ */

static const char *skip_value(const char *s);

static const char *skip_space(const char *s) {
    return s + strspn(s, " \t\r\n");
}

static const char *skip_string(const char *s) {
    if (*s++ != '"') {
        return NULL;
    }
    while (*s != '"') {
        if ((unsigned char)*s < 0x20) {
            return NULL;
        }
        if (*s == '\\') {
            s++;
            if (*s == 'u') {
                if (strspn(s + 1, "0123456789abcdefABCDEF") < 4) {
                    return NULL;
                }
                s += 4;
            } else if (*s == '\0' || !strchr("\"\\/bfnrt", *s)) {
                return NULL;
            }
        }
        s++;
    }
    return s + 1;
}

static const char *skip_digits(const char *s) {
    const size_t digits = strspn(s, "0123456789");
    return digits > 0 ? s + digits : NULL;
}

static const char *skip_number(const char *s) {
    s += *s == '-';
    if (s[0] == '0' && s[1] >= '0' && s[1] <= '9') {
        return NULL;
    }
    s = skip_digits(s);
    if (s && *s == '.') {
        s = skip_digits(s + 1);
    }
    if (s && (*s == 'e' || *s == 'E')) {
        s++;
        s = skip_digits(s + (*s == '+' || *s == '-'));
    }
    return s;
}

static const char *skip_list(const char *s, bool object) {
    const char closing = object ? '}' : ']';
    s = skip_space(s + 1);
    if (*s == closing) {
        return s + 1;
    }
    for (;;) {
        if (object) {
            s = skip_string(skip_space(s));
            s = s ? skip_space(s) : NULL;
            if (!s || *s++ != ':') {
                return NULL;
            }
        }
        s = skip_value(s);
        s = s ? skip_space(s) : NULL;
        if (!s || (*s != ',' && *s != closing)) {
            return NULL;
        }
        if (*s++ == closing) {
            return s;
        }
    }
}

static const char *skip_value(const char *s) {
    s = skip_space(s);
    if (*s == '{' || *s == '[') {
        return skip_list(s, *s == '{');
    }
    if (*s == '"') {
        return skip_string(s);
    }
    static const char *const words[] = {"true", "false", "null"};
    for (int i = 0; i < 3; i++) {
        if (strncmp(s, words[i], strlen(words[i])) == 0) {
            return s + strlen(words[i]);
        }
    }
    return skip_number(s);
}

static bool valid_json(const char *text) {
    const char *end = skip_value(text);
    return end && *skip_space(end) == '\0';
}

/* Decoding by the definition: the value is made and judged, not the bytes. */
static bool valid_utf8(const char *text) {
    const unsigned char *s = (const unsigned char *)text;
    while (*s) {
        static const uint32_t smallest[5] = {0, 0, 0x80, 0x800, 0x10000};
        const int more = *s < 0x80       ? 0
                         : *s >> 5 == 6  ? 1
                         : *s >> 4 == 14 ? 2
                         : *s >> 3 == 30 ? 3
                                         : -1;
        if (more < 0) {
            return false;
        }
        uint32_t value = more == 0 ? *s : *s & (0x3fU >> more);
        for (int i = 1; i <= more; i++) {
            if (s[i] >> 6 != 2) {
                return false;
            }
            value = value << 6 | (s[i] & 63U);
        }
        if (value < smallest[more + 1] || value > 0x10ffff || (value >= 0xd800 && value < 0xe000)) {
            return false;
        }
        s += more + 1;
    }
    return true;
}

/* ---- tests ----------------------------------------------------------------------------------- */

static char buffer[1 << 16];

static struct json begin(void) {
    memset(buffer, 0, sizeof buffer);
    return json_begin(fmemopen(buffer, sizeof buffer - 1, "w"));
}

static const char *finish(struct json *json) {
    fclose(json->out);
    return buffer;
}

TEST(the_checker_can_say_no) {
    static const char *const bad[] = {
        "",      "{",      "[1,]",    "{\"a\" 1}", "{1: 2}",      "01",  "1.", "nul",
        "[1 2]", "\"\n\"", "\"\\x\"", "1 1",       "{\"a\": 1,}", "NaN", "-",  "1e"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK_MSG(!valid_json(bad[i]), "accepted: %s", bad[i]);
    }
    CHECK(valid_json("{\"a\": [1, -2.5e+10, \"x\\u0041\", true, false, null, {}, []]}"));
    CHECK(valid_utf8("a\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80"));
    static const char *const bad_utf8[] = {"\x80",
                                           "\xc0\x80",
                                           "\xc3",
                                           "\xed\xa0\x80",
                                           "\xf4\x90\x80\x80",
                                           "\xf8\x88\x80\x80\x80",
                                           "\xe0\x80\x80",
                                           "\xff"};
    for (size_t i = 0; i < sizeof bad_utf8 / sizeof *bad_utf8; i++) {
        CHECK(!valid_utf8(bad_utf8[i]));
    }
}

TEST(layout) {
    struct json j = begin();
    json_open(&j, NULL, '{');
    json_int(&j, "answer", 42);
    json_open(&j, "list", '[');
    json_real(&j, NULL, 0.1);
    json_bool(&j, NULL, true);
    json_open(&j, NULL, '{');
    json_close(&j);
    json_close(&j);
    json_text(&j, "none", NULL);
    json_open(&j, "empty", '[');
    json_close(&j);
    json_close(&j);
    CHECK_STR(finish(&j), "{\n  \"answer\": 42,\n  \"list\": [\n    0.1,\n    true,\n    {}\n  ],\n"
                          "  \"none\": null,\n  \"empty\": []\n}\n");
    CHECK(valid_json(buffer));
}

TEST(numbers) {
    static const double values[] = {0.0,
                                    -0.0,
                                    1.0,
                                    100.0,
                                    0.1,
                                    1.0 / 3,
                                    -2.5e-300,
                                    DBL_MAX,
                                    DBL_MIN,
                                    DBL_TRUE_MIN,
                                    123456789012345678.0,
                                    1e15,
                                    1e21,
                                    3.14159265358979};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        struct json j = begin();
        json_real(&j, NULL, values[i]);
        const double back = strtod(finish(&j), NULL);
        uint64_t bits, bits_back; /* -0 is not 0 */
        memcpy(&bits, &values[i], sizeof bits);
        memcpy(&bits_back, &back, sizeof bits_back);
        CHECK_MSG(bits == bits_back, "%a became %s", values[i], buffer);
        CHECK(valid_json(buffer));
    }
    static const double none[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 3; i++) {
        struct json j = begin();
        json_real(&j, NULL, none[i]);
        CHECK_STR(finish(&j), "null");
    }
    struct json j = begin();
    json_open(&j, NULL, '[');
    json_int(&j, NULL, INT64_MIN);
    json_int(&j, NULL, INT64_MAX);
    json_close(&j);
    CHECK_STR(finish(&j), "[\n  -9223372036854775808,\n  9223372036854775807\n]\n");
}

TEST(strings) {
    static const struct {
        const char *text, *json;
    } cases[] = {
        {"", "\"\""},
        {"a\"b\\c/", "\"a\\\"b\\\\c/\""},
        {"\t\n\x01\x7f", "\"\\u0009\\u000a\\u0001\\u007f\""},
        {"\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80", "\"\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80\""},
        {"\xff"
         "a",
         "\"\\ufffda\""},
        {"\xc3", "\"\\ufffd\""},
        {"\xed\xa0\x80", "\"\\ufffd\\ufffd\\ufffd\""},
        {"\xc0\x80", "\"\\ufffd\\ufffd\""},
        {"\xf0\x9f\x98", "\"\\ufffd\\ufffd\\ufffd\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct json j = begin();
        json_text(&j, NULL, cases[i].text);
        CHECK_STR(finish(&j), cases[i].json);
    }
}

/* Random trees of random bytes. */
TEST(anything) {
    uint64_t state = 1;
    for (int round = 0; round < 2000; round++) {
        struct json j = begin();
        json_open(&j, NULL, '{');
        for (int step = 0; step < 40; step++) {
            char text[9] = "";
            for (int i = 0; i < 8; i++) {
                state = state * 6364136223846793005U + 1442695040888963407U;
                text[i] = (char)(state >> 56);
            }
            const char *key = j.closing[j.depth - 1] == '}' ? text : NULL;
            switch (state >> 40 & 7) {
            case 0: json_int(&j, key, (int64_t)state); break;
            case 1: json_real(&j, key, (double)state * 1e-9); break;
            case 2: json_bool(&j, key, state & 1 << 20); break;
            case 3: json_null(&j, key); break;
            case 4:
                if (j.depth < JSON_MAX_DEPTH) {
                    json_open(&j, key, state & 1 << 20 ? '{' : '[');
                }
                break;
            case 5:
                if (j.depth > 1) {
                    json_close(&j);
                }
                break;
            default: json_text(&j, key, text); break;
            }
        }
        while (j.depth > 0) {
            json_close(&j);
        }
        finish(&j);
        if (!CHECK(valid_json(buffer)) || !CHECK(valid_utf8(buffer))) {
            printf("%s\n", buffer);
            return;
        }
    }
}

TEST_MAIN()
