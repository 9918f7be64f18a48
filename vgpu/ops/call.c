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

/* Saves or restores what the called function has; not the call's own results. */
static void move_saved(struct warp *warp, const struct op *op, uint32_t lanes,
                       const struct ptx_function *function, struct saved_piece *piece,
                       bool restore) {
    const struct call *call = op->extra;
    const struct ptx_variable *v;
    for (uint32_t i = 0; (v = variable_of(function, i)) != NULL; i++) {
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
        move_saved(warp, op, lanes, callee->function, frame->saved, false);
    }
    return frame;
}

/* The lanes of `mask` enter the function. */
static void enter(struct warp *warp, const struct op *op, uint32_t mask,
                  const struct kernel *callee) {
    const struct call *call = op->extra;
    if (warp->frame->depth >= MAX_DEPTH) {
        report(warp, op, FINDING_STACK, mask, NULL,
               "%u calls inside each other, expected at most %u", warp->frame->depth + 1,
               MAX_DEPTH);
        cluster_stop(warp->cta->cluster);
        return;
    }
    struct frame *frame = make_frame(warp, op, mask, callee);
    if (frame == NULL) {
        report(warp, op, FINDING_MEMORY_LIMIT, mask, NULL, "no memory for the call of %s",
               callee->function->name);
        cluster_stop(warp->cta->cluster);
        return;
    }
    for (uint32_t i = 0; i < call->argument_count; i++) {
        copy_variable(warp, op, mask, callee->function->params[i], call->arguments[i]);
    }
    if (mask != warp->active) {
        warp_split(warp, warp->active & ~mask);
    }
    warp->groups[warp->running].frame = frame;
    warp_enter(warp, frame);
    warp->next = 0;
}

static void run_call(struct warp *warp, const struct op *op, uint32_t mask) {
    const struct call *call = op->extra;
    enter(warp, op, mask, kernel_at(warp->kernel->module, call->function->address));
}

/* Why the address cannot be called; NULL: it can. */
static const char *refuse_call(const struct call *call, const struct kernel *callee) {
    return callee == NULL            ? "is no function of its module"
           : callee->function->entry ? "is a kernel"
           : callee->function->param_count != call->argument_count ||
                   callee->function->result_count < call->result_count
               ? "has other parameters or results than the prototype of the call"
               : NULL;
}

/* By an address in a register: the lanes with the lowest lane's enter, the others call later. */
static void run_call_indirect(struct warp *warp, const struct op *op, uint32_t mask) {
    const uint64_t *to = row64(warp, op->a), address = to[__builtin_ctz(mask)];
    const uint32_t poison = poison_of(warp, op->a) & mask;
    uint32_t same = 0;
    FOR_LANES(lane, mask) {
        same |= (uint32_t)(to[lane] == address) << lane;
    }
    const struct kernel *callee = kernel_at(warp->kernel->module, address);
    const char *why = refuse_call(op->extra, callee);
    if (poison != 0) {
        report(warp, op, FINDING_UNINITIALISED, poison, NULL,
               "the address of the function that is called comes from uninitialised memory");
    } else if (why != NULL) {
        report(warp, op, FINDING_ILLEGAL_OPERAND, same, NULL, "a call of 0x%llx, which %s",
               (unsigned long long)address, why);
    }
    if (poison != 0 || why != NULL) {
        cluster_stop(warp->cta->cluster);
        return;
    }
    if (mask != same) {
        warp_again(warp, mask & ~same);
    }
    enter(warp, op, same, callee);
}

static void run_return(struct warp *warp, const struct op *op, uint32_t mask) {
    struct frame *frame = warp->frame, *caller = frame->parent;
    if (caller == NULL) {
        warp_exit(warp, mask);
        return;
    }
    const struct call *call = frame->call->extra;
    for (uint32_t i = 0; i < call->result_count; i++) {
        copy_variable(warp, op, mask, call->results[i], frame->kernel->function->results[i]);
    }
    if (frame->saved != NULL) {
        move_saved(warp, frame->call, mask, frame->kernel->function, frame->saved, true);
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

/* A function that the CUDA runtime provides; NULL: none of them. */
static op_function *call_of_runtime(const struct ptx_function *function) {
    static const struct {
        const char *name;
        op_function *run;
        uint32_t params;
    } FUNCTIONS[] = {{"vprintf", run_vprintf, 2},
                     {"__assertfail", run_assertfail, 5},
                     {"malloc", run_malloc, 1},
                     {"free", run_free, 1},
                     {"cudaGraphSetConditional", run_set_conditional, 2}};
    for (size_t i = 0; i < sizeof FUNCTIONS / sizeof FUNCTIONS[0]; i++) {
        if (strcmp(function->name, FUNCTIONS[i].name) == 0 &&
            function->param_count == FUNCTIONS[i].params) {
            return FUNCTIONS[i].run;
        }
    }
    return NULL;
}

/* Of the device runtime, for launches by kernels. */
static bool launches_kernels(const struct ptx_function *function) {
    return strncmp(function->name, "__cudaCDP2", strlen("__cudaCDP2")) == 0 ||
           strncmp(function->name, "cudaLaunchDevice", strlen("cudaLaunchDevice")) == 0 ||
           strncmp(function->name, "cudaGetParameterBuffer", strlen("cudaGetParameterBuffer")) == 0;
}

/* The name of a .callprototype or of .calltargets, which the parser has replaced by a list. */
static bool is_prototype(const struct ptx_operand *operand) {
    return operand->kind == PTX_OPERAND_LIST && operand->name != NULL;
}

static bool decode_callee(struct decoder *decoder, const struct ptx_operand *operand, struct op *op,
                          struct call *call) {
    if (operand->kind == PTX_OPERAND_REGISTER) {
        op->a = decode_source(decoder, operand, PTX_U64);
        op->run = run_call_indirect;
        return op->a != 0;
    }
    const struct ptx_function *function =
        operand->kind == PTX_OPERAND_FUNCTION
            ? module_function(decode_module(decoder), operand->name)
            : NULL;
    if (function == NULL || function->entry) {
        return decode_fail(decoder, "a call of what is no function");
    }
    call->function = function;
    op->run = function->external ? call_of_runtime(function) : run_call;
    if (op->run != NULL) {
        return true;
    }
    return launches_kernels(function)
               ? decode_fail(decoder,
                             "a launch by a kernel (dynamic parallelism) is not supported: %s",
                             function->name)
               : decode_fail(decoder, "function %s is declared, but has no body", function->name);
}

bool decode_call(struct decoder *decoder, const struct ptx_instruction *in, struct op *op) {
    const struct ptx_operand *at = in->operands, *end = at + in->operand_count;
    const struct ptx_operand *results = NULL, *arguments = NULL;
    struct call *call = decode_alloc(decoder, sizeof *call);
    if (call == NULL) {
        return false;
    }
    if (at < end && at->kind == PTX_OPERAND_LIST) {
        results = at++;
    }
    op->extra = call;
    op->flags = OP_CONTROL | OP_OWN_POISON;
    if (at == end || !decode_callee(decoder, at++, op, call)) {
        return decode_fail(decoder, "this form of call is not known");
    }
    if (at < end && at->kind == PTX_OPERAND_LIST && !is_prototype(at)) {
        arguments = at++;
    }
    const bool prototype = at < end && is_prototype(at);
    at += prototype;
    if (at != end || prototype != (call->function == NULL) || !only_modifiers(in, "uni")) {
        return decode_fail(decoder, "this form of call is not known");
    }
    const struct ptx_function *function = call->function;
    call->argument_count = function != NULL    ? function->param_count
                           : arguments != NULL ? arguments->part_count
                                               : 0;
    call->result_count = results == NULL    ? 0
                         : function != NULL ? function->result_count
                                            : results->part_count;
    return decode_list(decoder, arguments, call->argument_count, &call->arguments, "arguments") &&
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
