/* SPDX-License-Identifier: Apache-2.0
 *
 * peers.c - see peers.h.
 */
#include "stages/bench/peers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json_read.h"
#include "base/message.h"
#include "base/temporary.h"
#include "base/tool_path.h"
#include "stages/stage.h"

enum { PEERS_SECONDS = 40, GRACE_SECONDS = 50, NOT_RUN_CODE = 3 };
#define PEERS_LIMIT "40"

struct peers {
    char folder[TEMPORARY_SIZE], json[TEMPORARY_FILE], log[TEMPORARY_FILE];
    char program[PATH_MAX], script[PATH_MAX], library[PATH_MAX];
};

/* $ATTN_PEERS; else the script beside the folder that this program was built in, with the library
 * in it. */
static bool find_runner(struct peers *peers, attn_error *why) {
    char self[PATH_MAX];
    const char *asked = getenv("ATTN_PEERS");
    peers->script[0] = peers->library[0] = '\0';
    if (asked != NULL) {
        snprintf(peers->program, PATH_MAX, "%s", asked);
        return true;
    }
    if (!stage_self(self, why)) {
        return false;
    }
    *strrchr(self, '/') = '\0';
    if (snprintf(peers->script, PATH_MAX, "%s/../python/peers.py", self) >= PATH_MAX ||
        snprintf(peers->library, PATH_MAX, "%s/libattn.so", self) >= PATH_MAX ||
        access(peers->script, R_OK) != 0) {
        return explain(why, "NOT_RUN: no %s", peers->script);
    }
    return tool_find("python3", peers->program, NULL) ||
           explain(why, "NOT_RUN: no python3 in $PATH");
}

static bool run(const struct peers *peers, struct child *child, attn_error *why) {
    const bool library = access(peers->library, R_OK) == 0;
    return stage_run(peers->log, PEERS_SECONDS + GRACE_SECONDS, child, why, peers->program,
                     peers->script, "--device", "cuda", "--grid", "canonical", "--quick", "--limit",
                     PEERS_LIMIT, "--json", peers->json, library ? "--lib" : "",
                     library ? peers->library : "", NULL);
}

/* The last line that it printed, for a sentence. */
static void last_words(const struct peers *peers, const struct child *child, attn_error *why) {
    char text[64];
    size_t bytes = 0;
    char *log = file_read(peers->log, &bytes, NULL);
    while (log != NULL && bytes > 0 && (log[bytes - 1] == '\n' || log[bytes - 1] == '\r')) {
        log[--bytes] = '\0';
    }
    const char *newline = log != NULL ? strrchr(log, '\n') : NULL;
    const char *line = newline != NULL ? newline + 1 : log;
    explain(why, "%speers: %s%s%.200s", child->code == NOT_RUN_CODE ? "NOT_RUN: " : "",
            child_text(child, text, sizeof text), line != NULL ? ": " : "",
            line != NULL ? line : "");
    free(log);
}

static bool store(const struct peers *peers, const struct pack *pack, char name[SHA256_TEXT],
                  attn_error *why) {
    size_t bytes = 0;
    char *text = file_read(peers->json, &bytes, why);
    struct json_value *report = text != NULL ? json_read(text, bytes, why) : NULL;
    const bool good = report != NULL && pack_add_artifact(pack, text, bytes, name, why);
    json_free(report);
    free(text);
    return good;
}

bool record_peers(const struct pack *pack, char name[SHA256_TEXT], attn_error *why) {
    struct peers peers;
    struct child child;
    if (!find_runner(&peers, why) || !temporary_folder(peers.folder, "peers", why)) {
        return false;
    }
    snprintf(peers.json, sizeof peers.json, "%s/peers.json", peers.folder);
    snprintf(peers.log, sizeof peers.log, "%s/log", peers.folder);
    bool good = run(&peers, &child, why);
    if (good && child.code != 0) {
        last_words(&peers, &child, why);
        good = false;
    }
    good = good && store(&peers, pack, name, why);
    unlink(peers.json);
    unlink(peers.log);
    rmdir(peers.folder);
    return good;
}
