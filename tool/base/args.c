/* SPDX-License-Identifier: Apache-2.0
 *
 * args.c - see args.h.
 */
#include "base/args.h"

#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/message.h"

enum { HELP_COLUMN = 26, HELP_WIDTH = 96 };

/* ---- rows of a table ------------------------------------------------------------------------- */

struct arg arg_flag(const char *name, bool *value, const char *help) {
    return (struct arg){name, ARG_FLAG, value, NULL, help, .min = 0};
}

struct arg arg_text(const char *name, const char **value, const char *metavar, const char *help) {
    return (struct arg){name, ARG_TEXT, value, metavar, help, .min = 0};
}

struct arg arg_int(const char *name, int64_t *value, int64_t min, int64_t max, const char *help) {
    return (struct arg){name, ARG_INT, value, "N", help, .min = min, .max = max};
}

struct arg arg_ints(const char *name, struct arg_ints *value, int64_t min, int64_t max,
                    const char *help) {
    return (struct arg){name, ARG_INTS, value, "N,...", help, .min = min, .max = max};
}

struct arg arg_real(const char *name, double *value, const char *help) {
    return (struct arg){name, ARG_REAL, value, "X", help, .min = 0};
}

struct arg arg_choice(const char *name, int *value, const char *const *choices, const char *help) {
    return (struct arg){name, ARG_CHOICE, value, NULL, help, .choices = choices};
}

struct arg arg_pair(const char *name, int64_t value[2], int64_t min, int64_t max,
                    const char *help) {
    return (struct arg){name, ARG_PAIR, value, "L,R", help, .min = min, .max = max};
}

struct arg arg_list(const char *name, struct arg_list *value, const char *metavar,
                    const char *help) {
    return (struct arg){name, ARG_LIST, value, metavar, help, .min = 0};
}

/* ---- values ---------------------------------------------------------------------------------- */

bool take_whole(const char **text, int64_t *value) {
    char *end;
    errno = 0;
    *value = strtoll(*text, &end, 10);
    /* strtoll skips white space; a number begins with a digit or its sign. */
    const bool good = **text != '\0' && strchr("-+0123456789", **text) != NULL && end != *text;
    *text = good ? end : *text;
    return good && errno == 0;
}

/* `least` to `most` numbers with commas between, else they are no `what`. Returns how many; 0:
 * complained. */
static int set_numbers(const char *verb, const struct arg *arg, const char *text, int64_t *values,
                       int least, int most, const char *what) {
    const char *at = text;
    int count = 0;
    bool good = true;
    for (bool more = true; good && more; at += more) {
        if (count == most && most == ARG_INTS_MOST) {
            return deny("%s: %s: more than %d numbers", verb, arg->name, most);
        }
        good = count < most && take_whole(&at, &values[count++]);
        more = good && *at == ',';
    }
    if (!good || *at != '\0' || count < least) {
        return deny("%s: %s: '%s' is not a %s", verb, arg->name, text, what);
    }
    for (int i = 0; i < count; i++) {
        if (values[i] < arg->min || values[i] > arg->max) {
            return deny("%s: %s: %" PRId64 " is out of range, expected %" PRId64 " to %" PRId64,
                        verb, arg->name, values[i], arg->min, arg->max);
        }
    }
    return count;
}

static bool set_real(const char *verb, const struct arg *arg, const char *text) {
    char *end;
    double *value = arg->value;
    *value = strtod(text, &end);
    const bool starts = strchr("+-.0123456789", *text) != NULL;
    if (!starts || end == text || *end != '\0' || isnan(*value)) {
        return deny("%s: %s: '%s' is not a number", verb, arg->name, text);
    }
    return fabs(*value) <= FLT_MAX ||
           deny("%s: %s: %s is out of range, expected a finite number", verb, arg->name, text);
}

static void list_choices(const struct arg *arg, const char *separator, char *buffer, size_t size) {
    size_t used = 0;
    buffer[0] = '\0';
    for (int i = 0; arg->choices[i] != NULL && used < size; i++) {
        used += (size_t)snprintf(buffer + used, size - used, "%s%s", i == 0 ? "" : separator,
                                 arg->choices[i]);
    }
}

int choice_of(const char *const *choices, const char *word) {
    for (int i = 0; word != NULL && choices[i] != NULL; i++) {
        if (strcmp(choices[i], word) == 0) {
            return i;
        }
    }
    return -1;
}

static bool set_choice(const char *verb, const struct arg *arg, const char *text) {
    int *value = arg->value;
    *value = choice_of(arg->choices, text);
    if (*value < 0 && arg->aliases != NULL) {
        *value = choice_of(arg->aliases, text);
    }
    char expected[128];
    list_choices(arg, ", ", expected, sizeof expected);
    return *value >= 0 || deny("%s: %s: '%s' is not one of %s", verb, arg->name, text, expected);
}

static bool set_value(const char *verb, const struct arg *arg, const char *text) {
    struct arg_ints *ints = arg->value;
    struct arg_list *list = arg->value;
    if (arg->kind != ARG_FLAG && *text == '\0') {
        return deny("%s: %s: its value is empty", verb, arg->name);
    }
    switch (arg->kind) {
    case ARG_FLAG: *(bool *)arg->value = true; break;
    case ARG_TEXT: *(const char **)arg->value = text; break;
    case ARG_INT: return set_numbers(verb, arg, text, arg->value, 1, 1, "whole number") > 0;
    case ARG_INTS:
        ints->count = set_numbers(verb, arg, text, ints->values, 1, ARG_INTS_MOST,
                                  "whole number, or some with commas between");
        return ints->count > 0;
    case ARG_REAL: return set_real(verb, arg, text);
    case ARG_CHOICE: return set_choice(verb, arg, text);
    case ARG_PAIR:
        return set_numbers(verb, arg, text, arg->value, 2, 2, "pair of whole numbers like 128,0") >
               0;
    case ARG_LIST:
        if (list->count == ARG_LIST_MOST) {
            return deny("%s: %s: is given more than %d times", verb, arg->name, ARG_LIST_MOST);
        }
        list->items[list->count++] = text;
    }
    return true;
}

/* ---- help ------------------------------------------------------------------------------------ */

/* The text from column HELP_COLUMN on, broken at spaces; the cursor is at `column`. */
static void print_wrapped(const char *text, int column) {
    const int room = HELP_WIDTH - HELP_COLUMN;
    if (column >= HELP_COLUMN) {
        putchar('\n');
        column = 0;
    }
    while (*text != '\0') {
        int length = (int)strlen(text);
        if (length > room) {
            length = room;
            while (length > 1 && text[length] != ' ') {
                length--;
            }
        }
        printf("%*s%.*s\n", HELP_COLUMN - column, "", length, text);
        column = 0;
        text += length;
        text += strspn(text, " ");
    }
}

static void print_arg(const struct arg *arg) {
    char value[128] = "";
    if (arg->kind == ARG_CHOICE) {
        list_choices(arg, "|", value, sizeof value);
    } else if (arg->metavar != NULL) {
        snprintf(value, sizeof value, "%s", arg->metavar);
    }
    const char *short_name = arg->short_name != NULL ? arg->short_name : "";
    const int column = printf("  %s%s%s%s%s", short_name, *short_name ? ", " : "", arg->name,
                              *value ? " " : "", value);
    print_wrapped(arg->help, column + 1 >= HELP_COLUMN ? HELP_COLUMN : column);
}

const char *command_summary = "";

static void print_help(const struct command *command) {
    printf("attest %s - %s\n\nusage: attest %s %s\n", command->verb, command_summary, command->verb,
           command->synopsis);
    for (size_t g = 0; g < command->group_count; g++) {
        printf("\n%s\n", command->groups[g].title);
        for (size_t i = 0; i < command->groups[g].count; i++) {
            print_arg(&command->groups[g].args[i]);
        }
    }
    if (command->notes != NULL) {
        printf("\n%s", command->notes);
    }
    printf("\nexamples\n%s", command->examples);
}

/* ---- the parser ------------------------------------------------------------------------------ */

/* The options of all groups; NULL past the last. */
static struct arg *arg_at(const struct command *command, size_t index) {
    size_t g = 0;
    for (; g < command->group_count && index >= command->groups[g].count; g++) {
        index -= command->groups[g].count;
    }
    return g < command->group_count ? &command->groups[g].args[index] : NULL;
}

static bool is_word(const char *name, const char *word, size_t length) {
    return name != NULL && strlen(name) == length && strncmp(name, word, length) == 0;
}

static struct arg *find_arg(const struct command *command, const char *word, size_t length) {
    struct arg *arg;
    for (size_t i = 0; (arg = arg_at(command, i)) != NULL; i++) {
        if (is_word(arg->name, word, length) || is_word(arg->short_name, word, length)) {
            break;
        }
    }
    return arg;
}

bool spelled_like(const char *word, size_t length, const char *name, int *least) {
    enum { LONGEST = 32 };
    int row[LONGEST + 1]; /* edits from the word's first i letters to the name's first j */
    const size_t width = strlen(name);
    if (length > LONGEST || width > LONGEST) {
        return false;
    }
    for (size_t j = 0; j <= width; j++) {
        row[j] = (int)j;
    }
    for (size_t i = 0; i < length; i++) {
        int corner = row[0]++;
        for (size_t j = 0; j < width; j++) {
            const int replaced = corner + (word[i] != name[j]);
            const int moved = 1 + (row[j] < row[j + 1] ? row[j] : row[j + 1]);
            corner = row[j + 1];
            row[j + 1] = replaced < moved ? replaced : moved;
        }
    }
    const bool like = row[width] < *least && 2 * (size_t)row[width] < length;
    *least = like ? row[width] : *least;
    return like;
}

static bool refuse_option(const struct command *command, const char *word, size_t length) {
    const char *like = "";
    const struct arg *arg;
    int least = INT_MAX;
    for (size_t i = 0; word[0] == '-' && (arg = arg_at(command, i)) != NULL; i++) {
        like = spelled_like(word, length, arg->name, &least) ? arg->name : like;
    }
    return deny("%s: unknown %s '%.*s'%s%s%s attest %s --help lists what there is", command->verb,
                word[0] == '-' ? "option" : "argument", (int)length, word,
                *like != '\0' ? ", did you mean " : "", like, *like != '\0' ? "?" : ";",
                command->verb);
}

/* Takes the word without a name. */
static bool parse_positional(const struct command *command, const char *word) {
    struct arg *arg = command->positional;
    if (arg->seen && arg->kind != ARG_LIST) {
        return deny("%s: %s is given twice: '%s'", command->verb, arg->name, word);
    }
    arg->seen = true;
    return set_value(command->verb, arg, word);
}

/* Takes one option and its value; *used is how many words that was. */
static bool parse_option(const struct command *command, int argc, char **argv, int *used) {
    const char *verb = command->verb;
    const char *word = argv[0];
    const size_t length = strcspn(word, "=");
    const char *value = word[length] == '=' ? word + length + 1 : NULL;
    struct arg *arg = find_arg(command, word, length);
    if (arg == NULL) {
        return refuse_option(command, word, length);
    }
    if (arg->seen && arg->kind != ARG_LIST) {
        return deny("%s: %s is given twice", verb, arg->name);
    }
    arg->seen = true;
    if (arg->kind == ARG_FLAG) {
        return value == NULL ? set_value(verb, arg, "")
                             : deny("%s: %s takes no value", verb, arg->name);
    }
    if (value == NULL) {
        /* "-1,0" is a value, "--k" is the next option. */
        if (argc < 2 || strncmp(argv[1], "--", 2) == 0) {
            return deny("%s: %s needs a value", verb, arg->name);
        }
        value = argv[1];
        *used = 2;
    }
    return set_value(verb, arg, value);
}

enum args_result args_parse(const struct command *command, int argc, char **argv) {
    const struct arg *arg, *missing = command->positional;
    for (int i = 0, used = 1; i < argc; i += used, used = 1) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            print_help(command);
            return ARGS_HELP;
        }
        const bool named = command->positional == NULL || argv[i][0] == '-';
        if (!(named ? parse_option(command, argc - i, argv + i, &used)
                    : parse_positional(command, argv[i]))) {
            return ARGS_BAD;
        }
    }
    missing = missing != NULL && !missing->seen ? missing : NULL;
    for (size_t i = 0; missing == NULL && (arg = arg_at(command, i)) != NULL; i++) {
        missing = arg->required && !arg->seen ? arg : NULL;
    }
    if (missing != NULL) {
        complain("%s: %s is missing; attest %s --help shows an example", command->verb,
                 missing->short_name != NULL ? missing->short_name : missing->name, command->verb);
        return ARGS_BAD;
    }
    return ARGS_RUN;
}
