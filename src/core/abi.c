/* SPDX-License-Identifier: Apache-2.0
 *
 * abi.c - see abi.h.
 */
#include "core/abi.h"

#include <string.h>

enum { LARGEST = 1 << 16 }; /* bytes: a struct beyond that is an uninitialised size */

attn_status abi_check(const char *name, size_t theirs, size_t least, attn_error *error) {
    if (theirs < least || theirs > LARGEST || theirs % sizeof(size_t) != 0) {
        return attn_fail(error, ATTN_INVALID,
                         "%s.size = %zu, expected its sizeof, %zu or more: fill it with its _init "
                         "function, or set it",
                         name, theirs, least);
    }
    return ATTN_OK;
}

attn_status abi_read(const char *name, const void *from, size_t least, void *to, size_t size,
                     attn_error *error) {
    size_t theirs = 0;
    memcpy(&theirs, from, sizeof theirs);
    const attn_status status = abi_check(name, theirs, least, error);
    if (status != ATTN_OK) {
        return status;
    }
    const unsigned char *bytes = from;
    for (size_t i = size; i < theirs; i++) {
        if (bytes[i] != 0) {
            return attn_fail(error, ATTN_INVALID,
                             "%s has a field that libattn %s does not know: byte %zu of %zu is "
                             "%u, expected 0, its default",
                             name, attn_version(), i, theirs, bytes[i]);
        }
    }
    memcpy(to, from, theirs < size ? theirs : size);
    memcpy(to, &size, sizeof size);
    return ATTN_OK;
}

void abi_write(void *to, size_t theirs, const void *from, size_t size) {
    if (theirs < sizeof theirs) {
        return; /* no struct has less than its size */
    }
    memmove(to, from, theirs < size ? theirs : size);
    if (theirs > size) {
        memset((unsigned char *)to + size, 0, theirs - size);
    }
    memcpy(to, &theirs, sizeof theirs);
}
