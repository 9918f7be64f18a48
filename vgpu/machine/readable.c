/* SPDX-License-Identifier: Apache-2.0
 *
 * readable.c - demangles C++ names: enough for kernels and their variables, no types.
 *
 * Invariant: a name that cannot be demangled to its end is shown unchanged.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vgpu.h"

struct name {
    char *text;
    size_t size, used;
};

static void append(struct name *name, const char *text, size_t length) {
    const size_t room = name->size - 1 - name->used;
    const size_t kept = length < room ? length : room;
    memcpy(name->text + name->used, text, kept);
    name->used += kept;
    name->text[name->used] = '\0';
}

/* "6kernel": the number says how long the name is. NULL: there is none. */
static const char *take_source_name(const char *at, struct name *name) {
    char *start;
    if (*at == 'L') { /* of internal linkage */
        at++;
    }
    if (*at < '1' || *at > '9') {
        return NULL;
    }
    const unsigned long length = strtoul(at, &start, 10);
    if (length > strlen(start)) {
        return NULL;
    }
    if (name->used > 0) {
        append(name, "::", 2);
    }
    if (strncmp(start, "_GLOBAL__N", 10) == 0) {
        append(name, "(anonymous)", 11);
    } else {
        append(name, start, length);
    }
    return start + length;
}

/* "4part" at the end of "_ZZ3sumPKfPfE4part", or of "..._0" where a function has several of that
 * name: a variable of a function. Types may hold such letters, too, but do not fit to the end. */
static bool take_local(const char *mangled, struct name *name) {
    for (const char *at = strchr(mangled, 'E'); at != NULL; at = strchr(at + 1, 'E')) {
        struct name made = *name;
        const char *end = take_source_name(at + 1, &made);
        if (end != NULL && *end == '_') {
            end += 1 + strspn(end + 1, "_0123456789");
        }
        if (end != NULL && *end == '\0') {
            *name = made;
            return true;
        }
    }
    return false;
}

const char *vgpu_readable_name(const char *name, char *text, size_t size) {
    struct name made = {text, size, 0};
    const bool nested = strncmp(name, "_ZN", 3) == 0;
    const char *at = strncmp(name, "_Z", 2) == 0 ? name + (nested ? 3 : 2) : NULL;
    text[0] = '\0';
    if (at != NULL && *at == 'Z' && take_local(name, &made)) {
        return text;
    }
    do {
        at = at != NULL ? take_source_name(at, &made) : NULL;
    } while (at != NULL && nested && *at != 'E' && *at != 'I');
    if (at == NULL) {
        snprintf(text, size, "%s", name);
    } else if (*at == 'I') { /* the arguments of a template */
        append(&made, "<...>", 5);
    }
    return text;
}
