/* SPDX-License-Identifier: Apache-2.0
 *
 * space.c - shapes, families and the knobs that are searched. See evolve.h.
 *
 * Whether a kernel of such knobs exists is not decided here: the kernels' static assertions, the
 * library and the gates do that.
 *
 * Invariant: a candidate's name says all of its knobs.
 */
#include <math.h>
#include <string.h>

#include "base/message.h"
#include "cases/shape.h"
#include "evolve/evolve.h"

const char *const KNOB_NAMES[KNOB_COUNT] = {"block_q", "block_kv", "warps", "stages"};

/* ---- knobs ----------------------------------------------------------------------------------- */

/* The first row whose prefix the family has. A list ends with 0. GPU families without a list for
 * warps have a producer warpgroup and a consumer warpgroup for each 64 rows. */
static const struct {
    const char *prefix;
    int values[KNOB_COUNT][KNOB_VALUES];
} SPACES[] = {
    {"fwd_hopper_split", {{64}, {64, 128}, {8}, {4, 6, 8, 10, 12}}},
    {"fwd_hopper_decode", {{16}, {32, 64, 128, 256}, {2, 4, 8}, {2, 3, 4, 5, 6}}},
    {"fwd_hopper_mla", {{64}, {64}, {12}, {2}}},
    {"fwd_hopper_mask", {{128}, {64, 128}, {0}, {2, 3, 4, 5, 6, 7, 8}}},
    {"fwd_hopper_bias", {{128}, {32, 64, 128}, {0}, {2, 3, 4, 5, 6, 7, 8}}},
    {"fwd_hopper", {{128, 192, 256}, {64, 128}, {0}, {2, 3, 4, 5, 6, 7, 8}}},
    {"fwd_mma_decode", {{16}, {16, 32, 64, 96, 128}, {1, 2, 4, 8}, {2, 3, 4, 5}}},
    {"fwd_mma", {{16, 32, 64, 128, 256}, {16, 32, 48, 64, 96, 128}, {1, 2, 4, 8}, {2, 3, 4, 5}}},
    {"fwd_tf32", {{16, 32, 64, 128}, {16, 32, 64}, {1, 2, 4, 8}, {2, 3, 4, 5}}},
    {"fwd_", {{16, 32, 48, 64, 128}, {32, 64, 128}, {4, 8}, {1, 2}}},
    {"bwd_hopper_wide", {{64}, {64}, {12}, {2}}},
    {"bwd_hopper", {{64, 128}, {64, 96, 128}, {0}, {1, 2, 3}}},
    {"bwd_mma", {{32, 64, 128}, {16, 32, 48, 64}, {2, 4, 8}, {2, 3, 4}}},
    {"cpu_backward", {{48, 96, 144, 192, 240, 288, 384}, {48, 96, 144, 192, 240, 288, 384, 512}}},
    {"cpu_tile",
     {{32, 48, 64, 96, 128, 192, 256, 384, 512, 516, 528, 768, 1024},
      {32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048}}},
    {"cpu_row",
     {{1, 2, 4, 8, 12, 16}, {64, 128, 256, 384, 512, 768, 1024, 1536, 2048, 4096, 8192}}},
};

int knob_values(const struct family *family, enum knob knob, const int **values) {
    int count = 0;
    *values = NULL;
    for (size_t i = 0; i < sizeof SPACES / sizeof *SPACES && *values == NULL; i++) {
        if (strncmp(family->kernel, SPACES[i].prefix, strlen(SPACES[i].prefix)) == 0) {
            *values = SPACES[i].values[knob];
        }
    }
    while (*values != NULL && count < KNOB_VALUES && (*values)[count] > 0) {
        count++;
    }
    return count;
}

void knobs_settle(const struct family *family, struct knobs *knobs) {
    const int *list = NULL;
    if (family->head_dim > 0 && knob_values(family, KNOB_WARPS, &list) == 0) {
        knobs->value[KNOB_WARPS] = knobs->value[KNOB_BLOCK_Q] / 16 + 4;
    }
}

const char *knobs_name(const struct family *family, attn_dtype dtype, const struct knobs *knobs,
                       char name[EVOLVE_NAME]) {
    const int *v = knobs->value;
    if (family->head_dim == 0) {
        snprintf(name, EVOLVE_NAME, "%s_%dx%d", family->name, v[KNOB_BLOCK_Q], v[KNOB_BLOCK_KV]);
    } else {
        snprintf(name, EVOLVE_NAME, "%s_%s_d%d_%dx%d_w%d_s%d", family->name, DTYPE_NAMES[dtype],
                 family->head_dim, v[KNOB_BLOCK_Q], v[KNOB_BLOCK_KV], v[KNOB_WARPS],
                 v[KNOB_STAGES]);
    }
    return name;
}

void knobs_json(struct json *json, const struct knobs *knobs) {
    json_open(json, "knobs", '{');
    for (int k = 0; k < KNOB_COUNT; k++) {
        if (knobs->value[k] > 0) {
            json_int(json, KNOB_NAMES[k], knobs->value[k]);
        }
    }
    json_close(json);
}

bool knobs_read(const struct json_value *object, const struct family *family, struct knobs *knobs,
                attn_error *why) {
    for (int k = 0; k < KNOB_COUNT; k++) {
        const int *list = NULL;
        const int64_t value = json_int_at(object, KNOB_NAMES[k], 1);
        const bool wanted = knob_values(family, (enum knob)k, &list) > 0;
        if (wanted && (value < 1 || value > 1 << 16)) {
            return explain(why, "knob %s of %s, expected 1 to 65536", KNOB_NAMES[k], family->name);
        }
        knobs->value[k] = wanted ? (int)value : 0;
    }
    knobs_settle(family, knobs);
    return true;
}

/* ---- shapes ---------------------------------------------------------------------------------- */

bool shape_parse(const char *text, attn_dtype dtype, attn_problem *problem, attn_error *why) {
    long long n[5] = {0}; /* batch, heads, KV heads, length, head dimension */
    int end = 0;
    attn_problem p;
    attn_problem_init(&p);
    if (sscanf(text, "%lld,%lld/%lld,%lld,%lld%n", &n[0], &n[1], &n[2], &n[3], &n[4], &end) != 5) {
        end = 0;
        sscanf(text, "%lld,%lld,%lld,%lld%n", &n[0], &n[1], &n[3], &n[4], &end);
        n[2] = n[1];
    }
    bool good = end > 0 && (text[end] == '\0' || strcmp(text + end, ",causal") == 0);
    for (int i = 0; i < 5; i++) {
        good = good && n[i] >= 1 && n[i] <= INT32_MAX;
    }
    if (!good) {
        return explain(why, "shape = '%.60s', expected B,H[/HKV],S,D[,causal]", text);
    }
    p.dtype = dtype;
    p.batch = n[0];
    p.heads_q = n[1];
    p.heads_kv = n[2];
    p.seq_q = p.seq_kv = n[3];
    p.head_dim = n[4];
    p.causal = text[end] != '\0' ? ATTN_CAUSAL_TOP_LEFT : ATTN_CAUSAL_NONE;
    return attn_problem_resolve(&p, problem, why) == ATTN_OK;
}

const char *shape_text(const attn_problem *p, char *buffer, size_t size) {
    char kv[24] = "";
    if (p->heads_kv != p->heads_q) {
        snprintf(kv, sizeof kv, "/%lld", (long long)p->heads_kv);
    }
    snprintf(buffer, size, "%lld,%lld%s,%lld,%lld%s", (long long)p->batch, (long long)p->heads_q,
             kv, (long long)p->seq_q, (long long)p->head_dim,
             p->causal != ATTN_CAUSAL_NONE ? ",causal" : "");
    return buffer;
}

void shapes_json(struct json *json, const char *key, const struct shapes *shapes) {
    char text[96];
    json_open(json, key, '[');
    for (int i = 0; i < shapes->count; i++) {
        json_open(json, NULL, '{');
        json_text(json, "shape", shape_text(&shapes->problems[i], text, sizeof text));
        json_text(json, "baseline", shapes->baselines[i]);
        json_close(json);
    }
    json_close(json);
}

bool shapes_read(const struct json_value *list, attn_dtype dtype, struct shapes *shapes,
                 attn_error *why) {
    shapes->count = 0;
    for (size_t i = 0; i < json_count_of(list) && i < EVOLVE_SHAPES; i++) {
        const struct json_value *one = json_item(list, i);
        if (!shape_parse(json_text_or(one, "shape", ""), dtype, &shapes->problems[i], why)) {
            return false;
        }
        snprintf(shapes->baselines[i], EVOLVE_NAME, "%s", json_text_or(one, "baseline", ""));
        shapes->count++;
    }
    return true;
}

bool shapes_same_class(const attn_problem *a, const attn_problem *b) {
    return a->head_dim == b->head_dim &&
           (a->causal == ATTN_CAUSAL_NONE) == (b->causal == ATTN_CAUSAL_NONE);
}

double shape_rows(const attn_problem *p) {
    return (double)p->batch * (double)p->heads_q * (double)p->seq_q;
}

struct class_limits shapes_limits(const struct shapes *shapes) {
    struct class_limits most = {.queries = 0};
    for (int i = 0; i < shapes->count; i++) {
        const attn_problem *p = &shapes->problems[i];
        most.queries = p->seq_q > most.queries ? p->seq_q : most.queries;
        most.keys = p->seq_kv > most.keys ? p->seq_kv : most.keys;
        most.rows = fmax(most.rows, shape_rows(p));
    }
    return most;
}
