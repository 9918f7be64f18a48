/* SPDX-License-Identifier: Apache-2.0
 *
 * work.c - the parent's side of `attest run`. See work.h.
 *
 * What is left to do is read from the evidence that follows from the pack so far, so that a run
 * that goes on and one that starts are the same. Emulation is spread over several children at once
 * ("lanes"); a device that is timed, or can be lost, has one.
 */
#include "run/work.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/conversation.h"
#include "base/json_read.h"
#include "base/message.h"
#include "base/progress.h"
#include "pack/evidence.h"

enum { LANES_MOST = MOST_LANES, GPU_LANES = MOST_LANES_GPU }; /* to which units are held */

/* Seconds without a line from the child: what the longest slot of a stage may take. */
static const double PATIENCE[STAGES] = {
    [INSPECT] = 120,   [EMULATE] = 300, [PARITY] = 300,
    [SANITIZE] = 2400, [BENCH] = 600,   [PROFILE] = 600,
};

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
    bool started;         /* and it has begun */
    double since;
};

/* ---- what is left to do ---------------------------------------------------------------------- */

/* Whether an earlier stage of the same variant, on this device or on none, failed. */
static bool is_blocked(const struct json_value *rows, size_t index, const char *variant,
                       const char *device) {
    for (size_t i = 0; i < index; i++) {
        const struct json_value *row = &rows->as.list.items[i];
        const struct json_value *subjects = json_at(row, "subjects");
        const enum stage stage = stage_of(json_text_of(json_at(row, "stage")));
        const bool same = strcmp(json_text_of(json_at(row, "device")), device) == 0;
        for (size_t k = 0;
             (same || stage == INSPECT || stage == EMULATE) && k < json_count_of(subjects); k++) {
            const struct json_value *subject = &subjects->as.list.items[k];
            const char *verdict = json_text_of(json_at(subject, "verdict"));
            if (strcmp(json_text_of(json_at(subject, "variant")), variant) == 0 &&
                (strcmp(verdict, GATE_NAMES[GATE_FAIL]) == 0 ||
                 strcmp(verdict, GATE_NAMES[GATE_INVALID]) == 0)) {
                return true;
            }
        }
    }
    return false;
}

/* The numbers of the row's subjects that are to be done, for free(). */
static size_t *find_slots(const struct pack *pack, size_t index, size_t *count, attn_error *why) {
    struct evidence evidence;
    *count = 0;
    if (!evidence_make(pack, &evidence, why)) {
        evidence_free(&evidence);
        return NULL;
    }
    struct json_value *document = json_read(evidence.text, evidence.text_bytes, why);
    const struct json_value *rows = json_at(document, "rows");
    const struct json_value *row = &rows->as.list.items[index];
    const struct json_value *subjects = json_at(row, "subjects");
    size_t *slots = calloc(json_count_of(subjects) + 1, sizeof *slots);
    for (size_t i = 0; slots != NULL && i < json_count_of(subjects); i++) {
        const struct json_value *subject = &subjects->as.list.items[i];
        const char *verdict = json_text_of(json_at(subject, "verdict"));
        const bool open = strcmp(verdict, GATE_NAMES[GATE_NOT_RUN]) == 0 ||
                          strcmp(verdict, GATE_NAMES[GATE_STALE]) == 0;
        if (open && json_text_of(json_at(subject, "unit")) == NULL &&
            !is_blocked(rows, index, json_text_of(json_at(subject, "variant")),
                        json_text_of(json_at(row, "device")))) {
            slots[(*count)++] = i;
        }
    }
    if (slots == NULL) {
        explain(why, "out of memory");
    }
    json_free(document);
    evidence_free(&evidence);
    return slots;
}

/* ---- a lane ---------------------------------------------------------------------------------- */

static const struct json_value *subject_of(const struct row_work *work, size_t slot) {
    return &json_at(work->row, "subjects")->as.list.items[slot];
}

static void show(struct row_work *work) {
    snprintf(work->label, sizeof work->label, "%s %s %zu/%zu",
             json_text_of(json_at(work->row, "stage")), json_text_of(json_at(work->row, "device")),
             work->done, work->total);
    progress_set(work->progress, (double)work->done / (double)work->total);
}

static void tick(void *user) {
    struct lane *lane = user;
    pthread_mutex_lock(&lane->work->lock);
    show(lane->work);
    pthread_mutex_unlock(&lane->work->lock);
}

static bool take_line(void *user, char *line) {
    struct lane *lane = user;
    struct row_work *work = lane->work;
    char *rest = line, *end;
    const char *word = strsep(&rest, "\t");
    if (rest != NULL && strcmp(word, "unwritable") == 0) {
        pthread_mutex_lock(&work->lock);
        work->unwritable = true;
        explain(&work->why, "%s", rest);
        pthread_mutex_unlock(&work->lock);
        return true;
    }
    if (rest == NULL || lane->next >= lane->count ||
        strtoul(rest, &end, 10) != lane->slots[lane->next]) {
        return false;
    }
    if (strcmp(word, "start") == 0 && !lane->started && *end == '\0') {
        lane->started = true;
        lane->since = clock_seconds();
        return true;
    }
    if (strcmp(word, "done") == 0 && lane->started && *end == '\t') {
        lane->started = false;
        lane->next++;
        pthread_mutex_lock(&work->lock);
        work->done++;
        show(work);
        pthread_mutex_unlock(&work->lock);
        return true;
    }
    return false;
}

/* One child for what is left of the lane. A slot that it died in becomes a broken unit; where it
 * died in none, the first one does, so that there is an end. */
static void run_child(struct lane *lane) {
    struct row_work *work = lane->work;
    char row[24], lanes[24], reason[700], *slots = malloc(24 * (lane->count + 1));
    attn_error why = {"out of memory"};
    if (slots == NULL) {
        work->unwritable = true;
        explain(&work->why, "%s", why.text);
        return;
    }
    size_t used = 0;
    slots[0] = '\0';
    for (size_t i = lane->next; i < lane->count; i++) {
        used += (size_t)sprintf(slots + used, "%s%zu", used > 0 ? "," : "", lane->slots[i]);
    }
    snprintf(row, sizeof row, "%zu", work->index);
    snprintf(lanes, sizeof lanes, "%zu", work->lanes);
    const char *const words[] = {"attest",         "run",   "--job", "slots",   "--out",
                                 work->pack->path, "--row", row,     "--slots", slots,
                                 "--lanes",        lanes,   NULL};
    char *argv[sizeof words / sizeof *words];
    memcpy(argv, words, sizeof argv); /* which nobody writes to, whatever their type */
    const size_t before = lane->next;
    lane->started = false;
    lane->since = clock_seconds();
    const struct conversation_terms terms = {
        .seconds = work->seconds, .each_line = true, .take = take_line, .tick = tick, .user = lane};
    const bool ended = converse(argv, &terms, &why);
    free(slots);
    if (conversation_signal() != 0 || work->unwritable || lane->next == lane->count ||
        (ended && lane->next > before)) {
        return;
    }
    snprintf(reason, sizeof reason, "%s", ended ? "the child did nothing" : why.text);
    pthread_mutex_lock(&work->lock);
    if (!run_unit_broken(work->pack, work->row, subject_of(work, lane->slots[lane->next]),
                         clock_seconds() - lane->since, reason, &work->why)) {
        work->unwritable = true;
    }
    lane->next++;
    work->done++;
    pthread_mutex_unlock(&work->lock);
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
    const enum stage stage = stage_of(json_text_of(json_at(row, "stage")));
    const bool gpu = names_gpu(json_text_of(json_at(row, "device")));
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    size_t lanes = 1;
    if (stage == EMULATE && cores > 1) {
        lanes = (size_t)cores;
    } else if (gpu && (stage == PARITY || stage == SANITIZE) && cores > 2) {
        lanes = cores < 2 * GPU_LANES ? (size_t)cores / 2 : GPU_LANES;
    }
    lanes = lanes > LANES_MOST ? LANES_MOST : lanes;
    return lanes > count ? count : lanes;
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
    for (size_t i = 0; i < started; i++) {
        pthread_join(threads[i], NULL);
    }
    return !work->unwritable;
}

static bool run_row(struct pack *pack, size_t index, const struct run_request *request,
                    attn_error *why) {
    const struct json_value *row = &json_at(pack->plan, "rows")->as.list.items[index];
    const struct json_value *absent = json_at(row, "absent");
    size_t count = 0;
    if (absent == NULL || absent->kind != JSON_NULL) {
        return true;
    }
    size_t *slots = find_slots(pack, index, &count, why);
    if (slots == NULL) {
        return false;
    }
    bool good = true;
    if (count > 0) {
        struct progress progress;
        const double patience = PATIENCE[stage_of(json_text_of(json_at(row, "stage")))];
        struct row_work work = {.pack = pack,
                                .row = row,
                                .index = index,
                                .seconds = request->timeout > 0 ? request->timeout : patience,
                                .lock = PTHREAD_MUTEX_INITIALIZER,
                                .progress = &progress,
                                .total = count};
        progress_start(&progress, work.label, false);
        show(&work);
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
