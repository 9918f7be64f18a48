/* SPDX-License-Identifier: Apache-2.0
 *
 * cta.c - shared and local memory of a CTA, call parameters, and their shadow.
 *
 * Invariant: a byte between two static shared variables, or between two local ones, is always
 * BYTE_GAP in the shadow.
 */
#include <stdlib.h>
#include <string.h>

#include "memory/memory.h"
#include "race/race.h"

struct gaps {
    unsigned char *shadow;
    uint64_t base, bytes; /* address of shadow[0] */
};

static void open_variable(void *state, const struct ptx_variable *variable) {
    const struct gaps *gaps = state;
    if (variable->address >= gaps->base && variable->address - gaps->base <= gaps->bytes &&
        variable->size <= gaps->bytes - (variable->address - gaps->base)) {
        memset(gaps->shadow + (variable->address - gaps->base), BYTE_UNWRITTEN, variable->size);
    }
}

static void furthest(void *state, const struct ptx_variable *variable) {
    uint64_t *end = state;
    if (variable->address >= CALL_PARAM_BASE && variable->address + variable->size > *end) {
        *end = variable->address + variable->size;
    }
}

/* ---- private memory -------------------------------------------------------------------------- */

static void private_free(struct private_memory *memory) {
    free(memory->bytes);
    free(memory->shadow);
    *memory = (struct private_memory){0};
}

/* One copy for each thread; the first shadow says where the gaps are. */
static bool private_make(struct private_memory *memory, const struct cta *cta, uint64_t base,
                         uint32_t bytes, enum ptx_space space) {
    const size_t threads = (size_t)cta->warp_count * LANES;
    memory->stride = (bytes + 15) / 16 * 16;
    if (bytes == 0) {
        return true;
    }
    memory->bytes = calloc(threads, memory->stride);
    memory->shadow = malloc(threads * memory->stride);
    if (memory->bytes == NULL || memory->shadow == NULL) {
        private_free(memory);
        return false;
    }
    struct gaps gaps = {memory->shadow, base, memory->stride};
    memset(memory->shadow, BYTE_GAP, memory->stride);
    kernel_variables(cta->launch->kernel, space, open_variable, &gaps);
    for (size_t i = 1; i < threads; i++) {
        memcpy(memory->shadow + i * memory->stride, memory->shadow, memory->stride);
    }
    return true;
}

struct private_memory *call_params(struct cta *cta) {
    struct private_memory *memory = &cta->memory->call_params;
    if (memory->bytes == NULL) {
        uint64_t end = CALL_PARAM_BASE;
        kernel_variables(cta->launch->kernel, PTX_PARAM, furthest, &end);
        if (end == CALL_PARAM_BASE || !private_make(memory, cta, CALL_PARAM_BASE,
                                                    (uint32_t)(end - CALL_PARAM_BASE), PTX_PARAM)) {
            return NULL;
        }
    }
    return memory;
}

/* ---- a CTA ----------------------------------------------------------------------------------- */

static bool shared_make(struct cta *cta, struct cta_memory *memory) {
    const struct kernel *kernel = cta->launch->kernel;
    memory->bytes = cta->shared_bytes;
    /* Past the end: whole vectors may be read there. */
    cta->shared = aligned_alloc(64, ((size_t)memory->bytes + 127) / 64 * 64);
    memory->shadow = calloc((size_t)memory->bytes + 64, 1);
    if (cta->shared == NULL || memory->shadow == NULL) {
        return false;
    }
    memset(cta->shared, 0, memory->bytes);
    const uint32_t fixed =
        kernel->shared_dynamic < memory->bytes ? kernel->shared_dynamic : memory->bytes;
    struct gaps gaps = {memory->shadow, SHARED_BASE, memory->bytes};
    memset(memory->shadow, BYTE_GAP, fixed);
    kernel_variables(kernel, PTX_SHARED, open_variable, &gaps);
    return true;
}

bool memory_start_cta(struct cta *cta) {
    struct cta_memory *memory = calloc(1, sizeof(*memory));
    cta->memory = memory;
    if (memory == NULL || !shared_make(cta, memory) ||
        !private_make(&memory->local, cta, 0, cta->launch->kernel->local_bytes, PTX_LOCAL) ||
        !race_start_cta(cta)) {
        memory_end_cta(cta);
        return false;
    }
    return true;
}

void memory_end_cta(struct cta *cta) {
    struct cta_memory *memory = cta->memory;
    race_end_cta(cta);
    if (memory != NULL) {
        private_free(&memory->local);
        private_free(&memory->call_params);
        free(memory->shadow);
        free(memory->origins);
        free(memory);
    }
    free(cta->shared);
    cta->shared = NULL;
    cta->memory = NULL;
}
