/* SPDX-License-Identifier: Apache-2.0
 *
 * attn_ops.c - ONNX Runtime's attention operators, computed by libattn on the CPU.
 *
 *     cc -O2 -shared -fPIC -fvisibility=hidden *.c -o libattn_ort.so \
 *         $(pkg-config --cflags --libs attn) -Wl,-rpath,$(pkg-config --variable=libdir attn)
 *
 * SessionOptions.register_custom_ops_library loads it. It defines, in the domain "attn",
 *
 *     Attention            that of ONNX (ai.onnx 23 and 24)
 *     MultiHeadAttention   those of com.microsoft
 *     GroupQueryAttention
 *
 * with their inputs, outputs and attributes, in fp32 and fp16. A model uses them when the domain of
 * such a node is changed (run.py). Rows that see no key are 0; ONNX Runtime's are the mean of V.
 *
 * Invariant: what an operator does not support is refused with a message, never ignored.
 */
#include "call.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static attn_error no_device;

/* ---- the operators --------------------------------------------------------------------------- */

/* Q, K, V, attn_mask, past_key, past_value, nonpad_kv_seqlen */
static bool attention(struct call *call) {
    attn_problem *p = &call->p;
    struct tensor q, k, v, mask, nonpad;
    if (!input(call, 0, &q) || !input(call, 1, &k) || !input(call, 2, &v) ||
        !input(call, 3, &mask) || !input(call, 4, &call->past_k) ||
        !input(call, 5, &call->past_v) || !input(call, 6, &nonpad)) {
        return false;
    }
    p->heads_q = q.rank == 4 ? q.dims[1] : call->kernel->heads;
    p->heads_kv = k.rank == 4 ? k.dims[1] : call->kernel->heads_kv;
    if (!set_tensors(call, &q, &k, &v)) {
        return false;
    }
    call->past = call->past_k.data == NULL ? 0 : call->past_k.dims[2];
    call->capacity = call->past + p->seq_kv;
    if (call->kernel->causal) {
        p->causal = ATTN_CAUSAL_TOP_LEFT;
        p->q_offset = call->past;
    }
    if (nonpad.data != NULL) {
        int32_t *used = scratch(call, (size_t)p->batch * sizeof *used, 0);
        if (used == NULL || !has_dims(call, &nonpad, "nonpad_kv_seqlen", 1, &p->batch)) {
            return false;
        }
        for (int64_t b = 0; b < p->batch; b++) {
            const int64_t n = ((const int64_t *)nonpad.data)[b];
            if (n < 0 || n > p->seq_kv) {
                return refuse(call, ORT_INVALID_ARGUMENT,
                              "%s: nonpad_kv_seqlen[%lld] is %lld, expected 0 to %lld",
                              call->kernel->op->name, (long long)b, (long long)n,
                              (long long)p->seq_kv);
            }
            used[b] = (int32_t)n;
        }
        call->used = used;
        p->causal = call->kernel->causal ? ATTN_CAUSAL_BOTTOM_RIGHT : ATTN_CAUSAL_NONE;
    }
    return set_scores(call, &mask, "attn_mask", call->capacity) && set_output(call, q.rank) &&
           set_present(call) && attend(call);
}

/* Lengths (batch), or int32 of which 0 hides: (batch, keys), (batch, rows, keys). */
static bool set_padding(struct call *call, const struct tensor *x) {
    attn_problem *p = &call->p;
    const int64_t keys = call->capacity, all[] = {p->batch, p->seq_q, keys};
    const int64_t by_key[] = {p->batch, keys};
    if (x->data == NULL) {
        return true;
    }
    if (x->rank == 1) {
        call->used = x->data;
        return has_dims(call, x, "key_padding_mask", 1, &p->batch);
    }
    if (!has_dims(call, x, "key_padding_mask", x->rank == 2 ? 2 : 3, x->rank == 2 ? by_key : all)) {
        return false;
    }
    const int64_t rows = x->rank == 2 ? 1 : p->seq_q, count = p->batch * rows * keys;
    uint8_t *mask = scratch(call, (size_t)count, 0);
    if (mask == NULL) {
        return false;
    }
    for (int64_t i = 0; i < count; i++) {
        mask[i] = ((const int32_t *)x->data)[i] != 0;
    }
    p->mask = true, call->t.mask = mask;
    p->mask_strides = (attn_bias_strides){rows * keys, 0, x->rank == 2 ? 0 : keys, 1};
    return true;
}

/* query, key, value, bias, key_padding_mask, attention_bias, past_key, past_value,
 * past_sequence_length, cache_indirection */
static bool multi_head(struct call *call) {
    attn_problem *p = &call->p;
    struct tensor q, k, v, padding, bias;
    if (!input(call, 0, &q) || !input(call, 1, &k) || !input(call, 2, &v) ||
        !absent(call, 3, "bias") || !input(call, 4, &padding) || !input(call, 5, &bias) ||
        !input(call, 6, &call->past_k) || !input(call, 7, &call->past_v) ||
        !absent(call, 8, "past_sequence_length") || !absent(call, 9, "cache_indirection")) {
        return false;
    }
    p->heads_q = p->heads_kv = call->kernel->heads;
    if (!set_tensors(call, &q, &k, &v)) {
        return false;
    }
    call->past = call->past_k.data == NULL ? 0 : call->past_k.dims[2];
    call->capacity = call->past + p->seq_kv;
    if (call->kernel->causal) {
        p->causal = ATTN_CAUSAL_TOP_LEFT;
        p->q_offset = call->past;
    }
    return set_padding(call, &padding) &&
           set_scores(call, &bias, "attention_bias", call->capacity) && set_output(call, 3) &&
           set_present(call) && attend(call);
}

/* query alone holds query, key and value of each row, one after the other. */
static bool split_packed(struct call *call, const struct tensor *q, const struct tensor *v) {
    attn_problem *p = &call->p;
    const int64_t all = p->heads_q + 2 * p->heads_kv, width = q->rank == 3 ? q->dims[2] : 0;
    if (v->data != NULL || width < all || width % all != 0) {
        return refuse(call, ORT_INVALID_ARGUMENT,
                      "%s: expected key and value, or a query of 3 dimensions with both in it",
                      call->kernel->op->name);
    }
    const int64_t dim = width / all, rows = q->dims[1];
    const size_t size = (size_t)dim * element_size(call);
    p->batch = q->dims[0], p->seq_q = p->seq_kv = rows, p->head_dim = p->head_dim_v = dim;
    p->q = p->k = p->v = (attn_strides){rows * width, dim, width};
    call->t.q = q->data;
    call->t.k = (char *)q->data + (size_t)p->heads_q * size;
    call->t.v = (char *)q->data + (size_t)(p->heads_q + p->heads_kv) * size;
    return true;
}

/* A logit per head that joins the row sum; smooth_softmax: 0. */
static bool set_sink(struct call *call, const struct tensor *x) {
    attn_problem *p = &call->p;
    if (x->data == NULL && call->kernel->smooth != 1) {
        return true;
    }
    float *sink = scratch(call, (size_t)p->heads_q * sizeof *sink, 0);
    if (sink == NULL || (x->data != NULL && !has_dims(call, x, "head_sink", 1, &p->heads_q))) {
        return false;
    }
    if (x->data != NULL && call->kernel->op->element != ORT_FLOAT) {
        return refuse(call, ORT_NOT_IMPLEMENTED, "%s: head_sink is supported in fp32",
                      call->kernel->op->name);
    }
    for (int64_t h = 0; h < p->heads_q; h++) {
        sink[h] = x->data == NULL ? 0.0f : ((const float *)x->data)[h];
    }
    p->sink = true, call->t.sink = sink;
    return true;
}

/* seqlens_k counts the keys of a sequence, less one; total_sequence_length is the longest. A prompt
 * may be padded on the right; its keys begin at 0. */
static bool set_lengths(struct call *call, const struct tensor *lengths,
                        const struct tensor *total) {
    attn_problem *p = &call->p;
    int64_t numbers = 1;
    for (int i = 0; i < lengths->rank; i++) {
        numbers *= lengths->dims[i];
    }
    if (lengths->data == NULL || total->data == NULL || numbers != p->batch) {
        return refuse(call, ORT_INVALID_ARGUMENT,
                      "%s: expected seqlens_k with %lld numbers and total_sequence_length",
                      call->kernel->op->name, (long long)p->batch);
    }
    const int64_t longest = *(const int32_t *)total->data;
    const int64_t buffer = call->past_k.data == NULL ? 0 : call->past_k.dims[2];
    int32_t *used = scratch(call, (size_t)p->batch * sizeof *used, 0);
    if (used == NULL) {
        return false;
    }
    call->ragged = longest != p->seq_q;
    call->capacity = longest > buffer ? longest : buffer;
    for (int64_t b = 0; b < p->batch; b++) {
        const int64_t n = 1 + (int64_t)((const int32_t *)lengths->data)[b];
        const int64_t fewest = call->ragged ? p->seq_kv : 1;
        const int64_t most = call->ragged && buffer + p->seq_kv < call->capacity
                                 ? buffer + p->seq_kv
                                 : call->capacity;
        if (n < fewest || n > most) {
            return refuse(call, ORT_INVALID_ARGUMENT,
                          "%s: seqlens_k[%lld] is %lld, expected %lld to %lld",
                          call->kernel->op->name, (long long)b, (long long)n - 1,
                          (long long)fewest - 1, (long long)most - 1);
        }
        used[b] = (int32_t)n;
    }
    call->used = used;
    if (call->kernel->causal) {
        p->causal = call->ragged ? ATTN_CAUSAL_BOTTOM_RIGHT : ATTN_CAUSAL_TOP_LEFT;
        p->window_left = call->kernel->window > 0 ? call->kernel->window - 1 : -1;
    }
    return true;
}

/* query, key, value, past_key, past_value, seqlens_k, total_sequence_length, cos_cache, sin_cache,
 * position_ids, attention_bias, head_sink, k_scale, v_scale, q_norm_weight, k_norm_weight */
static bool group_query(struct call *call) {
    static const char *const others[] = {"k_scale", "v_scale", "q_norm_weight", "k_norm_weight"};
    attn_problem *p = &call->p;
    struct tensor q, k, v, lengths, total, bias, sink;
    if (!input(call, 0, &q) || !input(call, 1, &k) || !input(call, 2, &v) ||
        !input(call, 3, &call->past_k) || !input(call, 4, &call->past_v) ||
        !input(call, 5, &lengths) || !input(call, 6, &total) || !input(call, 7, &call->cosine) ||
        !input(call, 8, &call->sine) || !absent(call, 9, "position_ids") ||
        !input(call, 10, &bias) || !input(call, 11, &sink)) {
        return false;
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        if (!absent(call, 12 + i, others[i])) {
            return false;
        }
    }
    p->heads_q = call->kernel->heads, p->heads_kv = call->kernel->heads_kv;
    if (!(k.data == NULL ? split_packed(call, &q, &v) : set_tensors(call, &q, &k, &v))) {
        return false;
    }
    if (!call->kernel->rotary) {
        call->cosine.data = NULL;
    } else if (call->cosine.data == NULL || call->cosine.rank != 2 || p->seq_q != p->seq_kv ||
               !has_dims(call, &call->sine, "sin_cache", 2, call->cosine.dims)) {
        return refuse(
            call, ORT_INVALID_ARGUMENT,
            "%s: with do_rotary expected cos_cache and "
            "sin_cache of one shape (positions, columns / 2), and as many keys as queries",
            call->kernel->op->name);
    }
    return set_lengths(call, &lengths, &total) &&
           set_scores(call, &bias, "attention_bias", *(const int32_t *)total.data) &&
           set_sink(call, &sink) && set_output(call, 3) && set_present(call) && attend(call);
}

/* ---- what ONNX Runtime calls ----------------------------------------------------------------- */

static ort_status *run(void *object, ort_context *context) {
    struct call call = {.kernel = object};
    call.api = call.kernel->api, call.context = context;
    attn_problem_init(&call.p);
    attn_tensors_init(&call.t);
    call.p.dtype = call.kernel->op->element == ORT_FLOAT ? ATTN_FP32 : ATTN_FP16;
    call.p.softcap = call.kernel->softcap;
    if (call.kernel->scale != 0) {
        call.p.scale = call.kernel->scale;
    }
    const bool good = call.kernel->op->compute(&call);
    for (int i = 0; i < call.scratches; i++) {
        free(call.scratch[i]);
    }
    return good ? NULL : call.api->create_status(call.code, call.why.text);
}

/* 0: absent. */
static float float_of(const ort_api *api, const ort_kernel_info *info, const char *name) {
    float value = 0;
    ort_status *missing = api->attribute_float(info, name, &value);
    if (missing != NULL) {
        api->release_status(missing);
        return 0;
    }
    return value;
}

/* -1: absent. */
static int64_t int_of(const ort_api *api, const ort_kernel_info *info, const char *name) {
    int64_t value = -1;
    ort_status *missing = api->attribute_int(info, name, &value);
    if (missing != NULL) {
        api->release_status(missing);
        return -1;
    }
    return value;
}

static ort_status *create(const ort_operator *base, const ort_api *api, const ort_kernel_info *info,
                          void **object) {
    const struct definition *op = (const struct definition *)base;
    static const char *const refused[] = {"qk_matmul_output_mode", "qk_output",
                                          "sliding_window_cache"};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        if (int_of(api, info, refused[i]) > 0) {
            char text[128];
            snprintf(text, sizeof text, "%s: the attribute %s is not supported", op->name,
                     refused[i]);
            return api->create_status(ORT_NOT_IMPLEMENTED, text);
        }
    }
    struct kernel *kernel = calloc(1, sizeof *kernel);
    if (kernel == NULL || device == NULL) {
        free(kernel);
        return api->create_status(ORT_FAIL, device == NULL ? no_device.text : "out of memory");
    }
    const bool standard = op->compute == attention;
    *kernel = (struct kernel){
        .op = op,
        .api = api,
        .scale = float_of(api, info, "scale"),
        .softcap = float_of(api, info, "softcap"),
        .heads = int_of(api, info, standard ? "q_num_heads" : "num_heads"),
        .heads_kv = int_of(api, info, "kv_num_heads"),
        .window = int_of(api, info, "local_window_size"),
        .rotary = int_of(api, info, "do_rotary") == 1,
        .interleaved = int_of(api, info, "rotary_interleaved") == 1,
        .smooth = int_of(api, info, "smooth_softmax"),
    };
    kernel->causal = op->compute == group_query
                         ? int_of(api, info, "causal") != 0
                         : int_of(api, info, standard ? "is_causal" : "unidirectional") == 1;
    *object = kernel;
    return NULL;
}

static const char *name_of(const ort_operator *op) {
    return ((const struct definition *)op)->name;
}

static const char *provider_of(const ort_operator *op) {
    (void)op;
    return NULL;
}

static int input_type(const ort_operator *base, size_t index) {
    const struct definition *op = (const struct definition *)base;
    switch (op->types[index]) {
    case 'T': return op->element;
    case 'i': return ORT_INT32;
    case 'l': return ORT_INT64;
    default: return ORT_ANY;
    }
}

static size_t input_count(const ort_operator *op) {
    return strlen(((const struct definition *)op)->types);
}

static int output_type(const ort_operator *op, size_t index) {
    (void)index;
    return ((const struct definition *)op)->element;
}

static size_t output_count(const ort_operator *op) {
    (void)op;
    return 3;
}

static int presence(const ort_operator *op, size_t index) {
    (void)op;
    return index == 0 ? ORT_REQUIRED : ORT_OPTIONAL;
}

static int memory_of(const ort_operator *op, size_t index) {
    (void)op, (void)index;
    return 0;
}

#define BASE                                                                                       \
    {                                                                                              \
        .version = ORT_VERSION, .name = name_of, .provider = provider_of,                          \
        .input_type = input_type, .input_count = input_count, .output_type = output_type,          \
        .output_count = output_count, .destroy = free, .input_presence = presence,                 \
        .output_presence = presence, .input_memory = memory_of, .create = create, .compute = run   \
    }

static const struct definition operators[] = {
    {BASE, "Attention", "TTT*TTl", ORT_FLOAT, attention},
    {BASE, "Attention", "TTT*TTl", ORT_FLOAT16, attention},
    {BASE, "MultiHeadAttention", "TTTTiTTTii", ORT_FLOAT, multi_head},
    {BASE, "MultiHeadAttention", "TTTTiTTTii", ORT_FLOAT16, multi_head},
    {BASE, "GroupQueryAttention", "TTTTTiiTTlTT****", ORT_FLOAT, group_query},
    {BASE, "GroupQueryAttention", "TTTTTiiTTlTT****", ORT_FLOAT16, group_query},
};

/* What SessionOptions.register_custom_ops_library looks for. */
__attribute__((visibility("default"))) ort_status *RegisterCustomOps(ort_options *options,
                                                                     const ort_api_base *base);

ort_status *RegisterCustomOps(ort_options *options, const ort_api_base *base) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static ort_domain *domain; /* of all sessions, as the device is */
    const ort_api *api = base->api(ORT_VERSION);
    ort_status *status = NULL;
    if (api == NULL) { /* and nothing to make a status with; the session will not know the domain */
        fprintf(stderr, "libattn_ort: ONNX Runtime %s, expected 1.16 or newer\n", base->version());
        return NULL;
    }
    pthread_mutex_lock(&lock);
    if (domain == NULL) {
        attn_open(NULL, &device, &no_device);
        status = api->create_domain("attn", &domain);
        for (size_t i = 0; status == NULL && i < sizeof operators / sizeof *operators; i++) {
            status = api->domain_add(domain, &operators[i].base);
        }
    }
    pthread_mutex_unlock(&lock);
    return status != NULL ? status : api->options_add_domain(options, domain);
}
