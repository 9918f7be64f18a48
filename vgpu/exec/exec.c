/* SPDX-License-Identifier: Apache-2.0
 *
 * exec.c - a cluster: warps run in turn; asynchronous operations complete when no warp can run (or
 * at random); if then still no warp can run, it is a deadlock.
 *
 * Invariant: the schedule depends on the cluster and its seed only, so that a run can be repeated.
 * A deadlock is reported only if no thread of the cluster can ever proceed.
 */
#include "exec/exec.h"

#include <stdio.h>
#include <string.h>

#include "async/async.h"
#include "machine/describe.h"
#include "ops/ops.h"
#include "report/finding.h"

enum {
    QUANTUM = 8192,       /* instructions of a warp before the next one has its turn */
    RANDOM_QUANTUM = 512, /* at most, where the order is random */
    PATIENCE = 32,        /* turns of all warps before an operation completes although they run:
                               they may be waiting for it in a loop of their own */
    HELD_SELDOM = 16,     /* rounds between holds, on average, where the order is random */
    HELD_ROUNDS = 512,    /* at most */
    HELD_WARPS = 4,       /* a warpgroup, where there are more warps */
    MANY_POLLS = 1024,    /* it may wait in a loop for what another cluster writes */
    MAX_WAITS = 16        /* described in a deadlock report */
};

/* ---- deadlocks ---- */

/* Some group of a warp that waits. */
struct wait {
    struct warp *warp;
    const struct group *group;
    uint32_t first, last; /* warps of the CTA that wait alike */
};

static bool waits_alike(const struct wait *wait, const struct warp *warp,
                        const struct group *group) {
    return wait->warp->cta == warp->cta && wait->last + 1 == warp->index &&
           wait->group->waits_at == group->waits_at && wait->group->waits_on == group->waits_on;
}

static uint32_t collect_waits(struct cluster *cluster, struct wait *waits) {
    uint32_t count = 0;
    for (uint32_t c = 0; c < cluster->cta_count; c++) {
        for (uint32_t w = 0; w < cluster->ctas[c].warp_count; w++) {
            struct warp *warp = &cluster->ctas[c].warps[w];
            for (uint32_t g = 0; g < warp->group_count; g++) {
                const struct group *group = &warp->groups[g];
                if (count > 0 && waits_alike(&waits[count - 1], warp, group)) {
                    waits[count - 1].last = w;
                } else if (count < MAX_WAITS) {
                    waits[count++] = (struct wait){warp, group, w, w};
                }
            }
        }
    }
    return count;
}

static size_t describe_wait(const struct wait *wait, bool with_cta, char *buffer, size_t size) {
    char place[128], what[128], warps[48], cta[32] = "";
    if (wait->group->waits_on != NULL) {
        barrier_describe(wait->warp, wait->group->waits_on, what, sizeof what);
    } else {
        snprintf(what, sizeof what, "%s",
                 wait->group->waits_for ? wait->group->waits_for : "other lanes of its warp");
    }
    if (wait->first == wait->last) {
        snprintf(warps, sizeof warps, "warp %u", wait->first);
    } else {
        snprintf(warps, sizeof warps, "warps %u to %u", wait->first, wait->last);
    }
    if (with_cta) {
        snprintf(cta, sizeof cta, " of CTA %u", wait->warp->cta->linear);
    }
    const int n =
        snprintf(buffer, size, "%s%s at %s: %s", warps, cta,
                 describe_op(wait->warp, wait->group->waits_at, place, sizeof place), what);
    return n > 0 && (size_t)n < size ? (size_t)n : size - 1;
}

/* One finding for each instruction at which a group waits; each lists all of them. */
static void report_deadlock(struct cluster *cluster) {
    struct wait waits[MAX_WAITS];
    const uint32_t count = collect_waits(cluster, waits);
    char text[1024];
    size_t used = 0;
    for (uint32_t i = 0; i < count && used + 2 < sizeof text; i++) {
        if (i > 0) {
            text[used++] = ';';
            text[used++] = ' ';
        }
        used += describe_wait(&waits[i], cluster->cta_count > 1, text + used, sizeof text - used);
    }
    for (uint32_t i = 0; i < count; i++) {
        bool seen = false;
        for (uint32_t j = 0; j < i; j++) {
            seen = seen || waits[j].group->waits_at == waits[i].group->waits_at;
        }
        if (!seen) {
            warp_enter(waits[i].warp, waits[i].group->frame);
            report(waits[i].warp, waits[i].group->waits_at, FINDING_DEADLOCK, waits[i].group->mask,
                   NULL, "no thread can proceed: %s", text);
        }
    }
}

/* ---- turns ---- */

/* Instructions that the next warp may execute; 0: the limit of the cluster is reached. */
static uint32_t quantum_of(struct cluster *cluster) {
    const uint64_t limit = resident_of(cluster)->limit;
    const uint64_t left = limit == 0               ? UINT64_MAX
                          : limit > cluster->steps ? limit - cluster->steps
                                                   : 0;
    const uint32_t quantum = cluster->launch->async != VGPU_ASYNC_RANDOM
                                 ? QUANTUM
                                 : 1 + (uint32_t)(cluster_random(cluster) % RANDOM_QUANTUM);
    return left < quantum ? (uint32_t)left : quantum;
}

/* Under the random policy, some warps are delayed at times, for some rounds or until no other warp
 * can run. This exposes code that relies on lockstep warps. */
static void delay_warps(struct cluster *cluster) {
    if (cluster->launch->async != VGPU_ASYNC_RANDOM) {
        return;
    }
    if (cluster->held_rounds > 0) {
        cluster->held_rounds--;
    } else if (cluster_random(cluster) % HELD_SELDOM == 0) {
        cluster->held_cta = (uint32_t)(cluster_random(cluster) % cluster->cta_count);
        const uint32_t warps = cluster->ctas[cluster->held_cta].warp_count;
        const uint32_t together = warps > HELD_WARPS ? HELD_WARPS : 1;
        const uint32_t first = (uint32_t)(cluster_random(cluster) % warps);
        cluster->held_first = first - first % together;
        cluster->held_end = cluster->held_first + together;
        cluster->held_rounds = 1 + (uint32_t)(cluster_random(cluster) % HELD_ROUNDS);
    }
}

static bool is_held(const struct cluster *cluster, uint32_t cta, uint32_t warp) {
    return cluster->held_rounds > 0 && cta == cluster->held_cta && warp >= cluster->held_first &&
           warp < cluster->held_end;
}

/* Every warp that can runs for a quantum; false: none could. */
static bool run_round(struct cluster *cluster) {
    bool ran = false;
    delay_warps(cluster);
    for (uint32_t c = 0; c < cluster->cta_count; c++) {
        struct cta *cta = &cluster->ctas[c];
        for (uint32_t w = 0; w < cta->warp_count && !cluster->stop; w++) {
            if (!warp_ready(&cta->warps[w]) || is_held(cluster, c, w)) {
                continue;
            }
            warp_run(&cta->warps[w], quantum_of(cluster));
            ran = true;
            if (cluster->launch->async == VGPU_ASYNC_RANDOM && cluster_random(cluster) % 4 == 0 &&
                async_complete_one(cluster)) {
                cluster->progress = true;
            }
        }
    }
    return ran;
}

static bool retry_all(struct cluster *cluster) {
    bool any = false;
    for (uint32_t c = 0; c < cluster->cta_count; c++) {
        for (uint32_t w = 0; w < cluster->ctas[c].warp_count; w++) {
            any = warp_retry(&cluster->ctas[c].warps[w]) || any;
        }
    }
    return any;
}

static bool force_one(struct cluster *cluster) {
    for (uint32_t c = 0; c < cluster->cta_count; c++) {
        for (uint32_t w = 0; w < cluster->ctas[c].warp_count; w++) {
            if (warp_force(&cluster->ctas[c].warps[w])) {
                return true;
            }
        }
    }
    return false;
}

static struct warp *first_alive(const struct cluster *cluster) {
    for (uint32_t c = 0; c < cluster->cta_count; c++) {
        for (uint32_t w = 0; w < cluster->ctas[c].warp_count; w++) {
            if (warp_alive(&cluster->ctas[c].warps[w]) != 0) {
                return &cluster->ctas[c].warps[w];
            }
        }
    }
    return NULL;
}

static void report_steps(struct cluster *cluster, struct warp *warp) {
    const struct group *group = &warp->groups[0];
    const struct kernel *kernel = group->frame->kernel;
    const uint32_t pc = group->pc < kernel->code_count ? group->pc : kernel->code_count - 1;
    warp_enter(warp, group->frame);
    report(warp, &kernel->code[pc], FINDING_STEPS, group->mask, NULL,
           "the limit of %llu warp instructions is reached and the kernel has not ended: an "
           "endless loop, or a wait for something that never comes",
           (unsigned long long)cluster->launch->max_steps);
}

bool cluster_run(struct cluster *cluster, uint64_t steps) {
    const uint64_t until = cluster->steps + steps, limit = resident_of(cluster)->limit;
    while (!cluster->stop) {
        const bool ran = run_round(cluster);
        if (++resident_of(cluster)->rounds % PATIENCE == 0 && async_complete_one(cluster)) {
            cluster->progress = true;
        }
        struct warp *alive = first_alive(cluster);
        if (alive == NULL || cluster->stop) {
            return true;
        }
        if (limit != 0 && cluster->steps >= limit) {
            report_steps(cluster, alive);
            cluster_stop(cluster);
            return true;
        }
        if (cluster->progress) {
            cluster->progress = false;
            if (retry_all(cluster)) {
                continue;
            }
        }
        if (!ran) {
            if (async_complete_one(cluster)) {
                cluster->progress = true;
                retry_all(cluster);
            } else if (cluster->held_rounds > 0) {
                cluster->held_rounds = 0;
            } else if (!force_one(cluster)) {
                report_deadlock(cluster);
                cluster_stop(cluster);
            }
        }
        if (cluster->steps >= until || cluster->polls >= MANY_POLLS) {
            cluster->polls = 0;
            return cluster->stop;
        }
    }
    return true;
}
