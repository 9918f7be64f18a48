/* SPDX-License-Identifier: Apache-2.0
 *
 * launches.c - see check.h.
 */
#include "check/check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/message.h"

enum { SHARED_MOST = 1 << 20, VALUES_MOST = 1024 /* parameters */ };

/* ---- a shape --------------------------------------------------------------------------------- */

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

/* The text with the values of now; complains. */
static char *expand(const struct check *c, const char *option, const char *text) {
    attn_error why = {""};
    char *made = sweep_expand(&c->sweep, text, &why);
    if (made == NULL) {
        complain("check: %s %s: %s", option, text, why.text);
    }
    return made;
}

static int parse_one_dims(const struct check *c, const char *name, const char *text,
                          uint32_t dims[3]) {
    char *expanded = expand(c, name, text);
    const int status = expanded != NULL ? parse_dims(name, expanded, dims) : EXIT_BAD_INPUT;
    free(expanded);
    return status;
}

static int parse_shared(const struct check *c, uint32_t *bytes) {
    char *expanded = expand(c, "--smem", c->shared), *end = NULL;
    if (expanded == NULL) {
        return EXIT_BAD_INPUT;
    }
    errno = 0;
    const unsigned long long number = strtoull(expanded, &end, 10);
    const bool good =
        *expanded >= '0' && *expanded <= '9' && *end == '\0' && errno == 0 && number <= SHARED_MOST;
    const int status = good ? EXIT_DONE
                            : complain("check: --smem: '%s', expected a whole number from 0 to %d",
                                       expanded, SHARED_MOST);
    *bytes = (uint32_t)number;
    free(expanded);
    return status;
}

static int parse_all_dims(struct check *c) {
    if (c->grid == NULL || c->block == NULL) {
        return complain("check: %s is missing; attest check --help shows an example",
                        c->grid == NULL ? "--grid" : "--block");
    }
    int status = parse_one_dims(c, "--grid", c->grid, c->dims.grid);
    status = status == EXIT_DONE ? parse_one_dims(c, "--block", c->block, c->dims.block) : status;
    if (status == EXIT_DONE && c->cluster != NULL) {
        status = parse_one_dims(c, "--cluster", c->cluster, c->dims.cluster);
    }
    if (status == EXIT_DONE && c->shared != NULL) {
        status = parse_shared(c, &c->dims.shared_bytes);
    }
    /* As a program does that wants more than the default: it asks for what it needs. */
    c->dims.max_shared_bytes = c->dims.shared_bytes;
    c->dims.non_portable_cluster = true;
    return status;
}

static int parse_one_arg(struct check *c, size_t i) {
    attn_error why = {""};
    const char *text = c->arg_texts.items[i];
    char *expanded = expand(c, "--arg", text);
    const bool good = expanded != NULL && check_arg_parse(&c->args[i], i, expanded, &why);
    if (expanded != NULL && !good) {
        complain("check: --arg %s (argument %zu): %s", text, i, why.text);
    }
    free(expanded);
    return good ? EXIT_DONE : EXIT_BAD_INPUT;
}

static int parse_args(struct check *c) {
    attn_error why = {""};
    for (size_t i = 0; i < c->arg_texts.count; i++) {
        c->arg_count++;
        if (parse_one_arg(c, i) != EXIT_DONE) {
            return EXIT_BAD_INPUT;
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

int check_shape_parse(struct check *c) {
    const int status = parse_all_dims(c);
    return status == EXIT_DONE ? parse_args(c) : status;
}

void check_shape_forget(struct check *c) {
    for (size_t i = 0; i < c->arg_count; i++) {
        check_arg_free(&c->args[i]);
    }
    for (size_t i = 0; i < c->expect_count; i++) {
        check_expect_free(&c->expects[i]);
    }
    c->arg_count = c->expect_count = 0;
    c->dims = (vgpu_dims){.grid = {0}};
}

/* ---- the module ------------------------------------------------------------------------------ */

/* What the kernel gets: an argument each, or each part of one that is spread. */
static size_t list_values(const struct check *c, const struct check_arg **list, size_t most) {
    size_t count = 0;
    for (size_t i = 0; i < c->arg_count; i++) {
        const struct check_arg *arg = &c->args[i];
        for (size_t p = 0; p < (arg->spread ? arg->part_count : 1); p++) {
            if (count < most) {
                list[count] = arg->spread ? &arg->parts[p] : arg;
            }
            count++;
        }
    }
    return count;
}

/* The arguments against the parameters. */
static int match_params(const struct check *c) {
    const struct check_arg *values[VALUES_MOST] = {NULL};
    char text[64];
    uint32_t offset, bytes;
    const size_t count = list_values(c, values, VALUES_MOST);
    if (count != c->kernel.param_count || count > VALUES_MOST) {
        return complain("check: %s takes %u parameters, and %zu %s given", c->kernel.name,
                        c->kernel.param_count, count,
                        count == c->arg_count ? "--arg are" : "values are");
    }
    for (uint32_t i = 0; i < count && vgpu_param_get(c->module, c->index, i, &offset, &bytes);
         i++) {
        if (values[i]->value_bytes != bytes) {
            return complain("check: --arg (%s): a %s, but parameter %u of %s has %u bytes",
                            values[i]->label, check_arg_text(values[i], text, sizeof text), i,
                            c->kernel.name, bytes);
        }
    }
    return EXIT_DONE;
}

int check_module_load(struct check *c) {
    attn_error why = {""};
    vgpu_error fault;
    vgpu_unload(c->module);
    c->module = NULL;
    if (vgpu_load(c->gpu, c->source.ptx, c->source.size, &c->module, &fault) != VGPU_OK) {
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
    if (c->list) {
        return EXIT_DONE;
    }
    if (!entry_find(c->module, c->entry, &c->index, &why)) {
        return complain("check: %s: %s", c->path, why.text);
    }
    vgpu_kernel_get(c->module, c->index, &c->kernel);
    return EXIT_DONE;
}

static int place_symbols(struct check *c) {
    attn_error why = {""};
    for (size_t i = 0; i < c->symbol_texts.count; i++) {
        const char *text = c->symbol_texts.items[i];
        char *expanded = expand(c, "--symbol", text);
        if (expanded == NULL) {
            return EXIT_BAD_INPUT;
        }
        struct check_symbol symbol;
        const bool good = check_symbol_parse(&symbol, c->module, expanded, &why) &&
                          check_symbol_place(&symbol, c->gpu, &why);
        check_symbol_free(&symbol);
        free(expanded);
        if (!good) {
            return complain("check: --symbol %s: %s", text, why.text);
        }
    }
    return EXIT_DONE;
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
    const struct check_arg *list[VALUES_MOST];
    void *values[VALUES_MOST];
    const size_t count = list_values(c, list, VALUES_MOST);
    for (size_t i = 0; i < count; i++) {
        values[i] = list[i]->value;
    }
    const int kept = divert_stdout(c);
    const double started = clock_seconds();
    const vgpu_status status =
        vgpu_launch(c->gpu, c->module, c->kernel.name, &c->dims, values, fault);
    c->seconds += clock_seconds() - started;
    c->launches++;
    restore_stdout(kept);
    return status;
}

/* Expectations after each launch, dumps after the last. */
static int look_at_buffers(struct check *c, size_t order, bool finished) {
    attn_error why = {""};
    for (size_t i = 0; i < c->expect_count; i++) {
        c->expects[i].unfinished |= !finished;
        if (finished &&
            !check_expect_compare(&c->expects[i], c->gpu,
                                  async_order_name(c->orders.list[order].order), &why)) {
            return complain("check: --expect: %s", why.text);
        }
    }
    for (size_t i = 0; i < c->dump_texts.count && order + 1 == c->orders.count; i++) {
        if (!check_dump_write(&c->dumps[i], c->gpu, &why)) {
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

static int run_order(struct check *c, size_t order) {
    int status = c->launches > 0 ? check_module_load(c) : EXIT_DONE;
    status = status == EXIT_DONE ? place_symbols(c) : status;
    status = status == EXIT_DONE ? run_placed(c, order) : status;
    for (size_t i = 0; i < c->arg_count; i++) {
        check_arg_release(&c->args[i], c->gpu);
    }
    return status;
}

bool check_expectations_met(const struct check *c) {
    bool met = true;
    for (size_t i = 0; i < c->expect_count; i++) {
        met = met && check_expect_met(&c->expects[i]);
    }
    return met;
}

bool check_failed(const struct check *c) {
    return vgpu_error_count(c->gpu) > 0 || c->unfinished || !check_expectations_met(c);
}

int check_run(struct check *c) {
    for (;;) {
        int status = match_params(c);
        for (size_t order = 0; order < c->orders.count && status == EXIT_DONE; order++) {
            status = run_order(c, order);
        }
        if (status != EXIT_DONE || check_failed(c) || !sweep_next(&c->sweep)) {
            return status;
        }
        check_shape_forget(c);
        status = check_shape_parse(c);
        if (status != EXIT_DONE) {
            return status;
        }
    }
}
