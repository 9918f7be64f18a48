/* SPDX-License-Identifier: Apache-2.0
 *
 * atomic.c - atom and red, lane by lane from 0 on. Their modifiers decide what they order
 * (race/clock.c).
 *
 * Invariant: no update is lost and no value is torn by other host threads: memory changes only by
 * compare-and-exchange of the whole element.
 */
#include <pthread.h>
#include <string.h>

#include "machine/describe.h"
#include "machine/device.h"
#include "ops/formats.h"
#include "ops/memory.h"
#include "race/clock.h"

struct atomic_form {
    int space;
    uint32_t element, count; /* bytes; of a vector */
    bool narrow, returns;
    bool replaces; /* exch: the old value does not matter */
    bool halves;   /* one element of 128 bits, in two rows */
    uint32_t order;
    atomic_function *function;
    uint32_t rows[8], b[8], c; /* results, operands; c: of cas */
};

/* ---- operations ------------------------------------------------------------------------------ */

#define ATOMIC(name, expression)                                                                   \
    static uint64_t name(uint64_t old, uint64_t b, uint64_t c) {                                   \
        (void)old;                                                                                 \
        (void)b;                                                                                   \
        (void)c;                                                                                   \
        return (expression);                                                                       \
    }
#define SMALLER(type) (uint64_t)((type)old < (type)b ? (type)old : (type)b)
#define LARGER(type) (uint64_t)((type)old > (type)b ? (type)old : (type)b)

ATOMIC(add_int, old + b)
ATOMIC(min_u32, SMALLER(uint32_t))
ATOMIC(min_s32, SMALLER(int32_t))
ATOMIC(min_u64, SMALLER(uint64_t))
ATOMIC(min_s64, SMALLER(int64_t))
ATOMIC(max_u32, LARGER(uint32_t))
ATOMIC(max_s32, LARGER(int32_t))
ATOMIC(max_u64, LARGER(uint64_t))
ATOMIC(max_s64, LARGER(int64_t))
ATOMIC(and_bits, old &b)
ATOMIC(or_bits, old | b)
ATOMIC(xor_bits, old ^ b)
ATOMIC(exchange, b)
ATOMIC(compare_and_swap, old == b ? c : old)
ATOMIC(increment, (uint32_t)old >= (uint32_t)b ? 0 : old + 1)
ATOMIC(decrement, (uint32_t)old == 0 || (uint32_t)old > (uint32_t)b ? b : old - 1)

static uint64_t add_f32(uint64_t old, uint64_t b, uint64_t c) {
    (void)c;
    const uint32_t sum = bits_of_f32(f32_from_bits((uint32_t)old) + f32_from_bits((uint32_t)b));
    return f32_is_nan(sum) ? F32_NAN : sum;
}

/* Global memory's adders do not know subnormal numbers. */
static uint64_t add_f32_flushed(uint64_t old, uint64_t b, uint64_t c) {
    return f32_flush((uint32_t)add_f32(f32_flush((uint32_t)old), f32_flush((uint32_t)b), c));
}

static uint64_t add_f64(uint64_t old, uint64_t b, uint64_t c) {
    (void)c;
    const uint64_t sum = bits_of_f64(f64_from_bits(old) + f64_from_bits(b));
    return f64_is_nan(sum) ? F64_NAN : sum;
}

/* A sum of two 16-bit numbers in single precision, rounded once more, is rounded right. */
static uint64_t add_f16(uint64_t old, uint64_t b, uint64_t c) {
    (void)c;
    return f16_from_f32(f32_from_f16((uint16_t)old) + f32_from_f16((uint16_t)b));
}

static uint64_t add_bf16(uint64_t old, uint64_t b, uint64_t c) {
    (void)c;
    return bf16_from_f32(f32_from_bf16((uint16_t)old) + f32_from_bf16((uint16_t)b));
}

/* NaN only if both are; -0 is less than +0. */
static float min_of(float x, float y, bool larger) {
    if (x != x || y != y) {
        return x != x ? y : x;
    }
    if (x == y) {
        const bool negative = bits_of_f32(x) >> 31 != 0;
        return negative != larger ? x : y;
    }
    return (x < y) != larger ? x : y;
}

ATOMIC(min_f16, f16_from_f32(min_of(f32_from_f16((uint16_t)old), f32_from_f16((uint16_t)b), false)))
ATOMIC(max_f16, f16_from_f32(min_of(f32_from_f16((uint16_t)old), f32_from_f16((uint16_t)b), true)))
ATOMIC(min_bf16,
       bf16_from_f32(min_of(f32_from_bf16((uint16_t)old), f32_from_bf16((uint16_t)b), false)))
ATOMIC(max_bf16,
       bf16_from_f32(min_of(f32_from_bf16((uint16_t)old), f32_from_bf16((uint16_t)b), true)))

#define PAIR(name, half)                                                                           \
    static uint64_t name(uint64_t old, uint64_t b, uint64_t c) {                                   \
        return half(old & 0xffff, b & 0xffff, c) | half(old >> 16 & 0xffff, b >> 16 & 0xffff, c)   \
                                                       << 16;                                      \
    }
PAIR(add_f16x2, add_f16)
PAIR(add_bf16x2, add_bf16)
PAIR(min_f16x2, min_f16)
PAIR(max_f16x2, max_f16)
PAIR(min_bf16x2, min_bf16)
PAIR(max_bf16x2, max_bf16)

/* ---- memory ---------------------------------------------------------------------------------- */

#define UPDATE(type)                                                                               \
    {                                                                                              \
        type *at = (type *)(void *)host;                                                           \
        type old = __atomic_load_n(at, __ATOMIC_SEQ_CST);                                          \
        while (!__atomic_compare_exchange_n(at, &old, (type)function(old, b, c), false,            \
                                            __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {                 \
        }                                                                                          \
        return old;                                                                                \
    }

uint64_t atomic_update(unsigned char *host, uint32_t bytes, atomic_function *function, uint64_t b,
                       uint64_t c) {
    switch (bytes) {
    case 2: UPDATE(uint16_t)
    case 4: UPDATE(uint32_t)
    default: UPDATE(uint64_t)
    }
}

static uint64_t read_lane(struct warp *warp, uint32_t row, uint32_t bytes, uint32_t lane) {
    switch (bytes) {
    case 2: return row16(warp, row)[lane];
    case 4: return row32(warp, row)[lane];
    default: return row64(warp, row)[lane];
    }
}

static void write_lane(struct warp *warp, uint32_t row, uint32_t bytes, uint32_t lane,
                       uint64_t value) {
    switch (bytes) {
    case 2: row16(warp, row)[lane] = (uint16_t)value; break;
    case 4: row32(warp, row)[lane] = (uint32_t)value; break;
    default: row64(warp, row)[lane] = value; break;
    }
}

static bool is_global(const struct warp *warp, const unsigned char *host) {
    const struct device_memory *memory = warp->cta->launch->gpu->memory;
    return (uintptr_t)host - (uintptr_t)memory->base < memory->bytes;
}

static uint32_t operand_poison(const struct warp *warp, const struct atomic_form *form) {
    uint32_t poison = form->c != 0 ? poison_of(warp, form->c) : 0;
    poison |= form->c != 0 && form->halves ? poison_of(warp, form->c + HIGH_HALF) : 0;
    for (uint32_t i = 0; i < form->count; i++) {
        poison |= poison_of(warp, form->b[i]);
    }
    return poison;
}

/* What is written to global memory must be known; elsewhere the bytes become unwritten. */
static void follow_poison(struct warp *warp, const struct op *op, const struct access *access,
                          uint32_t operands) {
    const struct atomic_form *form = op->extra;
    uint32_t unknown = operands, global = 0;
    for (uint32_t i = 0; i < form->count && !form->replaces; i++) {
        unknown |= access->poison[i];
    }
    unknown &= access->good;
    FOR_LANES(lane, unknown) {
        global |= (uint32_t)is_global(warp, access->host[lane]) << lane;
    }
    if (global != 0) {
        const uint64_t address = access->address[__builtin_ctz(global)];
        char place[128];
        describe_address(warp, access->space, address, place, sizeof(place));
        report_uninitialised(
            warp, op, FINDING_UNINITIALISED, global,
            &(struct finding_detail){
                .space = PTX_GLOBAL, .address = address, .bytes = form->element * form->count},
            (operands & global) != 0
                ? "the operand of this atomic on %s comes from uninitialised memory"
                : "this atomic updates %s, which is uninitialised",
            place);
    }
    memory_set_written(warp, access, access->good & (~unknown | global), true);
    memory_set_written(warp, access, unknown & ~global, false);
}

/* exch and cas of 128 bits: two elements at once. They exclude only each other. */
static void run_lane_128(struct warp *warp, const struct atomic_form *form, unsigned char *host,
                         uint32_t lane) {
    static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
    uint64_t old[2], b[2], c[2] = {0, 0};
    for (uint32_t i = 0; i < 2; i++) {
        b[i] = row64(warp, form->b[i])[lane];
        c[i] = form->c != 0 ? row64(warp, form->c + i * HIGH_HALF)[lane] : 0;
    }
    pthread_mutex_lock(&one_at_a_time);
    memcpy(old, host, sizeof old);
    if (form->replaces) {
        memcpy(host, b, sizeof b);
    } else if (old[0] == b[0] && old[1] == b[1]) {
        memcpy(host, c, sizeof c);
    }
    pthread_mutex_unlock(&one_at_a_time);
    row64(warp, form->rows[0])[lane] = old[0];
    row64(warp, form->rows[1])[lane] = old[1];
}

static void run_lane(struct warp *warp, const struct atomic_form *form, unsigned char *host,
                     uint32_t lane) {
    struct cluster *cluster = warp->cta->cluster;
    if (form->halves) {
        cluster->changed = true;
        run_lane_128(warp, form, host, lane);
        return;
    }
    const bool flush = form->function == add_f32 && is_global(warp, host);
    for (uint32_t i = 0; i < form->count; i++) {
        const uint64_t b = read_lane(warp, form->b[i], form->element, lane);
        const uint64_t c = form->c != 0 ? read_lane(warp, form->c, form->element, lane) : 0;
        const uint64_t old = atomic_update(host + i * form->element, form->element,
                                           flush ? add_f32_flushed : form->function, b, c);
        if (cluster->probed) {
            const uint64_t left = form->function(old, b, c) ^ old;
            cluster->changed |= left << (64 - 8 * form->element) != 0;
        }
        if (form->returns) {
            write_lane(warp, form->rows[i], form->element, lane, old);
        }
    }
}

static void run_atomic(struct warp *warp, const struct op *op, uint32_t mask) {
    const struct atomic_form *form = op->extra;
    struct access access;
    memset(&access, 0, sizeof(access));
    access.space = form->space;
    access.kind = ACCESS_ATOMIC;
    access.narrow = (form->order & ORDER_WIDE) == 0;
    access.element = form->element;
    access.count = form->count;
    memory_addresses(warp, op, &access, op->a, form->narrow, op->imm, mask);
    if (form->returns) {
        order_read(warp, op, &access, form->order);
    }
    memory_access(warp, op, &access);
    if ((warp->cta->launch->checks & VGPU_CHECK_INIT) != 0) {
        follow_poison(warp, op, &access, operand_poison(warp, form));
    }
    FOR_LANES(lane, access.good) {
        run_lane(warp, form, access.host[lane], lane);
    }
    order_write(warp, op, &access, form->order);
    for (uint32_t i = 0; form->returns && i < form->count; i++) {
        for (uint32_t rest = mask & ~access.good; rest != 0; rest &= rest - 1) {
            write_lane(warp, form->rows[i], form->element, (uint32_t)__builtin_ctz(rest), 0);
        }
        set_poison(warp, form->rows[i], mask, access.poison[i]);
    }
}

/* ---- decoding -------------------------------------------------------------------------------- */

#define T(name) (1U << PTX_##name)

static const struct {
    const char *name;
    uint32_t types;
    atomic_function *function;
    bool vector; /* only as one */
} OPERATIONS[] = {
    {"add", T(U32) | T(S32) | T(U64) | T(S64), add_int, false},
    {"add", T(F32), add_f32, false},
    {"add", T(F64), add_f64, false},
    {"add", T(F16), add_f16, false},
    {"add", T(BF16), add_bf16, false},
    {"add", T(F16X2), add_f16x2, false},
    {"add", T(BF16X2), add_bf16x2, false},
    {"min", T(U32), min_u32, false},
    {"min", T(S32), min_s32, false},
    {"min", T(U64), min_u64, false},
    {"min", T(S64), min_s64, false},
    {"max", T(U32), max_u32, false},
    {"max", T(S32), max_s32, false},
    {"max", T(U64), max_u64, false},
    {"max", T(S64), max_s64, false},
    {"min", T(F16), min_f16, true},
    {"max", T(F16), max_f16, true},
    {"min", T(BF16), min_bf16, true},
    {"max", T(BF16), max_bf16, true},
    {"min", T(F16X2), min_f16x2, true},
    {"max", T(F16X2), max_f16x2, true},
    {"min", T(BF16X2), min_bf16x2, true},
    {"max", T(BF16X2), max_bf16x2, true},
    {"and", T(B32) | T(B64), and_bits, false},
    {"or", T(B32) | T(B64), or_bits, false},
    {"xor", T(B32) | T(B64), xor_bits, false},
    {"exch", T(B32) | T(B64) | T(B128), exchange, false},
    {"cas", T(B16) | T(B32) | T(B64) | T(B128), compare_and_swap, false},
    {"inc", T(U32), increment, false},
    {"dec", T(U32), decrement, false},
};

atomic_function *atomic_in_global(const char *name, enum ptx_type type) {
    for (size_t i = 0; i < sizeof(OPERATIONS) / sizeof(OPERATIONS[0]); i++) {
        if (strcmp(name, OPERATIONS[i].name) == 0 && (OPERATIONS[i].types >> type & 1) != 0) {
            atomic_function *function = OPERATIONS[i].function;
            return function == add_f32 ? add_f32_flushed : function;
        }
    }
    return NULL;
}

static bool find_operation(struct atomic_form *form, const struct ptx_instruction *in) {
    const enum ptx_type type = ptx_modifier_type(in, 0);
    for (size_t i = 0; i < sizeof(OPERATIONS) / sizeof(OPERATIONS[0]); i++) {
        if (ptx_has(in, OPERATIONS[i].name) && (OPERATIONS[i].types >> type & 1) != 0 &&
            (form->count > 1 || !OPERATIONS[i].vector)) {
            form->function = OPERATIONS[i].function;
            form->replaces = form->function == exchange;
            return ptx_modifier_type(in, 1) == PTX_NONE;
        }
    }
    return false;
}

/* Is the vector one that PTX has: of floats, in global memory, 128 bits at most? */
static bool is_vector_form(const struct atomic_form *form, enum ptx_type type) {
    const bool is_float = type == PTX_F32 || type == PTX_F16 || type == PTX_BF16 ||
                          type == PTX_F16X2 || type == PTX_BF16X2;
    return form->count == 1 || (is_float && form->element * form->count <= 16 &&
                                (form->space == PTX_GLOBAL || form->space == SPACE_GENERIC));
}

/* One value, or a vector of them. */
static bool decode_values(struct decoder *decoder, const struct ptx_operand *operand,
                          enum ptx_type type, uint32_t count, bool result, uint32_t *rows) {
    const bool vector = operand->kind == PTX_OPERAND_VECTOR;
    if (type == PTX_B128) {
        rows[0] =
            result ? decode_result(decoder, operand, type) : decode_source(decoder, operand, type);
        rows[1] = rows[0] + HIGH_HALF;
        return rows[0] != 0;
    }
    if (operand->kind != PTX_OPERAND_SINK && (vector ? operand->part_count : 1) != count) {
        return decode_fail(decoder, "%u values are expected", count);
    }
    for (uint32_t i = 0; i < count; i++) {
        const struct ptx_operand *part = vector ? &operand->parts[i] : operand;
        rows[i] = result ? decode_result(decoder, part, type) : decode_source(decoder, part, type);
        if (rows[i] == 0) {
            return false;
        }
    }
    return true;
}

bool decode_atomic(struct decoder *decoder, const struct ptx_instruction *in, struct op *op) {
    const enum ptx_type type = ptx_modifier_type(in, 0);
    struct atomic_form *form = decode_alloc(decoder, sizeof(*form));
    if (form == NULL ||
        !decode_modifiers(decoder, in, 0,
                          "* relaxed acquire release acq_rel cta cluster gpu sys global shared "
                          "shared::cta shared::cluster add min max and or xor exch cas inc dec "
                          "noftz v2 v4 v8 L2::cache_hint")) {
        return false;
    }
    form->space = memory_space(in);
    form->order = memory_order(in);
    form->count = memory_vector(in);
    form->element = ptx_type_size(type);
    form->returns = strcmp(in->opcode, "atom") == 0;
    const uint32_t first = form->returns ? 1 : 0;
    const bool swaps = ptx_has(in, "cas");
    const uint32_t wanted = first + 2 + swaps + ptx_has(in, "L2::cache_hint");
    if (!find_operation(form, in) || !is_vector_form(form, type) || in->operand_count != wanted ||
        (!form->returns && (swaps || ptx_has(in, "exch")))) {
        return decode_fail(decoder, "this form of %s is not known", in->opcode);
    }
    if (type == PTX_B128) {
        form->halves = true;
        form->element = 8;
        form->count = 2;
    }
    op->extra = form;
    op->run = run_atomic;
    op->flags = OP_OWN_POISON;
    if (swaps) {
        form->c = decode_source(decoder, &in->operands[first + 2], type);
    }
    return (!swaps || form->c != 0) &&
           (!form->returns ||
            decode_values(decoder, &in->operands[0], type, form->count, true, form->rows)) &&
           decode_values(decoder, &in->operands[first + 1], type, form->count, false, form->b) &&
           decode_address(decoder, &in->operands[first], &op->a, &form->narrow, &op->imm);
}
