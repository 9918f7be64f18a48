/* SPDX-License-Identifier: Apache-2.0
 *
 * status.h - how a function of the public interface fails: a status and a sentence.
 */
#ifndef VGPU_MACHINE_STATUS_H
#define VGPU_MACHINE_STATUS_H

#include "vgpu.h"

/* Writes the sentence (error may be NULL) and returns the status. */
vgpu_status status_fail(vgpu_error *error, vgpu_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Clears the error and returns VGPU_OK. */
vgpu_status status_ok(vgpu_error *error);

#endif /* VGPU_MACHINE_STATUS_H */
