/* SPDX-License-Identifier: Apache-2.0
 *
 * html_check.c - see html_check.h.
 */
#include "tool/html_check.h"

#include <stdio.h>
#include <string.h>

enum { DEPTH = 40, NAME = 24 };

static const char *const TAGS[] = {
    "a",     "b",    "body",    "br",         "caption", "code",  "dd",      "details", "div",
    "dl",    "dt",   "figure",  "figcaption", "footer",  "g",     "h1",      "h2",      "h3",
    "head",  "html", "i",       "li",         "main",    "meta",  "nav",     "ol",      "p",
    "path",  "pre",  "section", "small",      "span",    "style", "summary", "svg",     "table",
    "tbody", "td",   "text",    "th",         "thead",   "title", "tr",      "ul",      NULL};
static const char *const VOID_TAGS[] = {"br", "meta", NULL};
static const char *const ATTRIBUTES[] = {
    "aria-hidden", "aria-label", "charset", "class", "content", "d",    "height", "href",
    "http-equiv",  "id",         "lang",    "name",  "open",    "role", "scope",  "style",
    "tabindex",    "transform",  "viewBox", "width", "x",       "y",    NULL};

static bool among(const char *word, const char *const *list) {
    while (*list != NULL && strcmp(*list, word) != 0) {
        list++;
    }
    return *list != NULL;
}

static bool refuse(const char *page, const char *at, const char *what, char *why, size_t size) {
    int line = 1;
    for (const char *p = page; p < at; p++) {
        line += *p == '\n';
    }
    snprintf(why, size, "line %d: %s: %.60s", line, what, at);
    return false;
}

/* A name of letters, digits and '-'; what follows it. */
static const char *read_name(const char *at, char name[NAME]) {
    size_t length = strspn(at, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-");
    snprintf(name, NAME, "%.*s", length < NAME ? (int)length : NAME - 1, at);
    return at + length;
}

/* Addresses: within the page, or of a file beside it. */
static bool is_local(const char *value, size_t length) {
    return value[0] == '#' ||
           (length > 6 && strncmp(value, "units/", 6) == 0 && memchr(value, ':', length) == NULL);
}

/* The attributes up to '>' or "/>"; NULL: one is not as it should be. */
static const char *read_attributes(const char *at) {
    while (*at != '>' && strncmp(at, "/>", 2) != 0) {
        char name[NAME];
        if (*at != ' ') {
            return NULL;
        }
        at = read_name(at + 1, name);
        if (!among(name, ATTRIBUTES)) {
            return NULL;
        }
        if (*at != '=') {
            continue;
        }
        const size_t length = at[1] == '"' ? strcspn(at + 2, "\"<>") : 0;
        if (at[1] != '"' || at[2 + length] != '"' ||
            (strcmp(name, "href") == 0 && !is_local(at + 2, length))) {
            return NULL;
        }
        at += length + 3;
    }
    return at;
}

bool html_check(const char *page, char *why, size_t size) {
    char stack[DEPTH][NAME], name[NAME];
    int depth = 0;
    const char *doctype = "<!DOCTYPE html>\n";
    if (strncmp(page, doctype, strlen(doctype)) != 0) {
        return refuse(page, page, "no doctype", why, size);
    }
    for (const char *at = strchr(page + strlen(doctype), '<'); at != NULL; at = strchr(at, '<')) {
        if (at[1] == '/') {
            const char *end = read_name(at + 2, name);
            if (*end != '>' || depth == 0 || strcmp(stack[depth - 1], name) != 0) {
                return refuse(page, at, "closes what is not open", why, size);
            }
            depth--;
            at = end;
            continue;
        }
        const char *end = read_name(at + 1, name);
        end = among(name, TAGS) ? read_attributes(end) : NULL;
        if (end == NULL || depth == DEPTH) {
            return refuse(page, at, "a tag that is not ours", why, size);
        }
        if (*end == '>' && !among(name, VOID_TAGS)) {
            memcpy(stack[depth++], name, NAME);
        }
        at = end;
    }
    return depth == 0 || refuse(page, page + strlen(page), "a tag stays open", why, size);
}
