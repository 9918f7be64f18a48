/* SPDX-License-Identifier: Apache-2.0
 *
 * sha256.h - SHA-256 (FIPS 180-4) of memory or of a file, as text: it names an image by its
 * content.
 */
#ifndef ATTEST_BASE_SHA256_H
#define ATTEST_BASE_SHA256_H

#include <stdbool.h>
#include <stddef.h>

enum { SHA256_TEXT = 65 }; /* 64 lower-case hexadecimal digits and the terminator */

void sha256_text(const void *data, size_t bytes, char text[SHA256_TEXT]);

/* Of a file of any size above 0. False: errno says why. */
bool sha256_file(const char *path, char text[SHA256_TEXT]);

#endif /* ATTEST_BASE_SHA256_H */
