/* SPDX-License-Identifier: Apache-2.0
 *
 * verb.c - `attest check`: one launch of any CUDA kernel on a virtual GPU, under one or all
 * orders of asynchronous completion, and what is wrong with it.
 *
 * Besides the one line of complaint, stderr carries what nvcc says, the line with a caret where PTX
 * cannot be loaded, and with --json or --sarif what the kernel prints.
 *
 * Invariant: exit code 0 means that every launch came to its end, none had a finding of severity
 * error, and every expectation was compared and met.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/args.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/message.h"
#include "check/check.h"
#include "cli/verbs.h"
#include "device/vgpu_findings.h"
#include "vgpu.h"

enum { WHAT_ARGS = 7, HOW_ARGS = 5, REPORT_ARGS = 4 };
enum { SHARED_MOST = 1 << 20 };

struct check {
    /* As requested. */
    const char *path, *entry, *grid, *block, *cluster, *async;
    int64_t shared, threads, max_steps;
    int sm; /* index into SM_NAMES */
    bool json, sarif, list, sm_given;
    struct arg_list arg_texts, dump_texts, expect_texts, suppress_texts;
    /* As understood. */
    vgpu_dims dims;
    struct async_orders orders;
    struct check_arg args[ARG_LIST_MOST];
    size_t arg_count;
    struct check_dump dumps[ARG_LIST_MOST];
    struct check_expect expects[ARG_LIST_MOST];
    size_t expect_count;
    vgpu *gpu;
    vgpu_module *module;
    size_t index; /* of the entry */
    vgpu_kernel kernel;
    bool unfinished; /* a launch was stopped by a fault */
    double seconds;
};

static const char *const SM_NAMES[] = {"80", "90", NULL};

/* ---- the request ----------------------------------------------------------------------------- */

/* "X", "X,Y" or "X,Y,Z"; what is not given is 1. */
static int parse_dims(const char *name, const char *text, uint32_t dims[3]) {
    const char *at = text;
    for (int i = 0; i < 3; i++) {
        dims[i] = 1;
    }
    for (int i = 0; i < 3; i++) {
        char *end;
        errno = 0;
        const unsigned long long number = strtoull(at, &end, 10);
        if (*at < '0' || *at > '9' || errno != 0 || number == 0 || number > UINT32_MAX ||
            (*end != '\0' && (*end != ',' || i == 2))) {
            break;
        }
        dims[i] = (uint32_t)number;
        if (*end == '\0') {
            return EXIT_DONE;
        }
        at = end + 1;
    }
    return complain("check: %s: '%s', expected X, X,Y or X,Y,Z of 1 or more", name, text);
}

static int parse_all_dims(struct check *c) {
    int status = EXIT_DONE;
    if (c->list) {
        return status;
    }
    if (c->grid == NULL || c->block == NULL) {
        return complain("check: %s is missing; attest check --help shows an example",
                        c->grid == NULL ? "--grid" : "--block");
    }
    status = parse_dims("--grid", c->grid, c->dims.grid);
    status = status == EXIT_DONE ? parse_dims("--block", c->block, c->dims.block) : status;
    if (status == EXIT_DONE && c->cluster != NULL) {
        status = parse_dims("--cluster", c->cluster, c->dims.cluster);
    }
    c->dims.shared_bytes = (uint32_t)c->shared;
    /* As a program does that wants more than the default: it asks for what it needs. */
    c->dims.max_shared_bytes = (uint32_t)c->shared;
    c->dims.non_portable_cluster = true;
    return status;
}

static int parse_args(struct check *c) {
    attn_error why = {""};
    for (size_t i = 0; i < c->arg_texts.count; i++) {
        const char *text = c->arg_texts.items[i];
        c->arg_count++;
        if (!check_arg_parse(&c->args[i], i, text, &why)) {
            return complain("check: --arg %s (argument %zu): %s", text, i, why.text);
        }
    }
    for (size_t i = 0; i < c->dump_texts.count; i++) {
        if (!check_dump_parse(&c->dumps[i], c->dump_texts.items[i], c->args, c->arg_count, &why)) {
            return complain("check: --dump: %s", why.text);
        }
    }
    for (size_t i = 0; i < c->expect_texts.count; i++) {
        c->expect_count++;
        if (!check_expect_parse(&c->expects[i], c->expect_texts.items[i], c->args, c->arg_count,
                                &why)) {
            return complain("check: --expect: %s", why.text);
        }
    }
    return EXIT_DONE;
}

static int parse_request(struct check *c) {
    attn_error why = {""};
    if (c->json && c->sarif) {
        return complain("check: --json and --sarif are given, expected one of them");
    }
    if (c->list && c->sarif) {
        return complain("check: --list has no findings for --sarif");
    }
    if (!async_orders_parse(c->async, &c->orders, &why)) {
        return complain("check: --async: %s", why.text);
    }
    const int status = parse_all_dims(c);
    return status == EXIT_DONE ? parse_args(c) : status;
}

/* "kind@file:line", "kind@file", "@file:line": an empty kind is any. */
static int suppress(struct check *c, const char *text) {
    const char *at = strchr(text, '@');
    char *copy = at != NULL && at[1] != '\0' ? strdup(text) : NULL;
    if (copy == NULL) {
        return complain("check: --suppress: '%s', expected kind@file:line", text);
    }
    char *file = copy + (at - text), *colon = strrchr(file + 1, ':'), *end = NULL;
    unsigned long line = 0;
    *file++ = '\0';
    if (colon != NULL) {
        line = strtoul(colon + 1, &end, 10);
        *colon = '\0';
    }
    const bool good = colon == NULL || (colon != file && end != colon + 1 && *end == '\0' &&
                                        line > 0 && line <= UINT32_MAX);
    vgpu_error fault = {0};
    const bool done = good && vgpu_suppress(c->gpu, *copy != '\0' ? copy : NULL, file,
                                            (uint32_t)line, &fault) == VGPU_OK;
    free(copy);
    if (!good) {
        return complain("check: --suppress: '%s', expected kind@file:line", text);
    }
    return done ? EXIT_DONE : complain("check: --suppress: %s: %s", text, fault.text);
}

/* ---- the module ------------------------------------------------------------------------------ */

static int open_gpu(struct check *c) {
    vgpu_config config;
    vgpu_error fault;
    vgpu_config_init(&config);
    config.threads = (int32_t)c->threads;
    config.sm = c->sm_given ? atoi(SM_NAMES[c->sm]) : config.sm;
    config.max_steps = c->max_steps > 0 ? (uint64_t)c->max_steps : config.max_steps;
    if (vgpu_open(&config, &c->gpu, &fault) != VGPU_OK) {
        return complain("check: %s", fault.text);
    }
    for (size_t i = 0; i < c->suppress_texts.count; i++) {
        const int status = suppress(c, c->suppress_texts.items[i]);
        if (status != EXIT_DONE) {
            return status;
        }
    }
    return EXIT_DONE;
}

static int load_module(struct check *c) {
    char *ptx;
    size_t size;
    attn_error why = {""};
    vgpu_error fault;
    const bool hopper = c->sm_given && c->sm == 1;
    const enum source_result result = source_read(c->path, hopper, &ptx, &size, &why);
    if (result == SOURCE_NO_NVCC) {
        complain("check: not run: %s", why.text);
        return EXIT_NOT_RUN;
    }
    if (result != SOURCE_READ) {
        return complain("check: %s", why.text);
    }
    const bool loaded = vgpu_load(c->gpu, ptx, size, &c->module, &fault) == VGPU_OK;
    free(ptx);
    if (loaded) {
        return EXIT_DONE;
    }
    char *caret = strchr(fault.text, '\n');
    if (caret != NULL) {
        *caret++ = '\0';
    }
    complain("check: %s: %s", c->path, fault.text);
    if (caret != NULL) {
        fprintf(stderr, "%s\n", caret);
    }
    return EXIT_BAD_INPUT;
}

/* The arguments against the parameters. */
static int match_params(const struct check *c) {
    char text[64];
    uint32_t offset, bytes;
    if (c->arg_count != c->kernel.param_count) {
        return complain("check: %s takes %u parameters, and %zu --arg are given", c->kernel.name,
                        c->kernel.param_count, c->arg_count);
    }
    for (uint32_t i = 0; vgpu_param_get(c->module, c->index, i, &offset, &bytes); i++) {
        if (c->args[i].value_bytes != bytes) {
            return complain("check: --arg %s (argument %u): a %s, but parameter %u of %s has "
                            "%u bytes",
                            c->arg_texts.items[i], i,
                            check_arg_text(&c->args[i], text, sizeof text), i, c->kernel.name,
                            bytes);
        }
    }
    return EXIT_DONE;
}

static int choose_entry(struct check *c) {
    attn_error why = {""};
    if (!entry_find(c->module, c->entry, &c->index, &why)) {
        return complain("check: %s: %s", c->path, why.text);
    }
    vgpu_kernel_get(c->module, c->index, &c->kernel);
    return match_params(c);
}

/* ---- launches -------------------------------------------------------------------------------- */

/* With JSON on stdout, what a kernel prints goes to stderr: this exchanges the descriptors and
 * returns the one to give to restore_stdout, or -1. */
static int divert_stdout(const struct check *c) {
    if (!c->json && !c->sarif) {
        return -1;
    }
    fflush(stdout);
    const int kept = dup(STDOUT_FILENO);
    if (kept >= 0) {
        dup2(STDERR_FILENO, STDOUT_FILENO);
    }
    return kept;
}

static void restore_stdout(int kept) {
    if (kept >= 0) {
        fflush(stdout);
        dup2(kept, STDOUT_FILENO);
        close(kept);
    }
}

static vgpu_status launch(struct check *c, vgpu_error *fault) {
    void *values[ARG_LIST_MOST];
    for (size_t i = 0; i < c->arg_count; i++) {
        values[i] = c->args[i].value;
    }
    const int kept = divert_stdout(c);
    const double started = clock_seconds();
    const vgpu_status status =
        vgpu_launch(c->gpu, c->module, c->kernel.name, &c->dims, values, fault);
    c->seconds += clock_seconds() - started;
    restore_stdout(kept);
    return status;
}

/* Expectations after each launch, dumps after the last. */
static int look_at_buffers(struct check *c, size_t order, bool finished) {
    attn_error why = {""};
    for (size_t i = 0; i < c->expect_count; i++) {
        c->expects[i].unfinished |= !finished;
        if (finished &&
            !check_expect_compare(&c->expects[i], c->args, c->gpu,
                                  async_order_name(c->orders.list[order].order), &why)) {
            return complain("check: --expect: %s", why.text);
        }
    }
    for (size_t i = 0; i < c->dump_texts.count && order + 1 == c->orders.count; i++) {
        if (!check_dump_write(&c->dumps[i], c->args, c->gpu, &why)) {
            return complain("check: --dump: %s", why.text);
        }
    }
    return EXIT_DONE;
}

static int run_placed(struct check *c, size_t order) {
    vgpu_error fault = {0};
    attn_error why = {""};
    for (size_t i = 0; i < c->arg_count; i++) {
        if (!check_arg_place(&c->args[i], c->gpu, &why)) {
            return complain("check: --arg %s (argument %zu): %s", c->arg_texts.items[i], i,
                            why.text);
        }
    }
    vgpu_set_async(c->gpu, (vgpu_async)c->orders.list[order].order, c->orders.list[order].seed);
    const vgpu_status status = launch(c, &fault);
    if (status != VGPU_OK && status != VGPU_FAULT) {
        return complain("check: %s cannot be launched: %s", c->kernel.name, fault.text);
    }
    c->unfinished |= status == VGPU_FAULT;
    return look_at_buffers(c, order, status == VGPU_OK);
}

static int run_orders(struct check *c) {
    int status = EXIT_DONE;
    for (size_t order = 0; order < c->orders.count && status == EXIT_DONE; order++) {
        status = run_placed(c, order);
        for (size_t i = 0; i < c->arg_count; i++) {
            check_arg_release(&c->args[i], c->gpu);
        }
    }
    return status;
}

/* ---- the report ------------------------------------------------------------------------------ */

static size_t count_warnings(const struct check *c) {
    vgpu_finding finding;
    size_t count = 0;
    for (size_t i = 0; vgpu_finding_get(c->gpu, i, &finding); i++) {
        count += finding.severity == VGPU_WARNING;
    }
    return count;
}

static bool all_met(const struct check *c) {
    bool met = true;
    for (size_t i = 0; i < c->expect_count; i++) {
        met = met && check_expect_met(&c->expects[i]);
    }
    return met;
}

/* "830", "1.2 M". */
static const char *short_count(uint64_t count, char *text, size_t size) {
    static const char *const units[] = {"", " k", " M", " G", " T"};
    double value = (double)count;
    int unit = 0;
    while (value >= 1000 && unit < 4) {
        value /= 1000;
        unit++;
    }
    snprintf(text, size, unit == 0 ? "%.0f%s" : "%.1f%s", value, units[unit]);
    return text;
}

static void report_text(const struct check *c, size_t errors) {
    char count[32];
    vgpu_stats stats;
    const size_t warnings = count_warnings(c);
    vgpu_stats_get(c->gpu, &stats);
    vgpu_report(c->gpu, stdout, VGPU_TEXT);
    for (size_t i = 0; i < c->expect_count; i++) {
        check_expect_print(&c->expects[i]);
    }
    printf("check: %zu error%s, %zu warning%s; %s thread-instructions, %.0f ms\n", errors,
           errors == 1 ? "" : "s", warnings, warnings == 1 ? "" : "s",
           short_count(stats.thread_instructions, count, sizeof count), 1e3 * c->seconds);
}

/* The virtual GPU's own object stands inside ours. */
static void report_json(const struct check *c, bool passed) {
    printf("{\"report\": ");
    vgpu_report(c->gpu, stdout, VGPU_JSON);
    printf(",\"check\": ");
    struct json json = json_begin(stdout);
    json_open(&json, NULL, '{');
    json_bool(&json, "passed", passed);
    json_text(&json, "file", c->path);
    json_text(&json, "entry", c->kernel.name);
    json_bool(&json, "finished", !c->unfinished);
    json_real(&json, "seconds", c->seconds);
    json_open(&json, "async", '[');
    for (size_t i = 0; i < c->orders.count; i++) {
        json_text(&json, NULL, async_order_name(c->orders.list[i].order));
    }
    json_close(&json);
    json_open(&json, "expectations", '[');
    for (size_t i = 0; i < c->expect_count; i++) {
        check_expect_json(&c->expects[i], &json);
    }
    json_close(&json);
    json_close(&json);
    printf("}\n");
}

static int report(const struct check *c) {
    const size_t errors = vgpu_error_count(c->gpu);
    const bool met = all_met(c), passed = errors == 0 && met && !c->unfinished;
    if (c->json) {
        report_json(c, passed);
    } else if (c->sarif) {
        vgpu_report(c->gpu, stdout, VGPU_SARIF);
    } else {
        report_text(c, errors);
    }
    if (passed) {
        return EXIT_DONE;
    }
    char name[ENTRY_NAME_SIZE];
    complain("check: %s: %zu error%s%s%s", vgpu_readable_name(c->kernel.name, name, sizeof name),
             errors, errors == 1 ? "" : "s", met ? "" : ", an expectation was missed",
             c->unfinished ? ", it did not come to its end" : "");
    return EXIT_FAILED_CHECK;
}

/* ---- the verb -------------------------------------------------------------------------------- */

static int run(struct check *c) {
    int status = parse_request(c);
    status = status == EXIT_DONE ? open_gpu(c) : status;
    status = status == EXIT_DONE ? load_module(c) : status;
    if (status == EXIT_DONE && c->list) {
        entry_list(c->module, c->json);
        return EXIT_DONE;
    }
    status = status == EXIT_DONE ? choose_entry(c) : status;
    status = status == EXIT_DONE ? run_orders(c) : status;
    return status == EXIT_DONE ? report(c) : status;
}

static void forget(struct check *c) {
    for (size_t i = 0; i < c->arg_count; i++) {
        check_arg_free(&c->args[i]);
    }
    for (size_t i = 0; i < c->expect_count; i++) {
        check_expect_free(&c->expects[i]);
    }
    vgpu_unload(c->module);
    vgpu_close(c->gpu);
    free(c);
}

static const char NOTES[] =
    "An argument is TYPE:VALUE, buf:TYPE:COUNT:FILL or\n"
    "tmap:TYPE:D0xD1[x...]:S1[x...]:B0xB1[x...]:none|32|64|128:FILL, a tensor map over a buffer\n"
    "of its own: dims in elements, innermost first; strides of dims 1... in bytes; box; swizzle.\n"
    "TYPE is f32, f16, bf16, f64, i8 to i64, u8 to u64; FILL is zero, iota, uninit, rand[:SEED]\n"
    "(normal, or whole numbers up to 100) or @file.npy (bf16 as uint16).\n"
    "A .cu file is compiled by nvcc ($CUDACXX, $PATH, /usr/local/cuda/bin; more flags for it in\n"
    "$NVCC_APPEND_FLAGS). Exit code: 0 no errors, 1 errors or an expectation missed, 2 it cannot\n"
    "be loaded or launched, 3 no nvcc.\n";

static enum args_result parse_words(struct check *c, int argc, char **argv) {
    struct arg positional = arg_text("KERNEL.cu|KERNEL.ptx", &c->path, "FILE", "");
    struct arg what[WHAT_ARGS] = {
        arg_text("--entry", &c->entry, "NAME",
                 "the kernel: a prefix of its PTX or C++ name [the only one]"),
        arg_text("--grid", &c->grid, "X[,Y,Z]", "CTAs"),
        arg_text("--block", &c->block, "X[,Y,Z]", "threads of a CTA"),
        arg_text("--cluster", &c->cluster, "X[,Y,Z]", "CTAs of a cluster [the kernel's own]"),
        arg_int("--smem", &c->shared, 0, SHARED_MOST, "bytes of dynamic shared memory [0]"),
        arg_list("--arg", &c->arg_texts, "ARG", "an argument, in the order of the parameters"),
        arg_flag("--list", &c->list, "show the kernels of the file, run nothing"),
    };
    struct arg how[HOW_ARGS] = {
        arg_text("--async", &c->async, "ORDER",
                 "when asynchronous copies and wgmma complete: eager, fifo, lifo, "
                 "random:SEED, or all, one after the other [eager]"),
        arg_choice("--sm", &c->sm, SM_NAMES, "the GPU to emulate, and the target of a .cu [90]"),
        arg_int("--threads", &c->threads, 1, 4096, "CPU threads [what the machine has]"),
        arg_int("--max-steps", &c->max_steps, 1, INT64_MAX,
                "warp instructions after which a launch is stopped [10000000000]"),
        arg_list("--suppress", &c->suppress_texts, "KIND@FILE:LINE", "drop this finding"),
    };
    struct arg reports[REPORT_ARGS] = {
        arg_list("--expect", &c->expect_texts, "N:FILE:ATOL",
                 "what argument N (from 0) holds afterwards, as .npy"),
        arg_list("--dump", &c->dump_texts, "N:FILE", "write argument N as .npy"),
        arg_flag("--json", &c->json, "report as JSON"),
        arg_flag("--sarif", &c->sarif, "report as SARIF, for editors and CI"),
    };
    const struct arg_group groups[] = {{"the launch", what, WHAT_ARGS},
                                       {"how it runs", how, HOW_ARGS},
                                       {"results", reports, REPORT_ARGS}};
    const struct command command = {
        .verb = "check",
        .summary = "runs any CUDA kernel on a virtual GPU and finds its bugs",
        .synopsis = "KERNEL.cu|KERNEL.ptx --grid X[,Y,Z] --block X[,Y,Z] [--arg ARG]... [options]",
        .notes = NOTES,
        .examples = "  attest check sum.cu --grid 4 --block 128 --arg buf:f32:512:rand --arg "
                    "buf:f32:4:uninit\n"
                    "  attest check sum.ptx --list\n",
        .groups = groups,
        .group_count = sizeof groups / sizeof *groups,
        .positional = &positional,
    };
    const enum args_result parsed = args_parse(&command, argc, argv);
    c->sm_given = how[1].seen;
    return parsed;
}

int verb_check(int argc, char **argv) {
    struct check *c = calloc(1, sizeof *c);
    if (c == NULL) {
        return complain("check: out of memory");
    }
    c->async = "eager";
    const enum args_result parsed = parse_words(c, argc, argv);
    const int status = parsed == ARGS_RUN    ? run(c)
                       : parsed == ARGS_HELP ? EXIT_DONE
                                             : EXIT_BAD_INPUT;
    forget(c);
    return status;
}
