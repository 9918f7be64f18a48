/* SPDX-License-Identifier: Apache-2.0
 *
 * test_golden.c - the virtual GPU against an H200: the kernels of golden/cases.h, whose
 * results there are in data/golden.bin (written by golden/vectors.cu), bit by bit or within the
 * bound that the case states.
 *
 * Invariant: a finding in any of them fails; an f32 that is no number passes only where the GPU's
 * is none either.
 */
#include "golden/cases.h"
#include "test.h"
#include "vgpu.h"

#include <math.h>
#include <stdlib.h>

static const char *const golden_file = "tests/data/golden.bin";

static bool values_agree(const struct golden_case *c, float mine, float theirs) {
    if (isnan(theirs) || isnan(mine)) {
        return isnan(theirs) && isnan(mine);
    }
    if (isinf(theirs) || isinf(mine)) {
        return mine == theirs;
    }
    const double difference = fabs((double)mine - (double)theirs);
    const double size = fabs((double)theirs);
    switch (c->compare) {
    case GOLDEN_RELATIVE: return difference <= fmax(c->bound * size, 0x1p-149);
    case GOLDEN_MIXED: return difference <= c->bound * fmax(1, size);
    default: return difference <= c->bound;
    }
}

static void compare(const struct golden_case *c, const unsigned char *mine,
                    const unsigned char *theirs) {
    for (unsigned i = 0; i < c->out_bytes; i += 4) {
        uint32_t my_bits, their_bits, input = 0;
        float my_value, their_value;
        memcpy(&my_bits, mine + i, 4);
        memcpy(&their_bits, theirs + i, 4);
        memcpy(&my_value, mine + i, 4);
        memcpy(&their_value, theirs + i, 4);
        if (i + 4 <= c->in_bytes) {
            memcpy(&input, c->in + i, 4);
        }
        const bool same = my_bits == their_bits;
        if (!CHECK_MSG(same ||
                           (c->compare != GOLDEN_EXACT && values_agree(c, my_value, their_value)),
                       "%s: word %u (input 0x%08x): 0x%08x, the GPU has 0x%08x", c->name, i / 4,
                       input, my_bits, their_bits)) {
            return; /* one is enough */
        }
    }
}

static void run(const struct golden_case *c, unsigned char *out) {
    vgpu_config config;
    vgpu_error why;
    vgpu *gpu;
    vgpu_module *module;
    vgpu_pointer from, to;
    vgpu_finding finding;
    const vgpu_dims dims = {.grid = {1, 1, 1}, .block = {c->threads, 1, 1}};
    vgpu_config_init(&config);
    config.threads = 1;
    CHECK(vgpu_open(&config, &gpu, &why) == VGPU_OK);
    if (CHECK_MSG(vgpu_load(gpu, c->ptx, c->ptx_bytes, &module, &why) == VGPU_OK, "%s: %s", c->name,
                  why.text)) {
        CHECK(vgpu_malloc(gpu, c->in_bytes, "in", &from, &why) == VGPU_OK);
        CHECK(vgpu_malloc(gpu, c->out_bytes, "out", &to, &why) == VGPU_OK);
        CHECK(vgpu_write(gpu, from, c->in, c->in_bytes, &why) == VGPU_OK);
        CHECK(vgpu_fill(gpu, to, 0xee, c->out_bytes, &why) == VGPU_OK);
        CHECK_MSG(vgpu_launch(gpu, module, "k", &dims, (void *[]){&from, &to}, &why) == VGPU_OK,
                  "%s: %s", c->name, why.text);
        CHECK(vgpu_read(gpu, out, to, c->out_bytes, &why) == VGPU_OK);
        for (size_t i = 0; vgpu_finding_get(gpu, i, &finding); i++) {
            CHECK_MSG(false, "%s: PTX line %u: %s", c->name, finding.ptx_line, finding.text);
        }
        vgpu_unload(module);
    }
    vgpu_close(gpu);
}

/* Without the file too: every case can be loaded and runs clean. */
TEST(every_case_runs_clean) {
    static struct golden_case c;
    static unsigned char out[GOLDEN_MAX_OUT];
    for (unsigned i = 0; i < GOLDEN_COUNT; i++) {
        golden_make(i, &c);
        if (!CHECK(c.in_bytes <= GOLDEN_MAX_IN && c.out_bytes <= GOLDEN_MAX_OUT &&
                   c.ptx_bytes < GOLDEN_MAX_PTX)) {
            return;
        }
        run(&c, out);
    }
}

TEST(results_are_those_of_an_h200) {
    static struct golden_case c;
    static unsigned char mine[GOLDEN_MAX_OUT], theirs[GOLDEN_MAX_OUT];
    char magic[8];
    uint32_t count = 0, bytes = 0;
    FILE *file = fopen(golden_file, "rb");
    if (!CHECK_MSG(file != NULL, "%s is missing", golden_file)) {
        return;
    }
    CHECK(fread(magic, sizeof magic, 1, file) == 1 && memcmp(magic, golden_magic, 8) == 0);
    CHECK(fread(&count, 4, 1, file) == 1);
    CHECK_EQ(count, (uint32_t)GOLDEN_COUNT);
    for (unsigned i = 0; i < count && i < GOLDEN_COUNT; i++) {
        golden_make(i, &c);
        if (!CHECK_MSG(fread(&bytes, 4, 1, file) == 1 && bytes == c.out_bytes &&
                           fread(theirs, bytes, 1, file) == 1,
                       "%s: the file does not have its output", c.name)) {
            break;
        }
        run(&c, mine);
        compare(&c, mine, theirs);
    }
    CHECK(fgetc(file) == EOF);
    fclose(file);
}

TEST_MAIN()
