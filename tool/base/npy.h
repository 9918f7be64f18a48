/* SPDX-License-Identifier: Apache-2.0
 *
 * npy.h - NumPy's .npy files, versions 1.0, 2.0 and 3.0: float32, float16 and uint16 (the bits of
 * bfloat16), little-endian, C order; for a mask bool and uint8. Anything else gets a
 * sentence; float64 and the other integers do too, unless the caller asks for any number.
 *
 *     "\x93NUMPY" | major | minor | header length (2 or 4 bytes) | header, a Python dict | data
 *     {'descr': '<f4', 'fortran_order': False, 'shape': (2, 8, 512, 64), }   ... spaces, '\n'
 *
 * Invariant: memory follows the bytes that are really there, never a size that a header claims.
 */
#ifndef ATTEST_BASE_NPY_H
#define ATTEST_BASE_NPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "attn.h"

enum {
    NPY_MAX_DIMS = 8,
    NPY_MAX_HEADER = 65535, /* bytes; NumPy itself stops at 10000 by default */
    NPY_ALIGNMENT = 64      /* of npy.data */
};

/* The first three are those of attention, in the order of attn_dtype; the last two of a mask. */
enum npy_type {
    NPY_FLOAT32,
    NPY_FLOAT16,
    NPY_UINT16,
    NPY_FLOAT64,
    NPY_INT8,
    NPY_INT16,
    NPY_INT32,
    NPY_INT64,
    NPY_UINT32,
    NPY_UINT64,
    NPY_UINT8,
    NPY_BOOL
};

struct npy {
    enum npy_type type;
    int dims;
    int64_t shape[NPY_MAX_DIMS];
    size_t bytes; /* of data */
    void *data;   /* NULL where bytes is 0 */
};

/* "float32" and so on, and the bytes of one element. */
const char *npy_type_name(enum npy_type type);
size_t npy_type_size(enum npy_type type);

/* "(2, 8, 512, 64)" into the buffer, which it returns. */
const char *npy_shape_text(const int64_t *shape, int dims, char *buffer, size_t size);

/* Which types are taken: those of attention, every one above but bool, bool and uint8, float32,
 * int32. */
enum npy_take { NPY_ATTENTION, NPY_NUMBERS, NPY_MASKS, NPY_LOGITS, NPY_LENGTHS };

/* Reads one array, and the end of the file after it. On failure *array is empty and `why` says
 * what is wrong, without the file's name. The caller frees with npy_free. */
bool npy_read(FILE *in, enum npy_take take, struct npy *array, attn_error *why);
bool npy_load(const char *path, enum npy_take take, struct npy *array, attn_error *why);

/* Writes version 1.0. False where a write failed; errno says why. */
bool npy_write(FILE *out, const struct npy *array);

/* Also fine for an array of zeros. */
void npy_free(struct npy *array);

#endif /* ATTEST_BASE_NPY_H */
