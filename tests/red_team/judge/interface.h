/* SPDX-License-Identifier: Apache-2.0
 *
 * interface.h - what the libraries of this folder have of libattn's C interface, beside the
 * function that computes: that calls `chosen`, which $CHEAT names.
 */
#ifndef RED_TEAM_JUDGE_INTERFACE_H
#define RED_TEAM_JUDGE_INTERFACE_H

#define _GNU_SOURCE
#include <attn.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct attn_plan {
    attn_problem p;
};
struct call;

static void (*chosen)(const struct call *c);

/* Calls take turns, as a cheat keeps what it has seen; but for the one about shared scratch. */
static void call_chosen(const struct call *c) {
    static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
    const bool together = strcmp(getenv("CHEAT"), "one_scratch_for_all_threads") == 0;
    if (!together) {
        pthread_mutex_lock(&turn);
    }
    chosen(c);
    if (!together) {
        pthread_mutex_unlock(&turn);
    }
}

attn_status attn_open(const attn_options *options, attn_context **context, attn_error *why) {
    Dl_info own;
    (void)options, (void)why;
    *context = malloc(1);
    dladdr((void *)(uintptr_t)attn_open, &own);
    *(void **)&chosen = dlsym(dlopen(own.dli_fname, RTLD_NOW), getenv("CHEAT"));
    return chosen != NULL ? ATTN_OK : ATTN_INVALID;
}

attn_status attn_plan_create(attn_context *context, const attn_problem *problem,
                             const attn_plan_options *options, attn_plan **plan, attn_error *why) {
    (void)context, (void)options, (void)why;
    *plan = malloc(sizeof **plan);
    (*plan)->p = *problem;
    return ATTN_OK;
}

void attn_plan_destroy(attn_plan *plan) {
    free(plan);
}

size_t attn_workspace_size(const attn_plan *plan) {
    (void)plan;
    return 0;
}

size_t attn_workspace_alignment(const attn_plan *plan) {
    (void)plan;
    return 64;
}

#endif /* RED_TEAM_JUDGE_INTERFACE_H */
