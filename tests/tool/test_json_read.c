/* SPDX-License-Identifier: Apache-2.0
 *
 * test_json_read.c - proves that the reader takes what JSON is and nothing else, says where it
 * stopped, and that one meaning has one canonical form.
 */
#include "test.h"
#include "tool/base/json_read.h"

#include <math.h>
#include <stdlib.h>

static void refuse(const char *text, size_t bytes, const char *sentence) {
    attn_error why = {""};
    struct json_value *document = json_read(text, bytes, &why);
    CHECK_MSG(document == NULL, "was read: %s", text);
    CHECK_CONTAINS(why.text, sentence);
    json_free(document);
}

static void becomes(const char *text, const char *expected) {
    attn_error why = {""};
    struct json_value *document = json_read(text, strlen(text), &why);
    if (!CHECK_MSG(document != NULL, "%s: %s", text, why.text)) {
        return;
    }
    size_t bytes = 0;
    char *canonical = json_canonical(document, &bytes);
    CHECK_STR(canonical, expected);
    CHECK_EQ(bytes, strlen(expected));
    struct json_value *again = json_read(canonical, bytes, &why);
    char *same = again != NULL ? json_canonical(again, &bytes) : NULL;
    CHECK_STR(same, expected);
    free(same);
    free(canonical);
    json_free(again);
    json_free(document);
}

TEST(canonical_form) {
    becomes("{}", "{}\n");
    becomes(" [ ] ", "[]\n");
    becomes(
        "{\"b\":1,\"a\":[true,false,null],\"B\":\"x\"}",
        "{\n  \"B\": \"x\",\n  \"a\": [\n    true,\n    false,\n    null\n  ],\n  \"b\": 1\n}\n");
    becomes("[1e3, 1000.0, 1000, 10.0e2]", "[\n  1000,\n  1000,\n  1000,\n  1000\n]\n");
    becomes("[-0, -0.0, 0.5, 5e-1, 0.1]", "[\n  0,\n  0,\n  0.5,\n  0.5,\n  0.1\n]\n");
    becomes("[9223372036854775807, -9223372036854775808]",
            "[\n  9223372036854775807,\n  -9223372036854775808\n]\n");
    becomes("[9223372036854775808, 1e300]", "[\n  9.223372036854776e+18,\n  1e+300\n]\n");
    becomes("[\"\\u00e9\\n\\/\\ud83d\\ude00\"]", "[\n  \"\xc3\xa9\\u000a/\xf0\x9f\x98\x80\"\n]\n");
}

TEST(values) {
    static const char TEXT[] = "{\"i\": 7, \"r\": 1.5, \"t\": \"x\", \"l\": [1, 2], \"n\": null}";
    attn_error why = {""};
    struct json_value *document = json_read(TEXT, sizeof TEXT - 1, &why);
    if (!CHECK_MSG(document != NULL, "%s", why.text)) {
        return;
    }
    CHECK_EQ(json_int_of(json_at(document, "i"), 0), 7);
    CHECK_EQ(json_int_of(json_at(document, "i"), 8), 7); /* least - 1: it is less */
    CHECK_EQ(json_int_of(json_at(document, "r"), 0), -1);
    CHECK_EQ(json_int_of(json_at(document, "absent"), 0), -1);
    CHECK(json_number_of(json_at(document, "r")) > 1.4);
    CHECK(isnan(json_number_of(json_at(document, "t"))));
    CHECK(isnan(json_number_of(NULL)));
    CHECK_STR(json_text_of(json_at(document, "t")), "x");
    CHECK(json_text_of(json_at(document, "n")) == NULL);
    CHECK_EQ(json_count_of(json_at(document, "l")), 2);
    CHECK_EQ(json_count_of(json_at(document, "i")), 0);
    CHECK(json_at(json_at(document, "l"), "i") == NULL);
    json_free(document);
}

TEST(malformed) {
    static const struct {
        const char *text, *sentence;
    } CORPUS[] = {
        {"", "line 1, column 1: it ends where a value should be"},
        {"  \n ", "line 2, column 2: it ends"},
        {"{", "column 2: expected a key in quotes"},
        {"{a:1}", "column 2: expected a key in quotes"},
        {"{'a':1}", "expected a key in quotes"},
        {"{\"a\" 1}", "column 6: expected ':'"},
        {"{\"a\":1,}", "column 8: expected a key in quotes"},
        {"{\"a\":1 \"b\":2}", "column 8: expected ',' or '}'"},
        {"{\n\"a\":1,\n\"b\":2,\n\"a\":3}", "line 1, column 1: an object with the key 'a' twice"},
        {"[", "it ends where a value should be"},
        {"[1", "column 3: expected ',' or ']'"},
        {"[1,]", "column 4: no value of JSON"},
        {"[,1]", "column 2: no value of JSON"},
        {"[1 2]", "expected ',' or ']'"},
        {"[1}", "expected ',' or ']'"},
        {"1 2", "column 3: something stands after the document"},
        {"{}x", "column 3: something stands after the document"},
        {"tru", "no value of JSON"},
        {"True", "no value of JSON"},
        {"nul", "no value of JSON"},
        {"NaN", "no value of JSON"},
        {"[Infinity]", "no value of JSON"},
        {"-Infinity", "no number of JSON"},
        {"-", "no number of JSON"},
        {"+1", "no value of JSON"},
        {"01", "no number of JSON"},
        {"-01", "no number of JSON"},
        {"1.", "no number of JSON"},
        {".5", "no value of JSON"},
        {"1e", "no number of JSON"},
        {"1e+", "no number of JSON"},
        {"0x10", "something stands after"},
        {"1e999", "a number that no double can hold"},
        {"-1e999", "a number that no double can hold"},
        {"1111111111111111111111111111111111111111111111111111111111111111", "64 characters"},
        {"\"abc", "column 5: a string without its end"},
        {"\"a\\", "no such escape"},
        {"\"\\x\"", "column 2: no such escape"},
        {"\"\\u12\"", "no such escape"},
        {"\"\\u12g4\"", "no such escape"},
        {"\"\\ud800\"", "no such escape"},
        {"\"\\ud800\\u0041\"", "no such escape"},
        {"\"\\udc00\"", "no such escape"},
        {"\"\\u0000\"", "U+0000"},
        {"\"a\nb\"", "line 1, column 3: a control character"},
        {"\"\x80\"", "column 2: bytes that are not UTF-8"},
        {"\"\xc0\xaf\"", "not UTF-8"},
        {"\"\xe0\x80\xaf\"", "not UTF-8"},
        {"\"\xed\xa0\x80\"", "not UTF-8"},
        {"\"\xf4\x90\x80\x80\"", "not UTF-8"},
        {"\"\xf5\x80\x80\x80\"", "not UTF-8"},
        {"\"\xe2\x82\"", "not UTF-8"},
        {"\xef\xbb\xbf{}", "column 1: no value of JSON"},
        {"// c\n{}", "no value of JSON"},
        {"{} // c", "something stands after"},
        {"[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]", "column 17: deeper than 16"},
    };
    for (size_t i = 0; i < sizeof CORPUS / sizeof *CORPUS; i++) {
        refuse(CORPUS[i].text, strlen(CORPUS[i].text), CORPUS[i].sentence);
    }
    refuse("[1]\0", 4, "something stands after");
    refuse("\"a\0b\"", 5, "a control character");
    refuse("\0", 1, "no value of JSON");
    becomes("[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]",
            "[\n  [\n    [\n      [\n        [\n          [\n            [\n              [\n"
            "                [\n                  [\n                    [\n"
            "                      [\n                        [\n                          [\n"
            "                            [\n                              []\n"
            "                            ]\n                          ]\n"
            "                        ]\n                      ]\n                    ]\n"
            "                  ]\n                ]\n              ]\n            ]\n"
            "          ]\n        ]\n      ]\n    ]\n  ]\n]\n");
}

/* Whatever a prefix or a changed byte of a document means, reading it ends and frees. */
TEST(cut_and_changed) {
    static const char TEXT[] = "{\"a\": [1, -2.5e-3, \"\\u00e9\xc3\xa9\"], \"b\": {\"c\": null}}";
    attn_error why;
    for (size_t cut = 0; cut + 1 < sizeof TEXT - 1; cut++) {
        struct json_value *document = json_read(TEXT, cut, &why);
        CHECK_MSG(document == NULL, "the first %zu bytes were read", cut);
        json_free(document);
    }
    for (size_t place = 0; place < sizeof TEXT - 1; place++) {
        for (int bit = 0; bit < 8; bit++) {
            char *copy = malloc(sizeof TEXT - 1); /* without the 0 that would stop an overrun */
            memcpy(copy, TEXT, sizeof TEXT - 1);
            copy[place] = (char)(copy[place] ^ (1 << bit));
            json_free(json_read(copy, sizeof TEXT - 1, &why));
            free(copy);
        }
    }
}

TEST(too_many_values) {
    enum { BYTES = 2 * JSON_READ_VALUES + 1 };
    char *text = malloc(BYTES);
    for (size_t i = 0; i < BYTES; i++) {
        text[i] = i % 2 == 1 ? '1' : ',';
    }
    text[0] = '[';
    text[BYTES - 1] = ']';
    refuse(text, BYTES, "more than 4194304 values");
    free(text);
}

TEST_MAIN()
