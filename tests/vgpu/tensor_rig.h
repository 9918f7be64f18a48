/* SPDX-License-Identifier: Apache-2.0
 *
 * tensor_rig.h - for the tests of matrix instructions: runs one CTA of a PTX kernel
 * k(in, out) on a virtual GPU, and small numbers in every format.
 *
 * Invariant: a kernel that cannot be loaded or launched fails the test, with the reason.
 */
#ifndef TENSOR_RIG_H
#define TENSOR_RIG_H

#include <stdarg.h>
#include <stdlib.h>

#include "test.h"
#include "vgpu.h"

/* PTX that grows. */
struct text {
    char *data;
    size_t used, room;
};

__attribute__((format(printf, 2, 3))) static void text_add(struct text *text, const char *format,
                                                           ...) {
    va_list arguments;
    if (text->room - text->used < 4096) {
        text->room = 2 * text->room + 8192;
        text->data = realloc(text->data, text->room);
    }
    va_start(arguments, format);
    text->used += (size_t)vsnprintf(text->data + text->used, 4096, format, arguments);
    va_end(arguments);
}

/* Up to the kernel's first instruction; %rd1 is in, %rd2 out, %r1 the thread, %r2 the lane. */
static void text_begin(struct text *text, const char *target, const char *variables) {
    text_add(
        text,
        ".version 8.0\n.target %s\n.address_size 64\n"
        ".visible .entry k(.param .u64 p_in, .param .u64 p_out)\n{\n"
        ".reg .b32 %%r<400>;\n.reg .b64 %%rd<20>;\n.reg .f64 %%d<140>;\n.reg .pred %%p<9>;\n%s\n"
        "ld.param.u64 %%rd1, [p_in];\nld.param.u64 %%rd2, [p_out];\n"
        "cvta.to.global.u64 %%rd1, %%rd1;\ncvta.to.global.u64 %%rd2, %%rd2;\n"
        "mov.u32 %%r1, %%tid.x;\nand.b32 %%r2, %%r1, 31;\n",
        target, variables);
}

static void text_end(struct text *text) {
    text_add(text, "ret;\n}\n");
}

static uint64_t rig_seed = 1; /* of random completion */

struct rig {
    vgpu *gpu;
    vgpu_module *module;
    vgpu_status status;
};

/* uninit: the first bytes of `in` that are left uninitialised. */
__attribute__((unused)) static struct rig rig_run(const struct text *text, uint32_t threads,
                                                  const void *in, size_t in_bytes, size_t uninit,
                                                  void *out, size_t out_bytes, vgpu_async async) {
    struct rig rig = {0};
    vgpu_config config;
    vgpu_error why;
    vgpu_pointer from, to;
    const vgpu_dims dims = {.grid = {1, 1, 1}, .block = {threads, 1, 1}};
    vgpu_config_init(&config);
    config.threads = 1;
    config.async = async;
    config.seed = rig_seed;
    rig.status = vgpu_open(&config, &rig.gpu, &why);
    if (!CHECK_MSG(rig.status == VGPU_OK, "%s", why.text)) {
        exit(1);
    }
    rig.status = vgpu_load(rig.gpu, text->data, text->used, &rig.module, &why);
    if (!CHECK_MSG(rig.status == VGPU_OK, "%s", why.text)) {
        return rig;
    }
    CHECK(vgpu_malloc(rig.gpu, in_bytes, "in", &from, &why) == VGPU_OK);
    CHECK(vgpu_malloc(rig.gpu, out_bytes, "out", &to, &why) == VGPU_OK);
    CHECK(vgpu_write(rig.gpu, from + uninit, (const char *)in + uninit, in_bytes - uninit, &why) ==
          VGPU_OK);
    CHECK(vgpu_fill(rig.gpu, to, 0xee, out_bytes, &why) == VGPU_OK);
    rig.status = vgpu_launch(rig.gpu, rig.module, "k", &dims, (void *[]){&from, &to}, &why);
    CHECK_MSG(rig.status == VGPU_OK || rig.status == VGPU_FAULT, "%s", why.text);
    CHECK(vgpu_read(rig.gpu, out, to, out_bytes, &why) == VGPU_OK);
    return rig;
}

/* How often findings of the kind were made; NULL: of any kind. */
__attribute__((unused)) static uint64_t rig_count(const struct rig *rig, const char *kind) {
    vgpu_finding finding;
    uint64_t count = 0;
    for (size_t i = 0; vgpu_finding_get(rig->gpu, i, &finding); i++) {
        count += kind == NULL || strcmp(finding.kind, kind) == 0 ? finding.count : 0;
    }
    return count;
}

/* No finding at all, or all of them printed. */
__attribute__((unused)) static void rig_check_clean(const struct rig *rig) {
    vgpu_finding finding;
    for (size_t i = 0; vgpu_finding_get(rig->gpu, i, &finding); i++) {
        CHECK_MSG(false, "PTX line %u: %s: %s", finding.ptx_line, finding.kind, finding.text);
    }
}

__attribute__((unused)) static void rig_close(struct rig *rig, struct text *text) {
    if (rig->module != NULL) {
        vgpu_unload(rig->module);
    }
    vgpu_close(rig->gpu);
    free(text->data);
    *text = (struct text){0};
}

/* ---- numbers --------------------------------------------------------------------------------- */

static uint32_t random_state = 1;

__attribute__((unused)) static uint32_t random_bits(void) {
    random_state = random_state * 1664525U + 1013904223U;
    return random_state >> 8;
}

/* The bits of a small integer in a format of `mantissa` bits and `exponent` bits (IEEE-like). */
__attribute__((unused)) static uint64_t small_float(int value, int exponent, int mantissa) {
    const uint64_t sign = value < 0 ? 1U : 0U;
    uint64_t magnitude = (uint64_t)(value < 0 ? -value : value);
    int top = 0;
    if (magnitude == 0) {
        return 0;
    }
    while (magnitude >> (top + 1) != 0) {
        top++;
    }
    const uint64_t biased = (uint64_t)(top + (1 << (exponent - 1)) - 1);
    const uint64_t fraction = magnitude ^ 1ULL << top;
    const uint64_t field = top <= mantissa ? fraction << (mantissa - top) : 0;
    return sign << (exponent + mantissa) | biased << mantissa | field;
}

/* The bits of a small integer in the PTX type of this name. */
__attribute__((unused)) static uint64_t small_bits(const char *type, int value) {
    static const struct {
        const char *name;
        int exponent, mantissa;
    } floats[] = {{"f16", 5, 10},  {"bf16", 8, 7}, {"tf32", 8, 23}, {"f32", 8, 23},
                  {"f64", 11, 52}, {"e4m3", 4, 3}, {"e5m2", 5, 2}};
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++) {
        if (strcmp(type, floats[i].name) == 0) {
            return small_float(value, floats[i].exponent, floats[i].mantissa);
        }
    }
    return (uint64_t)(int64_t)value;
}

__attribute__((unused)) static unsigned type_bits(const char *type) {
    const unsigned bits = (unsigned)atoi(type + strcspn(type, "0123456789"));
    return type[0] == 'e' ? 8 : bits; /* e4m3, e5m2 */
}

/* Puts `bits` wide value number i into packed memory. */
__attribute__((unused)) static void put_bits(void *memory, size_t i, unsigned bits,
                                             uint64_t value) {
    unsigned char *bytes = memory;
    if (bits == 4) {
        bytes[i / 2] = (unsigned char)((bytes[i / 2] & (i % 2 ? 0x0f : 0xf0)) |
                                       (value & 15) << (i % 2 ? 4 : 0));
        return;
    }
    memcpy(bytes + i * bits / 8, &value, bits / 8); /* little-endian */
}

#endif /* TENSOR_RIG_H */
