/* SPDX-License-Identifier: Apache-2.0
 *
 * clock.c - vector clocks over the warps of a cluster and its engines, and asynchronous agents. See
 * memory.h for what time is.
 *
 * Completions get slots by the clock that they are released into (an mbarrier has one): whoever
 * acquires that clock is ordered after the completions into it, and after no others.
 *
 * Invariant: seen[s] of any clock is at most slots[s].released; so an access with the stamp of now
 * is ordered before nobody but its own warp.
 */
#include <stdlib.h>
#include <string.h>

#include "memory.h"

static uint32_t largest(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}

struct cluster_memory *cluster_memory(struct cluster *cluster) {
    if (cluster->global != NULL) {
        return cluster->global;
    }
    struct cluster_memory *memory = calloc(1, sizeof(*memory));
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
    cluster->global = memory;
    return memory;
}

struct clock *clock_make(struct cluster *cluster) {
    if ((cluster->launch->checks & VGPU_CHECK_RACE) == 0) {
        return NULL;
    }
    struct cluster_memory *memory = cluster_memory(cluster);
    if (memory == NULL) {
        return NULL;
    }
    const size_t slots = memory->slot_count;
    struct clock *clock = calloc(1, sizeof(*clock) + 2 * slots * sizeof(clock->seen[0]));
    if (clock != NULL) {
        clock->memory = memory;
        clock->id = ++memory->clock_count;
        clock->fenced = clock->seen + slots;
    }
    return clock;
}

void clock_free(struct clock *clock) {
    free(clock);
}

void clock_clear(struct clock *clock) {
    if (clock != NULL) {
        memset(clock->seen, 0, 2 * (size_t)clock->memory->slot_count * sizeof(clock->seen[0]));
    }
}

void clock_copy(struct clock *to, const struct clock *from) {
    if (to != NULL && from != NULL) {
        memcpy(to->seen, from->seen, 2 * (size_t)to->memory->slot_count * sizeof(to->seen[0]));
    }
}

void clock_join(struct clock *into, const struct clock *from) {
    if (into == NULL || from == NULL) {
        return;
    }
    const uint32_t count = 2 * into->memory->slot_count;
    for (uint32_t i = 0; i < count; i++) {
        into->seen[i] = largest(into->seen[i], from->seen[i]);
    }
}

/* Everything of the other slots that the warp has not seen has a stamp that is at least this. */
static uint32_t floor_of(const struct cluster_memory *memory, const struct warp *warp) {
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
    struct cluster_memory *memory = warp->clock->memory;
    struct slot *slot = &memory->slots[warp->agent_index];
    slot->sync = time_next(memory);
    slot->floor = floor_of(memory, warp);
}

void clock_release(struct clock *into, struct warp *warp) {
    if (warp->clock == NULL) {
        return;
    }
    struct cluster_memory *memory = warp->clock->memory;
    struct slot *slot = &memory->slots[warp->agent_index];
    warp->clock->seen[warp->agent_index] = slot->released = memory->time;
    slot->start = 0;
    clock_join(into, warp->clock);
    begin_epoch(warp);
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
    struct cluster_memory *memory = warp->clock->memory;
    for (uint32_t i = 0; i < memory->slot_count; i++) {
        warp->clock->fenced[i] = largest(warp->clock->fenced[i], warp->clock->seen[i]);
    }
    warp->clock->fenced[warp->agent_index] = memory->time;
    time_next(memory);
}

void word_sync(struct warp *warp, const uint64_t *addresses, uint32_t mask, bool acquires,
               bool releases) {
    if (warp->clock == NULL) {
        return;
    }
    struct cluster_memory *memory = warp->clock->memory;
    uint32_t words = 0;
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        words |= 1U << (addresses[__builtin_ctz(rest)] / 4 % WORD_CLOCKS);
    }
    for (uint32_t rest = words; rest != 0; rest &= rest - 1) {
        struct clock **clock = &memory->words[__builtin_ctz(rest)];
        if (*clock == NULL) {
            *clock = clock_make(memory->cluster);
        }
        if (acquires) {
            clock_join(warp->clock, *clock);
        }
    }
    if (acquires) {
        memory->slots[warp->agent_index].floor = floor_of(memory, warp);
    }
    for (uint32_t rest = releases ? words : 0; rest != 0; rest &= rest - 1) {
        clock_release(memory->words[__builtin_ctz(rest)], warp);
    }
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
    struct cluster_memory *memory = warp->clock->memory;
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

/* The slot of completions into this clock; those into none share the last slot, which nobody ever
 * acquires. */
static uint32_t engine_slot(struct cluster_memory *memory, const struct clock *into) {
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
    struct cluster_memory *memory = agent->memory;
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
    struct cluster_memory *memory = agent->memory;
    struct slot *slot = &memory->slots[warp->agent_index];
    if (slot->start == 0) {
        slot->start = memory->time;
    }
    race_land(agent, warp->agent_index, memory->time);
    agent_free(agent);
}
