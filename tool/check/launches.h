/* SPDX-License-Identifier: Apache-2.0
 *
 * launches.h - the request of `attest check` and its launches: one for each order of asynchronous
 * completion and each shape of a sweep.
 *
 * Invariant: each launch begins with the module as loaded and with new buffers.
 */
#ifndef ATTEST_CHECK_LAUNCHES_H
#define ATTEST_CHECK_LAUNCHES_H

#include "base/args.h"
#include "check/check.h"
#include "device/vgpu_findings.h"

struct check {
    /* As requested. */
    const char *path, *entry, *grid, *block, *cluster, *shared, *async;
    int64_t threads, max_steps;
    int sm; /* 0: not given */
    bool json, sarif, list, watch;
    struct arg_list arg_texts, dump_texts, expect_texts, suppress_texts, symbol_texts, sweep_texts;
    /* As understood; the arguments and what follows them are those of the shape of now. */
    struct async_orders orders;
    struct sweep sweep;
    vgpu_dims dims;
    struct check_arg args[ARG_LIST_MOST];
    size_t arg_count;
    struct check_dump dumps[ARG_LIST_MOST];
    struct check_expect expects[ARG_LIST_MOST];
    size_t expect_count;
    struct source source;
    vgpu *gpu;
    vgpu_module *module;
    size_t index; /* of the entry */
    vgpu_kernel kernel;
    size_t launches; /* so far */
    bool unfinished; /* a launch was stopped by a fault */
    double seconds;
};

/* Each returns an exit code, and has complained unless it is EXIT_DONE. */

/* The grid, the arguments and what is expected of them, of the shape of now. */
int check_shape_parse(struct check *c);
void check_shape_forget(struct check *c);
/* Loads the module and finds the entry; again before each launch but the first. */
int check_module_load(struct check *c);
/* All orders of the shape of now, and then of the others until one fails. */
int check_run(struct check *c);
/* Whether errors were found, an expectation was missed or a launch did not come to its end. */
bool check_failed(const struct check *c);
bool check_expectations_met(const struct check *c);

#endif /* ATTEST_CHECK_LAUNCHES_H */
