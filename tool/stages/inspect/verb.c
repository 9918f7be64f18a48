/* SPDX-License-Identifier: Apache-2.0
 *
 * verb.c - `attest inspect`: what the machine code in the library needs and consists of,
 * compared with the budgets; or what is in any cubin. Needs neither a GPU nor NVIDIA's tools.
 *
 * Invariant: exit code 0 means that every cubin that has a budget was there, was read and is within
 * it, and that no other was there. What was not looked at is named.
 */
#include <errno.h>
#include <inttypes.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "attn_inspect.h"
#include "base/args.h"
#include "base/file.h"
#include "base/json.h"
#include "base/message.h"
#include "base/output.h"
#include "cli/verbs.h"
#include "device/kernels.h"
#include "stages/inspect/against.h"
#include "stages/inspect/inspect.h"
#include "stages/inspect/sass.h"

struct job {
    bool json, opcodes;
    const char *pattern, *budgets_path, *image_path, *dump_path, *against;
    regex_t regex;
    bool has_regex;
    struct budgets budgets;
    struct inspected *rows;
    size_t count;
    int variants; /* for GPUs in the library, whether selected or not */
    char *file;
    struct cubin file_cubin; /* whose kernels the rows are, with --image */
};

static int failed(const char *where, const attn_error *why) {
    complain("inspect: %s: %s", where, why->text);
    return EXIT_FAILED_CHECK;
}

static bool selected(const struct job *job, const char *name) {
    return !job->has_regex || regexec(&job->regex, name, 0, NULL, 0) == 0;
}

/* Room for one more row; NULL: out of memory. */
static struct inspected *next_row(struct job *job) {
    struct inspected *grown = realloc(job->rows, (job->count + 1) * sizeof *grown);
    if (grown == NULL) {
        return NULL;
    }
    job->rows = grown;
    return &grown[job->count];
}

/* ---- dump ------------------------------------------------------------------------------------ */

static int write_file(const char *path, const void *data, size_t bytes) {
    struct output output;
    attn_error why = {""};
    bool good = output_open(&output, path, &why);
    if (good && fwrite(data, 1, bytes, output.file) != bytes) {
        good = explain(&why, "cannot write: %s", strerror(errno));
    }
    good = good && output_finish(&output, &why) && output_publish(&output, &why);
    output_discard(&output);
    return good ? EXIT_DONE : complain("inspect: %s: %s", path, why.text);
}

static int dump_image(const struct job *job, const char *name, const attn_image *image) {
    char path[4096];
    if (mkdir(job->dump_path, 0777) != 0 && errno != EEXIST) {
        return complain("inspect: %s: %s", job->dump_path, strerror(errno));
    }
    static const char *const ENDINGS[] = {"cubin", "ptx", "fatbin"};
    snprintf(path, sizeof path, "%s/%s.%s.%s", job->dump_path, name, image->arch,
             ENDINGS[image->kind]);
    const int status = write_file(path, image->data, image->bytes);
    if (status != EXIT_DONE || image->log == NULL) {
        return status;
    }
    snprintf(path, sizeof path, "%s/%s.%s.log", job->dump_path, name, image->arch);
    return write_file(path, image->log, strlen(image->log));
}

/* ---- the library's images -------------------------------------------------------------------- */

static int look_at_variant(struct job *job, const attn_variant *variant) {
    attn_image image = {.size = sizeof image};
    attn_error why;
    const size_t first = job->count;
    const char *ptx_call = NULL;
    bool ptx_seen = false;
    for (int32_t i = 0; attn_variant_image(NULL, variant->name, i, &image, &why) == ATTN_OK; i++) {
        if (job->dump_path != NULL) {
            const int status = dump_image(job, variant->name, &image);
            if (status != EXIT_DONE) {
                return status;
            }
        }
        if (image.kind == ATTN_IMAGE_PTX) {
            ptx_call = inspect_output_call(image.data);
            ptx_seen = true;
        }
        if (image.kind != ATTN_IMAGE_CUBIN) {
            continue;
        }
        struct inspected *row = next_row(job);
        if (row == NULL) {
            return complain("inspect: out of memory for %zu rows", job->count + 1);
        }
        if (!inspect_variant(variant, &image, row, &why)) {
            char where[160];
            snprintf(where, sizeof where, "%s %s", variant->name, image.arch);
            return failed(where, &why);
        }
        job->count++;
    }
    if (!ptx_seen) { /* then nothing is known of what it prints */
        return failed(variant->name, &why);
    }
    for (size_t i = first; i < job->count; i++) {
        job->rows[i].ptx_output_call = ptx_call;
    }
    return EXIT_DONE;
}

static int look_at_library(struct job *job) {
    attn_variant variant = {.size = sizeof variant};
    for (int32_t i = 0; attn_variant_get(NULL, i, &variant, NULL) == ATTN_OK; i++) {
        if (strcmp(variant.device, "cuda") != 0) {
            continue;
        }
        job->variants++;
        if (selected(job, variant.name)) {
            const int status = look_at_variant(job, &variant);
            if (status != EXIT_DONE) {
                return status;
            }
        }
    }
    return EXIT_DONE;
}

/* ---- any cubin ------------------------------------------------------------------------------- */

static int look_at_file(struct job *job) {
    attn_error why;
    size_t bytes;
    job->file = file_read(job->image_path, &bytes, &why);
    if (job->file == NULL) {
        return complain("inspect: %s", why.text);
    }
    struct cubin *cubin = &job->file_cubin;
    if (!cubin_open(cubin, job->file, bytes, &why)) {
        return complain("inspect: %s: %s", job->image_path, why.text);
    }
    char sha256[SHA256_TEXT];
    sha256_text(job->file, bytes, sha256);
    for (uint32_t i = 0; i < cubin->entries; i++) {
        struct inspected *row = next_row(job);
        if (row == NULL) {
            return complain("inspect: out of memory for %zu rows", job->count + 1);
        }
        if (!inspect_kernel(cubin, sha256, i, row, &why)) {
            return complain("inspect: %s: %s", job->image_path, why.text);
        }
        job->count += selected(job, row->name);
    }
    return job->count > 0 ? EXIT_DONE
                          : complain("inspect: %s: none of its %" PRIu32 " kernels is selected",
                                     job->image_path, cubin->entries);
}

/* ---- output ---------------------------------------------------------------------------------- */

static void put_known(struct json *json, const char *key, int64_t value) {
    if (value < 0) {
        json_null(json, key);
    } else {
        json_int(json, key, value);
    }
}

static void put_opcodes(struct json *json, const struct inspected *row) {
    struct sass_counts counts;
    sass_count(&row->cubin, &row->entry, &counts);
    json_open(json, "opcodes", '[');
    for (unsigned i = 0; i < SASS_OPCODES; i++) {
        if (counts.opcodes[i] > 0) {
            char text[8];
            snprintf(text, sizeof text, "0x%03x", i);
            json_open(json, NULL, '{');
            json_text(json, "opcode", text);
            json_text(json, "mnemonic", sass_mnemonic(i));
            json_int(json, "count", counts.opcodes[i]);
            json_close(json);
        }
    }
    json_close(json);
}

static void put_verdict(struct json *json, const struct job *job, const struct inspected *row) {
    char failures[INSPECT_FAILURES_MAX][256];
    const struct budget *budget = budgets_find(&job->budgets, row->name, row->arch);
    const int count = inspect_gate(row, budget, failures);
    put_known(json, "budget_registers", budget != NULL ? budget->registers : -1);
    put_known(json, "budget_tensor_ops", budget != NULL ? budget->tensor_ops : -1);
    json_bool(json, "pass", count == 0);
    json_open(json, "failures", '[');
    for (int i = 0; i < count; i++) {
        json_text(json, NULL, failures[i]);
    }
    json_close(json);
}

static void put_row(struct json *json, const struct job *job, const struct inspected *row) {
    json_open(json, NULL, '{');
    json_text(json, "name", row->name);
    json_text(json, "family", row->family);
    json_text(json, "arch", row->arch);
    json_text(json, "dtype", row->family != NULL ? row->dtype : NULL);
    put_known(json, "head_dim", row->head_dim);
    json_int(json, "registers", row->entry.registers);
    json_int(json, "stack_bytes", row->entry.stack_bytes);
    put_known(json, "spill_bytes", row->spill_bytes);
    json_int(json, "smem_static", row->entry.shared_bytes);
    put_known(json, "smem_dynamic", row->smem_dynamic);
    json_int(json, "barriers", row->entry.barriers);
    json_int(json, "tensor_ops", row->tensor_ops);
    if (row->family != NULL) {
        json_int(json, "tensor_demand", row->tensor_demand);
    }
    json_int(json, "local_ops", row->local_ops);
    json_int(json, "instructions", row->instructions);
    json_int(json, "helpers", row->entry.helpers);
    json_int(json, "builtins", row->entry.builtins);
    json_text(json, "cubin_sha256", row->sha256);
    json_int(json, "cubin_bytes", (int64_t)row->cubin.bytes);
    if (row->family != NULL) {
        json_bool(json, "log_bound", row->log_bound);
        put_verdict(json, job, row);
    }
    if (job->opcodes) {
        put_opcodes(json, row);
    }
    json_close(json);
}

static void print_number(int64_t value, int width) {
    if (value < 0) {
        printf(" %*s", width, "-");
    } else {
        printf(" %*" PRId64, width, value);
    }
}

static void print_opcodes(const struct inspected *row) {
    struct sass_counts counts;
    sass_count(&row->cubin, &row->entry, &counts);
    for (unsigned i = 0; i < SASS_OPCODES; i++) {
        if (counts.opcodes[i] > 0) {
            const char *mnemonic = sass_mnemonic(i);
            printf("  opcode 0x%03x %-10s %6" PRId64 "\n", i, mnemonic != NULL ? mnemonic : "?",
                   counts.opcodes[i]);
        }
    }
}

static void print_table(const struct job *job) {
    int width = 7;
    for (size_t i = 0; i < job->count; i++) {
        const int length = (int)strlen(job->rows[i].name);
        width = length > width ? length : width;
    }
    printf("%-*s %-6s %4s %5s %5s %5s %6s %4s %6s %7s %6s %7s %8s  %s\n", width, "variant", "arch",
           "regs", "stack", "spill", "local", "tensor", "bars", "smem", "dynamic", "instr",
           "helpers", "builtins", "sha256");
    for (size_t i = 0; i < job->count; i++) {
        const struct inspected *row = &job->rows[i];
        printf("%-*s %-6s", width, row->name, row->arch);
        print_number(row->entry.registers, 4);
        print_number(row->entry.stack_bytes, 5);
        print_number(row->spill_bytes, 5);
        print_number(row->local_ops, 5);
        print_number(row->tensor_ops, 6);
        print_number(row->entry.barriers, 4);
        print_number(row->entry.shared_bytes, 6);
        print_number(row->smem_dynamic, 7);
        print_number(row->instructions, 6);
        print_number(row->entry.helpers, 7);
        print_number(row->entry.builtins, 8);
        printf("  %.12s\n", row->sha256);
        if (job->opcodes) {
            print_opcodes(row);
        }
    }
}

static void print_rows(const struct job *job) {
    if (!job->json) {
        print_table(job);
        return;
    }
    struct json json = json_begin(stdout);
    json_open(&json, NULL, '[');
    for (size_t i = 0; i < job->count; i++) {
        put_row(&json, job, &job->rows[i]);
    }
    json_close(&json);
}

/* ---- the gate -------------------------------------------------------------------------------- */

/* Rows that break a rule; in text, a line for each rule broken. */
static size_t check_rows(const struct job *job) {
    size_t broken = 0;
    for (size_t i = 0; i < job->count; i++) {
        const struct inspected *row = &job->rows[i];
        char failures[INSPECT_FAILURES_MAX][256];
        const int count =
            inspect_gate(row, budgets_find(&job->budgets, row->name, row->arch), failures);
        broken += count > 0;
        for (int j = 0; j < count && !job->json; j++) {
            printf("FAIL %s %s: %s\n", row->name, row->arch, failures[j]);
        }
    }
    return broken;
}

static bool has_row(const struct job *job, const struct budget *line) {
    for (size_t i = 0; i < job->count; i++) {
        if (strcmp(job->rows[i].name, line->variant) == 0 &&
            strcmp(job->rows[i].arch, line->arch) == 0) {
            return true;
        }
    }
    return false;
}

/* Budgets whose cubin is not in the library. */
static size_t check_absent(const struct job *job, const struct budget **first) {
    size_t absent = 0;
    for (size_t i = job->budgets.count; i-- > 0;) {
        const struct budget *line = &job->budgets.lines[i];
        if (selected(job, line->variant) && !has_row(job, line)) {
            *first = line;
            absent++;
            if (!job->json) {
                printf("NOT RUN %s %s: the library has no such cubin\n", line->variant, line->arch);
            }
        }
    }
    return absent;
}

static int judge(const struct job *job) {
    const struct budget *first = NULL;
    const size_t broken = check_rows(job);
    const size_t absent = check_absent(job, &first);
    if (!job->json) {
        printf("%zu of %zu cubins within their budgets, %zu not there\n", job->count - broken,
               job->count, absent);
    }
    if (broken > 0) {
        complain("inspect: %zu of %zu cubins break their budgets", broken, job->count);
        return EXIT_FAILED_CHECK;
    }
    if (absent > 0) {
        complain("inspect: %zu cubins that have a budget are not in the library, %s for %s among "
                 "them",
                 absent, first->variant, first->arch);
        return EXIT_NOT_RUN;
    }
    return EXIT_DONE;
}

/* ---- the verb -------------------------------------------------------------------------------- */

static int read_budgets(struct job *job) {
    attn_error why;
    if (job->budgets_path == NULL) {
        return budgets_built_in(&job->budgets, &why) ? EXIT_DONE : failed("budgets.def", &why);
    }
    size_t bytes;
    char *text = file_read(job->budgets_path, &bytes, &why);
    if (text == NULL) {
        return complain("inspect: %s", why.text);
    }
    FILE *in = fmemopen(text, bytes, "r");
    if (in == NULL) {
        free(text);
        return complain("inspect: %s: %s", job->budgets_path, strerror(errno));
    }
    const bool good = budgets_read(in, &job->budgets, &why);
    fclose(in);
    free(text);
    return good ? EXIT_DONE : complain("inspect: %s: %s", job->budgets_path, why.text);
}

static int prepare(struct job *job) {
    if (job->image_path != NULL && (job->budgets_path != NULL || job->dump_path != NULL)) {
        return complain("inspect: %s: --image looks at a file, which has no budget and is there "
                        "already",
                        job->budgets_path != NULL ? "--budgets" : "--dump");
    }
    if (job->image_path != NULL && job->against != NULL) {
        return complain("inspect: --against: %s: it is for the kernels of the library, and --image "
                        "looks at a file",
                        job->against);
    }
    if (job->pattern != NULL) {
        const int code = regcomp(&job->regex, job->pattern, REG_EXTENDED | REG_NOSUB);
        if (code != 0) {
            char text[128];
            regerror(code, &job->regex, text, sizeof text);
            return complain("inspect: --variant: '%s' is no regular expression: %s", job->pattern,
                            text);
        }
        job->has_regex = true;
    }
    return EXIT_DONE;
}

/* A table of both; a verdict there is not, since neither is the measure of the other. */
static int compare_builds(const struct job *job) {
    attn_error why;
    size_t missing;
    if (!inspect_against(job->against, job->rows, job->count, job->json, &missing, &why)) {
        return complain("inspect: %s", why.text);
    }
    if (missing > 0) {
        complain("inspect: %s lacks %zu of %zu cubins", job->against, missing, job->count);
        return EXIT_NOT_RUN;
    }
    return EXIT_DONE;
}

static int inspect_library(struct job *job) {
    int status = read_budgets(job);
    if (status == EXIT_DONE) {
        status = look_at_library(job);
    }
    if (status != EXIT_DONE) {
        return status;
    }
    if (job->variants == 0) {
        attn_error why;
        kernels_explain(&why);
        complain("inspect: not run: %s", why.text);
        return EXIT_NOT_RUN;
    }
    if (job->count == 0) {
        return complain("inspect: --variant: '%s' matches none of the library's %d variants for "
                        "GPUs",
                        job->pattern != NULL ? job->pattern : "", job->variants);
    }
    if (job->against != NULL) {
        return compare_builds(job);
    }
    print_rows(job);
    return judge(job);
}

static int inspect_file(struct job *job) {
    const int status = look_at_file(job);
    if (status == EXIT_DONE) {
        print_rows(job);
    }
    return status;
}

static void free_job(struct job *job) {
    for (size_t i = 0; i < job->count && job->image_path == NULL; i++) {
        cubin_close(&job->rows[i].cubin);
    }
    cubin_close(&job->file_cubin);
    if (job->has_regex) {
        regfree(&job->regex);
    }
    budgets_free(&job->budgets);
    free(job->rows);
    free(job->file);
}

int verb_inspect(int argc, char **argv) {
    struct job job = {0};
    struct arg args[] = {
        arg_text("--variant", &job.pattern, "RE", "only those whose name this expression matches"),
        arg_text("--budgets", &job.budgets_path, "FILE",
                 "budgets from a file like tool/stages/inspect/budgets.def, not those compiled in"),
        arg_text("--image", &job.image_path, "FILE",
                 "the kernels of a cubin instead, without budgets"),
        arg_flag("--opcodes", &job.opcodes, "how often each machine instruction occurs"),
        arg_text("--against", &job.against, "LIB",
                 "beside those of another libattn.so, such as that of make debug"),
        arg_text("--dump", &job.dump_path, "DIR", "write cubins, PTX and ptxas logs there too"),
        arg_flag("--json", &job.json, "the same as JSON"),
    };
    const struct arg_group groups[] = {{"options", args, sizeof args / sizeof *args}};
    const struct command command = {
        .verb = "inspect",
        .summary = "what the machine code in the library needs, compared with its budgets",
        .synopsis = "[--variant RE] [--budgets FILE | --image FILE | --against LIB] [--opcodes] "
                    "[--dump DIR] [--json]",
        .notes = "Needs no GPU. Registers, stack, shared memory and barriers are read from the "
                 "cubin, spills from\nthe ptxas log that is bound to it by its hash, instructions "
                 "from the kernel's own code.\nExit code 3: a cubin with a budget, or all of "
                 "them, are not in this library.\n",
        .examples = "  attest inspect --variant wmma\n"
                    "  attest inspect --against build-debug/libattn.so\n"
                    "  attest inspect --image kernel.cubin --opcodes\n",
        .groups = groups,
        .group_count = 1,
    };
    const enum args_result parsed = args_parse(&command, argc, argv);
    if (parsed != ARGS_RUN) {
        return parsed == ARGS_HELP ? EXIT_DONE : EXIT_BAD_INPUT;
    }
    int status = prepare(&job);
    if (status == EXIT_DONE) {
        status = job.image_path != NULL ? inspect_file(&job) : inspect_library(&job);
    }
    free_job(&job);
    return status;
}
