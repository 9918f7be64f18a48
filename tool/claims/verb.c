/* SPDX-License-Identifier: Apache-2.0
 *
 * verb.c - `attest claims`: whether the figures of a Markdown file are those of the results.
 *
 * Invariant: exit code 0 only if every figure is backed, and there are as many as were asked for.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/args.h"
#include "base/file.h"
#include "base/json.h"
#include "base/message.h"
#include "base/output.h"
#include "claims/claims.h"
#include "cli/verbs.h"

struct request {
    const char *file, *results;
    int64_t at_least;
    bool as_json, all, update;
};

static void print_text(const struct request *request, const struct claims *claims) {
    for (size_t i = 0; i < claims->count; i++) {
        const struct claim *claim = &claims->items[i];
        if (claim->kind == CLAIM_BACKED && !request->all) {
            continue;
        }
        printf("%s:%zu: %s%s%s", request->file, claim->line, CLAIM_NAMES[claim->kind],
               claim->shown[0] != '\0' ? ": " : "", claim->shown);
        printf("%s%s%s%s\n", claim->backing[0] != '\0' ? ": " : "", claim->backing,
               claim->reason[0] != '\0' ? ": " : "", claim->reason);
    }
    printf("%zu figures backed, %zu wrong, %zu without a mark, %zu blocks exempt\n",
           claims->counts[CLAIM_BACKED], claims->counts[CLAIM_WRONG],
           claims->counts[CLAIM_UNMARKED], claims->counts[CLAIM_EXEMPT]);
}

static void print_json(const struct claims *claims) {
    struct json json = json_begin(stdout);
    json_open(&json, NULL, '{');
    json_open(&json, "claims", '[');
    for (size_t i = 0; i < claims->count; i++) {
        const struct claim *claim = &claims->items[i];
        json_open(&json, NULL, '{');
        json_text(&json, "verdict", CLAIM_NAMES[claim->kind]);
        json_int(&json, "line", (int64_t)claim->line);
        json_text(&json, "shown", claim->shown);
        json_text(&json, "backing", claim->backing[0] != '\0' ? claim->backing : NULL);
        json_real(&json, "value", claim->value);
        json_text(&json, "reason", claim->reason[0] != '\0' ? claim->reason : NULL);
        json_close(&json);
    }
    json_close(&json);
    json_int(&json, "backed", (int64_t)claims->counts[CLAIM_BACKED]);
    json_int(&json, "wrong", (int64_t)claims->counts[CLAIM_WRONG]);
    json_int(&json, "unmarked", (int64_t)claims->counts[CLAIM_UNMARKED]);
    json_int(&json, "exempt", (int64_t)claims->counts[CLAIM_EXEMPT]);
    json_close(&json);
}

static int judge_claims(const struct request *request, const struct claims *claims) {
    const size_t wrong = claims->counts[CLAIM_WRONG], unmarked = claims->counts[CLAIM_UNMARKED];
    if (wrong + unmarked > 0) {
        size_t first = 0;
        while (claims->items[first].kind != CLAIM_WRONG &&
               claims->items[first].kind != CLAIM_UNMARKED) {
            first++;
        }
        complain("%s:%zu: %zu figures are wrong and %zu have no mark; this is the first",
                 request->file, claims->items[first].line, wrong, unmarked);
        return EXIT_FAILED_CHECK;
    }
    if ((int64_t)claims->counts[CLAIM_BACKED] < request->at_least) {
        complain("%s: %zu figures stand between marks, expected at least %" PRId64, request->file,
                 claims->counts[CLAIM_BACKED], request->at_least);
        return EXIT_FAILED_CHECK;
    }
    return EXIT_DONE;
}

/* The folder `results` beside the file, for free(). */
static char *default_results(const char *file) {
    const char *slash = strrchr(file, '/');
    const int length = slash != NULL ? (int)(slash - file) + 1 : 0;
    char *path = malloc((size_t)length + sizeof "results");
    if (path != NULL) {
        sprintf(path, "%.*sresults", length, file);
    }
    return path;
}

/* Whether it is only the number that is wrong. */
static bool is_outdated(const struct claim *claim) {
    return claim->kind == CLAIM_WRONG && claim->bytes > 0 && isfinite(claim->value);
}

/* Writes the text anew with the numbers that the results give, in the digits shown. A claim stands
 * behind the one before it in the text but for tables with several marks: hence the search. */
static void write_updated(FILE *out, const char *text, size_t bytes, const struct claims *claims) {
    size_t at = 0;
    while (at < bytes) {
        const struct claim *next = NULL;
        for (size_t i = 0; i < claims->count; i++) {
            const struct claim *claim = &claims->items[i];
            if (is_outdated(claim) && claim->place >= at &&
                (next == NULL || claim->place < next->place)) {
                next = claim;
            }
        }
        const size_t end = next != NULL ? next->place : bytes;
        fwrite(text + at, 1, end - at, out);
        at = end;
        if (next != NULL) {
            fprintf(out, "%.*f", next->decimals, next->value);
            at += next->bytes;
        }
    }
}

static bool update(const char *path, const char *text, size_t bytes, const struct claims *claims,
                   attn_error *why) {
    struct output output;
    bool good = output_open(&output, path, why);
    if (good) {
        write_updated(output.file, text, bytes, claims);
        good = output_finish(&output, why) && output_publish(&output, why);
    }
    output_discard(&output);
    return good;
}

static size_t count_outdated(const struct request *request, const struct claims *claims) {
    size_t count = 0;
    for (size_t i = 0; i < claims->count; i++) {
        const struct claim *claim = &claims->items[i];
        if (is_outdated(claim)) {
            count++;
            if (!request->as_json) {
                printf("%s:%zu: UPDATED: %s -> %.*f\n", request->file, claim->line, claim->shown,
                       claim->decimals, claim->value);
            }
        }
    }
    return count;
}

/* With --update the numbers are put in place first, and then the file is checked as it is. */
static int check(const struct request *request) {
    size_t bytes = 0;
    attn_error why = {""};
    char *text = file_read(request->file, &bytes, &why);
    char *beside = default_results(request->file);
    struct claims_sources sources = {request->results != NULL ? request->results : beside, NULL, 0};
    struct claims claims = {0};
    int status = EXIT_DONE;
    bool again = false;
    if (text == NULL || sources.folder == NULL ||
        !claims_read(text, bytes, &sources, &claims, &why)) {
        status = complain("%s", why.text[0] != '\0' ? why.text : "claims: out of memory");
    } else if (request->update && count_outdated(request, &claims) > 0) {
        again = update(request->file, text, bytes, &claims, &why);
        status = again ? EXIT_DONE : complain("%s: %s", request->file, why.text);
    } else {
        if (request->as_json) {
            print_json(&claims);
        } else {
            print_text(request, &claims);
        }
        status = judge_claims(request, &claims);
    }
    claims_free(&claims);
    claims_sources_free(&sources);
    free(beside);
    free(text);
    struct request rest = *request;
    rest.update = false;
    return again ? check(&rest) : status;
}

int verb_claims(int argc, char **argv) {
    struct request request = {0};
    struct arg args[] = {
        arg_text("--results", &request.results, "DIR", "where the results are (beside FILE)"),
        arg_int("--at-least", &request.at_least, 0, 1000000, "figures that must be backed (0)"),
        arg_flag("--update", &request.update,
                 "put the numbers of the results in place of those that differ"),
        arg_flag("--all", &request.all, "show those that are backed, too"),
        arg_flag("--json", &request.as_json, "the same as JSON"),
    };
    struct arg positional = arg_text("FILE", &request.file, "FILE", "");
    const struct arg_group groups[] = {{"options", args, sizeof args / sizeof *args}};
    const struct command command = {
        .verb = "claims",
        .summary = "hold the figures of a Markdown file against the results behind them",
        .synopsis = "FILE [options]",
        .notes = "A figure is backed by a mark around it, or above its table (docs/claims.md):\n"
                 "  <!-- result h200.json#rows[0].ratio -->1.89<!-- /result -->\n"
                 "  <!-- results h200.json#rows[name=$1]; $2 = us; $3 = min(a, b) / us -->\n"
                 "Any other number in us, ms, ns, FLOP/s or times (x) fails, in code as well.\n"
                 "Exit code: 0 all are backed, 1 one is not, 2 usage or no such file.\n",
        .examples = "  attest claims README.md --at-least 12\n"
                    "  attest claims docs/kernels.md --results results --json\n",
        .groups = groups,
        .group_count = 1,
        .positional = &positional,
    };
    const enum args_result parsed = args_parse(&command, argc, argv);
    if (parsed != ARGS_RUN) {
        return parsed == ARGS_HELP ? EXIT_DONE : EXIT_BAD_INPUT;
    }
    return check(&request);
}
