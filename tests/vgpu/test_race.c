/* SPDX-License-Identifier: Apache-2.0
 *
 * test_race.c - happens-before: every kind of conflict is planted and found with both lines,
 * and patterns that are right give no finding.
 */
#include "test.h"

#include "vgpu/vgpu_warps.h"

#define CHECKS (VGPU_CHECK_MEMORY | VGPU_CHECK_RACE)

static struct warp *warp_at(struct world *w, uint32_t index) {
    return &w->warps[0][0][index];
}

/* ---- between warps --------------------------------------------------------------------------- */

TEST(write_then_read_without_barrier) {
    struct world *w = world_make(CHECKS, 1);
    words(w, warp_at(w, 0), 1, ACCESS_WRITE, SMEM);
    words(w, warp_at(w, 1), 2, ACCESS_READ, SMEM);
    EXPECT_FINDING(w, "race", 2, 1, "not ordered");
}

TEST(read_then_write_without_barrier) {
    struct world *w = world_make(CHECKS, 1);
    words(w, warp_at(w, 0), 1, ACCESS_READ, SMEM);
    words(w, warp_at(w, 1), 2, ACCESS_WRITE, SMEM);
    EXPECT_FINDING(w, "race", 2, 1, "warp 0");
}

TEST(two_writes_without_barrier) {
    struct world *w = world_make(CHECKS, 1);
    words(w, warp_at(w, 3), 1, ACCESS_WRITE, SMEM);
    words(w, warp_at(w, 1), 2, ACCESS_WRITE, SMEM + 64);
    EXPECT_FINDING(w, "race", 2, 1, "warp 3");
}

TEST(an_old_read_of_a_warp_that_missed_the_barrier) {
    struct world *w = world_make(CHECKS, 1);
    words(w, warp_at(w, 3), 1, ACCESS_READ, SMEM);
    words(w, warp_at(w, 0), 2, ACCESS_READ, SMEM);
    barrier(w, 0, 0, 3); /* warp 3 is not there */
    words(w, warp_at(w, 0), 3, ACCESS_READ, SMEM);
    barrier(w, 0, 0, 3);
    words(w, warp_at(w, 1), 4, ACCESS_WRITE, SMEM);
    EXPECT_FINDING(w, "race", 4, 1, "warp 3");
}

TEST(a_read_by_one_of_many_readers) {
    struct world *w = world_make(CHECKS, 1);
    words(w, warp_at(w, 0), 1, ACCESS_WRITE, SMEM);
    barrier(w, 0, 0, 4);
    for (uint32_t i = 0; i < 4; i++) {
        words(w, warp_at(w, i), 2 + i, ACCESS_READ, SMEM);
    }
    /* Warps 0, 1 and 3 signal warp 0; warp 2 does not. */
    clock_clear(w->barriers[0]);
    clock_release(w->barriers[0], warp_at(w, 1));
    clock_release(w->barriers[0], warp_at(w, 3));
    clock_acquire(warp_at(w, 0), w->barriers[0]);
    words(w, warp_at(w, 0), 9, ACCESS_WRITE, SMEM);
    EXPECT_FINDING(w, "race", 9, 4, "warp 2");
}

TEST(double_buffering_is_right) {
    struct world *w = world_make(CHECKS, 1);
    for (uint32_t i = 0; i < 8; i++) {
        const uint64_t now = SMEM + i % 2 * 4096, next = SMEM + (i + 1) % 2 * 4096;
        for (uint32_t warp = 0; warp < WARPS; warp++) {
            words(w, warp_at(w, warp), 1, ACCESS_WRITE, next + warp * 128ULL);
            for (uint32_t from = 0; i > 0 && from < WARPS; from++) {
                words(w, warp_at(w, warp), 2, ACCESS_READ, now + from * 128ULL);
            }
        }
        barrier(w, 0, 0, WARPS);
    }
    EXPECT_NOTHING(w);
}

TEST(one_barrier_too_few_in_double_buffering) {
    struct world *w = world_make(CHECKS, 1);
    for (uint32_t i = 0; i < 3; i++) {
        const uint64_t buffer = SMEM; /* the same one each time */
        for (uint32_t warp = 0; warp < WARPS; warp++) {
            words(w, warp_at(w, warp), 1, ACCESS_WRITE, buffer + warp * 128ULL);
        }
        barrier(w, 0, 0, WARPS);
        for (uint32_t warp = 0; warp < WARPS; warp++) {
            words(w, warp_at(w, warp), 2, ACCESS_READ, buffer + (warp + 1) % WARPS * 128ULL);
        }
    }
    EXPECT_FINDING(w, "race", 1, 2, "this write");
}

TEST(producer_and_consumers_with_one_clock_per_stage) {
    struct world *w = world_make(CHECKS, 1);
    struct clock *full[2], *empty[2];
    for (int i = 0; i < 2; i++) {
        full[i] = clock_make(&w->clusters[0]);
        empty[i] = clock_make(&w->clusters[0]);
    }
    for (uint32_t i = 0; i < 10; i++) {
        const uint32_t stage = i % 2;
        clock_acquire(warp_at(w, 0), empty[stage]);
        words(w, warp_at(w, 0), 1, ACCESS_WRITE, SMEM + stage * 128ULL);
        clock_release(full[stage], warp_at(w, 0));
        for (uint32_t warp = 1; warp < WARPS; warp++) { /* one after the other */
            clock_acquire(warp_at(w, warp), full[stage]);
            words(w, warp_at(w, warp), 2, ACCESS_READ, SMEM + stage * 128ULL);
            clock_release(empty[stage], warp_at(w, warp));
        }
    }
    for (int i = 0; i < 2; i++) {
        clock_free(full[i]);
        clock_free(empty[i]);
    }
    EXPECT_NOTHING(w);
}

TEST(atomics_do_not_race_with_each_other_but_with_reads) {
    struct world *w = world_make(CHECKS, 1);
    for (uint32_t i = 0; i < WARPS; i++) {
        words(w, warp_at(w, i), 1, ACCESS_ATOMIC, SMEM);
    }
    words(w, warp_at(w, 0), 2, ACCESS_READ, SMEM);
    EXPECT_FINDING(w, "race", 2, 1, "this read");
}

TEST(volatile_accesses_do_not_race) {
    struct world *w = world_make(CHECKS, 1);
    struct access access = lanes_at(PTX_SHARED, ACCESS_WRITE, 4, 1, SMEM, 4, ALL_LANES);
    access.strong = true;
    touch(w, warp_at(w, 0), 1, access);
    access.kind = ACCESS_READ;
    touch(w, warp_at(w, 1), 2, access);
    EXPECT_NOTHING(w);
}

TEST(shared_memory_of_another_block_of_the_cluster) {
    struct world *w = world_make(CHECKS, 2);
    words(w, &w->warps[0][1][0], 1, ACCESS_WRITE, SMEM);
    touch(w, warp_at(w, 0), 2,
          lanes_at(SPACE_SHARED_CLUSTER, ACCESS_READ, 4, 1, SMEM + (2ULL << SHARED_RANK_SHIFT), 4,
                   ALL_LANES));
    EXPECT_FINDING(w, "race", 2, 1, "CTA 1");
}

/* ---- between the lanes of a warp ------------------------------------------------------------- */

TEST(lanes_exchange_without_syncwarp) {
    struct world *w = world_make(CHECKS, 1);
    words(w, warp_at(w, 0), 1, ACCESS_WRITE, SMEM);
    touch(w, warp_at(w, 0), 2, lanes_at(PTX_SHARED, ACCESS_READ, 4, 1, SMEM + 4, 4, 0x7fffffff));
    EXPECT_FINDING(w, "race-warp", 2, 1, "__syncwarp");
}

TEST(reduction_with_syncwarp_is_right) {
    struct world *w = world_make(CHECKS, 1);
    words(w, warp_at(w, 0), 1, ACCESS_WRITE, SMEM);
    for (uint32_t step = 16; step > 0; step /= 2) {
        const uint32_t mask = (1U << step) - 1;
        clock_warp_sync(warp_at(w, 0));
        touch(w, warp_at(w, 0), 2,
              lanes_at(PTX_SHARED, ACCESS_READ, 4, 1, SMEM + 4ULL * step, 4, mask));
        touch(w, warp_at(w, 0), 3, lanes_at(PTX_SHARED, ACCESS_READ, 4, 1, SMEM, 4, mask));
        clock_warp_sync(warp_at(w, 0));
        touch(w, warp_at(w, 0), 4, lanes_at(PTX_SHARED, ACCESS_WRITE, 4, 1, SMEM, 4, mask));
    }
    EXPECT_NOTHING(w);
}

TEST(a_broadcast_word_is_overwritten_by_one_of_its_readers) {
    struct world *w = world_make(CHECKS, 1);
    touch(w, warp_at(w, 0), 1, lanes_at(PTX_SHARED, ACCESS_READ, 4, 1, SMEM, 0, ALL_LANES));
    touch(w, warp_at(w, 0), 2, lanes_at(PTX_SHARED, ACCESS_WRITE, 4, 1, SMEM, 0, 1));
    EXPECT_FINDING(w, "race-warp", 2, 1, "__syncwarp");
}

TEST(lanes_keep_to_their_own_bytes) {
    struct world *w = world_make(CHECKS, 1);
    for (uint32_t bytes = 1; bytes <= 16; bytes *= 2) {
        for (uint32_t i = 0; i < 3; i++) {
            touch(w, warp_at(w, 1), 1,
                  lanes_at(PTX_SHARED, ACCESS_READ, bytes, 1, SMEM, bytes, ALL_LANES));
            touch(w, warp_at(w, 1), 2,
                  lanes_at(PTX_SHARED, ACCESS_WRITE, bytes, 1, SMEM, bytes, ALL_LANES));
        }
        clock_warp_sync(warp_at(w, 1));
    }
    EXPECT_NOTHING(w);
}

TEST(warps_keep_to_their_own_bytes_of_one_word) {
    struct world *w = world_make(CHECKS, 1);
    for (uint32_t i = 0; i < 4; i++) {
        touch(w, warp_at(w, i), 1,
              lanes_at(PTX_SHARED, ACCESS_WRITE, 1, 1, SMEM + i, 4, ALL_LANES));
        touch(w, warp_at(w, i), 2, lanes_at(PTX_SHARED, ACCESS_READ, 1, 1, SMEM + i, 4, ALL_LANES));
    }
    EXPECT_NOTHING(w);
}

TEST(bytes_of_one_word_that_do_overlap) {
    struct world *w = world_make(CHECKS, 1);
    touch(w, warp_at(w, 0), 1, lanes_at(PTX_SHARED, ACCESS_WRITE, 2, 1, SMEM + 2, 4, ALL_LANES));
    touch(w, warp_at(w, 1), 2, lanes_at(PTX_SHARED, ACCESS_READ, 1, 1, SMEM + 3, 4, ALL_LANES));
    EXPECT_FINDING(w, "race", 2, 1, "");
}

TEST(lanes_of_one_instruction_write_the_same_word) {
    struct world *w = world_make(CHECKS, 1);
    touch(w, warp_at(w, 0), 1, lanes_at(PTX_SHARED, ACCESS_WRITE, 4, 1, SMEM, 0, ALL_LANES));
    EXPECT_NOTHING(w);
}

TEST(a_tile_is_written_by_rows_and_read_by_vectors) {
    struct world *w = world_make(CHECKS, 1);
    for (uint32_t turn = 0; turn < 3; turn++) {
        for (uint32_t i = 0; i < WARPS; i++) {
            touch(w, warp_at(w, i), 1,
                  lanes_at(PTX_SHARED, ACCESS_WRITE, 4, 4, SMEM + i * 512ULL, 16, ALL_LANES));
        }
        barrier(w, 0, 0, WARPS);
        for (uint32_t i = 0; i < WARPS; i++) {
            touch(w, warp_at(w, i), 2,
                  lanes_at(PTX_SHARED, ACCESS_READ, 2, 8, SMEM + 16ULL * i, 64, ALL_LANES));
        }
        barrier(w, 0, 0, WARPS);
    }
    EXPECT_NOTHING(w);
}

/* ---- asynchronous operations ----------------------------------------------------------------- */

static struct agent *issue(struct world *w, struct warp *warp, uint32_t line, enum access_kind kind,
                           enum proxy proxy, uint64_t address, uint64_t bytes) {
    struct agent *agent = agent_start(warp, &w->code[line - 1]);
    struct block_access block = {.space = PTX_SHARED,
                                 .cta = warp->cta,
                                 .kind = kind,
                                 .proxy = proxy,
                                 .address = address,
                                 .bytes = bytes,
                                 .agent = agent};
    memory_block(warp, &w->code[line - 1], &block);
    return agent;
}

TEST(a_read_before_the_copy_has_landed) {
    struct world *w = world_make(CHECKS, 1);
    struct agent *agent = issue(w, warp_at(w, 0), 1, ACCESS_ISSUE_WRITE, PROXY_ASYNC, SMEM, 1024);
    words(w, warp_at(w, 1), 2, ACCESS_READ, SMEM + 512);
    agent_finish(agent, w->barriers[0]);
    EXPECT_FINDING(w, "async-read-early", 2, 1, "does not wait");
}

TEST(a_read_of_what_has_landed_without_waiting) {
    struct world *w = world_make(CHECKS, 1);
    struct clock *other = clock_make(&w->clusters[0]);
    struct agent *agent = issue(w, warp_at(w, 0), 1, ACCESS_ISSUE_WRITE, PROXY_ASYNC, SMEM, 1024);
    struct agent *second =
        issue(w, warp_at(w, 0), 2, ACCESS_ISSUE_WRITE, PROXY_ASYNC, SMEM + 1024, 1024);
    agent_finish(agent, w->barriers[0]);
    agent_finish(second, other);
    clock_acquire(warp_at(w, 1), other); /* waits for the second, reads the first */
    words(w, warp_at(w, 1), 3, ACCESS_READ, SMEM + 1024);
    words(w, warp_at(w, 1), 4, ACCESS_READ, SMEM);
    clock_free(other);
    EXPECT_FINDING(w, "async-read-early", 4, 1, "does not wait");
}

TEST(a_pipeline_of_copies_is_right) {
    struct world *w = world_make(CHECKS, 1);
    struct clock *full[2], *empty[2];
    for (int i = 0; i < 2; i++) {
        full[i] = clock_make(&w->clusters[0]);
        empty[i] = clock_make(&w->clusters[0]);
    }
    for (uint32_t i = 0; i < 8; i++) {
        const uint32_t stage = i % 2;
        clock_acquire(warp_at(w, 0), empty[stage]);
        struct agent *agent = issue(w, warp_at(w, 0), 1, ACCESS_ISSUE_WRITE, PROXY_ASYNC,
                                    SMEM + stage * 1024ULL, 1024);
        agent_finish(agent, full[stage]);
        for (uint32_t warp = 1; warp < WARPS; warp++) {
            clock_acquire(warp_at(w, warp), full[stage]);
            agent = issue(w, warp_at(w, warp), 2, ACCESS_ISSUE_READ, PROXY_ASYNC,
                          SMEM + stage * 1024ULL, 1024);
            words(w, warp_at(w, warp), 3, ACCESS_READ, SMEM + stage * 1024ULL);
            agent_finish_for_warp(agent, warp_at(w, warp));
            clock_release(empty[stage], warp_at(w, warp));
        }
    }
    for (int i = 0; i < 2; i++) {
        clock_free(full[i]);
        clock_free(empty[i]);
    }
    EXPECT_NOTHING(w);
}

TEST(a_copy_over_what_another_warp_still_reads) {
    struct world *w = world_make(CHECKS, 1);
    words(w, warp_at(w, 1), 1, ACCESS_READ, SMEM);
    struct agent *agent = issue(w, warp_at(w, 0), 2, ACCESS_ISSUE_WRITE, PROXY_ASYNC, SMEM, 1024);
    agent_finish(agent, w->barriers[0]);
    EXPECT_FINDING(w, "race", 2, 1, "asynchronous write");
}

TEST(a_write_under_an_engine_that_reads) {
    struct world *w = world_make(CHECKS, 1);
    struct agent *agent = issue(w, warp_at(w, 0), 1, ACCESS_ISSUE_READ, PROXY_ASYNC, SMEM, 1024);
    words(w, warp_at(w, 0), 2, ACCESS_WRITE, SMEM + 128);
    agent_finish_for_warp(agent, warp_at(w, 0));
    words(w, warp_at(w, 0), 3, ACCESS_WRITE, SMEM + 256); /* after the wait: right */
    EXPECT_FINDING(w, "async-overwrite", 2, 1, "at work there");
}

TEST(two_copies_to_one_place) {
    struct world *w = world_make(CHECKS, 1);
    struct agent *one = issue(w, warp_at(w, 0), 1, ACCESS_ISSUE_WRITE, PROXY_ASYNC, SMEM, 256);
    struct agent *two = issue(w, warp_at(w, 0), 2, ACCESS_ISSUE_WRITE, PROXY_ASYNC, SMEM, 256);
    agent_finish(one, w->barriers[0]);
    agent_finish(two, w->barriers[0]);
    EXPECT_FINDING(w, "async-overwrite", 2, 1, "");
}

TEST(copies_by_lanes_until_the_wait_and_the_barrier) {
    struct world *w = world_make(CHECKS, 1);
    struct agent *agents[WARPS];
    for (uint32_t i = 0; i < WARPS; i++) {
        struct access access =
            lanes_at(PTX_SHARED, ACCESS_ISSUE_WRITE, 4, 4, SMEM + i * 512ULL, 16, ALL_LANES);
        access.agent = agents[i] = agent_start(warp_at(w, i), &w->code[0]);
        touch(w, warp_at(w, i), 1, access);
    }
    for (uint32_t i = 0; i < WARPS; i++) {
        agent_finish_for_warp(agents[i], warp_at(w, i));
        /* each lane may read its own */
        touch(w, warp_at(w, i), 2,
              lanes_at(PTX_SHARED, ACCESS_READ, 4, 4, SMEM + i * 512ULL, 16, ALL_LANES));
    }
    barrier(w, 0, 0, WARPS);
    for (uint32_t i = 0; i < WARPS; i++) {
        words(w, warp_at(w, i), 3, ACCESS_READ, SMEM + (i + 1) % WARPS * 512ULL);
    }
    EXPECT_NOTHING(w);
}

TEST(a_copy_waited_for_but_no_barrier) {
    struct world *w = world_make(CHECKS, 1);
    struct access access = lanes_at(PTX_SHARED, ACCESS_ISSUE_WRITE, 4, 4, SMEM, 16, ALL_LANES);
    access.agent = agent_start(warp_at(w, 0), &w->code[0]);
    touch(w, warp_at(w, 0), 1, access);
    agent_finish_for_warp(access.agent, warp_at(w, 0));
    words(w, warp_at(w, 1), 2, ACCESS_READ, SMEM);
    EXPECT_FINDING(w, "race", 2, 1, "warp 0");
}

/* ---- proxies --------------------------------------------------------------------------------- */

/* Warps write, warp 0 stores the tile by an engine. who fences: 0 none, 1 writers, 2 the issuer
 * after the barrier, 3 the issuer before it, which is too early for the others' writes. */
static struct world *store_tile(int who) {
    struct world *w = world_make(CHECKS, 1);
    for (uint32_t i = 0; i < WARPS; i++) {
        words(w, warp_at(w, i), 1, ACCESS_WRITE, SMEM + i * 128ULL);
        if (who == 1 || (who == 3 && i == 0)) {
            clock_proxy_fence(warp_at(w, i));
        }
    }
    barrier(w, 0, 0, WARPS);
    if (who == 2) {
        clock_proxy_fence(warp_at(w, 0));
    }
    struct agent *agent = issue(w, warp_at(w, 0), 2, ACCESS_ISSUE_READ, PROXY_ASYNC, SMEM, 512);
    agent_finish_for_warp(agent, warp_at(w, 0));
    return w;
}

TEST(an_engine_reads_ordinary_writes_without_a_fence) {
    EXPECT_FINDING(store_tile(0), "proxy-fence", 2, 1, "fence.proxy.async");
}

TEST(fence_by_the_writers) {
    EXPECT_NOTHING(store_tile(1));
}

TEST(fence_by_the_issuer) {
    EXPECT_NOTHING(store_tile(2));
}

TEST(fence_before_the_barrier_by_the_issuer_only) {
    EXPECT_FINDING(store_tile(3), "proxy-fence", 2, 1, "fence.proxy.async");
}

/* ---- global memory --------------------------------------------------------------------------- */

static void global(struct world *w, struct warp *warp, uint32_t line, enum access_kind kind,
                   uint64_t address, bool strong) {
    struct access access = lanes_at(PTX_GLOBAL, kind, 4, 1, address, 4, ALL_LANES);
    access.strong = strong;
    touch(w, warp, line, access);
}

TEST(warps_of_a_block_in_global_memory) {
    struct world *w = world_make(CHECKS, 1);
    const uint64_t x = device_alloc(w->gpu.memory, 4096, "x");
    global(w, warp_at(w, 0), 1, ACCESS_WRITE, x, false);
    global(w, warp_at(w, 1), 2, ACCESS_WRITE, x + 128, false); /* elsewhere */
    global(w, warp_at(w, 1), 3, ACCESS_READ, x, false);
    EXPECT_FINDING(w, "race", 3, 1, "\"x\" + 0");
}

TEST(warps_of_a_block_in_global_memory_with_a_barrier) {
    struct world *w = world_make(CHECKS, 1);
    const uint64_t x = device_alloc(w->gpu.memory, 4096, "x");
    for (uint32_t i = 0; i < 4; i++) {
        global(w, warp_at(w, 0), 1, ACCESS_WRITE, x + 4, false);
        barrier(w, 0, 0, WARPS);
        global(w, warp_at(w, 1), 2, ACCESS_READ, x + 4, false);
        barrier(w, 0, 0, WARPS);
    }
    EXPECT_NOTHING(w);
}

TEST(blocks_write_the_same_bytes) {
    struct world *w = world_make(CHECKS, 1);
    const uint64_t x = device_alloc(w->gpu.memory, 4096, "x");
    global(w, warp_at(w, 0), 1, ACCESS_WRITE, x + 256, false);
    global(w, &w->warps[1][0][2], 2, ACCESS_WRITE, x + 256 + 124, false);
    size_t count = 0;
    const vgpu_finding found = only_finding(w, &count);
    CHECK_EQ(count, 1);
    CHECK_STR(found.kind, "race-global");
    CHECK_EQ(found.ptx_line, 2);
    CHECK_EQ(found.other_ptx_line, 1);
    CHECK_EQ(found.cta[0], 1);
    CHECK_EQ(found.warp, 2);
    world_free(w);
}

TEST(blocks_write_neighbouring_bytes) {
    struct world *w = world_make(CHECKS, 1);
    const uint64_t x = device_alloc(w->gpu.memory, 4096, "x");
    global(w, warp_at(w, 0), 1, ACCESS_WRITE, x + 4, false);
    global(w, &w->warps[1][0][0], 1, ACCESS_WRITE, x + 132, false);
    global(w, warp_at(w, 0), 2, ACCESS_READ, x + 1024, false);
    global(w, &w->warps[1][0][0], 2, ACCESS_READ, x + 1024, false);
    EXPECT_NOTHING(w);
}

TEST(a_block_reads_what_another_writes) {
    struct world *w = world_make(CHECKS, 1);
    const uint64_t x = device_alloc(w->gpu.memory, 4096, "x");
    global(w, warp_at(w, 0), 1, ACCESS_READ, x, false);
    global(w, &w->warps[1][0][0], 2, ACCESS_WRITE, x, false);
    EXPECT_FINDING(w, "race-global", 2, 1, "by CTA 0");
}

TEST(a_cached_read_of_what_the_kernel_wrote) {
    struct world *w = world_make(CHECKS, 1);
    const uint64_t x = device_alloc(w->gpu.memory, 4096, "x");
    w->code[1].flags = OP_CACHED;
    global(w, warp_at(w, 0), 1, ACCESS_WRITE, x, false);
    global(w, warp_at(w, 0), 2, ACCESS_READ, x, false);
    EXPECT_FINDING(w, "stale-read", 2, 1, "old values");
}

TEST(a_cached_read_of_what_is_written_later) {
    struct world *w = world_make(CHECKS, 1);
    const uint64_t x = device_alloc(w->gpu.memory, 4096, "x");
    w->code[1].flags = OP_CACHED;
    global(w, warp_at(w, 0), 1, ACCESS_WRITE, x + 256, false);
    global(w, warp_at(w, 0), 2, ACCESS_READ, x, false);
    global(w, warp_at(w, 0), 1, ACCESS_WRITE, x, false);
    EXPECT_NOTHING(w);
}

/* The last CTA sums up what all wrote: each increments an atomic counter, fences around it. */
enum { FENCE_BEFORE = 1, FENCE_AFTER = 2, FENCE_NARROW = 4 };
static struct world *last_block(bool counts, int fences) {
    struct world *w = world_make(CHECKS, 1);
    const uint64_t x = device_alloc(w->gpu.memory, 4096, "x");
    const uint64_t counter = device_alloc(w->gpu.memory, 128, "counter");
    const bool wide = (fences & FENCE_NARROW) == 0;
    for (uint32_t i = 0; i < 2; i++) {
        struct warp *warp = &w->warps[i][0][0];
        global(w, warp, 1, ACCESS_WRITE, x + i * 128ULL, false);
        if ((fences & FENCE_BEFORE) != 0) {
            clock_fence(warp, wide);
        }
        if (counts) {
            struct access access = lanes_at(PTX_GLOBAL, ACCESS_ATOMIC, 4, 1, counter, 4, ALL_LANES);
            order_read(warp, &w->code[2], &access, ORDER_WIDE);
            global(w, warp, 2, ACCESS_ATOMIC, counter, false);
            access.good = ALL_LANES;
            order_write(warp, &w->code[2], &access, ORDER_WIDE);
        }
        if ((fences & FENCE_AFTER) != 0) {
            clock_fence(warp, wide);
        }
    }
    global(w, &w->warps[1][0][0], 3, ACCESS_READ, x, false);
    return w;
}

TEST(the_last_block_sums_up) {
    EXPECT_NOTHING(last_block(true, FENCE_BEFORE | FENCE_AFTER));
}

TEST(the_last_block_without_a_fence) {
    EXPECT_FINDING(last_block(true, FENCE_AFTER), "race-global", 3, 1, "this read");
    EXPECT_FINDING(last_block(true, FENCE_BEFORE), "race-global", 3, 1, "this read");
    EXPECT_FINDING(last_block(true, FENCE_BEFORE | FENCE_AFTER | FENCE_NARROW), "race-global", 3, 1,
                   "this read");
}

TEST(the_last_block_does_not_know_that_it_is_the_last) {
    EXPECT_FINDING(last_block(false, FENCE_BEFORE | FENCE_AFTER), "race-global", 3, 1, "this read");
}

TEST(races_are_not_looked_for_if_nobody_asked) {
    struct world *w = world_make(VGPU_CHECK_MEMORY, 1);
    words(w, warp_at(w, 0), 1, ACCESS_WRITE, SMEM);
    words(w, warp_at(w, 1), 2, ACCESS_READ, SMEM);
    struct agent *agent = issue(w, warp_at(w, 0), 1, ACCESS_ISSUE_WRITE, PROXY_ASYNC, SMEM, 1024);
    CHECK(agent == NULL);
    agent_finish(agent, NULL);
    EXPECT_NOTHING(w);
}

TEST_MAIN()
