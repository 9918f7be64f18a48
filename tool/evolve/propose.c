/* SPDX-License-Identifier: Apache-2.0
 *
 * propose.c - an external program that proposes candidates: a request on its standard input,
 * proposals on its standard output, both JSON (docs/evolve.md).
 *
 * Invariant: what comes back is text that nobody trusts. A program that fails, is late or answers
 * nonsense has proposed nothing; the search goes on.
 */
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/child.h"
#include "base/file.h"
#include "base/message.h"
#include "cases/shape.h"
#include "evolve/evolve.h"

enum { PARENTS = 4, FAILURES = 20, PROPOSALS = 16, WANTED = 4 };
static const double PROPOSER_SECONDS = 300.0;

/* ---- the request ----------------------------------------------------------------------------- */

static void parent_json(const struct search *s, const struct candidate *c, struct json *json) {
    char text[96];
    json_open(json, NULL, '{');
    json_int(json, "id", c->number);
    json_text(json, "name", c->name);
    json_text(json, "family", s->space.families[c->family].name);
    knobs_json(json, "knobs", &s->space.families[c->family], &c->knobs);
    json_text(json, "why", c->why);
    json_int(json, "registers", c->registers);
    json_int(json, "shared", c->shared);
    json_real(json, "error", c->error);
    json_open(json, "shapes", '[');
    for (int i = 0; i < s->targets.count; i++) {
        const struct interval ratio = series_interval(&c->series[i]);
        json_open(json, NULL, '{');
        json_text(json, "shape", shape_text(&s->targets.problems[i], text, sizeof text));
        json_real(json, "p50_us", 1e6 * series_median(c->series[i].candidate, c->series[i].count));
        json_real(json, "ratio", ratio.value);
        json_real(json, "ratio_low", ratio.low);
        json_real(json, "ratio_high", ratio.high);
        json_close(json);
    }
    json_close(json);
    json_close(json);
}

static void failures_json(const struct search *s, struct json *json) {
    int left = FAILURES;
    json_open(json, "failures", '[');
    for (int i = s->count - 1; i >= 0 && left > 0; i--) {
        const struct candidate *c = s->candidates[i];
        if (c->state == CANDIDATE_REJECTED) {
            json_open(json, NULL, '{');
            json_int(json, "id", c->number);
            json_text(json, "name", c->name);
            json_text(json, "gate", c->gate);
            json_text(json, "reason", c->reason);
            json_close(json);
            left--;
        }
    }
    json_close(json);
}

/* The families with the values of their knobs and, on a GPU, their source. */
static bool families_json(const struct evolve *e, const struct search *s, struct json *json,
                          attn_error *why) {
    json_open(json, "families", '[');
    for (int f = 0; f < s->space.count; f++) {
        const struct family *family = &s->space.families[f];
        json_open(json, NULL, '{');
        json_text(json, "name", family->name);
        json_int(json, "head_dim", family->head_dim);
        json_open(json, "knobs", '{');
        for (int k = 0; k < KNOB_COUNT; k++) {
            const int *list = NULL;
            const int count = knob_values(family, (enum knob)k, &list);
            if (count > 0) {
                json_open(json, KNOB_NAMES[k], '[');
                for (int i = 0; i < count; i++) {
                    json_int(json, NULL, list[i]);
                }
                json_close(json);
            }
        }
        json_close(json);
        if (family->head_dim > 0) {
            char *source = source_of(e->tree, family->kernel, why);
            if (source == NULL) {
                return false;
            }
            json_text(json, "source", source);
            free(source);
        }
        json_close(json);
    }
    json_close(json);
    return true;
}

static bool write_request(const struct evolve *e, const struct search *s, const char *path,
                          attn_error *why) {
    struct memo memo;
    int ranked[PARENTS];
    const int count = search_ranking(s, ranked, PARENTS);
    if (!memo_begin(&memo, why)) {
        return false;
    }
    struct json *json = &memo.json;
    json_open(json, NULL, '{');
    json_text(json, "schema", PROPOSER_SCHEMA);
    json_int(json, "generation", s->generation);
    json_int(json, "seed", (int64_t)(s->options.seed >> 11));
    json_int(json, "want", WANTED);
    json_text(json, "dtype", DTYPE_NAMES[s->space.dtype]);
    shapes_json(json, "shapes", &s->targets);
    json_text(json, "device_arch", s->space.arch);
    json_int(json, "device_shared", s->space.shared);
    bool good = families_json(e, s, json, why);
    if (good) {
        json_open(json, "parents", '[');
        for (int i = 0; i < count; i++) {
            parent_json(s, s->candidates[ranked[i]], json);
        }
        json_close(json);
        failures_json(s, json);
    }
    while (json->depth > 0) {
        json_close(json);
    }
    attn_error ignored;
    struct json_value *document = memo_end(&memo, good ? why : &ignored);
    size_t bytes = 0;
    char *text = good && document != NULL ? json_canonical(document, &bytes, why) : NULL;
    good = text != NULL && write_file(path, text, bytes, why);
    free(text);
    json_free(document);
    return good;
}

/* ---- the answer ------------------------------------------------------------------------------ */

static void refuse(struct json *refused, size_t number, const char *reason) {
    json_open(refused, NULL, '{');
    json_int(refused, "proposal", (int64_t)number);
    json_text(refused, "reason", reason);
    json_close(refused);
}

/* NULL, or why it cannot become a candidate. */
static bool take_proposal(const struct journal *journal, const struct search *s,
                          const struct json_value *p, struct json *accepted, attn_error *why) {
    const char *name = json_text_of(json_at(p, "family"));
    const char *source = json_text_of(json_at(p, "source"));
    const char *hypothesis = json_text_of(json_at(p, "hypothesis"));
    char hash[SHA256_TEXT];
    struct knobs knobs;
    const struct family *family = NULL;
    for (int f = 0; f < s->space.count && name != NULL; f++) {
        family = strcmp(s->space.families[f].name, name) == 0 ? &s->space.families[f] : family;
    }
    if (family == NULL) {
        return explain(why, "family = %.40s, expected one of the request",
                       name != NULL ? name : "");
    }
    if (!knobs_read(json_at(p, "knobs"), family, &knobs, why) ||
        !knobs_legal(&s->space, family, &knobs, why)) {
        return false;
    }
    if (source != NULL &&
        (family->head_dim == 0 ? !explain(why, "a source for %s, which is compiled in", name)
                               : !journal_keep(journal, source, strlen(source), hash, why))) {
        return false;
    }
    json_open(accepted, NULL, '{');
    json_text(accepted, "family", name);
    knobs_json(accepted, "knobs", family, &knobs);
    if (source != NULL) {
        json_text(accepted, "source", hash);
    }
    json_text(accepted, "hypothesis", hypothesis);
    json_real(accepted, "predicted", json_number_of(json_at(p, "predicted")));
    json_int(accepted, "parent", json_int_of(json_at(p, "parent"), 0));
    json_close(accepted);
    return true;
}

static bool take_answer(const struct journal *journal, const struct search *s, const char *path,
                        struct json *json, attn_error *why) {
    size_t bytes = 0;
    struct memo refused;
    char *text = file_read(path, &bytes, why);
    struct json_value *answer = text != NULL ? json_read(text, bytes, why) : NULL;
    free(text);
    const struct json_value *list = json_at(answer, "proposals");
    const char *schema = json_text_of(json_at(answer, "schema"));
    if (answer == NULL || schema == NULL || strcmp(schema, PROPOSER_SCHEMA) != 0 ||
        (list == NULL || list->kind != JSON_LIST)) {
        const bool readable = answer != NULL;
        json_free(answer);
        return readable ? explain(why, "the answer is no " PROPOSER_SCHEMA) : false;
    }
    if (!memo_begin(&refused, why)) {
        json_free(answer);
        return false;
    }
    json_open(&refused.json, NULL, '[');
    for (size_t i = 0; i < json_count_of(list) && i < PROPOSALS; i++) {
        attn_error reason = {""};
        if (!take_proposal(journal, s, &list->as.list.items[i], json, &reason)) {
            refuse(&refused.json, i, reason.text);
        }
    }
    json_close(&refused.json);
    json_close(json); /* accepted */
    struct json_value *reasons = memo_end(&refused, why);
    if (reasons != NULL) {
        json_copy(json, "refused", reasons);
    }
    json_free(reasons);
    json_free(answer);
    return true;
}

static bool run_proposer(const char *command, const char *folder, attn_error *why) {
    char self[PATH_MAX], path[PATH_MAX + 32], log[PATH_MAX + 32], how[64];
    struct child child;
    const ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    self[length > 0 ? length : 0] = '\0';
    snprintf(path, sizeof path, "%s/command", folder);
    snprintf(log, sizeof log, "%s/log", folder);
    if (!write_file(path, command, strlen(command), why)) {
        return false;
    }
    char *const argv[] = {self,
                          (char *)(uintptr_t) "evolve",
                          (char *)(uintptr_t) "--job",
                          (char *)(uintptr_t) "propose",
                          (char *)(uintptr_t) "--folder",
                          (char *)(uintptr_t)folder,
                          NULL};
    return child_run(argv, log, PROPOSER_SECONDS, &child, why) &&
           (child.code == 0 ||
            explain(why, "the proposer: %s", child_text(&child, how, sizeof how)));
}

bool propose(const struct evolve *e, const struct journal *journal, const struct search *s,
             struct json *json, attn_error *why) {
    char folder[PATH_MAX], request[PATH_MAX + 32], answer[PATH_MAX + 32];
    attn_error fault = {""};
    snprintf(folder, sizeof folder, "%s/scratch", journal->path);
    mkdir(folder, 0777);
    snprintf(folder, sizeof folder, "%s/scratch/proposal-%d", journal->path, s->generation);
    remove_folder(folder);
    if (mkdir(folder, 0777) != 0) {
        return explain(why, "%s: cannot make the folder: %s", folder, strerror(errno));
    }
    snprintf(request, sizeof request, "%s/request.json", folder);
    snprintf(answer, sizeof answer, "%s/answer.json", folder);
    if (!write_request(e, s, request, why)) {
        return false;
    }
    json_open(json, "accepted", '[');
    const int depth = json->depth;
    if (!run_proposer(e->proposer, folder, &fault) ||
        !take_answer(journal, s, answer, json, &fault)) {
        while (json->depth >= depth) {
            json_close(json);
        }
        json_text(json, "fault", fault.text);
    }
    return true;
}
