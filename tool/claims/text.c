/* SPDX-License-Identifier: Apache-2.0
 *
 * text.c - see text.h.
 */
#include "claims/text.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/message.h"

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
        if (!isspace((unsigned char)*c) && *c != HIDDEN_SIGN) {
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

/* ---- tables ---------------------------------------------------------------------------------- */

static bool has_bar(const struct markdown_line *line) {
    return memchr(line->begin, '|', (size_t)(line->end - line->begin)) != NULL;
}

static bool is_rule(const struct markdown_line *line) {
    bool dash = false;
    for (const char *c = line->begin; c < line->end; c++) {
        if (*c == '\0' || strchr("|-: \t\r", *c) == NULL) {
            return false;
        }
        dash = dash || *c == '-';
    }
    return dash && has_bar(line);
}

/* A line that begins with a bar is a row; so is, bar or not, what has a rule above or below it. */
static void classify_tables(struct markdown *markdown) {
    bool inside = false;
    for (size_t i = 0; i < markdown->count; i++) {
        struct markdown_line *line = &markdown->lines[i];
        if (line->code || is_blank_line(line)) {
            inside = false;
            continue;
        }
        line->rule = i > 0 && is_rule(line) && has_bar(line - 1) && !line[-1].code;
        if (line->rule) {
            inside = line[-1].row = true;
        }
        line->row = inside || line->begin[strspn(line->begin, " ")] == '|';
    }
}

size_t table_cells(const struct markdown_line *line, struct span cells[TABLE_COLUMNS]) {
    size_t count = 0;
    char *begin = line->begin, *end = line->end;
    while (begin < end && isspace((unsigned char)*begin)) {
        begin++;
    }
    while (end > begin && isspace((unsigned char)end[-1])) {
        end--;
    }
    begin += begin < end && *begin == '|';
    while (begin < end && count < TABLE_COLUMNS) { /* a bar at the end begins no cell */
        char *stop = begin;
        while (stop < end && !(*stop == '|' && !(stop > begin && stop[-1] == '\\'))) {
            stop++;
        }
        cells[count++] = (struct span){begin, stop};
        begin = stop + 1;
    }
    return count;
}

/* ---- the text ------------------------------------------------------------------------------- */

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
    classify_tables(markdown);
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

void markdown_hide(char *begin, char *end) {
    for (; begin < end; begin++) {
        *begin = *begin == '\n' ? '\n' : HIDDEN_SIGN;
    }
}

/* ---- numbers --------------------------------------------------------------------------------- */

static bool is_word(char c) {
    return isalnum((unsigned char)c) || c == '_';
}

static bool is_digit_at(const char *at, const char *end) {
    return at < end && isdigit((unsigned char)*at);
}

static char *skip_digits(char *at, const char *end) {
    while (is_digit_at(at, end)) {
        at++;
    }
    return at;
}

/* Behind e+3; where there is none, here. */
static char *skip_exponent(char *at, const char *end) {
    if (at >= end || (*at != 'e' && *at != 'E')) {
        return at;
    }
    char *digits = at + 1 + (at + 1 < end && (at[1] == '-' || at[1] == '+'));
    char *stop = skip_digits(digits, end);
    return stop > digits && (stop == end || !is_word(*stop)) ? stop : at;
}

/* The number that begins here: its end. One with a second point is a version, and has no value. */
static char *read_number(char *at, char *end, struct shown_number *number) {
    char *stop = skip_digits(at, end);
    char *fraction = NULL;
    int points = 0;
    while (stop + 1 < end && *stop == '.' && is_digit_at(stop + 1, end)) {
        fraction = ++stop;
        stop = skip_digits(stop, end);
        points++;
    }
    char *behind = skip_exponent(stop, end);
    *number = (struct shown_number){.begin = at,
                                    .end = behind,
                                    .value = points < 2 ? strtod(at, NULL) : (double)NAN,
                                    .decimals = fraction != NULL ? (int)(stop - fraction) : 0,
                                    .bare = behind == stop};
    return behind;
}

/* What makes it negative stands before it: a hyphen, or the minus of Unicode. */
static bool has_sign(const char *from, const char *at) {
    return (at > from && (at[-1] == '-' || at[-1] == '+')) ||
           (at - from >= 3 && memcmp(at - 3, "\xe2\x88\x92", 3) == 0);
}

bool next_number(char *from, char *end, struct shown_number *number) {
    for (char *c = from; c < end; c++) {
        const bool point = *c == '.' && is_digit_at(c + 1, end);
        if (!point && !isdigit((unsigned char)*c)) {
            continue;
        }
        const bool apart = c == from || (!is_word(c[-1]) && c[-1] != '.');
        char *stop = read_number(c, end, number);
        if (apart && !isnan(number->value)) {
            number->bare = number->bare && !has_sign(from, c);
            return true;
        }
        c = stop - 1; /* D64, 1.2.3 */
    }
    return false;
}

/* ---- units ----------------------------------------------------------------------------------- */

static const struct unit {
    const char *text;
    bool any_case;
    bool whole; /* no letter or digit follows */
} UNITS[] = {
    {"us", false, true},       {"ms", false, true},       {"ns", false, true},
    {"usec", true, false},     {"msec", true, false},     {"nsec", true, false},
    {"microsec", true, false}, {"millisec", true, false}, {"nanosec", true, false},
    {"kflop", true, false},    {"mflop", true, false},    {"gflop", true, false},
    {"tflop", true, false},    {"pflop", true, false},    {"megaflop", true, false},
    {"gigaflop", true, false}, {"teraflop", true, false}, {"petaflop", true, false},
    {"flop/s", true, true},    {"flops", true, true},     {"mf/s", true, true},
    {"gf/s", true, true},      {"tf/s", true, true},      {"pf/s", true, true},
};

static const char *skip_blanks(const char *at, const char *end) {
    while (at < end && *at == ' ') {
        at++;
    }
    return at;
}

/* The text stands here: its end, or NULL. */
static const char *text_end(const char *at, const char *end, const char *text, bool any_case,
                            bool whole) {
    const size_t length = strlen(text);
    if ((size_t)(end - at) < length ||
        (any_case ? strncasecmp(at, text, length) : memcmp(at, text, length)) != 0) {
        return NULL;
    }
    return whole && at + length < end && is_word(at[length]) ? NULL : at + length;
}

static const char *named_unit_end(const char *at, const char *end) {
    for (size_t i = 0; i < sizeof UNITS / sizeof *UNITS; i++) {
        const char *stop = text_end(at, end, UNITS[i].text, UNITS[i].any_case, UNITS[i].whole);
        if (stop != NULL) {
            return stop;
        }
    }
    return NULL;
}

/* "1.5x", "1.5 x", but not 64x128, nor 64 x 128, nor 2 x D. */
static const char *times_end(const char *at, const char *end) {
    const char *sign = skip_blanks(at, end);
    if (sign >= end || (*sign != TIMES_SIGN && *sign != 'x' && *sign != 'X')) {
        return NULL;
    }
    const char *behind = sign + 1, *next = skip_blanks(behind, end);
    if (is_digit_at(sign == at ? behind : next, end)) {
        return NULL;
    }
    if (*sign == TIMES_SIGN) {
        return behind;
    }
    const bool operand =
        next < end &&
        (isupper((unsigned char)*next) || *next == '(' ||
         (isalpha((unsigned char)*next) && (next + 1 == end || !isalpha((unsigned char)next[1]))));
    const bool word = behind < end && is_word(*behind);
    return word || (sign > at && operand) ? NULL : behind;
}

/* "2.5 times", "3 times as fast", "5-fold"; what is done 3 times is no figure. */
static const char *word_end(const struct shown_number *number, const char *at, const char *end) {
    static const char *const FOLLOW[] = {"as ", "faster", "slower", "quicker"};
    const char *stop = text_end(at, end, "fold", true, true);
    if (stop != NULL) {
        return stop;
    }
    stop = text_end(at, end, "times", true, true);
    bool speed = stop != NULL && number->decimals > 0;
    for (size_t i = 0; stop != NULL && i < sizeof FOLLOW / sizeof *FOLLOW; i++) {
        speed = speed || text_end(skip_blanks(stop, end), end, FOLLOW[i], true, false) != NULL;
    }
    return speed ? stop : NULL;
}

const char *unit_end(const struct shown_number *number, const char *end) {
    const char *at = number->end, *stop = times_end(at, end);
    at = at < end && *at == '-' ? at + 1 : skip_blanks(at, end); /* a 5-us call */
    stop = stop != NULL ? stop : named_unit_end(at, end);
    return stop != NULL ? stop : word_end(number, at, end);
}

/* "rows × keys" is a product, "ratio, ×" and "× of the best" are none. */
static bool is_product(const char *begin, const char *sign, const char *end) {
    const char *next = skip_blanks(sign + 1, end);
    while (sign > begin && sign[-1] == ' ') {
        sign--;
    }
    return sign > begin && is_word(sign[-1]) && next < end && is_word(*next);
}

bool has_unit(const char *begin, const char *end) {
    for (const char *c = begin; c < end; c++) {
        const bool first = c == begin || !is_word(c[-1]);
        if ((first && named_unit_end(c, end) != NULL) ||
            (*c == TIMES_SIGN && !is_product(begin, c, end))) {
            return true;
        }
    }
    return false;
}
