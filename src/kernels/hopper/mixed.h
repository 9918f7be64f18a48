/* SPDX-License-Identifier: Apache-2.0
 *
 * mixed.h - the dynamic tile scheduler for a mixed step: which split of which Q tile a ticket
 * names.
 *
 * The lengths are in GPU memory. A sequence may have one query or a thousand, ten keys or a
 * million, so the number of splits is its own: the producer warp first adds up the KV tiles of all
 * Q tiles, and cuts the keys of a Q tile into splits of at most `each` KV tiles: half of a CTA's
 * fair share, or, where all Q tiles see about as many keys, what fills the waves of CTAs best. No
 * ticket names an empty Q tile. The order, outermost first:
 *
 *     class      sequences with splits of [2^i, 2^(i+1)) KV tiles, the longest class first
 *     chunk      32 sequences of the batch, a lane for each, less those of other classes
 *     sequence
 *     Q tile     the last first
 *     head       of a packed GQA group: the group
 *     split      in the order of keys
 *
 * Splits of one Q tile have neighbouring slots for their partial results in the workspace. A CTA's
 * tickets grow, so its position only moves forward, as in packed.h.
 *
 * INVARIANT: a Q tile is not split, or its splits are its chunks (chunks.h): where it has more KV
 * tiles than a CTA should take, and as long as there are slots.
 *
 * The including file has packed.h, what that needs, chunks.h, INVARIANT and ATTN_BN; C and CUDA
 * both compile this file (tests/cuda/test_mixed.c, test_chunks.c).
 *
 * Invariant: tickets 0, 1, 2 ... name every split of every Q tile once, then none; no two tiles
 * share a slot, and there are fewer than ATTN_MIXED_SLOTS for each CTA; INVARIANT: num_splits.
 */
#ifndef ATTN_KERNELS_HOPPER_MIXED_H
#define ATTN_KERNELS_HOPPER_MIXED_H

enum {
    LEAST_SPLIT = 2, /* KV tiles: a partial result costs about one (POST_COST of cuda/split.c) */
    SHORT_SHARE = 8, /* KV tiles of a share that is not halved: prologue and merge cost 3 */
    SPLIT_BITS = 16, /* of an item: the split, and above it their number */
    /* The cost of an even step; half KV tiles, as ITEM_COST and so on of cuda/split.c. */
    ITEM_HALVES = 3,     /* first loads and epilogue */
    POST_HALVES = 2,     /* of a split: its partial result */
    EVEN_STEP = 1 << 24, /* KV tiles of a step that is tried for this, at most */
};

struct mixed_position {
    int each;     /* KV tiles of a split, at most */
    int least;    /* class: splits of [least, 2 least) KV tiles; 0: no item is left */
    int sequence; /* chunk: its first */
    int ticket;   /* the first one of the chunk */
    int slot;     /* likewise */
};

/* The sequence of a lane. */
struct mixed_sequence {
    int tiles;    /* of one head, or of a packed group */
    int kv_tiles; /* of its longest Q tile, at least 1 */
    int splits;   /* of each Q tile */
};

struct mixed_item {
    int sequence, head, first_row;
    int item; /* split | splits << SPLIT_BITS */
    int slot; /* of the first split */
};

INLINE int heads_of_step(const struct attn_args *a) {
    return a->heads_q / a->packed_heads;
}

INLINE bool in_step(const struct attn_args *a, int sequence) {
    return (long long)sequence * heads_of_step(a) < a->heads_all;
}

/* each = 0: not known yet. */
INLINE struct mixed_sequence mixed_sequence_of(const struct attn_args *a, int sequence, int each) {
    struct mixed_sequence s = {0, 1, 1};
    if (!in_step(a, sequence)) {
        return s;
    }
    const int *const cu = a->cu_seqlens_q;
    const int rows = a->used_q != 0 ? a->used_q[sequence]
                     : cu != 0      ? cu[sequence + 1] - cu[sequence]
                                    : a->seq_q;
    const int keys = a->used_kv != 0 ? a->used_kv[sequence]
                     : cu != 0       ? a->cu_seqlens_kv[sequence + 1] - a->cu_seqlens_kv[sequence]
                                     : a->seq_kv;
    s.tiles = blocks_of(rows * a->packed_heads);
    s.kv_tiles = max(keys / ATTN_BN + (keys % ATTN_BN != 0), 1);
    if (a->left >= 0 && a->right >= 0) { /* what the window shows, and a tile that it cuts at either
                                            end */
        const long long window = (a->left + a->right + ATTN_BM) / ATTN_BN + 2;
        s.kv_tiles = window < s.kv_tiles ? (int)window : s.kv_tiles;
    }
    if (INVARIANT) { /* large Q tiles have large partial results */
        const int most = s.tiles > 1 ? each + each / 2 : each;
        if (each > 0 && s.kv_tiles > most) {
            s.splits = chunks_of_tiles(keys / ATTN_BN + (keys % ATTN_BN != 0), s.kv_tiles);
        }
    } else if (each > 0) {
        s.splits = s.kv_tiles / each + (s.kv_tiles % each != 0);
    }
    return s;
}

/* The sum over all lanes, which are not negative. */
INLINE long long sum_of_lanes(long long value) {
    const int low = __reduce_add_sync(~0U, (int)(value & 0xffffff));
    const int middle = __reduce_add_sync(~0U, (int)(value >> 24 & 0xffffff));
    const int high = __reduce_add_sync(~0U, (int)(value >> 48));
    return low + ((long long)middle << 24) + ((long long)high << 48);
}

/* The sum over this lane and those before it. */
INLINE int sum_up_to_lane(int value) {
    for (int step = 1; step < LANES; step *= 2) {
        const int before = __shfl_up_sync(~0U, value, step);
        value += (int)(threadIdx.x % LANES) >= step ? before : 0;
    }
    return value;
}

/* `each` for so many Q tiles of kv_tiles KV tiles, about `least` or more: waves of items, and the
 * merge of the last Q tile. A lane for a number of splits. */
INLINE int even_share(int q_tiles, int kv_tiles, int least, int ctas) {
    const int slots = (ATTN_MIXED_SLOTS * ctas - 1) / q_tiles;
    const int most = max(min((kv_tiles + least - 1) / least, slots), 1);
    int cost = ABOVE_ALL_LEVELS, splits = 1;
    for (int n = 1 + (int)(threadIdx.x % LANES); n <= most; n += LANES) {
        const int waves = (q_tiles * n + ctas - 1) / ctas, length = (kv_tiles + n - 1) / n;
        const int own = n == 1 ? waves * (2 * length + ITEM_HALVES)
                               : waves * (2 * length + ITEM_HALVES + POST_HALVES) + n;
        if (own < cost) {
            cost = own;
            splits = n;
        }
    }
    const int lowest = -__reduce_max_sync(~0U, -cost);
    splits = -__reduce_max_sync(~0U, cost == lowest ? -splits : -ABOVE_ALL_LEVELS);
    return (kv_tiles + splits - 1) / splits;
}

/* The position before ticket 0, of a grid of so many CTAs. */
INLINE struct mixed_position first_mixed_position(const struct attn_args *a, int ctas) {
    struct mixed_position at = {0, 1, 0, 0, 0};
    long long work = 0;
    int tiles = 0, longest = 0;
    for (int first = 0; in_step(a, first); first += LANES) {
        const struct mixed_sequence s = mixed_sequence_of(a, first + (int)(threadIdx.x % LANES), 0);
        work += (long long)s.tiles * s.kv_tiles;
        tiles += s.tiles;
        longest = s.tiles > 0 ? max(longest, s.kv_tiles) : longest;
    }
    const long long all = sum_of_lanes(work) * heads_of_step(a);
    const long long fair = (all + ctas - 1) / ctas;
    const int share = fair < ABOVE_ALL_LEVELS ? (int)fair : ABOVE_ALL_LEVELS;
    at.each = max(max(share - share / 2, min(share, SHORT_SHARE)), LEAST_SPLIT);
    if (all < EVEN_STEP) {
        tiles = __reduce_add_sync(~0U, tiles) * heads_of_step(a);
        longest = __reduce_max_sync(~0U, longest);
        if (all >= (long long)tiles * longest / 16 * 15 && longest > at.each) {
            at.each = even_share(tiles, longest, at.each, ctas);
        }
    }
    while (at.least <= at.each / 2) {
        at.least *= 2;
    }
    return at;
}

/* Whether the ticket, at least that of the call before, names an item. Called by all lanes of a
 * warp. */
INLINE bool find_mixed_item(const struct attn_args *a, struct mixed_position *at, int ticket,
                            struct mixed_item *found) {
    const int heads = heads_of_step(a);
    while (at->least > 0) {
        struct mixed_sequence own =
            mixed_sequence_of(a, at->sequence + (int)(threadIdx.x % LANES), at->each);
        const int length = min((own.kv_tiles + own.splits - 1) / own.splits, at->each);
        const bool here = length >= at->least && length < 2 * at->least;
        if (INVARIANT) {
            const int wanted = here && own.splits > 1 ? own.tiles * heads * own.splits : 0;
            own.splits = sum_up_to_lane(wanted) > a->num_splits - at->slot ? 1 : own.splits;
        }
        const int items = here ? own.tiles * heads * own.splits : 0;
        const int slots = own.splits > 1 ? items : 0;
        const int end = sum_up_to_lane(items), place = ticket - at->ticket;
        const unsigned after = __ballot_sync(~0U, place < end);
        if (after != 0) {
            const int lane = __ffs((int)after) - 1;
            const int index = place - __shfl_sync(~0U, end - items, lane);
            const int slot = __shfl_sync(~0U, sum_up_to_lane(slots) - slots, lane);
            const int splits = __shfl_sync(~0U, own.splits, lane);
            const int tiles = __shfl_sync(~0U, own.tiles, lane);
            const int tile = index / splits, split = index % splits;
            found->sequence = at->sequence + lane;
            found->head = tile % heads * a->packed_heads;
            found->first_row = (tiles - 1 - tile / heads) * ATTN_BM;
            found->item = split | splits << SPLIT_BITS;
            found->slot = at->slot + slot + index - split;
            return true;
        }
        at->ticket += __shfl_sync(~0U, end, LANES - 1);
        at->slot += __reduce_add_sync(~0U, slots);
        at->sequence += LANES;
        if (!in_step(a, at->sequence)) {
            at->sequence = 0;
            at->least /= 2;
        }
    }
    return false;
}

#endif /* ATTN_KERNELS_HOPPER_MIXED_H */
