/* SPDX-License-Identifier: Apache-2.0
 *
 * async_fixture.h - for the tests of asynchronous copies: runs a PTX text under one completion
 * order and keeps what was found. Bugs are planted by replacing a part of the text.
 *
 * Invariant: a part that is to be replaced must be there, or the test fails; so a bug is in.
 */
#ifndef ASYNC_FIXTURE_H
#define ASYNC_FIXTURE_H

#include <stdlib.h>

#include "test.h"
#include "vgpu.h"

#define PTX_HEAD                                                                                   \
    ".version 8.6\n.target sm_90a\n.address_size 64\n"                                             \
    ".extern .shared .align 1024 .b8 tile[];\n"

enum { ORDERS = 4, SHARED_BYTES = 64 * 1024 };
static const char *const ORDER_NAMES[ORDERS] = {"eager", "fifo", "lifo", "random"};

/* A change of a kernel's text and the kinds of findings that must come of it; "": none. */
struct bug {
    const char *what, *from, *to, *kinds;
};

struct bench {
    vgpu *gpu;
    vgpu_dims dims;
    vgpu_module *modules[4]; /* findings point into them: they go with the bench */
    size_t module_count;
    vgpu_status status; /* of the last launch */
    vgpu_error why;
};

static inline bool bench_open(struct bench *bench, vgpu_async order, uint64_t seed) {
    vgpu_config config;
    vgpu_config_init(&config);
    config.threads = 1;
    config.async = order;
    config.seed = seed;
    config.max_steps = 2000000;
    memset(bench, 0, sizeof *bench);
    bench->dims = (vgpu_dims){.grid = {1, 1, 1},
                              .block = {64, 1, 1},
                              .shared_bytes = SHARED_BYTES,
                              .max_shared_bytes = SHARED_BYTES};
    return CHECK_MSG(vgpu_open(&config, &bench->gpu, &bench->why) == VGPU_OK, "%s",
                     bench->why.text);
}

/* Device memory with these bytes; NULL: uninitialised. */
static inline vgpu_pointer bench_buffer(struct bench *bench, const void *bytes, size_t size) {
    vgpu_pointer pointer = 0;
    CHECK_MSG(vgpu_malloc(bench->gpu, size, "buffer", &pointer, &bench->why) == VGPU_OK, "%s",
              bench->why.text);
    if (bytes) {
        CHECK(vgpu_write(bench->gpu, pointer, bytes, size, &bench->why) == VGPU_OK);
    }
    return pointer;
}

static inline void bench_fetch(struct bench *bench, void *to, vgpu_pointer from, size_t size) {
    CHECK_MSG(vgpu_read(bench->gpu, to, from, size, &bench->why) == VGPU_OK, "%s", bench->why.text);
}

/* Loads the text and runs its entry "k". */
static inline bool bench_run(struct bench *bench, const char *ptx, void *const *arguments) {
    vgpu_module *module = NULL;
    bench->status = vgpu_load(bench->gpu, ptx, strlen(ptx), &module, &bench->why);
    if (!CHECK_MSG(bench->status == VGPU_OK, "%s", bench->why.text) ||
        !CHECK(bench->module_count < sizeof bench->modules / sizeof bench->modules[0])) {
        return false;
    }
    bench->modules[bench->module_count++] = module;
    bench->status = vgpu_launch(bench->gpu, module, "k", &bench->dims, arguments, &bench->why);
    return true;
}

static inline size_t bench_count(const struct bench *bench, const char *kind) {
    vgpu_finding finding;
    size_t count = 0;
    for (size_t i = 0; vgpu_finding_get(bench->gpu, i, &finding); i++) {
        count += kind == NULL || strcmp(finding.kind, kind) == 0;
    }
    return count;
}

static inline void bench_print(const struct bench *bench) {
    vgpu_finding finding;
    for (size_t i = 0; vgpu_finding_get(bench->gpu, i, &finding); i++) {
        printf("    found %s at PTX line %u: %s\n", finding.kind, finding.ptx_line, finding.text);
    }
}

/* Nothing was found. */
static inline bool bench_clean(struct bench *bench, const char *what, int order) {
    const bool clean = bench_count(bench, NULL) == 0 && bench->status == VGPU_OK;
    if (!CHECK_MSG(clean, "%s, %s: expected no findings", what, ORDER_NAMES[order])) {
        bench_print(bench);
    }
    return clean;
}

/* One of the kinds in `kinds` ("race|async-read-early") was found. */
static inline bool bench_found(struct bench *bench, const char *kinds, const char *what,
                               int order) {
    char list[128];
    size_t count = 0;
    snprintf(list, sizeof list, "%s", kinds);
    for (char *kind = strtok(list, "|"); kind; kind = strtok(NULL, "|")) {
        count += bench_count(bench, kind);
    }
    if (!CHECK_MSG(count > 0, "%s, %s: expected %s", what, ORDER_NAMES[order], kinds)) {
        bench_print(bench);
    }
    return count > 0;
}

static inline void bench_close(struct bench *bench) {
    while (bench->module_count > 0) {
        vgpu_unload(bench->modules[--bench->module_count]);
    }
    vgpu_close(bench->gpu);
}

/* The text with the first `from` replaced by `to`; free it. */
static inline char *plant(const char *text, const char *from, const char *to) {
    const char *at = strstr(text, from);
    char *changed = malloc(strlen(text) + strlen(to) + 1);
    if (!CHECK_MSG(at != NULL, "nothing to replace: %s", from) || !changed) {
        abort();
    }
    memcpy(changed, text, (size_t)(at - text));
    strcpy(changed + (at - text), to);
    strcat(changed, at + strlen(from));
    return changed;
}

/* A small generator, so that a failure can be repeated. */
static inline uint32_t next_number(uint64_t *state) {
    *state = *state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (uint32_t)(*state >> 33);
}

#endif /* ASYNC_FIXTURE_H */
