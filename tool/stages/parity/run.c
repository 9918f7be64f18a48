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
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/message.h"
#include "device/kernels.h"
#include "stages/parity/parity.h"

/* Of the device's blocks, on either side: the sample's own bands end where a host's page without
 * access begins. A multiple of every alignment that a problem can ask for. */
enum { BAND = 4096 };

/* ---- the sample on the device ---------------------------------------------------------------- */

const struct guarded *mirror_block(const struct sample *s, int index) {
    const struct guarded *block = NULL;
    if (index < SAMPLE_BLOCKS) {
        block = &s->blocks[index];
    } else if (s->gradients != NULL) {
        const int gradient = index - SAMPLE_BLOCKS - 1;
        block = gradient < 0 ? &s->gradients->d_o : &s->gradients->outputs[gradient];
    }
    return block != NULL && block->body != NULL ? block : NULL;
}

static const char *name_of_block(int index) {
    const int gradient = index - SAMPLE_BLOCKS - 1;
    return index < SAMPLE_BLOCKS ? SAMPLE_BLOCK_NAMES[index]
           : gradient < 0        ? "dO"
                                 : GRADIENT_NAMES[gradient];
}

bool mirror_is_output(const struct sample *s, int index) {
    return s->gradients != NULL ? index > SAMPLE_BLOCKS : index == BLOCK_O || index == BLOCK_LSE;
}

/* Where the byte at `host` lies on the device; NULL stays NULL. */
static void *translate(const struct mirror *mirror, const struct sample *s, const void *host) {
    const uintptr_t at = (uintptr_t)host;
    for (int i = 0; i < MIRROR_BLOCKS; i++) {
        const struct guarded *block = mirror_block(s, i);
        const uintptr_t body = block != NULL ? (uintptr_t)block->body : 0;
        if (mirror->blocks[i] != NULL && block != NULL && at >= body &&
            at <= body + block->body_size) {
            return mirror->blocks[i] + BAND + (at - body);
        }
    }
    return NULL;
}

static bool upload(const struct mirror *mirror, const struct sample *s, int index,
                   attn_error *why) {
    const struct guarded *block = mirror_block(s, index);
    return device_write(mirror->device, mirror->blocks[index] + BAND, block->body, block->body_size,
                        why);
}

/* Every member after the size is a pointer, into a block of the sample or NULL. */
static void translate_tensors(const struct mirror *mirror, const struct sample *s,
                              attn_tensors *t) {
    for (size_t at = offsetof(attn_tensors, q); at < sizeof *t; at += sizeof(void *)) {
        void *pointer;
        memcpy(&pointer, (char *)t + at, sizeof pointer);
        pointer = translate(mirror, s, pointer);
        memcpy((char *)t + at, &pointer, sizeof pointer);
    }
}

bool mirror_make(struct mirror *mirror, struct device *device, const struct sample *s,
                 attn_error *why) {
    *mirror = (struct mirror){.device = device,
                              .tensors = s->gradients != NULL ? s->gradients->tensors : s->tensors};
    if (!device_is_gpu(device)) {
        return true;
    }
    for (int i = 0; i < MIRROR_BLOCKS; i++) {
        const struct guarded *block = mirror_block(s, i);
        if (block == NULL) {
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
    translate_tensors(mirror, s, &mirror->tensors);
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
    for (int i = 0; i < MIRROR_BLOCKS; i++) {
        if (mirror->blocks[i] != NULL && mirror_is_output(s, i) && !upload(mirror, s, i, why)) {
            return false;
        }
    }
    return true;
}

static bool fetch(const struct mirror *mirror, struct sample *s, bool outputs, attn_error *why) {
    for (int i = 0; i < MIRROR_BLOCKS; i++) {
        const struct guarded *block = mirror_block(s, i);
        if (mirror->blocks[i] != NULL && mirror_is_output(s, i) == outputs &&
            !device_read(mirror->device, block->body, mirror->blocks[i] + BAND, block->body_size,
                         why)) {
            return false;
        }
    }
    return true;
}

bool mirror_fetch_inputs(const struct mirror *mirror, struct sample *s, attn_error *why) {
    return fetch(mirror, s, false, why);
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

/* ---- the outputs ----------------------------------------------------------------------------- */

int run_outputs(const struct sample *s, const struct guarded *outputs[RUN_OUTPUTS]) {
    if (s->gradients == NULL) {
        outputs[0] = &s->o;
        outputs[1] = &s->lse;
        return 2;
    }
    for (int i = 0; i < GRADIENTS; i++) {
        outputs[i] = &s->gradients->outputs[i];
    }
    return GRADIENTS;
}

/* ---- the run --------------------------------------------------------------------------------- */

struct run {
    const struct target *target;
    attn_plan *plan;
    struct sample *sample;
    struct mirror mirror;
    struct guarded host_space; /* the workspace of a CPU */
    unsigned char *gpu_space;  /* that of a GPU, with bands */
    void *workspace;           /* what the library is given; NULL where it needs none */
    void *stream;
    attn_error *why;
};

/* The workspace holds NaN before the first launch. */
static bool make_workspace(struct run *r, bool at_end) {
    struct device *device = r->target->device;
    const size_t size = attn_workspace_size(r->plan), whole = size + 2 * (size_t)BAND;
    if (size == 0) {
        return true;
    }
    if (!device_is_gpu(device)) {
        const size_t alignment = attn_workspace_alignment(r->plan);
        r->workspace =
            guarded_alloc(&r->host_space, size, alignment, at_end) ? r->host_space.data : NULL;
        return r->workspace || explain(r->why, "no memory for a workspace of %zu bytes", size);
    }
    r->gpu_space = device_alloc(device, whole, r->why);
    r->workspace = r->gpu_space != NULL ? r->gpu_space + BAND : NULL;
    return r->gpu_space != NULL && device_fill(device, r->gpu_space, 0xFF, whole, r->why);
}

static enum run_result refused(attn_status status, const char *call, attn_error *why) {
    const attn_error sentence = *why;
    explain(why, "%s: %.300s", call, sentence.text);
    return status == ATTN_DEVICE ? RUN_LOST : RUN_WRONG;
}

/* Of the sample, its copies and the workspace. */
static enum run_result look_for_damage(struct run *r) {
    struct device *device = r->target->device;
    enum run_result result = RUN_DONE;
    if (!mirror_fetch_inputs(&r->mirror, r->sample, r->why)) {
        return RUN_LOST;
    }
    const char *damage = sample_damage(r->sample);
    if (damage == NULL && !guarded_intact(&r->host_space)) {
        damage = "bytes beside the workspace were written";
    }
    if (damage != NULL) {
        explain(r->why, "%s", damage);
        return RUN_WRONG;
    }
    for (int i = 0; i < MIRROR_BLOCKS && result == RUN_DONE; i++) {
        if (r->mirror.blocks[i] != NULL) {
            result = check_bands(device, r->mirror.blocks[i], mirror_block(r->sample, i)->body_size,
                                 name_of_block(i), r->why);
        }
    }
    return result == RUN_DONE && r->gpu_space != NULL
               ? check_bands(device, r->gpu_space, attn_workspace_size(r->plan), "the workspace",
                             r->why)
               : result;
}

/* Poisons, launches, waits, fetches the outputs and looks for damage. */
static enum run_result launch(struct run *r) {
    if (!poison(&r->mirror, r->sample, r->why)) {
        return RUN_LOST;
    }
    const attn_status status = plan_compute(r->plan, r->target->variant.direction,
                                            &r->mirror.tensors, r->workspace, r->stream, r->why);
    if (status != ATTN_OK) {
        const bool backward = r->target->variant.direction == ATTN_BACKWARD;
        return refused(status, backward ? "attn_backward" : "attn_forward", r->why);
    }
    return device_wait(r->target->device, r->why) && fetch(&r->mirror, r->sample, true, r->why)
               ? look_for_damage(r)
               : RUN_LOST;
}

unsigned char *outputs_keep(const struct sample *s) {
    const struct guarded *outputs[RUN_OUTPUTS];
    const int count = run_outputs(s, outputs);
    size_t size = 1;
    for (int i = 0; i < count; i++) {
        size += outputs[i]->size;
    }
    unsigned char *kept = must(malloc(size)), *to = kept;
    for (int i = 0; i < count; i++) {
        to = outputs[i]->size > 0 ? mempcpy(to, outputs[i]->data, outputs[i]->size) : to;
    }
    return kept;
}

bool outputs_restore(struct sample *s, unsigned char *kept) {
    const struct guarded *outputs[RUN_OUTPUTS];
    const int count = run_outputs(s, outputs);
    const unsigned char *from = kept;
    bool same = true;
    for (int i = 0; i < count; from += outputs[i++]->size) {
        if (outputs[i]->size > 0) {
            same = same && memcmp(from, outputs[i]->data, outputs[i]->size) == 0;
            memcpy(outputs[i]->data, from, outputs[i]->size);
        }
    }
    free(kept);
    return same;
}

/* In the same workspace: what the first launch left there must not matter. */
static enum run_result launch_again(struct run *r) {
    unsigned char *kept = outputs_keep(r->sample);
    const enum run_result result = launch(r);
    if (!outputs_restore(r->sample, kept) && result == RUN_DONE) {
        explain(r->why, "a second run in the same workspace gave other bits");
        return RUN_WRONG;
    }
    return result;
}

/* Half of the cases on a stream of their own, half on the legacy one; every fourth runs twice. */
static enum run_result run_plan(struct run *r) {
    const uint64_t seed = r->sample->recipe.seed;
    struct device *device = r->target->device;
    const bool own_stream = device_is_gpu(device) && seed % 2;
    enum run_result result = RUN_LOST;
    if (mirror_make(&r->mirror, device, r->sample, r->why) && make_workspace(r, seed % 2) &&
        (!own_stream || (r->stream = stream_make(device, r->why)) != NULL)) {
        result = launch(r);
        if (result == RUN_DONE && seed / 2 % 4 == 0) {
            result = launch_again(r);
        }
    }
    stream_free(device, r->stream);
    guarded_free(&r->host_space);
    device_free(device, r->gpu_space);
    mirror_free(&r->mirror);
    return result;
}

/* In a run of its own, as if the sample had no gradients. */
bool run_forward(struct sample *s, attn_error *why) {
    struct gradients *gradients = s->gradients;
    struct runner cpu = {.device = "cpu"};
    struct target target = {.variant.direction = ATTN_FORWARD};
    struct run r = {.target = &target, .sample = s, .why = why};
    s->gradients = NULL;
    bool ok = runner_open(&cpu, why) && runner_plan(&cpu, &s->problem, why);
    target.context = cpu.context;
    target.device = cpu.memory;
    r.plan = cpu.plan;
    ok = ok && run_plan(&r) == RUN_DONE;
    runner_close(&cpu);
    s->gradients = gradients;
    gradients_poison(gradients, s);
    return ok;
}

enum run_result run_sample(const struct target *t, struct sample *s, attn_error *why) {
    if (t->outsider != NULL) {
        return t->outsider->run(t->outsider, s, why);
    }
    struct run r = {.target = t, .sample = s, .why = why};
    const attn_problem *problem = s->gradients != NULL ? &s->gradients->problem : &s->problem;
    if (s->gradients != NULL && !run_forward(s, why)) {
        return RUN_WRONG;
    }
    const attn_status status = attn_plan_create(
        t->context, problem, PLAN_BY_NAME(t->variant.direction, t->runs_as), &r.plan, why);
    if (status != ATTN_OK) {
        return refused(status, "attn_plan_create", why);
    }
    enum run_result result = RUN_WRONG;
    if (strcmp(attn_plan_variant(r.plan), t->runs_as) != 0) {
        explain(why, "the plan chose %s", attn_plan_variant(r.plan));
    } else {
        result = run_plan(&r);
    }
    attn_plan_destroy(r.plan);
    return result;
}
