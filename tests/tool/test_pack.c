/* SPDX-License-Identifier: Apache-2.0
 *
 * test_pack.c - proves that a pack on disk is whole or refused: changed bits, foreign folders,
 * other schemas, a full disk, a folder that cannot be written, and kill -9 at any moment.
 */
#include "test.h"
#include "tool/base/json_read.h"
#include "tool/base/message.h"
#include "tool/cli/verbs.h"
#include "tool/pack/evidence.h"
#include "tool/pack_fixture.h"
#include "tool/pack_verdict.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const char UNIT[] = "{\"schema\": \"" PACK_UNIT_SCHEMA "\", \"n\": 1}";

static const char *path_in(const char *path, const char *name) {
    static char joined[512];
    snprintf(joined, sizeof joined, "%.200s/%.200s", path, name);
    return joined;
}

static void put(const char *path, const char *text, size_t bytes) {
    FILE *out = fopen(path, "wb");
    if (CHECK(out != NULL)) {
        CHECK_EQ(fwrite(text, 1, bytes, out), bytes);
        CHECK_EQ(fclose(out), 0);
    }
}

static char *get(const char *path, size_t *bytes) {
    static char text[1 << 16];
    FILE *in = fopen(path, "rb");
    *bytes = 0;
    if (CHECK_MSG(in != NULL, "%s", path)) {
        *bytes = fread(text, 1, sizeof text, in);
        fclose(in);
    }
    return text;
}

TEST(units_and_artifacts) {
    struct pack pack;
    attn_error why = {""};
    char *path = fixture_path(), name[SHA256_TEXT], again[SHA256_TEXT];
    if (CHECK_MSG(pack_create(&pack, path, fixture_plan(), &why), "%s", why.text)) {
        struct pack_names names;
        CHECK(pack_list(&pack, PACK_UNITS, &names, &why)); /* the folder is not there yet */
        CHECK_EQ(names.count, 0);
        CHECK_MSG(pack_add_unit(&pack, UNIT, name, &why), "%s", why.text);
        CHECK(
            pack_add_unit(&pack, " {\"n\":1.0,\"schema\":\"" PACK_UNIT_SCHEMA "\"}", again, &why));
        CHECK_STR(name, again); /* it means the same */
        CHECK(pack_list(&pack, PACK_UNITS, &names, &why));
        CHECK_EQ(names.count, 1);
        CHECK_STR(names.names[0], name);
        pack_names_free(&names);
        struct json_value *unit = pack_read_unit(&pack, name, &why);
        CHECK_EQ(json_int_of(json_at(unit, "n"), 0), 1);
        json_free(unit);
        size_t bytes = 0;
        CHECK(pack_add_artifact(&pack, "a\0b", 3, name, &why));
        char *data = pack_read(&pack, PACK_ARTIFACTS, name, &bytes, &why);
        CHECK(data != NULL && bytes == 3 && memcmp(data, "a\0b", 3) == 0);
        free(data);
        CHECK(!pack_add_artifact(&pack, "", 0, name, &why));
        CHECK(!pack_add_unit(&pack, "{\"schema\": \"attest-unit/0\"}", name, &why));
        CHECK_CONTAINS(why.text, "schema attest-unit/0, expected attest-unit/1");
        CHECK(!pack_add_unit(&pack, "{", name, &why));
        CHECK_CONTAINS(why.text, "line 1");
        CHECK(pack_read(&pack, PACK_UNITS, "../plan", &bytes, &why) == NULL);
        CHECK_CONTAINS(why.text, "names no file of a pack");
    }
    pack_close(&pack);
    CHECK_MSG(pack_open(&pack, path, &why), "%s", why.text);
    pack_close(&pack);
    fixture_remove(path);
}

static void refuse(const char *path, const char *sentence) {
    struct pack pack;
    attn_error why = {""};
    CHECK_MSG(!pack_open(&pack, path, &why), "%s was opened", path);
    CHECK_CONTAINS(why.text, sentence);
    pack_close(&pack);
    CHECK_EQ(pack_verify(path), EXIT_BAD_INPUT);
}

TEST(what_is_no_pack) {
    char *path = fixture_path();
    struct pack pack;
    attn_error why = {""};
    refuse(path, "No such file");
    CHECK_EQ(mkdir(path, 0777), 0);
    refuse(path, "no evidence pack: there is no plan.json in it");
    const char *plan = path_in(path, "plan.json");
    put(plan, "hello", 5);
    refuse(path, "plan.json: line 1, column 1: no value of JSON");
    refuse(plan, "a file, expected the folder");
    put(plan, "{}\n", 3);
    refuse(path, "schema is absent, expected attest-evidence/1");
    static const char OLDER[] = "{\"schema\": \"attest-evidence/0\"}";
    put(plan, OLDER, sizeof OLDER - 1);
    refuse(path, "schema attest-evidence/0, expected attest-evidence/1");
    put(plan, "", 0);
    refuse(path, "it is empty");
    CHECK(!pack_create(&pack, path, fixture_plan(), &why));
    CHECK_CONTAINS(why.text, "not empty ('plan.json' is in it)");
    pack_close(&pack);
    CHECK_EQ(unlink(plan), 0);
    put(path_in(path, ".attest-1-0.tmp"), "x", 1); /* what a killed run leaves */
    CHECK_MSG(pack_create(&pack, path, fixture_plan(), &why), "%s", why.text);
    pack_close(&pack);
    fixture_remove(path);
}

/* Any bit of any file that is flipped is noticed. Every 37th byte, and of long files less, for
 * time. */
TEST(flipped_bits) {
    struct pack pack;
    attn_error why = {""};
    char *path = fixture_path(), unit[SHA256_TEXT], names[4][128] = {"plan.json", "evidence.json"};
    struct pack_names artifacts = {0};
    if (CHECK_MSG(fixture_make(&pack, path, &why) &&
                      fixture_find(&pack, "parity", "cpu", unit, &why) &&
                      pack_list(&pack, PACK_ARTIFACTS, &artifacts, &why),
                  "%s", why.text)) {
        snprintf(names[2], sizeof names[2], "units/%s.json", unit);
        snprintf(names[3], sizeof names[3], "artifacts/%s", artifacts.names[0]);
        for (int file = 0; file < 4; file++) {
            size_t bytes;
            char *text = get(path_in(path, names[file]), &bytes);
            for (size_t i = 0; i < bytes; i += 37 + bytes / 400) {
                text[i] = (char)(text[i] ^ (1 << i % 8));
                put(path_in(path, names[file]), text, bytes);
                const int status = pack_verify(path);
                CHECK_MSG(status == EXIT_FAILED_CHECK || (file == 0 && status == EXIT_BAD_INPUT),
                          "%s, byte %zu: %d", names[file], i, status);
                text[i] = (char)(text[i] ^ (1 << i % 8));
            }
            put(path_in(path, names[file]), text, bytes - 1);
            CHECK(pack_verify(path) != EXIT_DONE);
            put(path_in(path, names[file]), text, bytes);
            CHECK_EQ(pack_verify(path), EXIT_DONE);
        }
        put(path_in(path, "units/notes.txt"), "x", 1);
        CHECK_EQ(pack_verify(path), EXIT_FAILED_CHECK);
        CHECK_EQ(unlink(path_in(path, "units/notes.txt")), 0);
        CHECK_EQ(unlink(path_in(path, names[3])), 0);
        CHECK_EQ(pack_verify(path), EXIT_FAILED_CHECK);
    }
    pack_names_free(&artifacts);
    pack_close(&pack);
    fixture_remove(path);
}

/* What is found while reading, rather than by its consequences. */
static void damaged(const struct pack *pack, const char *sentence) {
    struct evidence evidence;
    attn_error why = {""};
    CHECK(!evidence_make(pack, &evidence, &why));
    CHECK_CONTAINS(why.text, sentence);
    evidence_free(&evidence);
}

TEST(what_is_wrong_is_said) {
    struct pack pack;
    attn_error why = {""};
    char *path = fixture_path(), name[SHA256_TEXT], file[128];
    if (CHECK_MSG(fixture_make(&pack, path, &why) &&
                      fixture_find(&pack, "parity", "cpu", name, &why),
                  "%s", why.text)) {
        put(path_in(path, "units/.attest-1-0.tmp"), "{", 1); /* what a killed run leaves */
        CHECK_EQ(pack_verify(path), EXIT_DONE);
        put(path_in(path, "units/notes.txt"), "x", 1);
        damaged(&pack, "units/notes.txt: no part of a pack");
        CHECK_EQ(unlink(path_in(path, "units/notes.txt")), 0);

        size_t bytes;
        snprintf(file, sizeof file, "units/%s.json", name);
        const char *text = get(path_in(path, file), &bytes);
        put(path_in(path, file), text, bytes - 1);
        damaged(&pack, "it was changed: its SHA-256 is");
        put(path_in(path, file), text, bytes);

        static const char OLDER[] = "{\n  \"schema\": \"attest-unit/0\"\n}\n";
        sha256_text(OLDER, sizeof OLDER - 1, name);
        snprintf(file, sizeof file, "units/%s.json", name);
        put(path_in(path, file), OLDER, sizeof OLDER - 1);
        damaged(&pack, "schema attest-unit/0, expected attest-unit/1");
        CHECK_EQ(unlink(path_in(path, file)), 0);
        CHECK_EQ(pack_verify(path), EXIT_DONE);
    }
    pack_close(&pack);
    fixture_remove(path);
}

TEST(a_run_that_did_not_end) {
    struct pack pack;
    attn_error why = {""};
    char *path = fixture_path();
    if (CHECK_MSG(fixture_make(&pack, path, &why), "%s", why.text)) {
        CHECK_EQ(unlink(path_in(path, EVIDENCE_FILE)), 0);
        CHECK_EQ(pack_verify(path), EXIT_NOT_RUN);
    }
    pack_close(&pack);
    fixture_remove(path);
}

/* A limit on the size of files stands for a full disk: a write fails half-way. */
TEST(a_full_disk_leaves_what_was_there) {
    struct pack pack;
    attn_error why = {""};
    char *path = fixture_path(), name[SHA256_TEXT];
    static char large[100000];
    memset(large, 'x', sizeof large);
    if (CHECK_MSG(fixture_make(&pack, path, &why), "%s", why.text)) {
        struct rlimit before, small = {.rlim_cur = 4096};
        CHECK_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
        small.rlim_max = before.rlim_max;
        signal(SIGXFSZ, SIG_IGN);
        CHECK_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
        const bool stored = pack_add_artifact(&pack, large, sizeof large, name, &why);
        attn_error published = {""};
        const bool over = pack_publish(&pack, "evidence.json", large, sizeof large, &published);
        CHECK_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
        CHECK(!stored && !over);
        CHECK_CONTAINS(why.text, "cannot write: File too large");
        CHECK_CONTAINS(published.text, "evidence.json: cannot write");
        CHECK_EQ(pack_verify(path), EXIT_DONE);
    }
    pack_close(&pack);
    fixture_remove(path);
}

TEST(a_folder_that_cannot_be_written) {
    enum { UNPRIVILEGED = 65534 };
    struct pack pack;
    attn_error why = {""};
    char *path = fixture_path(), name[SHA256_TEXT];
    if (CHECK_MSG(fixture_make(&pack, path, &why), "%s", why.text)) {
        const uid_t own = geteuid();
        CHECK_EQ(chmod(path_in(path, "units"), 0555), 0);
        CHECK_EQ(chmod(path, 0555), 0);
        char parent[128];
        snprintf(parent, sizeof parent, "%.*s", (int)(strlen(path) - 5), path);
        CHECK_EQ(chmod(parent, 0755), 0);
        if (own == 0) { /* root may write everywhere */
            CHECK_EQ(seteuid(UNPRIVILEGED), 0);
        }
        CHECK(!pack_add_unit(&pack, UNIT, name, &why));
        CHECK_CONTAINS(why.text, "cannot write: Permission denied");
        CHECK(!pack_publish(&pack, "evidence.json", "x", 1, &why));
        CHECK_CONTAINS(why.text, "cannot write: Permission denied");
        CHECK_EQ(pack_verify(path), EXIT_DONE);
        if (own == 0) {
            CHECK_EQ(seteuid(own), 0);
        }
        CHECK_EQ(chmod(path, 0755), 0);
        CHECK_EQ(chmod(path_in(path, "units"), 0755), 0);
    }
    pack_close(&pack);
    fixture_remove(path);
}

static void write_for_ever(struct pack *pack) {
    char name[SHA256_TEXT], text[sizeof UNIT + 32];
    for (int i = 0;; i++) {
        snprintf(text, sizeof text, "{\"schema\": \"" PACK_UNIT_SCHEMA "\", \"n\": %d}", i);
        struct evidence evidence;
        if (!pack_add_unit(pack, text, name, NULL) || !evidence_make(pack, &evidence, NULL) ||
            !evidence_publish(pack, &evidence, NULL)) {
            _exit(1);
        }
        evidence_free(&evidence);
    }
}

/* Whenever it dies, what it leaves opens, has only whole units, and is not a PASS. evidence.json
 * may be that of one unit before. */
TEST(killed_at_any_moment) {
    for (int moment = 0; moment < 12; moment++) {
        struct pack pack;
        attn_error why = {""};
        char *path = fixture_path();
        if (CHECK_MSG(pack_create(&pack, path, fixture_plan(), &why), "%s", why.text)) {
            const pid_t child = fork();
            if (child == 0) {
                write_for_ever(&pack);
            }
            usleep((useconds_t)(500 + 2300 * moment));
            CHECK_EQ(kill(child, SIGKILL), 0);
            int status = 0;
            CHECK_EQ(waitpid(child, &status, 0), child);
            CHECK(WIFSIGNALED(status));
            pack_close(&pack);
            struct evidence evidence;
            CHECK_MSG(pack_open(&pack, path, &why) && evidence_make(&pack, &evidence, &why), "%s",
                      why.text);
            CHECK(evidence.judgement.gate != GATE_PASS);
            CHECK(pack_verify(path) != EXIT_DONE);
            evidence_free(&evidence);
        }
        pack_close(&pack);
        fixture_remove(path);
    }
}

/* Only PASS exits with 0, and the stronger verdict is that of both, whichever comes first. */
TEST(verdicts) {
    static const int EXITS[GATE_COUNT] = {EXIT_DONE, EXIT_NOT_RUN, EXIT_NOT_RUN, EXIT_FAILED_CHECK,
                                          EXIT_INVALID};
    for (int a = 0; a < GATE_COUNT; a++) {
        CHECK_EQ(gate_exit((enum gate)a), EXITS[a]);
        for (int b = 0; b < GATE_COUNT; b++) {
            struct judgement judgement = {.gate = GATE_PASS};
            judge(&judgement, (enum gate)a, "first");
            judge(&judgement, (enum gate)b, "second");
            CHECK_EQ(judgement.gate, a > b ? a : b);
            CHECK_STR(judgement.reason, a == 0 && b == 0 ? "" : b > a ? "second" : "first");
        }
    }
}

TEST_MAIN()
