/* SPDX-License-Identifier: Apache-2.0
 *
 * sweep.c - see check.h: the variables of --sweep and expressions in sizes.
 */
#include "check/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/message.h"

enum { DEPTH_MOST = 32 };

/* ---- variables ------------------------------------------------------------------------------- */

static bool add_value(struct sweep_variable *variable, int64_t value, attn_error *why) {
    if (variable->count == SWEEP_VALUES) {
        return explain(why, "more than %d values", SWEEP_VALUES);
    }
    variable->values[variable->count++] = value;
    return true;
}

/* "1..9", "32..256:32" or "1,2,31" */
static bool read_values(struct sweep_variable *variable, const char *text, attn_error *why) {
    static const char expected[] = "values '%s', expected LOW..HIGH[:STEP] or A,B,C";
    const char *at = text;
    int64_t low, high, step = 1;
    if (!take_whole(&at, &low)) {
        return explain(why, expected, text);
    }
    if (strncmp(at, "..", 2) == 0) {
        at += 2;
        bool good = take_whole(&at, &high) && low <= high;
        if (good && *at == ':') {
            at++;
            good = take_whole(&at, &step) && step > 0;
        }
        if (!good || *at != '\0') {
            return explain(why, expected, text);
        }
        while (add_value(variable, low, why)) {
            if (low > high - step) {
                return true;
            }
            low += step;
        }
        return false;
    }
    while (add_value(variable, low, why)) {
        if (*at == '\0') {
            return true;
        }
        if (*at++ != ',' || !take_whole(&at, &low)) {
            return explain(why, expected, text);
        }
    }
    return false;
}

static size_t name_length(const char *text) {
    const bool starts = *text >= 'A' && *text <= 'Z';
    return starts ? strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") : 0;
}

bool sweep_add(struct sweep *sweep, const char *text, attn_error *why) {
    const size_t length = name_length(text);
    if (length == 0 || length >= SWEEP_NAME || text[length] != '=') {
        return explain(why, "'%s', expected NAME=VALUES with a name of at most %d capital letters",
                       text, SWEEP_NAME - 1);
    }
    if (sweep->count == SWEEP_VARIABLES) {
        return explain(why, "more than %d variables", SWEEP_VARIABLES);
    }
    struct sweep_variable *variable = &sweep->variables[sweep->count++];
    memcpy(variable->name, text, length);
    variable->values = must(calloc(SWEEP_VALUES, sizeof *variable->values));
    return read_values(variable, text + length + 1, why);
}

void sweep_free(struct sweep *sweep) {
    for (size_t i = 0; i < sweep->count; i++) {
        free(sweep->variables[i].values);
    }
}

bool sweep_next(struct sweep *sweep) {
    for (size_t i = sweep->count; i > 0; i--) {
        struct sweep_variable *variable = &sweep->variables[i - 1];
        if (++variable->at < variable->count) {
            return true;
        }
        variable->at = 0;
    }
    return false;
}

const char *sweep_text(const struct sweep *sweep, char *text, size_t size) {
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < sweep->count && used < size; i++) {
        const struct sweep_variable *variable = &sweep->variables[i];
        const int n = snprintf(text + used, size - used, "%s%s=%lld", i > 0 ? ", " : "",
                               variable->name, (long long)variable->values[variable->at]);
        used += n > 0 ? (size_t)n : 0;
    }
    return text;
}

/* ---- expressions ----------------------------------------------------------------------------- */

struct expression {
    const struct sweep *sweep;
    const char *at, *end;
    int depth;
    bool failed;
};

static char peek(struct expression *e) {
    while (e->at < e->end && *e->at == ' ') {
        e->at++;
    }
    return e->at < e->end && !e->failed ? *e->at : '\0';
}

static int64_t sum(struct expression *e);

/* NULL: there is none of that name. */
static const struct sweep_variable *find_variable(const struct sweep *sweep, const char *name,
                                                  size_t length) {
    for (size_t i = 0; i < sweep->count; i++) {
        const struct sweep_variable *variable = &sweep->variables[i];
        if (strlen(variable->name) == length && strncmp(variable->name, name, length) == 0) {
            return variable;
        }
    }
    return NULL;
}

static int64_t variable_value(struct expression *e) {
    const size_t length = e->at < e->end ? name_length(e->at) : 0;
    const struct sweep_variable *variable = find_variable(e->sweep, e->at, length);
    e->failed = e->failed || variable == NULL;
    e->at += length;
    return variable != NULL ? variable->values[variable->at] : 0;
}

static int64_t factor(struct expression *e) {
    const char c = peek(e);
    int64_t value = 0;
    if (++e->depth > DEPTH_MOST) {
        e->failed = true;
    } else if (c == '(') {
        e->at++;
        value = sum(e);
        e->failed = e->failed || peek(e) != ')';
        e->at += !e->failed;
    } else if (c == '-') {
        e->at++;
        e->failed = __builtin_sub_overflow(0, factor(e), &value) || e->failed;
    } else if (c >= '0' && c <= '9') {
        for (; e->at < e->end && *e->at >= '0' && *e->at <= '9'; e->at++) {
            e->failed = e->failed || __builtin_mul_overflow(value, 10, &value) ||
                        __builtin_add_overflow(value, *e->at - '0', &value);
        }
    } else {
        value = variable_value(e);
    }
    e->depth--;
    return value;
}

static int64_t product(struct expression *e) {
    int64_t value = factor(e);
    for (char c = peek(e); c == '*' || c == '/' || c == '%'; c = peek(e)) {
        e->at++;
        const int64_t other = factor(e);
        if (c == '*') {
            e->failed = __builtin_mul_overflow(value, other, &value) || e->failed;
        } else if (other <= 0) {
            e->failed = true;
        } else {
            value = c == '/' ? value / other : value % other;
        }
    }
    return value;
}

static int64_t sum(struct expression *e) {
    int64_t value = product(e);
    for (char c = peek(e); c == '+' || c == '-'; c = peek(e)) {
        e->at++;
        const int64_t other = product(e);
        const bool over = c == '+' ? __builtin_add_overflow(value, other, &value)
                                   : __builtin_sub_overflow(value, other, &value);
        e->failed = e->failed || over;
    }
    return value;
}

/* Whether the field is an expression: a variable stands in it, or a product. A sign alone makes no
 * number an expression. */
static bool is_expression(const struct sweep *sweep, const char *at, const char *end) {
    bool found = memchr(at, '*', (size_t)(end - at)) != NULL;
    while (at < end) {
        const size_t length = name_length(at);
        if (length == 0) {
            if (strchr("0123456789+-*/%() ", *at) == NULL) {
                return false;
            }
            at++;
            continue;
        }
        found = found || find_variable(sweep, at, length) != NULL;
        at += length;
    }
    return found;
}

char *sweep_expand(const struct sweep *sweep, const char *text, attn_error *why) {
    const size_t room = 24 * (strlen(text) + 1); /* a number for each character */
    char *made = must(malloc(room));
    size_t used = 0;
    for (const char *at = text;;) {
        const size_t length = strcspn(at, ":,x.");
        if (is_expression(sweep, at, at + length)) {
            struct expression e = {.sweep = sweep, .at = at, .end = at + length};
            const int64_t value = sum(&e);
            if (e.failed || peek(&e) != '\0') {
                explain(why, "'%.*s' is no whole number for these values, or no expression",
                        (int)length, at);
                free(made);
                return NULL;
            }
            used += (size_t)snprintf(made + used, room - used, "%lld", (long long)value);
        } else {
            memcpy(made + used, at, length);
            used += length;
        }
        at += length;
        made[used] = *at;
        if (*at++ == '\0') {
            return made;
        }
        used++;
    }
}
