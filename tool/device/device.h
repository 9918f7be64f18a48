/* SPDX-License-Identifier: Apache-2.0
 *
 * device.h - where tensors live: memory, streams, events and graphs of the device that a context
 * computes on. On the CPU memory is the host's, streams are NULL and there are no events or graphs.
 * On a GPU everything goes through attn_driver_function, so the tool links no CUDA library and
 * works on whatever driver the context was opened with.
 *
 * One thread may use a device, the one that opened it: the GPU's context is current there.
 *
 * Invariant: device_close may be called at any point and frees everything that device_alloc gave.
 */
#ifndef ATTEST_DEVICE_DEVICE_H
#define ATTEST_DEVICE_DEVICE_H

#include <stdbool.h>
#include <stddef.h>

#include "attn_inspect.h"

struct device;

/* The device of an open context ("cpu" or "cuda[:N]", as attn_open took it). NULL and the reason on
 * failure. On a GPU its primary context becomes current in this thread. */
struct device *device_open(attn_context *context, const char *name, attn_error *why);
void device_close(struct device *device);

bool device_is_gpu(const struct device *device);

/* Memory aligned for every vector unit (256 bytes); NULL and the reason. */
void *device_alloc(struct device *device, size_t bytes, attn_error *why);
void device_free(struct device *device, void *memory);

/* These wait for everything that was launched before them, on whatever stream, and are done when
 * they return. Not while something is captured. */
bool device_write(struct device *device, void *to, const void *host, size_t bytes, attn_error *why);
bool device_read(struct device *device, void *host, const void *from, size_t bytes,
                 attn_error *why);
bool device_fill(struct device *device, void *to, unsigned char byte, size_t bytes,
                 attn_error *why);

/* Bytes that can still be allocated; on a CPU all that the machine has. 0 if the driver fails. */
size_t device_memory_free(struct device *device);

/* Waits for everything; a kernel that failed is reported here. */
bool device_wait(struct device *device, attn_error *why);

/* ---- GPU only -------------------------------------------------------------------------------- */

/* A stream that does not wait for the legacy default stream. */
void *stream_make(struct device *device, attn_error *why);
void stream_free(struct device *device, void *stream);

void *event_make(struct device *device, attn_error *why);
void event_free(struct device *device, void *event);
bool event_record(struct device *device, void *event, void *stream, attn_error *why);
/* Waits for `end`. Seconds between the two; below 0 and the reason on failure. */
double event_seconds(struct device *device, void *begin, void *end, attn_error *why);

/* What is launched on `stream` between the two becomes a graph (thread-local capture). */
bool capture_begin(struct device *device, void *stream, attn_error *why);
void *capture_end(struct device *device, void *stream, attn_error *why);
bool graph_launch(struct device *device, void *graph, void *stream, attn_error *why);
void graph_free(struct device *device, void *graph);

#endif /* ATTEST_DEVICE_DEVICE_H */
