/* SPDX-License-Identifier: Apache-2.0
 *
 * origin.c - where an uninitialised value was read. Poison is one bit per lane of a register and
 * has no origin. So reads of uninitialised bytes are recorded. When a finding uses such a value,
 * the reads that it may have been computed from are looked up.
 *
 * Invariant: only a recorded read is named: one that read uninitialised bytes in this CTA, and
 * whose result flows into the instruction. If the flow is not visible (through memory, a call), it
 * is the last recorded read of the warp.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "machine/describe.h"
#include "memory/memory.h"

static struct origin *slot_of(const struct cta_memory *memory, const struct op *op) {
    return &memory->origins[(uintptr_t)op / sizeof(*op) % ORIGINS];
}

void origin_note(struct warp *warp, const struct op *op, const struct access *access,
                 uint32_t lanes) {
    struct cta_memory *memory = warp->cta->memory;
    if (memory->origins == NULL) {
        memory->origins = calloc(ORIGINS, sizeof(*memory->origins));
    }
    if (memory->origins == NULL) {
        return;
    }
    *slot_of(memory, op) = (struct origin){.op = op,
                                           .space = access->space,
                                           .address = access->address[__builtin_ctz(lanes)],
                                           .warp = warp->index,
                                           .lanes = lanes,
                                           .when = warp->cta->cluster->steps + warp->instructions,
                                           .part = (access->unwritten & lanes) == 0};
}

static bool computes(const struct ptx_instruction *in) {
    return strcmp(in->opcode, "ld") != 0 && strcmp(in->opcode, "atom") != 0;
}

static bool is_better(const struct origin *a, const struct origin *than, uint32_t lanes) {
    if (than == NULL || ((a->lanes & lanes) != 0) != ((than->lanes & lanes) != 0)) {
        return than == NULL || (a->lanes & lanes) != 0;
    }
    return a->when > than->when;
}

/* Among the reads that flow into the op, or (marks NULL) all. */
static const struct origin *best_origin(const struct warp *warp, const bool *marks,
                                        uint32_t lanes) {
    const struct cta_memory *memory = warp->cta->memory;
    const struct kernel *kernel = warp->kernel;
    const struct origin *best = NULL;
    for (uint32_t i = 0; i < ORIGINS; i++) {
        const struct origin *origin = &memory->origins[i];
        const bool here =
            origin->op >= kernel->code && origin->op < kernel->code + kernel->code_count;
        if (origin->op != NULL && origin->warp == warp->index &&
            (marks == NULL || (here && ptx_writes(origin->op->in, marks))) &&
            is_better(origin, best, lanes)) {
            best = origin;
        }
    }
    return best;
}

static const struct origin *find_origin(const struct warp *warp, const struct op *op,
                                        uint32_t lanes) {
    const struct ptx_function *f = warp->kernel->function;
    if (warp->cta->memory == NULL || warp->cta->memory->origins == NULL) {
        return NULL;
    }
    const struct origin *found = NULL;
    bool *marks = calloc(f->register_count + 1, sizeof(*marks));
    if (marks != NULL) {
        for (uint32_t i = 0; i < op->in->operand_count; i++) {
            ptx_mark(&op->in->operands[i], marks);
        }
        if (op->in->guard >= 0) {
            marks[op->in->guard] = true;
        }
        ptx_trace(f, marks, computes);
        found = best_origin(warp, marks, lanes);
        free(marks);
    }
    return found != NULL ? found : best_origin(warp, NULL, lanes);
}

static bool copies(const struct ptx_instruction *in) {
    return strcmp(in->opcode, "mov") == 0;
}

bool comes_from_part(const struct warp *warp, const struct op *op) {
    const struct kernel *kernel = warp->kernel;
    struct cta_memory *memory = warp->cta->memory;
    bool any = false, all = true;
    for (uint32_t i = 0; memory->origins != NULL && i < ORIGINS; i++) {
        const struct origin *origin = &memory->origins[i];
        if (origin->op != NULL && origin->warp == warp->index) {
            any = any || origin->part;
            all = all && origin->part;
        }
    }
    if (any && all && memory->part == op) { /* in a loop: nothing else was read since */
        return true;
    }
    bool *marks = any ? calloc(kernel->function->register_count + 1, sizeof(*marks)) : NULL;
    if (marks == NULL) {
        return false;
    }
    for (uint32_t i = 1; i < op->in->operand_count; i++) { /* 0: the address */
        ptx_mark(&op->in->operands[i], marks);
    }
    ptx_trace(kernel->function, marks, copies);
    any = false;
    all = true;
    for (uint32_t i = 0; i < ORIGINS; i++) {
        const struct origin *origin = &memory->origins[i];
        if (origin->op >= kernel->code && origin->op < kernel->code + kernel->code_count &&
            origin->warp == warp->index && ptx_writes(origin->op->in, marks)) {
            any = true;
            all = all && origin->part;
        }
    }
    free(marks);
    memory->part = any && all ? op : NULL;
    return any && all;
}

void report_uninitialised(struct warp *warp, const struct op *op, enum finding_kind kind,
                          uint32_t lanes, const struct finding_detail *detail, const char *format,
                          ...) {
    char what[512], place[192], line[128];
    if (report_again(warp, op, kind)) {
        return;
    }
    const struct origin *origin = find_origin(warp, op, lanes);
    struct finding_detail with = detail != NULL ? *detail : (struct finding_detail){.space = -1};
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof(what), format, arguments);
    va_end(arguments);
    if (origin == NULL) {
        report(warp, op, kind, lanes, detail, "%s", what);
        return;
    }
    with.other = origin->op;
    with.other_warp_index = warp->index;
    describe_address(warp, origin->space, origin->address, place, sizeof(place));
    report(warp, op, kind, lanes, &with, "%s: %s, read at %s", what, place,
           describe_op(warp, origin->op, line, sizeof(line)));
}
