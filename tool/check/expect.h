/* SPDX-License-Identifier: Apache-2.0
 *
 * expect.h - what `attest check` does with buffers after a launch: --dump N:file.npy and
 * --expect N:file.npy:ATOL.
 *
 * Invariant: an expectation is met only if it was compared after every launch and no element was
 * off by more than ATOL in any; NaN never passes, whatever was expected.
 */
#ifndef ATTEST_CHECK_EXPECT_H
#define ATTEST_CHECK_EXPECT_H

#include <stdbool.h>
#include <stddef.h>

#include "attn.h"
#include "base/json.h"
#include "base/npy.h"
#include "check/args.h"

struct check_expect {
    size_t arg; /* its number */
    char *path;
    double tolerance;
    struct npy array;
    const struct element *type; /* of the file */
    /* Of the launch in which it was off most: */
    const char *order; /* of asynchronous completion; NULL: not compared yet */
    size_t wrong;      /* elements */
    size_t worst;      /* the element that is off most, or the first NaN */
    long double got, expected, off;
    bool unfinished; /* a launch did not come to its end */
};

/* Reads the file; args: those of the command line. The sentence does not name the option. */
bool check_expect_parse(struct check_expect *expect, const char *text, const struct check_arg *args,
                        size_t count, attn_error *why);
void check_expect_free(struct check_expect *expect);

/* Compares what the argument's buffer holds. */
bool check_expect_compare(struct check_expect *expect, const struct check_arg *args, vgpu *gpu,
                          const char *order, attn_error *why);

bool check_expect_met(const struct check_expect *expect);
void check_expect_print(const struct check_expect *expect);
void check_expect_json(const struct check_expect *expect, struct json *json);

struct check_dump {
    size_t arg;
    const char *path;
};
bool check_dump_parse(struct check_dump *dump, const char *text, const struct check_arg *args,
                      size_t count, attn_error *why);
bool check_dump_write(const struct check_dump *dump, const struct check_arg *args, vgpu *gpu,
                      attn_error *why);

#endif /* ATTEST_CHECK_EXPECT_H */
