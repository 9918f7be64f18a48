/* SPDX-License-Identifier: Apache-2.0
 *
 * access.h - address spaces, and one memory access of a warp as every layer sees it.
 *
 * Generic addresses. Shared memory starts at offset 0x400 (SHARED_BASE) of its window: a null or
 * tiny pointer misses it, and 1024-byte alignment is kept. The other CTAs of a cluster see the
 * shared memory of a CTA at (rank + 1) << 24; shared::cluster addresses have 32 bits. A pointer to
 * another space that was truncated to 32 bits hits none of them.
 */
#ifndef VGPU_MACHINE_ACCESS_H
#define VGPU_MACHINE_ACCESS_H

#include <string.h>

#include "machine/machine.h"

#define WINDOW_SHARED 0x0000100000000000ULL
#define WINDOW_LOCAL 0x0000200000000000ULL
#define WINDOW_PARAM 0x0000300000000000ULL
#define WINDOW_CONST 0x0000400000000000ULL
#define WINDOW_MASK 0xfffff00000000000ULL
enum { SHARED_RANK_SHIFT = 24 };

/* Generic addresses of local and parameter memory. Their low 32 bits are far from every shared
 * address. A local address carries its thread, so that access by another thread is recognised. */
#define PRIVATE_BIAS 0x80000000ULL
static inline uint64_t local_window(const struct warp *warp, uint32_t lane) {
    return WINDOW_LOCAL + ((uint64_t)(warp->index * LANES + lane + 1) << 32) + PRIVATE_BIAS;
}
#define PARAM_WINDOW (WINDOW_PARAM + PRIVATE_BIAS)

enum { SPACE_GENERIC = 100, SPACE_SHARED_CLUSTER = 101 }; /* in addition to enum ptx_space */

enum access_kind {
    ACCESS_READ,
    ACCESS_WRITE,
    ACCESS_ATOMIC,      /* reads and writes; never races with another atomic */
    ACCESS_ISSUE_WRITE, /* an asynchronous write was issued: until it completes it races with every
                           access to the bytes. Nothing is written, no host pointer is returned */
    ACCESS_ISSUE_READ
};

enum proxy { PROXY_GENERIC, PROXY_ASYNC }; /* ld and st, or TMA and wgmma */

struct agent; /* an asynchronous operation (race/clock.h) */

/* One access of a warp, or of an engine on its behalf: up to 32 lanes, each with `count` contiguous
 * elements of `element` bytes. */
struct access {
    int space; /* enum ptx_space, SPACE_GENERIC or SPACE_SHARED_CLUSTER */
    enum access_kind kind;
    enum proxy proxy;
    uint32_t element,
        count; /* 1 to 16 bytes; 1 to 8; their product is the required alignment, unless
                                `align` is not 0 */
    uint32_t align;
    uint32_t mask;
    struct agent *agent; /* the asynchronous operation; NULL: the warp itself */
    bool strong;         /* volatile, relaxed or stronger: no race with other strong accesses, */
    bool narrow;         /* ... of the same cluster (.cta, .cluster) */
    uint64_t
        address[LANES]; /* generic: complete; else an offset in its space (shared: as in PTX, from
                                SHARED_BASE on) */
    /* results */
    unsigned char *host[LANES]; /* the bytes on the host; of lanes in `good` */
    uint32_t good;              /* lanes that may proceed; the others were reported */
    bool contiguous;            /* all 32 lanes are good and adjacent from host[0] on */
    bool uniform;               /* all 32 lanes are good and at host[0] */
    /* reads: lanes whose element i is uninitialised; writes: set by the caller */
    uint32_t poison[8];
    uint32_t unwritten; /* reads: lanes with a word of which no byte is initialised */
};

static inline uint32_t access_alignment(const struct access *access) {
    return access->align != 0 ? access->align : access->element * access->count;
}

static inline uint64_t load_8(const unsigned char *from) {
    uint64_t value;
    memcpy(&value, from, sizeof(value));
    return value;
}

static inline uint32_t load_4(const unsigned char *from) {
    uint32_t value;
    memcpy(&value, from, sizeof(value));
    return value;
}

#endif /* VGPU_MACHINE_ACCESS_H */
