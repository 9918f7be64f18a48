/* SPDX-License-Identifier: Apache-2.0
 *
 * verify.c - `attest verify`: whether an evidence pack says what follows from what was
 * observed.
 *
 * Invariant: changes nothing, and believes nothing that it can compute: hashes, statistics and
 * verdicts come from the raw files, and evidence.json must be what they give, byte for byte.
 */
#include <stdlib.h>
#include <string.h>

#include "base/args.h"
#include "base/message.h"
#include "cli/verbs.h"
#include "pack/current.h"
#include "pack/evidence.h"
#include "pack/print.h"

/* What was published, compared with what follows. */
enum published { SAME, ABSENT, DIFFERENT };

static int line_of_difference(const char *a, const char *b) {
    int line = 1;
    for (; *a == *b && *a != '\0'; a++, b++) {
        line += *a == '\n';
    }
    return line;
}

static enum published compare(const struct pack *pack, const char *file, const char *text,
                              size_t bytes, attn_error *why) {
    size_t size = 0;
    char *found = pack_published(pack, file, &size, why);
    if (found == NULL) {
        return why->text[0] == '\0' ? ABSENT : DIFFERENT;
    }
    const bool same = size == bytes && memcmp(found, text, bytes) == 0;
    if (!same) {
        explain(why, "%s/%s: line %d is not what follows from the plan and the units", pack->path,
                file, line_of_difference(found, text));
    }
    free(found);
    return same ? SAME : DIFFERENT;
}

/* The pack is open. */
static int verify(const struct pack *pack, bool current, bool as_json) {
    struct evidence evidence;
    attn_error why = {""};
    enum published evidence_is = ABSENT, statement_is = ABSENT;
    bool sound = evidence_make(pack, &evidence, &why);
    if (sound) {
        evidence_is = compare(pack, EVIDENCE_FILE, evidence.text, evidence.text_bytes, &why);
        sound = evidence_is != DIFFERENT;
    }
    if (sound) {
        statement_is =
            compare(pack, STATEMENT_FILE, evidence.statement, evidence.statement_bytes, &why);
        sound = statement_is != DIFFERENT;
    }
    if (!sound) {
        evidence_free(&evidence);
        complain("%s", why.text);
        return EXIT_FAILED_CHECK;
    }
    const bool ended = evidence_is == SAME && statement_is == SAME;
    if (!ended) {
        judge(&evidence.judgement, GATE_NOT_RUN, "the run did not end");
    }
    if (current && !judge_current(pack, &evidence.judgement, &why)) {
        evidence_free(&evidence);
        return complain("%s", why.text);
    }
    if (as_json) {
        evidence_print_json(&evidence, pack->path, ended);
    } else {
        evidence_print(&evidence, ended);
    }
    const int status = gate_exit(evidence.judgement.gate);
    evidence_free(&evidence);
    return status;
}

int verb_verify(int argc, char **argv) {
    bool as_json = false, current = false;
    const char *path = NULL;
    struct arg args[] = {
        arg_flag("--current", &current,
                 "STALE, unless its variants, images and budgets are those of this library, and of "
                 "CPUs the library itself"),
        arg_flag("--json", &as_json, "the same as JSON"),
    };
    struct arg positional = arg_text("PACK", &path, "PACK", "");
    const struct arg_group groups[] = {{"options", args, sizeof args / sizeof *args}};
    const struct command command = {
        .verb = "verify",
        .summary = "check an evidence pack against the raw observations in it",
        .synopsis = "PACK [options]",
        .notes = "Exit code: that of the pack's verdict (0 PASS, 1 FAIL, 3 NOT_RUN or STALE,\n"
                 "4 INVALID); 1 where the pack was changed; 2 where it is no pack of this schema.\n"
                 "It shows that a pack is consistent, not who made it: compare the root hash with\n"
                 "one that you trust.\n",
        .examples = "  attest verify results/h200\n"
                    "  attest verify --current --json results/h200\n",
        .groups = groups,
        .group_count = 1,
        .positional = &positional,
    };
    const enum args_result parsed = args_parse(&command, argc, argv);
    if (parsed != ARGS_RUN) {
        return parsed == ARGS_HELP ? EXIT_DONE : EXIT_BAD_INPUT;
    }
    struct pack pack;
    attn_error why = {""};
    const int status =
        pack_open(&pack, path, &why) ? verify(&pack, current, as_json) : complain("%s", why.text);
    pack_close(&pack);
    return status;
}
