/* SPDX-License-Identifier: Apache-2.0
 *
 * store_async.c - st.async and red.async: stores and reductions to shared memory of the cluster,
 * which complete bytes on an mbarrier in the CTA of the destination.
 *
 * Invariant: each lane is an operation of its own. It completes its bytes exactly once, also if its
 * destination was refused, so that no thread waits forever.
 */
#include "async/bulk.h"

#include <stdlib.h>
#include <string.h>

#include "memory/memory.h"
#include "race/clock.h"
#include "report/finding.h"

enum { MAX_VALUES = 4 };

/* op->extra */
struct form {
    struct async_address to, barrier;
    uint32_t element, count;
    uint32_t rows[MAX_VALUES];
    enum reduction reduction;
    enum ptx_type type; /* of a reduction */
};

/* The pending store of one lane. */
struct store {
    uint32_t lane;
    uint64_t to, barrier;
    unsigned char bytes[MAX_VALUES * 8];
    bool poison[MAX_VALUES];
    struct agent *agent;
};

static struct access access_of(const struct op *op, const struct store *store,
                               enum access_kind kind) {
    const struct form *form = op->extra;
    struct access access = {.space = SPACE_SHARED_CLUSTER,
                            .kind = kind,
                            .element = form->element,
                            .count = form->count,
                            .mask = 1U << store->lane,
                            .agent = store->agent};
    access.address[store->lane] = store->to;
    for (uint32_t i = 0; i < form->count; i++) {
        access.poison[i] = store->poison[i] ? access.mask : 0;
    }
    return access;
}

static void complete(struct warp *warp, const struct op *op, void *state) {
    struct store *store = state;
    const struct form *form = op->extra;
    const uint32_t bytes = form->element * form->count;
    const bool reduces = form->reduction != REDUCE_NONE;
    struct access access = access_of(op, store, reduces ? ACCESS_ATOMIC : ACCESS_WRITE);
    memory_access(warp, op, &access);
    if (access.good != 0 && reduces) {
        reduce_bytes(access.host[store->lane], store->bytes, bytes, form->reduction, form->type);
        memory_set_written(warp, &access, access.good, !store->poison[0] && access.poison[0] == 0);
    } else if (access.good != 0) {
        memcpy(access.host[store->lane], store->bytes, bytes);
    }
    mbarrier_complete_tx(warp, op, store->barrier, bytes, store->agent);
    free(store);
}

static void issue(struct warp *warp, const struct op *op, uint32_t lane) {
    const struct form *form = op->extra;
    struct store *store = calloc(1, sizeof *store);
    if (store == NULL) {
        report(warp, op, FINDING_MEMORY_LIMIT, 1U << lane, NULL, "no memory for a store");
        cluster_stop(warp->cta->cluster);
        return;
    }
    store->lane = lane;
    store->to = async_lane_address(warp, &form->to, lane);
    store->barrier = async_lane_address(warp, &form->barrier, lane);
    for (uint32_t i = 0; i < form->count; i++) {
        memcpy(store->bytes + i * form->element, warp->rows + form->rows[i] + lane * form->element,
               form->element);
        store->poison[i] = (poison_of(warp, form->rows[i]) >> lane & 1) != 0;
    }
    store->agent = agent_start(warp, op);
    if (form->reduction == REDUCE_NONE) { /* reductions may meet at one word */
        struct access access = access_of(op, store, ACCESS_ISSUE_WRITE);
        memory_access(warp, op, &access);
    }
    async_forget(async_add(warp, op, complete, store));
}

static void run_store(struct warp *warp, const struct op *op, uint32_t mask) {
    const struct form *form = op->extra;
    async_check_poison(warp, op, form->to.row, mask, "the destination's address");
    async_check_poison(warp, op, form->barrier.row, mask, "the address of the mbarrier");
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        issue(warp, op, (uint32_t)__builtin_ctz(rest));
    }
}

/* ---- decoding -------------------------------------------------------------------------------- */

static bool decode_operation(struct decoder *decoder, const struct ptx_instruction *in,
                             struct form *form) {
    if (strcmp(in->opcode, "red") != 0) {
        return form->count == 1 || form->element * form->count <= 16 ||
               decode_fail(decoder, "a vector of more than 128 bits");
    }
    if (!reduce_named(in, &form->reduction)) {
        return decode_fail(decoder, "red.async needs an operation");
    }
    return (form->count == 1 && reduce_has_type(form->reduction, form->type, true)) ||
           decode_fail(decoder, "this reduction does not exist for this type");
}

bool decode_store_async(struct decoder *decoder, const struct ptx_instruction *in, struct op *op) {
    static const char STORE[] =
        "async weak shared::cluster mbarrier::complete_tx::bytes v2 v4 b32 b64 u32 u64 "
        "s32 s64 f32 f64";
    static const char REDUCE[] =
        "async relaxed cluster shared::cluster mbarrier::complete_tx::bytes add min max "
        "inc dec and or xor u32 s32 u64 b32";
    struct form *form = decode_alloc(decoder, sizeof *form);
    if (form == NULL ||
        !decode_modifiers(decoder, in, 0, strcmp(in->opcode, "st") == 0 ? STORE : REDUCE)) {
        return false;
    }
    form->type = ptx_modifier_type(in, 0);
    form->element = ptx_type_size(form->type);
    form->count = ptx_has(in, "v4") ? 4 : ptx_has(in, "v2") ? 2 : 1;
    op->extra = form;
    op->run = run_store;
    op->flags = OP_OWN_POISON;
    const struct ptx_operand *value = in->operand_count == 3 ? &in->operands[1] : NULL;
    const bool vector = value != NULL && value->kind == PTX_OPERAND_VECTOR;
    if (value == NULL || form->type == PTX_NONE || ptx_modifier_type(in, 1) != PTX_NONE ||
        !ptx_has(in, "mbarrier::complete_tx::bytes") || !ptx_has(in, "shared::cluster") ||
        (vector ? value->part_count : 1) != form->count) {
        return decode_fail(decoder, "this form of %s.async is not known", in->opcode);
    }
    for (uint32_t i = 0; i < form->count; i++) {
        form->rows[i] = decode_source(decoder, vector ? &value->parts[i] : value, form->type);
        if (form->rows[i] == 0) {
            return false;
        }
    }
    return decode_operation(decoder, in, form) &&
           async_decode_address(decoder, &in->operands[0], &form->to) &&
           async_decode_address(decoder, &in->operands[2], &form->barrier);
}
