/* SPDX-License-Identifier: Apache-2.0
 *
 * tables.c - see report.h: what each variant needs, what the counters say, and how far each
 * case was from the allowed error.
 *
 * Invariant: a table is what the units hold, column by column, whatever a stage chose to observe;
 * what is left out of a long one is counted below it.
 */
#include <math.h>
#include <string.h>

#include "report/html.h"
#include "report/report.h"
#include "report/svg.h"

enum {
    COLUMNS_MOST = 12,
    ROWS_MOST = 400,
    ROWS_OPEN = 20, /* a longer table is folded */
    STALLS_SHOWN = 3,
    HEAT_ROWS_MOST = 200,
    DEVICES_MOST = 16
};

/* ---- values of units ------------------------------------------------------------------------- */

/* Those that a reader looks for come first, under a name of their own. */
static const struct {
    const char *value, *title;
    double full;    /* of a gauge; 0: none */
    double seconds; /* how many its unit is; 0: it is no time */
} KNOWN[] = {
    {"registers", "Registers", 255, 0},
    {"shared_static", "Static shared, B", 0, 0},
    {"shared_dynamic", "Dynamic shared, B", 0, 0},
    {"spill_bytes", "Spills, B", 0, 0},
    {"stack_bytes", "Stack, B", 0, 0},
    {"tensor_ops", "Tensor-core instr.", 0, 0},
    {"tensor_demand", "The tile's demand", 0, 0},
    {"instructions", "Instructions", 0, 0},
    {"against_registers", "Registers, other build", 255, 0},
    {"against_spill_bytes", "Spills, other build, B", 0, 0},
    {"against_stack_bytes", "Stack, other build, B", 0, 0},
    {"against_instructions", "Instructions, other build", 0, 0},
    {"sm_busy_percent", "SM busy, %", 100, 0},
    {"tensor_pipe_percent", "Tensor, %", 100, 0},
    {"sm_throughput_percent", "SM, %", 100, 0},
    {"dram_throughput_percent", "DRAM, %", 100, 0},
    {"l2_throughput_percent", "L2, %", 100, 0},
    {"occupancy_percent", "Occupancy, %", 100, 0},
    {"duration_ns", "Duration", 0, 1e-9},
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

/* Why warps wait, which has a column for all of them together. */
#define STALL "stall_"
static bool is_stall(const char *value) {
    return strncmp(value, STALL, sizeof STALL - 1) == 0;
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
            if ((stage != INSPECT || known_of(value) < KNOWN_COUNT) && !is_stall(value)) {
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
    const double seconds = known < KNOWN_COUNT ? KNOWN[known].seconds : 0;
    html_put(out, "%s</td>",
             seconds > 0 ? seconds_text(seconds * value, text) : number_text(value, text));
}

/* The heaviest that is lighter than `before`, or as heavy and behind it; NULL: none is left. */
static const struct json_value *next_stall(const struct json_value *values,
                                           const struct json_value *before) {
    const struct json_value *best = NULL;
    for (size_t i = 0; values != NULL && values->kind == JSON_OBJECT && i < values->as.list.count;
         i++) {
        const struct json_value *one = &values->as.list.items[i];
        const double weight = json_number_of(one);
        const double limit = before != NULL ? json_number_of(before) : INFINITY;
        const bool behind = before == NULL || one > before;
        const bool follows = weight < limit || (weight <= limit && behind);
        if (is_stall(one->key) && follows && (best == NULL || weight > json_number_of(best))) {
            best = one;
        }
    }
    return best;
}

/* "barrier 1.69, wait 1.63, gmma 0.98" */
static void put_stalls(const struct report_slot *slot, FILE *out) {
    const struct json_value *values = json_at(slot->unit, "values");
    const struct json_value *one = next_stall(values, NULL);
    fputs("<td class=\"stalls\">", out);
    for (int i = 0; i < STALLS_SHOWN && one != NULL; i++) {
        char text[REPORT_TEXT];
        html_put(out, "%s<span class=\"keep\">%s %s</span>", i > 0 ? ", " : "",
                 one->key + sizeof STALL - 1, number_text(json_number_of(one), text));
        one = next_stall(values, one);
    }
    fputs("</td>", out);
}

static bool has_stalls(const struct pack_report *report, enum stage stage) {
    bool any = false;
    for (size_t i = 0; i < report->slot_count && !any; i++) {
        const struct report_slot *slot = &report->slots[i];
        any = slot->stage == stage && next_stall(json_at(slot->unit, "values"), NULL) != NULL;
    }
    return any;
}

static void put_slot(const struct report_slot *slot, const char *const *columns, size_t count,
                     bool stalls, FILE *out) {
    html_put(out, "<tr><th scope=\"row\" class=\"name\"><code>%s</code></th><td>%s</td>",
             slot->variant, slot->device);
    for (size_t k = 0; k < count; k++) {
        put_value(columns[k], slot_value(slot, columns[k]), out);
    }
    if (stalls) {
        put_stalls(slot, out);
    }
    html_put(out, "<td><span class=\"chip %s\">%s</span></td></tr>\n", gate_class(slot->gate),
             gate_words(slot->gate));
}

static size_t count_units(const struct pack_report *report, enum stage stage) {
    size_t count = 0;
    for (size_t i = 0; i < report->slot_count; i++) {
        count += report->slots[i].stage == stage && report->slots[i].unit != NULL;
    }
    return count;
}

static void put_values(const struct pack_report *report, enum stage stage, const char *title,
                       const char *caption, FILE *out) {
    const char *columns[COLUMNS_MOST];
    const size_t count = list_columns(report, stage, columns), units = count_units(report, stage);
    const bool stalls = has_stalls(report, stage);
    size_t rows = 0;
    if (count == 0) {
        html_put(out, "<p class=\"note\">No %s was observed.</p>\n", STAGE_NAMES[stage]);
        return;
    }
    fputs(units <= ROWS_OPEN ? "<details open>" : "<details>", out);
    html_put(
        out,
        "<summary>%s <small>%zu units</small></summary><div class=\"scroll\" tabindex=\"0\" "
        "role=\"region\" aria-label=\"%s\"><table class=\"dense\"><caption>%s</caption><thead><tr>"
        "<th scope=\"col\">Variant</th><th scope=\"col\">Device</th>",
        title, units, title, caption);
    for (size_t k = 0; k < count; k++) {
        put_heading(columns[k], out);
    }
    fputs(stalls ? "<th scope=\"col\">Top stalls</th>" : "", out);
    fputs("<th scope=\"col\">Verdict</th></tr></thead><tbody>\n", out);
    for (size_t i = 0; i < report->slot_count && rows < ROWS_MOST; i++) {
        const struct report_slot *slot = &report->slots[i];
        if (slot->stage == stage && slot->unit != NULL) {
            put_slot(slot, columns, count, stalls, out);
            rows++;
        }
    }
    fputs("</tbody></table></div></details>\n", out);
    if (rows < units) {
        html_put(out, "<p class=\"note\">%zu more are in the pack.</p>\n", units - rows);
    }
}

/* The most that any unit of inspect has of a value; NaN: none has it. */
static double most_of(const struct pack_report *report, const char *value) {
    double most = (double)NAN;
    for (size_t i = 0; i < report->slot_count; i++) {
        if (report->slots[i].stage == INSPECT) {
            most = fmax(most, slot_value(&report->slots[i], value));
        }
    }
    return most;
}

static void put_most(const struct pack_report *report, FILE *out) {
    char registers[REPORT_TEXT], spills[REPORT_TEXT], stack[REPORT_TEXT], shared[REPORT_TEXT];
    if (isnan(most_of(report, "registers"))) {
        return;
    }
    html_put(out,
             " At most %s registers, %s B of spills, %s B of stack and %s KiB of dynamic "
             "shared memory.",
             number_text(most_of(report, "registers"), registers),
             number_text(most_of(report, "spill_bytes"), spills),
             number_text(most_of(report, "stack_bytes"), stack),
             number_text(most_of(report, "shared_dynamic") / 1024, shared));
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
    const bool folded = map.count > ROWS_OPEN;
    if (folded) {
        html_put(out, "<details><summary>%s <small>%s</small></summary>", title, subtitle);
    }
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
    fputs(folded ? "</details>\n" : "", out);
    return true;
}

static void put_maps(const struct pack_report *report, FILE *out) {
    static const enum stage WITH_CASES[] = {PARITY, EMULATE};
    const char *devices[DEVICES_MOST];
    const size_t count = report_devices(report, devices, DEVICES_MOST);
    bool any = false;
    fputs("<h2 id=\"parity\">Parity</h2>\n<p class=\"lead\">Each cell is a drawn problem: the "
          "error against double precision over what the rule allows, the larger of maximum, mean "
          "and log-sum-exp. A borderline case above 1 was resampled five times.</p>\n",
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

void report_tables_html(const struct pack_report *report, FILE *out) {
    fputs(
        "<h2 id=\"resources\">Resources</h2>\n<p class=\"lead\">Read from the machine code that is "
        "loaded, not from what the source intends.",
        out);
    put_most(report, out);
    fputs("</p>\n", out);
    put_values(report, INSPECT, "Every kernel", "What each variant's machine code needs", out);
    put_values(report, PROFILE, "Counters",
               "What Nsight Compute counted: SM, DRAM and L2 by throughput; stalls: warps that "
               "wait for each instruction that is "
               "issued",
               out);
    put_maps(report, out);
}
