/* SPDX-License-Identifier: Apache-2.0
 *
 * test_pack_plan.c - proves that a plan cannot be cut to what was done: less work, other devices or
 * images, variants left out; and that a pack of another library is not current.
 */
#include "attn_inspect.h"
#include "test.h"
#include "tool/base/message.h"
#include "tool/cli/verbs.h"
#include "tool/pack/current.h"
#include "tool/pack/evidence.h"
#include "tool/pack/plan.h"
#include "tool/pack_fixture.h"
#include "tool/pack_verdict.h"
#include "tool/run/plan.h"

#include <stdlib.h>

#define ONES "1111111111111111111111111111111111111111111111111111111111111111"
#define NINES "9999999999999999999999999999999999999999999999999999999999999999"

/* ---- absence --------------------------------------------------------------------------------- */

/* A quick run may lack what nobody named: `asked` says whether, and the request does. */
TEST(what_was_asked_for_by_name) {
    static const struct {
        const char *asked, *stages, *devices, *there;
        bool by_name;
    } ROWS[] = {
        {"", "", "", "null", false},
        {"\"asked\": false, ", "", "", "null", false},
        {"\"asked\": true, ", "", "", "null", true},
        {"\"asked\": false, ", "\"sanitize\"", "", "null", true},
        {"", "\"sanitize\"", "", "null", true},
        {"\"asked\": false, ", "\"parity\"", "", "null", false}, /* done on the CPU */
        {"\"asked\": false, ", "", "\"cuda:0\"", "null", true},
        {"\"asked\": false, ", "", "\"cuda:0\"", "\"a GPU, sm_90\"", false}, /* the tool is not */
    };
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        char plan[2048];
        attn_error why = {""};
        snprintf(
            plan, sizeof plan,
            "{\"mode\": \"quick\", \"tool\": \"0\", \"library\": \"" ONES "\", "
            "\"seed\": \"0123456789abcdef\", \"environment\": {\"devices\": {\"cuda:0\": %s}}, "
            "\"request\": {\"stages\": [%s], \"devices\": [%s]}, \"variants\": [{\"name\": "
            "\"fwd_cpu\", \"device\": \"cpu\", \"cubins\": []}], \"rows\": ["
            "{\"stage\": \"sanitize\", \"device\": \"cuda:0\", %s\"absent\": \"no tool\", "
            "\"subjects\": []}, {\"stage\": \"parity\", \"device\": \"cpu\", "
            "\"absent\": null, \"subjects\": []}]}",
            ROWS[i].there, ROWS[i].stages, ROWS[i].devices, ROWS[i].asked);
        struct json_value *value = json_read(plan, strlen(plan), &why);
        if (CHECK_MSG(value != NULL && plan_check(value, &why), "%zu: %s", i, why.text)) {
            CHECK_MSG(plan_asks_for(value, 0) == ROWS[i].by_name, "row %zu", i);
        }
        json_free(value);
    }
}

/* Each cubin is looked for among all subjects. */
TEST(too_many_cubins) {
    enum { CUBINS = 8193 };
    char *text = NULL;
    size_t bytes = 0;
    attn_error why = {""};
    FILE *out = open_memstream(&text, &bytes);
    if (!CHECK(out != NULL)) {
        return;
    }
    for (int i = 0; i < CUBINS; i++) {
        fprintf(out, "\"%064x\", ", i);
    }
    fclose(out);
    char *by = malloc(bytes + 32);
    if (CHECK(by != NULL)) {
        snprintf(by, bytes + 32, "\"cubins\": [%s", text);
        char *plan = replaced(fixture_plan(), "\"cubins\": [", by);
        struct json_value *value = json_read(plan, strlen(plan), &why);
        CHECK_MSG(value != NULL && !plan_check(value, &why), "%s", why.text);
        CHECK_CONTAINS(why.text, "8194 cubins, expected 8192 at most");
        json_free(value);
        free(plan);
    }
    free(by);
    free(text);
}

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
    {"\"variant\": \"fwd_gpu\"", "\"variant\": \"fwd_new\"", GATE_INVALID, "no such variant"},
    {"\"image\": \"1", "\"image\": \"9", GATE_INVALID, "leaves out cubin 111111111111 of fwd_gpu"},
    {"\"cubins\": [\"1", "\"cubins\": [\"9", GATE_INVALID, "leaves out cubin 9"},
    {"\"cubins\": [\"1", "\"cubins\": [\"x", GATE_COUNT, "cubins"},
    {"\"variants\": [",
     "\"variants\": [{\"name\": \"fwd_slow\", \"device\": \"cuda\", "
     "\"cubins\": []}, ",
     GATE_INVALID, "emulate on vgpu: the plan leaves out fwd_slow"},
    {"\"variants\": [",
     "\"variants\": [{\"name\": \"cpu_old\", \"device\": \"cpu\", "
     "\"cubins\": []}, ",
     GATE_INVALID, "parity on cpu: the plan leaves out cpu_old"},
    {"\"variants\": [",
     "\"variants\": [{\"name\": \"fwd_cpu\", \"device\": \"cpu\", "
     "\"cubins\": []}, ",
     GATE_COUNT, "a name of its own"},
    {"\"variants\": [", "\"variants\": [], \"other\": [", GATE_COUNT, "those of the library"},
    {"\"request\": {", "\"request\": [], \"other\": {", GATE_COUNT, "what was asked for"},
    {"\"name\": \"fwd_gpu\"", "\"name\": \"fwd_gone\"", GATE_INVALID, "fwd_g"},
    {"\"library\": \"2", "\"library\": \"9", GATE_STALE, "another build"},
    {"\"seed\": \"0", "\"seed\": \"9", GATE_STALE, "another build"},
    {"\"absent\": null", "\"absent\": \"no GPU\"", GATE_INVALID, "absent, and yet"},
    {"\"stage\": \"inspect\", \"device\": \"sm_90\"",
     "\"stage\": \"emulate\", \"device\": \"vgpu\"", GATE_COUNT, "are in another one"},
    {"\"stage\": \"inspect\"", "\"stage\": \"look\"", GATE_COUNT, "expected a stage"},
    {"\"stage\": \"inspect\", \"device\": \"sm_90\"",
     "\"stage\": \"inspect\", \"device\": \"sm_80\"", GATE_INVALID,
     "image 111111111111 on cuda:0 is for sm_80"},
    {"\"mode\": \"full\"", "\"mode\": \"lax\"", GATE_COUNT, "expected quick or full"},
    {"\"seed\": \"0123456789abcdef\"", "\"seed\": 1", GATE_COUNT, "seed"},
    {"\"subjects\": [", "\"subjects\": [{\"variant\": \"fwd_gpu\", \"image\": null}, ", GATE_COUNT,
     "expected a variant of its own"},
    {"\"image\": null", "\"image\": \"none\"", GATE_COUNT, "expected a variant"},
    /* devices that are none, or none for that */
    {"\"device\": \"cuda:0\"", "\"device\": \"gpu0\"", GATE_COUNT, "parity is not done on 'gpu0'"},
    {"\"device\": \"cuda:0\"", "\"device\": \"cuda:00\"", GATE_COUNT, "not done on 'cuda:00'"},
    {"\"device\": \"cuda:0\"", "\"device\": \"cuda\"", GATE_COUNT, "not done on 'cuda'"},
    {"\"device\": \"cuda:0\"", "\"device\": \"vgpu\"", GATE_COUNT, "parity is not done on 'vgpu'"},
    {"\"device\": \"vgpu\"", "\"device\": \"cuda:0\"", GATE_COUNT, "emulate is not done on"},
    {"\"device\": \"sm_90\"", "\"device\": \"cubins\"", GATE_COUNT, "inspect is not done on"},
    {"\"device\": \"sm_90\"", "\"device\": \"sm_90ax\"", GATE_COUNT, "inspect is not done on"},
    {"\"stage\": \"sanitize\", \"device\": \"cuda:0\"",
     "\"stage\": \"sanitize\", \"device\": \"cpu\"", GATE_COUNT, "sanitize is not done on 'cpu'"},
    /* images */
    {"\"image\": \"" ONES "\"}]},{\"stage\": \"bench\"", "\"image\": null}]},{\"stage\": \"bench\"",
     GATE_COUNT, "the image of it"},
    {"\"image\": null", "\"image\": \"" ONES "\"", GATE_COUNT, "image null"},
    {"\"image\": \"" ONES "\"}]},{\"stage\": \"profile\"",
     "\"image\": \"" NINES "\"}]},{\"stage\": \"profile\"", GATE_INVALID,
     "fwd_gpu has several images on cuda:0"},
    /* what the library chooses is profiled */
    {"\"chosen\": [\"cuda:0\"]", "\"chosen\": []", GATE_INVALID, "does not choose fwd_gpu"},
    {"\"chosen\": [\"cuda:0\"]", "\"chosen\": true", GATE_COUNT, "on which it is chosen"},
    {"\"chosen\": [\"cuda:0\"]", "\"chosen\": [\"gpu\"]", GATE_COUNT, "on which it is chosen"},
    {"\"cubins\": []}", "\"cubins\": [], \"chosen\": [\"cuda:0\"]}", GATE_INVALID,
     "profile on cuda:0: the plan leaves out fwd_cpu"},
    /* a request in a form that nobody reads */
    {"\"variant\": null", "\"variant\": [\"x\"]", GATE_COUNT, "a text or null"},
    {"\"variant\": null", "\"variant\": 1", GATE_COUNT, "a text or null"},
    {"\"stages\": []", "\"stages\": {}", GATE_COUNT, "lists stages"},
    {"\"devices\": []", "\"devices\": [1]", GATE_COUNT, "lists stages"},
    {"\"rows\": [", "\"rows\": 1, \"other\": [", GATE_COUNT, "at least one"},
    /* what a device is, and on which one something was done */
    {"\"cuda:0\": \"Fixture GPU", "\"cuda:1\": \"Fixture GPU", GATE_INVALID,
     "expected '' of the plan"},
    {"\"cuda:0\": \"Fixture GPU", "\"cuda:0\": \"NVIDIA L4", GATE_INVALID, "timed on 'Fixture GPU"},
    {"\"environment\": {\"devices\"", "\"environment\": {\"others\"", GATE_INVALID,
     "expected '' of the plan"},
    {"sm_90, 132", "sm_89, 58", GATE_INVALID, "timed on 'Fixture GPU, sm_90'"},
    {"\"image\": \"" ONES "\"}]},{\"stage\": \"parity\"",
     "\"image\": \"" NINES "\"}]},{\"stage\": \"parity\"", GATE_STALE, "another build"},
    {"\"cubins\": [\"" ONES "\"]", "\"cubins\": []", GATE_PASS, ""}, /* it was emulated */
    /* keys that nobody reads */
    {"\"mode\"", "\"verdict\": \"PASS\", \"mode\"", GATE_COUNT, "a plan has no 'verdict'"},
    {"\"stages\"", "\"proven\": true, \"stages\"", GATE_COUNT, "a request has no 'proven'"},
    {"\"cubins\"", "\"proven\": true, \"cubins\"", GATE_COUNT, "a variant has no 'proven'"},
    {"\"absent\"", "\"proven\": true, \"absent\"", GATE_COUNT, "a row has no 'proven'"},
    {"\"subjects\": [{", "\"subjects\": [{\"tflops\": 99, ", GATE_COUNT,
     "a subject has no 'tflops'"},
    {"\"absent\"", "\"refused\": [{\"verdict\": 1}], \"absent\"", GATE_COUNT,
     "a refusal has no 'verdict'"},
    {"\"absent\"", "\"asked\": \"yes\", \"absent\"", GATE_COUNT, "asked: expected true or false"},
    /* parts of another kind, which nobody would look at */
    {"\"commit\": \"abc\"", "\"commit\": {\"verdict\": 1}", GATE_COUNT, "expected commit, a text"},
    {"\"commit\"", "\"against\": [1], \"commit\"", GATE_COUNT, "against (64 digits)"},
    {"\"commit\"", "\"against\": \"" ONES "\", \"commit\"", GATE_PASS, ""},
    {"\"environment\": {", "\"environment\": \"PASS\", \"against\": {", GATE_COUNT, "environment"},
    {"\"absent\"", "\"refused\": \"none\", \"absent\"", GATE_COUNT,
     "a refusal stands outside a list"},
    {"\"absent\"", "\"refused\": [\"none\"], \"absent\"", GATE_COUNT,
     "a refusal is in another form"},
    {"\"absent\"", "\"refused\": [{\"variant\": 1}], \"absent\"", GATE_COUNT,
     "a variant and a reason"},
    {"\"cubins\": []", "\"cubins\": \"none\"", GATE_COUNT, "cubins"},
    /* what an hour costs */
    {"\"gpu_hour_price\": 3.6", "\"gpu_hour_price\": -3.5", GATE_COUNT, "gpu_hour_price: -3.5"},
    {"\"gpu_hour_price\": 3.6", "\"gpu_hour_price\": \"free\"", GATE_COUNT, "gpu_hour_price: nan"},
    {"\"gpu_hour_price\": 3.6", "\"gpu_hour_price\": null", GATE_PASS, ""},
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

/* ---- several GPUs, other images, many rows --------------------------------------------------- */

/* The plan with each `find` replaced, for free(). */
static char *plan_with(const char *find, const char *by) {
    char *plan = replaced(fixture_plan(), "", "");
    for (char *next = plan; next != NULL && strstr(by, find) == NULL;) {
        next = replaced(plan, find, by);
        if (next != NULL) {
            free(plan);
            plan = next;
        }
    }
    return plan;
}

/* What plan_judge says of a plan; GATE_COUNT: it is none. Frees it. */
static struct judgement judge_plan(char *text) {
    struct judgement judgement = {.gate = GATE_PASS};
    attn_error why = {""};
    char *partial = NULL;
    size_t bytes = 0;
    struct json_value *plan = json_read(text, strlen(text), &why);
    FILE *out = open_memstream(&partial, &bytes);
    struct json json = json_begin(out);
    json_open(&json, NULL, '[');
    if (plan != NULL && plan_check(plan, &why)) {
        plan_judge(plan, &json, &judgement);
    } else {
        judgement.gate = GATE_COUNT;
        snprintf(judgement.reason, sizeof judgement.reason, "%.255s", why.text);
    }
    json_close(&json);
    fclose(out);
    json_free(plan);
    free(partial);
    free(text);
    return judgement;
}

/* What is said of a GPU is said of that one. */
TEST(a_stage_on_another_gpu) {
    char *named = replaced(fixture_plan(), "\"vgpu\": \"vgpu\"",
                           "\"vgpu\": \"vgpu\", \"cuda:7\": \"Fixture GPU, sm_90\"");
    char *moved = replaced(named, "\"stage\": \"sanitize\", \"device\": \"cuda:0\"",
                           "\"stage\": \"sanitize\", \"device\": \"cuda:7\"");
    const struct judgement judgement = judge_plan(moved);
    CHECK_EQ(judgement.gate, GATE_NOT_RUN);
    CHECK_CONTAINS(judgement.reason, "sanitize on cuda:0: not asked for");
    free(named);
}

TEST(a_device_that_is_not_told) {
    const struct judgement judgement = judge_plan(
        replaced(fixture_plan(), "\"cuda:0\": \"Fixture GPU", "\"cuda:1\": \"Fixture GPU"));
    CHECK_EQ(judgement.gate, GATE_INVALID);
    CHECK_CONTAINS(judgement.reason, "environment: devices: 'cuda:0' is not told");
}

/* Every stage on the GPU is of an image that no stage looked at. */
TEST(an_image_of_nobody) {
    char *plan = plan_with("\"image\": \"" ONES "\"", "\"image\": \"" NINES "\"");
    char *emulated = replaced(plan, "\"image\": \"" NINES "\"", "\"image\": \"" ONES "\"");
    char *inspected = replaced(emulated, "\"image\": \"" NINES "\"", "\"image\": \"" ONES "\"");
    const struct judgement judgement = judge_plan(inspected);
    CHECK_EQ(judgement.gate, GATE_INVALID);
    CHECK_CONTAINS(judgement.reason, "image 999999999999 on cuda:0, expected one of its cubins");
    free(emulated);
    free(plan);
}

TEST(plans_that_are_too_large) {
    static const struct {
        const char *find, *item;
        int count;
        const char *reason;
    } LARGE[] = {
        {"\"rows\": [", "{}, ", 257, "265 rows"},
        {"\"variants\": [", "{\"name\": \"x\"}, ", 4096, "4098 variants"},
        {"\"subjects\": [", "{}, ", 16384, "16392 subjects"},
    };
    for (size_t i = 0; i < sizeof LARGE / sizeof *LARGE; i++) {
        char *items = NULL;
        size_t bytes = 0;
        FILE *out = open_memstream(&items, &bytes);
        fprintf(out, "%s", LARGE[i].find);
        for (int k = 0; k < LARGE[i].count; k++) {
            fprintf(out, "%s", LARGE[i].item);
        }
        fclose(out);
        const struct judgement judgement =
            judge_plan(replaced(fixture_plan(), LARGE[i].find, items));
        CHECK_EQ(judgement.gate, GATE_COUNT);
        CHECK_CONTAINS(judgement.reason, LARGE[i].reason);
        free(items);
    }
}

/* Plan and unit say sm_80; what ptxas said of the image is for sm_90. */
TEST(a_log_of_another_architecture) {
    struct pack pack;
    struct fixture_edit done = {.text = NULL};
    attn_error why = {""};
    char *path = fixture_path(), *plan = replaced(fixture_plan(), "\"sm_90\"", "\"sm_80\"");
    if (CHECK_MSG(
            fixture_make(&pack, path, &why) &&
                fixture_edit(&pack, "inspect", "sm_90", "\"sm_90\"", "\"sm_80\"", &done, &why) &&
                pack_replan(&pack, plan, &why),
            "%s", why.text)) {
        const struct judgement now = pack_verdict(&pack);
        CHECK_EQ(now.gate, GATE_INVALID);
        CHECK_CONTAINS(now.reason, "inspect on sm_80: fwd_gpu: there is no ptxas log");
        free(done.text);
    }
    free(plan);
    pack_close(&pack);
    fixture_remove(path);
}

/* ---- amounts of work ------------------------------------------------------------------------- */

/* Of the plan alone: units that did as little would not save it. */
TEST(less_work_than_it_takes) {
    static const struct {
        const char *find, *by, *reason; /* NULL: it is enough */
    } LESS[] = {
        {"\"mode\"", "\"mode\"", NULL},
        {"\"cases\": 4", "\"cases\": 3", "emulate on vgpu: the plan asks for fewer than 4 cases"},
        {"\"cases\": 6", "\"cases\": 5", "parity on cuda:0: the plan asks for fewer than 6 cases"},
        {"\"cases\": 40", "\"cases\": 20", "parity on cpu: the plan asks for fewer than 40 cases"},
        {"\"cases\": 40, ", "", "parity on cpu: the plan asks for fewer than 40 cases"},
        {"\"launches\": 1000", "\"launches\": 999", "parity on cuda:0: the plan asks for fewer"},
        {"\"launches\": 1000, ", "",
         "parity on cuda:0: the plan asks for fewer than 1000 launches"},
        {"\"timings\": 42", "\"timings\": 41", "fewer than 42 timings of fwd_gpu"},
        {"\"timings\": 2,", "\"timings\": 1,", "fewer than 2 timings of fwd_cpu"},
        {"\"timings\": 42, \"subjects\": [{", "\"timings\": 42, \"subjects\": [{\"timings\": 6, ",
         "fewer than 42 timings of fwd_gpu"},
        {"\"full\", \"tool\"", "\"quick\", \"tool\"", NULL},
    };
    for (size_t i = 0; i < sizeof LESS / sizeof *LESS; i++) {
        struct judgement judgement = {.gate = GATE_PASS};
        attn_error why = {""};
        char *text = replaced(fixture_plan(), LESS[i].find, LESS[i].by), *partial = NULL;
        size_t bytes = 0;
        struct json_value *plan = text != NULL ? json_read(text, strlen(text), &why) : NULL;
        FILE *out = open_memstream(&partial, &bytes);
        struct json json = json_begin(out);
        json_open(&json, NULL, '[');
        if (CHECK_MSG(plan != NULL && plan_check(plan, &why), "%s: %s", LESS[i].find, why.text)) {
            plan_judge(plan, &json, &judgement);
            CHECK_MSG(judgement.gate == (LESS[i].reason == NULL ? GATE_PASS : GATE_INVALID),
                      "%s: %s", LESS[i].by, judgement.reason);
            CHECK_CONTAINS(judgement.reason, LESS[i].reason != NULL ? LESS[i].reason : "");
        }
        json_close(&json);
        fclose(out);
        json_free(plan);
        free(partial);
        free(text);
    }
}

/* ---- the library ----------------------------------------------------------------------------- */

/* A plan of all that this library has, with parity on a CPU; for free(). */
static char *plan_of_this_library(void) {
    char library[SHA256_TEXT], tool[64], hash[SHA256_TEXT], *text = NULL;
    attn_variant variant = {.size = sizeof variant};
    attn_error why = {""};
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (!CHECK(out != NULL) || !CHECK_MSG(run_identity(library, tool, &why), "%s", why.text)) {
        abort();
    }
    fprintf(out,
            "{\"schema\": \"" PACK_SCHEMA "\", \"mode\": \"quick\", \"tool\": \"%s\", "
            "\"library\": \"%s\", \"seed\": \"0123456789abcdef\", \"request\": {}, \"rows\": "
            "[{\"stage\": \"parity\", \"device\": \"cpu\", \"absent\": null, \"subjects\": []}], "
            "\"variants\": [",
            tool, library);
    for (int32_t i = 0; attn_variant_get(NULL, i, &variant, NULL) == ATTN_OK; i++) {
        attn_image image = {.size = sizeof image};
        const char *comma = "";
        fprintf(out, "%s{\"name\": \"%s\", \"device\": \"%s\", \"cubins\": [", i > 0 ? "," : "",
                variant.name, variant.device);
        for (int32_t k = 0; attn_variant_image(NULL, variant.name, k, &image, NULL) == ATTN_OK;
             k++) {
            if (image.kind == ATTN_IMAGE_CUBIN) {
                sha256_text(image.data, image.bytes, hash);
                fprintf(out, "%s\"%s\"", comma, hash);
                comma = ",";
            }
        }
        fprintf(out, "]}");
    }
    fprintf(out, "]}");
    fclose(out);
    return text;
}

TEST(packs_of_another_library) {
    static const struct {
        const char *find, *by, *reason; /* NULL: it is current */
    } STALE[] = {
        {"\"mode\"", "\"mode\"", NULL},
        {"\"library\": \"", "\"library\": \"" NINES "\", \"was\": \"", "what ran on a CPU"},
        {"\"absent\": null", "\"absent\": \"no CPU\"", NULL},
        {"\"name\": \"cpu_", "\"name\": \"cpx_", "the pack knows nothing of it"},
        {"\"device\": \"cpu\", \"cubins\"", "\"device\": \"cuda\", \"cubins\"", "is another one"},
        {"\"device\": \"cpu\", \"cubins\": [", "\"device\": \"cpu\", \"cubins\": [\"" ONES "\"",
         "is another one"},
        {"\"variants\": [",
         "\"variants\": [{\"name\": \"fwd_gone\", \"device\": \"cuda\", \"cubins\": []}, ",
         "variants that this library has not"},
    };
    char *plan = plan_of_this_library();
    for (size_t i = 0; i < sizeof STALE / sizeof *STALE; i++) {
        struct pack pack;
        attn_error why = {""};
        struct judgement judgement = {.gate = GATE_PASS};
        char *path = fixture_path(), *edited = replaced(plan, STALE[i].find, STALE[i].by);
        if (CHECK_MSG(edited != NULL && pack_create(&pack, path, edited, &why), "%s: %s",
                      STALE[i].find, why.text)) {
            CHECK_MSG(judge_current(&pack, &judgement, &why), "%s", why.text);
            CHECK_MSG(judgement.gate == (STALE[i].reason == NULL ? GATE_PASS : GATE_STALE),
                      "%s: %s", STALE[i].by, judgement.reason);
            CHECK_CONTAINS(judgement.reason, STALE[i].reason != NULL ? STALE[i].reason : "");
            pack_close(&pack);
        }
        free(edited);
        fixture_remove(path);
    }
    free(plan);
}

TEST_MAIN()
