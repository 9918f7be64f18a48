/* SPDX-License-Identifier: Apache-2.0
 *
 * peers.c - see report.h: an artifact that the peers runner wrote (python/peers.py --json,
 * schema attn-peers/1) holds our times and those of others on the same problems, taken in turn.
 *
 * Invariant: every figure is worked out from the raw samples in the file, which a bench that is
 * PASS names. None of it is part of a verdict, and the page says so. A row that the runner calls
 * invalid or that makes no sense, an output that was not found right and a side whose kernel was
 * not seen to run are left out, and counted.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/message.h"
#include "cases/shape.h"
#include "report/report.h"

#define PEERS_SCHEMA "attn-peers/1"

enum { SAMPLES_MOST = 4096, ROUNDS_MOST = 256 };
static const struct interval UNKNOWN = {(double)NAN, (double)NAN, (double)NAN};

/* As readers know them. */
static const char *peer_name(const char *key) {
    static const char *const NAMES[][2] = {{"flash", "FlashAttention-2"},
                                           {"cudnn", "cuDNN"},
                                           {"fa3", "FlashAttention-3"},
                                           {"flex", "FlexAttention"},
                                           {"efficient", "PyTorch efficient"}};
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        if (strcmp(NAMES[i][0], key) == 0) {
            return NAMES[i][1];
        }
    }
    return key;
}

/* ---- a row ----------------------------------------------------------------------------------- */

static bool read_shape(const struct json_value *row, attn_problem *problem) {
    const struct json_value *shape = json_at(row, "shape");
    const int type = choice_of(DTYPE_NAMES, json_text_at(row, "dtype"));
    attn_problem_init(problem);
    problem->batch = json_int_at(shape, "batch", 1);
    problem->heads_q = json_int_at(shape, "heads_q", 1);
    problem->heads_kv = json_int_at(shape, "heads_kv", 1);
    problem->seq_q = json_int_at(shape, "seq_q", 1);
    problem->seq_kv = json_int_at(shape, "seq_kv", 1);
    problem->head_dim = problem->head_dim_v = json_int_at(shape, "head_dim", 1);
    if (type < 0 || json_at(shape, "causal") == NULL || problem->batch < 1 || problem->seq_q < 1 ||
        problem->seq_kv < 1) {
        return false;
    }
    problem->dtype = (attn_dtype)type;
    problem->causal = json_true_at(shape, "causal") ? ATTN_CAUSAL_TOP_LEFT : ATTN_CAUSAL_NONE;
    return attn_problem_resolve(problem, problem, NULL) == ATTN_OK;
}

/* Appends the seconds of one side of a round; false: they are no times, or too many. */
static bool read_round(const struct json_value *round, const char *side,
                       double samples[SAMPLES_MOST], size_t *count) {
    const struct json_value *blocks = json_at(round, side);
    for (size_t b = 0; b < json_count_of(blocks); b++) {
        const struct json_value *block = json_item(blocks, b);
        for (size_t i = 0; i < json_count_of(block); i++) {
            const double us = json_number_of(json_item(block, i));
            if (!(us > 0) || *count == SAMPLES_MOST) {
                return false;
            }
            samples[(*count)++] = 1e-6 * us;
        }
    }
    return true;
}

/* The same of all rounds. */
static bool read_rounds(const struct json_value *rounds, const char *side,
                        double samples[SAMPLES_MOST], size_t *count) {
    bool good = true;
    for (size_t r = 0; good && r < json_count_of(rounds); r++) {
        good = read_round(json_item(rounds, r), side, samples, count);
    }
    return good;
}

/* Their time over ours: the median over rounds, in each of which both took turns. */
static struct interval ratio_of(const struct json_value *rounds) {
    double ratios[ROUNDS_MOST], ours[SAMPLES_MOST], theirs[SAMPLES_MOST];
    size_t used = 0;
    for (size_t r = 0; r < json_count_of(rounds) && used < ROUNDS_MOST; r++) {
        const struct json_value *round = json_item(rounds, r);
        size_t own = 0, other = 0;
        if (read_round(round, "ours", ours, &own) && read_round(round, "other", theirs, &other) &&
            own > 0 && other > 0) {
            ratios[used++] = stats_of(theirs, other).p50 / stats_of(ours, own).p50;
        }
    }
    if (used == 0) {
        return UNKNOWN;
    }
    stats_of(ratios, used); /* sorts */
    return stats_quantile(ratios, used, 0.5);
}

/* A side with its samples, which are sorted here. */
static bool add_side(struct pack_report *report, struct report_timing side, double *samples,
                     size_t count, attn_error *why) {
    struct report_timing *grown =
        realloc(report->timings, (report->timing_count + 1) * sizeof *report->timings);
    if (grown == NULL) {
        return explain(why, "out of memory");
    }
    stats_of(samples, count); /* sorts */
    side.p50 = stats_quantile(samples, count, 0.5);
    side.tflops = attn_problem_flops(&side.problem) / side.p50.value * 1e-12;
    report->timings = grown;
    report->timings[report->timing_count++] = side;
    return true;
}

/* Whether the runner saw the kernel run that it says was timed. */
static bool is_proven(const struct json_value *row, const char *side) {
    return json_true_at(json_at(json_at(row, "sides"), side), "proven");
}

/* All sides of a row in one mode, ours first: beside every one of them, and beside itself. */
static bool add_mode(struct pack_report *report, const struct report_timing *common,
                     const struct json_value *row, const struct json_value *sides,
                     attn_error *why) {
    static const char again[] = "ours again"; /* the runner's control */
    double samples[SAMPLES_MOST];
    size_t count = 0;
    bool sound = sides->kind == JSON_OBJECT;
    for (size_t i = 0; sound && i < sides->as.list.count; i++) {
        sound = read_rounds(json_item(sides, i), "ours", samples, &count);
    }
    if (!sound || count == 0) {
        report->peers_left_out++;
        return true;
    }
    bool good = add_side(report, *common, samples, count, why);
    for (size_t i = 0; good && i < sides->as.list.count; i++) {
        const struct json_value *rounds = json_item(sides, i);
        struct report_timing theirs = *common;
        theirs.peer = peer_name(rounds->key);
        theirs.ratio = ratio_of(rounds);
        count = 0;
        if (is_proven(row, rounds->key) && read_rounds(rounds, "other", samples, &count) &&
            count > 0) {
            good = add_side(report, theirs, samples, count, why);
        } else if (strcmp(rounds->key, again) != 0) {
            report->peers_left_out++;
        }
    }
    return good;
}

/* Our output was right before and after, and ours is the kernel that ran. */
static bool is_verified(const struct json_value *row) {
    const struct json_value *verified = json_at(row, "verified");
    return json_true_at(json_at(verified, "before"), "passed") &&
           json_true_at(json_at(verified, "after"), "passed") && is_proven(row, "ours") &&
           json_count_of(json_at(row, "invalid")) == 0;
}

static bool add_row(struct pack_report *report, const char *gpu, const struct json_value *row,
                    attn_error *why) {
    const struct json_value *modes = json_at(row, "pairs");
    attn_problem problem;
    if (json_text_at(row, "reason") != NULL) { /* it was not measured */
        return true;
    }
    if (!read_shape(row, &problem) || json_text_at(row, "name") == NULL ||
        json_text_at(row, "variant") == NULL || !is_verified(row)) {
        report->peers_left_out++;
        return true;
    }
    struct report_timing common = {
        .device = gpu,
        .variant = json_text_at(row, "variant"),
        .text = json_text_at(row, "name"),
        .cache = "rotated",
        .problem = problem,
        .floor = report_floor("cuda", gpu, &problem),
        .ratio = UNKNOWN,
    };
    for (size_t i = 0; modes != NULL && modes->kind == JSON_OBJECT && i < modes->as.list.count;
         i++) {
        common.mode = modes->as.list.items[i].key;
        if (!add_mode(report, &common, row, json_item(modes, i), why)) {
            return false;
        }
    }
    return true;
}

/* ---- the artifacts --------------------------------------------------------------------------- */

/* One that is no JSON of that schema is some other log. */
static bool add_artifact(struct pack_report *report, const char *name, attn_error *why) {
    size_t bytes = 0;
    char *text = pack_read(&report->pack, PACK_ARTIFACTS, name, &bytes, why);
    struct peers_file *grown =
        realloc(report->peers, (report->peer_count + 1) * sizeof *report->peers);
    report->peers = grown != NULL ? grown : report->peers;
    if (text == NULL || grown == NULL) {
        free(text);
        return text == NULL ? false : explain(why, "out of memory");
    }
    struct json_value *document = text[0] == '{' ? json_read(text, bytes, NULL) : NULL;
    const char *gpu = json_text_at(json_at(document, "environment"), "gpu");
    const struct json_value *rows = json_at(document, "rows");
    free(text);
    if (!json_is_at(document, "schema", PEERS_SCHEMA)) {
        json_free(document);
        return true;
    }
    grown[report->peer_count++] = (struct peers_file){name, document};
    bool good = true;
    for (size_t i = 0; good && i < json_count_of(rows); i++) {
        good = add_row(report, gpu != NULL ? gpu : "GPU", json_item(rows, i), why);
    }
    return good;
}

bool report_add_peers(struct pack_report *report, attn_error *why) {
    bool good = true;
    for (size_t i = 0; good && i < report->slot_count; i++) {
        const struct report_slot *slot = &report->slots[i];
        const bool counts = slot->stage == BENCH && slot->gate == GATE_PASS;
        const struct json_value *names = counts ? json_at(slot->unit, "artifacts") : NULL;
        for (size_t k = 0; good && names != NULL && k < json_count_of(names); k++) {
            const char *name = json_text_of(json_item(names, k));
            size_t known = 0;
            while (name != NULL && known < report->peer_count &&
                   strcmp(report->peers[known].name, name) != 0) {
                known++;
            }
            good = name == NULL || known < report->peer_count || add_artifact(report, name, why);
        }
    }
    return good;
}
