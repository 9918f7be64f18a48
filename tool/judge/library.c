/* SPDX-License-Identifier: Apache-2.0
 *
 * library.c - the process of a candidate that is a shared library with libattn's C interface, or an
 * image that replaces a variant's code.
 *
 *     attest judge @library FILE ARENA_SIZE own|any forward|backward [VARIANT DEVICE [DRIVER]]
 *
 * The library gets addresses in the arena. An image gets copies in device memory, with the bytes
 * around them. All are copied back, so stray writes are found in the arena.
 *
 * Invariant: a judged library cannot call libattn: its code is made inaccessible before the first
 * call.
 */
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/message.h"
#include "device/runner.h"
#include "device/vgpu_findings.h"
#include "judge/judge.h"

enum { SOCKET = 3, ARENA = 4, PAGES = 4096 };

/* What of attn.h a library must have. */
struct functions {
    attn_status (*open)(const attn_options *, attn_context **, attn_error *);
    attn_status (*plan_create)(attn_context *, const attn_problem *, const attn_plan_options *,
                               attn_plan **, attn_error *);
    void (*plan_destroy)(attn_plan *);
    attn_status (*compute)(const attn_plan *, const attn_tensors *, void *, size_t, void *,
                           attn_error *);
    size_t (*workspace_size)(const attn_plan *), (*workspace_alignment)(const attn_plan *);
};

struct serving {
    unsigned char *arena;
    size_t size;
    struct functions library;
    bool backward;
    attn_context *context;
    attn_plan *plan;
    void *workspace;
    size_t workspace_size;
    struct runner runner; /* of an image */
    bool image;
};

/* ---- a library ------------------------------------------------------------------------------- */

/* Takes the code of the library in which `info` is from this process. */
static int take_code(struct dl_phdr_info *info, size_t size, void *data) {
    (void)size;
    const Dl_info *ours = data;
    if (info->dlpi_addr != (uintptr_t)ours->dli_fbase) {
        return 0;
    }
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type == PT_LOAD && (part->p_flags & PF_X) != 0) {
            const uintptr_t from = (info->dlpi_addr + part->p_vaddr) & ~(uintptr_t)(PAGES - 1);
            mprotect((void *)from, info->dlpi_addr + part->p_vaddr + part->p_memsz - from,
                     PROT_NONE);
        }
    }
    return 1;
}

static bool open_library(struct serving *s, const char *path, bool any, attn_error *why) {
    struct functions *f = &s->library;
    /* Its own attn_ functions before those of this program. */
    const int flags = RTLD_NOW | RTLD_LOCAL | (JUDGE_SANITIZED ? 0 : RTLD_DEEPBIND);
    char with_slash[4200];
    snprintf(with_slash, sizeof with_slash, "%s%s", strchr(path, '/') != NULL ? "" : "./", path);
    void *file = dlopen(with_slash, flags);
    if (file == NULL) {
        explain(why, "%.300s", dlerror());
        return false;
    }
    const struct {
        const char *name;
        void *function;
    } wanted[] = {{"attn_open", &f->open},
                  {"attn_plan_create", &f->plan_create},
                  {"attn_plan_destroy", &f->plan_destroy},
                  {s->backward ? "attn_backward" : "attn_forward", &f->compute},
                  {"attn_workspace_size", &f->workspace_size},
                  {"attn_workspace_alignment", &f->workspace_alignment}};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        void *found = dlsym(file, wanted[i].name);
        memcpy(wanted[i].function, &found, sizeof found); /* ISO C has no cast between the two */
        if (found == NULL) {
            explain(why, "it has no function %s", wanted[i].name);
            return false;
        }
    }
    attn_status (*const ours)(const attn_plan *, const attn_tensors *, void *, size_t, void *,
                              attn_error *) = s->backward ? attn_backward : attn_forward;
    Dl_info about;
    if (!any && (f->compute == ours || dladdr((const void *)(uintptr_t)ours, &about) == 0 ||
                 dl_iterate_phdr(take_code, &about) == 0)) {
        return explain(why, "it is the library of this program: expected one of its own, or "
                            "--any-library");
    }
    return f->open(NULL, &s->context, why) == ATTN_OK;
}

/* For free(); NULL: it needs none, or there is no memory. */
static void *make_workspace(const struct serving *s, attn_error *why) {
    const size_t size = s->workspace_size;
    const size_t alignment = size > 0 ? s->library.workspace_alignment(s->plan) : 0;
    void *workspace = NULL;
    if (size == 0) {
        return NULL;
    }
    if (posix_memalign(&workspace, alignment > 64 ? alignment : 64, size) != 0) {
        explain(why, "no memory for a workspace of %zu bytes", size);
        return NULL;
    }
    memset(workspace, 0xFF, size);
    return workspace;
}

static attn_status plan_library(struct serving *s, const attn_problem *problem, attn_error *why) {
    const struct functions *f = &s->library;
    free(s->workspace);
    s->workspace = NULL;
    if (s->plan != NULL) {
        f->plan_destroy(s->plan);
        s->plan = NULL;
    }
    const attn_plan_options options = {.size = sizeof options,
                                       .direction = s->backward ? ATTN_BACKWARD : ATTN_FORWARD};
    const attn_status status = f->plan_create(s->context, problem, &options, &s->plan, why);
    s->workspace_size = status == ATTN_OK ? f->workspace_size(s->plan) : 0;
    s->workspace = make_workspace(s, why);
    return s->workspace == NULL && s->workspace_size > 0 ? ATTN_OUT_OF_MEMORY : status;
}

/* The tensors of a call, which are offsets into the arena, in copies of its blocks. */
static attn_tensors tensors_in(const struct library_call *call,
                               unsigned char *const blocks[MIRROR_BLOCKS]) {
    attn_tensors tensors = call->tensors;
    void **pointers = (void **)(void *)((char *)&tensors + sizeof(size_t));
    for (size_t k = 0; k < (sizeof tensors - sizeof(size_t)) / sizeof *pointers; k++) {
        const size_t offset = (size_t)(uintptr_t)pointers[k];
        pointers[k] = NULL;
        for (int i = 0; i < MIRROR_BLOCKS; i++) {
            const size_t begin = call->blocks[i].at;
            if (begin > 0 && offset >= begin && offset <= begin + call->blocks[i].size) {
                pointers[k] = blocks[i] + (offset - begin);
            }
        }
    }
    return tensors;
}

/* A concurrent call of the same plan. Its Q is 0, and its outputs are ignored. */
struct neighbour {
    struct serving *serving;
    const struct library_call *call;
    atomic_bool begun, over;
};

/* Whether the neighbour has its own: Q, O, the LSE and the gradients. */
static bool is_own(int block) {
    return block == 0 || block == BLOCK_O || block == BLOCK_LSE || block > SAMPLE_BLOCKS;
}

static void *call_often(void *neighbour) {
    struct neighbour *n = neighbour;
    struct serving *s = n->serving;
    unsigned char *blocks[MIRROR_BLOCKS];
    void *workspace = make_workspace(s, NULL);
    bool good = workspace != NULL || s->workspace_size == 0;
    for (int i = 0; i < MIRROR_BLOCKS; i++) {
        const size_t size = n->call->blocks[i].size;
        blocks[i] = is_own(i) ? aligned_alloc(PAGES, (size / PAGES + 1) * PAGES)
                              : s->arena + n->call->blocks[i].at;
        good = good && blocks[i] != NULL;
        if (is_own(i) && blocks[i] != NULL) {
            memset(blocks[i], 0, size);
        }
    }
    const attn_tensors tensors = tensors_in(n->call, blocks);
    n->begun = true;
    while (good && !n->over) {
        good = s->library.compute(s->plan, &tensors, workspace, s->workspace_size, NULL, NULL) ==
               ATTN_OK;
    }
    for (int i = 0; i < MIRROR_BLOCKS; i++) {
        free(is_own(i) ? blocks[i] : NULL);
    }
    free(workspace);
    return NULL;
}

/* Aside: while another thread calls the same plan, which attn.h permits. */
static attn_status call_library(struct serving *s, const struct library_call *call,
                                attn_error *why) {
    struct neighbour neighbour = {.serving = s, .call = call};
    unsigned char *blocks[MIRROR_BLOCKS];
    pthread_t thread;
    for (int i = 0; i < MIRROR_BLOCKS; i++) {
        blocks[i] = s->arena + call->blocks[i].at;
    }
    const attn_tensors tensors = tensors_in(call, blocks);
    const bool beside = call->aside && pthread_create(&thread, NULL, call_often, &neighbour) == 0;
    while (beside && !neighbour.begun) {
        sched_yield();
    }
    const attn_status status =
        s->library.compute(s->plan, &tensors, s->workspace, s->workspace_size, NULL, why);
    neighbour.over = true;
    if (beside) {
        pthread_join(thread, NULL);
    }
    return status;
}

/* ---- an image -------------------------------------------------------------------------------- */

/* In fresh memory, which is given back after it. */
static attn_status call_image(struct serving *s, const struct library_call *call, attn_error *why) {
    struct device *device = s->runner.memory;
    unsigned char *blocks[MIRROR_BLOCKS] = {NULL};
    bool good = true;
    for (int i = 0; i < MIRROR_BLOCKS && good; i++) {
        const size_t size = call->blocks[i].size;
        if (size > 0) {
            blocks[i] = device_alloc(device, size, why);
            good = blocks[i] != NULL &&
                   device_write(device, blocks[i], s->arena + call->blocks[i].at, size, why);
        }
    }
    vgpu_driver_forget();
    void *stream = good && call->aside ? stream_make(device, why) : s->runner.stream;
    good = good && (stream != NULL || !call->aside);
    if (good) {
        const attn_tensors tensors = tensors_in(call, blocks);
        good = runner_compute_on(&s->runner, &tensors, stream, why) && device_wait(device, why);
    }
    if (stream != s->runner.stream) {
        stream_free(device, stream);
    }
    for (int i = 0; i < MIRROR_BLOCKS; i++) {
        good = good && (blocks[i] == NULL || device_read(device, s->arena + call->blocks[i].at,
                                                         blocks[i], call->blocks[i].size, why));
        device_free(device, blocks[i]);
    }
    if (good && vgpu_drives(s->runner.context)) {
        good = vgpu_driver_clean(why->text, sizeof why->text);
    }
    return good ? ATTN_OK : ATTN_DEVICE;
}

static attn_status plan_image(struct serving *s, const attn_problem *problem, attn_error *why) {
    if (runner_plan(&s->runner, problem, why)) {
        return runner_prepare(&s->runner, why) ? ATTN_OK : ATTN_DEVICE;
    }
    return s->runner.unsupported ? ATTN_UNSUPPORTED : ATTN_INVALID;
}

/* ---- serving --------------------------------------------------------------------------------- */

static void answer(attn_status status, const attn_error *why) {
    struct door_answer reply = {.status = status == ATTN_OK            ? DOOR_DONE
                                          : status == ATTN_UNSUPPORTED ? DOOR_REFUSED
                                                                       : DOOR_FAILED};
    snprintf(reply.text, sizeof reply.text, "%s", status == ATTN_OK ? "" : why->text);
    if (send(SOCKET, &reply, sizeof reply, MSG_NOSIGNAL) != (ssize_t)sizeof reply) {
        _exit(EXIT_BAD_INPUT);
    }
}

int library_serve(int argc, char **argv) {
    struct serving s = {.image = argc > 5};
    struct library_call call;
    attn_error why = {""};
    if (argc < 5) {
        return complain("judge: " LIBRARY_WORD " is for the judge itself");
    }
    s.size = strtoull(argv[2], NULL, 10);
    void *map = mmap(NULL, s.size, PROT_READ | PROT_WRITE, MAP_SHARED, ARENA, 0);
    if (map == MAP_FAILED) {
        return complain("judge: " LIBRARY_WORD ": no arena: %s", strerror(errno));
    }
    s.arena = map;
    s.backward = strcmp(argv[4], JUDGE_DIRECTIONS[JUDGE_FORWARD]) != 0;
    if (s.image) {
        s.runner = (struct runner){.device = argv[6],
                                   .driver = argc > 7 ? argv[7] : NULL,
                                   .variant = argv[5],
                                   .image = argv[1]};
    }
    const bool open = s.image ? runner_open(&s.runner, &why)
                              : open_library(&s, argv[1], strcmp(argv[3], "any") == 0, &why);
    answer(open ? ATTN_OK : ATTN_INVALID, &why);
    while (open && recv(SOCKET, &call, sizeof call, 0) == (ssize_t)sizeof call) {
        why.text[0] = '\0';
        const attn_status status =
            call.plan ? (s.image ? plan_image : plan_library)(&s, &call.problem, &why)
                      : (s.image ? call_image : call_library)(&s, &call, &why);
        answer(status, &why);
    }
    _exit(EXIT_DONE); /* what a candidate leaves to the end of a program is not run */
}
