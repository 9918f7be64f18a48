/* SPDX-License-Identifier: Apache-2.0
 *
 * arguments.cu SEED CALLS - random calls of the runtime with random arguments: sizes, enumerators,
 * handles, NULL, addresses of no allocation. Each call succeeds or is refused by a code.
 *
 * Host addresses are valid, since a copy reads and writes them as the CPU does.
 *
 * Invariant: the last line is printed, whatever the calls were.
 */
#include <cstdint>
#include <cstdio>
#include <cstdlib>

__global__ void fill(float *x, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && x) x[i] = i;
}
__constant__ int symbol[4];

static uint64_t state;
static uint32_t draw(uint32_t n) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (uint32_t)(state >> 33) % n;
}
static size_t size() {
    static const size_t values[] = {0,    1,       3,           4,          64,          1000,
                                    4096, 1 << 20, 1ULL << 40, ~0ULL, ~0ULL << 12, 1ULL << 63};
    return values[draw(12)];
}
static unsigned number() {
    static const unsigned values[] = {0,    1,     2,     3,          7,          8,         32, 33,
                                      1024, 1025, 65535, 0x7fffffff, 0x80000000, 0xffffffff};
    return values[draw(14)];
}

static void *memory[8];
static cudaStream_t streams[3];
static cudaEvent_t events[3];
static cudaArray_t arrays[2];
static cudaGraph_t graph;
static cudaGraphExec_t executable;
static char host[8192];

static void *address() {
    const uintptr_t wild = draw(2) ? 0x500020000000ULL + draw(1 << 30) : draw(1 << 30);
    return draw(4) ? memory[draw(8)] : (void *)wild;
}

static int call_memory(int which, int slot, void *p) {
    int code = 0;
    switch (which) {
    case 0: return cudaMalloc(draw(9) ? &memory[slot] : nullptr, size());
    case 1:
        code = cudaFree(p);
        for (void *&one : memory) one = one == p ? nullptr : one;
        return code;
    case 2: return cudaMemset(p, draw(256), size());
    case 3: return cudaMemcpy(p, host, draw(sizeof host), cudaMemcpyHostToDevice);
    case 4: return cudaMemcpy(host, p, draw(sizeof host), cudaMemcpyDeviceToHost);
    case 5: return cudaMemcpy(p, memory[slot], size(), cudaMemcpyDeviceToDevice);
    case 6:
        return cudaMemcpy2D(p, size(), memory[slot], size(), size(), draw(70),
                            cudaMemcpyDeviceToDevice);
    case 7: return cudaMemcpyToSymbol(symbol, host, size() % sizeof host, size());
    default: {
        cudaPointerAttributes about;
        return cudaPointerGetAttributes(draw(9) ? &about : nullptr, p);
    }
    }
}

static int call_stream(int which, int slot) {
    float ms;
    cudaGraph_t captured = nullptr;
    switch (which) {
    case 0: return cudaStreamCreateWithFlags(draw(9) ? &streams[slot] : nullptr, draw(4));
    case 1: {
        const int code = cudaStreamDestroy(streams[slot]);
        streams[slot] = nullptr;
        return code;
    }
    case 2: return cudaEventCreateWithFlags(draw(9) ? &events[slot] : nullptr, draw(16));
    case 3: return cudaEventRecord(events[slot], streams[draw(3)]);
    case 4: return cudaEventElapsedTime(&ms, events[slot], events[draw(3)]);
    case 5:
        fill<<<dim3(number() % 70000, draw(3)), dim3(number() % 1100, 1 + draw(2)),
               draw(3) ? 0 : size(), streams[slot]>>>(nullptr, (int)number());
        return cudaGetLastError();
    case 6: return cudaStreamBeginCapture(streams[slot], (cudaStreamCaptureMode)draw(4));
    case 7: {
        const int code = cudaStreamEndCapture(streams[slot], &captured);
        graph = captured ? captured : graph;
        return code;
    }
    case 8: return graph ? cudaGraphInstantiate(&executable, graph, 0) : 0;
    default: return executable ? cudaGraphLaunch(executable, streams[slot]) : 0;
    }
}

static int call_other(int which, int slot, void *p) {
    int value;
    cudaDeviceProp properties;
    switch (which) {
    case 0: {
        cudaChannelFormatDesc format = {(int)draw(40), (int)draw(40), (int)draw(33), 0,
                                        (cudaChannelFormatKind)draw(5)};
        return cudaMallocArray(&arrays[slot], &format, size() % 5000, size() % 100, draw(8));
    }
    case 1: {
        const int code = cudaFreeArray(arrays[slot]);
        arrays[slot] = nullptr;
        return code;
    }
    case 2: return cudaGetDeviceProperties(&properties, (int)number());
    case 3: return cudaDeviceGetAttribute(&value, (cudaDeviceAttr)number(), (int)draw(3));
    case 4:
        return cudaOccupancyMaxActiveBlocksPerMultiprocessor(
            &value, draw(5) ? (void *)fill : (void *)host, (int)number(), size());
    case 5: return cudaDeviceSynchronize();
    default: {
        cudaTextureObject_t texture;
        cudaResourceDesc resource = {};
        cudaTextureDesc way = {};
        resource.resType = (cudaResourceType)draw(5);
        if (resource.resType == cudaResourceTypeArray) resource.res.array.array = arrays[slot];
        if (resource.resType == cudaResourceTypeLinear) {
            resource.res.linear.devPtr = p;
            resource.res.linear.sizeInBytes = size();
            resource.res.linear.desc = cudaCreateChannelDesc<float>();
        }
        way.filterMode = (cudaTextureFilterMode)draw(3);
        return cudaCreateTextureObject(&texture, &resource, &way, nullptr);
    }
    }
}

int main(int argc, char **argv) {
    int refused = 0;
    state = argc > 1 ? atoi(argv[1]) : 1;
    for (int i = argc > 2 ? atoi(argv[2]) : 300; i > 0; i--) {
        const int code = draw(3) == 0   ? call_memory(draw(9), draw(8), address())
                         : draw(2) == 0 ? call_stream(draw(10), draw(3))
                                        : call_other(draw(7), draw(2), address());
        refused += code != 0;
    }
    printf("ok arguments, %d calls refused\n", refused);
}
