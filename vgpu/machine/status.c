/* SPDX-License-Identifier: Apache-2.0
 *
 * status.c - statuses with their sentences, and the version.
 */
#include "machine/status.h"

#include <stdarg.h>
#include <stdio.h>

const char *vgpu_version(void) {
    return "0.1.0";
}

vgpu_status status_fail(vgpu_error *error, vgpu_status status, const char *format, ...) {
    if (error != NULL) {
        va_list arguments;
        *error = (vgpu_error){0};
        va_start(arguments, format);
        vsnprintf(error->text, sizeof error->text, format, arguments);
        va_end(arguments);
    }
    return status;
}

vgpu_status status_ok(vgpu_error *error) {
    if (error != NULL) {
        *error = (vgpu_error){0};
    }
    return VGPU_OK;
}
