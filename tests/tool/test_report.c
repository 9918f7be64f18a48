/* SPDX-License-Identifier: Apache-2.0
 *
 * test_report.c - proves that a report says what its pack shows and no more: a part of a run never
 * looks like the whole, what failed has no figures, a changed pack has no report, and no text of a
 * pack becomes markup.
 *
 *     test_report --make KIND PATH    leaves such a pack there (tests/meta/browser.sh)
 */
#include "test.h"
#include "tool/base/message.h"
#include "tool/cli/verbs.h"
#include "tool/html_check.h"
#include "tool/pack_fixture.h"
#include "tool/report/report.h"
#include "tool/report_fixture.h"

#include <dirent.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

TEST_STATE()

enum { MOST_BYTES = 500 * 1000 };

/* CHECK_CONTAINS would print the whole page. */
#define HAS(text, part) CHECK_MSG(strstr(text, part) != NULL, "there is no %s", part)

/* ---- making and reading ---------------------------------------------------------------------- */

/* A pack of that kind under a new path, for fixture_remove. */
static char *make_pack(enum report_fixture kind) {
    struct pack pack;
    attn_error why = {""};
    char *path = fixture_path();
    CHECK_MSG(report_fixture_make(&pack, path, kind, &why), "%s", why.text);
    pack_close(&pack);
    return path;
}

static char *text_of(const struct pack_report *report, bool html) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (out == NULL) {
        abort();
    }
    report_write(report, &(struct doc){.out = out, .html = html});
    fclose(out);
    CHECK_EQ(strlen(text), bytes);
    return text;
}

static size_t count(const char *text, const char *part) {
    size_t found = 0;
    for (const char *at = strstr(text, part); at != NULL; at = strstr(at + 1, part)) {
        found++;
    }
    return found;
}

/* The page and the Markdown of a pack, for free(). */
struct texts {
    char *html, *markdown;
};

/* Tables have captions, plots have names, regions that scroll can be reached. */
static void check_accessible(const char *html) {
    CHECK_EQ(count(html, "<table"), count(html, "<caption>"));
    CHECK_EQ(count(html, "<svg "), count(html, "role=\"img\" aria-label=\""));
    CHECK_EQ(count(html, "class=\"scroll\""),
             count(html, "class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\""));
    CHECK_EQ(count(html, "<h1>"), 1);
    HAS(html, "<html lang=\"en\">");
}

static struct texts write_both(const char *path, enum gate gate) {
    struct pack_report report;
    attn_error why = {""};
    char reason[200] = "";
    bool changed;
    struct texts texts = {NULL, NULL};
    if (CHECK_MSG(report_open(&report, path, &changed, &why), "%s", why.text)) {
        CHECK_EQ(report.evidence.judgement.gate, gate);
        texts.html = text_of(&report, true);
        texts.markdown = text_of(&report, false);
        CHECK_MSG(html_check(texts.html, reason, sizeof reason), "%s", reason);
        CHECK_MSG(strlen(texts.html) < MOST_BYTES, "%zu bytes", strlen(texts.html));
        CHECK(strstr(texts.html, "nan") == NULL);
        check_accessible(texts.html);
    } else {
        texts = (struct texts){strdup(""), strdup("")};
    }
    report_close(&report);
    return texts;
}

static void free_both(struct texts texts, char *path) {
    free(texts.html);
    free(texts.markdown);
    fixture_remove(path);
}

/* ---- what it says ---------------------------------------------------------------------------- */

TEST(a_whole_run) {
    char *path = make_pack(REPORT_FULL);
    const struct texts texts = write_both(path, GATE_PASS);
    HAS(texts.html, "<div class=\"verdict g-pass\">");
    CHECK(strstr(texts.html, "(partial)") == NULL && strstr(texts.html, ">NOT RUN<") == NULL);
    HAS(texts.html, "NVIDIA H200");
    /* Throughput of a GPU with its roofline, and of a CPU: a point for each length. */
    CHECK_EQ(count(texts.html, "<figure class=\"plot\">"), 2);
    CHECK_EQ(count(texts.html, "<g class=\"bound\">"), 1);
    HAS(texts.html, "cuda:0; graph, warm cache");
    CHECK_EQ(count(texts.html, "class=\"point\""), 2 * 6);
    HAS(texts.html, "_fp16_d64_64x64_w4_s2: fp16 B32 H16 S512 D128, ");
    CHECK(strstr(texts.html, ": fp16 B8 H16 S512 D128, ") == NULL); /* slower */
    HAS(texts.html, "Registers</th>");
    HAS(texts.html, "<code>tool/pack/judge.c judge_values</code>");
    HAS(texts.html, "<code>attest parity --device cuda:0</code>");
    HAS(texts.markdown, "# attest report: PASS\n");
    HAS(texts.markdown, "## Resources");
    HAS(texts.markdown, "| `fwd_hopper_fp16_d64_64x64_w4_s2` | sm_90a | **PASS** | ");
    free_both(texts, path);
}

/* ---- times ----------------------------------------------------------------------------------- */

/* The number after the first `before` in `text`. */
static double number_after(const char *text, const char *before) {
    const char *at = text != NULL ? strstr(text, before) : NULL;
    return at != NULL ? strtod(at + strlen(before), NULL) : 0;
}

/* "Every time" is ours alone; what the peers runner took is beside each other, theirs over ours. */
TEST(a_peer_is_not_ours) {
    char *path = make_pack(REPORT_FULL);
    const struct texts texts = write_both(path, GATE_PASS);
    const char *all = strstr(texts.html, ">Every time<"),
               *peers = strstr(texts.html, "id=\"peers\"");
    if (CHECK(all != NULL && peers != NULL && all < peers)) {
        char *times = strndup(all, (size_t)(peers - all));
        CHECK(strstr(times, "rotated") == NULL && strstr(times, "NVIDIA H200") == NULL);
        CHECK(strstr(times, "FlashAttention") == NULL);
        HAS(times, ">fp16 B32 H16 S512 D128</th><td>cuda:0</td>");
        free(times);
    }
    const char *line = peers != NULL ? strstr(peers, ">fp16 B32 H16 S512 D128</th>") : NULL;
    const char *mode = line != NULL ? strstr(line, "<td>graph</td>") : NULL;
    const double ours = number_after(mode, "<td class=\"n\">");
    const double theirs = number_after(mode, ">cuDNN</td><td class=\"n\">");
    CHECK_MSG(ours > 0 && theirs / ours > 1.12 && theirs / ours < 1.16, "%g and %g us", ours,
              theirs);
    HAS(texts.html, "not part of the verdict");
    HAS(texts.html, ">1.61\xc3\x97<");
    HAS(texts.markdown, "## Beside the peers\n");
    CHECK_EQ(count(texts.markdown, "| cuDNN | "), 6);
    CHECK_EQ(count(texts.markdown, "| 1.14\xc3\x97 "), 6);
    free_both(texts, path);
}

/* A row that was wrong and a side that was not seen to run are left out, and counted. */
TEST(peers_are_proven) {
    char *path = make_pack(REPORT_FAILING);
    const struct texts texts = write_both(path, GATE_INVALID);
    const char *peers = strstr(texts.html, "id=\"peers\"");
    if (CHECK(peers != NULL)) {
        HAS(peers, "Left out, because not proven or not right: 2.");
        CHECK(strstr(peers, ">fp16 B16 H16 S1024 D128</th>") == NULL);
        CHECK_EQ(count(peers, ">fp16 B32 H16 S512 D128</th>"), 2);
        CHECK_EQ(count(peers, ">fp16 B8 H16 S2048 D128</th>"), 3);
        CHECK_EQ(count(peers, ">FlexAttention</td>"), 4);
    }
    free_both(texts, path);
}

/* What lies in the pack and no unit names is no evidence. */
TEST(peers_are_named) {
    static const char FORGED[] =
        "{\"schema\": \"attn-peers/1\", \"environment\": {\"gpu\": \"NVIDIA H200\"}, \"rows\": "
        "[{\"name\": \"forged\", \"dtype\": \"fp16\", \"variant\": \"v\", \"invalid\": [], "
        "\"shape\": {\"batch\": 1, \"heads_q\": 1, \"heads_kv\": 1, \"seq_q\": 8, \"seq_kv\": 8, "
        "\"head_dim\": 64, \"causal\": false}, \"verified\": {\"before\": {\"passed\": true}, "
        "\"after\": {\"passed\": true}}, \"sides\": {\"ours\": {\"proven\": true}, \"flash\": "
        "{\"proven\": true}}, \"pairs\": {\"graph\": {\"flash\": [{\"ours\": [[1.0]], \"other\": "
        "[[9.0]]}]}}}]}";
    struct pack pack;
    attn_error why = {""};
    char *path = make_pack(REPORT_FULL), name[SHA256_TEXT];
    if (CHECK_MSG(pack_open(&pack, path, &why) &&
                      pack_add_artifact(&pack, FORGED, sizeof FORGED - 1, name, &why) &&
                      fixture_publish(&pack, &why),
                  "%s", why.text)) {
        const struct texts texts = write_both(path, GATE_PASS);
        CHECK(strstr(texts.html, "forged") == NULL && strstr(texts.markdown, "forged") == NULL);
        free(texts.html);
        free(texts.markdown);
    }
    pack_close(&pack);
    fixture_remove(path);
}

/* One line for each problem in the Markdown: seven of the GPU, which come first, six of the CPU. */
TEST(the_fastest_of_each_problem) {
    char *path = make_pack(REPORT_FULL);
    const struct texts texts = write_both(path, GATE_PASS);
    const char *speed = strstr(texts.markdown, "\n## Speed\n");
    const char *after = speed != NULL ? strstr(speed + 1, "\n## ") : NULL;
    if (CHECK(after != NULL)) {
        char *part = strndup(speed, (size_t)(after - speed));
        CHECK_EQ(count(part, "\n| fp16 B"), 7);
        CHECK_EQ(count(part, "\n| fp32 B"), 6);
        HAS(part, "|\n| fp16 B32 H16 S512 D128 | cuda:0 | `fwd_hopper_");
        HAS(part, "| cpu | `cpu_tile_neon` |");
        CHECK(strstr(part, "cpu_row_neon") == NULL && strstr(part, "fwd_scalar") == NULL);
        free(part);
    }
    free_both(texts, path);
}

/* ---- tables ---------------------------------------------------------------------------------- */

TEST(a_stage_that_is_not_for_a_device) {
    char *path = make_pack(REPORT_FULL);
    const struct texts texts = write_both(path, GATE_PASS);
    HAS(texts.markdown, "| Stage | cuda:0 | ");
    HAS(texts.markdown, "\n| inspect, the machine code | \xe2\x80\x93 | ");
    HAS(texts.markdown, "| **PASS**, 12 of 12, ");
    free_both(texts, path);
}

TEST(tables_are_folded_and_have_units) {
    char *path = make_pack(REPORT_FULL);
    const struct texts texts = write_both(path, GATE_PASS);
    HAS(texts.html, "<details open><summary>Every kernel</summary>");
    HAS(texts.html, "<th scope=\"col\" class=\"n\">Duration, ns</th>");
    CHECK(strstr(texts.html, "stall_") == NULL);
    HAS(texts.markdown, "## Resources\n\n<details><summary>Every kernel</summary>\n\n| Variant |");
    CHECK_EQ(count(texts.markdown, "<details>"), count(texts.markdown, "\n\n</details>\n\n"));
    free_both(texts, path);
}

/* ---- what ran, and what did not -------------------------------------------------------------- */

/* Nothing of a GPU that was not there is green, neither in the page nor in the Markdown. */
TEST(a_part_looks_like_a_part) {
    char *path = make_pack(REPORT_PARTIAL);
    const struct texts texts = write_both(path, GATE_PASS);
    HAS(texts.html, "<div class=\"verdict g-partial\">");
    HAS(texts.html, "<small>(partial)</small>");
    CHECK(strstr(texts.html, "verdict g-pass") == NULL);
    HAS(texts.html, "<title>PASS (partial) - attest report</title>");
    for (int stage = PARITY; stage <= PROFILE; stage++) {
        char row[120];
        snprintf(row, sizeof row, "<tr><th scope=\"row\">%s<small>", STAGE_NAMES[stage]);
        const char *at = strstr(texts.html, row);
        const char *cell = at != NULL ? strstr(at, "<td>") : NULL;
        const char *chip = "<td><span class=\"chip g-not-run\">NOT RUN</span>";
        CHECK_MSG(cell != NULL && strncmp(cell, chip, strlen(chip)) == 0, "%s", STAGE_NAMES[stage]);
        snprintf(row, sizeof row, "\n| %s, ", STAGE_NAMES[stage]);
        const char *line = strstr(texts.markdown, row);
        CHECK(line != NULL && strncmp(strstr(line + 3, " | "), " | **NOT RUN**, ", 16) == 0);
    }
    HAS(texts.html, "Not shown here. no ncu in $PATH");
    HAS(texts.markdown, "# attest report: PASS (partial)\n\nOnly a part ran");
    HAS(texts.markdown, "\n\nNot run: parity on cuda\\:0: libcuda");
    CHECK_EQ(count(texts.html, "<figure class=\"plot\">"), 1); /* of the CPU */
    CHECK(strstr(texts.html, "FlashAttention") == NULL);
    free_both(texts, path);
}

TEST(findings) {
    char *path = make_pack(REPORT_FAILING);
    const struct texts texts = write_both(path, GATE_INVALID);
    const char *found = strstr(texts.html, "id=\"findings\""), *speed = strstr(found, "<h2 ");
    CHECK_EQ(count(found, "<tr><th scope=\"row\">") - count(speed, "<tr><th scope=\"row\">"), 6);
    HAS(texts.html, "spill_bytes: 24, expected 0");
    HAS(texts.html, "<details><summary>log</summary>");
    HAS(texts.html, "Invalid __global__ write of size 2 bytes");
    HAS(texts.html, "memcheck.cu:20");
    HAS(texts.html, "fwd_hopper.cu:287");
    HAS(texts.html, "control &#39;race&#39; was not caught");
    HAS(texts.html, "<td class=\"n\">3.10</td><td class=\"n\">7</td>"); /* the case that is wrong */
    HAS(texts.html, "<td class=\"n\">damaged</td><td class=\"n\">4</td>");
    /* A bench that failed has no figures: not in the table of times, not in a plot. */
    const char *times = strstr(texts.html, "Every time"),
               *after = strstr(texts.html, "Resources</h2>");
    const char *wrong = times != NULL ? strstr(times, "fwd_wmma_fp16_d64_128x64_w4_s2") : NULL;
    CHECK(after != NULL && (wrong == NULL || wrong > after));
    HAS(texts.markdown, "| sanitize | cuda:0 | **FAIL** | ");
    free_both(texts, path);
}

TEST(no_text_becomes_markup) {
    char *path = make_pack(REPORT_HOSTILE);
    const struct texts texts = write_both(path, GATE_FAIL);
    HAS(texts.html, "&lt;/title&gt;&lt;/svg&gt;&lt;/td&gt;&lt;script&gt;");
    CHECK(strstr(texts.html, "<script") == NULL && strstr(texts.html, "<img") == NULL);
    CHECK(strstr(texts.html, "\" onmouseover=\"") == NULL);
    CHECK(strstr(texts.html, "\xe2\x80\xae") == NULL);
    HAS(texts.html, "default-src 'none'; style-src 'unsafe-inline'");
    CHECK(strstr(texts.markdown, "<script") == NULL || strstr(texts.markdown, "`</title>") != NULL);
    /* In Markdown a text is escaped, or code that nothing ends. */
    for (const char *line = texts.markdown; *line != '\0'; line += strcspn(line, "\n") + 1) {
        size_t ticks = 0, escaped = 0;
        for (const char *at = line; *at != '\n' && *at != '\0'; at++) {
            ticks += *at == '`' && (at == line || at[-1] != '\\');
            escaped += strncmp(at, "![", 2) == 0 && ticks % 2 == 0;
        }
        CHECK_MSG(ticks % 2 == 0 && escaped == 0, "%.*s", (int)strcspn(line, "\n"), line);
    }
    free_both(texts, path);
}

/* All variants of the library, forty cases each: still one small page. */
TEST(a_large_run_is_a_small_page) {
    char *path = make_pack(REPORT_LARGE);
    const struct texts texts = write_both(path, GATE_PASS);
    HAS(texts.html, "<details><summary>Every kernel</summary>");
    HAS(texts.html, " more are in the pack.");
    free_both(texts, path);
}

/* ---- what has no report ---------------------------------------------------------------------- */

static int report_verb(const char *path, const char *option, const char *file) {
    char *words[] = {(char *)(uintptr_t)path, (char *)(uintptr_t)option, (char *)(uintptr_t)file};
    const int status = verb_report(option == NULL ? 1 : file == NULL ? 2 : 3, words);
    fflush(stdout);
    return status;
}

static const char *path_in(const char *folder, const char *name) {
    static char joined[512];
    snprintf(joined, sizeof joined, "%.300s/%.200s", folder, name);
    return joined;
}

static void put(const char *path, const char *text) {
    FILE *out = fopen(path, "wb");
    if (CHECK(out != NULL)) {
        fputs(text, out);
        CHECK_EQ(fclose(out), 0);
    }
}

TEST(changed_packs_are_refused) {
    struct pack pack;
    attn_error why = {""};
    char *path = fixture_path(), name[SHA256_TEXT];
    CHECK_MSG(fixture_make(&pack, path, &why), "%s", why.text);
    struct fixture_edit edit;
    CHECK_EQ(report_verb(path, "--json", NULL), EXIT_DONE);
    /* A unit of another content, all hashes recomputed: evidence.json does not follow. */
    if (CHECK(fixture_edit(&pack, "parity", "cuda:0", "0.001", "0.9", &edit, &why))) {
        CHECK_EQ(report_verb(path, "--json", NULL), EXIT_FAILED_CHECK);
        CHECK(fixture_restore(&pack, &edit, &why));
    }
    CHECK_EQ(report_verb(path, "--json", NULL), EXIT_DONE);
    /* No file of the pack is written over. */
    CHECK_EQ(report_verb(path, "--html", path_in(path, "plan.json")), EXIT_BAD_INPUT);
    CHECK_EQ(report_verb(path, "--html", path_in(path, "units/new.html")), EXIT_BAD_INPUT);
    CHECK_EQ(report_verb(path, "--json", NULL), EXIT_DONE);
    /* A unit that does not have its hash. */
    if (CHECK(fixture_find(&pack, "parity", "cuda:0", name, &why))) {
        char file[200];
        snprintf(file, sizeof file, "units/%s.json", name);
        put(path_in(path, file), "{}");
        CHECK_EQ(report_verb(path, "--json", NULL), EXIT_FAILED_CHECK);
        CHECK_EQ(report_verb(path, "--html", path_in(path, "out.html")), EXIT_FAILED_CHECK);
        CHECK(access(path_in(path, "out.html"), F_OK) != 0);
    }
    CHECK_EQ(report_verb(path_in(path, "units"), "--json", NULL), EXIT_BAD_INPUT);
    CHECK_EQ(report_verb("/nonexistent", "--json", NULL), EXIT_BAD_INPUT);
    pack_close(&pack);
    fixture_remove(path);
}

TEST(a_run_that_did_not_end) {
    char *path = make_pack(REPORT_PARTIAL);
    CHECK_EQ(unlink(path_in(path, "evidence.json")), 0);
    const struct texts texts = write_both(path, GATE_NOT_RUN);
    HAS(texts.html, "the run did not end");
    HAS(texts.html, "<div class=\"verdict g-not-run\">");
    free_both(texts, path);
}

/* ---- files ----------------------------------------------------------------------------------- */

static bool holds(const char *path, const char *part) {
    static char text[MOST_BYTES];
    FILE *in = fopen(path, "rb");
    const size_t bytes = in != NULL ? fread(text, 1, sizeof text - 1, in) : 0;
    text[bytes] = '\0';
    if (in != NULL) {
        fclose(in);
    }
    return strstr(text, part) != NULL;
}

static int files_in(const char *folder) {
    DIR *dir = opendir(folder);
    int found = 0;
    while (dir != NULL && readdir(dir) != NULL) {
        found++;
    }
    if (dir != NULL) {
        closedir(dir);
    }
    return found;
}

TEST(files) {
    char *path = make_pack(REPORT_PARTIAL), outside[200];
    snprintf(outside, sizeof outside, "%.150s.html", path);
    /* Beside the units their names are links; elsewhere they are not. */
    CHECK_EQ(report_verb(path, "--html", path_in(path, "report.html")), EXIT_DONE);
    CHECK(holds(path_in(path, "report.html"), "<a href=\"units/"));
    CHECK_EQ(report_verb(path, "--html", outside), EXIT_DONE);
    CHECK(!holds(outside, "<a href=\"units/") && holds(outside, "</html>"));
    CHECK_EQ(report_verb(path, "--markdown", path_in(path, "report.md")), EXIT_DONE);
    CHECK(holds(path_in(path, "report.md"), "# attest report: PASS (partial)"));
    /* What was written does not change the pack. */
    CHECK_EQ(report_verb(path, "--json", NULL), EXIT_DONE);
    const int before = files_in(path);
    CHECK_EQ(report_verb(path, "--html", path_in(path, "no/such/folder.html")), EXIT_BAD_INPUT);
    CHECK_EQ(report_verb(path, "--html", "/dev/full"), EXIT_BAD_INPUT);
    CHECK_EQ(files_in(path), before);
    unlink(outside);
    fixture_remove(path);
}

/* Each function that the matrix names is in its file. */
TEST(code_of_claims) {
    char *path = make_pack(REPORT_FULL);
    const struct texts texts = write_both(path, GATE_PASS);
    const char *at = strstr(texts.markdown, "## Evidence");
    size_t named = 0;
    while (at != NULL && (at = strpbrk(at, "`")) != NULL) {
        char file[120], function[80], call[84];
        if (sscanf(at, "`%119[a-z0-9_/].c %79[a-z_]`", file, function) == 2) {
            snprintf(call, sizeof call, "%s(", function);
            strcat(file, ".c");
            CHECK_MSG(holds(file, call), "%s is not in %s", function, file);
            named++;
        }
        at++;
    }
    CHECK_EQ(named, 2 * 8); /* of eight rows */
    free_both(texts, path);
}

/* ---- for a look ------------------------------------------------------------------------------ */

static int make(const char *kind, const char *path) {
    struct pack pack;
    attn_error why = {"no such kind"};
    int k = 0;
    while (k < REPORT_FIXTURES && strcmp(REPORT_FIXTURE_NAMES[k], kind) != 0) {
        k++;
    }
    const bool made =
        k < REPORT_FIXTURES && report_fixture_make(&pack, path, (enum report_fixture)k, &why);
    if (k < REPORT_FIXTURES) {
        pack_close(&pack);
    }
    if (!made) {
        fprintf(stderr, "test_report: %s: %s\n", kind, why.text);
    }
    return made ? TEST_PASS : TEST_FAIL;
}

int main(int argc, char **argv) {
    if (argc == 4 && strcmp(argv[1], "--make") == 0) {
        return make(argv[2], argv[3]);
    }
    return test_run(argc > 1 ? argv[1] : "");
}
