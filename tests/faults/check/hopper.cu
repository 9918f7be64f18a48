/* SPDX-License-Identifier: Apache-2.0
 *
 * hopper.cu - out = (q k^T / 64) v for 64 columns: TMA loads into two stages by a producer, wgmma
 * from shared memory and from registers by a warpgroup, TMA stores. A CTA takes every
 * gridDim.x-th tile of 64 rows; ragged edges are filled with zeros by TMA. Right as FAULT 0. How it
 * is run and what must be found: tests/meta/test_faults.sh.
 *
 * @arch sm_90a
 * @run attend --grid 2 --block 256 --smem 50176 --arg tmap:f16:64x300:128:64x64:128:rand:1 --arg tmap:f16:64x270:128:64x64:128:rand:2 --arg tmap:f16:64x270:128:64x64:128:rand:3 --arg tmap:f16:64x300:128:64x64:none:uninit --arg i32:5 --arg i32:5
 * @run attend --grid 1 --block 256 --smem 50176 --arg tmap:f16:64x64:128:64x64:128:rand:1 --arg tmap:f16:64x64:128:64x64:128:rand:2 --arg tmap:f16:64x64:128:64x64:128:rand:3 --arg tmap:f16:64x64:128:64x64:none:uninit --arg i32:1 --arg i32:1
 * @run attend --grid 1 --block 256 --smem 50176 --arg tmap:f16:64x1:128:64x64:128:rand:1 --arg tmap:f16:64x1:128:64x64:128:rand:2 --arg tmap:f16:64x1:128:64x64:128:rand:3 --arg tmap:f16:64x1:128:64x64:none:uninit --arg i32:1 --arg i32:1
 * @run attend --grid 3 --block 256 --smem 50176 --arg tmap:f16:64x129:128:64x64:128:rand:1 --arg tmap:f16:64x450:128:64x64:128:rand:2 --arg tmap:f16:64x450:128:64x64:128:rand:3 --arg tmap:f16:64x129:128:64x64:none:uninit --arg i32:3 --arg i32:8
 * @fault 1 proxy-fence          no proxy fence between writing the result and the TMA store
 * @fault 2 deadlock             more bytes are expected than come
 * @fault 3 async-read-early     fewer bytes are expected than come
 * @fault 4 async-read-early     the consumers do not wait for a full stage
 * @fault 5 async-overwrite      the producer does not wait for an empty stage
 * @fault 6 deadlock             fewer warps release a stage than it was made for
 * @fault 7 async-overwrite      more warps release a stage than it was made for
 * @fault 8 async-read-early     the consumers wait with the wrong parity
 * @fault 9 deadlock             the producer waits with the wrong parity
 * @fault 10 async-overwrite     a stage is released before its products are done
 * @fault 11 deadlock            a named barrier for more threads than come
 * @fault 12 mbarrier            an mbarrier is never initialised
 * @fault 13 wgmma-fence         no wgmma.fence after the accumulators were set
 * @fault 14 register-in-flight  scores are read before the product is waited for
 * @fault 15 async-overwrite     the staging of the result is written while the last store reads it
 * @fault 16 misaligned          a TMA load to shared memory off by 64 bytes
 * @fault 17 tensor-map          a TMA load with something that is no tensor map
 * @fault 18 descriptor          a descriptor that leads out of shared memory
 * @fault 19 setmaxnreg          setmaxnreg.dec to more registers than a thread has
 * @run 19 attend --grid 1 --block 512 --smem 50176 --arg tmap:f16:64x64:128:64x64:128:rand:1 --arg tmap:f16:64x64:128:64x64:128:rand:2 --arg tmap:f16:64x64:128:64x64:128:rand:3 --arg tmap:f16:64x64:128:64x64:none:uninit --arg i32:1 --arg i32:1
 * @fault 20 async-unfinished    the block ends while its last store still reads
 * @fault 21 register-in-flight  products that were not committed are waited for
 * @fault 22 divergent-warp-op   a product in a condition that half of each warp does not take
 * @fault 23 barrier-count       arrivals and waits at a named barrier name different counts
 * @fault 24 race                no barrier after the mbarriers were initialised
 * @fault 25 out-of-bounds       a TMA load past the end of shared memory
 * @fault 26 async-read-early    bytes are not announced at all
 * @fault 27 async-overwrite     wait_group 1: a stage is released that the last product reads
 * @fault 28 tensor-map          a load for three dimensions with a map of two
 * @fault 29 race                all write the result, one stores it: no barrier in between
 * @fault 30 mbarrier            an mbarrier is initialised for no arrivals
 * @fault 31 deadlock            the phase is not turned when the ring of stages wraps
 * @fault 32 wgmma-fence         registers of the left operand are written without a fence
 * @fault 33 descriptor          a descriptor with the wrong swizzle
 * @fault 35 setmaxnreg          setmaxnreg in some warps of a warpgroup only
 * @fault 36 deadlock            more registers are asked for than others gave back
 * @fault 37 setmaxnreg          the warps of a warpgroup execute different setmaxnreg
 * @fault 38 proxy-fence         a tile is written by ordinary stores, and multiplied
 * @fault 39 race                ... with a fence, and no barrier for the other warps
 * @fault 40 async-read-early    no wait for the Q tile
 * @fault 41 async-overwrite     the next tile of queries does not wait for the products
 * @fault 42 mbarrier            the bytes of a stage are announced by two arrivals
 * @fault 43 async-unfinished    a store that is not committed to a group
 * @fault 44 register-in-flight  the last products are not waited for
 * @fault 45 mbarrier            two threads are the producer
 * @fault 46 async-read-early    the phase is tested once, whatever comes out
 * @fault 47 async-read-early    the wait is tried once, whatever comes out
 * @fault 48 race                an mbarrier is initialised anew while others use it
 * @numbers 49 3 0.002           the values come from one row below
 * @numbers 34 3 0.002           steps of 8 columns where 16 are multiplied
 */
#ifndef FAULT
#define FAULT 0
#endif

typedef unsigned u32;
typedef unsigned long long u64;
struct __align__(64) tensor_map {
    u64 opaque[16];
};

enum { TILE_BYTES = 64 * 64 * 2, STAGES = 2, CONSUMER_WARPS = 4 };

__device__ u32 shared_address(const void *p) {
    return (u32)__cvta_generic_to_shared(p);
}
__device__ void barrier_init(u32 barrier, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
__device__ void wait(u32 barrier, u32 parity) {
    asm volatile("{ .reg .pred p;\n again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@!p bra again; }" ::"r"(barrier), "r"(parity) : "memory");
}
__device__ void wait_once(u32 barrier, u32 parity) {
#if FAULT == 46
    asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%0], %1; }"
                 ::"r"(barrier), "r"(parity) : "memory");
#else
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; }"
                 ::"r"(barrier), "r"(parity) : "memory");
#endif
}
__device__ void arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ void expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}
__device__ void load(u32 to, const void *map, u32 barrier, int row) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4}], [%2];"
                 ::"r"(to), "l"(map), "r"(barrier), "r"(0), "r"(row) : "memory");
}
__device__ void store(const void *map, u32 from, int row) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];"
                 ::"l"(map), "r"(from), "r"(0), "r"(row) : "memory");
}
__device__ void load_3d(u32 to, const void *map, u32 barrier, int row) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %3}], [%2];"
                 ::"r"(to), "l"(map), "r"(barrier), "r"(0), "r"(row) : "memory");
}

__device__ u64 descriptor(u32 address, u32 leading) {
    const u64 swizzle = FAULT == 33 && leading == 16 ? 2 : 1; /* 64 or 128 bytes */
    const u64 offsets = (u64)(leading >> 4) << 16 | (u64)(1024 >> 4) << 32;
    return (u64)(address >> 4 & 0x3fff) | offsets | swizzle << 62;
}

#define EIGHT(d, i) \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
        "+f"(d[i + 6]), "+f"(d[i + 7])
#define ACCUMULATORS \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
    "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"

__device__ void product_shared(float d[32], u64 a, u64 b, int add) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 " ACCUMULATORS
                 ", %32, %33, p, 1, 1, 0, 0; }"
                 : EIGHT(d, 0), EIGHT(d, 8), EIGHT(d, 16), EIGHT(d, 24)
                 : "l"(a), "l"(b), "r"(add) : "memory");
}
__device__ void product_registers(float d[32], const u32 *a, u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 " ACCUMULATORS
                 ", {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
                 : EIGHT(d, 0), EIGHT(d, 8), EIGHT(d, 16), EIGHT(d, 24)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b) : "memory");
}
/* The registers pass through, so that the compiler writes them before the fence only. */
__device__ void fence(float d[32]) {
    asm volatile("wgmma.fence.sync.aligned;"
                 : EIGHT(d, 0), EIGHT(d, 8), EIGHT(d, 16), EIGHT(d, 24)::"memory");
}
__device__ void commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/* Likewise: it reads them after the wait only. */
__device__ void wait_products(float d[32]) {
    asm volatile("wgmma.wait_group.sync.aligned 0;"
                 : EIGHT(d, 0), EIGHT(d, 8), EIGHT(d, 16), EIGHT(d, 24)::"memory");
}
__device__ u32 two_halves(float low, float high) {
    u32 bits;
    asm volatile("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low)); /* @14 @21 */
    return bits;
}

struct rings {
    u32 q, k, v, out;                 /* tiles in shared memory */
    u32 q_full, q_empty, full, empty; /* mbarriers */
    int row_tiles, key_tiles;
};

__device__ void produce(const struct rings *r, const void *q, const void *k, const void *v) {
    int step = 0, turn = 0;
    for (int tile = blockIdx.x; tile < r->row_tiles; tile += gridDim.x, turn++) {
#if FAULT != 41
        wait(r->q_empty, turn & 1 ^ 1);
#endif
        expect(r->q_full, TILE_BYTES);
        load(r->q, q, r->q_full, tile * 64); /* @40 @41 */
        for (int key = 0; key < r->key_tiles; key++, step++) {
            const int stage = step % STAGES;
            const u32 full = r->full + 8 * stage, empty = r->empty + 8 * stage;
            const u32 phase = step / STAGES & 1;
#if FAULT != 5
            wait(empty, FAULT == 9 ? phase : phase ^ 1); /* @6 @9 */
#endif
#if FAULT == 42
            expect(full, TILE_BYTES); /* @42 */
#endif
#if FAULT == 26
            arrive(full);
#else
            const int tiles = FAULT == 2 ? 3 : FAULT == 3 || FAULT == 42 ? 1 : 2;
            expect(full, tiles * TILE_BYTES); /* @42 @45 */
#endif
#if FAULT == 28
            load_3d(r->k + stage * TILE_BYTES, k, full, key * 64); /* @28 */
#else
            const u32 to = r->k + stage * TILE_BYTES + (FAULT == 16 ? 64 : FAULT == 25 ? 65536 : 0);
            const void *map = FAULT == 17 ? (const char *)k + 64 : k;
            load(to, map, full, key * 64); /* @4 @5 @7 @8 @10 @16 @17 @25 @26 @27 @46 @47 */
#endif
            load(r->v + stage * TILE_BYTES, v, full,
                 key * 64 + (FAULT == 49)); /* @3 @4 @5 @7 @8 @10 @26 @27 @46 @47 */
        }
    }
}

/* One KV tile: the S = QK^T GEMM, then the PV GEMM. */
__device__ void use_stage(float out[32], const struct rings *r, int stage, int release) {
    float score[32];
    u32 left[16];
    for (int i = 0; i < 32; i++) {
        score[i] = 0.0f;
    }
#if FAULT == 38 || FAULT == 39
    const u32 word = r->q + threadIdx.x % 64 * 128; /* rows of other warps too */
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(word), "r"(0) : "memory"); /* @38 @39 */
#endif
#if FAULT == 38
    asm volatile("bar.sync 3, 128;" ::: "memory");
#elif FAULT == 39
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
#if FAULT != 13
    fence(score);
#endif
    for (int i = 0; i < 4; i++) {
        const u32 step = i * (FAULT == 34 ? 16 : 32) + (FAULT == 18 ? 0x20000 : 0);
        const u64 q = descriptor(r->q + i * 32, 16);
        const u64 k = descriptor(r->k + stage * TILE_BYTES + step, 16);
#if FAULT == 22
        if (threadIdx.x % 32 < 16) {
            product_shared(score, q, k, 1); /* @22 */
        }
#else
        product_shared(score, q, k, 1); /* @3 @4 @8 @13 @18 @26 @33 @38 @39 @40 @41 @46 @47 */
#endif
    }
#if FAULT != 21
    commit();
#endif
#if FAULT != 14
    wait_products(score);
#endif
    for (int i = 0; i < 16; i++) {
        left[i] = two_halves(score[2 * i] * 0.015625f, score[2 * i + 1] * 0.015625f); /* @14 @21 */
    }
#if FAULT == 10
    if (threadIdx.x % 32 == 0) {
        arrive(release);
    }
#endif
#if FAULT != 32
    fence(out);
#endif
    for (int i = 0; i < 4; i++) {
        const u64 v = descriptor(r->v + stage * TILE_BYTES + i * 2048, TILE_BYTES);
        product_registers(out, left + 4 * i, v); /* @3 @4 @5 @7 @8 @10 @26 @27 @32 @44 @46 @47 */
    }
    commit();
#if FAULT == 27
    asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
#elif FAULT != 44
    wait_products(out);
#endif
#if FAULT != 10
    if (threadIdx.x % 32 == 0 && (FAULT != 6 || threadIdx.x == 128)) {
        arrive(release);
    }
#endif
#if FAULT == 27
    wait_products(out);
#endif
}

__device__ void store_tile(const float out[32], const struct rings *r, const void *map, int tile) {
    const int thread = threadIdx.x - 128, lane = thread % 32, warp = thread / 32;
    if (thread == 0 && FAULT != 15) {
        asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    }
    asm volatile("bar.sync 1, %0;" ::"n"(FAULT == 11 ? 160 : 128) : "memory"); /* @11 */
    for (int i = 0; i < 16; i++) {
        const int row = warp * 16 + lane / 4 + (i & 1) * 8, column = i / 2 * 8 + lane % 4 * 2;
        const u32 bits = two_halves(out[2 * i], out[2 * i + 1]); /* @44 */
        const u32 to = r->out + row * 128 + column * 2;
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(bits) : "memory"); /* @1 @15 @29 */
    }
#if FAULT != 1
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
#if FAULT == 23
    if (warp == 3) {
        asm volatile("bar.arrive 2, 64;" ::: "memory"); /* @23 */
    } else {
        asm volatile("bar.sync 2, 128;" ::: "memory"); /* @23 */
    }
#elif FAULT != 29
    asm volatile("bar.sync 2, 128;" ::: "memory");
#endif
    if (thread == 0) {
        store(map, r->out, tile * 64); /* @1 @15 @20 @29 @43 */
#if FAULT != 43
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#endif
    }
}

__device__ void consume(const struct rings *r, const void *map) {
    int step = 0, turn = 0;
    for (int tile = blockIdx.x; tile < r->row_tiles; tile += gridDim.x, turn++) {
        float out[32] = {0.0f};
#if FAULT != 40
        wait(r->q_full, turn & 1);
#endif
        for (int key = 0; key < r->key_tiles; key++, step++) {
            const int stage = step % STAGES;
            const u32 phase = FAULT == 31 ? 0 : step / STAGES & 1;
#if FAULT == 46 || FAULT == 47
            wait_once(r->full + 8 * stage, phase);
#elif FAULT != 4
            wait(r->full + 8 * stage, FAULT == 8 ? phase ^ 1 : phase); /* @2 @31 */
#endif
            use_stage(out, r, stage, r->empty + 8 * stage);
        }
        if (threadIdx.x % 32 == 0) {
            arrive(r->q_empty);
        }
        store_tile(out, r, map, tile);
    }
    if (threadIdx.x == 128 && FAULT != 20) {
        asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    }
}

extern "C" __global__ void __launch_bounds__(512, 1)
    attend(const __grid_constant__ tensor_map q, const __grid_constant__ tensor_map k,
           const __grid_constant__ tensor_map v, const __grid_constant__ tensor_map out,
           int row_tiles, int key_tiles) {
    extern __shared__ unsigned char raw[];
    __shared__ __align__(8) u64 barriers[6];
    struct rings r;
    r.q = (shared_address(raw) + 1023) & ~1023u;
    r.k = r.q + TILE_BYTES;
    r.v = r.k + STAGES * TILE_BYTES;
    r.out = r.v + STAGES * TILE_BYTES;
    r.q_full = shared_address(barriers);
    r.q_empty = r.q_full + 8;
    r.full = r.q_empty + 8;
    r.empty = r.full + 8 * STAGES;
    r.row_tiles = row_tiles;
    r.key_tiles = key_tiles;
    if (threadIdx.x == 0) {
        barrier_init(r.q_full, 1);
        barrier_init(r.q_empty, CONSUMER_WARPS);
        for (int i = 0; i < STAGES; i++) {
            barrier_init(r.full + 8 * i, FAULT == 30 ? 0 : 1); /* @24 @30 */
            if (FAULT != 12) {
                barrier_init(r.empty + 8 * i, FAULT == 7 ? 2 : CONSUMER_WARPS); /* @24 */
            }
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
#if FAULT != 24
    __syncthreads();
#endif
    if (threadIdx.x < 128) {
        if (FAULT == 35 && threadIdx.x < 64) {
            asm volatile("setmaxnreg.dec.sync.aligned.u32 24;"); /* @35 */
        } else if (FAULT == 37 && threadIdx.x < 64) {
            asm volatile("setmaxnreg.dec.sync.aligned.u32 32;"); /* @37 */
        } else if (FAULT != 35) {
            asm volatile("setmaxnreg.dec.sync.aligned.u32 24;"); /* @37 */
        }
        if (threadIdx.x == 0 || FAULT == 45 && threadIdx.x == 32) {
            produce(&r, &q, &k, &v); /* @12 @45 */
        }
    } else if (threadIdx.x < 256) {
#if FAULT == 48
        if (threadIdx.x == 128) {
            barrier_init(r.q_full, 1); /* @48 */
        }
#endif
#if FAULT == 35 || FAULT == 37
        asm volatile("setmaxnreg.inc.sync.aligned.u32 160;");
#else
        constexpr int MORE = FAULT == 36 ? 240 : 232;
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(MORE)); /* @19 @36 */
#endif
        consume(&r, &out); /* @24 */
    } else { /* warpgroups without work */
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(FAULT == 19 ? 232 : 24)); /* @19 */
    }
}
