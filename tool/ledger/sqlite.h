/* SPDX-License-Identifier: Apache-2.0
 *
 * sqlite.h - what ledger.c and rows.c share: the open file, and SQLite in sentences.
 *
 * Invariant: a statement that sql_prepare gave is finalized by its caller; every sentence begins
 * with the ledger's path.
 */
#ifndef ATTEST_LEDGER_SQLITE_H
#define ATTEST_LEDGER_SQLITE_H

#include <sqlite3.h>

#include "ledger/ledger.h"

struct ledger {
    sqlite3 *db;
    char *path;
    char head[SHA256_TEXT];
};

/* False and what SQLite says. */
bool sql_fails(const struct ledger *ledger, attn_error *why);

/* NULL and the reason. */
sqlite3_stmt *sql_prepare(const struct ledger *ledger, const char *sql, attn_error *why);

/* One statement that gives no rows. */
bool sql_run(const struct ledger *ledger, const char *sql, attn_error *why);

/* The one whole number that a statement gives. */
bool sql_int(const struct ledger *ledger, const char *sql, int64_t *value, attn_error *why);

/* NULL is NULL. The text must outlive the statement's step. */
void sql_bind(sqlite3_stmt *statement, int place, const char *text);

/* A transaction around `work`: all of it or nothing. */
bool sql_transaction(struct ledger *ledger, bool (*work)(struct ledger *, void *, attn_error *),
                     void *context, attn_error *why);

/* Hashes the entry, a new row of packs (with its timings) or of moves, into the chain. */
enum ledger_kind { LEDGER_PACK, LEDGER_MOVE, LEDGER_KINDS };
bool ledger_link(struct ledger *ledger, enum ledger_kind kind, int64_t entry, attn_error *why);

#endif /* ATTEST_LEDGER_SQLITE_H */
