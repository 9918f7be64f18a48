/* SPDX-License-Identifier: Apache-2.0
 *
 * html.c - see html.h. One small printf whose strings are escaped.
 */
#include "report/html.h"

#include <assert.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/message.h"

static const char REPLACEMENT[] = "\xef\xbf\xbd"; /* U+FFFD */

/* ---- characters ------------------------------------------------------------------------------ */

/* The bytes of the UTF-8 character at `text`, and its number; 1 and U+FFFD where it is none. */
static size_t character(const char *text, uint32_t *code) {
    const size_t length = utf8_length(text, 4, code);
    *code = length > 0 ? *code : 0xfffd;
    return length > 0 ? length : 1;
}

static bool is_blank(uint32_t code) {
    return code == '\n' || code == '\r' || code == '\t';
}

static void html_character(FILE *out, const char *text, size_t length) {
    switch (length == 1 ? text[0] : 'a') {
    case '&': fputs("&amp;", out); break;
    case '<': fputs("&lt;", out); break;
    case '>': fputs("&gt;", out); break;
    case '"': fputs("&quot;", out); break;
    case '\'': fputs("&#39;", out); break;
    default: fwrite(text, 1, length, out);
    }
}

/* A dot after "www" makes an address; so does a colon before a slash, and a colon around a word a
 * picture (":x:"). Between letters an underscore is one. */
static bool is_marking(const char *start, const char *at) {
    static const char WORD[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_+-";
    switch (at[0]) {
    case '.': return at - start >= 3 && strncmp(at - 3, "www", 3) == 0;
    case ':': {
        const size_t word = strspn(at + 1, WORD);
        return at[1] == '/' || (word > 0 && at[1 + word] == ':');
    }
    case '_':
        return at == start || at[-1] == ' ' || at[-1] == '_' || at[1] == '\0' || at[1] == ' ' ||
               at[1] == '_';
    default: return strchr("\\`*[]<>#|~!@&$\"", at[0]) != NULL;
    }
}

enum language { HTML, HTML_LINES, MARKDOWN, MARKDOWN_CODE };

/* A code span takes no escapes, but for the bar in a table: what could end it is replaced. */
static void put_character(FILE *out, enum language language, const char *start, const char *at,
                          size_t length) {
    if (language < MARKDOWN) {
        html_character(out, at, length);
    } else if (language == MARKDOWN_CODE && at[0] == '`') {
        fputc('\'', out);
    } else {
        const bool escape = language == MARKDOWN ? is_marking(start, at) : at[0] == '|';
        fputs(escape ? "\\" : "", out);
        fwrite(at, 1, length, out);
    }
}

/* Up to `end` and at most `most` characters; a text that is cut at HTML_TEXT_MOST says so. */
static void put_text(FILE *out, enum language language, const char *text, const char *end,
                     size_t most) {
    size_t count = 0, length;
    for (const char *at = text; at < end; at += length, count++) {
        uint32_t code;
        length = character(at, &code);
        if (count == most) {
            fputs(most == HTML_TEXT_MOST ? "\xe2\x80\xa6" : "", out);
            return;
        }
        if (code == '\n' && language == HTML_LINES) {
            fputc('\n', out);
        } else if (code == 0xfffd || is_treacherous(code)) {
            fputs(is_blank(code) ? " " : REPLACEMENT, out);
        } else {
            put_character(out, language, text, at, length);
        }
    }
}

/* ---- the printf ------------------------------------------------------------------------------ */

void html_put(FILE *out, const char *format, ...) {
    va_list list;
    va_start(list, format);
    for (const char *at = format; *at != '\0';) {
        const size_t plain = strcspn(at, "%");
        fwrite(at, 1, plain, out);
        at += plain;
        if (strncmp(at, "%s", 2) == 0) {
            const char *text = va_arg(list, const char *);
            put_text(out, HTML, text, text + strlen(text), HTML_TEXT_MOST);
            at += 2;
        } else if (strncmp(at, "%d", 2) == 0) {
            fprintf(out, "%d", va_arg(list, int));
            at += 2;
        } else if (strncmp(at, "%zu", 3) == 0) {
            fprintf(out, "%zu", va_arg(list, size_t));
            at += 3;
        } else if (*at != '\0') {
            assert(strncmp(at, "%.1f", 4) == 0);
            fprintf(out, "%.1f", va_arg(list, double));
            at += 4;
        }
    }
    va_end(list);
}

/* ---- blocks ---------------------------------------------------------------------------------- */

void markdown_text(FILE *out, const char *text) {
    put_text(out, MARKDOWN, text, text + strlen(text), HTML_TEXT_MOST);
}

void markdown_code(FILE *out, const char *text) {
    const char *shown = *text != '\0' ? text : " "; /* two backticks would open a longer span */
    fputc('`', out);
    put_text(out, MARKDOWN_CODE, shown, shown + strlen(shown), HTML_TEXT_MOST);
    fputc('`', out);
}

void html_lines(FILE *out, const char *text, size_t most) {
    size_t end = strlen(text);
    if (end > most) { /* whole lines, if there is one */
        const char *newline = memrchr(text, '\n', most);
        end = newline != NULL ? (size_t)(newline - text) : most;
    }
    put_text(out, HTML_LINES, text, text + end, SIZE_MAX);
}

/* The policy holds even if a string got out of its place: nothing runs and nothing is loaded. */
void html_open(FILE *out, const char *title) {
    fputs("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
          "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
          "style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'\">\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
          "<meta name=\"referrer\" content=\"no-referrer\">\n"
          "<meta name=\"color-scheme\" content=\"light dark\">\n",
          out);
    html_put(out, "<title>%s</title>\n<style>", title);
    fputs(HTML_STYLE, out);
    fputs("</style>\n</head>\n<body>\n"
          "<a class=\"skip\" href=\"#content\">Skip to the content</a>\n"
          "<main id=\"content\">\n",
          out);
}

void html_close(FILE *out, const char *footer) {
    html_put(out, "</main>\n<footer><p>%s</p></footer>\n</body>\n</html>\n", footer);
}
