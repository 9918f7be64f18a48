/* SPDX-License-Identifier: Apache-2.0
 *
 * nvml.c - see nvml.h. Signatures and numbers are those of nvml.h of CUDA 12.
 */
#include "device/nvml.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/message.h"
#include "device/driver.h"

enum { NVML_SUCCESS = 0, CLOCK_SM = 1, CLOCK_MEMORY = 2, TEMPERATURE_GPU = 0, TEXT = 96 };
static const double PAUSE = 20e-3; /* seconds between two looks */

#define NVML_FUNCTIONS(F)                                                                          \
    F(init, "nvmlInit_v2", (void))                                                                 \
    F(shutdown, "nvmlShutdown", (void))                                                            \
    F(by_bus, "nvmlDeviceGetHandleByPciBusId_v2", (const char *bus, void **device))                \
    F(name, "nvmlDeviceGetName", (void *device, char *text, unsigned int size))                    \
    F(uuid, "nvmlDeviceGetUUID", (void *device, char *text, unsigned int size))                    \
    F(driver, "nvmlSystemGetDriverVersion", (char *text, unsigned int size))                       \
    F(clock, "nvmlDeviceGetClockInfo", (void *device, int which, unsigned int *mhz))               \
    F(power, "nvmlDeviceGetPowerUsage", (void *device, unsigned int *milliwatts))                  \
    F(temperature, "nvmlDeviceGetTemperature", (void *device, int which, unsigned int *celsius))   \
    F(reasons, "nvmlDeviceGetCurrentClocksThrottleReasons",                                        \
      (void *device, unsigned long long *mask))

struct functions {
#define FIELD(field, name, signature) int(*field) signature;
    NVML_FUNCTIONS(FIELD)
};

#define ENTRY(field, name, signature) {name, offsetof(struct functions, field)},
static const struct {
    const char *name;
    size_t place; /* in struct functions */
} FUNCTIONS[] = {NVML_FUNCTIONS(ENTRY)};

struct nvml {
    void *library, *device;
    bool ready; /* to be shut down */
    struct functions functions;
};

/* ---- open ------------------------------------------------------------------------------------ */

static bool load(struct nvml *nvml) {
    const char *path = getenv("ATTN_NVML");
    path = path != NULL && path[0] != '\0' ? path : "libnvidia-ml.so.1";
    nvml->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    for (size_t i = 0; nvml->library != NULL && i < sizeof FUNCTIONS / sizeof *FUNCTIONS; i++) {
        void *function = dlsym(nvml->library, FUNCTIONS[i].name);
        if (function == NULL && FUNCTIONS[i].place == offsetof(struct functions, reasons)) {
            function = dlsym(nvml->library, "nvmlDeviceGetCurrentClocksEventReasons"); /* newer */
        }
        if (function == NULL) {
            return false;
        }
        memcpy((char *)&nvml->functions + FUNCTIONS[i].place, &function, sizeof function);
    }
    return nvml->library != NULL;
}

/* By the PCI address, since CUDA and NVML may number GPUs differently. NVML has no GPU at the
 * address of the virtual one. */
static bool find_device(struct nvml *nvml, const struct device *device) {
    char bus[32] = "";
    return device->driver.bus_of(bus, sizeof bus, device->ordinal) == CUDA_SUCCESS &&
           nvml->functions.by_bus(bus, &nvml->device) == NVML_SUCCESS;
}

struct nvml *nvml_open(const struct device *device) {
    if (!device->gpu) {
        return NULL;
    }
    struct nvml *nvml = must(calloc(1, sizeof *nvml));
    nvml->ready = load(nvml) && nvml->functions.init() == NVML_SUCCESS;
    if (!nvml->ready || !find_device(nvml, device)) {
        nvml_close(nvml);
        return NULL;
    }
    return nvml;
}

void nvml_close(struct nvml *nvml) {
    if (nvml != NULL && nvml->ready) {
        nvml->functions.shutdown();
    }
    if (nvml != NULL && nvml->library != NULL) {
        dlclose(nvml->library);
    }
    free(nvml);
}

/* ---- watch ----------------------------------------------------------------------------------- */

static const char *const FIGURE_NAMES[NVML_FIGURES] = {
    [SM_CLOCK_MHZ] = "sm_clock_mhz",
    [MEMORY_CLOCK_MHZ] = "memory_clock_mhz",
    [POWER_WATTS] = "power_watts",
    [TEMPERATURE_C] = "temperature_c",
};

/* NaN where NVML does not report it. */
static double figure(const struct nvml *nvml, enum nvml_figure which) {
    const struct functions *f = &nvml->functions;
    unsigned int value = 0;
    int error = -1;
    switch (which) {
    case SM_CLOCK_MHZ: error = f->clock(nvml->device, CLOCK_SM, &value); break;
    case MEMORY_CLOCK_MHZ: error = f->clock(nvml->device, CLOCK_MEMORY, &value); break;
    case POWER_WATTS: error = f->power(nvml->device, &value); break;
    case TEMPERATURE_C: error = f->temperature(nvml->device, TEMPERATURE_GPU, &value); break;
    case NVML_FIGURES: break;
    }
    return error != NVML_SUCCESS ? (double)NAN
                                 : (which == POWER_WATTS ? 1e-3 : 1.0) * (double)value;
}

static void look(struct nvml_watch *watch) {
    for (int i = 0; i < NVML_FIGURES; i++) {
        const double value = figure(watch->nvml, (enum nvml_figure)i);
        watch->least[i] = fmin(watch->least[i], value); /* which prefer a number to NaN */
        watch->most[i] = fmax(watch->most[i], value);
    }
    unsigned long long mask = 0;
    if (watch->nvml->functions.reasons(watch->nvml->device, &mask) == NVML_SUCCESS) {
        watch->reasons |= mask;
        watch->reasons_known = true;
    }
    watch->looks++;
    watch->last = clock_seconds();
}

struct nvml_watch nvml_watch_begin(const struct nvml *nvml) {
    struct nvml_watch watch = {.nvml = nvml};
    for (int i = 0; i < NVML_FIGURES; i++) {
        watch.least[i] = watch.most[i] = (double)NAN;
    }
    if (nvml != NULL) {
        look(&watch);
    }
    return watch;
}

void nvml_watch_look(struct nvml_watch *watch) {
    if (watch->nvml != NULL && clock_seconds() - watch->last >= PAUSE) {
        look(watch);
    }
}

void nvml_watch_end(struct nvml_watch *watch) {
    if (watch->nvml != NULL) {
        look(watch);
    }
}

void nvml_watch_join(struct nvml_watch *all, const struct nvml_watch *one) {
    for (int i = 0; i < NVML_FIGURES; i++) {
        all->least[i] = fmin(all->least[i], one->least[i]);
        all->most[i] = fmax(all->most[i], one->most[i]);
    }
    all->reasons |= one->reasons;
    all->reasons_known = all->reasons_known || one->reasons_known;
    all->looks += one->looks;
}

/* ---- report ---------------------------------------------------------------------------------- */

const char *nvml_reasons_text(uint64_t reasons, char *buffer, size_t size) {
    static const char *const NAMES[] = {"idle",
                                        "application clocks",
                                        "power cap",
                                        "hardware slowdown",
                                        "sync boost",
                                        "thermal slowdown",
                                        "hardware thermal slowdown",
                                        "power brake",
                                        "display clocks"};
    enum { COUNT = sizeof NAMES / sizeof *NAMES };
    size_t length = 0;
    buffer[0] = '\0';
    for (size_t i = 0; i < 64 && length < size; i++) {
        if ((reasons >> i & 1U) != 0) {
            char unknown[24];
            snprintf(unknown, sizeof unknown, "reason 2^%zu", i);
            length += (size_t)snprintf(buffer + length, size - length, "%s%s",
                                       length > 0 ? ", " : "", i < COUNT ? NAMES[i] : unknown);
        }
    }
    return buffer;
}

void nvml_values_json(struct json *json, const struct nvml_watch *watch) {
    char key[48];
    for (int i = 0; i < NVML_FIGURES; i++) {
        if (!isnan(watch->least[i])) {
            snprintf(key, sizeof key, "%s_least", FIGURE_NAMES[i]);
            json_real(json, key, watch->least[i]);
            snprintf(key, sizeof key, "%s_most", FIGURE_NAMES[i]);
            json_real(json, key, watch->most[i]);
        }
    }
    if (watch->reasons_known) {
        json_int(json, "clock_reasons", (int64_t)watch->reasons);
    }
}

void nvml_gpu_json(struct json *json, const struct nvml *nvml) {
    const struct functions *f = &nvml->functions;
    char text[TEXT];
    json_known_text(json, "name", f->name(nvml->device, text, TEXT) == NVML_SUCCESS ? text : "");
    json_known_text(json, "uuid", f->uuid(nvml->device, text, TEXT) == NVML_SUCCESS ? text : "");
    json_known_text(json, "driver_version", f->driver(text, TEXT) == NVML_SUCCESS ? text : "");
}

void nvml_watch_json(struct json *json, const struct nvml_watch *watch) {
    char text[256];
    if (watch->nvml != NULL) {
        json_int(json, "looks", watch->looks);
        nvml_values_json(json, watch);
        if (watch->reasons_known) {
            json_text(json, "clocks_held_by", nvml_reasons_text(watch->reasons, text, sizeof text));
        }
    }
}
