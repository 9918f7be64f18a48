/* SPDX-License-Identifier: Apache-2.0
 *
 * test_pack_edits.c - proves that each accident to a pack costs the verdict or the verification:
 * files that are cut, exchanged or lost, observations that do not give a PASS, controls that
 * failed, verdicts and statistics that do not follow, units of another build.
 */
#include "test.h"
#include "tool/base/message.h"
#include "tool/cli/verbs.h"
#include "tool/pack/evidence.h"
#include "tool/pack_fixture.h"
#include "tool/pack_verdict.h"

#include <stdlib.h>
#include <unistd.h>

static bool republish(const struct pack *pack) {
    struct evidence evidence;
    attn_error why = {""};
    const bool good =
        evidence_make(pack, &evidence, &why) && evidence_publish(pack, &evidence, &why);
    evidence_free(&evidence);
    return CHECK_MSG(good, "%s", why.text);
}

/* ---- accidents to files ---------------------------------------------------------------------- */

/* Paths of the bench units on the CPU and the GPU, and of the first artifact. */
struct files {
    char cpu[256], gpu[256], artifact[256];
};

static bool cut(const struct files *files) {
    return truncate(files->artifact, 40) == 0;
}

static bool flip(const struct files *files) {
    FILE *file = fopen(files->cpu, "r+b");
    return file != NULL && fseek(file, 100, SEEK_SET) == 0 && fputc(0, file) == 0 &&
           fclose(file) == 0;
}

static bool exchange(const struct files *files) {
    char aside[300];
    snprintf(aside, sizeof aside, "%s.aside", files->artifact);
    return rename(files->cpu, aside) == 0 && rename(files->gpu, files->cpu) == 0 &&
           rename(aside, files->gpu) == 0;
}

static bool lose_unit(const struct files *files) {
    return unlink(files->cpu) == 0;
}

static bool lose_artifact(const struct files *files) {
    return unlink(files->artifact) == 0;
}

static bool append(const struct files *files) {
    FILE *file = fopen(files->artifact, "ab");
    return file != NULL && fputs("one line more\n", file) >= 0 && fclose(file) == 0;
}

TEST(accidents_to_files) {
    static const struct {
        const char *name;
        bool (*happens)(const struct files *files);
    } ACCIDENTS[] = {{"a cut artifact", cut},
                     {"a flipped byte", flip},
                     {"exchanged units", exchange},
                     {"a lost unit", lose_unit},
                     {"a lost artifact", lose_artifact},
                     {"a longer artifact", append}};
    for (size_t i = 0; i < sizeof ACCIDENTS / sizeof *ACCIDENTS; i++) {
        struct pack pack;
        struct pack_names artifacts = {0};
        struct files files;
        attn_error why = {""};
        char *path = fixture_path(), cpu[SHA256_TEXT], gpu[SHA256_TEXT];
        if (CHECK_MSG(fixture_make(&pack, path, &why) &&
                          fixture_find(&pack, "bench", "cpu", cpu, &why) &&
                          fixture_find(&pack, "bench", "cuda:0", gpu, &why) &&
                          pack_list(&pack, PACK_ARTIFACTS, &artifacts, &why),
                      "%s", why.text)) {
            snprintf(files.cpu, sizeof files.cpu, "%s/units/%s.json", path, cpu);
            snprintf(files.gpu, sizeof files.gpu, "%s/units/%s.json", path, gpu);
            snprintf(files.artifact, sizeof files.artifact, "%s/artifacts/%s", path,
                     artifacts.names[0]);
            CHECK_EQ(pack_verify(path), EXIT_DONE);
            CHECK_MSG(ACCIDENTS[i].happens(&files), "%s", ACCIDENTS[i].name);
            CHECK_MSG(pack_verify(path) == EXIT_FAILED_CHECK, "%s", ACCIDENTS[i].name);
        }
        pack_names_free(&artifacts);
        pack_close(&pack);
        fixture_remove(path);
    }
}

/* ---- observations that are no PASS, with a new evidence.json that follows from them ---------- */

static const struct edit {
    const char *stage, *device, *find, *by;
    enum gate gate;
    const char *reason;
} EDITS[] = {
    /* cases: each number of the rule, and NaN */
    {"parity", "cuda:0", "\"max_error\": 0.002", "\"max_error\": 0.02", GATE_FAIL, "case 1"},
    {"parity", "cuda:0", "\"max_allowed\": 0.01", "\"max_allowed\": null", GATE_FAIL, "case 0"},
    {"parity", "cuda:0", "\"mean_error\": 0.0001", "\"mean_error\": 0.1", GATE_FAIL, "case 0"},
    {"parity", "cuda:0", "\"lse_error\": 0.5", "\"lse_error\": 1.5", GATE_FAIL, "case 0"},
    {"parity", "cuda:0", "\"nans\": 0", "\"nans\": 1", GATE_FAIL, "case 0"},
    {"parity", "cpu", "\"max_error\": 0.001", "\"max_error\": 1", GATE_FAIL, "parity on cpu"},
    {"emulate", "vgpu", "\"max_error\": 0.003", "\"max_error\": 0.3", GATE_FAIL, "case 2"},
    {"parity", "cuda:0", "\"damage\": null", "\"damage\": \"O is written past its end\"", GATE_FAIL,
     "past its end"},
    {"parity", "cuda:0", "\"damage\": null,", "", GATE_FAIL, "no damage is named"},
    {"parity", "cuda:0", "\"number\": 2", "\"number\": 1", GATE_INVALID, "not where it belongs"},
    /* controls that failed, or are missing */
    {"parity", "cuda:0", "\"refused\": 3", "\"refused\": 2", GATE_INVALID, "negative control"},
    {"parity", "cuda:0", "\"caught\": true", "\"caught\": false", GATE_INVALID, "was not caught"},
    {"parity", "cuda:0", "\"name\": \"mean_v\"", "\"name\": \"zero\"", GATE_INVALID, "mean_v"},
    {"inspect", "sm_90", "\"caught\": true", "\"caught\": 1", GATE_INVALID, "'spill'"},
    {"emulate", "vgpu", "\"name\": \"race\"", "\"name\": \"p\"", GATE_INVALID, "'race'"},
    {"emulate", "vgpu", "\"name\": \"clean\"", "\"name\": \"c\"", GATE_INVALID, "'clean'"},
    {"bench", "cuda:0", "\"name\": \"differ\"", "\"name\": \"sleep\"", GATE_INVALID, "'differ'"},
    {"bench", "cuda:0", "\"controls\": [", "\"controls\": [], \"was\": [", GATE_INVALID, "'sleep'"},
    {"profile", "cuda:0", "\"caught\": true", "\"caught\": false", GATE_INVALID, "idle"},
    {"sanitize", "cuda:0", "\"exit\": 86", "\"exit\": 0", GATE_INVALID, "planted fault"},
    {"sanitize", "cuda:0", "\"entry\": \"fwd_gpu\"", "\"entry\": \"fwd_cpu\"", GATE_INVALID,
     "none of them in the planted kernel"},
    /* values */
    {"parity", "cuda:0", "\"launches\": 1000", "\"launches\": 25", GATE_INVALID,
     "25 launches, the plan asked for 1000"},
    {"parity", "cuda:0", "\"launches_differing\": 0", "\"launches_differing\": 1", GATE_FAIL,
     "launches_differing: 1"},
    {"parity", "cuda:0", "\"launches\": 1000", "\"launched\": 1000", GATE_INVALID, "nan launches"},
    {"parity", "cuda:0", "\"launch_modes\": 3", "\"launch_modes\": 1", GATE_INVALID,
     "launch_modes: 1, expected each of 3"},
    {"emulate", "vgpu", "\"orders\": 4", "\"orders\": 1", GATE_INVALID, "orders: 1, expected 4"},
    {"emulate", "vgpu", "\"findings\": 0", "\"findings\": 3389", GATE_FAIL, "3389"},
    {"inspect", "sm_90", "\"spill_bytes\": 0,", "", GATE_INVALID, "spill_bytes: no number"},
    {"inspect", "sm_90", "\"local_ops\": 0", "\"local_ops\": 12", GATE_FAIL, "local_ops: 12"},
    {"inspect", "sm_90", "\"budget_registers\": 168", "\"budget_registers\": 128", GATE_FAIL,
     "its budget is 128"},
    {"inspect", "sm_90", "\"budget_registers\": 168,", "", GATE_FAIL, "it has no budget"},
    {"inspect", "sm_90", "\"tensor_ops\": 32", "\"tensor_ops\": 0", GATE_FAIL, "tensor_ops: 0"},
    {"inspect", "sm_90", "\"tensor_demand\": 16,", "", GATE_FAIL, "demands nan"},
    {"inspect", "sm_90", "\"tensor_cores\": 1", "\"tensor_cores\": 0", GATE_FAIL, "tensor_ops"},
    /* what the tools printed */
    {"inspect", "sm_90", "\"spill_bytes\": 0", "\"spill_bytes\": 8", GATE_FAIL, "spill_bytes: 8"},
    {"inspect", "sm_90", "\"artifacts\": [", "\"artifacts\": [], \"logs\": [", GATE_INVALID,
     "printed is not there"},
    {"sanitize", "cuda:0", "\"variants\": 1", "\"variants\": 2", GATE_INVALID, "expected 2"},
    {"sanitize", "cuda:0", "\"exit\": 0", "\"exit\": 1", GATE_INVALID, "memcheck"},
    {"sanitize", "cuda:0", "\"tool\": \"racecheck\"", "\"tool\": \"memcheck\"", GATE_INVALID,
     "expected that of racecheck"},
    {"sanitize", "cuda:0", "\"logs\": [", "\"logs\": [], \"cases\": [", GATE_INVALID,
     "logs of 0 tools"},
    {"profile", "cuda:0", "\"sm_busy_percent\": 81.5", "\"sm_busy_percent\": 60", GATE_FAIL,
     "sm_busy_percent: 60"},
    {"profile", "cuda:0", "\"artifacts\": [", "\"artifacts\": [], \"logs\": [", GATE_INVALID,
     "printed is not there"},
    {"parity", "cuda:0", "\"artifacts\": []",
     "\"artifacts\": [\"ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff\"]",
     GATE_INVALID, "artifact"},
    {"parity", "cuda:0", "\"artifacts\": []", "\"artifacts\": [\"../plan.json\"]", GATE_INVALID,
     "names no file of a pack"},
    /* samples: of two calls each, from 40000 ns on */
    {"bench", "cuda:0", "\"taken\": 40", "\"taken\": 41", GATE_INVALID, "expected 41"},
    {"bench", "cuda:0", "40000,", "", GATE_INVALID, "39 samples"},
    {"bench", "cpu", "\"ns\": [", "\"ns\": [1, 2], \"was\": [", GATE_INVALID, "at least 6"},
    {"bench", "cuda:0", "40390\n", "null\n", GATE_INVALID, "no time above 0"},
    {"bench", "cpu", "40000", "-40000", GATE_INVALID, "no time above 0"},
    {"bench", "cpu", "40000", "0", GATE_INVALID, "no time above 0"},
    {"bench", "cpu", "\"repeats\": 2", "\"repeats\": 0", GATE_INVALID, "no number of calls"},
    {"bench", "cuda:0", "40390\n", "403\n", GATE_INVALID, "no GPU needs less"},
    {"bench", "cuda:0", "\"dim\": 64", "\"dim\": 0", GATE_INVALID, "no sense"},
    {"bench", "cpu", "\"dtype\": \"fp16\"", "\"dtype\": \"fp17\"", GATE_INVALID, "no sense"},
    {"bench", "cuda:0", "\"outputs_equal\": true", "\"outputs_equal\": false", GATE_FAIL, "bits"},
    {"profile", "cuda:0", "\"seconds\": 1.5", "\"seconds\": -1", GATE_INVALID, "seconds"},
    {"parity", "cuda:0", "\"seconds\": 1.5", "\"broken\": \"killed\", \"seconds\": 1.5", GATE_FAIL,
     "killed"},
    /* of another build, or of another run */
    {"parity", "cuda:0", "\"image\": \"1", "\"image\": \"3", GATE_STALE, "another build"},
    {"parity", "cuda:0", "\"library\": \"2", "\"library\": \"3", GATE_STALE, "another build"},
    {"parity", "cuda:0", "\"tool\": \"0.1.0\"", "\"tool\": \"0.0.9\"", GATE_STALE, "another build"},
    {"parity", "cuda:0", "\"seed\": \"0", "\"seed\": \"1", GATE_STALE, "another build"},
    {"parity", "cuda:0", "\"variant\": \"fwd_gpu\"", "\"variant\": \"fwd_other\"", GATE_INVALID,
     "nothing that the plan asks for"},
    {"parity", "cuda:0", "\"stage\": \"parity\"", "\"stage\": \"party\"", GATE_INVALID,
     "nothing that the plan asks for"},
    {"emulate", "vgpu", "\"seconds\": 1.5", "\"lanes\": 32, \"seconds\": 1.5", GATE_PASS, ""},
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

static void try_edits(const struct edit *edits, size_t count) {
    struct pack pack;
    attn_error why = {""};
    char *path = fixture_path();
    if (CHECK_MSG(fixture_make(&pack, path, &why), "%s", why.text)) {
        for (size_t i = 0; i < count; i++) {
            try_edit(&pack, &edits[i]);
        }
        CHECK_EQ(pack_verify(path), EXIT_DONE);
    }
    pack_close(&pack);
    fixture_remove(path);
}

TEST(observations_that_are_no_pass) {
    try_edits(EDITS, sizeof EDITS / sizeof *EDITS);
}

/* ---- borderline cases ------------------------------------------------------------------------ */

#define FIGURES(max, lse)                                                                          \
    "{\"max_error\": " max ", \"max_allowed\": 0.01, \"mean_error\": 0.0001, "                     \
    "\"mean_allowed\": 0.001, \"lse_error\": " lse ", \"nans\": 0}"
#define GOOD FIGURES("0.001", "0.5")
#define FINE FIGURES("0.001", "0.25")
#define MISS FIGURES("0.03", "0.5")
#define WRONG FIGURES("0.02", "1.5")
#define RESAMPLES(error, a, b, c, d, e)                                                            \
    "\"resamples\": [" a "," b "," c "," d "," e "], \"max_error\": " error

/* attn_judge decides, here on what was recorded. */
TEST(borderline_cases) {
    static const char FIND[] = "\"max_error\": 0.001";
    static const struct edit BORDERLINE[] = {
        {"parity", "cpu", FIND, RESAMPLES("0.02", GOOD, GOOD, GOOD, GOOD, GOOD), GATE_PASS, ""},
        {"parity", "cpu", FIND, RESAMPLES("0.02", GOOD, MISS, GOOD, GOOD, GOOD), GATE_PASS, ""},
        {"parity", "cpu", FIND, RESAMPLES("0.02", GOOD, MISS, GOOD, MISS, GOOD), GATE_FAIL,
         "case 0"},
        {"parity", "cpu", FIND, RESAMPLES("0.02", GOOD, WRONG, GOOD, GOOD, GOOD), GATE_FAIL,
         "case 0"},
        {"parity", "cpu", FIND, RESAMPLES("0.05", GOOD, GOOD, GOOD, GOOD, GOOD), GATE_FAIL,
         "case 0"},
        {"parity", "cpu", FIND, RESAMPLES("null", GOOD, GOOD, GOOD, GOOD, GOOD), GATE_FAIL,
         "case 0"},
        {"parity", "cpu", FIND, "\"resamples\": [" GOOD "," GOOD "], \"max_error\": 0.02",
         GATE_FAIL, "case 0"},
        {"parity", "cuda:0", FIND, RESAMPLES("0.02", GOOD, GOOD, GOOD, GOOD, GOOD), GATE_FAIL,
         "case 0"}, /* fp16 */
    };
    try_edits(BORDERLINE, sizeof BORDERLINE / sizeof *BORDERLINE);
}

/* Edits the unit of parity on the CPU again and again, as long as there is something to edit. */
static void edit_all(const struct pack *pack, const char *find, const char *by) {
    struct fixture_edit done;
    attn_error why = {""};
    int edits = 0;
    for (; fixture_edit(pack, "parity", "cpu", find, by, &done, &why); edits++) {
        free(done.text);
    }
    CHECK(edits > 0);
}

/* Over a row: wrong results were tried on some case, and few cases are borderline. */
TEST(what_all_cases_have) {
    static const struct {
        const char *find[2], *by[2], *reason;
        enum gate gate;
    } ALL[] = {
        {{"\"impostors\": 3", "\"refused\": 3"},
         {"\"impostors\": 0", "\"refused\": 0"},
         "impostors: 0 in 40 cases",
         GATE_INVALID},
        {{"\"mean_error\": 0.0001", "\"lse_error\": 0.5"},
         {"\"mean_error\": 0.0015",
          "\"lse_error\": 0.25, \"resamples\": [" FINE "," FINE "," FINE "," FINE "," FINE "]"},
         "40 of 40 cases are borderline, expected 1 at most",
         GATE_FAIL},
    };
    for (size_t i = 0; i < sizeof ALL / sizeof *ALL; i++) {
        struct pack pack;
        attn_error why = {""};
        char *path = fixture_path();
        if (CHECK_MSG(fixture_make(&pack, path, &why), "%s", why.text)) {
            edit_all(&pack, ALL[i].find[0], ALL[i].by[0]);
            edit_all(&pack, ALL[i].find[1], ALL[i].by[1]);
            const struct judgement now = pack_verdict(&pack);
            CHECK_EQ(now.gate, ALL[i].gate);
            CHECK_CONTAINS(now.reason, ALL[i].reason);
        }
        pack_close(&pack);
        fixture_remove(path);
    }
}

/* ---- edits of what follows ------------------------------------------------------------------- */

static const struct {
    const char *find, *by;
} PUBLISHED_EDITS[] = {
    {"\"value\": 2.0", "\"value\": 1.0"},                /* a p50 */
    {"\"value\": 2.0", "\"value\": null, \"was\": 2.0"}, /* NaN */
    {"\"low\": 2.0", "\"low\": 1.0"},
    {"\"samples\": 40", "\"samples\": 400"},
    {"\"verdict\": \"PASS\"", "\"verdict\": \"FAIL\""},
    {"\"gpu_seconds\": 6", "\"gpu_seconds\": 1"},
    {"\"commit\": \"abc\"", "\"commit\": \"abd\""},
    {"\"library\": \"2", "\"library\": \"3"},
    {"\n}\n", "\n}\n\n"},
};

TEST(edits_of_what_follows) {
    struct pack pack;
    attn_error why = {""};
    char *path = fixture_path();
    if (CHECK_MSG(fixture_make(&pack, path, &why), "%s", why.text)) {
        for (size_t i = 0; i < sizeof PUBLISHED_EDITS / sizeof *PUBLISHED_EDITS; i++) {
            size_t bytes = 0;
            char *text = pack_published(&pack, EVIDENCE_FILE, &bytes, &why);
            char *edited = replaced(text, PUBLISHED_EDITS[i].find, PUBLISHED_EDITS[i].by);
            if (CHECK_MSG(edited != NULL, "no %s in %s", PUBLISHED_EDITS[i].find, text)) {
                CHECK(pack_publish(&pack, EVIDENCE_FILE, edited, strlen(edited), &why));
                CHECK_EQ(pack_verify(path), EXIT_FAILED_CHECK);
                CHECK(pack_publish(&pack, EVIDENCE_FILE, text, bytes, &why));
                CHECK_EQ(pack_verify(path), EXIT_DONE);
            }
            free(edited);
            free(text);
        }
    }
    pack_close(&pack);
    fixture_remove(path);
}

/* ---- units removed, doubled ------------------------------------------------------------------ */

TEST(a_slot_without_unit_is_not_run) {
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

/* Which of two would count? A stale one beside it does no harm. */
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

TEST_MAIN()
