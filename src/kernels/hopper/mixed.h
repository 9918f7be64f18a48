/* SPDX-License-Identifier: Apache-2.0
 *
 * mixed.h - the dynamic tile scheduler for a mixed step: which split of which Q tile a ticket
 * names.
 *
 * The lengths are in GPU memory. A sequence may have one query or a thousand, ten keys or a
 * million, so the number of splits is its own: the producer warp first adds up the KV tiles of all
 * Q tiles, and cuts the keys of a Q tile into splits of at most `each` KV tiles, a quarter of a
 * CTA's fair share; twice that where the slots for partial results, or one merge, would be too
 * many. No ticket names an empty Q tile.
 *
 * Two kinds of sequences. One of a single Q tile (decode, drafts) is bound by memory: no other CTA
 * reads its K and V. One of several (a chunk of a prompt) is bound by compute: its Q tiles find K
 * and V in L2. Tickets interleave them, so that memory and tensor cores are busy at once, one CTA
 * with this, another with that: all items of several Q tiles with 5/8 of the others, in proportion,
 * then the rest, whose short items fill the end. The order in a kind, outermost first:
 *
 *     class      sequences with splits of [2^i, 2^(i+1)) KV tiles, the longest class first
 *     chunk      32 sequences of the batch, a lane for each, less those of other classes
 *     sequence
 *     section    heads (of packed GQA groups: groups) whose K and V fit in L2
 *     Q tile     the last first
 *     split      in the order of keys
 *     head       a row of all heads lies in one piece of memory, mostly
 *
 * Splits of one Q tile have neighbouring slots for their partial results in the workspace. A CTA's
 * tickets grow, so its place in either kind only moves forward, as in packed.h.
 *
 * The including file has packed.h, what that needs, and ATTN_BN; C and CUDA both compile this file
 * (tests/cuda/test_mixed.c).
 *
 * Invariant: tickets 0, 1, 2 ... name every split of every Q tile once, then none; no two tiles
 * share a slot, and there are fewer than ATTN_MIXED_SLOTS for each CTA.
 */
#ifndef ATTN_KERNELS_HOPPER_MIXED_H
#define ATTN_KERNELS_HOPPER_MIXED_H

enum {
    LEAST_SPLIT = 2,  /* KV tiles: a partial result costs about one (POST_COST of cuda/plan.c) */
    SHORT_SHARE = 8,  /* KV tiles of a share that is not cut: prologue and merge cost 3 */
    MANY_SPLITS = 16, /* a merge reads one after the other */
    SPREAD_BITS = 31, /* of a fraction */
    SPLIT_BITS = 16   /* of an item: the split, and above it their number */
};

enum { ONE_TILE, MORE_TILES, KINDS };

/* Where a CTA is in a kind. */
struct mixed_place {
    int least;    /* class: splits of [least, 2 least) KV tiles; 0: no item is left */
    int sequence; /* chunk: its first */
    int item;     /* of the kind: the first one of the chunk */
    int slot;     /* likewise */
};

struct mixed_position {
    int each;        /* KV tiles of a split, at most; of many: twice as many */
    int items;       /* of MORE_TILES */
    unsigned spread; /* the fraction of ONE_TILE among the tickets before the last of MORE_TILES */
    struct mixed_place places[KINDS];
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

INLINE int parts_of(int kv_tiles, int each) {
    return kv_tiles / each + (kv_tiles % each != 0);
}

INLINE int kind_of(const struct mixed_sequence *s) {
    return s->tiles > 1 ? MORE_TILES : ONE_TILE;
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
    if (each > 0) {
        s.splits = parts_of(s.kv_tiles, each);
        if (s.splits > MANY_SPLITS) {
            s.splits = max(parts_of(s.kv_tiles, 2 * each), MANY_SPLITS);
        }
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

/* Items and slots of a kind, over all heads. */
struct mixed_count {
    int items, slots;
};

INLINE struct mixed_count count_items(const struct attn_args *a, int kind, int each) {
    struct mixed_count count = {0, 0};
    for (int first = 0; in_step(a, first); first += LANES) {
        const struct mixed_sequence s =
            mixed_sequence_of(a, first + (int)(threadIdx.x % LANES), each);
        const int items = kind_of(&s) == kind ? s.tiles * s.splits : 0;
        count.items += items;
        count.slots += s.splits > 1 ? items : 0;
    }
    count.items = __reduce_add_sync(~0U, count.items) * heads_of_step(a);
    count.slots = __reduce_add_sync(~0U, count.slots) * heads_of_step(a);
    return count;
}

/* The position before ticket 0, of a grid of so many CTAs. */
INLINE struct mixed_position first_mixed_position(const struct attn_args *a, int ctas) {
    struct mixed_position at = {0, 0, 0, {{1, 0, 0, 0}, {1, 0, 0, 0}}};
    long long work = 0;
    for (int first = 0; in_step(a, first); first += LANES) {
        const struct mixed_sequence s = mixed_sequence_of(a, first + (int)(threadIdx.x % LANES), 0);
        work += (long long)s.tiles * s.kv_tiles;
    }
    const long long all = sum_of_lanes(work) * heads_of_step(a);
    const long long fair = (all + ctas - 1) / ctas;
    const int share = fair < ABOVE_ALL_LEVELS ? (int)fair : ABOVE_ALL_LEVELS;
    at.each = max(max(share / 4 + (share % 4 != 0), min(share, SHORT_SHARE)), LEAST_SPLIT);
    struct mixed_count one = count_items(a, ONE_TILE, at.each);
    struct mixed_count more = count_items(a, MORE_TILES, at.each);
    if (one.slots + more.slots >= ATTN_MIXED_SLOTS * ctas) { /* half a share: they suffice */
        at.each *= 2;
        one = count_items(a, ONE_TILE, at.each);
        more = count_items(a, MORE_TILES, at.each);
    }
    const int early = one.items - one.items / 8 * 3, both = more.items + early;
    at.items = more.items;
    at.spread =
        both > 0 ? (unsigned)(((unsigned long long)early << SPREAD_BITS) / (unsigned)both) : 0;
    at.places[MORE_TILES].slot = one.slots;
    while (at.places[0].least <= at.each) {
        at.places[0].least *= 2;
    }
    at.places[1].least = at.places[0].least;
    return at;
}

/* Items of ONE_TILE before a ticket. */
INLINE int before_ticket(const struct mixed_position *at, int ticket) {
    const unsigned long long most = (1ULL << SPREAD_BITS) - 1;
    const int spread =
        (int)(((unsigned long long)(unsigned)ticket * at->spread + most) >> SPREAD_BITS);
    return max(spread, ticket - at->items);
}

/* What kind of item a ticket names, and which one of them. */
INLINE int kind_of_ticket(const struct mixed_position *at, int ticket, int *item) {
    const int before = before_ticket(at, ticket);
    const bool one = before_ticket(at, ticket + 1) > before;
    *item = one ? before : ticket - before;
    return one ? ONE_TILE : MORE_TILES;
}

/* Heads whose K and V fit in L2: as many as a->section_heads with a->seq_kv keys each. */
INLINE int heads_of_mixed_section(const struct attn_args *a, int kv_tiles) {
    const float most = (float)a->section_heads * (float)a->seq_kv;
    const float fit = most / ((float)kv_tiles * ATTN_BN);
    const int heads = heads_of_step(a);
    return max(fit < (float)heads ? (int)fit : heads, 1);
}

/* Whether there is such an item of a kind, at least that of the call before. Called by all lanes of
 * a warp. */
INLINE bool find_mixed_item(const struct attn_args *a, int each, int kind, int item,
                            struct mixed_place *at, struct mixed_item *found) {
    const int heads = heads_of_step(a);
    while (at->least > 0) {
        struct mixed_sequence own =
            mixed_sequence_of(a, at->sequence + (int)(threadIdx.x % LANES), each);
        const int length = (own.kv_tiles + own.splits - 1) / own.splits;
        const bool here = kind_of(&own) == kind && length >= at->least && length < 2 * at->least;
        const int items = here ? own.tiles * heads * own.splits : 0;
        const int slots = own.splits > 1 ? items : 0;
        const int end = sum_up_to_lane(items), place = item - at->item;
        const unsigned after = __ballot_sync(~0U, place < end);
        if (after != 0) {
            const int lane = __ffs((int)after) - 1;
            const int index = place - __shfl_sync(~0U, end - items, lane);
            const int slot = __shfl_sync(~0U, sum_up_to_lane(slots) - slots, lane);
            const int splits = __shfl_sync(~0U, own.splits, lane);
            const int tiles = __shfl_sync(~0U, own.tiles, lane);
            const int section = heads_of_mixed_section(a, __shfl_sync(~0U, own.kv_tiles, lane));
            const int first = index / (section * tiles * splits) * section; /* of the section */
            const int width = min(section, heads - first), step = index - first * tiles * splits;
            const int tile = step / width / splits, split = step / width % splits;
            const int head = step % width;
            found->sequence = at->sequence + lane;
            found->head = (first + head) * a->packed_heads;
            found->first_row = (tiles - 1 - tile) * ATTN_BM;
            found->item = split | splits << SPLIT_BITS;
            found->slot = at->slot + slot + (first * tiles + tile * width + head) * splits;
            return true;
        }
        at->item += __shfl_sync(~0U, end, LANES - 1);
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
