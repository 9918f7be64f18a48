/* SPDX-License-Identifier: Apache-2.0
 *
 * conditions.cu - conditional nodes of graphs, for test_exec.sh; compiled with -rdc=true. Prints
 * "ok NAME" for each part.
 */
#include <cstdio>

static int failures;

static void expect(bool right, const char *name) {
    printf("%s %s\n", right ? "ok" : "FAIL", name);
    failures += !right;
}

__global__ void choose(cudaGraphConditionalHandle handle, const unsigned *value) {
    cudaGraphSetConditional(handle, *value);
}

__global__ void add(int *x, int amount) {
    *x += amount;
}

__global__ void count_down(cudaGraphConditionalHandle handle, int *x, int *left) {
    *x += 1;
    *left -= 1;
    cudaGraphSetConditional(handle, *left > 0);
}

static cudaGraphNode_t launch(cudaGraph_t graph, const void *kernel, void **arguments) {
    cudaGraphNode_t node = NULL;
    cudaKernelNodeParams how = {};
    how.func = (void *)kernel;
    how.gridDim = how.blockDim = dim3(1);
    how.kernelParams = arguments;
    cudaGraphAddKernelNode(&node, graph, NULL, 0, &how);
    return node;
}

static cudaGraph_t *condition(cudaGraph_t graph, cudaGraphNode_t after,
                              cudaGraphConditionalHandle handle, cudaGraphConditionalNodeType type,
                              unsigned bodies) {
    cudaGraphNode_t node = NULL;
    cudaGraphNodeParams how = {cudaGraphNodeTypeConditional};
    how.conditional.handle = handle;
    how.conditional.type = type;
    how.conditional.size = bodies;
    cudaGraphAddNode(&node, graph, after != NULL ? &after : NULL, NULL, after != NULL, &how);
    return how.conditional.phGraph_out;
}

/* The sum after one launch for each of the values 0, 1 and 2. */
static int sum_of(cudaGraph_t graph, unsigned *value, int *x) {
    int sum = 0;
    cudaGraphExec_t ready = NULL;
    cudaMemset(x, 0, sizeof *x);
    cudaGraphInstantiate(&ready, graph, 0);
    for (unsigned i = 0; i < 3; i++) {
        cudaMemcpy(value, &i, sizeof i, cudaMemcpyHostToDevice);
        cudaGraphLaunch(ready, 0);
    }
    cudaMemcpy(&sum, x, sizeof sum, cudaMemcpyDeviceToHost);
    cudaGraphExecDestroy(ready);
    cudaGraphDestroy(graph);
    return cudaGetLastError() == cudaSuccess ? sum : -1;
}

int main() {
    int *x, *left, amounts[3] = {1, 10, 100};
    unsigned *value;
    cudaMalloc(&x, sizeof *x);
    cudaMalloc(&left, sizeof *left);
    cudaMalloc(&value, sizeof *value);
    for (const auto type : {cudaGraphCondTypeIf, cudaGraphCondTypeSwitch}) {
        cudaGraph_t graph;
        cudaGraphConditionalHandle handle;
        cudaGraphCreate(&graph, 0);
        cudaGraphConditionalHandleCreate(&handle, graph);
        void *chosen[] = {&handle, &value};
        const cudaGraphNode_t first = launch(graph, (const void *)choose, chosen);
        cudaGraph_t *bodies = condition(graph, first, handle, type, 2);
        for (int i = 0; i < 2; i++) {
            void *added[] = {&x, &amounts[i]};
            launch(bodies[i], (const void *)add, added);
        }
        /* if: else, then, then; switch: body 0, body 1, none */
        const bool is_if = type == cudaGraphCondTypeIf;
        expect(sum_of(graph, value, x) == (is_if ? 10 + 1 + 1 : 1 + 10), is_if ? "if" : "switch");
    }
    cudaGraph_t graph;
    cudaGraphConditionalHandle handle;
    const int turns = 5;
    cudaGraphCreate(&graph, 0);
    cudaGraphConditionalHandleCreate(&handle, graph, 1, cudaGraphCondAssignDefault);
    cudaGraph_t *body = condition(graph, NULL, handle, cudaGraphCondTypeWhile, 1);
    void *arguments[] = {&handle, &x, &left};
    launch(*body, (const void *)count_down, arguments);
    cudaMemcpy(left, &turns, sizeof turns, cudaMemcpyHostToDevice);
    /* five turns; then each launch makes one, since the condition begins as 1 */
    expect(sum_of(graph, value, x) == turns + 2, "while");
    return failures > 0;
}
