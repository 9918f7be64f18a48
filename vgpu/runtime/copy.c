/* SPDX-License-Identifier: Apache-2.0
 *
 * copy.c - see runtime.h: copies. A copy is complete, or captured, when its function returns. A
 * copy in two or three dimensions is one copy per row.
 */
#include "runtime/runtime.h"

enum { INVALID_PITCH = 12, POINTER_TYPE = 2 };

/* ---- copies ---------------------------------------------------------------------------------- */

static bool is_known(rt_pointer pointer) {
    unsigned type;
    return rt_driver.cuPointerGetAttribute(&type, POINTER_TYPE, pointer) != RT_INVALID_VALUE;
}

/* An address that the kind calls one of the device must be one. */
static int check(rt_pointer to, rt_pointer from, size_t bytes, int kind) {
    if (kind < HOST_TO_HOST || kind > DEFAULT_KIND) {
        return RT_INVALID_DIRECTION;
    }
    const bool to_device = kind == HOST_TO_DEVICE || kind == DEVICE_TO_DEVICE;
    const bool from_device = kind == DEVICE_TO_HOST || kind == DEVICE_TO_DEVICE;
    return bytes > 0 && (to == 0 || from == 0 || (to_device && !is_known(to)) ||
                         (from_device && !is_known(from)))
               ? RT_INVALID_VALUE
               : RT_SUCCESS;
}

RT int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream) {
    int code = rt_ready();
    code = code == RT_SUCCESS ? check((uintptr_t)to, (uintptr_t)from, bytes, kind) : code;
    return rt_keep(code != RT_SUCCESS || bytes == 0
                       ? code
                       : rt_driver.cuMemcpyAsync((uintptr_t)to, (uintptr_t)from, bytes, stream));
}

RT int cudaMemcpy(void *to, const void *from, size_t bytes, int kind) {
    return cudaMemcpyAsync(to, from, bytes, kind, NULL);
}

RT int cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t bytes,
                           void *stream) {
    return to_device != 0 || from_device != 0
               ? rt_keep(RT_INVALID_DEVICE)
               : cudaMemcpyAsync(to, from, bytes, DEVICE_TO_DEVICE, stream);
}

RT int cudaMemcpyPeer(void *to, int to_device, const void *from, int from_device, size_t bytes) {
    return cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, NULL);
}

int rt_copy_box(struct rt_view to, struct rt_view from, struct rt_box box, int kind, void *stream) {
    if (box.bytes > to.pitch || box.bytes > from.pitch) {
        return rt_keep(INVALID_PITCH);
    }
    for (size_t z = 0; z < box.slices; z++) {
        for (size_t y = 0; y < box.rows; y++) {
            const int code = cudaMemcpyAsync(to.start + z * to.slice + y * to.pitch,
                                             from.start + z * from.slice + y * from.pitch,
                                             box.bytes, kind, stream);
            if (code != RT_SUCCESS) {
                return code;
            }
        }
    }
    return RT_SUCCESS;
}

RT int cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                         size_t bytes, size_t rows, int kind, void *stream) {
    return rt_copy_box((struct rt_view){to, to_pitch, 0},
                       (struct rt_view){(char *)(uintptr_t)from, from_pitch, 0},
                       (struct rt_box){bytes, rows, 1}, kind, stream);
}

RT int cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t bytes,
                    size_t rows, int kind) {
    return cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, bytes, rows, kind, NULL);
}

struct side { /* of a copy: an array, or memory */
    void *array;
    size_t x, y, z;
    struct rt_pitched memory;
};
struct rt_copy_3d { /* cudaMemcpy3DParms */
    struct side from, to;
    struct rt_box extent;
    int kind;
};

/* What the side is a view of; 0: it is no array. Else the bytes of x, which counts elements there
 * and bytes in memory. */
static size_t view_of(const struct side *side, struct rt_view *view) {
    const struct rt_array *array = side->array != NULL ? rt_array_find(side->array) : NULL;
    const size_t unit = array != NULL ? array->texel : side->array == NULL;
    *view = array != NULL ? array->view
                          : (struct rt_view){side->memory.start, side->memory.pitch,
                                             side->memory.pitch * side->memory.rows};
    view->start += side->x * unit + side->y * view->pitch + side->z * view->slice;
    return unit;
}

RT int cudaMemcpy3DAsync(const struct rt_copy_3d *copy, void *stream) {
    struct rt_view to, from;
    if (copy == NULL) {
        return rt_keep(RT_INVALID_VALUE);
    }
    const size_t to_unit = view_of(&copy->to, &to), from_unit = view_of(&copy->from, &from);
    struct rt_box box = copy->extent;
    box.bytes *= to_unit > from_unit ? to_unit : from_unit;
    return to_unit == 0 || from_unit == 0 ? rt_keep(RT_INVALID_VALUE)
                                          : rt_copy_box(to, from, box, copy->kind, stream);
}

RT int cudaMemcpy3D(const struct rt_copy_3d *copy) {
    return cudaMemcpy3DAsync(copy, NULL);
}

/* ---- copies of arrays ------------------------------------------------------------------------ */

/* What of the array begins at a byte of a row. */
static struct rt_view within(const struct rt_array *array, size_t byte, size_t row) {
    struct rt_view view = array->view;
    view.start += byte + row * view.pitch;
    return view;
}

RT int cudaMemcpy2DToArrayAsync(void *to, size_t byte, size_t row, const void *from, size_t pitch,
                                size_t bytes, size_t rows, int kind, void *stream) {
    const struct rt_array *array = rt_array_find(to);
    return array == NULL ? rt_keep(RT_INVALID_VALUE)
                         : rt_copy_box(within(array, byte, row),
                                       (struct rt_view){(char *)(uintptr_t)from, pitch, 0},
                                       (struct rt_box){bytes, rows, 1}, kind, stream);
}

RT int cudaMemcpy2DToArray(void *to, size_t byte, size_t row, const void *from, size_t pitch,
                           size_t bytes, size_t rows, int kind) {
    return cudaMemcpy2DToArrayAsync(to, byte, row, from, pitch, bytes, rows, kind, NULL);
}

RT int cudaMemcpy2DFromArrayAsync(void *to, size_t pitch, const void *from, size_t byte, size_t row,
                                  size_t bytes, size_t rows, int kind, void *stream) {
    const struct rt_array *array = rt_array_find(from);
    return array == NULL ? rt_keep(RT_INVALID_VALUE)
                         : rt_copy_box((struct rt_view){to, pitch, 0}, within(array, byte, row),
                                       (struct rt_box){bytes, rows, 1}, kind, stream);
}

RT int cudaMemcpy2DFromArray(void *to, size_t pitch, const void *from, size_t byte, size_t row,
                             size_t bytes, size_t rows, int kind) {
    return cudaMemcpy2DFromArrayAsync(to, pitch, from, byte, row, bytes, rows, kind, NULL);
}

RT int cudaMemcpy2DArrayToArray(void *to, size_t to_byte, size_t to_row, const void *from,
                                size_t from_byte, size_t from_row, size_t bytes, size_t rows,
                                int kind) {
    const struct rt_array *a = rt_array_find(to), *b = rt_array_find(from);
    return a == NULL || b == NULL
               ? rt_keep(RT_INVALID_VALUE)
               : rt_copy_box(within(a, to_byte, to_row), within(b, from_byte, from_row),
                             (struct rt_box){bytes, rows, 1}, kind, NULL);
}

/* Bytes of one row, or of whole rows that follow each other. */
static int copy_linear(const struct rt_array *array, size_t byte, size_t row, char *memory,
                       size_t bytes, int kind, bool to_array) {
    const size_t width = array != NULL ? array->extent.bytes * array->texel : 0;
    int code =
        array != NULL && (byte == 0 || byte + bytes <= width) ? RT_SUCCESS : RT_INVALID_VALUE;
    for (size_t done = 0; code == RT_SUCCESS && done < bytes; row++) {
        const size_t piece = bytes - done < width ? bytes - done : width;
        char *inside = array->view.start + row * array->view.pitch + byte;
        code = to_array ? cudaMemcpy(inside, memory + done, piece, kind)
                        : cudaMemcpy(memory + done, inside, piece, kind);
        done += piece;
    }
    return rt_keep(code);
}

RT int cudaMemcpyToArray(void *to, size_t byte, size_t row, const void *from, size_t bytes,
                         int kind) {
    return copy_linear(rt_array_find(to), byte, row, (char *)(uintptr_t)from, bytes, kind, true);
}

RT int cudaMemcpyFromArray(void *to, const void *from, size_t byte, size_t row, size_t bytes,
                           int kind) {
    return copy_linear(rt_array_find(from), byte, row, to, bytes, kind, false);
}

/* ---- the driver's interface ------------------------------------------------------------------ */

struct driver_side { /* of CUDA_MEMCPY2D */
    size_t x, y;
    int type;
    char *host;
    char *device;
    void *array;
    size_t pitch;
};
struct driver_copy { /* CUDA_MEMCPY2D */
    struct driver_side from, to;
    size_t bytes, rows;
};

static bool driver_view(const struct driver_side *side, size_t bytes, struct rt_view *view) {
    enum { TYPE_HOST = 1, TYPE_DEVICE = 2, TYPE_ARRAY = 3, TYPE_UNIFIED = 4 };
    const struct rt_array *array = side->type == TYPE_ARRAY ? rt_array_find(side->array) : NULL;
    if (side->type < TYPE_HOST || side->type > TYPE_UNIFIED ||
        (side->type == TYPE_ARRAY && array == NULL)) {
        return false;
    }
    *view = (struct rt_view){side->type == TYPE_HOST ? side->host : side->device,
                             side->pitch != 0 ? side->pitch : bytes, 0};
    if (array != NULL) {
        *view = array->view;
    }
    view->start += side->y * view->pitch + side->x;
    return true;
}

RT int cuMemcpy2DAsync_v2(const struct driver_copy *copy, void *stream) {
    RT_DRIVER_ENTER();
    struct rt_view to, from;
    return copy == NULL || !driver_view(&copy->to, copy->bytes, &to) ||
                   !driver_view(&copy->from, copy->bytes, &from)
               ? RT_INVALID_VALUE
               : rt_copy_box(to, from, (struct rt_box){copy->bytes, copy->rows, 1}, DEFAULT_KIND,
                             stream);
}

RT int cuMemcpy2D_v2(const struct driver_copy *copy) {
    return cuMemcpy2DAsync_v2(copy, NULL);
}

RT int cuMemcpy2DUnaligned_v2(const struct driver_copy *copy) {
    return cuMemcpy2DAsync_v2(copy, NULL);
}
