/* SPDX-License-Identifier: Apache-2.0
 *
 * vgpu_warps.h - warps made by hand for tests of memory and races: no PTX, no interpreter; a test
 * says which warp executes which access at which line.
 *
 * Memory: shared variables "first" (64 bytes at SHARED_BASE) and "second" (64 bytes, 16 after it),
 * dynamic shared memory from DYNAMIC on; a local variable "depot" of 64 bytes, and "other" 16
 * after it; 64 bytes of parameters; 16 bytes of parameters of calls.
 *
 * Invariant: `line` is the index of an op plus 1, and what findings call the PTX line.
 */
#ifndef VGPU_WARPS_H
#define VGPU_WARPS_H

#include <stdlib.h>

#include "vgpu/machine/device.h"
#include "vgpu/memory/memory.h"
#include "vgpu/race/clock.h"
#include "vgpu/race/race.h"
#include "vgpu/report/record.h"

enum { LINES = 64, DYNAMIC = 1024, DYNAMIC_BYTES = 64 << 10, WARPS = 4, MAX_CTAS = 4 };
#define SMEM (SHARED_BASE + DYNAMIC) /* where dynamic shared memory begins */

struct world {
    vgpu gpu;
    struct vgpu_module module;
    struct ptx_module ptx;
    struct ptx_function function;
    struct ptx_variable variables[5], *shared[3], *inside[3];
    struct ptx_function *functions[1];
    struct kernel kernel, *kernels[1];
    struct op code[LINES];
    struct ptx_instruction instructions[LINES];
    struct launch launch;
    struct cluster clusters[2];
    struct cta ctas[2][MAX_CTAS];
    struct warp warps[2][MAX_CTAS][WARPS];
    struct clock *barriers[2]; /* of the clusters */
    unsigned char params[64];
};

static inline void world_variables(struct world *w) {
    w->variables[0] = (struct ptx_variable){
        .name = "first", .space = PTX_SHARED, .size = 64, .address = SHARED_BASE};
    w->variables[1] = (struct ptx_variable){
        .name = "second", .space = PTX_SHARED, .size = 64, .address = SHARED_BASE + 80};
    w->variables[2] = (struct ptx_variable){.name = "depot", .space = PTX_LOCAL, .size = 64};
    w->variables[3] =
        (struct ptx_variable){.name = "other", .space = PTX_LOCAL, .size = 64, .address = 80};
    w->variables[4] = (struct ptx_variable){
        .name = "param0", .space = PTX_PARAM, .size = 16, .address = CALL_PARAM_BASE};
    for (int i = 0; i < 2; i++) {
        w->shared[i] = &w->variables[i];
    }
    for (int i = 0; i < 3; i++) {
        w->inside[i] = &w->variables[i + 2];
    }
    w->ptx.variables = w->shared;
    w->ptx.variable_count = 2;
    w->function.variables = w->inside;
    w->function.variable_count = 3;
}

static inline void world_cluster(struct world *w, uint32_t index, uint32_t ctas) {
    struct cluster *cluster = &w->clusters[index];
    *cluster = (struct cluster){.launch = &w->launch,
                                .linear = index,
                                .ctas = w->ctas[index],
                                .cta_count = ctas,
                                .agent_count = ctas * WARPS + CLOCK_SLOTS_OUTSIDE,
                                .findings = findings_make()};
    for (uint32_t c = 0; c < ctas; c++) {
        struct cta *cta = &cluster->ctas[c];
        *cta = (struct cta){.launch = &w->launch,
                            .cluster = cluster,
                            .id = {index * ctas + c, 0, 0},
                            .linear = index * ctas + c,
                            .rank = c,
                            .warps = w->warps[index][c],
                            .warp_count = WARPS,
                            .alive = WARPS,
                            .shared_bytes = DYNAMIC + DYNAMIC_BYTES};
        for (uint32_t i = 0; i < WARPS; i++) {
            cta->warps[i] = (struct warp){.cta = cta,
                                          .kernel = &w->kernel,
                                          .index = i,
                                          .agent_index = c * WARPS + i,
                                          .active = ALL_LANES,
                                          .lanes = ALL_LANES,
                                          .clock = clock_make(cluster)};
        }
        if (!memory_start_cta(cta)) {
            abort();
        }
    }
    w->barriers[index] = clock_make(cluster);
}

/* Two clusters of so many CTAs of WARPS warps. */
static inline struct world *world_make(uint32_t checks, uint32_t ctas) {
    struct world *w = calloc(1, sizeof(*w));
    if (w == NULL) {
        abort();
    }
    world_variables(w);
    w->gpu.config.max_findings = 100;
    w->gpu.config.checks = checks;
    w->gpu.memory = device_memory_make(1 << 28);
    w->gpu.findings = findings_make();
    w->functions[0] = &w->function;
    w->kernels[0] = &w->kernel;
    w->ptx.functions = w->functions;
    w->ptx.function_count = 1;
    w->module = (struct vgpu_module){
        .gpu = &w->gpu, .ptx = &w->ptx, .kernels = w->kernels, .kernel_count = 1};
    w->function.name = "kernel";
    w->function.entry = true;
    w->function.param_bytes = sizeof(w->params);
    w->kernel = (struct kernel){.function = &w->function,
                                .module = &w->module,
                                .code = w->code,
                                .code_count = LINES,
                                .local_bytes = 144,
                                .shared = w->shared,
                                .shared_count = 2,
                                .shared_static = 160,
                                .shared_dynamic = DYNAMIC};
    for (uint32_t i = 0; i < LINES; i++) {
        w->instructions[i].opcode = "op";
        w->instructions[i].line = i + 1;
        w->code[i].in = &w->instructions[i];
    }
    w->launch = (struct launch){
        .gpu = &w->gpu, .kernel = &w->kernel, .params = w->params, .checks = checks};
    world_cluster(w, 0, ctas);
    world_cluster(w, 1, ctas);
    return w;
}

/* The clusters are done: what they found is the GPU's from here on. */
static inline void world_end(struct world *w) {
    for (uint32_t i = 0; i < 2; i++) {
        struct cluster *cluster = &w->clusters[i];
        for (uint32_t c = 0; cluster->ctas != NULL && c < cluster->cta_count; c++) {
            memory_end_cta(&cluster->ctas[c]);
            for (uint32_t j = 0; j < WARPS; j++) {
                clock_free(cluster->ctas[c].warps[j].clock);
            }
        }
        clock_free(w->barriers[i]);
        race_merge_cluster(&w->launch, cluster);
        findings_merge(&w->gpu, cluster->findings);
        findings_free(cluster->findings);
    }
    race_end_launch(&w->launch);
}

static inline void world_free(struct world *w) {
    findings_free(w->gpu.findings);
    device_memory_free(w->gpu.memory);
    free(w);
}

/* ---- what warps do --------------------------------------------------------------------------- */

/* An access of the lanes in `mask`: lane i at address + i * stride. */
static inline struct access lanes_at(int space, enum access_kind kind, uint32_t element,
                                     uint32_t count, uint64_t address, uint64_t stride,
                                     uint32_t mask) {
    struct access access = {
        .space = space, .kind = kind, .element = element, .count = count, .mask = mask};
    for (uint32_t i = 0; i < LANES; i++) {
        access.address[i] = address + i * stride;
    }
    return access;
}

static inline struct access touch(struct world *w, struct warp *warp, uint32_t line,
                                  struct access access) {
    warp->active = access.mask;
    memory_access(warp, &w->code[line - 1], &access);
    warp->active = ALL_LANES;
    return access;
}

/* 32-bit words of shared memory side by side. */
static inline void words(struct world *w, struct warp *warp, uint32_t line, enum access_kind kind,
                         uint64_t address) {
    touch(w, warp, line, lanes_at(PTX_SHARED, kind, 4, 1, address, 4, ALL_LANES));
}

/* __syncthreads by warps [first, first + count) of the first CTA of a cluster. */
static inline void barrier(struct world *w, uint32_t cluster, uint32_t first, uint32_t count) {
    clock_clear(w->barriers[cluster]);
    for (uint32_t i = first; i < first + count; i++) {
        clock_release(w->barriers[cluster], &w->warps[cluster][0][i]);
    }
    for (uint32_t i = first; i < first + count; i++) {
        clock_acquire(&w->warps[cluster][0][i], w->barriers[cluster]);
    }
}

/* ---- what was found -------------------------------------------------------------------------- */

/* The only finding of the world, which ends here; *count is how many there were. */
static inline vgpu_finding only_finding(struct world *w, size_t *count) {
    vgpu_finding found = {.kind = "nothing", .text = ""}, other;
    world_end(w);
    if (vgpu_finding_get(&w->gpu, 0, &other)) {
        found = other;
    }
    for (*count = 0; vgpu_finding_get(&w->gpu, *count, &other); ++*count) {
    }
    return found;
}

/* Ends the world and checks that it found this and nothing else. `part` is in the sentence. */
#define EXPECT_FINDING(w, name, at, other, part)                                                   \
    do {                                                                                           \
        size_t found_count = 0;                                                                    \
        struct world *const ended = (w);                                                           \
        const vgpu_finding found = only_finding(ended, &found_count);                              \
        CHECK_EQ(found_count, 1);                                                                  \
        CHECK_STR(found.kind, name);                                                               \
        CHECK_EQ(found.ptx_line, at);                                                              \
        CHECK_EQ(found.other_ptx_line, other);                                                     \
        CHECK_CONTAINS(found.text, part);                                                          \
        world_free(ended);                                                                         \
    } while (0)

#define EXPECT_NOTHING(w)                                                                          \
    do {                                                                                           \
        size_t found_count = 0;                                                                    \
        struct world *const ended = (w);                                                           \
        const vgpu_finding found = only_finding(ended, &found_count);                              \
        CHECK_EQ(found_count, 0);                                                                  \
        CHECK_STR(found.text, "");                                                                 \
        world_free(ended);                                                                         \
    } while (0)

#endif /* VGPU_WARPS_H */
