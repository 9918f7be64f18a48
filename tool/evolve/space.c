/* SPDX-License-Identifier: Apache-2.0
 *
 * space.c - families, their knobs, and what is legal. See evolve.h.
 *
 * Invariant: what is legal here compiles without spills and fits the device: the rules are those of
 * the kernels' own static assertions, of ATTN_SMEM_* of src/kernels/common/args.h
 * (tests/tool/test_evolve.c compares) and of registers as ptxas gave them (docs/evolve.md).
 */
#include <stdlib.h>
#include <string.h>

#include "base/message.h"
#include "cases/shape.h"
#include "evolve/evolve.h"

const char *const KNOB_NAMES[KNOB_COUNT] = {"block_q", "block_kv",  "warps",   "stages",
                                            "overlap", "ping_pong", "resident"};

static const char *const CONSTANTS[KNOB_COUNT] = {
    [KNOB_OVERLAP] = "OVERLAP", [KNOB_PING_PONG] = "PING_PONG", [KNOB_RESIDENT] = "RESIDENT"};

const char *knob_constant(enum knob knob) {
    return CONSTANTS[knob];
}

/* ---- families -------------------------------------------------------------------------------- */

enum masks { MASK_ANY, MASK_NONE, MASK_CAUSAL };

struct values {
    int count;
    int list[KNOB_VALUES];
};

#define VALUES(...)                                                                                \
    {                                                                                              \
        sizeof((int[]){__VA_ARGS__}) / sizeof(int), {                                              \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
#define SWITCH VALUES(KNOB_AUTO, 0, 1)
#define NO_VALUES                                                                                  \
    {                                                                                              \
        0, {                                                                                       \
            0                                                                                      \
        }                                                                                          \
    }

struct kind {
    const char *kernel, *arch;
    enum masks masks;
    int dims[8];       /* of its tiles, ascending; 0 ends them */
    bool one_dim;      /* takes no other head dimension than the tile's */
    bool warps_follow; /* from block_q: a producer and a warpgroup for each 64 rows */
    struct values values[KNOB_COUNT];
};

/* PING_PONG has the warpgroups wait for each other's turn: with a mask they have not as many. */
#define HOPPER(name, mask, turns)                                                                  \
    {                                                                                              \
        .kernel = (name), .arch = "sm_90a", .masks = (mask), .dims = {64, 96, 128, 192, 256},      \
        .warps_follow = true, .values = {                                                          \
            [KNOB_BLOCK_Q] = VALUES(128, 192, 256),                                                \
            [KNOB_BLOCK_KV] = VALUES(64, 128),                                                     \
            [KNOB_STAGES] = VALUES(2, 3, 4, 5, 6, 7, 8),                                           \
            [KNOB_OVERLAP] = SWITCH,                                                               \
            [KNOB_PING_PONG] = turns,                                                              \
        }                                                                                          \
    }
#define MMA(name)                                                                                  \
    {                                                                                              \
        .kernel = (name), .arch = "sm_80", .dims = {32, 64, 96, 128, 192, 256}, .values = {        \
            [KNOB_BLOCK_Q] = VALUES(16, 32, 64, 128, 256),                                         \
            [KNOB_BLOCK_KV] = VALUES(16, 32, 48, 64, 96, 128),                                     \
            [KNOB_WARPS] = VALUES(1, 2, 4, 8),                                                     \
            [KNOB_STAGES] = VALUES(2, 3, 4, 5),                                                    \
            [KNOB_RESIDENT] = VALUES(KNOB_AUTO, 1, 2, 3, 4, 6, 8),                                 \
        }                                                                                          \
    }
#define OLD(name)                                                                                  \
    {                                                                                              \
        .kernel = (name), .arch = "sm_80", .dims = {64}, .one_dim = true, .values = {              \
            [KNOB_BLOCK_Q] = VALUES(16, 32, 48, 64, 128),                                          \
            [KNOB_BLOCK_KV] = VALUES(32, 64, 128),                                                 \
            [KNOB_WARPS] = VALUES(4, 8),                                                           \
            [KNOB_STAGES] = VALUES(1, 2),                                                          \
        }                                                                                          \
    }

static const struct kind KINDS[] = {
    HOPPER("fwd_hopper", MASK_NONE, SWITCH),
    HOPPER("fwd_hopper_causal", MASK_CAUSAL, NO_VALUES),
    HOPPER("fwd_hopper_full", MASK_ANY, NO_VALUES),
    {.kernel = "fwd_hopper_split",
     .arch = "sm_90a",
     .dims = {64, 128},
     .values = {[KNOB_BLOCK_Q] = VALUES(64),
                [KNOB_BLOCK_KV] = VALUES(64, 128),
                [KNOB_WARPS] = VALUES(8),
                [KNOB_STAGES] = VALUES(4, 6, 8, 10, 12),
                [KNOB_RESIDENT] = VALUES(KNOB_AUTO, 1, 2)}},
    MMA("fwd_mma"),
    MMA("fwd_mma_full"),
    {.kernel = "fwd_mma_decode",
     .arch = "sm_80",
     .dims = {64, 128, 256},
     .values = {[KNOB_BLOCK_Q] = VALUES(16),
                [KNOB_BLOCK_KV] = VALUES(16, 32, 64, 96, 128),
                [KNOB_WARPS] = VALUES(1, 2, 4, 8),
                [KNOB_STAGES] = VALUES(2, 3, 4, 5),
                [KNOB_RESIDENT] = VALUES(KNOB_AUTO, 1, 2, 3, 4, 6, 8)}},
    {.kernel = "fwd_hopper_decode",
     .arch = "sm_90a",
     .dims = {64, 128, 256},
     .values = {[KNOB_BLOCK_Q] = VALUES(16),
                [KNOB_BLOCK_KV] = VALUES(32, 64, 128, 256),
                [KNOB_WARPS] = VALUES(2, 4, 8),
                [KNOB_STAGES] = VALUES(2, 3, 4, 5, 6),
                [KNOB_RESIDENT] = VALUES(KNOB_AUTO, 1, 2, 3)}},
    OLD("fwd_wmma"),
    OLD("fwd_scalar"),
    {.kernel = "cpu_tile",
     .values = {[KNOB_BLOCK_Q] =
                    VALUES(32, 48, 64, 96, 128, 192, 256, 384, 512, 516, 528, 768, 1024),
                [KNOB_BLOCK_KV] = VALUES(32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048)}},
    {.kernel = "cpu_row",
     .values = {[KNOB_BLOCK_Q] = VALUES(1, 2, 4, 8, 12, 16),
                [KNOB_BLOCK_KV] =
                    VALUES(64, 128, 256, 384, 512, 768, 1024, 1536, 2048, 4096, 8192)}},
};
enum { KIND_COUNT = sizeof KINDS / sizeof *KINDS };

const char *const GPU_KERNELS[] = {"fwd_hopper",
                                   "fwd_hopper_causal",
                                   "fwd_hopper_full",
                                   "fwd_hopper_split",
                                   "fwd_mma",
                                   "fwd_mma_full",
                                   "fwd_mma_decode",
                                   "fwd_hopper_decode",
                                   "fwd_wmma",
                                   "fwd_scalar",
                                   NULL};

static const struct kind *kind_of(const char *kernel) {
    for (int i = 0; i < KIND_COUNT; i++) {
        if (strcmp(KINDS[i].kernel, kernel) == 0) {
            return &KINDS[i];
        }
    }
    return NULL;
}

static bool starts(const char *text, const char *with) {
    return strncmp(text, with, strlen(with)) == 0;
}

bool family_for_gpu(const char *kernel, const attn_problem *p, const char *device_arch,
                    struct family *family) {
    const struct kind *kind = kind_of(kernel);
    const int64_t wanted = p->head_dim > p->head_dim_v ? p->head_dim : p->head_dim_v;
    const bool causal = p->causal != ATTN_CAUSAL_NONE;
    int dim = 0;
    for (int i = 0; kind != NULL && kind->dims[i] > 0 && dim == 0; i++) {
        dim = kind->dims[i] >= wanted ? kind->dims[i] : 0;
    }
    if (kind == NULL || dim == 0 || wanted % 8 != 0 || (kind->one_dim && dim != wanted) ||
        (causal ? kind->masks == MASK_NONE : kind->masks == MASK_CAUSAL) ||
        (strcmp(kind->arch, "sm_90a") == 0 && strcmp(device_arch, "sm_90") != 0)) {
        return false;
    }
    *family = (struct family){.head_dim = dim};
    snprintf(family->name, sizeof family->name, "%s", kernel);
    snprintf(family->kernel, sizeof family->kernel, "%s", kernel);
    snprintf(family->arch, sizeof family->arch, "%s", kind->arch);
    return true;
}

int knob_values(const struct family *family, enum knob knob, const int **values) {
    const struct kind *kind = kind_of(family->kernel);
    *values = kind != NULL ? kind->values[knob].list : NULL;
    return kind != NULL ? kind->values[knob].count : 0;
}

void knobs_settle(const struct family *family, struct knobs *knobs) {
    const struct kind *kind = kind_of(family->kernel);
    if (kind != NULL && kind->warps_follow) {
        knobs->value[KNOB_WARPS] = knobs->value[KNOB_BLOCK_Q] / 16 + 4;
    }
}

/* ---- shared memory --------------------------------------------------------------------------- */

static int tma_columns(int d) {
    return (d + 63) / 64 * 64;
}

int knobs_shared(const struct family *family, const struct knobs *knobs) {
    const int bm = knobs->value[KNOB_BLOCK_Q], bn = knobs->value[KNOB_BLOCK_KV];
    const int stages = knobs->value[KNOB_STAGES], d = family->head_dim;
    if (strcmp(family->kernel, "fwd_hopper_split") == 0) {
        return 2 * tma_columns(d) * (bm + 2 * stages * bn) + 1024;
    }
    if (strcmp(family->kernel, "fwd_hopper_decode") == 0) {
        return 2 * tma_columns(d) * (bm + 64 + 2 * stages * bn) + 1024;
    }
    if (starts(family->kernel, "fwd_hopper")) {
        return 2 * tma_columns(d) * ((d <= 128 ? 2 : 1) * bm + 2 * stages * bn) + 1024;
    }
    if (starts(family->kernel, "fwd_mma")) {
        return 2 * (bm + 2 * stages * bn) * d;
    }
    if (strcmp(family->kernel, "fwd_wmma") == 0) {
        return 2 * (bm + 2 * stages * bn) * (d + 8) + 4 * bm * (bn + 4) + 2 * bm * (bn + 8) +
               4 * bm;
    }
    return 0;
}

/* ---- legality -------------------------------------------------------------------------------- */

/* Static shared memory of mbarriers and notes, and of sums that are merged. */
enum { SHARED_STATIC = 1280, REGISTER_FILE = 65536, THREAD_REGISTERS = 255 };

static bool mma_fits(const struct family *family, const struct knobs *knobs, attn_error *why) {
    const int bm = knobs->value[KNOB_BLOCK_Q], bn = knobs->value[KNOB_BLOCK_KV];
    const int warps = knobs->value[KNOB_WARPS], stages = knobs->value[KNOB_STAGES];
    const int d = family->head_dim, tiles = bm / 16;
    const int warp_rows = tiles < warps ? tiles : warps, warp_keys = warps / warp_rows;
    const int row_tiles = tiles / warp_rows, keys = bn / warp_keys;
    if (tiles % warp_rows != 0 || warps % warp_rows != 0 || keys % 16 != 0) {
        return explain(why,
                       "block_q %d and block_kv %d on %d warps, expected whole tiles of 16 rows "
                       "and 16 keys for each",
                       bm, bn, warps);
    }
    const int left = 4 * 32 * (row_tiles * d / 2 + 4 * row_tiles);
    if (warp_keys > 1 && left * (warp_keys - 1) * warp_rows > 4 * stages * bn * d) {
        return explain(why,
                       "%d warps share rows, and K and V of %d keys leave too little room "
                       "to merge them",
                       warp_keys, bn);
    }
    /* What a lane holds at once: O, the scores, Q if it stays, the sums; and room to work. */
    const bool full = strcmp(family->kernel, "fwd_mma") != 0; /* it, or with parts */
    const int held = row_tiles * (d / 2 + keys / 2) +
                     (row_tiles * d / 4 <= 32 ? row_tiles * d / 4 : 0) + 4 * row_tiles;
    const int resident_warps = full || d > 64                     ? 8
                               : row_tiles == 1 && warp_keys == 1 ? 16
                               : row_tiles == 1 || keys <= 32     ? 12
                                                                  : 8;
    const int automatic = resident_warps > warps ? resident_warps / warps : 1;
    const int asked = knobs->value[KNOB_RESIDENT];
    const int blocks = asked == KNOB_AUTO ? automatic : asked;
    const int file = REGISTER_FILE / (blocks * warps * 32) / 8 * 8;
    const int most = file < THREAD_REGISTERS ? file : THREAD_REGISTERS;
    /* a third stage, merging warps and long rows take registers besides */
    const int room = (full || (warps == 8 && d > 64) ? 60 : 32) + (stages > 2 ? 24 : 0) +
                     (warp_keys > 1 ? 8 : 0) + (d > 128 ? 16 : 0);
    if (held + room > most) {
        return explain(why,
                       "a lane holds about %d numbers and needs %d registers to work, %d blocks of "
                       "%d warps leave it %d",
                       held, room, blocks, warps, most);
    }
    const int pieces = bn * d / 8 / (32 * warps), pieces_most = d > 128 ? 24 : 32;
    if (pieces > pieces_most) {
        return explain(why, "a lane copies %d pieces of each tile, expected %d at most", pieces,
                       pieces_most);
    }
    return true;
}

/* Whether O += P V is under way during the next softmax; the source's own rule where it decides. */
static bool overlaps(const struct family *family, const struct knobs *knobs) {
    const bool masked = strcmp(family->kernel, "fwd_hopper") != 0;
    const int asked = knobs->value[KNOB_OVERLAP], d = family->head_dim;
    return asked == KNOB_AUTO ? d == 128 || (d > 128 && masked) : asked != 0;
}

static bool hopper_fits(const struct family *family, const struct knobs *knobs, attn_error *why) {
    const int d = family->head_dim, keys = knobs->value[KNOB_BLOCK_KV];
    const int consumers = knobs->value[KNOB_BLOCK_Q] / 64;
    const int most = consumers == 2 ? 232 : consumers == 3 ? 160 : 112;
    const int twice = overlaps(family, knobs) ? keys / 4 : 0; /* P of two tiles of keys */
    const int held = d / 2 + keys / 2 + keys / 4 + twice;
    const int room = 32;
    if (held + room > most) {
        return explain(why,
                       "a thread holds %d numbers of O, scores and probabilities and needs %d "
                       "registers to work, %d consumer warpgroups leave it %d",
                       held, room, consumers, most);
    }
    if (strcmp(family->kernel, "fwd_hopper_full") == 0 && d <= 128 && consumers != 3) {
        return explain(why, "block_q %d, expected 192: its options spill with others",
                       knobs->value[KNOB_BLOCK_Q]);
    }
    return true;
}

static bool split_fits(const struct family *family, const struct knobs *knobs, attn_error *why) {
    const int own = knobs->value[KNOB_STAGES] / 2, bn = knobs->value[KNOB_BLOCK_KV];
    const int d = family->head_dim, asked = knobs->value[KNOB_RESIDENT];
    if (own * bn * tma_columns(d) * 2 < 64 * d * 4) {
        return explain(why, "stages %d of %d keys leave too little room for O", 2 * own, bn);
    }
    if (asked == 2 && (d != 64 || bn != 64)) {
        return explain(why, "resident 2 with block_kv %d, expected 64", bn);
    }
    return true;
}

static bool decode_fits(const struct family *family, const struct knobs *knobs, attn_error *why) {
    const int bn = knobs->value[KNOB_BLOCK_KV], warps = knobs->value[KNOB_WARPS];
    const int stages = knobs->value[KNOB_STAGES], d = family->head_dim, keys = bn / warps;
    if (keys < 16 || keys > 64 || keys % 16 != 0) {
        return explain(why, "block_kv %d on %d warps, expected 16 to 64 keys for each", bn, warps);
    }
    if (4 * stages * keys * d < 4 * 32 * (d / 2 + 4)) {
        return explain(why, "stages %d of %d keys leave too little room for O", stages, keys);
    }
    const int held = d / 2 + keys / 2 + (d / 4 <= 32 ? d / 4 : 0) + 4, room = d > 128 ? 104 : 88;
    const int asked = knobs->value[KNOB_RESIDENT];
    const int blocks = asked != KNOB_AUTO ? asked : warps < 8 ? 8 / warps : 1;
    const int file = REGISTER_FILE / (blocks * warps * 32) / 8 * 8;
    const int most = file < THREAD_REGISTERS ? file : THREAD_REGISTERS;
    return held + room <= most ||
           explain(why,
                   "a lane holds about %d numbers and needs %d registers to work, %d blocks of %d "
                   "warps leave it %d",
                   held, room, blocks, warps, most);
}

static bool old_fits(const struct family *family, const struct knobs *knobs, attn_error *why) {
    const int bm = knobs->value[KNOB_BLOCK_Q], bn = knobs->value[KNOB_BLOCK_KV];
    const int warps = knobs->value[KNOB_WARPS], stages = knobs->value[KNOB_STAGES];
    const int d = family->head_dim;
    if (bm < 1 || bn < 16 || warps < 1 || d < 16) { /* of a journal that was written by hand */
        return explain(why, "tiles of %d x %d for %d warps and a head_dim of %d", bm, bn, warps, d);
    }
    const int rows = bm / warps;
    if (bm % warps != 0) {
        return explain(why, "block_q %d, expected a multiple of warps %d", bm, warps);
    }
    if (strcmp(family->kernel, "fwd_scalar") == 0) {
        const int bytes = 2 * (bm * d + stages * bn * (2 * d + 8)) + 4 * warps * 32 * rows;
        return (rows % 2 == 0 && bytes <= 48 << 10) ||
               explain(why,
                       "%d rows to a warp in %d bytes of static shared memory, expected an "
                       "even number and 49152",
                       rows, bytes);
    }
    const int slots = rows <= 4 ? 4 : 8, lanes = 32 / slots;
    if (rows > 8 || bn / lanes % 4 != 0 || warps % (bn / 16) != 0 || warps % (d / 16) != 0 ||
        4 * warps * 256 > 4 * bm * (bn + 4) || 4 * bm * (d + 4) > 4 * stages * bn * (d + 8)) {
        return explain(why,
                       "block_q %d, block_kv %d on %d warps, expected fragments of 16 x 16 "
                       "that the warps can share",
                       bm, bn, warps);
    }
    return true;
}

/* The listed values, but for what follows from others. */
static bool values_are_listed(const struct family *family, const struct knobs *knobs,
                              attn_error *why) {
    for (int k = 0; k < KNOB_COUNT; k++) {
        const int *list = NULL;
        const int count = knob_values(family, (enum knob)k, &list);
        bool found = count == 0;
        for (int i = 0; i < count; i++) {
            found = found || list[i] == knobs->value[k];
        }
        if (!found) {
            return explain(why, "%s %d, which %s does not have", KNOB_NAMES[k], knobs->value[k],
                           family->name);
        }
    }
    return true;
}

bool knobs_legal(const struct space *space, const struct family *family, const struct knobs *knobs,
                 attn_error *why) {
    if (!values_are_listed(family, knobs, why)) {
        return false;
    }
    if (family->head_dim == 0) {
        return strcmp(family->kernel, "cpu_row") != 0 ||
               knobs->value[KNOB_BLOCK_Q] >= space->rows ||
               explain(why, "block_q %d, expected the %lld query rows of a KV head or more",
                       knobs->value[KNOB_BLOCK_Q], (long long)space->rows);
    }
    const int shared = knobs_shared(family, knobs) + SHARED_STATIC;
    if (shared > space->shared) {
        return explain(why, "%d bytes of shared memory, a block of this device can have %d", shared,
                       space->shared);
    }
    if (starts(family->kernel, "fwd_mma")) {
        return mma_fits(family, knobs, why);
    }
    if (strcmp(family->kernel, "fwd_hopper_split") == 0) {
        return split_fits(family, knobs, why);
    }
    if (strcmp(family->kernel, "fwd_hopper_decode") == 0) {
        return decode_fits(family, knobs, why);
    }
    return starts(family->kernel, "fwd_hopper") ? hopper_fits(family, knobs, why)
                                                : old_fits(family, knobs, why);
}

/* ---- names ----------------------------------------------------------------------------------- */

const char *knobs_variant(const struct space *space, const struct family *family,
                          const struct knobs *knobs, char name[EVOLVE_NAME]) {
    const int *v = knobs->value;
    if (family->head_dim == 0) {
        snprintf(name, EVOLVE_NAME, "%s_%dx%d", family->name, v[KNOB_BLOCK_Q], v[KNOB_BLOCK_KV]);
    } else {
        snprintf(name, EVOLVE_NAME, "%s_%s_d%d_%dx%d_w%d_s%d", family->name,
                 DTYPE_NAMES[space->dtype], family->head_dim, v[KNOB_BLOCK_Q], v[KNOB_BLOCK_KV],
                 v[KNOB_WARPS], v[KNOB_STAGES]);
    }
    return name;
}

bool knobs_are_plain(const struct knobs *knobs) {
    for (int k = KNOB_SOURCE; k < KNOB_COUNT; k++) {
        if (knobs->value[k] != KNOB_AUTO) {
            return false;
        }
    }
    return true;
}

const char *knobs_name(const struct space *space, const struct family *family,
                       const struct knobs *knobs, char name[EVOLVE_NAME]) {
    knobs_variant(space, family, knobs, name);
    for (int k = KNOB_SOURCE; k < KNOB_COUNT; k++) {
        const int *list = NULL;
        const size_t used = strlen(name);
        if (knob_values(family, (enum knob)k, &list) > 0 && knobs->value[k] != KNOB_AUTO) {
            snprintf(name + used, EVOLVE_NAME - used, "+%s=%d", KNOB_NAMES[k], knobs->value[k]);
        }
    }
    return name;
}

attn_variant knobs_describe(const struct space *space, const struct family *family,
                            const struct knobs *knobs, const char *name, const char *entry) {
    const struct kind *kind = kind_of(family->kernel);
    const bool gpu = family->head_dim > 0;
    return (attn_variant){
        .size = sizeof(attn_variant),
        .name = name,
        .device = gpu ? "cuda" : "cpu",
        .family = family->kernel,
        .arch = family->arch,
        .dtypes = 1U << space->dtype,
        .tensor_cores = strcmp(family->kernel, "fwd_scalar") != 0,
        .head_dim_max = family->head_dim,
        .head_dim_multiple = kind != NULL && kind->one_dim ? family->head_dim : 8,
        .block_q = knobs->value[KNOB_BLOCK_Q],
        .block_kv = knobs->value[KNOB_BLOCK_KV],
        .stages = knobs->value[KNOB_STAGES],
        .warps = knobs->value[KNOB_WARPS],
        .shared_bytes = knobs_shared(family, knobs),
        .entry = gpu ? entry : NULL,
    };
}

/* ---- JSON ------------------------------------------------------------------------------------ */

void knobs_json(struct json *json, const char *key, const struct family *family,
                const struct knobs *knobs) {
    json_open(json, key, '{');
    for (int k = 0; k < KNOB_COUNT; k++) {
        const int *list = NULL;
        if (knob_values(family, (enum knob)k, &list) > 0 || knobs->value[k] > 0) {
            json_int(json, KNOB_NAMES[k], knobs->value[k]);
        }
    }
    json_close(json);
}

bool knobs_read(const struct json_value *object, const struct family *family, struct knobs *knobs,
                attn_error *why) {
    *knobs = (struct knobs){{0}};
    for (int k = 0; k < KNOB_COUNT; k++) {
        const int *list = NULL;
        const int count = knob_values(family, (enum knob)k, &list);
        const struct json_value *value = json_at(object, KNOB_NAMES[k]);
        if (count == 0) {
            knobs->value[k] = k >= KNOB_SOURCE ? KNOB_AUTO : 0;
        } else if (value == NULL && list[0] == KNOB_AUTO) {
            knobs->value[k] = KNOB_AUTO;
        } else if (value == NULL || value->kind != JSON_INT || value->as.integer < KNOB_AUTO ||
                   value->as.integer > 1 << 16) {
            return explain(why, "knob %s of %s, expected a number", KNOB_NAMES[k], family->name);
        } else {
            knobs->value[k] = (int)value->as.integer;
        }
    }
    knobs_settle(family, knobs);
    return true;
}

/* ---- shapes ---------------------------------------------------------------------------------- */

static bool take_number(const char **text, int64_t *number) {
    char *end = NULL;
    *number = strtoll(*text, &end, 10);
    const bool good = end != *text && *number >= 1 && *number <= INT32_MAX;
    *text = end;
    return good;
}

static bool take_comma(const char **text) {
    return *(*text)++ == ',';
}

bool shape_parse(const char *text, attn_dtype dtype, attn_problem *problem, attn_error *why) {
    const char *at = text;
    attn_problem p;
    attn_problem_init(&p);
    p.dtype = dtype;
    bool good = take_number(&at, &p.batch) && take_comma(&at) && take_number(&at, &p.heads_q);
    if (good && *at == '/') {
        at++;
        good = take_number(&at, &p.heads_kv);
    }
    good = good && take_comma(&at) && take_number(&at, &p.seq_q) && take_comma(&at) &&
           take_number(&at, &p.head_dim);
    p.seq_kv = p.seq_q;
    if (good && strcmp(at, ",causal") == 0) {
        p.causal = ATTN_CAUSAL_TOP_LEFT;
    } else if (!good || *at != '\0') {
        return explain(why, "shape = '%.60s', expected B,H[/HKV],S,D[,causal]", text);
    }
    return attn_problem_resolve(&p, problem, why) == ATTN_OK;
}

const char *shape_text(const attn_problem *p, char *buffer, size_t size) {
    char kv[24] = "";
    if (p->heads_kv != p->heads_q) {
        snprintf(kv, sizeof kv, "/%lld", (long long)p->heads_kv);
    }
    snprintf(buffer, size, "%lld,%lld%s,%lld,%lld%s", (long long)p->batch, (long long)p->heads_q,
             kv, (long long)p->seq_q, (long long)p->head_dim,
             p->causal != ATTN_CAUSAL_NONE ? ",causal" : "");
    return buffer;
}

void shapes_json(struct json *json, const char *key, const struct shapes *shapes) {
    char text[96];
    json_open(json, key, '[');
    for (int i = 0; i < shapes->count; i++) {
        json_text(json, NULL, shape_text(&shapes->problems[i], text, sizeof text));
    }
    json_close(json);
}

bool shapes_read(const struct json_value *list, attn_dtype dtype, struct shapes *shapes,
                 attn_error *why) {
    const size_t count = json_count_of(list);
    shapes->count = 0;
    if (count > EVOLVE_SHAPES) {
        return explain(why, "%zu shapes, expected %d at most", count, (int)EVOLVE_SHAPES);
    }
    for (size_t i = 0; i < count; i++) {
        const char *text = json_text_of(&list->as.list.items[i]);
        if (text == NULL || !shape_parse(text, dtype, &shapes->problems[i], why)) {
            return text != NULL ? false : explain(why, "a shape is no text");
        }
        shapes->count++;
    }
    return true;
}
