/* SPDX-License-Identifier: Apache-2.0
 *
 * device.c - see runtime.h: the one device, its properties, limits, memory pools; the driver's
 * functions by name.
 */
#include <stdio.h>
#include <string.h>

#include "runtime/runtime.h"

enum {
    RUNTIME_VERSION = 13000,
    PROPERTIES_BYTES = 1008,
    NAME_BYTES = 256,
    UUID = 256,
    MEMORY = 288
};

#define AFTER_READY(call)                                                                          \
    const int ready = rt_ready();                                                                  \
    return rt_keep(ready != RT_SUCCESS ? ready : (call))

extern int cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags,
                               int *status);

/* ---- which device ---------------------------------------------------------------------------- */

static int check_device(int device) {
    const int code = rt_ready();
    return rt_keep(code != RT_SUCCESS ? code : device == 0 ? RT_SUCCESS : RT_INVALID_DEVICE);
}

RT int cudaGetDeviceCount(int *count) {
    *count = 1;
    return check_device(0);
}

RT int cudaSetDevice(int device) {
    return check_device(device);
}

RT int cudaInitDevice(int device, unsigned device_flags, unsigned flags) {
    (void)device_flags, (void)flags;
    return check_device(device);
}

RT int cudaGetDevice(int *device) {
    *device = 0;
    return check_device(0);
}

RT int cudaChooseDevice(int *device, const void *properties) {
    (void)properties;
    return cudaGetDevice(device);
}

RT int cudaSetValidDevices(int *devices, int count) {
    return count > 0 ? check_device(devices[0]) : RT_SUCCESS;
}

RT int cudaDeviceSynchronize(void) {
    AFTER_READY(rt_driver.cuCtxSynchronize());
}

RT int cudaDeviceReset(void) {
    return rt_keep(rt_reset());
}

static _Thread_local unsigned device_flags;

RT int cudaSetDeviceFlags(unsigned flags) {
    device_flags = flags;
    return RT_SUCCESS;
}

RT int cudaGetDeviceFlags(unsigned *flags) {
    *flags = device_flags;
    return check_device(0);
}

/* ---- what it is ------------------------------------------------------------------------------ */

/* cudaDeviceProp: where a field lies, its bytes, and the attribute of the driver that it shows. */
static const struct {
    uint16_t offset, bytes, attribute;
} FIELDS[] = {
    {296, 8, 8},   {304, 4, 12},  {308, 4, 10}, {312, 8, 11},  {320, 4, 1},   {324, 4, 2},
    {328, 4, 3},   {332, 4, 4},   {336, 4, 5},  {340, 4, 6},   {344, 4, 7},   {352, 8, 9},
    {360, 4, 75},  {364, 4, 76},  {368, 8, 14}, {384, 4, 16},  {388, 4, 18},  {392, 4, 19},
    {560, 4, 31},  {584, 4, 40},  {588, 4, 41}, {592, 4, 37},  {596, 4, 38},  {600, 4, 108},
    {692, 4, 109}, {604, 4, 39},  {608, 4, 78}, {612, 4, 79},  {616, 4, 80},  {624, 8, 81},
    {632, 4, 82},  {636, 4, 83},  {648, 4, 86}, {652, 4, 88},  {656, 4, 89},  {660, 4, 90},
    {664, 4, 91},  {668, 4, 95},  {672, 8, 97}, {688, 4, 106}, {696, 8, 111}, {704, 4, 99},
    {720, 4, 115}, {748, 4, 120},
};

RT int cudaGetDeviceProperties(unsigned char *properties, int device) {
    const int code = check_device(device);
    if (code != RT_SUCCESS || properties == NULL) {
        return code != RT_SUCCESS ? code : rt_keep(RT_INVALID_VALUE);
    }
    memset(properties, 0, PROPERTIES_BYTES);
    rt_driver.cuDeviceGetName((char *)properties, NAME_BYTES, 0);
    memcpy(properties + UUID, "vgpu", sizeof "vgpu");
    size_t memory = 0;
    rt_driver.cuDeviceTotalMem(&memory, 0);
    memcpy(properties + MEMORY, &memory, sizeof memory);
    for (size_t i = 0; i < sizeof FIELDS / sizeof FIELDS[0]; i++) {
        int value = 0;
        rt_driver.cuDeviceGetAttribute(&value, FIELDS[i].attribute, 0);
        const int64_t wide = value;
        memcpy(properties + FIELDS[i].offset, &wide, FIELDS[i].bytes); /* little-endian hosts */
    }
    return RT_SUCCESS;
}

RT int cudaDeviceGetAttribute(int *value, int which, int device) {
    const int code = check_device(device);
    return code != RT_SUCCESS ? code
                              : rt_keep(rt_driver.cuDeviceGetAttribute(value, which, device));
}

RT int cudaDriverGetVersion(int *version) {
    AFTER_READY(rt_driver.cuDriverGetVersion(version));
}

RT int cudaRuntimeGetVersion(int *version) {
    *version = RUNTIME_VERSION;
    return RT_SUCCESS;
}

RT int cudaDeviceGetPCIBusId(char *text, int size, int device) {
    snprintf(text, (size_t)size, "0000:00:00.0");
    return check_device(device);
}

RT int cudaDeviceGetByPCIBusId(int *device, const char *text) {
    (void)text;
    *device = 0;
    return check_device(0);
}

RT int cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = 0;
    *greatest = -5;
    return check_device(0);
}

/* ---- other devices: there are none ----------------------------------------------------------- */

RT int cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    *can = 0;
    (void)peer;
    return check_device(device);
}

RT int cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
    (void)peer, (void)flags;
    return rt_keep(RT_INVALID_DEVICE);
}

RT int cudaDeviceGetP2PAttribute(int *value, int which, int from, int to) {
    *value = 0;
    (void)which, (void)from, (void)to;
    return rt_keep(RT_INVALID_DEVICE);
}

RT int cudaDeviceDisablePeerAccess(int peer) {
    (void)peer;
    return rt_keep(RT_INVALID_DEVICE);
}

/* ---- settings: kept; but for the size of the heap without effect ----------------------------- */

enum { LIMIT_HEAP = 2, LIMITS = 8 };
/* Stack, printf, heap, ... */
static size_t limits[LIMITS] = {1024, 1 << 20, 8 << 20, 2, 2048, 128, 0, 0};

RT int cudaDeviceSetLimit(int which, size_t value) {
    if (which < 0 || which >= LIMITS) {
        return rt_keep(RT_INVALID_VALUE);
    }
    const int code = check_device(0);
    limits[which] = value;
    if (code == RT_SUCCESS && which == LIMIT_HEAP) {
        vgpu_set_heap(vgpu_driver_gpu(), value);
    }
    return code;
}

RT int cudaDeviceGetLimit(size_t *value, int which) {
    if (which < 0 || which >= LIMITS) {
        return rt_keep(RT_INVALID_VALUE);
    }
    *value = limits[which];
    return check_device(0);
}

RT int cudaDeviceSetCacheConfig(int config) {
    (void)config;
    return check_device(0);
}

RT int cudaDeviceGetCacheConfig(int *config) {
    *config = 0;
    return check_device(0);
}

RT int cudaCtxResetPersistingL2Cache(void) {
    return check_device(0);
}

RT int cudaProfilerStart(void) {
    return check_device(0);
}

RT int cudaProfilerStop(void) {
    return check_device(0);
}

/* ---- memory pools: one, without a limit ------------------------------------------------------ */

static uint64_t pool_attributes[16];

RT int cudaDeviceGetDefaultMemPool(void **pool, int device) {
    *pool = pool_attributes;
    return check_device(device);
}

RT int cudaDeviceGetMemPool(void **pool, int device) {
    return cudaDeviceGetDefaultMemPool(pool, device);
}

RT int cudaDeviceSetMemPool(int device, void *pool) {
    (void)pool;
    return check_device(device);
}

RT int cudaMemPoolCreate(void **pool, const void *properties) {
    (void)properties;
    return cudaDeviceGetDefaultMemPool(pool, 0);
}

RT int cudaMemPoolDestroy(void *pool) {
    (void)pool;
    return check_device(0);
}

RT int cudaMemPoolTrimTo(void *pool, size_t bytes) {
    (void)pool, (void)bytes;
    return check_device(0);
}

RT int cudaDeviceGraphMemTrim(int device) {
    return check_device(device);
}

/* Memory of graphs is memory as any other: what is used, now and at most, and reserved. */
RT int cudaDeviceGetGraphMemAttribute(int device, int which, void *value) {
    size_t available = 0, total = 0;
    const int code = value != NULL ? check_device(device) : RT_INVALID_VALUE;
    (void)which;
    if (code == RT_SUCCESS) {
        rt_driver.cuMemGetInfo(&available, &total);
        const uint64_t used = total - available;
        memcpy(value, &used, sizeof used);
    }
    return rt_keep(code);
}

RT int cudaDeviceSetGraphMemAttribute(int device, int which, void *value) {
    (void)which, (void)value;
    return check_device(device);
}

RT int cudaDeviceGetDefaultMemPool(void **pool, int device);

RT int cudaMemGetDefaultMemPool(void **pool, const void *location, int type) {
    (void)location, (void)type;
    return cudaDeviceGetDefaultMemPool(pool, 0);
}

RT int cudaMemPoolGetAccess(int *flags, void *pool, const void *location) {
    (void)pool, (void)location;
    *flags = 3; /* read and write */
    return check_device(0);
}

/* The first three attributes are ints, the others 64 bits wide. */
static size_t attribute_bytes(int which) {
    enum { REUSE_LAST = 3 };
    return which < 1 || which > 15 ? 0 : which <= REUSE_LAST ? sizeof(int) : sizeof(uint64_t);
}

RT int cudaMemPoolSetAttribute(void *pool, int which, void *value) {
    (void)pool;
    const size_t bytes = attribute_bytes(which);
    if (bytes == 0) {
        return rt_keep(RT_INVALID_VALUE);
    }
    memcpy(&pool_attributes[which], value, bytes);
    return check_device(0);
}

RT int cudaMemPoolGetAttribute(void *pool, int which, void *value) {
    (void)pool;
    const size_t bytes = attribute_bytes(which);
    if (bytes == 0) {
        return rt_keep(RT_INVALID_VALUE);
    }
    memcpy(value, &pool_attributes[which], bytes);
    return check_device(0);
}

RT int cudaMemPoolSetAccess(void *pool, const void *accesses, size_t count) {
    (void)pool, (void)accesses, (void)count;
    return check_device(0);
}

/* ---- the driver by name ---------------------------------------------------------------------- */

RT int cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
                                        unsigned long long flags, int *status) {
    AFTER_READY(cuGetProcAddress_v2(symbol, function, (int)version, flags, status));
}

RT int cudaGetDriverEntryPoint(const char *symbol, void **function, unsigned long long flags,
                               int *status) {
    return cudaGetDriverEntryPointByVersion(symbol, function, RUNTIME_VERSION, flags, status);
}
