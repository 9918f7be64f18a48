/* SPDX-License-Identifier: Apache-2.0
 *
 * livelock.c - loops that wait for a value in memory which nothing will write: a flag that is never
 * set, a lock that is not released, a barrier of the grid that some CTAs leave out.
 *
 * A cluster that has run for long is probed: each of its warps that can run is executed one
 * instruction at a time until its registers are what they were before. If it only read memory on
 * the way, it will do the same for ever unless memory changes. launch.c knows when this is so of
 * all clusters; then none of them can change memory.
 *
 * Invariant: a warp is only said to spin if no instruction of its loop can change anything that
 * another thread sees. Loops that look at clocks, or call functions, are not looked at.
 */
#include <stdlib.h>
#include <string.h>

#include "async/async.h"
#include "exec/exec.h"
#include "report/finding.h"

enum { PROBE_STEPS = 1 << 14 };

/* What an instruction of a waiting loop may be; atom: if it leaves what is there. */
static bool is_harmless(const struct ptx_instruction *in) {
    static const char *const NAMES[] = {
        "ld",   "ldu",  "atom", "fence", "membar", "nanosleep", "bra",       "setp", "set",
        "selp", "slct", "mov",  "add",   "sub",    "mul",       "mad",       "and",  "or",
        "xor",  "not",  "shl",  "shr",   "shf",    "cvt",       "cvta",      "min",  "max",
        "neg",  "abs",  "popc", "clz",   "bfind",  "bfe",       "bfi",       "lop3", "prmt",
        "vote", "shfl", "brev", "redux", "elect",  "match",     "activemask"};
    for (size_t i = 0; i < sizeof NAMES / sizeof NAMES[0]; i++) {
        if (strcmp(in->opcode, NAMES[i]) == 0) {
            return true;
        }
    }
    return strcmp(in->opcode, "bar") == 0 && ptx_has(in, "warp");
}

/* The only group of the warp that can run; NULL: there are several, or they are in a function. */
static const struct group *only_group(const struct warp *warp) {
    const struct group *found = NULL;
    for (uint32_t i = 0; i < warp->group_count; i++) {
        const struct group *group = &warp->groups[i];
        if (group->state == GROUP_READY) {
            if (found != NULL || group->frame->parent != NULL) {
                return NULL;
            }
            found = group;
        }
    }
    return found;
}

struct state {
    uint32_t pc, mask;
    size_t bytes;
    unsigned char *registers;
};

static void remember(struct state *state, const struct group *group) {
    state->pc = group->pc;
    state->mask = group->mask;
    memcpy(state->registers, group->frame->rows, state->bytes);
}

static bool is_same(const struct state *state, const struct group *group) {
    return state->pc == group->pc && state->mask == group->mask &&
           memcmp(state->registers, group->frame->rows, state->bytes) == 0;
}

static bool has_same_state_again(struct warp *warp, struct state *state) {
    const struct cluster *cluster = warp->cta->cluster;
    uint32_t next = 1;
    const struct group *group = only_group(warp);
    for (uint32_t step = 0; step < PROBE_STEPS && group != NULL; step++) {
        const struct kernel *kernel = group->frame->kernel;
        if (group->pc >= kernel->code_count || !is_harmless(kernel->code[group->pc].in)) {
            return false;
        }
        if (step + 1 == next) {
            remember(state, group);
            next *= 2;
        }
        warp_run(warp, 1);
        group = only_group(warp);
        if (cluster->stop || cluster->changed) {
            return false;
        }
        if (group != NULL && is_same(state, group)) {
            return true;
        }
    }
    return false;
}

static bool spins(struct warp *warp) {
    const struct group *group = only_group(warp);
    if (group == NULL || group->frame->clocks || warp->wgmma_busy != 0) {
        return false;
    }
    struct state state = {.bytes = frame_bytes(group->frame->kernel)};
    state.registers = malloc(state.bytes);
    const bool found = state.registers != NULL && has_same_state_again(warp, &state);
    free(state.registers);
    return found;
}

bool cluster_spins(struct cluster *cluster) {
    bool any = false, all = true;
    cluster->probed = true;
    cluster->changed = false;
    for (uint32_t c = 0; c < cluster->cta_count; c++) {
        for (uint32_t w = 0; w < cluster->ctas[c].warp_count && all; w++) {
            struct warp *warp = &cluster->ctas[c].warps[w];
            if (warp_alive(warp) != 0 && warp_ready(warp)) {
                all = spins(warp);
                any = true;
            }
        }
    }
    cluster->probed = false;
    if (any && all && async_complete_one(cluster)) { /* they may wait for that */
        cluster->progress = true;
        return false;
    }
    return any && all;
}

void cluster_report_spins(struct cluster *cluster, uint32_t clusters) {
    for (uint32_t c = 0; c < cluster->cta_count; c++) {
        for (uint32_t w = 0; w < cluster->ctas[c].warp_count; w++) {
            struct warp *warp = &cluster->ctas[c].warps[w];
            const struct group *group = warp_ready(warp) ? only_group(warp) : NULL;
            if (group != NULL) {
                warp_enter(warp, group->frame);
                report(
                    warp, &group->frame->kernel->code[group->pc], FINDING_DEADLOCK, group->mask,
                    NULL,
                    "no thread can proceed: this loop ends only if memory changes, and no thread "
                    "will change it; all %u %s that have not ended are in such loops, or wait",
                    clusters, cluster->cta_count > 1 ? "clusters" : "CTAs");
            }
        }
    }
}
