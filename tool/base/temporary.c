/* SPDX-License-Identifier: Apache-2.0
 *
 * temporary.c - see temporary.h.
 */
#include "base/temporary.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/message.h"

bool temporary_folder(char path[TEMPORARY_SIZE], const char *purpose, attn_error *why) {
    const char *asked = getenv("TMPDIR");
    const char *parent = asked != NULL && *asked != '\0' ? asked : "/tmp";
    const int length = snprintf(path, TEMPORARY_SIZE, "%s/attest-%s-XXXXXX", parent, purpose);
    if (length < 0 || length >= TEMPORARY_SIZE) {
        return explain(why, "$TMPDIR: %zu characters, expected fewer than %d", strlen(parent),
                       TEMPORARY_SIZE - 64);
    }
    return mkdtemp(path) != NULL ||
           explain(why, "%s: no temporary folder there: %s", parent, strerror(errno));
}
