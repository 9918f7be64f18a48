/* SPDX-License-Identifier: Apache-2.0
 *
 * test_sanitizer_log.c - proves that a log of compute-sanitizer passes only where every sign is
 * there: each test takes a good log (tests/data/sanitizer) and spoils one thing. And that a child
 * process is ended in time, with all that it started.
 */
#include "test.h"
#include "tool/base/child.h"
#include "tool/stages/sanitize/log.h"

#include <stdlib.h>
#include <unistd.h>

static const char ENTRY[] = "fwd_scalar_fp16_d64_32x64_w4_s2";
static const char *const DATA = "tests/data/sanitizer";

enum { LOG_SIZE = 8192 };

/* The file's text. */
static void load(const char *name, char text[LOG_SIZE]) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s.log", DATA, name);
    FILE *in = fopen(path, "r");
    text[0] = '\0';
    if (CHECK_MSG(in != NULL, "%s cannot be opened", path)) {
        text[fread(text, 1, LOG_SIZE - 1, in)] = '\0';
        fclose(in);
    }
    CHECK(text[0] != '\0');
}

/* Puts `by` in the place of `part`, which must be there; NULL: cuts the log off before it. */
static void spoil(char text[LOG_SIZE], const char *part, const char *by) {
    char rest[LOG_SIZE];
    char *place = strstr(text, part);
    if (CHECK_MSG(place != NULL, "no \"%s\" in the log", part)) {
        snprintf(rest, sizeof rest, "%s", place + strlen(part));
        snprintf(place, (size_t)(text + LOG_SIZE - place), "%s%s", by ? by : "", by ? rest : "");
    }
}

static struct sanitizer_log parse(const char *text, enum sanitizer_tool tool) {
    struct sanitizer_log log = {0};
    attn_error why;
    CHECK(sanitizer_log_read(text, strlen(text), tool, ENTRY, &log, &why));
    return log;
}

static enum gate judged(const char *text, enum sanitizer_tool tool, int exit_code) {
    attn_error why;
    const struct sanitizer_log log = parse(text, tool);
    const enum gate verdict = sanitizer_judge(&log, exit_code, 1, &why);
    CHECK((verdict == GATE_PASS) == (why.text[0] == '\0'));
    return verdict;
}

static bool caught(const char *text, enum sanitizer_tool tool, int exit_code) {
    attn_error why;
    const struct sanitizer_log log = parse(text, tool);
    const bool yes = sanitizer_caught(&log, exit_code, &why);
    CHECK(yes == (why.text[0] == '\0'));
    return yes;
}

static void load_tool(enum sanitizer_tool tool, const char *kind, char text[LOG_SIZE]) {
    char name[64];
    snprintf(name, sizeof name, "%s.%s", SANITIZER_TOOL_NAMES[tool], kind);
    load(name, text);
}

/* ---- the variants' run ----------------------------------------------------------------------- */

/* Each tool's clean log passes with exit code 0 alone. */
TEST(clean_logs) {
    static const int CODES[] = {0, 1, -1, SANITIZER_EXIT_CODE};
    char text[LOG_SIZE];
    for (int tool = 0; tool < SANITIZER_TOOLS; tool++) {
        load_tool((enum sanitizer_tool)tool, "clean", text);
        for (size_t i = 0; i < sizeof CODES / sizeof *CODES; i++) {
            CHECK_EQ(judged(text, (enum sanitizer_tool)tool, CODES[i]),
                     CODES[i] == 0 ? GATE_PASS : GATE_INVALID);
        }
    }
    CHECK_EQ(judged("", MEMCHECK, 0), GATE_INVALID);
}

#define DONE "target: 4 launches of 1 variants verified"
#define HAZARDS "0 hazards displayed (0 errors, 0 warnings)"

/* A log with one thing in the place of another; by NULL: cut off before it; part NULL: as it is. */
TEST(spoiled_logs) {
    static const struct {
        const char *log, *part, *by;
        enum sanitizer_tool tool;
        int code;
        enum gate verdict;
    } LOGS[] = {
        /* no summary, or that of another tool */
        {"memcheck.clean", "========= LEAK", NULL, MEMCHECK, 0, GATE_INVALID},
        {"memcheck.clean", "LEAK SUMMARY", "SUMMARY", MEMCHECK, 0, GATE_INVALID},
        {"racecheck.clean", " SUMMARY", NULL, RACECHECK, 0, GATE_INVALID},
        {"initcheck.clean", " SUMMARY", NULL, INITCHECK, 0, GATE_INVALID},
        {"synccheck.clean", " SUMMARY", NULL, SYNCCHECK, 0, GATE_INVALID},
        {"initcheck.clean", NULL, NULL, RACECHECK, 0, GATE_INVALID},
        {"racecheck.clean", NULL, NULL, SYNCCHECK, 0, GATE_INVALID},
        {"initcheck.clean", NULL, NULL, MEMCHECK, 0, GATE_INVALID},
        /* one that cannot be read */
        {"synccheck.clean", "0 errors", "errors", SYNCCHECK, 0, GATE_INVALID},
        {"synccheck.clean", "0 errors", "- errors", SYNCCHECK, 0, GATE_INVALID},
        {"synccheck.clean", "0 errors", "0 hazards", SYNCCHECK, 0, GATE_INVALID},
        {"memcheck.clean", "0 errors", "99999999999999999999 errors", MEMCHECK, 0, GATE_INVALID},
        {"racecheck.clean", HAZARDS, "0 hazards displayed", RACECHECK, 0, GATE_INVALID},
        {"racecheck.clean", HAZARDS, "0 hazards displayed (0 errors)", RACECHECK, 0, GATE_INVALID},
        {"racecheck.clean", HAZARDS, "0 hazards displayed (, 0 warnings)", RACECHECK, 0,
         GATE_INVALID},
        /* something counted, whatever the exit code */
        {"racecheck.clean", HAZARDS, "1 hazard displayed (1 error, 0 warnings)", RACECHECK, 0,
         GATE_FAIL},
        {"racecheck.clean", HAZARDS, "1 hazard displayed (0 errors, 1 warning)", RACECHECK,
         SANITIZER_EXIT_CODE, GATE_FAIL},
        {"racecheck.clean", HAZARDS, "0 hazards displayed (0 errors, 3 warnings)", RACECHECK, 0,
         GATE_FAIL},
        {"racecheck.clean", HAZARDS, "1,024 hazards displayed (1,024 errors, 0 warnings)",
         RACECHECK, 0, GATE_FAIL},
        {"racecheck.clean", "========= RACECHECK",
         "========= ERROR SUMMARY: 1 error\n========= RACECHECK", RACECHECK, 0, GATE_FAIL},
        {"initcheck.clean", "0 errors", "5 errors\n========= ERROR SUMMARY: 0 errors", INITCHECK, 0,
         GATE_FAIL},
        {"memcheck.fault", NULL, NULL, MEMCHECK, SANITIZER_EXIT_CODE, GATE_FAIL},
        {"memcheck.fault", NULL, NULL, MEMCHECK, 0, GATE_FAIL},
        {"racecheck.fault", NULL, NULL, RACECHECK, 0, GATE_FAIL},
        {"racecheck.warning", NULL, NULL, RACECHECK, 0, GATE_FAIL},
        {"initcheck.fault", NULL, NULL, INITCHECK, 0, GATE_FAIL},
        {"synccheck.fault", NULL, NULL, SYNCCHECK, 0, GATE_FAIL},
        {"memcheck.leak", NULL, NULL, MEMCHECK, SANITIZER_EXIT_CODE, GATE_FAIL},
        {"memcheck.leak", "1 error", "0 errors", MEMCHECK, 0, GATE_FAIL},
        /* a report that was not counted */
        {"memcheck.clean", "target:", "========= Invalid __shared__ read of size 4\ntarget:",
         MEMCHECK, 0, GATE_INVALID},
        {"racecheck.clean", "target:", "========= Error: Race reported between Write\ntarget:",
         RACECHECK, 0, GATE_INVALID},
        {"racecheck.clean", "target:", "========= Uninitialized __global__ memory read\ntarget:",
         RACECHECK, 0, GATE_INVALID},
        /* errors of the tool, or of the program */
        {"no_call", NULL, NULL, MEMCHECK, 255, GATE_INVALID},
        {"no_call", NULL, NULL, MEMCHECK, 0, GATE_INVALID},
        {"not_supported", NULL, NULL, MEMCHECK, 0, GATE_INVALID},
        {"internal_error", NULL, NULL, MEMCHECK, 0, GATE_INVALID},
        {"racecheck.clean", "target:", "========= Program hit CUDA_ERROR_ILLEGAL_ADDRESS\ntarget:",
         RACECHECK, 0, GATE_INVALID},
        /* the target's last line */
        {"memcheck.clean", DONE, "", MEMCHECK, 0, GATE_INVALID},
        {"memcheck.clean", DONE, "target: 0 launches of 0 variants verified", MEMCHECK, 0,
         GATE_INVALID},
        {"memcheck.clean", DONE, "target: 4 launches of 2 variants verified", MEMCHECK, 0,
         GATE_INVALID},
        {"memcheck.clean", DONE, "target: 4 launches of 1 variants", MEMCHECK, 0, GATE_INVALID},
        {"memcheck.clean", DONE, DONE " not", MEMCHECK, 0, GATE_INVALID},
        {"memcheck.clean", DONE, "a " DONE, MEMCHECK, 0, GATE_INVALID},
        {"memcheck.clean", DONE, "target: -4 launches of 1 variants verified", MEMCHECK, 0,
         GATE_INVALID},
        {"wrong", NULL, NULL, MEMCHECK, 1, GATE_FAIL},
        {"wrong", NULL, NULL, MEMCHECK, 0, GATE_FAIL},
        /* the target cannot speak for the tool */
        {"synccheck.clean", "========= ERROR", "ERROR", SYNCCHECK, 0, GATE_INVALID},
    };
    for (size_t i = 0; i < sizeof LOGS / sizeof *LOGS; i++) {
        char text[LOG_SIZE];
        load(LOGS[i].log, text);
        if (LOGS[i].part != NULL) {
            spoil(text, LOGS[i].part, LOGS[i].by);
        }
        CHECK_MSG(judged(text, LOGS[i].tool, LOGS[i].code) == LOGS[i].verdict, "%s: \"%s\"",
                  LOGS[i].log, LOGS[i].by != NULL ? LOGS[i].by : "");
    }
}

TEST(numbers_are_read_whole) {
    char text[LOG_SIZE];
    load("memcheck.fault", text);
    CHECK_EQ(parse(text, MEMCHECK).findings, 897);
    load("memcheck.clean", text);
    spoil(text, "0 errors", "1,234,567 errors");
    CHECK_EQ(parse(text, MEMCHECK).findings, 1234567);
}

/* ---- the planted fault ----------------------------------------------------------------------- */

TEST(each_fault_is_caught) {
    char text[LOG_SIZE];
    for (int tool = 0; tool < SANITIZER_TOOLS; tool++) {
        load_tool((enum sanitizer_tool)tool, "fault", text);
        CHECK(caught(text, (enum sanitizer_tool)tool, SANITIZER_EXIT_CODE));
        CHECK(!caught(text, (enum sanitizer_tool)tool, 0));
        CHECK(!caught(text, (enum sanitizer_tool)tool, 1));
        load_tool((enum sanitizer_tool)tool, "clean", text);
        CHECK(!caught(text, (enum sanitizer_tool)tool, SANITIZER_EXIT_CODE));
    }
}

TEST(a_fault_in_other_words_is_not_caught) {
    char text[LOG_SIZE];
    for (int tool = 0; tool < SANITIZER_TOOLS; tool++) {
        load_tool((enum sanitizer_tool)((tool + 1) % SANITIZER_TOOLS), "fault", text);
        CHECK(!caught(text, (enum sanitizer_tool)tool, SANITIZER_EXIT_CODE));
    }
    /* An image that does not load makes errors too. */
    CHECK(
        !caught("========= COMPUTE-SANITIZER\n"
                "========= Program hit CUDA_ERROR_NO_BINARY_FOR_GPU (error 209) due to \"no kernel "
                "image is available\" on CUDA API call to cuLibraryLoadData.\n"
                "========= LEAK SUMMARY: 0 bytes leaked in 0 allocations\n"
                "========= ERROR SUMMARY: 1 error\n",
                MEMCHECK, SANITIZER_EXIT_CODE));
}

/* The kernel's name counts where the tool says that something is at it. */
TEST(a_fault_elsewhere_is_not_caught) {
    static const char *const PLACES[] = {"at another_kernel in ", "at my_", "in ", "cat "};
    char text[LOG_SIZE], place[64];
    for (size_t i = 0; i < sizeof PLACES / sizeof *PLACES; i++) {
        snprintf(place, sizeof place, "%s%s", PLACES[i], ENTRY);
        load("synccheck.clean", text);
        spoil(text, "========= ERROR SUMMARY: 0 errors",
              "========= Barrier error detected. In warp\n=========     %\n"
              "========= ERROR SUMMARY: 1 error");
        spoil(text, "%", place);
        CHECK(!caught(text, SYNCCHECK, SANITIZER_EXIT_CODE));
    }
    load("synccheck.fault", text);
    spoil(text, ENTRY, "fwd_scalar_fp16_d64_32x64_w4_s2_other");
    CHECK(!caught(text, SYNCCHECK, SANITIZER_EXIT_CODE));
}

static bool is_of(const char *text, enum sanitizer_tool tool, const char *variant) {
    attn_error why = {""};
    const bool yes = sanitizer_log_is_of(text, tool, variant, &why);
    CHECK(yes == (why.text[0] == '\0'));
    return yes;
}

TEST(a_log_is_of_one_tool_and_its_variants) {
    static const char GOOD[] = "target: variant fwd_a: 8 launches verified\n"
                               "target: variant fwd_b: 4 launches verified\r\n"
                               "target: tool memcheck\n";
    static const struct {
        const char *part, *by;
    } BAD[] = {
        {"tool memcheck", "tool racecheck2"},
        {"tool memcheck", "tool racecheck"},
        {"target: tool memcheck", "target: tool memcheck\ntarget: tool memcheck"},
        {"variant fwd_a", "variant fwd_b"},
        {"target: variant fwd_b", "target: variant fwd_a"},
    };
    char text[LOG_SIZE];
    CHECK(is_of(GOOD, MEMCHECK, "fwd_a"));
    CHECK(is_of(GOOD, MEMCHECK, "fwd_b"));
    CHECK(is_of(GOOD, MEMCHECK, NULL));
    CHECK(!is_of(GOOD, MEMCHECK, "fwd_"));
    CHECK(!is_of("", MEMCHECK, NULL));
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        snprintf(text, sizeof text, "%s", GOOD);
        spoil(text, BAD[i].part, BAD[i].by);
        if (!CHECK(!is_of(text, MEMCHECK, "fwd_a"))) {
            printf("  with \"%s\"\n", BAD[i].by);
        }
    }
}

TEST(a_log_that_is_no_text) {
    char text[LOG_SIZE];
    struct sanitizer_log log;
    attn_error why = {""};
    load("memcheck.clean", text);
    const size_t bytes = strlen(text);
    strstr(text, "ERROR SUMMARY")[-1] = '\0';
    CHECK(!sanitizer_log_read(text, bytes, MEMCHECK, ENTRY, &log, &why));
    CHECK_CONTAINS(why.text, "a byte of 0");
}

/* ---- the child ------------------------------------------------------------------------------- */

/* Runs sh with the script; its output goes to a file of its own. */
static struct child shell(const char *script, double limit, char output[LOG_SIZE]) {
    char folder[] = "/tmp/attest-child-XXXXXX", path[64];
    char program[] = "/bin/sh", option[] = "-c", text[512];
    const char *argv[] = {program, option, text, NULL};
    struct child child = {.code = -1};
    attn_error why = {""};
    snprintf(text, sizeof text, "%s", script);
    output[0] = '\0';
    if (!CHECK(mkdtemp(folder) != NULL)) {
        return child;
    }
    snprintf(path, sizeof path, "%s/log", folder);
    CHECK_MSG(child_run(argv, path, limit, &child, &why), "%s", why.text);
    FILE *in = fopen(path, "r");
    if (CHECK(in != NULL)) {
        output[fread(output, 1, LOG_SIZE - 1, in)] = '\0';
        fclose(in);
    }
    CHECK(!child_run(argv, path, limit, &(struct child){0}, &why)); /* the log is there already */
    CHECK_CONTAINS(why.text, "exists");
    unlink(path);
    rmdir(folder);
    return child;
}

TEST(child_ends_as_it_likes) {
    char output[LOG_SIZE];
    struct child child = shell("echo out; echo err >&2; exit 86", 20, output);
    CHECK_EQ(child.code, 86);
    CHECK_STR(output, "out\nerr\n");
    child = shell("kill -9 $$", 20, output);
    CHECK_EQ(child.code, -1);
    CHECK_EQ(child.signal, 9);
    CHECK(!child.timed_out);
}

/* Dead, or a zombie that its new parent has not reaped yet. */
static bool is_gone(int process) {
    char path[64], state = 'Z';
    snprintf(path, sizeof path, "/proc/%d/stat", process);
    for (int i = 0; i < 100; i++) {
        FILE *in = fopen(path, "r");
        if (in == NULL) {
            return true;
        }
        const bool known = fscanf(in, "%*d (%*[^)]) %c", &state) == 1;
        fclose(in);
        if (known && state == 'Z') {
            return true;
        }
        usleep(20000);
    }
    return false;
}

TEST(child_is_ended_with_all_that_it_started) {
    char output[LOG_SIZE];
    struct child child = shell("sleep 100 & echo $!; sleep 100", 0.3, output);
    CHECK(child.timed_out);
    CHECK_EQ(child.code, -1);
    CHECK(child.seconds < 50);
    const int started = (int)strtol(output, NULL, 10);
    CHECK(started > 0);
    CHECK_MSG(is_gone(started), "process %d goes on", started);
}

TEST(child_that_is_not_there) {
    char program[] = "/nonexistent/program", path[] = "/tmp/attest-child-log-XXXXXX";
    const char *argv[] = {program, NULL};
    struct child child;
    attn_error why = {""};
    const int file = mkstemp(path);
    CHECK(file >= 0);
    close(file);
    unlink(path);
    CHECK(!child_run(argv, path, 5, &child, &why));
    CHECK_CONTAINS(why.text, "/nonexistent/program");
    unlink(path);
}

TEST_MAIN()
