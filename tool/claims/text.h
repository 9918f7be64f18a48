/* SPDX-License-Identifier: Apache-2.0
 *
 * text.h - Markdown as far as figures in it are concerned: lines, code, tables, numbers.
 *
 * Invariant: the text is a copy that keeps its length: what has been dealt with is overwritten by
 * blanks, so that a place in it has the same line as in the file.
 */
#ifndef ATTEST_CLAIMS_TEXT_H
#define ATTEST_CLAIMS_TEXT_H

#include <stdbool.h>
#include <stddef.h>

#include "attn.h"

struct markdown_line {
    char *begin, *end; /* without the newline */
    bool code;         /* in a fence, the fence itself, or indented: shown as it is */
    bool fence;        /* opens or closes one */
    bool row, rule;    /* of a table; the line of dashes under its head */
};

struct markdown {
    char *text, *end;
    struct markdown_line *lines;
    size_t count;
};

bool markdown_read(struct markdown *markdown, const char *text, size_t bytes, attn_error *why);
void markdown_free(struct markdown *markdown);

/* The index of the line in which a place is; its number is one more. */
size_t markdown_line_of(const struct markdown *markdown, const char *place);

/* Overwrites everything but newlines: with blanks, or with nothing that a reader would see. */
void markdown_blank(char *begin, char *end);
void markdown_hide(char *begin, char *end);

bool is_blank_line(const struct markdown_line *line);

enum { TABLE_COLUMNS = 32 }; /* what is beyond is left out */
struct span {
    char *begin, *end;
};
size_t table_cells(const struct markdown_line *line, struct span cells[TABLE_COLUMNS]);

/* What stands for every times sign, and for letters of no meaning here, in a plain text; and for
 * each byte that markdown_hide overwrote. */
enum { TIMES_SIGN = 1, HIDDEN_SIGN = 2, OTHER_SIGN = 127 };

/* A number as it is shown: digits, perhaps a point and more digits, perhaps an exponent; no part of
 * a word, nor of a version such as 1.2.3. */
struct shown_number {
    char *begin, *end;
    double value;
    int decimals;
    bool bare; /* no sign, no exponent */
};

/* The first one that begins at `from` or later; false: there is none. */
bool next_number(char *from, char *end, struct shown_number *number);

/* Whether a unit of speed or time stands behind a number of a plain text (plain.h): the end
 * of it, or NULL. 64x128 has none. */
const char *unit_end(const struct shown_number *number, const char *end);

/* Whether one stands anywhere in a plain text, as in the head of a column. */
bool has_unit(const char *begin, const char *end);

#endif /* ATTEST_CLAIMS_TEXT_H */
