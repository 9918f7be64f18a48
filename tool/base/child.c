/* SPDX-License-Identifier: Apache-2.0
 *
 * child.c - see child.h. Signals are waited for, not handled: while a child runs, SIGCHLD and those
 * that end programs are blocked, and sigtimedwait takes whichever comes first.
 */
#include "base/child.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/message.h"

static const int ENDING_SIGNALS[] = {SIGINT, SIGTERM, SIGHUP};
enum { ENDING_COUNT = sizeof ENDING_SIGNALS / sizeof *ENDING_SIGNALS };

/* One that is ignored for us (nohup) stays ignored, and so is not waited for. */
static void awaited_signals(sigset_t *set) {
    sigemptyset(set);
    sigaddset(set, SIGCHLD);
    for (int i = 0; i < ENDING_COUNT; i++) {
        struct sigaction action;
        if (sigaction(ENDING_SIGNALS[i], NULL, &action) == 0 && action.sa_handler != SIG_IGN) {
            sigaddset(set, ENDING_SIGNALS[i]);
        }
    }
}

int child_spawn(pid_t *process, const char *const argv[], const char *program, int output,
                int answers, const sigset_t *mask) {
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    sigset_t defaults;
    sigemptyset(&defaults);
    sigaddset(&defaults, SIGPIPE);
    const int copies[][2] = {
        {output, STDOUT_FILENO}, {output, STDERR_FILENO}, {answers, CHILD_ANSWERS}};
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setsigmask(&attributes, mask);
    posix_spawnattr_setsigdefault(&attributes, &defaults);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK |
                                              POSIX_SPAWN_SETSIGDEF);
    int error = posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    for (int i = 0; i < 3 && error == 0; i++) {
        if (copies[i][0] >= 0) {
            error = posix_spawn_file_actions_adddup2(&files, copies[i][0], copies[i][1]);
        }
    }
    if (error == 0) {
        error = posix_spawn(process, program, &files, &attributes, (char *const *)(uintptr_t)argv,
                            environ); /* reads them only */
    }
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&files);
    return error;
}

bool child_ended(pid_t process, double deadline) {
    const struct timespec nap = {.tv_nsec = 2000000};
    for (;; nanosleep(&nap, NULL)) {
        siginfo_t info = {0};
        const int answer = waitid(P_PID, (id_t)process, &info, WEXITED | WNOHANG | WNOWAIT);
        if ((answer == 0 && info.si_pid == process) || (answer < 0 && errno != EINTR)) {
            return true;
        }
        if (clock_seconds() > deadline) {
            return false;
        }
    }
}

void child_reap(pid_t process, struct child *child) {
    int status = 0;
    while (waitpid(process, &status, 0) < 0 && errno == EINTR) {
    }
    child->code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    child->signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

/* Returns the signal that is to end this program, or 0. */
static int wait_for(pid_t process, const sigset_t *awaited, double deadline, bool *timed_out) {
    while (!child_ended(process, 0)) {
        const double left = deadline - clock_seconds();
        if (left <= 0) {
            *timed_out = true;
            return 0;
        }
        const struct timespec time = {(time_t)left, (long)(1e9 * (left - (double)(time_t)left))};
        const int got = sigtimedwait(awaited, NULL, &time);
        if (got > 0 && got != SIGCHLD) {
            return got;
        }
    }
    return 0;
}

static int start_function(int (*function)(void *argument), void *argument, int output,
                          const sigset_t *mask, pid_t *process) {
    fflush(NULL); /* or the child prints it again */
    const pid_t parent = getpid();
    *process = fork();
    if (*process != 0) {
        return *process < 0 ? errno : 0;
    }
    const int input = open("/dev/null", O_RDONLY);
    setpgid(0, 0);
    sigprocmask(SIG_SETMASK, mask, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent || dup2(input, STDIN_FILENO) < 0 || dup2(output, STDOUT_FILENO) < 0 ||
        dup2(output, STDERR_FILENO) < 0) {
        _exit(127);
    }
    const int code = function(argument);
    fflush(NULL);
    _exit(code);
}

/* The program argv[0], or the function if argv is NULL. */
static bool run(const char *const argv[], int (*function)(void *argument), void *argument,
                const char *log, double limit, struct child *child, attn_error *why) {
    *child = (struct child){.code = -1};
    const int output = open(log, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
    if (output < 0) {
        return explain(why, "%s: %s", log, strerror(errno));
    }
    sigset_t awaited, before;
    awaited_signals(&awaited);
    sigprocmask(SIG_BLOCK, &awaited, &before);
    const double started = clock_seconds();
    pid_t process = 0;
    /* Where posix_spawn cannot tell (an emulator), an absent program would be exit code 127. */
    int error = 0;
    if (argv == NULL) {
        error = start_function(function, argument, output, &before, &process);
    } else if (access(argv[0], X_OK) != 0) {
        error = errno;
    } else {
        error = child_spawn(&process, argv, argv[0], output, -1, &before);
    }
    close(output);
    if (error != 0) {
        sigprocmask(SIG_SETMASK, &before, NULL);
        return explain(why, "%s cannot be started: %s", argv != NULL ? argv[0] : "a child",
                       strerror(error));
    }
    const int ending = wait_for(process, &awaited, started + limit, &child->timed_out);
    /* Before it is reaped, so that its number is still its own. */
    kill(-process, SIGKILL);
    kill(process, SIGKILL); /* a function that has not come to its setpgid yet */
    child_reap(process, child);
    child->code = child->timed_out ? -1 : child->code;
    child->seconds = clock_seconds() - started;
    sigprocmask(SIG_SETMASK, &before, NULL);
    if (ending != 0) {
        raise(ending);
    }
    return true;
}

bool child_run(const char *const argv[], const char *log, double limit, struct child *child,
               attn_error *why) {
    return run(argv, NULL, NULL, log, limit, child, why);
}

bool child_call(int (*function)(void *argument), void *argument, const char *log, double limit,
                struct child *child, attn_error *why) {
    return run(NULL, function, argument, log, limit, child, why);
}

const char *child_text(const struct child *child, char *buffer, size_t size) {
    if (child->timed_out) {
        snprintf(buffer, size, "ended after %.0f s, its limit", child->seconds);
    } else if (child->code >= 0) {
        snprintf(buffer, size, "exit code %d", child->code);
    } else {
        snprintf(buffer, size, "ended by signal %d", child->signal);
    }
    return buffer;
}

/* ---- where programs are ---------------------------------------------------------------------- */

enum { VERSION_SECONDS = 30 };

/* folder/name, if that is a program. */
static bool program_in(const char *folder, size_t length, const char *name, char path[PATH_MAX]) {
    const int written = snprintf(path, PATH_MAX, "%.*s/%s", (int)length, folder, name);
    struct stat info;
    return written > 0 && written < PATH_MAX && stat(path, &info) == 0 && S_ISREG(info.st_mode) &&
           access(path, X_OK) == 0;
}

bool tool_find(const char *name, char path[PATH_MAX], attn_error *why) {
    static const char toolkit[] = "/usr/local/cuda/bin";
    for (const char *folder = getenv("PATH"); folder != NULL && *folder != '\0';) {
        const size_t length = strcspn(folder, ":");
        if (length > 0 && program_in(folder, length, name, path)) {
            return true;
        }
        folder += length + (folder[length] == ':');
    }
    return program_in(toolkit, strlen(toolkit), name, path) ||
           explain(why, "%s is neither in $PATH nor in %s", name, toolkit);
}

bool tool_version(const char *path, const char *log, char *version, size_t size, attn_error *why) {
    const char *const argv[] = {path, "--version", NULL};
    struct child child;
    size_t bytes;
    version[0] = '\0';
    if (!child_run(argv, log, VERSION_SECONDS, &child, why)) {
        return false;
    }
    char *said = file_read(log, &bytes, NULL), *rest = said;
    for (const char *line; (line = strsep(&rest, "\r\n")) != NULL;) {
        if (strstr(line, "ersion") != NULL || strstr(line, "release") != NULL) {
            snprintf(version, size, "%.127s", line);
        }
    }
    free(said);
    return true;
}

bool tool_faults(char path[PATH_MAX], attn_error *why) {
    static const char *const PLACES[] = {"faults", "../libexec/attest/faults"};
    char self[PATH_MAX];
    if (!program_path(self, why)) {
        return false;
    }
    *strrchr(self, '/') = '\0';
    for (size_t i = 0; i < sizeof PLACES / sizeof *PLACES; i++) {
        struct stat info;
        if (snprintf(path, PATH_MAX, "%.3000s/%s", self, PLACES[i]) < PATH_MAX &&
            stat(path, &info) == 0 && S_ISDIR(info.st_mode)) {
            return true;
        }
    }
    snprintf(path, PATH_MAX, "%.3000s/%s", self, PLACES[0]);
    return explain(why, "%s: no such folder, expected that of kernels with planted faults", path);
}
