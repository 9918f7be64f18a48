/* SPDX-License-Identifier: Apache-2.0
 *
 * message.c - see message.h.
 */
#include "message.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int complain(const char *format, ...) {
    char text[PATH_MAX + sizeof(attn_error)];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    /* File names may hold anything; a newline among them must not make two lines of one. */
    for (char *c = text; *c != '\0'; c++) {
        if ((unsigned char)*c < 0x20 || *c == 0x7f) {
            *c = '?';
        }
    }
    fprintf(stderr, "attest: %s\n", text);
    return EXIT_BAD_INPUT;
}

bool explain(attn_error *why, const char *format, ...) {
    if (why != NULL) {
        va_list list;
        va_start(list, format);
        vsnprintf(why->text, sizeof why->text, format, list);
        va_end(list);
    }
    return false;
}

int flush_stdout(void) {
    const bool lost_before = ferror(stdout) != 0;
    errno = 0;
    if (fflush(stdout) != 0 || lost_before) {
        const int cause = errno;
        clearerr(stdout); /* one complaint is enough */
        return complain("cannot write to standard output%s%s", cause != 0 ? ": " : "",
                        cause != 0 ? strerror(cause) : "");
    }
    return EXIT_DONE;
}
