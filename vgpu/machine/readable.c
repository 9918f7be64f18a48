/* SPDX-License-Identifier: Apache-2.0
 *
 * readable.c - names of C++ as their authors wrote them.
 *
 * Invariant: a name that cannot be demangled is shown unchanged.
 */
#include <stdio.h>

#include "machine/demangle.h"
#include "vgpu.h"

const char *vgpu_readable_name(const char *name, char *text, size_t size) {
    if (!demangle(name, false, text, size)) {
        snprintf(text, size, "%s", name);
    }
    return text;
}

const char *vgpu_readable_signature(const char *name, char *text, size_t size) {
    return demangle(name, true, text, size) ? text : vgpu_readable_name(name, text, size);
}
