/* SPDX-License-Identifier: Apache-2.0
 *
 * arena.c - the shared memory through which the judge and a candidate exchange samples.
 *
 * A sample's blocks are copied with their bands, each to pages of its own, with pages of 0xFF bytes
 * between them. The file is sealed: a candidate cannot shrink it while the judge uses it.
 *
 * Invariant: arena_release finds every byte that a candidate changed between the blocks.
 */
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/message.h"
#include "judge/judge.h"

enum {
    PAGE = 4096,
    GAP = 2 * PAGE,
    TURNS = 61, /* places before the first is used again */
    SEAL = 1,
    SEAL_SHRINK = 2,
    SEAL_GROW = 4,   /* F_SEAL_* */
    ADD_SEALS = 1033 /* F_ADD_SEALS */
};
static const size_t ARENA_SIZE = (size_t)1 << 30; /* of addresses; pages come with use */

bool arena_open(struct arena *arena, attn_error *why) {
    *arena =
        (struct arena){.file = (int)syscall(SYS_memfd_create, "arena", 3U /* CLOEXEC, SEALS */),
                       .size = ARENA_SIZE};
    if (arena->file < 0 || ftruncate(arena->file, (off_t)arena->size) != 0 ||
        syscall(SYS_fcntl, arena->file, ADD_SEALS, SEAL | SEAL_SHRINK | SEAL_GROW) != 0) {
        return explain(why, "no shared memory for the candidate");
    }
    void *map = mmap(NULL, arena->size, PROT_READ | PROT_WRITE, MAP_SHARED, arena->file, 0);
    arena->map = map != MAP_FAILED ? map : NULL;
    return arena->map != NULL || explain(why, "no shared memory for the candidate");
}

void arena_close(struct arena *arena) {
    if (arena->map != NULL) {
        munmap(arena->map, arena->size);
    }
    if (arena->file > 0) {
        close(arena->file);
    }
    *arena = (struct arena){.file = -1};
}

/* Offset of the byte at `host`; 0: NULL, or in no block. */
static size_t offset_of(const struct sample *s, const struct placed *placed, const void *host) {
    const uintptr_t at = (uintptr_t)host;
    for (int i = 0; i < MIRROR_BLOCKS; i++) {
        const struct guarded *block = mirror_block(s, i);
        const uintptr_t body = block != NULL ? (uintptr_t)block->body : 0;
        if (body != 0 && at >= body && at <= body + block->body_size) {
            return placed->at[i] + (at - body);
        }
    }
    return 0;
}

bool arena_place(const struct arena *arena, const struct sample *s, unsigned turn,
                 struct placed *placed) {
    size_t at = GAP + (size_t)(turn % TURNS) * 3 * PAGE;
    *placed = (struct placed){.begin = at,
                              .tensors = s->gradients != NULL ? s->gradients->tensors : s->tensors};
    for (int i = 0; i < MIRROR_BLOCKS; i++) {
        const struct guarded *block = mirror_block(s, i);
        if (block != NULL) {
            placed->at[i] = at;
            placed->gap[i] = at + (block->body_size + PAGE - 1) / PAGE * PAGE;
            at = placed->gap[i] + GAP;
        }
    }
    placed->end = at;
    /* After its size the struct is pointers. */
    void **pointers = (void **)(void *)((char *)&placed->tensors + sizeof(size_t));
    for (size_t i = 0; i < (sizeof placed->tensors - sizeof(size_t)) / sizeof *pointers; i++) {
        pointers[i] = (void *)(uintptr_t)offset_of(s, placed, pointers[i]);
    }
    return placed->end + GAP <= arena->size;
}

void arena_fill(const struct arena *arena, const struct sample *s, const struct placed *placed) {
    memset(arena->map + placed->begin - PAGE, 0xFF, PAGE);
    for (int i = 0; i < MIRROR_BLOCKS; i++) {
        const struct guarded *block = mirror_block(s, i);
        if (block != NULL) {
            memcpy(arena->map + placed->at[i], block->body, block->body_size);
            memset(arena->map + placed->gap[i], 0xFF, GAP);
        }
    }
}

/* Outputs first: what is written after the answer is late. */
void arena_fetch(const struct arena *arena, struct sample *s, const struct placed *placed) {
    for (int n = 0; n < 2 * MIRROR_BLOCKS; n++) {
        const int i = n % MIRROR_BLOCKS;
        const struct guarded *block = mirror_block(s, i);
        if (block != NULL && mirror_is_output(s, i) == (n < MIRROR_BLOCKS)) {
            memcpy(block->body, arena->map + placed->at[i], block->body_size);
        }
    }
}

bool arena_differs(const struct arena *arena, const struct sample *s, const struct placed *placed) {
    for (int i = 0; i < MIRROR_BLOCKS; i++) {
        const struct guarded *block = mirror_is_output(s, i) ? mirror_block(s, i) : NULL;
        if (block != NULL &&
            memcmp(block->body, arena->map + placed->at[i], block->body_size) != 0) {
            return true;
        }
    }
    return false;
}

bool arena_release(const struct arena *arena, const struct placed *placed) {
    bool clean = is_poison(arena->map + placed->begin - PAGE, PAGE);
    for (int i = 0; i < MIRROR_BLOCKS; i++) {
        clean = clean && (placed->at[i] == 0 || is_poison(arena->map + placed->gap[i], GAP));
    }
    madvise(arena->map + placed->begin - PAGE, placed->end + GAP - placed->begin, MADV_REMOVE);
    return clean;
}
