/* SPDX-License-Identifier: Apache-2.0
 *
 * check.h - the parts of `attest check`: element types and what memory holds (fill.c), the
 * arguments of a launch (args.c), shapes (sweep.c), what is expected of buffers after it
 * (expect.c), PTX (source.c). launches.c runs them, verb.c puts all together.
 * What an argument and a FILL may be is in the verb's NOTES, which attest check --help shows.
 *
 * Invariant: each launch begins with buffers that were just allocated and hold what FILL says. An
 * expectation is met only if it was compared after every launch and no element was off by more than
 * ATOL in any; NaN never passes. A name that fits several entries is refused.
 */
#ifndef ATTEST_CHECK_CHECK_H
#define ATTEST_CHECK_CHECK_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "attn.h"
#include "base/args.h"
#include "base/json.h"
#include "base/npy.h"
#include "device/vgpu_findings.h"
#include "vgpu.h"

/* ---- element types: f32 f16 bf16 f64, i8 to i64, u8 to u64 ----------------------------------- */

enum element_kind { ELEMENT_FLOAT, ELEMENT_SIGNED, ELEMENT_UNSIGNED };

struct element {
    const char *name; /* "f32" */
    enum element_kind kind;
    size_t bytes;
    enum npy_type npy; /* bf16 travels as uint16 */
    int tensor;        /* the driver's number of it in a tensor map; -1: it has none */
};

/* The type that the first `length` characters name, or NULL. */
const struct element *element_named(const char *text, size_t length);

/* What a file of this type holds, for an argument of type `wanted` (uint16 may be bf16). */
const struct element *element_of_npy(enum npy_type type, const struct element *wanted);

/* "f32, f16, ..." */
const char *element_names(void);

long double element_value(const struct element *type, const void *from);

/* A number from the command line; false and the reason where the type has no such value. */
bool element_parse(const struct element *type, const char *text, void *to, attn_error *why);

/* ---- what memory holds (fill.c) -------------------------------------------------------------- */

enum { CHECK_RANK = 5, CHECK_MAP_BYTES = 128, ENTRY_NAME_SIZE = 512 };
enum fill_kind { FILL_ZERO, FILL_IOTA, FILL_UNINIT, FILL_CONST, FILL_RAND, FILL_RANGE, FILL_FILE };

/* Elements of a type, and what is there before a launch. */
struct content {
    const struct element *type;
    enum fill_kind kind;
    uint64_t seed;
    long double low, high; /* of a range; low: the constant */
    size_t count;          /* elements */
    int dims;              /* of the array that --dump writes, outermost first */
    int64_t shape[NPY_MAX_DIMS];
    void *initial; /* NULL: uninitialised */
};

/* Parses a FILL and makes the elements; type, count, dims and shape are set. */
bool content_fill(struct content *content, const char *text, attn_error *why);
void content_shape(struct content *content, const int64_t *shape, int dims);
void content_free(struct content *content);

/* ---- arguments (args.c) ---------------------------------------------------------------------- */

enum check_arg_kind {
    CHECK_SCALAR, /* or bytes */
    CHECK_BUFFER,
    CHECK_TENSOR,
    CHECK_STRUCT,
    CHECK_POINTER /* to the value of each part, side by side; of ptrs to pointers to them */
};

struct check_arg {
    enum check_arg_kind kind;
    char label[64];       /* what findings call it: "argument 1.0" */
    unsigned char *value; /* what the kernel gets, of a part what lies in the whole */
    size_t value_bytes, align;
    struct content content; /* of a buffer, and of that of a tensor map */
    vgpu_pointer memory;    /* the buffer, or the values pointed to */
    struct check_arg *parts;
    size_t part_count;
    bool spread; /* each part is a parameter of its own */
    /* A tensor map's: */
    uint32_t rank, box[CHECK_RANK];
    uint64_t size[CHECK_RANK], strides[CHECK_RANK]; /* strides[i] is that of dim i + 1 */
    int swizzle;
};

/* The sentence does not name the argument, whose number is `index`. */
bool check_arg_parse(struct check_arg *arg, size_t index, const char *text, attn_error *why);
void check_arg_free(struct check_arg *arg);

/* Before and after a launch. */
bool check_arg_place(struct check_arg *arg, vgpu *gpu, attn_error *why);
void check_arg_release(struct check_arg *arg, vgpu *gpu);

/* The buffer's bytes: count elements. */
bool check_arg_read(const struct check_arg *arg, vgpu *gpu, void *to, attn_error *why);

/* "pointer to a buffer of 8 bytes"; returns the buffer. */
const char *check_arg_text(const struct check_arg *arg, char *text, size_t size);

/* Moves on to what follows the number, of which `what` is the name. */
bool take_number(const char **at, const char *what, uint64_t *number, attn_error *why);

/* ---- variables of the module ----------------------------------------------------------------- */

/* Writes what NAME=FILL or NAME=TYPE:FILL says. */
bool check_symbol_place(const vgpu_module *module, vgpu *gpu, const char *text, attn_error *why);

/* ---- shapes (sweep.c) ------------------------------------------------------------------------ */

enum { SWEEP_VARIABLES = 4, SWEEP_VALUES = 4096, SWEEP_NAME = 16 };

/* N=1..9, N=32..256:32, N=1,2,31: a variable that stands in sizes, as in buf:f32:N*4:rand. */
struct sweep {
    struct sweep_variable {
        char name[SWEEP_NAME];
        int64_t *values;
        size_t count, at;
    } variables[SWEEP_VARIABLES];
    size_t count;
};
bool sweep_add(struct sweep *sweep, const char *text, attn_error *why);
void sweep_free(struct sweep *sweep);
/* The next values, the last variable first; false: these were the last. */
bool sweep_next(struct sweep *sweep);
/* "N=5, M=2", of the values of now. */
const char *sweep_text(const struct sweep *sweep, char *text, size_t size);
/* A copy with the value of each field (between : , x and .) in which a variable or a product
 * stands: whole numbers, + - * / %, parentheses. Give it to free(); NULL and the reason. */
char *sweep_expand(const struct sweep *sweep, const char *text, attn_error *why);

/* ---- expectations and dumps ------------------------------------------------------------------ */

struct check_expect {
    char name[16]; /* of the argument: "1", "1.0" for a part */
    const struct check_arg *arg;
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

/* args: those of the command line. */
bool check_expect_parse(struct check_expect *expect, const char *text, const struct check_arg *args,
                        size_t count, attn_error *why);
void check_expect_free(struct check_expect *expect);

bool check_expect_compare(struct check_expect *expect, vgpu *gpu, const char *order,
                          attn_error *why);

bool check_expect_met(const struct check_expect *expect);
void check_expect_print(const struct check_expect *expect);
void check_expect_json(const struct check_expect *expect, struct json *json);

struct check_dump {
    const struct check_arg *arg;
    const char *path;
};
bool check_dump_parse(struct check_dump *dump, const char *text, const struct check_arg *args,
                      size_t count, attn_error *why);
bool check_dump_write(const struct check_dump *dump, vgpu *gpu, attn_error *why);

/* ---- the kernel's PTX ------------------------------------------------------------------------ */

enum source_result {
    SOURCE_READ,
    SOURCE_BAD,    /* no such file, or nvcc refuses it */
    SOURCE_NO_NVCC /* a .cu, and this machine cannot compile it */
};

struct source {
    char *ptx; /* with a 0 after it */
    size_t size;
    char *files; /* that it was made of, each with a newline */
};

/* sm: compile a .cu for this GPU; 0: for the newest that it or its headers need, from 80 on. What
 * nvcc prints goes to stderr. */
enum source_result source_read(const char *path, int sm, struct source *source, attn_error *why);
void source_free(struct source *source);

/* $CUDACXX, or nvcc where it is found. */
bool source_nvcc(char path[PATH_MAX], attn_error *why);

/* ---- launches (launches.c) ------------------------------------------------------------------- */

/* The request, and its launches: one for each order of asynchronous completion and each shape of a
 * sweep. */
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
    char **expanded; /* texts with the values of a sweep */
    size_t expanded_count;
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

/* Each returns false if it has complained. */

/* The grid, the arguments and what is expected of them, of the shape of now. */
bool check_shape_parse(struct check *c);
void check_shape_forget(struct check *c);
/* Loads the module and finds the entry; again before each launch but the first. */
bool check_module_load(struct check *c);
/* All orders of the shape of now, and then of the others until one fails. */
bool check_run(struct check *c);

/* Whether errors were found, an expectation was missed or a launch did not come to its end. */
bool check_failed(const struct check *c);
bool check_expectations_met(const struct check *c);

#endif /* ATTEST_CHECK_CHECK_H */
