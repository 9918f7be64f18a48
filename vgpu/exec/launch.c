/* SPDX-License-Identifier: Apache-2.0
 *
 * launch.c - a launch: its clusters, spread over host threads.
 *
 * A thread runs a cluster for a time slice. Then it starts another one if there is room (a cluster
 * may spin until another one writes), else it continues the one that has waited longest. Finished
 * clusters are merged strictly in order: findings, counts, printed text, accesses to global memory.
 * After a fault, later clusters are dropped and earlier ones run to their end.
 *
 * Invariant: the results of a launch do not depend on the number of threads, except by the order in
 * which clusters write the same global memory.
 */
#include "exec/exec.h"
#include "exec/progress.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "machine/device.h"
#include "machine/status.h"
#include "race/race.h"
#include "report/finding.h"
#include "report/perf.h"
#include "report/record.h"

enum {
    MAX_HOST_THREADS = 64,
    WINDOW = 4096,   /* clusters that may be begun beyond the first that is not merged */
    SLICE = 1 << 18, /* warp instructions */
    MAX_RESIDENT = 1024,
    MIN_RESIDENT = 16,
    WORKSPACE_BYTES = 64
};
#define RESIDENT_BYTES (2ULL << 30) /* memory for clusters that have begun, about */
#define FIRST_PROBE (1ULL << 21)    /* steps of a cluster */
#define GRACE (1ULL << 28) /* steps of a cluster before one that has faulted: it may wait for it */
#define NO_CLUSTER UINT64_MAX

struct schedule {
    struct launch *launch;
    struct launch unsampled; /* the same for clusters that are no part of the sample */
    uint64_t sample;         /* clusters in it */
    struct progress progress;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t count;          /* clusters */
    uint64_t next;           /* to begin */
    uint64_t merged;         /* all before it are */
    uint64_t fault;          /* the first that stopped; NO_CLUSTER: none */
    uint32_t resident, room; /* begun and not over; at most */
    uint32_t running;
    uint64_t steps; /* of those merged */
    uint64_t spent; /* of all */
    bool no_memory;
    uint64_t time;  /* grows when a cluster ran that is in no loop that waits */
    uint32_t spins; /* clusters that were found in such loops since then */
    uint32_t stuck; /* all so many are, and none can change memory; 0: they are not */
    struct resident *first, *last; /* to run on, in order */
    struct resident *done[WINDOW]; /* over, not merged: by linear % WINDOW */
};

/* ---- merging ---- */

static void merge_one(struct schedule *s, struct resident *resident) {
    vgpu *gpu = s->launch->gpu;
    struct cluster *cluster = &resident->cluster;
    race_merge_cluster(s->launch, cluster);
    perf_merge_cluster(gpu, cluster);
    findings_merge(gpu, cluster->findings);
    if (cluster->printed_size > 0) {
        fwrite(cluster->printed, 1, cluster->printed_size, stdout);
        cluster->launch->gpu->printed = true;
    }
    gpu->stats.warp_instructions += resident->stats.warp_instructions;
    gpu->stats.thread_instructions += resident->stats.thread_instructions;
    gpu->stats.tensor_instructions += resident->stats.tensor_instructions;
    s->steps += cluster->steps;
    if (cluster->linear < s->fault && s->launch->max_steps != 0 &&
        s->steps > s->launch->max_steps) {
        report_kernel(gpu, s->launch->kernel, s->launch->kernel->function->code, FINDING_STEPS,
                      "the limit of %llu warp instructions is reached and the grid has not ended",
                      (unsigned long long)s->launch->max_steps);
        s->fault = cluster->linear;
    }
    cluster_free(resident);
}

static void merge_ready(struct schedule *s) {
    while (s->merged <= s->fault && s->merged < s->count && s->done[s->merged % WINDOW] != NULL) {
        struct resident *resident = s->done[s->merged % WINDOW];
        s->done[s->merged % WINDOW] = NULL;
        s->merged++;
        merge_one(s, resident);
        progress_show(&s->progress, s->merged, s->count);
    }
}

/* ---- whose turn it is ---- */

/* Once all clusters together have done what the launch may do, only the first runs on: what is
 * reported must not depend on which of them were quick, and a grid of endless loops must end. */
static bool is_spent(const struct schedule *s) {
    return s->launch->max_steps != 0 && s->spent >= s->launch->max_steps;
}

static bool may_run(const struct schedule *s, uint64_t linear) {
    return !is_spent(s) || linear == s->merged || linear > s->fault || s->no_memory;
}

static bool can_begin(const struct schedule *s) {
    return !s->no_memory && s->next < s->count && s->next < s->fault && s->resident < s->room &&
           s->next < s->merged + WINDOW && may_run(s, s->next);
}

static void enqueue(struct schedule *s, struct resident *resident) {
    resident->next = NULL;
    *(s->last != NULL ? &s->last->next : &s->first) = resident;
    s->last = resident;
}

/* Where the next that may run hangs in the queue; NULL there: none. */
static struct resident **turn(struct schedule *s, struct resident **before) {
    struct resident **link = &s->first;
    for (*before = NULL; *link != NULL && !may_run(s, (*link)->cluster.linear);) {
        *before = *link;
        link = &(*link)->next;
    }
    return link;
}

static struct resident *dequeue(struct schedule *s) {
    struct resident *before, **link = turn(s, &before), *resident = *link;
    if (resident != NULL) {
        *link = resident->next;
        s->last = resident->next != NULL ? s->last : before;
    }
    return resident;
}

static bool has_work(struct schedule *s) {
    struct resident *before;
    return *turn(s, &before) != NULL || can_begin(s);
}

/* A cluster came to its end or to the end of its slice. */
static void put_back(struct schedule *s, struct resident *resident) {
    const uint64_t linear = resident->cluster.linear;
    if (linear > s->fault || s->no_memory) {
        s->resident--;
        cluster_free(resident);
    } else if (!resident->over) {
        enqueue(s, resident);
    } else {
        s->resident--;
        s->fault = resident->cluster.stop ? linear : s->fault;
        s->done[linear % WINDOW] = resident;
        merge_ready(s);
    }
}

/* A cluster that was found in loops that wait is only probed from then on; one that has run for
 * long is probed now and then. */
static bool probe(struct resident *resident) {
    struct cluster *cluster = &resident->cluster;
    if (!resident->spins && cluster->steps < resident->probe) {
        return false;
    }
    resident->spins = cluster_spins(cluster);
    if (!resident->spins) {
        resident->probe = 2 * cluster->steps > FIRST_PROBE ? 2 * cluster->steps : FIRST_PROBE;
    }
    return resident->spins;
}

static void run_slice(struct resident *resident, bool faulted, bool probes, uint32_t stuck) {
    struct cluster *cluster = &resident->cluster;
    if (stuck > 0) {
        cluster_report_spins(cluster, stuck);
        cluster_stop(cluster);
    } else if (probes && probe(resident)) {
        return;
    }
    resident->spins = false;
    if (faulted && cluster->steps > GRACE) {
        cluster_stop(cluster);
    }
    if (cluster_run(cluster, SLICE)) {
        cluster_end(resident);
    }
}

/* The sample is spread evenly over the grid. */
static bool is_sampled(const struct schedule *s, uint64_t linear) {
    return s->sample >= s->count || linear == 0 ||
           linear * s->sample / s->count != (linear - 1) * s->sample / s->count;
}

/* A cluster to run, with the lock held; it is given up while one is begun. NULL: none. */
static struct resident *take(struct schedule *s) {
    if (!can_begin(s)) {
        return dequeue(s);
    }
    const uint64_t linear = s->next++;
    s->resident++;
    pthread_mutex_unlock(&s->lock);
    struct resident *resident =
        cluster_begin(is_sampled(s, linear) ? s->launch : &s->unsampled, (uint32_t)linear);
    pthread_mutex_lock(&s->lock);
    if (resident == NULL) {
        s->resident--;
        s->no_memory = true;
    } else {
        resident->limit = s->launch->max_steps;
        resident->probe = FIRST_PROBE;
    }
    return resident;
}

/* The cluster ran, or was probed, from that time on. All must have been probed since one of them
 * ran: what they read until then is what they will read. */
static void note_spin(struct schedule *s, struct resident *resident, uint64_t time) {
    if (!resident->spins) {
        s->time++;
        s->spins = 0;
    } else if (time == s->time && resident->spun != s->time + 1) {
        resident->spun = s->time + 1;
        s->spins++;
    }
    if (s->spins > 0 && s->spins == s->resident && s->next == s->count && s->fault == NO_CLUSTER &&
        s->stuck == 0) {
        s->stuck = s->spins;
    }
}

static void *work(void *state) {
    struct schedule *s = state;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        s->running++;
        struct resident *resident = take(s);
        if (resident != NULL && (resident->cluster.linear > s->fault || s->no_memory)) {
            put_back(s, resident);
        } else if (resident != NULL) {
            const bool faulted = s->fault != NO_CLUSTER;
            const bool probes = !faulted && !is_spent(s); /* else it runs to its own end */
            const uint64_t before = resident->cluster.steps, time = s->time;
            const uint32_t stuck = s->stuck;
            pthread_mutex_unlock(&s->lock);
            run_slice(resident, faulted, probes, stuck);
            pthread_mutex_lock(&s->lock);
            s->spent += resident->cluster.steps - before;
            note_spin(s, resident, time);
            put_back(s, resident);
        }
        s->running--;
        pthread_cond_broadcast(&s->changed);
        while (!has_work(s)) {
            if (s->running == 0) {
                pthread_mutex_unlock(&s->lock);
                return NULL;
            }
            pthread_cond_wait(&s->changed, &s->lock);
        }
    }
}

/* ---- the launch ---- */

static uint32_t host_threads(const struct schedule *s) {
    long threads = s->launch->gpu->config.threads;
    if (threads <= 0) {
        threads = sysconf(_SC_NPROCESSORS_ONLN);
    }
    threads = threads < 1 ? 1 : threads > MAX_HOST_THREADS ? MAX_HOST_THREADS : threads;
    return (uint64_t)threads > s->count ? (uint32_t)s->count : (uint32_t)threads;
}

static uint32_t room_for(const struct launch *launch, uint32_t threads) {
    const uint32_t *block = launch->dims.block, *cluster = launch->dims.cluster;
    const uint64_t warps = (block[0] * block[1] * block[2] + LANES - 1) / LANES;
    const uint64_t cta = warps * frame_bytes(launch->kernel) +
                         16ULL * (launch->kernel->shared_static + launch->dims.shared_bytes) +
                         2ULL * LANES * warps * launch->kernel->local_bytes + (64 << 10);
    const uint64_t room = RESIDENT_BYTES / (cta * cluster[0] * cluster[1] * cluster[2]);
    const uint32_t least = threads > MIN_RESIDENT ? threads : MIN_RESIDENT;
    return room < least ? least : room > MAX_RESIDENT ? MAX_RESIDENT : (uint32_t)room;
}

static void run_threads(struct schedule *s, uint32_t threads) {
    pthread_t others[MAX_HOST_THREADS];
    uint32_t started = 0;
    while (started + 1 < threads && pthread_create(&others[started], NULL, work, s) == 0) {
        started++;
    }
    work(s);
    for (uint32_t i = 0; i < started; i++) {
        pthread_join(others[i], NULL);
    }
}

static void drop_unmerged(struct schedule *s) {
    for (uint32_t i = 0; i < WINDOW; i++) {
        if (s->done[i] != NULL) {
            cluster_free(s->done[i]);
        }
    }
}

/* Does a function of the kernel's module read where the workspace of the grid is? */
static bool needs_workspace(const struct launch *launch) {
    const struct vgpu_module *module = launch->kernel->module;
    for (uint32_t k = 0; k < module->kernel_count; k++) {
        for (uint32_t i = 0; i < module->kernels[k]->special_count; i++) {
            const enum special_register which = module->kernels[k]->specials[i].which;
            if (which == SPECIAL_ENVREG1 || which == SPECIAL_ENVREG2) {
                return true;
            }
        }
    }
    return false;
}

/* A launch can be a cooperative one: all of its blocks have begun before one must have ended. */
static bool make_workspace(struct launch *launch) {
    struct device_memory *memory = launch->gpu->memory;
    launch->workspace = device_alloc(memory, WORKSPACE_BYTES, "workspace of the grid");
    unsigned char *bytes = device_bytes(memory, launch->workspace, WORKSPACE_BYTES, true);
    if (bytes == NULL) {
        return false;
    }
    memset(bytes, 0, WORKSPACE_BYTES);
    return true;
}

/* Outside the sample there are no checks but those on which later ones depend. */
static void take_sample(struct schedule *s) {
    const uint32_t *cluster = s->launch->dims.cluster, ctas = s->launch->gpu->sample;
    const uint64_t size = (uint64_t)cluster[0] * cluster[1] * cluster[2];
    s->sample = ctas == 0 ? s->count : (ctas + size - 1) / size;
    s->unsampled = *s->launch;
    s->unsampled.checks &= ~(uint32_t)(VGPU_CHECK_RACE | VGPU_CHECK_PERF);
}

static void note_sample(const struct schedule *s) {
    if (s->sample < s->count && (s->launch->checks & VGPU_CHECK_RACE) != 0) {
        report_kernel(s->launch->gpu, s->launch->kernel, NULL, FINDING_RACE_UNCHECKED,
                      "a sample of %llu of %llu clusters is checked for races",
                      (unsigned long long)s->sample, (unsigned long long)s->count);
    }
}

vgpu_status exec_launch(struct launch *launch, vgpu_error *error) {
    const vgpu_status status = launch_check(launch, error);
    if (status != VGPU_OK) {
        return status;
    }
    if (!launch->plain && needs_workspace(launch) && !make_workspace(launch)) {
        return status_fail(error, VGPU_OUT_OF_MEMORY, "no memory for the workspace of the grid");
    }
    struct schedule *s = calloc(1, sizeof *s);
    if (s == NULL) {
        return status_fail(error, VGPU_OUT_OF_MEMORY, "no memory of the host for the launch");
    }
    const uint32_t *grid = launch->dims.grid, *cluster = launch->dims.cluster;
    s->launch = launch;
    s->count = (uint64_t)(grid[0] / cluster[0]) * (grid[1] / cluster[1]) * (grid[2] / cluster[2]);
    s->fault = NO_CLUSTER;
    take_sample(s);
    progress_begin(&s->progress, launch->kernel, launch->gpu->progress);
    const uint32_t threads = host_threads(s);
    s->room = room_for(launch, threads);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    run_threads(s, threads);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    fflush(stdout);
    drop_unmerged(s);
    progress_end(&s->progress);
    note_sample(s);
    race_note_unchecked(launch);
    race_end_launch(launch);
    if (launch->workspace != 0) {
        device_release(launch->gpu->memory, launch->workspace);
    }
    launch->gpu->stats.seconds += seconds_now() - s->progress.begun;
    const bool no_memory = s->no_memory, faulted = s->fault != NO_CLUSTER;
    free(s);
    if (no_memory) {
        return status_fail(error, VGPU_OUT_OF_MEMORY,
                           "no memory of the host for the warps of a cluster");
    }
    return faulted ? status_fail(error, VGPU_FAULT,
                                 "the kernel did not run to its end: see the findings")
                   : VGPU_OK;
}

struct race_past *launch_leave(struct launch *launch) {
    return race_past_take(launch);
}

const struct kernel *launch_kernel_of(const struct race_past *past) {
    return race_past_kernel(past);
}

uint32_t launch_size(const struct race_past *past) {
    return race_past_size(past);
}

bool launch_meets(const struct race_past *a, const struct race_past *b,
                  struct race_overlap *found) {
    return race_past_meets(a, b, found);
}

bool launch_covers(const struct race_past *past, uint64_t begin, uint64_t end, bool written,
                   struct race_overlap *found) {
    return race_past_covers(past, begin, end, written, found);
}

void launch_forget(struct race_past *past) {
    race_past_free(past);
}
