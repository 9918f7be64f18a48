/* SPDX-License-Identifier: Apache-2.0
 *
 * heap.c - see heap.h. Blocks follow each other with a gap between them, and a freed one is not
 * reused before heap_recycle, so a wild pointer identifies the block that it missed.
 *
 * Invariant: `blocks` is sorted by address. The shadow of each byte before `next` that lies in no
 * live block is BYTE_GAP.
 */
#include "machine/heap.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { ALIGN = 16 };
#define ADDRESSES (1ULL << 30) /* at least; memory is taken from the system when it is touched */

struct block {
    uint64_t begin, end;
    bool live;
};

struct heap {
    pthread_mutex_t lock;
    struct device_memory *memory;
    uint64_t begin, end, next;
    size_t limit, used, live;
    struct block *blocks;
    size_t count, capacity;
};

struct heap *heap_make(struct device_memory *memory, size_t limit) {
    struct heap *heap = calloc(1, sizeof *heap);
    const uint64_t bytes = 4 * (uint64_t)limit > ADDRESSES ? 4 * (uint64_t)limit : ADDRESSES;
    if (heap == NULL) {
        return NULL;
    }
    heap->memory = memory;
    heap->limit = limit;
    heap->begin = heap->next = device_reserve_heap(memory, bytes);
    heap->end = heap->begin + bytes;
    if (heap->begin == 0) {
        free(heap);
        return NULL;
    }
    pthread_mutex_init(&heap->lock, NULL);
    return heap;
}

void heap_free(struct heap *heap) {
    if (heap != NULL) {
        pthread_mutex_destroy(&heap->lock);
        free(heap->blocks);
        free(heap);
    }
}

void heap_limit(struct heap *heap, size_t limit) {
    heap->limit = limit;
}

void heap_recycle(struct heap *heap) {
    const uint64_t bytes = heap->next - heap->begin;
    if (heap->live == 0 && bytes > (heap->end - heap->begin) / 2) {
        madvise((void *)(uintptr_t)heap->begin, bytes, MADV_DONTNEED); /* NOLINT */
        madvise(device_shadow(heap->memory, heap->begin), bytes, MADV_DONTNEED);
        heap->next = heap->begin;
        heap->count = 0;
    }
}

static bool make_room(struct heap *heap) {
    if (heap->count < heap->capacity) {
        return true;
    }
    const size_t capacity = heap->capacity == 0 ? 256 : 2 * heap->capacity;
    struct block *blocks = realloc(heap->blocks, capacity * sizeof *blocks);
    if (blocks == NULL) {
        return false;
    }
    heap->blocks = blocks;
    heap->capacity = capacity;
    return true;
}

uint64_t heap_take(struct heap *heap, uint64_t bytes) {
    uint64_t begin = 0;
    pthread_mutex_lock(&heap->lock);
    const uint64_t whole = bytes <= heap->limit ? (bytes / ALIGN + 2) * ALIGN : 0;
    if (whole != 0 && heap->used <= heap->limit && bytes <= heap->limit - heap->used &&
        whole <= heap->end - heap->next && make_room(heap)) {
        begin = heap->next;
        unsigned char *shadow = device_shadow(heap->memory, begin);
        memset(shadow, BYTE_UNWRITTEN, bytes);
        memset(shadow + bytes, BYTE_GAP, whole - bytes);
        heap->blocks[heap->count++] = (struct block){begin, begin + bytes, true};
        heap->used += bytes;
        heap->live++;
        __atomic_store_n(&heap->next, begin + whole, __ATOMIC_RELEASE); /* heap_find reads it */
    }
    pthread_mutex_unlock(&heap->lock);
    return begin;
}

/* The last block that begins at or before the address, with the lock held; NULL: none. */
static struct block *block_at(const struct heap *heap, uint64_t address) {
    size_t low = 0, high = heap->count;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (heap->blocks[middle].begin <= address) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low == 0 ? NULL : &heap->blocks[low - 1];
}

enum heap_state heap_give(struct heap *heap, uint64_t address) {
    pthread_mutex_lock(&heap->lock);
    struct block *block = block_at(heap, address);
    const enum heap_state state = block == NULL || block->begin != address ? HEAP_OUTSIDE
                                  : block->live                            ? HEAP_LIVE
                                                                           : HEAP_FREED;
    if (state == HEAP_LIVE) {
        const uint64_t bytes = block->end - block->begin;
        block->live = false;
        heap->used -= bytes;
        heap->live--;
        memset(device_shadow(heap->memory, address), BYTE_GAP, bytes);
    }
    pthread_mutex_unlock(&heap->lock);
    return state;
}

bool heap_block(struct heap *heap, uint64_t address, uint64_t *begin, uint64_t *end, bool *live) {
    pthread_mutex_lock(&heap->lock);
    const struct block *block = block_at(heap, address);
    if (block != NULL) {
        *begin = block->begin;
        *end = block->end;
        *live = block->live;
    }
    pthread_mutex_unlock(&heap->lock);
    return block != NULL;
}

enum heap_state heap_find(struct heap *heap, uint64_t address, uint64_t bytes) {
    const uint64_t next = __atomic_load_n(&heap->next, __ATOMIC_ACQUIRE);
    uint64_t begin, end;
    bool live, gap = address < heap->begin || address > next || bytes > next - address;
    for (uint64_t i = 0; !gap && i < bytes; i++) {
        gap = *device_shadow(heap->memory, address + i) == BYTE_GAP;
    }
    return !gap ? HEAP_LIVE
           : heap_block(heap, address, &begin, &end, &live) && !live && address < end
               ? HEAP_FREED
               : HEAP_OUTSIDE;
}
