/* SPDX-License-Identifier: Apache-2.0
 *
 * cells.c - shadow memory of a CTA's shared memory: stamps of the last write and reads of each
 * cell, and the ids by which cells name instructions.
 *
 * Invariant: all rows of cells have the same number of elements, and one more that is never used.
 */
#include "race/state.h"

#include <stdlib.h>
#include <string.h>

static bool allocate(struct race_cells *cells, size_t bytes, size_t slots) {
    const size_t count = (bytes + 15) / 16 * 4;
    cells->cell_shift = 2;
    cells->cells = (uint32_t)count;
    cells->write_stamp = calloc(count + 1, sizeof(uint32_t));
    cells->write_who = calloc(count + 1, sizeof(uint32_t));
    cells->read_latest = calloc(count + 1, sizeof(uint32_t));
    cells->write_flight = calloc(count + 1, 1);
    cells->read_flight = calloc(count + 1, 1);
    cells->read_stamp = calloc(slots, sizeof(uint32_t *));
    cells->read_who = calloc(slots, sizeof(uint32_t *));
    cells->readers = calloc(slots, sizeof(uint32_t));
    return cells->write_stamp != NULL && cells->write_who != NULL && cells->read_latest != NULL &&
           cells->write_flight != NULL && cells->read_flight != NULL && cells->read_stamp != NULL &&
           cells->read_who != NULL && cells->readers != NULL;
}

bool race_start_cta(struct cta *cta) {
    struct cluster_race *race = race_of_cluster(cta->cluster);
    if (race == NULL) {
        return false;
    }
    race->places[cta->rank] =
        (struct cta_place){{cta->id[0], cta->id[1], cta->id[2]}, cta->linear, cta->warp_count};
    if ((cta->launch->checks & VGPU_CHECK_RACE) == 0) {
        return true;
    }
    cta->cells = calloc(1, sizeof(*cta->cells));
    return cta->cells != NULL && allocate(cta->cells, cta->shared_bytes, race->slot_count);
}

void race_end_cta(struct cta *cta) {
    struct race_cells *cells = cta->cells;
    if (cells == NULL) {
        return;
    }
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
    free(cells);
    cta->cells = NULL;
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
static bool split_cells(struct race_cells *cells) {
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

bool fit_cells(struct race_cells *cells, uint32_t sizes) {
    while ((sizes & ((1U << cells->cell_shift) - 1)) != 0) {
        if (!split_cells(cells)) {
            return false;
        }
    }
    return cells->cells != 0;
}

bool make_reader(struct race_cells *cells, uint32_t slot) {
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

/* ---- ops and slots --------------------------------------------------------------------------- */

/* Ops have the numbers from 1 on, those of the launched kernel first, then those of the functions
 * it may call. Where there are more than fit, those from OP_ID_SHARED on share the rest of the
 * numbers: an id is then ambiguous, but differs from those of the thousands of ops around it. */
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
    struct cluster_race *memory = warp->cta->cluster->race;
    const struct kernel *kernel = memory->id_kernel;
    if (kernel == NULL || op < kernel->code || op >= kernel->code + kernel->code_count) {
        kernel = kernel_of(warp, op, &memory->id_base);
        memory->id_kernel = kernel;
    }
    const uint64_t id = 1 + memory->id_base + (uint64_t)(op - kernel->code);
    return id <= OP_ID_MAX ? (uint32_t)id
                           : OP_ID_SHARED + (uint32_t)((id - OP_ID_SHARED) % OP_IDS_SHARED);
}

const struct op *op_of_launched(const struct kernel *launched, uint32_t id) {
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

const struct op *op_of_id(const struct cluster *cluster, uint32_t id) {
    return op_of_launched(cluster->launch->kernel, id);
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
