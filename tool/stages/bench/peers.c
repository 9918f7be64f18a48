/* SPDX-License-Identifier: Apache-2.0
 *
 * peers.c - see peers.h.
 */
#include "stages/bench/peers.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/child.h"
#include "base/file.h"
#include "base/json_read.h"
#include "base/message.h"
#include "base/tool_path.h"

enum { MAX_WORDS = 20, PEERS_SECONDS = 40, GRACE_SECONDS = 50, NOT_RUN_CODE = 3 };

struct peers {
    char folder[TEMPORARY_SIZE], json[TEMPORARY_FILE], log[TEMPORARY_FILE];
    char python[PATH_MAX], script[PATH_MAX], library[PATH_MAX];
};

/* The runner lies beside the folder that this program was built in, the library in it. */
static bool find_runner(struct peers *peers, attn_error *why) {
    char self[PATH_MAX];
    const ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length <= 0) {
        return explain(why, "/proc/self/exe: %s", strerror(errno));
    }
    self[length] = '\0';
    const int folder = (int)(strrchr(self, '/') - self);
    if (snprintf(peers->script, PATH_MAX, "%.*s/../python/peers.py", folder, self) >= PATH_MAX ||
        snprintf(peers->library, PATH_MAX, "%.*s/libattn.so", folder, self) >= PATH_MAX) {
        return explain(why, "%s: too long a path", self);
    }
    if (access(peers->script, R_OK) != 0) {
        return explain(why, "NOT_RUN: no %s", peers->script);
    }
    return tool_find("python3", peers->python, NULL) ||
           explain(why, "NOT_RUN: no python3 in $PATH");
}

static bool run(const struct peers *peers, const char *program, struct child *child,
                attn_error *why) {
    char limit[16];
    const char *words[MAX_WORDS];
    char *argv[MAX_WORDS];
    int n = 0;
    snprintf(limit, sizeof limit, "%d", PEERS_SECONDS);
    if (program != NULL) {
        words[n++] = program;
    } else {
        words[n++] = peers->python;
        words[n++] = peers->script;
    }
    words[n++] = "--device";
    words[n++] = "cuda";
    words[n++] = "--grid";
    words[n++] = "canonical";
    words[n++] = "--quick";
    words[n++] = "--limit";
    words[n++] = limit;
    words[n++] = "--json";
    words[n++] = peers->json;
    if (program == NULL && access(peers->library, R_OK) == 0) {
        words[n++] = "--lib";
        words[n++] = peers->library;
    }
    words[n] = NULL;
    memcpy(argv, words, sizeof argv); /* which nobody writes to, whatever their type */
    return child_run(argv, peers->log, PEERS_SECONDS + GRACE_SECONDS, child, why);
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
    const char *program = getenv("ATTN_PEERS");
    struct peers peers;
    struct child child;
    if ((program == NULL && !find_runner(&peers, why)) ||
        !temporary_folder(peers.folder, "peers", why)) {
        return false;
    }
    snprintf(peers.json, sizeof peers.json, "%s/peers.json", peers.folder);
    snprintf(peers.log, sizeof peers.log, "%s/log", peers.folder);
    bool good = run(&peers, program, &child, why);
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
