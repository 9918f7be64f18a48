/* SPDX-License-Identifier: Apache-2.0
 *
 * parity_children.c - starts a child process, listens to it, and kills it when its time is up.
 *
 * A kernel may crash its process, hang it, or leave the device in a state in which nothing works
 * any more. All of that ends with the child.
 *
 * Invariant: when worker_ask returns, the child's process group has been killed or is gone.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clock.h"
#include "message.h"
#include "parity.h"

extern char **environ;

enum { LINE_MOST = 3 * TEXT_LONG, WORDS_MOST = 600 };
static const double GRACE = 10.0; /* seconds that a killed process may take to go */

struct conversation {
    pid_t child;
    int answers, words;   /* what we read: fd 3 of the child, and its stdout and stderr */
    char line[LINE_MOST]; /* an answer that has not ended yet */
    size_t line_used;
    char said[WORDS_MOST]; /* the last that it wrote to stdout or stderr */
    size_t said_used;
    bool ended, nonsense;
    worker_line *take;
    void *user;
};

/* ---- a signal to us is one to the child ------------------------------------------------------ */

static volatile sig_atomic_t current_child;

static void pass_on(int number) {
    if (current_child > 0) {
        kill(-(pid_t)current_child, SIGKILL);
    }
    signal(number, SIG_DFL);
    raise(number);
}

static void watch_signals(void) {
    static bool watching;
    const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    for (size_t i = 0; !watching && i < sizeof numbers / sizeof numbers[0]; i++) {
        const struct sigaction action = {.sa_handler = pass_on};
        struct sigaction before;
        if (sigaction(numbers[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN) {
            sigaction(numbers[i], &action, NULL); /* what nohup ignores stays ignored */
        }
    }
    watching = true;
}

/* ---- start ----------------------------------------------------------------------------------- */

static bool make_pipes(int answers[2], int words[2], attn_error *why) {
    if (pipe2(answers, O_CLOEXEC) != 0) {
        return explain(why, "no pipe: %s", strerror(errno));
    }
    if (pipe2(words, O_CLOEXEC) != 0) {
        close(answers[0]);
        close(answers[1]);
        return explain(why, "no pipe: %s", strerror(errno));
    }
    return true;
}

/* The child leads a process group of its own, so that its children can be killed with it. */
static int spawn_child(pid_t *child, char *const argv[], int answers, int words) {
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, words, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, words, STDERR_FILENO);
    posix_spawn_file_actions_adddup2(&actions, answers, WORKER_ANSWERS);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    posix_spawnattr_setpgroup(&attributes, 0);
    const int error = posix_spawn(child, "/proc/self/exe", &actions, &attributes, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    return error;
}

static bool start(struct conversation *c, char *const argv[], attn_error *why) {
    int answers[2] = {-1, -1}, words[2] = {-1, -1};
    if (!make_pipes(answers, words, why)) {
        return false;
    }
    /* A descriptor that is already WORKER_ANSWERS would keep its close-on-exec flag. */
    const int moved = fcntl(answers[1], F_DUPFD_CLOEXEC, WORKER_ANSWERS + 1);
    const int error = moved < 0 ? errno : spawn_child(&c->child, argv, moved, words[1]);
    close(answers[1]);
    close(words[1]);
    if (moved >= 0) {
        close(moved);
    }
    if (error != 0) {
        close(answers[0]);
        close(words[0]);
        return explain(why, "cannot start a child process: %s", strerror(error));
    }
    c->answers = answers[0];
    c->words = words[0];
    current_child = (sig_atomic_t)c->child;
    return true;
}

/* ---- listen ---------------------------------------------------------------------------------- */

static void take_line(struct conversation *c) {
    if (strcmp(c->line, "end") == 0) {
        c->ended = true;
    } else if (c->ended || !c->take(c->user, c->line)) {
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

/* Until the child has closed both pipes. False: the time was up first. */
static bool listen_until(struct conversation *c, double deadline) {
    while ((c->answers >= 0 || c->words >= 0) && !c->nonsense) {
        struct pollfd fds[2] = {{.fd = c->answers, .events = POLLIN},
                                {.fd = c->words, .events = POLLIN}};
        const double left = deadline - clock_seconds();
        if (left <= 0) {
            return false;
        }
        if (poll(fds, 2, (int)(1e3 * left) + 1) <= 0) {
            continue;
        }
        if (fds[0].revents != 0) {
            read_some(c, &c->answers);
        }
        if (fds[1].revents != 0) {
            read_some(c, &c->words);
        }
    }
    return true;
}

/* ---- the end --------------------------------------------------------------------------------- */

/* Waits for the child until `deadline`. False: it still runs. */
/* Leaves the child as a zombie, so that its process group keeps its number. */
static bool ended_until(const struct conversation *c, double deadline) {
    const struct timespec nap = {.tv_nsec = 2000000};
    for (;;) {
        siginfo_t info = {0};
        const int answer = waitid(P_PID, (id_t)c->child, &info, WEXITED | WNOHANG | WNOWAIT);
        if ((answer == 0 && info.si_pid == c->child) || (answer < 0 && errno != EINTR)) {
            return true;
        }
        if (clock_seconds() > deadline) {
            return false;
        }
        nanosleep(&nap, NULL);
    }
}

/* The last line that the child wrote, as an appendix to a reason. */
static const char *last_words(struct conversation *c) {
    while (c->said_used > 0 && c->said[c->said_used - 1] <= ' ') {
        c->said[--c->said_used] = '\0';
    }
    const char *line = strrchr(c->said, '\n');
    return line != NULL ? line + 1 : c->said;
}

static bool judge_end(struct conversation *c, bool in_time, double seconds, int status,
                      attn_error *why) {
    const char *words = last_words(c);
    const char *colon = *words ? ": " : "";
    if (c->nonsense) {
        return explain(why, "the child answered nonsense: '%.100s'", c->line);
    }
    if (!in_time) {
        return explain(why, "the child took longer than %g s and was killed%s%.200s", seconds,
                       colon, words);
    }
    if (WIFSIGNALED(status)) {
        return explain(why, "the child died of signal %d (%s)%s%.200s", WTERMSIG(status),
                       strsignal(WTERMSIG(status)), colon, words);
    }
    if (!WIFEXITED(status) || WEXITSTATUS(status) != EXIT_DONE) {
        return explain(why, "the child ended with exit code %d%s%.200s", WEXITSTATUS(status), colon,
                       words);
    }
    return c->ended || explain(why, "the child did not end its answer%s%.200s", colon, words);
}

static bool finish(struct conversation *c, double seconds, double deadline, attn_error *why) {
    int status = 0;
    const bool in_time = listen_until(c, deadline) && (c->nonsense || ended_until(c, deadline));
    kill(-c->child, SIGKILL); /* also what the child may have started */
    const bool gone = ended_until(c, clock_seconds() + GRACE);
    current_child = 0;
    if (gone) {
        waitpid(c->child, &status, 0);
    }
    if (c->answers >= 0) {
        close(c->answers);
    }
    if (c->words >= 0) {
        close(c->words);
    }
    if (!gone) {
        return explain(why, "the child (process %ld) took longer than %g s and cannot be killed",
                       (long)c->child, seconds);
    }
    return judge_end(c, in_time, seconds, status, why);
}

bool worker_ask(const struct worker_setup *setup, enum worker_job job, int64_t first, int64_t count,
                double seconds, worker_line *take, void *user, attn_error *why) {
    char batch[64], seed[32];
    char *argv[24];
    size_t argc = 0;
    const char *const words[][2] = {
        {"--job", JOB_NAMES[job]},     {"--batch", batch},          {"--seed", seed},
        {"--device", setup->device},   {"--driver", setup->driver}, {"--image", setup->image},
        {"--variant", setup->variant}, {"--async", setup->async},
    };
    snprintf(batch, sizeof batch, "%lld,%lld", (long long)first, (long long)count);
    snprintf(seed, sizeof seed, "%llu", (unsigned long long)setup->seed);
    argv[argc++] = (char *)(uintptr_t) "attest";
    argv[argc++] = (char *)(uintptr_t) "parity";
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (words[i][1] != NULL) {
            argv[argc++] = (char *)(uintptr_t)words[i][0];
            argv[argc++] = (char *)(uintptr_t)words[i][1];
        }
    }
    if (setup->ptx) {
        argv[argc++] = (char *)(uintptr_t) "--ptx";
    }
    argv[argc] = NULL;
    struct conversation c = {.answers = -1, .words = -1, .take = take, .user = user};
    watch_signals();
    const double deadline = clock_seconds() + seconds;
    return start(&c, argv, why) && finish(&c, seconds, deadline, why);
}
