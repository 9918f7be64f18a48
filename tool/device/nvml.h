/* SPDX-License-Identifier: Apache-2.0
 *
 * nvml.h - the state of a GPU while it is measured: clocks, power, temperature, and what holds its
 * clocks down, as NVIDIA's management library says. It is opened at run time and may be absent.
 *
 *     struct nvml *nvml = nvml_open(device);
 *     struct nvml_watch watch = nvml_watch_begin(nvml);    // looks once
 *     nvml_watch_look(&watch);                             // as often as one likes
 *     nvml_watch_end(&watch);                              // samples again
 *
 * Invariant: a figure that the library did not give is NaN (a mask: not known), never 0.
 */
#ifndef ATTEST_DEVICE_NVML_H
#define ATTEST_DEVICE_NVML_H

#include <stdbool.h>
#include <stdint.h>

#include "base/json.h"
#include "device/device.h"

struct nvml;

/* The library is $ATTN_NVML, else libnvidia-ml.so.1. NULL: it, or the device, is not there, or the
 * device is a CPU. Without it nothing is known but the times. */
struct nvml *nvml_open(const struct device *device);
void nvml_close(struct nvml *nvml); /* NULL is fine */

enum nvml_figure { SM_CLOCK_MHZ, MEMORY_CLOCK_MHZ, POWER_WATTS, TEMPERATURE_C, NVML_FIGURES };

struct nvml_watch {
    const struct nvml *nvml;                        /* NULL: nothing is looked at */
    double least[NVML_FIGURES], most[NVML_FIGURES]; /* NaN: never reported */
    uint64_t reasons;                               /* all that held the clocks down meanwhile */
    bool reasons_known;
    int64_t looks;
    double last; /* when, by clock_seconds */
};

struct nvml_watch nvml_watch_begin(const struct nvml *nvml);
void nvml_watch_look(struct nvml_watch *watch); /* at most every 20 ms, since a look takes time */
void nvml_watch_end(struct nvml_watch *watch);
void nvml_watch_join(struct nvml_watch *all, const struct nvml_watch *one);

/* "idle, power cap" into the buffer; the names of NVIDIA's clock event reasons. */
const char *nvml_reasons_text(uint64_t reasons, char *buffer, size_t size);

/* What the GPU is, and what was seen of it: keys of an object that is open. */
void nvml_gpu_json(struct json *json, const struct nvml *nvml);
void nvml_watch_json(struct json *json, const struct nvml_watch *watch);

/* The figures alone, as numbers of the open object: sm_clock_mhz_least and so on. What is not known
 * is left out. */
void nvml_values_json(struct json *json, const struct nvml_watch *watch);

#endif /* ATTEST_DEVICE_NVML_H */
