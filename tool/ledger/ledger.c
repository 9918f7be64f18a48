/* SPDX-License-Identifier: Apache-2.0
 *
 * ledger.c - the ledger's file: its schema, and the checks that it must pass to be opened. See
 * ledger.h; rows.c reads and writes what is in it.
 */
#include "ledger/ledger.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/message.h"
#include "ledger/sqlite.h"

enum { APPLICATION = 0x61747374 /* "atst" */, VERSION = 1, WAIT_MS = 10000 };

/* INSERT OR REPLACE would delete a row without asking the trigger for deletions: hence the third.
 * */
#define APPEND_ONLY(table, same)                                                                   \
    "CREATE TRIGGER " table "_stay BEFORE UPDATE ON " table                                        \
    " BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END",                                \
        "CREATE TRIGGER " table "_remain BEFORE DELETE ON " table                                  \
        " BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END",                            \
        "CREATE TRIGGER " table "_once BEFORE INSERT ON " table                                    \
        " WHEN EXISTS (SELECT 1 FROM " table " WHERE " same ")"                                    \
        " BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: it is there already'); END"

static const char *const SCHEMA[] = {
    "CREATE TABLE packs (id INTEGER PRIMARY KEY, root TEXT NOT NULL UNIQUE, verdict TEXT NOT NULL,"
    " reason TEXT, partial INTEGER NOT NULL, mode TEXT NOT NULL, tool TEXT NOT NULL,"
    " library TEXT NOT NULL, commit_name TEXT, imported TEXT NOT NULL, units INTEGER NOT NULL,"
    " timings INTEGER NOT NULL)",
    "CREATE TABLE timings (id INTEGER PRIMARY KEY, pack INTEGER NOT NULL REFERENCES packs (id),"
    " device TEXT NOT NULL, hardware TEXT NOT NULL, variant TEXT NOT NULL, problem TEXT NOT NULL,"
    " mode TEXT NOT NULL, cache TEXT NOT NULL, shape TEXT NOT NULL, image TEXT,"
    " repeats INTEGER NOT NULL, samples INTEGER NOT NULL, median_ns REAL NOT NULL,"
    " ns TEXT NOT NULL, UNIQUE (pack, device, hardware, variant, problem, mode, cache))",
    "CREATE TABLE moves (id INTEGER PRIMARY KEY, old INTEGER REFERENCES timings (id),"
    " new INTEGER NOT NULL REFERENCES timings (id), ratio REAL, low REAL, high REAL)",
    "CREATE TABLE links (id INTEGER PRIMARY KEY, kind TEXT NOT NULL, entry INTEGER NOT NULL,"
    " hash TEXT NOT NULL, UNIQUE (kind, entry))",
    APPEND_ONLY("packs", "id = NEW.id OR root = NEW.root"),
    APPEND_ONLY("timings", "id = NEW.id"),
    APPEND_ONLY("moves", "id = NEW.id"),
    APPEND_ONLY("links", "id = NEW.id OR (kind = NEW.kind AND entry = NEW.entry)"),
};
enum { SCHEMA_COUNT = sizeof SCHEMA / sizeof *SCHEMA };

bool ledger_is_built(void) {
    return true;
}

/* ---- SQLite in sentences --------------------------------------------------------------------- */

bool sql_fails(const struct ledger *ledger, attn_error *why) {
    return explain(why, "%s: %s", ledger->path, sqlite3_errmsg(ledger->db));
}

sqlite3_stmt *sql_prepare(const struct ledger *ledger, const char *sql, attn_error *why) {
    sqlite3_stmt *statement = NULL;
    if (sqlite3_prepare_v2(ledger->db, sql, -1, &statement, NULL) != SQLITE_OK) {
        sql_fails(ledger, why);
    }
    return statement;
}

bool sql_run(const struct ledger *ledger, const char *sql, attn_error *why) {
    return sqlite3_exec(ledger->db, sql, NULL, NULL, NULL) == SQLITE_OK || sql_fails(ledger, why);
}

bool sql_int(const struct ledger *ledger, const char *sql, int64_t *value, attn_error *why) {
    sqlite3_stmt *statement = sql_prepare(ledger, sql, why);
    if (statement == NULL) {
        return false;
    }
    const bool good = sqlite3_step(statement) == SQLITE_ROW || sql_fails(ledger, why);
    *value = good ? sqlite3_column_int64(statement, 0) : 0;
    sqlite3_finalize(statement);
    return good;
}

void sql_bind(sqlite3_stmt *statement, int place, const char *text) {
    if (text == NULL) {
        sqlite3_bind_null(statement, place);
    } else {
        sqlite3_bind_text(statement, place, text, -1, SQLITE_STATIC);
    }
}

bool sql_transaction(struct ledger *ledger, bool (*work)(struct ledger *, void *, attn_error *),
                     void *context, attn_error *why) {
    if (!sql_run(ledger, "BEGIN IMMEDIATE", why)) {
        return false;
    }
    if (work(ledger, context, why) && sql_run(ledger, "COMMIT", why)) {
        return true;
    }
    sqlite3_exec(ledger->db, "ROLLBACK", NULL, NULL, NULL);
    return false;
}

/* ---- the chain ------------------------------------------------------------------------------- */

static const char *const KIND_NAMES[LEDGER_KINDS] = {"pack", "move"};

/* Everything that an entry says, for its hash. */
static const char *const ENTRY_ROWS[LEDGER_KINDS] = {
    "SELECT * FROM packs LEFT JOIN timings ON timings.pack = packs.id WHERE packs.id = ? "
    "ORDER BY timings.id",
    "SELECT * FROM moves WHERE id = ?",
};

/* A column such that no two rows look the same: the length stands before a text. */
static void put_column(FILE *out, sqlite3_stmt *row, int column) {
    switch (sqlite3_column_type(row, column)) {
    case SQLITE_NULL: fputs("null\n", out); break;
    case SQLITE_INTEGER: fprintf(out, "%lld\n", sqlite3_column_int64(row, column)); break;
    case SQLITE_FLOAT: fprintf(out, "%.17g\n", sqlite3_column_double(row, column)); break;
    default: {
        const unsigned char *text = sqlite3_column_text(row, column);
        fprintf(out, "%d:%s\n", sqlite3_column_bytes(row, column), (const char *)text);
    }
    }
}

/* The hash of `previous` and of all that the entry says. */
static bool hash_entry(const struct ledger *ledger, const char *previous, enum ledger_kind kind,
                       int64_t entry, char hash[SHA256_TEXT], attn_error *why) {
    char *text = NULL;
    size_t bytes = 0;
    sqlite3_stmt *rows = sql_prepare(ledger, ENTRY_ROWS[kind], why);
    FILE *out = rows != NULL ? open_memstream(&text, &bytes) : NULL;
    if (out == NULL) {
        sqlite3_finalize(rows);
        return rows == NULL ? false : explain(why, "%s: out of memory", ledger->path);
    }
    fprintf(out, "%s\n%s\n", previous, KIND_NAMES[kind]);
    sqlite3_bind_int64(rows, 1, entry);
    int step, count = 0;
    while ((step = sqlite3_step(rows)) == SQLITE_ROW) {
        for (int i = 0; i < sqlite3_column_count(rows); i++) {
            put_column(out, rows, i);
        }
        count++;
    }
    const bool read = step == SQLITE_DONE || sql_fails(ledger, why);
    sqlite3_finalize(rows);
    const bool written = fclose(out) == 0;
    const bool good = read && (written || explain(why, "%s: out of memory", ledger->path)) &&
                      (count > 0 || explain(why, "%s: damaged: %s %lld is not there", ledger->path,
                                            KIND_NAMES[kind], (long long)entry));
    if (good) {
        sha256_text(text, bytes, hash);
    }
    free(text);
    return good;
}

/* The last hash of the chain, as it is now. */
static bool read_head(struct ledger *ledger, attn_error *why) {
    sqlite3_stmt *last =
        sql_prepare(ledger, "SELECT hash FROM links ORDER BY id DESC LIMIT 1", why);
    if (last == NULL) {
        return false;
    }
    const int step = sqlite3_step(last);
    snprintf(ledger->head, sizeof ledger->head, "%s",
             step == SQLITE_ROW ? (const char *)sqlite3_column_text(last, 0) : "");
    sqlite3_finalize(last);
    return step == SQLITE_ROW || step == SQLITE_DONE || sql_fails(ledger, why);
}

bool ledger_link(struct ledger *ledger, enum ledger_kind kind, int64_t entry, attn_error *why) {
    char hash[SHA256_TEXT];
    if (!read_head(ledger, why) || !hash_entry(ledger, ledger->head, kind, entry, hash, why)) {
        return false;
    }
    sqlite3_stmt *insert =
        sql_prepare(ledger, "INSERT INTO links (kind, entry, hash) VALUES (?, ?, ?)", why);
    if (insert == NULL) {
        return false;
    }
    sql_bind(insert, 1, KIND_NAMES[kind]);
    sqlite3_bind_int64(insert, 2, entry);
    sql_bind(insert, 3, hash);
    const bool good = sqlite3_step(insert) == SQLITE_DONE || sql_fails(ledger, why);
    sqlite3_finalize(insert);
    if (good) {
        memcpy(ledger->head, hash, sizeof hash);
    }
    return good;
}

static enum ledger_kind kind_of(const char *name) {
    int kind = 0;
    while (kind < LEDGER_KINDS && (name == NULL || strcmp(KIND_NAMES[kind], name) != 0)) {
        kind++;
    }
    return (enum ledger_kind)kind;
}

/* The rows of `links` say id, kind, entry, hash. */
static bool check_link(struct ledger *ledger, sqlite3_stmt *link, attn_error *why) {
    const enum ledger_kind kind = kind_of((const char *)sqlite3_column_text(link, 1));
    const char *stored = (const char *)sqlite3_column_text(link, 3);
    char hash[SHA256_TEXT];
    if (kind == LEDGER_KINDS || stored == NULL) {
        return explain(why, "%s: damaged: link %lld makes no sense", ledger->path,
                       sqlite3_column_int64(link, 0));
    }
    if (!hash_entry(ledger, ledger->head, kind, sqlite3_column_int64(link, 2), hash, why)) {
        return false;
    }
    memcpy(ledger->head, hash, sizeof hash);
    return strcmp(hash, stored) == 0 ||
           explain(why, "%s: damaged: %s %lld is not what was entered", ledger->path,
                   KIND_NAMES[kind], sqlite3_column_int64(link, 2));
}

static bool check_chain(struct ledger *ledger, attn_error *why) {
    sqlite3_stmt *links =
        sql_prepare(ledger, "SELECT id, kind, entry, hash FROM links ORDER BY id", why);
    if (links == NULL) {
        return false;
    }
    int64_t count = 0, entries = 0;
    int step = SQLITE_DONE;
    bool good = true;
    while (good && (step = sqlite3_step(links)) == SQLITE_ROW) {
        good = check_link(ledger, links, why);
        count++;
    }
    good = good && (step == SQLITE_DONE || sql_fails(ledger, why));
    sqlite3_finalize(links);
    return good &&
           sql_int(ledger, "SELECT (SELECT count(*) FROM packs) + (SELECT count(*) FROM moves)",
                   &entries, why) &&
           (entries == count || explain(why, "%s: damaged: %lld entries, of which %lld are hashed",
                                        ledger->path, (long long)entries, (long long)count));
}

/* ---- opening --------------------------------------------------------------------------------- */

static bool create(struct ledger *ledger, void *context, attn_error *why) {
    (void)context;
    int64_t objects = 0;
    /* Somebody may have made it while this waited for the lock. */
    bool good = sql_int(ledger, "SELECT count(*) FROM sqlite_master", &objects, why);
    for (int i = 0; good && objects == 0 && i < SCHEMA_COUNT; i++) {
        good = sql_run(ledger, SCHEMA[i], why);
    }
    char pragmas[96];
    snprintf(pragmas, sizeof pragmas, "PRAGMA application_id = %d; PRAGMA user_version = %d",
             (int)APPLICATION, (int)VERSION);
    return good && (objects > 0 || sql_run(ledger, pragmas, why));
}

/* Every statement of the schema is there, word for word, and nothing else. */
static bool check_schema(const struct ledger *ledger, attn_error *why) {
    int64_t objects = 0;
    sqlite3_stmt *find =
        sql_prepare(ledger, "SELECT count(*) FROM sqlite_master WHERE sql = ?", why);
    if (find == NULL) {
        return false;
    }
    bool good = true;
    for (int i = 0; good && i < SCHEMA_COUNT; i++) {
        sqlite3_reset(find);
        sql_bind(find, 1, SCHEMA[i]);
        good = (sqlite3_step(find) == SQLITE_ROW || sql_fails(ledger, why)) &&
               (sqlite3_column_int64(find, 0) == 1 ||
                explain(why, "%s: damaged: a table or trigger is not as attest made it (%.40s...)",
                        ledger->path, SCHEMA[i]));
    }
    sqlite3_finalize(find);
    return good &&
           sql_int(ledger, "SELECT count(*) FROM sqlite_master WHERE sql IS NOT NULL", &objects,
                   why) &&
           (objects == SCHEMA_COUNT ||
            explain(why, "%s: damaged: %lld tables and triggers, expected %d", ledger->path,
                    (long long)objects, (int)SCHEMA_COUNT));
}

static bool check_pages(const struct ledger *ledger, attn_error *why) {
    sqlite3_stmt *check = sql_prepare(ledger, "PRAGMA integrity_check(1)", why);
    if (check == NULL) {
        return false;
    }
    const bool ran = sqlite3_step(check) == SQLITE_ROW || sql_fails(ledger, why);
    const char *answer = ran ? (const char *)sqlite3_column_text(check, 0) : NULL;
    const bool good = answer != NULL && strcmp(answer, "ok") == 0;
    if (ran && !good) {
        explain(why, "%s: damaged: %.200s", ledger->path, answer != NULL ? answer : "no answer");
    }
    sqlite3_finalize(check);
    return good;
}

/* What it says it is. *empty: nothing yet. */
static bool check_kind(const struct ledger *ledger, bool *empty, attn_error *why) {
    int64_t application = 0, version = 0, objects = 0;
    if (!sql_int(ledger, "PRAGMA application_id", &application, why) ||
        !sql_int(ledger, "PRAGMA user_version", &version, why) ||
        !sql_int(ledger, "SELECT count(*) FROM sqlite_master", &objects, why)) {
        return false;
    }
    *empty = application == 0 && version == 0 && objects == 0;
    if (!*empty && application != APPLICATION) {
        return explain(why, "%s: a database of another program, expected a ledger", ledger->path);
    }
    return *empty || version == VERSION ||
           explain(why, "%s: a ledger of schema %lld, expected %d", ledger->path,
                   (long long)version, (int)VERSION);
}

/* In one transaction: an entry that somebody makes meanwhile must not look like damage. Who only
 * reads stays in it, so that all that is read is of one time. */
static bool check(struct ledger *ledger, enum ledger_access access, attn_error *why) {
    bool empty = false;
    if (!sql_run(ledger, "BEGIN", why)) {
        return false;
    }
    const bool good = check_kind(ledger, &empty, why) &&
                      (empty || (check_pages(ledger, why) && check_schema(ledger, why) &&
                                 check_chain(ledger, why)));
    if (access != LEDGER_READ) {
        sqlite3_exec(ledger->db, "ROLLBACK", NULL, NULL, NULL); /* nothing was written */
    }
    if (!good || !empty) {
        return good;
    }
    return access == LEDGER_CREATE
               ? sql_transaction(ledger, create, NULL, why)
               : explain(why, "%s: an empty file, expected a ledger", ledger->path);
}

static bool open_file(struct ledger *ledger, enum ledger_access mode, attn_error *why) {
    const char *path = ledger->path;
    if (path[0] == ':' || path[0] == '\0') { /* SQLite would keep it in memory */
        return explain(why, "ledger: '%s' is no name of a file", path);
    }
    if (mode != LEDGER_CREATE && access(path, F_OK) != 0) {
        return explain(why, "%s: there is no ledger; attest ledger import makes one", path);
    }
    static const int FLAGS[] = {
        [LEDGER_READ] = SQLITE_OPEN_READONLY,
        [LEDGER_APPEND] = SQLITE_OPEN_READWRITE,
        [LEDGER_CREATE] = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE,
    };
    return (sqlite3_open_v2(path, &ledger->db, FLAGS[mode], NULL) == SQLITE_OK &&
            sqlite3_busy_timeout(ledger->db, WAIT_MS) == SQLITE_OK) ||
           sql_fails(ledger, why);
}

struct ledger *ledger_open(const char *path, enum ledger_access access, attn_error *why) {
    struct ledger *ledger = calloc(1, sizeof *ledger);
    char *copy = strdup(path);
    if (ledger == NULL || copy == NULL) {
        explain(why, "%s: out of memory", path);
        free(ledger);
        free(copy);
        return NULL;
    }
    ledger->path = copy;
    if (open_file(ledger, access, why) && sql_run(ledger, "PRAGMA foreign_keys = ON", why) &&
        check(ledger, access, why)) {
        return ledger;
    }
    ledger_close(ledger);
    return NULL;
}

void ledger_close(struct ledger *ledger) {
    if (ledger != NULL) {
        sqlite3_close(ledger->db);
        free(ledger->path);
        free(ledger);
    }
}

const char *ledger_head(const struct ledger *ledger) {
    return ledger->head;
}
