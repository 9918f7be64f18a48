/* SPDX-License-Identifier: Apache-2.0
 *
 * streams.c - see driver.h: which work of streams nothing orders. Work is done when it is
 * submitted, but on a GPU a launch or copy may run at the same time as those of other streams that
 * no event and no wait of the host orders before it. race/overlap.c compares what they accessed.
 *
 * Every stream, every event and the host have a vector clock: for each stream, how much of its work
 * comes before what they do next. The legacy stream waits for all others that are not non-blocking,
 * and they for it. A graph's nodes count as work of the stream that it was launched into; only
 * dependencies order them (dependencies.c).
 *
 * Launches and copies are kept until the host has waited for them, or there are too many. Nothing
 * is kept while all streams are ordered. A launch whose result is reused (repeat.c) is not
 * compared.
 *
 * Invariant: what is reported as not ordered has no path of events, streams and waits between.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver/driver.h"
#include "exec/exec.h"
#include "machine/device.h"
#include "report/record.h"

enum { WORKS_MOST = 64, LINES_MOST = 1 << 20, LEGACY = 0 };

static struct slot {
    void *stream;
    bool used, blocking, gone;
    struct order next; /* what comes before its next work, with its own */
} slots[STREAM_SLOTS];
static struct order host;

struct work {
    struct work *before;
    unsigned slot;
    uint32_t time;
    struct race_past *accessed; /* of a launch; NULL: a copy or a fill */
    uint64_t to, from;
    size_t bytes; /* of a copy */
    bool fills;
    uint64_t run; /* of a graph; 0: none, or its nodes are ordered as the stream's work */
    uint32_t index;
    struct ancestors ancestors;
};
static struct work *works;             /* the last one first */
static unsigned streams, non_blocking; /* that there are */
static bool overlapped;                /* work was submitted while there were such */
static void *graph_stream;             /* that a graph runs in */
static const struct object *graph;     /* NULL: none runs */
static uint64_t graph_runs;            /* so far */
static bool graph_splits;              /* its nodes may overlap */

/* ---- clocks ---------------------------------------------------------------------------------- */

static void join(struct order *into, const struct order *from) {
    for (int i = 0; i < STREAM_SLOTS; i++) {
        if (into->times[i] < from->times[i]) {
            into->times[i] = from->times[i];
        }
    }
}

static struct slot *slot_of(void *stream) {
    struct slot *unused = NULL;
    if ((uintptr_t)stream <= 1) {
        slots[LEGACY].used = true;
        return &slots[LEGACY];
    }
    for (int i = STREAM_SLOTS - 1; i > LEGACY; i--) {
        struct slot *slot = &slots[i];
        if (slot->used && !slot->gone && slot->stream == stream) {
            return slot;
        }
        if (!slot->used || (slot->gone && host.times[i] >= slot->next.times[i])) {
            unused = slot;
        }
    }
    if (unused != NULL) {
        const struct object *found = object_find(stream, OBJECT_STREAM);
        unused->stream = stream;
        unused->used = true;
        unused->gone = false;
        unused->blocking = found == NULL || !found->non_blocking;
    }
    return unused;
}

/* The stream's clock as of now; NULL: there are too many streams. */
static struct slot *slot_now(void *stream) {
    struct slot *slot = slot_of(stream);
    for (int i = 0; slot != NULL && i < STREAM_SLOTS; i++) {
        const bool waits =
            slot == &slots[LEGACY] ? slots[i].blocking : slot->blocking && i == LEGACY;
        if (slots[i].used && waits) {
            join(&slot->next, &slots[i].next);
        }
    }
    if (slot != NULL) {
        join(&slot->next, &host);
    }
    return slot;
}

/* Whether streams may overlap and races are checked. */
static bool is_active(void) {
    return (driver_state.gpu->config.checks & VGPU_CHECK_RACE) != 0 &&
           (overlapped || graph_splits || streams > 1 || non_blocking > 0);
}

/* ---- works ----------------------------------------------------------------------------------- */

static void work_free(struct work *work) {
    launch_forget(work->accessed);
    free(work);
}

/* Those that the host has waited for, or beyond the limits, go. */
static void forget_old(bool all) {
    uint32_t count = 0, lines = 0;
    for (struct work **link = &works; *link != NULL;) {
        struct work *work = *link;
        count++;
        lines += launch_size(work->accessed);
        if (all || work->time <= host.times[work->slot] || count > WORKS_MOST ||
            (lines > LINES_MOST && count > 1)) {
            *link = work->before;
            work_free(work);
        } else {
            link = &work->before;
        }
    }
}

static const char *name_of(const struct work *work, char *buffer, size_t size) {
    static const char *const NAMES[] = {"a copy", "a fill"};
    return work->accessed == NULL
               ? NAMES[work->fills]
               : vgpu_readable_name(launch_kernel_of(work->accessed)->function->name, buffer, size);
}

static void where(const struct race_access *access, char *buffer, size_t size) {
    vgpu_place place = {0};
    place_of(access->kernel->module->ptx, access->in, &place, NULL, NULL);
    const char *slash = place.file != NULL ? strrchr(place.file, '/') : NULL;
    if (access->in == NULL) {
        buffer[0] = '\0';
    } else if (place.file == NULL) {
        snprintf(buffer, size, " at PTX line %u", access->in->line);
    } else {
        snprintf(buffer, size, " at %s:%u", slash != NULL ? slash + 1 : place.file, place.line);
    }
}

static void describe(uint64_t address, char *buffer, size_t size) {
    const struct allocation *range = device_find(driver_state.gpu->memory, address);
    if (range != NULL && address < range->end) {
        snprintf(buffer, size, "\"%.60s\" + %llu", range->label,
                 (unsigned long long)(address > range->begin ? address - range->begin : 0));
    } else {
        snprintf(buffer, size, "0x%llx", (unsigned long long)address);
    }
}

static const char *verb(bool wrote) {
    return wrote ? "write" : "read";
}

/* The access by a launch, and the other work with its own access, if that is a launch. */
static void report_overlap(const struct race_overlap *found, const struct race_access *mine,
                           const struct race_access *other, bool other_wrote,
                           const struct work *work, bool later) {
    char place[160], line[160] = "", name[256];
    describe(found->address, place, sizeof place);
    if (other != NULL) {
        where(other, line, sizeof line);
    }
    const bool one_graph = graph_splits && work->run == graph_runs;
    report_kernel(driver_state.gpu, mine->kernel, mine->in, FINDING_RACE_STREAM,
                  "this %s in the 128 bytes at %s and a %s by %s%s%s, %s, are not ordered: %s",
                  verb(mine->wrote), place, verb(other_wrote), other != NULL ? "kernel " : "",
                  name_of(work, name, sizeof name), line,
                  one_graph ? "another node of the graph"
                  : later   ? "which was submitted later to another stream"
                            : "which was submitted before to another stream",
                  one_graph ? "no path of dependencies leads from one to the other"
                            : "no event and no wait of the host comes between");
}

/* A launch, and a copy or fill of [begin, end). */
static bool covers(const struct work *launch, const struct work *copy, uint64_t begin, bool written,
                   bool launch_is_new) {
    struct race_overlap found;
    if (begin == 0 ||
        !launch_covers(launch->accessed, begin, begin + copy->bytes, written, &found)) {
        return false;
    }
    found.address = found.address > begin ? found.address : begin;
    report_overlap(&found, &found.first, NULL, written, copy, !launch_is_new);
    return true;
}

static void compare(const struct work *work, const struct work *before) {
    struct race_overlap found;
    if (work->accessed != NULL && before->accessed != NULL) {
        if (launch_meets(work->accessed, before->accessed, &found)) {
            report_overlap(&found, &found.first, &found.second, found.second.wrote, before, false);
        }
        return;
    }
    const bool is_new = work->accessed != NULL;
    const struct work *launch = is_new ? work : before, *copy = is_new ? before : work;
    if (launch->accessed != NULL && !covers(launch, copy, copy->to, true, is_new)) {
        covers(launch, copy, copy->fills ? 0 : copy->from, false, is_new);
    }
}

static void *stream_of(const struct node *node) {
    return graph != NULL ? graph_stream : node->stream;
}

static bool is_ordered(const struct work *before, const struct work *work,
                       const struct order *now) {
    return work->run != 0 && work->run == before->run
               ? ancestors_have(&work->ancestors, before->index)
               : before->time <= now->times[before->slot];
}

/* The work of a node was done. Takes what it accessed. */
static void add(const struct node *node, struct work work) {
    struct slot *slot = slot_now(stream_of(node));
    overlapped = overlapped || (is_active() && !graph_splits);
    struct work *kept = slot != NULL && is_active() ? malloc(sizeof *kept) : NULL;
    if (graph_splits) {
        work.run = graph_runs;
        work.index = node->index;
        work.ancestors = node->before;
    }
    if (slot != NULL) {
        work.slot = (unsigned)(slot - slots);
        work.time = ++slot->next.times[work.slot];
    }
    if (kept == NULL) {
        work.before = NULL;
        launch_forget(work.accessed);
        return;
    }
    for (const struct work *before = works; before != NULL; before = before->before) {
        if (!is_ordered(before, &work, &slot->next)) {
            compare(&work, before);
        }
    }
    *kept = work;
    kept->before = works;
    works = kept;
    forget_old(false);
}

/* ---- what the driver calls ------------------------------------------------------------------- */

void streams_launch_begin(struct launch *launch) {
    if (is_active() && !driver_state.programmatic) {
        launch->keeps_lines = true;
    }
}

void streams_launch_end(const struct node *node, struct launch *launch) {
    const bool kept = !driver_state.programmatic && launch->keeps_lines;
    add(node, (struct work){.accessed = kept ? launch_leave(launch) : NULL});
}

void streams_copy(const struct node *node) {
    add(node, (struct work){.to = node->to,
                            .from = node->from,
                            .bytes = node->bytes,
                            .fills = node->kind == NODE_FILL});
    /* The host waits in cudaMemcpy, and in asynchronous copies to its pageable memory. */
    if ((uintptr_t)stream_of(node) <= 1 ||
        (graph == NULL && node->kind == NODE_COPY && unified_is_pageable(node->to))) {
        streams_wait(stream_of(node));
    }
}

void streams_made(struct object *stream, bool is_non_blocking) {
    stream->non_blocking = is_non_blocking;
    streams++;
    non_blocking += is_non_blocking;
}

void streams_gone(const struct object *stream) {
    streams--;
    non_blocking -= stream->non_blocking;
    for (int i = LEGACY + 1; i < STREAM_SLOTS; i++) {
        slots[i].gone = slots[i].gone || slots[i].stream == stream;
    }
}

void streams_record(struct object *event, void *stream) {
    const struct slot *slot = slot_now(stream);
    if (slot != NULL) {
        event->order = slot->next;
    } else {
        event->order = host;
    }
}

void streams_await(void *stream, const struct object *event) {
    struct slot *slot = slot_now(stream);
    if (slot != NULL) {
        join(&slot->next, &event->order);
    }
}

void streams_wait(void *stream) {
    const struct slot *slot = slot_now(stream);
    if (slot != NULL) {
        join(&host, &slot->next);
        forget_old(false);
    }
}

void streams_wait_event(const struct object *event) {
    join(&host, &event->order);
    forget_old(false);
}

void streams_wait_all(void) {
    for (int i = 0; i < STREAM_SLOTS; i++) {
        join(&host, &slots[i].next);
    }
    forget_old(false);
}

void streams_forget(void) {
    streams_wait_all();
    forget_old(true);
}

void streams_graph(void *stream, const struct object *begun) {
    graph_stream = stream;
    graph = begun;
    graph_runs += begun != NULL;
    graph_splits = begun != NULL && depends_partly(begun);
}
