/* SPDX-License-Identifier: Apache-2.0
 *
 * lines.c - hash tables of lines, with open addressing.
 *
 * Invariant: at most half of a table is used. One that is full, or cannot grow, says so (`full`).
 */
#include <stdlib.h>

#include "race/lines.h"

void free_table(struct line_table *table) {
    if (table != NULL) {
        free(table->lines);
        free(table);
    }
}

struct line_table *table_make(uint32_t most) {
    struct line_table *table = calloc(1, sizeof(*table));
    if (table == NULL) {
        return NULL;
    }
    table->capacity = 256;
    table->most = most;
    table->lines = calloc(table->capacity, sizeof(*table->lines));
    if (table->lines == NULL) {
        free(table);
        return NULL;
    }
    return table;
}

struct line *probe(const struct line_table *table, uint64_t key) {
    uint32_t at = (uint32_t)(key * 0x9e3779b97f4a7c15ULL >> 32) & (table->capacity - 1);
    while (table->lines[at].key != 0 && table->lines[at].key != key) {
        at = (at + 1) & (table->capacity - 1);
    }
    return &table->lines[at];
}

static bool table_grow(struct line_table *table) {
    const struct line_table old = *table;
    struct line *lines = calloc((size_t)old.capacity * 2, sizeof(*lines));
    if (lines == NULL) {
        return false;
    }
    table->lines = lines;
    table->capacity = old.capacity * 2;
    for (uint32_t i = 0; i < old.capacity; i++) {
        if (old.lines[i].key != 0) {
            *probe(table, old.lines[i].key) = old.lines[i];
        }
    }
    free(old.lines);
    return true;
}

struct line *table_line(struct line_table *table, uint64_t key) {
    struct line *line = probe(table, key);
    if (line->key != 0) {
        return line;
    }
    if (table->count >= table->most) {
        table->full = true;
        return NULL;
    }
    if (2 * (table->count + 1) > table->capacity) {
        if (!table_grow(table)) {
            table->most = table->count;
            table->full = true;
            return NULL;
        }
        line = probe(table, key);
    }
    line->key = key;
    table->count++;
    return line;
}
