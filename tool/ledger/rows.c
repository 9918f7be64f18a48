/* SPDX-License-Identifier: Apache-2.0
 *
 * rows.c - reads and writes the rows of an open ledger. See ledger.h.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/message.h"
#include "ledger/sqlite.h"

/* A copy for free(); NULL of NULL. *good becomes false where there is no memory. */
static char *text_of(sqlite3_stmt *row, int column, bool *good) {
    const char *text = (const char *)sqlite3_column_text(row, column);
    char *copy = text != NULL ? strdup(text) : NULL;
    *good = *good && (copy != NULL || sqlite3_column_type(row, column) == SQLITE_NULL);
    return copy;
}

/* Room for one more item at the end, all zero; NULL: no memory. */
static void *grown(void *items, size_t count, size_t size) {
    char *more = realloc(items, (count + 1) * size);
    if (more != NULL) {
        memset(more + count * size, 0, size);
    }
    return more;
}

/* ---- reading --------------------------------------------------------------------------------- */

static bool read_pack(const struct ledger *ledger, sqlite3_stmt *row, struct ledger_pack *pack,
                      attn_error *why) {
    bool good = true;
    pack->id = sqlite3_column_int64(row, 0);
    pack->root = text_of(row, 1, &good);
    pack->verdict = text_of(row, 2, &good);
    pack->reason = text_of(row, 3, &good);
    pack->partial = sqlite3_column_int(row, 4) != 0;
    pack->mode = text_of(row, 5, &good);
    pack->tool = text_of(row, 6, &good);
    pack->library = text_of(row, 7, &good);
    pack->commit = text_of(row, 8, &good);
    pack->imported = text_of(row, 9, &good);
    pack->units = sqlite3_column_int64(row, 10);
    pack->timings = sqlite3_column_int64(row, 11);
    return good || explain(why, "%s: out of memory", ledger->path);
}

bool ledger_packs(struct ledger *ledger, struct ledger_packs *packs, attn_error *why) {
    *packs = (struct ledger_packs){0};
    sqlite3_stmt *rows =
        sql_prepare(ledger,
                    "SELECT id, root, verdict, reason, partial, mode, tool, library, commit_name, "
                    "imported, units, timings FROM packs ORDER BY id",
                    why);
    if (rows == NULL) {
        return false;
    }
    int step = SQLITE_DONE;
    bool good = true;
    while (good && (step = sqlite3_step(rows)) == SQLITE_ROW) {
        struct ledger_pack *items = grown(packs->items, packs->count, sizeof *items);
        if (items == NULL) {
            good = explain(why, "%s: out of memory", ledger->path);
            break;
        }
        packs->items = items;
        good = read_pack(ledger, rows, &items[packs->count++], why);
    }
    good = good && (step == SQLITE_DONE || sql_fails(ledger, why));
    sqlite3_finalize(rows);
    return good;
}

#define TIMING_COLUMNS                                                                             \
    "timings.id, pack, device, hardware, variant, problem, mode, cache, shape, image, repeats, ns"
#define TIMING_ORDER " ORDER BY device, hardware, variant, problem, mode, cache"

static bool read_timing(const struct ledger *ledger, sqlite3_stmt *row,
                        struct ledger_timing *timing, attn_error *why) {
    bool good = true;
    timing->id = sqlite3_column_int64(row, 0);
    timing->pack = sqlite3_column_int64(row, 1);
    for (int k = 0; k < LEDGER_KEYS; k++) {
        timing->key[k] = text_of(row, 2 + k, &good);
    }
    timing->shape = text_of(row, 2 + LEDGER_KEYS, &good);
    timing->image = text_of(row, 3 + LEDGER_KEYS, &good);
    timing->repeats = sqlite3_column_int64(row, 4 + LEDGER_KEYS);
    timing->ns = text_of(row, 5 + LEDGER_KEYS, &good);
    attn_error reason = {""};
    return (good || explain(why, "%s: out of memory", ledger->path)) &&
           (ledger_timing_read(timing, &reason) ||
            explain(why, "%s: timing %lld: %.200s", ledger->path, (long long)timing->id,
                    reason.text));
}

/* Finalizes the statement. */
static bool read_timings(struct ledger *ledger, sqlite3_stmt *rows, struct ledger_timings *timings,
                         attn_error *why) {
    int step = SQLITE_DONE;
    bool good = true;
    while (good && (step = sqlite3_step(rows)) == SQLITE_ROW) {
        struct ledger_timing *items = grown(timings->items, timings->count, sizeof *items);
        if (items == NULL) {
            good = explain(why, "%s: out of memory", ledger->path);
            break;
        }
        timings->items = items;
        good = read_timing(ledger, rows, &items[timings->count++], why);
    }
    good = good && (step == SQLITE_DONE || sql_fails(ledger, why));
    sqlite3_finalize(rows);
    return good;
}

bool ledger_timings(struct ledger *ledger, int64_t pack, struct ledger_timings *timings,
                    attn_error *why) {
    *timings = (struct ledger_timings){0};
    sqlite3_stmt *rows = sql_prepare(
        ledger, "SELECT " TIMING_COLUMNS " FROM timings WHERE pack = ?" TIMING_ORDER, why);
    if (rows == NULL) {
        return false;
    }
    sqlite3_bind_int64(rows, 1, pack);
    return read_timings(ledger, rows, timings, why);
}

/* The timings that were moved to, of each key the one that was last. */
bool ledger_baselines(struct ledger *ledger, struct ledger_timings *timings, attn_error *why) {
    *timings = (struct ledger_timings){0};
    sqlite3_stmt *rows =
        sql_prepare(ledger,
                    "SELECT " TIMING_COLUMNS " FROM timings JOIN (SELECT max(moves.id), new "
                    "FROM moves JOIN timings ON timings.id = new "
                    "GROUP BY device, hardware, variant, problem, mode, cache) "
                    "ON timings.id = new" TIMING_ORDER,
                    why);
    return rows != NULL && read_timings(ledger, rows, timings, why);
}

/* ---- writing --------------------------------------------------------------------------------- */

/* Steps, and finalizes. */
static bool insert_row(struct ledger *ledger, sqlite3_stmt *insert, int64_t *id, attn_error *why) {
    const bool good = sqlite3_step(insert) == SQLITE_DONE || sql_fails(ledger, why);
    sqlite3_finalize(insert);
    *id = sqlite3_last_insert_rowid(ledger->db);
    return good;
}

static bool insert_pack(struct ledger *ledger, struct ledger_pack *pack, attn_error *why) {
    sqlite3_stmt *insert =
        sql_prepare(ledger,
                    "INSERT INTO packs (root, verdict, reason, partial, mode, tool, library, "
                    "commit_name, imported, units, timings) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, "
                    "?)",
                    why);
    if (insert == NULL) {
        return false;
    }
    sql_bind(insert, 1, pack->root);
    sql_bind(insert, 2, pack->verdict);
    sql_bind(insert, 3, pack->reason);
    sqlite3_bind_int(insert, 4, pack->partial);
    sql_bind(insert, 5, pack->mode);
    sql_bind(insert, 6, pack->tool);
    sql_bind(insert, 7, pack->library);
    sql_bind(insert, 8, pack->commit);
    sql_bind(insert, 9, pack->imported);
    sqlite3_bind_int64(insert, 10, pack->units);
    sqlite3_bind_int64(insert, 11, pack->timings);
    return insert_row(ledger, insert, &pack->id, why);
}

static bool insert_timing(struct ledger *ledger, int64_t pack, const struct ledger_timing *timing,
                          attn_error *why) {
    sqlite3_stmt *insert =
        sql_prepare(ledger,
                    "INSERT INTO timings (pack, device, hardware, variant, problem, mode, cache, "
                    "shape, image, repeats, ns, samples, median_ns) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    why);
    if (insert == NULL) {
        return false;
    }
    int64_t id;
    sqlite3_bind_int64(insert, 1, pack);
    for (int k = 0; k < LEDGER_KEYS; k++) {
        sql_bind(insert, 2 + k, timing->key[k]);
    }
    sql_bind(insert, 2 + LEDGER_KEYS, timing->shape);
    sql_bind(insert, 3 + LEDGER_KEYS, timing->image);
    sqlite3_bind_int64(insert, 4 + LEDGER_KEYS, timing->repeats);
    sql_bind(insert, 5 + LEDGER_KEYS, timing->ns);
    sqlite3_bind_int64(insert, 6 + LEDGER_KEYS, (int64_t)timing->count);
    sqlite3_bind_double(insert, 7 + LEDGER_KEYS, 1e9 * timing->median);
    return insert_row(ledger, insert, &id, why);
}

struct addition {
    struct ledger_pack *pack;
    const struct ledger_timings *timings;
};

static bool add(struct ledger *ledger, void *context, attn_error *why) {
    const struct addition *addition = context;
    bool good = insert_pack(ledger, addition->pack, why);
    for (size_t i = 0; good && i < addition->timings->count; i++) {
        good = insert_timing(ledger, addition->pack->id, &addition->timings->items[i], why);
    }
    return good && ledger_link(ledger, LEDGER_PACK, addition->pack->id, why);
}

bool ledger_add(struct ledger *ledger, struct ledger_pack *pack,
                const struct ledger_timings *timings, attn_error *why) {
    struct addition addition = {pack, timings};
    pack->timings = (int64_t)timings->count;
    return sql_transaction(ledger, add, &addition, why);
}

struct movement {
    const struct ledger_move *moves;
    size_t count;
};

/* NaN is NULL there. */
static void bind_real(sqlite3_stmt *statement, int place, double value) {
    if (isnan(value)) {
        sqlite3_bind_null(statement, place);
    } else {
        sqlite3_bind_double(statement, place, value);
    }
}

/* Another ratchet may have moved it after this one had read it. */
static bool is_present(struct ledger *ledger, const struct ledger_move *one, attn_error *why) {
    sqlite3_stmt *last =
        sql_prepare(ledger,
                    "SELECT t.id FROM moves JOIN timings AS t ON t.id = new JOIN timings AS s "
                    "ON s.id = ? AND t.device = s.device AND t.hardware = s.hardware "
                    "AND t.variant = s.variant AND t.problem = s.problem AND t.mode = s.mode "
                    "AND t.cache = s.cache ORDER BY moves.id DESC LIMIT 1",
                    why);
    if (last == NULL) {
        return false;
    }
    sqlite3_bind_int64(last, 1, one->to);
    const int step = sqlite3_step(last);
    const int64_t present = step == SQLITE_ROW ? sqlite3_column_int64(last, 0) : 0;
    sqlite3_finalize(last);
    return (step == SQLITE_ROW || step == SQLITE_DONE || sql_fails(ledger, why)) &&
           (present == one->from ||
            explain(why, "%s: another ratchet has moved a baseline meanwhile", ledger->path));
}

static bool move(struct ledger *ledger, void *context, attn_error *why) {
    const struct movement *movement = context;
    bool good = true;
    for (size_t i = 0; good && i < movement->count; i++) {
        const struct ledger_move *one = &movement->moves[i];
        if (!is_present(ledger, one, why)) {
            return false;
        }
        sqlite3_stmt *insert = sql_prepare(
            ledger, "INSERT INTO moves (old, new, ratio, low, high) VALUES (?, ?, ?, ?, ?)", why);
        if (insert == NULL) {
            return false;
        }
        int64_t id;
        if (one->from > 0) {
            sqlite3_bind_int64(insert, 1, one->from);
        }
        sqlite3_bind_int64(insert, 2, one->to);
        bind_real(insert, 3, one->ratio);
        bind_real(insert, 4, one->low);
        bind_real(insert, 5, one->high);
        good = insert_row(ledger, insert, &id, why) && ledger_link(ledger, LEDGER_MOVE, id, why);
    }
    return good;
}

bool ledger_move(struct ledger *ledger, const struct ledger_move *moves, size_t count,
                 attn_error *why) {
    struct movement movement = {moves, count};
    return sql_transaction(ledger, move, &movement, why);
}
