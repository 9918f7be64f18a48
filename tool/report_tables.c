/* SPDX-License-Identifier: Apache-2.0
 *
 * report_tables.c - see report.h: what each variant needs, how far each case was from the allowed
 * error, and every time.
 *
 * Invariant: a table is what the units hold, column by column, whatever a stage chose to observe;
 * what is left out of a long one is counted below it.
 */
#include <math.h>
#include <string.h>

#include "html.h"
#include "report.h"
#include "svg.h"

enum {
    COLUMNS_MOST = 12,
    ROWS_MOST = 400,
    TIMES_MOST = 250,
    WAYS_MOST = 8,
    HEAT_ROWS_MOST = 200,
    DEVICES_MOST = 16
};

/* ---- values of units ------------------------------------------------------------------------- */

/* Those that a reader looks for come first, under a name of their own. */
static const struct {
    const char *value, *title;
    double full; /* of a gauge; 0: none */
} KNOWN[] = {
    {"registers", "Registers", 255},
    {"shared_static", "Static shared, B", 0},
    {"shared_dynamic", "Dynamic shared, B", 0},
    {"spill_bytes", "Spills, B", 0},
    {"stack_bytes", "Stack, B", 0},
    {"tensor_ops", "Tensor-core instr.", 0},
    {"tensor_demand", "The tile's demand", 0},
    {"instructions", "Instructions", 0},
    {"against_registers", "Registers, other build", 255},
    {"against_spill_bytes", "Spills, other build, B", 0},
    {"against_stack_bytes", "Stack, other build, B", 0},
    {"against_instructions", "Instructions, other build", 0},
    {"sm_busy_percent", "SM busy, %", 100},
    {"tensor_pipe_percent", "Tensor pipe, %", 100},
    {"sm_throughput_percent", "SM throughput, %", 100},
    {"dram_throughput_percent", "DRAM throughput, %", 100},
    {"l2_throughput_percent", "L2 throughput, %", 100},
    {"occupancy_percent", "Occupancy, %", 100},
};
enum { KNOWN_COUNT = sizeof KNOWN / sizeof *KNOWN };

static int known_of(const char *value) {
    for (int i = 0; i < KNOWN_COUNT; i++) {
        if (strcmp(KNOWN[i].value, value) == 0) {
            return i;
        }
    }
    return KNOWN_COUNT;
}

static void add_column(const char *columns[COLUMNS_MOST], size_t *count, const char *value) {
    size_t at = 0;
    for (size_t i = 0; i < *count; i++) {
        if (strcmp(columns[i], value) == 0) {
            return;
        }
        at += known_of(columns[i]) <= known_of(value);
    }
    if (*count < COLUMNS_MOST) {
        memmove(&columns[at + 1], &columns[at], (*count - at) * sizeof *columns);
        columns[at] = value;
        (*count)++;
    }
}

/* The names of the values that units of a stage have: of inspect those that are known, since it has
 * many that are 0 or say the same as another tool. */
static size_t list_columns(const struct pack_report *report, enum stage stage,
                           const char *columns[COLUMNS_MOST]) {
    size_t count = 0;
    for (size_t i = 0; i < report->slot_count; i++) {
        const struct report_slot *slot = &report->slots[i];
        const struct json_value *values =
            slot->stage == stage ? json_at(slot->unit, "values") : NULL;
        for (size_t k = 0;
             values != NULL && values->kind == JSON_OBJECT && k < values->as.list.count; k++) {
            const char *value = values->as.list.items[k].key;
            if (stage != INSPECT || known_of(value) < KNOWN_COUNT) {
                add_column(columns, &count, value);
            }
        }
    }
    return count;
}

static void put_heading(const char *value, FILE *out) {
    const int known = known_of(value);
    char text[80];
    snprintf(text, sizeof text, "%s", known < KNOWN_COUNT ? KNOWN[known].title : value);
    for (char *at = text; known == KNOWN_COUNT && *at != '\0'; at++) {
        *at = *at == '_' ? ' ' : *at;
    }
    html_put(out, "<th scope=\"col\" class=\"n\">%s</th>", text);
}

static void put_value(const char *column, double value, FILE *out) {
    const int known = known_of(column);
    char text[REPORT_TEXT];
    if (known < KNOWN_COUNT && KNOWN[known].full > 0 && value >= 0) {
        html_put(out, "<td class=\"n g\" style=\"--w:%.2f\">",
                 fmin(1.0, value / KNOWN[known].full));
    } else {
        fputs("<td class=\"n\">", out);
    }
    html_put(out, "%s</td>", number_text(value, text));
}

static void put_values(const struct pack_report *report, enum stage stage, const char *caption,
                       FILE *out) {
    const char *columns[COLUMNS_MOST];
    const size_t count = list_columns(report, stage, columns);
    size_t rows = 0, left_out = 0;
    if (count == 0) {
        html_put(out, "<p class=\"note\">No %s was observed.</p>\n", STAGE_NAMES[stage]);
        return;
    }
    html_put(out,
             "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"%s\"><table>"
             "<caption>%s</caption><thead><tr><th scope=\"col\">Variant</th>"
             "<th scope=\"col\">Device</th>",
             caption, caption);
    for (size_t k = 0; k < count; k++) {
        put_heading(columns[k], out);
    }
    fputs("<th scope=\"col\">Verdict</th></tr></thead><tbody>\n", out);
    for (size_t i = 0; i < report->slot_count; i++) {
        const struct report_slot *slot = &report->slots[i];
        if (slot->stage != stage || slot->unit == NULL) {
            continue;
        }
        if (++rows > ROWS_MOST) {
            left_out++;
            continue;
        }
        html_put(out, "<tr><th scope=\"row\" class=\"name\"><code>%s</code></th><td>%s</td>",
                 slot->variant, slot->device);
        for (size_t k = 0; k < count; k++) {
            put_value(columns[k], slot_value(slot, columns[k]), out);
        }
        html_put(out, "<td><span class=\"chip %s\">%s</span></td></tr>\n", gate_class(slot->gate),
                 gate_words(slot->gate));
    }
    fputs("</tbody></table></div>\n", out);
    if (left_out > 0) {
        html_put(out, "<p class=\"note\">%zu more are in the pack.</p>\n", left_out);
    }
}

/* ---- the heat map of cases ------------------------------------------------------------------- */

struct map {
    const struct report_slot *rows[HEAT_ROWS_MOST];
    size_t count, columns;
};

static const char *row_name(const void *subject, size_t row) {
    return ((const struct map *)subject)->rows[row]->variant;
}

static double cell_share(const void *subject, size_t row, size_t column) {
    const struct map *map = subject;
    const struct json_value *cases = json_at(map->rows[row]->unit, "cases");
    return column < json_count_of(cases) ? case_share(&cases->as.list.items[column]) : -1.0;
}

/* Greater: the slot comes first where not all fit. What is not PASS never gives way. */
static bool gives_way(const struct report_slot *slot) {
    return slot->gate == GATE_PASS;
}

/* Returns how many slots were left out. */
static size_t fill_map(const struct pack_report *report, enum stage stage, const char *device,
                       struct map *map) {
    size_t left_out = 0;
    *map = (struct map){.count = 0};
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < report->slot_count; i++) {
            const struct report_slot *slot = &report->slots[i];
            const size_t cases = json_count_of(json_at(slot->unit, "cases"));
            if (slot->stage != stage || strcmp(slot->device, device) != 0 || cases == 0 ||
                gives_way(slot) != (round == 1)) {
                continue;
            }
            if (map->count == HEAT_ROWS_MOST) {
                left_out++;
                continue;
            }
            map->rows[map->count++] = slot;
            map->columns = cases > map->columns ? cases : map->columns;
        }
    }
    return left_out;
}

static bool put_map(const struct pack_report *report, enum stage stage, const char *device,
                    FILE *out) {
    struct map map;
    const size_t left_out = fill_map(report, stage, device, &map);
    char title[160], subtitle[160];
    if (map.count == 0) {
        return false;
    }
    snprintf(title, sizeof title, "%s on %.80s", stage == PARITY ? "Parity" : "Emulation", device);
    snprintf(subtitle, sizeof subtitle, "%zu variants, up to %zu cases each%s", map.count,
             map.columns, left_out > 0 ? "; others that passed are in the pack" : "");
    svg_heat(out, &(struct svg_heat){
                      .title = title,
                      .subtitle = subtitle,
                      .row_title = "variant",
                      .column_title = "case",
                      .rows = map.count,
                      .columns = map.columns,
                      .row_name = row_name,
                      .cell = cell_share,
                      .subject = &map,
                  });
    return true;
}

static void put_maps(const struct pack_report *report, FILE *out) {
    static const enum stage WITH_CASES[] = {PARITY, EMULATE};
    const char *devices[DEVICES_MOST];
    const size_t count = report_devices(report, devices, DEVICES_MOST);
    bool any = false;
    fputs("<h2 id=\"parity\">Parity</h2>\n<p class=\"lead\">Each cell is a drawn problem: the "
          "error against double precision over what the rule allows, the larger of maximum, mean "
          "and log-sum-exp. A near miss above 1 was drawn again five times.</p>\n",
          out);
    for (int stage = 0; stage < 2; stage++) {
        for (size_t i = 0; i < count; i++) {
            any |= put_map(report, WITH_CASES[stage], devices[i], out);
        }
    }
    if (!any) {
        fputs("<p class=\"note\">No case ran.</p>\n", out);
    }
}

/* ---- every time ------------------------------------------------------------------------------ */

/* The ways in which a problem was timed: a column each. */
struct ways {
    const struct report_timing *first[WAYS_MOST];
    size_t count;
};

static bool same_way(const struct report_timing *a, const struct report_timing *b) {
    return strcmp(a->mode, b->mode) == 0 && strcmp(a->cache, b->cache) == 0;
}

static bool same_subject(const struct report_timing *a, const struct report_timing *b) {
    return strcmp(a->variant, b->variant) == 0 && strcmp(a->device, b->device) == 0 &&
           strcmp(a->text, b->text) == 0;
}

static struct ways list_ways(const struct pack_report *report) {
    struct ways ways = {.count = 0};
    for (size_t i = 0; i < report->timing_count; i++) {
        size_t k = 0;
        while (k < ways.count && !same_way(ways.first[k], &report->timings[i])) {
            k++;
        }
        if (k == ways.count && k < WAYS_MOST) {
            ways.first[ways.count++] = &report->timings[i];
        }
    }
    return ways;
}

/* "12.3 us" and half the width of its interval, in percent. */
static void put_median(const struct report_timing *timing, FILE *out) {
    char text[REPORT_TEXT], share[REPORT_TEXT];
    const double half = (timing->p50.high - timing->p50.low) / 2 / timing->p50.value;
    html_put(out, "<td class=\"n\">%s<br><small>\xc2\xb1%s %%</small></td>",
             seconds_text(timing->p50.value, text), number_text(100 * half, share));
}

/* All timings of one variant and problem, of which `first` is one; they lie behind it. */
static void put_subject(const struct pack_report *report, const struct ways *ways, size_t first,
                        FILE *out) {
    const struct report_timing *of = &report->timings[first], *best = of;
    html_put(out, "<tr><th scope=\"row\" class=\"name\"><code>%s</code></th><td>%s</td><td>%s</td>",
             of->peer != NULL ? of->peer : of->variant, of->device, of->text);
    for (size_t k = 0; k < ways->count; k++) {
        const struct report_timing *found = NULL;
        for (size_t i = first; i < report->timing_count; i++) {
            const struct report_timing *timing = &report->timings[i];
            if (same_subject(of, timing) && same_way(ways->first[k], timing)) {
                found = timing;
            }
        }
        if (found == NULL) {
            fputs("<td class=\"n\">\xe2\x80\x93</td>", out);
            continue;
        }
        put_median(found, out);
        best = found->p50.value < best->p50.value ? found : best;
    }
    char p90[REPORT_TEXT], p99[REPORT_TEXT], tflops[REPORT_TEXT], share[REPORT_TEXT];
    html_put(out,
             "<td class=\"n\">%s</td><td class=\"n\">%s</td><td class=\"n\">%s</td>"
             "<td class=\"n\">%s</td></tr>\n",
             seconds_text(best->p90.value, p90), seconds_text(best->p99.value, p99),
             number_text(best->tflops, tflops),
             number_text(100 * best->floor / best->p50.value, share));
}

static bool is_first(const struct pack_report *report, size_t index) {
    for (size_t i = 0; i < index; i++) {
        if (same_subject(&report->timings[i], &report->timings[index])) {
            return false;
        }
    }
    return true;
}

static void put_timings(const struct pack_report *report, FILE *out) {
    const struct ways ways = list_ways(report);
    size_t shown = 0, left_out = 0;
    if (report->timing_count == 0) {
        return;
    }
    html_put(
        out,
        "<details><summary>Every time <small>%zu medians with their intervals</small></summary>"
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Every time\"><table>"
        "<caption>Medians of the raw samples and half their 95 %% interval, which assumes no "
        "distribution; p90, p99 and TFLOP/s are of the fastest way in the row</caption><thead>"
        "<tr><th scope=\"col\">Variant</th><th scope=\"col\">Device</th>"
        "<th scope=\"col\">Problem</th>",
        report->timing_count);
    for (size_t k = 0; k < ways.count; k++) {
        html_put(out, "<th scope=\"col\" class=\"n\">%s,<br>%s</th>", ways.first[k]->mode,
                 ways.first[k]->cache);
    }
    fputs("<th scope=\"col\" class=\"n\">p90</th><th scope=\"col\" class=\"n\">p99</th>"
          "<th scope=\"col\" class=\"n\">TFLOP/s</th><th scope=\"col\" class=\"n\">% of roofline"
          "</th></tr></thead><tbody>\n",
          out);
    for (size_t i = 0; i < report->timing_count; i++) {
        if (!is_first(report, i)) {
            continue;
        }
        if (shown < TIMES_MOST) {
            put_subject(report, &ways, i, out);
            shown++;
        } else {
            left_out++;
        }
    }
    fputs("</tbody></table></div></details>\n", out);
    if (left_out > 0) {
        html_put(out, "<p class=\"note\">%zu more rows are in evidence.json.</p>\n", left_out);
    }
}

void report_tables_html(const struct pack_report *report, FILE *out) {
    put_timings(report, out);
    fputs(
        "<h2 id=\"resources\">Resources</h2>\n<p class=\"lead\">Read from the machine code that is "
        "loaded, not from what the source intends.</p>\n",
        out);
    put_values(report, INSPECT, "What each variant's machine code needs", out);
    fputs("<h3>Counters</h3>\n", out);
    put_values(report, PROFILE, "What Nsight Compute counted", out);
    put_maps(report, out);
}
