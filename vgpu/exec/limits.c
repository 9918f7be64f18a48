/* SPDX-License-Identifier: Apache-2.0
 *
 * limits.c - the limits that a driver checks before a launch.
 *
 * Invariant: a launch that passes has a grid, CTAs and clusters of at least 1 in each dimension,
 * and fewer than 2^32 clusters.
 */
#include "exec/exec.h"
#include "machine/status.h"

enum {
    MAX_THREADS = 1024,
    MAX_BLOCK_Z = 64,
    MAX_GRID_YZ = 65535,
    DEFAULT_SHARED = 48 << 10,
    MAX_CLUSTER = 8, /* CTAs; more are not portable, and need an attribute of the kernel */
    MAX_NON_PORTABLE_CLUSTER = 16
};

/* Shared memory of a block that a kernel can opt in to. */
static uint32_t max_shared(int32_t sm) {
    switch (sm) {
    case 86:
    case 89: return 99 << 10;
    case 80:
    case 87: return 163 << 10;
    default: return 227 << 10;
    }
}

static vgpu_status check_grid(const vgpu_dims *dims, vgpu_error *error) {
    for (uint32_t axis = 0; axis < 3; axis++) {
        const uint32_t most = axis == 0 ? INT32_MAX : MAX_GRID_YZ;
        if (dims->grid[axis] == 0 || dims->grid[axis] > most) {
            return status_fail(error, VGPU_INVALID, "grid[%u] is %u, expected 1 to %u", axis,
                               dims->grid[axis], most);
        }
    }
    return VGPU_OK;
}

static uint64_t volume(const uint32_t *shape) {
    return (uint64_t)shape[0] * shape[1] * shape[2];
}

static vgpu_status check_block(const struct kernel *kernel, const vgpu_dims *dims,
                               vgpu_error *error) {
    const uint32_t *block = dims->block;
    for (uint32_t axis = 0; axis < 3; axis++) {
        const uint32_t most = axis == 2 ? MAX_BLOCK_Z : MAX_THREADS;
        if (block[axis] == 0 || block[axis] > most) {
            return status_fail(error, VGPU_INVALID, "block[%u] is %u, expected 1 to %u", axis,
                               block[axis], most);
        }
    }
    const uint64_t threads = volume(block);
    if (threads > MAX_THREADS) {
        return status_fail(error, VGPU_INVALID,
                           "a block of %u x %u x %u is %llu threads, expected at most %u", block[0],
                           block[1], block[2], (unsigned long long)threads, MAX_THREADS);
    }
    const uint32_t *most = kernel->function->maxntid, *exactly = kernel->function->reqntid;
    const uint32_t largest[3] = {most[0] ? most[0] : 1, most[1] ? most[1] : 1,
                                 most[2] ? most[2] : 1};
    if (most[0] != 0 && threads > volume(largest)) {
        return status_fail(error, VGPU_INVALID,
                           "a block of %llu threads, but %s is compiled for at most %llu",
                           (unsigned long long)threads, kernel->function->name,
                           (unsigned long long)volume(largest));
    }
    for (uint32_t axis = 0; exactly[0] != 0 && axis < 3; axis++) {
        const uint32_t need = exactly[axis] ? exactly[axis] : 1;
        if (block[axis] != need) {
            return status_fail(error, VGPU_INVALID,
                               "block[%u] is %u, but %s is compiled for exactly %u", axis,
                               block[axis], kernel->function->name, need);
        }
    }
    return VGPU_OK;
}

static vgpu_status check_shared(const struct launch *launch, vgpu_error *error) {
    const vgpu_dims *dims = &launch->dims;
    const uint32_t declared = launch->kernel->shared_declared;
    const uint64_t bytes = (uint64_t)declared + dims->shared_bytes;
    const uint32_t most = max_shared(launch->gpu->config.sm);
    if (bytes > most) {
        return status_fail(
            error, VGPU_INVALID,
            "%u bytes of static and %u of dynamic shared memory, expected at most %u", declared,
            dims->shared_bytes, most);
    }
    if (dims->max_shared_bytes != 0 && dims->shared_bytes > dims->max_shared_bytes) {
        return status_fail(error, VGPU_INVALID,
                           "%u bytes of dynamic shared memory, but the kernel was allowed %u",
                           dims->shared_bytes, dims->max_shared_bytes);
    }
    if (dims->max_shared_bytes == 0 && bytes > DEFAULT_SHARED) {
        return status_fail(
            error, VGPU_INVALID,
            "%u bytes of static and %u of dynamic shared memory, expected at most %u "
            "unless the kernel is allowed more (max_shared_bytes)",
            declared, dims->shared_bytes, DEFAULT_SHARED);
    }
    return VGPU_OK;
}

/* The shape of clusters: the launch's, or the kernel's own. */
static vgpu_status resolve_cluster(struct launch *launch, vgpu_error *error) {
    uint32_t *cluster = launch->dims.cluster;
    const uint32_t *own = launch->kernel->function->reqnctapercluster;
    const bool given = (cluster[0] | cluster[1] | cluster[2]) != 0;
    for (uint32_t axis = 0; axis < 3; axis++) {
        const uint32_t need = own[axis] ? own[axis] : 1;
        if (!given) {
            cluster[axis] = need;
        } else if (cluster[axis] == 0) {
            return status_fail(error, VGPU_INVALID, "cluster[%u] is 0, expected at least 1", axis);
        } else if (own[0] != 0 && cluster[axis] != need) {
            return status_fail(error, VGPU_INVALID,
                               "cluster[%u] is %u, but %s is compiled for exactly %u", axis,
                               cluster[axis], launch->kernel->function->name, need);
        }
    }
    return VGPU_OK;
}

static vgpu_status check_cluster(const struct launch *launch, vgpu_error *error) {
    const uint32_t *cluster = launch->dims.cluster, *grid = launch->dims.grid;
    const uint64_t ctas = volume(cluster);
    const uint32_t most =
        launch->dims.non_portable_cluster ? MAX_NON_PORTABLE_CLUSTER : MAX_CLUSTER;
    for (uint32_t axis = 0; axis < 3; axis++) {
        if (cluster[axis] > most || ctas > most) {
            return status_fail(error, VGPU_INVALID,
                               "a cluster of %u x %u x %u CTAs, expected at most %u%s", cluster[0],
                               cluster[1], cluster[2], most,
                               most == MAX_CLUSTER ? " unless the kernel is allowed more "
                                                     "(non_portable_cluster)"
                                                   : "");
        }
        if (grid[axis] % cluster[axis] != 0) {
            return status_fail(error, VGPU_INVALID,
                               "grid[%u] is %u, expected a multiple of the cluster's %u", axis,
                               grid[axis], cluster[axis]);
        }
    }
    if (ctas > 1 && launch->gpu->config.sm < 90) {
        return status_fail(error, VGPU_INVALID,
                           "a cluster of %llu CTAs on sm_%d, expected sm_90 or newer",
                           (unsigned long long)ctas, launch->gpu->config.sm);
    }
    if (volume(grid) / ctas >= UINT32_MAX) {
        return status_fail(error, VGPU_INVALID, "a grid of %llu clusters, expected fewer than 2^32",
                           (unsigned long long)(volume(grid) / ctas));
    }
    return VGPU_OK;
}

vgpu_status launch_check(struct launch *launch, vgpu_error *error) {
    if (!launch->kernel->function->entry) {
        return status_fail(error, VGPU_INVALID, "%s is a function, expected an entry",
                           launch->kernel->function->name);
    }
    vgpu_status status = check_grid(&launch->dims, error);
    status = status == VGPU_OK ? check_block(launch->kernel, &launch->dims, error) : status;
    status = status == VGPU_OK ? check_shared(launch, error) : status;
    status = status == VGPU_OK ? resolve_cluster(launch, error) : status;
    return status == VGPU_OK ? check_cluster(launch, error) : status;
}
