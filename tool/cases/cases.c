/* SPDX-License-Identifier: Apache-2.0
 *
 * cases.c - guarded memory; recipes as text; a sample before and after a run: damage, what its
 * result must be, and whether it is.
 *
 * Invariant: the bytes beside guarded data are 0xFF until something writes there, and sample_damage
 * finds every byte that a kernel must not write and that is not 0xFF any more. A result counts as
 * right only by attn_compare.
 */
#include "cases/cases.h"

#include <stdio.h>
#include <stdlib.h>
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

/* ---- damage ---------------------------------------------------------------------------------- */

static uint64_t hash_inputs(const struct sample *s) {
    uint64_t hash = 0;
    for (int i = 0; i < SAMPLE_BLOCKS; i++) {
        hash = i != BLOCK_O && i != BLOCK_LSE ? guarded_hash(&s->blocks[i], hash) : hash;
    }
    return hash;
}

void sample_touch(struct sample *s) {
    s->inputs = hash_inputs(s);
}

void sample_poison(struct sample *s) {
    if (s->gradients != NULL) {
        gradients_poison(s->gradients, s);
        return;
    }
    memset(s->o.data, 0xFF, s->o.size);
    memset(s->lse.data, 0xFF, s->lse.size);
}

/* clang-format off */
const char *const SAMPLE_BLOCK_NAMES[SAMPLE_BLOCKS] = {
    "Q (or fused QKV)", "K", "V", "O", "the LSE", "the bias", "the mask", "the ALiBi slopes",
    "the sink", "cu_seqlens_q", "cu_seqlens_kv", "used_kv", "the scales of K", "the scales of V",
    "block_table", "used_q", "the draft mask", "offsets",
};
/* clang-format on */

const char *sample_damage(const struct sample *s) {
    static _Thread_local char text[80];
    for (int i = 0; i < SAMPLE_BLOCKS; i++) {
        if (!guarded_intact(&s->blocks[i])) {
            snprintf(text, sizeof text, "bytes beside %s were written", SAMPLE_BLOCK_NAMES[i]);
            return text;
        }
    }
    if (hash_inputs(s) != s->inputs) {
        return "an input was changed";
    }
    const struct output_view o = view_of_o(s), lse = view_of_lse(s);
    if (!view_intact(&o, &s->o)) {
        return "bytes between the rows of O were written";
    }
    if (s->recipe.lse && !view_intact(&lse, &s->lse)) {
        return "bytes between the rows of LSE were written";
    }
    return s->gradients != NULL ? gradients_damage(s->gradients, s) : NULL;
}

/* ---- the result ------------------------------------------------------------------------------ */

static _Thread_local char message[800];

static const char *tell(const char *what, const char *why) {
    snprintf(message, sizeof message, "%s: %s", what, why);
    return message;
}

const char *expectation_make_rows(struct expectation *expected, const attn_context *context,
                                  const struct sample *s, attn_row *rows, size_t count) {
    attn_error why;
    const attn_problem *p = &s->full;
    const size_t values = count * (size_t)p->head_dim_v + 1;
    expected->count = count;
    expected->rows = rows;
    expected->o = malloc(values * sizeof(double));
    expected->lse = malloc((count + 1) * sizeof(double));
    expected->twin = malloc(values * sizeof(double));
    if (!expected->o || !expected->lse || !expected->twin) {
        return "no memory for the reference";
    }
    if (attn_reference(context, &s->problem, &s->tensors, ATTN_EXACT, rows, count, expected->o,
                       expected->lse, &why) != ATTN_OK ||
        attn_reference(context, &s->problem, &s->tensors, ATTN_TWIN, rows, count, expected->twin,
                       NULL, &why) != ATTN_OK) {
        return tell("attn_reference", why.text);
    }
    return NULL;
}

const char *expectation_make(struct expectation *expected, const attn_context *context,
                             const struct sample *s) {
    const attn_problem *p = &s->full;
    const size_t count = (size_t)(p->batch * p->heads_q * p->seq_q);
    return expectation_make_rows(expected, context, s, NULL, count);
}

void expectation_free(struct expectation *expected) {
    free(expected->rows);
    free(expected->o);
    free(expected->lse);
    free(expected->twin);
    memset(expected, 0, sizeof *expected);
}

attn_row expectation_row(const struct expectation *expected, const struct sample *s, size_t index) {
    const attn_problem *p = &s->full;
    const int64_t at = (int64_t)index;
    if (expected->rows != NULL) {
        return expected->rows[index];
    }
    return (attn_row){at / (p->heads_q * p->seq_q), at / p->seq_q % p->heads_q, at % p->seq_q};
}

const char *sample_compare(const struct sample *s, const struct expectation *expected,
                           attn_comparison *result) {
    attn_error why;
    attn_comparison local;
    result = result ? result : &local;
    *result = (attn_comparison){.size = sizeof *result};
    if (attn_compare(&s->problem, &s->tensors, expected->rows, expected->count, expected->o,
                     expected->lse, expected->twin, result, &why) != ATTN_OK) {
        return tell("attn_compare", why.text);
    }
    if (result->pass) {
        return NULL;
    }
    attn_comparison_print(result, message, sizeof message);
    return message;
}
