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

bool sets_plan(struct bench_sets *sets, int most, attn_error *why) {
    const attn_problem *p = sets->problem;
    const double queries = (double)p->batch * (double)p->heads_q * (double)p->seq_q;
    const double keys = (double)p->batch * (double)p->heads_kv * (double)p->seq_kv;
    const double size = (double)attn_dtype_size(p->dtype);
    const double bytes = (queries + keys) * (double)(p->head_dim + p->head_dim_v) * size;
    const double more = queries * (double)p->head_dim_v * size + /* O as it is expected */
                        (p->bias ? 4.0 : 0.0) * (double)p->seq_q * (double)p->seq_kv +
                        (p->mask ? 1.0 : 0.0) * (double)p->seq_q * (double)p->seq_kv;
    const double memory = (double)device_memory_free(sets->runner->memory);
    if (bytes + more > MEMORY_SHARE * memory) {
        return explain(why, "the tensors need %.1f GiB, %s has %.1f GiB of memory",
                       (bytes + more) / (1 << 30), on_gpu(sets) ? "the GPU" : "this machine",
                       memory / (1 << 30));
    }
    const double room = on_gpu(sets) ? SETS_BYTES_GPU : SETS_BYTES_CPU;
    sets->set_bytes = bytes;
    sets->count = on_gpu(sets) ? MAX_SETS : MAX_SETS_CPU;
    sets->count = sets->count < most ? sets->count : most;
    while (sets->count > 1 && sets->count * bytes > room) {
        sets->count--;
    }
    const int64_t kv_rows =
        p->heads_kv * (p->page_size > 0 ? p->num_pages * p->page_size : p->batch * p->seq_kv);
    sets->lse_count = p->batch * p->heads_q * p->seq_q;
    sets->o_count = sets->lse_count * p->head_dim_v;
    sets->input_counts[0] = sets->lse_count * p->head_dim;
    sets->input_counts[1] = kv_rows * p->head_dim;
    sets->input_counts[2] = kv_rows * p->head_dim_v;
    return true;
}

int sets_that_stay(const struct bench_sets *sets) {
    int count = sets->count;
    while (count > 1 && count * sets->set_bytes > CACHE_SHARE * (double)sets->cache->bytes) {
        count--;
    }
    return count;
}

/* ---- inputs ---------------------------------------------------------------------------------- */

void fill_normal(struct random *random, attn_dtype dtype, void *values, int64_t count) {
    const size_t size = attn_dtype_size(dtype);
    const int64_t drawn = count < PERIOD ? count : PERIOD;
    float chunk[CHUNK];
    for (int64_t done = 0; done < drawn; done += CHUNK) {
        const size_t n = (size_t)(drawn - done < CHUNK ? drawn - done : CHUNK);
        random_normal(random, chunk, n);
        attn_from_float(dtype, (char *)values + (size_t)done * size, chunk, n);
    }
    for (int64_t done = drawn; done < count; done += drawn) {
        const int64_t n = count - done < drawn ? count - done : drawn;
        memcpy((char *)values + (size_t)done * size, values, (size_t)n * size);
    }
}

/* Hides every other key, at random: no tile is empty, and none is full. */
void fill_mask(struct random *random, uint8_t *mask, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        mask[i] = (uint8_t)random_below(random, 2);
    }
}

/* The pages of all sequences in random order; every key is used. */
static void fill_table(struct random *random, int32_t *table, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        const int64_t from = (int64_t)random_below(random, (uint64_t)i + 1);
        table[i] = table[from];
        table[from] = (int32_t)i;
    }
}

/* Bias, sink, mask and pages; in the device's memory they are those of tensors[0]. Counted in
 * words. */
static bool make_options(struct bench_sets *sets, attn_error *why) {
    enum { BIAS, SINK, MASK, TABLE, USED, OPTIONS };
    const attn_problem *p = sets->problem;
    const int64_t pairs = p->seq_q * p->seq_kv;
    const int64_t count[OPTIONS] = {pairs, p->heads_q, (pairs + 3) / 4, p->num_pages, p->batch};
    const bool paged = p->page_size > 0;
    const bool wanted[OPTIONS] = {p->bias, p->sink, p->mask, paged, paged};
    void *host[OPTIONS] = {NULL}, *device[OPTIONS] = {NULL};
    for (int i = 0; i < OPTIONS; i++) {
        if (!wanted[i]) {
            continue;
        }
        host[i] = host_block(sets, count[i], ATTN_FP32);
        if (host[i] == NULL) {
            return explain(why, "out of memory for the tensors");
        }
        if (i == MASK) {
            fill_mask(&sets->random, host[i], 4 * count[i]);
        } else if (i == TABLE) {
            fill_table(&sets->random, host[i], count[i]);
        } else if (i == USED) {
            for (int64_t b = 0; b < p->batch; b++) {
                ((int32_t *)host[i])[b] = (int32_t)p->seq_kv;
            }
        } else {
            fill_normal(&sets->random, ATTN_FP32, host[i], count[i]);
        }
        device[i] = on_gpu(sets) ? device_copy(sets, host[i], count[i], ATTN_FP32, why) : host[i];
        if (device[i] == NULL) {
            return false;
        }
    }
    sets->host.bias = host[BIAS];
    sets->host.sink = host[SINK];
    sets->host.mask = host[MASK];
    sets->host.block_table = host[TABLE];
    sets->host.used_kv = host[USED];
    sets->tensors[0].bias = device[BIAS];
    sets->tensors[0].sink = device[SINK];
    sets->tensors[0].mask = device[MASK];
    sets->tensors[0].block_table = device[TABLE];
    sets->tensors[0].used_kv = device[USED];
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
    attn_tensors *t = &sets->host;
    bool good = true;
    for (int i = 0; i < 3; i++) {
        sets->inputs[i] = host_block(sets, sets->input_counts[i], sets->problem->dtype);
        good = good && sets->inputs[i] != NULL;
    }
    t->q = sets->inputs[0];
    t->k = sets->inputs[1];
    t->v = sets->inputs[2];
    t->o = host_block(sets, sets->o_count, sets->problem->dtype);
    t->lse = sets->lse ? host_block(sets, sets->lse_count, ATTN_FP32) : NULL;
    if (!good || t->o == NULL || (t->lse == NULL && sets->lse)) {
        return explain(why, "out of memory for the tensors");
    }
    return true;
}

static bool upload(struct bench_sets *sets, int set, attn_error *why) {
    const attn_dtype dtype = sets->problem->dtype;
    attn_tensors *t = &sets->tensors[set];
    void *copies[3];
    for (int i = 0; i < 3; i++) {
        copies[i] = device_copy(sets, sets->inputs[i], sets->input_counts[i], dtype, why);
        if (copies[i] == NULL) {
            return false;
        }
    }
    *t = sets->tensors[0]; /* bias, sink, mask and pages */
    t->q = copies[0];
    t->k = copies[1];
    t->v = copies[2];
    t->o = device_block(sets, sets->o_count, dtype, why);
    if (t->o == NULL) {
        return false;
    }
    t->lse = sets->lse ? device_block(sets, sets->lse_count, ATTN_FP32, why) : NULL;
    return t->lse != NULL || !sets->lse;
}

bool sets_make(struct bench_sets *sets, int set, attn_error *why) {
    if ((set == 0 || !on_gpu(sets)) && !make_host(sets, why)) {
        return false;
    }
    for (int i = 0; i < 3; i++) {
        fill_normal(&sets->random, sets->problem->dtype, sets->inputs[i], sets->input_counts[i]);
    }
    if (on_gpu(sets)) {
        if (!upload(sets, set, why)) {
            return false;
        }
    } else {
        sets->tensors[set] = sets->host;
    }
    sets->expected_o[set] = device_block(sets, sets->o_count, sets->problem->dtype, why);
    if (sets->expected_o[set] == NULL) {
        return false;
    }
    sets->expected_lse[set] =
        sets->lse ? device_block(sets, sets->lse_count, ATTN_FP32, why) : NULL;
    return sets->expected_lse[set] != NULL || !sets->lse;
}

/* ---- outputs --------------------------------------------------------------------------------- */

static size_t o_bytes(const struct bench_sets *sets) {
    return bytes_of(sets->o_count, sets->problem->dtype);
}

static size_t lse_bytes(const struct bench_sets *sets) {
    return bytes_of(sets->lse_count, ATTN_FP32);
}

/* A pattern of ones is NaN in every dtype. */
bool sets_poison(struct bench_sets *sets, int set, void *stream, attn_error *why) {
    const attn_tensors *t = &sets->tensors[set];
    if (!on_gpu(sets)) {
        memset(t->o, 0xff, o_bytes(sets));
        if (t->lse != NULL) {
            memset(t->lse, 0xff, lse_bytes(sets));
        }
        return true;
    }
    return launch_fill(sets->cache->kernels, t->o, UINT32_MAX, o_bytes(sets) / sizeof(uint32_t),
                       stream, why) &&
           (t->lse == NULL || launch_fill(sets->cache->kernels, t->lse, UINT32_MAX,
                                          lse_bytes(sets) / sizeof(uint32_t), stream, why));
}

bool sets_fetch(struct bench_sets *sets, int set, attn_error *why) {
    struct device *device = sets->runner->memory;
    const attn_tensors *t = &sets->tensors[set];
    if (!on_gpu(sets)) {
        sets->host = *t;
        return true;
    }
    return device_read(device, sets->host.o, t->o, o_bytes(sets), why) &&
           (t->lse == NULL || device_read(device, sets->host.lse, t->lse, lse_bytes(sets), why));
}

bool sets_expect(struct bench_sets *sets, int set, attn_error *why) {
    struct device *device = sets->runner->memory;
    return device_write(device, sets->expected_o[set], sets->host.o, o_bytes(sets), why) &&
           (sets->expected_lse[set] == NULL ||
            device_write(device, sets->expected_lse[set], sets->host.lse, lse_bytes(sets), why));
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

bool sets_compare(struct bench_sets *sets, int set, void *stream, attn_error *why) {
    const attn_tensors *t = &sets->tensors[set];
    const struct bench_kernels *kernels = sets->cache->kernels;
    if (!on_gpu(sets)) {
        sets->differing_here += words_differing(t->o, sets->expected_o[set], o_bytes(sets));
        if (t->lse != NULL) {
            sets->differing_here +=
                words_differing(t->lse, sets->expected_lse[set], lse_bytes(sets));
        }
        return true;
    }
    return launch_differ(kernels, t->o, sets->expected_o[set], o_bytes(sets) / sizeof(uint32_t),
                         sets->differing, stream, why) &&
           (t->lse == NULL ||
            launch_differ(kernels, t->lse, sets->expected_lse[set],
                          lse_bytes(sets) / sizeof(uint32_t), sets->differing, stream, why));
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
    return (int64_t)((o_bytes(sets) + (sets->lse ? lse_bytes(sets) : 0)) / sizeof(uint32_t));
}

int64_t sets_nans(const struct bench_sets *sets) {
    const attn_dtype dtype = sets->problem->dtype;
    const char *place = sets->host.o;
    float chunk[CHUNK];
    int64_t nans = 0;
    for (int64_t done = 0; done < sets->o_count; done += CHUNK) {
        const size_t n = (size_t)(sets->o_count - done < CHUNK ? sets->o_count - done : CHUNK);
        attn_to_float(dtype, chunk, place, n);
        place += n * attn_dtype_size(dtype);
        for (size_t i = 0; i < n; i++) {
            nans += isnan(chunk[i]) ? 1 : 0;
        }
    }
    return nans;
}
