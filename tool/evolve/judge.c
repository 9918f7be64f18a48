/* SPDX-License-Identifier: Apache-2.0
 *
 * judge.c - `attest evolve --judge FILE`: one source, in the place of a shipped variant's,
 * through every gate that a candidate goes through.
 *
 * Invariant: there is one way through the gates: what is judged here is judged as in a search.
 */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/message.h"
#include "evolve/evolve.h"

static const char *text_at(const struct json_value *object, const char *key) {
    const char *text = json_text_of(json_at(object, key));
    return text != NULL ? text : "";
}

static int tell(const char *name, const struct json_value *result, bool as_json) {
    const bool passed = strcmp(text_at(result, "verdict"), "rejected") != 0;
    if (as_json) {
        struct json json = json_begin(stdout);
        json_open(&json, NULL, '{');
        json_text(&json, "name", name);
        json_copy(&json, "result", result);
        json_close(&json);
    } else if (passed) {
        printf("passed: %s\n", name);
    } else {
        printf("rejected by %s: %s\n", text_at(result, "gate"), text_at(result, "reason"));
    }
    const int code = flush_stdout();
    return code != EXIT_DONE ? code : passed ? EXIT_DONE : EXIT_FAILED_CHECK;
}

/* NULL and the reason; *absent: there is no such device or compiler. */
static struct json_value *judge_in(const struct evolve *e, struct journal *journal,
                                   struct search *search, const char *source, bool *absent,
                                   attn_error *why) {
    struct step step = search_next(search);
    struct json_value *facts = step_run(e, journal, search, &step, absent, why);
    const bool begun = facts != NULL && search_take(search, &step, facts, 0, 0, why);
    json_free(facts);
    if (!begun) {
        return NULL;
    }
    step = search_next(search);
    if (step.kind != STEP_CANDIDATE || search->shipped_count != 1) {
        explain(why, "--judge needs --start, the variant in whose place the source is judged");
        return NULL;
    }
    return journal_keep(journal, source, strlen(source), step.candidate->source, why)
               ? step_run(e, journal, search, &step, absent, why)
               : NULL;
}

int judge_source(const struct evolve *e, const char *path, const char *out, bool as_json) {
    struct journal journal = {.path = NULL};
    struct search search = {.winner = -1};
    const struct search_options options = {.seed = 1, .start = e->start};
    attn_error why = {""};
    size_t bytes = 0;
    bool absent = false;
    char *source = file_read(path, &bytes, &why);
    struct json_value *result = NULL;
    if (source != NULL && search_begin(&search, &options, &e->targets, &why) &&
        journal_create(&journal, out, "{\"schema\": \"" EVOLVE_SCHEMA "\", \"judged\": true}",
                       &why)) {
        result = judge_in(e, &journal, &search, source, &absent, &why);
    }
    const int code = result != NULL ? tell(search.candidates[0]->name, result, as_json)
                                    : complain("evolve: %s%s", absent ? "not run: " : "", why.text);
    char *work = journal.path != NULL ? journal_path(&journal, "scratch") : NULL;
    if (work != NULL) {
        remove_folder(work);
    }
    free(work);
    json_free(result);
    search_free(&search);
    journal_close(&journal);
    free(source);
    return absent && result == NULL ? EXIT_NOT_RUN : code;
}
