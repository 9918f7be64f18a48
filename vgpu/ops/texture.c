/* SPDX-License-Identifier: Apache-2.0
 *
 * texture.c - tex and tld4: fetches from images, point and linear. surface.c has suld and sust.
 *
 * A coordinate outside the image is mapped into it by the address mode of its dimension, or gives
 * the border color: a fetch is never out of bounds. Weights of linear filtering have 8 bits of
 * fraction, as on a GPU. There is one mipmap level: tex.level ignores its operand.
 *
 * Invariant: texels are read by memory_access, so freed and uninitialised memory and races are
 * found as for a load.
 */
#include "ops/texture.h"

#include <math.h>
#include <string.h>

#include "memory/memory.h"
#include "ops/formats.h"
#include "ops/ops.h"

enum { CHANNELS = 4, AXES = 3, CORNERS = 8, FACES = 6, FRACTION = 256 };
enum { MODE_WRAP, MODE_CLAMP, MODE_MIRROR, MODE_BORDER };

struct texture_form {
    struct image_shape shape;
    bool integers;                                             /* coordinates are s32 */
    bool floats;                                               /* results are f32 */
    int gather;                                                /* tld4: the channel; -1: tex */
    uint32_t handle, coordinates[CHANNELS], results[CHANNELS]; /* rows */
};

/* One fetch of the lanes that use one image. */
struct fetch {
    struct warp *warp;
    const struct op *op;
    const struct texture_form *form;
    const vgpu_image *image;
    uint32_t lanes;
    uint32_t axes;
    float at[AXES][LANES]; /* in texels */
    uint32_t layer[LANES];
    int32_t texel[AXES][LANES];  /* the lower corner */
    float fraction[AXES][LANES]; /* weight of the upper one */
    uint32_t value[CHANNELS][LANES];
    uint32_t poison;
};

/* ---- coordinates ----------------------------------------------------------------------------- */

static float coordinate(const struct fetch *f, uint32_t index, uint32_t lane) {
    const uint32_t row = f->form->coordinates[index];
    return f->form->integers ? (float)(int32_t)row32(f->warp, row)[lane]
                             : row_f32(f->warp, row)[lane];
}

/* Which face a direction hits, and where, from 0 to 1. */
static uint32_t cube_face(const float direction[AXES], float at[2]) {
    const float x = direction[0], y = direction[1], z = direction[2];
    const float ax = fabsf(x), ay = fabsf(y), az = fabsf(z);
    uint32_t face;
    float s, t, most;
    if (ax >= ay && ax >= az) {
        face = x < 0, most = ax, s = x < 0 ? z : -z, t = -y;
    } else if (ay >= az) {
        face = 2 + (y < 0), most = ay, s = x, t = y < 0 ? -z : z;
    } else {
        face = 4 + (z < 0), most = az, s = z < 0 ? -x : x, t = -y;
    }
    at[0] = (s / most + 1) / 2;
    at[1] = (t / most + 1) / 2;
    return face;
}

static void place_lane(struct fetch *f, uint32_t lane) {
    const vgpu_image *image = f->image;
    const struct image_shape *shape = &f->form->shape;
    uint32_t first = 0, layer = 0, layers = image->layers;
    float at[AXES] = {0}, direction[AXES];
    if (shape->layered) {
        layer = row32(f->warp, f->form->coordinates[first++])[lane];
        layers = shape->cube ? layers / FACES : layers;
        layer = layers == 0 ? 0 : layer < layers ? layer : layers - 1;
    }
    for (uint32_t axis = 0; axis < AXES && axis < shape->coordinates; axis++) {
        at[axis] = coordinate(f, first + axis, lane);
    }
    if (shape->cube) {
        memcpy(direction, at, sizeof direction);
        layer = layer * FACES + cube_face(direction, at);
    }
    f->layer[lane] = layer;
    for (uint32_t axis = 0; axis < f->axes; axis++) {
        if (f->form->integers) { /* exact beyond 2^24, too; they are not filtered */
            f->texel[axis][lane] =
                (int32_t)row32(f->warp, f->form->coordinates[first + axis])[lane];
            f->fraction[axis][lane] = 0;
            continue;
        }
        const bool scaled = image->normalized_coordinates;
        float x = scaled ? at[axis] * (float)image->extent[axis] : at[axis];
        x = x > -1e9F ? x < 1e9F ? x : 1e9F : -1e9F; /* NaN, too */
        const float low = image->linear || f->form->gather >= 0 ? floorf(x - 0.5F) : floorf(x);
        f->texel[axis][lane] = (int32_t)low;
        f->fraction[axis][lane] = roundf((x - 0.5F - low) * FRACTION) / FRACTION;
    }
}

/* The texel that the mode puts in place of `at`; -1: the border. */
static int64_t address_of(const vgpu_image *image, uint32_t axis, int64_t at) {
    const int64_t size = image->extent[axis];
    const int mode = image->modes[axis];
    if (at >= 0 && at < size) {
        return at;
    }
    if (mode == MODE_BORDER) {
        return -1;
    }
    if (image->normalized_coordinates && mode == MODE_WRAP) {
        return (at % size + size) % size;
    }
    if (image->normalized_coordinates && mode == MODE_MIRROR) {
        const int64_t folded = (at % (2 * size) + 2 * size) % (2 * size);
        return folded < size ? folded : 2 * size - 1 - folded;
    }
    return at < 0 ? 0 : size - 1;
}

/* ---- texels ---------------------------------------------------------------------------------- */

static float float_of(const vgpu_image *image, uint32_t bits) {
    if (image->kind == VGPU_FLOAT) {
        return image->bits == 16 ? f32_from_f16((uint16_t)bits) : f32_from_bits(bits);
    }
    const uint32_t spare = 32U - image->bits;
    if (image->kind == VGPU_UNSIGNED) {
        return (float)((double)bits / (double)(UINT32_MAX >> spare));
    }
    const double value = (double)((int32_t)(bits << spare) >> spare) / (double)(INT32_MAX >> spare);
    return value < -1 ? -1 : (float)value;
}

/* A channel of a texel as a register shows it. */
static uint32_t channel_of(const struct fetch *f, const unsigned char *texel, uint32_t channel) {
    const vgpu_image *image = f->image;
    const bool converts =
        f->form->floats && (image->kind == VGPU_FLOAT || image->normalized_values);
    if (channel >= image->channels) { /* as if alpha were 1 */
        return channel < CHANNELS - 1 ? 0 : f->form->floats ? bits_of_f32(1) : 1;
    }
    uint32_t bits = 0;
    memcpy(&bits, texel + channel * image->bits / 8U, image->bits / 8U);
    const uint32_t spare = 32U - image->bits;
    return converts                     ? bits_of_f32(float_of(image, bits))
           : image->kind == VGPU_SIGNED ? (uint32_t)((int32_t)(bits << spare) >> spare)
                                        : bits;
}

/* Reads the corner (bit i: the upper one of axis i) of each lane. */
static void read_corner(struct fetch *f, uint32_t corner, uint32_t out[CHANNELS][LANES]) {
    const vgpu_image *image = f->image;
    struct access access = {.space = PTX_GLOBAL,
                            .kind = ACCESS_READ,
                            .element = image->bits / 8U,
                            .count = image->channels};
    for (uint32_t c = 0; c < CHANNELS; c++) {
        FOR_LANES(lane, f->lanes) {
            out[c][lane] = bits_of_f32(image->border[c]);
        }
    }
    FOR_LANES(lane, f->lanes) {
        int64_t at[AXES] = {0};
        bool inside = true;
        for (uint32_t axis = 0; axis < f->axes; axis++) {
            at[axis] =
                address_of(image, axis, f->texel[axis][lane] + (int64_t)(corner >> axis & 1));
            inside = inside && at[axis] >= 0;
        }
        if (inside) {
            const uint64_t slice = f->axes == AXES ? (uint64_t)at[2] : f->layer[lane];
            access.address[lane] = image->address + slice * image->slice_bytes +
                                   (uint64_t)at[1] * image->row_bytes +
                                   (uint64_t)at[0] * image_texel(image);
            access.mask |= 1U << lane;
        }
    }
    if (access.mask == 0) {
        return;
    }
    const uint32_t absent = (uint32_t)__builtin_ctz(access.mask);
    FOR_LANES(lane, ~access.mask) {
        access.address[lane] = access.address[absent]; /* an address that is aligned */
    }
    memory_access(f->warp, f->op, &access);
    FOR_LANES(lane, access.good) {
        for (uint32_t c = 0; c < CHANNELS; c++) {
            out[c][lane] = channel_of(f, access.host[lane], c);
        }
    }
    for (uint32_t c = 0; c < image->channels; c++) {
        f->poison |= access.poison[c];
    }
}

static void fetch_linear(struct fetch *f) {
    float sums[CHANNELS][LANES] = {{0}};
    for (uint32_t corner = 0; corner < 1U << f->axes; corner++) {
        uint32_t texels[CHANNELS][LANES];
        read_corner(f, corner, texels);
        FOR_LANES(lane, f->lanes) {
            float weight = 1;
            for (uint32_t axis = 0; axis < f->axes; axis++) {
                const float upper = f->fraction[axis][lane];
                weight *= (corner >> axis & 1) != 0 ? upper : 1 - upper;
            }
            for (uint32_t c = 0; weight != 0 && c < CHANNELS; c++) {
                sums[c][lane] += weight * f32_from_bits(texels[c][lane]);
            }
        }
    }
    memcpy(f->value, sums, sizeof sums);
}

/* The four texels that linear filtering would use, of one channel. */
static void fetch_gather(struct fetch *f) {
    static const uint32_t CORNER_OF[CHANNELS] = {2, 3, 1, 0};
    for (uint32_t i = 0; i < CHANNELS; i++) {
        uint32_t texels[CHANNELS][LANES];
        read_corner(f, CORNER_OF[i], texels);
        memcpy(f->value[i], texels[f->form->gather], sizeof f->value[i]);
    }
}

/* ---- tex, tld4 ------------------------------------------------------------------------------- */

const vgpu_image *image_of_lanes(struct warp *warp, const struct op *op, uint32_t row,
                                 const struct image_shape *shape, uint32_t *lanes) {
    const uint64_t *handles = row64(warp, row), handle = handles[__builtin_ctz(*lanes)];
    const uint32_t poison = poison_of(warp, row) & *lanes;
    uint32_t same = 0;
    FOR_LANES(lane, *lanes) {
        same |= (uint32_t)(handles[lane] == handle) << lane;
    }
    *lanes = same;
    const vgpu_image *image = image_find(warp->cta->launch->gpu, handle);
    if ((poison & same) != 0) {
        report(warp, op, FINDING_UNINITIALISED, poison & same, NULL,
               "the handle of the image comes from uninitialised memory");
        return NULL;
    }
    if (image == NULL) {
        report(warp, op, FINDING_ILLEGAL_OPERAND, same, NULL,
               "0x%llx is no texture or surface object, or a destroyed one",
               (unsigned long long)handle);
        return NULL;
    }
    const uint32_t axes = 1U + (image->extent[1] > 0) + (image->extent[2] > 0);
    if (image_axes(shape) != axes || (shape->cube && !image->cube) ||
        (shape->layered || shape->cube) != (image->layers > 0)) {
        report(warp, op, FINDING_ILLEGAL_OPERAND, same, NULL,
               "the image has another shape than the instruction: %u x %u x %u, %u layers%s",
               image->extent[0], image->extent[1], image->extent[2], image->layers,
               image->cube ? ", a cube" : "");
        return NULL;
    }
    return image;
}

static void run_fetch(struct warp *warp, const struct op *op, uint32_t mask) {
    const struct texture_form *form = op->extra;
    uint32_t poison = 0;
    for (uint32_t i = 0; i < form->shape.layered + form->shape.coordinates; i++) {
        poison |= poison_of(warp, form->coordinates[i]);
    }
    for (uint32_t lanes, left = mask; left != 0; left &= ~lanes) {
        struct fetch f = {.warp = warp, .op = op, .form = form, .axes = image_axes(&form->shape)};
        lanes = left;
        f.image = image_of_lanes(warp, op, form->handle, &form->shape, &lanes);
        f.lanes = lanes;
        FOR_LANES(lane, f.image != NULL ? lanes : 0) {
            place_lane(&f, lane);
        }
        if (f.image != NULL && form->gather >= 0) {
            fetch_gather(&f);
        } else if (f.image != NULL && f.image->linear && !form->integers) {
            fetch_linear(&f);
        } else if (f.image != NULL) {
            read_corner(&f, 0, f.value);
        }
        for (uint32_t c = 0; c < CHANNELS; c++) {
            FOR_LANES(lane, lanes) {
                row32(warp, form->results[c])[lane] = f.value[c][lane];
            }
            set_poison(warp, form->results[c], lanes, f.poison | poison);
        }
    }
}

/* ---- decoding -------------------------------------------------------------------------------- */

bool decode_image(struct decoder *decoder, const struct ptx_instruction *in,
                  const struct ptx_operand *address, struct image_shape *shape, uint32_t *handle,
                  uint32_t *rows, enum ptx_type type) {
    static const struct {
        const char *name;
        struct image_shape shape;
    } SHAPES[] = {{"1d", {1, false, false}}, {"2d", {2, false, false}}, {"3d", {3, false, false}},
                  {"a1d", {1, true, false}}, {"a2d", {2, true, false}}, {"cube", {3, false, true}},
                  {"acube", {3, true, true}}};
    for (size_t i = 0; i < sizeof SHAPES / sizeof SHAPES[0]; i++) {
        if (ptx_has(in, SHAPES[i].name)) {
            *shape = SHAPES[i].shape;
        }
    }
    if (shape->coordinates == 0 || address->kind != PTX_OPERAND_ADDRESS ||
        address->part_count != 2 || address->parts[0].kind != PTX_OPERAND_REGISTER) {
        return decode_fail(decoder, "this form of %s is not known", in->opcode);
    }
    const struct ptx_operand *given = &address->parts[1];
    const uint32_t count = shape->coordinates + shape->layered;
    const struct ptx_operand *parts = given->kind == PTX_OPERAND_VECTOR ? given->parts : given;
    if ((given->kind == PTX_OPERAND_VECTOR ? given->part_count : 1) < count) {
        return decode_fail(decoder, "fewer than %u coordinates", count);
    }
    *handle = decode_source(decoder, &address->parts[0], PTX_U64);
    for (uint32_t i = 0; i < count; i++) {
        rows[i] = decode_source(decoder, &parts[i], i == 0 && shape->layered ? PTX_B32 : type);
    }
    return *handle != 0 && rows[count - 1] != 0;
}

bool decode_texture(struct decoder *decoder, const struct ptx_instruction *in, struct op *op) {
    static const char *const GATHERS[] = {"r", "g", "b", "a", NULL};
    struct texture_form *form = decode_alloc(decoder, sizeof *form);
    const enum ptx_type result = ptx_modifier_type(in, 0), coordinates = ptx_modifier_type(in, 1);
    const bool gathers = strcmp(in->opcode, "tld4") == 0;
    uint32_t channel = 0;
    if (form == NULL) {
        return false;
    }
    form->gather = gathers && decode_choice(in, GATHERS, &channel) ? (int)channel : -1;
    form->floats = result == PTX_F32;
    form->integers = coordinates == PTX_S32;
    const bool known = (form->floats || result == PTX_U32 || result == PTX_S32) &&
                       (form->integers || coordinates == PTX_F32) && ptx_has(in, "v4") &&
                       in->operand_count == (ptx_has(in, "level") ? 3U : 2U) &&
                       in->operands[0].kind == PTX_OPERAND_VECTOR &&
                       in->operands[0].part_count == CHANNELS && gathers == (form->gather >= 0);
    if (!known || !only_modifiers(in, gathers ? "* r g b a 2d a2d v4"
                                              : "* level 1d 2d 3d a1d a2d cube acube v4")) {
        return decode_fail(decoder, "this form of %s is not known", in->opcode);
    }
    for (uint32_t c = 0; c < CHANNELS; c++) {
        form->results[c] = decode_result(decoder, &in->operands[0].parts[c], PTX_B32);
    }
    op->extra = form;
    op->run = run_fetch;
    op->flags = OP_OWN_POISON;
    return decode_image(decoder, in, &in->operands[1], &form->shape, &form->handle,
                        form->coordinates, form->integers ? PTX_S32 : PTX_F32);
}
