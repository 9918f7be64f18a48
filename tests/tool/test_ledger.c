/* SPDX-License-Identifier: Apache-2.0
 *
 * test_ledger.c - proves that the ledger takes only packs that verify, each once; that what is in
 * it cannot be changed unseen; that a foreign or damaged file is refused; and that the verb
 * compares and ratchets the right way round.
 *
 * `test_ledger make PACK SCALE SEED` makes a pack for scripts. Without SQLite it proves that the
 * verb says so.
 */
#include <stdlib.h>
#include <unistd.h>

#include "test.h"
#include "tool/base/file.h"
#include "tool/base/message.h"
#include "tool/cli/verbs.h"
#include "tool/ledger/import.h"
#include "tool/ledger/ledger.h"
#include "tool/ledger_fixture.h"
#include "tool/pack/evidence.h"
#include "tool/pack_fixture.h"

/* ---- a folder with a ledger in it, and the verb ---------------------------------------------- */

/* A file's text into a buffer; "" where there is none. */
static void keep(const char *path, char *buffer, size_t size) {
    size_t bytes = 0;
    char *text = file_read(path, &bytes, NULL);
    snprintf(buffer, size, "%s", text != NULL ? text : "");
    free(text);
}

/* attest ledger ACTION [A [B]] --ledger FILE [OPTION]; what it printed goes to `output`, what it
 * complained of to `complaint`. */
static char output[1 << 20], complaint[1 << 12];
static int ledger(const struct ledger_place *place, const char *action, const char *a,
                  const char *b, const char *option) {
    char option_name[] = "--ledger", *argv[8];
    const char *const words[] = {action, a, b, option_name, place->ledger, option};
    int argc = 0;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (words[i] != NULL) {
            argv[argc++] = (char *)(uintptr_t)words[i];
        }
    }
    char path[128], errors[128];
    snprintf(path, sizeof path, "%.100s.out", place->ledger);
    snprintf(errors, sizeof errors, "%.100s.err", place->ledger);
    fflush(stdout);
    const int kept = dup(STDOUT_FILENO), kept_errors = dup(STDERR_FILENO);
    if (kept < 0 || kept_errors < 0 || freopen(path, "w", stdout) == NULL ||
        freopen(errors, "w", stderr) == NULL) {
        abort();
    }
    const int status = verb_ledger(argc, argv);
    fflush(stdout);
    fflush(stderr);
    dup2(kept, STDOUT_FILENO);
    dup2(kept_errors, STDERR_FILENO);
    close(kept);
    close(kept_errors);
    keep(path, output, sizeof output);
    keep(errors, complaint, sizeof complaint);
    fputs(complaint, stderr);
    return status;
}

static bool import_made(struct ledger_place *place, double scale, uint64_t seed) {
    attn_error why = {""};
    char command[256];
    snprintf(command, sizeof command, "rm -rf '%s'", place->pack);
    return CHECK_EQ(system(command), 0) &&
           CHECK_MSG(ledger_fixture(place->pack, scale, seed, &why), "%s", why.text) &&
           CHECK_EQ(ledger(place, "import", place->pack, NULL, NULL), EXIT_DONE);
}

/* What the sqlite3 library does to a file behind attest's back, in another process. */
static bool shell(const char *format, const char *path) {
    char command[512];
    snprintf(command, sizeof command, format, path); // NOLINT(clang-diagnostic-format-nonliteral)
    return system(command) == 0;
}

static bool absent(struct ledger_place *place) {
    if (ledger_is_built()) {
        return false;
    }
    CHECK_EQ(ledger(place, "list", NULL, NULL, NULL), EXIT_NOT_RUN);
    CHECK_EQ(ledger(place, "import", place->pack, NULL, NULL), EXIT_NOT_RUN);
    CHECK(access(place->ledger, F_OK) != 0);
    return true;
}

/* ---- import ---------------------------------------------------------------------------------- */

TEST(a_pack_is_imported_once) {
    struct ledger_place place = ledger_place_open();
    if (absent(&place) || !import_made(&place, 1, 1)) {
        ledger_place_close(&place);
        return;
    }
    CHECK_CONTAINS(output, "PASS");
    CHECK_CONTAINS(output, "44 timings");
    CHECK_CONTAINS(output, "imported\n");
    CHECK_EQ(ledger(&place, "import", place.pack, NULL, NULL), EXIT_DONE);
    CHECK_CONTAINS(output, "nothing to do");
    CHECK_EQ(ledger(&place, "import", place.pack, NULL, "--json"), EXIT_DONE);
    CHECK_CONTAINS(output, "\"new\": false");
    CHECK_EQ(ledger(&place, "list", NULL, NULL, NULL), EXIT_DONE);
    CHECK_CONTAINS(output, "1 packs, head ");
    CHECK_EQ(ledger(&place, "show", "1", NULL, NULL), EXIT_DONE);
    CHECK_CONTAINS(output, "cpu (Fixture CPU, avx2, 2 threads)  fwd_cpu");
    CHECK_CONTAINS(output, "cuda:0 (Fixture GPU, sm_90, 132 multiprocessors)  fwd_gpu");
    CHECK_EQ(ledger(&place, "show", "latest", NULL, "--json"), EXIT_DONE);
    CHECK_CONTAINS(output, "\"hardware\": \"Fixture CPU, avx2, 2 threads\"");
    ledger_place_close(&place);
}

/* What the import must answer after an edit of the pack's unit. */
static void refuses(struct ledger_place *place, const char *stage, const char *find, const char *by,
                    bool publish, int expected) {
    struct pack pack;
    attn_error why = {""};
    struct fixture_edit edit;
    shell("rm -rf '%s'", place->pack);
    if (CHECK_MSG(ledger_fixture(place->pack, 1, 7, &why) && pack_open(&pack, place->pack, &why) &&
                      fixture_edit(&pack, stage, "cpu", find, by, &edit, &why),
                  "%s", why.text)) {
        CHECK_MSG(!publish || ledger_fixture_publish(&pack, &why), "%s", why.text);
        CHECK_EQ(ledger(place, "import", place->pack, NULL, NULL), expected);
        free(edit.text);
        pack_close(&pack);
    }
}

TEST(what_does_not_verify_stays_out) {
    struct ledger_place place = ledger_place_open();
    if (!absent(&place)) {
        /* Changed, and evidence.json is still the old one. */
        refuses(&place, "parity", "\"max_error\": 0.002", "\"max_error\": 0.001", false,
                EXIT_FAILED_CHECK);
        /* Everything follows, and it cannot be. */
        refuses(&place, "bench", "\"taken\": 40", "\"taken\": 41", true, EXIT_INVALID);
        refuses(&place, "parity", "\"caught\": true", "\"caught\": false", true, EXIT_INVALID);
        /* A byte that has no right to be there. */
        shell("echo >>'%s'/units/$(ls '%1$s'/units | head -1)", place.pack);
        CHECK_EQ(ledger(&place, "import", place.pack, NULL, NULL), EXIT_FAILED_CHECK);
        shell("rm -f '%s'/plan.json", place.pack);
        CHECK_EQ(ledger(&place, "import", place.pack, NULL, NULL), EXIT_BAD_INPUT);
        CHECK_EQ(ledger(&place, "import", "/nowhere/at/all", NULL, NULL), EXIT_BAD_INPUT);
        CHECK(access(place.ledger, F_OK) != 0); /* none of them has made a ledger */
        /* FAIL is an answer, and is recorded; the slot that failed has no timings to compare. */
        refuses(&place, "bench", "\"outputs_equal\": true", "\"outputs_equal\": false", true,
                EXIT_DONE);
        CHECK_CONTAINS(output, "FAIL");
        CHECK_CONTAINS(output, "2 timings");
        CHECK_EQ(ledger(&place, "ratchet", "latest", NULL, NULL), EXIT_FAILED_CHECK);
        /* What a pack says cannot write over the line that says what it is. */
        refuses(&place, "parity", "\"damage\": null", "\"damage\": \"x\\u000a\\u001b[1A\\u202e\"",
                true, EXIT_DONE);
        CHECK_EQ(ledger(&place, "show", "latest", NULL, NULL), EXIT_DONE);
        CHECK_CONTAINS(output, "x??[1A?");
        /* So is a run that did not end. */
        shell("rm -f '%s'/evidence.json '%1$s'/statement.json", place.pack);
        attn_error why = {""};
        shell("rm -rf '%s'", place.pack);
        CHECK(ledger_fixture(place.pack, 1, 9, &why));
        shell("rm -f '%s'/evidence.json", place.pack);
        CHECK_EQ(ledger(&place, "import", place.pack, NULL, NULL), EXIT_DONE);
        CHECK_CONTAINS(output, "NOT_RUN");
        CHECK_EQ(ledger(&place, "ratchet", "latest", NULL, NULL), EXIT_NOT_RUN);
        CHECK_EQ(ledger(&place, "list", NULL, NULL, "--baselines"), EXIT_DONE);
        CHECK_CONTAINS(output, "0 baselines");
    }
    ledger_place_close(&place);
}

/* ---- compare --------------------------------------------------------------------------------- */

TEST(compare_says_which_is_faster) {
    struct ledger_place place = ledger_place_open();
    if (!absent(&place) && import_made(&place, 1, 1) && import_made(&place, 1.2, 2) &&
        import_made(&place, 1, 3)) {
        CHECK_EQ(ledger(&place, "compare", "1", "2", NULL), EXIT_DONE);
        /* Its hardware once, and what matters first; that something is slower is an answer. */
        CHECK(strstr(output, "cpu is Fixture CPU, avx2, 2 threads\ncuda:0 is Fixture GPU, ") ==
              output);
        CHECK_CONTAINS(output, "132 multiprocessors\nSLOWER ");
        CHECK_CONTAINS(output, "  cpu  fwd_cpu");
        CHECK(strstr(output, "(Fixture") == NULL);
        CHECK_CONTAINS(output, "1 slower, 0 faster, 43 same");
        CHECK_EQ(ledger(&place, "compare", "2", "1", NULL), EXIT_DONE);
        CHECK_CONTAINS(output, "\nFASTER ");
        CHECK(strstr(output, "FASTER ") < strstr(output, "SAME "));
        CHECK_CONTAINS(output, "0 slower, 1 faster, 43 same");
        CHECK_EQ(ledger(&place, "compare", "1", "latest", NULL), EXIT_DONE);
        CHECK_CONTAINS(output, "0 slower, 0 faster, 44 same (within 1 %), 0 ambiguous, 0 only old");
        CHECK_EQ(ledger(&place, "compare", "1", "latest", "--margin=0.1"), EXIT_DONE);
        CHECK_CONTAINS(output, "44 ambiguous");
        CHECK_EQ(ledger(&place, "compare", "1", "2", "--json"), EXIT_DONE);
        CHECK_CONTAINS(output, "\"verdict\": \"SLOWER\"");
        CHECK_EQ(ledger(&place, "compare", "1", "4", NULL), EXIT_BAD_INPUT);
        CHECK_EQ(ledger(&place, "compare", "1", NULL, NULL), EXIT_BAD_INPUT);
        CHECK_EQ(ledger(&place, "compare", "1", "2", "--margin=-1"), EXIT_BAD_INPUT);
        CHECK_EQ(ledger(&place, "compare", "--help", NULL, NULL), EXIT_DONE);
        CHECK_CONTAINS(output, "Exit code: 0 compared, whatever became slower");
        CHECK_EQ(ledger(&place, "ratchet", "--help", NULL, NULL), EXIT_DONE);
        CHECK_CONTAINS(output, "1 something is surely slower");
    }
    ledger_place_close(&place);
}

/* Of a pack that failed on the CPU the timings of the GPU are left. */
TEST(compare_counts_what_only_one_has) {
    struct ledger_place place = ledger_place_open();
    if (!absent(&place) && import_made(&place, 1, 1)) {
        refuses(&place, "bench", "\"outputs_equal\": true", "\"outputs_equal\": false", true,
                EXIT_DONE);
        CHECK_EQ(ledger(&place, "compare", "1", "2", NULL), EXIT_DONE);
        CHECK_CONTAINS(output, "0 ambiguous, 2 only old, 0 only new\n");
        CHECK_EQ(ledger(&place, "compare", "2", "1", "--json"), EXIT_DONE);
        CHECK_CONTAINS(output, "\"only_new\": 2");
        /* A folder is no pack of the ledger, whatever is in it. */
        CHECK_EQ(ledger(&place, "ratchet", place.pack, NULL, NULL), EXIT_BAD_INPUT);
        CHECK_CONTAINS(complaint,
                       "is a folder, expected a pack of the ledger: attest ledger import");
        CHECK_EQ(ledger(&place, "ratchet", "/nowhere/at/all", NULL, NULL), EXIT_BAD_INPUT);
        CHECK_CONTAINS(complaint, "no pack '/nowhere/at/all', expected a number");
    }
    ledger_place_close(&place);
}

/* ---- nothing changes unseen ------------------------------------------------------------------ */

static bool have_sqlite3(void) {
    return system("command -v sqlite3 >/dev/null") == 0;
}

TEST(a_row_cannot_be_changed) {
    static const char *const REFUSED[] = {
        "UPDATE packs SET verdict = 'PASS'",
        "DELETE FROM timings",
        "DELETE FROM packs WHERE id = 1",
        "UPDATE timings SET median_ns = 1",
        "UPDATE links SET hash = ''",
        "DELETE FROM links",
        "UPDATE moves SET new = 1",
        "DELETE FROM moves",
        "INSERT OR REPLACE INTO packs SELECT * FROM packs",
        "INSERT OR REPLACE INTO timings SELECT * FROM timings",
        "REPLACE INTO links SELECT * FROM links",
    };
    struct ledger_place place = ledger_place_open();
    if (!have_sqlite3()) {
        ledger_place_close(&place);
        SKIP("no sqlite3");
    }
    if (!absent(&place) && import_made(&place, 1, 1)) {
        CHECK_EQ(ledger(&place, "ratchet", "1", NULL, NULL), EXIT_DONE);
        for (size_t i = 0; i < sizeof REFUSED / sizeof *REFUSED; i++) {
            char command[256];
            snprintf(command, sizeof command, "sqlite3 '%%s' \"%s\" 2>&1 | grep -q append-only",
                     REFUSED[i]);
            CHECK_MSG(shell(command, place.ledger), "not refused: %s", REFUSED[i]);
        }
        CHECK_EQ(ledger(&place, "list", NULL, NULL, NULL), EXIT_DONE);
    }
    ledger_place_close(&place);
}

TEST(a_row_changed_behind_the_triggers_is_found) {
    /* Each puts the trigger back, word for word. */
    static const char *const CHANGES[] = {
        "UPDATE packs SET verdict = 'FAIL'",
        "UPDATE packs SET commit_name = 'def'",
        "UPDATE timings SET ns = replace(ns, '4', '3') WHERE id = 3",
        "UPDATE timings SET variant = 'other' WHERE id = 1",
        "DELETE FROM timings WHERE id = 2",
        "DELETE FROM packs WHERE id = 2; DELETE FROM timings WHERE pack = 2",
        "DELETE FROM packs WHERE id = 2; DELETE FROM timings WHERE pack = 2; DELETE FROM links "
        "WHERE kind = 'pack' AND entry = 2",
        "DELETE FROM moves WHERE id = 1",
        "UPDATE moves SET new = 4 WHERE id = 1",
        "DELETE FROM links WHERE id = 1",
        "UPDATE links SET kind = 'x' WHERE id = 1",
    };
    struct ledger_place place = ledger_place_open();
    if (!have_sqlite3()) {
        ledger_place_close(&place);
        SKIP("no sqlite3");
    }
    if (!absent(&place) && import_made(&place, 1, 1) && import_made(&place, 1, 2) &&
        CHECK_EQ(ledger(&place, "ratchet", "1", NULL, NULL), EXIT_DONE) &&
        CHECK(shell("cp '%s' '%1$s.good'", place.ledger)) &&
        CHECK(shell("sqlite3 '%s' \"SELECT 'DROP TRIGGER ' || name || ';' FROM sqlite_master "
                    "WHERE type = 'trigger'\" >'%1$s.drop'; sqlite3 '%1$s' \"SELECT sql || ';' "
                    "FROM sqlite_master WHERE type = 'trigger'\" >'%1$s.make'",
                    place.ledger))) {
        for (size_t i = 0; i < sizeof CHANGES / sizeof *CHANGES; i++) {
            char command[512];
            snprintf(command, sizeof command,
                     "cp '%%s.good' '%%1$s' && (cat '%%1$s.drop'; echo \"%s;\"; cat '%%1$s.make') "
                     "| sqlite3 '%%1$s'",
                     CHANGES[i]);
            CHECK_MSG(shell(command, place.ledger), "%s", command);
            CHECK_MSG(ledger(&place, "list", NULL, NULL, NULL) == EXIT_BAD_INPUT, "not found: %s",
                      CHANGES[i]);
        }
        CHECK(
            shell("cp '%s.good' '%1$s' && sqlite3 '%1$s' 'DROP TRIGGER packs_stay'", place.ledger));
        CHECK_EQ(ledger(&place, "list", NULL, NULL, NULL), EXIT_BAD_INPUT);
        CHECK(
            shell("cp '%s.good' '%1$s' && sqlite3 '%1$s' 'CREATE TABLE more (id)'", place.ledger));
        CHECK_EQ(ledger(&place, "list", NULL, NULL, NULL), EXIT_BAD_INPUT);
        CHECK(shell("cp '%s.good' '%1$s' && sqlite3 '%1$s' 'VACUUM'", place.ledger));
        CHECK_EQ(ledger(&place, "list", NULL, NULL, NULL), EXIT_DONE); /* which changes no row */
    }
    ledger_place_close(&place);
}

/* ---- files that are no ledger ---------------------------------------------------------------- */

static void refuses_file(struct ledger_place *place, const char *make, const char *sentence) {
    attn_error why = {""};
    if (!CHECK_MSG(shell(make, place->ledger), "%s", make)) {
        return;
    }
    struct ledger *opened = ledger_open(place->ledger, LEDGER_CREATE, &why);
    CHECK_MSG(opened == NULL, "opened after: %s", make);
    CHECK_CONTAINS(why.text, sentence);
    CHECK_CONTAINS(why.text, place->ledger);
    ledger_close(opened);
    CHECK_EQ(ledger(place, "import", place->pack, NULL, NULL), EXIT_BAD_INPUT);
    CHECK_EQ(ledger(place, "ratchet", "1", NULL, NULL), EXIT_BAD_INPUT);
}

TEST(a_file_that_is_no_ledger_is_refused) {
    struct ledger_place place = ledger_place_open();
    if (absent(&place) || !import_made(&place, 1, 1)) {
        ledger_place_close(&place);
        return;
    }
    shell("mv '%s' '%1$s.good'", place.ledger);
    refuses_file(&place, "echo 'no database, but long enough to have a header' >'%s'",
                 "not a database");
    refuses_file(&place, "head -c 5000 '%s.good' >'%1$s'", place.ledger);
    refuses_file(&place, "(head -c 9000 '%s.good'; head -c 4000 /dev/zero) >'%1$s'", place.ledger);
    refuses_file(&place, "rm '%s'; mkdir '%1$s'", "unable to open");
    CHECK(shell("rmdir '%s'", place.ledger));
    if (have_sqlite3()) {
        refuses_file(&place, "sqlite3 '%s' 'CREATE TABLE songs (id)'", "another program");
        refuses_file(&place, "cp '%s.good' '%1$s'; sqlite3 '%1$s' 'PRAGMA user_version = 2'",
                     "schema 2, expected 1");
        refuses_file(&place, "cp '%s.good' '%1$s'; sqlite3 '%1$s' 'PRAGMA application_id = 5'",
                     "another program");
    }
    attn_error why = {""};
    CHECK(ledger_open(":memory:", LEDGER_CREATE, &why) == NULL);
    CHECK(shell(": >'%s'", place.ledger)); /* empty: only import may make a ledger of it */
    CHECK_EQ(ledger(&place, "list", NULL, NULL, NULL), EXIT_BAD_INPUT);
    CHECK_EQ(ledger(&place, "ratchet", "latest", NULL, NULL), EXIT_BAD_INPUT);
    CHECK_EQ(ledger(&place, "import", place.pack, NULL, NULL), EXIT_DONE);
    ledger_place_close(&place);
}

/* ---- ratchet --------------------------------------------------------------------------------- */

TEST(the_ratchet_goes_one_way) {
    struct ledger_place place = ledger_place_open();
    if (absent(&place) || !import_made(&place, 1, 1)) {
        ledger_place_close(&place);
        return;
    }
    CHECK_EQ(ledger(&place, "ratchet", "1", NULL, "--dry-run"), EXIT_DONE);
    CHECK_CONTAINS(output, "0 faster and 44 first: not moved (--dry-run)");
    CHECK_EQ(ledger(&place, "ratchet", "1", NULL, NULL), EXIT_DONE);
    CHECK_CONTAINS(output, "0 faster and 44 first: moved");
    CHECK_EQ(ledger(&place, "ratchet", "1", NULL, NULL), EXIT_DONE); /* against itself */
    CHECK_CONTAINS(output, "0 faster and 0 first: moved; 44 stay");
    /* 12 % slower: fails, and moves nothing. */
    CHECK(import_made(&place, 1.12, 2));
    CHECK_EQ(ledger(&place, "ratchet", "latest", NULL, NULL), EXIT_FAILED_CHECK);
    CHECK_CONTAINS(output, "REGRESSED");
    CHECK_CONTAINS(output, "not moved");
    /* The same speed: stays. */
    CHECK(import_made(&place, 1, 3));
    CHECK_EQ(ledger(&place, "ratchet", "latest", NULL, "--json"), EXIT_DONE);
    CHECK_CONTAINS(output, "\"MOVED\": 0");
    CHECK_CONTAINS(output, "\"STAYS\": 44");
    /* 10 % faster, once: it may have been luck. */
    CHECK(import_made(&place, 0.9, 4));
    CHECK_EQ(ledger(&place, "ratchet", "latest", NULL, NULL), EXIT_DONE);
    CHECK_CONTAINS(output, "FASTER");
    CHECK_CONTAINS(output, "1 faster once");
    /* A second time: the slower of both is the baseline, and the speed of before a regression. */
    CHECK(import_made(&place, 0.8, 5));
    CHECK_EQ(ledger(&place, "ratchet", "latest", NULL, NULL), EXIT_DONE);
    CHECK_CONTAINS(output, "MOVED");
    CHECK_CONTAINS(output, "1 faster and 0 first: moved");
    CHECK_EQ(ledger(&place, "ratchet", "3", NULL, NULL), EXIT_FAILED_CHECK);
    CHECK_EQ(ledger(&place, "list", NULL, NULL, "--baselines"), EXIT_DONE);
    CHECK_CONTAINS(output, "pack 4  cpu");
    CHECK_CONTAINS(output, "44 baselines");
    CHECK_EQ(ledger(&place, "ratchet", "3", NULL, "--margin=20"), EXIT_DONE);
    /* The baseline is no longer what it was: another ratchet was quicker. */
    attn_error why = {""};
    struct ledger *file = ledger_open(place.ledger, LEDGER_APPEND, &why);
    const struct ledger_move stale = {.from = 3, .to = 9, .ratio = 1, .low = 1, .high = 1};
    if (CHECK_MSG(file != NULL, "%s", why.text)) {
        CHECK(!ledger_move(file, &stale, 1, &why));
        CHECK_CONTAINS(why.text, "meanwhile");
    }
    ledger_close(file);
    ledger_place_close(&place);
}

TEST_STATE()

int main(int argc, char **argv) {
    if (argc == 5 && strcmp(argv[1], "make") == 0) {
        attn_error why = {""};
        const bool good =
            ledger_fixture(argv[2], strtod(argv[3], NULL), strtoull(argv[4], NULL, 10), &why);
        return good ? 0 : (fprintf(stderr, "%s\n", why.text), 1);
    }
    return test_run(argc > 1 ? argv[1] : "");
}
