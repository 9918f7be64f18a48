/* SPDX-License-Identifier: Apache-2.0
 *
 * cache.c - see cache.h.
 */
#include "device/cache.h"

#include <stdio.h>
#include <string.h>

#include "device/driver.h"

const char *const CACHE_STATE_NAMES[] = {
    [CACHE_COLD] = "cold", [CACHE_WARM] = "warm", [CACHE_STATES] = NULL};

enum { MOST_LEVELS = 8, L2_CACHE_SIZE = 38, THREADS = 256, MOST_BLOCKS = 1024 };
static const size_t UNKNOWN_CACHE = (size_t)32 << 20, UNKNOWN_L2 = (size_t)64 << 20;
static const size_t MOST_BYTES = (size_t)256 << 20; /* a server's; more takes too long to write */

/* For every GPU from sm_80 on; both take one struct of four 64-bit numbers. The sleeping kernel
 * reads the clock until enough time has passed. It would store the time at its second number: no
 * caller passes one, but a compiler may remove a loop without effect. The comparing kernel is a
 * grid-stride loop over the words. */
static const char PTX[] =
    ".version 7.0\n"
    ".target sm_80\n"
    ".address_size 64\n"
    "\n"
    ".visible .entry attest_sleep(.param .align 8 .b8 args[32])\n"
    "{\n"
    "    .reg .pred %early, %kept;\n"
    "    .reg .b64 %begin, %now, %passed, %wanted, %to;\n"
    "    ld.param.u64 %wanted, [args];\n"
    "    ld.param.u64 %to, [args+8];\n"
    "    mov.u64 %begin, %globaltimer;\n"
    "again:\n"
    "    mov.u64 %now, %globaltimer;\n"
    "    sub.u64 %passed, %now, %begin;\n"
    "    setp.lt.u64 %early, %passed, %wanted;\n"
    "    @%early bra again;\n"
    "    setp.ne.u64 %kept, %to, 0;\n"
    "    @%kept st.global.u64 [%to], %passed;\n"
    "    ret;\n"
    "}\n"
    "\n"
    ".visible .entry attest_differ(.param .align 8 .b8 args[32])\n"
    "{\n"
    "    .reg .pred %end, %same;\n"
    "    .reg .b32 %block, %threads, %thread, %blocks, %left, %right;\n"
    "    .reg .b64 %a, %b, %words, %count, %at, %stride, %bytes, %from, %to, %old;\n"
    "    ld.param.u64 %a, [args];\n"
    "    ld.param.u64 %b, [args+8];\n"
    "    ld.param.u64 %words, [args+16];\n"
    "    ld.param.u64 %count, [args+24];\n"
    "    cvta.to.global.u64 %a, %a;\n"
    "    cvta.to.global.u64 %b, %b;\n"
    "    cvta.to.global.u64 %count, %count;\n"
    "    mov.u32 %block, %ctaid.x;\n"
    "    mov.u32 %threads, %ntid.x;\n"
    "    mov.u32 %thread, %tid.x;\n"
    "    mov.u32 %blocks, %nctaid.x;\n"
    "    mul.wide.u32 %at, %block, %threads;\n"
    "    cvt.u64.u32 %bytes, %thread;\n"
    "    add.u64 %at, %at, %bytes;\n"
    "    mul.wide.u32 %stride, %blocks, %threads;\n"
    "again:\n"
    "    setp.ge.u64 %end, %at, %words;\n"
    "    @%end bra done;\n"
    "    shl.b64 %bytes, %at, 2;\n"
    "    add.u64 %from, %a, %bytes;\n"
    "    add.u64 %to, %b, %bytes;\n"
    "    ld.global.u32 %left, [%from];\n"
    "    ld.global.u32 %right, [%to];\n"
    "    add.u64 %at, %at, %stride;\n"
    "    setp.eq.u32 %same, %left, %right;\n"
    "    @%same bra again;\n"
    "    atom.global.add.u64 %old, [%count], 1;\n"
    "    bra again;\n"
    "done:\n"
    "    ret;\n"
    "}\n";

/* ---- open and close -------------------------------------------------------------------------- */

/* The largest cache of the first CPU, as Linux tells it: "32768K". */
static size_t cpu_cache_bytes(void) {
    size_t most = 0;
    for (int level = 0; level < MOST_LEVELS; level++) {
        char path[80];
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", level);
        FILE *in = fopen(path, "r");
        size_t size = 0;
        char unit = '\0';
        if (in == NULL) {
            continue;
        }
        if (fscanf(in, "%zu%c", &size, &unit) == 2) {
            size *= unit == 'K' ? 1024 : unit == 'M' ? 1048576 : 1;
            most = size > most ? size : most;
        }
        fclose(in);
    }
    return most == 0 ? UNKNOWN_CACHE : most < MOST_BYTES ? most : MOST_BYTES;
}

static bool find_kernel(const struct cache *cache, const char *name, void **function,
                        attn_error *why) {
    const struct driver *driver = &cache->device->driver;
    void *kernel = NULL;
    return cuda_succeeded(cache->device, driver->kernel(&kernel, cache->library, name),
                          "cuLibraryGetKernel", why) &&
           cuda_succeeded(cache->device, driver->function(function, kernel), "cuKernelGetFunction",
                          why);
}

bool cache_open(struct cache *cache, const struct runner *runner, attn_error *why) {
    struct device *device = runner->memory;
    const struct driver *driver = &device->driver;
    int bytes = 0;
    *cache = (struct cache){.device = device};
    if (!device->gpu) {
        cache->bytes = cpu_cache_bytes();
        return true;
    }
    const bool known = driver->attribute(&bytes, L2_CACHE_SIZE, device->ordinal) == CUDA_SUCCESS;
    cache->bytes = known && bytes > 0 ? (size_t)bytes : UNKNOWN_L2;
    return cuda_succeeded(device, driver->load(&cache->library, PTX, NULL, NULL, 0, NULL, NULL, 0),
                          "cuLibraryLoadData of the kernels of the benchmark", why) &&
           find_kernel(cache, "attest_sleep", &cache->sleep, why) &&
           find_kernel(cache, "attest_differ", &cache->differ, why);
}

void cache_close(struct cache *cache) {
    if (cache->device != NULL) {
        device_free(cache->device, cache->buffer);
    }
    if (cache->device != NULL && cache->library != NULL) {
        cache->device->driver.unload(cache->library);
    }
    *cache = (struct cache){0};
}

bool cache_empty(struct cache *cache, void *stream, attn_error *why) {
    const size_t bytes = 2 * cache->bytes;
    if (cache->buffer == NULL) {
        cache->buffer = device_alloc(cache->device, bytes, why);
    }
    if (cache->buffer == NULL) {
        return false;
    }
    cache->turn++;
    if (cache->device->gpu) {
        return launch_fill(cache, cache->buffer, cache->turn, bytes / sizeof(uint32_t), stream,
                           why);
    }
    memset(cache->buffer, cache->turn, bytes);
    return true;
}

/* ---- launches -------------------------------------------------------------------------------- */

struct arguments {
    uint64_t numbers[4];
};

static bool launch(const struct cache *cache, void *function, size_t blocks, unsigned int threads,
                   struct arguments arguments, void *stream, attn_error *why) {
    const struct launch_config config = {
        .grid = {(unsigned int)blocks, 1, 1}, .block = {threads, 1, 1}, .stream = stream};
    void *parameters[] = {&arguments};
    return cuda_succeeded(cache->device,
                          cache->device->driver.launch(&config, function, parameters, NULL),
                          "cuLaunchKernelEx", why);
}

bool launch_sleep(const struct cache *cache, uint64_t nanoseconds, void *stream, attn_error *why) {
    return launch(cache, cache->sleep, 1, 1, (struct arguments){{nanoseconds}}, stream, why);
}

bool launch_differ(const struct cache *cache, const void *a, const void *b, size_t words,
                   void *count, void *stream, attn_error *why) {
    const struct arguments arguments = {{(uintptr_t)a, (uintptr_t)b, words, (uintptr_t)count}};
    const size_t blocks = (words + THREADS - 1) / THREADS;
    return words == 0 || launch(cache, cache->differ, blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS,
                                THREADS, arguments, stream, why);
}

bool launch_fill(const struct cache *cache, void *to, uint32_t value, size_t words, void *stream,
                 attn_error *why) {
    return words == 0 || cuda_succeeded(cache->device,
                                        cache->device->driver.fill_words((gpu_address)(uintptr_t)to,
                                                                         value, words, stream),
                                        "cuMemsetD32Async", why);
}
