/* SPDX-License-Identifier: Apache-2.0
 *
 * demangle.c - C++ names of the Itanium ABI: qualified names with template arguments, and the types
 * of parameters. Expressions and decltype are not read.
 *
 * Invariant: memory, depth and the length of the text are bounded for any name. A part that does
 * not fit or cannot be parsed makes the whole name fail.
 */
#include "machine/demangle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { POOL = 8192, PIECES = 128, ARGUMENTS = 64, DEPTH = 48 };

struct piece {
    uint32_t at, length; /* in the pool */
};

struct demangler {
    const char *at;
    bool failed;
    uint32_t depth;
    char text[POOL]; /* what is being written */
    uint32_t used;
    char pool[POOL]; /* what may be named again */
    uint32_t pool_used;
    struct piece substitutions[PIECES], arguments[ARGUMENTS]; /* S0_, T0_ */
    uint32_t substitution_count, argument_count;
    bool keeps_arguments; /* of the template: T_ means those of the function's name */
    bool has_arguments;   /* the name ended with template arguments */
};

static void put(struct demangler *d, const char *text, size_t length) {
    if (length > POOL - 1 - d->used) {
        d->failed = true;
        return;
    }
    memcpy(d->text + d->used, text, length);
    d->used += (uint32_t)length;
}

static void put_text(struct demangler *d, const char *text) {
    put(d, text, strlen(text));
}

static bool take(struct demangler *d, char c) {
    const bool there = !d->failed && *d->at == c;
    d->at += there;
    return there;
}

static bool take_pair(struct demangler *d, const char *two) {
    const bool there = !d->failed && strncmp(d->at, two, 2) == 0;
    d->at += there ? 2 : 0;
    return there;
}

/* What was written from `start` on, for later. */
static struct piece keep(struct demangler *d, uint32_t start) {
    const uint32_t length = d->used - start;
    const struct piece piece = {d->pool_used, length};
    if (d->failed || length > POOL - d->pool_used) {
        d->failed = true;
        return (struct piece){0, 0};
    }
    memcpy(d->pool + d->pool_used, d->text + start, length);
    d->pool_used += length;
    return piece;
}

static void add_substitution(struct demangler *d, uint32_t start) {
    if (d->substitution_count == PIECES) {
        d->failed = true;
    } else {
        d->substitutions[d->substitution_count++] = keep(d, start);
    }
}

static void put_piece(struct demangler *d, const struct piece *pieces, uint32_t count,
                      uint32_t index) {
    if (index >= count) {
        d->failed = true;
    } else {
        put(d, d->pool + pieces[index].at, pieces[index].length);
    }
}

/* "_" is 0, "0_" is 1, "A_" is 11. */
static uint32_t take_index(struct demangler *d) {
    uint32_t value = 0;
    for (bool first = true; !take(d, '_'); first = false) {
        const char c = *d->at;
        const uint32_t digit = c >= '0' && c <= '9'   ? (uint32_t)(c - '0')
                               : c >= 'A' && c <= 'Z' ? (uint32_t)(c - 'A') + 10
                                                      : 36;
        if (d->failed || digit == 36 || value > PIECES) {
            d->failed = true;
            return 0;
        }
        value = (first ? 0 : (value - 1) * 36) + digit + 1;
        d->at++;
    }
    return value;
}

static void take_type(struct demangler *d);
static void take_encoding(struct demangler *d, bool with_types);

/* ---- names ----------------------------------------------------------------------------------- */

/* "6kernel". False: it stands for nothing (the namespace of a file). */
static bool take_source_name(struct demangler *d) {
    char *start;
    const unsigned long length = *d->at >= '1' && *d->at <= '9' ? strtoul(d->at, &start, 10) : 0;
    if (length == 0 || length > strlen(start)) {
        d->failed = true;
        return false;
    }
    const bool of_file = strncmp(start, "_INTERNAL_", 10) == 0;
    if (strncmp(start, "_GLOBAL__N", 10) == 0) {
        put_text(d, "(anonymous)");
    } else if (!of_file) {
        put(d, start, length);
    }
    d->at = start + length;
    while (take(d, 'B')) { /* ABI tags */
        const uint32_t used = d->used;
        take_source_name(d);
        d->used = used;
    }
    return !of_file;
}

static void take_operator(struct demangler *d) {
    static const char *const NAMES[][2] = {
        {"cl", "()"}, {"ix", "[]"}, {"pl", "+"},  {"mi", "-"},  {"ml", "*"},  {"dv", "/"},
        {"aS", "="},  {"pL", "+="}, {"mI", "-="}, {"eq", "=="}, {"ne", "!="}, {"lt", "<"},
        {"gt", ">"},  {"le", "<="}, {"ge", ">="}, {"de", "*"},  {"pt", "->"}, {"nt", "!"},
        {"ng", "-"},  {"pp", "++"}, {"mm", "--"}, {"mL", "*="}, {"dV", "/="}, {"an", "&"},
        {"or", "|"},  {"eo", "^"},  {"ls", "<<"}, {"rs", ">>"}, {"rm", "%"},  {"aa", "&&"},
        {"oo", "||"}, {"co", "~"},
    };
    put_text(d, "operator");
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        if (take_pair(d, NAMES[i][0])) {
            put_text(d, NAMES[i][1]);
            return;
        }
    }
    if (take_pair(d, "cv")) {
        put_text(d, " ");
        take_type(d);
        return;
    }
    d->failed = true;
}

static void take_lambda(struct demangler *d) {
    const uint32_t used = d->used;
    while (!take(d, 'E') && !d->failed) {
        take_type(d);
    }
    d->used = used;
    take_index(d);
    put_text(d, "{lambda}");
}

/* A component of a name; `own`: the class's own name, for its constructor. False: it stands for
 * nothing. */
static bool take_unqualified(struct demangler *d, struct piece own) {
    take(d, 'L');
    if (*d->at >= '0' && *d->at <= '9') {
        return take_source_name(d);
    }
    if (take_pair(d, "Ul")) {
        take_lambda(d);
    } else if (take_pair(d, "Ut")) {
        take_index(d);
        put_text(d, "{unnamed}");
    } else if ((*d->at == 'C' || *d->at == 'D') && d->at[1] >= '0' && d->at[1] <= '9') {
        put_text(d, *d->at == 'D' ? "~" : "");
        put(d, d->pool + own.at, own.length);
        d->at += 2;
    } else {
        take_operator(d);
    }
    return true;
}

static void take_literal(struct demangler *d) {
    if (take_pair(d, "_Z")) {
        take_encoding(d, false);
        d->failed = d->failed || !take(d, 'E');
        return;
    }
    const char kind = *d->at;
    const uint32_t start = d->used;
    take_type(d);
    if (strchr("bijlmxystahc", kind) != NULL && kind != '\0') {
        d->used = start;
    } else {
        const struct piece type = keep(d, start);
        d->used = start;
        put_text(d, "(");
        put(d, d->pool + type.at, type.length);
        put_text(d, ")");
    }
    put_text(d, take(d, 'n') ? "-" : "");
    const size_t length = strcspn(d->at, "E");
    if (d->at[length] == '\0') {
        d->failed = true;
    } else if (kind == 'b' && length == 1) {
        put_text(d, *d->at == '0' ? "false" : "true");
    } else {
        put(d, d->at, length);
    }
    d->at += length + (d->failed ? 0 : 1);
}

/* One argument, or a pack of them; nothing but commas is between them. */
static void take_argument(struct demangler *d, struct piece *pieces, uint32_t *count, bool *first) {
    if (take(d, 'J')) {
        while (!take(d, 'E') && !d->failed) {
            take_argument(d, pieces, count, first);
        }
        return;
    }
    put_text(d, *first ? "" : ", ");
    *first = false;
    const uint32_t start = d->used;
    if (take(d, 'L')) {
        take_literal(d);
    } else {
        take_type(d);
    }
    if (*count == ARGUMENTS) {
        d->failed = true;
        return;
    }
    pieces[(*count)++] = keep(d, start);
}

/* After the I. */
static void take_arguments(struct demangler *d) {
    struct piece pieces[ARGUMENTS];
    uint32_t count = 0;
    bool first = true;
    put_text(d, "<");
    while (!take(d, 'E') && !d->failed) {
        take_argument(d, pieces, &count, &first);
    }
    put_text(d, ">");
    if (d->keeps_arguments) {
        memcpy(d->arguments, pieces, count * sizeof *pieces);
        d->argument_count = count;
    }
}

/* After the S; true: it was a substitution, false: a name of std that is one from now on. */
static bool take_substitution(struct demangler *d) {
    static const char *const NAMES[][2] = {{"a", "std::allocator"}, {"b", "std::basic_string"},
                                           {"s", "std::string"},    {"i", "std::istream"},
                                           {"o", "std::ostream"},   {"d", "std::iostream"}};
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        if (take(d, NAMES[i][0][0])) {
            put_text(d, NAMES[i][1]);
            return true;
        }
    }
    if (take(d, 't')) {
        put_text(d, "std");
        return false;
    }
    put_piece(d, d->substitutions, d->substitution_count, take_index(d));
    return true;
}

/* After the N. */
static void take_nested(struct demangler *d) {
    const uint32_t start = d->used;
    struct piece own = {0, 0};
    bool known = true; /* what is written is a substitution, or nothing */
    while (*d->at == 'r' || *d->at == 'V' || *d->at == 'K' || *d->at == 'R' || *d->at == 'O') {
        d->at++;
    }
    while (!take(d, 'E') && !d->failed) {
        if (!known) {
            add_substitution(d, start);
        }
        known = false;
        d->has_arguments = false;
        if (take(d, 'I')) {
            take_arguments(d);
            d->has_arguments = true;
        } else if (d->used == start && take(d, 'S')) {
            known = take_substitution(d);
            known = known || strncmp(d->text + start, "std", d->used - start) == 0;
        } else if (d->used == start && take(d, 'T')) {
            put_piece(d, d->arguments, d->argument_count, take_index(d));
        } else {
            const uint32_t before = d->used;
            put_text(d, before > start ? "::" : "");
            const uint32_t begin = d->used;
            if (!take_unqualified(d, own)) {
                d->used = before;
            }
            own = keep(d, d->used > begin ? begin : d->used);
        }
    }
}

/* "Z encoding E name": only the name counts. */
static void take_local(struct demangler *d) {
    const uint32_t start = d->used;
    take_encoding(d, true);
    d->used = start;
    if (!take(d, 'E') || take(d, 's')) {
        d->failed = true;
    }
    if (take(d, 'N')) { /* of a class of the function */
        take_nested(d);
        return;
    }
    take_unqualified(d, (struct piece){0, 0});
    d->has_arguments = false;
    if (take(d, '_')) { /* which of them */
        d->at += *d->at == '_' ? strspn(d->at, "_0123456789") : strspn(d->at, "0123456789");
    }
}

/* True: it was a substitution, as it stands. */
static bool take_name(struct demangler *d) {
    const uint32_t start = d->used;
    bool known = false;
    d->has_arguments = false;
    if (take(d, 'N')) {
        take_nested(d);
        return false;
    }
    if (take(d, 'Z')) {
        take_local(d);
        return false;
    }
    if (take(d, 'S')) {
        known = take_substitution(d);
        if (!known) {
            put_text(d, "::");
            take_unqualified(d, (struct piece){0, 0});
        }
    } else {
        take_unqualified(d, (struct piece){0, 0});
    }
    if (!d->failed && *d->at == 'I') {
        if (!known) {
            add_substitution(d, start);
        }
        d->at++;
        take_arguments(d);
        d->has_arguments = true;
        known = false;
    }
    return known;
}

/* ---- types ----------------------------------------------------------------------------------- */

static bool take_builtin(struct demangler *d) {
    static const char *const NAMES[][2] = {
        {"v", "void"},
        {"b", "bool"},
        {"c", "char"},
        {"a", "signed char"},
        {"h", "unsigned char"},
        {"s", "short"},
        {"t", "unsigned short"},
        {"i", "int"},
        {"j", "unsigned int"},
        {"l", "long"},
        {"m", "unsigned long"},
        {"x", "long long"},
        {"y", "unsigned long long"},
        {"f", "float"},
        {"d", "double"},
        {"n", "__int128"},
        {"o", "unsigned __int128"},
        {"w", "wchar_t"},
        {"e", "long double"},
        {"z", "..."},
        {"Dn", "nullptr_t"},
        {"Dh", "half"},
        {"Di", "char32_t"},
        {"Ds", "char16_t"},
        {"DF16_", "_Float16"},
        {"DF16b", "__bf16"},
    };
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        const size_t length = strlen(NAMES[i][0]);
        if (strncmp(d->at, NAMES[i][0], length) == 0) {
            d->at += length;
            put_text(d, NAMES[i][1]);
            return true;
        }
    }
    return false;
}

static void take_qualified(struct demangler *d) {
    const char *words = "";
    const bool is_volatile = take(d, 'V'), is_const = take(d, 'K');
    words = is_volatile && is_const ? " const volatile" : is_const ? " const" : " volatile";
    take_type(d);
    put_text(d, words);
}

static void take_function_type(struct demangler *d) {
    bool first = true;
    take_type(d);
    put_text(d, " (");
    while (!take(d, 'E') && !d->failed) {
        put_text(d, first ? "" : ", ");
        first = false;
        take_type(d);
    }
    put_text(d, ")");
}

static void take_array(struct demangler *d) {
    const uint32_t start = d->used;
    const size_t length = strspn(d->at, "0123456789");
    put(d, d->at, length);
    d->at += length;
    if (take(d, 'T')) {
        put_piece(d, d->arguments, d->argument_count, take_index(d));
    }
    const struct piece number = keep(d, start);
    d->used = start;
    d->failed = d->failed || !take(d, '_');
    take_type(d);
    put_text(d, "[");
    put(d, d->pool + number.at, number.length);
    put_text(d, "]");
}

/* Every type but the builtin ones may be named again. */
static void take_type(struct demangler *d) {
    const uint32_t start = d->used;
    const bool kept = d->keeps_arguments, had = d->has_arguments;
    if (d->failed || *d->at == '\0' || ++d->depth > DEPTH) {
        d->failed = true;
        return;
    }
    bool known = false;
    d->keeps_arguments = false;
    if (take(d, 'P') || take(d, 'R')) {
        const char sign = d->at[-1] == 'P' ? '*' : '&';
        take_type(d);
        put(d, &sign, 1);
    } else if (take(d, 'O')) {
        take_type(d);
        put_text(d, "&&");
    } else if (*d->at == 'K' || *d->at == 'V') {
        take_qualified(d);
    } else if (take(d, 'A')) {
        take_array(d);
    } else if (take(d, 'F')) {
        take_function_type(d);
    } else if (take_pair(d, "Dp")) {
        take_type(d);
    } else if (take(d, 'T')) {
        put_piece(d, d->arguments, d->argument_count, take_index(d));
        if (*d->at == 'I') { /* a template's template parameter */
            add_substitution(d, start);
            d->at++;
            take_arguments(d);
        }
    } else if (take(d, 'u')) {
        take_source_name(d);
    } else {
        known = take_builtin(d) || take_name(d);
    }
    if (!known) {
        add_substitution(d, start);
    }
    d->depth--;
    d->keeps_arguments = kept;
    d->has_arguments = had;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static void take_encoding(struct demangler *d, bool with_types) {
    const bool kept = d->keeps_arguments;
    if (++d->depth > DEPTH) {
        d->failed = true;
        return;
    }
    d->keeps_arguments = true;
    take_name(d);
    const bool returns = d->has_arguments;
    d->keeps_arguments = false;
    bool first = true;
    if (with_types && *d->at != '\0' && *d->at != 'E' && *d->at != '.' && *d->at != '_') {
        const uint32_t start = d->used;
        if (returns) {
            take_type(d);
            d->used = start;
        }
        put_text(d, "(");
        while (*d->at != '\0' && *d->at != 'E' && *d->at != '.' && !d->failed) {
            put_text(d, first ? "" : ", ");
            first = false;
            if (take(d, 'v')) {
                break;
            }
            take_type(d);
        }
        put_text(d, ")");
    }
    d->depth--;
    d->keeps_arguments = kept;
}

bool demangle(const char *name, bool with_types, char *text, size_t size) {
    if (strncmp(name, "_Z", 2) != 0 || size == 0) {
        return false;
    }
    struct demangler *d = malloc(sizeof *d);
    if (d == NULL) {
        return false;
    }
    d->at = name + 2;
    d->failed = false;
    d->depth = d->used = d->pool_used = d->substitution_count = d->argument_count = 0;
    d->keeps_arguments = d->has_arguments = false;
    take_encoding(d, with_types);
    const bool good = !d->failed && d->used > 0 && (!with_types || *d->at == '\0');
    if (good) {
        snprintf(text, size, "%.*s", (int)d->used, d->text);
    }
    free(d);
    return good;
}
