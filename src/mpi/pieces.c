/* SPDX-License-Identifier: Apache-2.0
 *
 * pieces.c - which rows of a rank see which keys of another, as calls of libattn.
 *
 * A chunk of ring is one range of positions, one of zigzag is two. Rows and keys of one range each
 * are a piece: their masks, windows and ALiBi depend on the distance of the two ranges alone, which
 * q_offset and kv_offset carry. Zigzag without window and ALiBi needs fewer, larger calls: one
 * causal call for a rank's own keys; for keys of another rank one call without a mask, over half of
 * the rows or half of the keys.
 *
 * Invariant: every row and every key of a rank is in exactly one of its pieces that begin (the
 * first ones with its own keys, also where they see nothing). A piece that begins no sum and sees
 * nothing is left out.
 */
#include "mpi/ring.h"

/* Positions from `start`. */
struct range {
    int64_t start, count;
};

static struct range range_of(const attn_mpi_plan *plan, int rank, int64_t rows, enum half half) {
    const attn_mpi_method method = plan->ranks > 1 ? plan->method : ATTN_MPI_RING;
    const int64_t first = half == SECOND ? rows / 2 : 0;
    return (struct range){attn_mpi_position(method, rank, plan->ranks, rows, first),
                          half == ALL ? rows : rows / 2};
}

/* Of the whole sequence, as attn.h has it. */
static int64_t diagonal_of(const attn_mpi_plan *plan) {
    return plan->p.causal == ATTN_CAUSAL_NONE ? plan->ranks * (plan->p.seq_kv - plan->p.seq_q) : 0;
}

/* Whether masks hide all of a piece, and whether they hide some of it: key j is visible to row i
 * iff i + off - j is from `least` to `most`, and takes all values from `low` to `high` in it. */
static void look(const attn_mpi_plan *plan, struct range rows, struct range keys, bool *seen,
                 bool *whole) {
    const attn_problem *p = &plan->p;
    const int64_t off = diagonal_of(plan);
    const int64_t low = rows.start + off - (keys.start + keys.count - 1);
    const int64_t high = rows.start + rows.count - 1 + off - keys.start;
    const int64_t most = p->window_left >= 0 ? p->window_left : INT64_MAX;
    int64_t least = p->window_right >= 0 ? -p->window_right : INT64_MIN;
    least = p->causal != ATTN_CAUSAL_NONE && least < 0 ? 0 : least;
    *seen = high >= least && low <= most;
    *whole = low >= least && high <= most;
}

static bool by_distance(const attn_mpi_plan *plan) {
    return plan->p.alibi || plan->p.window_left >= 0 || plan->p.window_right >= 0;
}

static struct piece piece_of(const attn_mpi_plan *plan, int rank, int source, enum half q,
                             enum half kv) {
    const struct range rows = range_of(plan, rank, plan->p.seq_q, q);
    const struct range keys = range_of(plan, source, plan->p.seq_kv, kv);
    struct piece piece = {.q = q, .kv = kv, .begins = source == rank && q == kv};
    bool whole;
    look(plan, rows, keys, &piece.seen, &whole);
    piece.causal = !whole && plan->p.causal != ATTN_CAUSAL_NONE;
    piece.window = !whole && (plan->p.window_left >= 0 || plan->p.window_right >= 0);
    if (piece.causal || piece.window || plan->p.alibi) {
        const int64_t own = plan->p.causal == ATTN_CAUSAL_NONE ? keys.count - rows.count : 0;
        piece.distance = rows.start + diagonal_of(plan) - own - keys.start;
    }
    return piece;
}

/* Zigzag without window and ALiBi: what is seen is a rectangle of halves, or the own triangle. */
static int fewer_pieces(const attn_mpi_plan *plan, int rank, int source, struct piece pieces[]) {
    const bool causal = plan->p.causal != ATTN_CAUSAL_NONE;
    pieces[0] = (struct piece){.q = causal && source > rank ? SECOND : ALL,
                               .kv = causal && source < rank ? FIRST : ALL,
                               .causal = causal && source == rank,
                               .begins = source == rank,
                               .seen = true};
    return 1;
}

int pieces_of(const attn_mpi_plan *plan, int rank, int source, struct piece pieces[PIECES_MOST]) {
    static const enum half HALVES[][2] = {
        {FIRST, FIRST}, {SECOND, SECOND}, {SECOND, FIRST}, {FIRST, SECOND}};
    const bool halves = plan->method == ATTN_MPI_ZIGZAG && plan->ranks > 1;
    int count = 0;
    if (halves && !by_distance(plan)) {
        return fewer_pieces(plan, rank, source, pieces);
    }
    for (int i = 0; i < (halves ? PIECES_MOST : 1); i++) {
        pieces[count] =
            piece_of(plan, rank, source, halves ? HALVES[i][0] : ALL, halves ? HALVES[i][1] : ALL);
        count += pieces[count].seen || pieces[count].begins;
    }
    return count;
}

/* Of a window only the nearest chunks travel. */
int steps_of(const attn_mpi_plan *plan) {
    int steps = 1;
    struct piece ignored[PIECES_MOST];
    for (int rank = 0; rank < plan->ranks; rank++) {
        for (int step = plan->ranks - 1; step >= steps; step--) {
            const int source = (rank + plan->ranks - step) % plan->ranks;
            if (pieces_of(plan, rank, source, ignored) > 0) {
                steps = step + 1;
            }
        }
    }
    return steps;
}

/* What is left of the promised alignment at an offset in bytes. */
int32_t alignment_at(int32_t alignment, size_t offset) {
    while (offset % (size_t)alignment != 0) {
        alignment /= 2;
    }
    return alignment;
}

size_t before_half(const attn_mpi_plan *plan, const struct sum *shape, enum half half) {
    return half == SECOND ? shape->rows_before * attn_dtype_size(plan->p.dtype) : 0;
}

attn_status make_attend(attn_context *context, attn_mpi_plan *plan, struct piece *piece,
                        attn_error *error) {
    attn_problem p = plan->p;
    attn_plan_options options;
    attn_plan_options_init(&options);
    options.direction = plan->direction;
    const bool top_left = piece->causal || (p.alibi && p.causal != ATTN_CAUSAL_NONE);
    p.causal = top_left ? ATTN_CAUSAL_TOP_LEFT : ATTN_CAUSAL_NONE;
    p.q_offset = piece->distance;
    p.window_left = piece->window ? p.window_left : -1;
    p.window_right = piece->window ? p.window_right : -1;
    p.sink = p.sink && piece->begins;
    p.seq_q /= piece->q != ALL ? 2 : 1;
    p.seq_kv /= piece->kv != ALL ? 2 : 1;
    const struct sum *const shapes[] = {&plan->dq, &plan->o, &plan->dk, &plan->dv};
    for (int i = 0; i < 4; i++) {
        const enum half half = i < 2 ? piece->q : piece->kv;
        p.alignment = alignment_at(p.alignment, before_half(plan, shapes[i], half));
    }
    const attn_status status = attn_plan_create(context, &p, &options, &piece->plan, error);
    const size_t needed = status == ATTN_OK ? attn_workspace_size(piece->plan) : 0;
    if (needed > plan->attend_workspace) {
        plan->attend_workspace = needed;
    }
    return status;
}
