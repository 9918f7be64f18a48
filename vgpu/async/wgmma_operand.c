/* SPDX-License-Identifier: Apache-2.0
 *
 * wgmma_operand.c - operands of wgmma in shared memory: descriptors, layouts, checks.
 *
 * An operand is a set of 16-byte units. With T elements in a unit, S the swizzle's bytes, `start`,
 * LBO (leading) and SBO (stride) from the descriptor, the unit
 *   of row r (column, for B), k from T c on                     K-major
 *     swizzled  start + (r/8) SBO + (r%8) S + 16 c
 *     else      start + (r/8) SBO + (r%8) 16 + c LBO
 *   of rows 8 u and on, one k                                   transposed (16-bit types only)
 *     swizzled  start + (u/(S/16)) LBO + (u%(S/16)) 16 + (k/8) SBO + (k%8) S
 *     else      start + u SBO + (k/8) LBO + (k%8) 16
 * lies there, after the swizzle: address bits 4-6 (128), 4-5 (64) or 4 (32) are XORed with the bits
 * three places higher. The pattern repeats every 8 S bytes and must begin at a multiple of that.
 *
 * Invariant: wgmma_check_operand has found every unit inside the CTA's shared memory before a byte
 * of it is read.
 */
#include "async/wgmma.h"

#include <string.h>

#include "machine/access.h"
#include "memory/memory.h"
#include "report/finding.h"

enum {
    UNIT = 16,
    UNITS = 1 << 14 /* of an address of 18 bits */
};

struct wgmma_descriptor wgmma_unpack(uint64_t bits) {
    static const uint32_t swizzles[] = {16, 128, 64, 32};
    const uint64_t reserved = 3ULL << 14 | 3ULL << 30 | 7ULL << 46 | 0x3ffULL << 52;
    return (struct wgmma_descriptor){
        .start = (uint32_t)(bits & 0x3fff) << 4,
        .leading = (uint32_t)(bits >> 16 & 0x3fff) << 4,
        .stride = (uint32_t)(bits >> 32 & 0x3fff) << 4,
        .base_offset = (uint32_t)(bits >> 49 & 7),
        .swizzle = swizzles[bits >> 62],
        .reserved = (bits & reserved) != 0,
    };
}

static inline uint32_t swizzled(const struct wgmma_descriptor *d, uint32_t address) {
    const uint32_t mask = (d->swizzle - 1) & ~15U; /* 0x70, 0x30, 0x10 or 0 */
    return address ^ (address >> 3 & mask);
}

/* Units of 8 rows with all of k: K-major the two units of each row, row by row; transposed one unit
 * for each k. */
static uint32_t units_of_rows(const struct wgmma_operand *operand, uint32_t row,
                              uint32_t units[2 * UNIT]) {
    const struct wgmma_descriptor *d = &operand->descriptor;
    uint32_t count = 0;
    if (operand->transposed) {
        const uint32_t u = row / 8, per_row = d->swizzle / UNIT;
        for (uint32_t k = 0; k < operand->k; k++) {
            const uint32_t plain =
                d->swizzle == UNIT ? d->start + u * d->stride + k / 8 * d->leading + k % 8 * UNIT
                                   : d->start + u / per_row * d->leading + u % per_row * UNIT +
                                         k / 8 * d->stride + k % 8 * d->swizzle;
            units[count++] = swizzled(d, plain);
        }
        return count;
    }
    for (uint32_t i = 0; i < 8; i++) {
        const uint32_t plain = d->start + row / 8 * d->stride + i * d->swizzle;
        units[count++] = swizzled(d, plain);
        units[count++] = swizzled(d, plain + (d->swizzle == UNIT ? d->leading : UNIT));
    }
    return count;
}

/* ---- checks ---------------------------------------------------------------------------------- */

/* Uninitialised units. */
struct unit_set {
    uint64_t words[UNITS / 64];
};

static bool descriptor_is_legal(struct warp *warp, const struct op *op,
                                const struct wgmma_descriptor *d, const char *which) {
    const char *wrong = NULL;
    if (d->reserved) {
        wrong = "has bits set that must be 0";
    } else if (d->base_offset != 0) {
        wrong = "has a base offset, which is not supported: let the tile begin at a multiple of "
                "its pattern";
    } else if (d->swizzle != UNIT && d->start % (8 * d->swizzle) / d->swizzle != 0) {
        wrong = "starts in the midst of its swizzle pattern, which begins at a multiple of 1024, "
                "512 or 256 bytes for a swizzle of 128, 64 or 32";
    }
    if (wrong != NULL) {
        report(warp, op, FINDING_DESCRIPTOR, ALL_LANES, NULL,
               "the descriptor of %s (start 0x%x, leading offset %u, stride offset %u, swizzle %u) "
               "%s",
               which, d->start, d->leading, d->stride, d->swizzle == UNIT ? 0 : d->swizzle, wrong);
    }
    return d->base_offset == 0;
}

/* Units that always lie side by side: a power of two. Swizzling moves them together if the place of
 * the first is a multiple of it. */
static uint32_t piece_of(const struct wgmma_operand *operand) {
    const struct wgmma_descriptor *d = &operand->descriptor;
    if (d->swizzle == UNIT) {
        return 8;
    }
    uint32_t bits = (d->start | d->stride) / UNIT;
    if (operand->transposed) {
        bits |= d->leading / UNIT | d->swizzle / UNIT | (operand->first | operand->count) / 8;
    } else {
        bits |= 2;
    }
    return bits & (0U - bits);
}

/* The pieces that begin in 8 rows, by their addresses. */
static uint32_t pieces_of_rows(const struct wgmma_operand *operand, uint32_t row, uint32_t piece,
                               uint32_t pieces[2 * UNIT]) {
    uint32_t units[2 * UNIT], count = 0;
    const uint32_t all = units_of_rows(operand, row, units);
    for (uint32_t i = 0; i < all; i++) {
        const bool plain = operand->descriptor.swizzle == UNIT;
        const bool begins = plain ? (operand->transposed ? i % 8 == 0 : i < 2)
                                  : (units[i] / UNIT & (piece - 1)) == 0;
        pieces[count] = units[i];
        count += begins;
    }
    return count;
}

static bool is_inside(struct warp *warp, const struct op *op, const char *which, uint32_t address,
                      uint32_t bytes) {
    const uint32_t end = SHARED_BASE + warp->cta->shared_bytes;
    if (address >= SHARED_BASE && address + bytes <= end) {
        return true;
    }
    const struct finding_detail detail = {.space = PTX_SHARED, .address = address, .bytes = bytes};
    report(warp, op, FINDING_DESCRIPTOR, ALL_LANES, &detail,
           "%s reaches shared address 0x%x; the CTA's shared memory is 0x%x to 0x%x", which,
           address, (unsigned)SHARED_BASE, end);
    return false;
}

/* The agent's read begins (races, proxies), and what it will find (uninitialised bytes): true if it
 * will find any, marked in `poisoned`. */
static bool access_pieces(struct warp *warp, const struct op *op, struct access *access,
                          uint32_t lanes, bool found, struct unit_set *poisoned) {
    access->mask = lanes == LANES ? ALL_LANES : (1U << lanes) - 1;
    access->kind = ACCESS_ISSUE_READ;
    memory_access(warp, op, access);
    access->kind = ACCESS_READ;
    access->mask = access->good;
    memset(access->poison, 0, sizeof access->poison);
    if (access->mask != 0) {
        memory_access(warp, op, access);
    }
    for (uint32_t i = 0; i < access->count; i++) {
        for (uint32_t rest = access->poison[i] & access->good; rest != 0; rest &= rest - 1) {
            const uint32_t unit = (uint32_t)access->address[__builtin_ctz(rest)] / UNIT + i;
            if (!found) {
                memset(poisoned, 0, sizeof *poisoned);
                found = true;
            }
            poisoned->words[unit / 64] |= 1ULL << unit % 64;
        }
    }
    return found;
}

/* Reads all of the operand on behalf of the agent; false: it reaches out of shared memory. */
static bool access_operand(struct warp *warp, const struct op *op,
                           const struct wgmma_operand *operand, const char *which,
                           struct agent *agent, bool *found, struct unit_set *poisoned) {
    struct access access = {.space = PTX_SHARED,
                            .proxy = PROXY_ASYNC,
                            .element = UNIT,
                            .count = piece_of(operand),
                            .align = UNIT,
                            .agent = agent};
    uint32_t lanes = 0;
    *found = false;
    for (uint32_t row = 0; row < operand->count; row += 8) {
        uint32_t pieces[2 * UNIT];
        const uint32_t count = pieces_of_rows(operand, operand->first + row, access.count, pieces);
        for (uint32_t i = 0; i < count; i++) {
            if (!is_inside(warp, op, which, pieces[i], access.count * UNIT)) {
                return false;
            }
            access.address[lanes++] = pieces[i];
            if (lanes == LANES) {
                *found = access_pieces(warp, op, &access, lanes, *found, poisoned);
                lanes = 0;
            }
        }
    }
    if (lanes > 0) {
        *found = access_pieces(warp, op, &access, lanes, *found, poisoned);
    }
    return true;
}

static void taint_rows(const struct wgmma_operand *operand, const struct unit_set *poisoned,
                       uint8_t *taint) {
    for (uint32_t row = 0; row < operand->count; row += 8) {
        uint32_t units[2 * UNIT];
        const uint32_t count = units_of_rows(operand, operand->first + row, units);
        for (uint32_t i = 0; i < count; i++) {
            if ((poisoned->words[units[i] / UNIT / 64] >> units[i] / UNIT % 64 & 1) != 0) {
                taint[row / 8] |= (uint8_t)(operand->transposed ? 255U : 1U << i / 2);
            }
        }
    }
}

bool wgmma_check_operand(struct warp *warp, const struct op *op,
                         const struct wgmma_operand *operand, const char *which,
                         struct agent *agent, uint8_t taint[256 / 8]) {
    struct unit_set poisoned;
    bool found;
    if (!descriptor_is_legal(warp, op, &operand->descriptor, which) ||
        !access_operand(warp, op, operand, which, agent, &found, &poisoned)) {
        return false;
    }
    if (found) {
        taint_rows(operand, &poisoned, taint);
    }
    return true;
}

/* ---- values ---------------------------------------------------------------------------------- */

/* The bytes of 8 rows: [8][32] K-major, [k][16] transposed. */
static void read_rows(const struct cta *cta, const struct wgmma_operand *operand, uint32_t row,
                      unsigned char *to) {
    uint32_t units[2 * UNIT];
    const uint32_t count = units_of_rows(operand, row, units);
    for (uint32_t i = 0; i < count; i++) {
        memcpy(to + (size_t)i * UNIT, cta->shared + (units[i] - SHARED_BASE), UNIT);
    }
}

void wgmma_read_a(const struct cta *cta, const struct wgmma_operand *operand,
                  struct matrix_values *values) {
    const uint32_t k = operand->k;
    for (uint32_t row = 0; row < operand->count; row += 8) {
        _Alignas(16) unsigned char bytes[2 * UNIT * UNIT];
        read_rows(cta, operand, operand->first + row, bytes);
        if (!operand->transposed) {
            void *to = matrix_is_wide(operand->type) ? (void *)(values->a.d + (size_t)row * k)
                                                     : (void *)(values->a.f + (size_t)row * k);
            matrix_unpack(operand->type, bytes, 8 * k, to);
            continue;
        }
        float transposed[8 * UNIT]; /* [k][8], k = 16 */
        matrix_unpack(operand->type, bytes, 8 * k, transposed);
        for (uint32_t i = 0; i < 8 * k; i++) {
            values->a.f[(row + i % 8) * k + i / 8] = transposed[i];
        }
    }
}

void wgmma_read_b(const struct cta *cta, const struct wgmma_operand *operand,
                  const struct matrix_form *form, struct matrix_values *values) {
    const uint32_t k = operand->k;
    for (uint32_t column = 0; column < operand->count; column += 8) {
        _Alignas(16) unsigned char bytes[2 * UNIT * UNIT];
        double tile[8 * 32];
        read_rows(cta, operand, column, bytes);
        matrix_unpack(operand->type, bytes, 8 * k, tile);
        if (!operand->transposed) {
            matrix_put_b(form, values, column, 0, k, tile);
            continue;
        }
        for (uint32_t i = 0; i < k; i++) {
            memcpy(values->b.f + (size_t)i * form->n + column, (const float *)(void *)tile + i * 8,
                   32);
        }
    }
}
