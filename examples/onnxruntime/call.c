/* SPDX-License-Identifier: Apache-2.0
 *
 * call.c - tensors, memory and errors of one run of a node.
 *
 * Invariant: every object of ONNX Runtime is released, also after an error.
 */
#include "call.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool refuse(struct call *call, int code, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(call->why.text, sizeof call->why.text, format, arguments);
    va_end(arguments);
    call->code = code;
    return false;
}

bool fine(struct call *call, ort_status *status) {
    if (status != NULL) {
        call->api->release_status(status);
        return refuse(call, ORT_FAIL, "%s: ONNX Runtime refused a call", call->kernel->op->name);
    }
    return true;
}

void *scratch(struct call *call, size_t bytes, size_t alignment) {
    alignment = alignment < 64 ? 64 : alignment;
    void *memory = call->scratches == MOST_SCRATCH
                       ? NULL
                       : aligned_alloc(alignment, (bytes / alignment + 1) * alignment);
    if (memory == NULL) {
        refuse(call, ORT_FAIL, "%zu bytes of memory could not be allocated", bytes);
    } else {
        call->scratch[call->scratches++] = memory;
    }
    return memory;
}

bool input(struct call *call, size_t index, struct tensor *tensor) {
    const ort_api *api = call->api;
    const ort_value *value = NULL;
    ort_type_info *info = NULL;
    size_t count = 0, rank = 0;
    *tensor = (struct tensor){0};
    if (!fine(call, api->input_count(call->context, &count)) || index >= count ||
        !fine(call, api->input(call->context, index, &value)) || value == NULL) {
        return call->code == 0;
    }
    if (!fine(call, api->type_info(value, &info))) {
        return false;
    }
    bool good =
        fine(call, api->element_type(info, &tensor->element)) && fine(call, api->rank(info, &rank));
    if (good && rank > MOST_DIMS) {
        good = refuse(call, ORT_INVALID_ARGUMENT,
                      "input %zu has %zu dimensions, expected at most %d", index, rank, MOST_DIMS);
    }
    good = good && fine(call, api->dimensions(info, tensor->dims, rank)) &&
           fine(call, api->tensor_data((ort_value *)(uintptr_t)value, &tensor->data));
    api->release_type_info(info);
    tensor->rank = (int)rank;
    if (good && tensor->data == NULL) { /* of no elements */
        static char nothing[16];
        tensor->data = nothing;
    }
    return good;
}

bool output(struct call *call, size_t index, const int64_t *dims, size_t rank, void **data) {
    size_t count = 0;
    ort_value *value = NULL;
    *data = NULL;
    if (!fine(call, call->api->output_count(call->context, &count)) || index >= count) {
        return call->code == 0;
    }
    return fine(call, call->api->output(call->context, index, dims, rank, &value)) &&
           (value == NULL || fine(call, call->api->tensor_data(value, data)));
}

bool absent(struct call *call, size_t index, const char *name) {
    struct tensor tensor;
    if (!input(call, index, &tensor)) {
        return false;
    }
    return tensor.data == NULL ||
           refuse(call, ORT_NOT_IMPLEMENTED, "%s: the input %s is not supported",
                  call->kernel->op->name, name);
}

bool has_dims(struct call *call, const struct tensor *tensor, const char *name, int rank,
              const int64_t *dims) {
    if (tensor->rank != rank || memcmp(tensor->dims, dims, (size_t)rank * sizeof *dims) != 0) {
        char text[160] = "";
        for (int i = 0, at = 0; i < rank && at < (int)sizeof text; i++) {
            at += snprintf(text + at, sizeof text - (size_t)at, i > 0 ? ", %lld" : "%lld",
                           (long long)dims[i]);
        }
        return refuse(call, ORT_INVALID_ARGUMENT, "%s: %s has another shape than (%s)",
                      call->kernel->op->name, name, text);
    }
    return true;
}

size_t element_size(const struct call *call) {
    return call->kernel->op->element == ORT_FLOAT16 ? 2 : 4;
}
