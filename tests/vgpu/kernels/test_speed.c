/* SPDX-License-Identifier: Apache-2.0
 *
 * test_speed.c - how fast the virtual GPU is, on one thread:
 *   - an attention kernel for mma.sync (tests/data/bench/attention.cu) computes what a plain loop
 *     does, without a finding, and its thread-instructions a second are counted;
 *   - every variant of libattn that is compiled in computes 1 batch, 2 heads, 128 rows of 64.
 *
 * `test_vgpu_speed --table` (make bench-vgpu) measures longer and under each set of checks. The
 * bars are for a quiet core of 2 GHz; a test must not fail because a machine is small or busy, so
 * it fails at a third of the first and three times the second, takes the best of several runs and
 * counts time of the CPU, not of the clock on the wall.
 *
 * Invariant: a figure is printed only of a kernel that ran to its end.
 */
#include <math.h>
#include <stdlib.h>
#include <time.h>

#include "attn_inspect.h"
#include "attn_verify.h"
#include "test.h"
#include "tool/device/device.h"
#include "vgpu.h"

#ifndef VGPU_LIBRARY
#define VGPU_LIBRARY "libvgpu.so"
#endif

enum { HEADS = 2, ROWS = 256, DIM = 64, COUNT = HEADS * ROWS * DIM };

static const double RATE_BAR = 200e6, RATE_FLOOR = 200e6 / 3; /* thread-instructions a second */
static const double VARIANT_BAR = 0.1, VARIANT_CEILING = 0.3; /* seconds */

static bool table; /* --table */

static const bool judged = TEST_FEWER == 1; /* else it is the speed of a sanitizer */

static double cpu_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void fill(float *values, size_t count, uint32_t state) {
    for (size_t i = 0; i < count; i++) {
        state = state * 1664525 + 1013904223;
        values[i] = (float)(int32_t)(state >> 8) / (float)(1 << 23) - 1.0F;
    }
}

/* ---- the kernel ------------------------------------------------------------------------------ */

static char *read_text(const char *path) {
    FILE *file = fopen(path, "rb");
    char *text = calloc(1, 1 << 20);
    if (file == NULL || text == NULL || fread(text, 1, (1 << 20) - 1, file) == 0) {
        free(text);
        text = NULL;
    }
    if (file != NULL) {
        fclose(file);
    }
    return text;
}

struct bench {
    vgpu *gpu;
    vgpu_module *module;
    vgpu_pointer tensors[4]; /* q, k, v, o */
    float values[3][COUNT];
};

static bool bench_open(struct bench *bench, const char *ptx, uint32_t checks) {
    vgpu_config config;
    vgpu_error why;
    uint16_t bits[COUNT];
    vgpu_config_init(&config);
    config.threads = 1;
    config.checks = checks;
    if (!CHECK_MSG(vgpu_open(&config, &bench->gpu, &why) == VGPU_OK, "%s", why.text) ||
        !CHECK_MSG(vgpu_load(bench->gpu, ptx, strlen(ptx), &bench->module, &why) == VGPU_OK, "%s",
                   why.text)) {
        return false;
    }
    for (uint32_t i = 0; i < 4; i++) {
        if (vgpu_malloc(bench->gpu, sizeof bits, "tensor", &bench->tensors[i], &why) != VGPU_OK) {
            return CHECK_MSG(false, "%s", why.text);
        }
        if (i < 3) {
            fill(bench->values[i], COUNT, i + 1);
            attn_from_float(ATTN_FP16, bits, bench->values[i], COUNT);
            attn_to_float(ATTN_FP16, bench->values[i], bits, COUNT);
            vgpu_write(bench->gpu, bench->tensors[i], bits, sizeof bits, &why);
        }
    }
    return true;
}

static void bench_close(struct bench *bench) {
    vgpu_unload(bench->module);
    vgpu_close(bench->gpu);
}

/* Thread-instructions a second of one launch; 0: it failed. */
static double launch(struct bench *bench) {
    const vgpu_dims dims = {.grid = {ROWS / 64, HEADS, 1}, .block = {128, 1, 1}};
    int rows = ROWS;
    void *arguments[] = {&bench->tensors[0], &bench->tensors[1], &bench->tensors[2],
                         &bench->tensors[3], &rows};
    vgpu_error why;
    vgpu_stats before, after;
    vgpu_stats_get(bench->gpu, &before);
    const double begin = cpu_seconds();
    const vgpu_status status =
        vgpu_launch(bench->gpu, bench->module, "attention", &dims, arguments, &why);
    const double seconds = cpu_seconds() - begin;
    if (!CHECK_MSG(status == VGPU_OK, "%s", why.text)) {
        return 0;
    }
    vgpu_stats_get(bench->gpu, &after);
    return (double)(after.thread_instructions - before.thread_instructions) / seconds;
}

static double best_rate(struct bench *bench, int runs) {
    double best = 0;
    for (int i = 0; i < runs; i++) {
        const double rate = launch(bench);
        best = rate > best ? rate : best;
    }
    return best;
}

/* The greatest difference between o and softmax(q k^T / 8) v. */
static double worst_error(const struct bench *bench) {
    static uint16_t bits[COUNT];
    static float o[COUNT];
    double worst = 0;
    vgpu_error why;
    vgpu_read(bench->gpu, bits, bench->tensors[3], sizeof bits, &why);
    attn_to_float(ATTN_FP16, o, bits, COUNT);
    for (size_t row = 0; row < HEADS * ROWS; row++) {
        const size_t head = row / ROWS * ROWS;
        double weights[ROWS], sum = 0;
        for (size_t key = 0; key < ROWS; key++) {
            double dot = 0;
            for (size_t d = 0; d < DIM; d++) {
                dot += (double)bench->values[0][row * DIM + d] *
                       (double)bench->values[1][(head + key) * DIM + d];
            }
            sum += weights[key] = exp(dot / 8);
        }
        for (size_t d = 0; d < DIM; d++) {
            double value = 0;
            for (size_t key = 0; key < ROWS; key++) {
                value += weights[key] * (double)bench->values[2][(head + key) * DIM + d];
            }
            const double error = fabs(value / sum - (double)o[row * DIM + d]);
            worst = error <= worst ? worst : error; /* a NaN stays */
        }
    }
    return worst;
}

/* Figures without some of the checks. */
static void print_table(const char *ptx) {
    static const struct {
        uint32_t checks;
        const char *name;
    } SETS[] = {{0, "none"},
                {VGPU_CHECK_MEMORY, "memory"},
                {VGPU_CHECK_MEMORY | VGPU_CHECK_INIT, "memory, init"},
                {VGPU_CHECK_MEMORY | VGPU_CHECK_INIT | VGPU_CHECK_RACE, "memory, init, race"},
                {VGPU_CHECK_ALL, "all"}};
    static const char *const ORDERS[] = {"eager", "fifo", "lifo", "random"};
    static struct bench bench;
    for (size_t i = 0; i < sizeof SETS / sizeof SETS[0]; i++) {
        if (bench_open(&bench, ptx, SETS[i].checks)) {
            printf("  checks: %-20s", SETS[i].name);
            for (int order = 0; order < 4; order++) {
                vgpu_set_async(bench.gpu, (vgpu_async)order, 1);
                printf("  %s %5.0f", ORDERS[order], best_rate(&bench, 20) * 1e-6);
            }
            printf("  M thread-instructions/s\n");
        }
        bench_close(&bench);
    }
}

TEST(mma_sync_kernel) {
    static struct bench bench;
    char *ptx = read_text("tests/data/bench/attention.ptx");
    if (!CHECK(ptx != NULL)) {
        return;
    }
    if (bench_open(&bench, ptx, VGPU_CHECK_ALL)) {
        double best = best_rate(&bench, 8);
        for (int more = 0; judged && best < RATE_FLOOR && more < 4; more++) {
            best = best_rate(&bench, 8);
        }
        printf("  mma.sync attention, all checks: %.0f M thread-instructions/s/core (bar: %.0f)\n",
               best * 1e-6, RATE_BAR * 1e-6);
        CHECK_MSG(!judged || best >= RATE_FLOOR, "%.3g thread-instructions/s, below %.3g", best,
                  RATE_FLOOR);
        const double worst = worst_error(&bench);
        CHECK_MSG(worst < 1e-3, "differs by %g from the plain loop", worst);
        vgpu_finding finding = {.kind = "none", .text = ""};
        CHECK_MSG(!vgpu_finding_get(bench.gpu, 0, &finding), "PTX line %u: %s: %s",
                  finding.ptx_line, finding.kind, finding.text);
    }
    bench_close(&bench);
    if (table) {
        print_table(ptx);
    }
    free(ptx);
}

/* ---- libattn --------------------------------------------------------------------------------- */

enum { VARIANT_ROWS = 128, VARIANT_COUNT = HEADS * VARIANT_ROWS * DIM };

/* The best CPU time of a few launches, in seconds; negative: it failed. */
static double time_forward(struct device *device, attn_plan *plan, const attn_tensors *tensors,
                           int runs) {
    attn_error why;
    double best = -1;
    const size_t size = attn_workspace_size(plan);
    void *workspace = size > 0 ? device_alloc(device, size, &why) : NULL;
    CHECK(size == 0 || device_fill(device, workspace, 0xFF, size, &why));
    for (int i = 0; i < runs; i++) {
        const double begin = cpu_seconds();
        if (!CHECK_STATUS(attn_forward(plan, tensors, workspace, size, NULL, &why), ATTN_OK,
                          &why) ||
            !CHECK_MSG(device_wait(device, &why), "%s", why.text)) {
            return -1;
        }
        const double seconds = cpu_seconds() - begin;
        best = best < 0 || seconds < best ? seconds : best;
    }
    device_free(device, workspace);
    return best;
}

/* False: the variant is made for other problems. */
static bool time_variant(attn_context *context, struct device *device, const char *name,
                         attn_dtype dtype) {
    static float values[VARIANT_COUNT];
    static float bits[VARIANT_COUNT]; /* the widest dtype */
    attn_problem p;
    attn_error why;
    attn_plan *plan = NULL;
    attn_tensors given;
    void *memory[5];
    attn_problem_init(&p);
    p.dtype = dtype;
    p.heads_q = HEADS;
    p.seq_q = p.seq_kv = VARIANT_ROWS;
    p.head_dim = DIM;
    if (attn_variant_check(context, name, &p, &why) != ATTN_OK) {
        return false;
    }
    for (uint32_t i = 0; i < 5; i++) {
        memory[i] = device_alloc(device, sizeof bits, &why);
        fill(values, VARIANT_COUNT, i + 1);
        attn_from_float(dtype, bits, values, VARIANT_COUNT);
        CHECK(i >= 3 || device_write(device, memory[i], bits, sizeof bits, &why));
    }
    attn_tensors_init(&given);
    given.q = memory[0], given.k = memory[1], given.v = memory[2];
    given.o = memory[3], given.lse = memory[4];
    if (CHECK_STATUS(attn_plan_create(context, &p, ATTN_BY_NAME(name), &plan, &why), ATTN_OK,
                     &why)) {
        const double seconds = time_forward(device, plan, &given, table ? 20 : 4);
        printf("  %-40s %6.2f ms with all checks (bar: %.0f)\n", name, seconds * 1e3,
               VARIANT_BAR * 1e3);
        CHECK_MSG(seconds > 0 && (!judged || seconds <= VARIANT_CEILING), "%s: %.3f s, above %.3f",
                  name, seconds, VARIANT_CEILING);
    }
    attn_plan_destroy(plan);
    for (uint32_t i = 0; i < 5; i++) {
        device_free(device, memory[i]);
    }
    return true;
}

TEST(every_variant) {
    attn_options options;
    attn_context *context = NULL;
    attn_error why;
    attn_variant variant = {.size = sizeof variant};
    int listed = 0, ran = 0;
    setenv("VGPU_THREADS", "1", 1);
    attn_options_init(&options);
    options.device = "cuda";
    options.driver = VGPU_LIBRARY;
    if (!CHECK_STATUS(attn_open(&options, &context, &why), ATTN_OK, &why)) {
        return;
    }
    struct device *device = device_open(context, "cuda", &why);
    if (!CHECK_MSG(device != NULL, "%s", why.text)) {
        attn_close(context);
        return;
    }
    for (int32_t i = 0; attn_variant_get(context, i, &variant, NULL) == ATTN_OK; i++) {
        if (strcmp(variant.device, "cuda") == 0) {
            listed++;
            ran += time_variant(context, device, variant.name,
                                (attn_dtype)__builtin_ctz(variant.dtypes));
        }
    }
    device_close(device);
    attn_close(context);
    CHECK_MSG(listed == 0 || ran > 0, "%d variants, and none ran", listed);
    if (listed == 0) {
        SKIP("no kernels are compiled in");
    }
}

TEST_STATE()

int main(int argc, char **argv) {
    table = argc > 1 && strcmp(argv[1], "--table") == 0;
    return test_run(argc > 1 && !table ? argv[1] : "");
}
