/* SPDX-License-Identifier: Apache-2.0
 *
 * call.c - call and ret.
 *
 * A call gives its lanes a frame: rows of the called function. Arguments and results are variables
 * of the parameter space, one copy per thread; the call copies them from caller to callee and back.
 * The variables of a function have one address at any depth, so a recursive call saves them first
 * and the return restores them.
 *
 * Invariant: the lanes of a returning group entered the call together or split off later in it;
 * they continue after the call, in the caller's frame.
 */
#include "ops/call.h"

#include <stdlib.h>
#include <string.h>

#include "machine/access.h"
#include "machine/machine.h"
#include "memory/memory.h"
#include "ops/decode.h"
#include "ops/ops.h"
#include "report/finding.h"
#include "report/perf.h"

enum {
    MAX_DEPTH = 256,
    CHUNK = 8 /* bytes of a thread that are copied at once */
};

/* ---- variables of a thread ---- */

/* The largest piece of what is left that lies at a multiple of its size. */
static uint32_t piece_of(uint64_t address, uint64_t left) {
    uint32_t piece = CHUNK;
    while (piece > left || address % piece != 0) {
        piece /= 2;
    }
    return piece;
}

uint32_t thread_memory(struct warp *warp, const struct op *op, uint32_t lanes, int space,
                       const uint64_t *addresses, uint32_t bytes, bool write,
                       unsigned char values[LANES][8], uint32_t poison) {
    struct access access = {.space = space,
                            .kind = write ? ACCESS_WRITE : ACCESS_READ,
                            .element = bytes,
                            .count = 1,
                            .mask = lanes,
                            .poison = {write ? poison : 0}};
    memcpy(access.address, addresses, sizeof access.address);
    memory_access(warp, op, &access);
    for (uint32_t lane = 0; lane < LANES; lane++) {
        if ((access.good >> lane & 1) != 0) {
            memcpy(write ? access.host[lane] : values[lane],
                   write ? values[lane] : access.host[lane], bytes);
        }
    }
    return access.poison[0] | (lanes & ~access.good);
}

static uint32_t move_piece(struct warp *warp, const struct op *op, uint32_t lanes,
                           const struct ptx_variable *variable, uint64_t offset, uint32_t bytes,
                           bool write, unsigned char values[LANES][8], uint32_t poison) {
    uint64_t addresses[LANES];
    for (uint32_t lane = 0; lane < LANES; lane++) {
        addresses[lane] = variable->address + offset;
    }
    return thread_memory(warp, op, lanes, (int)variable->space, addresses, bytes, write, values,
                         poison);
}

/* Copies what the lanes have in one variable to another. */
static void copy_variable(struct warp *warp, const struct op *op, uint32_t lanes,
                          const struct ptx_variable *to, const struct ptx_variable *from) {
    const uint64_t size = to->size < from->size ? to->size : from->size;
    for (uint64_t at = 0; at < size;) {
        const uint32_t piece = piece_of((to->address + at) | (from->address + at), size - at);
        unsigned char values[LANES][8] = {{0}};
        const uint32_t poison = move_piece(warp, op, lanes, from, at, piece, false, values, 0);
        move_piece(warp, op, lanes, to, at, piece, true, values, poison);
        at += piece;
    }
}

/* ---- recursion ---- */

struct saved_piece {
    unsigned char values[LANES][8];
    uint32_t poison;
};

/* The i-th variable that has one place for all calls of the function; NULL: there are fewer. */
static const struct ptx_variable *variable_of(const struct ptx_function *f, uint32_t i) {
    if (i < f->param_count) {
        return f->params[i];
    }
    i -= f->param_count;
    if (i < f->result_count) {
        return f->results[i];
    }
    i -= f->result_count;
    return i < f->variable_count ? f->variables[i] : NULL;
}

static bool is_private(const struct ptx_variable *variable) {
    return variable->space == PTX_LOCAL || variable->space == PTX_PARAM;
}

static size_t saved_pieces(const struct ptx_function *f) {
    size_t pieces = 0;
    const struct ptx_variable *v;
    for (uint32_t i = 0; (v = variable_of(f, i)) != NULL; i++) {
        for (uint64_t at = 0; is_private(v) && at < v->size; pieces++) {
            at += piece_of(v->address + at, v->size - at);
        }
    }
    return pieces;
}

static bool is_result(const struct ptx_variable *variable, const struct call *call) {
    for (uint32_t i = 0; i < call->result_count; i++) {
        if (call->results[i] == variable) {
            return true;
        }
    }
    return false;
}

/* Saves or restores what the function that `call` calls has; not the call's own results. */
static void move_saved(struct warp *warp, const struct op *op, uint32_t lanes,
                       const struct call *call, struct saved_piece *piece, bool restore) {
    const struct ptx_variable *v;
    for (uint32_t i = 0; (v = variable_of(call->function, i)) != NULL; i++) {
        for (uint64_t at = 0; is_private(v) && at < v->size; piece++) {
            const uint32_t bytes = piece_of(v->address + at, v->size - at);
            if (!restore) {
                piece->poison = move_piece(warp, op, lanes, v, at, bytes, false, piece->values, 0);
            } else if (!is_result(v, call)) {
                move_piece(warp, op, lanes, v, at, bytes, true, piece->values, piece->poison);
            }
            at += bytes;
        }
    }
}

static bool is_running(const struct frame *frame, const struct kernel *kernel) {
    while (frame != NULL && frame->kernel != kernel) {
        frame = frame->parent;
    }
    return frame != NULL;
}

/* ---- call and ret ---- */

static struct frame *make_frame(struct warp *warp, const struct op *op, uint32_t lanes,
                                const struct kernel *callee) {
    const size_t head = (sizeof(struct frame) + 63) / 64 * 64;
    const size_t bytes = head + frame_bytes(callee);
    struct frame *frame = aligned_alloc(64, bytes);
    if (frame == NULL) {
        return NULL;
    }
    memset(frame, 0, bytes);
    frame_place(frame, callee, (unsigned char *)frame + head);
    frame->parent = warp->frame;
    frame->call = op;
    frame->depth = warp->frame->depth + 1;
    frame->lanes = lanes;
    frame_fill(warp, frame);
    frame->runs = perf_runs(warp->cta->cluster, frame->kernel);
    if (is_running(warp->frame, callee)) {
        frame->saved = calloc(saved_pieces(callee->function) + 1, sizeof(struct saved_piece));
        if (frame->saved == NULL) {
            free(frame);
            return NULL;
        }
        move_saved(warp, op, lanes, op->extra, frame->saved, false);
    }
    return frame;
}

static void run_call(struct warp *warp, const struct op *op, uint32_t mask) {
    const struct call *call = op->extra;
    if (warp->frame->depth >= MAX_DEPTH) {
        report(warp, op, FINDING_STACK, mask, NULL,
               "%u calls inside each other, expected at most %u", warp->frame->depth + 1,
               MAX_DEPTH);
        cluster_stop(warp->cta->cluster);
        return;
    }
    const struct kernel *callee = module_kernel(warp->kernel->module, call->function->name);
    struct frame *frame = make_frame(warp, op, mask, callee);
    if (frame == NULL) {
        report(warp, op, FINDING_MEMORY_LIMIT, mask, NULL, "no memory for the call of %s",
               call->function->name);
        cluster_stop(warp->cta->cluster);
        return;
    }
    for (uint32_t i = 0; i < call->argument_count; i++) {
        copy_variable(warp, op, mask, call->function->params[i], call->arguments[i]);
    }
    if (mask != warp->active) {
        warp_split(warp, warp->active & ~mask);
    }
    warp->groups[warp->running].frame = frame;
    warp_enter(warp, frame);
    warp->next = 0;
}

static void run_return(struct warp *warp, const struct op *op, uint32_t mask) {
    struct frame *frame = warp->frame, *caller = frame->parent;
    if (caller == NULL) {
        warp_exit(warp, mask);
        return;
    }
    const struct call *call = frame->call->extra;
    for (uint32_t i = 0; i < call->result_count; i++) {
        copy_variable(warp, op, mask, call->results[i], call->function->results[i]);
    }
    if (frame->saved != NULL) {
        move_saved(warp, op, mask, call, frame->saved, true);
    }
    if (mask != warp->active) {
        warp_split(warp, warp->active & ~mask);
    }
    warp->groups[warp->running].frame = caller;
    warp->next = (uint32_t)(frame->call - caller->kernel->code) + 1;
    warp_enter(warp, caller);
    frame_leave(frame, mask, caller);
}

/* ---- decoding ---- */

static const struct ptx_function *function_named(const struct ptx_module *module,
                                                 const char *name) {
    const struct ptx_function *found = NULL;
    for (uint32_t i = 0; i < module->function_count; i++) {
        if (strcmp(module->functions[i]->name, name) == 0 && (found == NULL || found->external)) {
            found = module->functions[i];
        }
    }
    return found;
}

/* (a, b): variables of the parameter space, as many as the function has of that sort. */
static bool decode_list(struct decoder *decoder, const struct ptx_operand *list, uint32_t expected,
                        const struct ptx_variable ***variables, const char *what) {
    const uint32_t count = list != NULL ? list->part_count : 0;
    if (count != expected) {
        return decode_fail(decoder, "a call with %u %s, the function has %u", count, what,
                           expected);
    }
    *variables = decode_alloc(decoder, ((size_t)count + 1) * sizeof(const struct ptx_variable *));
    for (uint32_t i = 0; *variables != NULL && i < count; i++) {
        const struct ptx_operand *part = &list->parts[i];
        if (part->kind != PTX_OPERAND_VARIABLE || part->variable->space != PTX_PARAM ||
            part->value != 0) {
            return decode_fail(decoder, "%s of a call that are no .param variables", what);
        }
        (*variables)[i] = part->variable;
    }
    return *variables != NULL;
}

bool decode_call(struct decoder *decoder, const struct ptx_instruction *in, struct op *op) {
    const struct ptx_operand *operands = in->operands, *results = NULL, *arguments = NULL;
    uint32_t at = 0;
    if (at < in->operand_count && operands[at].kind == PTX_OPERAND_LIST) {
        results = &operands[at++];
    }
    if (at >= in->operand_count || operands[at].kind != PTX_OPERAND_FUNCTION) {
        return decode_fail(decoder, "a call of something else than a function's name");
    }
    const struct ptx_function *function = function_named(decode_module(decoder), operands[at].name);
    at++;
    if (at < in->operand_count && operands[at].kind == PTX_OPERAND_LIST) {
        arguments = &operands[at++];
    }
    if (function == NULL || function->entry || at != in->operand_count ||
        !only_modifiers(in, "uni")) {
        return decode_fail(decoder, "this form of call is not known");
    }
    struct call *call = decode_alloc(decoder, sizeof *call);
    if (call == NULL) {
        return false;
    }
    call->function = function;
    call->argument_count = function->param_count;
    call->result_count = results != NULL ? function->result_count : 0;
    op->extra = call;
    op->flags = OP_CONTROL | OP_OWN_POISON;
    op->run = function->external ? call_of_runtime(function->name) : run_call;
    if (op->run == NULL) {
        return decode_fail(decoder, "function %s is declared, but has no body", function->name);
    }
    return decode_list(decoder, arguments, function->param_count, &call->arguments, "arguments") &&
           decode_list(decoder, results, call->result_count, &call->results, "results");
}

bool decode_return(struct decoder *decoder, const struct ptx_instruction *in, struct op *op) {
    if (in->operand_count != 0 || !only_modifiers(in, "uni")) {
        return decode_fail(decoder, "this form of ret is not known");
    }
    op->run = run_return;
    op->flags = OP_CONTROL;
    return true;
}
