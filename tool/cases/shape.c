/* SPDX-License-Identifier: Apache-2.0
 *
 * shape.c - see shape.h.
 */
#include "cases/shape.h"

#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define MOST_POSITION ((int64_t)1 << 40) /* attn_problem_check takes no other */

const char *const DTYPE_NAMES[] = {"fp32", "fp16", "bf16", NULL};
const char *const DTYPE_KV_NAMES[] = {"fp32", "fp16", "bf16", "e4m3", "e5m2", NULL};
static const char *const DTYPE_ALIASES[] = {"float32", "float16", "bfloat16", NULL};
const char *const CAUSAL_NAMES[] = {"none", "top-left", "bottom-right", NULL};
const char *const LAYOUT_NAMES[] = {"bhsd", "bshd", NULL};
const char *const TENSOR_CORES_NAMES[] = {"auto", "never", "require", NULL};

/* ---- options --------------------------------------------------------------------------------- */

enum { BATCH, HEADS, HEADS_KV, SEQ, SEQ_Q, SEQ_KV, DIM, DIM_V };

void sizes_args(struct sizes *s, struct arg args[SIZES_ARGS]) {
    static const struct {
        const char *name, *help;
        int64_t value; /* -1: not given */
    } TABLE[SIZES_ARGS] = {
        [BATCH] = {"--batch", "batch entries [2]", 2},
        [HEADS] = {"--heads", "query heads [8]", 8},
        [HEADS_KV] = {"--heads-kv", "key and value heads, a divisor of --heads [--heads]", -1},
        [SEQ] = {"--seq", "queries, and keys; several sizes: each in turn [512]", 512},
        [SEQ_Q] = {"--seq-q", "queries, where they differ [--seq]", -1},
        [SEQ_KV] = {"--seq-kv", "keys, where they differ [--seq]", -1},
        [DIM] = {"--dim", "head dimension of Q and K [64]", 64},
        [DIM_V] = {"--dim-v", "head dimension of V and O [--dim]", -1},
    };
    for (int i = 0; i < SIZES_ARGS; i++) {
        s->of[i] = (struct arg_ints){{TABLE[i].value}, 1};
        args[i] = arg_ints(TABLE[i].name, &s->of[i], 0, INT32_MAX, TABLE[i].help);
    }
}

void semantics_args(struct semantics *s, struct arg args[SEMANTICS_ARGS]) {
    *s = (struct semantics){.window = {-1, -1}, .scale = NAN};
    const struct arg table[SEMANTICS_ARGS] = {
        arg_choice("--dtype", &s->dtype, DTYPE_NAMES,
                   "type of Q, K, V and O [fp32; fp16 on a GPU]"),
        arg_choice("--layout", &s->layout, LAYOUT_NAMES,
                   "(batch, heads, seq, dim), or seq before heads [bhsd]"),
        arg_choice("--causal", &s->causal, CAUSAL_NAMES,
                   "top-left: query i sees keys up to i (PyTorch); bottom-right: the last query "
                   "sees every key (FlashAttention) [none]"),
        arg_pair("--window", s->window, -1, INT32_MAX,
                 "keys seen before and after the diagonal; -1: all [-1,-1]"),
        arg_real("--softcap", &s->softcap, "scores become X tanh(score / X); 0: none [0]"),
        arg_real("--scale", &s->scale, "factor of Q K^T [1 / sqrt(dim)]"),
        arg_flag("--alibi", &s->alibi, "ALiBi with the usual slopes, 2^(-8 (h+1) / heads)"),
        arg_int("--q-offset", &s->q_offset, -MOST_POSITION, MOST_POSITION,
                "position of the first query, where Q is a chunk of a longer sequence [0]"),
        arg_int("--kv-offset", &s->kv_offset, -MOST_POSITION, MOST_POSITION,
                "position of the first key, likewise [0]"),
    };
    memcpy(args, table, sizeof table);
    args[SEMANTICS_DTYPE].aliases = DTYPE_ALIASES;
}

void extras_args(struct extras *s, struct arg args[EXTRAS_ARGS]) {
    *s = (struct extras){.dtype_kv = -1};
    const struct arg table[EXTRAS_ARGS] = {
        arg_flag("--sink", &s->sink, "a sink logit per head"),
        arg_flag("--bias", &s->bias,
                 "an fp32 bias (seq-q, seq-kv), the same for every batch entry and head"),
        arg_flag("--mask", &s->mask,
                 "a boolean mask (seq-q, seq-kv), likewise; hides a random half of the keys"),
        arg_int("--page-size", &s->page_size, 0, INT32_MAX,
                "a paged KV cache, pages of so many rows in random order; 0: contiguous [0]"),
        arg_choice("--kv-dtype", &s->dtype_kv, DTYPE_KV_NAMES,
                   "type of K and V: e4m3, e5m2 (an fp8 KV cache without scales) [--dtype]"),
        arg_choice("--tensor-cores", &s->tensor_cores, TENSOR_CORES_NAMES,
                   "tensor-core preference [auto]"),
    };
    memcpy(args, table, sizeof table);
}

const char *first_seen(const struct arg *args, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (args[i].seen) {
            return args[i].name;
        }
    }
    return NULL;
}

/* ---- options -> problem ---------------------------------------------------------------------- */

int sizes_count(const struct sizes *sizes) {
    int count = 1;
    for (int i = 0; i < SIZES_ARGS && count < INT_MAX / ARG_INTS_MOST; i++) {
        count *= sizes->of[i].count;
    }
    return count;
}

static void sizes_apply(const struct sizes *sizes, int combination, attn_problem *problem) {
    int64_t of[SIZES_ARGS];
    for (int i = SIZES_ARGS - 1; i >= 0; i--) {
        of[i] = sizes->of[i].values[combination % sizes->of[i].count];
        combination /= sizes->of[i].count;
    }
    problem->batch = of[BATCH];
    problem->heads_q = of[HEADS];
    problem->heads_kv = of[HEADS_KV];
    problem->seq_q = of[SEQ_Q] >= 0 ? of[SEQ_Q] : of[SEQ];
    problem->seq_kv = of[SEQ_KV] >= 0 ? of[SEQ_KV] : of[SEQ];
    problem->head_dim = of[DIM];
    problem->head_dim_v = of[DIM_V];
}

void semantics_apply(const struct semantics *semantics, attn_problem *problem) {
    problem->dtype = (attn_dtype)semantics->dtype;
    problem->layout = (attn_layout)semantics->layout;
    problem->causal = (attn_causal)semantics->causal;
    problem->window_left = semantics->window[0];
    problem->window_right = semantics->window[1];
    problem->softcap = (float)semantics->softcap;
    problem->scale = (float)semantics->scale;
    problem->alibi = semantics->alibi;
    problem->q_offset = semantics->q_offset;
    problem->kv_offset = semantics->kv_offset;
}

static void extras_apply(const struct extras *extras, attn_problem *problem) {
    problem->tensor_cores = (attn_tensor_cores)extras->tensor_cores;
    problem->dtype_kv = extras->dtype_kv;
    problem->sink = extras->sink;
    problem->bias = extras->bias;
    if (extras->bias) {
        problem->bias_strides = (attn_bias_strides){0, 0, problem->seq_kv, 1};
    }
    if (extras->page_size > 0) {
        problem->used_kv = true;
        problem->page_size = extras->page_size;
        problem->num_pages = /* each sequence has its own */
            problem->batch * ((problem->seq_kv + problem->page_size - 1) / problem->page_size);
    }
    problem->mask = extras->mask;
    if (extras->mask) {
        problem->mask_strides = (attn_bias_strides){0, 0, problem->seq_kv, 1};
    }
}

void options_apply(const struct sizes *sizes, int combination, const struct semantics *semantics,
                   const struct extras *extras, attn_problem *problem) {
    attn_problem_init(problem);
    sizes_apply(sizes, combination, problem);
    semantics_apply(semantics, problem);
    extras_apply(extras, problem);
}

/* ---- problem -> text ------------------------------------------------------------------------- */

__attribute__((format(printf, 3, 4))) static void append(char *buffer, size_t size,
                                                         const char *format, ...) {
    const size_t used = strlen(buffer);
    va_list list;
    va_start(list, format);
    vsnprintf(buffer + used, size - used, format, list);
    va_end(list);
}

const char *problem_text(const attn_problem *p, char *buffer, size_t size) {
    snprintf(buffer, size, "%s B%lld H%lld", DTYPE_NAMES[p->dtype], (long long)p->batch,
             (long long)p->heads_q);
    if (p->heads_kv != p->heads_q) {
        append(buffer, size, "/%lld", (long long)p->heads_kv);
    }
    if (p->seq_q == p->seq_kv) {
        append(buffer, size, " S%lld", (long long)p->seq_q);
    } else {
        append(buffer, size, " Sq%lld Skv%lld", (long long)p->seq_q, (long long)p->seq_kv);
    }
    append(buffer, size, " D%lld", (long long)p->head_dim);
    if (p->head_dim_v != p->head_dim) {
        append(buffer, size, "/%lld", (long long)p->head_dim_v);
    }
    if (p->causal != ATTN_CAUSAL_NONE) {
        /* On a square the two diagonals are one. */
        append(buffer, size, " causal%s%s", p->seq_q == p->seq_kv ? "" : " ",
               p->seq_q == p->seq_kv ? "" : CAUSAL_NAMES[p->causal]);
    }
    if (p->window_left >= 0 || p->window_right >= 0) {
        append(buffer, size, " window %lld,%lld", (long long)p->window_left,
               (long long)p->window_right);
    }
    if (p->softcap > 0) {
        append(buffer, size, " softcap %g", (double)p->softcap);
    }
    if (p->dtype_kv > (int32_t)ATTN_BF16) {
        append(buffer, size, " kv %s", DTYPE_KV_NAMES[p->dtype_kv]);
    }
    if (p->q_offset != p->kv_offset) {
        append(buffer, size, " offset %lld", (long long)(p->q_offset - p->kv_offset));
    }
    append(buffer, size, "%s%s%s%s", p->packed ? " packed" : "", p->used_q ? " used_q" : "",
           p->used_kv ? " used_kv" : "", p->offsets ? " offsets" : "");
    if (p->page_size > 0) {
        append(buffer, size, " pages of %lld", (long long)p->page_size);
    }
    append(buffer, size, "%s%s%s%s%s%s", p->alibi ? " alibi" : "", p->bias ? " bias" : "",
           p->mask ? " mask" : "", p->draft ? " draft" : "", p->sink ? " sink" : "",
           p->layout == ATTN_BSHD ? " bshd" : "");
    return buffer;
}

void problem_json(struct json *json, const char *key, const attn_problem *p) {
    json_open(json, key, '{');
    json_text(json, "dtype", DTYPE_NAMES[p->dtype]);
    json_int(json, "batch", p->batch);
    json_int(json, "heads", p->heads_q);
    json_int(json, "heads_kv", p->heads_kv);
    json_int(json, "seq_q", p->seq_q);
    json_int(json, "seq_kv", p->seq_kv);
    json_int(json, "dim", p->head_dim);
    json_int(json, "dim_v", p->head_dim_v);
    json_text(json, "layout", LAYOUT_NAMES[p->layout]);
    json_real(json, "scale", (double)p->scale);
    json_text(json, "causal", CAUSAL_NAMES[p->causal]);
    json_int(json, "window_left", p->window_left);
    json_int(json, "window_right", p->window_right);
    json_real(json, "softcap", (double)p->softcap);
    json_bool(json, "alibi", p->alibi);
    json_bool(json, "bias", p->bias);
    if (p->mask) { /* absent where there is none: older records have no such word */
        json_bool(json, "mask", true);
    }
    if (p->page_size > 0) { /* likewise */
        json_int(json, "page_size", p->page_size);
        json_int(json, "num_pages", p->num_pages);
    }
    if (p->dtype_kv > (int32_t)ATTN_BF16) {
        json_text(json, "dtype_kv", DTYPE_KV_NAMES[p->dtype_kv]);
    }
    if (p->q_offset != p->kv_offset) {
        json_int(json, "q_offset", p->q_offset);
        json_int(json, "kv_offset", p->kv_offset);
    }
    json_bool(json, "sink", p->sink);
    json_text(json, "tensor_cores", TENSOR_CORES_NAMES[p->tensor_cores]);
    json_close(json);
}

bool problem_read(const struct json_value *from, attn_problem *p) {
    attn_problem_init(p);
    const struct {
        const char *name;
        int64_t *value, least;
    } sizes[] = {
        {"batch", &p->batch, 0},
        {"heads", &p->heads_q, 0},
        {"heads_kv", &p->heads_kv, 0},
        {"seq_q", &p->seq_q, 0},
        {"seq_kv", &p->seq_kv, 0},
        {"dim", &p->head_dim, 0},
        {"dim_v", &p->head_dim_v, 0},
        {"window_left", &p->window_left, -1},
        {"window_right", &p->window_right, -1},
    };
    bool good = true;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        *sizes[i].value = json_int_at(from, sizes[i].name, sizes[i].least);
        good = good && *sizes[i].value >= sizes[i].least;
    }
    const int dtype = choice_of(DTYPE_NAMES, json_text_at(from, "dtype"));
    const int causal = choice_of(CAUSAL_NAMES, json_text_at(from, "causal"));
    const int layout = choice_of(LAYOUT_NAMES, json_text_at(from, "layout"));
    const int cores = choice_of(TENSOR_CORES_NAMES, json_text_at(from, "tensor_cores"));
    p->dtype = (attn_dtype)dtype;
    p->causal = (attn_causal)causal;
    p->layout = (attn_layout)layout;
    p->tensor_cores = (attn_tensor_cores)cores;
    p->scale = (float)json_number_at(from, "scale"); /* NaN: the default */
    p->softcap = (float)json_number_at(from, "softcap");
    p->alibi = json_true_at(from, "alibi");
    p->bias = json_true_at(from, "bias");
    p->mask = json_true_at(from, "mask");
    p->sink = json_true_at(from, "sink");
    if (json_at(from, "dtype_kv") != NULL) {
        p->dtype_kv = choice_of(DTYPE_KV_NAMES, json_text_at(from, "dtype_kv"));
        good = good && p->dtype_kv > (int32_t)ATTN_BF16;
    }
    if (json_at(from, "page_size") != NULL) {
        p->used_kv = true;
        p->page_size = json_int_at(from, "page_size", 0);
        p->num_pages = json_int_at(from, "num_pages", 0);
    }
    if (json_at(from, "q_offset") != NULL) {
        p->q_offset = json_int_at(from, "q_offset", -MOST_POSITION);
        p->kv_offset = json_int_at(from, "kv_offset", -MOST_POSITION);
    }
    return good && dtype >= 0 && causal >= 0 && layout >= 0 && cores >= 0 &&
           attn_problem_resolve(p, p, NULL) == ATTN_OK;
}
