/* SPDX-License-Identifier: Apache-2.0
 *
 * current.c - what library and program this is, and whether a pack is of them. See evidence.h.
 *
 * Invariant: STALE at most: what is of another build may have been true of that.
 */
#include "pack/evidence.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/message.h"

bool current_identity(char library[SHA256_TEXT], char tool[64], attn_error *why) {
    Dl_info info;
    char program[SHA256_TEXT];
    if (dladdr((const void *)(uintptr_t)attn_version, &info) == 0 || info.dli_fname == NULL) {
        return explain(why, "the path of the library is unknown");
    }
    if (!sha256_file(info.dli_fname, library) || !sha256_file("/proc/self/exe", program)) {
        return explain(why, "%s: cannot be read: %s", info.dli_fname, strerror(errno));
    }
    snprintf(tool, 64, "%d.%d.%d %.16s", ATTN_VERSION_MAJOR, ATTN_VERSION_MINOR, ATTN_VERSION_PATCH,
             program);
    return true;
}

bool judge_current(const struct pack *pack, struct judgement *judgement, attn_error *why) {
    const char *planned = json_text_at(pack->plan, "library");
    char library[SHA256_TEXT], tool[64];
    if (!current_identity(library, tool, why)) {
        return false;
    }
    if (strcmp(planned, library) != 0) {
        judge(judgement, GATE_STALE, "it is of library %.12s, and this is %.12s", planned, library);
    }
    return true;
}
