/* SPDX-License-Identifier: Apache-2.0
 *
 * work.c - the slots of a plan, done by child processes. See run.h. A child does slots of one row
 * and answers in lines:
 *
 *     start K          before slot K
 *     at WHERE         the part of slot K that begins; named in the reason if the child dies in it
 *     done K           its unit is in the pack
 *     unwritable WHY   the pack cannot be written: it ends
 *
 * After a slot of which nothing could be observed it ends: the device may be lost, and the next
 * child opens it again. Emulation is spread over several children at once ("lanes"); a device that
 * is timed has one. What is left to do is read from the evidence that follows from the pack so far,
 * so that a new run and a resumed one are the same.
 *
 * Invariant: a unit is written after its slot ended, whole, or not at all.
 */
#include "run/run.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/conversation.h"
#include "base/json_read.h"
#include "base/message.h"
#include "base/progress.h"
#include "device/vgpu_findings.h"
#include "pack/evidence.h"
#include "stages/stage.h"

typedef bool recorder(const struct slot *slot, struct pack *pack, struct json *unit,
                      attn_error *why);
static const struct {
    recorder *record;
    double patience; /* seconds without a line from the child: what the longest slot may take */
} WORK[STAGES] = {
    [INSPECT] = {record_inspect, 120}, [EMULATE] = {record_emulate, 300},
    [PARITY] = {record_parity, 300},   [SANITIZE] = {record_sanitize, 2400},
    [BENCH] = {record_bench, 600},     [PROFILE] = {record_profile, 600},
};

/* ---- units ----------------------------------------------------------------------------------- */

/* Up to what was observed. */
static void unit_begin(struct memo *memo, const struct pack *pack, const struct json_value *row,
                       const struct json_value *subject) {
    struct json *json = &memo->json;
    memo_begin(memo);
    json_text(json, "schema", PACK_UNIT_SCHEMA);
    json_text(json, "stage", json_text_at(row, "stage"));
    json_text(json, "device", json_text_at(row, "device"));
    json_text(json, "variant", json_text_at(subject, "variant"));
    json_text(json, "image", json_text_at(subject, "image"));
    json_text(json, "tool", json_text_at(pack->plan, "tool"));
    json_text(json, "library", json_text_at(pack->plan, "library"));
    json_text(json, "seed", json_text_at(pack->plan, "seed"));
}

static bool unit_end(struct memo *memo, const struct pack *pack, double seconds, attn_error *why) {
    char name[SHA256_TEXT];
    size_t bytes = 0;
    json_real(&memo->json, "seconds", seconds);
    char *text = memo_text(memo, &bytes, why);
    const bool good = text != NULL && pack_add_unit(pack, text, name, why);
    free(text);
    return good;
}

/* A unit of a slot of which nothing was observed: why, and after how many seconds. */
static bool add_broken(const struct pack *pack, const struct json_value *row,
                       const struct json_value *subject, double seconds, const char *reason,
                       attn_error *why) {
    struct memo memo;
    unit_begin(&memo, pack, row, subject);
    json_text(&memo.json, "broken", reason);
    return unit_end(&memo, pack, seconds, why);
}

/* ---- the child ------------------------------------------------------------------------------- */

static bool record(struct pack *pack, const struct json_value *row,
                   const struct json_value *subject, int64_t after, struct json *unit,
                   attn_error *why) {
    const struct json_value *timings = json_at(subject, "timings");
    const struct json_value *cases = json_at(subject, "cases");
    struct slot slot = {
        .device = json_text_at(row, "device"),
        .variant = json_text_at(subject, "variant"),
        .image = json_text_at(subject, "image"),
        .seed = strtoull(json_text_at(pack->plan, "seed"), NULL, 16),
        .first_case = json_int_at(subject, "first_case", 1),
        .cases = json_int_of(cases != NULL ? cases : json_at(row, "cases"), 1),
        .launches = json_int_at(row, "launches", 1),
        .code = json_text_at(row, "code"),
        .async = json_text_at(row, "async"),
        .timings = json_int_of(timings != NULL ? timings : json_at(row, "timings"), 1),
        .quick = strcmp(json_text_at(pack->plan, "mode"), "quick") == 0,
        .following = after,
        .watched = true,
    };
    return device_alias(&slot.device, &slot.driver, why) &&
           WORK[stage_of(json_text_at(row, "stage"))].record(&slot, pack, unit, why);
}

/* Does a slot and answers; false: nothing was observed, or it cannot be written. */
static bool do_slot(struct pack *pack, const struct json_value *row, size_t index, int64_t after,
                    int64_t lanes) {
    const struct json_value *subject = json_item(json_at(row, "subjects"), index);
    const double started = clock_seconds();
    struct memo memo;
    attn_error cause = {""}, why = {""};
    conversation_answer("start\t%zu", index);
    unit_begin(&memo, pack, row, subject);
    const bool good = record(pack, row, subject, after, &memo.json, &cause);
    const double seconds = clock_seconds() - started;
    bool written = false;
    if (good) {
        json_int(&memo.json, "lanes", lanes);
        written = unit_end(&memo, pack, seconds, &why);
    } else {
        json_free(memo_end(&memo, NULL));
        written = add_broken(pack, row, subject, seconds, cause.text, &why);
    }
    if (written) {
        conversation_answer("done\t%zu", index);
    } else {
        conversation_answer("unwritable\t%s", why.text);
    }
    return good && written;
}

/* slots: "0,3,7". */
static void do_row(struct pack *pack, const struct json_value *row, const char *slots,
                   int64_t lanes) {
    const size_t count = json_count_of(json_at(row, "subjects"));
    int64_t after = 0;
    for (const char *at = slots; *at != '\0'; at++) {
        after += *at == ',';
    }
    bool more = true;
    for (const char *at = slots; more && after >= 0; after--) {
        char *end;
        const size_t index = strtoul(at, &end, 10);
        at = end + 1;
        more = index < count && do_slot(pack, row, index, after, lanes);
    }
    conversation_answer("end");
}

int run_slots(const char *path, int64_t row, const char *slots, int64_t lanes) {
    struct pack pack = {.path = NULL};
    attn_error why = {"the plan has no such row"};
    if (!conversation_joined()) {
        return complain("run: --job is what it tells its own child processes");
    }
    const bool opened = pack_open(&pack, path, &why);
    const struct json_value *rows = json_at(pack.plan, "rows");
    int status = EXIT_DONE;
    if (opened && row < (int64_t)json_count_of(rows)) {
        do_row(&pack, json_item(rows, (size_t)row), slots, lanes);
    } else {
        status = complain("run: %s", why.text);
    }
    pack_close(&pack);
    return status;
}

/* ---- the parent ------------------------------------------------------------------------------ */

enum { LANES_MOST = 32, GPU_LANES = 8 };

struct row_work {
    struct pack *pack;
    const struct json_value *row;
    size_t index, lanes;
    double seconds; /* of the watchdog */
    pthread_mutex_t lock;
    struct progress *progress;
    size_t total, done; /* slots of the row */
    char label[64];
    bool unwritable;
    attn_error why;
};

/* One child at a time, for its share of the slots. */
struct lane {
    struct row_work *work;
    size_t *slots, count; /* numbers of subjects */
    size_t next;          /* the first that has not ended */
    char at[64];          /* the part of it that runs; "": unknown */
    double since;
};

/* ---- what is left to do ---------------------------------------------------------------------- */

/* Whether an earlier stage of the same variant, on this device or on none, failed. */
static bool is_blocked(const struct evidence *evidence, const struct evidence_slot *slot) {
    for (const struct evidence_slot *other = evidence->slots; other < slot; other++) {
        const struct evidence_row *row = &evidence->rows[other->row];
        const bool counts = row->stage == INSPECT || row->stage == EMULATE ||
                            strcmp(row->device, evidence->rows[slot->row].device) == 0;
        if (counts && other->gate >= GATE_FAIL && other->row < slot->row &&
            strcmp(other->variant, slot->variant) == 0) {
            return true;
        }
    }
    return false;
}

static bool is_left(const struct evidence *evidence, const struct evidence_slot *slot) {
    return (slot->gate == GATE_NOT_RUN || slot->gate == GATE_STALE) && !slot->observed &&
           !is_blocked(evidence, slot);
}

/* 1 to `parts`: variants are assigned round-robin, in the order of the plan's list. */
static int64_t part_of(const struct pack *pack, const char *variant, int64_t parts) {
    const struct json_value *variants = json_at(pack->plan, "variants");
    size_t i = 0;
    while (i < json_count_of(variants) &&
           strcmp(json_text_at(json_item(variants, i), "name"), variant) != 0) {
        i++;
    }
    return (int64_t)i % parts + 1;
}

bool run_left(const struct pack *pack, int64_t parts, size_t *left, attn_error *why) {
    struct evidence evidence;
    memset(left, 0, (size_t)(parts + 1) * sizeof *left);
    const bool good = evidence_make(pack, &evidence, why);
    for (size_t i = 0; good && i < evidence.slot_count; i++) {
        const struct evidence_slot *slot = &evidence.slots[i];
        if (is_left(&evidence, slot)) {
            left[part_of(pack, slot->variant, parts)]++;
        }
    }
    evidence_free(&evidence);
    return good;
}

/* The numbers of the row's subjects that are to be done, for free(). */
static size_t *find_slots(const struct pack *pack, size_t index, const struct run_part *part,
                          size_t *count, attn_error *why) {
    struct evidence evidence;
    size_t *slots = NULL, number = 0;
    *count = 0;
    if (evidence_make(pack, &evidence, why)) {
        slots = must(calloc(evidence.slot_count + 1, sizeof *slots));
    }
    for (size_t i = 0; slots != NULL && i < evidence.slot_count; i++) {
        const struct evidence_slot *slot = &evidence.slots[i];
        if (slot->row == index && is_left(&evidence, slot) &&
            (part->of == 0 || part_of(pack, slot->variant, part->of) == part->number)) {
            slots[(*count)++] = number;
        }
        number += slot->row == index;
    }
    evidence_free(&evidence);
    return slots;
}

/* ---- a lane ---------------------------------------------------------------------------------- */

/* How far the row is, with `more` slots done. */
static void show(struct row_work *work, size_t more) {
    pthread_mutex_lock(&work->lock);
    work->done += more;
    snprintf(work->label, sizeof work->label, "%s %s %zu/%zu", json_text_at(work->row, "stage"),
             json_text_at(work->row, "device"), work->done, work->total);
    progress_set(work->progress, (double)work->done / (double)work->total);
    pthread_mutex_unlock(&work->lock);
}

static void tick(void *lane) {
    show(((struct lane *)lane)->work, 0);
}

static bool take_line(void *user, char *line) {
    struct lane *lane = user;
    struct row_work *work = lane->work;
    char *rest = line;
    const char *word = strsep(&rest, "\t");
    if (rest == NULL || lane->next >= lane->count) {
        return false;
    }
    if (strcmp(word, "unwritable") == 0) {
        pthread_mutex_lock(&work->lock);
        work->unwritable = true;
        explain(&work->why, "%s", rest);
        pthread_mutex_unlock(&work->lock);
        return true;
    }
    if (strcmp(word, "at") == 0) {
        snprintf(lane->at, sizeof lane->at, "%s: ", rest);
        return true;
    }
    const bool ends = strcmp(word, "done") == 0;
    if ((!ends && strcmp(word, "start") != 0) ||
        strtoul(rest, NULL, 10) != lane->slots[lane->next]) {
        return false;
    }
    lane->at[0] = '\0';
    if (ends) {
        lane->next++;
        show(work, 1);
    } else {
        lane->since = clock_seconds();
    }
    return true;
}

/* One child for what is left of the lane. A slot that it died in becomes a broken unit; where it
 * died in none, the first one does, so that there is an end. */
static void run_child(struct lane *lane) {
    struct row_work *work = lane->work;
    char row[24], lanes[24], *slots = must(malloc(24 * (lane->count + 1)));
    attn_error why = {""};
    size_t used = 0;
    slots[0] = '\0';
    for (size_t i = lane->next; i < lane->count; i++) {
        used += (size_t)sprintf(slots + used, "%s%zu", used > 0 ? "," : "", lane->slots[i]);
    }
    snprintf(row, sizeof row, "%zu", work->index);
    snprintf(lanes, sizeof lanes, "%zu", work->lanes);
    const char *const argv[] = {"attest",         "run",   "--job", "slots",   "--out",
                                work->pack->path, "--row", row,     "--slots", slots,
                                "--lanes",        lanes,   NULL};
    const size_t before = lane->next;
    lane->at[0] = '\0';
    lane->since = clock_seconds();
    attn_error reason;
    const struct conversation_terms terms = {
        .seconds = work->seconds, .each_line = true, .take = take_line, .tick = tick, .user = lane};
    const bool ended = converse(argv, &terms, &why);
    free(slots);
    if (conversation_signal() != 0 || work->unwritable || lane->next == lane->count ||
        (ended && lane->next > before)) {
        return;
    }
    explain(&reason, "%s%s", lane->at, ended ? "the child did nothing" : why.text);
    pthread_mutex_lock(&work->lock);
    work->unwritable = !add_broken(
        work->pack, work->row, json_item(json_at(work->row, "subjects"), lane->slots[lane->next]),
        clock_seconds() - lane->since, reason.text, &work->why);
    pthread_mutex_unlock(&work->lock);
    lane->next++;
    show(work, 1);
}

static void *run_lane(void *argument) {
    struct lane *lane = argument;
    while (lane->next < lane->count && !lane->work->unwritable && conversation_signal() == 0) {
        run_child(lane);
    }
    return NULL;
}

/* ---- a row ----------------------------------------------------------------------------------- */

/* The virtual GPU has every core. A GPU is shared where it mostly waits for the host, which
 * computes the reference or reads along with it. What is timed or counted has the machine to
 * itself. */
static size_t lanes_for(const struct json_value *row, size_t count) {
    const enum stage stage = stage_of(json_text_at(row, "stage"));
    const bool gpu = names_gpu(json_text_at(row, "device"));
    const bool emulated = json_is_at(row, "device", "vgpu");
    cpu_set_t set; /* a worker of a cluster has some of the machine's */
    const long cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    const size_t shared = cores < 4 ? 1 : cores < 2 * GPU_LANES ? (size_t)cores / 2 : GPU_LANES;
    const size_t lanes = emulated                                        ? (size_t)cores
                         : gpu && (stage == PARITY || stage == SANITIZE) ? shared
                                                                         : 1;
    const size_t most = count < LANES_MOST ? count : LANES_MOST;
    return lanes < most ? lanes : most;
}

static bool run_lanes(struct row_work *work, size_t *slots, size_t count) {
    struct lane lanes[LANES_MOST] = {{.work = NULL}};
    pthread_t threads[LANES_MOST];
    const size_t lane_count = lanes_for(work->row, count);
    size_t at = 0, started = 0;
    work->lanes = lane_count;
    if (lane_count > 1) {
        setenv("VGPU_THREADS", "1", 0); /* the lanes have the cores */
    }
    for (size_t i = 0; i < lane_count; i++) {
        const size_t share = (count - at) / (lane_count - i);
        lanes[i] = (struct lane){.work = work, .slots = slots + at, .count = share};
        at += share;
    }
    while (started + 1 < lane_count &&
           pthread_create(&threads[started], NULL, run_lane, &lanes[started]) == 0) {
        started++;
    }
    for (size_t i = started; i < lane_count; i++) { /* those without a thread of their own */
        run_lane(&lanes[i]);
    }
    while (started > 0) {
        pthread_join(threads[--started], NULL);
    }
    return !work->unwritable;
}

static bool run_row(struct pack *pack, size_t index, const struct run_request *request,
                    attn_error *why) {
    const struct json_value *row = json_item(json_at(pack->plan, "rows"), index);
    size_t count = 0;
    if (json_text_at(row, "absent") != NULL) {
        return true;
    }
    size_t *slots = find_slots(pack, index, &request->part, &count, why);
    if (slots == NULL) {
        return false;
    }
    bool good = true;
    if (count > 0) {
        struct progress progress;
        const double patience = WORK[stage_of(json_text_at(row, "stage"))].patience;
        struct row_work work = {.pack = pack,
                                .row = row,
                                .index = index,
                                .seconds = request->timeout > 0 ? request->timeout : patience,
                                .lock = PTHREAD_MUTEX_INITIALIZER,
                                .progress = &progress,
                                .total = count};
        progress_start(&progress, work.label, false);
        show(&work, 0);
        good = run_lanes(&work, slots, count) || explain(why, "%s", work.why.text);
        progress_stop(&progress);
    }
    free(slots);
    return good;
}

bool run_work(struct pack *pack, const struct run_request *request, attn_error *why) {
    const size_t count = json_count_of(json_at(pack->plan, "rows"));
    for (size_t i = 0; i < count && conversation_signal() == 0; i++) {
        if (!run_row(pack, i, request, why)) {
            return false;
        }
    }
    return true;
}
