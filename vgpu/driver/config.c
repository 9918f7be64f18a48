/* SPDX-License-Identifier: Apache-2.0
 *
 * config.c - the process-wide GPU's environment: $VGPU_ASYNC (eager, fifo, lifo, random or
 * random:SEED), $VGPU_SEED, $VGPU_THREADS, $VGPU_SM, $VGPU_CHECKS (all, none, or some of memory,
 * init, race, perf with commas between), $VGPU_REPORT (a file: *.json and *.sarif in these formats,
 * any other as text; "%p" in its name becomes the number of the process; "-" is stderr),
 * $VGPU_CTAS (how many of each launch are checked for races), $VGPU_MEMORY (bytes of the GPU),
 * $VGPU_PROGRESS (how far long launches are; at the end that nothing was found), $VGPU_LAUNCH (the
 * number of a launch, from 1, or a regular expression for names of kernels: the other launches run
 * without checks), $VGPU_FIRST (how many launches of each kernel run), $VGPU_REPEATS (reuse: a
 * launch with the arguments and the memory of an earlier one gets its result; run: every launch
 * runs), $VGPU_EXIT_CODE (of a process with errors).
 *
 * Invariant: a value that is not understood stops the driver with a sentence; none is ignored.
 */
#include <errno.h>
#include <inttypes.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver/driver.h"
#include "report/record.h"

static const char *from_environment(const char *name) {
    const char *text = getenv(name);
    return text != NULL && text[0] != '\0' ? text : NULL;
}

static bool refuse(const char *name, const char *value, const char *expected) {
    fprintf(stderr, "vgpu: %s = \"%s\", expected %s\n", name, value, expected);
    return false;
}

static bool read_number(const char *name, const char *text, uint64_t low, uint64_t high,
                        uint64_t *value) {
    char *end = NULL;
    errno = 0;
    const unsigned long long read = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0 || read < low || read > high) {
        char expected[80];
        snprintf(expected, sizeof expected, "a number from %llu to %llu", (unsigned long long)low,
                 (unsigned long long)high);
        return refuse(name, text, expected);
    }
    *value = read;
    return true;
}

static bool read_async(const char *text, vgpu_config *config) {
    static const char *const NAMES[] = {"eager", "fifo", "lifo", "random"};
    for (int i = 0; i < 4; i++) {
        if (strcmp(text, NAMES[i]) == 0) {
            config->async = (vgpu_async)i;
            return true;
        }
    }
    if (strncmp(text, "random:", 7) == 0) {
        config->async = VGPU_ASYNC_RANDOM;
        return read_number("VGPU_ASYNC=random", text + 7, 0, UINT64_MAX, &config->seed);
    }
    return refuse("VGPU_ASYNC", text, "eager, fifo, lifo, random or random:SEED");
}

static bool read_checks(const char *text, uint32_t *checks) {
    static const struct {
        const char *name;
        uint32_t bits;
    } NAMES[] = {{"all", VGPU_CHECK_ALL},       {"none", 0},
                 {"memory", VGPU_CHECK_MEMORY}, {"init", VGPU_CHECK_INIT},
                 {"race", VGPU_CHECK_RACE},     {"perf", VGPU_CHECK_PERF}};
    *checks = 0;
    for (const char *at = text;; at++) {
        const size_t length = strcspn(at, ",");
        bool known = false;
        for (size_t i = 0; i < sizeof NAMES / sizeof NAMES[0]; i++) {
            if (strlen(NAMES[i].name) == length && strncmp(NAMES[i].name, at, length) == 0) {
                *checks |= NAMES[i].bits;
                known = true;
            }
        }
        if (!known) {
            return refuse("VGPU_CHECKS", text, "all, none, or some of memory,init,race,perf");
        }
        at += length;
        if (*at == '\0') {
            return true;
        }
    }
}

bool driver_configure(vgpu_config *config) {
    const char *async = from_environment("VGPU_ASYNC"), *seed = from_environment("VGPU_SEED");
    const char *threads = from_environment("VGPU_THREADS"), *sm = from_environment("VGPU_SM");
    const char *checks = from_environment("VGPU_CHECKS");
    uint64_t value = 0;
    vgpu_config_init(config);
    if (seed != NULL && !read_number("VGPU_SEED", seed, 0, UINT64_MAX, &config->seed)) {
        return false;
    }
    if (async != NULL && !read_async(async, config)) {
        return false;
    }
    if (checks != NULL && !read_checks(checks, &config->checks)) {
        return false;
    }
    if (threads != NULL) {
        if (!read_number("VGPU_THREADS", threads, 0, 4096, &value)) {
            return false;
        }
        config->threads = (int32_t)value;
    }
    if (sm != NULL) {
        if (!read_number("VGPU_SM", sm, 80, 90, &value)) {
            return false;
        }
        config->sm = (int32_t)value;
    }
    const char *memory = from_environment("VGPU_MEMORY");
    if (memory != NULL) {
        if (!read_number("VGPU_MEMORY", memory, 1 << 20, UINT64_C(1) << 40, &value)) {
            return false;
        }
        config->max_memory = (size_t)value;
    }
    return true;
}

bool driver_settings(vgpu *gpu) {
    const char *ctas = from_environment("VGPU_CTAS");
    uint64_t value = 0;
    if (ctas != NULL && !read_number("VGPU_CTAS", ctas, 1, UINT32_MAX, &value)) {
        return false;
    }
    vgpu_set_sample(gpu, (uint32_t)value);
    const char *first = from_environment("VGPU_FIRST"), *repeats = from_environment("VGPU_REPEATS");
    if (first != NULL && !read_number("VGPU_FIRST", first, 1, UINT64_MAX, &driver_state.first)) {
        return false;
    }
    driver_state.repeats = repeats != NULL && strcmp(repeats, "reuse") == 0;
    if (repeats != NULL && !driver_state.repeats && strcmp(repeats, "run") != 0) {
        return refuse("VGPU_REPEATS", repeats, "run or reuse");
    }
    vgpu_set_progress(gpu, from_environment("VGPU_PROGRESS") != NULL);
    return true;
}

bool driver_checks_launch(const char *kernel) {
    static uint64_t launches;
    static regex_t pattern;
    const char *wanted = from_environment("VGPU_LAUNCH");
    launches++;
    if (wanted == NULL || strspn(wanted, "0123456789") == strlen(wanted)) {
        return wanted == NULL || strtoull(wanted, NULL, 10) == launches;
    }
    if (launches == 1 && regcomp(&pattern, wanted, REG_EXTENDED | REG_NOSUB) != 0) {
        refuse("VGPU_LAUNCH", wanted, "a number or a regular expression");
        exit(2);
    }
    char name[512];
    return regexec(&pattern, vgpu_readable_name(kernel, name, sizeof name), 0, NULL, 0) == 0;
}

/* ---- the report ------------------------------------------------------------------------------ */

static bool ends_with(const char *text, const char *end) {
    const size_t a = strlen(text), b = strlen(end);
    return a >= b && strcmp(text + (a - b), end) == 0;
}

static void expand(const char *path, char *buffer, size_t size) {
    const char *mark = strstr(path, "%p");
    if (mark == NULL) {
        snprintf(buffer, size, "%s", path);
    } else {
        snprintf(buffer, size, "%.*s%ld%s", (int)(mark - path), path, (long)getpid(), mark + 2);
    }
}

static void write_file(const vgpu *gpu, const char *pattern) {
    char path[1024];
    expand(pattern, path, sizeof path);
    FILE *out = fopen(path, "w");
    const vgpu_format format = ends_with(path, ".json")    ? VGPU_JSON
                               : ends_with(path, ".sarif") ? VGPU_SARIF
                                                           : VGPU_TEXT;
    bool good = out != NULL && vgpu_report(gpu, out, format) == VGPU_OK;
    good = out != NULL && fclose(out) == 0 && good;
    if (!good) {
        fprintf(stderr, "vgpu: the report cannot be written to %s: %s\n", path, strerror(errno));
    }
}

void driver_report(const vgpu *gpu) {
    static uint64_t shown; /* news that stderr has seen */
    if (gpu == driver_state.gpu && driver_state.fault == CU_SUCCESS) {
        calls_report(driver_state.gpu);
    }
    const char *path = from_environment("VGPU_REPORT");
    if (path != NULL && strcmp(path, "-") != 0) {
        write_file(gpu, path);
        return;
    }
    if (gpu->findings->news != shown && gpu->findings->count > 0) {
        report_findings(gpu, stderr);
    }
    shown = gpu->findings->news;
}

void driver_report_clean(const vgpu *gpu) {
    vgpu_stats stats;
    vgpu_stats_get(gpu, &stats);
    if (from_environment("VGPU_PROGRESS") == NULL || gpu->findings->count > 0) {
        return;
    }
    if (stats.thread_instructions == 0) {
        fprintf(stderr, "vgpu: no kernel ran, so nothing was checked\n");
    } else {
        fprintf(stderr, "vgpu: 0 errors, 0 warnings in %" PRIu64 " thread-instructions\n",
                stats.thread_instructions);
    }
}
