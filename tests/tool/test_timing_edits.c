/* SPDX-License-Identifier: Apache-2.0
 *
 * test_timing_edits.c - proves that times which cannot be, and one problem under two names, make
 * a unit INVALID, on CPUs as on GPUs; and so do problems that are not timed in each way, or are
 * told in other words than the recorder's.
 */
#include "test.h"
#include "tool/pack/judge.h"
#include "tool/pack_fixture.h"

#include <stdlib.h>

/* What the timings of the unit on that device are judged to be. */
static struct judgement follow(const struct pack *pack, const char *device) {
    char name[SHA256_TEXT];
    attn_error why = {""};
    struct judgement judgement = {.gate = GATE_COUNT};
    struct json_value *unit =
        fixture_find(pack, "bench", device, name, &why) ? pack_read_unit(pack, name, &why) : NULL;
    const struct json_value *rows = json_at(pack->plan, "rows");
    for (size_t i = 0; unit != NULL && i < json_count_of(rows); i++) {
        const struct json_value *row = &rows->as.list.items[i];
        if (strcmp(json_text_of(json_at(row, "stage")), "bench") == 0 &&
            strcmp(json_text_of(json_at(row, "device")), device) == 0) {
            judgement.gate = GATE_PASS;
            judge_timings(row, unit, &judgement);
        }
    }
    CHECK_MSG(judgement.gate != GATE_COUNT, "%s", why.text);
    json_free(unit);
    return judgement;
}

static const struct edit {
    const char *device, *find, *by;
    enum gate gate;
    const char *reason;
} EDITS[] = {
    /* Samples: of two calls each, from 40000 ns on. */
    {"cpu", "40000", "5e-324", GATE_INVALID, "no time above 0"},
    {"cpu", "40000", "1e-300", GATE_INVALID, "no CPU needs less"},
    {"cpu", "40000", "1", GATE_INVALID, "no CPU needs less"},
    {"cpu", "40000", "150", GATE_INVALID, "no CPU needs less"}, /* 14 PFLOP/s */
    {"cpu", "40000", "400", GATE_PASS, ""},                     /* 5 PFLOP/s: who knows */
    {"cpu", "40000", "40000.5", GATE_PASS, ""},
    {"cpu", "40000", "0", GATE_INVALID, "no time above 0"},
    {"cpu", "40000", "-40000", GATE_INVALID, "no time above 0"},
    {"cpu", "40000", "null", GATE_INVALID, "no time above 0"},
    {"cpu", "40000", "\"40000\"", GATE_INVALID, "no time above 0"},
    {"cpu", "40000", "1.7e308", GATE_INVALID, "no time above 0"},
    {"cuda:0", "40000", "5e-324", GATE_INVALID, "no time above 0"},
    {"cuda:0", "40000", "400", GATE_INVALID, "no GPU needs less"},
    /* How many calls. */
    {"cpu", "\"repeats\": 2", "\"repeats\": 0", GATE_INVALID, "no number of calls"},
    {"cpu", "\"repeats\": 2", "\"repeats\": -2", GATE_INVALID, "no number of calls"},
    {"cpu", "\"repeats\": 2", "\"repeats\": 2.5", GATE_INVALID, "no number of calls"},
    {"cpu", "\"repeats\": 2", "\"repeats\": 1000000001", GATE_INVALID, "no number of calls"},
    {"cpu", "\"repeats\": 2", "\"repeats\": 9223372036854775807", GATE_INVALID,
     "no number of calls"},
    {"cpu", "\"repeats\": 2", "\"repeats\": 1000000", GATE_INVALID, "no CPU needs less"},
    /* A call that computes nothing takes its time, too. */
    {"cpu", "\"batch\": 2", "\"batch\": 0", GATE_INVALID, "timed in 1 ways, expected 2"},
    /* The problem. */
    {"cpu", "\"batch\": 2", "\"batch\": 2, \"note\": 1", GATE_INVALID, "make no sense"},
    {"cpu", "\"scale\": 0.125", "\"scale\": \"1\"", GATE_INVALID, "make no sense"},
    {"cpu", "\"alibi\": false", "\"alibi\": 0", GATE_INVALID, "make no sense"},
    {"cpu", "\"layout\": \"bhsd\"", "\"layout\": \"sbhd\"", GATE_INVALID, "make no sense"},
    {"cpu", "\"tensor_cores\": \"auto\"", "\"tensor_cores\": \"no\"", GATE_INVALID,
     "make no sense"},
    {"cpu", "\"tensor_cores\": \"auto\",", "", GATE_INVALID, "in other words"},
    {"cpu", "\"alibi\": false", "\"alibi\": true", GATE_INVALID, "timed in 1 ways"},
    {"cpu", "\"mode\": \"eager\"", "\"mode\": \"graph\"", GATE_INVALID, "expected eager on a CPU"},
    {"cpu", "\"cache\": \"warm\"", "\"cache\": \"cold\"", GATE_INVALID, "expected 1: samples"},
    /* One call in a sample of a stream, or on a cold cache. */
    {"cuda:0", "\"repeats\": 1", "\"repeats\": 2", GATE_INVALID, "repeats: 2, expected 1"},
    {"cuda:0", "\"repeats\": 2", "\"repeats\": 1", GATE_PASS, ""},
    {"cuda:0", "\"taken\": 40", "\"taken\": 40, \"tflops\": 990", GATE_INVALID,
     "a timing has no 'tflops'"},
    /* The second timing of the GPU is in the other mode; so they become the same but for a word. */
    {"cuda:0", "\"mode\": \"eager\"", "\"mode\": \"graph\"", GATE_INVALID, "are of the same"},
};

TEST(what_cannot_be_is_invalid) {
    struct pack pack;
    attn_error why = {""};
    char *path = fixture_path();
    const bool made = CHECK_MSG(fixture_make(&pack, path, &why), "%s", why.text);
    for (size_t i = 0; made && i < sizeof EDITS / sizeof *EDITS; i++) {
        const struct edit *edit = &EDITS[i];
        struct fixture_edit done;
        if (!CHECK_MSG(
                fixture_edit(&pack, "bench", edit->device, edit->find, edit->by, &done, &why),
                "%zu: %s", i, why.text)) {
            break;
        }
        const struct judgement judgement = follow(&pack, edit->device);
        CHECK_MSG(judgement.gate == edit->gate && strstr(judgement.reason, edit->reason) != NULL,
                  "%s, %s for %s: gate %d, '%s'", edit->device, edit->by, edit->find,
                  (int)judgement.gate, judgement.reason);
        CHECK_MSG(fixture_restore(&pack, &done, &why), "%s", why.text);
    }
    pack_close(&pack);
    fixture_remove(path);
}

/* Both timings of the GPU are of one mode, and the first says its problem otherwise. */
static const struct words {
    const char *find, *by, *reason;
} WORDS[] = {
    {"\"scale\": 0.125", "\"scale\": 0.125", "are of the same"},
    {"\"window_left\": -1", "\"window_left\": 4096", "are of the same"},
    {"\"scale\": 0.125", "\"scale\": null", "in other words"},
    {"\"scale\": 0.125,", "", "in other words"},
    {"\"layout\": \"bhsd\",", "", "in other words"},
    {"\"sink\": false,", "", "in other words"},
    {"\"softcap\": 0,", "", "in other words"},
    {"\"softcap\": 0", "\"softcap\": -0.0", "are of the same"},
    {"\"scale\": 0.125", "\"scale\": 0.25", "ways, expected 6"},
    {"\"softcap\": 0", "\"softcap\": 30", "ways, expected 6"},
    {"\"sink\": false", "\"sink\": true", "ways, expected 6"},
    {"\"bias\": false,", "\"bias\": false, \"mask\": true,", "ways, expected 6"},
    {"\"bias\": false,", "\"bias\": false, \"mask\": false,", "in other words"},
    {"\"layout\": \"bhsd\"", "\"layout\": \"bshd\"", "ways, expected 6"},
    {"\"window_left\": -1", "\"window_left\": 64", "ways, expected 6"},
};

TEST(one_problem_has_one_timing) {
    struct pack pack;
    attn_error why = {""};
    struct fixture_edit mode;
    char *path = fixture_path();
    const bool made = CHECK_MSG(fixture_make(&pack, path, &why), "%s", why.text) &&
                      CHECK_MSG(fixture_edit(&pack, "bench", "cuda:0", "\"mode\": \"eager\"",
                                             "\"mode\": \"graph\"", &mode, &why),
                                "%s", why.text);
    for (size_t i = 0; made && i < sizeof WORDS / sizeof *WORDS; i++) {
        struct fixture_edit done;
        if (!CHECK_MSG(
                fixture_edit(&pack, "bench", "cuda:0", WORDS[i].find, WORDS[i].by, &done, &why),
                "%s", why.text)) {
            break;
        }
        const struct judgement judgement = follow(&pack, "cuda:0");
        CHECK_MSG(judgement.gate == GATE_INVALID &&
                      strstr(judgement.reason, WORDS[i].reason) != NULL,
                  "%s: gate %d, '%s'", WORDS[i].by, (int)judgement.gate, judgement.reason);
        CHECK_MSG(fixture_restore(&pack, &done, &why), "%s", why.text);
    }
    if (made) {
        free(mode.text);
    }
    pack_close(&pack);
    fixture_remove(path);
}

TEST_MAIN()
