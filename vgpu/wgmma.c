/* SPDX-License-Identifier: Apache-2.0
 *
 * wgmma.c - wgmma: products of a warpgroup that complete later, and the registers they hold.
 *
 * Each warp computes the 16 rows of D that are its own (matrix.h), from A in registers or both
 * operands in shared memory (wgmma_operand.c). Operands in shared memory are checked when the
 * instruction is issued, as reads of an agent that lives until wait_group; the product reads memory
 * and registers when it completes, whenever the launch's policy says, in the order of issue. From
 * issue to wait_group its accumulators must not be touched and its A registers not be written:
 * while anything is in flight (warp->wgmma_busy) exec calls wgmma_touch before each op.
 *
 * Invariant: products of a warp complete in the order in which it issued them; every one of them
 * has completed or was dropped when the warp ends.
 */
#include "wgmma.h"

#include <stdlib.h>
#include <string.h>

enum { RECENT = 64 };

/* One product of a warp. */
struct product {
    struct product *next;
    const struct op *op;
    struct pending *pending;
    struct agent *agent;
    uint32_t number; /* from 1 */
    uint32_t group;  /* 0: not committed */
    uint32_t mask;
    bool done, broken, accumulate, all_tainted;
    unsigned char *rows; /* of the function that issued it */
    uint32_t *poison;
    struct wgmma_operand a, b;
    uint8_t a_taint[256 / 8], b_taint[256 / 8];
};

struct issued {
    const struct op *op;
    uint64_t a, b;
};

/* warp->wgmma */
struct warp_wgmma {
    struct product *first, *last; /* not waited for */
    uint32_t issued, waited;      /* numbers of products */
    uint32_t groups;              /* committed */
    const struct ptx_function *function;
    uint32_t *accumulators; /* by register: the latest product that writes it */
    uint32_t *sources;      /* by register: the latest product that reads it as A */
    struct issued recent[RECENT];
};

static struct warp_wgmma *wgmma_of(struct warp *warp) {
    const struct ptx_function *function = warp->kernel->function;
    struct warp_wgmma *state = warp->wgmma;
    if (state != NULL) {
        return state;
    }
    state = calloc(1, sizeof *state);
    if (state == NULL) {
        return NULL;
    }
    state->function = function;
    state->accumulators = calloc(2 * (size_t)function->register_count, sizeof(uint32_t));
    if (state->accumulators == NULL) {
        free(state);
        return NULL;
    }
    state->sources = state->accumulators + function->register_count;
    warp->wgmma = state;
    return state;
}

/* ---- registers in flight --------------------------------------------------------------------- */

static void report_flight(struct warp *warp, const struct op *op, uint32_t mask, uint32_t reg,
                          const struct product *product, const char *what) {
    const struct finding_detail detail = {
        .space = -1, .other = product != NULL ? product->op : NULL, .other_warp = warp};
    report(warp, op, FINDING_REGISTER_IN_FLIGHT, mask, &detail,
           "%s %s before wgmma.wait_group has retired the product", what,
           warp->kernel->function->registers[reg].name);
}

static const struct product *product_numbered(const struct warp_wgmma *state, uint32_t number) {
    const struct product *product = state->first;
    while (product != NULL && product->number != number) {
        product = product->next;
    }
    return product;
}

static void touch_register(struct warp *warp, const struct op *op, uint32_t mask, uint32_t reg,
                           bool written) {
    const struct warp_wgmma *state = warp->wgmma;
    if (state->accumulators[reg] > state->waited) {
        report_flight(warp, op, mask, reg, product_numbered(state, state->accumulators[reg]),
                      written ? "writes the accumulator" : "touches the accumulator");
    } else if (written && state->sources[reg] > state->waited) {
        report_flight(warp, op, mask, reg, product_numbered(state, state->sources[reg]),
                      "overwrites the operand A in");
    }
}

static void touch_operand(struct warp *warp, const struct op *op, uint32_t mask,
                          const struct ptx_operand *operand, bool written) {
    if (operand->kind == PTX_OPERAND_REGISTER) {
        touch_register(warp, op, mask, operand->reg, written);
        return;
    }
    for (uint32_t i = 0; i < operand->part_count; i++) {
        const struct ptx_operand *part = &operand->parts[i];
        if (part->kind == PTX_OPERAND_REGISTER) {
            touch_register(warp, op, mask, part->reg,
                           written && operand->kind != PTX_OPERAND_ADDRESS);
        }
    }
}

void wgmma_touch(struct warp *warp, const struct op *op, uint32_t mask) {
    const struct warp_wgmma *state = warp->wgmma;
    const struct ptx_instruction *in = op->in;
    if (state->function != warp->kernel->function || strcmp(in->opcode, "wgmma") == 0) {
        return; /* wgmma looks at its registers itself */
    }
    for (uint32_t i = 0; i < in->operand_count; i++) {
        touch_operand(warp, op, mask, &in->operands[i], i == 0 && wgmma_has_result(in));
    }
}

/* A product may follow one that accumulates into the same registers in the same shape. */
static void check_own_registers(struct warp *warp, const struct op *op, uint32_t mask) {
    const struct warp_wgmma *state = warp->wgmma;
    const struct wgmma_form *form = op->extra;
    const struct ptx_operand *d = &op->in->operands[0], *a = &op->in->operands[1];
    const uint32_t number = state->accumulators[d->parts[0].reg];
    const struct product *before = number > state->waited ? product_numbered(state, number) : NULL;
    for (uint32_t i = 0; i < d->part_count; i++) {
        const uint32_t reg = d->parts[i].reg;
        const uint32_t other = state->accumulators[reg];
        const struct wgmma_form *shape = before != NULL ? before->op->extra : NULL;
        if (other > state->waited && (other != number || shape->product.n != form->product.n ||
                                      shape->product.d_type != form->product.d_type ||
                                      before->op->in->operands[0].parts[i].reg != reg)) {
            report_flight(warp, op, mask, reg, product_numbered(state, other),
                          "wgmma of another shape or order uses the accumulator");
            break;
        }
        if (state->sources[reg] > state->waited) {
            report_flight(warp, op, mask, reg, product_numbered(state, state->sources[reg]),
                          "wgmma overwrites the operand A in");
            break;
        }
    }
    for (uint32_t i = 0; !form->a_shared && i < a->part_count; i++) {
        if (a->parts[i].kind == PTX_OPERAND_REGISTER) {
            touch_register(warp, op, mask, a->parts[i].reg, false);
        }
    }
}

static void mark_registers(struct warp_wgmma *state, const struct op *op, uint32_t number) {
    const struct wgmma_form *form = op->extra;
    const struct ptx_operand *d = &op->in->operands[0], *a = &op->in->operands[1];
    for (uint32_t i = 0; i < d->part_count; i++) {
        state->accumulators[d->parts[i].reg] = number;
    }
    for (uint32_t i = 0; !form->a_shared && i < a->part_count; i++) {
        if (a->parts[i].kind == PTX_OPERAND_REGISTER) {
            state->sources[a->parts[i].reg] = number;
        }
    }
}

/* ---- products -------------------------------------------------------------------------------- */

static void add_taint(struct matrix_values *values, const struct product *product) {
    values->row_taint |= (uint32_t)product->a_taint[0] | (uint32_t)product->a_taint[1] << 8;
    for (uint32_t i = 0; i < sizeof product->b_taint; i++) {
        values->column_taint[i] |= product->b_taint[i];
        values->tainted |= product->b_taint[i] != 0;
    }
    if (product->all_tainted) {
        values->row_taint = ALL_LANES;
    }
    values->tainted |= values->row_taint != 0;
}

static void compute(struct warp *warp, struct product *product) {
    const struct wgmma_form *form = product->op->extra;
    struct matrix_values values;
    product->done = true;
    if (product->broken) {
        return;
    }
    if (form->a_shared) {
        matrix_clear_taint(&values);
        wgmma_read_a(warp->cta, &product->a, &values);
    } else {
        matrix_load_a(warp, &form->product, &values);
    }
    for (uint32_t i = 0; form->negative && i < 16 * form->product.k; i++) {
        values.a.f[i] = -values.a.f[i];
    }
    wgmma_read_b(warp->cta, &product->b, &form->product, &values);
    if (product->accumulate) {
        matrix_load_c(warp, &form->product, &values);
    } else {
        matrix_zero_c(&form->product, &values);
    }
    add_taint(&values, product);
    matrix_multiply(&form->product, &values);
    matrix_store_d(warp, &form->product, &values, product->mask);
}

/* In the registers of the function that issued it: the warp may be in one that it called. */
static void compute_at_home(struct warp *warp, struct product *product) {
    unsigned char *rows = warp->rows;
    uint32_t *poison = warp->poison;
    warp->rows = product->rows;
    warp->poison = product->poison;
    compute(warp, product);
    warp->rows = rows;
    warp->poison = poison;
}

/* Of a pending product: it, and before it those that were issued earlier. */
static void complete(struct warp *warp, const struct op *op, void *state) {
    const struct warp_wgmma *wgmma = warp->wgmma;
    (void)op;
    for (struct product *product = wgmma->first; product != NULL; product = product->next) {
        if (!product->done) {
            compute_at_home(warp, product);
        }
        if (product == state) {
            return;
        }
    }
}

/* The warps of a warpgroup must issue the same products one after the other. */
static void compare_with_others(struct warp *warp, const struct op *op, uint32_t mask) {
    const struct warp_wgmma *state = warp->wgmma;
    const struct issued *mine = &state->recent[state->issued % RECENT];
    const uint32_t first = warp->index & ~3U;
    for (uint32_t i = first; i < first + 4 && i < warp->cta->warp_count; i++) {
        const struct warp_wgmma *other = warp->cta->warps[i].wgmma;
        if (i == warp->index || other == NULL || other->issued <= state->issued ||
            other->issued - state->issued >= RECENT) {
            continue;
        }
        const struct issued *its = &other->recent[state->issued % RECENT];
        const struct finding_detail detail = {
            .space = -1, .other = its->op, .other_warp = &warp->cta->warps[i]};
        if (its->op != op) {
            report(warp, op, FINDING_DIVERGENT_WARP_OP, mask, &detail,
                   "warps %u and %u of a warpgroup issue different wgmma instructions", i,
                   warp->index);
        } else if (its->a != mine->a || its->b != mine->b) {
            report(warp, op, FINDING_DESCRIPTOR, mask, &detail,
                   "warps %u and %u of a warpgroup have different descriptors", i, warp->index);
        }
        return;
    }
}

static uint64_t uniform_descriptor(struct warp *warp, const struct op *op, uint32_t mask,
                                   uint32_t row, const char *which) {
    const uint64_t *lanes = row64(warp, row), bits = lanes[__builtin_ctz(mask)];
    uint32_t different = 0;
    for (uint32_t lane = 0; lane < LANES; lane++) {
        different |= (uint32_t)(lanes[lane] != bits) << lane;
    }
    if ((different & mask) != 0) {
        report(warp, op, FINDING_DESCRIPTOR, different & mask, NULL,
               "lanes of the warp have different descriptors of %s", which);
    }
    if ((poison_of(warp, row) & mask) != 0) {
        report(warp, op, FINDING_UNINITIALISED, mask, NULL,
               "the descriptor of %s comes from uninitialised memory", which);
    }
    return bits;
}

static void check_warpgroup(struct warp *warp, const struct op *op, uint32_t mask) {
    matrix_check_lanes(warp, op);
    if ((warp->index | 3U) >= warp->cta->warp_count) {
        report(warp, op, FINDING_DIVERGENT_WARP_OP, mask, NULL,
               "wgmma needs four warps from a multiple of four on; warp %u's group has %u",
               warp->index, warp->cta->warp_count - (warp->index & ~3U));
    }
}

static void check_operands(struct warp *warp, const struct op *op, struct product *product) {
    const struct wgmma_form *form = op->extra;
    bool good = true;
    if (form->a_shared) {
        good = wgmma_check_operand(warp, op, &product->a, "A", product->agent, product->a_taint);
    }
    good =
        wgmma_check_operand(warp, op, &product->b, "B", product->agent, product->b_taint) && good;
    product->broken = !good;
}

void wgmma_run_issue(struct warp *warp, const struct op *op, uint32_t mask) {
    const struct wgmma_form *form = op->extra;
    const uint32_t accumulate = form->accumulate & ~(uint32_t)PREDICATE_NOT;
    struct warp_wgmma *state = wgmma_of(warp);
    struct product *product = calloc(1, sizeof *product);
    if (state == NULL || product == NULL) {
        report(warp, op, FINDING_MEMORY_LIMIT, mask, NULL, "no memory for a wgmma in flight");
        free(product);
        cluster_stop(warp->cta->cluster);
        return;
    }
    check_warpgroup(warp, op, mask);
    if (!form->has_fence) {
        report(warp, op, FINDING_WGMMA_FENCE, mask, NULL,
               "registers of this wgmma were written since the last wgmma.fence (or there was "
               "none)");
    }
    check_own_registers(warp, op, mask);
    struct issued *mine = &state->recent[state->issued % RECENT];
    *mine = (struct issued){op, 0, uniform_descriptor(warp, op, mask, form->b, "B")};
    mine->a = form->a_shared ? uniform_descriptor(warp, op, mask, form->a, "A") : 0;
    compare_with_others(warp, op, mask);
    product->op = op;
    product->mask = mask;
    product->rows = warp->rows;
    product->poison = warp->poison;
    product->number = ++state->issued;
    product->accumulate = predicate_read(warp, form->accumulate) >> __builtin_ctz(mask) & 1U;
    product->all_tainted = (warp->predicate_poison[accumulate] & mask) != 0;
    product->a = (struct wgmma_operand){
        wgmma_unpack(mine->a), form->a_transposed, form->product.a_type, warp->index % 4 * 16, 16,
        form->product.k};
    product->b =
        (struct wgmma_operand){wgmma_unpack(mine->b), form->b_transposed, form->product.b_type, 0,
                               form->product.n,       form->product.k};
    product->agent = agent_start(warp, op);
    check_operands(warp, op, product);
    mark_registers(state, op, product->number);
    *(state->last != NULL ? &state->last->next : &state->first) = product;
    state->last = product;
    warp->wgmma_busy = 1;
    product->pending = async_add(warp, op, complete, product);
}

void wgmma_run_fence(struct warp *warp, const struct op *op, uint32_t mask) {
    check_warpgroup(warp, op, mask);
}

void wgmma_run_commit(struct warp *warp, const struct op *op, uint32_t mask) {
    struct warp_wgmma *state = warp->wgmma;
    check_warpgroup(warp, op, mask);
    if (state == NULL) {
        return;
    }
    state->groups++;
    for (struct product *product = state->first; product != NULL; product = product->next) {
        product->group = product->group == 0 ? state->groups : product->group;
    }
}

static void retire_first(struct warp *warp, struct warp_wgmma *state) {
    struct product *product = state->first;
    async_finish(product->pending);
    agent_finish_for_warp(product->agent, warp);
    async_forget(product->pending);
    state->waited = product->number;
    state->first = product->next;
    if (state->first == NULL) {
        state->last = NULL;
        warp->wgmma_busy = 0;
    }
    free(product);
}

void wgmma_run_wait(struct warp *warp, const struct op *op, uint32_t mask) {
    struct warp_wgmma *state = warp->wgmma;
    check_warpgroup(warp, op, mask);
    while (state != NULL && state->first != NULL && state->first->group != 0 &&
           state->first->group + (uint64_t)op->imm <= state->groups) {
        retire_first(warp, state);
    }
}

void wgmma_end_warp(struct warp *warp) {
    struct warp_wgmma *state = warp->wgmma;
    if (state == NULL) {
        return;
    }
    if (state->first != NULL && !warp->cta->cluster->stop) {
        report(warp, state->first->op, FINDING_ASYNC_UNFINISHED, ALL_LANES, NULL,
               "the warp ended and never waited for this wgmma%s",
               state->first->group == 0 ? ", which it did not even commit" : "");
    }
    for (struct product *product = state->first; product != NULL; product = product->next) {
        product->broken = true; /* the registers are gone */
    }
    while (state->first != NULL) {
        retire_first(warp, state);
    }
    free(state->accumulators);
    free(state);
    warp->wgmma = NULL;
    warp->wgmma_busy = 0;
}
