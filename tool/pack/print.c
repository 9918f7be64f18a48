/* SPDX-License-Identifier: Apache-2.0
 *
 * print.c - see print.h.
 */
#include "pack/print.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/json_read.h"
#include "base/message.h"

enum { REASON_WIDTH = 120 };

/* Followed by blanks up to a width. */
static void print_column(const char *text, int width) {
    print_foreign(stdout, text, SIZE_MAX);
    const size_t length = strlen(text);
    printf("%*s", length < (size_t)width ? width - (int)length : 0, "");
}

/* What is missing, in brackets; long lists are cut, evidence.json has all of it. */
static void print_partial(const struct evidence *evidence) {
    struct json_value *document = json_read(evidence->text, evidence->text_bytes, NULL);
    const struct json_value *list = json_at(document, "partial");
    printf(" (partial: ");
    for (size_t i = 0; i < json_count_of(list); i++) {
        const char *text = json_text_of(&list->as.list.items[i]);
        const char *colon = text != NULL ? strstr(text, ": ") : NULL;
        printf("%s", i > 0 ? ", " : "");
        print_foreign(stdout, text != NULL ? text : "", colon != NULL ? (size_t)(colon - text) : 0);
    }
    printf(")");
    json_free(document);
}

void evidence_print(const struct evidence *evidence, bool ended) {
    printf("stage     device   verdict   passed      seconds\n");
    for (size_t i = 0; i < evidence->row_count; i++) {
        const struct evidence_row *row = &evidence->rows[i];
        const bool pass = row->judgement.gate == GATE_PASS;
        char passed[32];
        snprintf(passed, sizeof passed, "%zu of %zu", row->passed, row->subjects);
        printf("%-9s ", STAGE_NAMES[row->stage]);
        print_column(row->device, 8);
        printf(" %-9s %-11s %7.1f%s", GATE_NAMES[row->judgement.gate],
               row->absent != NULL ? "-" : passed, row->seconds, pass ? "" : "  ");
        print_foreign(stdout, pass ? "" : row->judgement.reason, REASON_WIDTH);
        printf("\n");
    }
    printf("\nverdict   %s", GATE_NAMES[evidence->judgement.gate]);
    if (evidence->judgement.gate != GATE_PASS) {
        printf(": ");
        print_foreign(stdout, evidence->judgement.reason, SIZE_MAX);
    } else if (evidence->partial) {
        print_partial(evidence);
    }
    printf("\n");
    if (!ended) {
        printf("          no %s yet: the run did not end\n", EVIDENCE_FILE);
    }
    printf("units     %zu, stale %zu\n", evidence->unit_count, evidence->stale_count);
    if (evidence->gpu_seconds > 0) {
        printf("GPU       %.1f s", evidence->gpu_seconds);
        if (evidence->gpu_price > 0) {
            printf(", %.4g of the currency of --gpu-hour-price", evidence->gpu_price);
        }
        printf("\n");
    }
    printf("root      %s\n", evidence->root);
}

void evidence_print_json(const struct evidence *evidence, const char *path, bool ended) {
    struct json json = json_begin(stdout);
    json_open(&json, NULL, '{');
    json_text(&json, "pack", path);
    json_text(&json, "verdict", GATE_NAMES[evidence->judgement.gate]);
    json_text(&json, "reason",
              evidence->judgement.gate == GATE_PASS ? NULL : evidence->judgement.reason);
    json_bool(&json, "partial", evidence->partial);
    json_bool(&json, "ended", ended);
    json_int(&json, "units", (int64_t)evidence->unit_count);
    json_int(&json, "stale", (int64_t)evidence->stale_count);
    json_real(&json, "gpu_seconds", evidence->gpu_seconds);
    json_real(&json, "gpu_price", evidence->gpu_price);
    json_open(&json, "rows", '[');
    for (size_t i = 0; i < evidence->row_count; i++) {
        const struct evidence_row *row = &evidence->rows[i];
        const bool pass = row->judgement.gate == GATE_PASS;
        json_open(&json, NULL, '{');
        json_text(&json, "stage", STAGE_NAMES[row->stage]);
        json_text(&json, "device", row->device);
        json_text(&json, "verdict", GATE_NAMES[row->judgement.gate]);
        json_text(&json, "reason", pass ? NULL : row->judgement.reason);
        json_int(&json, "subjects", (int64_t)row->subjects);
        json_int(&json, "passed", (int64_t)row->passed);
        json_real(&json, "seconds", row->seconds);
        json_close(&json);
    }
    json_close(&json);
    json_text(&json, "root", evidence->root);
    json_close(&json);
}
