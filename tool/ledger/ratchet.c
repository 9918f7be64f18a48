/* SPDX-License-Identifier: Apache-2.0
 *
 * ratchet.c - see ratchet.h.
 */
#include "ledger/ratchet.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/message.h"
#include "ledger/compare.h"
#include "ledger/print.h"
#include "pack/verdict.h"

enum outcome { STAYS, UNSURE, FIRST, WAITS, MOVED, REGRESSED, MISSING, ABSURD, OUTCOMES };
static const char *const OUTCOME_NAMES[OUTCOMES] = {"STAYS", "AMBIGUOUS", "FIRST",   "FASTER",
                                                    "MOVED", "REGRESSED", "MISSING", "NO_RATIO"};

struct finding {
    struct comparison comparison;
    enum outcome outcome;
};

/* What a ratchet works with. */
struct work {
    const struct ratchet *request;
    struct ledger *ledger;
    const struct ledger_timings *baselines, *timings;
    struct ledger_timings *others; /* of other packs of the same build */
    size_t other_count;
    struct finding *findings;
    size_t count, outcomes[OUTCOMES];
};

/* ---- findings -------------------------------------------------------------------------------- */

/* Not so where a median is 0 or there are too few samples: nothing follows, not even that it is
 * the same. */
static bool has_ratio(const struct comparison *comparison) {
    const struct interval ratio = comparison->ratio;
    return isfinite(ratio.value) && isfinite(ratio.low) && isfinite(ratio.high) && ratio.low > 0;
}

static enum outcome outcome_of(const struct comparison *comparison) {
    if (comparison->old == NULL) {
        return FIRST;
    }
    if (comparison->new == NULL) {
        return MISSING;
    }
    if (!has_ratio(comparison)) {
        return ABSURD;
    }
    switch (comparison->change) {
    case FASTER: return comparison->sure ? WAITS : UNSURE;
    case SLOWER: return comparison->sure ? REGRESSED : UNSURE;
    case SAME_SPEED: return STAYS;
    default: return UNSURE;
    }
}

/* The same subject and image, measured another time: samples that are the same are the same run. */
static bool is_another(const struct ledger_timing *a, const struct ledger_timing *b) {
    const bool same_image = a->image != NULL && b->image != NULL ? strcmp(a->image, b->image) == 0
                                                                 : a->image == b->image;
    return compare_keys(a, b) == 0 && same_image && strcmp(a->ns, b->ns) != 0;
}

/* A run may be lucky as a whole, which no interval of its samples shows. So a second one of the
 * same build must be faster than the baseline, too; of all that are, the slowest becomes the
 * next. */
static void confirm(const struct work *work, struct finding *finding, size_t among) {
    const struct comparison *first = &finding->comparison;
    struct comparison slowest = *first;
    for (size_t i = 0; i < work->other_count; i++) {
        for (size_t j = 0; j < work->others[i].count; j++) {
            const struct ledger_timing *other = &work->others[i].items[j];
            if (!is_another(first->new, other)) {
                continue;
            }
            const struct comparison second =
                compare_timings(first->old, other, among, work->request->margin / 100);
            if (second.sure && second.change == FASTER) {
                finding->outcome = MOVED;
                slowest = other->median > slowest.new->median ? second : slowest;
            }
        }
    }
    finding->comparison = slowest;
}

static bool find(struct work *work) {
    size_t both = 0;
    struct comparison *all = compare_all(work->baselines, work->timings,
                                         work->request->margin / 100, &work->count, &both);
    work->findings = all != NULL ? calloc(work->count + 1, sizeof *work->findings) : NULL;
    for (size_t i = 0; work->findings != NULL && i < work->count; i++) {
        struct finding *finding = &work->findings[i];
        *finding = (struct finding){all[i], outcome_of(&all[i])};
        if (finding->outcome == WAITS) {
            confirm(work, finding, both);
        }
        work->outcomes[finding->outcome]++;
    }
    free(all);
    return work->findings != NULL;
}

/* Whether a device of the pack is the baseline's. */
static bool is_measured(const struct ledger_timings *timings,
                        const struct ledger_timing *baseline) {
    for (size_t i = 0; i < timings->count; i++) {
        if (strcmp(timings->items[i].key[KEY_DEVICE], baseline->key[KEY_DEVICE]) == 0 &&
            strcmp(timings->items[i].key[KEY_HARDWARE], baseline->key[KEY_HARDWARE]) == 0) {
            return true;
        }
    }
    return false;
}

/* Another machine's baselines have no part in it. They go to the end, and are not counted. */
static size_t leave_out_others(struct ledger_timings *baselines,
                               const struct ledger_timings *timings) {
    size_t kept = 0;
    for (size_t i = 0; i < baselines->count; i++) {
        if (is_measured(timings, &baselines->items[i])) {
            const struct ledger_timing own = baselines->items[i];
            /* Keeps the order of those that stay. */
            memmove(&baselines->items[kept + 1], &baselines->items[kept], (i - kept) * sizeof own);
            baselines->items[kept++] = own;
        }
    }
    return kept;
}

/* ---- what is said and done ------------------------------------------------------------------- */

static void print_text(const struct work *work, bool moves) {
    /* What asks for something to be done comes first. */
    static const enum outcome ORDER[OUTCOMES] = {ABSURD, REGRESSED, MISSING, MOVED,
                                                 WAITS,  FIRST,     UNSURE,  STAYS};
    const size_t *outcomes = work->outcomes;
    const bool brief = ledger_print_hardware(work->baselines, work->timings);
    for (int k = 0; k < OUTCOMES; k++) {
        for (size_t i = 0; i < work->count; i++) {
            if (work->findings[i].outcome == ORDER[k]) {
                ledger_print_comparison(&work->findings[i].comparison, OUTCOME_NAMES[ORDER[k]],
                                        brief);
            }
        }
    }
    printf("%zu faster and %zu first: %s; %zu stay, %zu ambiguous, %zu regressed, %zu missing, "
           "%zu without a ratio\n",
           outcomes[MOVED], outcomes[FIRST],
           moves                    ? "moved"
           : work->request->dry_run ? "not moved (--dry-run)"
                                    : "not moved",
           outcomes[STAYS], outcomes[UNSURE], outcomes[REGRESSED], outcomes[MISSING],
           outcomes[ABSURD]);
    if (outcomes[WAITS] > 0) {
        printf("%zu faster once: a second pack of the same build would move them\n",
               outcomes[WAITS]);
    }
}

static void print_json(const struct work *work, bool moves) {
    struct json json = json_begin(stdout);
    json_open(&json, NULL, '{');
    json_real(&json, "margin_percent", work->request->margin);
    json_bool(&json, "moved", moves);
    json_open(&json, "rows", '[');
    for (size_t i = 0; i < work->count; i++) {
        ledger_comparison_json(&json, &work->findings[i].comparison,
                               OUTCOME_NAMES[work->findings[i].outcome]);
    }
    json_close(&json);
    json_open(&json, "counts", '{');
    for (int i = 0; i < OUTCOMES; i++) {
        json_int(&json, OUTCOME_NAMES[i], (int64_t)work->outcomes[i]);
    }
    json_close(&json);
    json_close(&json);
}

/* What became the baseline, in one transaction. */
static bool move_all(const struct work *work, attn_error *why) {
    struct ledger_move *moves = calloc(work->count + 1, sizeof *moves);
    size_t used = 0;
    if (moves == NULL) {
        return explain(why, "ledger: out of memory");
    }
    for (size_t i = 0; i < work->count; i++) {
        const struct comparison *comparison = &work->findings[i].comparison;
        const enum outcome outcome = work->findings[i].outcome;
        if (outcome == FIRST || outcome == MOVED) {
            const bool had = comparison->old != NULL;
            moves[used++] = (struct ledger_move){
                .from = had ? comparison->old->id : 0,
                .to = comparison->new->id,
                .ratio = had ? comparison->ratio.value : (double)NAN,
                .low = had ? comparison->ratio.low : (double)NAN,
                .high = had ? comparison->ratio.high : (double)NAN,
            };
        }
    }
    const bool good = used == 0 || ledger_move(work->ledger, moves, used, why);
    free(moves);
    return good;
}

static int judge_findings(const struct work *work) {
    if (work->outcomes[ABSURD] > 0) {
        complain("ledger: %zu have no ratio to their baseline that is a number; no baseline was "
                 "moved",
                 work->outcomes[ABSURD]);
        return EXIT_INVALID;
    }
    if (work->outcomes[REGRESSED] > 0) {
        complain("ledger: %zu slower than their baseline by more than %g %%; no baseline was moved",
                 work->outcomes[REGRESSED], work->request->margin);
        return EXIT_FAILED_CHECK;
    }
    if (work->outcomes[MISSING] > 0 && !work->request->allow_missing) {
        complain("ledger: %zu baselines of this hardware were not measured again (--allow-missing "
                 "lets that be); no baseline was moved",
                 work->outcomes[MISSING]);
        return EXIT_NOT_RUN;
    }
    return EXIT_DONE;
}

static int judge_and_move(const struct work *work) {
    attn_error why = {""};
    const int status = judge_findings(work);
    const bool moves = status == EXIT_DONE && !work->request->dry_run;
    if (moves && !move_all(work, &why)) {
        return complain("%s", why.text);
    }
    if (work->request->as_json) {
        print_json(work, moves);
    } else {
        print_text(work, moves);
    }
    return status;
}

/* ---- what it looks at ------------------------------------------------------------------------ */

static bool is_passed(const struct ledger_pack *pack) {
    return strcmp(pack->verdict, GATE_NAMES[GATE_PASS]) == 0;
}

/* Whether its figures may be baselines at all; else complained. */
static int may_ratchet(const struct ledger_pack *pack, const struct ledger_timings *timings) {
    if (!is_passed(pack)) {
        complain("ledger: pack %lld is %s (%s), expected PASS", (long long)pack->id, pack->verdict,
                 pack->reason != NULL ? pack->reason : "");
        return strcmp(pack->verdict, GATE_NAMES[GATE_FAIL]) == 0 ? EXIT_FAILED_CHECK : EXIT_NOT_RUN;
    }
    if (timings->count == 0) {
        complain("ledger: pack %lld has no timings", (long long)pack->id);
        return EXIT_NOT_RUN;
    }
    for (size_t i = 0; i < timings->count; i++) {
        if (timings->items[i].key[KEY_HARDWARE][0] == '\0') {
            complain("ledger: pack %lld does not say what hardware %s is", (long long)pack->id,
                     timings->items[i].key[KEY_DEVICE]);
            return EXIT_NOT_RUN;
        }
    }
    return EXIT_DONE;
}

/* The timings of other packs of the same library. */
static bool read_others(struct work *work, const struct ledger_pack *pack, attn_error *why) {
    struct ledger_packs packs;
    bool good = ledger_packs(work->ledger, &packs, why);
    work->others = good ? calloc(packs.count + 1, sizeof *work->others) : NULL;
    good = work->others != NULL || (good && explain(why, "ledger: out of memory"));
    for (size_t i = 0; good && i < packs.count; i++) {
        const struct ledger_pack *other = &packs.items[i];
        if (other->id != pack->id && is_passed(other) &&
            strcmp(other->library, pack->library) == 0) {
            good = ledger_timings(work->ledger, other->id, &work->others[work->other_count++], why);
        }
    }
    ledger_packs_free(&packs);
    return good;
}

int ledger_ratchet(struct ledger *ledger, const struct ledger_pack *pack,
                   const struct ratchet *request) {
    struct work work = {.request = request, .ledger = ledger};
    struct ledger_timings timings, baselines = {0};
    attn_error why = {""};
    int status = EXIT_DONE;
    if (!ledger_timings(ledger, pack->id, &timings, &why) ||
        !ledger_baselines(ledger, &baselines, &why) || !read_others(&work, pack, &why)) {
        status = complain("%s", why.text);
    } else {
        status = may_ratchet(pack, &timings);
    }
    if (status == EXIT_DONE) {
        const struct ledger_timings own = {baselines.items, leave_out_others(&baselines, &timings)};
        work.baselines = &own;
        work.timings = &timings;
        status = find(&work) ? judge_and_move(&work) : complain("ledger: out of memory");
    }
    for (size_t i = 0; i < work.other_count; i++) {
        ledger_timings_free(&work.others[i]);
    }
    free(work.others);
    free(work.findings);
    ledger_timings_free(&timings);
    ledger_timings_free(&baselines);
    return status;
}
