/* SPDX-License-Identifier: Apache-2.0
 *
 * args.h - the command line of every verb: tables of options, one parser, one help page.
 *
 * A verb describes itself by a struct command whose groups point at the variables to fill. Options
 * are written `--name value` or `--name=value`; each may be given once, but for lists; what a
 * verb takes without a name is one argument, or one list of them.
 *
 * Invariant: what the parser accepts is what the help page shows, since both read the same table.
 */
#ifndef ATTEST_BASE_ARGS_H
#define ATTEST_BASE_ARGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum arg_kind {
    ARG_FLAG,   /* bool */
    ARG_TEXT,   /* const char *, not empty */
    ARG_INT,    /* int64_t, min to max */
    ARG_INTS,   /* struct arg_ints, "512" or "512,1024", min to max each */
    ARG_REAL,   /* double; finite, and so as a float */
    ARG_CHOICE, /* int: index into choices */
    ARG_PAIR,   /* int64_t[2], "L,R", min to max each */
    ARG_LIST    /* struct arg_list; the option may be given again */
};

enum { ARG_LIST_MOST = 256, ARG_INTS_MOST = 16 };
struct arg_ints {
    int64_t values[ARG_INTS_MOST];
    int count;
};
struct arg_list {
    const char *items[ARG_LIST_MOST]; /* not empty */
    size_t count;
};

struct arg {
    const char *name; /* "--batch" */
    enum arg_kind kind;
    void *value;
    const char *metavar; /* "N", as the help page calls the value; NULL for flags and choices */
    const char *help;
    const char *short_name;     /* "-o", or NULL */
    const char *const *choices; /* ends with NULL */
    const char *const *aliases; /* other words for them, in their order, or NULL */
    int64_t min, max;
    bool required;
    bool seen; /* set by the parser */
};

/* A whole number with its sign at most before it; moves on to what follows. False: it is none. */
bool take_whole(const char **text, int64_t *value);

/* The place of a word in a list that ends with NULL; -1: it is none of them, or NULL. */
int choice_of(const char *const *choices, const char *word);

/* One row of a table each; they check that the value has the kind's type. */
struct arg arg_flag(const char *name, bool *value, const char *help);
struct arg arg_text(const char *name, const char **value, const char *metavar, const char *help);
struct arg arg_int(const char *name, int64_t *value, int64_t min, int64_t max, const char *help);
struct arg arg_ints(const char *name, struct arg_ints *value, int64_t min, int64_t max,
                    const char *help);
struct arg arg_real(const char *name, double *value, const char *help);
struct arg arg_choice(const char *name, int *value, const char *const *choices, const char *help);
struct arg arg_pair(const char *name, int64_t value[2], int64_t min, int64_t max, const char *help);
struct arg arg_list(const char *name, struct arg_list *value, const char *metavar,
                    const char *help);

struct arg_group {
    const char *title;
    struct arg *args;
    size_t count;
};

#define ARG_GROUP(title, table)                                                                    \
    { (title), (table), sizeof(table) / sizeof *(table) }
#define ARG_GROUPS(list) .groups = (list), .group_count = sizeof(list) / sizeof *(list)

struct command {
    const char *verb;
    const char *synopsis; /* what follows the verb */
    const char *notes;    /* below the options */
    const char *examples; /* one per line */
    const struct arg_group *groups;
    size_t group_count;
    struct arg *positional; /* ARG_TEXT or ARG_LIST: what has no name; NULL: there is none */
};

/* What the verb at hand does, in a few words: cli/main.c lists them. */
extern const char *command_summary;

enum args_result {
    ARGS_RUN,  /* the variables are filled */
    ARGS_HELP, /* the help page was printed */
    ARGS_BAD   /* complained */
};

/* True if `name` is spelled like the word of `length` bytes: at most half of them differ. *least
 * holds the letters that differ; it starts as INT_MAX and falls from name to name. */
bool spelled_like(const char *word, size_t length, const char *name, int *least);

/* argv[0] is the first word after the verb. */
enum args_result args_parse(const struct command *command, int argc, char **argv);

#endif /* ATTEST_BASE_ARGS_H */
