/* SPDX-License-Identifier: Apache-2.0
 *
 * door.c - a candidate's process: the judge sends messages, receives answers, and measures the CPU
 * use between them.
 *
 * Messages keep their boundaries (SOCK_SEQPACKET). A Python candidate gets JSON, a library a
 * struct.
 *
 * Invariant: a call's time begins before its inputs are written where the candidate can read them,
 * and ends when its answer has arrived. No time comes from the candidate's process.
 */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json_read.h"
#include "base/message.h"
#include "cases/shape.h"
#include "judge/judge.h"

/* The text of door.py, which JUDGE_DOOR names (CMakeLists.txt). */
__asm__(".pushsection .rodata\n"
        ".globl judge_door_text\njudge_door_text:\n.incbin \"" JUDGE_DOOR "\"\n.byte 0\n"
        ".popsection");
extern const char judge_door_text[];

enum { LOAD_TIMES = 10, PROCESSES = 512 };
static const double BUSY_SHARE = 0.1; /* of a core, while it should wait */

/* ---- a question ------------------------------------------------------------------------------ */

/* The last line that it printed. */
static const char *last_words(const struct door *door, char *buffer, size_t size) {
    char text[2001] = "";
    struct stat about;
    if (fstat(door->log, &about) == 0) {
        const off_t from = about.st_size > 2000 ? about.st_size - 2000 : 0;
        const ssize_t got = pread(door->log, text, sizeof text - 1, from);
        text[got > 0 ? got : 0] = '\0';
    }
    snprintf(buffer, size, "%s", last_line(text));
    return buffer;
}

static enum judged lose(struct door *door, const char *how) {
    struct door_answer *answer = &door->answer;
    char words[200];
    door->lost = true;
    last_words(door, words, sizeof words);
    snprintf(answer->text, sizeof answer->text, "%s%s%s", how, words[0] != '\0' ? ": " : "", words);
    return JUDGED_CRASH;
}

enum judged door_ask(struct door *door, const void *message, size_t bytes) {
    static const enum judged meanings[] = {JUDGED_RIGHT, JUDGED_REFUSED, JUDGED_CRASH,
                                           JUDGED_FOREIGN};
    const double deadline = clock_seconds() + door->limits.seconds;
    struct pollfd ready = {.fd = door->socket, .events = POLLIN};
    struct door_answer *answer = &door->answer;
    /* An answer that came before the question is none. */
    if (bytes > 0 && (poll(&ready, 1, 0) != 0 ||
                      send(door->socket, message, bytes, MSG_NOSIGNAL) != (ssize_t)bytes)) {
        return lose(door, "its process ended");
    }
    int left = (int)(1000 * door->limits.seconds);
    while (left > 0 && poll(&ready, 1, left) <= 0) {
        left = (int)(1000 * (deadline - clock_seconds())); /* a signal came between */
    }
    if (left <= 0) {
        char how[48];
        snprintf(how, sizeof how, "no answer within %g s", door->limits.seconds);
        return lose(door, how);
    }
    if (recv(door->socket, answer, sizeof *answer, 0) != (ssize_t)sizeof *answer ||
        answer->status < DOOR_DONE || answer->status > DOOR_FOREIGN) {
        return lose(door, "its process ended");
    }
    answer->text[sizeof answer->text - 1] = '\0';
    return meanings[answer->status];
}

/* ---- opening --------------------------------------------------------------------------------- */

static bool start(struct door *door, int socket, const char *role, attn_error *why) {
    const struct subject *c = door->subject;
    char size[24];
    snprintf(size, sizeof size, "%zu", door->arena.size);
    const bool model = c->kind == SUBJECT_MODEL;
    const char *const reference = c->reference != NULL ? c->reference : c->text;
    const char *const python[] = {c->python,
                                  "-c",
                                  judge_door_text,
                                  model && strcmp(role, "oracle") == 0 ? reference : c->text,
                                  model ? role : ARRAYS_NAMES[c->arrays],
                                  size,
                                  c->any_library ? "any" : "own",
                                  model ? reference : JUDGE_DIRECTIONS[c->direction],
                                  NULL};
    const char *const library[] = {"/proc/self/exe",
                                   "judge",
                                   LIBRARY_WORD,
                                   c->text,
                                   size,
                                   c->any_library ? "any" : "own",
                                   JUDGE_DIRECTIONS[c->direction],
                                   c->kind == SUBJECT_IMAGE ? c->variant : NULL,
                                   c->device,
                                   c->driver,
                                   NULL};
    const char *const *argv =
        c->kind == SUBJECT_LIBRARY || c->kind == SUBJECT_IMAGE ? library : python;
    return cage_start(&door->cage, argv, socket, door->arena.file, door->log, &door->limits, why);
}

bool door_open(struct door *door, const struct subject *candidate, const struct cage_limits *limits,
               const char *role, attn_error *why) {
    int sockets[2] = {-1, -1};
    *door = (struct door){.subject = candidate, .limits = *limits, .socket = -1, .log = -1};
    if (!arena_open(&door->arena, why)) {
        return false;
    }
    door->log = (int)syscall(SYS_memfd_create, "log", 1U);
    if (door->log < 0 || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0) {
        return explain(why, "no socket for the candidate: %s", strerror(errno));
    }
    door->socket = sockets[0];
    const int room = DOOR_MESSAGE;
    setsockopt(door->socket, SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
    const bool started = start(door, sockets[1], role, why);
    close(sockets[1]);
    if (!started) {
        return false;
    }
    door->limits.seconds *= LOAD_TIMES;
    const enum judged loaded = door_ask(door, NULL, 0);
    door->limits.seconds = limits->seconds;
    return loaded == JUDGED_RIGHT ||
           explain(why, "%.60s: %.350s", candidate->text, door->answer.text);
}

void door_close(struct door *door) {
    if (door->subject == NULL) {
        return;
    }
    if (door->cage.process > 0) {
        kill(-door->cage.process, SIGKILL);
        kill(door->cage.process, SIGKILL);
        while (waitpid(door->cage.process, NULL, 0) < 0 && errno == EINTR) {
        }
    }
    if (door->socket >= 0) {
        close(door->socket);
    }
    if (door->log >= 0) {
        close(door->log);
    }
    arena_close(&door->arena);
    *door = (struct door){.subject = NULL};
}

/* ---- messages -------------------------------------------------------------------------------- */

void tensor_json(struct json *json, const char *key, const void *at, const char *dtype,
                 const int64_t *shape, const int64_t *strides, int dims) {
    if (at == NULL) {
        return;
    }
    json_open(json, key, '{');
    json_int(json, "at", (int64_t)(uintptr_t)at);
    json_text(json, "dtype", dtype);
    json_ints(json, "shape", shape, (size_t)dims);
    json_ints(json, "strides", strides, (size_t)dims);
    json_close(json);
}

static void rows_json(struct json *json, const char *key, const void *at, const char *dtype,
                      const attn_problem *p, int64_t heads, int64_t rows, int64_t dim,
                      const attn_strides *s) {
    tensor_json(json, key, at, dtype, (const int64_t[]){p->batch, heads, rows, dim},
                (const int64_t[]){s->batch, s->head, s->row, 1}, dim > 0 ? 4 : 3);
}

static void scores_json(struct json *json, const char *key, const void *at, const char *dtype,
                        const attn_problem *p, const attn_bias_strides *s) {
    tensor_json(json, key, at, dtype, (const int64_t[]){p->batch, p->heads_q, p->seq_q, p->seq_kv},
                (const int64_t[]){s->batch, s->head, s->row, s->col}, 4);
}

/* Only what differs from plain attention becomes a keyword. */
static void options_json(struct json *json, const attn_problem *p, bool scale,
                         const attn_tensors *t) {
    json_open(json, "options", '{');
    if (p->causal == ATTN_CAUSAL_TOP_LEFT) {
        json_bool(json, "causal", true);
    } else if (p->causal == ATTN_CAUSAL_BOTTOM_RIGHT) {
        json_text(json, "causal", CAUSAL_NAMES[p->causal]);
    }
    if (p->window_left >= 0 || p->window_right >= 0) {
        json_ints(json, "window", (const int64_t[]){p->window_left, p->window_right}, 2);
    }
    if (scale) {
        json_real(json, "scale", (double)p->scale);
    }
    if (p->softcap > 0) {
        json_real(json, "softcap", (double)p->softcap);
    }
    if (t->lse != NULL && t->d_o == NULL) {
        json_bool(json, "lse", true);
    }
    json_close(json);
}

/* The places of dO and of the gradients. */
static void gradients_json(struct json *json, const struct gradients *g, const attn_tensors *t) {
    static const char *const keys[GRADIENTS] = {"dq",     "dk",     "dv",
                                                "d_bias", "d_sink", "d_alibi_slopes"};
    attn_problem p = {.size = sizeof p};
    attn_tensors tensors = *t;
    attn_problem_resolve(&g->problem, &p, NULL); /* succeeded when they were made */
    rows_json(json, "d_o", t->d_o, DTYPE_NAMES[p.dtype], &p, p.heads_q, p.seq_q, p.head_dim_v,
              &p.d_o);
    for (int i = 0; i < GRADIENTS; i++) {
        struct output_view view;
        if (!view_of_gradient(g, (attn_gradient)i, &view)) {
            continue;
        }
        const int64_t shape[] = {view.shape.batch, view.shape.head, view.shape.row, view.cols};
        const int64_t strides[] = {view.strides.batch, view.strides.head, view.strides.row,
                                   view.strides.col};
        const bool of_heads = i >= ATTN_GRADIENT_SINK;
        tensor_json(json, keys[i], *gradient_pointer(&tensors, (attn_gradient)i),
                    DTYPE_NAMES[view.dtype], shape + of_heads, strides + of_heads,
                    of_heads ? 1 : 4);
    }
}

static char *python_message(const struct sample *s, const struct placed *placed, int direction,
                            size_t *bytes) {
    const attn_problem *p = &s->full;
    const attn_tensors *t = &placed->tensors;
    const char *dtype = DTYPE_NAMES[p->dtype];
    struct memo memo;
    memo_begin(&memo);
    struct json *json = &memo.json;
    options_json(json, p, !isnan(s->problem.scale), t);
    json_bool(json, "aside", placed->aside);
    json_open(json, "tensors", '{');
    rows_json(json, "q", t->q, dtype, p, p->heads_q, p->seq_q, p->head_dim, &p->q);
    rows_json(json, "k", t->k, dtype, p, p->heads_kv, p->seq_kv, p->head_dim, &p->k);
    rows_json(json, "v", t->v, dtype, p, p->heads_kv, p->seq_kv, p->head_dim_v, &p->v);
    if (direction != JUDGE_AUTOGRAD) {
        rows_json(json, "o", t->o, dtype, p, p->heads_q, p->seq_q, p->head_dim_v, &p->o);
        rows_json(json, "lse", t->lse, "fp32", p, p->heads_q, p->seq_q, 0, &p->lse);
    }
    if (s->gradients != NULL) {
        gradients_json(json, s->gradients, t);
    }
    if (p->bias) {
        scores_json(json, "bias", t->bias, DTYPE_NAMES[p->bias_dtype], p, &p->bias_strides);
    }
    if (p->mask) {
        scores_json(json, "mask", t->mask, "uint8", p, &p->mask_strides);
    }
    if (p->alibi) {
        tensor_json(json, "alibi_slopes", t->alibi_slopes, "fp32", &p->heads_q,
                    (const int64_t[]){1}, 1);
    }
    if (p->sink) {
        tensor_json(json, "sink", t->sink, "fp32", &p->heads_q, (const int64_t[]){1}, 1);
    }
    if (p->used_kv) {
        tensor_json(json, "used_kv", t->used_kv, "int32", &p->batch, (const int64_t[]){1}, 1);
    }
    return memo_text(&memo, bytes, NULL);
}

static void *library_message(const struct sample *s, const struct placed *placed, bool plan,
                             size_t *bytes) {
    struct library_call *call = must(calloc(1, sizeof *call));
    call->plan = plan;
    call->aside = placed->aside;
    call->problem = s->gradients != NULL ? s->gradients->problem : s->problem;
    call->tensors = placed->tensors;
    for (int i = 0; i < MIRROR_BLOCKS; i++) {
        call->blocks[i].at = placed->at[i];
        call->blocks[i].size = placed->at[i] != 0 ? mirror_block(s, i)->body_size : 0;
    }
    *bytes = sizeof *call;
    return call;
}

/* ---- a call ---------------------------------------------------------------------------------- */

enum judged door_call(struct door *door, struct sample *sample, struct placed *placed) {
    const bool python = door->subject->kind == SUBJECT_PYTHON;
    enum judged status = JUDGED_RIGHT;
    size_t bytes = 0;
    if (!python) { /* a library makes its plan beforehand: it knows the sizes then, and no input */
        void *plan = library_message(sample, placed, true, &bytes);
        status = door_ask(door, plan, bytes);
        free(plan);
    }
    if (status != JUDGED_RIGHT) {
        return status;
    }
    void *message = python ? python_message(sample, placed, door->subject->direction, &bytes)
                           : library_message(sample, placed, false, &bytes);
    sample_poison(sample);
    const double begin = clock_seconds();
    arena_fill(&door->arena, sample, placed);
    status = door_ask(door, message, bytes);
    door->seconds = clock_seconds() - begin;
    door->idle_since = clock_seconds();
    door->idle_cpu = door_cpu(door);
    arena_fetch(&door->arena, sample, placed);
    free(message);
    return status;
}

/* ---- between calls --------------------------------------------------------------------------- */

/* Parent and CPU seconds of a process; false: there is none. */
static bool process_read(long number, long *parent, double *cpu) {
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%ld/stat", number);
    FILE *file = fopen(path, "r");
    const size_t size = file != NULL ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file != NULL) {
        fclose(file);
    }
    text[size] = '\0';
    const char *rest = strrchr(text, ')');
    unsigned long user = 0, system = 0;
    long children_user = 0, children_system = 0;
    if (rest == NULL ||
        sscanf(rest + 1, " %*c %ld %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu %ld %ld", parent,
               &user, &system, &children_user, &children_system) != 5) {
        return false;
    }
    *cpu = ((double)(user + system) + (double)(children_user + children_system)) /
           (double)sysconf(_SC_CLK_TCK);
    return true;
}

double door_cpu(const struct door *door) {
    struct {
        long number, parent;
        double cpu;
        bool counted;
    } found[PROCESSES];
    size_t count = 0;
    double sum = 0;
    DIR *folder = opendir("/proc");
    for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
        const long number = isdigit((unsigned char)entry->d_name[0]) ? atol(entry->d_name) : 0;
        if (number > 0 && count < PROCESSES &&
            process_read(number, &found[count].parent, &found[count].cpu)) {
            found[count].number = number;
            found[count++].counted = number == door->cage.process;
        }
    }
    if (folder != NULL) {
        closedir(folder);
    }
    for (bool more = true; more;) { /* children of those that are counted */
        more = false;
        for (size_t i = 0; i < count; i++) {
            for (size_t k = 0; k < count && !found[i].counted; k++) {
                found[i].counted = found[k].counted && found[k].number == found[i].parent;
                more = more || found[i].counted;
            }
        }
    }
    for (size_t i = 0; i < count; i++) {
        sum += found[i].counted ? found[i].cpu : 0;
    }
    return sum;
}

bool door_is_busy(const struct door *door, double seconds) {
    const double before = door_cpu(door);
    const struct timespec time = {(time_t)seconds, (long)(1e9 * (seconds - floor(seconds)))};
    nanosleep(&time, NULL);
    return door_cpu(door) - before > BUSY_SHARE * seconds;
}

/* Whether the library's function is named in the file. One in which it is not is not read again. */
static bool computes_attention(struct door *door, const char *path) {
    static const char name[] = "attn_forward";
    struct stat about;
    const int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    bool found = false;
    bool look =
        file >= 0 && fstat(file, &about) == 0 && S_ISREG(about.st_mode) && about.st_size > 0;
    for (size_t i = 0; look && i < door->checked_count; i++) {
        look = door->checked[i] != about.st_ino;
    }
    if (look) {
        void *map = mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_PRIVATE, file, 0);
        if (map != MAP_FAILED) {
            found = memmem(map, (size_t)about.st_size, name, sizeof name - 1) != NULL;
            munmap(map, (size_t)about.st_size);
        }
        if (!found && door->checked_count < DOOR_FILES) {
            door->checked[door->checked_count++] = about.st_ino;
        }
    }
    if (file >= 0) {
        close(file);
    }
    return found;
}

/* Code without a file, or of one that is gone, cannot be looked at; small pieces are libffi's. */
enum { UNNAMED = 64 << 10 };

bool door_is_foreign(struct door *door, char *path, size_t size) {
    char name[64], line[4200], own[PATH_MAX] = "", self[PATH_MAX] = "", last[4200] = "";
    bool found = false;
    const char *resolved = realpath(door->subject->text, own); /* of a library */
    own[0] = resolved != NULL ? own[0] : '\0';
    if (realpath("/proc/self/exe", self) == NULL) {
        self[0] = '\0';
    }
    snprintf(name, sizeof name, "/proc/%ld/maps", (long)door->cage.process);
    FILE *file = fopen(name, "r");
    while (file != NULL && !found && fgets(line, sizeof line, file) != NULL) {
        const char *at = strchr(line, '/');
        line[strcspn(line, "\n")] = '\0';
        unsigned long begin = 0, end = 0;
        sscanf(line, "%lx-%lx", &begin, &end);
        if (at == NULL || strstr(line, " r-xp ") == NULL || strcmp(at, own) == 0 ||
            strcmp(at, self) == 0 || strcmp(at, last) == 0) {
            continue;
        }
        snprintf(last, sizeof last, "%s", at);
        found = computes_attention(door, at) || (end - begin > UNNAMED && access(at, F_OK) != 0);
    }
    if (file != NULL) {
        fclose(file);
    }
    snprintf(path, size, "%s", found ? last : "");
    return found;
}
