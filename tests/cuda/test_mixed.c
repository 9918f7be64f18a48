/* SPDX-License-Identifier: Apache-2.0
 *
 * test_mixed.c - the tile scheduler for a mixed step (hopper/mixed.h), compiled for the host: every
 * split of every Q tile has one ticket, whichever CTA takes it; no two tiles share a slot for
 * partial results, and the slots suffice; even steps have no more splits than the CTAs need.
 */
#include "cuda/warp.h"

#define ATTN_BM 16
#define ATTN_BN 8
enum { INVARIANT = 0 };
#include "src/kernels/hopper/packed.h"

#include "src/kernels/hopper/chunks.h"

#include "src/kernels/hopper/mixed.h"

struct answer {
    struct mixed_position at;
    struct mixed_item item;
    int found; /* no bool: answers are compared as bytes */
};

struct call {
    const struct attn_args *a;
    int ticket; /* < 0: first_mixed_position */
    int ctas;
    struct mixed_position at;
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

/* ---- steps ----------------------------------------------------------------------------------- */

enum { MOST_SEQUENCES = 100, MOST_TILES = 64, MOST_HEADS = 8, MOST_SPLITS = 600, CTAS = 7 };

static int32_t cu[MOST_SEQUENCES + 1], used_q[MOST_SEQUENCES], used_kv[MOST_SEQUENCES];
static unsigned char taken[MOST_SEQUENCES][MOST_HEADS][MOST_TILES][MOST_SPLITS];

static int blocks(int64_t rows, int of) {
    return (int)((rows + of - 1) / of);
}

/* Lengths have been set. */
static struct attn_args step_of(int batch, int heads, int packed_heads) {
    return (struct attn_args){.heads_q = heads,
                              .heads_per_kv = packed_heads,
                              .packed_heads = packed_heads,
                              .heads_all = batch * (heads / packed_heads),
                              .seq_q = MOST_TILES * ATTN_BM,
                              .seq_kv = INT32_MAX,
                              .left = -1,
                              .right = -1,
                              .cu_seqlens_q = cu,
                              .cu_seqlens_kv = cu,
                              .used_q = used_q,
                              .used_kv = used_kv};
}

static int kv_tiles(const struct attn_args *a, int b) {
    const int all = max(blocks(used_kv[b], ATTN_BN), 1);
    return a->left < 0 ? all : min(all, (int)(a->left + a->right + ATTN_BM) / ATTN_BN + 2);
}

/* Takes all tickets, each by some CTA, and a few more. */
static void take_all(const char *what, const struct attn_args *a, int ctas) {
    const int heads = a->heads_q / a->packed_heads, batch = a->heads_all / heads;
    static unsigned char slots[1 << 16];
    struct mixed_position at[CTAS];
    int64_t work = 0, tiles = 0, used_slots = 0, whole = 0;
    for (int b = 0; b < batch; b++) {
        const int own = blocks((int64_t)used_q[b] * a->packed_heads, ATTN_BM);
        tiles += own * heads;
        work += (int64_t)own * heads * kv_tiles(a, b);
    }
    memset(taken, 0, sizeof taken);
    memset(slots, 0, sizeof slots);
    at[0] = run(a, -1, ctas, (struct mixed_position){0}).at;
    for (int i = 1; i < CTAS; i++) {
        at[i] = at[0];
    }
    int shortest = INT32_MAX / 2;
    bool found = true;
    for (int ticket = 0; found; ticket++) {
        struct mixed_position *const cta = &at[ticket * 5 / 3 * 11 % CTAS];
        const struct answer got = run(a, ticket, ctas, *cta);
        *cta = got.at;
        found = got.found;
        if (!found) {
            CHECK(!run(a, ticket + 3, ctas, *cta).found);
            break;
        }
        const struct mixed_item *const x = &got.item;
        const int b = x->sequence, split = x->item & 0xffff, splits = x->item >> 16;
        const int tile = x->first_row / ATTN_BM, head = x->head / a->packed_heads;
        if (!CHECK_MSG(b >= 0 && b < batch && x->head >= 0 && x->head < a->heads_q &&
                           x->head % a->packed_heads == 0 && x->first_row % ATTN_BM == 0 &&
                           x->first_row >= 0 && x->first_row < used_q[b] * a->packed_heads &&
                           split < splits && splits < MOST_SPLITS,
                       "%s: ticket %d is split %d of %d of row %d of head %d of sequence %d", what,
                       ticket, split, splits, x->first_row, x->head, b)) {
            return;
        }
        CHECK_MSG(taken[b][head][tile][split]++ == 0, "%s: ticket %d again", what, ticket);
        const int length = blocks(kv_tiles(a, b), splits);
        CHECK(length <= max(at[0].each, 1) && length <= 2 * shortest);
        shortest = min(shortest, length);
        whole += split == 0;
        if (splits > 1) { /* a counter at the first slot, and a partial result in each */
            const int slot = x->slot + split;
            CHECK_MSG(slot >= 0 && slot < ATTN_MIXED_SLOTS * ctas, "%s: slot %d", what, slot);
            CHECK_MSG(slots[slot & 0xffff]++ == 0, "%s: slot %d again", what, slot);
            used_slots++;
        }
        const struct answer again = run(a, ticket, ctas, *cta); /* as after a retry */
        CHECK(memcmp(&again, &got, sizeof got) == 0);
    }
    CHECK_EQ(whole, tiles);
    CHECK(used_slots < (int64_t)ATTN_MIXED_SLOTS * ctas);
    CHECK((int64_t)at[0].each * 3 * ctas >= work); /* not too short */
    for (int b = 0; b < batch; b++) {              /* no split is missing */
        for (int i = 0; i < heads * MOST_TILES; i++) {
            const unsigned char *const splits = taken[b][i / MOST_TILES][i % MOST_TILES];
            const int count = blocks(kv_tiles(a, b), at[0].each);
            const bool there =
                i % MOST_TILES < blocks((int64_t)used_q[b] * a->packed_heads, ATTN_BM);
            for (int n = 0; n < MOST_SPLITS; n++) {
                CHECK_EQ(splits[n], there && n < count);
            }
        }
    }
}

static void set(int b, int queries, int keys) {
    used_q[b] = queries;
    used_kv[b] = keys;
    cu[b + 1] = cu[b] + queries + b % 3;
}

TEST(one_long_decode_is_split) {
    set(0, 1, 5000);
    const struct attn_args a = step_of(1, 8, 4);
    take_all("one decode", &a, 132);
    CHECK(run(&a, 0, 132, run(&a, -1, 132, (struct mixed_position){0}).at).item.item >> 16 > 32);
}

TEST(mixed_steps) {
    static const int ctas[] = {1, 7, 132};
    for (int n = 0; n < 3; n++) {
        for (int b = 0; b < 40; b++) { /* decode, drafts, two chunks, an empty one */
            set(b, b == 7 ? 200 : b == 33 ? 90 : b == 20 ? 0 : b % 8 + 1, 37 * b % 1000 + b % 2);
        }
        set(12, 1, 4000);
        const struct attn_args packed = step_of(40, 8, 4), apart = step_of(33, 6, 1);
        take_all("mixed", &packed, ctas[n]);
        take_all("mixed, no packed heads", &apart, ctas[n]);
    }
}

TEST(nothing_to_do) {
    for (int b = 0; b < 3; b++) {
        set(b, 0, 100);
    }
    struct attn_args a = step_of(3, 2, 1);
    take_all("no queries", &a, 132);
    for (int b = 0; b < 3; b++) {
        set(b, 5, 0);
    }
    a = step_of(3, 2, 1);
    take_all("no keys", &a, 132); /* O is to be written */
    a = step_of(0, 2, 1);
    take_all("no sequences", &a, 132);
}

/* All Q tiles see as many keys: no more splits than the waves of CTAs need. */
TEST(even_steps) {
    static const struct {
        int batch, keys, splits; /* 8 Q tiles for each sequence */
    } steps[] = {{16, 1024, 1}, {8, 1024, 2},  {4, 1024, 4},
                 {1, 1024, 16}, {32, 1024, 1}, {18, 1024, 2}};
    for (int n = 0; n < 6; n++) {
        for (int b = 0; b < steps[n].batch; b++) {
            set(b, 4, steps[n].keys - b % 7);
        }
        const struct attn_args a = step_of(steps[n].batch, 32, 4);
        const struct answer first =
            run(&a, 0, 132, run(&a, -1, 132, (struct mixed_position){0}).at);
        take_all("even", &a, 132);
        CHECK_MSG(first.item.item >> 16 == steps[n].splits, "%d sequences: %d splits, expected %d",
                  steps[n].batch, first.item.item >> 16, steps[n].splits);
    }
}

/* A window bounds the keys of a tile, and so its splits. */
TEST(windows) {
    for (int b = 0; b < 5; b++) {
        set(b, 30 * b + 1, 3000);
    }
    struct attn_args a = step_of(5, 2, 2);
    a.left = 100;
    a.right = 0;
    take_all("a window", &a, 7);
}

TEST(random_steps) {
    uint64_t state = 11;
    for (int round = 0; round < 20 / TEST_FEWER; round++) {
        const int batch = 1 + (int)(state >> 33) % 70;
        for (int b = 0; b < batch; b++) {
            state = state * 6364136223846793005U + 1442695040888963407U;
            const int q = (int)(state >> 40) % 5 == 0 ? (int)(state >> 33) % 90 : 1;
            set(b, q, (int)(state >> 50) % 4 == 0 ? 0 : (int)(state >> 45) % 2000);
        }
        const struct attn_args a = step_of(batch, 6, round % 2 ? 3 : 1);
        take_all("random", &a, 1 + (int)(state >> 33) % 140);
    }
}

TEST_MAIN()
