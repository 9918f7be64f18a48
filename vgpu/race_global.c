/* SPDX-License-Identifier: Apache-2.0
 *
 * race_global.c - happens-before in global memory, by lines of 128 bytes with byte masks.
 *
 * Inside a cluster a line knows its last writer and its last reader among the warps with the bytes
 * they touched; clocks order them as in shared memory. (Of several readers only the last is known:
 * a write that races with an earlier one may go unnoticed.)
 *
 * Between clusters nothing is known of time: they run on different host threads, and findings must
 * not depend on that. Each cluster keeps the bytes it read, wrote, and touched with strong accesses
 * (atomics, volatile, relaxed and stronger); when it is done they are compared with those of the
 * clusters before it. A plain write conflicts with a plain access or a strong one of another
 * cluster, unless the two may be ordered by synchronisation that works by memory: one side made
 * a strong write or atomic after its access, and the other made a strong read or atomic before its
 * own. That misses wrong orders, and never reports a right one.
 *
 * Invariant: what is reported between clusters depends on what each cluster did and on the order of
 * clusters only. Beyond LINES_MAX lines of a cluster, or ALL_LINES_MAX of a launch, lines are not
 * looked at.
 */
#include <stdlib.h>
#include <string.h>

#include "memory.h"

enum { LINE_BYTES = 128, LINES_MAX = 1 << 17, ALL_LINES_MAX = 1 << 19 };

struct mask {
    uint64_t low, high;
};

/* Who: op 15 bits, slot 10, acquired before 1, releases before (or whether one came after) 6. */
enum { WHO_SLOT = 15, WHO_ACQUIRED = 1 << 25, WHO_SEQUENCE = 26, SEQUENCE_MAX = 63 };
#define WHO_OP 0x7fffU
#define WHO_FIXED 0x03ffffffU

struct touched {
    struct mask bytes;
    uint32_t who;   /* the first one; 0: nobody */
    uint32_t owner; /* in a launch: number of the cluster */
};

struct last {
    struct mask bytes;
    uint32_t stamp, who;
};

enum { PLAIN_WRITE, PLAIN_READ, STRONG, TOUCHES };

struct line {
    uint64_t key; /* address / LINE_BYTES; 0: empty */
    struct touched touched[TOUCHES];
    struct last writer, reader;
};

struct line_table {
    struct line *lines;
    uint32_t capacity, count, most;
};

/* ---- tables ---------------------------------------------------------------------------------- */

void race_global_free(struct line_table *table) {
    if (table != NULL) {
        free(table->lines);
        free(table);
    }
}

static struct line_table *table_make(uint32_t most) {
    struct line_table *table = calloc(1, sizeof(*table));
    if (table == NULL) {
        return NULL;
    }
    table->capacity = 256;
    table->most = most;
    table->lines = calloc(table->capacity, sizeof(*table->lines));
    if (table->lines == NULL) {
        free(table);
        return NULL;
    }
    return table;
}

static struct line *probe(const struct line_table *table, uint64_t key) {
    uint32_t at = (uint32_t)(key * 0x9e3779b97f4a7c15ULL >> 32) & (table->capacity - 1);
    while (table->lines[at].key != 0 && table->lines[at].key != key) {
        at = (at + 1) & (table->capacity - 1);
    }
    return &table->lines[at];
}

static bool table_grow(struct line_table *table) {
    const struct line_table old = *table;
    struct line *lines = calloc((size_t)old.capacity * 2, sizeof(*lines));
    if (lines == NULL) {
        return false;
    }
    table->lines = lines;
    table->capacity = old.capacity * 2;
    for (uint32_t i = 0; i < old.capacity; i++) {
        if (old.lines[i].key != 0) {
            *probe(table, old.lines[i].key) = old.lines[i];
        }
    }
    free(old.lines);
    return true;
}

/* The line, new if need be; NULL: there are too many. */
static struct line *table_line(struct line_table *table, uint64_t key) {
    struct line *line = probe(table, key);
    if (line->key != 0) {
        return line;
    }
    if (table->count >= table->most) {
        return NULL;
    }
    if (2 * (table->count + 1) > table->capacity) {
        if (!table_grow(table)) {
            table->most = table->count;
            return NULL;
        }
        line = probe(table, key);
    }
    line->key = key;
    table->count++;
    return line;
}

/* ---- one access ------------------------------------------------------------------------------ */

static struct mask mask_of(uint32_t first, uint32_t bytes) {
    const uint32_t end = first + bytes;
    struct mask mask = {0, 0};
    if (first < 64) {
        mask.low = (~0ULL >> (64 - (end < 64 ? bytes : 64 - first))) << first;
    }
    if (end > 64) {
        const uint32_t from = first > 64 ? first - 64 : 0;
        mask.high = (~0ULL >> (64 - (end - 64 - from))) << from;
    }
    return mask;
}

static bool overlap(struct mask a, struct mask b) {
    return ((a.low & b.low) | (a.high & b.high)) != 0;
}

static struct mask both(struct mask a, struct mask b) {
    return (struct mask){a.low | b.low, a.high | b.high};
}

struct toucher {
    struct warp *warp;
    const struct op *op;
    struct cluster_memory *memory;
    int what; /* PLAIN_WRITE ... */
    bool engine;
    uint32_t who, stamp;
    const struct line *hit;
    uint32_t hit_who, hit_lanes;
};

static bool toucher_begin(struct toucher *toucher, struct warp *warp, const struct op *op,
                          int what) {
    if (warp->clock == NULL) {
        return false;
    }
    struct cluster_memory *memory = warp->clock->memory;
    if (memory->lines == NULL) {
        memory->lines = table_make(LINES_MAX);
    }
    struct slot *slot = &memory->slots[warp->agent_index];
    if (slot->start == 0) {
        slot->start = memory->time;
    }
    const uint32_t sequence = memory->releases < SEQUENCE_MAX ? memory->releases : SEQUENCE_MAX;
    *toucher = (struct toucher){.warp = warp, .op = op, .memory = memory, .what = what};
    toucher->stamp = memory->time;
    toucher->who = op_id(warp, op) | warp->agent_index << WHO_SLOT |
                   (memory->acquires != 0 ? (uint32_t)WHO_ACQUIRED : 0) | sequence << WHO_SEQUENCE;
    return memory->lines != NULL;
}

static bool is_unordered(const struct toucher *toucher, const struct last *last,
                         struct mask bytes) {
    const uint32_t slot = (last->who & WHO_FIXED & ~(uint32_t)WHO_ACQUIRED) >> WHO_SLOT;
    return last->stamp != 0 && slot != toucher->warp->agent_index &&
           last->stamp > toucher->warp->clock->seen[slot] && overlap(last->bytes, bytes);
}

static void remember(struct last *last, const struct toucher *toucher, struct mask bytes) {
    const uint32_t identity = WHO_FIXED & ~(uint32_t)WHO_ACQUIRED & ~WHO_OP;
    const bool same = last->stamp == toucher->stamp && ((last->who ^ toucher->who) & identity) == 0;
    last->bytes = same ? both(last->bytes, bytes) : bytes;
    last->stamp = toucher->stamp;
    last->who = toucher->who;
}

static void touch(struct toucher *toucher, uint64_t key, struct mask bytes, uint32_t lanes) {
    struct line *line = table_line(toucher->memory->lines, key);
    if (line == NULL) {
        return;
    }
    struct touched *touched = &line->touched[toucher->what];
    touched->bytes = both(touched->bytes, bytes);
    if (touched->who == 0) {
        touched->who = toucher->who;
    }
    touched->who = (touched->who & WHO_FIXED) | (toucher->who & ~WHO_FIXED);
    if (toucher->what == STRONG || toucher->engine) {
        return;
    }
    const bool write = toucher->what == PLAIN_WRITE;
    const struct last *other = is_unordered(toucher, &line->writer, bytes) ? &line->writer
                               : write && is_unordered(toucher, &line->reader, bytes)
                                   ? &line->reader
                                   : NULL;
    if (other != NULL) {
        toucher->hit = toucher->hit == NULL ? line : toucher->hit;
        toucher->hit_who = toucher->hit_lanes == 0 ? other->who : toucher->hit_who;
        toucher->hit_lanes |= lanes;
    }
    remember(write ? &line->writer : &line->reader, toucher, bytes);
}

static void touch_range(struct toucher *toucher, uint64_t address, uint64_t bytes, uint32_t lanes) {
    while (bytes > 0) {
        const uint32_t first = (uint32_t)(address % LINE_BYTES);
        const uint32_t here = bytes < LINE_BYTES - first ? (uint32_t)bytes : LINE_BYTES - first;
        touch(toucher, address / LINE_BYTES, mask_of(first, here), lanes);
        address += here;
        bytes -= here;
    }
}

static void toucher_end(const struct toucher *toucher) {
    if (toucher->hit_lanes == 0) {
        return;
    }
    const struct cluster *cluster = toucher->memory->cluster;
    const uint32_t who = toucher->hit_who & ~(uint32_t)WHO_ACQUIRED & WHO_FIXED;
    const struct warp *other = warp_of_slot(cluster, who >> WHO_SLOT);
    const struct finding_detail detail = {.space = PTX_GLOBAL,
                                          .address = toucher->hit->key * LINE_BYTES,
                                          .bytes = LINE_BYTES,
                                          .other = op_of_id(cluster, who & WHO_OP),
                                          .other_warp = other};
    char place[128];
    memory_describe(toucher->warp, PTX_GLOBAL, detail.address, place, sizeof(place));
    report(toucher->warp, toucher->op, FINDING_RACE, toucher->hit_lanes, &detail,
           "this %s in the 128 bytes at %s is not ordered with an earlier access by warp %u of "
           "block %u",
           toucher->what == PLAIN_WRITE ? "write" : "read", place, other != NULL ? other->index : 0,
           other != NULL ? other->cta->linear : 0);
}

void race_global_access(struct warp *warp, const struct op *op, const struct access *access) {
    struct toucher toucher;
    const bool write = access->kind == ACCESS_WRITE || access->kind == ACCESS_ISSUE_WRITE;
    const bool strong = access->strong || access->kind == ACCESS_ATOMIC;
    if (!toucher_begin(&toucher, warp, op, strong ? STRONG : write ? PLAIN_WRITE : PLAIN_READ)) {
        return;
    }
    toucher.engine = access->agent != NULL || access->kind == ACCESS_ISSUE_WRITE ||
                     access->kind == ACCESS_ISSUE_READ;
    const uint32_t bytes = access->element * access->count;
    if (access->contiguous) {
        touch_range(&toucher, access->address[0], (uint64_t)bytes * LANES, ALL_LANES);
        toucher_end(&toucher);
        return;
    }
    uint64_t key = 0;
    struct mask mask = {0, 0};
    uint32_t lanes = 0;
    for (uint32_t rest = access->good; rest != 0; rest &= rest - 1) {
        const uint32_t lane = (uint32_t)__builtin_ctz(rest);
        const uint64_t address = access->address[lane];
        if (address % LINE_BYTES + bytes > LINE_BYTES) { /* a row of wmma may cross the line */
            touch_range(&toucher, address, bytes, 1U << lane);
            continue;
        }
        if (address / LINE_BYTES != key) {
            if (key != 0) {
                touch(&toucher, key, mask, lanes);
            }
            key = address / LINE_BYTES;
            mask = (struct mask){0, 0};
            lanes = 0;
        }
        mask = both(mask, mask_of((uint32_t)(address % LINE_BYTES), bytes));
        lanes |= 1U << lane;
    }
    if (key != 0) {
        touch(&toucher, key, mask, lanes);
    }
    toucher_end(&toucher);
}

void race_global_block(struct warp *warp, const struct op *op, uint64_t address, uint64_t bytes,
                       enum access_kind kind) {
    struct toucher toucher;
    const bool write = kind == ACCESS_WRITE || kind == ACCESS_ISSUE_WRITE;
    const int what = kind == ACCESS_ATOMIC ? STRONG : write ? PLAIN_WRITE : PLAIN_READ;
    if (toucher_begin(&toucher, warp, op, what)) {
        toucher.engine = true;
        touch_range(&toucher, address, bytes, warp->active);
    }
}

/* ---- between clusters ------------------------------------------------------------------------ */

/* From a cluster's own count of releases to: did one come after? */
static uint32_t with_released(uint32_t who, uint32_t releases) {
    const uint32_t sequence = who >> WHO_SEQUENCE;
    const bool released = sequence == SEQUENCE_MAX || sequence < releases;
    return (who & WHO_FIXED) | (released ? 1U << WHO_SEQUENCE : 0);
}

static bool may_be_ordered(uint32_t a, uint32_t b) {
    const bool a_released = a >> WHO_SEQUENCE != 0, b_released = b >> WHO_SEQUENCE != 0;
    return (a_released && (b & WHO_ACQUIRED) != 0) || (b_released && (a & WHO_ACQUIRED) != 0);
}

static void report_conflict(struct cluster *cluster, const struct line *line, int mine, int theirs,
                            const struct touched *other, uint32_t who) {
    static const char *const WORDS[TOUCHES] = {"write", "read", "atomic"};
    const uint32_t identity = WHO_FIXED & ~(uint32_t)WHO_ACQUIRED;
    const struct cluster_memory *memory = cluster->global;
    const uint32_t slot = (who & identity) >> WHO_SLOT;
    const uint32_t warps = memory->places[0].warp_count;
    const struct cta_place *place = &memory->places[slot / warps];
    struct cta cta = {.launch = cluster->launch, .cluster = cluster, .linear = place->linear};
    memcpy(cta.id, place->id, sizeof(cta.id));
    struct warp warp = {.cta = &cta, .kernel = cluster->launch->kernel, .index = slot % warps};
    const struct finding_detail detail = {.space = PTX_GLOBAL,
                                          .address = line->key * LINE_BYTES,
                                          .bytes = LINE_BYTES,
                                          .other = op_of_id(cluster, other->who & WHO_OP)};
    char where[128];
    memory_describe(&warp, PTX_GLOBAL, detail.address, where, sizeof(where));
    report(&warp, op_of_id(cluster, who & WHO_OP), FINDING_RACE_GLOBAL, ALL_LANES, &detail,
           "this %s in the 128 bytes at %s and a %s by %s %u of the same bytes are not ordered",
           WORDS[mine], where, WORDS[theirs], cluster->cta_count > 1 ? "cluster" : "block",
           other->owner);
}

static void compare_lines(struct cluster *cluster, const struct line *mine,
                          const struct line *theirs) {
    static const struct {
        int mine, theirs;
    } PAIRS[] = {{PLAIN_WRITE, PLAIN_WRITE},
                 {PLAIN_WRITE, PLAIN_READ},
                 {PLAIN_READ, PLAIN_WRITE},
                 {PLAIN_WRITE, STRONG},
                 {STRONG, PLAIN_WRITE}};
    for (size_t i = 0; i < sizeof(PAIRS) / sizeof(PAIRS[0]); i++) {
        const struct touched *a = &mine->touched[PAIRS[i].mine];
        const struct touched *b = &theirs->touched[PAIRS[i].theirs];
        if (overlap(a->bytes, b->bytes) && !may_be_ordered(a->who, b->who)) {
            report_conflict(cluster, mine, PAIRS[i].mine, PAIRS[i].theirs, b, a->who);
            return;
        }
    }
}

static void merge_line(struct launch *launch, struct cluster *cluster, struct line *mine,
                       uint32_t releases) {
    for (int i = 0; i < TOUCHES; i++) {
        struct touched *touched = &mine->touched[i];
        touched->owner = cluster->linear;
        touched->who = touched->who != 0 ? with_released(touched->who, releases) : 0;
    }
    struct line *theirs = table_line(launch->global, mine->key);
    if (theirs == NULL) {
        return;
    }
    compare_lines(cluster, mine, theirs);
    for (int i = 0; i < TOUCHES; i++) {
        struct touched *into = &theirs->touched[i];
        const struct touched *from = &mine->touched[i];
        const uint32_t flags = (into->who | from->who) & ~(WHO_FIXED & ~(uint32_t)WHO_ACQUIRED);
        if (into->who == 0) {
            into->who = from->who;
            into->owner = from->owner;
        }
        into->who |= flags;
        into->bytes = both(into->bytes, from->bytes);
    }
}

void memory_free_cluster(struct cluster *cluster) {
    struct cluster_memory *memory = cluster->global;
    if (memory == NULL) {
        return;
    }
    for (uint32_t i = 0; i < WORD_CLOCKS; i++) {
        clock_free(memory->words[i]);
    }
    while (memory->agents != NULL) {
        struct agent *agent = memory->agents;
        memory->agents = agent->next;
        free(agent->flights);
        free(agent);
    }
    race_global_free(memory->lines);
    free(memory->slots);
    free(memory->places);
    free(memory);
    cluster->global = NULL;
}

void memory_merge_cluster(struct launch *launch, struct cluster *cluster) {
    struct cluster_memory *memory = cluster->global;
    if (memory == NULL) {
        return;
    }
    if (launch->global == NULL) {
        launch->global = table_make(ALL_LINES_MAX);
    }
    const struct line_table *lines = memory->lines;
    for (uint32_t i = 0; launch->global != NULL && lines != NULL && i < lines->capacity; i++) {
        if (lines->lines[i].key != 0) {
            merge_line(launch, cluster, &lines->lines[i], memory->releases);
        }
    }
    memory_free_cluster(cluster);
}

void memory_end_launch(struct launch *launch) {
    race_global_free(launch->global);
    launch->global = NULL;
}
