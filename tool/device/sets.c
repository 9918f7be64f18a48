/* SPDX-License-Identifier: Apache-2.0
 *
 * sets.c - see sets.h.
 */
#include "device/sets.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/message.h"

enum { MAX_SETS_CPU = 4, CHUNK = 4096 };
static const double SETS_BYTES_CPU = 64 << 20; /* all sets together, unless one is larger */
static const double SETS_BYTES_GPU = 256 << 20;
static const double MEMORY_SHARE = 0.8; /* of what there is */
static const double CACHE_SHARE = 0.5;  /* of it may be filled and is still called warm */

/* Numbers in a tensor repeat after so many: 2^22 is enough for a test and fast to sample, and a
 * prime above it makes no two rows, heads or batches alike. */
enum { PERIOD = 4194319 };

static bool on_gpu(const struct bench_sets *sets) {
    return device_is_gpu(sets->runner->memory);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Whole words, since outputs are filled and compared word by word; what pads them is ours too. */
static size_t bytes_of(int64_t count, attn_dtype dtype) {
    const size_t bytes = (size_t)count * attn_dtype_size(dtype);
    return (bytes + sizeof(uint32_t) - 1) / sizeof(uint32_t) * sizeof(uint32_t);
}

static void *host_block(struct bench_sets *sets, int64_t count, attn_dtype dtype) {
    void *memory = allocate_aligned(bytes_of(count, dtype));
    if (memory != NULL) {
        sets->host_blocks[sets->host_count++] = memory;
    }
    return memory;
}

static void *device_block(struct bench_sets *sets, int64_t count, attn_dtype dtype,
                          attn_error *why) {
    void *memory = device_alloc(sets->runner->memory, bytes_of(count, dtype), why);
    if (memory != NULL) {
        sets->device_blocks[sets->device_count++] = memory;
    }
    return memory;
}

/* A device's copy of what is in the host's memory. */
static void *device_copy(struct bench_sets *sets, const void *host, int64_t count, attn_dtype dtype,
                         attn_error *why) {
    void *memory = device_block(sets, count, dtype, why);
    const size_t size = (size_t)count * attn_dtype_size(dtype);
    return memory != NULL && device_write(sets->runner->memory, memory, host, size, why) ? memory
                                                                                         : NULL;
}

void sets_free(struct bench_sets *sets) {
    for (int i = 0; i < sets->device_count; i++) {
        device_free(sets->runner->memory, sets->device_blocks[i]);
    }
    for (int i = 0; i < sets->host_count; i++) {
        free(sets->host_blocks[i]);
    }
    sets->device_count = sets->host_count = 0;
}

/* ---- which tensors --------------------------------------------------------------------------- */

static bool is_backward(const struct bench_sets *sets) {
    return sets->runner->direction == ATTN_BACKWARD;
}

void *set_pointer(const attn_tensors *tensors, const struct set_tensor *which) {
    void *pointer;
    memcpy(&pointer, (const char *)tensors + which->at, sizeof pointer);
    return pointer;
}

static void set_to(attn_tensors *tensors, const struct set_tensor *which, void *pointer) {
    memcpy((char *)tensors + which->at, &pointer, sizeof pointer);
}

#define TENSOR(there, field, dtype, dim, count)                                                    \
    { offsetof(attn_tensors, field), dtype, (there) ? (dim) * (count) : -1 }

static void list_tensors(struct bench_sets *sets) {
    const attn_problem *p = sets->problem;
    const bool backward = is_backward(sets);
    const int64_t rows = p->batch * p->heads_q * p->seq_q;
    const int64_t keys =
        p->heads_kv * (p->page_size > 0 ? p->num_pages * p->page_size : p->batch * p->seq_kv);
    const struct set_tensor all[SET_TENSORS] = {
        TENSOR(true, q, p->dtype, p->head_dim, rows),
        TENSOR(true, k, (attn_dtype)p->dtype_kv, p->head_dim, keys),
        TENSOR(!p->v_in_k, v, (attn_dtype)p->dtype_kv, p->head_dim_v, keys),
        TENSOR(backward, d_o, p->dtype, p->head_dim_v, rows),
        TENSOR(!backward, o, p->dtype, p->head_dim_v, rows),
        TENSOR(!backward && sets->lse, lse, ATTN_FP32, 1, rows),
        TENSOR(backward, dq, p->dtype, p->head_dim, rows),
        TENSOR(backward, dk, p->dtype, p->head_dim, keys),
        TENSOR(backward, dv, p->dtype, p->head_dim_v, keys),
        TENSOR(backward && p->sink, d_sink, ATTN_FP32, 1, p->heads_q)};
    sets->input_count = backward ? 4 : p->v_in_k ? 2 : 3;
    sets->tensor_count = 0;
    for (int i = 0; i < SET_TENSORS; i++) {
        sets->list[sets->tensor_count] = all[i];
        sets->tensor_count += all[i].count >= 0;
    }
}

static size_t bytes_of_tensor(const struct set_tensor *which) {
    return bytes_of(which->count, which->dtype);
}

/* How many of `count` sets, at least one, have no more bytes together. */
static int that_fit(const struct bench_sets *sets, int count, double bytes) {
    while (count > 1 && count * sets->set_bytes > bytes) {
        count--;
    }
    return count;
}

bool sets_plan(struct bench_sets *sets, int most, attn_error *why) {
    const attn_problem *p = sets->problem;
    const double queries = (double)p->batch * (double)p->heads_q * (double)p->seq_q;
    const double keys = (double)p->batch * (double)p->heads_kv * (double)p->seq_kv;
    const double size = (double)attn_dtype_size(p->dtype);
    const double size_kv = (double)attn_dtype_size((attn_dtype)p->dtype_kv);
    const double bytes = (is_backward(sets) ? 2 : 1) * (queries * size + keys * size_kv) *
                         (double)(p->head_dim + p->head_dim_v);
    const double more = (p->bias ? 4.0 : 0.0) * (double)p->seq_q * (double)p->seq_kv +
                        (p->mask ? 1.0 : 0.0) * (double)p->seq_q * (double)p->seq_kv +
                        (is_backward(sets) /* the outputs as they are expected */
                             ? bytes / 2
                             : queries * (double)p->head_dim_v * size);
    const double memory = (double)device_memory_free(sets->runner->memory);
    if (bytes + more > MEMORY_SHARE * memory) {
        return explain(why, "the tensors need %.1f GiB, %s has %.1f GiB of memory",
                       (bytes + more) / (1 << 30), on_gpu(sets) ? "the GPU" : "this machine",
                       memory / (1 << 30));
    }
    const int usual = on_gpu(sets) ? MAX_SETS : MAX_SETS_CPU;
    sets->set_bytes = bytes;
    sets->count =
        that_fit(sets, usual < most ? usual : most, on_gpu(sets) ? SETS_BYTES_GPU : SETS_BYTES_CPU);
    list_tensors(sets);
    return true;
}

int sets_that_stay(const struct bench_sets *sets) {
    return that_fit(sets, sets->count, CACHE_SHARE * (double)sets->cache->bytes);
}

/* ---- inputs ---------------------------------------------------------------------------------- */

void fill_normal(uint64_t *rng, attn_dtype dtype, void *values, int64_t count) {
    const size_t size = attn_dtype_size(dtype);
    const int64_t drawn = count < PERIOD ? count : PERIOD;
    float chunk[CHUNK];
    for (int64_t done = 0; done < drawn; done += CHUNK) {
        const size_t n = (size_t)(drawn - done < CHUNK ? drawn - done : CHUNK);
        rng_normals(rng, chunk, n);
        attn_from_float(dtype, (char *)values + (size_t)done * size, chunk, n);
    }
    for (int64_t done = drawn; done < count; done += drawn) {
        const int64_t n = count - done < drawn ? count - done : drawn;
        memcpy((char *)values + (size_t)done * size, values, (size_t)n * size);
    }
}

/* Hides every other key, at random: no tile is empty, and none is full. */
void fill_mask(uint64_t *rng, uint8_t *mask, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        mask[i] = (uint8_t)rng_range(rng, 0, 1);
    }
}

/* The pages of all sequences in random order; every key is used. */
static void fill_table(uint64_t *rng, int32_t *table, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        const int64_t from = rng_range(rng, 0, i);
        table[i] = table[from];
        table[from] = (int32_t)i;
    }
}

static void fill_lengths(int32_t *lengths, int64_t count, int64_t length) {
    for (int64_t i = 0; i < count; i++) {
        lengths[i] = (int32_t)length;
    }
}

/* Bias, sink, mask and pages; in the device's memory they are those of tensors[0]. Counted in
 * words. */
static bool make_options(struct bench_sets *sets, attn_error *why) {
    const attn_problem *p = sets->problem;
    const int64_t pairs = p->seq_q * p->seq_kv;
    const bool paged = p->page_size > 0;
    const struct set_tensor options[] = {TENSOR(p->bias, bias, ATTN_FP32, 1, pairs),
                                         TENSOR(p->sink, sink, ATTN_FP32, 1, p->heads_q),
                                         TENSOR(p->mask, mask, ATTN_FP32, 1, (pairs + 3) / 4),
                                         TENSOR(paged, block_table, ATTN_FP32, 1, p->num_pages),
                                         TENSOR(paged, used_kv, ATTN_FP32, 1, p->batch)};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        const int64_t count = options[i].count;
        if (count < 0) {
            continue;
        }
        void *host = host_block(sets, count, ATTN_FP32), *device = host;
        if (host == NULL) {
            return explain(why, "out of memory for the tensors");
        }
        switch (options[i].at) {
        case offsetof(attn_tensors, mask): fill_mask(&sets->rng, host, 4 * count); break;
        case offsetof(attn_tensors, block_table): fill_table(&sets->rng, host, count); break;
        case offsetof(attn_tensors, used_kv): fill_lengths(host, count, p->seq_kv); break;
        default: fill_normal(&sets->rng, ATTN_FP32, host, count);
        }
        if (on_gpu(sets) && (device = device_copy(sets, host, count, ATTN_FP32, why)) == NULL) {
            return false;
        }
        set_to(&sets->host, &options[i], host);
        set_to(&sets->tensors[0], &options[i], device);
    }
    return true;
}

bool sets_share(struct bench_sets *sets, attn_error *why) {
    const uint64_t zero = 0;
    attn_tensors_init(&sets->host);
    attn_tensors_init(&sets->tensors[0]);
    if (on_gpu(sets)) {
        sets->differing = device_copy(sets, &zero, 2, ATTN_FP32, why);
        if (sets->differing == NULL) {
            return false;
        }
    }
    return make_options(sets, why);
}

/* The host's tensors: on a GPU one set serves for all of them, on a CPU each has its own. */
static bool make_host(struct bench_sets *sets, attn_error *why) {
    for (int i = 0; i < sets->tensor_count; i++) {
        const struct set_tensor *which = &sets->list[i];
        void *memory = host_block(sets, which->count, which->dtype);
        if (memory == NULL) {
            return explain(why, "out of memory for the tensors");
        }
        set_to(&sets->host, which, memory);
    }
    sets->host.v = sets->problem->v_in_k ? sets->host.k : sets->host.v;
    return true;
}

static bool upload(struct bench_sets *sets, int set, attn_error *why) {
    attn_tensors *t = &sets->tensors[set];
    *t = sets->tensors[0]; /* bias, sink, mask and pages */
    for (int i = 0; i < sets->tensor_count; i++) {
        const struct set_tensor *which = &sets->list[i];
        void *memory = i < sets->input_count ? device_copy(sets, set_pointer(&sets->host, which),
                                                           which->count, which->dtype, why)
                                             : device_block(sets, which->count, which->dtype, why);
        if (memory == NULL) {
            return false;
        }
        set_to(t, which, memory);
    }
    t->v = sets->problem->v_in_k ? t->k : t->v;
    return true;
}

bool sets_forward(struct bench_sets *sets, int set, attn_error *why) {
    const struct runner *runner = sets->runner;
    void *workspace = NULL;
    attn_plan *plan = NULL;
    if (!is_backward(sets)) {
        return true;
    }
    bool good = attn_plan_create(runner->context, sets->problem, NULL, &plan, why) == ATTN_OK;
    const size_t size = good ? attn_workspace_size(plan) : 0;
    good = good && (size == 0 || ((workspace = device_alloc(runner->memory, size, why)) != NULL &&
                                  device_fill(runner->memory, workspace, 0xFF, size, why)));
    good =
        good &&
        attn_forward(plan, &sets->tensors[set], workspace, size, runner->stream, why) == ATTN_OK &&
        device_wait(runner->memory, why);
    device_free(runner->memory, workspace);
    attn_plan_destroy(plan);
    return good;
}

bool sets_make(struct bench_sets *sets, int set, attn_error *why) {
    const attn_problem *p = sets->problem;
    attn_tensors *t = &sets->tensors[set];
    if ((set == 0 || !on_gpu(sets)) && !make_host(sets, why)) {
        return false;
    }
    for (int i = 0; i < sets->input_count; i++) {
        fill_normal(&sets->rng, sets->list[i].dtype, set_pointer(&sets->host, &sets->list[i]),
                    sets->list[i].count);
    }
    if (!on_gpu(sets)) {
        *t = sets->host;
    } else if (!upload(sets, set, why)) {
        return false;
    }
    for (int i = sets->input_count; i < sets->tensor_count; i++) {
        const struct set_tensor *which = &sets->list[i];
        sets->expected[set][i] = device_block(sets, which->count, which->dtype, why);
        if (sets->expected[set][i] == NULL) {
            return false;
        }
    }
    if (is_backward(sets)) {
        const int64_t rows = p->batch * p->heads_q * p->seq_q;
        t->o = device_block(sets, rows * p->head_dim_v, p->dtype, why);
        t->lse = t->o != NULL ? device_block(sets, rows, ATTN_FP32, why) : NULL;
        return t->lse != NULL && sets_forward(sets, set, why);
    }
    return true;
}

/* ---- outputs --------------------------------------------------------------------------------- */

/* A pattern of ones is NaN in every dtype. */
bool sets_poison(struct bench_sets *sets, int first, int count, void *stream, attn_error *why) {
    const int outputs = sets->tensor_count - sets->input_count;
    bool good = true;
    for (int i = 0; good && i < count * outputs; i++) {
        const struct set_tensor *which = &sets->list[sets->input_count + i % outputs];
        void *output = set_pointer(&sets->tensors[(first + i / outputs) % sets->count], which);
        const size_t bytes = bytes_of_tensor(which);
        if (on_gpu(sets)) {
            good =
                launch_fill(sets->cache, output, UINT32_MAX, bytes / sizeof(uint32_t), stream, why);
        } else {
            memset(output, 0xff, bytes);
        }
    }
    return good;
}

bool sets_fetch(struct bench_sets *sets, int set, attn_error *why) {
    const attn_tensors *t = &sets->tensors[set];
    bool good = true;
    if (!on_gpu(sets)) {
        sets->host = *t;
        return true;
    }
    for (int i = sets->input_count; good && i < sets->tensor_count; i++) {
        const struct set_tensor *which = &sets->list[i];
        good = device_read(sets->runner->memory, set_pointer(&sets->host, which),
                           set_pointer(t, which), bytes_of_tensor(which), why);
    }
    return good;
}

bool sets_expect(struct bench_sets *sets, int set, attn_error *why) {
    bool good = true;
    for (int i = sets->input_count; good && i < sets->tensor_count; i++) {
        const struct set_tensor *which = &sets->list[i];
        good = device_write(sets->runner->memory, sets->expected[set][i],
                            set_pointer(&sets->host, which), bytes_of_tensor(which), why);
    }
    return good;
}

static int64_t words_differing(const void *a, const void *b, size_t bytes) {
    int64_t count = 0;
    if (memcmp(a, b, bytes) == 0) {
        return 0;
    }
    for (size_t i = 0; i < bytes; i += sizeof(uint32_t)) {
        count += memcmp((const char *)a + i, (const char *)b + i, sizeof(uint32_t)) != 0;
    }
    return count;
}

bool sets_compare(struct bench_sets *sets, int first, int count, void *stream, attn_error *why) {
    const int outputs = sets->tensor_count - sets->input_count;
    bool good = true;
    for (int i = 0; good && i < count * outputs; i++) {
        const int set = (first + i / outputs) % sets->count;
        const int which = sets->input_count + i % outputs;
        const void *output = set_pointer(&sets->tensors[set], &sets->list[which]);
        const size_t bytes = bytes_of_tensor(&sets->list[which]);
        if (on_gpu(sets)) {
            good = launch_differ(sets->cache, output, sets->expected[set][which],
                                 bytes / sizeof(uint32_t), sets->differing, stream, why);
        } else {
            sets->differing_here += words_differing(output, sets->expected[set][which], bytes);
        }
    }
    return good;
}

int64_t sets_differing(struct bench_sets *sets, attn_error *why) {
    const int64_t zero = 0;
    int64_t count = sets->differing_here;
    sets->differing_here = 0;
    if (on_gpu(sets) &&
        (!device_read(sets->runner->memory, &count, sets->differing, sizeof count, why) ||
         !device_write(sets->runner->memory, sets->differing, &zero, sizeof zero, why))) {
        return -1;
    }
    return count;
}

int64_t sets_words(const struct bench_sets *sets) {
    size_t bytes = 0;
    for (int i = sets->input_count; i < sets->tensor_count; i++) {
        bytes += bytes_of_tensor(&sets->list[i]);
    }
    return (int64_t)(bytes / sizeof(uint32_t));
}

int64_t sets_nans(const struct bench_sets *sets) {
    float chunk[CHUNK];
    int64_t nans = 0;
    for (int i = sets->input_count; i < sets->tensor_count; i++) {
        const struct set_tensor *which = &sets->list[i];
        const char *place = set_pointer(&sets->host, which);
        for (int64_t done = 0; which->dtype == sets->problem->dtype && done < which->count;
             done += CHUNK) {
            const size_t n = (size_t)(which->count - done < CHUNK ? which->count - done : CHUNK);
            attn_to_float(which->dtype, chunk, place, n);
            place += n * attn_dtype_size(which->dtype);
            for (size_t k = 0; k < n; k++) {
                nans += isnan(chunk[k]) ? 1 : 0;
            }
        }
    }
    return nans;
}
