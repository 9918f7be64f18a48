/* SPDX-License-Identifier: Apache-2.0
 *
 * device.c - global memory of the virtual device: one reservation of addresses with the
 * allocations, and a second one of the same size for their shadow (one byte per byte: 1 if
 * initialised).
 *
 * A device pointer is a host pointer. Gaps between allocations and freed ranges are not accessible.
 * A freed range is reused only when the reservation is full, so a pointer that misses identifies
 * the allocation it missed. The low 32 bits of an address are never below 512 MB (except inside
 * allocations above 3.5 GB): a global pointer truncated to 32 bits is no shared address of any CTA.
 *
 * Invariant: `ranges` is sorted by address and its entries do not overlap; between two of them are
 * at least GRAIN bytes. It changes only while no launch runs.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "machine/access.h"
#include "machine/device.h"

#define GRAIN 0x10000ULL
#define LOW_HOLE 0x20000000ULL /* the first 512 MB of each 4 GB */
#define FIRST_HINT 0x0000500000000000ULL
#define RESERVE_MIN (1ULL << 36)
#define RESERVE_MAX (1ULL << 38)

static uint64_t round_up(uint64_t value, uint64_t to) {
    return (value + to - 1) / to * to;
}

static bool hits_a_window(uint64_t begin, uint64_t bytes) {
    return begin < WINDOW_CONST + (1ULL << 44) && begin + bytes > WINDOW_SHARED;
}

/* Addresses without access; the same ones in every run where the system lets us. */
static unsigned char *reserve(uint64_t bytes) {
    for (uint64_t i = 0; i < 16; i++) {
        void *hint = (void *)(uintptr_t)(FIRST_HINT + i * RESERVE_MAX); /* NOLINT */
        void *at = mmap(hint, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED) {
            return NULL;
        }
        if ((i == 15 || at == hint) && !hits_a_window((uintptr_t)at, bytes)) {
            return at;
        }
        munmap(at, bytes);
    }
    return NULL;
}

struct device_memory *device_memory_make(size_t limit) {
    struct device_memory *memory = calloc(1, sizeof(*memory));
    if (memory == NULL) {
        return NULL;
    }
    uint64_t bytes = RESERVE_MIN;
    while (bytes < RESERVE_MAX && bytes / 8 < limit) {
        bytes *= 2;
    }
    for (; bytes > limit && memory->shadow == NULL; bytes /= 2) {
        memory->bytes = bytes;
        memory->base = reserve(bytes);
        memory->shadow = memory->base == NULL ? NULL : reserve(bytes);
        if (memory->shadow == NULL && memory->base != NULL) {
            munmap(memory->base, bytes);
        }
    }
    if (memory->shadow == NULL) {
        free(memory);
        return NULL;
    }
    memory->limit = limit;
    memory->next = (uintptr_t)memory->base + GRAIN;
    return memory;
}

void device_memory_free(struct device_memory *memory) {
    if (memory == NULL) {
        return;
    }
    munmap(memory->base, memory->bytes);
    munmap(memory->shadow, memory->bytes);
    for (size_t i = 0; i < memory->count; i++) {
        free(memory->ranges[i].label);
    }
    free(memory->ranges);
    free(memory);
}

/* The first address from `at` on where `bytes` keep clear of the low hole. */
static uint64_t place(uint64_t at, uint64_t bytes) {
    uint64_t low = at & 0xffffffffULL;
    if (low < LOW_HOLE) {
        return at - low + LOW_HOLE;
    }
    const uint64_t left = (1ULL << 32) - low;
    return bytes <= left ? at : at + left + LOW_HOLE;
}

static void forget(struct device_memory *memory, size_t first, size_t count) {
    for (size_t i = first; i < first + count; i++) {
        free(memory->ranges[i].label);
    }
    memmove(memory->ranges + first, memory->ranges + first + count,
            (memory->count - first - count) * sizeof(*memory->ranges));
    memory->count -= count;
}

/* Room among what was freed: the first run of dead ranges that is large enough is forgotten, and
 * its place in the array returned. */
static bool recycle(struct device_memory *memory, uint64_t bytes, uint64_t *at, size_t *index) {
    for (size_t i = 0; i < memory->count; i++) {
        size_t end = i;
        while (end < memory->count && !memory->ranges[end].live && !memory->ranges[end].heap) {
            end++;
        }
        if (end == i) {
            continue;
        }
        const uint64_t limit = end < memory->count ? memory->ranges[end].begin
                                                   : (uintptr_t)memory->base + memory->bytes;
        *at = place(memory->ranges[i].begin, bytes);
        if (*at + bytes + GRAIN <= limit) {
            forget(memory, i, end - i);
            *index = i;
            return true;
        }
        i = end;
    }
    return false;
}

static bool open_range(struct device_memory *memory, uint64_t at, uint64_t bytes) {
    unsigned char *data = memory->base + (at - (uintptr_t)memory->base);
    if (mprotect(data, bytes, PROT_READ | PROT_WRITE) != 0) {
        return false;
    }
    if (mprotect(device_shadow(memory, at), bytes, PROT_READ | PROT_WRITE) != 0) {
        mprotect(data, bytes, PROT_NONE);
        return false;
    }
    return true;
}

static bool make_room(struct device_memory *memory) {
    if (memory->count < memory->capacity) {
        return true;
    }
    const size_t capacity = memory->capacity == 0 ? 64 : memory->capacity * 2;
    struct allocation *ranges = realloc(memory->ranges, capacity * sizeof(*ranges));
    if (ranges == NULL) {
        return false;
    }
    memory->ranges = ranges;
    memory->capacity = capacity;
    return true;
}

vgpu_pointer device_alloc(struct device_memory *memory, size_t bytes, const char *label) {
    if (bytes == 0 || bytes > memory->limit || memory->used > memory->limit - bytes ||
        !make_room(memory)) {
        return 0;
    }
    const uint64_t whole = round_up(bytes, GRAIN);
    uint64_t at = place(memory->next, whole);
    size_t index = memory->count;
    if (at + whole + GRAIN > (uintptr_t)memory->base + memory->bytes) {
        if (!recycle(memory, whole, &at, &index)) {
            return 0;
        }
    } else {
        memory->next = at + whole + GRAIN;
    }
    char *copy = strdup(label == NULL ? "" : label);
    if (copy == NULL || !open_range(memory, at, whole)) {
        free(copy);
        return 0;
    }
    memmove(memory->ranges + index + 1, memory->ranges + index,
            (memory->count - index) * sizeof(*memory->ranges));
    memory->ranges[index] =
        (struct allocation){.begin = at, .end = at + bytes, .label = copy, .live = true};
    memory->count++;
    memory->used += bytes;
    return at;
}

uint64_t device_reserve_heap(struct device_memory *memory, size_t bytes) {
    const size_t limit = memory->limit;
    memory->limit = SIZE_MAX;
    const uint64_t at = device_alloc(memory, bytes, "heap of kernels");
    memory->limit = limit;
    if (at != 0) {
        struct allocation *range = &memory->ranges[device_find(memory, at) - memory->ranges];
        range->live = false;
        range->heap = true;
        memory->used -= bytes;
    }
    return at;
}

const struct allocation *device_find(const struct device_memory *memory, uint64_t address) {
    size_t low = 0, high = memory->count;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (memory->ranges[middle].begin <= address) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low == 0 ? NULL : &memory->ranges[low - 1];
}

bool device_release(struct device_memory *memory, vgpu_pointer pointer) {
    const struct allocation *found = device_find(memory, pointer);
    if (found == NULL || found->begin != pointer || !found->live) {
        return false;
    }
    struct allocation *range = &memory->ranges[found - memory->ranges];
    const uint64_t bytes = round_up(range->end - range->begin, GRAIN);
    unsigned char *data = memory->base + (pointer - (uintptr_t)memory->base);
    unsigned char *shadow = device_shadow(memory, pointer);
    madvise(data, bytes, MADV_DONTNEED);
    madvise(shadow, bytes, MADV_DONTNEED);
    mprotect(data, bytes, PROT_NONE);
    mprotect(shadow, bytes, PROT_NONE);
    range->live = false;
    memory->used -= range->end - range->begin;
    return true;
}

bool device_revive(struct device_memory *memory, vgpu_pointer pointer) {
    const struct allocation *found = device_find(memory, pointer);
    if (found == NULL || found->begin != pointer || found->live || found->heap) {
        return false;
    }
    struct allocation *range = &memory->ranges[found - memory->ranges];
    const uint64_t bytes = range->end - range->begin;
    if (memory->used > memory->limit - bytes ||
        !open_range(memory, pointer, round_up(bytes, GRAIN))) {
        return false;
    }
    range->live = true;
    memory->used += bytes;
    return true;
}

void device_protect(struct device_memory *memory, vgpu_pointer pointer) {
    for (size_t i = 0; i < memory->count; i++) {
        if (memory->ranges[i].live && memory->ranges[i].begin == pointer) {
            memory->ranges[i].read_only = true;
            memory->has_read_only = true;
        }
    }
}

unsigned char *device_bytes(struct device_memory *memory, vgpu_pointer pointer, size_t bytes,
                            bool write) {
    const struct allocation *range = device_find(memory, pointer);
    if (range == NULL || !range->live || pointer > range->end || bytes > range->end - pointer) {
        return NULL;
    }
    if (write) {
        memset(device_shadow(memory, pointer), 1, bytes);
    }
    return memory->base + (pointer - (uintptr_t)memory->base);
}

size_t device_memory_used(const struct device_memory *memory) {
    return memory->used;
}
