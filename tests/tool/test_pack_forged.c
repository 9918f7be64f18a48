/* SPDX-License-Identifier: Apache-2.0
 *
 * test_pack_forged.c - proves that what a unit names beside itself is held against it: logs and the
 * state of what was timed are changed, dropped or taken from elsewhere, with every hash recomputed;
 * and that units which contradict each other cost the verdict.
 */
#include "test.h"
#include "tool/base/message.h"
#include "tool/pack/evidence.h"
#include "tool/pack/parts.h"
#include "tool/pack/row.h"
#include "tool/pack_fixture.h"
#include "tool/pack_verdict.h"

#include <stdlib.h>

static void expect(const struct pack *pack, enum gate gate, const char *reason, const char *what) {
    const struct judgement now = pack_verdict(pack);
    CHECK_MSG(now.gate == gate && strstr(now.reason, reason) != NULL, "%s: gate %d: %s", what,
              (int)now.gate, now.reason);
}

#define FIGURES                                                                                    \
    "{\"max_error\": 0.001, \"max_allowed\": 0.01, \"mean_error\": 0.0002, "                       \
    "\"mean_allowed\": 0.001, \"lse_error\": 0.125, \"nans\": 0}"

/* ---- artifacts ------------------------------------------------------------------------------- */

static const struct edit {
    const char *stage, *device, *find, *by;
    enum gate gate;
    const char *reason;
} EDITS[] = {
    /* what was timed */
    {"bench", "cuda:0", "\"variant\": \"fwd_gpu\"", "\"variant\": \"fwd_other\"", GATE_INVALID,
     "variant: 'fwd_other' in the state, expected that of the unit"},
    {"bench", "cuda:0", "\"seed\": \"0", "\"seed\": \"1", GATE_INVALID, "seed: '1123456789abcdef'"},
    {"bench", "cuda:0", "\"image\": \"1", "\"image\": \"9", GATE_INVALID, "image: '9111"},
    {"bench", "cuda:0", "B2 H8", "B9 H8", GATE_INVALID, "the state tells of 'fp16 B9 H8"},
    {"bench", "cuda:0", "\"mode\": \"eager\"", "\"mode\": \"graph\"", GATE_INVALID,
     "timing 0: the state tells of"},
    {"bench", "cuda:0", "\"cache\": \"cold\"", "\"cache\": \"warm\"", GATE_INVALID,
     "the state tells of"},
    {"bench", "cuda:0", "\"sleep_read_ns\": 1001", "\"sleep_read_ns\": 1", GATE_INVALID,
     "timing 0: sleep_read_ns: 1000, expected 1e+06"},
    {"bench", "cuda:0", "\"sleep_asked_ns\": 1000000", "\"sleep_asked_ns\": 1", GATE_INVALID,
     "sleep_read_ns"},
    {"bench", "cuda:0", "\"words_differing\": 0", "\"words_differing\": 4711", GATE_INVALID,
     "timing 0: words_differing: 4711"},
    {"bench", "cuda:0", "\"words_differing\": 0", "\"words_different\": 0", GATE_INVALID,
     "a row of the state has no 'words_different'"},
    {"bench", "cuda:0", "\"sm_clock_mhz_least\": 1980", "\"sm_clock_mhz_least\": 345", GATE_INVALID,
     "sm_clock_mhz_least: 1980, expected 345"},
    {"bench", "cuda:0", "\"clock_reasons\": 0", "\"clock_reasons\": 64", GATE_INVALID,
     "clock_reasons: 0, expected 64"},
    {"bench", "cuda:0", "\"device_name\": \"Fixture GPU\"", "\"device_name\": \"NVIDIA GB300\"",
     GATE_INVALID, "timed on 'NVIDIA GB300, sm_90'"},
    {"bench", "cuda:0", "\"arch\": \"sm_90\"", "\"arch\": \"sm_9\"", GATE_INVALID, "timed on"},
    {"bench", "cuda:0", "attest-bench-state/2", "attest-bench-state/3", GATE_INVALID,
     "0 artifacts tell how it was timed, expected one"},
    {"bench", "cuda:0", "\"nvml\": ", "\"verdict\": \"PASS\", \"nvml\": ", GATE_INVALID,
     "a state has no 'verdict'"},
    {"bench", "cuda:0", "\"rows\": [", "\"rows\": [{}, ", GATE_INVALID,
     "the state tells of 43 timings, expected 42"},
    {"bench", "cuda:0", "\"nvml\": ",
     "\"peers\": \"1111111111111111111111111111111111111111111111111111111111111111\", \"nvml\": ",
     GATE_INVALID, "peers: 111111111111 in the state, expected none of the artifacts"},
    {"bench", "cuda:0", "\"uuid\": \"GPU-1\"", "\"uuid\": 1", GATE_INVALID,
     "gpu: uuid: expected a text or null"},
    {"bench", "cuda:0", "\"gpu\": {", "\"cache_bytes\": {", GATE_INVALID,
     "gpu: none in the state, expected what it is called"},
    {"bench", "cuda:0", "\"nvml\": \"present\"", "\"nvml\": \"no libnvidia-ml.so.1\"", GATE_INVALID,
     "gpu: one in the state, expected none"},
    {"bench", "cpu", "\"nvml\": null", "\"nvml\": \"present\"", GATE_INVALID,
     "gpu: none in the state"},
    {"bench", "cuda:0", "\"name\": \"Fixture GPU\"", "\"name\": \"Fixture GP\"", GATE_INVALID,
     "gpu: name: 'Fixture GP', expected 'Fixture GPU' of device_name"},
    {"bench", "cuda:0", "\"name\": \"Fixture GPU\"", "\"name\": \"Fixture\"", GATE_PASS, ""},
    {"bench", "cuda:0", "\"uuid\": \"GPU-1\"", "\"uuid\": null", GATE_PASS, ""}, /* the only one */
    {"bench", "cuda:0", "\"nvml\": ", "\"peers\": \"no PyTorch\", \"nvml\": ", GATE_PASS, ""},
    /* machine code */
    {"inspect", "sm_90", "0 bytes stack frame", "640 bytes stack frame", GATE_INVALID,
     "stack_bytes: 0, and ptxas said 640"},
    {"inspect", "sm_90", "used 1 barriers", "used 2 barriers", GATE_INVALID,
     "barriers: 1, and ptxas said 2"},
    {"inspect", "sm_90", "1024 bytes smem", "9999 bytes smem", GATE_INVALID, "ptxas said 9999"},
    {"inspect", "sm_90", "STACK:0", "STACK:512", GATE_INVALID,
     "cuobjdump_stack_bytes: 0, and cuobjdump said 512"},
    {"inspect", "sm_90", "REG:168", "REG:2", GATE_INVALID, "cuobjdump said 2"},
    {"inspect", "sm_90", "Function fwd_gpu:", "Function fwd_other:", GATE_INVALID,
     "what cuobjdump printed of this image is not there"},
    /* ncu */
    {"profile", "cuda:0", "target: fwd_gpu", "==ERROR== code (1)\ntarget: fwd_gpu", GATE_INVALID,
     "it has a line ==ERROR=="},
    {"profile", "cuda:0", "target: fwd_gpu", "target: fwd_gpu: error 3 of 0.1\ntarget: fwd_gpu",
     GATE_INVALID, "what ncu printed: error 3 of 0.1"},
    /* compute-sanitizer: first that of a tool that has the words */
    {"sanitize", "cuda:0", "fwd_gpu: 4 launches verified", "fwd_gpu: 0 launches verified",
     GATE_INVALID, "expected launches that were verified"},
    {"sanitize", "cuda:0", "fwd_gpu: 4 launches verified", "fwd_gpu: not launched, out of memory",
     GATE_INVALID, "not launched"},
    {"sanitize", "cuda:0", "target: variant fwd_gpu: 4 launches verified\n", "", GATE_INVALID,
     "0 lines are about it"},
    {"sanitize", "cuda:0", "target: variant fwd_gpu",
     "target: variant fwd_new: 4 launches verified\ntarget: variant fwd_gpu", GATE_INVALID,
     "variants: 2 were verified one by one, expected 1"},
    {"sanitize", "cuda:0", "target: tool ", "target: tool other\ntarget: tool ", GATE_INVALID,
     "which it must name once"},
    {"sanitize", "cuda:0", "at fwd_gpu", "at other_kernel in fwd_gpu", GATE_PASS, ""}, /* once */
};

TEST(edits_of_artifacts) {
    struct pack pack;
    attn_error why = {""};
    char *path = fixture_path();
    const bool made = CHECK_MSG(fixture_make(&pack, path, &why), "%s", why.text);
    for (size_t i = 0; made && i < sizeof EDITS / sizeof *EDITS; i++) {
        const struct edit *edit = &EDITS[i];
        struct fixture_edit done;
        if (CHECK_MSG(fixture_edit_artifact(&pack, edit->stage, edit->device, edit->find, edit->by,
                                            &done, &why),
                      "%s", why.text)) {
            expect(&pack, edit->gate, edit->reason, edit->by);
            CHECK_MSG(fixture_restore(&pack, &done, &why), "%s", why.text);
        }
    }
    if (made) {
        expect(&pack, GATE_PASS, "", "restored");
    }
    pack_close(&pack);
    fixture_remove(path);
}

/* The name of another kernel in each line that says where; the variant's stands elsewhere. */
TEST(a_fault_in_another_kernel) {
    struct pack pack;
    attn_error why = {""};
    char *path = fixture_path();
    struct fixture_edit done = {.text = NULL};
    if (CHECK_MSG(fixture_make(&pack, path, &why), "%s", why.text)) {
        bool edited = true;
        for (int i = 0; edited; i++) { /* all of memcheck's */
            edited = fixture_edit_artifact(&pack, "sanitize", "cuda:0", "at fwd_gpu+",
                                           "in fwd_gpu at other+", &done, &why);
            if (edited) {
                free(done.text);
            } else {
                CHECK(i > 3);
            }
        }
        expect(&pack, GATE_INVALID, "none of them in the planted kernel", "another kernel");
    }
    pack_close(&pack);
    fixture_remove(path);
}

/* A byte of 0 ends a line for who reads it as text, and hides what stands behind it. */
TEST(a_log_that_is_no_text) {
    struct pack pack;
    attn_error why = {""};
    struct fixture_edit done = {.text = NULL};
    char *path = fixture_path(), unit[SHA256_TEXT], new[SHA256_TEXT];
    size_t bytes = 0;
    if (CHECK_MSG(fixture_make(&pack, path, &why) &&
                      fixture_find(&pack, "sanitize", "cuda:0", unit, &why),
                  "%s", why.text)) {
        struct json_value *value = pack_read_unit(&pack, unit, &why);
        const struct json_value *logs = json_at(value, "logs");
        const char *old = json_text_of(json_at(json_at(&logs->as.list.items[0], "subject"), "log"));
        char *text = pack_read(&pack, PACK_ARTIFACTS, old, &bytes, &why);
        char *place = text != NULL ? strstr(text, "ERROR SUMMARY: 0") : NULL;
        if (CHECK(place != NULL)) {
            place[-1] = '\0';
            CHECK_MSG(pack_add_artifact(&pack, text, bytes, new, &why) &&
                          fixture_edit(&pack, "sanitize", "cuda:0", old, new, &done, &why),
                      "%s", why.text);
            expect(&pack, GATE_INVALID, "memcheck: the log holds a byte of 0", "a byte of 0");
        }
        free(done.text);
        free(text);
        json_free(value);
    }
    pack_close(&pack);
    fixture_remove(path);
}

/* Two prints of ncu, of which one says that it went wrong. */
TEST(two_prints_of_ncu) {
    struct pack pack;
    attn_error why = {""};
    struct fixture_edit done = {.text = NULL};
    char *path = fixture_path(), name[SHA256_TEXT], list[SHA256_TEXT + 32];
    if (CHECK_MSG(fixture_make(&pack, path, &why), "%s", why.text)) {
        CHECK(pack_add_artifact(&pack, "==ERROR== x\n", 12, name, &why));
        for (int i = 0; i < 2; i++) { /* before the other, and behind it */
            snprintf(list, sizeof list,
                     i == 0 ? "\"artifacts\": [\"%s\"," : ", \"%s\"], \"controls\"", name);
            CHECK_MSG(fixture_edit(&pack, "profile", "cuda:0",
                                   i == 0 ? "\"artifacts\": [" : "],\n  \"controls\"", list, &done,
                                   &why),
                      "%s", why.text);
            expect(&pack, GATE_INVALID, "it has a line ==ERROR==", "a second print");
            CHECK_MSG(fixture_restore(&pack, &done, &why), "%s", why.text);
        }
    }
    pack_close(&pack);
    fixture_remove(path);
}

TEST(too_many_artifacts) {
    struct pack pack;
    attn_error why = {""};
    struct fixture_edit done = {.text = NULL};
    char *path = fixture_path(), list[17 * (SHA256_TEXT + 4) + 32] = "\"artifacts\": [";
    if (CHECK_MSG(fixture_make(&pack, path, &why), "%s", why.text)) {
        char name[SHA256_TEXT];
        CHECK(pack_add_artifact(&pack, "x", 1, name, &why));
        for (int i = 0; i < 17; i++) {
            const size_t used = strlen(list);
            snprintf(list + used, sizeof list - used, "%s\"%s\"", i > 0 ? ", " : "", name);
        }
        CHECK_MSG(fixture_edit(&pack, "parity", "cuda:0", "\"artifacts\": [", list, &done, &why),
                  "%s", why.text);
        expect(&pack, GATE_INVALID, "17 artifacts, expected 16 at most", "17 artifacts");
        free(done.text);
    }
    pack_close(&pack);
    fixture_remove(path);
}

/* Edits what the tools printed of the machine code, as long as there is something to edit. */
static void edit_all_artifacts(const struct pack *pack, const char *find, const char *by) {
    struct fixture_edit done;
    attn_error why = {""};
    while (fixture_edit_artifact(pack, "inspect", "sm_90", find, by, &done, &why)) {
        free(done.text);
    }
}

/* A kernel of a family with matrix instructions has some, whatever its unit calls it. */
TEST(a_matrix_kernel_that_is_called_plain) {
    static const char *const EDITS_OF[][2] = {
        {"\"tensor_cores\": 1", "\"tensor_cores\": 0"},
        {"\"tensor_demand\": 16", "\"tensor_demand\": 0"},
        {"\"tensor_ops\": 32", "\"tensor_ops\": 0"},
        {"\"budget_tensor_ops\": 16", "\"budget_tensor_ops\": 0"}};
    static const struct {
        const char *variant;
        enum gate gate;
    } VARIANTS[] = {
        {"fwd_mma_x", GATE_FAIL}, {"fwd_hopper_x", GATE_FAIL}, {"fwd_scalar_x", GATE_PASS}};
    for (size_t i = 0; i < sizeof VARIANTS / sizeof *VARIANTS; i++) {
        struct pack pack;
        attn_error why = {""};
        struct fixture_edit done = {.text = NULL};
        char *path = fixture_path(), name[SHA256_TEXT], by[64];
        if (CHECK_MSG(fixture_make(&pack, path, &why), "%s", why.text)) {
            edit_all_artifacts(&pack, "fwd_gpu", VARIANTS[i].variant);
            for (size_t k = 0; k < sizeof EDITS_OF / sizeof *EDITS_OF; k++) {
                CHECK_MSG(fixture_edit(&pack, "inspect", "sm_90", EDITS_OF[k][0], EDITS_OF[k][1],
                                       &done, &why),
                          "%s", why.text);
                free(done.text);
            }
            snprintf(by, sizeof by, "\"variant\": \"%s\"", VARIANTS[i].variant);
            CHECK_MSG(fixture_edit(&pack, "inspect", "sm_90", "\"variant\": \"fwd_gpu\"", by, &done,
                                   &why),
                      "%s", why.text);
            free(done.text);
            snprintf(name, sizeof name, "%s", done.name);
            struct json_value *unit = pack_read_unit(&pack, name, &why);
            const struct judgement now = judge_unit(&pack, NULL, unit);
            CHECK_MSG(now.gate == VARIANTS[i].gate, "%s: gate %d: %s", by, (int)now.gate,
                      now.reason);
            CHECK_CONTAINS(now.reason, now.gate == GATE_PASS ? "" : "tensor_ops: 0");
            json_free(unit);
        }
        pack_close(&pack);
        fixture_remove(path);
    }
}

/* ---- several at once ------------------------------------------------------------------------- */

/* Edits the unit of a stage again and again, as long as there is something to edit. */
static void edit_all(const struct pack *pack, const char *stage, const char *device,
                     const char *find, const char *by) {
    struct fixture_edit done;
    attn_error why = {""};
    int edits = 0;
    for (; fixture_edit(pack, stage, device, find, by, &done, &why); edits++) {
        free(done.text);
    }
    CHECK(edits > 0);
}

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
         {"\"mean_error\": 0.0015", "\"lse_error\": 0.25, \"resamples\": [" FIGURES "," FIGURES
                                    "," FIGURES "," FIGURES "," FIGURES "]"},
         "40 of 40 cases are borderline, expected 1 at most",
         GATE_FAIL},
    };
    for (size_t i = 0; i < sizeof ALL / sizeof *ALL; i++) {
        struct pack pack;
        attn_error why = {""};
        char *path = fixture_path();
        if (CHECK_MSG(fixture_make(&pack, path, &why), "%s", why.text)) {
            edit_all(&pack, "parity", "cpu", ALL[i].find[0], ALL[i].by[0]);
            edit_all(&pack, "parity", "cpu", ALL[i].find[1], ALL[i].by[1]);
            expect(&pack, ALL[i].gate, ALL[i].reason, ALL[i].find[0]);
        }
        pack_close(&pack);
        fixture_remove(path);
    }
}

/* A unit of few cases may have had none to try an impostor on; a row may not, and be it of one. */
TEST(a_row_without_impostors) {
    static const struct {
        const char *unit, *reason;
        enum gate gate;
    } ROWS[] = {{"{\"cases\": [{\"impostors\": 0}]}", "impostors: 0 in 1 cases", GATE_INVALID},
                {"{\"cases\": [{\"impostors\": 1}]}", "", GATE_PASS},
                {"{\"cases\": []}", "", GATE_PASS}};
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        attn_error why = {""};
        struct json_value *unit = json_read(ROWS[i].unit, strlen(ROWS[i].unit), &why);
        const struct json_value *const units[] = {unit};
        struct judgement judgement = {.gate = GATE_PASS};
        CHECK_MSG(unit != NULL, "%s", why.text);
        judge_impostors(1, 4, count_impostors(unit), &judgement);
        CHECK_EQ(judgement.gate, GATE_PASS);
        judge_row(NULL, units, 1, &judgement);
        CHECK_EQ(judgement.gate, ROWS[i].gate);
        CHECK_CONTAINS(judgement.reason, ROWS[i].reason);
        json_free(unit);
    }
    struct judgement judgement = {.gate = GATE_PASS};
    judge_impostors(4, 4, 0, &judgement);
    CHECK_EQ(judgement.gate, GATE_INVALID);
}

/* Two units of a row, of which one was timed elsewhere. */
TEST(times_of_two_gpus) {
    struct pack pack;
    attn_error why = {""};
    struct fixture_edit done = {.text = NULL};
    struct judgement judgement = {.gate = GATE_PASS};
    char *path = fixture_path(), name[SHA256_TEXT];
    if (CHECK_MSG(fixture_make(&pack, path, &why) &&
                      fixture_find(&pack, "bench", "cuda:0", name, &why),
                  "%s", why.text)) {
        struct json_value *one = pack_read_unit(&pack, name, &why);
        CHECK_MSG(fixture_edit_artifact(&pack, "bench", "cuda:0", "GPU-1", "GPU-2", &done, &why),
                  "%s", why.text);
        struct json_value *two = pack_read_unit(&pack, done.name, &why);
        const struct json_value *same[] = {one, one}, *others[] = {one, two};
        judge_row(&pack, same, 2, &judgement);
        CHECK_EQ(judgement.gate, GATE_PASS);
        judge_row(&pack, others, 2, &judgement);
        CHECK_EQ(judgement.gate, GATE_INVALID);
        CHECK_CONTAINS(judgement.reason, "uuid: GPU-2 in the state of fwd_gpu, expected GPU-1");
        free(done.text);
        CHECK_MSG(fixture_edit_artifact(&pack, "bench", "cuda:0", "\"GPU-2\"", "null", &done, &why),
                  "%s", why.text);
        struct json_value *silent = pack_read_unit(&pack, done.name, &why);
        for (int i = 0; i < 2; i++) { /* one that does not say is none of them */
            const struct json_value *pair[] = {i == 0 ? one : silent, i == 0 ? silent : one};
            judgement = (struct judgement){.gate = GATE_PASS};
            judge_row(&pack, pair, 2, &judgement);
            CHECK_EQ(judgement.gate, GATE_INVALID);
            CHECK_CONTAINS(judgement.reason, i == 0 ? "expected GPU-1" : "expected none");
        }
        json_free(silent);
        json_free(one);
        json_free(two);
        free(done.text);
    }
    pack_close(&pack);
    fixture_remove(path);
}

/* Samples of another timing: of the same variant, and of another one; the last sample of a timing
 * is 40390 and its number, 50 and more on the CPU. */
TEST(samples_that_were_copied) {
    static const struct {
        const char *find, *by, *reason;
    } COPIES[] = {
        {"40441", "40440", "timing 1 of fwd_cpu: its samples ns are those of timing 0 of fwd_cpu"},
        {"40440", "40395", "timing 5 of fwd_gpu: its samples ns are those of timing 0 of fwd_cpu"},
    };
    struct pack pack;
    attn_error why = {""};
    char *path = fixture_path();
    const bool made = CHECK_MSG(fixture_make(&pack, path, &why), "%s", why.text);
    for (size_t i = 0; made && i < sizeof COPIES / sizeof *COPIES; i++) {
        struct fixture_edit done = {.text = NULL};
        if (CHECK_MSG(
                fixture_edit(&pack, "bench", "cpu", COPIES[i].find, COPIES[i].by, &done, &why),
                "%s", why.text)) {
            expect(&pack, GATE_INVALID, COPIES[i].reason, "the same samples");
            CHECK_MSG(fixture_restore(&pack, &done, &why), "%s", why.text);
        }
    }
    pack_close(&pack);
    fixture_remove(path);
}

/* A coarse clock gives the same few values again and again: that is no copy. */
TEST(samples_that_are_alike_by_chance) {
    static const struct {
        const char *ns;
        enum gate gate;
    } LISTS[] = {
        {"1000, 1000, 1000, 1000, 1000, 1000, 1000, 1000, 1000, 1000, 1000, 1000", GATE_PASS},
        {"1000, 2000, 1000, 1000, 1000, 1000, 1000, 1000, 1000, 2000, 1000, 3000", GATE_PASS},
        {"1000, 2000, 3000, 1000, 2000, 3000, 1000, 2000, 3000, 2000, 1000, 3000", GATE_INVALID},
        {"1001, 1002, 1003, 1004, 1005, 1006, 1007", GATE_PASS},
        {"1001, 1002, 1003, 1004, 1005, 1006, 1007, 1008", GATE_INVALID},
    };
    for (size_t i = 0; i < sizeof LISTS / sizeof *LISTS; i++) {
        char text[512];
        attn_error why = {""};
        struct judgement judgement = {.gate = GATE_PASS};
        snprintf(text, sizeof text,
                 "{\"stage\": \"bench\", \"variant\": \"v\", \"timings\": [{\"ns\": [%s]}]}",
                 LISTS[i].ns);
        struct json_value *unit = json_read(text, strlen(text), &why);
        const struct json_value *const units[] = {unit, unit};
        CHECK_MSG(unit != NULL, "%s", why.text);
        judge_repeated_samples(units, 2, &judgement);
        CHECK_MSG(judgement.gate == LISTS[i].gate, "%s: gate %d", LISTS[i].ns, (int)judgement.gate);
        json_free(unit);
    }
}

TEST_MAIN()
