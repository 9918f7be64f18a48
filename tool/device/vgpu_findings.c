/* SPDX-License-Identifier: Apache-2.0
 *
 * vgpu_findings.c - see vgpu_findings.h.
 */
#include "device/vgpu_findings.h"
#include "attn_inspect.h"

#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/message.h"
#include "vgpu.h"

static const char *const ORDER_NAMES[ASYNC_ORDERS] = {
    [VGPU_ASYNC_EAGER] = "eager",
    [VGPU_ASYNC_FIFO] = "fifo",
    [VGPU_ASYNC_LIFO] = "lifo",
    [VGPU_ASYNC_RANDOM] = "random",
};

const char *async_order_name(int order) {
    return ORDER_NAMES[order];
}

/* ":7" after "random". */
static bool parse_seed(const char *text, uint64_t *seed) {
    char *end;
    errno = 0;
    *seed = strtoull(text + 1, &end, 10);
    return text[0] == ':' && text[1] >= '0' && text[1] <= '9' && *end == '\0' && errno == 0;
}

bool async_orders_parse(const char *text, struct async_orders *orders, attn_error *why) {
    const bool all = strcmp(text, "all") == 0;
    *orders = (struct async_orders){0};
    for (int order = 0; order < ASYNC_ORDERS; order++) {
        const size_t length = strlen(ORDER_NAMES[order]);
        uint64_t seed = 1;
        if (all || strcmp(text, ORDER_NAMES[order]) == 0 ||
            (order == VGPU_ASYNC_RANDOM && strncmp(text, ORDER_NAMES[order], length) == 0 &&
             parse_seed(text + length, &seed))) {
            orders->list[orders->count].order = order;
            orders->list[orders->count++].seed = seed;
        }
    }
    return orders->count > 0 ||
           explain(why, "'%s' is not one of eager, fifo, lifo, random:SEED, all", text);
}

bool vgpu_drives(attn_context *context) {
    void *function = NULL;
    Dl_info driver, ours;
    return attn_driver_function(context, "cuMemcpyHtoD", &function, NULL) == ATTN_OK &&
           dladdr(function, &driver) != 0 &&
           dladdr((const void *)(uintptr_t)vgpu_version, &ours) != 0 &&
           driver.dli_fbase == ours.dli_fbase;
}

void vgpu_driver_order(const struct async_orders *orders, size_t index) {
    vgpu *gpu = vgpu_driver_gpu();
    if (gpu != NULL) {
        vgpu_set_async(gpu, (vgpu_async)orders->list[index].order, orders->list[index].seed);
    }
}

void vgpu_driver_forget(void) {
    vgpu *gpu = vgpu_driver_gpu();
    if (gpu != NULL) {
        vgpu_findings_clear(gpu);
    }
}

/* Findings are sorted: errors come first. */
bool vgpu_driver_clean(char *text, size_t size) {
    vgpu *gpu = vgpu_driver_gpu();
    vgpu_finding first;
    if (gpu == NULL) {
        snprintf(text, size, "the virtual GPU is gone");
        return false;
    }
    const size_t errors = vgpu_error_count(gpu);
    if (errors == 0) {
        return true;
    }
    if (!vgpu_finding_get(gpu, 0, &first)) {
        snprintf(text, size, "vgpu: %zu errors, none of them kept", errors);
        return false;
    }
    snprintf(text, size, "vgpu: %s:%" PRIu32 ": %s: %s [async %s, seed %" PRIu64 "]%s",
             first.place.file != NULL ? first.place.file : "PTX",
             first.place.file != NULL ? first.place.line : first.ptx_line, first.kind, first.text,
             async_order_name((int)first.async), first.seed, errors > 1 ? " and more" : "");
    return false;
}

/* ---- the device's name ----------------------------------------------------------------------- */

/* The library is the one that this program is linked with: the loader knows its path, and opening
 * that path again gives the same library. */
bool device_alias(const char **device, const char **driver, attn_error *why) {
    static char path[PATH_MAX];
    Dl_info info;
    if (strcmp(*device, "vgpu") != 0) {
        return true;
    }
    if (*driver != NULL) {
        return explain(why, "driver = %s: device vgpu brings its own, expected none", *driver);
    }
    if (dladdr((const void *)(uintptr_t)vgpu_version, &info) == 0 || info.dli_fname == NULL ||
        realpath(info.dli_fname, path) == NULL) {
        return explain(why, "device = vgpu: the path of its library is unknown");
    }
    *device = "cuda";
    *driver = path;
    return true;
}

/* ---- planted bugs ---------------------------------------------------------------------------- */

/* All kernels take one pointer to 256 floats that are set. */
enum { FLOATS = 256, THREADS = 64 };
static const uint64_t MOST_STEPS = 100000; /* warp instructions: an endless loop must be reported */

/* %rd1 is the pointer, %r1 the thread, %rd2 its own float, %r2 its own shared word, %r3 the offset
 * of that. */
static const char HEAD[] =
    ".version 7.0\n.target sm_80\n.address_size 64\n"
    ".visible .entry %s(.param .u64 p) {\n"
    ".reg .pred %%p<3>;\n.reg .b32 %%r<8>;\n.reg .f32 %%f<4>;\n.reg .b64 %%rd<6>;\n"
    ".shared .align 16 .b8 words[512];\n"
    "ld.param.u64 %%rd1, [p];\ncvta.to.global.u64 %%rd1, %%rd1;\nmov.u32 %%r1, %%tid.x;\n"
    "mov.u32 %%r7, %%ctaid.x;\nmad.lo.u32 %%r7, %%r7, 64, %%r1;\n"
    "mul.wide.u32 %%rd2, %%r7, 4;\nadd.s64 %%rd2, %%rd1, %%rd2;\n"
    "mov.u32 %%r2, words;\nshl.b32 %%r3, %%r1, 2;\nadd.u32 %%r2, %%r2, %%r3;\n"
    "%sret;\n}\n";

static const struct {
    const char *entry, *kind, *or_kind; /* kind NULL: nothing may be found */
    const char *body;
} PLANTED[] = {
    {"clean", NULL, NULL, /* neighbours exchange through shared memory, across a barrier */
     "st.shared.u32 [%r2], %r1;\nbar.sync 0;\nxor.b32 %r4, %r3, 4;\nmov.u32 %r5, words;\n"
     "add.u32 %r5, %r5, %r4;\nld.shared.u32 %r6, [%r5];\nst.global.u32 [%rd2], %r6;\n"},
    {"out_of_bounds", "out-of-bounds", NULL, /* one float past the last */
     "mov.f32 %f1, 0f00000000;\nst.global.f32 [%rd1+1024], %f1;\n"},
    {"misaligned", "misaligned", NULL, "mov.f32 %f1, 0f00000000;\nst.global.f32 [%rd2+2], %f1;\n"},
    {"uninitialised", "uninitialised", NULL, /* shared memory that no thread wrote */
     "ld.shared.u32 %r4, [%r2];\nst.global.u32 [%rd2], %r4;\n"},
    {"race", "race", NULL, /* as clean, between warps and without the barrier */
     "st.shared.u32 [%r2], %r1;\nxor.b32 %r4, %r3, 128;\nmov.u32 %r5, words;\n"
     "add.u32 %r5, %r5, %r4;\nld.shared.u32 %r6, [%r5];\nst.global.u32 [%rd2], %r6;\n"},
    {"race_global", "race-global", NULL, /* two CTAs write different values */
     "mov.u32 %r4, %ctaid.x;\nst.global.u32 [%rd1], %r4;\n"},
    {"divergent_barrier", "divergent-barrier", NULL, /* each half of a warp at its own barrier */
     "and.b32 %r4, %r1, 1;\nsetp.eq.u32 %p1, %r4, 0;\n@%p1 bra EVEN;\nbar.sync 0;\nret;\n"
     "EVEN:\nbar.sync 0;\n"},
    {"async_read_early", "async-read-early", NULL, /* a copy that is read before it is waited for */
     "mul.wide.u32 %rd3, %r1, 4;\nadd.s64 %rd3, %rd1, %rd3;\n"
     "cp.async.ca.shared.global [%r2], [%rd3], 4;\ncp.async.commit_group;\n"
     "ld.shared.u32 %r4, [%r2];\ncp.async.wait_all;\nst.global.u32 [%rd2], %r4;\n"},
    {"deadlock", "deadlock", "steps", /* one arrival too few; a wait that polls is a loop, too */
     ".reg .b64 %s;\nmov.u32 %r4, words;\nsetp.ne.u32 %p1, %r1, 0;\n@%p1 bra READY;\n"
     "mbarrier.init.shared.b64 [%r4], 65;\nREADY:\nbar.sync 0;\n"
     "mbarrier.arrive.shared.b64 %s, [%r4];\nWAIT:\n"
     "mbarrier.test_wait.shared.b64 %p2, [%r4], %s;\n@!%p2 bra WAIT;\n"},
    {"steps", "steps", NULL, /* a loop without an end */
     "mov.u32 %r4, 0;\nAGAIN:\nadd.u32 %r4, %r4, 1;\nst.global.u32 [%rd2], %r4;\nbra AGAIN;\n"},
};
enum { PLANTED_COUNT = sizeof PLANTED / sizeof *PLANTED };
_Static_assert((int)PLANTED_COUNT <= (int)PLANTED_MOST, "room for each");

static bool has_error(const vgpu *gpu, const char *kind) {
    vgpu_finding finding;
    for (size_t i = 0; kind != NULL && vgpu_finding_get(gpu, i, &finding); i++) {
        if (finding.severity == VGPU_ERROR && strcmp(finding.kind, kind) == 0) {
            return true;
        }
    }
    return false;
}

/* A GPU of its own for each: one that a fault ended takes no more launches. */
static bool run_one(int index, bool *caught, attn_error *why) {
    vgpu_config config;
    vgpu *gpu = NULL;
    vgpu_module *module = NULL;
    vgpu_pointer memory = 0;
    vgpu_error error = {.text = ""};
    vgpu_config_init(&config);
    config.max_steps = MOST_STEPS;
    config.async = VGPU_ASYNC_LIFO;
    const float zeros[FLOATS] = {0};
    char ptx[4096];
    snprintf(ptx, sizeof ptx, HEAD, PLANTED[index].entry, PLANTED[index].body);
    const bool ready = vgpu_open(&config, &gpu, &error) == VGPU_OK &&
                       vgpu_load(gpu, ptx, strlen(ptx), &module, &error) == VGPU_OK &&
                       vgpu_malloc(gpu, sizeof zeros, "floats", &memory, &error) == VGPU_OK &&
                       vgpu_write(gpu, memory, zeros, sizeof zeros, &error) == VGPU_OK;
    if (ready) {
        const vgpu_dims dims = {.grid = {2, 1, 1}, .block = {THREADS, 1, 1}};
        void *arguments[] = {&memory};
        const vgpu_status status =
            vgpu_launch(gpu, module, PLANTED[index].entry, &dims, arguments, &error);
        *caught = PLANTED[index].kind == NULL ? status == VGPU_OK && vgpu_error_count(gpu) == 0
                                              : has_error(gpu, PLANTED[index].kind) ||
                                                    has_error(gpu, PLANTED[index].or_kind);
    }
    vgpu_unload(module);
    vgpu_close(gpu);
    return ready || explain(why, "a planted fault cannot be run: %.200s", error.text);
}

int planted_run(struct planted planted[PLANTED_MOST], attn_error *why) {
    for (int i = 0; i < PLANTED_COUNT; i++) {
        planted[i] = (struct planted){.name = PLANTED[i].entry};
        if (!run_one(i, &planted[i].caught, why)) {
            return 0;
        }
    }
    return PLANTED_COUNT;
}
