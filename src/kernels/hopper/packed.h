/* SPDX-License-Identifier: Apache-2.0
 *
 * packed.h - the dynamic tile scheduler for packed sequences: which Q tile a ticket names.
 *
 * The lengths are in GPU memory, so the host knows only a bound on the number of Q tiles. The
 * producer warp works the tiles out from the lengths, a lane for each of 32 sequences; no ticket
 * names an empty tile. The order, outermost first:
 *
 *     class      sequences of [2^i, 2^(i+1)) key blocks (of BM keys), the longest class first
 *     chunk      32 sequences of the batch, less those of other classes
 *     section    heads whose K and V fit in L2
 *     level      key blocks that a Q tile sees with a causal mask, the most first
 *     sequence   those of the chunk that have a tile at this level
 *     head       those of the section
 *
 * So it is longest-processing-time first: within a section exactly, elsewhere up to a factor of 2.
 * The tickets of a CTA grow, hence its position only moves forward: a CTA walks
 * over the lengths once for each class, however many tickets it takes.
 *
 * The including file has struct attn_args, INLINE, LANES, ATTN_BM and CUDA's names; C and CUDA both
 * compile this file (tests/cuda/test_packed.c).
 *
 * Invariant: tickets 0, 1, 2 ... name every Q tile of every sequence and head once, then none.
 */
#ifndef ATTN_KERNELS_HOPPER_PACKED_H
#define ATTN_KERNELS_HOPPER_PACKED_H

enum { ABOVE_ALL_LEVELS = 0x7fffffff, NO_LEVEL = -ABOVE_ALL_LEVELS };

struct packed_position {
    int least;       /* class: sequences of [least, 2 least) key blocks; 0: no tile is left */
    int sequence;    /* chunk: its first */
    int head, heads; /* section: its first head, and how many */
    int level;       /* the tickets of this level are past */
    int ticket;      /* the first one of the next level */
};

/* The sequence of a lane: its Q tiles are at the levels (last - tiles, last]. */
struct packed_sequence {
    int last, tiles;
};

/* Blocks of BM rows or keys; rows + ATTN_BM - 1 would overflow near 2^31. */
INLINE int blocks_of(int rows) {
    return rows / ATTN_BM + (rows % ATTN_BM != 0);
}

INLINE bool in_batch(const struct attn_args *a, int sequence) {
    return (long long)sequence * a->heads_q < a->heads_all;
}

/* No tiles if it is not of the class. A sequence without keys counts as one with a key: its O is to
 * be written. */
INLINE struct packed_sequence sequence_of_lane(const struct attn_args *a,
                                               const struct packed_position *at) {
    const int sequence = at->sequence + (int)(threadIdx.x % LANES);
    struct packed_sequence s = {1, 0};
    if (in_batch(a, sequence)) {
        const int *const q = a->cu_seqlens_q + sequence, *const kv = a->cu_seqlens_kv + sequence;
        s.last = max(blocks_of(a->used_kv != 0 ? a->used_kv[sequence] : kv[1] - kv[0]), 1);
        if (s.last >= at->least && s.last < 2 * at->least) {
            s.tiles = blocks_of(a->used_q != 0 ? a->used_q[sequence] : q[1] - q[0]);
        }
    }
    return s;
}

/* Heads of a section, whole groups that share a KV head. As many heads as a->section_heads fit in
 * L2 with a->seq_kv keys each. */
INLINE int heads_of_section(const struct attn_args *a, int key_blocks) {
    const float most = (float)a->section_heads * (float)a->seq_kv;
    const float fit = most / ((float)key_blocks * ATTN_BM);
    const int heads = fit < (float)a->heads_q ? (int)fit : a->heads_q; /* also where fit is NaN */
    return max(heads / a->heads_per_kv, 1) * a->heads_per_kv;
}

/* The next section; after the last one, that of the next chunk; after the last one, of the next
 * class. */
INLINE void next_section(const struct attn_args *a, struct packed_position *at,
                         struct packed_sequence *own) {
    at->level = ABOVE_ALL_LEVELS;
    at->head += at->heads;
    if (at->head < a->heads_q) {
        return;
    }
    at->head = 0;
    at->sequence += LANES;
    if (!in_batch(a, at->sequence)) {
        at->sequence = 0;
        at->least /= 2;
    }
    *own = sequence_of_lane(a, at);
    at->heads = heads_of_section(a, __reduce_add_sync(~0U, own->tiles > 0 ? own->last : 0));
}

/* The position before ticket 0. */
INLINE struct packed_position first_position(const struct attn_args *a) {
    struct packed_position at = {1, -LANES, a->heads_q, 0, 0, 0};
    struct packed_sequence own;
    while (at.least <= blocks_of(a->seq_kv) / 2) {
        at.least *= 2;
    }
    next_section(a, &at, &own);
    return at;
}

/* Whether the ticket, at least that of the call before, names a Q tile: its sequence, head and
 * first row. Called by all lanes of a warp. */
INLINE bool find_packed_tile(const struct attn_args *a, struct packed_position *at, int ticket,
                             int *sequence, int *head, int *first_row) {
    struct packed_sequence own = sequence_of_lane(a, at);
    while (at->least > 0) {
        const int own_level = min(own.last, at->level - 1);
        const bool more = own_level > own.last - own.tiles;
        const int level = __reduce_max_sync(~0U, more ? own_level : NO_LEVEL);
        if (level == NO_LEVEL) {
            next_section(a, at, &own);
            continue;
        }
        const bool here = more && own_level == level;
        const unsigned lanes = __ballot_sync(~0U, here);
        const int heads = min(at->heads, a->heads_q - at->head), place = ticket - at->ticket;
        if (place < __popc(lanes) * heads) {
            const int before = __popc(lanes & ((1U << threadIdx.x % LANES) - 1));
            const int lane = __ffs((int)__ballot_sync(~0U, here && before == place / heads)) - 1;
            *sequence = at->sequence + lane;
            *head = at->head + place % heads;
            *first_row = __shfl_sync(~0U, own.tiles - 1 - (own.last - level), lane) * ATTN_BM;
            return true;
        }
        at->ticket += __popc(lanes) * heads;
        at->level = level;
    }
    return false;
}

#endif /* ATTN_KERNELS_HOPPER_PACKED_H */
