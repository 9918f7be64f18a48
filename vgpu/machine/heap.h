/* SPDX-License-Identifier: Apache-2.0
 *
 * heap.h - the heap of malloc and free in kernels. One per GPU, made for the first
 * module that calls malloc; its addresses are one range of device memory.
 */
#ifndef VGPU_MACHINE_HEAP_H
#define VGPU_MACHINE_HEAP_H

#include "machine/device.h"

struct heap;

/* NULL: no memory. limit: bytes of all blocks at once. */
struct heap *heap_make(struct device_memory *memory, size_t limit);
void heap_free(struct heap *heap);
void heap_limit(struct heap *heap, size_t limit);
/* Between launches: addresses are used again once most are used up and no block is left. */
void heap_recycle(struct heap *heap);

enum heap_state { HEAP_LIVE, HEAP_OUTSIDE, HEAP_FREED };

/* Any number of threads may call these. A block is at a multiple of 16; 0: there is no room. */
uint64_t heap_take(struct heap *heap, uint64_t bytes);
/* What the block at the address was; HEAP_LIVE: it is free now. */
enum heap_state heap_give(struct heap *heap, uint64_t address);
/* Whether the bytes lie in a block. */
enum heap_state heap_find(struct heap *heap, uint64_t address, uint64_t bytes);
/* The last block that begins at or before the address; false: none. */
bool heap_block(struct heap *heap, uint64_t address, uint64_t *begin, uint64_t *end, bool *live);

#endif /* VGPU_MACHINE_HEAP_H */
