/* SPDX-License-Identifier: Apache-2.0
 *
 * ncu.c - see ncu.h.
 */
#include "stages/profile/ncu.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/message.h"

const char *const NCU_FIGURE_NAMES[NCU_FIGURES] = {
    [NCU_SM_BUSY] = "sm_busy_percent",
    [NCU_TENSOR_PIPE] = "tensor_pipe_percent",
    [NCU_SM_THROUGHPUT] = "sm_throughput_percent",
    [NCU_DRAM_THROUGHPUT] = "dram_throughput_percent",
    [NCU_L2_THROUGHPUT] = "l2_throughput_percent",
    [NCU_OCCUPANCY] = "occupancy_percent",
    [NCU_DURATION] = "duration_ns",
};

const char *const NCU_FIGURE_METRICS[NCU_FIGURES] = {
    [NCU_SM_BUSY] = "sm__cycles_active.avg.pct_of_peak_sustained_elapsed",
    [NCU_TENSOR_PIPE] = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    [NCU_SM_THROUGHPUT] = "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    [NCU_DRAM_THROUGHPUT] = "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    [NCU_L2_THROUGHPUT] = "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    [NCU_OCCUPANCY] = "sm__warps_active.avg.pct_of_peak_sustained_active",
    [NCU_DURATION] = "gpu__time_duration.sum",
};

/* clang-format off */
const char *const NCU_STALL_NAMES[NCU_STALLS] = {
    "barrier", "branch_resolving", "dispatch_stall", "drain", "imc_miss", "lg_throttle",
    "long_scoreboard", "math_pipe_throttle", "membar", "mio_throttle", "misc", "no_instruction",
    "not_selected", "selected", "short_scoreboard", "sleeping", "tex_throttle", "wait", "gmma",
};
/* clang-format on */

/* ---- lines and fields ------------------------------------------------------------------------ */

enum { MOST_COLUMNS = 64, FIELD = 256, MOST_KERNELS = 4096 };

struct line {
    char fields[MOST_COLUMNS][FIELD]; /* cut to fit */
    int count;
};

/* A line of quoted fields, in which "" is a quotation mark; false: it is none. */
static bool split(const char *text, size_t length, struct line *line) {
    size_t i = 0;
    line->count = 0;
    while (i < length && line->count < MOST_COLUMNS) {
        char *field = line->fields[line->count++];
        size_t used = 0;
        if (text[i++] != '"') {
            return false;
        }
        while (i < length && !(text[i] == '"' && (i + 1 == length || text[i + 1] != '"'))) {
            i += text[i] == '"'; /* the first of two */
            if (used + 1 < FIELD) {
                field[used++] = text[i];
            }
            i++;
        }
        field[used] = '\0';
        if (i == length) {
            return false; /* no closing mark */
        }
        i++;
        if (i < length && text[i++] != ',') {
            return false;
        }
    }
    return line->count > 1 && i == length;
}

/* "1,234.5" is a number, "n/a" and "1234 (50 %)" are none. */
static double number(const char *field) {
    char digits[FIELD];
    size_t used = 0;
    for (const char *c = field; *c != '\0'; c++) {
        if (*c != ',') {
            digits[used++] = *c;
        }
    }
    digits[used] = '\0';
    char *end = digits;
    const double value = strtod(digits, &end);
    return used > 0 && *end == '\0' && isfinite(value) ? value : (double)NAN;
}

/* ---- the table ------------------------------------------------------------------------------- */

enum { ID, KERNEL, METRIC, VALUE, COLUMNS };

/* False, and nothing is changed, where the line is no head. */
static bool read_head(const struct line *line, int columns[COLUMNS]) {
    static const char *const HEADS[COLUMNS] = {"ID", "Kernel Name", "Metric Name", "Metric Value"};
    int found[COLUMNS];
    for (int i = 0; i < COLUMNS; i++) {
        found[i] = 0;
        while (found[i] < line->count && strcmp(line->fields[found[i]], HEADS[i]) != 0) {
            found[i]++;
        }
        if (found[i] == line->count) {
            return false;
        }
    }
    memcpy(columns, found, sizeof found);
    return true;
}

static void place(struct ncu_kernel *kernel, const char *metric, double value) {
    char name[160];
    for (int i = 0; i < NCU_FIGURES; i++) {
        if (strcmp(metric, NCU_FIGURE_METRICS[i]) == 0) {
            kernel->figures[i] = value;
        }
    }
    for (int i = 0; i < NCU_STALLS; i++) {
        snprintf(name, sizeof name, NCU_STALL_METRIC, NCU_STALL_NAMES[i]);
        if (strcmp(metric, name) == 0) {
            kernel->stalls[i] = value;
        }
    }
}

/* Its name without the brackets that follow it. */
static void set_name(struct ncu_kernel *kernel, const char *field) {
    snprintf(kernel->name, sizeof kernel->name, "%.*s", (int)strcspn(field, "(<"), field);
    for (size_t n = strlen(kernel->name); n > 0 && kernel->name[n - 1] == ' ';) {
        kernel->name[--n] = '\0';
    }
}

/* Lines of the same launch follow each other and have the same ID. */
static bool add(struct ncu_report *report, const struct line *line, const int columns[COLUMNS],
                char last[FIELD], attn_error *why) {
    if (report->count == 0 || strcmp(last, line->fields[columns[ID]]) != 0) {
        if (report->count == MOST_KERNELS) {
            return explain(why, "ncu: figures of more than %d kernels", MOST_KERNELS);
        }
        report->kernels = grow(report->kernels, report->count, sizeof *report->kernels);
        struct ncu_kernel *kernel = &report->kernels[report->count++];
        for (int i = 0; i < NCU_FIGURES; i++) {
            kernel->figures[i] = (double)NAN;
        }
        for (int i = 0; i < NCU_STALLS; i++) {
            kernel->stalls[i] = (double)NAN;
        }
        set_name(kernel, line->fields[columns[KERNEL]]);
        snprintf(last, FIELD, "%s", line->fields[columns[ID]]);
    }
    place(&report->kernels[report->count - 1], line->fields[columns[METRIC]],
          number(line->fields[columns[VALUE]]));
    return true;
}

bool ncu_report_read(const char *text, size_t bytes, struct ncu_report *report, attn_error *why) {
    struct line *line = must(malloc(sizeof *line));
    int columns[COLUMNS] = {0};
    char last[FIELD] = "";
    bool head = false, good = true;
    *report = (struct ncu_report){0};
    for (size_t begin = 0; good && begin < bytes;) {
        const char *newline = memchr(text + begin, '\n', bytes - begin);
        const size_t next = newline != NULL ? (size_t)(newline - text) + 1 : bytes;
        size_t length = (newline != NULL ? next - 1 : next) - begin;
        length -= length > 0 && text[begin + length - 1] == '\r';
        if (split(text + begin, length, line)) {
            if (read_head(line, columns)) {
                head = true;
            } else if (head && line->count > columns[VALUE]) {
                good = add(report, line, columns, last, why);
            }
        }
        begin = next;
    }
    free(line);
    if (good && !head) { /* the first line that says what went wrong, or a sentence of our own */
        const char *error = strstr(text, "==ERROR==");
        error = error != NULL ? error + strlen("==ERROR==") : "no table in what it printed";
        error += strspn(error, " ");
        explain(why, "ncu: %.*s", (int)strcspn(error, "\r\n"), error);
    }
    return good && head;
}

void ncu_report_free(struct ncu_report *report) {
    free(report->kernels);
    *report = (struct ncu_report){0};
}

const struct ncu_kernel *ncu_report_find(const struct ncu_report *report, const char *name) {
    int before = strncmp(name, "bwd_", 4) == 0;
    for (size_t i = 0; i < report->count; i++) {
        if (strcmp(report->kernels[i].name, name) == 0 && before-- == 0) {
            return &report->kernels[i];
        }
    }
    return NULL;
}

size_t ncu_forget_folder(char *text) {
    static const char CONNECTED[] = "==PROF== Connected to process ";
    for (char *at = strstr(text, CONNECTED); at != NULL; at = strstr(at + 1, CONNECTED)) {
        char *const end = at + strcspn(at, "\r\n"), *const path = at + strcspn(at, "(\r\n");
        memmove(path, end, strlen(end) + 1);
    }
    return strlen(text);
}

/* ---- report ---------------------------------------------------------------------------------- */

/* A warp that was chosen, or could have been, waits for nothing. */
static bool is_stall(int place) {
    return strcmp(NCU_STALL_NAMES[place], "selected") != 0 &&
           strcmp(NCU_STALL_NAMES[place], "not_selected") != 0;
}

int ncu_top_stalls(const struct ncu_kernel *kernel, int places[NCU_TOP_STALLS]) {
    double left[NCU_STALLS];
    int count = 0;
    for (int i = 0; i < NCU_STALLS; i++) {
        left[i] = is_stall(i) && kernel->stalls[i] > 0.0 ? kernel->stalls[i] : 0.0;
    }
    for (int rank = 0; rank < NCU_TOP_STALLS; rank++) {
        int best = 0;
        for (int i = 1; i < NCU_STALLS; i++) {
            best = left[i] > left[best] ? i : best;
        }
        if (left[best] > 0.0) {
            places[count++] = best;
            left[best] = 0.0;
        }
    }
    return count;
}

void ncu_values_json(struct json *json, const struct ncu_kernel *kernel) {
    int places[NCU_TOP_STALLS];
    const int stalls = ncu_top_stalls(kernel, places);
    for (int i = 0; i < NCU_FIGURES; i++) {
        if (!isnan(kernel->figures[i])) {
            json_real(json, NCU_FIGURE_NAMES[i], kernel->figures[i]);
        }
    }
    for (int i = 0; i < stalls; i++) {
        char key[64];
        snprintf(key, sizeof key, "stall_%s", NCU_STALL_NAMES[places[i]]);
        json_real(json, key, kernel->stalls[places[i]]);
    }
}
