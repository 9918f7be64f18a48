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
#include <stdio.h>
#include <stdlib.h>
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

/* One file on the command line and what is in it. */
struct input {
    const char *path;
    struct npy array;
};

struct product {
    const char *path;
    struct npy array;
    struct output output;
};

struct job {
    struct input q, k, v, bias, mask; /* bias.path is NULL where there is none, as is mask.path */
    struct product o, lse;            /* likewise lse.path */
    struct semantics semantics;
    bool dtype_given, verify, json;
    struct runner runner;
    attn_problem problem;
    attn_tensors tensors; /* in the host's memory */
    double seconds;
    struct verdict verdict;
};

/* A 4-D array of either layout, by meaning. */
struct dims {
    int64_t batch, heads, seq, dim;
};

/* ---- inputs ---------------------------------------------------------------------------------- */

static int load(struct input *input, enum npy_take take) {
    attn_error why = {""};
    return input->path == NULL || npy_load(input->path, take, &input->array, &why)
               ? EXIT_DONE
               : complain("attn: %s: %s", input->path, why.text);
}

/* What the array's elements are. uint16 is bfloat16 where the command line says so. */
static int dtype_of(const struct job *job, const struct input *input, attn_dtype *dtype) {
    const bool bf16 = job->dtype_given && job->semantics.dtype == ATTN_BF16;
    switch (input->array.type) {
    case NPY_FLOAT32: *dtype = ATTN_FP32; break;
    case NPY_FLOAT16: *dtype = ATTN_FP16; break;
    case NPY_UINT16:
        *dtype = ATTN_BF16;
        if (!bf16) {
            return complain("attn: %s: holds uint16; if that is bfloat16, say --dtype bf16",
                            input->path);
        }
        break;
    default: /* npy_load reads no other */
        return complain("attn: %s: holds %s", input->path, npy_type_name(input->array.type));
    }
    return EXIT_DONE;
}

static int check_dtypes(struct job *job) {
    const struct input *const inputs[3] = {&job->q, &job->k, &job->v};
    for (int i = 0; i < 3; i++) {
        attn_dtype dtype = ATTN_FP32;
        const int status = dtype_of(job, inputs[i], &dtype);
        if (status != EXIT_DONE) {
            return status;
        }
        if (i == 0 && !job->dtype_given) {
            job->semantics.dtype = (int)dtype;
        }
        if ((int)dtype != job->semantics.dtype) {
            return complain("attn: %s: holds %s, expected that of %s, %s", inputs[i]->path,
                            DTYPE_NAMES[dtype], job->dtype_given ? "--dtype" : job->q.path,
                            DTYPE_NAMES[job->semantics.dtype]);
        }
    }
    return EXIT_DONE;
}

static int dims_of(const struct job *job, const struct input *input, struct dims *dims) {
    const struct npy *array = &input->array;
    const int64_t *shape = array->shape;
    if (array->dims != 4) {
        char text[192];
        return complain("attn: %s: shape %s, expected 4 dimensions", input->path,
                        npy_shape_text(shape, array->dims, text, sizeof text));
    }
    const bool seq_first = job->semantics.layout == ATTN_BSHD;
    *dims = (struct dims){.batch = shape[0],
                          .heads = shape[seq_first ? 2 : 1],
                          .seq = shape[seq_first ? 1 : 2],
                          .dim = shape[3]};
    return EXIT_DONE;
}

static int same(const struct input *input, const struct input *other, const char *what,
                int64_t value, int64_t expected) {
    if (value == expected) {
        return EXIT_DONE;
    }
    return complain("attn: %s: %s %" PRId64 ", expected that of %s, %" PRId64, input->path, what,
                    value, other->path, expected);
}

static int check_shapes(struct job *job) {
    struct dims q = {0}, k = {0}, v = {0};
    if (dims_of(job, &job->q, &q) != EXIT_DONE || dims_of(job, &job->k, &k) != EXIT_DONE ||
        dims_of(job, &job->v, &v) != EXIT_DONE ||
        same(&job->k, &job->q, "batch", k.batch, q.batch) != EXIT_DONE ||
        same(&job->v, &job->q, "batch", v.batch, q.batch) != EXIT_DONE ||
        same(&job->k, &job->q, "head dimension", k.dim, q.dim) != EXIT_DONE ||
        same(&job->v, &job->k, "heads", v.heads, k.heads) != EXIT_DONE ||
        same(&job->v, &job->k, "sequence length", v.seq, k.seq) != EXIT_DONE) {
        return EXIT_BAD_INPUT;
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
    return EXIT_DONE;
}

/* Fits a bias or a mask to (batch, heads, seq_q, seq_kv) as NumPy would: dimensions are matched
 * from the last, one that is missing or 1 serves for all. */
static int fit(const struct input *input, const attn_problem *problem, attn_bias_strides *fitted) {
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
        return complain(
            "attn: %s: shape %s does not broadcast to (batch, heads, seq_q, seq_kv) = %s",
            input->path, npy_shape_text(array->shape, array->dims, have, sizeof have),
            npy_shape_text(full, 4, want, sizeof want));
    }
    *fitted = (attn_bias_strides){strides[0], strides[1], strides[2], strides[3]};
    return EXIT_DONE;
}

static int fit_bias(struct job *job) {
    attn_problem *problem = &job->problem;
    problem->bias = job->bias.path != NULL;
    if (!problem->bias) {
        return EXIT_DONE;
    }
    const int status = fit(&job->bias, problem, &problem->bias_strides);
    return status != EXIT_DONE ? status : dtype_of(job, &job->bias, &problem->bias_dtype);
}

static int fit_mask(struct job *job) {
    attn_problem *problem = &job->problem;
    problem->mask = job->mask.path != NULL;
    return problem->mask ? fit(&job->mask, problem, &problem->mask_strides) : EXIT_DONE;
}

static int read_inputs(struct job *job) {
    if (load(&job->q, NPY_ATTENTION) != EXIT_DONE || load(&job->k, NPY_ATTENTION) != EXIT_DONE ||
        load(&job->v, NPY_ATTENTION) != EXIT_DONE || load(&job->bias, NPY_ATTENTION) != EXIT_DONE ||
        load(&job->mask, NPY_MASKS) != EXIT_DONE || check_dtypes(job) != EXIT_DONE ||
        check_shapes(job) != EXIT_DONE || fit_bias(job) != EXIT_DONE ||
        fit_mask(job) != EXIT_DONE) {
        return EXIT_BAD_INPUT;
    }
    attn_error why = {""};
    return attn_problem_check(&job->problem, &why) == ATTN_OK ? EXIT_DONE
                                                              : complain("attn: %s", why.text);
}

/* ---- outputs --------------------------------------------------------------------------------- */

static int open_product(struct product *product) {
    attn_error why = {""};
    if (!output_open(&product->output, product->path, &why)) {
        return complain("attn: %s: %s", product->path, why.text);
    }
    struct npy *array = &product->array;
    array->bytes = npy_type_size(array->type);
    for (int d = 0; d < array->dims; d++) {
        array->bytes *= (size_t)array->shape[d]; /* the problem was checked: this fits */
    }
    array->data = allocate_aligned(array->bytes);
    return array->data != NULL
               ? EXIT_DONE
               : complain("attn: %s: out of memory for %zu bytes", product->path, array->bytes);
}

static int open_products(struct job *job) {
    const attn_problem *p = &job->problem;
    const struct npy *q = &job->q.array;
    job->o.array = (struct npy){.type = q->type, .dims = 4};
    memcpy(job->o.array.shape, q->shape, sizeof q->shape);
    job->o.array.shape[3] = p->head_dim_v;
    job->lse.array =
        (struct npy){.type = NPY_FLOAT32, .dims = 3, .shape = {p->batch, p->heads_q, p->seq_q}};
    if (open_product(&job->o) != EXIT_DONE ||
        (job->lse.path != NULL && open_product(&job->lse) != EXIT_DONE)) {
        return EXIT_BAD_INPUT;
    }
    if (job->lse.path != NULL && strcmp(job->o.output.target, job->lse.output.target) == 0) {
        return complain("attn: -o and --lse name the same file, %s", job->o.path);
    }
    return EXIT_DONE;
}

static int write_product(struct product *product) {
    attn_error why = {""};
    if (!npy_write(product->output.file, &product->array)) {
        return complain("attn: %s: cannot write: %s", product->path, strerror(errno));
    }
    return output_finish(&product->output, &why)
               ? EXIT_DONE
               : complain("attn: %s: %s", product->path, why.text);
}

/* What is written in place comes last: it cannot be taken back. */
static int write_products(struct job *job) {
    struct product *const products[] = {&job->o, &job->lse};
    int status = EXIT_DONE;
    for (int in_place = 0; in_place <= 1; in_place++) {
        for (int i = 0; i < 2 && status == EXIT_DONE; i++) {
            if (products[i]->path != NULL && (products[i]->output.slot < 0) == in_place) {
                status = write_product(products[i]);
            }
        }
    }
    return status;
}

static int publish(struct job *job) {
    struct product *const products[] = {&job->o, &job->lse};
    attn_error why = {""};
    for (int i = 0; i < 2; i++) {
        if (products[i]->path != NULL && !output_publish(&products[i]->output, &why)) {
            return complain("attn: %s: %s", products[i]->path, why.text);
        }
    }
    return EXIT_DONE;
}

/* ---- compute --------------------------------------------------------------------------------- */

/* Where the device finds an array: on a GPU a block of its own, with an input's data, or full of
 * NaN so that what a kernel leaves out shows. */
static bool place(struct job *job, const struct npy *array, bool input, void **memory,
                  attn_error *why) {
    struct device *device = job->runner.memory;
    if (array->data == NULL || !device_is_gpu(device)) {
        *memory = array->data;
        return true;
    }
    *memory = device_alloc(device, array->bytes, why);
    return *memory != NULL && (input ? device_write(device, *memory, array->data, array->bytes, why)
                                     : device_fill(device, *memory, 0xff, array->bytes, why));
}

/* The tensors in the device's memory; it frees what they need itself. */
static bool place_tensors(struct job *job, attn_tensors *tensors, attn_error *why) {
    void *q = NULL, *k = NULL, *v = NULL, *bias = NULL, *mask = NULL, *lse = NULL;
    attn_tensors_init(tensors);
    if (!place(job, &job->q.array, true, &q, why) || !place(job, &job->k.array, true, &k, why) ||
        !place(job, &job->v.array, true, &v, why) ||
        !place(job, &job->bias.array, true, &bias, why) ||
        !place(job, &job->mask.array, true, &mask, why) ||
        !place(job, &job->o.array, false, &tensors->o, why) ||
        !place(job, &job->lse.array, false, &lse, why)) {
        return false;
    }
    tensors->q = q;
    tensors->k = k;
    tensors->v = v;
    tensors->bias = bias;
    tensors->mask = mask;
    tensors->lse = lse;
    return true;
}

/* Brings an output back to the host. */
static bool fetch(struct job *job, const struct npy *array, const void *memory, attn_error *why) {
    return array->data == NULL || array->data == memory ||
           device_read(job->runner.memory, array->data, memory, array->bytes, why);
}

static int compute(struct job *job) {
    attn_error why = {""};
    attn_tensors *host = &job->tensors, tensors;
    attn_tensors_init(host);
    host->q = job->q.array.data;
    host->k = job->k.array.data;
    host->v = job->v.array.data;
    host->bias = job->bias.array.data;
    host->mask = job->mask.array.data;
    host->o = job->o.array.data;
    host->lse = job->lse.array.data;
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
    if (!done || !fetch(job, &job->o.array, tensors.o, &why) ||
        !fetch(job, &job->lse.array, tensors.lse, &why) ||
        (job->verify &&
         !runner_verify(&job->runner, host, VERIFY_SEED, VERIFY_BUDGET, &job->verdict, &why))) {
        return complain("attn: %s", why.text);
    }
    return EXIT_DONE;
}

/* ---- report ---------------------------------------------------------------------------------- */

static void product_json(struct json *json, const char *key, const struct product *product) {
    json_open(json, key, '{');
    json_text(json, "file", product->path);
    json_text(json, "dtype", npy_type_name(product->array.type));
    json_open(json, "shape", '[');
    for (int d = 0; d < product->array.dims; d++) {
        json_int(json, NULL, product->array.shape[d]);
    }
    json_close(json);
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
        product_json(&json, "o", &job->o);
        if (job->lse.path != NULL) {
            product_json(&json, "lse", &job->lse);
        }
    }
    json_close(&json);
}

static void print_product(const struct product *product) {
    char shape[192];
    printf("wrote     %s  %s %s\n", product->path, npy_type_name(product->array.type),
           npy_shape_text(product->array.shape, product->array.dims, shape, sizeof shape));
}

static void report_text(const struct job *job) {
    char text[512];
    attn_problem problem = {.size = sizeof problem};
    attn_plan_problem(job->runner.plan, &problem, NULL);
    printf("problem   %s\n", problem_text(&problem, text, sizeof text));
    printf("variant   %s, %.3f ms\n", attn_plan_variant(job->runner.plan), 1e3 * job->seconds);
    if (job->verify) {
        printf("verified  %s\n", verdict_text(&job->verdict, text, sizeof text));
    }
    print_product(&job->o);
    if (job->lse.path != NULL) {
        print_product(&job->lse);
    }
}

/* A wrong result is not written: the file would pass for a right one. */
static int refuse_result(const struct job *job) {
    char text[512];
    if (job->json) {
        report_json(job);
    }
    attn_comparison_print(&job->verdict.comparison, text, sizeof text);
    complain("attn: the result is wrong, %s was not written: %s", job->o.path, text);
    return EXIT_FAILED_CHECK;
}

static int run(struct job *job) {
    if (read_inputs(job) != EXIT_DONE || open_products(job) != EXIT_DONE) {
        return EXIT_BAD_INPUT;
    }
    const int computed = compute(job);
    if (computed != EXIT_DONE) {
        return computed;
    }
    if (job->verify && !job->verdict.comparison.pass) {
        return refuse_result(job);
    }
    if (write_products(job) != EXIT_DONE) {
        return EXIT_BAD_INPUT;
    }
    if (job->json) {
        report_json(job);
    } else {
        report_text(job);
    }
    return flush_stdout() == EXIT_DONE ? publish(job) : EXIT_BAD_INPUT;
}

static void clean_up(struct job *job) {
    runner_close(&job->runner);
    output_discard(&job->o.output);
    output_discard(&job->lse.output);
    struct npy *const arrays[7] = {&job->q.array,    &job->k.array,    &job->v.array,
                                   &job->bias.array, &job->mask.array, &job->o.array,
                                   &job->lse.array};
    for (int i = 0; i < 7; i++) {
        npy_free(arrays[i]);
    }
}

/* ---- the command line ------------------------------------------------------------------------ */

static enum args_result parse(struct job *job, int argc, char **argv) {
    struct arg files[] = {
        arg_required(arg_text("--q", &job->q.path, "FILE", "queries")),
        arg_required(arg_text("--k", &job->k.path, "FILE", "keys; with fewer heads than Q: GQA")),
        arg_required(
            arg_text("--v", &job->v.path, "FILE", "values; their last dimension is that of O")),
        arg_required(arg_text("--output", &job->o.path, "FILE", "O, in Q's layout and type")),
        arg_text("--lse", &job->lse.path, "FILE",
                 "also save the log-sum-exp, float32 (batch, heads, seq_q)"),
        arg_text("--bias", &job->bias.path, "FILE",
                 "added to the scores; broadcast to (batch, heads, seq_q, seq_kv), whatever the "
                 "layout"),
        arg_text("--mask", &job->mask.path, "FILE",
                 "bool or uint8; keys where it is 0 are hidden; broadcast likewise"),
    };
    files[3].short_name = "-o";
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
    const struct arg_group groups[] = {{"files (.npy, 4 dimensions)", files, 7},
                                       {"semantics", semantics, SEMANTICS_ARGS},
                                       {"execution", runner, RUNNER_ARGS},
                                       {"output", own, 2}};
    const struct command command = {
        .verb = "attn",
        .summary = "attention of NumPy files",
        .synopsis = "--q FILE --k FILE --v FILE -o FILE [options]",
        .notes = "float32 and float16 files are what they say they are; bfloat16 comes as uint16 "
                 "with\n--dtype bf16. Outputs appear when all of them are complete.\n",
        .examples = "  attest attn --q q.npy --k k.npy --v v.npy -o o.npy --verify\n"
                    "  attest attn --q q.npy --k k.npy --v v.npy -o o.npy --lse lse.npy \\\n"
                    "      --causal bottom-right --window 256,0 --layout bshd\n",
        .groups = groups,
        .group_count = sizeof groups / sizeof *groups,
    };
    const enum args_result parsed = args_parse(&command, argc, argv);
    job->dtype_given = semantics[SEMANTICS_DTYPE].seen;
    return parsed;
}

int verb_attn(int argc, char **argv) {
    struct job job = {.o.output.slot = -1, .lse.output.slot = -1};
    const enum args_result parsed = parse(&job, argc, argv);
    if (parsed != ARGS_RUN) {
        return parsed == ARGS_HELP ? EXIT_DONE : EXIT_BAD_INPUT;
    }
    const int status = run(&job);
    clean_up(&job);
    return status;
}
