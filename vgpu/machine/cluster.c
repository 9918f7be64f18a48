/* SPDX-License-Identifier: Apache-2.0
 *
 * cluster.c - random numbers and printed output of a cluster.
 *
 * Invariant: the random numbers depend on the launch seed and the cluster number only.
 */
#include "machine/machine.h"

#include <stdlib.h>
#include <string.h>

enum { PRINT_LIMIT = 1 << 20 };

static uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15ULL;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
}

void cluster_seed(struct cluster *cluster) {
    cluster->random = mix(cluster->launch->seed) ^ mix(cluster->linear + 1ULL);
}

uint64_t cluster_random(struct cluster *cluster) {
    cluster->random += 0x9e3779b97f4a7c15ULL;
    return mix(cluster->random);
}

void cluster_print(struct cluster *cluster, const char *text, size_t size) {
    if (size > PRINT_LIMIT - cluster->printed_size) {
        return;
    }
    if (cluster->printed_size + size > cluster->printed_room) {
        const size_t room = 2 * cluster->printed_room + size + 256;
        char *more = realloc(cluster->printed, room);
        if (more == NULL) {
            return;
        }
        cluster->printed = more;
        cluster->printed_room = room;
    }
    memcpy(cluster->printed + cluster->printed_size, text, size);
    cluster->printed_size += size;
}
