/* SPDX-License-Identifier: Apache-2.0
 *
 * race.c - happens-before in shared memory. Each cell knows its last write and the last read by
 * each slot (memory.h says what slots and stamps are). A cell is 4 bytes; from the first access of
 * fewer bytes on, cells of that CTA are as small as that, so neighbouring bytes never meet.
 *
 * Two accesses race if one of them writes, none is ordered before the other, and not both are
 * strong (atomics, volatile and so on). Lanes of one warp are ordered by whatever synchronises the
 * warp; without that a conflict between two instructions is a warning. What an engine reads or
 * writes is "in flight" from its issue to its end, and then belongs to the slot of the clock it was
 * released into.
 *
 * Invariant: a stamp is never larger than the time of the cluster; an access whose cells all have
 * stamps below the warp's floor is in order and needs no look at who they were.
 */
#include <stdlib.h>
#include <string.h>

#include "memory.h"

enum { HIT_RACE, HIT_WARP, HIT_EARLY, HIT_OVERWRITE, HIT_PROXY };

/* Who it was, in 32 bits: op 15, lane 6, strong 1, slot 10 (of reads: the row's). */
enum { WHO_LANE = 15, WHO_STRONG = 1 << 21, WHO_SLOT = 22 };
#define WHO_OP 0x7fffU
static uint32_t who_lane(uint32_t who) {
    return who >> WHO_LANE & 63;
}

/* ---- cells ----------------------------------------------------------------------------------- */

bool race_allocate(struct cta_memory *cells, struct cluster_memory *memory) {
    const size_t count = (cells->bytes + 15) / 16 * 4;
    cells->cell_shift = 2;
    cells->cells = (uint32_t)count;
    cells->write_stamp = calloc(count + 1, sizeof(uint32_t));
    cells->write_who = calloc(count + 1, sizeof(uint32_t));
    cells->read_latest = calloc(count + 1, sizeof(uint32_t));
    cells->write_flight = calloc(count + 1, 1);
    cells->read_flight = calloc(count + 1, 1);
    cells->read_stamp = calloc(memory->slot_count, sizeof(uint32_t *));
    cells->read_who = calloc(memory->slot_count, sizeof(uint32_t *));
    cells->readers = calloc(memory->slot_count, sizeof(uint32_t));
    return cells->write_stamp != NULL && cells->write_who != NULL && cells->read_latest != NULL &&
           cells->write_flight != NULL && cells->read_flight != NULL && cells->read_stamp != NULL &&
           cells->read_who != NULL && cells->readers != NULL;
}

void race_free(struct cta_memory *cells) {
    for (uint32_t i = 0; i < cells->reader_count; i++) {
        free(cells->read_stamp[cells->readers[i]]);
        free(cells->read_who[cells->readers[i]]);
    }
    free(cells->write_stamp);
    free(cells->write_who);
    free(cells->read_latest);
    free(cells->write_flight);
    free(cells->read_flight);
    free(cells->read_stamp);
    free(cells->read_who);
    free(cells->readers);
}

static bool split_row(uint32_t **row, uint32_t count) {
    uint32_t *wide = malloc(((size_t)count * 2 + 1) * sizeof(*wide));
    if (wide == NULL) {
        return false;
    }
    for (uint32_t i = 0; i < count * 2; i++) {
        wide[i] = (*row)[i / 2];
    }
    free(*row);
    *row = wide;
    return true;
}

static bool split_bytes(uint8_t **row, uint32_t count) {
    uint8_t *wide = malloc((size_t)count * 2 + 1);
    if (wide == NULL) {
        return false;
    }
    for (uint32_t i = 0; i < count * 2; i++) {
        wide[i] = (*row)[i / 2];
    }
    free(*row);
    *row = wide;
    return true;
}

/* Halves the cells. False: no memory, and cells of different sizes: races are not checked any
 * more. */
static bool split_cells(struct cta_memory *cells) {
    bool good = split_row(&cells->write_stamp, cells->cells) &&
                split_row(&cells->write_who, cells->cells) &&
                split_row(&cells->read_latest, cells->cells) &&
                split_bytes(&cells->write_flight, cells->cells) &&
                split_bytes(&cells->read_flight, cells->cells);
    for (uint32_t i = 0; good && i < cells->reader_count; i++) {
        const uint32_t slot = cells->readers[i];
        good = split_row(&cells->read_stamp[slot], cells->cells) &&
               split_row(&cells->read_who[slot], cells->cells);
    }
    cells->cells = good ? cells->cells * 2 : 0;
    cells->cell_shift -= 1;
    return good;
}

static bool fit_cells(struct cta_memory *cells, uint32_t sizes) {
    while ((sizes & ((1U << cells->cell_shift) - 1)) != 0) {
        if (!split_cells(cells)) {
            return false;
        }
    }
    return cells->cells != 0;
}

static bool make_reader(struct cta_memory *cells, uint32_t slot) {
    if (cells->read_stamp[slot] != NULL) {
        return true;
    }
    uint32_t *stamp = calloc((size_t)cells->cells + 1, sizeof(*stamp));
    uint32_t *who = calloc((size_t)cells->cells + 1, sizeof(*who));
    if (stamp == NULL || who == NULL) {
        free(stamp);
        free(who);
        return false;
    }
    cells->read_stamp[slot] = stamp;
    cells->read_who[slot] = who;
    cells->readers[cells->reader_count++] = slot;
    return true;
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

/* Is the other access, of a lane of the same warp, in need of __syncwarp? */
static bool is_unsynced(const struct race *race, uint32_t stamp, uint32_t who, uint32_t other_lane,
                        uint32_t lane, bool other_strong) {
    return stamp >= race->sync && lane != LANE_ENGINE && other_lane != LANE_ENGINE &&
           (other_lane != lane || other_lane == LANE_SEVERAL) && (who & WHO_OP) != race->op_id &&
           !(other_strong && race->strong);
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
    const struct cta_memory *cells = race->cells;
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
        if (stamps[i] <= bound || (strong && race->strong) ||
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
    const struct cta_memory *cells = race->cells;
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

static inline __attribute__((always_inline)) void record_write(struct written row, uint32_t cell,
                                                               uint32_t n, uint32_t stamp,
                                                               uint32_t who, uint32_t lane,
                                                               uint32_t lane_shift) {
    uint32_t *restrict stamps = row.stamps + cell, *restrict whos = row.whos + cell;
    const uint32_t shift = lane < LANES ? lane_shift : 31;
    for (uint32_t i = 0; i < n; i++) {
        stamps[i] = stamp;
        whos[i] = who | (lane + (i >> shift)) << WHO_LANE;
    }
}

/* A cell that different lanes have read since the warp synchronised belongs to several; reads by
 * the warp's engines leave it to those lanes. */
static inline __attribute__((always_inline)) void record_read(struct read_by row, uint32_t cell,
                                                              uint32_t n, uint32_t stamp,
                                                              uint32_t who, uint32_t lane,
                                                              uint32_t lane_shift) {
    uint32_t *restrict stamps = row.stamps + cell, *restrict whos = row.whos + cell;
    uint32_t *restrict latest = row.latest + cell;
    const uint32_t shift = lane < LANES ? lane_shift : 31, sync = row.sync;
    if (lane == LANE_ENGINE) {
        for (uint32_t i = 0; i < n; i++) {
            whos[i] = stamps[i] >= sync ? whos[i] : who | (uint32_t)LANE_ENGINE << WHO_LANE;
            stamps[i] = stamp;
            latest[i] = stamp;
        }
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t mine = lane + (i >> shift), before = who_lane(whos[i]);
        const bool shared = (stamps[i] >= sync) & (before != mine) & (before != LANE_ENGINE);
        whos[i] = who | (shared ? (uint32_t)LANE_SEVERAL : mine) << WHO_LANE;
        stamps[i] = stamp;
        latest[i] = stamp;
    }
}

static struct written written_of(const struct cta_memory *cells) {
    return (struct written){cells->write_stamp, cells->write_who};
}

static struct read_by read_by_of(const struct cta_memory *cells, uint32_t slot, uint32_t sync) {
    return (struct read_by){cells->read_stamp[slot], cells->read_who[slot], cells->read_latest,
                            sync};
}

static void mark_flight(struct cta_memory *cells, const struct flight *flight, int step) {
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
        const uint32_t capacity = agent->capacity == 0 ? 4 : agent->capacity * 2;
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
    const uint32_t nobody = agent->memory->slot_count - 1;
    const uint32_t sync = agent->memory->slots[slot].sync;
    for (uint32_t i = 0; i < agent->count; i++) {
        const struct flight *flight = &agent->flights[i];
        struct cta_memory *cells = cta_memory(flight->cta);
        if (cells == NULL || cells->cells == 0) {
            continue;
        }
        mark_flight(cells, flight, -1);
        const uint32_t cell = flight->offset >> cells->cell_shift;
        const uint32_t n = flight->bytes >> cells->cell_shift;
        const uint32_t lane = slot < agent->memory->warp_slots ? flight->lane : LANE_ENGINE;
        const uint32_t per_lane = flight->per_lane >> cells->cell_shift;
        const uint32_t lane_shift = per_lane == 0 ? 31 : (uint32_t)__builtin_ctz(per_lane);
        const uint32_t who = op_id(agent->warp, agent->op);
        if (flight->writes) {
            record_write(written_of(cells), cell, n, stamp, who | slot << WHO_SLOT, lane,
                         lane_shift);
        } else if (slot != nobody && make_reader(cells, slot)) {
            record_read(read_by_of(cells, slot, sync), cell, n, stamp, who, lane, lane_shift);
        }
    }
}

/* ---- one access ------------------------------------------------------------------------------ */

bool race_begin(struct race *race, struct warp *warp, const struct op *op, struct cta *cta,
                enum access_kind kind, enum proxy proxy, bool strong, struct agent *agent) {
    const bool issue = kind == ACCESS_ISSUE_WRITE || kind == ACCESS_ISSUE_READ;
    struct cta_memory *cells = cta_memory(cta);
    if (warp->clock == NULL || cells->cells == 0 || (agent != NULL && !issue)) {
        return false;
    }
    struct cluster_memory *memory = warp->clock->memory;
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
    race->slot = warp->agent_index;
    race->now = memory->time;
    race->floor = slot->floor;
    race->sync = slot->sync;
    race->op_id = op_id(warp, op);
    for (int i = 0; i < RACE_HITS; i++) {
        race->hits[i].lanes = 0;
    }
    return issue || !is_read(kind) || make_reader(cells, race->slot);
}

static inline __attribute__((always_inline)) bool all_below(const uint32_t *stamps, uint32_t n,
                                                            uint32_t floor) {
    uint32_t above = 0;
    for (uint32_t i = 0; i < n; i++) {
        above |= stamps[i] >= floor;
    }
    return above == 0;
}

static void check_range(struct race *race, uint32_t cell, uint32_t n, uint32_t lane,
                        uint32_t lane_shift) {
    const struct cta_memory *cells = race->cells;
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
    struct cta_memory *cells = race->cells;
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
    struct cta_memory *cells = race->cells;
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
    const struct cta_memory *cells = race->cells;
    const bool reads = race->kind == ACCESS_READ;
    const bool look = cells->flights != 0 || race->proxy == PROXY_ASYNC;
    const uint32_t shift = cells->cell_shift, floor = race->floor, now = race->now;
    const uint32_t who = who_of(race) | (reads ? 0 : race->slot << WHO_SLOT);
    const uint32_t *latest = cells->read_latest;
    const struct written written = written_of(cells);
    const struct read_by read_by =
        reads ? read_by_of(cells, race->slot, race->sync) : (struct read_by){0};
    for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
        const uint32_t lane = (uint32_t)__builtin_ctz(rest);
        const uint32_t cell = (uint32_t)(addresses[lane] - base) >> shift;
        if (look || !all_below(written.stamps + cell, n, floor) ||
            (!reads && !all_below(latest + cell, n, floor))) {
            check_range(race, cell, n, lane, 31);
        }
        if (reads) {
            record_read(read_by, cell, n, now, who, lane, 31);
        } else {
            record_write(written, cell, n, now, who, lane, 31);
        }
    }
}

void race_lanes(struct race *race, const uint64_t *addresses, uint64_t base, uint32_t lanes,
                uint32_t bytes) {
    const bool issue = race->kind == ACCESS_ISSUE_WRITE || race->kind == ACCESS_ISSUE_READ;
    if (!fit_cells(race->cells, bytes)) {
        return;
    }
    switch (issue ? 0 : bytes >> race->cells->cell_shift) {
    case 1: touch_lanes(race, addresses, base, lanes, 1); break;
    case 2: touch_lanes(race, addresses, base, lanes, 2); break;
    case 4: touch_lanes(race, addresses, base, lanes, 4); break;
    case 8: touch_lanes(race, addresses, base, lanes, 8); break;
    default:
        for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
            const uint32_t lane = (uint32_t)__builtin_ctz(rest);
            race_range(race, (uint32_t)(addresses[lane] - base), bytes, bytes, lane);
        }
        break;
    }
}

/* ---- reports --------------------------------------------------------------------------------- */

static const char *kind_word(enum access_kind kind) {
    switch (kind) {
    case ACCESS_READ: return "this read";
    case ACCESS_WRITE: return "this write";
    case ACCESS_ATOMIC: return "this atomic";
    case ACCESS_ISSUE_WRITE: return "this asynchronous write";
    default: return "this asynchronous read";
    }
}

static void report_hit(struct race *race, int kind, const char *what) {
    static const enum finding_kind KINDS[RACE_HITS] = {
        FINDING_RACE, FINDING_RACE_WARP, FINDING_ASYNC_READ_EARLY, FINDING_ASYNC_OVERWRITE,
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
    memory_describe(race->warp, PTX_SHARED, detail.address, place, sizeof(place));
    if (other != NULL) {
        snprintf(by, sizeof(by), " (warp %u of block %u)", other->index, other->cta->linear);
    }
    report(race->warp, race->op, KINDS[kind], found->lanes, &detail, "%s of %s %s%s",
           kind_word(race->kind), place, what, by);
}

void race_end(struct race *race) {
    static const char *const WHATS[RACE_HITS] = {
        "is not ordered with an earlier access",
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
