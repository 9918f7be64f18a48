/* SPDX-License-Identifier: Apache-2.0
 *
 * matrix.c - see report.h: for each claim the code behind it, the artifact that shows it and
 * the command that checks it.
 *
 * Invariant: a claim stands only where its row is PASS; elsewhere it says that it is not shown.
 */
#include <string.h>

#include "report/code_lines.h"
#include "report/html.h"
#include "report/report.h"

enum { VARIANTS_MOST = 400, COMMAND = 400 };

static const struct claim {
    const char *text;
    enum code code[3];   /* what does it, what judges it; CODE_COUNT ends them */
    const char *command; /* %s: the device */
} CLAIMS[STAGES] = {
    [INSPECT] = {"The machine code that is loaded spills nothing, has no stack and at most 255 "
                 "registers; a kernel that spills was found to.",
                 {CODE_CUBIN, CODE_VALUES, CODE_COUNT},
                 "attest inspect"},
    [EMULATE] = {"On the virtual GPU no access is wild, no two race, nothing is read before it is "
                 "there, and the results are right; planted faults were found.",
                 {CODE_CHECKERS, CODE_CASES, CODE_COUNT},
                 "attest parity --device vgpu --async all"},
    [PARITY] = {"Every drawn problem is as near to double precision as the rule asks; repeated "
                "launches give the same bits; impostors were refused.",
                {CODE_COMPARE, CODE_CASES, CODE_COUNT},
                "attest parity --device %s"},
    [SANITIZE] = {"memcheck, racecheck, initcheck and synccheck find nothing, and each found the "
                  "fault that was planted for it.",
                  {CODE_SANITIZER, CODE_LOGS, CODE_COUNT},
                  "attest sanitize --device %s"},
    [BENCH] = {"The times are those of checked outputs, can be, and come with their raw samples; "
               "a sleep of known length was read right.",
               {CODE_TIMER, CODE_TIMINGS, CODE_QUANTILE},
               "attest bench --device %s"},
    [PROFILE] = {"The chip is busy: its counters say so, and the tensor cores work.",
                 {CODE_VALUES, CODE_COUNT, CODE_COUNT},
                 "attest profile --device %s"},
};

/* ---- pieces ---------------------------------------------------------------------------------- */

/* A word as the shell takes it back; what cannot be quoted in here is not. */
static void quote(const char *word, char *text, size_t size) {
    const char *const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:";
    const bool bare = word[strspn(word, plain)] == '\0';
    const bool quotable = strchr(word, '\'') == NULL;
    snprintf(text, size, bare ? "%s" : quotable ? "'%s'" : "PACK", word);
}

static void command_of(const struct claim *claim, const char *device, char text[COMMAND]) {
    char word[120];
    const char *place = strstr(claim->command, "%s");
    quote(device, word, sizeof word);
    if (place == NULL) {
        snprintf(text, COMMAND, "%s", claim->command);
    } else {
        snprintf(text, COMMAND, "%.*s%s", (int)(place - claim->command), claim->command, word);
    }
}

static void code_text(enum code code, char text[REPORT_TEXT * 2]) {
    const struct code_line *place = &CODE_LINES[code];
    if (place->line > 0) {
        snprintf(text, REPORT_TEXT * 2, "%s:%d", place->file, place->line);
    } else {
        snprintf(text, REPORT_TEXT * 2, "%s", place->file);
    }
}

/* The source of a variant, by its family; CODE_COUNT: not one that is known. */
static enum code code_of(const char *variant) {
    static const struct {
        const char *family; /* the longer one before the one that it begins with */
        enum code code;
    } FAMILIES[] = {
        {"fwd_hopper_split", CODE_FWD_HOPPER_SPLIT},
        {"fwd_hopper_decode", CODE_FWD_HOPPER_DECODE},
        {"fwd_hopper", CODE_FWD_HOPPER},
        {"fwd_mma", CODE_FWD_MMA},
        {"fwd_wmma", CODE_FWD_WMMA},
        {"fwd_scalar", CODE_FWD_SCALAR},
        {"cpu_tile", CODE_CPU_TILE},
        {"cpu_row", CODE_CPU_ROW},
    };
    for (size_t i = 0; i < sizeof FAMILIES / sizeof *FAMILIES; i++) {
        const size_t length = strlen(FAMILIES[i].family);
        if (strncmp(variant, FAMILIES[i].family, length) == 0 && variant[length] == '_') {
            return FAMILIES[i].code;
        }
    }
    return CODE_COUNT;
}

static size_t count_units(const struct pack_report *report, const struct evidence_row *row,
                          const struct report_slot **first) {
    size_t count = 0;
    for (size_t i = 0; i < report->slot_count; i++) {
        const struct report_slot *slot = &report->slots[i];
        if (slot->stage == row->stage && strcmp(slot->device, row->device) == 0 &&
            slot->unit_name != NULL) {
            *first = count == 0 ? slot : *first;
            count++;
        }
    }
    return count;
}

/* ---- HTML ------------------------------------------------------------------------------------ */

static void put_unit(const struct pack_report *report, const struct report_slot *slot, FILE *out) {
    if (report->links) {
        html_put(out, "<a href=\"units/%s.json\"><code>%.12s</code></a>", slot->unit_name,
                 slot->unit_name);
    } else {
        html_put(out, "<code>%.12s</code>", slot->unit_name);
    }
}

static void put_claim(const struct pack_report *report, const struct evidence_row *row, FILE *out) {
    const struct claim *claim = &CLAIMS[row->stage];
    const struct report_slot *first = NULL;
    const size_t units = count_units(report, row, &first);
    const bool shown = row->judgement.gate == GATE_PASS;
    char command[COMMAND], code[REPORT_TEXT * 2];
    html_put(out,
             "<tr><th scope=\"row\">%s<br><small>%s</small><br><span class=\"chip %s\">%s"
             "</span></th><td>%s%s</td><td>",
             STAGE_NAMES[row->stage], row->device, gate_class(row->judgement.gate),
             gate_words(row->judgement.gate), shown ? "" : "Not shown here. ",
             shown ? claim->text : row->judgement.reason);
    for (int i = 0; i < 3 && claim->code[i] != CODE_COUNT; i++) {
        code_text(claim->code[i], code);
        html_put(out, "<code>%s</code><br>", code);
    }
    fputs("</td><td>", out);
    if (units == 0) {
        fputs("none", out);
    } else {
        html_put(out, "%zu unit%s: ", units, units > 1 ? "s" : "");
        put_unit(report, first, out);
        fputs(units > 1 ? " \xe2\x80\xa6" : "", out);
    }
    command_of(claim, row->device, command);
    html_put(out, "</td><td><code>%s</code></td></tr>\n", command);
}

static void put_whole(const struct pack_report *report, FILE *out) {
    char path[200], evidence[REPORT_TEXT * 2], verdict[REPORT_TEXT * 2];
    quote(report->pack.path, path, sizeof path);
    code_text(CODE_EVIDENCE, evidence);
    code_text(CODE_VERDICT, verdict);
    html_put(
        out,
        "<tr><th scope=\"row\">the whole</th><td>No verdict and no statistic was written down: "
        "all follow from what was observed.</td><td><code>%s</code><br><code>%s</code></td>"
        "<td><code>evidence.json</code>, root <code>%.12s</code></td>"
        "<td><code>attest verify %s</code></td></tr>\n",
        evidence, verdict, report->evidence.root, path);
}

/* One line for each variant: its source, its image, and the unit of each row. */
static void put_variant(const struct pack_report *report, const struct report_slot *slot,
                        FILE *out) {
    const enum code code = code_of(slot->variant);
    char text[REPORT_TEXT * 2] = "\xe2\x80\x93";
    if (code != CODE_COUNT) {
        code_text(code, text);
    }
    html_put(out,
             "<tr><th scope=\"row\" class=\"name\"><code>%s</code></th><td><code>%s</code></td>"
             "<td><code>%.12s</code></td>",
             slot->variant, text, slot->image != NULL ? slot->image : "\xe2\x80\x93");
    for (size_t i = 0; i < report->evidence.row_count; i++) {
        const struct evidence_row *row = &report->evidence.rows[i];
        const struct report_slot *own =
            row->absent == NULL ? report_find(report, row->stage, row->device, slot->variant)
                                : NULL;
        fputs("<td>", out);
        if (own != NULL && own->unit_name != NULL) {
            put_unit(report, own, out);
        }
        if (own == NULL) {
            fputs(row->absent == NULL ? "\xe2\x80\x93" : "NOT RUN", out);
        } else if (own->gate != GATE_PASS) {
            html_put(out, " <span class=\"bad\">%s</span>", gate_words(own->gate));
        }
        fputs("</td>", out);
    }
    fputs("</tr>\n", out);
}

static bool is_first_of_variant(const struct pack_report *report, size_t index) {
    for (size_t i = 0; i < index; i++) {
        if (strcmp(report->slots[i].variant, report->slots[index].variant) == 0) {
            return false;
        }
    }
    return true;
}

static void put_variants(const struct pack_report *report, FILE *out) {
    size_t shown = 0, left_out = 0;
    html_put(
        out,
        "<details><summary>Every unit <small>%zu, with source and image of each variant</small>"
        "</summary><div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Every unit\">"
        "<table><caption>A unit is called by the SHA-256 of its content: units/HASH.json</caption>"
        "<thead><tr><th scope=\"col\">Variant</th><th scope=\"col\">Source</th>"
        "<th scope=\"col\">Image</th>",
        report->evidence.unit_count);
    for (size_t i = 0; i < report->evidence.row_count; i++) {
        html_put(out, "<th scope=\"col\">%s<br>%s</th>",
                 STAGE_NAMES[report->evidence.rows[i].stage], report->evidence.rows[i].device);
    }
    fputs("</tr></thead><tbody>\n", out);
    for (size_t i = 0; i < report->slot_count; i++) {
        if (!is_first_of_variant(report, i)) {
            continue;
        }
        if (shown < VARIANTS_MOST) {
            put_variant(report, &report->slots[i], out);
            shown++;
        } else {
            left_out++;
        }
    }
    fputs("</tbody></table></div></details>\n", out);
    if (left_out > 0) {
        html_put(out, "<p class=\"note\">%zu more variants are in evidence.json.</p>\n", left_out);
    }
}

void report_matrix_html(const struct pack_report *report, FILE *out) {
    fputs("<h2 id=\"matrix\">Evidence</h2>\n<p class=\"lead\">For each claim: the code behind it, "
          "the artifact that shows it, and the command that checks it. Lines are those of the tree "
          "that attest was built from.</p>\n"
          "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Evidence matrix\">"
          "<table class=\"matrix\"><caption>Claim, code, artifact, command</caption><thead><tr>"
          "<th scope=\"col\">Stage</th><th scope=\"col\">Claim</th><th scope=\"col\">Code</th>"
          "<th scope=\"col\">Artifact</th><th scope=\"col\">Command</th></tr></thead><tbody>\n",
          out);
    put_whole(report, out);
    for (size_t i = 0; i < report->evidence.row_count; i++) {
        put_claim(report, &report->evidence.rows[i], out);
    }
    fputs("</tbody></table></div>\n", out);
    put_variants(report, out);
}

/* ---- Markdown -------------------------------------------------------------------------------- */

void report_matrix_markdown(const struct pack_report *report, FILE *out) {
    char text[COMMAND], path[200];
    fputs("## Evidence\n\n| stage | device | claim | code | artifact | command |\n"
          "|---|---|---|---|---|---|\n",
          out);
    for (size_t i = 0; i < report->evidence.row_count; i++) {
        const struct evidence_row *row = &report->evidence.rows[i];
        const struct claim *claim = &CLAIMS[row->stage];
        const struct report_slot *first = NULL;
        const size_t units = count_units(report, row, &first);
        const bool shown = row->judgement.gate == GATE_PASS;
        char code[REPORT_TEXT * 2];
        markdown_put(out, "| %s | %s | **%s** %s%s | ", STAGE_NAMES[row->stage], row->device,
                     gate_words(row->judgement.gate), shown ? "" : "Not shown here. ",
                     shown ? claim->text : row->judgement.reason);
        code_text(claim->code[0], code);
        markdown_code(out, code);
        if (units > 0) {
            markdown_put(out, " | %zu units, first %.12s | ", units, first->unit_name);
        } else {
            fputs(" | none | ", out);
        }
        command_of(claim, row->device, text);
        markdown_code(out, text);
        fputs(" |\n", out);
    }
    quote(report->pack.path, path, sizeof path);
    snprintf(text, sizeof text, "attest verify %s", path);
    fputs("\nAll of it again, from the raw observations: ", out);
    markdown_code(out, text);
    fputs("\n", out);
}
