/* SPDX-License-Identifier: Apache-2.0
 *
 * bulk_ops.c - decodes the forms of cp.async.bulk, cp.reduce.async.bulk and prefetch.tensormap.
 *
 * Invariant: a combination of spaces, completion, reduction and type that PTX does not have, or
 * that bulk.c cannot do (im2col, masks of bytes, changes of tensor maps), is refused.
 */
#include "async/bulk.h"

#include <string.h>

/* Spaces in the order in which they are written: destination, then source. */
static uint32_t spaces_of(const struct ptx_instruction *in, const char *spaces[2]) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < in->modifier_count; i++) {
        const char *name = in->modifiers[i];
        const bool is_space = strcmp(name, "global") == 0 || strcmp(name, "shared::cta") == 0 ||
                              strcmp(name, "shared::cluster") == 0;
        if (is_space && count < 2) {
            spaces[count] = name;
        }
        count += is_space;
    }
    return count;
}

static bool decode_kind(struct decoder *decoder, const struct ptx_instruction *in,
                        struct bulk_form *form) {
    const char *spaces[2] = {"", ""};
    const uint32_t count = spaces_of(in, spaces);
    const bool to_global = strcmp(spaces[0], "global") == 0;
    const bool from_global = strcmp(spaces[1], "global") == 0;
    const bool from_cta = strcmp(spaces[1], "shared::cta") == 0;
    const bool barrier = ptx_has(in, "mbarrier::complete_tx::bytes");
    const bool group = ptx_has(in, "bulk_group");
    const bool reduces = form->reduction != REDUCE_NONE;
    form->shared_space = PTX_SHARED;
    if (ptx_has(in, "prefetch")) {
        form->kind = BULK_PREFETCH;
        return (count == 1 && to_global && ptx_has(in, "L2") && !barrier && !group && !reduces) ||
               decode_fail(decoder, "a prefetch is cp.async.bulk.prefetch{.tensor}.L2.global");
    }
    if (count == 2 && to_global && from_cta && group && !barrier) {
        form->kind = BULK_STORE;
        return true;
    }
    if (count == 2 && !to_global && (from_global || from_cta) && barrier && !group) {
        const bool cluster = strcmp(spaces[0], "shared::cluster") == 0;
        form->kind = from_global ? BULK_LOAD : BULK_SHARED;
        form->shared_space = cluster ? SPACE_SHARED_CLUSTER : (int)PTX_SHARED;
        if ((from_global || (cluster && form->rank == 0)) && !(from_global && reduces)) {
            return true;
        }
    }
    return decode_fail(decoder,
                       "unknown combination of spaces and completion: expected a load with "
                       "mbarrier::complete_tx::bytes or a store with bulk_group");
}

static bool decode_reduction(struct decoder *decoder, const struct ptx_instruction *in,
                             struct bulk_form *form) {
    if (!reduce_named(in, &form->reduction)) {
        return decode_fail(decoder, "cp.reduce needs an operation");
    }
    form->type = ptx_modifier_type(in, 0);
    return true;
}

static bool check_reduction(struct decoder *decoder, const struct ptx_instruction *in,
                            const struct bulk_form *form) {
    if (form->rank > 0) {
        return form->type == PTX_NONE ||
               decode_fail(decoder, "the type of a tensor is in its map, not in the instruction");
    }
    if (!reduce_has_type(form->reduction, form->type, form->kind == BULK_SHARED)) {
        return decode_fail(decoder, "this reduction does not exist for this type");
    }
    const bool half_add = form->reduction == REDUCE_ADD && ptx_type_size(form->type) == 2;
    return ptx_has(in, "noftz") == half_add ||
           decode_fail(decoder, ".noftz goes with .add.f16 and .add.bf16, and must be there");
}

static bool decode_rank(struct decoder *decoder, const struct ptx_instruction *in,
                        struct bulk_form *form) {
    static const char *const NAMES[] = {"1d", "2d", "3d", "4d", "5d", NULL};
    uint32_t index = 0;
    const bool has_rank = decode_choice(in, NAMES, &index);
    if (has_rank != ptx_has(in, "tensor")) {
        return decode_fail(decoder, ".tensor goes with .1d to .5d");
    }
    form->rank = has_rank ? index + 1 : 0;
    return true;
}

/* [map, {c0, c1, ...}] or [address] */
static bool decode_global(struct decoder *decoder, const struct ptx_operand *operand,
                          struct bulk_form *form) {
    if (!async_decode_address(decoder, operand, &form->global)) {
        return false;
    }
    if (form->rank == 0) {
        return operand->part_count == 1 || decode_fail(decoder, "coordinates without a tensor");
    }
    if (operand->part_count != 2 || operand->parts[1].kind != PTX_OPERAND_VECTOR ||
        operand->parts[1].part_count != form->rank) {
        return decode_fail(decoder, "expected [tensor map, {%u coordinates}]", form->rank);
    }
    for (uint32_t i = 0; i < form->rank; i++) {
        form->coordinates[i] = decode_source(decoder, &operand->parts[1].parts[i], PTX_S32);
        if (form->coordinates[i] == 0) {
            return false;
        }
    }
    return true;
}

/* Operands, in their order: load and shared: [shared] [global] size? [barrier] mask? policy?
 * store: [global] [shared] size? policy?   prefetch: [global] size? policy? */
static bool decode_operands(struct decoder *decoder, const struct ptx_instruction *in,
                            struct bulk_form *form) {
    const bool signals = form->kind == BULK_LOAD || form->kind == BULK_SHARED;
    const bool multicast = ptx_has(in, "multicast::cluster");
    const bool hint = ptx_has(in, "L2::cache_hint");
    const uint32_t expected =
        (form->kind == BULK_PREFETCH ? 1U : 2U) + (form->rank == 0) + signals + multicast + hint;
    uint32_t next = 0;
    if (in->operand_count != expected) {
        return decode_fail(decoder, "this form takes %u operands, there are %u", expected,
                           in->operand_count);
    }
    if (multicast && (form->kind != BULK_LOAD || form->shared_space == PTX_SHARED)) {
        return decode_fail(decoder, ".multicast::cluster goes with loads to shared::cluster");
    }
    if (signals && !async_decode_address(decoder, &in->operands[next++], &form->shared)) {
        return false;
    }
    if (!decode_global(decoder, &in->operands[next++], form)) {
        return false;
    }
    if (form->kind == BULK_STORE &&
        !async_decode_address(decoder, &in->operands[next++], &form->shared)) {
        return false;
    }
    if (form->rank == 0 &&
        (form->size = decode_source(decoder, &in->operands[next++], PTX_U32)) == 0) {
        return false;
    }
    if (signals && !async_decode_address(decoder, &in->operands[next++], &form->barrier)) {
        return false;
    }
    if (multicast &&
        (form->multicast = decode_source(decoder, &in->operands[next++], PTX_U16)) == 0) {
        return false;
    }
    return !hint || decode_source(decoder, &in->operands[next], PTX_B64) != 0;
}

static bool decode_group(struct decoder *decoder, const struct ptx_instruction *in, struct op *op) {
    if (strcmp(in->modifiers[2], "commit_group") == 0) {
        op->run = bulk_run_commit;
        return (in->modifier_count == 3 && in->operand_count == 0) ||
               decode_fail(decoder, "cp.async.bulk.commit_group takes no operands");
    }
    const bool reads = in->modifier_count == 4 && strcmp(in->modifiers[3], "read") == 0;
    if ((in->modifier_count != 3 && !reads) || in->operand_count != 1 ||
        in->operands[0].kind != PTX_OPERAND_INTEGER || in->operands[0].value < 0) {
        return decode_fail(decoder, "cp.async.bulk.wait_group{.read} takes a number of groups");
    }
    op->run = bulk_run_wait;
    op->a = reads;
    op->imm = in->operands[0].value;
    return true;
}

static bool decode_prefetch_map(struct decoder *decoder, const struct ptx_instruction *in,
                                struct op *op, struct bulk_form *form) {
    static const char NAMES[] = "tensormap param const";
    form->map_space = ptx_has(in, "param")   ? (int)PTX_PARAM
                      : ptx_has(in, "const") ? (int)PTX_CONST
                                             : SPACE_GENERIC;
    op->run = bulk_run_prefetch_map;
    return decode_modifiers(decoder, in, 0, NAMES) &&
           (in->operand_count == 1 ||
            decode_fail(decoder, "prefetch.tensormap takes one operand")) &&
           async_decode_address(decoder, &in->operands[0], &form->global);
}

bool decode_bulk(struct decoder *decoder, const struct ptx_instruction *in, struct op *op) {
    static const char NAMES[] =
        "async bulk tensor 1d 2d 3d 4d 5d tile global shared::cta shared::cluster "
        "mbarrier::complete_tx::bytes bulk_group multicast::cluster L2::cache_hint";
    static const char PREFETCHES[] =
        "async bulk prefetch tensor 1d 2d 3d 4d 5d tile L2 global L2::cache_hint";
    static const char REDUCES[] =
        "reduce async bulk tensor 1d 2d 3d 4d 5d tile global shared::cta "
        "shared::cluster mbarrier::complete_tx::bytes bulk_group L2::cache_hint add min "
        "max inc dec and or xor noftz f16 bf16 f32 f64 u32 s32 u64 s64 b32 b64";
    struct bulk_form *form = decode_alloc(decoder, sizeof *form);
    op->flags |= OP_OWN_POISON;
    op->extra = form;
    if (!form) {
        return false;
    }
    if (strcmp(in->opcode, "prefetch") == 0) {
        return decode_prefetch_map(decoder, in, op, form);
    }
    if (in->modifier_count >= 3 && (strcmp(in->modifiers[2], "commit_group") == 0 ||
                                    strcmp(in->modifiers[2], "wait_group") == 0)) {
        return decode_group(decoder, in, op);
    }
    const bool reduces = ptx_has(in, "reduce");
    op->run = bulk_issue;
    return decode_modifiers(decoder, in, 0,
                            reduces                   ? REDUCES
                            : ptx_has(in, "prefetch") ? PREFETCHES
                                                      : NAMES) &&
           decode_rank(decoder, in, form) && (!reduces || decode_reduction(decoder, in, form)) &&
           decode_kind(decoder, in, form) && (!reduces || check_reduction(decoder, in, form)) &&
           decode_operands(decoder, in, form);
}
