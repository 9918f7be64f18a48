/* SPDX-License-Identifier: Apache-2.0
 *
 * child.h - runs a program, or a function in a child process, with a time limit and keeps
 * everything it prints.
 *
 * Invariant: when child_run or child_call returns, or a signal ends this program meanwhile, neither
 * the child nor anything that it started in its process group is running any more.
 */
#ifndef ATTEST_BASE_CHILD_H
#define ATTEST_BASE_CHILD_H

#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "attn.h"

struct child {
    int code;       /* exit code; -1: it did not come to one */
    int signal;     /* that ended it, or 0 */
    bool timed_out; /* was ended for running past the limit */
    double seconds;
};

/* argv[0] is the program's path; argv ends with NULL. stdout and stderr go to the file `log`, which
 * must not exist yet. False and the reason where it could not be started. */
bool child_run(const char *const argv[], const char *log, double limit, struct child *child,
               attn_error *why);

/* The same for a function of this program: what it returns is the exit code. This process must have
 * a single thread and no device open, neither of which survives a fork. The child ends with its
 * parent, however that ends. */
bool child_call(int (*function)(void *argument), void *argument, const char *log, double limit,
                struct child *child, attn_error *why);

/* "exit code 86", "ended by signal 11", "ended after 60 s, its limit"; returns the buffer. */
const char *child_text(const struct child *child, char *buffer, size_t size);

/* Starts a program in a process group of its own, so that what it starts can be killed with it:
 * with no input, stdout and stderr to `output`, `answers` (or -1: none) as descriptor
 * CHILD_ANSWERS, this signal mask and SIGPIPE as a fresh program has it. 0, or an errno. */
enum { CHILD_ANSWERS = 3 };
int child_spawn(pid_t *process, const char *const argv[], const char *program, int output,
                int answers, const sigset_t *mask);

/* Whether it ends until `deadline`. It stays a zombie, so that its process group keeps its number,
 * until it is reaped, which tells how it ended. */
bool child_ended(pid_t process, double deadline);
void child_reap(pid_t process, struct child *child);

/* ---- where programs are ---------------------------------------------------------------------- */

/* A program in $PATH, or else in the toolkit's usual folder. */
bool tool_find(const char *name, char path[PATH_MAX], attn_error *why);

/* The line of `PATH --version` that holds the number; "" if it says none. log: a file that is not
 * there yet, for what it prints. */
bool tool_version(const char *path, const char *log, char *version, size_t size, attn_error *why);

/* The folder with the kernels that have planted faults: beside this program, or where `make
 * install` puts it. */
bool tool_faults(char path[PATH_MAX], attn_error *why);

#endif /* ATTEST_BASE_CHILD_H */
