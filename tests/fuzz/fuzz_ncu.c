/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_ncu.c - any bytes as what Nsight Compute printed: a table, or a sentence; every figure a
 * number or NaN, never an infinity.
 *
 * Seeds are in tests/data/fuzz_ncu.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz/fuzz.h"
#include "tool/stages/profile/ncu.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct ncu_report report;
    attn_error why = {""};
    char *text = malloc(size + 1);
    HOLDS(text != NULL);
    memcpy(text, data, size);
    text[size] = '\0';
    if (!ncu_report_read(text, size, &report, &why)) {
        HOLDS(why.text[0] != '\0');
    }
    for (size_t i = 0; i < report.count; i++) {
        const struct ncu_kernel *kernel = &report.kernels[i];
        const struct ncu_kernel *found = ncu_report_find(&report, kernel->name);
        int places[NCU_TOP_STALLS];
        HOLDS(found == NULL || strcmp(found->name, kernel->name) == 0);
        for (int j = 0; j < NCU_FIGURES; j++) {
            HOLDS(!isinf(kernel->figures[j]));
        }
        const int stalls = ncu_top_stalls(kernel, places);
        for (int j = 0; j < stalls; j++) {
            HOLDS(kernel->stalls[places[j]] > 0.0);
            HOLDS(j == 0 || kernel->stalls[places[j]] <= kernel->stalls[places[j - 1]]);
        }
    }
    ncu_report_free(&report);
    free(text);
    return 0;
}
