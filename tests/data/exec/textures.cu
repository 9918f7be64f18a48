/* SPDX-License-Identifier: Apache-2.0
 *
 * textures.cu - a program that is right, for test_exec.sh: texture and surface objects over arrays,
 * pitched and linear memory. Prints "ok NAME" for each part.
 */
#include <cmath>
#include <cstdio>
#include <cuda_runtime.h>
#include <vector>

enum { W = 12, H = 6, D = 4 };

static float *y; /* managed: what kernels write */

static cudaTextureObject_t texture(const cudaResourceDesc &resource, cudaTextureAddressMode mode,
                                   bool linear, bool normalized, bool to_float = false) {
    cudaTextureDesc how = {};
    cudaTextureObject_t object = 0;
    how.addressMode[0] = how.addressMode[1] = how.addressMode[2] = mode;
    how.filterMode = linear ? cudaFilterModeLinear : cudaFilterModePoint;
    how.readMode = to_float ? cudaReadModeNormalizedFloat : cudaReadModeElementType;
    how.normalizedCoords = normalized;
    cudaCreateTextureObject(&object, &resource, &how, nullptr);
    return object;
}

static cudaResourceDesc of_array(cudaArray_t array) {
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeArray;
    resource.res.array.array = array;
    return resource;
}

static bool done(void) {
    return cudaDeviceSynchronize() == cudaSuccess;
}
static bool near(double a, double b) {
    return fabs(a - b) < 1e-5;
}

/* ---- two dimensions -------------------------------------------------------------------------- */

__global__ void at_points(cudaTextureObject_t t, float *y, float x0, float y0, float dx, float dy) {
    y[threadIdx.x] = tex2D<float>(t, x0 + dx * threadIdx.x, y0 + dy * threadIdx.x);
}

/* The value at (x, y) is 10 x + y, which linear filtering continues between the texels. */
static bool plane(void) {
    std::vector<float> values(W * H);
    cudaArray_t array;
    cudaChannelFormatDesc channel = cudaCreateChannelDesc<float>();
    for (int i = 0; i < W * H; i++) {
        values[i] = 10.0F * (i % W) + i / W;
    }
    cudaMallocArray(&array, &channel, W, H);
    cudaMemcpy2DToArray(array, 0, 0, values.data(), W * 4, W * 4, H, cudaMemcpyHostToDevice);
    cudaTextureObject_t clamp = texture(of_array(array), cudaAddressModeClamp, true, false);
    cudaTextureObject_t border = texture(of_array(array), cudaAddressModeBorder, false, false);
    cudaTextureObject_t wrap = texture(of_array(array), cudaAddressModeWrap, false, true);
    cudaTextureObject_t mirror = texture(of_array(array), cudaAddressModeMirror, false, true);
    at_points<<<1, 8>>>(clamp, y, 2.5F, 1.5F, 0.25F, 0.5F);
    bool good = done();
    for (int i = 0; i < 8; i++) {
        good = good && near(y[i], 10 * (2 + 0.25 * i) + 1 + 0.5 * i);
    }
    at_points<<<1, 3>>>(clamp, y, -5, 0.5F, 20, 0); /* -5, 15, 35 */
    good = good && done() && y[0] == 0 && y[1] == 110 && y[2] == 110;
    at_points<<<1, 3>>>(border, y, -0.5F, 2.5F, 6, 0); /* -0.5, 5.5, 11.5 */
    good = good && done() && y[0] == 0 && y[1] == 52 && y[2] == 112;
    at_points<<<1, 3>>>(wrap, y, 1.5F / W, 0.5F / H, 1, 0);
    good = good && done() && y[0] == 10 && y[1] == 10 && y[2] == 10;
    at_points<<<1, 2>>>(mirror, y, 1.5F / W, 0.5F / H, 1, 0);
    good = good && done() && y[0] == 10 && y[1] == 10.0F * (W - 2);
    cudaDestroyTextureObject(clamp);
    return good && cudaFreeArray(array) == cudaSuccess;
}

/* ---- linear and pitched memory --------------------------------------------------------------- */

__global__ void fetch(cudaTextureObject_t t, float *y) {
    const uchar4 x = tex1Dfetch<uchar4>(t, (int)threadIdx.x - 1);
    y[threadIdx.x] = (float)(x.x + 100 * x.w);
}
__global__ void fetch_float(cudaTextureObject_t t, float *y) {
    y[threadIdx.x] = tex2D<float4>(t, threadIdx.x + 0.5F, 1.5F).y;
}

static bool memory(void) {
    uchar4 host[W], *x;
    cudaResourceDesc resource = {};
    size_t pitch;
    for (int i = 0; i < W; i++) {
        host[i] = make_uchar4((unsigned char)i, 51, 0, 2);
    }
    cudaMalloc(&x, sizeof host);
    cudaMemcpy(x, host, sizeof host, cudaMemcpyHostToDevice);
    resource.resType = cudaResourceTypeLinear;
    resource.res.linear.devPtr = x;
    resource.res.linear.desc = cudaCreateChannelDesc<uchar4>();
    resource.res.linear.sizeInBytes = sizeof host;
    fetch<<<1, W + 2>>>(texture(resource, cudaAddressModeClamp, false, false), y);
    bool good = done() && y[0] == 0 && y[1] == 200 && y[W] == 200 + W - 1 && y[W + 1] == 0;
    cudaMallocPitch(&x, &pitch, W * sizeof *x, 2);
    cudaMemcpy2D(x, pitch, host, 0, sizeof host, 2, cudaMemcpyHostToDevice);
    cudaMemcpy2D(x, pitch, host, sizeof host, sizeof host, 1, cudaMemcpyHostToDevice);
    cudaMemcpy((char *)x + pitch, host, sizeof host, cudaMemcpyHostToDevice);
    resource.resType = cudaResourceTypePitch2D;
    resource.res.pitch2D = {x, cudaCreateChannelDesc<uchar4>(), W, 2, pitch};
    fetch_float<<<1, W>>>(texture(resource, cudaAddressModeClamp, true, false, true), y);
    return good && done() && near(y[3], 51 / 255.0);
}

/* ---- layers, three dimensions ---------------------------------------------------------------- */

__global__ void layers(cudaTextureObject_t t, float *y) {
    y[threadIdx.x] = (float)tex2DLayered<int>(t, 3.5F, 2.5F, (int)threadIdx.x);
}
__global__ void volume(cudaTextureObject_t t, float *y) {
    y[threadIdx.x] = tex3D<float>(t, 3.5F, 2.5F, 0.5F + 0.5F * threadIdx.x);
}

template <typename T> static cudaArray_t filled(unsigned flags) {
    std::vector<T> values(W * H * D);
    cudaArray_t array;
    cudaChannelFormatDesc channel = cudaCreateChannelDesc<T>();
    for (int i = 0; i < W * H * D; i++) {
        values[i] = (T)(i % W + 20 * (i / W % H) + 1000 * (i / W / H));
    }
    cudaMalloc3DArray(&array, &channel, make_cudaExtent(W, H, D), flags);
    cudaMemcpy3DParms copy = {};
    copy.srcPtr = make_cudaPitchedPtr(values.data(), W * sizeof(T), W, H);
    copy.dstArray = array;
    copy.extent = make_cudaExtent(W, H, D);
    copy.kind = cudaMemcpyHostToDevice;
    cudaMemcpy3D(&copy);
    return array;
}

static bool deep(void) {
    layers<<<1, D>>>(texture(of_array(filled<int>(cudaArrayLayered)), cudaAddressModeClamp, false,
                             false),
                     y);
    bool good = done();
    for (int i = 0; i < D; i++) {
        good = good && y[i] == 43 + 1000 * i;
    }
    volume<<<1, D>>>(texture(of_array(filled<float>(0)), cudaAddressModeClamp, true, false), y);
    good = good && done();
    for (int i = 0; i < D; i++) {
        good = good && near(y[i], 43 + 500 * i);
    }
    return good;
}

/* ---- surfaces -------------------------------------------------------------------------------- */

__global__ void paint(cudaSurfaceObject_t s) {
    surf2Dwrite(make_short2((short)threadIdx.x, (short)threadIdx.y), s, threadIdx.x * 4,
                threadIdx.y);
}
__global__ void look(cudaSurfaceObject_t s, float *y) {
    const short2 v = surf2Dread<short2>(s, ((int)threadIdx.x - 1) * 4, 3, cudaBoundaryModeZero);
    const short2 near = surf2Dread<short2>(s, (int)threadIdx.x * 100, 3, cudaBoundaryModeClamp);
    y[threadIdx.x] = (float)(v.x + 100 * v.y + 1000 * near.x);
}

static bool surfaces(void) {
    cudaArray_t array;
    cudaSurfaceObject_t s;
    cudaChannelFormatDesc channel = cudaCreateChannelDesc<short2>();
    short2 host[H][W];
    cudaMallocArray(&array, &channel, W, H, cudaArraySurfaceLoadStore);
    const cudaResourceDesc resource = of_array(array);
    cudaCreateSurfaceObject(&s, &resource);
    paint<<<1, dim3(W, H)>>>(s);
    look<<<1, W + 2>>>(s, y);
    bool good = done() && y[0] == 0 && y[1] == 300 + 1000 * (W - 1) && y[W + 1] == 1000 * (W - 1);
    cudaMemcpy2DFromArray(host, W * 4, array, 0, 0, W * 4, H, cudaMemcpyDeviceToHost);
    return good && host[4][7].x == 7 && host[4][7].y == 4;
}

int main(void) {
    cudaMallocManaged(&y, 64 * sizeof *y);
    const struct {
        const char *name;
        bool (*run)(void);
    } parts[] = {{"plane", plane}, {"memory", memory}, {"deep", deep}, {"surfaces", surfaces}};
    for (const auto &part : parts) {
        printf("%s %s\n", part.run() ? "ok" : "FAIL", part.name);
    }
    return 0;
}
