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

static bool parse_int(const char *text, const char **end, int64_t *value) {
    char *stop;
    errno = 0;
    const long long number = strtoll(text, &stop, 10);
    /* strtoll skips white space; a number begins with a digit or its sign. */
    const bool starts = *text == '-' || *text == '+' || (*text >= '0' && *text <= '9');
    if (!starts || stop == text || errno != 0) {
        return false;
    }
    *value = number;
    *end = stop;
    return true;
}

static int check_range(const char *verb, const struct arg *arg, int64_t value) {
    if (value < arg->min || value > arg->max) {
        return complain("%s: %s: %" PRId64 " is out of range, expected %" PRId64 " to %" PRId64,
                        verb, arg->name, value, arg->min, arg->max);
    }
    return EXIT_DONE;
}

static int set_int(const char *verb, const struct arg *arg, const char *text) {
    const char *end;
    int64_t *value = arg->value;
    if (!parse_int(text, &end, value) || *end != '\0') {
        return complain("%s: %s: '%s' is not a whole number", verb, arg->name, text);
    }
    return check_range(verb, arg, *value);
}

static int set_ints(const char *verb, const struct arg *arg, const char *text) {
    struct arg_ints *list = arg->value;
    const char *end = text;
    for (list->count = 0; list->count == 0 || *end++ == ','; list->count++) {
        if (list->count == ARG_INTS_MOST) {
            return complain("%s: %s: more than %d numbers", verb, arg->name, ARG_INTS_MOST);
        }
        int64_t *value = &list->values[list->count];
        if (!parse_int(end, &end, value) || (*end != ',' && *end != '\0')) {
            return complain("%s: %s: '%s' is not a whole number, or some with commas between", verb,
                            arg->name, text);
        }
        if (check_range(verb, arg, *value) != EXIT_DONE) {
            return EXIT_BAD_INPUT;
        }
    }
    return EXIT_DONE;
}

static int set_pair(const char *verb, const struct arg *arg, const char *text) {
    int64_t *value = arg->value;
    const char *end;
    if (!parse_int(text, &end, &value[0]) || *end != ',' || !parse_int(end + 1, &end, &value[1]) ||
        *end != '\0') {
        return complain("%s: %s: '%s' is not a pair of whole numbers like 128,0", verb, arg->name,
                        text);
    }
    const int status = check_range(verb, arg, value[0]);
    return status != EXIT_DONE ? status : check_range(verb, arg, value[1]);
}

static int set_real(const char *verb, const struct arg *arg, const char *text) {
    char *end;
    double *value = arg->value;
    *value = strtod(text, &end);
    const bool starts = strchr("+-.0123456789", *text) != NULL;
    if (!starts || end == text || *end != '\0' || isnan(*value)) {
        return complain("%s: %s: '%s' is not a number", verb, arg->name, text);
    }
    if (fabs(*value) > FLT_MAX) {
        return complain("%s: %s: %s is out of range, expected a finite number", verb, arg->name,
                        text);
    }
    return EXIT_DONE;
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

static int set_choice(const char *verb, const struct arg *arg, const char *text) {
    int *value = arg->value;
    *value = choice_of(arg->choices, text);
    if (*value < 0 && arg->aliases != NULL) {
        *value = choice_of(arg->aliases, text);
    }
    if (*value >= 0) {
        return EXIT_DONE;
    }
    char expected[128];
    list_choices(arg, ", ", expected, sizeof expected);
    return complain("%s: %s: '%s' is not one of %s", verb, arg->name, text, expected);
}

static int set_list(const char *verb, const struct arg *arg, const char *text) {
    struct arg_list *list = arg->value;
    if (list->count == ARG_LIST_MOST) {
        return complain("%s: %s: is given more than %d times", verb, arg->name, ARG_LIST_MOST);
    }
    list->items[list->count++] = text;
    return EXIT_DONE;
}

static int set_value(const char *verb, const struct arg *arg, const char *text) {
    if (arg->kind != ARG_FLAG && *text == '\0') {
        return complain("%s: %s: its value is empty", verb, arg->name);
    }
    switch (arg->kind) {
    case ARG_FLAG: *(bool *)arg->value = true; break;
    case ARG_TEXT: *(const char **)arg->value = text; break;
    case ARG_INT: return set_int(verb, arg, text);
    case ARG_INTS: return set_ints(verb, arg, text);
    case ARG_REAL: return set_real(verb, arg, text);
    case ARG_CHOICE: return set_choice(verb, arg, text);
    case ARG_PAIR: return set_pair(verb, arg, text);
    case ARG_LIST: return set_list(verb, arg, text);
    }
    return EXIT_DONE;
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

static struct arg *find_arg(const struct command *command, const char *word, size_t length) {
    for (size_t g = 0; g < command->group_count; g++) {
        for (size_t i = 0; i < command->groups[g].count; i++) {
            struct arg *arg = &command->groups[g].args[i];
            const char *const names[2] = {arg->name, arg->short_name};
            for (int n = 0; n < 2; n++) {
                if (names[n] != NULL && strlen(names[n]) == length &&
                    strncmp(names[n], word, length) == 0) {
                    return arg;
                }
            }
        }
    }
    return NULL;
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

static int refuse_option(const struct command *command, const char *word, size_t length) {
    const char *like = "";
    int least = INT_MAX;
    for (size_t g = 0; g < command->group_count; g++) {
        for (size_t i = 0; i < command->groups[g].count; i++) {
            const char *name = command->groups[g].args[i].name;
            like = word[0] == '-' && spelled_like(word, length, name, &least) ? name : like;
        }
    }
    return complain("%s: unknown %s '%.*s'%s%s%s attest %s --help lists what there is",
                    command->verb, word[0] == '-' ? "option" : "argument", (int)length, word,
                    *like != '\0' ? ", did you mean " : "", like, *like != '\0' ? "?" : ";",
                    command->verb);
}

/* Takes the word without a name. */
static int parse_positional(const struct command *command, const char *word) {
    struct arg *arg = command->positional;
    if (arg->seen && arg->kind != ARG_LIST) {
        return complain("%s: %s is given twice: '%s'", command->verb, arg->name, word);
    }
    arg->seen = true;
    return set_value(command->verb, arg, word);
}

/* Takes one option and its value; *used is how many words that was. */
static int parse_option(const struct command *command, int argc, char **argv, int *used) {
    const char *verb = command->verb;
    const char *word = argv[0];
    const size_t length = strcspn(word, "=");
    const char *value = word[length] == '=' ? word + length + 1 : NULL;
    struct arg *arg = find_arg(command, word, length);
    if (arg == NULL) {
        return refuse_option(command, word, length);
    }
    if (arg->seen && arg->kind != ARG_LIST) {
        return complain("%s: %s is given twice", verb, arg->name);
    }
    arg->seen = true;
    *used = 1;
    if (arg->kind == ARG_FLAG) {
        return value == NULL ? set_value(verb, arg, "")
                             : complain("%s: %s takes no value", verb, arg->name);
    }
    if (value == NULL) {
        /* "-1,0" is a value, "--k" is the next option. */
        if (argc < 2 || strncmp(argv[1], "--", 2) == 0) {
            return complain("%s: %s needs a value", verb, arg->name);
        }
        value = argv[1];
        *used = 2;
    }
    return set_value(verb, arg, value);
}

enum args_result args_parse(const struct command *command, int argc, char **argv) {
    for (int i = 0; i < argc;) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            print_help(command);
            return ARGS_HELP;
        }
        int used = 1;
        const bool named = command->positional == NULL || argv[i][0] == '-';
        if ((named ? parse_option(command, argc - i, argv + i, &used)
                   : parse_positional(command, argv[i])) != EXIT_DONE) {
            return ARGS_BAD;
        }
        i += used;
    }
    const struct arg *missing =
        command->positional != NULL && !command->positional->seen ? command->positional : NULL;
    for (size_t g = 0; g < command->group_count; g++) {
        for (size_t i = 0; missing == NULL && i < command->groups[g].count; i++) {
            const struct arg *arg = &command->groups[g].args[i];
            missing = arg->required && !arg->seen ? arg : NULL;
        }
    }
    if (missing != NULL) {
        complain("%s: %s is missing; attest %s --help shows an example", command->verb,
                 missing->short_name != NULL ? missing->short_name : missing->name, command->verb);
        return ARGS_BAD;
    }
    return ARGS_RUN;
}
