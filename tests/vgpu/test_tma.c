/* SPDX-License-Identifier: Apache-2.0
 *
 * test_tma.c - TMA on the virtual GPU: boxes of tensors of 1 to 5 dimensions against plain
 * loops, swizzles, edges, strides; the rules of tensor maps; planted bugs under every completion
 * order.
 */
#include "vgpu.h"
#include "vgpu/tma_fixture.h"

/* ---- loads and stores ------------------------------------------------------------------------ */

static void check_load(uint64_t seed, int order) {
    const struct tensor t = some_tensor(seed);
    const uint32_t bytes = box_bytes(&t);
    const uint64_t size = tensor_bytes(&t);
    static unsigned char got[TILE_MAX], expected[TILE_MAX];
    _Alignas(64) unsigned char map[MAP_BYTES];
    struct bench bench;
    unsigned char *memory = malloc(size);
    if (!CHECK(bytes <= TILE_MAX && memory) || !bench_open(&bench, (vgpu_async)order, seed)) {
        return;
    }
    for (uint64_t i = 0; i < size; i++) {
        memory[i] = (unsigned char)next_number(&seed);
    }
    vgpu_pointer tensor = bench_buffer(&bench, memory, size);
    vgpu_pointer data = bench_buffer(&bench, NULL, bytes);
    if (encode(&bench, &t, tensor, map)) {
        char *ptx = of_rank(LOAD, t.rank);
        run_tensor(&bench, ptx, map, data, bytes, t.at);
        bench_clean(&bench, "load", order);
        bench_fetch(&bench, got, data, bytes);
        expected_load(&t, memory, expected);
        CHECK_MSG(memcmp(got, expected, bytes) == 0,
                  "load: rank %u, element %u, swizzle %d, %s: wrong bytes", t.rank, t.element,
                  t.swizzle, ORDER_NAMES[order]);
        free(ptx);
    }
    free(memory);
    bench_close(&bench);
}

TEST(loads_of_many_boxes) {
    for (uint64_t seed = 1; seed <= 120; seed++) {
        check_load(seed * 77777, (int)(seed % ORDERS));
    }
}

static void check_store(uint64_t seed, int order) {
    struct tensor t = some_tensor(seed);
    t.fill = 0;
    const uint32_t bytes = box_bytes(&t);
    const uint64_t size = tensor_bytes(&t);
    static unsigned char box[TILE_MAX];
    _Alignas(64) unsigned char map[MAP_BYTES];
    struct bench bench;
    unsigned char *before = malloc(size), *after = malloc(size);
    if (!CHECK(bytes <= TILE_MAX && before && after) ||
        !bench_open(&bench, (vgpu_async)order, seed)) {
        return;
    }
    for (uint64_t i = 0; i < size; i++) {
        before[i] = (unsigned char)next_number(&seed);
    }
    for (uint32_t i = 0; i < bytes; i++) {
        box[i] = (unsigned char)next_number(&seed);
    }
    vgpu_pointer tensor = bench_buffer(&bench, before, size);
    vgpu_pointer data = bench_buffer(&bench, box, bytes);
    if (encode(&bench, &t, tensor, map)) {
        char *ptx = of_rank(STORE, t.rank);
        run_tensor(&bench, ptx, map, data, bytes, t.at);
        bench_clean(&bench, "store", order);
        bench_fetch(&bench, after, tensor, size);
        for (uint32_t n = 0; n < bytes / t.element; n++) {
            for (uint32_t b = 0; source_of(&t, n) >= 0 && b < t.element; b++) {
                before[source_of(&t, n) + b] = box[place_of(&t, n * t.element + b)];
            }
        }
        CHECK_MSG(memcmp(before, after, size) == 0, "store: rank %u, swizzle %d, %s: wrong bytes",
                  t.rank, t.swizzle, ORDER_NAMES[order]);
        free(ptx);
    }
    free(before);
    free(after);
    bench_close(&bench);
}

TEST(stores_of_many_boxes) {
    for (uint64_t seed = 1; seed <= 80; seed++) {
        check_store(seed * 99991, (int)(seed % ORDERS));
    }
}

/* ---- bugs ------------------------------------------------------------------------------------ */

static void check_bug(const char *text, const struct bug *bug, bool initialised) {
    for (int order = 0; order < ORDERS; order++) {
        struct bench bench;
        _Alignas(64) unsigned char map[MAP_BYTES];
        unsigned char bytes[4096];
        memset(bytes, 1, sizeof bytes);
        bench_open(&bench, (vgpu_async)order, 41);
        vgpu_pointer tensor = bench_buffer(&bench, initialised ? bytes : NULL, 4096);
        vgpu_pointer data = bench_buffer(&bench, bytes, 1024);
        encode(&bench, &PLAIN_TENSOR, tensor, map);
        char *whole = of_rank(text, 2);
        char *ptx = plant(whole, bug->from, bug->to);
        run_tensor(&bench, ptx, map, data, 1024, PLAIN_TENSOR.at);
        if (bug->kinds[0] == '\0') {
            bench_clean(&bench, bug->what, order);
        } else {
            bench_found(&bench, bug->kinds, bug->what, order);
        }
        free(whole);
        free(ptx);
        bench_close(&bench);
    }
}

TEST(bugs_of_loads_are_found) {
    static const struct bug BUGS[] = {
        {"nothing wrong", "DONE: ret;", "DONE: ret;", ""},
        {"cache hint", "complete_tx::bytes [%r3], [%rd1, {%r10, %r11}], [%r2];",
         "complete_tx::bytes.L2::cache_hint [%r3], [%rd1, {%r10, %r11}], [%r2], %rd2;", ""},
        {"prefetched", "mov.u32 %r4, %r5;",
         "mov.u32 %r4, %r5; cp.async.bulk.prefetch.tensor.2d.L2.global [%rd1, {%r10, %r11}];", ""},
        {"destination in shared::cta", ".shared::cluster.global.", ".shared::cta.global.", ""},
        {"no wait",
         "WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r2], 0;\n"
         "@!%p2 bra WAIT;\n",
         "WAIT:\n", "async-read-early|race"},
        {"wrong parity", "%p2, [%r2], 0;", "%p2, [%r2], 1;", "async-read-early|race"},
        {"expects too much", "mov.u32 %r4, %r5;", "add.u32 %r4, %r5, 16;", "deadlock"},
        {"expects too little", "mov.u32 %r4, %r5;", "sub.u32 %r4, %r5, 16;", "deadlock"},
        {"expects nothing", "mov.u32 %r4, %r5;", "mov.u32 %r4, 0;",
         "async-read-early|race|async-unfinished"},
        {"mbarrier not initialised", "mbarrier.init.shared::cta.b64 [%r2], 1;\n", "", "mbarrier"},
        {"destination misaligned", "mov.u32 %r3, tile;", "mov.u32 %r3, tile; add.u32 %r3, %r3, 64;",
         "misaligned"},
        {"destination out of bounds", "mov.u32 %r4, %r5;",
         "mov.u32 %r4, %r5; add.u32 %r3, %r3, "
         "65536;",
         "out-of-bounds"},
        {"map misaligned", "cvta.param.u64 %rd1, %rd1;",
         "cvta.param.u64 %rd1, %rd1; add.u64 %rd1, %rd1, 32;", "tensor-map"},
        {"not a map", "cvta.param.u64 %rd1, %rd1;", "mov.b64 %rd1, %rd2;", "tensor-map"},
        {"wrong rank",
         "tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], "
         "[%rd1, {%r10, %r11}]",
         "tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], "
         "[%rd1, {%r10, %r11, %r12}]",
         "tensor-map"},
        {"written while it is loaded", "WAIT: mbarrier", "WAIT: st.shared.u32 [%r3], %r1; mbarrier",
         "async-overwrite|race"},
        {"generic access before without a fence", "READY: bar.sync 0;",
         "READY: st.shared.u32 [%r3], %r1; bar.sync 0;",
         "proxy-fence|race|async-overwrite|race-warp"},
        {"no wait", "WAIT: mbarrier", "WAIT: ret; mbarrier", "async-unfinished"},
    };
    for (size_t i = 0; i < sizeof BUGS / sizeof BUGS[0]; i++) {
        check_bug(LOAD, &BUGS[i], true);
    }
    static const struct bug UNWRITTEN = {"uninitialised tensor", "DONE: ret;", "DONE: ret;",
                                         "uninitialised"};
    check_bug(LOAD, &UNWRITTEN, false);
}

TEST(bugs_of_stores_are_found) {
    static const struct bug BUGS[] = {
        {"nothing wrong", "DONE: ret;", "DONE: ret;", ""},
        {"waits for the reads only", "wait_group 0;", "wait_group.read 0;", ""},
        {"no proxy fence", "fence.proxy.async.shared::cta;", "", "proxy-fence"},
        {"no barrier", "bar.sync 0;", "", "race|proxy-fence"},
        {"not waited for", "cp.async.bulk.wait_group 0;", "", "async-unfinished"},
        {"not committed", "cp.async.bulk.commit_group;", "", "async-unfinished"},
        {"waits too little", "wait_group 0;", "wait_group.read 1;", "async-unfinished"},
        {"source overwritten", "cp.async.bulk.commit_group;",
         "cp.async.bulk.commit_group; st.shared.u32 [%r3], %r1;", "async-overwrite|race"},
        {"source misaligned", "@%p1 bra DONE;", "@%p1 bra DONE; add.u32 %r3, %r3, 16;",
         "misaligned"},
        {"source out of bounds", "@%p1 bra DONE;", "@%p1 bra DONE; add.u32 %r3, %r3, 65024;",
         "out-of-bounds"},
        {"uninitialised source", "@%p1 bra DONE;", "@%p1 bra DONE; add.u32 %r3, %r3, 512;",
         "uninitialised"},
    };
    for (size_t i = 0; i < sizeof BUGS / sizeof BUGS[0]; i++) {
        check_bug(STORE, &BUGS[i], true);
    }
}

/* ---- the rules of tensor maps ---------------------------------------------------------------- */

TEST(rules_of_tensor_maps) {
    enum field {
        NOTHING,
        TYPE,
        RANK_OF,
        ADDRESS,
        DIM,
        STRIDE,
        BOX,
        STEP,
        INTERLEAVE,
        SWIZZLE,
        L2,
        FILL
    };
    static const struct {
        enum field field;
        uint64_t value;
        const char *part; /* of the sentence; "": allowed */
    } CASES[] = {
        {NOTHING, 0, ""},
        {TYPE, 13, "tensorDataType"},
        {RANK_OF, 0, "tensorRank"},
        {RANK_OF, 6, "tensorRank"},
        {ADDRESS, 8, "globalAddress"},
        {DIM, 0, "globalDim[1]"},
        {DIM, 1ULL << 32, ""},
        {DIM, (1ULL << 32) + 1, "globalDim[1]"},
        {STRIDE, 24, "globalStrides[0]"},
        {STRIDE, 1ULL << 40, "globalStrides[0]"},
        {STRIDE, (1ULL << 40) - 16, ""},
        {STRIDE, 16, ""},
        {BOX, 0, "boxDim[0]"},
        {BOX, 257, "boxDim[0]"},
        {BOX, 4, "multiple of 16"},
        {BOX, 72, "swizzle"},
        {BOX, 8, ""},
        {STEP, 0, "elementStrides[1]"},
        {STEP, 9, "elementStrides[1]"},
        {STEP, 8, ""},
        {INTERLEAVE, 1, "interleave"},
        {SWIZZLE, 4, "swizzle"},
        {SWIZZLE, 2, "swizzle"},
        {L2, 4, "l2Promotion"},
        {FILL, 2, "oobFill"},
        {FILL, 1, ""},
    };
    struct bench bench;
    _Alignas(64) unsigned char map[MAP_BYTES + 64];
    bench_open(&bench, VGPU_ASYNC_EAGER, 1);
    const vgpu_pointer memory = bench_buffer(&bench, NULL, 4096);
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        const uint64_t v = CASES[i].value;
        const enum field f = CASES[i].field;
        uint64_t dims[RANK] = {64, 8}, strides[RANK - 1] = {128};
        uint32_t box[RANK] = {64, 8}, steps[RANK] = {1, 1};
        dims[1] = f == DIM ? v : dims[1];
        strides[0] = f == STRIDE ? v : strides[0];
        box[0] = f == BOX ? (uint32_t)v : box[0];
        steps[1] = f == STEP ? (uint32_t)v : steps[1];
        const vgpu_status status =
            vgpu_tensor_map(bench.gpu, map, f == TYPE ? (int)v : 6, f == RANK_OF ? (uint32_t)v : 2,
                            memory + (f == ADDRESS ? v : 0), dims, strides, box, steps,
                            f == INTERLEAVE ? (int)v : 0, f == SWIZZLE ? (int)v : 3,
                            f == L2 ? (int)v : 0, f == FILL ? (int)v : 0, &bench.why);
        if (CASES[i].part[0] == '\0') {
            CHECK_MSG(status == VGPU_OK, "case %zu: %s", i, bench.why.text);
        } else if (CHECK_MSG(status == VGPU_INVALID, "case %zu: status %d", i, status)) {
            CHECK_CONTAINS(bench.why.text, CASES[i].part);
        }
    }
    const uint64_t dims[2] = {64, 8}, strides[1] = {128};
    const uint32_t box[2] = {64, 8}, steps[2] = {1, 1};
    CHECK(vgpu_tensor_map(bench.gpu, map + 8, 6, 2, memory, dims, strides, box, steps, 0, 3, 0, 0,
                          &bench.why) == VGPU_INVALID);
    CHECK_CONTAINS(bench.why.text, "multiple of 64");
    CHECK(vgpu_tensor_map(bench.gpu, map, 2, 2, memory, dims, strides, box, steps, 0, 0, 0, 1,
                          &bench.why) == VGPU_INVALID);
    CHECK_CONTAINS(bench.why.text, "integer");
    bench_close(&bench);
}

TEST(unknown_forms_are_refused) {
    static const char *const FORMS[] = {
        "cp.async.bulk.tensor.2d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
        "[%r3], [%rd1, {%r10, %r11}], [%r2];",
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], "
        "[%rd1, {%r10, %r11, %r12}], [%r2];",
        "cp.async.bulk.tensor.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], "
        "[%rd1, {%r10, %r11}], [%r2];",
        "cp.async.bulk.shared::cluster.global.bulk_group [%r3], [%rd1], 16;",
        "cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r3];",
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.b32 [%rd1], [%r3], 16;",
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f16 [%rd1], [%r3], 16;",
        "cp.reduce.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd1, {%r10, %r11}], [%r3];",
        "tensormap.replace.tile.swizzle_atomicity.global.b1024.b32 [%rd1], 1;",
        "cp.async.bulk.wait_group.read %r1;",
    };
    for (size_t i = 0; i < sizeof FORMS / sizeof FORMS[0]; i++) {
        struct bench bench;
        vgpu_module *module = NULL;
        bench_open(&bench, VGPU_ASYNC_EAGER, 1);
        char *whole = of_rank(STORE, 2);
        char *ptx = plant(whole, "cp.async.bulk.commit_group;", FORMS[i]);
        const vgpu_status status = vgpu_load(bench.gpu, ptx, strlen(ptx), &module, &bench.why);
        CHECK_MSG(status == VGPU_LOAD && bench.why.line > 0, "%s: status %d", FORMS[i], status);
        free(whole);
        free(ptx);
        bench_close(&bench);
    }
}

TEST_MAIN()
