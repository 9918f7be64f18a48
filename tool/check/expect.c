/* SPDX-License-Identifier: Apache-2.0
 *
 * expect.c - see check.h.
 */
#include "check/check.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/message.h"
#include "base/output.h"

/* "N:" or "N.M:", a buffer or tensor map, or such a part of an argument; what follows is left in
 * *rest. */
static bool take_arg(const char *text, const struct check_arg *args, size_t count,
                     const struct check_arg **arg, const char **rest, attn_error *why) {
    const char *at = text;
    do {
        int64_t number;
        at += *at == '.';
        if (!take_whole(&at, &number) || number < 0 || (*at != ':' && *at != '.') ||
            at[1] == '\0') {
            return explain(why, "'%s', expected the argument's number, a colon and a file", text);
        }
        if ((uint64_t)number >= count) {
            return explain(why, "argument %.*s of the %zu that are given", (int)(at - text), text,
                           count);
        }
        *arg = &args[number];
        args = (*arg)->parts;
        count = (*arg)->part_count;
    } while (*at == '.');
    *rest = at + 1;
    return (*arg)->kind == CHECK_BUFFER || (*arg)->kind == CHECK_TENSOR ||
           explain(why, "argument %.*s is %s, expected a buffer or tensor map", (int)(at - text),
                   text, (*arg)->kind == CHECK_SCALAR ? "a number" : "made of parts");
}

/* ---- expectations ---------------------------------------------------------------------------- */

static bool load_expected(struct check_expect *expect, attn_error *why) {
    const struct check_arg *arg = expect->arg;
    attn_error fault;
    if (!npy_load(expect->path, NPY_NUMBERS, &expect->array, &fault)) {
        return explain(why, "%s: %s", expect->path, fault.text);
    }
    expect->type = element_of_npy(expect->array.type, arg->content.type);
    const size_t there = expect->array.bytes / expect->type->bytes;
    return there == arg->content.count ||
           explain(why, "%s: holds %zu elements, expected the %zu of %s", expect->path, there,
                   arg->content.count, arg->label);
}

bool check_expect_parse(struct check_expect *expect, const char *text, const struct check_arg *args,
                        size_t count, attn_error *why) {
    const char *rest = text, *colon;
    char *end = NULL;
    *expect = (struct check_expect){0};
    if (!take_arg(text, args, count, &expect->arg, &rest, why)) {
        return false;
    }
    snprintf(expect->name, sizeof expect->name, "%.*s", (int)(rest - text) - 1, text);
    colon = strrchr(rest, ':');
    expect->tolerance = colon != NULL ? strtod(colon + 1, &end) : 0;
    if (colon == NULL || colon == rest || colon[1] <= ' ' || *end != '\0' ||
        !(expect->tolerance >= 0)) {
        return explain(why, "'%s', expected N:file.npy:ATOL with an ATOL of 0 or more", text);
    }
    expect->path = must(strndup(rest, (size_t)(colon - rest)));
    return load_expected(expect, why);
}

void check_expect_free(struct check_expect *expect) {
    npy_free(&expect->array);
    free(expect->path);
    *expect = (struct check_expect){0};
}

/* Infinite where either is no number. */
static long double distance(long double got, long double expected) {
    if (isnan(got) || isnan(expected)) {
        return (long double)INFINITY;
    }
    return got == expected ? 0 : fabsl(got - expected);
}

/* The buffer's elements, for free(). */
static unsigned char *read_buffer(const struct check_arg *arg, vgpu *gpu, attn_error *why) {
    unsigned char *data = malloc(arg->content.count * arg->content.type->bytes);
    if (data == NULL) {
        explain(why, "no memory to read %s", arg->label);
    } else if (!check_arg_read(arg, gpu, data, why)) {
        free(data);
        data = NULL;
    }
    return data;
}

bool check_expect_compare(struct check_expect *expect, vgpu *gpu, const char *order,
                          attn_error *why) {
    const struct content *content = &expect->arg->content;
    const unsigned char *expected = expect->array.data;
    unsigned char *got = read_buffer(expect->arg, gpu, why);
    struct check_expect now = *expect;
    if (got == NULL) {
        return false;
    }
    now.order = order;
    now.wrong = 0;
    now.off = -1;
    for (size_t i = 0; i < content->count; i++) {
        const long double a = element_value(content->type, got + i * content->type->bytes);
        const long double b = element_value(expect->type, expected + i * expect->type->bytes);
        const long double off = distance(a, b);
        now.wrong += isinf(off) || !(off <= (long double)expect->tolerance);
        if (off > now.off) {
            now.worst = i;
            now.got = a;
            now.expected = b;
            now.off = off;
        }
    }
    free(got);
    if (expect->order == NULL || now.wrong > expect->wrong || now.off > expect->off) {
        *expect = now;
    }
    return true;
}

bool check_expect_met(const struct check_expect *expect) {
    return expect->order != NULL && expect->wrong == 0 && !expect->unfinished;
}

void check_expect_print(const struct check_expect *expect) {
    printf("expect argument %s: %s: %s", expect->name, expect->path,
           check_expect_met(expect) ? "met" : "MISSED");
    if (expect->unfinished) {
        printf(", since the kernel did not come to its end");
    }
    if (expect->order != NULL) {
        if (expect->wrong > 0) {
            printf(" by %zu elements", expect->wrong);
        }
        printf("; worst is element %zu: %.9Lg, expected %.9Lg, off by %.3Lg, %g allowed",
               expect->worst, expect->got, expect->expected, expect->off, expect->tolerance);
        printf(" (async %s)", expect->order);
    }
    printf("\n");
}

void check_expect_json(const struct check_expect *expect, struct json *json) {
    json_open(json, NULL, '{');
    json_text(json, "argument", expect->name);
    json_text(json, "file", expect->path);
    json_real(json, "tolerance", expect->tolerance);
    json_bool(json, "met", check_expect_met(expect));
    json_bool(json, "finished", !expect->unfinished);
    if (expect->order != NULL) {
        json_int(json, "wrong", (int64_t)expect->wrong);
        json_int(json, "worst", (int64_t)expect->worst);
        json_real(json, "got", (double)expect->got);
        json_real(json, "expected", (double)expect->expected);
        json_real(json, "off", (double)expect->off);
        json_text(json, "async", expect->order);
    }
    json_close(json);
}

/* ---- dumps ----------------------------------------------------------------------------------- */

bool check_dump_parse(struct check_dump *dump, const char *text, const struct check_arg *args,
                      size_t count, attn_error *why) {
    return take_arg(text, args, count, &dump->arg, &dump->path, why);
}

bool check_dump_write(const struct check_dump *dump, vgpu *gpu, attn_error *why) {
    const struct content *content = &dump->arg->content;
    struct npy array = {.type = content->type->npy,
                        .dims = content->dims,
                        .bytes = content->count * content->type->bytes,
                        .data = read_buffer(dump->arg, gpu, why)};
    struct output output;
    if (array.data == NULL) {
        return false;
    }
    memcpy(array.shape, content->shape, sizeof array.shape);
    const bool good = output_open(&output, dump->path, why) &&
                      (npy_write(output.file, &array) || explain(why, "%s", strerror(errno)));
    free(array.data);
    return output_end(&output, dump->path, good, why);
}
