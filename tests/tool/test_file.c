/* SPDX-License-Identifier: Apache-2.0
 *
 * test_file.c - proves that file_read gives the bytes of a regular file and a 0 after them, and one
 * sentence for anything else, without waiting for it; where a temporary folder lies, that no two
 * are the same, and what is said where there can be none.
 */
#include "test.h"
#include "tool/base/file.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[] = "/tmp/test_file.XXXXXX";

static const char *path_of(const char *name) {
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void make(const char *name, const char *bytes, size_t size, off_t length) {
    FILE *out = fopen(path_of(name), "wb");
    if (CHECK(out != NULL)) {
        CHECK_EQ(fwrite(bytes, 1, size, out), size);
        CHECK_EQ(fclose(out), 0);
        CHECK_EQ(truncate(path_of(name), length), 0);
    }
}

static void refuse(const char *path, const char *sentence) {
    attn_error why = {""};
    size_t size = 7;
    char *data = file_read(path, &size, &why);
    CHECK_MSG(data == NULL, "%s was read", path);
    CHECK_EQ(size, 0);
    CHECK_CONTAINS(why.text, path);
    CHECK_CONTAINS(why.text, sentence);
    free(data);
}

TEST(files) {
    if (!CHECK(mkdtemp(folder) != NULL)) {
        return;
    }
    attn_error why = {""};
    size_t size = 0;
    make("good", "a\0b", 3, 3);
    char *data = file_read(path_of("good"), &size, &why);
    if (CHECK_MSG(data != NULL, "%s", why.text)) {
        CHECK_EQ(size, 3);
        CHECK(memcmp(data, "a\0b", 4) == 0);
    }
    free(data);
    make("large", "", 0, 64 << 20);
    data = file_read(path_of("large"), &size, &why);
    CHECK_MSG(data != NULL && size == 64 << 20, "%s", why.text);
    free(data);
    make("larger", "", 0, (64 << 20) + 1);
    refuse(path_of("larger"), "67108865 bytes, expected at most 64 MiB");
    make("empty", "", 0, 0);
    refuse(path_of("empty"), "it is empty");
    CHECK_EQ(mkfifo(path_of("pipe"), 0600), 0);
    refuse(path_of("pipe"), "not a regular file");
    refuse(path_of("absent"), "No such file");
    refuse(folder, "not a regular file");
    refuse("/dev/zero", "not a regular file");
    static const char *const names[] = {"good", "large", "larger", "empty", "pipe"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        CHECK_EQ(unlink(path_of(names[i])), 0);
    }
    CHECK_EQ(rmdir(folder), 0);
}

/* A new folder in `parent`, which is removed. */
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

TEST(temporary_folder_where) {
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

TEST(temporary_folder_nowhere) {
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
