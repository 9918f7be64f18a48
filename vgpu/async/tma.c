/* SPDX-License-Identifier: Apache-2.0
 *
 * tma.c - the bytes that bulk copies move: rows of a box of a tensor, or one row of plain bytes.
 *
 * In shared memory a box is dense and row-major, then swizzled by the bits of the absolute address.
 * Elements outside the tensor are filled on loads and skipped on stores.
 *
 * Invariant: a load writes all bytes of its box and completes all of them on its mbarrier,
 * including filled ones.
 */
#include "async/bulk.h"

#include <stdlib.h>
#include <string.h>

#include "memory/memory.h"
#include "race/clock.h"
#include "report/finding.h"

/* ---- shared memory --------------------------------------------------------------------------- */

static uint32_t place_of(const struct transfer *transfer, uint32_t offset) {
    const struct bulk_form *form = transfer->op->extra;
    return form->rank > 0 ? tensor_map_swizzle(&transfer->map, offset) : offset;
}

static unsigned char *host_of(const struct cta *cta, uint32_t offset) {
    return cta->shared + (offset - SHARED_BASE);
}

static bool touch(const struct transfer *transfer, struct cta *cta, uint64_t offset, uint64_t bytes,
                  enum access_kind kind, struct agent *agent, bool poison, bool *uninitialised) {
    struct block_access block = {.space = PTX_SHARED,
                                 .cta = cta,
                                 .kind = kind,
                                 .proxy = PROXY_ASYNC,
                                 .address = offset,
                                 .bytes = bytes,
                                 .agent = agent,
                                 .poison = poison};
    const bool good = memory_block(transfer->warp, transfer->op, &block);
    if (uninitialised) {
        *uninitialised = good && (*uninitialised || block.uninitialised);
    }
    return good;
}

bool bulk_touch_shared(const struct transfer *transfer, struct cta *cta, uint32_t offset,
                       enum access_kind kind, struct agent *agent, bool *uninitialised) {
    const struct bulk_form *form = transfer->op->extra;
    /* pieces change places within spans of 16 to 128 bytes; the last span may be a part of one */
    const uint64_t span = form->rank > 0 ? (uint64_t)PIECE << transfer->map.swizzle : PIECE;
    const uint64_t whole = transfer->bytes / span * span;
    if (whole > 0 && !touch(transfer, cta, offset, whole, kind, agent, false, uninitialised)) {
        return false;
    }
    for (uint64_t at = whole; at < transfer->bytes; at += PIECE) {
        const uint32_t place = place_of(transfer, offset + (uint32_t)at);
        if (!touch(transfer, cta, place, PIECE, kind, agent, false, uninitialised)) {
            return false;
        }
    }
    return true;
}

/* The bytes of a box in flight, and which pieces are uninitialised. */
struct stage {
    unsigned char *data;
    unsigned char *poison; /* one for each piece */
    bool any_poison;
};

static bool stage_make(struct stage *stage, const struct transfer *transfer) {
    const uint64_t pieces = transfer->bytes / PIECE;
    stage->any_poison = false;
    stage->data = calloc(transfer->bytes + pieces, 1);
    stage->poison = stage->data ? stage->data + transfer->bytes : NULL;
    if (!stage->data) {
        report(transfer->warp, transfer->op, FINDING_MEMORY_LIMIT, 1U << transfer->lane, NULL,
               "no memory for %llu bytes in flight", (unsigned long long)transfer->bytes);
    }
    return stage->data != NULL;
}

static void stage_to_shared(const struct stage *stage, const struct transfer *transfer,
                            struct cta *cta, struct agent *agent) {
    if (!bulk_touch_shared(transfer, cta, transfer->shared, ACCESS_WRITE, agent, NULL)) {
        return;
    }
    for (uint64_t at = 0; at < transfer->bytes; at += PIECE) {
        const uint32_t place = place_of(transfer, transfer->shared + (uint32_t)at);
        memcpy(host_of(cta, place), stage->data + at, PIECE);
        if (stage->poison[at / PIECE] != 0) {
            touch(transfer, cta, place, PIECE, ACCESS_WRITE, agent, true, NULL);
        }
    }
}

static bool stage_from_shared(struct stage *stage, const struct transfer *transfer, struct cta *cta,
                              uint32_t offset, struct agent *agent) {
    if (!bulk_touch_shared(transfer, cta, offset, ACCESS_READ, agent, &stage->any_poison)) {
        return false;
    }
    for (uint64_t at = 0; at < transfer->bytes; at += PIECE) {
        const uint32_t place = place_of(transfer, offset + (uint32_t)at);
        memcpy(stage->data + at, host_of(cta, place), PIECE);
        if (stage->any_poison) {
            bool unwritten = false;
            touch(transfer, cta, place, PIECE, ACCESS_READ, agent, false, &unwritten);
            stage->poison[at / PIECE] = unwritten;
        }
    }
    return true;
}

/* ---- rows in global memory ------------------------------------------------------------------- */

/* A row of the box: bytes [begin, end) of the stage, of which [low, high) are in the tensor, the
 * first of these at `address`. */
struct row {
    uint64_t begin, end, low, high, address;
};

static struct row row_at(const struct transfer *transfer, uint64_t index) {
    const struct tensor_map *map = &transfer->map;
    const uint32_t element = tensor_map_element(map);
    const uint64_t bytes = (uint64_t)map->box[0] * element;
    struct row row = {index * bytes, (index + 1) * bytes, index * bytes, index * bytes,
                      map->address};
    for (uint32_t i = 1; i < map->rank; i++) {
        const uint32_t count = tensor_map_count(map, i);
        const int64_t at =
            transfer->coordinates[i] + (int64_t)(index % count) * map->element_strides[i];
        index /= count;
        if (at < 0 || (uint64_t)at >= map->dims[i]) {
            return row;
        }
        row.address += (uint64_t)at * map->strides[i - 1];
    }
    const int64_t first = transfer->coordinates[0];
    const int64_t from = first < 0 ? 0 : first;
    const int64_t last = first + map->box[0];
    const int64_t to = last > (int64_t)map->dims[0] ? (int64_t)map->dims[0] : last;
    if (from < to) {
        row.low = row.begin + (uint64_t)(from - first) * element;
        row.high = row.begin + (uint64_t)(to - first) * element;
        row.address += (uint64_t)from * element;
    }
    return row;
}

static uint64_t row_count(const struct transfer *transfer) {
    uint64_t count = 1;
    for (uint32_t i = 1; i < transfer->map.rank; i++) {
        count *= tensor_map_count(&transfer->map, i);
    }
    return count;
}

static bool touch_global(const struct transfer *transfer, uint64_t address, uint64_t bytes,
                         enum access_kind kind, bool poison, struct agent *agent,
                         struct block_access *block) {
    *block = (struct block_access){.space = PTX_GLOBAL,
                                   .kind = kind,
                                   .proxy = PROXY_ASYNC,
                                   .address = address,
                                   .bytes = bytes,
                                   .agent = agent,
                                   .poison = poison};
    return memory_block(transfer->warp, transfer->op, block);
}

/* What is outside a tensor: zeros, or NaN if the map says so. */
static void fill_outside(const struct tensor_map *map, unsigned char *data, uint64_t bytes) {
    const uint32_t element = tensor_map_element(map);
    memset(data, map->fill == 1 ? 0xff : 0, bytes);
    for (uint64_t at = element; map->fill == 1 && at <= bytes; at += element) {
        data[at - 1] = 0x7f;
    }
}

static void load_row(const struct transfer *transfer, struct stage *stage, struct row row,
                     struct agent *agent) {
    struct block_access block;
    const uint64_t bytes = row.high - row.low;
    if (bytes == 0 ||
        !touch_global(transfer, row.address, bytes, ACCESS_READ, false, agent, &block)) {
        return;
    }
    memcpy(stage->data + row.low, block.host, bytes);
    for (uint64_t at = row.low; block.uninitialised && at < row.high;) {
        const uint64_t piece_end = at / PIECE * PIECE + PIECE;
        const uint64_t end = piece_end < row.high ? piece_end : row.high;
        struct block_access piece;
        if (touch_global(transfer, row.address + (at - row.low), end - at, ACCESS_READ, false,
                         agent, &piece)) {
            stage->poison[at / PIECE] |= piece.uninitialised;
        }
        at = end;
    }
}

static void store_row(const struct transfer *transfer, const struct stage *stage, struct row row,
                      struct agent *agent) {
    const struct bulk_form *form = transfer->op->extra;
    const bool reduces = form->reduction != REDUCE_NONE;
    struct block_access block;
    bool poison = false;
    for (uint64_t at = row.low / PIECE; stage->any_poison && at * PIECE < row.high; at++) {
        poison = poison || stage->poison[at] != 0;
    }
    if (row.low == row.high ||
        !touch_global(transfer, row.address, row.high - row.low,
                      reduces ? ACCESS_ATOMIC : ACCESS_WRITE, poison, agent, &block)) {
        return;
    }
    if (poison) {
        report(transfer->warp, transfer->op, FINDING_UNINITIALISED, 1U << transfer->lane,
               &(struct finding_detail){.space = PTX_GLOBAL,
                                        .address = row.address,
                                        .bytes = (uint32_t)(row.high - row.low)},
               "uninitialised bytes of shared memory are stored to global memory");
    }
    if (reduces) {
        const enum ptx_type type =
            form->rank > 0 ? reduce_tensor_type(form->reduction, transfer->map.type) : form->type;
        reduce_bytes(block.host, stage->data + row.low, row.high - row.low, form->reduction, type);
    } else {
        memcpy(block.host, stage->data + row.low, row.high - row.low);
    }
}

/* ---- whole transfers ------------------------------------------------------------------------- */

static struct row plain_row(const struct transfer *transfer) {
    return (struct row){0, transfer->bytes, 0, transfer->bytes, transfer->global};
}

void bulk_load(struct transfer *transfer) {
    const struct bulk_form *form = transfer->op->extra;
    struct cluster *cluster = transfer->warp->cta->cluster;
    struct agent *reader = transfer->writers[__builtin_ctz(transfer->ranks)];
    struct stage stage;
    const bool staged = stage_make(&stage, transfer);
    if (staged && form->rank == 0) {
        load_row(transfer, &stage, plain_row(transfer), reader);
    } else if (staged) {
        const uint64_t rows = row_count(transfer);
        fill_outside(&transfer->map, stage.data, transfer->bytes);
        for (uint64_t i = 0; i < rows; i++) {
            load_row(transfer, &stage, row_at(transfer, i), reader);
        }
    }
    for (uint32_t rank = 0; rank < cluster->cta_count; rank++) {
        struct cta *cta = &cluster->ctas[rank];
        if ((transfer->ranks >> rank & 1) == 0) {
            continue;
        }
        if (staged) {
            stage_to_shared(&stage, transfer, cta, transfer->writers[rank]);
        }
        mbarrier_deliver(transfer->warp, transfer->op, 1U << transfer->lane, cta, transfer->barrier,
                         (uint32_t)transfer->bytes, transfer->writers[rank]);
    }
    if (staged) {
        free(stage.data);
    }
}

void bulk_store(struct transfer *transfer, struct clock *stored) {
    const struct bulk_form *form = transfer->op->extra;
    struct agent *writer = transfer->writers[0];
    struct stage stage;
    if (stage_make(&stage, transfer)) {
        if (stage_from_shared(&stage, transfer, transfer->cta, transfer->shared,
                              transfer->reader)) {
            const uint64_t rows = form->rank == 0 ? 1 : row_count(transfer);
            for (uint64_t i = 0; i < rows; i++) {
                store_row(transfer, &stage,
                          form->rank == 0 ? plain_row(transfer) : row_at(transfer, i), writer);
            }
        }
        free(stage.data);
    }
    agent_finish(writer, stored);
}

void bulk_shared(struct transfer *transfer) {
    const struct bulk_form *form = transfer->op->extra;
    struct agent *writer = transfer->writers[transfer->cta->rank];
    struct stage stage;
    if (stage_make(&stage, transfer)) {
        const bool read = stage_from_shared(&stage, transfer, transfer->warp->cta, transfer->source,
                                            transfer->reader);
        if (read && form->reduction == REDUCE_NONE) {
            stage_to_shared(&stage, transfer, transfer->cta, writer);
        } else if (read && touch(transfer, transfer->cta, transfer->shared, transfer->bytes,
                                 ACCESS_ATOMIC, writer, false, NULL)) {
            reduce_bytes(host_of(transfer->cta, transfer->shared), stage.data, transfer->bytes,
                         form->reduction, form->type);
        }
        free(stage.data);
    }
    struct mbarrier *barrier = mbarrier_use(transfer->warp, transfer->op, 1U << transfer->lane,
                                            transfer->cta, transfer->barrier);
    agent_finish(transfer->reader, barrier ? mbarrier_clock(barrier) : NULL);
    mbarrier_deliver(transfer->warp, transfer->op, 1U << transfer->lane, transfer->cta,
                     transfer->barrier, (uint32_t)transfer->bytes, writer);
}
