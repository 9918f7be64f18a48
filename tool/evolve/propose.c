/* SPDX-License-Identifier: Apache-2.0
 *
 * propose.c - an external program that proposes candidates: a request on its standard input,
 * proposals on its standard output, both JSON (docs/evolve.md).
 *
 * Invariant: what comes back is not trusted. A program that fails, is late or answers nonsense has
 * proposed nothing; the search goes on.
 */
#include <string.h>

#include "base/child.h"
#include "base/message.h"
#include "evolve/evolve.h"

enum { PROPOSALS = 16, WANTED = 4, FILE_PATH = EVOLVE_PATH + 32 };
static const double PROPOSER_SECONDS = 300.0;
#define PROPOSER_SCHEMA "attest-proposer/2"

static bool write_request(const struct evolve *e, const struct journal *journal,
                          const struct search *s, const char *path, attn_error *why) {
    struct memo memo;
    memo_begin(&memo);
    json_text(&memo.json, "schema", PROPOSER_SCHEMA);
    json_int(&memo.json, "generation", s->generation);
    json_int(&memo.json, "want", WANTED);
    json_text(&memo.json, "tree", e->tree);
    json_text(&memo.json, "device_arch", s->arch);
    json_open(&memo.json, "board", '{');
    board_json(s, journal, &memo.json);
    return write_memo(path, &memo, why);
}

/* ---- the answer ------------------------------------------------------------------------------ */

/* NULL, and the knobs; or why it cannot become a candidate. */
static const char *refusal(const struct search *s, const struct json_value *p, struct knobs *knobs,
                           attn_error *why) {
    const int place = search_family(s, json_text_or(p, "family", ""));
    if (place < 0) {
        explain(why, "family = %.40s, expected one of the search", json_text_or(p, "family", ""));
    } else if (json_text_at(p, "source") != NULL && s->families[place].head_dim == 0) {
        explain(why, "a source for %s, which is compiled in", s->families[place].name);
    } else if (knobs_read(json_at(p, "knobs"), &s->families[place], knobs, why)) {
        return NULL;
    }
    return why->text;
}

static void proposals_json(const struct search *s, const struct json_value *list,
                           struct json *json) {
    json_open(json, "proposals", '[');
    for (size_t i = 0; i < json_count_of(list) && i < PROPOSALS; i++) {
        const struct json_value *p = json_item(list, i);
        struct knobs knobs = {{0}};
        attn_error why = {""};
        const char *refused = refusal(s, p, &knobs, &why);
        json_open(json, NULL, '{');
        json_text(json, "refused", refused);
        json_text(json, "family", json_text_or(p, "family", ""));
        knobs_json(json, &knobs);
        json_text(json, "source", json_text_at(p, "source"));
        json_text(json, "hypothesis", json_text_or(p, "hypothesis", ""));
        json_real(json, "predicted", json_number_at(p, "predicted"));
        json_close(json);
    }
    json_close(json);
}

/* Request and answer are its input and output, in 8 GiB of addresses. NULL: it failed, and why. */
static struct json_value *run_proposer(const char *command, const char *folder, const char *request,
                                       attn_error *why) {
    static const char script[] = "ulimit -v 8388608; exec sh -c \"$3\" <\"$1\" >\"$2\"";
    char answer[FILE_PATH], log[FILE_PATH], how[64];
    struct child child;
    snprintf(answer, sizeof answer, "%s/answer.json", folder);
    snprintf(log, sizeof log, "%s/log", folder);
    const char *const argv[] = {"/bin/sh", "-c", script, "sh", request, answer, command, NULL};
    if (!child_run(argv, log, PROPOSER_SECONDS, &child, why)) {
        return NULL;
    }
    if (child.code != 0) {
        explain(why, "the proposer: %s", child_text(&child, how, sizeof how));
        return NULL;
    }
    struct json_value *document = json_load(answer, why);
    if (document != NULL && !json_is_at(document, "schema", PROPOSER_SCHEMA)) {
        explain(why, "the answer is no " PROPOSER_SCHEMA);
        json_free(document);
        return NULL;
    }
    return document;
}

bool propose(const struct evolve *e, const struct journal *journal, const struct search *s,
             const char *folder, struct json *json, attn_error *why) {
    char request[FILE_PATH];
    attn_error fault = {""};
    snprintf(request, sizeof request, "%s/request.json", folder);
    if (!write_request(e, journal, s, request, why)) {
        return false;
    }
    struct json_value *answer = run_proposer(e->proposer, folder, request, &fault);
    json_text(json, "fault", answer == NULL ? fault.text : NULL);
    proposals_json(s, json_at(answer, "proposals"), json);
    json_free(answer);
    return true;
}
