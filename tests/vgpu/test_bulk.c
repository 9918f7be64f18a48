/* SPDX-License-Identifier: Apache-2.0
 *
 * test_bulk.c - plain bulk copies, reductions in memory, and clusters on the virtual GPU,
 * against plain loops, with planted bugs, under every completion order.
 */
#include "vgpu.h"
#include "vgpu/tma_fixture.h"

/* ---- plain bytes ----------------------------------------------------------------------------- */

TEST(plain_copies) {
    enum { BYTES = 4096 };
    static const int32_t ZEROS[RANK] = {0};
    for (int order = 0; order < ORDERS; order++) {
        for (int load = 0; load < 2; load++) {
            struct bench bench;
            unsigned char from[BYTES], to[BYTES];
            unsigned char map[MAP_BYTES] = {0};
            uint64_t seed = 5;
            for (uint32_t i = 0; i < BYTES; i++) {
                from[i] = (unsigned char)next_number(&seed);
            }
            bench_open(&bench, (vgpu_async)order, 3);
            vgpu_pointer a = bench_buffer(&bench, from, BYTES);
            vgpu_pointer b = bench_buffer(&bench, NULL, BYTES);
            memcpy(map, load ? &a : &b, sizeof a);
            char *ptx = plain(load ? LOAD : STORE);
            run_tensor(&bench, ptx, map, load ? b : a, BYTES, ZEROS);
            bench_clean(&bench, load ? "plain load" : "plain store", order);
            bench_fetch(&bench, to, b, BYTES);
            CHECK(memcmp(from, to, BYTES) == 0);
            free(ptx);
            bench_close(&bench);
        }
    }
}

TEST(bugs_of_plain_copies_are_found) {
    static const struct bug BUGS[] = {
        {"size that is no multiple of 16", "mov.u32 %r4, %r5;",
         "mov.u32 %r4, %r5; sub.u32 %r5, "
         "%r5, 8;",
         "illegal-operand"},
        {"global address misaligned", "mov.u32 %r4, %r5;",
         "mov.u32 %r4, %r5; add.u64 %rd1, %rd1, "
         "8;",
         "misaligned"},
        {"shared address misaligned", "mov.u32 %r3, tile;",
         "mov.u32 %r3, tile; add.u32 %r3, %r3, "
         "8;",
         "misaligned"},
        {"global memory out of bounds", "mov.u32 %r4, %r5;",
         "mov.u32 %r4, %r5; add.u64 %rd1, "
         "%rd1, 3088;",
         "out-of-bounds"},
    };
    static const int32_t ZEROS[RANK] = {0};
    for (size_t i = 0; i < sizeof BUGS / sizeof BUGS[0]; i++) {
        for (int order = 0; order < ORDERS; order++) {
            struct bench bench;
            unsigned char map[MAP_BYTES] = {0}, bytes[4096];
            memset(bytes, 2, sizeof bytes);
            bench_open(&bench, (vgpu_async)order, 3);
            vgpu_pointer a = bench_buffer(&bench, bytes, sizeof bytes);
            vgpu_pointer b = bench_buffer(&bench, NULL, sizeof bytes);
            memcpy(map, &a, sizeof a);
            char *whole = plain(LOAD);
            char *ptx = plant(whole, BUGS[i].from, BUGS[i].to);
            run_tensor(&bench, ptx, map, b, 1024, ZEROS);
            bench_found(&bench, BUGS[i].kinds, BUGS[i].what, order);
            free(whole);
            free(ptx);
            bench_close(&bench);
        }
    }
}

/* ---- reductions ------------------------------------------------------------------------------ */

struct reduce_case {
    const char *form;
    uint32_t element;
    uint64_t old, value, expected;
};

TEST(reductions) {
    static const struct reduce_case CASES[] = {
        {"add.u32", 4, 0xfffffff0, 0x20, 0x10},
        {"add.s32", 4, 5, 0xffffffff, 4},
        {"add.u64", 8, 0xffffffff, 1, 0x100000000},
        {"add.f32", 4, 0x3fc00000, 0x40100000, 0x40700000}, /* 1.5 + 2.25 */
        {"add.f64", 8, 0x3ff8000000000000, 0x4002000000000000, 0x400e000000000000},
        {"add.noftz.f16", 2, 0x3e00, 0x4080, 0x4380},  /* 1.5 + 2.25 */
        {"add.noftz.bf16", 2, 0x3fc0, 0x4010, 0x4070}, /* the same */
        {"min.s32", 4, 3, 0xfffffffe, 0xfffffffe},
        {"min.u32", 4, 3, 0xfffffffe, 3},
        {"max.s64", 8, 3, 0xfffffffffffffffe, 3},
        {"max.u64", 8, 3, 0xfffffffffffffffe, 0xfffffffffffffffe},
        {"max.f16", 2, 0xbc00, 0x3c00, 0x3c00},
        {"min.bf16", 2, 0xbf80, 0x3f80, 0xbf80},
        {"inc.u32", 4, 7, 7, 0},
        {"inc.u32", 4, 6, 7, 7},
        {"dec.u32", 4, 0, 9, 9},
        {"dec.u32", 4, 4, 9, 3},
        {"and.b32", 4, 0xff00ff, 0xfff, 0xff},
        {"or.b64", 8, 0x100000000, 1, 0x100000001},
        {"xor.b32", 4, 0xff, 0xf0, 0xf},
    };
    static const int32_t ZEROS[RANK] = {0};
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        const struct reduce_case *c = &CASES[i];
        struct bench bench;
        unsigned char map[MAP_BYTES] = {0}, old[256], value[256];
        char form[160];
        for (uint32_t at = 0; at < 256; at += c->element) {
            memcpy(old + at, &c->old, c->element); /* little endian */
            memcpy(value + at, &c->value, c->element);
        }
        bench_open(&bench, (vgpu_async)(i % ORDERS), 3);
        vgpu_pointer to = bench_buffer(&bench, old, sizeof old);
        vgpu_pointer data = bench_buffer(&bench, value, sizeof value);
        memcpy(map, &to, sizeof to);
        char *whole = plain(STORE);
        snprintf(form, sizeof form, "cp.reduce.async.bulk.global.shared::cta.bulk_group.%s",
                 c->form);
        char *ptx = plant(whole, "cp.async.bulk.global.shared::cta.bulk_group", form);
        run_tensor(&bench, ptx, map, data, sizeof value, ZEROS);
        bench_clean(&bench, c->form, (int)(i % ORDERS));
        bench_fetch(&bench, old, to, sizeof old);
        for (uint32_t at = 0; at < 256; at += c->element) {
            uint64_t got = 0;
            memcpy(&got, old + at, c->element);
            CHECK_MSG(got == c->expected, "%s: got 0x%llx, expected 0x%llx", c->form,
                      (unsigned long long)got, (unsigned long long)c->expected);
        }
        free(whole);
        free(ptx);
        bench_close(&bench);
    }
}

TEST(reduction_of_a_tensor_is_clipped) {
    struct tensor t = PLAIN_TENSOR;
    t.type = 7;
    t.element = 4;
    t.dims[0] = 32;
    t.box[0] = 16;
    t.at[0] = -4;
    t.at[1] = 20; /* rows 20 ... 35 of 32 */
    for (int order = 0; order < ORDERS; order++) {
        struct bench bench;
        _Alignas(64) unsigned char map[MAP_BYTES];
        float old[32 * 32], value[256], got[32 * 32];
        for (uint32_t i = 0; i < 32 * 32; i++) {
            old[i] = (float)i;
            value[i % 256] = (float)(1000 * (i % 256));
        }
        bench_open(&bench, (vgpu_async)order, 3);
        vgpu_pointer to = bench_buffer(&bench, old, sizeof old);
        vgpu_pointer data = bench_buffer(&bench, value, sizeof value);
        encode(&bench, &t, to, map);
        char *whole = of_rank(STORE, 2);
        char *ptx = plant(whole, "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group",
                          "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group");
        run_tensor(&bench, ptx, map, data, sizeof value, t.at);
        bench_clean(&bench, "reduction of a tensor", order);
        bench_fetch(&bench, got, to, sizeof got);
        for (uint32_t n = 0; n < 256; n++) {
            if (source_of(&t, n) >= 0) {
                old[source_of(&t, n) / 4] += value[n];
            }
        }
        CHECK(memcmp(old, got, sizeof got) == 0);
        free(whole);
        free(ptx);
        bench_close(&bench);
    }
}

/* ---- clusters -------------------------------------------------------------------------------- */

/* CTA 0 of 2 loads a box for both; each signals the other through its mbarrier. */
static const char MULTICAST[] =
    BEGIN "mov.u32 %r15, %cluster_ctarank; setp.ne.u32 %p4, %r15, 0;\n"
          "@%p1 bra READY;\n"
          "mbarrier.init.shared::cta.b64 [%r2], 1;\n"
          "mbarrier.init.shared::cta.b64 [%r2+8], 2;\n"
          "fence.mbarrier_init.release.cluster;\n"
          "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], %r5;\n"
          "READY: barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;\n"
          "or.pred %p5, %p1, %p4;\n"
          "@%p5 bra WAIT;\n"
          "mov.u16 %h1, 3;\n"
          "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes."
          "multicast::cluster [%r3], [%rd1, {%r10, %r11}], [%r2], %h1;\n"
          "WAIT: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%r2], 0;\n"
          "@!%p2 bra WAIT;\n"
          "mul.wide.u32 %rd4, %r15, 1024; add.u64 %rd2, %rd2, %rd4;\n"
          "LOOP: setp.ge.u32 %p3, %r6, %r5;\n"
          "@%p3 bra SIGNAL;\n"
          "add.u32 %r7, %r3, %r6; ld.shared.u32 %r8, [%r7]; cvt.u64.u32 %rd3, %r6;\n"
          "add.u64 %rd3, %rd2, %rd3; st.global.u32 [%rd3], %r8; add.u32 %r6, %r6, 256;\n"
          "bra LOOP;\n"
          "SIGNAL: bar.sync 0;\n"
          "@%p1 bra LAST;\n"
          "mov.u32 %r16, 0; mapa.shared::cluster.u32 %r17, %r2, %r16;\n"
          "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r17+8];\n"
          "mov.u32 %r16, 1; mapa.shared::cluster.u32 %r17, %r2, %r16;\n"
          "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r17+8];\n"
          "LAST: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%r2+8], 0;\n"
          "@!%p2 bra LAST;\n"
          "END: barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;\n"
          "ret; }\n";

TEST(multicast_and_remote_arrivals) {
    static const struct bug FORMS[] = {
        {"as it is", "ret;", "ret;", ""},
        {"mask of CTAs that do not exist", "mov.u16 %h1, 3;", "mov.u16 %h1, 7;", "illegal-operand"},
        {"only one CTA", "mov.u16 %h1, 3;", "mov.u16 %h1, 1;", "deadlock"},
        {"no wait",
         "WAIT: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%r2], 0;\n"
         "@!%p2 bra WAIT;\n",
         "WAIT:", "async-read-early|race"},
        {"one arrival missing", "mov.u32 %r16, 1; mapa", "mov.u32 %r16, 0; mapa",
         "deadlock|mbarrier"},
    };
    for (size_t i = 0; i < sizeof FORMS / sizeof FORMS[0]; i++) {
        for (int order = 0; order < ORDERS; order++) {
            struct bench bench;
            struct tensor t = PLAIN_TENSOR;
            _Alignas(64) unsigned char map[MAP_BYTES];
            unsigned char memory[4096], got[2048], expected[1024];
            uint64_t seed = 77;
            for (uint32_t b = 0; b < sizeof memory; b++) {
                memory[b] = (unsigned char)next_number(&seed);
            }
            bench_open(&bench, (vgpu_async)order, 9);
            bench.dims.grid[0] = 2;
            bench.dims.cluster[0] = 2;
            bench.dims.cluster[1] = bench.dims.cluster[2] = 1;
            vgpu_pointer tensor = bench_buffer(&bench, memory, sizeof memory);
            vgpu_pointer data = bench_buffer(&bench, NULL, sizeof got);
            encode(&bench, &t, tensor, map);
            char *room =
                plant(MULTICAST, ".shared .align 8 .b64 bar;", ".shared .align 8 .b64 bar[2];");
            char *ptx = plant(room, FORMS[i].from, FORMS[i].to);
            run_tensor(&bench, ptx, map, data, 1024, t.at);
            if (FORMS[i].kinds[0] != '\0') {
                bench_found(&bench, FORMS[i].kinds, FORMS[i].what, order);
            } else {
                bench_clean(&bench, FORMS[i].what, order);
                bench_fetch(&bench, got, data, sizeof got);
                expected_load(&t, memory, expected);
                CHECK(memcmp(got, expected, 1024) == 0);
                CHECK(memcmp(got + 1024, expected, 1024) == 0);
            }
            free(room);
            free(ptx);
            bench_close(&bench);
        }
    }
}

/* Each CTA of 2 sends 256 bytes to the other, which adds or takes them. */
static const char SEND[] = BEGIN
    "mov.u32 %r15, %cluster_ctarank; xor.b32 %r16, %r15, 1; mad.lo.u32 %r9, %r15, 1000, %r1;\n"
    "add.u32 %r7, %r3, %r6; st.shared.u32 [%r7], %r9; add.u32 %r4, %r3, 1024;\n"
    "add.u32 %r7, %r4, %r6; mov.u32 %r8, 7; st.shared.u32 [%r7], %r8;\n"
    "@%p1 bra READY;\n"
    "mbarrier.init.shared::cta.b64 [%r2], 1;\n"
    "fence.mbarrier_init.release.cluster;\n"
    "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], %r5;\n"
    "READY: fence.proxy.async;\n"
    "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;\n"
    "@%p1 bra WAIT;\n"
    "mapa.shared::cluster.u32 %r17, %r4, %r16; mapa.shared::cluster.u32 %r18, %r2, %r16;\n"
    "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r17], [%r3], %r5, "
    "[%r18];\n"
    "WAIT: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%r2], 0;\n"
    "@!%p2 bra WAIT;\n"
    "add.u32 %r7, %r4, %r6; ld.shared.u32 %r8, [%r7]; mad.lo.u32 %r9, %r15, 256, %r6;\n"
    "cvt.u64.u32 %rd3, %r9; add.u64 %rd3, %rd2, %rd3; st.global.u32 [%rd3], %r8;\n"
    "END: barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;\n"
    "ret; }\n";

TEST(copies_between_blocks) {
    static const struct bug FORMS[] = {
        {"copied", "ret;", "ret;", ""},
        {"added", "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes",
         "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u32",
         ""},
        {"mbarrier of the wrong CTA", "[%r17], [%r3], %r5, [%r18]", "[%r17], [%r3], %r5, [%r2]",
         "mbarrier"},
        {"source overwritten", "WAIT: mbarrier", "WAIT: st.shared.u32 [%r3], %r1; mbarrier",
         "async-overwrite|race"},
        {"no fence", "READY: fence.proxy.async;", "READY:", "proxy-fence"},
        {"the other CTA may have ended",
         "END: barrier.cluster.arrive.release.aligned; "
         "barrier.cluster.wait.acquire.aligned;\n",
         "END:\n", ""}, /* no access to the other CTA any more */
        {"the other CTA has ended", "WAIT: mbarrier", "bra WAIT;\nWAIT: ret; mbarrier",
         "async-unfinished|cluster-exit"},
    };
    static const int32_t ZEROS[RANK] = {0};
    for (size_t i = 0; i < sizeof FORMS / sizeof FORMS[0]; i++) {
        for (int order = 0; order < ORDERS; order++) {
            struct bench bench;
            unsigned char map[MAP_BYTES] = {0};
            uint32_t got[128];
            bench_open(&bench, (vgpu_async)order, 9);
            bench.dims.grid[0] = 2;
            bench.dims.cluster[0] = 2;
            bench.dims.cluster[1] = bench.dims.cluster[2] = 1;
            vgpu_pointer data = bench_buffer(&bench, NULL, sizeof got);
            char *ptx = plant(SEND, FORMS[i].from, FORMS[i].to);
            run_tensor(&bench, ptx, map, data, 256, ZEROS);
            if (FORMS[i].kinds[0] != '\0') {
                bench_found(&bench, FORMS[i].kinds, FORMS[i].what, order);
            } else {
                bench_clean(&bench, FORMS[i].what, order);
                bench_fetch(&bench, got, data, sizeof got);
                for (uint32_t n = 0; n < 128; n++) {
                    const uint32_t other = 1 - n / 64;
                    CHECK_EQ(got[n], other * 1000 + n % 64 + (i == 1 ? 7 : 0));
                }
            }
            free(ptx);
            bench_close(&bench);
        }
    }
}

/* A ring of two stages: a producer loads 9 boxes of 1024 bytes, 32 consumers add them up. */
static const char RING[] =
    BEGIN "mov.u32 %r7, 0; mov.u32 %r8, 0; add.u32 %r9, %r2, 16;\n"
          "@%p1 bra READY;\n"
          "mbarrier.init.shared::cta.b64 [%r2], 1; mbarrier.init.shared::cta.b64 [%r2+8], 1;\n"
          "mbarrier.init.shared::cta.b64 [%r9], 32; mbarrier.init.shared::cta.b64 [%r9+8], 32;\n"
          "fence.mbarrier_init.release.cluster;\n"
          "READY: bar.sync 0;\n"
          "setp.lt.u32 %p4, %r1, 32;\n"
          "LOOP: setp.ge.u32 %p3, %r7, 9;\n"
          "@%p3 bra DONE;\n"
          "and.b32 %r15, %r7, 1; shl.b32 %r16, %r15, 3; shl.b32 %r17, %r15, 10;\n"
          "shr.u32 %r18, %r7, 1; and.b32 %r18, %r18, 1; add.u32 %r17, %r3, %r17;\n"
          "@%p4 bra USE;\n"
          "setp.ne.u32 %p5, %r1, 32;\n"
          "@%p5 bra DONE;\n"
          "xor.b32 %r19, %r18, 1; add.u32 %r13, %r9, %r16; add.u32 %r14, %r2, %r16;\n"
          "FREE: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r13], %r19;\n"
          "@!%p2 bra FREE;\n"
          "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r14], 1024;\n"
          "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r17], "
          "[%rd1, {%r10, %r11}], [%r14];\n"
          "add.u32 %r11, %r11, 1;\n"
          "bra NEXT;\n"
          "USE: add.u32 %r14, %r2, %r16; add.u32 %r13, %r9, %r16;\n"
          "FULL: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r14], %r18;\n"
          "@!%p2 bra FULL;\n"
          "add.u32 %r17, %r17, %r6; ld.shared.u32 %r12, [%r17]; add.u32 %r8, %r8, %r12;\n"
          "mbarrier.arrive.shared::cta.b64 _, [%r13];\n"
          "NEXT: add.u32 %r7, %r7, 1;\n"
          "bra LOOP;\n"
          "DONE: setp.ge.u32 %p3, %r1, 32;\n"
          "@%p3 bra END;\n"
          "cvt.u64.u32 %rd3, %r6; add.u64 %rd3, %rd2, %rd3; st.global.u32 [%rd3], %r8;\n"
          "END: ret; }\n";

TEST(a_ring_of_stages) {
    static const struct bug FORMS[] = {
        {"as it is", "ret;", "ret;", ""},
        {"no wait for a free stage",
         "FREE: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r13], "
         "%r19;\n@!%p2 bra FREE;\n",
         "FREE:\n", "async-overwrite|race|async-read-early|mbarrier"},
        {"no wait for a full stage",
         "FULL: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r14], "
         "%r18;\n@!%p2 bra FULL;\n",
         "FULL:\n", "async-read-early|race"},
        {"released before it is read",
         "add.u32 %r17, %r17, %r6; ld.shared.u32 %r12, [%r17]; add.u32 %r8, %r8, %r12;\n"
         "mbarrier.arrive.shared::cta.b64 _, [%r13];\n",
         "mbarrier.arrive.shared::cta.b64 _, [%r13];\n"
         "add.u32 %r17, %r17, %r6; ld.shared.u32 %r12, [%r17]; add.u32 %r8, %r8, %r12;\n",
         "async-overwrite|race|async-read-early"},
        {"one load too many", "setp.ge.u32 %p3, %r7, 9;",
         "selp.u32 %r12, 9, 10, %p4; setp.ge.u32 %p3, %r7, %r12;", "async-unfinished"},
        {"one load too few", "setp.ge.u32 %p3, %r7, 9;",
         "selp.u32 %r12, 9, 8, %p4; setp.ge.u32 %p3, %r7, %r12;", "deadlock"},
    };
    for (size_t i = 0; i < sizeof FORMS / sizeof FORMS[0]; i++) {
        for (int order = 0; order < ORDERS; order++) {
            struct bench bench;
            struct tensor t = PLAIN_TENSOR;
            _Alignas(64) unsigned char map[MAP_BYTES];
            uint32_t memory[1024], got[32];
            for (uint32_t n = 0; n < 1024; n++) {
                memory[n] = n * n;
            }
            t.at[0] = t.at[1] = 0;
            bench_open(&bench, (vgpu_async)order, 9);
            vgpu_pointer tensor = bench_buffer(&bench, memory, sizeof memory);
            vgpu_pointer data = bench_buffer(&bench, NULL, sizeof got);
            encode(&bench, &t, tensor, map);
            char *room = plant(RING, ".shared .align 8 .b64 bar;", ".shared .align 8 .b64 bar[4];");
            char *ptx = plant(room, FORMS[i].from, FORMS[i].to);
            run_tensor(&bench, ptx, map, data, 1024, t.at);
            if (FORMS[i].kinds[0] != '\0') {
                bench_found(&bench, FORMS[i].kinds, FORMS[i].what, order);
            } else {
                bench_clean(&bench, FORMS[i].what, order);
                bench_fetch(&bench, got, data, sizeof got);
                for (uint32_t n = 0; n < 32; n++) {
                    uint32_t sum = 0; /* word n of a box is word n % 16 of row n / 16 */
                    for (uint32_t box = 0; box < 9; box++) {
                        sum += memory[(box + n / 16) * 32 + n % 16];
                    }
                    CHECK_EQ(got[n], sum);
                }
            }
            free(room);
            free(ptx);
            bench_close(&bench);
        }
    }
}

TEST_MAIN()
