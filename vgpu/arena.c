/* SPDX-License-Identifier: Apache-2.0
 *
 * arena.c - memory that is freed all at once, and interned strings.
 *
 * Invariant: what was handed out never moves, and was zero when it was handed out.
 */
#include "arena.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum {
    CHUNK_FIRST = 1 << 14,
    CHUNK_LAST = 1 << 20, /* chunks double up to this; what is larger gets a chunk of its own */
    ALIGN_MAX = 64,
    NAMES_FIRST = 256
};

struct chunk {
    struct chunk *next;
};

struct name {
    uint64_t hash;
    size_t length;
    const char *text; /* NULL: a free place */
};

struct arena {
    struct chunk *chunks;
    char *cursor, *end; /* what is free in the newest shared chunk */
    size_t next_chunk;
    struct name *names; /* open addressing; a power of two, at most half full */
    size_t name_places, name_count;
};

struct arena *arena_make(void) {
    struct arena *arena = calloc(1, sizeof *arena);
    if (!arena) {
        return NULL;
    }
    arena->next_chunk = CHUNK_FIRST;
    arena->name_places = NAMES_FIRST;
    arena->names = calloc(NAMES_FIRST, sizeof *arena->names);
    if (!arena->names) {
        free(arena);
        return NULL;
    }
    return arena;
}

void arena_free(struct arena *arena) {
    if (!arena) {
        return;
    }
    for (struct chunk *chunk = arena->chunks; chunk;) {
        struct chunk *next = chunk->next;
        free(chunk);
        chunk = next;
    }
    free(arena->names);
    free(arena);
}

/* The first byte of a new chunk with room for `size` bytes at any alignment, or NULL. */
static char *add_chunk(struct arena *arena, size_t size) {
    if (size > PTRDIFF_MAX - sizeof(struct chunk)) {
        return NULL;
    }
    struct chunk *chunk = calloc(1, sizeof(struct chunk) + size);
    if (!chunk) {
        return NULL;
    }
    chunk->next = arena->chunks;
    arena->chunks = chunk;
    return (char *)(chunk + 1);
}

static char *aligned(char *at, size_t align) {
    return at + (-(uintptr_t)at & (align - 1));
}

static void *take(struct arena *arena, size_t size, size_t align) {
    char *at = arena->cursor ? aligned(arena->cursor, align) : NULL;
    if (at && at <= arena->end && size <= (size_t)(arena->end - at)) {
        arena->cursor = at + size;
        return at;
    }
    if (size >= arena->next_chunk / 2) {
        if (size > SIZE_MAX - ALIGN_MAX) {
            return NULL;
        }
        char *own = add_chunk(arena, size + align);
        return own ? aligned(own, align) : NULL;
    }
    char *fresh = add_chunk(arena, arena->next_chunk);
    if (!fresh) {
        return NULL;
    }
    arena->end = fresh + arena->next_chunk;
    at = aligned(fresh, align);
    arena->cursor = at + size;
    if (arena->next_chunk < CHUNK_LAST) {
        arena->next_chunk *= 2;
    }
    return at;
}

void *arena_alloc(struct arena *arena, size_t size) {
    /* Nothing needs an alignment above its size. */
    size_t align = 1;
    while (align < ALIGN_MAX && align * 2 <= size) {
        align *= 2;
    }
    return take(arena, size ? size : 1, align);
}

static uint64_t hash_of(const char *text, size_t length) {
    uint64_t hash = 0xCBF29CE484222325u;
    for (size_t i = 0; i < length; i++) {
        hash = (hash ^ (unsigned char)text[i]) * 0x100000001B3u;
    }
    return hash ^ (hash >> 29);
}

/* The place of the text, or the free one where it would be. */
static struct name *place_of(const struct arena *arena, uint64_t hash, const char *text,
                             size_t length) {
    size_t at = (size_t)hash & (arena->name_places - 1);
    for (;; at = (at + 1) & (arena->name_places - 1)) {
        struct name *name = &arena->names[at];
        if (!name->text || (name->hash == hash && name->length == length &&
                            memcmp(name->text, text, length) == 0)) {
            return name;
        }
    }
}

static int double_names(struct arena *arena) {
    struct arena wider = {.name_places = arena->name_places * 2};
    wider.names = calloc(wider.name_places, sizeof *wider.names);
    if (!wider.names) {
        return 0;
    }
    for (size_t i = 0; i < arena->name_places; i++) {
        const struct name *name = &arena->names[i];
        if (name->text) {
            *place_of(&wider, name->hash, name->text, name->length) = *name;
        }
    }
    free(arena->names);
    arena->names = wider.names;
    arena->name_places = wider.name_places;
    return 1;
}

const char *arena_intern(struct arena *arena, const char *text, size_t length) {
    const uint64_t hash = hash_of(text, length);
    struct name *name = place_of(arena, hash, text, length);
    if (name->text) {
        return name->text;
    }
    if (arena->name_count * 2 >= arena->name_places) {
        if (!double_names(arena)) {
            return NULL;
        }
        name = place_of(arena, hash, text, length);
    }
    char *copy = length < SIZE_MAX ? take(arena, length + 1, 1) : NULL;
    if (!copy) {
        return NULL;
    }
    memcpy(copy, text, length);
    *name = (struct name){.hash = hash, .length = length, .text = copy};
    arena->name_count++;
    return copy;
}
