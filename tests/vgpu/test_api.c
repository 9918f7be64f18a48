/* SPDX-License-Identifier: Apache-2.0
 *
 * test_api.c - vgpu.h from the outside: configuration, memory, PTX that cannot be loaded,
 * kernels, launches, findings. Everything through the public header but the size of memory in use.
 */
#include <stdlib.h>

#include "test.h"
#include "vgpu/machine/device.h"
#include "vgpu/machine/machine.h"

#define HEADER ".version 8.0\n.target sm_80\n.address_size 64\n"

/* y[i] = x[i] + table[i % 4] + bias + more for i < n */
static const char ADD[] =
    HEADER ".global .align 4 .b32 table[4] = {10, 20, 30, 40};\n"
           ".const .align 4 .b32 bias[1] = {1000};\n"
           ".visible .entry add(.param .u32 n, .param .u32 more, .param .u64 x, .param .u64 y)\n"
           ".maxntid 128, 1, 1\n{\n"
           "\t.reg .pred %p<2>;\n\t.reg .b32 %r<12>;\n\t.reg .b64 %rd<12>;\n"
           "\t.file 1 \"kernel.cu\"\n"
           "\t.loc 1 40 3\n"
           "\tld.param.u64 %rd1, [x];\n\tld.param.u64 %rd2, [y];\n"
           "\tld.param.u32 %r1, [n];\n\tld.param.u32 %r11, [more];\n"
           "\tmov.u32 %r2, %tid.x;\n\tmov.u32 %r3, %ctaid.x;\n\tmov.u32 %r4, %ntid.x;\n"
           "\tmad.lo.s32 %r5, %r3, %r4, %r2;\n"
           "\tsetp.ge.s32 %p1, %r5, %r1;\n\t@%p1 bra DONE;\n"
           "\tmul.wide.s32 %rd3, %r5, 4;\n\tadd.s64 %rd4, %rd1, %rd3;\n"
           "\t.loc 1 42 7\n"
           "\tld.global.u32 %r6, [%rd4];\n"
           "\tand.b32 %r7, %r5, 3;\n\tmul.wide.s32 %rd5, %r7, 4;\n"
           "\tmov.u64 %rd6, table;\n\tadd.s64 %rd7, %rd6, %rd5;\n"
           "\tld.global.u32 %r8, [%rd7];\n\tadd.s32 %r9, %r6, %r8;\n"
           "\tld.const.u32 %r10, [bias];\n\tadd.s32 %r9, %r9, %r10;\n\tadd.s32 %r9, %r9, %r11;\n"
           "\t.loc 1 43 7\n"
           "\tadd.s64 %rd8, %rd2, %rd3;\n\tst.global.u32 [%rd8], %r9;\n"
           "DONE:\n\tret;\n}\n";

static vgpu *open_gpu(int32_t threads, size_t memory) {
    vgpu_config config;
    vgpu_error why;
    vgpu *gpu = NULL;
    vgpu_config_init(&config);
    config.threads = threads;
    config.max_memory = memory;
    CHECK_MSG(vgpu_open(&config, &gpu, &why) == VGPU_OK, "%s", why.text);
    return gpu;
}

static vgpu_module *load(vgpu *gpu, const char *ptx) {
    vgpu_error why;
    vgpu_module *module = NULL;
    CHECK_MSG(vgpu_load(gpu, ptx, strlen(ptx), &module, &why) == VGPU_OK, "%s", why.text);
    return module;
}

static const vgpu_dims ONE_WARP = {.grid = {1, 1, 1}, .block = {32, 1, 1}};

/* ---- configuration --------------------------------------------------------------------------- */

static void refuse_config(const vgpu_config *config, const char *word) {
    vgpu_error why;
    vgpu *gpu = (vgpu *)(void *)&why;
    CHECK_EQ(vgpu_open(config, &gpu, &why), VGPU_INVALID);
    CHECK(gpu == NULL);
    CHECK_CONTAINS(why.text, word);
}

TEST(wrong_configurations_are_refused) {
    vgpu_config good;
    vgpu_config_init(&good);
    CHECK_EQ(good.max_findings, 1000);
    vgpu_config c = good;
    c.size = 8;
    refuse_config(&c, "config.size = 8");
    c = good;
    c.threads = -1;
    refuse_config(&c, "config.threads = -1");
    c = good;
    c.sm = 70;
    refuse_config(&c, "config.sm = 70");
    c = good;
    c.checks = 16;
    refuse_config(&c, "config.checks = 16");
    c = good;
    c.async = (vgpu_async)4;
    refuse_config(&c, "config.async = 4");
    CHECK_EQ(vgpu_open(&good, NULL, NULL), VGPU_INVALID);
    vgpu_close(NULL);
}

/* ---- memory ---------------------------------------------------------------------------------- */

TEST(memory_is_written_read_filled_and_freed) {
    vgpu *gpu = open_gpu(1, 1 << 20);
    vgpu_pointer x = 0, y = 0;
    vgpu_error why;
    unsigned char bytes[100], back[100];
    for (int i = 0; i < 100; i++) {
        bytes[i] = (unsigned char)i;
    }
    CHECK_EQ(vgpu_malloc(gpu, 100, "x", &x, &why), VGPU_OK);
    CHECK_EQ(vgpu_malloc(gpu, 100, NULL, &y, &why), VGPU_OK);
    CHECK(x % 256 == 0 && y % 256 == 0 && x != y);
    CHECK_EQ(vgpu_write(gpu, x, bytes, 100, &why), VGPU_OK);
    CHECK_EQ(vgpu_fill(gpu, x + 10, 0xAB, 5, &why), VGPU_OK);
    CHECK_EQ(vgpu_read(gpu, back, x, 100, &why), VGPU_OK);
    memset(bytes + 10, 0xAB, 5);
    CHECK(memcmp(bytes, back, 100) == 0);
    CHECK_EQ(vgpu_write(gpu, x + 1, bytes, 100, &why), VGPU_INVALID);
    CHECK_CONTAINS(why.text, "100 bytes");
    CHECK_EQ(vgpu_read(gpu, back, x - 1, 1, &why), VGPU_INVALID);
    CHECK_EQ(vgpu_fill(gpu, 0, 1, 1, &why), VGPU_INVALID);
    CHECK_EQ(vgpu_read(gpu, back, 0, 0, &why), VGPU_OK);
    CHECK_EQ(vgpu_malloc(gpu, 0, NULL, &y, &why), VGPU_INVALID);
    CHECK_EQ(vgpu_malloc(gpu, 2 << 20, NULL, &y, &why), VGPU_OUT_OF_MEMORY);
    CHECK_EQ(vgpu_free(gpu, x + 4, &why), VGPU_INVALID);
    CHECK_EQ(vgpu_free(gpu, x, &why), VGPU_OK);
    CHECK_EQ(vgpu_free(gpu, x, &why), VGPU_INVALID);
    CHECK_EQ(vgpu_read(gpu, back, x, 1, &why), VGPU_INVALID);
    CHECK_EQ(vgpu_free(gpu, 0, &why), VGPU_OK);
    vgpu_close(gpu);
}

/* ---- loading --------------------------------------------------------------------------------- */

static void refuse_ptx(vgpu *gpu, const char *ptx, uint32_t line, const char *word) {
    vgpu_error why;
    vgpu_module *module = (vgpu_module *)(void *)&why;
    CHECK_EQ(vgpu_load(gpu, ptx, strlen(ptx), &module, &why), VGPU_LOAD);
    CHECK(module == NULL);
    CHECK_MSG(why.line == line, "line %u, expected %u: %s", why.line, line, why.text);
    CHECK_CONTAINS(why.text, word);
    if (line != 0) {
        CHECK_CONTAINS(why.text, "^");
    }
    CHECK_EQ(vgpu_load(gpu, ptx, strlen(ptx), &module, NULL), VGPU_LOAD);
}

TEST(ptx_that_cannot_be_loaded_gives_line_and_caret) {
    vgpu *gpu = open_gpu(1, 1 << 20);
    refuse_ptx(gpu, HEADER "nonsense\n", 4, "nonsense");
    refuse_ptx(gpu, HEADER ".entry k()\n{\n\tfrobnicate.b32;\n\tret;\n}\n", 6, "frobnicate");
    refuse_ptx(gpu, HEADER ".entry k()\n{\n\t.reg .b32 %r<2>;\n\tadd.b97 %r1, %r1, 1;\n\tret;\n}\n",
               7, "add");
    refuse_ptx(gpu, HEADER ".extern .global .b32 elsewhere;\n.entry k()\n{\n\tret;\n}\n", 4,
               "elsewhere");
    refuse_ptx(gpu, ".version 8.0\n.target sm_100\n.address_size 64\n", 0, "sm_100");
    CHECK_EQ(device_memory_used(gpu->memory), 0);
    vgpu_close(gpu);
}

TEST(ptx_for_another_gpu_is_refused) {
    vgpu_config config;
    vgpu *gpu = NULL;
    vgpu_config_init(&config);
    config.sm = 80;
    CHECK_EQ(vgpu_open(&config, &gpu, NULL), VGPU_OK);
    refuse_ptx(gpu, ".version 8.0\n.target sm_90\n.address_size 64\n", 0, "sm_90 does not run");
    vgpu_close(gpu);
}

TEST(modules_come_and_go) {
    vgpu *gpu = open_gpu(1, 1 << 20);
    vgpu_module *a = load(gpu, ADD), *b = load(gpu, ADD);
    const size_t used = device_memory_used(gpu->memory);
    CHECK(used >= 40);
    vgpu_unload(a);
    CHECK(device_memory_used(gpu->memory) < used);
    vgpu_unload(b);
    vgpu_unload(NULL);
    CHECK_EQ(device_memory_used(gpu->memory), 0);
    vgpu_close(gpu);
}

TEST(kernels_tell_their_shape) {
    vgpu *gpu = open_gpu(1, 1 << 20);
    vgpu_module *module = load(gpu, ADD);
    vgpu_kernel kernel;
    uint32_t offset = 99, bytes = 99;
    if (module == NULL || !CHECK(vgpu_kernel_get(module, 0, &kernel))) {
        return;
    }
    CHECK_STR(kernel.name, "add");
    CHECK_EQ(kernel.param_count, 4);
    CHECK_EQ(kernel.param_bytes, 24);
    CHECK_EQ(kernel.max_threads, 128);
    CHECK_EQ(kernel.shared_bytes, 0);
    CHECK_EQ(kernel.tensor_instructions, 0);
    CHECK(kernel.instructions > 15);
    CHECK(!vgpu_kernel_get(module, 1, &kernel));
    CHECK(vgpu_param_get(module, 0, 1, &offset, &bytes));
    CHECK_EQ(offset, 4);
    CHECK_EQ(bytes, 4);
    CHECK(!vgpu_param_get(module, 0, 4, &offset, &bytes));
    CHECK(!vgpu_param_get(module, 1, 0, &offset, &bytes));
    vgpu_unload(module);
    vgpu_close(gpu);
}

/* ---- launches -------------------------------------------------------------------------------- */

enum { MANY = 1000 };

struct sum {
    vgpu *gpu;
    vgpu_module *module;
    vgpu_pointer x, y;
    int32_t n, more;
};

static bool sum_make(struct sum *sum, int32_t threads) {
    int32_t x[MANY];
    *sum = (struct sum){.gpu = open_gpu(threads, 1 << 24), .n = MANY, .more = 100000};
    if (sum->gpu == NULL || (sum->module = load(sum->gpu, ADD)) == NULL) {
        return false;
    }
    for (int32_t i = 0; i < MANY; i++) {
        x[i] = i * i;
    }
    return CHECK(vgpu_malloc(sum->gpu, sizeof x, "x", &sum->x, NULL) == VGPU_OK) &&
           CHECK(vgpu_malloc(sum->gpu, sizeof x, "y", &sum->y, NULL) == VGPU_OK) &&
           CHECK(vgpu_write(sum->gpu, sum->x, x, sizeof x, NULL) == VGPU_OK);
}

static vgpu_status sum_run(struct sum *sum, vgpu_error *why) {
    void *arguments[] = {&sum->n, &sum->more, &sum->x, &sum->y};
    const vgpu_dims dims = {.grid = {(MANY + 127) / 128, 1, 1}, .block = {128, 1, 1}};
    return vgpu_launch(sum->gpu, sum->module, "add", &dims, arguments, why);
}

static void sum_free(struct sum *sum) {
    vgpu_unload(sum->module);
    vgpu_close(sum->gpu);
}

TEST(a_kernel_computes_with_any_number_of_threads) {
    for (int32_t threads = 1; threads <= 3; threads += 2) {
        struct sum sum;
        vgpu_error why;
        vgpu_finding finding;
        vgpu_stats stats;
        int32_t y[MANY];
        if (!sum_make(&sum, threads)) {
            return;
        }
        CHECK_MSG(sum_run(&sum, &why) == VGPU_OK, "%s", why.text);
        CHECK_STR(why.text, "");
        CHECK_EQ(vgpu_read(sum.gpu, y, sum.y, sizeof y, NULL), VGPU_OK);
        for (int32_t i = 0; i < MANY; i++) {
            CHECK_EQ(y[i], i * i + 10 * (i % 4 + 1) + 1000 + 100000);
        }
        CHECK(!vgpu_finding_get(sum.gpu, 0, &finding));
        vgpu_stats_get(sum.gpu, &stats);
        CHECK(stats.warp_instructions > 32 * 10 && stats.warp_instructions < 32 * 40);
        CHECK(stats.thread_instructions > 1000 * 20 && stats.thread_instructions < 1024 * 40);
        CHECK(stats.seconds > 0);
        /* x and y: 125 sectors each; the table: one a warp */
        CHECK_EQ(stats.global_sectors, 125 + 125 + 32);
        sum_free(&sum);
    }
}

TEST(an_access_beyond_the_end_is_found_at_its_line) {
    struct sum sum;
    vgpu_error why;
    vgpu_finding f;
    if (!sum_make(&sum, 1)) {
        return;
    }
    sum.n = MANY + 1;
    vgpu_set_async(sum.gpu, VGPU_ASYNC_LIFO, 99);
    sum_run(&sum, &why);
    CHECK_EQ(vgpu_error_count(sum.gpu), 2); /* the read of x, the write of y */
    for (size_t i = 0; i < 2 && CHECK(vgpu_finding_get(sum.gpu, i, &f)); i++) {
        CHECK_STR(f.kind, "out-of-bounds");
        CHECK_STR(f.kernel, "add");
        CHECK_STR(f.place.file, "kernel.cu");
        CHECK_EQ(f.place.line, i == 0 ? 42 : 43);
        CHECK_EQ(f.cta[0], 7);
        CHECK_EQ(f.warp, 3);
        CHECK_EQ(f.lanes, 1 << 8);
        CHECK_STR(f.space, "global");
        CHECK(f.address == (i == 0 ? sum.x : sum.y) + 4 * MANY);
        CHECK_EQ(f.bytes, 4);
        CHECK_CONTAINS(f.text, i == 0 ? "\"x\"" : "\"y\"");
        CHECK_EQ(f.async, VGPU_ASYNC_LIFO);
        CHECK_EQ(f.seed, 99);
        CHECK_EQ(f.count, 1);
    }
    vgpu_findings_clear(sum.gpu);
    CHECK_EQ(vgpu_error_count(sum.gpu), 0);
    CHECK_EQ(vgpu_suppress(sum.gpu, "out-of-bounds", "kernel.cu", 0, &why), VGPU_OK);
    sum_run(&sum, &why);
    CHECK_EQ(vgpu_error_count(sum.gpu), 0);
    sum_free(&sum);
}

TEST(findings_outlive_their_module) {
    struct sum sum;
    vgpu_finding f;
    if (!sum_make(&sum, 1)) {
        return;
    }
    sum.n = MANY + 1;
    sum_run(&sum, NULL);
    vgpu_unload(sum.module);
    sum.module = NULL;
    CHECK(vgpu_finding_get(sum.gpu, 0, &f));
    CHECK_STR(f.kernel, "add");
    CHECK_STR(f.place.file, "kernel.cu");
    sum_free(&sum);
}

static void refuse_launch(struct sum *sum, const char *kernel, const vgpu_dims *dims,
                          void *const *arguments, vgpu_status status, const char *word) {
    vgpu_error why;
    CHECK_EQ(vgpu_launch(sum->gpu, sum->module, kernel, dims, arguments, &why), status);
    CHECK_CONTAINS(why.text, word);
}

TEST(wrong_launches_are_refused) {
    struct sum sum;
    if (!sum_make(&sum, 1)) {
        return;
    }
    void *arguments[] = {&sum.n, &sum.more, &sum.x, &sum.y};
    void *missing[] = {&sum.n, NULL, &sum.x, &sum.y};
    vgpu_dims dims = ONE_WARP;
    refuse_launch(&sum, "sub", &dims, arguments, VGPU_NOT_FOUND, "sub");
    refuse_launch(&sum, "add", NULL, arguments, VGPU_INVALID, "dims");
    refuse_launch(&sum, "add", &dims, NULL, VGPU_INVALID, "arguments is NULL");
    refuse_launch(&sum, "add", &dims, missing, VGPU_INVALID, "parameter 1");
    dims.block[0] = 129;
    refuse_launch(&sum, "add", &dims, arguments, VGPU_INVALID, "128");
    dims.block[0] = 2048;
    refuse_launch(&sum, "add", &dims, arguments, VGPU_INVALID, "1024");
    dims = ONE_WARP;
    dims.grid[1] = 0;
    refuse_launch(&sum, "add", &dims, arguments, VGPU_INVALID, "grid[1]");
    dims = ONE_WARP;
    dims.shared_bytes = 48 * 1024 + 1;
    refuse_launch(&sum, "add", &dims, arguments, VGPU_INVALID, "shared");
    dims.max_shared_bytes = dims.shared_bytes;
    vgpu_error why;
    CHECK_MSG(vgpu_launch(sum.gpu, sum.module, "add", &dims, arguments, &why) == VGPU_OK, "%s",
              why.text);
    sum_free(&sum);
}

/* ---- findings before a launch ---------------------------------------------------------------- */

/* A trap is reported at the launch, in addition to the one that is executed. */
static void check_lint(const char *ptx, const char *kind, const char *word) {
    vgpu *gpu = open_gpu(1, 1 << 20);
    vgpu_module *module = load(gpu, ptx);
    vgpu_finding f;
    size_t at = 0;
    if (kind != NULL && strcmp(kind, "trap-entry") == 0) {
        uint64_t a = 0;
        void *arguments[] = {&a};
        vgpu_error why;
        CHECK(!vgpu_finding_get(gpu, 0, &f));
        CHECK_EQ(vgpu_launch(gpu, module, "k", &ONE_WARP, arguments, &why), VGPU_FAULT);
        CHECK(vgpu_finding_get(gpu, 0, &f) && strcmp(f.kind, "trap") == 0);
        at = 1;
    }
    const bool found = vgpu_finding_get(gpu, at, &f);
    if (kind == NULL) {
        CHECK_MSG(!found, "%s: %s", f.kind, f.text);
    } else if (CHECK_MSG(found, "nothing found, expected %s", kind)) {
        CHECK_STR(f.kind, kind);
        CHECK_STR(f.kernel, "k");
        CHECK_CONTAINS(f.text, word);
        CHECK_EQ(f.severity, VGPU_ERROR);
        CHECK(!vgpu_finding_get(gpu, at + 1, &f));
    }
    vgpu_unload(module);
    vgpu_close(gpu);
}

TEST(static_findings) {
    check_lint(HEADER ".visible .entry k()\n{\n\ttrap;\n}\n", "trap-entry", "trap");
    check_lint(HEADER ".visible .entry k(.param .u64 a)\n{\n\t.reg .b64 %rd<2>;\n"
                      "\tld.param.u64 %rd1, [a];\n\ttrap;\n\tret;\n}\n",
               "trap-entry", "trap");
    check_lint(HEADER ".visible .entry k()\n{\n\t.reg .pred %p<2>;\n\t.reg .b32 %r<2>;\n"
                      "\tmov.u32 %r1, %tid.x;\n\tsetp.eq.s32 %p1, %r1, 99;\n\t@%p1 trap;\n"
                      "\tret;\n}\n",
               NULL, NULL);
    check_lint(HEADER ".visible .entry k()\n{\n\tbar.sync 0;\n\ttrap;\n}\n", "trap-entry",
               "line 7");
    check_lint(HEADER ".visible .entry k()\n{\n\tbar.sync 0;\n\ttrap;\n\tret;\n}\n", NULL, NULL);
    check_lint(HEADER ".visible .entry k()\n{\n\tret;\n}\n", NULL, NULL);
    check_lint(HEADER ".func f()\n{\n\ttrap;\n}\n", NULL, NULL);
    check_lint(HEADER ".visible .entry k()\n{\n\t.shared .align 4 .b8 s[49156];\n\tret;\n}\n",
               "limit", "49156");
    check_lint(HEADER ".visible .entry k()\n{\n\t.shared .align 4 .b8 s[49152];\n\tret;\n}\n", NULL,
               NULL);
    check_lint(HEADER ".visible .entry k()\n.maxntid 1024, 2, 1\n{\n\tret;\n}\n", "limit", "2048");
}

/* A stub for another architecture gives no finding. */
TEST(a_trap_in_a_kernel_that_is_not_launched) {
    vgpu *gpu = open_gpu(1, 1 << 20);
    vgpu_module *module = load(gpu, HEADER ".visible .entry stub()\n{\n\ttrap;\n}\n"
                                           ".visible .entry k()\n{\n\tret;\n}\n");
    vgpu_error why;
    vgpu_finding f;
    CHECK_EQ(vgpu_launch(gpu, module, "k", &ONE_WARP, NULL, &why), VGPU_OK);
    CHECK(!vgpu_finding_get(gpu, 0, &f));
    vgpu_unload(module);
    vgpu_close(gpu);
}

TEST(a_trap_ends_the_launch) {
    vgpu *gpu = open_gpu(1, 1 << 20);
    vgpu_module *module = load(gpu, HEADER ".visible .entry k()\n{\n\ttrap;\n\tret;\n}\n");
    vgpu_error why;
    vgpu_findings_clear(gpu);
    if (module != NULL) {
        CHECK_EQ(vgpu_launch(gpu, module, "k", &ONE_WARP, NULL, &why), VGPU_FAULT);
        vgpu_finding first, second;
        CHECK(vgpu_finding_get(gpu, 0, &first) && vgpu_finding_get(gpu, 1, &second));
        CHECK_STR(first.kind, "trap");
        CHECK_STR(second.kind, "trap-entry");
    }
    vgpu_unload(module);
    vgpu_close(gpu);
}

/* What the compiler put in has line 0: it counts to the line before, or to where it was inlined. */
TEST(a_line_0_is_the_line_before) {
    static const char *const TRAPS[] = {".loc 1 0 0\n", ".loc 1 0 0, function_name f, inlined_at 1 "
                                                        "40 3\n"};
    for (int i = 0; i < 2; i++) {
        char ptx[1024];
        vgpu *gpu = open_gpu(1, 1 << 20);
        vgpu_finding finding = {0};
        snprintf(ptx, sizeof ptx,
                 HEADER ".visible .entry k() {\n.reg .b32 %%r<2>;\n.loc 1 40 3\nmov.u32 %%r0, 1;\n"
                        "%sbar.sync 0;\ntrap;\nret;\n}\n.file 1 \"kernel.cu\"\n"
                        ".section .debug_str {\nf:\n.b8 102, 0\n}\n",
                 TRAPS[i]);
        vgpu_module *module = load(gpu, ptx);
        CHECK_EQ(vgpu_launch(gpu, module, "k", &ONE_WARP, NULL, NULL), VGPU_FAULT);
        if (CHECK(vgpu_finding_get(gpu, 0, &finding) && finding.place.file != NULL)) {
            CHECK_STR(finding.place.file, "kernel.cu");
            CHECK_EQ(finding.place.line, 40);
        }
        vgpu_unload(module);
        vgpu_close(gpu);
    }
}

/* ---- counts and limits ----------------------------------------------------------------------- */

static const char LOOPS[] =
    HEADER ".visible .entry endless() {\nL: bra L;\n}\n"
           ".visible .entry hundred() {\n.reg .pred %p<1>;\n.reg .b32 %r<1>;\n"
           ".local .align 4 .b8 mine[12];\nmov.u32 %r0, 0;\n"
           "L: add.u32 %r0, %r0, 1;\nsetp.lt.u32 %p0, %r0, 100;\n@%p0 bra L;\nret;\n}\n";

TEST(local_memory_is_counted_for_each_entry) {
    vgpu *gpu = open_gpu(1, 1 << 20);
    vgpu_module *module = load(gpu, LOOPS);
    vgpu_kernel endless, hundred;
    CHECK(vgpu_kernel_get(module, 0, &endless) && vgpu_kernel_get(module, 1, &hundred));
    CHECK_EQ(endless.local_bytes, 0);
    CHECK_EQ(hundred.local_bytes, 12);
    vgpu_unload(module);
    vgpu_close(gpu);
}

TEST(the_mix_counts_every_instruction) {
    vgpu *gpu = open_gpu(1, 1 << 20);
    vgpu_module *module = load(gpu, LOOPS);
    char text[4096] = "";
    FILE *out = fmemopen(text, sizeof text, "w");
    CHECK_EQ(vgpu_launch(gpu, module, "hundred", &ONE_WARP, NULL, NULL), VGPU_OK);
    CHECK(out != NULL && vgpu_report(gpu, out, VGPU_JSON) == VGPU_OK);
    CHECK_CONTAINS(text, "\"warp_instructions\": 302");
    CHECK_CONTAINS(text, "\"mix\": {\"integer\": 100, \"compare and select\": 100, \"move\": 1, "
                         "\"control\": 101}");
    fclose(out);
    vgpu_unload(module);
    vgpu_close(gpu);
}

/* A thousand CTAs that never end cost little more than the limit, whatever is resident. */
TEST(the_limit_of_steps_is_that_of_the_launch) {
    for (int32_t threads = 1; threads <= 3; threads++) {
        vgpu_config config;
        vgpu *gpu = NULL;
        vgpu_finding finding;
        vgpu_stats stats;
        vgpu_config_init(&config);
        config.threads = threads;
        config.max_steps = 50;
        CHECK_EQ(vgpu_open(&config, &gpu, NULL), VGPU_OK);
        vgpu_module *module = load(gpu, LOOPS);
        const vgpu_dims dims = {.grid = {1000, 1, 1}, .block = {64, 1, 1}};
        CHECK_EQ(vgpu_launch(gpu, module, "endless", &dims, NULL, NULL), VGPU_FAULT);
        if (CHECK(vgpu_finding_get(gpu, 0, &finding))) {
            CHECK_STR(finding.kind, "steps");
            CHECK_CONTAINS(finding.text, "the limit of 50 warp instructions is reached");
            CHECK_EQ(finding.cta[0], 0);
        }
        vgpu_stats_get(gpu, &stats);
        CHECK_EQ(stats.warp_instructions, 50);
        vgpu_unload(module);
        vgpu_close(gpu);
    }
}

/* ---- errors that come late ------------------------------------------------------------------- */

/* What cannot be parsed (a declaration, a statement, a head) and what cannot be decoded,
 * each on a path of its own: 0 is taken by the parameter. */
static const char PARTLY[] =
    HEADER ".global .texref picture;\n"
           ".global .u64 table[2] = {one, two};\n"
           ".visible .entry strange(.param .u32 way)\n{\n"
           "\t.reg .pred %p<4>;\n\t.reg .b32 %r<4>;\n\t.reg .b64 %rd<4>;\n"
           "\tld.param.u32 %r1, [way];\n"
           "\tsetp.eq.u32 %p1, %r1, 1;\n\tsetp.eq.u32 %p2, %r1, 2;\n"
           "\tsetp.eq.u32 %p3, %r1, 3;\n"
           "\t@%p1 bra PARSE;\n\t@%p2 bra DECODE;\n\t@%p3 bra NAME;\n\tret;\n"
           "PARSE:\n\tadd.s32 %r2, %q9, {1};\n\tret;\n"
           "DECODE:\n\tadd.s77 %r2, %r1, 1;\n\tret;\n"
           "NAME:\n\tmov.u64 %rd1, picture;\n\tret;\n}\n"
           ".visible .entry odd(.parameter .u32 x)\n{\n\tret;\n}\n"
           ".visible .entry fine()\n{\n\tret;\n}\n";

TEST(unknown_instructions_fail_the_launch_that_reaches_them) {
    static const char *const WORDS[] = {NULL, "%q9", "add", "picture"};
    vgpu_error why;
    vgpu_module *module = NULL;
    vgpu *gpu = open_gpu(1, 1 << 20);
    CHECK_EQ(vgpu_load(gpu, PARTLY, strlen(PARTLY), &module, &why), VGPU_LOAD);
    vgpu_set_late_errors(gpu, true);
    module = load(gpu, PARTLY);
    CHECK_EQ(vgpu_launch(gpu, module, "fine", &ONE_WARP, NULL, NULL), VGPU_OK);
    CHECK_EQ(vgpu_launch(gpu, module, "odd", &ONE_WARP, NULL, NULL), VGPU_NOT_FOUND);
    for (uint32_t way = 0; way < 4; way++) {
        void *arguments[] = {&way};
        vgpu_finding finding;
        vgpu_findings_clear(gpu);
        CHECK_EQ(vgpu_launch(gpu, module, "strange", &ONE_WARP, arguments, &why),
                 way == 0 ? VGPU_OK : VGPU_FAULT);
        CHECK_EQ(vgpu_error_count(gpu), way > 0);
        if (way > 0 && CHECK(vgpu_finding_get(gpu, 0, &finding))) {
            CHECK_STR(finding.kind, "unknown");
            CHECK_CONTAINS(finding.text, WORDS[way]);
            CHECK_EQ(finding.ptx_line, 17 + 3 * way);
        }
    }
    vgpu_unload(module);
    vgpu_close(gpu);
}

TEST_MAIN()
