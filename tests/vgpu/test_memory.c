/* SPDX-License-Identifier: Apache-2.0
 *
 * test_memory.c - allocations, windows, bounds, alignment, lifetime and initialised bytes:
 * each mistake is planted and found, with the allocation that was missed; what is right is not
 * reported. The last test prints what an access costs.
 */
#include "test.h"

#include <time.h>

#include "vgpu/machine/describe.h"
#include "vgpu/vgpu_warps.h"

#define CHECKS (VGPU_CHECK_MEMORY | VGPU_CHECK_INIT)

static struct warp *warp_at(struct world *w, uint32_t index) {
    return &w->warps[0][0][index];
}

/* ---- device memory --------------------------------------------------------------------------- */

TEST(allocations_lie_apart_and_are_counted) {
    struct device_memory *memory = device_memory_make(1 << 20);
    if (!CHECK(memory != NULL)) {
        return;
    }
    const uint64_t a = device_alloc(memory, 1000, "a"), b = device_alloc(memory, 1, NULL);
    CHECK(a != 0 && b != 0 && b >= a + 1000 + 4096);
    CHECK_EQ(a % 512, 0);
    CHECK((uint32_t)a >= 0x20000000U);
    CHECK_EQ(device_memory_used(memory), 1001);
    CHECK(device_alloc(memory, 1 << 20, "too much") == 0);
    CHECK(device_alloc(memory, 0, "nothing") == 0);
    CHECK(device_alloc(memory, SIZE_MAX, "everything") == 0);
    unsigned char *bytes = device_bytes(memory, a, 1000, true);
    if (CHECK(bytes != NULL)) {
        memset(bytes, 7, 1000);
    }
    CHECK(device_bytes(memory, a + 1, 1000, false) == NULL);
    CHECK(device_bytes(memory, a - 1, 1, false) == NULL);
    CHECK(device_bytes(memory, a + 2000, 1, false) == NULL);
    CHECK(!device_release(memory, a + 1));
    CHECK(device_release(memory, a));
    CHECK(!device_release(memory, a));
    CHECK(device_bytes(memory, a, 1, false) == NULL);
    CHECK_EQ(device_memory_used(memory), 1);
    device_memory_free(memory);
}

TEST(freed_memory_comes_back_empty_only_when_all_is_used_up) {
    struct device_memory *memory = device_memory_make(1ULL << 34);
    uint64_t first = 0, at = 0;
    uint32_t turns = 0;
    if (!CHECK(memory != NULL)) {
        return;
    }
    do {
        at = device_alloc(memory, 3ULL << 30, "large");
        first = first == 0 ? at : first;
        if (!CHECK(at != 0) || !CHECK(at >= first)) {
            break;
        }
        unsigned char *bytes = device_bytes(memory, at, 16, false);
        CHECK(bytes != NULL && bytes[0] == 0);
        CHECK_EQ(*device_shadow(memory, at), 0);
        memset(device_bytes(memory, at, 16, true), 1, 16);
        CHECK(device_release(memory, at));
    } while (++turns < 1000 && (turns < 2 || at != first));
    CHECK(turns > 4 && turns < 1000);
    device_memory_free(memory);
}

/* ---- bounds ---------------------------------------------------------------------------------- */

TEST(behind_the_end_of_an_allocation) {
    struct world *w = world_make(CHECKS, 1);
    const uint64_t x = device_alloc(w->gpu.memory, 4096, "x");
    device_bytes(w->gpu.memory, x, 4096, true);
    const struct access a = touch(
        w, warp_at(w, 0), 1, lanes_at(PTX_GLOBAL, ACCESS_READ, 4, 1, x + 4096 - 124, 4, ALL_LANES));
    CHECK_EQ(a.good, 0x7fffffff);
    CHECK(!a.contiguous);
    CHECK((uintptr_t)a.host[3] == x + 4096 - 124 + 12);
    EXPECT_FINDING(w, "out-of-bounds", 1, 0, "0 bytes after \"x\" (4096 bytes)");
}

TEST(before_an_allocation) {
    struct world *w = world_make(CHECKS, 1);
    const uint64_t x = device_alloc(w->gpu.memory, 4096, "x");
    touch(w, warp_at(w, 0), 1, lanes_at(SPACE_GENERIC, ACCESS_WRITE, 4, 1, x - 4, 0, 1));
    EXPECT_FINDING(w, "out-of-bounds", 1, 0, "4 bytes before \"x\"");
}

TEST(null_pointer) {
    struct world *w = world_make(CHECKS, 1);
    touch(w, warp_at(w, 0), 1, lanes_at(PTX_GLOBAL, ACCESS_READ, 4, 1, 0, 4, ALL_LANES));
    EXPECT_FINDING(w, "out-of-bounds", 1, 0, "near no allocation");
}

TEST(use_after_free) {
    struct world *w = world_make(CHECKS, 1);
    const uint64_t x = device_alloc(w->gpu.memory, 4096, "x");
    device_release(w->gpu.memory, x);
    const struct access a =
        touch(w, warp_at(w, 0), 1, lanes_at(PTX_GLOBAL, ACCESS_READ, 4, 1, x, 4, ALL_LANES));
    CHECK_EQ(a.good, 0);
    EXPECT_FINDING(w, "use-after-free", 1, 0, "\"x\" + 0, which was freed");
}

TEST(misaligned) {
    struct world *w = world_make(CHECKS, 1);
    const uint64_t x = device_alloc(w->gpu.memory, 4096, "x");
    device_bytes(w->gpu.memory, x, 4096, true);
    const struct access a =
        touch(w, warp_at(w, 0), 1, lanes_at(PTX_GLOBAL, ACCESS_READ, 4, 4, x, 24, 0xf));
    CHECK_EQ(a.good, 0x5);
    EXPECT_FINDING(w, "misaligned", 1, 0, "no multiple of 16");
}

TEST(red_zone_between_shared_variables) {
    struct world *w = world_make(CHECKS, 1);
    const struct access a = touch(
        w, warp_at(w, 0), 1, lanes_at(PTX_SHARED, ACCESS_WRITE, 4, 1, SHARED_BASE, 4, 0x1ffff));
    CHECK_EQ(a.good, 0xffff);
    EXPECT_FINDING(w, "out-of-bounds", 1, 0, "0 bytes after \"first\" (64 bytes)");
}

TEST(end_of_shared_memory) {
    struct world *w = world_make(CHECKS, 1);
    touch(w, warp_at(w, 0), 1,
          lanes_at(PTX_SHARED, ACCESS_WRITE, 4, 4, SMEM + DYNAMIC_BYTES - 512, 16, ALL_LANES));
    touch(w, warp_at(w, 0), 2,
          lanes_at(PTX_SHARED, ACCESS_WRITE, 4, 4, SMEM + DYNAMIC_BYTES - 496, 16, ALL_LANES));
    EXPECT_FINDING(w, "out-of-bounds", 2, 0, "after the end of shared memory");
}

TEST(a_tiny_shared_pointer) {
    struct world *w = world_make(CHECKS, 1);
    touch(w, warp_at(w, 0), 1, lanes_at(PTX_SHARED, ACCESS_READ, 4, 1, 0, 4, 1));
    EXPECT_FINDING(w, "out-of-bounds", 1, 0, "shared address 0x0");
}

/* ---- spaces ---------------------------------------------------------------------------------- */

TEST(a_global_pointer_cut_to_32_bits_as_shared) {
    struct world *w = world_make(CHECKS, 1);
    const uint64_t x = device_alloc(w->gpu.memory, 4096, "x");
    touch(w, warp_at(w, 0), 1,
          lanes_at(PTX_SHARED, ACCESS_READ, 4, 1, (uint32_t)x + 64, 4, ALL_LANES));
    EXPECT_FINDING(w, "wrong-space", 1, 0, "a pointer to global memory");
}

TEST(a_shared_pointer_as_global) {
    struct world *w = world_make(CHECKS, 1);
    touch(w, warp_at(w, 0), 1,
          lanes_at(PTX_GLOBAL, ACCESS_READ, 4, 1, WINDOW_SHARED + SMEM, 4, ALL_LANES));
    EXPECT_FINDING(w, "wrong-space", 1, 0, "a pointer to shared memory");
}

TEST(local_memory_of_another_thread) {
    struct world *w = world_make(CHECKS, 1);
    struct access a = lanes_at(SPACE_GENERIC, ACCESS_WRITE, 4, 1, 0, 0, ALL_LANES);
    for (uint32_t i = 0; i < LANES; i++) {
        a.address[i] = local_window(warp_at(w, 1), i == 5 ? 6 : i) + 8;
    }
    a = touch(w, warp_at(w, 1), 1, a);
    CHECK_EQ(a.good, ~(1U << 5));
    EXPECT_FINDING(w, "wrong-space", 1, 0, "another thread");
}

TEST(shared_memory_of_a_block_that_has_ended) {
    struct world *w = world_make(CHECKS, 2);
    const uint64_t there = SMEM + (2ULL << SHARED_RANK_SHIFT);
    struct access a = lanes_at(SPACE_SHARED_CLUSTER, ACCESS_WRITE, 4, 1, there, 4, ALL_LANES);
    a = touch(w, warp_at(w, 1), 1, a);
    CHECK_EQ(a.good, ALL_LANES);
    w->ctas[0][1].alive = 0;
    a = touch(w, warp_at(w, 1), 2, a);
    CHECK_EQ(a.good, 0);
    EXPECT_FINDING(w, "cluster-exit", 2, 0, "has ended");
}

TEST(generic_addresses_of_all_spaces_in_one_access) {
    struct world *w = world_make(CHECKS, 2);
    const uint64_t x = device_alloc(w->gpu.memory, 4096, "x");
    struct access a = lanes_at(SPACE_GENERIC, ACCESS_WRITE, 4, 1, 0, 0, 0x1f);
    a.address[0] = x + 12;
    a.address[1] = WINDOW_SHARED + SMEM + 4;
    a.address[2] = WINDOW_SHARED + SMEM + (2ULL << SHARED_RANK_SHIFT);
    a.address[3] = local_window(warp_at(w, 2), 3) + 60;
    a.address[4] = PARAM_WINDOW + CALL_PARAM_BASE + 12;
    a = touch(w, warp_at(w, 2), 1, a);
    CHECK_EQ(a.good, 0x1f);
    CHECK((uintptr_t)a.host[0] == x + 12);
    CHECK(a.host[1] == w->ctas[0][0].shared + DYNAMIC + 4);
    CHECK(a.host[2] == w->ctas[0][1].shared + DYNAMIC);
    for (uint32_t i = 0; i < 5; i++) {
        memcpy(a.host[i], &i, 4);
    }
    a.kind = ACCESS_READ;
    a.poison[0] = ALL_LANES;
    a = touch(w, warp_at(w, 2), 2, a);
    CHECK_EQ(a.poison[0], 0);
    for (uint32_t i = 0; i < 5; i++) {
        CHECK(memcmp(a.host[i], &i, 4) == 0);
    }
    EXPECT_NOTHING(w);
}

TEST(no_such_block_in_the_cluster) {
    struct world *w = world_make(CHECKS, 2);
    touch(w, warp_at(w, 0), 1,
          lanes_at(SPACE_SHARED_CLUSTER, ACCESS_READ, 4, 1, SMEM + (3ULL << SHARED_RANK_SHIFT), 4,
                   ALL_LANES));
    EXPECT_FINDING(w, "out-of-bounds", 1, 0, "");
}

TEST(local_variables_have_red_zones_and_threads_their_own) {
    struct world *w = world_make(CHECKS, 1);
    struct access a =
        touch(w, warp_at(w, 3), 1, lanes_at(PTX_LOCAL, ACCESS_WRITE, 8, 1, 56, 0, ALL_LANES));
    CHECK_EQ(a.good, ALL_LANES);
    CHECK(a.host[1] != a.host[0]);
    a = touch(w, warp_at(w, 3), 2, lanes_at(PTX_LOCAL, ACCESS_WRITE, 8, 1, 64, 0, 3));
    CHECK_EQ(a.good, 0);
    EXPECT_FINDING(w, "out-of-bounds", 2, 0, "0 bytes after \"depot\"");
}

TEST(before_the_first_local_variable) {
    struct world *w = world_make(CHECKS, 1);
    touch(w, warp_at(w, 0), 1, lanes_at(PTX_LOCAL, ACCESS_READ, 4, 1, 0 - 4ULL, 0, ALL_LANES));
    EXPECT_FINDING(w, "out-of-bounds", 1, 0, "4 bytes before local memory");
}

TEST(between_a_constant_and_a_buffer) {
    struct world *w = world_make(CHECKS, 1);
    const uint64_t c = device_alloc(w->gpu.memory, 128, "c");
    const uint64_t x = device_alloc(w->gpu.memory, 128, "x");
    CHECK(c < x);
    device_protect(w->gpu.memory, c);
    touch(w, warp_at(w, 0), 1, lanes_at(PTX_GLOBAL, ACCESS_WRITE, 4, 1, x - 4, 0, 1));
    EXPECT_FINDING(w, "out-of-bounds", 1, 0, "4 bytes before \"x\"");
}

TEST(a_write_to_a_constant) {
    struct world *w = world_make(CHECKS, 1);
    const uint64_t c = device_alloc(w->gpu.memory, 128, "c");
    device_protect(w->gpu.memory, c);
    touch(w, warp_at(w, 0), 1, lanes_at(PTX_GLOBAL, ACCESS_WRITE, 4, 1, c + 124, 0, 1));
    EXPECT_FINDING(w, "read-only", 1, 0, "read-only");
}

TEST(parameters_are_read_only) {
    struct world *w = world_make(CHECKS, 1);
    w->params[40] = 9;
    const struct access a =
        touch(w, warp_at(w, 0), 1, lanes_at(PTX_PARAM, ACCESS_READ, 8, 1, 40, 0, ALL_LANES));
    CHECK_EQ(a.good, ALL_LANES);
    CHECK_EQ(a.poison[0], 0);
    CHECK_EQ(*a.host[31], 9);
    touch(w, warp_at(w, 0), 2,
          lanes_at(SPACE_GENERIC, ACCESS_WRITE, 8, 1, PARAM_WINDOW + 40, 0, 1));
    EXPECT_FINDING(w, "read-only", 2, 0, "read-only");
}

TEST(behind_the_parameters) {
    struct world *w = world_make(CHECKS, 1);
    touch(w, warp_at(w, 0), 1, lanes_at(PTX_PARAM, ACCESS_READ, 8, 1, 64, 0, 1));
    EXPECT_FINDING(w, "out-of-bounds", 1, 0, "64 bytes of parameters");
}

/* ---- initialised bytes ----------------------------------------------------------------------- */

TEST(what_nobody_wrote_is_poison_and_no_finding) {
    struct world *w = world_make(CHECKS, 1);
    const uint64_t x = device_alloc(w->gpu.memory, 4096, "x");
    device_bytes(w->gpu.memory, x, 6, true);
    struct access a =
        touch(w, warp_at(w, 0), 1, lanes_at(PTX_GLOBAL, ACCESS_READ, 2, 2, x, 4, ALL_LANES));
    CHECK_EQ(a.good, ALL_LANES);
    CHECK_EQ(a.poison[0], 0xfffffffc);
    CHECK_EQ(a.poison[1], 0xfffffffe);
    a = touch(w, warp_at(w, 0), 2, lanes_at(PTX_SHARED, ACCESS_READ, 4, 1, SMEM, 4, ALL_LANES));
    CHECK_EQ(a.poison[0], ALL_LANES);
    EXPECT_NOTHING(w);
}

TEST(poison_goes_through_shared_memory) {
    struct world *w = world_make(CHECKS, 1);
    struct access a = lanes_at(PTX_SHARED, ACCESS_WRITE, 4, 2, SMEM, 8, ALL_LANES);
    a.poison[1] = 0xf0;
    touch(w, warp_at(w, 0), 1, a);
    a = touch(w, warp_at(w, 1), 2, lanes_at(PTX_SHARED, ACCESS_READ, 4, 2, SMEM, 8, ALL_LANES));
    CHECK_EQ(a.poison[0], 0);
    CHECK_EQ(a.poison[1], 0xf0);
    a = touch(w, warp_at(w, 1), 2,
              lanes_at(PTX_SHARED, ACCESS_READ, 4, 4, SMEM, 16, 0xffff)); /* two lanes in one */
    CHECK_EQ(a.poison[1], 0xc);
    CHECK_EQ(a.poison[3], 0xc);
    EXPECT_NOTHING(w);
}

TEST(poison_stored_to_global_memory) {
    struct world *w = world_make(CHECKS, 1);
    const uint64_t x = device_alloc(w->gpu.memory, 4096, "x");
    struct access a = lanes_at(PTX_GLOBAL, ACCESS_WRITE, 4, 1, x, 4, ALL_LANES);
    a.poison[0] = 0x10;
    touch(w, warp_at(w, 0), 1, a);
    a = touch(w, warp_at(w, 0), 2, lanes_at(PTX_GLOBAL, ACCESS_READ, 4, 1, x, 4, ALL_LANES));
    CHECK_EQ(a.poison[0], 0x10);
    EXPECT_FINDING(w, "uninitialised", 1, 0, "\"x\" + 16");
}

TEST(nobody_asked_for_initialised_bytes) {
    struct world *w = world_make(VGPU_CHECK_MEMORY, 1);
    const struct access a =
        touch(w, warp_at(w, 0), 1, lanes_at(PTX_SHARED, ACCESS_READ, 4, 1, SMEM, 4, ALL_LANES));
    CHECK_EQ(a.poison[0], 0);
    EXPECT_NOTHING(w);
}

/* ---- blocks ---------------------------------------------------------------------------------- */

TEST(blocks_of_engines) {
    struct world *w = world_make(CHECKS, 2);
    const uint64_t x = device_alloc(w->gpu.memory, 4096, "x");
    struct warp *warp = warp_at(w, 0);
    struct block_access b = {.space = PTX_SHARED,
                             .cta = &w->ctas[0][1],
                             .kind = ACCESS_WRITE,
                             .address = SMEM + 64,
                             .bytes = 1000};
    CHECK(memory_block(warp, &w->code[0], &b));
    CHECK(b.host == w->ctas[0][1].shared + DYNAMIC + 64);
    b.kind = ACCESS_READ;
    CHECK(memory_block(warp, &w->code[0], &b) && !b.uninitialised);
    b.bytes = 1001;
    CHECK(memory_block(warp, &w->code[0], &b) && b.uninitialised);
    struct block_access g = {
        .space = PTX_GLOBAL, .kind = ACCESS_READ, .address = x + 96, .bytes = 4000};
    CHECK(memory_block(warp, &w->code[0], &g) && g.uninitialised);
    struct block_access p = {
        .space = SPACE_GENERIC, .kind = ACCESS_READ, .address = PARAM_WINDOW + 32, .bytes = 32};
    CHECK(memory_block(warp, &w->code[0], &p) && p.host == w->params + 32);
    g.bytes = 4001;
    CHECK(!memory_block(warp, &w->code[1], &g));
    EXPECT_FINDING(w, "out-of-bounds", 2, 0, "4001 bytes from");
}

/* ---- speed ----------------------------------------------------------------------------------- */

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static volatile uint64_t sink;

/* Nanoseconds of one access of this kind, moving over a tile and with a barrier now and then; w
 * NULL: of the loop alone. */
static double cost(struct world *w, struct access access, uint64_t step, uint32_t steps) {
    double best = 1e30;
    for (int turn = 0; turn < 5; turn++) {
        const double begin = now();
        for (uint32_t i = 0; i < 2048; i++) {
            struct access a = access;
            for (uint32_t lane = 0; lane < LANES; lane++) {
                a.address[lane] += i % steps * step;
            }
            if (w != NULL) {
                memory_access(warp_at(w, i / 512), &w->code[access.kind], &a);
            } else {
                sink = a.address[i % LANES];
            }
            if (w != NULL && i % 512 == 511) {
                barrier(w, 0, 0, WARPS);
            }
        }
        const double time = (now() - begin) / 2048;
        best = time < best ? time : best;
    }
    return best;
}

TEST(what_an_access_costs) {
    struct world *w = world_make(VGPU_CHECK_MEMORY | VGPU_CHECK_INIT | VGPU_CHECK_RACE, 1);
    const uint64_t x = device_alloc(w->gpu.memory, 1 << 20, "x");
    device_bytes(w->gpu.memory, x, 1 << 20, true);
    memset(w->ctas[0][0].memory->shadow + DYNAMIC, BYTE_WRITTEN, DYNAMIC_BYTES);
    const struct {
        const char *name;
        int space;
        enum access_kind kind;
        uint32_t element, count, stride, step;
    } CASES[] = {{"ld.shared.f32", PTX_SHARED, ACCESS_READ, 4, 1, 4, 128},
                 {"ld.shared.f32, one word", PTX_SHARED, ACCESS_READ, 4, 1, 0, 4},
                 {"ld.shared.f32, strided", PTX_SHARED, ACCESS_READ, 4, 1, 132, 4},
                 {"ld.shared.v4.f32", PTX_SHARED, ACCESS_READ, 4, 4, 16, 512},
                 {"st.shared.f32", PTX_SHARED, ACCESS_WRITE, 4, 1, 4, 128},
                 {"st.shared.v4.f32", PTX_SHARED, ACCESS_WRITE, 4, 4, 16, 512},
                 {"32 rows of 16 bytes", PTX_SHARED, ACCESS_READ, 16, 1, 144, 16},
                 {"ld.global.f32", PTX_GLOBAL, ACCESS_READ, 4, 1, 4, 128},
                 {"ld.global.v4.f32", PTX_GLOBAL, ACCESS_READ, 4, 4, 16, 512},
                 {"ld.global.f32, strided", PTX_GLOBAL, ACCESS_READ, 4, 1, 512, 4},
                 {"st.global.f32", PTX_GLOBAL, ACCESS_WRITE, 4, 1, 4, 128},
                 {"ld.local.f32", PTX_LOCAL, ACCESS_READ, 4, 1, 0, 4}};
    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        const bool global = CASES[i].space == PTX_GLOBAL;
        const uint64_t base = global ? x : CASES[i].space == PTX_SHARED ? SMEM : 0;
        const struct access access = lanes_at(CASES[i].space, CASES[i].kind, CASES[i].element,
                                              CASES[i].count, base, CASES[i].stride, ALL_LANES);
        /* Warps touch the same words, with a barrier between them. */
        const uint32_t steps = CASES[i].step >= 128 ? DYNAMIC_BYTES / CASES[i].step : 16;
        const double loop = cost(NULL, access, CASES[i].step, steps);
        const double ns = cost(w, access, CASES[i].step, steps) - loop;
        printf("     %-28s %6.0f ns\n", CASES[i].name, ns);
        CHECK(ns < 1e5);
    }
    EXPECT_NOTHING(w);
}

TEST_MAIN()
