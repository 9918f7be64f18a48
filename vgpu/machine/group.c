/* SPDX-License-Identifier: Apache-2.0
 *
 * group.c - groups of lanes of a warp: how they split, wait and end.
 *
 * Invariant: a group that waits knows the op it waits at; warp->running is NO_GROUP as soon as the
 * running group stops.
 */
#include "machine/machine.h"

void warp_remove_group(struct warp *warp, uint32_t index) {
    const uint32_t last = --warp->group_count;
    if (index != last) {
        warp->groups[index] = warp->groups[last];
        if (warp->running == last) {
            warp->running = index;
        }
    }
}

/* A copy of the running group for some of its lanes; they are no longer of the running group. */
static struct group *split_off(struct warp *warp, uint32_t lanes, uint32_t pc) {
    struct group *group = &warp->groups[warp->group_count++];
    *group = warp->groups[warp->running];
    group->mask = lanes;
    group->pc = pc;
    group->state = GROUP_READY;
    group->forced = false;
    warp->active &= ~lanes;
    warp->groups[warp->running].mask = warp->active;
    return group;
}

void warp_split(struct warp *warp, uint32_t lanes) {
    split_off(warp, lanes, warp->pc + 1);
}

void warp_again(struct warp *warp, uint32_t lanes) {
    split_off(warp, lanes, warp->pc);
    warp->executing &= ~lanes;
}

void warp_lag(struct warp *warp, uint32_t lanes) {
    split_off(warp, lanes, warp->pc)->turns++;
    warp->executing &= ~lanes;
}

static void wait_with(struct warp *warp, struct group *group, enum group_state state) {
    group->state = state;
    group->waits_at = &warp->kernel->code[warp->pc];
    group->waits_on = NULL;
    group->waits_for = NULL;
    group->polls = false;
    group->forced = false;
}

/* The lanes that execute the op become a group that does not run; the others run on. */
static struct group *stop_executing(struct warp *warp, enum group_state state) {
    if (warp->executing != warp->active) {
        split_off(warp, warp->active & ~warp->executing, warp->pc + 1);
    }
    struct group *group = &warp->groups[warp->running];
    group->pc = warp->next;
    wait_with(warp, group, state);
    warp->running = NO_GROUP;
    return group;
}

void warp_block(struct warp *warp, bool polls, const char *waits_for) {
    struct group *group = stop_executing(warp, GROUP_BLOCKED);
    group->polls = polls;
    group->waits_for = waits_for;
}

void warp_block_at(struct warp *warp, const struct barrier *barrier) {
    stop_executing(warp, GROUP_BLOCKED)->waits_on = barrier;
}

void warp_park(struct warp *warp, uint32_t lanes, uint32_t wanted) {
    struct group *group;
    if (lanes == warp->active) {
        group = &warp->groups[warp->running];
        group->pc = warp->pc;
        warp->running = NO_GROUP;
    } else {
        group = split_off(warp, lanes, warp->pc);
        warp->executing &= ~lanes;
    }
    wait_with(warp, group, GROUP_PARKED);
    group->wanted = wanted;
}

void warp_wake(struct warp *warp, const struct op *op) {
    for (uint32_t i = 0; i < warp->group_count; i++) {
        struct group *group = &warp->groups[i];
        if (group->state == GROUP_BLOCKED && !group->polls && group->waits_at == op) {
            group->state = GROUP_READY;
        }
    }
}

void warp_branch(struct warp *warp, uint32_t taken, uint32_t target) {
    if (taken == warp->active) {
        warp->next = target;
    } else if (taken != 0) {
        split_off(warp, taken, target);
    }
}

void warp_exit(struct warp *warp, uint32_t lanes) {
    frame_leave(warp->frame, lanes, NULL);
    warp->exited |= lanes;
    warp->active &= ~lanes;
    if (warp->active == 0) {
        const uint32_t gone = warp->running;
        warp->running = NO_GROUP;
        warp_remove_group(warp, gone);
    } else {
        warp->groups[warp->running].mask = warp->active;
    }
}

void warp_yield(struct warp *warp) {
    warp->groups[warp->running].turns++;
    warp->groups[warp->running].pc = warp->next;
    warp->running = NO_GROUP;
}

bool warp_ready(const struct warp *warp) {
    for (uint32_t i = 0; i < warp->group_count; i++) {
        if (warp->groups[i].state == GROUP_READY) {
            return true;
        }
    }
    return false;
}

bool warp_retry(struct warp *warp) {
    bool any = false;
    for (uint32_t i = 0; i < warp->group_count; i++) {
        struct group *group = &warp->groups[i];
        if (group->state == GROUP_BLOCKED && group->polls) {
            group->state = GROUP_READY;
            any = true;
        }
    }
    return any;
}
