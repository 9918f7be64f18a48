/* SPDX-License-Identifier: Apache-2.0
 *
 * run.c - one run of a sample on the device.
 *
 * A GPU gets a copy of each tensor together with the bytes around it, and everything is fetched
 * back after the run: what the kernel wrote where it should not have is found in the sample as if a
 * CPU had done it. A CPU computes in the sample itself, between its pages without access.
 *
 * Invariant: the outputs hold NaN bytes before each run, on whatever device.
 */
#include <stdlib.h>
#include <string.h>

#include "base/message.h"
#include "stages/parity/parity.h"

/* Of the device's blocks, on either side: the sample's own bands end where a host's page without
 * access begins. A multiple of every alignment that a problem can ask for. */
enum { BAND = 4096 };

/* ---- the sample on the device ---------------------------------------------------------------- */

/* Where the byte at `host` lies on the device; NULL stays NULL. */
static void *translate(const struct mirror *mirror, const struct sample *s, const void *host) {
    const uintptr_t at = (uintptr_t)host;
    for (int i = 0; i < SAMPLE_BLOCKS; i++) {
        const uintptr_t body = (uintptr_t)s->blocks[i].body;
        if (mirror->blocks[i] != NULL && at >= body && at <= body + s->blocks[i].body_size) {
            return mirror->blocks[i] + BAND + (at - body);
        }
    }
    return NULL;
}

static bool upload(const struct mirror *mirror, const struct sample *s, int index,
                   attn_error *why) {
    return device_write(mirror->device, mirror->blocks[index] + BAND, s->blocks[index].body,
                        s->blocks[index].body_size, why);
}

bool mirror_make(struct mirror *mirror, struct device *device, const struct sample *s,
                 attn_error *why) {
    *mirror = (struct mirror){.device = device, .tensors = s->tensors};
    if (!device_is_gpu(device)) {
        return true;
    }
    for (int i = 0; i < SAMPLE_BLOCKS; i++) {
        if (s->blocks[i].body == NULL) {
            continue;
        }
        const size_t size = s->blocks[i].body_size + 2 * (size_t)BAND;
        mirror->blocks[i] = device_alloc(device, size, why);
        if (mirror->blocks[i] == NULL || !device_fill(device, mirror->blocks[i], 0xFF, size, why) ||
            !upload(mirror, s, i, why)) {
            mirror_free(mirror);
            return false;
        }
    }
    attn_tensors *t = &mirror->tensors;
    t->q = translate(mirror, s, t->q);
    t->k = translate(mirror, s, t->k);
    t->v = translate(mirror, s, t->v);
    t->o = translate(mirror, s, t->o);
    t->lse = translate(mirror, s, t->lse);
    t->bias = translate(mirror, s, t->bias);
    t->mask = translate(mirror, s, t->mask);
    t->alibi_slopes = translate(mirror, s, t->alibi_slopes);
    t->sink = translate(mirror, s, t->sink);
    t->cu_seqlens_q = translate(mirror, s, t->cu_seqlens_q);
    t->cu_seqlens_kv = translate(mirror, s, t->cu_seqlens_kv);
    t->used_kv = translate(mirror, s, t->used_kv);
    return true;
}

void mirror_free(struct mirror *mirror) {
    for (int i = 0; i < SAMPLE_BLOCKS; i++) {
        if (mirror->blocks[i] != NULL) {
            device_free(mirror->device, mirror->blocks[i]);
            mirror->blocks[i] = NULL;
        }
    }
}

static bool poison(const struct mirror *mirror, struct sample *s, attn_error *why) {
    sample_poison(s);
    return !device_is_gpu(mirror->device) ||
           (upload(mirror, s, BLOCK_O, why) && upload(mirror, s, BLOCK_LSE, why));
}

static bool fetch(const struct mirror *mirror, struct sample *s, int index, attn_error *why) {
    return mirror->blocks[index] == NULL ||
           device_read(mirror->device, s->blocks[index].body, mirror->blocks[index] + BAND,
                       s->blocks[index].body_size, why);
}

bool mirror_fetch_inputs(const struct mirror *mirror, struct sample *s, attn_error *why) {
    for (int i = 0; i < SAMPLE_BLOCKS; i++) {
        if (i != BLOCK_O && i != BLOCK_LSE && !fetch(mirror, s, i, why)) {
            return false;
        }
    }
    return true;
}

/* The bands on either side of `size` bytes of the device. */
static enum run_result check_bands(struct device *device, const unsigned char *block, size_t size,
                                   const char *what, attn_error *why) {
    unsigned char bytes[2 * BAND];
    if (!device_read(device, bytes, block, BAND, why) ||
        !device_read(device, bytes + BAND, block + BAND + size, BAND, why)) {
        return RUN_LOST;
    }
    if (is_poison(bytes, sizeof bytes)) {
        return RUN_DONE;
    }
    explain(why, "bytes far beside %s were written on the device, %s", what,
            is_poison(bytes, BAND) ? "after its end" : "before its start");
    return RUN_WRONG;
}

/* ---- the workspace --------------------------------------------------------------------------- */

struct workspace {
    struct guarded host;  /* CPU */
    unsigned char *block; /* GPU: with bands */
    void *memory;         /* what the library is given; NULL where it needs none */
    size_t size;
};

static bool workspace_make(struct workspace *w, const struct target *t, const attn_plan *plan,
                           bool at_end, attn_error *why) {
    *w = (struct workspace){.size = attn_workspace_size(plan)};
    if (w->size == 0) {
        return true;
    }
    if (!device_is_gpu(t->device)) {
        w->memory = guarded_alloc(&w->host, w->size, attn_workspace_alignment(plan), at_end)
                        ? w->host.data
                        : NULL;
        return w->memory || explain(why, "no memory for a workspace of %zu bytes", w->size);
    }
    w->block = device_alloc(t->device, w->size + 2 * (size_t)BAND, why);
    if (w->block == NULL ||
        !device_fill(t->device, w->block, 0xFF, w->size + 2 * (size_t)BAND, why)) {
        return false;
    }
    w->memory = w->block + BAND;
    return true;
}

static enum run_result workspace_intact(const struct workspace *w, const struct target *t,
                                        attn_error *why) {
    if (w->block != NULL) {
        return check_bands(t->device, w->block, w->size, "the workspace", why);
    }
    if (guarded_intact(&w->host)) {
        return RUN_DONE;
    }
    explain(why, "bytes beside the workspace were written");
    return RUN_WRONG;
}

static void workspace_free(struct workspace *w, const struct target *t) {
    guarded_free(&w->host);
    device_free(t->device, w->block);
}

/* ---- the run --------------------------------------------------------------------------------- */

static enum run_result refused(attn_status status, const char *call, attn_error *why) {
    const attn_error sentence = *why;
    explain(why, "%s: %.300s", call, sentence.text);
    return status == ATTN_DEVICE ? RUN_LOST : RUN_WRONG;
}

/* Poisons, launches, waits and fetches the outputs. */
static enum run_result launch(const struct target *t, const attn_plan *plan, struct mirror *mirror,
                              struct sample *s, const struct workspace *w, void *stream,
                              attn_error *why) {
    if (!poison(mirror, s, why)) {
        return RUN_LOST;
    }
    const attn_status status =
        attn_forward(plan, &mirror->tensors, w->memory, w->size, stream, why);
    if (status != ATTN_OK) {
        return refused(status, "attn_forward", why);
    }
    return device_wait(t->device, why) && fetch(mirror, s, BLOCK_O, why) &&
                   fetch(mirror, s, BLOCK_LSE, why)
               ? RUN_DONE
               : RUN_LOST;
}

static enum run_result look_for_damage(const struct target *t, const struct mirror *mirror,
                                       struct sample *s, const struct workspace *w,
                                       attn_error *why) {
    if (!mirror_fetch_inputs(mirror, s, why)) {
        return RUN_LOST;
    }
    const char *damage = sample_damage(s);
    if (damage != NULL) {
        explain(why, "%s", damage);
        return RUN_WRONG;
    }
    enum run_result result = RUN_DONE;
    for (int i = 0; i < SAMPLE_BLOCKS && result == RUN_DONE; i++) {
        if (mirror->blocks[i] != NULL) {
            result = check_bands(t->device, mirror->blocks[i], s->blocks[i].body_size,
                                 SAMPLE_BLOCK_NAMES[i], why);
        }
    }
    return result == RUN_DONE ? workspace_intact(w, t, why) : result;
}

/* The workspace holds NaN before the first run. Every fourth sample runs twice in one: what the
 * first run leaves must not matter either. */
static enum run_result launch_again(const struct target *t, const attn_plan *plan,
                                    struct mirror *mirror, struct sample *s,
                                    const struct workspace *w, void *stream, attn_error *why) {
    unsigned char *first = malloc(s->o.size + 1);
    if (first == NULL) {
        explain(why, "out of memory for a copy of O");
        return RUN_WRONG;
    }
    memcpy(first, s->o.data, s->o.size);
    enum run_result result = launch(t, plan, mirror, s, w, stream, why);
    if (result == RUN_DONE && memcmp(first, s->o.data, s->o.size) != 0) {
        explain(why, "a second run in the same workspace gave other bits");
        result = RUN_WRONG;
    }
    free(first);
    return result == RUN_DONE ? look_for_damage(t, mirror, s, w, why) : result;
}

static enum run_result run_plan(const struct target *t, const attn_plan *plan, struct sample *s,
                                attn_error *why) {
    struct mirror mirror;
    struct workspace w = {0};
    void *stream = NULL;
    enum run_result result = RUN_LOST;
    if (!mirror_make(&mirror, t->device, s, why)) {
        return RUN_LOST;
    }
    /* Half of the cases on a stream of their own, half on the legacy one. */
    const bool own_stream = device_is_gpu(t->device) && s->recipe.seed % 2;
    if (workspace_make(&w, t, plan, s->recipe.seed % 2, why) &&
        (!own_stream || (stream = stream_make(t->device, why)) != NULL)) {
        result = launch(t, plan, &mirror, s, &w, stream, why);
        if (result == RUN_DONE) {
            result = look_for_damage(t, &mirror, s, &w, why);
        }
        if (result == RUN_DONE && s->recipe.seed / 2 % 4 == 0) {
            result = launch_again(t, plan, &mirror, s, &w, stream, why);
        }
    }
    stream_free(t->device, stream);
    workspace_free(&w, t);
    mirror_free(&mirror);
    return result;
}

enum run_result run_sample(const struct target *t, struct sample *s, const attn_problem *problem,
                           attn_error *why) {
    attn_plan *plan;
    const attn_status status =
        attn_plan_create(t->context, problem, ATTN_BY_NAME(t->runs_as), &plan, why);
    if (status != ATTN_OK) {
        return refused(status, "attn_plan_create", why);
    }
    enum run_result result = RUN_WRONG;
    if (strcmp(attn_plan_variant(plan), t->runs_as) != 0) {
        explain(why, "the plan chose %s", attn_plan_variant(plan));
    } else {
        result = run_plan(t, plan, s, why);
    }
    attn_plan_destroy(plan);
    return result;
}
