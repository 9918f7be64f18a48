/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_fixture.c - see cuda_fixture.h.
 *
 * Invariant: the fake driver stays loaded as long as the program, so that what the library does to
 * its own handle changes nothing.
 */
#include "cuda/cuda_fixture.h"

#include <dlfcn.h>
#include <elf.h>
#include <stdlib.h>

const struct fake_control *fake;

bool fake_begin(int devices) {
    if (fake == NULL) {
        void *handle = dlopen(FAKE_DRIVER, RTLD_NOW | RTLD_LOCAL);
        void *symbol = handle != NULL ? dlsym(handle, "fake_driver_control") : NULL;
        fake_driver_control_function *control;
        if (!CHECK_MSG(symbol != NULL, "%s: %s", FAKE_DRIVER, dlerror())) {
            return false;
        }
        memcpy(&control, &symbol, sizeof control);
        fake = control();
    }
    fake->reset();
    fake->settings->devices = devices;
    fake->settings->compute = false;
    fake->settings->log = true;
    return true;
}

void fake_end(void) {
    static const char *const names[] = {"contexts",  "libraries",   "kernels",
                                        "functions", "streams",     "events",
                                        "graphs",    "executables", "memory"};
    for (int kind = 0; kind < FAKE_KINDS; kind++) {
        const int left = fake->live((enum fake_kind)kind);
        CHECK_MSG(left == 0, "%d %s left", left, names[kind]);
    }
    for (int device = 0; device < FAKE_DEVICES; device++) {
        CHECK_EQ(fake->retains(device), 0);
    }
    CHECK_EQ(fake->depth(), 0);
}

attn_context *fake_open(const char *device) {
    attn_options options;
    attn_context *context = NULL;
    attn_error why;
    attn_options_init(&options);
    options.device = device;
    options.driver = FAKE_DRIVER;
    options.threads = 1;
    CHECK_STATUS(attn_open(&options, &context, &why), ATTN_OK, &why);
    return context;
}

attn_status fake_try(const char *device, attn_error *why) {
    attn_options options;
    attn_context *context = (attn_context *)(void *)&options;
    attn_options_init(&options);
    options.device = device;
    options.driver = FAKE_DRIVER;
    const attn_status status = attn_open(&options, &context, why);
    CHECK((status == ATTN_OK) == (context != NULL));
    attn_close(context);
    return status;
}

void fake_push(const attn_context *context, void *current) {
    int (*push)(void *);
    void *function = NULL;
    attn_error why;
    if (CHECK_STATUS(attn_driver_function(context, "cuCtxPushCurrent", &function, &why), ATTN_OK,
                     &why)) {
        memcpy(&push, &function, sizeof push);
        CHECK_EQ(push(current), FAKE_SUCCESS);
    }
}

void fake_pop(const attn_context *context) {
    int (*pop)(void **);
    void *function = NULL, *popped;
    attn_error why;
    if (CHECK_STATUS(attn_driver_function(context, "cuCtxPopCurrent", &function, &why), ATTN_OK,
                     &why)) {
        memcpy(&pop, &function, sizeof pop);
        CHECK_EQ(pop(&popped), FAKE_SUCCESS);
    }
}

int calls_of(const char *function) {
    size_t count;
    const struct fake_call *calls = fake->calls(&count);
    int found = 0;
    for (size_t i = 0; i < count; i++) {
        found += strcmp(calls[i].name, function) == 0;
    }
    return found;
}

const struct fake_call *launch_at(int index) {
    size_t count;
    const struct fake_call *calls = fake->calls(&count);
    for (size_t i = 0; i < count; i++) {
        if (strcmp(calls[i].name, "cuLaunchKernelEx") == 0 && index-- == 0) {
            return &calls[i];
        }
    }
    return NULL;
}

int built_in_variants(attn_variant list[BUILT_IN_MAX]) {
    int count = 0;
    for (int32_t i = 0; count < BUILT_IN_MAX; i++) {
        list[count].size = sizeof list[count];
        if (attn_variant_get(NULL, i, &list[count], NULL) != ATTN_OK) {
            break;
        }
        count += list[count].device != NULL && strcmp(list[count].device, "cuda") == 0;
    }
    return count;
}

attn_variant made_up(const char *name, attn_dtype dtype) {
    return (attn_variant){
        .size = sizeof(attn_variant),
        .name = name,
        .device = "cuda",
        .family = "fwd_scalar",
        .arch = "sm_80",
        .dtypes = 1u << dtype,
        .head_dim_max = 64,
        .head_dim_multiple = 64,
        .block_q = 32,
        .block_kv = 64,
        .stages = 2,
        .warps = 4,
        .shared_bytes = 30000,
    };
}

const char *made_up_ptx(const char *entry, const char *target, char buffer[1024]) {
    snprintf(buffer, 1024,
             ".version 7.0\n.target %s\n.address_size 64\n\n"
             ".visible .entry %s(\n    .param .align 8 .b8 %s_param_0[344]\n)\n{\n    ret;\n}\n",
             target, entry, entry);
    return buffer;
}

size_t made_up_cubin(const char *entry, int arch, unsigned char buffer[1024]) {
    /* section names, then headers: nothing, the names, the kernel's text */
    char names[256] = "";
    const size_t text_name = 1 + sizeof ".shstrtab";
    const size_t length =
        text_name + 1 + (size_t)snprintf(names + text_name, 200, ".text.%s", entry);
    memcpy(names + 1, ".shstrtab", sizeof ".shstrtab");
    const size_t headers_at = (sizeof(Elf64_Ehdr) + length + 7) / 8 * 8;
    const Elf64_Ehdr header = {
        .e_ident = {0x7F, 'E', 'L', 'F', ELFCLASS64, ELFDATA2LSB, EV_CURRENT, 0x41, 8},
        .e_type = ET_EXEC,
        .e_machine = 190,
        .e_version = EV_CURRENT,
        .e_flags = 0x6000004u | (unsigned int)arch << 8,
        .e_ehsize = sizeof header,
        .e_shoff = headers_at,
        .e_shentsize = sizeof(Elf64_Shdr),
        .e_shnum = 3,
        .e_shstrndx = 1,
    };
    const Elf64_Shdr sections[3] = {
        {0},
        {.sh_name = 1, .sh_type = SHT_STRTAB, .sh_offset = sizeof header, .sh_size = length},
        {.sh_name = (Elf64_Word)text_name, .sh_type = SHT_PROGBITS, .sh_offset = sizeof header},
    };
    memset(buffer, 0, 1024);
    memcpy(buffer, &header, sizeof header);
    memcpy(buffer + sizeof header, names, length);
    memcpy(buffer + headers_at, sections, sizeof sections);
    return headers_at + sizeof sections;
}

static bool add(attn_context *context, const attn_variant *variant) {
    char text[1024];
    attn_error why;
    made_up_ptx(variant->name, variant->arch, text);
    return CHECK_STATUS(attn_variant_add(context, variant, text, strlen(text), &why), ATTN_OK,
                        &why);
}

bool add_made_up(attn_context *context, const char *name, attn_dtype dtype) {
    const attn_variant variant = made_up(name, dtype);
    return add(context, &variant);
}

bool add_made_up_mma(attn_context *context, attn_dtype dtype) {
    for (int full = 0; full < 2; full++) {
        char name[64];
        const char *family = full ? "fwd_mma_full" : "fwd_mma";
        snprintf(name, sizeof name, "made_up_%s_%s", family, dtype == ATTN_FP16 ? "fp16" : "bf16");
        attn_variant variant = made_up(name, dtype);
        variant.family = family;
        variant.options = full ? ALL_OPTIONS : 0;
        variant.tensor_cores = true;
        variant.head_dim_max = 128;
        variant.head_dim_multiple = 8;
        variant.block_q = 64;
        if (!add(context, &variant)) {
            return false;
        }
    }
    return true;
}

bool add_made_up_hopper(attn_context *context, attn_dtype dtype) {
    static const char *const families[] = {"fwd_hopper",       "fwd_hopper_causal",
                                           "fwd_hopper_full",  "fwd_hopper_chunk",
                                           "fwd_hopper_mixed", "fwd_hopper_split"};
    for (int i = 0; i < 6; i++) {
        const int rows = i < 5 ? 128 : 64;
        char name[64];
        snprintf(name, sizeof name, "made_up_%s_%s_d128_%dx64", families[i],
                 dtype == ATTN_FP16 ? "fp16" : "bf16", rows);
        attn_variant variant = made_up(name, dtype);
        variant.family = families[i];
        variant.arch = "sm_90a";
        variant.options = i < 2 || i == 5 ? 0U
                                          : ATTN_OPTION_WINDOW | ATTN_OPTION_SOFTCAP |
                                                ATTN_OPTION_PACKED | ATTN_OPTION_USED_KV;
        variant.tensor_cores = true;
        variant.head_dim_max = 128;
        variant.head_dim_multiple = 8;
        variant.block_q = rows;
        variant.warps = i < 5 ? 12 : 8;
        variant.shared_bytes = 131072;
        if (!add(context, &variant)) {
            return false;
        }
    }
    return true;
}

bool add_made_up_backward(attn_context *context, attn_dtype dtype) {
    attn_variant variant = made_up(dtype == ATTN_FP16 ? "made_up_bwd_mma_fp16_d128_64x32"
                                                      : "made_up_bwd_mma_bf16_d128_64x32",
                                   dtype);
    variant.family = "bwd_mma";
    variant.options = ALL_OPTIONS & ~(ATTN_OPTION_PAGED | ATTN_OPTION_DRAFT);
    variant.tensor_cores = true;
    variant.head_dim_max = 128;
    variant.head_dim_multiple = 8;
    variant.block_q = 64;
    variant.block_kv = 32;
    return add(context, &variant);
}

attn_problem gpu_problem(void) {
    attn_problem p;
    attn_problem_init(&p);
    p.dtype = ATTN_FP16;
    p.batch = 2;
    p.heads_q = 4;
    p.seq_q = 40;
    p.seq_kv = 60;
    p.head_dim = 64;
    return p;
}

attn_problem fitting_problem(const attn_variant *variant) {
    attn_problem p = gpu_problem();
    p.dtype = (attn_dtype)__builtin_ctz(variant->dtypes);
    p.dtype_kv = (variant->dtypes >> ATTN_E4M3 & 1) != 0 ? (int32_t)ATTN_E4M3 : -1;
    p.head_dim = variant->head_dim_max < p.head_dim ? variant->head_dim_max : p.head_dim;
    p.v_in_k = variant->v_in_k > 0;
    if (strcmp(variant->family, "fwd_hopper_causal") == 0) {
        p.causal = ATTN_CAUSAL_TOP_LEFT;
    }
    return p;
}

attn_plan *plan_on(attn_context *context, const attn_problem *problem, const char *variant) {
    attn_plan *plan = NULL;
    attn_error why;
    CHECK_STATUS(attn_plan_create(context, problem, ATTN_BY_NAME(variant), &plan, &why), ATTN_OK,
                 &why);
    return plan;
}

attn_tensors stand_ins(void) {
    attn_tensors t;
    attn_tensors_init(&t);
    t.q = (const void *)0x100000000000;
    t.k = (const void *)0x200000000000;
    t.v = (const void *)0x300000000000;
    t.o = (void *)0x400000000000;
    t.lse = (float *)0x500000000000;
    t.bias = (const void *)0x510000000000;
    t.alibi_slopes = (const float *)0x520000000000;
    t.sink = (const float *)0x530000000000;
    t.cu_seqlens_q = (const int32_t *)0x540000000000;
    t.cu_seqlens_kv = (const int32_t *)0x550000000000;
    t.used_kv = (const int32_t *)0x560000000000;
    t.mask = (const uint8_t *)0x570000000001;
    t.block_table = (const int32_t *)0x580000000000;
    t.used_q = (const int32_t *)0x590000000000;
    t.offsets = (const int32_t *)0x5d0000000000;
    t.draft_mask = (const uint64_t *)0x5a0000000000;
    t.k_scale = (const float *)0x5b0000000000;
    t.v_scale = (const float *)0x5c0000000000;
    t.d_o = (const void *)0x610000000000;
    t.dq = (void *)0x620000000000;
    t.dk = (void *)0x630000000000;
    t.dv = (void *)0x640000000000;
    t.d_sink = (float *)0x650000000000;
    return t;
}
