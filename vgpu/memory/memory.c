/* SPDX-License-Identifier: Apache-2.0
 *
 * memory.c - one access: resolves the space of an address, checks bounds, alignment and initialised
 * bytes. race/shared.c and race/global.c check races.
 *
 * Fast path: 32 contiguous lanes in one space need one bounds check and one pass over the shadow.
 *
 * Invariant: a lane in `good` has a host pointer to element * count bytes of the kernel; nothing
 * else is ever accessed, whatever the kernel computes.
 */
#include <string.h>

#include "machine/describe.h"
#include "machine/device.h"
#include "machine/heap.h"
#include "memory/memory.h"
#include "race/race.h"
#include "report/perf.h"

/* ---- shadows --------------------------------------------------------------------------------- */

static bool none_written(const unsigned char *shadow, uint32_t bytes) {
    uint32_t written = 0;
    for (uint32_t i = 0; i < bytes; i++) {
        written += shadow[i] == BYTE_WRITTEN;
    }
    return written == 0;
}

/* The shadow of one lane's bytes: what a read finds, what a write leaves. */
static void look_at_lane(struct access *access, uint32_t lane, unsigned char *shadow) {
    const uint32_t bytes = access->element * access->count;
    if (access->kind == ACCESS_WRITE) {
        uint32_t poison = 0;
        for (uint32_t i = 0; i < access->count; i++) {
            poison |= access->poison[i];
        }
        if ((poison >> lane & 1) == 0) {
            memset(shadow, BYTE_WRITTEN, bytes);
            return;
        }
        for (uint32_t i = 0; i < access->count; i++) {
            const bool unwritten = (access->poison[i] >> lane & 1) != 0;
            memset(shadow + i * access->element, unwritten ? BYTE_UNWRITTEN : BYTE_WRITTEN,
                   access->element);
        }
    } else if (!all_written(shadow, bytes)) {
        for (uint32_t i = 0; i < access->count; i++) {
            const bool written = all_written(shadow + i * access->element, access->element);
            access->poison[i] |= (uint32_t)!written << lane;
        }
        const uint32_t word = access->element < 4 ? 4 : access->element;
        for (uint32_t at = 0; at < bytes; at += word) {
            const uint32_t left = bytes - at < word ? bytes - at : word;
            access->unwritten |= (uint32_t)none_written(shadow + at, left) << lane;
        }
    }
}

/* The bytes move later, by another access. */
static bool is_issue(enum access_kind kind) {
    return kind == ACCESS_ISSUE_READ || kind == ACCESS_ISSUE_WRITE;
}

static bool looks_at_shadow(const struct warp *warp, const struct access *access) {
    return (warp->cta->launch->checks & VGPU_CHECK_INIT) != 0 && !is_issue(access->kind);
}

static uint32_t any_poison(const struct access *access) {
    uint32_t poison = 0;
    for (uint32_t i = 0; i < access->count; i++) {
        poison |= access->poison[i];
    }
    return poison;
}

/* 32 contiguous lanes; false: they must be checked one by one. */
static bool look_at_row(struct access *access, unsigned char *shadow, uint32_t bytes) {
    if (access->kind != ACCESS_WRITE) {
        return all_written(shadow, bytes);
    }
    if (any_poison(access) != 0) {
        return false;
    }
    memset(shadow, BYTE_WRITTEN, bytes);
    return true;
}

/* ---- lanes ----------------------------------------------------------------------------------- */

static bool is_contiguous(const struct access *access, uint32_t lanes) {
    if (lanes != ALL_LANES) {
        return false;
    }
    const uint64_t bytes = (uint64_t)access->element * access->count, first = access->address[0];
    uint64_t different = access->address[1] ^ (first + bytes);
    if (different != 0) {
        return false;
    }
    for (uint32_t i = 0; i < LANES; i++) {
        different |= access->address[i] ^ (first + i * bytes);
    }
    return different == 0;
}

static uint32_t misaligned_lanes(const struct access *access, uint32_t lanes) {
    const uint64_t low = access_alignment(access) - 1;
    uint64_t any = 0;
    for (uint32_t i = 0; i < LANES; i++) {
        any |= access->address[i];
    }
    if ((any & low) == 0) {
        return 0;
    }
    uint32_t found = 0;
    for (uint32_t i = 0; i < LANES; i++) {
        found |= (uint32_t)((access->address[i] & low) != 0) << i;
    }
    return found & lanes;
}

/* ---- shared memory --------------------------------------------------------------------------- */

static bool is_uniform(const struct access *access, uint32_t lanes) {
    if (lanes != ALL_LANES || access->address[1] != access->address[0]) {
        return false;
    }
    uint64_t different = 0;
    for (uint32_t i = 0; i < LANES; i++) {
        different |= access->address[i] ^ access->address[0];
    }
    return different == 0;
}

static void look_for_races(struct warp *warp, const struct op *op, const struct access *access,
                           struct cta *cta, uint32_t lanes, uint64_t base) {
    struct race race;
    const uint32_t bytes = access->element * access->count;
    if (!race_begin(&race, warp, op, cta, access->kind, access->proxy, access->strong,
                    access->agent)) {
        return;
    }
    race.access = access;
    if (access->contiguous) {
        race_range(&race, (uint32_t)(access->address[0] - base), bytes * LANES, bytes, 0);
    } else if (access->uniform) {
        race_range(&race, (uint32_t)(access->address[0] - base), bytes, bytes, LANE_SEVERAL);
    } else {
        race_lanes(&race, access->address, base, lanes, bytes);
    }
    race_end(&race);
}

/* Lanes anywhere with nothing to report: in bounds, and they read what was written, or write
 * what is no poison. False: look at them one by one; nothing has happened. Inlined with the number
 * of bytes known where it matters. */
static inline __attribute__((always_inline)) bool
resolve_good_lanes(struct access *access, struct cta *cta, uint32_t lanes, uint64_t base,
                   bool shadowed, uint32_t bytes) {
    const struct cta_memory *memory = cta->memory;
    const uint64_t some = access->address[__builtin_ctz(lanes)]; /* for those that are not there */
    const uint64_t last = (uint64_t)memory->bytes - bytes;
    const bool reads = access->kind == ACCESS_READ && shadowed;
    const bool marks = access->kind == ACCESS_WRITE && shadowed;
    uint64_t offsets[LANES], outside = bytes > memory->bytes;
    for (uint32_t i = 0; i < LANES; i++) {
        offsets[i] = ((lanes >> i & 1) != 0 ? access->address[i] : some) - base;
        outside |= offsets[i] > last;
    }
    if (outside != 0 || (marks && (any_poison(access) & lanes) != 0)) {
        return false;
    }
    for (uint32_t i = 0; i < LANES; i++) {
        const unsigned char *shadow = memory->shadow + offsets[i];
        outside |= reads ? !all_written(shadow, bytes) : has_gap(shadow, bytes);
        if ((lanes >> i & 1) != 0) {
            access->host[i] = cta->shared + offsets[i];
        }
    }
    for (uint32_t i = 0; outside == 0 && marks && i < LANES; i++) {
        memset(memory->shadow + offsets[i], BYTE_WRITTEN, bytes);
    }
    return outside == 0;
}

static uint32_t resolve_shared_lanes(struct access *access, struct cta *cta, uint32_t lanes,
                                     uint64_t base, bool shadowed, struct refusals *refused) {
    const struct cta_memory *memory = cta->memory;
    const uint32_t bytes = access->element * access->count;
    uint32_t good = 0;
    FOR_LANES(lane, lanes) {
        const uint64_t offset = access->address[lane] - base;
        if (offset > memory->bytes || bytes > memory->bytes - offset ||
            has_gap(memory->shadow + offset, bytes)) {
            refused->outside |= 1U << lane;
            continue;
        }
        if (shadowed) {
            look_at_lane(access, lane, memory->shadow + offset);
        }
        access->host[lane] = cta->shared + offset;
        good |= 1U << lane;
    }
    return good;
}

/* Lanes whose addresses, less `base`, are offsets into the CTA's shared memory. */
static uint32_t resolve_shared(struct warp *warp, struct access *access, struct cta *cta,
                               uint32_t lanes, uint64_t base, struct refusals *refused) {
    const struct cta_memory *memory = cta->memory;
    const uint32_t bytes = access->element * access->count;
    const bool shadowed = looks_at_shadow(warp, access);
    if (is_contiguous(access, lanes)) {
        const uint64_t offset = access->address[0] - base;
        const uint64_t whole = (uint64_t)bytes * LANES;
        if (offset <= memory->bytes && whole <= memory->bytes - offset &&
            !has_gap(memory->shadow + offset, whole)) {
            for (uint32_t i = 0; i < LANES; i++) {
                access->host[i] = cta->shared + offset + (uint64_t)i * bytes;
            }
            access->contiguous = true;
            if (!shadowed || look_at_row(access, memory->shadow + offset, (uint32_t)whole)) {
                return lanes;
            }
        }
    }
    if (access->kind == ACCESS_READ && is_uniform(access, lanes) &&
        resolve_shared_lanes(access, cta, 1, base, false, refused) == 1 &&
        all_written(access->host[0] - cta->shared + memory->shadow, bytes)) {
        for (uint32_t i = 1; i < LANES; i++) {
            access->host[i] = access->host[0];
        }
        access->uniform = true;
        return lanes;
    }
    bool good = false;
    switch (access->kind == ACCESS_ATOMIC ? 0 : bytes) {
    case 4: good = resolve_good_lanes(access, cta, lanes, base, shadowed, 4); break;
    case 8: good = resolve_good_lanes(access, cta, lanes, base, shadowed, 8); break;
    case 16: good = resolve_good_lanes(access, cta, lanes, base, shadowed, 16); break;
    default: break;
    }
    return good ? lanes : resolve_shared_lanes(access, cta, lanes, base, shadowed, refused);
}

/* `window` is 0 or WINDOW_SHARED; addresses name a CTA of the cluster in their upper bits. */
static void access_shared(struct warp *warp, const struct op *op, struct access *access,
                          uint32_t lanes, uint64_t window, bool any_cta, struct refusals *refused) {
    const struct cluster *cluster = warp->cta->cluster;
    const uint64_t low = (1ULL << SHARED_RANK_SHIFT) - 1;
    while (lanes != 0) {
        const uint64_t first = access->address[__builtin_ctz(lanes)] - window;
        uint64_t rank = any_cta ? first >> SHARED_RANK_SHIFT : 0;
        uint32_t same = lanes;
        FOR_LANES(lane, any_cta ? lanes : 0) {
            same ^= (uint32_t)((access->address[lane] - window) >> SHARED_RANK_SHIFT != rank)
                    << lane;
        }
        lanes &= ~same;
        if (rank > cluster->cta_count) {
            refused->outside |= same;
            continue;
        }
        struct cta *cta = rank == 0 ? warp->cta : &cluster->ctas[rank - 1];
        if (cta != warp->cta && cta->alive == 0) {
            refused->ended |= same;
            continue;
        }
        const uint64_t base = window + (rank == 0 ? 0 : first & ~low) + SHARED_BASE;
        const uint32_t good = resolve_shared(warp, access, cta, same, base, refused);
        access->good |= good;
        if (good != 0 && warp->clock != NULL) {
            look_for_races(warp, op, access, cta, good, base);
        }
    }
}

/* ---- global memory --------------------------------------------------------------------------- */

static bool holds(const struct allocation *range, uint64_t first, uint64_t end) {
    return range->live && first >= range->begin && end <= range->end && first < end;
}

/* Not in one live allocation: of the heap, or refused. Apart, since it is seldom needed. */
static __attribute__((noinline)) const struct allocation *
find_elsewhere(struct heap *heap, const struct allocation *range, uint64_t address, uint32_t bytes,
               uint32_t lane, struct refusals *refused) {
    const enum heap_state state = range == NULL || address >= range->end ? HEAP_OUTSIDE
                                  : range->heap ? heap_find(heap, address, bytes)
                                  : range->live ? HEAP_OUTSIDE
                                                : HEAP_FREED;
    if (state != HEAP_LIVE) {
        *(state == HEAP_FREED ? &refused->freed : &refused->outside) |= 1U << lane;
        return NULL;
    }
    return range;
}

static const struct allocation *find_lane(const vgpu *gpu, const struct allocation *hint,
                                          uint64_t address, uint32_t bytes, uint32_t lane,
                                          struct refusals *refused) {
    if (hint != NULL && holds(hint, address, address + bytes)) {
        return hint;
    }
    const struct allocation *range = device_find(gpu->memory, address);
    return range != NULL && holds(range, address, address + bytes)
               ? range
               : find_elsewhere(gpu->heap, range, address, bytes, lane, refused);
}

static uint32_t resolve_global(struct warp *warp, const struct op *op, struct access *access,
                               uint32_t lanes, struct refusals *refused) {
    const vgpu *gpu = warp->cta->launch->gpu;
    const struct device_memory *memory = gpu->memory;
    struct cluster *cluster = warp->cta->cluster;
    const struct allocation **recent =
        &cluster->recent[(uintptr_t)op / sizeof(*op) % RECENT_ALLOCATIONS];
    const uint32_t bytes = access->element * access->count;
    const bool shadowed = looks_at_shadow(warp, access);
    if (is_contiguous(access, lanes)) {
        const uint64_t first = access->address[0], whole = (uint64_t)bytes * LANES;
        if (*recent == NULL || !holds(*recent, first, first + whole)) {
            *recent = device_find(memory, first);
        }
        if (*recent != NULL && holds(*recent, first, first + whole)) {
            for (uint32_t i = 0; i < LANES; i++) {
                access->host[i] = (unsigned char *)(uintptr_t)(first + (uint64_t)i * bytes);
            }
            access->contiguous = true;
            if (!shadowed || look_at_row(access, device_shadow(memory, first), (uint32_t)whole)) {
                return lanes;
            }
        }
    }
    uint32_t good = 0;
    FOR_LANES(lane, lanes) {
        const uint64_t address = access->address[lane];
        const struct allocation *range = find_lane(gpu, *recent, address, bytes, lane, refused);
        if (range == NULL) {
            continue;
        }
        *recent = range;
        access->host[lane] = (unsigned char *)(uintptr_t)address; /* NOLINT: it is one */
        good |= 1U << lane;
        if (shadowed) {
            look_at_lane(access, lane, device_shadow(memory, address));
        }
    }
    return good;
}

/* Lanes that would write to constant memory. */
static uint32_t protected_lanes(const struct warp *warp, const struct access *access,
                                uint32_t lanes) {
    const struct device_memory *memory = warp->cta->launch->gpu->memory;
    uint32_t found = 0;
    if (!memory->has_read_only || access->kind == ACCESS_READ ||
        access->kind == ACCESS_ISSUE_READ) {
        return 0;
    }
    FOR_LANES(lane, lanes) {
        const uint64_t address = access->address[lane];
        const struct allocation *range = device_find(memory, address);
        found |= range != NULL && range->read_only && address < range->end ? 1U << lane : 0;
    }
    return found;
}

static void access_global(struct warp *warp, const struct op *op, struct access *access,
                          uint32_t lanes, struct refusals *refused) {
    const uint32_t protected = protected_lanes(warp, access, lanes);
    refused->read_only |= protected;
    lanes &= ~protected;
    access->good |= resolve_global(warp, op, access, lanes, refused);
    if (access->kind == ACCESS_WRITE) {
        const uint32_t poison = any_poison(access) & access->good & lanes;
        if (poison != 0) {
            const uint64_t address = access->address[__builtin_ctz(poison)];
            const struct finding_detail detail = {
                .space = PTX_GLOBAL, .address = address, .bytes = access->element * access->count};
            char place[192];
            describe_address(warp, PTX_GLOBAL, address, place, sizeof(place));
            const bool part = comes_from_part(warp, op);
            report_uninitialised(
                warp, op, part ? FINDING_UNINITIALISED_PART : FINDING_UNINITIALISED, poison,
                &detail, "write of %u bytes at %s: the value comes from %suninitialised memory",
                detail.bytes, place, part ? "partly " : "");
            if (part) { /* the bytes that are initialised must not be lost */
                memory_set_written(warp, access, poison, true);
            }
        }
    }
    struct access part = {.good = 0};
    const struct access *shown = access;
    if ((access->good & ~lanes) != 0) { /* a generic access of several spaces: this part of it */
        part = *access;
        part.good &= lanes;
        part.contiguous = false;
        shown = &part;
    }
    race_global_access(warp, op, shown);
    if ((warp->cta->launch->checks & VGPU_CHECK_PERF) != 0) {
        perf_global(warp, op, shown);
    }
}

/* ---- memory of a thread ---------------------------------------------------------------------- */

static void access_private(struct warp *warp, struct access *access, uint32_t lanes,
                           const struct private_memory *memory, const uint64_t *bases,
                           struct refusals *refused) {
    const uint32_t bytes = access->element * access->count;
    const bool shadowed = looks_at_shadow(warp, access), reads = access->kind == ACCESS_READ;
    FOR_LANES(lane, lanes) {
        const uint64_t offset = access->address[lane] - bases[lane];
        const size_t begin = (size_t)(warp->index * LANES + lane) * memory->stride;
        if (offset > memory->stride || bytes > memory->stride - offset) {
            refused->outside |= 1U << lane;
            continue;
        }
        unsigned char *shadow = memory->shadow + begin + offset;
        if (!reads || !all_written(shadow, bytes)) {
            if (has_gap(shadow, bytes)) {
                refused->outside |= 1U << lane;
                continue;
            }
            if (shadowed) {
                look_at_lane(access, lane, shadow);
            }
        }
        access->host[lane] = memory->bytes + begin + offset;
        access->good |= 1U << lane;
    }
}

static void access_local(struct warp *warp, struct access *access, uint32_t lanes, bool generic,
                         struct refusals *refused) {
    uint64_t bases[LANES] = {0};
    for (uint32_t lane = 0; generic && lane < LANES; lane++) {
        bases[lane] = local_window(warp, lane);
        if ((lanes >> lane & 1) != 0 && access->address[lane] >> 32 != bases[lane] >> 32) {
            refused->wrong_space |= 1U << lane;
        }
    }
    access_private(warp, access, lanes & ~refused->wrong_space, &warp->cta->memory->local, bases,
                   refused);
}

/* A kernel's parameters are the same for all threads and read-only; a call's belong to a thread. */
static void access_param(struct warp *warp, struct access *access, uint32_t lanes, uint64_t window,
                         struct refusals *refused) {
    const struct launch *launch = warp->cta->launch;
    const uint64_t size = launch->kernel->function->param_bytes;
    const uint32_t bytes = access->element * access->count;
    uint64_t bases[LANES];
    uint32_t calls = 0;
    FOR_LANES(lane, lanes) {
        const uint64_t offset = access->address[lane] - window;
        bases[lane] = window + CALL_PARAM_BASE;
        if (offset >= CALL_PARAM_BASE) {
            calls |= 1U << lane;
        } else if (offset > size || bytes > size - offset) {
            refused->outside |= 1U << lane;
        } else if (access->kind != ACCESS_READ && access->kind != ACCESS_ISSUE_READ) {
            refused->read_only |= 1U << lane;
        } else {
            access->host[lane] = launch->params + offset;
            access->good |= 1U << lane;
        }
    }
    if (calls != 0) {
        const struct private_memory *memory = call_params(warp->cta);
        if (memory == NULL) {
            refused->outside |= calls;
        } else {
            access_private(warp, access, calls, memory, bases, refused);
        }
    }
}

/* ---- one access ------------------------------------------------------------------------------ */

static void access_generic(struct warp *warp, const struct op *op, struct access *access,
                           uint32_t lanes, struct refusals *refused) {
    while (lanes != 0) {
        const uint64_t window = access->address[__builtin_ctz(lanes)] & WINDOW_MASK;
        uint32_t same = 0;
        for (uint32_t i = 0; i < LANES; i++) {
            same |= (uint32_t)((access->address[i] & WINDOW_MASK) == window) << i;
        }
        same &= lanes;
        lanes &= ~same;
        switch (window) {
        case WINDOW_SHARED:
            access_shared(warp, op, access, same, WINDOW_SHARED, true, refused);
            break;
        case WINDOW_LOCAL: access_local(warp, access, same, true, refused); break;
        case WINDOW_PARAM: access_param(warp, access, same, PARAM_WINDOW, refused); break;
        default: access_global(warp, op, access, same, refused); break;
        }
    }
}

static void access_space(struct warp *warp, const struct op *op, struct access *access,
                         uint32_t lanes, struct refusals *refused) {
    switch (access->space) {
    case PTX_SHARED: access_shared(warp, op, access, lanes, 0, false, refused); break;
    case SPACE_SHARED_CLUSTER: access_shared(warp, op, access, lanes, 0, true, refused); break;
    case PTX_LOCAL: access_local(warp, access, lanes, false, refused); break;
    case PTX_PARAM: access_param(warp, access, lanes, 0, refused); break;
    case PTX_CONST:
        if (access->kind != ACCESS_READ) {
            refused->read_only |= lanes;
            break;
        }
        access_global(warp, op, access, lanes, refused);
        break;
    case PTX_GLOBAL: access_global(warp, op, access, lanes, refused); break;
    default: access_generic(warp, op, access, lanes, refused); break;
    }
}

void memory_access(struct warp *warp, const struct op *op, struct access *access) {
    struct refusals refused = {0};
    access->good = 0;
    access->contiguous = access->uniform = false;
    if (access->kind != ACCESS_WRITE) {
        memset(access->poison, 0, sizeof(access->poison));
        access->unwritten = 0;
    }
    refused.misaligned = misaligned_lanes(access, access->mask);
    access_space(warp, op, access, access->mask & ~refused.misaligned, &refused);
    if (access->kind == ACCESS_READ && any_poison(access) != 0) {
        origin_note(warp, op, access, any_poison(access));
    }
    if (access->good != access->mask) {
        access->contiguous = false;
        report_refusals(warp, op, access, &refused, access->space);
    }
    if (access->space == PTX_SHARED && !is_issue(access->kind) &&
        (warp->cta->launch->checks & VGPU_CHECK_PERF) != 0) {
        perf_shared(warp, op, access);
    }
}

void memory_addresses(struct warp *warp, const struct op *op, struct access *access, uint32_t row,
                      bool narrow, int64_t offset, uint32_t mask) {
    if (narrow) {
        const uint32_t *from = row32(warp, row);
        for (uint32_t i = 0; i < LANES; i++) {
            access->address[i] = (uint32_t)(from[i] + (uint32_t)offset);
        }
    } else {
        const uint64_t *from = row64(warp, row);
        for (uint32_t i = 0; i < LANES; i++) {
            access->address[i] = from[i] + (uint64_t)offset;
        }
    }
    const uint32_t poison = poison_of(warp, row) & mask;
    if (poison != 0) {
        report_uninitialised(
            warp, op, FINDING_UNINITIALISED, poison,
            &(struct finding_detail){.space = access->space,
                                     .address = access->address[__builtin_ctz(poison)]},
            "the address comes from uninitialised memory");
    }
    access->mask = mask & ~poison;
}

void memory_set_written(struct warp *warp, const struct access *access, uint32_t lanes,
                        bool written) {
    const struct device_memory *memory = warp->cta->launch->gpu->memory;
    const struct cluster *cluster = warp->cta->cluster;
    for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
        const unsigned char *host = access->host[__builtin_ctz(rest)];
        unsigned char *shadow = NULL;
        if ((uintptr_t)host - (uintptr_t)memory->base < memory->bytes) {
            shadow = device_shadow(memory, (uintptr_t)host);
        }
        for (uint32_t i = 0; shadow == NULL && i < cluster->cta_count; i++) {
            const struct cta *cta = &cluster->ctas[i];
            const uintptr_t offset = (uintptr_t)host - (uintptr_t)cta->shared;
            if (offset < cta->shared_bytes) {
                shadow = cta->memory->shadow + offset;
            }
        }
        if (shadow != NULL) {
            memset(shadow, written ? BYTE_WRITTEN : BYTE_UNWRITTEN,
                   (size_t)access->element * access->count);
        }
    }
}
