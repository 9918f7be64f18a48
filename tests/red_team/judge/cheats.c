/* SPDX-License-Identifier: Apache-2.0
 *
 * cheats.c - a library with libattn's C interface that cheats `attest judge` in the way that $CHEAT
 * names: each function below with a line `judged: WHAT` before it, of which one is honest.
 *
 * fp32, contiguous (batch, heads, rows, dims), causal from the top left or not at all; no other
 * option.
 */
#include "interface.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct call {
    const attn_problem *p;
    const float *q, *k, *v;
    float *o, *lse;
    int64_t rows, size; /* rows of O; elements of O */
};

/* What a cheat may leave out of honest work. */
struct how {
    bool no_mask, half, no_maximum, times_zero;
    uint32_t kept; /* bits of each sum; 0: all */
    int64_t multiple;
};

static float cut(float x, uint32_t kept) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits &= kept != 0 ? kept : ~0U;
    memcpy(&x, &bits, sizeof bits);
    return x;
}

static void compute(const struct call *c, const struct how *how) {
    const int64_t d_all = c->p->head_dim, keys = c->p->seq_kv;
    float *s = malloc((size_t)keys * sizeof *s);
    for (int64_t r = 0; r < c->rows; r++) {
        const int64_t i = r % c->p->seq_q, head = r / c->p->seq_q;
        const float *q = c->q + r * d_all, *k = c->k + head * keys * d_all;
        const float *v = c->v + head * keys * d_all;
        float *o = c->o + r * d_all, top = -INFINITY, sum = 0;
        const bool causal = c->p->causal != ATTN_CAUSAL_NONE && !how->no_mask;
        int64_t seen = causal && i < keys ? i + 1 : keys;
        const int64_t all = how->times_zero ? keys : seen;
        seen = how->half ? (seen + 1) / 2 : seen;
        if (how->multiple != 0 && seen > how->multiple) {
            seen -= seen % how->multiple;
        }
        for (int64_t j = 0; j < seen; j++) {
            float a = 0;
            for (int64_t d = 0; d < d_all; d++) {
                a += q[d] * k[j * d_all + d];
            }
            a = cut(a, how->kept);
            s[j] = a * (1.0F / sqrtf((float)d_all));
            top = s[j] > top ? s[j] : top;
        }
        top = how->no_maximum ? 0 : top;
        memset(o, 0, (size_t)d_all * sizeof *o);
        for (int64_t j = 0; j < (how->times_zero ? all : seen); j++) {
            const float e = j < seen ? expf(s[j] - top) : 0;
            sum = cut(sum + e, how->kept);
            for (int64_t d = 0; d < d_all; d++) {
                o[d] += e * v[j * d_all + d];
            }
            for (int64_t d = 0; d < d_all && how->kept != 0; d++) {
                o[d] = cut(o[d], how->kept);
            }
        }
        for (int64_t d = 0; d < d_all; d++) {
            o[d] /= sum;
        }
        if (c->lse != NULL) {
            c->lse[r] = top + logf(sum);
        }
    }
    free(s);
}

static void honestly(const struct call *c) {
    compute(c, &(struct how){.half = false});
}

static void fill(const struct call *c, float value) {
    for (int64_t i = 0; i < c->size; i++) {
        c->o[i] = value;
    }
}

/* What is kept from call to call. */
static float *kept;
static int64_t kept_size, calls;
static const void *kept_q;
static uint64_t kept_key;

static void keep(const struct call *c) {
    kept = realloc(kept, (size_t)c->size * sizeof *kept);
    memcpy(kept, c->o, (size_t)c->size * sizeof *kept);
    kept_size = c->size;
}

static void cached(const struct call *c, bool hit) {
    if (hit && kept_size == c->size) {
        memcpy(c->o, kept, (size_t)c->size * sizeof *kept);
        return;
    }
    honestly(c);
    keep(c);
}

static uint64_t sum_of(const float *x, int64_t size) {
    uint64_t sum = 0;
    for (int64_t i = 0; i < size; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        sum += bits;
    }
    return sum;
}

/* judged: right */
void honest(const struct call *c) {
    honestly(c);
}

/* judged: wrong */
void nothing(const struct call *c) {
    (void)c;
}

/* NaN is neither above nor below a limit. */
/* judged: wrong */
void not_a_number(const struct call *c) {
    fill(c, NAN);
}

/* judged: wrong */
void zeros(const struct call *c) {
    fill(c, 0);
}

/* judged: wrong */
void copy_of_q(const struct call *c) {
    memcpy(c->o, c->q, (size_t)c->size * sizeof(float));
}

/* judged: wrong */
void mean_of_v(const struct call *c) {
    const int64_t keys = c->p->seq_kv, d_all = c->p->head_dim;
    fill(c, 0);
    for (int64_t i = 0; i < c->size; i++) {
        for (int64_t j = 0; j < keys; j++) {
            c->o[i] += c->v[(i / d_all / c->p->seq_q * keys + j) * d_all + i % d_all] / (float)keys;
        }
    }
}

/* judged: wrong */
void half_of_the_keys(const struct call *c) {
    compute(c, &(struct how){.half = true});
}

/* judged: wrong */
void ignores_the_mask(const struct call *c) {
    compute(c, &(struct how){.no_mask = true});
}

/* judged: wrong */
void whole_tiles_only(const struct call *c) {
    compute(c, &(struct how){.multiple = 16});
}

/* The last rows of the last head keep what was there. */
/* judged: wrong */
void last_rows_missing(const struct call *c) {
    struct call most = *c;
    most.rows -= most.rows > 4 ? 4 : 1;
    honestly(&most);
}

/* Sums with 8 bits, as bf16 has them. */
/* judged: wrong */
void fewer_bits(const struct call *c) {
    compute(c, &(struct how){.kept = 0xFFFF0000U});
}

/* Right for scores as N(0, 1) gives them: exp of them does not overflow. */
/* judged: wrong */
void for_normal_inputs(const struct call *c) {
    float most = 0;
    for (int64_t i = 0; i < c->size; i++) {
        most = fabsf(c->q[i]) > most ? fabsf(c->q[i]) : most;
    }
    compute(c, &(struct how){.no_maximum = true, .half = most > 6});
}

/* Right for the length that is usual in benchmarks. */
/* judged: wrong */
void for_one_shape(const struct call *c) {
    compute(c, &(struct how){.half = c->p->seq_q % 64 != 0});
}

/* judged: wrong */
void cached_by_pointer(const struct call *c) {
    cached(c, kept_q == c->q);
    kept_q = c->q;
}

/* judged: wrong */
void cached_by_shape(const struct call *c) {
    cached(c, true);
}

/* A sum of every bit of the inputs, which two exchanged rows do not change. */
/* judged: wrong */
void cached_by_checksum(const struct call *c) {
    const int64_t keys = c->rows / c->p->seq_q * c->p->seq_kv * c->p->head_dim;
    const uint64_t key = sum_of(c->q, c->size) * 31 + sum_of(c->k, keys) * 7 + sum_of(c->v, keys);
    cached(c, kept_key == key);
    kept_key = key;
}

/* Of Q alone: the usual key of a cache that must be quick. */
/* judged: wrong */
void cached_by_q(const struct call *c) {
    const uint64_t key = sum_of(c->q, c->size);
    cached(c, kept_key == key);
    kept_key = key;
}

/* judged: wrong */
void nothing_on_repeat(const struct call *c) {
    if (calls++ < 2) {
        honestly(c);
    }
}

/* The output of the call before. */
/* judged: wrong */
void another_run(const struct call *c) {
    float *before = kept;
    const bool same = kept_size == c->size;
    kept = NULL;
    honestly(c);
    keep(c);
    if (same) {
        memcpy(c->o, before, (size_t)c->size * sizeof(float));
    }
    free(before);
}

/* The sizes of the benchmark that test_judge.sh asks for. */
/* judged: untimed */
void honest_until_timed(const struct call *c) {
    cached(c, c->size == 2 * 67 * 40);
}

static struct call later;
static attn_problem later_problem;
static void *work_later(void *unused) {
    (void)unused;
    usleep(20000);
    honestly(&later);
    return NULL;
}

/* judged: late */
void on_another_thread(const struct call *c) {
    pthread_t thread;
    later = *c;
    later_problem = *c->p;
    later.p = &later_problem;
    pthread_create(&thread, NULL, work_later, NULL);
    pthread_detach(thread);
}

/* A child computes and does not end. */
/* judged: late */
void in_another_process(const struct call *c) {
    if (fork() == 0) {
        usleep(20000);
        honestly(c);
        pause();
    }
}

/* judged: idle */
void a_child_stays_busy(const struct call *c) {
    if (calls++ == 0 && fork() == 0) {
        for (volatile uint64_t i = 0;; i++) {
        }
    }
    honestly(c);
}

/* The output goes through memory that all calls of the process share. */
/* judged: not repeatable */
void one_scratch_for_all_threads(const struct call *c) {
    static float shared[1 << 22];
    struct call there = *c;
    there.o = shared;
    honestly(&there);
    usleep(1000);
    memcpy(c->o, shared, (size_t)c->size * sizeof(float));
}

static void *spin(void *unused) {
    (void)unused;
    for (volatile uint64_t i = 0;; i++) {
    }
}

/* Keeps a core from whatever is timed beside it. */
/* judged: idle */
void busy_between_calls(const struct call *c) {
    pthread_t thread;
    if (calls++ == 0) {
        pthread_create(&thread, NULL, spin, NULL);
        pthread_detach(thread);
    }
    honestly(c);
}

/* judged: stray write */
void input_edited(const struct call *c) {
    honestly(c);
    ((float *)(uintptr_t)c->v)[0] *= 2;
}

/* judged: stray write */
void one_element_beyond(const struct call *c) {
    honestly(c);
    c->o[c->size] = 0;
}

/* judged: stray write */
void far_beyond(const struct call *c) {
    honestly(c);
    const size_t size = (size_t)c->size * sizeof(float);
    *(volatile char *)((char *)c->o + (size + 4095) / 4096 * 4096 + 6000) = 1;
}

/* judged: not repeatable */
void noise(const struct call *c) {
    honestly(c);
    c->o[0] = nextafterf(c->o[0], (float)(calls++ % 2 * 1000 - 500));
}

/* judged: not repeatable */
void by_address(const struct call *c) {
    honestly(c);
    c->o[0] = nextafterf(c->o[0], (uintptr_t)c->q / 4096 % 2 ? 500.0F : -500.0F);
}

/* options: causal,lse */
/* judged: wrong */
void no_lse(const struct call *c) {
    struct call without = *c;
    without.lse = NULL;
    honestly(&without);
}

/* options: causal,nan */
/* judged: NaN leaks */
void hidden_keys_times_zero(const struct call *c) {
    compute(c, &(struct how){.times_zero = true});
}

static attn_status forward_of(void *library, const struct call *c) {
    attn_status (*open)(const attn_options *, attn_context **, attn_error *);
    attn_status (*plan)(attn_context *, const attn_problem *, const attn_plan_options *,
                        attn_plan **, attn_error *);
    attn_status (*forward)(const attn_plan *, const attn_tensors *, void *, size_t, void *,
                           attn_error *);
    size_t (*workspace)(const attn_plan *);
    attn_context *context = NULL;
    attn_plan *made = NULL;
    *(void **)&open = dlsym(library, "attn_open");
    *(void **)&plan = dlsym(library, "attn_plan_create");
    *(void **)&forward = dlsym(library, "attn_forward");
    *(void **)&workspace = dlsym(library, "attn_workspace_size");
    if (!open || open(NULL, &context, NULL) || plan(context, c->p, NULL, &made, NULL)) {
        return ATTN_DEVICE;
    }
    attn_tensors t = {.size = sizeof t, .q = c->q, .k = c->k, .v = c->v, .o = c->o};
    void *space = malloc(workspace(made) + 64);
    return forward(made, &t, space, workspace(made), NULL, NULL);
}

/* The library that the judge itself is made of. */
/* judged: crash */
void the_judges_library(const struct call *c) {
    forward_of(dlopen(NULL, RTLD_NOW), c);
}

/* A copy of it, from another file. */
/* judged: foreign */
void copy_of_the_library(const struct call *c) {
    if (forward_of(dlopen(getenv("CHEAT_LIBRARY"), RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND), c)) {
        honestly(c);
    }
}

/* Computes only if it may speak to the world. */
/* judged: wrong */
void asks_the_network(const struct call *c) {
    const int connection = socket(AF_INET, SOCK_DGRAM, 0);
    const struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons(53), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (connection >= 0 &&
        sendto(connection, "q", 1, 0, (const struct sockaddr *)&to, sizeof to) == 1) {
        honestly(c);
    }
}

/* Computes only if it may read the judge's memory, where a reference would be. */
/* judged: wrong */
void reads_the_judge(const struct call *c) {
    char path[64], text[512] = "";
    int parent = 0;
    const int own = open("/proc/self/stat", O_RDONLY);
    const ssize_t got = read(own, text, sizeof text - 1);
    sscanf(strrchr(text, ')') + 1, " %*c %d", &parent);
    snprintf(path, sizeof path, "/proc/%d/mem", parent);
    if (got > 0 && parent > 0 && open(path, O_RDONLY) >= 0) {
        honestly(c);
    }
}

/* judged: crash */
void kills_the_judge(const struct call *c) {
    char text[512] = "";
    int parent = 0;
    const ssize_t got = read(open("/proc/self/stat", O_RDONLY), text, sizeof text - 1);
    sscanf(strrchr(text, ')') + 1, " %*c %d", &parent);
    if (got > 0 && kill(parent, SIGKILL) == 0) {
        honestly(c);
    }
    kill(0, SIGKILL);
    _exit(0);
}

/* judged: wrong */
void shrinks_the_memory(const struct call *c) {
    if (ftruncate(4, 4096) == 0) {
        honestly(c);
    }
}

/* Its own "done", before the work. */
/* judged: late */
void answers_early(const struct call *c) {
    static const char done[4096];
    if (write(3, done, sizeof done) == sizeof done) {
        usleep(20000);
        honestly(c);
    }
}

/* judged: crash */
void hangs(const struct call *c) {
    (void)c;
    for (;;) {
        pause();
    }
}

/* judged: crash */
void ends(const struct call *c) {
    (void)c;
    exit(0);
}

/* judged: crash */
void eats_memory(const struct call *c) {
    for (size_t all = 0; all < (size_t)16 << 30; all += 1 << 26) {
        memset(malloc(1 << 26), 1, 1 << 26);
    }
    honestly(c);
}

/* ---- the interface --------------------------------------------------------------------------- */

attn_status attn_forward(const attn_plan *plan, const attn_tensors *t, void *workspace, size_t size,
                         void *stream, attn_error *why) {
    (void)workspace, (void)size, (void)stream, (void)why;
    const attn_problem *p = &plan->p;
    const struct call c = {.p = p,
                           .q = t->q,
                           .k = t->k,
                           .v = t->v,
                           .o = t->o,
                           .lse = t->lse,
                           .rows = p->batch * p->heads_q * p->seq_q,
                           .size = p->batch * p->heads_q * p->seq_q * p->head_dim};
    call_chosen(&c);
    return ATTN_OK;
}
