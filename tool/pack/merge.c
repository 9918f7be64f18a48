/* SPDX-License-Identifier: Apache-2.0
 *
 * merge.c - `attest merge`: packs of one plan, each with some of its slots, become one pack.
 *
 * Invariant: the new pack holds every unit and artifact of the others, byte for byte, and its
 * verdict follows from them: a slot that two of them did differently is INVALID.
 */
#include <stdlib.h>
#include <string.h>

#include "base/args.h"
#include "base/message.h"
#include "cli/verbs.h"
#include "pack/evidence.h"

struct request {
    struct arg_list packs;
    const char *out;
    bool json;
};

static bool copy_folder(const struct pack *from, const struct pack *to, enum pack_folder folder,
                        attn_error *why) {
    struct pack_names names;
    bool good = pack_list(from, folder, &names, why);
    for (size_t i = 0; good && i < names.count; i++) {
        good = pack_copy(from, to, folder, names.names[i], why);
    }
    pack_names_free(&names);
    return good;
}

/* Artifacts first: a unit names those that it has. */
static bool add_pack(const char *path, const struct pack *to, attn_error *why) {
    struct pack from;
    const bool good = pack_open(&from, path, why) && copy_folder(&from, to, PACK_ARTIFACTS, why) &&
                      copy_folder(&from, to, PACK_UNITS, why);
    pack_close(&from);
    return good;
}

/* Each is known to be whole, and of one plan, before anything is written: that plan, for free(). */
static char *plan_of(const struct arg_list *packs, attn_error *why) {
    char hash[SHA256_TEXT] = "", *plan = NULL;
    bool good = true;
    for (size_t i = 0; good && i < packs->count; i++) {
        struct pack pack;
        struct evidence evidence = {.rows = NULL};
        size_t bytes = 0;
        good = pack_open(&pack, packs->items[i], why) && evidence_make(&pack, &evidence, why);
        if (good && i == 0) {
            memcpy(hash, pack.plan_hash, sizeof hash);
            plan = pack_published(&pack, "plan.json", &bytes, why);
            good = plan != NULL;
        }
        if (good && strcmp(hash, pack.plan_hash) != 0) {
            good = explain(why,
                           "%s: another plan than that of the first pack, expected packs of "
                           "one plan (attest run --part)",
                           packs->items[i]);
        }
        evidence_free(&evidence);
        pack_close(&pack);
    }
    if (!good) {
        free(plan);
    }
    return good ? plan : NULL;
}

static int merge(const struct request *r) {
    struct pack out = {.path = NULL};
    struct evidence evidence = {.rows = NULL};
    attn_error why = {""};
    char *plan = plan_of(&r->packs, &why);
    bool good = plan != NULL && pack_create(&out, r->out, plan, &why);
    for (size_t i = 0; good && i < r->packs.count; i++) {
        good = add_pack(r->packs.items[i], &out, &why);
    }
    good = good && evidence_make(&out, &evidence, &why) && evidence_publish(&out, &evidence, &why);
    if (good) {
        (r->json ? evidence_print_json : evidence_print)(&evidence, out.path, true);
    }
    const int status = good ? gate_exit(evidence.judgement.gate) : complain("merge: %s", why.text);
    evidence_free(&evidence);
    pack_close(&out);
    free(plan);
    return status;
}

int verb_merge(int argc, char **argv) {
    static struct request request;
    struct arg args[] = {
        arg_text("--out", &request.out, "DIR", "the new pack"),
        arg_flag("--json", &request.json, "the summary as JSON"),
    };
    args[0].required = true;
    struct arg positional = arg_list("PACK", &request.packs, "PACK", "");
    const struct arg_group groups[] = {ARG_GROUP("options", args)};
    const struct command command = {
        .verb = "merge",
        .synopsis = "PACK PACK... --out DIR",
        .notes = "For machines that share no folder: each runs a part of one plan (attest run "
                 "--part). Packs of\nother plans and changed packs are refused. Exit code: that of "
                 "the new pack's verdict, or 2 if\nno pack was written.\n",
        .examples =
            "  attest run --full --part 1/2 --out a        # machine 1\n"
            "  attest run --resume --part 2/2 --out b      # machine 2, with a's plan.json\n"
            "  attest merge a b --out pack\n",
        ARG_GROUPS(groups),
        .positional = &positional,
    };
    const enum args_result parsed = args_parse(&command, argc, argv);
    if (parsed != ARGS_RUN) {
        return parsed == ARGS_HELP ? EXIT_DONE : EXIT_BAD_INPUT;
    }
    return merge(&request);
}
