/* SPDX-License-Identifier: Apache-2.0
 *
 * timing.c - packs and timings of the ledger in memory. See ledger.h.
 */
#include <stdlib.h>

#include "base/json_read.h"
#include "base/message.h"
#include "base/stats.h"
#include "ledger/ledger.h"

const char *const LEDGER_KEY_NAMES[LEDGER_KEYS] = {"device",  "hardware", "variant",
                                                   "problem", "mode",     "cache"};

bool ledger_timing_read(struct ledger_timing *timing, attn_error *why) {
    size_t bytes = 0;
    while (timing->ns[bytes] != '\0') {
        bytes++;
    }
    struct json_value *list = json_read(timing->ns, bytes, why);
    const size_t count = json_count_of(list);
    double *seconds = count > 0 ? malloc(count * sizeof *seconds) : NULL;
    bool good = seconds != NULL && timing->repeats > 0;
    for (size_t i = 0; good && i < count; i++) {
        const double ns = json_number_of(&list->as.list.items[i]);
        good = ns > 0;
        seconds[i] = ns * 1e-9 / (double)timing->repeats;
    }
    json_free(list);
    if (!good) {
        free(seconds);
        return explain(why, "a timing of '%.60s' has no samples, or one that is no time above 0",
                       timing->key[KEY_VARIANT]);
    }
    free(timing->seconds);
    timing->seconds = seconds;
    timing->count = count;
    timing->median = stats_of(seconds, count).p50;
    return true;
}

void ledger_pack_free(struct ledger_pack *pack) {
    free(pack->root);
    free(pack->verdict);
    free(pack->reason);
    free(pack->mode);
    free(pack->tool);
    free(pack->library);
    free(pack->commit);
    free(pack->imported);
    *pack = (struct ledger_pack){0};
}

void ledger_packs_free(struct ledger_packs *packs) {
    for (size_t i = 0; i < packs->count; i++) {
        ledger_pack_free(&packs->items[i]);
    }
    free(packs->items);
    *packs = (struct ledger_packs){0};
}

void ledger_timings_free(struct ledger_timings *timings) {
    for (size_t i = 0; i < timings->count; i++) {
        struct ledger_timing *timing = &timings->items[i];
        for (int k = 0; k < LEDGER_KEYS; k++) {
            free(timing->key[k]);
        }
        free(timing->shape);
        free(timing->image);
        free(timing->ns);
        free(timing->seconds);
    }
    free(timings->items);
    *timings = (struct ledger_timings){0};
}
