/* SPDX-License-Identifier: Apache-2.0
 *
 * test_ptxas_log.c - proves that the figures of a kernel are found in what ptxas says, those of the
 * right kernel, and that a figure that is not there is an error.
 */
#include "test.h"
#include "tool/stages/inspect/inspect.h"

#define HASH "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static const char LOG[] =
    "sha256 " HASH "\n"
    "ptxas info    : 0 bytes gmem\n"
    "ptxas info    : Compiling entry function 'k4' for 'sm_80'\n"
    "ptxas info    : Function properties for k4\n"
    "    272 bytes stack frame, 536 bytes spill stores, 560 bytes spill loads\n"
    "ptxas info    : Used 32 registers, used 2 barriers, 272 bytes cumulative stack size, 8192 "
    "bytes smem, 372 bytes cmem[0]\n"
    "ptxas info    : Compiling entry function 'x_k4' for 'sm_80'\n"
    "ptxas info    : Function properties for x_k4\n"
    "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
    "ptxas info    : Used 10 registers\n"
    "ptxas info    : Function properties for helper\n"
    "    16 bytes stack frame, 8 bytes spill stores, 8 bytes spill loads\n"
    "ptxas info    : Compiling entry function 'mute' for 'sm_80'\n"
    "ptxas info    : Function properties for mute\n"
    "    1 bytes stack frame, 2 bytes spill stores, 3 bytes spill loads\n"
    "ptxas info    : Compiling entry function 'last' for 'sm_80'\n"
    "ptxas info    : Function properties for last\n"
    "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
    "ptxas info    : Used 11 registers\n";

static struct ptxas_figures figures;
static attn_error why;

static bool read(const char *log, const char *entry, const char *arch) {
    why.text[0] = '\0';
    return ptxas_log_read(log, entry, arch, &figures, &why);
}

TEST(all_figures) {
    CHECK_MSG(read(LOG, "k4", "sm_80"), "%s", why.text);
    CHECK_STR(figures.sha256, HASH);
    CHECK_EQ(figures.registers, 32);
    CHECK_EQ(figures.barriers, 2);
    CHECK_EQ(figures.shared_bytes, 8192);
    CHECK_EQ(figures.frame_bytes, 272);
    CHECK_EQ(figures.spill_stores, 536);
    CHECK_EQ(figures.spill_loads, 560);
}

TEST(what_is_left_out_is_none) {
    CHECK_MSG(read(LOG, "x_k4", "sm_80"), "%s", why.text);
    CHECK_EQ(figures.registers, 10);
    CHECK_EQ(figures.barriers, 0);
    CHECK_EQ(figures.shared_bytes, 0);
    CHECK_EQ(figures.spill_stores, 0);
}

static void refuses(const char *log, const char *entry, const char *arch, const char *sentence) {
    CHECK_MSG(!read(log, entry, arch), "accepted, expected \"%s\"", sentence);
    CHECK_CONTAINS(why.text, sentence);
}

TEST(absent) {
    refuses(LOG, "4", "sm_80", "no \"Compiling entry function '4' for 'sm_80'\"");
    refuses(LOG, "k4", "sm_90", "no \"Compiling entry function 'k4' for 'sm_90'\"");
    refuses(LOG, "mute", "sm_80", "was ptxas called with -v");
    refuses("", "k4", "sm_80", "does not begin with");
    refuses(strchr(LOG, '\n') + 1, "k4", "sm_80", "does not begin with");
    refuses("sha256 " HASH, "k4", "sm_80", "does not begin with");
    refuses("sha256 " HASH "0\n", "k4", "sm_80", "does not begin with");
    refuses("sha256 " HASH "\n", "k4", "sm_80", "no \"Compiling");
}

#define HEAD                                                                                       \
    "sha256 " HASH "\nptxas info    : Compiling entry function 'k' for 'sm_80'\n"                  \
    "ptxas info    : Function properties for k\n"

TEST(malformed) {
    refuses(HEAD "    none\n", "k", "sm_80", "expected stack frame and spills");
    refuses(HEAD "    -1 bytes stack frame, 0 bytes spill stores\n", "k", "sm_80",
            "expected stack frame and spills");
    refuses(HEAD "    0 bytes stack frame, 99999999999 bytes spill stores, 0 bytes spill loads\n",
            "k", "sm_80", "expected stack frame and spills");
    refuses(HEAD "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
                 "ptxas info    : Used many registers\n",
            "k", "sm_80", "expected registers");
    refuses("sha256 " HASH "\nptxas info    : Compiling entry function 'k' for 'sm_80'\n"
            "ptxas info    : Used 10 registers\n",
            "k", "sm_80", "no \"Function properties for k\"");
}

TEST_MAIN()
