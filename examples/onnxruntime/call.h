/* SPDX-License-Identifier: Apache-2.0
 *
 * call.h - one run of an attention node: its tensors, memory and errors (call.c), and what it
 * computes (attend.c).
 *
 * Invariant: a function that returns false has written the reason into call->why.
 */
#ifndef CALL_H
#define CALL_H

#include <attn.h>

#include "ort_abi.h"

enum { MOST_DIMS = 5, MOST_SCRATCH = 8 };

struct call;

/* One operator for one type of elements; `types` has a letter for each input: T, i (int32),
 * l (int64) or * (any). */
struct definition {
    ort_operator base; /* first: ONNX Runtime passes its address */
    const char *name, *types;
    int element;
    bool (*compute)(struct call *call);
};

/* A node of a model: its attributes. */
struct kernel {
    const struct definition *op;
    const ort_api *api;
    float scale, softcap;
    int64_t heads, heads_kv, causal, window, rotary, interleaved, smooth;
};

struct tensor {
    void *data; /* NULL: absent */
    int64_t dims[MOST_DIMS];
    int rank, element;
};

/* One run of a node. */
struct call {
    const struct kernel *kernel;
    const ort_api *api;
    ort_context *context;
    attn_problem p;
    attn_tensors t;
    attn_error why;
    int code; /* of the status that `why` becomes */
    struct tensor past_k, past_v, cosine, sine;
    int64_t past;        /* keys of every sequence that are there already, unless `ragged` */
    int64_t capacity;    /* rows of the present keys */
    const int32_t *used; /* keys of each sequence after this call; NULL: all */
    bool ragged;         /* new keys end at used[b] */
    void *scratch[MOST_SCRATCH];
    int scratches;
};

/* The CPU, with one thread pool for all nodes and sessions. It is never closed. */
extern attn_context *device;

/* code: of the status. */
bool refuse(struct call *call, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* What ONNX Runtime answered. */
bool fine(struct call *call, ort_status *status);
/* Memory until the end of the call; NULL: there is none. */
void *scratch(struct call *call, size_t bytes, size_t alignment);

/* An input that the model does not give has no data. */
bool input(struct call *call, size_t index, struct tensor *tensor);
/* An output that the model does not use has no data. */
bool output(struct call *call, size_t index, const int64_t *dims, size_t rank, void **data);
/* False if the model gives the input. */
bool absent(struct call *call, size_t index, const char *name);
bool has_dims(struct call *call, const struct tensor *tensor, const char *name, int rank,
              const int64_t *dims);
size_t element_size(const struct call *call);

/* Sizes, strides and addresses of query, key and value, of p.heads_q and p.heads_kv heads. */
bool set_tensors(struct call *call, const struct tensor *q, const struct tensor *k,
                 const struct tensor *v);
/* The output, with the rank of query. */
bool set_output(struct call *call, int rank);
/* Additive or boolean, broadcast to (batch, heads, rows, keys). */
bool set_scores(struct call *call, const struct tensor *x, const char *name, int64_t keys);
/* Present keys and values, outputs 1 and 2, if there are any. Without them, without past ones and
 * without RoPE k and v stay where they are. */
bool set_present(struct call *call);
bool attend(struct call *call);

#endif /* CALL_H */
