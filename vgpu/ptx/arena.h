/* SPDX-License-Identifier: Apache-2.0
 *
 * arena.h - an arena: memory that is freed all at once, with a table of names.
 */
#ifndef VGPU_PTX_ARENA_H
#define VGPU_PTX_ARENA_H

#include <stddef.h>

struct arena;

struct arena *arena_make(void); /* NULL: no memory */
void arena_free(struct arena *arena);

/* Zeroed, aligned for anything up to 64 bytes; NULL: no memory. size 0 gives a pointer too. */
void *arena_alloc(struct arena *arena, size_t size);
/* The string of `length` characters; the same pointer for the same characters. */
const char *arena_intern(struct arena *arena, const char *text, size_t length);

/* The memory that belongs to a key of any bytes: `size` of them, zeroed the first time; each key
 * has one size. NULL: no memory. */
void *arena_entry(struct arena *arena, const void *key, size_t length, size_t size);
/* The same if it is there already, else NULL. */
void *arena_find(const struct arena *arena, const void *key, size_t length);

#endif /* VGPU_PTX_ARENA_H */
