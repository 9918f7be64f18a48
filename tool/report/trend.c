/* SPDX-License-Identifier: Apache-2.0
 *
 * trend.c - see trend.h.
 */
#include "report/trend.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/message.h"
#include "ledger/compare.h"
#include "report/html.h"
#include "report/report.h"
#include "report/svg.h"

enum { GROUPS_MOST = 12, POINTS_MOST = 400, OTHERS_MOST = 4000, LABEL = 200, ROWS_MOST = 200 };
static const double MARGIN = 0.01;

bool trend_open(struct trend *trend, const char *path, attn_error *why) {
    *trend = (struct trend){.path = path};
    struct ledger *ledger = ledger_open(path, LEDGER_READ, why);
    bool good = ledger != NULL && ledger_packs(ledger, &trend->packs, why) &&
                ledger_baselines(ledger, &trend->baselines, why);
    if (good) {
        snprintf(trend->head, sizeof trend->head, "%s", ledger_head(ledger));
        trend->timings = calloc(trend->packs.count + 1, sizeof *trend->timings);
        good = trend->timings != NULL || explain(why, "out of memory");
    }
    for (size_t i = 0; good && i < trend->packs.count; i++) {
        good = ledger_timings(ledger, trend->packs.items[i].id, &trend->timings[i], why);
    }
    ledger_close(ledger);
    return good;
}

void trend_close(struct trend *trend) {
    for (size_t i = 0; trend->timings != NULL && i < trend->packs.count; i++) {
        ledger_timings_free(&trend->timings[i]);
    }
    free(trend->timings);
    ledger_timings_free(&trend->baselines);
    ledger_packs_free(&trend->packs);
}

/* ---- groups: what a plot has in common ------------------------------------------------------- */

static bool same_group(const struct ledger_timing *a, const struct ledger_timing *b) {
    static const enum ledger_key KEYS[] = {KEY_DEVICE, KEY_HARDWARE, KEY_PROBLEM, KEY_MODE,
                                           KEY_CACHE};
    for (size_t i = 0; i < sizeof KEYS / sizeof *KEYS; i++) {
        if (strcmp(a->key[KEYS[i]], b->key[KEYS[i]]) != 0) {
            return false;
        }
    }
    return true;
}

/* In how many packs it was timed. */
static size_t count_packs(const struct trend *trend, const struct ledger_timing *group) {
    size_t count = 0;
    for (size_t p = 0; p < trend->packs.count; p++) {
        size_t i = 0;
        while (i < trend->timings[p].count && !same_group(&trend->timings[p].items[i], group)) {
            i++;
        }
        count += i < trend->timings[p].count;
    }
    return count;
}

static bool is_listed(const struct ledger_timing *const *groups, size_t count,
                      const struct ledger_timing *timing) {
    size_t i = 0;
    while (i < count && !same_group(groups[i], timing)) {
        i++;
    }
    return i < count;
}

/* Those of the last packs first, and only those that were timed in `fewest` packs. */
static size_t list_groups(const struct trend *trend, size_t fewest,
                          const struct ledger_timing *groups[GROUPS_MOST]) {
    size_t count = 0;
    for (size_t p = trend->packs.count; p > 0; p--) {
        const struct ledger_timings *timings = &trend->timings[p - 1];
        for (size_t i = 0; i < timings->count && count < GROUPS_MOST; i++) {
            const struct ledger_timing *timing = &timings->items[i];
            if (!is_listed(groups, count, timing) && count_packs(trend, timing) >= fewest) {
                groups[count++] = timing;
            }
        }
    }
    return count;
}

/* ---- plots ----------------------------------------------------------------------------------- */

struct course {
    struct svg_point best[POINTS_MOST], others[OTHERS_MOST], baseline[2];
    char labels[POINTS_MOST][LABEL];
    size_t count, other_count;
    const struct ledger_timing *last; /* the fastest of the last pack that has the group */
};

static void add_pack(const struct trend *trend, const struct ledger_timing *group, size_t pack,
                     struct course *course) {
    const struct ledger_timings *timings = &trend->timings[pack];
    const struct ledger_timing *best = NULL;
    const double x = (double)trend->packs.items[pack].id;
    for (size_t i = 0; timings->items != NULL && i < timings->count; i++) {
        const struct ledger_timing *timing = &timings->items[i];
        if (!same_group(timing, group)) {
            continue;
        }
        if (course->other_count < OTHERS_MOST) {
            course->others[course->other_count++] =
                (struct svg_point){x, 1e6 * timing->median, NAN, NAN, NULL};
        }
        best = best == NULL || timing->median < best->median ? timing : best;
    }
    if (best == NULL || course->count == POINTS_MOST) {
        return;
    }
    const struct interval median = stats_quantile(best->seconds, best->count, 0.5);
    char *label = course->labels[course->count], text[REPORT_TEXT];
    snprintf(label, LABEL, "pack %d: %.90s, %s", (int)x, best->key[KEY_VARIANT],
             seconds_text(best->median, text));
    course->best[course->count++] =
        (struct svg_point){x, 1e6 * median.value, 1e6 * median.low, 1e6 * median.high, label};
    course->last = best;
}

/* The present baseline of the variant that is the fastest in the end, as a line. */
static bool find_baseline(const struct trend *trend, struct course *course) {
    for (size_t i = 0; course->last != NULL && i < trend->baselines.count; i++) {
        const struct ledger_timing *baseline = &trend->baselines.items[i];
        if (compare_keys(baseline, course->last) == 0) {
            const double us = 1e6 * baseline->median;
            course->baseline[0] = (struct svg_point){course->best[0].x, us, NAN, NAN, NULL};
            course->baseline[1] =
                (struct svg_point){course->best[course->count - 1].x, us, NAN, NAN, NULL};
            return true;
        }
    }
    return false;
}

static void put_course(const struct trend *trend, const struct ledger_timing *group,
                       struct course *course, FILE *out) {
    *course = (struct course){.count = 0};
    for (size_t p = 0; p < trend->packs.count; p++) {
        add_pack(trend, group, p, course);
    }
    const struct svg_series series[] = {
        {"fastest variant", course->best, course->count, SVG_LINE | SVG_POINTS, 0},
        {"every variant", course->others, course->other_count, SVG_POINTS | SVG_FAINT, 0},
        {"its baseline", course->baseline, 2, SVG_LINE | SVG_DASHED, SVG_GREY},
    };
    char subtitle[240];
    snprintf(subtitle, sizeof subtitle, "%.40s%s%.60s, %s, %s cache", group->key[KEY_DEVICE],
             group->key[KEY_HARDWARE][0] != '\0' ? ", " : "", group->key[KEY_HARDWARE],
             group->key[KEY_MODE], group->key[KEY_CACHE]);
    svg_plot(out, &(struct svg_plot){
                      .title = group->shape,
                      .subtitle = subtitle,
                      .x = {"pack", SVG_LINEAR, .whole = true},
                      .y = {.title = "\xc2\xb5s a call", .scale = SVG_LOG10},
                      .series = series,
                      .series_count = find_baseline(trend, course) ? 3 : 2,
                  });
}

static void put_plots(const struct trend *trend, FILE *out) {
    const struct ledger_timing *groups[GROUPS_MOST];
    size_t count = list_groups(trend, 2, groups);
    if (count == 0) {
        count = list_groups(trend, 1, groups);
    }
    struct course *course = count > 0 ? malloc(sizeof *course) : NULL;
    fputs("<h2 id=\"times\">Times from pack to pack</h2>\n", out);
    if (course == NULL) {
        html_put(out, "<p class=\"lead\">%s</p>\n",
                 count > 0 ? "out of memory" : "No pack has a timing that passed.");
        return;
    }
    fputs("<p class=\"lead\">Medians with their 95 % intervals; less is better. A plot is one "
          "problem on one device.</p>\n<div class=\"plots\">\n",
          out);
    for (size_t i = 0; i < count; i++) {
        put_course(trend, groups[i], course, out);
    }
    fputs("</div>\n", out);
    if (count == GROUPS_MOST) {
        fputs("<p class=\"note\">There may be more: attest ledger show lists every timing.</p>\n",
              out);
    }
    free(course);
}

/* ---- tables ---------------------------------------------------------------------------------- */

static enum gate gate_of(const char *name) {
    int gate = 0;
    while (gate < GATE_COUNT && strcmp(GATE_NAMES[gate], name) != 0) {
        gate++;
    }
    return gate < GATE_COUNT ? (enum gate)gate : GATE_INVALID;
}

/* As a report has it: a PASS of a part is not green. */
static const char *pack_class(const struct ledger_pack *pack) {
    const enum gate gate = gate_of(pack->verdict);
    return gate == GATE_PASS && pack->partial ? "g-partial" : gate_class(gate);
}

static void put_pack(const struct ledger_pack *pack, FILE *out) {
    html_put(out,
             "<tr><th scope=\"row\" class=\"n\">%lld</th><td><span class=\"chip %s\">%s%s</span>"
             "</td><td>%s</td><td>%s</td><td><code>%.12s</code></td><td class=\"n\">%lld</td>"
             "<td class=\"n\">%lld</td><td><code>%.16s</code></td></tr>\n",
             (long long)pack->id, pack_class(pack), gate_words(gate_of(pack->verdict)),
             pack->partial ? " (partial)" : "", pack->imported, pack->mode,
             pack->commit != NULL ? pack->commit : "", (long long)pack->units,
             (long long)pack->timings, pack->root);
}

static void put_packs(const struct trend *trend, FILE *out) {
    fputs(
        "<h2 id=\"packs\">Packs</h2>\n<div class=\"scroll\" tabindex=\"0\" role=\"region\" "
        "aria-label=\"Packs\"><table><caption>In the order of import, the last one first</caption>"
        "<thead><tr><th scope=\"col\" class=\"n\">Pack</th><th scope=\"col\">Verdict</th>"
        "<th scope=\"col\">Imported</th><th scope=\"col\">Run</th><th scope=\"col\">Commit</th>"
        "<th scope=\"col\" class=\"n\">Units</th><th scope=\"col\" class=\"n\">Timings</th>"
        "<th scope=\"col\">Root</th></tr></thead><tbody>\n",
        out);
    size_t shown = 0;
    const struct ledger_pack *packs = trend->packs.items;
    for (size_t i = trend->packs.count; packs != NULL && i > 0 && shown < ROWS_MOST; i--, shown++) {
        put_pack(&packs[i - 1], out);
    }
    fputs("</tbody></table></div>\n", out);
    if (shown < trend->packs.count) {
        html_put(out, "<p class=\"note\">%zu older ones are in the ledger.</p>\n",
                 trend->packs.count - shown);
    }
}

static void put_comparison(const struct comparison *one, FILE *out) {
    static const char *const CLASSES[CHANGES] = {[SAME_SPEED] = "g-none",
                                                 [FASTER] = "g-pass",
                                                 [SLOWER] = "g-fail",
                                                 [AMBIGUOUS] = "g-not-run"};
    char old[REPORT_TEXT], new[REPORT_TEXT];
    html_put(
        out,
        "<tr><th scope=\"row\" class=\"name\"><code>%s</code></th><td>%s</td><td>%s</td>"
        "<td>%s, %s</td><td class=\"n\">%s</td><td class=\"n\">%s</td><td class=\"n\">%.3f"
        "<br><small>%.3f to %.3f</small></td><td><span class=\"chip %s\">%s</span></td></tr>\n",
        one->new->key[KEY_VARIANT], one->new->key[KEY_DEVICE], one->new->shape,
        one->new->key[KEY_MODE], one->new->key[KEY_CACHE], seconds_text(one->old->median, old),
        seconds_text(one->new->median, new), one->ratio.value, one->ratio.low, one->ratio.high,
        CLASSES[one->change], CHANGE_NAMES[one->change]);
}

/* The last pack against the baselines: what changed first. */
static void put_comparisons(const struct trend *trend, FILE *out) {
    static const enum change ORDER[CHANGES] = {SLOWER, FASTER, AMBIGUOUS, SAME_SPEED};
    size_t count = 0, both = 0, shown = 0;
    struct comparison *all =
        trend->packs.count > 0
            ? compare_all(&trend->baselines, &trend->timings[trend->packs.count - 1], MARGIN,
                          &count, &both)
            : NULL;
    fputs("<h2 id=\"baselines\">The last pack against the baselines</h2>\n", out);
    if (both == 0) {
        fputs("<p class=\"lead\">It has no timing in common with a baseline.</p>\n", out);
        free(all);
        return;
    }
    fputs("<p class=\"lead\">The ratio is new time over old: below 1 is faster. It is called a "
          "change only where its whole interval is more than 1 % away from 1.</p>\n"
          "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Against the "
          "baselines\"><table><caption>Ratio of medians with its 95 % bootstrap interval</caption>"
          "<thead><tr><th scope=\"col\">Variant</th><th scope=\"col\">Device</th>"
          "<th scope=\"col\">Problem</th><th scope=\"col\">Mode, cache</th>"
          "<th scope=\"col\" class=\"n\">Baseline</th><th scope=\"col\" class=\"n\">Now</th>"
          "<th scope=\"col\" class=\"n\">Ratio</th><th scope=\"col\">Change</th></tr></thead>"
          "<tbody>\n",
          out);
    for (int k = 0; k < CHANGES; k++) {
        for (size_t i = 0; i < count && shown < ROWS_MOST; i++) {
            if (all[i].old != NULL && all[i].new != NULL &&all[i].change == ORDER[k]) {
                put_comparison(&all[i], out);
                shown++;
            }
        }
    }
    fputs("</tbody></table></div>\n", out);
    if (shown < both) {
        html_put(out, "<p class=\"note\">%zu more: attest ledger compare lists them.</p>\n",
                 both - shown);
    }
    free(all);
}

/* ---- the page -------------------------------------------------------------------------------- */

void trend_html(const struct trend *trend, FILE *out) {
    const struct ledger_pack *last =
        trend->packs.count > 0 ? &trend->packs.items[trend->packs.count - 1] : NULL;
    html_open(out, "attest ledger");
    html_put(out,
             "<div class=\"top\"><h1><b>attest</b> ledger: %s</h1><nav aria-label=\"Sections\">"
             "<a href=\"#times\">Times</a><a href=\"#baselines\">Baselines</a>"
             "<a href=\"#packs\">Packs</a></nav></div>\n",
             trend->path);
    html_put(out,
             "<section class=\"hero\" aria-label=\"Last pack\"><div class=\"verdict %s\">"
             "<p class=\"word\">%s",
             last != NULL ? pack_class(last) : "g-not-run",
             last != NULL ? gate_words(gate_of(last->verdict)) : "EMPTY");
    fputs(last != NULL && last->partial ? "<small>(partial)</small></p>" : "</p>", out);
    html_put(out, "<p class=\"why\">%s</p></div><dl>",
             last == NULL           ? "No pack was imported yet."
             : last->reason != NULL ? last->reason
                                    : "The last pack that was imported.");
    html_put(out,
             "<dt>Packs</dt><dd>%zu</dd><dt>Baselines</dt><dd>%zu</dd><dt>Head</dt>"
             "<dd><code>%s</code></dd></dl></section>\n",
             trend->packs.count, trend->baselines.count,
             trend->head[0] != '\0' ? trend->head : "none");
    put_plots(trend, out);
    put_comparisons(trend, out);
    put_packs(trend, out);
    html_close(out, "This page is a function of the ledger, whose entries are chained by their "
                    "hashes, and loads nothing.");
}

void trend_markdown(const struct trend *trend, FILE *out) {
    fputs("# attest ledger\n\n- ledger: ", out);
    markdown_code(out, trend->path);
    fputs("\n- head: ", out);
    markdown_code(out, trend->head[0] != '\0' ? trend->head : "none");
    markdown_put(out, "\n- packs: %zu\n- baselines: %zu\n\n", trend->packs.count,
                 trend->baselines.count);
    fputs("| pack | verdict | imported | run | commit | timings | root |\n"
          "|---:|---|---|---|---|---:|---|\n",
          out);
    for (size_t i = trend->packs.count; i > 0; i--) {
        const struct ledger_pack *pack = &trend->packs.items[i - 1];
        markdown_put(out, "| %lld | **%s**%s | %s | %s | ", (long long)pack->id,
                     gate_words(gate_of(pack->verdict)), pack->partial ? " (partial)" : "",
                     pack->imported, pack->mode);
        markdown_code(out, pack->commit != NULL ? pack->commit : "");
        markdown_put(out, " | %lld | ", (long long)pack->timings);
        markdown_code(out, pack->root);
        fputs(" |\n", out);
    }
}

void trend_json(const struct trend *trend, struct json *json, const char *html,
                const char *markdown) {
    json_open(json, NULL, '{');
    json_text(json, "head", trend->head[0] != '\0' ? trend->head : NULL);
    json_int(json, "packs", (int64_t)trend->packs.count);
    json_int(json, "baselines", (int64_t)trend->baselines.count);
    json_text(json, "html", html);
    json_text(json, "markdown", markdown);
    json_close(json);
}
