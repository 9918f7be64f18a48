/* SPDX-License-Identifier: Apache-2.0
 *
 * verb.c - `attest compare`: two evidence packs side by side, or a pack against the best timings
 * that were proven before it.
 *
 * Invariant: a pack is computed anew before it is believed, as `attest verify` does. The ratchet
 * file changes only with --update, as a whole, and only with exit code 0.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/args.h"
#include "base/message.h"
#include "cli/verbs.h"
#include "compare/compare.h"

struct request {
    struct arg_list packs;
    const char *ratchet;
    double margin; /* percent */
    bool update, loosen, as_json;
};

/* A pack, and what is compared of it. */
struct side {
    struct pack_report report;
    struct timings timings;
};

static bool side_open(struct side *side, const char *path, attn_error *why) {
    bool changed;
    side->timings = (struct timings){NULL, 0};
    return report_open(&side->report, path, &changed, why) &&
           timings_of(&side->report, &side->timings, why);
}

static void side_close(struct side *side) {
    timings_free(&side->timings);
    report_close(&side->report);
}

/* ---- timings --------------------------------------------------------------------------------- */

static double us_of(const struct timing *timing) {
    return timing != NULL ? timing->us.value : (double)NAN;
}

static const char *key_of(const struct match *match) {
    return match->new != NULL ? match->new->key : match->old->key;
}

static void print_match(const struct match *match) {
    printf("%-8s %10.2f -> %10.2f us  %.3f [%.3f, %.3f]  ", CHANGE_NAMES[match->change],
           us_of(match->old), us_of(match->new), match->ratio.value, match->ratio.low,
           match->ratio.high);
    print_foreign(stdout, key_of(match), SIZE_MAX);
    printf("\n");
}

/* What asks for something to be done; --json has all of them. */
static void print_matches(const struct matches *matches, double margin) {
    const size_t *counts = matches->counts;
    for (enum change change = SLOWER; change <= FASTER; change++) {
        for (size_t i = 0; i < matches->count; i++) {
            if (matches->items[i].change == change) {
                print_match(&matches->items[i]);
            }
        }
    }
    printf("timings   %zu slower, %zu faster, %zu without a difference beyond noise and %g %%, %zu "
           "unknown, %zu missing, %zu first, %zu of other hardware\n",
           counts[SLOWER], counts[FASTER], counts[SAME], margin, counts[UNKNOWN], counts[MISSING],
           counts[FIRST], counts[ELSEWHERE]);
}

static void matches_json(struct json *json, const struct matches *matches, double margin) {
    json_real(json, "margin_percent", margin);
    json_open(json, "timings", '[');
    for (size_t i = 0; i < matches->count; i++) {
        const struct match *match = &matches->items[i];
        json_open(json, NULL, '{');
        json_text(json, "timing", key_of(match));
        json_text(json, "change", CHANGE_NAMES[match->change]);
        json_real(json, "old_us", us_of(match->old));
        json_real(json, "new_us", us_of(match->new));
        json_real(json, "ratio", match->ratio.value);
        json_real(json, "low", match->ratio.low);
        json_real(json, "high", match->ratio.high);
        json_close(json);
    }
    json_close(json);
    json_open(json, "counts", '{');
    for (int change = 0; change < CHANGES; change++) {
        json_int(json, CHANGE_NAMES[change], (int64_t)matches->counts[change]);
    }
    json_close(json);
}

/* ---- verdicts -------------------------------------------------------------------------------- */

/* That of a slot in another pack: where it is not, that of its row if that did not PASS. False: the
 * pack has neither. */
static bool find_verdict(const struct pack_report *report, const struct report_slot *slot,
                         enum gate *gate) {
    const struct report_slot *own = report_find(report, slot->stage, slot->device, slot->variant);
    const struct evidence_row *row = report_row(report, slot->stage, slot->device);
    *gate = own != NULL ? own->gate : row != NULL ? row->judgement.gate : GATE_NOT_RUN;
    return own != NULL || (row != NULL && *gate != GATE_PASS);
}

static void say_verdict(const struct report_slot *slot, enum gate gate, struct json *json) {
    if (json != NULL) {
        json_open(json, NULL, '{');
        json_text(json, "stage", STAGE_NAMES[slot->stage]);
        json_text(json, "device", slot->device);
        json_text(json, "variant", slot->variant);
        json_text(json, "old", GATE_NAMES[slot->gate]);
        json_text(json, "new", GATE_NAMES[gate]);
        json_close(json);
        return;
    }
    printf("%-8s %s -> %s  %s ", slot->gate == GATE_PASS ? "LOST" : "CHANGED",
           GATE_NAMES[slot->gate], GATE_NAMES[gate], STAGE_NAMES[slot->stage]);
    print_foreign(stdout, slot->device, SIZE_MAX);
    printf(" ");
    print_foreign(stdout, slot->variant, SIZE_MAX);
    printf("\n");
}

/* Says those that changed, in JSON unless that is NULL; returns how many were PASS. */
static size_t say_verdicts(const struct pack_report *a, const struct pack_report *b,
                           struct json *json) {
    size_t lost = 0, gained = 0, alike = 0, absent = 0;
    for (size_t i = 0; i < a->slot_count; i++) {
        const struct report_slot *slot = &a->slots[i];
        enum gate gate;
        if (!find_verdict(b, slot, &gate)) {
            absent++;
        } else if (gate == slot->gate) {
            alike++;
        } else {
            lost += slot->gate == GATE_PASS;
            gained += gate == GATE_PASS;
            say_verdict(slot, gate, json);
        }
    }
    if (json == NULL) {
        printf("verdicts  %zu lost a PASS, %zu gained one, %zu are the same, %zu not requested; "
               "pack %s -> %s\n",
               lost, gained, alike, absent, GATE_NAMES[a->evidence.judgement.gate],
               GATE_NAMES[b->evidence.judgement.gate]);
    }
    return lost;
}

/* ---- what follows ---------------------------------------------------------------------------- */

/* The exit code, and the sentence if it is not 0. */
static int judge_all(const struct request *request, const size_t counts[CHANGES], size_t lost) {
    const bool ratchet = request->ratchet != NULL;
    const char *than = ratchet ? request->ratchet : request->packs.items[0];
    if (counts[UNKNOWN] > 0) {
        complain("compare: %zu timings have no ratio that is a number", counts[UNKNOWN]);
        return EXIT_INVALID;
    }
    if ((counts[SLOWER] > 0 || lost > 0) && !request->loosen) {
        complain("compare: %zu slower than in %s by more than %g %%, %zu lost a PASS",
                 counts[SLOWER], than, request->margin, lost);
        return EXIT_FAILED_CHECK;
    }
    if (ratchet && counts[MISSING] > 0 && !request->loosen) {
        complain("compare: %zu timings of %s were not measured again on this hardware",
                 counts[MISSING], than);
        return EXIT_NOT_RUN;
    }
    if (!ratchet && counts[FASTER] + counts[SAME] == 0) {
        complain("compare: no timing of the same hardware, device, problem, mode, cache and "
                 "variant in both packs");
        return EXIT_NOT_RUN;
    }
    return EXIT_DONE;
}

/* a: NULL with a ratchet, which is written here. */
static int conclude(const struct request *request, const struct side *a, const struct side *b,
                    const struct matches *matches) {
    struct json json = json_begin(stdout);
    size_t lost = 0;
    if (request->as_json) {
        json_open(&json, NULL, '{');
        json_open(&json, "verdicts", '[');
    }
    if (a != NULL) {
        lost = say_verdicts(&a->report, &b->report, request->as_json ? &json : NULL);
    }
    attn_error why = {""};
    int status = judge_all(request, matches->counts, lost);
    if (request->update && status == EXIT_DONE &&
        !ratchet_write(request->ratchet, matches, request->loosen, &why)) {
        status = complain("%s", why.text);
    }
    if (request->as_json) {
        json_close(&json);
        json_int(&json, "lost", (int64_t)lost);
        json_bool(&json, "updated", request->update && status == EXIT_DONE);
        matches_json(&json, matches, request->margin);
        json_close(&json);
    } else {
        print_matches(matches, request->margin);
    }
    return status;
}

/* Whether the pack's timings may be held against others at all; else complained. */
static int may_ratchet(const struct side *side) {
    const struct judgement *verdict = &side->report.evidence.judgement;
    if (verdict->gate != GATE_PASS) {
        complain("%s: %s (%.200s), expected PASS", side->report.pack.path,
                 GATE_NAMES[verdict->gate], verdict->reason);
        return gate_exit(verdict->gate);
    }
    for (size_t i = 0; i < side->timings.count; i++) {
        if (strncmp(side->timings.items[i].key, "? | ", 4) == 0) {
            complain("%s: its plan names no hardware", side->report.pack.path);
            return EXIT_NOT_RUN;
        }
    }
    if (side->timings.count == 0) {
        complain("%s: no timings", side->report.pack.path);
        return EXIT_NOT_RUN;
    }
    return EXIT_DONE;
}

static int compare(const struct request *request) {
    struct side a = {.timings = {NULL, 0}}, b = {.timings = {NULL, 0}};
    struct timings best = {NULL, 0};
    struct matches matches = {NULL, 0, {0}};
    attn_error why = {""};
    const char *const *paths = request->packs.items;
    const bool ratchet = request->ratchet != NULL;
    int status = EXIT_BAD_INPUT;
    if (ratchet ? !side_open(&b, paths[0], &why) ||
                      !ratchet_read(request->ratchet, request->update, &best, &why)
                : !side_open(&a, paths[0], &why) || !side_open(&b, paths[1], &why)) {
        complain("%s", why.text);
    } else {
        status = ratchet ? may_ratchet(&b) : EXIT_DONE;
        if (status == EXIT_DONE) {
            match_timings(ratchet ? &best : &a.timings, &b.timings, request->margin / 100,
                          &matches);
            status = conclude(request, ratchet ? NULL : &a, &b, &matches);
        }
    }
    free(matches.items);
    timings_free(&best);
    side_close(&a);
    side_close(&b);
    return status;
}

int verb_compare(int argc, char **argv) {
    struct request request = {.margin = 1};
    struct arg args[] = {
        arg_text("--ratchet", &request.ratchet, "FILE", "hold PACK against the best in FILE"),
        arg_flag("--update", &request.update, "enter in FILE what is faster beyond noise, or new"),
        arg_flag("--loosen", &request.loosen, "with --update: also what is slower or missing"),
        arg_real("--margin", &request.margin, "percent that count as the same (1)"),
        arg_flag("--json", &request.as_json, "the same as JSON"),
    };
    struct arg positional = arg_list("PACK", &request.packs, "PACK", "");
    const struct arg_group groups[] = {ARG_GROUP("options", args)};
    const struct command command = {
        .verb = "compare",
        .synopsis = "OLD NEW | PACK --ratchet FILE [--update [--loosen]]",
        .notes =
            "Exit code: 0 no timing is slower beyond noise and no PASS was lost; 1 one is, or\n"
            "the ratchet's pack is FAIL; 2 usage, no pack, a changed one, or no ratchet file;\n"
            "3 nothing in common, a timing of the ratchet is missing, or its pack is not PASS;\n"
            "4 a ratio is not a number. FILE is written with exit code 0 only.\n",
        .examples = "  attest compare results/h200 pack\n"
                    "  attest compare pack --ratchet results/ratchet.json --update\n",
        ARG_GROUPS(groups),
        .positional = &positional,
    };
    const enum args_result parsed = args_parse(&command, argc, argv);
    if (parsed != ARGS_RUN) {
        return parsed == ARGS_HELP ? EXIT_DONE : EXIT_BAD_INPUT;
    }
    const size_t expected = request.ratchet != NULL ? 1 : 2;
    if (request.packs.count != expected) {
        return complain("compare: %zu packs, expected %zu%s", request.packs.count, expected,
                        expected == 1 ? " with --ratchet" : "");
    }
    if ((request.update && request.ratchet == NULL) || (request.loosen && !request.update)) {
        return complain("compare: --update needs --ratchet, and --loosen needs --update");
    }
    if (!(request.margin >= 0 && request.margin <= 50)) {
        return complain("compare: --margin: %g is out of range, expected 0 to 50", request.margin);
    }
    return compare(&request);
}
