/* SPDX-License-Identifier: Apache-2.0
 *
 * memory.h - checked memory accesses: bounds, alignment, lifetime, initialised bytes, races.
 *
 *   memory.c   one access of a warp
 *   block.c    one block that an engine moves
 *   cta.c      shared and local memory of a CTA and their shadow
 *   refused.c  findings about refused lanes
 *   origin.c   where uninitialised values were read
 */
#ifndef VGPU_MEMORY_MEMORY_H
#define VGPU_MEMORY_MEMORY_H

#include <string.h>

#include "machine/access.h"
#include "machine/device.h"
#include "report/finding.h"

/* Checks the access and reports what is wrong. Does not copy: the caller does, through host[]. */
void memory_access(struct warp *warp, const struct op *op, struct access *access);
/* Fills access->address and mask from a row and a constant, as from decode_address; lanes whose
 * address is poisoned are reported and left out of the mask. */
void memory_addresses(struct warp *warp, const struct op *op, struct access *access, uint32_t row,
                      bool narrow, int64_t offset, uint32_t mask);
/* Marks the bytes of an atomic accessed by `lanes` as written, or not. */
void memory_set_written(struct warp *warp, const struct access *access, uint32_t lanes,
                        bool written);

/* A contiguous block moved by an engine (TMA, bulk copies, wgmma operands): `bytes` from `address`
 * on, one host pointer. uninitialised: some byte read was never written. poison (writes): the bytes
 * become uninitialised. */
struct block_access {
    int space;
    struct cta *cta; /* the owner of the shared memory */
    enum access_kind kind;
    enum proxy proxy;
    uint64_t address, bytes;
    struct agent *agent;
    bool poison;
    unsigned char *host;
    bool uninitialised;
};
/* False: refused and reported. */
bool memory_block(struct warp *warp, const struct op *op, struct block_access *block);

/* Shared and local memory of a CTA and their shadow. */
bool memory_start_cta(struct cta *cta); /* false: no memory */
void memory_end_cta(struct cta *cta);

/* ---- shadows --------------------------------------------------------------------------------- */

#define WRITTEN_8 0x0101010101010101ULL
#define GAP_8 0x0202020202020202ULL

static inline bool all_written(const unsigned char *shadow, uint64_t bytes) {
    uint64_t missing = 0;
    for (; bytes >= 8; bytes -= 8, shadow += 8) {
        missing |= load_8(shadow) ^ WRITTEN_8;
    }
    if (bytes >= 4) {
        missing |= load_4(shadow) ^ (uint32_t)WRITTEN_8;
        bytes -= 4;
        shadow += 4;
    }
    for (; bytes > 0; bytes--, shadow++) {
        missing |= (uint64_t)*shadow ^ BYTE_WRITTEN;
    }
    return missing == 0;
}

static inline bool has_gap(const unsigned char *shadow, uint64_t bytes) {
    uint64_t gaps = 0;
    for (; bytes >= 8; bytes -= 8, shadow += 8) {
        gaps |= load_8(shadow) & GAP_8;
    }
    if (bytes >= 4) {
        gaps |= load_4(shadow) & (uint32_t)GAP_8;
        bytes -= 4;
        shadow += 4;
    }
    for (; bytes > 0; bytes--, shadow++) {
        gaps |= *shadow & BYTE_GAP;
    }
    return gaps != 0;
}

/* Memory private to each thread: local variables, call parameters. */
struct private_memory {
    unsigned char *bytes, *shadow;
    uint32_t stride; /* bytes of a thread */
};

/* cta->memory */
struct cta_memory {
    unsigned char *shadow; /* of each byte of shared memory */
    uint32_t bytes;        /* of shared memory */
    struct private_memory local, call_params;
    struct origin *origins; /* ORIGINS of them; NULL: nothing uninitialised was read */
    const struct op *part;  /* comes_from_part was true of it last */
};

/* The last read of uninitialised memory by an op. */
struct origin {
    const struct op *op; /* NULL: none */
    int space;
    uint64_t address; /* of the first such lane */
    uint32_t warp, lanes;
    uint64_t when;
    bool part; /* some bytes of each word were initialised */
};
enum { ORIGINS = 64 }; /* by op; a later one may take the place of an earlier one */

/* The memory of call parameters, made at the first use; NULL: there is none, or no memory. */
struct private_memory *call_params(struct cta *cta);

/* ---- origin.c -------------------------------------------------------------------------------- */

/* `lanes` read uninitialised bytes. */
void origin_note(struct warp *warp, const struct op *op, const struct access *access,
                 uint32_t lanes);
/* Whether the op stores an unchanged value of which some bytes are initialised: as copies of
 * structs do, which have padding. */
bool comes_from_part(const struct warp *warp, const struct op *op);
/* Reports at the op a value (in `lanes`) that comes from uninitialised memory. The sentence is
 * followed by what was read, and where; detail may be NULL. */
void report_uninitialised(struct warp *warp, const struct op *op, enum finding_kind kind,
                          uint32_t lanes, const struct finding_detail *detail, const char *format,
                          ...) __attribute__((format(printf, 6, 7)));

/* ---- refused.c ------------------------------------------------------------------------------- */

/* Lanes that were refused, by reason. */
struct refusals {
    uint32_t outside, misaligned, freed, wrong_space, read_only, ended;
};
/* `what` ends the sentence. */
void report_lanes(struct warp *warp, const struct op *op, const struct access *access,
                  enum finding_kind kind, uint32_t lanes, int space, const char *what);
void report_refusals(struct warp *warp, const struct op *op, const struct access *access,
                     const struct refusals *refused, int space);

#endif /* VGPU_MEMORY_MEMORY_H */
