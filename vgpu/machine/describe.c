/* SPDX-License-Identifier: Apache-2.0
 *
 * describe.c - addresses, accesses and instructions in words.
 *
 * Invariant: an address outside every variable or allocation names the nearest one.
 */
#include "machine/describe.h"

#include <stdio.h>
#include <string.h>

#include "machine/heap.h"

const char *access_verb(enum access_kind kind) {
    switch (kind) {
    case ACCESS_READ: return "read";
    case ACCESS_WRITE: return "write";
    case ACCESS_ATOMIC: return "atomic operation";
    case ACCESS_ISSUE_WRITE: return "asynchronous write";
    default: return "asynchronous read";
    }
}

const char *describe_op(const struct warp *warp, const struct op *op, char *buffer, size_t size) {
    const struct ptx_module *ptx = warp->kernel->module->ptx;
    const struct ptx_location *at = &ptx->locations[ptx_user_location(ptx, op->in->location)];
    if (op->in->location == 0 || at->file == NULL) {
        snprintf(buffer, size, "PTX line %u", op->in->line);
    } else {
        const char *slash = strrchr(at->file, '/');
        snprintf(buffer, size, "%s:%u", slash ? slash + 1 : at->file, at->line);
    }
    return buffer;
}

struct nearest {
    uint64_t address;
    const struct ptx_variable *before; /* the last one that begins at or before the address */
};

static void nearer(void *state, const struct ptx_variable *variable) {
    struct nearest *nearest = state;
    if (variable->address <= nearest->address &&
        (nearest->before == NULL || variable->address >= nearest->before->address)) {
        nearest->before = variable;
    }
}

/* A place in a space with variables; `end` is where the space ends. */
static void describe_variable(const struct warp *warp, enum ptx_space space, const char *name,
                              uint64_t address, uint64_t end, char *buffer, size_t size) {
    struct nearest nearest = {address, NULL};
    kernel_variables(warp->cta->launch->kernel, space, nearer, &nearest);
    const struct ptx_variable *v = nearest.before;
    const unsigned long long at = address;
    char variable[64] = "";
    if (v != NULL) {
        vgpu_readable_name(v->name, variable, sizeof variable);
    }
    if (address != 0 && 0 - address <= 1ULL << 31) { /* an index that is negative */
        snprintf(buffer, size, "%s address -%llu, %llu bytes before %s memory", name, 0 - at,
                 0 - at, name);
    } else if (address >= end) {
        snprintf(buffer, size, "%s address 0x%llx, %llu bytes after the end of %s memory", name, at,
                 (unsigned long long)(address - end), name);
    } else if (v == NULL) {
        snprintf(buffer, size, "%s address 0x%llx", name, at);
    } else if (v->size != 0 && address - v->address >= v->size) {
        snprintf(buffer, size, "%s address 0x%llx, %llu bytes after \"%.40s\" (%llu bytes)", name,
                 at, (unsigned long long)(address - v->address - v->size), variable,
                 (unsigned long long)v->size);
    } else {
        snprintf(buffer, size, "%s \"%.60s\" + %llu", name, variable,
                 (unsigned long long)(address - v->address));
    }
}

/* False: the address is not of the heap, or the heap has no block. */
static bool describe_heap(const vgpu *gpu, uint64_t address, char *buffer, size_t size) {
    const struct allocation *range = device_find(gpu->memory, address);
    uint64_t begin, end;
    bool live;
    if (range == NULL || !range->heap || address >= range->end ||
        !heap_block(gpu->heap, address, &begin, &end, &live)) {
        return false;
    }
    const unsigned long long bytes = end - begin;
    if (address < end) {
        snprintf(buffer, size, "byte %llu of %llu bytes that malloc gave%s",
                 (unsigned long long)(address - begin), bytes, live ? "" : ", which were freed");
    } else {
        snprintf(buffer, size, "%llu bytes after %llu bytes that malloc gave",
                 (unsigned long long)(address - end), bytes);
    }
    return true;
}

static void describe_global(const vgpu *gpu, uint64_t address, char *buffer, size_t size) {
    const struct device_memory *memory = gpu->memory;
    if (describe_heap(gpu, address, buffer, size)) {
        return;
    }
    const struct allocation *range = device_find(memory, address);
    const size_t after = range == NULL ? 0 : (size_t)(range - memory->ranges) + 1;
    const struct allocation *next = after < memory->count ? &memory->ranges[after] : NULL;
    const bool near_next = next != NULL && next->begin - address <= 4096;
    const unsigned long long at = address;
    if (range != NULL && address < range->end) {
        snprintf(buffer, size, "global \"%.60s\" + %llu%s", range->label,
                 (unsigned long long)(address - range->begin),
                 range->live ? "" : ", which was freed");
    } else if (near_next) {
        snprintf(buffer, size, "global address 0x%llx, %llu bytes before \"%.40s\" (%llu bytes)",
                 at, (unsigned long long)(next->begin - address), next->label,
                 (unsigned long long)(next->end - next->begin));
    } else if (range != NULL && address - range->end < 1ULL << 40) {
        snprintf(buffer, size, "global address 0x%llx, %llu bytes after \"%.40s\" (%llu bytes)", at,
                 (unsigned long long)(address - range->end), range->label,
                 (unsigned long long)(range->end - range->begin));
    } else {
        snprintf(buffer, size, "global address 0x%llx, near no allocation", at);
    }
}

void describe_address(const struct warp *warp, int space, uint64_t address, char *buffer,
                      size_t size) {
    const struct cta *cta = warp->cta;
    if (space == SPACE_GENERIC) {
        switch (address & WINDOW_MASK) {
        case WINDOW_SHARED: space = SPACE_SHARED_CLUSTER; break;
        case WINDOW_LOCAL: space = PTX_LOCAL; break;
        case WINDOW_PARAM: space = PTX_PARAM; break;
        default: space = PTX_GLOBAL; break;
        }
        address -= space == PTX_GLOBAL             ? 0
                   : space == SPACE_SHARED_CLUSTER ? WINDOW_SHARED
                   : space == PTX_PARAM            ? PARAM_WINDOW
                                                   : 0;
        address = space == PTX_LOCAL ? (address & 0xffffffffULL) - PRIVATE_BIAS : address;
    }
    switch (space) {
    case SPACE_SHARED_CLUSTER:
    case PTX_SHARED:
        address &= space == PTX_SHARED ? ~0ULL : (1ULL << SHARED_RANK_SHIFT) - 1;
        describe_variable(warp, PTX_SHARED, "shared", address,
                          SHARED_BASE + (uint64_t)cta->shared_bytes, buffer, size);
        break;
    case PTX_LOCAL:
        describe_variable(warp, PTX_LOCAL, "local", address,
                          (cta->launch->kernel->local_bytes + 15) / 16 * 16, buffer, size);
        break;
    case PTX_PARAM:
        snprintf(buffer, size, "parameter address 0x%llx (%u bytes of parameters)",
                 (unsigned long long)address, cta->launch->kernel->function->param_bytes);
        break;
    default: describe_global(cta->launch->gpu, address, buffer, size); break;
    }
}
