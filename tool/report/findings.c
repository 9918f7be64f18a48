/* SPDX-License-Identifier: Apache-2.0
 *
 * findings.c - see report.h: everything that is not PASS although it was to run, with the
 * line of source that a log names, and the words of the log.
 *
 * Invariant: a slot that FAILed, is INVALID or STALE is in it. What did not run is in the table of
 * stages, with its reason.
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "report/html.h"
#include "report/report.h"

enum { FINDINGS_MOST = 60, EXCERPT = 1200, SOURCE = 120, ALIKE_MOST = 20 };

static bool is_finding(const struct report_slot *slot) {
    return slot->gate == GATE_FAIL || slot->gate == GATE_INVALID || slot->gate == GATE_STALE;
}

/* ---- lines of source ------------------------------------------------------------------------- */

static bool ends_with(const char *text, size_t length, const char *end) {
    const size_t own = strlen(end);
    return length > own && strncmp(text + length - own, end, own) == 0;
}

static bool is_path(char c) {
    return isalnum((unsigned char)c) || strchr("_-./+", c) != NULL;
}

/* The first FILE.cu:LINE (or .cuh, .h, .c, .ptx) in the text; "" if there is none. */
static void find_source(const char *text, char source[SOURCE]) {
    static const char *const ENDS[] = {".cu", ".cuh", ".h", ".c", ".ptx"};
    source[0] = '\0';
    for (const char *colon = strchr(text, ':'); colon != NULL; colon = strchr(colon + 1, ':')) {
        const char *start = colon;
        while (start > text && start[-1] != '\0' && is_path(start[-1])) {
            start--;
        }
        const size_t length = (size_t)(colon - start);
        for (size_t i = 0; i < sizeof ENDS / sizeof *ENDS && isdigit((unsigned char)colon[1]);
             i++) {
            if (ends_with(start, length, ENDS[i])) {
                const size_t digits = strspn(colon + 1, "0123456789");
                snprintf(source, SOURCE, "%.*s:%.*s", length < 90 ? (int)length : 90, start,
                         digits < 9 ? (int)digits : 9, colon + 1);
                return;
            }
        }
    }
}

/* ---- what a log says ------------------------------------------------------------------------- */

/* The text of an artifact, for free(); NULL: it is not there, or no text. */
static char *artifact_text(const struct pack_report *report, const struct json_value *name) {
    attn_error why;
    size_t bytes = 0;
    const char *hash = json_text_of(name);
    char *data = hash != NULL ? pack_read(&report->pack, PACK_ARTIFACTS, hash, &bytes, &why) : NULL;
    if (data != NULL && memchr(data, '\0', bytes) != NULL) {
        free(data);
        data = NULL;
    }
    return data; /* with a 0 behind it, as file_read has it */
}

static bool speaks_of_trouble(const char *line, size_t length) {
    static const char *const WORDS[] = {"Invalid ", "hazard", "Uninitialized", "Barrier error",
                                        "error:",   "ERROR",  "race",          "wrong"};
    static const char summary[] = "SUMMARY"; /* which counts, be it to 0 */
    bool trouble = false;
    for (size_t i = 0; i < sizeof WORDS / sizeof *WORDS; i++) {
        trouble |= memmem(line, length, WORDS[i], strlen(WORDS[i])) != NULL;
    }
    return trouble && memmem(line, length, summary, sizeof summary - 1) == NULL;
}

/* The line where a tool begins to speak of a finding; NULL: nowhere. */
static const char *trouble_in(const char *text) {
    while (*text != '\0') {
        const size_t length = strcspn(text, "\n");
        if (speaks_of_trouble(text, length)) {
            return text;
        }
        text += length + (text[length] == '\n');
    }
    return NULL;
}

/* The logs of a unit that count (not those of planted faults), one after the other: the i-th, for
 * free(). NULL behind the last. */
static char *log_of(const struct pack_report *report, const struct report_slot *slot, size_t index,
                    bool *more) {
    const struct json_value *logs = json_at(slot->unit, "logs");
    const struct json_value *artifacts = json_at(slot->unit, "artifacts");
    const size_t tools = json_count_of(logs);
    *more = index < tools + json_count_of(artifacts);
    if (!*more) {
        return NULL;
    }
    return index < tools
               ? artifact_text(report,
                               json_at(json_at(&logs->as.list.items[index], "subject"), "log"))
               : artifact_text(report, &artifacts->as.list.items[index - tools]);
}

/* ---- both languages -------------------------------------------------------------------------- */

struct finding {
    char source[SOURCE];
    const char *damage;  /* what the first damaged case says, or NULL */
    char *log;           /* for free(), or NULL */
    const char *excerpt; /* in it, or NULL */
};

static const char *first_damage(const struct report_slot *slot) {
    const struct json_value *cases = json_at(slot->unit, "cases");
    for (size_t i = 0; i < json_count_of(cases); i++) {
        const char *damage = json_text_of(json_at(&cases->as.list.items[i], "damage"));
        if (damage != NULL) {
            return damage;
        }
    }
    return NULL;
}

static struct finding look_at(const struct pack_report *report, const struct report_slot *slot) {
    struct finding finding = {.damage = first_damage(slot)};
    bool more = true;
    find_source(slot->reason != NULL ? slot->reason : "", finding.source);
    if (finding.damage != NULL && finding.source[0] == '\0') {
        find_source(finding.damage, finding.source);
    }
    for (size_t i = 0; more && finding.excerpt == NULL; i++) {
        free(finding.log);
        finding.log = log_of(report, slot, i, &more);
        finding.excerpt = finding.log != NULL ? trouble_in(finding.log) : NULL;
    }
    if (finding.excerpt != NULL && finding.source[0] == '\0') {
        find_source(finding.excerpt, finding.source);
    }
    return finding;
}

static bool same_text(const char *a, const char *b) {
    return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

/* Variants about which there is the same to say are one finding. */
static bool same_finding(const struct report_slot *a, const struct report_slot *b) {
    return is_finding(a) && is_finding(b) && a->stage == b->stage && a->gate == b->gate &&
           strcmp(a->device, b->device) == 0 && same_text(a->reason, b->reason);
}

/* How many slots say the same as this one; 0: it is none, or one before it did. */
static size_t count_alike(const struct pack_report *report, size_t index) {
    const struct report_slot *slot = &report->slots[index];
    size_t count = 0;
    for (size_t i = 0; i < report->slot_count; i++) {
        if (same_finding(&report->slots[i], slot)) {
            if (i < index) {
                return 0;
            }
            count++;
        }
    }
    return count;
}

static size_t count_findings(const struct pack_report *report) {
    size_t count = 0;
    for (size_t i = 0; i < report->slot_count; i++) {
        count += count_alike(report, i) > 0;
    }
    return count;
}

/* The names of the others that say the same. */
static void put_alike(const struct pack_report *report, size_t index, size_t alike, FILE *out) {
    size_t shown = 0;
    if (alike < 2) {
        return;
    }
    html_put(out, "<p>The same of %zu more: ", alike - 1);
    for (size_t i = index + 1; i < report->slot_count && shown < ALIKE_MOST; i++) {
        if (same_finding(&report->slots[i], &report->slots[index])) {
            html_put(out, "%s<code>%s</code>", shown > 0 ? ", " : "", report->slots[i].variant);
            shown++;
        }
    }
    fputs(shown < alike - 1 ? " \xe2\x80\xa6</p>" : "</p>", out);
}

static void put_finding(const struct pack_report *report, size_t index, size_t alike, FILE *out) {
    const struct report_slot *slot = &report->slots[index];
    struct finding finding = look_at(report, slot);
    html_put(out,
             "<details class=\"find %s\" open><summary><span class=\"chip %s\">%s</span> %s on %s: "
             "<code>%s</code></summary><p>%s</p>",
             gate_class(slot->gate), gate_class(slot->gate), gate_words(slot->gate),
             STAGE_NAMES[slot->stage], slot->device, slot->variant,
             slot->reason != NULL ? slot->reason : "");
    if (finding.damage != NULL) {
        html_put(out, "<p>%s</p>", finding.damage);
    }
    if (finding.source[0] != '\0') {
        html_put(out, "<p>Source: <code>%s</code></p>", finding.source);
    }
    if (finding.excerpt != NULL) {
        fputs("<pre tabindex=\"0\">", out);
        html_lines(out, finding.excerpt, EXCERPT);
        fputs("</pre>", out);
    }
    put_alike(report, index, alike, out);
    if (slot->unit_name != NULL) {
        html_put(out, "<p class=\"note\">units/%s.json</p>", slot->unit_name);
    }
    fputs("</details>\n", out);
    free(finding.log);
}

void report_findings_html(const struct pack_report *report, FILE *out) {
    const size_t count = count_findings(report);
    size_t shown = 0;
    fputs("<h2 id=\"findings\">Findings</h2>\n", out);
    if (count == 0) {
        html_put(out,
                 "<p class=\"lead\">None among the %zu units that count. Each detector found the "
                 "fault that was planted for it in the same run; without that its unit would be "
                 "INVALID.</p>\n",
                 report->evidence.unit_count - report->evidence.stale_count);
        return;
    }
    html_put(out, "<p class=\"lead\">%zu in what ran.</p>\n", count);
    for (size_t i = 0; i < report->slot_count && shown < FINDINGS_MOST; i++) {
        const size_t alike = count_alike(report, i);
        if (alike > 0) {
            put_finding(report, i, alike, out);
            shown++;
        }
    }
    if (shown < count) {
        html_put(out, "<p class=\"note\">%zu more are in evidence.json.</p>\n", count - shown);
    }
}

void report_findings_markdown(const struct pack_report *report, FILE *out) {
    const size_t count = count_findings(report);
    size_t shown = 0;
    fputs("## Findings\n\n", out);
    if (count == 0) {
        fputs("None.\n\n", out);
        return;
    }
    fputs("| verdict | stage | device | variant | reason | source |\n|---|---|---|---|---|---|\n",
          out);
    for (size_t i = 0; i < report->slot_count && shown < FINDINGS_MOST; i++) {
        const struct report_slot *slot = &report->slots[i];
        const size_t alike = count_alike(report, i);
        if (alike == 0) {
            continue;
        }
        struct finding finding = look_at(report, slot);
        markdown_put(out, "| **%s** | %s | %s | ", gate_words(slot->gate), STAGE_NAMES[slot->stage],
                     slot->device);
        markdown_code(out, slot->variant);
        if (alike > 1) {
            markdown_put(out, " and %zu more", alike - 1);
        }
        markdown_put(out, " | %s | %s |\n", slot->reason != NULL ? slot->reason : "",
                     finding.source);
        free(finding.log);
        shown++;
    }
    fputs("\n", out);
    if (shown < count) {
        markdown_put(out, "%zu more are in evidence.json.\n\n", count - shown);
    }
}
