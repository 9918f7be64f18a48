/* SPDX-License-Identifier: Apache-2.0
 *
 * test_svg.c - proves that text stays text in HTML and Markdown whatever it is, and that plots draw
 * what they are given, and nothing that has no place on their axes.
 */
#include "test.h"
#include "tool/html_check.h"
#include "tool/report/html.h"
#include "tool/report/svg.h"

#include <math.h>
#include <stdlib.h>

/* What is written between begin() and end(), for free(). */
static char *written;
static size_t written_bytes;

static FILE *begin(void) {
    written = NULL;
    FILE *out = open_memstream(&written, &written_bytes);
    if (out == NULL) {
        abort();
    }
    return out;
}

static const char *end(FILE *out) {
    fclose(out);
    return written;
}

static size_t count(const char *text, const char *part) {
    size_t found = 0;
    for (const char *at = strstr(text, part); at != NULL; at = strstr(at + 1, part)) {
        found++;
    }
    return found;
}

TEST(html_escapes) {
    FILE *out = begin();
    html_put(out, "<p title=\"%s\">%d of %zu, %.1f %s</p>", "<b> & \"it's\"\n\t\x01", -1, (size_t)2,
             0.5, "abc");
    CHECK_STR(end(out), "<p title=\"&lt;b&gt; &amp; &quot;it&#39;s&quot;  \xef\xbf\xbd\">-1 of 2, "
                        "0.5 abc</p>");
    free(written);

    out = begin(); /* direction marks, a byte that is no UTF-8, half a character, U+FEFF */
    html_put(out, "%s", "a\xe2\x80\xae\xff\xe2\x82 \xef\xbb\xbf\xc3\xa9");
    CHECK_STR(end(out), "a\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd \xef\xbf\xbd\xc3\xa9");
    free(written);
}

TEST(long_texts_are_cut) {
    char text[3 * HTML_TEXT_MOST];
    memset(text, '<', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    FILE *out = begin();
    html_put(out, "%s", text);
    end(out);
    CHECK_EQ(count(written, "&lt;"), HTML_TEXT_MOST);
    CHECK_STR(written + 4 * HTML_TEXT_MOST, "\xe2\x80\xa6");
    free(written);

    out = begin(); /* whole lines */
    html_lines(out, "one <\ntwo\nthree\n", 11);
    CHECK_STR(end(out), "one &lt;\ntwo");
    free(written);
}

TEST(markdown_escapes) {
    FILE *out = begin();
    markdown_text(out, "a|b\n**c** `d` [e](https://f.g) ![h](i) <j> www.k.l _m_ n_o @p #1");
    CHECK_STR(end(out), "a\\|b \\*\\*c\\*\\* \\`d\\` \\[e\\](https\\://f.g) \\!\\[h\\](i) \\<j\\> "
                        "www\\.k.l \\_m\\_ n_o \\@p \\#1");
    free(written);
    /* A colon marks an address or a picture; elsewhere it is one. */
    out = begin();
    markdown_text(out, "cuda:0, a.cu:20: x; ftp://a :bug: 1:100:2:+1:");
    CHECK_STR(end(out), "cuda:0, a.cu\\:20: x; ftp\\://a \\:bug: 1\\:100\\:2\\:+1:");
    free(written);
    out = begin();
    markdown_code(out, "a`b|c\nd");
    markdown_code(out, "");
    CHECK_STR(end(out), "`a'b\\|c d`` `");
    free(written);
}

/* ---- plots ----------------------------------------------------------------------------------- */

static const char *draw(const struct svg_plot *plot) {
    FILE *out = begin();
    html_open(out, "t");
    svg_plot(out, plot);
    html_close(out, "f");
    return end(out);
}

static void check_page(const char *page) {
    char why[200] = "";
    CHECK_MSG(html_check(page, why, sizeof why), "%s", why);
    CHECK(strstr(page, "nan") == NULL && strstr(page, "inf ") == NULL);
}

TEST(points_are_drawn) {
    const struct svg_point points[] = {
        {512, 100, 90, 110, "S 512 <&>"}, {1024, 200, NAN, NAN, NULL}, {2048, NAN, NAN, NAN, NULL},
        {4096, 0, NAN, NAN, NULL},        {-1, 5, NAN, NAN, NULL},     {0, 5, NAN, NAN, NULL},
        {512, -1, NAN, NAN, NULL},        {8192, INFINITY, 0, 0, NULL}};
    const struct svg_line lines[] = {{"ours <x>", points, 8, false}, {"most", points, 2, true}};
    const char *page = draw(&(struct svg_plot){.title = "Rate <1>",
                                               .subtitle = "",
                                               .x = "S",
                                               .y = "GB/s",
                                               .lines = lines,
                                               .line_count = 2});
    check_page(page);
    CHECK_EQ(count(page, "class=\"point\""), 3);
    CHECK_EQ(count(page, "class=\"bar\""), 1);
    CHECK_CONTAINS(page, "<title>S 512 &lt;&amp;&gt;</title>");
    CHECK_CONTAINS(page, "aria-label=\"Rate &lt;1&gt;: GB/s over S\"");
    CHECK_CONTAINS(page, "5 points have no place");
    CHECK_CONTAINS(page, ">512</text>");
    CHECK_CONTAINS(page, ">1k</text>");
    CHECK_CONTAINS(page, ">ours &lt;x&gt;</text>");
    CHECK_CONTAINS(page, ">200</text>");
    /* Of 512 to 4096 with 15 % at each end 512 lies at 6 %, and 100 of 210 at 48 %. */
    CHECK_CONTAINS(page, "<path class=\"point\" d=\"M80.9 145.3m");
    free(written);
}

TEST(odd_ranges) {
    static const double VALUES[][2] = {{1, 1},         {1e-9, 1e12}, {0, 0},           {-5, 5},
                                       {1e300, 1e308}, {3, 3.0001},  {1e-300, 1e-290}, {-2, -1}};
    for (size_t i = 0; i < sizeof VALUES / sizeof *VALUES; i++) {
        const struct svg_point points[] = {{VALUES[i][0], VALUES[i][1], NAN, NAN, NULL},
                                           {VALUES[i][1], VALUES[i][0], NAN, NAN, NULL}};
        const struct svg_line line = {"s", points, 2, false};
        const char *page =
            draw(&(struct svg_plot){"odd", "", "x", "y", .lines = &line, .line_count = 1});
        check_page(page);
        CHECK(count(page, "class=\"mid\"") > 2); /* a tick beside the titles of the axes */
        free(written);
    }
    check_page(draw(&(struct svg_plot){"e", "", "x", "y", NULL, 0}));
    free(written);
}

/* html_check itself: what it is there to refuse. */
TEST(the_check_can_fail) {
    static const char *const BAD[] = {
        "<!DOCTYPE html>\n<html><script>x</script></html>",
        "<!DOCTYPE html>\n<html><p onclick=\"x\">x</p></html>",
        "<!DOCTYPE html>\n<html><p class=x>x</p></html>",
        "<!DOCTYPE html>\n<html><p></html>",
        "<!DOCTYPE html>\n<html><a href=\"https://evil.example\">x</a></html>",
        "<!DOCTYPE html>\n<html><a href=\"units/javascript:x\">x</a></html>",
        "<!DOCTYPE html>\n<html><p>1 < 2</p></html>",
        "<html></html>",
    };
    char why[200];
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        CHECK_MSG(!html_check(BAD[i], why, sizeof why), "%s", BAD[i]);
    }
    CHECK(html_check("<!DOCTYPE html>\n<html><p class=\"x\">1<br>2</p></html>", why, sizeof why));
}

TEST_MAIN()
