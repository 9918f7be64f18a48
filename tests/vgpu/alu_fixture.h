/* SPDX-License-Identifier: Apache-2.0
 *
 * alu_fixture.h - runs one instruction of PTX text on a warp made by hand and compares it with a
 * model, lane by lane.
 *
 *     alu_check("add.s32", "rrr", model_add);
 *
 * decodes `add.s32 %r0, %r1, %r2;` and executes it for many operands: special values, small numbers
 * and random bits, under full and partial masks. The letters are the operands' registers (h: 16
 * bits, r: 32, d: 64, p: a predicate), the result first; a model gets the sources' bits and
 * returns the result's. A text with operands of its own is given whole, with letters for what it
 * reads.
 *
 * Invariant: lanes outside the mask must keep their value; a form that cannot be decoded fails.
 */
#ifndef ALU_FIXTURE_H
#define ALU_FIXTURE_H

#include <stdlib.h>

#include "test.h"
#include "vgpu/exec/exec.h"

enum { ALU_REGISTERS = 8 };
static int alu_rounds = 200; /* of 32 lanes each */

struct alu {
    struct ptx_module *ptx;
    struct vgpu_module module;
    const struct kernel *kernel;
    struct warp warp;
    uint32_t rows[3][ALU_REGISTERS]; /* of h, r, d */
    uint32_t predicates[ALU_REGISTERS];
    uint32_t op_count; /* before the probes */
};

typedef uint64_t alu_model(const uint64_t *v);

static uint64_t alu_seed = 88172645463325252ULL;
static inline uint64_t alu_random(void) {
    alu_seed ^= alu_seed << 13;
    alu_seed ^= alu_seed >> 7;
    alu_seed ^= alu_seed << 17;
    return alu_seed * 0x2545f4914f6cdd1dULL;
}

/* Why the text cannot be loaded, or "". */
static char alu_error[256];

/* Decodes `text`, followed by one instruction per register that reveals its row. */
static inline bool alu_load(struct alu *alu, const char *text) {
    char ptx[8192];
    int length = snprintf(ptx, sizeof ptx,
                          ".version 9.0\n.target sm_90a\n.address_size 64\n"
                          ".visible .entry k()\n{\n.reg .pred %%p<8>;\n.reg .b16 %%h<8>;\n"
                          ".reg .b32 %%r<8>;\n.reg .b64 %%d<8>;\n%s\n",
                          text);
    for (int i = 0; i < ALU_REGISTERS; i++) {
        length += snprintf(ptx + length, sizeof ptx - (size_t)length,
                           "mov.b16 %%h%d, %%h%d;\nmov.b32 %%r%d, %%r%d;\nmov.b64 %%d%d, %%d%d;\n"
                           "mov.pred %%p%d, %%p%d;\n",
                           i, i, i, i, i, i, i, i);
    }
    length += snprintf(ptx + length, sizeof ptx - (size_t)length, "ret;\n}\n");
    struct ptx_error error = {0};
    *alu = (struct alu){0};
    alu_error[0] = '\0';
    alu->ptx = ptx_parse(ptx, (size_t)length, &error);
    alu->module.ptx = alu->ptx;
    if (alu->ptx == NULL || module_decode(&alu->module, &error) != VGPU_OK) {
        memcpy(alu_error, error.text, sizeof alu_error);
        ptx_free(alu->ptx);
        return false;
    }
    const struct kernel *k = alu->kernel = alu->module.kernels[0];
    alu->op_count = k->code_count - 4 * ALU_REGISTERS - 1;
    for (uint32_t i = 0; i < 4 * ALU_REGISTERS; i++) {
        const struct op *op = &k->code[alu->op_count + i];
        *(i % 4 == 3 ? &alu->predicates[i / 4] : &alu->rows[i % 4][i / 4]) = op->d;
    }
    alu->warp.rows = aligned_alloc(64, k->row_bytes);
    memcpy(alu->warp.rows, k->constants, k->row_bytes);
    alu->warp.poison = calloc(k->row_bytes / 64, sizeof(uint32_t));
    alu->warp.predicates = calloc(k->predicate_count, sizeof(uint32_t));
    alu->warp.predicate_poison = calloc(k->predicate_count, sizeof(uint32_t));
    alu->warp.predicates[0] = ALL_LANES;
    return true;
}

static inline void alu_unload(struct alu *alu) {
    free(alu->warp.rows);
    free(alu->warp.poison);
    free(alu->warp.predicates);
    free(alu->warp.predicate_poison);
    ptx_free(alu->ptx);
}

static inline uint32_t alu_bytes(char letter) {
    return letter == 'h' ? 2 : letter == 'r' ? 4 : 8;
}
static inline uint32_t alu_row(const struct alu *alu, char letter, uint32_t i) {
    return alu->rows[letter == 'h' ? 0 : letter == 'r' ? 1 : 2][i];
}
static inline uint64_t alu_get(const struct alu *alu, char letter, uint32_t i, uint32_t lane) {
    if (letter == 'p') {
        return alu->warp.predicates[alu->predicates[i]] >> lane & 1;
    }
    uint64_t bits = 0;
    const uint32_t bytes = alu_bytes(letter);
    memcpy(&bits, alu->warp.rows + alu_row(alu, letter, i) + lane * bytes, bytes);
    return bits;
}
static inline void alu_set(struct alu *alu, char letter, uint32_t i, uint32_t lane, uint64_t bits) {
    if (letter == 'p') {
        uint32_t *mask = &alu->warp.predicates[alu->predicates[i]];
        *mask = (*mask & ~(1U << lane)) | (uint32_t)(bits & 1) << lane;
        return;
    }
    const uint32_t bytes = alu_bytes(letter);
    memcpy(alu->warp.rows + alu_row(alu, letter, i) + lane * bytes, &bits, bytes);
}

static inline void alu_run(struct alu *alu, uint32_t mask) {
    for (uint32_t i = 0; i < alu->op_count; i++) {
        const struct op *op = &alu->kernel->code[i];
        op->run(&alu->warp, op, mask);
    }
}

/* Bits worth a look: zeros, ends of ranges, subnormals, infinities, not-a-number, halves; of 16, 32
 * and 64 bits, at random places; small integers; shift amounts; or anything. */
static inline uint64_t alu_operand(char letter) {
    static const uint16_t high[] = {0x0000, 0x8000, 0x0001, 0x8001, 0x03ff, 0x0400, 0x3c00, 0xbc00,
                                    0x7bff, 0x7c00, 0xfc00, 0x7c01, 0x7e00, 0xffff, 0x7fff, 0x3800,
                                    0x007f, 0x0080, 0x3f80, 0xbf80, 0x7f7f, 0x7f80, 0xff80, 0x7f81,
                                    0x7ff0, 0xfff0, 0x3ff0, 0x7e80, 0x4f00, 0xcf00, 0x4f80, 0x3f00};
    const uint64_t r = alu_random();
    const uint64_t top = high[r >> 8 & 31];
    const uint32_t bytes = letter == 'p' ? 1 : alu_bytes(letter);
    switch (r & 7) {
    case 0: return top << ((8 * bytes - 16) & 63) | (r >> 20 & 1 ? alu_random() & 0xff : 0);
    case 1: return top << ((8 * bytes - 16) & 63) | alu_random() >> ((70 - 8 * bytes) & 63);
    case 2: return r >> 32 & 63;
    case 3: return 0 - (r >> 32 & 63);
    case 4: return top | top << 16 | top << 32 | top << 48;
    case 5: return 1ULL << (r >> 16 & 63);
    case 6: return alu_random() & alu_random() & alu_random();
    default: return alu_random();
    }
}

static inline uint64_t alu_cut(char letter, uint64_t bits) {
    const uint32_t width = letter == 'p' ? 1 : 8 * alu_bytes(letter);
    return width == 64 ? bits : bits & ((1ULL << width) - 1);
}

/* Whether two results are the same; a test may put its own tolerance here. */
typedef bool alu_same(uint64_t got, uint64_t want, const uint64_t *v);

static inline bool alu_equal(uint64_t got, uint64_t want, const uint64_t *v) {
    (void)v;
    return got == want;
}

static inline void alu_check_with(const char *text, const char *letters, alu_model *model,
                                  alu_same *same) {
    char whole[512];
    struct alu alu;
    int length = snprintf(whole, sizeof whole, "%s", text);
    for (uint32_t i = 0; strchr(text, ';') == NULL && letters[i] != '\0'; i++) {
        length += snprintf(whole + length, sizeof whole - (size_t)length, "%s%%%c%u",
                           i == 0 ? " " : ", ", letters[i], i);
    }
    if (strchr(text, ';') == NULL) {
        snprintf(whole + length, sizeof whole - (size_t)length, ";");
    }
    const bool loaded = alu_load(&alu, whole);
    if (!CHECK_MSG(loaded, "%s: %s", whole, alu_error)) {
        return;
    }
    for (int round = 0; round < alu_rounds; round++) {
        const uint32_t mask = round % 4 != 0 ? ALL_LANES : (uint32_t)alu_random() | 1;
        uint64_t v[LANES][8] = {{0}};
        uint64_t before[LANES];
        for (uint32_t lane = 0; lane < LANES; lane++) {
            for (uint32_t i = 0; letters[i] != '\0'; i++) {
                alu_set(&alu, letters[i], i, lane, alu_operand(letters[i]));
            }
            for (uint32_t i = 1; letters[i] != '\0'; i++) {
                v[lane][i - 1] = alu_get(&alu, letters[i], i, lane);
            }
            before[lane] = alu_get(&alu, letters[0], 0, lane);
        }
        alu_run(&alu, mask);
        for (uint32_t lane = 0; lane < LANES; lane++) {
            const bool runs = (mask >> lane & 1) != 0;
            const uint64_t got = alu_get(&alu, letters[0], 0, lane);
            const uint64_t want = runs ? alu_cut(letters[0], model(v[lane])) : before[lane];
            const bool good = runs ? same(got, want, v[lane]) : got == want;
            if (!CHECK_MSG(good, "%s of %llx, %llx, %llx: %llx, not %llx", whole,
                           (unsigned long long)v[lane][0], (unsigned long long)v[lane][1],
                           (unsigned long long)v[lane][2], (unsigned long long)got,
                           (unsigned long long)want)) {
                alu_unload(&alu);
                return;
            }
        }
    }
    alu_unload(&alu);
}

static inline void alu_check(const char *text, const char *letters, alu_model *model) {
    alu_check_with(text, letters, model, alu_equal);
}

/* The text must be refused. */
static inline void alu_refused(const char *text) {
    struct alu alu;
    const bool loaded = alu_load(&alu, text);
    CHECK_MSG(!loaded, "%s was not refused", text);
    if (loaded) {
        alu_unload(&alu);
    }
}

#endif /* ALU_FIXTURE_H */
