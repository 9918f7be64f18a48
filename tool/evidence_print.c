/* SPDX-License-Identifier: Apache-2.0
 *
 * evidence_print.c - see evidence_print.h.
 */
#include "evidence_print.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "json_read.h"

enum { REASON_WIDTH = 120 };

/* The character at `text`, of which `left` bytes are there, and how many it has; 0: no UTF-8. */
static size_t decode(const unsigned char *text, size_t left, uint32_t *character) {
    static const uint32_t LEAST[] = {0, 0, 0x80, 0x800, 0x10000};
    const size_t bytes = text[0] < 0x80             ? 1
                         : (text[0] & 0xe0) == 0xc0 ? 2
                         : (text[0] & 0xf0) == 0xe0 ? 3
                         : (text[0] & 0xf8) == 0xf0 ? 4
                                                    : 0;
    if (bytes == 0 || bytes > left) {
        return 0;
    }
    *character = bytes == 1 ? text[0] : text[0] & (0x7fU >> bytes);
    for (size_t i = 1; i < bytes; i++) {
        if ((text[i] & 0xc0) != 0x80) {
            return 0;
        }
        *character = *character << 6 | (text[i] & 0x3f);
    }
    return *character >= LEAST[bytes] ? bytes : 0;
}

/* C0, DEL and C1; marks, embeddings, overrides and isolates of bidirectional text; the two
 * separators of lines; what has no width and hides a word in another. */
static bool is_treacherous(uint32_t c) {
    return c < 0x20 || (c >= 0x7f && c < 0xa0) || c == 0x61c || (c >= 0x200b && c <= 0x200f) ||
           (c >= 0x2028 && c <= 0x202e) || (c >= 0x2060 && c <= 0x206f) || c == 0xfeff;
}

void print_foreign(const char *text, size_t most) {
    const size_t length = strnlen(text, most);
    for (size_t at = 0; at < length;) {
        uint32_t character = 0;
        const size_t bytes = decode((const unsigned char *)text + at, length - at, &character);
        if (bytes == 0 || is_treacherous(character)) {
            putchar('?');
        } else {
            printf("%.*s", (int)bytes, text + at);
        }
        at += bytes > 0 ? bytes : 1;
    }
}

/* Followed by blanks up to a width. */
static void print_column(const char *text, int width) {
    print_foreign(text, SIZE_MAX);
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
        print_foreign(text != NULL ? text : "", colon != NULL ? (size_t)(colon - text) : 0);
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
        print_foreign(pass ? "" : row->judgement.reason, REASON_WIDTH);
        printf("\n");
    }
    printf("\nverdict   %s", GATE_NAMES[evidence->judgement.gate]);
    if (evidence->judgement.gate != GATE_PASS) {
        printf(": ");
        print_foreign(evidence->judgement.reason, SIZE_MAX);
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
