/* SPDX-License-Identifier: Apache-2.0
 *
 * claims.c - see claims.h. Marks are dealt with first, and what they cover is blanked; every figure
 * that is left has no mark.
 */
#include "claims/claims.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/message.h"
#include "claims/plain.h"
#include "claims/scan.h"
#include "claims/text.h"
#include "claims/value.h"

const char *const CLAIM_NAMES[CLAIM_KINDS] = {"BACKED", "WRONG", "UNMARKED", "EXEMPT"};

enum { SPEC_BYTES = 1024, MOST_SPECS = 8 };

struct work {
    struct markdown markdown;
    struct claims_sources *sources;
    struct claims *claims;
    bool lost; /* out of memory */
    /* Marks above the table that is not yet closed. */
    char specs[MOST_SPECS][SPEC_BYTES];
    size_t spec_count, first_line;
};

/* ---- the list -------------------------------------------------------------------------------- */

static struct claim *add(struct work *work, enum claim_kind kind, const char *place,
                         const char *shown, size_t length) {
    static struct claim nowhere;
    struct claims *claims = work->claims;
    struct claim *items = realloc(claims->items, (claims->count + 1) * sizeof *items);
    if (items == NULL) {
        work->lost = true;
        return &nowhere;
    }
    claims->items = items;
    claims->counts[kind]++;
    struct claim *claim = &items[claims->count++];
    *claim = (struct claim){.kind = kind, .value = (double)NAN};
    claim->line = markdown_line_of(&work->markdown, place) + 1;
    snprintf(claim->shown, sizeof claim->shown, "%.*s", (int)(length < 60 ? length : 60), shown);
    for (char *c = claim->shown; *c != '\0'; c++) {
        *c = *c == '\n' ? ' ' : *c;
    }
    return claim;
}

/* Something is wrong with a mark itself. */
static void refuse(struct work *work, const char *place, const char *mark, const char *why) {
    struct claim *claim = add(work, CLAIM_WRONG, place, "", 0);
    snprintf(claim->backing, sizeof claim->backing, "%.200s", mark);
    snprintf(claim->reason, sizeof claim->reason, "%.250s", why);
}

/* Holds a number of the text against the one that the expression gives. */
static void compare(struct work *work, const struct shown_number *number,
                    const struct json_value *node, const char *name, const char *expression,
                    const char *before) {
    attn_error why = {""};
    double value = (double)NAN;
    const bool known =
        number->bare
            ? claims_value(node, expression, &value, &why)
            : explain(&why, "expected digits, perhaps a point and digits; no sign, no exponent");
    const double unit = pow(10, -number->decimals);
    const bool same = known && fabs(value - number->value) <= 0.5 * unit * (1 + 1e-9);
    struct claim *claim = add(work, same ? CLAIM_BACKED : CLAIM_WRONG, number->begin, number->begin,
                              (size_t)(number->end - number->begin));
    claim->value = value;
    claim->place = (size_t)(number->begin - work->markdown.text);
    claim->bytes = (size_t)(number->end - number->begin);
    claim->decimals = number->decimals;
    snprintf(claim->backing, sizeof claim->backing, "%.80s#%.80s%s%.80s", name, before,
             *before != '\0' ? ": " : "", expression);
    if (!known) {
        snprintf(claim->reason, sizeof claim->reason, "%.250s", why.text);
    } else if (!same) {
        snprintf(claim->reason, sizeof claim->reason, "the file gives %.*f (%.9g)",
                 number->decimals, value, value);
    }
}

/* ---- one figure ------------------------------------------------------------------------------ */

/* Splits "FILE#REST" in place. NULL: there is no #. */
static char *split_source(char *text) {
    char *hash = strchr(text, '#');
    if (hash != NULL) {
        *hash++ = '\0';
    }
    return hash;
}

static bool is_digit(char c) {
    return isdigit((unsigned char)c) != 0;
}

/* What is seen before a mark makes its number another one: "300.", "1,", "-"; or "1 " of "1 500",
 * where three digits follow. */
static bool joins_before(const struct plain *before, const struct shown_number *number) {
    const char *end = before->seen;
    if (end > before->text && (isalnum((unsigned char)end[-1]) || strchr(".,+-'_", end[-1]))) {
        return true;
    }
    while (end > before->text && end[-1] == ' ') {
        end--;
    }
    const bool group = number->end - number->begin >= 3 && is_digit(number->begin[1]) &&
                       is_digit(number->begin[2]) && !is_digit(number->begin[3]);
    const char *digits = end;
    while (digits > before->text && is_digit(digits[-1])) {
        digits--;
    }
    return group && digits < end && (digits == before->text || !isalnum((unsigned char)digits[-1]));
}

/* So does what is seen behind it: ".9", ",000", "e3", "0", "k". */
static bool joins_behind(const struct plain *behind) {
    char *at = behind->text;
    const struct shown_number none = {.end = at};
    if (at == behind->seen || *at == ' ') {
        return false;
    }
    const char next = at + 1 < behind->seen ? at[1] : ' ';
    const bool sign = *at == TIMES_SIGN || *at == OTHER_SIGN || strchr(".,'^", *at) != NULL;
    return is_digit(*at) || (sign && is_digit(next)) ||
           (isalpha((unsigned char)*at) && unit_end(&none, behind->seen) == NULL);
}

/* Whether a reader sees the number of a mark as one. `mark` is where that begins. */
static bool stands_alone(struct work *work, char *mark, const struct shown_number *number) {
    const struct markdown *markdown = &work->markdown;
    struct plain before = {0}, behind = {0};
    char *line = markdown->lines[markdown_line_of(markdown, mark)].begin;
    char *end = markdown->lines[markdown_line_of(markdown, number->end)].end;
    const bool good = plain_read(&before, line, mark) && plain_read(&behind, number->end, end);
    const bool alone = good && !joins_before(&before, number) && !joins_behind(&behind);
    work->lost = work->lost || !good;
    plain_free(&before);
    plain_free(&behind);
    return alone;
}

/* The content between a mark, which begins at `place`, and its end, which is on the same line. */
static void check_figure(struct work *work, char *mark, char *place, char *begin, char *end) {
    attn_error why = {""};
    struct shown_number number, more;
    char *expression = split_source(mark);
    if (expression == NULL) {
        refuse(work, begin, mark, "expected FILE#EXPRESSION");
        return;
    }
    if (!next_number(begin, end, &number)) {
        refuse(work, begin, mark, "there is no number between the marks");
    } else if (next_number(number.end, end, &more)) {
        refuse(work, begin, mark, "there is more than one number between the marks");
    } else if (!stands_alone(work, place, &number)) {
        refuse(work, begin, mark, "what stands beside the mark makes the number another one");
    } else {
        const struct json_value *document = claims_source(work->sources, mark, &why);
        if (document == NULL) {
            refuse(work, begin, mark, why.text);
        } else {
            compare(work, &number, document, mark, expression, "");
        }
    }
    markdown_blank(begin, end);
}

/* ---- tables ---------------------------------------------------------------------------------- */

/* The next part of a list, up to `separator` outside of brackets; NULL: that was all. */
static char *next_part(char **list, char separator) {
    char *begin = *list, *c = begin;
    if (begin == NULL) {
        return NULL;
    }
    for (int depth = 0; *c != '\0' && (*c != separator || depth > 0); c++) {
        depth += *c == '(' || *c == '[';
        depth -= *c == ')' || *c == ']';
    }
    *list = *c != '\0' ? c + 1 : NULL;
    *c = '\0';
    while (isspace((unsigned char)*begin)) {
        begin++;
    }
    while (c > begin && isspace((unsigned char)c[-1])) {
        *--c = '\0';
    }
    return begin;
}

/* The text of a cell, without what makes it bold or code. */
static void plain_text(struct span cell, char *text, size_t size) {
    size_t used = 0;
    for (const char *c = cell.begin; c < cell.end && used + 1 < size; c++) {
        if (*c != '*' && *c != '`' && *c != HIDDEN_SIGN &&
            (used > 0 || !isspace((unsigned char)*c))) {
            text[used++] = *c;
        }
    }
    while (used > 0 && isspace((unsigned char)text[used - 1])) {
        used--;
    }
    text[used] = '\0';
}

/* The path with $1 replaced by the text of the first cell, and so on. */
static bool fill_path(const char *path, const struct span *cells, size_t count, char *out,
                      attn_error *why) {
    size_t used = 0;
    while (*path != '\0' && used + 2 < SPEC_BYTES) {
        if (*path != '$') {
            out[used++] = *path++;
            continue;
        }
        char *end;
        const unsigned long column = strtoul(path + 1, &end, 10);
        if (column < 1 || column > count) {
            return explain(why, "'%.20s': the row has %zu cells", path, count);
        }
        plain_text(cells[column - 1], out + used, SPEC_BYTES - used);
        used += strlen(out + used);
        path = end;
    }
    out[used] = '\0';
    return true;
}

/* "$3 = EXPRESSION, EXPRESSION" for one row. */
static void check_column(struct work *work, char *part, const struct span *cells, size_t count,
                         const struct json_value *node, const char *name, const char *path) {
    char *end;
    const unsigned long column = part[0] == '$' ? strtoul(part + 1, &end, 10) : 0;
    char *list = column > 0 ? end + strspn(end, " \t\r\n") : NULL;
    if (list == NULL || *list != '=' || column > count) {
        refuse(work, cells[0].begin, part, "expected $ and the number of a column, = and more");
        return;
    }
    list++;
    struct span cell = cells[column - 1];
    struct shown_number number = {.end = cell.begin};
    char *expression = next_part(&list, ',');
    const bool any = next_number(cell.begin, cell.end, &number);
    bool more = any;
    while (more && expression != NULL) {
        compare(work, &number, node, name, expression, path);
        more = next_number(number.end, cell.end, &number);
        expression = next_part(&list, ',');
    }
    if (any && (more || expression != NULL)) { /* an empty cell claims nothing */
        refuse(work, cell.begin, part, "the cell has another number of figures");
    }
}

static void check_row(struct work *work, const char *spec, const struct span *cells, size_t count) {
    char copy[SPEC_BYTES], path[SPEC_BYTES], *rest = copy;
    attn_error why = {""};
    memcpy(copy, spec, sizeof copy);
    char *name = next_part(&rest, ';');
    char *pattern = name != NULL ? split_source(name) : NULL;
    if (pattern == NULL || rest == NULL) {
        refuse(work, cells[0].begin, spec, "expected FILE#PATH; $N = EXPRESSION");
        return;
    }
    const struct json_value *document = claims_source(work->sources, name, &why);
    const struct json_value *node = document != NULL && fill_path(pattern, cells, count, path, &why)
                                        ? claims_node(document, path, &why)
                                        : NULL;
    if (node == NULL) {
        refuse(work, cells[0].begin, name, why.text);
        return;
    }
    for (char *part; (part = next_part(&rest, ';')) != NULL;) {
        check_column(work, part, cells, count, node, name, path);
    }
}

/* Blanks the cells that a spec speaks of. */
static void blank_columns(const char *spec, const struct span *cells, size_t count) {
    for (const char *c = strchr(spec, ';'); c != NULL; c = strchr(c + 1, ';')) {
        const char *dollar = c + 1 + strspn(c + 1, " \t\r\n");
        const unsigned long column = *dollar == '$' ? strtoul(dollar + 1, NULL, 10) : 0;
        if (column > 0 && column <= count) {
            markdown_blank(cells[column - 1].begin, cells[column - 1].end);
        }
    }
}

/* The lines from first_line to the closing mark. */
static void check_table(struct work *work, size_t last) {
    struct markdown *markdown = &work->markdown;
    size_t rows = 0;
    for (size_t i = work->first_line; i < last; i++) {
        struct markdown_line *line = &markdown->lines[i];
        struct span cells[TABLE_COLUMNS];
        const bool head = i + 1 < last && line[1].rule;
        if (!line->row || line->rule || head) {
            continue;
        }
        const size_t count = table_cells(line, cells);
        for (size_t s = 0; count > 0 && s < work->spec_count; s++) {
            check_row(work, work->specs[s], cells, count);
        }
        for (size_t s = 0; count > 0 && s < work->spec_count; s++) {
            blank_columns(work->specs[s], cells, count);
        }
        rows += count > 0;
    }
    if (rows == 0) {
        refuse(work, markdown->lines[last].begin, "results", "there is no row of a table in it");
    }
    work->spec_count = 0;
}

static void open_table(struct work *work, const char *spec, const char *place) {
    if (work->spec_count == MOST_SPECS || strlen(spec) >= SPEC_BYTES) {
        refuse(work, place, spec, "more than 8 marks above a table, or one of 1024 bytes");
        return;
    }
    if (work->spec_count == 0) {
        work->first_line = markdown_line_of(&work->markdown, place);
    }
    memset(work->specs[work->spec_count], 0, SPEC_BYTES);
    memcpy(work->specs[work->spec_count++], spec, strlen(spec));
}

/* ---- exemptions ------------------------------------------------------------------------------ */

/* The block behind the mark: the rest of its paragraph, or the next one, or a fence. */
static void exempt(struct work *work, const char *reason, char *place, char *end) {
    struct markdown *markdown = &work->markdown;
    const size_t own = markdown_line_of(markdown, end);
    const struct markdown_line rest = {.begin = end, .end = markdown->lines[own].end};
    size_t first = own, last;
    if (is_blank_line(&rest)) {
        first = own + 1;
    }
    while (first < markdown->count && is_blank_line(&markdown->lines[first]) && first > own) {
        first++;
    }
    const bool fenced = first < markdown->count && first > own && markdown->lines[first].fence;
    for (last = first + fenced; last < markdown->count; last++) {
        if (fenced ? markdown->lines[last].fence : is_blank_line(&markdown->lines[last])) {
            break;
        }
    }
    struct claim *claim = add(work, CLAIM_EXEMPT, place, "", 0);
    snprintf(claim->reason, sizeof claim->reason, "%.250s", reason);
    if (first < markdown->count) {
        markdown_blank(first == own ? end : markdown->lines[first].begin,
                       last < markdown->count ? markdown->lines[last].end : markdown->end);
    }
}

/* ---- marks ----------------------------------------------------------------------------------- */

static bool begins(const char *text, const char *with) {
    return strncmp(text, with, strlen(with)) == 0;
}

/* The text of a comment on one line, without blanks at its ends, for free(). */
static char *body_of(const char *begin, const char *end) {
    char *body = malloc((size_t)(end - begin) + 1), *out = body;
    for (; body != NULL && begin < end; begin++) {
        const bool blank = isspace((unsigned char)*begin);
        if (!blank || (out > body && out[-1] != ' ')) {
            *out++ = blank ? ' ' : *begin;
        }
    }
    if (body != NULL) {
        out -= out > body && out[-1] == ' ';
        *out = '\0';
    }
    return body;
}

/* A figure between `end`, behind its mark, and the closing mark; returns where to go on. */
static char *take_figure(struct work *work, char *mark, char *begin, char *end) {
    static const char CLOSING[] = "<!-- /result -->";
    char *close = strstr(end, "<!--");
    const char *newline = memchr(end, '\n', (size_t)(work->markdown.end - end));
    if (close == NULL || (newline != NULL && newline < close) || !begins(close, CLOSING)) {
        refuse(work, end, mark, "expected <!-- /result --> behind the figure, on the same line");
        return end;
    }
    check_figure(work, mark, begin, end, close);
    char *after = close + strlen(CLOSING);
    markdown_blank(close, after);
    return after;
}

/* A comment at the beginning of a line ends the paragraph before it and tears the figure out. */
static bool begins_line(const struct work *work, const char *place) {
    const struct markdown_line *line =
        &work->markdown.lines[markdown_line_of(&work->markdown, place)];
    return line->begin + strspn(line->begin, " ") == place;
}

/* Whether there is an empty line in it: that ends a comment in a paragraph for some renderers. */
static bool has_empty_line(const char *begin, const char *end) {
    bool empty = false;
    for (; begin < end; begin++) {
        if (*begin == '\n' && empty) {
            return true;
        }
        empty = *begin == '\n' || (empty && isspace((unsigned char)*begin));
    }
    return false;
}

/* A comment from `begin` to `end`, of which `body` is the text. Returns where to go on. */
static char *take_comment(struct work *work, char *body, char *begin, char *end) {
    const bool ours =
        begins(body, "result") || begins(body, "/result") || begins(body, "not-a-result");
    char *next = end;
    if (ours && strstr(body, "--") != NULL) {
        refuse(work, begin, body, "-- inside: not every renderer hides such a comment");
    } else if (strstr(body, "--!>") != NULL || body[0] == '>' || begins(body, "->") ||
               (!begins_line(work, begin) && has_empty_line(begin, end))) {
        refuse(work, begin, body,
               "a comment that ends sooner for some renderers: --!>, <!-->, or "
               "an empty line in a paragraph");
        return begin + strlen("<!--"); /* what is in it may be seen */
    } else if (begins(body, "result ") && begins_line(work, begin)) {
        refuse(work, begin, body, "the mark begins its line, where it would end the paragraph");
    } else if (begins(body, "result ")) {
        next = take_figure(work, body + strlen("result "), begin, end);
    } else if (begins(body, "results ")) {
        open_table(work, body + strlen("results "), begin);
    } else if (strcmp(body, "/results") == 0 && work->spec_count > 0) {
        check_table(work, markdown_line_of(&work->markdown, begin));
    } else if (begins(body, "not-a-result: ")) {
        exempt(work, body + strlen("not-a-result: "), begin, end);
    } else if (ours) {
        refuse(work, begin, body, "this mark is not understood, or opens or closes nothing");
    }
    if (ours) {
        markdown_blank(begin, end);
    } else {
        markdown_hide(begin, end);
    }
    return next;
}

/* Behind the code in a line that begins here: `..`; one backtick further if it is none. */
static char *skip_code(char *at, const char *end) {
    size_t length = strspn(at, "`"), run;
    for (char *c = at + length; c<end; c += run> 0 ? run : 1) {
        run = strspn(c, "`");
        if (run == length) {
            return c + run;
        }
        if (c[0] == '\n' && c[1] == '\n') {
            break;
        }
    }
    return at + length;
}

static void take_marks(struct work *work) {
    struct markdown *markdown = &work->markdown;
    char *at = markdown->text;
    while (at < markdown->end && !work->lost) {
        const struct markdown_line *line = &markdown->lines[markdown_line_of(markdown, at)];
        if (line->code) {
            at = line->end + 1;
        } else if (*at == '\\') {
            at += at + 1 < markdown->end && ispunct((unsigned char)at[1]) ? 2 : 1;
        } else if (*at == '`') {
            at = skip_code(at, markdown->end);
        } else if (begins(at, "<!--")) {
            char *close = strstr(at + 4, "-->");
            char *body = close != NULL ? body_of(at + 4, close) : NULL;
            if (body == NULL) {
                refuse(work, at, "<!--", "this comment has no end");
                return;
            }
            at = take_comment(work, body, at, close + 3);
            free(body);
        } else {
            at++;
        }
    }
    if (work->spec_count > 0) {
        refuse(work, markdown->lines[work->first_line].begin, "results",
               "expected <!-- /results --> behind the table");
    }
}

/* ---- what is left ---------------------------------------------------------------------------- */

static void add_unmarked(void *context, const char *begin, const char *end, const char *reason) {
    struct work *work = context;
    struct claim *claim = add(work, CLAIM_UNMARKED, begin, begin, (size_t)(end - begin));
    snprintf(claim->reason, sizeof claim->reason, "%s", reason);
}

bool claims_read(const char *text, size_t bytes, struct claims_sources *sources,
                 struct claims *claims, attn_error *why) {
    struct work *work = calloc(1, sizeof *work);
    *claims = (struct claims){0};
    if (work == NULL) {
        return explain(why, "out of memory");
    }
    work->sources = sources;
    work->claims = claims;
    bool good = markdown_read(&work->markdown, text, bytes, why);
    if (good) {
        take_marks(work);
        work->lost = !claims_scan(&work->markdown, add_unmarked, work) || work->lost;
        good = !work->lost || explain(why, "out of memory");
    }
    markdown_free(&work->markdown);
    free(work);
    return good;
}

void claims_free(struct claims *claims) {
    free(claims->items);
    *claims = (struct claims){0};
}
