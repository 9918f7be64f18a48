/* SPDX-License-Identifier: Apache-2.0
 *
 * print.c - see print.h.
 */
#include "ledger/print.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/message.h"

void ledger_print_pack(const struct ledger_pack *pack) {
    printf("%4lld  %.12s  %-7s%-10s %-5s %4lld timings  ", (long long)pack->id, pack->root,
           pack->verdict, pack->partial ? " (partial)" : "", pack->mode, (long long)pack->timings);
    print_foreign(stdout, pack->commit != NULL ? pack->commit : "-", 12);
    printf("  %s%s", pack->imported, pack->reason != NULL ? "  " : "");
    print_foreign(stdout, pack->reason != NULL ? pack->reason : "", SIZE_MAX);
    printf("\n");
}

void ledger_pack_json(struct json *json, const char *key, const struct ledger_pack *pack) {
    json_open(json, key, '{');
    json_int(json, "id", pack->id);
    json_text(json, "root", pack->root);
    json_text(json, "verdict", pack->verdict);
    json_text(json, "reason", pack->reason);
    json_bool(json, "partial", pack->partial);
    json_text(json, "mode", pack->mode);
    json_text(json, "tool", pack->tool);
    json_text(json, "library", pack->library);
    json_text(json, "commit", pack->commit);
    json_text(json, "imported", pack->imported);
    json_int(json, "units", pack->units);
    json_int(json, "timings", pack->timings);
    json_close(json);
}

/* Which one it is; brief: without its hardware. */
static void print_key(const struct ledger_timing *timing, bool brief) {
    const char *hardware = brief ? "" : timing->key[KEY_HARDWARE];
    const bool known = *hardware != '\0';
    const char *const parts[] = {timing->key[KEY_DEVICE],
                                 known ? " (" : "",
                                 hardware,
                                 known ? ")" : "",
                                 "  ",
                                 timing->key[KEY_VARIANT],
                                 "  ",
                                 timing->shape,
                                 "  ",
                                 timing->key[KEY_MODE],
                                 " ",
                                 timing->key[KEY_CACHE]};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        print_foreign(stdout, parts[i], SIZE_MAX);
    }
    printf("\n");
}

static void key_json(struct json *json, const struct ledger_timing *timing) {
    for (int k = 0; k < LEDGER_KEYS; k++) {
        json_text(json, LEDGER_KEY_NAMES[k], k == KEY_PROBLEM ? timing->shape : timing->key[k]);
    }
}

void ledger_print_timing(const struct ledger_timing *timing) {
    const struct interval median = stats_quantile(timing->seconds, timing->count, 0.5);
    printf("%10.2f us  [%.2f, %.2f]  %4zu samples  pack %lld  ", 1e6 * median.value,
           1e6 * median.low, 1e6 * median.high, timing->count, (long long)timing->pack);
    print_key(timing, false);
}

void ledger_timing_json(struct json *json, const struct ledger_timing *timing) {
    const struct interval median = stats_quantile(timing->seconds, timing->count, 0.5);
    json_open(json, NULL, '{');
    key_json(json, timing);
    json_int(json, "pack", timing->pack);
    json_text(json, "image", timing->image);
    json_int(json, "samples", (int64_t)timing->count);
    json_real(json, "us", 1e6 * median.value);
    json_real(json, "low_us", 1e6 * median.low);
    json_real(json, "high_us", 1e6 * median.high);
    json_close(json);
}

static double microseconds(const struct ledger_timing *timing) {
    return timing != NULL ? 1e6 * timing->median : (double)NAN;
}

/* In a column of 10; "-" where it is not known. */
static void print_microseconds(const struct ledger_timing *timing) {
    if (timing == NULL) {
        printf("%10s", "-");
    } else {
        printf("%10.2f", microseconds(timing));
    }
}

enum { DEVICES_MOST = 16 };

/* Adds the devices of the timings to those that are known; false: two of a name, or too many. */
static bool list_devices(const struct ledger_timings *timings,
                         const struct ledger_timing *devices[DEVICES_MOST], size_t *count) {
    for (size_t i = 0; i < timings->count; i++) {
        const struct ledger_timing *timing = &timings->items[i];
        size_t k = 0;
        while (k < *count && strcmp(devices[k]->key[KEY_DEVICE], timing->key[KEY_DEVICE]) != 0) {
            k++;
        }
        if (k == DEVICES_MOST ||
            (k < *count && strcmp(devices[k]->key[KEY_HARDWARE], timing->key[KEY_HARDWARE]) != 0)) {
            return false;
        }
        if (k == *count) {
            devices[(*count)++] = timing;
        }
    }
    return true;
}

bool ledger_print_hardware(const struct ledger_timings *old, const struct ledger_timings *new) {
    const struct ledger_timing *devices[DEVICES_MOST];
    size_t count = 0;
    if (!list_devices(old, devices, &count) || !list_devices(new, devices, &count)) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        print_foreign(stdout, devices[i]->key[KEY_DEVICE], SIZE_MAX);
        printf(" is ");
        print_foreign(stdout, devices[i]->key[KEY_HARDWARE], SIZE_MAX);
        printf(devices[i]->key[KEY_HARDWARE][0] != '\0' ? "\n" : "not known\n");
    }
    return true;
}

void ledger_print_comparison(const struct comparison *comparison, const char *word, bool brief) {
    const bool both = comparison->old != NULL && comparison->new != NULL;
    printf("%-9s ", word);
    print_microseconds(comparison->old);
    printf(" -> ");
    print_microseconds(comparison->new);
    printf(" us  ");
    if (both) {
        printf("%.4f [%.4f, %.4f]  ", comparison->ratio.value, comparison->ratio.low,
               comparison->ratio.high);
    }
    print_key(comparison->subject, brief);
}

void ledger_comparison_json(struct json *json, const struct comparison *comparison,
                            const char *word) {
    const bool both = comparison->old != NULL && comparison->new != NULL;
    const double unknown = (double)NAN;
    json_open(json, NULL, '{');
    key_json(json, comparison->subject);
    json_text(json, "verdict", word);
    json_real(json, "old_us", microseconds(comparison->old));
    json_real(json, "new_us", microseconds(comparison->new));
    json_real(json, "ratio", both ? comparison->ratio.value : unknown);
    json_real(json, "low", both ? comparison->ratio.low : unknown);
    json_real(json, "high", both ? comparison->ratio.high : unknown);
    json_bool(json, "sure", both && comparison->sure);
    json_close(json);
}
