/* SPDX-License-Identifier: Apache-2.0
 *
 * tma_fixture.h - for the tests of bulk copies: a tensor and its box by plain loops, the swizzle by
 * rows, and the kernels that load and store a box.
 *
 * Invariant: nothing in here uses the virtual GPU's own arithmetic on boxes and addresses.
 */
#ifndef TMA_FIXTURE_H
#define TMA_FIXTURE_H

#include "vgpu/async_fixture.h"

enum { RANK = 5, MAP_BYTES = 128, TILE_MAX = 32 * 1024 };

/* ---- a tensor and its box, by plain loops ---------------------------------------------------- */

struct tensor {
    int type, swizzle, fill;
    uint32_t rank, element;
    uint64_t dims[RANK], strides[RANK - 1];
    uint32_t box[RANK], steps[RANK];
    int32_t at[RANK];
};

static inline uint32_t along(const struct tensor *t, uint32_t dim) {
    return dim == 0 ? t->box[0] : (t->box[dim] + t->steps[dim] - 1) / t->steps[dim];
}

static inline uint32_t box_bytes(const struct tensor *t) {
    uint32_t bytes = t->element;
    for (uint32_t i = 0; i < t->rank; i++) {
        bytes *= along(t, i);
    }
    return bytes;
}

static inline uint64_t tensor_bytes(const struct tensor *t) {
    uint64_t bytes = t->dims[0] * t->element;
    for (uint32_t i = 1; i < t->rank; i++) {
        bytes += (t->dims[i] - 1) * t->strides[i - 1];
    }
    return bytes;
}

/* Where element `n` of the box is in the tensor (bytes); -1: outside. */
static inline int64_t source_of(const struct tensor *t, uint32_t n) {
    int64_t offset = 0;
    for (uint32_t i = 0; i < t->rank; i++) {
        const int64_t c = t->at[i] + (int64_t)(n % along(t, i)) * (i == 0 ? 1 : t->steps[i]);
        n /= along(t, i);
        if (c < 0 || c >= (int64_t)t->dims[i]) {
            return -1;
        }
        offset += c * (int64_t)(i == 0 ? t->element : t->strides[i - 1]);
    }
    return offset;
}

/* Where byte `offset` of a dense box at a multiple of 1024 lies: 16-byte column c of a row goes to
 * column c ^ row / (rows in 128 bytes). */
static inline uint32_t place_of(const struct tensor *t, uint32_t offset) {
    static const uint32_t SPAN[] = {16, 32, 64, 128};
    const uint32_t span = SPAN[t->swizzle];
    const uint32_t row = offset / span, column = offset % span / 16;
    const uint32_t turn = row / (128 / span) % (span / 16);
    return row * span + (column ^ turn) * 16 + offset % 16;
}

static inline bool encode(struct bench *bench, const struct tensor *t, vgpu_pointer address,
                          void *map) {
    return CHECK_MSG(vgpu_tensor_map(bench->gpu, map, t->type, t->rank, address, t->dims,
                                     t->strides, t->box, t->steps, 0, t->swizzle, 0, t->fill,
                                     &bench->why) == VGPU_OK,
                     "%s", bench->why.text);
}

/* A tensor like those that kernels have, from a number. */
static inline struct tensor some_tensor(uint64_t seed) {
    static const struct {
        int type;
        uint32_t element;
    } TYPES[] = {{0, 1}, {1, 2}, {6, 2}, {9, 2}, {7, 4}, {2, 4}, {8, 8}, {5, 8}};
    struct tensor t = {.rank = 1 + next_number(&seed) % RANK,
                       .swizzle = (int)(next_number(&seed) % 4)};
    const uint32_t kind = next_number(&seed) % (sizeof TYPES / sizeof TYPES[0]);
    t.type = TYPES[kind].type;
    t.element = TYPES[kind].element;
    t.fill = t.type >= 6 && next_number(&seed) % 3 == 0;
    const uint32_t span = t.swizzle == 0 ? 16 * (1 + next_number(&seed) % 4) : 16U << t.swizzle;
    uint64_t stride = 0;
    for (uint32_t i = 0; i < RANK; i++) {
        t.dims[i] = 1 + next_number(&seed) % (i == 0 ? 80 : 9);
        t.box[i] = i == 0 ? span / t.element : 1 + next_number(&seed) % (i == 1 ? 12 : 3);
        t.steps[i] = next_number(&seed) % 4 == 0 ? 1 + next_number(&seed) % 3 : 1;
        t.at[i] = (int32_t)(next_number(&seed) % 12) - 4;
        stride = i == 0 ? (t.dims[0] * t.element + 15) / 16 * 16 : stride * t.dims[i];
        stride += next_number(&seed) % 3 == 0 ? 16 : 0;
        if (i < RANK - 1) {
            t.strides[i] = stride;
        }
    }
    return t;
}

/* ---- kernels --------------------------------------------------------------------------------- */

#define PARAMS                                                                                     \
    "(.param .align 64 .b8 map[128], .param .u64 data, .param .u32 bytes, .param .u32 c0, "        \
    ".param .u32 c1, .param .u32 c2, .param .u32 c3, .param .u32 c4)"

#define BEGIN                                                                                      \
    PTX_HEAD ".shared .align 8 .b64 bar;\n"                                                        \
             ".visible .entry k" PARAMS " {\n"                                                     \
             ".reg .b16 %h<4>; .reg .b32 %r<20>; .reg .b64 %rd<10>; .reg .pred %p<6>;\n"           \
             "mov.u32 %r1, %tid.x; mov.u32 %r2, bar; mov.u32 %r3, tile;\n"                         \
             "ld.param.u64 %rd2, [data]; ld.param.u32 %r5, [bytes]; ld.param.u32 %r10, [c0];\n"    \
             "ld.param.u32 %r11, [c1]; ld.param.u32 %r12, [c2]; ld.param.u32 %r13, [c3];\n"        \
             "ld.param.u32 %r14, [c4]; mov.b64 %rd1, map; cvta.param.u64 %rd1, %rd1;\n"            \
             "shl.b32 %r6, %r1, 2; setp.ne.u32 %p1, %r1, 0;\n"

/* Loads a box and copies it to `data`, as it lies in shared memory. */
static const char LOAD[] = BEGIN
    "@%p1 bra READY;\n"
    "prefetch.tensormap [%rd1];\n"
    "mbarrier.init.shared::cta.b64 [%r2], 1;\n"
    "fence.mbarrier_init.release.cluster;\n"
    "READY: bar.sync 0;\n"
    "@%p1 bra WAIT;\n"
    "mov.u32 %r4, %r5;\n"
    "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], %r4;\n"
    "cp.async.bulk.COPY.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], SOURCE, [%r2];\n"
    "WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r2], 0;\n"
    "@!%p2 bra WAIT;\n"
    "LOOP: setp.ge.u32 %p3, %r6, %r5;\n"
    "@%p3 bra DONE;\n"
    "add.u32 %r7, %r3, %r6; ld.shared.u32 %r8, [%r7]; cvt.u64.u32 %rd3, %r6;\n"
    "add.u64 %rd3, %rd2, %rd3; st.global.u32 [%rd3], %r8; add.u32 %r6, %r6, 256;\n"
    "bra LOOP;\n"
    "DONE: ret; }\n";

/* Copies `data` to shared memory as it is and stores the box. */
static const char STORE[] =
    BEGIN "LOOP: setp.ge.u32 %p3, %r6, %r5;\n"
          "@%p3 bra FENCE;\n"
          "cvt.u64.u32 %rd3, %r6; add.u64 %rd3, %rd2, %rd3; ld.global.u32 %r8, [%rd3];\n"
          "add.u32 %r7, %r3, %r6; st.shared.u32 [%r7], %r8; add.u32 %r6, %r6, 256;\n"
          "bra LOOP;\n"
          "FENCE: fence.proxy.async.shared::cta;\n"
          "bar.sync 0;\n"
          "@%p1 bra DONE;\n"
          "cp.async.bulk.COPY.global.shared::cta.bulk_group SOURCE, [%r3];\n"
          "cp.async.bulk.commit_group;\n"
          "cp.async.bulk.wait_group 0;\n"
          "DONE: ret; }\n";

/* The text for tensors of a rank. */
static inline char *of_rank(const char *text, uint32_t rank) {
    static const char *const KINDS[] = {"tensor.1d", "tensor.2d", "tensor.3d", "tensor.4d",
                                        "tensor.5d"};
    static const char *const SOURCES[] = {
        "[%rd1, {%r10}]", "[%rd1, {%r10, %r11}]", "[%rd1, {%r10, %r11, %r12}]",
        "[%rd1, {%r10, %r11, %r12, %r13}]", "[%rd1, {%r10, %r11, %r12, %r13, %r14}]"};
    char *half = plant(text, "COPY", KINDS[rank - 1]);
    char *whole = plant(half, "SOURCE", SOURCES[rank - 1]);
    free(half);
    return whole;
}

static inline void run_tensor(struct bench *bench, const char *ptx, void *map, vgpu_pointer data,
                              uint32_t bytes, const int32_t *at) {
    int32_t c[RANK];
    memcpy(c, at, sizeof c);
    void *arguments[] = {map, &data, &bytes, &c[0], &c[1], &c[2], &c[3], &c[4]};
    bench_run(bench, ptx, arguments);
}

static inline void expected_load(const struct tensor *t, const unsigned char *memory,
                                 unsigned char *expected) {
    const uint32_t count = box_bytes(t) / t->element;
    for (uint32_t n = 0; n < count; n++) {
        const int64_t source = source_of(t, n);
        for (uint32_t b = 0; b < t->element; b++) {
            const bool top = b == t->element - 1;
            const unsigned char outside = t->fill == 0 ? 0 : top ? 0x7f : 0xff;
            expected[place_of(t, n * t->element + b)] =
                source < 0 ? outside : memory[source + (int64_t)b];
        }
    }
}

/* `map` is then the address of the bytes, in the low 8 bytes. */
static inline char *plain(const char *text) {
    const bool load = strstr(text, "complete_tx") != NULL;
    char *one = plant(text, "bulk.COPY.", "bulk.");
    char *two = plant(one, load ? "SOURCE, [%r2]" : "SOURCE, [%r3]",
                      load ? "[%rd1], %r5, [%r2]" : "[%rd1], [%r3], %r5");
    char *three = plant(two, "cvta.param.u64 %rd1, %rd1;", "ld.param.u64 %rd1, [map];");
    free(one);
    free(two);
    if (!load) {
        return three;
    }
    char *four = plant(three, "prefetch.tensormap [%rd1];\n", "");
    free(three);
    return four;
}

/* 16 rows of 64 bytes of f16, no swizzle, in the middle of a tensor. */
static const struct tensor PLAIN_TENSOR = {.type = 6,
                                           .rank = 2,
                                           .element = 2,
                                           .dims = {64, 32},
                                           .strides = {128},
                                           .box = {32, 16},
                                           .steps = {1, 1},
                                           .at = {32, 8}};

#endif /* TMA_FIXTURE_H */
