/* SPDX-License-Identifier: Apache-2.0
 *
 * surface.c - suld.b and sust.b: loads and stores of bytes of images. The first coordinate is in
 * bytes.
 *
 * Invariant: outside the image, .trap is reported, .clamp accesses the nearest element, and .zero
 * loads zeros and stores nothing.
 */
#include "ops/texture.h"

#include <string.h>

#include "memory/memory.h"
#include "ops/memory.h"
#include "ops/ops.h"

enum { VALUES = 4 };
enum outside { OUTSIDE_TRAP, OUTSIDE_CLAMP, OUTSIDE_ZERO };

struct surface_form {
    struct image_shape shape;
    uint32_t outside; /* enum outside */
    bool store;
    uint32_t element, count; /* bytes of a value; values */
    uint32_t lane_bytes;     /* of a value in its row */
    uint32_t handle, coordinates[VALUES], rows[VALUES];
};

/* The address of the lane's element; false: it is outside. */
static bool place_lane(struct warp *warp, const struct surface_form *form, const vgpu_image *image,
                       uint32_t lane, int32_t at[VALUES], uint64_t *address) {
    const uint32_t axes = form->shape.coordinates, bytes = form->element * form->count;
    const int64_t sizes[VALUES] = {(int64_t)image->extent[0] * image_texel(image) - bytes + 1,
                                   image->extent[1], image->extent[2]};
    int64_t slice = 0, inside[VALUES] = {0};
    bool good = true;
    for (uint32_t i = 0; i < axes + form->shape.layered; i++) {
        at[i] = (int32_t)row32(warp, form->coordinates[i])[lane];
        const bool is_layer = form->shape.layered && i == 0;
        const uint32_t axis = is_layer ? 0 : i - form->shape.layered;
        const int64_t size = is_layer ? image->layers : sizes[axis];
        const bool fits = at[i] >= 0 && at[i] < size;
        const int64_t nearest = at[i] < 0 ? 0 : at[i] >= size ? size - 1 : at[i];
        good = good && (fits || form->outside == OUTSIDE_CLAMP) && size > 0;
        *(is_layer ? &slice : &inside[axis]) = nearest;
    }
    *address = image->address + (uint64_t)(slice + inside[2]) * image->slice_bytes +
               (uint64_t)inside[1] * image->row_bytes + (uint64_t)inside[0];
    return good;
}

static void report_outside(struct warp *warp, const struct op *op, const vgpu_image *image,
                           uint32_t lane, const int32_t at[VALUES]) {
    const struct surface_form *form = op->extra;
    const uint32_t first = form->shape.layered, axes = form->shape.coordinates;
    const uint32_t deep = image->layers > 0 ? image->layers : image->extent[2];
    report(warp, op, FINDING_OUT_OF_BOUNDS, 1U << lane, NULL,
           "%s of %u bytes at byte %d, row %d, slice %d of a surface of %u x %u x %u elements of "
           "%u bytes",
           form->store ? "sust" : "suld", form->element * form->count, at[first],
           axes > 1 ? at[first + 1] : 0,
           first != 0 ? at[0]
           : axes > 2 ? at[2]
                      : 0,
           image->extent[0], image->extent[1] > 0 ? image->extent[1] : 1, deep > 0 ? deep : 1,
           image_texel(image));
}

/* Moves the values of the lanes whose addresses are known. */
static void move_values(struct warp *warp, const struct op *op, struct access *access) {
    const struct surface_form *form = op->extra;
    for (uint32_t i = 0; form->store && i < form->count; i++) {
        access->poison[i] = poison_of(warp, form->rows[i]);
    }
    const uint64_t aligned = access->address[__builtin_ctz(access->mask)];
    FOR_LANES(lane, ~access->mask) {
        access->address[lane] = aligned;
    }
    memory_access(warp, op, access);
    FOR_LANES(lane, access->good) {
        for (uint32_t i = 0; i < form->count; i++) {
            unsigned char *row = warp->rows + form->rows[i] + (size_t)lane * form->lane_bytes;
            unsigned char *there = access->host[lane] + (size_t)i * form->element;
            memcpy(form->store ? there : row, form->store ? row : there, form->element);
        }
    }
}

static void run_surface(struct warp *warp, const struct op *op, uint32_t mask) {
    const struct surface_form *form = op->extra;
    struct access access = {.space = PTX_GLOBAL,
                            .kind = form->store ? ACCESS_WRITE : ACCESS_READ,
                            .element = form->element,
                            .count = form->count};
    for (uint32_t lanes, left = mask; left != 0; left &= ~lanes) {
        lanes = left;
        const vgpu_image *image = image_of_lanes(warp, op, form->handle, &form->shape, &lanes);
        FOR_LANES(lane, image != NULL ? lanes : 0) {
            int32_t at[VALUES] = {0};
            if (place_lane(warp, form, image, lane, at, &access.address[lane])) {
                access.mask |= 1U << lane;
            } else if (form->outside == OUTSIDE_TRAP) {
                report_outside(warp, op, image, lane, at);
            }
        }
    }
    for (uint32_t i = 0; !form->store && i < form->count; i++) {
        FOR_LANES(lane, mask) {
            memset(warp->rows + form->rows[i] + (size_t)lane * form->lane_bytes, 0,
                   form->lane_bytes);
        }
    }
    if (access.mask != 0) {
        move_values(warp, op, &access);
    }
    for (uint32_t i = 0; !form->store && i < form->count; i++) {
        set_poison(warp, form->rows[i], mask, access.poison[i]);
    }
}

bool decode_surface(struct decoder *decoder, const struct ptx_instruction *in, struct op *op) {
    static const char *const OUTSIDES[] = {"trap", "clamp", "zero", NULL};
    struct surface_form *form = decode_alloc(decoder, sizeof *form);
    const enum ptx_type type = ptx_modifier_type(in, 0);
    if (form == NULL) {
        return false;
    }
    form->store = strcmp(in->opcode, "sust") == 0;
    form->element = ptx_type_size(type);
    form->count = memory_vector(in);
    form->lane_bytes = form->element < 2 ? 2 : form->element;
    const struct ptx_operand *values = &in->operands[form->store ? 1 : 0];
    if (in->operand_count != 2 || type < PTX_B8 || type > PTX_B64 || !ptx_has(in, "b") ||
        !decode_choice(in, OUTSIDES, &form->outside) || form->count > VALUES ||
        !only_modifiers(in, "* b 1d 2d 3d a1d a2d v2 v4 trap clamp zero ca cg cs cv wb wt")) {
        return decode_fail(decoder, "this form of %s is not known", in->opcode);
    }
    const bool vector = values->kind == PTX_OPERAND_VECTOR;
    if ((vector ? values->part_count : 1) != form->count) {
        return decode_fail(decoder, "%u values are expected", form->count);
    }
    for (uint32_t i = 0; i < form->count; i++) {
        const struct ptx_operand *part = vector ? &values->parts[i] : values;
        form->rows[i] =
            form->store ? decode_source(decoder, part, type) : decode_result(decoder, part, type);
    }
    op->extra = form;
    op->run = run_surface;
    op->flags = OP_OWN_POISON;
    return form->rows[form->count - 1] != 0 &&
           decode_image(decoder, in, &in->operands[form->store ? 0 : 1], &form->shape,
                        &form->handle, form->coordinates, PTX_S32);
}
