/* SPDX-License-Identifier: Apache-2.0
 *
 * cta.c - the memory of a CTA (shared, local, parameters of calls) with its shadows and
 * race/shared.c's cells, and what an address is in words.
 *
 * Invariant: a byte between two static shared variables, or between two local ones, is BYTE_GAP in
 * the shadow from the beginning to the end and never becomes anything else.
 */
#include <stdlib.h>
#include <string.h>

#include "memory/memory.h"

/* ---- variables ------------------------------------------------------------------------------- */

/* Calls `each` for the variables of a space that the kernel may touch: those of the module, its
 * own, and those of functions it may call. */
typedef void variable_function(void *state, const struct ptx_variable *variable);

static void each_of(struct ptx_variable *const *variables, uint32_t count, enum ptx_space space,
                    variable_function *each, void *state) {
    for (uint32_t i = 0; i < count; i++) {
        if (variables[i]->space == space) {
            each(state, variables[i]);
        }
    }
}

static void each_variable(const struct kernel *kernel, enum ptx_space space,
                          variable_function *each, void *state) {
    const struct ptx_module *ptx = kernel->module->ptx;
    each_of(ptx->variables, ptx->variable_count, space, each, state);
    for (uint32_t i = 0; i < ptx->function_count; i++) {
        const struct ptx_function *f = ptx->functions[i];
        if (f == kernel->function || !f->entry) {
            each_of(f->variables, f->variable_count, space, each, state);
        }
        if (!f->entry) {
            each_of(f->params, f->param_count, space, each, state);
            each_of(f->results, f->result_count, space, each, state);
        }
    }
}

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
    each_variable(cta->launch->kernel, space, open_variable, &gaps);
    for (size_t i = 1; i < threads; i++) {
        memcpy(memory->shadow + i * memory->stride, memory->shadow, memory->stride);
    }
    return true;
}

struct private_memory *call_params(struct cta *cta) {
    struct private_memory *memory = &cta_memory(cta)->call_params;
    if (memory->bytes == NULL) {
        uint64_t end = CALL_PARAM_BASE;
        each_variable(cta->launch->kernel, PTX_PARAM, furthest, &end);
        if (end == CALL_PARAM_BASE || !private_make(memory, cta, CALL_PARAM_BASE,
                                                    (uint32_t)(end - CALL_PARAM_BASE), PTX_PARAM)) {
            return NULL;
        }
    }
    return memory;
}

/* ---- cells of race/shared.c ------------------------------------------------------------------ */

static bool race_allocate(struct cta_memory *cells, struct cluster_memory *memory) {
    const size_t count = (cells->bytes + 15) / 16 * 4;
    cells->cell_shift = 2;
    cells->cells = (uint32_t)count;
    cells->write_stamp = calloc(count + 1, sizeof(uint32_t));
    cells->write_who = calloc(count + 1, sizeof(uint32_t));
    cells->read_latest = calloc(count + 1, sizeof(uint32_t));
    cells->write_flight = calloc(count + 1, 1);
    cells->read_flight = calloc(count + 1, 1);
    cells->read_stamp = calloc(memory->slot_count, sizeof(uint32_t *));
    cells->read_who = calloc(memory->slot_count, sizeof(uint32_t *));
    cells->readers = calloc(memory->slot_count, sizeof(uint32_t));
    return cells->write_stamp != NULL && cells->write_who != NULL && cells->read_latest != NULL &&
           cells->write_flight != NULL && cells->read_flight != NULL && cells->read_stamp != NULL &&
           cells->read_who != NULL && cells->readers != NULL;
}

static void race_free(struct cta_memory *cells) {
    for (uint32_t i = 0; i < cells->reader_count; i++) {
        free(cells->read_stamp[cells->readers[i]]);
        free(cells->read_who[cells->readers[i]]);
    }
    free(cells->write_stamp);
    free(cells->write_who);
    free(cells->read_latest);
    free(cells->write_flight);
    free(cells->read_flight);
    free(cells->read_stamp);
    free(cells->read_who);
    free(cells->readers);
    free(cells->visits);
    clock_free(cells->leaving);
}

/* A row with each of its `count` elements twice, in place of the old one; NULL: no memory. */
static void *split_row(void *row, uint32_t count, size_t size) {
    unsigned char *wide = malloc(((size_t)count * 2 + 1) * size);
    for (uint32_t i = 0; wide != NULL && i < count * 2; i++) {
        memcpy(wide + i * size, (unsigned char *)row + i / 2 * size, size);
    }
    free(row);
    return wide;
}

/* Halves the cells. False: no memory, and cells of different sizes: races are not checked any
 * more. */
static bool split_cells(struct cta_memory *cells) {
    const uint32_t count = cells->cells;
    uint32_t **rows[] = {&cells->write_stamp, &cells->write_who, &cells->read_latest};
    bool good = true;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        good = (*rows[i] = split_row(*rows[i], count, sizeof(uint32_t))) != NULL && good;
    }
    good = (cells->write_flight = split_row(cells->write_flight, count, 1)) != NULL && good;
    good = (cells->read_flight = split_row(cells->read_flight, count, 1)) != NULL && good;
    for (uint32_t i = 0; i < cells->reader_count; i++) {
        uint32_t **stamp = &cells->read_stamp[cells->readers[i]];
        uint32_t **who = &cells->read_who[cells->readers[i]];
        good = (*stamp = split_row(*stamp, count, sizeof(uint32_t))) != NULL && good;
        good = (*who = split_row(*who, count, sizeof(uint32_t))) != NULL && good;
    }
    cells->cells = good ? count * 2 : 0;
    cells->cell_shift -= 1;
    return good;
}

bool fit_cells(struct cta_memory *cells, uint32_t sizes) {
    while ((sizes & ((1U << cells->cell_shift) - 1)) != 0) {
        if (!split_cells(cells)) {
            return false;
        }
    }
    return cells->cells != 0;
}

bool make_reader(struct cta_memory *cells, uint32_t slot) {
    if (cells->read_stamp[slot] != NULL) {
        return true;
    }
    uint32_t *stamp = calloc((size_t)cells->cells + 1, sizeof(*stamp));
    uint32_t *who = calloc((size_t)cells->cells + 1, sizeof(*who));
    if (stamp == NULL || who == NULL) {
        free(stamp);
        free(who);
        return false;
    }
    cells->read_stamp[slot] = stamp;
    cells->read_who[slot] = who;
    cells->readers[cells->reader_count++] = slot;
    return true;
}

/* ---- a CTA ----------------------------------------------------------------------------------- */

static bool shared_make(struct cta *cta, struct cta_memory *memory) {
    const struct kernel *kernel = cta->launch->kernel;
    memory->bytes = cta->shared_bytes;
    /* Behind the end: whole vectors may be read there. */
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
    each_variable(kernel, PTX_SHARED, open_variable, &gaps);
    return true;
}

bool memory_start_cta(struct cta *cta) {
    struct cta_memory *memory = calloc(1, sizeof(*memory));
    struct cluster_memory *cluster = cluster_memory(cta->cluster);
    cta->shadow = memory;
    if (memory == NULL || cluster == NULL || !shared_make(cta, memory) ||
        !private_make(&memory->local, cta, 0, cta->launch->kernel->local_bytes, PTX_LOCAL) ||
        ((cta->launch->checks & VGPU_CHECK_RACE) != 0 && !race_allocate(memory, cluster))) {
        memory_end_cta(cta);
        return false;
    }
    cluster->places[cta->rank] =
        (struct cta_place){{cta->id[0], cta->id[1], cta->id[2]}, cta->linear, cta->warp_count};
    cta->local = memory->local.bytes;
    cta->local_shadow = memory->local.shadow;
    return true;
}

void memory_end_cta(struct cta *cta) {
    struct cta_memory *memory = cta_memory(cta);
    if (memory != NULL) {
        race_free(memory);
        private_free(&memory->local);
        private_free(&memory->call_params);
        free(memory->shadow);
        free(memory);
    }
    free(cta->shared);
    cta->shared = NULL;
    cta->shadow = NULL;
    cta->local = NULL;
    cta->local_shadow = NULL;
}

/* ---- ops and slots --------------------------------------------------------------------------- */

/* Ops have the numbers from 1 on, those of the launched kernel first, then those of the functions
 * it may call. Where there are more than fit, those from OP_ID_SHARED on share the rest of the
 * numbers: each is still somebody, and not the same one as the thousands of ops around it. */
enum { OP_ID_SHARED = 0x7000, OP_ID_MAX = 0x7fff, OP_IDS_SHARED = OP_ID_MAX - OP_ID_SHARED + 1 };

/* The i-th kernel whose ops have numbers, from 0 on; NULL: other kernels' code does not run. */
static const struct kernel *numbered(const struct kernel *launched, uint32_t i) {
    const struct kernel *kernel = i > 0 ? launched->module->kernels[i - 1] : launched;
    return i > 0 && kernel->function->entry ? NULL : kernel;
}

/* The number of ops before those of the kernel that has this one. */
static const struct kernel *kernel_of(const struct warp *warp, const struct op *op,
                                      uint32_t *before) {
    const struct kernel *launched = warp->cta->launch->kernel;
    *before = 0;
    for (uint32_t i = 0; i <= launched->module->kernel_count; i++) {
        const struct kernel *k = numbered(launched, i);
        if (k != NULL && op >= k->code && op < k->code + k->code_count) {
            return k;
        }
        *before += k != NULL ? k->code_count : 0;
    }
    return launched;
}

uint32_t op_id(const struct warp *warp, const struct op *op) {
    struct cluster_memory *memory = warp->cta->cluster->global;
    const struct kernel *kernel = memory->id_kernel;
    if (kernel == NULL || op < kernel->code || op >= kernel->code + kernel->code_count) {
        kernel = kernel_of(warp, op, &memory->id_base);
        memory->id_kernel = kernel;
    }
    const uint64_t id = 1 + memory->id_base + (uint64_t)(op - kernel->code);
    return id <= OP_ID_MAX ? (uint32_t)id
                           : OP_ID_SHARED + (uint32_t)((id - OP_ID_SHARED) % OP_IDS_SHARED);
}

const struct op *op_of_id(const struct cluster *cluster, uint32_t id) {
    const struct kernel *launched = cluster->launch->kernel;
    const struct op *found = NULL;
    uint64_t count = 0;
    for (uint32_t i = 0; id > 0 && i <= launched->module->kernel_count; i++) {
        const struct kernel *kernel = numbered(launched, i);
        if (kernel == NULL) {
            continue;
        }
        if (id > count && id - count <= kernel->code_count) {
            found = &kernel->code[id - count - 1];
        }
        count += kernel->code_count;
    }
    return id >= OP_ID_SHARED && count > OP_ID_MAX ? NULL : found;
}

struct warp *warp_of_slot(const struct cluster *cluster, uint32_t slot) {
    for (uint32_t i = 0; i < cluster->cta_count; i++) {
        struct cta *cta = &cluster->ctas[i];
        for (uint32_t w = 0; w < cta->warp_count; w++) {
            if (cta->warps[w].agent_index == slot) {
                return &cta->warps[w];
            }
        }
    }
    return NULL;
}

/* ---- words ----------------------------------------------------------------------------------- */

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
    each_variable(warp->cta->launch->kernel, space, nearer, &nearest);
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
        snprintf(buffer, size, "%s address 0x%llx, %llu bytes behind the end of %s memory", name,
                 at, (unsigned long long)(address - end), name);
    } else if (v == NULL) {
        snprintf(buffer, size, "%s address 0x%llx", name, at);
    } else if (v->size != 0 && address - v->address >= v->size) {
        snprintf(buffer, size, "%s address 0x%llx, %llu bytes behind \"%.40s\" (%llu bytes)", name,
                 at, (unsigned long long)(address - v->address - v->size), variable,
                 (unsigned long long)v->size);
    } else {
        snprintf(buffer, size, "%s \"%.60s\" + %llu", name, variable,
                 (unsigned long long)(address - v->address));
    }
}

static void describe_global(const struct device_memory *memory, uint64_t address, char *buffer,
                            size_t size) {
    const struct allocation *range = device_find(memory, address);
    const size_t behind = range == NULL ? 0 : (size_t)(range - memory->ranges) + 1;
    const struct allocation *next = behind < memory->count ? &memory->ranges[behind] : NULL;
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
        snprintf(buffer, size, "global address 0x%llx, %llu bytes behind \"%.40s\" (%llu bytes)",
                 at, (unsigned long long)(address - range->end), range->label,
                 (unsigned long long)(range->end - range->begin));
    } else {
        snprintf(buffer, size, "global address 0x%llx, near no allocation", at);
    }
}

void memory_describe(const struct warp *warp, int space, uint64_t address, char *buffer,
                     size_t size) {
    const struct cta *cta = warp->cta;
    const struct cta_memory *memory = cta_memory(cta);
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
        describe_variable(warp, PTX_LOCAL, "local", address, memory->local.stride, buffer, size);
        break;
    case PTX_PARAM:
        snprintf(buffer, size, "parameter address 0x%llx (%u bytes of parameters)",
                 (unsigned long long)address, cta->launch->kernel->function->param_bytes);
        break;
    default: describe_global(cta->launch->gpu->memory, address, buffer, size); break;
    }
}
