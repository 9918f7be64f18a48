/* SPDX-License-Identifier: Apache-2.0
 *
 * doc.h - a document in HTML or in Markdown by the same calls: headings, paragraphs, facts, tables.
 *
 *     doc_table(doc, DOC_FOLDED, "Every kernel", "What each variant needs", "`Variant|#Registers");
 *     doc_row(doc);
 *     doc_cell(doc, "%s", variant);
 *     doc_cell(doc, "%d", registers);
 *     doc_table_end(doc, 0);
 *
 * Invariant: what is printed by a format is text and stays text, in both languages (html.h).
 */
#ifndef ATTEST_REPORT_DOC_H
#define ATTEST_REPORT_DOC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "pack/judge.h"

enum { DOC_COLUMNS = 32 }; /* of a table, at most */

struct doc {
    FILE *out;
    bool html;  /* else Markdown */
    bool links; /* the page will lie in the pack's folder: names of units are links */
    /* the table that is open */
    char styles[DOC_COLUMNS];
    size_t columns, cell;
    bool headed, folded;
};

#define DOC_FORMAT(place) __attribute__((format(printf, place, place + 1)))

const char *gate_words(enum gate gate); /* "NOT RUN" for NOT_RUN */
const char *gate_class(enum gate gate); /* of the style sheet */

/* "12.3 us", "4.56 ms", "1.2 s"; a dash for what is no number. */
enum { REPORT_TEXT = 40 };
const char *seconds_text(double seconds, char text[REPORT_TEXT]);
const char *number_text(double number, char text[REPORT_TEXT]);

void doc_section(struct doc *doc, const char *id, const char *title);
void doc_text(struct doc *doc, const char *class, const char *format, ...) DOC_FORMAT(3);

/* In HTML a pair of a <dl>, which the caller opens. */
void doc_fact(struct doc *doc, const char *name, const char *format, ...) DOC_FORMAT(3);

/* Columns: titles with bars between them; "#..." holds numbers, "`..." code, "_..." is not broken
 * into lines. doc_column adds one. */
enum doc_fold { DOC_SHOWN, DOC_OPEN, DOC_FOLDED };
void doc_table(struct doc *doc, enum doc_fold fold, const char *title, const char *caption,
               const char *columns);
void doc_column(struct doc *doc, char style, const char *title);
void doc_row(struct doc *doc);

/* The next cell: text, or a verdict. */
void doc_cell(struct doc *doc, const char *format, ...) DOC_FORMAT(2);
void doc_gate(struct doc *doc, enum gate gate);
void doc_unit(struct doc *doc, const char *unit, const char *text); /* of code, as by doc_code */

/* In the same cell: a line of its own in small print; code, in HTML a link to its unit if `unit` is
 * its name. */
void doc_more(struct doc *doc, const char *format, ...) DOC_FORMAT(2);
void doc_code(struct doc *doc, const char *unit, const char *format, ...) DOC_FORMAT(3);

/* left_out: rows that are in the pack only. */
void doc_table_end(struct doc *doc, size_t left_out);

#endif /* ATTEST_REPORT_DOC_H */
