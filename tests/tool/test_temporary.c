/* SPDX-License-Identifier: Apache-2.0
 *
 * test_temporary.c - proves where a temporary folder lies, that no two are the same, and what is
 * said where there can be none.
 */
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "test.h"
#include "tool/base/temporary.h"

/* A new folder in `parent`, of nobody else, which is removed. */
static void expect_in(const char *parent) {
    char first[TEMPORARY_SIZE], second[TEMPORARY_SIZE], begin[TEMPORARY_SIZE];
    attn_error why = {""};
    struct stat info;
    snprintf(begin, sizeof begin, "%.400s/attest-proof-", parent);
    if (CHECK_MSG(temporary_folder(first, "proof", &why), "%s", why.text) &&
        CHECK_MSG(temporary_folder(second, "proof", &why), "%s", why.text)) {
        CHECK(strncmp(first, begin, strlen(begin)) == 0);
        CHECK(strcmp(first, second) != 0);
        CHECK(stat(first, &info) == 0 && S_ISDIR(info.st_mode) && (info.st_mode & 077) == 0);
        CHECK_EQ(rmdir(first), 0);
        CHECK_EQ(rmdir(second), 0);
    }
}

TEST(where) {
    char parent[] = "/tmp/test_temporary.XXXXXX";
    if (CHECK(mkdtemp(parent) != NULL)) {
        setenv("TMPDIR", parent, 1);
        expect_in(parent);
        CHECK_EQ(rmdir(parent), 0); /* and nothing is left in it */
    }
    setenv("TMPDIR", "", 1);
    expect_in("/tmp");
    unsetenv("TMPDIR");
    expect_in("/tmp");
}

TEST(nowhere) {
    char path[TEMPORARY_SIZE], name[TEMPORARY_SIZE];
    attn_error why = {""};
    setenv("TMPDIR", "/nonexistent", 1);
    CHECK(!temporary_folder(path, "proof", &why));
    CHECK_STR(why.text, "/nonexistent: no temporary folder there: No such file or directory");
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    setenv("TMPDIR", name, 1);
    CHECK(!temporary_folder(path, "proof", &why));
    CHECK_STR(why.text, "$TMPDIR: 511 characters, expected fewer than 448");
    unsetenv("TMPDIR");
}

TEST_MAIN()
