/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_vgpu.c - any bytes as a module for the virtual GPU: loaded or refused with one sentence, and
 * its first kernels run to an end, whatever they do, within the limits on steps and memory.
 *
 * The order of completion, the checks, the number of threads and whether unknown instructions are
 * errors of the launch come from the input's size and sum. Parameters of 8 bytes get a buffer,
 * those of 128 a tensor map. Seeds are in tests/data/fuzz_vgpu; for libFuzzer a mutator of its own
 * exchanges words and lines, since few changes of single bytes are PTX.
 *
 * Held by abort(): a sentence exactly where a call failed, with a place in the text if it was the
 * text's fault; a launch that faulted has a finding; the limit on steps; reports in every format.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz/fuzz.h"
#include "vgpu.h"

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed);
size_t LLVMFuzzerCustomCrossOver(const uint8_t *a, size_t a_size, const uint8_t *b, size_t b_size,
                                 uint8_t *out, size_t max_size, unsigned seed);
__attribute__((weak)) size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);

enum {
    ENTRIES_MAX = 2,
    PARAMS_MAX = 16,
    PARAM_BYTES = 4096,
    BUFFER_BYTES = 16384,
    STEPS = 4000,
    BLOCK_MOST = 256,
    MEMORY = 1 << 22
};

/* ---- a launch -------------------------------------------------------------------------------- */

struct arguments {
    void *of[PARAMS_MAX];
    _Alignas(128) unsigned char bytes[PARAMS_MAX][PARAM_BYTES];
};

static bool make_argument(vgpu *gpu, unsigned char *argument, uint32_t bytes, uint32_t index) {
    vgpu_error why;
    vgpu_pointer buffer;
    memset(argument, 0, PARAM_BYTES);
    if (bytes != 8 && bytes != 128) {
        argument[0] = (unsigned char)(16 + index);
        return bytes <= PARAM_BYTES;
    }
    if (vgpu_malloc(gpu, BUFFER_BYTES, index % 2 == 0 ? "even" : NULL, &buffer, &why) != VGPU_OK) {
        return false; /* the module's variables took it all */
    }
    if (index != 2) { /* that one stays uninitialised */
        HOLDS(vgpu_fill(gpu, buffer, 1, BUFFER_BYTES, &why) == VGPU_OK);
    }
    if (bytes == 8) {
        memcpy(argument, &buffer, sizeof buffer);
        return true;
    }
    const uint64_t dims[2] = {64, 64}, strides[1] = {128};
    const uint32_t box[2] = {64, 16}, steps[2] = {1, 1};
    HOLDS(vgpu_tensor_map(gpu, argument, 6, 2, buffer, dims, strides, box, steps, 0, 3, 0, 0,
                          &why) == VGPU_OK);
    return true;
}

static bool make_arguments(vgpu *gpu, const vgpu_module *module, size_t entry, uint32_t count,
                           struct arguments *arguments) {
    for (uint32_t i = 0; i < count; i++) {
        uint32_t offset, bytes;
        HOLDS(i < PARAMS_MAX && vgpu_param_get(module, entry, i, &offset, &bytes));
        arguments->of[i] = arguments->bytes[i];
        if (!make_argument(gpu, arguments->bytes[i], bytes, i)) {
            return false;
        }
    }
    return true;
}

static void launch(vgpu *gpu, const vgpu_module *module, size_t entry, uint32_t threads) {
    static struct arguments arguments;
    vgpu_kernel kernel;
    vgpu_stats before, after;
    vgpu_error why = {0};
    vgpu_finding finding;
    if (!vgpu_kernel_get(module, entry, &kernel) || kernel.param_count > PARAMS_MAX ||
        !make_arguments(gpu, module, entry, kernel.param_count, &arguments)) {
        return;
    }
    vgpu_dims dims = {.grid = {2, 1, 1}, .block = {threads, 1, 1}};
    vgpu_findings_clear(gpu);
    vgpu_stats_get(gpu, &before);
    vgpu_status status = vgpu_launch(gpu, module, kernel.name, &dims, arguments.of, &why);
    if (status == VGPU_INVALID && kernel.max_threads <= BLOCK_MOST) { /* .reqntid */
        dims.block[0] = kernel.max_threads;
        status = vgpu_launch(gpu, module, kernel.name, &dims, arguments.of, &why);
    }
    vgpu_stats_get(gpu, &after);
    HOLDS((status == VGPU_OK) == (why.text[0] == '\0'));
    HOLDS(status != VGPU_FAULT || vgpu_finding_get(gpu, 0, &finding));
    HOLDS(after.warp_instructions - before.warp_instructions <= 2 * ENTRIES_MAX * STEPS);
}

/* ---- a module -------------------------------------------------------------------------------- */

static void report(const vgpu *gpu) {
    static FILE *sink;
    sink = sink != NULL ? sink : fopen("/dev/null", "w");
    HOLDS(sink != NULL);
    for (int format = VGPU_TEXT; format <= VGPU_SARIF; format++) {
        HOLDS(vgpu_report(gpu, sink, (vgpu_format)format) == VGPU_OK);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    vgpu_config config;
    vgpu_error why = {0};
    vgpu *gpu;
    vgpu_module *module;
    unsigned sum = 0;
    for (size_t i = 0; i < size; i++) {
        sum += data[i];
    }
    vgpu_config_init(&config);
    config.threads = 1 + (int32_t)(sum >> 2 & 1);
    config.async = (vgpu_async)(sum & 3);
    config.checks = (sum >> 3 & 7) == 0 ? 0 : VGPU_CHECK_ALL;
    config.max_steps = STEPS;
    config.max_memory = MEMORY;
    HOLDS(vgpu_open(&config, &gpu, &why) == VGPU_OK);
    vgpu_set_late_errors(gpu, (sum >> 7 & 1) != 0);
    const vgpu_status status = vgpu_load(gpu, (const char *)data, size, &module, &why);
    HOLDS((status == VGPU_OK) == (module != NULL) && (status == VGPU_OK) == (why.text[0] == '\0'));
    HOLDS(why.line == 0 || strchr(why.text, '^') != NULL);
    for (size_t i = 0; module != NULL && i < ENTRIES_MAX; i++) {
        launch(gpu, module, i, (sum >> 6 & 1) != 0 ? 64 : 32);
    }
    report(gpu);
    vgpu_unload(module);
    vgpu_close(gpu);
    return 0;
}

/* ---- changes --------------------------------------------------------------------------------- */

/* A part of a text. */
struct part {
    size_t begin, end;
};

static unsigned draw(unsigned *state, size_t below) {
    *state = *state * 1664525u + 1013904223u;
    return below > 0 ? (*state >> 8) % (unsigned)below : 0;
}

static bool is_word(uint8_t c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_' ||
           c == '%' || c == ':';
}

/* The word around a place (what is between dots, commas and blanks), or nothing. */
static struct part word_at(const uint8_t *data, size_t size, size_t at) {
    struct part part = {at, at};
    while (part.begin > 0 && is_word(data[part.begin - 1])) {
        part.begin--;
    }
    while (part.end < size && is_word(data[part.end])) {
        part.end++;
    }
    return part;
}

/* The line or, half of the time, the instruction around a place. */
static struct part line_at(const uint8_t *data, size_t size, size_t at, bool instruction) {
    const uint8_t stop = instruction ? ';' : '\n';
    struct part part = {at, at};
    while (part.begin > 0 && data[part.begin - 1] != stop) {
        part.begin--;
    }
    while (part.end < size && data[part.end] != stop) {
        part.end++;
    }
    part.end += part.end < size;
    return part;
}

/* Puts `bytes` in the place of the part; returns the new size, or the old one if that is too much.
 */
static size_t put(uint8_t *data, size_t size, size_t max_size, struct part part,
                  const uint8_t *bytes, size_t count) {
    const size_t left = size - part.end, new_size = part.begin + count + left;
    if (new_size > max_size) {
        return size;
    }
    memmove(data + part.begin + count, data + part.end, left);
    memcpy(data + part.begin, bytes, count);
    return new_size;
}

/* A part of `from` into `data`, as a word in the place of one or as a line before one. */
static size_t exchange(uint8_t *data, size_t size, size_t max_size, const uint8_t *from,
                       size_t from_size, unsigned *state) {
    const size_t at = draw(state, size), from_at = draw(state, from_size);
    const bool words = draw(state, 2) == 0, instruction = draw(state, 2) == 0;
    struct part to = words ? word_at(data, size, at) : line_at(data, size, at, instruction);
    const struct part part =
        words ? word_at(from, from_size, from_at) : line_at(from, from_size, from_at, instruction);
    const size_t count = part.end - part.begin;
    uint8_t *copy = malloc(count + 1);
    if (copy == NULL) {
        return size;
    }
    memcpy(copy, from + part.begin, count);
    if (!words && draw(state, 4) != 0) {
        to.end = to.begin; /* else it replaces the line */
    }
    size = put(data, size, max_size, to, copy, count);
    free(copy);
    return size;
}

static size_t put_word(uint8_t *data, size_t size, size_t max_size, unsigned *state) {
    static const char *const WORDS[] = {
        "0",       "1",          "2",          "31",         "32",         "33",
        "-1",      "0x7fffffff", "16",         "64",         "127",        "65535",
        "4096",    "1048576",    "0xffffffff", "4294967295", "u8",         "s16",
        "b16",     "u32",        "s32",        "f32",        "u64",        "f64",
        "b128",    "f16x2",      "bf16",       "tf32",       "e4m3",       "pred",
        "cta",     "cluster",    "sys",        "shared",     "global",     "local",
        "v2",      "v4",         "param",      "const",      "sync",       "async",
        "aligned", "noinc",      "cc",         "wide",       "sat",        "ftz",
        "bulk",    "tensor",     "multicast",  "m8n8",       "x4",         "trans",
        "wait",    "commit",     "%tid",       "%r0",        "%rd0",       "%p0",
        "%h0",     "%laneid",    "%clock64",   "wait_group", "bar",        "bra",
        "call",    "trap",       "exit",       "mbarrier",   "0f7FC00000", "0d7FF0000000000000"};
    const char *word = WORDS[draw(state, sizeof WORDS / sizeof WORDS[0])];
    return put(data, size, max_size, word_at(data, size, draw(state, size)), (const uint8_t *)word,
               strlen(word));
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed) {
    unsigned state = seed;
    const unsigned way = draw(&state, 8);
    if (size == 0 || (way == 0 && LLVMFuzzerMutate != NULL)) {
        return LLVMFuzzerMutate != NULL ? LLVMFuzzerMutate(data, size, max_size) : size;
    }
    for (unsigned changes = 1 + draw(&state, 4); changes > 0 && size > 0; changes--) {
        const unsigned what = draw(&state, 8);
        if (what == 0) {
            const uint8_t nothing = 0;
            size = put(data, size, max_size,
                       line_at(data, size, draw(&state, size), draw(&state, 2) == 0), &nothing, 0);
        } else if (what < 4) {
            size = put_word(data, size, max_size, &state);
        } else {
            size = exchange(data, size, max_size, data, size, &state);
        }
    }
    return size;
}

size_t LLVMFuzzerCustomCrossOver(const uint8_t *a, size_t a_size, const uint8_t *b, size_t b_size,
                                 uint8_t *out, size_t max_size, unsigned seed) {
    unsigned state = seed;
    if (a_size > max_size) {
        return 0;
    }
    memcpy(out, a, a_size);
    for (unsigned changes = 1 + draw(&state, 6); changes > 0 && b_size > 0; changes--) {
        a_size = exchange(out, a_size, max_size, b, b_size, &state);
    }
    return a_size;
}
