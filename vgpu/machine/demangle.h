/* SPDX-License-Identifier: Apache-2.0
 *
 * demangle.h - the C++ name that a linker's name stands for.
 */
#ifndef VGPU_MACHINE_DEMANGLE_H
#define VGPU_MACHINE_DEMANGLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* "ns::kernel<128, float>", with_types also "(float*, int)"; a variable of a function is its own
 * name alone. Cut to size - 1 bytes. False: it is no such name, and text is as it was. */
bool demangle(const char *name, bool with_types, char *text, size_t size);

#endif /* VGPU_MACHINE_DEMANGLE_H */
