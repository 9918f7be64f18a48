/* SPDX-License-Identifier: Apache-2.0
 *
 * verb_verify.c - `attest verify`: whether an evidence pack says what follows from what was
 * observed.
 *
 * Invariant: changes nothing, and believes nothing that it can compute: hashes, statistics and
 * verdicts come from the raw files, and evidence.json must be what they give, byte for byte.
 */
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "budgets.h"
#include "evidence.h"
#include "evidence_print.h"
#include "message.h"
#include "verbs.h"

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

/* Whether the variant is compiled in with an image of this hash. */
static bool is_compiled_in(const char *variant, const char *hash) {
    attn_image image = {.size = sizeof image};
    for (int32_t i = 0; attn_variant_image(NULL, variant, i, &image, NULL) == ATTN_OK; i++) {
        char own[SHA256_TEXT];
        sha256_text(image.data, image.bytes, own);
        if (strcmp(own, hash) == 0) {
            return true;
        }
    }
    return false;
}

/* evidence_make has seen that the plan has the form of one. CPU variants have no image. */
static void judge_images(const struct pack *pack, struct judgement *judgement) {
    const struct json_value *rows = json_at(pack->plan, "rows");
    for (size_t i = 0; i < json_count_of(rows); i++) {
        const struct json_value *subjects = json_at(&rows->as.list.items[i], "subjects");
        for (size_t j = 0; j < json_count_of(subjects); j++) {
            const struct json_value *subject = &subjects->as.list.items[j];
            const char *variant = json_text_of(json_at(subject, "variant"));
            const char *hash = json_text_of(json_at(subject, "image"));
            if (hash != NULL && !is_compiled_in(variant, hash)) {
                judge(judgement, GATE_STALE, "%.80s: image %.12s is not in this library", variant,
                      hash);
            }
        }
    }
}

static bool plan_knows(const struct pack *pack, const char *variant) {
    const struct json_value *variants = json_at(pack->plan, "variants");
    for (size_t i = 0; i < json_count_of(variants); i++) {
        if (strcmp(json_text_of(json_at(&variants->as.list.items[i], "name")), variant) == 0) {
            return true;
        }
    }
    return false;
}

/* What this library has, and the library of the pack had not. */
static void judge_variants(const struct pack *pack, struct judgement *judgement) {
    attn_variant variant = {.size = sizeof variant};
    for (int32_t i = 0; attn_variant_get(NULL, i, &variant, NULL) == ATTN_OK; i++) {
        if (!plan_knows(pack, variant.name)) {
            judge(judgement, GATE_STALE,
                  "%.80s is in this library, and the pack knows nothing of it", variant.name);
        }
    }
}

/* A unit of inspect was held to the budget that this program has. */
static void judge_budget(const struct json_value *unit, const struct budgets *budgets,
                         struct judgement *judgement) {
    const struct json_value *values = json_at(unit, "values");
    const char *variant = json_text_of(json_at(unit, "variant"));
    const char *arch = json_text_of(json_at(unit, "device"));
    const struct budget *budget =
        variant != NULL && arch != NULL ? budgets_find(budgets, variant, arch) : NULL;
    if (budget == NULL ||
        json_int_of(json_at(values, "budget_registers"), 0) != budget->registers ||
        json_int_of(json_at(values, "budget_tensor_ops"), 0) != budget->tensor_ops) {
        judge(judgement, GATE_STALE, "%.80s: its budget is another one now",
              variant != NULL ? variant : "a variant");
    }
}

/* evidence_make has read every unit once. */
static bool judge_budgets(const struct pack *pack, struct judgement *judgement, attn_error *why) {
    struct budgets budgets;
    struct pack_names names = {0};
    bool good = budgets_built_in(&budgets, why) && pack_list(pack, PACK_UNITS, &names, why);
    for (size_t i = 0; good && i < names.count; i++) {
        struct json_value *unit = pack_read_unit(pack, names.names[i], why);
        good = unit != NULL;
        if (good && stage_of(json_text_of(json_at(unit, "stage"))) == INSPECT &&
            json_at(unit, "broken") == NULL) {
            judge_budget(unit, &budgets, judgement);
        }
        json_free(unit);
    }
    pack_names_free(&names);
    budgets_free(&budgets);
    return good;
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
    if (current) {
        judge_images(pack, &evidence.judgement);
        judge_variants(pack, &evidence.judgement);
        if (!judge_budgets(pack, &evidence.judgement, &why)) {
            evidence_free(&evidence);
            return complain("%s", why.text);
        }
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
                 "STALE, unless its images, variants and budgets are those of this library"),
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
