/* SPDX-License-Identifier: Apache-2.0
 *
 * serve.c - continuous batching over a paged KV cache: the loop of an inference server, with a
 * small model of random weights.
 *
 *     cc serve.c $(pkg-config --cflags --libs attn) -lm && ./a.out [cpu | cuda]
 *
 *   admit    a waiting request gets a free slot, if there are pages for its tokens
 *   plan     rows of a step: one for each sequence that decodes, chunks of prompts for the others;
 *            pages come from a free list
 *   evict    if no page is left, the youngest sequence gives its pages back; it keeps its tokens
 *            and waits
 *   compute  for each layer attn_append (new keys and values, RoPE) and attn_forward, both over all
 *            rows: two plans serve every step
 *
 * The GEMMs of the model run on the host; a server has them on the GPU, and captures the step into
 * a graph. With batch_invariant the bits of a row do not depend on the other rows. So at the end
 * each request is computed again, alone, and must give the same tokens.
 */
#include <attn.h>
#include <attn_inspect.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LAYERS = 2, HEADS = 4, HEADS_KV = 2, DIM = 32, HIDDEN = HEADS * DIM, WORDS = 512 };
enum { SLOTS = 6, PAGE = 16, PAGES = 24, ROW_PAGES = 8, LONGEST = ROW_PAGES * PAGE };
enum { ROWS = 48, CHUNK = 32, REQUESTS = 16 };

/* ---- memory of the device -------------------------------------------------------------------- */

static attn_context *context;
static int (*cu_alloc)(uint64_t *, size_t), (*cu_upload)(uint64_t, const void *, size_t);
static int (*cu_download)(void *, uint64_t, size_t), (*cu_retain)(void **, int);
static int (*cu_set_current)(void *), (*cu_free)(uint64_t), (*cu_release)(int);
static void *blocks[32];
static int block_count;
static bool on_gpu;

static void need(attn_status status, const attn_error *why) {
    if (status != ATTN_OK) {
        fprintf(stderr, "%s\n", why->text);
        exit(status == ATTN_UNSUPPORTED ? 77 : 1);
    }
}

static void need_cuda(int result) {
    if (result != 0) {
        fprintf(stderr, "CUDA error %d\n", result);
        exit(1);
    }
}

static void driver(const char *name, void *function) {
    attn_error why;
    void *found = NULL;
    need(attn_driver_function(context, name, &found, &why), &why);
    memcpy(function, &found, sizeof found);
}

static void open_device(const char *name) {
    attn_error why;
    attn_options options;
    attn_options_init(&options);
    options.device = name;
    need(attn_open(&options, &context, &why), &why);
    on_gpu = strncmp(name, "cuda", 4) == 0;
    if (on_gpu) {
        void *primary = NULL;
        driver("cuMemAlloc", &cu_alloc);
        driver("cuMemFree", &cu_free);
        driver("cuMemcpyHtoD", &cu_upload);
        driver("cuMemcpyDtoH", &cu_download); /* waits for the kernels before it */
        driver("cuDevicePrimaryCtxRetain", &cu_retain);
        driver("cuDevicePrimaryCtxRelease", &cu_release);
        driver("cuCtxSetCurrent", &cu_set_current);
        need_cuda(cu_retain(&primary, 0));
        need_cuda(cu_set_current(primary));
    }
}

static void *allocate(size_t bytes) {
    uint64_t address = 0;
    if (on_gpu) {
        need_cuda(cu_alloc(&address, bytes));
        blocks[block_count] = (void *)(uintptr_t)address;
    } else {
        blocks[block_count] = aligned_alloc(64, (bytes + 63) / 64 * 64);
    }
    if (blocks[block_count] == NULL) {
        exit(1);
    }
    return blocks[block_count++];
}

static void close_device(void) {
    for (int i = 0; i < block_count; i++) {
        if (on_gpu) {
            cu_free((uint64_t)(uintptr_t)blocks[i]);
        } else {
            free(blocks[i]);
        }
    }
    attn_close(context);
    if (on_gpu) {
        cu_release(0);
    }
}

static void upload(void *to, const void *from, size_t bytes) {
    if (on_gpu) {
        need_cuda(cu_upload((uint64_t)(uintptr_t)to, from, bytes));
    } else {
        memcpy(to, from, bytes);
    }
}

static void download(void *to, const void *from, size_t bytes) {
    if (on_gpu) {
        need_cuda(cu_download(to, (uint64_t)(uintptr_t)from, bytes));
    } else {
        memcpy(to, from, bytes);
    }
}

/* ---- model ----------------------------------------------------------------------------------- */

static float embedding[WORDS][HIDDEN];
static float w_q[LAYERS][HIDDEN][HIDDEN], w_o[LAYERS][HIDDEN][HIDDEN];
static float w_k[LAYERS][HIDDEN][HEADS_KV * DIM], w_v[LAYERS][HIDDEN][HEADS_KV * DIM];

static void draw(float *x, size_t n, float size) {
    for (size_t i = 0; i < n; i++) {
        x[i] = size * ((float)rand() / (float)RAND_MAX - 0.5F);
    }
}

/* y = x w, one row. */
static void multiply(const float *x, const float *w, int columns, float *y) {
    memset(y, 0, (size_t)columns * sizeof *y);
    for (int i = 0; i < HIDDEN; i++) {
        for (int j = 0; j < columns; j++) {
            y[j] += x[i] * w[i * columns + j];
        }
    }
}

static void normalize(float *x) {
    float sum = 0;
    for (int i = 0; i < HIDDEN; i++) {
        sum += x[i] * x[i];
    }
    for (int i = 0; i < HIDDEN; i++) {
        x[i] *= sqrtf(HIDDEN / (sum + 1e-6F));
    }
}

static int most_likely(const float *x) {
    int best = 0;
    float most = -INFINITY;
    for (int word = 0; word < WORDS; word++) {
        float logit = 0;
        for (int i = 0; i < HIDDEN; i++) {
            logit += x[i] * embedding[word][i];
        }
        if (logit > most) {
            best = word, most = logit;
        }
    }
    return best;
}

/* ---- requests, slots, pages ------------------------------------------------------------------ */

struct request {
    int tokens[LONGEST], length, target; /* the prompt, then what was generated */
};

struct slot {
    struct request *request; /* NULL: free */
    int cached;              /* tokens whose keys and values are in the cache */
    int rows;                /* of this step */
    int age, pages;
};

static struct slot slots[SLOTS];
static int32_t table[SLOTS][ROW_PAGES];
static int32_t free_pages[PAGES], free_count;
static struct request *waiting[REQUESTS];
static int waiting_count, admitted, evictions;

static void put_back(struct slot *slot) {
    for (int i = 0; i < slot->pages; i++) {
        free_pages[free_count++] = table[slot - slots][i];
    }
    *slot = (struct slot){0};
}

/* The n-th oldest sequence, or NULL. */
static struct slot *by_age(int n) {
    struct slot *found = NULL;
    for (int last = -1; n >= 0; n--) {
        found = NULL;
        for (int i = 0; i < SLOTS; i++) {
            if (slots[i].request != NULL && slots[i].age > last &&
                (found == NULL || slots[i].age < found->age)) {
                found = &slots[i];
            }
        }
        if (found == NULL) {
            return NULL;
        }
        last = found->age;
    }
    return found;
}

static int running(void) {
    int count = 0;
    for (int i = 0; i < SLOTS; i++) {
        count += slots[i].request != NULL;
    }
    return count;
}

/* Waiting requests get free slots, as long as there are pages for their tokens. */
static void admit(void) {
    for (int i = 0; i < SLOTS && waiting_count > 0; i++) {
        if (slots[i].request == NULL && waiting[0]->length < free_count * PAGE) {
            slots[i] = (struct slot){.request = waiting[0], .age = admitted++};
            memmove(waiting, waiting + 1, (size_t)--waiting_count * sizeof *waiting);
        }
    }
}

/* Takes pages for the rows of this step. False: none is left, and this sequence was evicted. */
static bool give_pages(struct slot *slot) {
    while (slot->pages * PAGE < slot->cached + slot->rows) {
        if (free_count > 0) {
            table[slot - slots][slot->pages++] = free_pages[--free_count];
            continue;
        }
        struct slot *youngest = by_age(running() - 1);
        memmove(waiting + 1, waiting, (size_t)waiting_count++ * sizeof *waiting);
        waiting[0] = youngest->request;
        put_back(youngest);
        evictions++;
        if (youngest == slot) {
            return false;
        }
    }
    return true;
}

/* How many rows each sequence has in this step, oldest first: at least one. */
static int plan_step(void) {
    int rows = 0;
    for (int n = 0; n < running(); n++) {
        struct slot *slot = by_age(n);
        const int pending = slot->request->length - slot->cached;
        const int room = ROWS - rows - (running() - n - 1);
        slot->rows = pending < CHUNK ? pending : CHUNK;
        slot->rows = slot->rows < room ? slot->rows : room;
        rows += give_pages(slot) ? slot->rows : 0;
    }
    return rows;
}

/* ---- a step ---------------------------------------------------------------------------------- */

static attn_plan *append, *forward;
static attn_tensors layers[LAYERS];
static void *workspace;
static int32_t *device_starts, *device_used, *device_table;

static void make_plans(void) {
    attn_error why;
    attn_problem p;
    attn_plan_options options;
    attn_problem_init(&p);
    p.layout = ATTN_BSHD;
    p.packed = p.used_kv = true;
    p.batch = SLOTS, p.heads_q = HEADS, p.heads_kv = HEADS_KV, p.head_dim = DIM;
    p.total_q = ROWS, p.seq_q = CHUNK, p.seq_kv = LONGEST;
    p.page_size = PAGE, p.num_pages = PAGES, p.block_table_stride = ROW_PAGES;
    p.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
    p.rope = ATTN_ROPE_HALVES;
    attn_plan_options_init(&options);
    options.direction = ATTN_APPEND;
    need(attn_plan_create(context, &p, &options, &append, &why), &why);
    options.direction = ATTN_FORWARD;
    options.batch_invariant = true;
    need(attn_plan_create(context, &p, &options, &forward, &why), &why);
    workspace = allocate(attn_workspace_size(forward) + 1);

    static float cosines[LONGEST][DIM / 2], sines[LONGEST][DIM / 2];
    for (int i = 0; i < LONGEST; i++) {
        for (int j = 0; j < DIM / 2; j++) {
            const float angle = (float)i * powf(10000, -2.0F * (float)j / DIM);
            cosines[i][j] = cosf(angle), sines[i][j] = sinf(angle);
        }
    }
    void *const cos_table = allocate(sizeof cosines), *const sin_table = allocate(sizeof sines);
    upload(cos_table, cosines, sizeof cosines);
    upload(sin_table, sines, sizeof sines);
    device_starts = allocate((SLOTS + 1) * sizeof *device_starts);
    device_used = allocate(SLOTS * sizeof *device_used);
    device_table = allocate(sizeof table);
    attn_tensors *const t = &layers[0];
    attn_tensors_init(t);
    t->cu_seqlens_q = device_starts, t->used_kv = device_used, t->block_table = device_table;
    t->rope_cos = cos_table, t->rope_sin = sin_table;
    t->q_out = allocate((size_t)ROWS * HIDDEN * sizeof(float)), t->q = t->q_out; /* in place */
    t->o = allocate((size_t)ROWS * HIDDEN * sizeof(float));
    t->k_new = allocate((size_t)ROWS * HEADS_KV * DIM * sizeof(float));
    t->v_new = allocate((size_t)ROWS * HEADS_KV * DIM * sizeof(float));
    for (int l = LAYERS - 1; l >= 0; l--) { /* each layer has its own pool */
        layers[l] = *t;
        layers[l].k_cache = allocate((size_t)PAGES * PAGE * HEADS_KV * DIM * sizeof(float));
        layers[l].v_cache = allocate((size_t)PAGES * PAGE * HEADS_KV * DIM * sizeof(float));
        layers[l].k = layers[l].k_cache, layers[l].v = layers[l].v_cache;
    }
}

static void run_layer(int l, int rows, float (*x)[HIDDEN]) {
    static float q[ROWS][HIDDEN], o[ROWS][HIDDEN], sum[HIDDEN];
    static float k[ROWS][HEADS_KV * DIM], v[ROWS][HEADS_KV * DIM];
    const attn_tensors *t = &layers[l];
    attn_error why;
    for (int i = 0; i < rows; i++) {
        multiply(x[i], w_q[l][0], HIDDEN, q[i]);
        multiply(x[i], w_k[l][0], HEADS_KV * DIM, k[i]);
        multiply(x[i], w_v[l][0], HEADS_KV * DIM, v[i]);
    }
    upload(t->q_out, q, sizeof q);
    upload((void *)t->k_new, k, sizeof k);
    upload((void *)t->v_new, v, sizeof v);
    need(attn_append(append, t, NULL, &why), &why);
    need(attn_forward(forward, t, workspace, attn_workspace_size(forward), NULL, &why), &why);
    download(o, t->o, sizeof o);
    for (int i = 0; i < rows; i++) {
        multiply(o[i], w_o[l][0], HIDDEN, sum);
        for (int j = 0; j < HIDDEN; j++) {
            x[i][j] += sum[j];
        }
        normalize(x[i]);
    }
}

/* Returns how many tokens were generated. */
static int step(void) {
    static float x[ROWS][HIDDEN];
    int32_t starts[SLOTS + 1] = {0}, used[SLOTS];
    admit();
    const int rows = plan_step();
    for (int i = 0; i < SLOTS; i++) {
        const struct slot *slot = &slots[i];
        starts[i + 1] = starts[i] + slot->rows;
        used[i] = slot->cached + slot->rows; /* after the append */
        for (int j = 0; j < slot->rows; j++) {
            memcpy(x[starts[i] + j], embedding[slot->request->tokens[slot->cached + j]],
                   sizeof x[0]);
        }
    }
    upload(device_starts, starts, sizeof starts);
    upload(device_used, used, sizeof used);
    upload(device_table, table, sizeof table);
    for (int l = 0; l < LAYERS; l++) {
        run_layer(l, rows, x);
    }
    int generated = 0;
    for (int i = 0; i < SLOTS; i++) {
        struct slot *slot = &slots[i];
        struct request *request = slot->request;
        slot->cached += slot->rows;
        if (request != NULL && slot->cached == request->length) { /* the prompt is complete */
            request->tokens[request->length++] = most_likely(x[starts[i + 1] - 1]);
            generated++;
            if (request->length == request->target) {
                put_back(slot);
            }
        }
        slot->rows = 0;
    }
    return generated;
}

/* Runs steps until all requests are complete. Returns their number. */
static int serve(struct request *requests, int count, int *generated) {
    int steps = 0;
    for (int i = 0; i < count; i++) {
        waiting[waiting_count++] = &requests[i];
    }
    for (; waiting_count > 0 || running() > 0; steps++) {
        *generated += step();
    }
    return steps;
}

int main(int argc, char **argv) {
    static struct request requests[REQUESTS], alone[REQUESTS];
    int generated = 0, again = 0, different = 0;
    open_device(argc > 1 ? argv[1] : "cpu");
    draw(embedding[0], sizeof embedding / sizeof(float), 2);
    draw(w_q[0][0], sizeof w_q / sizeof(float), 0.4F);
    draw(w_k[0][0], sizeof w_k / sizeof(float), 0.4F);
    draw(w_v[0][0], sizeof w_v / sizeof(float), 0.4F);
    draw(w_o[0][0], sizeof w_o / sizeof(float), 0.4F);
    for (int i = 0; i < PAGES; i++) {
        free_pages[free_count++] = i;
    }
    for (int i = 0; i < REQUESTS; i++) {
        struct request *request = &requests[i];
        request->length = 1 + rand() % 80;
        request->target = request->length + 1 + rand() % (LONGEST - request->length - 1);
        for (int j = 0; j < request->length; j++) {
            request->tokens[j] = rand() % WORDS;
        }
        alone[i] = *request;
    }
    make_plans();

    struct timespec begin, end;
    timespec_get(&begin, TIME_UTC);
    const int steps = serve(requests, REQUESTS, &generated);
    timespec_get(&end, TIME_UTC);
    const double seconds =
        (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec);
    printf("%d requests, %d tokens in %d steps, %d evictions: %.0f tokens/s; %s, %s\n", REQUESTS,
           generated, steps, evictions, generated / seconds, attn_plan_variant(append),
           attn_plan_variant(forward));
    for (int i = 0; i < REQUESTS; i++) {
        serve(&alone[i], 1, &again);
        different += memcmp(&alone[i], &requests[i], sizeof alone[i]) != 0;
    }
    printf("alone: %d of %d requests have other tokens\n", different, REQUESTS);
    attn_plan_destroy(append);
    attn_plan_destroy(forward);
    close_device();
    return different == 0 && evictions > 0 ? 0 : 1;
}
