/* SPDX-License-Identifier: Apache-2.0
 *
 * test_chunks.c - batch_invariant on Hopper, compiled for the host: where the keys are cut
 * (hopper/chunks.h), and the tile scheduler that makes splits of these chunks (hopper/mixed.h):
 * every chunk of every Q tile has one ticket, no two share a slot, and slots never run out.
 */
#include "cuda/warp.h"

#define ATTN_BM 16
#define ATTN_BN 8
enum { INVARIANT = 1 };
#include "src/kernels/hopper/packed.h"

#include "src/kernels/hopper/chunks.h"

#include "src/kernels/hopper/mixed.h"

/* ---- chunks ---------------------------------------------------------------------------------- */

TEST(every_tile_is_in_one_chunk) {
    int next = 0, chunk = -1, first = 0, shortest = LEAST_CHUNK;
    for (int n = 0; n < 1 << 20; n++) {
        if (n == next) {
            first = n;
            next = chunk_begin(++chunk + 1);
            const int length = next - first;
            CHECK_MSG(chunk_begin(chunk) == n && (length == shortest || length == 2 * shortest),
                      "chunk %d begins at %d, and has %d tiles", chunk, chunk_begin(chunk), length);
            shortest = length;
            /* from the third octave on a 64th to a 32nd of what is before it */
            CHECK(length == LEAST_CHUNK || (64 * length >= n && 32 * length <= n));
        }
        if (chunk_of_tile(n) != chunk || chunk_begin_of_tile(n) != first) {
            CHECK_MSG(false, "tile %d: chunk %d, begins at %d, expected %d, %d", n,
                      chunk_of_tile(n), chunk_begin_of_tile(n), chunk, first);
            return;
        }
    }
    CHECK_EQ(chunk_of_tile(0x1ffffff),
             64 + 16 * CHUNKS_OF_OCTAVE - 1); /* 2^31 keys in tiles of 64 */
}

TEST(chunks_that_a_window_sees) {
    for (int tiles = 1; tiles < 3000; tiles += 7) {
        for (int seen = 1; seen <= tiles; seen += 5) {
            const int most = chunks_of_tiles(tiles, seen);
            for (int end = seen; end <= tiles; end += 3) {
                CHECK(chunk_of_tile(end - 1) - chunk_of_tile(end - seen) + 1 <= most);
            }
        }
    }
    CHECK_EQ(chunks_of_tiles(0, 1), 1);
    CHECK_EQ(chunks_of_tiles(8, 8), 1);
    CHECK_EQ(chunks_of_tiles(9, 9), 2);
}

/* ---- tickets --------------------------------------------------------------------------------- */

enum { MOST_SEQUENCES = 70, MOST_TILES = 64, MOST_SPLITS = 256, MOST_SLOTS = 1 << 16 };

static int32_t used_q[MOST_SEQUENCES], used_kv[MOST_SEQUENCES];
static unsigned char taken[MOST_SEQUENCES][MOST_TILES][MOST_SPLITS], slots[MOST_SLOTS];

struct call {
    const struct attn_args *a;
    int ticket; /* < 0: first_mixed_position */
    int ctas;
    struct mixed_position at;
};

struct answer {
    struct mixed_position at;
    struct mixed_item item;
    int found; /* no bool: answers are compared as bytes */
};

static void run_lane(const void *call, void *result) {
    const struct call *const c = call;
    struct answer *const answer = result;
    memset(answer, 0, sizeof *answer);
    answer->at = c->at;
    if (c->ticket < 0) {
        answer->at = first_mixed_position(c->a, c->ctas);
    } else {
        answer->found = find_mixed_item(c->a, &answer->at, c->ticket, &answer->item);
    }
}

static struct answer run(const struct attn_args *a, int ticket, int ctas,
                         struct mixed_position at) {
    const struct call call = {a, ticket, ctas, at};
    struct answer answer;
    run_warp(run_lane, &call, &answer, sizeof answer);
    return answer;
}

/* One head of each sequence. Returns how many Q tiles are split; -1: it has failed. */
static int take_all(int batch, int64_t left, int ctas, int all_slots) {
    const struct attn_args a = {.heads_q = 1,
                                .heads_per_kv = 1,
                                .packed_heads = 1,
                                .heads_all = batch,
                                .left = left,
                                .right = left < 0 ? -1 : 0,
                                .used_q = used_q,
                                .used_kv = used_kv,
                                .num_splits = all_slots};
    struct mixed_position at = run(&a, -1, ctas, (struct mixed_position){0}).at;
    int split_tiles = 0, tiles = 0, whole = 0;
    int64_t items = 0;
    memset(taken, 0, sizeof taken);
    memset(slots, 0, sizeof slots);
    for (int b = 0; b < batch; b++) {
        tiles += blocks_of(used_q[b]);
    }
    for (int ticket = 0;; ticket++) {
        const struct answer got = run(&a, ticket, ctas, at);
        const struct mixed_item *const x = &got.item;
        if (!got.found) {
            break;
        }
        at = got.at;
        const int split = x->item & 0xffff, splits = x->item >> 16, tile = x->first_row / ATTN_BM;
        if (!CHECK(x->sequence >= 0 && x->sequence < batch && x->first_row >= 0 &&
                   x->first_row < used_q[x->sequence] && split < splits && splits < MOST_SPLITS) ||
            !CHECK(taken[x->sequence][tile][split]++ == 0)) {
            return -1;
        }
        items++;
        whole += split == 0;
        split_tiles += split == 0 && splits > 1;
        if (splits > 1) {
            const int kv_tiles = (used_kv[x->sequence] + ATTN_BN - 1) / ATTN_BN;
            const int seen =
                left < 0 ? kv_tiles : min(kv_tiles, (int)(left + ATTN_BM) / ATTN_BN + 2);
            CHECK_EQ(splits, chunks_of_tiles(kv_tiles, seen));
            if (!CHECK_MSG(x->slot >= 0 && x->slot + splits <= all_slots, "slot %d + %d of %d",
                           x->slot, splits, all_slots) ||
                !CHECK(slots[x->slot + split]++ == 0)) {
                return -1;
            }
        }
    }
    CHECK_EQ(whole, tiles);
    CHECK(split_tiles <= 2 * ctas); /* as cuda/split.c counts */
    for (int b = 0; b < batch; b++) {
        for (int i = 0; i < MOST_TILES * MOST_SPLITS; i++) {
            items -= taken[b][i / MOST_SPLITS][i % MOST_SPLITS];
        }
    }
    CHECK_EQ(items, 0);
    return split_tiles;
}

static void set(int b, int queries, int keys) {
    used_q[b] = queries;
    used_kv[b] = keys;
}

TEST(one_long_decode_is_split) {
    set(0, 1, 64 * LEAST_CHUNK * ATTN_BN + 1);
    CHECK_EQ(take_all(1, -1, 132, 65), 1);
    CHECK_EQ(take_all(1, -1, 132, 64), 0); /* one slot too few: one CTA takes it all */
    CHECK_EQ(take_all(1, -1, 132, 0), 0);
    set(0, 1, LEAST_CHUNK * ATTN_BN);
    CHECK_EQ(take_all(1, -1, 132, 1000), 0); /* one chunk */
}

TEST(few_slots) {
    for (int b = 0; b < 64; b++) {
        set(b, 1, 1000 + 100 * (b % 7));
    }
    const int all = take_all(64, -1, 132, MOST_SLOTS);
    CHECK_EQ(all, 64);
    const int some = take_all(64, -1, 132, 500);
    CHECK(some > 20 && some < 64);
}

TEST(random_steps) {
    uint64_t state = 11;
    for (int round = 0; round < 40 / TEST_FEWER; round++) {
        const int batch = 1 + (int)(state >> 33) % MOST_SEQUENCES;
        for (int b = 0; b < batch; b++) {
            state = state * 6364136223846793005U + 1442695040888963407U;
            const int q = (int)(state >> 40) % 5 == 0 ? (int)(state >> 33) % 90 : 1;
            set(b, q, (int)(state >> 50) % 4 == 0 ? 0 : (int)(state >> 45) % 6000);
        }
        const int ctas = 1 + (int)(state >> 33) % 140;
        take_all(batch, round % 3 == 0 ? (int)(state >> 35) % 1000 : -1, ctas,
                 round % 2 ? MOST_SLOTS : (int)(state >> 37) % 300);
    }
}

TEST_MAIN()
