/* SPDX-License-Identifier: Apache-2.0
 *
 * test_output.c - proves that an output takes its name whole or not at all: where it cannot, the
 * target is what it was before, links stay, and no temporary file is left.
 */
#include <dirent.h>
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "test.h"
#include "tool/base/file.h"
#include "tool/base/output.h"

static char before[TEMPORARY_SIZE * 2];

/* A folder of its own to be in. */
static bool enter(char folder[TEMPORARY_SIZE]) {
    attn_error why = {""};
    return CHECK(getcwd(before, sizeof before) != NULL) &&
           CHECK_MSG(temporary_folder(folder, "output", &why), "%s", why.text) &&
           CHECK_EQ(chdir(folder), 0);
}

static void leave(const char *folder) {
    static const char *const names[] = {"a", "a_link", "b_link"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (unlink(names[i]) != 0) {
            rmdir(names[i]);
        }
    }
    CHECK_EQ(chdir(before), 0);
    CHECK_MSG(rmdir(folder) == 0, "%s: %s", folder, strerror(errno)); /* nothing else is in it */
}

static void put(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    CHECK(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0);
}

/* "": there is no such file. Valid until the next call. */
static const char *text_of(const char *path) {
    static char text[64];
    FILE *file = fopen(path, "r");
    text[0] = '\0';
    if (file != NULL) {
        text[fread(text, 1, sizeof text - 1, file)] = '\0';
        fclose(file);
    }
    return text;
}

static bool write_new(struct output *output, const char *path) {
    attn_error why = {""};
    return CHECK_MSG(output_open(output, path, &why), "%s: %s", path, why.text) &&
           CHECK(fputs("new", output->file) >= 0) && CHECK(output_finish(output, &why));
}

static int hidden_files(void) {
    DIR *folder = opendir(".");
    int count = 0;
    if (folder == NULL) {
        return -1;
    }
    for (const struct dirent *e; (e = readdir(folder)) != NULL;) {
        count += strncmp(e->d_name, ".attest-", 8) == 0;
    }
    closedir(folder);
    return count;
}

/* Writes to `path`, which is or leads to the file a; `blocked`: that becomes a folder meanwhile. */
static void publish(const char *path, bool old, bool blocked) {
    char folder[TEMPORARY_SIZE];
    struct output output = {.slot = -1};
    struct stat info;
    attn_error why = {""};
    if (!enter(folder)) {
        return;
    }
    CHECK(symlink("b_link", "a_link") == 0 && symlink("a", "b_link") == 0);
    if (old) {
        put("a", "old");
    }
    if (write_new(&output, path)) {
        CHECK_EQ(hidden_files(), 1);
        CHECK_STR(text_of("a"), old ? "old" : "");
        if (blocked) {
            unlink("a");
            CHECK_EQ(mkdir("a", 0777), 0);
        }
        CHECK_EQ(output_publish(&output, &why), !blocked);
        CHECK_STR(text_of("a"), blocked ? "" : "new");
        CHECK((why.text[0] != '\0') == blocked);
    }
    output_discard(&output);
    CHECK_EQ(hidden_files(), 0);
    CHECK(lstat("a_link", &info) == 0 && S_ISLNK(info.st_mode));
    CHECK(lstat("b_link", &info) == 0 && S_ISLNK(info.st_mode));
    leave(folder);
}

TEST(whole_or_not_at_all) {
    for (int i = 0; i < 8; i++) {
        publish(i & 4 ? "a_link" : "a", i & 1, i & 2);
    }
}

TEST(discarded) {
    char folder[TEMPORARY_SIZE];
    struct output output;
    if (enter(folder)) {
        put("a", "old");
        if (write_new(&output, "a")) {
            output_discard(&output);
        }
        CHECK_STR(text_of("a"), "old");
        CHECK_EQ(hidden_files(), 0);
        leave(folder);
    }
}

TEST(in_place) {
    struct output output;
    struct stat info;
    attn_error why = {""};
    if (write_new(&output, "/dev/null")) {
        CHECK_EQ(output.slot, -1);
        CHECK(output_publish(&output, &why));
        CHECK(stat("/dev/null", &info) == 0 && S_ISCHR(info.st_mode));
    }
    output_discard(&output);
}

TEST_MAIN()
