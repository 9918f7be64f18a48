/* SPDX-License-Identifier: Apache-2.0
 *
 * args.h - the arguments that `attest check` passes to a kernel:
 *
 *     TYPE:VALUE                                          i32:7  f32:0.5
 *     buf:TYPE:COUNT:FILL                                 buf:f16:4096:rand:7
 *     tmap:TYPE:D0xD1[x...]:S1[x...]:B0xB1[x...]:SWIZZLE:FILL  tmap:f16:64x128:128:64x64:128:iota
 *
 * FILL is zero, iota, uninit, rand[:SEED] or @file.npy. A tensor map describes a buffer of its own:
 * dims in elements, innermost first; strides of the dims behind the first, in bytes (of one dim
 * there are none); the box; none, 32, 64 or 128 bytes of swizzle.
 *
 * Invariant: each launch begins with buffers that were just allocated and hold what FILL says.
 */
#ifndef ATTEST_CHECK_ARGS_H
#define ATTEST_CHECK_ARGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "attn.h"
#include "base/npy.h"
#include "check/types.h"
#include "vgpu.h"

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

#endif /* ATTEST_CHECK_ARGS_H */
