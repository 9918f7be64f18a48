/* SPDX-License-Identifier: Apache-2.0
 *
 * scan.c - see scan.h. The text is read block by block: a row of a table, an HTML
 * table, or lines that follow each other.
 */
#include "claims/scan.h"

#include <string.h>
#include <strings.h>

#include "claims/plain.h"

struct scan {
    const struct markdown *markdown;
    claims_found *found;
    void *context;
};

static void report(const struct scan *scan, const struct plain *plain, const char *begin,
                   const char *end, const char *reason) {
    scan->found(scan->context, plain->place[begin - plain->text].begin,
                plain->place[end - 1 - plain->text].end, reason);
}

/* Numbers with a unit; with `bare`, those that have none. */
static bool scan_span(const struct scan *scan, struct span span, bool bare, const char *reason) {
    struct plain plain;
    struct shown_number number;
    if (!plain_read(&plain, span.begin, span.end)) {
        return false;
    }
    for (char *from = plain.text; next_number(from, plain.end, &number); from = number.end) {
        const char *unit = unit_end(&number, plain.end);
        if ((unit != NULL) != bare) {
            report(scan, &plain, number.begin, bare ? number.end : unit, reason);
        }
    }
    plain_free(&plain);
    return true;
}

/* Whether a unit stands in it; true as well if that cannot be found out. */
static bool names_unit(struct span span) {
    struct plain plain;
    const bool found = !plain_read(&plain, span.begin, span.end) || has_unit(plain.text, plain.end);
    plain_free(&plain);
    return found;
}

/* Numbers of a table's row in columns whose head names a unit. */
static bool scan_row(const struct scan *scan, const struct markdown_line *head,
                     const struct markdown_line *line) {
    struct span heads[TABLE_COLUMNS], cells[TABLE_COLUMNS];
    const size_t columns = table_cells(head, heads), count = table_cells(line, cells);
    bool good = true;
    for (size_t i = 0; good && i < count && i < columns; i++) {
        good = !names_unit(heads[i]) ||
               scan_span(scan, cells[i], true, "no mark, in a column that has a unit");
    }
    return good;
}

/* "<table" or "</table" in a line, in letters of any case. */
static bool has_tag(const struct markdown_line *line, const char *tag) {
    const size_t length = strlen(tag);
    for (const char *c = line->begin; c + length <= line->end; c++) {
        if (strncasecmp(c, tag, length) == 0) {
            return true;
        }
    }
    return false;
}

static bool opens_html_table(const struct markdown_line *line) {
    return !line->code && has_tag(line, "<table");
}

/* The last line of the block that begins with this one. */
static size_t block_end(const struct markdown *markdown, size_t first) {
    const struct markdown_line *lines = markdown->lines;
    size_t last = first;
    if (opens_html_table(&lines[first])) {
        while (last + 1 < markdown->count && !has_tag(&lines[last], "</table")) {
            last++;
        }
        return last;
    }
    while (!lines[first].row && last + 1 < markdown->count && !is_blank_line(&lines[last + 1]) &&
           lines[last + 1].code == lines[first].code && !lines[last + 1].row &&
           !opens_html_table(&lines[last + 1])) {
        last++;
    }
    return last;
}

bool claims_scan(const struct markdown *markdown, claims_found *found, void *context) {
    const struct scan scan = {markdown, found, context};
    const struct markdown_line *head = NULL; /* of the table that goes on here */
    bool good = true;
    for (size_t i = 0, last; good && i < markdown->count; i = last + 1) {
        const struct markdown_line *line = &markdown->lines[i];
        last = block_end(markdown, i);
        const struct span block = {line->begin, markdown->lines[last].end};
        good = scan_span(&scan, block, false,
                         line->code ? "no mark, and code cannot have one" : "no mark");
        head = line->rule ? line - 1 : line->row ? head : NULL;
        if (good && opens_html_table(line) && names_unit(block)) {
            good = scan_span(&scan, block, true, "no mark, in a table that has a unit");
        } else if (good && head != NULL && !line->rule) {
            good = scan_row(&scan, head, line);
        }
    }
    return good;
}
