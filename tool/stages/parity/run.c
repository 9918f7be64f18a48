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

enum { BLOCK_O = 3, BLOCK_LSE = 4 };

static struct guarded *sample_block(const struct sample *s, int index) {
    const struct guarded *const all[MIRROR_BLOCKS] = {
        &s->qkv[0], &s->qkv[1], &s->qkv[2], &s->o,    &s->lse,   &s->bias,
        &s->mask,   &s->slopes, &s->sink,   &s->cu_q, &s->cu_kv, &s->used};
    return (struct guarded *)(uintptr_t)all[index];
}

/* Where the byte at `host` lies on the device. */
static void *translate(const struct mirror *mirror, const struct sample *s, const void *host) {
    const uintptr_t at = (uintptr_t)host;
    for (int i = 0; i < MIRROR_BLOCKS; i++) {
        const struct guarded *block = sample_block(s, i);
        const uintptr_t body = (uintptr_t)block->body;
        if (mirror->blocks[i] != NULL && at >= body && at <= body + block->body_size) {
            return mirror->blocks[i] + BAND + (at - body);
        }
    }
    return NULL;
}

static bool upload(const struct mirror *mirror, const struct sample *s, int index,
                   attn_error *why) {
    const struct guarded *block = sample_block(s, index);
    return device_write(mirror->device, mirror->blocks[index] + BAND, block->body, block->body_size,
                        why);
}

bool mirror_make(struct mirror *mirror, struct device *device, const struct sample *s,
                 attn_error *why) {
    *mirror = (struct mirror){.device = device, .tensors = s->tensors};
    if (!device_is_gpu(device)) {
        return true;
    }
    for (int i = 0; i < MIRROR_BLOCKS; i++) {
        const struct guarded *block = sample_block(s, i);
        if (block->body == NULL) {
            continue;
        }
        const size_t size = block->body_size + 2 * (size_t)BAND;
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
    t->lse = t->lse ? translate(mirror, s, t->lse) : NULL;
    t->bias = t->bias ? translate(mirror, s, t->bias) : NULL;
    t->mask = t->mask ? translate(mirror, s, t->mask) : NULL;
    t->alibi_slopes = t->alibi_slopes ? translate(mirror, s, t->alibi_slopes) : NULL;
    t->sink = t->sink ? translate(mirror, s, t->sink) : NULL;
    t->cu_seqlens_q = t->cu_seqlens_q ? translate(mirror, s, t->cu_seqlens_q) : NULL;
    t->cu_seqlens_kv = t->cu_seqlens_kv ? translate(mirror, s, t->cu_seqlens_kv) : NULL;
    t->used_kv = t->used_kv ? translate(mirror, s, t->used_kv) : NULL;
    return true;
}

void mirror_free(struct mirror *mirror) {
    for (int i = 0; i < MIRROR_BLOCKS; i++) {
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
    const struct guarded *block = sample_block(s, index);
    return mirror->blocks[index] == NULL ||
           device_read(mirror->device, block->body, mirror->blocks[index] + BAND, block->body_size,
                       why);
}

bool mirror_fetch_inputs(const struct mirror *mirror, struct sample *s, attn_error *why) {
    for (int i = 0; i < MIRROR_BLOCKS; i++) {
        if (i != BLOCK_O && i != BLOCK_LSE && !fetch(mirror, s, i, why)) {
            return false;
        }
    }
    return true;
}

static bool all_poison(const unsigned char *bytes, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (bytes[i] != 0xFF) {
            return false;
        }
    }
    return true;
}

/* The bands that the device's blocks have beyond those of the sample. */
static enum run_result check_bands(const struct mirror *mirror, const struct sample *s,
                                   attn_error *why) {
    unsigned char bytes[2 * BAND];
    for (int i = 0; i < MIRROR_BLOCKS; i++) {
        const unsigned char *block = mirror->blocks[i];
        if (block == NULL) {
            continue;
        }
        const unsigned char *after = block + BAND + sample_block(s, i)->body_size;
        if (!device_read(mirror->device, bytes, block, BAND, why) ||
            !device_read(mirror->device, bytes + BAND, after, BAND, why)) {
            return RUN_LOST;
        }
        if (!all_poison(bytes, sizeof bytes)) {
            explain(why, "bytes far beside a tensor were written on the device (%s of block %d)",
                    all_poison(bytes, BAND) ? "after the end" : "before the start", i);
            return RUN_WRONG;
        }
    }
    return RUN_DONE;
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
    unsigned char bytes[2 * BAND];
    bool intact = guarded_intact(&w->host);
    if (w->block != NULL) {
        if (!device_read(t->device, bytes, w->block, BAND, why) ||
            !device_read(t->device, bytes + BAND, w->block + BAND + w->size, BAND, why)) {
            return RUN_LOST;
        }
        intact = all_poison(bytes, sizeof bytes);
    }
    if (!intact) {
        explain(why, "bytes beside the workspace were written");
    }
    return intact ? RUN_DONE : RUN_WRONG;
}

static void workspace_free(struct workspace *w, const struct target *t) {
    guarded_free(&w->host);
    if (w->block != NULL) {
        device_free(t->device, w->block);
    }
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
    const enum run_result bands = check_bands(mirror, s, why);
    return bands != RUN_DONE ? bands : workspace_intact(w, t, why);
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
    if (own_stream) {
        stream_free(t->device, stream);
    }
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
