/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_claims.c - any bytes as Markdown with marks, against one document; and its first line as an
 * expression: a number, or a sentence. No file is read.
 *
 * Seeds are in tests/data/fuzz_claims.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tool/claims/claims.h"
#include "tool/claims/value.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define HOLDS(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                        \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

static const char DOCUMENT[] =
    "{\"a\": 1.5, \"r\": [{\"n\": \"x\", \"v\": 2, \"w\": null}, {\"n\": \"y\", \"v\": 3.25}]}";

static void read_expression(const struct json_value *document, const char *text, size_t size) {
    attn_error why = {""};
    double value;
    char *line = strndup(text, size);
    HOLDS(line != NULL);
    line[strcspn(line, "\n")] = '\0';
    if (claims_value(document, line, &value, &why)) {
        HOLDS(isfinite(value));
    } else {
        HOLDS(why.text[0] != '\0');
    }
    free(line);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *text = (const char *)data;
    attn_error why = {""};
    struct claims_sources sources = {"/nowhere", calloc(1, sizeof *sources.items), 1};
    HOLDS(sources.items != NULL);
    sources.items[0].name = strdup("d");
    sources.items[0].document = json_read(DOCUMENT, sizeof DOCUMENT - 1, &why);
    HOLDS(sources.items[0].document != NULL);
    read_expression(sources.items[0].document, text, size);
    struct claims claims;
    size_t lines = 1;
    for (size_t i = 0; i < size; i++) {
        lines += data[i] == '\n';
    }
    HOLDS(claims_read(text, size, &sources, &claims, &why));
    size_t total = 0;
    for (int k = 0; k < CLAIM_KINDS; k++) {
        total += claims.counts[k];
    }
    HOLDS(total == claims.count);
    for (size_t i = 0; i < claims.count; i++) {
        const struct claim *claim = &claims.items[i];
        HOLDS(claim->line >= 1 && claim->line <= lines);
        HOLDS(claim->kind == CLAIM_BACKED ? isfinite(claim->value) : claim->reason[0] != '\0');
    }
    claims_free(&claims);
    claims_sources_free(&sources);
    return 0;
}
