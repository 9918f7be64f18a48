/* SPDX-License-Identifier: Apache-2.0
 *
 * children.c - the child processes of `attest evolve`: what they are told, and how they end.
 *
 * Invariant: each has a folder of its own that did not exist before, so that no answer is ever that
 * of another; when child_ask returns, nothing that it started is running any more.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/child.h"
#include "base/file.h"
#include "base/message.h"
#include "cases/shape.h"
#include "evolve/evolve.h"

/* ---- tasks ----------------------------------------------------------------------------------- */

static void space_json(const struct space *space, struct json *json) {
    json_text(json, "dtype", DTYPE_NAMES[space->dtype]);
    json_text(json, "device_arch", space->arch);
    json_int(json, "device_shared", space->shared);
    json_int(json, "rows", space->rows);
}

static void family_json(const struct task *task, struct json *json) {
    json_text(json, "family", task->family.name);
    json_text(json, "kernel", task->family.kernel);
    json_text(json, "arch", task->family.arch);
    json_int(json, "head_dim", task->family.head_dim);
    if (task->family.kernel[0] != '\0') {
        knobs_json(json, "knobs", &task->family, &task->knobs);
    }
}

bool task_write(const struct task *task, attn_error *why) {
    struct memo memo;
    char path[PATH_MAX];
    if (!memo_begin(&memo, why)) {
        return false;
    }
    struct json *json = &memo.json;
    json_open(json, NULL, '{');
    space_json(&task->space, json);
    family_json(task, json);
    shapes_json(json, "shapes", &task->shapes);
    json_open(json, "baselines", '[');
    for (int i = 0; i < task->shapes.count; i++) {
        json_text(json, NULL, task->baselines[i]);
    }
    json_close(json);
    json_text(json, "name", task->name);
    json_text(json, "source", task->source);
    json_text(json, "device", task->device);
    json_text(json, "driver", task->driver);
    json_text(json, "tree", task->tree);
    json_text(json, "nvcc", task->nvcc);
    json_text(json, "expression", task->expression);
    json_text(json, "start", task->start);
    json_int(json, "threads", task->threads);
    json_int(json, "seed", (int64_t)task->seed);
    json_int(json, "rounds", task->rounds);
    json_int(json, "cases", task->cases);
    json_bool(json, "shorter", task->shorter);
    json_close(json);
    struct json_value *document = memo_end(&memo, why);
    size_t bytes = 0;
    char *text = document != NULL ? json_canonical(document, &bytes, why) : NULL;
    snprintf(path, sizeof path, "%s/task.json", task->folder);
    const bool good = text != NULL && write_file(path, text, bytes, why);
    free(text);
    json_free(document);
    return good;
}

/* ---- folders --------------------------------------------------------------------------------- */

void remove_folder(const char *path) {
    char inner[PATH_MAX];
    DIR *folder = opendir(path);
    for (struct dirent *one; folder != NULL && (one = readdir(folder)) != NULL;) {
        if (strcmp(one->d_name, ".") != 0 && strcmp(one->d_name, "..") != 0) {
            snprintf(inner, sizeof inner, "%s/%s", path, one->d_name);
            if (unlink(inner) != 0) {
                remove_folder(inner);
            }
        }
    }
    if (folder != NULL) {
        closedir(folder);
        rmdir(path);
    }
}

static void take_text(char *to, size_t size, const struct json_value *document, const char *key) {
    const char *text = json_text_of(json_at(document, key));
    snprintf(to, size, "%s", text != NULL ? text : "");
}

static bool take_dtype(struct task *task, const struct json_value *document) {
    const char *name = json_text_of(json_at(document, "dtype"));
    for (int i = 0; name != NULL && DTYPE_NAMES[i] != NULL; i++) {
        if (strcmp(DTYPE_NAMES[i], name) == 0) {
            task->space.dtype = (attn_dtype)i;
            return true;
        }
    }
    return false;
}

static void take_family(struct task *task, const struct json_value *document) {
    take_text(task->space.arch, sizeof task->space.arch, document, "device_arch");
    task->space.shared = (int)json_int_of(json_at(document, "device_shared"), 0);
    task->space.rows = json_int_of(json_at(document, "rows"), 0);
    take_text(task->family.name, sizeof task->family.name, document, "family");
    take_text(task->family.kernel, sizeof task->family.kernel, document, "kernel");
    take_text(task->family.arch, sizeof task->family.arch, document, "arch");
    task->family.head_dim = (int)json_int_of(json_at(document, "head_dim"), 0);
    take_text(task->name, sizeof task->name, document, "name");
}

static void take_rest(struct task *task, const struct json_value *document) {
    const struct json_value *names = json_at(document, "baselines");
    for (size_t i = 0; i < json_count_of(names) && i < EVOLVE_SHAPES; i++) {
        const char *name = json_text_of(&names->as.list.items[i]);
        snprintf(task->baselines[i], EVOLVE_NAME, "%s", name != NULL ? name : "");
    }
    task->source = json_text_of(json_at(document, "source"));
    task->device = json_text_of(json_at(document, "device"));
    task->driver = json_text_of(json_at(document, "driver"));
    task->tree = json_text_of(json_at(document, "tree"));
    task->nvcc = json_text_of(json_at(document, "nvcc"));
    task->expression = json_text_of(json_at(document, "expression"));
    task->start = json_text_of(json_at(document, "start"));
    task->threads = json_int_of(json_at(document, "threads"), 0);
    task->seed = (uint64_t)json_int_of(json_at(document, "seed"), 0);
    task->rounds = (int)json_int_of(json_at(document, "rounds"), 0);
    task->cases = (int)json_int_of(json_at(document, "cases"), 0);
    const struct json_value *shorter = json_at(document, "shorter");
    task->shorter = shorter != NULL && shorter->kind == JSON_BOOL && shorter->as.truth;
}

bool task_read(const char *folder, struct task *task, struct json_value **document,
               attn_error *why) {
    char path[PATH_MAX];
    size_t bytes = 0;
    *task = (struct task){.folder = folder};
    snprintf(path, sizeof path, "%s/task.json", folder);
    char *text = file_read(path, &bytes, why);
    *document = text != NULL ? json_read(text, bytes, why) : NULL;
    free(text);
    if (*document == NULL) {
        return false;
    }
    if (!take_dtype(task, *document)) {
        return explain(why, "%s has no dtype", path);
    }
    take_family(task, *document);
    take_rest(task, *document);
    if (task->device == NULL) {
        return explain(why, "%s has no device", path);
    }
    return shapes_read(json_at(*document, "shapes"), task->space.dtype, &task->shapes, why) &&
           (task->family.kernel[0] == '\0' ||
            knobs_read(json_at(*document, "knobs"), &task->family, &task->knobs, why));
}

/* ---- many at once ---------------------------------------------------------------------------- */

/* One of them: its words go to its own log. */
static void become_builder(const char *folder) {
    char log[PATH_MAX];
    snprintf(log, sizeof log, "%s/build.log", folder);
    const int file = open(log, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (file < 0 || dup2(file, STDOUT_FILENO) < 0 || dup2(file, STDERR_FILENO) < 0) {
        _exit(EXIT_BAD_INPUT);
    }
    const int code = evolve_child(folder, BUILD_BESIDE);
    fflush(NULL);
    _exit(code);
}

int build_all(const char *list) {
    size_t bytes = 0;
    attn_error why = {""};
    char *names = file_read(list, &bytes, &why), *rest = names;
    long most = sysconf(_SC_NPROCESSORS_ONLN), running = 0;
    if (names == NULL) {
        return complain("evolve: %s", why.text);
    }
    for (char *one = strsep(&rest, "\n"); one != NULL; one = strsep(&rest, "\n")) {
        if (*one == '\0') {
            continue;
        }
        if (running >= most && wait(NULL) > 0) {
            running--;
        }
        const pid_t child = fork();
        if (child == 0) {
            become_builder(one);
        }
        running += child > 0;
    }
    while (wait(NULL) > 0 || errno == EINTR) {
    }
    free(names);
    return EXIT_DONE;
}

/* ---- asking ---------------------------------------------------------------------------------- */

/* The end of what the child said, for the reason. */
static void last_words(const char *log, char *text, size_t size) {
    size_t bytes = 0;
    attn_error empty;
    char *said = file_read(log, &bytes, &empty);
    text[0] = '\0';
    while (said != NULL && bytes > 0 && (said[bytes - 1] == '\n' || said[bytes - 1] == ' ')) {
        said[--bytes] = '\0';
    }
    if (said != NULL && bytes > 0) {
        const char *line = strrchr(said, '\n');
        snprintf(text, size, ": %s", line != NULL ? line + 1 : said);
    }
    free(said);
}

/* `word` is the job's argument. */
static bool run_self(const char *job, const char *word, const char *log, double limit,
                     struct child *child, attn_error *why) {
    char self[PATH_MAX];
    const ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length <= 0) {
        return explain(why, "/proc/self/exe cannot be read");
    }
    self[length] = '\0';
    char *const argv[] = {self,
                          (char *)(uintptr_t) "evolve",
                          (char *)(uintptr_t) "--job",
                          (char *)(uintptr_t)job,
                          (char *)(uintptr_t) "--folder",
                          (char *)(uintptr_t)word,
                          NULL};
    unlink(log);
    return child_run(argv, log, limit, child, why);
}

void children_build(const char *list, double limit) {
    char log[PATH_MAX];
    struct child child;
    attn_error why;
    snprintf(log, sizeof log, "%s.log", list);
    run_self("builds", list, log, limit, &child,
             &why); /* who has no answer is asked again, alone */
}

static struct json_value *read_answer(const struct task *task, attn_error *why) {
    char path[PATH_MAX];
    size_t bytes = 0;
    snprintf(path, sizeof path, "%s/answer.json", task->folder);
    char *text = file_read(path, &bytes, why);
    struct json_value *answer = text != NULL ? json_read(text, bytes, why) : NULL;
    free(text);
    return answer;
}

struct json_value *child_answered(const struct task *task) {
    char path[PATH_MAX];
    attn_error why;
    struct json_value *answer = read_answer(task, &why);
    snprintf(path, sizeof path, "%s/answer.json", task->folder);
    unlink(path);
    return answer;
}

struct json_value *child_ask(const struct task *task, const char *job, double limit,
                             double *seconds, attn_error *why) {
    char log[PATH_MAX], path[PATH_MAX], words[160], how[64];
    struct child child = {.code = -1};
    *seconds = 0;
    snprintf(log, sizeof log, "%s/%s.log", task->folder, job);
    snprintf(path, sizeof path, "%s/answer.json", task->folder);
    unlink(path);
    if (!task_write(task, why) || !run_self(job, task->folder, log, limit, &child, why)) {
        return NULL;
    }
    *seconds = child.seconds;
    if (child.code != EXIT_DONE) {
        last_words(log, words, sizeof words);
        explain(why, "the child for %s %s%s", job, child_text(&child, how, sizeof how), words);
        return NULL;
    }
    return read_answer(task, why);
}
