/* SPDX-License-Identifier: Apache-2.0
 *
 * verify.c - `attest verify`: whether a pack's evidence follows from its observations; and the
 * summary of a pack, which `attest run` also prints.
 *
 * Invariant: changes nothing; hashes, statistics and verdicts are computed from the raw files, and
 * evidence.json must be equal to them byte for byte.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/args.h"
#include "base/message.h"
#include "cli/verbs.h"
#include "pack/evidence.h"

/* ---- printing -------------------------------------------------------------------------------- */

enum { REASON_WIDTH = 120 };

/* Followed by blanks up to a width. */
static void print_column(const char *text, int width) {
    print_foreign(stdout, text, SIZE_MAX);
    const size_t length = strlen(text);
    printf("%*s", length < (size_t)width ? width - (int)length : 0, "");
}

/* What is missing, in brackets; long lists are cut, evidence.json has all of it. */
static void print_partial(const struct evidence *evidence) {
    struct json_value *document = json_read(evidence->text, evidence->text_bytes, NULL);
    const struct json_value *list = json_at(document, "partial");
    printf(" (partial: ");
    for (size_t i = 0; i < json_count_of(list); i++) {
        const char *text = json_text_of(json_item(list, i));
        const char *colon = text != NULL ? strstr(text, ": ") : NULL;
        printf("%s", i > 0 ? ", " : "");
        print_foreign(stdout, text != NULL ? text : "", colon != NULL ? (size_t)(colon - text) : 0);
    }
    printf(")");
    json_free(document);
}

void evidence_print(const struct evidence *evidence, const char *path, bool ended) {
    printf("pack      ");
    print_foreign(stdout, path, SIZE_MAX);
    printf("\n\n");
    printf("stage     device   verdict   passed      seconds\n");
    for (size_t i = 0; i < evidence->row_count; i++) {
        const struct evidence_row *row = &evidence->rows[i];
        const bool pass = row->judgement.gate == GATE_PASS;
        char passed[32];
        snprintf(passed, sizeof passed, "%zu of %zu", row->passed, row->subjects);
        printf("%-9s ", STAGE_NAMES[row->stage]);
        print_column(row->device, 8);
        printf(" %-9s %-11s %7.1f%s", GATE_NAMES[row->judgement.gate],
               row->absent != NULL ? "-" : passed, row->seconds, pass ? "" : "  ");
        print_foreign(stdout, pass ? "" : row->judgement.reason, REASON_WIDTH);
        printf("\n");
    }
    printf("\nverdict   %s", GATE_NAMES[evidence->judgement.gate]);
    if (evidence->judgement.gate != GATE_PASS) {
        printf(": ");
        print_foreign(stdout, evidence->judgement.reason, SIZE_MAX);
    } else if (evidence->partial) {
        print_partial(evidence);
    }
    printf("\n");
    if (!ended) {
        printf("          no %s yet: the run did not end\n", EVIDENCE_FILE);
    }
    printf("units     %zu, stale %zu\n", evidence->unit_count, evidence->stale_count);
    if (evidence->gpu_seconds > 0) {
        printf("GPU       %.1f s", evidence->gpu_seconds);
        if (evidence->gpu_price > 0) {
            printf(", %.4g of the currency of --gpu-hour-price", evidence->gpu_price);
        }
        printf("\n");
    }
    printf("root      %s\n", evidence->root);
}

void evidence_print_json(const struct evidence *evidence, const char *path, bool ended) {
    struct json json = json_begin(stdout);
    json_open(&json, NULL, '{');
    json_text(&json, "pack", path);
    json_text(&json, "verdict", GATE_NAMES[evidence->judgement.gate]);
    json_text(&json, "reason",
              evidence->judgement.gate == GATE_PASS ? NULL : evidence->judgement.reason);
    json_bool(&json, "partial", evidence->partial);
    json_bool(&json, "ended", ended);
    json_int(&json, "units", (int64_t)evidence->unit_count);
    json_int(&json, "stale", (int64_t)evidence->stale_count);
    json_real(&json, "gpu_seconds", evidence->gpu_seconds);
    json_real(&json, "gpu_price", evidence->gpu_price);
    json_open(&json, "rows", '[');
    for (size_t i = 0; i < evidence->row_count; i++) {
        const struct evidence_row *row = &evidence->rows[i];
        const bool pass = row->judgement.gate == GATE_PASS;
        json_open(&json, NULL, '{');
        json_text(&json, "stage", STAGE_NAMES[row->stage]);
        json_text(&json, "device", row->device);
        json_text(&json, "verdict", GATE_NAMES[row->judgement.gate]);
        json_text(&json, "reason", pass ? NULL : row->judgement.reason);
        json_int(&json, "subjects", (int64_t)row->subjects);
        json_int(&json, "passed", (int64_t)row->passed);
        json_real(&json, "seconds", row->seconds);
        json_close(&json);
    }
    json_close(&json);
    json_text(&json, "root", evidence->root);
    json_close(&json);
}

/* ---- of which build -------------------------------------------------------------------------- */

bool current_identity(char library[SHA256_TEXT], char tool[64], attn_error *why) {
    Dl_info info;
    char program[SHA256_TEXT];
    if (dladdr((const void *)(uintptr_t)attn_version, &info) == 0 || info.dli_fname == NULL) {
        return explain(why, "the path of the library is unknown");
    }
    if (!sha256_file(info.dli_fname, library) || !sha256_file("/proc/self/exe", program)) {
        return explain(why, "%s: cannot be read: %s", info.dli_fname, strerror(errno));
    }
    snprintf(tool, 64, "%d.%d.%d %.16s", ATTN_VERSION_MAJOR, ATTN_VERSION_MINOR, ATTN_VERSION_PATCH,
             program);
    return true;
}

bool judge_current(const struct pack *pack, struct judgement *judgement, attn_error *why) {
    const char *planned = json_text_at(pack->plan, "library");
    char library[SHA256_TEXT], tool[64];
    if (!current_identity(library, tool, why)) {
        return false;
    }
    if (strcmp(planned, library) != 0) {
        judge(judgement, GATE_STALE, "it is of library %.12s, and this is %.12s", planned, library);
    }
    return true;
}

/* ---- verifying ------------------------------------------------------------------------------- */

/* The pack is open. */
static int verify(const struct pack *pack, bool current, bool as_json) {
    struct evidence evidence;
    attn_error why = {""};
    bool ended = false;
    int status = EXIT_FAILED_CHECK;
    if (!evidence_make(pack, &evidence, &why) ||
        !evidence_published(pack, &evidence, &ended, &why)) {
        complain("%s", why.text);
    } else if (current && !judge_current(pack, &evidence.judgement, &why)) {
        status = complain("%s", why.text);
    } else {
        if (!ended) {
            judge(&evidence.judgement, GATE_NOT_RUN, "the run did not end");
        }
        (as_json ? evidence_print_json : evidence_print)(&evidence, pack->path, ended);
        status = gate_exit(evidence.judgement.gate);
    }
    evidence_free(&evidence);
    return status;
}

int verb_verify(int argc, char **argv) {
    bool as_json = false, current = false;
    const char *path = NULL;
    struct arg args[] = {
        arg_flag("--current", &current, "STALE, unless the pack is of this library"),
        arg_flag("--json", &as_json, "the same as JSON"),
    };
    struct arg positional = arg_text("PACK", &path, "PACK", "");
    const struct arg_group groups[] = {ARG_GROUP("options", args)};
    const struct command command = {
        .verb = "verify",
        .synopsis = "PACK [options]",
        .notes = "Exit code: that of the pack's verdict (0 PASS, 1 FAIL, 3 NOT_RUN or STALE,\n"
                 "4 INVALID); 1 where the pack was changed; 2 where it is no pack of this schema.\n"
                 "It shows that a pack is consistent, not who made it. Who made it is shown by a\n"
                 "signature of the root hash that it prints (ssh-keygen -Y sign, -Y verify).\n",
        .examples = "  attest verify results/h200\n"
                    "  attest verify --current --json results/h200\n",
        ARG_GROUPS(groups),
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
