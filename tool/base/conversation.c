/* SPDX-License-Identifier: Apache-2.0
 *
 * conversation.c - see conversation.h.
 */
#include "base/conversation.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/child.h"
#include "base/clock.h"
#include "base/message.h"

enum { LINE_MOST = 6000, ANSWER_MOST = 4000, WORDS_MOST = 600, TICK_MS = 200 };
static const double GRACE = 10.0;    /* seconds that a killed process may take to go */
static const double FAREWELL = 2.0;  /* after SIGTERM, for it and all that it started */
static const double FAR_AWAY = 10.0; /* where a command started it, maybe on another machine */

struct conversation {
    const struct conversation_terms *terms;
    pid_t child;
    double deadline;
    int answers, words;   /* what we read: fd 3 of the child, and its stdout and stderr */
    char line[LINE_MOST]; /* an answer that has not ended yet */
    size_t line_used;
    char said[WORDS_MOST]; /* the last that it wrote to stdout or stderr */
    size_t said_used;
    bool ended, nonsense;
};

/* ---- a signal to us is one to the child ------------------------------------------------------ */

enum { CHILDREN_MOST = 64 };
static volatile sig_atomic_t children[CHILDREN_MOST], last_signal;
static pthread_mutex_t children_lock = PTHREAD_MUTEX_INITIALIZER;

/* Puts `child` where `before` is; with 0 that is a free place, or takes it away. */
static void note_child(pid_t before, pid_t child) {
    pthread_mutex_lock(&children_lock);
    for (int i = 0; i < CHILDREN_MOST; i++) {
        if (children[i] == (sig_atomic_t)before) {
            children[i] = (sig_atomic_t)child;
            break;
        }
    }
    pthread_mutex_unlock(&children_lock);
}

static void pass_on(int number) {
    for (int i = 0; i < CHILDREN_MOST; i++) {
        if (children[i] > 0) {
            kill(-(pid_t)children[i], SIGTERM); /* finish() waits for it, then kills it */
        }
    }
    last_signal = number;
}

int conversation_signal(void) {
    return (int)last_signal;
}

void conversation_watch(void) {
    const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        const struct sigaction action = {.sa_handler = pass_on};
        struct sigaction before;
        if (sigaction(numbers[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN) {
            sigaction(numbers[i], &action, NULL); /* what nohup ignores stays ignored */
        }
    }
}

/* ---- start ----------------------------------------------------------------------------------- */

static void close_pipe(int ends[2]) {
    for (int i = 0; i < 2; i++) {
        if (ends[i] >= 0) {
            close(ends[i]);
        }
    }
}

static bool start(struct conversation *c, const char *const argv[], attn_error *why) {
    int answers[2] = {-1, -1}, words[2] = {-1, -1}, moved = -1;
    sigset_t mask;
    sigprocmask(SIG_BLOCK, NULL, &mask);
    const bool answered = c->terms->take != NULL;
    const char *program = answered ? "/proc/self/exe" : argv[0];
    bool good = pipe2(words, O_CLOEXEC) == 0 && (!answered || pipe2(answers, O_CLOEXEC) == 0);
    /* A descriptor that is already CHILD_ANSWERS would keep its close-on-exec flag. */
    good =
        good && (!answered || (moved = fcntl(answers[1], F_DUPFD_CLOEXEC, CHILD_ANSWERS + 1)) >= 0);
    const int error = good ? child_spawn(&c->child, argv, program, words[1], moved, &mask) : errno;
    if (error != 0) {
        close_pipe(answers);
        close_pipe(words);
        explain(why, "cannot start a child process: %s", strerror(error));
    } else {
        close(words[1]);
        close_pipe((int[2]){answers[1], -1});
        c->answers = answers[0];
        c->words = words[0];
        note_child(0, c->child);
    }
    if (moved >= 0) {
        close(moved);
    }
    return error == 0;
}

/* ---- listen ---------------------------------------------------------------------------------- */

static void take_line(struct conversation *c) {
    if (strcmp(c->line, "end") == 0) {
        c->ended = true;
    } else if (c->ended || !c->terms->take(c->terms->user, c->line)) {
        c->nonsense = true;
    }
}

static void take_answers(struct conversation *c, const char *bytes, size_t count) {
    for (size_t i = 0; i < count && !c->nonsense; i++) {
        if (bytes[i] == '\n') {
            c->line[c->line_used] = '\0';
            take_line(c);
            c->line_used = c->nonsense ? c->line_used : 0;
        } else if (bytes[i] == '\0' || c->line_used + 1 == sizeof c->line) {
            c->line[c->line_used] = '\0';
            c->nonsense = true;
        } else {
            c->line[c->line_used++] = bytes[i];
        }
    }
}

/* Keeps the end. */
static void take_words(struct conversation *c, const char *bytes, size_t count) {
    const size_t most = sizeof c->said - 1;
    const size_t from = count > most ? count - most : 0;
    const size_t fresh = count - from;
    const size_t kept = c->said_used + fresh > most ? most - fresh : c->said_used;
    memmove(c->said, c->said + c->said_used - kept, kept);
    memcpy(c->said + kept, bytes + from, fresh);
    c->said_used = kept + fresh;
    c->said[c->said_used] = '\0';
}

/* True while the descriptor has more to give. */
static bool read_some(struct conversation *c, int *from) {
    char bytes[4096];
    const ssize_t count = read(*from, bytes, sizeof bytes);
    if (count < 0 && errno == EINTR) {
        return true;
    }
    if (count <= 0) {
        close(*from);
        *from = -1;
        return false;
    }
    if (from == &c->answers) {
        take_answers(c, bytes, (size_t)count);
    } else {
        take_words(c, bytes, (size_t)count);
    }
    return true;
}

/* Until the child has closed both pipes. False: the time was up first, or a signal came. */
static bool listen(struct conversation *c) {
    const struct conversation_terms *terms = c->terms;
    while ((c->answers >= 0 || c->words >= 0) && !c->nonsense) {
        struct pollfd fds[2] = {{.fd = c->answers, .events = POLLIN},
                                {.fd = c->words, .events = POLLIN}};
        const double left = c->deadline - clock_seconds();
        if (left <= 0 || last_signal != 0) {
            return false;
        }
        const int most =
            terms->tick != NULL && 1e3 * left > TICK_MS ? TICK_MS : (int)(1e3 * left) + 1;
        const int ready = poll(fds, 2, most);
        if (terms->tick != NULL) {
            terms->tick(terms->user);
        }
        if (ready <= 0) {
            continue;
        }
        if (fds[0].revents != 0 && read_some(c, &c->answers) && terms->each_line) {
            c->deadline = clock_seconds() + terms->seconds;
        }
        if (fds[1].revents != 0) {
            read_some(c, &c->words);
        }
    }
    return true;
}

/* ---- the end --------------------------------------------------------------------------------- */

static bool judge_end(struct conversation *c, bool in_time, const struct child *child,
                      attn_error *why) {
    const char *words = last_line(c->said);
    char how[128];
    if (c->nonsense) {
        return explain(why, "the child answered nonsense: '%.100s'", c->line);
    }
    if (!in_time) {
        snprintf(how, sizeof how, "took longer than %g s and was killed", c->terms->seconds);
    } else if (child->signal != 0) {
        snprintf(how, sizeof how, "died of signal %d (%s)", child->signal,
                 strsignal(child->signal));
    } else if (child->code != EXIT_DONE) {
        snprintf(how, sizeof how, "ended with exit code %d", child->code);
    } else if (c->ended || c->terms->take == NULL) {
        return true;
    } else {
        snprintf(how, sizeof how, "did not end its answer");
    }
    return explain(why, "the child %s%s%.200s", how, *words != '\0' ? ": " : "", words);
}

static bool finish(struct conversation *c, attn_error *why) {
    struct child child = {.code = EXIT_DONE};
    const bool in_time = listen(c) && (c->nonsense || child_ended(c->child, c->deadline));
    if (!in_time || c->nonsense || last_signal != 0) {
        kill(-c->child, SIGTERM); /* a tool that it runs is in a group of its own: child.h */
        child_ended(c->child, clock_seconds() + (c->terms->take != NULL ? FAREWELL : FAR_AWAY));
    }
    kill(-c->child, SIGKILL); /* also what the child may have started */
    const bool gone = child_ended(c->child, clock_seconds() + GRACE);
    note_child(c->child, 0);
    if (gone) {
        child_reap(c->child, &child);
    }
    close_pipe((int[2]){c->answers, c->words});
    if (!gone) {
        return explain(why, "the child (process %ld) took longer than %g s and cannot be killed",
                       (long)c->child, c->terms->seconds);
    }
    return judge_end(c, in_time, &child, why);
}

bool converse(const char *const argv[], const struct conversation_terms *terms, attn_error *why) {
    struct conversation c = {
        .terms = terms, .deadline = clock_seconds() + terms->seconds, .answers = -1, .words = -1};
    return start(&c, argv, why) && finish(&c, why);
}

/* ---- the child's side ------------------------------------------------------------------------ */

bool conversation_joined(void) {
    struct stat answers;
    if (fstat(CHILD_ANSWERS, &answers) != 0 ||
        (!S_ISFIFO(answers.st_mode) && !S_ISSOCK(answers.st_mode))) {
        return false;
    }
    prctl(PR_SET_PDEATHSIG, SIGTERM); /* no one would read the answers */
    return true;
}

void conversation_answer(const char *format, ...) {
    char line[ANSWER_MOST];
    va_list list;
    va_start(list, format);
    vsnprintf(line, sizeof line - 1, format, list);
    va_end(list);
    for (char *c = line; *c != '\0'; c++) {
        *c = *c == '\n' ? ' ' : *c;
    }
    const size_t length = strlen(line);
    line[length] = '\n';
    for (size_t at = 0; at <= length;) {
        const ssize_t written = write(CHILD_ANSWERS, line + at, length + 1 - at);
        if (written <= 0) {
            _exit(EXIT_BAD_INPUT); /* the parent is gone */
        }
        at += (size_t)written;
    }
}
