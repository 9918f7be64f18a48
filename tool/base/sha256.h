/* SPDX-License-Identifier: Apache-2.0
 *
 * sha256.h - SHA-256 (FIPS 180-4) of a block of memory, as text: it names an image by its content.
 */
#ifndef ATTEST_BASE_SHA256_H
#define ATTEST_BASE_SHA256_H

#include <stddef.h>

enum { SHA256_TEXT = 65 }; /* 64 lower-case hexadecimal digits and the terminator */

void sha256_text(const void *data, size_t bytes, char text[SHA256_TEXT]);

#endif /* ATTEST_BASE_SHA256_H */
