/* SPDX-License-Identifier: Apache-2.0
 *
 * test_pack_edits.c - proves that a pack cannot be made to say what does not follow from its raw
 * files: each edit is made as somebody would who recomputes every hash, and must cost the verdict
 * or the verification.
 */
#include "test.h"
#include "tool/base/message.h"
#include "tool/cli/verbs.h"
#include "tool/pack/evidence.h"
#include "tool/pack_fixture.h"
#include "tool/pack_verdict.h"

#include <stdlib.h>

static bool republish(const struct pack *pack) {
    struct evidence evidence;
    attn_error why = {""};
    const bool good =
        evidence_make(pack, &evidence, &why) && evidence_publish(pack, &evidence, &why);
    evidence_free(&evidence);
    return CHECK_MSG(good, "%s", why.text);
}

TEST(the_fixture_passes) {
    struct pack pack;
    attn_error why = {""};
    char *path = fixture_path();
    if (CHECK_MSG(fixture_make(&pack, path, &why), "%s", why.text)) {
        const struct judgement judgement = pack_verdict(&pack);
        CHECK_MSG(judgement.gate == GATE_PASS, "%s: %s", GATE_NAMES[judgement.gate],
                  judgement.reason);
        CHECK_EQ(pack_verify(path), EXIT_DONE);
    }
    pack_close(&pack);
    fixture_remove(path);
}

/* ---- edits of units, with a new evidence.json that follows from them ------------------------- */

static const struct edit {
    const char *stage, *device, *find, *by;
    enum gate gate;
    const char *reason;
} EDITS[] = {
    {"parity", "cuda:0", "\"max_error\": 0.002", "\"max_error\": 0.02", GATE_FAIL, "case 1"},
    {"parity", "cuda:0", "\"max_allowed\": 0.01", "\"max_allowed\": null", GATE_FAIL, "case 0"},
    {"parity", "cuda:0", "\"mean_error\": 0.0001", "\"mean_error\": 0.1", GATE_FAIL, "case 0"},
    {"parity", "cuda:0", "\"lse_error\": 0.5", "\"lse_error\": 1.5", GATE_FAIL, "case 0"},
    {"parity", "cuda:0", "\"lse_error\": 0.5", "\"lse_error\": -1", GATE_FAIL, "case 0"},
    {"parity", "cuda:0", "\"nans\": 0", "\"nans\": 1", GATE_FAIL, "case 0"},
    {"parity", "cuda:0", "\"damage\": null", "\"damage\": \"O is written past its end\"", GATE_FAIL,
     "past its end"},
    {"parity", "cuda:0", "\"damage\": null,", "", GATE_FAIL, "damage is not told"},
    {"parity", "cuda:0", "\"refused\": 3", "\"refused\": 2", GATE_INVALID, "impostor"},
    {"parity", "cuda:0", "\"impostors\": 3", "\"impostors\": 4", GATE_INVALID, "impostor"},
    {"parity", "cuda:0", "\"number\": 2", "\"number\": 1", GATE_INVALID, "not where it belongs"},
    {"parity", "cuda:0", "\"number\": 0", "\"number\": 3", GATE_INVALID, "not where it belongs"},
    {"parity", "cuda:0", "\"launches\": 1000", "\"launches\": 25", GATE_INVALID,
     "25 launches, the plan asked for 1000"},
    {"parity", "cuda:0", "\"launches\": 1000", "\"launches\": 1000, \"verdict\": 1", GATE_INVALID,
     "values has no 'verdict'"},
    {"parity", "cuda:0", "\"number\": 2", "\"number\": 2, \"verdict\": \"PASS\"", GATE_INVALID,
     "a case has no 'verdict'"},
    {"parity", "cuda:0", "\"launches_differing\": 0", "\"launches_differing\": 1", GATE_FAIL,
     "launches_differing: 1"},
    {"parity", "cuda:0", "\"launches\": 1000", "\"launched\": 1000", GATE_INVALID, "launches: no"},
    {"parity", "cuda:0", "\"launch_modes\": 3", "\"launch_modes\": 1", GATE_INVALID,
     "launch_modes: 1, expected each of 3"},
    {"parity", "cuda:0", "\"launch_modes\": 3,", "", GATE_INVALID, "launch_modes: nan"},
    {"parity", "cpu", "\"launch_modes\": 1", "\"launch_modes\": 0", GATE_INVALID,
     "launch_modes: 0"},
    {"emulate", "vgpu", "\"orders\": 4", "\"orders\": 1", GATE_INVALID, "orders: 1, expected 4"},
    {"emulate", "vgpu", "\"recipe\"", "\"anatomy\"", GATE_INVALID,
     "case 0: recipe '' is not drawn"},
    {"parity", "cuda:0", "\"recipe\": \"seed ", "\"recipe\": \"seed 1", GATE_INVALID,
     "is not drawn for this variant, seed and number"},
    {"parity", "cuda:0", "\"impostors\": 3", "\"impostors\": 1000000000000", GATE_INVALID,
     "impostors: 1000000000000, expected 0 to 3"},
    {"parity", "cuda:0", "\"max_allowed\": 0.01", "\"max_allowed\": 1e300", GATE_FAIL, "case 0"},
    {"parity", "cuda:0", "\"caught\": true", "\"caught\": false", GATE_INVALID, "was not caught"},
    {"parity", "cuda:0", "\"name\": \"mean_v\"", "\"name\": \"zero\"", GATE_INVALID, "mean_v"},
    {"parity", "cpu", "\"max_error\": 0.001", "\"max_error\": 1", GATE_FAIL, "parity on cpu"},
    {"inspect", "sm_90", "\"spill_bytes\": 0", "\"spill_bytes\": 8", GATE_INVALID, "ptxas said"},
    {"inspect", "sm_90", "\"stack_bytes\": 0", "\"stack_bytes\": 1344", GATE_INVALID,
     "we read 1344"},
    {"inspect", "sm_90", "\"spill_bytes\": 0,", "", GATE_INVALID, "spill_bytes: no number"},
    {"inspect", "sm_90", "\"registers\": 168", "\"registers\": -1", GATE_INVALID, "we read -1"},
    {"inspect", "sm_90", "\"caught\": true", "\"caught\": 1", GATE_INVALID, "'spill'"},
    {"emulate", "vgpu", "\"findings\": 0", "\"findings\": 3389", GATE_FAIL, "3389"},
    {"emulate", "vgpu", "\"name\": \"race\"", "\"name\": \"p\"", GATE_INVALID, "'race'"},
    {"emulate", "vgpu", "\"name\": \"clean\"", "\"name\": \"c\"", GATE_INVALID, "'clean'"},
    {"emulate", "vgpu", "\"max_error\": 0.003", "\"max_error\": 0.3", GATE_FAIL, "case 2"},
    {"inspect", "sm_90", "\"budget_registers\": 168", "\"budget_registers\": 128", GATE_FAIL,
     "its budget is 128"},
    {"inspect", "sm_90", "\"budget_registers\": 168,", "", GATE_FAIL, "it has no budget"},
    {"inspect", "sm_90", "\"budget_tensor_ops\": 16", "\"budget_tensor_ops\": 64", GATE_FAIL,
     "its budget 64"},
    {"inspect", "sm_90", "\"tensor_ops\": 32", "\"tensor_ops\": 0", GATE_FAIL, "tensor_ops: 0"},
    {"inspect", "sm_90", "\"tensor_demand\": 16", "\"tensor_demand\": 48", GATE_FAIL, "demands 48"},
    {"inspect", "sm_90", "\"tensor_demand\": 16,", "", GATE_FAIL, "demands nan"},
    {"inspect", "sm_90", "\"tensor_cores\": 1", "\"tensor_cores\": 0", GATE_FAIL, "tensor_ops"},
    {"inspect", "sm_90", "\"tensor_cores\": 1,\n    \"tensor_demand\": 16,\n    \"tensor_ops\": 32",
     "\"tensor_cores\": 0, \"tensor_demand\": 0, \"tensor_ops\": 0", GATE_FAIL, "its budget 16"},
    {"inspect", "sm_90", "\"budget_tensor_ops\": 16,", "\"budget_tensor_ops\": 0, \"verdict\": 1, ",
     GATE_INVALID, "values has no 'verdict'"},
    {"inspect", "sm_90", "\"local_ops\": 0", "\"local_ops\": 12", GATE_FAIL, "local_ops: 12"},
    {"inspect", "sm_90", "\"output_calls\": 0", "\"output_calls\": 1", GATE_FAIL, "output_calls"},
    {"inspect", "sm_90", "\"cuobjdump_registers\": 168", "\"cuobjdump_registers\": 170",
     GATE_INVALID, "cuobjdump says 170"},
    {"inspect", "sm_90", "\"cuobjdump_registers\": 168,", "", GATE_INVALID,
     "cuobjdump_registers: nan, and cuobjdump said 168"},
    {"inspect", "sm_90", "\"barriers\": 1,", "\"barriers\": 2,", GATE_INVALID, "ptxas said 1"},
    {"inspect", "sm_90", "\"shared_static\": 1024", "\"shared_static\": 0", GATE_INVALID,
     "shared_static"},
    {"inspect", "sm_90", "\"registers\": 168", "\"registers\": 160", GATE_INVALID, "160"},
    {"parity", "cuda:0", "\"seconds\": 1.5", "\"broken\": \"killed\", \"seconds\": 1.5", GATE_FAIL,
     "killed"},
    {"sanitize", "cuda:0", "\"variants\": 1", "\"variants\": 2", GATE_INVALID, "expected 2"},
    {"sanitize", "cuda:0", "\"exit\": 86", "\"exit\": 0", GATE_INVALID, "planted fault"},
    {"sanitize", "cuda:0", "\"exit\": 0", "\"exit\": 1", GATE_INVALID, "memcheck"},
    {"sanitize", "cuda:0", "\"tool\": \"racecheck\"", "\"tool\": \"memcheck\"", GATE_INVALID,
     "expected that of racecheck"},
    {"sanitize", "cuda:0", "\"entry\": \"fwd_gpu\"", "\"entry\": \"other\"", GATE_INVALID,
     "planted fault: entry 'other', expected a variant"},
    {"sanitize", "cuda:0", "\"entry\": \"fwd_gpu\"", "\"entry\": \"\"", GATE_INVALID,
     "planted fault: entry ''"},
    {"sanitize", "cuda:0", "\"entry\": \"fwd_gpu\"", "\"entry\": \"main\"", GATE_INVALID,
     "planted fault: entry 'main'"},
    {"sanitize", "cuda:0", "\"entry\": \"fwd_gpu\"", "\"entry\": \"fwd_cpu\"", GATE_INVALID,
     "none of them in the planted kernel"},
    {"sanitize", "cuda:0", "\"exit\": 0", "\"exit\": 4294967296", GATE_INVALID,
     "exit: 4294967296, expected 0 to 255"},
    {"sanitize", "cuda:0", "\"tool\": \"memcheck\"", "\"tool\": \"memcheck\", \"errors\": 0",
     GATE_INVALID, "a tool's run has no 'errors'"},
    {"sanitize", "cuda:0", "\"exit\": 0", "\"exit\": 0, \"verdict\": \"PASS\"", GATE_INVALID,
     "a log has no 'verdict'"},
    {"sanitize", "cuda:0", "\"logs\": [", "\"logs\": [], \"cases\": [", GATE_INVALID,
     "logs of 0 tools"},
    {"parity", "cuda:0", "\"artifacts\": []",
     "\"artifacts\": [\"ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff\"]",
     GATE_INVALID, "artifact"},
    {"parity", "cuda:0", "\"artifacts\": []", "\"artifacts\": [\"../plan.json\"]", GATE_INVALID,
     "names no file of a pack"},
    {"bench", "cuda:0", "\"taken\": 40", "\"taken\": 41", GATE_INVALID, "expected 41"},
    {"bench", "cuda:0", "40390\n", "403\n", GATE_INVALID, "no GPU needs less"},
    {"bench", "cuda:0", "40390\n", "-40390\n", GATE_INVALID, "no time above 0"},
    {"bench", "cuda:0", "40390\n", "null\n", GATE_INVALID, "no time above 0"},
    {"bench", "cuda:0", "40000,", "", GATE_INVALID, "39 samples"},
    {"bench", "cuda:0", "\"outputs_equal\": true", "\"outputs_equal\": false", GATE_FAIL, "bits"},
    {"bench", "cuda:0", "\"mode\": \"graph\"", "\"mode\": \"eager\"", GATE_INVALID, "same"},
    {"bench", "cuda:0", "\"mode\": \"graph\"", "\"mode\": \"best\"", GATE_INVALID, "no sense"},
    {"bench", "cuda:0", "\"seq_q\": 512", "\"seq_q\": 512000", GATE_INVALID, "no GPU needs less"},
    {"bench", "cuda:0", "\"dim\": 64", "\"dim\": 0", GATE_INVALID, "no sense"},
    {"bench", "cuda:0", "\"seconds\": 1.5", "\"seconds\": 0.001", GATE_INVALID, "samples of"},
    {"bench", "cuda:0", "\"caught\": true", "\"caught\": false", GATE_INVALID, "sleep"},
    {"bench", "cuda:0", "\"repeats\": 2", "\"repeats\": 200", GATE_INVALID, "no GPU needs less"},
    {"bench", "cuda:0", "\"repeats\": 2", "\"repeats\": 0", GATE_INVALID, "no time above 0"},
    {"bench", "cuda:0", "\"name\": \"differ\"", "\"name\": \"sleep\"", GATE_INVALID, "'differ'"},
    {"bench", "cuda:0", "\"controls\": [",
     "\"controls\": [{\"caught\": false, \"name\": \"sleep\"}, ", GATE_INVALID,
     "'sleep' was not caught"},
    {"bench", "cuda:0", "\"name\": \"sleep\"", "\"name\": \"sleep\", \"verdict\": 1", GATE_INVALID,
     "a control has no 'verdict'"},
    {"bench", "cuda:0", "\"values\": {", "\"values\": {\"speedup\": 9.9, ", GATE_INVALID,
     "values has no 'speedup'"},
    {"bench", "cuda:0", "\"values\": {", "\"logs\": [], \"values\": {", GATE_INVALID,
     "a unit of this stage has no 'logs'"},
    {"bench", "cuda:0", "\"artifacts\": [", "\"cases\": [], \"artifacts\": [", GATE_INVALID,
     "a unit of this stage has no 'cases'"},
    {"bench", "cuda:0", "\"sm_clock_mhz_least\": 1980", "\"sm_clock_mhz_least\": 300", GATE_INVALID,
     "sm_clock_mhz_least: 300, expected 1980 as in the state"},
    {"bench", "cuda:0", "\"clock_reasons\": 0", "\"clock_reasons\": 64", GATE_INVALID,
     "clock_reasons: 64, expected 0"},
    {"bench", "cuda:0", "\"seconds\": 1.5", "\"lanes\": 2, \"seconds\": 1.5", GATE_INVALID,
     "lanes: 2, expected 1 to 1"},
    {"parity", "cuda:0", "\"seconds\": 1.5", "\"lanes\": 9, \"seconds\": 1.5", GATE_INVALID,
     "lanes: 9, expected 1 to 8"},
    {"emulate", "vgpu", "\"seconds\": 1.5", "\"lanes\": 1000000, \"seconds\": 1.5", GATE_INVALID,
     "lanes: 1000000, expected 1 to 32"},
    {"emulate", "vgpu", "\"seconds\": 1.5", "\"lanes\": 32, \"seconds\": 1.5", GATE_PASS, ""},
    {"parity", "cuda:0", "\"seconds\": 1.5", "\"seconds\": 1.7e308", GATE_INVALID,
     "seconds: 1.7e+308"},
    {"profile", "cuda:0", "\"sm_busy_percent\": 81.5", "\"sm_busy_percent\": 95", GATE_INVALID,
     "others than ncu printed"},
    {"profile", "cuda:0", "\"tensor_pipe_percent\": 60", "\"tensor_pipe_percent\": 61",
     GATE_INVALID, "others than ncu printed"},
    {"profile", "cuda:0", "\"artifacts\": [", "\"artifacts\": [], \"logs\": [", GATE_INVALID,
     "what ncu printed: it is not there"},
    {"profile", "cuda:0", "\"values\": {", "\"values\": {\"verdict\": 1, ", GATE_INVALID,
     "others than ncu printed"},
    {"profile", "cuda:0", "\"caught\": true", "\"caught\": false", GATE_INVALID, "idle"},
    {"profile", "cuda:0", "\"seconds\": 1.5", "\"seconds\": -1", GATE_INVALID, "seconds"},
    {"profile", "cuda:0", "\"values\"", "\"verdict\": \"PASS\", \"values\"", GATE_INVALID,
     "has no 'verdict'"},
    /* parts of another kind, which nobody would look at */
    {"sanitize", "cuda:0", "\"controls\": []", "\"controls\": {\"verdict\": \"PASS\"}",
     GATE_INVALID, "controls is in another form, expected a list"},
    {"sanitize", "cuda:0", "\"controls\": []", "\"controls\": \"all caught\"", GATE_INVALID,
     "controls is in another form"},
    {"sanitize", "cuda:0", "\"controls\": []", "\"controls\": [\"all caught\"]", GATE_INVALID,
     "a control is in another form, expected an object"},
    {"sanitize", "cuda:0", "\"artifacts\": []", "\"artifacts\": \"none\"", GATE_INVALID,
     "artifacts is in another form"},
    {"sanitize", "cuda:0", "\"values\": {}", "\"values\": \"PASS\"", GATE_INVALID,
     "values is in another form, expected an object"},
    {"bench", "cpu", "\"values\": {}", "\"values\": [{\"verdict\": 1}]", GATE_INVALID,
     "values is in another form"},
    {"inspect", "sm_90", "\"barriers\": 1", "\"builtins\": \"PASS\", \"barriers\": 1", GATE_INVALID,
     "builtins is in another form, expected a number"},
    {"parity", "cuda:0", "\"damage\": null",
     "\"anatomy\": {\"verdict\": \"PASS\"}, \"damage\": null", GATE_INVALID,
     "anatomy is in another form, expected a text"},
    {"parity", "cuda:0", "\"damage\": null", "\"resamples\": \"none\", \"damage\": null",
     GATE_INVALID, "resamples is in another form, expected a list"},
    {"parity", "cuda:0", "\"seconds\": 1.5", "\"broken\": {\"verdict\": 1}, \"seconds\": 1.5",
     GATE_INVALID, "broken is in another form"},
    {"parity", "cuda:0", "\"image\": \"1", "\"image\": \"3", GATE_STALE, "another build"},
    {"parity", "cuda:0", "\"library\": \"2", "\"library\": \"3", GATE_STALE, "another build"},
    {"parity", "cuda:0", "\"tool\": \"0.1.0\"", "\"tool\": \"0.0.9\"", GATE_STALE, "another build"},
    {"parity", "cuda:0", "\"seed\": \"0", "\"seed\": \"1", GATE_STALE, "another build"},
    {"parity", "cpu", "\"image\": null,", "", GATE_STALE, "another build"},
    {"parity", "cuda:0", "\"variant\": \"fwd_gpu\"", "\"variant\": \"fwd_other\"", GATE_INVALID,
     "nothing that the plan asks for"},
    {"parity", "cuda:0", "\"device\": \"cuda:0\"", "\"device\": \"cuda:1\"", GATE_INVALID,
     "nothing that the plan asks for"},
    {"parity", "cuda:0", "\"stage\": \"parity\"", "\"stage\": \"party\"", GATE_INVALID,
     "nothing that the plan asks for"},
};

static void try_edit(const struct pack *pack, const struct edit *edit) {
    attn_error why = {""};
    struct fixture_edit done;
    if (!CHECK_MSG(fixture_edit(pack, edit->stage, edit->device, edit->find, edit->by, &done, &why),
                   "%s", why.text)) {
        return;
    }
    const struct judgement now = pack_verdict(pack);
    CHECK_MSG(now.gate == edit->gate, "%s -> %s: gate %d: %s", edit->find, edit->by, (int)now.gate,
              now.reason);
    CHECK_CONTAINS(now.reason, edit->reason);
    CHECK_EQ(pack_verify(pack->path),
             EXIT_FAILED_CHECK); /* the old evidence.json does not follow */
    republish(pack);
    CHECK_EQ(pack_verify(pack->path), gate_exit(edit->gate));
    CHECK_MSG(fixture_restore(pack, &done, &why), "%s", why.text);
    republish(pack);
}

TEST(edits_of_units) {
    struct pack pack;
    attn_error why = {""};
    char *path = fixture_path();
    if (CHECK_MSG(fixture_make(&pack, path, &why), "%s", why.text)) {
        for (size_t i = 0; i < sizeof EDITS / sizeof *EDITS; i++) {
            try_edit(&pack, &EDITS[i]);
        }
        CHECK_EQ(pack_verify(path), EXIT_DONE);
    }
    pack_close(&pack);
    fixture_remove(path);
}

/* ---- edits of what follows ------------------------------------------------------------------- */

static const struct {
    const char *file, *find, *by;
} PUBLISHED_EDITS[] = {
    {EVIDENCE_FILE, "\"value\": 2.0", "\"value\": 1.0"}, /* a p50 */
    {EVIDENCE_FILE, "\"low\": 2.0", "\"low\": 1.0"},
    {EVIDENCE_FILE, "\"samples\": 40", "\"samples\": 400"},
    {EVIDENCE_FILE, "\"verdict\": \"PASS\"", "\"verdict\": \"FAIL\""},
    {EVIDENCE_FILE, "\"gpu_seconds\": 6", "\"gpu_seconds\": 1"},
    {EVIDENCE_FILE, "\"seconds\": 1.5", "\"seconds\": 1.50"},
    {EVIDENCE_FILE, "\"stale\": []", "\"stale\": [ ]"},
    {EVIDENCE_FILE, "\n}\n", "\n}\n\n"},
    {EVIDENCE_FILE, "attest-evidence/1", "attest-evidence/0"},
    {STATEMENT_FILE, "PASSED", "WARNED"},
    {STATEMENT_FILE, "\"failedTests\": []", "\"failedTests\": [\"x\"]"},
};

TEST(edits_of_what_follows) {
    struct pack pack;
    attn_error why = {""};
    char *path = fixture_path();
    if (CHECK_MSG(fixture_make(&pack, path, &why), "%s", why.text)) {
        for (size_t i = 0; i < sizeof PUBLISHED_EDITS / sizeof *PUBLISHED_EDITS; i++) {
            const char *file = PUBLISHED_EDITS[i].file;
            size_t bytes = 0;
            char *text = pack_published(&pack, file, &bytes, &why);
            char *edited = replaced(text, PUBLISHED_EDITS[i].find, PUBLISHED_EDITS[i].by);
            if (CHECK_MSG(edited != NULL, "no %s in %s", PUBLISHED_EDITS[i].find, text)) {
                CHECK(pack_publish(&pack, file, edited, strlen(edited), &why));
                CHECK_EQ(pack_verify(path), EXIT_FAILED_CHECK);
                CHECK(pack_publish(&pack, file, text, bytes, &why));
                CHECK_EQ(pack_verify(path), EXIT_DONE);
            }
            free(edited);
            free(text);
        }
    }
    pack_close(&pack);
    fixture_remove(path);
}

/* Five samples do not bound a median, however many it says were taken. */
TEST(too_few_samples) {
    struct pack pack;
    attn_error why = {""};
    struct fixture_edit samples, taken;
    char *path = fixture_path();
    if (CHECK_MSG(fixture_make(&pack, path, &why) &&
                      fixture_edit(&pack, "bench", "cpu", "\"ns\": [",
                                   "\"ns\": [1, 2, 3, 4, 5], \"more\": [", &samples, &why),
                  "%s", why.text)) {
        CHECK_MSG(
            fixture_edit(&pack, "bench", "cpu", "\"taken\": 40", "\"taken\": 5", &taken, &why),
            "%s", why.text);
        const struct judgement now = pack_verdict(&pack);
        CHECK_EQ(now.gate, GATE_INVALID);
        CHECK_CONTAINS(now.reason, "5 samples, expected 5 and at least 6");
        free(samples.text);
        free(taken.text);
    }
    pack_close(&pack);
    fixture_remove(path);
}

/* Each control is held against all: thousands would keep the judge at work for minutes. */
TEST(too_many_controls) {
    struct pack pack;
    attn_error why = {""};
    struct fixture_edit done = {.text = NULL};
    char *path = fixture_path(), list[4096] = "\"controls\": [";
    for (int i = 0; i < 62; i++) { /* and the three that are there */
        const size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "{\"caught\": true, \"name\": \"x%d\"}, ", i);
    }
    if (CHECK_MSG(fixture_make(&pack, path, &why) &&
                      fixture_edit(&pack, "parity", "cpu", "\"controls\": [", list, &done, &why),
                  "%s", why.text)) {
        const struct judgement now = pack_verdict(&pack);
        CHECK_EQ(now.gate, GATE_INVALID);
        CHECK_CONTAINS(now.reason, "65 controls, expected 64 at most");
        free(done.text);
    }
    pack_close(&pack);
    fixture_remove(path);
}

/* A stage that has no row at all. */
TEST(a_full_run_has_six_stages) {
    struct pack pack;
    attn_error why = {""};
    char *path = fixture_path();
    char *plan = replaced(fixture_plan(), "", "");
    char *row = strstr(plan, ",{\"stage\": \"profile\"");
    char *next = strstr(row + 1, ",{\"stage\"");
    memmove(row, next, strlen(next) + 1);
    if (CHECK_MSG(fixture_make(&pack, path, &why) &&
                      fixture_drop(&pack, "profile", "cuda:0", &why) &&
                      pack_replan(&pack, plan, &why),
                  "%s", why.text)) {
        const struct judgement now = pack_verdict(&pack);
        CHECK_EQ(now.gate, GATE_NOT_RUN);
        CHECK_CONTAINS(now.reason, "profile: not asked for");
        char *quick = replaced(plan, "\"full\"", "\"quick\"");
        CHECK(pack_replan(&pack, quick, &why));
        CHECK_EQ(pack_verdict(&pack).gate, GATE_PASS);
        free(quick);
    }
    free(plan);
    pack_close(&pack);
    fixture_remove(path);
}

/* ---- borderline cases ------------------------------------------------------------------------ */

#define GOOD                                                                                       \
    "{\"max_error\": 0.001, \"max_allowed\": 0.01, \"mean_error\": 0.0001, "                       \
    "\"mean_allowed\": 0.001, \"lse_error\": 0.5, \"nans\": 0}"
#define MISS                                                                                       \
    "{\"max_error\": 0.03, \"max_allowed\": 0.01, \"mean_error\": 0.0001, "                        \
    "\"mean_allowed\": 0.001, \"lse_error\": 0.5, \"nans\": 0}"
#define MILD                                                                                       \
    "{\"max_error\": 0.02, \"max_allowed\": 0.01, \"mean_error\": 0.0001, "                        \
    "\"mean_allowed\": 0.001, \"lse_error\": 0.5, \"nans\": 0}"
#define WRONG                                                                                      \
    "{\"max_error\": 0.02, \"max_allowed\": 0.01, \"mean_error\": 0.0001, "                        \
    "\"mean_allowed\": 0.001, \"lse_error\": 1.5, \"nans\": 0}"
#define LAX                                                                                        \
    "{\"max_error\": 1e200, \"max_allowed\": 1e300, \"mean_error\": 0.0001, "                      \
    "\"mean_allowed\": 1e300, \"lse_error\": 0.5, \"nans\": 0}"
#define RESAMPLES(error, a, b, c, d, e)                                                            \
    "\"resamples\": [" a "," b "," c "," d "," e "], \"max_error\": " error

/* Five resamples, of which one may be borderline or which are within the rule on average, and an
 * error of up to four times what is allowed. */
TEST(borderline_cases) {
    static const struct edit BORDERLINE[] = {
        {"parity", "cpu", "\"max_error\": 0.001", RESAMPLES("0.02", GOOD, GOOD, GOOD, GOOD, GOOD),
         GATE_PASS, ""},
        {"parity", "cpu", "\"max_error\": 0.001", RESAMPLES("0.02", GOOD, MISS, GOOD, GOOD, GOOD),
         GATE_PASS, ""},
        {"parity", "cpu", "\"max_error\": 0.001", RESAMPLES("0.02", GOOD, MISS, GOOD, MISS, GOOD),
         GATE_FAIL, "case 0"},
        {"parity", "cpu", "\"max_error\": 0.001", RESAMPLES("0.02", GOOD, MILD, GOOD, MILD, GOOD),
         GATE_PASS, ""}, /* on average they are within the rule */
        {"parity", "cpu", "\"max_error\": 0.001", RESAMPLES("0.02", GOOD, WRONG, GOOD, MILD, GOOD),
         GATE_FAIL, "case 0"},
        {"parity", "cpu", "\"max_error\": 0.001", RESAMPLES("0.02", GOOD, WRONG, GOOD, GOOD, GOOD),
         GATE_FAIL, "case 0"}, /* one may be borderline, but not by its LSE */
        {"parity", "cpu", "\"max_error\": 0.001", RESAMPLES("0.02", LAX, LAX, LAX, LAX, LAX),
         GATE_FAIL, "case 0"}, /* a rule that allows anything is none */
        {"parity", "cpu", "\"max_error\": 0.001", RESAMPLES("0.05", GOOD, GOOD, GOOD, GOOD, GOOD),
         GATE_FAIL, "case 0"},
        {"parity", "cpu", "\"max_error\": 0.001", RESAMPLES("null", GOOD, GOOD, GOOD, GOOD, GOOD),
         GATE_FAIL, "case 0"},
        {"parity", "cpu", "\"max_error\": 0.001",
         "\"resamples\": [" GOOD "," GOOD "," GOOD "," GOOD "], \"max_error\": 0.02", GATE_FAIL,
         "case 0"},
        {"parity", "cpu", "\"max_error\": 0.001", RESAMPLES("-5", GOOD, GOOD, GOOD, GOOD, GOOD),
         GATE_FAIL, "case 0"},
        {"parity", "cpu", "\"lse_error\": 0.5",
         "\"resamples\": [" GOOD "," GOOD "," GOOD "," GOOD "," GOOD "], \"lse_error\": -1",
         GATE_FAIL, "case 0"},
        {"parity", "cuda:0", "\"max_error\": 0.001",
         RESAMPLES("0.02", GOOD, GOOD, GOOD, GOOD, GOOD), GATE_FAIL, "case 0"}, /* fp16 */
        {"parity", "cpu", "\"mean_error\": 0.0001",
         "\"resamples\": [" GOOD "," GOOD "," GOOD "," GOOD "," GOOD "], \"mean_error\": 0.0021",
         GATE_FAIL, "mean 0.0021 of 0.001"},
    };
    struct pack pack;
    attn_error why = {""};
    char *path = fixture_path();
    if (CHECK_MSG(fixture_make(&pack, path, &why), "%s", why.text)) {
        for (size_t i = 0; i < sizeof BORDERLINE / sizeof *BORDERLINE; i++) {
            try_edit(&pack, &BORDERLINE[i]);
        }
    }
    pack_close(&pack);
    fixture_remove(path);
}

/* No library has an image of 64 ones, or a variant fwd_gpu. cli/test_run.sh has one that is
 * current. */
TEST(images_of_another_library) {
    struct pack pack;
    attn_error why = {""};
    char *path = fixture_path(), current[] = "--current", *argv[] = {path, current};
    if (CHECK_MSG(fixture_make(&pack, path, &why), "%s", why.text)) {
        CHECK_EQ(verb_verify(1, argv), EXIT_DONE);
        CHECK_EQ(verb_verify(2, argv), EXIT_NOT_RUN);
    }
    pack_close(&pack);
    fixture_remove(path);
}

/* ---- units removed, doubled ------------------------------------------------------------------ */

TEST(a_dropped_unit_is_not_run) {
    static const char *const DEVICES[STAGES] = {"sm_90",  "vgpu",   "cuda:0",
                                                "cuda:0", "cuda:0", "cuda:0"};
    for (int stage = 0; stage < STAGES; stage++) {
        struct pack pack;
        attn_error why = {""};
        char *path = fixture_path();
        if (CHECK_MSG(fixture_make(&pack, path, &why) &&
                          fixture_drop(&pack, STAGE_NAMES[stage], DEVICES[stage], &why),
                      "%s", why.text)) {
            CHECK_EQ(pack_verdict(&pack).gate, GATE_NOT_RUN);
            CHECK_EQ(pack_verify(path), EXIT_FAILED_CHECK);
            republish(&pack);
            CHECK_EQ(pack_verify(path), EXIT_NOT_RUN);
        }
        pack_close(&pack);
        fixture_remove(path);
    }
}

/* The better of two runs cannot be had by keeping both; a stale one beside it does no harm. */
TEST(two_units_of_the_same) {
    static const struct {
        const char *find, *by;
        enum gate gate;
    } SECONDS[] = {{"\"seconds\": 1.5", "\"seconds\": 1.6", GATE_INVALID},
                   {"\"seed\": \"0", "\"seed\": \"1", GATE_PASS}};
    for (int i = 0; i < 2; i++) {
        struct pack pack;
        attn_error why = {""};
        char *path = fixture_path(), name[SHA256_TEXT];
        if (CHECK_MSG(fixture_make(&pack, path, &why) &&
                          fixture_find(&pack, "bench", "cpu", name, &why),
                      "%s", why.text)) {
            size_t bytes = 0;
            char *text = pack_read(&pack, PACK_UNITS, name, &bytes, &why);
            char *second = replaced(text, SECONDS[i].find, SECONDS[i].by);
            CHECK(second != NULL && pack_add_unit(&pack, second, name, &why));
            CHECK_EQ(pack_verdict(&pack).gate, SECONDS[i].gate);
            free(second);
            free(text);
        }
        pack_close(&pack);
        fixture_remove(path);
    }
}

/* ---- quick runs ------------------------------------------------------------------------------ */

static const char QUICK[] =
    "{\"schema\": \"" PACK_SCHEMA "\", \"mode\": \"%s\", \"tool\": \"0.1.0\", \"library\": "
    "\"2222222222222222222222222222222222222222222222222222222222222222\", "
    "\"seed\": \"0123456789abcdef\", \"request\": {}, \"variants\": [{\"name\": \"fwd_cpu\", "
    "\"device\": \"cpu\", \"cubins\": []}], "
    "\"rows\": [{\"stage\": \"parity\", \"device\": \"cuda:0\", "
    "\"absent\": \"no libcuda.so.1\", \"subjects\": []}]}";

/* Without a GPU, and with nothing else asked for, nothing passes. */
TEST(nothing_is_not_a_pass) {
    static const char *const MODES[] = {"quick", "full"};
    for (int i = 0; i < 2; i++) {
        char plan[sizeof QUICK + 8];
        struct pack pack;
        attn_error why = {""};
        char *path = fixture_path();
        snprintf(plan, sizeof plan, QUICK, MODES[i]);
        if (CHECK_MSG(pack_create(&pack, path, plan, &why), "%s", why.text)) {
            CHECK_EQ(pack_verdict(&pack).gate, GATE_NOT_RUN);
            CHECK_EQ(pack_verify(path), EXIT_NOT_RUN);
            republish(&pack);
            CHECK_EQ(pack_verify(path), EXIT_NOT_RUN);
        }
        pack_close(&pack);
        fixture_remove(path);
    }
}

/* The same units: quick with an absent row passes in part, full does not. */
TEST(absent_is_partial_in_a_quick_run_that_did_not_ask_for_it) {
    static const struct {
        const char *mode, *absent;
        enum gate gate;
    } RUNS[] = {
        {"\"mode\": \"quick\"", "\"absent\": \"no nvcc\"", GATE_PASS},
        {"\"mode\": \"quick\"", "\"asked\": true, \"absent\": \"no nvcc\"", GATE_NOT_RUN},
        {"\"mode\": \"full\"", "\"absent\": \"no nvcc\"", GATE_NOT_RUN},
    };
    for (size_t i = 0; i < sizeof RUNS / sizeof *RUNS; i++) {
        struct pack pack;
        struct evidence evidence;
        attn_error why = {""};
        char *path = fixture_path();
        char *mode = replaced(fixture_plan(), "\"mode\": \"full\"", RUNS[i].mode);
        char *plan = replaced(mode, "\"absent\": null", RUNS[i].absent);
        if (CHECK_MSG(fixture_make(&pack, path, &why) &&
                          fixture_drop(&pack, "inspect", "sm_90", &why) &&
                          pack_replan(&pack, plan, &why) && evidence_make(&pack, &evidence, &why),
                      "%s", why.text)) {
            CHECK_EQ(evidence.judgement.gate, RUNS[i].gate);
            CHECK_EQ(evidence.partial, RUNS[i].gate == GATE_PASS);
            CHECK_CONTAINS(evidence.text, "no nvcc");
            CHECK_CONTAINS(evidence.statement, "\"result\": \"WARNED\"");
            evidence_free(&evidence);
        }
        free(plan);
        free(mode);
        pack_close(&pack);
        fixture_remove(path);
    }
}

TEST_MAIN()
