/* SPDX-License-Identifier: Apache-2.0
 *
 * shared.c - where the shared variables of a module lie, and which of them a kernel has.
 *
 * nvcc declares the __shared__ variables of all kernels in the module. A kernel has those that it
 * names, and those that functions it may call name. Variables of several kernels come first, at one
 * address for all of them. Variables of a single kernel follow; those of two kernels overlap.
 * Dynamic shared memory is last, at one address for all kernels, since all name it by the same
 * variable.
 *
 * Invariant: two variables of one kernel never overlap, and SHARED_GAP bytes follow each.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exec/exec.h"

enum { SHARED_MOST = 1 << 22 }; /* bytes up to the end of a kernel's variables */

static uint64_t round_up(uint64_t value, uint64_t multiple) {
    return multiple > 1 ? (value + multiple - 1) / multiple * multiple : value;
}

/* ---- who names what -------------------------------------------------------------------------- */

/* A shared variable, of the module or of a function. */
struct placed {
    struct ptx_variable *variable;
    const struct ptx_function *owner; /* NULL: the module */
    uint32_t kernels;                 /* that have it: 0, 1 or 2 (several) */
    bool seen;                        /* by the kernel that is being looked at */
};

enum visit { UNSEEN, PLANNED, VISITED };

struct layout {
    const struct ptx_module *ptx;
    struct placed *list;
    uint32_t count;
    uint64_t
        *addresses; /* to be; until all are known, ptx_variable.address is a place in the list */
    unsigned char *visits; /* of the module's functions: enum visit */
};

static void add_all(struct layout *layout, struct ptx_variable *const *variables, uint32_t count,
                    const struct ptx_function *owner) {
    for (uint32_t i = 0; i < count; i++) {
        if (variables[i]->space == PTX_SHARED) {
            variables[i]->address = layout->count; /* its place in the list, for now */
            layout->list[layout->count++] =
                (struct placed){.variable = variables[i], .owner = owner};
        }
    }
}

/* The function of that name, or (NULL) all that a pointer may name, will be looked at. */
static void plan_visit(struct layout *layout, const char *name) {
    for (uint32_t i = 0; i < layout->ptx->function_count; i++) {
        const struct ptx_function *f = layout->ptx->functions[i];
        if (layout->visits[i] == UNSEEN &&
            (name == NULL ? !f->entry : strcmp(f->name, name) == 0)) {
            layout->visits[i] = PLANNED;
        }
    }
}

static void look_at_operand(struct layout *layout, const struct ptx_operand *operand) {
    if (operand->kind == PTX_OPERAND_FUNCTION) {
        plan_visit(layout, operand->name);
    } else if (operand->variable != NULL && operand->variable->space == PTX_SHARED) {
        layout->list[operand->variable->address].seen = true;
    } else if (operand->kind == PTX_OPERAND_SPECIAL) { /* %reserved_... is a variable, too */
        for (uint32_t i = 0; i < layout->count; i++) {
            layout->list[i].seen |= strcmp(layout->list[i].variable->name, operand->name) == 0;
        }
    }
    for (uint32_t i = 0; i < operand->part_count; i++) {
        look_at_operand(layout, &operand->parts[i]);
    }
}

static bool calls_by_pointer(const struct ptx_instruction *in) {
    bool named = strcmp(in->opcode, "call") != 0;
    for (uint32_t i = 0; i < in->operand_count; i++) {
        named = named || in->operands[i].kind == PTX_OPERAND_FUNCTION;
    }
    return !named;
}

static void look_at_function(struct layout *layout, const struct ptx_function *f) {
    for (uint32_t i = 0; i < layout->count; i++) {
        layout->list[i].seen |= layout->list[i].owner == f;
    }
    for (uint32_t i = 0; i < f->code_count; i++) {
        const struct ptx_instruction *in = &f->code[i];
        for (uint32_t o = 0; o < in->operand_count; o++) {
            look_at_operand(layout, &in->operands[o]);
        }
        if (calls_by_pointer(in)) {
            plan_visit(layout, NULL);
        }
    }
}

/* Marks what the kernel has as seen. */
static void look_at(struct layout *layout, const struct kernel *kernel) {
    const struct ptx_module *ptx = layout->ptx;
    for (uint32_t i = 0; i < ptx->function_count; i++) {
        layout->visits[i] = ptx->functions[i] == kernel->function ? PLANNED : UNSEEN;
    }
    for (uint32_t i = 0; i < layout->count; i++) {
        layout->list[i].seen = false;
    }
    for (bool news = true; news;) {
        news = false;
        for (uint32_t i = 0; i < ptx->function_count; i++) {
            if (layout->visits[i] == PLANNED) {
                layout->visits[i] = VISITED;
                look_at_function(layout, ptx->functions[i]);
                news = true;
            }
        }
    }
}

/* ---- places ---------------------------------------------------------------------------------- */

static bool is_dynamic(const struct ptx_variable *v) {
    return v->size == 0;
}

/* Returns where the next one may begin. */
static uint64_t place(const struct ptx_variable *variable, uint64_t offset, uint64_t *address) {
    offset = round_up(offset, variable->align);
    *address = SHARED_BASE + offset;
    return offset + variable->size + SHARED_GAP;
}

/* The list that the kernel keeps, and its bytes; what is its own alone is placed from `common`
 * on. */
static bool settle(struct layout *layout, struct kernel *kernel, uint64_t common) {
    uint64_t end = common, declared = 0;
    kernel->shared = arena_alloc(layout->ptx->arena, (layout->count + 1) * sizeof(void *));
    if (kernel->shared == NULL) {
        return false;
    }
    look_at(layout, kernel);
    for (uint32_t i = 0; i < layout->count; i++) {
        const struct placed *placed = &layout->list[i];
        struct ptx_variable *v = placed->variable;
        if (!placed->seen) {
            continue;
        }
        kernel->shared[kernel->shared_count++] = v;
        if (!is_dynamic(v) && placed->kernels == 1 && kernel->function->entry) {
            end = place(v, end, &layout->addresses[i]);
        }
        if (!is_dynamic(v) && *v->name != '%') { /* what is reserved does not count */
            declared = round_up(declared, v->align) + v->size;
        }
    }
    kernel->shared_static = (uint32_t)(end < UINT32_MAX ? end : UINT32_MAX);
    kernel->shared_declared = (uint32_t)declared;
    return true;
}

static bool place_list(struct layout *layout, struct vgpu_module *module, struct ptx_error *error) {
    uint64_t common = 0, end = 0, align = 1024;
    for (uint32_t k = 0; k < module->kernel_count; k++) {
        if (module->kernels[k]->function->entry) {
            look_at(layout, module->kernels[k]);
            for (uint32_t i = 0; i < layout->count; i++) {
                layout->list[i].kernels += layout->list[i].seen && layout->list[i].kernels < 2;
            }
        }
    }
    for (uint32_t i = 0; i < layout->count; i++) {
        struct ptx_variable *v = layout->list[i].variable;
        if (is_dynamic(v)) {
            align = v->align > align ? v->align : align;
        } else if (layout->list[i].kernels != 1) {
            common = place(v, common, &layout->addresses[i]);
        }
    }
    for (uint32_t k = 0; k < module->kernel_count; k++) {
        if (!settle(layout, module->kernels[k], common)) {
            return false;
        }
        end = module->kernels[k]->shared_static > end ? module->kernels[k]->shared_static : end;
    }
    if (end > SHARED_MOST) {
        snprintf(error->text, sizeof error->text, "%llu bytes of shared variables",
                 (unsigned long long)end);
        return false;
    }
    const uint64_t dynamic = round_up(end, align);
    for (uint32_t i = 0; i < layout->count; i++) {
        if (is_dynamic(layout->list[i].variable)) {
            layout->addresses[i] = SHARED_BASE + dynamic;
        }
    }
    for (uint32_t k = 0; k < module->kernel_count; k++) {
        module->kernels[k]->shared_dynamic = (uint32_t)dynamic;
    }
    for (uint32_t i = 0; i < layout->count; i++) {
        layout->list[i].variable->address = layout->addresses[i];
    }
    return true;
}

bool place_shared(struct vgpu_module *module, struct ptx_error *error) {
    const struct ptx_module *ptx = module->ptx;
    size_t most = ptx->variable_count;
    for (uint32_t i = 0; i < ptx->function_count; i++) {
        most += ptx->functions[i]->variable_count;
    }
    struct layout layout = {.ptx = ptx,
                            .list = calloc(most + 1, sizeof *layout.list),
                            .addresses = calloc(most + 1, sizeof *layout.addresses),
                            .visits = calloc(ptx->function_count + 1, 1)};
    bool good = layout.list != NULL && layout.addresses != NULL && layout.visits != NULL;
    if (good) {
        add_all(&layout, ptx->variables, ptx->variable_count, NULL);
        for (uint32_t i = 0; i < ptx->function_count; i++) {
            const struct ptx_function *f = ptx->functions[i];
            add_all(&layout, f->variables, f->variable_count, f);
        }
        good = place_list(&layout, module, error);
    }
    free(layout.list);
    free(layout.addresses);
    free(layout.visits);
    return good;
}
