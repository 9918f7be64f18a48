/* SPDX-License-Identifier: Apache-2.0
 *
 * memory.c - ld, ldu, st: values between rows and memory. Also decodes the rest of the family
 * (atomic.c, address.c).
 *
 * A register may be wider than the type of a load or store: loads of signed types extend the sign,
 * others zeros; stores take the low bits.
 *
 * Invariant: memory is accessed only for lanes in `good` of memory_access. A refused lane loads a
 * zero that counts as initialised: its consequences are not reported again.
 */
#include <pthread.h>
#include <string.h>

#include "machine/describe.h"
#include "ops/memory.h"
#include "ops/ops.h"
#include "race/clock.h"

/* Moves one element of each lane in `mask` between a row and host[lane] + offset. */
typedef void move_function(void *row, unsigned char *const *host, uint32_t offset, uint32_t mask);

struct transfer_form {
    int space;
    uint32_t element, count;
    bool narrow, strong;
    uint32_t order; /* of a strong one */
    uint32_t rows[8];
    uint32_t widths[8]; /* bytes of a lane in the rows */
    bool words;         /* elements and registers have 32 bits */
    move_function *moves[8];
};

/* ---- elements -------------------------------------------------------------------------------- */

#define MOVES(name, row_type, memory_type)                                                         \
    static void load_##name(void *row, unsigned char *const *host, uint32_t offset,                \
                            uint32_t mask) {                                                       \
        row_type *to = row;                                                                        \
        for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {                                  \
            const uint32_t lane = (uint32_t)__builtin_ctz(rest);                                   \
            memory_type value;                                                                     \
            memcpy(&value, host[lane] + offset, sizeof(value));                                    \
            to[lane] = (row_type)value;                                                            \
        }                                                                                          \
    }

#define STORES(name, row_type, memory_type)                                                        \
    static void store_##name(void *row, unsigned char *const *host, uint32_t offset,               \
                             uint32_t mask) {                                                      \
        const row_type *from = row;                                                                \
        for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {                                  \
            const uint32_t lane = (uint32_t)__builtin_ctz(rest);                                   \
            const memory_type value = (memory_type)from[lane];                                     \
            memcpy(host[lane] + offset, &value, sizeof(value));                                    \
        }                                                                                          \
    }

MOVES(u8_16, uint16_t, uint8_t)
MOVES(u8_32, uint32_t, uint8_t)
MOVES(u8_64, uint64_t, uint8_t)
MOVES(s8_16, int16_t, int8_t)
MOVES(s8_32, int32_t, int8_t)
MOVES(s8_64, int64_t, int8_t)
MOVES(u16_16, uint16_t, uint16_t)
MOVES(u16_32, uint32_t, uint16_t)
MOVES(u16_64, uint64_t, uint16_t)
MOVES(s16_32, int32_t, int16_t)
MOVES(s16_64, int64_t, int16_t)
MOVES(u32_32, uint32_t, uint32_t)
MOVES(u32_64, uint64_t, uint32_t)
MOVES(s32_64, int64_t, int32_t)
MOVES(u64_64, uint64_t, uint64_t)

STORES(u8_16, uint16_t, uint8_t)
STORES(u8_32, uint32_t, uint8_t)
STORES(u8_64, uint64_t, uint8_t)
STORES(u16_16, uint16_t, uint16_t)
STORES(u16_32, uint32_t, uint16_t)
STORES(u16_64, uint64_t, uint16_t)
STORES(u32_32, uint32_t, uint32_t)
STORES(u32_64, uint64_t, uint32_t)
STORES(u64_64, uint64_t, uint64_t)

/* [bytes of the element: 1, 2, 4, 8][bytes of a lane in the row: 2, 4, 8] */
static move_function *const LOADS[4][3] = {{load_u8_16, load_u8_32, load_u8_64},
                                           {load_u16_16, load_u16_32, load_u16_64},
                                           {NULL, load_u32_32, load_u32_64},
                                           {NULL, NULL, load_u64_64}};
static move_function *const SIGNED_LOADS[4][3] = {{load_s8_16, load_s8_32, load_s8_64},
                                                  {load_u16_16, load_s16_32, load_s16_64},
                                                  {NULL, load_u32_32, load_s32_64},
                                                  {NULL, NULL, load_u64_64}};
static move_function *const STORES_TO[4][3] = {{store_u8_16, store_u8_32, store_u8_64},
                                               {store_u16_16, store_u16_32, store_u16_64},
                                               {NULL, store_u32_32, store_u32_64},
                                               {NULL, NULL, store_u64_64}};

static move_function *move_of(move_function *const table[4][3], uint32_t element, uint32_t width) {
    return table[__builtin_ctz(element)][__builtin_ctz(width) - 1];
}

/* ---- whole rows ------------------------------------------------------------------------------ */

/* 32-bit vectors of lanes side by side: every count-th word is a row's. */
static void load_words(struct warp *warp, const struct transfer_form *form,
                       const unsigned char *from) {
    for (uint32_t i = 0; i < form->count; i++) {
        uint32_t *to = row32(warp, form->rows[i]);
        for (uint32_t lane = 0; lane < LANES; lane++) {
            memcpy(&to[lane], from + 4 * ((size_t)lane * form->count + i), 4);
        }
    }
}

/* The same words for all lanes. */
static void load_one_word(struct warp *warp, const struct transfer_form *form,
                          const unsigned char *from) {
    for (uint32_t i = 0; i < form->count; i++) {
        uint32_t value, *to = row32(warp, form->rows[i]);
        memcpy(&value, from + 4 * (size_t)i, 4);
        for (uint32_t lane = 0; lane < LANES; lane++) {
            to[lane] = value;
        }
    }
}

static void store_words(struct warp *warp, const struct transfer_form *form, unsigned char *to) {
    for (uint32_t i = 0; i < form->count; i++) {
        const uint32_t *from = row32(warp, form->rows[i]);
        for (uint32_t lane = 0; lane < LANES; lane++) {
            memcpy(to + 4 * ((size_t)lane * form->count + i), &from[lane], 4);
        }
    }
}

/* Strong vectors move as a whole, though PTX does not say so: GPUs access up to 16 bytes at once,
 * and CUB's scans read a state and a value in this way while another CTA writes them. */
static pthread_mutex_t vectors = PTHREAD_MUTEX_INITIALIZER;

static void vector_begin(const struct transfer_form *form) {
    if (form->strong && form->count > 1) {
        pthread_mutex_lock(&vectors);
    }
}

static void vector_end(const struct transfer_form *form) {
    if (form->strong && form->count > 1) {
        pthread_mutex_unlock(&vectors);
    }
}

/* ---- ld, st ---------------------------------------------------------------------------------- */

static void begin(struct access *access, const struct transfer_form *form, enum access_kind kind) {
    access->space = form->space;
    access->kind = kind;
    access->proxy = PROXY_GENERIC;
    access->element = form->element;
    access->count = form->count;
    access->align = 0;
    access->agent = NULL;
    access->strong = form->strong;
    access->narrow = (form->order & ORDER_WIDE) == 0;
}

/* Nothing but __syncwarp keeps the lanes of a warp in step: under the random order some of them
 * come to a volatile access later. Returns the others. */
static uint32_t leave_behind(struct warp *warp, uint32_t mask) {
    struct cluster *cluster = warp->cta->cluster;
    if (cluster->launch->async != VGPU_ASYNC_RANDOM || cluster_random(cluster) % 4 != 0) {
        return mask;
    }
    const uint32_t late = mask & (uint32_t)cluster_random(cluster);
    if (late == 0 || late == mask) {
        return mask;
    }
    warp_lag(warp, late);
    return mask & ~late;
}

static void run_load(struct warp *warp, const struct op *op, uint32_t mask) {
    const struct transfer_form *form = op->extra;
    struct access access;
    if ((op->flags & OP_VOLATILE) != 0) {
        mask = leave_behind(warp, mask);
    }
    begin(&access, form, ACCESS_READ);
    access.strong = form->strong || (op->flags & OP_SEEDS_CAS) != 0;
    memory_addresses(warp, op, &access, op->a, form->narrow, op->imm, mask);
    if (form->strong) {
        warp->cta->cluster->polls += form->space == PTX_GLOBAL || form->space == SPACE_GENERIC;
        order_read(warp, op, &access, form->order);
    }
    memory_access(warp, op, &access);
    vector_begin(form);
    if (access.contiguous && form->element == form->widths[0] && form->count == 1) {
        memcpy(warp->rows + form->rows[0], access.host[0], (size_t)form->element * LANES);
    } else if (access.contiguous && form->words) {
        load_words(warp, form, access.host[0]);
    } else if (access.uniform && form->words) {
        load_one_word(warp, form, access.host[0]);
    } else {
        for (uint32_t i = 0; i < form->count; i++) {
            form->moves[i](warp->rows + form->rows[i], access.host, i * form->element, access.good);
        }
    }
    vector_end(form);
    const uint32_t refused = mask & ~access.good;
    for (uint32_t i = 0; i < form->count; i++) {
        FOR_LANES(lane, refused) {
            memset(warp->rows + form->rows[i] + lane * form->widths[i], 0, form->widths[i]);
        }
        set_poison(warp, form->rows[i], mask, access.poison[i]);
    }
    if (form->strong) {
        __sync_synchronize(); /* of the host: an acquire of what another cluster released */
    }
}

/* Whether addresses rise from lane to lane. */
static bool is_rising(const struct access *access) {
    bool rising = access->good == ALL_LANES;
    for (uint32_t lane = 1; lane < LANES; lane++) {
        rising &= access->address[lane] > access->address[lane - 1];
    }
    return rising;
}

/* Lanes whose values are not the bytes that they are stored to. */
static uint32_t different_lanes(const struct warp *warp, const struct transfer_form *form,
                                const struct access *access) {
    uint32_t different = 0;
    for (uint32_t i = 0; i < form->count; i++) {
        const unsigned char *row = warp->rows + form->rows[i];
        FOR_LANES(lane, access->good) {
            const unsigned char *there = access->host[lane] + i * form->element;
            const unsigned char *mine = row + lane * form->widths[i];
            const bool same = form->element == 4 ? load_4(there) == load_4(mine)
                                                 : memcmp(there, mine, form->element) == 0;
            different |= (uint32_t)!same << lane;
        }
    }
    return different;
}

static uint32_t store_changes(struct warp *warp, const struct op *op, const struct access *access) {
    const uint32_t different = different_lanes(warp, op->extra, access);
    uint32_t changed = different;
    for (uint32_t rest = different; rest != 0; rest &= rest - 1) {
        const unsigned char *there = access->host[__builtin_ctz(rest)];
        for (uint32_t others = access->good & ~changed; others != 0; others &= others - 1) {
            const uint32_t lane = (uint32_t)__builtin_ctz(others);
            changed |= (uint32_t)(access->host[lane] == there) << lane;
        }
    }
    return changed;
}

/* After a store: a lane that does not find its value again shares the address with another one. */
static void look_for_collisions(struct warp *warp, const struct op *op,
                                const struct access *access) {
    const struct transfer_form *form = op->extra;
    const uint32_t lost = different_lanes(warp, form, access);
    for (uint32_t lane = lost != 0 ? (uint32_t)__builtin_ctz(lost) + 1 : LANES; lane < LANES;
         lane++) {
        const uint32_t first = (uint32_t)__builtin_ctz(lost);
        if ((access->good >> lane & 1) != 0 && access->host[lane] == access->host[first]) {
            char place[128];
            describe_address(warp, access->space, access->address[first], place, sizeof(place));
            report(warp, op, FINDING_RACE_WARP, lost | 1U << lane,
                   &(struct finding_detail){.space = access->space,
                                            .address = access->address[first],
                                            .bytes = form->element * form->count},
                   "lanes %u and %u store different values to %s: which one stays is not defined",
                   first, lane, place);
            return;
        }
    }
}

static void run_store(struct warp *warp, const struct op *op, uint32_t mask) {
    const struct transfer_form *form = op->extra;
    struct access access;
    if ((op->flags & OP_VOLATILE) != 0) {
        mask = leave_behind(warp, mask);
    }
    begin(&access, form, ACCESS_WRITE);
    for (uint32_t i = 0; i < form->count; i++) {
        access.poison[i] = poison_of(warp, form->rows[i]);
    }
    memory_addresses(warp, op, &access, op->a, form->narrow, op->imm, mask);
    if (form->strong) {
        __sync_synchronize(); /* of the host: what was written before is seen before */
    }
    memory_access(warp, op, &access);
    vector_begin(form);
    if (access.contiguous && form->element == form->widths[0] && form->count == 1) {
        memcpy(access.host[0], warp->rows + form->rows[0], (size_t)form->element * LANES);
    } else if (access.contiguous && form->words) {
        store_words(warp, form, access.host[0]);
    } else {
        for (uint32_t i = 0; i < form->count; i++) {
            form->moves[i](warp->rows + form->rows[i], access.host, i * form->element, access.good);
        }
    }
    vector_end(form);
    if (!access.contiguous && !form->strong && !is_rising(&access) && warp->clock != NULL) {
        look_for_collisions(warp, op, &access);
    }
    if (form->strong) {
        order_write(warp, op, &access, form->order);
    }
}

/* ---- decoding -------------------------------------------------------------------------------- */

int memory_space(const struct ptx_instruction *in) {
    static const struct {
        const char *name;
        int space;
    } SPACES[] = {{"global", PTX_GLOBAL},      {"shared", PTX_SHARED},
                  {"shared::cta", PTX_SHARED}, {"shared::cluster", SPACE_SHARED_CLUSTER},
                  {"local", PTX_LOCAL},        {"const", PTX_CONST},
                  {"param", PTX_PARAM},        {"param::entry", PTX_PARAM},
                  {"param::func", PTX_PARAM}};
    for (size_t i = 0; i < sizeof(SPACES) / sizeof(SPACES[0]); i++) {
        if (ptx_has(in, SPACES[i].name)) {
            return SPACES[i].space;
        }
    }
    return SPACE_GENERIC;
}

#define ORDER_NAMES "weak volatile relaxed acquire release mmio cta cluster gpu sys "
#define CACHE_NAMES                                                                                \
    "ca cg cs lu cv wb wt nc v2 v4 v8 L1::evict_normal L1::evict_unchanged L1::evict_first "       \
    "L1::evict_last L1::no_allocate L2::evict_normal L2::evict_first L2::evict_last "              \
    "L2::cache_hint L2::64B L2::128B L2::256B"

uint32_t memory_order(const struct ptx_instruction *in) {
    const bool both = ptx_has(in, "acq_rel");
    const bool wide = !ptx_has(in, "cta") && !ptx_has(in, "cluster");
    return (both || ptx_has(in, "acquire") ? ORDER_ACQUIRE : 0U) |
           (both || ptx_has(in, "release") ? ORDER_RELEASE : 0U) | (wide ? ORDER_WIDE : 0U);
}

uint32_t memory_vector(const struct ptx_instruction *in) {
    return ptx_has(in, "v8") ? 8 : ptx_has(in, "v4") ? 4 : ptx_has(in, "v2") ? 2 : 1;
}

static bool is_signed(enum ptx_type type) {
    return type == PTX_S8 || type == PTX_S16 || type == PTX_S32 || type == PTX_S64;
}

static bool is_loadable(enum ptx_type type) {
    return (type >= PTX_B8 && type <= PTX_S64) || type == PTX_F32 || type == PTX_F64;
}

/* A register of 128 bits is a vector of two rows. */
static bool decode_halves(struct decoder *decoder, struct transfer_form *form,
                          const struct ptx_operand *operand, bool load) {
    if (form->count != 1) {
        return decode_fail(decoder, "a vector of values of 128 bits");
    }
    form->rows[0] = load ? decode_result(decoder, operand, PTX_B128)
                         : decode_source(decoder, operand, PTX_B128);
    form->rows[1] = form->rows[0] + HIGH_HALF;
    form->element = form->widths[0] = form->widths[1] = 8;
    form->count = 2;
    form->moves[0] = form->moves[1] = load ? load_u64_64 : store_u64_64;
    return form->rows[0] != 0;
}

/* The registers, or for a store also constants, that the values are in. */
static bool decode_rows(struct decoder *decoder, struct transfer_form *form,
                        const struct ptx_operand *operand, enum ptx_type type, bool load) {
    if (type == PTX_B128) {
        return decode_halves(decoder, form, operand, load);
    }
    const bool vector = operand->kind == PTX_OPERAND_VECTOR;
    if ((vector ? operand->part_count : 1) != form->count) {
        return decode_fail(decoder, "%u values are expected", form->count);
    }
    for (uint32_t i = 0; i < form->count; i++) {
        const struct ptx_operand *part = vector ? &operand->parts[i] : operand;
        form->rows[i] =
            load ? decode_result(decoder, part, type) : decode_source(decoder, part, type);
        if (form->rows[i] == 0) {
            return false;
        }
        const uint32_t lane = decode_width(decoder, part);
        const uint32_t width = lane != 0 ? lane : form->element < 2 ? 2 : form->element;
        form->widths[i] = width;
        form->words = form->words && width == 4;
        form->moves[i] = move_of(!load             ? STORES_TO
                                 : is_signed(type) ? SIGNED_LOADS
                                                   : LOADS,
                                 form->element, width);
        if (form->moves[i] == NULL) {
            return decode_fail(decoder, "a register of %u bits for a value of %u", 8 * width,
                               8 * form->element);
        }
    }
    return true;
}

static bool decode_transfer(struct decoder *decoder, const struct ptx_instruction *in,
                            struct op *op, bool load) {
    const enum ptx_type type = ptx_modifier_type(in, 0);
    struct transfer_form *form = decode_alloc(decoder, sizeof(*form));
    if (form == NULL || !decode_modifiers(decoder, in, 0, SPACE_NAMES ORDER_NAMES CACHE_NAMES)) {
        return false;
    }
    const bool hint = ptx_has(in, "L2::cache_hint");
    if (!is_loadable(type) || ptx_modifier_type(in, 1) != PTX_NONE ||
        in->operand_count != (hint ? 3U : 2U)) {
        return decode_fail(decoder, "this form of %s is not known", in->opcode);
    }
    const struct ptx_operand *address = &in->operands[load ? 1 : 0];
    const struct ptx_operand *value = &in->operands[load ? 0 : 1];
    form->space = memory_space(in);
    form->element = ptx_type_size(type);
    form->count = memory_vector(in);
    form->words = form->element == 4;
    if (form->element * form->count > 32) {
        return decode_fail(decoder, "a vector of more than 256 bits");
    }
    form->strong = ptx_has(in, "volatile") || ptx_has(in, "relaxed") || ptx_has(in, "acquire") ||
                   ptx_has(in, "release") || ptx_has(in, "mmio");
    form->order = memory_order(in);
    op->extra = form;
    op->run = load ? run_load : run_store;
    op->changes = load ? NULL : store_changes;
    op->flags = OP_OWN_POISON | (ptx_has(in, "nc") ? (uint32_t)OP_CACHED : 0);
    if (ptx_has(in, "volatile") && (form->space == PTX_SHARED || form->space == SPACE_GENERIC)) {
        op->flags |= OP_VOLATILE | OP_CONTROL;
    }
    return decode_rows(decoder, form, value, type, load) &&
           decode_address(decoder, address, &op->a, &form->narrow, &op->imm);
}

bool decode_memory(struct decoder *decoder, const struct ptx_instruction *in, struct op *op) {
    const char *name = in->opcode;
    if (strcmp(name, "ld") == 0 || strcmp(name, "ldu") == 0) {
        return decode_transfer(decoder, in, op, true);
    }
    if (strcmp(name, "st") == 0) {
        return decode_transfer(decoder, in, op, false);
    }
    if (strcmp(name, "atom") == 0 || strcmp(name, "red") == 0) {
        return decode_atomic(decoder, in, op);
    }
    return decode_address_op(decoder, in, op);
}
