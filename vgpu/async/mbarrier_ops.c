/* SPDX-License-Identifier: Apache-2.0
 *
 * mbarrier_ops.c - the mbarrier instructions. try_wait blocks until its phase completes (as
 * hardware may), so that deadlocks are detected; under random completion it sometimes returns
 * false.
 *
 * Invariant: to the race detector mbarrier.init and inval write the 8 bytes of the object and every
 * other use reads them: uses do not conflict with each other, but a use that is not ordered after
 * init does.
 */
#include "async/mbarrier.h"

#include <string.h>

#include "memory/memory.h"
#include "race/clock.h"
#include "report/finding.h"

enum { TESTS_IN_A_ROW = 32 }; /* failed test_waits after which a pending operation may complete */

struct form {
    struct async_address address;
    int space;
    uint32_t count; /* row of the operand: arrivals or bytes; 0: none, 1 arrival */
    uint32_t token; /* row: state or parity */
    bool expects;   /* .expect_tx: the operand is bytes */
    bool drop, no_complete, relaxed, parity;
};

/* One lane's object; NULL: reported. */
static struct mbarrier *object_of(struct warp *warp, const struct op *op,
                                  const struct access *access, uint32_t lane) {
    struct cta *cta = NULL;
    uint32_t offset = 0;
    if ((access->good >> lane & 1) == 0 ||
        !async_resolve(warp, op, 1U << lane, access->space, access->address[lane], &cta, &offset)) {
        return NULL;
    }
    return mbarrier_use(warp, op, 1U << lane, cta, offset);
}

static void touch(struct warp *warp, const struct op *op, uint32_t mask, enum access_kind kind,
                  struct access *access) {
    const struct form *form = op->extra;
    *access = (struct access){.space = form->space,
                              .kind = kind,
                              .proxy = PROXY_GENERIC,
                              .element = 8,
                              .count = 1,
                              .mask = mask};
    for (uint32_t lane = 0; lane < LANES; lane++) {
        access->address[lane] = async_lane_address(warp, &form->address, lane);
    }
    async_check_poison(warp, op, form->address.row, mask, "the address of the mbarrier");
    memory_access(warp, op, access);
}

static uint32_t operand_of(struct warp *warp, const struct form *form, uint32_t lane) {
    return form->count == 0 ? 1 : row32(warp, form->count)[lane];
}

/* ---- init, inval ----------------------------------------------------------------------------- */

static void run_init(struct warp *warp, const struct op *op, uint32_t mask) {
    const struct form *form = op->extra;
    struct access access;
    touch(warp, op, mask, ACCESS_WRITE, &access);
    FOR_LANES(lane, access.good) {
        struct cta *cta = NULL;
        uint32_t offset = 0;
        if (!async_resolve(warp, op, 1U << lane, form->space, access.address[lane], &cta,
                           &offset)) {
            continue;
        }
        struct mbarrier *barrier = mbarrier_make(cta, offset);
        if (!barrier) {
            report(warp, op, FINDING_MEMORY_LIMIT, 1U << lane, NULL, "no memory for an mbarrier");
            cluster_stop(cta->cluster);
            return;
        }
        if (barrier->live && mbarrier_image_intact(cta, offset)) {
            mbarrier_misuse(warp, op, 1U << lane, barrier,
                            "initialised again without mbarrier.inval; arrivals pending",
                            barrier->pending);
        }
        const uint32_t count = operand_of(warp, form, lane);
        if (count == 0 || count > MBARRIER_COUNT_MAX) {
            mbarrier_misuse(warp, op, 1U << lane, barrier, "its count must be 1 to 2^20 - 1",
                            count);
        }
        *barrier = (struct mbarrier){.address = offset,
                                     .live = true,
                                     .expected = count,
                                     .pending = count,
                                     .arriving = barrier->arriving,
                                     .completed = barrier->completed,
                                     .warp = warp,
                                     .op = op};
        clock_clear(barrier->arriving);
        clock_clear(barrier->completed);
        mbarrier_write_image(cta, offset);
    }
}

static void run_inval(struct warp *warp, const struct op *op, uint32_t mask) {
    struct access access;
    touch(warp, op, mask, ACCESS_WRITE, &access);
    FOR_LANES(lane, access.good) {
        struct mbarrier *barrier = object_of(warp, op, &access, lane);
        if (barrier) {
            if (barrier->tx != 0) {
                mbarrier_misuse(warp, op, 1U << lane, barrier,
                                "invalidated while bytes are pending", barrier->tx);
            }
            barrier->live = false;
        }
    }
}

/* ---- arrivals and bytes ---------------------------------------------------------------------- */

static void expect(struct warp *warp, const struct op *op, uint32_t lane, struct mbarrier *barrier,
                   uint32_t bytes) {
    barrier->warp = warp;
    barrier->op = op;
    mbarrier_change_tx(warp, op, 1U << lane, barrier, bytes);
}

static void arrive_lane(struct warp *warp, const struct op *op, uint32_t lane,
                        struct mbarrier *barrier) {
    const struct form *form = op->extra;
    const uint32_t operand = operand_of(warp, form, lane);
    const uint32_t count = form->expects ? 1 : operand;
    if (form->expects) {
        expect(warp, op, lane, barrier, operand);
    }
    if (count == 0 || count > MBARRIER_COUNT_MAX) {
        mbarrier_misuse(warp, op, 1U << lane, barrier, "arrivals must be 1 to 2^20 - 1", count);
        return;
    }
    if (form->no_complete && count >= barrier->pending) {
        mbarrier_misuse(warp, op, 1U << lane, barrier,
                        "an arrival with .noComplete completes the phase; arrivals", count);
    }
    mbarrier_arrive(warp, op, 1U << lane, barrier, count, form->drop);
}

static void run_arrive(struct warp *warp, const struct op *op, uint32_t mask) {
    const struct form *form = op->extra;
    struct access access;
    touch(warp, op, mask, ACCESS_READ, &access);
    if (form->count != 0) {
        async_check_poison(warp, op, form->count, mask, "the count of the mbarrier operation");
    }
    struct mbarrier *objects[LANES];
    const struct mbarrier *released = NULL;
    FOR_LANES(lane, access.good) {
        objects[lane] = object_of(warp, op, &access, lane);
        /* all lanes release before any of them completes the phase */
        if (objects[lane] && objects[lane] != released) {
            (form->relaxed ? clock_release_fenced : clock_release)(objects[lane]->arriving, warp);
            released = objects[lane];
        }
    }
    uint64_t *const tokens = row64(warp, op->d);
    FOR_LANES(lane, access.good) {
        if (objects[lane]) {
            tokens[lane] = mbarrier_token(objects[lane]);
            arrive_lane(warp, op, lane, objects[lane]);
        }
    }
    set_poison(warp, op->d, mask, 0);
}

static void run_expect_tx(struct warp *warp, const struct op *op, uint32_t mask) {
    struct access access;
    touch(warp, op, mask, ACCESS_READ, &access);
    FOR_LANES(lane, access.good) {
        struct mbarrier *barrier = object_of(warp, op, &access, lane);
        if (barrier) {
            expect(warp, op, lane, barrier, operand_of(warp, op->extra, lane));
        }
    }
}

static void run_complete_tx(struct warp *warp, const struct op *op, uint32_t mask) {
    struct access access;
    touch(warp, op, mask, ACCESS_READ, &access);
    FOR_LANES(lane, access.good) {
        struct mbarrier *barrier = object_of(warp, op, &access, lane);
        if (barrier) {
            mbarrier_change_tx(warp, op, 1U << lane, barrier,
                               -(int64_t)operand_of(warp, op->extra, lane));
            mbarrier_settle(warp->cta->cluster, barrier);
        }
    }
}

/* ---- waits ----------------------------------------------------------------------------------- */

/* Whether the phase that the lane tests is complete. */
static bool complete_for(struct warp *warp, const struct op *op, uint32_t lane,
                         struct mbarrier *barrier) {
    const struct form *form = op->extra;
    if (form->parity) {
        const uint32_t parity = row32(warp, form->token)[lane];
        if (parity > 1) {
            mbarrier_misuse(warp, op, 1U << lane, barrier, "a parity is 0 or 1", parity);
        }
        return (barrier->phase & 1) != (parity & 1);
    }
    const uint64_t tested = row64(warp, form->token)[lane] >> 20;
    if (tested > barrier->phase || tested + 1 < barrier->phase) {
        mbarrier_misuse(warp, op, 1U << lane, barrier,
                        "a wait for a phase that is neither this one nor the one before",
                        (int64_t)tested);
    }
    return tested != barrier->phase;
}

static void acquire(struct warp *warp, const struct form *form, struct mbarrier *barrier) {
    barrier->unseen = 0;
    if (!form->relaxed) {
        clock_acquire(warp, barrier->completed);
    }
}

/* Lanes whose phase is complete (or whose object is not there: they must not wait for ever);
 * *missing: an object of the others. */
static uint32_t test(struct warp *warp, const struct op *op, uint32_t mask,
                     struct mbarrier **missing) {
    const struct form *form = op->extra;
    struct access access;
    uint32_t complete = mask;
    const struct mbarrier *acquired = NULL;
    touch(warp, op, mask, ACCESS_READ, &access);
    async_check_poison(warp, op, form->token, mask, form->parity ? "the parity" : "the state");
    FOR_LANES(lane, access.good) {
        struct mbarrier *barrier = object_of(warp, op, &access, lane);
        if (!barrier) {
            continue;
        }
        if (!complete_for(warp, op, lane, barrier)) {
            complete &= ~(1U << lane);
            *missing = barrier;
        } else if (barrier != acquired) {
            acquire(warp, form, barrier);
            acquired = barrier;
        }
    }
    return complete;
}

static void run_test_wait(struct warp *warp, const struct op *op, uint32_t mask) {
    struct mbarrier *missing = NULL;
    const uint32_t complete = test(warp, op, mask, &missing);
    struct cta_async *state = warp->cta->async;
    predicate_write(warp, op->d, mask, complete, 0);
    if (!missing) {
        state->failed_tests = 0;
    } else if (++state->failed_tests >= TESTS_IN_A_ROW) {
        state->failed_tests = 0; /* a loop around test_wait must not keep copies from landing */
        async_complete_one(warp->cta->cluster);
    }
}

static void run_try_wait(struct warp *warp, const struct op *op, uint32_t mask) {
    struct mbarrier *missing = NULL;
    const uint32_t complete = test(warp, op, mask, &missing);
    /* Hardware may give up: code that does not look at the result must be seen to be wrong. */
    struct cluster *cluster = warp->cta->cluster;
    const bool gives_up =
        cluster->launch->async == VGPU_ASYNC_RANDOM && cluster_random(cluster) % 4 == 0;
    if (missing == NULL || complete != 0 || gives_up) {
        predicate_write(warp, op->d, mask, complete, 0); /* lanes without success try again */
        return;
    }
    missing->watched = true;
    mbarrier_describe(missing);
    warp->next = (uint32_t)(op - warp->kernel->code);
    warp_block(warp, true, missing->waits);
}

static void run_pending_count(struct warp *warp, const struct op *op, uint32_t mask) {
    const struct form *form = op->extra;
    FOR_LANES(lane, mask) {
        row32(warp, op->d)[lane] = (uint32_t)(row64(warp, form->token)[lane] & MBARRIER_COUNT_MAX);
    }
    set_poison(warp, op->d, mask, poison_of(warp, form->token));
}

/* ---- decoding -------------------------------------------------------------------------------- */

static bool decode_head(struct decoder *decoder, const struct ptx_instruction *in,
                        const struct ptx_operand *address, struct form *form) {
    form->space = ptx_has(in, "shared::cluster")                        ? SPACE_SHARED_CLUSTER
                  : ptx_has(in, "shared") || ptx_has(in, "shared::cta") ? (int)PTX_SHARED
                                                                        : SPACE_GENERIC;
    form->relaxed = ptx_has(in, "relaxed");
    return async_decode_address(decoder, address, &form->address);
}

static bool decode_set_up(struct decoder *decoder, const struct ptx_instruction *in, struct op *op,
                          struct form *form) {
    static const char NAMES[] = "shared shared::cta b64";
    const bool init = strcmp(in->modifiers[0], "init") == 0;
    if (in->operand_count != (init ? 2U : 1U)) {
        return decode_fail(decoder, "mbarrier.%s takes %d operands", in->modifiers[0],
                           init ? 2 : 1);
    }
    op->run = init ? run_init : run_inval;
    return decode_modifiers(decoder, in, 1, NAMES) &&
           decode_head(decoder, in, &in->operands[0], form) &&
           (!init || (form->count = decode_source(decoder, &in->operands[1], PTX_U32)) != 0);
}

static bool decode_bytes(struct decoder *decoder, const struct ptx_instruction *in, struct op *op,
                         struct form *form) {
    static const char NAMES[] = "relaxed cta cluster shared b64 shared::cta shared::cluster";
    op->run = strcmp(in->modifiers[0], "expect_tx") == 0 ? run_expect_tx : run_complete_tx;
    if (in->operand_count != 2) {
        return decode_fail(decoder, "mbarrier.%s takes 2 operands", in->modifiers[0]);
    }
    return decode_modifiers(decoder, in, 1, NAMES) &&
           decode_head(decoder, in, &in->operands[0], form) &&
           (form->count = decode_source(decoder, &in->operands[1], PTX_U32)) != 0;
}

static bool decode_arrive(struct decoder *decoder, const struct ptx_instruction *in, struct op *op,
                          struct form *form) {
    static const char NAMES[] =
        "expect_tx noComplete release relaxed cta cluster shared shared::cta b64 "
        "shared::cluster";
    form->drop = strcmp(in->modifiers[0], "arrive_drop") == 0;
    form->expects = ptx_has(in, "expect_tx");
    form->no_complete = ptx_has(in, "noComplete");
    const bool counted = form->expects || form->no_complete;
    if (in->operand_count < 2 || in->operand_count > 3 || (counted && in->operand_count != 3)) {
        return decode_fail(decoder, "this mbarrier.%s takes %s operands", in->modifiers[0],
                           counted ? "3" : "2 or 3");
    }
    if (ptx_has(in, "shared::cluster") && in->operands[0].kind != PTX_OPERAND_SINK) {
        return decode_fail(decoder,
                           "an arrival in shared::cluster gives no state: the result is _");
    }
    op->run = run_arrive;
    op->d = decode_result(decoder, &in->operands[0], PTX_B64);
    return op->d != 0 && decode_modifiers(decoder, in, 1, NAMES) &&
           decode_head(decoder, in, &in->operands[1], form) &&
           (in->operand_count == 2 ||
            (form->count = decode_source(decoder, &in->operands[2], PTX_U32)) != 0);
}

static bool decode_wait(struct decoder *decoder, const struct ptx_instruction *in, struct op *op,
                        struct form *form) {
    static const char NAMES[] = "parity acquire relaxed cta cluster shared shared::cta b64";
    const bool tries = strcmp(in->modifiers[0], "try_wait") == 0;
    if (in->operand_count != 3 && !(tries && in->operand_count == 4)) {
        return decode_fail(decoder, "mbarrier.%s takes %s operands", in->modifiers[0],
                           tries ? "3 or 4" : "3");
    }
    form->parity = ptx_has(in, "parity");
    op->run = tries ? run_try_wait : run_test_wait;
    op->flags |= tries ? OP_CONTROL : 0;
    op->d = decode_predicate(decoder, &in->operands[0]);
    form->token = decode_source(decoder, &in->operands[2], form->parity ? PTX_U32 : PTX_B64);
    return op->d != 0 && form->token != 0 && decode_modifiers(decoder, in, 1, NAMES) &&
           decode_head(decoder, in, &in->operands[1], form) &&
           (in->operand_count == 3 || decode_source(decoder, &in->operands[3], PTX_U32) != 0);
}

static bool decode_pending_count(struct decoder *decoder, const struct ptx_instruction *in,
                                 struct op *op, struct form *form) {
    static const char NAMES[] = "b64";
    if (in->operand_count != 2) {
        return decode_fail(decoder, "mbarrier.pending_count takes 2 operands");
    }
    op->run = run_pending_count;
    op->d = decode_result(decoder, &in->operands[0], PTX_U32);
    form->token = decode_source(decoder, &in->operands[1], PTX_B64);
    return op->d != 0 && form->token != 0 && decode_modifiers(decoder, in, 1, NAMES);
}

bool decode_mbarrier(struct decoder *decoder, const struct ptx_instruction *in, struct op *op) {
    static const struct {
        const char *name;
        bool (*decode)(struct decoder *, const struct ptx_instruction *, struct op *,
                       struct form *);
    } KINDS[] = {{"init", decode_set_up},
                 {"inval", decode_set_up},
                 {"expect_tx", decode_bytes},
                 {"complete_tx", decode_bytes},
                 {"arrive", decode_arrive},
                 {"arrive_drop", decode_arrive},
                 {"test_wait", decode_wait},
                 {"try_wait", decode_wait},
                 {"pending_count", decode_pending_count}};
    if (in->modifier_count == 0 || !ptx_has(in, "b64")) {
        return decode_fail(decoder, "mbarrier needs an operation and .b64");
    }
    for (size_t i = 0; i < sizeof KINDS / sizeof KINDS[0]; i++) {
        if (strcmp(in->modifiers[0], KINDS[i].name) == 0) {
            struct form *form = decode_alloc(decoder, sizeof *form);
            op->extra = form;
            op->flags |= OP_OWN_POISON;
            return form && KINDS[i].decode(decoder, in, op, form);
        }
    }
    return decode_fail(decoder, "unknown operation mbarrier.%s", in->modifiers[0]);
}
