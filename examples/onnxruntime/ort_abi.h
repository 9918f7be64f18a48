/* SPDX-License-Identifier: Apache-2.0
 *
 * ort_abi.h - the part of ONNX Runtime's C interface that a library of operators needs. PyPI's
 * onnxruntime ships no headers.
 *
 * Invariant: the order of functions in struct ort_api is that of version 1 of the interface, which
 * ONNX Runtime never changes; struct ort_operator is that of version 16 (ONNX Runtime 1.16).
 */
#ifndef ORT_ABI_H
#define ORT_ABI_H

#include <stddef.h>
#include <stdint.h>

enum { ORT_VERSION = 16 };
enum { ORT_FAIL = 1, ORT_INVALID_ARGUMENT = 2, ORT_NOT_IMPLEMENTED = 9 }; /* codes of a status */
enum { ORT_ANY = 0, ORT_FLOAT = 1, ORT_INT32 = 6, ORT_INT64 = 7, ORT_BOOL = 9, ORT_FLOAT16 = 10 };
enum { ORT_REQUIRED = 0, ORT_OPTIONAL = 1 };

typedef struct ort_status ort_status; /* NULL: success */
typedef struct ort_value ort_value;
typedef struct ort_type_info ort_type_info; /* of a tensor: its element type and shape */
typedef struct ort_kernel_info ort_kernel_info;
typedef struct ort_context ort_context;
typedef struct ort_domain ort_domain;
typedef struct ort_options ort_options;
typedef struct ort_operator ort_operator;
typedef void (*ort_unused)(void);

typedef struct ort_api {
    ort_status *(*create_status)(int code, const char *text);
    ort_unused unused_1[25];
    ort_status *(*create_domain)(const char *name, ort_domain **domain);
    ort_status *(*domain_add)(ort_domain *domain, const ort_operator *op);
    ort_status *(*options_add_domain)(ort_options *options, ort_domain *domain);
    ort_unused unused_29[22];
    ort_status *(*tensor_data)(ort_value *value, void **data);
    ort_unused unused_52[8];
    ort_status *(*element_type)(const ort_type_info *info, int *type);
    ort_status *(*rank)(const ort_type_info *info, size_t *rank);
    ort_status *(*dimensions)(const ort_type_info *info, int64_t *dims, size_t rank);
    ort_unused unused_63[2];
    ort_status *(*type_info)(const ort_value *value, ort_type_info **info);
    ort_unused unused_66[19];
    ort_status *(*attribute_float)(const ort_kernel_info *info, const char *name, float *value);
    ort_status *(*attribute_int)(const ort_kernel_info *info, const char *name, int64_t *value);
    ort_unused unused_87;
    ort_status *(*input_count)(const ort_context *context, size_t *count);
    ort_status *(*output_count)(const ort_context *context, size_t *count);
    ort_status *(*input)(const ort_context *context, size_t index, const ort_value **value);
    ort_status *(*output)(ort_context *context, size_t index, const int64_t *dims, size_t rank,
                          ort_value **value);
    ort_unused unused_92;
    void (*release_status)(ort_status *status);
    ort_unused unused_94[5];
    void (*release_type_info)(ort_type_info *info);
} ort_api;

_Static_assert(offsetof(ort_api, release_type_info) == 99 * sizeof(ort_unused), "a gap is wrong");

typedef struct ort_api_base {
    const ort_api *(*api)(uint32_t version); /* NULL: this ONNX Runtime is older */
    const char *(*version)(void);
} ort_api_base;

struct ort_operator {
    uint32_t version; /* ORT_VERSION */
    ort_unused create_without_status;
    const char *(*name)(const ort_operator *op);
    const char *(*provider)(const ort_operator *op); /* NULL: the CPU's */
    int (*input_type)(const ort_operator *op, size_t index);
    size_t (*input_count)(const ort_operator *op);
    int (*output_type)(const ort_operator *op, size_t index);
    size_t (*output_count)(const ort_operator *op);
    ort_unused compute_without_status;
    void (*destroy)(void *kernel);
    int (*input_presence)(const ort_operator *op, size_t index); /* ORT_REQUIRED, ORT_OPTIONAL */
    int (*output_presence)(const ort_operator *op, size_t index);
    int (*input_memory)(const ort_operator *op, size_t index); /* 0: where the operator runs */
    ort_unused of_variadic[4];
    ort_status *(*create)(const ort_operator *op, const ort_api *api, const ort_kernel_info *info,
                          void **kernel);
    ort_status *(*compute)(void *kernel, ort_context *context);
    ort_unused later[7]; /* NULL */
};

#endif /* ORT_ABI_H */
