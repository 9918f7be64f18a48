/* SPDX-License-Identifier: Apache-2.0
 *
 * driver.c - see driver.h.
 */
#include "device/driver.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/message.h"

#define DRIVER_ENTRY(field, name, signature) {name, offsetof(struct driver, field)},
static const struct {
    const char *name;
    size_t place; /* in struct driver */
} FUNCTIONS[] = {DRIVER_FUNCTIONS(DRIVER_ENTRY)};

bool driver_load(struct driver *driver, const attn_context *context, attn_error *why) {
    for (size_t i = 0; i < sizeof FUNCTIONS / sizeof *FUNCTIONS; i++) {
        void *function = NULL;
        if (attn_driver_function(context, FUNCTIONS[i].name, &function, why) != ATTN_OK) {
            return false;
        }
        memcpy((char *)driver + FUNCTIONS[i].place, &function, sizeof function);
    }
    return true;
}

bool driver_succeeded(const struct driver *driver, int error, const char *call, attn_error *why) {
    const char *name = NULL, *text = NULL;
    if (error == 0) {
        return true;
    }
    if (driver->error_name(error, &name) != 0 || name == NULL) {
        name = "an error that the driver cannot name";
    }
    if (driver->error_text(error, &text) != 0 || text == NULL) {
        text = "no text";
    }
    return explain(why, "%s: CUDA error %d, %s (%s)", call, error, name, text);
}

int driver_ordinal(const char *device) {
    const char *colon = strchr(device, ':');
    return colon != NULL ? (int)strtol(colon + 1, NULL, 10) : 0;
}
