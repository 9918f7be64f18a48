/* SPDX-License-Identifier: Apache-2.0
 *
 * value.c - see value.h. A parser that computes while it reads. Whether a value of
 * the document matters is found by reading again with that value bent a little.
 */
#include "claims/value.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/message.h"

enum { DEEPEST = 16 };

struct reader {
    const char *at;
    int depth; /* of parentheses */
    attn_error *why;
    size_t reads;                   /* values of the document, and counts, that were read so far */
    size_t wanted;                  /* the one of them ... */
    const struct json_value *found; /* ... whose place is asked for */
    const struct json_value *bent;  /* what is read there is multiplied by `by`; NULL: nothing */
    double by;
};

/* Every value of the document passes through here. */
static double taken(struct reader *reader, const struct json_value *from, double value) {
    if (reader->reads++ == reader->wanted) {
        reader->found = from;
    }
    if (from == NULL || from != reader->bent) {
        return value;
    }
    return fabs(value) > 0 ? value * reader->by : reader->by - 1;
}

static void skip_blanks(struct reader *reader) {
    reader->at += strspn(reader->at, " \t\r\n");
}

/* ---- paths ----------------------------------------------------------------------------------- */

/* The end of a path: what no path goes on with. */
static const char *path_end(const char *at) {
    for (bool inside = false; *at != '\0'; at++) {
        if (*at == '[' || *at == ']') {
            inside = *at == '[';
        } else if (!inside && strchr(",;:()*/?", *at) != NULL) {
            break;
        }
    }
    return at;
}

/* The text of an item, or its number as it is written there, is `text`. */
static bool is_text(const struct json_value *value, const char *text, size_t length) {
    const char *own = json_text_of(value);
    if (own != NULL) {
        return strlen(own) == length && strncmp(own, text, length) == 0;
    }
    char *end;
    const double number = strtod(text, &end);
    const double given = json_number_of(value);
    return end == text + length && length > 0 && given >= number && given <= number;
}

static const struct json_value *member(const struct json_value *node, const char *key,
                                       size_t length) {
    for (size_t i = 0; node->kind == JSON_OBJECT && i < node->as.list.count; i++) {
        const struct json_value *item = &node->as.list.items[i];
        if (strlen(item->key) == length && strncmp(item->key, key, length) == 0) {
            return item;
        }
    }
    return NULL;
}

/* Whether an item of a list meets every condition of "[key=text][key=text]". */
static bool meets(const struct json_value *item, const char *at, const char *end) {
    while (at < end) {
        const char *close = memchr(at, ']', (size_t)(end - at));
        const char *equals = memchr(at, '=', (size_t)(close - at));
        const struct json_value *value =
            equals != NULL ? member(item, at + 1, (size_t)(equals - at - 1)) : NULL;
        if (value == NULL || !is_text(value, equals + 1, (size_t)(close - equals - 1))) {
            return false;
        }
        at = close + 1;
    }
    return true;
}

/* The end of the brackets that begin here; NULL: one is not closed. */
static const char *brackets_end(const char *at, const char *end) {
    while (at != NULL && at < end && *at == '[') {
        const char *close = memchr(at, ']', (size_t)(end - at));
        at = close != NULL ? close + 1 : NULL;
    }
    return at;
}

/* The item that "[3]" or "[key=text]..." means; *at goes behind it. */
static const struct json_value *item_of(const struct json_value *list, const char **at,
                                        const char *end, attn_error *why) {
    const char *from = *at;
    char *stop;
    const unsigned long index = strtoul(from + 1, &stop, 10);
    if (isdigit((unsigned char)from[1]) && *stop == ']') {
        *at = stop + 1;
        if (index >= json_count_of(list)) {
            explain(why, "[%lu]: there are %zu items", index, json_count_of(list));
            return NULL;
        }
        return &list->as.list.items[index];
    }
    *at = brackets_end(from, end);
    if (*at == NULL) {
        explain(why, "'%.*s': ] is missing", (int)(end - from), from);
        return NULL;
    }
    const struct json_value *found = NULL;
    size_t count = 0;
    for (size_t i = 0; i < json_count_of(list); i++) {
        if (meets(&list->as.list.items[i], from, *at)) {
            found = &list->as.list.items[i];
            count++;
        }
    }
    if (count != 1) {
        explain(why, "'%.*s': %zu items meet it, expected one", (int)(*at - from), from, count);
        return NULL;
    }
    return found;
}

/* What the path from `at` to `end` leads to; NULL and the reason. */
static const struct json_value *follow(const struct json_value *node, const char *at,
                                       const char *end, attn_error *why) {
    while (end > at && isspace((unsigned char)end[-1])) {
        end--;
    }
    const char *const begin = at;
    while (node != NULL && at < end) {
        if (*at == '[') {
            node = item_of(node, &at, end, why);
        } else {
            at += *at == '.' && at > begin;
            const size_t length = strcspn(at, ".[");
            const size_t room = (size_t)(end - at);
            const size_t own = length < room ? length : room;
            const struct json_value *next = own > 0 ? member(node, at, own) : NULL;
            if (next == NULL) {
                explain(why, "'%.*s': there is no '%.*s'", (int)(end - begin), begin, (int)own, at);
            }
            node = next;
            at += own;
        }
    }
    if (begin == end) {
        explain(why, "a path is empty");
        return NULL;
    }
    return node;
}

/* ---- expressions ----------------------------------------------------------------------------- */

static bool read_expression(struct reader *reader, const struct json_value *node, double *value);

enum function { MIN, MAX, GEOMEAN, COUNT, FUNCTIONS };
static const char *const FUNCTION_NAMES[FUNCTIONS] = {"min", "max", "geomean", "count"};

/* What a function makes of the values that it has seen. */
struct fold {
    enum function function;
    double value; /* the least, the greatest, the sum of logarithms */
    size_t count;
    const struct json_value *list; /* whose items these are; NULL: of none */
};

/* NaN is what an optional path was that is not there. */
static void fold_in(struct fold *fold, double value) {
    if (isnan(value)) {
        return;
    }
    const bool first = fold->count++ == 0;
    switch (fold->function) {
    case MIN: fold->value = first || value < fold->value ? value : fold->value; break;
    case MAX: fold->value = first || value > fold->value ? value : fold->value; break;
    default: fold->value += log(value);
    }
}

static double fold_out(struct reader *reader, const struct fold *fold) {
    if (fold->function == COUNT) {
        return taken(reader, fold->list, (double)fold->count);
    }
    if (fold->count == 0) {
        return (double)NAN;
    }
    return fold->function == GEOMEAN ? exp(fold->value / (double)fold->count) : fold->value;
}

/* "PATH: EXPRESSION" for each item of the list. */
static bool fold_list(struct reader *reader, const struct json_value *list, struct fold *fold) {
    const char *body = reader->at;
    if (json_count_of(list) == 0) {
        return explain(reader->why, "the list before ':' has no items");
    }
    for (size_t i = 0; i < json_count_of(list); i++) {
        double value;
        reader->at = body;
        if (!read_expression(reader, &list->as.list.items[i], &value)) {
            return false;
        }
        fold_in(fold, value);
    }
    return true;
}

static bool read_arguments(struct reader *reader, const struct json_value *node,
                           struct fold *fold) {
    const char *end = path_end(reader->at);
    if (*end == ':') {
        const struct json_value *list = follow(node, reader->at, end, reader->why);
        reader->at = end + 1;
        fold->list = list;
        return list != NULL && fold_list(reader, list, fold);
    }
    if (fold->function == COUNT) {
        return explain(reader->why, "count( needs a list: 'count(rows: us)'");
    }
    double value;
    while (read_expression(reader, node, &value)) {
        fold_in(fold, value);
        if (*reader->at != ',') {
            return true;
        }
        reader->at++;
    }
    return false;
}

static bool read_closing(struct reader *reader) {
    skip_blanks(reader);
    if (*reader->at != ')') {
        return explain(reader->why, "'%.40s': expected )", reader->at);
    }
    reader->at++;
    return true;
}

/* The function whose name and parenthesis stand here; FUNCTIONS: none. */
static enum function function_at(const char *at) {
    int i = 0;
    for (; i < FUNCTIONS; i++) {
        const size_t length = strlen(FUNCTION_NAMES[i]);
        if (strncmp(at, FUNCTION_NAMES[i], length) == 0 && at[length] == '(') {
            break;
        }
    }
    return (enum function)i;
}

static bool read_path(struct reader *reader, const struct json_value *node, double *value) {
    const char *end = path_end(reader->at);
    const struct json_value *found = follow(node, reader->at, end, reader->why);
    const bool optional = *end == '?';
    *value = taken(reader, found, json_number_of(found));
    if (isnan(*value) && !optional) {
        return found == NULL ? false
                             : explain(reader->why, "'%.*s' is no number", (int)(end - reader->at),
                                       reader->at);
    }
    reader->at = end + optional;
    return true;
}

/* A number of the expression itself only changes the unit. */
static bool read_constant(struct reader *reader, double *value) {
    const char *at = reader->at;
    char *end;
    *value = strtod(at, &end);
    reader->at = end;
    const double power = log10(*value), thousands = round(power / 3) * 3;
    const bool unit = fabs(power - thousands) < 1e-12 || fabs(power - 2) < 1e-12;
    return unit ||
           explain(reader->why, "'%.*s': expected a power of 1000, or 100, as a change of units is",
                   (int)(end - at), at);
}

static bool read_factor(struct reader *reader, const struct json_value *node, double *value,
                        bool *constant) {
    *value = (double)NAN;
    skip_blanks(reader);
    const char *at = reader->at;
    const enum function function = function_at(at);
    *constant = isdigit((unsigned char)*at) != 0;
    if (*constant) {
        if (!read_constant(reader, value)) {
            return false;
        }
    } else if (*at == '(' || function != FUNCTIONS) {
        struct fold fold = {.function = function};
        if (++reader->depth > DEEPEST) {
            return explain(reader->why, "more than %d parentheses within each other", DEEPEST);
        }
        reader->at = strchr(at, '(') + 1;
        const bool good = function == FUNCTIONS ? read_expression(reader, node, value)
                                                : read_arguments(reader, node, &fold);
        reader->depth--;
        if (!good || !read_closing(reader)) {
            return false;
        }
        *value = function == FUNCTIONS ? *value : fold_out(reader, &fold);
    } else if (!read_path(reader, node, value)) {
        return false;
    }
    skip_blanks(reader);
    return true;
}

static bool read_expression(struct reader *reader, const struct json_value *node, double *value) {
    const char *const begin = reader->at;
    bool constant = false, all_constant = true;
    bool good = read_factor(reader, node, value, &constant);
    all_constant = constant;
    while (good && (*reader->at == '*' || *reader->at == '/')) {
        const char sign = *reader->at++;
        double other = (double)NAN;
        good = read_factor(reader, node, &other, &constant);
        all_constant = all_constant && constant;
        if (good) {
            *value = sign == '*' ? *value * other : *value / other;
        }
    }
    return good && (!all_constant || explain(reader->why, "'%.*s' reads nothing from the file",
                                             (int)(reader->at - begin), begin));
}

/* Whether the value is another one if one value of the document were: a / a is not, nor is what
 * is smaller than the least. One that is read as the least of two equal ones changes downwards. */
static bool depends(const struct json_value *document, const char *expression, double value,
                    size_t reads) {
    static const double BENT[] = {1.001, 0.999};
    attn_error ignored = {""};
    for (size_t i = 0; i < reads; i++) {
        double other;
        struct reader look = {.at = expression, .why = &ignored, .wanted = i};
        read_expression(&look, document, &other);
        for (size_t k = 0; look.found != NULL && k < sizeof BENT / sizeof *BENT; k++) {
            struct reader reader = {.at = expression,
                                    .why = &ignored,
                                    .wanted = SIZE_MAX,
                                    .bent = look.found,
                                    .by = BENT[k]};
            if (read_expression(&reader, document, &other) &&
                !(fabs(other - value) <= 1e-9 * fabs(value))) {
                return true;
            }
        }
    }
    return false;
}

bool claims_value(const struct json_value *document, const char *expression, double *value,
                  attn_error *why) {
    struct reader reader = {.at = expression, .why = why, .wanted = SIZE_MAX};
    if (!read_expression(&reader, document, value)) {
        return false;
    }
    if (*reader.at != '\0') {
        return explain(why, "'%.60s' is left over", reader.at);
    }
    if (!isfinite(*value)) {
        return explain(why, "'%.120s' gives no number", expression);
    }
    return depends(document, expression, *value, reader.reads) ||
           explain(why, "'%.120s' gives the same whatever the file says", expression);
}

const struct json_value *claims_node(const struct json_value *document, const char *path,
                                     attn_error *why) {
    const char *end = path_end(path);
    if (*end != '\0') {
        explain(why, "'%.120s' is no path", path);
        return NULL;
    }
    return follow(document, path, end, why);
}
