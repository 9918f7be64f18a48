/* SPDX-License-Identifier: Apache-2.0
 *
 * gpu.c - causal attention on a GPU, from tensors in host memory and back.
 *
 *     cc gpu.c $(pkg-config --cflags --libs attn) && ./a.out
 *
 * Needs the NVIDIA driver when it runs, and neither the CUDA toolkit nor its runtime to compile:
 * memory comes from driver functions that libattn has found. A program with cudaMalloc and a
 * cudaStream_t gives those pointers and that stream to attn_forward, and needs none of driver().
 */
#include <attn.h>
#include <attn_inspect.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADS = 4, SEQ = 128, DIM = 64, COUNT = HEADS * SEQ * DIM };

static attn_context *context;

static void need(attn_status status, const attn_error *why) {
    if (status != ATTN_OK) {
        fprintf(stderr, "%s\n", why->text);
        exit(1);
    }
}

static void need_cuda(int result, const char *what) {
    if (result != 0) {
        fprintf(stderr, "%s failed: CUDA error %d\n", what, result);
        exit(1);
    }
}

/* `function` is a pointer to a function pointer. */
static void driver(const char *name, void *function) {
    attn_error why;
    void *found = NULL;
    need(attn_driver_function(context, name, &found, &why), &why);
    memcpy(function, &found, sizeof found);
}

int main(void) {
    attn_error why;
    attn_options options;
    attn_options_init(&options);
    options.device = "cuda"; /* or "cuda:1" */
    need(attn_open(&options, &context, &why), &why);

    int (*retain)(void **, int), (*release)(int), (*set_current)(void *), (*wait)(void);
    int (*alloc)(uint64_t *, size_t), (*give_back)(uint64_t);
    int (*upload)(uint64_t, const void *, size_t), (*download)(void *, uint64_t, size_t);
    driver("cuDevicePrimaryCtxRetain", &retain);
    driver("cuDevicePrimaryCtxRelease", &release);
    driver("cuCtxSetCurrent", &set_current);
    driver("cuCtxSynchronize", &wait);
    driver("cuMemAlloc", &alloc);
    driver("cuMemFree", &give_back);
    driver("cuMemcpyHtoD", &upload);
    driver("cuMemcpyDtoH", &download);
    void *primary = NULL;
    need_cuda(retain(&primary, 0), "cuDevicePrimaryCtxRetain");
    need_cuda(set_current(primary), "cuCtxSetCurrent"); /* before the plan is made */

    attn_problem p;
    attn_problem_init(&p);
    p.dtype = ATTN_FP16;
    p.heads_q = HEADS, p.seq_q = p.seq_kv = SEQ, p.head_dim = DIM;
    p.causal = ATTN_CAUSAL_TOP_LEFT;
    attn_plan *plan = NULL;
    need(attn_plan_create(context, &p, NULL, &plan, &why), &why);

    /* Q and K are 0, so that O is a mean: of V, which is 0 and, in the second half, 1. */
    static uint16_t q[COUNT], v[COUNT], o[COUNT];
    const uint16_t one = 0x3c00, half = 0x3800; /* in fp16 */
    for (int i = 0; i < COUNT; i++) {
        v[i] = i / DIM % SEQ < SEQ / 2 ? 0 : one;
    }
    enum { Q, K, V, O, WORKSPACE, BLOCKS };
    const size_t size = attn_workspace_size(plan);
    uint64_t memory[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) {
        need_cuda(alloc(&memory[i], i == WORKSPACE ? size + 1 : sizeof q), "cuMemAlloc");
    }
    need_cuda(upload(memory[Q], q, sizeof q), "cuMemcpyHtoD");
    need_cuda(upload(memory[K], q, sizeof q), "cuMemcpyHtoD");
    need_cuda(upload(memory[V], v, sizeof v), "cuMemcpyHtoD");

    attn_tensors t;
    attn_tensors_init(&t);
    t.q = (const void *)(uintptr_t)memory[Q];
    t.k = (const void *)(uintptr_t)memory[K];
    t.v = (const void *)(uintptr_t)memory[V];
    t.o = (void *)(uintptr_t)memory[O];
    need(attn_forward(plan, &t, (void *)(uintptr_t)memory[WORKSPACE], size, NULL, &why), &why);
    need_cuda(wait(), "the kernel"); /* forward only launches */
    need_cuda(download(o, memory[O], sizeof o), "cuMemcpyDtoH");

    const bool right = o[0] == 0 && o[COUNT - 1] == half;
    printf("by %s: the last row is 0x%04x, expected 0x%04x\n", attn_plan_variant(plan),
           (unsigned)o[COUNT - 1], (unsigned)half);
    for (int i = 0; i < BLOCKS; i++) {
        give_back(memory[i]);
    }
    attn_plan_destroy(plan);
    attn_close(context);
    release(0);
    return right ? 0 : 1;
}
