/* SPDX-License-Identifier: Apache-2.0
 *
 * test_pack_plan.c - proves that a plan that does not fit its units, or leaves something out, is no
 * PASS; that what a quick run lacks makes it partial; and that a pack of another library is STALE.
 */
#include "test.h"
#include "tool/base/message.h"
#include "tool/cli/verbs.h"
#include "tool/pack/evidence.h"
#include "tool/pack/plan.h"
#include "tool/pack_fixture.h"
#include "tool/pack_verdict.h"

#include <stdlib.h>

#define ONES "1111111111111111111111111111111111111111111111111111111111111111"
#define LIBRARY                                                                                    \
    "2222222222222222222222222222222222222222222222222222222222222222" /* fixture_plan's */

/* ---- edits of the plan ----------------------------------------------------------------------- */

static const struct {
    const char *find, *by;
    enum gate gate; /* GATE_COUNT: it is no plan */
    const char *reason;
} PLAN_EDITS[] = {
    {"\"cases\": 4", "\"cases\": 5", GATE_INVALID, "4 cases, the plan asked for 5"},
    {"\"cases\": 4, ", "", GATE_INVALID, "cases"},
    {"\"timings\": 42", "\"timings\": 43", GATE_INVALID, "42 timings, the plan asked for 43"},
    {"\"launches\": 1000", "\"launches\": 100000", GATE_INVALID, "the plan asked for 100000"},
    {"\"launches\": 1000", "\"launches\": 4", GATE_PASS, ""},
    {"\"variants\": [", "\"variants\": [{\"name\": \"cpu_old\", \"device\": \"cpu\"}, ",
     GATE_INVALID, "parity on cpu: the plan leaves out cpu_old"},
    {"\"variant\": \"fwd_gpu\"", "\"variant\": \"fwd_new\"", GATE_INVALID, "nothing that the plan"},
    {"\"library\": \"2", "\"library\": \"9", GATE_STALE, "another build"},
    {"\"seed\": \"0", "\"seed\": \"9", GATE_STALE, "another build"},
    {"\"image\": \"1", "\"image\": \"9", GATE_STALE, "another build"},
    {"\"absent\": null", "\"absent\": \"no GPU\"", GATE_INVALID, "nothing that the plan asks for"},
    {"\"gpu_hour_price\": 3.6", "\"gpu_hour_price\": null", GATE_PASS, ""},
    /* no plans */
    {"\"mode\": \"full\"", "\"mode\": \"lax\"", GATE_COUNT, "expected quick or full"},
    {"\"seed\": \"0123456789abcdef\"", "\"seed\": 1", GATE_COUNT, "seed"},
    {"\"stage\": \"inspect\"", "\"stage\": \"look\"", GATE_COUNT, "row 0: expected a stage"},
    {"\"device\": \"vgpu\"", "\"device\": 1", GATE_COUNT, "row 1: expected a stage"},
    {"\"absent\": null", "\"absent\": 1", GATE_COUNT, "row 0"},
    {"\"subjects\": [", "\"subjects\": [{\"variant\": \"x\"}, ", GATE_COUNT, "row 0"},
    {"\"name\": \"fwd_gpu\"", "\"name\": null", GATE_COUNT, "variant 0: expected name"},
    {"\"rows\": [", "\"rows\": 1, \"other\": [", GATE_COUNT, "lists of rows and variants"},
    {"\"variants\": [", "\"variants\": [], \"other\": [", GATE_COUNT, "lists of rows and variants"},
};

TEST(edits_of_the_plan) {
    struct pack pack;
    attn_error why = {""};
    char *path = fixture_path();
    CHECK_MSG(fixture_make(&pack, path, &why), "%s", why.text);
    for (size_t i = 0; i < sizeof PLAN_EDITS / sizeof *PLAN_EDITS; i++) {
        char *plan = replaced(fixture_plan(), PLAN_EDITS[i].find, PLAN_EDITS[i].by);
        if (CHECK_MSG(plan != NULL && pack_replan(&pack, plan, &why), "%s: %s", PLAN_EDITS[i].find,
                      why.text)) {
            const struct judgement now = pack_verdict(&pack);
            CHECK_MSG(now.gate == PLAN_EDITS[i].gate, "%s -> %s: gate %d: %s", PLAN_EDITS[i].find,
                      PLAN_EDITS[i].by, (int)now.gate, now.reason);
            CHECK_CONTAINS(now.reason, PLAN_EDITS[i].reason);
            CHECK_EQ(pack_verify(path), EXIT_FAILED_CHECK);
        }
        free(plan);
    }
    pack_close(&pack);
    fixture_remove(path);
}

/* ---- what is left out ------------------------------------------------------------------------ */

/* Cuts the row of a stage on the GPU out of a text that may be written. */
static void cut_row(char *plan, const char *stage) {
    char begins[64];
    snprintf(begins, sizeof begins, ",{\"stage\": \"%s\", \"device\": \"cuda:0\"", stage);
    char *row = strstr(plan, begins);
    char *next = row != NULL ? strstr(row + 1, ",{\"stage\"") : NULL;
    if (CHECK(next != NULL)) {
        memmove(row, next, strlen(next) + 1);
    }
}

TEST(a_stage_without_row) {
    static const struct {
        const char *stage, *reason;
        enum gate quick;
    } STAGES_OF[] = {{"profile", "profile: not asked for", GATE_PASS},
                     {"parity", "parity does not prove it there", GATE_NOT_RUN}};
    for (size_t i = 0; i < sizeof STAGES_OF / sizeof *STAGES_OF; i++) {
        struct pack pack;
        attn_error why = {""};
        char *path = fixture_path(), *plan = replaced(fixture_plan(), "", "");
        cut_row(plan, STAGES_OF[i].stage);
        if (CHECK_MSG(fixture_make(&pack, path, &why) &&
                          fixture_drop(&pack, STAGES_OF[i].stage, "cuda:0", &why) &&
                          pack_replan(&pack, plan, &why),
                      "%s", why.text)) {
            const struct judgement now = pack_verdict(&pack);
            CHECK_EQ(now.gate, GATE_NOT_RUN);
            CHECK_CONTAINS(now.reason, STAGES_OF[i].reason);
            char *quick = replaced(plan, "\"full\"", "\"quick\"");
            CHECK(pack_replan(&pack, quick, &why));
            CHECK_EQ(pack_verdict(&pack).gate, STAGES_OF[i].quick);
            free(quick);
        }
        free(plan);
        pack_close(&pack);
        fixture_remove(path);
    }
}

/* The same units: quick with an absent row passes in part, full does not, nor does quick where the
 * row was requested by name. */
TEST(absent_is_partial_in_a_quick_run_that_did_not_ask_for_it) {
    static const struct {
        const char *mode, *stages;
        enum gate gate;
    } RUNS[] = {
        {"\"mode\": \"quick\"", "\"stages\": []", GATE_PASS},
        {"\"mode\": \"quick\"", "\"stages\": [\"parity\"]", GATE_PASS},
        {"\"mode\": \"quick\"", "\"stages\": [\"inspect\"]", GATE_NOT_RUN},
        {"\"mode\": \"full\"", "\"stages\": []", GATE_NOT_RUN},
    };
    for (size_t i = 0; i < sizeof RUNS / sizeof *RUNS; i++) {
        struct pack pack;
        struct evidence evidence;
        attn_error why = {""};
        char *path = fixture_path();
        char *mode = replaced(fixture_plan(), "\"mode\": \"full\"", RUNS[i].mode);
        char *request = replaced(mode, "\"stages\": []", RUNS[i].stages);
        char *plan = replaced(request, "\"absent\": null", "\"absent\": \"no nvcc\"");
        if (CHECK_MSG(fixture_make(&pack, path, &why) &&
                          fixture_drop(&pack, "inspect", "sm_90", &why) &&
                          pack_replan(&pack, plan, &why) && evidence_make(&pack, &evidence, &why),
                      "%s", why.text)) {
            CHECK_MSG(evidence.judgement.gate == RUNS[i].gate, "%zu: %s", i,
                      evidence.judgement.reason);
            CHECK(evidence.partial || RUNS[i].gate != GATE_PASS);
            CHECK_CONTAINS(evidence.text, "no nvcc");
            evidence_free(&evidence);
        }
        free(plan);
        free(request);
        free(mode);
        pack_close(&pack);
        fixture_remove(path);
    }
}

/* A device that the request names, and that is not there, costs the verdict; a missing tool of one
 * that is there does not. */
TEST(what_was_asked_for_by_name) {
    static const struct {
        const char *devices, *there;
        bool by_name;
    } ROWS[] = {{"", "null", false},
                {"\"cuda:0\"", "null", true},
                {"\"cuda:0\"", "\"a GPU, sm_90\"", false}};
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        char plan[512];
        attn_error why = {""};
        snprintf(plan, sizeof plan,
                 "{\"environment\": {\"devices\": {\"cuda:0\": %s}}, \"request\": {\"devices\": "
                 "[%s]}, \"rows\": [{\"stage\": \"sanitize\", \"device\": \"cuda:0\", \"absent\": "
                 "\"no tool\"}]}",
                 ROWS[i].there, ROWS[i].devices);
        struct json_value *value = json_read(plan, strlen(plan), &why);
        if (CHECK_MSG(value != NULL, "%s", why.text)) {
            const struct json_value *row = plan_row(value, "sanitize", "cuda:0");
            CHECK_MSG(plan_asks_for(value, row) == ROWS[i].by_name, "row %zu", i);
        }
        json_free(value);
    }
}

/* Without a GPU, and with nothing else requested, nothing passes. */
TEST(nothing_is_not_a_pass) {
    struct pack pack;
    attn_error why = {""};
    char *path = fixture_path();
    static const char PLAN[] =
        "{\"schema\": \"" PACK_SCHEMA "\", \"mode\": \"quick\", \"tool\": \"0.1.0\", \"library\": "
        "\"" ONES "\", \"seed\": \"0123456789abcdef\", \"request\": {}, \"variants\": [{\"name\": "
        "\"fwd_cpu\", \"device\": \"cpu\"}], \"rows\": [{\"stage\": \"parity\", \"device\": "
        "\"cuda:0\", \"absent\": \"no libcuda.so.1\", \"subjects\": []}]}";
    if (CHECK_MSG(pack_create(&pack, path, PLAN, &why), "%s", why.text)) {
        CHECK_EQ(pack_verdict(&pack).gate, GATE_NOT_RUN);
        CHECK_EQ(pack_verify(path), EXIT_NOT_RUN);
    }
    pack_close(&pack);
    fixture_remove(path);
}

/* ---- the library ----------------------------------------------------------------------------- */

TEST(packs_of_another_library) {
    char library[SHA256_TEXT], tool[64];
    attn_error why = {""};
    if (!CHECK_MSG(current_identity(library, tool, &why), "%s", why.text)) {
        return;
    }
    for (int other = 0; other < 2; other++) {
        struct pack pack;
        struct judgement judgement = {.gate = GATE_PASS};
        char *path = fixture_path();
        char *plan = replaced(fixture_plan(), LIBRARY, other ? ONES : library);
        if (CHECK_MSG(pack_create(&pack, path, plan, &why), "%s", why.text)) {
            CHECK_MSG(judge_current(&pack, &judgement, &why), "%s", why.text);
            CHECK_EQ((int)judgement.gate, (int)(other ? GATE_STALE : GATE_PASS));
            CHECK_CONTAINS(judgement.reason, other ? "of library 111111111111, and this is" : "");
            pack_close(&pack);
        }
        free(plan);
        fixture_remove(path);
    }
}

TEST_MAIN()
