/* SPDX-License-Identifier: Apache-2.0
 *
 * message.h - exit codes, and the one function that prints an error.
 *
 * Invariant: a failed run writes exactly one line to stderr, and it begins with "attest: ".
 */
#ifndef ATTEST_BASE_MESSAGE_H
#define ATTEST_BASE_MESSAGE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "attn.h"

enum {
    EXIT_DONE = 0,
    EXIT_FAILED_CHECK = 1, /* computed, compared with the reference, and wrong */
    EXIT_BAD_INPUT = 2,    /* usage, files, devices: nothing was computed or nothing was written */
    EXIT_NOT_RUN = 3,      /* a valid request, but this machine lacks the device or tool */
    EXIT_INVALID = 4       /* a check's own control failed: its verdict means nothing */
};

/* Bytes of the UTF-8 character at `text`, of which at most `left` are read, none past a NUL, and
 * the character; 0 where there is none (overlong forms and surrogates are none). */
size_t utf8_length(const char *text, size_t left, uint32_t *character);

/* Whether it moves the cursor, turns the direction of the text around it or has no width. */
bool is_treacherous(uint32_t character);

/* At most so many bytes of a text that another program wrote: what is no UTF-8, or treacherous,
 * becomes '?'. */
void print_foreign(FILE *out, const char *text, size_t most);

/* Prints "attest: " and the sentence on one line of stderr, as print_foreign does.
 * Returns EXIT_BAD_INPUT, so that a caller can say `return complain(...)`. */
int complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
bool deny(const char *format, ...) __attribute__((format(printf, 1, 2))); /* returns false */

/* As complain, for the program's own functions that hand a sentence to their caller instead.
 * Returns false. */
bool explain(attn_error *why, const char *format, ...) __attribute__((format(printf, 2, 3)));

bool ends_with(const char *text, const char *end); /* with something before it */

/* The last line of a text; cuts off the white space at its end. */
const char *last_line(char *text);

/* What an allocation gave. NULL ends the program with exit code 2: without memory for a list or a
 * text it can do nothing useful. Tensors, which may be larger than the machine, have sentences of
 * their own instead. */
void *must(void *memory) __attribute__((returns_nonnull));

/* A list of `count` items with room for one more: its room doubles where the count is a power of
 * two. */
void *grow(void *list, size_t count, size_t size) __attribute__((returns_nonnull));

/* Flushes stdout; complains, and returns EXIT_BAD_INPUT, if anything written to it was lost. */
int flush_stdout(void);

#endif /* ATTEST_BASE_MESSAGE_H */
