/* SPDX-License-Identifier: Apache-2.0
 *
 * join.c - see runtime.h: joins the PTX of several modules into one text, so that a name that is
 * .extern in one module finds its definition in another.
 *
 * The names that a module keeps to itself (without .visible, .weak, .extern or .common; labels) get
 * the number of the module as a suffix, and an offset is added to its numbers of source files. As
 * nvlink has it, of several .weak definitions of a name (an inline function) the first is kept, one
 * that is not .weak replaces them, and two of those are an error.
 *
 * Invariant: kernels and names that nvcc made unique keep their names: the host knows them.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/runtime.h"

enum { FILES_OF_MODULE = 10000 };

enum linkage { LOCAL, EXTERN, WEAK, STRONG };

struct name { /* that a statement of a module declares */
    const char *at;
    size_t length;
    enum linkage linkage;
    bool defined;
};
struct names {
    struct name *list;
    size_t count, room;
};

struct join {
    const char *at;             /* the module, from here on */
    FILE *out;                  /* the module as it is added */
    const struct names *before; /* of the text so far */
    const struct names *own;
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
    if (at[0] == '/' && at[1] == '*') {
        const char *end = strstr(at + 2, "*/");
        return end != NULL ? (size_t)(end + 2 - at) : strlen(at);
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

/* The name that a statement defines: before '(', '[', '=' or ';', after attributes. */
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

/* ---- names of a module ----------------------------------------------------------------------- */

static int compare(const void *a, const void *b) {
    const struct name *x = a, *y = b;
    return x->length != y->length ? (x->length < y->length ? -1 : 1)
                                  : memcmp(x->at, y->at, x->length);
}

static const struct name *find(const struct names *names, const char *at, size_t length) {
    const struct name wanted = {.at = at, .length = length};
    return names->count > 0 ? bsearch(&wanted, names->list, names->count, sizeof wanted, compare)
                            : NULL;
}

static bool add(struct names *names, struct name name) {
    enum { FIRST_ROOM = 256 };
    if (names->count == names->room) {
        const size_t room = names->room > 0 ? 2 * names->room : FIRST_ROOM;
        struct name *list = realloc(names->list, room * sizeof *list);
        if (list == NULL) {
            return false;
        }
        names->list = list;
        names->room = room;
    }
    names->list[names->count++] = name;
    return true;
}

/* nvcc puts a hash of the file into the names of what is static. */
static bool is_unique(const char *name, size_t length) {
    static const char STATIC[] = "__nv_static_", INTERNAL[] = "_INTERNAL_";
    bool found = strncmp(name, STATIC, sizeof STATIC - 1) == 0;
    for (size_t i = 0; !found && i + sizeof INTERNAL - 1 <= length; i++) {
        found = memcmp(name + i, INTERNAL, sizeof INTERNAL - 1) == 0;
    }
    return found;
}

/* Adds the names that the statement declares; returns its end, or NULL: no memory. */
static const char *take_statement(struct names *names, const char *at) {
    const size_t first = names->count;
    enum linkage linkage = is(at, ".extern")                      ? EXTERN
                           : is(at, ".weak") || is(at, ".common") ? WEAK
                           : is(at, ".visible")                   ? STRONG
                                                                  : LOCAL;
    bool function = false, in_value = false, body = false;
    for (int depth = 0; *at != '\0' && !body && !(depth == 0 && *at == ';');) {
        const size_t length = token_length(at);
        if (depth == 0 && is(at, ".entry")) {
            linkage = linkage == LOCAL ? STRONG : linkage;
        }
        function = function || (depth == 0 && (is(at, ".func") || is(at, ".entry")));
        in_value = depth == 0 && (*at == '=' || *at == ',') ? *at == '=' : in_value;
        depth += strchr("([{", *at) != NULL ? 1 : strchr(")]}", *at) != NULL ? -1 : 0;
        body = depth == 0 && *at == '}' && !in_value;
        if (depth == 0 && !in_value && is_name(*at) && !isdigit((unsigned char)*at) &&
            !add(names, (struct name){at, length, linkage, false})) {
            return NULL;
        }
        at += length;
    }
    for (size_t i = first; i < names->count; i++) {
        struct name *name = &names->list[i];
        name->linkage = linkage == LOCAL && is_unique(name->at, name->length) ? STRONG : linkage;
        name->defined = function ? body : linkage != EXTERN;
    }
    return at;
}

/* Sorts the names and makes one of those that are the same. */
static void merge(struct names *names) {
    size_t count = 0;
    if (names->count > 0) {
        qsort(names->list, names->count, sizeof *names->list, compare);
    }
    for (size_t i = 0; i < names->count; i++) {
        struct name *last = count > 0 ? &names->list[count - 1] : NULL;
        const struct name *name = &names->list[i];
        if (last == NULL || compare(last, name) != 0) {
            names->list[count++] = *name;
            continue;
        }
        last->linkage = name->linkage > last->linkage ? name->linkage : last->linkage;
        last->defined = last->defined || name->defined;
    }
    names->count = count;
}

/* The names that the text declares; false: no memory. */
static bool names_of(struct names *names, const char *text) {
    static const char *const LINES[] = {".version", ".target", ".address_size", ".file", ".loc"};
    static const char *const OTHERS[] = {".section", ".pragma", ".alias"};
    for (const char *at = text; at != NULL && *at != '\0';) {
        const char *end = *at != '.' ? at + token_length(at) : NULL;
        for (size_t i = 0; end == NULL && i < sizeof LINES / sizeof LINES[0]; i++) {
            end = is(at, LINES[i]) ? at + strcspn(at, "\n") : NULL;
        }
        for (size_t i = 0; end == NULL && i < sizeof OTHERS / sizeof OTHERS[0]; i++) {
            end = is(at, OTHERS[i]) ? statement_end(at) : NULL;
        }
        at = end != NULL ? end : take_statement(names, at);
        if (at == NULL) {
            return false;
        }
    }
    merge(names);
    return true;
}

/* ---- the text of a module -------------------------------------------------------------------- */

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
    const struct name *name = is_name(*at) ? find(join->own, at, length) : NULL;
    if (name != NULL ? name->linkage == LOCAL : strncmp(at, "$L__", strlen("$L__")) == 0) {
        fprintf(join->out, "$%d", join->module);
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
        if (join->module > 0 && depth == 0 &&
            (is(at, ".version") || is(at, ".target") || is(at, ".address_size"))) {
            join->at += strcspn(at, "\n");
            continue;
        }
        const bool weak = depth == 0 && (is(at, ".weak") || is(at, ".common"));
        const char *name = weak ? defined_name(at, &length) : NULL;
        const struct name *before = name != NULL ? find(join->before, name, length) : NULL;
        if (before != NULL && before->defined) {
            join->at = statement_end(at);
            continue;
        }
        depth += *at == '{' ? 1 : *at == '}' ? -1 : 0;
        copy_token(join);
    }
}

static bool is_strong(const struct name *name) {
    return name != NULL && name->linkage == STRONG && name->defined;
}

/* The text so far; what it defines weakly and the module otherwise becomes a declaration. */
static void copy_before(const struct join *join, const char *all) {
    int depth = 0;
    for (const char *at = all; *at != '\0';) {
        size_t length = 0;
        const bool weak = depth == 0 && (is(at, ".weak") || is(at, ".common"));
        const char *name = weak ? defined_name(at, &length) : NULL;
        if (name != NULL && is_strong(find(join->own, name, length))) {
            const char *end = statement_end(at), *word = at + token_length(at);
            const char *value = word + strcspn(word, "{=;");
            const bool entry = strncmp(skip_blank(word), ".entry", strlen(".entry")) == 0;
            if (!entry) { /* nothing calls one */
                fprintf(join->out, ".extern%.*s;\n", (int)(value - word), word);
            }
            at = end;
            continue;
        }
        depth += *at == '{' ? 1 : *at == '}' ? -1 : 0;
        length = token_length(at);
        fwrite(at, 1, length, join->out);
        at += length;
    }
}

/* The text so far with the module as number `module`; NULL: why in `why`. */
static char *join_as(int module, const char *all, const char *text, char *why, size_t why_size) {
    struct names before = {0}, own = {0};
    struct join join = {.at = text, .before = &before, .own = &own, .module = module};
    char *joined = NULL;
    size_t bytes = 0;
    snprintf(why, why_size, "out of memory");
    if (names_of(&before, all) && names_of(&own, text)) {
        join.out = open_memstream(&joined, &bytes);
    }
    for (size_t i = 0; join.out != NULL && i < own.count; i++) {
        const struct name *name = &own.list[i];
        const struct name *other = find(&before, name->at, name->length);
        if (is_strong(name) && is_strong(other)) {
            snprintf(why, why_size, "'%.*s' is defined in more than one module", (int)name->length,
                     name->at);
            fclose(join.out);
            free(joined);
            joined = NULL;
            join.out = NULL;
        }
    }
    if (join.out != NULL) {
        copy_before(&join, all);
        if (module > 0) {
            fprintf(join.out, "\n// module %d\n", module);
        }
        add_module(&join);
        if (fclose(join.out) != 0) {
            free(joined);
            joined = NULL;
        }
    }
    free(before.list);
    free(own.list);
    return joined;
}

char *ptx_join(const char *all, const char *module, char *why, size_t why_size) {
    static const char MARK[] = "\n// module ";
    if (all == NULL) {
        snprintf(why, why_size, "out of memory");
        return strdup(module);
    }
    int number = 1;
    for (const char *mark = all; (mark = strstr(mark, MARK)) != NULL; mark++) {
        number++;
    }
    if (number > 1) {
        return join_as(number, all, module, why, why_size);
    }
    char *first = join_as(0, "", all, why, why_size);
    char *joined = first != NULL ? join_as(1, first, module, why, why_size) : NULL;
    free(first);
    return joined;
}
