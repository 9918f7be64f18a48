/* SPDX-License-Identifier: Apache-2.0
 *
 * arena.h - memory that is freed all at once, and interned strings.
 */
#ifndef VGPU_ARENA_H
#define VGPU_ARENA_H

#include <stddef.h>

struct arena;

struct arena *arena_make(void); /* NULL: no memory */
void arena_free(struct arena *arena);

/* Zeroed, aligned for anything up to 64 bytes; NULL: no memory. size 0 gives a pointer too. */
void *arena_alloc(struct arena *arena, size_t size);
/* The string of `length` characters; the same pointer for the same characters. */
const char *arena_intern(struct arena *arena, const char *text, size_t length);

#endif /* VGPU_ARENA_H */
