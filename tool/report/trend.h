/* SPDX-License-Identifier: Apache-2.0
 *
 * trend.h - a ledger as somebody reads it: its packs, and how times went from one to the
 * next.
 *
 *     trend_open(&trend, "ledger.sqlite", &why);
 *     trend_html(&trend, out);
 *     trend_close(&trend);
 *
 * Invariant: times of different devices, hardware, problems, modes or caches are never in one line.
 */
#ifndef ATTEST_REPORT_TREND_H
#define ATTEST_REPORT_TREND_H

#include <stdio.h>

#include "base/json.h"
#include "ledger/ledger.h"

struct trend {
    const char *path;
    char head[SHA256_TEXT];
    struct ledger_packs packs;
    struct ledger_timings *timings; /* of each pack */
    struct ledger_timings baselines;
};

/* False and the reason; in any case the trend may be closed. */
bool trend_open(struct trend *trend, const char *path, attn_error *why);
void trend_close(struct trend *trend);

void trend_html(const struct trend *trend, FILE *out);
void trend_markdown(const struct trend *trend, FILE *out);
void trend_json(const struct trend *trend, struct json *json, const char *html,
                const char *markdown);

#endif /* ATTEST_REPORT_TREND_H */
