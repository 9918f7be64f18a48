/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_kernels.c - see bench_kernels.h. Both kernels take one struct of four 64-bit numbers.
 */
#include "device/bench_kernels.h"
#include "attn_inspect.h"

#include <stdlib.h>
#include <string.h>

#include "base/message.h"
#include "device/driver.h"

/* The sleeping kernel reads the clock until enough time has passed. It would store the time at its
 * second number: no caller passes one, but a compiler may remove a loop without effect. The
 * comparing kernel is a grid-stride loop over the words. */
const char BENCH_KERNELS_PTX[] =
    ".version 7.0\n"
    ".target sm_80\n"
    ".address_size 64\n"
    "\n"
    ".visible .entry attest_sleep(.param .align 8 .b8 args[32])\n"
    "{\n"
    "    .reg .pred %early, %told;\n"
    "    .reg .b64 %begin, %now, %passed, %wanted, %to;\n"
    "    ld.param.u64 %wanted, [args];\n"
    "    ld.param.u64 %to, [args+8];\n"
    "    mov.u64 %begin, %globaltimer;\n"
    "again:\n"
    "    mov.u64 %now, %globaltimer;\n"
    "    sub.u64 %passed, %now, %begin;\n"
    "    setp.lt.u64 %early, %passed, %wanted;\n"
    "    @%early bra again;\n"
    "    setp.ne.u64 %told, %to, 0;\n"
    "    @%told st.global.u64 [%to], %passed;\n"
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

enum { CUDA_SUCCESS = 0, L2_CACHE_SIZE = 38, THREADS = 256, MOST_BLOCKS = 1024 };
static const size_t UNKNOWN_L2 = (size_t)64 << 20;

struct arguments {
    uint64_t numbers[4];
};

struct bench_kernels {
    struct driver driver;
    void *library, *sleep, *differ;
    size_t l2;
};

static bool succeeded(const struct bench_kernels *kernels, int error, const char *call,
                      attn_error *why) {
    return driver_succeeded(&kernels->driver, error, call, why);
}

static bool find_kernel(struct bench_kernels *kernels, const char *name, void **function,
                        attn_error *why) {
    void *kernel = NULL;
    return succeeded(kernels, kernels->driver.kernel(&kernel, kernels->library, name),
                     "cuLibraryGetKernel", why) &&
           succeeded(kernels, kernels->driver.function(function, kernel), "cuKernelGetFunction",
                     why);
}

static size_t size_of_l2(const struct bench_kernels *kernels, const char *device) {
    int handle = 0, bytes = 0;
    if (kernels->driver.device_get(&handle, driver_ordinal(device)) != CUDA_SUCCESS ||
        kernels->driver.attribute(&bytes, L2_CACHE_SIZE, handle) != CUDA_SUCCESS || bytes <= 0) {
        return UNKNOWN_L2;
    }
    return (size_t)bytes;
}

struct bench_kernels *bench_kernels_open(const attn_context *context, const char *device,
                                         attn_error *why) {
    struct bench_kernels *kernels = must(calloc(1, sizeof *kernels));
    if (!driver_load(&kernels->driver, context, why) ||
        !succeeded(kernels,
                   kernels->driver.load(&kernels->library, BENCH_KERNELS_PTX, NULL, NULL, 0, NULL,
                                        NULL, 0),
                   "cuLibraryLoadData of the kernels of the benchmark", why) ||
        !find_kernel(kernels, "attest_sleep", &kernels->sleep, why) ||
        !find_kernel(kernels, "attest_differ", &kernels->differ, why)) {
        bench_kernels_close(kernels);
        return NULL;
    }
    kernels->l2 = size_of_l2(kernels, device);
    return kernels;
}

void bench_kernels_close(struct bench_kernels *kernels) {
    if (kernels != NULL && kernels->library != NULL) {
        kernels->driver.unload(kernels->library);
    }
    free(kernels);
}

size_t bench_kernels_l2(const struct bench_kernels *kernels) {
    return kernels->l2;
}

static bool launch(const struct bench_kernels *kernels, void *function, unsigned int blocks,
                   unsigned int threads, struct arguments arguments, void *stream,
                   attn_error *why) {
    const struct launch_config config = {
        .grid = {blocks, 1, 1}, .block = {threads, 1, 1}, .stream = stream};
    void *parameters[] = {&arguments};
    return succeeded(kernels, kernels->driver.launch(&config, function, parameters, NULL),
                     "cuLaunchKernelEx", why);
}

bool launch_sleep(const struct bench_kernels *kernels, uint64_t nanoseconds, void *stream,
                  attn_error *why) {
    return launch(kernels, kernels->sleep, 1, 1, (struct arguments){{nanoseconds}}, stream, why);
}

bool launch_differ(const struct bench_kernels *kernels, const void *a, const void *b, size_t words,
                   void *count, void *stream, attn_error *why) {
    const size_t enough = (words + THREADS - 1) / THREADS;
    const unsigned int blocks = enough < MOST_BLOCKS ? (unsigned int)enough : MOST_BLOCKS;
    return words == 0 ||
           launch(kernels, kernels->differ, blocks, THREADS,
                  (struct arguments){{(uintptr_t)a, (uintptr_t)b, words, (uintptr_t)count}}, stream,
                  why);
}

bool launch_fill(const struct bench_kernels *kernels, void *to, uint32_t value, size_t words,
                 void *stream, attn_error *why) {
    return words == 0 ||
           succeeded(kernels,
                     kernels->driver.fill_words((gpu_address)(uintptr_t)to, value, words, stream),
                     "cuMemsetD32Async", why);
}
