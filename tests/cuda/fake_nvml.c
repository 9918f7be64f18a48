/* SPDX-License-Identifier: Apache-2.0
 *
 * fake_nvml.c - libfake_nvml.so: NVIDIA's management library with one GPU that is always the same,
 * or, with FAKE_NVML_FAILS set, one that answers nothing but its presence.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHOWN __attribute__((visibility("default")))

enum { SUCCESS = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6 };

static int answer(void) {
    return getenv("FAKE_NVML_FAILS") != NULL ? NOT_SUPPORTED : SUCCESS;
}

static int number(unsigned int *to, unsigned int value) {
    *to = answer() == SUCCESS ? value : 0;
    return answer();
}

static int text(char *to, unsigned int size, const char *value) {
    snprintf(to, size, "%s", answer() == SUCCESS ? value : "garbage");
    return answer();
}

SHOWN int nvmlInit_v2(void);
SHOWN int nvmlShutdown(void);
SHOWN const char *nvmlErrorString(int error);
SHOWN int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **device);
SHOWN int nvmlDeviceGetName(void *device, char *to, unsigned int size);
SHOWN int nvmlDeviceGetUUID(void *device, char *to, unsigned int size);
SHOWN int nvmlSystemGetDriverVersion(char *to, unsigned int size);
SHOWN int nvmlDeviceGetClockInfo(void *device, int which, unsigned int *mhz);
SHOWN int nvmlDeviceGetPowerUsage(void *device, unsigned int *milliwatts);
SHOWN int nvmlDeviceGetTemperature(void *device, int which, unsigned int *celsius);
SHOWN int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *mask);

static int gpu; /* whose address is its handle */

int nvmlInit_v2(void) {
    return SUCCESS;
}

int nvmlShutdown(void) {
    return SUCCESS;
}

const char *nvmlErrorString(int error) {
    return error == NOT_FOUND ? "Not Found" : "Not Supported";
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **device) {
    *device = &gpu;
    return strcmp(bus, "0000:17:00.0") == 0 ? SUCCESS : NOT_FOUND;
}

int nvmlDeviceGetName(void *device, char *to, unsigned int size) {
    return device == &gpu ? text(to, size, "Fake GPU 0") : NOT_FOUND;
}

int nvmlDeviceGetUUID(void *device, char *to, unsigned int size) {
    return device == &gpu ? text(to, size, "GPU-fake") : NOT_FOUND;
}

int nvmlSystemGetDriverVersion(char *to, unsigned int size) {
    return text(to, size, "580.1");
}

int nvmlDeviceGetClockInfo(void *device, int which, unsigned int *mhz) {
    return device == &gpu ? number(mhz, which == 1 ? 1980 : 3201) : NOT_FOUND;
}

int nvmlDeviceGetPowerUsage(void *device, unsigned int *milliwatts) {
    return device == &gpu ? number(milliwatts, 345500) : NOT_FOUND;
}

int nvmlDeviceGetTemperature(void *device, int which, unsigned int *celsius) {
    return device == &gpu && which == 0 ? number(celsius, 41) : NOT_FOUND;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *mask) {
    *mask = 4;
    return device == &gpu ? answer() : NOT_FOUND;
}
