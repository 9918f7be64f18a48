/* SPDX-License-Identifier: Apache-2.0
 *
 * cases.c - guarded memory and random recipes.
 *
 * Invariant: a recipe depends on its seed alone, so that the seed of a failure repeats it.
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

static int64_t draw_length(uint64_t *rng) {
    switch (rng_range(rng, 0, 9)) {
    case 0: return 1;
    case 1: return rng_range(rng, 2, 8);
    case 2:
    case 3:
    case 4: return rng_range(rng, 1, 64);
    case 9: return rng_range(rng, 200, 700);
    default: return rng_range(rng, 1, 200);
    }
}

static int64_t draw_dim(uint64_t *rng) {
    static const int64_t usual[] = {1,  2,  4,  8,  16,  31,  32,  33,  48,  63, 64,
                                    65, 72, 80, 96, 127, 128, 129, 160, 192, 256};
    const int64_t count = (int64_t)(sizeof usual / sizeof usual[0]);
    return rng_chance(rng, 60) ? usual[rng_range(rng, 0, count - 1)] : rng_range(rng, 1, 160);
}

static void draw_sizes(uint64_t *rng, attn_problem *p) {
    static const int64_t ratios[] = {1, 1, 1, 2, 3, 4, 8};
    const double budget = 4e6; /* keeps the reference to some ten milliseconds */
    const int64_t ratio = ratios[rng_range(rng, 0, 6)];
    p->batch = rng_range(rng, 1, 3);
    p->heads_kv = rng_range(rng, 1, 3);
    p->seq_q = draw_length(rng);
    p->seq_kv = rng_chance(rng, 40) ? p->seq_q : draw_length(rng);
    p->head_dim = draw_dim(rng);
    p->head_dim_v = rng_chance(rng, 70) ? p->head_dim : draw_dim(rng);
    while ((double)p->batch * (double)(p->heads_kv * ratio) * (double)p->seq_q * (double)p->seq_kv *
               (double)(p->head_dim + p->head_dim_v) >
           budget) {
        if (p->batch > 1) {
            p->batch--;
        } else if (p->heads_kv > 1) {
            p->heads_kv--;
        } else if (p->seq_q > p->seq_kv || p->seq_q == p->seq_kv) {
            p->seq_kv -= p->seq_q == p->seq_kv ? p->seq_kv / 3 : 0;
            p->seq_q -= p->seq_q / 3;
        } else {
            p->seq_kv -= p->seq_kv / 3;
        }
    }
    p->heads_q = p->heads_kv * ratio;
    p->heads_kv = ratio == 1 && rng_chance(rng, 50) ? -1 : p->heads_kv;
    p->head_dim_v = p->head_dim_v == p->head_dim && rng_chance(rng, 50) ? -1 : p->head_dim_v;
}

static void draw_bounds(uint64_t *rng, attn_problem *p) {
    if (rng_chance(rng, 45)) {
        p->causal = rng_chance(rng, 50) ? ATTN_CAUSAL_TOP_LEFT : ATTN_CAUSAL_BOTTOM_RIGHT;
    }
    if (rng_chance(rng, 30)) {
        switch (rng_range(rng, 0, 4)) {
        case 0: p->window_left = p->window_right = 0; break;
        case 1: p->window_left = rng_range(rng, 0, p->seq_kv); break;
        case 2: p->window_right = rng_range(rng, 0, p->seq_kv); break;
        case 3: p->window_left = p->window_right = INT32_MAX; break;
        default: p->window_left = rng_range(rng, 0, 40); p->window_right = rng_range(rng, 0, 40);
        }
    }
}

/* Of a bias or a mask. */
static void draw_strides(uint64_t *rng, const attn_problem *p, attn_bias_strides *s) {
    switch (rng_range(rng, 0, 3)) {
    case 0: break; /* ATTN_AUTO */
    case 1:        /* keys far apart, rows close */
        *s = (attn_bias_strides){p->heads_q * p->seq_q * p->seq_kv, p->seq_q * p->seq_kv, 1,
                                 p->seq_q};
        break;
    default:
        s->col = rng_range(rng, 1, 2);
        s->row = p->seq_kv * s->col + rng_range(rng, 0, 3);
        s->head = p->seq_q * s->row;
        s->batch = p->heads_q * s->head;
        s->batch *= rng_chance(rng, 50);
        s->head *= rng_chance(rng, 50);
        s->row *= rng_chance(rng, 60);
        s->col *= rng_chance(rng, 80);
    }
}

static void draw_bias(uint64_t *rng, struct recipe *recipe) {
    attn_problem *p = &recipe->problem;
    p->bias = true;
    p->bias_dtype = (attn_dtype)rng_range(rng, 0, 2);
    recipe->masking_bias = rng_chance(rng, 30);
    draw_strides(rng, p, &p->bias_strides);
}

void recipe_draw_mask(struct recipe *recipe) {
    uint64_t state = recipe->seed ^ 0x3A5C, *rng = &state;
    attn_problem *p = &recipe->problem;
    p->mask = rng_chance(rng, 25);
    if (p->mask) {
        draw_strides(rng, p, &p->mask_strides);
    }
}

static void draw_options(uint64_t *rng, struct recipe *recipe) {
    attn_problem *p = &recipe->problem;
    const float scales[] = {0.0f, -0.25f, 0.1f, 0.5f};
    if (rng_chance(rng, 25)) {
        p->scale = scales[rng_range(rng, 0, 3)];
    }
    if (rng_chance(rng, 30)) {
        return; /* for the kernels that take no other options */
    }
    if (rng_chance(rng, 25)) {
        p->softcap = (float)rng_range(rng, 1, 40);
    }
    if (rng_chance(rng, 25)) {
        p->alibi = true;
        recipe->slopes = rng_chance(rng, 60);
        if (recipe->slopes && rng_chance(rng, 50)) {
            p->alibi_batch_stride = p->heads_q + rng_range(rng, 0, 3);
        }
    }
    p->sink = rng_chance(rng, 25);
    if (rng_chance(rng, 30)) {
        draw_bias(rng, recipe);
    }
}

void recipe_draw(struct recipe *recipe, uint64_t seed) {
    uint64_t state = seed ^ 0x5EED, *rng = &state;
    attn_problem start;
    attn_problem_init(&start);
    recipe_init(recipe, &start, seed);
    attn_problem *p = &recipe->problem;
    p->dtype = (attn_dtype)rng_range(rng, 0, 2);
    p->layout = (attn_layout)rng_range(rng, 0, 1);
    draw_sizes(rng, p);
    draw_bounds(rng, p);
    draw_options(rng, recipe);
    p->packed = rng_chance(rng, 20);
    p->batch += p->packed ? rng_range(rng, 0, 3) : 0;
    p->used_kv = rng_chance(rng, 20);
    const int32_t element = (int32_t)attn_dtype_size(p->dtype);
    p->alignment = rng_chance(rng, 30) ? element : rng_chance(rng, 20) ? 64 : 16;
    recipe->lse = rng_chance(rng, 70);
    if (rng_chance(rng, 40)) {
        recipe->distribution = (enum distribution)rng_range(rng, 1, DIST_COUNT - 1);
    }
    if (rng_chance(rng, 50)) {
        recipe->arrangement = (enum arrangement)rng_range(rng, 1, ARRANGE_COUNT - 1);
    }
    if (recipe->arrangement == ARRANGE_FUSED) {
        if (p->bias) { /* its strides were drawn for the old length */
            p->bias_strides = (attn_bias_strides){ATTN_AUTO, ATTN_AUTO, ATTN_AUTO, ATTN_AUTO};
        }
        p->seq_kv = p->seq_q = p->seq_q < p->seq_kv ? p->seq_q : p->seq_kv;
        p->head_dim_v = -1;
    }
    recipe_draw_mask(recipe);
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
    char bias[160] = "", mask[160] = "", strides[100];
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
             " window %lld,%lld softcap %g%s%s%s%s%s%s%s align %d%s",
             (unsigned long long)recipe->seed, dtypes[p->dtype], (long long)p->batch,
             (long long)p->heads_q, (long long)p->heads_kv, (long long)p->seq_q,
             (long long)p->seq_kv, (long long)p->head_dim, (long long)p->head_dim_v,
             p->layout == ATTN_BSHD ? "bshd" : "bhsd", arrangements[recipe->arrangement],
             distributions[recipe->distribution], (double)p->scale, causals[p->causal],
             (long long)p->window_left, (long long)p->window_right, (double)p->softcap,
             p->alibi ? " alibi" : "", p->alibi && recipe->slopes ? "(given)" : "",
             p->sink ? " sink" : "", bias, mask, p->packed ? " packed" : "",
             p->used_kv ? " used" : "", p->alignment, recipe->lse ? " lse" : "");
    return buffer;
}
