/* SPDX-License-Identifier: Apache-2.0
 *
 * output.c - see output.h. The temporary names live in a static table because a signal handler has
 * to find them.
 */
#include "base/output.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/message.h"

static struct {
    volatile sig_atomic_t used;
    char path[PATH_MAX + 64];
} temporaries[OUTPUT_MAX];

static const int FATAL_SIGNALS[] = {SIGINT,  SIGTERM, SIGHUP,  SIGQUIT,
                                    SIGALRM, SIGXCPU, SIGUSR1, SIGUSR2};
enum { FATAL_COUNT = sizeof FATAL_SIGNALS / sizeof *FATAL_SIGNALS };

static void remove_temporaries(void) {
    for (int i = 0; i < OUTPUT_MAX; i++) {
        if (temporaries[i].used) {
            unlink(temporaries[i].path);
        }
    }
}

static void remove_and_die(int signal_number) {
    remove_temporaries();
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

static void watch_signals(void) {
    static bool watching;
    for (int i = 0; i < FATAL_COUNT && !watching; i++) {
        struct sigaction action;
        /* A signal that is ignored for us (nohup) stays ignored. */
        if (sigaction(FATAL_SIGNALS[i], NULL, &action) == 0 && action.sa_handler == SIG_DFL) {
            action.sa_handler = remove_and_die;
            sigaction(FATAL_SIGNALS[i], &action, NULL);
        }
    }
    if (!watching) {
        signal(SIGXFSZ, SIG_IGN); /* a file too large is a failed write, and that is reported */
        atexit(remove_temporaries);
    }
    watching = true;
}

/* Creates the temporary file. Its name counts before it is there and for a moment after it was
 * renamed: to remove a file that is not there does no harm. */
static int create_temporary(struct output *output) {
    int slot = 0;
    while (slot < OUTPUT_MAX && temporaries[slot].used) {
        slot++;
    }
    if (slot == OUTPUT_MAX) {
        errno = EMFILE;
        return -1;
    }
    const char *slash = strrchr(output->target, '/');
    const int folder = slash == NULL ? 0 : (int)(slash + 1 - output->target);
    snprintf(temporaries[slot].path, sizeof temporaries[slot].path, "%.*s.attest-%ld-%d.tmp",
             folder, output->target, (long)getpid(), slot);
    temporaries[slot].used = 1;
    const int file = open(temporaries[slot].path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    temporaries[slot].used = file >= 0;
    output->slot = file >= 0 ? slot : -1;
    return file;
}

static bool open_target(struct output *output, bool standard, attn_error *why) {
    struct stat info, link;
    const bool exists = !standard && stat(output->target, &info) == 0;
    if (exists && S_ISDIR(info.st_mode)) {
        return explain(why, "cannot write: it is a directory");
    }
    if (exists && access(output->target, W_OK) != 0) {
        return explain(why, "cannot write: %s", strerror(errno));
    }
    /* What is still a link leads to a file without a name (/proc/self/fd/1, a deleted file). */
    const bool in_place = exists && (!S_ISREG(info.st_mode) ||
                                     (lstat(output->target, &link) == 0 && S_ISLNK(link.st_mode)));
    const int file = standard   ? dup(STDOUT_FILENO)
                     : in_place ? open(output->target, O_WRONLY | O_TRUNC | O_CLOEXEC)
                                : create_temporary(output);
    if (file < 0) {
        return explain(why, "cannot write: %s%s", strerror(errno),
                       in_place || standard ? "" : " for a new file in its folder");
    }
    if (exists && !in_place) {
        (void)fchmod(file, info.st_mode & 0777);
    }
    output->file = must(fdopen(file, "wb"));
    return true;
}

/* The path with every symbolic link followed, so that one file has one name; what it leads to need
 * not exist. NULL and errno where the folder does not exist. */
static char *canonical(const char *path) {
    enum { MOST_LINKS = 40 };
    char at[2 * PATH_MAX], next[2 * PATH_MAX], text[PATH_MAX];
    struct stat info;
    ssize_t length;
    snprintf(at, sizeof at, "%s", path);
    for (int i = 0; (length = readlink(at, text, sizeof text - 1)) > 0; i++) {
        const char *slash = strrchr(at, '/');
        const int folder = text[0] == '/' || slash == NULL ? 0 : (int)(slash + 1 - at);
        snprintf(next, sizeof next, "%.*s%.*s", folder, at, (int)length, text);
        if (lstat(next, &info) != 0 && stat(at, &info) == 0) {
            break; /* leads to a file without a name */
        }
        if (i == MOST_LINKS) {
            errno = ELOOP;
            return NULL;
        }
        memcpy(at, next, sizeof at);
    }
    const char *slash = strrchr(at, '/');
    const char *name = slash == NULL ? at : slash + 1;
    snprintf(next, sizeof next, "%.*s", slash == NULL ? 1 : (int)(slash + 1 - at),
             slash == NULL ? "." : at);
    char *folder = realpath(next, NULL), *whole = NULL;
    if (folder != NULL && *name == '\0') {
        errno = ENOENT;
    } else if (folder != NULL && asprintf(&whole, "%s/%s", folder, name) < 0) {
        whole = NULL;
    }
    free(folder);
    return whole;
}

bool output_open(struct output *output, const char *path, attn_error *why) {
    *output = (struct output){.slot = -1};
    if (strlen(path) >= PATH_MAX) {
        return explain(why, "cannot write: %s", strerror(ENAMETOOLONG));
    }
    watch_signals();
    const bool standard = strcmp(path, "-") == 0;
    output->target = standard ? strdup(path) : canonical(path);
    if (output->target == NULL) {
        return explain(why, "cannot write: %s", strerror(errno));
    }
    if (!open_target(output, standard, why)) {
        output_discard(output);
        return false;
    }
    return true;
}

/* A file system that cannot promise it says EINVAL: what was written is whole all the same. */
static bool on_disk(FILE *file) {
    return fsync(fileno(file)) == 0 || errno == EINVAL;
}

bool output_finish(struct output *output, attn_error *why) {
    const bool flushed = fflush(output->file) == 0 && (output->slot < 0 || on_disk(output->file));
    const bool closed = fclose(output->file) == 0;
    output->file = NULL;
    return (flushed && closed) || explain(why, "cannot write: %s", strerror(errno));
}

bool output_publish(struct output *output, attn_error *why) {
    if (output->slot >= 0 && rename(temporaries[output->slot].path, output->target) != 0) {
        return explain(why, "cannot write: %s", strerror(errno));
    }
    if (output->slot >= 0) {
        temporaries[output->slot].used = 0;
        output->slot = -1;
    }
    return true;
}

void output_discard(struct output *output) {
    if (output->file != NULL) {
        fclose(output->file);
    }
    if (output->slot >= 0) {
        unlink(temporaries[output->slot].path);
        temporaries[output->slot].used = 0;
    }
    free(output->target);
    *output = (struct output){.slot = -1};
}

bool output_end(struct output *output, const char *path, bool good, attn_error *why) {
    good = good && output_finish(output, why) && output_publish(output, why);
    output_discard(output);
    if (!good) {
        const attn_error cause = *why;
        explain(why, "%s: %s", path, cause.text);
    }
    return good;
}

bool output_write(const char *path, const void *data, size_t bytes, attn_error *why) {
    struct output output;
    const bool good =
        output_open(&output, path, why) && (fwrite(data, 1, bytes, output.file) == bytes ||
                                            explain(why, "cannot write: %s", strerror(errno)));
    return output_end(&output, path, good, why);
}
