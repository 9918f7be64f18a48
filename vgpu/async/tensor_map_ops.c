/* SPDX-License-Identifier: Apache-2.0
 *
 * tensor_map_ops.c - tensor maps made by kernels: tensormap.replace changes one field of a map in
 * shared or global memory, tensormap.cp_fenceproxy copies a finished one to global memory.
 *
 * Invariant: a map that a kernel changed is checked by the rules of the driver at its use, not
 * before: between two changes it may break any of them.
 */
#include "async/bulk.h"

#include <string.h>

#include "memory/memory.h"
#include "race/clock.h"
#include "report/finding.h"

/* op->extra */
struct map_form {
    int space;
    struct async_address map, source; /* source: of cp_fenceproxy, in shared memory */
    enum tensor_field field;
    uint32_t ordinal;
    uint32_t value, width; /* row, bytes of a lane */
};

/* The 128 bytes of a lane's map; NULL: reported. */
static unsigned char *map_bytes(struct warp *warp, const struct op *op, uint32_t lane, int space,
                                uint64_t address, enum access_kind kind) {
    struct block_access block = {.space = space,
                                 .kind = kind,
                                 .proxy = PROXY_GENERIC,
                                 .address = address,
                                 .bytes = TENSOR_MAP_BYTES};
    if (address % TENSOR_MAP_BYTES != 0) {
        report(warp, op, FINDING_MISALIGNED, 1U << lane,
               &(struct finding_detail){.space = space, .address = address, .bytes = 128},
               "the tensor map is at 0x%llx, expected a multiple of 128",
               (unsigned long long)address);
        return NULL;
    }
    if (!memory_block(warp, op, &block)) {
        return NULL;
    }
    if (block.uninitialised) {
        report(warp, op, FINDING_UNINITIALISED, 1U << lane,
               &(struct finding_detail){.space = space, .address = address, .bytes = 128},
               "the tensor map has uninitialised bytes");
    }
    return block.host;
}

static void run_replace(struct warp *warp, const struct op *op, uint32_t mask) {
    const struct map_form *form = op->extra;
    async_check_poison(warp, op, form->map.row, mask, "the address of the tensor map");
    async_check_poison(warp, op, form->value, mask, "the new value");
    FOR_LANES(lane, mask) {
        const uint64_t address = async_lane_address(warp, &form->map, lane);
        const uint64_t value =
            form->width == 8 ? row64(warp, form->value)[lane] : row32(warp, form->value)[lane];
        unsigned char *bytes = map_bytes(warp, op, lane, form->space, address, ACCESS_READ);
        if (bytes == NULL ||
            map_bytes(warp, op, lane, form->space, address, ACCESS_WRITE) == NULL) {
            continue;
        }
        const char *wrong = tensor_map_replace(bytes, form->field, form->ordinal, value);
        if (wrong != NULL) {
            report(warp, op, FINDING_TENSOR_MAP, 1U << lane,
                   &(struct finding_detail){.space = form->space, .address = address, .bytes = 128},
                   "the tensor map at 0x%llx: %s", (unsigned long long)address, wrong);
        }
    }
}

/* The warp copies one map together; the addresses are those of the lowest lane. */
static void run_copy(struct warp *warp, const struct op *op, uint32_t mask) {
    const struct map_form *form = op->extra;
    const uint32_t lane = (uint32_t)__builtin_ctz(mask);
    async_check_poison(warp, op, form->map.row, mask, "the address of the tensor map");
    async_check_poison(warp, op, form->source.row, mask, "the address of the source");
    const unsigned char *from = map_bytes(
        warp, op, lane, PTX_SHARED, async_lane_address(warp, &form->source, lane), ACCESS_READ);
    unsigned char *to = map_bytes(warp, op, lane, PTX_GLOBAL,
                                  async_lane_address(warp, &form->map, lane), ACCESS_WRITE);
    if (from != NULL && to != NULL) {
        memcpy(to, from, TENSOR_MAP_BYTES);
    }
    clock_fence(warp, true);
}

/* ---- decoding -------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    enum tensor_field field;
    uint32_t ordinals; /* 0: the field is one value */
    enum ptx_type type;
} FIELDS[] = {
    {"global_address", TENSOR_ADDRESS, 0, PTX_B64},
    {"rank", TENSOR_RANK, 0, PTX_B32},
    {"box_dim", TENSOR_BOX, TENSOR_MAP_RANK, PTX_B32},
    {"global_dim", TENSOR_DIM, TENSOR_MAP_RANK, PTX_B32},
    {"global_stride", TENSOR_STRIDE, TENSOR_MAP_RANK - 1, PTX_B64},
    {"element_stride", TENSOR_ELEMENT_STRIDE, TENSOR_MAP_RANK, PTX_B32},
    {"elemtype", TENSOR_ELEMENT_TYPE, 0, PTX_B32},
    {"interleave_layout", TENSOR_INTERLEAVE, 0, PTX_B32},
    {"swizzle_mode", TENSOR_SWIZZLE, 0, PTX_B32},
    {"fill_mode", TENSOR_FILL, 0, PTX_B32},
};

static bool decode_replace(struct decoder *decoder, const struct ptx_instruction *in, struct op *op,
                           struct map_form *form) {
    static const char NAMES[] = "replace tile global shared::cta b1024 b32 b64";
    const char *name = in->modifier_count > 2 ? in->modifiers[2] : "";
    for (size_t i = 0; i < sizeof FIELDS / sizeof FIELDS[0]; i++) {
        if (strcmp(FIELDS[i].name, name) != 0) {
            continue;
        }
        const bool numbered = FIELDS[i].ordinals > 0;
        if (!ptx_has(in, "replace") || !ptx_has(in, "tile") || !ptx_has(in, "b1024") ||
            ptx_modifier_type(in, 0) != FIELDS[i].type || in->operand_count != 2U + numbered) {
            break;
        }
        const struct ptx_operand *ordinal = &in->operands[1];
        if (numbered && (ordinal->kind != PTX_OPERAND_INTEGER || ordinal->value < 0 ||
                         ordinal->value >= FIELDS[i].ordinals)) {
            break;
        }
        form->space = ptx_has(in, "shared::cta") ? PTX_SHARED
                      : ptx_has(in, "global")    ? PTX_GLOBAL
                                                 : SPACE_GENERIC;
        form->field = FIELDS[i].field;
        form->ordinal = numbered ? (uint32_t)ordinal->value : 0;
        form->width = ptx_type_size(FIELDS[i].type);
        form->value = decode_source(decoder, &in->operands[1 + numbered], FIELDS[i].type);
        op->run = run_replace;
        return form->value != 0 && decode_modifiers(decoder, in, 3, NAMES) &&
               async_decode_address(decoder, &in->operands[0], &form->map);
    }
    return decode_fail(decoder, "this form of tensormap.replace is not known");
}

bool decode_tensor_map(struct decoder *decoder, const struct ptx_instruction *in, struct op *op) {
    static const char COPY[] =
        "cp_fenceproxy global shared::cta tensormap::generic release cta cluster gpu "
        "sys sync aligned";
    struct map_form *form = decode_alloc(decoder, sizeof *form);
    if (form == NULL) {
        return false;
    }
    op->extra = form;
    op->flags |= OP_OWN_POISON;
    if (!ptx_has(in, "cp_fenceproxy")) {
        return decode_replace(decoder, in, op, form);
    }
    op->run = run_copy;
    op->flags |= OP_CONVERGED;
    return decode_modifiers(decoder, in, 0, COPY) &&
           ((in->operand_count == 3 && in->operands[2].kind == PTX_OPERAND_INTEGER &&
             in->operands[2].value == TENSOR_MAP_BYTES) ||
            decode_fail(decoder, "tensormap.cp_fenceproxy takes two addresses and 128")) &&
           async_decode_address(decoder, &in->operands[0], &form->map) &&
           async_decode_address(decoder, &in->operands[1], &form->source);
}
