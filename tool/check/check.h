/* SPDX-License-Identifier: Apache-2.0
 *
 * check.h - the parts of `attest check`: element types (types.c), the arguments of a launch
 * (args.c), what is expected of buffers after it (expect.c), which kernel (entry.c) of which PTX
 * (source.c). verb.c puts them together.
 *
 *     TYPE:VALUE                                          i32:7  f32:0.5
 *     buf:TYPE:COUNT:FILL                                 buf:f16:4096:rand:7
 *     tmap:TYPE:D0xD1[x...]:S1[x...]:B0xB1[x...]:SWIZZLE:FILL  tmap:f16:64x128:128:64x64:128:iota
 *
 * FILL is zero, iota, uninit, rand[:SEED] or @file.npy. A tensor map describes a buffer of its own:
 * dims in elements, innermost first; strides of the dims after the first, in bytes (of one dim
 * there are none); the box; none, 32, 64 or 128 bytes of swizzle.
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
#include "base/json.h"
#include "base/npy.h"
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

/* Rounds to nearest even; integers are taken modulo 2^bits, and must be in the range of int64 or
 * uint64. */
void element_store(const struct element *type, void *to, long double value);
long double element_value(const struct element *type, const void *from);

/* A number from the command line; false and the reason where the type has no such value. */
bool element_parse(const struct element *type, const char *text, void *to, attn_error *why);

/* ---- arguments ------------------------------------------------------------------------------- */

enum { CHECK_RANK = 5, CHECK_MAP_BYTES = 128 };

enum check_arg_kind { CHECK_SCALAR, CHECK_BUFFER, CHECK_TENSOR };
enum check_fill { FILL_ZERO, FILL_IOTA, FILL_UNINIT, FILL_RAND, FILL_FILE };

struct check_arg {
    enum check_arg_kind kind;
    const struct element *type;
    unsigned char value[CHECK_MAP_BYTES]; /* what the kernel gets */
    size_t value_bytes;
    /* A buffer's, and that of a tensor map: */
    enum check_fill fill;
    uint64_t seed;
    size_t count; /* elements */
    int dims;     /* of the array that --dump writes, outermost first */
    int64_t shape[NPY_MAX_DIMS];
    void *initial; /* what it holds before a launch; NULL: uninitialised */
    vgpu_pointer memory;
    char label[64]; /* what findings call it */
    /* A tensor map's: */
    uint32_t rank, box[CHECK_RANK];
    uint64_t size[CHECK_RANK], strides[CHECK_RANK]; /* strides[i] is that of dim i + 1 */
    int swizzle;
};

/* Reads the file of an @ too. `index` is the argument's number. The sentence does not name the
 * argument. */
bool check_arg_parse(struct check_arg *arg, size_t index, const char *text, attn_error *why);
void check_arg_free(struct check_arg *arg);

/* Before and after a launch. */
bool check_arg_place(struct check_arg *arg, vgpu *gpu, attn_error *why);
void check_arg_release(struct check_arg *arg, vgpu *gpu);

/* The buffer's bytes: count elements. */
bool check_arg_read(const struct check_arg *arg, vgpu *gpu, void *to, attn_error *why);

/* "buffer of 64 f32" and so on; returns the buffer. */
const char *check_arg_text(const struct check_arg *arg, char *text, size_t size);

/* ---- expectations and dumps ------------------------------------------------------------------ */

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

/* ---- the kernel ------------------------------------------------------------------------------ */

enum { ENTRY_NAME_SIZE = 256 };

/* The entry whose PTX or demangled name is `wanted` or, alone, begins with it; without `wanted`,
 * the only one. */
bool entry_find(const vgpu_module *module, const char *wanted, size_t *index, attn_error *why);

/* A line for each entry, or JSON. */
void entry_list(const vgpu_module *module, bool as_json);

/* ---- its PTX --------------------------------------------------------------------------------- */

enum source_result {
    SOURCE_READ,
    SOURCE_BAD,    /* no such file, or nvcc refuses it */
    SOURCE_NO_NVCC /* a .cu, and this machine cannot compile it */
};

/* ptx: its text, with a 0 after it; give it to free(). hopper: compile a .cu for sm_90a, whatever
 * it says; else only if it uses what older GPUs lack. What nvcc prints goes to stderr. */
enum source_result source_read(const char *path, bool hopper, char **ptx, size_t *size,
                               attn_error *why);

/* $CUDACXX, or nvcc where it is found. */
bool source_nvcc(char path[PATH_MAX], attn_error *why);

#endif /* ATTEST_CHECK_CHECK_H */
