/* SPDX-License-Identifier: Apache-2.0
 *
 * arena.c - an arena: memory that is freed all at once, with a table of names.
 *
 * Invariant: allocated memory never moves and starts as zeros.
 */
#include "ptx/arena.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum {
    CHUNK_FIRST = 1 << 14,
    CHUNK_LAST = 1 << 20, /* chunks double up to this, unless one thing needs more */
    ALIGN_MAX = 64,
    ENTRIES_FIRST = 256
};

struct chunk {
    struct chunk *next;
};

struct entry {
    uint64_t hash;
    size_t length;
    const char *key; /* NULL: a free place */
    void *value;     /* NULL: a string alone */
};

struct arena {
    struct chunk *chunks;
    char *cursor, *end; /* what is free in the newest chunk */
    size_t next_chunk;
    struct entry *entries; /* open addressing; a power of two, at most half full */
    size_t places, entry_count;
};

struct arena *arena_make(void) {
    struct arena *arena = calloc(1, sizeof *arena);
    if (!arena) {
        return NULL;
    }
    arena->next_chunk = CHUNK_FIRST;
    arena->places = ENTRIES_FIRST;
    arena->entries = calloc(ENTRIES_FIRST, sizeof *arena->entries);
    if (!arena->entries) {
        arena_free(arena);
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
    free(arena->entries);
    free(arena);
}

static void *take(struct arena *arena, size_t size, size_t align) {
    size_t gap = -(uintptr_t)arena->cursor & (align - 1);
    if (!arena->chunks || size > (size_t)(arena->end - arena->cursor) ||
        gap > (size_t)(arena->end - arena->cursor) - size) {
        if (size > PTRDIFF_MAX - sizeof(struct chunk) - ALIGN_MAX) {
            return NULL;
        }
        const size_t room =
            size + ALIGN_MAX > arena->next_chunk ? size + ALIGN_MAX : arena->next_chunk;
        struct chunk *chunk = calloc(1, sizeof *chunk + room);
        if (!chunk) {
            return NULL;
        }
        chunk->next = arena->chunks;
        arena->chunks = chunk;
        arena->cursor = (char *)(chunk + 1);
        arena->end = arena->cursor + room;
        arena->next_chunk *= arena->next_chunk < CHUNK_LAST ? 2 : 1;
        gap = -(uintptr_t)arena->cursor & (align - 1);
    }
    char *at = arena->cursor + gap;
    arena->cursor = at + size;
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

/* ---- entries --------------------------------------------------------------------------------- */

/* 64 bits, so that keys that collide are hard to come by. */
static uint64_t hash_of(const char *key, size_t length) {
    uint64_t hash = 0xCBF29CE484222325u;
    for (size_t i = 0; i < length; i++) {
        hash = (hash ^ (unsigned char)key[i]) * 0x100000001B3u;
    }
    return hash ^ (hash >> 29);
}

/* The place of the key, or the free one where it would be. */
static struct entry *place_of(const struct arena *arena, uint64_t hash, const char *key,
                              size_t length) {
    size_t at = (size_t)hash & (arena->places - 1);
    for (;; at = (at + 1) & (arena->places - 1)) {
        struct entry *entry = &arena->entries[at];
        if (!entry->key || (entry->hash == hash && entry->length == length &&
                            memcmp(entry->key, key, length) == 0)) {
            return entry;
        }
    }
}

static int double_places(struct arena *arena) {
    struct arena wider = {.places = arena->places * 2};
    wider.entries = calloc(wider.places, sizeof *wider.entries);
    if (!wider.entries) {
        return 0;
    }
    for (size_t i = 0; i < arena->places; i++) {
        const struct entry *entry = &arena->entries[i];
        if (entry->key) {
            *place_of(&wider, entry->hash, entry->key, entry->length) = *entry;
        }
    }
    free(arena->entries);
    arena->entries = wider.entries;
    arena->places = wider.places;
    return 1;
}

/* The entry of the key, added if there was none; NULL: no memory. */
static struct entry *entry_of(struct arena *arena, const char *key, size_t length) {
    const uint64_t hash = hash_of(key, length);
    struct entry *entry = place_of(arena, hash, key, length);
    if (entry->key) {
        return entry;
    }
    if (arena->entry_count * 2 >= arena->places) {
        if (!double_places(arena)) {
            return NULL;
        }
        entry = place_of(arena, hash, key, length);
    }
    char *copy = length < SIZE_MAX ? take(arena, length + 1, 1) : NULL;
    if (!copy) {
        return NULL;
    }
    memcpy(copy, key, length);
    *entry = (struct entry){.hash = hash, .length = length, .key = copy};
    arena->entry_count++;
    return entry;
}

const char *arena_intern(struct arena *arena, const char *text, size_t length) {
    const struct entry *entry = entry_of(arena, text, length);
    return entry ? entry->key : NULL;
}

void *arena_entry(struct arena *arena, const void *key, size_t length, size_t size) {
    struct entry *entry = entry_of(arena, key, length);
    if (entry && !entry->value) {
        entry->value = arena_alloc(arena, size);
    }
    return entry ? entry->value : NULL;
}

void *arena_find(const struct arena *arena, const void *key, size_t length) {
    return place_of(arena, hash_of(key, length), key, length)->value;
}
