/* SPDX-License-Identifier: Apache-2.0
 *
 * fwd_hopper.cu - fused attention for Hopper (sm_90a): products of warpgroups (wgmma), tiles by
 * TMA, a producer warp and consumer warpgroups that meet at mbarriers, blocks that stay on their
 * multiprocessor and take one tile of rows after the other.
 *
 * fwd_hopper takes no mask, fwd_hopper_causal a causal one, fwd_hopper_full windows, softcap,
 * packed sequences and used keys as well: one file, three programs.
 *
 *     producer (a thread; FULL: a warp)       each consumer warpgroup: 64 rows of the tile
 *     for each tile of rows:                  for each tile of rows:
 *         K of one tile of keys                   S = Q K^T of these keys: their maximum gives
 *         Q                                       a row its reference, P = exp2(S - reference)
 *         V, and K of the next tile of keys       for the other tiles of keys:
 *         ...                                         S = Q K^T, O += P V (of the tile before)
 *                                                     mask; P = exp2(S - reference)
 *                                                 O += P V; O / sum -> shared -> global
 *
 * Keys run backwards, so that what a mask crosses comes first. The softmax has no running maximum
 * (softmax.h); where it needed one, a consumer asks for the tile of rows again, and gets it
 * behind the tile that is under way, with `careful` in its note. That costs a second pass, so rows
 * should know their largest scores early: FIRST_IN_FRONT takes the first tile of keys before the
 * last, and the maximum of both, so that a sink at either end is known; TWO_MAXIMA takes that of
 * the tile at the diagonal, where some rows see one key, and of the one behind it. (Elsewhere these
 * cost more than they save; warpgroups that begin with the same keys under a mask lose a tenth.)
 * OVERLAP keeps O += P V under way during the next softmax; PING_PONG has the warpgroups take turns
 * at the tensor cores, STAGGER only at a tile's first scores.
 *
 * Tiles of rows that are all as long are dealt out by number; masked ones longest first to whoever
 * is free, by a counter in the workspace that the last block sets back. CUT_FROM_END cuts them from
 * the last row on, so that the one that is not full is the shortest. A block takes its next tile
 * when it has almost asked for all of this one: sooner, and blocks with long tiles would take long
 * ones again. The producer tells its consumers by a note beside Q. A block may begin before the
 * kernel in front of it has ended; its producer waits for that, and (but for fwd_hopper_full, whose
 * lengths lie in memory) sends its first tiles on their way to L2 meanwhile. Where a tile reaches
 * beyond the keys in use, TMA brings what lies there, so the producer of fwd_hopper_full zeroes
 * those rows of V: 0 times NaN would show.
 *
 * Shared memory, dynamic, from the first multiple of 1024 on, in bytes (C = columns, in 64s):
 *     q      Q_STAGES x BM x C x 2     later O, 16 bits, on its way out (TMA_STORE)
 *     k      STAGES x BN x C x 2
 *     v      STAGES x BN x C x 2
 * static: mbarriers "full" and "empty" of each stage of q, k, v, one of a tile of V that is
 * trimmed; two notes for each stage of q, and what is to come again.
 *
 * Invariant: every warpgroup waits for and releases every stage that the producer fills, in the
 * same order; both sides work out the same tiles from the same numbers.
 */
#include "hopper/producer.h"

/* ---- consumer -------------------------------------------------------------------------------- */

/* A warpgroup's way through the rings. */
struct consumer {
    struct barriers b;
    struct places at;
    struct notes *notes;
    int group, warp, lane;
    bool leader;
    struct ring q, k, v;
    int unsettled; /* the Q stage that a store still reads; -1: none */
};

/* Of the tile of rows that it is at. */
INLINE struct note *own_note(const struct consumer &c) {
    return &c.notes->note[note_of(c.q.stage, c.q.parity ^ 1)]; /* the producer's parity */
}

INLINE void wait_k(const struct consumer &c) {
    barrier_wait(c.b.k_full + (unsigned)(c.k.stage * BARRIER), c.k.parity);
}

INLINE void wait_v(const struct consumer &c) {
    barrier_wait(c.b.v_full + (unsigned)(c.v.stage * BARRIER), c.v.parity);
}

/* The leader speaks for its warpgroup: a product, or a barrier, has held the four warps together.
 * */
INLINE void release_k(struct consumer &c) {
    if (c.leader) {
        barrier_arrive(c.b.k_empty + (unsigned)(c.k.stage * BARRIER));
    }
    advance<ATTN_STAGES>(c.k);
}

INLINE void release_v(struct consumer &c) {
    if (c.leader) {
        barrier_arrive(c.b.v_empty + (unsigned)(c.v.stage * BARRIER));
    }
    advance<ATTN_STAGES>(c.v);
}

INLINE unsigned stage_k(const struct consumer &c) {
    return c.at.k + (unsigned)(c.k.stage * K_BYTES);
}

INLINE unsigned stage_v(const struct consumer &c) {
    return c.at.v + (unsigned)(c.v.stage * K_BYTES);
}

/* By each warp, and by the lane of it that has read the note beside Q: race checkers follow no
 * order that goes from one thread's read to another's arrival. */
INLINE void release_q(const struct consumer &c, int stage) {
    barrier_arrive(c.b.q_empty + (unsigned)(stage * BARRIER));
}

/* The Q stage of the tile before, if its O has left it. */
INLINE void settle(struct consumer &c) {
    if (TMA_STORE) {
        if (c.unsettled >= 0 && c.leader) {
            stores_wait_read();
            release_q(c, c.unsettled);
        }
        c.unsettled = -1;
    }
}

/* Tiles of K, of V, or of both, that no row of this warpgroup sees: waited for and released. No
 * product holds the four warps together here, and one that is two phases late would wait for a
 * parity forever. */
template <bool k, bool v> INLINE void skip_tiles(struct consumer &c, int count) {
#pragma unroll 1
    for (int i = 0; i < count; i++) {
        if (k) {
            wait_k(c);
        }
        if (v) {
            wait_v(c);
        }
        named_sync(GROUP_MEETS + c.group, GROUP);
        if (k) {
            release_k(c);
        }
        if (v) {
            release_v(c);
        }
    }
}

/* STAGGER: at the seam of two tiles of rows warpgroup 1 lets warpgroup 0 have its first scores. A
 * barrier for each stage of Q: warpgroup 0 comes to a stage again only when 1 has left it, and two
 * arrivals at one barrier would stand for warpgroup 1's. */
INLINE void wait_for_turn(const struct consumer &c) {
    if (STAGGER && c.group == 1) {
        named_sync(TURN + c.q.stage, 2 * GROUP);
    }
}
INLINE void give_turn(const struct consumer &c) {
    if (STAGGER && c.group == 0) {
        named_arrive(TURN + c.q.stage, 2 * GROUP);
    }
}

/* One step of the loop: S of tile n, O += P V of the tile before, P of tile n. `careful`: with a
 * running maximum; tile n may be the last. Not `overlap`: P may take the place of `before`. */
template <bool careful, bool overlap>
INLINE void step(struct consumer &c, const struct attn_args &a, const struct work &w,
                 const struct group_rows &rows, int n, unsigned q, float (&o)[OUTPUTS],
                 unsigned (&before)[PAIRS], unsigned (&p)[PAIRS], struct row_state &state) {
    float s[SCORES];
    wait_k(c);
    if (PING_PONG) {
        wait_v(c);
        named_sync(TURN + c.group, 2 * GROUP);
    }
    compute_scores(s, q, stage_k(c));
    if (!PING_PONG) {
        wait_v(c);
    }
    accumulate(o, before, stage_v(c));
    if (PING_PONG) {
        named_arrive(TURN + (c.group + 1 == CONSUMERS ? 0 : c.group + 1), 2 * GROUP);
    }
    if (overlap) {
        products_wait<1>();
    } else {
        products_wait<0>();
        keep(o);
        keep(before);
    }
    keep(s);
    release_k(c);
    if (!overlap) {
        release_v(c);
    }
    if (careful || OPTIONS_IN_LOOP) {
        apply_options(s, a, w, rows, n, careful, c.lane);
    }
    const unsigned raised =
        careful ? softmax_careful(p, s, rows.scale, state) : softmax(p, s, rows.scale, state);
    if (overlap) {
        products_wait<0>();
        keep(o);
        keep(before);
        release_v(c);
    }
    if (raised != 0) {
        rescale(o, state, raised);
    }
}

INLINE void last_step(struct consumer &c, float (&o)[OUTPUTS], unsigned (&p)[PAIRS]) {
    wait_v(c);
    accumulate(o, p, stage_v(c));
    products_wait<0>();
    keep(o);
    release_v(c);
}

/* Whether the tile behind tile n is taken with a running maximum: the second if the first came from
 * the front, and those of which a row does not see all, or nothing of the one before: the question
 * of may_lack_reference, in the form of which ptxas makes more here. */
INLINE bool needs_care(const struct group_rows &rows, int n, int end) {
    return FIRST_IN_FRONT ? n == end : MASKED && (n - 1) * ATTN_BN >= rows.common.end - ATTN_BN;
}

/* Tiles of keys [begin, end) of this warpgroup's rows. V_LATER: V of those `skipped` in front of
 * them is still to be skipped. */
INLINE void attend(struct consumer &c, const struct attn_args &a, const struct work &w,
                   const struct group_rows &rows, int begin, int end, int skipped, bool careful,
                   unsigned q, float (&o)[OUTPUTS], struct row_state &state) {
    unsigned p[PAIRS], other[PAIRS];
    int n = end - !FIRST_IN_FRONT; /* of the tile before the next */
    const int last = begin + FIRST_IN_FRONT;
    {
        float s[SCORES];
        wait_k(c);
        wait_for_turn(c);
        compute_scores(s, q, stage_k(c));
        products_wait<0>();
        keep(s);
        give_turn(c);
        release_k(c);
        apply_options(s, a, w, rows, key_tile({begin, end}, 0), true, c.lane);
        softmax_first(TWO_MAXIMA ? other : p, s, rows.scale, state);
        settle(c);
        if (V_LATER) {
            skip_tiles<false, true>(c, skipped);
        }
    }
    if (TWO_MAXIMA) {
        if (--n < last) {
            last_step(c, o, other);
            return;
        }
        step<true, true>(c, a, w, rows, n, q, o, other, p, state);
    }
#pragma unroll 1
    while (n > last && (careful || needs_care(rows, n, end))) {
        n--;
        step<true, false>(c, a, w, rows, n, q, o, p, p, state);
    }
    if (OVERLAP) { /* P of one tile is read while that of the next is made */
#pragma unroll 1
        for (;;) {
            if (--n < last) {
                last_step(c, o, p);
                return;
            }
            step<false, true>(c, a, w, rows, n, q, o, p, other, state);
            if (--n < last) {
                last_step(c, o, other);
                return;
            }
            step<false, true>(c, a, w, rows, n, q, o, other, p, state);
        }
    } else {
#pragma unroll 1
        while (--n >= last) {
            step<false, false>(c, a, w, rows, n, q, o, p, p, state);
        }
        last_step(c, o, p);
    }
}

/* Has the tile of rows come once more. Before its stage of Q is released. */
INLINE void ask_again(const struct consumer &c) {
    if (atomicOr(&own_note(c)->again, 1U) == 0) {
        atomicAdd(&c.notes->asked, 1U);
    }
}

/* O and the LSE of a finished tile leave; the Q stage is released, now or when O has left it. What
 * is not finite comes again, and if it still is not, it is repaired. */
INLINE void finish(struct consumer &c, const struct attn_tma_args &t, const struct work &w,
                   const struct group_rows &rows, bool careful, float (&o)[OUTPUTS],
                   struct row_state &state) {
    const struct attn_args &a = t.a;
    const int first = w.first_row + c.group * ROWS;
    const bool bad = normalise_rows(o, state);
    store_lse(a, w, state, rows.row, c.lane);
    bool any_bad = bad;
    if (TMA_STORE) {
        const unsigned q = c.at.q + (unsigned)(c.q.stage * Q_BYTES + c.group * ROWS * SWIZZLE_ROW);
        named_sync(GROUP_MEETS + c.group, GROUP); /* nobody reads these rows of Q any more */
        stage_rows(o, q, c.warp, c.lane);
        publish_shared();
        any_bad = named_sync_or(GROUP_MEETS + c.group, GROUP, bad);
        if (c.leader) {
            if (careful) {
                stores_wait(); /* of the same rows, the first time */
            } else if (any_bad) {
                ask_again(c);
            }
#pragma unroll
            for (int i = 0; i < CHUNKS; i++) {
                store_box(&t.o, q + (unsigned)(i * Q_CHUNK), 64 * i, first, w.head, w.batch);
            }
            stores_commit();
        } else if (c.lane == 0) {
            release_q(c, c.q.stage);
        }
        c.unsettled = c.q.stage;
        if (any_bad && careful) {
            if (c.leader) {
                stores_wait();
            }
            named_sync(GROUP_MEETS + c.group, GROUP);
        }
    } else {
        if (c.lane == 0) {
            if (bad && !careful) {
                ask_again(c);
            }
            release_q(c, c.q.stage);
        }
        store_rows(o, a, w, rows.row, c.lane);
        __syncwarp();
    }
    if (bad && careful) {
        repair_rows(a, w, first + c.warp * 16, 16, c.lane, true);
    }
    advance<Q_STAGES>(c.q);
}

/* A warpgroup all of whose rows lie behind the sequence: it only keeps in step. */
INLINE void pass(struct consumer &c, int count) {
    if (count > 0) {
        wait_for_turn(c);
    }
    skip_tiles<true, true>(c, count);
    settle(c);
    if (c.lane == 0) {
        release_q(c, c.q.stage);
    }
    advance<Q_STAGES>(c.q);
}

/* The tile that a note tells of, read by one lane for its warp; its first row is below 0 if there
 * are no more. */
INLINE struct work read_note(const struct note *note, int lane, int &careful) {
    struct work w = {};
    careful = 0;
    if (lane == 0) { /* volatile: else the compiler lets all lanes read */
        asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(w.batch), "=r"(w.head), "=r"(w.first_row), "=r"(careful)
                     : "r"(shared_address(note))
                     : "memory");
    }
    careful = __shfl_sync(~0U, careful, 0);
    w.batch = __shfl_sync(~0U, w.batch, 0);
    w.head = __shfl_sync(~0U, w.head, 0);
    w.first_row = __shfl_sync(~0U, w.first_row, 0);
    return w;
}

/* The producer has no more tiles, and so many came again: is that all that were asked for? */
INLINE bool is_end(struct consumer &c, int came_again) {
    settle(c);
    named_sync(END, CONSUMERS * GROUP); /* nobody asks after that */
    if (*(volatile unsigned *)&c.notes->asked == (unsigned)came_again) {
        return true;
    }
    if (c.lane == 0) {
        release_q(c, c.q.stage);
    }
    advance<Q_STAGES>(c.q);
    return false;
}

INLINE void consume(const struct attn_tma_args &t, struct consumer &c) {
    const struct attn_args &a = t.a;
    if (PING_PONG && c.group == CONSUMERS - 1) {
        named_arrive(TURN, 2 * GROUP); /* the first warpgroup may begin */
    }
#pragma unroll 1
    for (;;) {
        int careful;
        barrier_wait(c.b.q_full + (unsigned)(c.q.stage * BARRIER), c.q.parity);
        struct work w = read_note(own_note(c), c.lane, careful);
        if (w.first_row < 0) {
            if (is_end(c, careful)) {
                break;
            }
            continue;
        }
        lengths_of_sequence(a, w);
        end_first_tile(w);
        const struct span tile = keys_of_tile(a, w);
        const int first = w.first_row + c.group * ROWS;
        if (!PING_PONG && first >= w.rows) {
            pass(c, tile.end - tile.begin);
            continue;
        }
        struct group_rows rows;
        rows.row = first + c.warp * 16 + c.lane / 4;
        rows.scale = FULL && a.softcap_log2 > 0.0f ? 1.0f : a.scale_log2;
        struct row_state state = unseen_rows();
        float o[OUTPUTS];
#pragma unroll
        for (int i = 0; i < OUTPUTS; i++) {
            o[i] = 0.0f;
        }
        const struct keys seen = keys_of_rows(a, w, min(first, w.rows - 1), ROWS, &rows.common);
        struct span own = tile; /* what this warpgroup sees of it */
        if (MASKED) {
            own = tiles_of(seen);
            if (own.begin == own.end) {
                own.begin = own.end = tile.begin;
            }
            if (V_LATER && own.begin < own.end) {
                skip_tiles<true, false>(c, tile.end - own.end);
            } else {
                skip_tiles<true, true>(c, tile.end - own.end);
            }
        }
        if (own.begin < own.end) {
            const unsigned q =
                c.at.q + (unsigned)(c.q.stage * Q_BYTES + c.group * ROWS * SWIZZLE_ROW);
            attend(c, a, w, rows, own.begin, own.end, tile.end - own.end, careful, q, o, state);
        } else {
            settle(c);
        }
        if (FULL) {
            skip_tiles<true, true>(c, own.begin - tile.begin);
        }
        finish(c, t, w, rows, careful, o, state);
    }
}

/* ---- the block ------------------------------------------------------------------------------- */

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    ATTN_ENTRY(const __grid_constant__ struct attn_tma_args t) {
    extern __shared__ unsigned char dynamic[];
    __shared__ __align__(8) unsigned long long barriers[2 * Q_STAGES + 4 * ATTN_STAGES + FULL];
    __shared__ __align__(16) struct notes notes;
    const int group = __shfl_sync(~0U, (int)threadIdx.x / GROUP, 0);
    launch_next();
    struct places at;
    at.q = (shared_address(dynamic) + SWIZZLE_ROWS - 1) & ~(unsigned)(SWIZZLE_ROWS - 1);
    at.k = at.q + Q_STAGES * Q_BYTES;
    at.v = at.k + ATTN_STAGES * K_BYTES;
    struct barriers b;
    b.q_full = shared_address(barriers);
    b.q_empty = b.q_full + Q_STAGES * BARRIER;
    b.k_full = b.q_empty + Q_STAGES * BARRIER;
    b.k_empty = b.k_full + ATTN_STAGES * BARRIER;
    b.v_full = b.k_empty + ATTN_STAGES * BARRIER;
    b.v_empty = b.v_full + ATTN_STAGES * BARRIER;
    b.landed = b.v_empty + ATTN_STAGES * BARRIER;
    if (threadIdx.x == 0) {
        if (FULL) {
            barrier_init(b.landed, 1);
        }
        for (unsigned i = 0; i < Q_STAGES; i++) {
            barrier_init(b.q_full + i * BARRIER, 1);
            barrier_init(b.q_empty + i * BARRIER, 4 * CONSUMERS);
        }
        for (int i = 0; i < 2 * Q_STAGES; i++) {
            notes.note[i].again = 0;
        }
        notes.again = -1;
        notes.came_again = 0;
        notes.asked = 0;
        for (unsigned i = 0; i < ATTN_STAGES; i++) {
            barrier_init(b.k_full + i * BARRIER, 1);
            barrier_init(b.k_empty + i * BARRIER, CONSUMERS);
            barrier_init(b.v_full + i * BARRIER, 1);
            barrier_init(b.v_empty + i * BARRIER, CONSUMERS);
        }
        barriers_publish();
    }
    __syncthreads();
    if (group == CONSUMERS) {
        give_up_registers<PRODUCER_REGISTERS>();
        if (threadIdx.x < CONSUMERS * GROUP + PRODUCERS) {
            produce(t, at, b, &notes);
        }
    } else {
        take_registers<CONSUMER_REGISTERS>();
        struct consumer c = {b,
                             at,
                             &notes,
                             group,
                             (int)threadIdx.x % GROUP / LANES,
                             (int)threadIdx.x % LANES,
                             threadIdx.x % GROUP == 0,
                             {0, 0},
                             {0, 0},
                             {0, 0},
                             -1};
        consume(t, c);
    }
}
