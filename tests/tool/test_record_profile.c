/* SPDX-License-Identifier: Apache-2.0
 *
 * test_record_profile.c - proves that what the profile stage records is what an ncu printed, of
 * several variants in one run of it, and that the judge takes each sign away for what it is. The
 * ncu is a script of the test's.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "test.h"
#include "tool/pack/judge.h"
#include "tool/pack_fixture.h"
#include "tool/record_fixture.h"
#include "tool/stages/profile/ncu.h"

#define PLAN                                                                                       \
    "{\"schema\": \"" PACK_SCHEMA "\", \"mode\": \"full\", \"tool\": \"0.1.0\", "                  \
    "\"library\": \"" LIBRARY "\", \"seed\": \"0123456789abcdef\", \"rows\": [{"                   \
    "\"stage\": \"profile\", \"device\": \"cuda:0\", \"absent\": null, \"subjects\": ["            \
    "{\"variant\": \"fwd_a\", \"image\": \"" LIBRARY "\"}, "                                       \
    "{\"variant\": \"fwd_b\", \"image\": \"" LIBRARY "\"}]}]}"

/* $BUSY and $TENSOR are the figures, $SAY what it prints first; it counts its runs. */
static const char NCU[] =
    "#!/bin/sh\n"
    "echo run >>\"$(dirname \"$0\")/runs\"\n"
    "echo \"$SAY\"\n"
    "case $SAY in *ERROR*) exit 1 ;; esac\n"
    "echo 'target: fwd_a verified'\n"
    "echo 'target: fwd_b: 3 elements of O are NaN'\n"
    "echo '\"ID\",\"Kernel Name\",\"Metric Name\",\"Metric Unit\",\"Metric Value\"'\n"
    "for row in attest_sleep:$IDLE:0 fwd_a:$BUSY:$TENSOR fwd_b:90:50; do\n"
    "    name=${row%%:*} rest=${row#*:}\n"
    "    b=sm__cycles_active.avg.pct_of_peak_sustained_elapsed\n"
    "    t=sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed\n"
    "    echo \"\\\"$name\\\",\\\"$name\\\",\\\"$b\\\",\\\"%\\\",\\\"${rest%%:*}\\\"\"\n"
    "    echo \"\\\"$name\\\",\\\"$name\\\",\\\"$t\\\",\\\"%\\\",\\\"${rest#*:}\\\"\"\n"
    "done\n";

/* A folder with the script as `ncu`, first in $PATH. */
static char folder[] = "/tmp/test_profile.XXXXXX";

static bool install(void) {
    char path[PATH_MAX];
    if (mkdtemp(folder) == NULL) {
        return false;
    }
    snprintf(path, sizeof path, "%s/ncu", folder);
    FILE *out = fopen(path, "w");
    if (out == NULL || fputs(NCU, out) < 0 || fclose(out) != 0 || chmod(path, 0700) != 0) {
        return false;
    }
    snprintf(path, sizeof path, "%s:%s", folder, getenv("PATH"));
    return setenv("PATH", path, 1) == 0;
}

static int runs(void) {
    char path[64], line[16];
    int count = 0;
    snprintf(path, sizeof path, "%s/runs", folder);
    FILE *in = fopen(path, "r");
    while (in != NULL && fgets(line, sizeof line, in) != NULL) {
        count++;
    }
    if (in != NULL) {
        fclose(in);
    }
    unlink(path);
    return count;
}

/* The unit of a variant, or NULL and why. */
static struct json_value *record(struct pack *pack, const char *variant, attn_error *why) {
    const struct slot slot = {.device = "cuda:0", .variant = variant, .image = LIBRARY, .seed = 1};
    return recorded(&slot, "profile", record_profile, pack, why);
}

struct figures {
    const char *busy, *tensor, *idle, *say;
};

static bool begin(struct figures figures, char **path, struct pack *pack) {
    attn_error why = {""};
    setenv("BUSY", figures.busy, 1);
    setenv("TENSOR", figures.tensor, 1);
    setenv("IDLE", figures.idle, 1);
    setenv("SAY", figures.say != NULL ? figures.say : "==PROF== x", 1);
    *path = fixture_path();
    return CHECK_MSG(pack_create(pack, *path, PLAN, &why), "%s", why.text);
}

static void end(char *path, struct pack *pack) {
    pack_close(pack);
    fixture_remove(path);
}

TEST(recorded_and_judged) {
    static const struct {
        struct figures figures;
        enum gate gate;
        const char *reason;
    } CASES[] = {
        {{"91.5", "60.25", "0.8", NULL}, GATE_PASS, ""},
        {{"69", "60.25", "0.8", NULL}, GATE_FAIL, "sm_busy_percent: 69"},
        {{"91.5", "0", "0.8", NULL}, GATE_FAIL, "tensor_pipe_percent: 0"},
        {{"91.5", "n/a", "0.8", NULL}, GATE_INVALID, "tensor_pipe_percent"},
        {{"91.5", "60.25", "91", NULL}, GATE_INVALID, "control 'idle'"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        char *path;
        struct pack pack;
        attn_error why = {""};
        if (!begin(CASES[i].figures, &path, &pack)) {
            return;
        }
        struct json_value *unit = record(&pack, "fwd_a", &why), *row = json_read("{}", 2, &why);
        if (CHECK_MSG(unit != NULL, "%s", why.text)) {
            const struct judgement judgement = judge_unit(&pack, row, unit);
            CHECK_MSG(judgement.gate == CASES[i].gate, "%zu: %s: %s", i, GATE_NAMES[judgement.gate],
                      judgement.reason);
            CHECK_CONTAINS(judgement.reason, CASES[i].reason);
            CHECK_EQ(json_count_of(json_at(unit, "artifacts")), 1U);
        }
        json_free(unit);
        json_free(row);
        end(path, &pack);
    }
    runs();
}

/* What ncu printed is kept as it is, but for the folder of the program. */
TEST(where_it_was_made_stays_there) {
    char *path;
    struct pack pack;
    attn_error why = {""};
    if (!begin((struct figures){"91.5", "60.25", "0.8",
                                "==PROF== Connected to process 7 (/some/where/attest)"},
               &path, &pack)) {
        return;
    }
    struct json_value *unit = record(&pack, "fwd_a", &why);
    if (CHECK_MSG(unit != NULL, "%s", why.text)) {
        const struct json_value *names = json_at(unit, "artifacts");
        size_t bytes = 0;
        char *log =
            pack_read(&pack, PACK_ARTIFACTS, json_text_of(&names->as.list.items[0]), &bytes, &why);
        if (CHECK_MSG(log != NULL, "%s", why.text)) {
            CHECK(strstr(log, "/some/where") == NULL);
            CHECK_CONTAINS(log, "==PROF== Connected to process 7 \n");
        }
        free(log);
    }
    json_free(unit);
    end(path, &pack);
    runs();
}

TEST(one_run_for_all) {
    char *path;
    struct pack pack;
    attn_error why = {""};
    if (!begin((struct figures){"91.5", "60", "0.8", NULL}, &path, &pack)) {
        return;
    }
    struct json_value *unit = record(&pack, "fwd_a", &why);
    CHECK_MSG(unit != NULL, "%s", why.text);
    json_free(unit);
    CHECK(record(&pack, "fwd_b", &why) == NULL);
    CHECK_CONTAINS(why.text, "3 elements of O are NaN");
    CHECK_EQ(runs(), 1);
    end(path, &pack);
}

TEST(no_right) {
    static const char *const SAYS = "==ERROR== ERR_NVGPUCTRPERM - The user does not have";
    char *path;
    struct pack pack;
    attn_error why = {""};
    if (!begin((struct figures){"91.5", "60", "0.8", SAYS}, &path, &pack)) {
        return;
    }
    CHECK(record(&pack, "fwd_a", &why) == NULL);
    CHECK_CONTAINS(why.text, "ERR_NVGPUCTRPERM");
    CHECK(record(&pack, "fwd_b", &why) == NULL);
    CHECK_EQ(runs(), 1);
    end(path, &pack);
}

TEST(allowed) {
    char path[64];
    attn_error why = {""};
    snprintf(path, sizeof path, "%s/ncu", folder);
    setenv("IDLE", "0.8", 1);
    setenv("SAY", "==PROF== x", 1);
    CHECK_MSG(ncu_allowed(path, "cuda:0", NULL, &why), "%s", why.text);
    setenv("IDLE", "91", 1);
    CHECK(!ncu_allowed(path, "cuda:0", NULL, &why));
    CHECK_CONTAINS(why.text, "not seen as idle");
    setenv("SAY", "==ERROR== ERR_NVGPUCTRPERM", 1);
    CHECK(!ncu_allowed(path, "cuda:0", NULL, &why));
    CHECK_CONTAINS(why.text, "may not read");
    CHECK_EQ(runs(), 3);
}

TEST_STATE()

int main(int argc, char **argv) {
    if (!install()) {
        perror(folder);
        return TEST_FAIL;
    }
    const int status = test_run(argc > 1 ? argv[1] : "");
    char path[64];
    snprintf(path, sizeof path, "%s/ncu", folder);
    unlink(path);
    rmdir(folder);
    return status;
}
