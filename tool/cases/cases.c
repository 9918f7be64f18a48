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

#include "cases/shape.h"

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

/* "; mask -1,-1,1,40": name and strides, -1 where the library chooses the stride. */
static void print_scores(const char *name, const attn_bias_strides *s, char text[160]) {
    const int64_t strides[4] = {s->batch, s->head, s->row, s->col};
    int used = snprintf(text, 160, "; %s", name);
    for (int i = 0; i < 4; i++) {
        used += snprintf(text + used, (size_t)(160 - used), "%c%lld", i == 0 ? ' ' : ',',
                         strides[i] == ATTN_AUTO ? -1 : (long long)strides[i]);
    }
}

const char *recipe_print(const struct recipe *recipe, char *buffer, size_t size) {
    static const char *const distributions[] = {"normal", "large",   "constant", "spike",
                                                "tiny",   "one-hot", "growing"};
    static const char *const arrangements[] = {"given", "gaps", "fused", "broadcast", "mixed"};
    attn_problem p = recipe->problem;
    char text[320], bias[160] = "", mask[160] = "", name[40];
    p.heads_kv = p.heads_kv < 0 ? p.heads_q : p.heads_kv;
    p.head_dim_v = p.head_dim_v < 0 ? p.head_dim : p.head_dim_v;
    if (p.bias) {
        snprintf(name, sizeof name, "bias %s%s", DTYPE_NAMES[p.bias_dtype],
                 recipe->masking_bias ? " -inf" : "");
        print_scores(name, &p.bias_strides, bias);
    }
    if (p.mask) {
        print_scores("mask", &p.mask_strides, mask);
    }
    snprintf(buffer, size, "seed %llu: %s; %s, %s, scale %g, align %d%s%s%s%s%s",
             (unsigned long long)recipe->seed, problem_text(&p, text, sizeof text),
             arrangements[recipe->arrangement], distributions[recipe->distribution],
             (double)p.scale, p.alignment, p.alibi && recipe->slopes ? ", slopes" : "",
             p.v_in_k ? ", v_in_k" : "", recipe->lse ? ", lse" : "", bias, mask);
    return buffer;
}
