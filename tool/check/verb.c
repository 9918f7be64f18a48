/* SPDX-License-Identifier: Apache-2.0
 *
 * verb.c - `attest check`: runs any CUDA kernel on a virtual GPU, in one or several shapes, under
 * one or all orders of asynchronous completion, and reports what is wrong with it.
 *
 * Besides the one line of complaint, stderr carries what nvcc says, the line with a caret where PTX
 * cannot be loaded, and with --json or --sarif what the kernel prints.
 *
 * Invariant: exit code 0 means that every launch came to its end, none had a finding of severity
 * error, and every expectation was compared and met.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/message.h"
#include "check/check.h"
#include "cli/verbs.h"

static const char *const SM_NAMES[] = {"80", "86", "87", "89", "90", NULL};

/* ---- the request ----------------------------------------------------------------------------- */

static bool parse_request(struct check *c) {
    attn_error why = {""};
    if (c->json && c->sarif) {
        return deny("check: --json and --sarif are given, expected one of them");
    }
    if (c->list && c->sarif) {
        return deny("check: --list has no findings for --sarif");
    }
    if (!async_orders_parse(c->async, &c->orders, &why)) {
        return deny("check: --async: %s", why.text);
    }
    for (size_t i = 0; i < c->sweep_texts.count; i++) {
        if (!sweep_add(&c->sweep, c->sweep_texts.items[i], &why)) {
            return deny("check: --sweep: %s", why.text);
        }
    }
    return c->list || check_shape_parse(c);
}

/* "kind@file:line", "kind@file", "@file:line": an empty kind is any. */
static bool suppress(struct check *c, const char *text) {
    char copy[PATH_MAX], *file = copy;
    vgpu_error fault = {0};
    int64_t line = 0;
    snprintf(copy, sizeof copy, "%s", text);
    const char *kind = strsep(&file, "@");
    char *colon = file != NULL ? strrchr(file, ':') : NULL;
    const char *digits = colon != NULL ? colon + 1 : "";
    const bool good = file != NULL && *file != '\0' && colon != file &&
                      (colon == NULL || (take_whole(&digits, &line) && *digits == '\0' &&
                                         line > 0 && line <= UINT32_MAX));
    if (!good) {
        return deny("check: --suppress: '%s', expected kind@file:line", text);
    }
    if (colon != NULL) {
        *colon = '\0';
    }
    return vgpu_suppress(c->gpu, *kind != '\0' ? kind : NULL, file, (uint32_t)line, &fault) ==
               VGPU_OK ||
           deny("check: --suppress: %s: %s", text, fault.text);
}

static bool open_gpu(struct check *c) {
    vgpu_config config;
    vgpu_error fault;
    vgpu_config_init(&config);
    config.threads = (int32_t)c->threads;
    config.sm = c->sm != 0 ? c->sm : config.sm;
    config.max_steps = c->max_steps > 0 ? (uint64_t)c->max_steps : config.max_steps;
    bool good = vgpu_open(&config, &c->gpu, &fault) == VGPU_OK || deny("check: %s", fault.text);
    for (size_t i = 0; i < c->suppress_texts.count && good; i++) {
        good = suppress(c, c->suppress_texts.items[i]);
    }
    return good;
}

/* An exit code; complains. */
static int read_source(struct check *c) {
    attn_error why = {""};
    const enum source_result result = source_read(c->path, c->sm, &c->source, &why);
    if (result == SOURCE_NO_NVCC) {
        complain("check: not run: %s", why.text);
        return EXIT_NOT_RUN;
    }
    return result == SOURCE_READ ? EXIT_DONE : complain("check: %s", why.text);
}

/* ---- the report ------------------------------------------------------------------------------ */

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
    char count[32], shape[128];
    vgpu_finding finding;
    vgpu_stats stats;
    size_t warnings = 0;
    for (size_t i = 0; vgpu_finding_get(c->gpu, i, &finding); i++) {
        warnings += finding.severity == VGPU_WARNING;
    }
    vgpu_stats_get(c->gpu, &stats);
    vgpu_report(c->gpu, stdout, VGPU_TEXT);
    for (size_t i = 0; i < c->expect_count; i++) {
        check_expect_print(&c->expects[i]);
    }
    if (c->sweep.count > 0 && check_failed(c)) {
        printf("sweep: fails at %s\n", sweep_text(&c->sweep, shape, sizeof shape));
    }
    printf("check: %zu error%s, %zu warning%s; %s thread-instructions, %.0f ms\n", errors,
           errors == 1 ? "" : "s", warnings, warnings == 1 ? "" : "s",
           short_count(stats.thread_instructions, count, sizeof count), 1e3 * c->seconds);
}

/* The virtual GPU's own object stands inside ours. */
static void report_json(const struct check *c, bool passed) {
    char shape[128];
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
    if (c->sweep.count > 0) {
        json_text(&json, "fails_at", passed ? NULL : sweep_text(&c->sweep, shape, sizeof shape));
    }
    json_int(&json, "launches", (int64_t)c->launches);
    json_open(&json, "async", '[');
    for (size_t i = 0; i < c->orders.count; i++) {
        json_text(&json, NULL, async_order_name(c->orders.list[i].order));
    }
    json_close(&json);
    json_open(&json, "expectations", '[');
    for (size_t i = 0; i < c->expect_count; i++) {
        check_expect_json(&c->expects[i], &json);
    }
    json_close_all(&json);
    printf("}\n");
}

static int report(const struct check *c) {
    const size_t errors = vgpu_error_count(c->gpu);
    const bool met = check_expectations_met(c), passed = !check_failed(c);
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
    char name[ENTRY_NAME_SIZE], shape[128];
    complain("check: %s: %zu error%s%s%s%s%s",
             vgpu_readable_name(c->kernel.name, name, sizeof name), errors, errors == 1 ? "" : "s",
             met ? "" : ", an expectation was missed",
             c->unfinished ? ", it did not come to its end" : "", c->sweep.count > 0 ? ", at " : "",
             sweep_text(&c->sweep, shape, sizeof shape));
    return EXIT_FAILED_CHECK;
}

/* ---- the list of kernels --------------------------------------------------------------------- */

static void print_entry(const vgpu_module *module, size_t index, const vgpu_kernel *kernel) {
    char readable[ENTRY_NAME_SIZE], type[64];
    uint32_t offset, bytes;
    vgpu_readable_signature(kernel->name, readable, sizeof readable);
    const bool same = strcmp(readable, kernel->name) == 0;
    printf("%s%s%s%s\n  %u parameter%s", kernel->name, same ? "" : "  (", same ? "" : readable,
           same ? "" : ")", kernel->param_count, kernel->param_count == 1 ? "" : "s");
    for (uint32_t p = 0; vgpu_param_get(module, index, p, &offset, &bytes); p++) {
        printf("%s%u", p == 0 ? " of " : ", ", bytes);
    }
    for (uint32_t p = 0; p < kernel->param_count; p++) {
        printf("%s%s", p == 0 ? " bytes: " : ", ",
               vgpu_param_type(module, index, p, type, sizeof type));
    }
    printf("\n  %u bytes of static shared memory, %u of local; at most %u threads per CTA\n"
           "  %u instructions, %u of them MMA\n",
           kernel->shared_bytes, kernel->local_bytes, kernel->max_threads, kernel->instructions,
           kernel->tensor_instructions);
}

static void write_entry(struct json *json, const vgpu_module *module, size_t index,
                        const vgpu_kernel *kernel) {
    char readable[ENTRY_NAME_SIZE], type[64];
    uint32_t offset, bytes;
    json_open(json, NULL, '{');
    json_text(json, "name", kernel->name);
    json_text(json, "demangled", vgpu_readable_name(kernel->name, readable, sizeof readable));
    json_text(json, "signature", vgpu_readable_signature(kernel->name, readable, sizeof readable));
    json_open(json, "types", '[');
    for (uint32_t p = 0; p < kernel->param_count; p++) {
        json_text(json, NULL, vgpu_param_type(module, index, p, type, sizeof type));
    }
    json_close(json);
    json_open(json, "parameters", '[');
    for (uint32_t p = 0; vgpu_param_get(module, index, p, &offset, &bytes); p++) {
        json_int(json, NULL, bytes);
    }
    json_close(json);
    json_int(json, "shared", kernel->shared_bytes);
    json_int(json, "local", kernel->local_bytes);
    json_int(json, "threads", kernel->max_threads);
    json_int(json, "instructions", kernel->instructions);
    json_int(json, "tensor_instructions", kernel->tensor_instructions);
    json_close(json);
}

static void list_entries(const vgpu_module *module, bool as_json) {
    struct json json = json_begin(stdout);
    vgpu_kernel kernel;
    if (as_json) {
        json_open(&json, NULL, '{');
        json_open(&json, "entries", '[');
    }
    for (size_t i = 0; vgpu_kernel_get(module, i, &kernel); i++) {
        if (as_json) {
            write_entry(&json, module, i, &kernel);
        } else {
            print_entry(module, i, &kernel);
        }
    }
    json_close_all(&json);
}

/* ---- running --------------------------------------------------------------------------------- */

/* What there is to do once the source is read. */
static int run_source(struct check *c) {
    if (!open_gpu(c) || !check_module_load(c)) {
        return EXIT_BAD_INPUT;
    }
    if (c->list) {
        list_entries(c->module, c->json);
        return EXIT_DONE;
    }
    return check_run(c) ? report(c) : EXIT_BAD_INPUT;
}

static void forget(struct check *c) {
    check_shape_forget(c);
    sweep_free(&c->sweep);
    vgpu_unload(c->module);
    vgpu_close(c->gpu);
    source_free(&c->source);
    free(c);
}

/* When the files last changed: a number that differs afterwards. */
static uint64_t age_of(const char *files) {
    uint64_t age = 0;
    for (const char *at = files, *end; *at != '\0'; at = end + (*end == '\n')) {
        char name[PATH_MAX];
        struct stat about = {0};
        end = at + strcspn(at, "\n");
        snprintf(name, sizeof name, "%.*s", (int)(end - at), at);
        stat(name, &about);
        age = age * 31 + (uint64_t)about.st_mtim.tv_sec * 1000000007U +
              (uint64_t)about.st_mtim.tv_nsec + (uint64_t)about.st_size;
    }
    return age;
}

/* Each run is a child: what it opened ends with it. Does not return until it is interrupted, or a
 * child cannot be started. */
static int watch(struct check *c) {
    for (;;) {
        const uint64_t before = age_of(c->path);
        const bool good = read_source(c) == EXIT_DONE;
        const pid_t child = good ? fork() : 0;
        if (good && child == 0) {
            const int code = run_source(c);
            fflush(stdout);
            _exit(code);
        }
        if (child < 0 || (child > 0 && waitpid(child, NULL, 0) < 0)) {
            return complain("check: --watch: a process cannot be started");
        }
        printf("---- waiting for %s to change\n", c->path);
        fflush(stdout);
        const char *files = c->source.files != NULL ? c->source.files : c->path;
        const uint64_t age = age_of(files);
        while (age_of(c->path) == before && age_of(files) == age) {
            nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
        }
        source_free(&c->source);
    }
}

/* ---- the verb -------------------------------------------------------------------------------- */

static const char NOTES[] =
    "An argument is TYPE:VALUE, buf:TYPE:COUNT:FILL,\n"
    "tmap:TYPE:D0xD1[x...]:S1[x...]:B0xB1[x...]:none|32|64|128:FILL (a tensor map over a buffer\n"
    "of its own: dims in elements, innermost first; strides of dims 1... in bytes; box; swizzle),\n"
    "struct:ARG,ARG... (laid out as in C), bytes:HEX, ptr:ARG (a pointer to a value, such as a\n"
    "tensor map), ptrs:COUNT:ARG (a pointer to an array of pointers) or numba:TYPE:D0xD1...:FILL\n"
    "(the parameters that numba passes for an array).\n"
    "TYPE is f32, f16, bf16, f64, i8 to i64, u8 to u64; FILL is zero, iota, uninit, const:VALUE,\n"
    "rand[:SEED] (normal, or whole numbers up to 100), rand:LOW..HIGH[:SEED] or @file.npy (bf16\n"
    "as uint16).\n"
    "A .cu file is compiled by nvcc ($CUDACXX, $PATH, /usr/local/cuda/bin; more flags for it in\n"
    "$NVCC_APPEND_FLAGS). Its PTX is cached in ~/.cache/attest until a source file changes.\n"
    "Exit code: 0 no errors, 1 errors or an expectation missed, 2 it cannot be loaded or "
    "launched,\n"
    "3 no nvcc.\n";

static enum args_result parse_words(struct check *c, int argc, char **argv) {
    int sm = -1;
    struct arg positional = arg_text("KERNEL.cu|KERNEL.ptx", &c->path, "FILE", "");
    struct arg what[] = {
        arg_text("--entry", &c->entry, "NAME",
                 "the kernel: a prefix of its PTX or C++ name, 'sum<128,64>' [the only one]"),
        arg_text("--grid", &c->grid, "X[,Y,Z]", "CTAs"),
        arg_text("--block", &c->block, "X[,Y,Z]", "threads of a CTA"),
        arg_text("--cluster", &c->cluster, "X[,Y,Z]", "CTAs of a cluster [the kernel's own]"),
        arg_text("--smem", &c->shared, "BYTES", "dynamic shared memory [0]"),
        arg_list("--arg", &c->arg_texts, "ARG", "an argument, in the order of the parameters"),
        arg_list(
            "--symbol", &c->symbol_texts, "NAME=FILL",
            "a __constant__ or __device__ variable; NAME=TYPE:FILL if PTX declares only bytes"),
        arg_list("--sweep", &c->sweep_texts, "N=LOW..HIGH[:STEP]",
                 "run these shapes, in this order, until one fails; sizes may contain N, as in "
                 "--grid '(N+127)/128' --arg buf:f32:N:rand; also N=1,2,31"),
        arg_flag("--list", &c->list, "show the kernels of the file, run nothing"),
    };
    struct arg how[] = {
        arg_text("--async", &c->async, "ORDER",
                 "when asynchronous copies and wgmma complete: eager, fifo, lifo, "
                 "random:SEED, or all, one after the other [eager]"),
        arg_choice(
            "--sm", &sm, SM_NAMES,
            "the GPU to emulate, and the target of a .cu [emulate 90, compile for the newest "
            "GPU that the source needs]"),
        arg_int("--threads", &c->threads, 1, 4096, "CPU threads [what the machine has]"),
        arg_int("--max-steps", &c->max_steps, 1, INT64_MAX,
                "warp instructions after which a launch is stopped [10000000000]"),
        arg_list("--suppress", &c->suppress_texts, "KIND@FILE:LINE", "drop this finding"),
        arg_flag("--watch", &c->watch, "run again whenever the source or a header changes"),
    };
    struct arg reports[] = {
        arg_list("--expect", &c->expect_texts, "N:FILE:ATOL",
                 "what argument N (from 0; 0.1: a part of it) holds afterwards, as .npy"),
        arg_list("--dump", &c->dump_texts, "N:FILE", "write argument N as .npy"),
        arg_flag("--json", &c->json, "report as JSON"),
        arg_flag("--sarif", &c->sarif, "report as SARIF, for editors and CI"),
    };
    const struct arg_group groups[] = {ARG_GROUP("the launch", what), ARG_GROUP("how it runs", how),
                                       ARG_GROUP("results", reports)};
    const struct command command = {
        .verb = "check",
        .synopsis = "KERNEL.cu|KERNEL.ptx --grid X[,Y,Z] --block X[,Y,Z] [--arg ARG]... [options]",
        .notes = NOTES,
        .examples = "  attest check sum.cu --grid 4 --block 128 --arg buf:f32:512:rand --arg "
                    "buf:f32:4:uninit\n"
                    "  attest check sum.cu --sweep N=1..999 --grid '(N+127)/128' --block 128 \\\n"
                    "      --arg buf:f32:N:rand --arg buf:f32:N:uninit --arg i32:N\n"
                    "  attest check sum.ptx --list\n",
        ARG_GROUPS(groups),
        .positional = &positional,
    };
    const enum args_result parsed = args_parse(&command, argc, argv);
    c->sm = sm >= 0 ? atoi(SM_NAMES[sm]) : 0;
    return parsed;
}

int verb_check(int argc, char **argv) {
    struct check *c = must(calloc(1, sizeof *c));
    c->async = "eager";
    const enum args_result parsed = parse_words(c, argc, argv);
    int status = parsed == ARGS_HELP ? EXIT_DONE : EXIT_BAD_INPUT;
    if (parsed == ARGS_RUN && parse_request(c)) {
        const int read = c->watch ? EXIT_DONE : read_source(c);
        status = c->watch ? watch(c) : read == EXIT_DONE ? run_source(c) : read;
    }
    forget(c);
    return status;
}
