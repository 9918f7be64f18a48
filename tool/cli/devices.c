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

static void print_json(struct json *json, const struct found *found, bool gpu) {
    const attn_device *device = &found->device;
    json_open(json, NULL, '{');
    json_text(json, "device", found->id);
    json_bool(json, "available", found->available);
    if (!found->available) {
        json_text(json, "reason", found->why.text);
    } else {
        json_text(json, "name", device->name);
        json_text(json, "arch", device->arch);
        json_int(json, "units", device->units);
        json_int(json, "memory", device->memory);
    }
    if (found->available && gpu) {
        json_int(json, "driver", device->driver);
        json_int(json, "shared", device->shared);
    }
    json_close(json);
}

/* json: NULL for text. */
static void print(struct json *json, const struct found *found) {
    const attn_device *device = &found->device;
    const bool gpu = strcmp(found->id, "cpu") != 0;
    if (json != NULL) {
        print_json(json, found, gpu);
        return;
    }
    if (!found->available) {
        printf("%-8s not available: %s\n", found->id, found->why.text);
        return;
    }
    printf("%-8s %s, %s, %d %s, %.1f GiB", found->id, device->name, device->arch, device->units,
           gpu                  ? "SMs"
           : device->units == 1 ? "thread"
                                : "threads",
           (double)device->memory / (1 << 30));
    if (gpu) {
        printf(", CUDA %d.%d", device->driver / 1000, device->driver % 1000 / 10);
    }
    printf("\n");
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
    struct json json = json_begin(stdout), *to = as_json ? &json : NULL;
    if (as_json) {
        json_open(&json, NULL, '{');
        json_text(&json, "attn", attn_version());
        json_open(&json, "devices", '[');
    }
    struct found found = look_at("cpu", driver);
    print(to, &found);
    for (int i = 0; i < MAX_GPUS && (i == 0 || found.available); i++) {
        char id[16];
        snprintf(id, sizeof id, "cuda:%d", i);
        found = look_at(id, driver);
        if (found.available || i == 0) { /* after the last GPU there is nothing to explain */
            print(to, &found);
        }
    }
    found = look_at("vgpu", NULL);
    print(to, &found);
    json_close_all(&json);
    return EXIT_DONE;
}
