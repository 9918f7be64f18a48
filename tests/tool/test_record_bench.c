/* SPDX-License-Identifier: Apache-2.0
 *
 * test_record_bench.c - proves that what the bench stage records is what the judge accepts: raw
 * samples of each mode and cache state, the controls, the sleep; and that what was not right is
 * written down and judged so. On the CPU, and on the fake GPU with its planted faults.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "test.h"
#include "tool/cases/problems.h"
#include "tool/pack/judge.h"
#include "tool/pack_fixture.h"
#include "tool/record_fixture.h"

/* One that this machine runs; an emulated one lacks instructions that the best ask for. */
static const char *first_variant(const char *device, const char *driver) {
    static char name[192];
    attn_options options;
    attn_context *context = NULL;
    attn_variant variant = {.size = sizeof variant};
    attn_options_init(&options);
    options.device = device;
    options.driver = driver;
    name[0] = '\0';
    attn_open(&options, &context, NULL);
    for (int32_t i = 0; name[0] == '\0' && context != NULL &&
                        attn_variant_get(context, i, &variant, NULL) == ATTN_OK;
         i++) {
        attn_problem problem;
        attn_error why;
        if (bench_problem(context, device, &variant, true, 0, &problem, &why)) {
            snprintf(name, sizeof name, "%s", variant.name);
        }
        variant = (attn_variant){.size = sizeof variant};
    }
    attn_close(context);
    return name[0] != '\0' ? name : NULL;
}

static struct json_value *record(const struct slot *slot, struct pack *pack, attn_error *why) {
    return recorded(slot, "bench", record_bench, pack, why);
}

static struct judgement judged(const struct slot *slot, const struct pack *pack,
                               const struct json_value *unit) {
    char text[64];
    snprintf(text, sizeof text, "{\"timings\": %d}", (int)slot->timings);
    struct json_value *row = json_read(text, strlen(text), NULL);
    const struct judgement judgement = judge_unit(pack, row, unit);
    json_free(row);
    return judgement;
}

/* A plan that says what the slot's device is, as `attest run` would; for free(). */
static char *plan_for(const struct slot *slot) {
    attn_options options;
    attn_context *context = NULL;
    attn_device device = {.size = sizeof device};
    char model[512];
    attn_options_init(&options);
    options.device = slot->device;
    options.driver = slot->driver;
    const bool there = attn_open(&options, &context, NULL) == ATTN_OK &&
                       attn_device_get(context, &device, NULL) == ATTN_OK;
    CHECK(there);
    snprintf(model, sizeof model, "%s, %s", there ? device.name : "", there ? device.arch : "");
    attn_close(context);
    return replaced(fixture_plan(),
                    strcmp(slot->device, "cpu") == 0 ? "Fixture CPU, avx2" : "Fixture GPU, sm_90",
                    model);
}

static void check_unit(const struct slot *slot, enum gate expected, const char *reason) {
    char *path = fixture_path(), *plan = plan_for(slot);
    struct pack pack;
    attn_error why = {""};
    const bool made = CHECK_MSG(pack_create(&pack, path, plan, &why), "%s", why.text);
    free(plan);
    if (!made) {
        return;
    }
    struct json_value *unit = record(slot, &pack, &why);
    if (CHECK_MSG(unit != NULL, "%s", why.text)) {
        const struct judgement judgement = judged(slot, &pack, unit);
        CHECK_MSG(judgement.gate == expected, "%s: %s", GATE_NAMES[judgement.gate],
                  judgement.reason);
        CHECK_CONTAINS(judgement.reason, reason);
        CHECK_EQ(json_count_of(json_at(unit, "timings")), (size_t)slot->timings);
        CHECK_EQ(json_count_of(json_at(unit, "artifacts")), 0U);
        const struct json_value *timing = json_item(json_at(unit, "timings"), 0);
        CHECK(json_number_at(timing, "sleep_asked_ns") > 0);
        CHECK(json_number_at(timing, "sleep_read_ns") > 0);
        CHECK_EQ(json_count_of(json_at(unit, "controls")), 2U);
    }
    json_free(unit);
    pack_close(&pack);
    fixture_remove(path);
}

TEST(cpu) {
    const struct slot slot = {.device = "cpu",
                              .variant = first_variant("cpu", NULL),
                              .seed = 0x123456789abcdef,
                              .timings = bench_timings_per_problem("cpu"),
                              .quick = true};
    CHECK_EQ(slot.timings, 2);
    check_unit(&slot, GATE_PASS, "");
}

TEST(what_cannot_be_recorded) {
    char *path = fixture_path();
    struct pack pack;
    attn_error why = {""};
    struct slot slot = {.device = "cpu", .variant = "none_such", .timings = 2, .quick = true};
    if (CHECK_MSG(pack_create(&pack, path, fixture_plan(), &why), "%s", why.text)) {
        CHECK(record(&slot, &pack, &why) == NULL);
        CHECK_CONTAINS(why.text, "none_such");
        slot.timings = 0;
        CHECK(record(&slot, &pack, &why) == NULL);
        CHECK_CONTAINS(why.text, "timings = 0");
        slot = (struct slot){.device = "cuda", .driver = "/none.so", .timings = 6, .variant = "x"};
        CHECK(record(&slot, &pack, &why) == NULL);
        CHECK_CONTAINS(why.text, "/none.so");
        pack_close(&pack);
    }
    fixture_remove(path);
}

/* The environment configures the fake driver, which reads it at each call except launches. */
TEST(gpu) {
    setenv("FAKE_DRIVER_COMPUTE", "1", 1);
    const struct slot slot = {.device = "cuda:0",
                              .driver = FAKE_DRIVER,
                              .variant = first_variant("cuda", FAKE_DRIVER),
                              .image = LIBRARY,
                              .seed = 0x123456789abcdef,
                              .timings = bench_timings_per_problem("cuda"),
                              .quick = true};
    if (slot.variant == NULL) {
        SKIP("this build has no GPU kernels");
    }
    CHECK_EQ(slot.timings, 6);
    check_unit(&slot, GATE_PASS, "");
    setenv("FAKE_DRIVER_SLEEP", "60", 1);
    check_unit(&slot, GATE_INVALID, "control 'sleep'");
    unsetenv("FAKE_DRIVER_SLEEP");
    setenv("FAKE_DRIVER_EVENTS", "fast", 1);
    check_unit(&slot, GATE_INVALID, "no GPU needs less");
    unsetenv("FAKE_DRIVER_EVENTS");
    check_unit(&slot, GATE_PASS, "");
}

/* A runner that does what the text says, in place of the real one; $9 is the file to be written. */
static bool peers(const char *script, const struct pack *pack, char name[SHA256_TEXT],
                  attn_error *why) {
    char path[] = "/tmp/test_peers.XXXXXX";
    const int file = mkstemp(path);
    if (file < 0 || dprintf(file, "#!/bin/sh\n%s\n", script) < 0 || fchmod(file, 0700) != 0 ||
        close(file) != 0) {
        return false;
    }
    setenv("ATTN_PEERS", path, 1);
    const bool stored = record_peers(pack, name, why);
    unsetenv("ATTN_PEERS");
    unlink(path);
    return stored;
}

TEST(peers) {
    static const struct {
        const char *script, *reason;
    } BAD[] = {
        {"echo 'peers: NOT RUN: no PyTorch'; exit 3", "NOT_RUN: peers: exit code 3: peers: NOT"},
        {"exit 1", "peers: exit code 1"},
        {"exit 0", "peers.json"},
        {"echo '{\"rows\":' >$9", "line"},
    };
    char *path = fixture_path(), name[SHA256_TEXT] = "";
    struct pack pack;
    attn_error why = {""};
    if (CHECK_MSG(pack_create(&pack, path, fixture_plan(), &why), "%s", why.text)) {
        CHECK_MSG(peers("echo '{\"rows\": []}' >$9", &pack, name, &why), "%s", why.text);
        size_t bytes = 0;
        char *text = pack_read(&pack, PACK_ARTIFACTS, name, &bytes, &why);
        CHECK_STR(text != NULL ? text : why.text, "{\"rows\": []}\n");
        free(text);
        for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
            why = (attn_error){""};
            CHECK(!peers(BAD[i].script, &pack, name, &why));
            CHECK_CONTAINS(why.text, BAD[i].reason);
        }
        pack_close(&pack);
    }
    fixture_remove(path);
}

TEST_MAIN()
