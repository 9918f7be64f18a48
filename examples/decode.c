/* SPDX-License-Identifier: Apache-2.0
 *
 * decode.c - a growing KV cache: one token at a time against all keys so far.
 *
 *     cc decode.c $(pkg-config --cflags --libs attn) && ./a.out [cpu|cuda]
 *
 * One plan serves every step. It is made for the longest cache; tensors.used_kv, a number in the
 * device's memory, says how many keys there are. A call reads that number on the device, so the
 * same call can be captured into a CUDA graph once and replayed for every token.
 *
 * A plan for each length is the other way (attn_plan_create costs about a microsecond): the kernel
 * is then chosen for that length. The last step does both and compares.
 */
#include <attn.h>
#include <attn_inspect.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADS = 8, HEADS_KV = 2, DIM = 64, LONGEST = 1024, STEPS = 300 };

static void need(attn_status status, const attn_error *why) {
    if (status != ATTN_OK) {
        fprintf(stderr, "%s\n", why->text);
        exit(1);
    }
}

/* ---- device memory: malloc, or the CUDA driver that libattn has opened ---------------------- */

static attn_context *context;
static int (*cu_alloc)(uint64_t *address, size_t bytes);
static int (*cu_free)(uint64_t address);
static int (*cu_upload)(uint64_t to, const void *from, size_t bytes);
static int (*cu_download)(void *to, uint64_t from, size_t bytes);

static void driver(const char *name, void *function) {
    attn_error why;
    void *found = NULL;
    need(attn_driver_function(context, name, &found, &why), &why);
    memcpy(function, &found, sizeof found);
}

static void open_device(const char *device) {
    attn_error why;
    attn_options options;
    attn_options_init(&options);
    options.device = device;
    need(attn_open(&options, &context, &why), &why);
    if (strcmp(device, "cpu") != 0) {
        int (*retain)(void **primary, int ordinal), (*set_current)(void *primary);
        void *primary = NULL;
        driver("cuDevicePrimaryCtxRetain", &retain);
        driver("cuCtxSetCurrent", &set_current);
        driver("cuMemAlloc", &cu_alloc);
        driver("cuMemFree", &cu_free);
        driver("cuMemcpyHtoD", &cu_upload);
        driver("cuMemcpyDtoH", &cu_download);
        if (retain(&primary, 0) != 0 || set_current(primary) != 0) {
            fprintf(stderr, "no CUDA context\n");
            exit(1);
        }
    }
}

static void *device_alloc(size_t bytes) {
    uint64_t address = 0;
    void *memory = cu_alloc == NULL ? malloc(bytes + 1) : NULL;
    if (memory == NULL && (cu_alloc == NULL || cu_alloc(&address, bytes + 1) != 0)) {
        fprintf(stderr, "no memory for %zu bytes\n", bytes);
        exit(1);
    }
    return memory != NULL ? memory : (void *)(uintptr_t)address;
}

static void device_free(void *memory) {
    if (cu_free == NULL) {
        free(memory);
    } else {
        cu_free((uintptr_t)memory);
    }
}

/* Both wait for what was launched before. */
static void upload(void *to, const void *from, size_t bytes) {
    if (cu_upload == NULL) {
        memcpy(to, from, bytes);
    } else if (cu_upload((uintptr_t)to, from, bytes) != 0) {
        fprintf(stderr, "a copy or a kernel before it failed\n");
        exit(1);
    }
}

static void download(void *to, const void *from, size_t bytes) {
    if (cu_download == NULL) {
        memcpy(to, from, bytes);
    } else if (cu_download(to, (uintptr_t)from, bytes) != 0) {
        fprintf(stderr, "a copy or a kernel before it failed\n");
        exit(1);
    }
}

/* ---- what a model would make -------------------------------------------------------------- */

static void random_rows(uint16_t *rows, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const float value = (float)rand() / (float)RAND_MAX - 0.5F;
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        rows[i] = (uint16_t)(bits >> 16); /* bf16: the upper half of a float */
    }
}

static attn_plan *plan_for(int keys, bool used_kv) {
    attn_error why;
    attn_plan *plan = NULL;
    attn_problem p;
    attn_problem_init(&p);
    p.dtype = ATTN_BF16;
    p.heads_q = HEADS;
    p.heads_kv = HEADS_KV;
    p.seq_q = 1;
    p.seq_kv = keys;
    p.head_dim = DIM;
    p.k.head = p.v.head = (int64_t)LONGEST * DIM; /* the cache is as long as it will get */
    p.used_kv = used_kv;
    need(attn_plan_create(context, &p, NULL, &plan, &why), &why);
    return plan;
}

int main(int argc, char **argv) {
    open_device(argc > 1 ? argv[1] : "cpu");
    attn_plan *plan = plan_for(LONGEST, true);
    const size_t cache = (size_t)HEADS_KV * LONGEST * DIM * sizeof(uint16_t);
    uint16_t *k = device_alloc(cache), *v = device_alloc(cache);
    uint16_t *q = device_alloc(HEADS * DIM * sizeof *q), *o = device_alloc(HEADS * DIM * sizeof *o);
    int32_t *used = device_alloc(sizeof *used);
    attn_tensors t;
    attn_tensors_init(&t);
    t.q = q, t.k = k, t.v = v, t.o = o, t.used_kv = used;

    attn_plan *exact = plan_for(STEPS, false);
    const size_t one = attn_workspace_size(plan), other = attn_workspace_size(exact);
    const size_t size = one > other ? one : other;
    void *workspace = device_alloc(size); /* for both plans; it needs no initialisation */

    attn_error why;
    uint16_t token[HEADS * DIM], out[HEADS * DIM], again[HEADS * DIM];
    for (int32_t step = 0; step < STEPS; step++) {
        for (size_t head = 0; head < HEADS_KV; head++) { /* the new token's key and value */
            const size_t at = (head * LONGEST + (size_t)step) * DIM;
            random_rows(token, DIM);
            upload(k + at, token, DIM * sizeof *token);
            random_rows(token, DIM);
            upload(v + at, token, DIM * sizeof *token);
        }
        random_rows(token, HEADS * DIM);
        upload(q, token, sizeof token);
        const int32_t length = step + 1;
        upload(used, &length, sizeof length);
        need(attn_forward(plan, &t, workspace, size, NULL, &why), &why);
    }
    download(out, o, sizeof out);

    need(attn_forward(exact, &t, workspace, size, NULL, &why), &why);
    download(again, o, sizeof again);
    int differ = 0;
    for (int i = 0; i < HEADS * DIM; i++) {
        differ +=
            abs((int)out[i] - (int)again[i]) > 2; /* bf16 steps: kernels may differ in order */
    }
    printf("%d steps by %s; at length %d by %s: %s\n", STEPS, attn_plan_variant(plan), STEPS,
           attn_plan_variant(exact), differ == 0 ? "equal" : "DIFFERENT");
    void *const memory[] = {q, k, v, o, used, workspace};
    for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++) {
        device_free(memory[i]);
    }
    attn_plan_destroy(exact);
    attn_plan_destroy(plan);
    attn_close(context);
    return differ != 0;
}
