/* SPDX-License-Identifier: Apache-2.0
 *
 * exec_fixture.h - a kernel in a few lines of PTX, run on the virtual GPU: what it stored, and what
 * was found.
 *
 * A kernel K(body) has the parameters out and n, %r0 = %tid.x, %r1 = n, %rd0 = out, and after the
 * body each thread stores %r2 at out[thread of the grid]. Registers %r0 to %r31, %rd0 to %rd15 and
 * %p0 to %p15 are declared, and 4 KB of shared memory `tile`.
 */
#ifndef EXEC_FIXTURE_H
#define EXEC_FIXTURE_H

#include "test.h"
#include "vgpu.h"

#include <stdlib.h>

#define PTX_HEAD ".version 8.0\n.target sm_90a\n.address_size 64\n"
#define PTX_REGISTERS ".reg .pred %p<16>; .reg .b32 %r<32>; .reg .b64 %rd<16>;\n"
#define PTX_ENTRY                                                                                  \
    ".visible .entry k(.param .u64 out, .param .u32 n) {\n" PTX_REGISTERS                          \
    ".shared .align 16 .b8 tile[4096];\n"                                                          \
    "ld.param.u64 %rd0, [out]; ld.param.u32 %r1, [n]; mov.u32 %r0, %tid.x;\n"
#define PTX_STORE                                                                                  \
    "mov.u32 %r30, %ntid.x; mov.u32 %r31, %ctaid.x; mad.lo.u32 %r30, %r30, %r31, %r0;\n"           \
    "mul.wide.u32 %rd14, %r30, 4; add.u64 %rd14, %rd0, %rd14; st.global.u32 [%rd14], %r2;\n"
#define K(body) PTX_HEAD PTX_ENTRY body "\n" PTX_STORE "ret;\n}\n"

enum { MAX_OUT = 1 << 16 };

struct bench {
    vgpu *gpu;
    vgpu_dims dims;
    uint32_t n;
    vgpu_status status;
    vgpu_error error;
    uint32_t out[MAX_OUT];
};

struct bench_options {
    int32_t threads;
    vgpu_async async;
    uint64_t seed, max_steps;
    uint32_t without_checks;
};

static inline struct bench *bench_with(uint32_t grid, uint32_t block, uint32_t n,
                                       struct bench_options options) {
    struct bench *bench = calloc(1, sizeof *bench);
    vgpu_config config;
    vgpu_config_init(&config);
    config.threads = options.threads ? options.threads : 1;
    config.async = options.async;
    config.seed = options.seed ? options.seed : 1;
    config.max_steps = options.max_steps ? options.max_steps : 10000000;
    config.checks &= ~options.without_checks;
    if (!bench || !CHECK_EQ(vgpu_open(&config, &bench->gpu, &bench->error), VGPU_OK)) {
        abort();
    }
    bench->dims = (vgpu_dims){.grid = {grid, 1, 1}, .block = {block, 1, 1}};
    bench->n = n;
    return bench;
}

static inline struct bench *bench_make(uint32_t grid, uint32_t block, uint32_t n) {
    return bench_with(grid, block, n, (struct bench_options){0});
}

static inline void bench_free(struct bench *bench) {
    vgpu_close(bench->gpu);
    free(bench);
}

/* Runs it; bench->out has what the threads stored, 0xaaaaaaaa where they did not. */
static inline vgpu_status bench_run(struct bench *bench, const char *ptx) {
    vgpu_module *module = NULL;
    vgpu_pointer out = 0;
    bench->status = vgpu_load(bench->gpu, ptx, strlen(ptx), &module, &bench->error);
    if (!CHECK_MSG(bench->status == VGPU_OK, "load: %s", bench->error.text)) {
        return bench->status;
    }
    memset(bench->out, 0xaa, sizeof bench->out);
    CHECK_EQ(vgpu_malloc(bench->gpu, sizeof bench->out, "out", &out, &bench->error), VGPU_OK);
    CHECK_EQ(vgpu_write(bench->gpu, out, bench->out, sizeof bench->out, &bench->error), VGPU_OK);
    void *arguments[] = {&out, &bench->n};
    bench->status = vgpu_launch(bench->gpu, module, "k", &bench->dims, arguments, &bench->error);
    vgpu_error ignored;
    CHECK_EQ(vgpu_read(bench->gpu, bench->out, out, sizeof bench->out, &ignored), VGPU_OK);
    vgpu_free(bench->gpu, out, &ignored);
    vgpu_unload(module);
    return bench->status;
}

/* The first finding of the kind; text NULL: none. */
static inline vgpu_finding bench_find(const struct bench *bench, const char *kind) {
    vgpu_finding finding;
    for (size_t i = 0; vgpu_finding_get(bench->gpu, i, &finding); i++) {
        if (strcmp(finding.kind, kind) == 0) {
            return finding;
        }
    }
    return (vgpu_finding){0};
}

static inline bool bench_clean(const struct bench *bench) {
    vgpu_finding finding;
    bool clean = CHECK_MSG(bench->status == VGPU_OK, "launch: %s", bench->error.text);
    for (size_t i = 0; vgpu_finding_get(bench->gpu, i, &finding); i++) {
        clean = CHECK_MSG(false, "line %u: %s: %s", finding.ptx_line, finding.kind, finding.text);
    }
    return clean;
}

/* That kind was found, and its sentence has the part. */
static inline void bench_found(const struct bench *bench, const char *kind, const char *part) {
    const vgpu_finding finding = bench_find(bench, kind);
    if (CHECK_MSG(finding.text != NULL, "no finding of kind %s", kind)) {
        CHECK_CONTAINS(finding.text, part);
    }
}

/* Runs a kernel that must have no findings, and compares what n threads stored. */
static inline void bench_expect(struct bench *bench, const char *ptx, uint32_t threads,
                                uint32_t (*model)(uint32_t thread, uint32_t n)) {
    bench_run(bench, ptx);
    bench_clean(bench);
    for (uint32_t i = 0; i < threads; i++) {
        CHECK_MSG(bench->out[i] == model(i, bench->n), "thread %u: %u, expected %u", i,
                  bench->out[i], model(i, bench->n));
    }
    bench_free(bench);
}

#endif /* EXEC_FIXTURE_H */
