/* SPDX-License-Identifier: Apache-2.0
 *
 * device.h - global memory: allocations, and a shadow byte for each byte.
 */
#ifndef VGPU_MACHINE_DEVICE_H
#define VGPU_MACHINE_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "vgpu.h"

/* The shadow of a byte. Gaps lie between the variables of shared, local and call-parameter memory
 * and between the blocks of the heap. */
enum { BYTE_UNWRITTEN = 0, BYTE_WRITTEN = 1, BYTE_GAP = 2 };

struct allocation {
    uint64_t begin, end;
    char *label;    /* "": none */
    bool live;      /* all of it may be accessed */
    bool read_only; /* a variable of constant memory */
    bool heap;      /* not live: heap.h knows what may be accessed */
};

struct device_memory {
    unsigned char *base, *shadow;
    uint64_t bytes; /* of each reservation */
    size_t limit, used;
    uint64_t next; /* address of the next allocation */
    struct allocation *ranges;
    size_t count, capacity;
    bool has_read_only; /* any of them */
};

struct device_memory *device_memory_make(size_t limit);
void device_memory_free(struct device_memory *memory);
size_t device_memory_used(const struct device_memory *memory);

vgpu_pointer device_alloc(struct device_memory *memory, size_t bytes,
                          const char *label); /* 0: none */
/* Addresses for the heap of kernels, which count for nothing; 0: none. */
uint64_t device_reserve_heap(struct device_memory *memory, size_t bytes);
bool device_release(struct device_memory *memory, vgpu_pointer pointer);
/* Opens what was released again, if its addresses were not given away. */
bool device_revive(struct device_memory *memory, vgpu_pointer pointer);
/* Makes it read-only for kernels. */
void device_protect(struct device_memory *memory, vgpu_pointer pointer);
/* The host bytes of a range within one live allocation, or NULL; `write` marks them initialised. */
unsigned char *device_bytes(struct device_memory *memory, vgpu_pointer pointer, size_t bytes,
                            bool write);

/* The last allocation, live or freed, that begins at or before the address; NULL: none. */
const struct allocation *device_find(const struct device_memory *memory, uint64_t address);
static inline unsigned char *device_shadow(const struct device_memory *memory, uint64_t address) {
    return memory->shadow + (address - (uintptr_t)memory->base);
}

#endif /* VGPU_MACHINE_DEVICE_H */
