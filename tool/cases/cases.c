/* SPDX-License-Identifier: Apache-2.0
 *
 * cases.c - guarded memory, and recipes as text.
 *
 * Invariant: the bytes beside guarded data are 0xFF until something writes there.
 */
#include "cases/cases.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- guarded memory -------------------------------------------------------------------------- */

static size_t round_up(size_t value, size_t multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

bool guarded_alloc(struct guarded *memory, size_t size, size_t alignment, bool at_end) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t skew = alignment < 16 ? alignment : 0; /* keeps the address off multiples of 16 */
    const size_t body = round_up(size + 64 + alignment, page);
    memory->size = size;
    memory->map_size = body + 2 * page;
    void *map = mmap(NULL, memory->map_size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) {
        memset(memory, 0, sizeof *memory);
        return false;
    }
    memory->map = map;
    unsigned char *first = memory->map + page;
    mprotect(first, body, PROT_READ | PROT_WRITE);
    memset(first, 0xFF, body);
    memory->body = first;
    memory->body_size = body;
    memory->data = at_end ? first + body - round_up(size, alignment) : first + skew;
    if (at_end && skew && (uintptr_t)memory->data % 16 == 0) {
        memory->data -= skew;
    }
    return true;
}

bool is_poison(const unsigned char *bytes, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (bytes[i] != 0xFF) {
            return false;
        }
    }
    return true;
}

bool guarded_intact(const struct guarded *memory) {
    if (memory->map == NULL) {
        return true;
    }
    const size_t before = (size_t)(memory->data - memory->body);
    const size_t after = memory->body_size - before - memory->size;
    return is_poison(memory->body, before) && is_poison(memory->data + memory->size, after);
}

uint64_t guarded_hash(const struct guarded *memory, uint64_t before) {
    for (size_t i = 0; i < memory->size; i++) {
        before = (before ^ memory->data[i]) * 0x100000001B3u;
    }
    return before;
}

void guarded_free(struct guarded *memory) {
    if (memory->map) {
        munmap(memory->map, memory->map_size);
    }
    memset(memory, 0, sizeof *memory);
}

/* ---- recipes --------------------------------------------------------------------------------- */

void recipe_init(struct recipe *recipe, const attn_problem *problem, uint64_t seed) {
    *recipe = (struct recipe){.seed = seed, .problem = *problem, .granule = 1, .lse = true};
}

void recipe_resample(struct recipe *recipe, size_t number) {
    recipe->seed += (uint64_t)number << 32;
}

static const char *print_strides(const attn_bias_strides *s, char *buffer, size_t size) {
    snprintf(buffer, size, "%lld,%lld,%lld,%lld", s->batch == ATTN_AUTO ? -1 : (long long)s->batch,
             s->head == ATTN_AUTO ? -1 : (long long)s->head,
             s->row == ATTN_AUTO ? -1 : (long long)s->row,
             s->col == ATTN_AUTO ? -1 : (long long)s->col);
    return buffer;
}

const char *recipe_print(const struct recipe *recipe, char *buffer, size_t size) {
    static const char *const dtypes[] = {"fp32", "fp16", "bf16"};
    static const char *const causals[] = {"", " top-left", " bottom-right"};
    static const char *const distributions[] = {"normal", "large",   "constant", "spike",
                                                "tiny",   "one-hot", "growing"};
    static const char *const arrangements[] = {"given", "gaps", "fused", "broadcast", "mixed"};
    const attn_problem *p = &recipe->problem;
    char bias[160] = "", mask[160] = "", pages[40] = "", strides[100];
    if (p->page_size > 0) {
        snprintf(pages, sizeof pages, " pages(%lld)", (long long)p->page_size);
    }
    if (p->bias) {
        snprintf(bias, sizeof bias, " bias(%s%s %s)", dtypes[p->bias_dtype],
                 recipe->masking_bias ? " -inf" : "",
                 print_strides(&p->bias_strides, strides, sizeof strides));
    }
    if (p->mask) {
        snprintf(mask, sizeof mask, " mask(%s)",
                 print_strides(&p->mask_strides, strides, sizeof strides));
    }
    snprintf(buffer, size,
             "seed %llu: %s B%lld H%lld/%lld S%lld/%lld D%lld/%lld %s %s %s scale %g%s"
             " window %lld,%lld softcap %g%s%s%s%s%s%s%s%s%s offset %lld%s%s%s align %d%s",
             (unsigned long long)recipe->seed, dtypes[p->dtype], (long long)p->batch,
             (long long)p->heads_q, (long long)p->heads_kv, (long long)p->seq_q,
             (long long)p->seq_kv, (long long)p->head_dim, (long long)p->head_dim_v,
             p->layout == ATTN_BSHD ? "bshd" : "bhsd", arrangements[recipe->arrangement],
             distributions[recipe->distribution], (double)p->scale, causals[p->causal],
             (long long)p->window_left, (long long)p->window_right, (double)p->softcap,
             p->alibi ? " alibi" : "", p->alibi && recipe->slopes ? "(given)" : "",
             p->sink ? " sink" : "", bias, mask, p->packed ? " packed" : "",
             p->used_q ? " used_q" : "", p->used_kv ? " used" : "", p->draft ? " draft" : "",
             (long long)(p->q_offset - p->kv_offset), p->offsets ? " offsets" : "", pages,
             p->v_in_k ? " v_in_k" : "", p->alignment, recipe->lse ? " lse" : "");
    return buffer;
}
