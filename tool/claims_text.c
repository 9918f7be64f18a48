/* SPDX-License-Identifier: Apache-2.0
 *
 * claims_text.c - see claims_text.h.
 */
#include "claims_text.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "message.h"

/* ---- lines ----------------------------------------------------------------------------------- */

static size_t indent_of(const struct markdown_line *line) {
    size_t columns = 0;
    for (const char *c = line->begin; c < line->end && (*c == ' ' || *c == '\t'); c++) {
        columns += *c == '\t' ? 4 : 1;
    }
    return columns;
}

bool is_blank_line(const struct markdown_line *line) {
    for (const char *c = line->begin; c < line->end; c++) {
        if (!isspace((unsigned char)*c)) {
            return false;
        }
    }
    return true;
}

/* How many ` or ~ open or close a fence here; 0: it is none. */
static size_t fence_length(const struct markdown_line *line, char *mark) {
    const char *c = line->begin + strspn(line->begin, " ");
    if (c - line->begin > 3 || c >= line->end || (*c != '`' && *c != '~')) {
        return 0;
    }
    *mark = *c;
    size_t length = 0;
    while (c + length < line->end && c[length] == *mark) {
        length++;
    }
    /* A backtick behind the opening ones makes it code in a line. */
    const bool inline_code =
        *mark == '`' && memchr(c + length, '`', (size_t)(line->end - c) - length) != NULL;
    return length >= 3 && !inline_code ? length : 0;
}

static void classify(struct markdown *markdown) {
    size_t open = 0; /* length of the fence that is open */
    char opened = 0;
    bool after_blank = true; /* or after indented code: a line of text goes on otherwise */
    for (size_t i = 0; i < markdown->count; i++) {
        struct markdown_line *line = &markdown->lines[i];
        char mark = 0;
        const size_t length = fence_length(line, &mark);
        if (open > 0) {
            line->code = true;
            line->fence = length >= open && mark == opened;
            open = line->fence ? 0 : open;
            after_blank = true;
        } else if (length > 0) {
            line->code = line->fence = true;
            open = length;
            opened = mark;
        } else if (is_blank_line(line)) {
            after_blank = true;
        } else {
            line->code = after_blank && indent_of(line) >= 4;
            after_blank = line->code;
        }
    }
}

bool markdown_read(struct markdown *markdown, const char *text, size_t bytes, attn_error *why) {
    size_t lines = 1;
    for (size_t i = 0; i < bytes; i++) {
        lines += text[i] == '\n';
    }
    *markdown = (struct markdown){.text = malloc(bytes + 1),
                                  .lines = calloc(lines, sizeof *markdown->lines)};
    if (markdown->text == NULL || markdown->lines == NULL) {
        markdown_free(markdown);
        return explain(why, "out of memory");
    }
    memcpy(markdown->text, text, bytes);
    markdown->text[bytes] = '\0';
    markdown->end = markdown->text + bytes;
    char *begin = markdown->text;
    while (begin <= markdown->end) {
        char *newline = memchr(begin, '\n', (size_t)(markdown->end - begin));
        char *end = newline != NULL ? newline : markdown->end;
        markdown->lines[markdown->count++] = (struct markdown_line){.begin = begin, .end = end};
        begin = end + 1;
    }
    classify(markdown);
    return true;
}

void markdown_free(struct markdown *markdown) {
    free(markdown->text);
    free(markdown->lines);
    *markdown = (struct markdown){0};
}

size_t markdown_line_of(const struct markdown *markdown, const char *place) {
    size_t low = 0, high = markdown->count - 1;
    while (low < high) {
        const size_t middle = (low + high + 1) / 2;
        if (markdown->lines[middle].begin <= place) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return low;
}

void markdown_blank(char *begin, char *end) {
    for (; begin < end; begin++) {
        *begin = *begin == '\n' ? '\n' : ' ';
    }
}

/* ---- tables ---------------------------------------------------------------------------------- */

bool is_table_row(const struct markdown_line *line) {
    return !line->code && !is_blank_line(line) && line->begin[strspn(line->begin, " ")] == '|';
}

bool is_table_rule(const struct markdown_line *line) {
    bool dash = false;
    for (const char *c = line->begin; c < line->end; c++) {
        if (strchr("|-: \r", *c) == NULL) {
            return false;
        }
        dash = dash || *c == '-';
    }
    return dash && is_table_row(line);
}

size_t table_cells(const struct markdown_line *line, struct span cells[TABLE_COLUMNS]) {
    size_t count = 0;
    char *begin = memchr(line->begin, '|', (size_t)(line->end - line->begin));
    while (begin != NULL && count < TABLE_COLUMNS) {
        char *end = ++begin;
        while (end < line->end && !(*end == '|' && end[-1] != '\\')) {
            end++;
        }
        if (end == line->end) {
            break; /* what follows the last bar is no cell */
        }
        cells[count++] = (struct span){begin, end};
        begin = end;
    }
    return count;
}

/* ---- numbers and units ----------------------------------------------------------------------- */

static bool is_word(char c) {
    return isalnum((unsigned char)c) || c == '_';
}

bool next_number(char *from, char *end, struct shown_number *number) {
    for (char *c = from; c < end; c++) {
        if (!isdigit((unsigned char)*c)) {
            continue;
        }
        char *stop = c;
        int decimals = 0;
        while (stop < end && isdigit((unsigned char)*stop)) {
            stop++;
        }
        if (end - stop > 1 && *stop == '.' && isdigit((unsigned char)stop[1])) {
            stop++;
            for (; stop < end && isdigit((unsigned char)*stop); decimals++) {
                stop++;
            }
        }
        if (c > from && (is_word(c[-1]) || c[-1] == '.')) {
            c = stop; /* D64, 1.2.3 */
            continue;
        }
        *number = (struct shown_number){c, stop, strtod(c, NULL), decimals};
        return true;
    }
    return false;
}

enum follows { ANYTHING, NO_WORD, NO_NUMBER };

static const struct unit {
    const char *text;
    bool apart; /* a blank may stand before it */
    enum follows follows;
} UNITS[] = {
    {"\xc2\xb5s", true, NO_WORD}, /* both of Unicode's micro signs */
    {"\xce\xbcs", true, NO_WORD}, {"us", true, NO_WORD},         {"ms", true, NO_WORD},
    {"ns", true, NO_WORD},        {"\xc3\x97", true, NO_NUMBER}, /* times, but not 64 x 128 */
    {"&times;", true, NO_NUMBER}, {"x", false, NO_WORD},         {"MFLOP", true, ANYTHING},
    {"GFLOP", true, ANYTHING},    {"TFLOP", true, ANYTHING},     {"PFLOP", true, ANYTHING},
};

/* Behind blanks, those of HTML and Unicode too, and what makes a number bold or code. */
static const char *skip_between(const char *at, const char *end) {
    static const char *const BETWEEN[] = {" ", "*", "`", "&nbsp;", "\xc2\xa0", "\xe2\x80\xaf"};
    for (size_t i = 0; i < sizeof BETWEEN / sizeof *BETWEEN;) {
        const size_t length = strlen(BETWEEN[i]);
        if ((size_t)(end - at) >= length && memcmp(at, BETWEEN[i], length) == 0) {
            at += length;
            i = 0;
        } else {
            i++;
        }
    }
    return at;
}

static bool allows(enum follows follows, const char *at, const char *end) {
    switch (follows) {
    case NO_WORD: return at == end || !is_word(*at);
    case NO_NUMBER: at = skip_between(at, end); return at == end || !isdigit((unsigned char)*at);
    default: return true;
    }
}

const char *unit_end(const char *at, const char *end) {
    const char *apart = skip_between(at, end);
    for (size_t i = 0; i < sizeof UNITS / sizeof *UNITS; i++) {
        const char *from = UNITS[i].apart ? apart : at;
        const size_t length = strlen(UNITS[i].text);
        if ((size_t)(end - from) >= length && memcmp(from, UNITS[i].text, length) == 0 &&
            allows(UNITS[i].follows, from + length, end)) {
            return from + length;
        }
    }
    return NULL;
}

bool has_unit(const char *begin, const char *end) {
    for (const char *c = begin; c < end; c++) {
        if ((c == begin || !is_word(c[-1])) && *c != 'x' && unit_end(c, end) != NULL) {
            return true;
        }
    }
    return false;
}
