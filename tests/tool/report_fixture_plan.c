/* SPDX-License-Identifier: Apache-2.0
 *
 * report_fixture_plan.c - see report_fixture_plan.h.
 */
#include "tool/report_fixture_plan.h"

#include <stdio.h>
#include <string.h>

#include "tool/pack/plan.h"

#define COMMIT "f2f55a6c1d3b9e0a7f4428c6d5b1e93a0c7d8e21"

/* The GPU comes first. */
const struct report_row REPORT_ROWS[REPORT_ROW_COUNT] = {
    {PARITY, "cuda:0", NULL},   {EMULATE, "vgpu", NULL}, {INSPECT, "sm_90a", NULL},
    {SANITIZE, "cuda:0", NULL}, {BENCH, "cuda:0", NULL}, {PROFILE, "cuda:0", NULL},
    {PARITY, "cpu", NULL},      {BENCH, "cpu", NULL},
};

enum { CPU_VARIANTS = 2 };

/* ---- names ----------------------------------------------------------------------------------- */

bool report_is_cpu(const struct report_row *row) {
    return strcmp(row->device, "cpu") == 0;
}

int report_subjects(const struct report_making *fixture, const struct report_row *row) {
    return report_is_cpu(row)      ? CPU_VARIANTS
           : row->stage == PROFILE ? REPORT_CHOSEN
                                   : fixture->variants;
}

int report_ways(const struct report_row *row) {
    return (int)plan_least_timings(row->device, false, false);
}

int report_timings(const struct report_row *row, int index) {
    const bool chosen = !report_is_cpu(row) && index < REPORT_CHOSEN;
    return chosen ? (int)plan_least_timings(row->device, true, true)
                  : report_ways(row) * REPORT_LENGTHS;
}

const char *report_variant(const struct report_making *fixture, const struct report_row *row,
                           int index, char name[REPORT_VARIANT]) {
    static const char *const FAMILIES[] = {"fwd_hopper",       "fwd_hopper_causal", "fwd_mma",
                                           "fwd_hopper_split", "fwd_wmma",          "fwd_scalar"};
    static const int DIMS[] = {64, 128, 96, 192, 256};
    if (report_is_cpu(row)) {
        snprintf(name, REPORT_VARIANT, "%s", index == 0 ? "cpu_tile_neon" : "cpu_row_neon");
    } else if (fixture->kind == REPORT_HOSTILE && index == 0) {
        snprintf(name, REPORT_VARIANT, "%s", REPORT_HOSTILE_TEXT);
    } else {
        snprintf(name, REPORT_VARIANT, "%s_%s_d%d_%dx64_w%d_s%d", FAMILIES[index % 6],
                 index / 6 % 2 == 0 ? "fp16" : "bf16", DIMS[index / 12 % 5], 64 << (index % 3),
                 4 + 4 * (index % 4), 2 + index / 60);
    }
    return name;
}

const char *report_image(const struct report_row *row, int index, char image[SHA256_TEXT]) {
    if (report_is_cpu(row)) {
        return NULL;
    }
    snprintf(image, SHA256_TEXT, "%08x%056d", 0xc0ffee00U + (unsigned)index, index);
    return image;
}

/* ---- the plan -------------------------------------------------------------------------------- */

const char *report_absence(const struct report_making *fixture, const struct report_row *row) {
    const bool gpu = strncmp(row->device, "cuda", 4) == 0;
    if (fixture->kind == REPORT_PARTIAL && gpu && row->stage != INSPECT) {
        return row->stage == SANITIZE  ? "no compute-sanitizer in $PATH or /usr/local/cuda/bin"
               : row->stage == PROFILE ? "no ncu in $PATH or /usr/local/cuda/bin"
                                       : "libcuda.so.1: cannot open shared object file";
    }
    return NULL;
}

static void put_row(const struct report_making *fixture, const struct report_row *row,
                    struct json *json) {
    char name[REPORT_VARIANT], image[SHA256_TEXT];
    const char *absent = report_absence(fixture, row);
    json_open(json, NULL, '{');
    json_text(json, "stage", STAGE_NAMES[row->stage]);
    json_text(json, "device", row->device);
    json_text(json, "absent", absent);
    if (row->stage == PARITY || row->stage == EMULATE) {
        json_int(json, "cases", fixture->cases);
    }
    if (row->stage == PARITY) {
        json_int(json, "launches", LEAST_LAUNCHES);
    }
    json_open(json, "subjects", '[');
    for (int i = 0; i < report_subjects(fixture, row); i++) {
        json_open(json, NULL, '{');
        json_text(json, "variant", report_variant(fixture, row, i, name));
        json_text(json, "image", report_image(row, i, image));
        if (row->stage == BENCH) {
            json_int(json, "timings", report_timings(row, i));
        }
        json_close(json);
    }
    json_close(json);
    json_close(json);
}

static void put_environment(const struct report_making *fixture, struct json *json) {
    json_open(json, "environment", '{');
    json_open(json, "devices", '{');
    json_text(json, "cpu", REPORT_CPU ", " REPORT_CPU_ARCH ", 2 cores");
    if (fixture->kind != REPORT_PARTIAL) {
        json_text(json, "cuda:0", REPORT_GPU ", " REPORT_GPU_ARCH ", 132 multiprocessors");
    }
    json_text(json, "vgpu", "virtual GPU, sm_90a");
    json_close(json);
    json_text(json, "driver", fixture->kind == REPORT_PARTIAL ? NULL : "580.159.04");
    json_text(json, "compiler",
              fixture->kind == REPORT_HOSTILE ? REPORT_HOSTILE_TEXT : "gcc 12.2, nvcc 13.0");
    json_close(json);
}

/* What the library has: as the rows of parity name it. */
static void put_variants(const struct report_making *fixture, struct json *json) {
    char name[REPORT_VARIANT];
    json_open(json, "variants", '[');
    for (int i = 0; i < REPORT_ROW_COUNT; i++) {
        const struct report_row *row = &REPORT_ROWS[i];
        for (int k = 0; row->stage == PARITY && k < report_subjects(fixture, row); k++) {
            json_open(json, NULL, '{');
            json_text(json, "name", report_variant(fixture, row, k, name));
            json_text(json, "device", report_is_cpu(row) ? "cpu" : "cuda");
            json_open(json, "chosen", '[');
            if (!report_is_cpu(row) && k < REPORT_CHOSEN) {
                json_text(json, NULL, row->device);
            }
            json_close(json);
            json_close(json);
        }
    }
    json_close(json);
}

void report_plan(const struct report_making *fixture, struct json *json) {
    json_open(json, NULL, '{');
    json_text(json, "schema", PACK_SCHEMA);
    json_text(json, "mode", fixture->kind == REPORT_PARTIAL ? "quick" : "full");
    json_text(json, "tool", "0.1.0");
    json_text(json, "library", REPORT_LIBRARY);
    json_text(json, "seed", REPORT_SEED);
    json_text(json, "commit", fixture->kind == REPORT_HOSTILE ? REPORT_HOSTILE_TEXT : COMMIT);
    json_real(json, "gpu_hour_price", 3.5);
    put_environment(fixture, json);
    json_open(json, "request", '{');
    json_open(json, "stages", '[');
    json_close(json);
    json_open(json, "devices", '[');
    json_close(json);
    json_null(json, "variant");
    json_close(json);
    put_variants(fixture, json);
    json_open(json, "rows", '[');
    for (int i = 0; i < REPORT_ROW_COUNT; i++) {
        put_row(fixture, &REPORT_ROWS[i], json);
    }
    json_close(json);
    json_close(json);
}
