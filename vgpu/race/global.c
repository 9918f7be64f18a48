/* SPDX-License-Identifier: Apache-2.0
 *
 * global.c - happens-before in global memory, by lines of 128 bytes with byte masks.
 *
 * Within a cluster a line has its last writers and its last reader among the warps, with the bytes
 * they accessed; clocks order them as in shared memory. (Of several readers only the last is kept:
 * a write that races with an earlier one may be missed.)
 *
 * Between clusters there is no time: they run on different host threads, and findings must not
 * depend on that. Each cluster keeps the bytes it read, wrote, and accessed by strong operations
 * (atomics, volatile, relaxed and stronger, of scope gpu or sys). At its end they are compared with
 * those of the clusters before it. A plain write conflicts with any access of another cluster,
 * unless synchronisation through memory may order the two: one side released its access afterwards
 * (a release, or a fence and a strong write), and the other acquired anything before its own
 * (clock.c). A plain read is also ordered before a plain write if its side published a value
 * computed from it afterwards, and the other side computed the write from what it had read
 * (exec/depends.c). Accesses of a line that differ in that are kept apart, the older ones in
 * `aside`. Releases are not matched with acquires: that misses wrong orders, but never reports a
 * right one.
 *
 * Invariant: findings between clusters depend only on what each cluster did and on the order of
 * clusters. Beyond LINES_MAX lines of a cluster, or ALL_LINES_MAX of a launch, lines are not
 * checked; a note says so.
 */
#include <stdlib.h>
#include <string.h>

#include "machine/describe.h"
#include "race/lines.h"
#include "race/state.h"
#include "report/finding.h"

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

static struct mask both(struct mask a, struct mask b) {
    return (struct mask){a.low | b.low, a.high | b.high};
}

enum { HIT_RACE, HIT_SAME_VALUE, HIT_STALE, HIT_PAST, HITS };
struct line_hit {
    uint64_t key;        /* of the first line that was hit: the table may grow under a pointer */
    uint32_t who, lanes; /* lanes 0: none */
};

struct toucher {
    struct warp *warp;
    const struct op *op;
    struct cluster_race *memory;
    int what; /* PLAIN_WRITE ... */
    bool writes, strong, engine;
    bool cached; /* ld.nc */
    bool early;  /* launches before may still run */
    uint32_t who, stamp;
    const struct access *access; /* NULL: a block */
    uint32_t changed;            /* op->changes, once it was called */
    bool compared;
    struct line_hit hits[HITS]; /* by HIT_RACE ... */
    struct past_hit past;       /* of HIT_PAST */
};

static bool toucher_begin(struct toucher *toucher, struct warp *warp, const struct op *op,
                          enum access_kind kind, bool strong, bool narrow) {
    if (warp->clock == NULL) {
        return false;
    }
    struct cluster_race *memory = warp->clock->memory;
    if (memory->lines == NULL) {
        memory->lines = table_make(LINES_MAX);
    }
    struct slot *slot = &memory->slots[warp->agent_index];
    if (slot->start == 0) {
        slot->start = memory->time;
    }
    *toucher = (struct toucher){.warp = warp, .op = op, .memory = memory};
    toucher->writes = kind != ACCESS_READ && kind != ACCESS_ISSUE_READ;
    toucher->strong = strong || kind == ACCESS_ATOMIC;
    toucher->what = (toucher->strong && !narrow ? STRONG_READ : PLAIN_READ) + toucher->writes;
    toucher->stamp = memory->time;
    toucher->early =
        memory->cluster->launch->past != NULL && warp->clock->seen[memory->waited] == 0;
    toucher->who = op_id(warp, op) | warp->agent_index << WHO_SLOT |
                   (toucher->strong ? (uint32_t)WHO_STRONG : 0) |
                   (warp->clock->seen[memory->outside] != 0 ? (uint32_t)WHO_ACQUIRED : 0);
    if (toucher->what == PLAIN_WRITE && (op->flags & OP_TAKES) != 0 &&
        warp->clock->seen[memory->taken] != 0) {
        toucher->who |= WHO_TAKES;
    } else if (toucher->what == PLAIN_READ && (op->flags & OP_GIVES) != 0) {
        toucher->who |= WHO_GIVES;
    }
    return memory->lines != NULL;
}

static bool races(const struct toucher *toucher, const struct last *last, struct mask bytes) {
    const uint32_t slot = who_slot(last->who);
    return last->stamp != 0 && slot != toucher->warp->agent_index &&
           last->stamp > toucher->warp->clock->seen[slot] && overlap(last->bytes, bytes) &&
           !(toucher->strong && (last->who & WHO_STRONG) != 0);
}

/* Do the stores leave what the other one stored to this line? Both are plain. */
static bool stores_same(struct toucher *toucher, uint64_t key, const struct last *other) {
    const struct access *access = toucher->access;
    if (access == NULL || access->kind != ACCESS_WRITE || toucher->strong ||
        (other->who & WHO_STRONG) != 0) {
        return false;
    }
    if (!toucher->compared) {
        toucher->changed = changed_lanes(toucher->warp, toucher->op, access);
        toucher->compared = true;
    }
    const uint32_t bytes = access->element * access->count;
    for (uint32_t rest = toucher->changed; rest != 0; rest &= rest - 1) {
        const uint64_t address = access->address[__builtin_ctz(rest)];
        const uint32_t first = (uint32_t)(address % LINE_BYTES);
        if (first + bytes > LINE_BYTES ||
            (address / LINE_BYTES == key && overlap(mask_of(first, bytes), other->bytes))) {
            return false;
        }
    }
    return true;
}

static void look_for_race(struct toucher *toucher, uint64_t key, const struct last *other,
                          bool other_writes, struct mask bytes, uint32_t lanes) {
    if (!races(toucher, other, bytes)) {
        return;
    }
    const bool same = other_writes && stores_same(toucher, key, other);
    struct line_hit *hit = &toucher->hits[same ? HIT_SAME_VALUE : HIT_RACE];
    if (hit->lanes == 0) {
        *hit = (struct line_hit){.key = key, .who = other->who};
    }
    hit->lanes |= lanes;
}

static void remember(struct last *last, const struct toucher *toucher, struct mask bytes) {
    const bool same = last->stamp == toucher->stamp && ((last->who ^ toucher->who) & ~WHO_OP) == 0;
    last->bytes = same ? both(last->bytes, bytes) : bytes;
    last->stamp = toucher->stamp;
    last->who = toucher->who;
}

static bool is_handed_on(const struct cluster_race *memory, const struct touched *touched) {
    return memory->handed_on != NULL && touched->mark <= memory->handed_on[who_slot(touched->who)];
}

static bool is_given(const struct cluster_race *memory, const struct touched *touched) {
    return (touched->who & WHO_GIVES) != 0 && memory->given != NULL &&
           touched->mark <= memory->given[who_slot(touched->who)];
}

/* Adds to what is known of a line; the mark and who of the first stay if `first`. */
static void add_touched(struct touched *into, const struct touched *from, bool first) {
    into->bytes = both(into->bytes, from->bytes);
    if (into->who == 0 || !first) {
        into->who = from->who;
        into->mark = from->mark;
    }
}

/* The next access differs from those so far in what it is ordered with: these are put aside. */
static void put_aside(struct cluster_race *memory, uint64_t key, int what,
                      struct touched *touched) {
    if (memory->aside == NULL) {
        memory->aside = table_make(LINES_MAX);
    }
    if (!is_given(memory, touched)) {
        touched->who &= ~(uint32_t)WHO_GIVES; /* what is put aside together must be alike */
    }
    const uint64_t flags =
        (touched->who | (is_handed_on(memory, touched) ? WHO_HANDED_ON : 0U)) >> WHO_FLAGS;
    struct line *line =
        memory->aside != NULL ? table_line(memory->aside, key * FLAG_SETS + flags) : NULL;
    if (line != NULL) {
        add_touched(&line->touched[what], touched, false);
    }
    *touched = (struct touched){.who = 0};
}

/* In what they are ordered with, as far as it is known. */
static bool differ(uint32_t a, uint32_t b) {
    return ((a ^ b) & (WHO_ACQUIRED | WHO_TAKES | WHO_GIVES | WHO_SAME)) != 0;
}

static void look_at_past(struct toucher *toucher, uint64_t key, struct mask bytes, uint32_t lanes) {
    struct line_hit *hit = &toucher->hits[HIT_PAST];
    const struct race_past *past = toucher->memory->cluster->launch->past;
    if (hit->lanes == 0 &&
        race_past_look(past, key, bytes, toucher->writes, toucher->strong, &toucher->past)) {
        *hit = (struct line_hit){.key = key, .lanes = lanes};
    }
}

/* A read through .nc of bytes that the kernel has written, in whatever order. */
static void look_for_own_write(struct toucher *toucher, uint64_t key, const struct line *line,
                               struct mask bytes, uint32_t lanes) {
    for (int what = PLAIN_WRITE; what < TOUCHES; what += STRONG_WRITE - PLAIN_WRITE) {
        const struct touched *written = &line->touched[what];
        struct line_hit *hit = &toucher->hits[HIT_STALE];
        if (written->who != 0 && overlap(written->bytes, bytes)) {
            *hit = (struct line_hit){key, written->who, hit->lanes | lanes};
        }
    }
}

static void touch(struct toucher *toucher, uint64_t key, struct mask bytes, uint32_t lanes) {
    if (toucher->early) {
        look_at_past(toucher, key, bytes, lanes);
    }
    struct line *line = table_line(toucher->memory->lines, key);
    if (line == NULL) {
        return;
    }
    struct touched *touched = &line->touched[toucher->what];
    if (touched->who != 0 &&
        (differ(touched->who, toucher->who) ||
         (toucher->memory->meets_others &&
          (is_handed_on(toucher->memory, touched) || is_given(toucher->memory, touched))))) {
        put_aside(toucher->memory, key, toucher->what, touched);
    }
    touched->bytes = both(touched->bytes, bytes);
    touched->who = toucher->who;
    touched->mark = toucher->stamp;
    if (toucher->engine) {
        return;
    }
    if (toucher->cached) {
        look_for_own_write(toucher, key, line, bytes, lanes);
    }
    look_for_race(toucher, key, &line->writers[0], true, bytes, lanes);
    look_for_race(toucher, key, &line->writers[1], true, bytes, lanes);
    if (toucher->writes) {
        look_for_race(toucher, key, &line->reader, false, bytes, lanes);
    }
    if (toucher->writes && who_slot(line->writers[0].who) != toucher->warp->agent_index) {
        const struct last before = line->writers[0];
        line->writers[0] = line->writers[1];
        line->writers[1] = before;
    }
    remember(toucher->writes ? &line->writers[0] : &line->reader, toucher, bytes);
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

static void report_race(const struct toucher *toucher, enum finding_kind kind,
                        const struct line_hit *hit) {
    const struct cluster *cluster = toucher->memory->cluster;
    const struct warp *other = warp_of_slot(cluster, who_slot(hit->who));
    const struct finding_detail detail = {.space = PTX_GLOBAL,
                                          .address = hit->key * LINE_BYTES,
                                          .bytes = LINE_BYTES,
                                          .other = op_of_id(cluster, hit->who & WHO_OP),
                                          .other_warp = other};
    char place[128];
    describe_address(toucher->warp, PTX_GLOBAL, detail.address, place, sizeof(place));
    if (kind == FINDING_STALE_READ) {
        report(toucher->warp, toucher->op, kind, hit->lanes, &detail,
               "this read in the 128 bytes at %s goes through the read-only cache (__ldg, const "
               "__restrict__), but the kernel has written these bytes: it may return old values",
               place);
        return;
    }
    report(toucher->warp, toucher->op, kind, hit->lanes, &detail,
           "this %s in the 128 bytes at %s is not ordered with an earlier %s by warp %u of "
           "CTA %u",
           toucher->writes ? "write" : "read", place,
           kind == FINDING_RACE ? "access" : "one of the same value,",
           other != NULL ? other->index : 0, other != NULL ? other->cta->linear : 0);
}

static void toucher_end(const struct toucher *toucher) {
    static const enum finding_kind KINDS[] = {FINDING_RACE, FINDING_RACE_SAME_VALUE,
                                              FINDING_STALE_READ};
    for (int i = HIT_RACE; i <= HIT_STALE; i++) {
        if (toucher->hits[i].lanes != 0) {
            report_race(toucher, KINDS[i], &toucher->hits[i]);
        }
    }
    const struct line_hit *past = &toucher->hits[HIT_PAST];
    if (past->lanes != 0) {
        race_past_report(toucher->warp, toucher->op, past->key, toucher->writes, past->lanes,
                         &toucher->past);
    }
}

void race_global_access(struct warp *warp, const struct op *op, const struct access *access) {
    struct toucher toucher;
    if (!toucher_begin(&toucher, warp, op, access->kind, access->strong, access->narrow)) {
        return;
    }
    toucher.access = access;
    toucher.cached = (op->flags & OP_CACHED) != 0;
    toucher.engine = access->agent != NULL || access->kind == ACCESS_ISSUE_WRITE ||
                     access->kind == ACCESS_ISSUE_READ;
    if (toucher.what == PLAIN_WRITE && (op->flags & OP_GIVES) != 0 && !toucher.engine &&
        changed_lanes(warp, op, access) == 0) {
        toucher.who |= WHO_SAME;
    }
    const uint32_t bytes = access->element * access->count;
    if (access->contiguous) {
        touch_range(&toucher, access->address[0], (uint64_t)bytes * LANES, ALL_LANES);
        toucher_end(&toucher);
        return;
    }
    uint64_t key = 0;
    struct mask mask = {0, 0};
    uint32_t lanes = 0;
    FOR_LANES(lane, access->good) {
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
    if (toucher_begin(&toucher, warp, op, kind, false, false)) {
        toucher.engine = true;
        touch_range(&toucher, address, bytes, warp->active);
        toucher_end(&toucher);
    }
}

/* ---- between clusters ------------------------------------------------------------------------ */

static bool comes_before(uint32_t a, uint32_t b) {
    return ((a & WHO_HANDED_ON) != 0 && (b & WHO_ACQUIRED) != 0) ||
           ((a & WHO_GIVES) != 0 && (b & WHO_TAKES) != 0);
}

static bool may_be_ordered(uint32_t a, uint32_t b) {
    return comes_before(a, b) || comes_before(b, a);
}

static void report_conflict(struct cluster *cluster, enum finding_kind kind, uint64_t key, int mine,
                            int theirs, const struct touched *other, uint32_t who) {
    static const char *const WORDS[TOUCHES] = {"read", "write", "volatile or atomic read",
                                               "volatile or atomic write"};
    const struct cluster_race *memory = cluster->race;
    const uint32_t slot = who_slot(who);
    const uint32_t warps = memory->places[0].warp_count;
    const struct cta_place *place = &memory->places[slot / warps];
    struct cta cta = {.launch = cluster->launch, .cluster = cluster, .linear = place->linear};
    memcpy(cta.id, place->id, sizeof(cta.id));
    struct warp warp = {.cta = &cta, .kernel = cluster->launch->kernel, .index = slot % warps};
    const struct finding_detail detail = {.space = PTX_GLOBAL,
                                          .address = key * LINE_BYTES,
                                          .bytes = LINE_BYTES,
                                          .other = op_of_id(cluster, other->who & WHO_OP)};
    char where[128];
    describe_address(&warp, PTX_GLOBAL, detail.address, where, sizeof(where));
    report(&warp, op_of_id(cluster, who & WHO_OP), kind, ALL_LANES, &detail,
           "this %s in the 128 bytes at %s and a %s by %s %u of the same bytes are not ordered%s",
           WORDS[mine], where, WORDS[theirs], cluster->cta_count > 1 ? "cluster" : "CTA",
           other->mark, kind == FINDING_RACE_SAME_VALUE ? "; the write left what was there" : "");
}

static bool changes_nothing(int what, const struct touched *touched) {
    return what == PLAIN_READ || what == STRONG_READ || (touched->who & WHO_SAME) != 0;
}

static void compare_lines(struct cluster *cluster, uint64_t key, const struct line *mine,
                          const struct line *theirs) {
    static const struct {
        int mine, theirs;
    } PAIRS[] = {
        {PLAIN_WRITE, PLAIN_WRITE},  {PLAIN_WRITE, PLAIN_READ},   {PLAIN_READ, PLAIN_WRITE},
        {PLAIN_WRITE, STRONG_WRITE}, {STRONG_WRITE, PLAIN_WRITE}, {PLAIN_WRITE, STRONG_READ},
        {STRONG_READ, PLAIN_WRITE},  {PLAIN_READ, STRONG_WRITE},  {STRONG_WRITE, PLAIN_READ}};
    for (size_t i = 0; i < sizeof(PAIRS) / sizeof(PAIRS[0]); i++) {
        const struct touched *a = &mine->touched[PAIRS[i].mine];
        const struct touched *b = &theirs->touched[PAIRS[i].theirs];
        if (overlap(a->bytes, b->bytes) && !may_be_ordered(a->who, b->who)) {
            const bool same =
                changes_nothing(PAIRS[i].mine, a) && changes_nothing(PAIRS[i].theirs, b);
            report_conflict(cluster, same ? FINDING_RACE_SAME_VALUE : FINDING_RACE_GLOBAL, key,
                            PAIRS[i].mine, PAIRS[i].theirs, b, a->who);
            return;
        }
    }
}

/* With the lines of the clusters before it. */
static void compare_line(struct launch *launch, struct cluster *cluster, uint64_t key,
                         struct line *mine) {
    const struct line_table *lines = launch->lines;
    const struct cluster_race *memory = cluster->race;
    for (int i = 0; i < TOUCHES; i++) {
        struct touched *touched = &mine->touched[i];
        const bool hands_on = i == STRONG_WRITE && memory->handed_on != NULL; /* itself */
        if (touched->who != 0 && (hands_on || is_handed_on(memory, touched))) {
            touched->who |= (uint32_t)WHO_HANDED_ON;
        }
        if (!is_given(memory, touched)) {
            touched->who &= ~(uint32_t)WHO_GIVES;
        }
    }
    for (uint32_t sets = lines->flag_sets; sets != 0; sets &= sets - 1) {
        const struct line *theirs = probe(lines, key * FLAG_SETS + (uint32_t)__builtin_ctz(sets));
        if (theirs->key != 0) {
            compare_lines(cluster, key, mine, theirs);
        }
    }
}

static void keep_line(struct launch *launch, const struct cluster *cluster, uint64_t key,
                      struct line *mine) {
    struct line_table *lines = launch->lines;
    struct line *line = NULL;
    for (int i = 0; i < TOUCHES; i++) {
        struct touched *touched = &mine->touched[i];
        const uint64_t flags = touched->who >> WHO_FLAGS;
        if (touched->who == 0) {
            continue;
        }
        if (line == NULL || line->key != key * FLAG_SETS + flags) {
            line = table_line(lines, key * FLAG_SETS + flags);
        }
        if (line != NULL) {
            touched->mark = cluster->linear;
            add_touched(&line->touched[i], touched, true);
            lines->flag_sets |= 1U << flags;
        }
    }
}

enum { COMPARE = 1, KEEP = 2 };
static void merge_lines(struct launch *launch, struct cluster *cluster, struct line_table *table,
                        uint32_t keys, int steps) {
    for (uint32_t i = 0; table != NULL && i < table->capacity; i++) {
        struct line *line = &table->lines[i];
        if (line->key != 0 && (steps & COMPARE) != 0) {
            compare_line(launch, cluster, line->key / keys, line);
        }
        if (line->key != 0 && (steps & KEEP) != 0) {
            keep_line(launch, cluster, line->key / keys, line);
        }
    }
}

static void free_cluster(struct cluster *cluster) {
    struct cluster_race *memory = cluster->race;
    if (memory == NULL) {
        return;
    }
    for (uint32_t i = 0; i < WORD_CLOCKS; i++) {
        clock_free(memory->words[i]);
    }
    for (uint32_t i = 0; i < memory->slot_count; i++) {
        clock_free(memory->slots[i].pending);
    }
    while (memory->agents != NULL) {
        struct agent *agent = memory->agents;
        memory->agents = agent->next;
        free(agent->flights);
        free(agent);
    }
    free_table(memory->lines);
    free_table(memory->aside);
    free(memory->wide);
    free(memory->given);
    free(memory->slots);
    free(memory->places);
    free(memory);
    cluster->race = NULL;
}

void race_merge_cluster(struct launch *launch, struct cluster *cluster) {
    struct cluster_race *memory = cluster->race;
    if (memory == NULL) {
        return;
    }
    launch->waits |= memory->waits;
    launch->signals_early |= memory->signals_early;
    if (launch->lines == NULL) {
        launch->lines = table_make(ALL_LINES_MAX);
    }
    if (launch->lines != NULL) { /* no line is compared with one of the same cluster */
        merge_lines(launch, cluster, memory->aside, FLAG_SETS, COMPARE);
        merge_lines(launch, cluster, memory->lines, 1, COMPARE | KEEP);
        merge_lines(launch, cluster, memory->aside, FLAG_SETS, KEEP);
        launch->lines->full |= (memory->lines != NULL && memory->lines->full) ||
                               (memory->aside != NULL && memory->aside->full);
    }
    free_cluster(cluster);
}

void race_note_unchecked(const struct launch *launch) {
    const struct line_table *lines = launch->lines;
    if (lines != NULL && lines->full) {
        report_kernel(launch->gpu, launch->kernel, NULL, FINDING_RACE_UNCHECKED,
                      "the launch accesses more global memory than is checked for races: %d MB of "
                      "a cluster, %d MB of a launch",
                      LINES_MAX / (1 << 10) * LINE_BYTES / (1 << 10),
                      ALL_LINES_MAX / (1 << 10) * LINE_BYTES / (1 << 10));
    }
}

void race_end_launch(struct launch *launch) {
    if (!launch->keeps_lines) {
        free_table(launch->lines);
        launch->lines = NULL;
    }
}
