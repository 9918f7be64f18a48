/* SPDX-License-Identifier: Apache-2.0
 *
 * perf.c - see perf.h: bank conflicts, sectors, instructions.
 *
 * While a cluster runs, each instruction has its own counters; at its end they are added to the
 * lines of the GPU.
 */
#include "report/perf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BANKS = 32, BANK_BYTES = 4, PHASE_BYTES = BANKS * BANK_BYTES, SECTOR_BYTES = 32 };

struct counter {
    struct cost shared, global;
};

/* Counters of the instructions of one function; of a cluster there is one for each function that
 * ran, mostly one in all. */
struct cluster_perf {
    const struct kernel *kernel;
    struct counter *counters;
    uint64_t *runs; /* perf_runs */
    struct cluster_perf *next;
};

/* ---- one access ------------------------------------------------------------------------------ */

/* Different places in the bank that has most of them, for the lanes of one phase. A lane touches
 * `words` banks from a multiple of `words` on, so that these count as one wide bank. */
static uint32_t phase_passes(const struct access *access, uint32_t mask, uint32_t words) {
    const uint32_t banks = BANKS / words;
    const int shift = __builtin_ctz(words * BANK_BYTES);
    uint64_t place[BANKS + LANES]; /* the first of each bank, then those that collide with one */
    int8_t next[BANKS + LANES];
    uint32_t depth[BANKS], used = 0, count = banks, most = 1;
    for (; mask != 0; mask &= mask - 1) {
        const uint64_t at = access->address[__builtin_ctz(mask)] >> shift;
        const uint32_t bank = (uint32_t)at & (banks - 1);
        if ((used >> bank & 1) == 0) {
            used |= 1U << bank;
            place[bank] = at;
            next[bank] = -1;
            depth[bank] = 1;
            continue;
        }
        int8_t known = (int8_t)bank;
        while (known >= 0 && place[known] != at) {
            known = next[known];
        }
        if (known < 0) {
            place[count] = at;
            next[count] = next[bank];
            next[bank] = (int8_t)count++;
            most = ++depth[bank] > most ? depth[bank] : most;
        }
    }
    return most;
}

static struct cost shared_cost(const struct access *access) {
    const uint32_t bytes = access->element * access->count;
    const uint32_t words = bytes <= BANK_BYTES ? 1 : bytes / BANK_BYTES;
    const uint32_t lanes = LANES / words; /* of a phase */
    const uint32_t shift = (uint32_t)__builtin_ctz(words * BANK_BYTES), last = BANKS / words - 1;
    struct cost cost = {.requests = 1};
    if (access->contiguous || access->uniform) {
        cost.used = cost.needed = words;
        return cost;
    }
    uint32_t banks[LANES]; /* that of each lane, as a bit */
    for (uint32_t lane = 0; lane < LANES; lane++) {
        const uint32_t bank = (uint32_t)(access->address[lane] >> shift) & last;
        banks[lane] = (access->good >> lane & 1) << bank;
    }
    for (uint32_t from = 0; from < LANES; from += lanes) {
        const uint32_t phase =
            access->good & (lanes == LANES ? ALL_LANES : ((1U << lanes) - 1) << from);
        uint32_t used = 0;
        for (uint32_t lane = from; lane < from + lanes; lane++) {
            used |= banks[lane];
        }
        if (phase != 0) {
            const bool apart = __builtin_popcount(used) == __builtin_popcount(phase);
            cost.used += apart ? 1 : phase_passes(access, phase, words);
            cost.needed++;
        }
    }
    return cost;
}

static bool is_known(const uint64_t *sectors, uint32_t count, uint64_t sector) {
    while (count > 0) {
        if (sectors[--count] == sector) { /* most likely the lane before has it */
            return true;
        }
    }
    return false;
}

static struct cost global_cost(const struct access *access) {
    const uint32_t bytes = access->element * access->count;
    const uint64_t all = (uint64_t)__builtin_popcount(access->good) * bytes;
    struct cost cost = {.requests = 1, .needed = (all + SECTOR_BYTES - 1) / SECTOR_BYTES};
    if (access->contiguous) {
        const uint64_t last = access->address[0] + all - 1;
        cost.used = last / SECTOR_BYTES - access->address[0] / SECTOR_BYTES + 1;
    } else {
        uint64_t sectors[LANES * 5]; /* 128 bytes reach into five at most */
        uint32_t count = 0;
        for (uint32_t mask = access->good; mask != 0; mask &= mask - 1) {
            const uint64_t begin = access->address[__builtin_ctz(mask)];
            const uint64_t end = (begin + bytes - 1) / SECTOR_BYTES;
            for (uint64_t sector = begin / SECTOR_BYTES; sector <= end; sector++) {
                if (!is_known(sectors, count, sector)) {
                    sectors[count++] = sector;
                }
            }
        }
        cost.used = count;
    }
    cost.needed = cost.needed < cost.used ? cost.needed : cost.used; /* lanes may read the same */
    return cost;
}

/* ---- a cluster's counters -------------------------------------------------------------------- */

static bool has_op(const struct kernel *kernel, const struct op *op) {
    return (uintptr_t)op >= (uintptr_t)kernel->code &&
           (uintptr_t)op < (uintptr_t)(kernel->code + kernel->code_count);
}

static struct cluster_perf *perf_of(const struct kernel *kernel) {
    struct cluster_perf *perf = calloc(1, sizeof *perf);
    struct counter *counters = calloc(kernel->code_count, sizeof *counters);
    uint64_t *runs = calloc((size_t)kernel->code_count + 1, sizeof *runs);
    if (perf == NULL || counters == NULL || runs == NULL) {
        free(perf);
        free(counters);
        free(runs);
        return NULL;
    }
    *perf = (struct cluster_perf){.kernel = kernel, .counters = counters, .runs = runs};
    return perf;
}

void perf_start_cluster(struct cluster *cluster) {
    const struct launch *launch = cluster->launch;
    cluster->perf = NULL;
    if ((launch->checks & VGPU_CHECK_PERF) != 0) {
        cluster->perf = perf_of(launch->kernel);
    }
}

/* An operation that completes late may belong to another function than the one that runs. */
static const struct kernel *kernel_of(const struct warp *warp, const struct op *op) {
    const struct vgpu_module *module = warp->cta->launch->kernel->module;
    for (uint32_t i = 0; i < module->kernel_count; i++) {
        if (has_op(module->kernels[i], op)) {
            return module->kernels[i];
        }
    }
    return NULL;
}

/* Of a function that has not run yet it is made; NULL: no memory, or counting is off. */
static struct cluster_perf *perf_in(const struct cluster *cluster, const struct kernel *kernel) {
    struct cluster_perf *first = cluster->perf, *at = first;
    while (at != NULL && at->kernel != kernel) {
        at = at->next;
    }
    if (at == NULL && first != NULL && (at = perf_of(kernel)) != NULL) {
        at->next = first->next;
        first->next = at;
    }
    return at;
}

uint64_t *perf_runs(const struct cluster *cluster, const struct kernel *kernel) {
    struct cluster_perf *perf = perf_in(cluster, kernel);
    return perf != NULL ? perf->runs : NULL;
}

static struct counter *counter_of(struct warp *warp, const struct op *op) {
    const struct cluster *cluster = warp->cta->cluster;
    const struct cluster_perf *perf = cluster->perf;
    if (perf != NULL && !has_op(perf->kernel, op)) {
        const struct kernel *kernel = kernel_of(warp, op);
        perf = kernel != NULL ? perf_in(cluster, kernel) : NULL;
    }
    return perf != NULL ? &perf->counters[op - perf->kernel->code] : NULL;
}

static void add_cost(struct cost *to, const struct cost *cost) {
    to->requests += cost->requests;
    to->used += cost->used;
    to->needed += cost->needed;
}

/* Constants have a cache of their own. A lane's bytes are a power of two. */
static bool is_countable(const struct access *access) {
    const uint32_t bytes = access->element * access->count;
    return access->good != 0 && access->space != PTX_CONST && bytes > 0 && bytes <= PHASE_BYTES &&
           (bytes & (bytes - 1)) == 0;
}

void perf_shared(struct warp *warp, const struct op *op, const struct access *access) {
    struct counter *counter = is_countable(access) ? counter_of(warp, op) : NULL;
    if (counter != NULL) {
        const struct cost cost = shared_cost(access);
        add_cost(&counter->shared, &cost);
    }
}

void perf_global(struct warp *warp, const struct op *op, const struct access *access) {
    struct counter *counter = is_countable(access) ? counter_of(warp, op) : NULL;
    if (counter != NULL) {
        const struct cost cost = global_cost(access);
        add_cost(&counter->global, &cost);
    }
}

/* ---- the mix --------------------------------------------------------------------------------- */

/* What is not named is arithmetic: its type decides. */
static const struct {
    const char *name, *opcodes;
} MIX[MIX_COUNT] = {
    [MIX_INTEGER] = {"integer", ""},
    [MIX_FLOAT] = {"float", ""},
    [MIX_HALF] = {"half", ""},
    [MIX_SPECIAL] = {"special function", " rcp sqrt rsqrt sin cos lg2 ex2 tanh "},
    [MIX_COMPARE] = {"compare and select", " setp set selp slct testp "},
    [MIX_CONVERT] = {"convert", " cvt "},
    [MIX_MOVE] = {"move", " mov prmt cvta mapa isspacep getctarank createpolicy "},
    [MIX_MEMORY] = {"memory", " ld ldu st ldmatrix stmatrix prefetch prefetchu discard "
                              "applypriority tensormap "},
    [MIX_ATOMIC] = {"atomic", " atom red "},
    [MIX_ASYNC] = {"asynchronous copy", " cp "},
    [MIX_BARRIER] = {"barrier and fence", " bar barrier mbarrier fence membar griddepcontrol "},
    [MIX_WARP] = {"warp-wide", " shfl vote match redux elect activemask "},
    [MIX_MATRIX] = {"matrix", " mma wmma wgmma movmatrix "},
    [MIX_CONTROL] = {"control", " bra brx call ret exit trap brkpt nanosleep pmevent setmaxnreg "},
};

const char *mix_name(enum mix_family family) {
    return MIX[family].name;
}

enum mix_family mix_of(const struct ptx_instruction *in) {
    char word[32];
    snprintf(word, sizeof word, " %s ", in->opcode);
    for (int family = MIX_HALF + 1; family < MIX_COUNT; family++) {
        if (strstr(MIX[family].opcodes, word) != NULL) {
            return (enum mix_family)family;
        }
    }
    switch (ptx_modifier_type(in, 0)) {
    case PTX_F32:
    case PTX_F64: return MIX_FLOAT;
    case PTX_F16:
    case PTX_F16X2:
    case PTX_BF16:
    case PTX_BF16X2: return MIX_HALF;
    default: return MIX_INTEGER;
    }
}

static void merge_mix(struct perf *perf, const struct cluster_perf *from) {
    uint64_t times = 0;
    for (uint32_t i = 0; i < from->kernel->code_count; i++) {
        times += from->runs[i];
        if (times > 0) {
            perf->mix[from->kernel->code[i].flags >> OP_MIX_SHIFT] += times;
        }
    }
}

/* ---- the GPU's lines ------------------------------------------------------------------------- */

static int compare_place(const struct perf_line *a, const struct perf_line *b) {
    const char *file_a = a->place.file, *file_b = b->place.file;
    int order = strcmp(a->kernel, b->kernel);
    order = order != 0 ? order : strcmp(file_a != NULL ? file_a : "", file_b != NULL ? file_b : "");
    if (order == 0) {
        const uint32_t line_a = file_a != NULL ? a->place.line : a->ptx_line;
        const uint32_t line_b = file_b != NULL ? b->place.line : b->ptx_line;
        order = line_a < line_b ? -1 : line_a > line_b;
    }
    return order;
}

static bool grow(struct perf *perf) {
    if (perf->count < perf->room) {
        return true;
    }
    const size_t room = perf->room > 0 ? 2 * perf->room : 64;
    struct perf_line *lines = realloc(perf->lines, room * sizeof *lines);
    if (lines == NULL) {
        return false;
    }
    perf->lines = lines;
    perf->room = room;
    return true;
}

static const char *keep(struct arena *arena, const char *text) {
    return text != NULL ? arena_intern(arena, text, strlen(text)) : NULL;
}

/* The line with the place of `wanted`, made if there is none. NULL: no memory. */
static struct perf_line *line_of(struct perf *perf, const struct perf_line *wanted) {
    size_t low = 0, high = perf->count;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        const int order = compare_place(&perf->lines[middle], wanted);
        if (order == 0) {
            return &perf->lines[middle];
        }
        if (order < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    struct perf_line made = *wanted;
    made.kernel = keep(perf->strings, wanted->kernel);
    made.opcode = keep(perf->strings, wanted->opcode);
    made.place.file = keep(perf->strings, wanted->place.file);
    made.place.function = keep(perf->strings, wanted->place.function);
    if (made.kernel == NULL || made.opcode == NULL || !grow(perf)) {
        return NULL;
    }
    memmove(perf->lines + low + 1, perf->lines + low, (perf->count - low) * sizeof made);
    perf->lines[low] = made;
    perf->count++;
    return &perf->lines[low];
}

static struct perf *perf_make(void) {
    struct perf *perf = calloc(1, sizeof *perf);
    if (perf != NULL && (perf->strings = arena_make()) == NULL) {
        free(perf);
        return NULL;
    }
    return perf;
}

void perf_free(struct perf *perf) {
    if (perf != NULL) {
        arena_free(perf->strings);
        free(perf->lines);
        free(perf);
    }
}

static void merge_function(vgpu *gpu, const struct cluster *cluster,
                           const struct cluster_perf *from) {
    const struct kernel *entry = cluster->launch->kernel;
    for (uint32_t i = 0; i < from->kernel->code_count; i++) {
        const struct counter *counter = &from->counters[i];
        if (counter->shared.requests + counter->global.requests == 0) {
            continue;
        }
        const struct ptx_instruction *in = from->kernel->code[i].in;
        if (strcmp(in->opcode, "call") == 0) { /* what vprintf reads of its strings, byte by byte */
            continue;
        }
        const uint32_t location = ptx_user_location(entry->module->ptx, in->location);
        struct perf_line wanted = {
            .kernel = entry->function->name, .opcode = in->opcode, .ptx_line = in->line};
        if (location != 0 && location < entry->module->ptx->location_count) {
            const struct ptx_location *at = &entry->module->ptx->locations[location];
            wanted.place = (vgpu_place){at->file, at->line, at->column, at->function};
        }
        struct perf_line *line = line_of(gpu->perf, &wanted);
        if (line != NULL) {
            add_cost(&line->shared, &counter->shared);
            add_cost(&line->global, &counter->global);
        } else {
            gpu->perf->incomplete = true;
        }
        gpu->stats.shared_accesses += counter->shared.requests;
        gpu->stats.shared_conflicts += counter->shared.used - counter->shared.needed;
        gpu->stats.global_sectors += counter->global.used;
    }
}

void perf_merge_cluster(vgpu *gpu, struct cluster *cluster) {
    struct cluster_perf *at = cluster->perf;
    if (at != NULL && gpu->perf == NULL) {
        gpu->perf = perf_make();
    }
    while (at != NULL) {
        struct cluster_perf *next = at->next;
        if (gpu->perf != NULL) {
            merge_function(gpu, cluster, at);
            merge_mix(gpu->perf, at);
        }
        free(at->counters);
        free(at->runs);
        free(at);
        at = next;
    }
    cluster->perf = NULL;
}
