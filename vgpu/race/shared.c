/* SPDX-License-Identifier: Apache-2.0
 *
 * shared.c - happens-before in shared memory. Each cell has its last write and the last read by
 * each slot (state.h explains slots and stamps). A cell is 4 bytes; after the first smaller access,
 * cells of that CTA have its size, so neighbouring bytes never conflict.
 *
 * Two accesses race if one is a write, neither happens before the other, and not both are strong
 * (atomics, volatile and so on). Lanes of one warp are ordered by anything that synchronises the
 * warp; without that a conflict between two instructions is a warning. Accesses of an engine are
 * "in flight" from issue to completion, and then belong to the slot of the clock they were released
 * into.
 *
 * Invariant: a stamp is never larger than the time of the cluster. If all stamps of the cells are
 * below the warp's floor, the access is ordered and its predecessors need not be known.
 */
#include <stdlib.h>
#include <string.h>

#include "machine/describe.h"
#include "race/state.h"
#include "report/finding.h"

enum { HIT_RACE, HIT_SAME_VALUE, HIT_WARP, HIT_EARLY, HIT_OVERWRITE, HIT_PROXY };

/* Who it was, in 32 bits: op 15, lane 6, strong 1, slot 10 (of reads: the row's). */
enum { WHO_LANE = 15, WHO_STRONG = 1 << 21, WHO_SLOT = 22 };
#define WHO_OP 0x7fffU
static uint32_t who_lane(uint32_t who) {
    return who >> WHO_LANE & 63;
}

/* Four cells at once; loops over cells that are known to be so many do not become vector code by
 * themselves. */
typedef uint32_t cells4 __attribute__((vector_size(16)));
static inline cells4 load_cells(const uint32_t *from) {
    cells4 cells;
    memcpy(&cells, from, sizeof(cells));
    return cells;
}
static inline void store_cells(uint32_t *to, cells4 cells) {
    memcpy(to, &cells, sizeof(cells));
}

/* ---- hits ------------------------------------------------------------------------------------ */

static void hit(struct race *race, int kind, uint32_t cell, uint32_t lane, uint32_t slot,
                const struct op *other) {
    struct race_hit *found = &race->hits[kind];
    if (found->lanes == 0) {
        found->offset = cell << race->cells->cell_shift;
        found->slot = slot;
        found->other = other;
    }
    found->lanes |= lane < LANES ? 1U << lane : race->warp->active;
}

static bool is_read(enum access_kind kind) {
    return kind == ACCESS_READ || kind == ACCESS_ISSUE_READ;
}

static uint32_t lane_at(uint32_t lane, uint32_t i, uint32_t lane_shift) {
    return lane < LANES ? lane + (i >> lane_shift) : lane;
}

/* Two strong accesses by lanes of one warp, both of them in step now: volatile ones do not order
 * lanes; atomics need no order, nor does a lane that waits for another one. */
static bool are_in_step(const struct race *race, uint32_t who, uint32_t other_lane) {
    const struct op *other = op_of_id(race->memory->cluster, who & WHO_OP);
    const uint32_t active = race->warp->active;
    return other != NULL && (other->flags & race->op->flags & OP_VOLATILE) != 0 &&
           (other_lane < LANES ? (active >> other_lane & 1) != 0 : (active & (active - 1)) != 0);
}

/* Is the other access, of a lane of the same warp, in need of __syncwarp? */
static bool is_unsynced(const struct race *race, uint32_t stamp, uint32_t who, uint32_t other_lane,
                        uint32_t lane, bool other_strong) {
    return stamp >= race->sync && lane != LANE_ENGINE && other_lane != LANE_ENGINE &&
           (other_lane != lane || other_lane == LANE_SEVERAL) && (who & WHO_OP) != race->op_id &&
           (!(other_strong && race->strong) || are_in_step(race, who, other_lane));
}

/* A plain store over another one: does it leave what it finds? */
static bool stores_same(struct race *race, uint32_t lane, bool other_strong) {
    if (race->access == NULL || race->kind != ACCESS_WRITE || race->strong || other_strong ||
        lane >= LANES) {
        return false;
    }
    if (!race->compared) {
        race->changed = changed_lanes(race->warp, race->op, race->access);
        race->compared = true;
    }
    return (race->changed >> lane & 1) == 0;
}

/* Are the last writes of n cells old, or by the lanes that touch them now? */
static bool are_own(const struct race *race, uint32_t cell, uint32_t n, uint32_t lane,
                    uint32_t lane_shift) {
    const uint32_t *stamps = race->cells->write_stamp + cell;
    const uint32_t *whos = race->cells->write_who + cell;
    const uint32_t floor = race->floor, mask = ~(uint32_t)(WHO_OP | WHO_STRONG);
    const uint32_t slot = race->slot << WHO_SLOT;
    uint32_t others = lane >= LANES;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t mine = slot | (lane + (i >> lane_shift)) << WHO_LANE;
        others |= stamps[i] >= floor && (whos[i] & mask) != mine;
    }
    return others == 0;
}

/* Against the last writes of n cells. */
static void check_writes(struct race *race, uint32_t cell, uint32_t n, uint32_t lane,
                         uint32_t lane_shift) {
    const struct race_cells *cells = race->cells;
    const uint32_t *seen = race->warp->clock->seen;
    if (are_own(race, cell, n, lane, lane_shift)) {
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t stamp = cells->write_stamp[cell + i], who = cells->write_who[cell + i];
        const uint32_t slot = who >> WHO_SLOT, mine = lane_at(lane, i, lane_shift);
        const bool strong = (who & WHO_STRONG) != 0;
        if (stamp < race->floor) {
            continue;
        }
        int kind = HIT_RACE;
        if (slot == race->slot) {
            if (!is_unsynced(race, stamp, who, who_lane(who), mine, strong)) {
                continue;
            }
            kind = HIT_WARP;
        } else if (stamp <= seen[slot] || (strong && race->strong)) {
            continue;
        } else if (slot >= race->memory->warp_slots) {
            kind = is_read(race->kind) ? HIT_EARLY : HIT_OVERWRITE;
        } else if (stores_same(race, mine, strong)) {
            kind = HIT_SAME_VALUE;
        }
        hit(race, kind, cell + i, mine, slot, op_of_id(race->memory->cluster, who & WHO_OP));
    }
}

static bool any_above(const uint32_t *stamps, uint32_t n, uint32_t bound) {
    uint32_t above = 0;
    for (uint32_t i = 0; i < n; i++) {
        above |= stamps[i] > bound;
    }
    return above != 0;
}

/* A write against the reads of n cells by one slot. */
static void check_reads_of(struct race *race, uint32_t slot, uint32_t cell, uint32_t n,
                           uint32_t lane, uint32_t lane_shift) {
    const bool own = slot == race->slot;
    const uint32_t bound = own ? race->sync - 1 : race->warp->clock->seen[slot];
    const uint32_t *stamps = race->cells->read_stamp[slot] + cell;
    const uint32_t *whos = race->cells->read_who[slot] + cell;
    if (!any_above(stamps, n, bound)) {
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t who = whos[i], mine = lane_at(lane, i, lane_shift);
        const bool strong = (who & WHO_STRONG) != 0;
        if (stamps[i] <= bound || (!own && strong && race->strong) ||
            (own && !is_unsynced(race, stamps[i], who, who_lane(who), mine, strong))) {
            continue;
        }
        const int kind = own                                ? HIT_WARP
                         : slot >= race->memory->warp_slots ? HIT_OVERWRITE
                                                            : HIT_RACE;
        hit(race, kind, cell + i, mine, slot, op_of_id(race->memory->cluster, who & WHO_OP));
    }
}

/* Who is under way over this cell? */
static const struct agent *agent_over(const struct race *race, uint32_t cell, bool writes) {
    const uint32_t offset = cell << race->cells->cell_shift;
    for (const struct agent *agent = race->memory->agents; agent != NULL; agent = agent->next) {
        for (uint32_t i = 0; i < agent->count; i++) {
            const struct flight *flight = &agent->flights[i];
            if (flight->cta == race->cta && flight->writes == writes && offset >= flight->offset &&
                offset - flight->offset < flight->bytes) {
                return agent;
            }
        }
    }
    return NULL;
}

static inline __attribute__((always_inline)) bool any_flight(const uint8_t *flights, uint32_t n) {
    uint64_t any = 0;
    if (n == 4) {
        return load_4(flights) != 0;
    }
    for (uint32_t i = 0; i < n; i++) {
        any |= flights[i];
    }
    return any != 0;
}

static void check_flights(struct race *race, const uint8_t *flights, bool writes, uint32_t cell,
                          uint32_t n, uint32_t lane, uint32_t lane_shift) {
    for (uint32_t i = 0; i < n; i++) {
        if (flights[cell + i] != 0) {
            const struct agent *agent = agent_over(race, cell + i, writes);
            if (agent != NULL && agent != race->agent) {
                hit(race, is_read(race->kind) ? HIT_EARLY : HIT_OVERWRITE, cell + i,
                    lane_at(lane, i, lane_shift), agent->warp->agent_index, agent->op);
                return;
            }
        }
    }
}

/* An engine touches what warps wrote: a proxy fence must lie between. */
static void check_proxy(struct race *race, uint32_t cell, uint32_t n, uint32_t lane,
                        uint32_t lane_shift) {
    const struct race_cells *cells = race->cells;
    const uint32_t *fenced = race->warp->clock->fenced;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t stamp = cells->write_stamp[cell + i], who = cells->write_who[cell + i];
        const uint32_t slot = who >> WHO_SLOT;
        if (stamp > fenced[slot] && slot < race->memory->warp_slots) {
            hit(race, HIT_PROXY, cell + i, lane_at(lane, i, lane_shift), slot,
                op_of_id(race->memory->cluster, who & WHO_OP));
        }
    }
}

/* ---- what is remembered ---------------------------------------------------------------------- */

/* The rows of what is remembered, from one cell on. */
struct written {
    uint32_t *stamps, *whos;
};
struct read_by {
    uint32_t *stamps, *whos, *latest;
    uint32_t sync; /* of the slot that reads */
};

/* The lanes of cells from the i-th on, as a part of who. */
static inline cells4 who_lanes(uint32_t lane, uint32_t i, uint32_t shift) {
    const cells4 numbers = {i, i + 1, i + 2, i + 3};
    return (lane + (numbers >> shift)) << WHO_LANE;
}

static inline __attribute__((always_inline)) void record_write(struct written row, uint32_t cell,
                                                               uint32_t n, uint32_t stamp,
                                                               uint32_t who, uint32_t lane,
                                                               uint32_t lane_shift) {
    uint32_t *stamps = row.stamps + cell, *whos = row.whos + cell, i = 0;
    const uint32_t shift = lane < LANES ? lane_shift : 31;
    for (; i + 4 <= n; i += 4) {
        store_cells(stamps + i, (cells4){stamp, stamp, stamp, stamp});
        store_cells(whos + i, who | who_lanes(lane, i, shift));
    }
    for (; i < n; i++) {
        stamps[i] = stamp;
        whos[i] = who | (lane + (i >> shift)) << WHO_LANE;
    }
}

/* Reads by the warp's engines leave a cell to the lanes that have read it since the warp
 * synchronised. */
static void record_engine_read(struct read_by row, uint32_t cell, uint32_t n, uint32_t stamp,
                               uint32_t who) {
    uint32_t *stamps = row.stamps + cell, *whos = row.whos + cell, *latest = row.latest + cell;
    for (uint32_t i = 0; i < n; i++) {
        whos[i] = stamps[i] >= row.sync ? whos[i] : who | (uint32_t)LANE_ENGINE << WHO_LANE;
        stamps[i] = latest[i] = stamp;
    }
}

/* A cell that different lanes have read since the warp synchronised belongs to several. */
static inline __attribute__((always_inline)) void record_read(struct read_by row, uint32_t cell,
                                                              uint32_t n, uint32_t stamp,
                                                              uint32_t who, uint32_t lane,
                                                              uint32_t lane_shift) {
    const uint32_t several = (uint32_t)LANE_SEVERAL << WHO_LANE, lane_bits = 63U << WHO_LANE;
    const uint32_t engine = (uint32_t)LANE_ENGINE << WHO_LANE;
    uint32_t *stamps = row.stamps + cell, *whos = row.whos + cell, *latest = row.latest + cell;
    const uint32_t shift = lane < LANES ? lane_shift : 31, sync = row.sync;
    uint32_t i = 0;
    if (lane == LANE_ENGINE) {
        record_engine_read(row, cell, n, stamp, who);
        return;
    }
    for (; i + 4 <= n; i += 4) {
        const cells4 mine = who_lanes(lane, i, shift), before = load_cells(whos + i) & lane_bits;
        const cells4 shared = (cells4)(load_cells(stamps + i) >= sync) & (cells4)(before != mine) &
                              (cells4)(before != engine);
        store_cells(whos + i, who | (shared & several) | (~shared & mine));
        store_cells(stamps + i, (cells4){stamp, stamp, stamp, stamp});
        store_cells(latest + i, (cells4){stamp, stamp, stamp, stamp});
    }
    for (; i < n; i++) {
        const uint32_t mine = (lane + (i >> shift)) << WHO_LANE, before = whos[i] & lane_bits;
        const bool shared = (stamps[i] >= sync) & (before != mine) & (before != engine);
        whos[i] = who | (shared ? several : mine);
        stamps[i] = latest[i] = stamp;
    }
}

static struct written written_of(const struct race_cells *cells) {
    return (struct written){cells->write_stamp, cells->write_who};
}

static struct read_by read_by_of(const struct race_cells *cells, uint32_t slot, uint32_t sync) {
    return (struct read_by){cells->read_stamp[slot], cells->read_who[slot], cells->read_latest,
                            sync};
}

static void mark_flight(struct race_cells *cells, const struct flight *flight, int step) {
    uint8_t *marks = flight->writes ? cells->write_flight : cells->read_flight;
    const uint32_t cell = flight->offset >> cells->cell_shift;
    const uint32_t n = flight->bytes >> cells->cell_shift;
    for (uint32_t i = 0; i < n; i++) {
        marks[cell + i] = (uint8_t)(marks[cell + i] + step);
    }
    cells->flights = (uint32_t)((int)cells->flights + step);
}

static void record_flight(struct race *race, uint32_t offset, uint32_t bytes, uint32_t per_lane,
                          uint32_t lane) {
    struct agent *agent = race->agent;
    if (agent == NULL) {
        return;
    }
    if (agent->count == agent->capacity) {
        const uint32_t capacity = agent->capacity == 0 ? LANES : agent->capacity * 2;
        struct flight *flights = realloc(agent->flights, capacity * sizeof(*flights));
        if (flights == NULL) {
            return;
        }
        agent->flights = flights;
        agent->capacity = capacity;
    }
    struct flight *flight = &agent->flights[agent->count++];
    *flight = (struct flight){
        race->cta, offset, bytes, per_lane, lane, race->kind == ACCESS_ISSUE_WRITE, race->proxy};
    mark_flight(race->cells, flight, 1);
}

void race_land(const struct agent *agent, uint32_t slot, uint32_t stamp) {
    const uint32_t no_slot = agent->memory->slot_count - 1;
    const uint32_t sync = agent->memory->slots[slot].sync;
    const uint32_t who = agent->count > 0 ? op_id(agent->warp, agent->op) : 0;
    for (uint32_t i = 0; i < agent->count; i++) {
        const struct flight *flight = &agent->flights[i];
        struct race_cells *cells = flight->cta->cells;
        if (cells == NULL || cells->cells == 0) {
            continue;
        }
        mark_flight(cells, flight, -1);
        const uint32_t cell = flight->offset >> cells->cell_shift;
        const uint32_t n = flight->bytes >> cells->cell_shift;
        const uint32_t lane = slot < agent->memory->warp_slots ? flight->lane : LANE_ENGINE;
        const uint32_t per_lane = flight->per_lane >> cells->cell_shift;
        const uint32_t lane_shift = per_lane == 0 ? 31 : (uint32_t)__builtin_ctz(per_lane);
        if (flight->writes) {
            record_write(written_of(cells), cell, n, stamp, who | slot << WHO_SLOT, lane,
                         lane_shift);
        } else if (slot != no_slot && make_reader(cells, slot)) {
            record_read(read_by_of(cells, slot, sync), cell, n, stamp, who, lane, lane_shift);
        }
    }
}

/* ---- other CTAs ------------------------------------------------------------------------------ */

/* The last access of a slot to the memory of another CTA. */
struct visit {
    uint32_t stamp, lanes; /* 0: none */
    const struct op *op;
};

static void record_visit(const struct race *race, uint32_t lanes) {
    struct race_cells *cells = race->cells;
    if (cells->visits == NULL) {
        cells->visits = calloc(race->memory->slot_count, sizeof(*cells->visits));
    }
    if (cells->visits != NULL) {
        cells->visits[race->slot] = (struct visit){race->now, lanes, race->op};
    }
}

void race_leave(struct warp *warp) {
    struct cta *cta = warp->cta;
    struct race_cells *cells = cta->cells;
    if (warp->clock == NULL || cells == NULL || cta->cluster->cta_count == 1) {
        return;
    }
    if (cells->leaving == NULL) {
        cells->leaving = clock_make(cta->cluster);
    }
    clock_join(cells->leaving, warp->clock);
    const uint32_t slots = warp->clock->memory->warp_slots;
    for (uint32_t i = 0; cta->alive == 0 && cells->visits != NULL && i < slots; i++) {
        const struct visit *visit = &cells->visits[i];
        struct warp *other = visit->lanes != 0 ? warp_of_slot(cta->cluster, i) : NULL;
        if (other != NULL && cells->leaving != NULL && visit->stamp > cells->leaving->seen[i]) {
            report(other, visit->op, FINDING_CLUSTER_EXIT, visit->lanes,
                   &(struct finding_detail){.space = PTX_SHARED},
                   "CTA %u of the cluster, whose shared memory this accesses, may have ended by "
                   "then: it ends without waiting for it",
                   cta->rank);
        }
    }
}

/* ---- one access ------------------------------------------------------------------------------ */

bool race_begin(struct race *race, struct warp *warp, const struct op *op, struct cta *cta,
                enum access_kind kind, enum proxy proxy, bool strong, struct agent *agent) {
    const bool issue = kind == ACCESS_ISSUE_WRITE || kind == ACCESS_ISSUE_READ;
    struct race_cells *cells = cta->cells;
    if (warp->clock == NULL || cells->cells == 0 || (agent != NULL && !issue)) {
        return false;
    }
    struct cluster_race *memory = warp->clock->memory;
    struct slot *slot = &memory->slots[warp->agent_index];
    if (slot->start == 0) {
        slot->start = memory->time;
    }
    race->warp = warp;
    race->op = op;
    race->cta = cta;
    race->cells = cells;
    race->memory = memory;
    race->kind = kind;
    race->proxy = proxy;
    race->strong = strong || kind == ACCESS_ATOMIC;
    race->agent = agent;
    race->access = NULL;
    race->compared = false;
    race->slot = warp->agent_index;
    race->now = memory->time;
    race->floor = slot->floor;
    race->sync = slot->sync;
    race->op_id = op_id(warp, op);
    for (int i = 0; i < RACE_HITS; i++) {
        race->hits[i].lanes = 0;
    }
    /* an access by an engine is covered by the wait for the engine */
    if (cta != warp->cta && agent == NULL && (op->in == NULL || !ptx_has(op->in, "async"))) {
        record_visit(race, warp->active);
    }
    return issue || !is_read(kind) || make_reader(cells, race->slot);
}

static inline __attribute__((always_inline)) bool all_below(const uint32_t *stamps, uint32_t n,
                                                            uint32_t floor) {
    cells4 blocks = {0};
    uint32_t above = 0, i = 0;
    for (; i + 4 <= n; i += 4) {
        blocks |= (cells4)(load_cells(stamps + i) >= floor);
    }
    for (; i < n; i++) {
        above |= stamps[i] >= floor;
    }
    return (above | blocks[0] | blocks[1] | blocks[2] | blocks[3]) == 0;
}

static void check_range(struct race *race, uint32_t cell, uint32_t n, uint32_t lane,
                        uint32_t lane_shift) {
    const struct race_cells *cells = race->cells;
    if (cells->flights != 0) {
        check_flights(race, cells->write_flight, true, cell, n, lane, lane_shift);
        if (!is_read(race->kind)) {
            check_flights(race, cells->read_flight, false, cell, n, lane, lane_shift);
        }
    }
    if (!all_below(cells->write_stamp + cell, n, race->floor)) {
        check_writes(race, cell, n, lane, lane_shift);
    }
    if (!is_read(race->kind) && !all_below(cells->read_latest + cell, n, race->floor)) {
        for (uint32_t i = 0; i < cells->reader_count; i++) {
            check_reads_of(race, cells->readers[i], cell, n, lane, lane_shift);
        }
    }
    if (race->proxy == PROXY_ASYNC) {
        check_proxy(race, cell, n, lane, lane_shift);
    }
}

static uint32_t who_of(const struct race *race) {
    return race->op_id | (race->strong ? (uint32_t)WHO_STRONG : 0);
}

/* Cells of lanes side by side. */
static void touch_cells(struct race *race, uint32_t cell, uint32_t n, uint32_t lane,
                        uint32_t lane_shift) {
    struct race_cells *cells = race->cells;
    check_range(race, cell, n, lane, lane_shift);
    if (race->kind == ACCESS_READ) {
        record_read(read_by_of(cells, race->slot, race->sync), cell, n, race->now, who_of(race),
                    lane, lane_shift);
    } else {
        record_write(written_of(cells), cell, n, race->now, who_of(race) | race->slot << WHO_SLOT,
                     lane, lane_shift);
    }
}

void race_range(struct race *race, uint32_t offset, uint32_t bytes, uint32_t per_lane,
                uint32_t lane) {
    struct race_cells *cells = race->cells;
    if (!fit_cells(cells, offset | per_lane | bytes)) {
        return;
    }
    const uint32_t cell = offset >> cells->cell_shift, n = bytes >> cells->cell_shift;
    const uint32_t lane_shift = (uint32_t)__builtin_ctz(per_lane >> cells->cell_shift);
    if (race->kind == ACCESS_ISSUE_WRITE || race->kind == ACCESS_ISSUE_READ) {
        check_range(race, cell, n, lane, lane_shift);
        record_flight(race, offset, bytes, per_lane, lane);
    } else {
        touch_cells(race, cell, n, lane, lane_shift);
    }
}

/* Lanes anywhere; inlined with n known where it matters. What the loop needs is in variables: the
 * compiler must not think that the cells may be parts of `race`. */
static inline __attribute__((always_inline)) void touch_lanes(struct race *race,
                                                              const uint64_t *addresses,
                                                              uint64_t base, uint32_t lanes,
                                                              uint32_t n) {
    const struct race_cells *cells = race->cells;
    const bool reads = is_read(race->kind), proxied = race->proxy == PROXY_ASYNC;
    const bool issue = race->kind == ACCESS_ISSUE_WRITE || race->kind == ACCESS_ISSUE_READ;
    const uint32_t shift = cells->cell_shift, floor = race->floor, now = race->now;
    const uint32_t who = who_of(race) | (reads ? 0 : race->slot << WHO_SLOT);
    const uint32_t *latest = cells->read_latest;
    const uint8_t *writing = cells->write_flight, *reading = cells->read_flight;
    const struct written written = written_of(cells);
    const struct read_by read_by =
        reads && !issue ? read_by_of(cells, race->slot, race->sync) : (struct read_by){0};
    FOR_LANES(lane, lanes) {
        const uint32_t offset = (uint32_t)(addresses[lane] - base), cell = offset >> shift;
        if (proxied || any_flight(writing + cell, n) ||
            !all_below(written.stamps + cell, n, floor) ||
            (!reads && (any_flight(reading + cell, n) || !all_below(latest + cell, n, floor)))) {
            check_range(race, cell, n, lane, 31);
        }
        if (issue) {
            record_flight(race, offset, n << shift, n << shift, lane);
        } else if (reads) {
            record_read(read_by, cell, n, now, who, lane, 31);
        } else {
            record_write(written, cell, n, now, who, lane, 31);
        }
    }
}

void race_lanes(struct race *race, const uint64_t *addresses, uint64_t base, uint32_t lanes,
                uint32_t bytes) {
    if (!fit_cells(race->cells, bytes)) {
        return;
    }
    const uint32_t n = bytes >> race->cells->cell_shift;
    switch (n) {
    case 1: touch_lanes(race, addresses, base, lanes, 1); break;
    case 2: touch_lanes(race, addresses, base, lanes, 2); break;
    case 4: touch_lanes(race, addresses, base, lanes, 4); break;
    case 8: touch_lanes(race, addresses, base, lanes, 8); break;
    default: touch_lanes(race, addresses, base, lanes, n); break;
    }
}

/* ---- reports --------------------------------------------------------------------------------- */

static void report_hit(struct race *race, int kind, const char *what) {
    static const enum finding_kind KINDS[RACE_HITS] = {FINDING_RACE,
                                                       FINDING_RACE_SAME_VALUE,
                                                       FINDING_RACE_WARP,
                                                       FINDING_ASYNC_READ_EARLY,
                                                       FINDING_ASYNC_OVERWRITE,
                                                       FINDING_PROXY_FENCE};
    const struct race_hit *found = &race->hits[kind];
    const struct warp *other = warp_of_slot(race->memory->cluster, found->slot);
    const struct finding_detail detail = {
        .space = PTX_SHARED,
        .address = SHARED_BASE + found->offset,
        .bytes = 1U << race->cells->cell_shift,
        .other = found->other,
        .other_warp = other,
        .other_warp_index = other != NULL ? other->index : race->warp->index,
    };
    char place[128], by[64] = "";
    describe_address(race->warp, PTX_SHARED, detail.address, place, sizeof(place));
    if (other != NULL) {
        snprintf(by, sizeof(by), " (warp %u of CTA %u)", other->index, other->cta->linear);
    }
    report(race->warp, race->op, KINDS[kind], found->lanes, &detail, "this %s of %s %s%s",
           access_verb(race->kind), place, what, by);
}

void race_end(struct race *race) {
    static const char *const WHATS[RACE_HITS] = {
        "is not ordered with an earlier access",
        "is not ordered with an earlier one, of the same value",
        "touches what another lane of the warp touched, without __syncwarp between them",
        "does not wait for the asynchronous operation that writes there",
        "does not wait for the asynchronous operation that is at work there",
        "has no fence.proxy.async between it and the ordinary write of these bytes"};
    for (int i = 0; i < RACE_HITS; i++) {
        if (race->hits[i].lanes != 0) {
            report_hit(race, i, WHATS[i]);
        }
    }
}
