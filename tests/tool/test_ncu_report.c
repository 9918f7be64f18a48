/* SPDX-License-Identifier: Apache-2.0
 *
 * test_ncu_report.c - proves what is read from the lines that Nsight Compute prints: figures of the
 * right kernel, thousands, units, quotation marks; and that what is absent, cut off, "n/a" or given
 * twice is no figure.
 */
#include <math.h>
#include <stdlib.h>

#include "test.h"
#include "tool/stages/profile/ncu.h"

#define HEAD                                                                                       \
    "\"ID\",\"Process ID\",\"Process Name\",\"Host Name\",\"Kernel Name\",\"Context\",\"Stream\"," \
    "\"Block Size\",\"Grid Size\",\"Device\",\"CC\",\"Section Name\",\"Metric Name\","             \
    "\"Metric Unit\",\"Metric Value\"\n"
#define ROW(id, kernel, metric, unit, value)                                                       \
    "\"" id "\",\"7\",\"attest\",\"127.0.0.1\",\"" kernel "\",\"1\",\"13\",\"(384, 1, 1)\","       \
    "\"(132, 1, 1)\",\"0\",\"9.0\",\"Command line profiler metrics\",\"" metric "\",\"" unit       \
    "\",\"" value "\"\n"
#define BUSY "sm__cycles_active.avg.pct_of_peak_sustained_elapsed"
#define TENSOR "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"
#define STALL(name) "smsp__average_warps_issue_stalled_" name "_per_issue_active.ratio"

static const char GOOD[] =
    "==PROF== Connected to process 7 (attest)\n"
    "==PROF== Profiling \"fwd_a\" - 0: 0%....50%....100% - 9 passes\n"
    "target: fwd_a verified\n" HEAD ROW("0", "attest_sleep", BUSY, "%", "0.76")
        ROW("0", "attest_sleep", TENSOR, "%", "0") ROW("1", "fwd_a", BUSY, "%", "93.25")
            ROW("1", "fwd_a", TENSOR, "%", "71.5") ROW("1", "fwd_a", "gpu__time_duration.sum", "ns",
                                                       "1,234.5")
                ROW("1", "fwd_a", STALL("barrier"), "warp", "0.50")
                    ROW("1", "fwd_a", STALL("selected"), "warp", "9.00")
                        ROW("1", "fwd_a", STALL("wait"), "warp", "1.25")
                            ROW("1", "fwd_a", STALL("gmma"), "warp", "3.00")
                                ROW("1", "fwd_a", STALL("drain"), "warp", "0.25")
                                    ROW("2", "fwd_b(attn_args)", BUSY, "%", "n/a")
                                        ROW("2", "fwd_b(attn_args)", TENSOR, "%",
                                            "1 \"\"x\"\"") "==PROF== Disconnected from process 7\n";

static bool near(double value, double expected) {
    return fabs(value - expected) < 1e-9 * (1.0 + fabs(expected)); /* false for NaN */
}

TEST(figures) {
    struct ncu_report report;
    attn_error why = {""};
    if (!CHECK_MSG(ncu_report_read(GOOD, sizeof GOOD - 1, &report, &why), "%s", why.text)) {
        return;
    }
    CHECK_EQ(report.count, 3U);
    const struct ncu_kernel *a = ncu_report_find(&report, "fwd_a");
    if (CHECK(a != NULL)) {
        int places[NCU_TOP_STALLS];
        CHECK(near(a->figures[NCU_SM_BUSY], 93.25) && near(a->figures[NCU_TENSOR_PIPE], 71.5));
        CHECK(near(a->figures[NCU_DURATION], 1234.5));
        CHECK(isnan(a->figures[NCU_OCCUPANCY]));
        CHECK_EQ(ncu_top_stalls(a, places), 3);
        CHECK_STR(NCU_STALL_NAMES[places[0]], "gmma");
        CHECK_STR(NCU_STALL_NAMES[places[1]], "wait");
        CHECK_STR(NCU_STALL_NAMES[places[2]], "barrier");
    }
    const struct ncu_kernel *b = ncu_report_find(&report, "fwd_b");
    if (CHECK(b != NULL)) {
        int places[NCU_TOP_STALLS];
        CHECK(isnan(b->figures[NCU_SM_BUSY]) && isnan(b->figures[NCU_TENSOR_PIPE]));
        CHECK_EQ(ncu_top_stalls(b, places), 0);
    }
    CHECK(ncu_report_find(&report, "fwd") == NULL);
    CHECK(ncu_report_find(&report, "fwd_a1") == NULL);
    ncu_report_free(&report);
}

/* Forward the first, backward the second, which has the tiles. */
TEST(which_of_two_launches) {
    static const char text[] = HEAD ROW("0", "fwd_a", BUSY, "%", "90")
        ROW("1", "bwd_a", BUSY, "%", "20") ROW("2", "bwd_a", BUSY, "%", "80")
            ROW("3", "fwd_a", BUSY, "%", "30") ROW("4", "bwd_b", BUSY, "%", "40");
    struct ncu_report report;
    CHECK(ncu_report_read(text, sizeof text - 1, &report, NULL));
    CHECK_EQ(report.count, 5U);
    CHECK(ncu_report_find(&report, "fwd_a") == &report.kernels[0]);
    CHECK(ncu_report_find(&report, "bwd_a") == &report.kernels[2]);
    CHECK(ncu_report_find(&report, "bwd_b") == NULL);
    ncu_report_free(&report);
}

TEST(no_table) {
    static const struct {
        const char *text, *reason;
    } CASES[] = {
        {"", "no table"},
        {"target: fwd_a verified\n", "no table"},
        {"==PROF== x\n==ERROR== Failed to find metric sm__x\n", "Failed to find metric sm__x"},
        {"\"ID\",\"Kernel Name\"\n\"0\",\"fwd_a\"\n", "no table"},
        {"\"ID\",\"Kernel Name\n", "no table"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct ncu_report report;
        attn_error why = {""};
        CHECK(!ncu_report_read(CASES[i].text, strlen(CASES[i].text), &report, &why));
        CHECK_CONTAINS(why.text, CASES[i].reason);
        ncu_report_free(&report);
    }
}

TEST(folder_of_the_program) {
    static const struct {
        const char *text, *expected;
    } CASES[] = {
        {"", ""},
        {"==WARNING== x\n==PROF== Connected to process 7 (/a b/(c)/attest)\nfwd_a /x/y (/z)\n",
         "==WARNING== x\n==PROF== Connected to process 7 \nfwd_a /x/y (/z)\n"},
        {"==PROF== Connected to process 7 (/attest)\r\n==PROF== Connected to process 8 (/a/b)\n",
         "==PROF== Connected to process 7 \r\n==PROF== Connected to process 8 \n"},
        {"==PROF== Connected to process 7 (/a/b", "==PROF== Connected to process 7 "},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        char text[256];
        snprintf(text, sizeof text, "%s", CASES[i].text);
        CHECK_EQ(ncu_forget_folder(text), strlen(CASES[i].expected));
        CHECK_STR(text, CASES[i].expected);
    }
}

/* Cut anywhere, it is read without a fault, and no figure is another one than in the whole text
 * (a field without its closing mark is none). */
TEST(cut_off) {
    for (size_t bytes = 0; bytes < sizeof GOOD; bytes++) {
        char *text = malloc(bytes + 1);
        struct ncu_report report;
        attn_error why = {""};
        if (!CHECK(text != NULL)) {
            return;
        }
        memcpy(text, GOOD, bytes);
        text[bytes] = '\0';
        if (ncu_report_read(text, bytes, &report, &why)) {
            const struct ncu_kernel *a = ncu_report_find(&report, "fwd_a");
            CHECK(a == NULL || isnan(a->figures[NCU_SM_BUSY]) ||
                  near(a->figures[NCU_SM_BUSY], 93.25));
        }
        ncu_report_free(&report);
        free(text);
    }
}

TEST_MAIN()
