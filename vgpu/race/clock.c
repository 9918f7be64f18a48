/* SPDX-License-Identifier: Apache-2.0
 *
 * clock.c - vector clocks of the warps of a cluster and its engines, and asynchronous agents.
 * state.h explains time and stamps.
 *
 * A completion gets the slot of the clock it is released into (an mbarrier has one): an acquire of
 * that clock is ordered after the completions into it, and after no others.
 *
 * Strong accesses (atomics, volatile, relaxed ...) pass clocks on through the word they access, as
 * PTX defines it. A .release, or a relaxed write after a fence, stores what precedes it (precedes
 * the fence) in the clock of the word; an .acquire, or a fence after a relaxed read, takes it from
 * there. A relaxed access alone orders nothing. Barriers pass on what was fenced before them, and
 * replace the fence after a relaxed read: "all threads fence, barrier, one thread takes a ticket,
 * barrier, all read" is how many kernels find their last CTA.
 *
 * Of other clusters a clock knows only whether anything was acquired from them: seen[outside], the
 * slot after those of the warps; and whether anything was read from them that decides a store:
 * seen[taken]. What a cluster released to others is in `handed_on`; what it read before it
 * published a value that depends on it, in `given`.
 *
 * Invariant: seen[s] of any clock is at most slots[s].released; so an access with the current stamp
 * is ordered before its own warp only.
 */
#include <stdlib.h>
#include <string.h>

#include "machine/device.h"
#include "race/state.h"

static uint32_t largest(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}

struct cluster_race *race_of_cluster(struct cluster *cluster) {
    if (cluster->race != NULL) {
        return cluster->race;
    }
    struct cluster_race *memory = calloc(1, sizeof(*memory));
    if (memory == NULL) {
        return NULL;
    }
    memory->cluster = cluster;
    memory->time = 1;
    memory->warp_slots = cluster->agent_count;
    memory->slot_count = cluster->agent_count + ENGINE_SLOTS;
    memory->slots = calloc(memory->slot_count, sizeof(*memory->slots));
    memory->places = calloc(cluster->cta_count, sizeof(*memory->places));
    if (memory->slots == NULL || memory->places == NULL) {
        free(memory->slots);
        free(memory->places);
        free(memory);
        return NULL;
    }
    for (uint32_t i = 0; i < memory->slot_count; i++) {
        memory->slots[i].sync = memory->slots[i].floor = 1;
    }
    memory->outside = memory->warp_slots - 1;
    memory->taken = memory->warp_slots - 2;
    memory->waited = memory->warp_slots - 3;
    cluster->race = memory;
    return memory;
}

struct clock *clock_make(struct cluster *cluster) {
    if ((cluster->launch->checks & VGPU_CHECK_RACE) == 0) {
        return NULL;
    }
    struct cluster_race *memory = race_of_cluster(cluster);
    if (memory == NULL) {
        return NULL;
    }
    const size_t slots = memory->slot_count;
    struct clock *clock = calloc(1, sizeof(*clock) + 3 * slots * sizeof(clock->seen[0]));
    if (clock != NULL) {
        clock->memory = memory;
        clock->id = ++memory->clock_count;
        clock->fenced = clock->seen + slots;
        clock->published = clock->fenced + slots;
    }
    return clock;
}

void clock_free(struct clock *clock) {
    free(clock);
}

void clock_clear(struct clock *clock) {
    if (clock != NULL) {
        memset(clock->seen, 0, 3 * (size_t)clock->memory->slot_count * sizeof(clock->seen[0]));
    }
}

void clock_copy(struct clock *to, const struct clock *from) {
    if (to != NULL && from != NULL) {
        memcpy(to->seen, from->seen, 3 * (size_t)to->memory->slot_count * sizeof(to->seen[0]));
    }
}

static void join_stamps(uint32_t *into, const uint32_t *from, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        into[i] = largest(into[i], from[i]);
    }
}

void clock_join(struct clock *into, const struct clock *from) {
    if (into != NULL && from != NULL) {
        join_stamps(into->seen, from->seen, 3 * into->memory->slot_count);
    }
}

/* Everything of the other slots that the warp has not seen has a stamp that is at least this. */
static uint32_t floor_of(const struct cluster_race *memory, const struct warp *warp) {
    uint32_t floor = memory->time;
    for (uint32_t i = 0; i < memory->slot_count; i++) {
        const struct slot *slot = &memory->slots[i];
        if (i == warp->agent_index) {
            continue;
        }
        uint32_t bound = warp->clock->seen[i] + 1;
        if (warp->clock->seen[i] >= slot->released) {
            bound = slot->start == 0 ? memory->time : slot->start;
        }
        floor = bound < floor ? bound : floor;
    }
    return floor;
}

/* What the lanes did so far is ordered before what any of them does next. */
static void begin_epoch(struct warp *warp) {
    struct cluster_race *memory = warp->clock->memory;
    struct slot *slot = &memory->slots[warp->agent_index];
    slot->sync = time_next(memory);
    slot->floor = floor_of(memory, warp);
}

/* As far as others are concerned; the lanes are not ordered among themselves. */
static void set_floor(struct warp *warp) {
    struct slot *slot = &warp->clock->memory->slots[warp->agent_index];
    const uint32_t floor = floor_of(warp->clock->memory, warp);
    slot->floor = floor < slot->sync ? floor : slot->sync;
}

/* What the warp did so far is ordered before every later acquire of its clock. */
static void stamp_release(struct warp *warp) {
    struct cluster_race *memory = warp->clock->memory;
    struct slot *slot = &memory->slots[warp->agent_index];
    warp->clock->seen[warp->agent_index] = slot->released = memory->time;
    slot->start = 0;
}

/* The relaxed reads so far have become acquires. */
static void take_pending(struct warp *warp, bool wide) {
    struct cluster_race *memory = warp->clock->memory;
    struct slot *slot = &memory->slots[warp->agent_index];
    if (slot->pending != NULL) {
        join_stamps(warp->clock->seen, slot->pending->seen, 2 * memory->slot_count);
    }
    if (slot->pending_outside && wide) {
        warp->clock->seen[memory->outside] = 1;
        slot->pending_outside = false;
    }
}

void clock_release(struct clock *into, struct warp *warp) {
    if (warp->clock == NULL) {
        return;
    }
    take_pending(warp, true);
    stamp_release(warp);
    clock_join(into, warp->clock);
    begin_epoch(warp);
}

void clock_release_fenced(struct clock *into, struct warp *warp) {
    if (warp->clock != NULL && into != NULL) {
        join_stamps(into->seen, warp->clock->published, into->memory->slot_count);
        join_stamps(into->fenced, warp->clock->fenced, into->memory->slot_count);
    }
}

void clock_acquire(struct warp *warp, const struct clock *from) {
    if (warp->clock != NULL && from != NULL) {
        clock_join(warp->clock, from);
        begin_epoch(warp);
    }
}

void clock_warp_sync(struct warp *warp) {
    if (warp->clock != NULL) {
        begin_epoch(warp);
    }
}

void clock_proxy_fence(struct warp *warp) {
    if (warp->clock == NULL) {
        return;
    }
    struct cluster_race *memory = warp->clock->memory;
    for (uint32_t i = 0; i < memory->slot_count; i++) {
        warp->clock->fenced[i] = largest(warp->clock->fenced[i], warp->clock->seen[i]);
    }
    warp->clock->fenced[warp->agent_index] = memory->time;
    time_next(memory);
}

void clock_grid_wait(struct warp *warp) {
    if (warp->clock != NULL) {
        struct cluster_race *memory = warp->clock->memory;
        memory->waits = true;
        warp->clock->seen[memory->waited] = 1;
    }
}

void clock_grid_signal(struct warp *warp) {
    if (warp->clock != NULL) {
        struct cluster_race *memory = warp->clock->memory;
        memory->signals_early |= warp->clock->seen[memory->waited] == 0;
    }
}

/* ---- strong accesses ------------------------------------------------------------------------- */

/* From here on the warp's relaxed writes release all that it did and acquired so far. */
static void publish(struct warp *warp, bool wide) {
    struct cluster_race *memory = warp->clock->memory;
    stamp_release(warp);
    join_stamps(warp->clock->published, warp->clock->seen, memory->slot_count);
    memory->fenced = true;
    if (wide && memory->wide == NULL) {
        memory->wide = calloc(2 * (size_t)memory->slot_count, sizeof(memory->wide[0]));
        memory->handed_on = memory->wide != NULL ? memory->wide + memory->slot_count : NULL;
    }
    if (wide && memory->wide != NULL) {
        join_stamps(memory->wide, warp->clock->seen, memory->slot_count);
    }
    time_next(memory);
    set_floor(warp);
}

void clock_fence(struct warp *warp, bool wide) {
    __sync_synchronize(); /* other clusters run on other threads of the host */
    if (warp->clock != NULL) {
        take_pending(warp, wide);
        publish(warp, wide);
    }
}

static bool is_outside(const struct warp *warp, const struct access *access, uint64_t address) {
    const struct device_memory *memory = warp->cta->launch->gpu->memory;
    return access->space == PTX_GLOBAL ||
           (access->space == SPACE_GENERIC && address - (uintptr_t)memory->base < memory->bytes);
}

static struct clock **clock_of_word(struct cluster_race *memory, uint64_t address) {
    const uint32_t hash = (uint32_t)(address / 4) * 0x9e3779b1U;
    return &memory->words[hash / (UINT32_MAX / WORD_CLOCKS + 1)];
}

void order_read(struct warp *warp, const struct op *op, const struct access *access,
                uint32_t order) {
    if (warp->clock == NULL || access->mask == 0) {
        return;
    }
    struct cluster_race *memory = warp->clock->memory;
    struct slot *slot = &memory->slots[warp->agent_index];
    const uint64_t first = access->address[__builtin_ctz(access->mask)];
    if ((order & ORDER_WIDE) != 0 && is_outside(warp, access, first)) {
        memory->meets_others = true;
        slot->pending_outside = true;
        if ((op->flags & OP_TAKES) != 0) {
            warp->clock->seen[memory->taken] = 1; /* no fence: the data are the order */
        }
    }
    uint64_t last = ~first;
    for (uint32_t rest = access->mask; rest != 0; rest &= rest - 1) {
        const uint64_t address = access->address[__builtin_ctz(rest)];
        const struct clock *clock = address != last ? *clock_of_word(memory, address) : NULL;
        last = address;
        if (clock == NULL) {
            continue;
        }
        if (slot->pending == NULL) {
            slot->pending = clock_make(memory->cluster);
        }
        clock_join(slot->pending, clock);
    }
    if ((order & ORDER_ACQUIRE) != 0) {
        take_pending(warp, (order & ORDER_WIDE) != 0);
        set_floor(warp);
    }
}

/* A write that other clusters may acquire. */
static void hand_on(struct warp *warp) {
    struct cluster_race *memory = warp->clock->memory;
    for (uint32_t i = 0; i < memory->slot_count; i++) {
        const uint32_t mine = warp->clock->published[i], wide = memory->wide[i];
        memory->handed_on[i] = largest(memory->handed_on[i], mine < wide ? mine : wide);
    }
}

/* A write that what happened before may have decided. */
static void give(struct warp *warp) {
    struct cluster_race *memory = warp->clock->memory;
    if (memory->given == NULL) {
        memory->given = calloc(memory->slot_count, sizeof(memory->given[0]));
    }
    if (memory->given == NULL) {
        return;
    }
    memory->meets_others = true;
    join_stamps(memory->given, warp->clock->seen, memory->slot_count);
    memory->given[warp->agent_index] = memory->time;
    time_next(memory);
}

void order_write(struct warp *warp, const struct op *op, const struct access *access,
                 uint32_t order) {
    if (warp->clock == NULL || access->good == 0) {
        return;
    }
    if ((op->flags & OP_GIVES) != 0) {
        give(warp);
    }
    const bool releases = (order & ORDER_RELEASE) != 0;
    struct cluster_race *memory = warp->clock->memory;
    if (!releases && !memory->fenced) {
        return;
    }
    if (releases) {
        publish(warp, (order & ORDER_WIDE) != 0);
    }
    const uint64_t first = access->address[__builtin_ctz(access->good)];
    if ((order & ORDER_WIDE) != 0 && memory->wide != NULL && is_outside(warp, access, first)) {
        memory->meets_others = true;
        hand_on(warp);
    }
    uint64_t last = ~first;
    for (uint32_t rest = access->good; rest != 0; rest &= rest - 1) {
        const uint64_t address = access->address[__builtin_ctz(rest)];
        struct clock **clock = clock_of_word(memory, address);
        if (address != last && *clock == NULL) {
            *clock = clock_make(memory->cluster);
        }
        if (address != last) {
            clock_release_fenced(*clock, warp);
        }
        last = address;
    }
    begin_epoch(warp);
}

/* ---- agents ---------------------------------------------------------------------------------- */

struct agent *agent_start(struct warp *warp, const struct op *op) {
    if (warp->clock == NULL) {
        return NULL;
    }
    struct agent *agent = calloc(1, sizeof(*agent));
    if (agent == NULL) {
        return NULL;
    }
    struct cluster_race *memory = warp->clock->memory;
    *agent = (struct agent){.memory = memory, .warp = warp, .op = op, .next = memory->agents};
    if (memory->agents != NULL) {
        memory->agents->previous = agent;
    }
    memory->agents = agent;
    return agent;
}

static void agent_free(struct agent *agent) {
    if (agent->previous != NULL) {
        agent->previous->next = agent->next;
    } else {
        agent->memory->agents = agent->next;
    }
    if (agent->next != NULL) {
        agent->next->previous = agent->previous;
    }
    free(agent->flights);
    free(agent);
}

/* The slot of completions into this clock; those into none share the last slot, which no warp ever
 * acquires. */
static uint32_t engine_slot(struct cluster_race *memory, const struct clock *into) {
    const uint32_t last = ENGINE_SLOTS - 1;
    if (into == NULL) {
        return memory->warp_slots + last;
    }
    for (uint32_t i = 0; i < last && i < memory->engine_count; i++) {
        if (memory->engines[i] == into->id) {
            return memory->warp_slots + i;
        }
    }
    const uint32_t slot = memory->engine_count++ % last;
    memory->engines[slot] = into->id;
    return memory->warp_slots + slot;
}

void agent_finish(struct agent *agent, struct clock *into) {
    if (agent == NULL) {
        return;
    }
    struct cluster_race *memory = agent->memory;
    const uint32_t slot = engine_slot(memory, into);
    const uint32_t stamp = memory->time;
    race_land(agent, slot, stamp);
    if (into != NULL) {
        memory->slots[slot].released = into->seen[slot] = into->fenced[slot] = stamp;
    } else if (memory->slots[slot].start == 0) {
        memory->slots[slot].start = stamp;
    }
    time_next(memory);
    agent_free(agent);
}

void agent_finish_for_warp(struct agent *agent, struct warp *warp) {
    if (agent == NULL) {
        return;
    }
    struct cluster_race *memory = agent->memory;
    struct slot *slot = &memory->slots[warp->agent_index];
    if (slot->start == 0) {
        slot->start = memory->time;
    }
    race_land(agent, warp->agent_index, memory->time);
    agent_free(agent);
}
