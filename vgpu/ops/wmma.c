/* SPDX-License-Identifier: Apache-2.0
 *
 * wmma.c - wmma.load, wmma.mma, wmma.store: matrices in memory to fragments, and back.
 *
 *     wmma.load.a.sync.aligned.row.m16n16k16.shared.f16  {r0, ...}, [p], stride;
 *     wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32    {d...}, {a...}, {b...}, {c...};
 *
 * PTX leaves the layout of fragments open; these are the hardware's, those of mma (matrix.h). f16
 * fragments of A and B always have eight registers and repeat themselves where that is too many.
 * A matrix is read and written line by line (a row of it, or a column): line i begins at
 * p + i stride elements and must be aligned to 16 bytes (or to its fragment's size, where that is
 * less), which is what the instructions need in practice; all lanes must agree on p and stride.
 *
 * Invariant: local memory is reported as such and never touched.
 */
#include "ops/matrix.h"

#include <string.h>

#include "machine/access.h"
#include "memory/memory.h"
#include "report/finding.h"

enum { LINE_MAX_BYTES = 128, LINES_MAX = 32 };

struct wmma_memory {
    enum matrix_type type;
    bool narrow;
    int space;
    uint32_t lines, length; /* a line's elements */
    uint32_t stride;        /* row of u32, or 0: length */
    uint32_t align;
    uint32_t registers, distinct; /* the registers after the distinct ones repeat them */
    const uint32_t *rows;
    const uint16_t *places; /* of each element of the distinct registers: bytes into lines.bytes */
};

struct wmma_lines {
    _Alignas(16) unsigned char bytes[LINES_MAX][LINE_MAX_BYTES];
    bool poison[LINES_MAX][LINE_MAX_BYTES]; /* by element */
    bool any_poison;
};

/* ---- lines in memory ------------------------------------------------------------------------- */

static bool uniform64(const uint64_t *values, uint32_t mask) {
    const uint64_t first = values[__builtin_ctz(mask)];
    for (uint32_t lane = 0; lane < LANES; lane++) {
        if ((mask >> lane & 1U) != 0 && values[lane] != first) {
            return false;
        }
    }
    return true;
}

/* The first line's address and the distance of lines in bytes; false: reported. */
static bool find_lines(struct warp *warp, const struct op *op, uint32_t mask, uint64_t *base,
                       uint64_t *step) {
    const struct wmma_memory *form = op->extra;
    const uint32_t lead = (uint32_t)__builtin_ctz(mask);
    uint64_t address[LANES], stride[LANES];
    for (uint32_t lane = 0; lane < LANES; lane++) {
        address[lane] =
            (form->narrow ? (uint64_t)row32(warp, op->a)[lane] : row64(warp, op->a)[lane]) +
            (uint64_t)op->imm;
        stride[lane] = form->stride == 0 ? form->length : row32(warp, form->stride)[lane];
    }
    if (!uniform64(address, mask) || !uniform64(stride, mask)) {
        report(warp, op, FINDING_ILLEGAL_OPERAND, mask, NULL,
               "lanes disagree on the address or the stride of wmma");
    }
    if (((poison_of(warp, op->a) | (form->stride ? poison_of(warp, form->stride) : 0)) & mask)) {
        report_uninitialised(warp, op, FINDING_UNINITIALISED, mask, NULL,
                             "the address or the stride of wmma comes from uninitialised memory");
    }
    *base = address[lead];
    *step = stride[lead] * matrix_bits(form->type) / 8;
    if (form->space == SPACE_GENERIC && (*base & WINDOW_MASK) == WINDOW_LOCAL) {
        report(warp, op, FINDING_MATRIX_LOCAL, mask, NULL,
               "wmma on local memory (a register array?): it works on shared and global memory "
               "only");
        return false;
    }
    return true;
}

/* Accesses bytes [from, from + element * count) of each line. */
static void access_lines(struct warp *warp, const struct op *op, enum access_kind kind,
                         uint64_t base, uint64_t step, struct access *access) {
    const struct wmma_memory *form = op->extra;
    access->space = form->space;
    access->kind = kind;
    access->proxy = PROXY_GENERIC;
    access->mask = form->lines == LANES ? ALL_LANES : (1U << form->lines) - 1;
    access->agent = NULL;
    access->strong = access->narrow = false;
    access->good = 0;
    for (uint32_t line = 0; line < form->lines; line++) {
        access->address[line] = base + line * step;
    }
    memory_access(warp, op, access);
}

/* Splits a line: whole (16 bytes an element) or, for exact poison, by matrix element. */
static void split_line(const struct wmma_memory *form, bool fine, struct access *access) {
    const uint32_t size = matrix_bits(form->type) / 8, bytes = form->length * size;
    access->element = fine ? size : bytes < 16 ? bytes : 16;
    access->count = bytes / access->element < 8 ? bytes / access->element : 8;
}

static void read_poison(struct warp *warp, const struct op *op, uint64_t base, uint64_t step,
                        struct wmma_lines *lines) {
    const struct wmma_memory *form = op->extra;
    struct access access;
    split_line(form, true, &access);
    access.align = access.element;
    for (uint32_t first = 0; first < form->length; first += access.count) {
        access_lines(warp, op, ACCESS_READ, base + (uint64_t)first * access.element, step, &access);
        for (uint32_t i = 0; i < access.count * form->lines; i++) {
            const uint32_t line = i % form->lines, element = i / form->lines;
            lines->poison[line][first + element] = access.poison[element] >> line & 1U;
        }
    }
    lines->any_poison = true;
}

static void read_lines(struct warp *warp, const struct op *op, uint64_t base, uint64_t step,
                       struct wmma_lines *lines) {
    const struct wmma_memory *form = op->extra;
    const uint32_t bytes = form->length * matrix_bits(form->type) / 8;
    struct access access;
    uint32_t poison = 0;
    split_line(form, false, &access);
    access.align = form->align;
    memset(access.poison, 0, sizeof access.poison);
    access_lines(warp, op, ACCESS_READ, base, step, &access);
    for (uint32_t line = 0; line < form->lines; line++) {
        if ((access.good >> line & 1U) != 0) {
            memcpy(lines->bytes[line], access.host[line], bytes);
        } else {
            memset(lines->bytes[line], 0, bytes);
        }
    }
    for (uint32_t i = 0; i < access.count; i++) {
        poison |= access.poison[i] & access.good;
    }
    lines->any_poison = false;
    if (poison != 0) {
        read_poison(warp, op, base, step, lines);
    }
}

static void write_lines(struct warp *warp, const struct op *op, uint64_t base, uint64_t step,
                        const struct wmma_lines *lines) {
    const struct wmma_memory *form = op->extra;
    const uint32_t bytes = form->length * matrix_bits(form->type) / 8;
    struct access access;
    split_line(form, lines->any_poison, &access);
    access.align = form->align;
    const uint32_t chunk = access.element * access.count;
    for (uint32_t from = 0; from < bytes; from += chunk) {
        memset(access.poison, 0, sizeof access.poison);
        for (uint32_t line = 0; lines->any_poison && line < form->lines; line++) {
            for (uint32_t i = 0; i < access.count; i++) {
                /* NOLINTNEXTLINE(clang-analyzer-*): run_store filled them all */
                const bool bad = lines->poison[line][from / access.element + i];
                access.poison[i] |= (uint32_t)bad << line;
            }
        }
        access_lines(warp, op, ACCESS_WRITE, base + from, step, &access);
        for (uint32_t line = 0; line < form->lines; line++) {
            if ((access.good >> line & 1U) != 0) {
                memcpy(access.host[line], lines->bytes[line] + from, chunk);
            }
        }
        access.align = access.element; /* of the base only */
    }
}

/* ---- fragments ------------------------------------------------------------------------------- */

static inline uint32_t elements_per_register(enum matrix_type type) {
    return matrix_bits(type) >= 32 ? LANES : LANES * 32 / matrix_bits(type);
}

static void gather(const struct wmma_lines *lines, const uint16_t *places, uint32_t count,
                   uint32_t size, unsigned char *to) {
    const unsigned char *from = &lines->bytes[0][0];
    for (uint32_t i = 0; i < count; i++) {
        switch (size) {
        case 1: to[i] = from[places[i]]; break;
        case 2: memcpy(to + (size_t)i * 2, from + places[i], 2); break;
        case 4: memcpy(to + (size_t)i * 4, from + places[i], 4); break;
        default: memcpy(to + (size_t)i * 8, from + places[i], 8); break;
        }
    }
}

static uint32_t gather_poison(const struct wmma_lines *lines, const uint16_t *places,
                              uint32_t count, uint32_t size) {
    const uint32_t each = count / LANES;
    uint32_t lanes = 0;
    for (uint32_t lane = 0; lines->any_poison && lane < LANES; lane++) {
        for (uint32_t i = lane * each; i < (lane + 1) * each; i++) {
            const bool bad =
                lines->poison[places[i] / LINE_MAX_BYTES][places[i] % LINE_MAX_BYTES / size];
            lanes |= (uint32_t)bad << lane;
        }
    }
    return lanes;
}

static void run_load(struct warp *warp, const struct op *op, uint32_t mask) {
    const struct wmma_memory *form = op->extra;
    const uint32_t size = matrix_bits(form->type) / 8, each = elements_per_register(form->type);
    struct wmma_lines lines;
    uint64_t base, step;
    matrix_check_lanes(warp, op);
    if (find_lines(warp, op, mask, &base, &step)) {
        read_lines(warp, op, base, step, &lines);
    } else {
        memset(lines.bytes, 0, sizeof lines.bytes);
        lines.any_poison = false;
    }
    for (uint32_t i = 0; i < form->registers; i++) {
        const uint16_t *places = form->places + (size_t)(i % form->distinct) * each;
        unsigned char row[LANES * 8];
        gather(&lines, places, each, size, row);
        matrix_write_row(warp, form->rows[i], row, (size_t)each * size / LANES, mask);
        set_poison(warp, form->rows[i], mask, gather_poison(&lines, places, each, size));
    }
}

static void run_store(struct warp *warp, const struct op *op, uint32_t mask) {
    const struct wmma_memory *form = op->extra;
    const uint32_t size = matrix_bits(form->type) / 8, each = elements_per_register(form->type);
    struct wmma_lines lines;
    uint64_t base, step;
    matrix_check_lanes(warp, op);
    if (!find_lines(warp, op, mask, &base, &step)) {
        return;
    }
    lines.any_poison = false;
    for (uint32_t i = 0; i < form->registers; i++) {
        const uint32_t poison = poison_of(warp, form->rows[i]);
        lines.any_poison |= poison != 0;
        for (uint32_t e = 0; e < each; e++) {
            const uint32_t place = form->places[i * each + e];
            memcpy(&lines.bytes[0][0] + place, warp->rows + form->rows[i] + (size_t)e * size, size);
            lines.poison[place / LINE_MAX_BYTES][place % LINE_MAX_BYTES / size] =
                poison >> e / (each / LANES) & 1U;
        }
    }
    write_lines(warp, op, base, step, &lines);
}

/* ---- decoding -------------------------------------------------------------------------------- */

/* What a matrix is to a product. */
struct wmma_matrix {
    char which; /* 'a', 'b', 'c' (also d) */
    uint32_t rows, columns;
    uint32_t halves; /* of 16 rows that come one after the other; else 1 */
    bool lines_are_rows;
};

/* B is held by its columns, k elements each: as its transpose, n x k. */
static struct wmma_matrix matrix_of(char which, bool row_major, const struct matrix_form *shape) {
    const uint32_t halves = shape->m == 8 ? 1 : 2;
    switch (which) {
    case 'a': return (struct wmma_matrix){'a', shape->m, shape->k, halves, row_major};
    case 'b': return (struct wmma_matrix){'b', shape->n, shape->k, 1, !row_major};
    default: return (struct wmma_matrix){'c', shape->m, shape->n, halves, row_major};
    }
}

/* As matrix.h has it: row and column of element i of register reg (LANES lanes, in order). */
static uint16_t element_place(const struct wmma_matrix *matrix, enum matrix_type type, uint32_t reg,
                              uint32_t i) {
    const uint32_t per_lane = elements_per_register(type) / LANES, lane = i / per_lane;
    const bool pairs = matrix->which == 'c' && per_lane == 1; /* even and odd columns apart */
    const uint32_t width = matrix->which == 'c' ? 8 : 4 * per_lane;
    const uint32_t tile = pairs ? reg / 2 : reg, parts = matrix->columns / width;
    const uint32_t block = tile / matrix->halves;
    const uint32_t row = (block / parts * matrix->halves + tile % matrix->halves) * 8 + lane / 4;
    const uint32_t column = block % parts * width +
                            (pairs ? lane % 4 * 2 + reg % 2 : lane % 4 * per_lane + i % per_lane);
    const uint32_t line = matrix->lines_are_rows ? row : column;
    const uint32_t element = matrix->lines_are_rows ? column : row;
    return (uint16_t)(line * LINE_MAX_BYTES + element * matrix_bits(type) / 8);
}

static const uint16_t *make_places(struct decoder *decoder, const struct wmma_matrix *matrix,
                                   enum matrix_type type, uint32_t registers) {
    const uint32_t each = elements_per_register(type);
    uint16_t *places = decode_alloc(decoder, (size_t)registers * each * sizeof *places);
    for (uint32_t i = 0; places != NULL && i < registers * each; i++) {
        places[i] = element_place(matrix, type, i / each, i % each);
    }
    return places;
}

/* Whether the shape exists for A and B of the type. */
static bool shape_exists(enum matrix_type type, const struct matrix_form *shape) {
    const uint32_t m = shape->m, n = shape->n, k = shape->k;
    switch (type) {
    case MATRIX_F16:
    case MATRIX_BF16:
    case MATRIX_S8:
    case MATRIX_U8:
        return k == 16 && ((m == 16 && n == 16) || (m == 32 && n == 8) || (m == 8 && n == 32));
    case MATRIX_TF32: return m == 16 && n == 16 && k == 8;
    case MATRIX_F64: return m == 8 && n == 8 && k == 4;
    default: return false;
    }
}

/* Whether C and D may have the type in a product of this shape. */
static bool sum_exists(enum matrix_type type, const struct matrix_form *shape) {
    switch (type) {
    case MATRIX_F16:
    case MATRIX_S32: return shape_exists(MATRIX_F16, shape);
    case MATRIX_F32: return shape_exists(MATRIX_F16, shape) || shape_exists(MATRIX_TF32, shape);
    case MATRIX_F64: return shape_exists(MATRIX_F64, shape);
    default: return false;
    }
}

static uint32_t registers_of(char which, enum matrix_type type, uint32_t elements) {
    return which != 'c' && type == MATRIX_F16 ? 8 : matrix_registers(type, elements);
}

static bool decode_transfer(struct decoder *decoder, const struct ptx_instruction *in,
                            struct op *op, bool load) {
    static const char known[] = "load store a b c d sync aligned row col shared shared::cta global";
    static const char *const which[] = {"a", "b", "c", "d", NULL};
    struct matrix_form shape;
    enum matrix_type type;
    uint32_t index, bytes;
    struct wmma_memory *form = decode_alloc(decoder, sizeof *form);
    if (form == NULL) {
        return false;
    }
    if (!matrix_modifiers(in, known) || !ptx_has(in, "sync") || !ptx_has(in, "aligned") ||
        !matrix_shape(in, &shape.m, &shape.n, &shape.k) || matrix_types(in, &type, 1) != 1 ||
        !decode_choice(in, which, &index) || (index == 3) == load ||
        ptx_has(in, "row") == ptx_has(in, "col") || in->operand_count < 2 ||
        in->operand_count > 3) {
        return decode_fail(decoder, "unknown form of wmma");
    }
    if (index >= 2 ? !sum_exists(type, &shape) : !shape_exists(type, &shape)) {
        return decode_fail(decoder, "wmma does not exist with this shape and type");
    }
    const struct wmma_matrix matrix = matrix_of(index == 0   ? 'a'
                                                : index == 1 ? 'b'
                                                             : 'c',
                                                ptx_has(in, "row"), &shape);
    form->type = type;
    form->space = ptx_has(in, "global")                                 ? PTX_GLOBAL
                  : ptx_has(in, "shared") || ptx_has(in, "shared::cta") ? PTX_SHARED
                                                                        : SPACE_GENERIC;
    form->lines = matrix.lines_are_rows ? matrix.rows : matrix.columns;
    form->length = matrix.lines_are_rows ? matrix.columns : matrix.rows;
    form->registers = registers_of(matrix.which, type, matrix.rows * matrix.columns);
    form->distinct = matrix_registers(type, matrix.rows * matrix.columns);
    bytes = form->registers * (type == MATRIX_F64 ? 8 : 4);
    form->align = bytes < 16 ? bytes : 16;
    form->rows = matrix_rows(decoder, &in->operands[load ? 0 : 1], type, form->registers, load);
    form->places = make_places(decoder, &matrix, type, form->distinct);
    if (form->rows == NULL || form->places == NULL ||
        !decode_address(decoder, &in->operands[load ? 1 : 0], &op->a, &form->narrow, &op->imm)) {
        return false;
    }
    if (in->operand_count == 3) {
        form->stride = decode_source(decoder, &in->operands[2], PTX_U32);
    }
    op->extra = form;
    op->run = load ? run_load : run_store;
    return true;
}

static bool types_match(const struct matrix_form *form) {
    switch (form->a_type) {
    case MATRIX_F16:
        return (form->d_type == MATRIX_F16 || form->d_type == MATRIX_F32) &&
               (form->c_type == MATRIX_F16 || form->c_type == MATRIX_F32);
    case MATRIX_BF16:
    case MATRIX_TF32: return form->d_type == MATRIX_F32 && form->c_type == MATRIX_F32;
    case MATRIX_S8:
    case MATRIX_U8: return form->d_type == MATRIX_S32 && form->c_type == MATRIX_S32;
    default: return form->d_type == MATRIX_F64 && form->c_type == MATRIX_F64;
    }
}

/* The types: .d.c for f16, else .d.a.b.c */
static bool product_types(const struct ptx_instruction *in, struct matrix_form *form) {
    enum matrix_type types[4] = {MATRIX_NONE};
    const uint32_t count = matrix_types(in, types, 4);
    form->d_type = types[0];
    form->c_type = types[count == 4 ? 3 : 1];
    form->a_type = count == 4 ? types[1] : MATRIX_F16;
    form->b_type = count == 4 ? types[2] : MATRIX_F16;
    return count == 2 || count == 4;
}

static bool decode_product(struct decoder *decoder, const struct ptx_instruction *in,
                           struct op *op) {
    static const char known[] = "mma sync aligned row col rn satfinite";
    struct matrix_form *form = decode_alloc(decoder, sizeof *form);
    if (form == NULL) {
        return false;
    }
    if (!matrix_modifiers(in, known) || !ptx_has(in, "sync") || !ptx_has(in, "aligned") ||
        !matrix_shape(in, &form->m, &form->n, &form->k) || in->operand_count != 4 ||
        !product_types(in, form)) {
        return decode_fail(decoder, "unknown form of wmma.mma");
    }
    form->saturate = ptx_has(in, "satfinite");
    if (form->a_type != form->b_type || !shape_exists(form->a_type, form) || !types_match(form) ||
        (form->saturate && form->d_type != MATRIX_S32) ||
        (ptx_has(in, "rn") && form->d_type != MATRIX_F64)) {
        return decode_fail(decoder, "wmma.mma does not exist with this shape and these types");
    }
    form->d = matrix_rows(decoder, &in->operands[0], form->d_type,
                          matrix_registers(form->d_type, form->m * form->n), true);
    form->a = matrix_rows(decoder, &in->operands[1], form->a_type,
                          registers_of('a', form->a_type, form->m * form->k), false);
    form->b = matrix_rows(decoder, &in->operands[2], form->b_type,
                          registers_of('b', form->b_type, form->k * form->n), false);
    form->c = matrix_rows(decoder, &in->operands[3], form->c_type,
                          matrix_registers(form->c_type, form->m * form->n), false);
    op->run = matrix_run;
    op->extra = form;
    op->flags |= OP_TENSOR;
    return form->d != NULL && form->a != NULL && form->b != NULL && form->c != NULL;
}

bool decode_wmma(struct decoder *decoder, const struct ptx_instruction *in, struct op *op) {
    op->flags |= OP_OWN_POISON | OP_CONVERGED;
    if (ptx_has(in, "mma")) {
        return decode_product(decoder, in, op);
    }
    return decode_transfer(decoder, in, op, ptx_has(in, "load"));
}
