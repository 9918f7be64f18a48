/* SPDX-License-Identifier: Apache-2.0
 *
 * attn.c - `attest attn`: attention of NumPy files.
 *
 *     load -> problem -> open outputs -> compute -> verify -> write -> report -> publish
 *
 * Outputs are opened before anything is computed, so that a wrong path costs nothing, and take
 * their names last of all.
 *
 * Invariant: an exit code other than 0 leaves no output: neither after bad input nor after a
 * failed verification.
 */
#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "attn_inspect.h"
#include "attn_verify.h"
#include "base/args.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/message.h"
#include "base/npy.h"
#include "base/output.h"
#include "base/progress.h"
#include "cases/shape.h"
#include "cli/verbs.h"
#include "device/runner.h"

static const double VERIFY_BUDGET = 2e9; /* operations of the reference: seconds, not minutes */
enum { VERIFY_SEED = 1 };

/* One file on the command line and what is in it, or will be. */
struct file {
    const char *path; /* NULL where there is none */
    struct npy array;
    struct output output;
};

enum { Q, K, V, BIAS, MASK, SINK, CU_Q, CU_KV, USED_KV, USED_Q, OFFSETS, O, LSE, FILES };
enum { INPUTS = O, PRODUCTS = FILES - INPUTS };

struct job {
    struct file files[FILES];
    struct semantics semantics;
    bool dtype_given, verify, json;
    struct runner runner;
    attn_problem problem;
    attn_tensors tensors; /* in the host's memory */
    double seconds;
    struct verdict verdict;
};

/* An array of either layout, by meaning. One of 3 dimensions has a batch of 1, or is packed. */
struct dims {
    int64_t batch, heads, seq, dim;
};

/* The options, and the fields of attn_tensors that the files become. */
#define FIELD(name) offsetof(attn_tensors, name)
static const struct {
    const char *name, *help;
    enum npy_take take;
    size_t field;
} OPTION[FILES] = {
    [Q] = {"--q", "queries", NPY_ATTENTION, FIELD(q)},
    [K] = {"--k", "keys; with fewer heads than Q: GQA", NPY_ATTENTION, FIELD(k)},
    [V] = {"--v", "values; their last dimension is that of O", NPY_ATTENTION, FIELD(v)},
    [BIAS] = {"--bias", "added to the scores; broadcast to (batch, heads, seq_q, seq_kv)",
              NPY_ATTENTION, FIELD(bias)},
    [MASK] = {"--mask", "bool or uint8; keys where it is 0 are hidden; broadcast likewise",
              NPY_MASKS, FIELD(mask)},
    [SINK] = {"--sink", "a sink logit per head, float32 (heads)", NPY_LOGITS, FIELD(sink)},
    [CU_Q] = {"--cu-seqlens-q", "packed sequences: batch + 1 integers, the first row of each in Q",
              NPY_LENGTHS, FIELD(cu_seqlens_q)},
    [CU_KV] = {"--cu-seqlens-kv", "likewise, in K and V", NPY_LENGTHS, FIELD(cu_seqlens_kv)},
    [USED_KV] = {"--used-kv", "how many keys of each sequence exist: batch integers", NPY_LENGTHS,
                 FIELD(used_kv)},
    [USED_Q] = {"--used-q", "how many rows of each sequence of Q exist; O of the others is 0",
                NPY_LENGTHS, FIELD(used_q)},
    [OFFSETS] = {"--offsets", "added to --q-offset - --kv-offset of each sequence: batch integers",
                 NPY_LENGTHS, FIELD(offsets)},
    [O] = {"--output", "O, in Q's layout and type; - is stdout", NPY_ATTENTION, FIELD(o)},
    [LSE] = {"--lse",
             "also save the log-sum-exp, float32 (batch, heads, seq_q); packed (heads, total_q)",
             NPY_LOGITS, FIELD(lse)},
};

static void set_tensor(attn_tensors *tensors, int file, const void *memory) {
    memcpy((char *)tensors + OPTION[file].field, &memory, sizeof memory);
}

/* ---- inputs ---------------------------------------------------------------------------------- */

/* What the array's elements are. uint16 is bfloat16 where the command line says so. */
static bool dtype_of(const struct job *job, const struct file *input, attn_dtype *dtype) {
    *dtype = (attn_dtype)input->array.type; /* NPY_ATTENTION: in the same order */
    return *dtype != ATTN_BF16 || (job->dtype_given && job->semantics.dtype == ATTN_BF16) ||
           deny("attn: %s: holds uint16; if that is bfloat16, say --dtype bf16", input->path);
}

static bool check_dtypes(struct job *job) {
    for (int i = Q; i <= V; i++) {
        attn_dtype dtype = ATTN_FP32;
        if (!dtype_of(job, &job->files[i], &dtype)) {
            return false;
        }
        if (i == Q && !job->dtype_given) {
            job->semantics.dtype = (int)dtype;
        }
        if ((int)dtype != job->semantics.dtype) {
            return deny("attn: %s: holds %s, expected that of %s, %s", job->files[i].path,
                        DTYPE_NAMES[dtype], job->dtype_given ? "--dtype" : job->files[Q].path,
                        DTYPE_NAMES[job->semantics.dtype]);
        }
    }
    return true;
}

static bool dims_of(const struct job *job, const struct file *input, struct dims *dims) {
    const struct npy *array = &input->array;
    const bool packed = job->files[CU_Q].path != NULL;
    if (array->dims != 3 && (array->dims != 4 || packed)) {
        char text[192];
        return deny("attn: %s: shape %s, expected 3%s dimensions", input->path,
                    npy_shape_text(array->shape, array->dims, text, sizeof text),
                    packed ? "" : " or 4");
    }
    const int64_t *last = array->shape + array->dims - 3;
    const bool seq_first = job->semantics.layout == ATTN_BSHD;
    *dims = (struct dims){.batch = array->dims == 4 ? array->shape[0] : 1,
                          .heads = last[seq_first ? 1 : 0],
                          .seq = last[seq_first ? 0 : 1],
                          .dim = last[2]};
    return true;
}

static bool same(const struct file *input, const struct file *other, const char *what,
                 int64_t value, int64_t expected) {
    return value == expected || deny("attn: %s: %s %" PRId64 ", expected that of %s, %" PRId64,
                                     input->path, what, value, other->path, expected);
}

/* A vector of `count` elements, or none. */
static bool check_vector(const struct file *input, const char *what, int64_t count) {
    const struct npy *array = &input->array;
    char text[192];
    return input->path == NULL || (array->dims == 1 && array->shape[0] == count) ||
           deny("attn: %s: shape %s, expected (%" PRId64 ",), %s", input->path,
                npy_shape_text(array->shape, array->dims, text, sizeof text), count, what);
}

static bool check_element(const struct file *input, int64_t i, int64_t least, int64_t most) {
    const int32_t value = ((const int32_t *)input->array.data)[i];
    return (value >= least && value <= most) ||
           deny("attn: %s: element %" PRId64 " is %d, expected %" PRId64 " to %" PRId64,
                input->path, i, value, least, most);
}

/* Of cu_seqlens: from 0 upwards to the number of rows. The longest sequence. */
static bool check_bounds(const struct file *input, int64_t rows, int64_t *longest) {
    const int32_t *cu = input->array.data;
    const int64_t last = input->array.shape[0] - 1;
    *longest = 0;
    for (int64_t i = 0, before = 0; i <= last; before = cu[i++]) {
        if (!check_element(input, i, i == last ? rows : before, i == 0 ? 0 : rows)) {
            return false;
        }
        *longest = cu[i] - before > *longest ? cu[i] - before : *longest;
    }
    return true;
}

static bool check_packed(const struct job *job, attn_problem *problem) {
    const struct file *q = &job->files[CU_Q], *kv = &job->files[CU_KV];
    if ((q->path == NULL) != (kv->path == NULL)) {
        return deny("attn: %s is given alone, expected --cu-seqlens-q and --cu-seqlens-kv",
                    OPTION[q->path != NULL ? CU_Q : CU_KV].name);
    }
    if (q->path == NULL) {
        return true;
    }
    const int64_t count = q->array.dims == 1 && q->array.shape[0] > 0 ? q->array.shape[0] : 1;
    problem->packed = true;
    problem->total_q = problem->seq_q;
    problem->total_kv = problem->seq_kv;
    problem->batch = count - 1;
    return check_vector(q, "batch + 1", count) && check_vector(kv, "as --cu-seqlens-q", count) &&
           check_bounds(q, problem->total_q, &problem->seq_q) &&
           check_bounds(kv, problem->total_kv, &problem->seq_kv);
}

/* Of Q or of K: as many rows as the sequences have, at most. */
static bool check_used(const struct job *job, const attn_problem *problem, int which, int bounds,
                       int64_t rows) {
    const struct file *input = &job->files[which];
    const int32_t *cu = job->files[bounds].array.data;
    bool good = check_vector(input, "the batch", problem->batch);
    for (int64_t b = 0; input->path != NULL && good && b < problem->batch; b++) {
        good = check_element(input, b, 0, cu != NULL ? cu[b + 1] - cu[b] : rows);
    }
    return good;
}

static bool check_shapes(struct job *job) {
    struct dims q = {0}, k = {0}, v = {0};
    const struct file *of_q = &job->files[Q], *of_k = &job->files[K], *of_v = &job->files[V];
    if (!dims_of(job, of_q, &q) || !dims_of(job, of_k, &k) || !dims_of(job, of_v, &v) ||
        !same(of_k, of_q, "batch", k.batch, q.batch) ||
        !same(of_v, of_q, "batch", v.batch, q.batch) ||
        !same(of_k, of_q, "head dimension", k.dim, q.dim) ||
        !same(of_v, of_k, "heads", v.heads, k.heads) ||
        !same(of_v, of_k, "sequence length", v.seq, k.seq)) {
        return false;
    }
    attn_problem *problem = &job->problem;
    attn_problem_init(problem);
    semantics_apply(&job->semantics, problem);
    problem->batch = q.batch;
    problem->heads_q = q.heads;
    problem->heads_kv = k.heads;
    problem->seq_q = q.seq;
    problem->seq_kv = k.seq;
    problem->head_dim = q.dim;
    problem->head_dim_v = v.dim;
    problem->bias = job->files[BIAS].path != NULL;
    problem->mask = job->files[MASK].path != NULL;
    problem->sink = job->files[SINK].path != NULL;
    problem->offsets = job->files[OFFSETS].path != NULL;
    problem->used_q = job->files[USED_Q].path != NULL;
    problem->used_kv = job->files[USED_KV].path != NULL;
    return check_vector(&job->files[SINK], "the heads of Q", q.heads) &&
           check_packed(job, problem) &&
           check_vector(&job->files[OFFSETS], "the batch", problem->batch) &&
           check_used(job, problem, USED_Q, CU_Q, problem->seq_q) &&
           check_used(job, problem, USED_KV, CU_KV, problem->seq_kv);
}

/* Fits a bias or a mask to (batch, heads, seq_q, seq_kv) as NumPy would: dimensions are matched
 * from the last, one that is missing or 1 serves for all. */
static bool fit(const struct file *input, const attn_problem *problem, attn_bias_strides *fitted) {
    const struct npy *array = &input->array;
    const int64_t full[4] = {problem->batch, problem->heads_q, problem->seq_q, problem->seq_kv};
    int64_t strides[4] = {0, 0, 0, 0};
    int64_t stride = 1;
    bool fits = array->dims <= 4;
    for (int d = array->dims - 1, f = 3; fits && d >= 0; d--, f--) {
        const int64_t size = array->shape[d];
        fits = size == 1 || size == full[f];
        strides[f] = size == 1 ? 0 : stride;
        stride *= size;
    }
    if (!fits) {
        char have[192], want[192];
        return deny("attn: %s: shape %s does not broadcast to (batch, heads, seq_q, seq_kv) = %s",
                    input->path, npy_shape_text(array->shape, array->dims, have, sizeof have),
                    npy_shape_text(full, 4, want, sizeof want));
    }
    *fitted = (attn_bias_strides){strides[0], strides[1], strides[2], strides[3]};
    return true;
}

static bool read_inputs(struct job *job) {
    attn_problem *p = &job->problem;
    attn_error why = {""};
    for (int i = 0; i < INPUTS; i++) {
        struct file *input = &job->files[i];
        if (input->path != NULL && !npy_load(input->path, OPTION[i].take, &input->array, &why)) {
            return deny("attn: %s: %s", input->path, why.text);
        }
    }
    return check_dtypes(job) && check_shapes(job) &&
           (!p->bias || (fit(&job->files[BIAS], p, &p->bias_strides) &&
                         dtype_of(job, &job->files[BIAS], &p->bias_dtype))) &&
           (!p->mask || fit(&job->files[MASK], p, &p->mask_strides)) &&
           (attn_problem_check(p, &why) == ATTN_OK || deny("attn: %s", why.text));
}

/* ---- outputs --------------------------------------------------------------------------------- */

static bool open_product(struct file *product) {
    attn_error why = {""};
    if (!output_open(&product->output, product->path, &why)) {
        return deny("attn: %s: %s", product->path, why.text);
    }
    struct npy *array = &product->array;
    array->bytes = npy_type_size(array->type);
    for (int d = 0; d < array->dims; d++) {
        array->bytes *= (size_t)array->shape[d]; /* the problem was checked: this fits */
    }
    array->data = allocate_aligned(array->bytes);
    if (array->data == NULL) {
        return deny("attn: %s: out of memory for %zu bytes", product->path, array->bytes);
    }
    memset(array->data, 0, array->bytes); /* --used-q: some rows are not written */
    return true;
}

static bool open_products(struct job *job) {
    const attn_problem *p = &job->problem;
    const struct npy *q = &job->files[Q].array;
    struct file *o = &job->files[O], *lse = &job->files[LSE];
    o->array = (struct npy){.type = q->type, .dims = q->dims};
    memcpy(o->array.shape, q->shape, sizeof q->shape);
    o->array.shape[q->dims - 1] = p->head_dim_v;
    lse->array = (struct npy){.type = NPY_FLOAT32, .dims = q->dims - 1};
    const int64_t shape[3] = {p->batch, p->heads_q, p->packed ? p->total_q : p->seq_q};
    memcpy(lse->array.shape, shape + (q->dims == 3), sizeof *shape * (size_t)(q->dims - 1));
    return open_product(o) &&
           (lse->path == NULL ||
            (open_product(lse) && (strcmp(o->output.target, lse->output.target) != 0 ||
                                   deny("attn: -o and --lse name the same file, %s", o->path))));
}

/* What is written in place comes last: it cannot be taken back. */
static bool write_products(struct job *job) {
    attn_error why = {""};
    for (int i = 0; i < 2 * PRODUCTS; i++) {
        struct file *product = &job->files[O + i % PRODUCTS];
        if (product->path == NULL || (product->output.slot < 0) != (i >= PRODUCTS)) {
            continue;
        }
        if (!npy_write(product->output.file, &product->array)) {
            return deny("attn: %s: cannot write: %s", product->path, strerror(errno));
        }
        if (!output_finish(&product->output, &why)) {
            return deny("attn: %s: %s", product->path, why.text);
        }
    }
    return true;
}

static bool publish(struct job *job) {
    attn_error why = {""};
    for (int i = O; i < FILES; i++) {
        if (job->files[i].path != NULL && !output_publish(&job->files[i].output, &why)) {
            return deny("attn: %s: %s", job->files[i].path, why.text);
        }
    }
    return true;
}

/* ---- compute --------------------------------------------------------------------------------- */

/* Where the device finds an array: on a GPU a block of its own, with an input's data, or full of
 * NaN so that what a kernel leaves out shows; of 0, where it has to leave out rows. */
static bool place(struct job *job, const struct npy *array, bool input, void **memory,
                  attn_error *why) {
    struct device *device = job->runner.memory;
    if (array->data == NULL || !device_is_gpu(device)) {
        *memory = array->data;
        return true;
    }
    *memory = device_alloc(device, array->bytes, why);
    return *memory != NULL && (input ? device_write(device, *memory, array->data, array->bytes, why)
                                     : device_fill(device, *memory, job->problem.used_q ? 0 : 0xff,
                                                   array->bytes, why));
}

/* The tensors in the host's and the device's memory, which frees what they need itself. */
static bool place_tensors(struct job *job, attn_tensors *tensors, attn_error *why) {
    attn_tensors_init(tensors);
    attn_tensors_init(&job->tensors);
    for (int i = 0; i < FILES; i++) {
        const struct npy *array = &job->files[i].array;
        void *memory = NULL;
        if (!place(job, array, i < INPUTS, &memory, why)) {
            return false;
        }
        set_tensor(tensors, i, memory);
        set_tensor(&job->tensors, i, array->data);
    }
    return true;
}

/* Brings an output back to the host. */
static bool fetch(struct job *job, const struct npy *array, const void *memory, attn_error *why) {
    return array->data == NULL || array->data == memory ||
           device_read(job->runner.memory, array->data, memory, array->bytes, why);
}

static int compute(struct job *job) {
    attn_error why = {""};
    attn_tensors tensors;
    if (!runner_open(&job->runner, &why) || !runner_plan(&job->runner, &job->problem, &why) ||
        !runner_prepare(&job->runner, &why) || !place_tensors(job, &tensors, &why)) {
        return runner_complain(&job->runner, "attn", &why);
    }
    struct progress progress;
    progress_start(&progress, "computing", true);
    const double start = clock_seconds();
    const bool done =
        runner_compute(&job->runner, &tensors, &why) && device_wait(job->runner.memory, &why);
    job->seconds = clock_seconds() - start;
    progress_stop(&progress);
    if (!done || !fetch(job, &job->files[O].array, tensors.o, &why) ||
        !fetch(job, &job->files[LSE].array, tensors.lse, &why) ||
        (job->verify && !runner_verify(&job->runner, &job->tensors, VERIFY_SEED, VERIFY_BUDGET,
                                       &job->verdict, &why))) {
        return complain("attn: %s", why.text);
    }
    return EXIT_DONE;
}

/* ---- report ---------------------------------------------------------------------------------- */

static void product_json(struct json *json, const char *key, const struct file *product) {
    json_open(json, key, '{');
    json_text(json, "file", product->path);
    json_text(json, "dtype", npy_type_name(product->array.type));
    json_ints(json, "shape", product->array.shape, (size_t)product->array.dims);
    json_close(json);
}

static void report_json(const struct job *job) {
    struct json json = json_begin(stdout);
    attn_problem problem = {.size = sizeof problem};
    attn_plan_problem(job->runner.plan, &problem, NULL);
    json_open(&json, NULL, '{');
    json_text(&json, "attn", attn_version());
    json_text(&json, "device", job->runner.device);
    json_text(&json, "variant", attn_plan_variant(job->runner.plan));
    problem_json(&json, "problem", &problem);
    json_real(&json, "seconds", job->seconds);
    if (!job->verify) {
        json_null(&json, "verify");
    } else {
        verdict_json(&json, "verify", &job->verdict);
    }
    if (!job->verify || job->verdict.comparison.pass) { /* else there are none */
        product_json(&json, "o", &job->files[O]);
        if (job->files[LSE].path != NULL) {
            product_json(&json, "lse", &job->files[LSE]);
        }
    }
    json_close(&json);
}

/* True if an array goes to stdout. */
static bool wants_stdout(const struct job *job) {
    const char *lse = job->files[LSE].path;
    return strcmp(job->files[O].path, "-") == 0 || (lse != NULL && strcmp(lse, "-") == 0);
}

static void report_text(const struct job *job) {
    char text[512];
    FILE *to = wants_stdout(job) ? stderr : stdout;
    attn_problem problem = {.size = sizeof problem};
    attn_plan_problem(job->runner.plan, &problem, NULL);
    fprintf(to, "problem   %s\n", problem_text(&problem, text, sizeof text));
    fprintf(to, "variant   %s, %.3f ms\n", attn_plan_variant(job->runner.plan), 1e3 * job->seconds);
    if (job->verify) {
        fprintf(to, "verified  %s\n", verdict_text(&job->verdict, text, sizeof text));
    }
    for (int i = O; i < FILES && job->files[i].path != NULL; i++) {
        const struct npy *array = &job->files[i].array;
        fprintf(to, "wrote     %s  %s %s\n", job->files[i].path, npy_type_name(array->type),
                npy_shape_text(array->shape, array->dims, text, sizeof text));
    }
}

static int run(struct job *job) {
    if (job->json && wants_stdout(job)) {
        return complain("attn: --json and a file named - both want stdout");
    }
    if (!read_inputs(job) || !open_products(job)) {
        return EXIT_BAD_INPUT;
    }
    const int computed = compute(job);
    if (computed != EXIT_DONE) {
        return computed;
    }
    /* A wrong result is not written: the file would pass for a right one. */
    const bool wrong = job->verify && !job->verdict.comparison.pass;
    if (!wrong && !write_products(job)) {
        return EXIT_BAD_INPUT;
    }
    if (job->json) {
        report_json(job);
    } else if (!wrong) {
        report_text(job);
    }
    if (wrong) {
        char text[512];
        attn_comparison_print(&job->verdict.comparison, text, sizeof text);
        complain("attn: the result is wrong, %s was not written: %s", job->files[O].path, text);
        return EXIT_FAILED_CHECK;
    }
    return flush_stdout() == EXIT_DONE && publish(job) ? EXIT_DONE : EXIT_BAD_INPUT;
}

/* ---- the command line ------------------------------------------------------------------------ */

static enum args_result parse(struct job *job, int argc, char **argv) {
    struct arg inputs[INPUTS], products[PRODUCTS];
    for (int i = 0; i < FILES; i++) {
        struct arg *arg = i < INPUTS ? &inputs[i] : &products[i - INPUTS];
        *arg = arg_text(OPTION[i].name, &job->files[i].path, "FILE", OPTION[i].help);
        arg->required = i <= V || i == O;
    }
    products[0].short_name = "-o";
    struct arg own[] = {
        arg_flag("--verify", &job->verify,
                 "compare with the double-precision reference; exit 1, and no output, if it "
                 "differs"),
        arg_flag("--json", &job->json, "report as JSON"),
    };
    struct arg semantics[SEMANTICS_ARGS], runner[RUNNER_ARGS];
    semantics_args(&job->semantics, semantics);
    semantics[SEMANTICS_DTYPE].help = "type of Q, K, V and O [that of Q's file]";
    runner_args(&job->runner, runner);
    const struct arg_group groups[] = {
        ARG_GROUP("inputs (.npy; Q, K and V of 4 dimensions, or of 3 without "
                  "batch)",
                  inputs),
        ARG_GROUP("outputs (.npy)", products), ARG_GROUP("semantics", semantics),
        ARG_GROUP("execution", runner), ARG_GROUP("output", own)};
    const struct command command = {
        .verb = "attn",
        .synopsis = "--q FILE --k FILE --v FILE -o FILE [options]",
        .notes = "float32 and float16 files are what they say they are; bfloat16 comes as uint16 "
                 "with\n--dtype bf16. Outputs appear when all of them are complete.\n",
        .examples = "  attest attn --q q.npy --k k.npy --v v.npy -o o.npy --verify\n"
                    "  attest attn --q q.npy --k k.npy --v v.npy -o o.npy --lse lse.npy \\\n"
                    "      --causal bottom-right --window 256,0 --layout bshd\n"
                    "  attest attn --q q.npy --k k.npy --v v.npy -o - --layout bshd \\\n"
                    "      --cu-seqlens-q cu.npy --cu-seqlens-kv cu.npy > o.npy\n",
        ARG_GROUPS(groups),
    };
    const enum args_result parsed = args_parse(&command, argc, argv);
    job->dtype_given = semantics[SEMANTICS_DTYPE].seen;
    return parsed;
}

int verb_attn(int argc, char **argv) {
    struct job job = {.files = {[O].output.slot = -1, [LSE].output.slot = -1}};
    const enum args_result parsed = parse(&job, argc, argv);
    if (parsed != ARGS_RUN) {
        return parsed == ARGS_HELP ? EXIT_DONE : EXIT_BAD_INPUT;
    }
    const int status = run(&job);
    runner_close(&job.runner);
    for (int i = 0; i < FILES; i++) {
        if (i >= O) {
            output_discard(&job.files[i].output);
        }
        npy_free(&job.files[i].array);
    }
    return status;
}
