/* SPDX-License-Identifier: Apache-2.0
 *
 * html.h - text into HTML (and SVG inside it) and into Markdown, and the frame of a page.
 *
 *     html_open(out, "Report");
 *     html_put(out, "<p title=\"%s\">%s: %d of %zu</p>\n", why, variant, passed, count);
 *     html_close(out, "The end.");
 *
 * The format is a literal of the caller and goes out as it is; every %s in it is escaped for a
 * place between tags or between double quotes. Conversions: %s %d %zu %.1f, and no other.
 *
 * Invariant: a string argument is text and stays text, wherever it came from: it ends no tag,
 * attribute, table cell or line, holds no control or direction character, and is at most
 * HTML_TEXT_MOST characters long. The page has no script, loads nothing, and forbids both.
 */
#ifndef ATTEST_REPORT_HTML_H
#define ATTEST_REPORT_HTML_H

#include <stdio.h>

enum { HTML_TEXT_MOST = 400 }; /* characters of a string; what is cut off is shown by an ellipsis */

void html_put(FILE *out, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Several lines, as they are, for <pre>; of a longer text those that fit into `most` bytes. */
void html_lines(FILE *out, const char *text, size_t most);

/* A string in Markdown (GitHub's), for prose and the cells of tables; and as code: `text`. */
void markdown_text(FILE *out, const char *text);
void markdown_code(FILE *out, const char *text);

/* Everything up to the content of <main>, with the style; and what closes it. */
void html_open(FILE *out, const char *title);
void html_close(FILE *out, const char *footer);

/* The one style sheet (html_style.c): colours are variables, for light and dark. */
extern const char HTML_STYLE[];

#endif /* ATTEST_REPORT_HTML_H */
