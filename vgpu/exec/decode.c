/* SPDX-License-Identifier: Apache-2.0
 *
 * decode.c - module -> kernels: places variables, assigns rows to registers, and decodes each
 * instruction into an op by the function of its family (FAMILIES).
 *
 * Invariant: a decoded module has no unknown instruction: an unknown form is an error with its
 * line.
 */
#include "ops/decoder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "async/async.h"
#include "exec/exec.h"
#include "ops/ops.h"
#include "report/perf.h"

/* ---- variables ------------------------------------------------------------------------------- */

static uint64_t round_up(uint64_t value, uint64_t multiple) {
    return multiple > 1 ? (value + multiple - 1) / multiple * multiple : value;
}

static bool names_reserved(const struct ptx_function *f) {
    for (uint32_t i = 0; i < f->code_count; i++) {
        const struct ptx_instruction *in = &f->code[i];
        if (in->operand_count == 2 && in->operands[1].kind == PTX_OPERAND_SPECIAL &&
            strcmp(in->operands[1].name, RESERVED_SHARED) == 0) {
            return true;
        }
    }
    return false;
}

/* A GPU keeps some shared memory of each block for itself; cooperative groups use a part of it. A
 * module that names it has a variable of that name. */
static bool add_reserved_shared(struct ptx_module *ptx) {
    bool used = false;
    for (uint32_t i = 0; i < ptx->function_count && !used; i++) {
        used = names_reserved(ptx->functions[i]);
    }
    if (!used) {
        return true;
    }
    struct ptx_variable *reserved = arena_alloc(ptx->arena, sizeof *reserved);
    struct ptx_variable **variables =
        arena_alloc(ptx->arena, (ptx->variable_count + 1) * sizeof(struct ptx_variable *));
    if (reserved == NULL || variables == NULL) {
        return false;
    }
    *reserved = (struct ptx_variable){.name = RESERVED_SHARED,
                                      .space = PTX_SHARED,
                                      .type = PTX_B8,
                                      .align = 16,
                                      .size = RESERVED_SHARED_BYTES};
    variables[0] = reserved;
    for (uint32_t i = 0; i < ptx->variable_count; i++) {
        variables[i + 1] = ptx->variables[i];
    }
    ptx->variables = variables;
    ptx->variable_count++;
    return true;
}

/* Local memory: the variables of one function after those of another, so that caller and callee
 * never overlap. The same for call parameters. */
static bool place_frames(struct vgpu_module *module, struct ptx_error *error) {
    uint64_t local = 0, param = CALL_PARAM_BASE;
    for (uint32_t i = 0; i < module->ptx->function_count; i++) {
        struct ptx_function *f = module->ptx->functions[i];
        for (uint32_t v = 0; v < f->variable_count; v++) {
            struct ptx_variable *variable = f->variables[v];
            uint64_t *end = variable->space == PTX_LOCAL   ? &local
                            : variable->space == PTX_PARAM ? &param
                                                           : NULL;
            if (end != NULL) {
                *end = round_up(*end, variable->align);
                variable->address = *end;
                *end += variable->size + SHARED_GAP;
            }
        }
        for (uint32_t v = 0; !f->entry && v < f->param_count + f->result_count; v++) {
            struct ptx_variable *variable =
                v < f->param_count ? f->params[v] : f->results[v - f->param_count];
            param = round_up(param, variable->align > 16 ? variable->align : 16);
            variable->address = param;
            param += variable->size + SHARED_GAP;
        }
    }
    if (local > 512 << 10 || param > 2 * CALL_PARAM_BASE) {
        snprintf(error->text, sizeof error->text, "%llu bytes of local variables, at most 512 KB",
                 (unsigned long long)local);
        return false;
    }
    for (uint32_t i = 0; i < module->kernel_count; i++) {
        module->kernels[i]->local_bytes = (uint32_t)local;
    }
    return true;
}

/* ---- families -------------------------------------------------------------------------------- */

/* Opcodes that exist for integers and for floating-point numbers: the type decides. */
static bool decode_arithmetic(struct decoder *decoder, const struct ptx_instruction *in,
                              struct op *op) {
    switch (ptx_modifier_type(in, 0)) {
    case PTX_F32:
    case PTX_F64: return decode_float(decoder, in, op);
    case PTX_F16:
    case PTX_F16X2:
    case PTX_BF16:
    case PTX_BF16X2: return decode_half(decoder, in, op);
    case PTX_PRED: return decode_move(decoder, in, op);
    default: return decode_int(decoder, in, op);
    }
}

static bool decode_cp(struct decoder *decoder, const struct ptx_instruction *in, struct op *op) {
    return ptx_has(in, "bulk") ? decode_bulk(decoder, in, op) : decode_cp_async(decoder, in, op);
}

static bool decode_st(struct decoder *decoder, const struct ptx_instruction *in, struct op *op) {
    return ptx_has(in, "async") ? decode_store_async(decoder, in, op)
                                : decode_memory(decoder, in, op);
}

static bool decode_prefetch(struct decoder *decoder, const struct ptx_instruction *in,
                            struct op *op) {
    return ptx_has(in, "tensormap") ? decode_bulk(decoder, in, op) : decode_memory(decoder, in, op);
}

static const struct {
    const char *opcodes; /* separated by spaces */
    decode_function *decode;
} FAMILIES[] = {
    {"add sub mul mad div rem abs neg min max and or xor not fma rcp sqrt rsqrt sin cos lg2 ex2 "
     "tanh copysign testp",
     decode_arithmetic},
    {"mul24 mad24 sad bfe bfi bfind brev clz popc prmt fns dp4a dp2a lop3 shf cnot shl shr addc "
     "subc madc szext bmsk",
     decode_int},
    {"vadd vsub vabsdiff vmin vmax vshl vshr vmad vset vadd2 vsub2 vavrg2 vabsdiff2 vmin2 vmax2 "
     "vset2 vadd4 vsub4 vavrg4 vabsdiff4 vmin4 vmax4 vset4",
     decode_video},
    {"mov selp slct setp set cvt", decode_move},
    {"st red", decode_st},
    {"ld ldu atom cvta isspacep prefetchu discard applypriority createpolicy mapa "
     "getctarank",
     decode_memory},
    {"prefetch", decode_prefetch},
    {"shfl vote activemask match redux elect", decode_warp},
    {"bra brx call ret exit trap brkpt nanosleep bar barrier fence membar pmevent setmaxnreg "
     "griddepcontrol",
     decode_control},
    {"cp", decode_cp},
    {"mbarrier", decode_mbarrier},
    {"tensormap", decode_tensor_map},
    {"tex tld4", decode_texture},
    {"suld sust", decode_surface},
    {"ldmatrix stmatrix movmatrix mma wmma", decode_matrix},
    {"wgmma", decode_wgmma},
};

static decode_function *family_of(const char *opcode) {
    for (size_t i = 0; i < sizeof FAMILIES / sizeof FAMILIES[0]; i++) {
        if (is_listed(FAMILIES[i].opcodes, opcode)) {
            return FAMILIES[i].decode;
        }
    }
    return NULL;
}

/* ---- functions ------------------------------------------------------------------------------- */

static bool decode_instruction(struct decoder *decoder, const struct ptx_instruction *in,
                               struct op *op) {
    decoder->in = in;
    op->in = in;
    if (in->guard >= 0) {
        op->guard = decoder->places[in->guard];
        op->guard_flip = in->guard_negated ? ALL_LANES : 0;
    }
    decode_function *decode = family_of(in->opcode);
    if (decode == NULL) {
        if (strcmp(in->opcode, PTX_UNKNOWN) == 0) {
            return decode_fail(decoder, "%s", in->modifiers[0]);
        }
        return decode_fail(decoder, "unknown instruction %s", in->opcode);
    }
    if (strcmp(in->opcode, "griddepcontrol") == 0) {
        decoder->module->programmatic = true;
    }
    const bool known = decode(decoder, in, op) && !decoder->failed;
    if (!known || op->run == NULL) {
        return decode_fail(decoder, "this form of %s is not known", in->opcode);
    }
    op->flags |= (uint32_t)mix_of(in) << OP_MIX_SHIFT;
    decoder->kernel->tensor_count += (op->flags & OP_TENSOR) != 0;
    return true;
}

/* In place of an instruction that is not known, where it fails the launch that reaches it. */
static bool decode_unknown(struct decoder *decoder, struct op *op) {
    const size_t size = strlen(decoder->error->text) + 1;
    decoder->failed = false;
    char *reason = decode_alloc(decoder, size);
    if (reason == NULL) {
        return false;
    }
    memcpy(reason, decoder->error->text, size);
    *op = (struct op){.run = run_unknown, .guard = op->guard, .guard_flip = op->guard_flip};
    op->flags = OP_CONTROL | OP_OWN_POISON;
    op->in = decoder->in;
    op->extra = reason;
    return true;
}

static bool place_registers(struct decoder *decoder) {
    const struct ptx_function *f = decoder->function;
    struct kernel *kernel = decoder->kernel;
    kernel->row_bytes = 256; /* the row of zeros that unused operands name */
    kernel->predicate_count = PREDICATE_CARRY + 1;
    decoder->places = decode_alloc(decoder, (size_t)f->register_count * sizeof *decoder->places);
    for (uint32_t i = 0; decoder->places != NULL && i < f->register_count; i++) {
        const enum ptx_type type = f->registers[i].type;
        if (type == PTX_PRED) {
            decoder->places[i] = kernel->predicate_count++;
        } else {
            decoder->places[i] = decode_new_row(decoder, decode_lane_bytes(type));
        }
    }
    return !decoder->failed;
}

/* The image that a warp's rows start with. */
static bool make_constants(struct decoder *decoder) {
    struct kernel *kernel = decoder->kernel;
    unsigned char *image = decode_alloc(decoder, kernel->row_bytes);
    struct special_row *specials = decode_alloc(decoder, decoder->special_count * sizeof *specials);
    if (image == NULL || specials == NULL) {
        return false;
    }
    for (uint32_t i = 0; i < decoder->constant_slots; i++) {
        const struct constant *c = &decoder->constants[i];
        for (uint32_t lane = 0; c->width != 0 && lane < LANES; lane++) {
            memcpy(image + c->row + lane * c->width, &c->bits, c->width); /* little-endian hosts */
        }
    }
    memcpy(specials, decoder->specials, decoder->special_count * sizeof *specials);
    kernel->constants = image;
    kernel->specials = specials;
    kernel->special_count = decoder->special_count;
    return true;
}

static bool decode_kernel(struct vgpu_module *module, struct kernel *kernel,
                          struct ptx_error *error) {
    struct decoder decoder = {.module = module,
                              .function = kernel->function,
                              .error = error,
                              .kernel = kernel,
                              .constant_slots = 64};
    decoder.constants = calloc(decoder.constant_slots, sizeof *decoder.constants);
    if (decoder.constants == NULL) {
        return decode_fail(&decoder, "no memory for constants");
    }
    kernel->code_count = kernel->function->code_count;
    kernel->code = decode_alloc(&decoder, ((size_t)kernel->code_count + 1) * sizeof *kernel->code);
    bool good = kernel->code != NULL && place_registers(&decoder);
    for (uint32_t i = 0; good && i < kernel->code_count; i++) {
        struct op *op = &kernel->code[i];
        good = decode_instruction(&decoder, &kernel->function->code[i], op) ||
               (module->gpu != NULL && module->gpu->late_errors && decode_unknown(&decoder, op));
    }
    decoder.in = NULL;
    good = good && make_constants(&decoder) && mark_cas_seeds(kernel) && mark_dependences(kernel);
    free(decoder.constants);
    return good;
}

vgpu_status module_decode(struct vgpu_module *module, struct ptx_error *error) {
    const struct ptx_module *ptx = module->ptx;
    *error = (struct ptx_error){0};
    snprintf(error->text, sizeof error->text, "no memory for the module");
    module->kernels = arena_alloc(ptx->arena, ptx->function_count * sizeof(struct kernel *));
    if (module->kernels == NULL || !add_reserved_shared(module->ptx)) {
        return VGPU_OUT_OF_MEMORY;
    }
    for (uint32_t i = 0; i < ptx->function_count; i++) {
        if (!ptx->functions[i]->external) {
            struct kernel *kernel = arena_alloc(ptx->arena, sizeof *kernel);
            if (kernel == NULL) {
                return VGPU_OUT_OF_MEMORY;
            }
            ptx->functions[i]->address =
                FUNCTION_BASE + (uint64_t)FUNCTION_STEP * module->kernel_count;
            kernel->function = ptx->functions[i];
            kernel->module = module;
            module->kernels[module->kernel_count++] = kernel;
        }
    }
    if (!place_shared(module, error) || !place_frames(module, error)) {
        return VGPU_LOAD;
    }
    for (uint32_t i = 0; i < module->kernel_count; i++) {
        if (!decode_kernel(module, module->kernels[i], error)) {
            return VGPU_LOAD;
        }
    }
    return VGPU_OK;
}
