/* SPDX-License-Identifier: Apache-2.0
 *
 * devices.c - `attest devices`: lists the CPU, each GPU (or the reason why there is none) and the
 * virtual GPU.
 *
 * Invariant: a kind of device that is absent is listed with its reason, never left out.
 */
#include <stdio.h>
#include <string.h>

#include "attn_inspect.h"
#include "base/args.h"
#include "base/json.h"
#include "base/message.h"
#include "cli/verbs.h"
#include "device/vgpu_findings.h"

enum { MAX_GPUS = 64 };

struct found {
    char id[16]; /* what --device takes */
    bool available;
    attn_device device;
    attn_error why; /* where it is not available */
};

static struct found look_at(const char *id, const char *driver) {
    struct found found = {.device.size = sizeof found.device};
    snprintf(found.id, sizeof found.id, "%s", id);
    attn_options options;
    attn_context *context = NULL;
    attn_options_init(&options);
    options.device = found.id;
    options.driver = driver;
    found.available = device_alias(&options.device, &options.driver, &found.why) &&
                      attn_open(&options, &context, &found.why) == ATTN_OK &&
                      attn_device_get(context, &found.device, &found.why) == ATTN_OK;
    attn_close(context);
    return found;
}

static bool is_gpu(const struct found *found) {
    return strcmp(found->id, "cpu") != 0;
}

static void print_json(struct json *json, const struct found *found) {
    const attn_device *device = &found->device;
    json_open(json, NULL, '{');
    json_text(json, "device", found->id);
    json_bool(json, "available", found->available);
    if (found->available) {
        json_text(json, "name", device->name);
        json_text(json, "arch", device->arch);
        json_int(json, "units", device->units);
        json_int(json, "memory", device->memory);
        if (is_gpu(found)) {
            json_int(json, "driver", device->driver);
            json_int(json, "shared", device->shared);
        }
    } else {
        json_text(json, "reason", found->why.text);
    }
    json_close(json);
}

static void print_text(const struct found *found) {
    const attn_device *device = &found->device;
    if (!found->available) {
        printf("%-8s not available: %s\n", found->id, found->why.text);
        return;
    }
    printf("%-8s %s, %s, %d %s, %.1f GiB", found->id, device->name, device->arch, device->units,
           is_gpu(found)        ? "SMs"
           : device->units == 1 ? "thread"
                                : "threads",
           (double)device->memory / (1 << 30));
    if (is_gpu(found)) {
        printf(", CUDA %d.%d", device->driver / 1000, device->driver % 1000 / 10);
    }
    printf("\n");
}

static void print(const struct found *found, struct json *json) {
    if (json != NULL) {
        print_json(json, found);
    } else {
        print_text(found);
    }
}

int verb_devices(int argc, char **argv) {
    bool as_json = false;
    const char *driver = NULL;
    struct arg args[] = {
        arg_text("--driver", &driver, "FILE", "the CUDA driver [$ATTN_DRIVER, else libcuda.so.1]"),
        arg_flag("--json", &as_json, "the same as JSON"),
    };
    const struct arg_group groups[] = {ARG_GROUP("options", args)};
    const struct command command = {
        .verb = "devices",
        .synopsis = "[options]",
        .examples = "  attest devices\n"
                    "  attest devices --json\n",
        ARG_GROUPS(groups),
    };
    const enum args_result parsed = args_parse(&command, argc, argv);
    if (parsed != ARGS_RUN) {
        return parsed == ARGS_HELP ? EXIT_DONE : EXIT_BAD_INPUT;
    }
    struct json json = json_begin(stdout);
    if (as_json) {
        json_open(&json, NULL, '{');
        json_text(&json, "attn", attn_version());
        json_open(&json, "devices", '[');
    }
    bool more = true;
    struct found found;
    for (int i = -1; i < MAX_GPUS && more; i++) {
        char id[16] = "cpu";
        if (i >= 0) {
            snprintf(id, sizeof id, "cuda:%d", i);
        }
        found = look_at(id, driver);
        more = i < 0 || found.available;
        if (found.available || i <= 0) { /* after the last GPU there is nothing to explain */
            print(&found, as_json ? &json : NULL);
        }
    }
    found = look_at("vgpu", NULL);
    print(&found, as_json ? &json : NULL);
    if (as_json) {
        json_close(&json);
        json_close(&json);
    }
    return EXIT_DONE;
}
