/* SPDX-License-Identifier: Apache-2.0
 *
 * cache.c - see cache.h.
 */
#include "device/cache.h"

#include <stdio.h>
#include <string.h>

const char *const CACHE_STATE_NAMES[] = {
    [CACHE_COLD] = "cold", [CACHE_WARM] = "warm", [CACHE_STATES] = NULL};

enum { MOST_LEVELS = 8 };
static const size_t UNKNOWN_CACHE = (size_t)32 << 20;
static const size_t MOST_BYTES = (size_t)256 << 20; /* a server's; more takes too long to write */

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

bool cache_open(struct cache *cache, const struct runner *runner, attn_error *why) {
    *cache = (struct cache){.device = runner->memory};
    if (!device_is_gpu(runner->memory)) {
        cache->bytes = cpu_cache_bytes();
        return true;
    }
    cache->kernels = bench_kernels_open(runner->context, runner->device, why);
    if (cache->kernels == NULL) {
        return false;
    }
    cache->bytes = bench_kernels_l2(cache->kernels);
    return true;
}

void cache_close(struct cache *cache) {
    if (cache->device != NULL) {
        device_free(cache->device, cache->buffer);
    }
    bench_kernels_close(cache->kernels);
    *cache = (struct cache){0};
}

bool cache_empty(struct cache *cache, void *stream, attn_error *why) {
    const size_t bytes = 2 * cache->bytes;
    if (cache->buffer == NULL) {
        cache->buffer = device_alloc(cache->device, bytes, why);
        if (cache->buffer == NULL) {
            return false;
        }
    }
    cache->turn++;
    if (cache->kernels == NULL) {
        memset(cache->buffer, cache->turn, bytes);
        return true;
    }
    return launch_fill(cache->kernels, cache->buffer, cache->turn, bytes / sizeof(uint32_t), stream,
                       why);
}
