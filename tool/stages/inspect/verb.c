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
#include "stages/inspect/inspect.h"
#include "stages/stage.h"

struct job {
    bool json;
    const char *pattern, *image_path, *dump_path;
    regex_t regex;
    struct inspected *rows;
    size_t count;
    char *file; /* of --image, in which the rows point */
};

static bool selected(const struct job *job, const char *name) {
    return regexec(&job->regex, name, 0, NULL, 0) == 0;
}

static struct inspected *next_row(struct job *job) {
    job->rows = grow(job->rows, job->count, sizeof *job->rows);
    return &job->rows[job->count];
}

/* ---- the library's images -------------------------------------------------------------------- */

static bool dump_image(const struct job *job, const char *name, const attn_image *image,
                       attn_error *why) {
    static const char *const ENDINGS[] = {"cubin", "ptx", "fatbin"};
    char path[4096];
    if (mkdir(job->dump_path, 0777) != 0 && errno != EEXIST) {
        return explain(why, "%s: %s", job->dump_path, strerror(errno));
    }
    snprintf(path, sizeof path, "%s/%s.%s.%s", job->dump_path, name, image->arch,
             ENDINGS[image->kind]);
    if (!output_write(path, image->data, image->bytes, why) || image->log == NULL) {
        return image->log == NULL;
    }
    snprintf(path, sizeof path, "%s/%s.%s.log", job->dump_path, name, image->arch);
    return output_write(path, image->log, strlen(image->log), why);
}

static int look_at_variant(struct job *job, const attn_variant *variant) {
    attn_image image = {.size = sizeof image};
    attn_error why;
    for (int32_t i = 0; attn_variant_image(NULL, variant->name, i, &image, NULL) == ATTN_OK; i++) {
        if (!image_decompress(&image, &why)) {
            complain("inspect: %s %s: %s", variant->name, image.arch, why.text);
            return EXIT_FAILED_CHECK;
        }
        if (job->dump_path != NULL && !dump_image(job, variant->name, &image, &why)) {
            return complain("inspect: %s", why.text);
        }
        if (image.kind != ATTN_IMAGE_CUBIN) {
            continue;
        }
        if (!inspect_own(variant, &image, next_row(job), &why)) {
            complain("inspect: %s %s: %s", variant->name, image.arch, why.text);
            return EXIT_FAILED_CHECK;
        }
        job->count++;
    }
    return EXIT_DONE;
}

/* ---- any cubin ------------------------------------------------------------------------------- */

static int look_at_file(struct job *job) {
    struct cubin cubin;
    char sha256[SHA256_TEXT];
    attn_error why;
    size_t bytes;
    job->file = file_read(job->image_path, &bytes, &why);
    if (job->file == NULL) {
        return complain("inspect: %s", why.text);
    }
    bool good = cubin_open(&cubin, job->file, bytes, &why);
    sha256_text(job->file, bytes, sha256);
    for (uint32_t i = 0; good && i < cubin.entries; i++) {
        struct inspected *row = next_row(job);
        good = inspect_kernel(&cubin, sha256, i, row, &why);
        job->count += good && selected(job, row->name);
    }
    if (good && job->count == 0) {
        good = explain(&why, "none of its %" PRIu32 " kernels is selected", cubin.entries);
    }
    return good ? EXIT_DONE : complain("inspect: %s: %s", job->image_path, why.text);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void put_verdict(struct json *json, const struct inspected *row) {
    char failures[INSPECT_FAILURES_MAX][256];
    struct budget found;
    const struct budget *budget = budget_find(row->name, row->arch, &found) ? &found : NULL;
    const int count = inspect_gate(row, budget, failures);
    json_int(json, "tensor_demand", row->tensor_demand);
    json_bool(json, "log_bound", row->log_bound);
    json_known_int(json, "budget_registers", budget != NULL ? budget->registers : -1);
    json_known_int(json, "budget_tensor_ops", budget != NULL ? inspect_fewest(row, budget) : -1);
    json_bool(json, "pass", count == 0);
    json_open(json, "failures", '[');
    for (int i = 0; i < count; i++) {
        json_text(json, NULL, failures[i]);
    }
    json_close(json);
}

static void put_row(struct json *json, const struct inspected *row) {
    json_open(json, NULL, '{');
    json_text(json, "name", row->name);
    json_text(json, "family", row->family);
    json_text(json, "arch", row->arch);
    json_text(json, "dtype", row->family != NULL ? row->dtype : NULL);
    json_known_int(json, "head_dim", row->head_dim);
    inspect_json(json, row, false);
    json_bool(json, "asserts", row->output_call != NULL);
    json_text(json, "cubin_sha256", row->sha256);
    json_int(json, "cubin_bytes", (int64_t)row->cubin.bytes);
    if (row->family != NULL) {
        put_verdict(json, row);
    }
    json_close(json);
}

/* ---- text ------------------------------------------------------------------------------------ */

static int name_width(const struct job *job) {
    int width = (int)strlen("variant");
    for (size_t i = 0; i < job->count; i++) {
        const int length = (int)strlen(job->rows[i].name);
        width = length > width ? length : width;
    }
    return width;
}

static void print_heading(int width) {
    printf("%-*s %-6s", width, "variant", "arch");
    for (int i = 0; i < INSPECT_FIGURES; i++) {
        printf(" %*s", INSPECT_FIGURE[i].width, INSPECT_FIGURE[i].head);
    }
    printf("  sha256\n");
}

static void print_row(int width, const struct inspected *row) {
    int64_t values[INSPECT_FIGURES];
    inspect_values(row, values);
    printf("%-*s %-6s", width, row->name, row->arch);
    for (int i = 0; i < INSPECT_FIGURES; i++) {
        if (values[i] < 0) {
            printf(" %*s", INSPECT_FIGURE[i].width, "-");
        } else {
            printf(" %*" PRId64, INSPECT_FIGURE[i].width, values[i]);
        }
    }
    printf("  %.12s%s\n", row->sha256, row->output_call != NULL ? "  it asserts" : "");
}

static void print_rows(const struct job *job) {
    const int width = name_width(job);
    struct json json = json_begin(stdout);
    if (!job->json) {
        print_heading(width);
        for (size_t i = 0; i < job->count; i++) {
            print_row(width, &job->rows[i]);
        }
        return;
    }
    json_open(&json, NULL, '[');
    for (size_t i = 0; i < job->count; i++) {
        put_row(&json, &job->rows[i]);
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
        struct budget found;
        const bool has_one = budget_find(row->name, row->arch, &found);
        const int count = inspect_gate(row, has_one ? &found : NULL, failures);
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
static size_t check_absent(const struct job *job, struct budget *last) {
    struct budget line;
    size_t absent = 0;
    for (int i = 0; budget_next(&i, &line);) {
        if (selected(job, line.variant) && !has_row(job, &line)) {
            *last = line;
            absent++;
            if (!job->json) {
                printf("NOT RUN %s %s: the library has no such cubin\n", line.variant, line.arch);
            }
        }
    }
    return absent;
}

static int judge(const struct job *job) {
    struct budget last = {0};
    const size_t broken = check_rows(job);
    const size_t absent = check_absent(job, &last);
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
                 absent, last.variant, last.arch);
        return EXIT_NOT_RUN;
    }
    return EXIT_DONE;
}

/* ---- the verb -------------------------------------------------------------------------------- */

static int inspect_library(struct job *job) {
    attn_variant variant;
    attn_error why;
    int variants = 0; /* for GPUs, whether selected or not */
    int status = EXIT_DONE;
    for (int32_t i = 0; status == EXIT_DONE && variant_next_of_all(NULL, &i, &variant);) {
        const bool gpu = strcmp(variant.device, "cuda") == 0;
        variants += gpu;
        status = gpu && selected(job, variant.name) ? look_at_variant(job, &variant) : EXIT_DONE;
    }
    if (status != EXIT_DONE) {
        return status;
    }
    if (variants == 0) {
        kernels_explain(&why);
        complain("inspect: not run: %s", why.text);
        return EXIT_NOT_RUN;
    }
    if (job->count == 0) {
        return complain("inspect: --variant: '%s' matches none of the library's %d variants for "
                        "GPUs",
                        job->pattern != NULL ? job->pattern : "", variants);
    }
    print_rows(job);
    return judge(job);
}

static int inspect_file(struct job *job) {
    if (job->dump_path != NULL) {
        return complain("inspect: --dump: it is for the kernels of the library, and --image looks "
                        "at a file");
    }
    const int status = look_at_file(job);
    if (status == EXIT_DONE) {
        print_rows(job);
    }
    return status;
}

int verb_inspect(int argc, char **argv) {
    struct job job = {0};
    struct arg args[] = {
        arg_text("--variant", &job.pattern, "RE", "only those whose name this expression matches"),
        arg_text("--image", &job.image_path, "FILE",
                 "the kernels of a cubin instead, without budgets"),
        arg_text("--dump", &job.dump_path, "DIR", "write cubins, PTX and ptxas logs there too"),
        arg_flag("--json", &job.json, "the same as JSON"),
    };
    const struct arg_group groups[] = {ARG_GROUP("options", args)};
    const struct command command = {
        .verb = "inspect",
        .synopsis = "[--variant RE] [--image FILE] [--dump DIR] [--json]",
        .notes = "Needs no GPU. Registers, stack, shared memory and barriers are read from the "
                 "cubin, spills from\nthe ptxas log that is bound to it by its hash, instructions "
                 "from the kernel's own code.\nExit code 3: a cubin with a budget, or all of "
                 "them, are not in this library.\n",
        .examples = "  attest inspect --variant wmma\n"
                    "  attest inspect --image kernel.cubin\n",
        ARG_GROUPS(groups),
    };
    const enum args_result parsed = args_parse(&command, argc, argv);
    if (parsed != ARGS_RUN) {
        return parsed == ARGS_HELP ? EXIT_DONE : EXIT_BAD_INPUT;
    }
    attn_error why;
    if (!stage_pattern(job.pattern, &job.regex, &why)) {
        return complain("inspect: %s", why.text);
    }
    const int status = job.image_path != NULL ? inspect_file(&job) : inspect_library(&job);
    regfree(&job.regex);
    free(job.rows);
    free(job.file);
    return status;
}
