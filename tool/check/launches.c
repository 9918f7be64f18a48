/* SPDX-License-Identifier: Apache-2.0
 *
 * launches.c - see check.h.
 */
#include "check/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/message.h"

enum { SHARED_MOST = 1 << 20, VALUES_MOST = 1024 /* parameters */ };

/* ---- a shape --------------------------------------------------------------------------------- */

/* The text with the values of now, kept until the shape is forgotten; NULL: complained. */
static const char *expand(struct check *c, const char *option, const char *text) {
    attn_error why = {""};
    char *made = sweep_expand(&c->sweep, text, &why);
    if (made == NULL) {
        complain("check: %s %s: %s", option, text, why.text);
        return NULL;
    }
    c->expanded = grow(c->expanded, c->expanded_count, sizeof *c->expanded);
    c->expanded[c->expanded_count++] = made;
    return made;
}

/* One to `most` sizes with commas between; what is not given is 1. Without a text they stay. */
static bool parse_sizes(struct check *c, const char *option, const char *text, uint32_t *sizes,
                        int most, int64_t low, int64_t high, const char *expected) {
    const char *expanded = text != NULL ? expand(c, option, text) : NULL, *at = expanded;
    if (expanded == NULL) {
        return text == NULL;
    }
    bool more = true;
    for (int i = 0; i < most; i++) {
        int64_t size = 1;
        if (more && (!take_whole(&at, &size) || size < low || size > high)) {
            break;
        }
        sizes[i] = (uint32_t)size;
        more = more && *at == ',';
        at += more;
    }
    return (!more && *at == '\0') ||
           deny("check: %s: '%s', expected %s", option, expanded, expected);
}

static bool parse_dims(struct check *c, const char *option, const char *text, uint32_t dims[3]) {
    return parse_sizes(c, option, text, dims, 3, 1, UINT32_MAX, "X, X,Y or X,Y,Z of 1 or more");
}

static bool parse_all_dims(struct check *c) {
    if (c->grid == NULL || c->block == NULL) {
        return deny("check: %s is missing; attest check --help shows an example",
                    c->grid == NULL ? "--grid" : "--block");
    }
    const bool good = parse_dims(c, "--grid", c->grid, c->dims.grid) &&
                      parse_dims(c, "--block", c->block, c->dims.block) &&
                      parse_dims(c, "--cluster", c->cluster, c->dims.cluster) &&
                      parse_sizes(c, "--smem", c->shared, &c->dims.shared_bytes, 1, 0, SHARED_MOST,
                                  "a whole number from 0 to 1048576");
    /* As a program does that wants more than the default: it asks for what it needs. */
    c->dims.max_shared_bytes = c->dims.shared_bytes;
    c->dims.non_portable_cluster = true;
    return good;
}

static bool parse_args(struct check *c) {
    attn_error why = {""};
    for (size_t i = 0; i < c->arg_texts.count; i++) {
        const char *text = c->arg_texts.items[i], *expanded = expand(c, "--arg", text);
        if (expanded == NULL || !check_arg_parse(&c->args[c->arg_count++], i, expanded, &why)) {
            return expanded != NULL &&
                   deny("check: --arg %s (argument %zu): %s", text, i, why.text);
        }
    }
    for (size_t i = 0; i < c->dump_texts.count; i++) {
        if (!check_dump_parse(&c->dumps[i], c->dump_texts.items[i], c->args, c->arg_count, &why)) {
            return deny("check: --dump: %s", why.text);
        }
    }
    for (size_t i = 0; i < c->expect_texts.count; i++) {
        if (!check_expect_parse(&c->expects[c->expect_count++], c->expect_texts.items[i], c->args,
                                c->arg_count, &why)) {
            return deny("check: --expect: %s", why.text);
        }
    }
    return true;
}

bool check_shape_parse(struct check *c) {
    return parse_all_dims(c) && parse_args(c);
}

void check_shape_forget(struct check *c) {
    for (size_t i = 0; i < c->arg_count; i++) {
        check_arg_free(&c->args[i]);
    }
    for (size_t i = 0; i < c->expect_count; i++) {
        check_expect_free(&c->expects[i]);
    }
    for (size_t i = 0; i < c->expanded_count; i++) {
        free(c->expanded[i]);
    }
    free(c->expanded);
    c->expanded = NULL;
    c->arg_count = c->expect_count = c->expanded_count = 0;
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
static bool match_params(const struct check *c) {
    const struct check_arg *values[VALUES_MOST] = {NULL};
    char text[64];
    uint32_t offset, bytes;
    const size_t count = list_values(c, values, VALUES_MOST);
    if (count != c->kernel.param_count || count > VALUES_MOST) {
        return deny("check: %s takes %u parameters, and %zu %s given", c->kernel.name,
                    c->kernel.param_count, count,
                    count == c->arg_count ? "--arg are" : "values are");
    }
    for (uint32_t i = 0; i < count && vgpu_param_get(c->module, c->index, i, &offset, &bytes);
         i++) {
        if (values[i]->value_bytes != bytes) {
            return deny("check: --arg (%s): a %s, but parameter %u of %s has %u bytes",
                        values[i]->label, check_arg_text(values[i], text, sizeof text), i,
                        c->kernel.name, bytes);
        }
    }
    return true;
}

enum match { MATCH_NONE, MATCH_PREFIX, MATCH_WHOLE };

/* Blanks do not count: k<128,64> is k<128, 64>. */
static enum match match_one(const char *name, const char *wanted) {
    for (;; name++, wanted++) {
        name += strspn(name, " ");
        wanted += strspn(wanted, " ");
        if (*wanted == '\0' || *name != *wanted) {
            return *wanted != '\0' ? MATCH_NONE : *name == '\0' ? MATCH_WHOLE : MATCH_PREFIX;
        }
    }
}

static enum match match_entry(const char *name, const char *wanted) {
    char readable[ENTRY_NAME_SIZE];
    const enum match as_ptx = match_one(name, wanted);
    const enum match as_source =
        match_one(vgpu_readable_name(name, readable, sizeof readable), wanted);
    return as_ptx > as_source ? as_ptx : as_source;
}

/* The entry whose PTX or C++ name is `wanted` or, alone, begins with it; without `wanted`, the only
 * one. */
static bool find_entry(const vgpu_module *module, const char *wanted, size_t *index,
                       attn_error *why) {
    vgpu_kernel kernel;
    const char *first = NULL, *second = NULL;
    enum match best = MATCH_NONE;
    for (size_t i = 0; vgpu_kernel_get(module, i, &kernel); i++) {
        const enum match match = wanted != NULL ? match_entry(kernel.name, wanted) : MATCH_PREFIX;
        if (match > best) {
            best = match;
            first = kernel.name;
            second = NULL;
            *index = i;
        } else if (match == best && match != MATCH_NONE) {
            second = kernel.name;
        }
    }
    if (first == NULL) {
        return wanted == NULL
                   ? explain(why, "it has no kernel (.entry)")
                   : explain(why, "--entry: no kernel begins with '%s'; --list shows them", wanted);
    }
    if (second == NULL) {
        return true;
    }
    if (wanted == NULL) {
        return explain(why,
                       "it has several kernels, expected --entry to name one; --list shows them");
    }
    char one[ENTRY_NAME_SIZE], other[ENTRY_NAME_SIZE];
    return explain(why, "--entry: '%.80s' is %.120s and %.120s, expected one kernel", wanted,
                   vgpu_readable_signature(first, one, sizeof one),
                   vgpu_readable_signature(second, other, sizeof other));
}

bool check_module_load(struct check *c) {
    attn_error why = {""};
    vgpu_error fault;
    vgpu_unload(c->module);
    c->module = NULL;
    if (vgpu_load(c->gpu, c->source.ptx, c->source.size, &c->module, &fault) != VGPU_OK) {
        char *rest = fault.text;
        complain("check: %s: %s", c->path, strsep(&rest, "\n"));
        if (rest != NULL) { /* the line, and a caret below it */
            fprintf(stderr, "%s\n", rest);
        }
        return false;
    }
    if (!c->list && !find_entry(c->module, c->entry, &c->index, &why)) {
        return deny("check: %s: %s", c->path, why.text);
    }
    vgpu_kernel_get(c->module, c->index, &c->kernel);
    return true;
}

static bool place_symbols(struct check *c) {
    attn_error why = {""};
    for (size_t i = 0; i < c->symbol_texts.count; i++) {
        const char *text = c->symbol_texts.items[i], *expanded = expand(c, "--symbol", text);
        if (expanded == NULL || !check_symbol_place(c->module, c->gpu, expanded, &why)) {
            return expanded != NULL && deny("check: --symbol %s: %s", text, why.text);
        }
    }
    return true;
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
static bool look_at_buffers(struct check *c, size_t order, bool finished) {
    const char *name = async_order_name(c->orders.list[order].order);
    attn_error why = {""};
    for (size_t i = 0; i < c->expect_count; i++) {
        c->expects[i].unfinished |= !finished;
        if (finished && !check_expect_compare(&c->expects[i], c->gpu, name, &why)) {
            return deny("check: --expect: %s", why.text);
        }
    }
    for (size_t i = 0; i < c->dump_texts.count && order + 1 == c->orders.count; i++) {
        if (!check_dump_write(&c->dumps[i], c->gpu, &why)) {
            return deny("check: --dump: %s", why.text);
        }
    }
    return true;
}

static bool run_placed(struct check *c, size_t order) {
    vgpu_error fault = {0};
    attn_error why = {""};
    for (size_t i = 0; i < c->arg_count; i++) {
        if (!check_arg_place(&c->args[i], c->gpu, &why)) {
            return deny("check: --arg %s (argument %zu): %s", c->arg_texts.items[i], i, why.text);
        }
    }
    vgpu_set_async(c->gpu, (vgpu_async)c->orders.list[order].order, c->orders.list[order].seed);
    const vgpu_status status = launch(c, &fault);
    if (status != VGPU_OK && status != VGPU_FAULT) {
        return deny("check: %s cannot be launched: %s", c->kernel.name, fault.text);
    }
    c->unfinished |= status == VGPU_FAULT;
    return look_at_buffers(c, order, status == VGPU_OK);
}

static bool run_order(struct check *c, size_t order) {
    const bool good =
        (c->launches == 0 || check_module_load(c)) && place_symbols(c) && run_placed(c, order);
    for (size_t i = 0; i < c->arg_count; i++) {
        check_arg_release(&c->args[i], c->gpu);
    }
    return good;
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

bool check_run(struct check *c) {
    for (;;) {
        bool good = match_params(c);
        for (size_t order = 0; order < c->orders.count && good; order++) {
            good = run_order(c, order);
        }
        if (!good || check_failed(c) || !sweep_next(&c->sweep)) {
            return good;
        }
        check_shape_forget(c);
        if (!check_shape_parse(c)) {
            return false;
        }
    }
}
