/* SPDX-License-Identifier: Apache-2.0
 *
 * cage.c - starts a candidate's process with limits and without network. If the system permits it,
 * the process has a namespace in which it sees no other process.
 *
 * Processes of the same user cannot read the judge. Without a process namespace the candidate can
 * still send it signals; a judge that is killed gives no verdict.
 *
 * Invariant: after the clone only async-signal-safe functions are called, since the judge has
 * threads.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/message.h"
#include "judge/judge.h"

enum { SOCKET_AT = 3, ARENA_AT = 4, STAGE = 64, NOT_STARTED = 127, CPU_TIMES = 10000 };

#if defined __x86_64__
#define CAGE_ARCH AUDIT_ARCH_X86_64
#elif defined __aarch64__
#define CAGE_ARCH AUDIT_ARCH_AARCH64
#else
#define CAGE_ARCH 0 /* no filter is written for it */
#endif

/* ---- system calls ---------------------------------------------------------------------------- */

#define FIELD(name) offsetof(struct seccomp_data, name)
#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)(field))
#define ANSWER(value) BPF_STMT(BPF_RET | BPF_K, (uint32_t)(value))
/* Refuses the call of this number: one line of two instructions. */
#define REFUSE(number)                                                                             \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)(number), 0, 1), ANSWER(SECCOMP_RET_ERRNO | EPERM)

/* No sockets but those of Unix, which a network namespace or the file system contains; nothing that
 * reads or writes another process. */
static void filter_calls(void) {
    static struct sock_filter program[] = {
        LOAD(FIELD(arch)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, CAGE_ARCH, 1, 0),
        ANSWER(SECCOMP_RET_ERRNO | EPERM),
        LOAD(FIELD(nr)),
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 0x40000000U, 0, 1), /* x32 */
        ANSWER(SECCOMP_RET_ERRNO | EPERM),
        REFUSE(SYS_ptrace),
        REFUSE(SYS_process_vm_readv),
        REFUSE(SYS_process_vm_writev),
        REFUSE(SYS_perf_event_open),
        REFUSE(SYS_bpf),
        REFUSE(SYS_kcmp),
        REFUSE(425), /* io_uring_setup, which opens sockets, too */
        REFUSE(438), /* pidfd_getfd */
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 3),
        LOAD(FIELD(args[0])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_UNIX, 1, 0),
        ANSWER(SECCOMP_RET_ERRNO | EPERM),
        ANSWER(SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog filter = {sizeof program / sizeof *program, program};
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter);
}

/* ---- the child ------------------------------------------------------------------------------- */

/* What the child needs, made before it exists. */
struct start {
    const char *const *argv;
    int socket, arena, log;
    char users[64], groups[64];
    rlim_t memory, seconds, files;
};

static void write_file(const char *path, const char *text) {
    const int file = open(path, O_WRONLY);
    if (file >= 0) {
        const ssize_t written = write(file, text, strlen(text));
        (void)written; /* without the map it has the rights of an unmapped user */
        close(file);
    }
}

static void limit(__rlimit_resource_t what, rlim_t value) {
    const struct rlimit both = {value, value};
    setrlimit(what, &both);
}

static _Noreturn void become(const struct start *start, bool mapped) {
    const int input = open("/dev/null", O_RDONLY);
    sigset_t none;
    sigemptyset(&none);
    if (mapped) { /* its files stay its own */
        write_file("/proc/self/setgroups", "deny");
        write_file("/proc/self/uid_map", start->users);
        write_file("/proc/self/gid_map", start->groups);
    }
    /* Beyond the numbers that they shall have, so that none overwrites another. */
    const int socket = fcntl(start->socket, F_DUPFD, STAGE);
    const int arena = fcntl(start->arena, F_DUPFD, STAGE);
    const int log = fcntl(start->log, F_DUPFD, STAGE);
    setpgid(0, 0);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (dup2(input, STDIN_FILENO) < 0 || dup2(log, STDOUT_FILENO) < 0 ||
        dup2(log, STDERR_FILENO) < 0 || dup2(socket, SOCKET_AT) < 0 || dup2(arena, ARENA_AT) < 0) {
        _exit(NOT_STARTED);
    }
    syscall(SYS_close_range, ARENA_AT + 1U, ~0U, 0U);
    if (!JUDGE_SANITIZED) {
        limit(RLIMIT_DATA, start->memory);
    }
    limit(RLIMIT_CPU, start->seconds);
    limit(RLIMIT_CORE, 0);
    limit(RLIMIT_FSIZE, (rlim_t)1 << 30); /* its log is memory */
    limit(RLIMIT_NOFILE, start->files);
    if (CAGE_ARCH != 0 && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0) {
        filter_calls();
    }
    execv(start->argv[0], (char *const *)(uintptr_t)start->argv);
    _exit(NOT_STARTED);
}

/* ---- the judge's side ------------------------------------------------------------------------ */

bool cage_start(struct cage *cage, const char *const argv[], int socket, int arena, int log,
                const struct cage_limits *limits, attn_error *why) {
    static const unsigned long kinds[] = {
        CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWPID | CLONE_NEWIPC,
        CLONE_NEWNET | CLONE_NEWPID | CLONE_NEWIPC, /* as root where users have no namespaces */
        0,
    };
    struct start start = {.argv = argv,
                          .socket = socket,
                          .arena = arena,
                          .log = log,
                          .memory = (rlim_t)limits->memory << 20,
                          .seconds = (rlim_t)(CPU_TIMES * (limits->seconds + 1)),
                          .files = 1024};
    snprintf(start.users, sizeof start.users, "%u %u 1", (unsigned)getuid(), (unsigned)getuid());
    snprintf(start.groups, sizeof start.groups, "%u %u 1", (unsigned)getgid(), (unsigned)getgid());
    prctl(PR_SET_DUMPABLE, 0);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const unsigned long flags = kinds[i] | SIGCHLD;
        const pid_t process = (pid_t)syscall(SYS_clone, flags, 0UL, 0UL, 0UL, 0UL);
        if (process == 0) {
            become(&start, (flags & CLONE_NEWUSER) != 0);
        }
        if (process > 0) {
            /* of the filter the kernel is asked, since the child cannot answer */
            *cage = (struct cage){.process = process,
                                  .apart = kinds[i] != 0,
                                  .filter = CAGE_ARCH != 0 && prctl(PR_GET_SECCOMP) >= 0};
            return true;
        }
    }
    return explain(why, "%s cannot be started: %s", argv[0], strerror(errno));
}

void cage_end(void) {
    prctl(PR_SET_DUMPABLE, 1);
}

const char *cage_text(const struct cage *cage, char *buffer, size_t size) {
    snprintf(buffer, size, "limits of time and memory%s%s%s",
             cage->apart    ? ", no network"
             : cage->filter ? ", no sockets"
                            : ", WITH network (the system permits no namespace)",
             cage->apart ? ", sees no other process" : ", WITH the processes of its user",
             cage->filter ? ", filtered system calls" : "");
    return buffer;
}
