/* SPDX-License-Identifier: Apache-2.0
 *
 * doc.c - see doc.h.
 */
#include "report/doc.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>

#include "report/html.h"

enum { TEXT = 4 * HTML_TEXT_MOST + 4 };

#define PRINT_TO(text)                                                                             \
    do {                                                                                           \
        va_list list;                                                                              \
        va_start(list, format);                                                                    \
        vsnprintf(text, sizeof text, format, list);                                                \
        va_end(list);                                                                              \
    } while (0)

const char *gate_words(enum gate gate) {
    return gate == GATE_NOT_RUN ? "NOT RUN" : GATE_NAMES[gate];
}

const char *gate_class(enum gate gate) {
    static const char *const CLASSES[GATE_COUNT] = {
        [GATE_PASS] = "g-pass", [GATE_NOT_RUN] = "g-not-run", [GATE_STALE] = "g-stale",
        [GATE_FAIL] = "g-fail", [GATE_INVALID] = "g-invalid",
    };
    return CLASSES[gate];
}

const char *number_text(double number, char text[REPORT_TEXT]) {
    if (!isfinite(number)) {
        return "\xe2\x80\x93";
    }
    const double size = fabs(number);
    const bool whole = size <= floor(size);
    if (size > 0 && size < 0.01) {
        snprintf(text, REPORT_TEXT, "%.2g", number);
    } else {
        snprintf(text, REPORT_TEXT, "%.*f", whole || size >= 100 ? 0 : size >= 10 ? 1 : 2, number);
    }
    return text;
}

const char *seconds_text(double seconds, char text[REPORT_TEXT]) {
    static const struct {
        double unit;
        const char *name;
    } UNITS[] = {{1, "s"}, {1e-3, "ms"}, {1e-6, "\xc2\xb5s"}, {1e-9, "ns"}};
    size_t unit = 0;
    if (!isfinite(seconds)) {
        return "\xe2\x80\x93";
    }
    while (unit < 3 && seconds < UNITS[unit].unit) {
        unit++;
    }
    const double value = seconds / UNITS[unit].unit;
    snprintf(text, REPORT_TEXT, "%.*f %s",
             value >= 100  ? 1
             : value >= 10 ? 2
                           : 3,
             value, seconds > 0 ? UNITS[unit].name : "s");
    return text;
}

static void put_text(const struct doc *doc, const char *text) {
    if (doc->html) {
        html_put(doc->out, "%s", text);
    } else {
        markdown_text(doc->out, text);
    }
}

/* Markup. */
static void put(const struct doc *doc, const char *html, const char *markdown) {
    fputs(doc->html ? html : markdown, doc->out);
}

void doc_section(struct doc *doc, const char *id, const char *title) {
    if (doc->html) {
        html_put(doc->out, "<h2 id=\"%s\">%s</h2>\n", id, title);
    } else {
        fprintf(doc->out, "## %s\n\n", title);
    }
}

void doc_text(struct doc *doc, const char *class, const char *format, ...) {
    char text[TEXT];
    PRINT_TO(text);
    if (doc->html) {
        html_put(doc->out, "<p class=\"%s\">", class);
    }
    put_text(doc, text);
    put(doc, "</p>\n", "\n\n");
}

void doc_fact(struct doc *doc, const char *name, const char *format, ...) {
    char text[TEXT];
    PRINT_TO(text);
    put(doc, "<dt>", "- ");
    fputs(name, doc->out);
    put(doc, "</dt><dd>", ": ");
    put_text(doc, text);
    put(doc, "</dd>\n", "\n");
}

/* ---- tables ---------------------------------------------------------------------------------- */

void doc_table(struct doc *doc, enum doc_fold fold, const char *title, const char *caption,
               const char *columns) {
    doc->columns = doc->cell = 0;
    doc->headed = false;
    doc->folded = fold != DOC_SHOWN;
    if (doc->folded) {
        put(doc, fold == DOC_OPEN ? "<details open>" : "<details>", "<details>");
        html_put(doc->out, "<summary>%s</summary>", title);
        put(doc, "", "\n\n");
    }
    if (doc->html) {
        html_put(doc->out,
                 "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"%s\"><table>"
                 "<caption>%s</caption><thead><tr>",
                 title, caption);
    }
    while (*columns != '\0') {
        const char style = strchr("#`_", *columns) != NULL ? *columns++ : ' ';
        const size_t length = strcspn(columns, "|");
        char name[TEXT];
        snprintf(name, sizeof name, "%.*s", (int)length, columns);
        doc_column(doc, style, name);
        columns += length + (columns[length] == '|');
    }
}

static const char *class_of(char style) {
    return style == '#'   ? " class=\"n\""
           : style == '`' ? " class=\"name\""
           : style == '_' ? " class=\"shape\""
                          : "";
}

void doc_column(struct doc *doc, char style, const char *title) {
    assert(doc->columns < DOC_COLUMNS);
    doc->styles[doc->columns++] = style;
    put(doc, "<th scope=\"col\"", "| ");
    put(doc, style == '#' ? class_of(style) : "", "");
    put(doc, ">", "");
    put_text(doc, title);
    put(doc, "</th>", " ");
}

static void end_cell(struct doc *doc) {
    if (doc->cell > 0) {
        put(doc, doc->cell == 1 ? "</th>" : "</td>", " ");
    }
}

/* Of the head, too. */
static void end_row(struct doc *doc) {
    end_cell(doc);
    put(doc, doc->headed ? "</tr>\n" : "</tr></thead><tbody>\n", "|\n");
    for (size_t i = 0; !doc->html && !doc->headed && i < doc->columns; i++) {
        fputs(doc->styles[i] == '#' ? "|---:" : "|---", doc->out);
    }
    put(doc, "", doc->headed ? "" : "|\n");
    doc->headed = true;
    doc->cell = 0;
}

void doc_row(struct doc *doc) {
    end_row(doc);
    put(doc, "<tr>", "");
}

/* Returns its style. */
static char open_cell(struct doc *doc) {
    end_cell(doc);
    assert(doc->cell < doc->columns);
    const char style = doc->styles[doc->cell++];
    put(doc, doc->cell == 1 ? "<th scope=\"row\"" : "<td", "| ");
    put(doc, class_of(style), "");
    put(doc, ">", "");
    return style;
}

void doc_cell(struct doc *doc, const char *format, ...) {
    char text[TEXT];
    PRINT_TO(text);
    if (open_cell(doc) == '`' && text[0] != '\0') {
        doc_code(doc, NULL, "%s", text);
    } else {
        put_text(doc, text);
    }
}

void doc_gate(struct doc *doc, enum gate gate) {
    open_cell(doc);
    if (doc->html) {
        html_put(doc->out, "<span class=\"chip %s\">%s</span>", gate_class(gate), gate_words(gate));
    } else {
        fprintf(doc->out, "**%s**", gate_words(gate));
    }
}

void doc_more(struct doc *doc, const char *format, ...) {
    char text[TEXT];
    PRINT_TO(text);
    if (text[0] != '\0') {
        put(doc, "<small>", ", ");
        put_text(doc, text);
        put(doc, "</small>", "");
    }
}

void doc_code(struct doc *doc, const char *unit, const char *format, ...) {
    char text[TEXT];
    PRINT_TO(text);
    if (!doc->html) {
        markdown_code(doc->out, text);
    } else if (doc->links && unit != NULL) {
        html_put(doc->out, "<a href=\"units/%s.json\"><code>%s</code></a>", unit, text);
    } else {
        html_put(doc->out, "<code>%s</code>", text);
    }
}

void doc_unit(struct doc *doc, const char *unit, const char *text) {
    open_cell(doc);
    doc_code(doc, unit, "%s", text);
}

void doc_table_end(struct doc *doc, size_t left_out) {
    end_row(doc);
    put(doc, "</tbody></table></div>", "\n");
    if (doc->folded) {
        put(doc, "</details>\n", "</details>\n\n");
    }
    if (left_out > 0) {
        doc_text(doc, "note", "%zu more are in the pack.", left_out);
    }
}
