/* SPDX-License-Identifier: Apache-2.0
 *
 * pool.c - the threads of a context.
 *
 * The caller is one of the workers (slot 0); the others sleep on a condition variable after a short
 * spin. A job is an atomic counter: an idle worker takes the next index. A second caller that finds
 * the workers busy runs its job alone, so no call waits for another.
 *
 * Invariant: the result of an index does not depend on the thread that runs it.
 */
#include "core/internal.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAX_THREADS 1024
#define SPINS 2000 /* a few tens of microseconds: longer than the gap between two calls in a row */

struct worker {
    struct pool *pool;
    int slot;
    pthread_t thread;
};

/* Whose threads they are. On a page that a forked child finds wiped; the pid stands guard where the
 * system does not wipe, as it alone could not: another pid namespace may use the same number. */
struct ownership {
    _Atomic int state; /* one of: */
    _Atomic pid_t pid;
};

enum { THREADS_ABSENT = 0, THREADS_STARTING = 1, THREADS_RUNNING = 2 };

struct pool {
    int size;               /* threads, the caller's included */
    struct worker *workers; /* size - 1 of them */
    int started;            /* of them; fewer than size - 1 if the system refused */
    struct ownership *ownership;

    pthread_mutex_t caller; /* held by the one caller whom the workers serve */
    pthread_mutex_t lock;   /* guards sleeping */
    pthread_cond_t wake, done;
    _Atomic uint64_t job; /* counts jobs; a worker that sees it change joins */
    _Atomic bool stop;

    pool_task *task; /* the job; constant while it runs */
    void *argument;
    int64_t count;
    _Atomic int64_t next; /* index to be taken */
    _Atomic int running;  /* workers that have not yet left the job */
};

/* ---- how many threads ------------------------------------------------------------------------ */

/* CPUs allowed by the quota of the cgroup that this process sees as the root (a container's own),
 * or `most`. Version 2 first, then version 1. */
static int cgroup_limit(int most) {
    double quota = -1.0;
    double period = 0.0;
    FILE *file = fopen("/sys/fs/cgroup/cpu.max", "re");
    if (file != NULL) {
        if (fscanf(file, "%lf %lf", &quota, &period) != 2) {
            quota = -1.0; /* "max": no limit */
        }
        fclose(file);
    } else {
        FILE *q = fopen("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "re");
        FILE *p = fopen("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "re");
        if (q == NULL || p == NULL || fscanf(q, "%lf", &quota) != 1 ||
            fscanf(p, "%lf", &period) != 1) {
            quota = -1.0;
        }
        if (q != NULL) {
            fclose(q);
        }
        if (p != NULL) {
            fclose(p);
        }
    }
    if (!(quota > 0.0 && period > 0.0)) {
        return most;
    }
    const double cpus = quota / period;
    const int whole = cpus < 1.0 ? 1 : (int)(cpus + 0.5);
    return whole < most ? whole : most;
}

static int allowed_threads(void) {
    cpu_set_t set;
    int cpus = 1;
    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        cpus = CPU_COUNT(&set);
    } else {
        const long online = sysconf(_SC_NPROCESSORS_ONLN);
        cpus = online > 0 && online < MAX_THREADS ? (int)online : 1;
    }
    return cgroup_limit(cpus);
}

/* ---- a worker's life ------------------------------------------------------------------------- */

static void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory"); /* on Arm cores a far better pause than YIELD */
#endif
}

static void take_indices(struct pool *pool, int slot) {
    for (;;) {
        const int64_t index = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed);
        if (index >= pool->count) {
            return;
        }
        pool->task(pool->argument, index, slot);
    }
}

/* Returns when a job after `seen` was posted. */
static void wait_for_job(struct pool *pool, uint64_t seen) {
    for (int spin = 0; spin < SPINS; spin++) {
        if (atomic_load_explicit(&pool->job, memory_order_acquire) != seen) {
            return;
        }
        relax();
    }
    pthread_mutex_lock(&pool->lock);
    while (atomic_load_explicit(&pool->job, memory_order_acquire) == seen) {
        pthread_cond_wait(&pool->wake, &pool->lock);
    }
    pthread_mutex_unlock(&pool->lock);
}

static void leave_job(struct pool *pool) {
    if (atomic_fetch_sub_explicit(&pool->running, 1, memory_order_acq_rel) == 1) {
        pthread_mutex_lock(&pool->lock);
        pthread_cond_signal(&pool->done);
        pthread_mutex_unlock(&pool->lock);
    }
}

static void *worker_main(void *argument) {
    const struct worker *self = argument;
    struct pool *pool = self->pool;
    for (uint64_t seen = 0;; seen++) {
        wait_for_job(pool, seen);
        if (atomic_load_explicit(&pool->stop, memory_order_acquire)) {
            return NULL;
        }
        take_indices(pool, self->slot);
        leave_job(pool);
    }
}

/* Everything that a fork leaves in an unknown state, and the threads, which it does not copy. They
 * take no signals: those are the program's own business. */
static void start_workers(struct pool *pool) {
    sigset_t all;
    sigset_t before;
    pthread_mutex_init(&pool->caller, NULL);
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pthread_cond_init(&pool->done, NULL);
    atomic_store(&pool->job, 0);
    atomic_store(&pool->running, 0);
    pool->started = 0;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    for (int i = 0; i < pool->size - 1; i++) {
        struct worker *worker = &pool->workers[i];
        *worker = (struct worker){.pool = pool, .slot = i + 1};
        if (pthread_create(&worker->thread, NULL, worker_main, worker) != 0) {
            break; /* fewer threads compute the same bits */
        }
        pool->started++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static bool owns_threads(const struct pool *pool) {
    return atomic_load_explicit(&pool->ownership->state, memory_order_acquire) == THREADS_RUNNING &&
           atomic_load_explicit(&pool->ownership->pid, memory_order_relaxed) == getpid();
}

/* The first caller in a process starts the threads; others wait for it. */
static void own_threads(struct pool *pool) {
    struct ownership *own = pool->ownership;
    while (!owns_threads(pool)) {
        int state = atomic_load(&own->state);
        if (state != THREADS_STARTING &&
            atomic_compare_exchange_strong(&own->state, &state, THREADS_STARTING)) {
            start_workers(pool);
            atomic_store(&own->pid, getpid());
            atomic_store_explicit(&own->state, THREADS_RUNNING, memory_order_release);
            return;
        }
        sched_yield();
    }
}

/* ---- the interface --------------------------------------------------------------------------- */

static struct ownership *map_ownership(void) {
    void *page = mmap(NULL, sizeof(struct ownership), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) {
        return NULL;
    }
    madvise(page, sizeof(struct ownership), MADV_WIPEONFORK);
    return page;
}

static void free_pool(struct pool *pool) {
    if (pool->ownership != NULL) {
        munmap(pool->ownership, sizeof *pool->ownership);
    }
    free(pool->workers);
    free(pool);
}

struct pool *pool_create(int threads) {
    int size = threads > 0 ? threads : allowed_threads();
    if (size > MAX_THREADS) {
        size = MAX_THREADS;
    }
    struct pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL) {
        return NULL;
    }
    pool->size = size;
    pool->workers = calloc((size_t)size, sizeof *pool->workers);
    pool->ownership = map_ownership();
    if (pool->workers == NULL || pool->ownership == NULL) {
        free_pool(pool);
        return NULL;
    }
    own_threads(pool);
    return pool;
}

static void post_job(struct pool *pool) {
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add_explicit(&pool->job, 1, memory_order_release);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
}

void pool_destroy(struct pool *pool) {
    if (pool == NULL) {
        return;
    }
    if (owns_threads(pool)) { /* else they are the parent's */
        atomic_store_explicit(&pool->stop, true, memory_order_release);
        post_job(pool);
        for (int i = 0; i < pool->started; i++) {
            pthread_join(pool->workers[i].thread, NULL);
        }
        pthread_cond_destroy(&pool->done);
        pthread_cond_destroy(&pool->wake);
        pthread_mutex_destroy(&pool->lock);
        pthread_mutex_destroy(&pool->caller);
    }
    free_pool(pool);
}

int pool_size(const struct pool *pool) {
    return pool->size;
}

static void run_alone(int64_t count, pool_task *task, void *argument) {
    for (int64_t index = 0; index < count; index++) {
        task(argument, index, 0);
    }
}

void pool_run(struct pool *pool, int64_t count, pool_task *task, void *argument) {
    if (pool->size == 1 || count <= 1) {
        run_alone(count, task, argument);
        return;
    }
    own_threads(pool); /* a forked child has none yet */
    if (pool->started == 0 || pthread_mutex_trylock(&pool->caller) != 0) {
        run_alone(count, task, argument);
        return;
    }
    pool->task = task;
    pool->argument = argument;
    pool->count = count;
    atomic_store_explicit(&pool->next, 0, memory_order_relaxed);
    atomic_store_explicit(&pool->running, pool->started, memory_order_relaxed);
    post_job(pool);
    take_indices(pool, 0);
    for (int spin = 0; spin < SPINS; spin++) {
        if (atomic_load_explicit(&pool->running, memory_order_acquire) == 0) {
            break;
        }
        relax();
    }
    pthread_mutex_lock(&pool->lock);
    while (atomic_load_explicit(&pool->running, memory_order_acquire) != 0) {
        pthread_cond_wait(&pool->done, &pool->lock);
    }
    pthread_mutex_unlock(&pool->lock);
    pthread_mutex_unlock(&pool->caller);
}
