/* SPDX-License-Identifier: Apache-2.0
 *
 * test_maps.c - libvgpu.so as a CUDA driver: a tensor map that gets another address, and
 * memory that is set on a stream.
 *
 * The library is opened by its path, as a program would: nothing of it is linked here.
 *
 * Invariant: what is refused leaves the map, or the memory, as it was.
 */
#include <dlfcn.h>
#include <stdlib.h>

#include "test.h"
#include "vgpu.h"

#ifndef VGPU_LIBRARY
#define VGPU_LIBRARY "libvgpu.so"
#endif

enum { INVALID_VALUE = 1, INVALID_HANDLE = 400 };

typedef uint64_t address;

/* ---- the functions --------------------------------------------------------------------------- */

static int (*cuInit)(unsigned);
static int (*cuDevicePrimaryCtxRetain)(void **, int);
static int (*cuDevicePrimaryCtxRelease)(int);
static int (*cuCtxPushCurrent)(void *);
static int (*cuCtxPopCurrent)(void **);
static int (*cuMemAlloc)(address *, size_t);
static int (*cuMemFree)(address);
static int (*cuMemcpyDtoH)(void *, address, size_t);
static int (*cuMemsetD8)(address, unsigned char, size_t);
static int (*cuMemsetD32Async)(address, unsigned, size_t, void *);
static int (*cuStreamCreate)(void **, unsigned);
static int (*cuStreamDestroy)(void *);
static int (*cuTensorMapEncodeTiled)(void *, int, uint32_t, void *, const uint64_t *,
                                     const uint64_t *, const uint32_t *, const uint32_t *, int, int,
                                     int, int);
static int (*cuTensorMapReplaceAddress)(void *, void *);

static bool find(int (*look_up)(const char *, void **, int, uint64_t, int *), const char *name,
                 void *member) {
    void *function = NULL;
    const bool found = look_up(name, &function, 12000, 0, NULL) == 0 && function != NULL;
    memcpy(member, &function, sizeof function);
    return CHECK_MSG(found, "no %s", name);
}

/* The library, its functions, and the primary context as the current one. */
static bool begin(void) {
    int (*look_up)(const char *, void **, int, uint64_t, int *);
    void *library = dlopen(VGPU_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    void *symbol = library != NULL ? dlsym(library, "cuGetProcAddress_v2") : NULL;
    if (!CHECK_MSG(symbol != NULL, "%s: %s", VGPU_LIBRARY, dlerror())) {
        return false;
    }
    memcpy(&look_up, &symbol, sizeof look_up);
#define FIND(name) find(look_up, #name, &name)
    const bool all =
        FIND(cuInit) && FIND(cuDevicePrimaryCtxRetain) && FIND(cuDevicePrimaryCtxRelease) &&
        FIND(cuCtxPushCurrent) && FIND(cuCtxPopCurrent) && FIND(cuMemAlloc) && FIND(cuMemFree) &&
        FIND(cuMemcpyDtoH) && FIND(cuMemsetD8) && FIND(cuMemsetD32Async) && FIND(cuStreamCreate) &&
        FIND(cuStreamDestroy) && FIND(cuTensorMapEncodeTiled) && FIND(cuTensorMapReplaceAddress);
#undef FIND
    void *context = NULL;
    return all && CHECK_EQ(cuInit(0), 0) && CHECK_EQ(cuDevicePrimaryCtxRetain(&context, 0), 0) &&
           CHECK_EQ(cuCtxPushCurrent(context), 0);
}

static void end(void) {
    void *context = NULL;
    CHECK_EQ(cuCtxPopCurrent(&context), 0);
    CHECK_EQ(cuDevicePrimaryCtxRelease(0), 0);
}

/* ---- tensor maps ----------------------------------------------------------------------------- */

enum { MAP = 128 };

/* Of 8 rows of 64 fp16 numbers. */
static int encode(void *map, uintptr_t at) {
    const uint64_t dims[] = {64, 8}, strides[] = {128};
    const uint32_t box[] = {64, 4}, ones[] = {1, 1};
    return cuTensorMapEncodeTiled(map, 6, 2, (void *)at, dims, strides, box, ones, 0, 3, 3, 0);
}

/* What has been replaced is, but for a mark, what would have been encoded. */
TEST(another_address) {
    _Alignas(64) unsigned char map[MAP], same[MAP], other[MAP];
    if (!begin()) {
        return;
    }
    CHECK_EQ(encode(map, 0x1000), 0);
    CHECK_EQ(encode(other, 0x2000), 0);
    memcpy(same, map, MAP);
    CHECK_EQ(cuTensorMapReplaceAddress(map, (void *)0x2000), 0);
    CHECK(memcmp(map, same, MAP) != 0);
    CHECK_EQ(cuTensorMapReplaceAddress(other, (void *)0x2000), 0);
    CHECK(memcmp(map, other, MAP) == 0);
    CHECK_EQ(cuTensorMapReplaceAddress(map, (void *)0x1000), 0);
    CHECK_EQ(cuTensorMapReplaceAddress(same, (void *)0x1000), 0);
    CHECK(memcmp(map, same, MAP) == 0);
    end();
}

TEST(bad_addresses) {
    _Alignas(64) unsigned char map[MAP + 64], before[MAP];
    if (!begin()) {
        return;
    }
    CHECK_EQ(encode(map, 0x1000), 0);
    memcpy(before, map, MAP);
    CHECK_EQ(cuTensorMapReplaceAddress(map, (void *)0x2008), INVALID_VALUE);
    CHECK_EQ(cuTensorMapReplaceAddress(map, NULL), INVALID_VALUE);
    CHECK_EQ(cuTensorMapReplaceAddress(NULL, (void *)0x2000), INVALID_VALUE);
    CHECK(memcmp(map, before, MAP) == 0);
    memmove(map + 16, map, MAP);
    CHECK_EQ(cuTensorMapReplaceAddress(map + 16, (void *)0x2000), INVALID_VALUE);
    CHECK(memcmp(map + 16, before, MAP) == 0);
    memset(map, 0, MAP); /* no map */
    CHECK_EQ(cuTensorMapReplaceAddress(map, (void *)0x2000), INVALID_VALUE);
    end();
}

/* ---- memory on a stream ---------------------------------------------------------------------- */

TEST(words_on_a_stream) {
    unsigned words[4];
    address memory = 0;
    void *stream = NULL;
    if (!begin()) {
        return;
    }
    CHECK_EQ(cuMemAlloc(&memory, sizeof words), 0);
    CHECK_EQ(cuMemsetD8(memory, 0xFF, sizeof words), 0);
    CHECK_EQ(cuStreamCreate(&stream, 1), 0);
    CHECK_EQ(cuMemsetD32Async(memory + 4, 77, 2, stream), 0);
    CHECK_EQ(cuMemcpyDtoH(words, memory, sizeof words), 0);
    CHECK(words[0] == ~0U && words[1] == 77 && words[2] == 77 && words[3] == ~0U);
    CHECK_EQ(cuMemsetD32Async(memory, 5, 1, NULL), 0);
    CHECK_EQ(cuStreamDestroy(stream), 0);
    CHECK_EQ(cuMemsetD32Async(memory, 6, 4, stream), INVALID_HANDLE);
    CHECK_EQ(cuMemsetD32Async(memory, 6, 5, NULL), INVALID_VALUE);
    CHECK_EQ(cuMemsetD32Async(memory + 2, 6, 1, NULL), INVALID_VALUE);
    CHECK_EQ(cuMemcpyDtoH(words, memory, sizeof words), 0);
    CHECK(words[0] == 5 && words[1] == 77 && words[3] == ~0U);
    CHECK_EQ(cuMemFree(memory), 0);
    end();
}

TEST_MAIN()
