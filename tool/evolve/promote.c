/* SPDX-License-Identifier: Apache-2.0
 *
 * promote.c - whether a search has proven a winner, and the winner as a line of
 * src/kernels/tuned.def.
 *
 * The line's class is the targets' head dimension and mask, with as many queries, keys and query
 * rows per SM as the largest of them have. It goes before the first line that chooses for one of
 * the targets today: lines above it keep their shapes.
 *
 * Invariant: tuned.def is the only file that is written, and only with a variant that variants.def
 * declares, for both dtypes.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/message.h"
#include "base/output.h"
#include "cases/shape.h"
#include "evolve/evolve.h"

enum { RUN_DIGITS = 16 };
static const double HELD_OUT_LOSS = 0.99;

/* ---- the decision ---------------------------------------------------------------------------- */

static bool is_proven(const struct search *s, const struct candidate *c) {
    bool proven = c->state == CANDIDATE_TIMED;
    for (int i = 0; i < s->targets.count; i++) {
        proven = proven && ratio_of(c->confirmed, i).low > 1.0;
    }
    return proven;
}

/* The best that is proven and that a line can name; else the best. */
void promote_choose(struct search *s) {
    for (int promotable = 1; promotable >= 0 && s->winner < 0; promotable--) {
        double best = -1;
        for (int i = 0; i < s->finalist_count; i++) {
            const struct candidate *c = s->candidates[s->finalists[i]];
            const double low = ratio_mean(c->confirmed).low;
            if (low > best && (promotable == 0 || (c->source == NULL && is_proven(s, c)))) {
                best = low;
                s->winner = c->number;
            }
        }
    }
    s->proven = s->winner >= 0 && is_proven(s, s->candidates[s->winner]);
}

/* A finalist that is the baseline of every target and was confirmed to be faster than itself; NULL.
 * Then nothing else was proven either. */
static const struct candidate *failed_control(const struct search *s) {
    for (int i = 0; i < s->finalist_count; i++) {
        const struct candidate *c = s->candidates[s->finalists[i]];
        bool same = c->source == NULL;
        for (int j = 0; j < s->targets.count; j++) {
            same = same && strcmp(c->name, s->targets.baselines[j]) == 0;
        }
        if (same && ratio_mean(c->confirmed).low > 1.0) {
            return c;
        }
    }
    return NULL;
}

void promote_decide(struct search *s) {
    const struct candidate *c = s->winner >= 0 ? s->candidates[s->winner] : NULL;
    const struct candidate *control = failed_control(s);
    char shape[96] = "every target";
    if (c == NULL) {
        snprintf(s->decision, sizeof s->decision, "nothing was timed");
        return;
    }
    struct interval ratio = ratio_mean(c->confirmed);
    const char *verdict = s->proven ? "faster than the baseline, confirmed with new seeds"
                                    : "not promoted, not proven faster than the baseline";
    if (s->refuted) {
        verdict = "not promoted, rejected on a held-out shape";
    }
    for (int i = 0; i < s->held_out.count && s->proven && !s->refuted; i++) {
        const struct interval held = ratio_of(s->held, i);
        if (!(held.high >= HELD_OUT_LOSS)) {
            s->refuted = true;
            ratio = held;
            verdict = "not promoted, slower on a held-out shape";
            shape_text(&s->held_out.problems[i], shape, sizeof shape);
        }
    }
    if (s->proven && control != NULL) {
        s->refuted = true;
        c = control;
        ratio = ratio_mean(c->confirmed);
        verdict = "not promoted, the control failed: the baseline was faster than itself";
    }
    snprintf(s->decision, sizeof s->decision, "%s: %s on %s, ratio %.4f (%.4f to %.4f)", verdict,
             c->name, shape, ratio.value, ratio.low, ratio.high);
}

/* ---- the line -------------------------------------------------------------------------------- */

bool promote_line(const struct search *s, const char *run, char *line, size_t size,
                  attn_error *why) {
    if (s->winner < 0 || !s->proven || s->refuted) {
        return explain(why, "%s", s->decision);
    }
    const struct candidate *c = s->candidates[s->winner];
    const struct family *family = &s->families[c->family];
    const int *v = c->knobs.value;
    if (family->head_dim == 0) {
        return explain(why, "tuned.def is for GPUs; in variants.def %s would have tiles of %d x %d",
                       family->name, v[KNOB_BLOCK_Q], v[KNOB_BLOCK_KV]);
    }
    if (strncmp(family->kernel, "fwd_", 4) != 0) {
        return explain(why, "tuned.def is for forward; the place of %s in variants.def is its rank",
                       c->name);
    }
    if (c->source != NULL) {
        return explain(why, "%s is a change of the source, which no line can name", c->name);
    }
    const struct class_limits most = shapes_limits(&s->targets);
    /* it was measured on this GPU and is for no other: sm_90a is Hopper alone */
    const char *arch = strcmp(s->arch, "sm_90") == 0 ? "sm_90a" : family->arch;
    snprintf(
        line, size, "TUNED(%s, %s, %d, %d, %lld, %.0f, %lld, %d, %d, %d, %d, \"evolve-%.*s.json\")",
        family->kernel, arch, family->head_dim, s->targets.problems[0].causal != ATTN_CAUSAL_NONE,
        (long long)most.queries, ceil(most.rows / s->units), (long long)most.keys, v[KNOB_BLOCK_Q],
        v[KNOB_BLOCK_KV], v[KNOB_WARPS], v[KNOB_STAGES], (int)RUN_DIGITS, run);
    return true;
}

static char *read_def(const char *tree, const char *name, char path[EVOLVE_PATH], attn_error *why) {
    size_t bytes = 0;
    snprintf(path, EVOLVE_PATH, "%s/src/kernels/%s", tree, name);
    return file_read(path, &bytes, why);
}

/* Whether variants.def has the winner for both dtypes. */
static bool is_declared(const struct search *s, const char *tree, attn_error *why) {
    const struct candidate *c = s->candidates[s->winner];
    const struct family *family = &s->families[c->family];
    const int *v = c->knobs.value;
    char path[EVOLVE_PATH], line[160];
    char *text = read_def(tree, "variants.def", path, why);
    bool good = text != NULL;
    for (int dtype = ATTN_FP16; dtype <= ATTN_BF16 && good; dtype++) {
        snprintf(line, sizeof line, "CUDA_VARIANT(%s, %s, %s, %d, %d, %d, %d, %d)", family->kernel,
                 family->arch, DTYPE_NAMES[dtype], family->head_dim, v[KNOB_BLOCK_Q],
                 v[KNOB_BLOCK_KV], v[KNOB_WARPS], v[KNOB_STAGES]);
        good = strstr(text, line) != NULL ||
               explain(why, "%s does not declare the winner: first add %s (and its budget)", path,
                       line);
    }
    free(text);
    return good;
}

/* Whether the line, TUNED(...), is the one that chose `variant` for the problem today. */
static bool chose(const char *line, const char *variant, const attn_problem *p, int units) {
    char kernel[32], name[EVOLVE_NAME];
    struct family family = {.name = kernel};
    int causal = 0, queries = 0, rows = 0, keys = 0; /* the class */
    struct knobs knobs;
    int *v = knobs.value, *bq = &v[KNOB_BLOCK_Q];
    if (sscanf(line, "TUNED(%31[a-z0-9_], %*15[a-z0-9_], %d, %d, %d, %d, %d, %d, %d, %d, %d",
               kernel, &family.head_dim, &causal, &queries, &rows, &keys, bq, &v[KNOB_BLOCK_KV],
               &v[KNOB_WARPS], &v[KNOB_STAGES]) != 10) {
        return false;
    }
    knobs_name(&family, p->dtype, &knobs, name);
    const double most = (double)abs(rows) * units; /* below 0 it counts CTAs */
    const double all =
        rows < 0 ? (double)(p->batch * p->heads_q) * ceil((double)p->seq_q / *bq) : shape_rows(p);
    return strcmp(name, variant) == 0 &&
           (causal < 0 || causal == (p->causal != ATTN_CAUSAL_NONE)) &&
           (queries == 0 || p->seq_q <= queries) && (rows == 0 || all <= most) &&
           (keys == 0 || p->seq_kv <= keys);
}

/* Where the new line goes: before the first that chose for a target, else at the end. */
static size_t place_in(const struct search *s, const char *text) {
    for (const char *line = text; *line != '\0';) {
        for (int i = 0; i < s->targets.count; i++) {
            if (chose(line, s->targets.baselines[i], &s->targets.problems[i], s->units)) {
                return (size_t)(line - text);
            }
        }
        line += strcspn(line, "\n");
        line += *line == '\n';
    }
    return strlen(text);
}

bool promote_write(const struct search *s, const struct journal *journal, const char *tree,
                   attn_error *why) {
    char line[256], path[EVOLVE_PATH], hash[SHA256_TEXT];
    journal_hash(journal, hash);
    if (!promote_line(s, hash, line, sizeof line, why) || !is_declared(s, tree, why)) {
        return false;
    }
    char *text = read_def(tree, "tuned.def", path, why);
    struct output output;
    bool good = text != NULL &&
                (strstr(text, line) == NULL || explain(why, "%s has that line already", path));
    if (good) {
        const size_t place = place_in(s, text);
        good = output_open(&output, path, why) &&
               fprintf(output.file, "%.*s%s\n%s", (int)place, text, line, text + place) > 0;
        good = output_end(&output, path, good, why);
    }
    free(text);
    return good;
}
