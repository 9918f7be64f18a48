/* SPDX-License-Identifier: Apache-2.0
 *
 * join.c - see runtime.h: joins the PTX of several modules into one text, so that a name that is
 * .extern in one module finds its definition in another.
 *
 * A module's private names (string constants, labels of debug information) get the number of the
 * module as a suffix, and an offset is added to its numbers of source files. Of several .weak
 * definitions of a name (an inline function) the first is kept.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/runtime.h"

enum { FILES_OF_MODULE = 10000 };

struct join {
    const char *at;  /* the module, from here on */
    const char *all; /* the text so far */
    FILE *out;       /* the module as it is added */
    int module;
};

static bool is_name(char c) {
    return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '%';
}

/* A name, a number, a directive, a string, or any other character. */
static size_t token_length(const char *at) {
    size_t length = 1;
    if (*at == '"') {
        while (at[length] != '\0' && at[length] != '"') {
            length += at[length] == '\\' && at[length + 1] != '\0' ? 2 : 1;
        }
        return length + (at[length] == '"');
    }
    if (at[0] == '/' && at[1] == '/') {
        return strcspn(at, "\n");
    }
    if (is_name(*at) || (*at == '.' && is_name(at[1]))) {
        while (is_name(at[length]) ||
               (*at != '.' && at[length] == '.' && isdigit((unsigned char)*at))) {
            length++;
        }
    }
    return length;
}

static bool is(const char *at, const char *word) {
    return strncmp(at, word, strlen(word)) == 0 && !is_name(at[strlen(word)]);
}

/* Whether the name is private to its module. */
static bool is_private(const char *at) {
    static const char *const BEGINNINGS[] = {"$str",   "__unnamed_", "$L__info",
                                             "$L__BB", "$L__tmp",    "$L__func"};
    for (size_t i = 0; i < sizeof BEGINNINGS / sizeof BEGINNINGS[0]; i++) {
        if (strncmp(at, BEGINNINGS[i], strlen(BEGINNINGS[i])) == 0) {
            return true;
        }
    }
    return false;
}

static const char *skip_blank(const char *at) {
    return at + strspn(at, " \t\r\n");
}

/* Past a statement of the module: to its ';', or past the '}' of its body. */
static const char *statement_end(const char *at) {
    int depth = 0;
    while (*at != '\0') {
        const size_t length = token_length(at);
        depth += *at == '{' ? 1 : *at == '}' ? -1 : 0;
        if (depth == 0 && (*at == ';' || *at == '}')) {
            return at + 1;
        }
        at += length;
    }
    return at;
}

/* The name that a .weak statement defines: before '(', '[', '=' or ';', after attributes. */
static const char *defined_name(const char *at, size_t *length) {
    const char *name = NULL;
    for (int depth = 0; *at != '\0' && !(depth == 0 && strchr("{;=[", *at) != NULL);) {
        const size_t size = token_length(at);
        depth += *at == '(' ? 1 : *at == ')' ? -1 : 0;
        if (depth == 0 && is_name(*at) && !isdigit((unsigned char)*at)) {
            name = at;
            *length = size;
        }
        at += size;
    }
    return name;
}

/* Whether the text so far has a .weak or .visible definition of the name, with a body. */
static bool is_defined(const char *all, const char *name, size_t length) {
    for (const char *at = all; (at = strstr(at, "\n.")) != NULL; at++) {
        const char *statement = at + 1;
        size_t other_length = 0;
        if (is(statement, ".weak") || is(statement, ".visible")) {
            const char *other = defined_name(statement, &other_length);
            const bool body = !strstr(statement, ".func") || statement_end(statement)[-1] == '}';
            if (other != NULL && body && other_length == length &&
                strncmp(other, name, length) == 0) {
                return true;
            }
        }
    }
    return false;
}

/* `.file 1`, `.loc 1`, `inlined_at 1`: the number that follows. */
static const char *copy_file_number(struct join *join, const char *at) {
    const char *digits = skip_blank(at);
    char *end = NULL;
    const unsigned long number = strtoul(digits, &end, 10);
    if (end == digits) {
        return at;
    }
    fprintf(join->out, " %lu", number + (unsigned long)join->module * FILES_OF_MODULE);
    return end;
}

static void copy_token(struct join *join) {
    const char *at = join->at;
    const size_t length = token_length(at);
    fwrite(at, 1, length, join->out);
    if (is_private(at)) {
        fprintf(join->out, "_%d", join->module);
    }
    join->at = at + length;
    if (is(at, ".file") || is(at, ".loc") || is(at, "inlined_at")) {
        join->at = copy_file_number(join, join->at);
    }
}

static void add_module(struct join *join) {
    int depth = 0;
    while (*join->at != '\0') {
        const char *at = join->at;
        size_t length = 0;
        if (depth == 0 && (is(at, ".version") || is(at, ".target") || is(at, ".address_size"))) {
            join->at += strcspn(at, "\n");
            continue;
        }
        const char *name = depth == 0 && is(at, ".weak") ? defined_name(at, &length) : NULL;
        if (name != NULL && is_defined(join->all, name, length)) {
            join->at = statement_end(at);
            continue;
        }
        depth += *at == '{' ? 1 : *at == '}' ? -1 : 0;
        copy_token(join);
    }
}

char *ptx_join(const char *all, const char *module) {
    if (all == NULL) {
        return strdup(module);
    }
    char *text = NULL;
    size_t bytes = 0;
    struct join join = {.at = module, .all = all, .module = 1};
    for (const char *mark = all; (mark = strstr(mark, "\n// module ")) != NULL; mark++) {
        join.module++;
    }
    join.out = open_memstream(&text, &bytes);
    if (join.out == NULL) {
        return NULL;
    }
    fprintf(join.out, "%s\n// module %d\n", all, join.module);
    add_module(&join);
    return fclose(join.out) == 0 ? text : NULL;
}
