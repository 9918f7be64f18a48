/* SPDX-License-Identifier: Apache-2.0
 *
 * message.c - see message.h.
 */
#include "base/message.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

size_t utf8_length(const char *text, size_t left, uint32_t *character) {
    static const uint32_t LEAST[] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char *s = (const unsigned char *)text;
    const size_t bytes = s[0] < 0x80             ? 1
                         : (s[0] & 0xe0) == 0xc0 ? 2
                         : (s[0] & 0xf0) == 0xe0 ? 3
                         : (s[0] & 0xf8) == 0xf0 ? 4
                                                 : 0;
    if (bytes == 0 || bytes > left) {
        return 0;
    }
    uint32_t c = bytes == 1 ? s[0] : s[0] & (0x7fU >> bytes);
    for (size_t i = 1; i < bytes; i++) {
        if ((s[i] & 0xc0) != 0x80) {
            return 0;
        }
        c = c << 6 | (s[i] & 0x3f);
    }
    *character = c;
    return c >= LEAST[bytes] && c < 0x110000 && (c & 0xfffff800) != 0xd800 ? bytes : 0;
}

/* C0, DEL and C1; marks, embeddings, overrides and isolates of bidirectional text; the two
 * separators of lines; what has no width and hides a word in another; tags. */
bool is_treacherous(uint32_t c) {
    return c < 0x20 || (c >= 0x7f && c < 0xa0) || c == 0x61c || (c >= 0x200b && c <= 0x200f) ||
           (c >= 0x2028 && c <= 0x202e) || (c >= 0x2060 && c <= 0x206f) || c == 0xfeff ||
           (c >= 0xe0000 && c <= 0xe007f);
}

/* The first character of `text` as it may be shown, into `shown`; how many bytes it had. */
static size_t show(const char *text, size_t left, char shown[5]) {
    uint32_t character = 0;
    const size_t bytes = utf8_length(text, left, &character);
    const bool plain = bytes > 0 && !is_treacherous(character);
    memcpy(shown, plain ? text : "?", plain ? bytes : 1);
    shown[plain ? bytes : 1] = '\0';
    return bytes > 0 ? bytes : 1;
}

void print_foreign(FILE *out, const char *text, size_t most) {
    const size_t length = strnlen(text, most);
    char shown[5];
    for (size_t at = 0; at < length;) {
        at += show(text + at, length - at, shown);
        fputs(shown, out);
    }
}

/* File names may hold anything; a newline among them must not make two lines of one. Nothing gets
 * longer, and it is written at once. */
static void print_complaint(const char *format, va_list list) {
    char text[PATH_MAX + sizeof(attn_error)], line[sizeof text + 4] = "";
    vsnprintf(text, sizeof text, format, list);
    const size_t length = strlen(text);
    for (size_t at = 0, used = 0; at < length; used += strlen(line + used)) {
        at += show(text + at, length - at, line + used);
    }
    fprintf(stderr, "attest: %s\n", line);
}

int complain(const char *format, ...) {
    va_list list;
    va_start(list, format);
    print_complaint(format, list);
    va_end(list);
    return EXIT_BAD_INPUT;
}

bool deny(const char *format, ...) {
    va_list list;
    va_start(list, format);
    print_complaint(format, list);
    va_end(list);
    return false;
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

bool ends_with(const char *text, const char *end) {
    const size_t size = strlen(text), length = strlen(end);
    return size > length && strcmp(text + size - length, end) == 0;
}

const char *last_line(char *text) {
    for (size_t length = strlen(text); length > 0 && isspace((unsigned char)text[length - 1]);) {
        text[--length] = '\0';
    }
    const char *line = strrchr(text, '\n');
    return line != NULL ? line + 1 : text;
}

void *must(void *memory) {
    if (memory == NULL) {
        complain("out of memory");
        exit(EXIT_BAD_INPUT);
    }
    return memory;
}

void *grow(void *list, size_t count, size_t size) {
    const bool full = (count & (count - 1)) == 0;
    return full ? must(realloc(list, (count > 0 ? 2 * count : 1) * size)) : list;
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
