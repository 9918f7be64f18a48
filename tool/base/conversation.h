/* SPDX-License-Identifier: Apache-2.0
 *
 * conversation.h - starts this program again as a child process, listens to the lines that it
 * answers, and kills it when its time is up.
 *
 * A kernel may crash its process, hang it, or leave the device in a state in which nothing works
 * any more. All of that ends with the child.
 *
 * Invariant: when converse returns, the child's process group has been killed or is gone.
 */
#ifndef ATTEST_BASE_CONVERSATION_H
#define ATTEST_BASE_CONVERSATION_H

#include <stdbool.h>

#include "attn.h"

struct conversation_terms {
    double seconds; /* that the child may take; INFINITY, with a tick: any time */
    bool each_line; /* for each line, not in all */
    /* A line of the answer, without its end; false: it makes no sense. The last one, "end", is not
     * handed on. NULL: the child is the program argv[0], a path, and answers nothing. */
    bool (*take)(void *user, char *line);
    void (*tick)(void *user); /* a few times a second, to show that work goes on; or NULL */
    void *user;
};

/* argv[0] is "attest", its program is /proc/self/exe, unless there is no `take`. False and the
 * reason if the child could not be started, died, took too long, said nonsense or did not end its
 * answer. Several threads may converse at once, each with a child of its own. */
bool converse(const char *const argv[], const struct conversation_terms *terms, attn_error *why);

/* From now on a signal that ends programs ends the children of the moment, and this program asks
 * conversation_signal. */
void conversation_watch(void);

/* The last of these signals; 0: there was none. */
int conversation_signal(void);

/* ---- the child's side ------------------------------------------------------------------------ */

/* Whether a parent listens; from then on this process ends with it. */
bool conversation_joined(void);

/* One line of the answer; ends the process if its parent is gone. */
void conversation_answer(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif /* ATTEST_BASE_CONVERSATION_H */
