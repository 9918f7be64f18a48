/* SPDX-License-Identifier: Apache-2.0
 *
 * wgmma_registers.c - registers held by MMAs in flight: from issue to wait_group a warp must not
 * access its accumulators nor write its A registers. While any MMA is in flight (warp->wgmma_busy)
 * exec calls wgmma_touch before each op.
 *
 * Invariant: a register is held by the latest MMA issued with it, until the warp has waited for
 * that one.
 */
#include "async/wgmma.h"

#include <string.h>

#include "async/async.h"
#include "report/finding.h"

/* The warp's part of an MMA that it has not waited for. */
static const struct part *part_numbered(const struct warp *warp, uint32_t number) {
    const struct warp_wgmma *state = warp->wgmma;
    const struct mma *mma = wgmma_product(state->group, number);
    return mma != NULL ? &mma->parts[warp->index % GROUP_WARPS] : NULL;
}

static void report_flight(struct warp *warp, const struct op *op, uint32_t mask, uint32_t reg,
                          uint32_t number, const char *what) {
    const struct part *part = part_numbered(warp, number);
    const struct finding_detail detail = {
        .space = -1, .other = part != NULL ? part->op : NULL, .other_warp = warp};
    report(warp, op, FINDING_REGISTER_IN_FLIGHT, mask, &detail,
           "%s %s before wgmma.wait_group has retired the MMA", what,
           warp->kernel->function->registers[reg].name);
}

static void touch_register(struct warp *warp, const struct op *op, uint32_t mask, uint32_t reg,
                           bool written) {
    const struct warp_wgmma *state = warp->wgmma;
    if (state->accumulators[reg] > state->waited) {
        report_flight(warp, op, mask, reg, state->accumulators[reg],
                      written ? "writes the accumulator" : "touches the accumulator");
    } else if (written && state->sources[reg] > state->waited) {
        report_flight(warp, op, mask, reg, state->sources[reg], "overwrites the operand A in");
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

/* An MMA may follow one that accumulates into the same registers in the same shape. */
void wgmma_check_registers(struct warp *warp, const struct op *op, uint32_t mask) {
    const struct warp_wgmma *state = warp->wgmma;
    const struct wgmma_form *form = op->extra;
    const struct ptx_operand *d = &op->in->operands[0], *a = &op->in->operands[1];
    const uint32_t number = state->accumulators[d->parts[0].reg];
    const struct part *before = number > state->waited ? part_numbered(warp, number) : NULL;
    for (uint32_t i = 0; i < d->part_count; i++) {
        const uint32_t reg = d->parts[i].reg;
        const uint32_t other = state->accumulators[reg];
        const struct wgmma_form *shape = before != NULL ? before->op->extra : NULL;
        if (other > state->waited &&
            (other != number || shape == NULL || shape->mma.n != form->mma.n ||
             shape->mma.d_type != form->mma.d_type ||
             before->op->in->operands[0].parts[i].reg != reg)) {
            report_flight(warp, op, mask, reg, other,
                          "wgmma of another shape or order uses the accumulator");
            break;
        }
        if (state->sources[reg] > state->waited) {
            report_flight(warp, op, mask, reg, state->sources[reg],
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

void wgmma_mark_registers(struct warp_wgmma *state, const struct op *op, uint32_t number) {
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
