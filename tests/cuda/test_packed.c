/* SPDX-License-Identifier: Apache-2.0
 *
 * test_packed.c - the tile scheduler for packed sequences (hopper/packed.h), compiled for the host:
 * every Q tile of every sequence and head has one ticket, whichever CTA takes it; longer tiles have
 * earlier ones.
 */
#include "cuda/warp.h"

#define ATTN_BM 16
#include "src/kernels/hopper/packed.h"

struct answer {
    struct packed_position at;
    int found; /* no bool: answers are compared as bytes */
    int sequence, head, tile;
};

struct call {
    const struct attn_args *a;
    int ticket; /* < 0: first_position */
    struct packed_position at;
};

static void run_lane(const void *call, void *result) {
    const struct call *const c = call;
    struct answer *const answer = result;
    memset(answer, 0, sizeof *answer);
    answer->at = c->at;
    if (c->ticket < 0) {
        answer->at = first_position(c->a);
        return;
    }
    answer->found = find_packed_tile(c->a, &answer->at, c->ticket, &answer->sequence, &answer->head,
                                     &answer->tile);
    CHECK_EQ(answer->tile % ATTN_BM, 0);
    answer->tile /= ATTN_BM;
}

static struct answer run(const struct attn_args *a, int ticket, struct packed_position at) {
    const struct call call = {a, ticket, at};
    struct answer answer;
    run_warp(run_lane, &call, &answer, sizeof answer);
    return answer;
}

/* ---- batches --------------------------------------------------------------------------------- */

enum { MOST_SEQUENCES = 300, MOST_TILES = 64, MOST_HEADS = 8, CTAS = 7 };

static int32_t cu_q[MOST_SEQUENCES + 1], cu_kv[MOST_SEQUENCES + 1], used[MOST_SEQUENCES];
static unsigned char taken[MOST_SEQUENCES][MOST_HEADS][MOST_TILES];

static int blocks(int rows) {
    return (rows + ATTN_BM - 1) / ATTN_BM;
}

static struct attn_args batch_of(int batch, int heads, int heads_per_kv, int section_heads) {
    struct attn_args a = {.heads_q = heads,
                          .heads_per_kv = heads_per_kv,
                          .packed_heads = 1,
                          .section_heads = section_heads,
                          .heads_all = batch * heads,
                          .cu_seqlens_q = cu_q,
                          .cu_seqlens_kv = cu_kv};
    for (int b = 0; b < batch; b++) {
        a.seq_q = max(a.seq_q, cu_q[b + 1] - cu_q[b]);
        a.seq_kv = max(a.seq_kv, cu_kv[b + 1] - cu_kv[b]);
    }
    return a;
}

static int class_of(const struct attn_args *a, int b) {
    const int keys = a->used_kv != NULL ? used[b] : cu_kv[b + 1] - cu_kv[b];
    return 31 - __builtin_clz((unsigned)max(blocks(keys), 1));
}

/* Takes all tickets, each by some CTA, and a few more. */
static void take_all(const char *what, const struct attn_args *a) {
    const int batch = a->heads_all / a->heads_q;
    struct packed_position at[CTAS];
    struct answer before = {.found = false};
    int tiles = 0;
    for (int b = 0; b < batch; b++) {
        tiles += a->heads_q * blocks(cu_q[b + 1] - cu_q[b]);
    }
    memset(taken, 0, sizeof taken);
    at[0] = run(a, -1, (struct packed_position){0}).at;
    for (int i = 1; i < CTAS; i++) {
        at[i] = at[0];
    }
    for (int ticket = 0; ticket < tiles + CTAS; ticket++) {
        struct packed_position *const cta = &at[ticket * 5 / 3 * 11 % CTAS];
        const struct answer got = run(a, ticket, *cta);
        *cta = got.at;
        if (!CHECK_MSG(got.found == (ticket < tiles), "%s: ticket %d of %d", what, ticket, tiles) ||
            !got.found) {
            continue;
        }
        const int b = got.sequence;
        if (!CHECK_MSG(b >= 0 && b < batch && got.head >= 0 && got.head < a->heads_q &&
                           got.tile >= 0 && got.tile < blocks(cu_q[b + 1] - cu_q[b]),
                       "%s: ticket %d is tile %d of head %d of sequence %d", what, ticket, got.tile,
                       got.head, b)) {
            continue;
        }
        CHECK_MSG(taken[b][got.head][got.tile]++ == 0,
                  "%s: ticket %d is tile %d of head %d of sequence %d again", what, ticket,
                  got.tile, got.head, b);
        if (before.found) {
            CHECK_MSG(class_of(a, b) <= class_of(a, before.sequence),
                      "%s: ticket %d is of a longer class", what, ticket);
        }
        before = got;
        const struct answer again = run(a, ticket, *cta); /* as after a retry */
        CHECK(memcmp(&again, &got, sizeof got) == 0);
    }
}

static void set_lengths(const int *lengths, int count) {
    for (int b = 0; b < count; b++) {
        cu_q[b + 1] = cu_kv[b + 1] = cu_q[b] + lengths[b];
    }
}

TEST(every_tile_has_one_ticket) {
    enum { B = ATTN_BM };
    const struct {
        const char *what;
        int count, lengths[12];
    } sets[] = {
        {"one sequence", 1, {100 * B / 3}},
        {"one query", 1, {1}},
        {"around a tile", 6, {B - 1, B, B + 1, 2 * B - 1, 2 * B, 2 * B + 1}},
        {"around a class", 8, {4 * B - 1, 4 * B, 4 * B + 1, 8 * B + 1, 8 * B, 7 * B, 16 * B, 1}},
        {"empty ones", 7, {0, 0, 5, 0, 3 * B, 0, 0}},
        {"all empty", 5, {0, 0, 0, 0, 0}},
        {"shortest first", 9, {0, 1, 2, B, 2 * B, 4 * B, 8 * B, 16 * B, 40 * B}},
    };
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        set_lengths(sets[i].lengths, sets[i].count);
        for (int heads_per_kv = 1; heads_per_kv <= 2; heads_per_kv++) {
            for (int section = 1; section < 40; section *= 4) {
                const struct attn_args a = batch_of(sets[i].count, 4, heads_per_kv, section);
                take_all(sets[i].what, &a);
            }
        }
    }
}

/* More than one chunk of sequences, whose last may be partial. */
TEST(large_batches) {
    int lengths[MOST_SEQUENCES];
    for (int batch = 31; batch <= MOST_SEQUENCES; batch = batch < 33 ? batch + 1 : 3 * batch + 1) {
        for (int long_one = 0; long_one < batch; long_one += batch - 1) {
            for (int b = 0; b < batch; b++) {
                lengths[b] = b == long_one ? MOST_TILES * ATTN_BM - 5 : b * 7 % 41;
            }
            set_lengths(lengths, batch);
            const struct attn_args a = batch_of(batch, 2, 1, 3);
            take_all("one long, many short", &a);
        }
    }
}

/* Queries and keys of different lengths: chunked prefill, cross attention, no keys. */
TEST(keys_of_their_own) {
    uint64_t state = 7;
    for (int round = 0; round < 40 / TEST_FEWER; round++) {
        const int batch = 1 + (int)(state >> 33) % 70;
        for (int b = 0; b < batch; b++) {
            state = state * 6364136223846793005U + 1442695040888963407U;
            const int q = (int)(state >> 40) % 5 == 0 ? 0 : (int)(state >> 33) % 90;
            const int kv = (int)(state >> 50) % 4 == 0 ? 0 : (int)(state >> 45) % 900;
            cu_q[b + 1] = cu_q[b] + q;
            cu_kv[b + 1] = cu_kv[b] + kv;
            used[b] = (int)((int64_t)kv * (int)(state >> 60) / 15);
        }
        struct attn_args a = batch_of(batch, 6, 3, 1 + round % 9);
        a.used_kv = round % 2 ? used : NULL;
        take_all("random", &a);
    }
}

/* One chunk and one section: the most keys first. */
TEST(longest_first) {
    const int lengths[] = {70, 112, 64, 100, 90, 111};
    enum { COUNT = sizeof lengths / sizeof *lengths };
    set_lengths(lengths, COUNT);
    const struct attn_args a = batch_of(COUNT, 3, 1, 3 * COUNT);
    struct packed_position at = run(&a, -1, (struct packed_position){0}).at;
    int least = MOST_TILES;
    for (int ticket = 0;; ticket++) {
        const struct answer got = run(&a, ticket, at);
        if (!got.found) {
            CHECK_EQ(least, 0);
            break;
        }
        at = got.at;
        CHECK(got.tile <= least);
        least = got.tile;
    }
}

TEST_MAIN()
