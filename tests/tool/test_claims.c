/* SPDX-License-Identifier: Apache-2.0
 *
 * test_claims.c - proves that a figure counts as backed only if the file behind its mark gives the
 * same number in the digits shown; that edited numbers, wrong files and paths, broken marks and
 * figures without one are found, with their line; and what an expression means.
 */
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "test.h"
#include "tool/base/message.h"
#include "tool/claims/claims.h"
#include "tool/claims/value.h"
#include "tool/pack/evidence.h"
#include "tool/pack_fixture.h"

static const char DATA[] =
    "{\"ratio\": 1.8899, \"n\": 51, \"name\": \"H200\", \"nothing\": null, \"zero\": 0,"
    " \"rows\": [{\"name\": \"B2 H8\", \"dtype\": \"fp16\", \"us\": {\"ours\": 4.94, \"a\": 9.336,"
    " \"b\": 12.87}, \"k\": 1}, {\"name\": \"B2 H8\", \"dtype\": \"fp32\", \"us\": {\"ours\": 10,"
    " \"a\": 40}, \"k\": 2}, {\"name\": \"B1 H32/8 S1024\", \"dtype\": \"fp16\", \"us\": {\"ours\":"
    " 2, \"a\": 0.5, \"b\": 1}, \"k\": 3}]}";

/* ---- expressions ----------------------------------------------------------------------------- */

TEST(expressions) {
    static const struct {
        const char *text;
        double value; /* NaN: refused, and the sentence has `part` */
        const char *part;
    } CASES[] = {
        {"ratio", 1.8899, ""},
        {" ratio ", 1.8899, ""},
        {"rows[0].us.ours", 4.94, ""},
        {"rows[name=B2 H8][dtype=fp32].us.ours", 10, ""},
        {"rows[name=B1 H32/8 S1024].us.a", 0.5, ""},
        {"rows[k=2].us.a", 40, ""},
        {"ratio * 1e6 / 1e3", 1889.9, ""},
        {"rows[1].us.a / (rows[1].k * rows[1].us.ours)", 2, ""},
        {"rows[1].us.a / rows[1].k * rows[1].us.ours", 200, ""},
        {"ratio * 0.001", 0.0018899, ""},
        {"1e3 * ratio", 1889.9, ""},
        {"ratio * 100", 188.99, ""},
        {"min(ratio, ratio)", 1.8899, ""},
        {"min(rows[0].k, rows[2].us.b)", 1, ""}, /* two that are equal */
        {"max(rows: k) / min(rows: k)", 3, ""},
        {"zero", 0, ""},
        {"min(rows[0].us.a, rows[0].us.b) / rows[0].us.ours", 9.336 / 4.94, ""},
        {"min(rows[1].us.a, rows[1].us.b?)", 40, ""},
        {"max(rows: us.ours)", 10, ""},
        {"min(rows: min(us.a, us.b?) / us.ours)", 0.25, ""},
        {"geomean(rows: k * k * k * 1e3)", 6000, ""},
        {"count(rows: us.b?)", 2, ""},
        {"count(rows: k)", 3, ""},
        {"min(rows[1].us.b?)", NAN, "gives no number"},
        {"rows[1].us.b", NAN, "there is no 'b'"},
        {"rows[name=B2 H8].k", NAN, "2 items meet it"},
        {"rows[name=B3].k", NAN, "0 items meet it"},
        {"rows[3].k", NAN, "3 items"},
        {"rows[name=B2 H8", NAN, "] is missing"},
        {"ratio[0]", NAN, "0 items"},
        {"rows.k", NAN, "there is no 'k'"},
        {"name", NAN, "no number"},
        {"nothing", NAN, "no number"},
        {"rows", NAN, "no number"},
        {"", NAN, "empty"},
        {"ratio / zero", NAN, "gives no number"},
        {"ratio ratio", NAN, "there is no 'ratio ratio'"},
        {"ratio, n", NAN, "left over"},
        {"min(ratio", NAN, "expected )"},
        {"geomean(nothing: k)", NAN, "no items"},
        {"((((((((((((((((((ratio))))))))))))))))))", NAN, "within each other"},
        {"ratio..x", NAN, "there is no ''"},
        {"-1", NAN, "there is no '-1'"},
        /* what the file does not say */
        {"42.5", NAN, "a power of 1000"},
        {"min(5)", NAN, "a power of 1000"},
        {"ratio / ratio * 42.5", NAN, "a power of 1000"},
        {"ratio * 10", NAN, "a power of 1000"},
        {"1e3", NAN, "reads nothing"},
        {"1e6 / 1e3", NAN, "reads nothing"},
        {"(1e3) * ratio", NAN, "reads nothing"},
        {"min(ratio, 1e3)", NAN, "reads nothing"},
        {"max(ratio, 100)", NAN, "reads nothing"},
        {"ratio / ratio", NAN, "the same whatever"},
        {"ratio / ratio * 1e3", NAN, "the same whatever"},
        {"ratio / (ratio)", NAN, "the same whatever"},
        {"min(ratio) / max(ratio)", NAN, "the same whatever"},
        {"rows[0].k / rows[k=1].k", NAN, "the same whatever"},
        {"geomean(rows: k / k)", NAN, "the same whatever"},
        {"max(n, ratio) / n", NAN, "the same whatever"},
        {"count(rows: k) / count(rows: k) * 1e3", NAN, "the same whatever"},
        {"count(ratio, n, zero)", NAN, "needs a list"},
    };
    attn_error why = {""};
    struct json_value *document = json_read(DATA, sizeof DATA - 1, &why);
    if (!CHECK_MSG(document != NULL, "%s", why.text)) {
        return;
    }
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        double value = (double)NAN;
        why.text[0] = '\0';
        const bool good = claims_value(document, CASES[i].text, &value, &why);
        if (isnan(CASES[i].value)) {
            CHECK_MSG(!good, "'%s' gives %g", CASES[i].text, value);
            CHECK_CONTAINS(why.text, CASES[i].part);
        } else {
            CHECK_MSG(good && fabs(value - CASES[i].value) <= 1e-5 * (1 + value),
                      "'%s' gives %g, expected %g: %s", CASES[i].text, value, CASES[i].value,
                      why.text);
        }
    }
    json_free(document);
}

/* ---- texts ----------------------------------------------------------------------------------- */

static char folder[64];

static bool write_file(const char *name, const char *text) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *out = fopen(path, "w");
    return out != NULL && fputs(text, out) >= 0 && fclose(out) == 0;
}

static bool open_folder(void) {
    strcpy(folder, "/tmp/test_claims.XXXXXX");
    char link[128];
    if (mkdtemp(folder) == NULL) {
        return false;
    }
    snprintf(link, sizeof link, "%s/link.json", folder);
    return write_file("d.json", DATA) && write_file("bad.json", "{") &&
           symlink("/etc/hostname", link) == 0;
}

static void close_folder(void) {
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    CHECK_EQ(system(command), 0);
}

/* How many figures of a text are backed, wrong, unmarked, exempt; `found` is the first that is not
 * backed. */
static void read_claims(const char *text, size_t counts[CLAIM_KINDS], struct claim *found) {
    struct claims_sources sources = {folder, NULL, 0};
    struct claims claims;
    attn_error why = {""};
    *found = (struct claim){0};
    CHECK_MSG(claims_read(text, strlen(text), &sources, &claims, &why), "%s", why.text);
    memcpy(counts, claims.counts, sizeof claims.counts);
    for (size_t i = claims.count; i-- > 0;) {
        if (claims.items[i].kind != CLAIM_BACKED) {
            *found = claims.items[i];
        }
    }
    claims_free(&claims);
    claims_sources_free(&sources);
}

#define MARK(expression, shown) "<!-- result d.json#" expression " -->" shown "<!-- /result -->"
#define TABLE                                                                                      \
    "<!-- results d.json#rows[name=$1][dtype=$2]; $3 = us.ours, us.a; $4 = us.a / us.ours -->\n"
#define HEAD "| p | t | times | ratio |\n|---|---|---|---|\n"
#define END "\n<!-- /results -->\n"

static const struct text {
    const char *text;
    size_t backed, wrong, unmarked, exempt, line; /* of the first that is not backed */
    const char *part;                             /* of its reason */
} TEXTS[] = {
    /* one figure */
    {"a " MARK("ratio", "1.89×") " b", 1, 0, 0, 0, 0, ""},
    {"a " MARK("ratio", "**1.9×**") " b", 1, 0, 0, 0, 0, ""},
    {"a " MARK("ratio", "1.8899 µs") " b", 1, 0, 0, 0, 0, ""},
    {"a " MARK("ratio", "2") " b", 1, 0, 0, 0, 0, ""},
    {"a " MARK("rows[0].us.a", "9.34") " and " MARK("n", "51") ".\n", 2, 0, 0, 0, 0, ""},
    {"a <!-- result\nd.json#ratio\n-->1.89<!-- /result --> b", 1, 0, 0, 0, 0, ""},
    /* an edited number, in any digit */
    {"a\n\nb " MARK("ratio", "1.88×"), 0, 1, 0, 0, 3, "the file gives 1.89 "},
    {"b " MARK("ratio", "1.90×"), 0, 1, 0, 0, 1, "gives 1.89 "},
    {"b " MARK("ratio", "1.8×"), 0, 1, 0, 0, 1, "gives 1.9 "},
    {"b " MARK("ratio", "1.8898×"), 0, 1, 0, 0, 1, "gives 1.8899 "},
    {"b " MARK("n", "52"), 0, 1, 0, 0, 1, "gives 51 "},
    /* a wrong file or path */
    {"b <!-- result e.json#ratio -->1.89×<!-- /result -->", 0, 1, 0, 0, 1, "No such file"},
    {"b <!-- result bad.json#ratio -->1.89×<!-- /result -->", 0, 1, 0, 0, 1, "bad.json"},
    {"b <!-- result ../d.json#ratio -->1.89×<!-- /result -->", 0, 1, 0, 0, 1, "not in the folder"},
    {"b <!-- result /etc/passwd#ratio -->1.89<!-- /result -->", 0, 1, 0, 0, 1, "not in the folder"},
    {"b <!-- result link.json#ratio -->1.89<!-- /result -->", 0, 1, 0, 0, 1, "leads out of"},
    {"b " MARK("ratios", "1.89×"), 0, 1, 0, 0, 1, "there is no 'ratios'"},
    {"b " MARK("rows[name=B2 H8].k", "1"), 0, 1, 0, 0, 1, "2 items"},
    {"b <!-- result d.json -->1.89×<!-- /result -->", 0, 1, 1, 0, 1, "FILE#EXPRESSION"},
    /* broken marks */
    {"b " MARK("ratio", "fast"), 0, 1, 0, 0, 1, "no number"},
    {"b " MARK("ratio", "1.89 to 1.90"), 0, 1, 0, 0, 1, "more than one"},
    {"b <!-- result d.json#ratio -->1.89×", 0, 1, 1, 0, 1, "expected <!-- /result -->"},
    {"b <!-- result d.json#ratio -->1.89×\n<!-- /result -->", 0, 2, 1, 0, 1, "same line"},
    {MARK("ratio", "1.89×") " b", 0, 2, 1, 0, 1, "begins its line"},
    {"b <!-- result: d.json#ratio -->1.89×<!-- /result -->", 0, 2, 1, 0, 1, "not understood"},
    {"b <!-- /results -->", 0, 1, 0, 0, 1, "not understood"},
    {"b <!-- result d.json#a--b -->1<!-- /result -->", 0, 2, 0, 0, 1, "-- inside"},
    {"b <!-- an open end", 0, 1, 0, 0, 1, "no end"},
    {"b <!-- a comment, 3 µs --> c", 0, 0, 0, 0, 0, ""},
    {"<!-- a comment\n\n3 µs --> c", 0, 0, 0, 0, 0, ""},
    {"b <!-- a comment\n \n3 µs --> c", 0, 1, 1, 0, 1, "ends sooner"},
    {"b <!--> 3 µs --> c", 0, 1, 1, 0, 1, "ends sooner"},
    {"b <!---> 3 µs --> c", 0, 1, 1, 0, 1, "ends sooner"},
    {"b <!-- --!> 3 µs --> c", 0, 1, 1, 0, 1, "ends sooner"},
    /* figures without a mark */
    {"x\ny 4.94 µs", 0, 0, 1, 0, 2, "no mark"},
    {"4.94 μs", 0, 0, 1, 0, 1, ""},
    {"4.94us", 0, 0, 1, 0, 1, ""},
    {"3 ms, 2 ns", 0, 0, 2, 0, 1, ""},
    {"**1.49×** or **1.5** ×", 0, 0, 2, 0, 1, ""},
    {"2x as fast, 3&times;", 0, 0, 2, 0, 1, ""},
    {"600 TFLOP/s and 500 TFLOPS and 114.8 GFLOP/s", 0, 0, 3, 0, 1, ""},
    {"600\xc2\xa0TFLOP/s", 0, 0, 1, 0, 1, ""},
    {"64×128 tiles, 64 × 128, 2x2, D64 x, fp16x, 0x10, S512 ms", 0, 0, 0, 0, 0, ""},
    {"3 minutes, 40 MB, version 1.2.3, 5 users, 2 msgs", 0, 0, 0, 0, 0, ""},
    {"`4 µs` is code", 0, 0, 1, 0, 1, ""},
    {"the mark `<!-- result d.json#ratio -->` is code", 0, 0, 0, 0, 0, ""},
    /* however they are written */
    {"5\nµs", 0, 0, 1, 0, 1, ""},
    {"> 5\n> µs", 0, 0, 1, 0, 1, ""},
    {"5\tµs", 0, 0, 1, 0, 1, ""},
    {"5\xe2\x80\x89µs, 5\xc2\xa0µs, 5\xe2\x80\x8bµs, 5\xc2\xadµs", 0, 0, 4, 0, 1, ""},
    {"1e3 µs, 1.5E+3 µs, .5 µs", 0, 0, 3, 0, 1, ""},
    {"__5__ µs, **5** µs, `5` µs, <b>5</b> µs, ~~5~~ µs", 0, 0, 5, 0, 1, ""},
    {"[5](x) µs, [5][x] µs, 5 *µs*, 5 <i>µ</i>s", 0, 0, 4, 0, 1, ""},
    {"5-µs, 5\xe2\x80\x91µs", 0, 0, 2, 0, 1, ""},
    {"5 &micro;s, 5 &mu;s, 5 &#181;s, 5&nbsp;&#xB5;s", 0, 0, 4, 0, 1, ""},
    {"5 usec, 5 msec, 5 microseconds, 5 Milliseconds", 0, 0, 4, 0, 1, ""},
    {"2.5 x, 2.5X, 2.5✕, 2.5⨯, 2.5 х, 2.5✖️", 0, 0, 6, 0, 1, ""},
    {"2.5× 2024", 0, 0, 1, 0, 1, ""},
    {"2.5 times, 3 times as fast, 5-fold", 0, 0, 3, 0, 1, ""},
    {"600 tflop/s, 600 TF/s, 600 tf/s, 600 Tflops, 6e14 FLOP/s", 0, 0, 5, 0, 1, ""},
    {"x \\<!-- 5 µs -->", 0, 0, 1, 0, 1, ""},
    {"\\`5 µs\\` \\<!-- result d.json#ratio -->1.89×<!-- /result -->", 0, 1, 2, 0, 1, ""},
    {"5 µ<!-- comment -->s", 0, 0, 1, 0, 1, ""},
    {"<img alt=\"5 µs\"> ![a](b \"6 µs\")", 0, 0, 2, 0, 1, ""},
    {"a\n\n    5\n    ms\n", 0, 0, 1, 0, 3, "code cannot"},
    {"1.2.3 ms, 4x4, 64 x 128, 2 x D, B2 H8 x, 0x480, 2026-11-15", 0, 0, 0, 0, 0, ""},
    {"3 times, 1000 times in a row, on 2\nx86, 5\n\nms", 0, 0, 0, 0, 0, ""},
    /* a mark that has only a part of the number */
    {"b 300." MARK("n", "51") " TFLOP/s", 0, 1, 0, 0, 1, "another one"},
    {"b 1," MARK("n", "51"), 0, 1, 0, 0, 1, "another one"},
    {"b 1,**" MARK("n", "51") "**", 0, 1, 0, 0, 1, "another one"},
    {"b 3" MARK("n", "51"), 0, 1, 0, 0, 1, "another one"},
    {"b -" MARK("n", "51"), 0, 1, 0, 0, 1, "another one"},
    {"b −" MARK("n", "51"), 0, 1, 0, 0, 1, "another one"},
    {"b " MARK("n", "51") ".9", 0, 1, 0, 0, 1, "another one"},
    {"b " MARK("n", "51") ",000", 0, 1, 0, 0, 1, "another one"},
    {"b " MARK("n", "51") "e3", 0, 1, 0, 0, 1, "another one"},
    {"b " MARK("n", "51") "k", 0, 1, 0, 0, 1, "another one"},
    {"b " MARK("n", "51") "<b>0</b>", 0, 1, 0, 0, 1, "another one"},
    {"b " MARK("n", "51") "×10⁶", 0, 1, 0, 0, 1, "another one"},
    {"b 3 " MARK("ratio * 100", "189"), 0, 1, 0, 0, 1, "another one"},
    {"b " MARK("n", "51e3"), 0, 1, 0, 0, 1, "no exponent"},
    {"b " MARK("n", "-51"), 0, 1, 0, 0, 1, "no sign"},
    {"b " MARK("n", "51.0.1"), 0, 1, 0, 0, 1, "no number"},
    {"b " MARK("n", "51") ", " MARK("n", "51") "us. (" MARK("n", "51") "x)", 3, 0, 0, 0, 0, ""},
    {"D64 " MARK("n", "51") "/" MARK("n", "51") " ms, " MARK("n", "51") "-fold.", 3, 0, 0, 0, 0,
     ""},
    /* code blocks cannot have marks, and are no place to hide */
    {"a\n```\n$ bench\n4.94 µs\n```\nb\n", 0, 0, 1, 0, 4, "code cannot"},
    {"a\n~~~ text\n4.94 µs\n", 0, 0, 1, 0, 3, "code cannot"},
    {"a\n\n    4.94 µs\n", 0, 0, 1, 0, 3, "code cannot"},
    {"```\n" MARK("ratio", "1.89×") "\n```\n", 0, 0, 1, 0, 2, "code cannot"},
    {"a\n    4.94 is text, " MARK("ratio", "1.89×") "\n", 1, 0, 0, 0, 0, ""},
    {"```` a\n```\n4 µs\n````\n5 µs\n", 0, 0, 2, 0, 3, ""},
    /* exemptions are counted, and end where their block does */
    {"<!-- not-a-result: a limit -->\nat most 3 ms\nor 4 ms\n\n5 ms", 0, 0, 1, 1, 1, "a limit"},
    {"<!-- not-a-result: shown -->\n\n```\n3 ms\n\n4 ms\n```\n5 ms", 0, 0, 1, 1, 1, "shown"},
    {"wait <!-- not-a-result: limit --> 3 ms\n4 ms\n\n5 ms", 0, 0, 1, 1, 1, "limit"},
    {"<!-- not-a-result -->\n3 ms", 0, 1, 1, 0, 1, "not understood"},
    /* tables */
    {TABLE HEAD "| B2 H8 | fp16 | 4.94 / 9.34 ms | **1.89×** |\n"
                "| **B2 H8** | `fp32` | 10 / 40 ms | 4.0× |\n" END,
     6, 0, 0, 0, 0, ""},
    {TABLE HEAD "| B2 H8 | fp16 | | 1.89× |\n" END, 1, 0, 0, 0, 0, ""},
    {TABLE HEAD "| B2 H8 | fp16 | 4.94 / 9.34 ms | 1.98× |\n" END, 2, 1, 0, 0, 4, "gives 1.89"},
    {TABLE HEAD "| B2 H8 | fp32 | 4.94 / 9.34 ms | 1.89× |\n" END, 0, 3, 0, 0, 4, "gives 10.00"},
    {TABLE HEAD "| B2 H9 | fp16 | 4.94 / 9.34 ms | 1.89× |\n" END, 0, 1, 0, 0, 4, "0 items"},
    {TABLE HEAD "| B2 H8 | fp16 | 4.94 ms | 1.89× |\n" END, 2, 1, 0, 0, 4, "another number"},
    {TABLE HEAD "| B2 H8 | fp16 | 4.94 / 9.34 / 1 ms | 1.89× |\n" END, 3, 1, 0, 0, 4, "another"},
    {TABLE HEAD "| B2 H8 | fp16 | 4.94 / 9.34 ms | 1.89× | 3 ms |\n" END, 3, 0, 1, 0, 4, "no mark"},
    {TABLE HEAD "| B2 H8 |\n" END, 0, 1, 0, 0, 4, "1 cells"},
    {TABLE HEAD END, 0, 1, 0, 0, 5, "no row"},
    {TABLE HEAD "| B2 H8 | fp16 | 4.94 / 9.34 ms | 1.89× |\n", 0, 1, 2, 0, 1, "/results"},
    {"<!-- results d.json#rows[dtype=$2][name=$1] -->\n" HEAD "| B2 H8 | fp16 | 5 ms | 2 |\n" END,
     0, 1, 1, 0, 4, "expected FILE#PATH"},
    {"<!-- results d.json#rows[k=$1]; 3 = us.ours -->\n" HEAD "| 1 | | 4.94 | |\n" END, 0, 1, 0, 0,
     4, "expected $"},
    /* a column whose head names the unit */
    {"| p | µs | a |\n|---|---|---|\n| 3 | 4.94 | 7 |\n| 4 | 5 | 8 |\n", 0, 0, 2, 0, 3, "column"},
    {"| p | speed, TFLOP/s |\n|---|---|\n| 3 | about 4 |\n", 0, 0, 1, 0, 3, "column"},
    {"| p | status |\n|---|---|\n| 3 | 0 |\n", 0, 0, 0, 0, 0, ""},
    {"| p | rows × keys |\n|---|---|\n| 3 | 8 × 4 |\n", 0, 0, 0, 0, 0, ""},
    {"| p | &micro;s |\n|---|---|\n| 3 | 5 / 6 |\n", 0, 0, 2, 0, 3, "column"},
    {"p | µs\n---|---\n3 | 5\n4 | 6\n\n7 | 8\n", 0, 0, 2, 0, 3, "column"},
    {"p | t\n---|---\n3 | 5 µs\n", 0, 0, 1, 0, 3, "no mark"},
    {"<table><tr><th>p</th><th>µs</th></tr>\n<tr><td>x</td>\n\n<td>5</td></tr></table>\n\n6\n", 0,
     0, 1, 0, 4, "table"},
    {"<table><tr><th>p</th></tr>\n<tr><td>5</td></tr></table>\n", 0, 0, 0, 0, 0, ""},
    {"<!-- results d.json#rows[k=$1]; $2 = us.ours -->\nk | µs\n--|--\n1 | 4.94\n" END, 1, 0, 0, 0,
     0, ""},
    {"", 0, 0, 0, 0, 0, ""},
};

TEST(texts) {
    if (!CHECK(open_folder())) {
        return;
    }
    for (size_t i = 0; i < sizeof TEXTS / sizeof *TEXTS; i++) {
        const struct text *one = &TEXTS[i];
        const size_t expected[CLAIM_KINDS] = {one->backed, one->wrong, one->unmarked, one->exempt};
        size_t counts[CLAIM_KINDS];
        struct claim found;
        read_claims(one->text, counts, &found);
        for (int k = 0; k < CLAIM_KINDS; k++) {
            CHECK_MSG(counts[k] == expected[k], "text %zu: %zu %s, expected %zu (%s): %s", i,
                      counts[k], CLAIM_NAMES[k], expected[k], found.reason, one->text);
        }
        CHECK_MSG(found.line == one->line, "text %zu: line %zu, expected %zu", i, found.line,
                  one->line);
        CHECK_CONTAINS(found.reason, one->part);
    }
    close_folder();
}

/* ---- packs ----------------------------------------------------------------------------------- */

/* JSON beside the logs: it backs a figure once a unit names it. The pack is as it was afterwards
 * but for the artifact. */
static void check_artifacts(struct pack *pack) {
    char name[SHA256_TEXT], text[256], list[128];
    attn_error why = {""};
    size_t counts[CLAIM_KINDS];
    struct claim found;
    struct fixture_edit edit;
    struct evidence evidence;
    CHECK(pack_add_artifact(pack, DATA, sizeof DATA - 1, name, &why));
    CHECK(evidence_make(pack, &evidence, &why) && evidence_publish(pack, &evidence, &why));
    evidence_free(&evidence);
    snprintf(text, sizeof text, "a <!-- result pack/artifacts/%.8s#ratio -->1.89<!-- /result -->",
             name);
    read_claims(text, counts, &found);
    CHECK_CONTAINS(found.reason, "no unit names");
    snprintf(list, sizeof list, "\"artifacts\": [\"%s\",", name);
    CHECK_MSG(fixture_edit(pack, "bench", "cpu", "\"artifacts\": [", list, &edit, &why), "%s",
              why.text);
    CHECK(evidence_make(pack, &evidence, &why) && evidence_publish(pack, &evidence, &why));
    evidence_free(&evidence);
    read_claims(text, counts, &found);
    CHECK_MSG(counts[CLAIM_BACKED] == 1, "%s", found.reason);
    snprintf(text, sizeof text, "a <!-- result pack/artifacts/%.7s#ratio -->1.89<!-- /result -->",
             name);
    read_claims(text, counts, &found);
    CHECK_CONTAINS(found.reason, "0 artifacts begin");
    CHECK(fixture_restore(pack, &edit, &why));
    CHECK(evidence_make(pack, &evidence, &why) && evidence_publish(pack, &evidence, &why));
    evidence_free(&evidence);
}

static void publish(const struct pack *pack) {
    struct evidence evidence;
    attn_error why = {""};
    CHECK_MSG(evidence_make(pack, &evidence, &why) && evidence_publish(pack, &evidence, &why), "%s",
              why.text);
    evidence_free(&evidence);
}

/* A pack that is not PASS backs nothing, be it the timing itself or parity that is not; nor does
 * one without its statement, or with another one. It is as it was afterwards. */
static void check_verdicts(struct pack *pack, const char *text) {
    static const struct {
        const char *stage, *find, *by, *part;
    } CASES[] = {
        {"parity", "\"caught\": true", "\"caught\": false", "INVALID"},
        {"parity", "\"nans\": 0", "\"nans\": 1", "FAIL"},
        {"bench", "\"outputs_equal\": true", "\"outputs_equal\": false", "FAIL"},
        {"parity", "\"seed\": \"0123456789abcdef\"", "\"seed\": \"0123456789abcdee\"", "STALE"},
    };
    attn_error why = {""};
    size_t counts[CLAIM_KINDS];
    struct claim found;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct fixture_edit edit;
        if (CHECK_MSG(
                fixture_edit(pack, CASES[i].stage, "cpu", CASES[i].find, CASES[i].by, &edit, &why),
                "%s", why.text)) {
            publish(pack);
            read_claims(text, counts, &found);
            CHECK_EQ(counts[CLAIM_WRONG], 1);
            CHECK_CONTAINS(found.reason, CASES[i].part);
            CHECK(fixture_restore(pack, &edit, &why));
        }
    }
    publish(pack);
    read_claims(text, counts, &found);
    CHECK_MSG(counts[CLAIM_BACKED] == 1, "%s", found.reason);
    char path[256];
    snprintf(path, sizeof path, "%s/statement.json", pack->path);
    CHECK_EQ(unlink(path), 0);
    read_claims(text, counts, &found);
    CHECK_CONTAINS(found.reason, "statement.json is not what follows");
    CHECK(write_file("pack/statement.json", "{}\n"));
    read_claims(text, counts, &found);
    CHECK_CONTAINS(found.reason, "statement.json is not what follows");
    publish(pack);
}

TEST(a_pack_backs_a_figure_only_if_it_verifies) {
    static const char TEXT[] = "a <!-- result pack#rows[stage=bench][device=cpu].subjects[0]"
                               ".timings[0].p50.value * 1e6 -->20.1 µs<!-- /result -->";
    struct pack pack;
    attn_error why = {""};
    size_t counts[CLAIM_KINDS];
    struct claim found;
    char *path = fixture_path();
    if (CHECK_MSG(fixture_make(&pack, path, &why), "%s", why.text)) {
        snprintf(folder, sizeof folder, "%.*s", (int)strlen(path) - 5, path);
        read_claims(TEXT, counts, &found);
        CHECK_MSG(counts[CLAIM_BACKED] == 1, "%s", found.reason);
        read_claims("a <!-- result pack/evidence.json#gpu_seconds -->9<!-- /result -->", counts,
                    &found);
        CHECK_CONTAINS(found.reason, "name the folder");
        read_claims("a <!-- result pack/statement.json#x -->9<!-- /result -->", counts, &found);
        CHECK_CONTAINS(found.reason, "name the folder");
        read_claims("a <!-- result pack/units/x.json#x -->9<!-- /result -->", counts, &found);
        CHECK_CONTAINS(found.reason, "name the folder");
        check_artifacts(&pack);
        /* Faster samples, with all hashes right, and the old evidence.json. */
        struct fixture_edit edit;
        CHECK(fixture_edit(&pack, "bench", "cpu", "40440\n", "40439\n", &edit, &why));
        read_claims(TEXT, counts, &found);
        CHECK_EQ(counts[CLAIM_WRONG], 1);
        CHECK_CONTAINS(found.reason, "not what follows");
        CHECK(fixture_restore(&pack, &edit, &why));
        /* Another plan, whose evidence.json is as long as the old one. */
        char *plan = replaced(fixture_plan(), "\"commit\": \"abc\"", "\"commit\": \"abd\"");
        CHECK(plan != NULL && pack_replan(&pack, plan, &why));
        read_claims(TEXT, counts, &found);
        CHECK_CONTAINS(found.reason, "not what follows");
        CHECK(pack_replan(&pack, fixture_plan(), &why));
        free(plan);
        check_verdicts(&pack, TEXT);
    }
    pack_close(&pack);
    fixture_remove(path);
}

TEST_MAIN()
